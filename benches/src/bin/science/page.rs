//! The results as text: tables and claims in Markdown, with plots beside.

use crate::{
    experiments::{Experiment, ONE_PEER_METHODS},
    judge::{Claim, Ran, Row, Spread, differences},
    plot::{Line, strips},
    trial::Plan,
};
use anyhow::{Context, Result};
use std::{fmt::Write, fs, path::Path};

/// Whether one-peer graphs are to do as well as static ones for its method.
fn is_claimed(row: &Row) -> bool {
    let label = row.trial.method.label;
    ONE_PEER_METHODS.iter().any(|m| m.label == label)
}

/// Everything that came out.
pub(crate) struct Results<'a> {
    pub(crate) experiments: &'a [Experiment],
    pub(crate) rows: &'a [Row],
    pub(crate) claims: &'a [Claim],
    pub(crate) seeds: &'a [u64],
    pub(crate) plan: Plan,
}

impl Results<'_> {
    fn rows<'a>(&'a self, experiment: &'a str) -> impl Iterator<Item = &'a Row> + 'a {
        self.rows.iter().filter(move |r| r.experiment == experiment)
    }

    /// What rows of an experiment are compared with: DSGDm-N among methods, the ring among graphs, the static graph beside the one-peer one.
    fn reference<'a>(&'a self, row: &Row) -> Option<&'a Row> {
        let same = |r: &&Row| match row.experiment {
            "graphs" => r.trial.topology == "ring",
            "one-peer" => {
                r.trial.topology == "static-exp"
                    && r.trial.method.label == row.trial.method.label
                    && r.trial.split == row.trial.split
            }
            _ => r.trial.method.label == "DSGDm-N",
        };
        self.rows(row.experiment).find(same)
    }

    /// The page, with plots under the names that [`plots`](Results::plots) gives.
    pub(crate) fn markdown(&self, plots: &[(String, String)]) -> String {
        let mut page = String::from(HEAD);
        let (first, last) = (self.seeds.first(), self.seeds.last());
        let _ = writeln!(
            page,
            "Each rank makes {} steps with {} images of its own, drawn with replacement; seeds are {} to {}.\n",
            self.plan.steps,
            self.plan.batch,
            first.copied().unwrap_or_default(),
            last.copied().unwrap_or_default(),
        );
        for experiment in self.experiments {
            let _ = writeln!(page, "## {}\n", experiment.title);
            self.table(experiment.name, &mut page);
            for (name, _) in plots {
                if name.starts_with(&format!("science-{}", experiment.name)) {
                    let _ = writeln!(page, "![{}]({name})\n", experiment.title);
                }
            }
        }
        self.verdicts(&mut page);
        page
    }

    fn table(&self, experiment: &str, page: &mut String) {
        page.push_str(TABLE_HEAD);
        for row in self.rows(experiment) {
            let t = &row.trial;
            let what = format!(
                "| {} | `{}` | {} | {} ",
                t.method.label, t.topology, t.split, t.method.lr
            );
            let _ = match &row.result {
                Ran::Refused(why) => writeln!(page, "{what}| refused: {why} | | | |"),
                Ran::Seeds(_) => {
                    let (local, averaged) = (Spread::of(&row.local()), Spread::of(&row.averaged()));
                    let lead = self.reference(row).filter(|r| !r.outcomes().is_empty());
                    let lead = lead.map(|r| Spread::of(&differences(row, r)));
                    let lead = lead.map_or(String::new(), |d| {
                        format!("{:+.2} ± {:.2}, least {:+.2}", d.mean, d.deviation, d.least)
                    });
                    writeln!(
                        page,
                        "{what}| {:.2} ± {:.2} | {:.2} ± {:.2} | {lead} | {:.1e} |",
                        local.mean,
                        local.deviation,
                        averaged.mean,
                        averaged.deviation,
                        row.consensus()
                    )
                }
            };
        }
        page.push('\n');
    }

    fn verdicts(&self, page: &mut String) {
        page.push_str(CLAIMS_HEAD);
        for claim in self.claims {
            let got = claim.got.map_or("not run".into(), |g| format!("{g:.2}"));
            let verdict = if claim.holds() { "holds" } else { "BROKEN" };
            let _ = writeln!(
                page,
                "| {} | {} | {got} | {verdict} |",
                claim.what, claim.wanted
            );
        }
    }

    /// File names and SVG texts.
    ///
    /// # Errors
    /// What plotters says.
    pub(crate) fn plots(&self) -> Result<Vec<(String, String)>> {
        let mut all = Vec::new();
        for experiment in self.experiments {
            let label = |row: &Row| match experiment.name {
                "methods" | "mild" => row.trial.method.label.to_owned(),
                "graphs" => row.trial.topology.to_owned(),
                _ => format!("{}, {}", row.trial.method.label, row.trial.split),
            };
            let lines: Vec<Line> = match experiment.name {
                "one-peer" => self
                    .rows(experiment.name)
                    .filter(|r| r.trial.topology == "one-peer-exp" && is_claimed(r))
                    .filter_map(|r| Some((label(r), differences(r, self.reference(r)?))))
                    .collect(),
                name => self.rows(name).map(|r| (label(r), r.local())).collect(),
            };
            let x = match experiment.name {
                "one-peer" => "points of local accuracy, one-peer minus static",
                _ => "mean test accuracy of the ranks' own models, per cent",
            };
            if let Some(svg) = strips(experiment.title, x, &lines)? {
                all.push((format!("science-{}.svg", experiment.name), svg));
            }
        }
        Ok(all)
    }

    /// Writes the page, and its plots beside it.
    ///
    /// # Errors
    /// A plot that cannot be drawn, a file that cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let plots = self.plots()?;
        let dir = path.parent().unwrap_or(Path::new("."));
        let put = |path: &Path, text: &str| {
            fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        for (name, svg) in &plots {
            put(&dir.join(name), svg)?;
        }
        put(path, &self.markdown(&plots))
    }
}

const HEAD: &str = "\
# What decentralised training learns

Real models on real data, small enough for two processors: 1,797 handwritten digits of 8 by 8 pixels (`data/README.md`), 360 of them kept for testing, and a perceptron 64–32–10 in f64 with weight decay 10⁻⁴.
Ranks are threads over the real engine; step sizes are constant, and the momentum is 0.9.
This page is written by `cargo xtask bench science -- --page docs/science.md`, which fails where a claim at its end is broken.

*Local accuracy* is the mean test accuracy of the ranks' own models, in per cent, *averaged* that of the mean of all models; both are means over seeds ± the standard deviation.
*Lead* compares seed by seed: among methods with DSGDm-N (local momentum in Nesterov's form), among graphs with the ring, and a one-peer graph with the static one.
*Consensus distance* is the median over seeds of the mean of ‖xᵢ − x̄‖².
With Dirichlet(0.1) most ranks hardly ever see most of the classes; with Dirichlet(10) all see all.
A pair that the library's check of stability refuses is not trained; what the check cannot see is a step size that is too large for the curvature of the loss, as gradient tracking's is on the one-peer graph here.

";

const TABLE_HEAD: &str = "\
| method | graph | data | step size | local accuracy | averaged | lead | consensus distance |
|---|---|---|---|---|---|---|---|
";

const CLAIMS_HEAD: &str = "\
## Claims

The margins of the first part are those that ten other seeds of another implementation gave, less a point or so; those of one-peer graphs are what BlueFog's paper claims (Ying et al. 2021: one-peer exponential graphs are as effective as static ones).

| claim | wanted | got | |
|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiments, judge::claims, trial::Outcome};

    #[test]
    fn a_page_has_a_row_for_every_trial_and_says_what_was_refused() {
        let experiments = experiments::all();
        let outcome = |local| Outcome {
            local,
            averaged: 0.97,
            consensus: 0.01,
        };
        let rows: Vec<Row> = experiments
            .iter()
            .flat_map(|e| e.trials.iter().map(move |t| (e.name, *t)))
            .map(|(experiment, trial)| Row {
                experiment,
                trial,
                result: match trial.method.label {
                    "EDM" => Ran::Refused("unstable: so it is".into()),
                    _ => Ran::Seeds(vec![outcome(0.95), outcome(0.96)]),
                },
            })
            .collect();
        let claims = claims(&rows);
        let results = Results {
            experiments: &experiments,
            rows: &rows,
            claims: &claims,
            seeds: &[11, 12],
            plan: Plan { steps: 4, batch: 2 },
        };
        let plots = results.plots().expect("drawn");
        assert_eq!(plots.len(), experiments.len());
        let page = results.markdown(&plots);
        let lines = page.lines().filter(|l| l.starts_with("| ")).count();
        // A head over each table.
        assert_eq!(lines, rows.len() + claims.len() + experiments.len() + 1);
        assert!(page.contains("refused: unstable: so it is"));
        assert!(page.contains("95.50 ± 0.71") && page.contains("not run | BROKEN"));
        assert!(page.contains("](science-graphs.svg)"));
    }
}
