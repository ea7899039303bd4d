//! What the user sees while training runs: a bar on a terminal, a line per evaluation elsewhere, nothing on the other ranks.

use crate::summary::{Point, percent};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// Who is told how training goes. Calls come in the order begin, (step, evaluated)…, end, once per run.
pub trait Progress {
    /// A run of so many steps begins.
    fn begin(&mut self, algorithm: &str, steps: u64);
    /// A step is done, with this loss.
    fn step(&mut self, loss: f32);
    /// The models were tested.
    fn evaluated(&mut self, point: &Point);
    /// The run has ended.
    fn end(&mut self);
}

/// For whoever does not look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&mut self, _algorithm: &str, _steps: u64) {}
    fn step(&mut self, _loss: f32) {}
    fn evaluated(&mut self, _point: &Point) {}
    fn end(&mut self) {}
}

/// On standard error: a bar where that is a terminal, else lines.
#[derive(Debug)]
pub struct Stderr {
    bar: Option<ProgressBar>,
    lines: bool,
    algorithm: String,
    accuracy: String,
}

impl Default for Stderr {
    fn default() -> Self {
        Stderr {
            bar: None,
            lines: !std::io::stderr().is_terminal(),
            algorithm: String::new(),
            accuracy: String::new(),
        }
    }
}

impl Progress for Stderr {
    fn begin(&mut self, algorithm: &str, steps: u64) {
        self.algorithm = algorithm.into();
        self.accuracy.clear();
        if self.lines {
            return;
        }
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        if let Ok(style) =
            ProgressStyle::with_template("{prefix:>10} {wide_bar} {pos}/{len} steps  {msg}")
        {
            bar.set_style(style);
        }
        bar.set_prefix(algorithm.to_string());
        self.bar = Some(bar);
    }

    fn step(&mut self, loss: f32) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
            // The bar redraws at its own pace; a text at every step would cost more than the step.
            if bar.position().is_multiple_of(10) {
                bar.set_message(format!("loss {loss:.3}  {}", self.accuracy));
            }
        }
    }

    fn evaluated(&mut self, point: &Point) {
        self.accuracy = format!("accuracy {}", percent(point.accuracy_mean_model));
        if self.lines && point.epoch.fract() == 0.0 {
            eprintln!(
                "{}: epoch {:.0}: averaged model {}, local models {}",
                self.algorithm,
                point.epoch,
                percent(point.accuracy_mean_model),
                percent(point.accuracy_local_mean),
            );
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where standard error is no terminal (as under a test runner or a launcher) no bar is made.
    #[test]
    fn calls_in_any_order_do_no_harm() {
        let mut progress = Stderr {
            bar: Some(ProgressBar::hidden()),
            lines: false,
            ..Stderr::default()
        };
        progress.evaluated(&Point::default());
        assert_eq!(progress.accuracy, "accuracy 0.0 %");
        progress.step(1.0);
        progress.end();
        assert!(progress.bar.is_none());
        progress.step(1.0);
        progress.end();
    }
}
