//! Two operands: what a message does to the elements that it meets, and weights applied in place.

use crate::{
    by_dtype, by_float, elements,
    num::{Num, Wide},
    raw_isa::{Kernel, run},
    same_elements, tiles,
};
use gaggle_core::{DType, Reduce, Weight};
use std::marker::PhantomData;

/// `dst` = `dst ∘ incoming`, or `incoming ∘ dst` where `incoming_first`; a mean is combined as a sum.
///
/// # Panics
/// If the lengths differ or are no whole number of elements.
pub fn combine(
    dtype: DType,
    reduce: Reduce,
    dst: &mut [u8],
    incoming: &[u8],
    incoming_first: bool,
) {
    same_elements("combine", (dtype, dst.len()), (dtype, incoming.len()));
    by_dtype!(dtype, T => combine_as::<T>(reduce, dst, incoming, incoming_first));
}

fn combine_as<T: Num>(reduce: Reduce, dst: &mut [u8], incoming: &[u8], incoming_first: bool) {
    run(Combine {
        reduce,
        dst,
        incoming,
        incoming_first,
        elements: PhantomData::<T>,
    });
}

struct Combine<'a, T> {
    reduce: Reduce,
    dst: &'a mut [u8],
    incoming: &'a [u8],
    incoming_first: bool,
    elements: PhantomData<T>,
}

impl<T: Num> Kernel for Combine<'_, T> {
    #[inline(always)]
    fn run(self) {
        let (d, s) = (self.dst, self.incoming);
        match (self.reduce, self.incoming_first) {
            (Reduce::Sum | Reduce::Mean, false) => tiles::zip::<T, T>(d, s, |a, b| a.add(b)),
            (Reduce::Sum | Reduce::Mean, true) => tiles::zip::<T, T>(d, s, |a, b| b.add(a)),
            (Reduce::Prod, false) => tiles::zip::<T, T>(d, s, |a, b| a.mul(b)),
            (Reduce::Prod, true) => tiles::zip::<T, T>(d, s, |a, b| b.mul(a)),
            (Reduce::Min, _) => tiles::zip::<T, T>(d, s, |a, b| a.min(b)),
            (Reduce::Max, _) => tiles::zip::<T, T>(d, s, |a, b| a.max(b)),
            (Reduce::Band, _) => tiles::zip::<T, T>(d, s, |a, b| a.band(b)),
            (Reduce::Bor, _) => tiles::zip::<T, T>(d, s, |a, b| a.bor(b)),
            (Reduce::Bxor, _) => tiles::zip::<T, T>(d, s, |a, b| a.bxor(b)),
            (Reduce::User, _) => panic!("combine: a user's reduction is the user's to call"),
        }
    }
}

/// `dst` = `incoming + there·dst`, for an incoming value that is already multiplied by its own weight.
///
/// `there` is the weight of what is in `dst` and multiplies it in the wide type: with [`Weight::ONE`] nothing is multiplied, with [`Weight::ZERO`] `dst` is not read and becomes `incoming`.
/// `incoming_first` is the order of the two operands of the sum.
///
/// # Panics
/// On integers, or if the lengths do not fit.
pub fn combine_weighted(
    dtype: DType,
    dst: &mut [u8],
    incoming: &[u8],
    incoming_first: bool,
    there: Weight,
) {
    same_elements(
        "combine_weighted",
        (dtype, dst.len()),
        (dtype, incoming.len()),
    );
    by_float!("combine_weighted", dtype, T => {
        if there == Weight::ZERO {
            dst.copy_from_slice(incoming);
        } else if there == Weight::ONE {
            combine_as::<T>(Reduce::Sum, dst, incoming, incoming_first);
        } else {
            run(CombineWeighted {
                dst,
                incoming,
                incoming_first,
                there: there.to_f64(),
                elements: PhantomData::<T>,
            });
        }
    });
}

struct CombineWeighted<'a, T> {
    dst: &'a mut [u8],
    incoming: &'a [u8],
    incoming_first: bool,
    there: f64,
    elements: PhantomData<T>,
}

impl<T: Num> Kernel for CombineWeighted<'_, T> {
    #[inline(always)]
    fn run(self) {
        let w = T::Wide::factor(self.there);
        let (d, s) = (self.dst, self.incoming);
        if self.incoming_first {
            tiles::zip::<T, T>(d, s, |a, b| T::narrow(b.wide().add(w.mul(a.wide()))));
        } else {
            tiles::zip::<T, T>(d, s, |a, b| T::narrow(w.mul(a.wide()).add(b.wide())));
        }
    }
}

/// Multiplies by the weight. Nothing is done, and nothing read, where it is 0 or 1.
///
/// # Panics
/// On integers, or if the length does not fit.
pub fn weigh(dtype: DType, buf: &mut [u8], w: Weight) {
    elements("weigh", dtype, buf.len());
    by_float!("weigh", dtype, T => {
        if w != Weight::ZERO && w != Weight::ONE {
            run(ScaleBy { buf, by: w.to_f64(), divide: false, elements: PhantomData::<T> });
        }
    });
}

/// Divides by the weight. Nothing is done where it is 0 or 1.
///
/// # Panics
/// On integers, or if the length does not fit.
pub fn divide(dtype: DType, buf: &mut [u8], w: Weight) {
    elements("divide", dtype, buf.len());
    by_float!("divide", dtype, T => {
        if w != Weight::ZERO && w != Weight::ONE {
            run(ScaleBy { buf, by: w.to_f64(), divide: true, elements: PhantomData::<T> });
        }
    });
}

/// `dst` = `factor·src`, multiplied in the wide type; a factor of 1 copies the bits.
///
/// # Panics
/// On integers, or if the lengths do not fit.
pub fn scale(dtype: DType, dst: &mut [u8], src: &[u8], factor: f64) {
    same_elements("scale", (dtype, dst.len()), (dtype, src.len()));
    by_float!("scale", dtype, T => {
        if factor == 1.0 {
            dst.copy_from_slice(src);
        } else {
            run(Scaled { dst, src, factor, elements: PhantomData::<T> });
        }
    });
}

/// In place, by a weight.
struct ScaleBy<'a, T> {
    buf: &'a mut [u8],
    by: f64,
    divide: bool,
    elements: PhantomData<T>,
}

impl<T: Num> Kernel for ScaleBy<'_, T> {
    #[inline(always)]
    fn run(self) {
        let w = T::Wide::factor(self.by);
        if self.divide {
            tiles::map::<T>(self.buf, |x| T::narrow(x.wide().div(w)));
        } else {
            tiles::map::<T>(self.buf, |x| T::narrow(x.wide().mul(w)));
        }
    }
}

/// Somewhere else, by any factor.
struct Scaled<'a, T> {
    dst: &'a mut [u8],
    src: &'a [u8],
    factor: f64,
    elements: PhantomData<T>,
}

impl<T: Num> Kernel for Scaled<'_, T> {
    #[inline(always)]
    fn run(self) {
        let w = T::Wide::factor(self.factor);
        tiles::zip::<T, T>(self.dst, self.src, |_, x| T::narrow(x.wide().mul(w)));
    }
}
