//! DSGD and DmSGD: a local step and an average over this round's neighbours, in three orders.

use crate::{
    LocalRule,
    error::{ConfigError, at_least_one, carries},
    stability::{check_curvature, check_gossip, check_lr, check_mixing, check_smallest_eigenvalue},
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};

/// The order of averaging and stepping. X is everybody's parameters, G(X) the gradients taken there, W the round's weights, γ the step size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Adapt, then combine: X⁺ = W(X − γG(X)). The smallest bias; the message is known when the gradient is.
    Atc,
    /// Average while computing: X⁺ = WX − γG(X). The message travels during forward and backward; stable for γL < 1 + λ_min(W).
    Awc,
    /// Combine, then adapt: Y = WX, X⁺ = Y − γG(Y). ATC seen half a step later.
    Cta,
}

impl Order {
    /// `atc`, `awc`, `cta`.
    pub fn name(self) -> &'static str {
        match self {
            Order::Atc => "atc",
            Order::Awc => "awc",
            Order::Cta => "cta",
        }
    }
}

/// A local step and a neighbour average: DSGD around plain SGD, DmSGD with local momentum around momentum SGD, decentralised Adam around AdamW.
///
/// One message of n elements per step; the momentum stays at home. With a constant step the limit is off the optimum by O(γb/(1 − ρ)), b the differences among ranks' gradients; local momentum makes it that of γ/(1 − β).
/// Source: Lian et al. 2017 (D-PSGD, our AWC); the orders and their names from BlueFog, whose ATC optimizer around momentum SGD is `dmsgd`: m ← βm + g, x⁺ = W(x − γm).
pub struct Diffusion<T> {
    name: String,
    order: Order,
    local: Box<dyn LocalRule<T>>,
    codec: Codec,
    period: u64,
    smoothness: Option<f64>,
}

impl<T: Float> Diffusion<T> {
    /// The step `local` in the order `order`. Named `dsgd-atc` and so on with plain SGD, `dmsgd`, `dmsgd-awc` and `dmsgd-cta` with momentum, `dadamw-atc` and so on with AdamW.
    ///
    /// # Errors
    /// `codec` does not carry `T`.
    pub fn new(
        order: Order,
        local: Box<dyn LocalRule<T>>,
        codec: Codec,
    ) -> Result<Self, ConfigError> {
        carries::<T>(codec)?;
        let name = match (local.name(), order) {
            ("msgd", Order::Atc) => "dmsgd".into(),
            (other, order) => format!("d{other}-{}", order.name()),
        };
        Ok(Diffusion {
            name,
            order,
            local,
            codec,
            period: 1,
            smoothness: None,
        })
    }

    /// Averages in every `period`-th step; the others are local ones.
    ///
    /// # Errors
    /// `period` is 0.
    pub fn every(mut self, period: u64) -> Result<Self, ConfigError> {
        at_least_one("period", period)?;
        self.period = period;
        Ok(self)
    }

    /// Tells the largest curvature L of the losses, so that [`Rule::check`] can refuse step sizes for which AWC is not known to be stable.
    pub fn with_smoothness(mut self, smoothness: f64) -> Self {
        self.smoothness = Some(smoothness);
        self
    }
}

impl<T: Float> Rule<T> for Diffusion<T> {
    fn name(&self) -> &str {
        &self.name
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.local.init(n);
    }
    fn period(&self) -> Option<u64> {
        Some(self.period)
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        let (known, due) = match self.order {
            Order::Atc => (At::AfterGradient, At::AfterGradient),
            Order::Awc => (At::BeforeForward, At::AfterGradient),
            Order::Cta => (At::BeforeForward, At::BeforeForward),
        };
        let one = Exchange::neighbours(cx).between(known, due);
        list.push(one.coded(self.codec));
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        match self.order {
            Order::Atc => self.local.step_into(cx, local.at, local.x, local.g, out),
            Order::Awc | Order::Cta => out.copy_from_slice(local.x),
        }
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        match (self.order, at, means.first()) {
            (Order::Atc, At::AfterGradient, Some(mean))
            | (Order::Cta, At::BeforeForward, Some(mean)) => local.x.copy_from_slice(mean.values),
            (Order::Awc, At::AfterGradient, Some(mean)) => {
                self.local.step_from(cx, local, mean.values);
            }
            // A step without a message is a local one; CTA's second half always is.
            (_, At::AfterGradient, _) => self.local.step(cx, local),
            (_, At::BeforeForward | At::AfterMean, _) => {}
        }
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        // What is averaged after the step, or before the gradient, shrinks with it.
        if self.order != Order::Awc {
            check_lr(lr)?;
            return check_mixing(facts);
        }
        let gossip = check_gossip(facts, lr)?;
        check_smallest_eigenvalue(facts)?;
        if let (Some(l), Stability::Stable) = (self.smoothness, &gossip) {
            return check_curvature(facts, lr, self.local.step_limit(l));
        }
        Ok(gossip)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        self.local.state(visit);
    }
}
