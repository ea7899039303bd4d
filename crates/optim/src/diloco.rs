//! DiLoCo: an inner optimizer on every rank for many steps, an outer one on what they moved.

use crate::{
    LocalRule,
    arith::{fill, zeros},
    error::{ConfigError, at_least_one, below_one, carries, positive},
    stability::check_lr,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// SGD on outer gradients Δ, as DiLoCo and its streaming form use it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OuterSgd {
    /// Outer step size, above 0.
    pub lr: f64,
    /// μ, from 0 to below 1.
    pub momentum: f64,
    /// PyTorch's Nesterov form; otherwise heavy ball.
    pub nesterov: bool,
}

impl Default for OuterSgd {
    fn default() -> Self {
        OuterSgd {
            lr: 0.7,
            momentum: 0.9,
            nesterov: true,
        }
    }
}

impl OuterSgd {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        positive("outer_lr", self.lr)?;
        below_one("outer_momentum", self.momentum)
    }

    /// b ← μb + Δ; φ ← φ − lr·b, or φ − lr(Δ + μb) with Nesterov.
    pub(crate) fn step<T: Float>(&self, phi: &mut T, b: &mut T, delta: f64) {
        let new = self.momentum * b.to_f64() + delta;
        *b = T::from_f64(new);
        let along = match self.nesterov {
            true => delta + self.momentum * new,
            false => new,
        };
        *phi = T::from_f64(phi.to_f64() - self.lr * along);
    }
}

/// Settings of [`DiLoCo`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiLoCoConfig {
    /// H: inner steps per outer step.
    pub period: u64,
    /// The outer step.
    pub outer: OuterSgd,
    /// What is on the wire.
    pub codec: Codec,
}

impl Default for DiLoCoConfig {
    fn default() -> Self {
        DiLoCoConfig {
            period: 500,
            outer: OuterSgd::default(),
            codec: Codec::None,
        }
    }
}

/// H inner steps from φ; Δ = φ − mean θ over everybody; the outer SGD steps φ by Δ; all go on from φ.
///
/// One message of n elements per H steps; state φ and the outer momentum, 2n elements, and the inner rule's, which every rank keeps. Its limit is that of local SGD for every outer step size and momentum.
/// Source: Douillard et al. 2023, "DiLoCo", Algorithm 1; outer step 0.7 with Nesterov momentum 0.9, H = 500, inner AdamW, as released.
pub struct DiLoCo<T> {
    config: DiLoCoConfig,
    local: Box<dyn LocalRule<T>>,
    phi: Vec<T>,
    b: Vec<T>,
}

impl<T: Float> DiLoCo<T> {
    /// The rule around the inner step `local`.
    ///
    /// # Errors
    /// A setting out of its range, by name, or a codec that does not carry `T`.
    pub fn new(local: Box<dyn LocalRule<T>>, config: DiLoCoConfig) -> Result<Self, ConfigError> {
        at_least_one("period", config.period)?;
        config.outer.check()?;
        carries::<T>(config.codec)?;
        Ok(DiLoCo {
            config,
            local,
            phi: Vec::new(),
            b: Vec::new(),
        })
    }
}

impl<T: Float> Rule<T> for DiLoCo<T> {
    fn name(&self) -> &str {
        "diloco"
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.local.init(n);
        (self.phi, self.b) = (zeros(n), zeros(n));
    }
    fn period(&self) -> Option<u64> {
        Some(self.config.period)
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::everyone(cx).coded(self.config.codec));
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        let phi = &self.phi[local.at.clone()];
        let x = local.x;
        let inner = Local {
            at: local.at,
            x: &mut *x,
            g: local.g,
        };
        self.local.step(cx, inner);
        fill(out, |k| phi[k].to_f64() - x[k].to_f64());
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        if at == At::BeforeForward {
            if cx.step == 0 {
                self.phi[local.at].copy_from_slice(local.x);
            }
            return;
        }
        let Some(mean) = means.first() else {
            self.local.step(cx, local);
            return;
        };
        let (phi, b) = (&mut self.phi[local.at.clone()], &mut self.b[local.at]);
        for ((phi, b), delta) in phi.iter_mut().zip(b).zip(mean.values) {
            self.config.outer.step(phi, b, delta.to_f64());
        }
        local.x.copy_from_slice(phi);
    }
    fn check(&self, _facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_lr(lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("phi", &mut self.phi);
        visit("outer momentum", &mut self.b);
        self.local.state(visit);
    }
}
