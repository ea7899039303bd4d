//! What the transports share: transfer numbers, and the check of what is posted.

use gaggle_core::{Rank, Transfer, TransportError, XferId};

pub(crate) use gaggle_core::{Piece, Room};

const SLOT_BITS: u32 = 24;

/// A transfer's number: a count above, the place in the table of transfers in the low 24 bits.
pub(crate) fn xfer_id(count: u64, slot: u32) -> XferId {
    XferId(count << SLOT_BITS | u64::from(slot))
}

/// The place in the table that a number names; whether it is still that transfer's is for the table to say.
pub(crate) fn slot_of(id: XferId) -> u32 {
    (id.0 & ((1 << SLOT_BITS) - 1)) as u32
}

/// Refuses what cannot be moved, before anything is touched.
pub(crate) fn check(
    me: Rank,
    peers: &[Rank],
    next_slot: u32,
    t: &Transfer<'_>,
) -> Result<(), TransportError> {
    t.check(me, peers)?;
    if next_slot >= 1 << SLOT_BITS {
        let what = "too many transfers at once";
        return Err(TransportError::Misuse { peer: t.peer, what });
    }
    Ok(())
}
