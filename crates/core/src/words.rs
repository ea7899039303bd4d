//! Rows of words that several processes read and write: in what order, wherever the words are.
//!
//! Protocols on such words are written over [`Words`], so that the same code runs on memory that processes share ([`SharedWords`](crate::SharedWords)) and on the words of a model checker, with the same orders.

use std::sync::atomic::Ordering;

/// The order in which a word is stored that others wait for: behind everything that its writer has written before.
pub const PUBLISH: Ordering = Ordering::Release;
/// The order in which such a word is loaded: everything that its writer had written before is seen.
pub const OBSERVE: Ordering = Ordering::Acquire;
/// The order of what lies between: it is published by a word that is stored later.
const BETWEEN: Ordering = Ordering::Relaxed;

/// A row of 64-bit words that several threads or processes read and write, each word by itself.
///
/// All methods may be called from any thread; none blocks. Reaching beyond the last word is a panic, never another word.
pub trait Words {
    /// How many words there are.
    fn len(&self) -> usize;
    /// Word `i`, in this order.
    ///
    /// # Panics
    /// There are not so many.
    fn get(&self, i: usize, order: Ordering) -> u64;
    /// Writes word `i`, in this order.
    ///
    /// # Panics
    /// There are not so many.
    fn set(&self, i: usize, value: u64, order: Ordering);

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Word `i`, with everything that its writer had written before ([`store`](Words::store)).
    ///
    /// # Panics
    /// There are not so many.
    #[inline]
    fn load(&self, i: usize) -> u64 {
        self.get(i, OBSERVE)
    }

    /// Writes word `i`, behind everything that this thread has written before.
    ///
    /// # Panics
    /// There are not so many.
    #[inline]
    fn store(&self, i: usize, value: u64) {
        self.set(i, value, PUBLISH);
    }

    /// Writes bytes from word `i` on, the last word filled up with zeros. They are not published: a [`store`](Words::store) that follows does that.
    ///
    /// # Panics
    /// There are not so many words.
    #[inline]
    fn fill(&self, i: usize, bytes: &[u8]) {
        let (all, n) = (self.len(), bytes.len().div_ceil(8));
        assert!(i <= all && n <= all - i, "{n} words from {i} on");
        let (whole, rest) = bytes.as_chunks::<8>();
        for (k, word) in whole.iter().enumerate() {
            self.set(i + k, u64::from_ne_bytes(*word), BETWEEN);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.set(i + n - 1, u64::from_ne_bytes(last), BETWEEN);
        }
    }

    /// Reads bytes from word `i` on. Torn where somebody writes them meanwhile.
    ///
    /// # Panics
    /// There are not so many words.
    #[inline]
    fn read(&self, i: usize, out: &mut [u8]) {
        let (all, n) = (self.len(), out.len().div_ceil(8));
        assert!(i <= all && n <= all - i, "{n} words from {i} on");
        let (whole, rest) = out.as_chunks_mut::<8>();
        for (k, to) in whole.iter_mut().enumerate() {
            *to = self.get(i + k, BETWEEN).to_ne_bytes();
        }
        if !rest.is_empty() {
            let last = self.get(i + n - 1, BETWEEN).to_ne_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }
}
