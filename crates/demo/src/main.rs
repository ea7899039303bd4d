//! The demo's program.

fn main() {}
