//! D², exact diffusion and EDM: the bias that averaging leaves is taken out by the step before.

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

/// Which weights [`D2`] averages with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    /// W as it is: D².
    Full,
    /// (I + W)/2: exact diffusion.
    Half,
}

/// ψ⁺ = x − γd; x⁺ = W(ψ⁺ + x − ψ), ψ = x at the start, d the local rule's direction; with (I + W)/2 in place of W for exact diffusion.
///
/// Exact on static symmetric weights: linear convergence for strongly convex losses, whatever the ranks' data. One message of n elements per step; state ψ, n elements, and the local rule's.
/// Needs λ_min(W) > −1/3 with W and real eigenvalues, or complex ones near enough; [`Rule::check`] computes it.
/// In this form a step size that changes goes with its own gradient.
/// Sources: Tang et al. 2018 (D²); Yuan et al. 2019 (exact diffusion), as in BlueFog's example; EDM, exact diffusion around an [`Ema`](crate::Ema), 2025.
pub struct D2<T> {
    name: String,
    bar: Bar,
    local: Box<dyn LocalRule<T>>,
    codec: Codec,
    psi: Vec<T>,
}

impl<T: Float> D2<T> {
    /// The rule around the step `local`. Named `d2` and `exact-diffusion` around plain SGD, `edm` for exact diffusion around an [`Ema`](crate::Ema), with the local rule's name behind it otherwise.
    ///
    /// # Errors
    /// `codec` does not carry `T`.
    pub fn new(bar: Bar, local: Box<dyn LocalRule<T>>, codec: Codec) -> Result<Self, ConfigError> {
        carries::<T>(codec)?;
        let name = match (bar, local.name()) {
            (Bar::Full, "sgd") => "d2".to_owned(),
            (Bar::Half, "sgd") => "exact-diffusion".to_owned(),
            (Bar::Half, "ema") => "edm".to_owned(),
            (Bar::Full, other) => format!("d2-{other}"),
            (Bar::Half, other) => format!("exact-diffusion-{other}"),
        };
        Ok(D2 {
            name,
            bar,
            local,
            codec,
            psi: Vec::new(),
        })
    }
}

impl<T: Float> Rule<T> for D2<T> {
    fn name(&self) -> &str {
        &self.name
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.local.init(n);
        self.psi = zeros(n);
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::neighbours(cx).coded(self.codec));
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        let psi = &mut self.psi[local.at.clone()];
        if cx.step == 0 {
            psi.copy_from_slice(local.x);
        }
        self.local.step_into(cx, local.at, local.x, local.g, out);
        for ((out, x), psi) in out.iter_mut().zip(local.x).zip(psi) {
            let new = *out;
            *out = T::from_f64(new.to_f64() + x.to_f64() - psi.to_f64());
            // The own message, for the half that stays.
            (*psi, *x) = (new, *out);
        }
    }
    fn absorb(&mut self, _cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        let (At::AfterGradient, Some(mean)) = (at, means.first()) else {
            return;
        };
        match self.bar {
            Bar::Full => local.x.copy_from_slice(mean.values),
            Bar::Half => update(local.x, |k, own| {
                own + (mean.values[k].to_f64() - own) / 2.0
            }),
        }
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_gossip(facts, lr)?;
        // (x, ψ) ← (w(2x − ψ), x), and with momentum m nothing more where gradients vanish: z² − 2wz + w.
        let instead = "gradient tracking (gt-atc), or weights with λ_min > −1/3, such as those of a lazy symmetric topology";
        match self.bar {
            Bar::Full => Recursion::new([[0.0, 0.0], [1.0, 0.0]], [[2.0, -1.0], [0.0, 0.0]]),
            Bar::Half => Recursion::new([[1.0, -0.5], [1.0, 0.0]], [[1.0, -0.5], [0.0, 0.0]]),
        }
        .check(&self.name, facts, instead)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("psi", &mut self.psi);
        self.local.state(visit);
    }
}
