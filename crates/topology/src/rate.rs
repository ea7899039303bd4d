//! How fast rounds mix that never come again.

use crate::{facts::Rounds, spectrum::extremes};

/// Products of rounds that leave less than this have hit the mean by chance, or their rate is lost in rounding.
const LOST: f64 = 1e-13;

/// Lanczos steps: what comes out is a rate to a few digits.
const STEPS: usize = 64;

/// ρ per round of rounds that never repeat, `contraction` being ‖W_{τ−1}…W_0 − J‖₂ of those looked at: its τ-th root; where that says nothing, as after random pairs that have met as a hypercube would, √λ_max(E\[WᵀW\] − J), E over these rounds, the rate in the mean square of rounds drawn independently.
pub(crate) fn per_round(rounds: &Rounds, contraction: f64) -> f64 {
    match rounds.len() {
        0 => 0.0,
        _ if contraction < LOST => in_mean_square(rounds),
        n => contraction.powf(1.0 / n as f64),
    }
}

fn in_mean_square(rounds: &Rounds) -> f64 {
    let square = match rounds {
        // Waves are everybody's eigenvectors; wave 0 is agreement.
        Rounds::Circulant(rounds, waves, n) => {
            let mut sums = vec![0.0; *n];
            for round in rounds {
                let eigenvalues = round.eigenvalues(waves);
                for (sum, e) in sums.iter_mut().zip(eigenvalues) {
                    *sum += e.0 * e.0 + e.1 * e.1;
                }
            }
            let most = sums.iter().skip(1).fold(0.0, |m: f64, s| m.max(*s));
            most / rounds.len() as f64
        }
        Rounds::Sparse(mixings) => {
            let n = mixings[0].world();
            let (mut a, mut b) = (vec![0.0; n], vec![0.0; n]);
            let (_, high) = extremes(n, STEPS.min(n), |x, y| {
                y.fill(0.0);
                for mixing in mixings {
                    mixing.apply(x, &mut a);
                    mixing.apply_transposed(&a, &mut b);
                    y.iter_mut().zip(&b).for_each(|(y, b)| *y += b);
                }
                let mean = x.iter().sum::<f64>() / n as f64;
                let count = mixings.len() as f64;
                y.iter_mut().for_each(|y| *y = *y / count - mean);
            });
            high
        }
    };
    square.max(0.0).sqrt()
}

#[cfg(test)]
mod tests {
    use crate::{by_name, report};

    /// Perfect matchings leave ½ − 1/(2(n − 1)) of the squared disagreement, whatever these rounds' product has come to by chance: pairs of four ranks agree after any two rounds that differ.
    #[test]
    fn pairs_drawn_at_random_have_the_rate_of_their_draws() {
        for n in [4_usize, 6, 8] {
            let known = (0.5 - 0.5 / (n as f64 - 1.0)).sqrt();
            for seed in 0..5 {
                let report = report(&*by_name(&format!("random-matching:{seed}"), n).unwrap());
                let rate = report.contraction_per_round();
                assert!((rate - known).abs() < 0.12, "{n}: {rate}, known {known}");
                // As many rounds as that takes, not one.
                let rounds = report.messages_until(1e-3) / report.messages;
                assert!((8.0..30.0).contains(&rounds), "{n}: {rounds}");
            }
        }
    }

    #[test]
    fn rates_of_longer_products_are_their_roots() {
        for name in ["random-matching", "ou-equi-dyn"] {
            let report = report(&*by_name(name, 32).unwrap());
            let root = report.facts.contraction.powf(1.0 / 64.0);
            assert_eq!(report.contraction_per_round(), root, "{name}");
        }
    }
}
