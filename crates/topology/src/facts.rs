//! What rules need to know of a topology, measured.

use crate::{
    check::TOLERANCE,
    circulant::{self, Circulant, Waves},
    mixing::{self, Sparse, gcd, unreached},
    spectrum::extremes,
};
use gaggle_core::{MixingFacts, Modes, Rank, Topology};

/// Rounds that stand for the period of a topology that never repeats.
pub const NEVER_REPEATS: u64 = 64;

/// Up to this many ranks the spectrum is exact to rounding; beyond, `contraction` is a bound from below.
const EXACT_RANKS: usize = 1024;

pub(crate) fn rounds_in_period(topology: &dyn Topology) -> u64 {
    topology.period().unwrap_or(NEVER_REPEATS).max(1)
}

/// Measures one period of `topology` (the first [`NEVER_REPEATS`] rounds of one that never repeats).
///
/// Cost: where all ranks do the same at the same distances, n² simple operations per round, exact for every number of ranks.
/// Elsewhere, for n ranks and E edges per period, up to n Lanczos steps of E + n² operations; early stops make it far less in practice. Up to 1,024 ranks `contraction` and `lambda_min` are then right to about 1e-12; beyond, 512 steps bound them from inside the spectrum.
pub fn facts(topology: &dyn Topology) -> MixingFacts {
    MixingFacts {
        repeats: topology.period().is_some(),
        drawn: topology.drawn(),
        ..Rounds::of(topology).facts()
    }
}

/// One period, in the form in which it is measured.
pub(crate) enum Rounds {
    Circulant(Vec<Circulant>, Waves, usize),
    Sparse(Vec<Sparse>),
}

impl Rounds {
    pub(crate) fn of(topology: &dyn Topology) -> Rounds {
        let period = rounds_in_period(topology);
        let n = topology.world();
        let same: Option<Vec<Circulant>> =
            (0..period).map(|t| Circulant::of(topology, t)).collect();
        match same {
            Some(rounds) => Rounds::Circulant(rounds, Waves::new(n), n),
            None => Rounds::Sparse((0..period).map(|t| Sparse::of(topology, t)).collect()),
        }
    }

    pub(crate) fn facts(&self) -> MixingFacts {
        let one = |sum: f64| (sum - 1.0).abs() <= TOLERANCE;
        match self {
            Rounds::Circulant(rounds, waves, n) => {
                // Row and column sums of a circulant matrix are the same.
                let stochastic = rounds.iter().all(|r| one(r.sum()));
                let symmetric = rounds.iter().all(|r| r.is_symmetric(TOLERANCE));
                let lambda_min = match &rounds[..] {
                    [only] if symmetric => {
                        let all = only.eigenvalues(waves);
                        Some(all.iter().map(|e| e.0).fold(f64::INFINITY, f64::min))
                    }
                    _ => None,
                };
                MixingFacts {
                    world: *n,
                    period: rounds.len() as u64,
                    row_stochastic: stochastic,
                    column_stochastic: stochastic,
                    symmetric,
                    connected: is_coprime(*n, rounds.iter().flat_map(Circulant::distances)),
                    contraction: circulant_contraction(rounds, waves),
                    lambda_min,
                    repeats: true,
                    tree: *n <= 2 && rounds.len() == 1,
                    drawn: None,
                    cycle: circulant::cycle(rounds, *n),
                    // All ranks do the same.
                    keeps_nothing: rounds
                        .iter()
                        .position(|r| r.keep() <= 0.0)
                        .map(|t| (t as u64, Rank(0))),
                    modes: circulant_modes(rounds, waves),
                }
            }
            Rounds::Sparse(mixings) => {
                let n = mixings.first().map_or(0, Sparse::world);
                let symmetric = mixings.iter().all(|m| m.is_symmetric(TOLERANCE));
                let modes = sparse_modes(mixings, symmetric);
                MixingFacts {
                    world: n,
                    period: mixings.len() as u64,
                    row_stochastic: mixings.iter().all(|m| (0..n).all(|i| one(m.row_sum(i)))),
                    column_stochastic: mixings.iter().all(|m| m.column_sums().into_iter().all(one)),
                    symmetric,
                    connected: unreached(mixings).is_none(),
                    contraction: match modes {
                        Modes::Between(low, high) => low.abs().max(high.abs()),
                        _ => contraction(mixings, symmetric),
                    },
                    lambda_min: match (&mixings[..], &modes) {
                        // Clearly below where agreement has been moved to, so not agreement itself.
                        ([_], Modes::Between(low, _)) if *low < -1e-9 => Some(*low),
                        ([only], _) if symmetric => Some(smallest_eigenvalue(only)),
                        _ => None,
                    },
                    repeats: true,
                    tree: matches!(&mixings[..], [only] if symmetric && only.n_edges() + 2 == 2 * n)
                        && unreached(mixings).is_none(),
                    drawn: None,
                    cycle: mixing::cycle(mixings),
                    keeps_nothing: keeps_nothing(mixings),
                    modes,
                }
            }
        }
    }

    /// How many rounds there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Rounds::Circulant(rounds, ..) => rounds.len(),
            Rounds::Sparse(mixings) => mixings.len(),
        }
    }

    /// Rounds from the first on after which everybody has exactly the mean; `None`: not within these.
    pub(crate) fn exact_after(&self) -> Option<u64> {
        match self {
            _ if self.world() <= 1 => Some(0),
            Rounds::Circulant(rounds, waves, _) => (1..=rounds.len())
                .find(|n| circulant_contraction(&rounds[..*n], waves) <= TOLERANCE)
                .map(|n| n as u64),
            Rounds::Sparse(mixings) => sparse_exact_after(mixings),
        }
    }

    fn world(&self) -> usize {
        match self {
            Rounds::Circulant(_, _, n) => *n,
            Rounds::Sparse(mixings) => mixings.first().map_or(0, Sparse::world),
        }
    }

    /// ‖W − J‖₂ of the first `most` rounds.
    pub(crate) fn contractions(&self, most: usize) -> Vec<f64> {
        match self {
            Rounds::Circulant(rounds, waves, _) => rounds
                .chunks(1)
                .take(most)
                .map(|one| circulant_contraction(one, waves))
                .collect(),
            Rounds::Sparse(mixings) => mixings
                .chunks(1)
                .take(most)
                .map(|one| match falls_apart(&one[0]) {
                    true => 1.0,
                    false => contraction(one, one[0].is_symmetric(TOLERANCE)),
                })
                .collect(),
        }
    }
}

/// Whether steps of these sizes lead from everywhere to everywhere on a circle of n.
fn is_coprime(n: usize, distances: impl Iterator<Item = usize>) -> bool {
    distances.fold(n as u64, |g, d| gcd(g, d as u64)) == 1
}

/// Circulant matrices are normal and commute: the singular values of their product are the moduli of the products of their eigenvalues.
fn circulant_contraction(rounds: &[Circulant], waves: &Waves) -> f64 {
    let mut product: Vec<(f64, f64)> = vec![];
    for round in rounds {
        let next = round.eigenvalues(waves);
        if product.is_empty() {
            product = next;
            continue;
        }
        for (p, e) in product.iter_mut().zip(next) {
            *p = (p.0 * e.0 - p.1 * e.1, p.0 * e.1 + p.1 * e.0);
        }
    }
    // J has the eigenvalue 1 where all ranks are alike, and 0 elsewhere.
    if let Some(first) = product.first_mut() {
        first.0 -= 1.0;
    }
    product.iter().map(|e| e.0.hypot(e.1)).fold(0.0, f64::max)
}

/// Circulant matrices share their eigenvectors, the waves; wave 0 is agreement.
fn circulant_modes(rounds: &[Circulant], waves: &Waves) -> Modes {
    let all: Vec<Vec<(f64, f64)>> = rounds.iter().map(|r| r.eigenvalues(waves)).collect();
    let n = all.first().map_or(0, Vec::len);
    Modes::Apart(
        (1..n)
            .map(|q| all.iter().map(|round| round[q]).collect())
            .collect(),
    )
}

fn sparse_modes(mixings: &[Sparse], symmetric: bool) -> Modes {
    let n = mixings.first().map_or(0, Sparse::world);
    match mixings {
        _ if n <= 1 => Modes::Apart(Vec::new()),
        [only] if symmetric => {
            let (low, high) = apart_from_agreement(only);
            Modes::Between(low, high)
        }
        _ => Modes::Sparse(mixings.iter().map(Sparse::matrix).collect()),
    }
}

/// Whether a round keeps averages and leaves ranks without a way to each other: some disagreement stays whole, and none grows.
fn falls_apart(round: &Sparse) -> bool {
    let one = |sum: f64| (sum - 1.0).abs() <= TOLERANCE;
    let weights = round.rows.iter().flatten().map(|e| &e.1);
    round.world() > 1
        && round.keep.iter().chain(weights).all(|w| *w >= 0.0)
        && (0..round.world()).all(|i| one(round.row_sum(i)))
        && round.column_sums().into_iter().all(one)
        && unreached(std::slice::from_ref(round)).is_some()
}

/// The first round and rank whose own weight is 0.
fn keeps_nothing(mixings: &[Sparse]) -> Option<(u64, Rank)> {
    let empty = |m: &Sparse| m.keep.iter().position(|w| *w <= 0.0);
    let mut rounds = mixings.iter().enumerate();
    rounds.find_map(|(t, m)| empty(m).map(|r| (t as u64, Rank(r as u32))))
}

/// Vectors without structure go through the rounds; who agrees on all of them agrees on everything.
fn sparse_exact_after(mixings: &[Sparse]) -> Option<u64> {
    const VECTORS: usize = 4;
    let n = mixings.first().map_or(0, Sparse::world);
    let mut s = 7_u64;
    let mut random = || {
        s = s
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (s >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    };
    let mut all: Vec<Vec<f64>> = (0..VECTORS)
        .map(|_| (0..n).map(|_| random()).collect())
        .collect();
    let mean = |x: &Vec<f64>| x.iter().sum::<f64>() / n as f64;
    let means: Vec<f64> = all.iter().map(mean).collect();
    let mut next = vec![0.0; n];
    for (t, mixing) in mixings.iter().enumerate() {
        let mut exact = true;
        for (x, mean) in all.iter_mut().zip(&means) {
            mixing.apply(x, &mut next);
            std::mem::swap(x, &mut next);
            exact &= x.iter().all(|v| (v - mean).abs() <= TOLERANCE);
        }
        if exact {
            return Some(t as u64 + 1);
        }
    }
    None
}

fn steps(dimension: usize) -> usize {
    if dimension <= 2 * EXACT_RANKS {
        dimension
    } else {
        EXACT_RANKS / 2
    }
}

fn smallest_eigenvalue(mixing: &Sparse) -> f64 {
    let n = mixing.world();
    extremes(n, steps(n), |x, y| mixing.apply(x, y)).0
}

/// Smallest and largest eigenvalue of W − J for a symmetric W: agreement's is moved to 0.
fn apart_from_agreement(mixing: &Sparse) -> (f64, f64) {
    let n = mixing.world();
    extremes(n, steps(n), |x, y| {
        mixing.apply(x, y);
        let mean = x.iter().sum::<f64>() / n as f64;
        y.iter_mut().for_each(|v| *v -= mean);
    })
}

/// ‖Π − J‖₂ with Π = W_{τ−1}…W_0 and J = 11ᵀ/n.
fn contraction(mixings: &[Sparse], symmetric: bool) -> f64 {
    let n = mixings.first().map_or(0, Sparse::world);
    let minus_mean = |x: &[f64], y: &mut [f64]| {
        let mean = x.iter().sum::<f64>() / n as f64;
        y.iter_mut().for_each(|v| *v -= mean);
    };
    if let ([only], true) = (mixings, symmetric) {
        let (low, high) = apart_from_agreement(only);
        return low.abs().max(high.abs());
    }
    // The eigenvalues of [[0, A], [Aᵀ, 0]] are ± the singular values of A: no squares, so that 0 comes out as 0.
    let (_, high) = extremes(2 * n, steps(2 * n), |x, y| {
        let (top, bottom) = x.split_at(n);
        let (y_top, y_bottom) = y.split_at_mut(n);
        let (mut a, mut b) = (bottom.to_vec(), vec![0.0; n]);
        for mixing in mixings {
            mixing.apply(&a, &mut b);
            std::mem::swap(&mut a, &mut b);
        }
        y_top.copy_from_slice(&a);
        minus_mean(bottom, y_top);
        a.copy_from_slice(top);
        for mixing in mixings.iter().rev() {
            mixing.apply_transposed(&a, &mut b);
            std::mem::swap(&mut a, &mut b);
        }
        y_bottom.copy_from_slice(&a);
        minus_mean(top, y_bottom);
    });
    high.max(0.0)
}
