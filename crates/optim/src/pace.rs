//! Where a run is: steps, communications, and the local steps between them.

use gaggle_core::Cx;

/// Counts steps and communications. Drivers ask it for each step's [`Cx`].
///
/// Every `period`-th step communicates; the others are local. Another period holds from the next step on, counted from the last communication.
///
/// ```
/// use gaggle_optim::Pace;
/// let mut pace = Pace::new(3);
/// let mut rounds = vec![];
/// for _ in 0..6 {
///     let cx = pace.cx(0.1);
///     if cx.mixes {
///         rounds.push((cx.step, cx.round));
///     }
///     pace.advance();
/// }
/// assert_eq!(rounds, [(2, 0), (5, 1)]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Steps done.
    pub step: u64,
    /// Communications done.
    pub round: u64,
    /// Local steps since the last communication.
    pub since: u64,
    /// Steps per communication, at least 1.
    pub period: u64,
}

impl Pace {
    /// As far as a run can be told to be: beyond all that can be done, and such that sums of steps, rounds and delays do not overflow.
    pub const MOST_STEPS: u64 = 1 << 62;

    /// At the start. A period of 0 counts as 1.
    pub fn new(period: u64) -> Pace {
        Pace {
            step: 0,
            round: 0,
            since: 0,
            period: period.max(1),
        }
    }

    /// The step at hand, with step size `lr`.
    pub fn cx(&self, lr: f64) -> Cx {
        Cx {
            step: self.step,
            lr,
            round: self.round,
            mixes: self.mixes(),
            since: self.since,
        }
    }

    /// The step at hand is done.
    pub fn advance(&mut self) {
        self.step = self.step.saturating_add(1);
        if self.mixes() {
            self.round = self.round.saturating_add(1);
            self.since = 0;
        } else {
            self.since = self.since.saturating_add(1);
        }
    }

    fn mixes(&self) -> bool {
        self.since.saturating_add(1) >= self.period
    }
}
