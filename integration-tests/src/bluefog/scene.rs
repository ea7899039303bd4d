//! What every case is given: the group, this rank's place in it, and the graphs that the tests speak of.

use crate::{
    bluefog::expect,
    work::{Number, Trouble},
};
use gaggle::{
    Element, Float, Group, Kind, Lane, Op, Rank, Round, Work,
    topology::{Graph, Weights, by_name, edges},
};
use std::cell::Cell;

/// Elements of BlueFog's tensors: 23, 23² and 23³.
pub(crate) const LENGTHS: [usize; 3] = [23, 23 * 23, 23 * 23 * 23];

/// How many tensors the fusion tests start at once.
pub(crate) const MANY: usize = 50;

/// A rank among the others, and the number of its next round.
pub struct Scene {
    pub(crate) group: Group,
    /// r.
    pub(crate) me: u32,
    /// n.
    pub(crate) n: u32,
    t: Cell<u64>,
    lanes: Cell<u32>,
}

/// Lanes that a mixer of a case may use.
const LANES: u32 = 8;

impl Scene {
    pub(crate) fn new(group: Group) -> Scene {
        Scene {
            me: group.rank().0,
            n: group.size() as u32,
            group,
            t: Cell::new(0),
            // Past those that mixers use unless told.
            lanes: Cell::new(2000),
        }
    }

    /// The first of some lanes that no case before has had.
    pub(crate) fn next_lanes(&self) -> Lane {
        Lane(self.lanes.replace(self.lanes.get() + LANES))
    }

    /// The rank `distance` further on, around the world.
    pub(crate) fn at(&self, distance: i32) -> Rank {
        around(self.me, distance, self.n)
    }

    /// A number that no round before has had.
    pub(crate) fn next_round(&self) -> u64 {
        self.t.replace(self.t.get() + 1)
    }

    /// x = r.
    pub(crate) fn own<T: Number>(&self, len: usize) -> Vec<T> {
        vec![T::of(f64::from(self.me)); len]
    }

    /// D: in-neighbours of the exponential graph.
    pub(crate) fn degree(&self) -> u32 {
        self.in_exp2(self.me).len() as u32
    }

    /// The in-neighbours r − 2^i of a rank, by the definition.
    pub(crate) fn in_exp2(&self, rank: u32) -> Vec<u32> {
        powers(self.n)
            .map(|p| around(rank, -(p as i32), self.n).0)
            .collect()
    }

    /// Its out-neighbours r + 2^i.
    pub(crate) fn out_exp2(&self, rank: u32) -> Vec<u32> {
        powers(self.n)
            .map(|p| around(rank, p as i32, self.n).0)
            .collect()
    }

    /// S.
    pub(crate) fn closed_sum(&self) -> f64 {
        f64::from(self.me + self.in_exp2(self.me).iter().sum::<u32>())
    }

    /// This rank's part of the first round of a topology.
    pub(crate) fn round_of(&self, topology: &str) -> Result<Round, Trouble> {
        let mut round = Round::default();
        by_name(topology, self.group.size())?.round(Rank(self.me), 0, &mut round);
        Ok(round)
    }

    /// The exponential graph with one weight for all that is received, and one for the own value.
    pub(crate) fn exp2_with(&self, keep: f64, src: f64, dst: f64) -> Round {
        let weighed = |list: Vec<u32>, w: f64| list.into_iter().map(|r| (Rank(r), w)).collect();
        Round {
            from: weighed(self.in_exp2(self.me), src),
            to: weighed(self.out_exp2(self.me), dst),
            keep,
            ..Round::default()
        }
    }

    /// This rank's part of an unweighted graph: everybody's closed neighbourhood counts alike.
    pub(crate) fn unweighted(&self, topology: &str) -> Result<Round, Trouble> {
        let all = edges(&*by_name(topology, self.group.size())?, 0);
        let all = all.into_iter().map(|(from, to, _)| (from, to));
        let graph = Graph::new(self.group.size(), all)?;
        Ok(graph.round(Weights::Uniform)?[self.me as usize].clone())
    }

    /// The neighbour average of `x`, out of place; `x` must be as it was.
    pub(crate) fn mixed<T: Number + Float>(
        &self,
        x: &[T],
        round: &Round,
    ) -> Result<Vec<T>, Trouble> {
        let kept = x.to_vec();
        let y = self
            .group
            .neighbour_all_reduce(x, round, self.next_round())?;
        expect::exactly(x, &kept)?;
        expect::length(y.len(), x.len())?;
        Ok(y)
    }

    /// Starts the neighbour average of `x`, and returns at once.
    pub(crate) fn start_mix<T: Element>(&self, x: Vec<T>, round: &Round) -> Work<Vec<T>> {
        let (round, t) = (round.clone(), self.next_round());
        self.group.start(Op::new(Kind::Mix { round, t }), x)
    }
}

/// (rank + distance) mod n.
pub(crate) fn around(rank: u32, distance: i32, n: u32) -> Rank {
    Rank((i64::from(rank) + i64::from(distance)).rem_euclid(i64::from(n)) as u32)
}

/// 1, 2, 4, … below n.
fn powers(n: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS).map(|b| 1 << b).take_while(move |p| *p < n)
}
