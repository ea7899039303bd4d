//! The engine's promises where ranks talk through shared memory.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod common;
#[path = "suites/sockets.rs"]
mod sockets;
mod suites;

const LINK: common::Link = common::Link::Shm;
