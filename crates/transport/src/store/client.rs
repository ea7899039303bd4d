//! The store's client: one connection, shared by the threads of a rank.

use super::{
    check_key, check_value,
    wire::{self, Reply, Request},
};
use crate::auth::{self, AuthError, Claim, Credentials, Purpose};
use gaggle_core::{Cause, Error, Rank, Store};
use parking_lot::{Condvar, Mutex, MutexGuard};
use socket2::{Domain, Socket, Type};
use std::{
    collections::HashMap,
    fmt,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs},
    time::{Duration, Instant},
};

/// Between attempts to connect: from, doubling to.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));
/// One attempt, where the network swallows packets.
const ATTEMPT: Duration = Duration::from_secs(3);
/// How much later than a wait's end the server's word on it may come.
const GRACE: Duration = Duration::from_secs(2);

/// A connection to a [`StoreServer`](super::StoreServer). Waits of several threads do not hold each other up.
///
/// Requests that wait have their own deadline; all others that of `connect`. Dropped without [`StoreClient::goodbye`], its rank counts as vanished.
pub struct StoreClient {
    addr: String,
    local: SocketAddr,
    peer: SocketAddr,
    timeout: Duration,
    writer: Mutex<()>,
    stream: TcpStream,
    state: Mutex<State>,
    news: Condvar,
}

struct State {
    next: u64,
    /// Requests without an answer, or with one that nobody has taken yet.
    open: HashMap<u64, Option<Reply>>,
    /// What has been read; taken away by the thread that reads.
    input: Option<Vec<u8>>,
    last_heard: Instant,
    dead: Option<String>,
}

impl StoreClient {
    /// Connects and proves itself. Tries again until `timeout`, since the server may come up later than its clients; what cannot get better (another secret, job or version) fails at once.
    ///
    /// `addr` is `host:port`, with an IPv6 literal in brackets, or a [`SocketAddr`].
    ///
    /// # Errors
    /// [`Cause::Store`] with the address and what the last attempt met.
    pub fn connect(
        addr: impl ToSocketAddrs + fmt::Display,
        creds: &Credentials,
        rank: Rank,
        timeout: Duration,
    ) -> Result<StoreClient, Error> {
        let deadline = auth::deadline_in(timeout);
        let name = addr.to_string();
        let claim = Claim {
            purpose: Purpose::Store,
            rank,
        };
        let mut pause = RETRY.0;
        let mut why = String::new();
        loop {
            match attempt(&addr, creds, claim, deadline) {
                Ok(stream) => return StoreClient::over(stream, name, timeout),
                Err(Attempt::Final(why)) => return Err(failed(&name, why)),
                Err(Attempt::Again(now)) => why = now,
                // That our own time is over says less than what was met before.
                Err(Attempt::Late(_)) if !why.is_empty() => {}
                Err(Attempt::Late(now)) => why = now,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failed(
                    &name,
                    format!("{rank} could not reach it within {timeout:.1?}: {why}"),
                ));
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(RETRY.1);
        }
    }

    fn over(stream: TcpStream, addr: String, timeout: Duration) -> Result<StoreClient, Error> {
        let ends = stream
            .set_nodelay(true)
            .and_then(|()| Ok((stream.local_addr()?, stream.peer_addr()?)));
        let (local, peer) = ends.map_err(|e| failed(&addr, e.to_string()))?;
        Ok(StoreClient {
            addr,
            local,
            peer,
            timeout,
            writer: Mutex::new(()),
            stream,
            state: Mutex::new(State {
                next: 0,
                open: HashMap::new(),
                input: Some(Vec::new()),
                last_heard: Instant::now(),
                dead: None,
            }),
            news: Condvar::new(),
        })
    }

    /// The address of this side of the connection: where this rank can be reached by those who reach the store.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The store's address as this rank reached it.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Tells the server that this rank leaves. Later requests fail.
    ///
    /// # Errors
    /// The server could not be reached any more.
    pub fn goodbye(&self) -> Result<(), Error> {
        self.call(Request::Bye, self.timeout)?;
        let mut state = self.state.lock();
        state.dead = Some("this rank has said goodbye".into());
        drop(state);
        self.news.notify_all();
        // The server closes its side when it sees the end; a failure means that it already has.
        let _ = self.stream.shutdown(Shutdown::Write);
        Ok(())
    }

    fn failed(&self, what: String) -> Error {
        failed(&self.addr, what)
    }

    fn call(&self, request: Request, limit: Duration) -> Result<Reply, Error> {
        let deadline = auth::deadline_in(limit);
        let id = {
            let mut state = self.state.lock();
            if let Some(why) = &state.dead {
                return Err(self.failed(why.clone()));
            }
            let id = state.next;
            state.next += 1;
            state.open.insert(id, None);
            id
        };
        if let Err(e) = self.send(&request.encode(id), deadline) {
            let mut state = self.state.lock();
            state.open.remove(&id);
            let heard = state.last_heard.elapsed();
            let what = format!(
                "lost it: a request could not be sent ({e}); last heard of it {heard:.1?} ago"
            );
            state.dead.get_or_insert_with(|| what.clone());
            drop(state);
            self.news.notify_all();
            return Err(self.failed(what));
        }
        match self.receive(id, deadline)? {
            Reply::Failed(what) => Err(self.failed(what)),
            reply => Ok(reply),
        }
    }

    fn send(&self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        let until = deadline.max(Instant::now() + Duration::from_millis(1));
        let _turn = self
            .writer
            .try_lock_until(until)
            .ok_or(io::ErrorKind::TimedOut)?;
        let left = until.saturating_duration_since(Instant::now());
        self.stream
            .set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
        (&self.stream).write_all(bytes)
    }

    /// Waits for the answer to `id`. Of the threads that wait, one reads for all.
    fn receive(&self, id: u64, deadline: Instant) -> Result<Reply, Error> {
        let mut state = self.state.lock();
        loop {
            if let Some(Some(_)) = state.open.get(&id)
                && let Some(Some(reply)) = state.open.remove(&id)
            {
                // Whoever still waits must take over the reading.
                self.news.notify_all();
                return Ok(reply);
            }
            if let Some(why) = &state.dead {
                let why = why.clone();
                state.open.remove(&id);
                return Err(self.failed(why));
            }
            let now = Instant::now();
            if now >= deadline {
                state.open.remove(&id);
                self.news.notify_all();
                let heard = now.saturating_duration_since(state.last_heard);
                return Err(self.failed(format!(
                    "no answer in time; last heard of it {heard:.1?} ago"
                )));
            }
            match state.input.take() {
                Some(mut input) => {
                    let got = MutexGuard::unlocked(&mut state, || {
                        self.read_some(&mut input, deadline.saturating_duration_since(now))
                    });
                    let sorted = got.and_then(|heard| {
                        if heard {
                            state.last_heard = Instant::now();
                        }
                        sort(&mut input, &mut state.open)
                    });
                    state.input = Some(input);
                    if let Err(what) = sorted {
                        let heard = state.last_heard.elapsed();
                        state.dead.get_or_insert_with(|| {
                            format!("lost it: {what}; last heard of it {heard:.1?} ago")
                        });
                    }
                    self.news.notify_all();
                }
                None => {
                    self.news.wait_until(&mut state, deadline);
                }
            }
        }
    }

    /// Returns whether something came.
    fn read_some(&self, input: &mut Vec<u8>, limit: Duration) -> Result<bool, String> {
        let mut chunk = [0; 16 * 1024];
        self.stream
            .set_read_timeout(Some(limit.max(Duration::from_millis(1))))
            .map_err(|e| e.to_string())?;
        match (&self.stream).read(&mut chunk) {
            Ok(0) => Err("it closed the connection".into()),
            Ok(n) => {
                input.extend_from_slice(&chunk[..n]);
                Ok(true)
            }
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(false)
            }
            Err(e) => Err(e.to_string()),
        }
    }
}

/// Gives complete answers to those who asked; answers that nobody waits for any more are dropped.
fn sort(input: &mut Vec<u8>, open: &mut HashMap<u64, Option<Reply>>) -> Result<(), String> {
    let mut used = 0;
    loop {
        match wire::split(&input[used..]) {
            Ok(Some((body, n))) => {
                let (id, reply) = Reply::decode(body).ok_or("it sent a malformed answer")?;
                if let Some(slot) = open.get_mut(&id) {
                    *slot = Some(reply);
                }
                used += n;
            }
            Ok(None) => break,
            Err(n) => return Err(format!("it announced an answer of {n} bytes")),
        }
    }
    input.drain(..used);
    Ok(())
}

fn failed(addr: &str, what: String) -> Error {
    Cause::Store {
        addr: addr.into(),
        what,
    }
    .into()
}

enum Attempt {
    Again(String),
    Late(String),
    Final(String),
}

fn attempt(
    addr: &impl ToSocketAddrs,
    creds: &Credentials,
    claim: Claim,
    deadline: Instant,
) -> Result<TcpStream, Attempt> {
    let addrs = addr.to_socket_addrs().map_err(|e| match e.kind() {
        io::ErrorKind::InvalidInput => Attempt::Final(format!("not an address: {e}")),
        _ => Attempt::Again(format!("its name does not resolve: {e}")),
    })?;
    let mut why = Vec::new();
    let mut late = true;
    for addr in addrs {
        let error = match connect_one(addr, None, deadline) {
            Err(e) => {
                late &= e.kind() == io::ErrorKind::TimedOut;
                format!("{addr}: {e}")
            }
            Ok(stream) => match auth::initiate(&stream, creds, claim, deadline) {
                Ok(_) => return Ok(stream),
                Err(e) if e.is_final() => return Err(Attempt::Final(e.to_string())),
                Err(e) => {
                    late &= matches!(e, AuthError::Timeout { .. });
                    e.to_string()
                }
            },
        };
        why.push(error);
    }
    if why.is_empty() {
        return Err(Attempt::Again("its name has no address".into()));
    }
    let why = why.join("; ");
    Err(if late {
        Attempt::Late(why)
    } else {
        Attempt::Again(why)
    })
}

/// Connects, not longer than until `deadline`; from the address `from` where it names one.
pub(crate) fn connect_one(
    addr: SocketAddr,
    from: Option<SocketAddr>,
    deadline: Instant,
) -> io::Result<TcpStream> {
    let left = deadline
        .saturating_duration_since(Instant::now())
        .min(ATTEMPT);
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let stream = match from {
        None => TcpStream::connect_timeout(&addr, left)?,
        Some(from) => {
            let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
            socket.bind(&from.into())?;
            socket.connect_timeout(&addr.into(), left)?;
            socket.into()
        }
    };
    // Where nobody listens yet on a port of the ephemeral range, TCP can connect a socket to itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

impl Store for StoreClient {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        check_key("set", key)?;
        check_value("set", value)?;
        let (key, value) = (key.into(), value.into());
        self.call(Request::Set { key, value }, self.timeout)
            .map(drop)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, Error> {
        check_key("get", key)?;
        let request = Request::Get {
            key: key.into(),
            wait: timeout,
        };
        match self.call(request, timeout.saturating_add(GRACE))? {
            Reply::Value(v) => Ok(v),
            _ => Err(self.failed("it answered a get with a number".into())),
        }
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, Error> {
        check_key("add", key)?;
        let key = key.into();
        match self.call(Request::Add { key, delta }, self.timeout)? {
            Reply::Number(n) => Ok(n),
            _ => Err(self.failed("it answered an add without a number".into())),
        }
    }

    fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<Vec<u8>, Error> {
        check_key("compare_and_set", key)?;
        check_value("compare_and_set", expected.unwrap_or_default())?;
        check_value("compare_and_set", new)?;
        let request = Request::CompareAndSet {
            key: key.into(),
            expected: expected.map(<[u8]>::to_vec),
            new: new.into(),
        };
        match self.call(request, self.timeout)? {
            Reply::Value(v) => Ok(v),
            _ => Err(self.failed("it answered a compare_and_set with a number".into())),
        }
    }

    fn barrier(&self, name: &str, n: u32, timeout: Duration) -> Result<(), Error> {
        check_key("barrier", name)?;
        let request = Request::Barrier {
            name: name.into(),
            n,
            wait: timeout,
        };
        self.call(request, timeout.saturating_add(GRACE)).map(drop)
    }
}
