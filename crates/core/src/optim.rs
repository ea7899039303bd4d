//! The seams of optimizers: a pure update rule, and the mixer that a driver uses to exchange what the rule lists.

use crate::{Codec, Error, Float, MixingFacts, Rank};
use std::ops::Range;

/// With whom something is exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum With {
    /// This round's neighbours, with the topology's weights.
    Neighbours,
    /// All members, plain mean.
    Everyone,
}

/// A point in the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum At {
    /// Before the forward pass.
    BeforeForward,
    /// When the gradient is complete.
    AfterGradient,
}

/// What is exchanged in a step: when the message is known, and when its mean is needed. Overlap is the driver's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exchange {
    /// Number of the message within the step, from 0.
    pub slot: usize,
    /// With whom.
    pub with: With,
    /// When it can be emitted.
    pub known: At,
    /// When it must have come.
    pub due: At,
    /// What is on the wire.
    pub codec: Codec,
}

/// The step's number, from 0, and its step size.
#[derive(Clone, Copy, Debug)]
pub struct Cx {
    /// Steps done before this one.
    pub step: u64,
    /// γ.
    pub lr: f64,
}

/// One span (a bucket, or all) of this rank's values.
#[derive(Debug)]
pub struct Local<'a, T> {
    /// Which elements of the whole vector these are.
    pub at: Range<usize>,
    /// Parameters, `at.len()` elements.
    pub x: &'a mut [T],
    /// Gradient, `at.len()` elements; empty before it exists.
    pub g: &'a [T],
}

/// A mean that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Mean<'a, T> {
    /// As many elements as were emitted.
    pub values: &'a [T],
    /// 1 except under push-sum, where `values / weight` is the unbiased one.
    pub weight: f64,
}

/// A rule and a topology that do not go together: what would happen, and what to use instead.
#[derive(Clone, Debug, thiserror::Error)]
#[error("unstable: {limit}; {instead}")]
pub struct Unstable {
    /// The limit that is exceeded.
    pub limit: String,
    /// What works.
    pub instead: String,
}

/// An update rule: pure, no waiting, no network. Object-safe per element type.
///
/// Per step a driver calls, for each point in [`At`] order and for each span: `emit` for every exchange known at that point, then `absorb` with the means that are due there (also when none is).
pub trait Rule<T: Float>: Send {
    /// The name that users type: `dmsgd`.
    fn name(&self) -> &str;
    /// Once, before the first step: `n` elements in all.
    fn init(&mut self, n: usize);
    /// What is exchanged in this step; the same on every rank.
    fn exchanges(&self, cx: &Cx) -> &[Exchange];
    /// Writes the message of `slot` into `out` (as long as `local.x`).
    fn emit(&mut self, cx: &Cx, slot: usize, local: Local<'_, T>, out: &mut [T]);
    /// Updates `local.x` with the means that are due at `at`, in the order of `exchanges`.
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[Mean<'_, T>]);
    /// Called when a rule meets a topology and a step size.
    ///
    /// # Errors
    /// The pair diverges.
    fn check(&self, _facts: &MixingFacts, _lr: f64) -> Result<(), Unstable> {
        Ok(())
    }
    /// Shows every vector of state by name, for saving and loading.
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>));
}

/// What a driver asks of the network. The memory in flight belongs to the mixer: no lifetime crosses a step.
///
/// Per slot and step: `outbox`, `start`, `finish`, in this order.
pub trait Mixer<T: Float>: Send {
    /// This rank's number.
    fn rank(&self) -> Rank;
    /// How many ranks.
    fn world(&self) -> usize;
    /// Room of `n` elements for the message of `slot`; its content is unspecified.
    fn outbox(&mut self, slot: usize, n: usize) -> &mut [T];
    /// Sends the outbox of the exchange's slot for round `t`. Does not wait.
    ///
    /// # Errors
    /// A peer or the network; nothing is in flight for this slot.
    fn start(&mut self, exchange: &Exchange, t: u64) -> Result<(), Error>;
    /// Waits for the mean of `slot`. Valid until the next `outbox` or `start` of the slot.
    ///
    /// # Errors
    /// A peer or the network, with the culprit; the slot may be started again.
    fn finish(&mut self, slot: usize) -> Result<(), Error>;
    /// The mean of `slot`, after `finish`.
    fn mean(&self, slot: usize) -> Mean<'_, T>;
}
