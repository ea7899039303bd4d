//! Socket options and counters that no crate of ours offers in safe form.
//!
//! # Safety
//! Each unsafe call passes the kernel a borrowed, hence open, descriptor and a pointer to a local value of the size that the call writes at most.

use std::{io, net::TcpStream, time::Duration};

/// How data links are tuned.
#[derive(Clone, Debug)]
pub(crate) struct Tuning {
    pub(crate) keepalive: Duration,
    pub(crate) user_timeout: Option<Duration>,
    pub(crate) unsent: u32,
}

/// Sends small frames at once, keeps little unsent data in the kernel, and notices dead hosts.
///
/// # Errors
/// Where the system refuses an option that every TCP has.
pub(crate) fn tune(stream: &TcpStream, tuning: &Tuning) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    let keepalive = socket2::TcpKeepalive::new().with_time(tuning.keepalive);
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    let keepalive = keepalive.with_interval(tuning.keepalive);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    {
        socket.set_tcp_user_timeout(tuning.user_timeout)?;
        // What is queued in the kernel can no longer be overtaken.
        socket.set_tcp_notsent_lowat(tuning.unsent)?;
    }
    Ok(())
}

/// Payload bytes that the kernel has sent (without what it sent again) and received on a connection since it was made.
///
/// `None` where the system does not say.
#[cfg(target_os = "linux")]
pub fn counters(fd: std::os::fd::BorrowedFd<'_>) -> Option<(u64, u64)> {
    use std::os::fd::AsRawFd;
    // `struct tcp_info` of <linux/tcp.h> as far as it is read here; 64-bit words, longer than the kernel's today.
    // Words: 16 tcpi_bytes_received (byte 128), 25 tcpi_bytes_sent (byte 200), 26 tcpi_bytes_retrans (byte 208).
    let mut info = [0u64; 64];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: see the module doc; the kernel writes at most `len` bytes and every bit pattern is a u64.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    (rc == 0 && len as usize >= 27 * 8).then(|| (info[25] - info[26], info[16]))
}

/// `None`: only Linux says.
#[cfg(all(unix, not(target_os = "linux")))]
pub fn counters(_fd: std::os::fd::BorrowedFd<'_>) -> Option<(u64, u64)> {
    None
}

/// Bytes that the peer's kernel has not acknowledged; 0 where the system does not say.
#[cfg(target_os = "linux")]
pub(crate) fn unacknowledged(fd: std::os::fd::BorrowedFd<'_>) -> usize {
    use std::os::fd::AsRawFd;
    let mut n: libc::c_int = 0;
    // SAFETY: see the module doc; this request writes one int.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut n) };
    if rc == 0 {
        usize::try_from(n).unwrap_or(0)
    } else {
        0
    }
}

/// 0: only Linux says.
#[cfg(all(unix, not(target_os = "linux")))]
pub(crate) fn unacknowledged(_fd: std::os::fd::BorrowedFd<'_>) -> usize {
    0
}

/// Bytes that the kernel has taken and not yet sent for the first time; 0 where the system does not say.
#[cfg(all(test, target_os = "linux"))]
pub(crate) fn unsent(fd: std::os::fd::BorrowedFd<'_>) -> usize {
    use std::os::fd::AsRawFd;
    let mut n: libc::c_int = 0;
    // SAFETY: see the module doc; this request writes one int.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), SIOCOUTQNSD, &raw mut n) };
    if rc == 0 {
        usize::try_from(n).unwrap_or(0)
    } else {
        0
    }
}

/// Of <linux/sockios.h>.
#[cfg(all(test, target_os = "linux"))]
const SIOCOUTQNSD: libc::Ioctl = 0x894B;
