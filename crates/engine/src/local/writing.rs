//! How lines are written that others have just read, and will read again.
//!
//! Where the ranks' processors share a cache, stores through the cache are the fastest way, and the reader finds the lines near.
//! Where they do not, each line must first be taken out of the reader's cache, at several times the cost: stores past the caches do without.
//! Which of the two it is can change while a program runs, with the processors that it is given, most of all in virtual machines. So it is measured: now and then a copy goes through the cache, and how long that takes decides about those that follow.

use crate::sync::{AtomicU32, Ordering};
use gaggle_core::{Stores, Window, WindowMut, copy_window};
use std::{
    sync::{OnceLock, atomic::fence},
    time::{Duration, Instant},
};

/// Shorter copies go through the cache: there are too few lines in them to tell, or to gain.
const LEAST: usize = 2048;
/// Of so many copies one is measured, while the last one that was measured was fast, and while it was slow.
const EVERY: [u32; 2] = [32, 128];
/// Bytes of a line.
const LINE: usize = 64;
/// A copy through the cache that takes longer per line has had to fetch each from afar: 7 ns and 25 ns were measured.
const SLOW_NS: u128 = 14;

/// Bytes of the second-level cache, where each processor has one for itself; 0 where several share it, or the system does not say.
pub(crate) fn own_cache() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let said = |what: &str| {
            let file = format!("/sys/devices/system/cpu/cpu0/cache/index2/{what}");
            std::fs::read_to_string(file).ok()
        };
        match (said("shared_cpu_list"), said("size")) {
            (Some(list), Some(bytes)) => of_one(&list, &bytes),
            _ => 0,
        }
    })
}

/// Bytes of a cache that one processor has for itself.
fn of_one(processors: &str, bytes: &str) -> u64 {
    match processors.trim().parse::<u32>() {
        Ok(_) => size(bytes).unwrap_or(0),
        Err(_) => 0,
    }
}

/// `1024K`, in bytes.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        _ => return None,
    };
    let n: u64 = text[..text.len() - unit.len()].parse().ok()?;
    n.checked_mul(1 << shift)
}

/// One rank's way of writing what its peers read.
#[derive(Debug, Default)]
pub(crate) struct Writing {
    /// Copies until the next one is measured.
    left: AtomicU32,
    /// Not 0: the last one that was measured was slow.
    slow: AtomicU32,
}

// Relaxed: hints; what is written is the same either way.
impl Writing {
    /// What suits stores to such lines at present.
    pub(crate) fn stores(&self) -> Stores {
        match self.slow.load(Ordering::Relaxed) {
            0 => Stores::Cached,
            _ => Stores::Streamed,
        }
    }

    /// `to` = `from`, which do not overlap.
    pub(crate) fn copy(&self, to: WindowMut<'_>, from: Window<'_>) {
        if from.len() < LEAST {
            return copy_window(to, from, Stores::Cached);
        }
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
            return copy_window(to, from, self.stores());
        }
        let before = Instant::now();
        copy_window(to, from, Stores::Cached);
        // Until the last store has its line.
        fence(Ordering::SeqCst);
        self.learn(from.len(), before.elapsed());
    }

    /// A copy of so many bytes through the cache took so long.
    fn learn(&self, bytes: usize, took: Duration) {
        let slow = took.as_nanos() > SLOW_NS * bytes.div_ceil(LINE) as u128;
        self.slow.store(u32::from(slow), Ordering::Relaxed);
        self.left
            .store(EVERY[usize::from(slow)] - 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_cache_is_read() {
        assert_eq!(size("1024K\n"), Some(1 << 20));
        assert_eq!(size("2M"), Some(2 << 20));
        assert_eq!(size("512"), Some(512));
        for other in [
            "",
            "K",
            "1G",
            "-1K",
            "1 K",
            "99999999999999999999",
            "99999999999999999M",
        ] {
            assert_eq!(size(other), None, "{other}");
        }
        assert_eq!(of_one("0\n", "1024K\n"), 1 << 20);
        assert_eq!(of_one("0", "?"), 0);
        for shared in ["0-1\n", "0,64", ""] {
            assert_eq!(of_one(shared, "1024K"), 0, "{shared}");
        }
    }

    #[test]
    fn slow_copies_go_past_the_caches_until_one_is_fast_again() {
        let writing = Writing::default();
        let from: Vec<u8> = (0..8192).map(|i| i as u8).collect();
        let copy = |n: usize| {
            let mut to = vec![0; n];
            writing.copy(WindowMut::from(&mut to[..]), Window::from(&from[..n]));
            assert_eq!(to, from[..n]);
        };
        // Short ones are not measured, whatever they take.
        (0..100).for_each(|_| copy(LEAST - 1));
        assert_eq!(writing.left.load(Ordering::Relaxed), 0);
        writing.learn(8192, Duration::from_nanos(8192 / 64 * 15));
        assert_eq!(writing.stores(), Stores::Streamed);
        for left in (0..EVERY[1] - 1).rev() {
            copy(LEAST);
            assert_eq!(writing.left.load(Ordering::Relaxed), left);
            assert_eq!(writing.stores(), Stores::Streamed);
        }
        // The next one is measured, whatever comes of it.
        copy(8192);
        assert!(writing.left.load(Ordering::Relaxed) > 0);
        writing.learn(8192, Duration::from_nanos(8192 / 64 * 14));
        assert_eq!(writing.stores(), Stores::Cached);
        assert_eq!(writing.left.load(Ordering::Relaxed), EVERY[0] - 1);
    }
}
