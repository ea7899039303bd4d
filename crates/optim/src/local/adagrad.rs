//! Adagrad, by PyTorch's documented formulas.

use super::LocalRule;
use crate::error::{ConfigError, not_negative, positive};
use gaggle_core::{Cx, Float};

/// Settings of [`Adagrad`], with PyTorch's names and defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdagradConfig {
    /// The step size falls as γ/(1 + t·η), t from 0; not negative.
    pub lr_decay: f64,
    /// Added to the root, above 0.
    pub eps: f64,
    /// λ: λx is added to the gradient.
    pub weight_decay: f64,
}

impl Default for AdagradConfig {
    fn default() -> Self {
        AdagradConfig {
            lr_decay: 0.0,
            eps: 1e-10,
            weight_decay: 0.0,
        }
    }
}

/// g ← g + λx; s ← s + g²; x ← x − γ/(1 + tη)·g/(√s + ε), t from 0.
///
/// Source: PyTorch's documentation of `torch.optim.Adagrad` (Duchi et al. 2011). State: s, n elements.
#[derive(Clone, Debug)]
pub struct Adagrad<T> {
    config: AdagradConfig,
    sum: Vec<T>,
}

impl<T: Float> Adagrad<T> {
    /// The rule with these settings.
    ///
    /// # Errors
    /// A setting out of its range, by name.
    pub fn new(config: AdagradConfig) -> Result<Adagrad<T>, ConfigError> {
        not_negative("lr_decay", config.lr_decay)?;
        positive("eps", config.eps)?;
        not_negative("weight_decay", config.weight_decay)?;
        Ok(Adagrad {
            config,
            sum: Vec::new(),
        })
    }
}

impl<T: Float> LocalRule<T> for Adagrad<T> {
    fn name(&self) -> &str {
        "adagrad"
    }
    fn init(&mut self, n: usize) {
        self.sum = vec![T::from_f64(0.0); n];
    }
    #[inline]
    fn delta(&mut self, cx: &Cx, k: usize, x: f64, g: f64) -> f64 {
        let AdagradConfig {
            lr_decay,
            eps,
            weight_decay,
        } = self.config;
        let g = g + weight_decay * x;
        let sum = self.sum[k].to_f64() + g * g;
        self.sum[k] = T::from_f64(sum);
        cx.lr / (1.0 + cx.step as f64 * lr_decay) * g / (sum.sqrt() + eps)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("sum of squares", &mut self.sum);
    }
}
