//! A vector that is divided into one part per rank, of whatever lengths.

use crate::plan::PlanError;
use crate::program::{share, times};
use gaggle_core::Counts;

/// Where each part ends.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    ends: Vec<u64>,
}

impl Parts {
    /// `n` parts of `len` elements in all, which differ by at most one.
    pub fn shares(len: u64, n: u32) -> Parts {
        Parts {
            ends: (0..n).map(|i| share(len, n, i).1).collect(),
        }
    }

    /// `n` parts of `len` elements each, or of those that `counts` lists.
    ///
    /// # Errors
    /// A list of another length; more elements than can be counted; counts that are not known.
    pub fn of(
        counts: &Counts,
        len: u64,
        n: usize,
        field: &'static str,
    ) -> Result<Parts, PlanError> {
        let bad = |what: String| PlanError::BadCounts { field, what };
        match counts {
            Counts::Equal => {
                times(n as u64, len)?;
                Ok(Parts {
                    ends: (1..=n as u64).map(|i| i * len).collect(),
                })
            }
            Counts::Known(list) if list.len() != n => {
                Err(bad(format!("{} numbers for {n} ranks", list.len())))
            }
            Counts::Known(list) => {
                let mut end = 0u64;
                let mut ends = Vec::with_capacity(n);
                for &count in list.iter() {
                    end = end
                        .checked_add(count)
                        .ok_or_else(|| bad("their sum is larger than 64 bits can count".into()))?;
                    ends.push(end);
                }
                Ok(Parts { ends })
            }
            Counts::Discover => Err(bad("are to be discovered before anything is planned".into())),
        }
    }

    /// Elements in all.
    pub fn total(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// First element and length of a part.
    pub fn at(&self, part: u32) -> (u64, u64) {
        self.range(part, part + 1)
    }

    /// Number of elements in a part.
    pub fn len(&self, part: u32) -> u64 {
        self.at(part).1
    }

    /// First element and length of parts `lo..hi`.
    pub fn range(&self, lo: u32, hi: u32) -> (u64, u64) {
        let start = |part: u32| match part {
            0 => 0,
            _ => self.ends[part as usize - 1],
        };
        (start(lo), start(hi) - start(lo))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other() {
        let counts = Counts::known(&[3, 0, 5]);
        let parts = Parts::of(&counts, 99, 3, "counts").unwrap();
        assert_eq!(
            (parts.at(0), parts.at(1), parts.at(2)),
            ((0, 3), (3, 0), (3, 5))
        );
        assert_eq!((parts.range(1, 3), parts.total()), ((3, 5), 8));
        let shares = Parts::shares(7, 3);
        assert_eq!((shares.at(0), shares.at(2)), ((0, 3), (5, 2)));
    }

    #[test]
    fn lists_that_do_not_fit_are_refused() {
        let refuse = |counts: &[u64]| {
            Parts::of(&Counts::known(counts), 0, 2, "counts")
                .unwrap_err()
                .to_string()
        };
        assert_eq!(refuse(&[1]), "counts: 1 numbers for 2 ranks");
        assert_eq!(
            refuse(&[u64::MAX, 1]),
            "counts: their sum is larger than 64 bits can count"
        );
        assert!(Parts::of(&Counts::Equal, u64::MAX, 2, "counts").is_err());
    }
}
