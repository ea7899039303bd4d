//! Where an operation's outcome waits for whoever asked for it.

use crate::{
    op::OpState,
    sync::{Arc, AtomicBool, Mutex, Ordering},
};
use gaggle_core::{Done, Error, Finished};
use std::task::Waker;

/// Set once by the engine, taken once by the handle.
#[derive(Default)]
pub(crate) struct Completion {
    /// Written after `slot`; lets a waiting thread look without the lock.
    done: AtomicBool,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    finished: Option<Finished>,
    /// Of an operation that is started many times: the operation itself, for the next run.
    again: Option<Again>,
    waker: Option<Waker>,
    detached: bool,
    /// The operation in flight: its place and its serial number.
    running: Option<(usize, u64)>,
}

/// An operation that may be started again, and how its last run ended.
pub(crate) type Again = (Box<OpState>, Result<Done, Error>);

impl Completion {
    pub(crate) fn new() -> Arc<Completion> {
        Arc::default()
    }

    pub(crate) fn is_done(&self) -> bool {
        // Acquire: whoever sees the flag also sees the outcome; the slot's lock would do too.
        self.done.load(Ordering::Acquire)
    }

    /// The operation with this place and serial number is in flight.
    pub(crate) fn begin(&self, idx: usize, serial: u64) {
        self.slot.lock().running = Some((idx, serial));
    }

    /// The operation in flight, if there is one.
    pub(crate) fn running(&self) -> Option<(usize, u64)> {
        self.slot.lock().running
    }

    /// Delivers the outcome. Returns whom to wake, and the outcome itself where nobody will ever ask for it: for the caller to deal with when it holds no lock.
    #[must_use]
    pub(crate) fn set(&self, finished: Finished) -> (Option<Waker>, Option<Finished>) {
        let mut slot = self.slot.lock();
        slot.running = None;
        let handed = if slot.detached {
            (None, Some(finished))
        } else {
            slot.finished = Some(finished);
            (slot.waker.take(), None)
        };
        // Release: pairs with `is_done`.
        self.done.store(true, Ordering::Release);
        handed
    }

    /// As `set`, for an operation that is started many times.
    #[must_use]
    pub(crate) fn set_again(
        &self,
        op: Box<OpState>,
        result: Result<Done, Error>,
    ) -> (Option<Waker>, Option<Again>) {
        let mut slot = self.slot.lock();
        slot.running = None;
        let handed = if slot.detached {
            (None, Some((op, result)))
        } else {
            slot.again = Some((op, result));
            (slot.waker.take(), None)
        };
        // Release: pairs with `is_done`.
        self.done.store(true, Ordering::Release);
        handed
    }

    /// Takes the operation back, ready for the next run.
    pub(crate) fn take_again(&self) -> Option<Again> {
        let again = self.slot.lock().again.take();
        if again.is_some() {
            // Relaxed: whoever starts it again does so after this, on this thread or one that was given the handle.
            self.done.store(false, Ordering::Relaxed);
        }
        again
    }

    /// Takes the operation back, or leaves a waker to be called when its run is over.
    pub(crate) fn take_again_or_register(&self, waker: &Waker) -> Option<Again> {
        if let Some(again) = self.take_again() {
            return Some(again);
        }
        let mut slot = self.slot.lock();
        if slot.again.is_none() && !slot.waker.as_ref().is_some_and(|w| w.will_wake(waker)) {
            slot.waker = Some(waker.clone());
        }
        drop(slot);
        // It may have come in between.
        self.take_again()
    }

    /// The handle is gone. Returns an operation whose run was over.
    pub(crate) fn detach_again(&self) -> Option<Again> {
        let mut slot = self.slot.lock();
        slot.detached = true;
        slot.waker = None;
        slot.again.take()
    }

    pub(crate) fn take(&self) -> Option<Finished> {
        self.slot.lock().finished.take()
    }

    /// Takes the outcome, or leaves a waker to be called when it comes.
    pub(crate) fn take_or_register(&self, waker: &Waker) -> Option<Finished> {
        let mut slot = self.slot.lock();
        let finished = slot.finished.take();
        if finished.is_none() && !slot.waker.as_ref().is_some_and(|w| w.will_wake(waker)) {
            slot.waker = Some(waker.clone());
        }
        finished
    }

    /// The handle is gone. Returns an outcome that came in time and that nobody has taken.
    pub(crate) fn detach(&self) -> Option<Finished> {
        let mut slot = self.slot.lock();
        slot.detached = true;
        slot.waker = None;
        slot.finished.take()
    }
}
