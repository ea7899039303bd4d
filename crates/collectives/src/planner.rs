//! From a request to its plan: checks what is asked for and hands it to the algorithm's planner.

use crate::neighbour::{Neighbours, plan_mix};
use crate::plan::{Call, Plan, PlanError, Request};
use crate::{binomial, direct, dissemination, gather, recursive_doubling, ring};
use gaggle_core::{Algorithm, Codec, Rank, Reduce};

/// This rank's part of what is asked for.
///
/// Pure: the same request gives the same plan, and requests that differ only in `rank` (and neighbours that fit together) give plans that belong together.
///
/// # Errors
/// What is asked for has no plan; see [`PlanError`].
///
/// ```
/// use gaggle_collectives::{Call, Request, plan};
/// use gaggle_core::{Algorithm, Codec, Rank, Reduce};
///
/// let request = Request {
///     call: Call::AllReduce { reduce: Reduce::Sum, algorithm: Algorithm::Ring },
///     rank: Rank(1),
///     world: 4,
///     len: 1000,
///     slice: 1000,
///     codec: Codec::None,
///     widen: false,
///     ..Request::default()
/// };
/// assert_eq!(plan(&request)?.n_steps(), 12);
/// # Ok::<(), gaggle_collectives::PlanError>(())
/// ```
pub fn plan(req: &Request) -> Result<Plan, PlanError> {
    check_numbers(req)?;
    if req.out_of_place {
        return copied_in(req);
    }
    match &req.call {
        Call::AllReduce { reduce, algorithm } => plan_all_reduce(req, *reduce, *algorithm),
        Call::Broadcast { root, .. } => {
            check_rank("root", *root, req.world)?;
            refuse_codec(req, "broadcast")?;
            binomial::plan_broadcast(req, *root)
        }
        Call::AllGather { algorithm, .. } => match algorithm {
            Algorithm::Ring | Algorithm::Direct => {
                refuse_codec(req, "all_gather")?;
                gather::plan_all_gather(req, *algorithm)
            }
            _ => Err(PlanError::NoSuchAlgorithm {
                kind: "all_gather",
                algorithm: *algorithm,
                available: vec![Algorithm::Ring.name(), Algorithm::Direct.name()],
            }),
        },
        Call::Barrier => {
            refuse_codec(req, "barrier")?;
            dissemination::plan_barrier(req)
        }
        Call::Mix {
            from,
            to,
            scaled,
            form,
        } => plan_mix(
            req,
            &Neighbours {
                from,
                to,
                scaled: *scaled,
                form: *form,
            },
        ),
        other => Err(PlanError::Unsupported {
            kind: other.kind().name(),
            what: "has no plan".into(),
        }),
    }
}

fn plan_all_reduce(req: &Request, reduce: Reduce, algorithm: Algorithm) -> Result<Plan, PlanError> {
    let exact_hops = || match req.codec {
        Codec::None => Ok(()),
        codec => Err(PlanError::RoundsPerHop {
            kind: "all_reduce",
            algorithm,
            codec,
        }),
    };
    match algorithm {
        Algorithm::Ring => {
            exact_hops()?;
            ring::plan_ring_allreduce(req, reduce)
        }
        Algorithm::RecursiveDoubling => {
            exact_hops()?;
            recursive_doubling::plan_recursive_doubling(req, reduce)
        }
        Algorithm::Direct => direct::plan_direct_allreduce(req, reduce),
        _ => Err(PlanError::NoSuchAlgorithm {
            kind: "all_reduce",
            algorithm,
            available: vec![
                Algorithm::Ring.name(),
                Algorithm::RecursiveDoubling.name(),
                Algorithm::Direct.name(),
            ],
        }),
    }
}

/// Out of place: the contribution is copied to where the operation in place expects it.
fn copied_in(req: &Request) -> Result<Plan, PlanError> {
    let inner = plan(&Request {
        out_of_place: false,
        ..req.clone()
    })?;
    let copy = match &req.call {
        Call::AllReduce { .. } | Call::Mix { .. } => Some((req.len, 0)),
        Call::Broadcast { root, .. } => (*root == req.rank).then_some((req.len, 0)),
        Call::AllGather { .. } => Some((req.len, u64::from(req.rank.0) * req.len)),
        _ => None,
    };
    Ok(inner.after_copy(copy))
}

fn check_numbers(req: &Request) -> Result<(), PlanError> {
    let at_least_1 = |field, got| match got {
        0 => Err(PlanError::BadNumber {
            field,
            got,
            want: "at least 1",
        }),
        _ => Ok(()),
    };
    at_least_1("world", u64::from(req.world))?;
    at_least_1("slice", req.slice)?;
    check_rank("rank", req.rank, req.world)
}

fn check_rank(what: &'static str, rank: Rank, world: u32) -> Result<(), PlanError> {
    if rank.0 < world {
        Ok(())
    } else {
        Err(PlanError::BadRank { what, rank, world })
    }
}

fn refuse_codec(req: &Request, kind: &'static str) -> Result<(), PlanError> {
    match req.codec {
        Codec::None => Ok(()),
        codec => Err(PlanError::NoCodec { kind, codec }),
    }
}
