//! Two operands: what a message does to the elements that it meets, and weights applied in place.

use crate::{
    by_dtype, by_float, elements,
    num::{Num, Wide},
    same_elements, tiles,
};
use gaggle_core::{DType, Reduce, Weight};

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
    match (reduce, incoming_first) {
        (Reduce::Sum | Reduce::Mean, false) => tiles::zip::<T, T>(dst, incoming, |a, b| a.add(b)),
        (Reduce::Sum | Reduce::Mean, true) => tiles::zip::<T, T>(dst, incoming, |a, b| b.add(a)),
        (Reduce::Prod, false) => tiles::zip::<T, T>(dst, incoming, |a, b| a.mul(b)),
        (Reduce::Prod, true) => tiles::zip::<T, T>(dst, incoming, |a, b| b.mul(a)),
        (Reduce::Min, _) => tiles::zip::<T, T>(dst, incoming, |a, b| a.min(b)),
        (Reduce::Max, _) => tiles::zip::<T, T>(dst, incoming, |a, b| a.max(b)),
        (Reduce::Band, _) => tiles::zip::<T, T>(dst, incoming, |a, b| a.band(b)),
        (Reduce::Bor, _) => tiles::zip::<T, T>(dst, incoming, |a, b| a.bor(b)),
        (Reduce::Bxor, _) => tiles::zip::<T, T>(dst, incoming, |a, b| a.bxor(b)),
        (Reduce::User, _) => panic!("combine: a user's reduction is the user's to call"),
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
            let w = <T as Num>::Wide::factor(there.to_f64());
            if incoming_first {
                tiles::zip::<T, T>(dst, incoming, |a, b| T::narrow(b.wide().add(w.mul(a.wide()))));
            } else {
                tiles::zip::<T, T>(dst, incoming, |a, b| T::narrow(w.mul(a.wide()).add(b.wide())));
            }
        }
    });
}

/// Multiplies by the weight. Nothing is done, and nothing read, where it is 0 or 1.
///
/// # Panics
/// On integers, or if the length does not fit.
pub fn weigh(dtype: DType, buf: &mut [u8], w: Weight) {
    elements("weigh", dtype, buf.len());
    by_float!("weigh", dtype, T => {
        if w != Weight::ZERO && w != Weight::ONE {
            let w = <T as Num>::Wide::factor(w.to_f64());
            map::<T>(buf, |x| T::narrow(x.wide().mul(w)));
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
            let w = <T as Num>::Wide::factor(w.to_f64());
            map::<T>(buf, |x| T::narrow(x.wide().div(w)));
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
            let w = <T as Num>::Wide::factor(factor);
            tiles::zip::<T, T>(dst, src, |_, x| T::narrow(x.wide().mul(w)));
        }
    });
}

fn map<T: Num>(buf: &mut [u8], f: impl Fn(T) -> T) {
    tiles::each_mut::<T>(buf, |xs| {
        for x in xs {
            *x = f(*x);
        }
    });
}
