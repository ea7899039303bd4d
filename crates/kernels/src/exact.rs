//! Sums and means that are rounded once, whatever the order of the terms.
//!
//! Terms are added into a fixed-point number that is wide enough for every sum of the type, without any rounding (Kulisch and Miranker, *The arithmetic of the digital computer: a new approach*, SIAM Review 28, 1986; Neal, *Fast exact summation using small and large superaccumulators*, arXiv 1505.05571).
//! Unlike Neal's, these accumulators carry at once and are as narrow as the terms allow: 8 words where all are of f32's range, 37 for f64.
//! A mean is one long division of that number by the exact sum of the weights.

use crate::{
    fold::{Term, weight_of},
    num::Wide,
    raw_isa::{Kernel, run},
    windows::{Out, Room, fetch},
};
use gaggle_core::{DType, Weight};

/// `n` elements of `out` = Σ wᵢxᵢ, or Σ xᵢ where no term has a weight, divided by `divisor` or else by `sum`, the Σw in fixed point.
///
/// # Panics
/// Where the divisor does not fit into 64 bits.
pub(crate) fn fold(
    dtype: DType,
    (out, n): (Out<'_>, usize),
    terms: &[Term<'_>],
    divisor: Option<Weight>,
    sum: Option<u128>,
) {
    // Weights and divisor are both in units of 2⁻³²; a plain sum has neither.
    let divisor = match (divisor, sum) {
        (Some(by), _) => Some(by.bits()),
        (None, Some(sum)) => match u64::try_from(sum) {
            Ok(sum) => Some(sum),
            Err(_) => panic!("fold: weights of 2³² or more in an exact mean"),
        },
        (None, None) => None,
    };
    let wide = |t: &Term<'_>| t.source.dtype(dtype) == DType::F64;
    let fold = Fold {
        format: Format::of(dtype),
        dtype,
        out,
        n,
        terms,
        divisor,
    };
    if terms.iter().any(wide) {
        run(Doubles(fold));
    } else {
        run(Singles(fold));
    }
}

/// Words under the binary point of the smallest term, for the fractions of quotients.
const FRACTION: usize = 2;
/// From 2⁻¹⁴⁹: magnitudes below 2¹²⁸, times a weight of 64 bits, 2³² of them, and a sign are 374 bits.
const SINGLE: usize = 6 + FRACTION;
/// From 2⁻¹⁰⁷⁴: magnitudes below 2¹⁰²⁴, likewise: 2195 bits.
const DOUBLE: usize = 35 + FRACTION;

/// Elements at a time.
const TILE: usize = 64;

struct Fold<'a> {
    format: Format,
    dtype: DType,
    out: Out<'a>,
    n: usize,
    terms: &'a [Term<'a>],
    divisor: Option<u64>,
}

struct Singles<'a>(Fold<'a>);
struct Doubles<'a>(Fold<'a>);

impl Kernel for Singles<'_> {
    #[inline(always)]
    fn run(self) {
        self.0.fold::<SINGLE>(-149);
    }
}

impl Kernel for Doubles<'_> {
    #[inline(always)]
    fn run(self) {
        self.0.fold::<DOUBLE>(-1074);
    }
}

impl Fold<'_> {
    /// With accumulators of `N` words; the unit of word number [`FRACTION`] is 2^`unit`.
    #[inline(always)]
    fn fold<const N: usize>(self, unit: i32) {
        let (size, n, mut out) = (self.dtype.size(), self.n, self.out);
        let mut room = Room::EMPTY;
        let mut values = [0f64; TILE];
        let mut sums = [Sum::<N>::EMPTY; TILE];
        for lo in (0..n).step_by(TILE) {
            let hi = (lo + TILE).min(n);
            let (values, sums) = (&mut values[..hi - lo], &mut sums[..hi - lo]);
            sums.fill(Sum::EMPTY);
            for term in self.terms {
                let w = weight_of(term);
                if w == Weight::ZERO {
                    continue;
                }
                let (part, dtype) = fetch(term.source, &out, self.dtype, lo..hi, &mut room);
                f64::fold_in(values, part, dtype, |_, x| x);
                let w = self.divisor.map_or(1, |_| w.bits());
                for (sum, x) in sums.iter_mut().zip(&*values) {
                    sum.add(*x, w, unit);
                }
            }
            let (lo, hi) = (lo * size, hi * size);
            let result = match &mut out {
                Out::Bytes(dst) => &mut dst[lo..hi],
                Out::Windows { .. } => room.bytes(hi - lo),
            };
            for (to, sum) in result.chunks_exact_mut(size).zip(sums) {
                let bits = sum.rounded(self.divisor, unit, self.format);
                match size {
                    2 => to.copy_from_slice(&(bits as u16).to_ne_bytes()),
                    4 => to.copy_from_slice(&(bits as u32).to_ne_bytes()),
                    _ => to.copy_from_slice(&bits.to_ne_bytes()),
                }
            }
            if let Out::Windows { outputs, stores } = &out {
                let result = room.bytes(hi - lo);
                for to in outputs.iter() {
                    to.write(lo, result, *stores);
                }
            }
        }
    }
}

/// A float type's encoding.
#[derive(Clone, Copy)]
struct Format {
    /// Bits of the significand, the hidden one included.
    digits: u32,
    /// Exponent of the smallest positive number.
    least: i32,
    /// The bits of +∞, of the canonical NaN and of the sign.
    infinity: u64,
    nan: u64,
    sign: u64,
}

impl Format {
    fn of(dtype: DType) -> Format {
        let (digits, least, bits) = match dtype {
            DType::F64 => (53, -1074, 64),
            DType::F32 => (24, -149, 32),
            DType::Bf16 => (8, -133, 16),
            DType::F16 => (11, -24, 16),
            other => panic!("fold: exact sums of {other}"),
        };
        let sign = 1 << (bits - 1);
        // The exponent field is all ones; the quiet bit is the highest of the fraction.
        let infinity = sign - (1 << (digits - 1));
        Format {
            digits,
            least,
            infinity,
            nan: infinity | 1 << (digits - 2),
            sign,
        }
    }

    /// The number nearest to (`v` + something between 0 and 1 where `more`) · 2^`unit`, ties to even. `v` has more bits than the significand by at least two.
    #[inline(always)]
    fn nearest(self, v: u128, unit: i32, more: bool) -> u64 {
        let top = 127 - v.leading_zeros() as i32 + unit;
        let last = (top - (self.digits as i32 - 1)).max(self.least);
        // Bits that are rounded away.
        let dropped = (last - unit) as u32;
        let kept = v.checked_shr(dropped).unwrap_or(0);
        let half = v.checked_shr(dropped - 1).unwrap_or(0) & 1 == 1;
        let rest = if dropped > 128 {
            v
        } else {
            v & ((1 << (dropped - 1)) - 1)
        };
        let up = half && (more || rest != 0 || kept & 1 == 1);
        // A significand without its hidden bit is a denormal, and one that rounds up to the next power of two carries into the exponent: the encoding is one number.
        let bits = ((last - self.least) as u64) << (self.digits - 1);
        let bits = bits.wrapping_add(kept as u64).wrapping_add(u64::from(up));
        bits.min(self.infinity)
    }
}

/// What has been added to an element so far.
#[derive(Clone, Copy)]
struct Sum<const N: usize> {
    /// In two's complement, the lowest first.
    words: [u64; N],
    nan: bool,
    positive_infinity: bool,
    negative_infinity: bool,
    /// Whether something else than −0 has been added.
    not_minus_zero: bool,
}

impl<const N: usize> Sum<N> {
    const EMPTY: Sum<N> = Sum {
        words: [0; N],
        nan: false,
        positive_infinity: false,
        negative_infinity: false,
        not_minus_zero: false,
    };

    /// Adds w·x.
    #[inline(always)]
    fn add(&mut self, x: f64, w: u64, unit: i32) {
        let bits = x.to_bits();
        let negative = bits >> 63 == 1;
        let exponent = (bits >> 52 & 0x7ff) as i32;
        let fraction = bits & ((1 << 52) - 1);
        if exponent == 0x7ff {
            self.nan |= fraction != 0;
            self.positive_infinity |= fraction == 0 && !negative;
            self.negative_infinity |= fraction == 0 && negative;
            return;
        }
        self.not_minus_zero |= bits != 1 << 63;
        let (significand, exponent) = match exponent {
            0 if fraction == 0 => return,
            0 => (fraction, -1074),
            e => (fraction | 1 << 52, e - 1075),
        };
        // Without its trailing zeros no f32 reaches below 2⁻¹⁴⁹.
        let zeros = significand.trailing_zeros();
        let product = u128::from(significand >> zeros) * u128::from(w);
        let at = (exponent + zeros as i32 - unit) as usize;
        let (word, bit) = (FRACTION + at / 64, at % 64);
        let low = product << bit;
        // The bits that the shift has pushed out; none where there is none.
        let high = (product >> 64 >> (64 - bit)) as u64;
        let parts = [low as u64, (low >> 64) as u64, high];
        let mut carry = false;
        for (i, there) in self.words[word..].iter_mut().enumerate() {
            let part = parts.get(i).copied().unwrap_or(0);
            if i >= 3 && !carry {
                break;
            }
            let (sum, first) = if negative {
                there.overflowing_sub(part)
            } else {
                there.overflowing_add(part)
            };
            let (sum, second) = if negative {
                sum.overflowing_sub(u64::from(carry))
            } else {
                sum.overflowing_add(u64::from(carry))
            };
            *there = sum;
            carry = first | second;
        }
    }

    /// The bits of the nearest number of the format.
    #[inline(always)]
    fn rounded(&mut self, divisor: Option<u64>, unit: i32, format: Format) -> u64 {
        if self.nan || (self.positive_infinity && self.negative_infinity) {
            return format.nan;
        }
        if self.positive_infinity || self.negative_infinity {
            let sign = if self.negative_infinity {
                format.sign
            } else {
                0
            };
            return format.infinity | sign;
        }
        let negative = self.words[N - 1] >> 63 == 1;
        if negative {
            let mut carry = true;
            for word in &mut self.words {
                let (sum, over) = (!*word).overflowing_add(u64::from(carry));
                *word = sum;
                carry = over;
            }
        }
        let Some(top) = self.words.iter().rposition(|w| *w != 0) else {
            // Like a sum of IEEE numbers: −0 only of nothing but −0.
            return if self.not_minus_zero { 0 } else { format.sign };
        };
        // Three words hold the leading bit of the quotient, which is at most one word lower than the dividend's, and 64 bits below; the fraction makes sure that there are so many.
        let mut window = [0u64; 3];
        let mut rest = 0u64;
        for (i, q) in window.iter_mut().enumerate() {
            let word = self.words[top - i];
            (*q, rest) = match divisor {
                None => (word, 0),
                Some(d) => divide(rest, word, d),
            };
        }
        let below = rest != 0 || self.words[..top - 2].iter().any(|w| *w != 0);
        let unit = unit + 64 * (top as i32 - 2 - FRACTION as i32);
        let pair = |hi: u64, lo: u64| u128::from(hi) << 64 | u128::from(lo);
        let bits = if window[0] == 0 {
            format.nearest(pair(window[1], window[2]), unit, below)
        } else {
            let below = below || window[2] != 0;
            format.nearest(pair(window[0], window[1]), unit + 64, below)
        };
        bits | if negative { format.sign } else { 0 }
    }
}

/// Quotient and remainder of the two-word number by `d`, where `high` < `d`.
#[inline(always)]
fn divide(high: u64, low: u64, d: u64) -> (u64, u64) {
    if high == 0 {
        return (low / d, low % d);
    }
    let number = u128::from(high) << 64 | u128::from(low);
    // The quotient fits because the high word is smaller than the divisor.
    (
        (number / u128::from(d)) as u64,
        (number % u128::from(d)) as u64,
    )
}
