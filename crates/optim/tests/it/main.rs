//! The public behaviour of the crate.

mod allocation;
mod bucketed;
mod compressed;
mod dense;
mod driver;
mod exact;
mod identities;
mod local;
mod rules;
mod settings;
mod stability;
mod vectors;
mod verdicts;
mod worlds;
