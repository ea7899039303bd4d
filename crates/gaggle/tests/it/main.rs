//! The facade: ranks as threads, and the README held against the examples.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

#[cfg(target_os = "linux")]
mod hosts;
mod join;
mod local;
mod newcomer;
mod readme;
