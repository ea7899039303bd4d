//! RMSprop, by PyTorch's documented formulas.

use super::LocalRule;
use crate::error::{ConfigError, below_one, not_negative, positive};
use gaggle_core::{Cx, Float};

/// Settings of [`RmsProp`], with PyTorch's names and defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsPropConfig {
    /// How long the mean of squares remembers, from 0 to below 1.
    pub alpha: f64,
    /// Added to the root, above 0.
    pub eps: f64,
    /// Of the scaled gradients, from 0 to below 1; 0 keeps no state for it.
    pub momentum: f64,
    /// λ: λx is added to the gradient.
    pub weight_decay: f64,
}

impl Default for RmsPropConfig {
    fn default() -> Self {
        RmsPropConfig {
            alpha: 0.99,
            eps: 1e-8,
            momentum: 0.0,
            weight_decay: 0.0,
        }
    }
}

/// g ← g + λx; v ← αv + (1 − α)g²; b ← μb + g/(√v + ε); x ← x − γb.
///
/// Source: PyTorch's documentation of `torch.optim.RMSprop`, not centred. State: v, and b with momentum: n or 2n elements.
#[derive(Clone, Debug)]
pub struct RmsProp<T> {
    config: RmsPropConfig,
    v: Vec<T>,
    b: Vec<T>,
}

impl<T: Float> RmsProp<T> {
    /// The rule with these settings.
    ///
    /// # Errors
    /// A setting out of its range, by name.
    pub fn new(config: RmsPropConfig) -> Result<RmsProp<T>, ConfigError> {
        below_one("alpha", config.alpha)?;
        below_one("momentum", config.momentum)?;
        positive("eps", config.eps)?;
        not_negative("weight_decay", config.weight_decay)?;
        Ok(RmsProp {
            config,
            v: Vec::new(),
            b: Vec::new(),
        })
    }
}

impl<T: Float> LocalRule<T> for RmsProp<T> {
    fn name(&self) -> &str {
        "rmsprop"
    }
    fn init(&mut self, n: usize) {
        self.v = vec![T::from_f64(0.0); n];
        let kept = if self.config.momentum == 0.0 { 0 } else { n };
        self.b = vec![T::from_f64(0.0); kept];
    }
    #[inline]
    fn delta(&mut self, cx: &Cx, k: usize, x: f64, g: f64) -> f64 {
        let RmsPropConfig {
            alpha,
            eps,
            momentum,
            weight_decay,
        } = self.config;
        let g = g + weight_decay * x;
        let v = alpha * self.v[k].to_f64() + (1.0 - alpha) * g * g;
        self.v[k] = T::from_f64(v);
        let scaled = g / (v.sqrt() + eps);
        if momentum == 0.0 {
            return cx.lr * scaled;
        }
        let b = momentum * self.b[k].to_f64() + scaled;
        self.b[k] = T::from_f64(b);
        cx.lr * b
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("mean of squares", &mut self.v);
        if self.config.momentum != 0.0 {
            visit("momentum", &mut self.b);
        }
    }
}
