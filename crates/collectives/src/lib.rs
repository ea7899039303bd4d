//! Collectives as values: plans, their checker, cost and explanation.
//!
//! Planning is a pure function of a [`Request`]; the crate knows no thread, no clock and no socket.
//! A [`Plan`] is one rank's graph of steps: [`plan()`] makes it, [`check()`] proves all ranks' plans together, [`Cost`] counts what they send, [`explain()`] prints them, [`mutants`] breaks them on purpose; an engine carries them out.
//!
//! P ranks, S bytes: the whole vector, or all parts together. Bytes are the most that one rank sends; n slices follow each other through a chain or tree at one more round each.
//!
//! | Operation | Algorithm | Rounds | Bytes sent by a rank |
//! |---|---|---|---|
//! | all-reduce | ring | 2(P−1) | 2S(P−1)/P |
//! | | recursive doubling | ⌈log₂P⌉, one more where P is no power of two | S·⌈log₂P⌉; S more where P is no power of two and one round less |
//! | | direct; also with a codec and with error feedback | 2 | 2S(P−1)/P |
//! | | exchange: whole vectors, everybody with everybody | 1 | S(P−1) |
//! | | halving-doubling (Rabenseifner) | 2⌊log₂P⌋, two more where P is no power of two | 2S(Q−1)/Q for Q the power of two; up to S more |
//! | | binomial, k-nomial: to rank 0 and back | 2⌈logₖP⌉ | (k−1)·S·⌈logₖP⌉ |
//! | | double tree | about 4·log₂P | 2S |
//! | | two-level: ring, recursive doubling, direct (also with a codec), halving-doubling, double tree, binomial | 2 inside a host, the other's between | inside 2S(L−1)/L for L ranks on a host, between 1/L of the other's |
//! | | fused, over mapped memory | two arrivals | none: each reads and writes S/P of every member's |
//! | reduce | direct | 1 | S |
//! | | binomial, k-nomial, double tree, two-level binomial | ⌈logₖP⌉; about 2·log₂P | S |
//! | | halving-doubling | 2⌊log₂P⌋, one more where P is no power of two | S(Q−1)/Q + S/2 |
//! | broadcast | direct | 1 | S(P−1) |
//! | | binomial, k-nomial, two-level binomial | ⌈logₖP⌉ | (k−1)·S·⌈logₖP⌉ |
//! | | double tree | about 2·log₂P | S |
//! | | pipelined, two-level pipelined | P−1 | S |
//! | | fused | two arrivals | none |
//! | gather(v), scatter(v) | direct | 1 | a part; the root of a scatter all others' |
//! | | binomial | ⌈log₂P⌉ | S/2; the root of a scatter all others' parts |
//! | | fused | two arrivals | none |
//! | all-gather(v) | ring, direct, two-level ring | P−1, 1, H for H hosts | S(P−1)/P |
//! | | recursive doubling | ⌊log₂P⌋, two more where P is no power of two | S(P−1)/P; up to 2S |
//! | | Bruck | ⌈log₂P⌉ | S(P−1)/P |
//! | | fused | two arrivals | none |
//! | reduce-scatter(v) | direct, ring, two-level direct | 1, P−1, 2 | S(P−1)/P |
//! | | halving-doubling | log₂P, two more where P is no power of two | S(P−1)/P; S and a part more |
//! | | fused | two arrivals | none |
//! | all-to-all(v) | direct | 1 | S(P−1)/P |
//! | all-to-all | Bruck | ⌈log₂P⌉ | S/2·⌈log₂P⌉ |
//! | | fused | two arrivals | none |
//! | barrier | dissemination | ⌈log₂P⌉ | 0 |
//! | neighbour average, neighbour all-gather(v) | neighbour; the average also with a codec | 1 | S for each out-neighbour |
//! | average between machines | hierarchical; also with a codec | 3 | inside 2S(L−1)/L, between S/L for each out-machine |
//! | message | direct | 1 | S |
//!
//! Partial results of 16-bit floats travel as f32, so that what they send counts twice, except by direct, exchange, fused and neighbour plans, which have none.
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
//!     ..Request::default()
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
mod exchange;
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
pub mod timeline;
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
pub use timeline::{Timeline, timeline};
