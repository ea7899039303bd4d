//! How much memory this process may still take: what the machine has, and what its control group lets it have.

use std::{fs, path::Path};

/// Bytes that the machine, and the control groups around this process, have at all.
pub(super) fn total() -> u64 {
    let machine = meminfo("MemTotal:").unwrap_or(u64::MAX);
    groups(Path::new("/sys/fs/cgroup")).fold(machine, |least, (max, _)| least.min(max))
}

/// Bytes that may still be taken now.
pub(super) fn available() -> u64 {
    let machine = meminfo("MemAvailable:").unwrap_or(u64::MAX);
    groups(Path::new("/sys/fs/cgroup"))
        .map(|(max, current)| max.saturating_sub(current))
        .fold(machine, u64::min)
}

/// Limit and use of this process's control group and all above it, where they have a limit (version 2).
fn groups(root: &Path) -> impl Iterator<Item = (u64, u64)> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limits(root, &own)
}

fn limits(root: &Path, own: &str) -> impl Iterator<Item = (u64, u64)> + use<> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let path = root.join(own.unwrap_or_default());
    let above = path.ancestors().take_while(|p| p.starts_with(root));
    let limits: Vec<(u64, u64)> = above
        .filter_map(|p| {
            let number = |name: &str| fs::read_to_string(p.join(name)).ok()?.trim().parse().ok();
            Some((number("memory.max")?, number("memory.current").unwrap_or(0)))
        })
        .collect();
    limits.into_iter()
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
    fn a_process_has_no_more_than_its_groups_let_it() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("job/rank");
        fs::create_dir_all(&inner).unwrap();
        let write = |name: &str, text: &str| fs::write(root.path().join(name), text).unwrap();
        write("job/memory.max", "1000000\n");
        write("job/memory.current", "400000\n");
        write("job/rank/memory.max", "max\n");
        let found: Vec<_> = limits(root.path(), "1:name=x:/y\n0::/job/rank\n").collect();
        assert_eq!(found, [(1_000_000, 400_000)]);
        assert_eq!(limits(root.path(), "").count(), 0);
        assert!(available() <= total());
    }
}
