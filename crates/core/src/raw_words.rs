//! Words of memory that other processes have mapped too.
//!
//! # Safety
//! Nothing here makes a reference to anything but atomics, so a racing write of another process gives other words and never undefined values.
//! Whoever makes a [`SharedWords`] keeps the memory mapped as long as it lives.

use crate::Words;
use std::{
    any::Any,
    fmt,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// A row of 64-bit words in memory that several processes read and write, each word by itself: [`Words`] says how.
pub struct SharedWords {
    at: NonNull<AtomicU64>,
    n: usize,
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the words are reached through atomics alone, which any thread may use; what keeps them mapped is `Send` and `Sync`.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl fmt::Debug for SharedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWords").field("n", &self.n).finish()
    }
}

impl SharedWords {
    /// The `n` words from `at` on; `None` where that is not aligned to 8 bytes.
    ///
    /// # Safety
    /// `8·n` bytes from `at` on are mapped for reading and writing as long as `keep` lives, and this process reaches them in no other way than by atomics, or copies that a racing write cannot make undefined.
    pub unsafe fn new(
        at: NonNull<u8>,
        n: usize,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Option<SharedWords> {
        at.addr().get().is_multiple_of(8).then(|| SharedWords {
            at: at.cast(),
            n,
            _keep: keep,
        })
    }

    #[inline]
    fn word(&self, i: usize) -> &AtomicU64 {
        assert!(i < self.n, "word {i} of {}", self.n);
        // SAFETY: in range, as just checked; aligned, as `new` has; mapped as long as `self` keeps it.
        unsafe { self.at.add(i).as_ref() }
    }
}

impl Words for SharedWords {
    #[inline]
    fn len(&self) -> usize {
        self.n
    }
    #[inline]
    fn get(&self, i: usize, order: Ordering) -> u64 {
        self.word(i).load(order)
    }
    #[inline]
    fn set(&self, i: usize, value: u64, order: Ordering) {
        self.word(i).store(value, order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_in_and_come_out_whatever_their_number() {
        let memory: Arc<Vec<AtomicU64>> = Arc::new((0..6).map(|_| AtomicU64::new(0)).collect());
        let at = NonNull::from(&memory[..]).cast::<u8>();
        let keep = Arc::clone(&memory) as Arc<dyn Any + Send + Sync>;
        // SAFETY: six words of atomics, which `keep` owns.
        let words = unsafe { SharedWords::new(at, 6, Arc::clone(&keep)) }.unwrap();
        for n in [0, 1, 7, 8, 9, 31, 40] {
            let bytes: Vec<u8> = (0..n).map(|b| b as u8 + 1).collect();
            words.fill(1, &bytes);
            let mut out = vec![0; n];
            words.read(1, &mut out);
            assert_eq!(out, bytes);
        }
        assert_eq!((words.load(0), words.len()), (0, 6));
        words.store(5, 9);
        assert_eq!(memory[5].load(Ordering::Relaxed), 9);
        // SAFETY: five words and seven bytes lie in the memory; they are refused all the same.
        let odd = unsafe { SharedWords::new(at.byte_add(1), 5, keep) };
        assert!(odd.is_none());
    }

    #[test]
    #[should_panic(expected = "2 words from 5 on")]
    fn nothing_lies_beyond_the_last_word() {
        let memory: Arc<Vec<AtomicU64>> = Arc::new((0..6).map(|_| AtomicU64::new(0)).collect());
        let at = NonNull::from(&memory[..]).cast::<u8>();
        // SAFETY: six words of atomics, which the vector owns.
        let words = unsafe { SharedWords::new(at, 6, memory) }.unwrap();
        words.fill(5, &[1; 9]);
    }
}
