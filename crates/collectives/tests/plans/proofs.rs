//! Every planner, for 1 to 33 ranks, at all awkward lengths and slices.

use crate::{all_reduce, plans, request};
use gaggle_collectives::{Call, Promise, Request, check};
use gaggle_core::{Algorithm, Codec, Counts, Form, Rank, Reduce};

fn lengths(world: u32) -> Vec<u64> {
    let p = u64::from(world);
    let mut all = vec![0, 1, p - 1, p, p + 1, 37, 101];
    all.sort_unstable();
    all.dedup();
    all
}

fn prove(promise: &Promise) {
    if let Err(fault) = check(&plans(promise), promise) {
        panic!("{:?}: {fault}", promise.requests()[0]);
    }
}

/// Proves what the request asks for at all lengths and slices.
fn prove_all(build: impl Fn(u32, u64) -> Request) {
    for world in 1..=33 {
        for len in lengths(world) {
            for slice in [len.max(1), 7, 1] {
                // One element per slice is the same for every length; the long ones only cost time.
                if slice == 1 && len > 40 {
                    continue;
                }
                prove(&Promise::of_all(&Request {
                    slice,
                    ..build(world, len)
                }));
            }
        }
    }
}

fn prove_all_reduce(algorithm: Algorithm, reduce: Reduce, widen: bool) {
    prove_all(|world, len| Request {
        widen,
        ..all_reduce(reduce, algorithm, world, len)
    });
}

#[test]
fn ring_sums() {
    prove_all_reduce(Algorithm::Ring, Reduce::Sum, false);
}

#[test]
fn ring_sums_in_a_wider_type() {
    prove_all_reduce(Algorithm::Ring, Reduce::Sum, true);
}

#[test]
fn ring_averages() {
    prove_all_reduce(Algorithm::Ring, Reduce::Mean, false);
}

#[test]
fn ring_averages_in_a_wider_type() {
    prove_all_reduce(Algorithm::Ring, Reduce::Mean, true);
}

#[test]
fn recursive_doubling_sums() {
    prove_all_reduce(Algorithm::RecursiveDoubling, Reduce::Sum, false);
}

#[test]
fn recursive_doubling_sums_in_a_wider_type() {
    prove_all_reduce(Algorithm::RecursiveDoubling, Reduce::Sum, true);
}

#[test]
fn recursive_doubling_averages() {
    prove_all_reduce(Algorithm::RecursiveDoubling, Reduce::Mean, false);
}

#[test]
fn recursive_doubling_averages_in_a_wider_type() {
    prove_all_reduce(Algorithm::RecursiveDoubling, Reduce::Mean, true);
}

#[test]
fn direct_sums() {
    prove_all_reduce(Algorithm::Direct, Reduce::Sum, false);
}

#[test]
fn direct_averages() {
    prove_all_reduce(Algorithm::Direct, Reduce::Mean, false);
}

#[test]
fn direct_reduces_16_bit_floats() {
    prove_all_reduce(Algorithm::Direct, Reduce::Sum, true);
    prove_all_reduce(Algorithm::Direct, Reduce::Mean, true);
}

#[test]
fn direct_reduces_through_bf16() {
    for reduce in [Reduce::Sum, Reduce::Mean] {
        prove_all(|world, len| Request {
            codec: Codec::Bf16,
            ..all_reduce(reduce, Algorithm::Direct, world, len)
        });
    }
}

#[test]
fn min_max_and_prod_are_planned_like_sums() {
    for reduce in [Reduce::Min, Reduce::Max, Reduce::Prod] {
        for algorithm in [
            Algorithm::Ring,
            Algorithm::RecursiveDoubling,
            Algorithm::Direct,
        ] {
            for world in [1, 2, 3, 5, 7, 8] {
                prove(&Promise::of_all(&all_reduce(reduce, algorithm, world, 37)));
            }
        }
    }
}

#[test]
fn broadcast_reaches_everybody_from_any_root() {
    for root in [0, 1, 2, 4, 6, 15, 16, 31] {
        prove_all(|world, len| {
            let root = Rank(root % world);
            request(
                Call::Broadcast {
                    root,
                    algorithm: Algorithm::Binomial,
                },
                world,
                len,
            )
        });
    }
    for world in 1..=33 {
        for root in (0..world).map(Rank) {
            prove(&Promise::of_all(&request(
                Call::Broadcast {
                    root,
                    algorithm: Algorithm::Binomial,
                },
                world,
                3,
            )));
        }
    }
}

#[test]
fn all_gather_brings_every_part() {
    for algorithm in [Algorithm::Ring, Algorithm::Direct] {
        for world in 1..=33 {
            for len in [0, 1, 2, 7, 11] {
                for slice in [len.max(1), 7, 1] {
                    prove(&Promise::of_all(&Request {
                        slice,
                        ..request(
                            Call::AllGather {
                                counts: Counts::Equal,
                                algorithm,
                            },
                            world,
                            len,
                        )
                    }));
                }
            }
        }
    }
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    for world in 1..=70 {
        prove(&Promise::of_all(&request(Call::Barrier, world, 0)));
    }
}

/// Ring, star and one-peer neighbours; both forms; with and without sender's factors and codec.
#[test]
fn neighbours_average() {
    let rank = |r: u32, by: u32, n: u32| Rank((r + by) % n);
    type Neighbours = fn(u32, u32) -> (Vec<u32>, Vec<u32>);
    let graphs: [Neighbours; 3] = [
        |r, n| match (n, r) {
            (1, _) => (vec![], vec![]),
            (2, _) => (vec![1], vec![1]),
            _ => (vec![n - 1, 1], vec![1, n - 1]),
        },
        |_, n| {
            if n == 1 {
                (vec![], vec![])
            } else {
                (vec![n / 2], vec![n - n / 2])
            }
        },
        |r, n| {
            if r == 0 {
                ((1..n).collect(), vec![])
            } else {
                (vec![], vec![n - r])
            }
        },
    ];
    for graph in graphs {
        for world in 1..=33 {
            for (i, len) in lengths(world).into_iter().enumerate() {
                let requests: Vec<Request> = (0..world)
                    .map(|r| {
                        let (from, to) = graph(r, world);
                        let call = Call::Mix {
                            from: from.iter().map(|&by| rank(r, by, world)).collect(),
                            to: to.iter().map(|&by| rank(r, by, world)).collect(),
                            scaled: i % 2 == 0,
                            form: if i % 3 == 0 { Form::Sum } else { Form::Delta },
                        };
                        Request {
                            rank: Rank(r),
                            slice: [len.max(1), 7][i % 2],
                            codec: [Codec::None, Codec::Bf16][i / 2 % 2],
                            ..request(call, world, len)
                        }
                    })
                    .collect();
                prove(&Promise::of(&requests));
            }
        }
    }
}
