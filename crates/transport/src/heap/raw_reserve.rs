//! What taking memory out of the others' reach needs, had before it is needed: private pages for each block, without content and so of no cost, and room for a few more mappings.
//!
//! # Safety
//! A reserve's pages are this value's alone until they take the place of heap pages; which of them are left is written down, so that nothing else is ever unmapped.

use super::raw_heap::Map;
use rustix::{
    io::Errno,
    mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags},
};
use std::ptr::{NonNull, null_mut};

/// How much is copied before what it was copied from is given back: what a retreat needs beside what is there.
const CHUNK: usize = super::table::HUGE as usize;

/// Private pages, as many as a block has.
#[derive(Debug)]
pub(super) struct Reserve {
    base: NonNull<u8>,
    /// Ranges of it that are still here, in bytes; ascending.
    left: Vec<(usize, usize)>,
}

// SAFETY: the pages are the value's own.
unsafe impl Send for Reserve {}

impl Reserve {
    /// Of so many bytes, whole pages. The system promises the memory, and gives none of it yet.
    pub(super) fn new(len: usize) -> Result<Reserve, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at a place of the system's choice overlaps nothing.
        let base = unsafe { rustix::mm::mmap_anonymous(null_mut(), len, prot, MapFlags::PRIVATE) }?;
        Ok(Reserve {
            base: NonNull::new(base.cast()).ok_or(Errno::FAULT)?,
            left: vec![(0, len)],
        })
    }

    /// Replaces the `len` bytes at a place of the heap, whole pages, by the pages of the reserve from `at` on, with the same content. Others go on reading and writing the old ones, which nobody here sees any more, and which are given back to the system.
    ///
    /// The caller owns every byte of the pages, and nobody of this process writes them meanwhile.
    ///
    /// No more memory is needed than was there before, but for one chunk: what is copied is given back before more is copied. So whoever reads the old pages meanwhile finds zeros; the mark of the retreat tells it that what it read counts for nothing.
    ///
    /// # Errors
    /// `INVAL`: these pages have been replaced already. `NOMEM`: the process has as many mappings as it may, and another thread has taken the spare ones meanwhile; nothing has changed.
    pub(super) fn replace(
        &mut self,
        heap: &Map,
        place: u64,
        (at, len): (usize, usize),
        spare: &mut Spare,
    ) -> Result<(), Errno> {
        let page = rustix::param::page_size();
        let target = heap.start_of(place, len).ok_or(Errno::INVAL)?;
        let whole = target.addr().get().is_multiple_of(page) && len.is_multiple_of(page);
        let i = self
            .left
            .iter()
            .position(|(lo, hi)| *lo <= at && at + len <= *hi)
            .filter(|_| whole && at.is_multiple_of(page))
            .ok_or(Errno::INVAL)?;
        // SAFETY: within what is left of the reserve, as just looked up.
        let fresh = unsafe { self.base.add(at) };
        let mut done = 0;
        while done < len {
            let n = CHUNK.min(len - done);
            // SAFETY: private pages that nobody else refers to, within the reserve.
            let to = unsafe { std::slice::from_raw_parts_mut(fresh.as_ptr().add(done), n) };
            if !heap.read(place + done as u64, to) {
                return Err(Errno::INVAL);
            }
            // It only costs memory where it does not work.
            let _ = heap.clear(place + done as u64, n as u64);
            done += n;
        }
        spare.release();
        // SAFETY: both ranges are whole pages of ours; the target is replaced in one step, and holds the same content afterwards. Slices that the owner may have of it stay valid: same address, same length.
        let moved = unsafe {
            let (from, to) = (fresh.as_ptr().cast(), target.as_ptr().cast());
            rustix::mm::mremap_fixed(from, len, len, MremapFlags::MAYMOVE, to)
        };
        spare.keep();
        if let Err(e) = moved {
            // What was given back has to be as it was. The pages are there: they were a moment ago.
            // SAFETY: as above.
            let kept = unsafe { std::slice::from_raw_parts(fresh.as_ptr(), len) };
            heap.write(place, kept);
            return Err(e);
        }
        let (lo, hi) = self.left.remove(i);
        let rest = [(lo, at), (at + len, hi)];
        for (lo, hi) in rest.into_iter().rev().filter(|(lo, hi)| lo < hi) {
            self.left.insert(i, (lo, hi));
        }
        Ok(())
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        for (lo, hi) in &self.left {
            // SAFETY: pages that have not been moved away, and that nobody refers to.
            let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().add(*lo).cast(), hi - lo) };
        }
    }
}

/// Mappings that are good for nothing but to be given up: a process may have so many, and moving pages needs a few more.
#[derive(Debug)]
pub(super) struct Spare {
    kept: Option<NonNull<u8>>,
}

/// So many mappings, each a page.
const SPARE: usize = 16;

// SAFETY: pages of the value's own, which nobody reads or writes.
unsafe impl Send for Spare {}

impl Spare {
    /// As many as the system gives.
    pub(super) fn new() -> Spare {
        let mut spare = Spare { kept: None };
        spare.keep();
        spare
    }

    fn keep(&mut self) {
        let page = rustix::param::page_size();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at a place of the system's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(null_mut(), SPARE * page, ProtFlags::empty(), flags)
        };
        let Some(base) = base.ok().and_then(|base| NonNull::new(base.cast::<u8>())) else {
            return;
        };
        // Every other page may be read, so that the system does not make one mapping of them.
        for i in (1..SPARE).step_by(2) {
            // SAFETY: a page of the mapping made just now. Where it fails there are fewer mappings to give up.
            let _ = unsafe {
                let at = base.as_ptr().add(i * page);
                rustix::mm::mprotect(at.cast(), page, MprotectFlags::READ)
            };
        }
        self.kept = Some(base);
    }

    fn release(&mut self) {
        if let Some(base) = self.kept.take() {
            // SAFETY: the whole mapping, which nobody refers to.
            let _ = unsafe {
                rustix::mm::munmap(base.as_ptr().cast(), SPARE * rustix::param::page_size())
            };
        }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.release();
    }
}
