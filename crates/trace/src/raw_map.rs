//! A file as words of memory that every process sees.
//!
//! # Safety
//! The words are only ever reached as atomics through [`Words::word`], which checks the bounds against the length that was mapped.
//! The mapping lives as long as the value.
//! Every bit pattern is a word, so what others write into the file cannot be unsound; a file that somebody cuts short would end the process by a signal, which is why recordings lie in a directory of the user's own.

use memmap2::{MmapOptions, MmapRaw};
use std::{
    fs::File,
    io,
    sync::atomic::{AtomicU64, Ordering, fence},
};

/// The mapped words of a file.
#[derive(Debug)]
pub(crate) struct Words {
    map: MmapRaw,
    len: usize,
}

impl Words {
    /// Maps the first `bytes`, which the file must have.
    pub(crate) fn map(file: &File, bytes: usize) -> io::Result<Words> {
        let map = MmapOptions::new().len(bytes).map_raw(file)?;
        Ok(Words {
            map,
            len: bytes / 8,
        })
    }

    fn word(&self, i: usize) -> &AtomicU64 {
        assert!(i < self.len, "word {i} of {}", self.len);
        // SAFETY: `i` lies within the mapping, as just checked; a mapping begins at a page, so each word is aligned; nothing but atomics touches the mapping in this process.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast::<u64>().add(i)) }
    }

    /// Relaxed: order where it matters is made by [`publish`](Words::publish) and [`begin`](Words::begin).
    pub(crate) fn store(&self, i: usize, value: u64) {
        self.word(i).store(value.to_le(), Ordering::Relaxed);
    }

    /// What this process has stored last.
    pub(crate) fn load(&self, i: usize) -> u64 {
        u64::from_le(self.word(i).load(Ordering::Relaxed))
    }

    /// Stores, and then lets what follows be stored: a reader that sees any of it also sees this.
    pub(crate) fn begin(&self, i: usize, value: u64) {
        self.store(i, value);
        // Release: the stores after the fence are not seen before the one above.
        fence(Ordering::Release);
    }

    /// Stores after all that was stored before.
    pub(crate) fn publish(&self, i: usize, value: u64) {
        // Release: a reader that sees this also sees what was stored before.
        self.word(i).store(value.to_le(), Ordering::Release);
    }

    /// Bytes, filled up with zeros to whole words.
    pub(crate) fn store_bytes(&self, at: usize, bytes: &[u8]) {
        for (i, part) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.store(at + i, u64::from_le_bytes(word));
        }
    }
}
