//! NoLoCo: outer steps between pairs, without a collective.

use crate::{
    LocalRule,
    arith::{update, zeros},
    error::{ConfigError, at_least_one, below_one, carries, positive},
    recursion::{MARGIN, Recursion, mean_square_of_pairs},
    stability::{check_gossip, unstable},
};
use gaggle_core::{
    At, Codec, Cx, Draw, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability,
    Unstable,
};

/// Settings of [`NoLoCo`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoLoCoConfig {
    /// H: inner steps per outer step.
    pub period: u64,
    /// α: momentum of the outer step, from 0 to below 1.
    pub alpha: f64,
    /// β: how much of the group's mean move is taken, above 0.
    pub beta: f64,
    /// γ: how hard ranks are drawn together, above 0.
    pub gamma: f64,
    /// What is on the wire.
    pub codec: Codec,
}

impl Default for NoLoCoConfig {
    fn default() -> Self {
        NoLoCoConfig {
            period: 50,
            alpha: 0.5,
            beta: 0.7,
            gamma: 0.7,
            codec: Codec::None,
        }
    }
}

/// After H inner steps: D = θ − φ; δ ← αδ + β·W D + γ(Wφ − φ); φ ← φ + δ; θ ← φ.
///
/// W is the topology's round of this communication: `random-matching` for the paper's random pairs, `one-peer-hypercube` for pairs in turn, `fully-connected` for DiLoCo with heavy ball (where α is its momentum and β its step).
/// One message of 2n elements to each neighbour per H steps; state φ and δ, 2n elements, and the inner rule's.
/// Source: Kolehmainen et al. 2025, "NoLoCo", as in the released code; γ above a limit that depends on α diverges (with the default γ = 0.7, α = 0.9 does), which [`Rule::check`] computes: in the mean square where pairs are drawn uniformly at random ([`Draw::Matching`]), from the product over the period where rounds repeat; of other topologies that never repeat, pairs by another rule too, nothing is known.
pub struct NoLoCo<T> {
    config: NoLoCoConfig,
    local: Box<dyn LocalRule<T>>,
    phi: Vec<T>,
    delta: Vec<T>,
}

impl<T: Float> NoLoCo<T> {
    /// The rule around the inner step `local`.
    ///
    /// # Errors
    /// A setting out of its range, by name, or a codec that does not carry `T`.
    pub fn new(local: Box<dyn LocalRule<T>>, config: NoLoCoConfig) -> Result<Self, ConfigError> {
        at_least_one("period", config.period)?;
        below_one("alpha", config.alpha)?;
        positive("beta", config.beta)?;
        positive("gamma", config.gamma)?;
        carries::<T>(config.codec)?;
        Ok(NoLoCo {
            config,
            local,
            phi: Vec::new(),
            delta: Vec::new(),
        })
    }
}

impl<T: Float> Rule<T> for NoLoCo<T> {
    fn name(&self) -> &str {
        "noloco"
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.local.init(n);
        (self.phi, self.delta) = (zeros(n), zeros(n));
    }
    fn period(&self) -> Option<u64> {
        Some(self.config.period)
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::neighbours(cx).width(2).coded(self.config.codec));
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        let phi = &self.phi[local.at.clone()];
        let (moved, out_phi) = out.split_at_mut(local.at.len());
        self.local.step_into(cx, local.at, local.x, local.g, moved);
        update(moved, |k, theta| theta - phi[k].to_f64());
        out_phi.copy_from_slice(phi);
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        if at == At::BeforeForward {
            if cx.step == 0 {
                self.phi[local.at].copy_from_slice(local.x);
            }
            return;
        }
        let Some(mean) = means.first() else {
            self.local.step(cx, local);
            return;
        };
        let (moved, mixed) = mean.values.split_at(local.at.len());
        let (phi, delta) = (&mut self.phi[local.at.clone()], &mut self.delta[local.at]);
        let NoLoCoConfig {
            alpha, beta, gamma, ..
        } = self.config;
        update(delta, |k, d| {
            let apart = mixed[k].to_f64() - phi[k].to_f64();
            alpha * d + beta * moved[k].to_f64() + gamma * apart
        });
        update(phi, |k, x| x + delta[k].to_f64());
        local.x.copy_from_slice(phi);
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_gossip(facts, lr)?;
        let NoLoCoConfig { alpha, gamma, .. } = self.config;
        let instead = "a smaller gamma or alpha (alpha 0.5 with gamma 0.7 is stable), or diloco";
        if facts.drawn == Some(Draw::Matching) {
            let growth = mean_square_of_pairs(alpha, gamma, facts.world);
            if (1.0 - MARGIN..=1.0 + MARGIN).contains(&growth) {
                return Ok(Stability::Marginal(format!(
                    "over random pairs of {} ranks the mean square of disagreements is multiplied by {growth:.12} per outer step",
                    facts.world
                )));
            }
            if growth > 1.0 {
                return unstable(
                    format!(
                        "over random pairs of {} ranks the mean square of disagreements grows by a factor of {growth:.4} per outer step with alpha {alpha} and gamma {gamma}",
                        facts.world
                    ),
                    instead,
                );
            }
            return Ok(Stability::Stable);
        }
        if !facts.repeats {
            return Ok(Stability::Unchecked(format!(
                "how the rounds of a topology that never repeats are drawn decides whether noloco is stable with alpha {alpha} and gamma {gamma}; it is known of random-matching"
            )));
        }
        // (φ, δ) ← (φ + δ⁺, δ⁺) with δ⁺ = αδ + γ(w − 1)φ.
        Recursion::new(
            [[1.0 - gamma, alpha], [-gamma, alpha]],
            [[gamma, 0.0], [gamma, 0.0]],
        )
        .check("noloco", facts, instead)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("phi", &mut self.phi);
        visit("outer momentum", &mut self.delta);
        self.local.state(visit);
    }
}
