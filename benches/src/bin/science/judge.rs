//! What must come out: margins of one method or graph over another, on the same seeds.

use crate::{
    experiments::{
        DECENTLAM, DMSGD, DSGD, DSGDM_N, EDM, EXACT_DIFFUSION, GT, MT, PSGDM, QG, QG_N, YU,
    },
    split::Split,
    trial::{Method, Outcome, Trial},
};
use gaggle_benches::verdict::median;

/// A trial and what came of it.
#[derive(Debug)]
pub(crate) struct Row {
    /// The experiment's name.
    pub(crate) experiment: &'static str,
    pub(crate) trial: Trial,
    pub(crate) result: Ran,
}

/// What came of a trial.
#[derive(Debug)]
pub(crate) enum Ran {
    /// The library calls the pair unstable, and says why.
    Refused(String),
    /// One outcome per seed, in the order of the seeds.
    Seeds(Vec<Outcome>),
}

impl Row {
    pub(crate) fn outcomes(&self) -> &[Outcome] {
        match &self.result {
            Ran::Refused(_) => &[],
            Ran::Seeds(outcomes) => outcomes,
        }
    }

    /// In per cent.
    pub(crate) fn local(&self) -> Vec<f64> {
        self.outcomes().iter().map(|o| 100.0 * o.local).collect()
    }

    pub(crate) fn averaged(&self) -> Vec<f64> {
        self.outcomes().iter().map(|o| 100.0 * o.averaged).collect()
    }

    pub(crate) fn consensus(&self) -> f64 {
        let all: Vec<f64> = self.outcomes().iter().map(|o| o.consensus).collect();
        median(&all)
    }

    fn is(&self, experiment: &str, method: &Method, topology: &str, split: Split) -> bool {
        let t = &self.trial;
        self.experiment == experiment
            && (t.method.label, t.topology, t.split) == (method.label, topology, split)
    }
}

/// Mean and standard deviation (of a sample) and least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) mean: f64,
    pub(crate) deviation: f64,
    pub(crate) least: f64,
}

impl Spread {
    pub(crate) fn of(samples: &[f64]) -> Spread {
        let n = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / n;
        let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
        Spread {
            mean,
            deviation: (squares / (n - 1.0).max(1.0)).sqrt(),
            least: samples.iter().copied().fold(f64::INFINITY, f64::min),
        }
    }
}

/// Seed by seed, a − b.
pub(crate) fn differences(a: &Row, b: &Row) -> Vec<f64> {
    a.local()
        .iter()
        .zip(b.local())
        .map(|(a, b)| a - b)
        .collect()
}

/// Something that must hold.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) what: String,
    /// What it came to; `None` where a trial was refused or is missing.
    pub(crate) got: Option<f64>,
    pub(crate) wanted: Bound,
}

/// Where a figure must lie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
    Within(f64),
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bound::AtLeast(b) => write!(f, "≥ {b}"),
            Bound::AtMost(b) => write!(f, "≤ {b}"),
            Bound::Within(b) => write!(f, "±{b}"),
        }
    }
}

impl Claim {
    pub(crate) fn holds(&self) -> bool {
        self.got.is_some_and(|got| match self.wanted {
            Bound::AtLeast(b) => got >= b,
            Bound::AtMost(b) => got <= b,
            Bound::Within(b) => got.abs() <= b,
        })
    }
}

/// All claims about these rows.
pub(crate) fn claims(rows: &[Row]) -> Vec<Claim> {
    let mut all = margins(rows);
    all.extend(mild(rows));
    all.extend(one_peer(rows));
    all.extend(graphs(rows));
    all
}

const SKEWED: Split = Split::Dirichlet(0.1);

/// The row, where it ran.
fn find<'a>(
    rows: &'a [Row],
    experiment: &str,
    method: &Method,
    topology: &str,
    split: Split,
) -> Option<&'a Row> {
    rows.iter()
        .find(|r| r.is(experiment, method, topology, split))
        .filter(|r| !r.outcomes().is_empty())
}

/// The mean, over the seeds, of a − b in points of local accuracy.
fn lead(a: Option<&Row>, b: Option<&Row>) -> Option<f64> {
    Some(Spread::of(&differences(a?, b?)).mean)
}

fn margins(rows: &[Row]) -> Vec<Claim> {
    let row = |method: &Method| find(rows, "methods", method, "ring", SKEWED);
    let least: [(&Method, f64); 8] = [
        (&PSGDM, 3.0),
        (&EDM, 3.0),
        (&MT, 3.0),
        (&DECENTLAM, 2.0),
        (&GT, 2.0),
        (&EXACT_DIFFUSION, 1.5),
        (&QG_N, 1.5),
        (&YU, 0.0),
    ];
    let ahead = |(method, points): (&Method, f64)| Claim {
        what: format!("few classes: {} minus DSGDm-N, points", method.label),
        got: lead(row(method), row(&DSGDM_N)),
        wanted: Bound::AtLeast(points),
    };
    let mut all: Vec<Claim> = least.into_iter().map(ahead).collect();
    let apart = |method| row(method).map(Row::consensus);
    all.push(Claim {
        what: "few classes: consensus distance of QG-DmSGD-N, as a share of DSGDm-N's".into(),
        got: apart(&QG_N).zip(apart(&DSGDM_N)).map(|(a, b)| a / b),
        wanted: Bound::AtMost(0.5),
    });
    all
}

/// Nobody is far from the others where data are nearly even.
fn mild(rows: &[Row]) -> Vec<Claim> {
    let rows: Vec<&Row> = rows.iter().filter(|r| r.experiment == "mild").collect();
    let means: Vec<f64> = rows.iter().map(|r| Spread::of(&r.local()).mean).collect();
    let middle = median(&means);
    let claim = |(row, mean): (&&Row, &f64)| Claim {
        what: format!(
            "nearly even: {} minus the median method, points",
            row.trial.method.label
        ),
        got: (!row.outcomes().is_empty()).then_some(mean - middle),
        wanted: Bound::Within(0.5),
    };
    rows.iter().zip(&means).map(claim).collect()
}

/// BlueFog's paper: one-peer exponential graphs train as well as static ones.
fn one_peer(rows: &[Row]) -> Vec<Claim> {
    let claims: [(&Method, Split, f64); 7] = [
        (&DMSGD, Split::Even, 0.5),
        (&YU, Split::Even, 0.5),
        (&QG, Split::Even, 0.5),
        (&MT, Split::Even, 0.5),
        (&DSGD, Split::Even, 1.0),
        (&QG, SKEWED, 0.5),
        (&MT, SKEWED, 0.5),
    ];
    let claim = |(method, split, points): (&Method, Split, f64)| {
        let row = |topology| find(rows, "one-peer", method, topology, split);
        Claim {
            what: format!(
                "{split} data: {} on one-peer minus static exponential graph, points",
                method.label
            ),
            got: lead(row("one-peer-exp"), row("static-exp")),
            wanted: Bound::Within(points),
        }
    };
    claims.into_iter().map(claim).collect()
}

fn graphs(rows: &[Row]) -> Vec<Claim> {
    let row = |topology: &str| find(rows, "graphs", &DSGDM_N, topology, SKEWED);
    let ahead = |a: &str, b: &str, wanted| Claim {
        what: format!("25 ranks: {a} minus {b}, points"),
        got: lead(row(a), row(b)),
        wanted,
    };
    let mut all: Vec<Claim> = ["one-peer-exp", "base:1", "base:2", "static-exp", "base:4"]
        .into_iter()
        .map(|graph| ahead(graph, "ring", Bound::AtLeast(1.0)))
        .collect();
    // base:4 ≈ static-exp > base:2 > {one-peer-exp, base:1}
    all.extend(
        [
            ("base:4", "base:2"),
            ("static-exp", "base:2"),
            ("base:2", "one-peer-exp"),
            ("base:2", "base:1"),
        ]
        .map(|(a, b)| ahead(a, b, Bound::AtLeast(0.0))),
    );
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments;

    /// As if every method had reached the same, but for these.
    fn rows(special: &[(&Method, f64)]) -> Vec<Row> {
        let accuracy = |trial: &Trial| {
            let found = special.iter().find(|(m, _)| m.label == trial.method.label);
            found.map_or(0.9, |(_, a)| *a)
        };
        let row = |experiment, trial: Trial| Row {
            experiment,
            result: Ran::Seeds(vec![
                Outcome {
                    local: accuracy(&trial),
                    averaged: 0.9,
                    consensus: 1.0,
                };
                3
            ]),
            trial,
        };
        let of = |e: experiments::Experiment| {
            let trials = e.trials.into_iter();
            trials.map(|t| row(e.name, t)).collect::<Vec<_>>()
        };
        experiments::all().into_iter().flat_map(of).collect()
    }

    fn broken(rows: &[Row]) -> usize {
        claims(rows).iter().filter(|c| !c.holds()).count()
    }

    #[test]
    fn claims_hold_where_margins_do_and_break_where_not() {
        // Nobody leads: seven of eight margins, the consensus, five graphs over the ring.
        assert_eq!(broken(&rows(&[])), 7 + 1 + 5);
        // The one that all are compared with falls behind: those margins hold, the mild split's does not.
        let behind = rows(&[(&DSGDM_N, 0.85)]);
        assert_eq!(broken(&behind), 1 + 1 + 5);
        // What was refused proves nothing.
        let mut refused = rows(&[(&DSGDM_N, 0.85)]);
        for row in &mut refused {
            row.result = Ran::Refused("because".into());
        }
        let all = claims(&refused).len();
        assert_eq!(broken(&refused), all);
        assert!(claims(&refused).iter().all(|c| c.got.is_none()));
    }

    #[test]
    fn a_spread_is_that_of_a_sample() {
        let s = Spread::of(&[1.0, 2.0, 6.0]);
        assert_eq!((s.mean, s.least), (3.0, 1.0));
        assert!((s.deviation - 7.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(Spread::of(&[4.0]).deviation, 0.0);
    }
}
