//! Plans as the crate's users see them: proved, costed, printed, and broken on purpose.

mod cases;
mod costs;
mod faults;
mod feedback;
mod fused;
mod in_flight;
mod large;
mod mutants;
mod nodes;
mod printed;
mod proofs;
mod random;
mod refusals;
mod select;
mod times;

use gaggle_collectives::{Call, Plan, Promise, Request, accepted_mutants, check, mutants, plan};
use gaggle_core::{Algorithm, Codec, Rank, Reduce};

/// An all-reduce of `len` elements on `world` ranks, as rank 0 asks for it.
fn all_reduce(reduce: Reduce, algorithm: Algorithm, world: u32, len: u64) -> Request {
    request(Call::AllReduce { reduce, algorithm }, world, len)
}

/// In one slice, plain.
fn request(call: Call, world: u32, len: u64) -> Request {
    Request {
        call,
        rank: Rank(0),
        world,
        len,
        slice: len.max(1),
        codec: Codec::None,
        widen: false,
        ..Request::default()
    }
}

/// All ranks' plans.
fn plans(promise: &Promise) -> Vec<Plan> {
    promise
        .requests()
        .iter()
        .map(|r| plan(r).expect("the request is one that has a plan"))
        .collect()
}

/// One line for the operation, and one for each mutant of its plans that the checker accepts.
fn list_accepted(name: &str, plans: &[Plan], promise: &Promise) -> String {
    check(plans, promise).expect("nothing has been changed yet");
    let n = mutants(plans).count();
    let accepted = accepted_mutants(plans, promise);
    let (world, n_accepted) = (plans.len(), accepted.len());
    let mut list = format!("{name} of {world}: {n_accepted} of {n} accepted\n");
    for mutant in accepted {
        list += &format!("    {}\n", mutant.description);
    }
    list
}

/// Compares with `tests/snapshots/NAME.txt`, or writes it where `GAGGLE_SNAPSHOTS=write`.
fn snapshot(name: &str, got: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/snapshots")
        .join(format!("{name}.txt"));
    if std::env::var_os("GAGGLE_SNAPSHOTS").is_some_and(|v| v == "write") {
        std::fs::write(&path, got).expect("the snapshot can be written");
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = |(i, (a, b)): (usize, (&str, &str))| (a != b).then(|| (i + 1, a.to_string()));
    let padded = |s: &str| format!("{s}\n(end)");
    let (want_lines, got_lines) = (padded(&want), padded(got));
    if let Some((line, first)) = want_lines
        .lines()
        .zip(got_lines.lines())
        .enumerate()
        .find_map(differs)
    {
        panic!(
            "{} differs from line {line} on, which was {first:?}; GAGGLE_SNAPSHOTS=write rewrites it",
            path.display()
        );
    }
}
