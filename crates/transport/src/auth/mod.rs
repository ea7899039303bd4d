//! Who may join: the job's secret, and the handshake that proves both sides know it.
//!
//! The handshake comes before anything else on every connection, in four messages of fixed size, so that no peer's word decides how much memory is taken:
//!
//! ```text
//! caller -> host   hello      magic 8, version 2, purpose 1, zero 1, epoch 4, rank 4, hash of the job's name 32, nonce 32
//! host -> caller   challenge  magic 8, version 2, status 1, zero 1, rank 4, nonce 32
//! caller -> host   proof      HMAC-SHA256(secret, "gaggle caller" ‖ hello ‖ challenge)
//! host -> caller   verdict    status 1, zeros 3, HMAC-SHA256(secret, "gaggle host" ‖ hello ‖ challenge ‖ proof ‖ status)
//! ```
//!
//! Integers are little endian.
//! The caller proves itself first, and each proof covers everything said before it and who says it, so that nothing can be replayed or reflected.
//! All ranks share one secret: a rank's number is a claim, not proven.
//! Frames after the handshake are neither encrypted nor signed.
//!
//! [`Initiator`] and [`Acceptor`] are both sides without I/O; [`initiate`] and [`accept`] drive them on a blocking socket.

mod blocking;
pub(crate) mod gate;
mod secret;
mod strangers;
#[cfg(test)]
mod tests;

pub use blocking::{Socket, accept, initiate};
pub use secret::{Secret, SecretError};

use gaggle_core::Rank;
use hmac::Mac;
use rand::{TryRngCore, rngs::OsRng};
use sha2::{Digest, Sha256};
use std::{
    fmt, io,
    time::{Duration, Instant},
};
use subtle::ConstantTimeEq;

/// The first bytes on every connection: not ASCII, and broken by anything that translates line ends.
pub const MAGIC: [u8; 8] = *b"\x89gaggle\n";
/// The protocol spoken after the magic.
pub const VERSION: u16 = 1;
/// The rank of a caller or host that has none: the launcher, or a store.
pub const NOBODY: Rank = Rank(u32::MAX);

const HELLO: usize = 84;
const CHALLENGE: usize = 48;
const PROOF: usize = 32;
const VERDICT: usize = 36;
/// Bytes that a caller sends until it is let in.
pub(crate) const SAID_BY_CALLER: u64 = (HELLO + PROOF) as u64;
/// Bytes that a host sends until then.
pub(crate) const SAID_BY_HOST: u64 = (CHALLENGE + VERDICT) as u64;
const CALLER: &[u8] = b"gaggle caller";
const HOST: &[u8] = b"gaggle host";
/// For how long a refused caller may take to read why.
const REFUSED_LINGER: Duration = Duration::from_millis(500);

/// What makes a connection one of this job.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The job's name; not secret. Two jobs with different names never merge.
    pub job: String,
    /// Which incarnation of the job.
    pub epoch: u32,
    /// What both sides must know.
    pub secret: Secret,
}

impl Credentials {
    fn job_hash(&self) -> [u8; 32] {
        Sha256::digest(self.job.as_bytes()).into()
    }
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum Purpose {
    /// A data link between two ranks.
    Data = 1,
    /// A link of the control plane.
    Control = 2,
    /// A client of the store.
    Store = 3,
}

impl Purpose {
    fn from_number(n: u8) -> Option<Purpose> {
        [Purpose::Data, Purpose::Control, Purpose::Store]
            .into_iter()
            .find(|p| *p as u8 == n)
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Purpose::Data => "data",
            Purpose::Control => "control",
            Purpose::Store => "store",
        })
    }
}

/// Who a caller says it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Claim {
    /// What it wants.
    pub purpose: Purpose,
    /// Its rank, or [`NOBODY`].
    pub rank: Rank,
}

/// Why a host sends a caller away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Refusal {
    /// Another protocol version.
    Version = 1,
    /// Another job.
    Job = 2,
    /// Another incarnation of the job.
    Epoch = 3,
    /// The proof is wrong.
    Secret = 4,
    /// No room now; a later attempt may succeed.
    Busy = 5,
    /// Nobody waits here for this rank or this purpose.
    Unwanted = 6,
    /// The host makes this very connection itself, and is about to have it.
    Crossed = 7,
}

/// Why a handshake failed. The connection is of no use afterwards; each variant says who was at the other end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The other side speaks something else. Retrying is of no use.
    #[error("{peer} does not speak gaggle's protocol")]
    Magic {
        /// Who.
        peer: String,
    },
    /// The other side is another version. Retrying is of no use.
    #[error(
        "{peer} speaks protocol version {theirs}, this program {VERSION}: use one version of gaggle on all ranks"
    )]
    Version {
        /// Who.
        peer: String,
        /// Its version.
        theirs: u16,
    },
    /// The other side belongs to another job. Retrying is of no use.
    #[error("{peer} belongs to another job than {job:?}")]
    Job {
        /// Who.
        peer: String,
        /// Our job's name.
        job: String,
    },
    /// The other side belongs to another incarnation of the job. Retrying is of no use.
    #[error("{peer} is in another epoch of job {job:?} than {epoch}")]
    Epoch {
        /// Who.
        peer: String,
        /// Our job's name.
        job: String,
        /// Our epoch.
        epoch: u32,
    },
    /// The other side does not know our secret. Retrying is of no use.
    #[error("{peer} does not have the same secret")]
    Secret {
        /// Who.
        peer: String,
    },
    /// The other side has no room now. A later attempt may succeed.
    #[error("{peer} has no room for another connection now")]
    Busy {
        /// Who.
        peer: String,
    },
    /// The other side does not wait for us. Retrying is of no use.
    #[error("{peer} refused {what}")]
    Unwanted {
        /// Who.
        peer: String,
        /// What was refused.
        what: String,
    },
    /// Both sides call each other at the same time, and the other's call is the one that counts: it is about to arrive. Should it not, a later attempt may succeed.
    #[error("{peer} makes the connection itself")]
    Crossed {
        /// Who.
        peer: String,
    },
    /// The deadline passed. A later attempt may succeed.
    #[error("{peer} did not finish the handshake in time")]
    Timeout {
        /// Who.
        peer: String,
    },
    /// The connection ended. A later attempt may succeed.
    #[error("{peer} closed the connection during the handshake")]
    Closed {
        /// Who.
        peer: String,
    },
    /// The socket failed. A later attempt may succeed.
    #[error("the connection with {peer} failed during the handshake: {source}")]
    Io {
        /// Who.
        peer: String,
        /// How.
        #[source]
        source: io::Error,
    },
}

impl AuthError {
    /// Whether another attempt would fail in the same way.
    pub fn is_final(&self) -> bool {
        !matches!(
            self,
            AuthError::Busy { .. }
                | AuthError::Crossed { .. }
                | AuthError::Timeout { .. }
                | AuthError::Closed { .. }
                | AuthError::Io { .. }
        )
    }

    fn refused(
        refusal: Refusal,
        peer: &str,
        creds: &Credentials,
        theirs: u16,
        claim: Claim,
    ) -> Self {
        let peer = peer.to_owned();
        match refusal {
            Refusal::Version => AuthError::Version { peer, theirs },
            Refusal::Job => AuthError::Job {
                peer,
                job: creds.job.clone(),
            },
            Refusal::Epoch => AuthError::Epoch {
                peer,
                job: creds.job.clone(),
                epoch: creds.epoch,
            },
            Refusal::Secret => AuthError::Secret { peer },
            Refusal::Busy => AuthError::Busy { peer },
            Refusal::Crossed => AuthError::Crossed { peer },
            Refusal::Unwanted => AuthError::Unwanted {
                peer,
                what: format!("a {} connection of {}", claim.purpose, name(claim.rank)),
            },
        }
    }
}

fn name(rank: Rank) -> String {
    if rank == NOBODY {
        "an observer".into()
    } else {
        rank.to_string()
    }
}

/// When `timeout` from now is over; a year stands for ever.
pub fn deadline_in(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(Duration::from_secs(365 * 24 * 3600))
}

fn nonce() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    OsRng.try_fill_bytes(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N]
        .try_into()
        .expect("the slice has N bytes by construction")
}

fn hello(creds: &Credentials, claim: Claim) -> io::Result<[u8; HELLO]> {
    let mut m = [0; HELLO];
    m[..8].copy_from_slice(&MAGIC);
    m[8..10].copy_from_slice(&VERSION.to_le_bytes());
    m[10] = claim.purpose as u8;
    m[12..16].copy_from_slice(&creds.epoch.to_le_bytes());
    m[16..20].copy_from_slice(&claim.rank.0.to_le_bytes());
    m[20..52].copy_from_slice(&creds.job_hash());
    m[52..84].copy_from_slice(&nonce()?);
    Ok(m)
}

fn challenge(refusal: Option<Refusal>, me: Rank) -> io::Result<[u8; CHALLENGE]> {
    let mut m = [0; CHALLENGE];
    m[..8].copy_from_slice(&MAGIC);
    m[8..10].copy_from_slice(&VERSION.to_le_bytes());
    m[10] = refusal.map_or(0, |r| r as u8);
    m[12..16].copy_from_slice(&me.0.to_le_bytes());
    m[16..48].copy_from_slice(&nonce()?);
    Ok(m)
}

/// What a status says; one that has no meaning is a refusal all the same.
fn refusal_from(status: u8) -> Option<Refusal> {
    let known = [
        Refusal::Version,
        Refusal::Job,
        Refusal::Epoch,
        Refusal::Secret,
        Refusal::Busy,
        Refusal::Unwanted,
        Refusal::Crossed,
    ];
    match status {
        0 => None,
        _ => Some(
            known
                .into_iter()
                .find(|r| *r as u8 == status)
                .unwrap_or(Refusal::Unwanted),
        ),
    }
}

/// What the caller does next.
#[derive(Debug)]
pub enum Step {
    /// Read on.
    More,
    /// Write this, then read on. From now on the host may take the connection for made.
    Reply(Vec<u8>),
    /// The connection is the caller's; the rank, or [`NOBODY`], is the host's.
    Done(Rank),
}

enum Asked {
    Challenge,
    Verdict {
        challenge: [u8; CHALLENGE],
        proof: [u8; PROOF],
    },
}

/// The caller's side of the handshake, without I/O: write its hello, then give it bytes and do what it says.
///
/// It asks for exactly the bytes of the handshake, so that what follows stays in the socket.
pub struct Initiator {
    creds: Credentials,
    claim: Claim,
    peer: String,
    hello: [u8; HELLO],
    asked: Asked,
    buf: [u8; CHALLENGE],
    have: usize,
}

impl Initiator {
    /// For a connection to `peer` (how errors call it).
    ///
    /// # Errors
    /// There is no randomness for a nonce.
    pub fn new(
        creds: &Credentials,
        claim: Claim,
        peer: impl Into<String>,
    ) -> io::Result<Initiator> {
        Ok(Initiator {
            creds: creds.clone(),
            claim,
            peer: peer.into(),
            hello: hello(creds, claim)?,
            asked: Asked::Challenge,
            buf: [0; CHALLENGE],
            have: 0,
        })
    }

    /// What is written first.
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Whether the proof has been given out: from then on the host may take the connection for made.
    pub fn has_proven(&self) -> bool {
        matches!(self.asked, Asked::Verdict { .. })
    }

    fn want(&self) -> usize {
        match self.asked {
            Asked::Challenge => CHALLENGE,
            Asked::Verdict { .. } => VERDICT,
        }
    }

    /// Where the next bytes go; never empty before the end.
    pub fn room(&mut self) -> &mut [u8] {
        let want = self.want();
        &mut self.buf[self.have..want]
    }

    /// The first `n` bytes of [`Initiator::room`] have been filled.
    ///
    /// # Errors
    /// The host is not one of ours, or sends this caller away; close.
    pub fn filled(&mut self, n: usize) -> Result<Step, AuthError> {
        let want = self.want();
        self.have = (self.have + n).min(want);
        if let Asked::Challenge = self.asked {
            let seen = self.have.min(MAGIC.len());
            if self.buf[..seen] != MAGIC[..seen] {
                return Err(AuthError::Magic {
                    peer: self.peer.clone(),
                });
            }
        }
        if self.have < want {
            return Ok(Step::More);
        }
        self.have = 0;
        match self.asked {
            Asked::Challenge => self.on_challenge(),
            Asked::Verdict { challenge, proof } => self.on_verdict(&challenge, &proof),
        }
    }

    fn refused(&self, why: Refusal, theirs: u16) -> AuthError {
        AuthError::refused(why, &self.peer, &self.creds, theirs, self.claim)
    }

    fn on_challenge(&mut self) -> Result<Step, AuthError> {
        let challenge = self.buf;
        let theirs = u16::from_le_bytes(take(&challenge, 8));
        let refusal = match refusal_from(challenge[10]) {
            None if theirs != VERSION => Some(Refusal::Version),
            other => other,
        };
        if let Some(why) = refusal {
            return Err(self.refused(why, theirs));
        }
        let proof: [u8; PROOF] = self
            .creds
            .secret
            .mac(CALLER, &[&self.hello, &challenge])
            .finalize()
            .into_bytes()
            .into();
        self.asked = Asked::Verdict { challenge, proof };
        Ok(Step::Reply(proof.to_vec()))
    }

    fn on_verdict(
        &self,
        challenge: &[u8; CHALLENGE],
        proof: &[u8; PROOF],
    ) -> Result<Step, AuthError> {
        let verdict = &self.buf[..VERDICT];
        let said: [&[u8]; 4] = [&self.hello, challenge, proof, &verdict[..1]];
        let expected = self.creds.secret.mac(HOST, &said).finalize().into_bytes();
        if !bool::from(expected.as_slice().ct_eq(&verdict[4..])) {
            return Err(AuthError::Secret {
                peer: self.peer.clone(),
            });
        }
        let theirs = u16::from_le_bytes(take(challenge, 8));
        match refusal_from(verdict[0]) {
            Some(why) => Err(self.refused(why, theirs)),
            None => Ok(Step::Done(Rank(u32::from_le_bytes(take(challenge, 12))))),
        }
    }
}

/// What the host does next.
#[derive(Debug)]
pub enum Progress {
    /// Read on.
    More,
    /// Write this, then read on.
    Reply(Vec<u8>),
    /// Write this; then the connection is the caller's.
    Done {
        /// Who it is.
        claim: Claim,
        /// The last message of the handshake.
        reply: Vec<u8>,
    },
    /// Write this so that the caller learns why, then close.
    Refused {
        /// What was wrong.
        error: AuthError,
        /// The message that says so.
        reply: Vec<u8>,
    },
}

enum Stage {
    Hello,
    Proof {
        hello: [u8; HELLO],
        challenge: [u8; CHALLENGE],
        claim: Claim,
    },
}

/// The host's side of the handshake, without I/O: give it bytes, do what it says.
///
/// It asks for exactly the bytes of the handshake, so that what follows stays in the socket.
pub struct Acceptor {
    creds: Credentials,
    me: Rank,
    peer: String,
    stage: Stage,
    buf: [u8; HELLO],
    have: usize,
}

impl Acceptor {
    /// For a connection from `peer` (how errors call it). `me` is the host's rank, or [`NOBODY`].
    pub fn new(creds: &Credentials, me: Rank, peer: impl Into<String>) -> Acceptor {
        Acceptor {
            creds: creds.clone(),
            me,
            peer: peer.into(),
            stage: Stage::Hello,
            buf: [0; HELLO],
            have: 0,
        }
    }

    fn want(&self) -> usize {
        match self.stage {
            Stage::Hello => HELLO,
            Stage::Proof { .. } => PROOF,
        }
    }

    /// Where the next bytes go; never empty.
    pub fn room(&mut self) -> &mut [u8] {
        let want = self.want();
        &mut self.buf[self.have..want]
    }

    /// The first `n` bytes of [`Acceptor::room`] have been filled. Once the proof is right, `admit` decides.
    ///
    /// # Errors
    /// [`AuthError::Magic`]: close without an answer. [`AuthError::Io`]: there was no randomness for a nonce.
    pub fn filled(
        &mut self,
        n: usize,
        admit: &mut dyn FnMut(Claim) -> Result<(), Refusal>,
    ) -> Result<Progress, AuthError> {
        let want = self.want();
        self.have = (self.have + n).min(want);
        if let Stage::Hello = self.stage {
            let seen = self.have.min(MAGIC.len());
            if self.buf[..seen] != MAGIC[..seen] {
                return Err(AuthError::Magic {
                    peer: self.peer.clone(),
                });
            }
        }
        if self.have < want {
            return Ok(Progress::More);
        }
        self.have = 0;
        match self.stage {
            Stage::Hello => self.on_hello().map_err(|source| AuthError::Io {
                peer: self.peer.clone(),
                source,
            }),
            Stage::Proof {
                hello,
                challenge,
                claim,
            } => Ok(self.on_proof(&hello, &challenge, claim, admit)),
        }
    }

    fn on_hello(&mut self) -> io::Result<Progress> {
        let hello = self.buf;
        let version = u16::from_le_bytes(take(&hello, 8));
        let purpose = Purpose::from_number(hello[10]);
        let claim = Claim {
            purpose: purpose.unwrap_or(Purpose::Data),
            rank: Rank(u32::from_le_bytes(take(&hello, 16))),
        };
        let refusal = if version != VERSION {
            Some(Refusal::Version)
        } else if purpose.is_none() {
            Some(Refusal::Unwanted)
        } else if take::<32>(&hello, 20) != self.creds.job_hash() {
            Some(Refusal::Job)
        } else if u32::from_le_bytes(take(&hello, 12)) != self.creds.epoch {
            Some(Refusal::Epoch)
        } else {
            None
        };
        let challenge = challenge(refusal, self.me)?;
        let reply = challenge.to_vec();
        Ok(match refusal {
            Some(why) => Progress::Refused {
                error: AuthError::refused(why, &self.peer, &self.creds, version, claim),
                reply,
            },
            None => {
                self.stage = Stage::Proof {
                    hello,
                    challenge,
                    claim,
                };
                Progress::Reply(reply)
            }
        })
    }

    fn on_proof(
        &mut self,
        hello: &[u8],
        challenge: &[u8],
        claim: Claim,
        admit: &mut dyn FnMut(Claim) -> Result<(), Refusal>,
    ) -> Progress {
        let proof = &self.buf[..PROOF];
        let secret = &self.creds.secret;
        // `verify_slice` compares in constant time.
        let outcome = match secret.mac(CALLER, &[hello, challenge]).verify_slice(proof) {
            Err(_) => Err(Refusal::Secret),
            Ok(()) => admit(claim),
        };
        let status = outcome.err().map_or(0, |r| r as u8);
        let mut reply = vec![0; VERDICT];
        reply[0] = status;
        if outcome != Err(Refusal::Secret) {
            let mac = secret.mac(HOST, &[hello, challenge, proof, &[status]]);
            reply[4..].copy_from_slice(&mac.finalize().into_bytes());
        }
        match outcome {
            Ok(()) => Progress::Done { claim, reply },
            Err(why) => Progress::Refused {
                error: AuthError::refused(why, &self.peer, &self.creds, VERSION, claim),
                reply,
            },
        }
    }
}
