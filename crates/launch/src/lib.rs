//! Starting and ending the ranks of a job, as a library.
//!
//! A [`Job`] starts one program N times on this machine, each copy a *rank* with torchrun's variables in its environment, forwards what they print line by line, and does not return before all of them are gone:
//!
//! - when one rank fails, the others are told to stop (SIGTERM) and, after the grace, killed (SIGKILL): whole process groups, and nothing that the job did not start;
//! - Ctrl-C and SIGTERM to the launcher end the job at once;
//! - when the launcher itself is killed, even by SIGKILL, nothing stays behind: each rank carries a parent-death signal, a guard process ends the groups, and a rank that called [`lifeline::watch`] ends itself.
//!
//! What the ranks say to each other is not this crate's business: the caller adds the address of a rendezvous store to the environment.
//!
//! ```
//! use gaggle_launch::{Job, LaunchError};
//!
//! # #[cfg(unix)] {
//! let outcome = Job::new(3, "sh").args(["-c", "test $RANK -lt $WORLD_SIZE"]).run()?;
//! assert_eq!(outcome.code(), 0);
//! # }
//! # Ok::<(), LaunchError>(())
//! ```

mod job;
pub mod lifeline;
mod outcome;
#[cfg(unix)]
mod output;
#[cfg(unix)]
mod raw_process;
#[cfg(unix)]
mod supervise;

pub use job::{Console, Job, Joined, LaunchError, Voice};
pub use outcome::{Ended, FirstCause, How, Outcome};
