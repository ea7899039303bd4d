//! Collectives as values: plans, their checker, cost and explanation.
//!
//! Planning is a pure function of a [`Request`]; the crate knows no thread, no clock and no socket.
//! A [`Plan`] is one rank's graph of steps: [`plan()`] makes it, [`check()`] proves all ranks' plans together, [`Cost`] counts what they send, [`explain()`] prints them, [`mutants`] breaks them on purpose; an engine carries them out.
//!
//! | Operation | Algorithm | Rounds | Bytes sent per rank (P ranks, S bytes) |
//! |---|---|---|---|
//! | all-reduce | ring | 2(P−1) | 2S(P−1)/P |
//! | all-reduce | recursive doubling | ⌈log₂P⌉, one more where P is no power of two | at most S(⌊log₂P⌋+1) |
//! | all-reduce | direct; the one with a codec | 2 | 2S(P−1)/P |
//! | broadcast | binomial | ⌈log₂P⌉ | the root S·⌈log₂P⌉, a leaf 0 |
//! | all-gather | ring | P−1 | S(P−1), S per rank |
//! | all-gather | direct | 1 | S(P−1), S per rank |
//! | barrier | dissemination | ⌈log₂P⌉ | 0 |
//! | neighbour average | neighbour; also with a codec | 1 | S for each out-neighbour |
//!
//! ```
//! use gaggle_collectives::{Call, Cost, Promise, Request, check, plan};
//! use gaggle_core::{Algorithm, Codec, DType, Rank, Reduce};
//!
//! let promise = Promise::of_all(&Request {
//!     call: Call::AllReduce { reduce: Reduce::Mean, algorithm: Algorithm::Direct },
//!     rank: Rank(0),
//!     world: 3,
//!     len: 1000,
//!     slice: 128,
//!     codec: Codec::Bf16,
//!     widen: false,
//! });
//! let plans: Vec<_> = promise.requests().iter().map(plan).collect::<Result<_, _>>()?;
//! check(&plans, &promise)?;
//! let cost = Cost::of(&plans[2], DType::F32).expect("f32 has a bf16 form");
//! assert_eq!(cost.bytes_sent, 2 * (667 + 2 * 333));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod all_gather;
mod all_to_all;
mod binomial;
mod build;
pub mod check;
pub mod cost;
mod direct;
mod dissemination;
mod doubling;
pub mod explain;
mod fused;
mod gather;
mod halving_doubling;
mod hierarchical;
mod message;
pub mod mutate;
mod neighbour;
mod parts;
pub mod plan;
mod planner;
mod program;
mod recursive_doubling;
mod reduce_scatter;
mod ring;
mod rooted;
pub mod select;
mod tree;
mod two_level;

pub use check::{Fault, Folding, Promise, Where, check};
pub use cost::{Cost, LinkCost, bytes_sent};
pub use explain::explain;
pub use mutate::{Mutant, accepted_mutants, mutants};
pub use plan::{
    Action, Arrive, Buf, Call, Operand, Plan, PlanError, Request, Slot, Span, Step, Steps,
};
pub use planner::{algorithms, plan};
