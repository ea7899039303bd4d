//! The rules' formulas in matrix form, as theory has them: X⁺ = W(X − γG) and so on, on plain rows of numbers.

use gaggle_integration_tests::drive::{gradients, start};
use std::ops::{Add, Mul, Sub};

/// A row for each rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows(pub Vec<Vec<f64>>);

impl Rows {
    pub fn zip(&self, other: &Rows, f: impl Fn(f64, f64) -> f64) -> Rows {
        let each = self.0.iter().zip(&other.0);
        let row =
            |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect();
        Rows(each.map(row).collect())
    }

    pub fn map(&self, f: impl Fn(f64) -> f64) -> Rows {
        Rows(
            self.0
                .iter()
                .map(|row| row.iter().map(|x| f(*x)).collect())
                .collect(),
        )
    }

    /// `ratio` for each rank, by which its row is divided.
    fn over(&self, ratio: &[f64]) -> Rows {
        let row = |(row, w): (&Vec<f64>, &f64)| row.iter().map(|x| x / w).collect();
        Rows(self.0.iter().zip(ratio).map(row).collect())
    }
}

impl Add<&Rows> for &Rows {
    type Output = Rows;
    fn add(self, other: &Rows) -> Rows {
        self.zip(other, |a, b| a + b)
    }
}

impl Sub<&Rows> for &Rows {
    type Output = Rows;
    fn sub(self, other: &Rows) -> Rows {
        self.zip(other, |a, b| a - b)
    }
}

impl Mul<&Rows> for f64 {
    type Output = Rows;
    fn mul(self, rows: &Rows) -> Rows {
        rows.map(|x| self * x)
    }
}

/// A matrix of weights: a row for each receiver.
impl Mul<&Rows> for &Weights {
    type Output = Rows;
    fn mul(self, x: &Rows) -> Rows {
        let row = |w: &Vec<f64>| {
            let element = |k: usize| w.iter().zip(&x.0).map(|(w, x)| w * x[k]).sum();
            (0..x.0[0].len()).map(element).collect()
        };
        Rows(self.0.iter().map(row).collect())
    }
}

/// W, a row for each receiver.
#[derive(Clone, Debug)]
pub struct Weights(pub Vec<Vec<f64>>);

impl Weights {
    pub fn of(n: usize, weight: impl Fn(usize, usize) -> f64) -> Weights {
        Weights(
            (0..n)
                .map(|i| (0..n).map(|j| weight(i, j)).collect())
                .collect(),
        )
    }

    /// J.
    pub fn mean(n: usize) -> Weights {
        Weights::of(n, |_, _| 1.0 / n as f64)
    }

    /// (I + W)/2.
    pub fn lazy(&self) -> Weights {
        let n = self.0.len();
        Weights::of(n, |i, j| (f64::from(u8::from(i == j)) + self.0[i][j]) / 2.0)
    }

    /// A third for both neighbours and oneself.
    pub fn ring(n: usize) -> Weights {
        let near = |i: usize, j: usize| (i + n - j) % n <= 1 || (j + n - i) % n <= 1;
        Weights::of(n, |i, j| match near(i, j) {
            true => 1.0 / n.min(3) as f64,
            false => 0.0,
        })
    }

    /// Half of what rank i − 2^(t mod τ) has.
    pub fn one_peer(n: usize, t: u64) -> Weights {
        let rounds = u64::from(n.next_power_of_two().trailing_zeros()).max(1);
        let apart = (1 << (t % rounds)) % n;
        Weights::of(n, |i, j| {
            let (own, from) = (i == j, (j + apart) % n == i);
            (f64::from(u8::from(own)) + f64::from(u8::from(from))) / 2.0
        })
    }

    /// Shares of the senders of i → i + 1, and 0 → n/2 where that is another edge.
    pub fn pushed(n: usize) -> Weights {
        let sends =
            |j: usize, i: usize| i != j && ((j + 1) % n == i || (n > 3 && j == 0 && i == n / 2));
        Weights::of(n, |i, j| {
            let share = 1.0 / (1 + (0..n).filter(|i| sends(j, *i)).count()) as f64;
            if i == j || sends(j, i) { share } else { 0.0 }
        })
    }
}

/// The largest difference between two ranks' elements.
pub fn distance(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    let each = a.iter().flatten().zip(b.iter().flatten());
    each.fold(0.0, |most, (a, b)| {
        let off = (a - b).abs();
        if off.is_nan() {
            f64::NAN
        } else {
            most.max(off)
        }
    })
}

/// Every rank's gradient at its own parameters.
pub fn gradient(x: &Rows) -> Rows {
    Rows(
        x.0.iter()
            .enumerate()
            .map(|(r, x)| gradients(r, x))
            .collect(),
    )
}

/// What a run is made of.
pub struct Plain<'a> {
    pub n: usize,
    pub steps: u64,
    pub w: Weights,
    pub gamma: &'a dyn Fn(u64) -> f64,
    pub gradient: &'a dyn Fn(&Rows) -> Rows,
}

/// β = μ of every rule with momentum.
const BETA: f64 = 0.9;

/// The rules that [`Plain::run`] knows.
pub const RULES: [&str; 20] = [
    "allreduce-sgd",
    "dsgd-atc",
    "dsgd-awc",
    "dsgd-cta",
    "dmsgd",
    "dmsgd-yu",
    "qg-dmsgd",
    "decentlam",
    "d2",
    "exact-diffusion",
    "edm",
    "extra",
    "diging",
    "gt-semi",
    "gt-atc",
    "momentum-tracking",
    "sgp",
    "local-sgd",
    "slowmo",
    "dadamw-atc",
];

impl Plain<'_> {
    /// Every rank's parameters at the end.
    pub fn run(&self, rule: &str) -> Vec<Vec<f64>> {
        let x = Rows(vec![start(); self.n]);
        match rule {
            "d2" => self.two_steps(x, &self.w, 0.0),
            "exact-diffusion" => self.two_steps(x, &self.w.lazy(), 0.0),
            "edm" => self.two_steps(x, &self.w.lazy(), BETA),
            "extra" => self.extra(x),
            "diging" | "gt-semi" | "gt-atc" => self.tracking(rule, x),
            "sgp" => self.push_sum(x),
            "local-sgd" | "slowmo" => self.local(x, rule == "slowmo"),
            "dadamw-atc" => self.adam(x),
            _ => self.one_step(rule, x),
        }
        .0
    }

    /// Methods whose step is a formula of x, g and a vector or two.
    fn one_step(&self, rule: &str, mut x: Rows) -> Rows {
        let w = &self.w;
        let (mut m, mut c) = (0.0 * &x, 0.0 * &x);
        for k in 0..self.steps {
            let gamma = (self.gamma)(k);
            let g = (self.gradient)(&x);
            x = match rule {
                "allreduce-sgd" => &x - &(gamma * &(&Weights::mean(self.n) * &g)),
                "dsgd-atc" => w * &(&x - &(gamma * &g)),
                "dsgd-awc" => &(w * &x) - &(gamma * &g),
                "dsgd-cta" => {
                    let y = w * &x;
                    &y - &(gamma * &(self.gradient)(&y))
                }
                "dmsgd" => {
                    m = &(BETA * &m) + &g;
                    w * &(&x - &(gamma * &m))
                }
                "dmsgd-yu" => {
                    let half = &(BETA * &m) + &g;
                    m = w * &half;
                    w * &(&x - &(gamma * &half))
                }
                "qg-dmsgd" => {
                    let h = &(BETA * &m) + &g;
                    let new = w * &(&x - &(gamma * &h));
                    m = &(BETA * &m) + &(((1.0 - BETA) / gamma) * &(&x - &new));
                    new
                }
                "decentlam" => {
                    let bent = (1.0 / gamma) * &(&x - &(w * &(&x - &(gamma * &g))));
                    m = &(BETA * &m) + &bent;
                    &x - &(gamma * &m)
                }
                "momentum-tracking" => {
                    m = &(BETA * &m) + &g;
                    let new = &(w * &x) - &(gamma * &(&m - &c));
                    c = &(w * &(&c - &m)) + &m;
                    new
                }
                other => panic!("no formula for {other}"),
            };
        }
        x
    }

    /// x¹ = W(x⁰ − γ₀d⁰); x^{k+1} = W(2x^k − x^{k−1} − (γ_k d^k − γ_{k−1} d^{k−1})), d a moving average of gradients.
    fn two_steps(&self, mut x: Rows, w: &Weights, beta: f64) -> Rows {
        let (mut before, mut moved) = (x.clone(), 0.0 * &x);
        let mut d = 0.0 * &x;
        for k in 0..self.steps {
            d = &(beta * &d) + &((1.0 - beta) * &(self.gradient)(&x));
            let moves = (self.gamma)(k) * &d;
            let new = w * &(&(&(2.0 * &x) - &before) - &(&moves - &moved));
            (before, x, moved) = (x, new, moves);
        }
        x
    }

    /// x¹ = Wx⁰ − γ₀g⁰; x^{k+1} = (I + W)x^k − ½(I + W)x^{k−1} − (γ_k g^k − γ_{k−1} g^{k−1}).
    fn extra(&self, mut x: Rows) -> Rows {
        let w = &self.w;
        let mut moved = (self.gamma)(0) * &(self.gradient)(&x);
        let mut before = x.clone();
        x = &(w * &x) - &moved;
        for k in 1..self.steps {
            let moves = (self.gamma)(k) * &(self.gradient)(&x);
            let half = 0.5 * &(&before + &(w * &before));
            let new = &(&(&x + &(w * &x)) - &half) - &(&moves - &moved);
            (before, x, moved) = (x, new, moves);
        }
        x
    }

    /// Y follows the mean gradient, from Y⁰ = G⁰ on.
    fn tracking(&self, form: &str, mut x: Rows) -> Rows {
        let w = &self.w;
        let mut g = (self.gradient)(&x);
        let mut y = g.clone();
        for k in 0..self.steps {
            if k > 0 {
                let new = (self.gradient)(&x);
                y = match form {
                    "gt-atc" => w * &(&y + &(&new - &g)),
                    _ => &(w * &y) + &(&new - &g),
                };
                g = new;
            }
            let step = (self.gamma)(k) * &y;
            x = match form {
                "diging" => &(w * &x) - &step,
                _ => w * &(&x - &step),
            };
        }
        x
    }

    /// X⁺ = C(X − γG(Z)); w⁺ = Cw; Z⁺ = X⁺/w⁺.
    fn push_sum(&self, start: Rows) -> Rows {
        let (mut x, mut z, mut weights) = (start.clone(), start, Rows(vec![vec![1.0]; self.n]));
        for k in 0..self.steps {
            x = &self.w * &(&x - &((self.gamma)(k) * &(self.gradient)(&z)));
            weights = &self.w * &weights;
            let each: Vec<f64> = weights.0.iter().map(|w| w[0]).collect();
            z = x.over(&each);
        }
        z
    }

    /// The mean over everybody in every fourth step, after which SlowMo goes on from where it was before: u ← ½u + (x₀ − x̄)/γ; x₀ ← x₀ − γu.
    fn local(&self, mut x: Rows, slow: bool) -> Rows {
        let (mut from, mut u) = (x.clone(), 0.0 * &x);
        for k in 0..self.steps {
            let gamma = (self.gamma)(k);
            x = &x - &(gamma * &(self.gradient)(&x));
            if k % 4 == 3 {
                let mean = &Weights::mean(self.n) * &x;
                u = &(0.5 * &u) + &((1.0 / gamma) * &(&from - &mean));
                x = if slow { &from - &(gamma * &u) } else { mean };
                from = x.clone();
            }
        }
        x
    }

    /// W(x − γm̂/(√v̂ + ε)).
    fn adam(&self, mut x: Rows) -> Rows {
        let (mut m, mut v) = (0.0 * &x, 0.0 * &x);
        for k in 0..self.steps {
            let g = (self.gradient)(&x);
            m = m.zip(&g, |m, g| 0.9 * m + 0.1 * g);
            v = v.zip(&g, |v, g| 0.999 * v + 0.001 * g * g);
            let power = k as i32 + 1;
            let (first, second) = (1.0 - 0.9_f64.powi(power), 1.0 - 0.999_f64.powi(power));
            let step = m.zip(&v, |m, v| (m / first) / ((v / second).sqrt() + 1e-8));
            x = &self.w * &(&x - &((self.gamma)(k) * &step));
        }
        x
    }
}
