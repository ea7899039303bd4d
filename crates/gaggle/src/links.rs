//! Which links a rank that joins has: shared memory with the ranks of its host, where it can be had.

use crate::env::Wanted;
use gaggle_core::{Error, Rank, SharedMemory, Transport};
use gaggle_transport::rendezvous::Rendezvous;
use std::sync::Arc;

/// What shared memory reaches.
#[derive(Default)]
pub(crate) struct Memory {
    /// Ascending.
    pub(crate) ranks: Vec<Rank>,
    pub(crate) link: Option<Box<dyn Transport>>,
    /// On every host of the job, each rank has the heaps of all others mapped; equal on every rank.
    pub(crate) mapped: bool,
}

/// Meets the ranks of this host. Every rank of a job calls this once.
///
/// # Errors
/// Shared memory is demanded and some rank is not reached by it; local ranks are missing; the store is lost.
#[cfg(target_os = "linux")]
pub(crate) fn through_memory(
    meeting: &Rendezvous<'_>,
    hosts: &[u32],
    wanted: Wanted,
) -> Result<Memory, Error> {
    use gaggle_transport::{
        heap::SharedHeap,
        shm::{ShmTransport, meet},
    };
    if wanted == Wanted::Tcp {
        meet::decline(meeting)?;
        meeting.agree(MAPPED, false)?;
        return Ok(Memory::default());
    }
    let own = SharedHeap::create()
        .inspect_err(|e| tracing::warn!("no registered memory: {e}"))
        .ok();
    let fd = own.as_ref().map(|heap| heap.fd());
    let mut links = meet::meet(meeting, hosts, fd)?;
    let ranks: Vec<Rank> = links.iter().map(|(rank, _)| *rank).collect();
    let heaps = own.and_then(|own| map(meeting.rank, own, &mut links));
    let mut link = ShmTransport::new(meeting.rank, links)
        .map_err(|e| Error::internal(format!("the links through shared memory: {e}")))?;
    demanded(meeting, &ranks, wanted)?;
    let reached = heaps.as_ref().map_or(1, |heaps| heaps.ranks().len());
    if let Some(heaps) = heaps {
        link = link.with_shared(Arc::new(heaps));
    }
    let link = (!ranks.is_empty()).then(|| Box::new(link) as Box<dyn Transport>);
    let whole = reached == meet::locals(meeting.rank, hosts).len() + 1;
    let mapped = meeting.agree(MAPPED, whole)?;
    Ok(Memory {
        ranks,
        link,
        mapped,
    })
}

/// What all ranks are asked once their links are there.
const MAPPED: &str = "mapped";

/// Maps the heaps that have come with the links.
#[cfg(target_os = "linux")]
fn map(
    me: Rank,
    own: Arc<gaggle_transport::heap::SharedHeap>,
    links: &mut [(Rank, gaggle_transport::shm::ShmLink)],
) -> Option<gaggle_transport::heap::MappedHeaps> {
    let heaps = links
        .iter_mut()
        .filter_map(|(rank, link)| Some((*rank, link.take_heap()?)));
    gaggle_transport::heap::MappedHeaps::new(me, own, heaps.collect())
        .inspect_err(|e| tracing::warn!("no registered memory: {e}"))
        .ok()
}

/// This system's ranks do not share memory.
///
/// # Errors
/// Shared memory is demanded.
#[cfg(not(target_os = "linux"))]
pub(crate) fn through_memory(
    meeting: &Rendezvous<'_>,
    _hosts: &[u32],
    wanted: Wanted,
) -> Result<Memory, Error> {
    demanded(meeting, &[], wanted)?;
    meeting.agree(MAPPED, false)?;
    Ok(Memory::default())
}

fn demanded(meeting: &Rendezvous<'_>, reached: &[Rank], wanted: Wanted) -> Result<(), Error> {
    let missing: Vec<Rank> = (0..meeting.world)
        .map(Rank)
        .filter(|rank| *rank != meeting.rank && reached.binary_search(rank).is_err())
        .collect();
    if wanted != Wanted::Shm || missing.is_empty() {
        return Ok(());
    }
    Err(Error::invalid(
        "join",
        format!(
            "GAGGLE_TRANSPORT is \"shm\", but {} shares no memory with {}",
            gaggle_core::name_ranks(&missing),
            meeting.rank
        ),
    ))
}
