//! The two problems of the table: regularised least squares and logistic regression, each on six examples per rank.

use super::distance;

/// Ranks for which there are data.
const N: usize = 8;
/// Examples per rank.
const M: usize = 6;
/// Parameters.
const D: usize = 4;
/// λ of the penalty λ/2·|x|².
const LAMBDA: f64 = 0.1;

type Vector = [f64; D];
type Matrix = [Vector; D];

/// Which losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// f_i(x) = ½·mean (a·x − b)² + λ/2·|x|².
    Lin,
    /// f_i(x) = mean log(1 + exp(−y a·x)) + λ/2·|x|², y the sign of b.
    Log,
}

/// Data, gradients and the optimum of all ranks together.
#[derive(Clone, Debug)]
pub struct Problem {
    kind: Kind,
    n: usize,
    a: [[Vector; M]; N],
    b: [[f64; M]; N],
    x_star: Vector,
}

impl Problem {
    /// The problem with its data: entries from a 64-bit linear congruential generator, seed 42.
    pub fn new(kind: Kind) -> Problem {
        Problem::of(kind, N)
    }

    /// The same with the first `n` ranks only, at most 8.
    pub fn of(kind: Kind, n: usize) -> Problem {
        let mut r = generator(42);
        let (mut a, mut b) = ([[[0.0; D]; M]; N], [[0.0; M]; N]);
        for (a, b) in a.iter_mut().zip(&mut b) {
            a.iter_mut().flatten().for_each(|v| *v = r());
            let w = [1.0, -2.0, 0.5, 3.0].map(|w| w + r());
            for (a, b) in a.iter().zip(b) {
                *b = dot(a, &w) + 0.1 * r();
            }
        }
        let mut problem = Problem {
            kind,
            n: n.min(N),
            a,
            b,
            x_star: [0.0; D],
        };
        problem.find_optimum();
        problem
    }

    /// Ranks.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Parameters: 4.
    pub fn d(&self) -> usize {
        D
    }

    /// The optimum of the mean of all losses.
    pub fn x_star(&self) -> &[f64] {
        &self.x_star
    }

    /// ∇f_rank(x).
    pub fn gradient(&self, rank: usize, x: &[f64], g: &mut [f64]) {
        for (g, x) in g.iter_mut().zip(x) {
            *g = LAMBDA * x;
        }
        for (a, &b) in self.a[rank].iter().zip(&self.b[rank]) {
            let z = dot(a, x);
            let slope = match self.kind {
                Kind::Lin => z - b,
                Kind::Log => -label(b) / (1.0 + (label(b) * z).exp()),
            };
            for (g, a) in g.iter_mut().zip(a) {
                *g += slope * a / M as f64;
            }
        }
    }

    /// √(mean over ranks of |x_i − x*|²).
    pub fn error(&self, x: &[Vec<f64>]) -> f64 {
        distance(x, &self.x_star)
    }

    /// Newton's method: exact after one step on LIN, to rounding after a few on LOG.
    fn find_optimum(&mut self) {
        for _ in 0..60 {
            let (mut mean, mut g) = ([0.0; D], [0.0; D]);
            for rank in 0..self.n {
                self.gradient(rank, &self.x_star, &mut g);
                for (mean, g) in mean.iter_mut().zip(&g) {
                    *mean += g / self.n as f64;
                }
            }
            let step = solve(self.hessian(&self.x_star), mean);
            for (x, s) in self.x_star.iter_mut().zip(step) {
                *x -= s;
            }
        }
    }

    fn hessian(&self, x: &[f64]) -> Matrix {
        let mut h = [[0.0; D]; D];
        for (i, row) in h.iter_mut().enumerate() {
            row[i] = LAMBDA;
        }
        let (a, b) = (&self.a[..self.n], &self.b[..self.n]);
        for (a, &b) in a.iter().flatten().zip(b.iter().flatten()) {
            let bend = match self.kind {
                Kind::Lin => 1.0,
                Kind::Log => {
                    let p = 1.0 / (1.0 + (-label(b) * dot(a, x)).exp());
                    p * (1.0 - p)
                }
            };
            for (row, ai) in h.iter_mut().zip(a) {
                for (h, aj) in row.iter_mut().zip(a) {
                    *h += bend * ai * aj / (self.n * M) as f64;
                }
            }
        }
        h
    }
}

fn label(b: f64) -> f64 {
    if b >= 0.0 { 1.0 } else { -1.0 }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// s ← 6364136223846793005·s + 1442695040888963407 mod 2⁶⁴; u = (s >> 11)·2⁻⁵³; 2u − 1.
fn generator(mut s: u64) -> impl FnMut() -> f64 {
    move || {
        s = s
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        2.0 * ((s >> 11) as f64 / (1_u64 << 53) as f64) - 1.0
    }
}

/// m⁻¹·v by elimination with pivots.
fn solve(mut m: Matrix, mut v: Vector) -> Vector {
    for c in 0..D {
        let pivot = (c..D).fold(c, |p, r| if m[r][c].abs() > m[p][c].abs() { r } else { p });
        m.swap(c, pivot);
        v.swap(c, pivot);
        for r in 0..D {
            if r == c {
                continue;
            }
            let (row, factor) = (m[c], m[r][c] / m[c][c]);
            for (x, p) in m[r].iter_mut().zip(row) {
                *x -= factor * p;
            }
            v[r] -= factor * v[c];
        }
    }
    std::array::from_fn(|i| v[i] / m[i][i])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: &[f64], want: &[f64]) {
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() < 6e-9, "{got:?}, wanted {want:?}");
        }
    }

    /// Printed by the numpy implementation, to eight decimals.
    #[test]
    fn data_gradients_and_optima_are_the_known_ones() {
        let lin = Problem::new(Kind::Lin);
        near(
            &lin.a[0][0],
            &[0.13646065, -0.54907314, -0.17432336, 0.2607961],
        );
        near(
            &lin.a[7][5],
            &[-0.42820158, 0.10523422, -0.51859556, 0.27435022],
        );
        near(&lin.b[0][..3], &[1.83568411, -0.45399799, 1.90892854]);
        // Another order of summing differs in the last place.
        assert!((lin.b[7][5] + 0.134_043_730_965_361_62).abs() < 1e-15);
        near(
            &lin.x_star,
            &[0.42760734, -1.3895868, 0.16214391, 2.03938647],
        );
        let mut g = [0.0; 4];
        lin.gradient(0, &[0.0; 4], &mut g);
        near(&g, &[-0.51045819, 0.90807725, 0.02455526, -0.38774149]);

        let log = Problem::new(Kind::Log);
        near(
            &log.x_star,
            &[0.16854903, -0.56566214, 0.04383609, 1.02525091],
        );
        log.gradient(0, &[0.0; 4], &mut g);
        near(&g, &[-0.12130556, 0.13529515, -0.09218729, -0.12676451]);

        // b² = mean |∇f_i(x*)|², the heterogeneity.
        for (problem, want) in [(lin, 0.2572496103), (log, 0.0431916674)] {
            let mut b2 = 0.0;
            for rank in 0..N {
                problem.gradient(rank, problem.x_star(), &mut g);
                b2 += dot(&g, &g) / N as f64;
            }
            assert!((b2 - want).abs() < 6e-11, "{b2}");
        }
    }
}
