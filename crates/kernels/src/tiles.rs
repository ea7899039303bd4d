//! Bytes as elements, tile by tile: in place where they are aligned, through a copy on the stack where not.

use crate::num::Num;
use gaggle_core::raw::{bytes_of, bytes_of_mut, elements_of, elements_of_mut};

/// Elements per tile: two tiles of the widest type lie well within a first-level cache. A multiple of [`Codec::BLOCK`](gaggle_core::Codec::BLOCK).
pub(crate) const TILE: usize = 1024;

/// Calls `f` on all elements of `dst`, tile by tile.
#[inline(always)]
pub(crate) fn each_mut<D: Num>(dst: &mut [u8], mut f: impl FnMut(&mut [D])) {
    // Filled where it is needed: zeroing costs as much as a kernel on a short tile. One loop for both cases, so that each kernel is compiled once.
    let mut room: Option<[D; TILE]> = None;
    for part in dst.chunks_mut(TILE * size_of::<D>()) {
        let n = part.len() / size_of::<D>();
        let aligned = elements_of::<D>(part).is_some();
        if !aligned {
            let copy = &mut room.get_or_insert([D::ZERO; TILE])[..n];
            bytes_of_mut(copy).copy_from_slice(part);
        }
        let d = match &mut room {
            Some(copy) if !aligned => &mut copy[..n],
            _ => elements_of_mut::<D>(part).unwrap_or_default(),
        };
        f(d);
        if let Some(copy) = room.as_ref().filter(|_| !aligned) {
            part.copy_from_slice(bytes_of(&copy[..n]));
        }
    }
}

/// Calls `f` on all elements of `src`, tile by tile.
#[inline(always)]
pub(crate) fn each<S: Num>(src: &[u8], mut f: impl FnMut(&[S])) {
    let mut room: Option<[S; TILE]> = None;
    for part in src.chunks(TILE * size_of::<S>()) {
        f(tile(part, &mut room));
    }
}

/// Replaces each element of `dst` by `f` of it and its counterpart in `src`; both have the same number of elements.
#[inline(always)]
pub(crate) fn zip<D: Num, S: Num>(dst: &mut [u8], src: &[u8], f: impl Fn(D, S) -> D) {
    let mut room: Option<[S; TILE]> = None;
    let mut parts = src.chunks(TILE * size_of::<S>());
    each_mut::<D>(dst, |d| {
        if let Some(part) = parts.next() {
            zip_elements(d, tile(part, &mut room), &f);
        }
    });
}

/// A tile's elements, where they are or copied to `room`.
#[inline(always)]
fn tile<'a, S: Num>(part: &'a [u8], room: &'a mut Option<[S; TILE]>) -> &'a [S] {
    if let Some(s) = elements_of::<S>(part) {
        return s;
    }
    let s = &mut room.get_or_insert([S::ZERO; TILE])[..part.len() / size_of::<S>()];
    bytes_of_mut(s).copy_from_slice(part);
    s
}

/// The loop that the compiler vectorises.
#[inline(always)]
pub(crate) fn zip_elements<D: Copy, S: Copy>(dst: &mut [D], src: &[S], f: impl Fn(D, S) -> D) {
    for (d, s) in dst.iter_mut().zip(src) {
        *d = f(*d, *s);
    }
}
