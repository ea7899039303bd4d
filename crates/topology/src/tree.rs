//! Trees: for methods that relay sums along the only way there is between two ranks.

use crate::{Graph, Table, TopologyError, Weights, error::checked_world};
use gaggle_core::Rank;

/// A line: each rank with the one before and the one behind; Metropolis–Hastings weights.
///
/// Up to two messages per rank and round; a tree of the largest diameter, `world` − 1.
///
/// # Errors
/// No ranks, or more than can be counted.
pub fn chain(world: usize) -> Result<Table, TopologyError> {
    checked_world("chain", world)?;
    rooted("chain", world, |i| i - 1)
}

/// The binary tree in which rank i > 0 has the parent (i − 1)/2, edges both ways; Metropolis–Hastings weights.
///
/// Up to three messages per rank and round; diameter about 2·log₂ n.
///
/// # Errors
/// No ranks, or more than can be counted.
pub fn binary_tree(world: usize) -> Result<Table, TopologyError> {
    checked_world("binary-tree", world)?;
    rooted("binary-tree", world, |i| (i - 1) / 2)
}

fn rooted(
    name: &str,
    world: usize,
    parent: impl Fn(usize) -> usize,
) -> Result<Table, TopologyError> {
    let edges = (1..world).map(|i| (Rank(parent(i) as u32), Rank(i as u32)));
    Graph::undirected(world, edges)?.table(name, Weights::Metropolis)
}
