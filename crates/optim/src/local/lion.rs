//! Lion: the sign of a momentum.

use super::LocalRule;
use crate::error::{ConfigError, below_one, not_negative};
use gaggle_core::{Cx, Float};

/// Settings of [`Lion`], with the paper's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LionConfig {
    /// How much of the momentum enters the step, from 0 to below 1.
    pub beta1: f64,
    /// How long the momentum remembers, from 0 to below 1.
    pub beta2: f64,
    /// λ: parameters shrink by γλ in each step, apart from the gradient.
    pub weight_decay: f64,
}

impl Default for LionConfig {
    fn default() -> Self {
        LionConfig {
            beta1: 0.9,
            beta2: 0.99,
            weight_decay: 0.0,
        }
    }
}

/// x ← x − γ(sign(β₁m + (1 − β₁)g) + λx); m ← β₂m + (1 − β₂)g.
///
/// Every element moves by γ: step sizes are 3 to 10 times smaller than AdamW's. The sign of 0 is 0.
/// Source: Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", Program 1. State: m, n elements.
#[derive(Clone, Debug)]
pub struct Lion<T> {
    config: LionConfig,
    m: Vec<T>,
}

impl<T: Float> Lion<T> {
    /// The rule with these settings.
    ///
    /// # Errors
    /// A setting out of its range, by name.
    pub fn new(config: LionConfig) -> Result<Lion<T>, ConfigError> {
        below_one("beta1", config.beta1)?;
        below_one("beta2", config.beta2)?;
        not_negative("weight_decay", config.weight_decay)?;
        Ok(Lion {
            config,
            m: Vec::new(),
        })
    }
}

impl<T: Float> LocalRule<T> for Lion<T> {
    fn name(&self) -> &str {
        "lion"
    }
    fn init(&mut self, n: usize) {
        self.m = vec![T::from_f64(0.0); n];
    }
    #[inline]
    fn delta(&mut self, cx: &Cx, k: usize, x: f64, g: f64) -> f64 {
        let LionConfig {
            beta1,
            beta2,
            weight_decay,
        } = self.config;
        let m = self.m[k].to_f64();
        let c = beta1 * m + (1.0 - beta1) * g;
        self.m[k] = T::from_f64(beta2 * m + (1.0 - beta2) * g);
        let sign = if c == 0.0 { 0.0 } else { c.signum() };
        cx.lr * (sign + weight_decay * x)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("momentum", &mut self.m);
    }
}
