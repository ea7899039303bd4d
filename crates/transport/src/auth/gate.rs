//! A listening port that lets only the job's own connections through.
//!
//! One thread serves all half-open connections of a port: their number and each one's time are bounded.
//! Callers own the poll; the gate owns the listener and the connections that have not proven themselves.

use super::{
    Acceptor, AuthError, Claim, Credentials, Progress, REFUSED_LINGER, Refusal,
    strangers::Strangers,
};
use gaggle_core::Rank;
use mio::{
    Interest, Registry, Token,
    net::{TcpListener, TcpStream},
};
use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr},
    time::{Duration, Instant},
};

/// Token of the listener; owners use lower ones for themselves.
pub(crate) const LISTENER: Token = Token(8);
/// How long to leave the listener alone after it failed (no descriptors left, say).
const RETRY_ACCEPT: Duration = Duration::from_millis(100);
/// What a refused caller may still send before its connection is closed.
const DRAIN_MAX: usize = 4096;

/// How many strangers a port bears, and for how long.
pub(crate) struct GateLimits {
    /// Connections in the handshake at one time; more are closed at once, and callers try again.
    pub(crate) half_open: usize,
    /// From accept to proof.
    pub(crate) patience: Duration,
    /// Callers may change their minds: who ends the connection by itself, without having said anything wrong, is not counted as a stranger.
    pub(crate) fickle: bool,
}

/// A connection that has proven itself; still registered under `token`.
pub(crate) struct Guest {
    pub(crate) token: Token,
    pub(crate) stream: TcpStream,
    pub(crate) claim: Claim,
    pub(crate) addr: SocketAddr,
}

struct HalfOpen {
    stream: TcpStream,
    addr: SocketAddr,
    deadline: Instant,
    state: State,
}

enum State {
    Shaking(Box<Acceptor>),
    /// Told why, kept until it closes or its time is over; counts what it still sends.
    Refused(usize),
}

enum Outcome {
    Keep,
    Admitted(Claim),
    Close(Option<String>),
}

/// The listener with its half-open connections.
pub(crate) struct Gate {
    listener: TcpListener,
    creds: Credentials,
    me: Rank,
    limits: GateLimits,
    half_open: HashMap<Token, HalfOpen>,
    next: usize,
    accept_again: Option<Instant>,
    strangers: Strangers,
}

impl Gate {
    pub(crate) fn new(
        listener: std::net::TcpListener,
        registry: &Registry,
        creds: &Credentials,
        me: Rank,
        limits: GateLimits,
        name: &str,
    ) -> io::Result<Gate> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Gate {
            listener,
            creds: creds.clone(),
            me,
            limits,
            half_open: HashMap::new(),
            next: LISTENER.0 + 1,
            accept_again: None,
            strangers: Strangers::new(name),
        })
    }

    /// Handles an event of `token`; what has proven itself and was admitted goes to `guests`. Tokens that are not the gate's are ignored.
    pub(crate) fn ready(
        &mut self,
        registry: &Registry,
        token: Token,
        admit: &mut dyn FnMut(Claim) -> Result<(), Refusal>,
        guests: &mut Vec<Guest>,
    ) {
        if token == LISTENER {
            self.accept_all(registry, admit, guests);
        } else if self.half_open.contains_key(&token) {
            self.serve(registry, token, admit, guests);
        }
    }

    fn accept_all(
        &mut self,
        registry: &Registry,
        admit: &mut dyn FnMut(Claim) -> Result<(), Refusal>,
        guests: &mut Vec<Guest>,
    ) {
        self.accept_again = None;
        loop {
            let (mut stream, addr) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) =>
                {
                    continue;
                }
                Err(_) => {
                    // The listener stays readable but is not reported again: come back later.
                    self.accept_again = Some(Instant::now() + RETRY_ACCEPT);
                    return;
                }
            };
            let now = Instant::now();
            if self.half_open.len() >= self.limits.half_open {
                let why = format!("{} others are in the handshake", self.half_open.len());
                self.strangers.turned_away(addr.ip(), &why, now);
                continue;
            }
            let token = Token(self.next);
            self.next += 1;
            if registry
                .register(&mut stream, token, Interest::READABLE)
                .is_err()
            {
                continue;
            }
            self.half_open.insert(
                token,
                HalfOpen {
                    stream,
                    addr,
                    deadline: now + self.limits.patience,
                    state: State::Shaking(Box::new(Acceptor::new(
                        &self.creds,
                        self.me,
                        addr.to_string(),
                    ))),
                },
            );
            self.serve(registry, token, admit, guests);
        }
    }

    fn serve(
        &mut self,
        registry: &Registry,
        token: Token,
        admit: &mut dyn FnMut(Claim) -> Result<(), Refusal>,
        guests: &mut Vec<Guest>,
    ) {
        let Some(half) = self.half_open.get_mut(&token) else {
            return;
        };
        let outcome = half.advance(admit, &mut self.strangers, self.limits.fickle);
        if let Outcome::Keep = outcome {
            return;
        }
        let Some(mut half) = self.half_open.remove(&token) else {
            return;
        };
        match outcome {
            Outcome::Admitted(claim) => guests.push(Guest {
                token,
                stream: half.stream,
                claim,
                addr: half.addr,
            }),
            Outcome::Close(why) => {
                if let Some(why) = why {
                    self.strangers
                        .turned_away(half.addr.ip(), &why, Instant::now());
                }
                // Closing the descriptor deregisters it as well; the result changes nothing.
                let _ = registry.deregister(&mut half.stream);
            }
            Outcome::Keep => {}
        }
    }

    /// Closes whose time is over, and takes up a listener that had failed.
    pub(crate) fn expire(
        &mut self,
        registry: &Registry,
        now: Instant,
        admit: &mut dyn FnMut(Claim) -> Result<(), Refusal>,
        guests: &mut Vec<Guest>,
    ) {
        let strangers = &mut self.strangers;
        self.half_open.retain(|_, half| {
            if half.deadline > now {
                return true;
            }
            if let State::Shaking(_) = half.state {
                strangers.turned_away(
                    half.addr.ip(),
                    "it did not finish the handshake in time",
                    now,
                );
            }
            let _ = registry.deregister(&mut half.stream);
            false
        });
        self.strangers.tick(now);
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_all(registry, admit, guests);
        }
    }

    /// When `expire` has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.half_open
            .values()
            .map(|h| h.deadline)
            .chain(self.accept_again)
            .chain(self.strangers.next_due())
            .min()
    }
}

impl HalfOpen {
    fn advance(
        &mut self,
        admit: &mut dyn FnMut(Claim) -> Result<(), Refusal>,
        strangers: &mut Strangers,
        fickle: bool,
    ) -> Outcome {
        loop {
            match &mut self.state {
                State::Refused(seen) => {
                    let mut rest = [0; 512];
                    match self.stream.read(&mut rest) {
                        Ok(n) if n > 0 && *seen + n <= DRAIN_MAX => *seen += n,
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Outcome::Keep,
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        _ => return Outcome::Close(None),
                    }
                }
                State::Shaking(acceptor) => {
                    let n = match self.stream.read(acceptor.room()) {
                        Ok(0) if fickle => return Outcome::Close(None),
                        Ok(0) => {
                            return Outcome::Close(Some(
                                "it closed the connection during the handshake".into(),
                            ));
                        }
                        Ok(n) => n,
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Outcome::Keep,
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                        Err(e) if fickle && e.kind() == io::ErrorKind::ConnectionReset => {
                            return Outcome::Close(None);
                        }
                        Err(e) => return Outcome::Close(Some(e.to_string())),
                    };
                    match acceptor.filled(n, admit) {
                        Err(e) => return Outcome::Close(Some(e.to_string())),
                        Ok(Progress::More) => {}
                        Ok(Progress::Reply(reply)) => {
                            if !self.say(&reply) {
                                return Outcome::Close(Some("it does not read".into()));
                            }
                        }
                        Ok(Progress::Done { claim, reply }) => {
                            if !self.say(&reply) {
                                return Outcome::Close(Some("it does not read".into()));
                            }
                            return Outcome::Admitted(claim);
                        }
                        Ok(Progress::Refused { error, reply }) => {
                            let now = Instant::now();
                            if !matches!(error, AuthError::Crossed { .. }) {
                                strangers.turned_away(self.addr.ip(), &error.to_string(), now);
                            }
                            if !self.say(&reply) || self.stream.shutdown(Shutdown::Write).is_err() {
                                return Outcome::Close(None);
                            }
                            self.deadline = self.deadline.min(now + REFUSED_LINGER);
                            self.state = State::Refused(0);
                        }
                    }
                }
            }
        }
    }

    /// A few dozen bytes into an empty socket buffer: they fit or the peer is not one of ours.
    fn say(&mut self, bytes: &[u8]) -> bool {
        matches!(self.stream.write(bytes), Ok(n) if n == bytes.len())
    }
}
