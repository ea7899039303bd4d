//! Somebody who is timed in rounds, of which one may fail without costing the others.

use anyhow::Result;
use gaggle_benches::verdict::median;
use std::collections::BTreeMap;

/// Failures without a success between them after which nobody is tried again.
const TRIES: usize = 2;

/// A system with what it took by round and size, in seconds.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) times: BTreeMap<usize, BTreeMap<u64, f64>>,
    failures: Vec<String>,
    in_a_row: usize,
}

impl Contender {
    pub(crate) fn new(name: &'static str) -> Contender {
        Contender {
            name,
            times: BTreeMap::new(),
            failures: Vec::new(),
            in_a_row: 0,
        }
    }

    /// A failed run costs its round only.
    pub(crate) fn add(&mut self, round: usize, found: Result<BTreeMap<u64, f64>>) {
        match found {
            Ok(times) => {
                self.times.insert(round, times);
                self.in_a_row = 0;
            }
            Err(why) => {
                self.failures.push(format!("{why:#}"));
                self.in_a_row += 1;
            }
        }
    }

    pub(crate) fn has_given_up(&self) -> bool {
        self.in_a_row >= TRIES
    }

    /// Which rounds failed, and why; `None` where none did.
    pub(crate) fn failed(&self) -> Option<String> {
        let last = self.failures.last()?;
        let (n, good) = (self.failures.len(), self.times.len());
        Some(format!(
            "{n} runs failed and {good} did not; the last: {last}"
        ))
    }

    /// At one size, by round.
    pub(crate) fn of(&self, bytes: u64) -> Vec<f64> {
        let rounds = self.times.values();
        rounds
            .filter_map(|times| times.get(&bytes).copied())
            .collect()
    }

    pub(crate) fn median(&self, bytes: u64) -> f64 {
        median(&self.of(bytes))
    }

    /// Its time to the other's, in every round that has both.
    pub(crate) fn paired(&self, other: &Contender, bytes: u64) -> Vec<f64> {
        let ratio = |(round, times): (&usize, &BTreeMap<u64, f64>)| {
            let theirs = other.times.get(round)?.get(&bytes)?;
            Some(times.get(&bytes)? / theirs)
        };
        self.times.iter().filter_map(ratio).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    fn took(seconds: f64) -> Result<BTreeMap<u64, f64>> {
        Ok(BTreeMap::from([(4, seconds)]))
    }

    #[test]
    fn a_failed_run_costs_its_round_only() {
        let (mut ours, mut theirs) = (Contender::new("ours"), Contender::new("theirs"));
        for (round, (a, b)) in [(1.0, 2.0), (1.0, 8.0), (3.0, 4.0)].into_iter().enumerate() {
            ours.add(round, took(a));
            theirs.add(
                round,
                if round == 1 {
                    Err(anyhow!("no room"))
                } else {
                    took(b)
                },
            );
        }
        assert_eq!(ours.paired(&theirs, 4), [0.5, 0.75]);
        assert_eq!((theirs.median(4), theirs.has_given_up()), (3.0, false));
        let why = theirs.failed().expect("one failed");
        assert_eq!(why, "1 runs failed and 2 did not; the last: no room");
        assert_eq!(ours.failed(), None);
        for round in 3..5 {
            theirs.add(round, Err(anyhow!("gone")));
        }
        assert!(theirs.has_given_up());
        assert!(ours.paired(&theirs, 8).is_empty());
    }
}
