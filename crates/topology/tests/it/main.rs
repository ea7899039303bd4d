//! The public behaviour of the crate.

#[cfg(all(feature = "ndarray", feature = "petgraph"))]
mod conversions;
mod cycle;
#[cfg(all(feature = "ndarray", feature = "petgraph"))]
mod family;
mod topologies;
