//! The one form in which every benchmark's figures are kept, and the numbers that sum them up.

use super::machine;
use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use std::{fs, path::Path};

/// The version of the form; it changes when a field changes its meaning.
const SCHEMA: u64 = 1;

/// One thing that was measured, as often as it was.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Figure {
    /// What, unique within the benchmark.
    pub(crate) name: String,
    /// Under which conditions.
    pub(crate) parameters: Map<String, Value>,
    /// Of the samples: `ns`, `s`, `ratio`.
    pub(crate) unit: String,
    pub(crate) samples: Vec<f64>,
    /// Bytes that one sample has worked on, where that has a meaning.
    pub(crate) bytes: Option<u64>,
}

impl Figure {
    /// Reads `{name, parameters, unit, samples, bytes?}`.
    pub(crate) fn parse(value: &Value) -> Result<Figure> {
        let text = |key: &str| {
            let s = value[key].as_str();
            s.map(str::to_owned)
                .with_context(|| format!("a figure without `{key}`: {value}"))
        };
        let samples = value["samples"].as_array();
        Ok(Figure {
            name: text("name")?,
            parameters: value["parameters"].as_object().cloned().unwrap_or_default(),
            unit: text("unit")?,
            samples: samples
                .with_context(|| format!("a figure without `samples`: {value}"))?
                .iter()
                .map(|s| s.as_f64().context("a sample that is no number"))
                .collect::<Result<_>>()?,
            bytes: value["bytes"].as_u64(),
        })
    }

    fn to_json(&self) -> Value {
        let s = Summary::of(&self.samples);
        let mut value = json!({
            "name": self.name,
            "parameters": self.parameters,
            "unit": self.unit,
            "samples": self.samples,
            "median": s.median,
            "p5": s.p5,
            "p95": s.p95,
            "mad": s.mad,
        });
        if let Some(bytes) = self.bytes {
            value["bytes"] = json!(bytes);
            let per_second = match self.unit.as_str() {
                "ns" => 1e9,
                "s" => 1.0,
                _ => 0.0,
            };
            if per_second > 0.0 && s.median > 0.0 {
                value["bytes_per_s"] = json!(bytes as f64 * per_second / s.median);
            }
        }
        value
    }
}

/// Robust numbers about samples; all 0 without samples.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) p5: f64,
    pub(crate) p95: f64,
    /// Median of the absolute deviations from the median.
    pub(crate) mad: f64,
}

impl Summary {
    pub(crate) fn of(samples: &[f64]) -> Summary {
        let sorted = sorted(samples);
        let median = quantile(&sorted, 0.5);
        let deviations: Vec<f64> = samples.iter().map(|s| (s - median).abs()).collect();
        Summary {
            median,
            p5: quantile(&sorted, 0.05),
            p95: quantile(&sorted, 0.95),
            mad: quantile(&self::sorted(&deviations), 0.5),
        }
    }
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Between the two nearest samples, in proportion.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let at = q * last as f64;
    let (lo, hi) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    lo + (hi - lo) * at.fract()
}

/// All figures of one run, with where they come from.
#[derive(Debug)]
pub(crate) struct Record(Value);

impl Record {
    /// `machine` is what was known when the run began.
    pub(crate) fn new(bench: &str, command: &str, machine: Value, figures: &[Figure]) -> Record {
        let results: Vec<Value> = figures.iter().map(Figure::to_json).collect();
        Record(json!({
            "schema": SCHEMA,
            "bench": bench,
            "command": command,
            "date": machine::now(),
            "commit": machine::commit(),
            "machine": machine,
            "results": results,
        }))
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(&self.0)?;
        text.push('\n');
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// One line per figure.
    pub(crate) fn print(&self) {
        let results = self.0["results"].as_array().map_or(&[][..], Vec::as_slice);
        let name = |r: &Value| r["name"].as_str().unwrap_or_default().to_owned();
        let width = results.iter().map(|r| name(r).len()).max().unwrap_or(0);
        for r in results {
            let unit = r["unit"].as_str().unwrap_or_default();
            let number = |key: &str| r[key].as_f64().unwrap_or_default();
            let rate = r["bytes_per_s"].as_f64();
            println!(
                "{:width$}  median {:>12}  p5 {:>12}  p95 {:>12}{}",
                name(r),
                human(number("median"), unit),
                human(number("p5"), unit),
                human(number("p95"), unit),
                rate.map(|b| format!("  {:7.2} GB/s", b / 1e9))
                    .unwrap_or_default()
            );
        }
    }
}

/// A number as people write it.
fn human(x: f64, unit: &str) -> String {
    let ns = match unit {
        "ns" => x,
        "s" => x * 1e9,
        other => return format!("{x:.3} {other}"),
    };
    match ns {
        x if x < 1e3 => format!("{x:.1} ns"),
        x if x < 1e6 => format!("{:.2} µs", x / 1e3),
        x if x < 1e9 => format!("{:.2} ms", x / 1e6),
        x => format!("{:.3} s", x / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_the_nearest_samples() {
        let s = Summary::of(&[4.0, 1.0, 3.0, 2.0, 100.0]);
        assert_eq!((s.median, s.mad), (3.0, 1.0));
        assert!((s.p5 - 1.2).abs() < 1e-12 && (s.p95 - 80.8).abs() < 1e-9);
        assert_eq!(Summary::of(&[7.0]).p95, 7.0);
        assert_eq!(Summary::of(&[1.0, 2.0]).median, 1.5);
        assert_eq!(Summary::of(&[]), Summary::default());
    }

    #[test]
    fn a_record_has_every_field_of_the_form() {
        let figure = Figure {
            name: "fold".into(),
            parameters: [("inputs".to_owned(), json!(2))].into_iter().collect(),
            unit: "ns".into(),
            samples: vec![100.0, 200.0, 300.0],
            bytes: Some(400),
        };
        assert_eq!(Figure::parse(&figure.to_json()).expect("readable"), figure);
        let Record(value) = Record::new(
            "kernels",
            "cargo xtask bench kernels",
            machine::facts(),
            &[figure],
        );
        for key in [
            "schema", "bench", "command", "date", "commit", "machine", "results",
        ] {
            assert!(!value[key].is_null(), "{key}");
        }
        for key in ["cpu", "cores", "kernel", "os", "arch", "rustc"] {
            assert!(!value["machine"][key].is_null(), "machine.{key}");
        }
        let r = &value["results"][0];
        assert_eq!(r["median"], json!(200.0));
        assert_eq!(r["bytes_per_s"], json!(2e9));
    }

    #[test]
    fn what_is_no_figure_is_refused_by_name() {
        let refuse = |value: Value| Figure::parse(&value).expect_err("not whole").to_string();
        assert!(refuse(json!({"unit": "ns", "samples": []})).contains("`name`"));
        assert!(refuse(json!({"name": "a", "samples": []})).contains("`unit`"));
        assert!(refuse(json!({"name": "a", "unit": "ns"})).contains("`samples`"));
        assert!(refuse(json!({"name": "a", "unit": "ns", "samples": ["x"]})).contains("no number"));
    }

    #[test]
    fn times_are_written_as_people_do() {
        assert_eq!(human(12.34, "ns"), "12.3 ns");
        assert_eq!(human(0.0021, "s"), "2.10 ms");
        assert_eq!(human(1.5, "ratio"), "1.500 ratio");
    }
}
