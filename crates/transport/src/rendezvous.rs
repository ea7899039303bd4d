//! How ranks find each other and become a mesh of links.
//!
//! Every rank publishes in the store the address of the socket by which it reached the store, then a listening port at that address, and connects to all ranks below it; ranks above it connect to it.
//! A rank that reached the store over a loopback address is on the store's host: others, who reached the store by a routed address, use that one for it, so that no loopback address is ever used by a remote peer.
//! Every connection proves itself by [`crate::auth`] first; strangers on the port are turned away within two seconds and do not disturb.
//! The listener is closed once the mesh is complete.
//!
//! One thread named `gaggle-accept` accepts; the caller's and up to seven named `gaggle-connect` connect. All end with the call.

use crate::{
    auth::{
        self, AuthError, Claim, Credentials, Purpose, Refusal,
        gate::{Gate, GateLimits, Guest},
    },
    control::neighbours,
    store::{StoreClient, connect_one},
};
use gaggle_core::{Cause, Error, Rank, Store, name_ranks};
use mio::{Events, Poll, Token, Waker};
use parking_lot::Mutex;
use rand::{TryRngCore, rngs::OsRng};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

const WAKER: Token = Token(0);
/// Connections that have not proven themselves, at one time.
const HALF_OPEN: usize = 64;
/// From accept to proof.
const PATIENCE: Duration = Duration::from_secs(2);
/// Threads that connect at the same time, the caller's included.
const CONNECTORS: usize = 8;
/// Between attempts to connect: from, doubling to.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// What ranks of one host have in common: the boot and the network namespace; of its own where the system does not tell.
fn host_key() -> Vec<u8> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let net = std::fs::read_link("/proc/self/ns/net");
    match (boot, net) {
        (Ok(boot), Ok(net)) => format!("{} {}", boot.trim(), net.display()).into_bytes(),
        _ => {
            let mut own = vec![0; 16];
            // Without randomness the process number still tells ranks of this host apart.
            if OsRng.try_fill_bytes(&mut own).is_err() {
                own.extend(std::process::id().to_le_bytes());
            }
            own
        }
    }
}

/// A connection to make: what for, and with whom.
type Link = (Purpose, Rank);

/// One rank's wish to meet the others.
pub struct Rendezvous<'a> {
    /// This rank.
    pub rank: Rank,
    /// How many ranks the job has.
    pub world: u32,
    /// What all of them know.
    pub creds: &'a Credentials,
    /// Where addresses are published.
    pub store: &'a dyn Store,
    /// This side's address of the socket that reached the store.
    pub local: SocketAddr,
    /// The store's address as this rank reached it.
    pub store_addr: SocketAddr,
    /// For everything together.
    pub timeout: Duration,
}

/// Connections of one rank, ascending by peer. All have proven that they belong to the job; none has timeouts set.
#[derive(Debug, Default)]
pub struct Mesh {
    /// To every other rank.
    pub data: Vec<(Rank, TcpStream)>,
    /// To the ranks at a distance of a power of two.
    pub control: Vec<(Rank, TcpStream)>,
}

impl<'a> Rendezvous<'a> {
    /// By way of a client of the store.
    pub fn over(
        client: &'a StoreClient,
        rank: Rank,
        world: u32,
        creds: &'a Credentials,
        timeout: Duration,
    ) -> Rendezvous<'a> {
        Rendezvous {
            rank,
            world,
            creds,
            store: client,
            local: client.local_addr(),
            store_addr: client.peer_addr(),
            timeout,
        }
    }

    /// Meets the others. A world of one meets nobody and touches nothing.
    ///
    /// # Errors
    /// [`Cause::Rendezvous`] names the ranks that are missing and what is known of them; [`Cause::Store`] if the store is lost; [`Cause::Invalid`] if the rank is outside the world. All connections are closed then.
    pub fn connect(&self) -> Result<Mesh, Error> {
        if self.rank.0 >= self.world {
            return Err(Error::invalid(
                "rendezvous",
                format!("{} is not in a world of {}", self.rank, self.world),
            ));
        }
        if self.world == 1 {
            return Ok(Mesh::default());
        }
        let deadline = auth::deadline_in(self.timeout);
        let ips = self.exchange_ips(deadline)?;
        let listener = self
            .listen(&ips)
            .map_err(|e| self.failed(format!("cannot listen at {}: {e}", self.local.ip())))?;
        self.meet(listener, &ips, deadline)
    }

    /// The host of every rank as a number, the same list on all of them: ranks share one where boot and network namespace are the same. Hosts are numbered in the order in which ranks name them.
    ///
    /// # Errors
    /// [`Cause::Rendezvous`] names the ranks that have not said so in time; [`Cause::Store`] if the store is lost.
    pub fn hosts(&self) -> Result<Vec<u32>, Error> {
        let deadline = auth::deadline_in(self.timeout);
        self.store.set(&self.key("host", self.rank), &host_key())?;
        let keys = self.gather("host", deadline, |value| Some(value.to_vec()))?;
        let first = |key: &Vec<u8>| keys.iter().position(|k| k == key).unwrap_or(0);
        let firsts: Vec<usize> = keys.iter().map(first).collect();
        let mut hosts = firsts.clone();
        hosts.sort_unstable();
        hosts.dedup();
        let number = |f: &usize| hosts.iter().position(|h| h == f).unwrap_or(0) as u32;
        Ok(firsts.iter().map(number).collect())
    }

    fn failed(&self, what: String) -> Error {
        Cause::Rendezvous {
            rank: self.rank,
            world: self.world,
            what,
        }
        .into()
    }

    fn key(&self, what: &str, rank: Rank) -> String {
        format!("gaggle/rendezvous/{}/{what}/{}", self.creds.epoch, rank.0)
    }

    /// Publishes where this rank is, and learns where the others are.
    fn exchange_ips(&self, deadline: Instant) -> Result<Vec<IpAddr>, Error> {
        let mut token = [0; 16];
        OsRng
            .try_fill_bytes(&mut token)
            .map_err(|e| self.failed(format!("no randomness: {e}")))?;
        let ip = self.local.ip().to_canonical();
        let mut mine = token.to_vec();
        mine.extend(ip.to_string().bytes());
        let held = self
            .store
            .compare_and_set(&self.key("ip", self.rank), None, &mine)?;
        if held != mine {
            return Err(self.failed(format!(
                "another process has joined as {} already, from {}",
                self.rank,
                String::from_utf8_lossy(held.get(token.len()..).unwrap_or_default())
            )));
        }
        self.gather("ip", deadline, |value| {
            let text = std::str::from_utf8(value.get(token.len()..)?).ok()?;
            text.parse().ok()
        })
    }

    fn gather_addrs(&self, ips: &[IpAddr], deadline: Instant) -> Result<Vec<SocketAddr>, Error> {
        let ports = self.gather("port", deadline, |value| {
            Some(u16::from_le_bytes(value.try_into().ok()?))
        })?;
        ips.iter()
            .zip(ports)
            .zip(0..)
            .map(|((ip, port), rank)| self.reach(Rank(rank), *ip, port))
            .collect()
    }

    /// Everybody's value, or an error that names all ranks that have not published one.
    fn gather<T>(
        &self,
        what: &str,
        deadline: Instant,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let mut all = Vec::new();
        let mut missing = Vec::new();
        let mut last = None;
        for rank in (0..self.world).map(Rank) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.store.get(&self.key(what, rank), left) {
                Ok(value) => all.push(parse(&value).ok_or_else(|| {
                    self.failed(format!("{rank} has published a malformed {what}"))
                })?),
                // Only a wait that used up the time says that the rank is missing.
                Err(e) if Instant::now() < deadline => return Err(e),
                Err(e) => {
                    missing.push(rank);
                    last = Some(e);
                }
            }
        }
        match last {
            None => Ok(all),
            Some(e) => Err(self.failed(format!(
                "{} {} not published {} address within {:.1?} ({e})",
                name_ranks(&missing),
                if missing.len() == 1 { "has" } else { "have" },
                if missing.len() == 1 { "its" } else { "their" },
                self.timeout
            ))),
        }
    }

    fn listen(&self, ips: &[IpAddr]) -> io::Result<TcpListener> {
        let ip = self.local.ip().to_canonical();
        if ip.is_loopback() && ips.iter().any(|other| !other.is_loopback()) {
            // Remote ranks reach this one by the store's routed address.
            return TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
                .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)));
        }
        TcpListener::bind(self.scoped(ip, 0))
    }

    /// How this rank reaches `rank`, which has published `ip`.
    fn reach(&self, rank: Rank, ip: IpAddr, port: u16) -> Result<SocketAddr, Error> {
        let mine = self.local.ip().to_canonical();
        if !ip.is_loopback() || mine.is_loopback() {
            return Ok(self.scoped(ip, port));
        }
        let store = self.store_addr.ip().to_canonical();
        if store.is_loopback() {
            return Err(self.failed(format!(
                "{rank} is at the loopback address {ip}, which {} at {mine} cannot reach: give all ranks a routed address of the store",
                self.rank
            )));
        }
        Ok(self.scoped(store, port))
    }

    /// Link-local addresses of IPv6 mean something only together with this host's interface.
    fn scoped(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match (ip, self.local) {
            (IpAddr::V6(v6), SocketAddr::V6(local)) if v6.is_unicast_link_local() => {
                SocketAddrV6::new(v6, port, 0, local.scope_id()).into()
            }
            _ => SocketAddr::new(ip, port),
        }
    }

    fn is_control_neighbour(&self, peer: Rank) -> bool {
        neighbours(self.rank, self.world).contains(&peer)
    }

    fn claims_with(&self, peers: impl Iterator<Item = u32>) -> Vec<Link> {
        peers
            .map(Rank)
            .flat_map(|peer| {
                let control = self.is_control_neighbour(peer);
                [(Purpose::Data, peer)]
                    .into_iter()
                    .chain(control.then_some((Purpose::Control, peer)))
            })
            .collect()
    }

    fn meet(
        &self,
        listener: TcpListener,
        ips: &[IpAddr],
        deadline: Instant,
    ) -> Result<Mesh, Error> {
        let io = |e: io::Error| self.failed(format!("cannot accept connections: {e}"));
        let port = listener.local_addr().map_err(io)?.port();
        let poll = Poll::new().map_err(io)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(io)?;
        let limits = GateLimits {
            half_open: HALF_OPEN,
            patience: PATIENCE,
        };
        let name = format!("{} of {}", self.rank, self.world);
        let gate = Gate::new(
            listener,
            poll.registry(),
            self.creds,
            self.rank,
            limits,
            &name,
        )
        .map_err(io)?;
        let calls = Mutex::new(Calls {
            todo: self.claims_with(0..self.rank.0).into(),
            done: Vec::new(),
            failed: None,
        });
        let accepted = thread::scope(|scope| {
            // From the moment the port is open, so that strangers never wait longer than they may.
            let acceptor = thread::Builder::new()
                .name("gaggle-accept".into())
                .spawn_scoped(scope, || self.accept_all(poll, gate, &calls, deadline))
                .map_err(io)?;
            let called = self.call_all(port, ips, &calls, deadline);
            if let Err(e) = &called {
                calls.lock().fail(e.to_string());
            }
            if calls.lock().failed.is_some() {
                // Should it fail, the acceptor notices at the deadline.
                let _ = waker.wake();
            }
            let accepted = acceptor
                .join()
                .map_err(|_| Error::internal("the accepting thread panicked"))?;
            called.and(accepted)
        })?;
        let calls = calls.into_inner();
        if let Some(what) = calls.failed {
            return Err(self.failed(what));
        }
        let mut mesh = Mesh::default();
        for ((purpose, peer), stream) in accepted.into_iter().chain(calls.done) {
            match purpose {
                Purpose::Data => mesh.data.push((peer, stream)),
                Purpose::Control => mesh.control.push((peer, stream)),
                Purpose::Store => {}
            }
        }
        mesh.data.sort_by_key(|(rank, _)| *rank);
        mesh.control.sort_by_key(|(rank, _)| *rank);
        Ok(mesh)
    }

    /// Publishes the port, learns the others' and makes the connections that are this rank's to make.
    fn call_all(
        &self,
        port: u16,
        ips: &[IpAddr],
        calls: &Mutex<Calls>,
        deadline: Instant,
    ) -> Result<(), Error> {
        self.store
            .set(&self.key("port", self.rank), &port.to_le_bytes())?;
        let addrs = self.gather_addrs(ips, deadline)?;
        let helpers = calls.lock().todo.len().min(CONNECTORS).saturating_sub(1);
        thread::scope(|scope| {
            for _ in 0..helpers {
                let spawned = thread::Builder::new()
                    .name("gaggle-connect".into())
                    .spawn_scoped(scope, || self.call_some(calls, &addrs, deadline));
                if let Err(e) = spawned {
                    calls.lock().fail(format!("cannot start a thread: {e}"));
                }
            }
            self.call_some(calls, &addrs, deadline);
        });
        Ok(())
    }

    /// Works off the queue of connections to make.
    fn call_some(&self, calls: &Mutex<Calls>, addrs: &[SocketAddr], deadline: Instant) {
        loop {
            let Some((purpose, peer)) = calls.lock().todo.pop_front() else {
                return;
            };
            let result = match addrs.get(peer.idx()) {
                Some(addr) => self.call(purpose, peer, *addr, calls, deadline),
                None => Err(format!("{peer} has no address")),
            };
            let mut calls = calls.lock();
            match result {
                Ok(stream) => calls.done.push(((purpose, peer), stream)),
                Err(what) => calls.fail(what),
            }
        }
    }

    fn call(
        &self,
        purpose: Purpose,
        peer: Rank,
        addr: SocketAddr,
        calls: &Mutex<Calls>,
        deadline: Instant,
    ) -> Result<TcpStream, String> {
        let claim = Claim {
            purpose,
            rank: self.rank,
        };
        let mut pause = RETRY.0;
        let mut why = String::new();
        loop {
            let (now, late) = match connect_one(addr, deadline) {
                Err(e) => (e.to_string(), e.kind() == io::ErrorKind::TimedOut),
                Ok(stream) => match auth::initiate(&stream, self.creds, claim, deadline) {
                    Ok(host) if host == peer => return Ok(stream),
                    Ok(host) => {
                        return Err(format!("{host} answers at {addr}, where {peer} should"));
                    }
                    Err(e) if e.is_final() => {
                        return Err(format!("{peer} could not be connected: {e}"));
                    }
                    Err(e) => (e.to_string(), matches!(e, AuthError::Timeout { .. })),
                },
            };
            // That our own time is over says less than what was met before.
            if !late || why.is_empty() {
                why = now;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || calls.lock().failed.is_some() {
                return Err(format!(
                    "{peer} at {addr} could not be connected within {:.1?}: {why}",
                    self.timeout
                ));
            }
            thread::sleep(pause.min(left));
            pause = (pause * 2).min(RETRY.1);
        }
    }

    /// Accepts until everybody above has come.
    fn accept_all(
        &self,
        mut poll: Poll,
        mut gate: Gate,
        calls: &Mutex<Calls>,
        deadline: Instant,
    ) -> Result<Vec<(Link, TcpStream)>, Error> {
        let expected = self.claims_with(self.rank.0 + 1..self.world);
        let mut come: BTreeMap<Link, TcpStream> = BTreeMap::new();
        let mut admit = |claim: Claim| {
            if expected.contains(&(claim.purpose, claim.rank)) {
                Ok(())
            } else {
                Err(Refusal::Unwanted)
            }
        };
        let mut events = Events::with_capacity(128);
        let mut guests: Vec<Guest> = Vec::new();
        while come.len() < expected.len() {
            if let Some(what) = &calls.lock().failed {
                return Err(self.failed(what.clone()));
            }
            let now = Instant::now();
            if now >= deadline {
                let missing: Vec<_> = expected.iter().filter(|k| !come.contains_key(k)).collect();
                let what = absent(&missing, self.timeout);
                calls.lock().fail(what.clone());
                return Err(self.failed(what));
            }
            let until = gate.next_deadline().unwrap_or(deadline).min(deadline);
            match poll.poll(&mut events, Some(until.saturating_duration_since(now))) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(self.failed(format!("cannot wait for connections: {e}"))),
            }
            for event in &events {
                gate.ready(poll.registry(), event.token(), &mut admit, &mut guests);
            }
            gate.expire(poll.registry(), Instant::now(), &mut admit, &mut guests);
            for guest in guests.drain(..) {
                let key = (guest.claim.purpose, guest.claim.rank);
                let stream = blocking(guest, &poll)
                    .map_err(|e| self.failed(format!("connection of {}: {e}", key.1)))?;
                // A second one replaces the first: its caller has given the first up.
                come.insert(key, stream);
            }
        }
        Ok(come.into_iter().collect())
    }
}

fn blocking(mut guest: Guest, poll: &Poll) -> io::Result<TcpStream> {
    poll.registry().deregister(&mut guest.stream)?;
    let stream = TcpStream::from(guest.stream);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn absent(missing: &[&Link], waited: Duration) -> String {
    let mut ranks: Vec<Rank> = missing.iter().map(|(_, rank)| *rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    format!("{} did not connect within {waited:.1?}", name_ranks(&ranks))
}

struct Calls {
    todo: VecDeque<Link>,
    done: Vec<(Link, TcpStream)>,
    failed: Option<String>,
}

impl Calls {
    fn fail(&mut self, what: String) {
        self.failed.get_or_insert(what);
        self.todo.clear();
    }
}
