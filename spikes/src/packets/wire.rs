//! The packets, as bytes: little-endian, the kind first.

use gaggle_core::{Class, HEAD_MAX, MsgKey, OpId};

/// Longest packet.
pub const MAX: usize = 16 << 10;

/// The beginning of a message.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Open {
    pub(super) msg: u64,
    pub(super) key: MsgKey,
    pub(super) bytes: u64,
    /// Whether its bytes are in the packet.
    pub(super) whole: bool,
    pub(super) head: Vec<u8>,
}

/// A packet, without its payload.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Packet {
    Open(Open),
    Data { msg: u64 },
    Grant { msg: u64, upto: u64 },
    Abort { msg: u64 },
    Refuse { msg: u64 },
    Credit { bytes: u64 },
    Bye,
}

impl Packet {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(64 + HEAD_MAX);
        match self {
            Packet::Open(open) => {
                b.push(0);
                b.extend(open.msg.to_le_bytes());
                let op = open.key.op;
                b.extend(op.group.to_le_bytes());
                b.extend(op.lane.to_le_bytes());
                b.push(op.class as u8);
                b.extend(op.seq.to_le_bytes());
                b.extend(open.key.tag.to_le_bytes());
                b.extend(open.bytes.to_le_bytes());
                b.push(open.whole.into());
                b.push(open.head.len() as u8);
                b.extend(&open.head);
            }
            Packet::Data { msg } => {
                b.push(1);
                b.extend(msg.to_le_bytes());
            }
            Packet::Grant { msg, upto } => {
                b.push(2);
                b.extend(msg.to_le_bytes());
                b.extend(upto.to_le_bytes());
            }
            Packet::Abort { msg } => {
                b.push(3);
                b.extend(msg.to_le_bytes());
            }
            Packet::Refuse { msg } => {
                b.push(4);
                b.extend(msg.to_le_bytes());
            }
            Packet::Credit { bytes } => {
                b.push(5);
                b.extend(bytes.to_le_bytes());
            }
            Packet::Bye => b.push(6),
        }
        b
    }

    /// A packet and its payload; `None` for what is none.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Packet, &[u8])> {
        let mut r = Reader(bytes);
        let packet = match r.u8()? {
            0 => {
                let msg = r.u64()?;
                let (group, lane) = (r.u64()?, r.u32()?);
                let class = *Class::ALL.get(r.u8()? as usize)?;
                let (seq, tag) = (r.u64()?, r.u32()?);
                let (bytes, whole) = (r.u64()?, r.u8()? == 1);
                let n = r.u8()? as usize;
                let head = r.take(n).filter(|_| n <= HEAD_MAX)?.to_vec();
                let op = OpId {
                    group,
                    lane,
                    class,
                    seq,
                };
                let key = MsgKey { op, tag };
                let fits = r.0.len() as u64 == if whole { bytes } else { 0 };
                fits.then_some(Packet::Open(Open {
                    msg,
                    key,
                    bytes,
                    whole,
                    head,
                }))?
            }
            1 => Packet::Data { msg: r.u64()? },
            2 => Packet::Grant {
                msg: r.u64()?,
                upto: r.u64()?,
            },
            3 => Packet::Abort { msg: r.u64()? },
            4 => Packet::Refuse { msg: r.u64()? },
            5 => Packet::Credit { bytes: r.u64()? },
            6 => Packet::Bye,
            _ => return None,
        };
        let has_payload = matches!(packet, Packet::Open(_) | Packet::Data { .. });
        (has_payload || r.0.is_empty()).then_some((packet, r.0))
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (part, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(part)
    }
    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_out_as_they_went_in_and_cut_ones_do_not() {
        let key = MsgKey {
            op: OpId {
                group: 1,
                lane: 2,
                class: Class::Tagged,
                seq: 3,
            },
            tag: 4,
        };
        let open = Open {
            msg: 5,
            key,
            bytes: 0,
            whole: true,
            head: vec![9; HEAD_MAX],
        };
        for packet in [
            Packet::Open(open),
            Packet::Data { msg: 6 },
            Packet::Grant { msg: 7, upto: 8 },
            Packet::Abort { msg: 9 },
            Packet::Refuse { msg: 10 },
            Packet::Credit { bytes: 11 },
            Packet::Bye,
        ] {
            let bytes = packet.to_bytes();
            assert_eq!(Packet::parse(&bytes), Some((packet, &[][..])));
            for n in 0..bytes.len() {
                assert_eq!(Packet::parse(&bytes[..n]), None);
            }
        }
        assert_eq!(Packet::parse(&[6, 0]), None);
        assert_eq!(Packet::parse(&[7]), None);
    }
}
