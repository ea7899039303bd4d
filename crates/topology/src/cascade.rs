//! Null-cascade graphs: circulant rounds that each put out some frequencies of a disagreement, until none is left (Niwa et al. 2025).

use crate::error::{TopologyError, checked_world};
use gaggle_core::{Form, Rank, Round, Topology};
use std::f64::consts::TAU;

/// At most k neighbours per round (k ≥ 2), the exact mean for every number of ranks, in rounds that may come in any order.
///
/// The rounds are circulant and commute. Their number is that of the prime factors of n up to k + 1, plus ⌊f/2⌋ for every larger prime factor f.
#[derive(Clone, Debug)]
pub struct NullCascade {
    n: u32,
    /// Per round: how much further the receiver is, and the weight; the first is oneself.
    rounds: Vec<Vec<(u32, f64)>>,
}

impl NullCascade {
    /// The cascade of `world` ranks with up to `k` neighbours per round.
    ///
    /// # Errors
    /// A world of no ranks; k below 2.
    pub fn new(world: usize, k: usize) -> Result<NullCascade, TopologyError> {
        let n = checked_world("null-cascade", world)?;
        if k < 2 {
            return Err(TopologyError::Parameter {
                topology: "null-cascade".into(),
                what: format!("a round needs at least 2 neighbours, not {k}"),
            });
        }
        // More neighbours than there are change nothing.
        let (small, large) = factors(u64::from(n), k.min(world) as u64 + 1);
        let n = u64::from(n);
        let mut done = 1;
        let mut rounds = Vec::new();
        for f in small {
            // A mean over f ranks at equal distances.
            let step = n / (f * done);
            rounds.push((0..f).map(|i| (i * step, 1.0 / f as f64)).collect());
            done *= f;
        }
        for f in large {
            let base = n / (f * done);
            rounds.extend((1..=f / 2).rev().map(|t| null_filter(n, f, t, base)));
            done *= f;
        }
        let narrow = |taps: Vec<(u64, f64)>| taps.into_iter().map(|(d, w)| (d as u32, w)).collect();
        Ok(NullCascade {
            n: n as u32,
            rounds: rounds.into_iter().map(narrow).collect(),
        })
    }
}

/// Prime factors: those up to `most`, merged while the product is not above it and descending, and the others.
fn factors(mut n: u64, most: u64) -> (Vec<u64>, Vec<u64>) {
    let mut small = Vec::new();
    for f in (2..=most.min(n)).rev() {
        while n.is_multiple_of(f) {
            small.push(f);
            n /= f;
        }
    }
    let (mut large, mut f) = (Vec::new(), 2);
    while f * f <= n {
        while n.is_multiple_of(f) {
            large.push(f);
            n /= f;
        }
        f += 1;
    }
    if n > 1 {
        large.push(n);
    }
    (small, large)
}

/// Three taps whose response is 0 at the frequencies ± t·n/f, with no negative weight.
///
/// (1, −2cos(2πq/n), 1) at distances 0, M and 2M, where the multiple q of the frequency is the first whose cosine is not positive; turned so that the largest tap is a rank's own.
fn null_filter(n: u64, f: u64, t: u64, base: u64) -> Vec<(u64, f64)> {
    let q0 = t * (n / f);
    let cosine = |m: u64| (TAU * ((m * q0) % n) as f64 / n as f64).cos();
    // A quarter of a turn, exactly or passed, is reached within one turn.
    let m = (1..=n).find(|m| cosine(*m) <= 1e-15).unwrap_or(1);
    let middle = (-2.0 * cosine(m)).max(0.0);
    let sum = 2.0 + middle;
    let distance = base * m % n;
    let taps = match middle >= 1.0 {
        true => [(0, middle), (distance, 1.0), ((n - distance) % n, 1.0)],
        false => [(0, 1.0), (distance, middle), (2 * distance % n, 1.0)],
    };
    let mut kept: Vec<(u64, f64)> = Vec::new();
    for (d, w) in taps.into_iter().filter(|(_, w)| *w > 0.0) {
        match kept.iter_mut().find(|tap| tap.0 == d) {
            Some(tap) => tap.1 += w / sum,
            None => kept.push((d, w / sum)),
        }
    }
    kept
}

impl Topology for NullCascade {
    fn name(&self) -> &str {
        "null-cascade"
    }
    fn world(&self) -> usize {
        self.n as usize
    }
    fn period(&self) -> Option<u64> {
        Some(self.rounds.len().max(1) as u64)
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        out.from.clear();
        out.to.clear();
        (out.keep, out.form) = (1.0, Form::Delta);
        let (n, me) = (u64::from(self.n), u64::from(rank.0));
        let at = |d: u64| Rank(((me + d) % n) as u32);
        let Some(taps) = self
            .rounds
            .get((t % self.rounds.len().max(1) as u64) as usize)
        else {
            return;
        };
        for &(d, w) in taps {
            if d == 0 {
                out.keep = w;
            } else {
                out.from.push((at(n - u64::from(d)), w));
                out.to.push((at(u64::from(d)), 1.0));
            }
        }
    }
}
