//! How a job ended: one [`Outcome`], which knows the exit code and what to say last.

use gaggle_core::{Rank, name_ranks};
use std::{fmt, time::Duration};

/// How one process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// By itself, with this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl How {
    /// The exit code a shell would report: the code, or 128 + signal.
    pub fn code(self) -> i32 {
        match self {
            How::Code(code) => code,
            How::Signal(signal) => 128 + signal,
        }
    }

    /// Ended by itself with exit code 0.
    pub fn is_success(self) -> bool {
        self == How::Code(0)
    }

    /// How surely it is a cause and no consequence: killed, then panicked, then an exit code of the program's own.
    pub(crate) fn gravity(self) -> u8 {
        const PANIC: i32 = 101;
        match self {
            How::Signal(_) => 2,
            How::Code(PANIC) => 1,
            How::Code(_) => 0,
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            How::Code(code) => write!(f, "ended with exit code {code}"),
            How::Signal(signal) => {
                write!(f, "was killed by signal {signal}{}", signal_name(signal))
            }
        }
    }
}

/// ` (SIGKILL)`, or nothing for a signal without a name.
fn signal_name(signal: i32) -> String {
    #[cfg(unix)]
    if let Some(name) = signal_hook::low_level::signal_name(signal) {
        return format!(" ({name})");
    }
    let _ = signal;
    String::new()
}

/// The end of one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Which.
    pub rank: Rank,
    /// How.
    pub how: How,
}

/// The rank that failed first, and what is known about it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FirstCause {
    /// Which.
    pub rank: Rank,
    /// How it ended.
    pub how: How,
    /// How long after its start.
    pub after: Duration,
    /// Whether it had come to the rendezvous; `None` where the caller gave no way to tell, or where no rank has come.
    pub joined: Option<bool>,
    /// Ranks for which others had waited when they ended well, without joining.
    pub absent: Vec<Rank>,
    /// The end of what it wrote to stderr, as far as that came through the launcher; not UTF-8 is replaced.
    pub last_lines: Vec<String>,
}

/// How the job ended. All ranks are gone.
///
/// `Display` is what the launcher should say last; it is empty after success.
#[must_use]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// Every rank, in order of rank.
    pub ended: Vec<Ended>,
    /// The first failure, if the job was not stopped from outside before.
    pub cause: Option<FirstCause>,
    /// The signal that told the launcher to stop, if one came before any failure.
    pub stopped_by: Option<i32>,
    /// Ranks that did not end within the grace and were killed.
    pub killed: Vec<Rank>,
}

impl Outcome {
    /// The launcher's exit code: 0, or that of the first failure (128 + signal for signals).
    pub fn code(&self) -> i32 {
        match (&self.cause, self.stopped_by) {
            (Some(cause), _) => cause.how.code(),
            (None, Some(signal)) => 128 + signal,
            (None, None) => 0,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.killed.is_empty() {
            writeln!(
                f,
                "gaggle: {} did not stop within the grace and had to be killed",
                name_ranks(&self.killed)
            )?;
        }
        if let Some(cause) = &self.cause {
            if !cause.last_lines.is_empty() {
                writeln!(f, "gaggle: last lines of {} on stderr:", cause.rank)?;
                for line in &cause.last_lines {
                    writeln!(f, "[{}] {line}", cause.rank.0)?;
                }
            }
            write!(
                f,
                "gaggle: first cause: {} {} after {:.1} s",
                cause.rank,
                cause.how,
                cause.after.as_secs_f64()
            )?;
            if cause.joined == Some(false) {
                write!(f, ", before it joined (it never called gaggle::join)")?;
            }
            if !cause.absent.is_empty() {
                write!(
                    f,
                    "; before that {} had ended without joining (never called gaggle::join)",
                    name_ranks(&cause.absent)
                )?;
            }
            writeln!(f)?;
        } else if let Some(signal) = self.stopped_by {
            writeln!(
                f,
                "gaggle: stopped by signal {signal}{}; all {} ranks are gone",
                signal_name(signal),
                self.ended.len()
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_is_said_last() {
        let outcome = Outcome {
            ended: vec![],
            cause: Some(FirstCause {
                rank: Rank(2),
                how: How::Code(3),
                after: Duration::from_millis(1040),
                joined: Some(false),
                absent: vec![],
                last_lines: vec!["boom".into()],
            }),
            stopped_by: None,
            killed: vec![Rank(0), Rank(1)],
        };
        assert_eq!(outcome.code(), 3);
        assert_eq!(
            outcome.to_string(),
            "gaggle: ranks 0 and 1 did not stop within the grace and had to be killed\n\
             gaggle: last lines of rank 2 on stderr:\n\
             [2] boom\n\
             gaggle: first cause: rank 2 ended with exit code 3 after 1.0 s, before it joined (it never called gaggle::join)\n"
        );
    }

    #[cfg(unix)]
    #[test]
    fn signals_count_as_a_shell_counts_them() {
        assert_eq!(How::Signal(9).code(), 137);
        assert_eq!(
            How::Signal(9).to_string(),
            "was killed by signal 9 (SIGKILL)"
        );
        let outcome = Outcome {
            ended: vec![Ended {
                rank: Rank(0),
                how: How::Code(0),
            }],
            cause: None,
            stopped_by: Some(2),
            killed: vec![],
        };
        assert_eq!(outcome.code(), 130);
        assert_eq!(
            outcome.to_string(),
            "gaggle: stopped by signal 2 (SIGINT); all 1 ranks are gone\n"
        );
    }
}
