//! The engine's words on the wire: the head of a message, and what engines tell each other over the control plane.

use gaggle_core::{Class, Descriptor, OpId, Rank};

/// The head of every message: the hash of the operation's descriptor, the weight of the data, and on the operation's first message to a peer the descriptor itself.
///
/// Bytes: 0 hash u64, 8 weight u64, then the descriptor or nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Head {
    pub(crate) hash: u64,
    pub(crate) weight: u64,
    pub(crate) descriptor: Option<Descriptor>,
}

impl Head {
    const SHORT: usize = 16;
    const LONG: usize = Self::SHORT + Descriptor::BYTES;

    /// Writes the head into `room` and returns its length.
    pub(crate) fn write(&self, room: &mut [u8; Self::LONG]) -> usize {
        room[0..8].copy_from_slice(&self.hash.to_le_bytes());
        room[8..16].copy_from_slice(&self.weight.to_le_bytes());
        match self.descriptor {
            None => Self::SHORT,
            Some(d) => {
                room[Self::SHORT..].copy_from_slice(&d.to_bytes());
                Self::LONG
            }
        }
    }

    /// Room for the longest head.
    pub(crate) const fn room() -> [u8; Self::LONG] {
        [0; Self::LONG]
    }

    /// As received; `None` for anything else.
    pub(crate) fn read(b: &[u8]) -> Option<Head> {
        let descriptor = match b.len() {
            Self::SHORT => None,
            Self::LONG => Some(Descriptor::from_bytes(&b[Self::SHORT..])?),
            _ => return None,
        };
        Some(Head {
            hash: u64_at(b, 0)?,
            weight: u64_at(b, 8)?,
            descriptor,
        })
    }
}

const _: () = assert!(Head::LONG <= gaggle_core::HEAD_MAX);

fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?))
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

/// How far a rank is with an operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Progress {
    /// It has not been called there yet; these ranks of the job are what earlier operations there wait for.
    NotStarted(Vec<Rank>),
    /// It is in flight there, as this.
    Running(Descriptor),
    /// It is over there; it was this, where that is still known.
    Over(Option<Descriptor>),
}

/// Why an operation failed somewhere, so that it fails for the same cause everywhere. Ranks are the job's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Blame {
    Timeout(Vec<Rank>),
    Lost(Rank, String),
    Left(Rank),
    /// These ranks called something else; every version, with the ranks that called it.
    Deviates(Vec<Rank>, Vec<(Vec<Rank>, String)>),
    /// Somebody cancelled it: who, and why.
    Cancelled(Rank, String),
    /// A function of the user's panicked: where, which, and what it said.
    Panicked(Rank, String, String),
    Other(String),
}

/// What the members of a group that is being rebuilt tell each other. Ranks are the group's; ballots are numbered uniquely.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ballot {
    /// The sender has called for it.
    Join,
    /// It has given up.
    Withdraw,
    /// The sender wants to propose.
    Prepare(u64),
    /// The sender will take no earlier ballot, and has accepted this one so far.
    Promise(u64, Option<(u64, Vec<Rank>)>),
    /// Who is to go on.
    Accept(u64, Vec<Rank>),
    /// The sender has accepted that.
    Accepted(u64),
    /// Who goes on.
    Decided(Vec<Rank>),
}

/// What engines tell each other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Word {
    /// How far the sender is with an operation.
    Describe(OpId, Progress),
    /// Everybody is asked to describe how far they are.
    Query(OpId),
    /// The operation has failed at the sender's.
    ///
    /// In a neighbour round, with the ranks to which the sender had not sent all that is theirs.
    Failed(OpId, Vec<Rank>, Blame),
    /// The group is aborted.
    Abort(u64, String),
    /// The group is being rebuilt.
    Rebuild(u64, Ballot),
}

/// Longest reason that is passed on, so that a word fits into a control message.
const TEXT_MAX: usize = 1024;
/// Longest description of one version of several.
const VERSION_MAX: usize = 240;

impl Word {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(128);
        match self {
            Word::Describe(op, progress) => {
                b.push(1);
                put_op(&mut b, op);
                let (state, descriptor) = match progress {
                    Progress::NotStarted(_) => (0, None),
                    Progress::Running(d) => (1, Some(d)),
                    Progress::Over(d) => (2, d.as_ref()),
                };
                b.push(state);
                if let Some(d) = descriptor {
                    b.extend_from_slice(&d.to_bytes());
                }
                if let Progress::NotStarted(held_up_by) = progress {
                    put_ranks(&mut b, held_up_by);
                }
            }
            Word::Query(op) => {
                b.push(2);
                put_op(&mut b, op);
            }
            Word::Failed(op, unserved, blame) => {
                b.push(3);
                put_op(&mut b, op);
                put_ranks(&mut b, unserved);
                match blame {
                    Blame::Timeout(ranks) => {
                        b.push(0);
                        // More culprits than fit are cut: the first ones are enough to go on.
                        for r in ranks.iter().take(512) {
                            b.extend_from_slice(&r.0.to_le_bytes());
                        }
                    }
                    Blame::Lost(rank, why) => {
                        b.push(1);
                        b.extend_from_slice(&rank.0.to_le_bytes());
                        put_text(&mut b, why);
                    }
                    Blame::Left(rank) => {
                        b.push(2);
                        b.extend_from_slice(&rank.0.to_le_bytes());
                    }
                    Blame::Other(what) => {
                        b.push(3);
                        put_text(&mut b, what);
                    }
                    Blame::Deviates(ranks, versions) => {
                        b.push(4);
                        put_ranks(&mut b, ranks);
                        // A few versions are enough to go on.
                        let versions = &versions[..versions.len().min(4)];
                        b.push(versions.len() as u8);
                        for (ranks, what) in versions {
                            put_ranks(&mut b, ranks);
                            let what = &what.as_bytes()[..what.len().min(VERSION_MAX)];
                            b.extend_from_slice(&(what.len() as u16).to_le_bytes());
                            b.extend_from_slice(what);
                        }
                    }
                    Blame::Cancelled(rank, reason) => {
                        b.push(5);
                        b.extend_from_slice(&rank.0.to_le_bytes());
                        put_text(&mut b, reason);
                    }
                    Blame::Panicked(rank, what, panic) => {
                        b.push(6);
                        b.extend_from_slice(&rank.0.to_le_bytes());
                        let what = &what.as_bytes()[..what.len().min(255)];
                        b.push(what.len() as u8);
                        b.extend_from_slice(what);
                        put_text(&mut b, panic);
                    }
                }
            }
            Word::Abort(group, reason) => {
                b.push(4);
                b.extend_from_slice(&group.to_le_bytes());
                put_text(&mut b, reason);
            }
            Word::Rebuild(group, ballot) => {
                b.push(5);
                b.extend_from_slice(&group.to_le_bytes());
                let (kind, number, members) = match ballot {
                    Ballot::Join => (0, None, None),
                    Ballot::Withdraw => (1, None, None),
                    Ballot::Prepare(n) => (2, Some(n), None),
                    Ballot::Promise(n, None) => (3, Some(n), None),
                    Ballot::Promise(n, Some((accepted, members))) => {
                        (4, Some(n), Some((*accepted, members)))
                    }
                    Ballot::Accept(n, members) => (5, Some(n), Some((0, members))),
                    Ballot::Accepted(n) => (6, Some(n), None),
                    Ballot::Decided(members) => (7, None, Some((0, members))),
                };
                b.push(kind);
                b.extend_from_slice(&number.copied().unwrap_or(0).to_le_bytes());
                if let Some((accepted, members)) = members {
                    b.extend_from_slice(&accepted.to_le_bytes());
                    put_set(&mut b, members);
                }
            }
        }
        b
    }

    /// As received; `None` for anything else.
    pub(crate) fn from_bytes(b: &[u8]) -> Option<Word> {
        let (&kind, b) = b.split_first()?;
        if kind == 4 {
            return Some(Word::Abort(u64_at(b, 0)?, text(b.get(8..)?)));
        }
        if kind == 5 {
            let (group, kind, number) = (u64_at(b, 0)?, *b.get(8)?, u64_at(b, 9)?);
            let rest = b.get(17..)?;
            let ballot = match (kind, rest) {
                (0, []) => Ballot::Join,
                (1, []) => Ballot::Withdraw,
                (2, []) => Ballot::Prepare(number),
                (3, []) => Ballot::Promise(number, None),
                (4, _) => {
                    let accepted = (u64_at(rest, 0)?, read_set(rest.get(8..)?));
                    Ballot::Promise(number, Some(accepted))
                }
                (5, _) => Ballot::Accept(number, read_set(rest.get(8..)?)),
                (6, []) => Ballot::Accepted(number),
                (7, _) => Ballot::Decided(read_set(rest.get(8..)?)),
                _ => return None,
            };
            return Some(Word::Rebuild(group, ballot));
        }
        let (op, rest) = read_op(b)?;
        match kind {
            1 => {
                let (&state, rest) = rest.split_first()?;
                let progress = match (state, rest.len()) {
                    (0, _) => match read_ranks(rest)? {
                        (ranks, []) => Progress::NotStarted(ranks),
                        _ => return None,
                    },
                    (1, Descriptor::BYTES) => Progress::Running(Descriptor::from_bytes(rest)?),
                    (2, 0) => Progress::Over(None),
                    (2, Descriptor::BYTES) => Progress::Over(Some(Descriptor::from_bytes(rest)?)),
                    _ => return None,
                };
                Some(Word::Describe(op, progress))
            }
            2 => rest.is_empty().then_some(Word::Query(op)),
            3 => {
                let (unserved, rest) = read_ranks(rest)?;
                let (&kind, rest) = rest.split_first()?;
                let blame = match kind {
                    0 if rest.len() % 4 == 0 => Blame::Timeout(
                        (0..rest.len() / 4)
                            .filter_map(|i| u32_at(rest, i * 4))
                            .map(Rank)
                            .collect(),
                    ),
                    1 => Blame::Lost(Rank(u32_at(rest, 0)?), text(rest.get(4..)?)),
                    2 => Blame::Left(Rank(u32_at(rest, 0)?)),
                    3 => Blame::Other(text(rest)),
                    4 => {
                        let (ranks, rest) = read_ranks(rest)?;
                        Blame::Deviates(ranks, read_versions(rest)?)
                    }
                    5 => Blame::Cancelled(Rank(u32_at(rest, 0)?), text(rest.get(4..)?)),
                    6 => {
                        let by = Rank(u32_at(rest, 0)?);
                        let n = usize::from(*rest.get(4)?);
                        let what = text(rest.get(5..5 + n)?);
                        Blame::Panicked(by, what, text(rest.get(5 + n..)?))
                    }
                    _ => return None,
                };
                Some(Word::Failed(op, unserved, blame))
            }
            _ => None,
        }
    }
}

fn put_op(b: &mut Vec<u8>, op: &OpId) {
    b.extend_from_slice(&op.group.to_le_bytes());
    b.extend_from_slice(&op.lane.to_le_bytes());
    b.push(op.class as u8);
    b.extend_from_slice(&op.seq.to_le_bytes());
}

fn read_op(b: &[u8]) -> Option<(OpId, &[u8])> {
    let op = OpId {
        group: u64_at(b, 0)?,
        lane: u32_at(b, 8)?,
        class: Class::from_number(*b.get(12)?)?,
        seq: u64_at(b, 13)?,
    };
    Some((op, b.get(21..)?))
}

/// At most 255: more culprits than that need no names.
fn put_ranks(b: &mut Vec<u8>, ranks: &[Rank]) {
    let ranks = &ranks[..ranks.len().min(255)];
    b.push(ranks.len() as u8);
    for r in ranks {
        b.extend_from_slice(&r.0.to_le_bytes());
    }
}

fn read_ranks(b: &[u8]) -> Option<(Vec<Rank>, &[u8])> {
    let (&n, rest) = b.split_first()?;
    let n = usize::from(n);
    let ranks = (0..n).map(|i| u32_at(rest, i * 4).map(Rank));
    Some((ranks.collect::<Option<_>>()?, rest.get(n * 4..)?))
}

fn read_versions(b: &[u8]) -> Option<Vec<(Vec<Rank>, String)>> {
    let (&n, mut rest) = b.split_first()?;
    let mut versions = vec![];
    for _ in 0..n {
        let (ranks, after) = read_ranks(rest)?;
        let len = usize::from(u16::from_le_bytes(after.get(..2)?.try_into().ok()?));
        versions.push((ranks, text(after.get(2..2 + len)?)));
        rest = &after[2 + len..];
    }
    rest.is_empty().then_some(versions)
}

/// One bit per rank: 30,000 ranks fit into a word.
fn put_set(b: &mut Vec<u8>, ranks: &[Rank]) {
    let at = b.len();
    let bytes = ranks.iter().map(|r| r.idx() / 8 + 1).max().unwrap_or(0);
    b.resize(at + bytes, 0);
    for r in ranks {
        b[at + r.idx() / 8] |= 1 << (r.idx() % 8);
    }
}

fn read_set(b: &[u8]) -> Vec<Rank> {
    let bits = (0..b.len() * 8).filter(|i| b[i / 8] & (1 << (i % 8)) != 0);
    bits.map(|i| Rank(i as u32)).collect()
}

fn put_text(b: &mut Vec<u8>, text: &str) {
    b.extend_from_slice(&text.as_bytes()[..text.len().min(TEXT_MAX)]);
}

fn text(b: &[u8]) -> String {
    String::from_utf8_lossy(&b[..b.len().min(TEXT_MAX)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle_core::{Algorithm, Codec, DType, OpKind, Reduce};
    use proptest::prelude::*;

    fn op() -> OpId {
        OpId {
            group: 77,
            lane: 3,
            class: Class::Neighbour,
            seq: 1 << 50,
        }
    }

    fn descriptor() -> Descriptor {
        Descriptor {
            id: op(),
            incarnation: 1,
            epoch: 2,
            kind: OpKind::Mix,
            dtype: DType::F32,
            reduce: Reduce::Sum,
            count: 5,
            root: Rank(0),
            codec: Codec::None,
            algorithm: Algorithm::Neighbour,
            divisor: gaggle_core::Divisor::Contributors,
            mode: gaggle_core::ModeBits::default(),
            priority: 0,
            slice: 10,
            tables: 11,
        }
    }

    #[test]
    fn words_round_trip() {
        for word in [
            Word::Describe(op(), Progress::NotStarted(vec![])),
            Word::Describe(op(), Progress::NotStarted(vec![Rank(3), Rank(4)])),
            Word::Describe(op(), Progress::Running(descriptor())),
            Word::Describe(op(), Progress::Over(None)),
            Word::Describe(op(), Progress::Over(Some(descriptor()))),
            Word::Query(op()),
            Word::Failed(op(), vec![], Blame::Timeout(vec![Rank(1), Rank(70_000)])),
            Word::Failed(op(), vec![], Blame::Lost(Rank(4), "closed".into())),
            Word::Failed(op(), vec![], Blame::Left(Rank(4))),
            Word::Failed(op(), vec![], Blame::Other("x".into())),
            Word::Failed(op(), vec![], Blame::Cancelled(Rank(3), "enough".into())),
            Word::Failed(
                op(),
                vec![],
                Blame::Panicked(Rank(3), "reduction 'f'".into(), "boom".into()),
            ),
            Word::Failed(
                op(),
                vec![Rank(7)],
                Blame::Deviates(
                    vec![Rank(2), Rank(3)],
                    vec![
                        (vec![Rank(2), Rank(3)], "barrier".into()),
                        (vec![Rank(1)], "mix".into()),
                    ],
                ),
            ),
            Word::Abort(9, "stop".into()),
            Word::Rebuild(9, Ballot::Join),
            Word::Rebuild(9, Ballot::Withdraw),
            Word::Rebuild(9, Ballot::Prepare(7 << 32)),
            Word::Rebuild(9, Ballot::Promise(7, None)),
            Word::Rebuild(9, Ballot::Promise(7, Some((6, vec![Rank(0), Rank(9)])))),
            Word::Rebuild(9, Ballot::Accept(7, vec![Rank(1), Rank(2), Rank(29_999)])),
            Word::Rebuild(9, Ballot::Accepted(7)),
            Word::Rebuild(9, Ballot::Decided(vec![Rank(8)])),
        ] {
            assert_eq!(Word::from_bytes(&word.to_bytes()), Some(word));
        }
    }

    #[test]
    fn heads_round_trip() {
        for head in [
            Head {
                hash: 1,
                weight: 2,
                descriptor: None,
            },
            Head {
                hash: 3,
                weight: 4,
                descriptor: Some(descriptor()),
            },
        ] {
            let mut room = Head::room();
            let n = head.write(&mut room);
            assert_eq!(Head::read(&room[..n]), Some(head));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_word_or_nothing(b in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Word::from_bytes(&b);
            let _ = Head::read(&b);
        }
    }
}
