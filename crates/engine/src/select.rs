//! From an operation to its plan: what is legal, which algorithm, which slice. A pure function of what all ranks agree on.

use crate::{
    arguments::{Extent, Shape, measure},
    config::EngineConfig,
    op::MixWeights,
    pairs::Pairs,
    places::Places,
    promises,
};
use gaggle_collectives::{
    Call, Request, Span,
    select::{self, Question, Selection, Tables},
};
use gaggle_core::{
    Algorithm, Cause, Class, Codec, Counts, DType, Descriptor, Error, GroupInfo, Kind, ModeBits,
    OnMissing, Op, OpId, OpKind, Rank, Reduce, Round, UserReduction, Weight,
    descriptor::stable_hash,
};
use std::{sync::Arc, time::Duration};

/// How an operation finds its counterparts, before it has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// The lane's next number.
    Next,
    /// The caller's round.
    Round(u64),
    /// The next number of this tag on this link.
    Tagged { from: Rank, to: Rank, tag: u32 },
}

impl Identity {
    pub(crate) fn of(kind: &Kind, me: Rank) -> Identity {
        match kind {
            Kind::Mix { t, .. }
            | Kind::NeighbourGather { t, .. }
            | Kind::HierarchicalMix { t, .. } => Identity::Round(*t),
            Kind::Send { to, tag } => Identity::Tagged {
                from: me,
                to: *to,
                tag: *tag,
            },
            Kind::Recv { from, tag } => Identity::Tagged {
                from: *from,
                to: me,
                tag: *tag,
            },
            _ => Identity::Next,
        }
    }

    pub(crate) fn class(self) -> Class {
        match self {
            Identity::Next => Class::Collective,
            Identity::Round(_) => Class::Neighbour,
            Identity::Tagged { .. } => Class::Tagged,
        }
    }

    /// The stream in which it is numbered: a group's lane, or a link's tag.
    pub(crate) fn stream(self, group: u64, lane: u32) -> (u64, u32) {
        match self {
            Identity::Tagged { from, to, tag } => (OpId::link_group(group, from, to), tag),
            _ => (group, lane),
        }
    }
}

/// What an operation comes to, before it has a number.
pub(crate) struct Choice {
    /// What is planned; where counts are to be discovered, how the ranks tell each other.
    pub(crate) request: Request,
    pub(crate) extent: Extent,
    pub(crate) kind: OpKind,
    pub(crate) root: Rank,
    pub(crate) reduce: Reduce,
    /// By what it was chosen; the request has the algorithm that is planned for that.
    pub(crate) algorithm: Algorithm,
    pub(crate) codec: Codec,
    pub(crate) mix: MixWeights,
    pub(crate) weight: Weight,
    pub(crate) identity: Identity,
    pub(crate) pairs: Pairs,
    /// Hash of whatever else the ranks must agree on.
    pub(crate) tables: u64,
}

impl Choice {
    /// The same, for another call of the kind; without what belongs to one call alone.
    pub(crate) fn alike(&self) -> Choice {
        Choice {
            request: self.request.clone(),
            extent: self.extent,
            kind: self.kind,
            root: self.root,
            reduce: self.reduce,
            algorithm: self.algorithm,
            codec: self.codec,
            mix: MixWeights::default(),
            weight: self.weight,
            identity: self.identity,
            pairs: Pairs::default(),
            tables: self.tables,
        }
    }

    /// Takes over the weight of a call. One that somebody left in the options of a sum must not become a factor.
    pub(crate) fn weigh(&mut self, op: &Op) {
        self.weight = match self.reduce {
            Reduce::Mean => op.weight,
            _ => Weight::ONE,
        };
    }

    /// The 64 bytes that travel.
    pub(crate) fn descriptor(
        &self,
        id: OpId,
        op: &Op,
        group: &GroupInfo,
        dtype: DType,
    ) -> Descriptor {
        Descriptor {
            id,
            incarnation: group.incarnation,
            epoch: group.epoch,
            kind: self.kind,
            dtype,
            reduce: self.reduce,
            count: self.extent.count,
            root: self.root,
            codec: self.codec,
            algorithm: self.algorithm,
            divisor: op.divisor,
            mode: ModeBits {
                mode: op.mode,
                feedback: op.feedback.is_some(),
                counted: self.extent.counted,
            },
            priority: op.priority,
            slice: u32::try_from(self.request.slice).unwrap_or(u32::MAX),
            tables: self.tables,
        }
    }
}

/// Hash of everything that a plan is chosen by and a descriptor does not show: ranks with different settings must not run together.
fn tables_hash(op: &Op, config: &EngineConfig, places: &Places) -> u64 {
    let numbers = |list: &[u32]| -> Vec<u8> { list.iter().flat_map(|h| h.to_le_bytes()).collect() };
    let settings = [
        config.model().hash(),
        config.overrides.hash(),
        u64::from(config.radix),
        u64::from(op.codec_forced && op.codec != Codec::None),
    ];
    let settings: Vec<u8> = settings.iter().flat_map(|n| n.to_le_bytes()).collect();
    let known = |list: &Option<Arc<[u32]>>| list.as_ref().map_or_else(Vec::new, |h| numbers(h));
    let (hosts, nodes) = (known(&places.hosts), known(&places.nodes));
    let machines: Vec<u8> = match &op.kind {
        Kind::HierarchicalMix { machines, .. } => machines
            .iter()
            .flat_map(|m| {
                let ranks: Vec<u32> = m.iter().map(|r| r.0).collect();
                let mut bytes = (ranks.len() as u32).to_le_bytes().to_vec();
                bytes.extend(numbers(&ranks));
                bytes
            })
            .collect(),
        _ => vec![],
    };
    let (mut user, mut properties) = (&b""[..], [0u8; 3]);
    if let Some(u) = op.user.as_ref().filter(|_| is_user(&op.kind)) {
        let p = u.properties();
        user = u.name().as_bytes();
        properties = [
            1 + u.dtype() as u8,
            u8::from(p.commutative),
            u8::from(p.associative),
        ];
    }
    stable_hash(&[&settings, &hosts, &nodes, &machines, user, &properties])
}

pub(crate) fn is_user(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::AllReduce(Reduce::User)
            | Kind::Reduce {
                reduce: Reduce::User,
                ..
            }
            | Kind::ReduceScatter {
                reduce: Reduce::User,
                ..
            }
    )
}

/// Where this rank's result of a reduction is; `None` for other operations, and where it has none.
pub(crate) fn result_of(kind: &Kind, shape: &Shape, me: Rank, world: u32) -> Option<Span> {
    let whole = Span::user(0, shape.io);
    match kind {
        Kind::AllReduce(_) => Some(whole),
        Kind::Reduce { root, .. } => (*root == me).then_some(whole),
        Kind::ReduceScatter { .. } if shape.input.is_some() => Some(whole),
        Kind::ReduceScatter { counts, .. } => Some(match counts {
            Counts::Known(list) => {
                let before = list.iter().take(me.idx()).sum();
                Span::user(before, *list.get(me.idx())?)
            }
            _ => {
                let part = shape.io / u64::from(world);
                Span::user(u64::from(me.0) * part, part)
            }
        }),
        _ => None,
    }
}

/// Decides how `op` on memory of this shape is carried out.
///
/// # Errors
/// The caller's mistakes, with what was wanted and what was given.
pub(crate) fn choose(
    op: &Op,
    group: &GroupInfo,
    places: &Places,
    shape: &Shape,
    config: &EngineConfig,
) -> Result<Choice, Error> {
    let (kind, dtype) = (op.kind.op_kind(), shape.dtype);
    let name = kind.name();
    let (me, world) = (group.rank, group.world_ranks.len() as u32);
    if !op.codec.applies_to(dtype) {
        let what = format!("the {} codec applies to f32, not to {dtype}", op.codec);
        return Err(unsupported(name, what));
    }
    check_types(op, name, dtype)?;
    promises::check(op, name, dtype)?;
    let extent = measure(&op.kind, shape, me, world)?;
    let wire = if extent.discover { DType::U64 } else { dtype };
    let selection = select(&question(op, group, places, wire, &extent, config), config)?;
    if selection.algorithm.planned() == Algorithm::Fused && (extent.discover || !config.fusion) {
        return choose_plain(op, group, places, shape, config);
    }
    let pick = Pick {
        op,
        algorithm: match (kind, selection.algorithm) {
            // By messages, where somebody can have no board.
            (OpKind::Reduce, Algorithm::Boards) => Algorithm::Direct,
            (_, by) => by.planned(),
        },
    };
    let call = if extent.discover {
        pick.counts_call()
    } else {
        pick.call()
    };
    let request = Request {
        rank: me,
        world,
        len: if extent.discover { 1 } else { extent.len },
        slice: selection.slice.max(1),
        codec: selection.codec,
        widen: wire.accumulator() != wire,
        out_of_place: extent.discover || shape.input.is_some(),
        feedback: op.feedback.is_some() && selection.codec != Codec::None,
        radix: config.radix,
        hosts: places.groups(),
        patient: op.on_missing == OnMissing::Tolerate,
        call,
    };
    let (root, reduce) = match &op.kind {
        Kind::Broadcast { root } | Kind::Gather { root, .. } | Kind::Scatter { root, .. } => {
            (*root, Reduce::Sum)
        }
        Kind::Reduce { root, reduce } => (*root, *reduce),
        Kind::AllReduce(reduce) | Kind::ReduceScatter { reduce, .. } => (Rank(0), *reduce),
        Kind::Send { to, .. } => (*to, Reduce::Sum),
        Kind::Recv { .. } => (me, Reduce::Sum),
        _ => (Rank(0), Reduce::Sum),
    };
    let mix = match &op.kind {
        Kind::Mix { round, .. } | Kind::HierarchicalMix { round, .. } => MixWeights::of(round),
        _ => MixWeights::default(),
    };
    let planned = request.call.algorithm();
    let mut choice = Choice {
        // Counts are told in a way of their own.
        algorithm: match selection.algorithm {
            by if by.planned() == planned || (by == Algorithm::Boards && !extent.discover) => by,
            _ => planned,
        },
        codec: if extent.discover {
            op.codec
        } else {
            selection.codec
        },
        mix,
        weight: Weight::ONE,
        identity: Identity::of(&op.kind, me),
        pairs: if extent.discover {
            Pairs::Same
        } else {
            Pairs::of(&op.kind, extent.len)
        },
        tables: tables_hash(op, config, places),
        request,
        extent,
        kind,
        root,
        reduce,
    };
    choice.weigh(op);
    Ok(choice)
}

/// Whether two calls on memory of one shape are carried out alike, whatever their weights and deadlines are.
#[inline]
pub(crate) fn alike(a: &Op, b: &Op) -> bool {
    a.lane == b.lane
        && a.kind == b.kind
        && a.priority == b.priority
        && a.divisor == b.divisor
        && a.mode == b.mode
        && a.algorithm == b.algorithm
        && a.codec == b.codec
        && a.codec_forced == b.codec_forced
        && a.feedback == b.feedback
        && a.on_missing == b.on_missing
        && b.user.is_none()
}

/// As [`choose`], by messages, where a fused plan would be taken: with the same bits in the result.
pub(crate) fn choose_plain(
    op: &Op,
    group: &GroupInfo,
    places: &Places,
    shape: &Shape,
    config: &EngineConfig,
) -> Result<Choice, Error> {
    let mut config = config.clone();
    config.tables = Some(Tables {
        mapped: false,
        ..config.model()
    });
    config.mapped = false;
    let mut op = op.clone();
    // It is another way to fold at once, in the same order.
    op.algorithm = op.kind.op_kind().reduces().then_some(Algorithm::Direct);
    // Fused plans have none.
    op.codec = Codec::None;
    choose(&op, group, places, shape, &config)
}

/// Of a [`Choice`], what an operation is started with.
pub(crate) struct Parts {
    pub(crate) mix: MixWeights,
    pub(crate) pairs: Pairs,
    pub(crate) weight: Weight,
    pub(crate) user: Option<UserReduction>,
    pub(crate) tensor: Option<u64>,
}

impl Choice {
    pub(crate) fn parts(&mut self, op: &Op) -> Parts {
        Parts {
            mix: std::mem::take(&mut self.mix),
            pairs: std::mem::take(&mut self.pairs),
            weight: self.weight,
            user: op.user.clone().filter(|_| is_user(&op.kind)),
            tensor: op.feedback.filter(|_| self.request.feedback),
        }
    }
}

fn unsupported(name: &str, what: String) -> Error {
    Cause::Unsupported {
        op: name.into(),
        what,
    }
    .into()
}

/// What is not about lengths: reductions on types, weights, machines.
fn check_types(op: &Op, name: &str, dtype: DType) -> Result<(), Error> {
    let wrong = |what: String| Err(Error::invalid(name, what));
    match &op.kind {
        Kind::AllReduce(reduce)
        | Kind::Reduce { reduce, .. }
        | Kind::ReduceScatter { reduce, .. } => {
            if !reduce.is_defined_on(dtype) {
                return wrong(format!("{reduce} is not defined on {dtype}"));
            }
            match (reduce, &op.user) {
                (Reduce::User, None) => wrong("a user's reduction without the function".into()),
                (Reduce::User, Some(user)) if user.dtype() != dtype => wrong(format!(
                    "the reduction '{}' is made for {}, not for {dtype}",
                    user.name(),
                    user.dtype()
                )),
                _ => Ok(()),
            }
        }
        Kind::Mix { round, .. } | Kind::HierarchicalMix { round, .. } => {
            if !dtype.is_float() {
                return wrong(format!("averages need floats, not {dtype}"));
            }
            let from = round.from.iter().map(|(_, w)| *w);
            let to = round.to.iter().map(|(_, w)| *w);
            match from.chain(to).chain([round.keep]).find(|w| !w.is_finite()) {
                Some(w) => wrong(format!("weight {w} is not finite")),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

impl MixWeights {
    fn of(round: &Round) -> MixWeights {
        MixWeights {
            from: round.from.iter().map(|(_, w)| *w).collect(),
            to: round.to.iter().map(|(_, w)| *w).collect(),
            keep: round.keep,
        }
    }
}

/// What is to be chosen for: the same on every rank, whatever this rank's own part is.
fn question<'a>(
    op: &Op,
    group: &GroupInfo,
    places: &'a Places,
    wire: DType,
    extent: &Extent,
    config: &EngineConfig,
) -> Question<'a> {
    let world = group.world_ranks.len() as u32;
    let select::Places { hosts, nodes } = places.view();
    if extent.discover {
        // The counts themselves: one number for each rank.
        let kind = match op.kind.op_kind() {
            kind @ (OpKind::AllToAll | OpKind::NeighbourGather) => kind,
            _ => OpKind::AllGather,
        };
        return Question {
            hosts,
            nodes,
            radix: config.radix,
            ..Question::new(kind, wire, world, u64::from(world))
        };
    }
    let parts = extent.len.saturating_mul(u64::from(world));
    let (reduce, len) = match &op.kind {
        Kind::AllReduce(reduce) | Kind::Reduce { reduce, .. } => (*reduce, extent.len),
        Kind::ReduceScatter { reduce, counts } => (*reduce, total(counts, parts)),
        Kind::Gather { counts, .. } | Kind::Scatter { counts, .. } | Kind::AllGather(counts) => {
            (Reduce::Sum, total(counts, parts))
        }
        Kind::AllToAll {
            send: Counts::Equal,
            ..
        } => (Reduce::Sum, parts),
        // What pairs of ranks alone know must not decide.
        _ if extent.counted => (Reduce::Sum, 0),
        _ => (Reduce::Sum, extent.len),
    };
    Question {
        reduce,
        counted: extent.counted,
        hosts,
        nodes,
        mode: op.mode,
        codec: op.codec,
        codec_forced: op.codec_forced,
        feedback: op.feedback.is_some(),
        user: op.user.as_ref().map(|u| u.properties()),
        algorithm: op.algorithm,
        radix: config.radix,
        // Ranks differ in their neighbours; the choice must not.
        degree: 1,
        ..Question::new(op.kind.op_kind(), wire, world, len)
    }
}

fn total(counts: &Counts, equal: u64) -> u64 {
    match counts {
        Counts::Known(list) => list.iter().fold(0, |n: u64, c| n.saturating_add(*c)),
        _ => equal,
    }
}

fn select(question: &Question<'_>, config: &EngineConfig) -> Result<Selection, Error> {
    select::choose(&config.model(), &config.overrides, question).map_err(|e| {
        let mut what = format!("by {} {}", e.algorithm, e.why);
        if question.codec != Codec::None {
            what += &format!(" (with {} messages)", question.codec);
        }
        if !e.eligible.is_empty() {
            let names: Vec<&str> = e.eligible.iter().map(|a| a.name()).collect();
            what += &format!("; what can: {}", names.join(", "));
        }
        unsupported(question.kind.name(), what)
    })
}

/// Which plan would carry `op` out, and why.
///
/// # Errors
/// As [`choose`].
pub(crate) fn explain(
    op: &Op,
    group: &GroupInfo,
    places: &Places,
    shape: &Shape,
    config: &EngineConfig,
) -> Result<String, Error> {
    let (me, world) = (group.rank, group.world_ranks.len() as u32);
    let extent = measure(&op.kind, shape, me, world)?;
    let wire = if extent.discover {
        DType::U64
    } else {
        shape.dtype
    };
    let selection = select(&question(op, group, places, wire, &extent, config), config)?;
    Ok(if extent.discover {
        format!("{selection} That is for the counts, which the ranks tell each other first.")
    } else {
        selection.to_string()
    })
}

/// How long the cost model says that `op` takes; of an operation that discovers counts, the exchange of these.
///
/// # Errors
/// As [`choose`].
pub(crate) fn predict(
    op: &Op,
    group: &GroupInfo,
    places: &Places,
    shape: &Shape,
    config: &EngineConfig,
) -> Result<Duration, Error> {
    let (me, world) = (group.rank, group.world_ranks.len() as u32);
    let extent = measure(&op.kind, shape, me, world)?;
    let wire = if extent.discover {
        DType::U64
    } else {
        shape.dtype
    };
    Ok(select(&question(op, group, places, wire, &extent, config), config)?.time())
}

/// From a kind of operation and an algorithm to a planner's call.
struct Pick<'a> {
    op: &'a Op,
    algorithm: Algorithm,
}

impl Pick<'_> {
    fn call(&self) -> Call {
        let (neighbours, numbers) = (
            |list: &[(Rank, f64)]| list.iter().map(|(r, _)| *r).collect::<Vec<Rank>>(),
            |list: &[(Rank, f64)]| list.iter().map(|(r, _)| r.0).collect::<Vec<u32>>(),
        );
        let scaled = |round: &Round| round.to.iter().any(|(_, w)| *w != 1.0);
        let form = |round: &Round| round.arithmetic();
        match &self.op.kind {
            Kind::AllReduce(reduce) => Call::AllReduce {
                reduce: *reduce,
                algorithm: self.algorithm,
            },
            Kind::Reduce { reduce, root } => Call::Reduce {
                reduce: *reduce,
                root: *root,
                algorithm: self.algorithm,
            },
            Kind::Broadcast { root } => Call::Broadcast {
                root: *root,
                algorithm: self.algorithm,
            },
            Kind::Gather { root, counts } => Call::Gather {
                root: *root,
                counts: counts.clone(),
                algorithm: self.algorithm,
            },
            Kind::Scatter { root, counts } => Call::Scatter {
                root: *root,
                counts: counts.clone(),
                algorithm: self.algorithm,
            },
            Kind::AllGather(counts) => Call::AllGather {
                counts: counts.clone(),
                algorithm: self.algorithm,
            },
            Kind::ReduceScatter { reduce, counts } => Call::ReduceScatter {
                reduce: *reduce,
                counts: counts.clone(),
                algorithm: self.algorithm,
            },
            Kind::AllToAll { send, recv } => Call::AllToAll {
                send: send.clone(),
                recv: recv.clone(),
                algorithm: self.algorithm,
            },
            Kind::Barrier => Call::Barrier,
            Kind::Mix { round, .. } => Call::Mix {
                from: neighbours(&round.from),
                to: neighbours(&round.to),
                scaled: scaled(round),
                form: form(round),
            },
            Kind::NeighbourGather {
                from, to, counts, ..
            } => Call::NeighbourGather {
                from: from.to_vec(),
                to: to.to_vec(),
                counts: counts.clone(),
            },
            Kind::HierarchicalMix {
                machines, round, ..
            } => Call::HierarchicalMix {
                machines: Arc::clone(machines),
                from: numbers(&round.from),
                to: numbers(&round.to),
                scaled: scaled(round),
                form: form(round),
            },
            Kind::Send { to, .. } => Call::Send { to: *to },
            Kind::Recv { from, .. } => Call::Recv { from: *from },
            // `measure` has refused everything else.
            _ => Call::Barrier,
        }
    }

    /// How ranks tell each other their counts: one number of each to whoever must know it.
    fn counts_call(&self) -> Call {
        let equal = || Counts::Equal;
        match &self.op.kind {
            Kind::AllToAll { .. } => Call::AllToAll {
                send: equal(),
                recv: equal(),
                algorithm: self.algorithm,
            },
            Kind::NeighbourGather { from, to, .. } => Call::NeighbourGather {
                from: from.to_vec(),
                to: to.to_vec(),
                counts: equal(),
            },
            _ => Call::AllGather {
                counts: equal(),
                algorithm: self.algorithm,
            },
        }
    }
}
