//! Steps that one rank takes alone: SGD, momentum SGD, AdamW, RMSprop, Adagrad and Lion, and the seam for your own.

mod adagrad;
mod adamw;
mod ema;
mod kind;
mod lion;
mod rmsprop;
mod sgd;

pub use adagrad::{Adagrad, AdagradConfig};
pub use adamw::{AdamW, AdamWConfig};
pub use ema::Ema;
pub use kind::LocalKind;
pub use lion::{Lion, LionConfig};
pub use rmsprop::{RmsProp, RmsPropConfig};
pub use sgd::{Sgd, SgdConfig};

use gaggle_core::{Cx, Float, Local};
use std::ops::Range;

/// A step that needs nobody: parameters move by −delta, element by element.
///
/// Methods work on any span; a step calls them once per span, in any order of spans. The step's number comes with `cx`, so that state is complete with [`LocalRule::state`].
/// `init` comes first; a span outside 0..n panics.
pub trait LocalRule<T: Float>: Send {
    /// The name that users type: `sgd`.
    fn name(&self) -> &str;
    /// Once, before the first step: `n` elements in all.
    fn init(&mut self, n: usize);
    /// Called before the elements of a span: what is the same for all of them.
    fn prepare(&mut self, _cx: &Cx) {}
    /// How far element `k` moves down from `x` with gradient `g`. Updates the element's state.
    fn delta(&mut self, cx: &Cx, k: usize, x: f64, g: f64) -> f64;
    /// Where averaging goes on while the gradient is computed (x⁺ = Wx − delta), steps are stable up to this factor times 1 + λ_min(W), for losses whose curvature is at most `smoothness`. `None` where no such factor is known.
    fn step_limit(&self, _smoothness: f64) -> Option<f64> {
        None
    }
    /// Shows every vector of state by name, for saving and loading. Lengths stay as they are.
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>));

    /// x ← x − delta(x, g).
    fn step(&mut self, cx: &Cx, local: Local<'_, T>) {
        self.prepare(cx);
        for (k, (x, g)) in local.at.zip(local.x.iter_mut().zip(local.g)) {
            let at = x.to_f64();
            *x = T::from_f64(at - self.delta(cx, k, at, g.to_f64()));
        }
    }
    /// out ← x − delta(x, g); x stays.
    fn step_into(&mut self, cx: &Cx, at: Range<usize>, x: &[T], g: &[T], out: &mut [T]) {
        self.prepare(cx);
        for (k, ((out, x), g)) in at.zip(out.iter_mut().zip(x).zip(g)) {
            let at = x.to_f64();
            *out = T::from_f64(at - self.delta(cx, k, at, g.to_f64()));
        }
    }
    /// x ← base − delta(x, g): the step is the one that belongs to the old x.
    fn step_from(&mut self, cx: &Cx, local: Local<'_, T>, base: &[T]) {
        self.prepare(cx);
        for (k, ((x, g), base)) in local.at.zip(local.x.iter_mut().zip(local.g).zip(base)) {
            let delta = self.delta(cx, k, x.to_f64(), g.to_f64());
            *x = T::from_f64(base.to_f64() - delta);
        }
    }
}
