//! `cargo xtask`: builds, tests and checks the workspace, with nothing but cargo.
//!
//! Each command is a module; [`tool`] runs programs and says what it runs. There is no shell in between, so everything here works wherever Rust does.

#![forbid(unsafe_code)]

mod bench;
mod ci;
mod consumers;
mod demo;
mod install;
mod miri;
mod stress;
mod test;
mod tidy;
mod tool;
mod workspace;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::{ffi::OsString, process::ExitCode};

/// Builds, tests and checks the workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build the demo and the launcher, and run the demo; options go to `gaggle demo`
    #[command(disable_help_flag = true)]
    Demo {
        /// Options of `gaggle demo`, such as --ranks 2
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Run every test: with cargo-nextest where it is installed, else with cargo test; doctests, too
    Test(test::TestArgs),
    /// Everything that CI checks, in one list
    Ci,
    /// Check what the compiler does not: edges, layers, docs, licences, links
    Tidy {
        /// Print the edge table as it should stand in ARCHITECTURE.md
        #[arg(long)]
        edges: bool,
    },
    /// Build a scratch program against each library crate alone
    Consumers,
    /// Run the benchmarks, and keep their figures in target/bench
    Bench(bench::BenchArgs),
    /// Run the unsafe code that makes no system call under miri, where it is installed
    Miri,
    /// Run random operations in real processes, stopping and killing these at random; --help tells the options
    #[command(disable_help_flag = true)]
    Stress {
        /// Such as --seconds 60, --seed 7, --ranks 4, --transport shm, --buffers registered
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Rewrite the snapshots that tests compare with; look at the difference before you commit it
    Snapshots,
    /// Install something that only some tests use
    Install {
        #[command(subcommand)]
        what: install::What,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().task {
        Task::Demo { options } => demo::run(&options),
        Task::Test(args) => test::run(&args),
        Task::Ci => ci::run(),
        Task::Tidy { edges: true } => tidy::print_edges(),
        Task::Tidy { edges: false } => tidy::run(),
        Task::Consumers => consumers::run(),
        Task::Bench(args) => bench::run(&args),
        Task::Miri => miri::asked(),
        Task::Stress { options } => stress::run(&options),
        Task::Snapshots => test::snapshots(),
        Task::Install { what } => install::run(what),
    };
    match exit_code(done) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A command that was run for the user hands its exit code on.
fn exit_code(done: Result<()>) -> Result<ExitCode> {
    match done {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => match error.downcast::<demo::Ended>() {
            Ok(demo::Ended(code)) => Ok(ExitCode::from(code)),
            Err(error) => Err(error),
        },
    }
}
