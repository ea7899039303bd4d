//! QG-DmSGD: momentum that follows how the averaged model moves, not the local gradient.

use crate::{
    arith::zeros,
    error::{ConfigError, below_one, carries, not_negative},
    recursion::Recursion,
    stability::check_gossip,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// Below this step size (x − x⁺)/γ is rounding and averaging, no direction: the momentum rests.
pub(crate) const SMALLEST_LR: f64 = 1e-8;

/// Settings of [`QuasiGlobal`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuasiGlobalConfig {
    /// β: how much of the momentum enters a step, from 0 to below 1.
    pub beta: f64,
    /// μ: how long the momentum remembers, from 0 to below 1.
    pub mu: f64,
    /// Steps with g + βh in place of h.
    pub nesterov: bool,
    /// λ: λx is added to the gradient.
    pub weight_decay: f64,
    /// What is on the wire.
    pub codec: Codec,
}

impl Default for QuasiGlobalConfig {
    fn default() -> Self {
        QuasiGlobalConfig {
            beta: 0.9,
            mu: 0.9,
            nesterov: false,
            weight_decay: 0.0,
            codec: Codec::None,
        }
    }
}

/// h = βm̂ + g; x⁺ = W(x − γh), with Nesterov W(x − γ(g + βh)); m̂⁺ = μm̂ + (1 − μ)(x − x⁺)/γ.
///
/// One message of n elements per step; state m̂ and the x of the last communication, 2n elements. Its limit has the bias of plain DSGD-ATC at γ for every β (at γ(1 + β) with Nesterov), where local momentum has that of γ/(1 − β): the better choice when ranks hold different data.
/// With local steps in between, m̂ follows the average progress per step since the last communication.
/// We differ from the authors' code for γ below 1e-8: m̂ rests there, where they divide by 1e-8.
/// Source: Lin et al. 2021, "Quasi-global momentum", Algorithm 1; defaults β = μ = 0.9 as released.
pub struct QuasiGlobal<T> {
    config: QuasiGlobalConfig,
    m: Vec<T>,
    /// x at the last communication, where there are local steps.
    start: Vec<T>,
}

impl<T: Float> QuasiGlobal<T> {
    /// The rule with these settings.
    ///
    /// # Errors
    /// A setting out of its range, by name, or a codec that does not carry `T`.
    pub fn new(config: QuasiGlobalConfig) -> Result<Self, ConfigError> {
        below_one("momentum", config.beta)?;
        below_one("mu", config.mu)?;
        not_negative("weight_decay", config.weight_decay)?;
        carries::<T>(config.codec)?;
        Ok(QuasiGlobal {
            config,
            m: Vec::new(),
            start: Vec::new(),
        })
    }

    /// How far an element moves before averaging.
    fn delta(&self, cx: &Cx, k: usize, x: f64, g: f64) -> f64 {
        let QuasiGlobalConfig { beta, nesterov, .. } = self.config;
        let g = g + self.config.weight_decay * x;
        let h = beta * self.m[k].to_f64() + g;
        cx.lr * if nesterov { g + beta * h } else { h }
    }
}

impl<T: Float> Rule<T> for QuasiGlobal<T> {
    fn name(&self) -> &str {
        match self.config.nesterov {
            true => "qg-dmsgd-n",
            false => "qg-dmsgd",
        }
    }
    fn init(&mut self, n: usize, _place: Place) {
        (self.m, self.start) = (zeros(n), zeros(n));
    }
    fn period(&self) -> Option<u64> {
        Some(1)
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::neighbours(cx).coded(self.config.codec));
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        for (k, ((out, x), g)) in local.at.zip(out.iter_mut().zip(local.x).zip(local.g)) {
            let x = x.to_f64();
            *out = T::from_f64(x - self.delta(cx, k, x, g.to_f64()));
        }
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        if at != At::AfterGradient {
            return;
        }
        let Some(mean) = means.first() else {
            if cx.since == 0 {
                self.start[local.at.clone()].copy_from_slice(local.x);
            }
            // A step without a message: the momentum follows averaged models only, and there is none.
            for (k, (x, g)) in local.at.zip(local.x.iter_mut().zip(local.g)) {
                let at = x.to_f64();
                *x = T::from_f64(at - self.delta(cx, k, at, g.to_f64()));
            }
            return;
        };
        let mu = self.config.mu;
        if cx.since > 0 {
            // What the local steps before have moved counts too.
            local.x.copy_from_slice(&self.start[local.at.clone()]);
        }
        let steps = (cx.since + 1) as f64;
        for ((m, x), new) in self.m[local.at].iter_mut().zip(local.x).zip(mean.values) {
            if cx.lr >= SMALLEST_LR {
                let moved = (x.to_f64() - new.to_f64()) / (steps * cx.lr);
                *m = T::from_f64(mu * m.to_f64() + (1.0 - mu) * moved);
            }
            *x = *new;
        }
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_gossip(facts, lr)?;
        // (x, γm̂) ← (w(x − bγm̂), (1 − μ)(x − x⁺) + μγm̂), with b = β, or β² for Nesterov's step.
        let QuasiGlobalConfig {
            beta, mu, nesterov, ..
        } = self.config;
        let b = if nesterov { beta * beta } else { beta };
        Recursion::new(
            [[0.0, 0.0], [1.0 - mu, mu]],
            [[1.0, -b], [mu - 1.0, (1.0 - mu) * b]],
        )
        .check(self.name(), facts, "a smaller momentum")
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("quasi-global momentum", &mut self.m);
        visit("start", &mut self.start);
    }
}
