//! The demo's harness.

pub mod data;
pub mod partition;
