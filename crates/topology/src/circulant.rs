//! Rounds in which every rank does the same at the same distances: their spectrum in closed form, for any number of ranks.

use crate::mixing::gcd;
use gaggle_core::{Rank, Round, Topology};

/// One round of such a topology: what a rank puts on itself, and on whom is so many ranks back.
pub(crate) struct Circulant {
    n: usize,
    keep: f64,
    taps: Vec<(usize, f64)>,
}

impl Circulant {
    /// Round `t`, if it is one. Asks every rank, and keeps one rank's answer: n·d steps for d neighbours.
    pub(crate) fn of(topology: &dyn Topology, t: u64) -> Option<Circulant> {
        let n = topology.world();
        let mut round = Round::default();
        topology.round(Rank(0), t, &mut round);
        // By distance: the receiver's weight of who is so far back, the sender's for who is so far ahead.
        let (mut back, mut ahead) = (vec![None; n], vec![None; n]);
        for &(j, w) in &round.from {
            *back.get_mut(n.checked_sub(j.idx())? % n)? = Some(w);
        }
        for &(j, w) in &round.to {
            *ahead.get_mut(j.idx())? = Some(w);
        }
        let keep = round.keep;
        let sizes = (round.from.len(), round.to.len());
        for i in 1..n {
            topology.round(Rank(i as u32), t, &mut round);
            let same = round.keep == keep
                && (round.from.len(), round.to.len()) == sizes
                && round
                    .from
                    .iter()
                    .all(|&(j, w)| j.idx() < n && back[(i + n - j.idx()) % n] == Some(w))
                && round
                    .to
                    .iter()
                    .all(|&(j, w)| j.idx() < n && ahead[(j.idx() + n - i) % n] == Some(w));
            if !same {
                return None;
            }
        }
        let taps = back.iter().zip(&ahead).enumerate();
        let taps = taps.filter_map(|(d, (a, b))| Some((d, (*a)? * (*b)?)));
        Some(Circulant {
            n,
            keep,
            taps: taps.collect(),
        })
    }

    /// λ_q = keep + Σ w_d·exp(−2πi·q·d/n) for q = 0..n, as (real, imaginary) parts.
    pub(crate) fn eigenvalues(&self, waves: &Waves) -> Vec<(f64, f64)> {
        let one = |q: usize| {
            let mut sum = (self.keep, 0.0);
            for &(d, w) in &self.taps {
                let (cos, sin) = waves.0[q * d % self.n];
                sum = (sum.0 + w * cos, sum.1 - w * sin);
            }
            sum
        };
        (0..self.n).map(one).collect()
    }

    /// What a rank puts on itself.
    pub(crate) fn keep(&self) -> f64 {
        self.keep
    }

    pub(crate) fn sum(&self) -> f64 {
        self.keep + self.taps.iter().map(|(_, w)| w).sum::<f64>()
    }

    pub(crate) fn is_symmetric(&self, tolerance: f64) -> bool {
        let mut by_distance = vec![0.0; self.n];
        self.taps.iter().for_each(|(d, w)| by_distance[*d] = *w);
        self.taps
            .iter()
            .all(|&(d, w)| (by_distance[(self.n - d) % self.n] - w).abs() <= tolerance)
    }

    /// Distances that carry something.
    pub(crate) fn distances(&self) -> impl Iterator<Item = usize> + '_ {
        self.taps.iter().filter(|(_, w)| *w > 0.0).map(|(d, _)| *d)
    }
}

/// How far apart in time what one rank has reaches all n ranks ([`gaggle_core::MixingFacts::cycle`]): between ranks whose numbers differ by a multiple of g, the divisor of n and of the differences between what is reached at the same time, it spreads; the g classes only go round.
pub(crate) fn cycle(rounds: &[Circulant], n: usize) -> u64 {
    let (mut g, mut shift) = (n as u64, 0);
    for round in rounds {
        let own = (round.keep > 0.0).then_some(0);
        let mut reached = own.into_iter().chain(round.distances()).map(|d| d as u64);
        let Some(first) = reached.next() else {
            return 0;
        };
        shift += first;
        g = reached.fold(g, |g, d| gcd(g, d.abs_diff(first)));
    }
    match gcd(shift, g) {
        1 => g,
        _ => 0,
    }
}

/// cos and sin of 2πj/n for all j, each to rounding.
pub(crate) struct Waves(Vec<(f64, f64)>);

impl Waves {
    pub(crate) fn new(n: usize) -> Waves {
        let one = |j: usize| {
            // Quarters of a turn are exact, and so is the symmetry around them.
            let eighths = 8 * j;
            let (quadrant, rest) = (4 * j / n, 4 * j % n);
            let angle = std::f64::consts::FRAC_PI_2 * rest as f64 / n as f64;
            let (sin, cos) = match eighths % (2 * n) > n {
                // Past an eighth: from the other side.
                true => {
                    let (sin, cos) =
                        (std::f64::consts::FRAC_PI_2 * (n - rest) as f64 / n as f64).sin_cos();
                    (cos, sin)
                }
                false => angle.sin_cos(),
            };
            match quadrant {
                0 => (cos, sin),
                1 => (-sin, cos),
                2 => (-cos, -sin),
                _ => (sin, -cos),
            }
        };
        Waves((0..n).map(one).collect())
    }
}
