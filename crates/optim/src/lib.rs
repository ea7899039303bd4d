//! Update rules for training on many ranks, and the driver that runs them.
//!
//! A rule is pure: it says what it exchanges, writes its message, and takes in the mean that came back ([`gaggle_core::Rule`]); it never waits and never sees the network.
//! Here are [`AllReduce`] (gradients averaged over everybody, then a local step), [`Diffusion`] (DSGD and DmSGD in the orders ATC, AWC and CTA around any local step) and [`QuasiGlobal`] (QG-DmSGD); the local steps are [`Sgd`] and [`AdamW`] with PyTorch's documented arithmetic.
//! [`rule_by_name`] builds them from the name that a user types and a [`RuleConfig`].
//! [`Decentralised`] drives a rule over a [`gaggle_core::Mixer`]; [`testing`] has a mixer that works by a dense matrix in one thread, for tests and for trying out methods without a network.
//!
//! All arithmetic is in f64; parameters and state are kept in the element type.
//!
//! # Your own method in thirty lines
//!
//! Gossip with periodic global averaging: neighbours in most steps, everybody in every `h`-th.
//!
//! ```
//! use gaggle_core::{At, Codec, Cx, Exchange, Float, Local, MixedMean, Rule, With};
//!
//! struct GossipPga {
//!     h: u64,
//!     gossip: [Exchange; 1],
//!     global: [Exchange; 1],
//! }
//!
//! impl GossipPga {
//!     fn new(h: u64) -> Self {
//!         let after = |with| Exchange {
//!             slot: 0,
//!             with,
//!             known: At::AfterGradient,
//!             due: At::AfterGradient,
//!             codec: Codec::None,
//!         };
//!         GossipPga { h, gossip: [after(With::Neighbours)], global: [after(With::Everyone)] }
//!     }
//! }
//!
//! impl<T: Float> Rule<T> for GossipPga {
//!     fn name(&self) -> &str {
//!         "gossip-pga"
//!     }
//!     fn init(&mut self, _n: usize) {}
//!     fn exchanges(&self, cx: &Cx) -> &[Exchange] {
//!         if (cx.step + 1) % self.h == 0 { &self.global } else { &self.gossip }
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
//! use gaggle_optim::{Decentralised, testing::DenseMixer};
//! let ring = |_t, i: usize, j: usize| if (i + 4 - j) % 4 == 2 { 0.0 } else { 1.0 / 3.0 };
//! let mut ranks: Vec<_> = DenseMixer::<f64>::world(4, ring)
//!     .into_iter()
//!     .map(|mixer| Decentralised::new(Box::new(GossipPga::new(2)), Box::new(mixer), 1))
//!     .collect();
//! let mut x = vec![[0.0_f64]; 4];
//! for _ in 0..100 {
//!     let g: Vec<_> = x.iter().enumerate().map(|(r, x)| [x[0] - r as f64]).collect();
//!     for (r, rank) in ranks.iter_mut().enumerate() {
//!         rank.begin(At::AfterGradient, 0.2, &mut x[r], &g[r])?;
//!     }
//!     for (r, rank) in ranks.iter_mut().enumerate() {
//!         rank.end(At::AfterGradient, &mut x[r], &g[r])?;
//!     }
//! }
//! assert!(x.iter().all(|x| (x[0] - 1.5).abs() < 1e-9));
//! # Ok::<(), gaggle_core::Error>(())
//! ```
#![forbid(unsafe_code)]

mod allreduce;
mod config;
mod diffusion;
mod driver;
mod local;
mod quasi_global;
mod stability;
pub mod testing;
#[doc(hidden)]
pub mod vectors;

pub use allreduce::AllReduce;
pub use config::{ConfigError, NAMES, RuleConfig, rule_by_name};
pub use diffusion::{Diffusion, Order};
pub use driver::Decentralised;
pub use local::{AdamW, AdamWConfig, LocalRule, Sgd, SgdConfig};
pub use quasi_global::{QuasiGlobal, QuasiGlobalConfig};
