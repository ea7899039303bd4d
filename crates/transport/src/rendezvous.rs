//! How ranks find each other and become a mesh of links.
//!
//! Every rank publishes in the store the address of the socket by which it reached the store, then a listening port at that address.
//! [`Rendezvous::introduce`] makes the connections of the control plane and leaves those for data to whoever needs them first ([`crate::tcp::Reach`]); [`Rendezvous::connect`] makes all of them.
//! Of two ranks the higher one calls.
//! A rank that reached the store over a loopback address is on the store's host: others, who reached the store by a routed address, use that one for it, so that no loopback address is ever used by a remote peer.
//! A rank that has chosen an address ([`Rendezvous::at`], see [`crate::interfaces`]) publishes that instead, listens there and calls from there; a loopback address is refused then where ranks are on several hosts.
//! Every connection proves itself by [`crate::auth`] first; strangers on the port are turned away within two seconds and do not disturb.
//! The listener of a complete mesh is closed.
//!
//! One thread named `gaggle-accept` accepts; the caller's and up to seven named `gaggle-connect` connect. All end with the call.

use crate::{
    auth::{
        self, AuthError, Claim, Credentials, Purpose, Refusal,
        gate::{Gate, GateLimits, Guest},
    },
    control::neighbours,
    interfaces::is_link_local,
    processors::Seat,
    store::{StoreClient, connect_one},
    tcp::{Address, LIMITS, Reach, WAKER},
};
use gaggle_core::{Cause, Error, Rank, Store, name_ranks};
use mio::{Events, Poll, Waker};
use parking_lot::Mutex;
use rand::{TryRngCore, rngs::OsRng};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

/// Threads that connect at the same time, the caller's included.
const CONNECTORS: usize = 8;
/// Between attempts to connect: from, doubling to.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// Random bytes by which a process knows what it has published.
const TOKEN: usize = 16;
/// Bytes of a reason for giving up.
const REASON_MAX: usize = 1024;

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

/// Where a rank is reached.
#[derive(Clone, Copy, Debug)]
struct Place {
    ip: IpAddr,
    /// By its own wish, and not because the store was reached from there.
    chosen: bool,
}

impl Place {
    /// Stands where `chosen` would: what follows is the reason why there is no place.
    const GIVEN_UP: u8 = 2;

    fn encode(self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.chosen)];
        bytes.extend(self.ip.to_string().bytes());
        bytes
    }

    /// The place, or why its rank has none.
    fn decode(bytes: &[u8]) -> Option<Result<Place, String>> {
        let (kind, text) = bytes.split_first()?;
        match *kind {
            0 | 1 => Some(Ok(Place {
                ip: std::str::from_utf8(text).ok()?.parse().ok()?,
                chosen: *kind == 1,
            })),
            // It may be cut within a character.
            Place::GIVEN_UP => Some(Err(String::from_utf8_lossy(text).into_owned())),
            _ => None,
        }
    }
}

/// A connection to make: what for, and with whom.
type Link = (Purpose, Rank);
/// Connections that have been made.
type Streams = Vec<(Link, TcpStream)>;

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
    /// This host's address at which others are to reach this rank, with the scope that a link-local one needs; its port does not matter. `None`: `local`, by which the store was reached.
    pub at: Option<SocketAddr>,
    /// The store's address as this rank reached it.
    pub store_addr: SocketAddr,
    /// For everything together.
    pub timeout: Duration,
    /// Ranks that are reached otherwise, ascending: no data connection is made to them. Each must say so of the other.
    pub beside: &'a [Rank],
}

/// Connections of one rank, ascending by peer. All have proven that they belong to the job; none has timeouts set.
#[derive(Debug, Default)]
pub struct Mesh {
    /// To every other rank.
    pub data: Vec<(Rank, TcpStream)>,
    /// To the ranks at a distance of a power of two.
    pub control: Vec<(Rank, TcpStream)>,
}

/// What a rank has that knows the others.
#[derive(Debug, Default)]
pub struct Introduced {
    /// Connections to the ranks at a distance of a power of two, as in a [`Mesh`].
    pub control: Vec<(Rank, TcpStream)>,
    /// The open port, and where all other ranks have theirs but those [beside](Rendezvous::beside); `None` where there are none.
    pub reach: Option<Reach>,
}

/// What is open when the connections that were wanted are there.
struct Port {
    poll: Poll,
    waker: Waker,
    gate: Gate,
    addrs: Vec<SocketAddr>,
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
            at: None,
            store_addr: client.peer_addr(),
            timeout,
            beside: &[],
        }
    }

    /// Meets the others and makes all connections. A world of one meets nobody and touches nothing.
    ///
    /// # Errors
    /// [`Cause::Rendezvous`] names the ranks that are missing and what is known of them; [`Cause::Store`] if the store is lost; [`Cause::Invalid`] if the rank is outside the world. All connections are closed then.
    pub fn connect(&self) -> Result<Mesh, Error> {
        let mut mesh = Mesh::default();
        let Some((links, _)) = self.meet_all(true)? else {
            return Ok(mesh);
        };
        for ((purpose, peer), stream) in links {
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

    /// Meets the others and makes the connections of the control plane; for data it learns where everybody is, and keeps its port open. All ranks of a job do the same.
    ///
    /// # Errors
    /// As [`connect`](Rendezvous::connect).
    pub fn introduce(&self) -> Result<Introduced, Error> {
        let mut introduced = Introduced::default();
        let Some((links, port)) = self.meet_all(false)? else {
            return Ok(introduced);
        };
        let mut come = Vec::new();
        for ((purpose, peer), stream) in links {
            match purpose {
                // They were sooner done, and had something to say.
                Purpose::Data => come.push((peer, stream)),
                Purpose::Control => introduced.control.push((peer, stream)),
                Purpose::Store => {}
            }
        }
        introduced.control.sort_by_key(|(rank, _)| *rank);
        let peers = (0..)
            .map(Rank)
            .zip(&port.addrs)
            .map(|(rank, addr)| Address {
                rank,
                addr: *addr,
                from: self.source(*addr),
            });
        let peers: Vec<Address> = peers.filter(|peer| self.has_data(peer.rank)).collect();
        if !peers.is_empty() {
            introduced.reach = Some(Reach {
                poll: port.poll,
                waker: port.waker,
                gate: port.gate,
                creds: self.creds.clone(),
                peers,
                come,
            });
        }
        Ok(introduced)
    }

    /// Meets the others; for `data` only if it is to be `eager`.
    fn meet_all(&self, eager: bool) -> Result<Option<(Streams, Port)>, Error> {
        if self.rank.0 >= self.world {
            return Err(Error::invalid(
                "rendezvous",
                format!("{} is not in a world of {}", self.rank, self.world),
            ));
        }
        if self.world == 1 {
            return Ok(None);
        }
        let deadline = auth::deadline_in(self.timeout);
        let places = self.exchange_places(deadline)?;
        self.check_loopbacks(&places, deadline)?;
        let listener = self
            .listen(&places)
            .map_err(|e| self.failed(format!("cannot listen at {}: {e}", self.place().ip)))?;
        self.meet(listener, &places, eager, deadline).map(Some)
    }

    /// Tells the others why this rank cannot meet them, instead of [`connect`](Rendezvous::connect): theirs ends with the reason instead of waiting. Of a longer one they see the first kibibyte.
    ///
    /// # Errors
    /// [`Cause::Store`] if the store is lost.
    pub fn give_up(&self, why: &str) -> Result<(), Error> {
        let mut value = vec![0; TOKEN];
        value.push(Place::GIVEN_UP);
        value.extend(why.bytes().take(REASON_MAX));
        self.store.set(&self.key("ip", self.rank), &value)?;
        // For those that ask for hosts first: no host's key is empty.
        self.store.set(&self.key("host", self.rank), &[])
    }

    /// The host of every rank as a number, the same list on all of them: ranks share one where boot and network namespace are the same. Hosts are numbered in the order in which ranks name them.
    ///
    /// # Errors
    /// [`Cause::Rendezvous`] names the ranks that have not said so in time; [`Cause::Store`] if the store is lost.
    pub fn hosts(&self) -> Result<Vec<u32>, Error> {
        self.hosts_as("host", auth::deadline_in(self.timeout))
    }

    fn hosts_as(&self, what: &str, deadline: Instant) -> Result<Vec<u32>, Error> {
        self.store.set(&self.key(what, self.rank), &host_key())?;
        let keys = self.gather(what, deadline, |value| Some(value.to_vec()))?;
        if let Some(rank) = (0..).map(Rank).zip(&keys).find(|(_, key)| key.is_empty()) {
            let rank = rank.0;
            let left = deadline.saturating_duration_since(Instant::now());
            let value = self.store.get(&self.key("ip", rank), left)?;
            let place = value.get(TOKEN..).and_then(Place::decode);
            let why = place.and_then(Result::err).unwrap_or_default();
            return Err(self.failed(format!("{rank} has given up: {why}")));
        }
        let first = |key: &Vec<u8>| keys.iter().position(|k| k == key).unwrap_or(0);
        let firsts: Vec<usize> = keys.iter().map(first).collect();
        let mut hosts = firsts.clone();
        hosts.sort_unstable();
        hosts.dedup();
        let number = |f: &usize| hosts.iter().position(|h| h == f).unwrap_or(0) as u32;
        Ok(firsts.iter().map(number).collect())
    }

    /// Whether all ranks say yes to something that is named alike everywhere; every rank calls this, once for each name.
    ///
    /// # Errors
    /// As [`hosts`](Rendezvous::hosts).
    pub fn agree(&self, what: &str, yes: bool) -> Result<bool, Error> {
        self.store
            .set(&self.key(what, self.rank), &[u8::from(yes)])?;
        let deadline = auth::deadline_in(self.timeout);
        let all = self.gather(what, deadline, |value| Some(value == [1]))?;
        Ok(all.into_iter().all(|yes| yes))
    }

    /// What every rank says of its processors, in rank order; every rank calls this, once.
    ///
    /// # Errors
    /// As [`hosts`](Rendezvous::hosts).
    pub fn seats(&self, own: &Seat) -> Result<Vec<Seat>, Error> {
        self.store
            .set(&self.key("seat", self.rank), &own.to_bytes())?;
        let deadline = auth::deadline_in(self.timeout);
        self.gather("seat", deadline, Seat::of_bytes)
    }

    pub(crate) fn failed(&self, what: String) -> Error {
        Cause::Rendezvous {
            rank: self.rank,
            world: self.world,
            what,
        }
        .into()
    }

    pub(crate) fn key(&self, what: &str, rank: Rank) -> String {
        format!("gaggle/rendezvous/{}/{what}/{}", self.creds.epoch, rank.0)
    }

    /// The address of this rank, of its own choice or as the store was reached.
    fn own(&self) -> SocketAddr {
        self.at.unwrap_or(self.local)
    }

    fn place(&self) -> Place {
        Place {
            ip: self.own().ip().to_canonical(),
            chosen: self.at.is_some(),
        }
    }

    /// Publishes where this rank is, and learns where the others are.
    fn exchange_places(&self, deadline: Instant) -> Result<Vec<Place>, Error> {
        let mut token = [0; TOKEN];
        OsRng
            .try_fill_bytes(&mut token)
            .map_err(|e| self.failed(format!("no randomness: {e}")))?;
        let mut mine = token.to_vec();
        mine.extend(self.place().encode());
        let held = self
            .store
            .compare_and_set(&self.key("ip", self.rank), None, &mine)?;
        let parse = |value: &[u8]| Place::decode(value.get(token.len()..)?);
        if held != mine {
            let from = parse(&held)
                .and_then(Result::ok)
                .map_or("an unknown address".into(), |p| p.ip.to_string());
            return Err(self.failed(format!(
                "another process has joined as {} already, from {from}",
                self.rank
            )));
        }
        let told = |(rank, place): (u32, Result<Place, String>)| {
            place.map_err(|why| self.failed(format!("{} has given up: {why}", Rank(rank))))
        };
        let places = self.gather("ip", deadline, parse)?;
        (0..).zip(places).map(told).collect()
    }

    /// A loopback address that a rank has chosen is no place to reach it from another host. Everybody decides from the same list.
    fn check_loopbacks(&self, places: &[Place], deadline: Instant) -> Result<(), Error> {
        let Some(at) = places.iter().position(|p| p.chosen && p.ip.is_loopback()) else {
            return Ok(());
        };
        let hosts = self.hosts_as("place", deadline)?;
        let Some(far) = hosts.iter().position(|host| *host != hosts[at]) else {
            return Ok(());
        };
        Err(self.failed(format!(
            "rank {at} is to be reached at the loopback address {}, and rank {far} is on another host: choose an interface that other hosts reach",
            places[at].ip
        )))
    }

    fn gather_addrs(&self, places: &[Place], deadline: Instant) -> Result<Vec<SocketAddr>, Error> {
        let ports = self.gather("port", deadline, |value| {
            Some(u16::from_le_bytes(value.try_into().ok()?))
        })?;
        places
            .iter()
            .zip(ports)
            .zip(0..)
            .map(|((place, port), rank)| self.reach(Rank(rank), *place, port))
            .collect()
    }

    /// Everybody's value, or an error that names all ranks that have not published one.
    fn gather<T>(
        &self,
        what: &str,
        deadline: Instant,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        self.gather_from((0..self.world).map(Rank), what, deadline, parse)
    }

    /// The same of some ranks, in their order.
    pub(crate) fn gather_from<T>(
        &self,
        ranks: impl Iterator<Item = Rank>,
        what: &str,
        deadline: Instant,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let mut all = Vec::new();
        let mut missing = Vec::new();
        let mut last = None;
        for rank in ranks {
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

    fn listen(&self, places: &[Place]) -> io::Result<TcpListener> {
        let Place { ip, chosen } = self.place();
        if !chosen && ip.is_loopback() && places.iter().any(|other| !other.ip.is_loopback()) {
            // Remote ranks reach this one by the store's routed address.
            return TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
                .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)));
        }
        match self.own() {
            SocketAddr::V6(own) if is_link_local(ip) => {
                TcpListener::bind(SocketAddrV6::new(*own.ip(), 0, 0, own.scope_id()))
            }
            _ => TcpListener::bind(SocketAddr::new(ip, 0)),
        }
    }

    /// How this rank reaches `rank`, which has published `place`.
    fn reach(&self, rank: Rank, place: Place, port: u16) -> Result<SocketAddr, Error> {
        // Those who have chosen loopback are on this host, as is whoever reached the store over loopback if this rank did, too.
        if !place.ip.is_loopback() || place.chosen || self.local.ip().to_canonical().is_loopback() {
            return self.scoped(rank, place.ip, port);
        }
        let store = self.store_addr.ip().to_canonical();
        if store.is_loopback() {
            return Err(self.failed(format!(
                "{rank} is at the loopback address {}, which {} at {} cannot reach: give all ranks a routed address of the store, or choose an interface for {rank}",
                place.ip,
                self.rank,
                self.place().ip
            )));
        }
        self.scoped(rank, store, port)
    }

    /// Link-local addresses of IPv6 mean something only together with this host's interface.
    fn scoped(&self, rank: Rank, ip: IpAddr, port: u16) -> Result<SocketAddr, Error> {
        match (ip, self.own(), self.local) {
            (IpAddr::V6(v6), SocketAddr::V6(own), _) | (IpAddr::V6(v6), _, SocketAddr::V6(own))
                if v6.is_unicast_link_local() && own.scope_id() != 0 =>
            {
                Ok(SocketAddrV6::new(v6, port, 0, own.scope_id()).into())
            }
            (IpAddr::V6(v6), ..) if v6.is_unicast_link_local() && rank != self.rank => {
                Err(self.failed(format!(
                    "{rank} is at the link-local address {ip}, and {} at {} does not know on which interface",
                    self.rank,
                    self.place().ip
                )))
            }
            _ => Ok(SocketAddr::new(ip, port)),
        }
    }

    /// Where to call `to` from: the chosen address, where a packet from there can go there.
    fn source(&self, to: SocketAddr) -> Option<SocketAddr> {
        let mut from = self.at?;
        from.set_port(0);
        let (a, b) = (from.ip(), to.ip());
        let alike = a.is_ipv4() == b.is_ipv4()
            && a.is_loopback() == b.is_loopback()
            && is_link_local(a) == is_link_local(b);
        alike.then_some(from)
    }

    fn is_control_neighbour(&self, peer: Rank) -> bool {
        neighbours(self.rank, self.world).contains(&peer)
    }

    /// Whether there may be a data connection with `peer`.
    fn has_data(&self, peer: Rank) -> bool {
        peer != self.rank && peer.0 < self.world && self.beside.binary_search(&peer).is_err()
    }

    fn claims_with(&self, peers: impl Iterator<Item = u32>, eager: bool) -> Vec<Link> {
        peers
            .map(Rank)
            .flat_map(|peer| {
                let control = self.is_control_neighbour(peer);
                let data = eager && self.has_data(peer);
                data.then_some((Purpose::Data, peer))
                    .into_iter()
                    .chain(control.then_some((Purpose::Control, peer)))
            })
            .collect()
    }

    fn meet(
        &self,
        listener: TcpListener,
        places: &[Place],
        eager: bool,
        deadline: Instant,
    ) -> Result<(Streams, Port), Error> {
        let io = |e: io::Error| self.failed(format!("cannot accept connections: {e}"));
        let port = listener.local_addr().map_err(io)?.port();
        let poll = Poll::new().map_err(io)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(io)?;
        let limits = GateLimits {
            fickle: !eager,
            ..LIMITS
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
            todo: self.claims_with(0..self.rank.0, eager).into(),
            done: Vec::new(),
            failed: None,
            over: false,
        });
        let (addrs, (accepted, poll, gate)) = thread::scope(|scope| {
            // From the moment the port is open, so that strangers never wait longer than they may.
            let acceptor = thread::Builder::new()
                .name("gaggle-accept".into())
                .spawn_scoped(scope, || {
                    self.accept_all(poll, gate, eager, (&calls, deadline))
                })
                .map_err(io)?;
            let called = self.call_all(port, places, &calls, deadline);
            if let Err(e) = &called {
                calls.lock().fail(e.to_string());
            }
            calls.lock().over = true;
            if !eager || calls.lock().failed.is_some() {
                // Should it fail, the acceptor notices at the deadline.
                let _ = waker.wake();
            }
            let accepted = acceptor
                .join()
                .map_err(|_| Error::internal("the accepting thread panicked"))?;
            Ok::<_, Error>((called?, accepted?))
        })?;
        let calls = calls.into_inner();
        if let Some(what) = calls.failed {
            return Err(self.failed(what));
        }
        let links = accepted.into_iter().chain(calls.done).collect();
        let port = Port {
            poll,
            waker,
            gate,
            addrs,
        };
        Ok((links, port))
    }

    /// Publishes the port, learns the others' and makes the connections that are this rank's to make.
    fn call_all(
        &self,
        port: u16,
        places: &[Place],
        calls: &Mutex<Calls>,
        deadline: Instant,
    ) -> Result<Vec<SocketAddr>, Error> {
        self.store
            .set(&self.key("port", self.rank), &port.to_le_bytes())?;
        let addrs = self.gather_addrs(places, deadline)?;
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
        Ok(addrs)
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
            let (now, late) = match connect_one(addr, self.source(addr), deadline) {
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

    /// Accepts until everybody above has come, and whoever else comes meanwhile.
    fn accept_all(
        &self,
        mut poll: Poll,
        mut gate: Gate,
        eager: bool,
        (calls, deadline): (&Mutex<Calls>, Instant),
    ) -> Result<(Streams, Poll, Gate), Error> {
        let expected = self.claims_with(self.rank.0 + 1..self.world, eager);
        let mut come: BTreeMap<Link, TcpStream> = BTreeMap::new();
        let mut admit = |claim: Claim| {
            let early = !eager && claim.purpose == Purpose::Data && self.has_data(claim.rank);
            if early || expected.contains(&(claim.purpose, claim.rank)) {
                Ok(())
            } else {
                Err(Refusal::Unwanted)
            }
        };
        let mut events = Events::with_capacity(128);
        let mut guests: Vec<Guest> = Vec::new();
        // A port that stays open is looked after as long as this rank is busy with its own calls.
        let busy = || !eager && !calls.lock().over;
        while busy() || expected.iter().any(|link| !come.contains_key(link)) {
            if let Some(what) = &calls.lock().failed {
                return Err(self.failed(what.clone()));
            }
            let now = Instant::now();
            if now >= deadline {
                let missing: Vec<_> = expected.iter().filter(|k| !come.contains_key(k)).collect();
                if missing.is_empty() {
                    // The calls end in time, too.
                    break;
                }
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
        Ok((come.into_iter().collect(), poll, gate))
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
    /// All that there were have been made, or have failed.
    over: bool,
}

impl Calls {
    fn fail(&mut self, what: String) {
        self.failed.get_or_insert(what);
        self.todo.clear();
    }
}
