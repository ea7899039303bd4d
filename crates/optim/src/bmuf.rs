//! Blockwise model-update filtering: local steps, and momentum of what the mean of all moved.

use crate::{
    LocalRule,
    arith::{update, zeros},
    error::{ConfigError, at_least_one, below_one, carries, positive},
    stability::check_lr,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// Settings of [`Bmuf`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BmufConfig {
    /// τ: steps in a block.
    pub period: u64,
    /// η: momentum of the blocks, from 0 to below 1.
    pub eta: f64,
    /// ζ: how much of a block's move is taken, above 0.
    pub zeta: f64,
    /// Nesterov's form (NBM): the next block starts ahead, at x + ηΔ.
    pub nesterov: bool,
    /// What is on the wire.
    pub codec: Codec,
}

impl Default for BmufConfig {
    fn default() -> Self {
        BmufConfig {
            period: 12,
            eta: 0.5,
            zeta: 1.0,
            nesterov: false,
            codec: Codec::None,
        }
    }
}

/// After τ local steps from s: Δ ← ηΔ + ζ(x̄ − s); x ← x + Δ; the next block starts at s = x, with Nesterov at x + ηΔ.
///
/// One message of n elements per τ steps; state s, x and Δ, 3n elements, and the local rule's. With Nesterov the parameters that training sees are s; the filtered ones are the state `global`.
/// Source: Chen and Huo 2016, "Scalable training of deep learning machines by incremental block training", classical (CBM) and Nesterov (NBM) block momentum.
pub struct Bmuf<T> {
    config: BmufConfig,
    local: Box<dyn LocalRule<T>>,
    start: Vec<T>,
    global: Vec<T>,
    delta: Vec<T>,
}

impl<T: Float> Bmuf<T> {
    /// The rule around the step `local`.
    ///
    /// # Errors
    /// A setting out of its range, by name, or a codec that does not carry `T`.
    pub fn new(local: Box<dyn LocalRule<T>>, config: BmufConfig) -> Result<Self, ConfigError> {
        at_least_one("period", config.period)?;
        below_one("outer_momentum", config.eta)?;
        positive("outer_lr", config.zeta)?;
        carries::<T>(config.codec)?;
        Ok(Bmuf {
            config,
            local,
            start: Vec::new(),
            global: Vec::new(),
            delta: Vec::new(),
        })
    }
}

impl<T: Float> Rule<T> for Bmuf<T> {
    fn name(&self) -> &str {
        "bmuf"
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.local.init(n);
        (self.start, self.global, self.delta) = (zeros(n), zeros(n), zeros(n));
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
                self.start[local.at.clone()].copy_from_slice(local.x);
                self.global[local.at].copy_from_slice(local.x);
            }
            return;
        }
        let Some(mean) = means.first() else {
            self.local.step(cx, local);
            return;
        };
        let BmufConfig {
            eta,
            zeta,
            nesterov,
            ..
        } = self.config;
        let start = &mut self.start[local.at.clone()];
        let global = &mut self.global[local.at.clone()];
        let delta = &mut self.delta[local.at];
        update(delta, |k, d| {
            eta * d + zeta * (mean.values[k].to_f64() - start[k].to_f64())
        });
        update(global, |k, x| x + delta[k].to_f64());
        let ahead = if nesterov { eta } else { 0.0 };
        update(start, |k, _| global[k].to_f64() + ahead * delta[k].to_f64());
        local.x.copy_from_slice(start);
    }
    fn check(&self, _facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_lr(lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("start", &mut self.start);
        visit("global", &mut self.global);
        visit("delta", &mut self.delta);
        self.local.state(visit);
    }
}
