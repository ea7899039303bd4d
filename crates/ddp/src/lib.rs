//! Data-parallel training over a [`Group`](gaggle_core::Group): gradients in flat buckets that are averaged while backward still runs, and the mixer that gives decentralised rules their neighbours.
//!
//! Ways to train one model on several ranks meet here.
//! [`Ddp`] averages gradients: each parameter's gradient is handed over as soon as it exists, buckets of them travel at once, and [`Ddp::finish`] gives the mean back.
//! [`RuleDdp`] runs an update rule the same way: its messages leave by bucket, while forward and backward go on.
//! [`NeighbourMixer`] averages parameters: it serves the drivers of `gaggle-optim` with a topology's neighbours.
//! Around them: the comparison of models and digests between ranks ([`Digest`], [`compare_digests`]) and [`consensus_distance`].
//!
//! The crate spawns no thread and knows no socket; who moves the bytes is the group's affair.
//!
//! One rank alone, over any group of the caller's:
//!
//! ```
//! use gaggle_core::{Group, Weight};
//! use gaggle_ddp::{Ddp, DdpConfig, DdpError, ParamSpec, PlainMean};
//! use std::sync::Arc;
//!
//! fn one_step(group: Group) -> Result<f32, DdpError> {
//!     let params = [ParamSpec::new("w", [2]), ParamSpec::new("b", [1])];
//!     let mut ddp = Ddp::<f32>::new(group, &params, Arc::new(PlainMean), DdpConfig::default())?;
//!     ddp.begin_step(Weight::samples(32))?;
//!     ddp.ready(1, &[0.5])?; // in whatever order backward has them
//!     ddp.ready(0, &[1.0, 2.0])?;
//!     let reduced = ddp.finish()?;
//!     Ok(reduced.grad(0)[0])
//! }
//! ```

#![forbid(unsafe_code)]

mod bucket;
mod consensus;
mod digest;
mod error;
mod hook;
mod mixer;
mod params;
mod reducer;
mod report;
mod ruled;

pub use bucket::{BucketConfig, BucketLayout, Layout, Slot};
pub use consensus::consensus_distance;
pub use digest::{Digest, compare_digests, digest, gather_digests};
pub use error::DdpError;
pub use hook::{Bf16Mean, Bucket, CommHook, HookFuture, PlainMean};
pub use mixer::{MixMeter, MixReport, NeighbourMixer};
pub use params::{ParamSpec, Params};
pub use reducer::{Ddp, DdpConfig, GradFeed, Reduced};
pub use report::{BucketReport, StepReport};
pub use ruled::{RuleDdp, RuleFeed};
