//! The seam of communicators: collectives over a group, blocking and asynchronous, on erased memory.

use crate::{
    Borrowed, Codec, Descriptor, Error, LinkStats, OpKind, Owned, Rank, Reduce, Region, Round,
    UserReduction, descriptor::stable_hash,
};
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

/// Which plan carries an operation out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum Algorithm {
    /// Reduce-scatter and all-gather around a ring: 2(P−1) rounds, 2S(P−1)/P bytes sent per rank.
    Ring = 0,
    /// Whole vectors exchanged at doubling distance: ⌈log₂P⌉ rounds (one more where P is no power of two), at most S·(⌊log₂P⌋ + 1) bytes.
    RecursiveDoubling = 1,
    /// Everybody sends every owner its share, and every owner the result: 2 rounds, 2S(P−1)/P bytes.
    Direct = 2,
    /// A binomial tree from the root: ⌈log₂P⌉ rounds.
    Binomial = 3,
    /// Empty messages at doubling distance: ⌈log₂P⌉ rounds (the barrier).
    Dissemination = 4,
    /// One exchange with the round's neighbours.
    Neighbour = 5,
    /// Vector halving with distance doubling, then the way back (Rabenseifner 2004): 2⌈log₂P⌉ rounds, 2S(P−1)/P bytes; two rounds and S bytes more where P is no power of two.
    HalvingDoubling = 6,
    /// A tree of the group's radix k from the root: ⌈logₖP⌉ levels, k−1 messages per level.
    Knomial = 7,
    /// Two binary trees, each for one half of the vector, in which every rank is inner node of at most one (Sanders, Speck and Träff 2009): about 2·log₂P rounds of slices, at most 2S bytes sent per rank.
    DoubleTree = 8,
    /// Blocks at doubling distance (Bruck et al. 1997): ⌈log₂P⌉ rounds.
    Bruck = 9,
    /// Slices down a chain from the root: P−2 rounds more than there are slices, S bytes per rank.
    Pipelined = 10,
    /// Reduce-scatter inside each machine, all links between machines, all-gather inside.
    Hierarchical = 11,
    /// Inside each host to and from one rank or all of them, between hosts by ring.
    TwoLevelRing = 12,
    /// Between hosts by recursive doubling.
    TwoLevelRecursiveDoubling = 13,
    /// Between hosts directly.
    TwoLevelDirect = 14,
    /// Between hosts by halving and doubling.
    TwoLevelHalvingDoubling = 15,
    /// Between hosts along two trees.
    TwoLevelDoubleTree = 16,
    /// Between hosts along a binomial tree.
    TwoLevelBinomial = 17,
    /// Between hosts down a chain.
    TwoLevelPipelined = 18,
    /// One pass over memory that all ranks have mapped.
    Fused = 19,
    /// Everybody sends everybody the whole vector: 1 round, S(P−1) bytes sent per rank.
    Exchange = 20,
    /// As `Fused`, of contributions that fit on the ranks' boards in shared memory, whatever memory they lie in: one exchange.
    Boards = 21,
    /// As `Fused`, through staging memory also where all buffers are mapped: copied in, folded, copied out.
    Staged = 22,
}

impl Algorithm {
    /// All of them, in the order of their numbers.
    pub const ALL: [Algorithm; 23] = [
        Algorithm::Ring,
        Algorithm::RecursiveDoubling,
        Algorithm::Direct,
        Algorithm::Binomial,
        Algorithm::Dissemination,
        Algorithm::Neighbour,
        Algorithm::HalvingDoubling,
        Algorithm::Knomial,
        Algorithm::DoubleTree,
        Algorithm::Bruck,
        Algorithm::Pipelined,
        Algorithm::Hierarchical,
        Algorithm::TwoLevelRing,
        Algorithm::TwoLevelRecursiveDoubling,
        Algorithm::TwoLevelDirect,
        Algorithm::TwoLevelHalvingDoubling,
        Algorithm::TwoLevelDoubleTree,
        Algorithm::TwoLevelBinomial,
        Algorithm::TwoLevelPipelined,
        Algorithm::Fused,
        Algorithm::Exchange,
        Algorithm::Boards,
        Algorithm::Staged,
    ];

    /// The algorithm with number `n`, as sent in a descriptor.
    pub fn from_number(n: u8) -> Option<Algorithm> {
        Self::ALL.get(n as usize).copied()
    }

    /// The name that users type.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Ring => "ring",
            Algorithm::RecursiveDoubling => "recursive_doubling",
            Algorithm::Direct => "direct",
            Algorithm::Binomial => "binomial",
            Algorithm::Dissemination => "dissemination",
            Algorithm::Neighbour => "neighbour",
            Algorithm::HalvingDoubling => "halving_doubling",
            Algorithm::Knomial => "knomial",
            Algorithm::DoubleTree => "double_tree",
            Algorithm::Bruck => "bruck",
            Algorithm::Pipelined => "pipelined",
            Algorithm::Hierarchical => "hierarchical",
            Algorithm::TwoLevelRing => "two_level_ring",
            Algorithm::TwoLevelRecursiveDoubling => "two_level_recursive_doubling",
            Algorithm::TwoLevelDirect => "two_level_direct",
            Algorithm::TwoLevelHalvingDoubling => "two_level_halving_doubling",
            Algorithm::TwoLevelDoubleTree => "two_level_double_tree",
            Algorithm::TwoLevelBinomial => "two_level_binomial",
            Algorithm::TwoLevelPipelined => "two_level_pipelined",
            Algorithm::Fused => "fused",
            Algorithm::Exchange => "exchange",
            Algorithm::Boards => "boards",
            Algorithm::Staged => "staged",
        }
    }

    /// The algorithm whose plan it carries out: `Boards` and `Staged` are ways of `Fused`, which takes them by itself where they suit.
    pub const fn planned(self) -> Algorithm {
        match self {
            Algorithm::Boards | Algorithm::Staged => Algorithm::Fused,
            other => other,
        }
    }

    /// How a two-level algorithm goes between hosts, or between memory nodes of one host.
    pub const fn between_hosts(self) -> Option<Algorithm> {
        match self {
            Algorithm::TwoLevelRing => Some(Algorithm::Ring),
            Algorithm::TwoLevelRecursiveDoubling => Some(Algorithm::RecursiveDoubling),
            Algorithm::TwoLevelDirect => Some(Algorithm::Direct),
            Algorithm::TwoLevelHalvingDoubling => Some(Algorithm::HalvingDoubling),
            Algorithm::TwoLevelDoubleTree => Some(Algorithm::DoubleTree),
            Algorithm::TwoLevelBinomial => Some(Algorithm::Binomial),
            Algorithm::TwoLevelPipelined => Some(Algorithm::Pipelined),
            _ => None,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The algorithm with that name: `ring`, `two_level_ring`.
impl std::str::FromStr for Algorithm {
    type Err = String;
    fn from_str(s: &str) -> Result<Algorithm, String> {
        let found = Self::ALL.iter().find(|a| a.name() == s);
        found.copied().ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|a| a.name()).collect();
            format!(
                "no algorithm is called '{s}'; there are {}",
                known.join(", ")
            )
        })
    }
}

/// An ordered stream of operations in a group. Operations of different lanes may be issued in different orders on the ranks and from different threads; two threads on one lane are a race of the caller's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Lane(pub u32);

/// A contribution's weight in a mean: 32.32 fixed point, so that sums of sample counts are exact and the same everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Weight(u64);

impl Weight {
    /// Contributes nothing; its data is never read.
    pub const ZERO: Weight = Weight(0);
    /// The default.
    pub const ONE: Weight = Weight(1 << 32);

    /// That many samples.
    pub const fn samples(n: u32) -> Weight {
        Weight((n as u64) << 32)
    }

    /// Nearest 32.32 fixed point; `None` where `w` is negative, not finite, or 2³² or more.
    pub fn from_f64(w: f64) -> Option<Weight> {
        (0.0..4_294_967_296.0)
            .contains(&w)
            .then(|| Weight((w * 4_294_967_296.0).round() as u64))
    }

    /// As a float, rounded once.
    pub fn to_f64(self) -> f64 {
        self.0 as f64 / 4_294_967_296.0
    }

    /// The fixed-point bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// From the fixed-point bits.
    pub const fn from_bits(bits: u64) -> Weight {
        Weight(bits)
    }
}

impl Default for Weight {
    fn default() -> Self {
        Weight::ONE
    }
}

/// How many elements each rank has a part of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Counts {
    /// As many on every rank; the buffers' lengths say how many.
    #[default]
    Equal,
    /// These, in rank order (of neighbours: in the order of the round).
    Known(Arc<[u64]>),
    /// The ranks tell each other first, in an operation of its own; the engine makes the output. Asynchronous operations only ([`Communicator::start`], with an empty `io` of the right type).
    Discover,
}

impl Counts {
    /// These counts.
    pub fn known(counts: &[u64]) -> Counts {
        Counts::Known(counts.into())
    }

    /// What a descriptor says of them; 0 where they are equal or unknown.
    pub fn hash(&self) -> u64 {
        match self {
            Counts::Known(counts) => {
                let bytes: Vec<u8> = counts.iter().flat_map(|n| n.to_le_bytes()).collect();
                stable_hash(&[b"counts", &bytes]).max(1)
            }
            _ => 0,
        }
    }
}

/// What is asked for. P is the number of members.
///
/// `io` is what is written; out of place `input` is what is read, and never modified. In place, `io` is both.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Kind {
    /// io: n elements; input: as long.
    AllReduce(Reduce),
    /// io: n elements on the root (elsewhere, out of place, empty or n, and never written); input: n elements.
    Reduce {
        /// How contributions are combined.
        reduce: Reduce,
        /// Number in the group.
        root: Rank,
    },
    /// io: n elements; the root's are everybody's afterwards. Out of place the root's input is copied; others give an input of n elements or none.
    Broadcast {
        /// Number in the group.
        root: Rank,
    },
    /// Out of place: input: this rank's part; io on the root: all parts in rank order, elsewhere empty.
    /// In place: io on the root: all parts, its own already there; elsewhere: the part.
    Gather {
        /// Number in the group.
        root: Rank,
        /// How long the parts are.
        counts: Counts,
    },
    /// Out of place: input on the root: all parts in rank order, elsewhere empty; io: this rank's part.
    /// In place: io on the root: all parts, its own stays where it is; elsewhere: the part.
    Scatter {
        /// Number in the group.
        root: Rank,
        /// How long the parts are; the same list on every rank.
        counts: Counts,
    },
    /// io: all parts in rank order; input: this rank's part, which in place is already there.
    AllGather(Counts),
    /// Out of place: input: all parts, n elements; io: this rank's part of the result. In place: io: n elements, of which this rank's part is the result afterwards; the others are as before.
    ReduceScatter {
        /// How contributions are combined.
        reduce: Reduce,
        /// How long the parts are.
        counts: Counts,
    },
    /// input: one part for each rank, in rank order; io: one part from each, in rank order. In place only with equal counts.
    AllToAll {
        /// How many elements this rank sends to each.
        send: Counts,
        /// How many elements come from each.
        recv: Counts,
    },
    /// io: empty.
    Barrier,
    /// io: n float elements: the average with this round's neighbours; input: as long.
    Mix {
        /// Who and with what weight.
        round: Round,
        /// The round's number: identity on the lane, larger than any earlier one there.
        t: u64,
    },
    /// Out of place: input: this rank's part; io: the parts of `from`, in that order.
    NeighbourGather {
        /// In-neighbours.
        from: Arc<[Rank]>,
        /// Out-neighbours.
        to: Arc<[Rank]>,
        /// How many elements come from each of `from`.
        counts: Counts,
        /// As for `Mix`.
        t: u64,
    },
    /// io: n float elements: the average of the machines' means; every rank of a machine ends with the machine's value; input: as long.
    HierarchicalMix {
        /// The members by machine: every member in exactly one, all machines equally many.
        machines: Arc<[Vec<Rank>]>,
        /// Which machines and with what weight: `Rank(m)` is machine m.
        round: Round,
        /// As for `Mix`.
        t: u64,
    },
    /// io: n elements, which are sent and not changed; out of place: input: the same, io: empty.
    Send {
        /// Number in the group; not this rank.
        to: Rank,
        /// Messages of one tag from one rank to another arrive in the order sent.
        tag: u32,
    },
    /// io: n elements, which are received.
    Recv {
        /// Number in the group; not this rank.
        from: Rank,
        /// As the sender's.
        tag: u32,
    },
}

impl Kind {
    /// Its kind in a descriptor.
    pub fn op_kind(&self) -> OpKind {
        match self {
            Kind::AllReduce(_) => OpKind::AllReduce,
            Kind::Reduce { .. } => OpKind::Reduce,
            Kind::Broadcast { .. } => OpKind::Broadcast,
            Kind::Gather { .. } => OpKind::Gather,
            Kind::Scatter { .. } => OpKind::Scatter,
            Kind::AllGather(_) => OpKind::AllGather,
            Kind::ReduceScatter { .. } => OpKind::ReduceScatter,
            Kind::AllToAll { .. } => OpKind::AllToAll,
            Kind::Barrier => OpKind::Barrier,
            Kind::Mix { .. } => OpKind::Mix,
            Kind::NeighbourGather { .. } => OpKind::NeighbourGather,
            Kind::HierarchicalMix { .. } => OpKind::HierarchicalMix,
            Kind::Send { .. } | Kind::Recv { .. } => OpKind::Message,
        }
    }
}

/// What is promised about the bits of a result. Whatever is chosen: all ranks hold equal bits, and a run repeats bit for bit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Mode {
    /// Whatever plan is fastest.
    #[default]
    Default = 0,
    /// Contributions are folded in rank order in a wider type and rounded once, whatever the slices, the buckets and the algorithm; algorithms that cannot are refused.
    Ordered = 1,
    /// The correctly rounded sum or mean, in whatever order contributions come: exact accumulation in a fixed-point number that covers the type's range (Kulisch and Miranker 1986; Neal, arXiv 1505.05571).
    Exact = 2,
}

impl Mode {
    /// The mode with number `n`, as sent in a descriptor.
    pub fn from_number(n: u8) -> Option<Mode> {
        [Mode::Default, Mode::Ordered, Mode::Exact]
            .get(n as usize)
            .copied()
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Default => "default",
            Mode::Ordered => "ordered",
            Mode::Exact => "exact",
        })
    }
}

/// What a mean is divided by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Divisor {
    /// Σw over the ranks that contribute: each has weight 1 unless it says otherwise ([`Op::weighing`]).
    #[default]
    Contributors = 0,
    /// The number of ranks that the group had when it was first made ([`GroupInfo::initial_size`]), whoever contributes: Σwᵢxᵢ / P₀.
    InitialWorld = 1,
}

impl Divisor {
    /// The divisor with number `n`, as sent in a descriptor.
    pub fn from_number(n: u8) -> Option<Divisor> {
        [Divisor::Contributors, Divisor::InitialWorld]
            .get(n as usize)
            .copied()
    }
}

impl fmt::Display for Divisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Divisor::Contributors => "contributors",
            Divisor::InitialWorld => "initial world",
        })
    }
}

/// What a neighbour operation does where a neighbour is dead, has left, or has not come by the deadline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OnMissing {
    /// It fails, and names who.
    #[default]
    Fail,
    /// It completes without them, and [`Done::missing`] names them. For averages and gathers with known counts.
    ///
    /// An average takes a neighbour's values whole or not at all. In delta form the missing term is dropped; in sum form the receiver's weight of the missing value is added to the own value's (what the sender would have multiplied it with is not known, and counts as 1). In a gather the missing part is zeros.
    /// A neighbour that only comes after the deadline is told that nobody waits for it; what becomes of its operation, its own policy says.
    Tolerate,
}

/// An operation, with everything that may be said about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// What.
    pub kind: Kind,
    /// In which stream.
    pub lane: Lane,
    /// Larger goes first; the same on every rank.
    pub priority: i32,
    /// Deadline; `None`: the group's.
    pub timeout: Option<Duration>,
    /// This rank's weight in a mean; ignored elsewhere.
    pub weight: Weight,
    /// What a mean is divided by; the same on every rank.
    pub divisor: Divisor,
    /// What is on the wire; the same on every rank.
    pub codec: Codec,
    /// Whether the codec is used even where the cost model says that it costs more time than it saves; the same on every rank.
    pub codec_forced: bool,
    /// Error feedback: what the codec loses of this tensor is kept and added next time; the same on every rank. Where nothing is coded it changes nothing.
    pub feedback: Option<u64>,
    /// What is promised about the bits; the same on every rank.
    pub mode: Mode,
    /// Which plan; `None`: the engine chooses, the same on every rank.
    pub algorithm: Option<Algorithm>,
    /// For neighbour operations.
    pub on_missing: OnMissing,
    /// The function of [`Reduce::User`].
    pub user: Option<UserReduction>,
}

impl Op {
    /// On the default lane, with weight 1, plain, chosen by the engine.
    pub fn new(kind: Kind) -> Self {
        Op {
            kind,
            lane: Lane::default(),
            priority: 0,
            timeout: None,
            weight: Weight::ONE,
            divisor: Divisor::default(),
            codec: Codec::None,
            codec_forced: false,
            feedback: None,
            mode: Mode::default(),
            algorithm: None,
            on_missing: OnMissing::default(),
            user: None,
        }
    }

    /// On another lane.
    pub fn on(mut self, lane: Lane) -> Self {
        self.lane = lane;
        self
    }

    /// With another priority: larger goes first.
    pub fn urgent(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// With another deadline.
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// With another weight.
    pub fn weighing(mut self, weight: Weight) -> Self {
        self.weight = weight;
        self
    }

    /// A mean divided by something else.
    pub fn divided_by(mut self, divisor: Divisor) -> Self {
        self.divisor = divisor;
        self
    }

    /// With a codec on the wire, where the cost model finds that it saves time.
    pub fn coded(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    /// With a codec on the wire, whatever it costs.
    pub fn coded_always(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self.codec_forced = true;
        self
    }

    /// With error feedback for the tensor of this number.
    pub fn with_feedback(mut self, tensor: u64) -> Self {
        self.feedback = Some(tensor);
        self
    }

    /// With another promise about the bits.
    pub fn in_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// By a plan of the caller's choice.
    pub fn by(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// With another answer to a missing neighbour.
    pub fn on_missing(mut self, what: OnMissing) -> Self {
        self.on_missing = what;
        self
    }

    /// With the function of a [`Reduce::User`].
    pub fn with_user(mut self, user: UserReduction) -> Self {
        self.user = Some(user);
        self
    }
}

/// What a finished operation has to say.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Done {
    /// Σw of a mean, as all ranks know it: 0 means that nobody contributed and the buffer is unchanged. Of other operations nothing is meant.
    pub weight: Weight,
    /// Payload bytes that this rank sent for it.
    pub bytes_sent: u64,
    /// When it was started, on the engine's clock.
    pub started: Duration,
    /// When its last step ended, on the engine's clock.
    pub finished: Duration,
    /// Neighbours that a tolerant operation did without, as numbers in the group, ascending: they have not given, or not taken, all that they were to.
    pub missing: Vec<Rank>,
    /// The counts that were discovered: of the parts in `io`, in their order.
    pub counts: Vec<u64>,
    /// What was on the wire: plain where the cost model declined the codec.
    pub codec: Codec,
}

/// An asynchronous operation's end: the memory and the outcome.
#[derive(Debug)]
pub struct Finished {
    /// The memory; `None` only where the backend says that it cannot give it back.
    pub io: Option<Region>,
    /// The input of an operation out of place; as for `io`.
    pub input: Option<Region>,
    /// The outcome.
    pub result: Result<Done, Error>,
}

/// An operation in flight. Dropping it detaches: the operation goes on, its memory is freed at the end, its error is reported by the lane's next operation.
pub trait Pending: Send {
    /// `Ready` once; after that the value must not be used again. Registers the waker. Never blocks; moves things along.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Finished>;
    /// Helps progress on this thread until done, at the latest at the deadline.
    fn wait(self: Box<Self>) -> Finished;
    /// The memory, as soon as all that is left to do is a device's: it may be used by work that the backend puts behind [`Region::ready`], and an error that comes later is reported by the lane's next operation. On host memory this is `wait`.
    fn enqueued(self: Box<Self>) -> Finished {
        self.wait()
    }
    /// Whether it is over. Moves nothing.
    fn is_done(&self) -> bool;
    /// A handle that ends it from any thread.
    fn canceller(&self) -> Arc<dyn Cancel>;
}

/// Ends an operation early, from any thread.
pub trait Cancel: Send + Sync {
    /// The operation ends with [`Cause::Cancelled`](crate::Cause::Cancelled), unless it is over, and its memory is handed back once nobody can reach it. A collective ends so on every member; a neighbour operation for those who wait for this rank. Idempotent.
    fn cancel(&self, reason: &str);
}

/// An operation that was set up once and is started many times, with no allocation after the first few.
///
/// Every start takes the lane's next number, as if the operation were called anew.
pub trait Persistent: Send {
    /// Starts it. The memory is out of reach until `wait` or `poll` has said that it is over.
    ///
    /// For neighbour operations `t` is the round; ignored elsewhere.
    ///
    /// # Errors
    /// It is in flight already, or cannot be started: then nothing has happened.
    fn start(&mut self, t: u64) -> Result<(), Error>;
    /// Waits for the run that was started last.
    ///
    /// # Errors
    /// Any cause; the operation may be started again where the group still works.
    fn wait(&mut self) -> Result<Done, Error>;
    /// As a future's `poll`, for the run that was started last.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Done, Error>>;
    /// Whether a run is in flight.
    fn is_running(&self) -> bool;
    /// The memory that is written; `None` while a run is in flight.
    fn io(&mut self) -> Option<&mut Region>;
    /// The input of an operation out of place; `None` also while a run is in flight.
    fn input(&mut self) -> Option<&mut Region>;
    /// Waits for a run in flight, and gives the memory back.
    fn into_memory(self: Box<Self>) -> Finished;
}

/// Who takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// Identity, the same on all members.
    pub id: u64,
    /// This rank's number in the group.
    pub rank: Rank,
    /// The members' numbers in the job, by number in the group.
    pub world_ranks: Vec<Rank>,
    /// The membership record.
    pub epoch: u32,
    /// How many members the group had when it was first made, before any rebuilding.
    pub initial_size: u32,
    /// How many groups with the same parent, members and key this rank has made before.
    pub incarnation: u32,
}

/// Collectives over a group.
///
/// Safe to implement: borrowed memory ends with the call, asynchronous memory is owned.
/// All methods may be called from any thread. Operations of one lane are issued in the same order on every member.
/// After `PeerLost` every later collective, and every neighbour round with that rank, fails at once; after `Aborted` everything of the group does; after `Mismatch` or `Timeout` later operations work.
pub trait Communicator: Send + Sync {
    /// Who takes part.
    fn info(&self) -> &GroupInfo;
    /// Runs an operation on borrowed memory, wherever the backend can; returns when the memory is the caller's again. Device memory is ready when it comes here, and when the call returns.
    ///
    /// # Errors
    /// Any cause; the text says whether the buffer was touched.
    fn run(&self, op: &Op, io: Borrowed<'_>) -> Result<Done, Error>;
    /// Starts an operation on owned memory. Never blocks: a mistake comes out of the handle.
    fn start(&self, op: Op, io: Owned) -> Box<dyn Pending>;
    /// Sets an operation up for many starts.
    ///
    /// # Errors
    /// The caller's mistakes; the memory comes back.
    fn persistent(&self, op: Op, io: Owned) -> Result<Box<dyn Persistent>, Box<Finished>>;
    /// The members' own group. Made locally, in any order, by its members alone; equal members and key, and as many groups made of them before, give the same group.
    ///
    /// # Errors
    /// This rank is not a member, a number is out of range or twice.
    fn subgroup(&self, members: &[Rank], key: &str) -> Result<Arc<dyn Communicator>, Error>;
    /// A group of the members that are still there, agreed on by all of them, with a new epoch: call it on every survivor after a failure. It waits for them, at most `limit`, and names who has not come.
    ///
    /// It ends this group: operations in flight, and later ones, end with [`Cause::Aborted`](crate::Cause::Aborted), whether or not the rebuilding succeeds.
    /// The lowest survivor proposes the record over the control plane. Survives the loss of any rank, also while it runs.
    ///
    /// # Errors
    /// The survivors are no majority of the members (of exactly half, the half with the lowest member goes on); not all of them came in time.
    fn rebuild(&self, limit: Duration) -> Result<Arc<dyn Communicator>, Error>;
    /// Ends every operation of the group on every member. Idempotent; callable from any thread.
    fn abort(&self, reason: &str);
    /// What has gone over this rank's links so far, all groups together.
    fn stats(&self) -> LinkStats;
    /// The smallest number that a round on this lane may still have: 1 more than the largest that this rank has started, or 0.
    fn next_round(&self, lane: Lane) -> u64;
    /// The clock's time, on which [`Done`] is counted.
    fn now(&self) -> Duration;
    /// What the operation would be called on every member, without starting it: for explanations and tests.
    ///
    /// # Errors
    /// As `run`, for the caller's mistakes.
    fn describe(&self, op: &Op, dtype: crate::DType, len: usize) -> Result<Descriptor, Error>;
    /// Which plan would carry the operation out on `len` elements per rank, and why: one paragraph for a person.
    ///
    /// # Errors
    /// As `run`, for the caller's mistakes.
    fn explain(&self, op: &Op, dtype: crate::DType, len: usize) -> Result<String, Error>;
    /// How long the cost model says that the operation takes on `len` elements per rank; `None` where the backend has no model.
    ///
    /// # Errors
    /// As `run`, for the caller's mistakes.
    fn predict(&self, op: &Op, dtype: crate::DType, len: usize) -> Result<Option<Duration>, Error> {
        let _ = (op, dtype, len);
        Ok(None)
    }
    /// What error feedback holds back for a tensor on this rank, in the order of the elements; `None` where there is nothing, or while an operation works with it. For saving with the parameters.
    ///
    /// Kept by group; a rebuilt group goes on with its predecessor's. A tensor of another length begins anew.
    fn feedback(&self, tensor: u64) -> Option<Vec<f32>>;
    /// Puts saved feedback back, or drops it with an empty vector; not while an operation works with it.
    fn set_feedback(&self, tensor: u64, residual: Vec<f32>);
    /// Room that this rank's peers on the same host have mapped; `None` where there is no such memory, or none left.
    fn block(&self, bytes: usize) -> Option<Box<dyn crate::Block>> {
        let _ = bytes;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_fixed_point() {
        assert_eq!(Weight::samples(3).to_f64(), 3.0);
        assert_eq!(Weight::from_f64(0.5), Some(Weight::from_bits(1 << 31)));
        assert_eq!(Weight::from_f64(-1.0), None);
        assert_eq!(Weight::from_f64(f64::NAN), None);
        assert_eq!(Weight::from_f64(4_294_967_296.0), None);
    }

    #[test]
    fn algorithm_numbers_round_trip() {
        for a in Algorithm::ALL {
            assert_eq!(Algorithm::from_number(a as u8), Some(a));
            assert_eq!(a.name().parse(), Ok(a));
        }
    }
}
