//! The smallest rank: joins, averages its number with the others', says the mean, and leaves.

use gaggle::{Error, Mean};
use std::process::ExitCode;

fn main() -> ExitCode {
    match greet() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hello: {error}");
            ExitCode::FAILURE
        }
    }
}

fn greet() -> Result<(), Error> {
    let job = gaggle::join()?;
    let mut x = [job.rank().0 as f64];
    job.all_reduce(&mut x, Mean)?;
    println!("rank {} of {}: {}", job.rank().0, job.size(), x[0]);
    Ok(())
}
