//! The state of a simulated net: events in the order of virtual time, and what they do to the ranks.

use super::{
    Fault, SimClock, SimConfig,
    rank::{Life, RankState},
};
use gaggle_core::{Down, MsgKey, Wake, XferId};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    fmt,
    ops::Range,
    sync::Arc,
    time::Duration,
};

/// Everything, under one lock.
pub(super) struct Net {
    pub(super) config: SimConfig,
    clock: Arc<SimClock>,
    rng: ChaCha8Rng,
    pub(super) now: Duration,
    queue: BinaryHeap<Reverse<Entry>>,
    n_scheduled: u64,
    pub(super) n_messages: u64,
    pub(super) ranks: Vec<RankState>,
    /// Pairs that cannot reach each other, lower rank first.
    cuts: BTreeSet<(u32, u32)>,
    /// What came to a cut, in the order in which it did.
    held: Vec<Event>,
    /// When the last part so far of each message under way arrives.
    flows: BTreeMap<u64, Duration>,
    /// When the last control message so far from one to the other arrives.
    words: BTreeMap<(u32, u32), Duration>,
    trace: Vec<String>,
    pub(super) wakes: Vec<Arc<dyn Wake>>,
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Net")
            .field("now", &self.now)
            .field("world", &self.ranks.len())
            .field("queued", &self.queue.len())
            .finish_non_exhaustive()
    }
}

/// Something that happens at a moment.
#[derive(Debug)]
pub(super) enum Event {
    Part {
        src: u32,
        dst: u32,
        message: u64,
        open: Option<Opening>,
        data: Vec<u8>,
        last: bool,
    },
    Abort {
        src: u32,
        dst: u32,
        message: u64,
    },
    /// From a receiver to the sender: a posted receive (`grant`), or the end of a message that nobody wanted.
    Credit {
        src: u32,
        dst: u32,
        key: MsgKey,
        grant: bool,
    },
    Resume {
        rank: u32,
        id: XferId,
    },
    Down {
        src: u32,
        dst: u32,
        how: Down,
    },
    Word {
        src: u32,
        dst: u32,
        word: Word,
    },
    Fault(Fault),
}

/// What stands before a message's first byte.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) key: MsgKey,
    pub(super) head: Vec<u8>,
    pub(super) bytes: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Word {
    Message(Vec<u8>),
    Lost(u32, String),
    Left,
}

struct Entry {
    at: Duration,
    n: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.n) == (other.at, other.n)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.n).cmp(&(other.at, other.n))
    }
}

impl Net {
    pub(super) fn new(world: u32, config: SimConfig, clock: Arc<SimClock>) -> Net {
        Net {
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            config,
            clock,
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            n_scheduled: 0,
            n_messages: 0,
            ranks: (0..world).map(|_| RankState::new(world)).collect(),
            cuts: BTreeSet::new(),
            held: Vec::new(),
            flows: BTreeMap::new(),
            words: BTreeMap::new(),
            trace: Vec::new(),
            wakes: Vec::new(),
        }
    }

    pub(super) fn world(&self) -> u32 {
        self.ranks.len() as u32
    }

    pub(super) fn take_links(&mut self, rank: u32) -> bool {
        assert!(rank < self.world(), "no rank {rank} in {}", self.world());
        !std::mem::replace(&mut self.ranks[rank as usize].links_taken, true)
    }

    pub(super) fn take_plane(&mut self, rank: u32) -> bool {
        assert!(rank < self.world(), "no rank {rank} in {}", self.world());
        !std::mem::replace(&mut self.ranks[rank as usize].plane_taken, true)
    }

    pub(super) fn rank(&mut self, rank: u32) -> &mut RankState {
        &mut self.ranks[rank as usize]
    }

    pub(super) fn take_wakes(&mut self) -> Vec<Arc<dyn Wake>> {
        std::mem::take(&mut self.wakes)
    }

    pub(super) fn trace(&self) -> &[String] {
        &self.trace
    }

    pub(super) fn next_event(&self) -> Option<Duration> {
        self.queue.peek().map(|Reverse(e)| e.at)
    }

    pub(super) fn step(&mut self) -> bool {
        let next = self.next_event();
        if let Some(at) = next {
            self.advance_to(at);
        }
        next.is_some()
    }

    pub(super) fn advance_to(&mut self, t: Duration) {
        while let Some(Reverse(entry)) = self.queue.peek() {
            if entry.at > t {
                break;
            }
            let Some(Reverse(entry)) = self.queue.pop() else {
                break;
            };
            self.set_now(entry.at);
            if self.config.trace {
                let line = format!("{:?} {:?}", self.now, entry.event);
                self.trace.push(line);
            }
            self.happen(entry.event);
        }
        self.set_now(t);
    }

    fn set_now(&mut self, t: Duration) {
        self.now = self.now.max(t);
        self.clock.set(self.now);
    }

    pub(super) fn schedule(&mut self, at: Duration, event: Event) {
        let n = self.n_scheduled;
        self.n_scheduled += 1;
        let at = at.max(self.now);
        self.queue.push(Reverse(Entry { at, n, event }));
    }

    pub(super) fn draw(&mut self, range: Range<Duration>) -> Duration {
        if range.is_empty() {
            return range.start;
        }
        // Tests draw from ranges of milliseconds; anything above 584 years is cut off.
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.rng.random_range(nanos(range.start)..nanos(range.end)))
    }

    fn arrival(&mut self) -> Duration {
        let latency = self.draw(self.config.latency.clone());
        self.now + latency
    }

    /// Puts an event on its way: parts of one message, and words from one rank to another, stay in order.
    pub(super) fn launch(&mut self, event: Event) {
        let mut at = self.arrival();
        match &event {
            Event::Part {
                src, dst, message, ..
            }
            | Event::Abort { src, dst, message } => {
                let flow = self.flows.entry(*message).or_default();
                at = at.max(*flow);
                *flow = at;
                let last = &mut self.ranks[*src as usize].links[*dst as usize].last_arrival;
                *last = at.max(*last);
            }
            // A goodbye comes after everything that was said before it.
            Event::Down {
                src,
                dst,
                how: Down::Left,
            } => {
                at = at.max(self.ranks[*src as usize].links[*dst as usize].last_arrival);
            }
            Event::Word { src, dst, .. } => {
                let last = self.words.entry((*src, *dst)).or_default();
                at = at.max(*last);
                *last = at;
            }
            _ => {}
        }
        self.schedule(at, event);
    }

    fn is_cut(&self, a: u32, b: u32) -> bool {
        self.cuts.contains(&(a.min(b), a.max(b)))
    }

    /// Whether a control message finds a way, over others where it must.
    fn reaches(&self, src: u32, dst: u32) -> bool {
        let mut seen = BTreeSet::from([src]);
        let mut front = vec![src];
        while let Some(at) = front.pop() {
            if at == dst {
                return true;
            }
            for next in 0..self.world() {
                let relays = next == dst || self.ranks[next as usize].plane == Life::Here;
                if relays && !self.is_cut(at, next) && seen.insert(next) {
                    front.push(next);
                }
            }
        }
        false
    }

    fn happen(&mut self, event: Event) {
        let held = match &event {
            Event::Part { src, dst, .. }
            | Event::Abort { src, dst, .. }
            | Event::Credit { src, dst, .. }
            | Event::Down { src, dst, .. } => self.is_cut(*src, *dst),
            Event::Word { src, dst, .. } => !self.reaches(*src, *dst),
            Event::Resume { .. } | Event::Fault(_) => false,
        };
        if held {
            self.held.push(event);
            return;
        }
        match event {
            Event::Part {
                src,
                dst,
                message,
                open,
                data,
                last,
            } => {
                if last {
                    self.flows.remove(&message);
                }
                self.part_arrives(src, dst, message, open, &data);
            }
            Event::Abort { src, dst, message } => {
                self.flows.remove(&message);
                self.abort_arrives(src, dst, message);
            }
            Event::Credit {
                src,
                dst,
                key,
                grant,
            } => {
                self.credit_arrives(src, dst, key, grant);
            }
            Event::Resume { rank, id } => {
                if let Some(send) = self.rank(rank).sends.get_mut(&id) {
                    send.paused = false;
                    self.wake(rank);
                }
            }
            Event::Down { src, dst, how } => self.goes_down(dst, src, how),
            Event::Word { src, dst, word } => self.word_arrives(src, dst, word),
            Event::Fault(fault) => self.strike(fault),
        }
    }

    pub(super) fn wake(&mut self, rank: u32) {
        self.wakes.extend(self.ranks[rank as usize].wake.clone());
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Crash(rank) => {
                let why = format!("{rank} has crashed");
                self.end_links(rank.0, Life::Dead, &Down::Lost(why.clone()));
                self.end_plane(rank.0, Life::Dead, &why);
            }
            Fault::Partition(a, b) => {
                for a in &a {
                    let pairs = b.iter().filter(|b| *b != a);
                    self.cuts
                        .extend(pairs.map(|b| (a.0.min(b.0), a.0.max(b.0))));
                }
            }
            Fault::Heal => {
                self.cuts.clear();
                for event in std::mem::take(&mut self.held) {
                    self.launch(event);
                }
            }
            Fault::Break(a, b) => {
                for (src, dst) in [(a.0, b.0), (b.0, a.0)] {
                    let how = Down::Lost("the link broke".into());
                    self.launch(Event::Down { src, dst, how });
                }
            }
        }
    }
}
