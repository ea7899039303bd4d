//! How much memory this process may still take: what the machine has, and what its control group lets it have.

use crate::cgroup;
use std::fs;

/// Bytes that the machine, and the control groups around this process, have at all.
pub(super) fn total() -> u64 {
    let machine = meminfo("MemTotal:").unwrap_or(u64::MAX);
    let groups = cgroup::limits().into_iter().map(|limit| limit.max);
    groups.fold(machine, u64::min)
}

/// Bytes that may still be taken now.
pub(super) fn available() -> u64 {
    let machine = meminfo("MemAvailable:").unwrap_or(u64::MAX);
    let groups = cgroup::limits().into_iter().map(|limit| limit.left());
    groups.fold(machine, u64::min)
}

fn meminfo(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_may_be_taken_than_there_is() {
        assert!(available() <= total());
    }
}
