//! From a request to its plan: checks what is asked for and hands it to the algorithm's planner.

use crate::neighbour::{self, Neighbours, plan_mix};
use crate::plan::{Call, Plan, PlanError, Request};
use crate::{
    all_gather, all_to_all, binomial, direct, dissemination, gather, message, recursive_doubling,
    reduce_scatter, ring, rooted, tree,
};
use gaggle_core::{Algorithm, Codec, Counts, OpKind, Rank, Reduce};

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
    check_codec(req)?;
    match &req.call {
        Call::AllReduce { reduce, algorithm } => plan_all_reduce(req, *reduce, *algorithm),
        Call::Reduce {
            root, algorithm, ..
        } => {
            check_rank("root", *root, req.world)?;
            tree::plan_reduce(req, *root, *algorithm)
        }
        Call::Broadcast { root, algorithm } => {
            check_rank("root", *root, req.world)?;
            match algorithm {
                Algorithm::Binomial if !req.out_of_place => binomial::plan_broadcast(req, *root),
                _ => tree::plan_broadcast(req, *root, *algorithm),
            }
        }
        Call::Gather { root, counts, .. } => {
            check_rank("root", *root, req.world)?;
            rooted::plan_gather(req, *root, counts)
        }
        Call::Scatter { root, counts, .. } => {
            check_rank("root", *root, req.world)?;
            rooted::plan_scatter(req, *root, counts)
        }
        Call::AllGather { counts, algorithm } => match (counts, algorithm) {
            (Counts::Equal, Algorithm::Ring | Algorithm::Direct)
                if !req.out_of_place && req.codec == Codec::None =>
            {
                gather::plan_all_gather(req, *algorithm)
            }
            _ => all_gather::plan_all_gather(req, counts, *algorithm),
        },
        Call::ReduceScatter {
            counts, algorithm, ..
        } => reduce_scatter::plan_reduce_scatter(req, counts, *algorithm),
        Call::AllToAll { send, recv, .. } => all_to_all::plan_all_to_all(req, send, recv),
        Call::Barrier => dissemination::plan_barrier(req),
        Call::Mix {
            from,
            to,
            scaled,
            form,
        } => {
            let with = Neighbours {
                from,
                to,
                scaled: *scaled,
                form: *form,
            };
            if req.out_of_place {
                copied_in(req)
            } else {
                plan_mix(req, &with)
            }
        }
        Call::NeighbourGather { from, to, counts } => neighbour::plan_gather(req, from, to, counts),
        Call::HierarchicalMix { .. } => Err(PlanError::Unsupported {
            kind: "hierarchical_mix",
            what: "has no plan".into(),
        }),
        Call::Send { to } => {
            check_peer("receiver", *to, req)?;
            message::plan_send(req, *to)
        }
        Call::Recv { from } => {
            check_peer("sender", *from, req)?;
            message::plan_recv(req, *from)
        }
    }
}

fn plan_all_reduce(req: &Request, reduce: Reduce, algorithm: Algorithm) -> Result<Plan, PlanError> {
    match algorithm {
        Algorithm::Binomial | Algorithm::Knomial | Algorithm::DoubleTree => {
            tree::plan_all_reduce(req, algorithm)
        }
        _ if req.out_of_place => copied_in(req),
        Algorithm::Ring => ring::plan_ring_allreduce(req, reduce),
        Algorithm::RecursiveDoubling => recursive_doubling::plan_recursive_doubling(req, reduce),
        _ => direct::plan_direct_allreduce(req, reduce),
    }
}

/// Out of place: the contribution is copied to where the operation in place expects it.
fn copied_in(req: &Request) -> Result<Plan, PlanError> {
    let inner = plan(&Request {
        out_of_place: false,
        ..req.clone()
    })?;
    Ok(inner.after_copy(Some((req.len, 0))))
}

/// By which algorithms an operation can be planned, in the order in which errors list them.
pub fn algorithms(kind: OpKind) -> &'static [Algorithm] {
    use Algorithm as A;
    match kind {
        OpKind::AllReduce => &[
            A::Ring,
            A::RecursiveDoubling,
            A::Direct,
            A::Binomial,
            A::Knomial,
            A::DoubleTree,
        ],
        OpKind::Reduce => &[A::Direct, A::Binomial, A::Knomial, A::DoubleTree],
        OpKind::Broadcast => &[
            A::Binomial,
            A::Knomial,
            A::DoubleTree,
            A::Pipelined,
            A::Direct,
        ],
        OpKind::Gather | OpKind::Scatter => &[A::Direct],
        OpKind::AllGather => &[A::Ring, A::Direct],
        OpKind::ReduceScatter => &[A::Direct, A::Ring],
        OpKind::AllToAll => &[A::Direct],
        OpKind::Barrier => &[A::Dissemination],
        OpKind::Mix | OpKind::NeighbourGather => &[A::Neighbour],
        OpKind::HierarchicalMix => &[A::Hierarchical],
        OpKind::Message => &[A::Direct],
    }
}

fn check_numbers(req: &Request) -> Result<(), PlanError> {
    let at_least = |least: u64, field, got, want| {
        if got < least {
            Err(PlanError::BadNumber { field, got, want })
        } else {
            Ok(())
        }
    };
    at_least(1, "world", u64::from(req.world), "at least 1")?;
    at_least(1, "slice", req.slice, "at least 1")?;
    at_least(2, "radix", u64::from(req.radix), "at least 2")?;
    check_rank("rank", req.rank, req.world)?;
    let (kind, algorithm) = (req.call.kind(), req.call.algorithm());
    let all = algorithms(kind);
    if !all.contains(&algorithm) {
        return Err(PlanError::NoSuchAlgorithm {
            kind: kind.name(),
            algorithm,
            available: all.iter().map(|a| a.name()).collect(),
        });
    }
    Ok(())
}

fn check_rank(what: &'static str, rank: Rank, world: u32) -> Result<(), PlanError> {
    if rank.0 < world {
        Ok(())
    } else {
        Err(PlanError::BadRank { what, rank, world })
    }
}

fn check_peer(what: &'static str, rank: Rank, req: &Request) -> Result<(), PlanError> {
    if rank == req.rank {
        return Err(PlanError::BadRank {
            what,
            rank,
            world: req.world,
        });
    }
    check_rank(what, rank, req.world)
}

/// A lossy codec may be applied once to what each rank gives and once to a result, never at every hop.
fn check_codec(req: &Request) -> Result<(), PlanError> {
    if req.codec == Codec::None {
        return Ok(());
    }
    let (kind, algorithm, codec) = (req.call.kind(), req.call.algorithm(), req.codec);
    match (kind, algorithm) {
        (
            OpKind::AllReduce | OpKind::ReduceScatter | OpKind::AllGather | OpKind::Broadcast,
            Algorithm::Direct,
        )
        | (OpKind::AllReduce, Algorithm::TwoLevelDirect)
        | (OpKind::Mix | OpKind::HierarchicalMix, _) => Ok(()),
        (OpKind::AllReduce | OpKind::ReduceScatter, _) => Err(PlanError::RoundsPerHop {
            kind: kind.name(),
            algorithm,
            codec,
        }),
        _ => Err(PlanError::NoCodec {
            kind: kind.name(),
            codec,
        }),
    }
}
