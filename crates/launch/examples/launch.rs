//! The smallest launcher: `launch N PROGRAM ARGS…` runs N ranks and ends as they did.

use gaggle_launch::Job;
use std::{env, process::ExitCode};

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1);
    let ranks = args.next().and_then(|n| n.to_str()?.parse().ok());
    let (Some(ranks), Some(program)) = (ranks, args.next()) else {
        eprintln!("usage: launch N PROGRAM ARGS…");
        return ExitCode::from(2);
    };
    match Job::new(ranks, program).args(args).run() {
        Ok(outcome) => {
            eprint!("{outcome}");
            ExitCode::from(u8::try_from(outcome.code()).unwrap_or(1))
        }
        Err(error) => {
            eprintln!("launch: {error}");
            ExitCode::from(127)
        }
    }
}
