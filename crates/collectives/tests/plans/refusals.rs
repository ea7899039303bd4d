//! What has no plan is refused, and the message says what has.

use crate::{all_reduce, request};
use gaggle_collectives::{Call, PlanError, Request, plan};
use gaggle_core::{Algorithm, Codec, Counts, Form, Rank, Reduce};

fn refusal(req: &Request) -> PlanError {
    plan(req).expect_err("the request has no plan")
}

fn check(req: &Request, expected: &str) {
    assert_eq!(refusal(req).to_string(), expected);
}

#[test]
fn codecs_that_would_round_at_every_hop() {
    for algorithm in [Algorithm::Ring, Algorithm::RecursiveDoubling] {
        let req = Request {
            codec: Codec::Bf16,
            ..all_reduce(Reduce::Mean, algorithm, 4, 10)
        };
        check(
            &req,
            &format!("all_reduce by {algorithm} would round to bf16 at every hop; use direct"),
        );
    }
}

#[test]
fn codecs_of_operations_that_have_none() {
    let algorithm = Algorithm::Ring;
    let calls = [
        (
            Call::Broadcast {
                root: Rank(0),
                algorithm: Algorithm::Binomial,
            },
            "broadcast",
        ),
        (
            Call::AllGather {
                counts: Counts::Equal,
                algorithm,
            },
            "all_gather",
        ),
        (Call::Barrier, "barrier"),
    ];
    for (call, name) in calls {
        let req = Request {
            codec: Codec::Bf16,
            ..request(call, 4, 10)
        };
        let expected = format!(
            "{name} has no plan with codec bf16; all_reduce, reduce_scatter, all_gather and broadcast by direct, all_reduce by two_level_direct, mix and hierarchical_mix have"
        );
        check(&req, &expected);
    }
}

#[test]
fn algorithms_that_do_something_else() {
    let refused = refusal(&all_reduce(Reduce::Sum, Algorithm::Bruck, 4, 10)).to_string();
    let head = "all_reduce has no plan by bruck; it has ring, recursive_doubling, direct, ";
    assert!(refused.starts_with(head), "{refused}");
    let algorithm = Algorithm::Binomial;
    let refused = refusal(&request(
        Call::AllGather {
            counts: Counts::Equal,
            algorithm,
        },
        4,
        10,
    ))
    .to_string();
    let head = "all_gather has no plan by binomial; it has ring, direct";
    assert!(refused.starts_with(head), "{refused}");
}

#[test]
fn ranks_that_do_not_exist() {
    let root = Rank(4);
    check(
        &request(
            Call::Broadcast {
                root,
                algorithm: Algorithm::Binomial,
            },
            4,
            10,
        ),
        "root: rank 4 of 4",
    );
    let req = Request {
        rank: Rank(9),
        ..request(Call::Barrier, 4, 0)
    };
    check(&req, "rank: rank 9 of 4");
    let mix = |from: &[u32], to: &[u32]| {
        let ranks = |r: &[u32]| r.iter().copied().map(Rank).collect();
        let call = Call::Mix {
            from: ranks(from),
            to: ranks(to),
            scaled: false,
            form: Form::Delta,
        };
        request(call, 4, 10)
    };
    check(&mix(&[0], &[]), "in-neighbour: rank 0 of 4");
    check(&mix(&[], &[1, 2, 1]), "out-neighbour: rank 1 of 4");
    check(&mix(&[7], &[1]), "in-neighbour: rank 7 of 4");
}

#[test]
fn numbers_that_make_no_plan() {
    let base = all_reduce(Reduce::Mean, Algorithm::Ring, 4, 10);
    let no_slice = Request {
        slice: 0,
        ..base.clone()
    };
    check(&no_slice, "slice is 0: at least 1");
    let nobody = Request {
        world: 0,
        ..base.clone()
    };
    check(&nobody, "world is 0: at least 1");
    let too_many = "slice is 1: large enough for fewer than 2^32 steps and slots";
    for algorithm in [
        Algorithm::Ring,
        Algorithm::Direct,
        Algorithm::RecursiveDoubling,
    ] {
        let req = all_reduce(Reduce::Mean, algorithm, 4, 1 << 32);
        check(&Request { slice: 1, ..req }, too_many);
    }
    let algorithm = Algorithm::Direct;
    let req = request(
        Call::AllGather {
            counts: Counts::Equal,
            algorithm,
        },
        1 << 20,
        1 << 50,
    );
    assert!(matches!(
        refusal(&req),
        PlanError::BadNumber { field: "len", .. }
    ));
}
