//! Boards: what the ranks of one host show each other, in lines of their heaps that all have mapped.
//!
//! Each rank has a board per lane of a group: four slots, of which an operation takes the one of its number.
//! A rank writes to its own board alone, and reads the others'.
//!
//! # Layout
//! Words of 64 bits; every part begins a pair of cache lines.
//!
//! | at | word |
//! |---|---|
//! | 0 | all of the rank's operations on this board with a smaller number are over |
//! | 1 | not 0: the rank sleeps until a peer writes to a board |
//! | 16 + 528·(number mod 4) | the slot: its code, the hash of what is called, the payload; at 520 of it, whose steps are over |
//!
//! A code is (number + 1) · 256 + given up · 128 + how many numbers before its own may not be over (at most 127).
//! It is written last, with release, and read first, with acquire, so whoever sees it sees the hash and the payload.
//! A payload of up to 48 bytes shares its line with both.
//!
//! A slot is written again once all members have said that they are through with what it held.
//! They say so beside every code, and in word 0 where an operation was waited for or a slot is waited for; so two ranks that both wait for a slot hear of each other.

use crate::sync::{Arc, Mutex, MutexGuard};
use gaggle_core::{Announced, Block, GroupInfo, Rank, SharedMemory, SharedWords};
use smallvec::SmallVec;

/// Most bytes that a rank shows at once.
pub(crate) const MOST: usize = 48 + 4096;
/// Operations of a lane that may be shown at once.
const DEPTH: usize = 4;

const OVER: usize = 0;
const SLEEPS: usize = 1;
const SLOTS: usize = 16;
const SLOT: usize = 528;
const HASH: usize = 1;
const PAYLOAD: usize = 2;
const THROUGH: usize = 520;
const WORDS: usize = SLOTS + DEPTH * SLOT;
const _: () = assert!(PAYLOAD + MOST / 8 <= THROUGH);

const GAVE_UP: u64 = 1 << 7;
const OPEN: u64 = GAVE_UP - 1;

/// What a member shows of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// It has not called it.
    NotYet,
    /// Its payload is there.
    There,
    /// It has called something else.
    Other,
    /// It has given it up.
    GaveUp,
    /// It will never have a board.
    Never,
}

/// The members' boards for one lane of a group.
pub(crate) struct Stream {
    shared: Arc<dyn SharedMemory>,
    name: u64,
    me: usize,
    world: Vec<Rank>,
    own: SharedWords,
    _block: Box<dyn Block>,
    inner: Mutex<Inner>,
}

struct Inner {
    /// The others' boards, as far as they have been found.
    peers: Vec<Option<SharedWords>>,
    /// How many are to be found.
    missing: usize,
    /// Somebody will never have one.
    never: bool,
    /// All operations of each member with a smaller number are over there.
    over: Vec<u64>,
    /// Number of what this rank's slots hold.
    slots: [Option<u64>; DEPTH],
    /// Operations that have a number and are not over, ascending.
    flying: SmallVec<[u64; 8]>,
    /// More than the largest number that was begun.
    begun: u64,
}

impl Stream {
    /// The boards of a group's lane, which all call by `name`; `None` where this rank can have none, which the others are told.
    pub(crate) fn open(
        shared: &Arc<dyn SharedMemory>,
        info: &GroupInfo,
        name: u64,
    ) -> Option<Stream> {
        let me = info.rank.idx();
        let mapped = shared.ranks();
        let all = info.world_ranks.iter().all(|rank| mapped.contains(rank));
        let own = info.world_ranks[me];
        let board = all.then(|| shared.block(8 * WORDS)).flatten();
        let board = board.and_then(|block| {
            let place = shared.place(block.start(), 8 * WORDS)?;
            let words = shared.words(own, place, WORDS)?;
            Some((block, place, words))
        });
        shared.announce(name, board.as_ref().map(|(_, place, _)| *place));
        let (block, _, words) = board?;
        let n = info.world_ranks.len();
        Some(Stream {
            shared: Arc::clone(shared),
            name,
            me,
            world: info.world_ranks.clone(),
            own: words,
            _block: block,
            inner: Mutex::new(Inner {
                peers: (0..n).map(|_| None).collect(),
                missing: n - 1,
                never: false,
                over: vec![0; n],
                slots: [None; DEPTH],
                flying: SmallVec::new(),
                begun: 0,
            }),
        })
    }

    /// For whoever looks at them or writes to this rank's.
    #[inline]
    pub(crate) fn lines(&self) -> Lines<'_> {
        Lines {
            stream: self,
            inner: self.inner.lock(),
        }
    }

    /// Whether this rank sleeps until a peer writes.
    pub(crate) fn set_sleeps(&self, sleeps: bool) {
        self.own.store(SLEEPS, u64::from(sleeps));
    }
}

/// The boards, in one thread's hands.
pub(crate) struct Lines<'a> {
    stream: &'a Stream,
    inner: MutexGuard<'a, Inner>,
}

fn slot(seq: u64) -> usize {
    SLOTS + SLOT * (seq % DEPTH as u64) as usize
}

impl Lines<'_> {
    /// Whether nothing is under way here.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.inner.flying.is_empty() && !self.inner.never
    }

    /// An operation has got its number.
    #[inline]
    pub(crate) fn begin(&mut self, seq: u64) {
        let inner = &mut *self.inner;
        inner.begun = inner.begun.max(seq + 1);
        let at = inner.flying.partition_point(|n| *n < seq);
        inner.flying.insert(at, seq);
    }

    /// It is over. `said`: the others are told now, not with the next operation.
    #[inline]
    pub(crate) fn end(&mut self, seq: u64, said: bool) {
        self.inner.flying.retain(|n| *n != seq);
        if said {
            self.say_over();
        }
    }

    /// All of this rank's operations with a smaller number are over.
    #[inline]
    fn own_over(&self) -> u64 {
        let first = self.inner.flying.first();
        first.copied().unwrap_or(self.inner.begun)
    }

    fn say_over(&self) {
        self.stream.own.store(OVER, self.own_over());
    }

    /// Whether somebody will never have a board, so that nobody goes this way.
    pub(crate) fn is_never(&mut self) -> bool {
        if self.inner.missing > 0 {
            for member in 0..self.stream.world.len() {
                self.find(member);
            }
        }
        self.inner.never
    }

    fn find(&mut self, member: usize) {
        let Stream {
            shared,
            world,
            name,
            me,
            ..
        } = self.stream;
        let inner = &mut *self.inner;
        if member == *me || inner.peers[member].is_some() || inner.never {
            return;
        }
        match shared.announced(world[member], *name) {
            Announced::NotYet => {}
            Announced::Never => inner.never = true,
            Announced::At(place) => match shared.words(world[member], place, WORDS) {
                Some(words) => {
                    inner.peers[member] = Some(words);
                    inner.missing -= 1;
                }
                // What it says is nonsense.
                None => inner.never = true,
            },
        }
    }

    /// What a member shows of operation `seq`, which this rank calls by `hash`.
    #[inline]
    pub(crate) fn seen(&mut self, member: usize, seq: u64, hash: u64) -> Seen {
        if self.inner.peers[member].is_none() {
            self.find(member);
        }
        let Inner {
            peers, over, never, ..
        } = &mut *self.inner;
        let Some(words) = &peers[member] else {
            return if *never { Seen::Never } else { Seen::NotYet };
        };
        let at = slot(seq);
        let code = words.load(at);
        if code >> 8 != seq + 1 {
            return Seen::NotYet;
        }
        over[member] = over[member].max(seq.saturating_sub(code & OPEN));
        if code & GAVE_UP != 0 {
            Seen::GaveUp
        } else if words.load(at + HASH) != hash {
            Seen::Other
        } else {
            Seen::There
        }
    }

    /// Bytes from byte `8·at` of what a member shows; after [`Seen::There`].
    #[inline]
    pub(crate) fn read(&self, member: usize, seq: u64, at: usize, out: &mut [u8]) {
        if let Some(words) = &self.inner.peers[member] {
            words.read(slot(seq) + PAYLOAD + at, out);
        }
    }

    /// Whether all are through with what the slot of this number holds.
    #[inline]
    pub(crate) fn may_post(&mut self, seq: u64) -> bool {
        let Some(held) = self.inner.slots[(seq % DEPTH as u64) as usize] else {
            return true;
        };
        let me = self.stream.me;
        let through = |over: &[u64]| (0..over.len()).all(|m| m == me || over[m] > held);
        if through(&self.inner.over) {
            return true;
        }
        self.say_over();
        for member in 0..self.stream.world.len() {
            // What a member says beside this number, too, though it is not wanted yet.
            if member != me {
                self.seen(member, seq, 0);
            }
            let Inner { peers, over, .. } = &mut *self.inner;
            if let Some(words) = &peers[member] {
                over[member] = over[member].max(words.load(OVER));
            }
        }
        through(&self.inner.over)
    }

    /// Shows an operation, once the slot [may be written](Lines::may_post): what it is called by, and its payload, of which all but the last part are whole words.
    #[inline]
    pub(crate) fn post(&mut self, seq: u64, hash: u64, payload: [&[u8]; 2]) {
        let own = &self.stream.own;
        let at = slot(seq);
        debug_assert!(payload[0].len().is_multiple_of(8), "whole words");
        own.fill(at + HASH, &hash.to_ne_bytes());
        own.fill(at + PAYLOAD, payload[0]);
        own.fill(at + PAYLOAD + payload[0].len() / 8, payload[1]);
        let open = seq.saturating_sub(self.own_over()).min(OPEN);
        own.store(at, (seq + 1) << 8 | open);
        self.inner.slots[(seq % DEPTH as u64) as usize] = Some(seq);
    }

    fn is_posted(&self, seq: u64) -> bool {
        self.inner.slots[(seq % DEPTH as u64) as usize] == Some(seq)
    }

    /// This rank's steps over the others' memory are over.
    pub(crate) fn go_through(&mut self, seq: u64) {
        self.stream.own.store(slot(seq) + THROUGH, seq + 1);
    }

    /// Whether a member's are.
    pub(crate) fn is_through(&self, member: usize, seq: u64) -> bool {
        let words = self.inner.peers[member].as_ref();
        words.is_some_and(|words| words.load(slot(seq) + THROUGH) == seq + 1)
    }

    /// Whoever comes to it from now on learns that it ends badly.
    pub(crate) fn give_up(&mut self, seq: u64) {
        if self.is_posted(seq) {
            let at = slot(seq);
            let code = self.stream.own.load(at);
            self.stream.own.store(at, code | GAVE_UP);
        }
    }

    /// The members that sleep until something is written, as ranks of the job. After a fence that follows what was written.
    #[inline]
    pub(crate) fn sleepers(&mut self) -> SmallVec<[Rank; 4]> {
        if self.inner.missing > 0 {
            self.is_never();
        }
        let peers = self.inner.peers.iter().zip(&self.stream.world);
        peers
            .filter(|(words, _)| words.as_ref().is_some_and(|w| w.load(SLEEPS) != 0))
            .map(|(_, rank)| *rank)
            .collect()
    }
}
