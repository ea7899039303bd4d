//! What transports and the control plane report, and what the state makes of it.

use crate::{
    op::OpState,
    protocol::{Head, Progress, Word},
    state::{Later, MAX_EARLY, State, control_word},
    trouble::FailedAt,
};
use gaggle_collectives::Action;
use gaggle_core::{
    ControlSink, Down, Inlet, MsgKey, Outlet, Rank, Sink, TransportError, Verdict, XferId,
};
use std::time::Duration;

/// The engine as one transport sees it.
pub(crate) struct LinkSink<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) link: u8,
}

impl LinkSink<'_> {
    fn find(&mut self, id: XferId) -> Option<(usize, u32)> {
        self.state.xfers.get(&(self.link, id)).copied()
    }
}

impl Sink for LinkSink<'_> {
    fn outgoing(&mut self, id: XferId, at: u64, out: &mut dyn Outlet) {
        if let Some((idx, step)) = self.find(id)
            && let Some(op) = self.state.ops[idx].as_deref()
        {
            op.fill(step, at, out);
        }
    }

    fn opened(&mut self, id: XferId, head: &[u8]) -> Verdict {
        let Some((idx, step)) = self.find(id) else {
            return Verdict::Refuse;
        };
        let Some(op) = self.state.ops[idx].as_deref_mut() else {
            return Verdict::Refuse;
        };
        match Head::read(head) {
            Some(head) if head.hash == op.hash && !op.is_pairwise() => {
                op.open(step, head.weight);
                Verdict::Take
            }
            head => {
                let from = match op.program.steps[step as usize].action {
                    Action::Recv { from, .. } => op.world_rank(from),
                    _ => return Verdict::Refuse,
                };
                let agrees = match head {
                    Some(head) => self.state.agrees(idx, from, &head),
                    None => {
                        self.state.dispute(idx);
                        false
                    }
                };
                if agrees {
                    return Verdict::Take;
                }
                // Refused: the transport has forgotten the transfer.
                if let Some(op) = self.state.ops[idx].as_deref_mut() {
                    op.xfers[step as usize] = None;
                }
                self.state.xfers.remove(&(self.link, id));
                Verdict::Refuse
            }
        }
    }

    fn incoming(&mut self, id: XferId, at: u64, part: &mut dyn Inlet) {
        let found = self.find(id);
        let shared = self.state.shared.as_ref();
        let op = found.and_then(|(idx, _)| self.state.ops[idx].as_deref_mut());
        let (Some((idx, step)), Some(op)) = (found, op) else {
            let n = part.peek().len();
            return part.consume(n);
        };
        if at == 0 && op.leave(step, part, shared) {
            return self.state.go_on_after(idx, step);
        }
        let (whole, serial) = (op.broken.is_none(), op.serial);
        op.take(step, at, part);
        if let Some(error) = op.broken.clone().filter(|_| whole) {
            self.state.later.push_back(Later::Fail(idx, serial, error));
        }
    }

    fn unexpected(&mut self, from: Rank, key: MsgKey, head: &[u8]) -> Verdict {
        let Some(head) = Head::read(head) else {
            return Verdict::Refuse;
        };
        let state = &mut *self.state;
        // Of an aborted group nothing will be called any more.
        if state.is_over(&key.op) || state.poisoned.contains_key(&key.op.group) {
            return Verdict::Refuse;
        }
        match state.by_id.get(&key.op) {
            Some(&idx) => {
                let without =
                    |op: &OpState| op.group_rank(from).is_some_and(|r| op.without.contains(&r));
                if state.ops[idx].as_deref().is_some_and(without) {
                    return Verdict::Refuse;
                }
                if !state.agrees(idx, from, &head) {
                    return Verdict::Refuse;
                }
            }
            None => {
                if state.early_heads < MAX_EARLY {
                    let pool = &mut state.early_pool;
                    let heads = state.early.entry(key.op);
                    let heads = heads.or_insert_with(|| pool.pop().unwrap_or_default());
                    if !heads.iter().any(|(r, _)| *r == from) {
                        heads.push((from, head));
                        state.early_heads += 1;
                    }
                }
            }
        }
        Verdict::Take
    }

    fn done(&mut self, id: XferId, result: Result<(), TransportError>) {
        let Some((idx, step)) = self.state.xfers.remove(&(self.link, id)) else {
            return;
        };
        let Some(op) = self.state.ops[idx].as_deref_mut() else {
            return;
        };
        op.xfers[step as usize] = None;
        let serial = op.serial;
        if let Err(e) = result {
            let peer = match &op.program.steps[step as usize].action {
                Action::Send { to, .. } => *to,
                Action::Recv { from, .. } => *from,
                _ => return,
            };
            let world = op.world_rank(peer);
            match e {
                TransportError::Aborted { .. } if op.tolerant => {
                    let later = Later::Without(idx, serial, world);
                    return self.state.later.push_back(later);
                }
                TransportError::Aborted { .. } => return self.state.peer_gave_up(idx),
                // Another length means another call; the descriptors will tell.
                TransportError::Length { .. } => return self.state.dispute(idx),
                _ => {}
            }
            return self.state.transfer_failed(idx, serial, world, e);
        }
        match op.program.steps[step as usize].action {
            Action::Send { .. } => op.bytes_sent += op.wire(step).bytes,
            Action::Recv { from, .. } => {
                let bytes = op.wire(step).bytes;
                self.state.flight.arrived(op, from, bytes);
            }
            _ => {}
        }
        if op.broken.is_some() {
            return;
        }
        if op.settle(step) {
            self.state.step_over(idx, step);
        } else {
            self.state.overflow(idx, serial);
        }
    }

    fn down(&mut self, peer: Rank, how: Down) {
        if let Down::Lost(why) = &how {
            self.state
                .later
                .push_back(Later::DeclareLost(peer, why.clone()));
        }
        self.state.peer_gone(peer, &how);
    }
}

/// The engine as the control plane sees it.
pub(crate) struct ControlView<'a>(pub(crate) &'a mut State);

impl ControlSink for ControlView<'_> {
    fn message(&mut self, from: Rank, payload: &[u8]) {
        let state = &mut *self.0;
        match Word::from_bytes(payload) {
            None => tracing::warn!(%from, bytes = payload.len(), "control message makes no sense"),
            Some(Word::Query(id)) => {
                state.troubles.ask(id, state.now, Duration::ZERO);
                let progress = state.progress_of(&id);
                control_word(&mut state.later, Word::Describe(id, progress));
            }
            Some(Word::Describe(id, progress)) => {
                if state.is_over(&id) {
                    // Somebody disputes what is over here: tell what it was, once.
                    if matches!(progress, Progress::Running(_)) && state.troubles.say(id) {
                        let mine = state.progress_of(&id);
                        control_word(&mut state.later, Word::Describe(id, mine));
                    }
                    if let Some(mine) = state.troubles.went_well(&id) {
                        state.troubles.answer(id, from, progress, state.now);
                        state.late_dispute(mine);
                    }
                    return;
                }
                state.troubles.answer(id, from, progress, state.now);
                if let Some(&idx) = state.by_id.get(&id)
                    && let Some(descriptor) = state.ops[idx].as_deref().map(|op| op.descriptor)
                {
                    if state.troubles.disputed(&id, &descriptor) {
                        state.dispute(idx);
                    } else {
                        state.describe(id, descriptor);
                        state.try_verdict(idx, false);
                    }
                }
            }
            Some(Word::Failed(id, unserved, blame)) => {
                state.failed_elsewhere(
                    id,
                    FailedAt {
                        from,
                        unserved,
                        blame,
                    },
                );
            }
            Some(Word::Rebuild(group, ballot)) => state.rebuild_word(group, from, ballot),
            Some(Word::Abort(group, reason)) => state.abort(group, from, &reason),
        }
    }

    fn lost(&mut self, rank: Rank, why: &str) {
        let how = Down::Lost(why.to_owned());
        self.0.peer_gone(rank, &how);
        self.0.later.push_back(Later::Departed(rank, how));
    }

    fn left(&mut self, rank: Rank) {
        // Its data link says so too, after the last data; this is only the end of its words.
        self.0.goodbye(rank);
        // Where there is no such link, nothing of its can come any more.
        self.0.later.push_back(Later::Departed(rank, Down::Left));
    }
}
