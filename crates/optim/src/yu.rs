//! DmSGD of Yu, Jin and Yang: momentum and parameters are averaged together.

use crate::{
    arith::{fill, update, zeros},
    error::{ConfigError, below_one, carries, not_negative},
    recursion::Recursion,
    stability::check_gossip,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// h = βm + g; x⁺ = W(x − γh); m⁺ = Wh.
///
/// One message of 2n elements per communication; state m, n elements. A smaller bias than local momentum at twice the bytes.
/// Source: Yu, Jin and Yang 2019 (PR-SGD with momentum), over neighbours in place of everybody.
pub struct DmSgdYu<T> {
    beta: f64,
    weight_decay: f64,
    codec: Codec,
    m: Vec<T>,
}

impl<T: Float> DmSgdYu<T> {
    /// The rule with momentum β, from 0 to below 1, and λx added to the gradient.
    ///
    /// # Errors
    /// A setting out of its range, by name, or a codec that does not carry `T`.
    pub fn new(beta: f64, weight_decay: f64, codec: Codec) -> Result<Self, ConfigError> {
        below_one("momentum", beta)?;
        not_negative("weight_decay", weight_decay)?;
        carries::<T>(codec)?;
        Ok(DmSgdYu {
            beta,
            weight_decay,
            codec,
            m: Vec::new(),
        })
    }
}

impl<T: Float> Rule<T> for DmSgdYu<T> {
    fn name(&self) -> &str {
        "dmsgd-yu"
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.m = zeros(n);
    }
    fn period(&self) -> Option<u64> {
        Some(1)
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::neighbours(cx).width(2).coded(self.codec));
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        let n = local.at.len();
        let (out_x, out_m) = out.split_at_mut(n);
        let (x, g, m) = (local.x, local.g, &self.m[local.at]);
        fill(out_m, |k| {
            self.beta * m[k].to_f64() + g[k].to_f64() + self.weight_decay * x[k].to_f64()
        });
        fill(out_x, |k| x[k].to_f64() - cx.lr * out_m[k].to_f64());
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        if at != At::AfterGradient {
            return;
        }
        let n = local.at.len();
        let m = &mut self.m[local.at];
        if let Some(mean) = means.first() {
            local.x.copy_from_slice(&mean.values[..n]);
            m.copy_from_slice(&mean.values[n..]);
            return;
        }
        // A local step.
        update(m, |k, m| {
            self.beta * m + local.g[k].to_f64() + self.weight_decay * local.x[k].to_f64()
        });
        update(local.x, |k, x| x - cx.lr * m[k].to_f64());
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_gossip(facts, lr)?;
        // (x, m) ← (w(x − βm), wβm) where gradients vanish.
        let b = self.beta;
        Recursion::new([[0.0, 0.0], [0.0, 0.0]], [[1.0, -b], [0.0, b]]).check(
            self.name(),
            facts,
            "dmsgd",
        )
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("momentum", &mut self.m);
    }
}
