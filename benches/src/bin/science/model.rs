//! The model that all of this trains: a perceptron with one hidden layer, in f64, its parameters one flat vector.
//!
//! 64 pixels, 32 rectified units, 10 classes, softmax cross-entropy.

use gaggle_benches::digits::{CLASSES, PIXELS, Set};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use std::ops::Range;

const HIDDEN: usize = 32;
/// λ of λ‖x‖²/2, which every loss here has besides.
const WEIGHT_DECAY: f64 = 1e-4;

/// Weights are by input, then by output; a layer's biases follow its weights.
const W1: Range<usize> = 0..PIXELS * HIDDEN;
const B1: Range<usize> = W1.end..W1.end + HIDDEN;
const W2: Range<usize> = B1.end..B1.end + HIDDEN * CLASSES;
const B2: Range<usize> = W2.end..W2.end + CLASSES;

/// Parameters in all.
pub(crate) const PARAMETERS: usize = B2.end;

/// Parameters to start from: weights N(0, 1/inputs), biases 0; the same for the same seed.
pub(crate) fn start(seed: u64) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut x = vec![0.0; PARAMETERS];
    for (layer, inputs) in [(W1, PIXELS), (W2, HIDDEN)] {
        for weight in &mut x[layer] {
            let normal: f64 = StandardNormal.sample(&mut rng);
            *weight = normal / (inputs as f64).sqrt();
        }
    }
    x
}

/// What a forward pass leaves for the backward pass.
struct Activations {
    hidden: [f64; HIDDEN],
    scores: [f64; CLASSES],
}

fn forward(x: &[f64], image: &[f64]) -> Activations {
    let mut hidden = [0.0; HIDDEN];
    hidden.copy_from_slice(&x[B1]);
    for (pixel, row) in image.iter().zip(x[W1].chunks_exact(HIDDEN)) {
        hidden
            .iter_mut()
            .zip(row)
            .for_each(|(h, w)| *h += pixel * w);
    }
    hidden.iter_mut().for_each(|h| *h = h.max(0.0));
    let mut scores = [0.0; CLASSES];
    scores.copy_from_slice(&x[B2]);
    for (h, row) in hidden.iter().zip(x[W2].chunks_exact(CLASSES)) {
        scores.iter_mut().zip(row).for_each(|(s, w)| *s += h * w);
    }
    Activations { hidden, scores }
}

/// The gradient of the mean loss over the images `which` of `set` at `x`, into `g`.
pub(crate) fn gradient(x: &[f64], set: &Set, which: &[usize], g: &mut [f64]) {
    g.iter_mut().zip(x).for_each(|(g, x)| *g = WEIGHT_DECAY * x);
    let share = 1.0 / which.len().max(1) as f64;
    for &i in which {
        let image = set.image(i);
        let Activations { hidden, mut scores } = forward(x, image);
        // ∂loss/∂scores = softmax(scores) − one-hot(label)
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        scores.iter_mut().for_each(|s| *s = (*s - largest).exp());
        let sum: f64 = scores.iter().sum();
        scores.iter_mut().for_each(|s| *s *= share / sum);
        scores[usize::from(set.labels[i])] -= share;
        let mut back = [0.0; HIDDEN];
        let rows = x[W2].chunks_exact(CLASSES);
        for ((back, h), row) in back.iter_mut().zip(&hidden).zip(rows) {
            if *h > 0.0 {
                *back = row.iter().zip(&scores).map(|(w, s)| w * s).sum();
            }
        }
        outer(&hidden, &scores, &mut g[W2]);
        add(&scores, &mut g[B2]);
        outer(image, &back, &mut g[W1]);
        add(&back, &mut g[B1]);
    }
}

fn add(from: &[f64], into: &mut [f64]) {
    into.iter_mut().zip(from).for_each(|(a, b)| *a += b);
}

/// into += column · rowᵀ.
fn outer(column: &[f64], row: &[f64], into: &mut [f64]) {
    for (c, line) in column.iter().zip(into.chunks_exact_mut(row.len())) {
        if *c != 0.0 {
            line.iter_mut().zip(row).for_each(|(a, r)| *a += c * r);
        }
    }
}

/// Share of `set` that `x` tells right, from 0 to 1.
pub(crate) fn accuracy(x: &[f64], set: &Set) -> f64 {
    let right = |&i: &usize| {
        let Activations { scores, .. } = forward(x, set.image(i));
        let best = (0..CLASSES).max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        best == Some(usize::from(set.labels[i]))
    };
    (0..set.len()).filter(right).count() as f64 / set.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle_benches::digits::Digits;

    fn loss(x: &[f64], set: &Set, which: &[usize]) -> f64 {
        let of = |&i: &usize| {
            let scores = forward(x, set.image(i)).scores;
            let sum: f64 = scores.iter().map(|s| s.exp()).sum();
            sum.ln() - scores[usize::from(set.labels[i])]
        };
        let squares: f64 = x.iter().map(|x| x * x).sum();
        which.iter().map(of).sum::<f64>() / which.len() as f64 + WEIGHT_DECAY * squares / 2.0
    }

    #[test]
    fn the_gradient_is_that_of_the_loss() {
        let set = Digits::load().expect("sound").train;
        let which = [3, 14, 15, 92, 65];
        let mut x = start(7);
        let mut g = vec![0.0; PARAMETERS];
        gradient(&x, &set, &which, &mut g);
        // A prime step visits every part of the vector.
        for i in (0..PARAMETERS).step_by(97) {
            let (at, h) = (x[i], 1e-6);
            x[i] = at + h;
            let above = loss(&x, &set, &which);
            x[i] = at - h;
            let below = loss(&x, &set, &which);
            x[i] = at;
            let want = (above - below) / (2.0 * h);
            assert!((g[i] - want).abs() < 1e-7, "{i}: {} {want}", g[i]);
        }
    }

    #[test]
    fn plain_descent_learns_the_digits() {
        let digits = Digits::load().expect("sound");
        let mut x = start(1);
        let mut g = vec![0.0; PARAMETERS];
        let all: Vec<usize> = (0..digits.train.len()).collect();
        assert!(accuracy(&x, &digits.test) < 0.3);
        for batch in all.chunks_exact(64).cycle().take(150) {
            gradient(&x, &digits.train, batch, &mut g);
            x.iter_mut().zip(&g).for_each(|(x, g)| *x -= 0.5 * g);
        }
        let got = accuracy(&x, &digits.test);
        assert!(got > 0.9, "{got}");
    }
}
