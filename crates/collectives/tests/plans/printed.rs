//! Plans in words, for 2 to 5 ranks.

use crate::{all_reduce, cases, plans, request, snapshot};
use gaggle_collectives::{Call, Promise, Request, explain};
use gaggle_core::{Algorithm, Codec, Counts, DType, Form, OpKind, Rank, Reduce};

fn print(name: &str, dtype: DType, build: impl Fn(u32) -> Promise) {
    let mut text = String::new();
    for world in 2..=5 {
        text += &explain(&plans(&build(world)), dtype);
        text.push('\n');
    }
    snapshot(name, &text);
}

/// Two slices per chunk, the chunks uneven.
fn sliced(reduce: Reduce, algorithm: Algorithm, world: u32) -> Request {
    let len = 3 * u64::from(world) + 1;
    let slice = match algorithm {
        Algorithm::RecursiveDoubling => len.div_ceil(2),
        _ => 2,
    };
    Request {
        slice,
        ..all_reduce(reduce, algorithm, world, len)
    }
}

#[test]
fn ring() {
    print("ring_sum", DType::F32, |world| {
        Promise::of_all(&sliced(Reduce::Sum, Algorithm::Ring, world))
    });
    print("ring_mean_widened", DType::Bf16, |world| {
        let len = u64::from(world) + 1;
        Promise::of_all(&Request {
            widen: true,
            ..all_reduce(Reduce::Mean, Algorithm::Ring, world, len)
        })
    });
}

#[test]
fn recursive_doubling() {
    print("recursive_doubling_mean", DType::F32, |world| {
        Promise::of_all(&sliced(Reduce::Mean, Algorithm::RecursiveDoubling, world))
    });
    print("recursive_doubling_sum_widened", DType::F16, |world| {
        Promise::of_all(&Request {
            widen: true,
            ..all_reduce(Reduce::Sum, Algorithm::RecursiveDoubling, world, 8)
        })
    });
}

#[test]
fn direct() {
    print("direct_mean_bf16", DType::F32, |world| {
        Promise::of_all(&Request {
            codec: Codec::Bf16,
            ..sliced(Reduce::Mean, Algorithm::Direct, world)
        })
    });
}

#[test]
fn others() {
    print("broadcast", DType::I64, |world| {
        Promise::of_all(&Request {
            slice: 3,
            ..request(
                Call::Broadcast {
                    root: Rank(1),
                    algorithm: Algorithm::Binomial,
                },
                world,
                5,
            )
        })
    });
    for algorithm in [Algorithm::Ring, Algorithm::Direct] {
        print(&format!("all_gather_{algorithm}"), DType::U8, |world| {
            Promise::of_all(&request(
                Call::AllGather {
                    counts: Counts::Equal,
                    algorithm,
                },
                world,
                3,
            ))
        });
    }
    print("barrier", DType::U8, |world| {
        Promise::of_all(&request(Call::Barrier, world, 0))
    });
}

#[test]
fn neighbours() {
    print("mix_one_way_ring", DType::F32, |world| {
        let ask = |r| Request {
            rank: Rank(r),
            slice: 2,
            ..request(
                Call::Mix {
                    from: vec![Rank((r + world - 1) % world)],
                    to: vec![Rank((r + 1) % world)],
                    scaled: true,
                    form: Form::Sum,
                },
                world,
                4,
            )
        };
        Promise::of(&(0..world).map(ask).collect::<Vec<_>>())
    });
}

/// What has no snapshot of its own above: every other plan, among 4 ranks of which two share a host each.
#[test]
fn every_operation_by_every_algorithm() {
    for kind in OpKind::ALL {
        let mut text = String::new();
        for (_, algorithm) in cases::all().filter(|(k, _)| *k == kind) {
            let world = if kind == OpKind::Message { 2 } else { 4 };
            let len = match kind {
                OpKind::AllReduce | OpKind::Reduce | OpKind::HierarchicalMix => 9,
                _ => 2,
            };
            let case = cases::case(kind, algorithm, world, len, 0);
            let promise = case.expect("the first form is a plain one");
            text += &explain(&plans(&promise), DType::F32);
            text.push('\n');
        }
        snapshot(&format!("every_{}", kind.name()), &text);
    }
}
