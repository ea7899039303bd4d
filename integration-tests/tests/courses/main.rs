//! Runs whose course changes: step sizes that follow a schedule, gradients that are cut, other neighbours, weights and periods from one step to the next.
//!
//! What comes out of a matrix mixer in one thread, and of the engine on ranks as threads, is held against the rules' formulas, computed here once more with nothing of the library's ([`plain`]).

mod changes;
mod clipping;
mod plain;
mod schedules;

use gaggle_integration_tests::drive::{Case, among, over_a_matrix, over_the_engine};

/// What differs from these rows, in a world of as many, over a matrix and over the engine.
fn differences(case: &Case, want: &[Vec<f64>]) -> Vec<String> {
    let n = want.len();
    let engine = among(n, |group| over_the_engine(group, case));
    let engine = engine.unwrap_or_else(|e| panic!("{} of {n}: {e}", case.rule));
    let mut wrong = vec![];
    for (how, got) in [("matrix", over_a_matrix(case, n)), ("engine", engine)] {
        let off = plain::distance(&got, want);
        // Delta form and plain sums round differently; nothing here grows.
        if off.is_nan() || off > 1e-12 {
            wrong.push(format!(
                "{} of {n} over the {how}: off by {off:e}",
                case.rule
            ));
        }
    }
    wrong
}
