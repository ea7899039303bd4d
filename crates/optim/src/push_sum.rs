//! Stochastic gradient push: plain averaging where only the senders' shares sum to one.

use crate::{
    LocalRule,
    error::{ConfigError, carries},
    stability::check_push,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// X⁺ = C(X − γG(Z)); w⁺ = Cw; Z⁺ = X⁺/w⁺, with w = 1 at the start. C's columns sum to one, and nothing else is asked of it.
///
/// The parameters that training sees are Z; X = wZ is what travels, and w with it, in one message of n + 1 values per communication. State: w, one value, and the local rule's. ΣX and Σw over the ranks are kept by averaging.
/// Where C is doubly stochastic w stays 1, and this is DSGD-ATC.
/// With 16-bit elements w is rounded to them, and the sums drift.
/// Source: Assran et al. 2019, "Stochastic Gradient Push", Algorithm 1.
pub struct PushSum<T> {
    name: String,
    local: Box<dyn LocalRule<T>>,
    codec: Codec,
    /// One value.
    w: Vec<T>,
}

impl<T: Float> PushSum<T> {
    /// The rule around the step `local`. Named `sgp`, with the local rule's name behind it where that is not plain SGD.
    ///
    /// # Errors
    /// `codec` does not carry `T`.
    pub fn new(local: Box<dyn LocalRule<T>>, codec: Codec) -> Result<Self, ConfigError> {
        carries::<T>(codec)?;
        let name = match local.name() {
            "sgd" => "sgp".to_owned(),
            other => format!("sgp-{other}"),
        };
        Ok(PushSum {
            name,
            local,
            codec,
            w: Vec::new(),
        })
    }
}

impl<T: Float> Rule<T> for PushSum<T> {
    fn name(&self) -> &str {
        &self.name
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.local.init(n);
        self.w = vec![T::from_f64(1.0)];
    }
    fn period(&self) -> Option<u64> {
        Some(1)
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::neighbours(cx).extra(1).coded(self.codec));
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        self.local.prepare(cx);
        let (x, w) = out.split_at_mut(local.at.len());
        w.copy_from_slice(&self.w);
        let w = self.w[0].to_f64();
        for (((k, x), z), g) in local.at.zip(x).zip(local.x).zip(local.g) {
            let z = z.to_f64();
            *x = T::from_f64(w * z - self.local.delta(cx, k, z, g.to_f64()));
        }
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        if at != At::AfterGradient {
            return;
        }
        if let Some(mean) = means.first() {
            let (x, w) = mean.values.split_at(local.at.len());
            self.w.copy_from_slice(w);
            for (z, x) in local.x.iter_mut().zip(x) {
                *z = T::from_f64(x.to_f64() / w[0].to_f64());
            }
            return;
        }
        // A local step: X moves by d, Z by d/w.
        self.local.prepare(cx);
        let w = self.w[0].to_f64();
        for ((k, z), g) in local.at.zip(local.x).zip(local.g) {
            let old = z.to_f64();
            *z = T::from_f64(old - self.local.delta(cx, k, old, g.to_f64()) / w);
        }
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_push(facts, lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("weight", &mut self.w);
        self.local.state(visit);
    }
}
