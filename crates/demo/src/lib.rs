//! The demo's harness.

pub mod data;
pub mod model;
pub mod partition;
