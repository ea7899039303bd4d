//! What to start and how: [`Job`], and why it could not be started.

use crate::Outcome;
use gaggle_core::Rank;
use std::{
    ffi::{OsStr, OsString},
    fmt,
    io::{self, IsTerminal, Write},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

/// Tells whether a rank has come to the rendezvous; called on the thread that runs the job, must not block.
pub type Joined = Arc<dyn Fn(Rank) -> bool + Send + Sync>;

/// Whose words appear where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Voice {
    /// Every line of every rank is forwarded with the prefix `[rank] `: stdout to stdout, stderr to stderr.
    #[default]
    Each,
    /// Rank 0 speaks for the job: its stdout is the launcher's own, without a prefix, and so is its stderr when that is a terminal (so that it can draw a progress bar). All lines of the other ranks go to stderr, with their prefix.
    Lead,
}

/// Why a job could not be started. Whatever had been started by then is gone again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A job has at least one rank. Nothing was started.
    #[error("a job needs at least 1 rank, 0 were asked for")]
    NoRanks,
    /// The program cannot be started, on the first rank or on a later one.
    #[error("cannot start `{program}` as {rank}: {}", explain(source, program))]
    Start {
        /// What was to be started.
        program: String,
        /// For which rank.
        rank: Rank,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The system refused something that the launcher itself needs, such as a pipe or a thread.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// This system has no process groups and no parent-death signal; start the ranks by hand.
    #[error(
        "starting ranks is not supported on this system; start each with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set"
    )]
    Unsupported,
}

/// What a newcomer needs beside the system's words.
fn explain(source: &io::Error, program: &str) -> String {
    match source.kind() {
        io::ErrorKind::NotFound if program.contains('/') => {
            "there is no such file (or its interpreter is missing)".into()
        }
        io::ErrorKind::NotFound => {
            format!("no program of that name in PATH; one in this directory is written ./{program}")
        }
        io::ErrorKind::PermissionDenied => {
            "it is not an executable file, or may not be executed by this user".into()
        }
        _ => source.to_string(),
    }
}

/// Where the launcher writes: its own stdout and stderr, or what a test hands in.
#[derive(Clone)]
pub struct Console {
    pub(crate) out: Arc<Mutex<Box<dyn Write + Send>>>,
    pub(crate) err: Arc<Mutex<Box<dyn Write + Send>>>,
    pub(crate) colour_out: bool,
    pub(crate) colour_err: bool,
    /// Whether ranks may be given the launcher's own streams.
    pub(crate) own: bool,
}

impl Console {
    /// The launcher's own streams; prefixes are coloured on those that are terminals, unless `NO_COLOR` is set.
    pub fn std() -> Console {
        let colour = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        Console {
            out: Arc::new(Mutex::new(Box::new(io::stdout()))),
            err: Arc::new(Mutex::new(Box::new(io::stderr()))),
            colour_out: colour && io::stdout().is_terminal(),
            colour_err: colour && io::stderr().is_terminal(),
            own: true,
        }
    }

    /// Any two writers, without colour.
    pub fn new(out: impl Write + Send + 'static, err: impl Write + Send + 'static) -> Console {
        Console {
            out: Arc::new(Mutex::new(Box::new(out))),
            err: Arc::new(Mutex::new(Box::new(err))),
            colour_out: false,
            colour_err: false,
            own: false,
        }
    }

    /// One line of the launcher's own, on stderr.
    pub fn note(&self, line: &str) {
        let mut err = self.err.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody is left to be told that stderr is closed.
        let _ = err.write_all(format!("gaggle: {line}\n").as_bytes());
        let _ = err.flush();
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

/// One program, to be run as several ranks of one job on this machine.
///
/// Each rank gets, beside the launcher's own environment and [`env`](Job::env):
///
/// | variable | value |
/// |---|---|
/// | `RANK`, `LOCAL_RANK` | the rank's number, from 0 |
/// | `WORLD_SIZE`, `LOCAL_WORLD_SIZE` | the number of ranks |
/// | `MASTER_ADDR`, `MASTER_PORT` | [`master`](Job::master), by default 127.0.0.1 and 29500 |
/// | `RAYON_NUM_THREADS`, `OMP_NUM_THREADS` | CPUs ÷ ranks, at least 1, so that ranks do not take each other's CPUs; left alone where the launcher's environment sets them |
/// | `GAGGLE_LIFELINE` | what [`lifeline::watch`](crate::lifeline::watch) reads |
///
/// Standard input of every rank is empty.
#[derive(Clone)]
pub struct Job {
    pub(crate) ranks: u32,
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) master: (String, u16),
    pub(crate) grace: Duration,
    pub(crate) voice: Voice,
    pub(crate) console: Console,
    pub(crate) signals: bool,
    pub(crate) joined: Option<Joined>,
    pub(crate) bound: Vec<Vec<u32>>,
}

impl Job {
    /// `ranks` times `program`, found in `PATH` unless it contains a slash.
    pub fn new(ranks: u32, program: impl Into<OsString>) -> Job {
        Job {
            ranks,
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            master: ("127.0.0.1".into(), 29500),
            grace: Duration::from_secs(1),
            voice: Voice::Each,
            console: Console::std(),
            signals: true,
            joined: None,
            bound: Vec::new(),
        }
    }

    /// Adds arguments, the same for every rank.
    #[must_use]
    pub fn args<S: Into<OsString>>(mut self, args: impl IntoIterator<Item = S>) -> Job {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds a variable, the same for every rank. The variables that tell a rank who it is win over it.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Job {
        self.env.push((key.as_ref().into(), value.as_ref().into()));
        self
    }

    /// What `MASTER_ADDR` and `MASTER_PORT` say, for programs that use another library's rendezvous.
    #[must_use]
    pub fn master(mut self, addr: impl Into<String>, port: u16) -> Job {
        self.master = (addr.into(), port);
        self
    }

    /// How long the other ranks have, once one has failed, between SIGTERM and SIGKILL: 1 s unless said.
    ///
    /// After Ctrl-C or SIGTERM to the launcher it is at most half a second.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Job {
        self.grace = grace;
        self
    }

    /// Whose words appear where.
    #[must_use]
    pub fn voice(mut self, voice: Voice) -> Job {
        self.voice = voice;
        self
    }

    /// Where the launcher writes, its own streams unless said.
    #[must_use]
    pub fn console(mut self, console: Console) -> Job {
        self.console = console;
        self
    }

    /// Whether SIGINT, SIGTERM, SIGHUP and SIGQUIT of this process end the job: yes unless said.
    #[must_use]
    pub fn signals(mut self, yes: bool) -> Job {
        self.signals = yes;
        self
    }

    /// How to tell whether a rank has come to the rendezvous; without it the launcher does not speak of joining.
    ///
    /// With it the launcher says when a rank has ended without joining while another waits for it.
    #[must_use]
    pub fn joined(mut self, joined: Joined) -> Job {
        self.joined = Some(joined);
        self
    }

    /// On which processors each rank may run, by rank and by the system's numbers: from its start on, with all threads and programs that it starts. Ranks beyond the list, and those of an empty one, run wherever the launcher may. Linux only.
    #[must_use]
    pub fn bind(mut self, processors: Vec<Vec<u32>>) -> Job {
        self.bound = processors;
        self
    }

    /// Starts the ranks and returns once all of them are gone.
    ///
    /// Blocks, and ties the ranks to the calling thread: when it ends, they are killed.
    /// Prints what the ranks print and remarks of its own, but not the outcome: [`Outcome`] says it.
    /// Threads: two per rank that forward its output, one per rank that waits for its end, one for signals; all are gone on return, except those whose stream is still held open by a process that left the rank's process group.
    ///
    /// # Errors
    /// The job cannot be started; no rank is left running.
    pub fn run(&self) -> Result<Outcome, LaunchError> {
        if self.ranks == 0 {
            return Err(LaunchError::NoRanks);
        }
        #[cfg(unix)]
        return crate::supervise::run(self);
        #[cfg(not(unix))]
        return Err(LaunchError::Unsupported);
    }

    /// How many threads a rank should use when nobody has said.
    #[cfg_attr(
        not(unix),
        expect(dead_code, reason = "only ranks that are started need it")
    )]
    pub(crate) fn threads_per_rank(&self) -> usize {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        (cpus / self.ranks.max(1) as usize).max(1)
    }
}

impl fmt::Debug for Job {
    /// Without the values of the environment: one of them is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&OsString> = self.env.iter().map(|(key, _)| key).collect();
        f.debug_struct("Job")
            .field("ranks", &self.ranks)
            .field("program", &self.program)
            .field("args", &self.args)
            .field("env", &keys)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}
