//! What the models of protocols on shared words have in common: loom's atomics as [`Word`]s.
//!
//! They are ordinary tests (`loom` in their names): loom's types work without its configuration flag, since the code under test is generic over its words, so nothing is built twice.

use crate::sync::Word;
pub(crate) use loom::{sync::atomic::AtomicU64, thread};
use std::sync::atomic::Ordering;

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
