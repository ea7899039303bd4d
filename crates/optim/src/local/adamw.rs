//! Adam with decoupled weight decay, by PyTorch's documented formulas.

use super::LocalRule;
use crate::error::{ConfigError, below_one, not_negative, positive};
use gaggle_core::{Cx, Float};

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
