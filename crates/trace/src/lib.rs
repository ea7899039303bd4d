//! A flight recorder: the last few thousand operations of each rank, in a file that survives the process, and what can be learnt from the files of a job.
//!
//! A [`Recorder`] keeps one rank's operations in a file mapped into memory: what each was, how far it came, when, and for whom it waited.
//! Writing costs neither a system call nor an allocation, and what was written is in the file even when the process is killed the moment after.
//! A [`Recording`] is such a file, read; reading any bytes at all is safe.
//! A [`Job`] is the recordings of one job on one time line: [`Job::in_flight`], [`Job::blamed`], [`Job::slowest`], [`Job::late`].
//! Where the files lie, and how long, is the matter of [`place`].
//!
//! ```
//! use gaggle_core::Rank;
//! use gaggle_trace::{About, Recorder, Recording};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = std::env::temp_dir().join(format!("gaggle-trace-doc-{}", std::process::id()));
//! std::fs::create_dir_all(&dir)?;
//! let recorder = Recorder::create(&dir, &About::new("doc", 4, Rank(1)))?;
//! let recording = Recording::read(recorder.path())?;
//! assert_eq!(recording.header.rank, Rank(1));
//! assert!(recording.operations.is_empty());
//! recorder.close(); // nothing has gone wrong, so the file goes
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok(())
//! # }
//! ```

mod clock;
mod clocks;
mod job;
mod layout;
pub mod place;
mod raw_map;
mod recorder;
mod recording;
mod waits;

pub use clock::now;
pub use clocks::{Basis, ClockFit};
pub use job::{Candidate, Job, MergeError, OpKey, RankTrace, choose_latest};
pub use layout::{MAGIC, SLOTS, VERSION};
pub use recorder::{About, Failure, FailureKind, Recorder, RecorderError, Start, Ticket};
pub use recording::{Group, Header, Operation, Phase, ReadError, Recording, State};
pub use waits::{Blamed, InFlight, Late, Named, Slow, WaitsFor, Why};
