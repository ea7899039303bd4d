//! The `gaggle` program: `gaggle run` starts the ranks of a job on this machine, `gaggle demo` trains on the data that ships with it, `gaggle trace` tells from the ranks' recordings who waited for whom.
//!
//! It parses and prints; starting and ending ranks is `gaggle-launch`, the store in which they meet is `gaggle-transport`. Neither the engine nor the machine-learning framework is part of it.

#![forbid(unsafe_code)]

mod args;
mod demo;
mod failure;
mod run;
mod trace;

use args::{Args, Task};
use clap::Parser;
use std::{
    io::{self, IsTerminal},
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
    };
    match code {
        // Exit codes are 8 bits on this side of the system: 0..=255 by construction.
        Ok(code) => ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)),
        Err(failure) => {
            eprintln!("gaggle: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
