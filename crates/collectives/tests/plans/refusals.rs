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
        "root: rank 4 of 4, which is not there: numbers begin at 0",
    );
    let req = Request {
        rank: Rank(9),
        ..request(Call::Barrier, 4, 0)
    };
    check(
        &req,
        "rank: rank 9 of 4, which is not there: numbers begin at 0",
    );
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
    check(
        &mix(&[0], &[]),
        "in-neighbour: rank 0 of 4, which is one's own or named twice",
    );
    check(
        &mix(&[], &[1, 2, 1]),
        "out-neighbour: rank 1 of 4, which is one's own or named twice",
    );
    check(
        &mix(&[7], &[1]),
        "in-neighbour: rank 7 of 4, which is not there: numbers begin at 0",
    );
}

#[test]
fn numbers_that_make_no_plan() {
    let base = all_reduce(Reduce::Mean, Algorithm::Ring, 4, 10);
    let no_slice = Request {
        slice: 0,
        ..base.clone()
    };
    check(&no_slice, "slice is 0, wanted: at least 1");
    let nobody = Request {
        world: 0,
        ..base.clone()
    };
    check(&nobody, "world is 0, wanted: at least 1");
    let too_many = "slice is 1, wanted: large enough for fewer than 2^32 steps and slots";
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

#[test]
fn counts_that_do_not_fit() {
    let gather = |counts: &[u64]| {
        request(
            Call::Gather {
                root: Rank(0),
                counts: Counts::known(counts),
                algorithm: Algorithm::Direct,
            },
            3,
            0,
        )
    };
    check(&gather(&[1, 2]), "counts: 2 numbers for 3 ranks");
    check(
        &gather(&[1, u64::MAX, 2]),
        "counts: their sum is larger than 64 bits can count",
    );
    let discover = Call::AllGather {
        counts: Counts::Discover,
        algorithm: Algorithm::Direct,
    };
    check(
        &request(discover, 3, 0),
        "counts: are to be discovered before anything is planned",
    );
    let all_to_all = |algorithm, send: &[u64], recv: &[u64]| {
        request(
            Call::AllToAll {
                send: Counts::known(send),
                recv: Counts::known(recv),
                algorithm,
            },
            2,
            0,
        )
    };
    let mut req = all_to_all(Algorithm::Direct, &[3, 1], &[4, 1]);
    check(&req, "send counts: 3 elements to oneself, 4 from oneself");
    req.call = all_to_all(Algorithm::Direct, &[3, 1], &[3, 1]).call;
    check(
        &req,
        "all_to_all works in place with equal counts only; give an input and an output",
    );
    let bruck = Request {
        out_of_place: true,
        ..all_to_all(Algorithm::Bruck, &[3, 1], &[3, 1])
    };
    check(&bruck, "all_to_all by bruck needs equal counts; use direct");
    let fused = Request {
        out_of_place: true,
        ..all_to_all(Algorithm::Fused, &[3, 1], &[3, 1])
    };
    check(&fused, "all_to_all by fused needs equal counts; use direct");
    let hosts = Request {
        hosts: Some([0, 0, 1].into()),
        ..all_reduce(Reduce::Sum, Algorithm::TwoLevelRing, 4, 10)
    };
    check(&hosts, "hosts: 3 numbers for 4 ranks");
}

#[test]
fn peers_and_places_that_have_no_meaning() {
    check(
        &request(Call::Send { to: Rank(0) }, 2, 1),
        "receiver: rank 0 of 2, which is one's own or named twice",
    );
    check(
        &request(Call::Recv { from: Rank(7) }, 2, 1),
        "sender: rank 7 of 2, which is not there: numbers begin at 0",
    );
    let gather = Call::NeighbourGather {
        from: vec![Rank(1)],
        to: vec![],
        counts: Counts::Equal,
    };
    check(
        &request(gather, 2, 1),
        "neighbour_all_gather has no meaning in place; give an input and an output",
    );
    let radix = Request {
        radix: 1,
        ..all_reduce(Reduce::Sum, Algorithm::Knomial, 4, 10)
    };
    check(&radix, "radix is 1, wanted: at least 2");
}

#[test]
fn machines_that_are_none() {
    let mix = |machines: &[&[u32]], from: &[u32], to: &[u32]| {
        let members = |m: &&[u32]| m.iter().copied().map(Rank).collect();
        request(
            Call::HierarchicalMix {
                machines: machines.iter().map(members).collect(),
                from: from.to_vec(),
                to: to.to_vec(),
                scaled: false,
                form: Form::Delta,
            },
            4,
            10,
        )
    };
    let two: &[&[u32]] = &[&[0, 1], &[2, 3]];
    check(
        &mix(two, &[0], &[]),
        "in-machine: rank 0 of 2, which is one's own or named twice",
    );
    check(
        &mix(two, &[1], &[1, 1]),
        "out-machine: rank 1 of 2, which is one's own or named twice",
    );
    check(
        &mix(two, &[2], &[]),
        "in-machine: rank 2 of 2, which is not there: numbers begin at 0",
    );
    check(
        &mix(&[&[0, 1], &[2]], &[], &[]),
        "member of no machine: rank 3 of 4",
    );
    check(
        &mix(&[&[0, 1], &[2, 3, 1]], &[], &[]),
        "member of a machine: rank 1 of 4, which is one's own or named twice",
    );
    check(
        &mix(&[&[0, 1], &[2, 3, 4]], &[], &[]),
        "member of a machine: rank 4 of 4, which is not there: numbers begin at 0",
    );
    check(
        &mix(&[&[0], &[2, 3, 1]], &[], &[]),
        "hierarchical_mix needs machines of equal size: machine 0 has size 1, machine 1 has 3",
    );
}
