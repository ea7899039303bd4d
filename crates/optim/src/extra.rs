//! EXTRA: exact first-order averaging, under way while the gradient is computed.

use crate::{
    LocalRule,
    arith::{update, zeros},
    error::{ConfigError, carries},
    recursion::Recursion,
    stability::check_gossip,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// X⁺ = X + WX − H − D + D⁻, where H is ½(X + WX) of the step before and D what the local rule steps by: EXTRA.
///
/// Exact on static symmetric weights for γ below about (1 + λ_min)/L. One message of n elements per step, under way while the gradient is computed; state H and D, 2n elements.
/// Source: Shi et al. 2015, "EXTRA", equation (2.13), with W̃ = (I + W)/2: x¹ = Wx⁰ − γg⁰; x^{k+2} = (I + W)x^{k+1} − ½(I + W)x^k − γ(g^{k+1} − g^k).
pub struct Extra<T> {
    local: Box<dyn LocalRule<T>>,
    codec: Codec,
    half: Vec<T>,
    moved: Vec<T>,
}

impl<T: Float> Extra<T> {
    /// The rule around the step `local`.
    ///
    /// # Errors
    /// `codec` does not carry `T`.
    pub fn new(local: Box<dyn LocalRule<T>>, codec: Codec) -> Result<Self, ConfigError> {
        carries::<T>(codec)?;
        Ok(Extra {
            local,
            codec,
            half: Vec::new(),
            moved: Vec::new(),
        })
    }
}

impl<T: Float> Rule<T> for Extra<T> {
    fn name(&self) -> &str {
        "extra"
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.local.init(n);
        (self.half, self.moved) = (zeros(n), zeros(n));
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        let early = Exchange::neighbours(cx).between(At::BeforeForward, At::AfterGradient);
        list.push(early.coded(self.codec));
    }
    fn emit(&mut self, _cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        out.copy_from_slice(local.x);
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        let (At::AfterGradient, Some(mean)) = (at, means.first()) else {
            return;
        };
        self.local.prepare(cx);
        let first = local.at.start;
        let (half, moved) = (&mut self.half[local.at.clone()], &mut self.moved[local.at]);
        if cx.step == 0 {
            half.copy_from_slice(local.x);
        }
        update(local.x, |k, x| {
            let delta = self.local.delta(cx, first + k, x, local.g[k].to_f64());
            let mixed = mean.values[k].to_f64();
            let new = x + mixed - half[k].to_f64() - delta + moved[k].to_f64();
            half[k] = T::from_f64(x + (mixed - x) / 2.0);
            moved[k] = T::from_f64(delta);
            new
        });
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_gossip(facts, lr)?;
        // (x, h) ← ((1 + w)x − h, ½(1 + w)x).
        Recursion::new([[1.0, -1.0], [0.5, 0.0]], [[1.0, 0.0], [0.5, 0.0]]).check(
            "extra",
            facts,
            "gradient tracking (gt-atc), or a topology with symmetric weights",
        )
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("half", &mut self.half);
        visit("moved", &mut self.moved);
        self.local.state(visit);
    }
}
