//! One method on one graph and one split, trained for one seed: ranks as threads over the real engine.

use crate::{
    model::{self, PARAMETERS},
    split::{Split, split},
};
use anyhow::{Context, Result};
use gaggle::{
    EngineConfig, Group,
    ddp::NeighbourMixer,
    optim::{Decentralised, RuleConfig, rule_by_name},
    topology::{by_name, facts},
};
use gaggle_benches::digits::Digits;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

/// β, of every method that has momentum.
const MOMENTUM: f64 = 0.9;
/// A machine that is busy with something else must not end a run.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A way to train.
#[derive(Debug)]
pub(crate) struct Method {
    /// What readers call it.
    pub(crate) label: &'static str,
    /// Its name in gaggle-optim.
    pub(crate) rule: &'static str,
    /// Nesterov's form of its momentum.
    pub(crate) nesterov: bool,
    /// γ.
    pub(crate) lr: f64,
}

/// A method among ranks on a graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    pub(crate) method: &'static Method,
    /// A name of gaggle-topology.
    pub(crate) topology: &'static str,
    pub(crate) ranks: usize,
    pub(crate) split: Split,
}

/// How long and with how much a rank trains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) steps: u64,
    /// Images per rank and step, drawn with replacement from the rank's own.
    pub(crate) batch: usize,
}

/// What came of one seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// Mean test accuracy of the ranks' own models, from 0 to 1.
    pub(crate) local: f64,
    /// Test accuracy of the mean of all models.
    pub(crate) averaged: f64,
    /// Mean over ranks of ‖xᵢ − x̄‖².
    pub(crate) consensus: f64,
}

impl Trial {
    fn config(&self) -> RuleConfig {
        RuleConfig {
            momentum: MOMENTUM,
            nesterov: self.method.nesterov,
            ..RuleConfig::default()
        }
    }

    /// Why the library refuses the pair, where it does.
    ///
    /// # Errors
    /// A name that the library does not know.
    pub(crate) fn refusal(&self) -> Result<Option<String>> {
        let topology = by_name(self.topology, self.ranks)?;
        let rule = rule_by_name::<f64>(self.method.rule, &self.config())?;
        let checked = rule.check(&facts(&*topology), self.method.lr);
        Ok(checked.err().map(|e| e.to_string()))
    }

    /// Trains once.
    ///
    /// # Errors
    /// A rank fails.
    pub(crate) fn run(&self, digits: &Digits, plan: Plan, seed: u64) -> Result<Outcome> {
        let shares = split(&digits.train.labels, self.ranks, self.split, seed)?;
        let config = EngineConfig::default().with_timeout(TIMEOUT);
        let models = gaggle::local_with(self.ranks, config, |group| {
            self.train(&group, digits, &shares[group.rank().idx()], plan, seed)
        })?;
        let models: Vec<Vec<f64>> = models.into_iter().collect::<Result<_>>()?;
        Ok(judge(digits, &models))
    }

    fn train(
        &self,
        group: &Group,
        digits: &Digits,
        share: &[usize],
        plan: Plan,
        seed: u64,
    ) -> Result<Vec<f64>> {
        let topology = by_name(self.topology, self.ranks)?;
        let mixer = NeighbourMixer::new(group.clone(), topology)?;
        let rule = rule_by_name(self.method.rule, &self.config())?;
        let mut driver = Decentralised::unchecked(rule, Box::new(mixer), PARAMETERS);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(u64::from(group.rank().0) + 1);
        let mut x = model::start(seed);
        let mut g = vec![0.0; PARAMETERS];
        let lr = self.method.lr;
        for step in 0..plan.steps {
            let batch: Vec<usize> = (0..plan.batch)
                .map(|_| share[rng.random_range(0..share.len())])
                .collect();
            driver.before_forward(lr, &mut x)?;
            model::gradient(&x, &digits.train, &batch, &mut g);
            driver
                .step(lr, &mut x, &g)
                .with_context(|| format!("{} at step {step}", self.method.label))?;
        }
        Ok(x)
    }
}

fn judge(digits: &Digits, models: &[Vec<f64>]) -> Outcome {
    let ranks = models.len() as f64;
    let mut mean = vec![0.0; PARAMETERS];
    for x in models {
        mean.iter_mut().zip(x).for_each(|(m, x)| *m += x / ranks);
    }
    let apart = |x: &Vec<f64>| -> f64 { x.iter().zip(&mean).map(|(x, m)| (x - m).powi(2)).sum() };
    let accuracy = |x: &Vec<f64>| model::accuracy(x, &digits.test);
    Outcome {
        local: models.iter().map(accuracy).sum::<f64>() / ranks,
        averaged: accuracy(&mean),
        consensus: models.iter().map(apart).sum::<f64>() / ranks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::{self, all};

    #[test]
    fn a_trial_repeats_bit_for_bit_and_ranks_of_an_all_reduce_stay_equal() {
        let digits = Digits::load().expect("sound");
        let plan = Plan { steps: 3, batch: 4 };
        let trial = Trial {
            method: &experiments::PSGDM,
            topology: "ring",
            ranks: 5,
            split: Split::Dirichlet(0.1),
        };
        let once = trial.run(&digits, plan, 11).expect("trained");
        assert_eq!(once, trial.run(&digits, plan, 11).expect("trained"));
        assert!(once.consensus < 1e-24, "{once:?}");
        // The same model five times, but for rounding of the mean.
        assert!((once.local - once.averaged).abs() < 1e-12, "{once:?}");
    }

    #[test]
    fn every_trial_is_of_rules_and_graphs_that_there_are() {
        for trial in all().iter().flat_map(|e| &e.trials) {
            trial.refusal().expect("names that the library knows");
        }
    }
}
