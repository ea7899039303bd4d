//! What the engine promises on every link.

mod collectives;
mod ending;
mod exchanges;
mod faults;
mod feedback;
mod groups;
pub mod leftovers;
mod methods;
mod missing;
mod modes;
mod pairwise;
mod persistent;
