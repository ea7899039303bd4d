//! From an operation to its plan: what is legal, which algorithm, which slice. A pure function of what all ranks agree on.

use crate::{config::EngineConfig, op::MixWeights};
use gaggle_collectives::{Call, Request};
use gaggle_core::{
    Algorithm, Cause, Codec, Counts, DType, Descriptor, Error, GroupInfo, Kind, Op, OpId, OpKind,
    Rank, Reduce, descriptor::stable_hash,
};

/// What an operation comes to, before it has a number.
pub(crate) struct Choice {
    pub(crate) request: Request,
    pub(crate) algorithm: Algorithm,
    pub(crate) reduce: Reduce,
    pub(crate) root: Rank,
    pub(crate) kind: OpKind,
    pub(crate) mix: MixWeights,
    /// The caller's round, for neighbour operations.
    pub(crate) round: Option<u64>,
}

impl Choice {
    /// The 64 bytes that travel.
    pub(crate) fn descriptor(
        &self,
        id: OpId,
        op: &Op,
        group: &GroupInfo,
        dtype: DType,
        config: &EngineConfig,
    ) -> Descriptor {
        Descriptor {
            id,
            incarnation: 0,
            epoch: group.epoch,
            kind: self.kind,
            dtype,
            reduce: self.reduce,
            count: self.request.len,
            root: self.root,
            codec: op.codec,
            algorithm: self.algorithm,
            divisor: op.divisor,
            mode: gaggle_core::ModeBits::default(),
            priority: op.priority,
            slice: u32::try_from(self.request.slice).unwrap_or(u32::MAX),
            tables: tables_hash(config),
        }
    }
}

/// Hash of the settings that choose plans: ranks with different ones must not run together.
fn tables_hash(config: &EngineConfig) -> u64 {
    stable_hash(&[
        &config.slice_bytes.to_le_bytes(),
        &config.small_bytes.to_le_bytes(),
        &config.direct_world.to_le_bytes(),
    ])
}

/// Decides how `op` on `len` elements of `dtype` is carried out.
pub(crate) fn choose(
    op: &Op,
    group: &GroupInfo,
    dtype: DType,
    len: usize,
    config: &EngineConfig,
) -> Result<Choice, Error> {
    let name = op.kind.op_kind().name();
    let world = group.world_ranks.len() as u32;
    let len = len as u64;
    if op.codec.wire_type(dtype).is_none() {
        let what = format!("the {} codec applies to f32, not to {dtype}", op.codec);
        return Err(Cause::Unsupported {
            op: name.into(),
            what,
        }
        .into());
    }
    let mut choice = Choice {
        request: Request {
            call: Call::Barrier,
            rank: group.rank,
            world,
            len,
            slice: (config.slice_bytes / dtype.size() as u64).max(1),
            codec: op.codec,
            widen: dtype.accumulator() != dtype,
            ..Request::default()
        },
        algorithm: Algorithm::Dissemination,
        reduce: Reduce::Sum,
        root: Rank(0),
        kind: op.kind.op_kind(),
        mix: MixWeights::default(),
        round: None,
    };
    match &op.kind {
        Kind::AllReduce(reduce) => {
            if !reduce.is_defined_on(dtype) {
                let what = format!("{reduce} is not defined on {dtype}");
                return Err(Error::invalid(name, what));
            }
            let bytes = len * dtype.size() as u64;
            choice.reduce = *reduce;
            choice.algorithm = op
                .algorithm
                .unwrap_or_else(|| all_reduce_algorithm(op.codec, world, bytes, config));
            choice.request.call = Call::AllReduce {
                reduce: *reduce,
                algorithm: choice.algorithm,
            };
        }
        Kind::Broadcast { root } => {
            choice.root = *root;
            choice.algorithm = forced(op, name, Algorithm::Binomial)?;
            choice.request.call = Call::Broadcast {
                root: *root,
                algorithm: Algorithm::Binomial,
            };
        }
        Kind::AllGather(Counts::Equal) => {
            if !len.is_multiple_of(u64::from(world)) {
                let what =
                    format!("buffer has {len} elements, which is no multiple of the {world} ranks");
                return Err(Error::invalid(name, what));
            }
            choice.request.len = len / u64::from(world);
            let usual = if world <= config.direct_world {
                Algorithm::Direct
            } else {
                Algorithm::Ring
            };
            choice.algorithm = op.algorithm.unwrap_or(usual);
            choice.request.call = Call::AllGather {
                counts: Counts::Equal,
                algorithm: choice.algorithm,
            };
        }
        Kind::Barrier => {
            if len != 0 {
                return Err(Error::invalid(
                    name,
                    format!("takes no elements, got {len}"),
                ));
            }
            choice.algorithm = forced(op, name, Algorithm::Dissemination)?;
        }
        Kind::Mix { round, t } => {
            if !dtype.is_float() {
                return Err(Error::invalid(
                    name,
                    format!("averages need floats, not {dtype}"),
                ));
            }
            let mut weights = round
                .from
                .iter()
                .chain(&round.to)
                .map(|(_, w)| *w)
                .chain([round.keep]);
            if let Some(w) = weights.find(|w| !w.is_finite()) {
                return Err(Error::invalid(name, format!("weight {w} is not finite")));
            }
            choice.algorithm = forced(op, name, Algorithm::Neighbour)?;
            choice.round = Some(*t);
            choice.mix = MixWeights {
                from: round.from.iter().map(|(_, w)| *w).collect(),
                to: round.to.iter().map(|(_, w)| *w).collect(),
                keep: round.keep,
            };
            choice.request.call = Call::Mix {
                from: round.from.iter().map(|(r, _)| *r).collect(),
                to: round.to.iter().map(|(r, _)| *r).collect(),
                scaled: round.to.iter().any(|(_, w)| *w != 1.0),
                form: round.form,
            };
        }
        other => {
            let what = format!("{other:?} is not carried out by this engine");
            return Err(Cause::Unsupported {
                op: name.into(),
                what,
            }
            .into());
        }
    }
    Ok(choice)
}

fn forced(op: &Op, name: &str, only: Algorithm) -> Result<Algorithm, Error> {
    match op.algorithm {
        Some(a) if a != only => Err(Cause::Unsupported {
            op: name.into(),
            what: format!("has no plan by {a}; it has {only}"),
        }
        .into()),
        _ => Ok(only),
    }
}

/// Small: few rounds. Larger: every byte once out and once in; around a ring where there are too many peers for that.
fn all_reduce_algorithm(codec: Codec, world: u32, bytes: u64, config: &EngineConfig) -> Algorithm {
    if codec != Codec::None {
        Algorithm::Direct
    } else if bytes <= config.small_bytes {
        Algorithm::RecursiveDoubling
    } else if world <= config.direct_world {
        Algorithm::Direct
    } else {
        Algorithm::Ring
    }
}
