//! What the engine promises on every link.

mod collectives;
mod faults;
