//! Folds of contributions that have been left in their senders' memory: each is read there once, in the fold's one pass, and never stored here.
//!
//! A message may be left where its only use is a fold that waits for nothing but messages, in a reduction whose plan sends contributions and partial results before anything is written over them: its sender keeps it until the fold has run, and nothing that the fold waits for may wait for that sender's memory.
//! Direct and two-level plans are such, and the mean inside a machine of an average between machines: what a rank sends is written over by results alone, which come after all folds of what it sent.
//!
//! In two-level plans between hosts some places are received into again after what lay there was sent; such a receive waits for that send and not for anybody's fold of it, by slice and then by round or height in the tree, so that no circle arises.
//!
//! What a sender has taken back in the meantime counts for nothing, which the transport sees when the message has been read: so a fold is over, and its result may be sent on, only when all that it has read there is confirmed.

use crate::{
    average::Left,
    op::{OpState, Phase},
};
use gaggle_collectives::{Action, Arrive, Buf, Operand, Span};
use gaggle_core::{Algorithm, Codec, DType, OpKind, Rank, Reduce};
use gaggle_kernels as kernels;

/// A fold that has run and is not over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    step: u32,
    /// Messages that are to be confirmed.
    left: u32,
}

impl OpState {
    /// Source and destination of a receive whose bytes come as they are, for one fold that waits for receives alone.
    pub(crate) fn folded_alone(&self, step: u32) -> Option<(Rank, Span)> {
        let plan = &self.program.plan;
        let Action::Recv {
            from,
            dst,
            codec: Codec::None,
            arrive: Arrive::Store,
            ..
        } = self.program.steps[step as usize].action
        else {
            return None;
        };
        let lets = match plan.kind {
            OpKind::AllReduce | OpKind::ReduceScatter => {
                plan.algorithm == Algorithm::Direct || plan.algorithm.between_hosts().is_some()
            }
            // The mean inside a machine comes first, and the result over it from whoever has folded it.
            OpKind::HierarchicalMix => true,
            // To a root alone: its sender would wait for the slowest rank, which may in turn be waiting for that sender.
            _ => false,
        };
        let may = lets && plan.reduce != Reduce::User;
        if !may || self.broken.is_some() || dst.buf != Buf::Scratch {
            return None;
        }
        let &[next] = self.program.successors(step) else {
            return None;
        };
        let next = &self.program.steps[next as usize];
        match &next.action {
            Action::Fold { operands, .. } if operands.iter().any(|o| o.span == dst) => {
                let waits = next
                    .after
                    .iter()
                    .all(|before| self.comes_of_messages(*before));
                waits.then_some((from, dst))
            }
            _ => None,
        }
    }

    /// Whether a step is over, or waits for nothing but messages.
    fn comes_of_messages(&self, step: u32) -> bool {
        let what = &self.program.steps[step as usize];
        match &what.action {
            _ if self.phase[step as usize] == Phase::Over => true,
            Action::Recv { .. } => true,
            Action::Fold { .. } => what.after.iter().all(|b| self.comes_of_messages(*b)),
            _ => false,
        }
    }

    /// A step has run that has read so many messages where they lie: whether it is over only when they are confirmed.
    pub(crate) fn holds(&mut self, step: u32, read: usize) -> bool {
        let fold = matches!(
            self.program.steps[step as usize].action,
            Action::Fold { .. }
        );
        let held = fold && read > 0;
        if held {
            let left = read as u32;
            self.held.push(Held { step, left });
        }
        held
    }

    /// A message is confirmed; the fold that is over with it.
    pub(crate) fn confirmed(&mut self, recv: u32) -> Option<u32> {
        if self.held.is_empty() {
            return None;
        }
        let &[fold] = self.program.successors(recv) else {
            return None;
        };
        let at = self.held.iter().position(|held| held.step == fold)?;
        self.held[at].left -= 1;
        (self.held[at].left == 0).then(|| self.held.swap_remove(at).step)
    }
}

/// An operand that has been left where it lies. `Err`: its sender's memory is not mapped any more.
pub(crate) fn source_there<'a>(
    left_there: &'a [Left],
    operand: &Operand,
    bytes: impl FnOnce(DType) -> usize,
) -> Result<Option<kernels::Source<'a>>, ()> {
    let Some(left) = left_there.iter().find(|l| l.is_at(operand.span)) else {
        return Ok(None);
    };
    let dtype = left.dtype();
    let window = left.window(bytes(dtype)).ok_or(())?;
    Ok(Some(kernels::Source::Window { window, dtype }))
}
