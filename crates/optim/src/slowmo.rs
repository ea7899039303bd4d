//! SlowMo: momentum of what the ranks moved together between two meetings.

use crate::{
    LocalRule,
    arith::{update, zeros},
    error::{ConfigError, at_least_one, below_one, carries, positive},
    quasi_global::SMALLEST_LR,
    stability::check_lr,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// Settings of [`SlowMo`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowMoConfig {
    /// τ: steps from one meeting to the next.
    pub period: u64,
    /// α: how far the slow step goes, above 0.
    pub alpha: f64,
    /// β of the slow momentum, from 0 to below 1.
    pub beta: f64,
    /// What is on the wire.
    pub codec: Codec,
}

impl Default for SlowMoConfig {
    fn default() -> Self {
        SlowMoConfig {
            period: 12,
            alpha: 1.0,
            beta: 0.5,
            codec: Codec::None,
        }
    }
}

/// After τ local steps from x₀ the mean x_τ is taken over everybody: u ← βu + (x₀ − x_τ)/γ; x₀ ← x₀ − αγu, where all go on.
///
/// One message of n elements per τ steps; state x₀ and u, 2n elements, and the local rule's, which goes on from one period to the next. With β = 0 and α = 1 it is local SGD; with α = 1 it is [`Bmuf`](crate::Bmuf) with η = β and ζ = 1.
/// Source: Wang et al. 2020, "SlowMo", Algorithm 1, over local steps; below γ = 1e-8 u rests.
pub struct SlowMo<T> {
    config: SlowMoConfig,
    local: Box<dyn LocalRule<T>>,
    start: Vec<T>,
    u: Vec<T>,
}

impl<T: Float> SlowMo<T> {
    /// The rule around the step `local`.
    ///
    /// # Errors
    /// A setting out of its range, by name, or a codec that does not carry `T`.
    pub fn new(local: Box<dyn LocalRule<T>>, config: SlowMoConfig) -> Result<Self, ConfigError> {
        at_least_one("period", config.period)?;
        positive("alpha", config.alpha)?;
        below_one("outer_momentum", config.beta)?;
        carries::<T>(config.codec)?;
        Ok(SlowMo {
            config,
            local,
            start: Vec::new(),
            u: Vec::new(),
        })
    }
}

impl<T: Float> Rule<T> for SlowMo<T> {
    fn name(&self) -> &str {
        "slowmo"
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.local.init(n);
        (self.start, self.u) = (zeros(n), zeros(n));
    }
    fn period(&self) -> Option<u64> {
        Some(self.config.period)
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::everyone(cx).coded(self.config.codec));
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        self.local.step_into(cx, local.at, local.x, local.g, out);
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        if at == At::BeforeForward {
            if cx.step == 0 {
                self.start[local.at].copy_from_slice(local.x);
            }
            return;
        }
        let Some(mean) = means.first() else {
            self.local.step(cx, local);
            return;
        };
        let (start, u) = (&mut self.start[local.at.clone()], &mut self.u[local.at]);
        let SlowMoConfig { alpha, beta, .. } = self.config;
        if cx.lr < SMALLEST_LR {
            start.copy_from_slice(mean.values);
        } else {
            update(u, |k, u| {
                beta * u + (start[k].to_f64() - mean.values[k].to_f64()) / cx.lr
            });
            update(start, |k, x| x - alpha * cx.lr * u[k].to_f64());
        }
        local.x.copy_from_slice(start);
    }
    fn check(&self, _facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_lr(lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("start", &mut self.start);
        visit("slow momentum", &mut self.u);
        self.local.state(visit);
    }
}
