//! Operands and results in memory that others may write meanwhile: copied tile by tile to and from the stack.

use crate::{fold::Source, tiles::TILE};
use gaggle_core::{DType, Stores, Window, WindowMut, raw::bytes_of_mut};
use std::ops::Range;

/// Where results go.
pub(crate) enum Out<'a> {
    /// To memory of the caller's.
    Bytes(&'a mut [u8]),
    /// To places that others may read and write meanwhile: of equal length, at least one.
    Windows {
        outputs: &'a [WindowMut<'a>],
        stores: Stores,
    },
}

/// Room for a tile of any type. Filled where it is needed: zeroing costs as much as a kernel on a short tile.
pub(crate) struct Room(Option<[u64; TILE]>);

impl Room {
    pub(crate) const EMPTY: Room = Room(None);

    /// Its first bytes, at most those of a tile of the widest type.
    #[inline(always)]
    pub(crate) fn bytes(&mut self, n: usize) -> &mut [u8] {
        &mut bytes_of_mut(self.0.get_or_insert([0; TILE]))[..n]
    }
}

impl<'a> Source<'a> {
    /// Some of its elements, at most a tile, where they are or copied to `room`, with their type; none of the destination.
    #[inline(always)]
    pub(crate) fn tile<'b>(self, elements: Range<usize>, room: &'b mut Room) -> (&'b [u8], DType)
    where
        'a: 'b,
    {
        let place = |dtype: DType| elements.start * dtype.size()..elements.end * dtype.size();
        match self {
            Source::Dst => (&[], DType::U8),
            Source::Bytes { bytes, dtype } => (&bytes[place(dtype)], dtype),
            Source::Window { window, dtype } => (copied(window, place(dtype), room), dtype),
        }
    }
}

#[inline(always)]
fn copied<'b>(window: Window<'_>, bytes: Range<usize>, room: &'b mut Room) -> &'b [u8] {
    let to = room.bytes(bytes.end - bytes.start);
    window.read(bytes.start, to);
    to
}

/// Some elements of an operand, as [`Source::tile`], with the destination among what it may be: its elements are of type `dtype`.
#[inline(always)]
pub(crate) fn fetch<'b>(
    source: Source<'b>,
    out: &'b Out<'_>,
    dtype: DType,
    elements: Range<usize>,
    room: &'b mut Room,
) -> (&'b [u8], DType) {
    let place = elements.start * dtype.size()..elements.end * dtype.size();
    match (source, out) {
        (Source::Dst, Out::Bytes(dst)) => (&dst[place], dtype),
        (Source::Dst, Out::Windows { outputs, .. }) => {
            (copied(outputs[0].into(), place, room), dtype)
        }
        _ => source.tile(elements, room),
    }
}
