//! Gradient tracking: every rank follows the mean gradient, and steps by that.

use crate::{
    LocalRule,
    arith::{update, zeros},
    error::{ConfigError, carries},
    stability::check_gossip,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// Where the averaging stands in [`GradientTracking`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// X⁺ = WX − γY; Y⁺ = WY + G⁺ − G.
    Diging,
    /// X⁺ = W(X − γY); Y⁺ = WY + G⁺ − G.
    SemiAtc,
    /// X⁺ = W(X − γY); Y⁺ = W(Y + G⁺ − G).
    Atc,
}

/// Y is the tracked gradient, Y⁰ = G⁰: its mean over the ranks is that of the gradients in every step.
///
/// Exact, also on directed and time-varying doubly stochastic weights. Two vectors per step, in one message of 2n elements, or for ATC in two messages one after the other; state Y and G, 2n elements, and the local rule's, which steps by Y in place of the gradient.
/// New samples in every step are fine: G is the gradient that was used, kept.
/// Sources: Nedić et al. 2017 (DIGing), as in BlueFog's example; Xu et al. 2015 (Aug-DGM, ATC); DSGT-HB is the semi-ATC form around an [`Ema`](crate::Ema).
pub struct GradientTracking<T> {
    name: String,
    form: Tracking,
    local: Box<dyn LocalRule<T>>,
    codec: Codec,
    y: Vec<T>,
    g: Vec<T>,
}

impl<T: Float> GradientTracking<T> {
    /// The rule around the step `local`. Named `diging`, `gt-semi` and `gt-atc` around plain SGD, `dsgt-hb` for the semi-ATC form around an [`Ema`](crate::Ema), with the local rule's name behind it otherwise.
    ///
    /// # Errors
    /// `codec` does not carry `T`.
    pub fn new(
        form: Tracking,
        local: Box<dyn LocalRule<T>>,
        codec: Codec,
    ) -> Result<Self, ConfigError> {
        carries::<T>(codec)?;
        let base = match form {
            Tracking::Diging => "diging",
            Tracking::SemiAtc => "gt-semi",
            Tracking::Atc => "gt-atc",
        };
        let name = match (form, local.name()) {
            (Tracking::SemiAtc, "ema") => "dsgt-hb".to_owned(),
            (_, "sgd") => base.to_owned(),
            (_, other) => format!("{base}-{other}"),
        };
        Ok(GradientTracking {
            name,
            form,
            local,
            codec,
            y: Vec::new(),
            g: Vec::new(),
        })
    }

    /// y ← y + g − the gradient before, which g takes the place of.
    fn track(&mut self, local: &Local<'_, T>) {
        let (y, before) = (&mut self.y[local.at.clone()], &mut self.g[local.at.clone()]);
        update(y, |k, y| y + (local.g[k].to_f64() - before[k].to_f64()));
        before.copy_from_slice(local.g);
    }
}

/// Slots: the tracked gradient has one of its own where it goes alone.
const X: usize = 0;
const Y: usize = 1;

impl<T: Float> Rule<T> for GradientTracking<T> {
    fn name(&self) -> &str {
        &self.name
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.local.init(n);
        (self.y, self.g) = (zeros(n), zeros(n));
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        let mix = Exchange::neighbours(cx).coded(self.codec);
        if self.form != Tracking::Atc {
            list.push(mix.width(2));
            return;
        }
        // Y + G⁺ − G is averaged by the weights that X⁺ was; there is none before the first step.
        if let Some(before) = cx.round.checked_sub(1) {
            list.push(mix.slot(Y).round(before));
        }
        list.push(mix.slot(X).between(At::AfterMean, At::AfterMean));
    }
    fn emit(&mut self, cx: &Cx, slot: usize, local: Local<'_, T>, out: &mut [T]) {
        let (n, at) = (local.at.len(), local.at.clone());
        match (self.form, slot) {
            (Tracking::Atc, Y) => {
                self.track(&local);
                out.copy_from_slice(&self.y[at]);
            }
            (Tracking::Atc, _) => {
                let y = &self.y[at.clone()];
                self.local.step_into(cx, at, local.x, y, out);
            }
            (form, _) => {
                self.track(&local);
                let (out_x, out_y) = out.split_at_mut(n);
                out_y.copy_from_slice(&self.y[at.clone()]);
                if form == Tracking::Diging {
                    out_x.copy_from_slice(local.x);
                } else {
                    self.local.step_into(cx, at, local.x, out_y, out_x);
                }
            }
        }
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        let n = local.at.len();
        match (self.form, at, means.first()) {
            (Tracking::Atc, At::AfterGradient, Some(mean)) => {
                self.y[local.at].copy_from_slice(mean.values);
            }
            // The first step.
            (Tracking::Atc, At::AfterGradient, None) => self.track(&local),
            (Tracking::Atc, At::AfterMean, Some(mean)) => local.x.copy_from_slice(mean.values),
            (Tracking::SemiAtc, At::AfterGradient, Some(mean)) => {
                local.x.copy_from_slice(&mean.values[..n]);
                self.y[local.at].copy_from_slice(&mean.values[n..]);
            }
            (Tracking::Diging, At::AfterGradient, Some(mean)) => {
                let (x, y) = mean.values.split_at(n);
                let span = local.at.clone();
                let own = Local {
                    g: &self.y[span.clone()],
                    ..local
                };
                self.local.step_from(cx, own, x);
                self.y[span].copy_from_slice(y);
            }
            _ => {}
        }
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_gossip(facts, lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("tracked gradient", &mut self.y);
        visit("gradient", &mut self.g);
        self.local.state(visit);
    }
}
