//! Two buffers in memory that two processes have mapped.
//!
//! # Safety
//! A rank gets references to its own half of both buffers, and the other rank is this same program, which touches the other half alone.

use gaggle::core::WindowMut;
use rustix::{
    fs::MemfdFlags,
    mm::{Advice, MapFlags, ProtFlags},
};
use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::OwnedFd,
    path::Path,
    ptr::{NonNull, null_mut},
};

/// A file of memory, mapped whole; the mapping stays until the process ends.
pub(crate) struct Memory {
    file: OwnedFd,
    start: NonNull<u8>,
    bytes: usize,
}

impl Memory {
    /// A new one, all 0.
    pub(crate) fn create(bytes: usize) -> io::Result<Memory> {
        let file = rustix::fs::memfd_create("bandwidth", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        Memory::of(file, bytes)
    }

    /// The one that another process has created.
    pub(crate) fn open(path: &Path) -> io::Result<Memory> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let bytes = File::metadata(&file)?.len() as usize;
        Memory::of(file.into(), bytes)
    }

    fn of(file: OwnedFd, bytes: usize) -> io::Result<Memory> {
        if bytes == 0 || !bytes.is_multiple_of(16) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at a place of the system's choice overlaps nothing.
        let start =
            unsafe { rustix::mm::mmap(null_mut(), bytes, prot, MapFlags::SHARED, &file, 0) }?;
        // SAFETY: advice on mapped pages changes no content; where there are no large pages, nothing happens.
        let _ = unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxHugepage) };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Memory { file, start, bytes })
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// A rank's half of each of the two buffers.
    pub(crate) fn halves(&mut self, rank: usize) -> [&mut [f32]; 2] {
        let half = self.bytes / 4;
        [0, 1].map(|buffer| {
            let at = (2 * buffer + rank % 2) * half;
            // SAFETY: a quarter of the mapping, at a multiple of 4, which is a page's or half of one's beginning; the other quarter is the other buffer's, and no other rank touches either; every bit pattern is a number.
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(at).cast(), half / 4) }
        })
    }
}

/// The same, for the library's kernel.
pub(crate) fn windows<'a>(halves: &'a mut [&mut [f32]; 2]) -> [WindowMut<'a>; 2] {
    halves
        .each_mut()
        .map(|half| WindowMut::from(gaggle::core::raw::bytes_of_mut(half)))
}
