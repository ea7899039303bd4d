//! Programs of the workspace as processes: found, started, watched, and none left behind.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// No wait in these tests is longer. Reaching it is a failure; it says nothing of how fast things are.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Carried by every process of one [`Running`], so that what is left of it can be found.
const MARK: &str = "GAGGLE_TEST_MARK";

/// A program of the workspace, in the profile that the tests were built in.
///
/// # Panics
/// It was not built: `cargo xtask test` builds all programs first.
pub fn program(name: &str) -> PathBuf {
    let here = std::env::current_exe().unwrap_or_default();
    let folder = here
        .parent()
        .and_then(Path::parent)
        .unwrap_or(Path::new("."));
    let path = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.is_file(),
        "{} is not there; `cargo build --workspace --bins` builds it, `cargo xtask test` does so by itself",
        path.display()
    );
    path
}

/// `gaggle run -n RANKS -- PROGRAM ARGS`.
pub fn gaggle_run(ranks: u32, command: &[&str]) -> Command {
    let mut gaggle = Command::new(program("gaggle"));
    gaggle
        .args(["run", "-n", &ranks.to_string(), "--"])
        .args(command);
    gaggle
}

/// How a program ended, and what it had printed.
#[derive(Debug)]
pub struct Ended {
    /// Its status; [`ExitStatus::code`] is the exit code.
    pub status: ExitStatus,
    /// All of stdout.
    pub out: String,
    /// All of stderr.
    pub err: String,
}

impl Ended {
    /// The exit code.
    ///
    /// # Panics
    /// A signal ended it.
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| panic!("no exit code: {self:#?}"))
    }
}

/// A started program with everything that it starts. Dropping it kills the program.
#[derive(Debug)]
pub struct Running {
    child: Child,
    mark: String,
    streams: Option<[JoinHandle<String>; 2]>,
    heard: [Heard; 2],
}

/// What a stream has said so far.
type Heard = Arc<Mutex<Vec<u8>>>;

impl Running {
    /// Starts it with empty stdin, reading both streams.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn start(mut command: Command) -> Running {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the numbers must differ, they order nothing.
        let mark = format!(
            "{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        command
            .env(MARK, &mark)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        let heard: [Heard; 2] = Default::default();
        let streams = [
            read(child.stdout.take(), &heard[0]),
            read(child.stderr.take(), &heard[1]),
        ];
        Running {
            child,
            mark,
            streams: Some(streams),
            heard,
        }
    }

    /// The program's own process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends the program a signal, by name: `KILL`, `INT`, `STOP`.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Its processes that live: the program, and whatever it has started, in whatever group.
    pub fn alive(&self) -> Vec<u32> {
        let Ok(entries) = fs::read_dir("/proc") else {
            return Vec::new();
        };
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let marked = |pid: &u32| variable(*pid, MARK).is_some_and(|mark| mark == self.mark);
        pids.filter(marked).filter(|&pid| lives(pid)).collect()
    }

    /// Its living process that is this rank.
    ///
    /// # Panics
    /// There is none, or there are several.
    pub fn rank(&self, rank: u32) -> u32 {
        let all = self.alive();
        let is_rank = |pid: &&u32| variable(**pid, "RANK").is_some_and(|r| r == rank.to_string());
        match all.iter().filter(is_rank).collect::<Vec<_>>()[..] {
            [pid] => *pid,
            ref other => panic!("rank {rank} is {other:?}"),
        }
    }

    /// The complete lines that it has printed so far, those of stdout first.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for heard in &self.heard {
            let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            let text = String::from_utf8_lossy(&heard);
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            lines.extend(whole.lines().map(str::to_owned));
        }
        lines
    }

    /// Waits until so many of its lines are so.
    ///
    /// # Panics
    /// Not within [`PATIENCE`], or the program ends without them.
    pub fn hear(&mut self, lines: usize, what: &str, is: impl Fn(&str) -> bool) {
        let start = Instant::now();
        loop {
            // Asked first: what it has printed before its end is there afterwards, or soon.
            let over = matches!(self.child.try_wait(), Ok(Some(_)) | Err(_));
            if self.lines().iter().filter(|line| is(line)).count() >= lines {
                return;
            }
            let waited = start.elapsed();
            assert!(
                waited < PATIENCE && !(over && waited > Duration::from_secs(5)),
                "not heard: {lines} times {what}; but {:#?}",
                self.lines()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// It does not come within [`PATIENCE`].
    pub fn wait(mut self) -> Ended {
        let mut status = None;
        until("the program ends", || {
            status = self
                .child
                .try_wait()
                .unwrap_or_else(|e| panic!("cannot wait: {e}"));
            status.is_some()
        });
        self.finish(status)
    }

    /// Waits for the end of the program and of everything it has started.
    ///
    /// # Panics
    /// As [`wait`](Running::wait); something is left.
    pub fn wait_for_all(mut self) -> Ended {
        let mut status = None;
        until("the program ends", || {
            status = self
                .child
                .try_wait()
                .unwrap_or_else(|e| panic!("cannot wait: {e}"));
            status.is_some()
        });
        until("nothing is left of it", || self.alive().is_empty());
        self.finish(status)
    }

    fn finish(&mut self, status: Option<ExitStatus>) -> Ended {
        let text = self.streams.take().map(|streams| {
            streams.map(|stream| {
                stream
                    .join()
                    .unwrap_or_else(|_| panic!("a stream's reader panicked"))
            })
        });
        match (status, text) {
            (Some(status), Some([out, err])) => Ended { status, out, err },
            _ => panic!("waited twice"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // What it has started is its own duty; that is what these tests are about.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(stream: Option<impl Read + Send + 'static>, heard: &Heard) -> JoinHandle<String> {
    let heard = Arc::clone(heard);
    thread::spawn(move || {
        if let Some(mut stream) = stream {
            let mut part = [0; 4096];
            // What came before an error is still worth reading.
            while let Ok(n @ 1..) = stream.read(&mut part) {
                let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                heard.extend_from_slice(&part[..n]);
            }
        }
        let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&heard).into_owned()
    })
}

/// Sends a signal, by name, through the system's own `kill`.
///
/// # Panics
/// There is no such process.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill")
        .args([format!("-{name}"), pid.to_string()])
        .status();
    assert!(
        status.is_ok_and(|s| s.success()),
        "cannot send {name} to {pid}"
    );
}

/// Whether the process exists and is not merely waiting for its parent to take note.
pub fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Waits until it is so.
///
/// # Panics
/// Not within [`PATIENCE`].
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "gave up waiting until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The ports that a process listens on, on this host.
pub fn listening(pid: u32) -> Vec<u16> {
    let links = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let inodes: Vec<String> = links
        .filter_map(|link| {
            let link = link.to_str()?.strip_prefix("socket:[")?;
            Some(link.strip_suffix(']')?.to_owned())
        })
        .collect();
    let mut ports = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let table = fs::read_to_string(table).unwrap_or_default();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // 0A: LISTEN.
            if let [_, local, _, "0A", _, _, _, _, _, inode, ..] = fields[..]
                && inodes.iter().any(|i| i == inode)
                && let Some((_, port)) = local.rsplit_once(':')
                && let Ok(port) = u16::from_str_radix(port, 16)
            {
                ports.push(port);
            }
        }
    }
    ports
}

/// What a process holds.
#[derive(Clone, Copy, Debug)]
pub struct Possessions {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Memory in use, in KiB.
    pub kib: u64,
}

/// What a process holds now; nothing where it has ended.
pub fn possessions(pid: u32) -> Possessions {
    let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
    Possessions {
        descriptors: count("fd"),
        threads: count("task"),
        kib: kib.unwrap_or(0),
    }
}

/// A variable in the environment that a process was started with.
pub fn variable(pid: u32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environment.split(|&b| b == 0).find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(String::from_utf8_lossy(value).into_owned())
    })
}
