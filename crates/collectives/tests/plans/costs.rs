//! Counted bytes equal the formulas; counted rounds equal the stated ones.

use crate::{all_reduce, plans, request};
use gaggle_collectives::check::depth;
use gaggle_collectives::{Call, Cost, Plan, Promise, Request, bytes_sent, plan};
use gaggle_core::{Algorithm, Codec, Counts, DType, Form, Rank, Reduce};
use std::collections::BTreeSet;

/// Everything that is planned, for one world and length.
fn all(world: u32, len: u64) -> Vec<Request> {
    let mut all = Vec::new();
    for algorithm in [
        Algorithm::Ring,
        Algorithm::RecursiveDoubling,
        Algorithm::Direct,
    ] {
        for reduce in [Reduce::Sum, Reduce::Mean] {
            for widen in [false, true] {
                all.push(Request {
                    widen,
                    ..all_reduce(reduce, algorithm, world, len)
                });
            }
        }
    }
    all.push(Request {
        codec: Codec::Bf16,
        ..all_reduce(Reduce::Mean, Algorithm::Direct, world, len)
    });
    for root in [0, world / 2, world - 1].map(Rank) {
        all.push(request(
            Call::Broadcast {
                root,
                algorithm: Algorithm::Binomial,
            },
            world,
            len,
        ));
    }
    for algorithm in [Algorithm::Ring, Algorithm::Direct] {
        all.push(request(
            Call::AllGather {
                counts: Counts::Equal,
                algorithm,
            },
            world,
            len,
        ));
    }
    all.push(request(Call::Barrier, world, 0));
    all
}

#[test]
fn bytes_are_those_of_the_formula() {
    for world in [1, 2, 3, 5, 7, 8, 13, 16, 33] {
        for len in [0, 1, u64::from(world) - 1, u64::from(world) + 1, 101] {
            for base in all(world, len) {
                let dtype = match (base.codec, base.widen) {
                    (Codec::None, true) => DType::Bf16,
                    (Codec::None, false) => DType::F64,
                    _ => DType::F32,
                };
                for rank in (0..world).map(Rank) {
                    for slice in [7, base.slice] {
                        let req = Request {
                            rank,
                            slice,
                            ..base.clone()
                        };
                        let cost = Cost::of(&plan(&req).unwrap(), dtype).unwrap();
                        assert_eq!(Some(cost.bytes_sent), bytes_sent(&req, dtype), "{req:?}");
                        let sent: u64 = cost.links.values().map(|l| l.bytes_sent).sum();
                        assert_eq!(sent, cost.bytes_sent);
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_sent_is_received() {
    for base in all(7, 101) {
        let plans = plans(&Promise::of_all(&base));
        let costs: Vec<Cost> = plans
            .iter()
            .map(|p| Cost::of(p, DType::F32).unwrap())
            .collect();
        for (a, cost) in costs.iter().enumerate() {
            for (peer, link) in &cost.links {
                let back = costs[peer.idx()].links[&Rank(a as u32)];
                assert_eq!(link.bytes_sent, back.bytes_received, "{base:?}");
            }
        }
    }
}

#[test]
fn rounds_are_the_longest_chain_of_messages() {
    for world in [1, 2, 3, 4, 5, 7, 8, 13, 16, 33] {
        for base in all(world, 101) {
            let plans = plans(&Promise::of_all(&base));
            let cost = Cost::of(&plans[0], DType::F32).unwrap();
            let depth = depth(&plans).unwrap();
            let rounds = cost.rounds.unwrap();
            let may_be_shorter = matches!(
                plans[0].algorithm,
                Algorithm::RecursiveDoubling | Algorithm::Binomial
            );
            if may_be_shorter && !world.is_power_of_two() {
                let shorter = rounds - 1;
                assert!(depth == rounds || depth == shorter, "{depth}: {base:?}");
            } else {
                assert_eq!(depth, rounds, "{base:?}");
            }
        }
    }
}

/// Ring and direct send 2S(P−1)/P; the codec halves it.
#[test]
fn the_costs_that_the_documentation_states() {
    let sent = |req: &Request| bytes_sent(req, DType::F32).unwrap();
    for algorithm in [Algorithm::Ring, Algorithm::Direct] {
        let req = all_reduce(Reduce::Mean, algorithm, 4, 1000);
        assert_eq!(sent(&req), 2 * 4000 * 3 / 4);
    }
    let coded = Request {
        codec: Codec::Bf16,
        ..all_reduce(Reduce::Mean, Algorithm::Direct, 4, 1000)
    };
    assert_eq!(sent(&coded), 4000 * 3 / 4);
    let doubling = all_reduce(Reduce::Mean, Algorithm::RecursiveDoubling, 8, 1000);
    assert_eq!(sent(&doubling), 3 * 4000);
    let mix = Call::Mix {
        from: vec![Rank(1)],
        to: vec![Rank(2), Rank(3)],
        scaled: false,
        form: Form::Delta,
    };
    let mix = Request {
        codec: Codec::Bf16,
        ..request(mix, 4, 1000)
    };
    assert_eq!(sent(&mix), 2 * 2000);
    assert_eq!(bytes_sent(&mix, DType::F64), None);
    assert_eq!(Cost::of(&plan(&mix).unwrap(), DType::I32), None);
}

/// Descriptors meet on a link only where a message goes over it: also for empty vectors.
#[test]
fn empty_vectors_use_every_link() {
    let links = |plan: &Plan| -> BTreeSet<(Rank, bool)> {
        use gaggle_collectives::Action;
        let of = |a: Action| match a {
            Action::Send { to, .. } => Some((to, true)),
            Action::Recv { from, .. } => Some((from, false)),
            _ => None,
        };
        plan.iter().filter_map(|s| of(s.action)).collect()
    };
    for world in [1, 2, 3, 5, 8, 33] {
        let requests = all(world, 0).into_iter().zip(all(world, 1000));
        for (empty, full) in requests {
            for rank in [0, world / 2, world - 1].map(Rank) {
                let of = |base: &Request| {
                    links(
                        &plan(&Request {
                            rank,
                            ..base.clone()
                        })
                        .unwrap(),
                    )
                };
                assert_eq!(of(&empty), of(&full), "{empty:?}");
            }
        }
    }
}

/// Counts beyond 32 bits, and large worlds, without writing all the steps down.
#[test]
fn steps_of_huge_plans_are_generated_one_by_one() {
    let len = (1u64 << 40) + 12_345;
    let world = 10_000;
    for algorithm in [Algorithm::Ring, Algorithm::Direct] {
        let req = Request {
            rank: Rank(world - 1),
            slice: 1 << 24,
            ..all_reduce(Reduce::Mean, algorithm, world, len)
        };
        let plan = plan(&req).unwrap();
        let n = plan.n_steps();
        assert!(n > 200_000);
        for idx in [0, 1, n / 3, n / 2, n - 2, n - 1] {
            let step = plan.step(idx);
            assert!(step.after.iter().all(|&a| a < idx));
            let spans = match step.action {
                gaggle_collectives::Action::Send { src, .. } => src,
                gaggle_collectives::Action::Recv { dst, .. } => dst,
                _ => continue,
            };
            assert!(spans.len <= 1 << 24 && spans.end() <= len.max(plan.scratch_len));
        }
    }
}
