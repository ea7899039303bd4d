//! What can be wrong with plans.

use crate::plan::{Slot, Span};
use gaggle_core::{Rank, name_ranks};
use std::fmt;

/// A step of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Where {
    /// Whose.
    pub rank: Rank,
    /// Its index.
    pub step: u32,
    /// What it does, in words.
    pub action: String,
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} step {} ({})", self.rank, self.step, self.action)
    }
}

/// Why plans do not keep what the operation promises. A planner's mistake; the text names ranks and steps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A plan is not the right rank's part of the right operation.
    #[error("{rank}: {what}")]
    Misfit {
        /// Whose plan.
        rank: Rank,
        /// What does not fit.
        what: String,
    },
    /// A span ends beyond its buffer.
    #[error("{at}: {span} lies outside the buffer of {len} elements")]
    OutOfBounds {
        /// The step.
        at: Where,
        /// What it touches.
        span: Span,
        /// How much there is.
        len: u64,
    },
    /// A dependency on the step itself or a later one.
    #[error("{at}: waits for step {after}, which is not earlier")]
    BadDependency {
        /// The step.
        at: Where,
        /// What it waits for.
        after: u32,
    },
    /// A peer that is not in the group, or the rank itself.
    #[error("{at}: {peer} is no peer")]
    BadPeer {
        /// The step.
        at: Where,
        /// Whom it names.
        peer: Rank,
    },
    /// Operands of different lengths, or overlapping where they must not.
    #[error("{at}: {what}")]
    BadOperand {
        /// The step.
        at: Where,
        /// What is wrong.
        what: &'static str,
    },
    /// A weight slot that does not exist, is written twice, or is read without waiting for its writer.
    #[error("{at}: weight slot {slot} {what}")]
    BadSlot {
        /// The step.
        at: Where,
        /// Which slot.
        slot: Slot,
        /// What is wrong.
        what: &'static str,
    },
    /// Two steps of a rank touch the same elements, at least one writes, and neither waits for the other.
    #[error("{first} and {second} both touch {span} and neither waits for the other")]
    Race {
        /// The one with the smaller index.
        first: Where,
        /// The other one.
        second: Where,
        /// What both touch.
        span: Span,
    },
    /// A rank arrives at a phase a second time.
    #[error("{first} and {second} both arrive at phase {phase}")]
    ArrivesTwice {
        /// One of them.
        first: Where,
        /// The other one.
        second: Where,
        /// Which phase.
        phase: u32,
    },
    /// Somebody waits for a phase at which not everybody arrives: for ever.
    #[error("{at}: {} never arrive at phase {phase}", name_ranks(missing))]
    NeverArrives {
        /// A step that waits.
        at: Where,
        /// For which phase.
        phase: u32,
        /// Who has no step that arrives there.
        missing: Vec<Rank>,
    },
    /// Two ranks touch the same elements of memory that both have mapped, at least one writes, and nothing orders the two.
    #[error("{first} and {second} both touch {owner}'s {span} and nothing orders them")]
    RemoteRace {
        /// One of them.
        first: Where,
        /// The other one.
        second: Where,
        /// Whose memory.
        owner: Rank,
        /// What both touch.
        span: Span,
    },
    /// Another rank touches memory before its owner has begun, or when its owner may have ended.
    #[error("{at} touches {owner}'s {span} {when}")]
    NotLent {
        /// The step.
        at: Where,
        /// Whose memory.
        owner: Rank,
        /// What it touches.
        span: Span,
        /// Before or after.
        when: &'static str,
    },
    /// A lossy message, or a copy that must equal it, that error feedback does not make up for.
    #[error("{at}: {what}")]
    Feedback {
        /// The step.
        at: Where,
        /// What is wrong.
        what: &'static str,
    },
    /// Part of a tensor's residual was left out.
    #[error("{rank} ends with element {elem} of its residual not added to anything")]
    ResidualLeft {
        /// Whose.
        rank: Rank,
        /// Which element of the residual.
        elem: u64,
    },
    /// Two messages of one link with one tag.
    #[error("{first} and {second} use tag {tag} on one link")]
    TagTwice {
        /// One of them.
        first: Where,
        /// The other one.
        second: Where,
        /// The tag.
        tag: u32,
    },
    /// A message that nobody receives.
    #[error("{send}: {to} has no receive for it")]
    NoReceive {
        /// The step.
        send: Where,
        /// Who should.
        to: Rank,
    },
    /// A message that nobody sends.
    #[error("{recv}: {from} has no send for it")]
    NoSend {
        /// The step.
        recv: Where,
        /// Who should.
        from: Rank,
    },
    /// Both sides of a message name different lengths.
    #[error("{send} sends {sent} elements where {recv} expects {expected}")]
    Length {
        /// The sender's step.
        send: Where,
        /// The receiver's step.
        recv: Where,
        /// The sender's length.
        sent: u64,
        /// The receiver's length.
        expected: u64,
    },
    /// Both sides of a message differ in how it is written.
    #[error("{send} and {recv} differ in {what}")]
    Disagree {
        /// The sender's step.
        send: Where,
        /// The receiver's step.
        recv: Where,
        /// In what.
        what: &'static str,
    },
    /// Steps that wait for each other.
    #[error("deadlock of {}: {}", name_ranks(&ranks(cycle)), chain(cycle))]
    Deadlock {
        /// Each waits for the next, the last for the first.
        cycle: Vec<Where>,
    },
    /// Operations in flight together of which some do not end.
    #[error("nothing can go on: {}", waits(waiting))]
    Stalled {
        /// For each operation and rank the first step that has not ended.
        waiting: Vec<Where>,
    },
    /// Elements are read that nothing has been written to.
    #[error("{at}: reads element {elem} of a buffer that holds nothing yet")]
    Undefined {
        /// The step.
        at: Where,
        /// Which element of what it reads.
        elem: u64,
    },
    /// Values that belong to different elements meet.
    #[error("{at}: combines element {one} with element {other}")]
    Misaligned {
        /// The step.
        at: Where,
        /// One of them.
        one: u64,
        /// The other one.
        other: u64,
    },
    /// A contribution or a weight is counted twice.
    #[error(
        "{at}: the contribution of {} to element {elem} is counted twice",
        name_ranks(contributors)
    )]
    Twice {
        /// The step.
        at: Where,
        /// Which element.
        elem: u64,
        /// Whose.
        contributors: Vec<Rank>,
    },
    /// A value meets a weight that is not its own, or is weighed or divided at the wrong moment.
    #[error("{at}: {what}")]
    Weight {
        /// The step.
        at: Where,
        /// What is wrong.
        what: &'static str,
    },
    /// A step that changes nothing.
    #[error("{at}: changes nothing")]
    Idle {
        /// The step.
        at: Where,
    },
    /// A contribution is missing from a result.
    #[error(
        "{rank} ends with element {elem} without the contribution of {}; it was last written by {}",
        name_ranks(missing),
        writer(last)
    )]
    Missing {
        /// Who ends with it.
        rank: Rank,
        /// Which element of the caller's buffer.
        elem: u64,
        /// Whose contribution.
        missing: Vec<Rank>,
        /// The step that wrote it, if any.
        last: Option<Where>,
    },
    /// A result is not what is promised.
    #[error(
        "{rank} ends with element {elem} {what}; it was last written by {}",
        writer(last)
    )]
    Wrong {
        /// Who ends with it.
        rank: Rank,
        /// Which element of the caller's buffer.
        elem: u64,
        /// What is wrong with it.
        what: &'static str,
        /// The step that wrote it, if any.
        last: Option<Where>,
    },
    /// Two ranks compute a result that should be one value in different ways.
    #[error("{} compute element {elem} in different ways: {}, {}", name_ranks(&[*one, *other]), writer(last_one), writer(last_other))]
    Unequal {
        /// One rank.
        one: Rank,
        /// The other one.
        other: Rank,
        /// Which element of the caller's buffer.
        elem: u64,
        /// The step that wrote the one's, if any.
        last_one: Option<Where>,
        /// The step that wrote the other's, if any.
        last_other: Option<Where>,
    },
    /// Σw at the end does not count every rank's weight.
    #[error("{rank} ends with a total weight that lacks {}", name_ranks(missing))]
    Total {
        /// Whose.
        rank: Rank,
        /// Whose weights.
        missing: Vec<Rank>,
    },
    /// A rank may leave a barrier before another has come.
    #[error(
        "{rank} can end all its {n_steps} steps before {} have begun",
        name_ranks(unheard)
    )]
    Unheard {
        /// Who leaves.
        rank: Rank,
        /// How many steps it has.
        n_steps: u32,
        /// Who may not have come.
        unheard: Vec<Rank>,
    },
}

fn ranks(cycle: &[Where]) -> Vec<Rank> {
    let mut ranks: Vec<Rank> = cycle.iter().map(|w| w.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

fn waits(waiting: &[Where]) -> String {
    let words: Vec<String> = waiting.iter().map(|w| format!("{w} waits")).collect();
    words.join(", ")
}

fn chain(cycle: &[Where]) -> String {
    let mut words: Vec<String> = cycle.iter().map(Where::to_string).collect();
    words.extend(words.first().cloned());
    words.join(" waits for ")
}

fn writer(last: &Option<Where>) -> String {
    match last {
        Some(at) => at.to_string(),
        None => "the caller".into(),
    }
}
