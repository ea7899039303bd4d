//! Three operations at once, started in another order on every rank, with room for one message per link.

use crate::{all_reduce, cases, plans};
use gaggle_collectives::check::{Schedule, check_in_flight};
use gaggle_collectives::{Fault, Plan, Promise, Step};
use gaggle_core::{Algorithm, Reduce};
use std::sync::Arc;

const ORDERS: [[usize; 3]; 6] = [
    [0, 1, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
    [0, 2, 1],
    [1, 0, 2],
];

/// Each rank in an order of its own.
fn starts(world: u32, by: usize) -> Vec<Vec<usize>> {
    (0..world as usize)
        .map(|r| ORDERS[(r + by) % ORDERS.len()].to_vec())
        .collect()
}

/// Every operation by every algorithm.
fn operations(world: u32) -> Vec<Promise> {
    let forms = [0, 4, 22, 61];
    let of = |(i, (kind, algorithm)): (usize, _)| {
        let which = forms[i % 4] % cases::n_cases(kind, algorithm, world);
        let case = cases::case(kind, algorithm, world, 5, which);
        case.or_else(|| cases::case(kind, algorithm, world, 5, 0))
    };
    cases::all()
        .enumerate()
        .filter_map(of)
        .filter(|p| p.requests().len() == world as usize)
        .collect()
}

#[test]
fn three_operations_in_different_orders_all_end_as_promised() {
    for world in [2, 3, 5, 8] {
        let all: Vec<(Vec<Plan>, Promise)> = operations(world)
            .into_iter()
            .map(|promise| (plans(&promise), promise))
            .collect();
        let n = all.len();
        for first in 0..n {
            let three: Vec<(&[Plan], &Promise)> = (0..3)
                .map(|i| &all[(first + 7 * i) % n])
                .map(|(plans, promise)| (&plans[..], promise))
                .collect();
            for seed in 0..6u32 {
                let schedule = Schedule {
                    starts: starts(world, seed as usize),
                    credit: seed % 3,
                    late: seed % 2 == 1,
                    seed: u64::from(seed),
                };
                let kept = check_in_flight(&three, &schedule);
                let kept = kept.unwrap_or_else(|fault| panic!("{world} {schedule:?}: {fault}"));
                assert!(kept <= schedule.credit);
            }
        }
    }
}

/// The same operation three times, so that only the identity tells the messages apart.
#[test]
fn three_operations_of_one_kind_are_not_mixed_up() {
    for promise in operations(4) {
        let base = &promise.requests()[0];
        let plans = plans(&promise);
        let three = [(&plans[..], &promise); 3];
        for seed in 0..6u32 {
            let schedule = Schedule {
                starts: starts(4, seed as usize),
                credit: 1,
                late: seed % 2 == 0,
                seed: u64::from(seed),
            };
            let kept = check_in_flight(&three, &schedule);
            assert!(kept.is_ok(), "{base:?} {schedule:?}: {kept:?}");
        }
    }
}

/// What an operation lacks in itself is not made up for by the others.
#[test]
fn a_fault_of_one_of_three_is_found() {
    let promise = Promise::of_all(&all_reduce(Reduce::Sum, Algorithm::Ring, 3, 6));
    let good = plans(&promise);
    let mut bad = good.clone();
    let mut steps: Vec<Step> = bad[1].iter().collect();
    steps.truncate(2);
    bad[1].steps = Arc::new(steps);
    let schedule = Schedule {
        starts: starts(3, 0),
        credit: 1,
        late: false,
        seed: 1,
    };
    let three = [
        (&good[..], &promise),
        (&bad[..], &promise),
        (&good[..], &promise),
    ];
    let fault = check_in_flight(&three, &schedule).unwrap_err();
    assert!(
        matches!(fault, Fault::NoSend { .. } | Fault::NoReceive { .. }),
        "{fault}"
    );
}
