//! The public behaviour of the crate.

mod allocation;
mod dense;
mod driver;
mod local;
mod rules;
mod vectors;
mod worlds;
