//! The fused plans of `gaggle-collectives`, asked for in short.

use gaggle_collectives::{Call, Plan, Request, plan};
use gaggle_core::{Algorithm, Counts, Error, Rank, Reduce};

fn fused(call: Call, (rank, world): (Rank, u32), len: u64, input: bool) -> Result<Plan, Error> {
    let mut request = Request::new(call, rank, world, len);
    request.out_of_place = input;
    plan(&request).map_err(|e| Error::internal(e.to_string()))
}

/// An all-reduce of `len` elements: each rank folds its share of all members' buffers into all.
///
/// # Errors
/// There is no such plan.
pub fn all_reduce(
    reduce: Reduce,
    me: (Rank, u32),
    len: u64,
    out_of_place: bool,
) -> Result<Plan, Error> {
    let algorithm = Algorithm::Fused;
    fused(Call::AllReduce { reduce, algorithm }, me, len, out_of_place)
}

/// A broadcast of `len` elements, in place: everybody reads the root's.
///
/// # Errors
/// There is no such plan.
pub fn broadcast(root: Rank, me: (Rank, u32), len: u64) -> Result<Plan, Error> {
    let algorithm = Algorithm::Fused;
    fused(Call::Broadcast { root, algorithm }, me, len, false)
}

/// An all-gather of `len` elements from each rank, out of place: everybody reads everybody's.
///
/// # Errors
/// There is no such plan.
pub fn all_gather(me: (Rank, u32), len: u64) -> Result<Plan, Error> {
    let (counts, algorithm) = (Counts::Equal, Algorithm::Fused);
    fused(Call::AllGather { counts, algorithm }, me, len, true)
}
