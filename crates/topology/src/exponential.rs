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

/// Receives from i − b^m for every b^m < n, all weighed alike; b = 2 unless told otherwise.
///
/// τ = ⌈log_b n⌉ messages per rank and round. For b = 2, ρ = (τ − 1)/(τ + 1) for even n, smaller for odd n.
#[derive(Clone, Debug)]
pub struct StaticExp {
    n: u32,
    base: u32,
    name: &'static str,
}

impl StaticExp {
    /// The exponential graph of `world` ranks, with base 2.
    ///
    /// # Errors
    /// A world of no ranks.
    pub fn new(world: usize) -> Result<StaticExp, TopologyError> {
        Ok(StaticExp {
            n: checked_world("static-exp", world)?,
            base: 2,
            name: "static-exp",
        })
    }

    /// With another base.
    ///
    /// # Errors
    /// A world of no ranks; a base below 2.
    pub fn with_base(world: usize, base: u32) -> Result<StaticExp, TopologyError> {
        Ok(StaticExp {
            n: checked_world("exp", world)?,
            base: checked_base("exp", base)?,
            name: "exp",
        })
    }
}

impl Topology for StaticExp {
    fn name(&self) -> &str {
        self.name
    }
    fn world(&self) -> usize {
        self.n as usize
    }
    fn period(&self) -> Option<u64> {
        Some(1)
    }
    fn round(&self, rank: Rank, _t: u64, out: &mut Round) {
        circulant(self.n, rank, powers(self.base, self.n), out);
    }
}

/// Offsets that are a power of the base from one side or the other: s up to n/2, and n − s beyond.
///
/// About 2·log_b n messages per rank and round. Symmetric.
#[derive(Clone, Debug)]
pub struct SymmetricExp {
    n: u32,
    /// In 1..n, ascending.
    offsets: Vec<u32>,
}

impl SymmetricExp {
    /// The symmetric exponential graph of `world` ranks; BlueFog's base is 4.
    ///
    /// # Errors
    /// A world of no ranks; a base below 2.
    pub fn new(world: usize, base: u32) -> Result<SymmetricExp, TopologyError> {
        let name = "symmetric-exp";
        let (n, base) = (checked_world(name, world)?, checked_base(name, base)?);
        let half = n / 2;
        let near = powers(base, n).take_while(|p| *p <= half);
        let mut offsets: Vec<u32> = near.flat_map(|p| [p, n - p]).collect();
        offsets.sort_unstable();
        offsets.dedup();
        Ok(SymmetricExp { n, offsets })
    }
}

impl Topology for SymmetricExp {
    fn name(&self) -> &str {
        "symmetric-exp"
    }
    fn world(&self) -> usize {
        self.n as usize
    }
    fn period(&self) -> Option<u64> {
        Some(1)
    }
    fn round(&self, rank: Rank, _t: u64, out: &mut Round) {
        circulant(self.n, rank, self.offsets.iter().copied(), out);
    }
}

/// In round l = t mod τ receives from i − j·(k + 1)^l for j = 1..=k, 1/(k + 1) each; τ = ⌊log_{k+1} n⌋.
///
/// k messages per rank and round. Exactly the mean after τ rounds where n = (k + 1)^τ; elsewhere ρ of a period is max over q of |sin(πq(k+1)^τ/n) / ((k+1)^τ·sin(πq/n))| (Niwa et al. 2025).
#[derive(Clone, Copy, Debug)]
pub struct KPeerExp {
    n: u32,
    k: u32,
    turns: u32,
}

impl KPeerExp {
    /// The k-peer exponential graph of `world` ranks.
    ///
    /// # Errors
    /// A world of no ranks; k = 0, or k ranks besides oneself being more than there are (in a world of more than one).
    pub fn new(world: usize, k: u32) -> Result<KPeerExp, TopologyError> {
        let name = "k-peer-exp";
        let n = checked_world(name, world)?;
        if k == 0 || (n > 1 && k >= n) {
            return Err(TopologyError::Parameter {
                topology: name.into(),
                what: format!("{k} peers per round in a world of {world}"),
            });
        }
        // Whoever is alone has no peers, however many were asked for.
        let k = k.min(n);
        // Powers of k + 1 up to n, 1 among them, less one.
        let turns = powers(k.saturating_add(1), n.saturating_add(1)).count() as u32 - 1;
        Ok(KPeerExp { n, k, turns })
    }
}

impl Topology for KPeerExp {
    fn name(&self) -> &str {
        "k-peer-exp"
    }
    fn world(&self) -> usize {
        self.n as usize
    }
    fn period(&self) -> Option<u64> {
        Some(u64::from(self.turns.max(1)))
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        let turn = (t % u64::from(self.turns.max(1))) as u32;
        let step = (self.k + 1).pow(turn);
        let peers = if self.turns == 0 { 0 } else { self.k };
        // k·(k + 1)^l < (k + 1)^τ ≤ n.
        circulant(self.n, rank, (1..=peers).map(|j| j * step), out);
    }
}

/// 1, b, b², … below n, in integers: floating logarithms miss exact powers.
fn powers(base: u32, n: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(1u32), move |p| p.checked_mul(base)).take_while(move |p| *p < n)
}

fn checked_base(name: &str, base: u32) -> Result<u32, TopologyError> {
    match base >= 2 {
        true => Ok(base),
        false => Err(TopologyError::Parameter {
            topology: name.into(),
            what: format!("the base is at least 2, not {base}"),
        }),
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
