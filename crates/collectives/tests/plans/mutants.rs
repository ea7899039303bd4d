//! Every single-step mutation, for up to 8 ranks: rejected, or in the list of those that do not matter.

use crate::{all_reduce, list_accepted, plans, request, snapshot};
use gaggle_collectives::{Call, Promise, Request};
use gaggle_core::{Algorithm, Codec, Counts, Form, Rank, Reduce};

/// What is mutated. Every chunk has elements, and where slices matter there are two.
fn operations(world: u32) -> Vec<(String, Promise)> {
    let len = 2 * u64::from(world) + 1;
    let mut all = Vec::new();
    let mut add = |name: String, request: Request| {
        all.push((name, Promise::of_all(&request)));
    };
    for algorithm in [
        Algorithm::Ring,
        Algorithm::RecursiveDoubling,
        Algorithm::Direct,
    ] {
        for reduce in [Reduce::Sum, Reduce::Mean] {
            let plain = all_reduce(reduce, algorithm, world, len);
            if algorithm == Algorithm::Direct {
                let codec = Codec::Bf16;
                add(
                    format!("{algorithm} {reduce} bf16"),
                    Request {
                        codec,
                        ..plain.clone()
                    },
                );
            } else {
                let widen = true;
                add(
                    format!("{algorithm} {reduce} widened"),
                    Request {
                        widen,
                        ..plain.clone()
                    },
                );
            }
            add(format!("{algorithm} {reduce}"), plain);
        }
    }
    let root = Rank(world / 2);
    add(
        "broadcast".into(),
        request(
            Call::Broadcast {
                root,
                algorithm: Algorithm::Binomial,
            },
            world,
            3,
        ),
    );
    for algorithm in [Algorithm::Ring, Algorithm::Direct] {
        let gather = request(
            Call::AllGather {
                counts: Counts::Equal,
                algorithm,
            },
            world,
            3,
        );
        add(format!("all_gather {algorithm}"), gather);
    }
    add("barrier".into(), request(Call::Barrier, world, 0));
    for codec in [Codec::None, Codec::Bf16] {
        all.push((format!("mix {codec}"), mix(world, codec)));
    }
    all
}

/// A directed ring with a chord.
fn mix(world: u32, codec: Codec) -> Promise {
    let to = |r: u32| -> Vec<u32> {
        let mut all = vec![(r + 1) % world, (r + 2) % world];
        all.retain(|&t| t != r);
        all.dedup();
        all
    };
    let of = |r: u32| {
        let call = Call::Mix {
            from: (0..world)
                .filter(|&s| to(s).contains(&r))
                .map(Rank)
                .collect(),
            to: to(r).into_iter().map(Rank).collect(),
            scaled: codec == Codec::None,
            form: Form::Delta,
        };
        Request {
            rank: Rank(r),
            codec,
            ..request(call, world, 3)
        }
    };
    Promise::of(&(0..world).map(of).collect::<Vec<_>>())
}

/// What is accepted is harmless: a rank of two that sends the result before it recodes its own copy sends the same bits;
/// a barrier of 3, 5 or 6 ranks hears some ranks in two ways, and the one way that is left is enough.
#[test]
fn mutants_are_rejected_or_listed() {
    let mut list = String::new();
    for world in 2..=8 {
        for (name, promise) in operations(world) {
            list += &list_accepted(&name, &plans(&promise), &promise);
        }
    }
    snapshot("accepted_mutants", &list);
}

/// The same with slices: mutations that mix up two slices must not pass either.
#[test]
fn mutants_of_sliced_plans_are_rejected_or_listed() {
    let mut list = String::new();
    for world in [2, 3, 4, 5] {
        for (name, promise) in operations(world) {
            let slice = 2;
            let requests = promise.requests().iter();
            let sliced: Vec<Request> = requests.map(|r| Request { slice, ..r.clone() }).collect();
            if name != "barrier" {
                let promise = Promise::of(&sliced);
                list += &list_accepted(&name, &plans(&promise), &promise);
            }
        }
    }
    snapshot("accepted_mutants_sliced", &list);
}
