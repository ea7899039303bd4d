//! Bytes as elements, tile by tile: in place where they are aligned, through a copy on the stack where not.
//!
//! The loops are in these functions and what is given to them is one element's arithmetic: a closure with a loop in it would be compiled once, for the baseline, and called from the copies for wider instructions.

use crate::num::Num;
use gaggle_core::raw::{bytes_of, bytes_of_mut, elements_of, elements_of_mut};
use std::ops::Range;

/// Elements per tile: two tiles of the widest type lie well within a first-level cache. A multiple of [`Codec::BLOCK`](gaggle_core::Codec::BLOCK).
pub(crate) const TILE: usize = 1024;

/// As many elements need no whole tile: to zero one costs more than to work on them.
pub(crate) const LITTLE: usize = 16;

/// The tiles of `n` elements, from and to which, without those that are `done`: what lies before them ends where they begin.
pub(crate) fn outside(n: usize, done: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    let cut = |all: Range<usize>| {
        let end = all.end;
        all.step_by(TILE).map(move |lo| (lo, (lo + TILE).min(end)))
    };
    cut(0..done.start).chain(cut(done.end..n))
}

/// Room for a tile that is not aligned. Filled where it is needed: zeroing costs as much as a kernel on a short tile.
type Room<T> = Option<[T; TILE]>;

/// Replaces each element of `dst` by `f` of it.
#[inline(always)]
pub(crate) fn map<D: Num>(dst: &mut [u8], f: impl Fn(D) -> D) {
    let mut room = None;
    for part in dst.chunks_mut(TILE * size_of::<D>()) {
        let aligned = is_aligned::<D>(part);
        for d in tile_mut::<D>(part, &mut room, aligned) {
            *d = f(*d);
        }
        put_back(part, &room, aligned);
    }
}

/// Replaces each element of `dst` by `f` of it and its counterpart in `src`; both have the same number of elements.
#[inline(always)]
pub(crate) fn zip<D: Num, S: Num>(dst: &mut [u8], src: &[u8], f: impl Fn(D, S) -> D) {
    let (mut room, mut from) = (None, None);
    let parts = src.chunks(TILE * size_of::<S>());
    for (part, src) in dst.chunks_mut(TILE * size_of::<D>()).zip(parts) {
        let aligned = is_aligned::<D>(part);
        let s = tile::<S>(src, &mut from);
        for (d, s) in tile_mut::<D>(part, &mut room, aligned).iter_mut().zip(s) {
            *d = f(*d, *s);
        }
        put_back(part, &room, aligned);
    }
}

/// Replaces each of `acc` by `f` of it and its counterpart in `src`.
#[inline(always)]
pub(crate) fn fold_in<W: Copy, S: Num>(acc: &mut [W], src: &[u8], f: impl Fn(W, S) -> W) {
    let mut from = None;
    let parts = src.chunks(TILE * size_of::<S>());
    for (acc, src) in acc.chunks_mut(TILE).zip(parts) {
        for (a, s) in acc.iter_mut().zip(tile::<S>(src, &mut from)) {
            *a = f(*a, *s);
        }
    }
}

/// Replaces each element of `dst` by `f` of its counterpart in `acc`.
#[inline(always)]
pub(crate) fn store<D: Num, W: Copy>(dst: &mut [u8], acc: &[W], f: impl Fn(W) -> D) {
    let mut room = None;
    let parts = acc.chunks(TILE);
    for (part, acc) in dst.chunks_mut(TILE * size_of::<D>()).zip(parts) {
        let aligned = is_aligned::<D>(part);
        for (d, a) in tile_mut::<D>(part, &mut room, aligned).iter_mut().zip(acc) {
            *d = f(*a);
        }
        put_back(part, &room, aligned);
    }
}

#[inline(always)]
fn is_aligned<T: Num>(part: &[u8]) -> bool {
    elements_of::<T>(part).is_some()
}

/// A tile's elements, where they are or copied to `room`.
#[inline(always)]
fn tile<'a, S: Num>(part: &'a [u8], room: &'a mut Room<S>) -> &'a [S] {
    if let Some(s) = elements_of::<S>(part) {
        return s;
    }
    let s = &mut room.get_or_insert([S::ZERO; TILE])[..part.len() / size_of::<S>()];
    bytes_of_mut(s).copy_from_slice(part);
    s
}

/// As `tile`, for writing; a copy is put back by [`put_back`].
#[inline(always)]
fn tile_mut<'a, D: Num>(part: &'a mut [u8], room: &'a mut Room<D>, aligned: bool) -> &'a mut [D] {
    if aligned {
        return elements_of_mut::<D>(part).unwrap_or_default();
    }
    let d = &mut room.get_or_insert([D::ZERO; TILE])[..part.len() / size_of::<D>()];
    bytes_of_mut(d).copy_from_slice(part);
    d
}

#[inline(always)]
fn put_back<D: Num>(part: &mut [u8], room: &Room<D>, aligned: bool) {
    if let Some(copy) = room.as_ref().filter(|_| !aligned) {
        part.copy_from_slice(bytes_of(&copy[..part.len() / size_of::<D>()]));
    }
}
