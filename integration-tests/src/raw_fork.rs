//! A fork of this process, to see what becomes of what it inherits.
//!
//! # Safety
//! The child of a process with threads has none of these, and locks that they held stay locked: what runs there must take none of the library's, which is what is under test. The allocator is made for it, and the test has a hard limit.

use std::io;

/// Runs `child` in a fork, and returns its exit code once it has ended: what `child` returns, 101 where it panics. Blocks.
///
/// # Errors
/// The system forks no process, or a signal has ended it.
pub fn in_a_fork(child: impl FnOnce() -> u8) -> io::Result<i32> {
    // SAFETY: see the module's text; the child never returns from this function.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: ends the process at once, without what the parent has registered for its own end.
        unsafe { libc::_exit(code.map_or(101, i32::from)) }
    }
    let mut status = 0;
    // SAFETY: a child of ours, and a place for its status.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
    match libc::WIFEXITED(status) {
        true => Ok(libc::WEXITSTATUS(status)),
        false => Err(io::Error::other("a signal has ended the fork")),
    }
}
