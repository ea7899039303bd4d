//! The store's server: one thread for all clients, known or not.

use super::{
    table::Table,
    wire::{self, Reply, Request},
};
use crate::auth::{
    Claim, Credentials, NOBODY, Purpose, Refusal, deadline_in,
    gate::{Gate, GateLimits, Guest},
};
use gaggle_core::Rank;
use mio::{Events, Interest, Poll, Token, Waker, net::TcpStream};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

const WAKER: Token = Token(0);
/// Answers that a client does not read are kept up to this many bytes; beyond it the connection is closed.
const OUT_MAX: usize = 4 << 20;
/// Read from one client before the next has its turn.
const TURN: usize = 256 * 1024;

/// How many clients, and how patient.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreConfig {
    /// Ranks of the job; claims of other ranks are refused.
    pub world: u32,
    /// Connections beyond one per rank (several clients of one rank, the launcher's own).
    pub slack: u32,
    /// Connections that have not proven themselves, at one time.
    pub half_open: usize,
    /// From accept to proof.
    pub handshake: Duration,
}

impl StoreConfig {
    /// For a job of `world` ranks: 64 half-open connections of 5 s each, 16 connections beyond one per rank.
    pub fn new(world: u32) -> StoreConfig {
        StoreConfig {
            world,
            slack: 16,
            half_open: 64,
            handshake: Duration::from_secs(5),
        }
    }
}

/// Who has been seen by a store's server; ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Roster {
    /// Ranks that have proven themselves at least once.
    pub joined: Vec<Rank>,
    /// Ranks of them that have said goodbye.
    pub left: Vec<Rank>,
    /// Ranks of them whose connections have all ended without a goodbye.
    pub vanished: Vec<Rank>,
}

#[derive(Default)]
struct Seen {
    connections: usize,
    left: bool,
}

impl Seen {
    fn gone(&self) -> bool {
        self.connections == 0 || self.left
    }
}

struct Shared {
    stop: AtomicBool,
    seen: Mutex<BTreeMap<Rank, Seen>>,
    changed: Condvar,
}

/// A store that other processes reach over TCP. Served by one thread, `gaggle-store`, until it is dropped.
#[must_use = "the store ends when it is dropped"]
pub struct StoreServer {
    addr: SocketAddr,
    shared: Arc<Shared>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl StoreServer {
    /// Serves at `addr`; port 0 means any free one, see [`StoreServer::addr`].
    ///
    /// # Errors
    /// The address cannot be bound, or the thread or its poll cannot be made.
    pub fn bind(
        addr: SocketAddr,
        creds: &Credentials,
        config: StoreConfig,
    ) -> io::Result<StoreServer> {
        StoreServer::from_listener(TcpListener::bind(addr)?, creds, config)
    }

    /// Serves on a listener that is already bound, by a parent process for example.
    ///
    /// # Errors
    /// The thread or its poll cannot be made.
    pub fn from_listener(
        listener: TcpListener,
        creds: &Credentials,
        config: StoreConfig,
    ) -> io::Result<StoreServer> {
        let addr = listener.local_addr()?;
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let limits = GateLimits {
            half_open: config.half_open,
            patience: config.handshake,
            fickle: false,
        };
        let gate = Gate::new(
            listener,
            poll.registry(),
            creds,
            NOBODY,
            limits,
            &format!("store at {addr}"),
        )?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            seen: Mutex::default(),
            changed: Condvar::new(),
        });
        let service = Service {
            poll,
            gate,
            config,
            shared: Arc::clone(&shared),
            table: Table::default(),
            clients: HashMap::new(),
        };
        let thread = std::thread::Builder::new()
            .name("gaggle-store".into())
            .spawn(move || service.run())?;
        Ok(StoreServer {
            addr,
            shared,
            waker,
            thread: Some(thread),
        })
    }

    /// Where it listens, with the port that was chosen.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Who has been seen so far. A rank that ended and is not in `joined` has never reached this store.
    pub fn roster(&self) -> Roster {
        let mut roster = Roster::default();
        for (rank, seen) in self.shared.seen.lock().iter() {
            roster.joined.push(*rank);
            if seen.left {
                roster.left.push(*rank);
            } else if seen.connections == 0 {
                roster.vanished.push(*rank);
            }
        }
        roster
    }

    /// The ranks that have proven themselves at least once.
    pub fn joined(&self) -> Vec<Rank> {
        self.roster().joined
    }

    /// Waits until each of `world` ranks has joined and then said goodbye or vanished, at most `limit`. Returns those that have not.
    pub fn linger(&self, world: u32, limit: Duration) -> Vec<Rank> {
        let deadline = deadline_in(limit);
        let mut seen = self.shared.seen.lock();
        loop {
            let present: Vec<Rank> = (0..world)
                .map(Rank)
                .filter(|r| !seen.get(r).is_some_and(Seen::gone))
                .collect();
            if present.is_empty() || self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                return present;
            }
            if self
                .shared
                .changed
                .wait_until(&mut seen, deadline)
                .timed_out()
            {
                return present;
            }
        }
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        // Relaxed would do: the wake-up that follows is a system call, and the thread is joined.
        self.shared.stop.store(true, Ordering::SeqCst);
        if self.waker.wake().is_ok()
            && let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("store at {}: its thread panicked", self.addr);
        }
    }
}

struct Client {
    stream: TcpStream,
    rank: Rank,
    addr: SocketAddr,
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
}

struct Service {
    poll: Poll,
    gate: Gate,
    config: StoreConfig,
    shared: Arc<Shared>,
    table: Table,
    clients: HashMap<Token, Client>,
}

impl Service {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut again = Vec::new();
        loop {
            let timeout = if again.is_empty() {
                [self.gate.next_deadline(), self.table.next_deadline()]
                    .into_iter()
                    .flatten()
                    .min()
                    .map(|at| at.saturating_duration_since(Instant::now()))
            } else {
                Some(Duration::ZERO)
            };
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    tracing::error!("the store's poll failed, it ends: {e}");
                    return;
                }
            }
            if self.shared.stop.load(Ordering::SeqCst) {
                return;
            }
            let turn: Vec<Token> = std::mem::take(&mut again);
            for token in turn.into_iter().chain(events.iter().map(|e| e.token())) {
                if !self.clients.contains_key(&token) {
                    again.extend(self.shake_hands(Some(token)));
                } else if self.serve(token) {
                    again.push(token);
                }
            }
            again.extend(self.shake_hands(None));
            let mut out = Vec::new();
            self.table.expire(Instant::now(), &mut out);
            self.deliver(out);
        }
    }

    /// Goes on with the handshake on `token`, or ends those whose time is over. Returns who has become a client: it is one before anything else happens.
    fn shake_hands(&mut self, token: Option<Token>) -> Vec<Token> {
        let mut guests = Vec::new();
        let (config, mut open) = (&self.config, self.clients.len());
        // Several may be admitted before the first of them is welcomed.
        let mut admit = |claim| admit(config, open, claim).inspect(|()| open += 1);
        let registry = self.poll.registry();
        match token {
            Some(token) => self.gate.ready(registry, token, &mut admit, &mut guests),
            None => self
                .gate
                .expire(registry, Instant::now(), &mut admit, &mut guests),
        }
        let tokens = guests.iter().map(|g| g.token).collect();
        for guest in guests {
            self.welcome(guest);
        }
        tokens
    }

    fn welcome(&mut self, guest: Guest) {
        let Guest {
            token,
            mut stream,
            claim,
            addr,
        } = guest;
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self
            .poll
            .registry()
            .reregister(&mut stream, token, interest)
            .is_err()
        {
            return;
        }
        // Small answers should not wait for each other; without the option they are only slower.
        let _ = stream.set_nodelay(true);
        if claim.rank != NOBODY {
            self.shared
                .seen
                .lock()
                .entry(claim.rank)
                .or_default()
                .connections += 1;
        }
        self.clients.insert(
            token,
            Client {
                stream,
                rank: claim.rank,
                addr,
                input: Vec::new(),
                output: Vec::new(),
                written: 0,
            },
        );
    }

    /// Reads, answers and writes; returns whether the client has more to read than its turn allowed.
    fn serve(&mut self, token: Token) -> bool {
        let Some(client) = self.clients.get_mut(&token) else {
            return false;
        };
        let (more, requests) = match client.take_requests() {
            Ok(taken) => taken,
            Err(why) => {
                self.close(token, &why);
                return false;
            }
        };
        let rank = client.rank;
        let mut out = Vec::new();
        for (id, request) in requests {
            if request == Request::Bye && rank != NOBODY {
                if let Some(seen) = self.shared.seen.lock().get_mut(&rank) {
                    seen.left = true;
                }
                self.shared.changed.notify_all();
            }
            let ticket = (token.0 as u64, id);
            self.table
                .request(ticket, request, Instant::now(), &mut out);
        }
        self.deliver(out);
        self.flush(token);
        more
    }

    fn deliver(&mut self, out: Vec<((u64, u64), Reply)>) {
        let mut touched = Vec::new();
        for ((client, id), reply) in out {
            let token = Token(usize::try_from(client).unwrap_or(usize::MAX));
            if let Some(client) = self.clients.get_mut(&token) {
                client.output.extend(reply.encode(id));
                if touched.last() != Some(&token) {
                    touched.push(token);
                }
            }
        }
        for token in touched {
            self.flush(token);
        }
    }

    fn flush(&mut self, token: Token) {
        if let Some(client) = self.clients.get_mut(&token)
            && let Err(why) = client.flush()
        {
            self.close(token, &why);
        }
    }

    fn close(&mut self, token: Token, why: &str) {
        let Some(mut client) = self.clients.remove(&token) else {
            return;
        };
        tracing::debug!(
            "store: connection of {} at {} ended: {why}",
            client.rank,
            client.addr
        );
        // Closing the descriptor deregisters it as well; the result changes nothing.
        let _ = self.poll.registry().deregister(&mut client.stream);
        self.table.forget_client(token.0 as u64);
        if let Some(seen) = self.shared.seen.lock().get_mut(&client.rank) {
            seen.connections = seen.connections.saturating_sub(1);
        }
        self.shared.changed.notify_all();
    }
}

fn admit(config: &StoreConfig, open: usize, claim: Claim) -> Result<(), Refusal> {
    if claim.purpose != Purpose::Store || (claim.rank.0 >= config.world && claim.rank != NOBODY) {
        return Err(Refusal::Unwanted);
    }
    if open >= (config.world as usize).saturating_add(config.slack as usize) {
        return Err(Refusal::Busy);
    }
    Ok(())
}

impl Client {
    fn take_requests(&mut self) -> Result<(bool, Vec<(u64, Request)>), String> {
        let mut requests = Vec::new();
        let mut chunk = [0; 16 * 1024];
        let mut turn = 0;
        let mut more = true;
        while turn < TURN {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err("closed".into()),
                Ok(n) => {
                    turn += n;
                    self.input.extend_from_slice(&chunk[..n]);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    more = false;
                    break;
                }
                Err(e) => return Err(e.to_string()),
            }
        }
        let mut used = 0;
        loop {
            match wire::split(&self.input[used..]) {
                Ok(Some((body, n))) => {
                    let request = Request::decode(body).ok_or("a malformed request")?;
                    requests.push(request);
                    used += n;
                }
                Ok(None) => break,
                Err(n) => return Err(format!("a request of {n} bytes")),
            }
        }
        self.input.drain(..used);
        Ok((more, requests))
    }

    fn flush(&mut self) -> Result<(), String> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(n) => self.written += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if self.output.len() - self.written > OUT_MAX {
                        return Err("does not read its answers".into());
                    }
                    return Ok(());
                }
                Err(e) => return Err(e.to_string()),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }
}
