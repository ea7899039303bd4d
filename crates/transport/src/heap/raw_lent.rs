//! Ordinary memory that a rank lends to the other threads of its process, to be read and written where it lies.
//!
//! # Safety
//! Who lends promises that the bytes stay valid until [`recall`](Lent::recall) returns.
//! A visit is counted under the lock that a recall marks the entry under: so whoever comes after the mark is turned away, and the recall waits for whoever came before it.
//! No visitor waits for anything while it is there, so the wait is as long as one step over memory.
//! As in [`raw_heap`](super::raw_heap) no visitor makes a reference to the bytes.

use super::locks::{Condvar, Mutex};
use gaggle_core::WindowMut;
use std::ptr::NonNull;

/// What one rank lends at the moment.
#[derive(Debug, Default)]
pub(super) struct Lent {
    entries: Mutex<Entries>,
    /// The last visitor of something recalled has left.
    left: Condvar,
}

#[derive(Debug, Default)]
struct Entries {
    /// The number last given; none is given twice.
    last: u64,
    open: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    start: NonNull<u8>,
    bytes: usize,
    visitors: usize,
    recalled: bool,
}

// SAFETY: the pointer stands for bytes that any thread may visit, as whoever lent them has promised.
unsafe impl Send for Entry {}

impl Lent {
    /// Lends bytes; their number, which is never 0.
    ///
    /// # Safety
    /// They stay valid for reads and writes until [`recall`](Lent::recall) of the number returns, and nobody reaches them meanwhile but in the order that the operation's steps give.
    pub(super) unsafe fn lend(&self, start: NonNull<u8>, bytes: usize) -> u64 {
        let mut entries = self.entries.lock();
        entries.last += 1;
        let number = entries.last;
        entries.open.push(Entry {
            number,
            start,
            bytes,
            visitors: 0,
            recalled: false,
        });
        number
    }

    /// Ends a loan: on return nobody is there, and nobody will be. Unknown numbers are ignored.
    pub(super) fn recall(&self, number: u64) {
        let mut entries = self.entries.lock();
        while let Some(i) = entries.open.iter().position(|e| e.number == number) {
            let entry = &mut entries.open[i];
            if entry.visitors == 0 {
                entries.open.swap_remove(i);
                return;
            }
            entry.recalled = true;
            self.left.wait(&mut entries);
        }
    }

    /// Some of the bytes, until [`leave`](Lent::leave); `None` where they are not lent, or not any more.
    pub(super) fn visit(&self, number: u64, at: u64, bytes: usize) -> Option<WindowMut<'_>> {
        let mut entries = self.entries.lock();
        let entry = entries.open.iter_mut().find(|e| e.number == number);
        let entry = entry.filter(|e| !e.recalled)?;
        let at = usize::try_from(at).ok()?;
        if at > entry.bytes || bytes > entry.bytes - at {
            return None;
        }
        entry.visitors += 1;
        // SAFETY: within what is lent, as just checked.
        let start = unsafe { entry.start.add(at) };
        // SAFETY: lent, and a recall waits until this visit has ended; references to them are as the lender has promised.
        Some(unsafe { WindowMut::new(start, bytes) })
    }

    /// Ends a visit.
    pub(super) fn leave(&self, number: u64) {
        let mut entries = self.entries.lock();
        let entry = entries.open.iter_mut().find(|e| e.number == number);
        if let Some(entry) = entry {
            entry.visitors -= 1;
            if entry.visitors == 0 && entry.recalled {
                self.left.notify_all();
            }
        }
    }
}
