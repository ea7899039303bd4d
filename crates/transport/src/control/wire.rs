//! Control frames as bytes: a length, a kind, fields; little endian.

use crate::store::wire::Cursor;
use gaggle_core::{Rank, control::CONTROL_MAX};

/// Longest frame after its length.
pub(super) const FRAME_MAX: usize = 1 + 4 + 8 + CONTROL_MAX;
/// Longest reason in bytes; longer ones are cut.
const WHY_MAX: usize = 512;

/// What one rank says to a neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// The `seq`-th broadcast of `origin`, counted from 1.
    Message {
        origin: Rank,
        seq: u64,
        payload: &'a [u8],
    },
    Lost {
        rank: Rank,
        why: String,
    },
    Left {
        rank: Rank,
    },
}

/// Cut so that it fits a frame.
pub(super) fn short(why: &str) -> &str {
    let mut end = why.len().min(WHY_MAX);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    &why[..end]
}

impl<'a> Frame<'a> {
    /// With its length in front. The payload has at most [`CONTROL_MAX`] bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        match self {
            Frame::Message {
                origin,
                seq,
                payload,
            } => {
                out.push(1);
                out.extend(origin.0.to_le_bytes());
                out.extend(seq.to_le_bytes());
                out.extend(*payload);
            }
            Frame::Lost { rank, why } => {
                out.push(2);
                out.extend(rank.0.to_le_bytes());
                out.extend(short(why).as_bytes());
            }
            Frame::Left { rank } => {
                out.push(3);
                out.extend(rank.0.to_le_bytes());
            }
        }
        let n = u32::try_from(out.len() - 4).expect("a frame is shorter than FRAME_MAX");
        out[..4].copy_from_slice(&n.to_le_bytes());
        out
    }

    /// Reads a frame without its length; ranks must be below `world`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn decode(body: &'a [u8], world: u32) -> Result<Frame<'a>, &'static str> {
        let mut c = Cursor(body);
        let kind = c.u8().ok_or("an empty frame")?;
        let rank = c.u32().ok_or("a frame without a rank")?;
        if rank >= world {
            return Err("a frame about a rank outside the world");
        }
        let rank = Rank(rank);
        match kind {
            1 => {
                let seq = c.u64().ok_or("a message without a number")?;
                if c.0.len() > CONTROL_MAX {
                    return Err("a message that is too long");
                }
                Ok(Frame::Message {
                    origin: rank,
                    seq,
                    payload: c.0,
                })
            }
            2 => {
                let why = std::str::from_utf8(c.0).map_err(|_| "a reason that is not text")?;
                Ok(Frame::Lost {
                    rank,
                    why: short(why).to_owned(),
                })
            }
            3 if c.0.is_empty() => Ok(Frame::Left { rank }),
            3 => Err("a goodbye with something behind it"),
            _ => Err("a frame of unknown kind"),
        }
    }
}

/// Takes one frame off `buf` and returns it without its length; `Ok(None)`: more bytes are needed.
///
/// # Errors
/// The announced length is 0 or beyond the limit.
pub(super) fn split(buf: &[u8]) -> Result<Option<(&[u8], usize)>, &'static str> {
    let mut c = Cursor(buf);
    let Some(n) = c.u32() else { return Ok(None) };
    let n = n as usize;
    if n > FRAME_MAX {
        return Err("a frame that is too long");
    }
    Ok(c.bytes(n).map(|body| (body, 4 + n)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, RngCore, SeedableRng};

    #[test]
    fn frames_round_trip() {
        let payload = vec![5; CONTROL_MAX];
        for frame in [
            Frame::Message {
                origin: Rank(3),
                seq: u64::MAX,
                payload: &payload,
            },
            Frame::Message {
                origin: Rank(0),
                seq: 1,
                payload: &[],
            },
            Frame::Lost {
                rank: Rank(1),
                why: "é".into(),
            },
            Frame::Left { rank: Rank(2) },
        ] {
            let bytes = frame.encode();
            let (body, used) = split(&bytes).unwrap().unwrap();
            assert_eq!(used, bytes.len());
            assert_eq!(Frame::decode(body, 4), Ok(frame));
        }
        assert!(Frame::decode(&Frame::Left { rank: Rank(4) }.encode()[4..], 4).is_err());
    }

    #[test]
    fn long_reasons_are_cut_between_characters() {
        let why = "é".repeat(WHY_MAX);
        let bytes = Frame::Lost { rank: Rank(0), why }.encode();
        assert!(Frame::decode(&bytes[4..], 1).is_ok());
        assert!(bytes.len() <= 4 + 5 + WHY_MAX);
    }

    #[test]
    fn no_bytes_make_the_parser_panic() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(2);
        for round in 0..50_000_u32 {
            let mut bytes = vec![0; rng.random_range(0..64)];
            rng.fill_bytes(&mut bytes);
            if round % 2 == 0 && bytes.len() >= 5 {
                let n = u32::try_from(bytes.len() - 4).unwrap();
                bytes[..4].copy_from_slice(&n.to_le_bytes());
                bytes[4] %= 5;
            }
            if let Ok(Some((body, used))) = split(&bytes) {
                assert!(used <= bytes.len());
                let _ = Frame::decode(body, 8);
            }
        }
    }
}
