//! Known runs of the rules here, to be repeated with any mixer: six or eight ranks, two small problems, numbers from an independent implementation.
//!
//! For tests of this workspace; not part of the promise.

mod graph;
mod problem;
mod row;

pub use graph::Graph;
pub use problem::{Kind, Problem};
pub use row::Row;

use std::sync::OnceLock;

/// All rows.
///
/// # Panics
/// Where a line of the table cannot be read.
pub fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let lines = include_str!("rows.txt").lines();
        let said = lines.filter(|l| !l.starts_with('#') && !l.is_empty());
        let rows: Result<Vec<Row>, String> = said.map(Row::parse).collect();
        rows.expect("the table is well-formed")
    })
}

/// √(mean over ranks of |x_i − x̄|²).
pub fn consensus(x: &[Vec<f64>]) -> f64 {
    let n = x.len() as f64;
    let d = x.first().map_or(0, Vec::len);
    let mean: Vec<f64> = (0..d)
        .map(|k| x.iter().map(|x| x[k]).sum::<f64>() / n)
        .collect();
    distance(x, &mean)
}

/// √(mean over ranks of |x_i − to|²).
fn distance(x: &[Vec<f64>], to: &[f64]) -> f64 {
    let square = |x: &Vec<f64>| -> f64 { x.iter().zip(to).map(|(a, b)| (a - b).powi(2)).sum() };
    (x.iter().map(square).sum::<f64>() / x.len() as f64).sqrt()
}
