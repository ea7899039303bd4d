//! How the processes of one host come to share memory.
//!
//! Every rank listens under a random name in the abstract namespace, which leaves no file behind, and publishes the name in the store; it calls the ranks of its host below it, and is called by those above.
//! Both sides check that the other runs as the same user, then prove by [`crate::auth`] that they belong to the job.
//! The caller makes the memory for the rings and hands it over; each side may hand over one descriptor more, its heap.
//! A pair counts once both have published that it has met, so that both use memory or neither does.
//!
//! What fails here is said and costs nothing but speed: the pair uses TCP.
//! No threads; a rank calls first and then listens, so rank 0 of a host is free for all and nobody waits in a circle.

use super::{ShmLink, budget, memory};
use crate::{
    auth::{self, Claim, Purpose, Refusal},
    rendezvous::Rendezvous,
};
use gaggle_core::{Error, Rank, name_ranks};
use rand::{TryRngCore, rngs::OsRng};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt::socket_peercred,
    },
};
use std::{
    collections::BTreeMap,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    time::{Duration, Instant},
};

/// How long the ranks of a host, all of which are at it, wait for each other.
const PATIENCE: Duration = Duration::from_secs(10);
/// For one caller, from accept to the end.
const CALL: Duration = Duration::from_secs(2);
/// Most descriptors in one message: the rings' memory and a heap.
const FDS: usize = 2;
/// Bytes of what both sides say: size of a ring (0: none), then whether a heap comes along, then zeros.
const WORD: usize = 16;

/// The ranks that share this one's host, as [`Rendezvous::hosts`] numbers them; ascending, without itself.
pub fn locals(rank: Rank, hosts: &[u32]) -> Vec<Rank> {
    let here = hosts.get(rank.idx());
    let ranks = (0..).map(Rank).zip(hosts);
    ranks
        .filter(|(other, host)| *other != rank && Some(*host) == here)
        .map(|(other, _)| other)
        .collect()
}

/// Says that this rank shares no memory; what a rank calls that does not call [`meet`].
///
/// # Errors
/// The store is lost.
pub fn decline(meeting: &Rendezvous<'_>) -> Result<(), Error> {
    for what in ["shm", "shm-linked"] {
        meeting.store.set(&meeting.key(what, meeting.rank), &[])?;
    }
    Ok(())
}

/// Links to the ranks of this host that share memory with this one, ascending. To the others on it there is none: a warning has said why, unless they [decline].
///
/// `heap` is handed to each of them; theirs is in [`ShmLink::take_heap`].
/// Every rank of the host calls this, or [`decline`], once.
///
/// # Errors
/// [`Cause::Rendezvous`](gaggle_core::Cause::Rendezvous) names local ranks that call neither in time; [`Cause::Store`](gaggle_core::Cause::Store) if the store is lost.
pub fn meet(
    meeting: &Rendezvous<'_>,
    hosts: &[u32],
    heap: Option<BorrowedFd<'_>>,
) -> Result<Vec<(Rank, ShmLink)>, Error> {
    let locals = locals(meeting.rank, hosts);
    if locals.is_empty() {
        return Ok(vec![]);
    }
    let deadline = auth::deadline_in(meeting.timeout);
    let ranks = u32::try_from(locals.len() + 1).unwrap_or(u32::MAX);
    let door = Door::open(ranks, heap).inspect_err(|why| {
        tracing::warn!(
            "no shared memory with {}, TCP is used: {why}",
            name_ranks(&locals)
        );
    });
    let own = door.as_ref().map_or("", |door| &door.name);
    let key = |what: &str| meeting.key(what, meeting.rank);
    meeting.store.set(&key("shm"), own.as_bytes())?;
    let gather = |what| {
        let ranks = locals.iter().copied();
        meeting.gather_from(ranks, what, deadline, |value| Some(value.to_vec()))
    };
    let names = gather("shm")?;
    let mut links = match &door {
        Ok(door) => door.meet_all(meeting, &locals, &names, deadline),
        Err(_) => BTreeMap::new(),
    };
    let met: Vec<u8> = links.keys().flat_map(|rank| rank.0.to_le_bytes()).collect();
    meeting.store.set(&key("shm-linked"), &met)?;
    for (peer, theirs) in locals.iter().zip(gather("shm-linked")?) {
        let (theirs, _) = theirs.as_chunks::<4>();
        let agreed = theirs.contains(&meeting.rank.0.to_le_bytes());
        if !agreed && links.remove(peer).is_some() {
            tracing::warn!("no shared memory with {peer}, TCP is used: it has given the pair up");
        }
    }
    if let Some(link) = links.values().next() {
        let bytes = super::raw_ring::bytes_of(link.ring_bytes());
        tracing::debug!(
            ring_bytes = link.ring_bytes(),
            pairs = links.len(),
            most_bytes = links.len() * bytes,
            available = budget::available(),
            "shared memory with {}",
            name_ranks(&links.keys().copied().collect::<Vec<_>>())
        );
    }
    Ok(links.into_iter().collect())
}

/// Where local ranks knock, and what this one brings to a pair.
struct Door<'a> {
    listener: UnixListener,
    name: String,
    ring_bytes: usize,
    heap: Option<BorrowedFd<'a>>,
}

impl<'a> Door<'a> {
    fn open(ranks: u32, heap: Option<BorrowedFd<'a>>) -> Result<Door<'a>, String> {
        let available = budget::available();
        let ring_bytes = budget::ring_bytes(ranks, available).ok_or_else(|| {
            let bytes = available.unwrap_or(0);
            format!("{bytes} bytes of memory are left for {ranks} ranks of this host")
        })?;
        // Tried once before others count on it.
        memory(ring_bytes)
            .and_then(|fd| super::raw_ring::Map::new(fd.as_fd(), ring_bytes).map_err(Into::into))
            .map_err(|e| format!("the system gives no memory: {e}"))?;
        let mut token = [0; 16];
        OsRng
            .try_fill_bytes(&mut token)
            .map_err(|e| format!("no randomness: {e}"))?;
        let name = format!("gaggle-{:032x}", u128::from_le_bytes(token));
        let listener = SocketAddr::from_abstract_name(&name)
            .and_then(|addr| UnixListener::bind_addr(&addr))
            .and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(listener)
            })
            .map_err(|e| format!("no local socket: {e}"))?;
        Ok(Door {
            listener,
            name,
            ring_bytes,
            heap,
        })
    }

    /// Calls those below and waits for those above.
    fn meet_all(
        &self,
        meeting: &Rendezvous<'_>,
        locals: &[Rank],
        names: &[Vec<u8>],
        deadline: Instant,
    ) -> BTreeMap<Rank, ShmLink> {
        let deadline = deadline.min(Instant::now() + PATIENCE);
        let willing = locals
            .iter()
            .zip(names)
            .filter(|(_, name)| !name.is_empty());
        let mut links = BTreeMap::new();
        let mut above = Vec::new();
        for (peer, name) in willing {
            if *peer > meeting.rank {
                above.push(*peer);
                continue;
            }
            match self.call(meeting, *peer, name, deadline) {
                Ok(link) => {
                    links.insert(*peer, link);
                }
                Err(why) => tracing::warn!("no shared memory with {peer}, TCP is used: {why}"),
            }
        }
        while !above.is_empty() {
            let stream = match self.accept(deadline) {
                Ok(Some(stream)) => stream,
                Ok(None) => {
                    let who = name_ranks(&above);
                    tracing::warn!("no shared memory with {who}, TCP is used: not met in time");
                    break;
                }
                Err(e) => {
                    let who = name_ranks(&above);
                    tracing::warn!("no shared memory with {who}, TCP is used: {e}");
                    break;
                }
            };
            let limit = deadline.min(Instant::now() + CALL);
            match self.answer(meeting, stream, &above, limit) {
                Ok((peer, link)) => {
                    above.retain(|rank| *rank != peer);
                    links.insert(peer, link);
                }
                Err((Some(peer), why)) => {
                    above.retain(|rank| *rank != peer);
                    tracing::warn!("no shared memory with {peer}, TCP is used: {why}");
                }
                Err((None, why)) => tracing::debug!("a local caller was turned away: {why}"),
            }
        }
        links
    }

    /// The next who knocks; `None`: nobody has until the deadline.
    fn accept(&self, deadline: Instant) -> io::Result<Option<UnixStream>> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    return Ok(Some(stream));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let limit = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            // An interrupted poll is an early look.
            let _ = poll(
                &mut [PollFd::new(&self.listener, PollFlags::IN)],
                Some(&limit),
            );
        }
    }

    fn call(
        &self,
        meeting: &Rendezvous<'_>,
        peer: Rank,
        name: &[u8],
        deadline: Instant,
    ) -> Result<ShmLink, String> {
        let stream = connect(name, deadline).map_err(|e| format!("it does not answer: {e}"))?;
        same_user(&stream)?;
        let claim = Claim {
            purpose: Purpose::Data,
            rank: meeting.rank,
        };
        let host =
            auth::initiate(&stream, meeting.creds, claim, deadline).map_err(|e| e.to_string())?;
        if host != peer {
            return Err(format!("{host} answers for it"));
        }
        let memory = match memory(self.ring_bytes) {
            Ok(memory) => memory,
            Err(e) => {
                // The other side need not wait for it.
                let _ = say(&stream, 0, None, None, deadline);
                return Err(format!("the system gives no memory: {e}"));
            }
        };
        say(
            &stream,
            self.ring_bytes,
            Some(memory.as_fd()),
            self.heap,
            deadline,
        )
        .and_then(|()| {
            let said = hear(&stream, deadline)?;
            if said.ring_bytes != self.ring_bytes {
                return Err(io::Error::other("it could not map the memory"));
            }
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(None)?;
            ShmLink::map(stream, memory.as_fd(), self.ring_bytes, 0, said.heap)
        })
        .map_err(|e| e.to_string())
    }

    fn answer(
        &self,
        meeting: &Rendezvous<'_>,
        stream: UnixStream,
        above: &[Rank],
        deadline: Instant,
    ) -> Result<(Rank, ShmLink), (Option<Rank>, String)> {
        same_user(&stream).map_err(|why| (None, why))?;
        let mut admit = |claim: Claim| match claim.purpose {
            Purpose::Data if above.contains(&claim.rank) => Ok(()),
            _ => Err(Refusal::Unwanted),
        };
        let claim = auth::accept(&stream, meeting.creds, meeting.rank, &mut admit, deadline)
            .map_err(|e| (None, e.to_string()))?;
        self.answered(&stream, deadline)
            .map(|link| (claim.rank, link))
            .map_err(|e| (Some(claim.rank), e.to_string()))
    }

    fn answered(&self, stream: &UnixStream, deadline: Instant) -> io::Result<ShmLink> {
        let said = hear(stream, deadline)?;
        let Some(memory) = said.memory else {
            return Err(io::Error::other("it has no memory"));
        };
        let own = stream.try_clone()?;
        let link = ShmLink::map(own, memory.as_fd(), said.ring_bytes, 1, said.heap);
        let bytes = link.as_ref().map_or(0, ShmLink::ring_bytes);
        say(stream, bytes, None, self.heap, deadline)?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        link
    }
}

fn connect(name: &[u8], deadline: Instant) -> io::Result<UnixStream> {
    let name = std::str::from_utf8(name).map_err(io::Error::other)?;
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    let left = deadline.saturating_duration_since(Instant::now());
    // It bounds the wait for a place in the other's queue, too.
    socket.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
    socket.connect(&socket2::SockAddr::unix(format!("\0{name}"))?)?;
    Ok(UnixStream::from(OwnedFd::from(socket)))
}

fn same_user(stream: &UnixStream) -> Result<(), String> {
    let (theirs, ours) = match socket_peercred(stream) {
        Ok(cred) => (cred.uid, rustix::process::geteuid()),
        Err(e) => return Err(format!("the system does not say whose it is: {e}")),
    };
    if theirs == ours {
        return Ok(());
    }
    let (theirs, ours) = (theirs.as_raw(), ours.as_raw());
    Err(format!("it runs as user {theirs}, this rank as {ours}"))
}

/// What the other side has said and handed over.
struct Said {
    ring_bytes: usize,
    memory: Option<OwnedFd>,
    heap: Option<OwnedFd>,
}

fn remaining(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left.max(Duration::from_millis(1)))
}

/// One word and its descriptors, in one message.
fn say(
    stream: &UnixStream,
    ring_bytes: usize,
    memory: Option<BorrowedFd<'_>>,
    heap: Option<BorrowedFd<'_>>,
    deadline: Instant,
) -> io::Result<()> {
    stream.set_write_timeout(Some(remaining(deadline)?))?;
    let fds: Vec<_> = memory.into_iter().chain(heap).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("too many descriptors"));
    }
    let mut word = [0; WORD];
    word[..8].copy_from_slice(&(ring_bytes as u64).to_le_bytes());
    word[8] = u8::from(memory.is_some());
    word[9] = u8::from(heap.is_some());
    let sent = sendmsg(
        stream,
        &[IoSlice::new(&word)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    if sent != WORD {
        return Err(io::Error::other(format!("{sent} bytes of {WORD} went")));
    }
    Ok(())
}

fn hear(stream: &UnixStream, deadline: Instant) -> io::Result<Said> {
    stream.set_read_timeout(Some(remaining(deadline)?))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0; WORD];
    let got = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut word)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(these) = message {
            fds.extend(these);
        }
    }
    let (memory, heap) = (word[8] == 1, word[9] == 1);
    if got.bytes != WORD || fds.len() != usize::from(memory) + usize::from(heap) {
        return Err(io::Error::other(format!(
            "{} bytes and {} descriptors came",
            got.bytes,
            fds.len()
        )));
    }
    let mut fds = fds.into_iter();
    let number = u64::from_le_bytes([
        word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
    ]);
    Ok(Said {
        ring_bytes: usize::try_from(number).unwrap_or(0),
        memory: if memory { fds.next() } else { None },
        heap: if heap { fds.next() } else { None },
    })
}
