//! The lifeline: how a rank notices that its launcher is gone.
//!
//! The launcher holds the writing end of a pipe and never writes; every rank inherits the reading end. When the launcher ends, however it ends, the system closes the pipe. [`watch`] starts the thread that waits for that. It complements the parent-death signal, which reaches only the process that the launcher itself started and does not exist everywhere.

/// The variable that names the descriptor: `fd:inode`, so that a number which means another file by now is not taken for it.
pub const VARIABLE: &str = "GAGGLE_LIFELINE";

/// Ends this process, and its process group, as soon as its launcher is gone.
///
/// Returns whether it watches: `false` where the process was not started by a [`Job`](crate::Job), or where the descriptor was closed on the way. May be called any number of times from any thread; the first call starts one thread, `gaggle-lifeline`.
pub fn watch() -> bool {
    #[cfg(unix)]
    {
        use std::sync::OnceLock;
        static WATCHES: OnceLock<bool> = OnceLock::new();
        *WATCHES.get_or_init(unix::start)
    }
    #[cfg(not(unix))]
    false
}

#[cfg(unix)]
mod unix {
    use crate::raw_process;
    use rustix::{
        fs::{FileType, fstat},
        io::Errno,
        process::{Signal, kill_current_process_group},
    };
    use std::{os::fd::OwnedFd, thread};

    pub(super) fn start() -> bool {
        let Ok(text) = std::env::var(super::VARIABLE) else {
            return false;
        };
        let Some(fd) = open(&text) else {
            tracing::warn!(
                "{}={text} does not name an open lifeline: if the launcher is killed, this process may stay",
                super::VARIABLE
            );
            return false;
        };
        let thread = thread::Builder::new().name("gaggle-lifeline".into());
        match thread.spawn(move || wait(&fd)) {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!("cannot start the lifeline's thread: {error}");
                false
            }
        }
    }

    /// A copy of the descriptor, if it still is the pipe that the launcher made.
    pub(super) fn open(text: &str) -> Option<OwnedFd> {
        let (fd, inode) = text.split_once(':')?;
        let (fd, inode) = (fd.parse().ok()?, inode.parse::<u64>().ok()?);
        let fd = raw_process::duplicate(fd)?;
        let stat = fstat(&fd).ok()?;
        let is_pipe = FileType::from_raw_mode(stat.st_mode) == FileType::Fifo;
        (is_pipe && stat.st_ino == inode).then_some(fd)
    }

    fn wait(fd: &OwnedFd) {
        loop {
            match rustix::io::read(fd, &mut [0_u8; 8]) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::warn!("the lifeline cannot be read: {error}");
                    return;
                }
            }
        }
        // The launcher is gone, and with it whoever would read a word of farewell.
        let _ = kill_current_process_group(Signal::KILL);
        std::process::abort();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::unix::open;
    use rustix::{fs::fstat, pipe::pipe};
    use std::os::fd::AsRawFd;

    #[test]
    fn only_the_launchers_own_pipe_is_taken() {
        let (read, _write) = pipe().unwrap();
        let inode = fstat(&read).unwrap().st_ino;
        let fd = read.as_raw_fd();
        assert!(open(&format!("{fd}:{inode}")).is_some());
        assert!(open(&format!("{fd}:{}", inode + 1)).is_none());
        assert!(open(&format!("100000:{inode}")).is_none());
        for text in ["", "7", "7:", ":", "-1:5", "x:y", "7:5:3"] {
            assert!(open(text).is_none(), "{text}");
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        let inode = fstat(&file).unwrap().st_ino;
        assert!(open(&format!("{}:{inode}", file.as_raw_fd())).is_none());
    }
}
