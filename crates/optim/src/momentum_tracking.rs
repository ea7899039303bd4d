//! Momentum Tracking: gradient tracking on the momentum.

use crate::{
    arith::{fill, update, zeros},
    error::{ConfigError, below_one, carries, not_negative},
    stability::check_gossip,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// u⁺ = βu + g; x⁺ = Wx − γ(u⁺ − c); c⁺ = W(c − u⁺) + u⁺, u = c = 0 at the start: DIGing on the momentum.
///
/// Exact whatever the ranks' data, and its rate does not depend on how they differ. One message of 2n elements per step; state u and c, 2n elements. With β = 0 it is DIGing.
/// Source: Takezawa et al. 2023, "Momentum Tracking", Algorithm 1; c and u start at 0, where the released code starts them from an all-reduce.
pub struct MomentumTracking<T> {
    beta: f64,
    weight_decay: f64,
    codec: Codec,
    u: Vec<T>,
    c: Vec<T>,
}

impl<T: Float> MomentumTracking<T> {
    /// The rule with momentum β, from 0 to below 1, and λx added to the gradient.
    ///
    /// # Errors
    /// A setting out of its range, by name, or a codec that does not carry `T`.
    pub fn new(beta: f64, weight_decay: f64, codec: Codec) -> Result<Self, ConfigError> {
        below_one("momentum", beta)?;
        not_negative("weight_decay", weight_decay)?;
        carries::<T>(codec)?;
        Ok(MomentumTracking {
            beta,
            weight_decay,
            codec,
            u: Vec::new(),
            c: Vec::new(),
        })
    }
}

impl<T: Float> Rule<T> for MomentumTracking<T> {
    fn name(&self) -> &str {
        "momentum-tracking"
    }
    fn init(&mut self, n: usize, _place: Place) {
        (self.u, self.c) = (zeros(n), zeros(n));
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::neighbours(cx).width(2).coded(self.codec));
    }
    fn emit(&mut self, _cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        let (x, c) = out.split_at_mut(local.at.len());
        x.copy_from_slice(local.x);
        let (own, u) = (&self.c[local.at.clone()], &mut self.u[local.at]);
        update(u, |k, u| {
            self.beta * u + local.g[k].to_f64() + self.weight_decay * local.x[k].to_f64()
        });
        fill(c, |k| own[k].to_f64() - u[k].to_f64());
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        let (At::AfterGradient, Some(mean)) = (at, means.first()) else {
            return;
        };
        let (x, mixed) = mean.values.split_at(local.at.len());
        let (u, c) = (&self.u[local.at.clone()], &mut self.c[local.at]);
        fill(local.x, |k| {
            x[k].to_f64() - cx.lr * (u[k].to_f64() - c[k].to_f64())
        });
        fill(c, |k| mixed[k].to_f64() + u[k].to_f64());
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_gossip(facts, lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("momentum", &mut self.u);
        visit("correction", &mut self.c);
    }
}
