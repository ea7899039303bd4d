//! The mixer that decentralised rules run on: a group and a topology.

use gaggle_core::{
    Algorithm, Buffer, Codec, Counts, Done, Error, Exchange, Float, Form, Group, Kind, Lane, Mixer,
    Op, Rank, Reduce, Round, Topology, With, Work, WorkInto,
};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// What a mixer's exchanges have cost so far. Times are on the group's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct MixReport {
    /// Exchanges that have come to their end.
    pub exchanges: u64,
    /// Payload bytes that this rank sent for them.
    pub bytes_sent: u64,
    /// How long at least one of them was under way.
    pub communicate: Duration,
    /// How long `finish` waited: what was not hidden.
    pub wait: Duration,
}

impl MixReport {
    /// What has been added since `earlier`.
    pub fn since(&self, earlier: &MixReport) -> MixReport {
        MixReport {
            exchanges: self.exchanges - earlier.exchanges,
            bytes_sent: self.bytes_sent - earlier.bytes_sent,
            communicate: self.communicate - earlier.communicate,
            wait: self.wait - earlier.wait,
        }
    }
}

/// Reads a mixer's counters after the mixer itself has gone into a driver.
#[derive(Clone, Debug, Default)]
pub struct MixMeter(Arc<Mutex<Counters>>);

#[derive(Debug, Default)]
struct Counters {
    report: MixReport,
    /// When something was under way lately: apart from each other, in no order.
    flights: Vec<(Duration, Duration)>,
}

/// As many flights are remembered: more than are under way at once.
const FLIGHTS: usize = 64;

impl MixMeter {
    /// All so far.
    pub fn report(&self) -> MixReport {
        self.lock().report
    }

    fn lock(&self) -> MutexGuard<'_, Counters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, done: &Done, wait: Duration) {
        let mut counters = self.lock();
        let added = cover(&mut counters.flights, done.started, done.finished);
        let r = &mut counters.report;
        r.exchanges += 1;
        r.bytes_sent += done.bytes_sent;
        r.communicate += added;
        r.wait += wait;
    }
}

/// Adds the time from `from` to `to` to `flights`; returns how much of it none of them had.
fn cover(flights: &mut Vec<(Duration, Duration)>, from: Duration, to: Duration) -> Duration {
    let mut added = to.saturating_sub(from);
    let (mut first, mut last) = (from, to);
    flights.retain(|&(a, b)| {
        if b < from || a > to {
            return true;
        }
        added = added.saturating_sub(b.min(to).saturating_sub(a.max(from)));
        (first, last) = (first.min(a), last.max(b));
        false
    });
    if flights.len() >= FLIGHTS {
        flights.remove(0);
    }
    flights.push((first, last));
    added
}

/// A slot's memory: with the mixer, or with the group.
enum Slot<T: Float> {
    Here {
        data: Buffer<T>,
        mixed: bool,
    },
    Flying(Work<Buffer<T>>),
    /// Messages one by one: what goes, and room for what comes.
    FlyingEach(WorkInto<Buffer<T>, Buffer<T>>),
}

impl<T: Float> Slot<T> {
    fn empty() -> Self {
        Slot::Here {
            data: Buffer::default(),
            mixed: false,
        }
    }
}

/// A [`Mixer`] over a group: neighbours by a topology, everyone by an all-reduce, each neighbour by an all-to-all with nothing for the others, each member by an all-gather.
///
/// Slot `s` uses lane `first + s` of the group; the caller's own operations stay off these lanes.
/// The memory of a slot goes to the group and comes back; it is allocated once, where ranks of one host have it mapped of each other if they have such memory ([`Group::buffer`]).
/// With a lossy codec a mean over everyone uses the direct plan, which rounds once.
///
/// Cost of an exchange with neighbours: one round, S bytes to each out-neighbour; with everyone: that of a mean all-reduce.
pub struct NeighbourMixer<T: Float> {
    group: Group,
    topology: Box<dyn Topology>,
    first: Lane,
    timeout: Option<Duration>,
    round: Round,
    /// By slot, the number of its next round with neighbours.
    numbers: Vec<Option<u64>>,
    slots: Vec<Slot<T>>,
    /// By slot, what would be put on the own value and on each neighbour's.
    weights: Vec<Vec<f64>>,
    meter: MixMeter,
}

impl<T: Float> NeighbourMixer<T> {
    /// The first lane of [`new`](Self::new).
    pub const FIRST_LANE: Lane = Lane(500);

    /// A mixer on the lanes from [`FIRST_LANE`](Self::FIRST_LANE) on.
    ///
    /// # Errors
    /// The topology is made for another number of ranks.
    pub fn new(group: Group, topology: Box<dyn Topology>) -> Result<Self, Error> {
        Self::on_lanes(group, topology, Self::FIRST_LANE)
    }

    /// A mixer on the lanes from `first` on: for several mixers in one group.
    ///
    /// # Errors
    /// The topology is made for another number of ranks.
    pub fn on_lanes(group: Group, topology: Box<dyn Topology>, first: Lane) -> Result<Self, Error> {
        if topology.world() != group.size() {
            return Err(Error::invalid(
                "mixer",
                format!(
                    "topology {} is made for {} ranks, the group has {}",
                    topology.name(),
                    topology.world(),
                    group.size()
                ),
            ));
        }
        Ok(NeighbourMixer {
            group,
            topology,
            first,
            timeout: None,
            round: Round::default(),
            numbers: Vec::new(),
            slots: Vec::new(),
            weights: Vec::new(),
            meter: MixMeter::default(),
        })
    }

    /// With another deadline per exchange than the group's.
    #[must_use]
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// A handle on the counters that stays with the caller.
    pub fn meter(&self) -> MixMeter {
        self.meter.clone()
    }

    /// Both ends of an exchange with each neighbour, in rank order.
    fn ends(&mut self, exchange: &Exchange) -> Ends {
        let me = self.group.rank();
        self.topology.round(me, exchange.round, &mut self.round);
        let sorted = |list: &[(Rank, f64)]| {
            let mut ranks: Vec<Rank> = list.iter().map(|e| e.0).collect();
            ranks.sort_unstable();
            ranks
        };
        Ends {
            from: sorted(&self.round.from),
            to: sorted(&self.round.to),
        }
    }

    /// What this round puts on the own value, and on each in-neighbour's in rank order: the receiver's weight times the sender's.
    fn weigh(&mut self, exchange: &Exchange) {
        let me = self.group.rank();
        let mut weights = std::mem::take(&mut self.weights[exchange.slot]);
        self.topology.round(me, exchange.round, &mut self.round);
        let (form, keep) = (self.round.arithmetic(), self.round.keep);
        let mut from = std::mem::take(&mut self.round.from);
        for (sender, weight) in &mut from {
            self.topology
                .round(*sender, exchange.round, &mut self.round);
            let share = self.round.to.iter().find(|e| e.0 == me);
            *weight *= share.map_or(0.0, |e| e.1);
        }
        weights.clear();
        // In delta form what is left of one, as the sum of the others comes out.
        weights.push(match form {
            Form::Delta => 1.0 - from.iter().map(|e| e.1).sum::<f64>(),
            Form::Sum => keep,
        });
        from.sort_unstable_by_key(|e| e.0);
        weights.extend(from.iter().map(|e| e.1));
        self.weights[exchange.slot] = weights;
    }

    /// The number of this slot's next round with neighbours. Counted here, not the step's: a run may go back to an earlier step, and another run on these lanes comes after this one.
    fn number(&mut self, slot: usize, lane: Lane) -> u64 {
        if self.numbers.len() <= slot {
            self.numbers.resize(slot + 1, None);
        }
        let next = &mut self.numbers[slot];
        let t = next.unwrap_or_else(|| self.group.next_round(lane));
        *next = Some(t + 1);
        t
    }

    /// `len`: elements for each neighbour, where each gets its own.
    fn op(&mut self, exchange: &Exchange, len: u64) -> Result<Op, Error> {
        let lane = u32::try_from(exchange.slot)
            .ok()
            .and_then(|s| self.first.0.checked_add(s))
            .map(Lane)
            .ok_or_else(|| {
                Error::invalid("mixer", format!("slot {} has no lane", exchange.slot))
            })?;
        let kind = match exchange.with {
            With::Neighbours => {
                let me = self.group.rank();
                self.topology.round(me, exchange.round, &mut self.round);
                Kind::Mix {
                    round: self.round.clone(),
                    t: self.number(exchange.slot, lane),
                }
            }
            With::Everyone => Kind::AllReduce(Reduce::Mean),
            With::EachMember => Kind::AllGather(Counts::Equal),
            With::EachNeighbour => {
                let ends = self.ends(exchange);
                let parts = |ranks: &[Rank]| {
                    let mut counts = vec![0; self.group.size()];
                    ranks.iter().for_each(|r| counts[r.idx()] = len);
                    Counts::known(&counts)
                };
                Kind::AllToAll {
                    send: parts(&ends.to),
                    recv: parts(&ends.from),
                }
            }
            other => {
                return Err(Error::invalid(
                    "mixer",
                    format!("exchanges with {other:?} are unknown to this mixer"),
                ));
            }
        };
        let mut op = Op::new(kind).on(lane);
        if !exchange.with.each() {
            op = op.coded_always(exchange.codec);
        } else if exchange.codec != Codec::None {
            return Err(Error::invalid(
                "mixer",
                format!(
                    "what goes to each by itself goes plainly, not as {}",
                    exchange.codec
                ),
            ));
        }
        if exchange.with == With::Everyone && exchange.codec != Codec::None {
            op = op.by(Algorithm::Direct);
        }
        op.timeout = self.timeout;
        Ok(op)
    }
}

impl<T: Float> Mixer<T> for NeighbourMixer<T> {
    fn rank(&self) -> Rank {
        self.group.rank()
    }

    fn world(&self) -> usize {
        self.group.size()
    }

    fn messages(&mut self, exchange: &Exchange) -> usize {
        match exchange.with {
            With::EachNeighbour => self.ends(exchange).to.len(),
            _ => 1,
        }
    }

    /// A slot that is still under way is left to end by itself, and new memory is taken.
    fn outbox(&mut self, slot: usize, n: usize) -> &mut [T] {
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, Slot::empty);
            self.weights.resize_with(slot + 1, Vec::new);
        }
        let place = &mut self.slots[slot];
        if !matches!(place, Slot::Here { .. }) {
            *place = Slot::empty();
        }
        match place {
            Slot::Here { data, mixed } => {
                *mixed = false;
                if data.len() != n {
                    *data = self.group.buffer(n);
                }
                data
            }
            Slot::Flying(_) | Slot::FlyingEach(_) => &mut [],
        }
    }

    fn start(&mut self, exchange: &Exchange, _t: u64) -> Result<(), Error> {
        let filled = match self.slots.get(exchange.slot) {
            Some(Slot::Here { data, .. }) => data.len(),
            Some(_) => {
                return Err(Error::invalid(
                    "mixer",
                    format!("slot {} was started and not finished", exchange.slot),
                ));
            }
            None => return Err(no_outbox(exchange.slot)),
        };
        self.weights[exchange.slot].clear();
        let (mut incoming, mut each) = (0, 0);
        if exchange.with == With::EachMember {
            (incoming, each) = (self.group.size(), filled);
        }
        if exchange.with == With::EachNeighbour {
            self.weigh(exchange);
            let Ends { from, to } = self.ends(exchange);
            // How long a message is follows from those that it sends.
            if to.is_empty() && !from.is_empty() && exchange.width + exchange.extra > 0 {
                return Err(Error::invalid(
                    "mixer",
                    "this rank hears of neighbours and sends to none",
                ));
            }
            each = filled.checked_div(to.len()).unwrap_or(0);
            incoming = from.len();
        }
        let op = self.op(exchange, each as u64)?;
        let place = &mut self.slots[exchange.slot];
        if let Slot::Here { data, .. } = std::mem::replace(place, Slot::empty()) {
            *place = if exchange.with.each() {
                let room = self.group.buffer(incoming * each);
                Slot::FlyingEach(self.group.start_into(op, data, room))
            } else {
                Slot::Flying(self.group.start(op, data))
            };
        }
        Ok(())
    }

    fn finish(&mut self, slot: usize) -> Result<(), Error> {
        let Some(place) = self.slots.get_mut(slot) else {
            return Err(no_outbox(slot));
        };
        let flying = std::mem::replace(place, Slot::empty());
        let clock = self.group.communicator();
        let called = clock.now();
        let outcome = match flying {
            Slot::Flying(work) => work
                .wait_done()
                .map_err(|failed| (failed.error, failed.buf)),
            Slot::FlyingEach(work) => match work.wait() {
                Ok((_, data, done)) => Ok((data, done)),
                Err(failed) => Err((failed.error, failed.output)),
            },
            here @ Slot::Here { .. } => {
                *place = here;
                return Err(Error::invalid(
                    "mixer",
                    format!("slot {slot} was finished and not started"),
                ));
            }
        };
        let wait = clock.now().saturating_sub(called);
        match outcome {
            Ok((data, done)) => {
                self.meter.add(&done, wait);
                *place = Slot::Here { data, mixed: true };
                Ok(())
            }
            Err((error, data)) => {
                *place = Slot::Here {
                    data: data.unwrap_or_default(),
                    mixed: false,
                };
                Err(error)
            }
        }
    }

    /// # Panics
    /// Where the slot has no mean: `finish` was not called, or failed.
    fn mean(&self, slot: usize) -> &[T] {
        match self.slots.get(slot) {
            Some(Slot::Here { data, mixed: true }) => data,
            _ => panic!("mean of slot {slot} asked for before finish"),
        }
    }

    fn weights(&self, slot: usize) -> &[f64] {
        self.weights.get(slot).map_or(&[], |w| w)
    }
}

/// In- and out-neighbours.
struct Ends {
    from: Vec<Rank>,
    to: Vec<Rank>,
}

fn no_outbox(slot: usize) -> Error {
    Error::invalid("mixer", format!("slot {slot} has no outbox"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_messages_share_counts_once() {
        let ms = Duration::from_millis;
        let mut flights = vec![];
        let mut add = |from, to| cover(&mut flights, ms(from), ms(to));
        assert_eq!(add(10, 20), ms(10));
        assert_eq!(add(15, 25), ms(5));
        assert_eq!(add(30, 40), ms(10));
        // Over the gap between two, and within what there is.
        assert_eq!(add(5, 35), ms(5 + 5));
        assert_eq!(add(6, 39), ms(0));
        assert_eq!(add(50, 50), ms(0));
        for k in 0..3 * FLIGHTS as u64 {
            assert_eq!(add(100 + 10 * k, 105 + 10 * k), ms(5));
        }
        assert!(flights.len() <= FLIGHTS);
    }
}
