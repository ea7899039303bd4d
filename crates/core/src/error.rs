//! The one error type at the seams: who, which operation, what state remains.

use crate::{Rank, name_ranks};
use std::{fmt, sync::Arc, time::Duration};

/// One cause, shared by every operation it ended: cheap to clone.
#[derive(Clone, Debug)]
pub struct Error(Arc<Cause>);

/// What went wrong.
///
/// Three sorts: the caller's mistake (`Invalid`, `Unsupported`: nothing has happened), a peer or the network (all others but one: the text says what state remains), and a bug of ours (`Internal`).
/// Ranks are numbers in the group of the operation; where the job's numbers differ the text gives both.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The caller asked for something that has no meaning. Nothing has happened, nothing was sent.
    #[error("{op}: {what}")]
    Invalid {
        /// The operation or the setting.
        op: String,
        /// What is wrong with it, wanted and got.
        what: String,
    },
    /// What was asked for exists but not in this combination. Nothing has happened.
    #[error("{op}: {what}")]
    Unsupported {
        /// The operation.
        op: String,
        /// Which combination, and what to use instead.
        what: String,
    },
    /// A peer is dead: its process has ended or its connections broke. The group must be rebuilt.
    #[error("{op}: lost {} ({why}){}", name_rank(*rank, *world_rank), partly(*partly_written))]
    PeerLost {
        /// The operation that ended.
        op: String,
        /// Number in the group.
        rank: Rank,
        /// Number in the job.
        world_rank: Rank,
        /// What was seen.
        why: String,
        /// Whether the operation's buffer may hold partial results.
        partly_written: bool,
    },
    /// A peer has left politely, before an operation that needs it.
    #[error("{op}: {} has left", name_rank(*rank, *world_rank))]
    PeerLeft {
        /// The operation that ended.
        op: String,
        /// Number in the group.
        rank: Rank,
        /// Number in the job.
        world_rank: Rank,
    },
    /// The deadline passed. The named ranks are alive as far as the network can tell, but absent.
    #[error("{op}: nothing from {} for {waited:.1?}{}{}", name_ranks(waiting_for), suffix(detail), partly(*partly_written))]
    Timeout {
        /// The operation, with its number.
        op: String,
        /// Who is missing.
        waiting_for: Vec<Rank>,
        /// For how long.
        waited: Duration,
        /// What is known about them.
        detail: String,
        /// Whether the operation's buffer may hold partial results.
        partly_written: bool,
    },
    /// The ranks called different things. The group works on with its next operation.
    #[error("{op}: {} deviate{}: {}{}", name_ranks(deviating), if deviating.len() == 1 { "s" } else { "" }, name_versions(versions), partly(*partly_written))]
    Mismatch {
        /// The operation, with its number.
        op: String,
        /// The minority; on a tie, all.
        deviating: Vec<Rank>,
        /// Every version, with the ranks that called it.
        versions: Vec<(Vec<Rank>, String)>,
        /// Whether the operation's buffer may hold partial results.
        partly_written: bool,
    },
    /// Somebody called `abort`. The group must be rebuilt.
    #[error("{op}: aborted by {by}: {reason}")]
    Aborted {
        /// The operation that ended.
        op: String,
        /// Who.
        by: Rank,
        /// Why, in their words.
        reason: String,
    },
    /// Somebody cancelled the operation. The group works on with its next operation.
    #[error("{op}: cancelled by {by}: {reason}{}", partly(*partly_written))]
    Cancelled {
        /// The operation that ended.
        op: String,
        /// Who.
        by: Rank,
        /// Why, in their words.
        reason: String,
        /// Whether the operation's buffer may hold partial results.
        partly_written: bool,
    },
    /// A function of the user's panicked. The group works on with its next operation.
    #[error("{op}: the user's {what} panicked on {by}: {panic}")]
    Panicked {
        /// The operation that ended.
        op: String,
        /// Which function: `reduction 'hypot'`.
        what: String,
        /// On which rank.
        by: Rank,
        /// What the panic said.
        panic: String,
    },
    /// A group cannot be rebuilt: the survivors are a minority, or did not all come.
    #[error("rebuild: {what}")]
    Rebuild {
        /// Who is there, who is lost, who did not come.
        what: String,
        /// Those who did not come, or are lost.
        ranks: Vec<Rank>,
    },
    /// The connection to the rendezvous store is gone, or it did not answer in time.
    #[error("store at {addr}: {what}")]
    Store {
        /// Where it was.
        addr: String,
        /// What was asked and what came.
        what: String,
    },
    /// Ranks did not find each other.
    #[error("rendezvous of rank {} of {world}: {what}", rank.0)]
    Rendezvous {
        /// Who tried.
        rank: Rank,
        /// How many were expected.
        world: u32,
        /// What is missing.
        what: String,
    },
    /// A peer sent what no healthy peer sends. The link is closed.
    #[error("protocol violation by {peer}: {what}")]
    Protocol {
        /// Who, as `rank 3` or an address.
        peer: String,
        /// What came.
        what: String,
    },
    /// This process was forked after it had joined; only the parent may communicate.
    #[error("{op}: this process is a fork of the one that joined; join again in the child")]
    Forked {
        /// The operation.
        op: String,
    },
    /// A bug of ours. Please report it.
    #[error("internal error: {what}")]
    Internal {
        /// What was found broken.
        what: String,
    },
}

fn partly(yes: bool) -> &'static str {
    if yes {
        "; the buffer is partly written"
    } else {
        ""
    }
}

fn suffix(detail: &str) -> String {
    if detail.is_empty() {
        String::new()
    } else {
        format!(" ({detail})")
    }
}

fn name_rank(group: Rank, world: Rank) -> String {
    if group == world {
        group.to_string()
    } else {
        format!("{group} (world rank {})", world.0)
    }
}

fn name_versions(versions: &[(Vec<Rank>, String)]) -> String {
    let all: Vec<String> = versions
        .iter()
        .map(|(ranks, what)| format!("{} called {what}", name_ranks(ranks)))
        .collect();
    all.join("; ")
}

impl Error {
    /// The caller's mistake.
    pub fn invalid(op: impl Into<String>, what: impl Into<String>) -> Error {
        Cause::Invalid {
            op: op.into(),
            what: what.into(),
        }
        .into()
    }

    /// A bug of ours.
    pub fn internal(what: impl Into<String>) -> Error {
        Cause::Internal { what: what.into() }.into()
    }

    /// What went wrong.
    pub fn cause(&self) -> &Cause {
        &self.0
    }

    /// Whom the error blames, as numbers in the operation's group; empty where nobody is to blame.
    pub fn culprits(&self) -> &[Rank] {
        match &*self.0 {
            Cause::PeerLost { rank, .. } | Cause::PeerLeft { rank, .. } => {
                std::slice::from_ref(rank)
            }
            Cause::Timeout { waiting_for, .. } => waiting_for,
            Cause::Mismatch { deviating, .. } => deviating,
            Cause::Aborted { by, .. }
            | Cause::Cancelled { by, .. }
            | Cause::Panicked { by, .. } => std::slice::from_ref(by),
            Cause::Rebuild { ranks, .. } => ranks,
            _ => &[],
        }
    }
}

impl From<Cause> for Error {
    fn from(cause: Cause) -> Error {
        Error(Arc::new(cause))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&*self.0)
    }
}

/// An error plus the memory; `buf` is `None` only where a backend cannot take it back (its doc says so).
pub struct Failed<B> {
    /// What went wrong.
    pub error: Error,
    /// The memory that the operation had taken.
    pub buf: Option<B>,
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::error::Error for Failed<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<B> From<Failed<B>> for Error {
    fn from(f: Failed<B>) -> Error {
        f.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_culprits_and_the_state() {
        let e: Error = Cause::Mismatch {
            op: "all_reduce #4".into(),
            deviating: vec![Rank(0)],
            versions: vec![
                (vec![Rank(0)], "sum of 100 f32".into()),
                (vec![Rank(1), Rank(2)], "sum of 200 f32".into()),
            ],
            partly_written: true,
        }
        .into();
        assert_eq!(
            e.to_string(),
            "all_reduce #4: rank 0 deviates: rank 0 called sum of 100 f32; ranks 1 and 2 called sum of 200 f32; the buffer is partly written"
        );
        assert_eq!(e.culprits(), [Rank(0)]);
        let e: Error = Cause::PeerLost {
            op: "barrier #2".into(),
            rank: Rank(1),
            world_rank: Rank(5),
            why: "connection reset".into(),
            partly_written: false,
        }
        .into();
        assert_eq!(
            e.to_string(),
            "barrier #2: lost rank 1 (world rank 5) (connection reset)"
        );
    }
}
