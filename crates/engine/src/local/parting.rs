//! Ranks that wait for each other on one processor while another one is idle.
//!
//! Each is ready for the moments in which the other waits, so that the system sees one processor in use and leaves them there, and every meeting costs two changes of threads.
//! One of them goes to a processor that has been idle for a while: its thread may use that alone for an instant, and then what it might use before.
//! Beside a program that keeps the other processors busy they stay, which is the faster there.
//!
//! Where ranks outnumber the processors, none is idle: there they spread evenly over those that they may use, whatever else is at work, since an operation costs as many changes of threads as the fullest processor has ranks, less one.

use crate::sync::Mutex;
use std::time::{Duration, Instant};

/// How long processors are watched: so long at least,
const WATCH: Duration = Duration::from_millis(30);
/// and not longer, because what was long ago says nothing.
const STALE: Duration = Duration::from_secs(1);
/// The unit in which the system counts how long they were idle.
const TICK: Duration = Duration::from_millis(10);

/// What is known of the processors.
#[derive(Debug, Default)]
pub(crate) struct Parting(Mutex<Option<Watch>>);

#[derive(Debug)]
struct Watch {
    since: Instant,
    /// By processor, how long it had been idle then.
    idle: Vec<(usize, u64)>,
}

impl Parting {
    /// Leaves processor `here`, where another one that this thread may use has been idle since it was asked before, a while ago. Whether it has gone.
    pub(crate) fn leave(&self, here: u64) -> bool {
        let now = Instant::now();
        let mut watch = self.0.lock();
        let watched = |before: &Watch| now.saturating_duration_since(before.since);
        if watch.as_ref().is_some_and(|before| watched(before) < WATCH) {
            return false;
        }
        let Some(idle) = idle_times() else {
            return false;
        };
        let before = watch.as_ref().filter(|before| watched(before) < STALE);
        let free = before.map_or_else(Vec::new, |before| {
            has_idled(&before.idle, &idle, watched(before), here)
        });
        *watch = Some(Watch { since: now, idle });
        drop(watch);
        go_to(&free)
    }
}

/// Leaves processor `here` for one with at least two ranks fewer, of those that this thread may use; `others`: where the other ranks are. Whether it has gone.
pub(crate) fn even_out(here: u64, others: &[u64]) -> bool {
    let room = emptier(here, others, &allowed());
    go_to(&room)
}

/// Processors of `allowed` to which a rank makes numbers even, that is `here` as the `others` are where they are.
fn emptier(here: u64, others: &[u64], allowed: &[usize]) -> Vec<usize> {
    let count = |cpu: u64| others.iter().filter(|other| **other == cpu).count();
    let full = count(here) + 1;
    let least = allowed.iter().map(|cpu| count(*cpu as u64)).min();
    let Some(least) = least.filter(|least| least + 2 <= full) else {
        return Vec::new();
    };
    let empty = |cpu: &&usize| count(**cpu as u64) == least;
    allowed.iter().filter(empty).copied().collect()
}

/// Processors but `here` that have been idle for most of a time.
fn has_idled(
    before: &[(usize, u64)],
    after: &[(usize, u64)],
    watched: Duration,
    here: u64,
) -> Vec<usize> {
    let ticks = watched.as_millis() as u64 / TICK.as_millis() as u64;
    let idled = |(cpu, now): &(usize, u64)| {
        let then = before.iter().find(|(other, _)| other == cpu)?.1;
        let long = 10 * now.saturating_sub(then) >= 8 * ticks;
        (long && *cpu as u64 != here).then_some(*cpu)
    };
    after.iter().filter_map(idled).collect()
}

/// For each processor how long it has been idle, from `/proc/stat`'s lines `cpu0 user nice system idle iowait …`.
fn parse(stat: &str) -> Vec<(usize, u64)> {
    let line = |line: &str| {
        let (name, times) = line.split_once(' ')?;
        let cpu = name.strip_prefix("cpu")?.parse().ok()?;
        let mut words = times.split_ascii_whitespace();
        let idle: u64 = words.nth(3)?.parse().ok()?;
        let waits: u64 = words.next().map_or(Some(0), |w| w.parse().ok())?;
        Some((cpu, idle.saturating_add(waits)))
    };
    stat.lines().filter_map(line).collect()
}

#[cfg(target_os = "linux")]
fn idle_times() -> Option<Vec<(usize, u64)>> {
    Some(parse(&std::fs::read_to_string("/proc/stat").ok()?))
}

#[cfg(not(target_os = "linux"))]
fn idle_times() -> Option<Vec<(usize, u64)>> {
    None
}

/// The processors that this thread may use.
#[cfg(target_os = "linux")]
fn allowed() -> Vec<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let Ok(allowed) = sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn allowed() -> Vec<usize> {
    Vec::new()
}

/// Moves this thread to one of these processors, if it may use one, and lets it go from there where it might before.
#[cfg(target_os = "linux")]
fn go_to(processors: &[usize]) -> bool {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else {
        return false;
    };
    let mut free = CpuSet::new();
    for cpu in processors.iter().filter(|c| **c < CpuSet::MAX_CPU) {
        if allowed.is_set(*cpu) {
            free.set(*cpu);
        }
    }
    if free.count() == 0 || sched_setaffinity(None, &free).is_err() {
        return false;
    }
    if let Err(e) = sched_setaffinity(None, &allowed) {
        tracing::warn!(%e, "a thread stays on a few processors");
    }
    true
}

#[cfg(not(target_os = "linux"))]
fn go_to(_processors: &[usize]) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  11 22 33 444 5 0 0 0 0 0\n\
        cpu0 1 2 3 400 50 6 7 8 0 0\n\
        cpu1 1 2 3 77\n\
        cpu12 1 2 3 x 4\n\
        intr 12 13\n\
        cpu31 0 0 0 9 1 0 0\n";

    #[test]
    fn idle_time_is_read_by_processor() {
        assert_eq!(parse(STAT), [(0, 450), (1, 77), (31, 10)]);
        assert_eq!(parse(""), []);
        assert_eq!(parse("cpu"), []);
    }

    #[test]
    fn a_processor_that_was_busy_for_a_fifth_of_the_time_is_not_idle() {
        let before = [(0, 100), (1, 100), (2, 100), (3, 100)];
        let after = [(0, 110), (1, 108), (2, 107), (3, 110), (4, 500)];
        let time = Duration::from_millis(100);
        assert_eq!(has_idled(&before, &after, time, 3), [0, 1]);
        // One that was not there before, and one that counts backwards.
        assert_eq!(has_idled(&before, &[(4, 9), (1, 3)], time, 0), []);
    }

    #[test]
    fn ranks_go_where_there_are_two_fewer() {
        // Three and one.
        assert_eq!(emptier(0, &[0, 0, 1], &[0, 1]), [1]);
        assert_eq!(emptier(1, &[1, 1, 1], &[0, 1]), [0]);
        // Even, or as even as can be.
        assert_eq!(emptier(0, &[0, 1, 1], &[0, 1]), []);
        assert_eq!(emptier(0, &[0, 1], &[0, 1]), []);
        assert_eq!(emptier(0, &[0, 0, 0], &[0]), []);
        assert_eq!(emptier(0, &[0, 0, 0], &[]), []);
        // To the emptiest only, and only where it may.
        assert_eq!(emptier(0, &[0, 0, 0, 0, 0, 1, 2, 2], &[0, 1, 2]), [1]);
        assert_eq!(emptier(0, &[0, 0, 0, 0, 0, 1, 2, 2], &[0, 2]), [2]);
        assert_eq!(emptier(3, &[3, 3], &[3, 5, 6]), [5, 6]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_that_goes_may_use_what_it_might_before() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
        std::thread::spawn(|| {
            let allowed = sched_getaffinity(None).unwrap();
            let here = sched_getcpu();
            let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|c| *c != here).collect();
            assert_eq!(go_to(&all), allowed.count() > 1);
            assert_eq!(sched_getaffinity(None).unwrap(), allowed);
            assert!(!go_to(&[]));
            // Where it is bound it stays.
            let mut only = CpuSet::new();
            only.set(here);
            sched_setaffinity(None, &only).unwrap();
            assert!(!go_to(&all));
            assert_eq!(sched_getaffinity(None).unwrap(), only);
            assert_eq!(sched_getcpu(), here);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn nobody_goes_before_the_processors_were_watched() {
        let parting = Parting::default();
        assert!(!parting.leave(0));
        assert!(!parting.leave(0));
    }
}
