//! What a bench says of what it has measured: figures, ratios and whether they keep what was promised, as Markdown and JSON.

use crate::options::ROUNDS;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::{fmt::Write, fs, path::Path};

/// The median; of an even number the mean of the two in the middle.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The median of what each of `ours` is to the one of `theirs` in the same round.
pub fn paired(ours: &[f64], theirs: &[f64]) -> f64 {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
    median(&ratios)
}

/// A time for people.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s.is_nan() => "-".into(),
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.3} s"),
    }
}

/// A size for people.
pub fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// The machine, in a line.
pub fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let cpu = cpu.lines().find(|l| l.starts_with("model name"));
    let cpu = cpu.and_then(|l| l.split_once(':')).map_or("?", |(_, n)| n);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or_default();
    format!(
        "{cores} processors of {}, Linux {}, load {load} at the beginning",
        cpu.trim(),
        kernel.trim()
    )
}

/// One thing that was measured.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Unique in a run.
    pub name: String,
    /// Under which conditions; an object.
    pub parameters: Value,
    /// `s`, `bytes` or `ratio`.
    pub unit: &'static str,
    /// In the order in which they were measured.
    pub samples: Vec<f64>,
    /// Bytes that one operation works on.
    pub bytes: Option<u64>,
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Line {
    /// The cells.
    pub cells: Vec<String>,
    /// What was measured and what it may be, where that is promised.
    pub held: Option<(f64, f64)>,
}

impl Line {
    /// `None` where nothing is promised.
    pub fn kept(&self) -> Option<bool> {
        self.held.map(|(got, bar)| got <= bar)
    }
}

/// A table with a title.
#[derive(Clone, Debug)]
pub struct Table {
    /// Above it.
    pub title: String,
    /// The columns' names; measured ÷ bar and the verdict follow.
    pub columns: Vec<&'static str>,
    /// The lines.
    pub lines: Vec<Line>,
}

impl Table {
    /// Without lines.
    pub fn new(title: impl Into<String>, columns: &[&'static str]) -> Table {
        Table {
            title: title.into(),
            columns: columns.to_vec(),
            lines: Vec::new(),
        }
    }

    fn markdown(&self, judges: bool) -> String {
        let mut text = format!("## {}\n\n", self.title);
        let judged = self.lines.iter().any(|l| l.held.is_some());
        let mut head = self.columns.clone();
        if judged {
            head.extend(["measured", "bar", "verdict"]);
        }
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {} |", head.join(" | "));
        let _ = writeln!(text, "|{}", "---|".repeat(head.len()));
        for line in &self.lines {
            let mut cells = line.cells.clone();
            if judged {
                cells.extend(match line.held {
                    Some((got, bar)) => [
                        format!("{got:.3}"),
                        format!("{bar:.3}"),
                        word(line.kept(), judges).to_owned(),
                    ],
                    None => [String::new(), String::new(), String::new()],
                });
            }
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        text
    }
}

fn word(kept: Option<bool>, judges: bool) -> &'static str {
    match (kept, judges) {
        (Some(_), false) => "-",
        (Some(true), true) => "met",
        (Some(false), true) => "MISSED",
        (None, _) => "",
    }
}

/// All that a run has to say.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Lines before the tables: what was run on what.
    pub head: Vec<String>,
    /// The tables.
    pub tables: Vec<Table>,
    /// The figures.
    pub figures: Vec<Figure>,
    /// What was not measured, and why.
    pub missing: Vec<String>,
    /// Why the run judges nothing, if it does not: ratios and bars are told, and no verdict.
    pub unjudged: Option<String>,
}

impl Report {
    /// As Markdown.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for line in &self.head {
            let _ = writeln!(text, "- {line}");
        }
        if let Some(why) = &self.unjudged {
            let _ = writeln!(text, "- this judges nothing: {why}");
        }
        for why in &self.missing {
            let _ = writeln!(text, "- not measured: {why}");
        }
        for table in &self.tables {
            text.push('\n');
            text += &table.markdown(self.unjudged.is_none());
        }
        text
    }

    /// Tables and verdicts as JSON.
    pub fn json(&self) -> Value {
        let tables = self.tables.iter().map(|t| {
            let lines = t.lines.iter().map(|l| {
                let cells = t.columns.iter().zip(&l.cells);
                let cells = cells.map(|(c, v)| ((*c).to_owned(), json!(v)));
                json!({
                    "cells": cells.collect::<serde_json::Map<String, Value>>(),
                    "measured": l.held.map(|h| h.0),
                    "bar": l.held.map(|h| h.1),
                    "kept": l.kept().filter(|_| self.unjudged.is_none()),
                })
            });
            json!({"title": t.title, "lines": lines.collect::<Vec<Value>>()})
        });
        json!({
            "head": self.head,
            "missing": self.missing,
            "unjudged": self.unjudged,
            "tables": tables.collect::<Vec<Value>>(),
        })
    }

    /// In the form that `cargo xtask bench` reads.
    pub fn figures(&self) -> Value {
        let figures = self.figures.iter().map(|f| {
            let mut value = json!({"name": f.name, "parameters": f.parameters, "unit": f.unit, "samples": f.samples});
            if let Some(bytes) = f.bytes {
                value["bytes"] = json!(bytes);
            }
            value
        });
        Value::Array(figures.collect())
    }

    /// Writes `NAME.md` and `NAME.json` into `dir`.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&self, dir: &Path, name: &str) -> Result<()> {
        let failed = || format!("cannot write into {}", dir.display());
        fs::create_dir_all(dir).with_context(failed)?;
        fs::write(dir.join(format!("{name}.md")), self.markdown()).with_context(failed)?;
        let json = format!("{:#}\n", self.json());
        fs::write(dir.join(format!("{name}.json")), json).with_context(failed)
    }

    /// Writes the figures where `cargo xtask bench` wants them.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write_figures(&self, path: Option<&Path>) -> Result<()> {
        match path {
            Some(path) => fs::write(path, self.figures().to_string())
                .with_context(|| format!("cannot write {}", path.display())),
            None => Ok(()),
        }
    }

    /// How many lines keep what is promised, and how many do not; or that none is judged.
    pub fn verdict(&self) -> String {
        if let Some(why) = &self.unjudged {
            return format!("this judges nothing: {why}");
        }
        let lines = self.tables.iter().flat_map(|t| &t.lines);
        let kept: Vec<bool> = lines.filter_map(Line::kept).collect();
        let met = kept.iter().filter(|k| **k).count();
        format!("{met} met, {} missed", kept.len() - met)
    }

    /// Says that so few `rounds` judge nothing, where they are too few.
    pub fn judge_by(&mut self, rounds: usize) {
        self.unjudged = (rounds < ROUNDS).then(|| format!("{rounds} of {ROUNDS} rounds"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_one_round() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[3.0, 1.0]), 2.0);
        assert!(median(&[]).is_nan());
        assert_eq!(paired(&[1.0, 4.0, 9.0], &[1.0, 2.0, 3.0]), 2.0);
    }

    #[test]
    fn a_table_says_what_was_kept() {
        let mut table = Table::new("times", &["size", "time"]);
        for (got, bar) in [(1.0, 1.07), (1.1, 1.07)] {
            let cells = vec![size(16 << 20), time(0.2)];
            table.lines.push(Line {
                cells,
                held: Some((got, bar)),
            });
        }
        let report = Report {
            tables: vec![table],
            missing: vec!["Gloo: absent".into()],
            ..Report::default()
        };
        let text = report.markdown();
        let met = "| 16 MiB | 200.00 ms | 1.000 | 1.070 | met |";
        assert!(text.contains(met) && text.contains("| MISSED |"), "{text}");
        assert!(text.contains("not measured: Gloo"));
        assert_eq!(report.verdict(), "1 met, 1 missed");
        assert_eq!(report.json()["tables"][0]["lines"][1]["kept"], false);
    }

    #[test]
    fn sizes_and_times_are_readable() {
        assert_eq!((size(4), size(65536)), ("4 B".into(), "64 KiB".into()));
        assert_eq!((time(2e-6), time(1.5)), ("2.0 µs".into(), "1.500 s".into()));
    }
}
