//! Sends through io_uring, one at a time.
//!
//! # Safety
//! The bytes of a send are never freed or written, so that it does not matter when the system has read them.

use io_uring::{IoUring, opcode, types::Fd};
use std::{io, net::TcpStream, os::fd::AsRawFd};

/// A ring of its own.
pub(crate) struct Ring(IoUring);

impl Ring {
    /// # Errors
    /// The system has no such rings, or does not let this process have one.
    pub(crate) fn new() -> io::Result<Ring> {
        IoUring::new(8).map(Ring)
    }

    /// Sends once and waits until that is done. How many bytes went.
    pub(crate) fn send(&mut self, stream: &TcpStream, bytes: &'static [u8]) -> io::Result<usize> {
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let send = opcode::Send::new(Fd(stream.as_raw_fd()), bytes.as_ptr(), len)
            .flags(libc::MSG_NOSIGNAL)
            .build();
        // SAFETY: see the module doc; the socket is open until the send is over or the caller gives up all.
        unsafe { self.0.submission().push(&send) }.map_err(io::Error::other)?;
        self.0.submit_and_wait(1)?;
        let done = self.0.completion().next().ok_or(io::ErrorKind::Other)?;
        match done.result() {
            n if n < 0 => Err(io::Error::from_raw_os_error(-n)),
            n => Ok(n as usize),
        }
    }
}
