//! The public behaviour of the crate.

#[cfg(all(feature = "ndarray", feature = "petgraph"))]
mod conversions;
mod topologies;
