//! Exponential graphs: neighbours at distances that are powers of two, all at once or one per round.
//!
//! Source: Ying et al. 2021, "Exponential graph is provably efficient for decentralized deep training", in BlueFog's orientation.

use crate::{
    error::{TopologyError, checked_world},
    ring::circulant,
};
use gaggle_core::{Rank, Round, Topology};

/// τ = ⌈log₂ n⌉, in integers: floating logarithms miss exact powers.
fn tau(n: u32) -> u32 {
    u32::BITS - (n - 1).leading_zeros()
}

/// Receives from i − 2^m for m = 0..τ with τ = ⌈log₂ n⌉, weight 1/(τ + 1) each.
///
/// τ messages per rank and round. ρ = (τ − 1)/(τ + 1) for even n, smaller for odd n.
#[derive(Clone, Copy, Debug)]
pub struct StaticExp {
    n: u32,
}

impl StaticExp {
    /// The exponential graph of `world` ranks.
    ///
    /// # Errors
    /// A world of no ranks.
    pub fn new(world: usize) -> Result<StaticExp, TopologyError> {
        Ok(StaticExp {
            n: checked_world("static-exp", world)?,
        })
    }
}

impl Topology for StaticExp {
    fn name(&self) -> &str {
        "static-exp"
    }
    fn world(&self) -> usize {
        self.n as usize
    }
    fn period(&self) -> Option<u64> {
        Some(1)
    }
    fn round(&self, rank: Rank, _t: u64, out: &mut Round) {
        circulant(self.n, rank, (0..tau(self.n)).map(|m| 1 << m), out);
    }
}

/// In round t sends to i + 2^(t mod τ) and averages ½, ½ with what comes from i − 2^(t mod τ); τ = ⌈log₂ n⌉.
///
/// One message per rank and round. The product of τ rounds is exactly the mean where n = 2^τ; elsewhere ‖Π − J‖ = max over q of |sin(πq2^τ/n) / (2^τ·sin(πq/n))|.
#[derive(Clone, Copy, Debug)]
pub struct OnePeerExp {
    n: u32,
}

impl OnePeerExp {
    /// The one-peer exponential graph of `world` ranks.
    ///
    /// # Errors
    /// A world of no ranks.
    pub fn new(world: usize) -> Result<OnePeerExp, TopologyError> {
        Ok(OnePeerExp {
            n: checked_world("one-peer-exp", world)?,
        })
    }
}

impl Topology for OnePeerExp {
    fn name(&self) -> &str {
        "one-peer-exp"
    }
    fn world(&self) -> usize {
        self.n as usize
    }
    fn period(&self) -> Option<u64> {
        Some(u64::from(tau(self.n).max(1)))
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        let tau = tau(self.n);
        let offset = (tau > 0).then(|| 1 << (t % u64::from(tau)));
        circulant(self.n, rank, offset, out);
    }
}

#[cfg(test)]
mod tests {
    use super::tau;

    #[test]
    fn tau_is_the_rounded_up_logarithm() {
        let expected = [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)];
        for (n, want) in expected {
            assert_eq!(tau(n), want, "n = {n}");
        }
        assert_eq!(tau(u32::MAX), 32);
    }
}
