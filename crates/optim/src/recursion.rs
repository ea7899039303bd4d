//! How a rule's recursion moves disagreements: spectral radii over the modes of a topology.

use crate::{
    complex::{C, eigenvalues_of_two},
    krylov::{Operator, Radius, spectral_radius},
    stability::unstable,
};
use gaggle_core::{MixingFacts, Modes, SparseMatrix, Stability, Unstable};

/// How near to the unit circle a root counts as being on it.
pub(crate) const MARGIN: f64 = 1e-9;

/// Of a topology that never repeats only the first rounds are seen, and which these are is chance: by this factor they must grow or shrink to count, e¹⁵.
const CLEARLY: f64 = 3.3e6;

/// Two numbers per rank that a rule's step moves by (A + wB), where gradients vanish, in a disagreement that averaging multiplies by w.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recursion {
    fixed: [[f64; 2]; 2],
    mixed: [[f64; 2]; 2],
}

impl Recursion {
    pub fn new(fixed: [[f64; 2]; 2], mixed: [[f64; 2]; 2]) -> Recursion {
        Recursion { fixed, mixed }
    }

    /// Refuses where a disagreement grows over one period of the topology.
    pub fn check(
        &self,
        rule: &str,
        facts: &MixingFacts,
        instead: &str,
    ) -> Result<Stability, Unstable> {
        let radius = match self.radius(&facts.modes) {
            Some(Radius::Is(radius) | Radius::AtMost(radius)) => radius,
            None => return Ok(unknown(rule, facts)),
        };
        let smallest = facts.lambda_min.map_or(String::new(), |l| {
            format!(", the smallest eigenvalue of the weights is {l:.6}")
        });
        let rounds = match facts.period {
            1 => "1 round".to_owned(),
            n => format!("{n} rounds"),
        };
        if !facts.repeats && (1.0 / CLEARLY..CLEARLY).contains(&radius) {
            return Ok(Stability::Unchecked(format!(
                "the topology never repeats, and that with {rule} the worst disagreement is multiplied by {radius:.6} in its first {rounds} says too little"
            )));
        }
        if radius > 1.0 + MARGIN {
            return unstable(
                format!(
                    "with {rule} the worst disagreement grows by a factor of {radius:.6} in {rounds}{smallest}"
                ),
                instead,
            );
        }
        if radius >= 1.0 - MARGIN {
            return Ok(Stability::Marginal(format!(
                "with {rule} the worst disagreement does not shrink: it is multiplied by {radius:.12} in {rounds}{smallest}"
            )));
        }
        Ok(Stability::Stable)
    }

    /// The largest modulus among the eigenvalues of one period's product, over all disagreements; `None`: not known.
    pub fn radius(&self, modes: &Modes) -> Option<Radius> {
        /// Between two eigenvalues the radius is looked up this often.
        const SAMPLES: u32 = 512;
        match modes {
            Modes::Apart(all) => {
                let largest = all.iter().map(|w| self.apart(w)).fold(0.0, f64::max);
                Some(Radius::Is(largest))
            }
            Modes::Between(low, high) => {
                let sample = |i| low + (high - low) * f64::from(i) / f64::from(SAMPLES);
                let all = (0..=SAMPLES).map(|i| self.apart(&[(sample(i), 0.0)]));
                Some(Radius::Is(all.fold(0.0, f64::max)))
            }
            Modes::Sparse(rounds) => spectral_radius(&mut Together::new(*self, rounds)),
            _ => None,
        }
    }

    /// One disagreement: a product of 2×2 matrices, and its eigenvalues from trace and determinant.
    fn apart(&self, rounds: &[(f64, f64)]) -> f64 {
        let one = |w: &(f64, f64)| {
            let entry = |i: usize, j: usize| C {
                re: self.fixed[i][j] + w.0 * self.mixed[i][j],
                im: w.1 * self.mixed[i][j],
            };
            [[entry(0, 0), entry(0, 1)], [entry(1, 0), entry(1, 1)]]
        };
        let (zero, unit) = (C { re: 0.0, im: 0.0 }, C { re: 1.0, im: 0.0 });
        let mut m = [[unit, zero], [zero, unit]];
        for w in rounds {
            let a = one(w);
            let entry = |i: usize, j: usize| a[i][0].times(m[0][j]).plus(a[i][1].times(m[1][j]));
            m = [[entry(0, 0), entry(0, 1)], [entry(1, 0), entry(1, 1)]];
        }
        let [a, b] = eigenvalues_of_two(m);
        a.size().max(b.size())
    }
}

/// What is said where a spectrum is not known.
pub(crate) fn unknown(rule: &str, facts: &MixingFacts) -> Stability {
    Stability::Unchecked(format!(
        "the spectrum of {} ranks' weights over {} rounds is not known, so nothing can be said about {rule}",
        facts.world, facts.period
    ))
}

/// All disagreements at once, two numbers per rank, over one period: A ⊗ (I − J) + B ⊗ (W − J) for each round, in which agreement is 0.
pub(crate) struct Together<'a> {
    recursion: Recursion,
    rounds: &'a [SparseMatrix],
    n: usize,
    /// What is mixed, and the mixed.
    sums: Vec<f64>,
    mixed: [Vec<f64>; 2],
}

impl<'a> Together<'a> {
    pub fn new(recursion: Recursion, rounds: &'a [SparseMatrix]) -> Self {
        let n = rounds.first().map_or(0, SparseMatrix::world);
        Together {
            recursion,
            rounds,
            n,
            sums: vec![0.0; n],
            mixed: [vec![0.0; n], vec![0.0; n]],
        }
    }
}

impl Operator for Together<'_> {
    fn size(&self) -> usize {
        2 * self.n
    }
    fn work(&self) -> usize {
        let entries: usize = self.rounds.iter().map(SparseMatrix::n_entries).sum();
        2 * entries + 8 * self.n * self.rounds.len()
    }
    fn apply(&mut self, x: &mut [f64]) {
        let Recursion { fixed, mixed: b } = self.recursion;
        let (u, v) = x.split_at_mut(self.n);
        for round in self.rounds {
            for (b, mixed) in b.iter().zip(&mut self.mixed) {
                let parts = u.iter().zip(&*v);
                for (sum, (u, v)) in self.sums.iter_mut().zip(parts) {
                    *sum = b[0] * u + b[1] * v;
                }
                round.apply(&self.sums, mixed);
            }
            let [mixed_u, mixed_v] = &self.mixed;
            let mixed = mixed_u.iter().zip(mixed_v);
            for ((u, v), (mixed_u, mixed_v)) in u.iter_mut().zip(v.iter_mut()).zip(mixed) {
                let (a, b) = (*u, *v);
                *u = fixed[0][0] * a + fixed[0][1] * b + mixed_u;
                *v = fixed[1][0] * a + fixed[1][1] * b + mixed_v;
            }
        }
        for part in [u, v] {
            let mean = part.iter().sum::<f64>() / self.n as f64;
            part.iter_mut().for_each(|x| *x -= mean);
        }
    }
}

/// The mean square of disagreements over uniformly random pairs of n ranks, per outer step of NoLoCo: δ⁺ = αδ + γ(mean of the pair − φ), φ⁺ = φ + δ⁺.
///
/// The sums over the ranks of φ², φδ and δ² move by a 3×3 matrix, since a partner is any other rank, and both sums are 0.
pub(crate) fn mean_square_of_pairs(alpha: f64, gamma: f64, n: usize) -> f64 {
    if n < 2 {
        return 0.0;
    }
    let others = (n - 1) as f64;
    // With an odd number one rank stays alone.
    let paired = if n.is_multiple_of(2) {
        1.0
    } else {
        others / n as f64
    };
    // E Σ(φ − mean)² = qΣφ², with E φ_i·φ_partner = −Σφ²/(n − 1) per rank.
    let q = paired * (1.0 + 1.0 / others) / 2.0;
    let dd = [gamma * gamma * q, -2.0 * alpha * gamma * q, alpha * alpha];
    let pd = [dd[0] - gamma * q, dd[1] + alpha, dd[2]];
    let pp = [1.0 - 2.0 * gamma * q + dd[0], 2.0 * alpha + dd[1], dd[2]];
    by_squaring([pp, pd, dd].concat(), 3)
}

fn multiply(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
    let mut c = vec![0.0; n * n];
    for (row, c) in a.chunks_exact(n).zip(c.chunks_exact_mut(n)) {
        for (a, b) in row
            .iter()
            .zip(b.chunks_exact(n))
            .filter(|(a, _)| **a != 0.0)
        {
            c.iter_mut().zip(b).for_each(|(c, b)| *c += a * b);
        }
    }
    c
}

/// lim ‖M^k‖^(1/k) with k = 2^40, by squaring: right to about 1e-11, whatever the eigenvectors.
pub(crate) fn by_squaring(mut m: Vec<f64>, n: usize) -> f64 {
    const SQUARINGS: i32 = 40;
    let mut log = 0.0;
    for k in 0..=SQUARINGS {
        let norm = m.iter().map(|v| v * v).sum::<f64>().sqrt();
        if norm == 0.0 {
            return 0.0;
        }
        log += norm.ln() * 0.5_f64.powi(k);
        m.iter_mut().for_each(|v| *v /= norm);
        m = multiply(&m, &m, n);
    }
    log.exp()
}
