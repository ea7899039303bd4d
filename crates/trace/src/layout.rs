//! The file, byte by byte. All numbers are little-endian words of 8 bytes, halves of them low first.
//!
//! ```text
//! 0       header, 4 KiB
//!   0     magic                        8     version, bytes of the header
//!   16    bytes of the groups, of a slot   24    slots, ranks of the job
//!   32    rank, process                40    the run: equal on all ranks of one
//!   48    epoch, state                 56    start on the wall clock, ns since 1970
//!   64    start on the host's clock    72    which clock that is
//!   80    operations started so far    88    bytes of groups in use
//!   128   job, 256 host, 384 program: one byte of length and up to 127 of text
//! 4096    groups, 60 KiB: id; incarnation, epoch; size, initial size; members' ranks in the job, filled up to a word
//! 65536   slots, 256 bytes each, used in turn
//!   0     version before               8     number of the operation
//!   16    descriptor, 64 bytes         80    state, rank in the group
//!   88    size of the group, its place among the groups
//!   96    started                      104   first arrival
//!   112   last arrival                 120   finished
//!   128   payload bytes sent           136   received
//!   144   whose message came last, how many are awaited
//!   152   from whom something is to come: a bit for each rank of the group, where it has at most 64
//!   160   from whom something has come, likewise
//!   168   four that are awaited, or that it did without
//!   184   who is to blame; kind of failure (8 bits), length of the text (8 bits)
//!   192   the failure in words, 56 bytes
//!   248   version after
//! ```
//!
//! The version is written last into a new file: without it the file is not complete.
//! A slot whose two versions differ was being written when the process ended, or is being written now; its number is written last, so that such a slot still has its descriptor, or no number.

/// What every recording begins with.
pub const MAGIC: [u8; 8] = *b"GAGTRACE";
/// The version of the format that is written, and the only one that is read.
pub const VERSION: u32 = 1;
/// How many operations a recording keeps unless told otherwise: the file is then 1 MiB.
pub const SLOTS: u32 = 3840;

pub(crate) const HEADER_BYTES: usize = 4096;
pub(crate) const GROUPS_BYTES: usize = 60 * 1024;
pub(crate) const SLOT_BYTES: usize = 256;
pub(crate) const SLOT_WORDS: usize = SLOT_BYTES / 8;
pub(crate) const SLOTS_AT: usize = HEADER_BYTES + GROUPS_BYTES;
/// Fewer and more are refused.
pub(crate) const SLOT_RANGE: std::ops::RangeInclusive<u32> = 1..=1 << 20;
/// No rank.
pub(crate) const NOBODY: u32 = u32::MAX;

/// Words of the header.
pub(crate) mod head {
    pub(crate) const VERSION: usize = 1;
    pub(crate) const SIZES: usize = 2;
    pub(crate) const SLOTS: usize = 3;
    pub(crate) const RANK: usize = 4;
    pub(crate) const RUN: usize = 5;
    pub(crate) const EPOCH: usize = 6;
    pub(crate) const WALL: usize = 7;
    pub(crate) const MONO: usize = 8;
    pub(crate) const CLOCK: usize = 9;
    pub(crate) const STARTED: usize = 10;
    pub(crate) const GROUPS: usize = 11;
    pub(crate) const JOB: usize = 16;
    pub(crate) const HOST: usize = 32;
    pub(crate) const PROGRAM: usize = 48;
    pub(crate) const TEXT_WORDS: usize = 16;
}

/// Words of a slot.
pub(crate) mod slot {
    pub(crate) const OPEN: usize = 0;
    pub(crate) const SERIAL: usize = 1;
    pub(crate) const DESCRIPTOR: usize = 2;
    pub(crate) const STATE: usize = 10;
    pub(crate) const GROUP: usize = 11;
    pub(crate) const STARTED: usize = 12;
    pub(crate) const FIRST: usize = 13;
    pub(crate) const LAST: usize = 14;
    pub(crate) const FINISHED: usize = 15;
    pub(crate) const SENT: usize = 16;
    pub(crate) const RECEIVED: usize = 17;
    pub(crate) const WAIT: usize = 18;
    pub(crate) const SOURCES: usize = 19;
    pub(crate) const HEARD: usize = 20;
    pub(crate) const AWAITED: usize = 21;
    pub(crate) const FAILURE: usize = 23;
    pub(crate) const TEXT: usize = 24;
    pub(crate) const CLOSE: usize = 31;
    pub(crate) const TEXT_BYTES: usize = 56;
    /// How many that are awaited have a place.
    pub(crate) const NAMED: usize = 4;
}

/// Two halves in one word.
pub(crate) const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// The halves of a word.
pub(crate) const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// As much of a text as has room, cut between characters.
pub(crate) fn cut(text: &str, room: usize) -> &str {
    let mut end = text.len().min(room);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
