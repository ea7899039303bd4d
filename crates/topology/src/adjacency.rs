//! A user's own graph: edges first, weights afterwards.

use crate::{
    Table,
    error::{TopologyError, checked_world},
};
use gaggle_core::{Form, Rank, Round};

/// How the edges of a [`Graph`] are weighed. d is a rank's number of neighbours without itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Weights {
    /// Receiver i puts 1/(in-degree + 1) on itself and on each in-neighbour.
    ///
    /// Rows sum to one; columns only where the degrees fit, as on regular graphs. Elsewhere averages drift towards those who are listened to more: [`check`](crate::check) says so, [`Weights::Push`] with push-sum does not have it.
    #[default]
    Uniform,
    /// Metropolis–Hastings: 1/(1 + max(dᵢ, dⱼ)) on an edge, the rest on oneself. Doubly stochastic on every undirected graph.
    Metropolis,
    /// 1/(2·max(dᵢ, dⱼ)) on an edge: every rank keeps at least half (Olshevsky's lazy Metropolis). Doubly stochastic on every undirected graph, and without negative eigenvalues.
    LazyMetropolis,
    /// 1/(1 + largest degree) on every edge. Doubly stochastic on every undirected graph.
    MaxDegree,
    /// Sender j gives 1/(out-degree + 1) to itself and to each out-neighbour: columns sum to one, rows need not.
    ///
    /// For push-sum, which divides by the weight that has come along; not for plain averaging.
    Push,
}

/// A directed graph over ranks: who sends to whom. No weights yet, and no edges from a rank to itself.
///
/// ```
/// use gaggle_core::Rank;
/// use gaggle_topology::{Graph, Weights, check};
///
/// // A path of four ranks, with weights that keep averages.
/// let path = Graph::undirected(4, (0..3).map(|i| (Rank(i), Rank(i + 1))))?;
/// check(&path.table("path", Weights::Metropolis)?)?;
/// // With uniform weights its ends are heard too much.
/// assert!(check(&path.table("path", Weights::Uniform)?).is_err());
/// # Ok::<(), gaggle_topology::TopologyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    out: Vec<Vec<u32>>,
    into: Vec<Vec<u32>>,
}

impl Graph {
    /// The graph with these edges (sender, receiver). An edge that is listed again is there once.
    ///
    /// # Errors
    /// A world of no ranks, an edge whose end is no member, or one from a rank to itself.
    pub fn new(
        world: usize,
        edges: impl IntoIterator<Item = (Rank, Rank)>,
    ) -> Result<Graph, TopologyError> {
        let n = checked_world("graph", world)?;
        let mut graph = Graph {
            out: vec![vec![]; world],
            into: vec![vec![]; world],
        };
        for (from, to) in edges {
            if from.0 >= n || to.0 >= n || from == to {
                return Err(TopologyError::Edge { from, to, world });
            }
            graph.out[from.idx()].push(to.0);
            graph.into[to.idx()].push(from.0);
        }
        for list in graph.out.iter_mut().chain(&mut graph.into) {
            list.sort_unstable();
            list.dedup();
        }
        Ok(graph)
    }

    /// The graph with these edges in both directions.
    ///
    /// # Errors
    /// As [`new`](Graph::new).
    pub fn undirected(
        world: usize,
        edges: impl IntoIterator<Item = (Rank, Rank)>,
    ) -> Result<Graph, TopologyError> {
        Graph::new(world, edges.into_iter().flat_map(|(a, b)| [(a, b), (b, a)]))
    }

    /// The graph of a `petgraph` graph: its nodes in index order are the ranks. Weights of nodes and edges are not looked at, and edges from a node to itself are left out.
    ///
    /// # Errors
    /// A graph without nodes.
    #[cfg(feature = "petgraph")]
    pub fn from_petgraph<G>(graph: G) -> Result<Graph, TopologyError>
    where
        G: petgraph::visit::IntoEdgeReferences
            + petgraph::visit::NodeCompactIndexable
            + petgraph::visit::GraphProp,
    {
        use petgraph::visit::EdgeRef;
        let rank = |node| Rank(graph.to_index(node) as u32);
        let edges = graph
            .edge_references()
            .map(|e| (rank(e.source()), rank(e.target())))
            .filter(|(a, b)| a != b);
        match graph.is_directed() {
            true => Graph::new(graph.node_count(), edges),
            false => Graph::undirected(graph.node_count(), edges),
        }
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.out.len()
    }

    /// Whom `rank` sends to, ascending; nobody for a rank that is no member.
    pub fn out_neighbours(&self, rank: Rank) -> impl Iterator<Item = Rank> + '_ {
        self.out
            .get(rank.idx())
            .into_iter()
            .flatten()
            .map(|r| Rank(*r))
    }

    /// Whom `rank` receives from, ascending; nobody for a rank that is no member.
    pub fn in_neighbours(&self, rank: Rank) -> impl Iterator<Item = Rank> + '_ {
        self.into
            .get(rank.idx())
            .into_iter()
            .flatten()
            .map(|r| Rank(*r))
    }

    /// Whether every edge goes both ways.
    pub fn is_undirected(&self) -> bool {
        self.out == self.into
    }

    /// Whether everybody reaches everybody.
    pub fn is_connected(&self) -> bool {
        crate::mixing::reaches_all(&self.out) && crate::mixing::reaches_all(&self.into)
    }

    /// The static topology of this graph.
    ///
    /// # Errors
    /// Weights that need an undirected graph, and an edge that goes one way.
    pub fn table(&self, name: impl Into<String>, weights: Weights) -> Result<Table, TopologyError> {
        Table::new(name, vec![self.round(weights)?])
    }

    /// One round over all edges, for every rank.
    ///
    /// # Errors
    /// Weights that need an undirected graph, and an edge that goes one way.
    pub fn round(&self, weights: Weights) -> Result<Vec<Round>, TopologyError> {
        use Weights::{LazyMetropolis, MaxDegree, Metropolis};
        if matches!(weights, Metropolis | LazyMetropolis | MaxDegree)
            && let Some((from, to)) = self.one_way()
        {
            return Err(TopologyError::OneWay { weights, from, to });
        }
        let degree = |r: usize| self.into[r].len();
        let largest = (0..self.world()).map(degree).max().unwrap_or(0);
        let weight = |i: usize, j: usize| {
            let larger = degree(i).max(degree(j));
            match weights {
                Weights::Uniform => 1.0 / (degree(i) + 1) as f64,
                Metropolis => 1.0 / (larger + 1) as f64,
                LazyMetropolis => 1.0 / (2 * larger) as f64,
                MaxDegree => 1.0 / (largest + 1) as f64,
                Weights::Push => 1.0,
            }
        };
        let part = |i: usize| {
            let from: Vec<_> = self.into[i]
                .iter()
                .map(|j| (Rank(*j), weight(i, *j as usize)))
                .collect();
            let share = 1.0 / (self.out[i].len() + 1) as f64;
            let (keep, given, form) = match weights {
                Weights::Push => (share, share, Form::Sum),
                Weights::Uniform => (1.0 / (from.len() + 1) as f64, 1.0, Form::Delta),
                _ => (
                    1.0 - from.iter().map(|(_, w)| w).sum::<f64>(),
                    1.0,
                    Form::Delta,
                ),
            };
            Round {
                from,
                to: self.out[i].iter().map(|j| (Rank(*j), given)).collect(),
                keep,
                form,
            }
        };
        Ok((0..self.world()).map(part).collect())
    }

    fn one_way(&self) -> Option<(Rank, Rank)> {
        let mut edges = self
            .out
            .iter()
            .enumerate()
            .flat_map(|(i, list)| list.iter().map(move |j| (i, *j)));
        edges
            .find(|(i, j)| self.into[*i].binary_search(j).is_err())
            .map(|(i, j)| (Rank(i as u32), Rank(j)))
    }
}
