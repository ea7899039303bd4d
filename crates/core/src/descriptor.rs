//! What an operation is, in 64 bytes that travel with its first message to each peer.

use crate::{Algorithm, Codec, DType, Rank, Reduce};
use std::fmt;

/// How operations of a lane find their counterparts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    /// By the lane's sequence number, counted by each member.
    Collective = 0,
    /// By the round that the caller gives; a rank that skips one desynchronises nobody.
    Neighbour = 1,
}

/// Identity of an operation in the job: equal on every rank that takes part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct OpId {
    /// The group's id.
    pub group: u64,
    /// Which stream of operations.
    pub lane: u32,
    /// How `seq` is counted.
    pub class: Class,
    /// Sequence number in the lane, or the caller's round.
    pub seq: u64,
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.class {
            Class::Collective => write!(f, "#{}", self.seq)?,
            Class::Neighbour => write!(f, "round {}", self.seq)?,
        }
        if self.lane != 0 {
            write!(f, " of lane {}", self.lane)
        } else {
            Ok(())
        }
    }
}

/// Identity of a message on a directed link: the operation and the plan's tag, unique per pair of ranks and operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct MsgKey {
    /// The operation.
    pub op: OpId,
    /// The message within it.
    pub tag: u32,
}

/// What is called.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum OpKind {
    /// One value for all from everybody's contribution.
    AllReduce = 0,
    /// The root's value for all.
    Broadcast = 1,
    /// Everybody's value for all, in rank order.
    AllGather = 2,
    /// Nobody leaves before everybody has come.
    Barrier = 3,
    /// Weighted average with this round's neighbours.
    Mix = 4,
}

impl OpKind {
    const ALL: [OpKind; 5] = [
        OpKind::AllReduce,
        OpKind::Broadcast,
        OpKind::AllGather,
        OpKind::Barrier,
        OpKind::Mix,
    ];

    /// The name that messages use.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::AllReduce => "all_reduce",
            OpKind::Broadcast => "broadcast",
            OpKind::AllGather => "all_gather",
            OpKind::Barrier => "barrier",
            OpKind::Mix => "mix",
        }
    }
}

/// What an operation is. Two ranks may run one together only if theirs are equal.
///
/// Bytes, little-endian: 0 group u64, 8 incarnation u32, 12 epoch u32, 16 seq u64, 24 lane u32, 28 class, 29 kind, 30 dtype, 31 reduction, 32 count u64, 40 root u32, 44 codec, 45 algorithm, 46 divisor, 47 mode, 48 priority i32, 52 slice elements u32, 56 hash of the plan tables u64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// Which operation.
    pub id: OpId,
    /// How often the group has been built with the same members and key.
    pub incarnation: u32,
    /// The membership record it belongs to.
    pub epoch: u32,
    /// What is called.
    pub kind: OpKind,
    /// Element type.
    pub dtype: DType,
    /// Combination; `Sum` where there is none.
    pub reduce: Reduce,
    /// Elements per rank.
    pub count: u64,
    /// The root's number in the group; 0 where there is none.
    pub root: Rank,
    /// What is on the wire.
    pub codec: Codec,
    /// Which plan.
    pub algorithm: Algorithm,
    /// Whose weights a mean is divided by; 0: the contributors'.
    pub divisor: u8,
    /// 0: default.
    pub mode: u8,
    /// Larger goes first.
    pub priority: i32,
    /// Elements per slice.
    pub slice: u32,
    /// Hash of whatever else the plan was chosen by.
    pub tables: u64,
}

impl Descriptor {
    /// Bytes on the wire.
    pub const BYTES: usize = 64;

    /// As sent.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut b = [0u8; Self::BYTES];
        b[0..8].copy_from_slice(&self.id.group.to_le_bytes());
        b[8..12].copy_from_slice(&self.incarnation.to_le_bytes());
        b[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        b[16..24].copy_from_slice(&self.id.seq.to_le_bytes());
        b[24..28].copy_from_slice(&self.id.lane.to_le_bytes());
        b[28] = self.id.class as u8;
        b[29] = self.kind as u8;
        b[30] = self.dtype as u8;
        b[31] = self.reduce as u8;
        b[32..40].copy_from_slice(&self.count.to_le_bytes());
        b[40..44].copy_from_slice(&self.root.0.to_le_bytes());
        b[44] = self.codec as u8;
        b[45] = self.algorithm as u8;
        b[46] = self.divisor;
        b[47] = self.mode;
        b[48..52].copy_from_slice(&self.priority.to_le_bytes());
        b[52..56].copy_from_slice(&self.slice.to_le_bytes());
        b[56..64].copy_from_slice(&self.tables.to_le_bytes());
        b
    }

    /// As received; `None` where the bytes are too few or name something unknown.
    pub fn from_bytes(b: &[u8]) -> Option<Descriptor> {
        let b: &[u8; Self::BYTES] = b.get(..Self::BYTES)?.try_into().ok()?;
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let u64_at = |i: usize| u64::from(u32_at(i)) | u64::from(u32_at(i + 4)) << 32;
        Some(Descriptor {
            id: OpId {
                group: u64_at(0),
                lane: u32_at(24),
                class: match b[28] {
                    0 => Class::Collective,
                    1 => Class::Neighbour,
                    _ => return None,
                },
                seq: u64_at(16),
            },
            incarnation: u32_at(8),
            epoch: u32_at(12),
            kind: *OpKind::ALL.get(b[29] as usize)?,
            dtype: DType::from_number(b[30])?,
            reduce: Reduce::from_number(b[31])?,
            count: u64_at(32),
            root: Rank(u32_at(40)),
            codec: Codec::from_number(b[44])?,
            algorithm: Algorithm::from_number(b[45])?,
            divisor: b[46],
            mode: b[47],
            priority: u32_at(48) as i32,
            slice: u32_at(52),
            tables: u64_at(56),
        })
    }

    /// Name and number: `all_reduce #4`.
    pub fn name(&self) -> String {
        format!("{} {}", self.kind.name(), self.id)
    }
}

/// The description that a mismatch shows: `all_reduce(sum) of 2560 f32 by ring, plain`.
impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        match self.kind {
            OpKind::Barrier => return Ok(()),
            OpKind::AllReduce => write!(f, "({})", self.reduce)?,
            OpKind::Broadcast => write!(f, "(root {})", self.root.0)?,
            OpKind::AllGather | OpKind::Mix => {}
        }
        write!(
            f,
            " of {} {} by {}, {}",
            self.count, self.dtype, self.algorithm, self.codec
        )?;
        if self.priority != 0 {
            write!(f, ", priority {}", self.priority)?;
        }
        Ok(())
    }
}

/// FNV-1a, for identities that must be the same on every rank and build: group ids, lane keys, plan tables.
pub fn stable_hash(parts: &[&[u8]]) -> u64 {
    let mut h: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        // The length keeps ["ab","c"] and ["a","bc"] apart.
        for b in (part.len() as u64).to_le_bytes().iter().chain(part.iter()) {
            h = (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    h
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Descriptor {
        Descriptor {
            id: OpId {
                group: u64::MAX - 1,
                lane: 3,
                class: Class::Neighbour,
                seq: 1 << 40,
            },
            incarnation: 2,
            epoch: 9,
            kind: OpKind::Mix,
            dtype: DType::Bf16,
            reduce: Reduce::Mean,
            count: (1 << 33) + 5,
            root: Rank(7),
            codec: Codec::Bf16,
            algorithm: Algorithm::Neighbour,
            divisor: 1,
            mode: 2,
            priority: -4,
            slice: 65536,
            tables: 0x0123_4567_89ab_cdef,
        }
    }

    #[test]
    fn bytes_round_trip() {
        assert_eq!(Descriptor::from_bytes(&sample().to_bytes()), Some(sample()));
    }

    #[test]
    fn unknown_numbers_and_short_input_are_refused() {
        for at in [28, 29, 30, 31, 44, 45] {
            let mut b = sample().to_bytes();
            b[at] = 200;
            assert_eq!(Descriptor::from_bytes(&b), None, "byte {at}");
        }
        assert_eq!(Descriptor::from_bytes(&sample().to_bytes()[..63]), None);
    }

    #[test]
    fn hashes_keep_parts_apart() {
        assert_ne!(stable_hash(&[b"ab", b"c"]), stable_hash(&[b"a", b"bc"]));
    }
}
