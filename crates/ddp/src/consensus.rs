//! How far apart the ranks' parameters are.

use gaggle_core::{Error, Float, Group, Mean};

/// √( (1/P) Σᵢ ‖xᵢ − x̄‖² ): the root mean square distance of the ranks' vectors from their mean, the same on every rank. 0 where all are equal.
///
/// Computed in f64, on the default lane: one all-reduce of `x.len()` doubles and one of a single one.
///
/// # Errors
/// See [`Cause`](gaggle_core::Cause).
pub fn consensus_distance<T: Float>(group: &Group, x: &[T]) -> Result<f64, Error> {
    let mut mean: Vec<f64> = x.iter().map(|v| v.to_f64()).collect();
    group.all_reduce(&mut mean, Mean)?;
    let square: f64 = x
        .iter()
        .zip(&mean)
        .map(|(v, m)| (v.to_f64() - m).powi(2))
        .sum();
    let mut squares = [square];
    group.all_reduce(&mut squares, Mean)?;
    Ok(squares[0].sqrt())
}
