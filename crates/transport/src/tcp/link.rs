//! One socket and its two buffers.

use crate::{
    frame::{HEADER, PAYLOAD_MAX},
    sockopt,
};
use gaggle_core::HEAD_MAX;
use mio::net::TcpStream;
use std::{
    io::{self, Read, Write},
    os::fd::AsFd,
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

/// A socket with what has come from it and what is to go to it; only ever touched by whoever makes progress.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: TcpStream,
    pub(super) input: Buffer,
    pub(super) output: Buffer,
    pub(super) readable: bool,
    pub(super) writable: bool,
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
    pub(super) bytes: Box<[u8]>,
    pub(super) lo: usize,
    pub(super) hi: usize,
}

impl Buffer {
    fn new(size: usize) -> Buffer {
        Buffer {
            bytes: vec![0; size].into(),
            lo: 0,
            hi: 0,
        }
    }

    pub(super) fn full(&self) -> &[u8] {
        &self.bytes[self.lo..self.hi]
    }

    pub(super) fn len(&self) -> usize {
        self.hi - self.lo
    }

    pub(super) fn take(&mut self, n: usize) {
        self.lo += n;
        if self.lo == self.hi {
            (self.lo, self.hi) = (0, 0);
        }
    }

    pub(super) fn clear(&mut self) {
        (self.lo, self.hi) = (0, 0);
    }

    fn compact(&mut self) {
        self.bytes.copy_within(self.lo..self.hi, 0);
        (self.lo, self.hi) = (0, self.hi - self.lo);
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.hi..self.hi + bytes.len()].copy_from_slice(bytes);
        self.hi += bytes.len();
    }
}

impl Link {
    pub(super) fn new(stream: TcpStream) -> Link {
        let baseline = sockopt::counters(stream.as_fd());
        Link {
            stream,
            input: Buffer::new(PAYLOAD_MAX + SPARE),
            output: Buffer::new(2 * LOW + HEADER + HEAD_MAX + FRAME),
            readable: true,
            writable: true,
            ending: false,
            stalled: false,
            unparsed: false,
            broken: None,
            closed: false,
            taken: FREE,
            frame: None,
            baseline,
            last: (0, 0),
        }
    }

    /// Bytes that the socket itself has sent and received since it was handed over.
    pub(super) fn counters(&self) -> Option<(u64, u64)> {
        let (sent, received) = self.baseline?;
        if self.closed {
            return Some(self.last);
        }
        let now = sockopt::counters(self.stream.as_fd())?;
        Some((now.0 - sent, now.1 - received))
    }

    /// Whether one more frame of any size may be appended. While the socket takes nothing, what comes next is better chosen later.
    pub(super) fn wants_frame(&mut self) -> bool {
        let usable = self.writable && !self.closed && self.broken.is_none();
        if !usable || self.output.len() >= LOW {
            return false;
        }
        if self.output.bytes.len() - self.output.hi < HEADER + HEAD_MAX + FRAME {
            self.output.compact();
        }
        true
    }

    /// Longest payload of the next frame.
    pub(super) fn frame_max(&self) -> usize {
        if self.taken < FREE {
            FRAME_TIGHT
        } else {
            FRAME
        }
    }

    /// Reads once into what is free. `Ok(None)`: nothing there now.
    pub(super) fn read(&mut self) -> io::Result<Option<usize>> {
        if self.input.bytes.len() - self.input.hi < PAYLOAD_MAX {
            self.input.compact();
        }
        let room = self.input.bytes.len() - self.input.hi;
        loop {
            match self.stream.read(&mut self.input.bytes[self.input.hi..]) {
                Ok(n) => {
                    self.input.hi += n;
                    self.unparsed = true;
                    // A short read has emptied the socket; the next arrival will be told.
                    self.readable = n == room || self.ending;
                    return Ok(Some(n));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok(None);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Writes once. The number of bytes that went.
    pub(super) fn write(&mut self) -> usize {
        loop {
            match self.stream.write(self.output.full()) {
                Ok(n) => {
                    self.output.take(n);
                    self.taken = FREE.min(self.taken + n);
                    return n;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.writable = false;
                    self.taken = 0;
                    return 0;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    // What the peer said before it went is read first.
                    self.broken = Some(e.to_string());
                    self.output.clear();
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
        // Both can only fail where the socket is already gone.
        let _ = registry.deregister(&mut self.stream);
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Whether everything has been handed to the kernel.
    pub(super) fn is_flushed(&self) -> bool {
        self.closed || self.broken.is_some() || self.output.len() == 0
    }
}
