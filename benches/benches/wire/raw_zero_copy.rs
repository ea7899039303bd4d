//! Sends that leave the bytes where they are until the peer has acknowledged them.
//!
//! # Safety
//! The unsafe calls pass the kernel a borrowed, hence open, descriptor and pointers to local values that outlive the call.
//! The bytes of a send are never freed or written, so that it does not matter when the system has read them.

use rustix::{
    io::Errno,
    net::{SendFlags, send},
};
use std::{io, net::TcpStream, os::fd::AsRawFd};

/// For one socket.
pub(crate) struct ZeroCopy {
    /// Sends of whose end the system has not told.
    open: u32,
}

impl ZeroCopy {
    /// # Errors
    /// What the system says about the option.
    pub(crate) fn new(stream: &TcpStream) -> io::Result<ZeroCopy> {
        let on: libc::c_int = 1;
        // SAFETY: see the module doc; the value is an int.
        let rc = unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ZEROCOPY,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        match rc {
            0 => Ok(ZeroCopy { open: 0 }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends once. How many bytes went; 0: the socket is full.
    pub(crate) fn send(&mut self, stream: &TcpStream, bytes: &'static [u8]) -> io::Result<usize> {
        let zero_copy = SendFlags::from_bits_retain(libc::MSG_ZEROCOPY as u32);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | zero_copy;
        match send(stream, bytes, flags) {
            Ok(n) => {
                self.open += 1;
                Ok(n)
            }
            // Also where too many are open.
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(0),
            Err(Errno::NOBUFS) => self.hear(stream).map(|()| 0),
            Err(e) => Err(e.into()),
        }
    }

    /// Waits until the system has let go of everything that was sent.
    pub(crate) fn settle(&mut self, stream: &TcpStream) -> io::Result<()> {
        while self.open > 0 {
            self.hear(stream)?;
        }
        Ok(())
    }

    /// Takes one word of the system's from the socket's queue of errors, if there is one: a range of sends that are over.
    fn hear(&mut self, stream: &TcpStream) -> io::Result<()> {
        // Room for one `cmsghdr` with a `sock_extended_err`, aligned as they want it.
        let mut room = [0u64; 16];
        // SAFETY: all zeros is a message of no parts.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = room.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&room) as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: see the module doc.
        let rc = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, flags) };
        if rc < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                _ => Err(error),
            };
        }
        // SAFETY: the kernel has filled in the lengths; what is read lies within the room, whose every bit pattern is an integer.
        let told = unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const message);
            (!first.is_null()).then(|| {
                libc::CMSG_DATA(first)
                    .cast::<libc::sock_extended_err>()
                    .read_unaligned()
            })
        };
        if let Some(told) = told {
            let n = told.ee_data.wrapping_sub(told.ee_info).wrapping_add(1);
            self.open = self.open.saturating_sub(n);
        }
        Ok(())
    }
}
