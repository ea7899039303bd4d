//! The flight recorder's place in the engine: what the state tells it, and nothing where there is none.

use crate::op::OpState;
use gaggle_core::{Cause, Error, Rank};
use gaggle_trace::{Failure, Recorder, Start, Ticket};
use std::path::PathBuf;

/// One rank's recorder, or none.
#[derive(Default)]
pub(crate) struct Flight(Option<Recorder>);

impl Flight {
    pub(crate) fn attach(&mut self, recorder: Recorder) {
        if let Some(old) = self.0.replace(recorder) {
            old.close();
        }
    }

    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.0.as_ref().map(|r| r.path().to_owned())
    }

    /// The rank leaves.
    pub(crate) fn close(&mut self) {
        if let Some(recorder) = self.0.take() {
            recorder.close();
        }
    }

    /// Something has gone wrong; said once.
    pub(crate) fn keep(&mut self, what: &dyn std::fmt::Display) {
        if let Some(recorder) = &mut self.0
            && recorder.keep()
        {
            let recording = recorder.path().display();
            tracing::warn!(%what, %recording, "what this rank did last is kept; `gaggle trace` shows it");
        }
    }

    /// An operation starts.
    pub(crate) fn start(&mut self, op: &OpState) -> Option<Ticket> {
        let recorder = self.0.as_mut()?;
        Some(recorder.start(&Start {
            descriptor: &op.descriptor,
            group: &op.group,
            sources: op.program.sources,
        }))
    }

    /// A message has come whole.
    pub(crate) fn arrived(&mut self, op: &OpState, from: Rank, bytes: u64) {
        if let (Some(recorder), Some(ticket)) = (&mut self.0, op.ticket) {
            recorder.arrived(ticket, op.world_rank(from), from, bytes);
        }
    }

    /// An operation is found late, or asked about.
    pub(crate) fn waiting(&mut self, op: &OpState) {
        if let (Some(recorder), Some(ticket)) = (&mut self.0, op.ticket) {
            recorder.waiting(ticket, &awaited(op));
        }
    }

    /// All its steps are over, or it does without those that are missing.
    pub(crate) fn done(&mut self, op: &OpState) {
        if let (Some(recorder), Some(ticket)) = (&mut self.0, op.ticket) {
            // Collecting nothing allocates nothing.
            let missing: Vec<Rank> = op.without.iter().map(|r| op.world_rank(*r)).collect();
            recorder.done(ticket, op.bytes_sent, &missing);
        }
    }

    /// It has failed, of all or only in the end.
    pub(crate) fn failed(&mut self, op: &OpState, error: &Error) {
        if let (Some(recorder), Some(ticket)) = (&mut self.0, op.ticket) {
            let failure = Failure::of(error, &op.group);
            recorder.failed(ticket, op.bytes_sent, &awaited(op), &failure);
        }
        if is_trouble(op, error) {
            self.keep(error);
        }
    }
}

/// Whether somebody will want to know why: not where this rank has left, or where the caller ended it.
fn is_trouble(op: &OpState, error: &Error) -> bool {
    let me = op.world_rank(op.group.rank);
    match error.cause() {
        Cause::Cancelled { .. } => false,
        Cause::PeerLeft { world_rank, .. } => *world_rank != me,
        _ => true,
    }
}

fn awaited(op: &OpState) -> Vec<Rank> {
    op.awaited().into_iter().map(|r| op.world_rank(r)).collect()
}
