//! Writing: [`Recorder`].

use crate::{
    clock,
    layout::{
        GROUPS_BYTES, HEADER_BYTES, MAGIC, NOBODY, SLOT_BYTES, SLOT_RANGE, SLOT_WORDS, SLOTS,
        SLOTS_AT, VERSION, cut, head, pair, slot,
    },
    place,
    raw_map::Words,
    recording::{Phase, State},
};
use gaggle_core::{Cause, Descriptor, Error, GroupInfo, Rank};
use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Whose recording it is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct About {
    /// The job's name.
    pub job: String,
    /// A number that all ranks of one run of the job share, and no other run has; 0 where nobody has drawn one.
    pub run: u64,
    /// Ranks of the job.
    pub world: u32,
    /// Which of them this is.
    pub rank: Rank,
    /// How often the job was restarted.
    pub epoch: u32,
    /// How many operations are kept: 256 bytes each, [`SLOTS`] by default, at least 1 and at most 2²⁰.
    pub slots: u32,
}

impl About {
    /// One rank of a job.
    pub fn new(job: &str, world: u32, rank: Rank) -> About {
        About {
            job: job.into(),
            run: 0,
            world,
            rank,
            epoch: 0,
            slots: SLOTS,
        }
    }

    /// In that run of the job.
    pub fn in_run(mut self, run: u64) -> About {
        self.run = run;
        self
    }

    /// After so many restarts.
    pub fn in_epoch(mut self, epoch: u32) -> About {
        self.epoch = epoch;
        self
    }

    /// With room for so many operations.
    pub fn keeping(mut self, slots: u32) -> About {
        self.slots = slots;
        self
    }
}

/// A recording cannot be begun. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
#[error("no recording in {}: cannot {what}", .dir.display())]
#[non_exhaustive]
pub struct RecorderError {
    /// The directory.
    pub dir: PathBuf,
    /// What was tried.
    pub what: &'static str,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// What is known of an operation when it starts.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// What it is.
    pub descriptor: &'a Descriptor,
    /// In which group.
    pub group: &'a GroupInfo,
    /// From whom something is to come: bit r for rank r of the group; 0 in groups of more than 64.
    pub sources: u64,
}

/// Stands for an operation that has been started. Worth nothing once thousands of others have been started since and none of their places was free: what is said of it then is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    slot: u32,
    serial: u64,
}

/// What kind of failure ended an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum FailureKind {
    /// A peer is dead.
    Lost = 1,
    /// A peer had left.
    Left = 2,
    /// Somebody did not come before the deadline.
    Timeout = 3,
    /// The ranks called different things.
    Mismatch = 4,
    /// Somebody aborted the group.
    Aborted = 5,
    /// Somebody cancelled the operation.
    Cancelled = 6,
    /// A function of the user's panicked.
    Panicked = 7,
    /// Anything else.
    Other = 8,
}

impl FailureKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [FailureKind; 8] = [
        FailureKind::Lost,
        FailureKind::Left,
        FailureKind::Timeout,
        FailureKind::Mismatch,
        FailureKind::Aborted,
        FailureKind::Cancelled,
        FailureKind::Panicked,
        FailureKind::Other,
    ];

    /// In one word.
    pub const fn name(self) -> &'static str {
        match self {
            FailureKind::Lost => "lost",
            FailureKind::Left => "left",
            FailureKind::Timeout => "timeout",
            FailureKind::Mismatch => "mismatch",
            FailureKind::Aborted => "aborted",
            FailureKind::Cancelled => "cancelled",
            FailureKind::Panicked => "panicked",
            FailureKind::Other => "failed",
        }
    }
}

/// Why an operation failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What kind.
    pub kind: FailureKind,
    /// Who is to blame, as a number in the job; of several the first.
    pub culprit: Option<Rank>,
    /// In words, at most 56 bytes are kept.
    pub text: String,
}

impl Failure {
    /// What a recording keeps of an error.
    pub fn of(error: &Error, group: &GroupInfo) -> Failure {
        let (kind, text) = match error.cause() {
            Cause::PeerLost { why, .. } => (FailureKind::Lost, why.clone()),
            Cause::PeerLeft { .. } => (FailureKind::Left, String::new()),
            Cause::Timeout { detail, .. } => (FailureKind::Timeout, detail.clone()),
            Cause::Mismatch { versions, .. } => {
                // The version that is not this rank's.
                let other = versions.iter().find(|(who, _)| !who.contains(&group.rank));
                let text = other.map_or(String::new(), |(_, what)| what.clone());
                (FailureKind::Mismatch, text)
            }
            Cause::Aborted { reason, .. } => (FailureKind::Aborted, reason.clone()),
            Cause::Cancelled { reason, .. } => (FailureKind::Cancelled, reason.clone()),
            Cause::Panicked { panic, .. } => (FailureKind::Panicked, panic.clone()),
            Cause::Invalid { what, .. } => (FailureKind::Other, what.clone()),
            other => (FailureKind::Other, other.to_string()),
        };
        let culprit = match error.cause() {
            Cause::PeerLost { world_rank, .. } | Cause::PeerLeft { world_rank, .. } => {
                Some(*world_rank)
            }
            _ => {
                let first = error.culprits().first();
                first.and_then(|r| group.world_ranks.get(r.idx())).copied()
            }
        };
        Failure {
            kind,
            culprit,
            text,
        }
    }
}

/// Keeps one rank's operations, the last few thousand of them, in a file of its own.
///
/// Each call costs some tens of nanoseconds, most of them for the clock; none allocates or asks the system, except that a group is remembered when its first operation starts.
/// What was said is in the file at once, whatever becomes of the process; not, though, of the machine.
/// Dropping it leaves the file where it is; [`close`](Recorder::close) takes it away where nothing has gone wrong.
#[derive(Debug)]
pub struct Recorder {
    words: Words,
    /// Kept open for its lock, which says that the recording is still being written.
    _file: File,
    path: PathBuf,
    pid: u32,
    slots: u32,
    next: u32,
    serial: u64,
    /// Slots whose operations have not ended.
    busy: Vec<bool>,
    groups: HashMap<(u64, u32, u32), u32>,
    groups_used: usize,
    last_group: ((u64, u32, u32), u32),
    troubled: bool,
}

impl Recorder {
    /// Begins a recording in a directory that is there. The file is as long as it will ever be, so that no disk fills up later: 64 KiB and 256 bytes for each operation that is kept.
    ///
    /// # Errors
    /// The system does not let it: the directory is not writable, or full.
    pub fn create(dir: &Path, about: &About) -> Result<Recorder, RecorderError> {
        let error = |what| {
            move |source| RecorderError {
                dir: dir.to_owned(),
                what,
                source,
            }
        };
        let slots = about.slots.clamp(*SLOT_RANGE.start(), *SLOT_RANGE.end());
        let pid = std::process::id();
        let (path, mut file) = new_file(dir, about, pid).map_err(error("make a file"))?;
        let bytes = SLOTS_AT + slots as usize * SLOT_BYTES;
        let mut begin = || -> io::Result<Words> {
            file.lock()?;
            file.write_all(&MAGIC)?;
            // Real bytes, not a hole: a hole that finds no room later ends the process.
            let rest = (bytes - MAGIC.len()) as u64;
            io::copy(&mut io::Read::take(io::repeat(0), rest), &mut file)?;
            Words::map(&file, bytes)
        };
        let words = begin().map_err(|e| {
            // Nothing is left of it; if not even that is possible, there is nothing to add.
            let _ = fs::remove_file(&path);
            error("fill and map a file")(e)
        })?;
        write_header(&words, about, slots, pid);
        Ok(Recorder {
            words,
            _file: file,
            path,
            pid,
            slots,
            next: 0,
            serial: 0,
            busy: vec![false; slots as usize],
            groups: HashMap::new(),
            groups_used: 0,
            last_group: ((0, 0, 0), NOBODY),
            troubled: false,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An operation starts.
    pub fn start(&mut self, start: &Start<'_>) -> Ticket {
        let now = clock::now();
        let group = self.group(start.group);
        let at = self.free_slot();
        self.serial += 1;
        self.busy[at as usize] = true;
        let ticket = Ticket {
            slot: at,
            serial: self.serial,
        };
        let base = SLOTS_AT / 8 + at as usize * SLOT_WORDS;
        let words = &self.words;
        let version = words.load(base + slot::OPEN) + 1;
        words.begin(base + slot::OPEN, version);
        // Without a number: from here on the slot's former operation is gone, and the new one is not yet there.
        words.begin(base + slot::SERIAL, 0);
        words.store_bytes(base + slot::DESCRIPTOR, &start.descriptor.to_bytes());
        let size = start.group.world_ranks.len() as u32;
        let state = pair(Phase::Started as u32, start.group.rank.0);
        words.store(base + slot::STATE, state);
        words.store(base + slot::GROUP, pair(size, group));
        words.store(base + slot::STARTED, now);
        for empty in slot::FIRST..=slot::RECEIVED {
            words.store(base + empty, 0);
        }
        words.store(base + slot::WAIT, pair(NOBODY, 0));
        words.store(base + slot::SOURCES, start.sources);
        for empty in slot::HEARD..slot::CLOSE {
            words.store(base + empty, 0);
        }
        words.publish(base + slot::SERIAL, self.serial);
        words.publish(base + slot::CLOSE, version);
        self.words.store(head::STARTED, self.serial);
        ticket
    }

    /// A message has come whole: from a rank, as numbers in the job and in the group, with so many bytes.
    pub fn arrived(&mut self, ticket: Ticket, world: Rank, group: Rank, bytes: u64) {
        let now = clock::now();
        self.change(ticket, |words, base| {
            if words.load(base + slot::FIRST) == 0 {
                words.store(base + slot::FIRST, now);
            }
            words.store(base + slot::LAST, now);
            let received = words.load(base + slot::RECEIVED).wrapping_add(bytes);
            words.store(base + slot::RECEIVED, received);
            let (_, awaited) = crate::layout::halves(words.load(base + slot::WAIT));
            words.store(base + slot::WAIT, pair(world.0, awaited));
            if group.0 < 64 {
                let heard = words.load(base + slot::HEARD) | 1 << group.0;
                words.store(base + slot::HEARD, heard);
            }
        });
    }

    /// It has taken long, and these are awaited, as numbers in the job.
    pub fn waiting(&mut self, ticket: Ticket, awaited: &[Rank]) {
        self.change(ticket, |words, base| {
            let (_, rank) = crate::layout::halves(words.load(base + slot::STATE));
            words.store(base + slot::STATE, pair(Phase::Waiting as u32, rank));
            store_awaited(words, base, awaited);
        });
    }

    /// It is over, and has sent so many payload bytes; where it tolerates that, without these, as numbers in the job.
    pub fn done(&mut self, ticket: Ticket, bytes_sent: u64, missing: &[Rank]) {
        let now = clock::now();
        self.change(ticket, |words, base| {
            let (_, rank) = crate::layout::halves(words.load(base + slot::STATE));
            words.store(base + slot::FINISHED, now);
            words.store(base + slot::SENT, bytes_sent);
            store_awaited(words, base, missing);
            words.store(base + slot::STATE, pair(Phase::Done as u32, rank));
        });
        self.release(ticket);
    }

    /// It has failed, while these were awaited, as numbers in the job. The recording is kept.
    pub fn failed(&mut self, ticket: Ticket, bytes_sent: u64, awaited: &[Rank], failure: &Failure) {
        let now = clock::now();
        self.change(ticket, |words, base| {
            let (_, rank) = crate::layout::halves(words.load(base + slot::STATE));
            words.store(base + slot::FINISHED, now);
            words.store(base + slot::SENT, bytes_sent);
            store_awaited(words, base, awaited);
            let text = cut(&failure.text, slot::TEXT_BYTES);
            let kind = failure.kind as u32 | (text.len() as u32) << 8;
            let culprit = failure.culprit.map_or(NOBODY, |r| r.0);
            words.store(base + slot::FAILURE, pair(culprit, kind));
            words.store_bytes(base + slot::TEXT, text.as_bytes());
            words.store(base + slot::STATE, pair(Phase::Failed as u32, rank));
        });
        self.release(ticket);
    }

    /// Something has gone wrong: [`close`](Recorder::close) will leave the file. Whether that is news.
    pub fn keep(&mut self) -> bool {
        if !self.troubled {
            self.set_state(State::Troubled);
        }
        !std::mem::replace(&mut self.troubled, true)
    }

    /// Ends the recording. The file goes, unless [`keep`](Recorder::keep) was called. In a fork of the process that began it nothing happens.
    pub fn close(self) {
        if std::process::id() != self.pid {
            return;
        }
        if self.troubled {
            self.set_state(State::Left);
        } else {
            // Somebody may have cleared it away.
            let _ = fs::remove_file(&self.path);
        }
    }

    fn set_state(&self, state: State) {
        let (epoch, _) = crate::layout::halves(self.words.load(head::EPOCH));
        self.words.store(head::EPOCH, pair(epoch, state as u32));
    }

    /// The next slot in turn whose operation is over: one that hangs is what somebody will look for.
    fn free_slot(&mut self) -> u32 {
        /// Where that many in a row are in flight, the oldest goes.
        const TRIES: u32 = 32;
        let start = self.next;
        let mut at = start;
        for _ in 0..TRIES {
            if !self.busy[at as usize] {
                break;
            }
            at = (at + 1) % self.slots;
        }
        if self.busy[at as usize] {
            at = start;
        }
        self.next = (at + 1) % self.slots;
        at
    }

    fn release(&mut self, ticket: Ticket) {
        if self.serial_in(ticket.slot) == ticket.serial {
            self.busy[ticket.slot as usize] = false;
        }
    }

    fn serial_in(&self, at: u32) -> u64 {
        self.words
            .load(SLOTS_AT / 8 + at as usize * SLOT_WORDS + slot::SERIAL)
    }

    /// Changes a slot between its two versions; not if it is another operation's by now.
    fn change(&self, ticket: Ticket, change: impl FnOnce(&Words, usize)) {
        let base = SLOTS_AT / 8 + ticket.slot as usize * SLOT_WORDS;
        let words = &self.words;
        if words.load(base + slot::SERIAL) != ticket.serial {
            return;
        }
        let version = words.load(base + slot::OPEN) + 1;
        words.begin(base + slot::OPEN, version);
        change(words, base);
        words.publish(base + slot::CLOSE, version);
    }

    /// The group's place among the groups; [`NOBODY`] where there was no room for it.
    fn group(&mut self, info: &GroupInfo) -> u32 {
        let key = (info.id, info.incarnation, info.epoch);
        if self.last_group.0 == key && self.last_group.1 != NOBODY {
            return self.last_group.1;
        }
        let place = match self.groups.get(&key) {
            Some(place) => *place,
            None => self.add_group(key, info),
        };
        self.last_group = (key, place);
        place
    }

    fn add_group(&mut self, key: (u64, u32, u32), info: &GroupInfo) -> u32 {
        let members = &info.world_ranks;
        let len = 3 + members.len().div_ceil(2);
        if self.groups_used + len > GROUPS_BYTES / 8 {
            return NOBODY;
        }
        let at = HEADER_BYTES / 8 + self.groups_used;
        let words = &self.words;
        words.store(at, info.id);
        words.store(at + 1, pair(info.incarnation, info.epoch));
        words.store(at + 2, pair(members.len() as u32, info.initial_size));
        for (i, two) in members.chunks(2).enumerate() {
            let second = two.get(1).map_or(NOBODY, |r| r.0);
            words.store(at + 3 + i, pair(two[0].0, second));
        }
        self.groups_used += len;
        words.publish(head::GROUPS, self.groups_used as u64 * 8);
        let place = self.groups.len() as u32;
        self.groups.insert(key, place);
        place
    }
}

fn store_awaited(words: &Words, base: usize, awaited: &[Rank]) {
    let (last, _) = crate::layout::halves(words.load(base + slot::WAIT));
    words.store(base + slot::WAIT, pair(last, awaited.len() as u32));
    for i in 0..slot::NAMED / 2 {
        let rank = |i: usize| awaited.get(i).map_or(NOBODY, |r| r.0);
        words.store(base + slot::AWAITED + i, pair(rank(2 * i), rank(2 * i + 1)));
    }
}

/// A file that nobody had before: another recording of this rank and process may be there when a process takes several parts.
fn new_file(dir: &Path, about: &About, pid: u32) -> io::Result<(PathBuf, File)> {
    const TRIES: u32 = 10_000;
    for n in 1..=TRIES {
        let path = dir.join(place::file_name(&about.job, about.rank, pid, n));
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        match options.open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn write_header(words: &Words, about: &About, slots: u32, pid: u32) {
    words.store(head::SIZES, pair(GROUPS_BYTES as u32, SLOT_BYTES as u32));
    words.store(head::SLOTS, pair(slots, about.world));
    words.store(head::RANK, pair(about.rank.0, pid));
    words.store(head::RUN, about.run);
    words.store(head::EPOCH, pair(about.epoch, State::Running as u32));
    words.store(head::WALL, clock::wall());
    words.store(head::MONO, clock::now());
    words.store(head::CLOCK, clock::id());
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    for (at, text) in [
        (head::JOB, about.job.as_str()),
        (head::HOST, &clock::host()),
        (head::PROGRAM, &program),
    ] {
        let text = cut(text, head::TEXT_WORDS * 8 - 1);
        let mut bytes = [0; head::TEXT_WORDS * 8];
        bytes[0] = text.len() as u8;
        bytes[1..=text.len()].copy_from_slice(text.as_bytes());
        words.store_bytes(at, &bytes);
    }
    // Last: a reader that finds it finds the rest.
    words.publish(head::VERSION, pair(VERSION, HEADER_BYTES as u32));
}
