//! What a rank announces, in words that all others have mapped: numbers, and where in its heap the things are that all call by them.
//!
//! Entries are only added: the place is written first, then the number. Where there is no more room one word says so, behind all entries; whatever is not there then will never be.

use crate::sync::{Shared, Word};
use gaggle_core::Announced;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Words with what one rank has announced.
pub(super) trait Directory: Shared {
    /// How many entries there is room for.
    const N_ENTRIES: usize;
    /// How many are taken, so that one is found soon.
    const MOST: usize;
    /// Not 0: nothing more is announced.
    fn full(&self) -> &Self::Word;
    /// The number of an entry; 0: there is none.
    fn number(&self, entry: usize) -> &Self::Word;
    /// Its place; 0: it will never be there.
    fn place(&self, entry: usize) -> &Self::Word;
}

/// Which entry has this number, or would have it, and whether it does.
fn entry<D: Directory>(directory: &D, number: u64) -> Option<(usize, bool)> {
    let first = (number % D::N_ENTRIES as u64) as usize;
    let mut entries = (first..D::N_ENTRIES).chain(0..first);
    // Acquire: whoever finds the number finds its place.
    entries.find_map(|at| match directory.number(at).load(Acquire) {
        0 => Some((at, false)),
        known => (known == number).then_some((at, true)),
    })
}

/// Announces a thing, for good; `None`: it will never be there. `n`: how many were announced before, as one caller at a time knows.
pub(super) fn announce<D: Directory>(own: &D, n: &mut usize, number: u64, place: Option<u64>) {
    let number = number.max(1);
    match entry(own, number) {
        Some((at, false)) if *n < D::MOST => {
            *n += 1;
            own.place(at).store(place.unwrap_or(0), Relaxed);
            // Release: with the acquire in `entry`.
            own.number(at).store(number, Release);
        }
        // It was said before, for good.
        Some((_, true)) => {}
        // Release: whoever sees it sees all entries.
        _ => own.full().store(1, Release),
    }
}

/// What a rank has said of a thing.
pub(super) fn announced(rank: &impl Directory, number: u64) -> Announced {
    let number = number.max(1);
    // Looked at first: nothing is added after it.
    let full = rank.full().load(Acquire) != 0;
    match entry(rank, number) {
        Some((at, true)) => match rank.place(at).load(Relaxed) {
            0 => Announced::Never,
            place => Announced::At(place),
        },
        _ if full => Announced::Never,
        _ => Announced::NotYet,
    }
}

/// Every order in which a rank and one that looks for what it announces can run.
#[cfg(test)]
mod models {
    use super::*;
    use crate::models::{AtomicU64, thread};
    use std::sync::{Arc, atomic::Ordering};

    /// Room for two things, of which all that is announced begin at the same entry.
    struct Model {
        full: AtomicU64,
        numbers: [AtomicU64; 3],
        places: [AtomicU64; 3],
        /// A word of what lies at each place.
        content: [AtomicU64; 2],
    }

    impl Model {
        fn new() -> Arc<Model> {
            let word = |_| AtomicU64::new(0);
            Arc::new(Model {
                full: word(0),
                numbers: [0; 3].map(word),
                places: [0; 3].map(word),
                content: [0; 2].map(word),
            })
        }
    }

    impl Shared for Model {
        type Word = AtomicU64;
        fn fence(order: Ordering) {
            loom::sync::atomic::fence(order);
        }
    }

    impl Directory for Model {
        const N_ENTRIES: usize = 3;
        const MOST: usize = 2;
        fn full(&self) -> &AtomicU64 {
            &self.full
        }
        fn number(&self, entry: usize) -> &AtomicU64 {
            &self.numbers[entry]
        }
        fn place(&self, entry: usize) -> &AtomicU64 {
            &self.places[entry]
        }
    }

    /// The rank announces these in turn, each behind the content of its place; the other looks for one of them, twice.
    fn looked_for(
        announcements: &'static [(u64, Option<u64>)],
        number: u64,
        may: &'static [Announced],
    ) {
        loom::model(move || {
            let rank = Model::new();
            let reader = Arc::clone(&rank);
            let other = thread::spawn(move || {
                let mut last = Announced::NotYet;
                for _ in 0..2 {
                    let found = announced(&*reader, number);
                    assert!(may.contains(&found), "{number}: {found:?}");
                    assert!(
                        last == Announced::NotYet || last == found,
                        "{last:?}, then {found:?}"
                    );
                    if let Announced::At(place) = found {
                        let content = reader.content[place as usize - 1].load(Relaxed);
                        assert_eq!(content, number, "what lies there is not seen");
                    }
                    last = found;
                }
            });
            let mut n = 0;
            for (number, place) in announcements {
                if let Some(place) = place {
                    rank.content[*place as usize - 1].store(*number, Relaxed);
                }
                announce(&*rank, &mut n, *number, *place);
            }
            other.join().unwrap();
        });
    }

    #[test]
    fn loom_whoever_finds_what_is_announced_finds_what_lies_there() {
        let may = &[Announced::NotYet, Announced::At(2)];
        looked_for(&[(3, Some(1)), (6, Some(2))], 6, may);
    }

    #[test]
    fn loom_what_can_never_be_is_never_taken_for_what_is_there() {
        let may = &[Announced::NotYet, Announced::Never];
        looked_for(&[(3, Some(1)), (6, None)], 6, may);
        // There is no more room.
        looked_for(&[(3, Some(1)), (6, Some(2)), (9, Some(1))], 9, may);
    }

    #[test]
    fn loom_what_was_announced_before_the_room_was_used_up_is_found() {
        let may = &[Announced::NotYet, Announced::At(2)];
        looked_for(&[(3, Some(1)), (6, Some(2)), (9, None)], 6, may);
    }
}
