//! Grids: two dimensions, with and without edges around the border.

use crate::{Graph, Table, TopologyError, Weights, error::checked_world};
use gaggle_core::Rank;

/// The most even shape (rows, columns) of `world` ranks: as many rows as the largest divisor that is not above the square root. A prime gives a line.
pub fn even_shape(world: usize) -> (usize, usize) {
    let mut rows = world.isqrt();
    while rows > 1 && !world.is_multiple_of(rows) {
        rows -= 1;
    }
    (rows.max(1), world / rows.max(1))
}

/// A grid of rows × columns, row by row, without edges around; Metropolis–Hastings weights.
///
/// Two to four messages per rank and round. 1 − ρ falls as 1/max(rows, columns)².
///
/// # Errors
/// No rows, no columns, or more ranks than can be counted.
pub fn mesh(rows: usize, columns: usize) -> Result<Table, TopologyError> {
    grid("mesh", rows, columns, false)
}

/// A grid of rows × columns whose borders are joined; Metropolis–Hastings weights. Edges that fall together (two rows, two columns) are one.
///
/// Up to four messages per rank and round; ρ = (3 + 2·cos(2π/max(rows, columns)))/5 from three rows and columns on.
///
/// # Errors
/// As [`mesh`].
pub fn torus(rows: usize, columns: usize) -> Result<Table, TopologyError> {
    grid("torus", rows, columns, true)
}

fn grid(name: &str, rows: usize, columns: usize, around: bool) -> Result<Table, TopologyError> {
    let world = rows.saturating_mul(columns);
    checked_world(name, world)?;
    let at = |row: usize, column: usize| Rank((row * columns + column) as u32);
    let next = |x: usize, len: usize| match x + 1 {
        x if x < len => Some(x),
        _ if around => Some(0),
        _ => None,
    };
    let edges = (0..world).flat_map(|i| {
        let (row, column) = (i / columns, i % columns);
        let down = next(row, rows).map(|r| at(r, column));
        let right = next(column, columns).map(|c| at(row, c));
        let here = at(row, column);
        [down, right]
            .into_iter()
            .flatten()
            .filter(move |peer| *peer != here)
            .map(move |peer| (here, peer))
    });
    Graph::undirected(world, edges)?.table(name, Weights::Metropolis)
}
