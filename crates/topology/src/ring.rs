//! Rings: both neighbours, or one.

use crate::error::{TopologyError, checked_world};
use gaggle_core::{Form, Rank, Round, Topology};

/// Both neighbours, a third each and a third to oneself; ½ and ½ in a world of two.
///
/// Two messages per rank and round. ρ = ⅓ + ⅔·cos(2π/n), so 1 − ρ ≈ 4π²/(3n²): simple and slow.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    n: u32,
}

impl Ring {
    /// A ring of `world` ranks.
    ///
    /// # Errors
    /// A world of no ranks.
    pub fn new(world: usize) -> Result<Ring, TopologyError> {
        Ok(Ring {
            n: checked_world("ring", world)?,
        })
    }
}

impl Topology for Ring {
    fn name(&self) -> &str {
        "ring"
    }
    fn world(&self) -> usize {
        self.n as usize
    }
    fn period(&self) -> Option<u64> {
        Some(1)
    }
    fn round(&self, rank: Rank, _t: u64, out: &mut Round) {
        match self.n {
            1 => circulant(self.n, rank, [], out),
            2 => circulant(self.n, rank, [1], out),
            n => circulant(n, rank, [1, n - 1], out),
        }
    }
}

/// Which way a one-directional ring turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Direction {
    /// Rank i sends to i + 1.
    #[default]
    Right,
    /// Rank i sends to i − 1.
    Left,
}

/// One neighbour, ½ to it and ½ to oneself. One message per rank and round; ρ = cos(π/n).
#[derive(Clone, Copy, Debug)]
pub struct UniRing {
    n: u32,
    direction: Direction,
}

impl UniRing {
    /// A ring of `world` ranks that turns in `direction`.
    ///
    /// # Errors
    /// A world of no ranks.
    pub fn new(world: usize, direction: Direction) -> Result<UniRing, TopologyError> {
        Ok(UniRing {
            n: checked_world("uni-ring", world)?,
            direction,
        })
    }
}

impl Topology for UniRing {
    fn name(&self) -> &str {
        match self.direction {
            Direction::Right => "uni-ring",
            Direction::Left => "uni-ring-left",
        }
    }
    fn world(&self) -> usize {
        self.n as usize
    }
    fn period(&self) -> Option<u64> {
        Some(1)
    }
    fn round(&self, rank: Rank, _t: u64, out: &mut Round) {
        match (self.n, self.direction) {
            (1, _) => circulant(1, rank, [], out),
            (n, Direction::Right) => circulant(n, rank, [1], out),
            (n, Direction::Left) => circulant(n, rank, [n - 1], out),
        }
    }
}

/// The round in which everybody sends to the ranks `offsets` further on, receives from those `offsets` back, and weighs all of them and itself alike.
///
/// Offsets are distinct and in 1..n. Uniform weights on a circulant graph are doubly stochastic.
pub(crate) fn circulant(
    n: u32,
    rank: Rank,
    offsets: impl IntoIterator<Item = u32>,
    out: &mut Round,
) {
    out.from.clear();
    out.to.clear();
    for d in offsets {
        out.from.push((shifted(rank, n - d, n), 0.0));
        out.to.push((shifted(rank, d, n), 1.0));
    }
    let weight = 1.0 / (out.from.len() + 1) as f64;
    for (_, w) in &mut out.from {
        *w = weight;
    }
    out.keep = weight;
    out.form = Form::Delta;
}

/// (rank + d) mod n, in wide arithmetic: the sum may pass what 32 bits hold.
fn shifted(rank: Rank, d: u32, n: u32) -> Rank {
    Rank(((u64::from(rank.0) + u64::from(d)) % u64::from(n)) as u32)
}
