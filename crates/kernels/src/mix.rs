//! The neighbour average.

use crate::{
    by_float, elements,
    fold::store,
    num::{Num, Wide},
    tiles::TILE,
};
use gaggle_core::{Codec, DType, Form};

/// A neighbour's value in a [`mix`].
#[derive(Clone, Copy, Debug)]
pub struct MixTerm<'a> {
    /// The elements.
    pub bytes: &'a [u8],
    /// Their type: that of the own value, or another float type.
    pub dtype: DType,
    /// The receiver's weight; a term of weight 0 is never read.
    pub weight: f64,
}

/// `own` = the weighted average of `own` and the terms, in their order, in the wide type (f32 and f64 in f64, 16-bit floats in f32), rounded once.
///
/// Delta form, for rows that sum to one: own + Σ wᵢ(xᵢ − own′), where own′ is `own` as the codec decodes it; `keep` is not used. A term equal to own′ adds nothing, so equal inputs come back bit for bit.
/// Sum form: keep·own + Σ wᵢxᵢ; with a `keep` of 0 `own` is not read, a weight of 1 multiplies nothing.
/// The delta form does not add up the rounding of Σw ≠ 1, from which bias-corrected methods drift.
///
/// # Panics
/// On integers, if the codec does not apply to `dtype`, or if a length does not fit.
pub fn mix(
    dtype: DType,
    own: &mut [u8],
    keep: f64,
    terms: &[MixTerm<'_>],
    form: Form,
    codec: Codec,
) {
    let n = elements("mix", dtype, own.len());
    for term in terms {
        let m = elements("mix", term.dtype, term.bytes.len());
        assert!(m == n, "mix: a term of {m} elements for {n}");
    }
    assert!(
        codec.wire_type(dtype).is_some(),
        "codec {codec} does not apply to {dtype}"
    );
    by_float!("mix", dtype, T => match form {
        Form::Delta => delta::<T>(own, terms, codec),
        Form::Sum => sum::<T>(own, keep, terms),
    });
}

fn delta<T: Num>(own: &mut [u8], terms: &[MixTerm<'_>], codec: Codec) {
    let mut acc = [<T::Wide as Num>::ZERO; TILE];
    let mut sent = acc;
    let mut step = acc;
    each_tile(T::DTYPE, own, |lo, own| {
        let n = own.len() / size_of::<T>();
        let (acc, sent, step) = (&mut acc[..n], &mut sent[..n], &mut step[..n]);
        T::Wide::fold_in(acc, own, T::DTYPE, |_, x| x);
        sent.copy_from_slice(acc);
        if codec == Codec::Bf16 {
            // The codec applies to f32 alone, whose wide form is exact in both directions.
            T::Wide::recode(sent);
        }
        for term in terms.iter().filter(|t| t.weight != 0.0) {
            let w = T::Wide::factor(term.weight);
            T::Wide::fold_in(step, part(term, lo, n), term.dtype, |_, x| x);
            for ((a, s), x) in acc.iter_mut().zip(&*sent).zip(&*step) {
                let moved = a.add(w.mul(x.sub(*s)));
                // Not only for speed: −0 + w·0 would lose its sign, and ∞ − ∞ is no number.
                *a = if x == s { *a } else { moved };
            }
        }
        store::<T>(own, acc);
    });
}

fn sum<T: Num>(own: &mut [u8], keep: f64, terms: &[MixTerm<'_>]) {
    let mut acc = [<T::Wide as Num>::ZERO; TILE];
    each_tile(T::DTYPE, own, |lo, own| {
        let n = own.len() / size_of::<T>();
        let acc = &mut acc[..n];
        let mut first = true;
        let mut add = |bytes: &[u8], dtype: DType, weight: f64| {
            if weight == 0.0 {
                return;
            }
            let w = T::Wide::factor(weight);
            match (first, weight == 1.0) {
                (true, true) => T::Wide::fold_in(acc, bytes, dtype, |_, x| x),
                (true, false) => T::Wide::fold_in(acc, bytes, dtype, |_, x| x.mul(w)),
                (false, true) => T::Wide::fold_in(acc, bytes, dtype, |a, x| a.add(x)),
                (false, false) => T::Wide::fold_in(acc, bytes, dtype, |a, x| a.add(x.mul(w))),
            }
            first = false;
        };
        add(own, T::DTYPE, keep);
        for term in terms {
            add(part(term, lo, n), term.dtype, term.weight);
        }
        if first {
            acc.fill(<T::Wide as Num>::ZERO);
        }
        store::<T>(own, acc);
    });
}

/// Calls `f` with each tile of `own` and the number of its first element.
fn each_tile(dtype: DType, own: &mut [u8], mut f: impl FnMut(usize, &mut [u8])) {
    for (i, part) in own.chunks_mut(TILE * dtype.size()).enumerate() {
        f(i * TILE, part);
    }
}

/// Elements `lo..lo+n` of a term.
fn part<'a>(term: &MixTerm<'a>, lo: usize, n: usize) -> &'a [u8] {
    &term.bytes[lo * term.dtype.size()..(lo + n) * term.dtype.size()]
}
