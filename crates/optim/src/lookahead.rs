//! Lookahead: slow weights behind the fast ones of any other rule.

use crate::{
    arith::{update, zeros},
    error::{ConfigError, at_least_one, in_range},
};
use gaggle_core::{
    At, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// After every K-th step of the rule inside: φ ← φ + α(x − φ); x ← φ.
///
/// Each rank for itself: no communication beside the inner rule's. State φ, n elements, and the inner rule's.
/// Source: Zhang et al. 2019, "Lookahead optimizer", Algorithm 1; defaults K = 5, α = 0.5.
pub struct Lookahead<T> {
    inner: Box<dyn Rule<T>>,
    k: u64,
    alpha: f64,
    slow: Vec<T>,
    /// For asking the inner rule whether it averages twice.
    listed: Vec<Exchange>,
}

impl<T: Float> Lookahead<T> {
    /// Slow weights behind `inner`, taken in every `k`-th step with α above 0 and at most 1.
    ///
    /// # Errors
    /// A setting out of its range, by name.
    pub fn new(inner: Box<dyn Rule<T>>, k: u64, alpha: f64) -> Result<Self, ConfigError> {
        at_least_one("lookahead_steps", k)?;
        let holds = alpha > 0.0 && alpha <= 1.0;
        in_range("alpha", alpha, "above 0 and at most 1", holds)?;
        Ok(Lookahead {
            inner,
            k,
            alpha,
            slow: Vec::new(),
            listed: Vec::new(),
        })
    }

    /// The last point of this step.
    fn last(&mut self, cx: &Cx) -> At {
        self.listed.clear();
        if cx.mixes {
            self.inner.exchanges(cx, &mut self.listed);
        }
        let latest = self.listed.iter().map(|e| e.known.max(e.due)).max();
        latest.map_or(At::AfterGradient, |at| at.max(At::AfterGradient))
    }
}

impl<T: Float> Rule<T> for Lookahead<T> {
    fn name(&self) -> &str {
        "lookahead"
    }
    fn init(&mut self, n: usize, place: Place) {
        self.inner.init(n, place);
        self.slow = zeros(n);
    }
    fn period(&self) -> Option<u64> {
        self.inner.period()
    }
    fn own_period(&self) -> Option<u64> {
        self.inner.own_period()
    }
    fn clips(&self) -> bool {
        self.inner.clips()
    }
    fn whole(&self) -> bool {
        self.inner.whole()
    }
    fn rewired(&mut self) {
        self.inner.rewired();
    }
    fn by_neighbours(&self, name: &mut dyn FnMut(&str)) {
        self.inner.by_neighbours(name);
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        self.inner.exchanges(cx, list);
    }
    fn emit(&mut self, cx: &Cx, slot: usize, local: Local<'_, T>, out: &mut [T]) {
        self.inner.emit(cx, slot, local, out);
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        let Local { at: span, x, g } = local;
        if cx.step == 0 && at == At::BeforeForward {
            self.slow[span.clone()].copy_from_slice(x);
        }
        let inner = Local {
            at: span.clone(),
            x: &mut *x,
            g,
        };
        self.inner.absorb(cx, at, inner, means);
        if (cx.step + 1).is_multiple_of(self.k) && at == self.last(cx) {
            let slow = &mut self.slow[span];
            update(slow, |k, slow| slow + self.alpha * (x[k].to_f64() - slow));
            x.copy_from_slice(slow);
        }
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        self.inner.check(facts, lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("slow", &mut self.slow);
        self.inner.state(visit);
    }
}
