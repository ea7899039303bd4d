//! The kernel's account of how long a thread has run: which of its files has one, found out by a thread that is busy.
//!
//! Some systems have the finer of the two and leave it at 0; a program that believed it would find every job idle.

use std::{
    fs, io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Of these the kernel counts so many a second for those who read its files, whatever its own clock does.
const TICKS: u64 = 100;
/// What a busy thread must have used, in nanoseconds.
const MOVED: u64 = 20_000_000;
/// How long it tries, beside whatever else the machine does.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where a thread's account is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counter {
    /// In nanoseconds.
    Schedstat,
    /// In hundredths of a second.
    Stat,
}

impl Counter {
    /// The finest one that moves when a thread is busy.
    pub(crate) fn that_counts() -> Option<Counter> {
        [Counter::Schedstat, Counter::Stat].into_iter().find(|c| {
            counts(
                &|| c.read(Path::new("/proc/thread-self")).ok().flatten(),
                PATIENCE,
            )
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Counter::Schedstat => "schedstat",
            Counter::Stat => "stat (hundredths of a second)",
        }
    }

    /// Nanoseconds that the thread of this folder has run; `None` where the file has another form.
    ///
    /// # Errors
    /// The file cannot be read; the thread may have ended.
    pub(crate) fn read(self, task: &Path) -> io::Result<Option<u64>> {
        match self {
            Counter::Schedstat => {
                let text = fs::read_to_string(task.join("schedstat"))?;
                Ok(text.split_whitespace().next().and_then(|n| n.parse().ok()))
            }
            Counter::Stat => {
                let text = fs::read_to_string(task.join("stat"))?;
                Ok(ticks(&text).map(|n| n.saturating_mul(1_000_000_000 / TICKS)))
            }
        }
    }
}

/// utime and stime, which follow the name in brackets.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// Whether what `read` says of the thread that calls it moves while that thread is busy.
fn counts(read: &(dyn Fn() -> Option<u64> + Sync), patience: Duration) -> bool {
    let busy = || {
        let (before, end) = (read()?, Instant::now() + patience);
        while Instant::now() < end {
            if read()? >= before + MOVED {
                return Some(true);
            }
        }
        Some(false)
    };
    thread::scope(|scope| {
        let thread = scope.spawn(busy);
        thread.join().ok().flatten().unwrap_or(false)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_account_of_a_busy_thread_moves() {
        assert!(Counter::that_counts().is_some());
    }

    /// As a kernel does that has the file and fills it with zeros.
    #[test]
    fn one_that_stands_still_or_is_not_there_does_not_count() {
        let moment = Duration::from_millis(10);
        assert!(!counts(&|| Some(0), moment));
        assert!(!counts(&|| None, PATIENCE));
    }

    #[test]
    fn both_forms_are_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text);
        write("schedstat", "1500000 7 3\n").expect("written");
        write("stat", "12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14\n").expect("written");
        let read = |c: Counter| c.read(dir.path()).expect("there");
        assert_eq!(read(Counter::Schedstat), Some(1_500_000));
        assert_eq!(read(Counter::Stat), Some(230_000_000));
        write("stat", "nothing").expect("written");
        assert_eq!(read(Counter::Stat), None);
    }
}
