//! What a rank has given up, in words that all others have mapped: a count, and the last names.
//!
//! The rank writes a name, then the count, then a fence, and only then lets its memory be filled with something else.
//! Whoever has read that memory puts a fence behind it and looks at the count: it has either read what was there before, or it sees the count (and so the name).

use crate::sync::{Shared, Word};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Words with the marks of one rank.
pub(super) trait Marks: Shared {
    /// How many names there are room for.
    const N_NAMES: u64;
    /// How much was ever given up.
    fn count(&self) -> &Self::Word;
    /// Name `n` of those there is room for.
    fn name(&self, n: u64) -> &Self::Word;
}

/// How much the rank has ever given up.
pub(super) fn given_up(marks: &impl Marks) -> u64 {
    // Acquire: with the release below, so that the names counted are there.
    marks.count().load(Acquire)
}

/// Gives up what has this name. One caller at a time.
pub(super) fn give_up<M: Marks>(marks: &M, name: u64) {
    let n = marks.count().load(Relaxed);
    marks.name(n % M::N_NAMES).store(name, Relaxed);
    // Release: whoever sees the count sees the name.
    marks.count().store(n.wrapping_add(1), Release);
    // With the fence in `has_given_up`: who has read bytes that are written after this call sees the count.
    M::fence(SeqCst);
}

/// Whether the rank has given this up since its count was `since`; also where too much has been given up meanwhile to tell.
pub(super) fn has_given_up<M: Marks>(marks: &M, name: u64, since: u64) -> bool {
    // Whatever was read before is ordered before the count: see `give_up`.
    M::fence(SeqCst);
    let newer = |count: u64| count.wrapping_sub(since);
    let n = newer(marks.count().load(Acquire));
    if n == 0 {
        return false;
    }
    if n >= M::N_NAMES {
        return true;
    }
    let named = (0..n).any(|i| {
        let at = since.wrapping_add(i) % M::N_NAMES;
        marks.name(at).load(Relaxed) == name
    });
    M::fence(SeqCst);
    // Names that were written over meanwhile.
    named || newer(marks.count().load(Acquire)) >= M::N_NAMES
}

/// Every order in which the rank and one that looks at its marks can run.
#[cfg(test)]
mod models {
    use super::*;
    use crate::models::{AtomicU64, thread};
    use std::sync::{Arc, atomic::Ordering};

    /// Marks with room for two names, and one word of the memory that operations read.
    struct Model {
        count: AtomicU64,
        names: [AtomicU64; 2],
        data: AtomicU64,
    }

    impl Model {
        fn new() -> Arc<Model> {
            let word = || AtomicU64::new(0);
            Arc::new(Model {
                count: word(),
                names: [word(), word()],
                data: word(),
            })
        }
    }

    impl Shared for Model {
        type Word = AtomicU64;
        fn fence(order: Ordering) {
            loom::sync::atomic::fence(order);
        }
    }

    impl Marks for Model {
        const N_NAMES: u64 = 2;
        fn count(&self) -> &AtomicU64 {
            &self.count
        }
        fn name(&self, n: u64) -> &AtomicU64 {
            &self.names[n as usize]
        }
    }

    #[test]
    fn loom_whoever_reads_what_came_after_a_retreat_knows_of_it() {
        loom::model(|| {
            let rank = Model::new();
            let reader = Arc::clone(&rank);
            let straggler = thread::spawn(move || {
                let read = reader.data.load(Relaxed);
                read == 0 || has_given_up(&*reader, 7, 0)
            });
            give_up(&*rank, 7);
            rank.data.store(1, Relaxed);
            assert!(straggler.join().unwrap(), "what came later went unnoticed");
        });
    }

    #[test]
    fn loom_a_name_that_was_written_over_counts_as_given_up() {
        loom::model(|| {
            let rank = Model::new();
            let reader = Arc::clone(&rank);
            let straggler = thread::spawn(move || {
                let read = reader.data.load(Relaxed);
                read == 0 || has_given_up(&*reader, 7, 0)
            });
            give_up(&*rank, 7);
            rank.data.store(1, Relaxed);
            give_up(&*rank, 8);
            give_up(&*rank, 9);
            assert!(straggler.join().unwrap(), "what came later went unnoticed");
        });
    }

    #[test]
    fn loom_nothing_is_taken_for_given_up_that_is_not() {
        loom::model(|| {
            let rank = Model::new();
            let reader = Arc::clone(&rank);
            let other = thread::spawn(move || has_given_up(&*reader, 5, 0));
            give_up(&*rank, 7);
            assert!(!other.join().unwrap(), "another operation's mark");
        });
    }
}
