//! Plans as the crate's users see them: proved, costed, printed, and broken on purpose.

mod proofs;

use gaggle_collectives::{Call, Plan, Promise, Request, plan};
use gaggle_core::{Algorithm, Codec, Rank, Reduce};

/// An all-reduce of `len` elements on `world` ranks, as rank 0 asks for it.
fn all_reduce(reduce: Reduce, algorithm: Algorithm, world: u32, len: u64) -> Request {
    request(Call::AllReduce { reduce, algorithm }, world, len)
}

/// In one slice, plain.
fn request(call: Call, world: u32, len: u64) -> Request {
    Request {
        call,
        rank: Rank(0),
        world,
        len,
        slice: len.max(1),
        codec: Codec::None,
        widen: false,
    }
}

/// All ranks' plans.
fn plans(promise: &Promise) -> Vec<Plan> {
    promise
        .requests()
        .iter()
        .map(|r| plan(r).expect("the request is one that has a plan"))
        .collect()
}
