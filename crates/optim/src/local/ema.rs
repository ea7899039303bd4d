//! Momentum as a moving average of gradients.

use super::LocalRule;
use crate::error::{ConfigError, below_one, not_negative};
use gaggle_core::{Cx, Float};

/// g ← g + λx; m ← βm + (1 − β)g from m = 0; x ← x − γm.
///
/// Steps as large as those of plain SGD, where [`Sgd`](super::Sgd)'s momentum makes them 1/(1 − β) times as large: the form that bias-corrected methods take (EDM, DSGT-HB).
/// State: m, n elements.
#[derive(Clone, Debug)]
pub struct Ema<T> {
    beta: f64,
    weight_decay: f64,
    m: Vec<T>,
}

impl<T: Float> Ema<T> {
    /// The rule with momentum β, from 0 to below 1, and decay λ, not negative.
    ///
    /// # Errors
    /// A setting out of its range, by name.
    pub fn new(beta: f64, weight_decay: f64) -> Result<Ema<T>, ConfigError> {
        below_one("momentum", beta)?;
        not_negative("weight_decay", weight_decay)?;
        Ok(Ema {
            beta,
            weight_decay,
            m: Vec::new(),
        })
    }
}

impl<T: Float> LocalRule<T> for Ema<T> {
    fn name(&self) -> &str {
        "ema"
    }
    fn init(&mut self, n: usize) {
        self.m = vec![T::from_f64(0.0); n];
    }
    #[inline]
    fn delta(&mut self, cx: &Cx, k: usize, x: f64, g: f64) -> f64 {
        let g = g + self.weight_decay * x;
        let m = self.beta * self.m[k].to_f64() + (1.0 - self.beta) * g;
        self.m[k] = T::from_f64(m);
        cx.lr * m
    }
    /// (1 + β)/((1 − β)(L + λ)): momentum SGD's, at γ(1 − β).
    fn step_limit(&self, smoothness: f64) -> Option<f64> {
        Some((1.0 + self.beta) / ((1.0 - self.beta) * (smoothness + self.weight_decay)))
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("mean of gradients", &mut self.m);
    }
}
