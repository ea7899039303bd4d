//! The time that all ranks of one host share.

use gaggle_core::descriptor::stable_hash;
use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

/// Nanoseconds of the host's monotonic clock: the same in all its processes, and of no meaning elsewhere.
#[cfg(unix)]
pub fn now() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // The monotonic clock does not go below zero.
    (t.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(t.tv_nsec as u64)
}

/// Nanoseconds since this process first asked.
#[cfg(not(unix))]
pub fn now() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    u64::try_from(
        START
            .get_or_init(std::time::Instant::now)
            .elapsed()
            .as_nanos(),
    )
    .unwrap_or(0)
}

/// Nanoseconds since 1970.
pub(crate) fn wall() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX))
}

/// Which clock [`now`] reads: equal where two processes read the same one. A boot of a kernel and a time namespace in it have one.
pub(crate) fn id() -> u64 {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if boot.is_empty() {
        // It cannot be told whether another process reads the same.
        return stable_hash(&[
            b"clock",
            &std::process::id().to_le_bytes(),
            &wall().to_le_bytes(),
        ]);
    }
    let space = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    stable_hash(&[b"clock", &boot, space.as_os_str().as_encoded_bytes()])
}

/// What this host is called.
pub(crate) fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => std::env::var("HOSTNAME").unwrap_or_else(|_| "localhost".into()),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_go_back_and_the_clock_is_known() {
        let before = now();
        assert!(now() >= before);
        if cfg!(target_os = "linux") {
            assert_eq!(id(), id());
        }
        assert!(!host().is_empty());
    }
}
