//! Error feedback: what the codec loses is kept, whole and once.

use crate::{all_reduce, list_accepted, plans, snapshot};
use gaggle_collectives::{Action, Fault, Operand, Plan, Promise, Request, Span, Step, check};
use gaggle_core::{Algorithm, Codec, Rank, Reduce};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// A sum of two elements on two ranks: each owns one, made by hand.
fn request() -> Request {
    Request {
        codec: Codec::Int8,
        feedback: true,
        ..all_reduce(Reduce::Sum, Algorithm::Direct, 2, 2)
    }
}

fn plan_of(rank: u32) -> Plan {
    let request = request();
    let other = Rank(1 - rank);
    let (own, theirs) = (
        Span::user(u64::from(rank), 1),
        Span::user(1 - u64::from(rank), 1),
    );
    let compensate = |span: Span| Action::Compensate {
        span,
        residual: span.at,
        codec: Codec::Int8,
        unless_zero: None,
    };
    let send = |tag, src| Action::Send {
        to: other,
        tag,
        src,
        wire: gaggle_collectives::Buf::User,
        codec: Codec::Int8,
        weight: None,
        scale: None,
    };
    let recv = |tag, dst| Action::Recv {
        from: other,
        tag,
        dst,
        wire: gaggle_collectives::Buf::User,
        codec: Codec::Int8,
        arrive: gaggle_collectives::Arrive::Store,
        weight: None,
    };
    let operand = |span| Operand { span, slot: None };
    let mut operands: SmallVec<[Operand; 8]> =
        smallvec![operand(own), operand(Span::scratch(0, 1))];
    if rank == 1 {
        operands.reverse();
    }
    let fold = Action::Fold {
        dst: own,
        operands,
        sum: None,
    };
    let steps: Vec<(Action, &[u32])> = vec![
        (compensate(theirs), &[]),
        (send(0, theirs), &[0]),
        (recv(0, Span::scratch(0, 1)), &[]),
        (fold, &[2]),
        (compensate(own), &[3]),
        (send(1, own), &[4]),
        (recv(1, theirs), &[1]),
    ];
    let steps = steps.into_iter().map(|(action, after)| Step {
        action,
        after: after.into(),
    });
    Plan {
        kind: request.call.kind(),
        algorithm: Algorithm::Direct,
        reduce: Reduce::Sum,
        rank: Rank(rank),
        world: 2,
        input_len: 0,
        user_len: 2,
        scratch_len: 1,
        n_slots: 0,
        total: None,
        steps: Arc::new(steps.collect::<Vec<_>>()),
    }
}

fn by_hand() -> (Vec<Plan>, Promise) {
    (vec![plan_of(0), plan_of(1)], Promise::of_all(&request()))
}

/// The fault after a change of rank 0's steps.
fn fault(with: impl FnOnce(&mut Vec<Step>)) -> Fault {
    let (mut plans, promise) = by_hand();
    let mut steps: Vec<Step> = plans[0].iter().collect();
    with(&mut steps);
    plans[0].steps = Arc::new(steps);
    check(&plans, &promise).expect_err("the plans are wrong on purpose")
}

#[test]
fn every_loss_is_kept_once() {
    let (plans, promise) = by_hand();
    check(&plans, &promise).unwrap();
    snapshot(
        "accepted_mutants_feedback",
        &list_accepted("by hand", &plans, &promise),
    );
}

#[test]
fn residuals_that_are_wrong() {
    let moved = fault(|steps| {
        if let Action::Compensate { residual, .. } = &mut steps[0].action {
            *residual = 0;
        }
    });
    assert!(matches!(moved, Fault::Misaligned { .. }), "{moved}");
    let beyond = fault(|steps| {
        if let Action::Compensate { residual, .. } = &mut steps[0].action {
            *residual = 2;
        }
    });
    assert!(
        beyond
            .to_string()
            .ends_with("adds a residual beyond the tensor's end"),
        "{beyond}"
    );
    let plain = Action::Recode {
        span: Span::user(1, 1),
        codec: Codec::Int8,
        unless_zero: None,
    };
    let lost = fault(|steps| steps[0].action = plain.clone());
    assert_eq!(
        lost.to_string(),
        "rank 0 step 0 (recode user[1..2] by int8): loses what no residual keeps"
    );
}

/// What is coded by blocks is only what it was where the whole block is coded again.
#[test]
fn blocks_that_are_cut_elsewhere() {
    let request = Request {
        codec: Codec::Int8,
        ..all_reduce(Reduce::Sum, Algorithm::Direct, 2, 8)
    };
    let promise = Promise::of_all(&request);
    let good = plans(&promise);
    check(&good, &promise).unwrap();
    let mut bad = good;
    let mut steps: Vec<Step> = bad[0].iter().collect();
    let recode = steps
        .iter_mut()
        .find_map(|s| match &mut s.action {
            Action::Recode { span, .. } => Some(span),
            _ => None,
        })
        .expect("the owner keeps what the others decode");
    recode.len -= 1;
    bad[0].steps = Arc::new(steps);
    let fault = check(&bad, &promise).unwrap_err();
    let text = fault.to_string();
    assert!(
        text.ends_with("rounds to the codec what was rounded to it twice already"),
        "{text}"
    );
}
