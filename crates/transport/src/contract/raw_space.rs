//! A heap that is all the memory there is: what is lent is read through its address.
//!
//! # Safety
//! Places are addresses of bytes that were lent, and only such are read: the tests' own transports say no others. The tests keep what they lend until the transfer is over.

use gaggle_core::{Block, Loan, Rank, SharedMemory, WindowMut};
use parking_lot::Mutex;
use std::{ptr::NonNull, sync::Arc};

/// Lends bytes of a heap.
pub(crate) fn lend_until_over(bytes: &[u8]) -> Loan {
    // SAFETY: the tests that call this keep the bytes until the transfer is over or taken back; heaps outlive their transports there.
    unsafe { Loan::new(NonNull::from(bytes).cast(), bytes.len()) }
}

/// What `n` ranks of one process have mapped of each other, if all that is lent is said to be in a heap whose places are addresses.
pub(crate) fn one_space(n: u32) -> Vec<Arc<dyn SharedMemory>> {
    let marks: Arc<Vec<_>> = Arc::new((0..n).map(|_| Mutex::default()).collect());
    let view = |me: u32| {
        Arc::new(OneSpace {
            me: me as usize,
            ranks: (0..n).map(Rank).collect(),
            marks: Arc::clone(&marks),
        }) as Arc<dyn SharedMemory>
    };
    (0..n).map(view).collect()
}

struct OneSpace {
    me: usize,
    ranks: Vec<Rank>,
    /// What each rank has given up.
    marks: Arc<Vec<Mutex<Vec<u64>>>>,
}

impl SharedMemory for OneSpace {
    fn ranks(&self) -> &[Rank] {
        &self.ranks
    }
    fn place(&self, at: NonNull<u8>, _bytes: usize) -> Option<u64> {
        Some(at.as_ptr().expose_provenance() as u64)
    }
    fn is_alone(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        false
    }
    fn read(&self, _rank: Rank, place: u64, out: &mut [u8]) -> bool {
        let from = std::ptr::with_exposed_provenance::<u8>(place as usize);
        // SAFETY: the place is one that `place` has given, of bytes that `lend` has taken, or within them: the tests' own transports say no others.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        true
    }
    fn write(&self, _rank: Rank, _place: u64, _bytes: &[u8]) -> bool {
        false
    }
    fn sever(&self, _at: NonNull<u8>, _bytes: usize) -> Result<(), String> {
        Err("nothing is written here".into())
    }
    fn window(&self, _rank: Rank, _place: u64, _bytes: usize) -> Option<WindowMut<'_>> {
        None
    }
    fn load(&self, _rank: Rank, _place: u64) -> Option<u64> {
        None
    }
    fn store(&self, _place: u64, _value: u64) -> bool {
        false
    }
    fn given_up(&self, rank: Rank) -> u64 {
        self.marks[rank.idx()].lock().len() as u64
    }
    fn give_up(&self, op: u64) {
        self.marks[self.me].lock().push(op);
    }
    fn has_given_up(&self, rank: Rank, op: u64, since: u64) -> bool {
        self.marks[rank.idx()].lock()[since as usize..].contains(&op)
    }
    fn block(&self, _bytes: usize) -> Option<Box<dyn Block>> {
        None
    }
}
