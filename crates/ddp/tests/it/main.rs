//! Data-parallel steps, mixing and comparisons over ranks that are threads: on a communicator that computes the right answers by itself, and on the engine.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod compare;
mod fake;
mod mixer;
mod ranks;
mod reducer;
mod ruled;
