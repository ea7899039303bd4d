//! Gradients cut to size before a rule sees them.

use crate::{
    arith::norm,
    error::{ConfigError, positive},
};
use gaggle_core::{
    At, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// How a gradient is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Clip {
    /// g ← g·min(1, c/‖g‖₂), over the whole vector.
    Norm(f64),
    /// Each element into −c..=c.
    Value(f64),
}

impl Clip {
    /// Whether the cut needs the whole vector.
    pub fn whole(&self) -> bool {
        matches!(self, Clip::Norm(_))
    }

    /// Writes the cut of `g` into `out`.
    pub fn apply<T: Float>(&self, g: &[T], out: &mut Vec<T>) {
        out.clear();
        match *self {
            Clip::Norm(limit) => {
                let norm = norm(g);
                let scale = if norm > limit { limit / norm } else { 1.0 };
                out.extend(g.iter().map(|g| T::from_f64(g.to_f64() * scale)));
            }
            Clip::Value(limit) => {
                out.extend(
                    g.iter()
                        .map(|g| T::from_f64(g.to_f64().clamp(-limit, limit))),
                );
            }
        }
    }
}

/// Any rule, on clipped gradients: each rank cuts its own gradient, before anything is exchanged.
///
/// Where gradients are averaged over everybody, what is cut is this rank's part, not the mean.
pub struct Clipped<T> {
    inner: Box<dyn Rule<T>>,
    clip: Clip,
    g: Vec<T>,
}

impl<T: Float> Clipped<T> {
    /// `inner` on gradients cut by `clip`.
    ///
    /// # Errors
    /// The limit is not finite or not above 0.
    pub fn new(inner: Box<dyn Rule<T>>, clip: Clip) -> Result<Self, ConfigError> {
        let (Clip::Norm(limit) | Clip::Value(limit)) = clip;
        positive("clip", limit)?;
        Ok(Clipped {
            inner,
            clip,
            g: Vec::new(),
        })
    }
}

impl<T: Float> Rule<T> for Clipped<T> {
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
        self.clip.apply(local.g, &mut self.g);
        let g = &self.g;
        self.inner.emit(cx, slot, Local { g, ..local }, out);
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        self.clip.apply(local.g, &mut self.g);
        let g = &self.g;
        self.inner.absorb(cx, at, Local { g, ..local }, means);
    }
    fn whole(&self) -> bool {
        self.clip.whole() || self.inner.whole()
    }
    fn period(&self) -> Option<u64> {
        self.inner.period()
    }
    fn own_period(&self) -> Option<u64> {
        self.inner.own_period()
    }
    fn clips(&self) -> bool {
        true
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_and_values_are_cut() {
        let mut out: Vec<f64> = vec![];
        Clip::Norm(5.0).apply(&[3.0, -4.0], &mut out);
        assert_eq!(out, [3.0, -4.0]);
        Clip::Norm(1.0).apply(&[3.0, -4.0], &mut out);
        assert!((out[0] - 0.6).abs() < 1e-15 && (out[1] + 0.8).abs() < 1e-15);
        Clip::Norm(1.0).apply(&[0.0, 0.0], &mut out);
        assert_eq!(out, [0.0, 0.0]);
        Clip::Value(2.0).apply(&[3.0, -1.0, -7.0], &mut out);
        assert_eq!(out, [2.0, -1.0, -2.0]);
    }
}
