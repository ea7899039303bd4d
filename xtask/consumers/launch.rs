//! Starting ranks alone: three shells that say who they are.

use gaggle_launch::{Job, LaunchError};

fn main() -> Result<(), LaunchError> {
    let outcome = Job::new(3, "sh").args(["-c", "echo rank $RANK of $WORLD_SIZE"]).run()?;
    eprint!("{outcome}");
    std::process::exit(outcome.code());
}
