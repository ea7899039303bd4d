//! How much memory this process may still take: what the machine has, and what its control group lets it have, without what was promised to the ranks of this host and is not touched yet.
//!
//! Asking costs several reads of files that the system computes each time, so one answer serves many small blocks: a 64th of what was there and at most 16 MiB, for a tenth of a second. Whatever is larger is asked for anew.

use crate::cgroup;
use parking_lot::Mutex;
use std::{
    fs,
    time::{Duration, Instant},
};

/// Bytes that one answer serves at most: what is taken of them no other rank sees before it asks again.
const UNSEEN: u64 = 16 << 20;
/// What one answer of the system allows is one in so many parts of it.
const SHARE: u64 = 64;
/// For so long.
const FRESH: Duration = Duration::from_millis(100);

/// What may be taken on the strength of the last answer.
#[derive(Debug)]
struct Allowance {
    asked: Option<Instant>,
    left: u64,
}

/// Of this process: the system's figures are the same for all of its heaps.
static ALLOWANCE: Mutex<Allowance> = Mutex::new(Allowance {
    asked: None,
    left: 0,
});

/// Whether so many bytes could be taken if nothing were promised to anybody.
///
/// # Errors
/// As [`allow`].
pub(super) fn allow_alone(bytes: u64) -> Result<(), u64> {
    within(bytes, available())
}

fn within(bytes: u64, most: u64) -> Result<(), u64> {
    match bytes <= most - most / 8 {
        true => Ok(()),
        false => Err(most),
    }
}

/// Whether so many bytes may be taken. `outstanding`: what was promised besides, and is not touched yet.
///
/// # Errors
/// How much there is, where that is not enough: an eighth of it is left alone.
pub(super) fn allow(bytes: u64, outstanding: impl FnOnce() -> u64) -> Result<(), u64> {
    let ask = || {
        // In this order: what is touched meanwhile counts twice, never not at all.
        let outstanding = outstanding();
        available().saturating_sub(outstanding)
    };
    ALLOWANCE.lock().allow(bytes, Instant::now(), ask)
}

impl Allowance {
    fn allow(&mut self, bytes: u64, now: Instant, ask: impl FnOnce() -> u64) -> Result<(), u64> {
        let fresh = self.asked.is_some_and(|asked| now < asked + FRESH);
        if fresh && bytes <= self.left {
            self.left -= bytes;
            return Ok(());
        }
        let most = ask();
        self.asked = Some(now);
        self.left = (most / SHARE).min(UNSEEN).saturating_sub(bytes);
        within(bytes, most)
    }
}

/// Bytes that the machine, and the control groups around this process, have at all.
pub(super) fn total() -> u64 {
    let machine = meminfo("MemTotal:").unwrap_or(u64::MAX);
    let groups = cgroup::limits().into_iter().map(|limit| limit.max);
    groups.fold(machine, u64::min)
}

/// Bytes that may still be taken now, for all that the system knows.
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

    #[test]
    fn one_answer_serves_small_blocks_for_a_moment() {
        let (mut allowance, start) = (
            Allowance {
                asked: None,
                left: 0,
            },
            Instant::now(),
        );
        let mut asked = 0;
        let mut allow = |bytes, after, there: u64| {
            let allowed = allowance.allow(bytes, start + after, || {
                asked += 1;
                there
            });
            (allowed, asked)
        };
        let soon = FRESH / 2;
        assert_eq!(allow(4, Duration::ZERO, 6400), (Ok(()), 1));
        assert_eq!(allow(90, soon, 0), (Ok(()), 1));
        // Not out of what the 64th has left, although there was more.
        assert_eq!(allow(7, soon, 6400), (Ok(()), 2));
        assert_eq!(allow(5600, soon, 6400), (Ok(()), 3));
        // Nothing is left of an answer that was used up, or whose time is over.
        assert_eq!(allow(1, soon, 0), (Err(0), 4));
        assert_eq!(allow(1, soon, 6400), (Ok(()), 5));
        assert_eq!(allow(1, soon + FRESH, 6400), (Ok(()), 6));
        assert_eq!(allow(5601, soon, 6400), (Err(6400), 7));
    }
}
