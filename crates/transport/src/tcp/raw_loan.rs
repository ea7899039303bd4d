//! Bytes that a send has lent, for as long as its callback lasts.
//!
//! # Safety
//! A loan may be read until its transfer is reported done or a cancellation of it has returned.
//! While a [`Calling`] of the transfer exists neither has happened: `cancel` waits until there is none, and `done` is said by whoever holds it.

use super::Calling;
use gaggle_core::{Loan, XferId};

/// The bytes that the send `id` has lent; none where another transfer is being called about.
pub(super) fn borrow<'a>(calling: &'a Calling<'_>, id: XferId, loan: &Loan) -> &'a [u8] {
    if calling.id() != id {
        return &[];
    }
    // SAFETY: see the module doc; the guard is that of the transfer, and outlives the slice.
    unsafe { loan.bytes() }
}
