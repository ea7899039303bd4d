//! Fewer communications than a rule begins with.

use crate::error::{ConfigError, at_least_one};
use gaggle_core::{
    At, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// Any rule that has local steps, with another communication period to begin with.
pub struct Every<T> {
    inner: Box<dyn Rule<T>>,
    period: u64,
}

impl<T: Float> Every<T> {
    /// `inner`, of which every `period`-th step communicates.
    ///
    /// # Errors
    /// `period` is 0, above 1 for a rule without local steps, or another than that of a rule that counts its steps itself.
    pub fn new(inner: Box<dyn Rule<T>>, period: u64) -> Result<Self, ConfigError> {
        at_least_one("period", period)?;
        let rule = inner.name().to_owned();
        if let Some(own) = inner.own_period().filter(|own| *own != period) {
            return Err(ConfigError::OwnPeriod { rule, own, period });
        }
        if period > 1 && inner.period().is_none() && inner.own_period().is_none() {
            return Err(ConfigError::NoLocalSteps { rule, period });
        }
        Ok(Every { inner, period })
    }
}

impl<T: Float> Rule<T> for Every<T> {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn init(&mut self, n: usize, place: Place) {
        self.inner.init(n, place);
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        self.inner.exchanges(cx, list);
    }
    fn emit(&mut self, cx: &Cx, slot: usize, local: Local<'_, T>, out: &mut [T]) {
        self.inner.emit(cx, slot, local, out);
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        self.inner.absorb(cx, at, local, means);
    }
    fn whole(&self) -> bool {
        self.inner.whole()
    }
    fn period(&self) -> Option<u64> {
        self.inner.period().map(|_| self.period)
    }
    fn own_period(&self) -> Option<u64> {
        self.inner.own_period()
    }
    fn clips(&self) -> bool {
        self.inner.clips()
    }
    fn rewired(&mut self) {
        self.inner.rewired();
    }
    fn by_neighbours(&self, name: &mut dyn FnMut(&str)) {
        self.inner.by_neighbours(name);
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        self.inner.check(facts, lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        self.inner.state(visit);
    }
}
