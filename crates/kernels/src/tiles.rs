//! Bytes as elements, tile by tile: in place where they are aligned, through a copy on the stack where not.

use crate::num::Num;
use gaggle_core::raw::{bytes_of, bytes_of_mut, elements_of, elements_of_mut};

/// Elements per tile: two tiles of the widest type lie well within a first-level cache.
pub(crate) const TILE: usize = 1024;

/// Calls `f` on all elements of `dst`, in pieces.
pub(crate) fn each_mut<D: Num>(dst: &mut [u8], mut f: impl FnMut(&mut [D])) {
    if let Some(d) = elements_of_mut::<D>(dst) {
        f(d);
        return;
    }
    let mut room = [D::ZERO; TILE];
    for part in dst.chunks_mut(TILE * size_of::<D>()) {
        let d = &mut room[..part.len() / size_of::<D>()];
        bytes_of_mut(d).copy_from_slice(part);
        f(d);
        part.copy_from_slice(bytes_of(d));
    }
}

/// Calls `f` on all elements of `src`, in pieces.
pub(crate) fn each<S: Num>(src: &[u8], mut f: impl FnMut(&[S])) {
    if let Some(s) = elements_of::<S>(src) {
        f(s);
        return;
    }
    let mut room = [S::ZERO; TILE];
    for part in src.chunks(TILE * size_of::<S>()) {
        let s = &mut room[..part.len() / size_of::<S>()];
        bytes_of_mut(s).copy_from_slice(part);
        f(s);
    }
}

/// Replaces each element of `dst` by `f` of it and its counterpart in `src`; both have the same number of elements.
pub(crate) fn zip<D: Num, S: Num>(dst: &mut [u8], src: &[u8], f: impl Fn(D, S) -> D) {
    if let (Some(d), Some(s)) = (elements_of_mut::<D>(dst), elements_of::<S>(src)) {
        zip_elements(d, s, f);
        return;
    }
    let dst_parts = dst.chunks_mut(TILE * size_of::<D>());
    let src_parts = src.chunks(TILE * size_of::<S>());
    for (dst, src) in dst_parts.zip(src_parts) {
        // A tile of at most TILE elements: the inner calls see one piece each.
        each_mut::<D>(dst, |d| each::<S>(src, |s| zip_elements(d, s, &f)));
    }
}

/// The loop that the compiler vectorises.
#[inline(always)]
pub(crate) fn zip_elements<D: Copy, S: Copy>(dst: &mut [D], src: &[S], f: impl Fn(D, S) -> D) {
    for (d, s) in dst.iter_mut().zip(src) {
        *d = f(*d, *s);
    }
}
