//! Buffers that this rank's peers on the same host can reach.
//!
//! # Safety
//! A [`Buffer`] is a slice made of a block's bytes. The block promises that they are there, initialised and nobody else's; every bit pattern is a value of an [`Element`].

use crate::{Element, Space, StableBuf, raw::zeroed};
use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    ptr::NonNull,
};

/// A piece of memory that one owner has, and that is freed with this value.
///
/// # Safety
/// `start..start+len` is mapped, initialised, aligned to 64 bytes, stays at its address, and is reached through this value alone until it is dropped; other processes may reach it only while an operation has it.
pub unsafe trait Block: Send + Sync {
    /// Where it begins.
    fn start(&self) -> NonNull<u8>;
    /// Its length in bytes.
    fn len(&self) -> usize;
    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

enum Owner<T> {
    /// Kept so that the memory stays.
    Block {
        _block: Box<dyn Block>,
    },
    Vec {
        _vec: Vec<T>,
    },
}

/// Elements in memory that all ranks of a host have mapped, where there is such memory: collectives on them take one pass and no copies.
///
/// A slice for its owner; made by [`Group::buffer`](crate::Group::buffer).
/// Parts of it are as good as the whole: a slice that begins and ends on a page, or ends where the buffer does, may be reduced in place by itself.
/// What is neither is handled as any other slice, with the same result.
pub struct Buffer<T> {
    ptr: NonNull<T>,
    len: usize,
    owner: Owner<T>,
    _elements: PhantomData<T>,
}

// SAFETY: it owns its elements, which are `Send`; so is the block.
unsafe impl<T: Element> Send for Buffer<T> {}
// SAFETY: shared references give shared slices only; elements are `Sync`, and so is the block.
unsafe impl<T: Element> Sync for Buffer<T> {}

impl<T: Element> Buffer<T> {
    /// `n` elements on a block, with what the block's bytes are; `None` where it is too short.
    pub fn on(block: Box<dyn Block>, n: usize) -> Option<Buffer<T>> {
        let bytes = n.checked_mul(size_of::<T>())?;
        (bytes <= block.len()).then(|| Buffer {
            ptr: block.start().cast(),
            len: n,
            owner: Owner::Block { _block: block },
            _elements: PhantomData,
        })
    }

    /// `n` zeros in ordinary memory.
    pub fn ordinary(n: usize) -> Buffer<T> {
        let mut vec = zeroed::<T>(n);
        Buffer {
            ptr: NonNull::from(vec.as_mut_slice()).cast(),
            len: n,
            owner: Owner::Vec { _vec: vec },
            _elements: PhantomData,
        }
    }

    /// Whether local ranks have it mapped.
    pub fn is_registered(&self) -> bool {
        matches!(self.owner, Owner::Block { .. })
    }
}

/// No elements, in ordinary memory.
impl<T: Element> Default for Buffer<T> {
    fn default() -> Buffer<T> {
        Buffer::ordinary(0)
    }
}

// SAFETY: blocks and the heap blocks of vectors do not move; they are initialised and reached through this value alone.
unsafe impl<T: Element> StableBuf for Buffer<T> {
    type Elem = T;
    fn parts(&mut self) -> (NonNull<T>, usize) {
        (self.ptr, self.len)
    }
    fn space(&self) -> Space {
        match self.owner {
            Owner::Block { .. } => Space::Registered,
            Owner::Vec { .. } => Space::Host,
        }
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: initialised elements that are this value's, aligned to more than any element needs.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len)
            .field("dtype", &T::DTYPE)
            .field("space", &StableBuf::space(self))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_buffer_is_a_slice_of_zeros_that_can_be_written() {
        let mut b = Buffer::<f64>::ordinary(5);
        assert!(!b.is_registered() && b[..] == [0.0; 5]);
        b[4] = 2.5;
        let (ptr, len) = b.parts();
        assert_eq!((ptr.as_ptr().cast_const(), len), (b.as_ptr(), 5));
        assert_eq!(b[4], 2.5);
        assert!(Buffer::<u8>::ordinary(0).is_empty());
    }
}
