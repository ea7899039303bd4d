//! The public behaviour of the crate.

mod allocation;
mod dense;
mod driver;
mod identities;
mod local;
mod rules;
mod stability;
mod vectors;
mod worlds;
