//! The checker: what every rank contributes, and what must come out, computed one element after the other by this file alone.
//!
//! Contributions are whole numbers, small enough that sums of all ranks are exact in the element type; so results that only move or add numbers must be right to the bit.
//! They repeat with a prime period, so that no block of a usual length may stand in another's place.

use super::number::{Number, Precision};
use gaggle_core::{Codec, Reduce, Region};

/// After how many elements a rank's numbers repeat: a prime.
const PERIOD: usize = 509;

/// What stands in a stretch of a buffer.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Content {
    /// Before: what nobody may read. After: whatever is left there.
    Any,
    /// A rank's contribution, from this element of it on.
    Of { rank: u32, from: u64 },
    /// The reduction of all ranks' contributions, from this element on.
    Reduced { from: u64 },
    /// Σ weight × the rank's contribution.
    Mixed(Vec<(u32, f64)>),
}

/// A stretch of a buffer.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Piece {
    pub(super) len: u64,
    pub(super) content: Content,
}

impl Piece {
    pub(super) fn new(len: u64, content: Content) -> Piece {
        Piece { len, content }
    }
}

/// All ranks' contributions.
pub(super) struct Numbers {
    world: u32,
    reduce: Reduce,
    codec: Codec,
    /// `[rank][i]`.
    of: Vec<Vec<i64>>,
    /// No number is larger than this.
    largest: i64,
    /// Whether sums of all ranks are exact.
    exact: bool,
}

impl Numbers {
    /// For elements of `T`, reductions by `reduce` and messages in `codec`.
    pub(super) fn new<T: Number>(world: u32, reduce: Reduce, codec: Codec) -> Numbers {
        let wire = match codec {
            Codec::Bf16 => Some(Precision::BF16),
            Codec::F16 => Some(Precision::F16),
            _ => None,
        };
        let bits = T::PRECISION.map(|p| wire.map_or(p.bits, |w| w.bits.min(p.bits)));
        let truth = T::DTYPE == gaggle_core::DType::Bool;
        let largest = match bits {
            Some(bits) => ((1i64 << bits) / i64::from(world.max(1))).clamp(1, 1000),
            None if truth => 1,
            None if T::DTYPE.size() == 1 => 5,
            None => 1000,
        };
        let negative = T::PRECISION.is_some();
        let number = |rank: u32, i: usize| -> i64 {
            let h = mix(u64::from(rank) << 32 | i as u64);
            let sign = if negative && h >> 63 == 1 { -1 } else { 1 };
            if reduce == Reduce::Prod && !truth {
                // One factor that is no unit, so that products of floats stay exact.
                let factor = i as u64 % u64::from(world) == u64::from(rank);
                return sign * if factor { 2 + (h >> 9) as i64 % 2 } else { 1 };
            }
            let low = i64::from(!truth);
            sign * (low + (h >> 8) as i64 % (largest - low + 1))
        };
        Numbers {
            world,
            reduce,
            codec,
            of: (0..world)
                .map(|rank| (0..PERIOD).map(|i| number(rank, i)).collect())
                .collect(),
            largest,
            exact: bits.is_none_or(|bits| largest * i64::from(world) <= 1 << bits),
        }
    }

    /// Writes what stands in a buffer before the operation.
    pub(super) fn fill<T: Number>(&self, region: &mut Region, pieces: &[Piece]) -> bool {
        let Some(x) = region.typed::<T>() else {
            return false;
        };
        let mut at = 0;
        for piece in pieces {
            let Some(part) = x.get_mut(at..at + piece.len as usize) else {
                return false;
            };
            at += piece.len as usize;
            match &piece.content {
                Content::Of { rank, from } => {
                    let row: Vec<T> = self.row(*rank).iter().map(|v| T::of(*v)).collect();
                    let mut i = (*from % PERIOD as u64) as usize;
                    for x in part {
                        *x = row[i];
                        i = if i + 1 == PERIOD { 0 } else { i + 1 };
                    }
                }
                _ => part.fill(T::poison()),
            }
        }
        at == x.len()
    }

    /// How many elements of a buffer are not what they must be after the operation. A buffer of another type or length is wrong in every element that there should be.
    pub(super) fn wrong<T: Number>(&self, region: &mut Region, pieces: &[Piece]) -> u64 {
        let all: u64 = pieces.iter().map(|p| p.len).sum();
        let Some(x) = region.typed::<T>().filter(|x| x.len() as u64 == all) else {
            return all.max(1);
        };
        let (mut at, mut wrong) = (0, 0);
        for piece in pieces {
            let part = &x[at..at + piece.len as usize];
            at += piece.len as usize;
            let (from, want) = match &piece.content {
                Content::Any => continue,
                Content::Of { rank, from } => (*from, Want::whole(self.row(*rank).to_vec())),
                Content::Reduced { from } => (*from, self.reduced::<T>()),
                Content::Mixed(weights) => (0, self.mixed::<T>(weights)),
            };
            wrong += want.differing(part, from);
        }
        wrong
    }

    fn row(&self, rank: u32) -> &[i64] {
        &self.of[rank as usize]
    }

    fn reduced<T: Number>(&self) -> Want {
        let fold = |i: usize| -> i64 {
            let mut all = self.of.iter().map(|row| row[i]);
            let first = all.next().unwrap_or_default();
            all.fold(first, |a, b| match self.reduce {
                Reduce::Sum | Reduce::Mean | Reduce::User => a.wrapping_add(b),
                Reduce::Prod => a.wrapping_mul(b),
                Reduce::Min => a.min(b),
                Reduce::Max => a.max(b),
                Reduce::Band => a & b,
                Reduce::Bor => a | b,
                Reduce::Bxor => a ^ b,
            })
        };
        let whole: Vec<i64> = (0..PERIOD).map(fold).collect();
        let bound = self.largest as f64 * f64::from(self.world);
        let lossy = self.coding_error();
        if self.reduce == Reduce::Mean {
            let n = f64::from(self.world);
            let real = whole.iter().map(|v| *v as f64 / n).collect();
            return Want::Near {
                real,
                tolerance: 4.0 * self.epsilon::<T>() * self.largest as f64 + lossy / n,
            };
        }
        let inexact = if self.exact {
            0.0
        } else {
            self.epsilon::<T>() * bound
        };
        if inexact + lossy == 0.0 {
            return Want::whole(whole);
        }
        Want::Near {
            real: whole.iter().map(|v| *v as f64).collect(),
            tolerance: inexact + lossy,
        }
    }

    fn mixed<T: Number>(&self, weights: &[(u32, f64)]) -> Want {
        let real = (0..PERIOD)
            .map(|i| {
                weights
                    .iter()
                    .map(|(rank, w)| w * self.row(*rank)[i] as f64)
                    .sum()
            })
            .collect();
        let terms = weights.len() as f64;
        let rounding = (2.0 + terms) * self.epsilon::<T>() * self.largest as f64;
        Want::Near {
            real,
            tolerance: rounding + self.coding_error(),
        }
    }

    /// Of results that are rounded: the coarser of element and message.
    fn epsilon<T: Number>(&self) -> f64 {
        let own = T::PRECISION.map_or(0.0, |p| p.epsilon);
        match self.codec {
            Codec::Bf16 => Precision::BF16.epsilon.max(own),
            Codec::F16 => Precision::F16.epsilon.max(own),
            _ => own,
        }
    }

    /// What coding in int8 may lose, in a sum of all ranks: half a step of 1/127 of the largest partial sum, each time that one is sent.
    fn coding_error(&self) -> f64 {
        if self.codec != Codec::Int8 {
            return 0.0;
        }
        let n = f64::from(self.world);
        self.largest as f64 * n * (n + 2.0) / 254.0
    }
}

/// What must stand somewhere; with the period of the numbers.
enum Want {
    /// To the bit.
    Whole(Vec<i64>),
    /// So far off at most.
    Near { real: Vec<f64>, tolerance: f64 },
}

impl Want {
    fn whole(numbers: Vec<i64>) -> Want {
        Want::Whole(numbers)
    }

    fn differing<T: Number>(&self, part: &[T], from: u64) -> u64 {
        let mut i = (from % PERIOD as u64) as usize;
        let mut next = || {
            let at = i;
            i = if i + 1 == PERIOD { 0 } else { i + 1 };
            at
        };
        let count = match self {
            Want::Whole(numbers) => {
                let row: Vec<T> = numbers.iter().map(|v| T::of(*v)).collect();
                part.iter().filter(|x| **x != row[next()]).count()
            }
            Want::Near { real, tolerance } => part
                .iter()
                .map(|x| (x.real() - real[next()]).abs())
                // What is not a number is not near anything.
                .filter(|off| off.is_nan() || off > tolerance)
                .count(),
        };
        count as u64
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014).
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::super::number::with_type;
    use super::*;
    use gaggle_core::DType;

    fn whole(len: u64, content: Content) -> [Piece; 1] {
        [Piece::new(len, content)]
    }

    /// What three ranks' reduction is, element by element, by plain arithmetic on what `fill` wrote.
    #[test]
    fn a_right_result_has_no_wrong_elements_and_any_other_has() {
        const LEN: u64 = 1200;
        for dtype in DType::ALL {
            for reduce in Reduce::ALL {
                if reduce == Reduce::User || !reduce.is_defined_on(dtype) {
                    continue;
                }
                with_type!(dtype, T => {
                    let numbers = Numbers::new::<T>(3, reduce, Codec::None);
                    let mut x = Region::zeroed(dtype, LEN).unwrap();
                    let all: Vec<i64> = (0..LEN as usize)
                        .map(|i| {
                            let v: Vec<i64> = (0..3).map(|r| numbers.of[r][i % PERIOD]).collect();
                            match reduce {
                                Reduce::Sum | Reduce::Mean => v[0] + v[1] + v[2],
                                Reduce::Prod => v[0] * v[1] * v[2],
                                Reduce::Min => *v.iter().min().unwrap(),
                                Reduce::Max => *v.iter().max().unwrap(),
                                Reduce::Band => v[0] & v[1] & v[2],
                                Reduce::Bor => v[0] | v[1] | v[2],
                                _ => v[0] ^ v[1] ^ v[2],
                            }
                        })
                        .collect();
                    if reduce != Reduce::Mean {
                        for (x, v) in x.typed::<T>().unwrap().iter_mut().zip(&all) {
                            *x = T::of(*v);
                        }
                        let want = whole(LEN, Content::Reduced { from: 0 });
                        assert_eq!(numbers.wrong::<T>(&mut x, &want), 0, "{dtype} {reduce}");
                        // One wrong element anywhere is one wrong element.
                        for at in [0, 511, LEN as usize - 1] {
                            let x_at = x.typed::<T>().unwrap()[at];
                            let other = (0..2).map(T::of).find(|v| *v != x_at).unwrap();
                            x.typed::<T>().unwrap()[at] = other;
                            assert_eq!(numbers.wrong::<T>(&mut x, &want), 1, "{dtype} {reduce}");
                            x.typed::<T>().unwrap()[at] = x_at;
                        }
                    }
                    // What nobody has written is wrong: nearly everywhere for integers, everywhere for floats.
                    x.typed::<T>().unwrap().fill(T::poison());
                    let wrong = numbers.wrong::<T>(&mut x, &whole(LEN, Content::Reduced { from: 0 }));
                    match dtype.is_float() {
                        true => assert_eq!(wrong, LEN, "{dtype} {reduce}"),
                        false => assert!(wrong > 0, "{dtype} {reduce}"),
                    }
                });
            }
        }
    }

    #[test]
    fn parts_in_each_others_place_are_noticed() {
        let numbers = Numbers::new::<f32>(2, Reduce::Sum, Codec::None);
        let part = |rank, from| Piece::new(1024, Content::Of { rank, from });
        let mut x = Region::zeroed(DType::F32, 2048).unwrap();
        assert!(numbers.fill::<f32>(&mut x, &[part(0, 0), part(1, 0)]));
        assert_eq!(numbers.wrong::<f32>(&mut x, &[part(0, 0), part(1, 0)]), 0);
        assert!(numbers.wrong::<f32>(&mut x, &[part(1, 0), part(0, 0)]) > 2000);
        assert!(numbers.wrong::<f32>(&mut x, &[part(0, 1024), part(1, 1024)]) > 2000);
        // Neither length nor type passes for another.
        assert_eq!(numbers.wrong::<f32>(&mut x, &[part(0, 0)]), 1024);
        assert_eq!(
            numbers.wrong::<i32>(&mut x, &[part(0, 0), part(1, 0)]),
            2048
        );
        assert!(!numbers.fill::<f32>(&mut x, &[part(0, 0)]));
    }

    #[test]
    fn averages_may_be_rounded_and_no_more() {
        let numbers = Numbers::new::<f32>(3, Reduce::Mean, Codec::None);
        let weights = vec![(0, 0.5), (2, 0.5)];
        let want = whole(600, Content::Mixed(weights));
        let mut x = Region::zeroed(DType::F32, 600).unwrap();
        for (i, x) in x.typed::<f32>().unwrap().iter_mut().enumerate() {
            *x = (numbers.of[0][i % PERIOD] + numbers.of[2][i % PERIOD]) as f32 / 2.0;
        }
        assert_eq!(numbers.wrong::<f32>(&mut x, &want), 0);
        x.typed::<f32>().unwrap()[7] *= 1.0 + 2.0 * f32::EPSILON;
        assert_eq!(numbers.wrong::<f32>(&mut x, &want), 0);
        x.typed::<f32>().unwrap()[7] += 0.01;
        assert_eq!(numbers.wrong::<f32>(&mut x, &want), 1);
        let swapped = whole(600, Content::Mixed(vec![(0, 0.5), (1, 0.5)]));
        assert!(numbers.wrong::<f32>(&mut x, &swapped) > 590);
    }

    #[test]
    fn numbers_are_exact_in_the_type_and_on_the_wire() {
        let largest = |n: Numbers| (n.largest, n.exact);
        assert_eq!(
            largest(Numbers::new::<half::bf16>(8, Reduce::Sum, Codec::None)),
            (32, true)
        );
        assert_eq!(
            largest(Numbers::new::<f32>(8, Reduce::Sum, Codec::Bf16)),
            (32, true)
        );
        assert_eq!(
            largest(Numbers::new::<half::bf16>(300, Reduce::Sum, Codec::None)),
            (1, false)
        );
        assert!(Numbers::new::<f32>(4, Reduce::Sum, Codec::Int8).coding_error() > 0.0);
    }
}
