//! From a request to its plan: checks what is asked for and hands it to the algorithm's planner.

use crate::hierarchical::{self, Machines};
use crate::neighbour::{self, Neighbours, plan_mix};
use crate::plan::{Call, Plan, PlanError, Request};
use crate::{
    all_gather, all_to_all, binomial, direct, dissemination, exchange, fused, gather,
    halving_doubling, message, recursive_doubling, reduce_scatter, ring, rooted, tree, two_level,
};
use gaggle_core::{Algorithm, Codec, Counts, OpKind, Rank};

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
    let algorithm = req.call.algorithm();
    let between = algorithm.between_hosts();
    match &req.call {
        Call::AllReduce { reduce, .. } => match (algorithm, between) {
            (_, Some(between)) => two_level::plan_all_reduce(req, between),
            (Algorithm::Ring, _) => ring::plan_ring_allreduce(req, *reduce),
            (Algorithm::RecursiveDoubling, _) => {
                recursive_doubling::plan_recursive_doubling(req, *reduce)
            }
            (Algorithm::HalvingDoubling, _) => halving_doubling::plan_all_reduce(req),
            (Algorithm::Fused, _) => fused::plan_all_reduce(req),
            (Algorithm::Direct, _) => direct::plan_direct_allreduce(req, *reduce),
            (Algorithm::Exchange, _) => exchange::plan_all_reduce(req, *reduce),
            _ => tree::plan_all_reduce(req, algorithm),
        },
        Call::Reduce { root, .. } => {
            check_rank("root", *root, req.world)?;
            match (algorithm, between) {
                (_, Some(_)) => two_level::plan_reduce(req, *root),
                (Algorithm::HalvingDoubling, _) => halving_doubling::plan_reduce(req, *root),
                _ => tree::plan_reduce(req, *root, algorithm),
            }
        }
        Call::Broadcast { root, .. } => {
            check_rank("root", *root, req.world)?;
            match (algorithm, between) {
                (_, Some(between)) => two_level::plan_broadcast(req, *root, between),
                (Algorithm::Fused, _) => fused::plan_broadcast(req, *root),
                (Algorithm::Binomial, _) if !req.out_of_place => {
                    binomial::plan_broadcast(req, *root)
                }
                _ => tree::plan_broadcast(req, *root, algorithm),
            }
        }
        Call::Gather { root, counts, .. } => {
            check_rank("root", *root, req.world)?;
            rooted::plan_gather(req, *root, counts, algorithm)
        }
        Call::Scatter { root, counts, .. } => {
            check_rank("root", *root, req.world)?;
            rooted::plan_scatter(req, *root, counts, algorithm)
        }
        Call::AllGather { counts, .. } => match (algorithm, between) {
            (_, Some(_)) => two_level::plan_all_gather(req, counts),
            (Algorithm::Fused, _) => fused::plan_all_gather(req, counts),
            (Algorithm::Ring | Algorithm::Direct, _)
                if *counts == Counts::Equal && !req.out_of_place && req.codec == Codec::None =>
            {
                gather::plan_all_gather(req, algorithm)
            }
            _ => all_gather::plan_all_gather(req, counts, algorithm),
        },
        Call::ReduceScatter { counts, .. } => match (algorithm, between) {
            (_, Some(_)) => two_level::plan_reduce_scatter(req, counts),
            (Algorithm::Fused, _) => fused::plan_reduce_scatter(req, counts),
            _ => reduce_scatter::plan_reduce_scatter(req, counts, algorithm),
        },
        Call::AllToAll { send, recv, .. } => {
            all_to_all::plan_all_to_all(req, send, recv, algorithm)
        }
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
            plan_mix(req, &with)
        }
        Call::NeighbourGather { from, to, counts } => neighbour::plan_gather(req, from, to, counts),
        Call::HierarchicalMix {
            machines,
            from,
            to,
            scaled,
            form,
        } => {
            let with = Machines {
                machines,
                from,
                to,
                scaled: *scaled,
                form: *form,
            };
            hierarchical::plan_hierarchical(req, &with)
        }
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

/// By which algorithms an operation can be planned, in the order in which errors list them.
pub fn algorithms(kind: OpKind) -> &'static [Algorithm] {
    use Algorithm as A;
    match kind {
        OpKind::AllReduce => &[
            A::Ring,
            A::RecursiveDoubling,
            A::Direct,
            A::HalvingDoubling,
            A::Binomial,
            A::Knomial,
            A::DoubleTree,
            A::TwoLevelRing,
            A::TwoLevelRecursiveDoubling,
            A::TwoLevelDirect,
            A::TwoLevelHalvingDoubling,
            A::TwoLevelDoubleTree,
            A::TwoLevelBinomial,
            A::Fused,
            A::Exchange,
        ],
        OpKind::Reduce => &[
            A::Direct,
            A::Binomial,
            A::Knomial,
            A::HalvingDoubling,
            A::DoubleTree,
            A::TwoLevelBinomial,
        ],
        OpKind::Broadcast => &[
            A::Binomial,
            A::Knomial,
            A::DoubleTree,
            A::Pipelined,
            A::Direct,
            A::TwoLevelBinomial,
            A::TwoLevelPipelined,
            A::Fused,
        ],
        OpKind::Gather | OpKind::Scatter => &[A::Direct, A::Binomial, A::Fused],
        OpKind::AllGather => &[
            A::Ring,
            A::Direct,
            A::RecursiveDoubling,
            A::Bruck,
            A::TwoLevelRing,
            A::Fused,
        ],
        OpKind::ReduceScatter => &[
            A::Direct,
            A::Ring,
            A::HalvingDoubling,
            A::TwoLevelDirect,
            A::Fused,
        ],
        OpKind::AllToAll => &[A::Direct, A::Bruck, A::Fused],
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
