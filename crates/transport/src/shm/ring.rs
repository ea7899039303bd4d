//! Sleeping and waking across a pair of rings.
//!
//! A side that is about to sleep says so in shared memory and then looks once more; the other one publishes and then looks whether anybody sleeps.
//! Both put a sequentially consistent fence between the two, so at least one of them sees the other (Dekker's argument): no wake is lost.
//! Whoever finds a sleeper clears its word and sends one byte over the pair's socket, which makes the sleeper's selector readable.
//! A word stays until the other side clears it: a thread that makes progress while another one of its process sleeps does not take the sleeper's bell away.

use super::raw_ring::Map;
use rustix::net::SendFlags;
use std::{
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
            fence,
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
pub(crate) struct Side {
    map: Arc<Map>,
    me: usize,
    /// The peer's head up to which everything has been looked at.
    read: AtomicU64,
    /// The peer's tail at which there was no room.
    full: AtomicU64,
    open: AtomicBool,
}

impl Side {
    pub(crate) fn new(map: Arc<Map>, me: usize) -> Side {
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

    pub(crate) fn map(&self) -> &Arc<Map> {
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
        fence(SeqCst);
        self.has_come(self.read.load(Relaxed)) || (full != NOWHERE && self.has_room(full))
    }

    /// Wakes the other side if it sleeps for this, after something was published.
    pub(crate) fn call(&self, what: u64, bell: impl AsFd) {
        fence(SeqCst);
        let word = self.map.sleeps(1 - self.me);
        if word.load(Relaxed) & what != 0 && word.swap(0, Relaxed) & what != 0 {
            // It fails where the peer is gone, which its socket tells, or where unread bytes fill the socket, which wake just as well.
            let _ = rustix::net::send(bell, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}
