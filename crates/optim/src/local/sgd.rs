//! SGD, plain or with momentum, by PyTorch's documented formulas.

use super::LocalRule;
use crate::error::{ConfigError, below_one, not_negative};
use gaggle_core::{Cx, Float};

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
    /// (1 + β)/((1 − τ)(L + λ)), with Nesterov (1 + β)/((1 + 2β)(L + λ)): where the eigenvalue −1 comes into the recursion of (x, m).
    fn step_limit(&self, smoothness: f64) -> Option<f64> {
        let SgdConfig {
            momentum: beta,
            dampening,
            nesterov,
            weight_decay,
        } = self.config;
        let enters = match nesterov {
            true => 1.0 + 2.0 * beta,
            false => 1.0 - dampening,
        };
        Some((1.0 + beta) / (enters * (smoothness + weight_decay)))
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        if self.config.momentum != 0.0 {
            visit("momentum", &mut self.m);
        }
    }
}
