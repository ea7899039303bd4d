//! The promises of a [`Transport`] over anything that moves packets: what UCX's active messages and MPI's point-to-point messages have in common.
//!
//! A link ([`Packets`]) carries whole packets, none lost, in order for each pair of ranks. What the seam asks for beyond that is made here, once for all such links:
//! matching by key (no tag of a library's is long enough, so the key travels in the packet), messages in parts, early data within a credit, refusals, cancellation in mid-message, priorities, deaths.
//!
//! | packet | says |
//! |---|---|
//! | open | a message begins: number, key, length, head; small ones that fit the credit bring their bytes |
//! | grant | it is wanted, up to this byte |
//! | data | its next bytes |
//! | abort | its sender has given it up |
//! | refuse | its receiver does not want it, or has what it wants |
//! | credit | bytes of early messages that are no longer held |
//! | bye | the sender leaves |
//!
//! A message that is not small costs one round trip more than on a socket of ours, whose frames go out on credit.

mod incoming;
pub mod memory;
mod outgoing;
mod wire;

use gaggle_core::{
    Armed, Dir, Down, LinkStats, MsgKey, OpId, Rank, Sink, Transfer, Transport, TransportError,
    Wake, XferId,
};
use incoming::{Arrival, Receive};
use outgoing::Send;
use parking_lot::Mutex;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};
use wire::{MAX, Packet};

/// Bytes of early messages that one peer may have here.
pub const CREDIT: u64 = 256 << 10;
/// Longest message that comes with its opening.
const SMALL: u64 = 8 << 10;
/// How far a sender may be ahead of what its receiver has used.
const WINDOW: u64 = 128 << 10;

/// What has come over a link.
#[derive(Debug)]
pub enum Event {
    /// A packet.
    Packet {
        /// From whom.
        from: Rank,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// A peer is gone without a word: why.
    Lost {
        /// Who.
        peer: Rank,
        /// What was seen.
        why: String,
    },
}

/// How to wait for a link's next event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// Something has come already.
    No,
    /// On the descriptor that the transport was given.
    Fd,
    /// Nothing will say so.
    Poll(Duration),
}

/// Something that moves packets between ranks: whole, none lost, in order for each pair, for as long as both are there.
///
/// Driven under the transport's lock, by one thread at a time, on any thread. Nothing blocks.
pub trait Packets: std::marker::Send {
    /// The link's name.
    fn name(&self) -> &'static str;
    /// Takes a packet of at most `MAX` bytes, by copying it, or says that there is no room now. To a peer that is gone it goes nowhere.
    fn send(&mut self, to: Rank, packet: &[u8]) -> bool;
    /// What has come next, if anything.
    fn poll(&mut self) -> Option<Event>;
    /// How to wait for more.
    fn rest(&mut self) -> Rest;
    /// Whether everything that was taken has left, or never will.
    fn is_flushed(&mut self) -> bool;
}

/// A transport over packets.
pub struct PacketTransport<L> {
    me: Rank,
    peers: Vec<Rank>,
    name: &'static str,
    /// Becomes readable when something has come.
    fd: Option<OwnedFd>,
    state: Mutex<State<L>>,
}

struct State<L> {
    link: L,
    next: u64,
    sends: HashMap<XferId, Send>,
    send_keys: HashSet<(Rank, MsgKey)>,
    /// Sends that may have something to do, the urgent ones first.
    order: BTreeSet<(Reverse<i32>, XferId)>,
    receives: HashMap<XferId, Receive>,
    receive_keys: HashMap<(Rank, MsgKey), XferId>,
    /// By sender and its number.
    arrivals: BTreeMap<(Rank, u64), Arrival>,
    arrival_keys: HashMap<(Rank, MsgKey), u64>,
    /// Packets without payload that wait for room.
    control: VecDeque<(Rank, Packet)>,
    /// What each peer may still send us early is its business; this is what we may.
    credit: BTreeMap<Rank, u64>,
    ended: VecDeque<(XferId, Result<(), TransportError>)>,
    /// Peers whose end the sink has yet to hear of.
    departed: VecDeque<(Rank, Down)>,
    down: HashMap<Rank, Down>,
    left: bool,
    stats: LinkStats,
}

impl<L: Packets> PacketTransport<L> {
    /// Over a link that reaches all other ranks of `world`; `fd` becomes readable when something has come, where the link has such a thing.
    pub fn new(me: Rank, world: u32, link: L, fd: Option<OwnedFd>) -> PacketTransport<L> {
        let peers: Vec<Rank> = (0..world).map(Rank).filter(|r| *r != me).collect();
        PacketTransport {
            me,
            name: link.name(),
            fd,
            state: Mutex::new(State {
                link,
                next: 0,
                sends: HashMap::new(),
                send_keys: HashSet::new(),
                order: BTreeSet::new(),
                receives: HashMap::new(),
                receive_keys: HashMap::new(),
                arrivals: BTreeMap::new(),
                arrival_keys: HashMap::new(),
                control: VecDeque::new(),
                credit: peers.iter().map(|p| (*p, CREDIT)).collect(),
                ended: VecDeque::new(),
                departed: VecDeque::new(),
                down: HashMap::new(),
                left: false,
                stats: LinkStats::default(),
            }),
            peers,
        }
    }
}

impl<L: Packets> Transport for PacketTransport<L> {
    fn me(&self) -> Rank {
        self.me
    }

    fn peers(&self) -> &[Rank] {
        &self.peers
    }

    fn link(&self) -> &'static str {
        self.name
    }

    fn post(&self, t: Transfer<'_>) -> Result<XferId, TransportError> {
        t.check(self.me, &self.peers)?;
        let mut state = self.state.lock();
        if state.left {
            let (peer, how) = (t.peer, Down::Left);
            return Err(TransportError::Down { peer, how });
        }
        match t.dir {
            Dir::Send => state.post_send(&t),
            Dir::Recv => state.post_receive(&t),
        }
    }

    fn cancel(&self, id: XferId) {
        let mut state = self.state.lock();
        state.ended.retain(|e| e.0 != id);
        state.cancel_send(id);
        state.cancel_receive(id);
    }

    fn forget(&self, op: OpId) {
        self.state.lock().forget(op);
    }

    fn progress(&self, sink: &mut dyn Sink, budget: usize) -> u64 {
        // A second caller returns at once.
        let Some(mut state) = self.state.try_lock() else {
            return 0;
        };
        let mut calls = state.take_in(sink, budget);
        calls += state.show(sink, budget);
        calls += state.give_out(sink, budget);
        calls + state.report(sink)
    }

    fn arm(&self) -> Armed<'_> {
        let mut state = self.state.lock();
        if state.has_work() {
            return Armed::MoreToDo;
        }
        match (state.link.rest(), &self.fd) {
            (Rest::Fd, Some(fd)) => Armed::Fd(fd.as_fd()),
            (Rest::Poll(after), _) => Armed::PollAfter(after),
            _ => Armed::MoreToDo,
        }
    }

    fn attach(&self, _wake: Arc<dyn Wake>) {
        // Nothing of this kind of link is ready on another thread of this process.
    }

    #[allow(clippy::disallowed_methods, reason = "leaving takes real time at most")]
    fn leave(&self, limit: Duration) {
        let mut state = self.state.lock();
        if !state.left {
            state.left = true;
            let byes = self.peers.iter().map(|p| (*p, Packet::Bye));
            state.control.extend(byes);
        }
        let start = Instant::now();
        // The end of the limit is no failure: what has not left by then is lost.
        while !(state.send_control() && state.link.is_flushed()) && start.elapsed() < limit {
            // A packet that comes now is for nobody.
            if state.link.poll().is_none() {
                std::thread::yield_now();
            }
        }
    }

    fn stats(&self) -> LinkStats {
        self.state.lock().stats
    }
}

impl<L: Packets> State<L> {
    fn new_id(&mut self) -> XferId {
        self.next += 1;
        XferId(self.next)
    }

    fn down_error(&self, peer: Rank) -> Option<TransportError> {
        let how = self.down.get(&peer)?.clone();
        Some(TransportError::Down { peer, how })
    }

    /// Queues a packet without payload.
    fn tell(&mut self, to: Rank, packet: Packet) {
        self.control.push_back((to, packet));
    }

    /// Sends what is queued, as far as there is room; whether all is.
    fn send_control(&mut self) -> bool {
        while let Some((to, packet)) = self.control.pop_front() {
            let bytes = packet.to_bytes();
            if !self.link.send(to, &bytes) {
                self.control.push_front((to, packet));
                return false;
            }
            self.stats.control_sent += bytes.len() as u64;
        }
        true
    }

    /// Reads what has come.
    fn take_in(&mut self, sink: &mut dyn Sink, budget: usize) -> u64 {
        let (mut calls, mut moved) = (0, 0);
        while moved < budget.max(1) {
            match self.link.poll() {
                Some(Event::Packet { from, bytes }) => {
                    moved += bytes.len().max(64);
                    calls += self.handle(sink, from, &bytes);
                }
                Some(Event::Lost { peer, why }) => self.depart(peer, Down::Lost(why)),
                None => break,
            }
        }
        calls
    }

    fn handle(&mut self, sink: &mut dyn Sink, from: Rank, bytes: &[u8]) -> u64 {
        let Some((packet, payload)) = Packet::parse(bytes) else {
            // No healthy peer sends that.
            self.depart(from, Down::Lost("an unreadable packet".into()));
            return 0;
        };
        let header = (bytes.len() - payload.len()) as u64;
        if matches!(packet, Packet::Open(_) | Packet::Data { .. }) {
            self.stats.header_received += header;
            self.stats.frames_received += 1;
            self.stats.payload_received += payload.len() as u64;
        } else {
            self.stats.control_received += header;
        }
        match packet {
            Packet::Open(open) => return self.opened(sink, from, open, payload),
            Packet::Data { msg } => self.data(from, msg, payload),
            Packet::Abort { msg } => self.aborted(from, msg),
            Packet::Grant { msg, upto } => self.granted(XferId(msg), upto),
            Packet::Refuse { msg } => self.refused(XferId(msg)),
            Packet::Credit { bytes } => {
                if let Some(credit) = self.credit.get_mut(&from) {
                    *credit = CREDIT.min(credit.saturating_add(bytes));
                }
            }
            Packet::Bye => self.depart(from, Down::Left),
        }
        0
    }

    /// A peer is gone: what is pending with it fails, but for what has come whole.
    fn depart(&mut self, peer: Rank, how: Down) {
        if self.down.contains_key(&peer) {
            return;
        }
        self.down.insert(peer, how.clone());
        self.control.retain(|(to, _)| *to != peer);
        self.fail_sends(peer, &how);
        self.fail_receives(peer, &how);
        self.departed.push_back((peer, how));
    }

    /// Tells the sink of ends.
    fn report(&mut self, sink: &mut dyn Sink) -> u64 {
        let mut calls = 0;
        while let Some((id, result)) = self.ended.pop_front() {
            sink.done(id, result);
            calls += 1;
        }
        while let Some((peer, how)) = self.departed.pop_front() {
            sink.down(peer, how);
            calls += 1;
        }
        calls
    }

    fn has_work(&self) -> bool {
        !self.control.is_empty()
            || !self.ended.is_empty()
            || !self.departed.is_empty()
            || self.order.iter().any(|(_, id)| self.can_send(*id))
            || self.arrivals.values().any(|a| self.can_show(a))
    }
}
