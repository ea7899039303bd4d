//! One link: a socket and its two buffers, or two rings in shared memory and the socket that is their bell.

use crate::{
    frame::{HEADER, PAYLOAD_MAX},
    shm::{
        ShmLink,
        raw_ring::{FRONT, Reader, Writer},
        ring::{FOR_DATA, FOR_ROOM, Side},
    },
    sockopt,
};
use gaggle_core::HEAD_MAX;
use mio::net::{TcpStream, UnixStream};
use rustix::{
    io::Errno,
    net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg},
};
use std::{
    io::{self, IoSlice, Read},
    os::fd::AsFd,
    sync::Arc,
};

/// Longest payload that is framed at once: a more urgent message waits for no more than the rest of this. Received frames may be longer, up to [`PAYLOAD_MAX`].
pub(super) const FRAME: usize = 64 << 10;
/// The same while the socket takes less than there is: then the wire is what everybody waits for, and a few more headers cost nothing.
pub(super) const FRAME_TIGHT: usize = 32 << 10;
/// So many bytes in a row without a refusal, and the socket counts as fast again.
const FREE: usize = 1 << 20;
/// Pending bytes below which another frame is made, so that small ones leave together.
const LOW: usize = 16 << 10;
/// Free room for reading beyond what a longest frame needs.
const SPARE: usize = 64 << 10;

/// Least room in a ring that is worth a frame.
const RING_WORTH: usize = 8 << 10;
/// Consumed bytes of a ring after which they are given back even though more is at hand, as a share of the ring.
const RING_SHARE: usize = 8;
const _: () = assert!(HEADER + HEAD_MAX <= FRONT);

/// What bytes go through.
#[derive(Debug)]
pub(super) enum Stream {
    /// Nothing yet: no connection has been made.
    Absent,
    /// A socket.
    Tcp(TcpStream),
    /// Rings. The socket says when the peer dies, and wakes.
    Ring {
        /// The bell.
        bell: UnixStream,
        /// This side of the pair.
        side: Arc<Side>,
    },
}

/// A socket with what has come from it and what is to go to it; only ever touched by whoever makes progress.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: Stream,
    pub(super) input: Input,
    pub(super) output: Output,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// Something is expected from the peer.
    pub(super) awaited: bool,
    /// The peer's end was seen by the selector: a short read is then not the last.
    pub(super) ending: bool,
    /// The sink has left something in `input`.
    pub(super) stalled: bool,
    /// Something has been read and not been looked at.
    pub(super) unparsed: bool,
    /// Why nothing can be written any more; what can be read is read first.
    pub(super) broken: Option<String>,
    pub(super) closed: bool,
    /// Bytes that the socket has taken since it last refused one, up to [`FREE`].
    taken: usize,
    /// Bytes that have gone since this was last looked at.
    pub(super) gone: usize,
    /// The data frame that is being read.
    pub(super) frame: Option<Current>,
    baseline: Option<(u64, u64)>,
    last: (u64, u64),
}

/// The rest of a data frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    pub(super) place: u32,
    pub(super) uid: u64,
    pub(super) left: usize,
}

/// A fixed piece of memory with a full part in it.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Box<[u8]>,
    lo: usize,
    hi: usize,
}

/// What has come.
#[derive(Debug)]
pub(super) enum Input {
    Own(Buffer),
    Ring(Reader),
}

/// What is to go.
#[derive(Debug)]
pub(super) enum Output {
    Own(Buffer),
    Ring(Writer),
}

impl Buffer {
    fn new(size: usize) -> Buffer {
        Buffer {
            bytes: vec![0; size].into(),
            lo: 0,
            hi: 0,
        }
    }

    fn full(&self) -> &[u8] {
        &self.bytes[self.lo..self.hi]
    }

    fn len(&self) -> usize {
        self.hi - self.lo
    }

    fn take(&mut self, n: usize) {
        self.lo += n;
        if self.lo == self.hi {
            (self.lo, self.hi) = (0, 0);
        }
    }

    fn clear(&mut self) {
        (self.lo, self.hi) = (0, 0);
    }

    fn compact(&mut self) {
        self.bytes.copy_within(self.lo..self.hi, 0);
        (self.lo, self.hi) = (0, self.hi - self.lo);
    }

    fn free(&self) -> usize {
        self.bytes.len() - self.hi
    }
}

impl Input {
    /// What has come and has not been taken.
    pub(super) fn full(&self) -> &[u8] {
        match self {
            Input::Own(buffer) => buffer.full(),
            Input::Ring(ring) => ring.full(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Input::Own(buffer) => buffer.len(),
            Input::Ring(ring) => ring.len(),
        }
    }

    /// A copy of the first bytes, which nobody changes any more; as many of them count as there are.
    pub(super) fn front(&self) -> [u8; FRONT] {
        match self {
            Input::Own(buffer) => {
                let mut front = [0; FRONT];
                let n = buffer.len().min(FRONT);
                front[..n].copy_from_slice(&buffer.full()[..n]);
                front
            }
            Input::Ring(ring) => ring.front(),
        }
    }

    pub(super) fn take(&mut self, n: usize) {
        match self {
            Input::Own(buffer) => buffer.take(n),
            Input::Ring(ring) => ring.take(n),
        }
    }

    fn clear(&mut self) {
        match self {
            Input::Own(buffer) => buffer.clear(),
            Input::Ring(ring) => ring.clear(),
        }
    }
}

impl Output {
    /// Bytes that have been put in and have not gone.
    pub(super) fn len(&self) -> usize {
        match self {
            Output::Own(buffer) => buffer.len(),
            Output::Ring(ring) => ring.len(),
        }
    }

    /// `n` free bytes, `skip` behind what has been put in. There are as many as [`Link::frame_max`] leaves.
    pub(super) fn room(&mut self, skip: usize, n: usize) -> &mut [u8] {
        match self {
            Output::Own(buffer) => {
                let at = buffer.hi + skip;
                &mut buffer.bytes[at..at + n]
            }
            Output::Ring(ring) => ring.room(skip, n),
        }
    }

    /// The next `n` bytes of the room are put in.
    pub(super) fn filled(&mut self, n: usize) {
        match self {
            Output::Own(buffer) => buffer.hi += n,
            Output::Ring(ring) => ring.filled(n),
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.room(0, bytes.len()).copy_from_slice(bytes);
        self.filled(bytes.len());
    }

    fn clear(&mut self) {
        match self {
            Output::Own(buffer) => buffer.clear(),
            Output::Ring(ring) => ring.clear(),
        }
    }
}

impl Link {
    pub(super) fn tcp(stream: TcpStream) -> Link {
        let baseline = sockopt::counters(stream.as_fd());
        Link::made(stream, baseline)
    }

    /// No connection yet: nothing can be read or written, as on a closed one.
    pub(super) fn absent() -> Link {
        let (input, output) = (Buffer::new(0), Buffer::new(0));
        let (input, output) = (Input::Own(input), Output::Own(output));
        let mut link = Link::over(Stream::Absent, input, output, Some((0, 0)));
        (link.readable, link.writable, link.closed) = (false, false, true);
        link
    }

    /// Over a socket that had sent and received `baseline` when it became a link.
    pub(super) fn made(stream: TcpStream, baseline: Option<(u64, u64)>) -> Link {
        let input = Input::Own(Buffer::new(PAYLOAD_MAX + SPARE));
        let output = Output::Own(Buffer::new(2 * LOW + HEADER + HEAD_MAX + FRAME));
        Link::over(Stream::Tcp(stream), input, output, baseline)
    }

    /// # Errors
    /// What the system says about the socket.
    pub(super) fn ring(link: ShmLink) -> io::Result<Link> {
        let (stream, side) = link.into_parts();
        stream.set_nonblocking(true)?;
        let bell = UnixStream::from_std(stream);
        let input = Input::Ring(Reader::new(Arc::clone(side.map()), side.input()));
        let output = Output::Ring(Writer::new(Arc::clone(side.map()), side.output()));
        Ok(Link::over(Stream::Ring { bell, side }, input, output, None))
    }

    fn over(stream: Stream, input: Input, output: Output, baseline: Option<(u64, u64)>) -> Link {
        Link {
            stream,
            input,
            output,
            readable: true,
            writable: true,
            awaited: false,
            ending: false,
            stalled: false,
            unparsed: false,
            broken: None,
            closed: false,
            taken: FREE,
            gone: 0,
            frame: None,
            baseline,
            last: (0, 0),
        }
    }

    /// Whether there is a socket that is open.
    pub(super) fn is_socket(&self) -> bool {
        matches!(self.stream, Stream::Tcp(_)) && !self.closed
    }

    /// For the selector; `None` where there is no connection.
    pub(super) fn source(&mut self) -> Option<&mut dyn mio::event::Source> {
        match &mut self.stream {
            Stream::Absent => None,
            Stream::Tcp(stream) => Some(stream),
            Stream::Ring { bell, .. } => Some(bell),
        }
    }

    /// Whether there is, or was, a connection.
    pub(super) fn is_made(&self) -> bool {
        !matches!(self.stream, Stream::Absent)
    }

    /// This side of a pair of rings.
    pub(super) fn side(&self) -> Option<&Arc<Side>> {
        match &self.stream {
            Stream::Absent | Stream::Tcp(_) => None,
            Stream::Ring { side, .. } => Some(side),
        }
    }

    /// Bytes that the socket itself has sent and received since it was handed over.
    pub(super) fn counters(&self) -> Option<(u64, u64)> {
        let (sent, received) = self.baseline?;
        if self.closed {
            return Some(self.last);
        }
        let stream = match &self.stream {
            Stream::Tcp(stream) => stream,
            Stream::Absent | Stream::Ring { .. } => return None,
        };
        let now = sockopt::counters(stream.as_fd())?;
        Some((now.0 - sent, now.1 - received))
    }

    /// Takes the bytes out of a bell that has rung.
    pub(super) fn drain_bell(&mut self) {
        let Stream::Ring { bell, .. } = &mut self.stream else {
            return;
        };
        let mut scrap = [0; 64];
        loop {
            match bell.read(&mut scrap) {
                Ok(0) => {
                    self.ending = true;
                    self.readable = true;
                    return;
                }
                Ok(n) if n < scrap.len() => return,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Empty; or broken, of which the selector tells.
                Err(_) => return,
            }
        }
    }

    /// Looks whether a ring has something to read, or room again.
    pub(super) fn look(&mut self) {
        let Some(side) = self.side().filter(|_| !self.closed) else {
            return;
        };
        let (Input::Ring(input), Output::Ring(output)) = (&self.input, &self.output) else {
            return;
        };
        let (come, room) = (side.has_come(input.seen()), side.has_room(output.seen()));
        self.readable |= come;
        self.writable |= room;
    }

    /// What has been consumed is free for the peer.
    fn give_back(&mut self) {
        if let (Stream::Ring { bell, side }, Input::Ring(ring)) = (&self.stream, &mut self.input)
            && ring.publish()
        {
            side.call(FOR_ROOM, bell);
        }
    }

    /// Some of the input has been consumed: a peer that waits for room need not wait for the rest.
    pub(super) fn consumed(&mut self) {
        if let Input::Ring(ring) = &self.input
            && ring.unpublished() >= ring.size() / RING_SHARE
        {
            self.give_back();
        }
    }

    /// All that can be done is done: says how far, for whoever goes to sleep.
    pub(super) fn note(&mut self) {
        self.give_back();
        if let (Stream::Ring { side, .. }, Input::Ring(input), Output::Ring(output)) =
            (&self.stream, &self.input, &self.output)
        {
            let full = (!self.writable).then_some(output.seen());
            side.note(input.seen(), full);
        }
    }

    /// Whether one more frame of any size may be appended. While the socket takes nothing, what comes next is better chosen later.
    pub(super) fn wants_frame(&mut self) -> bool {
        let usable = self.writable && !self.closed && self.broken.is_none();
        if !usable || self.output.len() >= LOW {
            return false;
        }
        match &mut self.output {
            Output::Own(buffer) => {
                if buffer.free() < HEADER + HEAD_MAX + FRAME {
                    buffer.compact();
                }
                true
            }
            Output::Ring(ring) => {
                if ring.free() < RING_WORTH + FRAME
                    && let Err(e) = ring.look()
                {
                    self.broken = Some(format!("its memory makes no sense: {e}"));
                    self.readable = true;
                    return false;
                }
                if ring.free() >= RING_WORTH {
                    return true;
                }
                // What is framed goes first.
                self.writable = ring.len() > 0;
                false
            }
        }
    }

    /// Longest payload of the next frame.
    pub(super) fn frame_max(&self) -> usize {
        match &self.output {
            Output::Own(_) if self.taken < FREE => FRAME_TIGHT,
            Output::Own(_) => FRAME,
            Output::Ring(ring) => FRAME.min(ring.free() - HEADER - HEAD_MAX),
        }
    }

    /// Reads once into what is free. `Ok(None)`: nothing there now.
    pub(super) fn read(&mut self) -> io::Result<Option<usize>> {
        self.give_back();
        let (stream, buffer) = match (&mut self.stream, &mut self.input) {
            (Stream::Tcp(stream), Input::Own(buffer)) => (stream, buffer),
            (_, Input::Ring(ring)) => {
                let n = ring.look().map_err(io::Error::other)?;
                self.unparsed |= n > 0;
                self.readable = n > 0 || self.ending;
                // Whoever has ended has written everything before.
                return Ok((n > 0 || self.ending).then_some(n));
            }
            _ => return Ok(None),
        };
        if buffer.free() < PAYLOAD_MAX {
            buffer.compact();
        }
        let room = buffer.free();
        loop {
            match recv(&*stream, &mut buffer.bytes[buffer.hi..], RecvFlags::empty()) {
                Ok((n, _)) => {
                    buffer.hi += n;
                    self.unparsed = true;
                    // A short read has emptied the socket; the next arrival will be told.
                    self.readable = n == room || self.ending;
                    return Ok(Some(n));
                }
                Err(Errno::WOULDBLOCK) => {
                    self.readable = false;
                    return Ok(None);
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Writes once what has been put in, and `more` behind it. How many bytes of `more` went.
    pub(super) fn write_with(&mut self, more: &[u8]) -> usize {
        let (Stream::Tcp(stream), Output::Own(buffer)) = (&self.stream, &mut self.output) else {
            return 0;
        };
        if !self.writable || self.broken.is_some() {
            return 0;
        }
        let parts = [IoSlice::new(buffer.full()), IoSlice::new(more)];
        let mut none = SendAncillaryBuffer::default();
        // Whatever is wrong, the next write meets it too.
        let Ok(n) = sendmsg(stream, &parts, &mut none, SendFlags::NOSIGNAL) else {
            return 0;
        };
        let framed = buffer.len().min(n);
        buffer.take(framed);
        self.taken = FREE.min(self.taken + n);
        self.gone += n;
        n - framed
    }

    /// Writes once. The number of bytes that went.
    pub(super) fn write(&mut self) -> usize {
        let (stream, buffer) = match (&mut self.stream, &mut self.output) {
            (Stream::Tcp(stream), Output::Own(buffer)) => (stream, buffer),
            (Stream::Ring { bell, side }, Output::Ring(ring)) => {
                let n = ring.publish();
                side.call(FOR_DATA, bell);
                self.gone += n;
                return n;
            }
            _ => return 0,
        };
        loop {
            match send(&*stream, buffer.full(), SendFlags::NOSIGNAL) {
                Ok(n) => {
                    buffer.take(n);
                    self.taken = FREE.min(self.taken + n);
                    self.gone += n;
                    return n;
                }
                Err(Errno::WOULDBLOCK) => {
                    self.writable = false;
                    self.taken = 0;
                    return 0;
                }
                Err(Errno::INTR) => {}
                Err(e) => {
                    // What the peer said before it went is read first.
                    self.broken = Some(io::Error::from(e).to_string());
                    buffer.clear();
                    self.readable = true;
                    return 0;
                }
            }
        }
    }

    pub(super) fn close(&mut self, registry: &mio::Registry) {
        if self.closed {
            return;
        }
        if let Some(now) = self.counters() {
            self.last = now;
        }
        self.closed = true;
        self.frame = None;
        self.input.clear();
        self.output.clear();
        (self.readable, self.writable) = (false, false);
        (self.stalled, self.unparsed) = (false, false);
        if let Some(side) = self.side() {
            side.close();
        }
        // All can only fail where the socket is already gone.
        if let Some(source) = self.source() {
            let _ = registry.deregister(source);
        }
        let _ = match &self.stream {
            Stream::Absent => Ok(()),
            Stream::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
            Stream::Ring { bell, .. } => bell.shutdown(std::net::Shutdown::Both),
        };
    }

    /// Throws away what has come, so that closing does not destroy what the peer has not yet received. Whether something is still on its way there.
    pub(super) fn linger(&mut self) -> bool {
        let Stream::Tcp(stream) = &mut self.stream else {
            // What is in a ring stays there for the peer.
            return false;
        };
        let mut scrap = [0; 16 * HEADER];
        for _ in 0..64 {
            if !matches!(stream.read(&mut scrap), Ok(n) if n > 0) {
                break;
            }
        }
        sockopt::unacknowledged(stream.as_fd()) > 0
    }

    /// Says that nothing follows.
    pub(super) fn shut(&self) {
        // It can only fail where the peer has closed already.
        let _ = match &self.stream {
            Stream::Absent => Ok(()),
            Stream::Tcp(stream) => stream.shutdown(std::net::Shutdown::Write),
            Stream::Ring { bell, .. } => bell.shutdown(std::net::Shutdown::Write),
        };
    }

    /// Whether there is nothing of it to handle or to write.
    pub(super) fn is_idle(&self) -> bool {
        let handled = !self.unparsed && !self.stalled && self.broken.is_none();
        self.closed || (handled && self.output.len() == 0)
    }

    /// Whether everything has been handed to the kernel.
    pub(super) fn is_flushed(&self) -> bool {
        self.closed || self.broken.is_some() || self.output.len() == 0
    }
}
