//! What the engine promises on every link.

mod collectives;
mod ending;
mod faults;
mod missing;
mod pairwise;
