//! The largest eigenvalue of a matrix that is only ever applied: for the disagreements of many ranks, whose matrix is sparse and whose square is not.
//!
//! Source: the Arnoldi method with full reorthogonalisation, Golub and Van Loan, "Matrix Computations", §10.5; norms by random vectors, Halko, Martinsson and Tropp 2011, "Finding structure with randomness", §4.3.

use crate::{
    complex::C,
    hessenberg::{Columns, eigenvalues, residual},
    recursion::MARGIN,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Powers A^p whose spectrum is looked at, one after the other. The higher, the fewer eigenvalues are left that matter.
const POWERS: [u32; 6] = [1, 8, 64, 512, 4096, 32_768];
/// Random vectors that a norm is told from.
const PROBES: usize = 8;
/// How many times what they show a norm is taken for: too little once in 10⁷ times.
const SAFELY: f64 = 10.0;

/// A linear map of vectors of `size` elements onto themselves.
pub(crate) trait Operator {
    fn size(&self) -> usize;
    /// Multiplications of one application.
    fn work(&self) -> usize;
    /// x ← Ax.
    fn apply(&mut self, x: &mut [f64]);
}

/// What is known of the largest modulus among the eigenvalues.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Radius {
    /// It is this, to about 10⁻¹¹.
    Is(f64),
    /// It is no more than this, which is below 1.
    AtMost(f64),
}

/// How far a search goes.
struct Limits {
    /// Up to this many dimensions the space is searched whole, and the answer exact to rounding; of larger ones so many dimensions.
    whole: usize,
    /// Up to this many it is searched whole when all else has failed.
    whole_at_last: usize,
    /// Multiplications after which it ends without an answer.
    work: f64,
}

/// A few seconds.
const USUAL: Limits = Limits {
    whole: 132,
    whole_at_last: 420,
    work: 4e9,
};

/// The largest modulus among the eigenvalues of `a`; `None`: not found within the work that is allowed.
///
/// Small spaces are searched whole. In others an eigenvalue of a power A^p is taken when it has settled: its residual is that of rounding, and it was the largest before the space had twice its dimensions, too. Where none settles, because many are equally large, ‖A^p‖ bounds them all; or growth that goes on over many powers shows what they do.
pub(crate) fn spectral_radius(a: &mut dyn Operator) -> Option<Radius> {
    search(a, &USUAL)
}

fn search(a: &mut dyn Operator, limits: &Limits) -> Option<Radius> {
    let (n, whole) = (a.size(), limits.whole);
    if n == 0 {
        return Some(Radius::Is(0.0));
    }
    if n <= whole {
        return largest(a, 1, n).map(Radius::Is);
    }
    let mut rng = ChaCha8Rng::seed_from_u64(42);
    let mut probes: Vec<Vec<f64>> = (0..PROBES).map(|_| normal(&mut rng, n)).collect();
    let (mut done, mut work, mut before) = (0, 0.0, None);
    let a_work = a.work() as f64;
    let mut afford = |applications: f64, more: usize| {
        let with_it = work + applications * a_work + more as f64;
        let affordable = with_it <= limits.work;
        if affordable {
            work = with_it;
        }
        affordable
    };
    for power in POWERS {
        let steps = power - done;
        if !afford(PROBES as f64 * f64::from(steps), 0) {
            break;
        }
        for probe in &mut probes {
            (0..steps).for_each(|_| a.apply(probe));
        }
        done = power;
        let squares = probes.iter().flatten().map(|v| v * v).sum::<f64>();
        let size = (squares / PROBES as f64).sqrt();
        let bound = (SAFELY * size).powf(1.0 / f64::from(power));
        if bound < 1.0 - 2.0 * MARGIN {
            return Some(Radius::AtMost(bound));
        }
        // What the whole space of the power costs, or else vectors alone must do.
        if afford(whole as f64 * f64::from(power), 2 * n * whole * whole)
            && let Some(radius) = largest(a, power, whole)
        {
            return Some(Radius::Is(radius));
        }
        if let Some((earlier, smaller)) = before.replace((power, size))
            && smaller > 1e3
            && size > 1e6 * smaller
        {
            let steps = f64::from(power - earlier);
            return Some(Radius::Is((size / smaller).powf(1.0 / steps)));
        }
    }
    if n <= limits.whole_at_last {
        return largest(a, 1, n).map(Radius::Is);
    }
    None
}

/// The p-th root of the largest modulus among the eigenvalues of A^p, once it has settled in a space of no more than `most` dimensions, or that space is whole.
fn largest(a: &mut dyn Operator, power: u32, most: usize) -> Option<f64> {
    const FIRST_LOOK: usize = 24;
    let n = a.size();
    let mut basis = vec![normal(&mut ChaCha8Rng::seed_from_u64(7), n)];
    let mut next = basis[0].clone();
    a.apply(&mut next); // Out of what is no disagreement.
    basis[0].clone_from(&next);
    if normalise(&mut basis[0]) == 0.0 {
        return Some(0.0);
    }
    let root = |size: f64| size.powf(1.0 / f64::from(power));
    let mut columns: Vec<Vec<f64>> = Vec::new();
    let (mut look, mut seen, mut scale) = (FIRST_LOOK, None, 0.0_f64);
    for step in 1..=most {
        next.clone_from(&basis[step - 1]);
        (0..power).for_each(|_| a.apply(&mut next));
        let mut column = vec![0.0; step + 1];
        // Twice is enough, against what rounding leaves of the others.
        for _ in 0..2 {
            for (v, h) in basis.iter().zip(&mut column) {
                let part = dot(v, &next);
                *h += part;
                next.iter_mut().zip(v).for_each(|(x, v)| *x -= part * v);
            }
        }
        let norm = normalise(&mut next);
        column[step] = norm;
        scale = column.iter().fold(scale, |s, v| s.max(v.abs()));
        columns.push(column);
        if !scale.is_finite() {
            return None;
        }
        if norm <= 1e-13 * scale || step == n {
            return Some(root(dominant(&columns)?.size()));
        }
        if step == look || step == most {
            look *= 2;
            let theta = dominant(&columns)?;
            let size = theta.size();
            // A relative error e of A^p's is one of e/p of A's.
            let fine = 1e-11 * f64::from(power.min(64)) * size;
            let same = |before: f64| (before - size).abs() <= 100.0 * fine;
            if seen.replace(size).is_some_and(same) && residual(&columns, theta) <= fine {
                return Some(root(size));
            }
        }
        basis.push(next.clone());
    }
    None
}

/// The eigenvalue of the largest modulus.
fn dominant(columns: &Columns) -> Option<C> {
    let all = eigenvalues(columns)?;
    all.into_iter().max_by(|a, b| a.size().total_cmp(&b.size()))
}

/// Scales `x` to length 1; its length comes back, and 0 stays 0.
fn normalise(x: &mut [f64]) -> f64 {
    let norm = dot(x, x).sqrt();
    if norm > 0.0 {
        x.iter_mut().for_each(|x| *x /= norm);
    }
    norm
}

/// In eight lanes, so that the compiler may use wide registers.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a * b);
    rest.chain(lanes).sum()
}

/// Independent numbers of the normal distribution (Box and Muller 1958).
fn normal(rng: &mut ChaCha8Rng, n: usize) -> Vec<f64> {
    let one = |_| {
        let (u, v) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    };
    (0..n).map(one).collect()
}

#[cfg(test)]
mod tests;
