//! Gossip with periodic global averaging.

use crate::{
    LocalRule,
    error::{ConfigError, at_least_one, carries},
    stability::{check_lr, check_sums},
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability,
    Unstable, With,
};

/// Neighbours in most steps, everybody in each h-th: x⁺ = J(x − d) where (k + 1) mod h = 0, W(x − d) elsewhere.
///
/// One message of n elements per communication; with h = 1 it is all-reduce SGD, with local steps in between ([`gaggle_core::Cx::mixes`]) k counts communications.
/// Source: Chen et al. 2021, "Accelerating gossip SGD with periodic global averaging", Algorithm 1.
pub struct GossipPga<T> {
    name: String,
    local: Box<dyn LocalRule<T>>,
    h: u64,
    codec: Codec,
}

impl<T: Float> GossipPga<T> {
    /// The rule around the step `local`, with everybody in every `h`-th communication. Named `gossip-pga`, with the local rule's name behind it where that is not plain SGD.
    ///
    /// # Errors
    /// `h` is 0, or `codec` does not carry `T`.
    pub fn new(local: Box<dyn LocalRule<T>>, h: u64, codec: Codec) -> Result<Self, ConfigError> {
        at_least_one("global_period", h)?;
        carries::<T>(codec)?;
        let name = match local.name() {
            "sgd" => "gossip-pga".to_owned(),
            other => format!("gossip-pga-{other}"),
        };
        Ok(GossipPga {
            name,
            local,
            h,
            codec,
        })
    }
}

impl<T: Float> Rule<T> for GossipPga<T> {
    fn name(&self) -> &str {
        &self.name
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.local.init(n);
    }
    fn period(&self) -> Option<u64> {
        Some(1)
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        let global = (cx.round + 1).is_multiple_of(self.h);
        let with = if global {
            With::Everyone
        } else {
            With::Neighbours
        };
        list.push(Exchange::new(with, cx).coded(self.codec));
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        self.local.step_into(cx, local.at, local.x, local.g, out);
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        match (at, means.first()) {
            (At::AfterGradient, Some(mean)) => local.x.copy_from_slice(mean.values),
            (At::AfterGradient, None) => self.local.step(cx, local),
            _ => {}
        }
    }
    /// The global averages keep the ranks together on any weights that keep the average.
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        // With h = 1 neighbours are never asked.
        if self.h > 1 {
            check_sums(facts)?;
        }
        check_lr(lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        self.local.state(visit);
    }
}
