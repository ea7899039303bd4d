//! Staging memory: blocks of this rank's own heap that its operations on ordinary memory pass through, kept and used again.
//!
//! A block begins with three words, each alone on its cache lines, that only this rank stores and that never fall: how many slices are filled, folded, and read.
//! It is given to another operation only when all who read the last one's have said that they are through; after a failure at once, because whoever is behind it finds the operation given up and does not count what it has read.

use super::writing::Writing;
use crate::sync::{Arc, Mutex};
use gaggle_core::{Block, Rank, SharedMemory};

/// Bytes before the slots: the flags.
pub(crate) const FLAGS: u64 = 4096;
/// Bytes from one flag to the next: lines that are fetched in pairs.
const APART: u64 = 128;
/// Smallest block without its flags.
const LEAST: u64 = 256 << 10;
/// Staging memory of a rank in all.
const MOST: u64 = 64 << 20;

/// Which of the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    /// Slices whose cells are filled.
    Filled,
    /// Slices whose share is folded.
    Folded,
    /// Slices of which this rank needs nothing any more.
    Read,
}

impl Flag {
    const ALL: [Flag; 3] = [Flag::Filled, Flag::Folded, Flag::Read];

    /// Where it is, from the start of the block.
    pub(crate) fn at(self) -> u64 {
        self as u64 * APART
    }
}

/// Who reads a block, where it says how far, and how far that has to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader {
    pub(crate) rank: Rank,
    pub(crate) place: u64,
    pub(crate) until: u64,
}

struct Kept {
    /// Taken out only to be let go.
    block: Option<Box<dyn Block>>,
    place: u64,
    bytes: u64,
    /// What the flags have come to.
    base: u64,
    readers: Vec<Reader>,
    /// The operation ended well, so the readers count.
    wanted: bool,
}

impl Kept {
    fn is_free(&self, shared: &dyn SharedMemory) -> bool {
        let through = |r: &Reader| shared.load(r.rank, r.place).is_none_or(|n| n >= r.until);
        !self.wanted || self.readers.iter().all(through)
    }
}

/// A rank's staging memory.
#[derive(Default)]
pub(crate) struct Rooms {
    kept: Mutex<Vec<Kept>>,
    /// Bytes of all blocks, those in use included.
    taken: Mutex<u64>,
    /// How they are best written.
    writing: Writing,
    /// For the last look at who still reads.
    shared: Mutex<Option<Arc<dyn SharedMemory>>>,
}

impl Rooms {
    /// A block with room for so many bytes beside the flags, which it raises to where they begin; `None` where there is none.
    pub(crate) fn take(
        self: &Arc<Self>,
        shared: &Arc<dyn SharedMemory>,
        bytes: u64,
    ) -> Option<Room> {
        let kept = self.find(&**shared, bytes);
        let kept = kept.or_else(|| self.make(shared, bytes))?;
        let room = Room {
            kept: Some(kept),
            rooms: Arc::clone(self),
        };
        let (place, base) = (room.place(), room.base());
        let raised = Flag::ALL
            .iter()
            .all(|flag| shared.store(place + flag.at(), base));
        raised.then_some(room)
    }

    fn find(&self, shared: &dyn SharedMemory, bytes: u64) -> Option<Kept> {
        let mut kept = self.kept.lock();
        // The last one that was given back is the one that is in the cache.
        let at = kept
            .iter()
            .rposition(|k| k.bytes >= bytes && k.is_free(shared))?;
        let mut found = kept.remove(at);
        found.readers.clear();
        found.wanted = false;
        Some(found)
    }

    fn make(&self, shared: &Arc<dyn SharedMemory>, bytes: u64) -> Option<Kept> {
        let bytes = bytes.max(LEAST).checked_next_power_of_two()?;
        let all = bytes.checked_add(FLAGS)?;
        let mut taken = self.taken.lock();
        if taken.checked_add(all).is_none_or(|n| n > MOST) {
            return None;
        }
        let block = shared.block(usize::try_from(all).ok()?)?;
        let place = shared.place(block.start(), block.len())?;
        *taken += all;
        *self.shared.lock() = Some(Arc::clone(shared));
        Some(Kept {
            block: Some(block),
            place,
            bytes,
            base: 0,
            readers: vec![],
            wanted: false,
        })
    }
}

impl Drop for Rooms {
    fn drop(&mut self) {
        let Some(shared) = self.shared.get_mut().take() else {
            return;
        };
        for kept in self.kept.get_mut() {
            if !kept.is_free(&*shared) {
                // Somebody is still reading: pages that are given back turn to zeros.
                std::mem::forget(kept.block.take());
            }
        }
    }
}

/// A block in use. It goes back when it is dropped; see [`Room::give`].
pub(crate) struct Room {
    kept: Option<Kept>,
    rooms: Arc<Rooms>,
}

impl Room {
    /// How this rank best writes to it.
    pub(crate) fn writing(&self) -> &Writing {
        &self.rooms.writing
    }

    /// Where it begins in this rank's heap.
    pub(crate) fn place(&self) -> u64 {
        self.kept.as_ref().map_or(0, |k| k.place)
    }

    /// What its flags stand at before the first slice.
    pub(crate) fn base(&self) -> u64 {
        self.kept.as_ref().map_or(0, |k| k.base)
    }

    /// Bytes beside the flags.
    pub(crate) fn bytes(&self) -> u64 {
        self.kept.as_ref().map_or(0, |k| k.bytes)
    }

    /// Its flags may rise by so much.
    pub(crate) fn begin(&mut self, slices: u64) {
        if let Some(kept) = &mut self.kept {
            kept.base = kept.base.saturating_add(slices);
        }
    }

    /// Nobody has to be waited for but these. Without it whoever still reads does not count.
    pub(crate) fn give(mut self, readers: Vec<Reader>) {
        if let Some(kept) = &mut self.kept {
            (kept.readers, kept.wanted) = (readers, true);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let Some(kept) = self.kept.take() else {
            return;
        };
        if !kept.wanted
            && let Some(shared) = &*self.rooms.shared.lock()
        {
            // This rank reads nothing any more: whoever it read from need not wait for that.
            shared.store(kept.place + Flag::Read.at(), kept.base);
        }
        self.rooms.kept.lock().push(kept);
    }
}
