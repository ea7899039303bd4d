//! The seams of optimizers: a pure update rule, and the mixer that a driver uses to exchange what the rule lists.

use crate::{Codec, Error, Float, MixingFacts, Rank};
use std::ops::Range;

/// With whom something is exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum With {
    /// This round's neighbours, with the topology's weights: the weighted sum comes back.
    Neighbours,
    /// All members, plain mean.
    Everyone,
    /// This round's neighbours, each by itself: one message for each out-neighbour, and one comes back from each in-neighbour, as it was sent, with the topology's weights beside them; both one after the other, in rank order.
    EachNeighbour,
    /// All members, each by itself: one message to all, and everybody's comes back as it was sent, the own one too, in rank order.
    EachMember,
}

/// A point in the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum At {
    /// Before the forward pass.
    BeforeForward,
    /// When the gradient is complete.
    AfterGradient,
    /// When the means that were due after the gradient have come: for methods that average twice in a step, the second time what the first gave.
    AfterMean,
}

impl With {
    /// Whether messages come back one by one, bit for bit, and not as one mean.
    pub fn each(self) -> bool {
        matches!(self, With::EachNeighbour | With::EachMember)
    }
}

impl At {
    /// All points, in their order.
    pub const ALL: [At; 3] = [At::BeforeForward, At::AfterGradient, At::AfterMean];
}

/// What is exchanged in a step: when the message is known, and when its mean is needed. Overlap is the driver's.
///
/// ```
/// use gaggle_core::{At, Cx, Exchange};
///
/// // Parameters and one scalar to this round's neighbours, while the gradient is computed.
/// let cx = Cx::at(7, 0.1);
/// let e = Exchange::neighbours(&cx).between(At::BeforeForward, At::AfterGradient).extra(1);
/// assert_eq!((e.slot, e.round, e.len(100)), (0, 7, 101));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Exchange {
    /// Number of the message, from 0: two that are under way at the same time have different ones.
    pub slot: usize,
    /// With whom.
    pub with: With,
    /// When it can be emitted.
    pub known: At,
    /// When it must have come.
    pub due: At,
    /// How many steps after this one it is due; 0: in this step.
    pub late: u64,
    /// Which of the topology's rounds it is.
    pub round: u64,
    /// The elements lo..hi of the whole vector that it is about; `None`: all.
    pub part: Option<(usize, usize)>,
    /// Values on the wire for each element, one element-long vector after the other.
    pub width: usize,
    /// Values on the wire behind these, whatever the number of elements: weights and counts that must travel with them.
    pub extra: usize,
    /// What is on the wire.
    pub codec: Codec,
}

impl Exchange {
    /// One value per element, in slot 0, all elements, known and due when the gradient is, plainly coded, in the step's round.
    pub fn new(with: With, cx: &Cx) -> Exchange {
        Exchange {
            slot: 0,
            with,
            known: At::AfterGradient,
            due: At::AfterGradient,
            late: 0,
            round: cx.round,
            part: None,
            width: 1,
            extra: 0,
            codec: Codec::None,
        }
    }
    /// With this round's neighbours, otherwise as [`Exchange::new`].
    pub fn neighbours(cx: &Cx) -> Exchange {
        Exchange::new(With::Neighbours, cx)
    }
    /// With all members, otherwise as [`Exchange::new`].
    pub fn everyone(cx: &Cx) -> Exchange {
        Exchange::new(With::Everyone, cx)
    }
    /// In this slot.
    #[must_use]
    pub fn slot(self, slot: usize) -> Exchange {
        Exchange { slot, ..self }
    }
    /// Known and due at these points.
    #[must_use]
    pub fn between(self, known: At, due: At) -> Exchange {
        Exchange { known, due, ..self }
    }
    /// Due this many steps later.
    #[must_use]
    pub fn late(self, late: u64) -> Exchange {
        Exchange { late, ..self }
    }
    /// In this round of the topology.
    #[must_use]
    pub fn round(self, round: u64) -> Exchange {
        Exchange { round, ..self }
    }
    /// About the elements `part` only.
    #[must_use]
    pub fn part(self, part: Range<usize>) -> Exchange {
        let part = Some((part.start, part.end));
        Exchange { part, ..self }
    }
    /// With this many values per element.
    #[must_use]
    pub fn width(self, width: usize) -> Exchange {
        Exchange { width, ..self }
    }
    /// With this many values behind the elements'.
    #[must_use]
    pub fn extra(self, extra: usize) -> Exchange {
        Exchange { extra, ..self }
    }
    /// With this codec.
    #[must_use]
    pub fn coded(self, codec: Codec) -> Exchange {
        Exchange { codec, ..self }
    }
    /// Values in the message for a span of `elems` elements.
    pub fn len(&self, elems: usize) -> usize {
        self.width * elems + self.extra
    }
    /// Whether the message for a span of `elems` elements has nothing in it.
    pub fn is_empty(&self, elems: usize) -> bool {
        self.len(elems) == 0
    }
    /// The elements of `span` that it is about: possibly none.
    pub fn within(&self, span: Range<usize>) -> Range<usize> {
        let Some((lo, hi)) = self.part else {
            return span;
        };
        let start = span.start.max(lo).min(span.end);
        start..span.end.min(hi).max(start)
    }
}

/// Where in training a step is, and its step size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cx {
    /// Steps done before this one.
    pub step: u64,
    /// γ.
    pub lr: f64,
    /// Communications before this step: the topology's round, where one per communication is used.
    pub round: u64,
    /// Whether this step communicates: false in the local steps of a communication period. Then `exchanges` is not asked.
    pub mixes: bool,
    /// Local steps since the last communication, not counting this one.
    pub since: u64,
}

impl Cx {
    /// Where every step communicates: the round is the step's number.
    pub fn at(step: u64, lr: f64) -> Cx {
        Cx {
            step,
            lr,
            round: step,
            mixes: true,
            since: 0,
        }
    }
}

/// Who a rule works for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// This rank.
    pub rank: Rank,
    /// How many ranks.
    pub world: usize,
}

/// One span (a bucket, or all) of this rank's values.
#[derive(Debug)]
pub struct Local<'a, T> {
    /// Which elements of the whole vector these are.
    pub at: Range<usize>,
    /// Parameters, `at.len()` elements.
    pub x: &'a mut [T],
    /// Gradient, `at.len()` elements; empty before it exists.
    pub g: &'a [T],
}

/// What has come back of a message: a mean, or the others' messages one after the other ([`With::each`]).
#[derive(Clone, Debug)]
pub struct MixedMean<'a, T> {
    /// The exchange's slot.
    pub slot: usize,
    /// Which elements it is about.
    pub at: Range<usize>,
    /// As many values as were emitted: `width` times the elements, then the extra ones. With [`With::EachNeighbour`] and [`With::EachMember`] that many of each.
    pub values: &'a [T],
    /// With [`With::EachNeighbour`] what [`With::Neighbours`] would put on the own value, and then on each of the messages; otherwise empty.
    pub weights: &'a [f64],
}

/// A rule and a topology that do not go together: what would happen, and what to use instead.
#[derive(Clone, Debug, thiserror::Error)]
#[error("unstable: {limit}; {instead}")]
pub struct Unstable {
    /// The limit that is exceeded.
    pub limit: String,
    /// What works.
    pub instead: String,
}

/// What is known of a rule that was not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stability {
    /// Disagreements die out.
    Stable,
    /// At the limit, to 10⁻⁹: in words. Disagreements may stay, and rounding may add to them.
    Marginal(String),
    /// This topology's spectrum is not known: in words.
    Unchecked(String),
}

/// An update rule: pure, no waiting, no network. Object-safe per element type.
///
/// Per step a driver calls, for each point in [`At`] order: `emit` for every span and every exchange known at that point, then `absorb` for every span with the means that are due there (also when none is; at [`At::AfterMean`] only in steps that list something for it).
/// Between the first `emit` and the last `absorb` of a point nothing else is called.
pub trait Rule<T: Float>: Send {
    /// The name that users type: `dmsgd`.
    fn name(&self) -> &str;
    /// Once, before the first step: `n` elements in all.
    fn init(&mut self, n: usize, place: Place);
    /// Appends what is exchanged in this step; the same on every rank.
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>);
    /// Writes the message of `slot` into `out`: as many values as the exchange says for `local.x`, with [`With::EachNeighbour`] as many for each out-neighbour. May move `local.x`.
    fn emit(&mut self, cx: &Cx, slot: usize, local: Local<'_, T>, out: &mut [T]);
    /// Updates `local.x` with the means that are due at `at`: earlier steps' first, then in the order of `exchanges`.
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]);
    /// Whether it needs the whole vector as one span: where it sorts, or takes norms.
    fn whole(&self) -> bool {
        false
    }
    /// Steps per communication to begin with; the driver may change it between steps. `None`: every step is as the rule lists it, and there are no local steps.
    fn period(&self) -> Option<u64> {
        None
    }
    /// Steps from an exchange to its next one, where the rule counts them itself and lists its exchanges in those steps only: no driver can change that. `None`: it does not count. A rule around another one passes this on.
    fn own_period(&self) -> Option<u64> {
        None
    }
    /// Whether it cuts gradients itself, so that nothing around it has to. A rule around another one passes this on.
    fn clips(&self) -> bool {
        false
    }
    /// Called between two steps when the topology has changed, and before a state is loaded: what is kept about neighbours is void.
    fn rewired(&mut self) {}
    /// Names those vectors of state whose length depends on the neighbours: a loaded one may have another. A rule around another one passes its names on.
    fn by_neighbours(&self, _name: &mut dyn FnMut(&str)) {}
    /// Called when a rule meets a topology and a step size. A rule that does not say is not checked.
    ///
    /// # Errors
    /// The pair diverges.
    fn check(&self, _facts: &MixingFacts, _lr: f64) -> Result<Stability, Unstable> {
        Ok(Stability::Unchecked(format!(
            "{} does not say when it is stable",
            self.name()
        )))
    }
    /// Shows every vector of state by name, for saving and loading.
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>));
}

/// What a driver asks of the network. The memory in flight belongs to the mixer: no lifetime crosses a step.
///
/// Per slot and step: `outbox`, `start`, `finish`, in this order.
pub trait Mixer<T: Float>: Send {
    /// This rank's number.
    fn rank(&self) -> Rank;
    /// How many ranks.
    fn world(&self) -> usize;
    /// How many messages of the exchange's length its outbox holds: with [`With::EachNeighbour`] one for each out-neighbour of its round, else one.
    fn messages(&mut self, exchange: &Exchange) -> usize;
    /// Room of `n` elements for the message (or all messages) of `slot`; its content is unspecified.
    fn outbox(&mut self, slot: usize, n: usize) -> &mut [T];
    /// Sends the outbox of the exchange's slot, to the neighbours of its round. Does not wait. `t` is the step: it names the message, and grows from one message of a slot to the next.
    ///
    /// # Errors
    /// A peer or the network; nothing is in flight for this slot.
    fn start(&mut self, exchange: &Exchange, t: u64) -> Result<(), Error>;
    /// Waits for the mean of `slot`. Valid until the next `outbox` or `start` of the slot.
    ///
    /// # Errors
    /// A peer or the network, with the culprit; the slot may be started again.
    fn finish(&mut self, slot: usize) -> Result<(), Error>;
    /// The mean of `slot`, after `finish`; with [`With::EachNeighbour`] and [`With::EachMember`] all messages, one after the other.
    fn mean(&self, slot: usize) -> &[T];
    /// The weights of `slot`, after `finish` of an exchange with [`With::EachNeighbour`]: of the own value, then of each message; otherwise empty.
    fn weights(&self, slot: usize) -> &[f64];
}
