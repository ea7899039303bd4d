//! The classical method: everybody's gradients are averaged, then everybody takes the same step.

use crate::{
    LocalRule,
    error::{ConfigError, carries},
    stability::check_lr,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// g ← mean of all gradients, then a local step: x ← x − γ·mean_j g_j(x) with plain SGD.
///
/// One message of n elements per step; parameters that are equal at the start stay equal bit for bit. With a 16-bit codec the gradients travel rounded.
pub struct AllReduce<T> {
    name: String,
    local: Box<dyn LocalRule<T>>,
    codec: Codec,
}

impl<T: Float> AllReduce<T> {
    /// Averages gradients for the step `local`.
    ///
    /// # Errors
    /// `codec` does not carry `T`.
    pub fn new(local: Box<dyn LocalRule<T>>, codec: Codec) -> Result<Self, ConfigError> {
        carries::<T>(codec)?;
        Ok(AllReduce {
            name: format!("allreduce-{}", local.name()),
            local,
            codec,
        })
    }
}

impl<T: Float> Rule<T> for AllReduce<T> {
    fn name(&self) -> &str {
        &self.name
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.local.init(n);
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::everyone(cx).coded(self.codec));
    }
    fn emit(&mut self, _cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        out.copy_from_slice(local.g);
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        if at == At::AfterGradient {
            let g = means.first().map_or(local.g, |mean| mean.values);
            self.local.step(cx, Local { g, ..local });
        }
    }
    fn check(&self, _facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_lr(lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        self.local.state(visit);
    }
}
