//! What an operation is, in 64 bytes that travel with its first message to each peer.

use crate::{Algorithm, Codec, DType, Divisor, Mode, Rank, Reduce};
use std::fmt;

/// How operations of a lane find their counterparts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    /// By the lane's sequence number, counted by each member.
    Collective = 0,
    /// By the round that the caller gives; a rank that skips one desynchronises nobody.
    Neighbour = 1,
    /// The n-th of a tag from one rank to another: `group` is [`OpId::link_group`], `lane` the tag, `seq` is n.
    Tagged = 2,
    /// The data of a collective whose counts were discovered by the operation with the same number.
    CollectiveData = 3,
    /// The data of a neighbour round whose counts were discovered by the same round.
    NeighbourData = 4,
}

impl Class {
    /// All of them, in the order of their numbers.
    pub const ALL: [Class; 5] = [
        Class::Collective,
        Class::Neighbour,
        Class::Tagged,
        Class::CollectiveData,
        Class::NeighbourData,
    ];

    /// The class with number `n`, as sent.
    pub fn from_number(n: u8) -> Option<Class> {
        Self::ALL.get(n as usize).copied()
    }

    /// Whether every member of the group takes part, so that a failure anywhere is one everywhere.
    pub const fn is_collective(self) -> bool {
        matches!(self, Class::Collective | Class::CollectiveData)
    }
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

impl OpId {
    /// What stands for the group in the identity of messages with tags from one member to another.
    pub fn link_group(group: u64, from: Rank, to: Rank) -> u64 {
        stable_hash(&[
            b"tagged",
            &group.to_le_bytes(),
            &from.0.to_le_bytes(),
            &to.0.to_le_bytes(),
        ])
    }
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.class {
            Class::Collective => write!(f, "#{}", self.seq)?,
            Class::Neighbour => write!(f, "round {}", self.seq)?,
            Class::Tagged => return write!(f, "#{} of tag {}", self.seq, self.lane),
            Class::CollectiveData => write!(f, "#{} (data)", self.seq)?,
            Class::NeighbourData => write!(f, "round {} (data)", self.seq)?,
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
    /// One value for the root from everybody's contribution.
    Reduce = 5,
    /// Everybody's value for the root, in rank order.
    Gather = 6,
    /// The root's values, one part for each.
    Scatter = 7,
    /// One part of the combined value for each.
    ReduceScatter = 8,
    /// One part from each for each.
    AllToAll = 9,
    /// This round's neighbours' values, side by side.
    NeighbourGather = 10,
    /// Weighted average between machines, in which all ranks of a machine take part.
    HierarchicalMix = 11,
    /// One message with a tag, the sender's side and the receiver's.
    Message = 12,
}

impl OpKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [OpKind; 13] = [
        OpKind::AllReduce,
        OpKind::Broadcast,
        OpKind::AllGather,
        OpKind::Barrier,
        OpKind::Mix,
        OpKind::Reduce,
        OpKind::Gather,
        OpKind::Scatter,
        OpKind::ReduceScatter,
        OpKind::AllToAll,
        OpKind::NeighbourGather,
        OpKind::HierarchicalMix,
        OpKind::Message,
    ];

    /// The name that messages use.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::AllReduce => "all_reduce",
            OpKind::Broadcast => "broadcast",
            OpKind::AllGather => "all_gather",
            OpKind::Barrier => "barrier",
            OpKind::Mix => "mix",
            OpKind::Reduce => "reduce",
            OpKind::Gather => "gather",
            OpKind::Scatter => "scatter",
            OpKind::ReduceScatter => "reduce_scatter",
            OpKind::AllToAll => "all_to_all",
            OpKind::NeighbourGather => "neighbour_all_gather",
            OpKind::HierarchicalMix => "hierarchical_mix",
            OpKind::Message => "message",
        }
    }

    /// The kind with that name, hyphens or underscores: `all_reduce`, `all-reduce`.
    pub fn from_name(name: &str) -> Option<OpKind> {
        let name = name.replace('-', "_");
        Self::ALL.into_iter().find(|k| k.name() == name)
    }

    /// Whether contributions are combined.
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter
        )
    }

    /// The type of a plan's scratch for elements of `dtype`: the accumulator's where contributions are combined, and their own where they are only moved, so that every bit pattern comes through.
    pub const fn scratch_type(self, dtype: DType) -> DType {
        match self {
            OpKind::AllReduce
            | OpKind::Reduce
            | OpKind::ReduceScatter
            | OpKind::Mix
            | OpKind::HierarchicalMix => dtype.accumulator(),
            _ => dtype,
        }
    }

    /// Whether one rank is the root.
    pub const fn is_rooted(self) -> bool {
        matches!(
            self,
            OpKind::Broadcast | OpKind::Reduce | OpKind::Gather | OpKind::Scatter
        )
    }
}

/// The mode byte of a descriptor: bits 0–1 the [`Mode`], bit 2 error feedback, bit 3 counts that differ between ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ModeBits {
    /// What is promised about the bits.
    pub mode: Mode,
    /// Whether what the codec loses is kept and sent next time.
    pub feedback: bool,
    /// Whether ranks give different counts.
    pub counted: bool,
}

impl ModeBits {
    fn to_byte(self) -> u8 {
        self.mode as u8 | u8::from(self.feedback) << 2 | u8::from(self.counted) << 3
    }

    fn from_byte(b: u8) -> Option<ModeBits> {
        if b >= 16 {
            return None;
        }
        Some(ModeBits {
            mode: Mode::from_number(b & 3)?,
            feedback: b & 4 != 0,
            counted: b & 8 != 0,
        })
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
    /// Elements per rank; where the ranks' counts differ, the hash of all of them ([`Counts::hash`](crate::Counts::hash)), or 0 where no rank knows all.
    pub count: u64,
    /// The root's number in the group, of a message the receiver's; 0 where there is none.
    pub root: Rank,
    /// What is on the wire.
    pub codec: Codec,
    /// Which plan.
    pub algorithm: Algorithm,
    /// What a mean is divided by.
    pub divisor: Divisor,
    /// What is promised about the bits, and whether error feedback and a count of its own per rank are in use.
    pub mode: ModeBits,
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
        b[46] = self.divisor as u8;
        b[47] = self.mode.to_byte();
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
                class: Class::from_number(b[28])?,
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
            divisor: Divisor::from_number(b[46])?,
            mode: ModeBits::from_byte(b[47])?,
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
            OpKind::Reduce => write!(f, "({} to {})", self.reduce, self.root.0)?,
            OpKind::Message => write!(f, "(to {})", self.root.0)?,
            kind if kind.reduces() => write!(f, "({})", self.reduce)?,
            kind if kind.is_rooted() => write!(f, "(root {})", self.root.0)?,
            _ => {}
        }
        if self.mode.counted && self.count == 0 {
            write!(f, " of {}", self.dtype)?;
        } else if self.mode.counted {
            write!(f, " of {} by counts {:016x}", self.dtype, self.count)?;
        } else {
            write!(f, " of {} {}", self.count, self.dtype)?;
        }
        write!(f, " by {}, {}", self.algorithm, self.codec)?;
        if self.mode.mode != Mode::Default {
            write!(f, ", {}", self.mode.mode)?;
        }
        if self.mode.feedback {
            f.write_str(", with error feedback")?;
        }
        if self.divisor != Divisor::Contributors {
            write!(f, ", divided by {}", self.divisor)?;
        }
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
            divisor: Divisor::InitialWorld,
            mode: ModeBits {
                mode: Mode::Exact,
                feedback: true,
                counted: false,
            },
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
        for at in [28, 29, 30, 31, 44, 45, 46, 47] {
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
