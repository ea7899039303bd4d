//! Where an operation's outcome waits for whoever asked for it.

use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use gaggle_core::Finished;
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
    waker: Option<Waker>,
    detached: bool,
    /// The operation in flight: its place and its serial number.
    running: Option<(usize, u64)>,
}

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
