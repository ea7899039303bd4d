//! Who learns from what: images dealt out evenly, or by label.

use anyhow::{Result, ensure};
use gaggle_benches::digits::CLASSES;
use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Gamma};

/// How images are dealt out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Split {
    /// At random, equally many each.
    Even,
    /// Each class in proportions drawn from Dirichlet(α·1): the smaller α, the fewer classes a rank has.
    Dirichlet(f64),
}

impl std::fmt::Display for Split {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Split::Even => f.write_str("even"),
            Split::Dirichlet(alpha) => write!(f, "Dirichlet({alpha})"),
        }
    }
}

/// Nobody gets less; a draw that gives less is drawn again.
const LEAST: usize = 4;
/// Draws before it is given up: the worst of the settings here needs some dozens.
const DRAWS: usize = 100_000;

/// For each rank the positions of its images. Every image goes to one rank; the same arguments give the same split.
///
/// # Errors
/// No draw gives everybody enough.
pub(crate) fn split(labels: &[u8], ranks: usize, how: Split, seed: u64) -> Result<Vec<Vec<usize>>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(0x0073_706c_6974); // apart from the streams of parameters and batches
    for _ in 0..DRAWS {
        let shares = match how {
            Split::Even => evenly(labels.len(), ranks, &mut rng),
            Split::Dirichlet(alpha) => by_label(labels, ranks, alpha, &mut rng)?,
        };
        if shares.iter().all(|share| share.len() >= LEAST) {
            return Ok(shares);
        }
        ensure!(
            how != Split::Even,
            "{} images are too few for {ranks} ranks",
            labels.len()
        );
    }
    anyhow::bail!(
        "{how}: no draw gives {ranks} ranks {LEAST} of {} images each",
        labels.len()
    )
}

fn evenly(images: usize, ranks: usize, rng: &mut ChaCha8Rng) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..images).collect();
    order.shuffle(rng);
    let share = |r: usize| order[r * images / ranks..(r + 1) * images / ranks].to_vec();
    (0..ranks).map(share).collect()
}

fn by_label(
    labels: &[u8],
    ranks: usize,
    alpha: f64,
    rng: &mut ChaCha8Rng,
) -> Result<Vec<Vec<usize>>> {
    // A Dirichlet sample is a vector of gamma samples over its sum.
    let gamma = Gamma::new(alpha, 1.0)?;
    let mut shares = vec![Vec::new(); ranks];
    for class in 0..CLASSES {
        let mut images: Vec<usize> = (0..labels.len())
            .filter(|&i| usize::from(labels[i]) == class)
            .collect();
        images.shuffle(rng);
        let parts: Vec<f64> = (0..ranks).map(|_| gamma.sample(rng)).collect();
        let total: f64 = parts.iter().sum();
        let (mut sum, mut from) = (0.0, 0);
        for (share, part) in shares.iter_mut().zip(&parts) {
            sum += part;
            let to = ((sum / total * images.len() as f64) as usize).clamp(from, images.len());
            share.extend_from_slice(&images[from..to]);
            from = to;
        }
        // Rounding may leave the last one over.
        if let Some(last) = shares.last_mut() {
            last.extend_from_slice(&images[from..]);
        }
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle_benches::digits::Digits;

    #[test]
    fn every_image_has_one_owner_and_nobody_is_left_out() {
        let labels = Digits::load().expect("sound").train.labels;
        for ranks in [1, 2, 3, 5, 7, 8, 16, 25] {
            for how in [Split::Even, Split::Dirichlet(0.1), Split::Dirichlet(10.0)] {
                let shares = split(&labels, ranks, how, 5).expect("a draw");
                assert_eq!(shares, split(&labels, ranks, how, 5).expect("a draw"));
                assert!(shares.iter().all(|s| s.len() >= LEAST), "{ranks} {how}");
                let mut all: Vec<usize> = shares.concat();
                all.sort_unstable();
                assert_eq!(all, (0..labels.len()).collect::<Vec<_>>(), "{ranks} {how}");
            }
        }
        assert!(split(&labels[..3], 2, Split::Even, 0).is_err());
        assert!(split(&labels, 2, Split::Dirichlet(-1.0), 0).is_err());
    }

    /// Of a rank's images, the share of its two commonest classes: 0.2 where all are equally common.
    fn skew(how: Split) -> f64 {
        let labels = Digits::load().expect("sound").train.labels;
        let shares = split(&labels, 16, how, 11).expect("a draw");
        let of = |share: &Vec<usize>| {
            let mut counts = [0_usize; CLASSES];
            share
                .iter()
                .for_each(|i| counts[usize::from(labels[*i])] += 1);
            counts.sort_unstable();
            (counts[CLASSES - 1] + counts[CLASSES - 2]) as f64 / share.len() as f64
        };
        shares.iter().map(of).sum::<f64>() / 16.0
    }

    #[test]
    fn a_small_concentration_leaves_ranks_few_classes() {
        let even = skew(Split::Even);
        let (mild, strong) = (skew(Split::Dirichlet(10.0)), skew(Split::Dirichlet(0.1)));
        assert!(
            even < 0.45 && mild < 0.5 && strong > 0.7,
            "{even} {mild} {strong}"
        );
    }
}
