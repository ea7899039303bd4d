//! Decentralised AMSGrad: the second moment is averaged too, so that all ranks scale alike.

use crate::{
    AdamWConfig,
    arith::zeros,
    error::{ConfigError, below_one, carries, not_negative, positive},
    stability::check_gossip,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// m, v as Adam's; v̂⁺ = max(v̂, v); u = max(Wũ, ε); x⁺ = Wx − γm/√u; ũ⁺ = Wũ − v̂ + v̂⁺, with v̂ = ũ = ε at the start.
///
/// The first step goes by √ε, since ũ is one step behind: take ε near the squares of the gradients, not near 0.
/// ũ tracks the mean of v̂ over the ranks, so that all come to scale alike. One message of 2n elements per step, under way while the gradient is computed; state m, v, v̂ and ũ, 4n elements. Decay is decoupled: x shrinks by γλx.
/// Source: Chen et al. 2021, "On the convergence of decentralized adaptive gradient methods", Algorithm 3, re-read from summaries. ε is 1e-6 there.
pub struct DamsGrad<T> {
    adam: AdamWConfig,
    codec: Codec,
    m: Vec<T>,
    v: Vec<T>,
    v_hat: Vec<T>,
    u: Vec<T>,
}

impl<T: Float> DamsGrad<T> {
    /// The rule with these settings.
    ///
    /// # Errors
    /// A setting out of its range, by name, or a codec that does not carry `T`.
    pub fn new(adam: AdamWConfig, codec: Codec) -> Result<Self, ConfigError> {
        below_one("beta1", adam.beta1)?;
        below_one("beta2", adam.beta2)?;
        positive("eps", adam.eps)?;
        not_negative("weight_decay", adam.weight_decay)?;
        carries::<T>(codec)?;
        Ok(DamsGrad {
            adam,
            codec,
            m: Vec::new(),
            v: Vec::new(),
            v_hat: Vec::new(),
            u: Vec::new(),
        })
    }
}

impl<T: Float> Rule<T> for DamsGrad<T> {
    fn name(&self) -> &str {
        "damsgrad"
    }
    fn init(&mut self, n: usize, _place: Place) {
        let eps = T::from_f64(self.adam.eps);
        (self.m, self.v) = (zeros(n), zeros(n));
        (self.v_hat, self.u) = (vec![eps; n], vec![eps; n]);
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        let early = Exchange::neighbours(cx).between(At::BeforeForward, At::AfterGradient);
        list.push(early.width(2).coded(self.codec));
    }
    fn emit(&mut self, _cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        let (x, u) = out.split_at_mut(local.at.len());
        x.copy_from_slice(local.x);
        u.copy_from_slice(&self.u[local.at]);
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        let (At::AfterGradient, Some(mean)) = (at, means.first()) else {
            return;
        };
        let (mixed_x, mixed_u) = mean.values.split_at(local.at.len());
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
            let (v_hat, u) = (old.max(v), mixed_u[j].to_f64());
            (self.m[k], self.v[k]) = (T::from_f64(m), T::from_f64(v));
            (self.v_hat[k], self.u[k]) = (T::from_f64(v_hat), T::from_f64(u - old + v_hat));
            let step = weight_decay * x + m / u.max(eps).sqrt();
            local.x[j] = T::from_f64(mixed_x[j].to_f64() - cx.lr * step);
        }
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_gossip(facts, lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("mean of gradients", &mut self.m);
        visit("mean of squares", &mut self.v);
        visit("largest mean of squares", &mut self.v_hat);
        visit("shared mean of squares", &mut self.u);
    }
}
