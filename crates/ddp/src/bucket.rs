//! Which parameter lies where in which bucket: a pure function of shapes and sizes, so that every rank finds the same.

use crate::Params;
use std::ops::Range;

/// How gradients are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BucketConfig {
    /// A bucket is closed before it would grow beyond this many bytes. A tensor larger than this has a bucket to itself; with 0 every tensor has.
    pub cap_bytes: usize,
    /// The same for the first bucket, which is small so that communication starts early in backward.
    pub first_bytes: usize,
}

impl Default for BucketConfig {
    /// 25 MiB, the first 1 MiB: the sizes that the PyTorch paper (VLDB 2020, §3.2.3) found good.
    fn default() -> Self {
        BucketConfig {
            cap_bytes: 25 << 20,
            first_bytes: 1 << 20,
        }
    }
}

/// One parameter's place in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Number in the model.
    pub param: usize,
    /// Elements of the bucket.
    pub at: Range<usize>,
}

/// What one bucket holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketLayout {
    /// Its parameters, in the order in which backward is expected to have them.
    pub slots: Vec<Slot>,
    /// All their elements.
    pub len_elems: usize,
}

/// The buckets of a model, and where each parameter is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    buckets: Vec<BucketLayout>,
    places: Vec<(usize, Range<usize>)>,
}

impl Layout {
    /// Packs the parameters from the last to the first, which is about the order in which backward has their gradients. No tensor is split.
    pub fn new(params: &Params, elem_bytes: usize, config: &BucketConfig) -> Layout {
        let mut buckets: Vec<BucketLayout> = Vec::new();
        let mut places = vec![(0, 0..0); params.count()];
        for (param, len) in params.lens().iter().copied().enumerate().rev() {
            let cap = match buckets.len() {
                0 | 1 => config.first_bytes,
                _ => config.cap_bytes,
            };
            let open = buckets
                .last()
                .is_some_and(|b| (b.len_elems + len) * elem_bytes <= cap);
            if !open {
                buckets.push(BucketLayout {
                    slots: Vec::new(),
                    len_elems: 0,
                });
            }
            let idx = buckets.len() - 1;
            let bucket = &mut buckets[idx];
            let at = bucket.len_elems..bucket.len_elems + len;
            bucket.len_elems = at.end;
            bucket.slots.push(Slot {
                param,
                at: at.clone(),
            });
            places[param] = (idx, at);
        }
        Layout { buckets, places }
    }

    /// The buckets, the one that is ready first in front.
    pub fn buckets(&self) -> &[BucketLayout] {
        &self.buckets
    }

    /// Bucket and place of parameter `idx`.
    pub fn place(&self, idx: usize) -> Option<(usize, Range<usize>)> {
        self.places.get(idx).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ParamSpec;

    fn buckets(lens: &[usize], cap_bytes: usize, first_bytes: usize) -> Vec<Vec<usize>> {
        let specs: Vec<ParamSpec> = lens
            .iter()
            .enumerate()
            .map(|(i, n)| ParamSpec::new(format!("p{i}"), [*n]))
            .collect();
        let params = Params::new(&specs).unwrap();
        let layout = Layout::new(
            &params,
            4,
            &BucketConfig {
                cap_bytes,
                first_bytes,
            },
        );
        for (idx, len) in lens.iter().enumerate() {
            let (b, at) = layout.place(idx).unwrap();
            assert_eq!(at.len(), *len);
            assert!(layout.buckets()[b].slots.contains(&Slot { param: idx, at }));
        }
        for b in layout.buckets() {
            let mut end = 0;
            for s in &b.slots {
                assert_eq!(s.at.start, end);
                end = s.at.end;
            }
            assert_eq!(end, b.len_elems);
        }
        layout
            .buckets()
            .iter()
            .map(|b| b.slots.iter().map(|s| s.param).collect())
            .collect()
    }

    #[test]
    fn packs_backwards_with_a_small_first_bucket() {
        assert_eq!(
            buckets(&[4, 4, 4, 2, 2], 32, 16),
            [vec![4, 3], vec![2, 1], vec![0]]
        );
    }

    #[test]
    fn a_large_tensor_is_alone_and_empty_ones_cost_nothing() {
        assert_eq!(
            buckets(&[1, 100, 0, 1], 16, 16),
            [vec![3, 2], vec![1], vec![0]]
        );
        assert_eq!(buckets(&[0, 0], 0, 0), [vec![1, 0]]);
    }

    #[test]
    fn a_cap_of_zero_gives_every_tensor_its_own() {
        assert_eq!(buckets(&[1, 2, 3], 0, 0), [vec![2], vec![1], vec![0]]);
        assert!(buckets(&[], 0, 0).is_empty());
    }
}
