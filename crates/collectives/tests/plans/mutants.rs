//! Every single-step mutation of every operation by every algorithm, on a few ranks: rejected, or in the list of those that do not matter.

use crate::{cases, list_accepted, plans, snapshot};
use gaggle_collectives::{Promise, Request};
use gaggle_core::{Algorithm, Codec, OpKind, Reduce};

/// What is mutated: sums, and means in a wider type; what has a codec also with it. Every part has elements, and where slices matter there are two.
fn operations(kind: OpKind, world: u32) -> Vec<(String, Promise)> {
    let len = match kind {
        OpKind::AllReduce | OpKind::Reduce => 2 * u64::from(world) + 1,
        OpKind::HierarchicalMix => 4,
        _ => 3,
    };
    let mut all = Vec::new();
    for (_, algorithm) in cases::all().filter(|(k, _)| *k == kind) {
        let Some(plain) = cases::case(kind, algorithm, world, len, 0) else {
            continue;
        };
        let name = format!("{} {algorithm}", kind.name());
        if kind.reduces() {
            let mean = changed(&cases::with_reduce(&plain, Reduce::Mean), |r| {
                r.widen = true
            });
            all.push((format!("{name} mean widened"), mean));
        }
        let coded = match (kind, algorithm) {
            (OpKind::AllReduce | OpKind::ReduceScatter, Algorithm::Direct) => Some(true),
            (OpKind::AllReduce, Algorithm::TwoLevelDirect) => Some(false),
            (OpKind::Mix | OpKind::HierarchicalMix, _) => Some(false),
            _ => None,
        };
        if let Some(feedback) = coded {
            let bf16 = changed(&plain, |r| r.codec = Codec::Bf16);
            all.push((format!("{name} bf16"), bf16));
            if feedback {
                let int8 = changed(&plain, |r| (r.codec, r.feedback) = (Codec::Int8, true));
                all.push((format!("{name} int8 with feedback"), int8));
            }
        }
        all.push((name, plain));
    }
    all
}

fn changed(promise: &Promise, change: impl Fn(&mut Request)) -> Promise {
    let mut requests = promise.requests().to_vec();
    requests.iter_mut().for_each(change);
    Promise::of(&requests)
}

fn is_exhaustive() -> bool {
    std::env::var_os("GAGGLE_EXHAUSTIVE").is_some()
}

/// What is accepted is harmless: a rank of two that sends the result before it recodes its own copy sends the same bits;
/// a barrier of 3, 5 or 6 ranks hears some ranks in two ways, and the one way that is left is enough;
/// where an empty message lies that carries a weight, and in which order a rank sends two such, makes no difference; nor does where in its order of steps a rank reads or writes what is its own;
/// who waits for all at a phase waits for itself, too, and a rank whose memory nobody touches any more may end at once.
fn reject_or_list(kind: OpKind) {
    let mut list = String::new();
    for world in 2..=4 {
        for (name, promise) in operations(kind, world) {
            list += &list_accepted(&name, &plans(&promise), &promise);
        }
    }
    snapshot(&format!("accepted_mutants_{}", kind.name()), &list);
    if is_exhaustive() {
        let mut list = String::new();
        for world in 5..=8 {
            for (name, promise) in operations(kind, world) {
                list += &list_accepted(&name, &plans(&promise), &promise);
            }
        }
        snapshot(
            &format!("accepted_mutants_{}_exhaustive", kind.name()),
            &list,
        );
    }
}

macro_rules! mutants_of {
    ($($name:ident: $kind:ident;)*) => {$(
        #[test]
        fn $name() {
            reject_or_list(OpKind::$kind);
        }
    )*};
}

mutants_of! {
    all_reduce: AllReduce;
    reduce: Reduce;
    broadcast: Broadcast;
    gather: Gather;
    scatter: Scatter;
    all_gather: AllGather;
    reduce_scatter: ReduceScatter;
    all_to_all: AllToAll;
    barrier: Barrier;
    mix: Mix;
    neighbour_gather: NeighbourGather;
    hierarchical_mix: HierarchicalMix;
    message: Message;
}

/// Mutations that mix up two slices must not pass either.
#[test]
fn sliced() {
    let mut list = String::new();
    let worlds = if is_exhaustive() { 2..=5 } else { 2..=3 };
    for world in worlds {
        for kind in OpKind::ALL.into_iter().filter(|k| *k != OpKind::Barrier) {
            for (name, promise) in operations(kind, world) {
                let sliced = changed(&promise, |r| r.slice = 2);
                list += &list_accepted(&name, &plans(&sliced), &sliced);
            }
        }
        if world == 3 {
            snapshot("accepted_mutants_sliced", &list);
        }
    }
    if is_exhaustive() {
        snapshot("accepted_mutants_sliced_exhaustive", &list);
    }
}
