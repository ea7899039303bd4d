//! The mixer that decentralised rules run on: a group and a topology.

use gaggle_core::{
    Algorithm, Buffer, Codec, Error, Exchange, Float, Group, Kind, Lane, MixedMean, Mixer, Op,
    Rank, Reduce, Round, Topology, With, Work,
};
use std::{
    sync::{Arc, Mutex, PoisonError},
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
    /// Sum of their times from start to end.
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
pub struct MixMeter(Arc<Mutex<MixReport>>);

impl MixMeter {
    /// All so far.
    pub fn report(&self) -> MixReport {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, bytes_sent: u64, communicate: Duration, wait: Duration) {
        let mut r = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        r.exchanges += 1;
        r.bytes_sent += bytes_sent;
        r.communicate += communicate;
        r.wait += wait;
    }
}

/// A slot's memory: with the mixer, or with the group.
enum Slot<T: Float> {
    Here { data: Buffer<T>, mixed: bool },
    Flying(Work<Buffer<T>>),
}

impl<T: Float> Slot<T> {
    fn empty() -> Self {
        Slot::Here {
            data: Buffer::default(),
            mixed: false,
        }
    }
}

/// A [`Mixer`] over a group: neighbours by a topology, everyone by an all-reduce.
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
    slots: Vec<Slot<T>>,
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
            slots: Vec::new(),
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

    fn op(&mut self, exchange: &Exchange, t: u64) -> Result<Op, Error> {
        let kind = match exchange.with {
            With::Neighbours => {
                self.topology.round(self.group.rank(), t, &mut self.round);
                Kind::Mix {
                    round: self.round.clone(),
                    t,
                }
            }
            With::Everyone => Kind::AllReduce(Reduce::Mean),
            other => {
                return Err(Error::invalid(
                    "mixer",
                    format!("exchanges with {other:?} are unknown to this mixer"),
                ));
            }
        };
        let lane = u32::try_from(exchange.slot)
            .ok()
            .and_then(|s| self.first.0.checked_add(s))
            .ok_or_else(|| {
                Error::invalid("mixer", format!("slot {} has no lane", exchange.slot))
            })?;
        let mut op = Op::new(kind).on(Lane(lane)).coded_always(exchange.codec);
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

    /// A slot that is still under way is left to end by itself, and new memory is taken.
    fn outbox(&mut self, slot: usize, n: usize) -> &mut [T] {
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, Slot::empty);
        }
        let place = &mut self.slots[slot];
        if matches!(place, Slot::Flying(_)) {
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
            Slot::Flying(_) => &mut [],
        }
    }

    fn start(&mut self, exchange: &Exchange, t: u64) -> Result<(), Error> {
        let op = self.op(exchange, t)?;
        let Some(place) = self.slots.get_mut(exchange.slot) else {
            return Err(no_outbox(exchange.slot));
        };
        match std::mem::replace(place, Slot::empty()) {
            Slot::Here { data, .. } => {
                *place = Slot::Flying(self.group.start(op, data));
                Ok(())
            }
            flying @ Slot::Flying(_) => {
                *place = flying;
                Err(Error::invalid(
                    "mixer",
                    format!("slot {} was started and not finished", exchange.slot),
                ))
            }
        }
    }

    fn finish(&mut self, slot: usize) -> Result<(), Error> {
        let Some(place) = self.slots.get_mut(slot) else {
            return Err(no_outbox(slot));
        };
        let work = match std::mem::replace(place, Slot::empty()) {
            Slot::Flying(work) => work,
            here @ Slot::Here { .. } => {
                *place = here;
                return Err(Error::invalid(
                    "mixer",
                    format!("slot {slot} was finished and not started"),
                ));
            }
        };
        let clock = self.group.communicator();
        let called = clock.now();
        let outcome = work.wait_done();
        let wait = clock.now().saturating_sub(called);
        match outcome {
            Ok((data, done)) => {
                self.meter.add(
                    done.bytes_sent,
                    done.finished.saturating_sub(done.started),
                    wait,
                );
                *place = Slot::Here { data, mixed: true };
                Ok(())
            }
            Err(failed) => {
                *place = Slot::Here {
                    data: failed.buf.unwrap_or_default(),
                    mixed: false,
                };
                Err(failed.error)
            }
        }
    }

    /// # Panics
    /// Where the slot has no mean: `finish` was not called, or failed.
    fn mean(&self, slot: usize) -> MixedMean<'_, T> {
        match self.slots.get(slot) {
            Some(Slot::Here { data, mixed: true }) => MixedMean {
                values: data,
                weight: 1.0,
            },
            _ => panic!("mean of slot {slot} asked for before finish"),
        }
    }
}

fn no_outbox(slot: usize) -> Error {
    Error::invalid("mixer", format!("slot {slot} has no outbox"))
}
