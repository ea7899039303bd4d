//! `cargo xtask stress`, and, as `stress rank SEED BUFFERS`, one of the processes that it starts.

use clap::Parser;
use gaggle_integration_tests::stress::{Options, conductor, rank};
use std::{env, process::ExitCode};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let ["rank", seed, buffers] = args[..] {
        let (Ok(seed), Ok(buffers)) = (seed.parse(), buffers.parse()) else {
            eprintln!("stress: not a seed and a sort of buffers: {seed} {buffers}");
            return ExitCode::from(2);
        };
        return rank::run(seed, buffers);
    }
    let options = Options::parse();
    let done = conductor::this_program()
        .map_err(|e| format!("stress: {e}"))
        .and_then(|program| conductor::run(&program, &options));
    match done {
        Ok(tally) => {
            println!("stress: {} episodes: {tally}; all held", tally.episodes);
            ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}
