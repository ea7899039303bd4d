//! Fused plans, made by hand.

use gaggle_collectives::{Action, Buf, Plan, Span, Step};
use gaggle_core::{Algorithm, OpKind, Rank, Reduce};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

fn plan(
    kind: OpKind,
    reduce: Reduce,
    rank: Rank,
    world: u32,
    len: u64,
    middle: Action,
    input: bool,
) -> Plan {
    let is_mean = reduce == Reduce::Mean;
    let after = |n: u32| -> SmallVec<[u32; 4]> { smallvec![n] };
    let steps = vec![
        Step {
            action: Action::Arrive { phase: 0 },
            after: smallvec![],
        },
        Step {
            action: Action::AwaitAll { phase: 0 },
            after: after(0),
        },
        Step {
            action: middle,
            after: after(1),
        },
        Step {
            action: Action::Arrive { phase: 1 },
            after: after(2),
        },
        Step {
            action: Action::AwaitAll { phase: 1 },
            after: after(3),
        },
    ];
    Plan {
        kind,
        algorithm: Algorithm::Fused,
        reduce,
        rank,
        world,
        input_len: if input { len } else { 0 },
        user_len: len,
        scratch_len: 0,
        n_slots: if is_mean { 2 } else { 0 },
        total: is_mean.then_some(1),
        steps: Arc::new(steps),
    }
}

/// An all-reduce of `len` elements: each rank folds its share of all members' buffers into all.
pub fn all_reduce(reduce: Reduce, rank: Rank, world: u32, len: u64, out_of_place: bool) -> Plan {
    let lo = len * u64::from(rank.0) / u64::from(world);
    let hi = len * u64::from(rank.0 + 1) / u64::from(world);
    let middle = Action::GroupFold {
        from: if out_of_place { Buf::Input } else { Buf::User },
        at: lo,
        len: hi - lo,
        sum: (reduce == Reduce::Mean).then_some(1),
    };
    plan(
        OpKind::AllReduce,
        reduce,
        rank,
        world,
        len,
        middle,
        out_of_place,
    )
}

/// A broadcast of `len` elements, in place: everybody reads the root's.
pub fn broadcast(root: Rank, rank: Rank, world: u32, len: u64) -> Plan {
    let own = if rank == root { 0 } else { len };
    let middle = Action::GroupCopy {
        from: root,
        src: Span::user(0, own),
        dst: Span::user(0, own),
    };
    plan(
        OpKind::Broadcast,
        Reduce::Sum,
        rank,
        world,
        len,
        middle,
        false,
    )
}
