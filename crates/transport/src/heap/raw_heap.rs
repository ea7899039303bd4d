//! Mapped memory: a heap of this process's, and those of others.
//!
//! # Safety
//! The pages of a heap are written by other processes, so nothing here makes a reference to their bytes while an operation may be under way: they are reached through a [`WindowMut`], where a racing write gives torn bytes at worst.
//! The one exception is [`HeapBlock`], whose owner sees a slice while no operation has it; the protocol (and, after a failure, [`Reserve::replace`](super::raw_reserve::Reserve::replace)) keeps the others away then.
//! A mapping lives as long as its [`Map`]; its file cannot shrink, because the seal is checked before it is mapped.

use super::{SharedHeap, directory::Directory, marks::Marks, promises::Promises};
use crate::sync::{self, Shared};
use gaggle_core::{Block, SharedWords, Stores, Window, WindowMut, copy_window};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, SealFlags},
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags},
};
use std::{
    any::Any,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::{NonNull, null_mut},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// No peer's heap is larger; a claim beyond it is a mistake.
const MAX: u64 = 1 << 46;
/// Mappings begin where large pages do.
const HUGE: usize = super::table::HUGE as usize;

/// A file of memory, mapped whole.
#[derive(Debug)]
pub(super) struct Map {
    base: NonNull<u8>,
    len: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping belongs to the value; its bytes are reached by copies that any thread may make.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// A new one, all 0 and of no cost until it is written, sealed against any change of its length.
    pub(super) fn create(len: u64) -> Result<Map, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("gaggle-heap", flags)?;
        rustix::fs::ftruncate(&fd, len)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Map::of(fd, len)
    }

    /// Maps a peer's. One that could shrink is refused: reading beyond its end would kill this process.
    pub(super) fn open(fd: OwnedFd, least: u64) -> Result<Map, Errno> {
        let seals = rustix::fs::fcntl_get_seals(&fd)?;
        let len = u64::try_from(rustix::fs::fstat(&fd)?.st_size).map_err(|_| Errno::INVAL)?;
        if !seals.contains(SealFlags::SHRINK) || !(least..=MAX).contains(&len) {
            return Err(Errno::INVAL);
        }
        Map::of(fd, len)
    }

    fn of(fd: OwnedFd, len: u64) -> Result<Map, Errno> {
        let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        let all = len.checked_add(HUGE).ok_or(Errno::INVAL)?;
        // SAFETY: a fresh reservation at a place of the system's choice overlaps nothing.
        let room = unsafe {
            rustix::mm::mmap_anonymous(
                null_mut(),
                all,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let before = room.addr().next_multiple_of(HUGE) - room.addr();
        // SAFETY: `before` is less than a large page, and one more than `len` was reserved.
        let base = unsafe { room.cast::<u8>().add(before) };
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: within the reservation made just now, which nobody else knows of.
        let mapped = unsafe { rustix::mm::mmap(base.cast(), len, prot, flags, &fd, 0) };
        // SAFETY: the ends of the reservation that are not used, or all of it; nothing refers to them.
        unsafe {
            if let Err(e) = mapped {
                let _ = rustix::mm::munmap(room, all);
                return Err(e);
            }
            if before > 0 {
                let _ = rustix::mm::munmap(room, before);
            }
            let end = before + len.next_multiple_of(rustix::param::page_size());
            if end < all {
                let _ = rustix::mm::munmap(room.cast::<u8>().add(end).cast(), all - end);
            }
        }
        let base = NonNull::new(base).ok_or(Errno::FAULT)?;
        Ok(Map { base, len, fd })
    }

    /// For passing on.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Its length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }

    /// The place of these bytes; `None` where they are not in it.
    pub(super) fn place(&self, at: NonNull<u8>, bytes: usize) -> Option<u64> {
        let at = at.addr().get().checked_sub(self.base.addr().get())?;
        (at <= self.len && bytes <= self.len - at).then_some(at as u64)
    }

    fn reach(&self, place: u64, bytes: usize) -> Option<*mut u8> {
        let at = usize::try_from(place).ok()?;
        let inside = at <= self.len && bytes <= self.len - at;
        // SAFETY: within the mapping, as just checked.
        inside.then(|| unsafe { self.base.as_ptr().add(at) })
    }

    /// These bytes of it; `None` where it does not have them.
    pub(super) fn window(&self, place: u64, bytes: usize) -> Option<WindowMut<'_>> {
        let start = NonNull::new(self.reach(place, bytes)?)?;
        // SAFETY: mapped for reading and writing, as just checked, for as long as `self` is borrowed; references to the bytes of a heap are made by the owner of a block alone, which keeps them out of operations.
        Some(unsafe { WindowMut::new(start, bytes) })
    }

    /// Copies out; `false` where it does not have these bytes.
    pub(super) fn read(&self, place: u64, out: &mut [u8]) -> bool {
        let from = self.window(place, out.len());
        from.is_some_and(|from| {
            copy_window(WindowMut::from(out), from.into(), Stores::Cached);
            true
        })
    }

    /// Copies in; `false` where it does not have these bytes.
    pub(super) fn write(&self, place: u64, bytes: &[u8]) -> bool {
        let to = self.window(place, bytes.len());
        to.is_some_and(|to| {
            copy_window(to, Window::from(bytes), Stores::Cached);
            true
        })
    }

    /// Words of it, which keep it mapped; `None` where it does not have them, or they are not aligned.
    pub(super) fn words(self: &Arc<Self>, place: u64, n: usize) -> Option<SharedWords> {
        let at = NonNull::new(self.reach(place, n.checked_mul(8)?)?)?;
        let keep = Arc::clone(self) as Arc<dyn Any + Send + Sync>;
        // SAFETY: within the mapping, as just checked, which lives as long as `keep`. This process reaches a heap's bytes by copies that races do not make undefined; a block's owner, the only one with a slice, sees to it that it makes none of these words.
        unsafe { SharedWords::new(at, n, keep) }
    }

    /// Word `n` of its first page.
    pub(super) fn word(&self, n: usize) -> &AtomicU64 {
        assert!(n < super::HEADER as usize / 8, "the first bytes only");
        // SAFETY: no map is shorter than its header (`create` and `open` see to it); page-aligned; these bytes are reached through atomics alone.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(8 * n).cast()) }
    }

    /// The word at a place; `None` where it does not have it whole, or it is not aligned.
    pub(super) fn shared_word(&self, place: u64) -> Option<&AtomicU64> {
        let at = self.reach(place, size_of::<u64>())?;
        // SAFETY: eight mapped bytes, as just checked, aligned, as checked here; words that are flags are reached through atomics alone, and a place that is none holds bytes that only copies of this module's touch.
        (at.addr().is_multiple_of(8)).then(|| unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// Where these bytes are in this process.
    pub(super) fn start_of(&self, place: u64, len: usize) -> Option<NonNull<u8>> {
        NonNull::new(self.reach(place, len)?)
    }

    /// Gives back the private pages that have taken the place of some of its own, once nobody needs their content.
    pub(super) fn empty(&self, at: u64, len: usize) {
        if let Some(start) = self.reach(at, len) {
            // SAFETY: the caller's block is gone, so nobody refers to these pages; they read as zeros from now on.
            let _ = unsafe { rustix::mm::madvise(start.cast(), len, Advice::LinuxDontNeed) };
        }
    }

    /// Asks for large pages. Where there are none left the system uses small ones, and says nothing.
    pub(super) fn want_large(&self, at: u64, len: usize) -> Result<(), Errno> {
        let start = self.reach(at, len).ok_or(Errno::INVAL)?;
        // SAFETY: advice on mapped pages changes no content.
        unsafe { rustix::mm::madvise(start.cast(), len, Advice::LinuxHugepage) }
    }

    /// Gives pages back to the system: they are 0 when they are used next.
    pub(super) fn clear(&self, at: u64, len: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.fd, flags, at, len)
    }

    /// A block of this heap's own, at a place that the table has given out.
    pub(super) fn block(heap: &Arc<SharedHeap>, at: u64, bytes: usize) -> Option<HeapBlock> {
        let start = NonNull::new(heap.map.reach(at, bytes)?)?;
        Some(HeapBlock {
            start,
            len: bytes,
            at,
            heap: Arc::clone(heap),
        })
    }
}

impl Shared for Map {
    type Word = AtomicU64;
    fn fence(order: Ordering) {
        sync::fence(order);
    }
}

impl Marks for Map {
    const N_NAMES: u64 = super::N_NAMES;
    fn count(&self) -> &AtomicU64 {
        self.word(super::COUNT)
    }
    fn name(&self, n: u64) -> &AtomicU64 {
        self.word(super::FIRST + (n % super::N_NAMES) as usize)
    }
}

impl Directory for Map {
    const N_ENTRIES: usize = super::N_ENTRIES;
    const MOST: usize = super::MOST_ENTRIES;
    fn full(&self) -> &AtomicU64 {
        self.word(super::FULL)
    }
    fn number(&self, entry: usize) -> &AtomicU64 {
        self.word(super::ENTRIES + 2 * entry)
    }
    fn place(&self, entry: usize) -> &AtomicU64 {
        self.word(super::ENTRIES + 2 * entry + 1)
    }
}

impl Promises for Map {
    fn promised(&self) -> &AtomicU64 {
        self.word(super::PROMISED)
    }
    fn touched(&self) -> u64 {
        // Blocks of 512 bytes, whatever the pages are. Of a file that cannot be asked all counts as promised.
        let blocks = rustix::fs::fstat(&self.fd).map_or(0, |stat| stat.st_blocks);
        u64::try_from(blocks).unwrap_or(0).saturating_mul(512)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, replaced parts included; every borrow of it has ended with `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A piece of this process's own heap.
#[derive(Debug)]
pub(super) struct HeapBlock {
    start: NonNull<u8>,
    len: usize,
    at: u64,
    heap: Arc<SharedHeap>,
}

// SAFETY: it owns its bytes, and keeps the mapping alive.
unsafe impl Send for HeapBlock {}
// SAFETY: it has no interior of its own.
unsafe impl Sync for HeapBlock {}

// SAFETY: the table hands each page out once, page-aligned; the system has initialised it; the mapping stays at its address as long as the heap, which this value keeps.
unsafe impl Block for HeapBlock {
    fn start(&self) -> NonNull<u8> {
        self.start
    }
    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        self.heap.take_back(self.at);
    }
}
