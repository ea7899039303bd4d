//! Connections that are made when they are first needed.
//!
//! [`Reach`] is what that takes: an open port, and where the others have theirs.
//! One thread of a transport, `gaggle-dial-N`, has the port and all connections that are being made; it sleeps while there are none, and ends once every peer is connected or gone.
//! It is asked for a connection when a transfer is posted to a peer that has none: at once for a send, after [`RECEIVER`] for a receive, since its sender calls by itself.
//!
//! Two ranks may call each other at the same time.
//! The lower one's call is the one that counts from the moment in which it has given its proof; until then it takes the other's call for its own.
//! So the lower rank sends a call away (`Crossed`) exactly while the other may already have taken the lower's for made, and the higher one takes every call: both hold the same connection, whatever the order.
//! All of that is decided by the one thread, which also hears of departed peers: what a peer has been let in with before it left is handed over before its departure is.
//!
//! A call that fails is repeated, at growing distances, until the patience ends; one that the other side has taken, and not answered, is not failure but silence, of which the engine's deadlines tell.
//! A call that has given its proof has no time limit, since the other side may count on it.

use crate::{
    auth::{
        AuthError, Claim, Credentials, Initiator, Purpose, Refusal, SAID_BY_CALLER, SAID_BY_HOST,
        Step,
        gate::{Gate, GateLimits, Guest},
    },
    sockopt::{self, Tuning},
};
use gaggle_core::{Down, Rank};
use mio::{Events, Interest, Poll, Token, Waker, net::TcpStream};
use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};
use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener},
    os::fd::AsFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Token of the waker in the poll of a [`Reach`].
pub(crate) const WAKER: Token = Token(0);
/// Tokens of calls: this, plus the position of the peer. The gate counts up from far below.
const CALLS: usize = usize::MAX / 2;
/// Connections that have not proven themselves, at one time.
const HALF_OPEN: usize = 64;
/// From accept to proof.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a receive leaves it to its sender to call.
const RECEIVER: Duration = Duration::from_millis(50);
/// Calls under way at one time.
const PARALLEL: usize = 64;
/// Between attempts: from, doubling to.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// What strangers may cost a port of data links.
pub(crate) const LIMITS: GateLimits = GateLimits {
    half_open: HALF_OPEN,
    patience: PATIENCE,
    fickle: true,
};

/// Where a rank is reached.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// Who.
    pub rank: Rank,
    /// Where it listens.
    pub addr: SocketAddr,
    /// From where it is called, where that matters; the port is 0.
    pub from: Option<SocketAddr>,
}

/// An open port, and where the others have theirs: all that connections need which are made when they are first needed.
pub struct Reach {
    pub(crate) poll: Poll,
    pub(crate) waker: Waker,
    pub(crate) gate: Gate,
    pub(crate) creds: Credentials,
    /// Ascending.
    pub(crate) peers: Vec<Address>,
    /// Whoever has called already.
    pub(crate) come: Vec<(Rank, std::net::TcpStream)>,
}

impl std::fmt::Debug for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reach")
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

impl Reach {
    /// For `me`, which is called at `listener`; connections are only taken from `peers` that prove to belong to the job.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(
        me: Rank,
        listener: TcpListener,
        mut peers: Vec<Address>,
        creds: &Credentials,
    ) -> io::Result<Reach> {
        peers.sort_by_key(|peer| peer.rank);
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let name = me.to_string();
        Ok(Reach {
            gate: Gate::new(listener, poll.registry(), creds, me, LIMITS, &name)?,
            waker,
            poll,
            creds: creds.clone(),
            peers,
            come: Vec::new(),
        })
    }
}

/// How soon a connection is wanted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Want {
    /// Nobody wants it.
    Never,
    /// The other side is likely to call.
    Soon,
    /// Something is to be sent.
    Now,
    /// It is there.
    Made,
}

/// A connection that has been made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) idx: usize,
    pub(super) stream: TcpStream,
    /// What the socket had sent and received when it was.
    pub(super) baseline: Option<(u64, u64)>,
}

/// Why there is none.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// The peer is gone.
    Gone(Down),
    /// It cannot be reached: where, how long it was tried, and what the system says.
    Unreachable(String),
    /// It is reached and does not answer.
    Silent,
}

/// What transport and thread have to say to each other.
#[derive(Debug, Default)]
struct Desk {
    asked: Vec<(usize, Want)>,
    departed: Vec<(usize, Down)>,
    closing: Option<Instant>,
    come: Vec<Made>,
    failed: Vec<(usize, Failure)>,
    /// The thread has ended in a way that it should not.
    broken: Option<String>,
}

#[derive(Debug)]
struct Shared {
    desk: Mutex<Desk>,
    /// There is something in `come` or `failed`. Set under the desk's lock, so that whoever sees it finds what it stands for there.
    news: AtomicBool,
    /// Wakes the thread.
    inwards: Waker,
    /// Wakes whoever makes progress.
    outwards: Waker,
}

impl Shared {
    fn tell(&self, f: impl FnOnce(&mut Desk)) {
        let mut desk = self.desk.lock();
        f(&mut desk);
        self.news.store(true, Release);
        drop(desk);
        if let Err(e) = self.outwards.wake() {
            tracing::error!("a transport cannot be woken: {e}");
        }
    }

    fn ask(&self, f: impl FnOnce(&mut Desk)) {
        f(&mut self.desk.lock());
        if let Err(e) = self.inwards.wake() {
            tracing::error!("the dialling thread cannot be woken: {e}");
        }
    }
}

/// A transport's hold on its thread.
#[derive(Debug)]
pub(super) struct Dialling {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
}

impl Dialling {
    /// Starts the thread. `made` are positions of peers that have a connection; `outwards` wakes the transport.
    pub(super) fn start(
        me: Rank,
        reach: Reach,
        made: &[usize],
        tuning: Tuning,
        patience: Duration,
        outwards: Waker,
    ) -> io::Result<Dialling> {
        let Reach {
            poll,
            waker,
            gate,
            creds,
            peers,
            come: _,
        } = reach;
        let shared = Arc::new(Shared {
            desk: Mutex::new(Desk::default()),
            news: AtomicBool::new(false),
            inwards: waker,
            outwards,
        });
        let mut ways = vec![Way::Open; peers.len()];
        for idx in made {
            ways[*idx] = Way::Made;
        }
        let mut dialler = Dialler {
            me,
            creds,
            peers,
            tuning,
            patience,
            poll,
            gate: Some(gate),
            shared: Arc::clone(&shared),
            ways,
            dials: BTreeMap::new(),
            departed: BTreeMap::new(),
            closing: None,
        };
        let n_peers = dialler.peers.len();
        let thread = std::thread::Builder::new()
            .name(format!("gaggle-dial-{}", me.0))
            .spawn(move || {
                let shared = Arc::clone(&dialler.shared);
                let what = match catch_unwind(AssertUnwindSafe(|| dialler.run())) {
                    Ok(Ok(())) => return,
                    Ok(Err(e)) => format!("no connections can be made any more: {e}"),
                    Err(_) => "the dialling thread panicked".into(),
                };
                tracing::error!("{what}");
                shared.tell(|desk| {
                    for (idx, how) in std::mem::take(&mut desk.departed) {
                        desk.failed.push((idx, Failure::Gone(how)));
                    }
                    // Whoever is connected, or wants no connection, passes it over.
                    desk.asked.clear();
                    for idx in 0..n_peers {
                        desk.failed.push((idx, Failure::Unreachable(what.clone())));
                    }
                    desk.broken = Some(what);
                });
            })?;
        Ok(Dialling {
            shared,
            thread: Mutex::new(Some(thread)),
            pid: std::process::id(),
        })
    }

    /// A connection is wanted.
    pub(super) fn ask(&self, idx: usize, want: Want) {
        let mut broken = None;
        self.shared.ask(|desk| match &desk.broken {
            None => desk.asked.push((idx, want)),
            Some(what) => broken = Some(what.clone()),
        });
        if let Some(what) = broken {
            let failure = Failure::Unreachable(what);
            self.shared.tell(|desk| desk.failed.push((idx, failure)));
        }
    }

    /// A peer is gone. If it has no connection, that comes back as a failure.
    pub(super) fn depart(&self, idx: usize, how: Down) {
        let mut told = None;
        self.shared.ask(|desk| match &desk.broken {
            None => desk.departed.push((idx, how)),
            Some(_) => told = Some(how),
        });
        if let Some(how) = told {
            self.shared
                .tell(|desk| desk.failed.push((idx, Failure::Gone(how))));
        }
    }

    pub(super) fn has_news(&self) -> bool {
        self.shared.news.load(Acquire)
    }

    pub(super) fn take(&self) -> (Vec<Made>, Vec<(usize, Failure)>) {
        let mut desk = self.shared.desk.lock();
        self.shared.news.store(false, Release);
        (
            std::mem::take(&mut desk.come),
            std::mem::take(&mut desk.failed),
        )
    }

    /// Closes the port and ends the thread. Calls that the other side may count on are waited for until `deadline`.
    pub(super) fn close(&self, deadline: Instant) {
        // In a fork there is no thread, and the waker is the parent's.
        if self.pid != std::process::id() {
            return;
        }
        let Some(thread) = self.thread.lock().take() else {
            return;
        };
        self.shared.ask(|desk| desk.closing = Some(deadline));
        // Its panic has been reported.
        let _ = thread.join();
    }
}

impl Drop for Dialling {
    fn drop(&mut self) {
        self.close(Instant::now());
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Open,
    Made,
    Gone,
}

/// A connection that is wanted.
struct Dial {
    since: Instant,
    state: Attempt,
    /// Before the next attempt.
    pause: Duration,
    /// How the last one ended.
    why: Option<String>,
}

enum Attempt {
    Waiting(Instant),
    Connecting(TcpStream),
    Shaking(TcpStream, Box<Initiator>),
}

/// How an attempt ended.
struct Missed {
    why: String,
    /// Another one would end in the same way.
    is_final: bool,
    /// The other side is calling: that says less than whatever was met before.
    crossed: bool,
}

impl From<io::Error> for Missed {
    fn from(e: io::Error) -> Self {
        Missed {
            why: e.to_string(),
            is_final: false,
            crossed: false,
        }
    }
}

impl From<AuthError> for Missed {
    fn from(e: AuthError) -> Self {
        Missed {
            why: e.to_string(),
            is_final: e.is_final(),
            crossed: matches!(e, AuthError::Crossed { .. }),
        }
    }
}

impl Dial {
    /// Whether the other side may already take the connection for made.
    fn has_proven(&self) -> bool {
        matches!(&self.state, Attempt::Shaking(_, initiator) if initiator.has_proven())
    }

    /// Moves on as far as the socket lets it. The rank that answers, once it has let this one in.
    fn advance(
        &mut self,
        addr: SocketAddr,
        creds: &Credentials,
        me: Rank,
    ) -> Result<Option<Rank>, Missed> {
        if let Attempt::Connecting(stream) = &self.state {
            if !is_connected(stream)? {
                return Ok(None);
            }
            let claim = Claim {
                purpose: Purpose::Data,
                rank: me,
            };
            let initiator = Box::new(Initiator::new(creds, claim, addr.to_string())?);
            let Attempt::Connecting(mut stream) =
                std::mem::replace(&mut self.state, Attempt::Waiting(Instant::now()))
            else {
                return Ok(None);
            };
            say(&mut stream, initiator.hello())?;
            self.state = Attempt::Shaking(stream, initiator);
        }
        let Attempt::Shaking(stream, initiator) = &mut self.state else {
            return Ok(None);
        };
        loop {
            let n = match stream.read(initiator.room()) {
                Ok(0) => {
                    return Err(AuthError::Closed {
                        peer: addr.to_string(),
                    }
                    .into());
                }
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.into()),
            };
            match initiator.filled(n)? {
                Step::More => {}
                Step::Reply(reply) => say(stream, &reply)?,
                Step::Done(host) => return Ok(Some(host)),
            }
        }
    }
}

/// A few dozen bytes into an empty socket buffer: they fit.
fn say(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    match stream.write(bytes)? {
        n if n == bytes.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// False: not yet.
fn is_connected(stream: &TcpStream) -> io::Result<bool> {
    if let Some(e) = stream.take_error()? {
        return Err(e);
    }
    match stream.peer_addr() {
        // Where nobody listens on a port of the ephemeral range, TCP can connect a socket to itself.
        Ok(peer) if peer == stream.local_addr()? => Err(io::ErrorKind::ConnectionRefused.into()),
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(e) => Err(e),
    }
}

/// Begins to connect.
fn begin(peer: &Address) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(peer.addr), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if let Some(from) = peer.from {
        socket.bind(&from.into())?;
    }
    match socket.connect(&peer.addr.into()) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
        #[cfg(unix)]
        Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(e) => return Err(e),
    }
    Ok(TcpStream::from_std(socket.into()))
}

/// The thread.
struct Dialler {
    me: Rank,
    creds: Credentials,
    peers: Vec<Address>,
    tuning: Tuning,
    patience: Duration,
    poll: Poll,
    gate: Option<Gate>,
    shared: Arc<Shared>,
    ways: Vec<Way>,
    dials: BTreeMap<usize, Dial>,
    /// Who has left while it may have let this rank in.
    departed: BTreeMap<usize, Down>,
    closing: Option<Instant>,
}

impl Dialler {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(128);
        loop {
            self.take_orders();
            self.start_what_is_due();
            self.expire();
            let now = Instant::now();
            let late = self.closing.is_some_and(|deadline| deadline <= now);
            let closed = self.closing.is_some() && self.dials.is_empty();
            if late || closed || self.ways.iter().all(|way| *way != Way::Open) {
                return Ok(());
            }
            let limit = self.next().map(|at| at.saturating_duration_since(now));
            match self.poll.poll(&mut events, limit) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            for event in &events {
                match event.token().0.checked_sub(CALLS) {
                    Some(idx) => self.advance(idx),
                    None => self.serve(Some(event.token())),
                }
            }
            self.serve(None);
        }
    }

    /// When there is something to do although nothing happens.
    fn next(&self) -> Option<Instant> {
        let busy = self.calling() >= PARALLEL;
        let dials = self.dials.values().filter(|dial| !dial.has_proven());
        let dials = dials.flat_map(|dial| {
            let attempt = match dial.state {
                Attempt::Waiting(at) if !busy => Some(at),
                _ => None,
            };
            attempt.into_iter().chain([dial.since + self.patience])
        });
        let gate = self.gate.as_ref().and_then(Gate::next_deadline);
        dials.chain(gate).chain(self.closing).min()
    }

    fn calling(&self) -> usize {
        let waits = |dial: &&Dial| matches!(dial.state, Attempt::Waiting(_));
        self.dials.values().filter(|dial| !waits(dial)).count()
    }

    fn take_orders(&mut self) {
        let (asked, departed, closing) = {
            let mut desk = self.shared.desk.lock();
            let asked = std::mem::take(&mut desk.asked);
            (asked, std::mem::take(&mut desk.departed), desk.closing)
        };
        let now = Instant::now();
        for (idx, want) in asked {
            if self.ways[idx] != Way::Open || self.closing.is_some() {
                continue;
            }
            let at = if want == Want::Now {
                now
            } else {
                now + RECEIVER
            };
            let dial = self.dials.entry(idx).or_insert(Dial {
                since: now,
                state: Attempt::Waiting(at),
                pause: RETRY.0,
                why: None,
            });
            // Whoever has failed already waits for its next attempt.
            if let (Attempt::Waiting(due), None) = (&mut dial.state, &dial.why) {
                *due = at.min(*due);
            }
        }
        for (idx, how) in departed {
            if self.ways[idx] != Way::Open {
                continue;
            }
            let counted_on = self.dials.get(&idx).is_some_and(Dial::has_proven);
            if counted_on && how == Down::Left {
                self.departed.insert(idx, how);
            } else {
                self.gone(idx, how);
            }
        }
        if let (Some(deadline), None) = (closing, self.closing) {
            self.closing = Some(deadline);
            self.gate = None;
            self.dials.retain(|_, dial| dial.has_proven());
        }
    }

    fn gone(&mut self, idx: usize, how: Down) {
        self.dials.remove(&idx);
        self.departed.remove(&idx);
        self.ways[idx] = Way::Gone;
        self.shared
            .tell(|desk| desk.failed.push((idx, Failure::Gone(how))));
    }

    /// Begins as many of the calls that are due as may be under way.
    fn start_what_is_due(&mut self) {
        let now = Instant::now();
        let room = PARALLEL.saturating_sub(self.calling());
        let is_due = |dial: &Dial| matches!(dial.state, Attempt::Waiting(at) if at <= now);
        let due = self.dials.iter().filter(|(_, dial)| is_due(dial));
        let mut due: Vec<(Instant, usize)> = due.map(|(idx, dial)| (dial.since, *idx)).collect();
        due.sort_unstable();
        for (_, idx) in due.into_iter().take(room) {
            let begun = begin(&self.peers[idx]).and_then(|mut stream| {
                let interest = Interest::READABLE | Interest::WRITABLE;
                let token = Token(CALLS + idx);
                self.poll
                    .registry()
                    .register(&mut stream, token, interest)?;
                Ok(stream)
            });
            match begun {
                Ok(stream) => {
                    if let Some(dial) = self.dials.get_mut(&idx) {
                        dial.state = Attempt::Connecting(stream);
                    }
                    self.advance(idx);
                }
                Err(e) => self.missed(idx, e.into()),
            }
        }
    }

    /// Ends what has been tried for too long.
    fn expire(&mut self) {
        let now = Instant::now();
        let over = |dial: &Dial| !dial.has_proven() && dial.since + self.patience <= now;
        let over = self.dials.iter().filter(|(_, dial)| over(dial));
        for idx in over.map(|(idx, _)| *idx).collect::<Vec<_>>() {
            let Some(dial) = self.dials.remove(&idx) else {
                continue;
            };
            // Others have kept the places: nothing is known of this one.
            let untried = matches!(dial.state, Attempt::Waiting(..)) && dial.why.is_none();
            let why = dial.why.unwrap_or_else(|| "no answer".into());
            let failure = match dial.state {
                Attempt::Shaking(..) => Failure::Silent,
                _ if untried => Failure::Silent,
                _ => self.unreachable(idx, &format!(" within {:.1?}: {why}", self.patience)),
            };
            self.shared.tell(|desk| desk.failed.push((idx, failure)));
        }
    }

    fn unreachable(&self, idx: usize, what: &str) -> Failure {
        let Address { rank, addr, .. } = self.peers[idx];
        Failure::Unreachable(format!("{rank} at {addr} could not be connected{what}"))
    }

    fn advance(&mut self, idx: usize) {
        let Some(dial) = self.dials.get_mut(&idx) else {
            return;
        };
        let Address { rank, addr, .. } = self.peers[idx];
        match dial.advance(addr, &self.creds, self.me) {
            Ok(None) => {}
            Ok(Some(host)) if host == rank => {
                let dial = self.dials.remove(&idx);
                if let Some(Attempt::Shaking(stream, _)) = dial.map(|dial| dial.state) {
                    self.hand_over(idx, stream, (SAID_BY_CALLER, SAID_BY_HOST));
                }
            }
            Ok(Some(host)) => self.missed(
                idx,
                Missed {
                    why: format!("{host} answers there"),
                    is_final: true,
                    crossed: false,
                },
            ),
            Err(missed) => self.missed(idx, missed),
        }
    }

    /// An attempt has failed.
    fn missed(&mut self, idx: usize, missed: Missed) {
        if let Some(how) = self.departed.remove(&idx) {
            return self.gone(idx, how);
        }
        if self.closing.is_some() {
            self.dials.remove(&idx);
            return;
        }
        if missed.is_final {
            self.dials.remove(&idx);
            let failure = self.unreachable(idx, &format!(": {}", missed.why));
            return self.shared.tell(|desk| desk.failed.push((idx, failure)));
        }
        if let Some(dial) = self.dials.get_mut(&idx) {
            // What was being made is closed with this.
            dial.state = Attempt::Waiting(Instant::now() + dial.pause);
            dial.pause = (dial.pause * 2).min(RETRY.1);
            if !missed.crossed || dial.why.is_none() {
                dial.why = Some(missed.why);
            }
        }
    }

    /// Something has happened at the port, or (`None`) time has passed.
    fn serve(&mut self, token: Option<Token>) {
        let Some(gate) = &mut self.gate else {
            return;
        };
        let (mut guests, mut taken) = (Vec::<Guest>::new(), Vec::new());
        let (me, peers, ways, dials) = (self.me, &self.peers, &self.ways, &self.dials);
        let mut admit = |claim: Claim| {
            let found = peers.binary_search_by_key(&claim.rank, |peer| peer.rank);
            let open = |idx: &usize| ways[*idx] == Way::Open && !taken.contains(idx);
            let Some(idx) = found
                .ok()
                .filter(open)
                .filter(|_| claim.purpose == Purpose::Data)
            else {
                return Err(Refusal::Unwanted);
            };
            if me < claim.rank && dials.get(&idx).is_some_and(Dial::has_proven) {
                return Err(Refusal::Crossed);
            }
            taken.push(idx);
            Ok(())
        };
        let registry = self.poll.registry();
        match token {
            Some(token) => gate.ready(registry, token, &mut admit, &mut guests),
            None => gate.expire(registry, Instant::now(), &mut admit, &mut guests),
        }
        for guest in guests {
            let found = self
                .peers
                .binary_search_by_key(&guest.claim.rank, |peer| peer.rank);
            if let Ok(idx) = found {
                self.dials.remove(&idx);
                self.hand_over(idx, guest.stream, (SAID_BY_HOST, SAID_BY_CALLER));
            }
        }
    }

    /// A connection is made; until now `said` has gone to it and come from it.
    fn hand_over(&mut self, idx: usize, mut stream: TcpStream, said: (u64, u64)) {
        self.departed.remove(&idx);
        self.ways[idx] = Way::Made;
        let baseline = sockopt::counters(stream.as_fd()).map(|_| said);
        // The other side takes it for made: should anything here fail, using it will tell.
        let _ = self.poll.registry().deregister(&mut stream);
        let stream = std::net::TcpStream::from(stream);
        if let Err(e) = sockopt::tune(&stream, &self.tuning) {
            tracing::debug!("the connection with {}: {e}", self.peers[idx].rank);
        }
        let made = Made {
            idx,
            stream: TcpStream::from_std(stream),
            baseline,
        };
        self.shared.tell(|desk| desk.come.push(made));
    }
}

#[cfg(test)]
mod tests;
