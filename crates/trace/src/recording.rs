//! Reading: [`Recording`]. Any bytes may be given.

use crate::{
    layout::{
        GROUPS_BYTES, HEADER_BYTES, MAGIC, NOBODY, SLOT_BYTES, SLOT_RANGE, SLOTS_AT, VERSION,
        halves, head, slot,
    },
    recorder::{Failure, FailureKind},
};
use gaggle_core::{Descriptor, Rank};
use std::{fs, io, io::Read, path::Path};

/// How a recording stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// The rank works, or its process was ended from outside.
    Running = 0,
    /// Something has gone wrong, and the rank has not left since.
    Troubled = 1,
    /// Something had gone wrong, and the rank has left in order.
    Left = 2,
}

/// How far an operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Phase {
    /// In flight.
    Started = 1,
    /// In flight, and late.
    Waiting = 2,
    /// Over.
    Done = 3,
    /// Over, with an error.
    Failed = 4,
}

impl Phase {
    fn from_number(n: u32) -> Option<Phase> {
        [Phase::Started, Phase::Waiting, Phase::Done, Phase::Failed]
            .into_iter()
            .find(|p| *p as u32 == n)
    }

    /// In one word.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Started => "started",
            Phase::Waiting => "waiting",
            Phase::Done => "done",
            Phase::Failed => "failed",
        }
    }

    /// Whether it had not ended.
    pub const fn in_flight(self) -> bool {
        matches!(self, Phase::Started | Phase::Waiting)
    }
}

/// Whose recording it is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Header {
    /// The job's name.
    pub job: String,
    /// Equal on all ranks of one run of the job.
    pub run: u64,
    /// How often the job was restarted.
    pub epoch: u32,
    /// Ranks of the job.
    pub world: u32,
    /// Which of them.
    pub rank: Rank,
    /// Its process.
    pub pid: u32,
    /// Its host's name.
    pub host: String,
    /// Its program's name.
    pub program: String,
    /// When it began, in nanoseconds since 1970.
    pub wall_start: u64,
    /// When it began, in nanoseconds of the host's monotonic clock.
    pub start: u64,
    /// Which clock that is: equal where two recordings are on the same one.
    pub clock: u64,
    /// How it stands.
    pub state: State,
    /// How many operations were started; the last of them are there.
    pub started: u64,
}

/// A group that the rank had operations in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its identity.
    pub id: u64,
    /// Which of the groups with the same parent, members and key.
    pub incarnation: u32,
    /// The membership record.
    pub epoch: u32,
    /// Members' numbers in the job, by number in the group.
    pub members: Vec<Rank>,
}

/// One operation. Times are in nanoseconds of the host's monotonic clock.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Operation {
    /// The how-manieth of the rank's, from 1 on.
    pub serial: u64,
    /// What.
    pub descriptor: Descriptor,
    /// Its group's place in [`Recording::groups`]; `None` where there was no room for it.
    pub group: Option<usize>,
    /// Members of the group.
    pub group_size: u32,
    /// This rank's number in it.
    pub group_rank: Rank,
    /// How far it is.
    pub phase: Phase,
    /// When it was started.
    pub started: u64,
    /// When its first message was there.
    pub first_arrival: Option<u64>,
    /// When its last message so far was there.
    pub last_arrival: Option<u64>,
    /// When it ended.
    pub finished: Option<u64>,
    /// Payload bytes; known once it has ended.
    pub bytes_sent: u64,
    /// Payload bytes so far.
    pub bytes_received: u64,
    /// Whose message came last, as a number in the job.
    pub last_from: Option<Rank>,
    /// Bit r: something is to come from rank r of the group. 0 in groups of more than 64.
    pub sources: u64,
    /// Bit r: something has come from rank r of the group.
    pub heard: u64,
    /// As numbers in the job, the first four: of an operation in flight, who was awaited when it was found late; of a failed one, who was awaited then; of one that is over, whom it did without.
    pub awaited: Vec<Rank>,
    /// How many those were in all.
    pub n_awaited: u32,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// The process ended while it wrote this, or writes it now: a number may be of another moment than the rest.
    pub torn: bool,
}

impl Operation {
    /// How long it took; `None` while in flight.
    pub fn took(&self) -> Option<u64> {
        self.finished.map(|end| end.saturating_sub(self.started))
    }
}

/// A file that is no recording of ours.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It cannot be read.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    /// It does not begin like a recording.
    #[error("it is not a recording of gaggle's")]
    NotARecording,
    /// Its process ended before it had been begun.
    #[error("it was never completely begun")]
    Unfinished,
    /// Another version of gaggle has written it.
    #[error("it has version {got} of the format, this program reads {want}")]
    Version {
        /// The file's.
        got: u32,
        /// Ours.
        want: u32,
    },
    /// It is too short for what it says to hold.
    #[error("it has {got} bytes where {want} are expected")]
    Short {
        /// What it needs.
        want: u64,
        /// What it has.
        got: u64,
    },
    /// Its header makes no sense.
    #[error("its header makes no sense: {what}")]
    Malformed {
        /// What of it.
        what: &'static str,
    },
}

/// What a file says. It may belong to a process that lives, and then is a look at one moment, with torn operations where that was writing.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Recording {
    /// Whose it is.
    pub header: Header,
    /// The groups of its operations.
    pub groups: Vec<Group>,
    /// The last operations, in the order in which they were started.
    pub operations: Vec<Operation>,
    /// Places that could not be made sense of.
    pub torn: usize,
}

/// Larger files are none of ours.
const MOST_BYTES: u64 = SLOTS_AT as u64 + (*SLOT_RANGE.end() as u64) * SLOT_BYTES as u64;

impl Recording {
    /// Reads a file, at most as much as a recording can have.
    ///
    /// # Errors
    /// It cannot be read, or is no recording: [`ReadError`].
    pub fn read(path: &Path) -> Result<Recording, ReadError> {
        let mut bytes = vec![];
        fs::File::open(path)?
            .take(MOST_BYTES)
            .read_to_end(&mut bytes)?;
        Recording::parse(&bytes)
    }

    /// Reads what a file holds.
    ///
    /// # Errors
    /// It is no recording: [`ReadError`]; never `Io`.
    pub fn parse(bytes: &[u8]) -> Result<Recording, ReadError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(ReadError::NotARecording);
        }
        let short = |want: usize| ReadError::Short {
            want: want as u64,
            got: bytes.len() as u64,
        };
        let words = Bytes(bytes);
        match words.halves(head::VERSION) {
            (0, _) => return Err(ReadError::Unfinished),
            (VERSION, header) if header as usize == HEADER_BYTES => {}
            (VERSION, _) => return Err(malformed("its size")),
            (got, _) => return Err(ReadError::Version { got, want: VERSION }),
        }
        if bytes.len() < SLOTS_AT {
            return Err(short(SLOTS_AT));
        }
        if words.halves(head::SIZES) != (GROUPS_BYTES as u32, SLOT_BYTES as u32) {
            return Err(malformed("the sizes of its parts"));
        }
        let (slots, world) = words.halves(head::SLOTS);
        if !SLOT_RANGE.contains(&slots) {
            return Err(malformed("how many operations it keeps"));
        }
        let want = SLOTS_AT + slots as usize * SLOT_BYTES;
        if bytes.len() < want {
            return Err(short(want));
        }
        let header = header(&words, world)?;
        let groups = groups(&words);
        let mut operations = vec![];
        let mut torn = 0;
        for place in bytes[SLOTS_AT..want].chunks_exact(SLOT_BYTES) {
            match operation(&Bytes(place), groups.len()) {
                Slot::Empty => {}
                Slot::Lost => torn += 1,
                Slot::Holds(op) => operations.push(*op),
            }
        }
        operations.sort_by_key(|op| op.serial);
        torn += operations.iter().filter(|op| op.torn).count();
        Ok(Recording {
            header,
            groups,
            operations,
            torn,
        })
    }

    /// Operations that have been overwritten by later ones.
    pub fn forgotten(&self) -> u64 {
        self.header
            .started
            .saturating_sub(self.operations.len() as u64)
    }
}

/// Words of a part of the file; beyond its end there are zeros.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn word(&self, i: usize) -> u64 {
        let at = self.0.get(i * 8..i * 8 + 8);
        at.and_then(|b| b.try_into().ok())
            .map_or(0, u64::from_le_bytes)
    }

    fn halves(&self, i: usize) -> (u32, u32) {
        halves(self.word(i))
    }

    /// A text of the header.
    fn text(&self, i: usize) -> String {
        let at = i * 8;
        let len = self.0.get(at).map_or(0, |n| *n as usize);
        let len = len.min(head::TEXT_WORDS * 8 - 1);
        let bytes = self.0.get(at + 1..at + 1 + len).unwrap_or(&[]);
        clean(bytes)
    }
}

/// Text for a terminal: what is not UTF-8 or would steer it is replaced.
fn clean(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(plain).collect()
}

fn malformed(what: &'static str) -> ReadError {
    ReadError::Malformed { what }
}

fn header(words: &Bytes<'_>, world: u32) -> Result<Header, ReadError> {
    let (rank, pid) = words.halves(head::RANK);
    if rank >= world {
        return Err(malformed("its rank, which the job does not have"));
    }
    let (epoch, state) = words.halves(head::EPOCH);
    let state = [State::Running, State::Troubled, State::Left]
        .into_iter()
        .find(|s| *s as u32 == state)
        .ok_or(malformed("its state"))?;
    Ok(Header {
        job: words.text(head::JOB),
        run: words.word(head::RUN),
        epoch,
        world,
        rank: Rank(rank),
        pid,
        host: words.text(head::HOST),
        program: words.text(head::PROGRAM),
        wall_start: words.word(head::WALL),
        start: words.word(head::MONO),
        clock: words.word(head::CLOCK),
        state,
        started: words.word(head::STARTED),
    })
}

fn groups(words: &Bytes<'_>) -> Vec<Group> {
    let used = usize::try_from(words.word(head::GROUPS)).unwrap_or(usize::MAX);
    let end = HEADER_BYTES / 8 + used.min(GROUPS_BYTES) / 8;
    let mut groups = vec![];
    let mut at = HEADER_BYTES / 8;
    while at + 3 <= end {
        let (incarnation, epoch) = words.halves(at + 1);
        let (size, _) = words.halves(at + 2);
        let members_end = at + 3 + (size as usize).div_ceil(2);
        if members_end > end {
            break;
        }
        let pairs = (at + 3..members_end).map(|i| words.halves(i));
        let members = pairs.flat_map(|(a, b)| [Rank(a), Rank(b)]);
        groups.push(Group {
            id: words.word(at),
            incarnation,
            epoch,
            members: members.take(size as usize).collect(),
        });
        at = members_end;
    }
    groups
}

enum Slot {
    Empty,
    Lost,
    Holds(Box<Operation>),
}

fn operation(words: &Bytes<'_>, n_groups: usize) -> Slot {
    let (open, serial, close) = (
        words.word(slot::OPEN),
        words.word(slot::SERIAL),
        words.word(slot::CLOSE),
    );
    if open == 0 && serial == 0 {
        return Slot::Empty;
    }
    match parse_operation(words, serial, n_groups) {
        Some(op) if serial != 0 => Slot::Holds(Box::new(Operation {
            torn: open != close,
            ..op
        })),
        _ => Slot::Lost,
    }
}

fn parse_operation(words: &Bytes<'_>, serial: u64, n_groups: usize) -> Option<Operation> {
    let descriptor = words.0.get(slot::DESCRIPTOR * 8..slot::STATE * 8)?;
    let (phase, rank) = words.halves(slot::STATE);
    let (size, group) = words.halves(slot::GROUP);
    let (last_from, n_awaited) = words.halves(slot::WAIT);
    let phase = Phase::from_number(phase)?;
    let time = |i: usize| Some(words.word(i)).filter(|t| *t != 0);
    let awaited = (0..slot::NAMED / 2).flat_map(|i| {
        let (a, b) = words.halves(slot::AWAITED + i);
        [a, b]
    });
    let named = (n_awaited as usize).min(slot::NAMED);
    Some(Operation {
        serial,
        descriptor: Descriptor::from_bytes(descriptor)?,
        group: Some(group as usize).filter(|g| *g < n_groups),
        group_size: size,
        group_rank: Rank(rank),
        phase,
        started: words.word(slot::STARTED),
        first_arrival: time(slot::FIRST),
        last_arrival: time(slot::LAST),
        finished: time(slot::FINISHED).filter(|_| !phase.in_flight()),
        bytes_sent: words.word(slot::SENT),
        bytes_received: words.word(slot::RECEIVED),
        last_from: somebody(last_from),
        sources: words.word(slot::SOURCES),
        heard: words.word(slot::HEARD),
        awaited: awaited.take(named).filter_map(somebody).collect(),
        n_awaited,
        failure: failure(words).filter(|_| phase == Phase::Failed),
        torn: false,
    })
}

fn somebody(rank: u32) -> Option<Rank> {
    (rank != NOBODY).then_some(Rank(rank))
}

fn failure(words: &Bytes<'_>) -> Option<Failure> {
    let (culprit, kind) = words.halves(slot::FAILURE);
    let len = (kind >> 8 & 0xff) as usize;
    let kind = FailureKind::ALL
        .into_iter()
        .find(|k| *k as u32 == kind & 0xff)?;
    let at = slot::TEXT * 8;
    let text = words.0.get(at..at + len.min(slot::TEXT_BYTES))?;
    Some(Failure {
        kind,
        culprit: somebody(culprit),
        text: clean(text),
    })
}
