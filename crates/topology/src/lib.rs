//! Who talks to whom, with what weight, in each round of decentralised training.
//!
//! The graphs here implement [`gaggle_core::Topology`]: [`Ring`], [`UniRing`], [`Star`], [`FullyConnected`], [`StaticExp`], [`OnePeerExp`], and [`Table`] for rounds that you write down yourself.
//! Beside them stand what can be said of any topology: [`check`] proves that its rounds are sound, [`facts`] measures how fast it mixes, [`edges`] lists a round for drawing, `matrix` (feature `ndarray`) and `graph` (feature `petgraph`) hand a round to other tools.
//! The crate knows no network, no thread and no clock; running a round is the engine's work.
//!
//! Conventions: `W[i, j]` is the weight that receiver i puts on the value of sender j, so rows sum to one.
//! On directed graphs rank i sends to i + 2^m and receives from i − 2^m (BlueFog's orientation; the exponential-graph paper prints the transpose, which has the same spectrum and other trajectories).
//! Every graph here is doubly stochastic for every world from 1 on: averages are kept; a world of one has no neighbours and keeps its value.
//!
//! ```
//! use gaggle_core::{Rank, Round, Topology};
//! use gaggle_topology::{OnePeerExp, by_name, check, facts};
//!
//! let graph = OnePeerExp::new(8)?;
//! check(&graph)?;
//!
//! // In round 1 rank 0 sends to rank 2 and averages with what comes from rank 6.
//! let mut round = Round::default();
//! graph.round(Rank(0), 1, &mut round);
//! assert_eq!(round.to, [(Rank(2), 1.0)]);
//! assert_eq!((&round.from[..], round.keep), (&[(Rank(6), 0.5)][..], 0.5));
//!
//! // Three rounds of one message each give the exact mean of eight ranks; a ring forgets slowly.
//! assert!(facts(&graph).contraction < 1e-12);
//! assert!(facts(&*by_name("ring", 8)?).contraction > 0.8);
//! # Ok::<(), gaggle_topology::TopologyError>(())
//! ```
#![forbid(unsafe_code)]

mod check;
mod error;
mod exponential;
mod facts;
#[cfg(feature = "petgraph")]
mod graph;
#[cfg(feature = "ndarray")]
mod matrix;
mod mixing;
mod ring;
mod spectrum;
mod star;
mod table;

pub use check::check;
pub use error::{Side, TopologyError};
pub use exponential::{OnePeerExp, StaticExp};
pub use facts::{NEVER_REPEATS, facts};
#[cfg(feature = "petgraph")]
pub use graph::{components, graph, union};
#[cfg(feature = "ndarray")]
pub use matrix::{matrix, period_product};
pub use mixing::edges;
pub use ring::{Direction, Ring, UniRing};
pub use star::{FullyConnected, Star};
pub use table::Table;

use gaggle_core::Topology;

/// The names that [`by_name`] knows.
pub const NAMES: [&str; 7] = [
    "ring",
    "uni-ring",
    "uni-ring-left",
    "star",
    "fully-connected",
    "static-exp",
    "one-peer-exp",
];

/// The topology that users call `name`, for `world` ranks.
///
/// Besides [`NAMES`] the short forms `full` and `exp2` are understood; the star's centre is rank 0.
///
/// # Errors
/// [`TopologyError::UnknownName`] with the names that exist, or what the constructor says of `world`.
pub fn by_name(name: &str, world: usize) -> Result<Box<dyn Topology>, TopologyError> {
    Ok(match name {
        "ring" => Box::new(Ring::new(world)?),
        "uni-ring" => Box::new(UniRing::new(world, Direction::Right)?),
        "uni-ring-left" => Box::new(UniRing::new(world, Direction::Left)?),
        "star" => Box::new(Star::new(world, gaggle_core::Rank(0))?),
        "fully-connected" | "full" => Box::new(FullyConnected::new(world)?),
        "static-exp" | "exp2" => Box::new(StaticExp::new(world)?),
        "one-peer-exp" => Box::new(OnePeerExp::new(world)?),
        _ => {
            return Err(TopologyError::UnknownName {
                name: name.into(),
                known: NAMES.join(", "),
            });
        }
    })
}
