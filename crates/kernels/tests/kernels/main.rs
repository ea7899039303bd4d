//! Every kernel against a scalar reference that is written here, element by element, from the documented rules.
#![allow(clippy::unwrap_used, reason = "slices of a known length become arrays")]

mod coding;
mod exact;
mod instructions;
mod windows;

use gaggle_core::{
    Codec, DType, Form, Reduce, Weight,
    raw::{bytes_of, bytes_of_mut},
};
use gaggle_kernels::{
    Line, MixTerm, Source, Term, combine, combine_weighted, convert, decode, divide, encode, fold,
    mix, recode, scale, sum_lines, weigh,
};
use half::{bf16, f16};
use proptest::prelude::*;

const LENGTHS: [usize; 8] = [0, 1, 7, 8, 1023, 1024, 1025, 4099];
const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];

/// One element, widened for the reference.
#[derive(Clone, Copy)]
enum Val {
    Int(i128),
    Float(f64),
}

fn get(dtype: DType, b: &[u8], i: usize) -> Val {
    let b = &b[i * dtype.size()..(i + 1) * dtype.size()];
    match dtype {
        DType::F32 => Val::Float(f64::from(f32::from_ne_bytes(b.try_into().unwrap()))),
        DType::F64 => Val::Float(f64::from_ne_bytes(b.try_into().unwrap())),
        DType::F16 => Val::Float(f16::from_ne_bytes(b.try_into().unwrap()).to_f64()),
        DType::Bf16 => Val::Float(bf16::from_ne_bytes(b.try_into().unwrap()).to_f64()),
        DType::I32 => Val::Int(i32::from_ne_bytes(b.try_into().unwrap()).into()),
        DType::I64 => Val::Int(i64::from_ne_bytes(b.try_into().unwrap()).into()),
        DType::U8 => Val::Int(b[0].into()),
        DType::I8 => Val::Int((b[0] as i8).into()),
        DType::I16 => Val::Int(i16::from_ne_bytes(b.try_into().unwrap()).into()),
        DType::U16 => Val::Int(u16::from_ne_bytes(b.try_into().unwrap()).into()),
        DType::U32 => Val::Int(u32::from_ne_bytes(b.try_into().unwrap()).into()),
        DType::U64 => Val::Int(u64::from_ne_bytes(b.try_into().unwrap()).into()),
        DType::Bool => Val::Int(i128::from(b[0] != 0)),
    }
}

fn float(dtype: DType, b: &[u8], i: usize) -> f64 {
    match get(dtype, b, i) {
        Val::Float(x) => x,
        Val::Int(_) => panic!("an integer"),
    }
}

/// The wide type's rounding of an intermediate result: f64 for f32 and f64, f32 for the 16-bit floats.
fn wide(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F16 | DType::Bf16 => f64::from(x as f32),
        _ => x,
    }
}

/// Appends the element, rounded once, a NaN in canonical form.
fn put(dtype: DType, v: Val, out: &mut Vec<u8>) {
    match (v, dtype) {
        (Val::Float(x), DType::F32) if x.is_nan() => out.extend(0x7fc0_0000u32.to_ne_bytes()),
        (Val::Float(x), DType::F64) if x.is_nan() => {
            out.extend(0x7ff8_0000_0000_0000u64.to_ne_bytes());
        }
        (Val::Float(x), DType::F16) if x.is_nan() => out.extend(0x7e00u16.to_ne_bytes()),
        (Val::Float(x), DType::Bf16) if x.is_nan() => out.extend(0x7fc0u16.to_ne_bytes()),
        (Val::Float(x), DType::F32) => out.extend((x as f32).to_ne_bytes()),
        (Val::Float(x), DType::F64) => out.extend(x.to_ne_bytes()),
        (Val::Float(x), DType::F16) => out.extend(f16::from_f32(x as f32).to_ne_bytes()),
        (Val::Float(x), DType::Bf16) => out.extend(bf16::from_f32(x as f32).to_ne_bytes()),
        (Val::Int(x), DType::I32) => out.extend((x as i32).to_ne_bytes()),
        (Val::Int(x), DType::I64) => out.extend((x as i64).to_ne_bytes()),
        (Val::Int(x), DType::U8 | DType::I8) => out.push(x as u8),
        (Val::Int(x), DType::I16 | DType::U16) => out.extend((x as i16).to_ne_bytes()),
        (Val::Int(x), DType::U32) => out.extend((x as u32).to_ne_bytes()),
        (Val::Int(x), DType::U64) => out.extend((x as u64).to_ne_bytes()),
        (Val::Int(x), DType::Bool) => out.push(u8::from(x != 0)),
        _ => panic!("float for integer"),
    }
}

/// `a ∘ b` by the rules: wrapping integers, −0 below +0, NaN wins.
fn two(dtype: DType, reduce: Reduce, a: Val, b: Val) -> Val {
    let less = |a: f64, b: f64| a < b || (a == b && a.is_sign_negative() && b.is_sign_positive());
    match (a, b) {
        // 128 bits hold every exact sum, and the cast in `put` wraps; products are wrapped in 64 bits first.
        (Val::Int(a), Val::Int(b)) => Val::Int(match reduce {
            Reduce::Sum | Reduce::Mean => a + b,
            Reduce::Prod => i128::from((a as i64).wrapping_mul(b as i64)),
            Reduce::Min => a.min(b),
            Reduce::Max => a.max(b),
            Reduce::Band => a & b,
            Reduce::Bor => a | b,
            Reduce::Bxor => a ^ b,
            Reduce::User => panic!("the user's"),
        }),
        (Val::Float(a), Val::Float(b)) => Val::Float(match reduce {
            Reduce::Sum | Reduce::Mean => wide(dtype, a + b),
            Reduce::Prod => wide(dtype, a * b),
            _ if a.is_nan() || b.is_nan() => f64::NAN,
            Reduce::Min => {
                if less(a, b) {
                    a
                } else {
                    b
                }
            }
            Reduce::Max => {
                if less(a, b) {
                    b
                } else {
                    a
                }
            }
            other => panic!("{other} of floats"),
        }),
        _ => panic!("mixed"),
    }
}

/// `n` elements: every pair of special values somewhere, the rest from a small generator.
fn data(dtype: DType, n: usize, seed: u64) -> Vec<u8> {
    let special: Vec<f64> = vec![
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::NAN,
        -f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        3.0e38,
        -3.0e38,
        1.7e308,
        65504.0,
        1.0e-45,
        -1.0e-40,
        6.0e-8,
        5.0e-324,
        1.0 / 3.0,
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut out = Vec::new();
    for _ in 0..n {
        let r = next();
        if dtype.is_float() {
            let x = if r % 4 == 0 {
                special[(r >> 8) as usize % special.len()]
            } else {
                ((r >> 11) as f64 / (1u64 << 53) as f64 - 0.5) * 2f64.powi((r % 21) as i32 - 10)
            };
            // A NaN with a payload and a sign, so that canonical form is seen to be made.
            if x.is_nan() && dtype == DType::F32 {
                out.extend((0xff81_2345u32 ^ (r as u32 & 0x8000_0000)).to_ne_bytes());
            } else {
                put(dtype, Val::Float(x), &mut out);
            }
        } else {
            put(dtype, Val::Int(i128::from(r as i64)), &mut out);
        }
    }
    out
}

/// A copy that starts at an odd address.
struct Odd(Vec<u8>, usize);

impl Odd {
    fn new(b: &[u8]) -> Odd {
        let mut v = vec![0u8; b.len() + 2];
        let at = 1 - v.as_ptr() as usize % 2;
        v[at..at + b.len()].copy_from_slice(b);
        Odd(v, at)
    }
    fn get(&self, n: usize) -> &[u8] {
        &self.0[self.1..self.1 + n]
    }
    fn get_mut(&mut self, n: usize) -> &mut [u8] {
        &mut self.0[self.1..self.1 + n]
    }
}

/// A copy that starts at a multiple of 8.
struct Even(Vec<i64>);

impl Even {
    fn new(b: &[u8]) -> Even {
        let mut v = vec![0i64; b.len().div_ceil(8)];
        bytes_of_mut(&mut v)[..b.len()].copy_from_slice(b);
        Even(v)
    }
    fn get(&self, n: usize) -> &[u8] {
        &bytes_of(&self.0)[..n]
    }
    fn get_mut(&mut self, n: usize) -> &mut [u8] {
        &mut bytes_of_mut(&mut self.0)[..n]
    }
}

/// Runs `f(dst, srcs)` with everything aligned, everything misaligned and both mixtures; all must give `want`.
#[track_caller]
fn check(what: &str, dst: &[u8], srcs: &[&[u8]], want: &[u8], f: impl Fn(&mut [u8], &[&[u8]])) {
    let even: Vec<Even> = srcs.iter().map(|s| Even::new(s)).collect();
    let odd: Vec<Odd> = srcs.iter().map(|s| Odd::new(s)).collect();
    let even: Vec<&[u8]> = even.iter().zip(srcs).map(|(e, s)| e.get(s.len())).collect();
    let odd: Vec<&[u8]> = odd.iter().zip(srcs).map(|(o, s)| o.get(s.len())).collect();
    for (name, srcs) in [("aligned", &even), ("misaligned", &odd)] {
        let mut d = Even::new(dst);
        f(d.get_mut(dst.len()), srcs);
        assert!(d.get(dst.len()) == want, "{what}: aligned from {name}");
        let mut d = Odd::new(dst);
        f(d.get_mut(dst.len()), srcs);
        assert!(d.get(dst.len()) == want, "{what}: misaligned from {name}");
    }
}

fn reference(n: usize, dtype: DType, f: impl Fn(usize) -> Val) -> Vec<u8> {
    let mut out = Vec::new();
    for i in 0..n {
        put(dtype, f(i), &mut out);
    }
    out
}

#[test]
fn combine_equals_the_scalar_rules() {
    for dtype in DType::ALL {
        for reduce in Reduce::ALL
            .into_iter()
            .filter(|r| r.is_defined_on(dtype) && *r != Reduce::User)
        {
            for n in LENGTHS {
                let (a, b) = (data(dtype, n, 1), data(dtype, n, 2));
                let want = reference(n, dtype, |i| {
                    two(dtype, reduce, get(dtype, &a, i), get(dtype, &b, i))
                });
                for first in [false, true] {
                    let what = format!("{reduce} of {n} {dtype}");
                    check(&what, &a, &[&b], &want, |d, s| {
                        combine(dtype, reduce, d, s[0], first);
                    });
                }
            }
        }
    }
}

/// Sums of a few elements of a few ranks have the bits of every other fold, or are not done.
#[test]
fn lines_are_summed_as_all_else_is() {
    for dtype in DType::ALL {
        let most = size_of::<Line>() / dtype.size();
        for (n, world) in (0..=most).flat_map(|n| (1..=8usize).map(move |world| (n, world))) {
            let parts: Vec<Vec<u8>> = (0..world)
                .map(|r| data(dtype, n, (n * 8 + r) as u64))
                .collect();
            for own in 0..world {
                let mut lines = vec![Line::default(); world - 1];
                let others = (0..world).filter(|r| *r != own);
                for (line, r) in lines.iter_mut().zip(others) {
                    bytes_of_mut(&mut line[..])[..n * dtype.size()].copy_from_slice(&parts[r]);
                }
                let terms: Vec<Term<'_>> = parts
                    .iter()
                    .map(|bytes| Term {
                        source: Source::Bytes { bytes, dtype },
                        weight: None,
                    })
                    .collect();
                let mut want = parts[own].clone();
                fold(dtype, Reduce::Sum, &mut want, &terms);
                // Words, so that it is aligned.
                let mut got = Line::default();
                let got = &mut bytes_of_mut(&mut got[..])[..n * dtype.size()];
                got.copy_from_slice(&parts[own]);
                assert!(sum_lines(dtype, got, own, &lines));
                assert_eq!(got, want, "{n} {dtype}, {own} of {world}");
            }
        }
        let mut longer = [0u64; 7];
        let longer = bytes_of_mut(&mut longer[..]);
        assert!(!sum_lines(dtype, longer, 0, &[]));
        let short = &mut longer[..8];
        assert!(
            !sum_lines(dtype, short, 2, &[Line::default()]),
            "no such term"
        );
        let unaligned = &mut longer[1..9];
        assert_eq!(sum_lines(dtype, unaligned, 0, &[]), dtype.size() == 1);
        assert!(longer.iter().all(|b| *b == 0));
    }
}

#[test]
fn minimum_and_maximum_have_one_answer_in_either_order() {
    for dtype in FLOATS {
        let (a, b) = (data(dtype, 4099, 3), data(dtype, 4099, 4));
        for reduce in [Reduce::Min, Reduce::Max] {
            let (mut ab, mut ba) = (a.clone(), b.clone());
            combine(dtype, reduce, &mut ab, &b, false);
            combine(dtype, reduce, &mut ba, &a, true);
            assert_eq!(ab, ba, "{reduce} of {dtype}");
        }
    }
}

#[test]
fn zeros_are_ordered_and_a_nan_wins_in_canonical_form() {
    let payload = f32::from_bits(0xffc1_2345);
    let mut x = [0.0f32, -0.0, payload, 1.0];
    let y = [-0.0f32, 0.0, 2.0, payload];
    combine(
        DType::F32,
        Reduce::Min,
        bytes_of_mut(&mut x),
        bytes_of(&y),
        false,
    );
    let bits: Vec<u32> = x.iter().map(|v| v.to_bits()).collect();
    assert_eq!(bits, [0x8000_0000, 0x8000_0000, 0x7fc0_0000, 0x7fc0_0000]);
}

#[test]
fn integers_wrap() {
    let mut x = [i32::MAX, i32::MIN];
    combine(
        DType::I32,
        Reduce::Sum,
        bytes_of_mut(&mut x),
        bytes_of(&[1, -1]),
        true,
    );
    assert_eq!(x, [i32::MIN, i32::MAX]);
    let mut x = [200u8];
    combine(DType::U8, Reduce::Prod, &mut x, &[3], true);
    assert_eq!(x, [88]);
}

#[test]
fn weighted_combine_multiplies_what_is_there() {
    let w = Weight::from_f64(2.75).unwrap();
    for dtype in FLOATS {
        for n in LENGTHS {
            let (a, b) = (data(dtype, n, 5), data(dtype, n, 6));
            let want = reference(n, dtype, |i| {
                let there = wide(dtype, 2.75 * float(dtype, &a, i));
                Val::Float(wide(dtype, there + float(dtype, &b, i)))
            });
            for first in [false, true] {
                check(&format!("{n} {dtype}"), &a, &[&b], &want, |d, s| {
                    combine_weighted(dtype, d, s[0], first, w);
                });
            }
        }
    }
}

#[test]
fn weighted_combine_with_zero_does_not_read_and_with_one_does_not_multiply() {
    for dtype in FLOATS {
        let (a, b) = (data(dtype, 1025, 7), data(dtype, 1025, 8));
        check("zero", &a, &[&b], &b, |d, s| {
            combine_weighted(dtype, d, s[0], true, Weight::ZERO);
        });
        let mut want = a.clone();
        combine(dtype, Reduce::Sum, &mut want, &b, true);
        check("one", &a, &[&b], &want, |d, s| {
            combine_weighted(dtype, d, s[0], true, Weight::ONE);
        });
    }
}

/// All terms as bytes of `dtype`, one of them the destination.
fn terms_of<'a>(srcs: &[&'a [u8]], dtype: DType, weights: &[Option<Weight>]) -> Vec<Term<'a>> {
    let mut terms: Vec<Term<'a>> = srcs
        .iter()
        .map(|bytes| Source::Bytes { bytes, dtype })
        .zip(&weights[1..])
        .map(|(source, weight)| Term {
            source,
            weight: *weight,
        })
        .collect();
    let own = Term {
        source: Source::Dst,
        weight: weights[0],
    };
    terms.insert(1.min(terms.len()), own);
    terms
}

#[test]
fn fold_goes_in_term_order_and_rounds_once() {
    for dtype in DType::ALL {
        for reduce in Reduce::ALL
            .into_iter()
            .filter(|r| r.is_defined_on(dtype) && *r != Reduce::User)
        {
            for n in LENGTHS {
                for k in [1, 2, 5] {
                    let all: Vec<Vec<u8>> = (0..k).map(|s| data(dtype, n, 10 + s)).collect();
                    let srcs: Vec<&[u8]> = all[1..].iter().map(|v| &v[..]).collect();
                    // Terms: source 1, the destination, sources 2…
                    let mut order: Vec<&[u8]> = srcs.clone();
                    order.insert(1.min(order.len()), &all[0]);
                    let want = reference(n, dtype, |i| {
                        order[1..].iter().fold(get(dtype, order[0], i), |acc, s| {
                            let acc = match acc {
                                Val::Int(x) => {
                                    let mut b = Vec::new();
                                    put(dtype, Val::Int(x), &mut b);
                                    get(dtype, &b, 0)
                                }
                                float => float,
                            };
                            two(dtype, reduce, acc, get(dtype, s, i))
                        })
                    });
                    let weights = vec![None; k as usize];
                    let what = format!("{reduce} of {k} × {n} {dtype}");
                    check(&what, &all[0], &srcs, &want, |d, s| {
                        fold(dtype, reduce, d, &terms_of(s, dtype, &weights));
                    });
                }
            }
        }
    }
}

#[test]
fn a_fold_keeps_what_its_own_type_would_lose() {
    // 2²⁴ + 1 + 1 in f32 steps stays 2²⁴; folded in f64 it is exact.
    let mut x = [16_777_216.0f32];
    let one = [1.0f32];
    let one = Term {
        source: Source::Bytes {
            bytes: bytes_of(&one),
            dtype: DType::F32,
        },
        weight: None,
    };
    let own = Term {
        source: Source::Dst,
        weight: None,
    };
    fold(
        DType::F32,
        Reduce::Sum,
        bytes_of_mut(&mut x),
        &[own, one, one],
    );
    assert_eq!(x, [16_777_218.0]);
}

#[test]
fn fold_reads_accumulators_of_16_bit_floats() {
    // 1 + 2⁻⁹ is no bf16; two of them from f32 accumulators sum to 2 + 2⁻⁸, which rounds to 2.
    let mut x = [bf16::from_f32(0.0)];
    let part = [1.0f32 + 1.0 / 512.0];
    let part = Term {
        source: Source::Bytes {
            bytes: bytes_of(&part),
            dtype: DType::F32,
        },
        weight: None,
    };
    fold(
        DType::Bf16,
        Reduce::Sum,
        bytes_of_mut(&mut x),
        &[part, part],
    );
    assert_eq!(x[0].to_f32(), 2.0);
    fold(
        DType::Bf16,
        Reduce::Sum,
        bytes_of_mut(&mut x),
        &[part, part, part, part],
    );
    assert_eq!(x[0].to_f32(), 4.0);
    // Sixteen of them: 16 + 2⁻⁵ as well; 64 of them reach 64.125 → 64, 256 of them 256.5 → 256.
    let mut wide = [0.0f32];
    fold(
        DType::F32,
        Reduce::Sum,
        bytes_of_mut(&mut wide),
        &[part; 256],
    );
    assert_eq!(wide, [256.5]);
}

#[test]
fn means_divide_by_the_sum_of_weights() {
    let weights = [1.5, 0.25, 3.0, 2.0].map(Weight::from_f64);
    for dtype in FLOATS {
        for n in LENGTHS {
            let all: Vec<Vec<u8>> = (0..4).map(|s| data(dtype, n, 20 + s)).collect();
            let srcs: Vec<&[u8]> = all[1..].iter().map(|v| &v[..]).collect();
            let order = [
                (&all[1], 0.25),
                (&all[0], 1.5),
                (&all[2], 3.0),
                (&all[3], 2.0),
            ];
            let want = reference(n, dtype, |i| {
                let parts = order.map(|(b, w)| wide(dtype, w * float(dtype, b, i)));
                let sum = parts[1..].iter().fold(parts[0], |a, x| wide(dtype, a + x));
                Val::Float(wide(dtype, sum / 6.75))
            });
            check(
                &format!("mean of {n} {dtype}"),
                &all[0],
                &srcs,
                &want,
                |d, s| {
                    fold(dtype, Reduce::Mean, d, &terms_of(s, dtype, &weights));
                },
            );
        }
    }
}

#[test]
fn a_weight_of_zero_is_never_read() {
    for dtype in FLOATS {
        let n = 1025;
        let nan = reference(n, dtype, |_| Val::Float(f64::NAN));
        let x = reference(n, dtype, |i| Val::Float((i % 9) as f64));
        let zero_own = [Some(Weight::ZERO), Some(Weight::samples(3))];
        check("own", &nan, &[&x], &x, |d, s| {
            fold(dtype, Reduce::Mean, d, &terms_of(s, dtype, &zero_own));
        });
        let zero_other = [Some(Weight::samples(7)), Some(Weight::ZERO)];
        check("other", &x, &[&nan], &x, |d, s| {
            fold(dtype, Reduce::Mean, d, &terms_of(s, dtype, &zero_other));
        });
        let none = [Some(Weight::ZERO), Some(Weight::ZERO)];
        check("nobody", &x, &[&nan], &x, |d, s| {
            fold(dtype, Reduce::Mean, d, &terms_of(s, dtype, &none));
        });
        let mut y = nan.clone();
        weigh(dtype, &mut y, Weight::ZERO);
        divide(dtype, &mut y, Weight::ZERO);
        assert_eq!(y, nan);
        let mut y = x.clone();
        let term = MixTerm {
            bytes: &nan,
            dtype,
            weight: 0.0,
        };
        mix(dtype, &mut y, 1.0, &[term], Form::Delta, Codec::None);
        mix(dtype, &mut y, 1.0, &[term], Form::Sum, Codec::None);
        assert_eq!(y, x);
        let mut y = nan.clone();
        let term = MixTerm {
            bytes: &x,
            dtype,
            weight: 1.0,
        };
        mix(dtype, &mut y, 0.0, &[term], Form::Sum, Codec::None);
        assert_eq!(y, x);
    }
}

#[test]
fn one_contributor_is_its_own_mean() {
    let w = Weight::from_f64(1.0 / 3.0).unwrap();
    let x: Vec<f64> = (0..1025).map(|i| 0.1 * f64::from(i)).collect();
    let mut y = x.clone();
    let own = Term {
        source: Source::Dst,
        weight: Some(w),
    };
    fold(DType::F64, Reduce::Mean, bytes_of_mut(&mut y), &[own]);
    assert_eq!(x, y);
}

#[test]
fn weigh_divide_and_scale_round_once() {
    let w = Weight::from_f64(3.5).unwrap();
    for dtype in FLOATS {
        for n in LENGTHS {
            let a = data(dtype, n, 30);
            let times = reference(n, dtype, |i| {
                Val::Float(wide(dtype, 3.5 * float(dtype, &a, i)))
            });
            let over = reference(n, dtype, |i| {
                Val::Float(wide(dtype, float(dtype, &a, i) / 3.5))
            });
            check("weigh", &a, &[], &times, |d, _| weigh(dtype, d, w));
            check("divide", &a, &[], &over, |d, _| divide(dtype, d, w));
            check("scale", &vec![0; a.len()], &[&a], &times, |d, s| {
                scale(dtype, d, s[0], 3.5);
            });
            check("by one", &a, &[], &a, |d, _| {
                weigh(dtype, d, Weight::ONE);
                divide(dtype, d, Weight::ONE);
            });
            check("scale by one", &vec![0; a.len()], &[&a], &a, |d, s| {
                scale(dtype, d, s[0], 1.0);
            });
        }
    }
}

#[test]
fn converting_and_coding_agree_with_half() {
    for n in LENGTHS {
        let x = data(DType::F32, n, 40);
        let each = |i: usize| f32::from_ne_bytes(x[4 * i..4 * i + 4].try_into().unwrap());
        let b: Vec<u8> = (0..n)
            .flat_map(|i| bf16::from_f32(each(i)).to_ne_bytes())
            .collect();
        let h: Vec<u8> = (0..n)
            .flat_map(|i| f16::from_f32(each(i)).to_ne_bytes())
            .collect();
        let back: Vec<u8> = (0..n)
            .flat_map(|i| bf16::from_f32(each(i)).to_f32().to_ne_bytes())
            .collect();
        let none = vec![0; 2 * n];
        check("encode", &none, &[&x], &b, |d, s| {
            encode(Codec::Bf16, DType::F32, d, s[0]);
        });
        check("to f16", &none, &[&x], &h, |d, s| {
            convert(d, DType::F16, s[0], DType::F32);
        });
        check("decode", &x, &[&b], &back, |d, s| {
            decode(Codec::Bf16, DType::F32, d, s[0]);
        });
        check("recode", &x, &[], &back, |d, _| {
            recode(Codec::Bf16, DType::F32, d)
        });
        check("plain", &x, &[], &x, |d, _| {
            recode(Codec::None, DType::F32, d)
        });
        check("copy", &vec![0; 4 * n], &[&x], &x, |d, s| {
            encode(Codec::None, DType::F32, d, s[0]);
        });
    }
}

#[test]
fn doubles_are_rounded_to_16_bits_once() {
    // 1 + 2⁻⁸ is the tie between 1 and 1 + 2⁻⁷: the tie goes to even, a hair above it up. Through f32 the hair would be lost.
    let x = [1.0 + 2f64.powi(-8), 1.0 + 2f64.powi(-8) + 2f64.powi(-40)];
    let mut y = [bf16::ZERO; 2];
    convert(bytes_of_mut(&mut y), DType::Bf16, bytes_of(&x), DType::F64);
    assert_eq!(y.map(bf16::to_f32), [1.0, 1.0 + 1.0 / 128.0]);
    let x = [
        1.0 + 2f64.powi(-11),
        1.0 + 2f64.powi(-11) + 2f64.powi(-40),
        1e300,
    ];
    let mut y = [f16::ZERO; 3];
    convert(bytes_of_mut(&mut y), DType::F16, bytes_of(&x), DType::F64);
    assert_eq!(y.map(f16::to_f32), [1.0, 1.0 + 1.0 / 1024.0, f32::INFINITY]);
}

#[test]
fn every_f16_widens_and_comes_back_as_half_says() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let src: Vec<u8> = all.iter().flat_map(|b| b.to_ne_bytes()).collect();
    let mut wide = vec![0.0f32; all.len()];
    convert(bytes_of_mut(&mut wide), DType::F32, &src, DType::F16);
    for (b, w) in all.iter().zip(&wide) {
        assert_eq!(
            w.to_bits(),
            f16::from_bits(*b).to_f32().to_bits(),
            "{b:#06x}"
        );
    }
    let mut back = vec![f16::ZERO; all.len()];
    convert(
        bytes_of_mut(&mut back),
        DType::F16,
        bytes_of(&wide),
        DType::F32,
    );
    for (w, b) in wide.iter().zip(&back) {
        assert_eq!(b.to_bits(), f16::from_f32(*w).to_bits(), "{w}");
    }
}

#[test]
fn equal_inputs_mix_to_themselves_bit_for_bit() {
    for dtype in FLOATS {
        for n in LENGTHS {
            let x = data(dtype, n, 50);
            // Only a NaN changes, to its canonical form.
            let want = reference(n, dtype, |i| get(dtype, &x, i));
            check(&format!("{n} {dtype}"), &x, &[&x, &x], &want, |d, s| {
                let term = |i: usize| MixTerm {
                    bytes: s[i],
                    dtype,
                    weight: 1.0 / 3.0,
                };
                mix(dtype, d, 0.0, &[term(0), term(1)], Form::Delta, Codec::None);
            });
        }
    }
}

#[test]
fn with_a_codec_a_neighbour_that_sent_the_same_moves_nothing() {
    let x: Vec<f32> = (0..1025).map(|i| 0.1 + i as f32 / 7.0).collect();
    let sent: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
    let mut y = x.clone();
    let term = MixTerm {
        bytes: bytes_of(&sent),
        dtype: DType::Bf16,
        weight: 0.5,
    };
    mix(
        DType::F32,
        bytes_of_mut(&mut y),
        0.5,
        &[term],
        Form::Delta,
        Codec::Bf16,
    );
    assert_eq!(x, y);
}

#[test]
fn both_forms_of_mix_follow_their_formula() {
    for dtype in FLOATS {
        for n in LENGTHS {
            let all: Vec<Vec<u8>> = (0..3).map(|s| data(dtype, n, 60 + s)).collect();
            let weights = [0.25, 0.5];
            let w = |x: f64| wide(dtype, x);
            let delta = reference(n, dtype, |i| {
                let own = float(dtype, &all[0], i);
                Val::Float(weights.iter().zip(&all[1..]).fold(own, |acc, (a, b)| {
                    let x = float(dtype, b, i);
                    if x == own {
                        acc
                    } else {
                        w(acc + w(a * w(x - own)))
                    }
                }))
            });
            let sum = reference(n, dtype, |i| {
                let own = w(0.75 * float(dtype, &all[0], i));
                Val::Float(
                    weights
                        .iter()
                        .zip(&all[1..])
                        .fold(own, |acc, (a, b)| w(acc + w(a * float(dtype, b, i)))),
                )
            });
            for (form, want) in [(Form::Delta, delta), (Form::Sum, sum)] {
                let what = format!("{form:?} of {n} {dtype}");
                check(&what, &all[0], &[&all[1], &all[2]], &want, |d, s| {
                    let term = |i: usize| MixTerm {
                        bytes: s[i],
                        dtype,
                        weight: weights[i],
                    };
                    mix(dtype, d, 0.75, &[term(0), term(1)], form, Codec::None);
                });
            }
        }
    }
}

#[test]
#[should_panic(expected = "weights with sum of f32")]
fn weights_without_a_mean_are_a_mistake() {
    let own = Term {
        source: Source::Dst,
        weight: Some(Weight::ONE),
    };
    fold(DType::F32, Reduce::Sum, &mut [0; 4], &[own]);
}

#[test]
#[should_panic(expected = "codec bf16 does not apply to f64")]
fn a_codec_of_another_type_is_a_mistake() {
    recode(Codec::Bf16, DType::F64, &mut [0; 8]);
}

#[test]
#[should_panic(expected = "combine: 1 elements for a room of 2")]
fn unequal_lengths_are_a_mistake() {
    combine(DType::F32, Reduce::Sum, &mut [0; 8], &[0; 4], false);
}

proptest! {
    #[test]
    fn bf16_rounds_as_half_does(bits in prop::collection::vec(any::<u32>(), 1..64)) {
        let x: Vec<f32> = bits.iter().map(|b| f32::from_bits(*b)).collect();
        let mut wire = vec![bf16::ZERO; x.len()];
        encode(Codec::Bf16, DType::F32, bytes_of_mut(&mut wire), bytes_of(&x));
        for (x, b) in x.iter().zip(&wire) {
            prop_assert_eq!(b.to_bits(), bf16::from_f32(*x).to_bits());
        }
        let mut coded = x.clone();
        recode(Codec::Bf16, DType::F32, bytes_of_mut(&mut coded));
        for (c, b) in coded.iter().zip(&wire) {
            prop_assert_eq!(c.to_bits(), b.to_f32().to_bits());
        }
    }

    #[test]
    fn f16_rounds_as_half_does(bits in prop::collection::vec(any::<u32>(), 1..64)) {
        let x: Vec<f32> = bits.iter().map(|b| f32::from_bits(*b)).collect();
        let mut y = vec![f16::ZERO; x.len()];
        convert(bytes_of_mut(&mut y), DType::F16, bytes_of(&x), DType::F32);
        for (x, b) in x.iter().zip(&y) {
            prop_assert_eq!(b.to_bits(), f16::from_f32(*x).to_bits());
        }
    }
}
