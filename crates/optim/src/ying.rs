//! DmSGD as the exponential-graph paper writes it, in our reading.

use crate::{
    arith::{fill, zeros},
    error::{ConfigError, below_one, carries, not_negative},
    stability::check_gossip,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// m⁺ = W(βm + g); x⁺ = W(x − γm), where x moves by the old m.
///
/// **Uncertain**: this is how we read Ying et al. 2021, "Exponential graph is provably efficient", Algorithm 1, and the paper's text was not at hand; their released code is `dmsgd` instead. With β = 0 it is DSGD that lags by a step. Take `dmsgd-yu` unless you want to compare.
/// One message of 2n elements per step; state m, n elements.
pub struct DmSgdYing<T> {
    beta: f64,
    weight_decay: f64,
    codec: Codec,
    m: Vec<T>,
}

impl<T: Float> DmSgdYing<T> {
    /// The rule with momentum β, from 0 to below 1, and λx added to the gradient.
    ///
    /// # Errors
    /// A setting out of its range, by name, or a codec that does not carry `T`.
    pub fn new(beta: f64, weight_decay: f64, codec: Codec) -> Result<Self, ConfigError> {
        below_one("momentum", beta)?;
        not_negative("weight_decay", weight_decay)?;
        carries::<T>(codec)?;
        Ok(DmSgdYing {
            beta,
            weight_decay,
            codec,
            m: Vec::new(),
        })
    }
}

impl<T: Float> Rule<T> for DmSgdYing<T> {
    fn name(&self) -> &str {
        "dmsgd-ying"
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.m = zeros(n);
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::neighbours(cx).width(2).coded(self.codec));
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        let n = local.at.len();
        let (out_x, out_m) = out.split_at_mut(n);
        let (x, g, m) = (local.x, local.g, &self.m[local.at]);
        fill(out_x, |k| x[k].to_f64() - cx.lr * m[k].to_f64());
        fill(out_m, |k| {
            self.beta * m[k].to_f64() + g[k].to_f64() + self.weight_decay * x[k].to_f64()
        });
    }
    fn absorb(&mut self, _cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        let (At::AfterGradient, Some(mean)) = (at, means.first()) else {
            return;
        };
        let n = local.at.len();
        local.x.copy_from_slice(&mean.values[..n]);
        self.m[local.at].copy_from_slice(&mean.values[n..]);
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_gossip(facts, lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("momentum", &mut self.m);
    }
}
