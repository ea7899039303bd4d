//! The life of a job: start, watch, end.
//!
//! One loop on the calling thread decides; helper threads only read and wait, and tell it by [`Event`]s. A rank that has ended is left unreaped until the job's end: while its zombie stands, the number of its process group cannot come to mean another group, so signals reach nothing that the job did not start.

use crate::{
    Ended, FirstCause, How, Job, LaunchError, Outcome, Voice,
    lifeline::VARIABLE,
    output::{Tail, To, forward},
    raw_process,
};
use gaggle_core::{Rank, name_ranks};
use rustix::{
    fd::OwnedFd,
    fs::fstat,
    process::{
        Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, waitid, waitpid,
    },
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    iterator::{Handle, Signals},
};
use std::{
    ffi::OsString,
    io::{self, PipeWriter, Read, Write, pipe},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Longer ones stand for ever.
const LONGEST_GRACE: Duration = Duration::from_secs(365 * 24 * 3600);

/// The longest time between Ctrl-C and SIGKILL.
const STOP_GRACE: Duration = Duration::from_millis(500);
/// How long to wait for the end of a stream after everybody in the process groups was killed: only a process that left its group can still hold one.
const LAST_WORDS: Duration = Duration::from_millis(300);
/// How long the end of a rank that crashed may come after the ends of those that it dragged down.
const MOMENT: Duration = Duration::from_millis(100);
/// How often to ask whether somebody waits for a rank that ended without joining.
const JOIN_TICK: Duration = Duration::from_millis(200);

pub(crate) fn run(job: &Job) -> Result<Outcome, LaunchError> {
    let mut flock = Flock::new(job)?;
    for rank in 0..job.ranks {
        flock.start(Rank(rank))?;
    }
    flock.watch()
}

enum Event {
    Ended(Rank, How),
    StreamClosed,
    Signal(i32),
}

/// One started rank.
struct Member {
    child: Child,
    group: Pid,
    started: Instant,
    how: Option<How>,
    tail: Arc<Tail>,
    /// It ended well without having joined, and nobody was told yet.
    absent: bool,
    /// And now they were.
    told_absent: bool,
    threads: Vec<JoinHandle<()>>,
}

/// What the job is doing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Ranks work, nothing is wrong.
    Working,
    /// All were told to stop, or have ended by themselves; what still stands at this time is killed.
    Ending(Instant),
    /// All were killed; streams have until this time to close.
    Killed(Instant),
}

/// All that is alive for one job. Dropping it leaves nothing behind.
struct Flock<'a> {
    job: &'a Job,
    members: Vec<Member>,
    guard: Guard,
    /// Inherited by the ranks; its writing end closes with this process.
    lifeline: OwnedFd,
    _hold: PipeWriter,
    events: Receiver<Event>,
    sender: Sender<Event>,
    signals: Option<(Handle, JoinHandle<()>)>,
    open_streams: usize,
    phase: Phase,
    cause: Option<(Rank, How, Duration)>,
    stopped_by: Option<i32>,
    killed: Vec<Rank>,
}

impl<'a> Flock<'a> {
    fn new(job: &'a Job) -> Result<Flock<'a>, LaunchError> {
        let (lifeline, hold) = pipe().map_err(system("make a pipe"))?;
        let guard = Guard::start(job.ranks as usize)?;
        let (sender, events) = channel();
        let signals = match job.signals {
            true => Some(listen(sender.clone())?),
            false => None,
        };
        Ok(Flock {
            job,
            members: Vec::with_capacity(job.ranks as usize),
            guard,
            lifeline: lifeline.into(),
            _hold: hold,
            events,
            sender,
            signals,
            open_streams: 0,
            phase: Phase::Working,
            cause: None,
            stopped_by: None,
            killed: Vec::new(),
        })
    }

    fn start(&mut self, rank: Rank) -> Result<(), LaunchError> {
        let job = self.job;
        let leads = job.voice == Voice::Lead && rank.0 == 0;
        let keeps_out = leads && job.console.own;
        let keeps_err = keeps_out && io::IsTerminal::is_terminal(&io::stderr());
        let stream = |own| {
            if own {
                Stdio::inherit()
            } else {
                Stdio::piped()
            }
        };
        let mut command = Command::new(&job.program);
        command
            .args(&job.args)
            .envs(job.env.iter().map(|(key, value)| (key, value)))
            .envs(self.variables(rank)?)
            .stdin(Stdio::null())
            .stdout(stream(keeps_out))
            .stderr(stream(keeps_err))
            .process_group(0);
        raw_process::tie_to_launcher(&mut command, &self.lifeline);
        let failed = |source| LaunchError::Start {
            program: job.program.to_string_lossy().into_owned(),
            rank,
            source,
        };
        #[cfg(target_os = "linux")]
        if let Some(processors) = job.bound.get(rank.idx()).filter(|p| !p.is_empty()) {
            raw_process::bind(&mut command, processors).map_err(failed)?;
        }
        let mut child = command.spawn().map_err(failed)?;
        let group = Pid::from_child(&child);
        self.guard.protect(group);
        let streams = (child.stdout.take(), child.stderr.take());
        self.members.push(Member {
            child,
            group,
            started: Instant::now(),
            how: None,
            tail: Arc::default(),
            absent: false,
            told_absent: false,
            threads: Vec::new(),
        });
        // From here on `self` ends the process, whatever fails.
        let (prefix, others) = match job.voice {
            Voice::Each => (Some(rank), To::Out),
            Voice::Lead if leads => (None, To::Out),
            Voice::Lead => (Some(rank), To::Err),
        };
        if let Some(out) = streams.0 {
            self.forward(
                rank,
                format!("gaggle-out-{}", rank.0),
                out,
                prefix,
                others,
                false,
            )?;
        }
        if let Some(err) = streams.1 {
            self.forward(
                rank,
                format!("gaggle-err-{}", rank.0),
                err,
                prefix,
                To::Err,
                true,
            )?;
        }
        let sender = self.sender.clone();
        let wait = move || {
            // The receiver is gone only when the job is over.
            let _ = sender.send(Event::Ended(rank, wait_unreaped(group)));
        };
        self.thread(rank, format!("gaggle-wait-{}", rank.0), wait)
    }

    fn variables(&self, rank: Rank) -> Result<Vec<(&'static str, OsString)>, LaunchError> {
        let job = self.job;
        let (me, world) = (rank.0.to_string(), job.ranks.to_string());
        let inode = fstat(&self.lifeline)
            .map_err(|e| system("look at a pipe")(e.into()))?
            .st_ino;
        let fd = rustix::fd::AsRawFd::as_raw_fd(&self.lifeline);
        let mut all: Vec<(&'static str, OsString)> = vec![
            ("RANK", me.clone().into()),
            ("LOCAL_RANK", me.into()),
            ("WORLD_SIZE", world.clone().into()),
            ("LOCAL_WORLD_SIZE", world.into()),
            ("MASTER_ADDR", job.master.0.clone().into()),
            ("MASTER_PORT", job.master.1.to_string().into()),
            (VARIABLE, format!("{fd}:{inode}").into()),
        ];
        for name in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"] {
            if std::env::var_os(name).is_none() && !job.env.iter().any(|(key, _)| key == name) {
                all.push((name, job.threads_per_rank().to_string().into()));
            }
        }
        Ok(all)
    }

    /// Starts the thread that forwards one stream.
    fn forward(
        &mut self,
        rank: Rank,
        name: String,
        from: impl Read + Send + 'static,
        prefix: Option<Rank>,
        to: To,
        keep_tail: bool,
    ) -> Result<(), LaunchError> {
        let console = self.job.console.clone();
        let tail = keep_tail.then(|| self.members[rank.idx()].tail.clone());
        let sender = self.sender.clone();
        self.thread(rank, name, move || {
            forward(from, prefix, &console, to, tail.as_deref());
            let _ = sender.send(Event::StreamClosed);
        })?;
        self.open_streams += 1;
        Ok(())
    }

    fn thread(
        &mut self,
        rank: Rank,
        name: String,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), LaunchError> {
        let thread = thread::Builder::new().name(name).spawn(body);
        let thread = thread.map_err(system("start a thread"))?;
        self.members[rank.idx()].threads.push(thread);
        Ok(())
    }

    /// Until all ranks are gone and have been heard out.
    fn watch(mut self) -> Result<Outcome, LaunchError> {
        loop {
            self.tell_absences();
            let all_ended = self.members.iter().all(|m| m.how.is_some());
            if all_ended && self.open_streams == 0 {
                break;
            }
            if all_ended && self.phase == Phase::Working {
                // Somebody in a rank's group lives on, or a line is on its way.
                self.phase = Phase::Ending(Instant::now() + self.job.grace.min(LONGEST_GRACE));
            }
            match self.next_event() {
                Some(Event::Ended(rank, how)) => self.on_end(rank, how),
                Some(Event::StreamClosed) => self.open_streams -= 1,
                Some(Event::Signal(signal)) => self.on_signal(signal),
                None => {}
            }
            match self.phase {
                Phase::Ending(at) if Instant::now() >= at => self.kill(),
                Phase::Killed(at) if Instant::now() >= at && all_ended => break,
                _ => {}
            }
        }
        Ok(self.outcome())
    }

    /// The next event; `None` when it is time to look around.
    fn next_event(&self) -> Option<Event> {
        let tick = self.members.iter().any(|m| m.absent).then_some(JOIN_TICK);
        let left = match self.phase {
            Phase::Working => None,
            Phase::Ending(at) | Phase::Killed(at) => {
                // Killed, but the system has not ended them yet: look again a little later.
                Some(
                    at.saturating_duration_since(Instant::now())
                        .max(Duration::from_millis(5)),
                )
            }
        };
        match [tick, left].into_iter().flatten().min() {
            None => self.events.recv().ok(),
            Some(wait) => self.events.recv_timeout(wait).ok(),
        }
    }

    fn on_end(&mut self, rank: Rank, how: How) {
        let joined = self.has_joined(rank);
        let member = &mut self.members[rank.idx()];
        member.how = Some(how);
        member.absent = how.is_success() && joined == Some(false);
        if how.is_success() || self.phase != Phase::Working {
            return;
        }
        let mut cause = (rank, how, member.started.elapsed());
        self.cause = Some(cause);
        // A rank that crashed drags others down within the same moment: its connections close before the system tells its end, and the ends of those who saw that may be told first.
        let until = Instant::now() + MOMENT;
        while self.phase == Phase::Working
            && !matches!(cause.1, How::Signal(_))
            && self.members.iter().any(|m| m.how.is_none())
        {
            let left = until.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(Event::Ended(other, how)) => {
                    let member = &mut self.members[other.idx()];
                    member.how = Some(how);
                    if how.gravity() > cause.1.gravity() {
                        cause = (other, how, member.started.elapsed());
                        self.cause = Some(cause);
                    }
                }
                Ok(Event::StreamClosed) => self.open_streams -= 1,
                Ok(Event::Signal(signal)) => self.on_signal(signal),
                Err(_) => break,
            }
        }
        if self.phase == Phase::Working {
            self.stop(self.job.grace);
        }
    }

    fn on_signal(&mut self, signal: i32) {
        if self.cause.is_none() {
            self.stopped_by.get_or_insert(signal);
        }
        match self.phase {
            Phase::Working if signal == SIGQUIT => self.kill(),
            Phase::Working => self.stop(self.job.grace.min(STOP_GRACE)),
            // A second Ctrl-C: no more patience.
            Phase::Ending(_) => self.kill(),
            Phase::Killed(_) => {}
        }
    }

    /// Tells everybody to stop, and when patience ends.
    fn stop(&mut self, grace: Duration) {
        self.signal_all(Signal::TERM);
        self.phase = Phase::Ending(Instant::now() + grace.min(LONGEST_GRACE));
    }

    fn kill(&mut self) {
        let alive = (0..).zip(&self.members).filter(|(_, m)| m.how.is_none());
        self.killed = alive.map(|(rank, _)| Rank(rank)).collect();
        self.signal_all(Signal::KILL);
        self.phase = Phase::Killed(Instant::now() + LAST_WORDS);
    }

    fn signal_all(&self, signal: Signal) {
        for member in &self.members {
            // The group may be gone already: that is what was wanted.
            let _ = kill_process_group(member.group, signal);
        }
    }

    fn has_joined(&self, rank: Rank) -> Option<bool> {
        self.job.joined.as_ref().map(|joined| joined(rank))
    }

    /// Says which ranks ended without joining, once another one has come and waits for them.
    fn tell_absences(&mut self) {
        let absent: Vec<Rank> = (0..)
            .zip(&self.members)
            .filter(|(_, m)| m.absent)
            .map(|(rank, _)| Rank(rank))
            .collect();
        let mut running = (0..).zip(&self.members).filter(|(_, m)| m.how.is_none());
        if absent.is_empty() || !running.any(|(r, _)| self.has_joined(Rank(r)) == Some(true)) {
            return;
        }
        self.job.console.note(&format!(
            "{} ended with exit code 0 without joining (never called gaggle::join); the others wait in vain",
            name_ranks(&absent)
        ));
        for member in self.members.iter_mut().filter(|m| m.absent) {
            member.absent = false;
            member.told_absent = true;
        }
    }

    fn outcome(&mut self) -> Outcome {
        // Where nobody has come, the program is not one that meets in the store.
        let ranks = (0..self.members.len() as u32).map(Rank);
        let meets = ranks.into_iter().any(|r| self.has_joined(r) == Some(true));
        let cause = self.cause.map(|(rank, how, after)| FirstCause {
            rank,
            how,
            after,
            joined: self.has_joined(rank).filter(|_| meets),
            absent: (0..)
                .zip(&self.members)
                .filter(|(_, m)| m.told_absent)
                .map(|(rank, _)| Rank(rank))
                .collect(),
            last_lines: self.members[rank.idx()].tail.lines(),
        });
        let ended = (0..).zip(&self.members).map(|(rank, m)| Ended {
            rank: Rank(rank),
            // `watch` leaves its loop only when all have ended.
            how: m.how.unwrap_or(How::Signal(9)),
        });
        Outcome {
            ended: ended.collect(),
            cause,
            stopped_by: self.stopped_by,
            killed: std::mem::take(&mut self.killed),
        }
    }
}

impl Drop for Flock<'_> {
    fn drop(&mut self) {
        self.signal_all(Signal::KILL);
        self.guard.dismiss();
        for member in &mut self.members {
            // Reaps: fails only for a child that is not ours.
            let _ = member.child.wait();
        }
        if let Some((handle, thread)) = self.signals.take() {
            handle.close();
            let _ = thread.join();
        }
        for member in &mut self.members {
            for thread in member.threads.drain(..) {
                // A thread whose stream is held by a process outside the group is left behind; it ends with the stream.
                if self.open_streams == 0 || thread.is_finished() {
                    let _ = thread.join();
                }
            }
        }
    }
}

/// The process that ends the groups when the launcher cannot.
struct Guard {
    pid: Pid,
    pipe: PipeWriter,
}

impl Guard {
    fn start(most_groups: usize) -> Result<Guard, LaunchError> {
        let (read, write) = pipe().map_err(system("make a pipe"))?;
        let pid = raw_process::fork_guard(&read.into(), most_groups);
        let pid = pid.map_err(system("start the guard process"))?;
        Ok(Guard { pid, pipe: write })
    }

    fn protect(&mut self, group: Pid) {
        self.tell(group.as_raw_nonzero().get());
    }

    fn dismiss(&mut self) {
        self.tell(0);
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }

    fn tell(&mut self, number: i32) {
        // Somebody killed the guard: the parent-death signal is still there.
        let _ = self.pipe.write_all(&number.to_ne_bytes());
    }
}

/// Waits for the end of a child and leaves it as a zombie.
fn wait_unreaped(pid: Pid) -> How {
    loop {
        match waitid(
            WaitId::Pid(pid),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        ) {
            Ok(Some(status)) => {
                return match status.terminating_signal() {
                    Some(signal) => How::Signal(signal),
                    None => How::Code(status.exit_status().unwrap_or(0)),
                };
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            // Not our child: somebody reaped it behind our back, its exit code is lost.
            Err(_) => return How::Code(1),
        }
    }
}

/// Turns the signals that end a launcher into events.
fn listen(sender: Sender<Event>) -> Result<(Handle, JoinHandle<()>), LaunchError> {
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT]);
    let mut signals = signals.map_err(system("listen for signals"))?;
    let handle = signals.handle();
    let body = move || {
        for signal in signals.forever() {
            if sender.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("gaggle-signals".into());
    let thread = thread.spawn(body).map_err(system("start a thread"))?;
    Ok((handle, thread))
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> LaunchError {
    move |source| LaunchError::System { what, source }
}
