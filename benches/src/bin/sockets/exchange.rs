//! One end of an exchange over several connections: one thread, which gives each connection the next slice when it has room, and puts what comes where its number says.

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io::{self, IoSlice, Read, Write},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

/// What a connection takes at a time: a frame of the transport's.
const SLICE: usize = 64 << 10;
/// Before each slice: which one it is.
const HEAD: usize = 8;
/// Longest time without a byte.
const PATIENCE: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// A connection, and how far its slices are.
struct End {
    stream: TcpStream,
    /// The slice that goes out, and how many bytes of head and payload have gone.
    out: Option<(usize, usize)>,
    head: [u8; HEAD],
    /// Bytes of head and payload that have come.
    come: usize,
}

/// All connections to the other end.
pub(crate) struct Ends(Vec<End>);

impl Ends {
    /// Waits for `n` connections at a free port of this address, which is printed.
    pub(crate) fn listen(address: &str, n: usize) -> Result<Ends> {
        let listener = TcpListener::bind((address, 0))?;
        println!("{}", listener.local_addr()?.port());
        Ends::of((0..n).map(|_| Ok(listener.accept()?.0)))
    }

    /// Makes them.
    pub(crate) fn connect(address: &str, n: usize) -> Result<Ends> {
        Ends::of((0..n).map(|_| TcpStream::connect(address)))
    }

    fn of(streams: impl Iterator<Item = io::Result<TcpStream>>) -> Result<Ends> {
        let end = |stream: io::Result<TcpStream>| -> Result<End> {
            let stream = stream?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(End {
                stream,
                out: None,
                head: [0; HEAD],
                come: 0,
            })
        };
        Ok(Ends(streams.map(end).collect::<Result<_>>()?))
    }

    /// Sends `out`, and receives as much, over the first `n` connections; how long that took, from when both were there.
    pub(crate) fn exchange(&mut self, n: usize, out: &[u8], back: &mut [u8]) -> Result<Duration> {
        self.meet()?;
        let ends = &mut self.0[..n];
        let begin = Instant::now();
        let slices = out.len().div_ceil(SLICE);
        let (mut next, mut sent, mut come) = (0, 0, 0);
        while sent < slices || come < slices {
            let mut moved = false;
            for end in ends.iter_mut() {
                while end.out.is_some() || next < slices {
                    let out_of = end.out.get_or_insert_with(|| {
                        next += 1;
                        (next - 1, 0)
                    });
                    if !send(&end.stream, out_of, out)? {
                        break;
                    }
                    moved = true;
                    if out_of.1 == HEAD + slice(out_of.0, out.len()).len() {
                        (end.out, sent) = (None, sent + 1);
                    }
                }
                while come < slices && end.receive(back)? {
                    moved = true;
                    let which = usize::from_le_bytes(end.head);
                    if end.come >= HEAD && end.come == HEAD + slice(which, back.len()).len() {
                        (end.come, come) = (0, come + 1);
                    }
                }
            }
            if !moved {
                wait(ends, sent < slices)?;
            }
        }
        Ok(begin.elapsed())
    }

    /// Both ends are here: a byte each way.
    fn meet(&self) -> Result<()> {
        let mut stream = &self.0.first().context("there is a connection")?.stream;
        stream.set_nonblocking(false)?;
        stream.write_all(&[1])?;
        stream.read_exact(&mut [0])?;
        stream.set_nonblocking(true)?;
        Ok(())
    }
}

/// The bytes of a slice.
fn slice(which: usize, len: usize) -> std::ops::Range<usize> {
    let lo = which.saturating_mul(SLICE).min(len);
    lo..(lo + SLICE).min(len)
}

/// Whether anything of a slice has gone.
fn send(mut stream: &TcpStream, (which, done): &mut (usize, usize), out: &[u8]) -> Result<bool> {
    let (head, payload) = (which.to_le_bytes(), &out[slice(*which, out.len())]);
    let parts = [
        IoSlice::new(&head[(*done).min(HEAD)..]),
        IoSlice::new(&payload[done.saturating_sub(HEAD)..]),
    ];
    match stream.write_vectored(&parts) {
        Ok(n) => {
            *done += n;
            Ok(n > 0)
        }
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(e) => Err(e.into()),
    }
}

impl End {
    /// Whether anything has come.
    fn receive(&mut self, back: &mut [u8]) -> Result<bool> {
        let room = match self.come {
            n if n < HEAD => &mut self.head[n..],
            n => {
                let place = slice(usize::from_le_bytes(self.head), back.len());
                &mut back[place][n - HEAD..]
            }
        };
        match (&self.stream).read(room) {
            Ok(0) => bail!("the other end has gone"),
            Ok(n) => {
                self.come += n;
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

/// Until some connection has something, or room for what is left to send.
fn wait(ends: &[End], sends: bool) -> Result<()> {
    let events = |end: &End| match sends || end.out.is_some() {
        true => PollFlags::IN | PollFlags::OUT,
        false => PollFlags::IN,
    };
    let mut fds: Vec<PollFd<'_>> = ends
        .iter()
        .map(|end| PollFd::new(&end.stream, events(end)))
        .collect();
    match poll(&mut fds, Some(&PATIENCE))? {
        0 => bail!("nothing has come for {} s", PATIENCE.tv_sec),
        _ => Ok(()),
    }
}
