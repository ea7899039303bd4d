//! How large rings may be.
//!
//! All rings of a host together take at most a 16th of what its memory can still give, and at most 16 MiB per rank; a single one is at most 1 MiB.
//! What it can give is the lesser of what the system calls available and what is left under the limits of the control groups that this process is in.

use super::raw_ring::{LARGEST, SMALLEST};
use crate::cgroup;
use std::fs;

/// Most for one ring: beyond it nothing gets faster.
const RING: u64 = 1 << 20;
/// Most for all rings that one rank writes.
const PER_RANK: u64 = 16 << 20;
/// The rings' share of the memory is one in so many parts.
const SHARE: u64 = 16;

/// Bytes of a ring where `ranks` share a host and its memory can give `available` bytes; `None` where even the smallest are too large.
pub fn ring_bytes(ranks: u32, available: Option<u64>) -> Option<usize> {
    let peers = u64::from(ranks.max(2)) - 1;
    let rings = peers.saturating_mul(peers + 1);
    let share = available.map_or(u64::MAX, |bytes| bytes / SHARE / rings);
    let most = RING.min(PER_RANK / peers).max(SMALLEST as u64).min(share);
    if most < SMALLEST as u64 {
        return None;
    }
    let size = 1usize << most.ilog2();
    Some(size.clamp(SMALLEST, LARGEST))
}

/// Bytes that this process's host and control groups can still give; `None` where the system does not say.
pub fn available() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| mem_available(&text));
    let groups = cgroup::limits().into_iter().map(|limit| limit.left());
    system.into_iter().chain(groups).min()
}

/// Of the text of `/proc/meminfo`, in bytes.
fn mem_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_ranks_get_a_mebibyte_and_many_share() {
        assert_eq!(ring_bytes(2, None), Some(1 << 20));
        assert_eq!(ring_bytes(17, None), Some(1 << 20));
        assert_eq!(ring_bytes(18, None), Some(1 << 19));
        assert_eq!(ring_bytes(65, None), Some(1 << 18));
        assert_eq!(ring_bytes(1000, None), Some(SMALLEST));
        assert_eq!(ring_bytes(0, None), Some(1 << 20));
    }

    #[test]
    fn little_memory_makes_small_rings_or_none() {
        assert_eq!(ring_bytes(2, Some(1 << 30)), Some(1 << 20));
        // 2 rings of at most 1 MiB in a 16th of 16 MiB.
        assert_eq!(ring_bytes(2, Some(16 << 20)), Some(1 << 19));
        assert_eq!(ring_bytes(8, Some(64 << 20)), Some(1 << 16));
        assert_eq!(ring_bytes(8, Some(32 << 20)), None);
        assert_eq!(ring_bytes(2, Some(0)), None);
    }

    #[test]
    fn what_the_system_says_is_read() {
        let text = "MemTotal:       100 kB\nMemAvailable:    7 kB\n";
        assert_eq!(mem_available(text), Some(7 * 1024));
        assert_eq!(mem_available("MemTotal: 100 kB"), None);
        assert!(available().is_some_and(|bytes| bytes > 0));
    }
}
