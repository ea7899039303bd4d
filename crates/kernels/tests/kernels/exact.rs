//! Exact folds against fractions of whole numbers.

use super::{FLOATS, Val, data, float, put};
use gaggle_core::{
    DType, Reduce, Weight,
    raw::{bytes_of, bytes_of_mut},
};
use gaggle_kernels::{How, Source, Term, fold_with};
use num_bigint::{BigInt, Sign};
use num_rational::BigRational;
use proptest::prelude::*;

const EXACT: How = How {
    exact: true,
    divisor: None,
};

fn power_of_two(e: i64) -> BigRational {
    let n = BigInt::from(1) << e.unsigned_abs();
    if e < 0 {
        BigRational::new(1.into(), n)
    } else {
        BigRational::from_integer(n)
    }
}

/// A finite f64, exactly.
fn fraction(x: f64) -> BigRational {
    let bits = x.to_bits();
    let (e, f) = ((bits >> 52 & 0x7ff) as i64, bits & ((1 << 52) - 1));
    let (m, e) = if e == 0 {
        (f, -1074)
    } else {
        (f | 1 << 52, e - 1075)
    };
    let m = BigInt::from(m);
    let m = if x.is_sign_negative() { -m } else { m };
    BigRational::from_integer(m) * power_of_two(e)
}

/// Significand bits, exponent of the smallest number, and the exponent from which on everything overflows.
fn format(dtype: DType) -> (i64, i64, i64) {
    match dtype {
        DType::F64 => (53, -1074, 1024),
        DType::F32 => (24, -149, 128),
        DType::Bf16 => (8, -133, 128),
        DType::F16 => (11, -24, 16),
        other => panic!("{other}"),
    }
}

/// The nearest number of the type, ties to even; `None` where it overflows.
fn nearest(v: &BigRational, dtype: DType) -> Option<BigRational> {
    let (digits, least, end) = format(dtype);
    let zero = BigRational::from_integer(0.into());
    if *v == zero {
        return Some(zero);
    }
    let abs = if v.numer().sign() == Sign::Minus {
        -v.clone()
    } else {
        v.clone()
    };
    // floor(log2): off by one at most from the lengths alone.
    let mut top = abs.numer().bits() as i64 - abs.denom().bits() as i64;
    if power_of_two(top) > abs {
        top -= 1;
    }
    let last = (top - digits + 1).max(least);
    let units = abs * power_of_two(-last);
    let whole = units.floor();
    let rest = units - &whole;
    let half = power_of_two(-1);
    let odd = whole.to_integer().bit(0);
    let up = rest > half || (rest == half && odd);
    let whole = if up { whole + power_of_two(0) } else { whole };
    let rounded = whole * power_of_two(last);
    if rounded >= power_of_two(end) {
        return None;
    }
    Some(if v.numer().sign() == Sign::Minus {
        -rounded
    } else {
        rounded
    })
}

/// The result of element 0, by the rules, as f64: exact, because every type's numbers are f64's.
fn reference(dtype: DType, xs: &[f64], weights: Option<&[Weight]>, divisor: Option<Weight>) -> f64 {
    let w = |i: usize| weights.map_or(Weight::ONE, |w| w[i]);
    let read: Vec<usize> = (0..xs.len()).filter(|i| w(*i) != Weight::ZERO).collect();
    let any = |f: &dyn Fn(f64) -> bool| read.iter().any(|i| f(xs[*i]));
    let plus = any(&|x| x == f64::INFINITY);
    let minus = any(&|x| x == f64::NEG_INFINITY);
    if any(&f64::is_nan) || (plus && minus) {
        return f64::NAN;
    }
    if plus || minus {
        return if plus {
            f64::INFINITY
        } else {
            f64::NEG_INFINITY
        };
    }
    let whole = |w: Weight| BigRational::from_integer(w.bits().into());
    let zero = || BigRational::from_integer(0.into());
    let sum = read
        .iter()
        .fold(zero(), |s, i| s + fraction(xs[*i]) * whole(w(*i)));
    let by = match divisor {
        Some(by) => whole(by),
        None if weights.is_some() => read.iter().fold(zero(), |s, i| s + whole(w(*i))),
        None => whole(Weight::ONE),
    };
    let value = sum / by;
    let negative = value.numer().sign() == Sign::Minus;
    let sign = if negative || !any(&|x| x.to_bits() != 1 << 63) {
        -1.0
    } else {
        1.0
    };
    match nearest(&value, dtype) {
        None => sign * f64::INFINITY,
        Some(v) if v == zero() => sign * 0.0,
        // Numerator and denominator are powers of two apart from 53 bits: divided exactly.
        Some(v) => {
            let e = v.denom().bits() as i64 - 1;
            let zeros = v.numer().trailing_zeros().unwrap_or(0) as i64;
            let m: i64 = (v.numer() >> zeros).try_into().unwrap();
            let e = zeros - e;
            // In two steps, so that neither leaves the range.
            m as f64 * 2f64.powi((e / 2) as i32) * 2f64.powi((e - e / 2) as i32)
        }
    }
}

fn terms<'a>(dtype: DType, parts: &'a [Vec<u8>], weights: Option<&[Weight]>) -> Vec<Term<'a>> {
    let term = |(i, bytes): (usize, &'a Vec<u8>)| Term {
        source: Source::Bytes { bytes, dtype },
        weight: weights.map(|w| w[i]),
    };
    parts.iter().enumerate().map(term).collect()
}

#[track_caller]
fn same(what: &str, dtype: DType, got: &[u8], i: usize, want: f64) {
    let mut bytes = vec![];
    put(dtype, Val::Float(want), &mut bytes);
    let size = dtype.size();
    let got = &got[i * size..(i + 1) * size];
    assert!(
        got == bytes,
        "{what}: {got:x?}, wanted {want:e} = {bytes:x?}"
    );
}

/// Folds element by element and compares with the reference; then the terms the other way round.
#[track_caller]
fn verify(dtype: DType, parts: &[Vec<u8>], weights: Option<&[Weight]>, divisor: Option<Weight>) {
    let n = parts[0].len() / dtype.size();
    let mean = weights.is_some() || divisor.is_some();
    let reduce = if mean { Reduce::Mean } else { Reduce::Sum };
    let how = How { divisor, ..EXACT };
    let mut got = vec![0; parts[0].len()];
    let all = terms(dtype, parts, weights);
    fold_with(dtype, reduce, &mut got, &all, how);
    for i in 0..n {
        let xs: Vec<f64> = parts.iter().map(|p| float(dtype, p, i)).collect();
        let want = reference(dtype, &xs, weights, divisor);
        same(
            &format!("{dtype} {xs:?} {weights:?} / {divisor:?}"),
            dtype,
            &got,
            i,
            want,
        );
    }
    let mut back = vec![0; got.len()];
    let reversed: Vec<Term<'_>> = all.iter().rev().copied().collect();
    fold_with(dtype, reduce, &mut back, &reversed, how);
    assert!(back == got, "{dtype}: another order, another result");
}

/// Any bits of the type, one exponent as likely as another.
fn any_bits(dtype: DType, n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = vec![];
    while out.len() < n * dtype.size() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let bits = state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
        let mut x = [0; 8];
        x[..dtype.size()].copy_from_slice(&bits[8 - dtype.size()..]);
        // Of infinities and NaN there are enough elsewhere.
        if float(dtype, &x[..dtype.size()], 0).is_finite() {
            out.extend(&x[..dtype.size()]);
        }
    }
    out
}

#[test]
fn sums_over_the_whole_range_are_rounded_once() {
    for dtype in FLOATS {
        for k in [1, 2, 3, 5, 8, 33] {
            let parts: Vec<Vec<u8>> = (0..k).map(|s| any_bits(dtype, 67, 100 + s)).collect();
            verify(dtype, &parts, None, None);
        }
    }
}

#[test]
fn what_cancels_leaves_what_is_small() {
    for dtype in FLOATS {
        for k in [3usize, 9, 33] {
            // x, −x, … and one more at the end of very different size.
            let mut parts: Vec<Vec<u8>> = vec![];
            for s in 0..k / 2 {
                let x = any_bits(dtype, 65, 300 + s as u64);
                let minus: Vec<u8> = x
                    .chunks(dtype.size())
                    .flat_map(|b| {
                        let mut b = b.to_vec();
                        *b.last_mut().unwrap() ^= 0x80;
                        b
                    })
                    .collect();
                parts.insert(parts.len() / 2, x);
                parts.push(minus);
            }
            parts.push(any_bits(dtype, 65, 400));
            verify(dtype, &parts, None, None);
        }
    }
}

#[test]
fn infinities_nan_zeros_and_ties_follow_ieee() {
    for dtype in FLOATS {
        for k in [1, 2, 3, 4] {
            let parts: Vec<Vec<u8>> = (0..k).map(|s| data(dtype, 300, 500 + s)).collect();
            verify(dtype, &parts, None, None);
        }
        // −0 of nothing but −0.
        let minus = [-0.0, -0.0].map(|x| {
            let mut b = vec![];
            put(dtype, Val::Float(x), &mut b);
            b
        });
        verify(dtype, &minus, None, None);
    }
    // 1 + 2⁻²⁴ is a tie: to even; a hair above it goes up, also where the hair is 2⁻¹⁴⁹.
    let hair = f32::from_bits(1);
    for (xs, want) in [
        (vec![1.0f32, 2f32.powi(-24)], 1.0f32),
        (vec![1.0, 2f32.powi(-24), hair], 1.0 + f32::EPSILON),
        (vec![hair, 2f32.powi(-24), 1.0], 1.0 + f32::EPSILON),
        (vec![f32::MAX, f32::MAX, -f32::MAX], f32::MAX),
        (vec![f32::MAX, f32::MAX], f32::INFINITY),
        (vec![f32::MAX, 2f32.powi(102)], f32::MAX),
        (vec![f32::MAX, 2f32.powi(103)], f32::INFINITY),
    ] {
        let parts: Vec<Vec<u8>> = xs.iter().map(|x| x.to_ne_bytes().to_vec()).collect();
        let mut got = [0f32];
        fold_with(
            DType::F32,
            Reduce::Sum,
            bytes_of_mut(&mut got),
            &terms(DType::F32, &parts, None),
            EXACT,
        );
        assert_eq!(got, [want], "{xs:?}");
    }
}

#[test]
fn weighted_means_are_rounded_once() {
    let weights = |k: usize, seed: u64| -> Vec<Weight> {
        (0..k)
            .map(|i| match (i as u64 + seed) % 5 {
                0 => Weight::ONE,
                1 => Weight::samples(i as u32 + 3),
                2 => Weight::from_bits(0x1234_5678_9abc ^ (i as u64) << 20),
                3 => Weight::from_bits(1),
                _ => Weight::ZERO,
            })
            .collect()
    };
    for dtype in FLOATS {
        for k in [1, 2, 3, 7, 33] {
            let parts: Vec<Vec<u8>> = (0..k)
                .map(|s| any_bits(dtype, 65, 600 + s as u64))
                .collect();
            for seed in 0..4 {
                let w = weights(k, seed);
                if w.iter().all(|w| *w == Weight::ZERO) {
                    continue;
                }
                verify(dtype, &parts, Some(&w), None);
                verify(dtype, &parts, Some(&w), Some(Weight::samples(7)));
            }
            verify(dtype, &parts, None, Some(Weight::samples(3)));
        }
    }
}

/// trials.md row 2: the 12 orders of four numbers whose sum is 2.
#[test]
fn every_order_of_large_and_small_gives_two() {
    let xs = [1e8f32, 1.0, -1e8, 1.0];
    let mut orders = std::collections::BTreeSet::new();
    for a in 0..4 {
        for b in (0..4).filter(|b| *b != a) {
            for c in (0..4).filter(|c| *c != a && *c != b) {
                let order = [a, b, c, 6 - a - b - c].map(|i| xs[i]);
                orders.insert(order.map(f32::to_bits));
            }
        }
    }
    assert_eq!(orders.len(), 12);
    for order in orders {
        let parts: Vec<Vec<u8>> = order.iter().map(|b| b.to_ne_bytes().to_vec()).collect();
        let mut got = [0f32];
        fold_with(
            DType::F32,
            Reduce::Sum,
            bytes_of_mut(&mut got),
            &terms(DType::F32, &parts, None),
            EXACT,
        );
        assert_eq!(got, [2.0]);
    }
}

#[test]
fn accumulators_of_16_bit_floats_are_read_and_rounded_once() {
    // 2⁻¹⁴⁹ of an f32 decides a tie of bf16.
    let tie = [1.0f32 + 1.0 / 256.0, f32::from_bits(1)];
    let part = |x: &'static [f32]| Term {
        source: Source::Bytes {
            bytes: bytes_of(x),
            dtype: DType::F32,
        },
        weight: None,
    };
    let tie: &'static [f32; 2] = Box::leak(Box::new(tie));
    let mut got = [half::bf16::ZERO];
    fold_with(
        DType::Bf16,
        Reduce::Sum,
        bytes_of_mut(&mut got),
        &[part(&tie[..1]), part(&tie[1..])],
        EXACT,
    );
    assert_eq!(got[0].to_f32(), 1.0 + 1.0 / 128.0);
}

#[test]
fn another_divisor_divides_also_what_is_alone() {
    for exact in [false, true] {
        let how = How {
            exact,
            divisor: Some(Weight::samples(4)),
        };
        let own = |weight| Term {
            source: Source::Dst,
            weight,
        };
        let mut x = [1.0f32, -6.0];
        fold_with(
            DType::F32,
            Reduce::Mean,
            bytes_of_mut(&mut x),
            &[own(Some(Weight::ONE))],
            how,
        );
        assert_eq!(x, [0.25, -1.5]);
        // trials.md row 4 (b): three of four contribute, divided by four.
        let mut x = [1.0f32];
        let all = [Weight::ONE, Weight::ONE, Weight::ONE, Weight::ZERO].map(|w| own(Some(w)));
        fold_with(DType::F32, Reduce::Mean, bytes_of_mut(&mut x), &all, how);
        assert_eq!(x, [0.75]);
        let mut x = [f32::NAN];
        fold_with(
            DType::F32,
            Reduce::Mean,
            bytes_of_mut(&mut x),
            &[own(Some(Weight::ZERO))],
            how,
        );
        assert!(x[0].is_nan());
        let mut x = [8.0f32];
        fold_with(
            DType::F32,
            Reduce::Mean,
            bytes_of_mut(&mut x),
            &[own(None)],
            how,
        );
        assert_eq!(x, [2.0]);
    }
}

#[test]
#[should_panic(expected = "exact max of f32")]
fn an_exact_maximum_is_a_mistake() {
    let own = Term {
        source: Source::Dst,
        weight: None,
    };
    fold_with(DType::F32, Reduce::Max, &mut [0; 4], &[own], EXACT);
}

proptest! {
    #[test]
    fn any_doubles_in_any_order(mut xs in prop::collection::vec(any::<u64>(), 1..34), turn in any::<u64>()) {
        let part = |b: &u64| b.to_ne_bytes().to_vec();
        let parts: Vec<Vec<u8>> = xs.iter().map(part).collect();
        verify(DType::F64, &parts, None, None);
        let mut want = [0f64];
        fold_with(DType::F64, Reduce::Sum, bytes_of_mut(&mut want), &terms(DType::F64, &parts, None), EXACT);
        let n = xs.len();
        xs.rotate_left(turn as usize % n);
        xs.swap(0, turn as usize / 64 % n);
        let parts: Vec<Vec<u8>> = xs.iter().map(part).collect();
        let mut got = [0f64];
        fold_with(DType::F64, Reduce::Sum, bytes_of_mut(&mut got), &terms(DType::F64, &parts, None), EXACT);
        prop_assert_eq!(got[0].to_bits(), want[0].to_bits());
    }
}
