//! Step sizes over time.

use crate::error::{ConfigError, at_least_one, in_range, not_negative};

/// What a step size is multiplied by after the warm-up.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Decay {
    /// 1.
    Constant,
    /// `factor` to the number of milestones that lie at or before the step.
    Steps {
        /// Step numbers, in any order.
        milestones: Vec<u64>,
        /// At each of them; not negative.
        factor: f64,
    },
    /// Down to `floor` over half a wave that ends in step `end`.
    Cosine {
        /// The step from which the floor holds, at least 1.
        end: u64,
        /// From 0 to 1.
        floor: f64,
    },
    /// Down to 0 along a line that ends in step `end`.
    Linear {
        /// The step from which it is 0, at least 1.
        end: u64,
    },
}

/// A base step size, a linear warm-up, and a decay: what to hand to the driver in each step.
///
/// ```
/// use gaggle_optim::{Decay, Schedule};
/// let schedule = Schedule::new(0.4, 2, Decay::Steps { milestones: vec![5, 8], factor: 0.1 })?;
/// let lr: Vec<f64> = (0..9).map(|step| schedule.lr(step)).collect();
/// assert_eq!(lr[..5], [0.2, 0.4, 0.4, 0.4, 0.4]);
/// assert!((lr[5] - 0.04).abs() < 1e-12 && (lr[8] - 0.004).abs() < 1e-12);
/// # Ok::<(), gaggle_optim::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    base: f64,
    warm_up: u64,
    decay: Decay,
}

impl Schedule {
    /// `base` after `warm_up` steps, in the k-th of which it is base·k/warm_up; times the decay.
    ///
    /// # Errors
    /// A setting out of its range, by name.
    pub fn new(base: f64, warm_up: u64, decay: Decay) -> Result<Schedule, ConfigError> {
        not_negative("lr", base)?;
        match &decay {
            Decay::Constant => {}
            Decay::Steps { factor, .. } => not_negative("factor", *factor)?,
            Decay::Cosine { end, floor } => {
                at_least_one("end", *end)?;
                let holds = (0.0..=1.0).contains(floor);
                in_range("floor", *floor, "from 0 to 1", holds)?;
            }
            Decay::Linear { end } => at_least_one("end", *end)?,
        }
        Ok(Schedule {
            base,
            warm_up,
            decay,
        })
    }

    /// γ of step `step`.
    pub fn lr(&self, step: u64) -> f64 {
        let warm = match self.warm_up {
            0 => 1.0,
            w => ((step + 1) as f64 / w as f64).min(1.0),
        };
        let part = |end: u64| (step as f64 / end as f64).min(1.0);
        let decay = match &self.decay {
            Decay::Constant => 1.0,
            Decay::Steps { milestones, factor } => {
                let passed = milestones.iter().filter(|m| **m <= step).count();
                factor.powi(i32::try_from(passed).unwrap_or(i32::MAX))
            }
            Decay::Cosine { end, floor } => {
                let wave = (1.0 + (std::f64::consts::PI * part(*end)).cos()) / 2.0;
                floor + (1.0 - floor) * wave
            }
            Decay::Linear { end } => 1.0 - part(*end),
        };
        self.base * warm * decay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_begin_and_end_where_they_should() {
        let cosine = Decay::Cosine {
            end: 10,
            floor: 0.1,
        };
        let s = Schedule::new(2.0, 0, cosine).unwrap();
        assert_eq!((s.lr(0), s.lr(10), s.lr(99)), (2.0, 0.2, 0.2));
        assert!((s.lr(5) - 1.1).abs() < 1e-12);
        let s = Schedule::new(1.0, 4, Decay::Linear { end: 8 }).unwrap();
        assert_eq!((s.lr(0), s.lr(4), s.lr(8)), (0.25, 0.5, 0.0));
    }

    #[test]
    fn a_wrong_setting_is_named() {
        let e = Schedule::new(f64::NAN, 0, Decay::Constant).unwrap_err();
        assert!(e.to_string().starts_with("lr is NaN"));
        let e = Schedule::new(1.0, 0, Decay::Linear { end: 0 }).unwrap_err();
        assert!(e.to_string().starts_with("end is 0"));
        let floor = Decay::Cosine { end: 1, floor: 2.0 };
        let e = Schedule::new(1.0, 0, floor).unwrap_err();
        assert!(e.to_string().starts_with("floor is 2"));
    }
}
