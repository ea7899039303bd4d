//! Memory whose accesses a model checker follows.
//!
//! # Safety
//! There are no bytes in what is followed, so no access can be undefined; the checker ends the test where two of them are not ordered.
//! A block that is lent again and again is lent to one owner at a time: the next order is explored when the last one's is gone.

use gaggle_core::Block;
use loom::cell::UnsafeCell;
use std::{ptr::NonNull, sync::Arc};

/// Stands for bytes that one side writes and another reads: a test fails in which nothing orders the two.
pub(super) struct Tracked(UnsafeCell<()>);

// SAFETY: there is nothing in it to race for; the checker's own record of accesses is made for several threads.
unsafe impl Sync for Tracked {}

impl Tracked {
    pub(super) fn new() -> Tracked {
        Tracked(UnsafeCell::new(()))
    }

    /// The bytes are read.
    pub(super) fn read(&self) {
        self.0.with(|_| ());
    }

    /// The bytes are written.
    pub(super) fn write(&self) {
        self.0.with_mut(|_| ());
    }
}

/// A block of a heap that serves every order that is explored, so that none has to make its own.
pub(super) struct Again(pub(super) Arc<dyn Block>);

// SAFETY: what the block promises, and nobody else has it: see the module doc.
unsafe impl Block for Again {
    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}
