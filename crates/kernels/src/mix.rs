//! The neighbour average.

use crate::{
    by_float, codec, elements,
    fold::store,
    num::{Num, Wide},
    raw_isa::{Kernel, run},
    tiles::TILE,
};
use gaggle_core::{
    Codec, DType, Form,
    raw::{bytes_of, bytes_of_mut},
};
use std::marker::PhantomData;

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
/// Delta form, for rows that sum to one: own + Σ wᵢ(xᵢ − own′), where own′ is `own` as the codec decodes it, of a message that starts where `own` does; `keep` is not used. A term equal to own′ adds nothing, so equal inputs come back bit for bit.
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
        codec.applies_to(dtype),
        "codec {codec} does not apply to {dtype}"
    );
    by_float!("mix", dtype, T => match form {
        Form::Delta => run(Delta { own, terms, codec, elements: PhantomData::<T> }),
        Form::Sum => run(Sum { own, keep, terms, elements: PhantomData::<T> }),
    });
}

struct Delta<'a, T> {
    own: &'a mut [u8],
    terms: &'a [MixTerm<'a>],
    codec: Codec,
    elements: PhantomData<T>,
}

impl<T: Num> Kernel for Delta<'_, T> {
    #[inline(always)]
    fn run(self) {
        let mut acc = [<T::Wide as Num>::ZERO; TILE];
        let mut sent = acc;
        let mut step = acc;
        for (lo, own) in tiles(T::DTYPE, self.own) {
            let n = own.len() / size_of::<T>();
            let (acc, sent, step) = (&mut acc[..n], &mut sent[..n], &mut step[..n]);
            T::Wide::fold_in(acc, own, T::DTYPE, |_, x| x);
            if self.codec == Codec::None {
                sent.copy_from_slice(acc);
            } else {
                // Codecs apply to f32 alone. A tile holds whole blocks, so that it is coded as the message is.
                let mut coded = [0f32; TILE];
                let coded = &mut coded[..n];
                bytes_of_mut(coded).copy_from_slice(own);
                codec::recode_tile(self.codec, coded);
                T::Wide::fold_in(sent, bytes_of(coded), T::DTYPE, |_, x| x);
            }
            for term in self.terms.iter().filter(|t| t.weight != 0.0) {
                let w = T::Wide::factor(term.weight);
                T::Wide::fold_in(step, part(term, lo, n), term.dtype, |_, x| x);
                for ((a, s), x) in acc.iter_mut().zip(&*sent).zip(&*step) {
                    let moved = a.add(w.mul(x.sub(*s)));
                    // Not only for speed: −0 + w·0 would lose its sign, and ∞ − ∞ is no number.
                    *a = if x == s { *a } else { moved };
                }
            }
            store::<T>(own, acc);
        }
    }
}

struct Sum<'a, T> {
    own: &'a mut [u8],
    keep: f64,
    terms: &'a [MixTerm<'a>],
    elements: PhantomData<T>,
}

impl<T: Num> Kernel for Sum<'_, T> {
    #[inline(always)]
    fn run(self) {
        let mut acc = [<T::Wide as Num>::ZERO; TILE];
        for (lo, own) in tiles(T::DTYPE, self.own) {
            let n = own.len() / size_of::<T>();
            let acc = &mut acc[..n];
            let mut first = true;
            for i in 0..=self.terms.len() {
                let (bytes, dtype, weight) = match i.checked_sub(1).map(|i| &self.terms[i]) {
                    None => (&*own, T::DTYPE, self.keep),
                    Some(term) => (part(term, lo, n), term.dtype, term.weight),
                };
                if weight == 0.0 {
                    continue;
                }
                let w = T::Wide::factor(weight);
                match (first, weight == 1.0) {
                    (true, true) => T::Wide::fold_in(acc, bytes, dtype, |_, x| x),
                    (true, false) => T::Wide::fold_in(acc, bytes, dtype, |_, x| x.mul(w)),
                    (false, true) => T::Wide::fold_in(acc, bytes, dtype, |a, x| a.add(x)),
                    (false, false) => T::Wide::fold_in(acc, bytes, dtype, |a, x| a.add(x.mul(w))),
                }
                first = false;
            }
            if first {
                acc.fill(<T::Wide as Num>::ZERO);
            }
            store::<T>(own, acc);
        }
    }
}

/// Each tile of `own`, with the number of its first element.
#[inline(always)]
fn tiles(dtype: DType, own: &mut [u8]) -> impl Iterator<Item = (usize, &mut [u8])> {
    let parts = own.chunks_mut(TILE * dtype.size()).enumerate();
    parts.map(|(i, part)| (i * TILE, part))
}

/// Elements `lo..lo+n` of a term.
#[inline(always)]
fn part<'a>(term: &MixTerm<'a>, lo: usize, n: usize) -> &'a [u8] {
    &term.bytes[lo * term.dtype.size()..(lo + n) * term.dtype.size()]
}
