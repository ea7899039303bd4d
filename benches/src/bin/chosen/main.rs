//! The algorithm that the cost model chooses, against every other one: five operations over threads, shared memory, TCP and limited links.
//!
//! In each round every algorithm that can do it is forced once, and once the choice is left to the cost model; whose turn is first goes round.
//! Who takes three times as long as the best in the first round is not measured again.
//! A cell is a place, an operation and a size: the chosen algorithm's time divided by that of the fastest forced one in the same round, of these the median, may be 1.10. Every miss is printed.
//! [`places`] says what is covered.
//!
//! With `--tuned` the tables are those that `gaggle tune` measures in the same place before.
//! Places between hosts need what `hosts` needs; without it they are left out, and that is said.

#![forbid(unsafe_code)]

mod cell;
mod places;

use anyhow::{Context, Result, bail};
use cell::Cell;
use clap::Parser;
use gaggle_benches::{
    jobs,
    net::{self, Net},
    options::{self, ROUNDS},
    perf::{self, Call},
    verdict::{Figure, Report, Table, machine, median, size},
};
use indicatif::{ProgressBar, ProgressStyle};
use places::{Operation, Place, Ranks, chosen};
use serde_json::json;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

#[derive(Parser)]
#[command(about = "The chosen algorithm against every other one", long_about = None)]
struct Args {
    /// A moment only, to see that it works
    #[arg(long)]
    smoke: bool,
    /// Where the figures go
    #[arg(long, value_name = "FILE", value_parser = options::file)]
    out: Option<PathBuf>,
    /// Where the table goes; target/bench/chosen without it
    #[arg(long, value_name = "DIR", value_parser = options::folder)]
    report: Option<PathBuf>,
    /// Only the places whose name begins with one of these: threads, shm-4, tcp-2, hosts-4x1000
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Only these operations: all-reduce, broadcast, all-gather, reduce-scatter, all-to-all
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = operation)]
    ops: Vec<&'static str>,
    /// How often each is measured; fewer than 7 judge nothing
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = options::at_least_one)]
    rounds: usize,
    /// One round, which judges nothing
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Seconds for each size and algorithm in each round
    #[arg(long, value_name = "SECONDS", default_value_t = 0.004)]
    budget: f64,
    /// With tables that `gaggle tune` measures first
    #[arg(long)]
    tuned: bool,
    /// Measure this `gaggle` instead of building one
    #[arg(long, value_name = "FILE", value_parser = options::program)]
    gaggle: Option<PathBuf>,
    /// Say what places there are
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        for place in places::places() {
            println!("{:13} {}", place.id, covers(&place, &args.ops));
        }
        return ExitCode::SUCCESS;
    }
    let run = || match orchestrate(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chosen: {error:#}");
            ExitCode::FAILURE
        }
    };
    let built = match args.gaggle.is_none() && !args.smoke && !net::is_inside() {
        true => perf::build().map(drop),
        false => Ok(()),
    };
    let done = built.and_then(|()| match net::is_inside() || net::missing().is_none() {
        true => net::enter(run),
        false => Ok(run()),
    });
    done.unwrap_or_else(|error| {
        eprintln!("chosen: {error:#}");
        ExitCode::FAILURE
    })
}

fn operation(text: &str) -> Result<&'static str, String> {
    let mut names = places::OPERATIONS.iter().map(|o| o.name);
    let found = names.find(|name| *name == text);
    found.ok_or_else(|| {
        "there are all-reduce, broadcast, all-gather, reduce-scatter and all-to-all".into()
    })
}

/// What is measured in a place, in words.
fn covers(place: &Place, ops: &[&str]) -> String {
    let names = place.operations().map(|o| o.name);
    let names: Vec<&str> = names
        .filter(|n| ops.is_empty() || ops.contains(n))
        .collect();
    let sizes: Vec<String> = place.sizes.iter().map(|s| size(*s)).collect();
    format!("{}; {}", names.join(", "), sizes.join(", "))
}

/// Timed calls of a size at least, however long they take.
const LEAST: u32 = 5;

/// One place with its network, if it has one.
struct Ground<'a> {
    place: &'a Place,
    net: Option<Net>,
    gaggle: &'a Path,
    tables: Option<PathBuf>,
}

impl Ground<'_> {
    fn limit(&self) -> Duration {
        Duration::from_secs(120)
    }

    /// What gaggle takes for `what`: seconds at each size, in their order, and by which algorithm.
    fn measure(&self, what: &Call) -> Result<Vec<(f64, String)>> {
        let mut commands = match (&self.net, self.place.path) {
            (Some(net), path) => {
                perf::on_hosts(net, self.gaggle, path.per_host(), &what.arguments())
            }
            (None, Ranks::Threads(n)) => {
                let ranks = format!("--threads={n}");
                vec![perf::here(self.gaggle, what, &[&ranks])]
            }
            (None, Ranks::Processes(n, transport, registered)) => {
                let (ranks, transport) =
                    (format!("--ranks={n}"), format!("--transport={transport}"));
                let mut words = vec![&*ranks, &*transport];
                words.extend(registered.then_some("--registered"));
                vec![perf::here(self.gaggle, what, &words)]
            }
            (None, Ranks::Hosts(..)) => bail!("there is no network"),
        };
        if let Some(tables) = &self.tables {
            for command in &mut commands {
                command.env("GAGGLE_TABLES", tables);
            }
        }
        let said = jobs::run(commands, self.limit())?;
        let found = perf::read(&said[0])?;
        if found.len() != what.sizes.len() {
            bail!(
                "{} sizes were measured of {}",
                found.len(),
                what.sizes.len()
            );
        }
        let found = found.into_iter();
        Ok(found.map(|m| (median(&m.seconds), m.algorithm)).collect())
    }

    /// Has `gaggle tune` measure the place.
    fn tune(&mut self, dir: &Path) -> Result<()> {
        let path = dir.join(format!("{}.tables", self.place.id));
        let mut words: Vec<String> = vec!["tune".into(), "--repeat=9".into(), "-o".into()];
        words.push(path.to_string_lossy().into_owned());
        let commands = match (&self.net, self.place.path) {
            (Some(net), path) => perf::on_hosts(net, self.gaggle, path.per_host(), &words),
            (None, Ranks::Processes(n, transport, _)) => {
                let mut command = Command::new(self.gaggle);
                perf::clean(&mut command);
                command.args(words).arg(format!("--ranks={n}"));
                command.env("GAGGLE_TRANSPORT", transport);
                vec![command]
            }
            // Threads go by a table of their own.
            _ => return Ok(()),
        };
        jobs::run(commands, self.limit()).context("gaggle tune")?;
        self.tables = Some(path);
        Ok(())
    }
}

fn orchestrate(args: &Args) -> Result<()> {
    let beside = perf::beside()?;
    let target = beside
        .parent()
        .context("this program lies in no target directory")?;
    let gaggle = args.gaggle.clone().unwrap_or_else(|| beside.join("gaggle"));
    let mut all = chosen(&args.only)?;
    let mut report = Report::default();
    if !net::is_inside() {
        let why = net::missing().unwrap_or_default();
        all.retain(|p| !matches!(p.path, Ranks::Hosts(..)));
        report.missing.push(format!("places between hosts: {why}"));
    }
    let (mut rounds, mut budget) = (args.rounds, args.budget);
    if args.quick {
        rounds = 1;
    }
    if args.smoke {
        (rounds, budget) = (1, 0.005);
        all.retain(|p| p.id == "threads-2");
        for place in &mut all {
            place.sizes.truncate(2);
        }
    }
    let typed: Vec<String> = std::env::args().skip(1).collect();
    let typed = typed.join(" ");
    let typed = typed.split("--out ").next().unwrap_or_default();
    report.head = vec![
        format!("command: cargo xtask bench chosen {typed}")
            .trim_end()
            .to_owned(),
        format!("machine: {}", machine()),
        format!("{rounds} rounds"),
    ];
    report.judge_by(rounds);
    let covered = all
        .iter()
        .map(|p| format!("{}: {}", p.id, covers(p, &args.ops)));
    report.head.extend(covered);
    let operations: usize = all.iter().map(|p| p.operations().count()).sum();
    let bar = ProgressBar::new((operations * rounds) as u64);
    bar.set_style(ProgressStyle::with_template(
        "{elapsed_precise} {bar:30} {pos}/{len} {msg}",
    )?);
    let place_for_tables = tempfile::tempdir()?;
    let columns = [
        "place",
        "operation",
        "size",
        "chosen",
        "time",
        "best",
        "time of it",
        "others",
    ];
    let mut missed: Vec<String> = Vec::new();
    let began = std::time::Instant::now();
    let mut table = Table::new("The chosen algorithm ÷ the best forced one", &columns);
    for place in &all {
        let net = match place.path {
            Ranks::Hosts(wire, _) => Some(Net::lay(wire, None)?),
            _ => None,
        };
        let mut ground = Ground {
            place,
            net,
            gaggle: &gaggle,
            tables: None,
        };
        if args.tuned {
            ground.tune(place_for_tables.path())?;
        }
        for operation in place.operations() {
            if !args.ops.is_empty() && !args.ops.contains(&operation.name) {
                continue;
            }
            let cells = rounds_of(&ground, operation, (rounds, budget), &bar)?;
            for (bytes, cell) in cells {
                let line = cell.line(&place.id, operation.name, bytes)?;
                if line.kept() == Some(false) && report.unjudged.is_none() {
                    let ratio = line.held.map_or(f64::NAN, |(got, _)| got);
                    missed.push(format!("{}: {ratio:.2}", line.cells[..7].join(" | ")));
                }
                table.lines.push(line);
                report.figures.extend(cell.forced.into_iter().map(|(name, seconds)| Figure {
                    name: format!("{}/{}/{}/{name}", place.id, operation.name, size(bytes)),
                    parameters: json!({"place": place.id, "operation": operation.name, "algorithm": name, "tuned": args.tuned}),
                    unit: "s",
                    samples: seconds,
                    bytes: Some(bytes),
                }));
            }
        }
    }
    bar.finish_and_clear();
    report.tables.push(table);
    report.head.push(format!("{} s", began.elapsed().as_secs()));
    println!("{}", report.markdown());
    if args.smoke {
        println!("it works; so short, the figures mean nothing");
        return report.write_figures(args.out.as_deref());
    }
    let dir = args.report.clone();
    let dir = dir.unwrap_or_else(|| target.join("bench/chosen"));
    report.write(&dir, "chosen")?;
    for miss in &missed {
        println!("missed: {miss}");
    }
    println!("{}; the table is in {}", report.verdict(), dir.display());
    report.write_figures(args.out.as_deref())
}

/// One operation at all sizes, in turn.
fn rounds_of(
    ground: &Ground<'_>,
    operation: &Operation,
    (rounds, budget): (usize, f64),
    bar: &ProgressBar,
) -> Result<BTreeMap<u64, Cell>> {
    let sizes = &ground.place.sizes;
    let mut cells: BTreeMap<u64, Cell> = BTreeMap::new();
    // The free choice is one of them.
    let algorithms = ground.place.algorithms(operation).into_iter().map(Some);
    let mut contenders: Vec<Option<&'static str>> =
        std::iter::once(None).chain(algorithms).collect();
    for round in 0..rounds {
        let n = contenders.len();
        let mut cannot = Vec::new();
        for at in 0..n {
            let contender = contenders[(at + round) % n];
            let name = contender.unwrap_or("the choice");
            let whose = format!("{}, {}, {name}", ground.place.id, operation.name);
            bar.set_message(format!("round {} of {rounds}: {whose}", round + 1));
            let left = |bytes: &&u64| {
                let behind = |cell: &Cell| contender.is_some_and(|name| cell.is_behind(name));
                round == 0 || !cells.get(bytes).is_some_and(behind)
            };
            let left: Vec<u64> = sizes.iter().filter(left).copied().collect();
            if left.is_empty() {
                continue;
            }
            let what = Call {
                operation: operation.name,
                budget: Some(budget),
                check: round == 0,
                algorithm: contender.map(str::to_owned),
                ..Call::of(&left, LEAST)
            };
            let found = match (ground.measure(&what), contender) {
                (Ok(found), _) => found,
                // It says so before anything is measured: it is not for this place.
                (Err(error), Some(_)) if round == 0 && is_refusal(&error) => {
                    cannot.push(contender);
                    continue;
                }
                (Err(error), _) => return Err(error.context(whose)),
            };
            for (bytes, (seconds, algorithm)) in left.into_iter().zip(found) {
                let cell = cells.entry(bytes).or_default();
                match contender {
                    Some(name) => cell.forced.entry(name).or_default().push(seconds),
                    None => {
                        cell.free.push(seconds);
                        cell.chosen = algorithm;
                    }
                }
            }
        }
        bar.inc(1);
        contenders.retain(|c| !cannot.contains(c));
        if contenders.len() < 2 {
            bail!(
                "{}, {}: no algorithm can be forced",
                ground.place.id,
                operation.name
            );
        }
    }
    Ok(cells)
}

/// Whether the engine has said that an algorithm is not for this operation in this place; everything else is a failure.
fn is_refusal(error: &anyhow::Error) -> bool {
    let said = format!("{error:#}");
    [
        "what can: ",
        "has no plan",
        "needs all ranks on one host",
        "needs several hosts",
        "needs equal counts",
    ]
    .iter()
    .any(|words| said.contains(words))
}
