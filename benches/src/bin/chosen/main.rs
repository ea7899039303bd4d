//! The algorithm that the cost model chooses, against every other one: all-reduce over threads, shared memory, TCP and limited links.
//!
//! In each round every algorithm that can do it is forced once, and once the choice is left to the cost model; whose turn is first goes round.
//! A cell is a place and a size: the chosen algorithm's time divided by that of the fastest forced one in the same round, of these the median, may be 1.10.
//!
//! With `--tuned` the tables are those that `gaggle tune` measures in the same place before.
//! Places between hosts need what `hosts` needs; without it they are left out, and that is said.

#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};
use clap::Parser;
use gaggle_benches::{
    jobs,
    net::{self, Net, Wire},
    perf::{self, AllReduce},
    verdict::{Figure, Line, Report, Table, machine, median, paired, size, time},
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

/// What may be forced. Where one cannot, it says so in the first round and is left out.
const ALGORITHMS: [&str; 10] = [
    "direct",
    "exchange",
    "recursive_doubling",
    "ring",
    "halving_doubling",
    "double_tree",
    "binomial",
    "knomial",
    "fused",
    "staged",
];
/// What the chosen algorithm's time may be to the best one's.
const BAR: f64 = 1.10;

#[derive(Parser)]
#[command(about = "The chosen algorithm against every other one", long_about = None)]
struct Args {
    /// A moment only, to see that it works
    #[arg(long)]
    smoke: bool,
    /// Where the figures go
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Where the table goes; target/bench/chosen without it
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Only the places whose name begins with one of these: threads, shm-4, tcp-2, hosts-4x1000
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    rounds: usize,
    /// One round
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Seconds for each size and algorithm in each round
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1)]
    budget: f64,
    /// With tables that `gaggle tune` measures first
    #[arg(long)]
    tuned: bool,
    /// Measure this `gaggle` instead of building one
    #[arg(long, value_name = "FILE")]
    gaggle: Option<PathBuf>,
    /// Say what places there are
    #[arg(long)]
    list: bool,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a number from 1".into()),
        Ok(n) => Ok(n),
    }
}

/// Where ranks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ranks {
    Threads(usize),
    /// Processes, by this transport; buffers of the registered heap or of any memory.
    Processes(usize, &'static str, bool),
    Hosts(Wire),
}

#[derive(Clone, Debug)]
struct Place {
    id: String,
    path: Ranks,
    sizes: Vec<u64>,
}

fn places() -> Vec<Place> {
    let small: &[u64] = &[64, 4 << 10, 64 << 10, 1 << 20, 16 << 20];
    let mut all = Vec::new();
    let mut add = |id: String, path, sizes: &[u64]| {
        let sizes = sizes.to_vec();
        all.push(Place { id, path, sizes });
    };
    for n in [2, 3, 4] {
        add(format!("threads-{n}"), Ranks::Threads(n), small);
    }
    for (transport, registered, name) in [
        ("shm", false, "shm"),
        ("shm", true, "registered"),
        ("tcp", false, "tcp"),
    ] {
        for n in [2, 4] {
            let path = Ranks::Processes(n, transport, registered);
            add(format!("{name}-{n}"), path, small);
        }
    }
    for (hosts, mbit) in [(4, 1000), (8, 1000), (4, 200)] {
        let wire = Wire {
            hosts,
            mbit,
            delay: None,
        };
        let most = if mbit < 1000 { 4 << 20 } else { 16 << 20 };
        let sizes: Vec<u64> = small.iter().copied().map(|s| s.min(most)).collect();
        add(format!("hosts-{hosts}x{mbit}"), Ranks::Hosts(wire), &sizes);
    }
    all
}

fn chosen(names: &[String]) -> Result<Vec<Place>> {
    let all = places();
    if let Some(unknown) = names
        .iter()
        .find(|n| !all.iter().any(|p| p.id.starts_with(*n)))
    {
        let ids: Vec<&str> = all.iter().map(|p| &*p.id).collect();
        bail!(
            "no place's name begins with `{unknown}`; there are {}",
            ids.join(", ")
        );
    }
    let wanted = |p: &Place| names.is_empty() || names.iter().any(|n| p.id.starts_with(n));
    Ok(all.into_iter().filter(wanted).collect())
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        for place in places() {
            println!("{:14} {:?}", place.id, place.path);
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

    /// What gaggle takes for `what`: seconds by size, and by which algorithm.
    fn measure(&self, what: &AllReduce) -> Result<BTreeMap<u64, (f64, String)>> {
        let mut commands = match (&self.net, self.place.path) {
            (Some(net), _) => perf::on_hosts(net, self.gaggle, 1, &what.arguments()),
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
            (None, Ranks::Hosts(_)) => bail!("there is no network"),
        };
        if let Some(tables) = &self.tables {
            for command in &mut commands {
                command.env("GAGGLE_TABLES", tables);
            }
        }
        let said = jobs::run(commands, self.limit())?;
        let found = perf::read(&said[0])?.into_iter();
        Ok(found
            .map(|m| (m.bytes, (median(&m.seconds), m.algorithm)))
            .collect())
    }

    /// Has `gaggle tune` measure the place.
    fn tune(&mut self, dir: &Path) -> Result<()> {
        let path = dir.join(format!("{}.tables", self.place.id));
        let mut words: Vec<String> = vec!["tune".into(), "--repeat=9".into(), "-o".into()];
        words.push(path.to_string_lossy().into_owned());
        let commands = match (&self.net, self.place.path) {
            (Some(net), _) => perf::on_hosts(net, self.gaggle, 1, &words),
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
        all.retain(|p| !matches!(p.path, Ranks::Hosts(_)));
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
    let bar = ProgressBar::new((all.len() * rounds * (1 + ALGORITHMS.len())) as u64);
    bar.set_style(ProgressStyle::with_template(
        "{elapsed_precise} {bar:30} {pos}/{len} {msg}",
    )?);
    let place_for_tables = tempfile::tempdir()?;
    let columns = [
        "place",
        "size",
        "chosen",
        "time",
        "best",
        "time of it",
        "others",
    ];
    let mut table = Table::new("The chosen algorithm ÷ the best forced one", &columns);
    for place in &all {
        let net = match place.path {
            Ranks::Hosts(wire) => Some(Net::lay(wire, None)?),
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
        let cells = rounds_of(&ground, rounds, budget, &bar)?;
        for (bytes, cell) in cells {
            table.lines.push(cell.line(place, bytes)?);
            for (name, seconds) in cell.forced {
                report.figures.push(Figure {
                    name: format!("{}/{}/{name}", place.id, size(bytes)),
                    parameters: json!({"place": place.id, "algorithm": name, "tuned": args.tuned}),
                    unit: "s",
                    samples: seconds,
                    bytes: Some(bytes),
                });
            }
        }
    }
    bar.finish_and_clear();
    report.tables.push(table);
    println!("{}", report.markdown());
    if args.smoke {
        println!("it works; so short, the figures mean nothing");
        return report.write_figures(args.out.as_deref());
    }
    let dir = args.report.clone();
    let dir = dir.unwrap_or_else(|| target.join("bench/chosen"));
    report.write(&dir, "chosen")?;
    let (met, missed) = report.counts();
    println!(
        "{met} met, {missed} missed; the table is in {}",
        dir.display()
    );
    report.write_figures(args.out.as_deref())
}

/// Seconds by algorithm and round, at one size.
#[derive(Default)]
struct Cell {
    chosen: String,
    free: Vec<f64>,
    forced: BTreeMap<&'static str, Vec<f64>>,
}

impl Cell {
    fn line(&self, place: &Place, bytes: u64) -> Result<Line> {
        let forced = self.forced.get(&*self.chosen);
        let forced = forced.with_context(|| {
            format!(
                "{}: {} was chosen, and cannot be forced",
                place.id, self.chosen
            )
        })?;
        // The same thing, measured twice in each round.
        let both: Vec<f64> = forced
            .iter()
            .zip(&self.free)
            .map(|(a, b)| (a + b) / 2.0)
            .collect();
        let others = self.forced.iter().filter(|(name, _)| **name != self.chosen);
        let best = others.min_by(|a, b| median(a.1).total_cmp(&median(b.1)));
        let mut sorted: Vec<(&str, f64)> =
            self.forced.iter().map(|(n, s)| (*n, median(s))).collect();
        sorted.sort_by(|a, b| a.1.total_cmp(&b.1));
        let list: Vec<String> = sorted
            .iter()
            .filter(|(n, _)| *n != self.chosen)
            .map(|(n, s)| format!("{n} {}", time(*s)))
            .collect();
        // Where no other one is faster it is itself the best.
        let (name, seconds, ratio) = match best {
            Some((name, times)) if median(times) < median(&both) => {
                (*name, median(times), paired(&both, times))
            }
            _ => (&*self.chosen, median(&both), 1.0),
        };
        Ok(Line {
            cells: vec![
                place.id.clone(),
                size(bytes),
                self.chosen.clone(),
                time(median(&both)),
                name.to_owned(),
                time(seconds),
                list.join(", "),
            ],
            held: Some((ratio, BAR)),
        })
    }
}

fn rounds_of(
    ground: &Ground<'_>,
    rounds: usize,
    budget: f64,
    bar: &ProgressBar,
) -> Result<BTreeMap<u64, Cell>> {
    let mut cells: BTreeMap<u64, Cell> = BTreeMap::new();
    // Number 0 is the free choice.
    let mut contenders: Vec<Option<&'static str>> = vec![None];
    contenders.extend(ALGORITHMS.map(Some));
    if !matches!(ground.place.path, Ranks::Processes(_, _, true)) {
        // Of ordinary memory `fused` is the same thing, and would be measured twice.
        contenders.retain(|c| *c != Some("staged"));
    }
    for round in 0..rounds {
        let n = contenders.len();
        let mut cannot = Vec::new();
        for at in 0..n {
            let contender = contenders[(at + round) % n];
            bar.set_message(format!(
                "{}, round {} of {rounds}, {}",
                ground.place.id,
                round + 1,
                contender.unwrap_or("the choice")
            ));
            let what = AllReduce {
                budget: Some(budget),
                check: round == 0,
                algorithm: contender.map(str::to_owned),
                ..AllReduce::of(&ground.place.sizes, 1)
            };
            let found = match (ground.measure(&what), contender) {
                (Ok(found), _) => found,
                // It says so before anything is measured: it is not for this place.
                (Err(_), Some(_)) if round == 0 => {
                    cannot.push(contender);
                    bar.inc(rounds as u64);
                    continue;
                }
                (Err(error), _) => {
                    let name = contender.unwrap_or("the choice");
                    return Err(error.context(format!("{}, {name}", ground.place.id)));
                }
            };
            for (bytes, (seconds, algorithm)) in found {
                let cell = cells.entry(bytes).or_default();
                match contender {
                    Some(name) => cell.forced.entry(name).or_default().push(seconds),
                    None => {
                        cell.free.push(seconds);
                        cell.chosen = algorithm;
                    }
                }
            }
            bar.inc(1);
        }
        contenders.retain(|c| !cannot.contains(c));
        if contenders.len() < 2 {
            bail!("{}: no algorithm can be forced", ground.place.id);
        }
    }
    Ok(cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(chosen: &str, free: f64, forced: &[(&'static str, f64)]) -> Cell {
        Cell {
            chosen: chosen.into(),
            free: vec![free; 3],
            forced: forced.iter().map(|(n, s)| (*n, vec![*s; 3])).collect(),
        }
    }

    fn held(cell: &Cell) -> Option<bool> {
        let place = &places()[0];
        cell.line(place, 64).expect("measured").kept()
    }

    #[test]
    fn a_choice_is_held_against_the_best_other_one() {
        let times = [("ring", 2.0), ("direct", 1.0)];
        assert_eq!(held(&cell("direct", 1.1, &times)), Some(true));
        assert_eq!(held(&cell("ring", 2.0, &times)), Some(false));
        // Within a tenth.
        assert_eq!(
            held(&cell("ring", 2.0, &[("ring", 2.0), ("direct", 1.9)])),
            Some(true)
        );
        let unknown = cell("fused", 1.0, &times);
        assert!(unknown.line(&places()[0], 64).is_err());
    }

    #[test]
    fn places_are_chosen_by_the_beginning_of_their_names() {
        let of = |name: &str| chosen(&[name.to_owned()]).map(|all| all.len());
        assert_eq!(of("threads").expect("three"), 3);
        assert_eq!(of("hosts-4x200").expect("one"), 1);
        assert!(of("moon").is_err());
    }
}
