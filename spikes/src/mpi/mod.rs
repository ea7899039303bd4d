//! MPI's point-to-point messages as a packet link.
//!
//! A packet is one `MPI_Isend`; its receiver finds it by `MPI_Improbe`, so that nothing needs to be posted ahead and the length comes with it. MPI keeps packets of one pair and tag in order.
//! The seam's keys do not fit MPI's tags (which need not go beyond 32767), so they travel in the packet, and the tag only tells pairs of ranks apart where several share a process.
//! MPI wakes nobody: whoever waits polls.

mod raw_mpi;

pub use raw_mpi::Mpi;

use crate::packets::{Event, PacketTransport, Packets, Rest};
use gaggle_core::Rank;
use raw_mpi::{Comm, Sending};
use std::time::Duration;

/// How many packets may be under way before there is no room.
const MOST: usize = 64;
/// What of a tag says from whom, and what to whom, within one process.
const RANKS: u32 = 128;

/// One rank's end.
pub struct MpiLink {
    mpi: &'static Mpi,
    comm: Comm,
    me: Rank,
    world: u32,
    /// All ranks are this process.
    within: bool,
    /// Where the next look begins.
    next: u32,
    sending: Vec<Sending>,
    failed: Option<String>,
}

/// All ranks of a world within this process, which sends to itself.
///
/// # Errors
/// What MPI says; more than 128 ranks.
pub fn within(mpi: &'static Mpi, n: u32) -> Result<Vec<PacketTransport<MpiLink>>, String> {
    if n > RANKS {
        return Err(format!("{n} ranks within a process, at most {RANKS}"));
    }
    let (comm, ..) = mpi.comm(false)?;
    let link = |me| MpiLink::new(mpi, comm, Rank(me), n, true);
    Ok((0..n)
        .map(link)
        .map(|l| PacketTransport::new(l.me, n, l, None))
        .collect())
}

/// This process's rank among those that `mpirun` has started, and how many there are.
///
/// # Errors
/// What MPI says.
pub fn between(mpi: &'static Mpi) -> Result<(PacketTransport<MpiLink>, Rank, u32), String> {
    let (comm, me, n) = mpi.comm(true)?;
    let link = MpiLink::new(mpi, comm, Rank(me), n, false);
    Ok((PacketTransport::new(Rank(me), n, link, None), Rank(me), n))
}

impl MpiLink {
    fn new(mpi: &'static Mpi, comm: Comm, me: Rank, world: u32, within: bool) -> MpiLink {
        MpiLink {
            mpi,
            comm,
            me,
            world,
            within,
            next: 0,
            sending: vec![],
            failed: None,
        }
    }

    /// Process and tag for packets from one rank to another.
    fn place(&self, other: Rank, from: Rank, to: Rank) -> (u32, u32) {
        if self.within {
            (0, from.0 * RANKS + to.0)
        } else {
            (other.0, 0)
        }
    }

    fn reap(&mut self) {
        let mpi = self.mpi;
        self.sending.retain_mut(|s| !mpi.is_sent(s));
    }
}

impl Packets for MpiLink {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn send(&mut self, to: Rank, packet: &[u8]) -> bool {
        if self.sending.len() >= MOST {
            self.reap();
            if self.sending.len() >= MOST {
                return false;
            }
        }
        let (process, tag) = self.place(to, self.me, to);
        match self.mpi.send(self.comm, process, tag, packet.into()) {
            Ok(sending) => self.sending.push(sending),
            Err(why) => self.failed = Some(why),
        }
        true
    }

    fn poll(&mut self) -> Option<Event> {
        if let Some(why) = self.failed.take() {
            // MPI does not say whose fault it was, and is of no use after it.
            let peer = Rank((self.me.0 + 1) % self.world);
            return Some(Event::Lost { peer, why });
        }
        self.reap();
        for _ in 0..self.world {
            let from = Rank(self.next);
            self.next = (self.next + 1) % self.world;
            if from == self.me {
                continue;
            }
            let (process, tag) = self.place(from, from, self.me);
            match self.mpi.receive(self.comm, process, tag) {
                Ok(Some(bytes)) => return Some(Event::Packet { from, bytes }),
                Ok(None) => {}
                Err(why) => return Some(Event::Lost { peer: from, why }),
            }
        }
        None
    }

    fn rest(&mut self) -> Rest {
        Rest::Poll(Duration::from_micros(20))
    }

    fn is_flushed(&mut self) -> bool {
        self.reap();
        self.sending.is_empty()
    }
}
