//! Any number of operands, folded in the wide type in one pass and rounded once.

use crate::{
    by_dtype, elements, exact,
    few::{self, Line},
    num::{Num, Wide},
    raw_isa::{Kernel, run},
    raw_lines,
    tiles::{self, LITTLE, TILE},
    windows::{Out, Room, fetch},
};
use gaggle_core::{DType, Reduce, Stores, Weight, Window, WindowMut};
use std::{marker::PhantomData, ops::Range};

/// Where an operand's elements are.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// In the destination itself.
    Dst,
    /// Elsewhere, in the fold's element type or, for floats, in another one.
    Bytes {
        /// The elements.
        bytes: &'a [u8],
        /// Their type.
        dtype: DType,
    },
    /// Elsewhere likewise, in memory that others may write meanwhile.
    Window {
        /// The elements.
        window: Window<'a>,
        /// Their type.
        dtype: DType,
    },
}

impl Source<'_> {
    /// Its length in bytes and its type; `None` for the destination.
    pub(crate) fn extent(&self) -> Option<(usize, DType)> {
        match *self {
            Source::Dst => None,
            Source::Bytes { bytes, dtype } => Some((bytes.len(), dtype)),
            Source::Window { window, dtype } => Some((window.len(), dtype)),
        }
    }

    /// The type of its elements, in a fold into `dst`.
    pub(crate) fn dtype(&self, dst: DType) -> DType {
        self.extent().map_or(dst, |(_, dtype)| dtype)
    }
}

/// One operand of a [`fold`].
#[derive(Clone, Copy, Debug)]
pub struct Term<'a> {
    /// Its elements.
    pub source: Source<'a>,
    /// Its weight, for means; `None` is no weight at all.
    pub weight: Option<Weight>,
}

/// What else a fold may be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// The correctly rounded sum or mean, whatever the order of the terms; SUM and MEAN of floats only.
    pub exact: bool,
    /// What a mean is divided by instead of Σw.
    pub divisor: Option<Weight>,
}

/// `dst` = the reduction of all terms, folded in their order: f32 and f64 in f64, 16-bit floats in f32, integers wrapping; rounded once.
///
/// With weights (MEAN only; a term without one counts as 1) it is Σ wᵢxᵢ / Σ wᵢ; terms of weight 0 are never read, and a single remaining term is taken as it is.
/// MEAN without any weight is folded as a sum. Where there is no term, or Σ wᵢ = 0, `dst` stays as it is.
///
/// # Panics
/// If a term's length does not fit `dst`, on weights with another reduction than MEAN or on integers, and for terms of a type that cannot be folded into `dtype`.
pub fn fold(dtype: DType, reduce: Reduce, dst: &mut [u8], terms: &[Term<'_>]) {
    fold_with(dtype, reduce, dst, terms, How::default());
}

/// As [`fold`], in another way.
///
/// With a divisor a MEAN is Σ wᵢxᵢ / divisor, also where one term alone contributes or none has a weight.
/// Exact: the sum or quotient is computed as one number and rounded once to nearest even, so that neither the order nor the sizes of the terms matter; it overflows only where the true result does.
///
/// # Panics
/// As `fold`; where [`How::exact`] is asked of anything but a sum or mean of floats; where a divisor is given with another reduction than MEAN, or is 0; and where an exact mean's Σw is 2³² or more.
pub fn fold_with(dtype: DType, reduce: Reduce, dst: &mut [u8], terms: &[Term<'_>], how: How) {
    let n = elements("fold", dtype, dst.len());
    fold_into(dtype, reduce, Out::Bytes(dst), n, terms, how);
}

/// `dst` = the sum of a few terms in their order, of which number `own` is what `dst` holds and the others begin the lines; with the bits of [`fold`], in a fraction of its time.
///
/// `false`, and nothing has happened: `dst` is longer than a line, or not aligned as its elements are, or there is no such term.
#[inline]
pub fn sum_lines(dtype: DType, dst: &mut [u8], own: usize, others: &[Line]) -> bool {
    by_dtype!(dtype, T => few::sum_lines::<T>(dst, own, others))
}

/// As [`fold_with`], into all outputs, which are places of memory that others may read and write meanwhile; [`Source::Dst`] is the first of them.
///
/// An output may lie exactly where an operand does; one that overlaps it otherwise, or another output, gets old and new elements mixed.
/// Every element of every operand is read once, and every element of every output written once.
/// Where there is no output, nothing happens.
///
/// # Panics
/// As `fold_with`; and if the outputs differ in length.
pub fn fold_windows(
    dtype: DType,
    reduce: Reduce,
    outputs: &[WindowMut<'_>],
    terms: &[Term<'_>],
    how: How,
    stores: Stores,
) {
    let Some(first) = outputs.first() else {
        return;
    };
    let n = elements("fold", dtype, first.len());
    let unequal = outputs.iter().find(|o| o.len() != first.len());
    if let Some(other) = unequal {
        panic!("fold: outputs of {} and {} bytes", first.len(), other.len());
    }
    let out = Out::Windows { outputs, stores };
    fold_into(dtype, reduce, out, n, terms, how);
}

/// `n` elements.
fn fold_into(
    dtype: DType,
    reduce: Reduce,
    mut out: Out<'_>,
    n: usize,
    terms: &[Term<'_>],
    how: How,
) {
    for (bytes, dtype) in terms.iter().filter_map(|t| t.source.extent()) {
        let m = elements("fold", dtype, bytes);
        assert!(m == n, "fold: a term of {m} elements for {n}");
    }
    let weights = Weights::of(terms);
    if weights.is_some() || how.divisor.is_some() {
        assert!(
            reduce == Reduce::Mean && dtype.is_float(),
            "fold: weights with {reduce} of {dtype}"
        );
    }
    assert!(
        how.divisor != Some(Weight::ZERO),
        "fold: a mean divided by 0"
    );
    if n == 0 || terms.is_empty() || weights.as_ref().is_some_and(|w| w.n_read == 0) {
        return;
    }
    if how.exact {
        assert!(
            matches!(reduce, Reduce::Sum | Reduce::Mean) && dtype.is_float(),
            "fold: exact {reduce} of {dtype}"
        );
        let sum = weights.map(|w| w.sum);
        exact::fold(dtype, (out, n), terms, how.divisor, sum);
        return;
    }
    // One term alone is its own mean, whatever its weight.
    let alone = how.divisor.is_none() && weights.as_ref().is_none_or(|w| w.n_read == 1);
    // Dividing by exactly 1 changes nothing.
    let divisor = match (&weights, how.divisor) {
        (_, Some(by)) => (by != Weight::ONE).then(|| by.to_f64()),
        (Some(w), None) if !alone && w.sum != u128::from(Weight::ONE.bits()) => Some(w.to_f64()),
        _ => None,
    };
    let what = What {
        dtype,
        reduce,
        divisor,
        alone,
    };
    if let Out::Bytes(dst) = &mut out
        && by_dtype!(dtype, T => few::fold::<T>(&what, dst, terms))
    {
        return;
    }
    let done = match &out {
        Out::Bytes(_) => 0..0,
        Out::Windows { outputs, stores } => raw_lines::fold(&what, outputs, terms, *stores),
    };
    if done == (0..n) {
        return;
    }
    by_dtype!(dtype, T => run(Fold { what, out, n, done, terms, elements: PhantomData::<T> }));
}

/// What a fold is, besides its places.
pub(crate) struct What {
    pub(crate) dtype: DType,
    pub(crate) reduce: Reduce,
    /// What the sum is divided by.
    pub(crate) divisor: Option<f64>,
    /// The weights of the terms do not count.
    pub(crate) alone: bool,
}

/// What the weights of all terms come to.
struct Weights {
    /// Terms of a weight other than 0.
    n_read: usize,
    /// Σw, exact in 32.32 fixed point.
    sum: u128,
}

impl Weights {
    /// `None` where no term has one.
    fn of(terms: &[Term<'_>]) -> Option<Weights> {
        terms.iter().any(|t| t.weight.is_some()).then(|| Weights {
            n_read: terms
                .iter()
                .filter(|t| weight_of(t) != Weight::ZERO)
                .count(),
            sum: terms.iter().map(|t| u128::from(weight_of(t).bits())).sum(),
        })
    }

    fn to_f64(&self) -> f64 {
        self.sum as f64 / 4_294_967_296.0
    }
}

pub(crate) fn weight_of(term: &Term<'_>) -> Weight {
    term.weight.unwrap_or(Weight::ONE)
}

struct Fold<'a, T> {
    what: What,
    out: Out<'a>,
    n: usize,
    /// Elements that are there already.
    done: Range<usize>,
    terms: &'a [Term<'a>],
    elements: PhantomData<T>,
}

impl<T: Num> Kernel for Fold<'_, T> {
    #[inline(always)]
    fn run(self) {
        let (mut few, mut many);
        let sums: &mut [T::Wide] = if self.n <= LITTLE {
            few = [<T::Wide as Num>::ZERO; LITTLE];
            &mut few
        } else {
            many = [<T::Wide as Num>::ZERO; TILE];
            &mut many
        };
        let mut room = Room::EMPTY;
        let size = size_of::<T>();
        let What { alone, reduce, .. } = self.what;
        let divisor = self.what.divisor.map(T::Wide::factor);
        let mut out = self.out;
        for (lo, hi) in tiles::outside(self.n, self.done) {
            let acc = &mut sums[..hi - lo];
            let mut first = true;
            for term in self.terms {
                let w = weight_of(term);
                if w == Weight::ZERO {
                    continue;
                }
                let (part, dtype) = fetch(term.source, &out, T::DTYPE, lo..hi, &mut room);
                let factor = (!alone && w != Weight::ONE).then(|| T::Wide::factor(w.to_f64()));
                let step = Step {
                    reduce,
                    first,
                    factor,
                };
                accumulate(acc, part, dtype, step);
                first = false;
            }
            if let Some(d) = divisor {
                for a in acc.iter_mut() {
                    *a = a.div(d);
                }
            }
            let (at, end) = (lo * size, hi * size);
            match &mut out {
                Out::Bytes(dst) => store::<T>(&mut dst[at..end], acc),
                Out::Windows { outputs, stores } => {
                    let result = room.bytes(end - at);
                    store::<T>(result, acc);
                    for to in outputs.iter() {
                        to.write(at, result, *stores);
                    }
                }
            }
        }
    }
}

/// How one term meets the accumulators.
struct Step<W> {
    reduce: Reduce,
    /// The first term replaces what is there.
    first: bool,
    /// Multiplies the term.
    factor: Option<W>,
}

#[inline(always)]
fn accumulate<W: Wide>(acc: &mut [W], part: &[u8], dtype: DType, step: Step<W>) {
    match (step.first, step.factor, step.reduce) {
        (true, None, _) => W::fold_in(acc, part, dtype, |_, x| x),
        (true, Some(w), _) => W::fold_in(acc, part, dtype, |_, x| x.mul(w)),
        (false, Some(w), _) => W::fold_in(acc, part, dtype, |a, x| a.add(x.mul(w))),
        (false, None, Reduce::Sum | Reduce::Mean) => W::fold_in(acc, part, dtype, |a, x| a.add(x)),
        (false, None, Reduce::Prod) => W::fold_in(acc, part, dtype, |a, x| a.mul(x)),
        (false, None, Reduce::Min) => W::fold_in(acc, part, dtype, |a, x| a.min(x)),
        (false, None, Reduce::Max) => W::fold_in(acc, part, dtype, |a, x| a.max(x)),
        (false, None, Reduce::Band) => W::fold_in(acc, part, dtype, |a, x| a.band(x)),
        (false, None, Reduce::Bor) => W::fold_in(acc, part, dtype, |a, x| a.bor(x)),
        (false, None, Reduce::Bxor) => W::fold_in(acc, part, dtype, |a, x| a.bxor(x)),
        (false, None, Reduce::User) => panic!("fold: a user's reduction is the user's to call"),
    }
}

/// Rounds the accumulators into their elements.
#[inline(always)]
pub(crate) fn store<T: Num>(dst: &mut [u8], acc: &[T::Wide]) {
    tiles::store::<T, T::Wide>(dst, acc, T::narrow);
}
