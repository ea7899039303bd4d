//! DecentLaM: momentum of a gradient that has the averaging in it.

use crate::{
    arith::{fill, zeros},
    error::{ConfigError, below_one, carries, not_negative},
    quasi_global::SMALLEST_LR,
    recursion::Recursion,
    stability::check_gossip,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// g̃ = (x − W(x − γg))/γ; m⁺ = βm + g̃; x⁺ = x − γm⁺.
///
/// One message of n elements per step; state m, n elements. Its limit has the bias of plain DSGD-ATC at γ for every β: made for large batches on symmetric weights. On directed graphs it is stable for small β only, which [`Rule::check`] tells.
/// Source: Yuan et al. 2021, "DecentLaM", Algorithm 2; as in the code released with Momentum Tracking.
/// Below γ = 1e-8 the momentum rests, since g̃ is rounding there.
pub struct DecentLam<T> {
    beta: f64,
    weight_decay: f64,
    codec: Codec,
    m: Vec<T>,
}

impl<T: Float> DecentLam<T> {
    /// The rule with momentum β, from 0 to below 1, and λx added to the gradient.
    ///
    /// # Errors
    /// A setting out of its range, by name, or a codec that does not carry `T`.
    pub fn new(beta: f64, weight_decay: f64, codec: Codec) -> Result<Self, ConfigError> {
        below_one("momentum", beta)?;
        not_negative("weight_decay", weight_decay)?;
        carries::<T>(codec)?;
        Ok(DecentLam {
            beta,
            weight_decay,
            codec,
            m: Vec::new(),
        })
    }
}

impl<T: Float> Rule<T> for DecentLam<T> {
    fn name(&self) -> &str {
        "decentlam"
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.m = zeros(n);
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::neighbours(cx).coded(self.codec));
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        fill(out, |k| {
            let x = local.x[k].to_f64();
            x - cx.lr * (local.g[k].to_f64() + self.weight_decay * x)
        });
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        let (At::AfterGradient, Some(mean)) = (at, means.first()) else {
            return;
        };
        for ((m, x), mean) in self.m[local.at].iter_mut().zip(local.x).zip(mean.values) {
            let (old, moved) = (m.to_f64(), x.to_f64() - mean.to_f64());
            if cx.lr >= SMALLEST_LR {
                *m = T::from_f64(self.beta * old + moved / cx.lr);
            }
            // x − γm⁺, without dividing by γ and multiplying again.
            *x = T::from_f64(mean.to_f64() - cx.lr * self.beta * old);
        }
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_gossip(facts, lr)?;
        // (x, γm) ← (wx − βγm, (1 − w)x + βγm): z² − (β + w)z + β.
        let b = self.beta;
        Recursion::new([[0.0, -b], [1.0, b]], [[1.0, 0.0], [-1.0, 0.0]]).check(
            self.name(),
            facts,
            "a smaller momentum, a topology with symmetric weights, or qg-dmsgd",
        )
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("momentum", &mut self.m);
    }
}
