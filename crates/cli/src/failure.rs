//! Why the launcher itself failed, and with which exit code.

use gaggle_launch::LaunchError;
use std::{io, path::PathBuf};

/// A failure of the launcher, not of a rank.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The ranks could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The ranks could not be given a place to meet.
    #[error("cannot {what}: {why}")]
    Store {
        /// What was tried.
        what: &'static str,
        /// What came of it.
        why: String,
    },
    /// No address of this machine is what was asked for.
    #[error("--interface: {0}")]
    Interface(String),
    /// The demo's program is not there.
    #[error(
        "cannot find the demo's program `gaggle-demo`: it is neither next to {} nor in PATH.\n\
         In a checkout of gaggle, `cargo xtask demo` builds it and runs it; `cargo build -p gaggle-demo` only builds it.\n\
         If it lies elsewhere, set GAGGLE_DEMO to its path.",
        .me.display()
    )]
    NoDemo {
        /// This program.
        me: PathBuf,
    },
    /// `GAGGLE_DEMO` names no file.
    #[error("GAGGLE_DEMO is {}, but there is no such file", .0.display())]
    NoSuchDemo(PathBuf),
    /// The recordings cannot be found, read or put together.
    #[error("{0}")]
    Trace(String),
    /// There is no such plan, or it cannot be shown.
    #[error("{0}\nTry `gaggle explain --help`.")]
    Explain(String),
    /// There is no such topology, or it cannot be drawn.
    #[error("{0}\nTry `gaggle topo --help`.")]
    Topo(String),
    /// What was to be measured makes no sense.
    #[error("{0}\nTry `gaggle perf --help`.")]
    PerfUsage(String),
    /// What was to be tuned makes no sense.
    #[error("{0}\nTry `gaggle tune --help`.")]
    TuneUsage(String),
    /// A rank could not join, or an operation failed.
    #[error("{0}")]
    Perf(#[from] gaggle::Error),
    /// What was measured could not be written.
    #[error("cannot write {}: {why}", .path.display())]
    Write {
        /// Where to.
        path: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// The command line makes no sense.
    #[error("{0}\nTry `gaggle demo --help`.")]
    Usage(String),
}

impl Failure {
    /// As a shell has it: 126 and 127 for programs that cannot be executed or found, 2 for usage, 125 for the rest.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Launch(LaunchError::Start { source, .. }) => match source.kind() {
                io::ErrorKind::NotFound => 127,
                _ => 126,
            },
            Failure::NoDemo { .. } | Failure::NoSuchDemo(_) => 127,
            Failure::Trace(_) | Failure::Perf(_) | Failure::Write { .. } => 1,
            Failure::Usage(_)
            | Failure::Explain(_)
            | Failure::Interface(_)
            | Failure::PerfUsage(_)
            | Failure::Topo(_)
            | Failure::TuneUsage(_) => 2,
            Failure::Launch(_) | Failure::Store { .. } => 125,
        }
    }
}
