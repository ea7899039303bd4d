//! Counts that only two ranks share: what one sends and the other expects. They travel beside the data, since no descriptor can tell them.

use gaggle_core::{Counts, Kind, Rank};
use std::sync::Arc;

/// How many elements go from rank to rank, where ranks give counts of their own.
///
/// A message's head carries the sender's number, so that a difference is found whatever slices the two sides have cut.
#[derive(Clone, Debug, Default)]
pub(crate) enum Pairs {
    /// The descriptor tells.
    #[default]
    Same,
    /// By rank.
    Ranks { send: Arc<[u64]>, recv: Arc<[u64]> },
    /// The same to every out-neighbour; by in-neighbour.
    Neighbours {
        send: u64,
        from: Arc<[Rank]>,
        recv: Arc<[u64]>,
    },
}

impl Pairs {
    /// `len`: what goes to each out-neighbour.
    pub(crate) fn of(kind: &Kind, len: u64) -> Pairs {
        match kind {
            Kind::AllToAll {
                send: Counts::Known(send),
                recv: Counts::Known(recv),
            } => Pairs::Ranks {
                send: Arc::clone(send),
                recv: Arc::clone(recv),
            },
            Kind::NeighbourGather {
                from,
                counts: Counts::Known(recv),
                ..
            } => Pairs::Neighbours {
                send: len,
                from: Arc::clone(from),
                recv: Arc::clone(recv),
            },
            _ => Pairs::Same,
        }
    }

    /// Whether the descriptor tells.
    pub(crate) fn is_same(&self) -> bool {
        matches!(self, Pairs::Same)
    }

    /// Elements for `rank`; 0 where the descriptor tells.
    pub(crate) fn sent_to(&self, rank: Rank) -> u64 {
        match self {
            Pairs::Same => 0,
            Pairs::Ranks { send, .. } => send.get(rank.idx()).copied().unwrap_or(0),
            Pairs::Neighbours { send, .. } => *send,
        }
    }

    /// Elements from `rank`; `None` where the descriptor tells.
    pub(crate) fn expected_from(&self, rank: Rank) -> Option<u64> {
        match self {
            Pairs::Same => None,
            Pairs::Ranks { recv, .. } => recv.get(rank.idx()).copied(),
            Pairs::Neighbours { from, recv, .. } => {
                let at = from.iter().position(|r| *r == rank)?;
                recv.get(at).copied()
            }
        }
    }
}
