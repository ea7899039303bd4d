//! What a step cost, and how much of its communication backward has hidden.

use gaggle_core::{Done, Weight};
use std::time::Duration;

/// One bucket's reduction. Times are on the group's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct BucketReport {
    /// Payload bytes that this rank sent.
    pub bytes_sent: u64,
    /// When its first collective was started.
    pub started: Duration,
    /// When its last collective ended.
    pub finished: Duration,
    /// Σw of its mean.
    pub weight: Weight,
}

impl BucketReport {
    /// Counts one more collective of the bucket.
    pub(crate) fn add(&mut self, done: &Done, first: bool) {
        self.bytes_sent += done.bytes_sent;
        self.started = if first {
            done.started
        } else {
            self.started.min(done.started)
        };
        self.finished = self.finished.max(done.finished);
        self.weight = done.weight;
    }
}

/// One step, measured by the group's clock: from `begin_step` on.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// Payload bytes that this rank sent for all buckets.
    pub bytes_sent: u64,
    /// Σw of the mean; 0 means that no rank contributed and the buckets hold this rank's own gradients still.
    pub weight: Weight,
    /// From `begin_step` to `finish`: forward and backward, as the caller ran them.
    pub compute: Duration,
    /// How long at least one bucket was under way.
    pub communicate: Duration,
    /// The part of `communicate` that lies before `finish` was called: hidden under backward.
    pub hidden: Duration,
    /// How long `finish` waited: exposed.
    pub wait: Duration,
    /// Bucket by bucket.
    pub buckets: Vec<BucketReport>,
}

impl StepReport {
    /// Sums up. `begun`, `called` and `returned` are the times of `begin_step`, of `finish` and of its end.
    pub(crate) fn new(
        buckets: Vec<BucketReport>,
        begun: Duration,
        called: Duration,
        returned: Duration,
    ) -> Self {
        let mut spans: Vec<(Duration, Duration)> =
            buckets.iter().map(|b| (b.started, b.finished)).collect();
        spans.sort_unstable();
        StepReport {
            bytes_sent: buckets.iter().map(|b| b.bytes_sent).sum(),
            weight: buckets.first().map_or(Weight::ZERO, |b| b.weight),
            compute: called.saturating_sub(begun),
            communicate: union(&spans, Duration::MAX),
            hidden: union(&spans, called),
            wait: returned.saturating_sub(called),
            buckets,
        }
    }

    /// Hidden communication as a share of all, from 0 to 1; 0 where there was none.
    pub fn hidden_share(&self) -> f64 {
        if self.communicate.is_zero() {
            0.0
        } else {
            self.hidden.as_secs_f64() / self.communicate.as_secs_f64()
        }
    }
}

/// Length of the union of sorted spans, as far as it lies before `until`.
fn union(spans: &[(Duration, Duration)], until: Duration) -> Duration {
    let (mut sum, mut end) = (Duration::ZERO, Duration::ZERO);
    for (from, to) in spans {
        let (from, to) = ((*from).max(end), (*to).min(until));
        sum += to.saturating_sub(from);
        end = end.max(to);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(from: u64, to: u64) -> BucketReport {
        BucketReport {
            bytes_sent: 10,
            started: Duration::from_millis(from),
            finished: Duration::from_millis(to),
            weight: Weight::ONE,
        }
    }

    #[test]
    fn overlapping_buckets_count_once_and_what_lies_before_finish_is_hidden() {
        let ms = Duration::from_millis;
        let r = StepReport::new(
            vec![span(10, 30), span(40, 60), span(20, 35)],
            ms(0),
            ms(50),
            ms(61),
        );
        assert_eq!(r.communicate, ms(45));
        assert_eq!(r.hidden, ms(35));
        assert_eq!((r.compute, r.wait, r.bytes_sent), (ms(50), ms(11), 30));
        assert!((r.hidden_share() - 35.0 / 45.0).abs() < 1e-12);
    }

    #[test]
    fn nothing_communicated_is_nothing_hidden() {
        let r = StepReport::new(vec![], Duration::ZERO, Duration::ZERO, Duration::ZERO);
        assert_eq!(r.hidden_share(), 0.0);
        assert_eq!(r.weight, Weight::ZERO);
    }
}
