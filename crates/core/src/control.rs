//! The seam of the control plane: who is alive, and the few words that must reach everybody whatever the data links do.

use crate::{Armed, Rank, Wake};
use std::sync::Arc;

/// What the control plane reports, from within [`Control::poll`].
pub trait ControlSink {
    /// A message that `from` gave to everybody. Each message comes once; messages of one origin come in order while the membership is stable.
    fn message(&mut self, from: Rank, payload: &[u8]);
    /// `rank` is dead: its connection broke without a goodbye. Said once per rank, on every surviving rank.
    fn lost(&mut self, rank: Rank, why: &str);
    /// `rank` has said goodbye. Said once per rank.
    fn left(&mut self, rank: Rank);
}

/// A rank's place in the control plane: connections to about 2 log n peers, and flooding.
///
/// Works without any help from the data links or the user's threads. All methods may be called from any thread; none blocks but `leave`, and that not beyond a second.
pub trait Control: Send + Sync {
    /// This rank's number in the job.
    fn me(&self) -> Rank;
    /// How many ranks the job has.
    fn world(&self) -> u32;
    /// Gives `payload` (at most [`CONTROL_MAX`] bytes) to every other live rank.
    fn broadcast(&self, payload: &[u8]);
    /// Declares `rank` dead for everybody (its data link broke, its thread panicked).
    fn declare_lost(&self, rank: Rank, why: &str);
    /// Reports what has come. Never blocks. Returns the number of callbacks.
    fn poll(&self, sink: &mut dyn ControlSink) -> u64;
    /// How to sleep until there is something to `poll`.
    fn arm(&self) -> Armed<'_>;
    /// Whom to call when there is something to do (for [`Armed::Wakes`]).
    fn attach(&self, wake: Arc<dyn Wake>);
    /// Says goodbye. Peers report `left`, not `lost`.
    fn leave(&self);
}

/// Longest control message in bytes.
pub const CONTROL_MAX: usize = 4096;
