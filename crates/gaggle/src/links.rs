//! Which links a rank that joins has: shared memory with the ranks of its host, where it can be had.

use crate::env::Wanted;
use gaggle_core::{Error, Rank, Transport};
use gaggle_transport::rendezvous::Rendezvous;

/// What shared memory reaches.
#[derive(Default)]
pub(crate) struct Memory {
    /// Ascending.
    pub(crate) ranks: Vec<Rank>,
    pub(crate) link: Option<Box<dyn Transport>>,
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
    use gaggle_transport::shm::{ShmTransport, meet};
    if wanted == Wanted::Tcp {
        meet::decline(meeting)?;
        return Ok(Memory::default());
    }
    let links = meet::meet(meeting, hosts, None)?;
    let ranks: Vec<Rank> = links.iter().map(|(rank, _)| *rank).collect();
    let link = ShmTransport::new(meeting.rank, links)
        .map_err(|e| Error::internal(format!("the links through shared memory: {e}")))?;
    demanded(meeting, &ranks, wanted)?;
    let link = (!ranks.is_empty()).then(|| Box::new(link) as Box<dyn Transport>);
    Ok(Memory { ranks, link })
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
