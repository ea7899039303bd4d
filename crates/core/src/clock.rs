//! Time as an argument: whatever waits is given a clock, so that a simulation can be the one who lets time pass.

use std::time::{Duration, Instant};

/// Monotonic time since some fixed start of the clock's own choosing.
///
/// `now` may be called from any thread, as often as wanted; it never goes back.
pub trait Clock: Send + Sync {
    /// Time since the clock's start.
    fn now(&self) -> Duration;
}

/// The machine's monotonic clock, counted from the value's creation.
#[derive(Clone, Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock that starts at zero now.
    #[allow(
        clippy::new_without_default,
        reason = "a default that reads the time would hide an effect"
    )]
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place in this crate that reads the time"
    )]
    pub fn new() -> Self {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
