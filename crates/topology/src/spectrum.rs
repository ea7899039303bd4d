//! Extreme eigenvalues of a symmetric operator by the Lanczos method with full reorthogonalisation.
//!
//! Source: Golub and Van Loan, "Matrix Computations", §10.1; eigenvalues of the tridiagonal matrix by counting signs, §8.4.

/// Smallest and largest eigenvalue of the symmetric operator `apply` (y = A·x) of dimension `n`.
///
/// With `max_steps` = `n` the result is exact to rounding: the start vector has a part in every eigenspace. With fewer it lies inside the spectrum.
pub(crate) fn extremes(
    n: usize,
    max_steps: usize,
    mut apply: impl FnMut(&[f64], &mut [f64]),
) -> (f64, f64) {
    let mut basis: Vec<Vec<f64>> = vec![start(n)];
    let (mut diagonal, mut beside) = (Vec::new(), Vec::<f64>::new());
    let mut next = vec![0.0; n];
    let mut before = None;
    for step in 0..max_steps.min(n) {
        apply(&basis[step], &mut next);
        diagonal.push(dot(&basis[step], &next));
        // The three-term recurrence, then everything that rounding has let in.
        for v in basis[step.saturating_sub(1)..=step].iter().chain(&basis) {
            let part = dot(v, &next);
            next.iter_mut().zip(v).for_each(|(x, v)| *x -= part * v);
        }
        let norm = dot(&next, &next).sqrt();
        let scale = diagonal
            .iter()
            .chain(&beside)
            .fold(0.0, |m: f64, v| m.max(v.abs()));
        if norm <= 1e-14 * scale.max(1.0) {
            break; // The Krylov space is whole.
        }
        if step % 32 == 31 {
            let now = tridiagonal_extremes(&diagonal, &beside);
            if before.is_some_and(|b| is_settled(b, now)) {
                return now;
            }
            before = Some(now);
        }
        beside.push(norm);
        basis.push(next.iter().map(|x| x / norm).collect());
    }
    beside.truncate(diagonal.len().saturating_sub(1));
    tridiagonal_extremes(&diagonal, &beside)
}

fn is_settled(before: (f64, f64), now: (f64, f64)) -> bool {
    (before.0 - now.0).abs() <= 1e-15 && (before.1 - now.1).abs() <= 1e-15
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

/// A fixed vector without structure, of length one.
fn start(n: usize) -> Vec<f64> {
    let mut s = 42_u64;
    let mut v: Vec<f64> = (0..n)
        .map(|_| {
            s = s
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (s >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
        })
        .collect();
    let norm = dot(&v, &v).sqrt();
    v.iter_mut().for_each(|x| *x /= norm);
    v
}

/// Smallest and largest eigenvalue of the symmetric tridiagonal matrix; `beside` is one shorter than `diagonal`, which may be empty.
fn tridiagonal_extremes(diagonal: &[f64], beside: &[f64]) -> (f64, f64) {
    let n = diagonal.len();
    // Gershgorin: no eigenvalue is farther out.
    let reach = |i: usize| {
        let left = i.checked_sub(1).map_or(0.0, |i| beside[i].abs());
        left + beside.get(i).map_or(0.0, |b| b.abs())
    };
    let low = (0..n).map(|i| diagonal[i] - reach(i)).fold(0.0, f64::min);
    let high = (0..n).map(|i| diagonal[i] + reach(i)).fold(0.0, f64::max);
    let bisect = |wanted: usize| {
        let (mut a, mut b) = (low, high);
        while b - a > 1e-16 {
            let middle = a + (b - a) / 2.0;
            if middle <= a || middle >= b {
                break;
            }
            if count_below(diagonal, beside, middle) >= wanted {
                b = middle;
            } else {
                a = middle;
            }
        }
        a + (b - a) / 2.0
    };
    (bisect(1), bisect(n))
}

/// How many eigenvalues are smaller than `x`: the negative pivots of the factorisation of T − x.
fn count_below(diagonal: &[f64], beside: &[f64], x: f64) -> usize {
    let mut pivot = 1.0;
    let mut count = 0;
    for (i, d) in diagonal.iter().enumerate() {
        let coupling = i.checked_sub(1).map_or(0.0, |i| beside[i] * beside[i]);
        pivot = d - x - coupling / pivot;
        if pivot == 0.0 {
            pivot = f64::MIN_POSITIVE;
        }
        count += usize::from(pivot < 0.0);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second difference on a path has the eigenvalues 2 − 2·cos(πk/(n + 1)).
    #[test]
    fn a_path_has_its_known_spectrum() {
        for n in [1, 2, 3, 8, 33, 200] {
            let (low, high) = extremes(n, n, |x, y| {
                for i in 0..n {
                    let left = if i > 0 { x[i - 1] } else { 0.0 };
                    let right = x.get(i + 1).copied().unwrap_or(0.0);
                    y[i] = 2.0 * x[i] - left - right;
                }
            });
            let known =
                |k: usize| 2.0 - 2.0 * (std::f64::consts::PI * k as f64 / (n + 1) as f64).cos();
            assert!((low - known(1)).abs() < 1e-12, "n = {n}: {low}");
            assert!((high - known(n)).abs() < 1e-12, "n = {n}: {high}");
        }
    }

    #[test]
    fn zero_and_identity_are_exact() {
        assert_eq!(extremes(5, 5, |_, y| y.fill(0.0)), (0.0, 0.0));
        let (low, high) = extremes(5, 5, |x, y| y.copy_from_slice(x));
        assert!((low - 1.0).abs() < 1e-14 && (high - 1.0).abs() < 1e-14);
        assert_eq!(extremes(0, 0, |_, _| {}), (0.0, 0.0));
    }
}
