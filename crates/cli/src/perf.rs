//! `gaggle perf`: measures any operation with the flags and the table of nccl-tests, and checks the results.
//!
//! This file reads the command line and brings the ranks together: as threads, as processes that it starts, or as one rank of a job that somebody else has started. `measure` runs the calls, `check` knows what must come out, `operation` what each call's buffers hold, `report` prints.

mod check;
mod machine;
mod measure;
mod number;
mod operation;
mod report;
mod said;
mod stats;

use crate::{args, explain, failure::Failure, output::Output, run::launch};
use clap::{ArgAction, Args as ClapArgs};
use gaggle::Group;
use gaggle_core::{Algorithm, Codec, DType, Reduce, Topology};
use gaggle_launch::{Job, Voice};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use measure::{Row, Wishes};
use operation::{Operation, Setting};
use report::About;
use said::{Every, Variant};
use std::{
    env,
    ffi::OsString,
    io::{self, IsTerminal},
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex},
};

/// Measure how fast an operation is, size by size, and check its results
#[derive(ClapArgs, Clone, Debug)]
#[command(
    after_long_help = HELP,
    after_help = "`gaggle perf --help` has examples, the operations, and what the columns mean."
)]
pub(crate) struct PerfArgs {
    /// Which operation, as all-reduce
    #[arg(value_name = "OPERATION")]
    operation: Option<String>,
    /// Smallest vector, with k, m or g [default: 8]
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", value_parser = explain::size)]
    min_bytes: Option<u64>,
    /// Largest vector [default: 64m, or the smallest if that is larger]
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", value_parser = explain::size)]
    max_bytes: Option<u64>,
    /// From one size to the next by this factor [default: 4]
    #[arg(short = 'f', long = "stepfactor", value_name = "N", conflicts_with = "step_bytes", value_parser = clap::value_parser!(u64).range(2..))]
    step_factor: Option<u64>,
    /// From one size to the next by so many bytes
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", value_parser = explain::size)]
    step_bytes: Option<u64>,
    /// These sizes, with commas between them
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = explain::size, conflicts_with_all = ["min_bytes", "max_bytes", "step_factor", "step_bytes"])]
    sizes: Vec<u64>,
    /// Timed calls per size [default: 20]
    #[arg(short = 'n', long = "iters", value_name = "N", conflicts_with = "budget", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    iters: Option<u32>,
    /// Calls before the clock runs [default: 5; with --budget or --csv 50, 3 or 1, by size]
    #[arg(short = 'w', long = "warmup_iters", visible_alias = "warm", value_name = "N", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    warm: Option<u32>,
    /// As many timed calls per size as take about so long
    #[arg(long, value_name = "SECONDS", value_parser = budget)]
    budget: Option<f64>,
    /// With --budget: at least so many [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    min_iters: Option<u32>,
    /// With --budget: at most so many [default: 4000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_iters: Option<u32>,
    /// Whether one call per size is checked, element by element: 1 or 0
    #[arg(short = 'c', long, value_name = "0|1", default_value = "1", value_parser = clap::value_parser!(u8).range(0..=1))]
    check: u8,
    /// How contributions are combined: sum, prod, min, max, avg, band, bor, bxor, or all of them in turn [default: sum]; the operation's name is understood here, too
    #[arg(short = 'o', long = "op", value_name = "NAME", action = ArgAction::Append)]
    op: Vec<String>,
    /// Element type: f32, bf16, i64 … or nccl-tests' names, or all of them in turn
    #[arg(short = 'd', long = "datatype", visible_alias = "dtype", value_name = "TYPE", default_value = "f32", value_parser = said::dtypes)]
    dtype: Every<DType>,
    /// The rank that gives or gets, in operations that have one; all or -1: every rank in turn [default: 0]
    #[arg(short = 'r', long, value_name = "RANK", allow_negative_numbers = true, value_parser = said::roots)]
    root: Option<Every<u32>>,
    /// Measure with so many ranks, each a process of this machine, unless this process is a rank of a job already [default: 2]
    #[arg(long, value_name = "N", value_parser = args::ranks, conflicts_with = "threads")]
    ranks: Option<u32>,
    /// Measure with so many ranks, all threads of this process
    #[arg(long, value_name = "N", value_parser = args::ranks)]
    threads: Option<u32>,
    /// What ranks talk over: auto, shm, tcp, or threads [default: what GAGGLE_TRANSPORT says, or auto]
    #[arg(long, value_name = "NAME", value_parser = transport)]
    transport: Option<String>,
    /// The algorithm, instead of the one that the cost model finds fastest
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,
    /// What may be on the wire: plain, bf16, f16 or int8
    #[arg(long, value_name = "NAME", default_value = "plain")]
    codec: Codec,
    /// Use the codec even where it costs more time than it saves
    #[arg(long)]
    force_codec: bool,
    /// Who a rank's neighbours are, in neighbour operations: ring, exp2, one-peer-exp … [default: ring]
    #[arg(long, value_name = "NAME")]
    topology: Option<String>,
    /// In hierarchical averages: ranks per machine [default: 2, or 1 of an odd number of ranks]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    per_machine: Option<u32>,
    /// Where the result goes: in (the contribution's place), out (another buffer), both [default: both; with --csv as other programs do]
    #[arg(long, value_name = "PLACE", value_parser = places)]
    place: Option<Places>,
    /// Buffers of registered memory, which all local ranks have mapped: needs ranks of one host that share memory
    #[arg(long)]
    registered: bool,
    /// Write all samples as JSON, in the form of docs/benchmarks.md; - for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print size_bytes,median_us,p95_us,mean_us,iters instead of the table
    #[arg(long)]
    csv: bool,
}

const HELP: &str = "\
Examples:
  gaggle perf all-reduce --ranks 4
  gaggle perf all-reduce -b 1K -e 64M -f 4 -n 50 --threads 2
  gaggle perf broadcast -r 1 -d bf16 -b 1G -e 1G --ranks 3 --transport tcp
  gaggle perf reduce-scatter -o max -d int32 --algorithm ring
  gaggle perf reduce -o all -d all -r all --threads 3 -b 4K -e 4K
  gaggle perf neighbour-all-reduce --topology exp2 --ranks 8
  gaggle perf all-reduce --codec bf16 --force-codec --json bf16.json
  gaggle perf --csv --op allreduce --dtype f32 --sizes 4096,1048576 --budget 1 --ranks 2
  gaggle run -n 4 gaggle perf all-gather        as ranks of a job that somebody else starts

With RANK and WORLD_SIZE set, as by `gaggle run` or torchrun, this process is one rank and rank 0
prints; without them it starts --ranks or --threads itself. With --csv a rank of a job also takes
its transport from PEER_TRANSPORT, which the scripts that compare programs set.

Operations:
  all-reduce, reduce, broadcast, gather, scatter, all-gather, reduce-scatter, all-to-all;
  gather-v, scatter-v, all-gather-v, reduce-scatter-v, all-to-all-v: rank r's part is r + 1 times
  as long as rank 0's; barrier; send-recv: to the next rank and from the one before;
  neighbour-all-reduce, neighbour-all-gather: with the neighbours of --topology; neighbor_ring,
  neighbor_exp2 and neighbor_onepeer say it in one word; pair-gossip: ranks 0 and 1, 2 and 3, …;
  hierarchical: machines of --per-machine ranks average on --topology

Sizes are those of the vector: of all parts together where each rank has one, rounded down to whole
elements and equal parts. Of -b, -e, -f and -i a size that holds no element, and one that comes to
the same as the one before, are left out.

Columns:
  time, p50, p95, p99   of one call. Each call's time is the mean over the ranks; of reduce,
                        broadcast, gather and scatter, where a rank may be off early, all ranks wait
                        for each other before each call, and its time is the slowest rank's
  algbw, busbw          size / time, and what a link carries of it by nccl-tests' factors: of an
                        all-reduce 2(n-1)/n, of operations on parts (n-1)/n, else 1; of neighbour
                        operations the number of neighbours
  #wrong                elements of all ranks that differ from what this program computes itself
  wire                  bytes per call that the rank which sends most sends, headers and all
  predicted             by the cost model that has chosen the algorithm

Exit codes: 0; 1 where an element is wrong or an operation failed; 2 where the command line makes no
sense; those of `gaggle run` where a rank ends early.";

/// Which transports ranks can be told to use.
const TRANSPORTS: [&str; 4] = ["auto", "shm", "tcp", "threads"];

fn transport(text: &str) -> Result<String, String> {
    match TRANSPORTS.contains(&text) {
        true => Ok(text.to_owned()),
        false => Err(format!("there are {}", TRANSPORTS.join(", "))),
    }
}

fn budget(text: &str) -> Result<f64, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .filter(|s| *s > 0.0 && *s <= 3600.0)
        .ok_or_else(|| "give a number of seconds above 0, at most 3600".into())
}

/// As the command line says it.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Places {
    In,
    Out,
    Both,
}

fn places(text: &str) -> Result<Places, String> {
    match text {
        "in" => Ok(Places::In),
        "out" => Ok(Places::Out),
        "both" => Ok(Places::Both),
        _ => Err("there are in, out and both".into()),
    }
}

pub(crate) fn perf(args: &PerfArgs) -> Result<i32, Failure> {
    let var = |name: &str| env::var(name).ok();
    let task = Task::read(args).map_err(Failure::PerfUsage)?;
    let place = Standing::read(args, &var).map_err(Failure::PerfUsage)?;
    match place {
        Standing::Threads(n) => {
            task.check_world(n).map_err(Failure::PerfUsage)?;
            let output = Mutex::new(task.output()?);
            let results = gaggle::local(n as usize, |group| {
                let leads = group.rank().0 == 0;
                let output = if leads {
                    output.lock().ok().and_then(|mut o| o.take())
                } else {
                    None
                };
                task.run(&group, "threads", output)
            })?;
            // The first failure is the cause; what others say follows from it.
            let mut code = 0;
            for result in results {
                code = code.max(result?);
            }
            Ok(code)
        }
        Standing::Starts(n) => {
            task.check_world(n).map_err(Failure::PerfUsage)?;
            // Rank 0 opens it again.
            drop(task.output()?);
            let me = env::current_exe().map_err(|why| Failure::Write {
                path: "the path of this program".into(),
                why,
            })?;
            let arguments: Vec<OsString> = env::args_os().skip(1).collect();
            let mut job = Job::new(n, me).args(arguments).voice(Voice::Lead);
            if let Some(transport) = &args.transport {
                job = job.env("GAGGLE_TRANSPORT", transport);
            }
            launch(job, n)
        }
        Standing::Member { again: Some(name) } => again(&name),
        Standing::Member { again: None } => {
            let leads = var("RANK").is_some_and(|rank| rank.trim() == "0");
            let output = if leads { task.output()? } else { None };
            let job = gaggle::join()?;
            let world = job.size() as u32;
            task.check_world(world).map_err(Failure::PerfUsage)?;
            let transport = var("GAGGLE_TRANSPORT").unwrap_or_else(|| "auto".into());
            task.run(&job, &transport, output)
        }
    }
}

/// This program again, as the same rank, with another transport: the library reads it from the environment, which a running program does not change.
fn again(transport: &str) -> Result<i32, Failure> {
    let me = env::current_exe();
    let failed = |why| Failure::Write {
        path: "this program's own rank".into(),
        why,
    };
    let mut command = Command::new(me.map_err(failed)?);
    command
        .args(env::args_os().skip(1))
        .env("GAGGLE_TRANSPORT", transport);
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        Err(failed(command.exec()))
    }
    #[cfg(not(unix))]
    {
        let status = command.status().map_err(failed)?;
        Ok(status.code().unwrap_or(1))
    }
}

/// What this process is to be.
#[derive(PartialEq, Debug)]
enum Standing {
    /// All ranks.
    Threads(u32),
    /// The launcher of so many.
    Starts(u32),
    /// One rank of a job; started again with this transport, where the environment says another one.
    Member { again: Option<String> },
}

impl Standing {
    fn read(args: &PerfArgs, var: &dyn Fn(&str) -> Option<String>) -> Result<Standing, String> {
        let var = |name: &str| var(name).filter(|v| !v.is_empty());
        let peers = || var("PEER_TRANSPORT").filter(|_| args.csv);
        let over = args.transport.clone().or_else(peers);
        if args.registered && over.or_else(|| var("GAGGLE_TRANSPORT")).as_deref() == Some("tcp") {
            return Err(said::NOT_REGISTERED.into());
        }
        let threads = args.transport.as_deref() == Some("threads");
        if let (Some(_), Some(world)) = (var("RANK"), var("WORLD_SIZE")) {
            if args.threads.is_some() || threads {
                return Err(
                    "this process is one rank of a job (RANK and WORLD_SIZE are set), so its ranks cannot be threads; unset them, or leave --threads out"
                        .into(),
                );
            }
            if let Some(ranks) = args.ranks.filter(|n| n.to_string() != world.trim()) {
                return Err(format!(
                    "--ranks is {ranks}, but this process is one rank of a job of {world} (WORLD_SIZE)"
                ));
            }
            let wanted = match (&args.transport, peers()) {
                (None, Some(name)) => {
                    Some(transport(&name).map_err(|e| format!("PEER_TRANSPORT is {name}: {e}"))?)
                }
                (given, _) => given.clone(),
            };
            let again = wanted.filter(|name| var("GAGGLE_TRANSPORT").as_ref() != Some(name));
            return Ok(Standing::Member { again });
        }
        match (args.threads, args.ranks, threads) {
            (Some(_), _, false) if args.transport.is_some() => Err(format!(
                "--transport {} is for processes: say --ranks instead of --threads",
                args.transport.as_deref().unwrap_or_default()
            )),
            (Some(n), _, _) => Ok(Standing::Threads(n)),
            (None, n, true) => Ok(Standing::Threads(n.unwrap_or(2))),
            (None, n, false) => Ok(Standing::Starts(n.unwrap_or(2))),
        }
    }
}

/// What the command line asks for, made sense of.
#[derive(Debug)]
struct Task {
    operation: Operation,
    topology: String,
    /// What is measured of it, one after the other.
    variants: Vec<Variant>,
    roots: Every<u32>,
    per_machine: Option<u32>,
    /// Whether sizes are those between two ends, of which some may come to nothing or to the same.
    stepped: bool,
    wishes: Wishes,
    json: Option<PathBuf>,
    csv: bool,
    command: String,
}

impl Task {
    fn read(args: &PerfArgs) -> Result<Task, String> {
        let (named, reduces) = said::names(args)?;
        let operation = named.operation;
        if let (Some(own), Some(other)) = (named.topology, &args.topology) {
            return Err(format!(
                "the operation's name says the topology {own}, and --topology says {other}"
            ));
        }
        said::check_options(args, operation)?;
        let topology = named.topology.or(args.topology.as_deref());
        let variants = said::variants(args, operation, reduces)?;
        Ok(Task {
            operation,
            topology: topology.unwrap_or("ring").to_owned(),
            roots: args.root.unwrap_or(Every::One(0)),
            per_machine: args.per_machine,
            stepped: args.sizes.is_empty(),
            wishes: Wishes {
                sizes: said::sizes(args, operation, variants[0].dtype)?,
                places: said::wanted_places(args, operation)?,
                iterations: said::iterations(args)?,
                warm: match (args.warm, args.budget.is_some() || args.csv) {
                    (None, false) => Some(5),
                    (warm, _) => warm,
                },
                check: args.check == 1,
                dtype: variants[0].dtype,
                algorithm: args.algorithm,
                codec: args.codec,
                force_codec: args.force_codec,
                registered: args.registered,
            },
            variants,
            json: args.json.clone(),
            csv: args.csv,
            command: command(),
        })
    }

    /// What the number of ranks makes impossible.
    fn check_world(&self, world: u32) -> Result<(), String> {
        measure::possible(self.operation, world)?;
        if let Every::One(root) = self.roots
            && root >= world
        {
            return Err(format!(
                "--root is {root}, but there are {world} ranks, 0 to {}",
                world - 1
            ));
        }
        self.passes(world, 0).map(drop)
    }

    /// Where the samples go; opened before any is taken.
    fn output(&self) -> Result<Option<Output>, Failure> {
        let path = self.json.as_deref().filter(|_| !self.prints_json());
        path.map(Output::open).transpose()
    }

    fn prints_json(&self) -> bool {
        self.json.as_ref().is_some_and(|p| p.as_os_str() == "-")
    }

    /// All that is measured, by element type, reduction and root in turn, as one rank has it.
    fn passes(&self, world: u32, me: u32) -> Result<Vec<(Setting, Wishes)>, String> {
        let roots: Vec<u32> = match self.roots {
            Every::One(root) => vec![root],
            Every::All if self.operation.is_rooted() => (0..world).collect(),
            Every::All => vec![0],
        };
        let mut all = Vec::new();
        for variant in &self.variants {
            for root in &roots {
                let setting = Setting {
                    reduce: variant.reduce,
                    root: *root,
                    ..self.setting(world, me)?
                };
                let mut wishes = Wishes {
                    dtype: variant.dtype,
                    ..self.wishes.clone()
                };
                if self.stepped {
                    wishes.sizes = said::distinct(&wishes, &setting)?;
                }
                all.push((setting, wishes));
            }
        }
        Ok(all)
    }

    fn setting(&self, world: u32, me: u32) -> Result<Setting, String> {
        let machine = match self.per_machine {
            Some(k) => k,
            None if world.is_multiple_of(2) => 2,
            None => 1,
        };
        if self.operation == Operation::Hierarchical && !world.is_multiple_of(machine) {
            return Err(format!(
                "{world} ranks are not whole machines of {machine} (--per-machine)"
            ));
        }
        let members = match self.operation {
            Operation::Neighbour | Operation::NeighbourGather => Some(world),
            Operation::Hierarchical => Some(world / machine),
            _ => None,
        };
        let topology: Option<Arc<dyn Topology>> = match members {
            Some(n) => Some(Arc::from(
                gaggle_topology::by_name(&self.topology, n as usize)
                    .map_err(|e| format!("--topology: {e}"))?,
            )),
            None => None,
        };
        Ok(Setting {
            operation: self.operation,
            world,
            me,
            root: 0,
            reduce: Reduce::Sum,
            topology,
            machine,
        })
    }

    /// One rank's part: measures, and on rank 0 prints and writes.
    fn run(&self, group: &Group, transport: &str, output: Option<Output>) -> Result<i32, Failure> {
        let (world, me) = (group.size() as u32, group.rank().0);
        let passes = self.passes(world, me).map_err(Failure::PerfUsage)?;
        if self.wishes.registered && !measure::can_register(group)? {
            return Err(Failure::PerfUsage(said::NOT_REGISTERED.into()));
        }
        for (setting, wishes) in &passes {
            let possible = measure::check_wishes(group, setting, wishes);
            possible.map_err(|why| Failure::PerfUsage(why.to_string()))?;
        }
        let leads = me == 0;
        let began = machine::facts();
        let (first, _) = &passes[0];
        let about = About {
            operation: self.operation,
            topology: first.topology.as_ref().map(|t| t.name().to_owned()),
            ranks: world,
            transport: transport.to_owned(),
            bus_factor: first.bus_factor(),
            places: self.wishes.places.clone(),
            several: passes.len() > 1,
            command: self.command.clone(),
        };
        let table = !self.csv && !self.prints_json();
        let say = |text: &str| {
            if leads {
                crate::print(text);
            }
        };
        match (table, self.csv) {
            (true, _) => say(&report::head(&about)),
            (_, true) => say(report::CSV_HEAD),
            _ => {}
        }
        let bar = bar(leads, passes.iter().map(|(_, w)| w.sizes.len()).sum());
        let mut rows = Vec::new();
        for (setting, wishes) in &passes {
            let mut asked = wishes.sizes.iter();
            let mut tell = |row: &Row| {
                let asked = asked.next().copied().unwrap_or(row.bytes);
                bar.inc(1);
                bar.suspend(|| match (table, self.csv) {
                    (true, _) => say(&report::line(&about, row)),
                    (_, true) => say(&report::csv(asked, row)),
                    _ => {}
                });
            };
            let measured = measure::measure(group, setting, wishes, &mut tell);
            if measured.is_err() {
                bar.finish_and_clear();
            }
            rows.extend(measured?);
        }
        bar.finish_and_clear();
        if table {
            say(&report::foot(&about, &rows));
        }
        let json = || format!("{:#}\n", report::json(&about, began, &rows));
        if let Some(mut file) = output {
            file.write(&json())?;
        } else if self.prints_json() {
            say(&json());
        }
        let wrong = report::wrong(&rows).unwrap_or(0);
        if wrong > 0 && leads {
            crate::complain(&format!(
                "gaggle: perf: {wrong} elements are not what they must be"
            ));
        }
        Ok(i32::from(wrong > 0))
    }
}

/// Rank 0's, on a terminal. Nothing ticks: it moves between sizes, when no clock runs.
fn bar(leads: bool, sizes: usize) -> ProgressBar {
    if !leads || sizes < 2 || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(sizes as u64), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} sizes, {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// What was typed.
fn command() -> String {
    let rest: Vec<String> = env::args_os()
        .skip(1)
        .map(|a| a.to_string_lossy().into_owned())
        .collect();
    format!("gaggle {}", rest.join(" "))
}

#[cfg(test)]
mod tests;
