//! The section in which a rank reads another's memory.
//!
//! # Safety
//! A [`Loan`] is out until its transfer is reported done or its cancellation returns.
//! A send is taken off the receiver's table before it is reported done, and cancelling, killing and dropping all wait, under the receiver's lock, while `reading` names the send.
//! A [`Section`] sets `reading` under that lock after it has seen the offer in the table, and clears it when it ends, also by a panic: so the loan is out for as long as the section exists.

use super::{RankBox, state::State};
use gaggle_core::{Loan, XferId};
use std::ops::Range;

/// While it exists, nobody who waits for this rank's callback, or for the memory it reads, goes on.
#[derive(Debug)]
pub(super) struct Section<'a> {
    home: &'a RankBox,
    loan: Option<Loan>,
    open: bool,
}

impl<'a> Section<'a> {
    /// For a callback about an own transfer.
    pub(super) fn call(home: &'a RankBox, state: &mut State, about: Option<XferId>) -> Self {
        state.calling = about;
        Section {
            home,
            loan: None,
            open: true,
        }
    }

    /// For one that reads what offer number `place`, an entry of `state`'s table, lends.
    pub(super) fn read(
        home: &'a RankBox,
        state: &mut State,
        about: Option<XferId>,
        place: u32,
    ) -> Option<Self> {
        let offer = state.offers.get(place)?;
        let loan = offer.loan;
        state.reading = Some((offer.src, offer.id));
        state.calling = about;
        Some(Section {
            home,
            loan,
            open: true,
        })
    }

    /// Part of the lent bytes; empty where nothing is lent.
    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        let Some(loan) = self.loan.as_ref().filter(|_| self.open) else {
            return &[];
        };
        // SAFETY: the section is open, so the loan is still out (module doc); the slice ends with the borrow of the section.
        let all = unsafe { loan.bytes() };
        all.get(range).unwrap_or(&[])
    }

    /// Ends it under the lock that the caller holds already.
    pub(super) fn leave(mut self, state: &mut State) {
        self.open = false;
        state.calling = None;
        state.reading = None;
        self.home.changed.notify_all();
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        if self.open {
            let mut state = self.home.state.lock();
            state.calling = None;
            state.reading = None;
            self.home.changed.notify_all();
        }
    }
}
