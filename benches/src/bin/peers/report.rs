//! What a run says: figures in the one form, tables in Markdown, plots.

use crate::{
    install::{Absent, Present},
    judge::{Judged, Measured, Verdict, median},
    plot,
    table::{Contender, Experiment, Role, System, size},
};
use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};
use std::{fmt::Write as _, fs, path::Path};

/// Everything that there is to tell.
pub(crate) struct Report<'a> {
    /// Machine and command, a line each.
    pub(crate) head: &'a [String],
    pub(crate) experiments: &'a [Experiment],
    pub(crate) measured: &'a Measured,
    pub(crate) judged: &'a [Judged],
    pub(crate) present: &'a Present,
    pub(crate) absent: &'a Absent,
    /// How often each contender was run.
    pub(crate) rounds: usize,
}

/// Fewer are no judgement.
pub(crate) const ROUNDS: usize = 7;

impl Report<'_> {
    /// Medians of every round of every contender at every size, ratios by round of every row at every size, and one figure for each row that could be judged.
    pub(crate) fn figures(&self) -> Vec<Value> {
        let mut figures = Vec::new();
        for e in self.experiments {
            for contender in &e.contenders {
                for bytes in &e.sizes {
                    let Some(rounds) = self.measured.rounds(e.id, *contender, *bytes) else {
                        continue;
                    };
                    let system = contender.system();
                    let p95: Vec<f64> = rounds.values().map(|s| 1e3 * s.p95_us).collect();
                    let medians: Vec<f64> = rounds.values().map(|s| 1e3 * s.median_us).collect();
                    figures.push(json!({
                        "name": format!("{}, {contender}, {}", e.id, size(*bytes)),
                        "parameters": {
                            "op": e.op, "dtype": e.dtype, "ranks": e.ranks, "path": e.path.name(),
                            "system": system.key(), "version": self.present.get(&system),
                            "round": rounds.keys().collect::<Vec<_>>(), "p95_ns": p95,
                        },
                        "unit": "ns",
                        "samples": medians,
                        "bytes": bytes,
                    }));
                }
            }
        }
        for j in self.judged {
            for cell in &j.cells {
                figures.push(json!({
                    "name": format!("ratio: {}, {}, {}", j.row.name, cell.experiment, size(cell.size)),
                    "parameters": {"best_other": cell.best_other.to_string(), "bar": cell.bar},
                    "unit": "ratio",
                    "samples": cell.ratios,
                }));
            }
            if let (Some(ratio), true) = (j.ratio(), judged(&j.verdict)) {
                figures.push(json!({
                    "name": format!("row: {}", j.row.name),
                    "parameters": {
                        "bar": j.bar(), "verdict": word(&j.verdict), "rounds": self.rounds,
                        "worst_over_bar": j.worst().map(|c| c.ratio / c.bar),
                    },
                    "unit": "ratio",
                    "samples": [ratio],
                }));
            }
        }
        if !self.measured.foreign.is_empty() {
            figures.push(json!({
                "name": "processors that others kept busy",
                "parameters": {},
                "unit": "ratio",
                "samples": self.measured.foreign,
            }));
        }
        figures
    }

    /// Rows with their verdicts.
    pub(crate) fn rows(&self) -> String {
        let mut text =
            String::from("| row | ratio | bar | worst size | verdict |\n|---|---|---|---|---|\n");
        for j in self.judged {
            let number = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.2}"));
            let worst = j
                .worst()
                .filter(|_| judged(&j.verdict))
                .map_or("-".into(), |c| {
                    format!(
                        "{} ({:.2} × the bar; {})",
                        size(c.size),
                        c.ratio / c.bar,
                        c.best_other
                    )
                });
            let whole = judged(&j.verdict);
            let verdict = match &j.verdict {
                Verdict::Missing(why) | Verdict::Void(why) => {
                    format!("{}: {why}", word(&j.verdict))
                }
                verdict => word(verdict).into(),
            };
            let bar = match j.row.bar {
                crate::table::Bar::Fixed(bar) => format!("{bar:.2}"),
                crate::table::Bar::Duplex { .. } => number(j.bar().filter(|_| whole)),
            };
            let ratio = number(j.ratio().filter(|_| whole));
            let _ = writeln!(
                text,
                "| {} | {ratio} | {bar} | {worst} | {} |",
                j.row.name,
                verdict.replace('|', "/")
            );
        }
        text
    }

    /// The whole page.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from("# Beside other systems\n\n");
        for line in self.head {
            let _ = writeln!(text, "- {line}");
        }
        let _ = writeln!(text, "- {}", self.load());
        text.push_str("\n## Systems\n\n| system | version |\n|---|---|\n");
        for system in System::ALL {
            let what = match (self.present.get(&system), self.absent.get(&system)) {
                (Some(version), _) => version.clone(),
                (_, Some(why)) => format!("absent: {}", why.replace('|', "/")),
                _ => "not asked for".into(),
            };
            let _ = writeln!(text, "| {} | {what} |", system.key());
        }
        let failures: Vec<_> = self.measured.failures().collect();
        if !failures.is_empty() {
            text.push_str("\nWhat failed:\n\n");
            for (experiment, contender, why) in failures {
                let _ = writeln!(text, "- {experiment}, {contender}: {why}");
            }
        }
        text.push_str("\n## Rows\n\nTime of gaggle divided by that of the best other; a row holds when the geometric mean does and no size is above 1.2 times the bar.\n\n");
        if self.rounds < ROUNDS {
            let _ = writeln!(
                text,
                "Of {} only: no judgement, which takes {ROUNDS}.\n",
                rounds(self.rounds)
            );
        }
        text.push_str(&self.rows());
        for e in self.experiments {
            let _ = write!(
                text,
                "\n## {}\n\n{} of {}, {} ranks, {}; medians of {} in µs, and gaggle ÷ best other by round, its median.\n\n",
                e.id,
                e.op,
                e.dtype,
                e.ranks,
                e.path.name(),
                rounds(self.rounds)
            );
            text.push_str(&self.table(e));
        }
        text
    }

    fn load(&self) -> String {
        let foreign = median(self.measured.foreign.iter().copied());
        let most = self.measured.foreign.iter().copied().fold(0.0, f64::max);
        match foreign {
            Some(m) => format!(
                "other programs kept {m:.2} processors busy (median over the runs; at most {most:.2})"
            ),
            None => "how busy other programs were is not known".into(),
        }
    }

    fn table(&self, e: &Experiment) -> String {
        let has = |c: &Contender| {
            let sizes = e.sizes.iter();
            sizes
                .into_iter()
                .any(|s| self.measured.rounds(e.id, *c, *s).is_some())
        };
        let columns: Vec<Contender> = e.contenders.iter().copied().filter(has).collect();
        if columns.is_empty() {
            return "Nobody could be measured.\n".into();
        }
        let ours: Vec<Contender> = columns
            .iter()
            .copied()
            .filter(|c| c.role() == Role::Ours)
            .collect();
        let mut text = String::from("| size |");
        for c in &columns {
            let _ = write!(text, " {c} |");
        }
        for c in &ours {
            let _ = write!(text, " {c} ÷ best |");
        }
        text.push_str("\n|---|");
        text.push_str(&"---|".repeat(columns.len() + ours.len()));
        text.push('\n');
        for bytes in &e.sizes {
            let best = self.measured.best_other(e, *bytes);
            let _ = write!(text, "| {} |", size(*bytes));
            for c in &columns {
                let time = self
                    .measured
                    .median_us(e.id, *c, *bytes)
                    .map_or("-".into(), micros);
                match Some(*c) == best {
                    true => write!(text, " **{time}** |"),
                    false => write!(text, " {time} |"),
                }
                .unwrap_or_default();
            }
            for c in &ours {
                let _ = write!(
                    text,
                    " {} |",
                    self.ratio(e, *c, *bytes)
                        .map_or("-".into(), |r| format!("{r:.2}"))
                );
            }
            text.push('\n');
        }
        text
    }

    fn ratio(&self, e: &Experiment, ours: Contender, bytes: u64) -> Option<f64> {
        let best = self.measured.best_other(e, bytes)?;
        median(self.measured.paired(e.id, bytes, ours, best))
    }

    /// Writes `peers.md`, `peers.json` with rows and reasons, and a plot of times and one of ratios for each experiment of more than two sizes.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        write("peers.md", &self.markdown())?;
        write("peers.json", &format!("{:#}\n", self.json()))?;
        for e in self.experiments.iter().filter(|e| e.sizes.len() > 2) {
            let what = format!(
                "{} of {}, {} ranks, {}",
                e.op,
                e.dtype,
                e.ranks,
                e.path.name()
            );
            let line = |c: &Contender, value: &dyn Fn(u64) -> Option<f64>| {
                let points = e.sizes.iter().filter_map(|s| Some((*s as f64, value(*s)?)));
                (c.to_string(), points.collect())
            };
            let times: Vec<plot::Line> = e
                .contenders
                .iter()
                .map(|c| line(c, &|s| self.measured.median_us(e.id, *c, s)))
                .collect();
            let ours = e.contenders.iter().filter(|c| c.role() == Role::Ours);
            let ratios: Vec<plot::Line> =
                ours.map(|c| line(c, &|s| self.ratio(e, *c, s))).collect();
            for (kind, y, lines) in [
                ("times", "median time in µs", times),
                ("ratios", "gaggle ÷ best other", ratios),
            ] {
                let plot =
                    plot::svg(&format!("{what}: {kind}"), y, &lines).map_err(|e| anyhow!(e))?;
                if let Some(plot) = plot {
                    write(&format!("{}-{kind}.svg", e.id), &plot)?;
                }
            }
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let by_key = |map: &std::collections::BTreeMap<System, String>| -> Value {
            map.iter()
                .map(|(s, what)| (s.key().to_owned(), json!(what)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let rows: Vec<Value> = self
            .judged
            .iter()
            .map(|j| {
                let why = match &j.verdict {
                    Verdict::Missing(why) | Verdict::Void(why) => Some(why),
                    Verdict::Met | Verdict::Missed => None,
                };
                let cells: Vec<Value> = j.cells.iter().map(|c| json!({
                    "experiment": c.experiment, "bytes": c.size, "best_other": c.best_other.to_string(),
                    "ratios": c.ratios, "ratio": c.ratio, "bar": c.bar,
                })).collect();
                json!({
                    "row": j.row.name, "ours": j.row.ours.to_string(), "verdict": word(&j.verdict), "why": why,
                    "ratio": j.ratio().filter(|_| judged(&j.verdict)),
                    "bar": j.bar().filter(|_| judged(&j.verdict)), "cells": cells,
                })
            })
            .collect();
        let failures: Vec<Value> = self
            .measured
            .failures()
            .map(|(e, c, why)| json!({"experiment": e, "contender": c.to_string(), "why": why}))
            .collect();
        json!({
            "head": self.head, "rounds": self.rounds, "rows": rows, "failures": failures,
            "systems": by_key(self.present), "absent": by_key(self.absent),
            "figures": self.figures(),
        })
    }
}

fn judged(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Met | Verdict::Missed)
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "met",
        Verdict::Missed => "MISSED",
        Verdict::Missing(_) => "not measured",
        Verdict::Void(_) => "void",
    }
}

fn rounds(n: usize) -> String {
    match n {
        1 => "1 round".into(),
        n => format!("{n} rounds"),
    }
}

/// Three digits, as far as there are.
fn micros(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.2}"),
        us if us < 100.0 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        judge::{Sample, judge},
        table::{experiments, rows},
    };

    fn measured() -> Measured {
        let mut m = Measured::default();
        for (who, us) in [(Contender::Plain, 4.0), (Contender::OpenMpi4, 5.0)] {
            for (round, slow) in [1.0, 2.0].into_iter().enumerate() {
                let sample = Sample {
                    median_us: us * slow,
                    p95_us: 2.0 * us,
                };
                for bytes in [8, 4096] {
                    m.add("shm-2", who, bytes, round, sample);
                }
            }
        }
        m.fail("shm-2", Contender::Registered, "no registered heap".into());
        m
    }

    fn with_report(check: impl FnOnce(&Report<'_>)) {
        let measured = measured();
        let mut all = experiments(2);
        all.retain(|e| e.id == "shm-2");
        let judged: Vec<Judged> = rows().iter().map(|r| judge(r, &all, &measured)).collect();
        let present = Present::from([(System::OpenMpi4, "4.1.8".into())]);
        let absent = Absent::from([(System::BlueFog, "no Python | 3.8".into())]);
        check(&Report {
            head: &["machine: made up".into()],
            experiments: &all,
            measured: &measured,
            judged: &judged,
            present: &present,
            absent: &absent,
            rounds: 2,
        });
    }

    #[test]
    fn the_page_tells_ratios_reasons_and_that_few_rounds_judge_nothing() {
        with_report(|report| {
            let page = report.markdown();
            for part in [
                "| plain, 8 B | 0.80 | 0.90 |",
                "| met |",
                "| registered, 8 B | - | 0.90 | - | not measured: shm-2: gaggle registered: no registered heap |",
                "| bluefog | absent: no Python / 3.8 |",
                "| openmpi4 | 4.1.8 |",
                "| mpich | not asked for |",
                "Of 2 rounds only: no judgement",
                "| 4 KiB | 6.00 | **7.50** | 0.80 |",
                "tcp-2 was not run",
            ] {
                assert!(page.contains(part), "{part}\n{page}");
            }
        });
    }

    #[test]
    fn figures_have_the_form_that_the_record_takes() {
        with_report(|report| {
            let figures = report.figures();
            let names: std::collections::BTreeSet<&str> =
                figures.iter().filter_map(|f| f["name"].as_str()).collect();
            assert_eq!(names.len(), figures.len());
            assert!(names.contains("shm-2, gaggle, 8 B") && names.contains("row: plain, 8 B"));
            assert!(!names.contains("row: registered, 8 B"));
            for f in &figures {
                assert!(
                    f["unit"].is_string() && f["samples"].as_array().is_some_and(|s| !s.is_empty())
                );
            }
            let ratio = figures
                .iter()
                .find(|f| f["name"] == "ratio: plain, 8 B, shm-2, 8 B");
            assert_eq!(ratio.map(|f| &f["samples"]), Some(&json!([0.8, 0.8])));
        });
    }

    #[test]
    fn files_are_written() {
        let dir = tempfile::tempdir().expect("a folder");
        with_report(|report| report.write(dir.path()).expect("written"));
        for name in [
            "peers.md",
            "peers.json",
            "shm-2-times.svg",
            "shm-2-ratios.svg",
        ] {
            assert!(dir.path().join(name).exists(), "{name}");
        }
        let text = fs::read_to_string(dir.path().join("peers.json")).expect("read");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["absent"]["bluefog"], json!("no Python | 3.8"));
    }
}
