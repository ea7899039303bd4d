//! The store's messages as bytes: a length, a request number, a kind, fields; little endian.

use super::{KEY_MAX, VALUE_MAX};
use std::time::Duration;

/// Longest frame after its length: number, kind, key, two values and their lengths.
pub(crate) const FRAME_MAX: usize = 8 + 1 + 4 + KEY_MAX + 1 + 2 * (4 + VALUE_MAX) + 16;
/// Longest wait that is asked of a server; longer ones are cut.
const WAIT_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Longest text of a failure.
const TEXT_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Set {
        key: String,
        value: Vec<u8>,
    },
    Get {
        key: String,
        wait: Duration,
    },
    Add {
        key: String,
        delta: i64,
    },
    CompareAndSet {
        key: String,
        expected: Option<Vec<u8>>,
        new: Vec<u8>,
    },
    Barrier {
        name: String,
        n: u32,
        wait: Duration,
    },
    Bye,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Value(Vec<u8>),
    Number(i64),
    Failed(String),
}

/// Reads fields off the front; `None` once something is missing.
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(crate) fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn blob(&mut self, max: usize) -> Option<&'a [u8]> {
        let n = usize::try_from(self.u32()?).ok().filter(|n| *n <= max)?;
        self.bytes(n)
    }

    fn text(&mut self, max: usize) -> Option<String> {
        String::from_utf8(self.blob(max)?.to_vec()).ok()
    }

    fn wait(&mut self) -> Option<Duration> {
        Some(Duration::from_millis(self.u64()?).min(WAIT_MAX))
    }

    pub(crate) fn end<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

fn put_blob(out: &mut Vec<u8>, bytes: &[u8]) {
    let n = u32::try_from(bytes.len()).expect("keys and values were checked to be short");
    out.extend(n.to_le_bytes());
    out.extend(bytes);
}

fn put_wait(out: &mut Vec<u8>, wait: Duration) {
    // Rounded up, so that the server does not say "too late" before the caller's own clock does.
    let ms = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    out.extend(ms.to_le_bytes());
}

fn frame(id: u64, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.extend(id.to_le_bytes());
    body(&mut out);
    let n = u32::try_from(out.len() - 4).expect("a frame is shorter than FRAME_MAX");
    out[..4].copy_from_slice(&n.to_le_bytes());
    out
}

/// Takes one frame off `buf` and returns it without its length; `Ok(None)`: more bytes are needed.
///
/// # Errors
/// The length that was announced, when it is beyond the limit.
pub(crate) fn split(buf: &[u8]) -> Result<Option<(&[u8], usize)>, usize> {
    let mut c = Cursor(buf);
    let Some(n) = c.u32() else { return Ok(None) };
    let n = n as usize;
    if n > FRAME_MAX {
        return Err(n);
    }
    Ok(c.bytes(n).map(|body| (body, 4 + n)))
}

impl Request {
    pub(crate) fn encode(&self, id: u64) -> Vec<u8> {
        frame(id, |out| match self {
            Request::Set { key, value } => {
                out.push(1);
                put_blob(out, key.as_bytes());
                put_blob(out, value);
            }
            Request::Get { key, wait } => {
                out.push(2);
                put_blob(out, key.as_bytes());
                put_wait(out, *wait);
            }
            Request::Add { key, delta } => {
                out.push(3);
                put_blob(out, key.as_bytes());
                out.extend(delta.to_le_bytes());
            }
            Request::CompareAndSet { key, expected, new } => {
                out.push(4);
                put_blob(out, key.as_bytes());
                out.push(u8::from(expected.is_some()));
                put_blob(out, expected.as_deref().unwrap_or_default());
                put_blob(out, new);
            }
            Request::Barrier { name, n, wait } => {
                out.push(5);
                put_blob(out, name.as_bytes());
                out.extend(n.to_le_bytes());
                put_wait(out, *wait);
            }
            Request::Bye => out.push(6),
        })
    }

    pub(crate) fn decode(body: &[u8]) -> Option<(u64, Request)> {
        let mut c = Cursor(body);
        let id = c.u64()?;
        let request = match c.u8()? {
            1 => Request::Set {
                key: c.text(KEY_MAX)?,
                value: c.blob(VALUE_MAX)?.to_vec(),
            },
            2 => Request::Get {
                key: c.text(KEY_MAX)?,
                wait: c.wait()?,
            },
            3 => Request::Add {
                key: c.text(KEY_MAX)?,
                delta: i64::from_le_bytes(c.array()?),
            },
            4 => {
                let key = c.text(KEY_MAX)?;
                let some = c.u8()? != 0;
                let expected = c.blob(VALUE_MAX)?.to_vec();
                Request::CompareAndSet {
                    key,
                    expected: some.then_some(expected),
                    new: c.blob(VALUE_MAX)?.to_vec(),
                }
            }
            5 => Request::Barrier {
                name: c.text(KEY_MAX)?,
                n: c.u32()?,
                wait: c.wait()?,
            },
            6 => Request::Bye,
            _ => return None,
        };
        c.end((id, request))
    }
}

impl Reply {
    pub(crate) fn encode(&self, id: u64) -> Vec<u8> {
        frame(id, |out| match self {
            Reply::Value(v) => {
                out.push(1);
                put_blob(out, v);
            }
            Reply::Number(n) => {
                out.push(2);
                out.extend(n.to_le_bytes());
            }
            Reply::Failed(what) => {
                out.push(3);
                let mut end = what.len().min(TEXT_MAX);
                while !what.is_char_boundary(end) {
                    end -= 1;
                }
                put_blob(out, &what.as_bytes()[..end]);
            }
        })
    }

    pub(crate) fn decode(body: &[u8]) -> Option<(u64, Reply)> {
        let mut c = Cursor(body);
        let id = c.u64()?;
        let reply = match c.u8()? {
            1 => Reply::Value(c.blob(VALUE_MAX)?.to_vec()),
            2 => Reply::Number(i64::from_le_bytes(c.array()?)),
            3 => Reply::Failed(c.text(TEXT_MAX)?),
            _ => return None,
        };
        c.end((id, reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, RngCore, SeedableRng};

    fn samples() -> Vec<Request> {
        let wait = Duration::from_millis(1234);
        vec![
            Request::Set {
                key: "a".into(),
                value: vec![7; 300],
            },
            Request::Get {
                key: String::new(),
                wait,
            },
            Request::Add {
                key: "é".into(),
                delta: -5,
            },
            Request::CompareAndSet {
                key: "k".into(),
                expected: None,
                new: vec![],
            },
            Request::CompareAndSet {
                key: "k".into(),
                expected: Some(vec![]),
                new: vec![1],
            },
            Request::Barrier {
                name: "b".into(),
                n: 4,
                wait,
            },
            Request::Bye,
        ]
    }

    #[test]
    fn requests_and_replies_round_trip() {
        for request in samples() {
            let bytes = request.encode(9);
            let (body, used) = split(&bytes).unwrap().unwrap();
            assert_eq!(used, bytes.len());
            assert_eq!(Request::decode(body), Some((9, request)));
        }
        for reply in [
            Reply::Value(vec![1, 2]),
            Reply::Number(i64::MIN),
            Reply::Failed("no".into()),
        ] {
            let bytes = reply.encode(u64::MAX);
            let (body, _) = split(&bytes).unwrap().unwrap();
            assert_eq!(Reply::decode(body), Some((u64::MAX, reply)));
        }
    }

    #[test]
    fn the_longest_request_fits_a_frame() {
        let request = Request::CompareAndSet {
            key: "k".repeat(KEY_MAX),
            expected: Some(vec![0; VALUE_MAX]),
            new: vec![0; VALUE_MAX],
        };
        assert!(split(&request.encode(0)).unwrap().is_some());
    }

    #[test]
    fn no_bytes_make_the_parsers_panic() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        let samples: Vec<Vec<u8>> = samples().iter().map(|r| r.encode(1)).collect();
        for round in 0..20_000 {
            let mut bytes = if round % 2 == 0 {
                let mut b = vec![0; rng.random_range(0..80)];
                rng.fill_bytes(&mut b);
                b
            } else {
                samples[rng.random_range(0..samples.len())].clone()
            };
            if !bytes.is_empty() {
                let at = rng.random_range(0..bytes.len());
                bytes[at] = rng.random();
                bytes.truncate(rng.random_range(0..=bytes.len()));
            }
            if let Ok(Some((body, used))) = split(&bytes) {
                assert!(used <= bytes.len());
                Request::decode(body);
                Reply::decode(body);
            }
            Request::decode(&bytes);
            Reply::decode(&bytes);
        }
    }
}
