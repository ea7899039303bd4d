//! The words that processes share, as the protocols on them see them: atomics of the machine, or of loom where a test explores every order in which two sides can run (`crate::models`).

use std::sync::atomic::{self, AtomicU64, Ordering};

/// One 64-bit word that several processes, or threads, load and store.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn swap(&self, value: u64, order: Ordering) -> u64;
}

/// Memory with such words.
pub(crate) trait Shared {
    type Word: Word;
    /// A fence between accesses to them.
    fn fence(order: Ordering);
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::swap(self, value, order)
    }
}

/// As [`Shared::fence`] of memory that the machine has.
pub(crate) fn fence(order: Ordering) {
    atomic::fence(order);
}
