//! Eigenvalues of a small matrix with zeros below its first subdiagonal, as the Arnoldi method makes it.
//!
//! Source: the QR method with shifts, Golub and Van Loan, "Matrix Computations", §7.5, in complex numbers with one shift at a time.

use crate::complex::{C, eigenvalues_of_two};

/// A square matrix whose entries (i, j) are 0 for i > j + 1, in columns: column j has j + 2 entries, the last of which is the subdiagonal's. The last column's reaches out of the matrix.
pub(crate) type Columns = [Vec<f64>];

/// All eigenvalues, each that of a matrix no farther away than rounding; `None` where the method does not end.
pub(crate) fn eigenvalues(columns: &Columns) -> Option<Vec<C>> {
    const PATIENCE: u32 = 60;
    let n = columns.len();
    let mut h = vec![vec![C::default(); n]; n];
    for (j, column) in columns.iter().enumerate() {
        for (i, v) in column.iter().enumerate().take(n) {
            h[i][j] = C::real(*v);
        }
    }
    let squares = h.iter().flatten().map(|v| v.re * v.re);
    let negligible = f64::EPSILON * squares.sum::<f64>().sqrt();
    let mut found = Vec::with_capacity(n);
    let (mut end, mut tries) = (n, 0);
    while end > 0 {
        let last = end - 1;
        let whole = (1..end).rev().find(|i| h[*i][*i - 1].size() <= negligible);
        let start = whole.unwrap_or(0);
        if start == last {
            found.push(h[last][last]);
            (end, tries) = (last, 0);
            continue;
        }
        tries += 1;
        if tries > PATIENCE {
            return None;
        }
        let shift = match tries % 10 {
            // Out of a circle of steps that lead nowhere.
            0 => h[last][last].plus(C::real(h[last][last - 1].size())),
            _ => near(&h, last),
        };
        qr_step(&mut h, start..end, shift);
    }
    Some(found)
}

/// Of the eigenvalues of the last 2×2 block the one nearer to its last entry.
fn near(h: &[Vec<C>], last: usize) -> C {
    let row = |i: usize| [h[i][last - 1], h[i][last]];
    let [a, b] = eigenvalues_of_two([row(last - 1), row(last)]);
    let corner = h[last][last];
    if a.minus(corner).size() <= b.minus(corner).size() {
        a
    } else {
        b
    }
}

/// H ← RQ + σ with QR = H − σ, in the block `at` by itself.
fn qr_step(h: &mut [Vec<C>], at: std::ops::Range<usize>, shift: C) {
    for i in at.clone() {
        h[i][i] = h[i][i].minus(shift);
    }
    let mut turns = Vec::with_capacity(at.len());
    for k in at.start..at.end - 1 {
        let (a, b) = (h[k][k], h[k + 1][k]);
        let size = a.size().hypot(b.size());
        let (c, s) = match size {
            0.0 => (C::real(1.0), C::default()),
            _ => (
                a.conjugate().scaled(1.0 / size),
                b.conjugate().scaled(1.0 / size),
            ),
        };
        let (above, below) = h.split_at_mut(k + 1);
        for (x, y) in above[k][k..at.end].iter_mut().zip(&mut below[0][k..at.end]) {
            let (u, v) = (*x, *y);
            *x = c.times(u).plus(s.times(v));
            *y = c.conjugate().times(v).minus(s.conjugate().times(u));
        }
        turns.push((c, s));
    }
    for (k, (c, s)) in (at.start..).zip(turns) {
        for row in &mut h[at.start..(k + 2).min(at.end)] {
            let (u, v) = (row[k], row[k + 1]);
            row[k] = u.times(c.conjugate()).plus(v.times(s.conjugate()));
            row[k + 1] = v.times(c).minus(u.times(s));
        }
    }
    for i in at {
        h[i][i] = h[i][i].plus(shift);
    }
}

/// ‖Ay − θy‖/‖y‖ for the vector y that this matrix, A seen in an orthonormal basis, has for its eigenvalue θ: what the subdiagonal's last entry leads out of the basis, and what rounding has left.
pub(crate) fn residual(columns: &Columns, theta: C) -> f64 {
    let n = columns.len();
    let entry = |i: usize, j: usize| {
        let v = C::real(columns[j][i]);
        if i == j { v.minus(theta) } else { v }
    };
    // From the last row up; y grows on the way where θ has settled.
    let mut y = vec![C::default(); n];
    y[n - 1] = C::real(1.0);
    let mut first = C::default();
    for i in (0..n).rev() {
        let sum = (i..n).fold(C::default(), |sum, j| sum.plus(entry(i, j).times(y[j])));
        match i.checked_sub(1) {
            Some(before) => {
                y[before] = sum.scaled(-1.0 / columns[before][i]);
                let size = y[before].size();
                if size > 1e100 {
                    y.iter_mut().for_each(|y| *y = y.scaled(1.0 / size));
                }
            }
            None => first = sum,
        }
    }
    let size = y.iter().map(|y| y.size().powi(2)).sum::<f64>().sqrt();
    let out = columns[n - 1].get(n).copied().unwrap_or(0.0) * y[n - 1].size();
    first.size().hypot(out) / size
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns of the matrix with these rows.
    fn columns(rows: &[&[f64]]) -> Vec<Vec<f64>> {
        let n = rows.len();
        let column = |j: usize| {
            (0..j + 2)
                .map(|i| rows.get(i).map_or(0.0, |row| row[j]))
                .collect()
        };
        (0..n).map(column).collect()
    }

    fn sizes(rows: &[&[f64]]) -> Vec<f64> {
        let mut sizes: Vec<f64> = eigenvalues(&columns(rows))
            .unwrap()
            .into_iter()
            .map(C::size)
            .collect();
        sizes.sort_by(f64::total_cmp);
        sizes
    }

    #[test]
    fn known_spectra_come_out() {
        assert!(eigenvalues(&[]).unwrap().is_empty());
        assert_eq!(sizes(&[&[-3.0]]), [3.0]);
        // A turn, whose eigenvalues all lie on the circle.
        for n in [2, 3, 5, 8, 31] {
            let rows: Vec<Vec<f64>> = (0..n)
                .map(|i| {
                    (0..n)
                        .map(|j| f64::from(u8::from((j + 1) % n == i)))
                        .collect()
                })
                .collect();
            let rows: Vec<&[f64]> = rows.iter().map(Vec::as_slice).collect();
            assert!(sizes(&rows).iter().all(|s| (s - 1.0).abs() < 1e-13), "{n}");
        }
        // (z − 1)(z + 2)(z² + 9).
        let s = sizes(&[
            &[-1.0, -7.0, -9.0, 18.0],
            &[1.0, 0.0, 0.0, 0.0],
            &[0.0, 1.0, 0.0, 0.0],
            &[0.0, 0.0, 1.0, 0.0],
        ]);
        for (got, want) in s.iter().zip([1.0, 2.0, 3.0, 3.0]) {
            assert!((got - want).abs() < 1e-12, "{s:?}");
        }
        // Nothing is left after five times: rounding may leave its fifth root.
        let rows: Vec<Vec<f64>> = (0..5)
            .map(|i| (0..5).map(|j| f64::from(u8::from(i == j + 1))).collect())
            .collect();
        let rows: Vec<&[f64]> = rows.iter().map(Vec::as_slice).collect();
        assert!(sizes(&rows).iter().all(|s| *s < 2e-3));
    }

    #[test]
    fn residuals_tell_what_has_settled() {
        let settled = [vec![2.0, 1e-14], vec![1.0, 0.5, 1e-14]];
        let loose = [vec![2.0, 1e-3], vec![1.0, 0.5, 0.7]];
        let largest = |c: &Columns| {
            let all = eigenvalues(c).unwrap();
            all.into_iter()
                .max_by(|a, b| a.size().total_cmp(&b.size()))
                .unwrap()
        };
        assert!(residual(&settled, largest(&settled)) < 1e-13);
        let r = residual(&loose, largest(&loose));
        assert!(r > 1e-5 && r < 1e-2, "{r}");
    }
}
