//! The engine's own record of what it ran, for comparison with the plan.

use crate::op::OpState;
use gaggle_collectives::{Action, Span};
use gaggle_core::{OpId, Rank};

/// One step that an engine has run, for comparison with the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The operation.
    pub op: OpId,
    /// The step's index in the plan.
    pub step: u32,
    /// Number in the group of the rank that it exchanged with; `None` for local steps.
    pub peer: Option<Rank>,
    /// The elements that it sent, or wrote.
    pub span: Span,
}

pub(crate) fn record(op: &OpState, step: u32) -> Record {
    let (peer, span) = match &op.program.steps[step as usize].action {
        Action::Send { to, src, .. } => (Some(*to), *src),
        Action::Recv { from, dst, .. } => (Some(*from), *dst),
        Action::Fold { dst, .. } | Action::Copy { dst, .. } => (None, *dst),
        Action::Weigh { span, .. } | Action::Divide { span, .. } | Action::Recode { span, .. } => {
            (None, *span)
        }
        Action::Mix { dst, .. } => (None, *dst),
        Action::Compensate { span, .. } => (None, *span),
        Action::GroupFold { at, len, .. } => (None, Span::user(*at, *len)),
        Action::GroupCopy { from, dst, .. } => (Some(*from), *dst),
        Action::Arrive { .. } | Action::AwaitAll { .. } => (None, Span::user(0, 0)),
    };
    Record {
        op: op.id,
        step,
        peer,
        span,
    }
}
