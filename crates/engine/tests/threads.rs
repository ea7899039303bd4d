//! The engine's promises where ranks are threads that read each other's memory.

#![allow(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod common;
#[path = "suites/precision.rs"]
mod precision;
mod suites;

const LINK: common::Link = common::Link::Threads;
