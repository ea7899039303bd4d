//! The demo as a whole: real training on real ranks, which are threads here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod catalogue;
mod program;
mod training;
