//! How much a rank's blocks have promised, in a word that all others of its host have mapped.
//!
//! The system counts memory when it is touched; of what is promised and not touched yet it knows nothing.
//! So whoever wants memory says first how much, then looks at what everybody has promised beyond what is touched: of two that ask at once at least one knows of the other, and no two are promised the same memory.

use crate::sync::{Shared, Word};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Memory with that word of one rank.
pub(super) trait Promises: Shared {
    /// Bytes that its blocks have.
    fn promised(&self) -> &Self::Word;
    /// Bytes of them that the system has counted.
    fn touched(&self) -> u64;
}

/// Adds to what this rank has promised. One caller at a time, here and in [`withdraw`].
pub(super) fn promise<P: Promises>(own: &P, bytes: u64) {
    let word = own.promised();
    word.store(word.load(Relaxed).saturating_add(bytes), Relaxed);
    // With the same fence of whoever asks meanwhile: the later of the two sees what the other has promised.
    P::fence(SeqCst);
}

/// They are not promised any more.
pub(super) fn withdraw(own: &impl Promises, bytes: u64) {
    let word = own.promised();
    word.store(word.load(Relaxed).saturating_sub(bytes), Relaxed);
}

/// Bytes that a rank has promised and nobody has touched. What is touched meanwhile may count twice, never not at all, where the system is asked after this.
pub(super) fn outstanding(rank: &impl Promises) -> u64 {
    rank.promised().load(Relaxed).saturating_sub(rank.touched())
}

/// Every order in which two ranks can ask at once.
#[cfg(test)]
mod models {
    use super::*;
    use crate::models::{AtomicU64, thread};
    use std::sync::{Arc, atomic::Ordering};

    /// A rank that has touched nothing yet.
    struct Model(AtomicU64);

    impl Shared for Model {
        type Word = AtomicU64;
        fn fence(order: Ordering) {
            loom::sync::atomic::fence(order);
        }
    }

    impl Promises for Model {
        fn promised(&self) -> &AtomicU64 {
            &self.0
        }
        fn touched(&self) -> u64 {
            0
        }
    }

    fn ask(all: &[Model; 2], me: usize, bytes: u64, there: u64) -> bool {
        promise(&all[me], bytes);
        let granted = all.iter().map(outstanding).sum::<u64>() <= there;
        if !granted {
            withdraw(&all[me], bytes);
        }
        granted
    }

    #[test]
    fn loom_no_two_ranks_are_promised_the_same_memory() {
        for (each, both) in [(60, false), (50, true)] {
            loom::model(move || {
                let all = Arc::new([0, 0].map(|n| Model(AtomicU64::new(n))));
                let there = Arc::clone(&all);
                let other = thread::spawn(move || ask(&there, 1, each, 100));
                let mine = ask(&all, 0, each, 100);
                let theirs = other.join().unwrap();
                assert!(!(mine && theirs) || both, "{each} of 100 for both");
                assert!(mine && theirs || !both, "there is enough for both");
            });
        }
    }
}
