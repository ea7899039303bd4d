//! Rounds as dense `ndarray` matrices, and matrices as topologies.

use crate::{TopologyError, facts::rounds_in_period, mixing::Sparse, table::Table};
use gaggle_core::{Form, Rank, Round, Topology};
use ndarray::Array2;

/// W of round `t`: `W[[i, j]]` is the weight that receiver i puts on what sender j has.
///
/// ```
/// use gaggle_topology::{Ring, matrix};
/// let w = matrix(&Ring::new(4)?, 0);
/// let third = 1.0 / 3.0;
/// assert_eq!(w.row(0).to_vec(), [third, third, 0.0, third]);
/// # Ok::<(), gaggle_topology::TopologyError>(())
/// ```
pub fn matrix(topology: &dyn Topology, t: u64) -> Array2<f64> {
    let mixing = Sparse::of(topology, t);
    let mut w = Array2::zeros((mixing.world(), mixing.world()));
    for (i, row) in mixing.rows.iter().enumerate() {
        w[[i, i]] = mixing.keep[i];
        for &(j, weight) in row {
            w[[i, j]] += weight;
        }
    }
    w
}

/// Π = W_{τ−1}…W_0, what one whole period does (the first [`crate::NEVER_REPEATS`] rounds of a topology that never repeats).
pub fn period_product(topology: &dyn Topology) -> Array2<f64> {
    let start = Array2::eye(topology.world());
    (0..rounds_in_period(topology)).fold(start, |product, t| matrix(topology, t).dot(&product))
}

impl Table {
    /// A topology that repeats `matrices`; entries that are exactly 0 are no edges. Rows that sum to one within 1e-12 are computed in delta form.
    ///
    /// # Errors
    /// No matrix, matrices that are not square or of one size, or weights that are negative or not finite.
    pub fn from_matrices(
        name: impl Into<String>,
        matrices: &[Array2<f64>],
    ) -> Result<Table, TopologyError> {
        let name = name.into();
        if let Some((t, m)) = matrices.iter().enumerate().find(|(_, m)| !m.is_square()) {
            return Err(TopologyError::Shape {
                topology: name,
                round: t as u64,
                got: m.ncols(),
                want: m.nrows(),
            });
        }
        let rounds = matrices.iter().map(rounds_of).collect();
        Table::new(name, rounds)
    }
}

fn rounds_of(w: &Array2<f64>) -> Vec<Round> {
    let n = w.nrows();
    let peers = |i: usize| (0..n).filter(move |&j| j != i);
    let round = |i: usize| Round {
        from: peers(i)
            .filter(|&j| w[[i, j]] != 0.0)
            .map(|j| (Rank(j as u32), w[[i, j]]))
            .collect(),
        to: peers(i)
            .filter(|&j| w[[j, i]] != 0.0)
            .map(|j| (Rank(j as u32), 1.0))
            .collect(),
        keep: w[[i, i]],
        form: if (w.row(i).sum() - 1.0).abs() <= crate::check::TOLERANCE {
            Form::Delta
        } else {
            Form::Sum
        },
    };
    (0..n).map(round).collect()
}
