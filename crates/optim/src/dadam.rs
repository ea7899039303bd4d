//! Decentralised Adam of Nazari et al.: a second moment that is slow to fall.

use crate::{
    AdamWConfig,
    arith::zeros,
    error::{ConfigError, below_one, carries, not_negative, positive},
    stability::check_gossip,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// m ← β₁m + (1 − β₁)g; v ← β₂v + (1 − β₂)g²; v̂ ← β₃v̂ + (1 − β₃)max(v̂, v); x⁺ = Wx − γm/(√v̂ + ε).
///
/// No bias correction. Not consistent where ranks hold different data: each scales by its own v̂ ([`DamsGrad`](crate::DamsGrad) shares it). One message of n elements per step, under way while the gradient is computed; state m, v and v̂, 3n elements. Decay is decoupled: x shrinks by γλx.
/// Source: Nazari et al. 2019, "DADAM", Algorithm 1, re-read from summaries: compare with `dadamw-atc` before you rely on it. Default β₃ = 0.9.
pub struct Dadam<T> {
    adam: AdamWConfig,
    beta3: f64,
    codec: Codec,
    m: Vec<T>,
    v: Vec<T>,
    v_hat: Vec<T>,
}

impl<T: Float> Dadam<T> {
    /// The rule with these settings; β₃ from 0 to below 1.
    ///
    /// # Errors
    /// A setting out of its range, by name, or a codec that does not carry `T`.
    pub fn new(adam: AdamWConfig, beta3: f64, codec: Codec) -> Result<Self, ConfigError> {
        below_one("beta1", adam.beta1)?;
        below_one("beta2", adam.beta2)?;
        below_one("beta3", beta3)?;
        positive("eps", adam.eps)?;
        not_negative("weight_decay", adam.weight_decay)?;
        carries::<T>(codec)?;
        Ok(Dadam {
            adam,
            beta3,
            codec,
            m: Vec::new(),
            v: Vec::new(),
            v_hat: Vec::new(),
        })
    }
}

impl<T: Float> Rule<T> for Dadam<T> {
    fn name(&self) -> &str {
        "dadam"
    }
    fn init(&mut self, n: usize, _place: Place) {
        (self.m, self.v, self.v_hat) = (zeros(n), zeros(n), zeros(n));
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        let early = Exchange::neighbours(cx).between(At::BeforeForward, At::AfterGradient);
        list.push(early.coded(self.codec));
    }
    fn emit(&mut self, _cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        out.copy_from_slice(local.x);
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        let (At::AfterGradient, Some(mean)) = (at, means.first()) else {
            return;
        };
        let AdamWConfig {
            beta1,
            beta2,
            eps,
            weight_decay,
        } = self.adam;
        for (j, k) in local.at.enumerate() {
            let (x, g) = (local.x[j].to_f64(), local.g[j].to_f64());
            let m = beta1 * self.m[k].to_f64() + (1.0 - beta1) * g;
            let v = beta2 * self.v[k].to_f64() + (1.0 - beta2) * g * g;
            let old = self.v_hat[k].to_f64();
            let v_hat = self.beta3 * old + (1.0 - self.beta3) * old.max(v);
            (self.m[k], self.v[k]) = (T::from_f64(m), T::from_f64(v));
            self.v_hat[k] = T::from_f64(v_hat);
            let step = weight_decay * x + m / (v_hat.sqrt() + eps);
            local.x[j] = T::from_f64(mean.values[j].to_f64() - cx.lr * step);
        }
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_gossip(facts, lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("mean of gradients", &mut self.m);
        visit("mean of squares", &mut self.v);
        visit("slow mean of squares", &mut self.v_hat);
    }
}
