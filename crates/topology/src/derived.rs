//! Topologies made of others, or of a function.

use crate::{Graph, TopologyError, Weights, error::checked_world, machines::lcm};
use gaggle_core::{Form, Rank, Round, Topology};

/// One edge of a graph per rank and round: each rank goes through its out-neighbours by clockwise distance, over and over.
///
/// One message sent per rank and round. On an irregular graph some rounds bring a rank several messages or none; then uniform weights are biased ([`check`](crate::check) says so), and [`Weights::Push`] with push-sum is not.
#[derive(Clone, Debug)]
pub struct OnePeer {
    name: String,
    /// By clockwise distance.
    out: Vec<Vec<u32>>,
    /// Per rank: the sender, which of its turns it is, and how many it has.
    into: Vec<Vec<(u32, u64, u64)>>,
    weights: Weights,
    period: Option<u64>,
}

impl OnePeer {
    /// The schedule over `graph`. `weights`: [`Weights::Uniform`] (half and half where one message comes) or [`Weights::Push`].
    ///
    /// # Errors
    /// Other weights, which a schedule in one direction does not have.
    pub fn over(
        name: impl Into<String>,
        graph: &Graph,
        weights: Weights,
    ) -> Result<OnePeer, TopologyError> {
        let name = name.into();
        if !matches!(weights, Weights::Uniform | Weights::Push) {
            return Err(TopologyError::Parameter {
                topology: name,
                what: format!("one peer per round has uniform or push weights, not {weights:?}"),
            });
        }
        let n = graph.world() as u64;
        let clockwise = |i: usize, j: u32| (u64::from(j) + n - i as u64) % n;
        let mut out: Vec<Vec<u32>> = Vec::new();
        let mut into = vec![vec![]; graph.world()];
        for i in 0..graph.world() {
            let mut list: Vec<u32> = graph.out_neighbours(Rank(i as u32)).map(|r| r.0).collect();
            list.sort_by_key(|j| clockwise(i, *j));
            for (turn, j) in list.iter().enumerate() {
                into[*j as usize].push((i as u32, turn as u64, list.len() as u64));
            }
            out.push(list);
        }
        let mut turns = out.iter().map(|list| list.len().max(1) as u64);
        // Degrees without common factors: for what users call never.
        let period = turns.try_fold(1u64, |all, n| Some(lcm(all, n)).filter(|p| *p <= 1 << 20));
        Ok(OnePeer {
            name,
            out,
            into,
            weights,
            period,
        })
    }
}

impl Topology for OnePeer {
    fn name(&self) -> &str {
        &self.name
    }
    fn world(&self) -> usize {
        self.out.len()
    }
    fn period(&self) -> Option<u64> {
        self.period
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        out.from.clear();
        out.to.clear();
        let list = &self.out[rank.idx()];
        let senders = self.into[rank.idx()].iter();
        let now = senders.filter(|(_, turn, turns)| t % turns == *turn);
        out.from.extend(now.map(|(j, ..)| (Rank(*j), 1.0)));
        let next = list.get((t % list.len().max(1) as u64) as usize);
        if self.weights == Weights::Push {
            out.keep = if next.is_some() { 0.5 } else { 1.0 };
            out.to.extend(next.map(|j| (Rank(*j), 0.5)));
            out.form = Form::Sum;
            return;
        }
        out.to.extend(next.map(|j| (Rank(*j), 1.0)));
        out.keep = 1.0 / (out.from.len() + 1) as f64;
        for (_, w) in &mut out.from {
            *w = out.keep;
        }
        out.form = Form::Delta;
    }
}

/// (I + W)/2: half of every step of another topology. Without negative eigenvalues where W is symmetric.
#[derive(Clone, Debug)]
pub struct Lazy<T> {
    of: T,
    name: String,
}

impl<T: Topology> Lazy<T> {
    /// The lazy form of a topology; `lazy-ring` of `ring`.
    pub fn new(of: T) -> Lazy<T> {
        let name = format!("lazy-{}", of.name());
        Lazy { of, name }
    }
}

impl<T: Topology> Topology for Lazy<T> {
    fn name(&self) -> &str {
        &self.name
    }
    fn world(&self) -> usize {
        self.of.world()
    }
    fn period(&self) -> Option<u64> {
        self.of.period()
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        self.of.round(rank, t, out);
        out.keep = (1.0 + out.keep) / 2.0;
        out.from.iter_mut().for_each(|(_, w)| *w /= 2.0);
    }
}

/// A topology that is a function of rank and round.
///
/// ```
/// use gaggle_core::{Rank, Round};
/// use gaggle_topology::{FromFn, check};
///
/// // Pairs, and in every other round the other pairs.
/// let pairs = FromFn::new("pairs", 6, Some(2), |rank: Rank, t, out: &mut Round| {
///     let up = (u64::from(rank.0) + t) % 2 == 0;
///     let peer = Rank(if up { rank.0 + 1 } else { rank.0 + 5 } % 6);
///     out.from.push((peer, 0.5));
///     out.to.push((peer, 1.0));
///     out.keep = 0.5;
/// })?;
/// check(&pairs)?;
/// # Ok::<(), gaggle_topology::TopologyError>(())
/// ```
pub struct FromFn<F> {
    name: String,
    world: usize,
    period: Option<u64>,
    f: F,
}

impl<F: Fn(Rank, u64, &mut Round) + Send + Sync> FromFn<F> {
    /// `f` fills a round that is empty: no neighbours, own weight 1, delta form. Pure: the same on every rank. What it says is [checked](crate::check) by whoever asks for it.
    ///
    /// # Errors
    /// A world of no ranks.
    pub fn new(
        name: impl Into<String>,
        world: usize,
        period: Option<u64>,
        f: F,
    ) -> Result<FromFn<F>, TopologyError> {
        let name = name.into();
        checked_world(&name, world)?;
        Ok(FromFn {
            name,
            world,
            period,
            f,
        })
    }
}

impl<F: Fn(Rank, u64, &mut Round) + Send + Sync> Topology for FromFn<F> {
    fn name(&self) -> &str {
        &self.name
    }
    fn world(&self) -> usize {
        self.world
    }
    fn period(&self) -> Option<u64> {
        self.period
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        out.from.clear();
        out.to.clear();
        (out.keep, out.form) = (1.0, Form::Delta);
        (self.f)(rank, t, out);
    }
}
