//! Who learns from what: the training images split among ranks.
//!
//! [`Partition::new`] is a pure function of labels, world, kind and seed, so that every rank works out the whole split by itself and no image is given twice.

use crate::data::{CLASSES, histogram};
use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Gamma};

/// How the training images are split among the ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// At random, equally many each (the first ranks one more where it does not come out even).
    Iid,
    /// By label: each class is dealt out in proportions drawn from a Dirichlet distribution with this concentration. The smaller, the fewer classes a rank sees.
    Dirichlet(f64),
}

/// Why images cannot be split.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// Nobody to give them to.
    #[error("partition: there are no ranks")]
    NoRanks,
    /// Not everybody would get one.
    #[error("partition: {images} images are too few for {ranks} ranks")]
    TooFew {
        /// Images at hand.
        images: usize,
        /// Ranks to serve.
        ranks: usize,
    },
    /// The concentration has no meaning.
    #[error("partition: the Dirichlet concentration must be above 0 and finite, it is {0}")]
    Concentration(f64),
}

/// The training images of every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// For each rank the positions of its images, ascending.
    pub shares: Vec<Vec<usize>>,
}

impl Partition {
    /// Splits images with these `labels` among `ranks` ranks.
    ///
    /// Under [`Kind::Dirichlet`] a rank that already has its even share gets nothing more of the classes that follow (Yurochkin et al. 2019, section 4, as its code does), and nobody ends below a fifth of it.
    ///
    /// # Errors
    /// See [`PartitionError`].
    pub fn new(
        labels: &[u8],
        ranks: usize,
        kind: Kind,
        seed: u64,
    ) -> Result<Partition, PartitionError> {
        if ranks == 0 {
            return Err(PartitionError::NoRanks);
        }
        if labels.len() < ranks {
            return Err(PartitionError::TooFew {
                images: labels.len(),
                ranks,
            });
        }
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(0x0070_6172_7469); // apart from the streams of parameters and batches
        let mut shares = match kind {
            Kind::Iid => deal_evenly(labels.len(), ranks, &mut rng),
            Kind::Dirichlet(alpha) => deal_by_label(labels, ranks, alpha, &mut rng)?,
        };
        for share in &mut shares {
            share.sort_unstable();
        }
        Ok(Partition { shares })
    }

    /// How many images of each class each rank has.
    pub fn histograms(&self, labels: &[u8]) -> Vec<[usize; CLASSES]> {
        self.shares
            .iter()
            .map(|share| histogram(share.iter().map(|&i| labels[i])))
            .collect()
    }
}

fn deal_evenly(images: usize, ranks: usize, rng: &mut ChaCha8Rng) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..images).collect();
    order.shuffle(rng);
    let mut shares = vec![vec![]; ranks];
    for (at, image) in order.into_iter().enumerate() {
        shares[at % ranks].push(image);
    }
    shares
}

fn deal_by_label(
    labels: &[u8],
    ranks: usize,
    alpha: f64,
    rng: &mut ChaCha8Rng,
) -> Result<Vec<Vec<usize>>, PartitionError> {
    // A Dirichlet sample is a vector of gamma samples over its sum.
    let gamma = Gamma::new(alpha, 1.0)
        .ok()
        .filter(|_| alpha.is_finite())
        .ok_or(PartitionError::Concentration(alpha))?;
    let even = labels.len() / ranks;
    let mut shares: Vec<Vec<usize>> = vec![vec![]; ranks];
    let mut classes: Vec<usize> = (0..CLASSES).collect();
    classes.shuffle(rng);
    for class in classes {
        let mut images: Vec<usize> = (0..labels.len())
            .filter(|&i| labels[i] as usize == class)
            .collect();
        images.shuffle(rng);
        let mut parts: Vec<f64> = shares
            .iter()
            .map(|share| {
                let part = gamma.sample(rng); // drawn for full ranks too: the stream stays in step
                if share.len() < even { part } else { 0.0 }
            })
            .collect();
        if parts.iter().sum::<f64>() <= f64::MIN_POSITIVE {
            // Underflow of a tiny concentration: all to the poorest.
            parts[poorest(&shares)] = 1.0;
        }
        deal_in_proportion(&images, &parts, &mut shares);
    }
    level(&mut shares, (even / 5).max(1), rng);
    Ok(shares)
}

fn deal_in_proportion(images: &[usize], parts: &[f64], shares: &mut [Vec<usize>]) {
    let total: f64 = parts.iter().sum();
    let (mut sum, mut from) = (0.0, 0);
    let last = parts.iter().rposition(|&p| p > 0.0).unwrap_or(0);
    for (rank, part) in parts.iter().enumerate() {
        sum += part;
        let to = if rank >= last {
            images.len()
        } else {
            ((sum / total * images.len() as f64).round() as usize).clamp(from, images.len())
        };
        shares[rank].extend_from_slice(&images[from..to]);
        from = to;
    }
}

fn poorest(shares: &[Vec<usize>]) -> usize {
    (0..shares.len())
        .min_by_key(|&r| shares[r].len())
        .unwrap_or(0)
}

/// Moves random images from the richest to the poorest until nobody has fewer than `least`.
fn level(shares: &mut [Vec<usize>], least: usize, rng: &mut ChaCha8Rng) {
    loop {
        let poor = poorest(shares);
        let rich = (0..shares.len())
            .max_by_key(|&r| shares[r].len())
            .unwrap_or(0);
        let missing = least.saturating_sub(shares[poor].len());
        // The richest has at least the even share, which is above `least` unless all are equal.
        let spare = shares[rich].len().saturating_sub(least);
        if missing == 0 || spare == 0 {
            return;
        }
        shares[rich].shuffle(rng);
        let keep = shares[rich].len() - missing.min(spare);
        let moved = shares[rich].split_off(keep);
        shares[poor].extend(moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Digits;

    const WORLDS: [usize; 6] = [1, 2, 3, 5, 7, 8];

    fn labels() -> Vec<u8> {
        Digits::load().unwrap().train.labels
    }

    fn check_disjoint_and_complete(partition: &Partition, images: usize) {
        let mut all: Vec<usize> = partition.shares.concat();
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..images));
    }

    #[test]
    fn every_image_has_one_owner() {
        let labels = labels();
        for ranks in WORLDS {
            for kind in [Kind::Iid, Kind::Dirichlet(0.1), Kind::Dirichlet(100.0)] {
                let p = Partition::new(&labels, ranks, kind, 1).unwrap();
                assert_eq!(p.shares.len(), ranks);
                check_disjoint_and_complete(&p, labels.len());
                let again = Partition::new(&labels, ranks, kind, 1).unwrap();
                assert_eq!(p, again);
                if ranks > 1 {
                    assert_ne!(p, Partition::new(&labels, ranks, kind, 2).unwrap());
                }
            }
        }
    }

    #[test]
    fn iid_shares_are_even_in_number_and_in_labels() {
        let labels = labels();
        for ranks in WORLDS {
            let p = Partition::new(&labels, ranks, Kind::Iid, 3).unwrap();
            for (rank, share) in p.shares.iter().enumerate() {
                let want = labels.len() / ranks + usize::from(rank < labels.len() % ranks);
                assert_eq!(share.len(), want);
            }
            for counts in p.histograms(&labels) {
                let least = labels.len() / ranks / 20;
                assert!(counts.iter().all(|&n| n > least), "{counts:?}");
            }
        }
    }

    #[test]
    fn dirichlet_shares_are_skewed_and_nobody_is_empty() {
        let labels = labels();
        for ranks in WORLDS {
            for seed in 0..20 {
                let p = Partition::new(&labels, ranks, Kind::Dirichlet(0.1), seed).unwrap();
                let least = labels.len() / ranks / 5;
                assert!(p.shares.iter().all(|s| s.len() >= least));
                if ranks == 1 {
                    continue;
                }
                // Mean share of a rank's commonest class: 0.11 where the split is even.
                let skew: f64 = p
                    .histograms(&labels)
                    .iter()
                    .map(|h| {
                        let total: usize = h.iter().sum();
                        *h.iter().max().unwrap() as f64 / total as f64
                    })
                    .sum::<f64>()
                    / ranks as f64;
                assert!(skew > 0.2, "{ranks} ranks, seed {seed}: {skew}");
            }
        }
    }

    #[test]
    fn few_images_still_reach_everybody() {
        for ranks in WORLDS {
            for extra in [0, 1] {
                let labels = vec![3; ranks + extra];
                for kind in [Kind::Iid, Kind::Dirichlet(1e-3)] {
                    let p = Partition::new(&labels, ranks, kind, 0).unwrap();
                    assert!(p.shares.iter().all(|s| !s.is_empty()));
                    check_disjoint_and_complete(&p, labels.len());
                }
            }
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let check = |n: usize, ranks, kind, want: &str| {
            let error = Partition::new(&vec![0; n], ranks, kind, 0).unwrap_err();
            assert_eq!(error.to_string(), want);
        };
        check(5, 0, Kind::Iid, "partition: there are no ranks");
        check(
            2,
            3,
            Kind::Iid,
            "partition: 2 images are too few for 3 ranks",
        );
        check(
            9,
            3,
            Kind::Dirichlet(0.0),
            "partition: the Dirichlet concentration must be above 0 and finite, it is 0",
        );
        let nan = Partition::new(&[0; 9], 3, Kind::Dirichlet(f64::NAN), 0);
        assert!(matches!(nan, Err(PartitionError::Concentration(_))));
        let infinite = Partition::new(&[0; 9], 3, Kind::Dirichlet(f64::INFINITY), 0);
        assert!(matches!(infinite, Err(PartitionError::Concentration(_))));
    }
}
