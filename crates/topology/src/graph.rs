//! Rounds as `petgraph` graphs: nodes are ranks, edges go from sender to receiver and carry the receiver's weight.

use crate::{edges, facts::rounds_in_period};
use gaggle_core::{Rank, Topology};
use petgraph::{algo::kosaraju_scc, graphmap::DiGraphMap};

/// Round `t` as a graph. Own weights are not edges.
///
/// ```
/// use gaggle_topology::{OnePeerExp, graph};
/// let g = graph(&OnePeerExp::new(5)?, 1);
/// assert_eq!(g.edge_weight(0, 2), Some(&0.5));
/// assert_eq!(g.edge_count(), 5);
/// # Ok::<(), gaggle_topology::TopologyError>(())
/// ```
pub fn graph(topology: &dyn Topology, t: u64) -> DiGraphMap<u32, f64> {
    let mut g = nodes(topology);
    for (sender, receiver, weight) in edges(topology, t) {
        g.add_edge(sender.0, receiver.0, weight);
    }
    g
}

/// All edges of one period; the weight is in how many of its rounds the edge carries something.
pub fn union(topology: &dyn Topology) -> DiGraphMap<u32, u64> {
    let mut g = nodes(topology);
    for t in 0..rounds_in_period(topology) {
        for (sender, receiver, weight) in edges(topology, t) {
            if weight > 0.0 {
                let times = g.edge_weight(sender.0, receiver.0).copied().unwrap_or(0);
                g.add_edge(sender.0, receiver.0, times + 1);
            }
        }
    }
    g
}

/// The ranks that reach each other over one period, each component sorted, by first rank (Kosaraju). A sound topology has one.
pub fn components(topology: &dyn Topology) -> Vec<Vec<Rank>> {
    let mut all: Vec<Vec<Rank>> = kosaraju_scc(&union(topology))
        .into_iter()
        .map(|component| component.into_iter().map(Rank).collect())
        .collect();
    all.iter_mut().for_each(|component| component.sort());
    all.sort();
    all
}

fn nodes<E>(topology: &dyn Topology) -> DiGraphMap<u32, E> {
    let mut g = DiGraphMap::new();
    for r in 0..topology.world() {
        g.add_node(r as u32);
    }
    g
}
