//! Both sides of the handshake on a blocking socket, under one deadline.

use super::{
    Acceptor, AuthError, Claim, Credentials, Initiator, Progress, REFUSED_LINGER, Refusal, Step,
};
use gaggle_core::Rank;
use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

/// A connected blocking socket, as far as the handshake needs it.
pub trait Socket {
    /// As [`Read::read`], under a time-out.
    ///
    /// # Errors
    /// What the system says.
    fn read_within(&self, buf: &mut [u8], limit: Option<Duration>) -> io::Result<usize>;
    /// As [`Write::write_all`], under a time-out.
    ///
    /// # Errors
    /// What the system says.
    fn write_within(&self, bytes: &[u8], limit: Option<Duration>) -> io::Result<()>;
    /// Takes the time-outs away.
    ///
    /// # Errors
    /// What the system says.
    fn without_limits(&self) -> io::Result<()>;
    /// Says that nothing follows.
    ///
    /// # Errors
    /// What the system says.
    fn shut_write(&self) -> io::Result<()>;
    /// Who is at the other end, for people.
    fn peer(&self) -> String;
}

macro_rules! socket {
    ($stream:ty, $peer:expr) => {
        impl Socket for $stream {
            fn read_within(&self, buf: &mut [u8], limit: Option<Duration>) -> io::Result<usize> {
                self.set_read_timeout(limit)?;
                (&mut &*self).read(buf)
            }

            fn write_within(&self, bytes: &[u8], limit: Option<Duration>) -> io::Result<()> {
                self.set_write_timeout(limit)?;
                (&mut &*self).write_all(bytes)
            }

            fn without_limits(&self) -> io::Result<()> {
                self.set_read_timeout(None)?;
                self.set_write_timeout(None)
            }

            fn shut_write(&self) -> io::Result<()> {
                self.shutdown(Shutdown::Write)
            }

            fn peer(&self) -> String {
                let peer: fn(&$stream) -> String = $peer;
                peer(self)
            }
        }
    };
}

socket!(TcpStream, |stream| stream
    .peer_addr()
    .map_or_else(|_| "an unknown address".into(), |a| a.to_string()));
#[cfg(unix)]
socket!(std::os::unix::net::UnixStream, |_| {
    "a process of this host".into()
});

/// A socket under one deadline for all that happens on it.
struct Timed<'a> {
    stream: &'a dyn Socket,
    peer: String,
    deadline: Instant,
}

impl Timed<'_> {
    fn error(&self, source: io::Error) -> AuthError {
        let peer = self.peer.clone();
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AuthError::Timeout { peer },
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => AuthError::Closed { peer },
            _ => AuthError::Io { peer, source },
        }
    }

    fn remaining(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // Whole milliseconds: the kernel reads a shorter timeout as none.
        Ok(left.max(Duration::from_millis(1)))
    }

    fn read_some(&self, buf: &mut [u8]) -> Result<usize, AuthError> {
        loop {
            let read = self
                .remaining()
                .and_then(|left| self.stream.read_within(buf, Some(left)));
            match read {
                Ok(0) => return Err(self.error(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.error(e)),
            }
        }
    }

    fn write(&self, bytes: &[u8]) -> Result<(), AuthError> {
        self.remaining()
            .and_then(|left| self.stream.write_within(bytes, Some(left)))
            .map_err(|e| self.error(e))
    }

    fn finish(&self) -> Result<(), AuthError> {
        self.stream.without_limits().map_err(|e| self.error(e))
    }
}

fn timed(stream: &dyn Socket, deadline: Instant) -> Timed<'_> {
    let peer = stream.peer();
    Timed {
        stream,
        peer,
        deadline,
    }
}

/// The caller's side on a blocking socket. Returns the host's rank, or [`NOBODY`](super::NOBODY); the socket has no timeouts afterwards.
///
/// # Errors
/// Any [`AuthError`]; drop the socket.
pub fn initiate(
    stream: &dyn Socket,
    creds: &Credentials,
    claim: Claim,
    deadline: Instant,
) -> Result<Rank, AuthError> {
    let t = timed(stream, deadline);
    let mut initiator = Initiator::new(creds, claim, t.peer.clone()).map_err(|e| t.error(e))?;
    t.write(initiator.hello())?;
    loop {
        let n = t.read_some(initiator.room())?;
        match initiator.filled(n)? {
            Step::More => {}
            Step::Reply(reply) => t.write(&reply)?,
            Step::Done(host) => {
                t.finish()?;
                return Ok(host);
            }
        }
    }
}

/// The host's side on a blocking socket. Once the proof is right, `admit` decides; the socket has no timeouts afterwards.
///
/// # Errors
/// Any [`AuthError`]; drop the socket.
pub fn accept(
    stream: &dyn Socket,
    creds: &Credentials,
    me: Rank,
    admit: &mut dyn FnMut(Claim) -> Result<(), Refusal>,
    deadline: Instant,
) -> Result<Claim, AuthError> {
    let mut t = timed(stream, deadline);
    let mut acceptor = Acceptor::new(creds, me, t.peer.clone());
    loop {
        let n = t.read_some(acceptor.room())?;
        match acceptor.filled(n, admit)? {
            Progress::More => {}
            Progress::Reply(reply) => t.write(&reply)?,
            Progress::Done { claim, reply } => {
                t.write(&reply)?;
                t.finish()?;
                return Ok(claim);
            }
            Progress::Refused { error, reply } => {
                t.write(&reply)?;
                // Closing over unread bytes would reset the connection before the caller has read why.
                t.deadline = t.deadline.min(Instant::now() + REFUSED_LINGER);
                if stream.shut_write().is_ok() {
                    let mut rest = [0; 256];
                    while t.read_some(&mut rest).is_ok() {}
                }
                return Err(error);
            }
        }
    }
}
