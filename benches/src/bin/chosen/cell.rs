//! One operation at one size in one place: what was chosen, against all that was forced.

use anyhow::{Context, Result};
use gaggle_benches::verdict::{Line, median, paired, size, time};
use std::collections::BTreeMap;

/// What the chosen algorithm's time may be to the best one's.
pub(crate) const BAR: f64 = 1.10;
/// So many times the best one's time is far behind.
const FAR: f64 = 3.0;

/// Seconds by algorithm and round, at one size.
#[derive(Default)]
pub(crate) struct Cell {
    pub(crate) chosen: String,
    pub(crate) free: Vec<f64>,
    pub(crate) forced: BTreeMap<&'static str, Vec<f64>>,
}

impl Cell {
    /// # Errors
    /// What was chosen cannot be forced.
    pub(crate) fn line(&self, place: &str, operation: &str, bytes: u64) -> Result<Line> {
        let forced = self.forced.get(&*self.chosen);
        let forced = forced.with_context(|| {
            format!(
                "{place}, {operation}: {} was chosen, and cannot be forced",
                self.chosen
            )
        })?;
        // The same thing, measured twice in each round.
        let both: Vec<f64> = forced
            .iter()
            .zip(&self.free)
            .map(|(a, b)| (a + b) / 2.0)
            .collect();
        // Who was far behind in the first round was not measured again.
        let rounds = self.free.len();
        let is_other = |name: &str, times: &[f64]| name != self.chosen && times.len() == rounds;
        let others = self.forced.iter().filter(|(n, t)| is_other(n, t));
        let best = others.min_by(|a, b| median(a.1).total_cmp(&median(b.1)));
        let mut sorted: Vec<(&str, f64)> =
            self.forced.iter().map(|(n, s)| (*n, median(s))).collect();
        sorted.sort_by(|a, b| a.1.total_cmp(&b.1));
        let list: Vec<String> = sorted
            .iter()
            .filter(|(n, _)| *n != self.chosen)
            .map(|(n, s)| format!("{n} {}", time(*s)))
            .collect();
        // Where no other one is faster it is itself the best.
        let (name, seconds, ratio) = match best {
            Some((name, times)) if median(times) < median(&both) => {
                (*name, median(times), paired(&both, times))
            }
            _ => (&*self.chosen, median(&both), 1.0),
        };
        Ok(Line {
            cells: vec![
                place.to_owned(),
                operation.to_owned(),
                size(bytes),
                self.chosen.clone(),
                time(median(&both)),
                name.to_owned(),
                time(seconds),
                list.join(", "),
            ],
            held: Some((ratio, BAR)),
        })
    }

    /// Whether an algorithm took so much longer than the best in the first round that another look at it tells nothing.
    pub(crate) fn is_behind(&self, algorithm: &str) -> bool {
        let first = |times: &Vec<f64>| times.first().copied();
        let best = self
            .forced
            .values()
            .filter_map(first)
            .fold(f64::INFINITY, f64::min);
        let own = self.forced.get(algorithm).and_then(first);
        algorithm != self.chosen && own.is_some_and(|own| own > FAR * best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(chosen: &str, free: f64, forced: &[(&'static str, f64)]) -> Cell {
        Cell {
            chosen: chosen.into(),
            free: vec![free; 3],
            forced: forced.iter().map(|(n, s)| (*n, vec![*s; 3])).collect(),
        }
    }

    fn held(cell: &Cell) -> Option<bool> {
        let line = cell.line("threads-2", "all-reduce", 64);
        line.expect("measured").kept()
    }

    #[test]
    fn a_choice_is_held_against_the_best_other_one() {
        let times = [("ring", 2.0), ("direct", 1.0)];
        assert_eq!(held(&cell("direct", 1.1, &times)), Some(true));
        assert_eq!(held(&cell("ring", 2.0, &times)), Some(false));
        // Within a tenth.
        assert_eq!(
            held(&cell("ring", 2.0, &[("ring", 2.0), ("direct", 1.9)])),
            Some(true)
        );
        let unknown = cell("fused", 1.0, &times);
        assert!(unknown.line("threads-2", "all-reduce", 64).is_err());
    }

    #[test]
    fn who_is_far_behind_is_not_measured_again() {
        let mut one = cell(
            "direct",
            1.0,
            &[("direct", 1.0), ("ring", 2.9), ("bruck", 3.1)],
        );
        assert!(one.is_behind("bruck") && !one.is_behind("ring") && !one.is_behind("tree"));
        assert!(!cell("bruck", 3.1, &[("direct", 1.0), ("bruck", 3.1)]).is_behind("bruck"));
        // One lucky first round is no measurement.
        one.forced.insert("bruck", vec![0.1]);
        assert_eq!(held(&one), Some(true));
    }
}
