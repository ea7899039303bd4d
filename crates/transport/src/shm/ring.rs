//! Sleeping and waking across a pair of rings.
//!
//! A side that is about to sleep says so in shared memory and then looks once more; the other one publishes and then looks whether anybody sleeps.
//! Both put a sequentially consistent fence between the two, so at least one of them sees the other (Dekker's argument): no wake is lost.
//! Whoever finds a sleeper clears its word and sends one byte over the pair's socket, which makes the sleeper's selector readable.
//! A word stays until the other side clears it: a thread that makes progress while another one of its process sleeps does not take the sleeper's bell away.

use super::raw_ring::{Map, Rings};
use crate::sync::Word;
use rustix::net::SendFlags;
use std::{
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

/// Wake me when there is something to read.
pub(crate) const FOR_DATA: u64 = 1;
/// Wake me when there is room to write.
pub(crate) const FOR_ROOM: u64 = 2;
/// No position: nothing is waited for.
const NOWHERE: u64 = u64::MAX;

/// One side of a pair, as whoever goes to sleep sees it.
#[derive(Debug)]
pub(crate) struct Side<M = Map> {
    map: Arc<M>,
    me: usize,
    /// The peer's head up to which everything has been looked at.
    read: AtomicU64,
    /// The peer's tail at which there was no room.
    full: AtomicU64,
    open: AtomicBool,
}

impl<M: Rings> Side<M> {
    pub(crate) fn new(map: Arc<M>, me: usize) -> Side<M> {
        Side {
            map,
            me,
            read: AtomicU64::new(0),
            full: AtomicU64::new(NOWHERE),
            open: AtomicBool::new(true),
        }
    }

    /// The ring that this side reads.
    pub(crate) fn input(&self) -> usize {
        1 - self.me
    }

    /// The ring that this side writes.
    pub(crate) fn output(&self) -> usize {
        self.me
    }

    pub(crate) fn map(&self) -> &Arc<M> {
        &self.map
    }

    /// The peer has written more than this.
    pub(crate) fn has_come(&self, seen: u64) -> bool {
        self.map.head(self.input()).load(Relaxed) != seen
    }

    /// The peer has read more than this.
    pub(crate) fn has_room(&self, seen: u64) -> bool {
        self.map.tail(self.output()).load(Relaxed) != seen
    }

    /// How far this side has come; `full` is the peer's tail where room is waited for.
    ///
    /// Relaxed: `arm` is called by threads that are ordered after this one by the transport's lock, and an older value makes it look again, not sleep.
    pub(crate) fn note(&self, read: u64, full: Option<u64>) {
        self.read.store(read, Relaxed);
        self.full.store(full.unwrap_or(NOWHERE), Relaxed);
    }

    /// The link is closed: nothing is waited for any more.
    pub(crate) fn close(&self) {
        self.open.store(false, Relaxed);
    }

    /// Asks to be woken. True: there is something to do already.
    pub(crate) fn arm(&self) -> bool {
        if !self.open.load(Relaxed) {
            return false;
        }
        let full = self.full.load(Relaxed);
        let wish = FOR_DATA | if full == NOWHERE { 0 } else { FOR_ROOM };
        self.map.sleeps(self.me).store(wish, Relaxed);
        // With the fence in `call`: the other side sees the word, or what it has published is seen here.
        M::fence(SeqCst);
        self.has_come(self.read.load(Relaxed)) || (full != NOWHERE && self.has_room(full))
    }

    /// Whether the other side sleeps for this, after something was published; then its word is cleared, and the caller rings.
    fn wakes(&self, what: u64) -> bool {
        M::fence(SeqCst);
        let word = self.map.sleeps(1 - self.me);
        // Whoever clears the word rings, whatever it says by then: the other side may have come back meanwhile and sleep for something else.
        word.load(Relaxed) & what != 0 && word.swap(0, Relaxed) != 0
    }

    /// Wakes the other side if it sleeps for this, after something was published.
    pub(crate) fn call(&self, what: u64, bell: impl AsFd) {
        if self.wakes(what) {
            // It fails where the peer is gone, which its socket tells, or where unread bytes fill the socket, which wake just as well.
            let _ = rustix::net::send(bell, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}

/// Every order in which the two sides can run.
#[cfg(test)]
mod models {
    use super::*;
    use crate::{
        models::{self, thread},
        shm::raw_ring::{Reader, Writer},
        sync::Shared,
    };
    use loom::sync::Notify;
    use std::sync::atomic::Ordering;

    /// Bytes of a ring.
    const SIZE: usize = 2;

    /// A pair's memory: words, and ring 0, whose bytes are relaxed words: where the order is not kept, a model sees an old one.
    struct Pair {
        words: [models::AtomicU64; 6],
        cells: [models::AtomicU64; SIZE],
        bells: [Notify; 2],
    }

    impl Pair {
        fn new() -> Arc<Pair> {
            Arc::new(Pair {
                words: std::array::from_fn(|_| models::AtomicU64::new(0)),
                cells: std::array::from_fn(|_| models::AtomicU64::new(0)),
                bells: [Notify::new(), Notify::new()],
            })
        }
    }

    impl Shared for Pair {
        type Word = models::AtomicU64;
        fn fence(order: Ordering) {
            loom::sync::atomic::fence(order);
        }
    }

    impl Rings for Pair {
        fn size(&self) -> usize {
            SIZE
        }
        fn head(&self, ring: usize) -> &models::AtomicU64 {
            &self.words[ring]
        }
        fn tail(&self, ring: usize) -> &models::AtomicU64 {
            &self.words[2 + ring]
        }
        fn sleeps(&self, side: usize) -> &models::AtomicU64 {
            &self.words[4 + side]
        }
    }

    /// Writes bytes 1, 2, ... into ring 0, each shown and called for by itself; sleeps where there is no room.
    fn write(pair: &Arc<Pair>, n: u64) {
        let side = Side::new(Arc::clone(pair), 0);
        let mut writer = Writer::new(Arc::clone(pair), 0);
        for i in 0..n {
            writer.look().unwrap();
            while writer.free() == 0 {
                side.note(0, Some(writer.seen()));
                if !side.arm() {
                    pair.bells[0].wait();
                }
                writer.look().unwrap();
            }
            pair.cells[i as usize % SIZE].store(i + 1, Relaxed);
            writer.filled(1);
            writer.publish();
            if side.wakes(FOR_DATA) {
                pair.bells[1].notify();
            }
        }
    }

    /// Reads as many, asleep while there are none.
    fn read(pair: &Arc<Pair>, n: u64) {
        let side = Side::new(Arc::clone(pair), 1);
        let mut reader = Reader::new(Arc::clone(pair), 0);
        let mut got = 0;
        while got < n {
            reader.look().unwrap();
            while reader.len() > 0 {
                let value = pair.cells[got as usize % SIZE].load(Relaxed);
                got += 1;
                assert_eq!(value, got);
                reader.take(1);
                reader.publish();
                if side.wakes(FOR_ROOM) {
                    pair.bells[0].notify();
                }
            }
            side.note(reader.seen(), None);
            if got < n && !side.arm() {
                pair.bells[1].wait();
            }
        }
    }

    /// With at most two preemptions, which find every order that matters here; more take minutes.
    fn explore(body: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(body);
    }

    fn both(n: u64) {
        explore(move || {
            let pair = Pair::new();
            let there = Arc::clone(&pair);
            let writer = thread::spawn(move || write(&there, n));
            read(&pair, n);
            writer.join().unwrap();
        });
    }

    #[test]
    fn loom_what_is_written_is_read_and_no_wake_is_lost() {
        both(1);
        both(2);
    }

    #[test]
    fn loom_a_full_ring_is_written_on_when_there_is_room_again() {
        both(3);
    }

    /// A side sleeps for data and room, comes back for another reason, and sleeps for data alone, while the other side is about to call it for the room.
    #[test]
    fn loom_a_wish_that_changes_while_it_is_answered_is_not_lost() {
        explore(|| {
            let pair = Pair::new();
            let there = Arc::clone(&pair);
            let other = thread::spawn(move || {
                let side = Side::new(Arc::clone(&there), 1);
                let ring = |what| {
                    if side.wakes(what) {
                        there.bells[0].notify();
                    }
                };
                there.tail(0).store(1, Ordering::Release);
                ring(FOR_ROOM);
                there.head(1).store(1, Ordering::Release);
                ring(FOR_DATA);
            });
            let side = Side::new(Arc::clone(&pair), 0);
            side.note(0, Some(0));
            side.arm();
            side.note(0, None);
            while !side.has_come(0) {
                if !side.arm() {
                    pair.bells[0].wait();
                }
            }
            other.join().unwrap();
        });
    }
}
