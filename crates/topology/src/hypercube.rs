//! Hypercubes: neighbours whose number differs in one bit, all at once or one per round.

use crate::error::{TopologyError, checked_world};
use gaggle_core::{Form, Rank, Round, Topology};

fn checked_dimension(name: &str, world: usize) -> Result<u32, TopologyError> {
    let n = checked_world(name, world)?;
    match n.is_power_of_two() {
        true => Ok(n.trailing_zeros()),
        false => Err(TopologyError::NotAPower {
            topology: name.into(),
            world,
            of: 2,
        }),
    }
}

/// n = 2^q ranks, edges between numbers that differ in one bit, 1/(q + 1) each.
///
/// q messages per rank and round; symmetric; ρ = (q − 1)/(q + 1).
#[derive(Clone, Copy, Debug)]
pub struct Hypercube {
    bits: u32,
}

impl Hypercube {
    /// The hypercube of `world` ranks.
    ///
    /// # Errors
    /// A world that is no power of two.
    pub fn new(world: usize) -> Result<Hypercube, TopologyError> {
        let bits = checked_dimension("hypercube", world)?;
        Ok(Hypercube { bits })
    }
}

impl Topology for Hypercube {
    fn name(&self) -> &str {
        "hypercube"
    }
    fn world(&self) -> usize {
        1 << self.bits
    }
    fn period(&self) -> Option<u64> {
        Some(1)
    }
    fn round(&self, rank: Rank, _t: u64, out: &mut Round) {
        partners(rank, 0..self.bits, out);
    }
}

/// In round t partners are those whose number differs in bit t mod q; ½ and ½.
///
/// One message per rank and round, both ways; q rounds give exactly the mean.
#[derive(Clone, Copy, Debug)]
pub struct OnePeerHypercube {
    bits: u32,
}

impl OnePeerHypercube {
    /// The one-peer hypercube of `world` ranks.
    ///
    /// # Errors
    /// A world that is no power of two.
    pub fn new(world: usize) -> Result<OnePeerHypercube, TopologyError> {
        let bits = checked_dimension("one-peer-hypercube", world)?;
        Ok(OnePeerHypercube { bits })
    }
}

impl Topology for OnePeerHypercube {
    fn name(&self) -> &str {
        "one-peer-hypercube"
    }
    fn world(&self) -> usize {
        1 << self.bits
    }
    fn period(&self) -> Option<u64> {
        Some(u64::from(self.bits.max(1)))
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        let bit = (t % u64::from(self.bits.max(1))) as u32;
        partners(rank, bit..self.bits.min(bit + 1), out);
    }
}

fn partners(rank: Rank, bits: std::ops::Range<u32>, out: &mut Round) {
    out.from.clear();
    out.to.clear();
    let weight = 1.0 / f64::from(bits.len() as u32 + 1);
    for bit in bits {
        let peer = Rank(rank.0 ^ (1 << bit));
        out.from.push((peer, weight));
        out.to.push((peer, 1.0));
    }
    out.keep = weight;
    out.form = Form::Delta;
}
