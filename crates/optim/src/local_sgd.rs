//! Local SGD: every rank goes its own way, and now and then all meet.

use crate::{
    LocalRule,
    error::{ConfigError, at_least_one, carries},
    stability::check_lr,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// Local steps, the h-th of which ends in the mean over everybody: x ← J(x − d), d the local rule's step.
///
/// One message of n elements per h steps; the local rule's state stays at home. With ranks that hold different data the limit is off by O(γh·b).
/// Source: Stich 2019, "Local SGD converges fast and communicates little".
pub struct LocalSgd<T> {
    name: String,
    local: Box<dyn LocalRule<T>>,
    h: u64,
    codec: Codec,
}

impl<T: Float> LocalSgd<T> {
    /// The rule around the step `local`, meeting in every `h`-th. Named `local-sgd`, `local-adamw` and so on.
    ///
    /// # Errors
    /// `h` is 0, or `codec` does not carry `T`.
    pub fn new(local: Box<dyn LocalRule<T>>, h: u64, codec: Codec) -> Result<Self, ConfigError> {
        at_least_one("period", h)?;
        carries::<T>(codec)?;
        Ok(LocalSgd {
            name: format!("local-{}", local.name()),
            local,
            h,
            codec,
        })
    }
}

impl<T: Float> Rule<T> for LocalSgd<T> {
    fn name(&self) -> &str {
        &self.name
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.local.init(n);
    }
    fn period(&self) -> Option<u64> {
        Some(self.h)
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::everyone(cx).coded(self.codec));
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        self.local.step_into(cx, local.at, local.x, local.g, out);
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        match (at, means.first()) {
            (At::AfterGradient, Some(mean)) => local.x.copy_from_slice(mean.values),
            (At::AfterGradient, None) => self.local.step(cx, local),
            _ => {}
        }
    }
    fn check(&self, _facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_lr(lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        self.local.state(visit);
    }
}
