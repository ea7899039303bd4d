//! Ranks of one host, through memory: per pair two byte rings in a sealed memfd, and a Unix socket between them.
//!
//! [`ShmTransport`] speaks the same protocol through its rings as [`tcp`](crate::tcp) through its sockets, by the same code: frames, credit, grants, priorities and what a stranger's bytes can do are described there.
//! What has come is shown to the sink in the ring; what leaves is filled into the ring.
//!
//! Where the peers have each other's heaps mapped, longer messages that are lent out of this rank's heap stay there: what goes through the ring is where they are ([`frame`](crate::frame)).
//!
//! The memory has no name, and neither has the socket once the pair has met ([`meet`]): nothing is left when processes are killed, and `/dev/shm` is not used.
//! The socket tells of a peer's death, and is the bell: a byte goes through it only when the other side has said that it sleeps (`ring.rs`).
//! While threads on both sides are awake no system call is made.
//!
//! What is in a ring when a process ends, by a goodbye or a kill, is still read by its peer: its mapping outlives the writer.
//! Linux only.

pub(crate) mod raw_ring;
pub(crate) mod ring;

#[cfg(target_os = "linux")]
pub mod budget;
#[cfg(target_os = "linux")]
pub mod meet;

#[cfg(test)]
mod tests;

use crate::tcp::TcpTransport;
use gaggle_core::{
    Armed, LinkStats, OpId, Rank, SharedMemory, Sink, Transfer, Transport, TransportError, Wake,
    XferId,
};
use raw_ring::Rings;
use ring::Side;
use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
    time::Duration,
};

/// One side of a pair of processes that have met: rings, bell, and what the peer has handed over.
#[derive(Debug)]
pub struct ShmLink {
    stream: UnixStream,
    side: Arc<Side>,
    heap: Option<OwnedFd>,
}

impl ShmLink {
    /// The descriptor that the peer has handed over when the pair met, once; `None` where it had none. Nothing about it has been checked.
    pub fn take_heap(&mut self) -> Option<OwnedFd> {
        self.heap.take()
    }

    /// Bytes of each of the two rings.
    pub fn ring_bytes(&self) -> usize {
        self.side.map().size()
    }

    pub(crate) fn into_parts(self) -> (UnixStream, Arc<Side>) {
        (self.stream, self.side)
    }

    /// Maps the memory of a pair. `me` is 0 for the side that made it, and 1 for the other.
    ///
    /// # Errors
    /// The memory can shrink, or is not of this size; or what the system says.
    #[cfg(target_os = "linux")]
    fn map(
        stream: UnixStream,
        memory: std::os::fd::BorrowedFd<'_>,
        ring_bytes: usize,
        me: usize,
        heap: Option<OwnedFd>,
    ) -> io::Result<ShmLink> {
        use rustix::fs::SealFlags;
        let seals = rustix::fs::fcntl_get_seals(memory)?;
        let len = rustix::fs::fstat(memory)?.st_size;
        let sound = raw_ring::is_size(ring_bytes)
            && seals.contains(SealFlags::SHRINK)
            && u64::try_from(len) == Ok(raw_ring::bytes_of(ring_bytes) as u64);
        if !sound {
            let what = format!("memory of {len} bytes with {seals:?} for rings of {ring_bytes}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let map = Arc::new(raw_ring::Map::new(memory, ring_bytes)?);
        let side = Arc::new(Side::new(map, me));
        Ok(ShmLink { stream, side, heap })
    }
}

/// Both sides of a pair within one process, with rings of `ring_bytes` each way; for tests and measurements.
///
/// # Errors
/// `ring_bytes` is not a power of two from 64 KiB to 16 MiB; the system gives no memory or socket.
#[cfg(target_os = "linux")]
pub fn pair(ring_bytes: usize) -> io::Result<(ShmLink, ShmLink)> {
    use std::os::fd::AsFd;
    let memory = memory(ring_bytes)?;
    let (here, there) = UnixStream::pair()?;
    Ok((
        ShmLink::map(here, memory.as_fd(), ring_bytes, 0, None)?,
        ShmLink::map(there, memory.as_fd(), ring_bytes, 1, None)?,
    ))
}

/// Memory for a pair, sealed. Pages are taken when they are first written to.
#[cfg(target_os = "linux")]
fn memory(ring_bytes: usize) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("gaggle-rings", flags)?;
    rustix::fs::ftruncate(&fd, raw_ring::bytes_of(ring_bytes) as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// One rank's links to other processes of its host.
///
/// Dropped without [`leave`](Transport::leave), it is lost to its peers.
pub struct ShmTransport {
    streams: TcpTransport,
    shared: Option<Arc<dyn SharedMemory>>,
    /// The pairs' sockets, ascending by rank.
    bells: Vec<(Rank, UnixStream)>,
}

impl std::fmt::Debug for ShmTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmTransport")
            .field("streams", &self.streams)
            .field("shares_memory", &self.shared.is_some())
            .finish()
    }
}

impl ShmTransport {
    /// Takes over links, one per peer.
    ///
    /// # Errors
    /// Two links to one rank, one to `me`, or what the system says about a socket.
    pub fn new(me: Rank, links: Vec<(Rank, ShmLink)>) -> io::Result<ShmTransport> {
        let bells: io::Result<Vec<_>> = links
            .iter()
            .map(|(rank, link)| Ok((*rank, link.stream.try_clone()?)))
            .collect();
        let mut bells = bells?;
        bells.sort_by_key(|(rank, _)| *rank);
        Ok(ShmTransport {
            streams: TcpTransport::rings(me, links)?,
            shared: None,
            bells,
        })
    }

    /// With what these ranks have mapped of each other, made of the descriptors that [`ShmLink::take_heap`] gave: each of them has this rank's heap mapped if this rank has theirs, or no bytes may be lent to this transport.
    pub fn with_shared(mut self, shared: Arc<dyn SharedMemory>) -> ShmTransport {
        self.streams.lend_through(Arc::clone(&shared));
        self.shared = Some(shared);
        self
    }
}

impl Transport for ShmTransport {
    fn me(&self) -> Rank {
        self.streams.me()
    }

    fn peers(&self) -> &[Rank] {
        self.streams.peers()
    }

    fn link(&self) -> &'static str {
        self.streams.link()
    }

    fn post(&self, t: Transfer<'_>) -> Result<XferId, TransportError> {
        self.streams.post(t)
    }

    fn wants_loans(&self) -> bool {
        self.streams.wants_loans()
    }

    fn cancel(&self, id: XferId) {
        self.streams.cancel(id);
    }

    fn taken(&self, id: XferId) {
        self.streams.taken(id);
    }

    fn forget(&self, op: OpId) {
        self.streams.forget(op);
    }

    fn progress(&self, sink: &mut dyn Sink, budget: usize) -> u64 {
        self.streams.progress(sink, budget)
    }

    fn arm(&self) -> Armed<'_> {
        self.streams.arm()
    }

    fn woke(&self) {
        self.streams.woke();
    }

    fn attach(&self, wake: Arc<dyn Wake>) {
        self.streams.attach(wake);
    }

    fn leave(&self, limit: Duration) {
        self.streams.leave(limit);
    }

    fn stats(&self) -> LinkStats {
        self.streams.stats()
    }

    fn nudge(&self, peer: Rank) {
        use rustix::net::{SendFlags, send};
        let found = self.bells.binary_search_by_key(&peer, |(rank, _)| *rank);
        if let Ok(i) = found {
            // It fails where the peer is gone, which its socket tells, or where unread bytes fill the socket, which wake just as well.
            let _ = send(
                &self.bells[i].1,
                &[1],
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            );
        }
    }

    fn shared(&self) -> Option<Arc<dyn SharedMemory>> {
        self.shared.clone()
    }
}
