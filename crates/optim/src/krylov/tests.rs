//! Against dense matrices, on graphs of all sorts.

use super::*;
use crate::recursion::{Recursion, Together, by_squaring};
use gaggle_core::SparseMatrix;
use rand::seq::SliceRandom;

/// As W by rows.
type Rows = Vec<Vec<(usize, f64)>>;

fn sparse(rows: &Rows) -> SparseMatrix {
    SparseMatrix::new(rows.len(), |i| rows[i].clone())
}

/// Everybody hears of the permutation's, with weight `w`, and keeps the rest.
fn permuted(rng: &mut ChaCha8Rng, n: usize, w: f64) -> Rows {
    let mut to: Vec<usize> = (0..n).collect();
    to.shuffle(rng);
    (0..n).map(|i| vec![(i, 1.0 - w), (to[i], w)]).collect()
}

/// Directed, with in- and out-degrees that differ from rank to rank; weights scaled until rows and columns sum to 1 (Sinkhorn 1964).
fn irregular(rng: &mut ChaCha8Rng, n: usize) -> Rows {
    let mut rows: Rows = (0..n)
        .map(|i| {
            let mut row = vec![(i, 1.0), ((i + 1) % n, 1.0)];
            let more = rng.random_range(0..4);
            row.extend((0..more).map(|_| (rng.random_range(0..n), 1.0)));
            row
        })
        .collect();
    for _ in 0..20_000 {
        let mut sums = vec![0.0; n];
        rows.iter().flatten().for_each(|&(j, w)| sums[j] += w);
        for row in &mut rows {
            row.iter_mut().for_each(|(j, w)| *w /= sums[*j]);
            let sum: f64 = row.iter().map(|e| e.1).sum();
            row.iter_mut().for_each(|e| e.1 /= sum);
        }
    }
    rows
}

/// Rank i hears of 2i and 2i + 1: after log₂ n rounds everybody has the mean, where n is a power of 2.
fn bruijn(n: usize) -> Rows {
    (0..n)
        .map(|i| vec![(2 * i % n, 0.5), ((2 * i + 1) % n, 0.5)])
        .collect()
}

/// A directed ring with one chord both ways: slow, and no two ranks alike.
fn chord(n: usize) -> Rows {
    let mut rows: Rows = (0..n).map(|i| vec![(i, 0.5), ((i + 1) % n, 0.5)]).collect();
    rows[0].extend([(0, -0.25), (n / 3, 0.25)]);
    rows[n / 3].extend([(n / 3, -0.25), (0, 0.25)]);
    rows
}

fn graphs(n: usize) -> Vec<(&'static str, Vec<Rows>)> {
    let mut rng = ChaCha8Rng::seed_from_u64(n as u64);
    let schedule =
        |rng: &mut ChaCha8Rng, rounds| (0..rounds).map(|_| permuted(rng, n, 0.5)).collect();
    vec![
        ("irregular", vec![irregular(&mut rng, n)]),
        (
            "irregular in turns",
            vec![irregular(&mut rng, n), permuted(&mut rng, n, 0.7)],
        ),
        ("one peer", schedule(&mut rng, 3)),
        ("one peer, long", schedule(&mut rng, 7)),
        ("de bruijn", vec![bruijn(n & !1)]),
        ("chord", vec![chord(n)]),
    ]
}

fn recursions() -> [(&'static str, Recursion); 6] {
    let lam = |b: f64| Recursion::new([[0.0, -b], [1.0, b]], [[1.0, 0.0], [-1.0, 0.0]]);
    [
        (
            "mean",
            Recursion::new([[0.0; 2]; 2], [[1.0, 0.0], [0.0, 0.0]]),
        ),
        (
            "d2",
            Recursion::new([[0.0, 0.0], [1.0, 0.0]], [[2.0, -1.0], [0.0, 0.0]]),
        ),
        (
            "exact diffusion",
            Recursion::new([[1.0, -0.5], [1.0, 0.0]], [[1.0, -0.5], [0.0, 0.0]]),
        ),
        (
            "extra",
            Recursion::new([[1.0, -1.0], [0.5, 0.0]], [[1.0, 0.0], [0.5, 0.0]]),
        ),
        ("decentlam .9", lam(0.9)),
        ("decentlam .4", lam(0.4)),
    ]
}

/// Of the matrix that `a` is.
fn dense(a: &mut dyn Operator) -> f64 {
    let n = a.size();
    let mut m = vec![0.0; n * n];
    let mut column = vec![0.0; n];
    for j in 0..n {
        column.fill(0.0);
        column[j] = 1.0;
        a.apply(&mut column);
        column
            .iter()
            .enumerate()
            .for_each(|(i, v)| m[i * n + j] = *v);
    }
    by_squaring(m, n)
}

/// Rounding moves an eigenvalue of a block of k alike by about its k-th root, the dense matrix's as well: de Bruijn graphs have such, all far from 1.
fn agree(found: Radius, want: f64) -> bool {
    let apart = match want {
        0.97.. => 1e-9,
        0.3.. => 3e-2,
        _ => 0.3,
    };
    match found {
        Radius::Is(radius) => (radius - want).abs() <= apart,
        Radius::AtMost(bound) => want <= bound + apart && bound < 1.0,
    }
}

#[test]
fn radii_are_those_of_dense_matrices() {
    // The second time with so few dimensions that powers must do.
    let few = Limits {
        whole: 36,
        whole_at_last: 0,
        work: 1e9,
    };
    let (mut n_unstable, mut n_stable, mut n_unknown) = (0, 0, 0);
    for n in [8, 13, 24, 40, 64] {
        for (graph, rounds) in graphs(n) {
            let rounds: Vec<SparseMatrix> = rounds.iter().map(sparse).collect();
            for (name, recursion) in recursions() {
                let mut a = Together::new(recursion, &rounds);
                let want = dense(&mut a);
                let found = spectral_radius(&mut a).unwrap();
                assert!(
                    agree(found, want),
                    "{name}, {graph} of {n}: {found:?}, {want}"
                );
                if want > 1.0 {
                    n_unstable += 1
                } else {
                    n_stable += 1
                }
                match search(&mut a, &few) {
                    Some(found) => assert!(
                        agree(found, want),
                        "{name}, {graph} of {n}, few: {found:?}, {want}"
                    ),
                    None => n_unknown += 1,
                }
            }
        }
    }
    assert!(n_unstable > 40 && n_stable > 60, "{n_unstable}, {n_stable}");
    assert!(n_unknown < 10, "{n_unknown} not found");
}

/// How many times as long a vector is after `steps` applications.
fn grown(a: &mut dyn Operator, steps: u32) -> f64 {
    let mut x = normal(&mut ChaCha8Rng::seed_from_u64(1), a.size());
    let before = normalise(&mut x);
    for _ in 0..steps {
        a.apply(&mut x);
        if dot(&x, &x) > 1e200 {
            break;
        }
    }
    dot(&x, &x).sqrt() / before
}

/// What is said of them is what happens.
#[test]
fn large_graphs_are_decided() {
    for n in [97, 256, 1024] {
        for (graph, rounds) in graphs(n) {
            // The largest take longer: one of a kind will do.
            if n == 1024 && graph != "irregular" {
                continue;
            }
            let rounds: Vec<SparseMatrix> = rounds.iter().map(sparse).collect();
            for (name, recursion) in recursions() {
                let mut a = Together::new(recursion, &rounds);
                let found = spectral_radius(&mut a);
                let name = format!("{name}, {graph} of {n}: {found:?}");
                match found.unwrap_or_else(|| panic!("{name}")) {
                    Radius::Is(radius) if radius > 1.0 => {
                        let steps = (60.0 / radius.ln()) as u32;
                        assert!(grown(&mut a, steps) > 1e6, "{name}");
                    }
                    // Slow ones are near 1 − 10⁻⁴ here.
                    Radius::Is(radius) if radius > 0.99 => {
                        let steps = (20.0 / -radius.ln()) as u32;
                        assert!(grown(&mut a, steps.min(50_000)) < 1.0, "{name}");
                    }
                    _ => assert!(grown(&mut a, 4000) < 1e-6, "{name}"),
                }
            }
        }
    }
}

/// Rounds that only turn leave everything as large as it is: at the limit, exactly.
#[test]
fn what_only_turns_is_at_the_limit() {
    let [(_, mean), ..] = recursions();
    for n in [2, 3, 5, 8, 100, 300] {
        let turn: Rows = (0..n).map(|i| vec![((i + 1) % n, 1.0)]).collect();
        let found = spectral_radius(&mut Together::new(mean, &[sparse(&turn)]));
        match found {
            Some(Radius::Is(radius)) => assert!((radius - 1.0).abs() < 1e-11, "{n}: {radius}"),
            // Nothing settles where all are alike; that it dies out must not be said.
            None => assert!(n > 200),
            other => panic!("{n}: {other:?}"),
        }
    }
}
