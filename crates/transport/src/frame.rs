//! Frames on a TCP link: one fixed header, then for the first frame of a message its head, then the payload.
//!
//! # Layout
//! 48 bytes, little-endian:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind: 1 data, 2 grant, 3 abort, 4 goodbye, 5 taken, 6 recall |
//! | 1 | 1 | flags of data: bit 0 first frame of its message, bit 1 sent under a grant, bit 2 lent |
//! | 2 | 1 | bytes of head that follow the header; only in a first frame |
//! | 3 | 1 | class of the operation |
//! | 4 | 4 | lane |
//! | 8 | 8 | group |
//! | 16 | 8 | sequence number |
//! | 24 | 4 | tag |
//! | 28 | 4 | bytes of payload in this frame |
//! | 32 | 8 | where in the message they belong |
//! | 40 | 8 | length of the whole message |
//!
//! # Flow control
//! A sender may have [`EAGER`] bytes under way for messages whose receive it has not heard of; each such message costs its payload and [`COST`] more.
//! For every message the receiver sends exactly one *grant*: when its receive is posted and nothing of it is held any more, or when it has decided to drop it.
//! A grant lifts the bound from the message and gives back what the message has cost.
//!
//! # Lent messages
//! Between ranks that have each other's heaps mapped a message may stay where it is: its one frame is marked as lent, has no payload, and at the end of its head [`LENT`] bytes that say where in the sender's heap the bytes lie.
//! It costs [`COST`] of the credit. The receiver reads the bytes, or drops the message, and answers *taken*: until then, or until the sender has taken the message back with a *recall*, the sender keeps the bytes as they are.
//! Both may be on their way at once, so that either may speak of a message that is over.
//!
//! So what is held for later is at most `EAGER` bytes per link, a posted message is never stopped by an unposted one, and nobody waits for a grant that depends on anything but the receiver's post.

use gaggle_core::{Class, HEAD_MAX, MsgKey, OpId};

/// Bytes of a header.
pub const HEADER: usize = 48;
/// Most payload in one frame.
pub const PAYLOAD_MAX: usize = 256 << 10;
/// Credit per link and direction for what nobody has asked for.
pub const EAGER: u64 = 256 << 10;
/// What a message costs of that credit on top of its payload.
pub const COST: u64 = 256;

/// Bytes at the end of a lent message's head: the place in the sender's heap, and how much that rank had given up before.
pub const LENT: usize = 16;

const FIRST: u8 = 1;
const GRANTED: u8 = 2;
const IS_LENT: u8 = 4;

/// What a frame is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Part of a message.
    Data = 1,
    /// The receive of a message is posted, or the message will be dropped.
    Grant = 2,
    /// The sender has given up on a message that had begun.
    Abort = 3,
    /// The sender leaves; nothing follows.
    Goodbye = 4,
    /// A lent message has been read, or will not be.
    Taken = 5,
    /// The sender has taken a lent message back.
    Recall = 6,
}

/// One header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// First frame of its message.
    pub first: bool,
    /// Sent under a grant.
    pub granted: bool,
    /// The bytes are where the end of the head says.
    pub lent: bool,
    /// Bytes of head that follow.
    pub head_len: u8,
    /// Which message.
    pub key: MsgKey,
    /// Bytes of payload that follow.
    pub len: u32,
    /// Where they belong.
    pub offset: u64,
    /// Length of the message.
    pub total: u64,
}

/// What no healthy peer sends. The link is closed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The kind has no meaning.
    #[error("frame of unknown kind {0}")]
    Kind(u8),
    /// The flags have no meaning.
    #[error("unknown frame flags {0:#04x}")]
    Flags(u8),
    /// The class has no meaning.
    #[error("frame of unknown class {0}")]
    Class(u8),
    /// A head longer than any, or in a frame that is not a first one.
    #[error("a head of {0} bytes where none or a shorter one may be")]
    Head(u8),
    /// More payload than a frame may have.
    #[error("a frame of {0} bytes, more than a frame may have")]
    Long(u32),
    /// Payload beyond the message's end, or in a frame that carries none.
    #[error("{len} bytes at {offset} of a message of {total}")]
    Range {
        /// Bytes in the frame.
        len: u32,
        /// Where they belong.
        offset: u64,
        /// The message's length.
        total: u64,
    },
    /// A frame that continues a message which has not begun.
    #[error("a message is continued that has not begun")]
    NotBegun,
    /// A message that begins while one with its key is under way.
    #[error("a message begins twice")]
    BegunTwice,
    /// A frame that does not continue where the last one ended.
    #[error("a frame at {offset} of {total} where byte {got} of {was} is next")]
    Order {
        /// Where the frame says it belongs.
        offset: u64,
        /// Its length of the message.
        total: u64,
        /// What has come.
        got: u64,
        /// The length as first said.
        was: u64,
    },
    /// A frame says that it was granted, and it was not.
    #[error("a frame under a grant that was never given")]
    NotGranted,
    /// More than the credit for unposted messages.
    #[error("{0} bytes of unposted messages, more than the credit of {EAGER}")]
    Credit(u64),
    /// A lent message without a place, or on a link without mapped memory, or one that lies nowhere.
    #[error("a lent message whose bytes cannot be reached")]
    Lent,
    /// More grants or unfinished messages than any rank has use for.
    #[error("too many {0}")]
    TooMany(&'static str),
}

impl Header {
    /// A frame without payload.
    pub fn control(kind: Kind, key: MsgKey) -> Header {
        Header {
            kind,
            first: false,
            granted: false,
            lent: false,
            head_len: 0,
            key,
            len: 0,
            offset: 0,
            total: 0,
        }
    }

    /// The last frame of a link.
    pub fn goodbye() -> Header {
        let op = OpId {
            group: 0,
            lane: 0,
            class: Class::Collective,
            seq: 0,
        };
        Header::control(Kind::Goodbye, MsgKey { op, tag: 0 })
    }

    /// As sent.
    pub fn to_bytes(&self) -> [u8; HEADER] {
        let mut b = [0; HEADER];
        b[0] = self.kind as u8;
        b[1] = (u8::from(self.first) * FIRST)
            | (u8::from(self.granted) * GRANTED)
            | (u8::from(self.lent) * IS_LENT);
        b[2] = self.head_len;
        b[3] = self.key.op.class as u8;
        b[4..8].copy_from_slice(&self.key.op.lane.to_le_bytes());
        b[8..16].copy_from_slice(&self.key.op.group.to_le_bytes());
        b[16..24].copy_from_slice(&self.key.op.seq.to_le_bytes());
        b[24..28].copy_from_slice(&self.key.tag.to_le_bytes());
        b[28..32].copy_from_slice(&self.len.to_le_bytes());
        b[32..40].copy_from_slice(&self.offset.to_le_bytes());
        b[40..48].copy_from_slice(&self.total.to_le_bytes());
        b
    }

    /// As received.
    ///
    /// # Errors
    /// The first thing in it that has no meaning.
    pub fn parse(b: &[u8; HEADER]) -> Result<Header, Violation> {
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let u64_at = |i: usize| u64::from(u32_at(i)) | u64::from(u32_at(i + 4)) << 32;
        let kind = match b[0] {
            1 => Kind::Data,
            2 => Kind::Grant,
            3 => Kind::Abort,
            4 => Kind::Goodbye,
            5 => Kind::Taken,
            6 => Kind::Recall,
            other => return Err(Violation::Kind(other)),
        };
        let class = Class::from_number(b[3]).ok_or(Violation::Class(b[3]))?;
        let flags = if kind == Kind::Data {
            FIRST | GRANTED | IS_LENT
        } else {
            0
        };
        if b[1] & !flags != 0 {
            return Err(Violation::Flags(b[1]));
        }
        let h = Header {
            kind,
            first: b[1] & FIRST != 0,
            granted: b[1] & GRANTED != 0,
            lent: b[1] & IS_LENT != 0,
            head_len: b[2],
            key: MsgKey {
                op: OpId {
                    group: u64_at(8),
                    lane: u32_at(4),
                    class,
                    seq: u64_at(16),
                },
                tag: u32_at(24),
            },
            len: u32_at(28),
            offset: u64_at(32),
            total: u64_at(40),
        };
        h.check()?;
        Ok(h)
    }

    fn check(&self) -> Result<(), Violation> {
        if usize::from(self.head_len) > HEAD_MAX || (self.head_len > 0 && !self.first) {
            return Err(Violation::Head(self.head_len));
        }
        let whole = self.first && self.len == 0 && self.total > 0;
        if self.lent && (!whole || usize::from(self.head_len) < LENT) {
            return Err(Violation::Lent);
        }
        if self.len as usize > PAYLOAD_MAX {
            return Err(Violation::Long(self.len));
        }
        let range = Violation::Range {
            len: self.len,
            offset: self.offset,
            total: self.total,
        };
        let end = self.offset.checked_add(u64::from(self.len));
        let inside = end.is_some_and(|end| end <= self.total);
        // A frame without payload would be progress without an end.
        let ends = self.first && (self.total == 0 || self.lent);
        let moves = self.kind != Kind::Data || self.len > 0 || ends;
        if !inside || !moves || (self.first && self.offset != 0) {
            return Err(range);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngCore, SeedableRng};

    fn sample() -> Header {
        Header {
            kind: Kind::Data,
            first: true,
            granted: true,
            lent: false,
            head_len: 96,
            key: MsgKey {
                op: OpId {
                    group: u64::MAX - 5,
                    lane: 0x0102_0304,
                    class: Class::Neighbour,
                    seq: 1 << 60,
                },
                tag: 0xfffe_fdfc,
            },
            len: 262_144,
            offset: 0,
            total: u64::MAX,
        }
    }

    #[test]
    fn headers_round_trip() {
        let mut later = sample();
        (later.first, later.head_len, later.offset) = (false, 0, u64::MAX - 262_144);
        let mut lent = sample();
        (lent.lent, lent.len) = (true, 0);
        for h in [
            sample(),
            later,
            lent,
            Header::control(Kind::Taken, sample().key),
            Header::control(Kind::Recall, sample().key),
            Header::goodbye(),
            Header::control(Kind::Grant, sample().key),
        ] {
            assert_eq!(Header::parse(&h.to_bytes()), Ok(h));
        }
    }

    #[test]
    fn every_class_of_operations_has_a_number() {
        for class in Class::ALL {
            let mut h = sample();
            h.key.op.class = class;
            assert_eq!(Header::parse(&h.to_bytes()), Ok(h));
        }
    }

    #[test]
    fn every_field_is_checked() {
        let set = |at: usize, bytes: &[u8]| {
            let mut b = sample().to_bytes();
            b[at..at + bytes.len()].copy_from_slice(bytes);
            Header::parse(&b).expect_err("no such frame")
        };
        assert_eq!(set(0, &[0]), Violation::Kind(0));
        assert_eq!(set(0, &[7]), Violation::Kind(7));
        assert_eq!(set(0, &[2]), Violation::Flags(3));
        assert_eq!(set(1, &[11]), Violation::Flags(11));
        assert_eq!(set(1, &[7]), Violation::Lent, "with payload");
        assert_eq!(set(1, &[6]), Violation::Head(96));
        assert_eq!(set(1, &[2]), Violation::Head(96));
        assert_eq!(set(2, &[97]), Violation::Head(97));
        assert_eq!(set(3, &[5]), Violation::Class(5));
        assert_eq!(set(28, &262_145u32.to_le_bytes()), Violation::Long(262_145));
        for (at, bytes) in [
            (28, &[0u8; 4][..]),
            (32, &u64::MAX.to_le_bytes()),
            (40, &1u64.to_le_bytes()),
        ] {
            assert!(matches!(set(at, bytes), Violation::Range { .. }), "at {at}");
        }
    }

    #[test]
    fn random_bytes_parse_to_sound_headers_or_not_at_all() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let mut good = 0;
        for _ in 0..200_000 {
            let mut b = [0; HEADER];
            rng.fill_bytes(&mut b);
            // Enough of the small numbers that all checks are reached.
            for (at, mask) in [
                (0, 7),
                (1, 7),
                (2, 127),
                (3, 1),
                (30, 7),
                (31, 0),
                (38, 0),
                (39, 0),
            ] {
                b[at] &= mask;
            }
            let shape = rng.next_u32();
            if shape & 1 == 0 {
                b[32..40].fill(0);
            }
            if shape & 6 != 0 {
                b[2] = 0;
            }
            if let Ok(h) = Header::parse(&b) {
                good += 1;
                assert_eq!(h.to_bytes(), b, "what is understood is all there is");
                assert!(
                    h.offset
                        .checked_add(u64::from(h.len))
                        .is_some_and(|e| e <= h.total)
                );
                assert!(h.len as usize <= PAYLOAD_MAX && usize::from(h.head_len) <= HEAD_MAX);
            }
        }
        assert!(good > 1000, "{good} of them were sound");
    }
}
