//! What the engine promises on every link.

mod collectives;
mod ending;
mod exchanges;
mod faults;
mod feedback;
mod groups;
mod leftovers;
mod missing;
mod modes;
mod pairwise;
mod persistent;
