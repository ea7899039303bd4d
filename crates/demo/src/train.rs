//! The demo itself, on one rank: every algorithm in turn from the same start on the same images, measured.
//!
//! Every rank calls [`demo`] and gets the same story back.

use crate::{
    check::{Meets, check},
    data::{Digits, Set},
    error::DemoError,
    method::{StepCost, method},
    model::{Batch, Model},
    partition::Partition,
    progress::Progress,
    settings::Settings,
    summary::{History, Point, Run, Seconds, Setting, Story},
};
use gaggle::{
    Group, LinkStats, Mean, Rank,
    core::descriptor::stable_hash,
    ddp::{Digest, compare_digests, consensus_distance, digest, gather_digests},
};
use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

/// The models are tested this often per epoch.
const TESTS_PER_EPOCH: u64 = 2;

/// Trains by every algorithm of `settings`. Collective: every rank calls it with the same settings.
///
/// `ranks_are` tells readers what the ranks are: `processes over tcp`.
///
/// # Errors
/// See [`DemoError`]. Where the others cannot know the cause, the group is aborted with it.
pub fn demo(
    group: &Group,
    settings: &Settings,
    digits: &Digits,
    ranks_are: &str,
    progress: &mut dyn Progress,
) -> Result<Story, DemoError> {
    let outcome = run_all(group, settings, digits, ranks_are, progress);
    if let Err(e) = &outcome
        && e.is_own()
    {
        group.abort(&e.to_string());
    }
    outcome
}

fn run_all(
    group: &Group,
    settings: &Settings,
    digits: &Digits,
    ranks_are: &str,
    progress: &mut dyn Progress,
) -> Result<Story, DemoError> {
    let hash = stable_hash(&[format!("{settings:?}").as_bytes()]);
    compare_digests(group, "settings", Digest(hash))?;
    let labels = &digits.train.labels;
    let partition = Partition::new(labels, group.size(), settings.partition, settings.seed)?;
    let bench = Bench {
        group,
        settings,
        train: &digits.train,
        share: &partition.shares[group.rank().idx()],
        test: Batch::all(&digits.test)?,
        model: Model::new(),
    };
    let topology = settings.topology(group.size())?;
    let checked = check(settings, &*topology, bench.model.len(), bench.steps())?;
    if group.rank() == Rank(0) {
        checked.warnings.iter().for_each(|w| tracing::warn!("{w}"));
    }
    let mut runs = vec![];
    for (at, (name, meets)) in settings.algorithms.iter().zip(checked.meets).enumerate() {
        runs.push(bench.run(name, at, meets, progress)?);
    }
    Ok(Story {
        runs,
        setting: Setting {
            ranks: group.size(),
            ranks_are: ranks_are.into(),
            epochs: settings.epochs,
            batch: settings.batch,
            lr: settings.lr,
            momentum: settings.momentum,
            options: settings.single.given(),
            seed: settings.seed,
            partition: settings.partition_name(),
            wire: settings.wire_name().into(),
            parameters: bench.model.len(),
            train_images: digits.train.len(),
            test_images: digits.test.len(),
        },
        label_histograms: partition.histograms(labels),
    })
}

/// What all runs share.
struct Bench<'a> {
    group: &'a Group,
    settings: &'a Settings,
    train: &'a Set,
    share: &'a [usize],
    test: Batch,
    model: Model,
}

impl Bench<'_> {
    /// Everybody together sees about as many images per epoch as there are.
    fn steps_per_epoch(&self) -> u64 {
        let per_step = self.group.size() * self.settings.batch;
        (self.train.len() / per_step).max(1) as u64
    }

    fn steps(&self) -> u64 {
        self.steps_per_epoch() * self.settings.epochs as u64
    }

    fn run(
        &self,
        name: &str,
        at: usize,
        meets: Meets,
        progress: &mut dyn Progress,
    ) -> Result<Run, DemoError> {
        let mut x = self.model.init(self.settings.seed);
        compare_digests(self.group, "parameters at the start", digest(&x))?;
        let mut method = method(name, at, self.settings, &self.model, self.group)?;
        let mut sampler = Sampler::new(self.share, self.settings.seed, self.group.rank());
        let epoch = self.steps_per_epoch();
        let steps = self.steps();
        let mut meter = Meter::default();
        let mut history = History::default();
        progress.begin(name, steps);
        let mut judge = |x: &[f32], step: u64, progress: &mut dyn Progress| {
            let point = self.judge(x, step, step as f64 / epoch as f64)?;
            progress.evaluated(&point);
            history.points.push(point);
            Ok::<(), DemoError>(())
        };
        judge(&x, 0, progress)?;
        let mut losses = vec![];
        let mut done = 0;
        for stretch in stretches(epoch, self.settings.epochs as u64) {
            let links = self.settled_links()?;
            let mut own = Vec::with_capacity(stretch as usize);
            for step in done..done + stretch {
                let began = self.now();
                let batch = Batch::new(self.train, &sampler.next(self.settings.batch))?;
                let cost = method.step(&self.model, &mut x, &batch)?;
                meter.step(&cost, self.now().saturating_sub(began));
                if !cost.loss.is_finite() {
                    return Err(DemoError::Diverged {
                        algorithm: name.into(),
                        step,
                        loss: cost.loss,
                    });
                }
                own.push(cost.loss);
                progress.step(cost.loss);
            }
            meter.links(&self.settled_links()?.since(&links));
            done += stretch;
            losses.extend(self.mean_over_ranks(&own)?);
            judge(&x, done, progress)?;
        }
        progress.end();
        history.loss = losses;
        let formula = method.payload_formula(steps)?;
        let digests = gather_digests(self.group, digest(&x))?;
        let mut run = self.sum_up(steps, &meter, history, formula, &digests)?;
        run.algorithm = name.into();
        run.topology = match meets.neighbours {
            true => self.settings.topology.clone(),
            false => "all".into(),
        };
        Ok(run)
    }

    /// The links' counters once everybody has come this far, and so has taken what was sent to it: short messages are waited for by nobody else.
    fn settled_links(&self) -> Result<LinkStats, DemoError> {
        self.group.barrier()?;
        Ok(self.group.stats())
    }

    fn now(&self) -> Duration {
        self.group.communicator().now()
    }

    /// Tests this rank's parameters here and the mean of all parameters on rank 0.
    fn judge(&self, x: &[f32], step: u64, epoch: f64) -> Result<Point, DemoError> {
        let apart = consensus_distance(self.group, x)?;
        let mut mean = x.to_vec();
        self.group.all_reduce(&mut mean, Mean)?;
        let own = self.model.judge(x, &self.test)?.accuracy;
        let averaged = if self.group.rank() == Rank(0) {
            self.model.judge(&mean, &self.test)?.accuracy
        } else {
            0.0
        };
        let all = self.group.all_gather(&[own, averaged])?;
        let local: Vec<f64> = all.iter().step_by(2).copied().collect();
        Ok(Point {
            step,
            epoch,
            accuracy_mean_model: all[1],
            accuracy_local_mean: mean_of(&local),
            accuracy_local_min: local.iter().copied().fold(f64::INFINITY, f64::min),
            consensus_distance: apart,
        })
    }

    fn mean_over_ranks(&self, own: &[f32]) -> Result<Vec<f32>, DemoError> {
        let all = self.group.all_gather(own)?;
        let ranks = self.group.size();
        Ok((0..own.len())
            .map(|i| {
                let sum: f64 = (0..ranks).map(|r| f64::from(all[r * own.len() + i])).sum();
                (sum / ranks as f64) as f32
            })
            .collect())
    }

    fn sum_up(
        &self,
        steps: u64,
        meter: &Meter,
        history: History,
        payload_formula_bytes: f64,
        digests: &[Digest],
    ) -> Result<Run, DemoError> {
        let own = meter.values();
        let all = self.group.all_gather(&own)?;
        let mean = |at: usize| {
            let values: Vec<f64> = all.iter().skip(at).step_by(own.len()).copied().collect();
            mean_of(&values)
        };
        let last = history.points.last().copied().unwrap_or_default();
        let [compute, communicate, hidden, wait, payload, header] = std::array::from_fn(mean);
        Ok(Run {
            ranks: self.group.size(),
            accuracy_mean_model: last.accuracy_mean_model,
            accuracy_local_mean: last.accuracy_local_mean,
            accuracy_local_min: last.accuracy_local_min,
            consensus_distance: last.consensus_distance,
            bytes_per_rank_step: payload / steps as f64,
            payload_formula_bytes,
            header_bytes_per_rank_step: header / steps as f64,
            steps,
            seconds: Seconds {
                compute,
                communicate,
                wait,
                train: compute + wait,
            },
            hidden_fraction: if communicate > 0.0 {
                hidden / communicate
            } else {
                0.0
            },
            digests: digests.iter().map(Digest::to_string).collect(),
            history,
            ..Run::default()
        })
    }
}

/// Steps between tests, epoch by epoch.
fn stretches(epoch: u64, epochs: u64) -> impl Iterator<Item = u64> {
    let tests = TESTS_PER_EPOCH.min(epoch);
    let parts = (0..tests).map(move |i| epoch * (i + 1) / tests - epoch * i / tests);
    (0..epochs).flat_map(move |_| parts.clone())
}

fn mean_of(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// This rank's images in random order, over and over.
struct Sampler {
    order: Vec<usize>,
    at: usize,
    rng: ChaCha8Rng,
}

impl Sampler {
    fn new(share: &[usize], seed: u64, rank: Rank) -> Sampler {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(u64::from(rank.0) + 1);
        Sampler {
            order: share.to_vec(),
            at: share.len(),
            rng,
        }
    }

    fn next(&mut self, batch: usize) -> Vec<usize> {
        (0..batch)
            .map(|_| {
                if self.at == self.order.len() {
                    self.order.shuffle(&mut self.rng);
                    self.at = 0;
                }
                self.at += 1;
                self.order[self.at - 1]
            })
            .collect()
    }
}

/// Sums over this rank's steps.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    compute: Duration,
    communicate: Duration,
    hidden: Duration,
    wait: Duration,
    payload: u64,
    header: u64,
}

impl Meter {
    fn step(&mut self, cost: &StepCost, all: Duration) {
        self.compute += all.saturating_sub(cost.wait);
        self.communicate += cost.communicate();
        self.hidden += cost.hidden;
        self.wait += cost.wait;
    }

    fn links(&mut self, added: &LinkStats) {
        self.payload += added.payload_sent;
        self.header += added.header_sent;
    }

    fn values(&self) -> [f64; 6] {
        [
            self.compute.as_secs_f64(),
            self.communicate.as_secs_f64(),
            self.hidden.as_secs_f64(),
            self.wait.as_secs_f64(),
            self.payload as f64,
            self.header as f64,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_add_up_to_the_epochs() {
        for epoch in [1, 2, 3, 7, 70] {
            for epochs in [1, 2, 5] {
                let all: Vec<u64> = stretches(epoch, epochs).collect();
                assert_eq!(all.iter().sum::<u64>(), epoch * epochs);
                assert!(all.iter().all(|s| *s > 0));
            }
        }
    }

    #[test]
    fn every_image_comes_once_per_round_in_an_order_of_the_rank_s_own() {
        let share: Vec<usize> = (100..107).collect();
        let mut sampler = Sampler::new(&share, 1, Rank(0));
        for _ in 0..3 {
            let mut seen: Vec<usize> = (0..7).flat_map(|_| sampler.next(1)).collect();
            seen.sort_unstable();
            assert_eq!(seen, share);
        }
        let first = |rank| Sampler::new(&share, 1, Rank(rank)).next(20);
        assert_eq!(first(0), first(0));
        assert_ne!(first(0), first(1));
    }
}
