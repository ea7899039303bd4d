//! Every algorithm of every operation: any world, root and length, with slices, in place and out of place, with partial results in a wider type, with weights.

use crate::{plans, request};
use gaggle_collectives::{Call, Promise, Request, algorithms, check};
use gaggle_core::{Algorithm, Codec, Counts, Form, OpKind, Rank, Reduce};

fn lengths(world: u32) -> Vec<u64> {
    let p = u64::from(world);
    let mut all = vec![0, 1, p - 1, p, p + 1, 37];
    all.sort_unstable();
    all.dedup();
    all
}

fn exhaustive() -> bool {
    std::env::var_os("GAGGLE_EXHAUSTIVE").is_some_and(|v| v == "1")
}

fn prove(promise: &Promise) {
    if let Err(fault) = check(&plans(promise), promise) {
        panic!("{:?}: {fault}", promise.requests()[0]);
    }
}

/// In slices, in place and out of place, in a wider type: all combinations at each point, or one after the other; of the points of larger worlds then every third.
struct Turns(usize);

impl Turns {
    fn prove(&mut self, base: &Request) {
        let all = |i: usize| Request {
            slice: [u64::MAX, 5, 3, 1][i / 4 % 4],
            out_of_place: i & 1 == 1,
            widen: i & 2 == 2,
            ..base.clone()
        };
        if exhaustive() {
            (0..16).for_each(|i| prove(&Promise::of_all(&all(i))));
            return;
        }
        // Without a common factor with 16: every combination comes.
        self.0 += 5;
        if base.world <= 9 || self.0.is_multiple_of(3) {
            prove(&Promise::of_all(&all(self.0)));
        }
    }
}

/// On which hosts the ranks are: on one each, in equal numbers beside each other and alternating, in unequal ones, all on one.
fn hosts(world: u32) -> Vec<Vec<u32>> {
    let of = |f: &dyn Fn(u32) -> u32| (0..world).map(f).collect::<Vec<u32>>();
    let mut all = vec![of(&|r| r * r % 5), of(&|_| 7), of(&|r| r)];
    for size in [2, 3, 4] {
        if world.is_multiple_of(size) {
            all.push(of(&|r| r / size));
            all.push(of(&|r| r % (world / size)));
        }
    }
    all
}

fn placed(algorithm: Algorithm, world: u32, base: Request) -> Vec<Request> {
    if algorithm.between_hosts().is_none() {
        return vec![base];
    }
    let at = |hosts: Vec<u32>| Request {
        hosts: Some(hosts.into()),
        ..base.clone()
    };
    hosts(world).into_iter().map(at).collect()
}

fn worlds(algorithm: Algorithm) -> Vec<u32> {
    if exhaustive() || algorithm.between_hosts().is_none() {
        (1..=33).collect()
    } else {
        vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 18, 24]
    }
}

/// Proves `call` by all algorithms with sums and means, or one of the two.
fn reductions(kind: OpKind, calls: impl Fn(Reduce, Algorithm, u32) -> Vec<Call>) {
    let mut turns = Turns(0);
    for &algorithm in algorithms(kind) {
        for reduce in [Reduce::Sum, Reduce::Mean] {
            for world in worlds(algorithm) {
                for call in calls(reduce, algorithm, world) {
                    for len in lengths(world).into_iter() {
                        for req in placed(algorithm, world, request(call.clone(), world, len)) {
                            turns.prove(&Request { radix: 3, ..req });
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn all_reduces() {
    reductions(OpKind::AllReduce, |reduce, algorithm, _| {
        vec![Call::AllReduce { reduce, algorithm }]
    });
}

fn roots(world: u32) -> Vec<Rank> {
    let mut all = vec![0, world / 2, world - 1];
    all.dedup();
    all.into_iter().map(Rank).collect()
}

#[test]
fn reduces() {
    reductions(OpKind::Reduce, |reduce, algorithm, world| {
        let to = |root| Call::Reduce {
            reduce,
            root,
            algorithm,
        };
        roots(world).into_iter().map(to).collect()
    });
}

/// Lengths that differ a lot.
fn uneven(world: u32) -> Counts {
    let counts: Vec<u64> = (0..world as usize).map(|r| [3, 0, 7, 1][r % 4]).collect();
    Counts::known(&counts)
}

#[test]
fn reduce_scatters() {
    // Equal parts of as many elements as there are ranks are long; the lengths are those of parts.
    let mut turns = Turns(0);
    for &algorithm in algorithms(OpKind::ReduceScatter) {
        for reduce in [Reduce::Sum, Reduce::Mean] {
            if (algorithm, reduce) == (Algorithm::Fused, Reduce::Mean) {
                continue;
            }
            for world in worlds(algorithm) {
                for (counts, len) in parts(world) {
                    let call = Call::ReduceScatter {
                        reduce,
                        counts,
                        algorithm,
                    };
                    for req in placed(algorithm, world, request(call, world, len)) {
                        turns.prove(&req);
                    }
                }
            }
        }
    }
}

fn parts(world: u32) -> Vec<(Counts, u64)> {
    vec![
        (Counts::Equal, 0),
        (Counts::Equal, 1),
        (Counts::Equal, 7),
        (uneven(world), 0),
    ]
}

/// Proves operations that move parts.
fn moves(kind: OpKind, calls: impl Fn(Counts, Algorithm, u32) -> Vec<Call>) {
    let mut turns = Turns(0);
    for &algorithm in algorithms(kind) {
        for world in worlds(algorithm) {
            for (counts, len) in parts(world) {
                for call in calls(counts.clone(), algorithm, world) {
                    for req in placed(algorithm, world, request(call, world, len)) {
                        turns.prove(&req);
                    }
                }
            }
        }
    }
}

#[test]
fn gathers() {
    moves(OpKind::Gather, |counts, algorithm, world| {
        let to = |root| Call::Gather {
            root,
            counts: counts.clone(),
            algorithm,
        };
        roots(world).into_iter().map(to).collect()
    });
}

#[test]
fn scatters() {
    moves(OpKind::Scatter, |counts, algorithm, world| {
        let from = |root| Call::Scatter {
            root,
            counts: counts.clone(),
            algorithm,
        };
        roots(world).into_iter().map(from).collect()
    });
}

#[test]
fn all_gathers() {
    moves(OpKind::AllGather, |counts, algorithm, _| {
        vec![Call::AllGather { counts, algorithm }]
    });
}

#[test]
fn all_to_alls_of_equal_parts() {
    moves(OpKind::AllToAll, |counts, algorithm, _| match counts {
        Counts::Equal => vec![Call::AllToAll {
            send: Counts::Equal,
            recv: Counts::Equal,
            algorithm,
        }],
        _ => vec![],
    });
}

#[test]
fn all_to_alls_with_counts() {
    // From i to j go (i + 2j) mod 4 elements.
    let n = |i: u32, j: u32| u64::from((i + 2 * j) % 4);
    for world in 1..=33 {
        let of = |rank: u32| {
            let send: Vec<u64> = (0..world).map(|j| n(rank, j)).collect();
            let recv: Vec<u64> = (0..world).map(|i| n(i, rank)).collect();
            let call = Call::AllToAll {
                send: Counts::known(&send),
                recv: Counts::known(&recv),
                algorithm: Algorithm::Direct,
            };
            Request {
                rank: Rank(rank),
                out_of_place: true,
                slice: 2,
                ..request(call, world, 0)
            }
        };
        prove(&Promise::of(&(0..world).map(of).collect::<Vec<_>>()));
    }
}

#[test]
fn broadcasts() {
    let mut turns = Turns(0);
    for &algorithm in algorithms(OpKind::Broadcast) {
        for world in worlds(algorithm) {
            for root in roots(world) {
                let call = Call::Broadcast { root, algorithm };
                for len in lengths(world) {
                    for req in placed(algorithm, world, request(call.clone(), world, len)) {
                        turns.prove(&Request { radix: 5, ..req });
                    }
                }
            }
        }
    }
}

#[test]
fn messages() {
    for (out_of_place, len, slice) in [(false, 0, 3), (true, 0, 3), (false, 7, 3), (true, 7, 3)] {
        let of = |rank, call| Request {
            rank: Rank(rank),
            out_of_place,
            slice,
            ..request(call, 2, len)
        };
        prove(&Promise::of(&[
            of(0, Call::Send { to: Rank(1) }),
            of(1, Call::Recv { from: Rank(0) }),
        ]));
    }
}

/// Every rank's number mod 3 is its length; sources are named backwards.
#[test]
fn neighbours_gather() {
    for world in 1..=20 {
        let edge = |a: u32, b: u32| a != b && (a * 7 + b * 3) % 4 < 2;
        let of = |rank: u32| {
            let from: Vec<Rank> = (0..world)
                .rev()
                .filter(|&a| edge(a, rank))
                .map(Rank)
                .collect();
            let to: Vec<Rank> = (0..world).filter(|&b| edge(rank, b)).map(Rank).collect();
            let counts: Vec<u64> = from.iter().map(|r| u64::from(r.0 % 3)).collect();
            let call = Call::NeighbourGather {
                from,
                to,
                counts: Counts::known(&counts),
            };
            Request {
                rank: Rank(rank),
                out_of_place: true,
                slice: 1,
                ..request(call, world, u64::from(rank % 3))
            }
        };
        prove(&Promise::of(&(0..world).map(of).collect::<Vec<_>>()));
    }
}

/// Machines on a directed graph whose in- and out-degrees differ.
#[test]
fn machines_average() {
    let mut turn = 0;
    for n_machines in [1u32, 2, 3, 5] {
        for size in [1u32, 2, 3, 4] {
            let world = n_machines * size;
            // Members alternate between machines.
            let machines: std::sync::Arc<[Vec<Rank>]> = (0..n_machines)
                .map(|m| (0..size).map(|i| Rank(i * n_machines + m)).collect())
                .collect();
            let edge = |a: u32, b: u32| a != b && (a == 0 || (a + 2 * b) % 3 == 1);
            for len in lengths(world) {
                turn += 1;
                let of = |rank: u32| {
                    let m = rank % n_machines;
                    let call = Call::HierarchicalMix {
                        machines: machines.clone(),
                        from: (0..n_machines).filter(|&a| edge(a, m)).collect(),
                        to: (0..n_machines).rev().filter(|&b| edge(m, b)).collect(),
                        scaled: turn % 2 == 0,
                        form: [Form::Delta, Form::Sum][turn / 2 % 2],
                    };
                    Request {
                        rank: Rank(rank),
                        slice: [u64::MAX, 2][turn % 2],
                        out_of_place: turn % 3 == 0,
                        widen: turn % 5 == 0,
                        codec: [Codec::None, Codec::Int8][turn / 3 % 2],
                        ..request(call, world, len)
                    }
                };
                prove(&Promise::of(&(0..world).map(of).collect::<Vec<_>>()));
            }
        }
    }
}

/// Each where it may be, with error feedback where there is any.
#[test]
fn codecs() {
    let reduces = [Reduce::Sum, Reduce::Mean];
    let mut calls: Vec<Call> = Vec::new();
    for reduce in reduces {
        for algorithm in [Algorithm::Direct, Algorithm::TwoLevelDirect] {
            calls.push(Call::AllReduce { reduce, algorithm });
        }
        calls.push(Call::ReduceScatter {
            reduce,
            counts: Counts::Equal,
            algorithm: Algorithm::Direct,
        });
    }
    let algorithm = Algorithm::Direct;
    calls.push(Call::AllGather {
        counts: Counts::Equal,
        algorithm,
    });
    calls.push(Call::Broadcast {
        root: Rank(0),
        algorithm,
    });
    for call in calls {
        let feeds_back = call.kind().reduces() && call.algorithm() == Algorithm::Direct;
        for world in [1, 2, 3, 4, 5, 7, 8, 12] {
            for (i, len) in lengths(world).into_iter().enumerate() {
                for req in placed(call.algorithm(), world, request(call.clone(), world, len)) {
                    for (codec, feedback) in [(Codec::Bf16, false), (Codec::Int8, feeds_back)] {
                        prove(&Promise::of_all(&Request {
                            codec,
                            feedback,
                            slice: [u64::MAX, 3][i % 2],
                            out_of_place: i % 3 == 0,
                            ..req.clone()
                        }));
                    }
                }
            }
        }
    }
}
