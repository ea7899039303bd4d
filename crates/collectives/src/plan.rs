//! The plan: a graph of steps with dependencies, as plain data.
//!
//! A [`Plan`] is one rank's part of a collective. It holds no pointer, address or status; it can be printed, compared, cached, costed, checked for all ranks together, simulated and executed.
//! Steps are generated on demand from their index ([`Steps`]), so that a plan for thousands of ranks is not a list of millions of entries.

use crate::parts::Parts;
use gaggle_core::{Algorithm, Codec, Counts, Form, OpKind, Rank, Reduce};
use smallvec::SmallVec;
use std::{fmt, sync::Arc};

/// Which memory of the rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Buf {
    /// What the caller gives to be read, in the operation's element type. No step writes it; empty for operations in place.
    Input,
    /// The caller's buffer that is written, in the operation's element type. In place it holds the contribution at the start; out of place its content is unspecified then.
    User,
    /// Room that the plan asks for, in the type that [`OpKind::scratch_type`] says: the accumulator type where contributions are combined, the element type where they are only moved. Its content is unspecified at the start.
    Scratch,
}

/// Elements `at..at+len` of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Span {
    /// Which memory.
    pub buf: Buf,
    /// First element.
    pub at: u64,
    /// Number of elements; may be 0.
    pub len: u64,
}

impl Span {
    /// Elements of the caller's input.
    pub const fn input(at: u64, len: u64) -> Span {
        Span {
            buf: Buf::Input,
            at,
            len,
        }
    }

    /// Elements of the caller's buffer.
    pub const fn user(at: u64, len: u64) -> Span {
        Span {
            buf: Buf::User,
            at,
            len,
        }
    }

    /// Elements of the scratch buffer.
    pub const fn scratch(at: u64, len: u64) -> Span {
        Span {
            buf: Buf::Scratch,
            at,
            len,
        }
    }

    /// One past the last element.
    pub const fn end(self) -> u64 {
        self.at + self.len
    }

    /// Whether both touch some element.
    pub fn overlaps(self, other: Span) -> bool {
        self.buf == other.buf && self.at < other.end() && other.at < self.end()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buf = match self.buf {
            Buf::Input => "input",
            Buf::User => "user",
            Buf::Scratch => "scratch",
        };
        write!(f, "{buf}[{}..{}]", self.at, self.end())
    }
}

/// Number of a weight slot of this rank.
///
/// A mean's weights are run-time values in slots: 32.32 fixed point, see [`Weight`](gaggle_core::Weight). Slot 0 holds this rank's own weight from the start; every other slot is written once, by the step that names it as its output. Plans of reductions without weights use none.
pub type Slot = u32;

/// One operand of a [`Action::Fold`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Operand {
    /// The values. Only the fold's `dst` may be named as an operand that overlaps `dst`, and then exactly.
    pub span: Span,
    /// Its weight, for means.
    pub slot: Option<Slot>,
}

/// What an arriving message does to the elements it is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Arrive {
    /// They are replaced. Where a slot is given and the message's weight is 0 they stay as they are.
    Store,
    /// They are combined with what is there: as `incoming ∘ there` or the other way round. In a mean, what arrives has been multiplied by its weights, and what is there is multiplied by `there` as they meet, also where nothing of weight arrives; a side of weight 0 is not read, and where both are 0 nothing is written. The elements on the wire are of `dst`'s type.
    Fold {
        /// The order of the two operands: the lower rank's first.
        incoming_first: bool,
        /// The weight of what is there, for means.
        there: Option<Slot>,
    },
}

/// What a step does.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Sends `src` to `to`, as the message `tag` of this operation on this link. The step is over when the bytes may be changed again.
    Send {
        /// Number in the group.
        to: Rank,
        /// Unique among this operation's messages from this rank to `to`.
        tag: u32,
        /// What.
        src: Span,
        /// In which buffer's type the elements are on the wire, before the codec: `User`: the element type; `Scratch`: the accumulator type. Where `src` is of the other type they are converted as they leave.
        wire: Buf,
        /// How it is written on the wire.
        codec: Codec,
        /// The weight that travels with it, for means.
        weight: Option<Slot>,
        /// Index of the run-time factor that each element is multiplied by, for neighbour averages: out-neighbour number.
        scale: Option<u32>,
    },
    /// Receives the message `tag` from `from`.
    Recv {
        /// Number in the group.
        from: Rank,
        /// Unique among this operation's messages from `from` to this rank.
        tag: u32,
        /// Where it goes.
        dst: Span,
        /// In which buffer's type the elements are on the wire, before the codec; the same as the sender's. Where `dst` is of the other type they are converted as they arrive.
        wire: Buf,
        /// How it is written on the wire.
        codec: Codec,
        /// What it does there.
        arrive: Arrive,
        /// The slot that receives the message's weight (`Store`), or the sum of both sides' (`Fold`), for means.
        weight: Option<Slot>,
    },
    /// `dst` = the reduction of all operands, folded in the given order in a wider type and rounded once (f32 in f64, 16-bit floats in f32).
    ///
    /// With slots it is a mean: Σ wᵢxᵢ / Σ wᵢ; operands of weight 0 are not read; where Σw is 0, `dst` stays as it is. `sum` receives Σw.
    Fold {
        /// Where the result goes.
        dst: Span,
        /// What is combined, in rank order.
        operands: SmallVec<[Operand; 8]>,
        /// The slot for Σw, for means.
        sum: Option<Slot>,
    },
    /// Multiplies by the weight in the slot; nothing to do where it is 1; not read where it is 0.
    Weigh {
        /// What.
        span: Span,
        /// By which weight.
        slot: Slot,
    },
    /// Divides by the weight in the slot; nothing to do where it is 0 or 1.
    Divide {
        /// What.
        span: Span,
        /// By which weight.
        slot: Slot,
    },
    /// Copies elements, converting between element and accumulator type. With a slot: only where its weight is not 0.
    Copy {
        /// From.
        src: Span,
        /// To.
        dst: Span,
        /// Guard, for means.
        unless_zero: Option<Slot>,
    },
    /// Replaces elements by what the codec makes of them, so that this rank holds the bits that the others decode. With a slot: only where its weight is not 0.
    Recode {
        /// What.
        span: Span,
        /// Which codec.
        codec: Codec,
        /// Guard, for means.
        unless_zero: Option<Slot>,
    },
    /// The neighbour average of `own` and the operands, with run-time weights: operand i has the i-th receiver weight. In wider arithmetic, rounded once.
    ///
    /// Delta form: own + Σ wᵢ(xᵢ − own′), where own′ is `own` as the codec decodes it; sum form: keep·own + Σ wᵢxᵢ.
    Mix {
        /// Where the result goes.
        dst: Span,
        /// This rank's own value: where the result goes, or apart from it.
        own: Span,
        /// The in-neighbours' values, in the order of the round.
        operands: SmallVec<[Span; 4]>,
        /// The arithmetic.
        form: Form,
        /// What the messages were written with.
        codec: Codec,
    },
    /// Error feedback before a lossy message leaves (Seide et al. 2014, Karimireddy et al. 2019): x ← span + residual; span ← what the codec makes of x; residual ← x − span.
    ///
    /// The residual is the tensor's, as long as the caller's buffer, and kept between operations: elements `residual..residual+span.len` of it. With a slot: only where its weight is not 0. A residual that is not finite becomes 0.
    Compensate {
        /// What leaves.
        span: Span,
        /// First element of the residual.
        residual: u64,
        /// What it will be written with.
        codec: Codec,
        /// Guard, for means.
        unless_zero: Option<Slot>,
    },
    /// Tells all members that share memory with this rank that it has come to `phase`: what it wrote before may be read by those who wait for it. Phases count from 0; each rank arrives at each once.
    Arrive {
        /// Which.
        phase: u32,
    },
    /// Waits until all members have arrived at `phase`.
    AwaitAll {
        /// Which.
        phase: u32,
    },
    /// The fused step over memory that all members have mapped: reads elements `at..at+len` of every member's `from` buffer, folds them in rank order in a wider type, rounds once, and writes the result to the same place in every member's `User` buffer.
    ///
    /// In a mean every member's weight has come with its arrival; `sum` receives Σw; where that is 0 nothing is written.
    GroupFold {
        /// `Input` or `User`.
        from: Buf,
        /// First element.
        at: u64,
        /// Number of elements.
        len: u64,
        /// The slot for Σw, for means.
        sum: Option<Slot>,
    },
    /// Reads elements of a member's mapped buffer into this rank's own.
    GroupCopy {
        /// Whose.
        from: Rank,
        /// Of theirs.
        src: Span,
        /// Of this rank's.
        dst: Span,
    },
}

/// A step: what to do, once the steps `after` (earlier indices of this rank) are over.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// What.
    pub action: Action,
    /// Indices of this rank's steps that must be over; all smaller than this step's own.
    pub after: SmallVec<[u32; 4]>,
}

/// Generates a plan's steps.
pub trait Steps: Send + Sync + fmt::Debug {
    /// How many there are.
    fn n_steps(&self) -> u32;
    /// Step number `idx`, in time independent of the plan's length.
    ///
    /// # Panics
    /// If `idx` is not smaller than `n_steps`.
    fn step(&self, idx: u32) -> Step;
}

/// A list of steps: for plans that are made by hand, and for tests.
impl Steps for Vec<Step> {
    fn n_steps(&self) -> u32 {
        self.len() as u32
    }
    fn step(&self, idx: u32) -> Step {
        self[idx as usize].clone()
    }
}

/// One rank's part of a collective.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it carries out.
    pub kind: OpKind,
    /// How.
    pub algorithm: Algorithm,
    /// How contributions are combined; `Sum` where they are not.
    pub reduce: Reduce,
    /// Whose part.
    pub rank: Rank,
    /// Number of members.
    pub world: u32,
    /// Elements in the caller's input; 0 in place.
    pub input_len: u64,
    /// Elements in the caller's buffer that is written.
    pub user_len: u64,
    /// Elements of scratch, in the accumulator type.
    pub scratch_len: u64,
    /// Number of weight slots; 0 or at least 1 (slot 0 is this rank's own weight).
    pub n_slots: u32,
    /// The slot that holds Σw at the end, for means.
    pub total: Option<Slot>,
    /// The steps.
    pub steps: Arc<dyn Steps>,
}

impl Plan {
    /// How many steps there are.
    pub fn n_steps(&self) -> u32 {
        self.steps.n_steps()
    }

    /// Step number `idx`.
    ///
    /// # Panics
    /// If `idx` is not smaller than `n_steps`.
    pub fn step(&self, idx: u32) -> Step {
        self.steps.step(idx)
    }

    /// All steps in order.
    pub fn iter(&self) -> impl Iterator<Item = Step> + '_ {
        (0..self.n_steps()).map(|i| self.step(i))
    }
}

/// What is to be planned. Pure values that are the same on every rank, except `rank`, the neighbours and what a rank sends to or receives from single others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What.
    pub call: Call,
    /// For whom.
    pub rank: Rank,
    /// Number of members.
    pub world: u32,
    /// Elements per rank: of the whole buffer; of one rank's part for gather, scatter, all-gather, reduce-scatter and all-to-all with equal counts. Ignored where counts are given.
    pub len: u64,
    /// Longest message in elements; at least 1.
    pub slice: u64,
    /// What is on the wire.
    pub codec: Codec,
    /// Whether partial results are kept in a wider type than the caller's (16-bit floats): then plans that keep partials in the user buffer work in scratch instead.
    pub widen: bool,
    /// Whether the contribution is read from [`Buf::Input`].
    pub out_of_place: bool,
    /// Whether what the codec loses is kept and added the next time.
    pub feedback: bool,
    /// Children per inner node of a k-nomial tree, plus 1; at least 2.
    pub radix: u32,
    /// Each member's host, as any number; `None`: all on hosts of their own. For two-level plans; where all are on one host, which member is on which of its memory nodes may stand here ([`Places::groups`](crate::select::Places::groups)).
    pub hosts: Option<Arc<[u32]>>,
    /// Whether the averages of a neighbour round may all wait until everything has come, as those of a round do that goes on without whoever is missing. Otherwise the room for what comes is used again as soon as it has been averaged.
    pub patient: bool,
}

impl Request {
    /// Radix of k-nomial trees where nothing else is said.
    pub const RADIX: u32 = 4;

    /// In place, in one slice, plain.
    pub fn new(call: Call, rank: Rank, world: u32, len: u64) -> Request {
        Request {
            call,
            rank,
            world,
            len,
            slice: u64::MAX,
            codec: Codec::None,
            widen: false,
            out_of_place: false,
            feedback: false,
            radix: Self::RADIX,
            hosts: None,
            patient: false,
        }
    }
}

impl Request {
    /// Elements of the input and of the buffer that is written, for `rank`; the input is 0 in place.
    ///
    /// Out of place, who has nothing to read or nothing to be written has an empty buffer: the root's side of a scatter and of a broadcast reads alone, that of a gather and of a reduction is written alone.
    ///
    /// # Errors
    /// Counts that do not fit the world, or more elements than 64 bits can count.
    pub fn lens(&self) -> Result<(u64, u64), PlanError> {
        let len = self.len;
        let world = self.world as usize;
        let parts = |counts: &Counts| {
            let parts = Parts::of(counts, len, world, "counts")?;
            Ok((parts.len(self.rank.0), parts.total()))
        };
        // What is read and what is written out of place, and what is both in place.
        let (read, written, both) = match &self.call {
            Call::AllReduce { .. } | Call::Mix { .. } | Call::HierarchicalMix { .. } => {
                (len, len, len)
            }
            Call::Reduce { root, .. } => (len, self.only(*root, len), len),
            Call::Broadcast { root, .. } => (self.only(*root, len), len, len),
            Call::Gather { root, counts, .. } => {
                let (own, all) = parts(counts)?;
                (
                    own,
                    self.only(*root, all),
                    if *root == self.rank { all } else { own },
                )
            }
            Call::Scatter { root, counts, .. } => {
                let (own, all) = parts(counts)?;
                (
                    self.only(*root, all),
                    own,
                    if *root == self.rank { all } else { own },
                )
            }
            Call::AllGather { counts, .. } => {
                let (own, all) = parts(counts)?;
                (own, all, all)
            }
            Call::ReduceScatter { counts, .. } => {
                let (own, all) = parts(counts)?;
                (all, own, all)
            }
            Call::AllToAll { send, recv, .. } => {
                let send = Parts::of(send, len, world, "send counts")?.total();
                let recv = Parts::of(recv, len, world, "receive counts")?.total();
                (send, recv, recv)
            }
            Call::Barrier => (0, 0, 0),
            Call::NeighbourGather { from, counts, .. } => {
                let all = Parts::of(counts, len, from.len(), "counts")?.total();
                (len, all, all)
            }
            Call::Send { .. } => (len, 0, len),
            Call::Recv { .. } => (0, len, len),
        };
        Ok(if self.out_of_place {
            (read, written)
        } else {
            (0, both)
        })
    }

    fn only(&self, root: Rank, len: u64) -> u64 {
        if self.rank == root { len } else { 0 }
    }
}

/// A barrier of one rank: what fields that a test does not care about are taken from.
impl Default for Request {
    fn default() -> Request {
        Request::new(Call::Barrier, Rank(0), 1, 0)
    }
}

/// The operations that can be planned. Counts are `Equal` or `Known`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// By `Ring`, `RecursiveDoubling`, `HalvingDoubling`, `Direct`, `DoubleTree`, `Exchange`, `Binomial` or `Knomial` (to rank 0 and back), two levels or `Fused`.
    AllReduce {
        /// Combination.
        reduce: Reduce,
        /// How.
        algorithm: Algorithm,
    },
    /// By `Direct`, `Binomial`, `Knomial`, `HalvingDoubling`, `DoubleTree` or two levels.
    Reduce {
        /// Combination.
        reduce: Reduce,
        /// Who ends with the result.
        root: Rank,
        /// How.
        algorithm: Algorithm,
    },
    /// By `Binomial`, `Knomial`, `DoubleTree`, `Pipelined`, `Direct`, two levels or `Fused`.
    Broadcast {
        /// Whose value.
        root: Rank,
        /// How.
        algorithm: Algorithm,
    },
    /// By `Direct` or `Binomial`.
    Gather {
        /// Who ends with all parts.
        root: Rank,
        /// How long the parts are.
        counts: Counts,
        /// How.
        algorithm: Algorithm,
    },
    /// By `Direct` or `Binomial`.
    Scatter {
        /// Whose parts.
        root: Rank,
        /// How long the parts are.
        counts: Counts,
        /// How.
        algorithm: Algorithm,
    },
    /// By `Ring`, `Direct`, `RecursiveDoubling`, `Bruck`, two levels or `Fused`.
    AllGather {
        /// How long the parts are.
        counts: Counts,
        /// How.
        algorithm: Algorithm,
    },
    /// By `Direct`, `Ring`, `HalvingDoubling`, two levels or `Fused`.
    ReduceScatter {
        /// Combination.
        reduce: Reduce,
        /// How long the parts are.
        counts: Counts,
        /// How.
        algorithm: Algorithm,
    },
    /// By `Direct`, or with equal counts `Bruck` or `Fused`.
    AllToAll {
        /// How many elements go to each.
        send: Counts,
        /// How many come from each.
        recv: Counts,
        /// How.
        algorithm: Algorithm,
    },
    /// Dissemination.
    Barrier,
    /// One exchange with neighbours.
    Mix {
        /// In-neighbours, in the order of the round.
        from: Vec<Rank>,
        /// Out-neighbours, in the order of the round.
        to: Vec<Rank>,
        /// Whether sender's factors other than 1 may occur: then messages are scaled as they leave.
        scaled: bool,
        /// The arithmetic.
        form: Form,
    },
    /// One exchange with neighbours, side by side: `len` elements go to each of `to`.
    NeighbourGather {
        /// In-neighbours, in the order of the output.
        from: Vec<Rank>,
        /// Out-neighbours.
        to: Vec<Rank>,
        /// How many elements come from each of `from`.
        counts: Counts,
    },
    /// Reduce-scatter inside the machine, all links between machines, all-gather inside.
    HierarchicalMix {
        /// The members by machine, all equally many.
        machines: Arc<[Vec<Rank>]>,
        /// In-neighbours of this rank's machine, as machine numbers.
        from: Vec<u32>,
        /// Out-neighbours of this rank's machine.
        to: Vec<u32>,
        /// As for `Mix`.
        scaled: bool,
        /// The arithmetic between machines.
        form: Form,
    },
    /// The sender's side of a message.
    Send {
        /// The receiver.
        to: Rank,
    },
    /// The receiver's side of a message.
    Recv {
        /// The sender.
        from: Rank,
    },
}

impl Call {
    /// Its kind in a descriptor.
    pub fn kind(&self) -> OpKind {
        match self {
            Call::AllReduce { .. } => OpKind::AllReduce,
            Call::Reduce { .. } => OpKind::Reduce,
            Call::Broadcast { .. } => OpKind::Broadcast,
            Call::Gather { .. } => OpKind::Gather,
            Call::Scatter { .. } => OpKind::Scatter,
            Call::AllGather { .. } => OpKind::AllGather,
            Call::ReduceScatter { .. } => OpKind::ReduceScatter,
            Call::AllToAll { .. } => OpKind::AllToAll,
            Call::Barrier => OpKind::Barrier,
            Call::Mix { .. } => OpKind::Mix,
            Call::NeighbourGather { .. } => OpKind::NeighbourGather,
            Call::HierarchicalMix { .. } => OpKind::HierarchicalMix,
            Call::Send { .. } | Call::Recv { .. } => OpKind::Message,
        }
    }

    /// Which algorithm it names; the only one where there is no choice.
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Call::AllReduce { algorithm, .. }
            | Call::Reduce { algorithm, .. }
            | Call::Broadcast { algorithm, .. }
            | Call::Gather { algorithm, .. }
            | Call::Scatter { algorithm, .. }
            | Call::AllGather { algorithm, .. }
            | Call::ReduceScatter { algorithm, .. }
            | Call::AllToAll { algorithm, .. } => *algorithm,
            Call::Barrier => Algorithm::Dissemination,
            Call::Mix { .. } | Call::NeighbourGather { .. } => Algorithm::Neighbour,
            Call::HierarchicalMix { .. } => Algorithm::Hierarchical,
            Call::Send { .. } | Call::Recv { .. } => Algorithm::Direct,
        }
    }

    /// How contributions are combined; `Sum` where they are not.
    pub fn reduce(&self) -> Reduce {
        match self {
            Call::AllReduce { reduce, .. }
            | Call::Reduce { reduce, .. }
            | Call::ReduceScatter { reduce, .. } => *reduce,
            _ => Reduce::Sum,
        }
    }
}

/// Why there is no such plan. The caller's mistake; nothing has happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The algorithm does not carry out this operation.
    #[error("{kind} has no plan by {algorithm}; it has {}", available.join(", "))]
    NoSuchAlgorithm {
        /// The operation.
        kind: &'static str,
        /// What was asked for.
        algorithm: Algorithm,
        /// What there is.
        available: Vec<&'static str>,
    },
    /// The plan would round at every hop.
    #[error("{kind} by {algorithm} would round to {codec} at every hop; use direct")]
    RoundsPerHop {
        /// The operation.
        kind: &'static str,
        /// What was asked for.
        algorithm: Algorithm,
        /// What was asked for.
        codec: Codec,
    },
    /// Two lists of different lengths, or a sum that is no number.
    #[error("{field}: {what}")]
    BadCounts {
        /// Which field of the request.
        field: &'static str,
        /// What is wrong.
        what: String,
    },
    /// The combination has no plan; the text says why and what has.
    #[error("{kind} {what}")]
    Unsupported {
        /// The operation.
        kind: &'static str,
        /// Why.
        what: String,
    },
    /// The operation has no form with this codec.
    #[error(
        "{kind} has no plan with codec {codec}; all_reduce, reduce_scatter, all_gather and broadcast by direct, all_reduce by two_level_direct, mix and hierarchical_mix have"
    )]
    NoCodec {
        /// The operation.
        kind: &'static str,
        /// What was asked for.
        codec: Codec,
    },
    /// A rank that is not in the group, oneself as a neighbour, or one named twice.
    #[error("{what}: {rank} of {world}{}", reason(what, *rank, *world))]
    BadRank {
        /// In which role.
        what: &'static str,
        /// Who.
        rank: Rank,
        /// Members.
        world: u32,
    },
    /// A number that makes no plan.
    #[error("{field} is {got}, wanted: {want}")]
    BadNumber {
        /// Which field of the request.
        field: &'static str,
        /// What it is.
        got: u64,
        /// What it may be.
        want: &'static str,
    },
}

/// What is wrong with a rank in that role.
fn reason(what: &str, rank: Rank, world: u32) -> &'static str {
    match rank.0 < world {
        false => ", which is not there: numbers begin at 0",
        true if what.starts_with("member of no") => "",
        true => ", which is one's own or named twice",
    }
}
