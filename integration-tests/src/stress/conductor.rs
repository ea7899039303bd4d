//! Starts the ranks of an episode, stops, continues and kills them, and judges what they say.

use super::Options;
use crate::process::{lives, signal};
use gaggle::{
    Rank,
    transport::{
        auth::{Credentials, Secret},
        store::{StoreConfig, StoreServer},
    },
};
use indicatif::{ProgressBar, ProgressStyle};
use rand::{Rng, SeedableRng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;
use std::{
    collections::BTreeSet,
    env, fmt, fs,
    io::{self, BufRead, BufReader, IsTerminal, Read, Write},
    net::{Ipv4Addr, SocketAddr},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// No answer takes longer than this beyond the deadline that it has; a machine that is busy with other things gets this much.
const SLACK: Duration = Duration::from_secs(20);
/// How long an episode lasts at most, harm and recovery included, before its ranks are told to end.
const EPISODE: Duration = Duration::from_secs(8);
/// The pause that no operation's deadline notices, as a part of it.
const SHORT: u32 = 4;
/// KILL.
const KILLED: i32 = 9;

/// How much was done.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// Episodes.
    pub episodes: u64,
    /// Operations that every rank of an episode had carried out.
    pub operations: u64,
    /// Pauses that nobody was to notice.
    pub pauses: u64,
    /// Pauses longer than the deadline.
    pub timeouts: u64,
    /// Killed ranks.
    pub kills: u64,
    /// Groups that were rebuilt.
    pub rebuilt: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations, {} short pauses, {} long ones, {} kills, {} groups rebuilt",
            self.operations, self.pauses, self.timeouts, self.kills, self.rebuilt
        )
    }
}

/// Runs episodes until the time is over. `program` is started as `program rank SEED BUFFERS`.
///
/// # Errors
/// Something did not hold: what, in which episode, and the command that begins with it.
pub fn run(program: &Path, options: &Options) -> Result<Tally, String> {
    let first = options
        .seed
        .unwrap_or_else(|| ChaCha8Rng::from_os_rng().random_range(0..1_000_000));
    let start = Instant::now();
    let limit = Duration::from_secs(options.seconds);
    let bar = match io::stderr().is_terminal() {
        true => ProgressBar::new(options.seconds),
        false => ProgressBar::hidden(),
    };
    let style = ProgressStyle::with_template("{bar:30} {elapsed_precise} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut tally = Tally::default();
    for seed in first.. {
        let left = limit.saturating_sub(start.elapsed());
        if left.is_zero() {
            break;
        }
        let tick = |tally: &Tally| {
            bar.set_position(start.elapsed().as_secs().min(options.seconds));
            bar.set_message(format!("seed {seed}: {tally}"));
        };
        let mut episode =
            Episode::begin(program, options, seed).map_err(|e| failed(options, seed, &e, ""))?;
        if let Err(what) = episode.live(left.min(EPISODE), &mut tally, &tick) {
            let words = episode.words();
            return Err(failed(options, seed, &what, &words));
        }
        tally.episodes += 1;
        let line = format!("seed {seed}: ok; {tally} so far");
        if bar.is_hidden() {
            println!("{line}");
        }
    }
    bar.finish_and_clear();
    Ok(tally)
}

fn failed(options: &Options, seed: u64, what: &str, words: &str) -> String {
    format!(
        "{words}stress: seed {seed}: {what}\nstress: again with: {}",
        options.command(seed)
    )
}

/// What a rank has said.
#[derive(Clone, Debug)]
enum Word {
    Joined,
    At(u64),
    Error {
        kind: String,
        accused: BTreeSet<u32>,
        text: String,
    },
    Rebuilt(Vec<u32>),
    Alone,
    Done(u64),
    Wrong(String),
    /// Its output has ended.
    Over,
}

impl Word {
    fn of(line: &str) -> Word {
        let (head, rest) = line.split_once(' ').unwrap_or((line, ""));
        match head {
            "joined" => Word::Joined,
            "at" => Word::At(rest.parse().unwrap_or(0)),
            "done" => Word::Done(rest.parse().unwrap_or(0)),
            "alone" => Word::Alone,
            "rebuilt" => {
                let inner = rest.trim_matches(['[', ']']);
                Word::Rebuilt(inner.split(", ").filter_map(|r| r.parse().ok()).collect())
            }
            "error" => {
                let mut parts = rest.splitn(4, ' ').skip(1);
                let kind = parts.next().unwrap_or_default().to_owned();
                let accused = parts.next().unwrap_or_default();
                let accused = accused.split(',').filter_map(|r| r.parse().ok()).collect();
                let text = parts.next().unwrap_or_default().to_owned();
                Word::Error {
                    kind,
                    accused,
                    text,
                }
            }
            _ => Word::Wrong(line.to_owned()),
        }
    }
}

/// A process.
struct Seat {
    child: Child,
    input: ChildStdin,
    /// Everything on its standard error, once that has ended.
    stderr: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
    done: u64,
    heard: Instant,
}

/// One job.
struct Episode {
    seats: Vec<Seat>,
    words: Receiver<(u32, Word)>,
    log: Vec<String>,
    start: Instant,
    /// Who is in the group now; numbers in the job.
    members: Vec<u32>,
    rng: ChaCha8Rng,
    deadline: Duration,
    peaceful: bool,
    dir: TempDir,
    job: String,
    /// Served until all have left.
    _store: StoreServer,
}

impl Drop for Episode {
    fn drop(&mut self) {
        for seat in &mut self.seats {
            // It may have ended by itself.
            let _ = seat.child.kill();
            let _ = seat.child.wait();
        }
    }
}

impl Episode {
    fn begin(program: &Path, options: &Options, seed: u64) -> Result<Episode, String> {
        let told = |e: &dyn fmt::Display| format!("the episode cannot begin: {e}");
        let dir = TempDir::new().map_err(|e| told(&e))?;
        let secret = Secret::random().map_err(|e| told(&e))?;
        let job = format!("stress-{}-{seed}", std::process::id());
        let creds = Credentials {
            job: job.clone(),
            epoch: 0,
            secret: secret.clone(),
        };
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let store = StoreServer::bind(addr, &creds, StoreConfig::new(options.ranks))
            .map_err(|e| told(&e))?;
        let (tell, words) = mpsc::channel();
        let mut episode = Episode {
            seats: vec![],
            words,
            log: vec![],
            start: Instant::now(),
            members: (0..options.ranks).collect(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            deadline: options.deadline(),
            peaceful: options.peaceful,
            dir,
            job,
            _store: store,
        };
        for rank in 0..options.ranks {
            let mut command = Command::new(program);
            command
                .args(["rank", &seed.to_string(), options.buffers.name()])
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", options.ranks.to_string())
                .env("GAGGLE_STORE", episode._store.addr().to_string())
                .env("GAGGLE_SECRET", secret.to_hex())
                .env("GAGGLE_JOB", &episode.job)
                .env("GAGGLE_TIMEOUT", options.timeout.to_string())
                .env("GAGGLE_TRANSPORT", options.transport.name())
                .env("GAGGLE_TRACE", "off")
                .env("TMPDIR", episode.dir.path())
                .env("XDG_RUNTIME_DIR", episode.dir.path())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let seat = Seat::start(command, rank, &tell).map_err(|e| told(&e))?;
            episode.seats.push(seat);
        }
        Ok(episode)
    }

    /// Harm for a while, then the end.
    fn live(
        &mut self,
        length: Duration,
        tally: &mut Tally,
        tick: &dyn Fn(&Tally),
    ) -> Result<(), String> {
        let before = *tally;
        self.gather("join", SLACK, |word| matches!(word, Word::Joined))?;
        let until = Instant::now() + length;
        while Instant::now() < until && !self.members.is_empty() {
            let pause = Duration::from_millis(self.rng.random_range(5..150));
            self.peace(pause)?;
            tally.operations = before.operations + self.operations();
            tick(tally);
            if self.peaceful {
                continue;
            }
            let victim = *self.members.choose(&mut self.rng).unwrap_or(&0);
            match self.rng.random_range(0..10) {
                0..6 => {
                    // Short ones as often as long ones.
                    let most = (self.deadline / SHORT).as_micros() as u64;
                    let pause = most >> self.rng.random_range(0..8u32);
                    self.note(format!("rank {victim} is stopped for {pause} µs"));
                    self.signal(victim, "STOP");
                    self.peace(Duration::from_micros(pause))?;
                    self.signal(victim, "CONT");
                    tally.pauses += 1;
                }
                // Alone, nobody misses it.
                6 | 7 if self.members.len() > 1 => {
                    self.stop_for_long(victim)?;
                    tally.timeouts += 1;
                    tally.rebuilt += 1;
                }
                8 | 9 if self.members.len() > 1 => {
                    let stopped = self.rng.random_bool(0.3);
                    tally.kills += 1;
                    if !self.kill(victim, stopped)? {
                        // A minority: everybody has been told, and has ended.
                        break;
                    }
                    tally.rebuilt += 1;
                }
                _ => {}
            }
        }
        self.end()?;
        tally.operations = before.operations + self.operations();
        tick(tally);
        self.nothing_is_left()
    }

    fn operations(&self) -> u64 {
        let members = self.members.iter().map(|r| self.seats[*r as usize].done);
        members.min().unwrap_or(0)
    }

    fn note(&mut self, line: String) {
        self.log
            .push(format!("{:8.3} {line}", self.start.elapsed().as_secs_f64()));
    }

    fn signal(&self, rank: u32, name: &str) {
        let pid = self.seats[rank as usize].child.id();
        if lives(pid) {
            signal(pid, name);
        }
    }

    fn order(&mut self, rank: u32, what: &str) {
        // One that has ended is noticed by what it does not say.
        let _ = writeln!(self.seats[rank as usize].input, "{what}");
    }

    /// The next word, before `until`.
    fn hear(&mut self, until: Instant) -> Result<Option<(u32, Word)>, String> {
        let left = until.saturating_duration_since(Instant::now());
        match self.words.recv_timeout(left) {
            Ok((rank, word)) => {
                let seat = &mut self.seats[rank as usize];
                seat.heard = Instant::now();
                match &word {
                    Word::At(n) | Word::Done(n) => seat.done = *n,
                    _ => {}
                }
                match &word {
                    Word::At(_) => {}
                    Word::Wrong(what) => return Err(format!("rank {rank}: {what}")),
                    word => self.note(format!("rank {rank}: {word:?}")),
                }
                Ok(Some((rank, word)))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err("all ranks have ended".into()),
        }
    }

    /// Nothing happens to anybody for so long.
    fn peace(&mut self, pause: Duration) -> Result<(), String> {
        let until = Instant::now() + pause;
        while let Some((rank, word)) = self.hear(until)? {
            let gone = matches!(word, Word::Over) && !self.members.contains(&rank);
            if !matches!(word, Word::At(_)) && !gone {
                return Err(format!("nobody was harmed, but rank {rank} says {word:?}"));
            }
        }
        for rank in &self.members {
            let silent = self.seats[*rank as usize].heard.elapsed();
            if silent > self.deadline + SLACK {
                return Err(format!("HANG: rank {rank} has done nothing for {silent:?}"));
            }
        }
        Ok(())
    }

    /// Each of the members says something of this kind, in any order.
    fn gather(
        &mut self,
        what: &str,
        limit: Duration,
        is: impl Fn(&Word) -> bool,
    ) -> Result<Vec<(u32, Word)>, String> {
        let members = self.members.clone();
        self.gather_of(&members, what, limit, is)
    }

    fn gather_of(
        &mut self,
        who: &[u32],
        what: &str,
        limit: Duration,
        is: impl Fn(&Word) -> bool,
    ) -> Result<Vec<(u32, Word)>, String> {
        let until = Instant::now() + limit;
        let mut missing: BTreeSet<u32> = who.iter().copied().collect();
        let mut said = Vec::new();
        while !missing.is_empty() {
            let Some((rank, word)) = self.hear(until)? else {
                return Err(format!(
                    "HANG: ranks {missing:?} do not {what} within {limit:?}"
                ));
            };
            match word {
                word if is(&word) && missing.remove(&rank) => said.push((rank, word)),
                Word::At(_) => {}
                // The pipe of one that was killed.
                Word::Over if !who.contains(&rank) => {}
                word => {
                    return Err(format!(
                        "waiting for all to {what}: rank {rank} says {word:?}"
                    ));
                }
            }
        }
        Ok(said)
    }

    /// All others say that the victim is at fault. One that does not deal with a dead rank itself may learn of it by the others' silence: then it says `timeout`.
    fn all_blame(&mut self, victim: u32, want: &str) -> Result<(), String> {
        let others: Vec<u32> = self
            .members
            .iter()
            .copied()
            .filter(|r| *r != victim)
            .collect();
        let limit = self.deadline + SLACK;
        let is = |word: &Word| matches!(word, Word::Error { .. });
        for (rank, word) in self.gather_of(&others, &format!("miss rank {victim}"), limit, is)? {
            if let Word::Error {
                kind,
                accused,
                text,
            } = word
                && ((kind != want && kind != "timeout") || accused != BTreeSet::from([victim]))
            {
                return Err(format!(
                    "rank {rank} blames {accused:?} ({kind}), it should be rank {victim} ({want}): {text}"
                ));
            }
        }
        Ok(())
    }

    /// Longer than the deadline: all others miss it, and it does not end well either.
    fn stop_for_long(&mut self, victim: u32) -> Result<(), String> {
        self.note(format!("rank {victim} is stopped"));
        self.signal(victim, "STOP");
        self.all_blame(victim, "timeout")?;
        self.note(format!("rank {victim} goes on"));
        self.signal(victim, "CONT");
        let is = |word: &Word| matches!(word, Word::Error { .. });
        let limit = self.deadline + SLACK;
        self.gather_of(&[victim], "end with an error", limit, is)?;
        self.rebuild()
    }

    /// `false`: the survivors are a minority.
    fn kill(&mut self, victim: u32, stopped: bool) -> Result<bool, String> {
        if stopped {
            self.note(format!("rank {victim} is stopped, then killed"));
            self.signal(victim, "STOP");
            let pause = Duration::from_millis(self.rng.random_range(1..100));
            self.peace(pause.min(self.deadline / SHORT))?;
        } else {
            self.note(format!("rank {victim} is killed"));
        }
        self.signal(victim, "KILL");
        self.all_blame(victim, "lost")?;
        let before = std::mem::take(&mut self.members);
        self.members = before.iter().copied().filter(|r| *r != victim).collect();
        // More than half decide, or half with the lowest among them.
        let half = 2 * self.members.len() == before.len();
        if half && self.members.first() != before.first() {
            for rank in self.members.clone() {
                self.order(rank, "rebuild");
            }
            let is = |word: &Word| matches!(word, Word::Alone);
            self.gather(
                "be told that they are a minority",
                self.deadline + SLACK,
                is,
            )?;
            self.note("a minority".into());
            return Ok(false);
        }
        self.rebuild()?;
        Ok(true)
    }

    fn rebuild(&mut self) -> Result<(), String> {
        for rank in self.members.clone() {
            self.order(rank, "rebuild");
        }
        let is = |word: &Word| matches!(word, Word::Rebuilt(_));
        let said = self.gather("rebuild", self.deadline + SLACK, is)?;
        for (rank, word) in said {
            if let Word::Rebuilt(members) = word
                && members != self.members
            {
                let want = &self.members;
                return Err(format!("rank {rank} has rebuilt {members:?}, not {want:?}"));
            }
        }
        Ok(())
    }

    /// All are told to end, and end well.
    fn end(&mut self) -> Result<(), String> {
        for rank in self.members.clone() {
            self.order(rank, "end");
        }
        let told = self
            .log
            .last()
            .is_some_and(|line| line.ends_with("a minority"));
        if !told {
            self.gather("end", self.deadline + SLACK, |w| matches!(w, Word::Done(_)))?;
        }
        for rank in 0..self.seats.len() {
            let until = Instant::now() + SLACK;
            let seat = &mut self.seats[rank];
            let status = loop {
                match seat.child.try_wait() {
                    Ok(Some(status)) => break status,
                    Err(e) => return Err(format!("rank {rank} cannot be waited for: {e}")),
                    Ok(None) if Instant::now() > until => {
                        return Err(format!("HANG: the process of rank {rank} does not end"));
                    }
                    Ok(None) => thread::sleep(Duration::from_millis(5)),
                }
            };
            let fine = match self.members.contains(&(rank as u32)) {
                true => status.success(),
                false => status.signal() == Some(KILLED),
            };
            if !fine {
                return Err(format!("rank {rank} has ended with {status}"));
            }
            for reader in self.seats[rank].readers.drain(..) {
                // A reader that has panicked has told why.
                let _ = reader.join();
            }
            if self.stderr_of(rank).contains("panicked") {
                return Err(format!("PANIC in rank {rank}"));
            }
        }
        Ok(())
    }

    /// No file, no socket of the job's.
    fn nothing_is_left(&self) -> Result<(), String> {
        let files = fs::read_dir(self.dir.path()).map_err(|e| format!("{e}"))?;
        let files: Vec<_> = files.flatten().map(|f| f.file_name()).collect();
        if !files.is_empty() {
            return Err(format!("LEFT BEHIND: {files:?}"));
        }
        let memory = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let named = |name: &str| name.contains("gaggle") || name.contains(&self.job);
        let memory: Vec<_> = memory.map(|f| f.file_name()).collect();
        if let Some(name) = memory.iter().find(|n| named(&n.to_string_lossy())) {
            return Err(format!("LEFT BEHIND: {} in /dev/shm", name.display()));
        }
        let pids: Vec<u32> = self.seats.iter().map(|s| s.child.id()).collect();
        match pids.iter().find(|pid| lives(**pid)) {
            None => Ok(()),
            Some(pid) => Err(format!("LEFT BEHIND: process {pid}")),
        }
    }

    fn stderr_of(&self, rank: usize) -> String {
        let text = self.seats[rank].stderr.lock();
        text.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What has happened, for a person.
    fn words(&self) -> String {
        let mut text = String::new();
        for line in &self.log {
            text += &format!("{line}\n");
        }
        for rank in 0..self.seats.len() {
            for line in self.stderr_of(rank).lines() {
                text += &format!("{} on stderr: {line}\n", Rank(rank as u32));
            }
        }
        text
    }
}

impl Seat {
    fn start(mut command: Command, rank: u32, tell: &Sender<(u32, Word)>) -> io::Result<Seat> {
        let mut child = command.spawn()?;
        let missing = || io::Error::other("a stream of the child's is missing");
        let input = child.stdin.take().ok_or_else(missing)?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (out, mut err) = (out.ok_or_else(missing)?, err.ok_or_else(missing)?);
        let tell = tell.clone();
        let lines = thread::spawn(move || {
            for line in BufReader::new(out).lines() {
                let Ok(line) = line else { break };
                if tell.send((rank, Word::of(&line))).is_err() {
                    return;
                }
            }
            // Nobody listens any more where the episode is over.
            let _ = tell.send((rank, Word::Over));
        });
        let stderr = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&stderr);
        let errors = thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(n @ 1..) = err.read(&mut part) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.push_str(&String::from_utf8_lossy(&part[..n]));
            }
        });
        Ok(Seat {
            child,
            input,
            stderr,
            readers: vec![lines, errors],
            done: 0,
            heard: Instant::now(),
        })
    }
}

/// The program of the ranks: this one.
///
/// # Errors
/// The system does not say where it is.
pub fn this_program() -> io::Result<std::path::PathBuf> {
    env::current_exe()
}
