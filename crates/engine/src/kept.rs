//! Calls that a group has seen last and that go by messages, with what was decided about them: a training loop chooses and plans once.

use crate::{
    arguments::Shape,
    program::Program,
    select::{Choice, Identity, alike},
    sync::{Arc, Mutex},
};
use gaggle_core::Op;

/// Calls that are remembered per group.
const MOST: usize = 32;

/// The calls, the latest first.
#[derive(Default)]
pub(crate) struct Kept(Mutex<Vec<Entry>>);

struct Entry {
    op: Op,
    shape: Shape,
    choice: Choice,
    program: Arc<Program>,
}

impl Kept {
    /// What was decided about a call like this one.
    pub(crate) fn find(&self, op: &Op, shape: &Shape) -> Option<(Choice, Arc<Program>)> {
        let mut entries = self.0.lock();
        let is_it = |e: &Entry| e.shape == *shape && alike(&e.op, op);
        let at = entries.iter().position(is_it)?;
        // The oldest is forgotten first.
        entries[..=at].rotate_right(1);
        let entry = entries.first()?;
        let mut choice = entry.choice.alike();
        choice.weigh(op);
        Some((choice, Arc::clone(&entry.program)))
    }

    /// Remembers a call, if the next one like it is decided in the same way.
    pub(crate) fn keep(&self, op: &Op, shape: &Shape, choice: &Choice, program: &Arc<Program>) {
        let again = choice.identity == Identity::Next && choice.pairs.is_same();
        if !again || choice.extent.discover || op.user.is_some() {
            return;
        }
        let mut entries = self.0.lock();
        entries.truncate(MOST - 1);
        entries.insert(
            0,
            Entry {
                op: op.clone(),
                shape: *shape,
                choice: choice.alike(),
                program: Arc::clone(program),
            },
        );
    }
}
