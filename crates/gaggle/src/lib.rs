//! gaggle trains one model on many machines: decentralised, each rank averaging with a few neighbours, or by classical all-reduce, with the same few lines.
//!
//! This crate is the front door: it re-exports what a program needs, and adds the two ways to become a rank.
//! [`local`] runs ranks as threads of this process; [`join`] makes this process a rank under `gaggle run`, under torchrun, or alone.
//! Both give a [`Group`], whose methods are the collectives.
//!
//! ```
//! use gaggle::Mean;
//!
//! let results = gaggle::local(4, |group| -> Result<f32, gaggle::Error> {
//!     let mut x = [group.rank().0 as f32];
//!     group.all_reduce(&mut x, Mean)?;
//!     Ok(x[0])
//! })?;
//! for x in results {
//!     assert_eq!(x?, 1.5);
//! }
//! # Ok::<(), gaggle::Error>(())
//! ```
//!
//! Each rank keeps a record of its last operations, which `gaggle trace` reads after a failure: see [`join`].
//!
//! What a group can do, and what works after which error, is told in `docs/collectives.md`.
//!
//! What lies where: [`topology`] has the graphs, [`optim`] the update rules, [`ddp`] buckets with overlap and the mixer that rules run on, [`collectives`] the plans behind it all, [`transport`] the links.

#![forbid(unsafe_code)]

mod decentralised;
mod env;
mod join;
mod links;
mod local;
mod recording;
mod secret;

pub use decentralised::decentralised;
pub use join::{Job, join, join_with};
pub use local::{local, local_with};

pub use gaggle_core::{
    Algorithm, Band, Bits, Block, Bool, Bor, Buffer, Bxor, Cancel, Cause, Codec, Counts, DType,
    Divisor, Done, Element, Error, Failed, FailedInto, Float, Form, Group, Int, Kind, Lane,
    LinkStats, Max, Mean, Min, Mode, OnMissing, Op, Prod, Properties, Rank, Recurring,
    RecurringInto, Reduce, Reduction, Round, Scope, ScopedWork, StableBuf, Sum, UserReduction,
    Weight, Work, WorkInto,
};
pub use gaggle_engine::{Engine, EngineConfig};

/// The plans behind the collectives, and the checker that proves them.
pub use gaggle_collectives as collectives;
/// The vocabulary and the seam traits, for those who implement one.
pub use gaggle_core as core;
/// Gradient buckets with overlap, the mixer for decentralised rules, digests.
pub use gaggle_ddp as ddp;
/// Update rules, local and decentralised, and their driver.
pub use gaggle_optim as optim;
/// Graphs: who talks to whom, with what weight.
pub use gaggle_topology as topology;
/// The flight recorder: what each rank did last, and who waited for whom.
pub use gaggle_trace as trace;
/// Links between ranks, the store, the meeting.
pub use gaggle_transport as transport;

/// The README's examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Those of the page on collectives, too.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/collectives.md")]
struct Collectives;
