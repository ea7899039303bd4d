//! The public behaviour of the crate.

mod dense;
mod driver;
mod local;
mod rules;
mod vectors;
mod worlds;
