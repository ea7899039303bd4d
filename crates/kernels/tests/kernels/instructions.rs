//! Every kernel on every instruction set that this machine has: the same bits, at all lengths and alignments.

use super::{FLOATS, check, data, terms_of};
use gaggle_core::{Codec, DType, Form, Reduce, Weight, raw::bytes_of};
use gaggle_kernels::{
    How, Isa, MixTerm, combine, combine_weighted, compensate, convert, decode, divide, encode,
    fold, fold_with, mix, recode, scale, weigh,
};
use std::sync::{Mutex, PoisonError};

/// What is forced holds for the whole process, and tests may be threads of one.
pub(crate) static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Every remainder of a vector's length in bytes, and around a tile.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=66).chain([127, 129, 1023, 1024, 1025, 1091])
}

/// Runs `f` on the baseline, and then on everything, aligned and not: `want` is the baseline's.
fn on_all(what: &str, dst: &[u8], srcs: &[&[u8]], f: impl Fn(&mut [u8], &[&[u8]])) {
    let _held = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(Isa::force(Some(Isa::Baseline)));
    let mut want = dst.to_vec();
    f(&mut want, srcs);
    for isa in Isa::ALL {
        if Isa::force(Some(isa)) {
            check(&format!("{what} on {isa}"), dst, srcs, &want, &f);
        }
    }
    assert!(Isa::force(None));
}

#[test]
fn reductions_have_equal_bits() {
    for dtype in DType::ALL {
        for reduce in Reduce::ALL {
            if !reduce.is_defined_on(dtype) || reduce == Reduce::User {
                continue;
            }
            for n in lengths() {
                let [a, b, c] = [81, 82, 83].map(|s| data(dtype, n, s + n as u64));
                let what = format!("{reduce} of {n} {dtype}");
                for first in [false, true] {
                    on_all(&what, &a, &[&b], |d, s| {
                        combine(dtype, reduce, d, s[0], first)
                    });
                }
                on_all(&what, &a, &[&b, &c], |d, s| {
                    fold(dtype, reduce, d, &terms_of(s, dtype, &[None, None, None]));
                });
            }
        }
    }
}

#[test]
fn weights_have_equal_bits() {
    let w = Weight::from_f64(1.0 / 3.0).unwrap();
    let weights = [Some(w), Some(Weight::samples(3)), Some(Weight::ONE)];
    for dtype in FLOATS {
        for n in lengths() {
            let [a, b, c] = [84, 85, 86].map(|s| data(dtype, n, s + n as u64));
            let what = format!("{n} {dtype}");
            for first in [false, true] {
                on_all(&what, &a, &[&b], |d, s| {
                    combine_weighted(dtype, d, s[0], first, w)
                });
            }
            on_all(&what, &a, &[], |d, _| weigh(dtype, d, w));
            on_all(&what, &a, &[], |d, _| divide(dtype, d, w));
            on_all(&what, &a, &[&b], |d, s| scale(dtype, d, s[0], -0.3));
            for how in [
                How {
                    exact: false,
                    divisor: None,
                },
                How {
                    exact: true,
                    divisor: None,
                },
                How {
                    exact: false,
                    divisor: Some(Weight::samples(5)),
                },
            ] {
                on_all(&what, &a, &[&b, &c], |d, s| {
                    fold_with(dtype, Reduce::Mean, d, &terms_of(s, dtype, &weights), how);
                });
            }
            for form in [Form::Delta, Form::Sum] {
                on_all(&what, &a, &[&b, &c], |d, s| {
                    let term = |i: usize| MixTerm {
                        bytes: s[i],
                        dtype,
                        weight: 0.3,
                    };
                    mix(dtype, d, 0.4, &[term(0), term(1)], form, Codec::None);
                });
            }
        }
    }
}

#[test]
fn conversions_and_codecs_have_equal_bits() {
    for n in lengths() {
        for from in FLOATS {
            let x = data(from, n, 87 + n as u64);
            for to in FLOATS {
                let room = vec![0; n * to.size()];
                on_all(&format!("{n} {from} to {to}"), &room, &[&x], |d, s| {
                    convert(d, to, s[0], from);
                });
            }
        }
        let [x, y, z] = [88, 89, 90].map(|s| data(DType::F32, n, s + n as u64));
        let kept: Vec<f32> = (0..n).map(|i| (i as f32 - 20.0) * 1e-3).collect();
        for codec in [Codec::Bf16, Codec::F16, Codec::Int8] {
            let what = format!("{n} by {codec}");
            let room = vec![0; codec.wire_bytes(DType::F32, n as u64).unwrap() as usize];
            let mut wire = room.clone();
            encode(codec, DType::F32, &mut wire, &x);
            on_all(&what, &room, &[&x], |d, s| {
                encode(codec, DType::F32, d, s[0])
            });
            on_all(&what, &x, &[&wire], |d, s| {
                decode(codec, DType::F32, d, s[0])
            });
            on_all(&what, &x, &[], |d, _| recode(codec, DType::F32, d));
            // The residual's bits as well, in place of the second half.
            let both = [&x[..], &x[..]].concat();
            on_all(&what, &both, &[], |d, _| {
                let mut kept = kept.clone();
                let (buf, rest) = d.split_at_mut(4 * n);
                compensate(codec, buf, &mut kept);
                rest.copy_from_slice(bytes_of(&kept));
            });
            on_all(&what, &x, &[&y, &z], |d, s| {
                let term = |i: usize| MixTerm {
                    bytes: s[i],
                    dtype: DType::F32,
                    weight: 0.3,
                };
                mix(DType::F32, d, 0.4, &[term(0), term(1)], Form::Delta, codec);
            });
        }
    }
}

#[test]
fn an_instruction_set_that_is_not_there_is_not_used() {
    let _held = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for isa in Isa::ALL {
        assert_eq!(isa.to_string().parse(), Ok(isa));
        assert_eq!(Isa::force(Some(isa)), isa.is_available());
        if isa.is_available() {
            assert_eq!(Isa::current(), isa);
        }
    }
    assert!(Isa::force(None));
    assert!("sse9".parse::<Isa>().is_err());
}
