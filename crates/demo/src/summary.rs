//! What the demo has measured: as values, as the table at the end, and as the one JSON object.

use crate::data::CLASSES;
use serde::Serialize;
use std::fmt::Write;

/// The whole demo: what was asked for, and every run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Story {
    /// The runs, in the order in which they were made.
    pub runs: Vec<Run>,
    /// What was asked for.
    pub setting: Setting,
    /// For each rank, how many training images of each class it has.
    pub label_histograms: Vec<[usize; CLASSES]>,
}

/// What was asked for, as far as it matters to a reader.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Setting {
    /// Number of ranks.
    pub ranks: usize,
    /// `processes over tcp`, `threads in process`.
    pub ranks_are: String,
    /// Passes over the training data, all ranks together.
    pub epochs: usize,
    /// Images per rank and step.
    pub batch: usize,
    /// Step size of momentum methods.
    pub lr: f64,
    /// How much of the last direction goes on.
    pub momentum: f64,
    /// Flags of single algorithms, as they were given: `--period 4`.
    pub options: Vec<String>,
    /// Seed of parameters, split and batches.
    pub seed: u64,
    /// How the images are split: `iid`, `dirichlet(0.1)`.
    pub partition: String,
    /// What is on the wire: `plain`, `bf16`.
    pub wire: String,
    /// Elements of the model.
    pub parameters: usize,
    /// Training images.
    pub train_images: usize,
    /// Test images.
    pub test_images: usize,
}

/// One algorithm's run. Means and sums over ranks are formed in rank order.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    /// The name that users type.
    pub algorithm: String,
    /// Who talks to whom: a topology's name, `all` where nobody has neighbours.
    pub topology: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Test accuracy of the mean of all ranks' parameters, from 0 to 1.
    pub accuracy_mean_model: f64,
    /// Mean over ranks of the test accuracy of their own parameters.
    pub accuracy_local_mean: f64,
    /// The worst rank's.
    pub accuracy_local_min: f64,
    /// √(mean over ranks of ‖x_r − x̄‖²).
    pub consensus_distance: f64,
    /// Payload bytes of data frames that a rank sent in training, per step; mean over ranks, counted at the link.
    pub bytes_per_rank_step: f64,
    /// What the same should be by arithmetic.
    pub payload_formula_bytes: f64,
    /// Bytes of frame headers per rank and step, counted at the link.
    pub header_bytes_per_rank_step: f64,
    /// Number of steps.
    pub steps: u64,
    /// Where the time went, by clocks; mean over ranks.
    pub seconds: Seconds,
    /// Share of the communication time in which the rank computed; mean over ranks.
    pub hidden_fraction: f64,
    /// Digest of each rank's last parameters.
    pub digests: Vec<String>,
    /// How it went.
    pub history: History,
}

/// Seconds of training, without evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Seconds {
    /// Forward, backward and update.
    pub compute: f64,
    /// At least one operation of the rank was under way.
    pub communicate: f64,
    /// The rank could not compute because of one.
    pub wait: f64,
    /// All of training: compute and wait.
    pub train: f64,
}

/// How a run went.
#[derive(Clone, Debug, Default, Serialize)]
pub struct History {
    /// Training loss of every step, mean over ranks.
    pub loss: Vec<f32>,
    /// Evaluations, from before the first step to after the last.
    pub points: Vec<Point>,
}

/// One evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// Steps done.
    pub step: u64,
    /// The same in epochs.
    pub epoch: f64,
    /// Test accuracy of the mean of all parameters.
    pub accuracy_mean_model: f64,
    /// Mean of the ranks' own.
    pub accuracy_local_mean: f64,
    /// The worst rank's.
    pub accuracy_local_min: f64,
    /// √(mean over ranks of ‖x_r − x̄‖²).
    pub consensus_distance: f64,
}

impl Story {
    /// The one JSON object, on one line.
    ///
    /// # Errors
    /// serde_json's, which a program of plain numbers does not meet.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// The table at the end, with a legend.
    pub fn table(&self) -> String {
        let head = [
            "algorithm",
            "topology",
            "averaged",
            "local mean",
            "worst",
            "consensus",
            "bytes/step",
            "compute",
            "communicate",
            "wait",
            "hidden",
        ];
        let mut rows = vec![head.map(String::from)];
        for run in &self.runs {
            rows.push([
                run.algorithm.clone(),
                run.topology.clone(),
                percent(run.accuracy_mean_model),
                percent(run.accuracy_local_mean),
                percent(run.accuracy_local_min),
                distance(run.consensus_distance),
                thousands(run.bytes_per_rank_step),
                format!("{:.1} s", run.seconds.compute),
                format!("{:.1} s", run.seconds.communicate),
                format!("{:.1} s", run.seconds.wait),
                if run.seconds.communicate > 0.0 {
                    format!("{:.0} %", 100.0 * run.hidden_fraction)
                } else {
                    "-".into()
                },
            ]);
        }
        aligned(&rows) + LEGEND
    }
}

const LEGEND: &str = "
averaged     test accuracy of the mean of all ranks' parameters
local mean   test accuracy of the ranks' own parameters: their mean, and the worst rank's
consensus    how far the ranks' parameters are apart: root mean square distance from their mean
bytes/step   payload that a rank sent per step, counted at the link
compute      seconds of forward, backward and update, mean over ranks
communicate  seconds with a message under way; for 'wait' of them the rank could not compute
hidden       the share of the communication in which the rank went on computing
";

/// Columns of equal width, two spaces apart; the first two to the left, numbers to the right.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (col, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            // Writing to a string cannot fail.
            let _ = if col < 2 {
                write!(line, "{cell:<width$}  ")
            } else {
                write!(line, "{cell:>width$}  ")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
        if at == 0 {
            let total: usize = widths.iter().sum::<usize>() + 2 * (N - 1);
            text.push_str(&"-".repeat(total));
            text.push('\n');
        }
    }
    text
}

/// `93.4 %`.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// `0`, `0.12`, `3.1e-5`.
pub fn distance(d: f64) -> String {
    if d == 0.0 {
        "0".into()
    } else if d >= 0.001 {
        format!("{d:.3}")
    } else {
        format!("{d:.1e}")
    }
}

/// `437,544`.
pub fn thousands(n: f64) -> String {
    let digits = format!("{n:.0}");
    let mut text = String::new();
    for (at, c) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(thousands(0.0), "0");
        assert_eq!(thousands(999.4), "999");
        assert_eq!(thousands(1000.0), "1,000");
        assert_eq!(thousands(1_234_567.0), "1,234,567");
        assert_eq!(distance(0.0), "0");
        assert_eq!(distance(0.25), "0.250");
        assert_eq!(distance(0.000_031), "3.1e-5");
        assert_eq!(percent(0.9344), "93.4 %");
    }

    #[test]
    fn the_table_has_a_row_per_run_in_columns() {
        let run = |algorithm: &str, bytes| Run {
            algorithm: algorithm.into(),
            topology: "ring".into(),
            bytes_per_rank_step: bytes,
            ..Run::default()
        };
        let story = Story {
            runs: vec![run("allreduce", 1e6), run("dmsgd", 5.0)],
            ..Story::default()
        };
        let text = story.table();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].starts_with("allreduce  ring"));
        assert!(lines[3].starts_with("dmsgd      ring"));
        let ends = |line: &str, what: &str| line.find(what).unwrap() + what.len();
        assert_eq!(ends(lines[0], "bytes/step"), ends(lines[2], "1,000,000"));
        // Nothing was communicated: no share of it was hidden.
        assert!(lines[3].ends_with(" -"));
    }

    /// The names that scripts rely on.
    #[test]
    fn json_has_the_promised_fields() {
        let story = Story {
            runs: vec![Run {
                digests: vec!["00".into(); 2],
                ranks: 2,
                ..Run::default()
            }],
            ..Story::default()
        };
        let text = story.json().unwrap();
        assert_eq!(text.lines().count(), 1);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let run = &value["runs"][0];
        for name in [
            "ranks",
            "accuracy_mean_model",
            "accuracy_local_mean",
            "consensus_distance",
            "bytes_per_rank_step",
        ] {
            assert!(run[name].is_number(), "{name}");
        }
        for name in ["compute", "communicate", "wait"] {
            assert!(run["seconds"][name].is_number(), "{name}");
        }
        assert!(run["algorithm"].is_string() && run["topology"].is_string());
        assert_eq!(run["digests"].as_array().unwrap().len(), 2);
        assert!(run["digests"][0].is_string());
    }
}
