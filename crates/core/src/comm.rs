//! The seam of communicators: collectives over a group, blocking and asynchronous, on erased memory.

use crate::{Codec, Descriptor, Error, LinkStats, OpKind, Rank, Reduce, Region, Round, ViewMut};
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
}

impl Algorithm {
    /// All of them, in the order of their numbers.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::Ring,
        Algorithm::RecursiveDoubling,
        Algorithm::Direct,
        Algorithm::Binomial,
        Algorithm::Dissemination,
        Algorithm::Neighbour,
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
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Kind {
    /// io: n elements, in place.
    AllReduce(Reduce),
    /// io: n elements; the root's are everybody's afterwards.
    Broadcast {
        /// Number in the group.
        root: Rank,
    },
    /// io: P·n elements; this rank's contribution at `rank·n..`, everybody's in rank order afterwards.
    AllGather,
    /// io: empty.
    Barrier,
    /// io: n float elements, in place: the average with this round's neighbours.
    Mix {
        /// Who and with what weight.
        round: Round,
        /// The round's number: identity on the lane, larger than any earlier one there.
        t: u64,
    },
}

impl Kind {
    /// Its kind in a descriptor.
    pub fn op_kind(&self) -> OpKind {
        match self {
            Kind::AllReduce(_) => OpKind::AllReduce,
            Kind::Broadcast { .. } => OpKind::Broadcast,
            Kind::AllGather => OpKind::AllGather,
            Kind::Barrier => OpKind::Barrier,
            Kind::Mix { .. } => OpKind::Mix,
        }
    }
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
    /// What is on the wire; the same on every rank.
    pub codec: Codec,
    /// Which plan; `None`: the engine chooses, the same on every rank.
    pub algorithm: Option<Algorithm>,
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
            codec: Codec::None,
            algorithm: None,
        }
    }

    /// On another lane.
    pub fn on(mut self, lane: Lane) -> Self {
        self.lane = lane;
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

    /// With a codec on the wire.
    pub fn coded(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    /// By a plan of the caller's choice.
    pub fn by(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }
}

/// What a finished operation has to say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Done {
    /// Σw of a mean, as all ranks know it; 0 means that nobody contributed and the buffer is unchanged.
    pub weight: Weight,
    /// Payload bytes that this rank sent for it.
    pub bytes_sent: u64,
    /// When it was started, on the engine's clock.
    pub started: Duration,
    /// When its last step ended, on the engine's clock.
    pub finished: Duration,
}

/// An asynchronous operation's end: the memory and the outcome.
#[derive(Debug)]
pub struct Finished {
    /// The memory; `None` only where the backend says that it cannot give it back.
    pub io: Option<Region>,
    /// The outcome.
    pub result: Result<Done, Error>,
}

/// An operation in flight. Dropping it detaches: the operation goes on, its memory is freed at the end, its error is reported by the lane's next operation.
pub trait Pending: Send {
    /// `Ready` once; after that the value must not be used again. Registers the waker. Never blocks; moves things along.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Finished>;
    /// Helps progress on this thread until done, at the latest at the deadline.
    fn wait(self: Box<Self>) -> Finished;
    /// Whether it is over. Moves nothing.
    fn is_done(&self) -> bool;
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
}

/// Collectives over a group.
///
/// Safe to implement: borrowed memory ends with the call, asynchronous memory is owned.
/// All methods may be called from any thread. Operations of one lane are issued in the same order on every member.
/// After `PeerLost` every later collective, and every neighbour round with that rank, fails at once; after `Aborted` everything of the group does; after `Mismatch` or `Timeout` later operations work.
pub trait Communicator: Send + Sync {
    /// Who takes part.
    fn info(&self) -> &GroupInfo;
    /// Runs an operation on borrowed memory; returns when the memory is the caller's again.
    ///
    /// # Errors
    /// Any cause; the text says whether the buffer was touched.
    fn run(&self, op: &Op, io: ViewMut<'_>) -> Result<Done, Error>;
    /// Starts an operation on owned memory. Never blocks: a mistake comes out of the handle.
    fn start(&self, op: Op, io: Region) -> Box<dyn Pending>;
    /// The members' own group. Made locally, in any order, by its members alone; equal members and key give the same group.
    ///
    /// # Errors
    /// This rank is not a member, a number is out of range or twice.
    fn subgroup(&self, members: &[Rank], key: &str) -> Result<Arc<dyn Communicator>, Error>;
    /// Ends every operation of the group on every member. Idempotent; callable from any thread.
    fn abort(&self, reason: &str);
    /// What has gone over this rank's links so far, all groups together.
    fn stats(&self) -> LinkStats;
    /// The clock's time, on which [`Done`] is counted.
    fn now(&self) -> Duration;
    /// What the operation would be called on every member, without starting it: for explanations and tests.
    ///
    /// # Errors
    /// As `run`, for the caller's mistakes.
    fn describe(&self, op: &Op, dtype: crate::DType, len: usize) -> Result<Descriptor, Error>;
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
        }
    }
}
