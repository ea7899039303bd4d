//! What rules need to know of a topology, measured.

use crate::{
    check::TOLERANCE,
    mixing::{Sparse, unreached},
    spectrum::extremes,
};
use gaggle_core::{MixingFacts, Topology};

/// Rounds that stand for the period of a topology that never repeats.
pub const NEVER_REPEATS: u64 = 64;

/// Up to this many ranks the spectrum is exact to rounding; beyond, `contraction` is a bound from below.
const EXACT_RANKS: usize = 1024;

pub(crate) fn rounds_in_period(topology: &dyn Topology) -> u64 {
    topology.period().unwrap_or(NEVER_REPEATS).max(1)
}

/// Measures one period of `topology` (the first [`NEVER_REPEATS`] rounds of one that never repeats).
///
/// Cost: for n ranks and E edges per period, up to n Lanczos steps of E + n² operations; early stops make it far less in practice.
/// Up to 1,024 ranks `contraction` and `lambda_min` are right to about 1e-12; beyond, 512 steps bound them from inside the spectrum.
pub fn facts(topology: &dyn Topology) -> MixingFacts {
    let period = rounds_in_period(topology);
    let mixings: Vec<Sparse> = (0..period).map(|t| Sparse::of(topology, t)).collect();
    let one = |sum: f64| (sum - 1.0).abs() <= TOLERANCE;
    let n = topology.world();
    let symmetric = mixings.iter().all(|m| m.is_symmetric(TOLERANCE));
    MixingFacts {
        world: n,
        period,
        row_stochastic: mixings.iter().all(|m| (0..n).all(|i| one(m.row_sum(i)))),
        column_stochastic: mixings.iter().all(|m| m.column_sums().into_iter().all(one)),
        symmetric,
        connected: unreached(&mixings).is_none(),
        contraction: contraction(&mixings, symmetric),
        lambda_min: match &mixings[..] {
            [only] if symmetric => Some(smallest_eigenvalue(only)),
            _ => None,
        },
    }
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

/// ‖Π − J‖₂ with Π = W_{τ−1}…W_0 and J = 11ᵀ/n.
fn contraction(mixings: &[Sparse], symmetric: bool) -> f64 {
    let n = mixings.first().map_or(0, Sparse::world);
    let minus_mean = |x: &[f64], y: &mut [f64]| {
        let mean = x.iter().sum::<f64>() / n as f64;
        y.iter_mut().for_each(|v| *v -= mean);
    };
    if let ([only], true) = (mixings, symmetric) {
        let (low, high) = extremes(n, steps(n), |x, y| {
            only.apply(x, y);
            minus_mean(x, y);
        });
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
