//! Who talks to whom, with what weight, in each round of decentralised training.
//!
//! The graphs here implement [`gaggle_core::Topology`]; [`CATALOGUE`] lists them with what each is for, and [`by_name`] makes them from what a user types.
//! Your own come from edges or a `petgraph` graph ([`Graph`] with [`Weights`]), from matrices or rounds ([`Table`]), or from a function ([`FromFn`]).
//! Beside them stands what can be said of any topology: [`check`] proves that its rounds are sound, [`facts`] measures how fast it mixes, [`report`] adds what it costs, [`edges`] lists a round for drawing, `matrix` (feature `ndarray`) and `graph` (feature `petgraph`) hand a round to other tools.
//! The crate knows no network, no thread and no clock; running a round is the engine's work.
//!
//! Conventions: `W[i, j]` is the weight that receiver i puts on the value of sender j, so rows sum to one.
//! On directed graphs rank i sends to i + 2^m and receives from i − 2^m (BlueFog's orientation; the exponential-graph paper prints the transpose, which has the same spectrum and other trajectories).
//! Every graph of the catalogue is doubly stochastic for every world that it has: averages are kept; a world of one has no neighbours and keeps its value. The exceptions are schedules over irregular graphs and weights that you choose so, and [`check`] tells.
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

mod adjacency;
mod base;
mod cascade;
mod catalogue;
mod check;
mod circulant;
mod derived;
mod equi;
mod error;
mod exponential;
mod facts;
#[cfg(feature = "petgraph")]
mod graph;
mod grid;
mod hypercube;
mod machines;
#[cfg(feature = "ndarray")]
mod matrix;
mod mixing;
mod random;
mod rate;
mod report;
mod ring;
mod spectrum;
mod star;
mod table;
mod tree;

pub use adjacency::{Graph, Weights};
pub use base::BaseGraph;
pub use cascade::NullCascade;
pub use catalogue::{CATALOGUE, Entry, by_name, by_name_seeded};
pub use check::check;
pub use derived::{FromFn, Lazy, OnePeer};
pub use equi::{EquiDyn, EquiStatic};
pub use error::{Side, TopologyError};
pub use exponential::{KPeerExp, OnePeerExp, StaticExp, SymmetricExp};
pub use facts::{NEVER_REPEATS, facts};
#[cfg(feature = "petgraph")]
pub use graph::{components, graph, union};
pub use grid::{even_shape, mesh, torus};
pub use hypercube::{Hypercube, OnePeerHypercube};
pub use machines::{InnerOuter, OverMachines};
#[cfg(feature = "ndarray")]
pub use matrix::{matrix, period_product};
pub use mixing::edges;
pub use random::{RandomMatching, erdos_renyi};
pub use report::{Report, report};
pub use ring::{Direction, Ring, UniRing};
pub use star::{FullyConnected, Star};
pub use table::Table;
pub use tree::{binary_tree, chain};
