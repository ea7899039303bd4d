//! The four places where processes need unsafe code: between fork and exec (twice), the guard's fork, and a descriptor known only by number.
//!
//! # Safety
//! After a fork of a process with threads only async-signal-safe calls are sound until exec: no allocation, no lock. Both children here call only system calls and touch only memory that was allocated before the fork.

use rustix::{
    fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    io::{FdFlags, fcntl_setfd},
    process::{Pid, getpid, getppid, setsid},
};
use std::{io, os::unix::process::CommandExt, process::Command};

/// Arranges that the command's process dies with the calling thread, and inherits `lifeline`.
///
/// `lifeline` must stay open until the command was spawned.
pub(crate) fn tie_to_launcher(command: &mut Command, lifeline: &OwnedFd) {
    let (launcher, lifeline) = (getpid(), lifeline.as_raw_fd());
    let before_exec = move || {
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // The launcher may have died before the line above: then the signal never comes.
        if getppid() != Some(launcher) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        // SAFETY: the caller of `tie_to_launcher` keeps this descriptor open until the spawn has returned.
        let lifeline = unsafe { BorrowedFd::borrow_raw(lifeline) };
        fcntl_setfd(lifeline, FdFlags::empty())?;
        Ok(())
    };
    // SAFETY: the closure makes only the system calls prctl, getppid and fcntl, and allocates nothing (`io::Error` from a kind or an errno does not allocate).
    unsafe { command.pre_exec(before_exec) };
}

/// Arranges that the command's process runs on these processors alone.
///
/// # Errors
/// A number that the system's sets have no room for.
#[cfg(target_os = "linux")]
pub(crate) fn bind(command: &mut Command, processors: &[u32]) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    for &cpu in processors {
        if cpu as usize >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        set.set(cpu as usize);
    }
    let before_exec = move || Ok(sched_setaffinity(None, &set)?);
    // SAFETY: the closure makes only the system call sched_setaffinity, on a set that it owns, and allocates nothing (`io::Error` from an errno does not allocate).
    unsafe { command.pre_exec(before_exec) };
    Ok(())
}

/// Forks the guard: a process that reads process group numbers (4 bytes each, in this machine's order) from `pipe` and, when the pipe closes before a 0 came, kills all those groups.
///
/// # Errors
/// The system has no room for one more process.
pub(crate) fn fork_guard(pipe: &OwnedFd, most_groups: usize) -> io::Result<Pid> {
    let mut groups: Vec<libc::pid_t> = Vec::with_capacity(most_groups);
    let pipe = pipe.as_raw_fd();
    // SAFETY: the child runs only `guard`, which keeps to async-signal-safe calls and never returns.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => guard(pipe, &mut groups),
        pid => Ok(Pid::from_raw(pid).expect("fork returns a positive number to the parent")),
    }
}

/// The guard's whole life. It must not allocate: `groups` has its room already.
fn guard(pipe: RawFd, groups: &mut Vec<libc::pid_t>) -> ! {
    // A session of its own: neither Ctrl-C nor the terminal's end reaches it.
    let _ = setsid();
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"gaggle-guard");
    // SAFETY: system calls on plain numbers; this process owns all its descriptors and no other thread exists in it. Nothing must stay open but the pipe, or somebody waits for the end of a stream that the guard holds.
    unsafe {
        libc::dup2(pipe, 0);
        close_from_1();
    }
    loop {
        let mut group: libc::pid_t = 0;
        // SAFETY: the buffer is a live local of exactly the size that is read.
        let read = unsafe { libc::read(0, (&raw mut group).cast(), size_of::<libc::pid_t>()) };
        match read {
            4 if group == 0 => break,
            4 if groups.len() < groups.capacity() => groups.push(group),
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => {
                for &group in groups.iter() {
                    // SAFETY: kill takes plain numbers. The launcher reaps a group's leader only after it has written the 0, so the number still means its group.
                    unsafe { libc::kill(-group, libc::SIGKILL) };
                }
                break;
            }
        }
    }
    // SAFETY: ends this process without running the launcher's exit handlers.
    unsafe { libc::_exit(0) }
}

/// Closes every descriptor from 1 up.
///
/// # Safety
/// No other code of this process may own one of them.
unsafe fn close_from_1() {
    // SAFETY: a system call on plain numbers; the caller owns the descriptors.
    unsafe {
        #[cfg(target_os = "linux")]
        if libc::syscall(libc::SYS_close_range, 1_u32, u32::MAX, 0_u32) == 0 {
            return;
        }
        let most = libc::sysconf(libc::_SC_OPEN_MAX).clamp(256, 1 << 16);
        for fd in 1..most as RawFd {
            libc::close(fd);
        }
    }
}

/// A copy, closed on exec, of a descriptor that is known only by number; `None` if it is not open.
pub(crate) fn duplicate(fd: RawFd) -> Option<OwnedFd> {
    if fd < 0 {
        return None;
    }
    // SAFETY: fcntl on a number that is not open fails with EBADF and does nothing; the copy it returns is new, so nobody else owns it.
    unsafe {
        let copy = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3);
        (copy >= 0).then(|| OwnedFd::from_raw_fd(copy))
    }
}
