//! What can be wrong with a topology: which rank, which round.

use crate::Weights;
use gaggle_core::{Rank, Topology};

/// One end of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The receiver's list of senders.
    From,
    /// The sender's list of receivers.
    To,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Side::From => "from",
            Side::To => "to",
        })
    }
}

/// A topology that cannot be built, or whose rounds are not sound. Nothing was sent.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A world of no ranks, or of more than ranks can count.
    #[error("{topology}: a world has 1 to {} ranks, not {world}", u32::MAX)]
    World {
        /// Which topology.
        topology: String,
        /// The number that was given.
        world: usize,
    },
    /// The star's centre is not a member.
    #[error("star: the centre is {centre}, but the world has {world} ranks")]
    Centre {
        /// The centre that was given.
        centre: Rank,
        /// Number of ranks.
        world: usize,
    },
    /// An edge that no graph of this world has.
    #[error(
        "an edge from {from} to {to} in a graph of {world} ranks: both ends are members, and not the same"
    )]
    Edge {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// Number of ranks.
        world: usize,
    },
    /// These weights are for graphs whose edges go both ways.
    #[error(
        "{weights:?} weights need an undirected graph, but {from} sends to {to} and not the other way; uniform and push weights do not"
    )]
    OneWay {
        /// The weights that were asked for.
        weights: Weights,
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
    },
    /// The world is not a power of what it has to be.
    #[error("{topology}: {world} ranks are no power of {of}")]
    NotAPower {
        /// Which topology.
        topology: String,
        /// The number that was given.
        world: usize,
        /// Of what it should be a power.
        of: u32,
    },
    /// A parameter that this topology does not take.
    #[error("{topology}: {what}")]
    Parameter {
        /// Which topology.
        topology: String,
        /// What is wrong.
        what: String,
    },
    /// No topology has this name.
    #[error("there is no topology {name:?}; there are {known}")]
    UnknownName {
        /// What was asked for.
        name: String,
        /// All names.
        known: String,
    },
    /// A table's round does not have one entry per rank, or there is no round.
    #[error("{topology}: round {round} has {got} ranks, wanted {want}")]
    Shape {
        /// Which topology.
        topology: String,
        /// The round.
        round: u64,
        /// Entries found.
        got: usize,
        /// Entries wanted.
        want: usize,
    },
    /// A rank lists a peer that does not exist, or itself.
    #[error("{topology}, round {round}: {rank} lists {peer} in `{side}`, which is {why}")]
    Peer {
        /// Which topology.
        topology: String,
        /// The round.
        round: u64,
        /// Whose list.
        rank: Rank,
        /// The entry.
        peer: Rank,
        /// Which list.
        side: Side,
        /// `itself`, `not a member`, `there already`.
        why: &'static str,
    },
    /// One end of an edge knows of it, the other does not: somebody would wait for ever.
    #[error(
        "{topology}, round {round}: {rank} lists {peer} in `{side}`, but {peer} does not list {rank} in `{}`",
        match side { Side::From => Side::To, Side::To => Side::From }
    )]
    OneSided {
        /// Which topology.
        topology: String,
        /// The round.
        round: u64,
        /// Who lists the edge.
        rank: Rank,
        /// Who does not.
        peer: Rank,
        /// In which list.
        side: Side,
    },
    /// A weight is negative or not a number.
    #[error(
        "{topology}, round {round}: {rank} puts weight {weight} on {peer}; weights are finite and not negative"
    )]
    Weight {
        /// Which topology.
        topology: String,
        /// The round.
        round: u64,
        /// The receiver.
        rank: Rank,
        /// The sender; the receiver itself for its own weight.
        peer: Rank,
        /// The weight.
        weight: f64,
    },
    /// A row does not sum to one: even equal values would change.
    #[error("{topology}, round {round}: the weights that {rank} receives with sum to {sum}, not 1")]
    RowSum {
        /// Which topology.
        topology: String,
        /// The round.
        round: u64,
        /// The receiver.
        rank: Rank,
        /// What they sum to.
        sum: f64,
    },
    /// A column does not sum to one: the average of all ranks drifts towards those who weigh more.
    #[error(
        "{topology}, round {round}: the weights put on {rank} sum to {sum}, not 1; averages would not be kept: take Metropolis weights, or push-sum with push weights"
    )]
    ColumnSum {
        /// Which topology.
        topology: String,
        /// The round.
        round: u64,
        /// The sender.
        rank: Rank,
        /// What they sum to.
        sum: f64,
    },
    /// Nothing that `from` has ever reaches `to`.
    #[error("{topology}: in {rounds} rounds nothing of {from} reaches {to}")]
    Disconnected {
        /// Which topology.
        topology: String,
        /// The source.
        from: Rank,
        /// Who never hears of it.
        to: Rank,
        /// Rounds looked at: one period.
        rounds: u64,
    },
}

/// The number of ranks as graphs keep it.
pub(crate) fn checked_world(topology: &str, world: usize) -> Result<u32, TopologyError> {
    match u32::try_from(world) {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(TopologyError::World {
            topology: topology.into(),
            world,
        }),
    }
}

/// A topology's name, owned, for an error.
pub(crate) fn named(topology: &dyn Topology) -> String {
    topology.name().into()
}
