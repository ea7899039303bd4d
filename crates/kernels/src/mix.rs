//! The neighbour average.

use crate::{
    by_float, codec, elements,
    fold::{Source, store},
    mix_quick,
    num::{Num, Wide},
    raw_isa::{Kernel, run},
    raw_lines,
    tiles::{LITTLE, TILE, outside},
    windows::Room,
};
use gaggle_core::{
    Codec, DType, Form, Stores, Window, WindowMut,
    raw::{bytes_of, bytes_of_mut},
};
use std::{marker::PhantomData, ops::Range};

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

/// A neighbour's value in a [`mix_windows`].
#[derive(Clone, Copy, Debug)]
pub struct MixWindow<'a> {
    /// The elements, where others may write meanwhile.
    pub window: Window<'a>,
    /// Their type, as in a [`MixTerm`].
    pub dtype: DType,
    /// The receiver's weight, as in a `MixTerm`.
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
    let fits = |t: &MixTerm<'_>| t.bytes.len() == own.len();
    if terms.iter().all(fits) && mix_quick::mix(dtype, own, keep, terms, form, codec) {
        return;
    }
    mix_into(dtype, Own::Bytes(own), n, keep, &terms, (form, codec));
}

/// As [`mix`], of memory that others may read and write meanwhile: the average of `own` and the terms goes to `to`, which may lie exactly where `own` or a term does.
///
/// # Panics
/// As `mix`.
pub fn mix_windows(
    dtype: DType,
    to: WindowMut<'_>,
    own: (Window<'_>, f64),
    terms: &[MixWindow<'_>],
    (form, codec): (Form, Codec),
    stores: Stores,
) {
    let (own, keep) = own;
    let n = elements("mix", dtype, to.len());
    let m = elements("mix", dtype, own.len());
    assert!(m == n, "mix: an own value of {m} elements for {n}");
    let own = Own::Windows { own, to, stores };
    mix_into(dtype, own, n, keep, &terms, (form, codec));
}

fn mix_into(
    dtype: DType,
    own: Own<'_>,
    n: usize,
    keep: f64,
    terms: &dyn Terms,
    (form, codec): (Form, Codec),
) {
    for i in 0..terms.len() {
        if let Some((bytes, dtype)) = terms.at(i).0.extent() {
            let m = elements("mix", dtype, bytes);
            assert!(m == n, "mix: a term of {m} elements for {n}");
        }
    }
    assert!(
        codec.applies_to(dtype),
        "codec {codec} does not apply to {dtype}"
    );
    let done = match &own {
        Own::Windows { own, to, stores } if codec == Codec::None => {
            raw_lines::mix(dtype, (*own, keep), *to, terms, form, *stores)
        }
        _ => 0..0,
    };
    by_float!("mix", dtype, T => match form {
        Form::Delta => run(Delta { own, n, done, terms, codec, elements: PhantomData::<T> }),
        Form::Sum => run(Sum { own, n, done, keep, terms, elements: PhantomData::<T> }),
    });
}

/// The own value, and where the average goes.
enum Own<'a> {
    /// The same place.
    Bytes(&'a mut [u8]),
    /// Places that others may read and write meanwhile.
    Windows {
        own: Window<'a>,
        to: WindowMut<'a>,
        stores: Stores,
    },
}

impl Own<'_> {
    /// Some of its bytes, to be replaced by the average.
    #[inline(always)]
    fn tile<'b>(&'b mut self, lo: usize, hi: usize, room: &'b mut Room) -> &'b mut [u8] {
        match self {
            Own::Bytes(own) => &mut own[lo..hi],
            Own::Windows { own, .. } => {
                let tile = room.bytes(hi - lo);
                own.read(lo, tile);
                tile
            }
        }
    }

    /// Those bytes have been replaced.
    #[inline(always)]
    fn put(&mut self, lo: usize, hi: usize, room: &mut Room) {
        if let Own::Windows { to, stores, .. } = self {
            to.write(lo, room.bytes(hi - lo), *stores);
        }
    }
}

/// Terms of either sort: known to the kernels by this alone, so that there is one copy of each.
pub(crate) trait Terms {
    fn len(&self) -> usize;
    /// Where a term's elements are, and its weight.
    fn at(&self, i: usize) -> (Source<'_>, f64);
}

impl Terms for &[MixTerm<'_>] {
    fn len(&self) -> usize {
        <[_]>::len(self)
    }
    fn at(&self, i: usize) -> (Source<'_>, f64) {
        let MixTerm {
            bytes,
            dtype,
            weight,
        } = self[i];
        (Source::Bytes { bytes, dtype }, weight)
    }
}

impl Terms for &[MixWindow<'_>] {
    fn len(&self) -> usize {
        <[_]>::len(self)
    }
    fn at(&self, i: usize) -> (Source<'_>, f64) {
        let MixWindow {
            window,
            dtype,
            weight,
        } = self[i];
        (Source::Window { window, dtype }, weight)
    }
}

struct Delta<'a, T> {
    own: Own<'a>,
    n: usize,
    /// Elements whose average is there already.
    done: Range<usize>,
    terms: &'a dyn Terms,
    codec: Codec,
    elements: PhantomData<T>,
}

impl<T: Num> Kernel for Delta<'_, T> {
    #[inline(always)]
    fn run(mut self) {
        let (mut few, mut many);
        let [acc, sent, step]: [&mut [T::Wide]; 3] = if self.n <= LITTLE {
            few = [[<T::Wide as Num>::ZERO; LITTLE]; 3];
            few.each_mut().map(|tile| &mut tile[..])
        } else {
            many = [[<T::Wide as Num>::ZERO; TILE]; 3];
            many.each_mut().map(|tile| &mut tile[..])
        };
        let (mut room, mut other) = (Room::EMPTY, Room::EMPTY);
        let size = size_of::<T>();
        for (lo, hi) in outside(self.n, self.done.clone()) {
            let n = hi - lo;
            let own = self.own.tile(lo * size, (lo + n) * size, &mut room);
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
            for i in 0..self.terms.len() {
                let (source, weight) = self.terms.at(i);
                if weight == 0.0 {
                    continue;
                }
                let w = T::Wide::factor(weight);
                let (bytes, dtype) = source.tile(lo..lo + n, &mut other);
                T::Wide::fold_in(step, bytes, dtype, |_, x| x);
                for ((a, s), x) in acc.iter_mut().zip(&*sent).zip(&*step) {
                    let moved = a.add(w.mul(x.sub(*s)));
                    // Not only for speed: −0 + w·0 would lose its sign, and ∞ − ∞ is no number.
                    *a = if x == s { *a } else { moved };
                }
            }
            store::<T>(own, acc);
            self.own.put(lo * size, (lo + n) * size, &mut room);
        }
    }
}

struct Sum<'a, T> {
    own: Own<'a>,
    n: usize,
    /// Elements whose average is there already.
    done: Range<usize>,
    keep: f64,
    terms: &'a dyn Terms,
    elements: PhantomData<T>,
}

impl<T: Num> Kernel for Sum<'_, T> {
    #[inline(always)]
    fn run(mut self) {
        let (mut few, mut many);
        let acc: &mut [T::Wide] = if self.n <= LITTLE {
            few = [<T::Wide as Num>::ZERO; LITTLE];
            &mut few
        } else {
            many = [<T::Wide as Num>::ZERO; TILE];
            &mut many
        };
        let (mut room, mut other) = (Room::EMPTY, Room::EMPTY);
        let size = size_of::<T>();
        for (lo, hi) in outside(self.n, self.done.clone()) {
            let n = hi - lo;
            let own = self.own.tile(lo * size, (lo + n) * size, &mut room);
            let acc = &mut acc[..n];
            let mut first = true;
            for i in 0..=self.terms.len() {
                let term = i.checked_sub(1).map(|i| self.terms.at(i));
                let weight = term.map_or(self.keep, |(_, weight)| weight);
                // What has weight 0 is not read.
                if weight == 0.0 {
                    continue;
                }
                let (bytes, dtype) = match term {
                    None => (&*own, T::DTYPE),
                    Some((source, _)) => source.tile(lo..lo + n, &mut other),
                };
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
            self.own.put(lo * size, (lo + n) * size, &mut room);
        }
    }
}
