//! Two byte rings between two processes, and the words beside them: mappings, indices, and the only pointers into them.
//!
//! # Layout
//! A sealed memfd: [`CONTROL`] bytes of words, then the ring that side 0 writes, then the one that side 1 writes.
//! Each ring is mapped twice in a row, so that any part of it, however it wraps, is one slice.
//!
//! | at | word, 64 bits, written by |
//! |---|---|
//! | 0, 256 | head of ring 0, 1: bytes ever written; its writer |
//! | 128, 384 | tail of ring 0, 1: bytes ever read; its reader |
//! | 512, 640 | what side 0, 1 sleeps for; the side itself, cleared by the other |
//!
//! # Safety
//! The other process maps the same pages, and the protocol says who touches which part: what lies between tail and head is the reader's, the rest is the writer's; both words are atomics, stored with release and read with acquire, and a value that is out of range is an error before it is used.
//! So a peer that keeps the protocol never writes a byte for which a slice exists here.
//!
//! One that breaks it can change bytes that somebody here reads, and no more than that: mappings cannot shrink (the seals are checked), every slice's range comes from indices kept on this side, and whatever a decision is taken by (frame headers and heads) is copied out with one volatile read first and checked afterwards.
//! Payload is handed to the sink where it lies, which folds, converts or copies it: any bytes are values there, and torn ones are no worse than wrong ones, which such a peer may send at any time.
//! Formally a write by it while a slice exists is a race that the language does not define. The compiler cannot see it, and it is no gain for an attacker: peers run as the same user, who may write to this process's memory anyway, and know the job's secret.

use crate::sync::{self, Shared, Word};
use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags},
};
use std::{
    os::fd::BorrowedFd,
    ptr::{NonNull, null_mut},
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{self, Acquire, Release},
        },
    },
};

/// Bytes before the first ring; alone on their pages whatever the size of a page.
pub(crate) const CONTROL: usize = 64 << 10;
/// Smallest ring: whole pages whatever their size.
pub(crate) const SMALLEST: usize = 64 << 10;
/// Largest ring.
pub(crate) const LARGEST: usize = 16 << 20;
/// Bytes that can be copied out at once, in front of everything else.
pub(crate) const FRONT: usize = 256;

/// The memory of one pair, mapped.
#[derive(Debug)]
pub(crate) struct Map {
    control: NonNull<u8>,
    rings: [NonNull<u8>; 2],
    size: usize,
}

// SAFETY: the mappings belong to the value; words are reached as atomics, rings through `Reader` and `Writer`, of which the owner makes one each.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

/// The words of a pair, and how long its rings are: what the protocol needs, without the bytes.
pub(crate) trait Rings: Shared {
    /// Bytes of each ring.
    fn size(&self) -> usize;
    /// Bytes ever written to a ring, as its writer says.
    fn head(&self, ring: usize) -> &Self::Word;
    /// Bytes ever read from a ring, as its reader says.
    fn tail(&self, ring: usize) -> &Self::Word;
    /// What a side sleeps for.
    fn sleeps(&self, side: usize) -> &Self::Word;
}

/// Whether a ring can have this size.
pub(crate) fn is_size(size: usize) -> bool {
    size.is_power_of_two() && (SMALLEST..=LARGEST).contains(&size)
}

/// Length of the memory for two rings of `size` bytes.
pub(crate) fn bytes_of(size: usize) -> usize {
    CONTROL + 2 * size
}

impl Map {
    /// Maps the memory of a pair, whose length and seals have been checked.
    ///
    /// # Errors
    /// `INVAL`: not a size that rings have; or what the system says.
    pub(crate) fn new(fd: BorrowedFd<'_>, size: usize) -> Result<Map, Errno> {
        if !is_size(size) {
            return Err(Errno::INVAL);
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at a place of the system's choice overlaps nothing.
        let control =
            unsafe { rustix::mm::mmap(null_mut(), CONTROL, prot, MapFlags::SHARED, fd, 0) }?;
        let mut map = Map {
            control: NonNull::new(control.cast()).ok_or(Errno::FAULT)?,
            rings: [NonNull::dangling(); 2],
            size: 0,
        };
        let first = twice(fd, CONTROL, size)?;
        match twice(fd, CONTROL + size, size) {
            Ok(second) => {
                (map.rings, map.size) = ([first, second], size);
                Ok(map)
            }
            Err(e) => {
                unmap(first, 2 * size);
                Err(e)
            }
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: within the control mapping, which outlives the borrow; aligned, since the mapping is and `at` is a multiple of 128; both processes reach it as an atomic.
        unsafe { AtomicU64::from_ptr(self.control.as_ptr().add(at).cast()) }
    }

    fn at(&self, ring: usize, position: u64) -> *mut u8 {
        let offset = position as usize & (self.size - 1);
        // SAFETY: below `size`, and the ring is mapped for twice that.
        unsafe { self.rings[ring & 1].as_ptr().add(offset) }
    }
}

impl Shared for Map {
    type Word = AtomicU64;
    fn fence(order: Ordering) {
        sync::fence(order);
    }
}

impl Rings for Map {
    fn size(&self) -> usize {
        self.size
    }
    fn head(&self, ring: usize) -> &AtomicU64 {
        self.word(256 * (ring & 1))
    }
    fn tail(&self, ring: usize) -> &AtomicU64 {
        self.word(256 * (ring & 1) + 128)
    }
    fn sleeps(&self, side: usize) -> &AtomicU64 {
        self.word(512 + 128 * (side & 1))
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        unmap(self.control, CONTROL);
        if self.size > 0 {
            for ring in self.rings {
                unmap(ring, 2 * self.size);
            }
        }
    }
}

fn unmap(at: NonNull<u8>, len: usize) {
    // SAFETY: a whole mapping of ours; every borrow of it has ended with its owner.
    let _ = unsafe { rustix::mm::munmap(at.as_ptr().cast(), len) };
}

/// Maps `len` bytes of the file from `at` on twice in a row.
fn twice(fd: BorrowedFd<'_>, at: usize, len: usize) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a fresh mapping at a place of the system's choice overlaps nothing.
    let base = unsafe {
        rustix::mm::mmap_anonymous(
            null_mut(),
            2 * len,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }?;
    let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::FAULT)?;
    for half in 0..2 {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: replaces a half of the reservation just made, which nobody else knows of.
        let mapped = unsafe {
            let place = base.as_ptr().add(half * len);
            rustix::mm::mmap(place.cast(), len, prot, flags, fd, at as u64)
        };
        if let Err(e) = mapped {
            unmap(base, 2 * len);
            return Err(e);
        }
    }
    Ok(base)
}

/// An index that no healthy peer writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("its {which} is at {theirs}, between {lo} and {hi} is possible")]
pub(crate) struct OutOfRange {
    which: &'static str,
    theirs: u64,
    lo: u64,
    hi: u64,
}

/// The reading end of a ring; one exists per ring and process.
#[derive(Debug)]
pub(crate) struct Reader<M = Map> {
    map: Arc<M>,
    ring: usize,
    /// The tail as the peer knows it.
    published: u64,
    /// What has been consumed.
    lo: u64,
    /// The head as last seen.
    hi: u64,
}

impl<M: Rings> Reader<M> {
    /// For the side that does not write `ring`.
    pub(crate) fn new(map: Arc<M>, ring: usize) -> Reader<M> {
        Reader {
            map,
            ring,
            published: 0,
            lo: 0,
            hi: 0,
        }
    }

    /// Bytes of the ring.
    pub(crate) fn size(&self) -> usize {
        self.map.size()
    }

    /// The head as last seen.
    pub(crate) fn seen(&self) -> u64 {
        self.hi
    }

    /// Looks how far the peer has written. The number of bytes that are new.
    pub(crate) fn look(&mut self) -> Result<usize, OutOfRange> {
        // Acquire: with the peer's release, the bytes below are there.
        let theirs = self.map.head(self.ring).load(Acquire);
        let most = self.published + self.map.size() as u64;
        if !(self.hi..=most).contains(&theirs) {
            return Err(OutOfRange {
                which: "head",
                theirs,
                lo: self.hi,
                hi: most,
            });
        }
        let new = theirs - self.hi;
        self.hi = theirs;
        Ok(new as usize)
    }

    pub(crate) fn len(&self) -> usize {
        (self.hi - self.lo) as usize
    }

    pub(crate) fn take(&mut self, n: usize) {
        debug_assert!(n <= self.len(), "taken more than there is");
        self.lo += n.min(self.len()) as u64;
    }

    /// Consumes everything that was seen.
    pub(crate) fn clear(&mut self) {
        self.lo = self.hi;
    }

    /// Bytes that the peer does not know to be free.
    pub(crate) fn unpublished(&self) -> usize {
        (self.lo - self.published) as usize
    }

    /// Gives what is consumed back to the peer. False: there was nothing to give.
    pub(crate) fn publish(&mut self) -> bool {
        if self.lo == self.published {
            return false;
        }
        self.published = self.lo;
        // Release: our reads of these bytes come before the peer's next writes.
        self.map.tail(self.ring).store(self.lo, Release);
        true
    }
}

impl Reader {
    /// What has been seen and not been consumed.
    pub(crate) fn full(&self) -> &[u8] {
        // SAFETY: `look` has checked that this is at most `size` bytes, and the ring is mapped twice in a row; the peer, if it keeps the protocol, writes none of them before the tail has passed them. See the module's text for one that does not.
        unsafe { std::slice::from_raw_parts(self.map.at(self.ring, self.lo), self.len()) }
    }

    /// A copy of what comes next. What lies beyond `len` in it means nothing.
    pub(crate) fn front(&self) -> [u8; FRONT] {
        let at = self.map.at(self.ring, self.lo).cast::<[u8; FRONT]>();
        // SAFETY: a ring is longer than this and mapped twice in a row; alignment 1; every bit pattern is a value. Volatile: read once, so that what is checked is what is used.
        unsafe { at.read_volatile() }
    }
}

/// The writing end of a ring; one exists per ring and process.
#[derive(Debug)]
pub(crate) struct Writer<M = Map> {
    map: Arc<M>,
    ring: usize,
    /// The peer's tail as last seen.
    tail: u64,
    /// The head as the peer knows it.
    lo: u64,
    /// What has been written.
    hi: u64,
}

impl<M: Rings> Writer<M> {
    /// For the side that writes `ring`.
    pub(crate) fn new(map: Arc<M>, ring: usize) -> Writer<M> {
        Writer {
            map,
            ring,
            tail: 0,
            lo: 0,
            hi: 0,
        }
    }

    /// The peer's tail as last seen.
    pub(crate) fn seen(&self) -> u64 {
        self.tail
    }

    /// Looks how far the peer has read.
    pub(crate) fn look(&mut self) -> Result<(), OutOfRange> {
        // Acquire: with the peer's release, its reads of what is free now are over.
        let theirs = self.map.tail(self.ring).load(Acquire);
        if !(self.tail..=self.lo).contains(&theirs) {
            return Err(OutOfRange {
                which: "tail",
                theirs,
                lo: self.tail,
                hi: self.lo,
            });
        }
        self.tail = theirs;
        Ok(())
    }

    /// Bytes that can be written before the peer has read more.
    pub(crate) fn free(&self) -> usize {
        self.map.size() - (self.hi - self.tail) as usize
    }

    /// Bytes written that the peer does not know of.
    pub(crate) fn len(&self) -> usize {
        (self.hi - self.lo) as usize
    }

    /// The next `n` bytes have been written.
    pub(crate) fn filled(&mut self, n: usize) {
        debug_assert!(n <= self.free(), "more written than there is room for");
        self.hi += n.min(self.free()) as u64;
    }

    /// Takes back what the peer does not know of.
    pub(crate) fn clear(&mut self) {
        self.hi = self.lo;
    }

    /// Shows what is written to the peer. The number of bytes.
    pub(crate) fn publish(&mut self) -> usize {
        let n = self.len();
        if n > 0 {
            self.lo = self.hi;
            // Release: the bytes come before the head.
            self.map.head(self.ring).store(self.hi, Release);
        }
        n
    }
}

impl Writer {
    /// `n` bytes of what is free, `skip` bytes from its beginning; fewer where there are not as many.
    pub(crate) fn room(&mut self, skip: usize, n: usize) -> &mut [u8] {
        let free = self.free();
        let skip = skip.min(free);
        let n = n.min(free - skip);
        let at = self.map.at(self.ring, self.hi + skip as u64);
        // SAFETY: `skip + n` is at most what is free, so at most `size`, and the ring is mapped twice in a row; `&mut self` is the only way to what is free of this ring, and the peer, if it keeps the protocol, reads none of it before the head has passed it.
        unsafe { std::slice::from_raw_parts_mut(at, n) }
    }
}

/// For tests: what a hostile peer does.
#[cfg(test)]
impl Map {
    pub(crate) fn set_head(&self, ring: usize, to: u64) {
        self.head(ring).store(to, Release);
    }

    pub(crate) fn set_tail(&self, ring: usize, to: u64) {
        self.tail(ring).store(to, Release);
    }
}
