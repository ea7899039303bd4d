//! Memory that several processes have mapped: segments, copies in and out of them, arrival lines, and buffers of the heap.
//!
//! # Safety
//! A segment's pages are written by other processes, so nothing here makes a reference to their bytes while an operation may be under way: they are copied word by word with relaxed atomics, which give torn tiles at worst and never undefined values.
//! The one exception is [`HeapVec`], whose owner sees a slice while no operation has it; the protocol (and, after a failure, [`Segment::sever`]) keeps the others away then.
//! Mappings live as long as their [`Segment`]; their length cannot shrink, because the seals are checked before mapping.

use gaggle_core::{Element, Space, StableBuf};
use rustix::{
    fs::{MemfdFlags, SealFlags},
    io::Errno,
    mm::{MapFlags, MremapFlags, ProtFlags},
};
use std::{
    ffi::c_void,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::{NonNull, null_mut},
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

/// Bytes before the heap: the arrival line, alone on its pages whatever their size.
const LINE: usize = 64 << 10;
/// No peer's segment is larger; a claim beyond it is a mistake.
const MAX: usize = 1 << 40;

/// One rank's shared memory: an arrival line, then its heap. Nameless; gone when the last process that has mapped it is.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    len: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping belongs to the value and is reached through atomics, which any thread may use.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// A new one with room for `heap` bytes, all 0, sealed against any change of its length.
    ///
    /// # Errors
    /// The system gives no memory.
    pub fn create(heap: usize) -> Result<Segment, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("gaggle-heap", flags)?;
        let len = LINE + pages(heap);
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Segment::map(fd, len)
    }

    /// Maps a peer's. One that could shrink under our feet is refused: reading beyond its end would kill us.
    ///
    /// # Errors
    /// `INVAL`: not sealed, or of an impossible length; whatever the system says.
    pub fn open(fd: OwnedFd) -> Result<Segment, Errno> {
        let seals = rustix::fs::fcntl_get_seals(&fd)?;
        let len = usize::try_from(rustix::fs::fstat(&fd)?.st_size).map_err(|_| Errno::INVAL)?;
        if !seals.contains(SealFlags::SHRINK) || !(LINE..=MAX).contains(&len) {
            return Err(Errno::INVAL);
        }
        Segment::map(fd, len)
    }

    fn map(fd: OwnedFd, len: usize) -> Result<Segment, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at a place of the system's choice overlaps nothing.
        let base = unsafe { rustix::mm::mmap(null_mut(), len, prot, MapFlags::SHARED, &fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::FAULT)?;
        Ok(Segment { base, len, fd })
    }

    /// For passing on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Bytes of its heap.
    pub fn heap_len(&self) -> usize {
        self.len - LINE
    }

    /// The arrival line.
    pub fn line(&self) -> Line<'_> {
        Line(self)
    }

    /// Where in the heap `bytes` at this address are; `None` where they are not.
    pub fn offset_of(&self, at: NonNull<u8>, bytes: usize) -> Option<u64> {
        let at = at.addr().get().checked_sub(self.base.addr().get() + LINE)?;
        (at <= self.heap_len() && bytes <= self.heap_len() - at).then_some(at as u64)
    }

    fn heap(&self, at: u64, bytes: usize) -> *mut u8 {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        assert!(
            at <= self.heap_len() && bytes <= self.heap_len() - at,
            "{bytes} bytes at {at} of a heap of {}",
            self.heap_len()
        );
        // SAFETY: within the mapping, as just checked.
        unsafe { self.base.as_ptr().add(LINE + at) }
    }

    /// Copies out of the heap.
    ///
    /// # Panics
    /// Beyond its end; whoever takes offsets from a peer checks them first.
    pub fn read(&self, at: u64, out: &mut [u8]) {
        let src = self.heap(at, out.len());
        let (head, body) = ends(src.addr(), out.len());
        let (first, rest) = out.split_at_mut(head);
        let (words, last) = rest.split_at_mut(body);
        // SAFETY: `heap` has checked that all of this is within the mapping, which outlives the borrow; the middle begins at a multiple of 8; the pages are reached through atomics alone.
        unsafe {
            for (i, byte) in first.iter_mut().enumerate() {
                *byte = AtomicU8::from_ptr(src.add(i)).load(Relaxed);
            }
            let middle = src.add(head).cast::<u64>();
            for (i, word) in words.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *word = AtomicU64::from_ptr(middle.add(i))
                    .load(Relaxed)
                    .to_ne_bytes();
            }
            let tail = src.add(head + body);
            for (i, byte) in last.iter_mut().enumerate() {
                *byte = AtomicU8::from_ptr(tail.add(i)).load(Relaxed);
            }
        }
    }

    /// Copies into the heap.
    ///
    /// # Panics
    /// As `read`.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let dst = self.heap(at, bytes.len());
        let (head, body) = ends(dst.addr(), bytes.len());
        let (first, rest) = bytes.split_at(head);
        let (words, last) = rest.split_at(body);
        // SAFETY: as in `read`.
        unsafe {
            for (i, byte) in first.iter().enumerate() {
                AtomicU8::from_ptr(dst.add(i)).store(*byte, Relaxed);
            }
            let middle = dst.add(head).cast::<u64>();
            for (i, word) in words.as_chunks::<8>().0.iter().enumerate() {
                AtomicU64::from_ptr(middle.add(i)).store(u64::from_ne_bytes(*word), Relaxed);
            }
            let tail = dst.add(head + body);
            for (i, byte) in last.iter().enumerate() {
                AtomicU8::from_ptr(tail.add(i)).store(*byte, Relaxed);
            }
        }
    }

    /// Takes the pages of these bytes out of the shared memory: from now on they are this process's alone, at the same address, with the content that they had when they were copied. Peers go on writing to the old pages, which nobody here sees any more.
    ///
    /// The caller owns every byte of the pages and writes none of them meanwhile ([`HeapVec`]s share no page).
    ///
    /// # Errors
    /// The system gives no memory; then nothing has changed, and the memory must not be handed back.
    pub fn sever(&self, at: u64, bytes: usize) -> Result<(), Errno> {
        if bytes == 0 {
            return Ok(());
        }
        let (place, len) = (self.heap(at, bytes), pages(bytes));
        assert!(
            place.addr().is_multiple_of(rustix::param::page_size()),
            "only buffers of the heap are severed"
        );
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at a place of the system's choice overlaps nothing.
        let fresh =
            unsafe { rustix::mm::mmap_anonymous(null_mut(), len, prot, MapFlags::PRIVATE) }?;
        // SAFETY: `len` bytes that were just mapped, zeroed, and that nobody else knows of.
        let copy = unsafe { std::slice::from_raw_parts_mut(fresh.cast::<u8>(), len) };
        self.read(at, copy);
        let flags = MremapFlags::MAYMOVE;
        let to = place.cast::<c_void>();
        // SAFETY: both ranges are whole pages of ours; the target is replaced in one step, and holds the same content afterwards. Slices that the owner may have of it stay valid: same address, same length.
        let moved = unsafe { rustix::mm::mremap_fixed(fresh, len, len, flags, to) };
        if let Err(e) = moved {
            // SAFETY: it was not moved, and nothing refers to it any more.
            let _ = unsafe { rustix::mm::munmap(fresh, len) };
            return Err(e);
        }
        Ok(())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, severed parts included; every borrow of it has ended with `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Rounded up to whole pages.
fn pages(bytes: usize) -> usize {
    bytes.next_multiple_of(rustix::param::page_size())
}

/// Of `len` bytes at address `at`: how many come before the first multiple of 8, and how many then are whole words.
fn ends(at: usize, len: usize) -> (usize, usize) {
    let head = at.next_multiple_of(8).wrapping_sub(at).min(len);
    (head, (len - head) / 8 * 8)
}

/// A rank's arrival line: a word that says how far it has come, and what came with it.
///
/// Two adjacent cache lines; the word is what others sleep on.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a>(&'a Segment);

impl<'a> Line<'a> {
    /// How far the rank is.
    pub fn word(self) -> &'a AtomicU32 {
        // SAFETY: the line begins the mapping, which outlives the borrow, page-aligned; it is reached through atomics alone.
        unsafe { AtomicU32::from_ptr(self.0.base.as_ptr().cast()) }
    }

    /// Field `n` of 0 to 13: published by the store to the word that follows it.
    pub fn field(self, n: usize) -> &'a AtomicU64 {
        assert!(n < 14, "a line has 14 fields");
        // SAFETY: as in `word`: bytes 16 to 127 of the line.
        unsafe { AtomicU64::from_ptr(self.0.base.as_ptr().add(16 + 8 * n).cast()) }
    }
}

/// Hands out buffers of a segment's heap, each on pages of its own; never twice the same.
#[derive(Debug)]
pub struct Heap {
    segment: Arc<Segment>,
    next: AtomicUsize,
}

impl Heap {
    /// All of a segment that no heap has handed anything out of.
    pub(super) fn new(segment: Arc<Segment>) -> Heap {
        Heap {
            segment,
            next: AtomicUsize::new(0),
        }
    }

    /// `n` elements, all 0; `None` where the heap is used up.
    pub fn vec<T: Element>(&self, n: usize) -> Option<HeapVec<T>> {
        let bytes = pages(n.checked_mul(size_of::<T>())?.max(1));
        let end = |at: usize| {
            at.checked_add(bytes)
                .filter(|end| *end <= self.segment.heap_len())
        };
        // Relaxed: places must differ, they order nothing.
        let at = self.next.fetch_update(Relaxed, Relaxed, end).ok()?;
        Some(HeapVec {
            ptr: NonNull::new(self.segment.heap(at as u64, bytes))?.cast(),
            len: n,
            _segment: Arc::clone(&self.segment),
            _elements: PhantomData,
        })
    }
}

/// Elements in registered memory: an ordinary slice for its owner while no operation has it.
#[derive(Debug)]
pub struct HeapVec<T> {
    ptr: NonNull<T>,
    len: usize,
    _segment: Arc<Segment>,
    _elements: PhantomData<T>,
}

// SAFETY: it owns its elements, which are `Send`, and keeps the mapping alive.
unsafe impl<T: Element> Send for HeapVec<T> {}

// SAFETY: the pages stay mapped at their address as long as the value lives, are handed out once, and are initialised by the system.
unsafe impl<T: Element> StableBuf for HeapVec<T> {
    type Elem = T;
    fn parts(&mut self) -> (NonNull<T>, usize) {
        (self.ptr, self.len)
    }
    fn space(&self) -> Space {
        Space::Registered
    }
}

impl<T: Element> Deref for HeapVec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: page-aligned, mapped, initialised; outside operations no peer writes there, and after a failed one none can.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for HeapVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_any_alignment_and_length_arrive() {
        let segment = Segment::create(4096).unwrap();
        let there = Segment::open(segment.fd().try_clone_to_owned().unwrap()).unwrap();
        let bytes: Vec<u8> = (1..65).map(|i| i * 3).collect();
        for at in 0..17 {
            for len in 0..40 {
                segment.write(at, &bytes[..len]);
                let mut back = vec![0; len];
                there.read(at, &mut back);
                assert_eq!(back, bytes[..len], "{len} bytes at {at}");
            }
        }
    }

    #[test]
    fn severed_pages_keep_their_content_and_are_out_of_reach() {
        let segment = Arc::new(Segment::create(3 * 4096).unwrap());
        let there = Segment::open(segment.fd().try_clone_to_owned().unwrap()).unwrap();
        let heap = Heap::new(Arc::clone(&segment));
        let (mut a, mut b) = (heap.vec::<u64>(5).unwrap(), heap.vec::<u64>(1).unwrap());
        a.fill(1);
        b.fill(2);
        let at = segment.offset_of(a.parts().0.cast(), 40).unwrap();
        there.write(at + 8, &[7; 8]);
        segment.sever(at, 40).unwrap();
        there.write(at, &[9; 40]);
        assert_eq!(a[..], [1, 0x0707_0707_0707_0707, 1, 1, 1]);
        // Its neighbour is shared as before.
        let at = segment.offset_of(b.parts().0.cast(), 8).unwrap();
        there.write(at, &[3; 8]);
        assert_eq!(b[..], [0x0303_0303_0303_0303]);
    }

    #[test]
    fn a_segment_that_may_shrink_is_refused() {
        let fd = rustix::fs::memfd_create("bad", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 1 << 20).unwrap();
        assert_eq!(Segment::open(fd).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn a_heap_is_used_up_and_says_so() {
        let heap = Heap::new(Arc::new(
            Segment::create(2 * rustix::param::page_size()).unwrap(),
        ));
        assert!(heap.vec::<u8>(1 << 30).is_none());
        assert!(heap.vec::<f64>(usize::MAX).is_none());
        assert!(heap.vec::<f64>(1).is_some() && heap.vec::<f64>(1).is_some());
        assert!(heap.vec::<u8>(1).is_none());
    }
}
