//! Push-DIGing: gradient tracking where only the senders' shares sum to one.

use crate::{
    arith::{fill, update, zeros},
    error::{ConfigError, carries, not_negative},
    stability::check_push,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// u⁺ = C(u − γy); v⁺ = Cv; x⁺ = u⁺/v⁺; y⁺ = Cy + g(x⁺) − g(x), with v = 1 and y = g at the start.
///
/// Exact on any connected directed graph whose senders know their out-degree. u, y and v travel in one message of 2n + 1 values per step; state y, g and v, 2n + 1 values. Σy = Σg in every step.
/// Source: Nedić et al. 2017, "Push-DIGing", Algorithm 2; as in BlueFog's example.
pub struct PushDiging<T> {
    weight_decay: f64,
    codec: Codec,
    y: Vec<T>,
    g: Vec<T>,
    /// One value.
    v: Vec<T>,
}

impl<T: Float> PushDiging<T> {
    /// The rule with λx added to the gradient.
    ///
    /// # Errors
    /// A setting out of its range, by name, or a codec that does not carry `T`.
    pub fn new(weight_decay: f64, codec: Codec) -> Result<Self, ConfigError> {
        not_negative("weight_decay", weight_decay)?;
        carries::<T>(codec)?;
        Ok(PushDiging {
            weight_decay,
            codec,
            y: Vec::new(),
            g: Vec::new(),
            v: Vec::new(),
        })
    }
}

impl<T: Float> Rule<T> for PushDiging<T> {
    fn name(&self) -> &str {
        "push-diging"
    }
    fn init(&mut self, n: usize, _place: Place) {
        (self.y, self.g) = (zeros(n), zeros(n));
        self.v = vec![T::from_f64(1.0)];
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        let one = Exchange::neighbours(cx).width(2).extra(1);
        list.push(one.coded(self.codec));
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        let n = local.at.len();
        let (y, before) = (&mut self.y[local.at.clone()], &mut self.g[local.at]);
        update(y, |k, y| {
            let g = local.g[k].to_f64() + self.weight_decay * local.x[k].to_f64();
            let change = g - before[k].to_f64();
            before[k] = T::from_f64(g);
            y + change
        });
        let (u, rest) = out.split_at_mut(n);
        let (out_y, out_v) = rest.split_at_mut(n);
        let v = self.v[0].to_f64();
        fill(u, |k| local.x[k].to_f64() * v - cx.lr * y[k].to_f64());
        out_y.copy_from_slice(y);
        out_v.copy_from_slice(&self.v);
    }
    fn absorb(&mut self, _cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        let (At::AfterGradient, Some(mean)) = (at, means.first()) else {
            return;
        };
        let n = local.at.len();
        let (u, rest) = mean.values.split_at(n);
        let (y, v) = rest.split_at(n);
        fill(local.x, |k| u[k].to_f64() / v[0].to_f64());
        self.y[local.at].copy_from_slice(y);
        self.v.copy_from_slice(v);
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_push(facts, lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("tracked gradient", &mut self.y);
        visit("gradient", &mut self.g);
        visit("weight", &mut self.v);
    }
}
