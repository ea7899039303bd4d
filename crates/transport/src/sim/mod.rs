//! A network in virtual time, for tests: the real engine runs on it in one thread, and one seed gives one run.
//!
//! [`SimNet`] owns all links, the control plane and the clock of a job.
//! A driver lets every rank make progress until nobody has anything left to do, and then jumps the clock to whatever comes first: the net's [`next_event`](SimNet::next_event) or a rank's own deadline.
//! - Messages are cut into parts; each part takes a random time, parts of one message stay in order, messages overtake each other on one link as well as between links.
//! - A link carries at most [`credit`](SimConfig::credit) messages and [`eager`](SimConfig::eager) bytes that no receive has been posted for; what has been granted flows.
//! - Whatever crosses a partition, in flight or new, is held until it heals. Control messages find their way around as long as there is one.
//! - A rank that crashes falls silent in the middle of whatever it was doing; the others hear of it later, each at its own time.
//! - A rank that is stopped is one that the driver does not pump.
//!
//! Nothing here sleeps or reads a clock. All types may be shared between threads, but only a single-threaded driver gives the same run twice.
//!
//! ```
//! use gaggle_transport::sim::{SimConfig, SimNet};
//!
//! let net = SimNet::new(2, SimConfig::seeded(7));
//! let control = net.control(0);
//! control.broadcast(b"hello");
//! let arrives = net.next_event().expect("a message is under way");
//! net.advance_to(arrives);
//! assert_eq!(net.clock().now(), arrives);
//! ```

mod link;
mod plane;
mod rank;
mod state;
#[cfg(test)]
mod tests;
mod traffic;

use gaggle_core::{Clock, Control, Rank, Transport, Wake};
use parking_lot::{Condvar, Mutex};
use state::{Event, Net};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// How a [`SimNet`] behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// What all its random choices follow from.
    pub seed: u64,
    /// How long a part, a credit or a control message takes; an empty range means exactly its start.
    pub latency: Range<Duration>,
    /// How long a sender pauses between two parts of a message; an empty range means exactly its start.
    pub gap: Range<Duration>,
    /// Messages per directed link that may be sent before their receives are posted; at least 1.
    pub credit: u32,
    /// Bytes of such messages per directed link; the rest of them waits until they are wanted.
    pub eager: u64,
    /// Longest part in bytes; at least one unit of the message travels, whatever this is.
    pub max_part: usize,
    /// Whether [`SimNet::trace`] is kept.
    pub trace: bool,
    /// Whether a rank's `progress` that finds nothing to do lets time pass, one event at a time: for loops that know only `progress`.
    pub self_driven: bool,
}

impl SimConfig {
    /// The settings of most tests: 10 µs to 1 ms per part, pauses up to 200 µs, credit of one message of 256 KiB, parts of 256 bytes.
    pub fn seeded(seed: u64) -> Self {
        SimConfig {
            seed,
            latency: Duration::from_micros(10)..Duration::from_millis(1),
            gap: Duration::ZERO..Duration::from_micros(200),
            credit: 1,
            eager: 256 << 10,
            max_part: 256,
            trace: false,
            self_driven: false,
        }
    }
}

/// What can go wrong at a moment of virtual time.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The rank dies without a word.
    Crash(Rank),
    /// Every link between a rank of the first and one of the second list is cut; what crosses it is held.
    Partition(Vec<Rank>, Vec<Rank>),
    /// All cuts end, and what was held goes on its way.
    Heal,
    /// The data link between the two breaks for good; both see the other as lost, while the control plane knows nothing.
    Break(Rank, Rank),
}

/// A job's links, control plane and clock. Clones are the same net.
#[derive(Clone, Debug)]
pub struct SimNet {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    net: Mutex<Net>,
    /// A callback has returned.
    returned: Condvar,
    clock: Arc<SimClock>,
}

impl Shared {
    /// Runs `f` under the lock, and calls whoever it woke after it.
    fn with<R>(&self, f: impl FnOnce(&mut Net) -> R) -> R {
        let (result, wakes) = {
            let mut net = self.net.lock();
            let result = f(&mut net);
            (result, net.take_wakes())
        };
        call_all(wakes);
        result
    }
}

fn call_all(wakes: Vec<Arc<dyn Wake>>) {
    for wake in wakes {
        wake.wake();
    }
}

impl SimNet {
    /// A net of `world` ranks at time zero.
    ///
    /// # Panics
    /// If `config.credit` is 0: no message could ever go first.
    pub fn new(world: u32, config: SimConfig) -> SimNet {
        assert!(config.credit >= 1, "credit is 0: at least 1 is needed");
        let clock = Arc::new(SimClock::default());
        SimNet {
            shared: Arc::new(Shared {
                net: Mutex::new(Net::new(world, config, Arc::clone(&clock))),
                returned: Condvar::new(),
                clock,
            }),
        }
    }

    /// The rank's links. Dropped without `leave`, the rank is lost to its peers.
    ///
    /// # Panics
    /// If there is no such rank, or its links have been taken.
    pub fn transport(&self, rank: u32) -> Box<dyn Transport> {
        let world = self.shared.with(|net| {
            assert!(net.take_links(rank), "the links of rank {rank} are taken");
            net.world()
        });
        Box::new(link::SimTransport::new(
            Arc::clone(&self.shared),
            rank,
            world,
        ))
    }

    /// The rank's place in the control plane. Dropped without `leave`, the rank is lost to the others.
    ///
    /// # Panics
    /// If there is no such rank, or its place has been taken.
    pub fn control(&self, rank: u32) -> Box<dyn Control> {
        let world = self.shared.with(|net| {
            assert!(net.take_plane(rank), "the control of rank {rank} is taken");
            net.world()
        });
        Box::new(plane::SimControl::new(
            Arc::clone(&self.shared),
            rank,
            world,
        ))
    }

    /// The virtual clock.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.shared.clock) as Arc<dyn Clock>
    }

    /// When something happens next, or `None` while everything waits for the ranks.
    pub fn next_event(&self) -> Option<Duration> {
        self.shared.net.lock().next_event()
    }

    /// Lets everything happen up to and at time `t`; earlier times change nothing.
    pub fn advance_to(&self, t: Duration) {
        self.shared.with(|net| net.advance_to(t));
    }

    /// Jumps to the next event; `false` when there is none.
    pub fn step(&self) -> bool {
        self.shared.with(Net::step)
    }

    /// Lets the fault happen at time `t`, or now where that has passed.
    pub fn at(&self, t: Duration, fault: Fault) {
        self.shared.with(|net| net.schedule(t, Event::Fault(fault)));
    }

    /// Lets the fault happen now.
    pub fn inject(&self, fault: Fault) {
        self.shared.with(|net| net.strike(fault));
    }

    /// Ends the rank without a word.
    pub fn crash(&self, rank: Rank) {
        self.inject(Fault::Crash(rank));
    }

    /// Cuts every link between the two lists.
    pub fn partition(&self, a: &[Rank], b: &[Rank]) {
        self.inject(Fault::Partition(a.to_vec(), b.to_vec()));
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        self.inject(Fault::Heal);
    }

    /// What has happened so far, one line per event; empty unless [`SimConfig::trace`].
    pub fn trace(&self) -> Vec<String> {
        self.shared.net.lock().trace().to_vec()
    }
}

/// Nanoseconds of virtual time; read without the net's lock, so that a callback may ask for the time.
#[derive(Debug, Default)]
struct SimClock(AtomicU64);

impl SimClock {
    fn set(&self, now: Duration) {
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        // Release pairs with the acquire in `now`: whoever sees the time sees what was done before it.
        self.0.store(nanos, Ordering::Release);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Acquire))
    }
}
