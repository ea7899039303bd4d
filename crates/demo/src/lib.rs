//! The demo's harness.

pub mod charts;
pub mod data;
pub mod model;
pub mod page;
pub mod partition;
pub mod picture;
pub mod summary;
