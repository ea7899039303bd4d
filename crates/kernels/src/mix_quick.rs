//! The neighbour averages of most rounds: a few neighbours, f32, where the elements lie aligned and as they are on the wire. One pass with everything in registers, for the bits of the general kernel.

use crate::{
    MixTerm,
    num::Num,
    raw_isa::{Kernel, run},
};
use gaggle_core::{
    Codec, DType, Form,
    raw::{elements_of, elements_of_mut},
};

/// Neighbours that there is a loop for.
const MOST: usize = 3;

/// Averages as [`mix`](crate::mix) does, if this is such a round; else nothing has happened, and `false`.
pub(crate) fn mix(
    dtype: DType,
    own: &mut [u8],
    keep: f64,
    terms: &[MixTerm<'_>],
    form: Form,
    codec: Codec,
) -> bool {
    // With a keep of 0 the own value is not read.
    let plain = dtype == DType::F32 && codec == Codec::None && (form == Form::Delta || keep != 0.0);
    if !plain || terms.len() > 2 * MOST {
        return false;
    }
    let mut found: [(&[f32], f64); MOST] = [(&[], 0.0); MOST];
    let mut n = 0;
    // A term of weight 0 is never read.
    for term in terms.iter().filter(|t| t.weight != 0.0) {
        match elements_of::<f32>(term.bytes) {
            Some(x) if term.dtype == DType::F32 && n < MOST => {
                found[n] = (x, term.weight);
                n += 1;
            }
            _ => return false,
        }
    }
    let Some(own) = elements_of_mut::<f32>(own).filter(|_| n > 0) else {
        return false;
    };
    let terms = &found[..n];
    match form {
        Form::Delta => run(Delta { own, terms }),
        Form::Sum => run(Sum { own, keep, terms }),
    }
    true
}

struct Delta<'a> {
    own: &'a mut [f32],
    terms: &'a [(&'a [f32], f64)],
}

/// One more term. NaNs become canonical as the result is rounded.
#[inline(always)]
fn moved(a: f64, own: f64, x: f32, w: f64) -> f64 {
    let x = f64::from(x);
    let moved = a + w * (x - own);
    if x == own { a } else { moved }
}

impl Kernel for Delta<'_> {
    #[inline(always)]
    fn run(self) {
        let own = self.own.iter_mut();
        match *self.terms {
            [(x, u)] => {
                for (o, x) in own.zip(x) {
                    let s = f64::from(*o);
                    *o = f32::narrow(moved(s, s, *x, u));
                }
            }
            [(x, u), (y, v)] => {
                for ((o, x), y) in own.zip(x).zip(y) {
                    let s = f64::from(*o);
                    *o = f32::narrow(moved(moved(s, s, *x, u), s, *y, v));
                }
            }
            [(x, u), (y, v), (z, w)] => {
                for (((o, x), y), z) in own.zip(x).zip(y).zip(z) {
                    let s = f64::from(*o);
                    let a = moved(moved(s, s, *x, u), s, *y, v);
                    *o = f32::narrow(moved(a, s, *z, w));
                }
            }
            _ => debug_assert!(false, "{} terms", self.terms.len()),
        }
    }
}

struct Sum<'a> {
    own: &'a mut [f32],
    keep: f64,
    terms: &'a [(&'a [f32], f64)],
}

impl Kernel for Sum<'_> {
    #[inline(always)]
    fn run(self) {
        let (own, k) = (self.own.iter_mut(), self.keep);
        let times = |x: f32, w: f64| f64::from(x) * w;
        match *self.terms {
            [(x, u)] => {
                for (o, x) in own.zip(x) {
                    *o = f32::narrow(times(*o, k) + times(*x, u));
                }
            }
            [(x, u), (y, v)] => {
                for ((o, x), y) in own.zip(x).zip(y) {
                    *o = f32::narrow(times(*o, k) + times(*x, u) + times(*y, v));
                }
            }
            [(x, u), (y, v), (z, w)] => {
                for (((o, x), y), z) in own.zip(x).zip(y).zip(z) {
                    let a = times(*o, k) + times(*x, u) + times(*y, v);
                    *o = f32::narrow(a + times(*z, w));
                }
            }
            _ => debug_assert!(false, "{} terms", self.terms.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle_core::raw::{bytes_of, bytes_of_mut};

    /// Averages of 67 elements, special ones among them, by this kernel and, from places that are not aligned, by the general one.
    fn check(form: Form, keep: f64, weights: &[f64]) {
        let special = [
            0.0,
            -0.0,
            1.0,
            f32::NAN,
            f32::INFINITY,
            -f32::INFINITY,
            1e-42,
            3e38,
        ];
        let x = |seed: usize, i: usize| match (i * 7 + seed) % 11 {
            k if k < special.len() => special[(k + seed * (i / 11)) % special.len()],
            k => ((i * 31 + k + seed * 17) % 101) as f32 / 7.0,
        };
        let n = 67;
        let column = |seed| (0..n).map(|i| x(seed, i)).collect::<Vec<f32>>();
        let apart = |v: &[f32]| [&[0u8][..], bytes_of(v)].concat();
        let others: Vec<Vec<f32>> = (0..weights.len()).map(|k| column(k + 1)).collect();
        let copies: Vec<Vec<u8>> = others.iter().map(|v| apart(v)).collect();
        let term = |bytes, weight: &f64| MixTerm {
            bytes,
            dtype: DType::F32,
            weight: *weight,
        };
        let (mut got, mut want) = (column(0), apart(&column(0)));
        let quick: Vec<_> = others
            .iter()
            .zip(weights)
            .map(|(v, w)| term(bytes_of(&v[..]), w))
            .collect();
        let general: Vec<_> = copies
            .iter()
            .zip(weights)
            .map(|(v, w)| term(&v[1..], w))
            .collect();
        let n_read = weights.iter().filter(|w| **w != 0.0).count();
        let took = mix(
            DType::F32,
            bytes_of_mut(&mut got),
            keep,
            &quick,
            form,
            Codec::None,
        );
        assert_eq!(took, (1..=MOST).contains(&n_read), "{weights:?}");
        if took {
            crate::mix(
                DType::F32,
                &mut want[1..],
                keep,
                &general,
                form,
                Codec::None,
            );
            assert_eq!(
                bytes_of(&got[..]),
                &want[1..],
                "{form:?} {keep} {weights:?}"
            );
        }
    }

    #[test]
    fn the_quick_average_has_the_bits_of_the_general_one() {
        for weights in [
            &[][..],
            &[0.5],
            &[1.0],
            &[0.0],
            &[0.3, 0.3],
            &[0.25, 0.0, 0.5],
            &[0.1, 0.2, 0.3],
            &[-0.5, 1.5, 0.25],
            &[0.2; 4],
        ] {
            check(Form::Delta, 0.0, weights);
            check(Form::Sum, 1.0, weights);
            check(Form::Sum, 0.4, weights);
        }
    }
}
