//! The two graphs of diameter at most two: star and complete graph.

use crate::error::{TopologyError, checked_world};
use gaggle_core::{Form, Rank, Round, Topology};

/// One rank in the middle, every edge with weight 1/n: the Metropolis weights of the star.
///
/// The centre sends and receives n − 1 messages per round, a leaf one; ρ = 1 − 1/n.
#[derive(Clone, Copy, Debug)]
pub struct Star {
    n: u32,
    centre: Rank,
}

impl Star {
    /// A star of `world` ranks around `centre`.
    ///
    /// # Errors
    /// A world of no ranks, or a centre outside it.
    pub fn new(world: usize, centre: Rank) -> Result<Star, TopologyError> {
        let n = checked_world("star", world)?;
        if centre.0 >= n {
            return Err(TopologyError::Centre { centre, world });
        }
        Ok(Star { n, centre })
    }
}

impl Topology for Star {
    fn name(&self) -> &str {
        "star"
    }
    fn world(&self) -> usize {
        self.n as usize
    }
    fn period(&self) -> Option<u64> {
        Some(1)
    }
    fn round(&self, rank: Rank, _t: u64, out: &mut Round) {
        let edge = 1.0 / f64::from(self.n);
        out.from.clear();
        out.to.clear();
        out.form = Form::Delta;
        if rank == self.centre {
            out.keep = edge;
            push_all_but(self.n, rank, edge, out);
        } else {
            out.keep = 1.0 - edge;
            out.from.push((self.centre, edge));
            out.to.push((self.centre, 1.0));
        }
    }
}

/// Everybody with everybody, 1/n each: one round gives the mean. n − 1 messages per rank and round.
#[derive(Clone, Copy, Debug)]
pub struct FullyConnected {
    n: u32,
}

impl FullyConnected {
    /// The complete graph of `world` ranks.
    ///
    /// # Errors
    /// A world of no ranks.
    pub fn new(world: usize) -> Result<FullyConnected, TopologyError> {
        Ok(FullyConnected {
            n: checked_world("fully-connected", world)?,
        })
    }
}

impl Topology for FullyConnected {
    fn name(&self) -> &str {
        "fully-connected"
    }
    fn world(&self) -> usize {
        self.n as usize
    }
    fn period(&self) -> Option<u64> {
        Some(1)
    }
    fn round(&self, rank: Rank, _t: u64, out: &mut Round) {
        let weight = 1.0 / f64::from(self.n);
        out.from.clear();
        out.to.clear();
        out.keep = weight;
        out.form = Form::Delta;
        push_all_but(self.n, rank, weight, out);
    }
}

fn push_all_but(n: u32, rank: Rank, weight: f64, out: &mut Round) {
    for peer in (0..n).map(Rank).filter(|&peer| peer != rank) {
        out.from.push((peer, weight));
        out.to.push((peer, 1.0));
    }
}
