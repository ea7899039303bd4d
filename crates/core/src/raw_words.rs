//! Words of memory that other processes have mapped too.
//!
//! # Safety
//! Nothing here makes a reference to anything but atomics, so a racing write of another process gives other words and never undefined values.
//! Whoever makes a [`SharedWords`] keeps the memory mapped as long as it lives.

use std::{
    any::Any,
    fmt,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

/// A row of 64-bit words in memory that several processes read and write, each word by itself.
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

    /// How many words there are.
    pub fn len(&self) -> usize {
        self.n
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    #[inline]
    fn word(&self, i: usize) -> &AtomicU64 {
        assert!(i < self.n, "word {i} of {}", self.n);
        // SAFETY: in range, as just checked; aligned, as `new` has; mapped as long as `self` keeps it.
        unsafe { self.at.add(i).as_ref() }
    }

    /// Word `i`, with everything that its writer had written before ([`store`](SharedWords::store)).
    ///
    /// # Panics
    /// There are not so many.
    #[inline]
    pub fn load(&self, i: usize) -> u64 {
        self.word(i).load(Acquire)
    }

    /// Writes word `i`, behind everything that this thread has written before.
    ///
    /// # Panics
    /// There are not so many.
    #[inline]
    pub fn store(&self, i: usize, value: u64) {
        self.word(i).store(value, Release);
    }

    /// Writes bytes from word `i` on, the last word filled up with zeros. They are not published: a [`store`](SharedWords::store) that follows does that.
    ///
    /// # Panics
    /// There are not so many words.
    #[inline]
    pub fn fill(&self, i: usize, bytes: &[u8]) {
        let n = bytes.len().div_ceil(8);
        assert!(i <= self.n && n <= self.n - i, "{n} words from {i} on");
        let (whole, rest) = bytes.as_chunks::<8>();
        for (k, word) in whole.iter().enumerate() {
            self.word(i + k).store(u64::from_ne_bytes(*word), Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.word(i + n - 1)
                .store(u64::from_ne_bytes(last), Relaxed);
        }
    }

    /// Reads bytes from word `i` on. Torn where somebody writes them meanwhile.
    ///
    /// # Panics
    /// There are not so many words.
    #[inline]
    pub fn read(&self, i: usize, out: &mut [u8]) {
        let n = out.len().div_ceil(8);
        assert!(i <= self.n && n <= self.n - i, "{n} words from {i} on");
        let (whole, rest) = out.as_chunks_mut::<8>();
        for (k, to) in whole.iter_mut().enumerate() {
            *to = self.word(i + k).load(Relaxed).to_ne_bytes();
        }
        if !rest.is_empty() {
            let last = self.word(i + n - 1).load(Relaxed).to_ne_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
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
        assert_eq!(memory[5].load(Relaxed), 9);
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
