//! Random graphs, the same on every rank: from a seed, and for those that change from the round's number.

use crate::{Graph, Table, TopologyError, Weights, error::checked_world};
use gaggle_core::{Draw, Form, Rank, Round, Topology};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Draws before a sparse random graph is given up as one that never connects.
const DRAWS: u64 = 1000;
/// Pairs that are looked at in all of them.
const MOST_PAIRS: u64 = 500_000_000;

/// Every pair with probability `p`, drawn again until everybody reaches everybody; Metropolis–Hastings weights (Erdős and Rényi 1959).
///
/// p·(n − 1) messages per rank and round on average. Connected with high probability from p = ln n/n on.
///
/// # Errors
/// `p` outside 0..=1; a world of no ranks; a graph that was not connected in 1,000 draws, fewer of more than 1,000 ranks.
pub fn erdos_renyi(world: usize, p: f64, seed: u64) -> Result<Table, TopologyError> {
    let n = checked_world("erdos-renyi", world)?;
    if !(0.0..=1.0).contains(&p) {
        return Err(TopologyError::Parameter {
            topology: "erdos-renyi".into(),
            what: format!("an edge's probability is from 0 to 1, not {p}"),
        });
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let pairs = u64::from(n) * u64::from(n.saturating_sub(1)) / 2;
    let draws = (MOST_PAIRS / pairs.max(1)).clamp(4, DRAWS);
    for _ in 0..draws {
        let mut edges = Vec::new();
        for a in 0..n {
            edges.extend(
                (a + 1..n)
                    .filter(|_| rng.random_bool(p))
                    .map(|b| (Rank(a), Rank(b))),
            );
        }
        let graph = Graph::undirected(world, edges)?;
        if graph.is_connected() {
            return graph.table("erdos-renyi", Weights::Metropolis);
        }
    }
    Err(TopologyError::Parameter {
        topology: "erdos-renyi".into(),
        what: format!(
            "{world} ranks with edges of probability {p} were not connected in {draws} draws"
        ),
    })
}

/// In every round another random perfect matching; ½ and ½, and where the world is odd one rank idles.
///
/// One message per rank and round, both ways. Never repeats; in the mean square what is left of a disagreement is ½ − 1/(2(n − 1)) per round for even n.
/// Rounds are asked for in any order and cost nothing: partners come from a permutation that is computed for one rank alone.
#[derive(Clone, Copy, Debug)]
pub struct RandomMatching {
    n: u32,
    seed: u64,
}

impl RandomMatching {
    /// Matchings of `world` ranks; the same `seed` gives the same ones on every rank.
    ///
    /// # Errors
    /// A world of no ranks.
    pub fn new(world: usize, seed: u64) -> Result<RandomMatching, TopologyError> {
        let n = checked_world("random-matching", world)?;
        Ok(RandomMatching { n, seed })
    }
}

impl Topology for RandomMatching {
    fn name(&self) -> &str {
        "random-matching"
    }
    fn world(&self) -> usize {
        self.n as usize
    }
    fn period(&self) -> Option<u64> {
        None
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        let shuffle = Shuffle::new(self.n, self.seed, t);
        let seat = shuffle.seat(rank.0);
        let partner = Some(seat ^ 1)
            .filter(|s| *s < self.n)
            .map(|s| shuffle.who(s));
        pair(partner.map(Rank), 0.5, out);
    }
    fn drawn(&self) -> Option<Draw> {
        Some(Draw::Matching)
    }
}

/// One partner whose value counts `weight`, or nobody.
pub(crate) fn pair(partner: Option<Rank>, weight: f64, out: &mut Round) {
    out.from.clear();
    out.to.clear();
    out.from.extend(partner.map(|p| (p, weight)));
    out.to.extend(partner.map(|p| (p, 1.0)));
    out.keep = if partner.is_some() { 1.0 - weight } else { 1.0 };
    out.form = Form::Delta;
}

/// A generator for one round, the same on every rank.
pub(crate) fn rng_of(seed: u64, t: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(t);
    rng
}

/// A pseudo-random permutation of 0..n that is computed for one number at a time: a Feistel network on the next even number of bits, applied until the result is below n (Black and Rogaway 2002, cycle walking).
struct Shuffle {
    n: u32,
    half: u32,
    keys: [u64; Shuffle::ROUNDS],
}

impl Shuffle {
    const ROUNDS: usize = 8;

    fn new(n: u32, seed: u64, t: u64) -> Shuffle {
        let bits = u32::BITS - (n - 1).leading_zeros();
        let mut rng = rng_of(seed, t);
        Shuffle {
            n,
            half: bits.div_ceil(2).max(1),
            keys: std::array::from_fn(|_| rng.random()),
        }
    }

    /// Where `x` sits.
    fn seat(&self, x: u32) -> u32 {
        self.walk(x, |y| self.keys.iter().fold(y, |y, k| self.forth(y, *k)))
    }

    /// Who sits there.
    fn who(&self, seat: u32) -> u32 {
        self.walk(seat, |y| {
            self.keys.iter().rev().fold(y, |y, k| self.back(y, *k))
        })
    }

    fn walk(&self, x: u32, step: impl Fn(u64) -> u64) -> u32 {
        let mut y = u64::from(x);
        loop {
            y = step(y);
            if y < u64::from(self.n) {
                return y as u32;
            }
        }
    }

    fn forth(&self, y: u64, key: u64) -> u64 {
        let (left, right) = self.halves(y);
        (right << self.half) | (left ^ self.mixed(right, key))
    }

    fn back(&self, y: u64, key: u64) -> u64 {
        let (left, right) = self.halves(y);
        ((right ^ self.mixed(left, key)) << self.half) | left
    }

    fn halves(&self, y: u64) -> (u64, u64) {
        (y >> self.half, y & ((1 << self.half) - 1))
    }

    /// The finaliser of SplitMix64 (Steele, Lea and Flood 2014), cut to half the bits.
    fn mixed(&self, x: u64, key: u64) -> u64 {
        let mut z = x.wrapping_add(key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) & ((1 << self.half) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_is_a_permutation_and_its_inverse() {
        for n in [1, 2, 3, 5, 8, 13, 64, 1000] {
            for t in 0..20 {
                let shuffle = Shuffle::new(n, 7, t);
                let mut seats: Vec<u32> = (0..n).map(|x| shuffle.seat(x)).collect();
                for (x, seat) in seats.iter().enumerate() {
                    assert_eq!(shuffle.who(*seat), x as u32, "n = {n}, t = {t}");
                }
                seats.sort_unstable();
                assert!(seats.into_iter().eq(0..n), "n = {n}, t = {t}");
            }
        }
    }
}
