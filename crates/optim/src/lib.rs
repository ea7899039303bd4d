//! Update rules for training on many ranks, and the driver that runs them.
//!
//! A rule is pure: it says what it exchanges, writes its message, and takes in the mean that came back ([`gaggle_core::Rule`]); it never waits and never sees the network.
//! [`CATALOGUE`] lists them all, a line each, and [`rule_by_name`] builds them from the name that a user types and a [`RuleConfig`]; [`LocalRule`] is the seam of the steps that ranks take alone, which most of them are built around.
//! A [`Clip`] and a [`Schedule`] compose in; [`State`] is what a run goes on from, bit for bit.
//! [`Decentralised`] drives a rule over a [`gaggle_core::Mixer`]; [`testing`] has a mixer that works by a dense matrix in one thread, for tests and for trying out methods without a network.
//!
//! All arithmetic is in f64; parameters and state are kept in the element type.
//!
//! # Your own method in thirty lines
//!
//! Gossip with periodic global averaging: neighbours in most steps, everybody in every `h`-th.
//!
//! ```
//! use gaggle_optim::{At, Cx, Exchange, Float, Local, MixedMean, Place, Rule};
//!
//! struct GossipPga {
//!     h: u64,
//! }
//!
//! impl<T: Float> Rule<T> for GossipPga {
//!     fn name(&self) -> &str {
//!         "my-gossip-pga"
//!     }
//!     fn init(&mut self, _n: usize, _place: Place) {}
//!     fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
//!         let global = (cx.step + 1) % self.h == 0;
//!         list.push(if global { Exchange::everyone(cx) } else { Exchange::neighbours(cx) });
//!     }
//!     fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
//!         for ((out, x), g) in out.iter_mut().zip(local.x).zip(local.g) {
//!             *out = T::from_f64(x.to_f64() - cx.lr * g.to_f64());
//!         }
//!     }
//!     fn absorb(&mut self, _cx: &Cx, _at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
//!         if let [mean] = means {
//!             local.x.copy_from_slice(mean.values);
//!         }
//!     }
//!     fn state(&mut self, _visit: &mut dyn FnMut(&str, &mut Vec<T>)) {}
//! }
//!
//! // Four ranks in one thread, f(x) = (x − rank)²/2 on each: the mean of the minima is 1.5.
//! use gaggle_optim::{Decentralised, testing::{DenseMixer, lockstep}};
//! let ring = |_t, i: usize, j: usize| if (i + 4 - j) % 4 == 2 { 0.0 } else { 1.0 / 3.0 };
//! let mut ranks: Vec<_> = DenseMixer::<f64>::world(4, ring)
//!     .into_iter()
//!     .map(|mixer| Decentralised::unchecked(Box::new(GossipPga { h: 2 }), Box::new(mixer), 1))
//!     .collect();
//! let mut x = vec![vec![0.0]; 4];
//! for _ in 0..100 {
//!     lockstep(&mut ranks, 0.2, &mut x, |r, x, g| g[0] = x[0] - r as f64)?;
//! }
//! assert!(x.iter().all(|x| (x[0] - 1.5).abs() < 1e-9));
//! # Ok::<(), gaggle_core::Error>(())
//! ```
#![forbid(unsafe_code)]

mod allreduce;
mod arith;
mod bmuf;
mod bucketed;
mod catalogue;
mod choco;
mod clip;
mod complex;
mod compress;
mod config;
mod course;
mod d2;
mod dadam;
mod damsgrad;
mod decentlam;
mod diffusion;
mod diloco;
mod driver;
mod error;
mod every;
mod extra;
mod gossip_pga;
mod hessenberg;
mod krylov;
mod local;
mod local_sgd;
mod lookahead;
mod momentum_tracking;
mod noloco;
mod one_bit_adam;
mod overlap_push;
mod pace;
mod packed;
mod push_diging;
mod push_sum;
mod quasi_global;
mod recursion;
mod relay;
mod schedule;
mod slowmo;
mod stability;
mod state;
mod streaming;
pub mod testing;
mod tracking;
#[doc(hidden)]
pub mod vectors;
mod ying;
mod yu;

pub use allreduce::AllReduce;
pub use bmuf::{Bmuf, BmufConfig};
pub use bucketed::Bucketed;
pub use catalogue::{CATALOGUE, Entry, NAMES, rule_by_name};
pub use choco::{Choco, ChocoConfig, ChocoOrder};
pub use clip::{Clip, Clipped};
pub use compress::Compressor;
pub use config::RuleConfig;
pub use d2::{Bar, D2};
pub use dadam::Dadam;
pub use damsgrad::DamsGrad;
pub use decentlam::DecentLam;
pub use diffusion::{Diffusion, Order};
pub use diloco::{DiLoCo, DiLoCoConfig, OuterSgd};
pub use driver::Decentralised;
pub use error::ConfigError;
pub use every::Every;
pub use extra::Extra;
pub use gossip_pga::GossipPga;
pub use local::{
    Adagrad, AdagradConfig, AdamW, AdamWConfig, Ema, Lion, LionConfig, LocalKind, LocalRule,
    RmsProp, RmsPropConfig, Sgd, SgdConfig,
};
pub use local_sgd::LocalSgd;
pub use lookahead::Lookahead;
pub use momentum_tracking::MomentumTracking;
pub use noloco::{NoLoCo, NoLoCoConfig};
pub use one_bit_adam::{OneBitAdam, OneBitAdamConfig};
pub use overlap_push::OverlapPushSum;
pub use pace::Pace;
pub use push_diging::PushDiging;
pub use push_sum::PushSum;
pub use quasi_global::{QuasiGlobal, QuasiGlobalConfig};
pub use relay::{Fill, RelaySgd};
pub use schedule::{Decay, Schedule};
pub use slowmo::{SlowMo, SlowMoConfig};
pub use state::{State, StateError};
pub use streaming::{StreamingConfig, StreamingDiLoCo};
pub use tracking::{GradientTracking, Tracking};
pub use ying::DmSgdYing;
pub use yu::DmSgdYu;

/// The seam, so that a method of your own needs this crate alone.
pub use gaggle_core::{
    At, Codec, Cx, Draw, Error, Exchange, Float, Local, MixedMean, Mixer, MixingFacts, Modes,
    Place, Rank, Rule, SparseMatrix, Stability, Unstable, With,
};
