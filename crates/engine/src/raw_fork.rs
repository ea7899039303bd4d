//! Whether this process is a fork of the one that an engine was made in, without asking the system every time.
//!
//! # Safety
//! One page of this process's own, never unmapped, that the system empties in a fork's child; it is reached as an atomic alone.

use std::{
    ptr::null_mut,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// A word that is not 0 in the process that has made it and 0 in its forks; `None` where the system has no such memory.
fn mark() -> Option<&'static AtomicU64> {
    static MARK: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    *MARK.get_or_init(make)
}

#[cfg(target_os = "linux")]
fn make() -> Option<&'static AtomicU64> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // Whole pages are meant, whatever their size.
    let page = 4096;
    // SAFETY: a fresh mapping at a place of the system's choice overlaps nothing.
    let at = unsafe { mmap_anonymous(null_mut(), page, prot, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the page that was just mapped, with nothing in it.
    unsafe { madvise(at, page, Advice::LinuxWipeOnFork) }.ok()?;
    // SAFETY: aligned, zeros, mapped for good, and nobody else knows of it.
    let word = unsafe { AtomicU64::from_ptr(at.cast()) };
    word.store(1, Relaxed);
    Some(word)
}

#[cfg(not(target_os = "linux"))]
fn make() -> Option<&'static AtomicU64> {
    let _ = null_mut::<u8>();
    None
}

/// Whether this is another process than that of number `pid`, in which an engine was made.
#[inline]
pub(crate) fn is_fork(pid: u32) -> bool {
    match mark() {
        Some(word) if word.load(Relaxed) != 0 => false,
        _ => std::process::id() != pid,
    }
}
