//! The command line: what can be said, and what `--help` tells.

use crate::{explain::ExplainArgs, perf::PerfArgs, topo::TopoArgs, tune::TuneArgs};
use clap::{Args as ClapArgs, Parser, Subcommand, builder::styling};
use gaggle_transport::interfaces::Wish;
use std::{ffi::OsString, path::PathBuf, time::Duration};

/// Trains one model with many processes: all-reduce, or with nobody in charge.
#[derive(Parser, Debug)]
#[command(
    name = "gaggle",
    version,
    about,
    arg_required_else_help = true,
    styles = styling::Styles::styled().header(styling::AnsiColor::Yellow.on_default()),
    after_help = "Examples:\n  \
        gaggle demo                        train on the digits that ship with gaggle, with 4 processes\n  \
        gaggle run -n 4 ./my-program       start 4 copies of my-program as the ranks of one job\n  \
        gaggle explain all-reduce -n 6     show which plan 6 ranks would follow, and why\n  \
        gaggle perf all-reduce --ranks 4   measure how fast 4 ranks of this machine reduce, and check the results\n  \
        gaggle topo compare -n 16          rank the topologies that 16 ranks can average on\n  \
        gaggle trace                       tell who waited for whom in the job that failed last\n\n\
        `gaggle COMMAND --help` tells more about each command."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Task {
    Run(RunArgs),
    Demo(DemoArgs),
    Trace(TraceArgs),
    Explain(Box<ExplainArgs>),
    Perf(Box<PerfArgs>),
    Tune(TuneArgs),
    Topo(Box<TopoArgs>),
}

/// Start N copies of a program on this machine, as the ranks of one job
#[derive(ClapArgs, Debug)]
#[command(
    override_usage = "gaggle run -n N [OPTIONS] [--] PROGRAM [ARGS]...",
    after_long_help = RUN_HELP,
    after_help = "`gaggle run --help` also explains the variables, the end of a job and the exit codes."
)]
pub(crate) struct RunArgs {
    /// How many copies (ranks) to start
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = ranks)]
    pub(crate) ranks: u32,
    /// How long the other ranks have to stop once one has failed, before they are killed
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) grace: Duration,
    /// By which addresses ranks reach each other: interfaces, patterns, addresses and networks with commas between them; what follows ^ or ! is excluded
    #[arg(long, value_name = "WISH", value_parser = wish)]
    pub(crate) interface: Option<Wish>,
    /// Bind the ranks to the machine's memory nodes (NUMA), as many to each, neighbours together
    #[arg(long)]
    pub(crate) bind_to_node: bool,
    /// The program to start, found in PATH, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

const RUN_HELP: &str = "\
Examples:
  gaggle run -n 4 ./my-program
  gaggle run -n 2 -- python train.py --lr 0.1
  gaggle run -n 3 sh -c 'echo I am rank $RANK of $WORLD_SIZE'

What each rank is told, by its environment:
  RANK, LOCAL_RANK              its number, from 0 to N-1
  WORLD_SIZE, LOCAL_WORLD_SIZE  N
  MASTER_ADDR, MASTER_PORT      127.0.0.1 and a free port, for programs that meet by other means
  GAGGLE_STORE, GAGGLE_SECRET, GAGGLE_JOB
                                where the ranks meet and how they prove that they belong together;
                                `gaggle::join()` reads them, other programs need not
  RAYON_NUM_THREADS, OMP_NUM_THREADS
                                CPUs divided by N, at least 1, so that ranks do not take each
                                other's CPUs; left alone where you have set them
What you may set, for ranks that call `gaggle::join()`:
  GAGGLE_TIMEOUT                seconds until an operation names who has not come; 300
  GAGGLE_ALGORITHMS             which plans are used, as all_reduce:0-32k=ring,32k-=direct
  GAGGLE_INTERFACE              as --interface: eth0 or eth*,10.0.0.0/8,^docker*; loopback
  GAGGLE_TABLES                 a file that `gaggle tune` has written: what links can do here
  GAGGLE_NODE                   the rank's memory node (NUMA): auto, off or a number; auto
  GAGGLE_PARTING                off: waiting threads go to no other processor by themselves; on
  GAGGLE_TRACE, GAGGLE_TRACE_DIR
                                `off`, or where recordings lie; see `gaggle trace --help`
Standard input is empty for every rank.

What is printed: each line of each rank, with its number in front: `[2] loss 0.41`.

How a job ends:
  - All ranks end with exit code 0: so does `gaggle run`.
  - A rank fails: the others are told to stop (SIGTERM), those that still run after the grace are
    killed (SIGKILL), and the first rank that failed is named last, with its last lines.
  - Ctrl-C or SIGTERM: all ranks are stopped at once.
  - `gaggle run` is killed: the ranks and what they started end, too.

Exit codes:
  0    all ranks ended well
  N    the exit code of the first rank that failed; 128 + signal if a signal killed it
  128 + signal   `gaggle run` itself was told to stop by that signal (Ctrl-C: 130)
  2    the command line makes no sense
  126, 127   the program cannot be executed, is not there
  125  the launcher failed";

/// Train on the handwritten digits that ship with gaggle, with 4 processes
// Clap does not look at what follows: the demo's own program knows its options.
#[derive(ClapArgs, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct DemoArgs {
    /// `--ranks N`, and the demo's own options
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "OPTIONS"
    )]
    pub(crate) options: Vec<OsString>,
}

/// Tell from the ranks' recordings what they did last, and who waited for whom
#[derive(ClapArgs, Debug)]
#[command(after_long_help = TRACE_HELP)]
pub(crate) struct TraceArgs {
    /// Recordings of one job, or a directory, of which the latest job is taken; by default the directory that ranks on this machine write to
    #[arg(value_name = "FILE|DIR")]
    pub(crate) files: Vec<PathBuf>,
    /// Write a time line that Perfetto opens
    #[arg(short, long, value_name = "FILE.json")]
    pub(crate) output: Option<PathBuf>,
    /// Look at the last N operations of each rank only
    #[arg(long, value_name = "N")]
    pub(crate) last: Option<usize>,
    /// Print the report as JSON, times in nanoseconds
    #[arg(long)]
    pub(crate) json: bool,
}

const TRACE_HELP: &str = "\
Each rank that has called `gaggle::join()` keeps its last few thousand operations in a file, which
goes when the rank leaves in order and stays when an operation has failed, a rank was lost, or the
process was killed. Old files go by themselves: after a week, or when there are more than 64.

Files lie in GAGGLE_TRACE_DIR, or else in gaggle-trace-<uid> in XDG_RUNTIME_DIR or the directory for
temporary files. For a job on several hosts, copy them into one directory and name that.
GAGGLE_TRACE=off, given to the ranks, switches recording off.

Examples:
  gaggle trace
  gaggle trace -o timeline.json /tmp/from-all-hosts";

/// A number of ranks.
pub(crate) fn ranks(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(0) => Err("a job needs at least 1 rank".into()),
        Ok(n) if n <= MOST_RANKS => Ok(n),
        Ok(_) => Err(format!(
            "at most {MOST_RANKS} ranks can be started on one machine"
        )),
        Err(_) => Err("this is not a number of ranks".into()),
    }
}

/// A number of ranks of which none is started.
pub(crate) fn members(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(0) => Err("a job needs at least 1 rank".into()),
        Ok(n) if n <= MOST_MEMBERS => Ok(n),
        Ok(_) => Err(format!("at most {MOST_MEMBERS} ranks can be planned for")),
        Err(_) => Err("this is not a number of ranks".into()),
    }
}

/// More ranks than any job has had.
const MOST_MEMBERS: u32 = 1 << 17;

/// More processes than this on one machine are a slip of the finger.
const MOST_RANKS: u32 = 4096;

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "this is not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(grace) if grace <= Duration::from_secs(3600) => Ok(grace),
        _ => Err("give a number of seconds from 0 to 3600".into()),
    }
}

fn wish(text: &str) -> Result<Wish, String> {
    text.parse()
        .map_err(|e: gaggle_transport::interfaces::InterfaceError| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn run_args(line: &str) -> Result<RunArgs, clap::Error> {
        match Args::try_parse_from(line.split(' '))?.task {
            Task::Run(args) => Ok(args),
            _ => panic!("{line} is not a run"),
        }
    }

    fn check(line: &str, ranks: u32, command: &str) {
        let args = run_args(line).unwrap();
        assert_eq!(args.ranks, ranks, "{line}");
        assert_eq!(args.command.join(" ".as_ref()), command, "{line}");
    }

    #[test]
    fn clap_finds_no_fault() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_programs_options_are_not_ours() {
        check("gaggle run -n 4 prog", 4, "prog");
        check("gaggle run -n4 -- prog -n 7 --help", 4, "prog -n 7 --help");
        check("gaggle run --ranks 1 prog -n 7 -- x", 1, "prog -n 7 -- x");
        check(
            "gaggle run --grace 2.5 -n 3 ./p --version",
            3,
            "./p --version",
        );
        assert_eq!(
            run_args("gaggle run -n 1 --grace 2.5 p").unwrap().grace,
            Duration::from_millis(2500)
        );
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        let refused = |line: &str, why: &str| {
            let text = run_args(line).unwrap_err().to_string();
            assert!(text.contains(why), "{line}: {text}");
        };
        refused("gaggle run -n 0 prog", "a job needs at least 1 rank");
        refused("gaggle run -n -1 prog", "-1");
        refused("gaggle run -n many prog", "not a number of ranks");
        refused("gaggle run -n 100000 prog", "at most 4096");
        refused("gaggle run -n 2", "PROGRAM");
        refused("gaggle run prog", "-n");
        for grace in ["x", "nan", "inf", "1e300", "4000"] {
            refused(
                &format!("gaggle run -n 2 --grace {grace} prog"),
                "number of seconds",
            );
        }
    }
}
