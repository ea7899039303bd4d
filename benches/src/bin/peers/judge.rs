//! Ratios and verdicts: arithmetic on what was measured, nothing else.
//!
//! A round runs every contender of an experiment once, one after the other, so that a slow spell of the machine meets them all.
//! The best other at a size is the one whose median over the rounds is lowest; the ratio is that of gaggle's time to the best other's *in the same round*, and of these the median over the rounds.
//! A row holds when the geometric mean of its ratios is within the bar and none is above 1.2 times it; where the bar differs from size to size, both are said of ratio ÷ bar.

use crate::table::{Bar, Contender, Experiment, Role, Row};
use std::collections::BTreeMap;

/// No single size may be further above the bar.
const SLACK: f64 = 1.2;

/// What one run of a contender says of one size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Sample {
    pub(crate) median_us: f64,
    pub(crate) p95_us: f64,
}

/// Times of one contender at one size, by round.
pub(crate) type Rounds = BTreeMap<usize, Sample>;

/// Everything that was measured.
#[derive(Clone, Default, Debug)]
pub(crate) struct Measured {
    times: BTreeMap<(&'static str, Contender, u64), Rounds>,
    /// The first failure of each contender in each experiment.
    failures: BTreeMap<(&'static str, Contender), String>,
    /// How many processors others kept busy, by run.
    pub(crate) foreign: Vec<f64>,
}

impl Measured {
    pub(crate) fn add(
        &mut self,
        experiment: &'static str,
        contender: Contender,
        size: u64,
        round: usize,
        sample: Sample,
    ) {
        let rounds = self.times.entry((experiment, contender, size)).or_default();
        rounds.insert(round, sample);
    }

    pub(crate) fn fail(&mut self, experiment: &'static str, contender: Contender, why: String) {
        self.failures.entry((experiment, contender)).or_insert(why);
    }

    pub(crate) fn failure(&self, experiment: &'static str, contender: Contender) -> Option<&str> {
        self.failures
            .get(&(experiment, contender))
            .map(String::as_str)
    }

    pub(crate) fn failures(&self) -> impl Iterator<Item = (&'static str, Contender, &str)> {
        let all = self.failures.iter();
        all.map(|((e, c), why)| (*e, *c, why.as_str()))
    }

    pub(crate) fn rounds(
        &self,
        experiment: &'static str,
        contender: Contender,
        size: u64,
    ) -> Option<&Rounds> {
        self.times.get(&(experiment, contender, size))
    }

    /// Median over the rounds, in microseconds.
    pub(crate) fn median_us(
        &self,
        experiment: &'static str,
        contender: Contender,
        size: u64,
    ) -> Option<f64> {
        let rounds = self.rounds(experiment, contender, size)?;
        median(rounds.values().map(|s| s.median_us))
    }

    /// The other system whose median is lowest.
    pub(crate) fn best_other(&self, e: &Experiment, size: u64) -> Option<Contender> {
        let others = e.contenders.iter().filter(|c| c.role() == Role::Other);
        others
            .filter_map(|c| Some((*c, self.median_us(e.id, *c, size)?)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(c, _)| c)
    }

    /// Time of one ÷ time of another, for every round that has both.
    pub(crate) fn paired(
        &self,
        experiment: &'static str,
        size: u64,
        one: Contender,
        other: Contender,
    ) -> Vec<f64> {
        let (Some(one), Some(other)) = (
            self.rounds(experiment, one, size),
            self.rounds(experiment, other, size),
        ) else {
            return Vec::new();
        };
        let pairs = one.iter().filter_map(|(round, a)| {
            let b = other.get(round)?;
            Some(a.median_us / b.median_us)
        });
        pairs.filter(|r| r.is_finite()).collect()
    }
}

/// One size of a row.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Cell {
    pub(crate) experiment: &'static str,
    pub(crate) size: u64,
    pub(crate) best_other: Contender,
    /// By round.
    pub(crate) ratios: Vec<f64>,
    /// Their median.
    pub(crate) ratio: f64,
    pub(crate) bar: f64,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// gaggle was not measured at every size, or what the bar needs was not.
    Missing(String),
    /// Nothing to compare with.
    Void(String),
}

/// A row with everything that was found.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Judged {
    pub(crate) row: Row,
    pub(crate) cells: Vec<Cell>,
    pub(crate) verdict: Verdict,
}

impl Judged {
    /// Geometric mean of the ratios.
    pub(crate) fn ratio(&self) -> Option<f64> {
        geometric_mean(self.cells.iter().map(|c| c.ratio))
    }

    /// Geometric mean of the bars: the bar, where it is one.
    pub(crate) fn bar(&self) -> Option<f64> {
        geometric_mean(self.cells.iter().map(|c| c.bar))
    }

    /// The cell that is furthest above its bar.
    pub(crate) fn worst(&self) -> Option<&Cell> {
        let over = |c: &Cell| c.ratio / c.bar;
        self.cells.iter().max_by(|a, b| over(a).total_cmp(&over(b)))
    }
}

/// Judges one row. `chosen` are the experiments that were run, in full.
pub(crate) fn judge(row: &Row, chosen: &[Experiment], measured: &Measured) -> Judged {
    let mut cells = Vec::new();
    let (mut missing, mut void) = (Vec::new(), Vec::new());
    for id in row.experiments {
        let Some(e) = chosen.iter().find(|e| e.id == *id) else {
            missing.push(format!("{id} was not run"));
            continue;
        };
        let (lo, hi) = row.span;
        let sizes: Vec<u64> = e
            .sizes
            .iter()
            .copied()
            .filter(|s| (lo..=hi).contains(s))
            .collect();
        if sizes.is_empty() {
            missing.push(format!("{id}: none of its sizes was run"));
        }
        for size in sizes {
            match cell(row, e, size, measured) {
                Ok(cell) => cells.push(cell),
                Err(Verdict::Void(why)) => void.push(why),
                Err(Verdict::Missing(why)) => missing.push(why),
                Err(Verdict::Met | Verdict::Missed) => {}
            }
        }
    }
    missing.dedup();
    void.dedup();
    let verdict = if !missing.is_empty() {
        Verdict::Missing(missing.join("; "))
    } else if !void.is_empty() {
        Verdict::Void(void.join("; "))
    } else {
        let over = || cells.iter().map(|c| c.ratio / c.bar);
        let mean = geometric_mean(over()).is_some_and(|m| m <= 1.0);
        match mean && over().all(|o| o <= SLACK) {
            true => Verdict::Met,
            false => Verdict::Missed,
        }
    };
    Judged {
        row: row.clone(),
        cells,
        verdict,
    }
}

fn cell(row: &Row, e: &Experiment, size: u64, measured: &Measured) -> Result<Cell, Verdict> {
    let missing = |who: Contender| {
        let why = measured.failure(e.id, who).unwrap_or("was not run");
        Verdict::Missing(format!("{}: {who}: {why}", e.id))
    };
    if measured.rounds(e.id, row.ours, size).is_none() {
        return Err(missing(row.ours));
    }
    let best_other = measured
        .best_other(e, size)
        .ok_or_else(|| Verdict::Void(format!("{}: no other system was measured", e.id)))?;
    let ratios = measured.paired(e.id, size, row.ours, best_other);
    let ratio = median(ratios.iter().copied()).ok_or_else(|| {
        Verdict::Missing(format!(
            "{}: no round has both {} and {best_other}",
            e.id, row.ours
        ))
    })?;
    let bar = match row.bar {
        Bar::Fixed(bar) => bar,
        Bar::Duplex { floor, factor } => {
            let limits = measured.paired(e.id, size, Contender::Duplex, best_other);
            let limit = median(limits).ok_or_else(|| missing(Contender::Duplex))?;
            floor.max(factor * limit)
        }
    };
    Ok(Cell {
        experiment: e.id,
        size,
        best_other,
        ratios,
        ratio,
        bar,
    })
}

/// Of an even number the mean of the middle two.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut v: Vec<f64> = values.into_iter().collect();
    v.sort_by(f64::total_cmp);
    let n = v.len();
    match n {
        0 => None,
        n if n % 2 == 1 => Some(v[n / 2]),
        n => Some((v[n / 2 - 1] + v[n / 2]) / 2.0),
    }
}

pub(crate) fn geometric_mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values
        .into_iter()
        .fold((0.0, 0_u32), |(sum, n), v| (sum + v.ln(), n + 1));
    (n > 0).then(|| (sum / f64::from(n)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Path, System};
    use Contender::{Duplex, Mpich, OpenMpi4, Plain};

    fn experiment() -> Experiment {
        Experiment {
            id: "x",
            op: "allreduce",
            dtype: "f32",
            ranks: 2,
            path: Path::Shm,
            sizes: vec![4, 16, 64],
            contenders: vec![Plain, OpenMpi4, Mpich, Duplex],
            two_cores: false,
        }
    }

    fn row(bar: Bar) -> Row {
        Row {
            name: "all",
            experiments: &["x"],
            ours: Plain,
            span: (4, 64),
            bar,
        }
    }

    fn measured(times: &[(Contender, u64, &[f64])]) -> Measured {
        let mut m = Measured::default();
        for (who, size, rounds) in times {
            for (round, us) in rounds.iter().enumerate() {
                let sample = Sample {
                    median_us: *us,
                    p95_us: 2.0 * us,
                };
                m.add("x", *who, *size, round, sample);
            }
        }
        m
    }

    #[test]
    fn medians_and_means() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([]), None);
        assert_eq!(geometric_mean([]), None);
        let mean = geometric_mean([0.5, 2.0, 1.0]).expect("three values");
        assert!((mean - 1.0).abs() < 1e-12);
    }

    #[test]
    fn the_best_other_has_the_lowest_median_and_ratios_are_paired_by_round() {
        // MPICH has the quickest single round, Open MPI the better median; round 1 was slow for everyone.
        let m = measured(&[
            (Plain, 4, &[1.0, 10.0, 1.5]),
            (OpenMpi4, 4, &[2.0, 20.0, 2.0]),
            (Mpich, 4, &[1.0, 30.0, 9.0]),
        ]);
        let e = experiment();
        assert_eq!(m.best_other(&e, 4), Some(OpenMpi4));
        assert_eq!(m.paired("x", 4, Plain, OpenMpi4), [0.5, 0.5, 0.75]);
        assert_eq!(m.best_other(&e, 16), None);
    }

    #[test]
    fn rounds_without_a_partner_are_left_out() {
        let mut m = measured(&[(Plain, 4, &[1.0, 2.0])]);
        let sample = Sample {
            median_us: 4.0,
            p95_us: 4.0,
        };
        m.add("x", OpenMpi4, 4, 1, sample);
        assert_eq!(m.paired("x", 4, Plain, OpenMpi4), [0.5]);
    }

    #[test]
    fn a_row_holds_by_its_mean_and_its_worst_size() {
        let judged = |ratios: [f64; 3], bar| {
            let mut times: Vec<(Contender, u64, Vec<f64>)> = Vec::new();
            for (size, ratio) in [4, 16, 64].into_iter().zip(ratios) {
                times.push((Plain, size, vec![ratio]));
                times.push((OpenMpi4, size, vec![1.0]));
            }
            let times: Vec<(Contender, u64, &[f64])> =
                times.iter().map(|(c, s, t)| (*c, *s, &t[..])).collect();
            judge(&row(Bar::Fixed(bar)), &[experiment()], &measured(&times))
        };
        assert_eq!(judged([0.5, 0.5, 0.5], 0.5).verdict, Verdict::Met);
        // The mean is 0.5 exactly; one size is 1.18 times the bar.
        assert_eq!(
            judged([0.59, 0.5, 0.25 / 0.59], 0.5001).verdict,
            Verdict::Met
        );
        // The mean is as good, but one size is 1.3 times the bar.
        let missed = judged([0.65, 0.5, 0.25 / 0.65], 0.5001);
        assert_eq!(missed.verdict, Verdict::Missed);
        assert_eq!(missed.worst().map(|c| c.size), Some(4));
        assert_eq!(judged([0.52, 0.52, 0.52], 0.5).verdict, Verdict::Missed);
    }

    #[test]
    fn the_wire_raises_the_bar() {
        let m = measured(&[
            (Plain, 4, &[1.0]),
            (OpenMpi4, 4, &[1.0]),
            (Duplex, 4, &[0.9]),
            (Plain, 16, &[0.7]),
            (OpenMpi4, 16, &[1.0]),
            (Duplex, 16, &[0.1]),
        ]);
        let bar = Bar::Duplex {
            floor: 0.75,
            factor: 1.15,
        };
        let row = Row {
            span: (4, 16),
            ..row(bar)
        };
        let judged = judge(&row, &[experiment()], &m);
        let bars: Vec<f64> = judged.cells.iter().map(|c| c.bar).collect();
        assert!(
            (bars[0] - 1.035).abs() < 1e-12 && bars[1] == 0.75,
            "{bars:?}"
        );
        assert_eq!(judged.verdict, Verdict::Met);
    }

    #[test]
    fn what_is_not_there_is_said() {
        let fixed = row(Bar::Fixed(1.0));
        let mut m = measured(&[(OpenMpi4, 4, &[1.0])]);
        m.fail("x", Plain, "no such command".into());
        m.fail("x", Plain, "a later failure".into());
        let Verdict::Missing(why) = judge(&fixed, &[experiment()], &m).verdict else {
            panic!("gaggle was not measured");
        };
        assert_eq!(why, "x: gaggle: no such command");
        let ours = measured(&[(Plain, 4, &[1.0]), (Plain, 16, &[1.0]), (Plain, 64, &[1.0])]);
        let verdict = judge(&fixed, &[experiment()], &ours).verdict;
        assert!(matches!(verdict, Verdict::Void(_)), "{verdict:?}");
        let verdict = judge(&fixed, &[], &ours).verdict;
        assert!(matches!(verdict, Verdict::Missing(_)), "{verdict:?}");
        // Part of a row is no verdict on the row.
        let some = measured(&[(Plain, 4, &[0.1]), (OpenMpi4, 4, &[1.0])]);
        let judged = judge(&fixed, &[experiment()], &some);
        assert!(matches!(judged.verdict, Verdict::Missing(_)));
        assert_eq!(judged.cells.len(), 1);
        assert_eq!(Duplex.system(), System::Duplex);
    }
}
