//! Steps that one rank takes alone: SGD, momentum SGD and AdamW, by PyTorch's documented formulas.

use crate::config::{ConfigError, below_one, not_negative, positive};
use gaggle_core::{Cx, Float, Local};
use std::ops::Range;

/// A step that needs nobody: parameters move by −delta, element by element.
///
/// Methods work on any span; a step calls them once per span, in any order of spans. The step's number comes with `cx`, so that state is complete with [`LocalRule::state`].
/// `init` comes first; a span outside 0..n panics.
pub trait LocalRule<T: Float>: Send {
    /// The name that users type: `sgd`.
    fn name(&self) -> &str;
    /// Once, before the first step: `n` elements in all.
    fn init(&mut self, n: usize);
    /// Called before the elements of a span: what is the same for all of them.
    fn prepare(&mut self, _cx: &Cx) {}
    /// How far element `k` moves down from `x` with gradient `g`. Updates the element's state.
    fn delta(&mut self, cx: &Cx, k: usize, x: f64, g: f64) -> f64;
    /// β of a rule whose last direction goes on with this weight, for stability limits; 0 without momentum.
    fn momentum(&self) -> f64 {
        0.0
    }
    /// Shows every vector of state by name, for saving and loading. Lengths stay as they are.
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>));

    /// x ← x − delta(x, g).
    fn step(&mut self, cx: &Cx, local: Local<'_, T>) {
        self.prepare(cx);
        for (k, (x, g)) in local.at.zip(local.x.iter_mut().zip(local.g)) {
            let at = x.to_f64();
            *x = T::from_f64(at - self.delta(cx, k, at, g.to_f64()));
        }
    }
    /// out ← x − delta(x, g); x stays.
    fn step_into(&mut self, cx: &Cx, at: Range<usize>, x: &[T], g: &[T], out: &mut [T]) {
        self.prepare(cx);
        for (k, ((out, x), g)) in at.zip(out.iter_mut().zip(x).zip(g)) {
            let at = x.to_f64();
            *out = T::from_f64(at - self.delta(cx, k, at, g.to_f64()));
        }
    }
    /// x ← base − delta(x, g): the step is the one that belongs to the old x.
    fn step_from(&mut self, cx: &Cx, local: Local<'_, T>, base: &[T]) {
        self.prepare(cx);
        for (k, ((x, g), base)) in local.at.zip(local.x.iter_mut().zip(local.g).zip(base)) {
            let delta = self.delta(cx, k, x.to_f64(), g.to_f64());
            *x = T::from_f64(base.to_f64() - delta);
        }
    }
}

/// Settings of [`Sgd`], with PyTorch's names and defaults.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct SgdConfig {
    /// β, from 0 to below 1; 0 keeps no state.
    pub momentum: f64,
    /// τ: new gradients enter the momentum with 1 − τ, except the first.
    pub dampening: f64,
    /// Steps with g + βm in place of m. Needs momentum, and no dampening.
    pub nesterov: bool,
    /// λ: λx is added to the gradient, before the momentum.
    pub weight_decay: f64,
}

/// SGD, plain or with momentum.
///
/// g ← g + λx; m ← βm + (1 − τ)g, in the first step m ← g; d = m, or g + βm with Nesterov, or g without momentum; x ← x − γd.
/// Source: PyTorch's documentation of `torch.optim.SGD`. State: m, n elements (none without momentum).
#[derive(Clone, Debug)]
pub struct Sgd<T> {
    config: SgdConfig,
    m: Vec<T>,
}

impl<T: Float> Sgd<T> {
    /// The rule with these settings.
    ///
    /// # Errors
    /// A setting out of its range, by name.
    pub fn new(config: SgdConfig) -> Result<Sgd<T>, ConfigError> {
        below_one("momentum", config.momentum)?;
        below_one("dampening", config.dampening)?;
        not_negative("weight_decay", config.weight_decay)?;
        if config.nesterov && (config.momentum == 0.0 || config.dampening != 0.0) {
            return Err(ConfigError::Nesterov);
        }
        Ok(Sgd {
            config,
            m: Vec::new(),
        })
    }

    /// x ← x − γg: no momentum, no decay.
    pub fn plain() -> Sgd<T> {
        Sgd {
            config: SgdConfig::default(),
            m: Vec::new(),
        }
    }
}

impl<T: Float> LocalRule<T> for Sgd<T> {
    fn name(&self) -> &str {
        if self.config.momentum == 0.0 {
            "sgd"
        } else {
            "msgd"
        }
    }
    fn init(&mut self, n: usize) {
        let kept = if self.config.momentum == 0.0 { 0 } else { n };
        self.m = vec![T::from_f64(0.0); kept];
    }
    #[inline]
    fn delta(&mut self, cx: &Cx, k: usize, x: f64, g: f64) -> f64 {
        let SgdConfig {
            momentum: beta,
            dampening,
            nesterov,
            weight_decay,
        } = self.config;
        let g = g + weight_decay * x;
        if beta == 0.0 {
            return cx.lr * g;
        }
        let enters = if cx.step == 0 { 1.0 } else { 1.0 - dampening };
        let m = beta * self.m[k].to_f64() + enters * g;
        self.m[k] = T::from_f64(m);
        cx.lr * if nesterov { g + beta * m } else { m }
    }
    fn momentum(&self) -> f64 {
        self.config.momentum
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        if self.config.momentum != 0.0 {
            visit("momentum", &mut self.m);
        }
    }
}

/// Settings of [`AdamW`], with PyTorch's names and defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConfig {
    /// How long the mean of gradients remembers, from 0 to below 1.
    pub beta1: f64,
    /// How long the mean of squares remembers, from 0 to below 1.
    pub beta2: f64,
    /// Added to the root, above 0.
    pub eps: f64,
    /// λ: parameters shrink by γλ in each step, apart from the gradient.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        AdamWConfig {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 1e-2,
        }
    }
}

/// Adam with decoupled weight decay.
///
/// m ← β₁m + (1 − β₁)g; v ← β₂v + (1 − β₂)g²; x ← x − γλx − γ·m̂/(√v̂ + ε) with m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ), t from 1.
/// Source: PyTorch's documentation of `torch.optim.AdamW` (Loshchilov and Hutter 2019). State: m and v, 2n elements; with 16-bit elements v loses small gradients, keep f32 parameters there.
#[derive(Clone, Debug)]
pub struct AdamW<T> {
    config: AdamWConfig,
    m: Vec<T>,
    v: Vec<T>,
    /// 1 − β₁ᵗ and 1 − β₂ᵗ of the step at hand.
    corrections: (f64, f64),
}

impl<T: Float> AdamW<T> {
    /// The rule with these settings.
    ///
    /// # Errors
    /// A setting out of its range, by name.
    pub fn new(config: AdamWConfig) -> Result<AdamW<T>, ConfigError> {
        below_one("beta1", config.beta1)?;
        below_one("beta2", config.beta2)?;
        positive("eps", config.eps)?;
        not_negative("weight_decay", config.weight_decay)?;
        Ok(AdamW {
            config,
            m: Vec::new(),
            v: Vec::new(),
            corrections: (1.0, 1.0),
        })
    }
}

impl<T: Float> LocalRule<T> for AdamW<T> {
    fn name(&self) -> &str {
        "adamw"
    }
    fn init(&mut self, n: usize) {
        self.m = vec![T::from_f64(0.0); n];
        self.v = vec![T::from_f64(0.0); n];
    }
    fn prepare(&mut self, cx: &Cx) {
        let t = cx.step as f64 + 1.0;
        self.corrections = (
            1.0 - self.config.beta1.powf(t),
            1.0 - self.config.beta2.powf(t),
        );
    }
    #[inline]
    fn delta(&mut self, cx: &Cx, k: usize, x: f64, g: f64) -> f64 {
        let AdamWConfig {
            beta1,
            beta2,
            eps,
            weight_decay,
        } = self.config;
        let m = beta1 * self.m[k].to_f64() + (1.0 - beta1) * g;
        let v = beta2 * self.v[k].to_f64() + (1.0 - beta2) * g * g;
        (self.m[k], self.v[k]) = (T::from_f64(m), T::from_f64(v));
        let (m_hat, v_hat) = (m / self.corrections.0, v / self.corrections.1);
        cx.lr * (weight_decay * x + m_hat / (v_hat.sqrt() + eps))
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("mean of gradients", &mut self.m);
        visit("mean of squares", &mut self.v);
    }
}
