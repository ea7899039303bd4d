//! What both transports share: how a piece of memory is shown to a sink, transfer numbers, and the check of what is posted.

use gaggle_core::{Dir, HEAD_MAX, Inlet, Outlet, Rank, Transfer, TransportError, XferId};

/// Bytes that have arrived.
#[derive(Debug)]
pub(crate) struct Piece<'a> {
    bytes: &'a [u8],
    used: usize,
}

impl<'a> Piece<'a> {
    /// Shows the whole units of `bytes`.
    pub(crate) fn new(bytes: &'a [u8], unit: u32) -> Self {
        let whole = bytes.len() - bytes.len() % unit as usize;
        Piece {
            bytes: &bytes[..whole],
            used: 0,
        }
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }
}

impl Inlet for Piece<'_> {
    fn peek(&mut self) -> &[u8] {
        &self.bytes[self.used..]
    }

    fn consume(&mut self, n: usize) {
        debug_assert!(
            n <= self.bytes.len() - self.used,
            "consumed what was not shown"
        );
        self.used = self.bytes.len().min(self.used + n);
    }
}

/// Room for bytes that leave.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    buf: &'a mut [u8],
    filled: usize,
}

impl<'a> Room<'a> {
    /// Offers the whole units of `buf`.
    pub(crate) fn new(buf: &'a mut [u8], unit: u32) -> Self {
        let whole = buf.len() - buf.len() % unit as usize;
        Room {
            buf: &mut buf[..whole],
            filled: 0,
        }
    }

    pub(crate) fn filled(&self) -> usize {
        self.filled
    }
}

impl Outlet for Room<'_> {
    fn room(&mut self) -> &mut [u8] {
        &mut self.buf[self.filled..]
    }

    fn commit(&mut self, n: usize) {
        debug_assert!(
            n <= self.buf.len() - self.filled,
            "committed more than there was room for"
        );
        self.filled = self.buf.len().min(self.filled + n);
    }
}

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
    if t.peer == me || peers.binary_search(&t.peer).is_err() {
        return Err(TransportError::NoLink(t.peer));
    }
    let what = if t.unit == 0 || t.unit > 16 {
        "a unit of 1 to 16 bytes is needed"
    } else if !t.bytes.is_multiple_of(u64::from(t.unit)) {
        "the length is not a whole number of units"
    } else if t.head.len() > HEAD_MAX {
        "the head is too long"
    } else if t.dir == Dir::Recv && (!t.head.is_empty() || t.loan.is_some()) {
        "a receive has neither head nor loan"
    } else if t.loan.is_some_and(|l| l.len() as u64 != t.bytes) {
        "the loan's length is not the message's"
    } else if next_slot >= 1 << SLOT_BITS {
        "too many transfers at once"
    } else {
        return Ok(());
    };
    Err(TransportError::Misuse { peer: t.peer, what })
}
