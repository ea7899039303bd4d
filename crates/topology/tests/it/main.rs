//! The public behaviour of the crate.

#[cfg(all(feature = "ndarray", feature = "petgraph"))]
mod conversions;
#[cfg(all(feature = "ndarray", feature = "petgraph"))]
mod family;
mod topologies;
