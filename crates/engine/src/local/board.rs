//! Boards: what the ranks of one host show each other, in lines of their heaps that all have mapped.
//!
//! Each rank has a board per lane of a group: two slots, of which an operation takes the one of its number.
//! Two are enough for ranks that take turns, and the slots of two ranks, with what is summed, fit the first cache.
//! A rank writes to its own board alone, and reads the others'.
//!
//! # Layout
//! Words of 64 bits; every part begins a pair of cache lines.
//!
//! | at | word |
//! |---|---|
//! | 0 | all of the rank's operations on this board with a smaller number are over |
//! | 1 | not 0: the rank sleeps until a peer writes to a board |
//! | 2 | not 0: 1 more than the number of the processor that the rank was on when it last waited |
//! | 16 + 528·(number mod 2) | the slot: its code, the hash of what is called, the payload; at 520 of it, whose steps are over |
//!
//! A code is (number + 1) · 256 + given up · 128 + how many numbers before its own may not be over (at most 127).
//! It is written last, with release, and read first, with acquire, so whoever sees it sees the hash and the payload.
//! A payload of up to 48 bytes shares its line with both.
//!
//! A slot is written again once all members have said that they are through with what it held.
//! They say so beside every code, and in word 0 where an operation was waited for or a slot is waited for; so two ranks that both wait for a slot hear of each other.

use super::writing::Writing;
use crate::sync::{self, Arc, Mutex, MutexGuard, Ordering};
use gaggle_core::{Announced, GroupInfo, Rank, SharedMemory, SharedWords, Window, Words};
use smallvec::SmallVec;

/// Most bytes that a rank shows at once.
pub(crate) const MOST: usize = 48 + 4096;
/// Operations of a lane that may be shown at once.
const DEPTH: usize = 2;

/// Bytes from which on a copy of all of them at once is faster than one word after the other.
const MANY: usize = 256;

const OVER: usize = 0;
const SLEEPS: usize = 1;
const PROCESSOR: usize = 2;
const SLOTS: usize = 16;
const SLOT: usize = 528;
/// Words of a cache line.
const LINE: usize = 8;
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

/// The memory that boards are in: what the ranks of a host have mapped, or a model's, whose words a test explores every order of.
pub(crate) trait Memory: SharedMemory {
    /// Words of it, for as long as they are kept.
    type Words: Words;
    /// As [`SharedMemory::words`].
    fn lines(&self, rank: Rank, place: u64, n: usize) -> Option<Self::Words>;
    /// A fence between accesses to them.
    fn fence(order: Ordering);
}

impl Memory for dyn SharedMemory {
    type Words = SharedWords;
    fn lines(&self, rank: Rank, place: u64, n: usize) -> Option<SharedWords> {
        self.words(rank, place, n)
    }
    #[inline]
    fn fence(order: Ordering) {
        sync::fence(order);
    }
}

/// The members' boards for one lane of a group.
pub(crate) struct Stream<M: Memory + ?Sized = dyn SharedMemory> {
    shared: Arc<M>,
    name: u64,
    me: usize,
    world: Vec<Rank>,
    own: M::Words,
    /// Where that is in this rank's heap.
    place: u64,
    /// How that is best written.
    writing: Writing,
    inner: Mutex<Inner<M::Words>>,
}

struct Inner<W> {
    /// The others' boards, as far as they have been found.
    peers: Vec<Option<W>>,
    /// Where those are in their heaps.
    places: Vec<u64>,
    /// How many are still to be found.
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
    /// What the others are told of where this rank is.
    processor: u64,
}

impl<M: Memory + ?Sized> Stream<M> {
    /// The boards of a group's lane, which all call by `name`; `None` where this rank can have none, which the others are told.
    pub(crate) fn open(shared: &Arc<M>, info: &GroupInfo, name: u64) -> Option<Stream<M>> {
        let me = info.rank.idx();
        let mapped = shared.ranks();
        let all = info.world_ranks.iter().all(|rank| mapped.contains(rank));
        let own = info.world_ranks[me];
        let board = all.then(|| shared.reserve(8 * WORDS)).flatten();
        let board = board.and_then(|place| Some((place, shared.lines(own, place, WORDS)?)));
        shared.announce(name, board.as_ref().map(|(place, _)| *place));
        let (place, words) = board?;
        let n = info.world_ranks.len();
        Some(Stream {
            shared: Arc::clone(shared),
            name,
            me,
            world: info.world_ranks.clone(),
            own: words,
            place,
            writing: Writing::default(),
            inner: Mutex::new(Inner {
                peers: (0..n).map(|_| None).collect(),
                places: vec![0; n],
                missing: n - 1,
                never: false,
                over: vec![0; n],
                slots: [None; DEPTH],
                flying: SmallVec::new(),
                begun: 0,
                processor: 0,
            }),
        })
    }

    /// For whoever looks at them or writes to this rank's.
    #[inline]
    pub(crate) fn lines(&self) -> Lines<'_, M> {
        Lines {
            stream: self,
            inner: self.inner.lock(),
        }
    }

    /// The memory that the boards are in.
    pub(crate) fn shared(&self) -> &Arc<M> {
        &self.shared
    }

    /// Before this rank sleeps: whoever writes to a board from now on wakes it. What was written before is seen by the look that has to follow.
    pub(crate) fn arm(&self) {
        self.own.store(SLEEPS, 1);
        // With the fence in `sleepers`: a peer sees that this rank sleeps, or what it has written is seen by the look that follows.
        M::fence(Ordering::SeqCst);
    }

    /// After it.
    pub(crate) fn disarm(&self) {
        self.own.store(SLEEPS, 0);
    }
}

/// The boards, in one thread's hands.
pub(crate) struct Lines<'a, M: Memory + ?Sized = dyn SharedMemory> {
    stream: &'a Stream<M>,
    inner: MutexGuard<'a, Inner<M::Words>>,
}

fn slot(seq: u64) -> usize {
    SLOTS + SLOT * (seq % DEPTH as u64) as usize
}

impl<M: Memory + ?Sized> Lines<'_, M> {
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
        // What is shown already does not say so any more.
        if said || !self.inner.flying.is_empty() {
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
            Announced::At(place) => match shared.lines(world[member], place, WORDS) {
                Some(words) => {
                    inner.peers[member] = Some(words);
                    inner.places[member] = place;
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
        let Some(words) = &self.inner.peers[member] else {
            return;
        };
        let at = slot(seq) + PAYLOAD + at;
        if out.len() < MANY {
            return words.read(at, out);
        }
        let place = self.inner.places[member] + 8 * at as u64;
        let stream = self.stream;
        let read = stream.shared.read(stream.world[member], place, out);
        debug_assert!(read, "its words are mapped");
    }

    /// The same bytes where they are: for kernels that read them there.
    #[inline]
    pub(crate) fn window(
        &self,
        member: usize,
        seq: u64,
        at: usize,
        bytes: usize,
    ) -> Option<Window<'_>> {
        let stream = self.stream;
        let place = self.inner.places[member] + 8 * (slot(seq) + PAYLOAD + at) as u64;
        let window = stream.shared.window(stream.world[member], place, bytes)?;
        Some(window.into())
    }

    /// Whether all are through with what the slot of this number holds.
    #[inline]
    pub(crate) fn may_post(&mut self, seq: u64) -> bool {
        // Its code could not tell how far this rank is.
        if seq.saturating_sub(self.own_over()) > OPEN {
            return false;
        }
        let held = self.inner.slots[(seq % DEPTH as u64) as usize];
        let same = |n: u64| (seq - n).is_multiple_of(DEPTH as u64);
        let earlier = self.inner.flying.iter().take_while(|n| **n < seq);
        // A slot takes operations in their order.
        let mut unshown = earlier.filter(|n| held.is_none_or(|held| held < **n));
        if unshown.any(|n| same(*n)) {
            return false;
        }
        let Some(held) = held else {
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
        let head = at + PAYLOAD + payload[0].len() / 8;
        let near = (at + LINE).saturating_sub(head);
        let (near, far) = payload[1].split_at(payload[1].len().min(8 * near));
        // The first line last, and at once: peers look at it all the time, and would take it away between two writes.
        let rest = head + near.len() / 8;
        if far.len() < MANY {
            own.fill(rest, far);
        } else {
            let stream = self.stream;
            let (me, place) = (stream.world[stream.me], stream.place + 8 * rest as u64);
            let room = stream.shared.window(me, place, far.len());
            debug_assert!(room.is_some(), "its own words");
            if let Some(room) = room {
                stream.writing.copy(room, far.into());
            }
        }
        own.fill(at + HASH, &hash.to_ne_bytes());
        own.fill(at + PAYLOAD, payload[0]);
        own.fill(head, near);
        let open = seq.saturating_sub(self.own_over()).min(OPEN);
        own.store(at, (seq + 1) << 8 | open);
        self.inner.slots[(seq % DEPTH as u64) as usize] = Some(seq);
    }

    fn is_posted(&self, seq: u64) -> bool {
        self.inner.slots[(seq % DEPTH as u64) as usize] == Some(seq)
    }

    /// Lets other threads at the boards meanwhile.
    pub(crate) fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        MutexGuard::unlocked(&mut self.inner, f)
    }

    /// Whether one of the members for which this holds was on the same processor, `number`, when it last waited; which this rank tells the others, too.
    pub(crate) fn is_beside(
        &mut self,
        number: u64,
        which: impl Fn(&mut Self, usize) -> bool,
    ) -> bool {
        let mine = number + 1;
        if self.inner.processor != mine {
            self.inner.processor = mine;
            self.stream.own.store(PROCESSOR, mine);
        }
        let me = self.stream.me;
        (0..self.stream.world.len()).any(|member| {
            let there = self.inner.peers[member].as_ref();
            member != me
                && there.is_some_and(|words| words.load(PROCESSOR) == mine)
                && which(self, member)
        })
    }

    /// Where the other members were when they last waited, as far as they have said so; `None` where one of a larger number than this rank's was on processor `number`, too.
    pub(crate) fn others_but_last(&self, number: u64) -> Option<SmallVec<[u64; 8]>> {
        let mut all = SmallVec::new();
        for (member, words) in self.inner.peers.iter().enumerate() {
            let said = words.as_ref().map_or(0, |words| words.load(PROCESSOR));
            let Some(cpu) = said.checked_sub(1) else {
                continue;
            };
            if cpu == number && member > self.stream.me {
                return None;
            }
            all.push(cpu);
        }
        Some(all)
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

    /// The members that sleep until something is written, as ranks of the job: to be woken by whoever has written.
    #[inline]
    pub(crate) fn sleepers(&mut self) -> SmallVec<[Rank; 4]> {
        // With the fence in `arm`: whoever goes to sleep sees what was written before this, or is seen here.
        M::fence(Ordering::SeqCst);
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

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle_transport::heap::{MappedHeaps, heaps};
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn info(me: u32, world_ranks: &[u32]) -> GroupInfo {
        GroupInfo {
            id: 9,
            rank: Rank(me),
            world_ranks: world_ranks.iter().map(|r| Rank(*r)).collect(),
            epoch: 0,
            initial_size: world_ranks.len() as u32,
            incarnation: 0,
        }
    }

    fn memories(n: u32) -> Vec<Arc<dyn SharedMemory>> {
        let heaps = heaps(n, 1 << 20).unwrap().into_iter();
        heaps
            .map(|heap: MappedHeaps| Arc::new(heap) as Arc<dyn SharedMemory>)
            .collect()
    }

    fn streams(n: u32) -> Vec<Stream> {
        let all: Vec<u32> = (0..n).collect();
        let memories = memories(n).into_iter().enumerate();
        memories
            .map(|(me, shared)| Stream::open(&shared, &info(me as u32, &all), 5).unwrap())
            .collect()
    }

    fn payload(rank: usize, seq: u64, n: usize) -> Vec<u8> {
        let byte = |i: usize| (i as u64 * 7 + seq * 31 + rank as u64 * 101) as u8;
        (0..n).map(byte).collect()
    }

    /// Lengths at the edges of words, of the first line, and of the slot.
    const LENGTHS: [usize; 11] = [0, 1, 7, 8, 47, 48, 49, 56, 4095, 4097, MOST];

    #[test]
    fn who_is_far_ahead_of_its_oldest_operation_waits_for_that() {
        let streams = streams(2);
        for stream in &streams {
            let mut lines = stream.lines();
            // What lies between goes by messages.
            lines.begin(0);
            lines.begin(201);
            assert!(lines.may_post(0));
            lines.post(0, 1, [&[], &[7]]);
            assert!(!lines.may_post(201), "nobody could tell that 0 is not over");
        }
        let mut lines = streams[1].lines();
        assert_eq!(lines.seen(0, 0, 1), Seen::There);
        lines.end(0, true);
        assert!(lines.may_post(201));
    }

    #[test]
    fn everybody_reads_what_everybody_has_shown_in_any_order_of_steps() {
        for world in [1, 2, 3, 5, 7, 8] {
            for seed in 0..8 {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                let streams = streams(world);
                let n = world as usize;
                // Some numbers go by messages, and are skipped by all.
                let numbers: Vec<u64> = (0..60).filter(|s| s % 7 != seed % 7).collect();
                let len = |seq: u64| LENGTHS[seq as usize % LENGTHS.len()];
                // Per rank: how many it has begun, and which of them it has shown and not ended.
                let mut begun = vec![0; n];
                let mut open: Vec<Vec<(u64, bool)>> = vec![vec![]; n];
                let mut over = vec![0; n];
                let mut idle = 0;
                while over.iter().any(|done| *done < numbers.len()) {
                    let me = rng.random_range(0..n);
                    let mut lines = streams[me].lines();
                    idle += 1;
                    assert!(idle < 200_000, "nobody gets on: {begun:?} {open:?}");
                    if begun[me] < numbers.len() && rng.random_bool(0.5) {
                        lines.begin(numbers[begun[me]]);
                        open[me].push((numbers[begun[me]], false));
                        begun[me] += 1;
                        idle = 0;
                    }
                    if open[me].is_empty() {
                        continue;
                    }
                    let i = rng.random_range(0..open[me].len());
                    let (seq, posted) = open[me][i];
                    if !posted {
                        if lines.may_post(seq) {
                            lines.post(seq, seq + 3, [&[], &payload(me, seq, len(seq))]);
                            open[me][i].1 = true;
                            idle = 0;
                        }
                        continue;
                    }
                    let others = (0..n).filter(|m| *m != me);
                    if others
                        .clone()
                        .any(|m| lines.seen(m, seq, seq + 3) != Seen::There)
                    {
                        continue;
                    }
                    for m in others {
                        let mut got = vec![0; len(seq)];
                        lines.read(m, seq, 0, &mut got);
                        assert_eq!(got, payload(m, seq, len(seq)), "{seq} of {m}, seed {seed}");
                    }
                    lines.end(seq, rng.random_bool(0.5));
                    open[me].remove(i);
                    over[me] += 1;
                    idle = 0;
                }
                assert!(streams.iter().all(|s| s.lines().is_idle()));
            }
        }
    }

    #[test]
    fn what_is_called_otherwise_or_given_up_is_seen() {
        let streams = streams(2);
        let mut first = streams[0].lines();
        first.begin(0);
        assert!(first.may_post(0));
        first.post(0, 11, [&1u64.to_ne_bytes(), &[2]]);
        let mut second = streams[1].lines();
        assert_eq!(second.seen(0, 1, 11), Seen::NotYet);
        assert_eq!(second.seen(0, 0, 12), Seen::Other);
        assert_eq!(second.seen(0, 0, 11), Seen::There);
        assert!(!second.is_through(0, 0));
        first.go_through(0);
        assert!(second.is_through(0, 0));
        first.give_up(0);
        first.give_up(4);
        assert_eq!(second.seen(0, 0, 11), Seen::GaveUp);
        assert_eq!(second.seen(0, 4, 11), Seen::NotYet);
    }

    #[test]
    fn a_sleeper_is_seen_until_it_wakes() {
        let streams = streams(3);
        assert!(streams[0].lines().sleepers().is_empty());
        streams[2].arm();
        assert_eq!(streams[0].lines().sleepers()[..], [Rank(2)]);
        streams[2].disarm();
        assert!(streams[0].lines().sleepers().is_empty());
    }

    #[test]
    fn the_last_of_those_on_a_processor_is_told_where_the_others_are() {
        let streams = streams(4);
        for (me, stream) in streams.iter().enumerate() {
            let mut lines = stream.lines();
            // All are found, and nobody has said anything.
            assert!(!lines.is_never());
            assert_eq!(lines.others_but_last(0).as_deref(), Some(&[][..]), "{me}");
        }
        // 0, 1 and 3 on processor 0, 2 on processor 1.
        for (me, number) in [(0, 0), (1, 0), (2, 1), (3, 0)] {
            streams[me].lines().is_beside(number, |_, _| true);
        }
        let others = |me: usize, number| streams[me].lines().others_but_last(number);
        assert_eq!(others(0, 0), None);
        assert_eq!(others(1, 0), None);
        assert_eq!(others(3, 0).as_deref(), Some(&[0, 0, 1][..]));
        assert_eq!(others(2, 1).as_deref(), Some(&[0, 0, 0][..]));
        // It has gone: now 1 is the last one there.
        streams[3].lines().is_beside(1, |_, _| true);
        assert_eq!(others(1, 0).as_deref(), Some(&[0, 1, 1][..]));
    }

    #[test]
    fn a_member_that_can_have_no_board_is_seen_by_all() {
        let memories = memories(3);
        let all = [0, 1, 2];
        let first = Stream::open(&memories[0], &info(0, &all), 5).unwrap();
        assert!(!first.lines().is_never());
        // Somebody is not mapped here.
        assert!(Stream::open(&memories[1], &info(1, &[0, 1, 2, 3]), 5).is_none());
        assert!(first.lines().is_never());
        assert_eq!(first.lines().seen(1, 0, 0), Seen::Never);
        let third = Stream::open(&memories[2], &info(2, &all), 5).unwrap();
        assert!(third.lines().is_never());
    }
}
