//! What samples are summed up to: means and quantiles, and bandwidths from times.

/// Robust numbers about the times of one size, in nanoseconds; all 0 without samples.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Summary {
    pub(super) mean: f64,
    pub(super) p5: f64,
    pub(super) p50: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    /// Median of the absolute deviations from the median.
    pub(super) mad: f64,
}

impl Summary {
    pub(super) fn of(samples: &[f64]) -> Summary {
        let sorted = sorted(samples);
        let p50 = quantile(&sorted, 0.5);
        let deviations: Vec<f64> = samples.iter().map(|s| (s - p50).abs()).collect();
        Summary {
            mean: samples.iter().sum::<f64>() / samples.len().max(1) as f64,
            p5: quantile(&sorted, 0.05),
            p50,
            p95: quantile(&sorted, 0.95),
            p99: quantile(&sorted, 0.99),
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

/// Median and 95th percentile as samples that were measured: number n/2 and number 0.95·n of n in order. The rule that programs which are compared share.
pub(super) fn measured_quantiles(samples: &[f64]) -> (f64, f64) {
    let sorted = sorted(samples);
    let n = sorted.len();
    let Some(last) = n.checked_sub(1) else {
        return (0.0, 0.0);
    };
    let p95 = ((n as f64 * 0.95) as usize).min(last);
    (sorted[n / 2], sorted[p95])
}

/// Bytes per nanosecond, which is GB/s; 0 where no time has passed.
pub(super) fn bandwidth(bytes: u64, nanoseconds: f64) -> f64 {
    if nanoseconds > 0.0 {
        bytes as f64 / nanoseconds
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_the_nearest_samples() {
        let s = Summary::of(&[4.0, 1.0, 3.0, 2.0, 100.0]);
        assert_eq!((s.p50, s.mad, s.mean), (3.0, 1.0, 22.0));
        assert!((s.p5 - 1.2).abs() < 1e-12 && (s.p95 - 80.8).abs() < 1e-9);
        assert!((s.p99 - 96.16).abs() < 1e-9);
        assert_eq!(Summary::of(&[7.0]).p99, 7.0);
        assert_eq!(Summary::of(&[]), Summary::default());
    }

    #[test]
    fn measured_quantiles_are_samples() {
        let hundred: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!(measured_quantiles(&hundred), (50.0, 95.0));
        assert_eq!(measured_quantiles(&[3.0, 1.0]), (3.0, 3.0));
        assert_eq!(measured_quantiles(&[5.0]), (5.0, 5.0));
        assert_eq!(measured_quantiles(&[]), (0.0, 0.0));
    }

    #[test]
    fn a_byte_in_a_nanosecond_is_a_gigabyte_in_a_second() {
        assert_eq!(bandwidth(4_000, 1_000.0), 4.0);
        assert_eq!(bandwidth(4_000, 0.0), 0.0);
    }
}
