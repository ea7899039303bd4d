//! Ranks over TCP: one connection per peer, framed as [`frame`](crate::frame) says.
//!
//! [`TcpTransport`] takes connections that are made and authenticated, or makes each when it is first needed (`dial.rs`, [`Reach`]).
//! Whoever calls `progress` owns the sockets for that time: nothing blocks, readiness is edge-triggered, and reading comes before writing, so that two ranks that send to each other cannot wait for each other.
//! What leaves is chosen frame by frame, when the socket takes more, by priority and with a share for whoever waits longest (`queue.rs`): an urgent message waits for what the kernel has taken and for the rest of one frame.
//! What has come is shown to the sink in the input buffer; what leaves is filled by the sink into the output buffer, behind its header, and goes out with it in one write.
//! A sink that leaves bytes unconsumed stalls its link's reading until it takes them: nothing is set aside beyond the credit.
//!
//! Leaving flushes what has been framed and finishes begun messages as aborted: the bytes of a send that has not begun are still the sink's, and there is none.
//!
//! A stranger's bytes can close a link, and nothing else: they size no allocation, and what is held of them is bounded by the credit.

mod dial;
mod lent;
mod link;
mod queue;
mod raw_loan;
mod read;
mod run;
mod state;
mod write;

use crate::{
    frame::Header,
    pieces,
    shm::{ShmLink, ring::Side},
    sockopt,
};
pub use dial::{Address, Reach};
pub(crate) use dial::{LIMITS, WAKER};

use dial::{Dialling, Want};
use gaggle_core::{
    Armed, Dir, Down, HEAD_MAX, Inlet, LinkStats, MsgKey, OpId, Outlet, Rank, Sink, Transfer,
    Transport, TransportError, Verdict, Wake, XferId,
};
use lent::{Heaps, Lent};
use link::Link;
use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::{Condvar, Mutex};
use run::{Run, Tally};
use state::{NONE, POSTED_MAX, Slot, State};
use std::{
    io,
    net::TcpStream,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
            fence,
        },
    },
    time::{Duration, Instant},
};

/// Token of what wakes whoever makes progress when a connection is there.
const NEWS: Token = Token(usize::MAX);
/// How long what is not told of is waited for before the next look.
const BRIEFLY: Duration = Duration::from_millis(1);

/// Longest patience: longer ones have no instant at their end.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// How the sockets are set up.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Idle time after which a silent peer's host is asked whether it is there, and how often.
    pub keepalive: Duration,
    /// How long sent bytes may stay unacknowledged before the connection counts as broken; `None` leaves it to the system. Linux only.
    ///
    /// Linux counts the time in which a live peer reads nothing and its window is closed, too: a value below the longest time that a rank may be absent breaks good links.
    pub user_timeout: Option<Duration>,
    /// Unsent bytes in the kernel that can no longer be overtaken by more urgent ones; about as much again is what the socket takes at a time. Linux only.
    ///
    /// It bounds nothing on a link that is faster than its ranks: what is sent at once is never unsent.
    pub unsent: u32,
    /// How long a peer that cannot be connected is called, from the first transfer that needs it, before it counts as lost. A peer that is reached and does not answer is waited for.
    pub patience: Duration,
}

impl TcpConfig {
    fn tuning(&self) -> sockopt::Tuning {
        sockopt::Tuning {
            keepalive: self.keepalive,
            user_timeout: self.user_timeout,
            unsent: self.unsent,
        }
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        TcpConfig {
            keepalive: Duration::from_secs(10),
            // Dead hosts are the control plane's to notice.
            user_timeout: None,
            unsent: 32 << 10,
            patience: Duration::from_secs(60),
        }
    }
}

/// One rank's connections.
///
/// Dropped without [`leave`](Transport::leave), it is lost to its peers.
#[derive(Debug)]
pub struct TcpTransport {
    me: Rank,
    peers: Vec<Rank>,
    state: Mutex<State>,
    /// A callback has returned.
    called: Condvar,
    io: Mutex<Io>,
    /// The selector, for whoever sleeps.
    selector: OwnedFd,
    counts: Counts,
    name: &'static str,
    /// Rings among the links.
    sides: Vec<Arc<Side>>,
    /// Somebody sleeps, or is about to, until a bell rings.
    armed: AtomicBool,
    /// Makes connections when they are first needed.
    dialling: Option<Dialling>,
    /// What is mapped of the peers' memory, and they of this rank's.
    heaps: Heaps,
    /// Sockets were read without the selector's being asked: it may still have to tell of what has been read since.
    unasked: AtomicBool,
    /// Somebody wants to sleep on the selector: the next call asks it, so that it has nothing old to tell.
    ask: AtomicBool,
}

/// What belongs to whoever makes progress.
#[derive(Debug)]
struct Io {
    poll: Poll,
    events: Events,
    links: Vec<Link>,
    /// The link that comes first this time.
    turn: usize,
    /// How many links are sockets.
    sockets: usize,
    /// Counts calls.
    asked: u32,
    /// The last call has moved something.
    moved: bool,
}

/// Only ever added to, and read as a snapshot of independent numbers: relaxed is enough.
#[derive(Debug, Default)]
struct Counts {
    payload_sent: AtomicU64,
    payload_received: AtomicU64,
    lent_sent: AtomicU64,
    lent_received: AtomicU64,
    header_sent: AtomicU64,
    header_received: AtomicU64,
    control_sent: AtomicU64,
    control_received: AtomicU64,
    frames_sent: AtomicU64,
    frames_received: AtomicU64,
    early: AtomicU64,
    connections: AtomicU64,
}

impl Counts {
    fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Relaxed);
    }
}

/// While it exists, whoever cancels the transfer waits.
#[derive(Debug)]
struct Calling<'a> {
    t: &'a TcpTransport,
    id: XferId,
    open: bool,
}

impl<'a> Calling<'a> {
    fn begin(t: &'a TcpTransport, st: &mut State, id: XferId) -> Self {
        st.calling = Some(id);
        Calling { t, id, open: true }
    }

    /// The transfer.
    fn id(&self) -> XferId {
        self.id
    }

    /// Ends it under the lock that the caller holds already.
    fn end(mut self, st: &mut State) {
        self.open = false;
        st.calling = None;
        self.t.called.notify_all();
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        if self.open {
            self.t.state.lock().calling = None;
            self.t.called.notify_all();
        }
    }
}

impl TcpTransport {
    /// Takes over connections, one per peer.
    ///
    /// # Errors
    /// Two connections to one rank, one to `me`, or what the system says about a socket.
    pub fn new(
        me: Rank,
        mut links: Vec<(Rank, TcpStream)>,
        config: TcpConfig,
    ) -> io::Result<TcpTransport> {
        links.sort_by_key(|(rank, _)| *rank);
        Self::check(me, links.iter().map(|(rank, _)| *rank))?;
        let tuning = config.tuning();
        let mut made = Vec::with_capacity(links.len());
        for (rank, stream) in links {
            stream.set_nonblocking(true)?;
            sockopt::tune(&stream, &tuning)?;
            made.push((rank, Link::tcp(mio::net::TcpStream::from_std(stream))));
        }
        Self::over(me, made, "tcp")
    }

    /// Makes connections when they are first needed, and takes those of others. Spawns one thread, `gaggle-dial-N`, that ends once all peers are connected or gone.
    ///
    /// Peers that are not connected are told apart from lost ones by [`departed`](Transport::departed) alone.
    ///
    /// # Errors
    /// A rank that is there twice, or is `me`; what the system says about a socket or thread.
    pub fn reaching(me: Rank, mut reach: Reach, config: TcpConfig) -> io::Result<TcpTransport> {
        Self::check(me, reach.peers.iter().map(|peer| peer.rank))?;
        let peers: Vec<Rank> = reach.peers.iter().map(|peer| peer.rank).collect();
        let mut links: Vec<Link> = peers.iter().map(|_| Link::absent()).collect();
        let (mut wants, mut made) = (vec![Want::Never; peers.len()], Vec::new());
        let tuning = config.tuning();
        for (rank, stream) in std::mem::take(&mut reach.come) {
            let Ok(i) = peers.binary_search(&rank) else {
                continue;
            };
            stream.set_nonblocking(true)?;
            sockopt::tune(&stream, &tuning)?;
            let stream = mio::net::TcpStream::from_std(stream);
            links[i] = Link::tcp(stream);
            wants[i] = Want::Made;
            made.push(i);
        }
        let mut t = Self::over(me, peers.into_iter().zip(links).collect(), "tcp")?;
        t.state.get_mut().wants = wants;
        let outwards = Waker::new(t.io.get_mut().poll.registry(), NEWS)?;
        let patience = config.patience.min(FOR_EVER);
        let dialling = Dialling::start(me, reach, &made, tuning, patience, outwards)?;
        t.dialling = Some(dialling);
        Ok(t)
    }

    /// Peers with which there is a connection, ascending.
    pub fn connected(&self) -> Vec<Rank> {
        let io = self.io.lock();
        let links = self.peers.iter().zip(&io.links);
        let made = links.filter(|(_, link)| link.is_made() && !link.closed);
        made.map(|(rank, _)| *rank).collect()
    }

    /// A transfer needs a connection that may not be there.
    fn want(&self, st: &mut State, i: usize, dir: Dir) {
        let want = match dir {
            Dir::Send => Want::Now,
            Dir::Recv => Want::Soon,
        };
        if let (Some(has), Some(dialling)) = (st.wants.get_mut(i), &self.dialling)
            && *has < want
        {
            *has = want;
            dialling.ask(i, want);
        }
    }

    /// The same protocol through rings in shared memory.
    ///
    /// # Errors
    /// Two links to one rank, one to `me`, or what the system says about a socket.
    pub(crate) fn rings(me: Rank, mut links: Vec<(Rank, ShmLink)>) -> io::Result<TcpTransport> {
        links.sort_by_key(|(rank, _)| *rank);
        Self::check(me, links.iter().map(|(rank, _)| *rank))?;
        let made: io::Result<Vec<_>> = links
            .into_iter()
            .map(|(rank, link)| Ok((rank, Link::ring(link)?)))
            .collect();
        Self::over(me, made?, "shm")
    }

    fn check(me: Rank, peers: impl Iterator<Item = Rank>) -> io::Result<()> {
        let mut last = None;
        for rank in peers {
            if rank == me || last == Some(rank) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!(
                        "{me} needs one connection to every other rank, {rank} is one too many"
                    ),
                ));
            }
            last = Some(rank);
        }
        Ok(())
    }

    /// Links ascending by rank.
    fn over(me: Rank, links: Vec<(Rank, Link)>, name: &'static str) -> io::Result<TcpTransport> {
        let poll = Poll::new()?;
        let peers: Vec<Rank> = links.iter().map(|(rank, _)| *rank).collect();
        let mut links: Vec<Link> = links.into_iter().map(|(_, link)| link).collect();
        let interest = Interest::READABLE | Interest::WRITABLE;
        for (i, link) in links.iter_mut().enumerate() {
            // A bell's room does not matter.
            let interest = match link.side() {
                Some(_) => Interest::READABLE,
                None => interest,
            };
            if let Some(source) = link.source() {
                poll.registry().register(source, Token(i), interest)?;
            }
        }
        let sides: Vec<_> = links.iter().filter_map(Link::side).cloned().collect();
        let connected = |l: &&Link| l.is_made() && l.side().is_none();
        let connections = links.iter().filter(connected).count();
        let counts = Counts::default();
        Counts::add(&counts.connections, connections);
        let selector = poll.registry().as_fd().try_clone_to_owned()?;
        Ok(TcpTransport {
            me,
            state: Mutex::new(State::new(&peers)),
            peers,
            called: Condvar::new(),
            io: Mutex::new(Io {
                poll,
                events: Events::with_capacity(64),
                sockets: connections,
                links,
                turn: 0,
                asked: 0,
                moved: false,
            }),
            selector,
            counts,
            name,
            sides,
            armed: AtomicBool::new(false),
            dialling: None,
            heaps: Heaps(None),
            unasked: AtomicBool::new(false),
            ask: AtomicBool::new(false),
        })
    }

    /// Has this rank woken by every ring. True: some ring has something already.
    fn arm_rings(&self) -> bool {
        let mut any = false;
        for side in &self.sides {
            any |= side.arm();
        }
        any
    }

    /// Bytes that the sockets themselves have sent (without what they sent again) and received since they were handed over; `None` where the system does not say.
    ///
    /// Once everything is flushed they are the sums of payload, header and control in [`stats`](Transport::stats).
    pub fn socket_counters(&self) -> Option<(u64, u64)> {
        let io = self.io.lock();
        io.links.iter().try_fold((0, 0), |sum, link| {
            let (sent, received) = link.counters()?;
            Some((sum.0 + sent, sum.1 + received))
        })
    }

    fn misuse(peer: Rank, what: &'static str) -> TransportError {
        TransportError::Misuse { peer, what }
    }

    fn post_send(
        &self,
        st: &mut State,
        i: usize,
        t: &Transfer<'_>,
        lent: Option<Lent>,
    ) -> Result<XferId, TransportError> {
        let count = st.next();
        let id = pieces::xfer_id(count, st.slots.next());
        let tables = &mut st.links[i];
        if let Some(error) = tables.down_error() {
            return Err(error);
        }
        if tables.sends.contains_key(&t.key) || tables.unsettled.contains_key(&t.key) {
            return Err(Self::misuse(t.peer, "the key is in use"));
        }
        let granted = tables.granted.remove(&t.key);
        let place = st.slots.insert(slot_for(t, id, i));
        if let Some(slot) = st.slots.get_mut(place) {
            slot.granted = granted;
            slot.lent = lent;
            slot.loan = t.loan.filter(|_| self.sides.is_empty());
        }
        st.links[i].sends.insert(t.key, place);
        st.push(id);
        Ok(id)
    }

    fn post_recv(
        &self,
        st: &mut State,
        i: usize,
        t: &Transfer<'_>,
    ) -> Result<XferId, TransportError> {
        let count = st.next();
        let id = pieces::xfer_id(count, st.slots.next());
        let tables = &mut st.links[i];
        let known = tables.keys.get(&t.key).copied();
        if let Some(error) = tables.down_error()
            && !known.is_some_and(|place| tables.is_whole(place))
        {
            return Err(error);
        }
        if tables.posted >= POSTED_MAX {
            return Err(Self::misuse(t.peer, "too many receives are posted"));
        }
        let place = known.unwrap_or_else(|| tables.add(count, t.key));
        let Some(m) = tables.messages.get_mut(place) else {
            return Err(Self::misuse(t.peer, "the key is in use"));
        };
        if m.recv != NONE || (m.dropped && m.begun) {
            return Err(Self::misuse(t.peer, "the key is in use"));
        }
        m.dropped = false;
        let slot = st.slots.insert(slot_for(t, id, i));
        m.recv = slot;
        let (begun, uid) = (m.begun, m.uid);
        tables.posted += 1;
        if begun {
            st.deliver.push_back((i, place, uid));
        } else {
            tables.grant(place);
        }
        if let Some(slot) = st.slots.get_mut(slot) {
            slot.message = place;
        }
        Ok(id)
    }

    /// Whether all that was accepted and needs no sink has been handed to the kernel.
    fn flush(&self, run: &mut Run<'_>, deadline: Instant) {
        loop {
            run.tally.left = usize::MAX;
            for i in 0..self.peers.len() {
                run.write_link(i);
            }
            let queued = self
                .state
                .lock()
                .links
                .iter()
                .zip(&run.io.links)
                .any(|(l, link)| link.is_made() && l.down.is_none() && !l.control.is_empty());
            let flushed = run.io.links.iter().all(Link::is_flushed);
            let left = deadline.saturating_duration_since(Instant::now());
            if (flushed && !queued) || left.is_zero() {
                return;
            }
            // Nobody has asked the peers to ring.
            let rings = !self.sides.is_empty();
            run.poll(if rings { left.min(BRIEFLY) } else { left });
        }
    }
}

fn slot_for(t: &Transfer<'_>, id: XferId, link: usize) -> Slot {
    let mut head = [0; HEAD_MAX];
    head[..t.head.len()].copy_from_slice(t.head);
    Slot {
        id,
        dir: t.dir,
        link,
        key: t.key,
        bytes: t.bytes,
        unit: t.unit,
        priority: t.priority,
        head,
        head_len: t.head.len(),
        loan: None,
        at: 0,
        begun: false,
        granted: false,
        charged: 0,
        job: 0,
        message: NONE,
        cancelled: false,
        lent: None,
    }
}

impl Transport for TcpTransport {
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
        let lent = self.lend(&t);
        let mut st = self.state.lock();
        pieces::check(self.me, &self.peers, st.slots.next(), &t)?;
        let Ok(i) = self.peers.binary_search(&t.peer) else {
            return Err(TransportError::NoLink(t.peer));
        };
        if st.left {
            return Err(Self::misuse(t.peer, "this rank has left"));
        }
        st.dirty = true;
        let id = match t.dir {
            Dir::Send => self.post_send(&mut st, i, &t, lent),
            Dir::Recv => self.post_recv(&mut st, i, &t),
        }?;
        self.want(&mut st, i, t.dir);
        Ok(id)
    }

    fn cancel(&self, id: XferId) {
        let mut st = self.state.lock();
        if let Some(slot) = st.slot(id) {
            slot.cancelled = true;
        }
        while st.calling == Some(id) {
            self.called.wait(&mut st);
        }
        if let Some(out) = st.slot(id).and_then(|s| s.out()) {
            self.recall(&mut st, out);
        }
        st.take_back(id);
        st.dirty = true;
    }

    fn taken(&self, id: XferId) {
        self.was_read(id);
    }

    fn forget(&self, op: OpId) {
        let mut st = self.state.lock();
        let mut any = false;
        for tables in &mut st.links {
            // Nothing of ours will be sent for it any more.
            if !tables.granted.is_empty() {
                tables.granted.retain(|key| key.op != op);
            }
            let mut from = 0;
            while let Some(place) = tables.unposted(op, from) {
                tables.discard(place);
                from = place + 1;
                any = true;
            }
        }
        st.dirty |= any;
    }

    fn progress(&self, sink: &mut dyn Sink, budget: usize) -> u64 {
        let Some(mut io) = self.io.try_lock() else {
            return 0;
        };
        let mut run = Run {
            t: self,
            io: &mut io,
            sink,
            tally: Tally {
                calls: 0,
                left: budget.max(1),
            },
        };
        // Bytes that were read and dropped make no callback; with more to come they are progress all the same.
        let (calls, left) = run.progress();
        io.moved = calls > 0;
        match (calls, left) {
            (0, true) => 1,
            (calls, _) => calls,
        }
    }

    fn arm(&self) -> Armed<'_> {
        if !self.sides.is_empty() {
            self.armed.store(true, SeqCst);
            // With the one in `note_what_is_left`.
            fence(SeqCst);
            if self.arm_rings() {
                return Armed::MoreToDo;
            }
        }
        let st = self.state.lock();
        let news = || self.dialling.as_ref().is_some_and(Dialling::has_news);
        if st.left {
            Armed::Wakes
        } else if st.dirty || st.more || news() {
            Armed::MoreToDo
        } else if st.waiting {
            // Only the sink knows when it will want what it has just left.
            Armed::PollAfter(Duration::from_micros(200))
        } else if self.unasked.load(SeqCst) {
            // Otherwise it would tell of what has been read already, and wake at once.
            self.ask.store(true, SeqCst);
            Armed::MoreToDo
        } else {
            Armed::Fd(self.selector.as_fd())
        }
    }

    fn woke(&self) {
        self.armed.store(false, SeqCst);
    }

    fn wants_loans(&self) -> bool {
        // A ring is filled in place.
        self.sides.is_empty() || self.heaps.0.is_some()
    }

    fn reads_ordinary(&self) -> bool {
        // Into a socket, on this side.
        self.sides.is_empty()
    }

    fn attach(&self, _wake: Arc<dyn Wake>) {
        // The selector says everything; see `arm`.
    }

    fn leave(&self, limit: Duration) {
        let deadline = crate::auth::deadline_in(limit);
        let mut io = self.io.lock();
        {
            let mut st = self.state.lock();
            if st.left {
                return;
            }
            // What has begun and cannot be finished without the sink is taken back.
            for place in 0..st.slots.end() {
                let begun = st
                    .slots
                    .get(place)
                    .filter(|s| s.dir == Dir::Send && s.begun);
                if let Some((id, out)) = begun.map(|s| (s.id, s.out())) {
                    if let Some(out) = out {
                        self.recall(&mut st, out);
                    }
                    st.take_back(id);
                }
            }
        }
        let mut run = Run {
            t: self,
            io: &mut io,
            sink: &mut Deaf,
            tally: Tally {
                calls: 0,
                left: usize::MAX,
            },
        };
        if let Some(dialling) = &self.dialling {
            // The goodbyes need a part of the time, too.
            let now = Instant::now();
            dialling.close(now + deadline.saturating_duration_since(now) / 2);
            // Whoever has been let in until now hears the goodbye.
            run.take_news();
            let mut st = self.state.lock();
            for (tables, link) in st.links.iter_mut().zip(&run.io.links) {
                if !link.is_made() {
                    tables.control.clear();
                }
            }
        }
        self.flush(&mut run, deadline);
        {
            let mut st = self.state.lock();
            st.left = true;
            let links = st.links.iter_mut().zip(&run.io.links);
            for (tables, _) in links.filter(|(t, link)| t.down.is_none() && link.is_made()) {
                tables.control.push_back(Header::goodbye());
            }
        }
        self.flush(&mut run, deadline);
        // Closing a socket with unread input would destroy what the peer has not yet received.
        loop {
            let mut under_way = false;
            for link in run.io.links.iter_mut().filter(|l| !l.closed) {
                under_way |= link.linger();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !under_way || left.is_zero() {
                break;
            }
            run.poll(left.min(BRIEFLY));
        }
        for link in run.io.links.iter().filter(|l| !l.closed) {
            link.shut();
        }
    }

    fn departed(&self, peer: Rank, how: &Down) {
        if let (Ok(i), Some(dialling)) = (self.peers.binary_search(&peer), &self.dialling) {
            dialling.depart(i, how.clone());
        }
    }

    fn stats(&self) -> LinkStats {
        let c = &self.counts;
        let mut s = LinkStats::default();
        s.payload_sent = c.payload_sent.load(Relaxed);
        s.payload_received = c.payload_received.load(Relaxed);
        s.lent_sent = c.lent_sent.load(Relaxed);
        s.lent_received = c.lent_received.load(Relaxed);
        s.header_sent = c.header_sent.load(Relaxed);
        s.header_received = c.header_received.load(Relaxed);
        s.control_sent = c.control_sent.load(Relaxed);
        s.control_received = c.control_received.load(Relaxed);
        s.frames_sent = c.frames_sent.load(Relaxed);
        s.frames_received = c.frames_received.load(Relaxed);
        s.early_messages = c.early.load(Relaxed);
        s.connections = c.connections.load(Relaxed);
        s
    }
}

/// The sink of a rank that is leaving: it has nothing more to give and wants nothing.
#[derive(Debug)]
struct Deaf;

impl Sink for Deaf {
    fn outgoing(&mut self, _id: XferId, _at: u64, _out: &mut dyn Outlet) {}
    fn opened(&mut self, _id: XferId, _head: &[u8]) -> Verdict {
        Verdict::Refuse
    }
    fn incoming(&mut self, _id: XferId, _at: u64, _part: &mut dyn Inlet) {}
    fn unexpected(&mut self, _from: Rank, _key: MsgKey, _head: &[u8]) -> Verdict {
        Verdict::Refuse
    }
    fn done(&mut self, _id: XferId, _result: Result<(), TransportError>) {}
    fn down(&mut self, _peer: Rank, _how: Down) {}
}

#[cfg(test)]
mod tests;
