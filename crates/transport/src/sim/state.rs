//! The state of a simulated net: events in the order of virtual time, and what they do to the ranks.

use super::{Fault, SimClock, SimConfig};
use crate::pieces::ABORTED;
use gaggle_core::{Down, LinkStats, MsgKey, OpId, Rank, TransportError, Wake, XferId};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
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
    now: Duration,
    queue: BinaryHeap<Reverse<Entry>>,
    n_scheduled: u64,
    n_messages: u64,
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
    wakes: Vec<Arc<dyn Wake>>,
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

/// Whether a rank takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    Here,
    Left,
    Dead,
}

/// One rank's ends of all its links.
pub(super) struct RankState {
    links_taken: bool,
    plane_taken: bool,
    /// On the data links.
    pub(super) life: Life,
    /// In the control plane.
    pub(super) plane: Life,
    n_transfers: u64,
    n_arrivals: u64,
    pub(super) sends: BTreeMap<XferId, SendState>,
    pub(super) recvs: BTreeMap<XferId, RecvState>,
    pub(super) links: Vec<LinkState>,
    /// Messages that have begun to arrive, in the order in which they did.
    pub(super) inbox: BTreeMap<u64, Inbound>,
    pub(super) ended: VecDeque<(XferId, Result<(), TransportError>)>,
    pub(super) downs: VecDeque<u32>,
    /// The transfer that a callback is about.
    pub(super) calling: Option<XferId>,
    pub(super) wake: Option<Arc<dyn Wake>>,
    pub(super) stats: LinkStats,
    pub(super) words: VecDeque<Heard>,
    pub(super) plane_wake: Option<Arc<dyn Wake>>,
    /// Who has been reported lost or left by the control plane.
    pub(super) gone: BTreeSet<u32>,
}

/// One rank's end of the link to one peer.
#[derive(Default)]
pub(super) struct LinkState {
    pub(super) down: Option<Down>,
    /// Messages begun without a grant whose credit has not come back, and their bytes so far.
    pub(super) owed: BTreeMap<MsgKey, u64>,
    /// Receives that the peer has posted for messages that have not begun.
    pub(super) grants: BTreeSet<MsgKey>,
    /// When the last part so far arrives at the peer.
    last_arrival: Duration,
}

pub(super) struct SendState {
    pub(super) peer: u32,
    pub(super) key: MsgKey,
    pub(super) bytes: u64,
    pub(super) unit: u32,
    pub(super) priority: i32,
    pub(super) head: Vec<u8>,
    pub(super) filled: u64,
    /// Its number on the wire, once it has begun.
    pub(super) message: Option<u64>,
    /// The receiver has asked for it, or let it go: nothing holds it up any more.
    pub(super) granted: bool,
    /// Between two parts.
    pub(super) paused: bool,
}

pub(super) struct RecvState {
    pub(super) peer: u32,
    pub(super) key: MsgKey,
    pub(super) bytes: u64,
    pub(super) unit: u32,
}

/// A message that has begun to arrive.
pub(super) struct Inbound {
    pub(super) src: u32,
    message: u64,
    pub(super) key: MsgKey,
    pub(super) head: Vec<u8>,
    pub(super) bytes: u64,
    /// Arrived and not yet consumed.
    pub(super) data: Vec<u8>,
    arrived: u64,
    pub(super) consumed: u64,
    pub(super) announced: bool,
    pub(super) recv: Option<XferId>,
    pub(super) opened: bool,
}

impl Inbound {
    fn is_whole(&self) -> bool {
        self.arrived == self.bytes
    }
}

/// What the control plane has for a rank.
pub(super) enum Heard {
    Message(u32, Vec<u8>),
    Lost(u32, String),
    Left(u32),
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
    key: MsgKey,
    head: Vec<u8>,
    bytes: u64,
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

    fn draw(&mut self, range: Range<Duration>) -> Duration {
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
    fn launch(&mut self, event: Event) {
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
                let rank = self.rank(dst);
                let link = &mut rank.links[src as usize];
                if link.owed.remove(&key).is_some() {
                    let begun = |s: &&mut SendState| s.peer == src && s.key == key;
                    if let Some(send) = rank.sends.values_mut().find(begun) {
                        send.granted = true;
                    }
                } else if grant {
                    link.grants.insert(key);
                }
                self.wake(dst);
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

    fn wake(&mut self, rank: u32) {
        self.wakes.extend(self.ranks[rank as usize].wake.clone());
    }

    fn part_arrives(
        &mut self,
        src: u32,
        dst: u32,
        message: u64,
        open: Option<Opening>,
        data: &[u8],
    ) {
        let rank = self.rank(dst);
        if rank.life != Life::Here || rank.links[src as usize].down.is_some() {
            return;
        }
        rank.stats.frames_received += 1;
        rank.stats.payload_received += data.len() as u64;
        if let Some(open) = open {
            rank.stats.header_received += open.head.len() as u64;
            rank.begin(src, message, open);
        }
        // What was refused or forgotten is no longer there: its bytes are dropped.
        if let Some(m) = rank.inbox.values_mut().find(|m| m.message == message) {
            m.data.extend_from_slice(data);
            m.arrived += data.len() as u64;
        }
        self.wake(dst);
    }

    fn abort_arrives(&mut self, src: u32, dst: u32, message: u64) {
        let rank = self.rank(dst);
        let Some(n) = rank
            .inbox
            .iter()
            .find(|(_, m)| m.message == message)
            .map(|(n, _)| *n)
        else {
            return;
        };
        let Some(m) = rank.inbox.remove(&n) else {
            return;
        };
        match m.recv.filter(|id| rank.recvs.remove(id).is_some()) {
            Some(id) => {
                let error = TransportError::Misuse {
                    peer: Rank(src),
                    what: ABORTED,
                };
                rank.ended.push_back((id, Err(error)));
            }
            None => self.release(dst, src, m.key),
        }
        self.wake(dst);
    }

    /// Gives the sender its credit back for a message that nobody wants.
    fn release(&mut self, me: u32, sender: u32, key: MsgKey) {
        self.launch(Event::Credit {
            src: me,
            dst: sender,
            key,
            grant: false,
        });
    }

    pub(super) fn grant(&mut self, me: u32, sender: u32, key: MsgKey) {
        self.launch(Event::Credit {
            src: me,
            dst: sender,
            key,
            grant: true,
        });
    }

    /// Drops a message that has begun to arrive, and whatever of it is still to come.
    pub(super) fn discard(&mut self, me: u32, n: u64) {
        if let Some(m) = self.rank(me).inbox.remove(&n) {
            if let Some(id) = m.recv {
                self.rank(me).recvs.remove(&id);
            } else {
                self.release(me, m.src, m.key);
            }
        }
    }

    pub(super) fn forget(&mut self, me: u32, op: OpId) {
        let rank = self.rank(me);
        for link in &mut rank.links {
            link.grants.retain(|key| key.op != op);
        }
        let unwanted = |m: &Inbound| m.key.op == op && m.recv.is_none();
        let found: Vec<u64> = rank
            .inbox
            .iter()
            .filter(|(_, m)| unwanted(m))
            .map(|(n, _)| *n)
            .collect();
        for n in found {
            self.discard(me, n);
        }
    }

    /// How many bytes of this send may leave now; `None` where nothing may, not even its head.
    pub(super) fn allowance(&self, me: u32, send: &SendState) -> Option<u64> {
        let link = &self.ranks[me as usize].links[send.peer as usize];
        if send.paused {
            return None;
        }
        if send.granted || link.grants.contains(&send.key) {
            return Some(u64::MAX);
        }
        let left = self.config.eager.saturating_sub(link.owed.values().sum());
        let has_credit = send.message.is_some() || link.owed.len() < self.config.credit as usize;
        let has_room = send.bytes == 0 || left >= u64::from(send.unit);
        (has_credit && has_room).then_some(left)
    }

    /// Whether the rank's `progress` would find something, were its sink ready for it.
    pub(super) fn has_work(&self, me: u32) -> bool {
        let rank = &self.ranks[me as usize];
        if rank.life != Life::Here {
            return false;
        }
        let pending = |m: &Inbound| match m.recv.and_then(|id| rank.recvs.get(&id)) {
            None => !m.announced,
            Some(r) => !m.opened || m.consumed == m.bytes || m.data.len() >= r.unit as usize,
        };
        !rank.ended.is_empty()
            || !rank.downs.is_empty()
            || rank.inbox.values().any(pending)
            || rank.sends.values().any(|s| self.allowance(me, s).is_some())
    }

    /// Sends the next part of an own message; the last one ends the transfer.
    pub(super) fn send_part(&mut self, me: u32, id: XferId, data: Vec<u8>) {
        let gap = self.draw(self.config.gap.clone());
        let fresh = self.n_messages;
        let rank = &mut self.ranks[me as usize];
        let Some(send) = rank.sends.get_mut(&id) else {
            return;
        };
        let (dst, key) = (send.peer, send.key);
        let mut open = None;
        let message = *send.message.get_or_insert_with(|| {
            self.n_messages += 1;
            let link = &mut rank.links[dst as usize];
            send.granted = link.grants.remove(&key);
            if !send.granted {
                link.owed.insert(key, 0);
            }
            rank.stats.header_sent += send.head.len() as u64;
            open = Some(Opening {
                key,
                head: std::mem::take(&mut send.head),
                bytes: send.bytes,
            });
            fresh
        });
        send.filled += data.len() as u64;
        if let Some(owed) = rank.links[dst as usize].owed.get_mut(&key) {
            *owed += data.len() as u64;
        }
        rank.stats.frames_sent += 1;
        rank.stats.payload_sent += data.len() as u64;
        let last = send.filled == send.bytes;
        send.paused = !last && gap > Duration::ZERO;
        let paused = send.paused;
        if last {
            rank.sends.remove(&id);
            rank.ended.push_back((id, Ok(())));
        }
        self.launch(Event::Part {
            src: me,
            dst,
            message,
            open,
            data,
            last,
        });
        if paused {
            self.schedule(self.now + gap, Event::Resume { rank: me, id });
        }
    }

    /// Takes an own transfer back.
    pub(super) fn cancel(&mut self, me: u32, id: XferId) {
        let rank = self.rank(me);
        rank.ended.retain(|(other, _)| *other != id);
        if let Some(send) = rank.sends.remove(&id) {
            if let Some(message) = send.message {
                self.launch(Event::Abort {
                    src: me,
                    dst: send.peer,
                    message,
                });
            }
        } else if rank.recvs.remove(&id).is_some() {
            // A message that has not been opened is nobody's again; one that has is dropped.
            let opened = |m: &&mut Inbound| m.recv == Some(id);
            if let Some(m) = rank.inbox.values_mut().find(opened)
                && !m.opened
            {
                m.recv = None;
            }
            rank.inbox.retain(|_, m| m.recv != Some(id));
        }
    }

    /// `peer` is gone as `me` sees it.
    fn goes_down(&mut self, me: u32, peer: u32, how: Down) {
        let rank = self.rank(me);
        if rank.life != Life::Here || rank.links[peer as usize].down.is_some() {
            return;
        }
        rank.links[peer as usize].down = Some(how.clone());
        // What a peer gave whole before it left is still good.
        let left = how == Down::Left;
        rank.inbox
            .retain(|_, m| m.src != peer || (left && m.is_whole()));
        let kept: BTreeSet<XferId> = rank.inbox.values().filter_map(|m| m.recv).collect();
        let sends = rank
            .sends
            .iter()
            .filter(|(_, s)| s.peer == peer)
            .map(|(id, _)| *id);
        let recvs = rank
            .recvs
            .iter()
            .filter(|(id, r)| r.peer == peer && !kept.contains(id))
            .map(|(id, _)| *id);
        let failed: BTreeSet<XferId> = sends.chain(recvs).collect();
        for id in failed {
            rank.sends.remove(&id);
            rank.recvs.remove(&id);
            let error = TransportError::Down {
                peer: Rank(peer),
                how: how.clone(),
            };
            rank.ended.push_back((id, Err(error)));
        }
        rank.downs.push_back(peer);
        self.wake(me);
    }

    /// The rank's links end, for it at once and for its peers when they hear of it.
    pub(super) fn end_links(&mut self, me: u32, life: Life, how: &Down) {
        let rank = self.rank(me);
        if rank.life != Life::Here {
            return;
        }
        rank.life = life;
        rank.sends.clear();
        rank.recvs.clear();
        rank.inbox.clear();
        rank.ended.clear();
        rank.downs.clear();
        for dst in (0..self.world()).filter(|p| *p != me) {
            self.launch(Event::Down {
                src: me,
                dst,
                how: how.clone(),
            });
        }
    }

    /// The rank's place in the control plane ends.
    pub(super) fn end_plane(&mut self, me: u32, life: Life, why: &str) {
        let rank = self.rank(me);
        if rank.plane != Life::Here {
            return;
        }
        rank.plane = life;
        rank.words.clear();
        let word = match life {
            Life::Left => Word::Left,
            Life::Here | Life::Dead => Word::Lost(me, why.into()),
        };
        self.tell(me, word);
    }

    /// Sends a word to every other rank.
    pub(super) fn tell(&mut self, me: u32, word: Word) {
        for dst in (0..self.world()).filter(|p| *p != me) {
            self.launch(Event::Word {
                src: me,
                dst,
                word: word.clone(),
            });
        }
    }

    pub(super) fn word_arrives(&mut self, src: u32, dst: u32, word: Word) {
        let rank = self.rank(dst);
        if rank.plane != Life::Here || rank.gone.contains(&src) {
            return;
        }
        match word {
            Word::Message(payload) => rank.words.push_back(Heard::Message(src, payload)),
            Word::Left => {
                rank.gone.insert(src);
                rank.words.push_back(Heard::Left(src));
            }
            Word::Lost(who, why) => {
                if rank.gone.insert(who) {
                    rank.words.push_back(Heard::Lost(who, why));
                }
                // Whoever is declared dead hears that, and is deaf and dumb afterwards.
                if who == dst {
                    rank.plane = Life::Dead;
                }
            }
        }
        self.wakes
            .extend(self.ranks[dst as usize].plane_wake.clone());
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

impl RankState {
    fn new(world: u32) -> RankState {
        RankState {
            links_taken: false,
            plane_taken: false,
            life: Life::Here,
            plane: Life::Here,
            n_transfers: 0,
            n_arrivals: 0,
            sends: BTreeMap::new(),
            recvs: BTreeMap::new(),
            links: (0..world).map(|_| LinkState::default()).collect(),
            inbox: BTreeMap::new(),
            ended: VecDeque::new(),
            downs: VecDeque::new(),
            calling: None,
            wake: None,
            stats: LinkStats::default(),
            words: VecDeque::new(),
            plane_wake: None,
            gone: BTreeSet::new(),
        }
    }

    pub(super) fn fresh_id(&mut self) -> XferId {
        self.n_transfers += 1;
        XferId(self.n_transfers)
    }

    fn begin(&mut self, src: u32, message: u64, open: Opening) {
        let posted = |(_, r): &(&XferId, &RecvState)| r.peer == src && r.key == open.key;
        let recv = self.recvs.iter().find(posted).map(|(id, _)| *id);
        if recv.is_none() {
            self.stats.early_messages += 1;
        }
        let n = self.n_arrivals;
        self.n_arrivals += 1;
        self.inbox.insert(
            n,
            Inbound {
                src,
                message,
                key: open.key,
                head: open.head,
                bytes: open.bytes,
                data: Vec::new(),
                arrived: 0,
                consumed: 0,
                announced: false,
                recv,
                opened: false,
            },
        );
    }
}
