//! `gaggle topo`: what a topology does and costs, which one a number of ranks should take, and how it looks.
//!
//! It asks `gaggle-topology`; `text` prints, `svg` draws, this file reads the command line.

mod svg;
mod text;

use crate::{args, explain::size, failure::Failure};
use clap::{Args as ClapArgs, Subcommand};
use gaggle_core::Topology;
use gaggle_topology::{CATALOGUE, Report, by_name, report};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;

/// Show what a topology does and costs, and draw it; compare all of them; list their names
#[derive(ClapArgs, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true,
    after_long_help = HELP,
    after_help = "`gaggle topo --help` has examples and explains every figure."
)]
pub(crate) struct TopoArgs {
    #[command(subcommand)]
    task: Option<Task>,
    /// Which topology, as exp2 or torus:4x8; `gaggle topo list` has the names
    #[arg(value_name = "NAME", required = true)]
    name: Option<String>,
    /// How many ranks
    #[arg(short = 'n', long, value_name = "N", value_parser = args::members, allow_hyphen_values = true, default_value = "8")]
    ranks: u32,
    #[command(flatten)]
    output: Output,
    /// Draw its rounds into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the weights of this round, receiver by receiver
    #[arg(
        long,
        value_name = "T",
        conflicts_with = "json",
        allow_hyphen_values = true
    )]
    round: Option<u64>,
}

#[derive(ClapArgs, Debug, Clone)]
struct Output {
    /// The vector that is averaged, for what goes over the network; with k, m or g
    #[arg(long, value_name = "SIZE", default_value = "100m", value_parser = size, allow_hyphen_values = true)]
    bytes: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand, Debug)]
enum Task {
    /// Rank the topologies that a number of ranks can have by what they must send to agree; without those that need a parameter of yours, or take too long to measure
    Compare {
        /// How many ranks
        #[arg(short = 'n', long, value_name = "N", value_parser = args::members, allow_hyphen_values = true)]
        ranks: u32,
        /// Ranks per machine, for topologies that know of machines
        #[arg(long, value_name = "N", value_parser = args::members, allow_hyphen_values = true)]
        local: Option<u32>,
        /// Which disagreement may be left
        #[arg(long, value_name = "SHARE", default_value = "0.001", value_parser = share, allow_hyphen_values = true)]
        left: f64,
        #[command(flatten)]
        output: Output,
    },
    /// List the names, what may follow them, and what each is for
    List,
}

const HELP: &str = "\
Examples:
  gaggle topo exp2 --ranks 16
  gaggle topo base:2 --ranks 7 --svg base.svg
  gaggle topo torus:4x8 --ranks 32 --round 0
  gaggle topo compare --ranks 25
  gaggle topo compare --ranks 16 --local 4 --bytes 400m
  gaggle topo list

What is told:
  stochastic   doubly: averages are kept, and so is agreement; row: averages drift; column: for push-sum
  symmetric    every round's matrix equals its transpose
  connected    over a period everybody hears of everybody
  period       rounds after which it repeats
  contraction  how much of the worst disagreement is left after a period, and per round (ρ)
  exact after  rounds from the first on after which all have the mean itself
  sends        messages per rank and round, each the whole vector
Topologies that never repeat are looked at for 64 rounds; where these agree by chance,
  ρ is the rate of their draws in the mean square.";

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "give a number".to_owned())?;
    match share > 0.0 && share < 1.0 {
        true => Ok(share),
        false => Err("it is above 0 and below 1".into()),
    }
}

/// A topology of the comparison: its name as it can be typed, and what it does.
struct Compared {
    name: String,
    report: Report,
    /// Vectors that a rank sends until little enough is left.
    messages: f64,
}

pub(crate) fn topo(args: &TopoArgs) -> Result<i32, Failure> {
    match (&args.task, &args.name) {
        (Some(Task::List), _) => crate::print(&text::list()),
        (
            Some(Task::Compare {
                ranks,
                local,
                left,
                output,
            }),
            _,
        ) => {
            let compared = compare(*ranks, *local, *left);
            crate::print(&match output.json {
                true => text::compared_json(&compared, *ranks, *left, output.bytes),
                false => text::compared(&compared, *ranks, *left, output.bytes),
            });
        }
        (None, Some(name)) => one(args, name)?,
        (None, None) => return Err(Failure::Topo("which topology?".into())),
    }
    Ok(0)
}

fn one(args: &TopoArgs, name: &str) -> Result<(), Failure> {
    let wrong = |e: gaggle_topology::TopologyError| Failure::Topo(e.to_string());
    let topology = by_name(name, args.ranks as usize).map_err(wrong)?;
    if let Some(path) = &args.svg {
        let drawn = svg::draw(&*topology).map_err(Failure::Topo)?;
        std::fs::write(path, drawn).map_err(|why| Failure::Write {
            path: path.clone(),
            why,
        })?;
    }
    let rounds = topology.period().unwrap_or(gaggle_topology::NEVER_REPEATS);
    if rounds as f64 * topology.world() as f64 > MOST_PARTS {
        return Err(Failure::Topo(format!(
            "{name} of {} ranks repeats after {rounds} rounds only, and all of them together take too long to measure; fewer ranks show the same, and `--svg` with up to 256 of them how it goes round",
            topology.world()
        )));
    }
    let found = report(&*topology);
    crate::print(&match args.output.json {
        true => text::json(&found, args.output.bytes),
        false => text::plain(&found, args.output.bytes),
    });
    if let Some(t) = args.round {
        crate::print(&text::round(&*topology, t));
    }
    Ok(())
}

/// Ranks times rounds of a period that are measured at once: a few gigabytes.
const MOST_PARTS: f64 = 2e7;

/// Graphs with more edges than this in a round take long to measure, and nobody trains on them.
const MOST_EDGES: f64 = 3e7;

/// Periods that are so long take hours.
const MOST_WORK: f64 = 2e9;

/// All of the catalogue that `ranks` ranks can have, those that have to send least first; two with parameters that make them others.
fn compare(ranks: u32, local: Option<u32>, left: f64) -> Vec<Compared> {
    let mut names: Vec<String> = Vec::new();
    for entry in CATALOGUE {
        match (entry.name, local) {
            ("inner-outer-exp" | "inner-outer-ring", Some(local)) => {
                names.push(format!("{}:{local}", entry.name));
            }
            ("inner-outer-exp" | "inner-outer-ring" | "one-peer-over", _) => {}
            ("base", _) => names.extend((1..=4).map(|k| format!("base:{k}"))),
            ("null-cascade", _) => names.extend(["null-cascade:2".into(), "null-cascade:4".into()]),
            (name, _) => names.push(name.into()),
        }
    }
    let bar = ProgressBar::new(names.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    let mut all: Vec<Compared> = Vec::new();
    for name in names {
        bar.set_message(name.clone());
        if let Ok(topology) = by_name(&name, ranks as usize)
            && is_quick(&*topology)
        {
            let report = report(&*topology);
            let messages = report.messages_until(left);
            all.push(Compared {
                name,
                report,
                messages,
            });
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    all.sort_by(|a, b| a.messages.total_cmp(&b.messages));
    all
}

fn is_quick(topology: &dyn Topology) -> bool {
    let mut round = gaggle_core::Round::default();
    topology.round(gaggle_core::Rank(0), 0, &mut round);
    let period = topology.period().unwrap_or(gaggle_topology::NEVER_REPEATS) as f64;
    let n = topology.world() as f64;
    n * round.to.len() as f64 * period <= MOST_EDGES
        && period * n * (2.0 * n).min(2048.0) <= MOST_WORK
}
