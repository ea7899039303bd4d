//! What neighbours are lent in place of ordinary memory: copies in this rank's own heap, a few slices at a time.
//!
//! One copy of a slice serves all who are to have it, and they average it where it lies; through the links' rings each would be sent its own, and store it once more.
//! Slices are copied in the order in which the plan sends them: so whoever is behind waits for nobody who waits for it.

use crate::{
    local::staged_room::{FLAGS, Room, Rooms},
    raw_memory::{OpMemory, lend_window},
    sync::Arc,
};
use gaggle_collectives::Span;
use gaggle_core::{Loan, Outlet, Rank, SharedMemory};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Slices that are copied at a time: as many as receivers have room for.
const SLOTS: usize = 4;
/// What all links take before its receiver has called it goes through the rings, too: its sender need not wait for a round that the receiver may skip.
pub(crate) const EARLY: u64 = 256 << 10;
/// Shorter slices go through the links' rings.
pub(crate) const LEAST: u64 = 32 << 10;

/// A place for one slice.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// Whose bytes it holds, or is to hold.
    span: Option<Span>,
    /// Whether they have been copied.
    written: bool,
    /// To how many it is lent or promised.
    lent: u32,
    /// To how many of these it is promised: they have waited, and are named again.
    promised: u32,
}

/// A send, and the slot that it is out of.
#[derive(Clone, Copy)]
struct Out {
    step: u32,
    at: usize,
    bytes: u64,
}

/// The copies of one operation.
pub(crate) struct Copies {
    room: Room,
    shared: Arc<dyn SharedMemory>,
    me: Rank,
    /// Bytes of a slot.
    bytes: u64,
    slots: [Slot; SLOTS],
    /// Sends that are under way.
    out: SmallVec<[Out; 2 * SLOTS]>,
    /// Sends that wait for a slot, in the order of the plan; none while there is a free one.
    waiting: VecDeque<(u32, Span)>,
}

/// What a send is to do.
pub(crate) enum Copied {
    /// Lend this.
    Lent(Loan),
    /// Wait: it is named again when there is a slot ([`Copies::over`]).
    Wait,
    /// Go by the link's ring.
    Not,
}

impl Copies {
    /// With slots for slices of up to so many bytes; `None` where this rank's heap has no room.
    pub(crate) fn new(
        rooms: &Arc<Rooms>,
        shared: &Arc<dyn SharedMemory>,
        me: Rank,
        bytes: u64,
    ) -> Option<Copies> {
        let bytes = bytes.checked_next_multiple_of(64)?;
        Some(Copies {
            room: rooms.take(shared, bytes.checked_mul(SLOTS as u64)?)?,
            shared: Arc::clone(shared),
            me,
            bytes,
            slots: Default::default(),
            out: SmallVec::new(),
            waiting: VecDeque::new(),
        })
    }

    /// Copies a slice for a send, unless that has been done for another one.
    pub(crate) fn lend(&mut self, step: u32, span: Span, memory: &OpMemory) -> Copied {
        let bytes = memory.bytes(span);
        if bytes.len() as u64 > self.bytes {
            return Copied::Not;
        }
        let there = self.slots.iter().position(|slot| slot.span == Some(span));
        // Whoever waits goes first: a slot that is left is promised at once.
        let Some(at) = there.or_else(|| self.slots.iter().position(|slot| slot.lent == 0)) else {
            self.waiting.push_back((step, span));
            return Copied::Wait;
        };
        let window = self.shared.window(self.me, self.place(at), bytes.len());
        let slot = &mut self.slots[at];
        if slot.span != Some(span) {
            *slot = Slot {
                span: Some(span),
                ..Slot::default()
            };
        }
        match slot.promised {
            0 => slot.lent += 1,
            _ => slot.promised -= 1,
        }
        let Some(window) = window else {
            slot.lent -= 1;
            return Copied::Not;
        };
        if !slot.written {
            self.room.writing().copy(window, bytes.into());
            slot.written = true;
        }
        self.out.push(Out {
            step,
            at,
            bytes: bytes.len() as u64,
        });
        Copied::Lent(lend_window(window))
    }

    /// Fills a send's bytes from `at` on, should they leave by the link's ring all the same. False where they are not copied.
    pub(crate) fn fill(&self, step: u32, mut at: u64, out: &mut dyn Outlet) -> bool {
        let Some(slot) = self.out.iter().find(|out| out.step == step) else {
            return false;
        };
        while at < slot.bytes {
            let room = out.room();
            let n = (room.len() as u64).min(slot.bytes - at) as usize;
            if n == 0
                || !self
                    .shared
                    .read(self.me, self.place(slot.at) + at, &mut room[..n])
            {
                break;
            }
            out.commit(n);
            at += n as u64;
        }
        true
    }

    fn place(&self, slot: usize) -> u64 {
        self.room.place() + FLAGS + slot as u64 * self.bytes
    }

    /// A step is over: the sends that may now be tried again.
    pub(crate) fn over(&mut self, step: u32) -> SmallVec<[u32; 4]> {
        let mut next = SmallVec::new();
        let Some(i) = self.out.iter().position(|out| out.step == step) else {
            return next;
        };
        let Out { at, .. } = self.out.swap_remove(i);
        self.slots[at].lent -= 1;
        if self.slots[at].lent > 0 {
            return next;
        }
        // The slot is for all who are to have the slice that has waited longest, from now on.
        let Some(&(_, first)) = self.waiting.front() else {
            return next;
        };
        let alike = self.waiting.iter().take_while(|(_, s)| *s == first);
        let n = alike.count();
        next.extend(self.waiting.drain(..n).map(|(step, _)| step));
        self.slots[at] = Slot {
            span: Some(first),
            written: false,
            lent: n as u32,
            promised: n as u32,
        };
        next
    }
}
