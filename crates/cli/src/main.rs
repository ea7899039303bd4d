//! The `gaggle` program: `gaggle run` starts the ranks of a job on this machine, `gaggle demo` trains on the data that ships with it, `gaggle trace` tells from the ranks' recordings who waited for whom, `gaggle explain` shows the plan of an operation, `gaggle perf` measures how fast it is, `gaggle tune` measures what the links can do, `gaggle topo` shows and compares topologies.
//!
//! It parses and prints; starting and ending ranks is `gaggle-launch`, the store in which they meet is `gaggle-transport`, and ranks that measure are the facade's, `gaggle`. The machine-learning framework is no part of it.

#![forbid(unsafe_code)]

mod args;
mod demo;
mod explain;
mod failure;
mod output;
mod perf;
mod run;
mod topo;
mod trace;
mod tune;

use args::{Args, Task};
use clap::Parser;
use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::WARN.into())
        .with_env_var("GAGGLE_LOG")
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .without_time()
        .init();
    let code = match &args.task {
        Task::Run(args) => run::run(args),
        Task::Demo(args) => demo::demo(args),
        Task::Trace(args) => trace::trace(args),
        Task::Explain(args) => explain::explain(args),
        Task::Perf(args) => perf::perf(args),
        Task::Tune(args) => tune::tune(args),
        Task::Topo(args) => topo::topo(args),
    };
    match code {
        // Exit codes are 8 bits on this side of the system: 0..=255 by construction.
        Ok(code) => ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)),
        Err(failure) => {
            complain(&format!("gaggle: {failure}"));
            ExitCode::from(failure.code())
        }
    }
}

/// Prints to standard output; whoever reads it may have had enough.
fn print(text: &str) {
    let mut out = io::stdout().lock();
    // A closed pipe is the reader's wish, and there is nowhere to say more.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints to standard error, whole lines. `eprintln!` would panic where nobody reads any more, and its exit code would hide ours.
fn complain(text: &str) {
    let end = if text.is_empty() || text.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    // There is nowhere to say more.
    let _ = write!(io::stderr().lock(), "{text}{end}");
}
