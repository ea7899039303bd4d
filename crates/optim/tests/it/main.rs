//! The public behaviour of the crate.

mod allocation;
mod bucketed;
mod dense;
mod driver;
mod identities;
mod local;
mod rules;
mod stability;
mod vectors;
mod worlds;
