//! Steps over memory that all ranks have mapped: what the checker holds them to.

use crate::{all_reduce, list_accepted, request, snapshot};
use gaggle_collectives::{
    Action, Buf, Call, Fault, Plan, Promise, Request, Span, Step, check, check::depth,
};
use gaggle_core::{Algorithm, OpKind, Rank, Reduce};
use smallvec::SmallVec;
use std::sync::Arc;

/// A rank's plan of these actions, each after the one before.
fn chain(request: &Request, rank: u32, actions: Vec<Action>) -> Plan {
    let mean = request.call.reduce() == Reduce::Mean;
    let after = |idx: u32| match idx.checked_sub(1) {
        Some(before) => SmallVec::from_slice(&[before]),
        None => SmallVec::new(),
    };
    let steps: Vec<Step> = (0..)
        .zip(actions)
        .map(|(idx, action)| Step {
            action,
            after: after(idx),
        })
        .collect();
    Plan {
        kind: request.call.kind(),
        algorithm: Algorithm::Fused,
        reduce: request.call.reduce(),
        rank: Rank(rank),
        world: request.world,
        input_len: if request.out_of_place { request.len } else { 0 },
        user_len: request.len,
        scratch_len: request.len,
        n_slots: if mean { 2 } else { 0 },
        total: mean.then_some(1),
        steps: Arc::new(steps),
    }
}

/// Everybody folds a share of everybody's vector into everybody's.
fn fold(request: &Request, rank: u32) -> Plan {
    let (n, len) = (u64::from(request.world), request.len);
    let share = |r: u64| len * r / n;
    let at = share(u64::from(rank));
    let mean = request.call.reduce() == Reduce::Mean;
    let fold = Action::GroupFold {
        from: if request.out_of_place {
            Buf::Input
        } else {
            Buf::User
        },
        at,
        len: share(u64::from(rank) + 1) - at,
        sum: mean.then_some(1),
    };
    let actions = vec![
        Action::Arrive { phase: 0 },
        Action::AwaitAll { phase: 0 },
        fold,
        Action::Arrive { phase: 1 },
        Action::AwaitAll { phase: 1 },
    ];
    chain(request, rank, actions)
}

fn folds(request: &Request) -> (Vec<Plan>, Promise) {
    let plans = (0..request.world).map(|r| fold(request, r)).collect();
    (plans, Promise::of_all(request))
}

/// Everybody copies from the root.
fn copies(world: u32) -> (Vec<Plan>, Promise) {
    let root = Rank(world / 2);
    let call = Call::Broadcast {
        root,
        algorithm: Algorithm::Fused,
    };
    let request = request(call, world, 3);
    let of = |rank: u32| {
        let copy = Action::GroupCopy {
            from: root,
            src: Span::user(0, 3),
            dst: Span::user(0, 3),
        };
        let mut actions = vec![Action::Arrive { phase: 0 }, Action::AwaitAll { phase: 0 }];
        if rank != root.0 {
            actions.push(copy);
        }
        actions.extend([Action::Arrive { phase: 1 }, Action::AwaitAll { phase: 1 }]);
        chain(&request, rank, actions)
    };
    ((0..world).map(of).collect(), Promise::of_all(&request))
}

#[test]
fn folds_and_copies_keep_what_is_promised() {
    for world in [2, 3, 5, 8] {
        for reduce in [Reduce::Sum, Reduce::Mean] {
            for out_of_place in [false, true] {
                for len in [0, 1, 7, 2 * u64::from(world)] {
                    let (plans, promise) = folds(&Request {
                        out_of_place,
                        ..all_reduce(reduce, Algorithm::Fused, world, len)
                    });
                    check(&plans, &promise).unwrap();
                    assert_eq!(depth(&plans), Ok(2));
                    assert_eq!(plans[0].kind, OpKind::AllReduce);
                }
            }
        }
        let (plans, promise) = copies(world);
        check(&plans, &promise).unwrap();
    }
}

/// One thing wrong in any rank's part is found, or is listed: to wait twice, or for a phase that is over, changes nothing.
#[test]
fn mutants_are_rejected_or_listed() {
    let mut list = String::new();
    for world in [2, 3] {
        for reduce in [Reduce::Sum, Reduce::Mean] {
            for out_of_place in [false, true] {
                let request = Request {
                    out_of_place,
                    ..all_reduce(reduce, Algorithm::Fused, world, 2 * u64::from(world))
                };
                let place = if out_of_place {
                    "out of place"
                } else {
                    "in place"
                };
                let (plans, promise) = folds(&request);
                list += &list_accepted(&format!("fused {reduce} {place}"), &plans, &promise);
            }
        }
        let (plans, promise) = copies(world);
        list += &list_accepted("fused broadcast", &plans, &promise);
    }
    snapshot("accepted_mutants_fused", &list);
}

/// The fault of an in-place sum of 2 after a change of rank 1.
fn fault(with: impl FnOnce(&mut Vec<Step>)) -> Fault {
    let (mut plans, promise) = folds(&all_reduce(Reduce::Sum, Algorithm::Fused, 2, 4));
    let mut steps: Vec<Step> = plans[1].iter().collect();
    with(&mut steps);
    plans[1].steps = Arc::new(steps);
    check(&plans, &promise).expect_err("the plans are wrong on purpose")
}

#[test]
fn a_phase_that_somebody_never_comes_to() {
    let fault = fault(|steps| steps[3].action = Action::Arrive { phase: 2 });
    assert!(matches!(fault, Fault::NeverArrives { phase: 1, .. }));
    assert_eq!(
        fault.to_string(),
        "rank 0 step 4 (await all at phase 1): rank 1 never arrive at phase 1"
    );
}

#[test]
fn a_phase_that_somebody_comes_to_twice() {
    let fault = fault(|steps| steps[3].action = Action::Arrive { phase: 0 });
    assert!(matches!(fault, Fault::ArrivesTwice { phase: 0, .. }));
}

#[test]
fn a_phase_that_nobody_waits_for() {
    let fault = fault(|steps| {
        steps.push(Step {
            action: Action::Arrive { phase: 7 },
            after: SmallVec::from_slice(&[4]),
        });
    });
    assert_eq!(
        fault.to_string(),
        "rank 1 step 5 (arrive at phase 7): changes nothing"
    );
}

#[test]
fn phases_that_wait_for_each_other() {
    let fault = fault(|steps| {
        let (arrive, wait) = (steps[0].action.clone(), steps[1].action.clone());
        (steps[0].action, steps[1].action) = (wait, arrive);
    });
    assert!(matches!(fault, Fault::Deadlock { .. }), "{fault}");
}

#[test]
fn tiles_that_overlap() {
    let fault = fault(|steps| {
        if let Action::GroupFold { at, len, .. } = &mut steps[2].action {
            (*at, *len) = (1, 3);
        }
    });
    assert_eq!(
        fault.to_string(),
        "rank 0 step 2 (group fold user[0..2] of all into user of all) and rank 1 step 2 (group fold user[1..4] of all into user of all) both touch rank 0's user[1..2] and nothing orders them"
    );
}

#[test]
fn memory_that_its_owner_has_not_lent_yet() {
    let fault = fault(|steps| steps[2].after.clear());
    assert!(
        matches!(
            fault,
            Fault::NotLent {
                when: "before the owner has begun",
                ..
            }
        ),
        "{fault}"
    );
}

#[test]
fn memory_that_its_owner_may_have_taken_back() {
    let (mut plans, promise) = folds(&all_reduce(Reduce::Sum, Algorithm::Fused, 2, 4));
    for plan in &mut plans {
        let steps: Vec<Step> = plan.iter().take(3).collect();
        plan.steps = Arc::new(steps);
    }
    let fault = check(&plans, &promise).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "rank 1 step 2 (group fold user[2..4] of all into user of all) touches rank 0's user[2..4] when the owner may have ended"
    );
}

#[test]
fn memory_that_others_do_not_have() {
    let beyond = fault(|steps| {
        if let Action::GroupFold { at, .. } = &mut steps[2].action {
            *at = 3;
        }
    });
    assert!(matches!(beyond, Fault::OutOfBounds { .. }), "{beyond}");
    let scratch = fault(|steps| {
        if let Action::GroupFold { from, .. } = &mut steps[2].action {
            *from = Buf::Scratch;
        }
    });
    assert!(
        scratch
            .to_string()
            .contains("which no other rank has mapped"),
        "{scratch}"
    );
}
