//! One operation in flight: which steps are over, what it waits for, and what its steps do to its memory.

use crate::{
    average::Left,
    completion::Completion,
    copies::Copies,
    discover::Then,
    folded_there::{Held, source_there},
    fused::Members,
    local::Local,
    pairs::Pairs,
    program::Program,
    raw_memory::{OpMemory, Others},
    sync::Arc,
    user,
};
use gaggle_collectives::{Action, Arrive, Folding, Operand, Span, select::folding};
use gaggle_core::{
    Cause, Codec, DType, Descriptor, Divisor, Error, GroupInfo, Inlet, Mode, OpId, OpKind, Outlet,
    Rank, Reduce, Stores, UserReduction, Weight, Window, WindowMut, XferId, copy_window,
    descriptor::stable_hash,
};
use gaggle_kernels as kernels;
use gaggle_trace::Ticket;
use smallvec::SmallVec;
use std::time::Duration;

/// Weights of a neighbour average, bound when it starts.
#[derive(Clone, Debug, Default)]
pub(crate) struct MixWeights {
    /// Receiver's weight per in-neighbour.
    pub(crate) from: Vec<f64>,
    /// Sender's factor per out-neighbour.
    pub(crate) to: Vec<f64>,
    pub(crate) keep: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Waits for other steps.
    Waiting,
    /// With a transport.
    Posted,
    Over,
}

/// Whether an operation is still trying.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Running,
    /// Something is wrong; the others have been asked, and the verdict falls at this time at the latest.
    Asking {
        until: Duration,
    },
}

/// What of a message is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wire {
    /// Of the elements, before a codec.
    pub(crate) dtype: DType,
    /// Bytes that are not torn apart.
    pub(crate) unit: u32,
    pub(crate) bytes: u64,
}

pub(crate) struct OpState {
    pub(crate) serial: u64,
    pub(crate) id: OpId,
    pub(crate) descriptor: Descriptor,
    pub(crate) hash: u64,
    pub(crate) group: Arc<GroupInfo>,
    /// Group ranks with which messages are exchanged, ascending.
    pub(crate) peers: Vec<Rank>,
    pub(crate) program: Arc<Program>,
    pub(crate) memory: OpMemory,
    pub(crate) mix: MixWeights,
    pub(crate) pairs: Pairs,
    /// What follows once the counts are known.
    pub(crate) then: Option<Box<Then>>,
    /// The counts that were discovered for it.
    pub(crate) counts: Vec<u64>,
    /// Steps before each step that are not over.
    pub(crate) waits: Vec<u32>,
    pub(crate) phase: Vec<Phase>,
    /// Link and transfer of each posted step.
    pub(crate) xfers: Vec<Option<(u8, XferId)>>,
    /// The weight that came with each receive.
    arrived_weight: Vec<u64>,
    /// How far each receive has been decoded.
    decoding: Vec<kernels::Decoding>,
    /// What has come and lies in its senders' memory.
    pub(crate) left_there: Vec<Left>,
    /// Folds of such that have run and are not over.
    pub(crate) held: Vec<Held>,
    /// Steps that are not over, of which what waits for them knows all the same that it may run.
    pub(crate) told: Vec<u32>,
    /// What neighbours are lent in place of ordinary memory.
    pub(crate) copies: Option<Copies>,
    /// This rank's heap has no room for them.
    pub(crate) no_copies: bool,
    /// Weight slots.
    slots: Vec<u64>,
    /// The function of a user's reduction.
    pub(crate) user: Option<UserReduction>,
    /// What is wrong with its steps, once something is: none of them counts any more.
    pub(crate) broken: Option<Error>,
    /// Whose error feedback is used.
    pub(crate) tensor: Option<u64>,
    /// That feedback, while the operation is in flight.
    pub(crate) residual: Option<Vec<f32>>,
    /// Where this rank's result of a reduction is.
    pub(crate) result: Option<Span>,
    own_weight: u64,
    /// Group ranks that have been sent the descriptor.
    pub(crate) described: Vec<bool>,
    pub(crate) left: u32,
    pub(crate) status: Status,
    /// Whether it failed for an earlier operation's sake.
    pub(crate) inherited: bool,
    /// Which rank of the job has left in the middle.
    pub(crate) suspect: Option<Rank>,
    pub(crate) started: Duration,
    pub(crate) deadline: Duration,
    pub(crate) warn_at: Option<Duration>,
    /// The alarm that is set for it.
    pub(crate) alarm: Option<Duration>,
    /// Whether it goes on without neighbours that are missing.
    pub(crate) tolerant: bool,
    /// Group ranks that it goes on without, ascending.
    pub(crate) without: Vec<Rank>,
    /// Those of them whose values have not all come.
    pub(crate) absent: Vec<Rank>,
    /// Ranks of the job to which something was to be sent and was not.
    pub(crate) denied: Vec<Rank>,
    /// Averages of a tolerant operation that wait until it is known who is missing.
    averages: Vec<u32>,
    /// Receives that are not over.
    pub(crate) receives_left: u32,
    /// Whether the caller's buffer has been written, or others may have written to it.
    pub(crate) touched: bool,
    /// The members' memory, where it is mapped.
    pub(crate) members: Option<Box<Members>>,
    /// What it is on boards, where it does not go by messages.
    pub(crate) local: Option<Box<Local>>,
    pub(crate) bytes_sent: u64,
    /// Its place with the flight recorder.
    pub(crate) ticket: Option<Ticket>,
    /// Whether it will be started again: then it is kept.
    pub(crate) again: bool,
    pub(crate) completion: Arc<Completion>,
}

/// What an operation is started with.
pub(crate) struct OpStart {
    pub(crate) serial: u64,
    pub(crate) descriptor: Descriptor,
    pub(crate) hash: u64,
    pub(crate) group: Arc<GroupInfo>,
    pub(crate) program: Arc<Program>,
    pub(crate) memory: OpMemory,
    pub(crate) mix: MixWeights,
    pub(crate) pairs: Pairs,
    pub(crate) then: Option<Box<Then>>,
    pub(crate) counts: Vec<u64>,
    pub(crate) weight: Weight,
    pub(crate) user: Option<UserReduction>,
    /// Whose error feedback is used; `None` where nothing is lost.
    pub(crate) tensor: Option<u64>,
    /// Where this rank's result of a reduction will be.
    pub(crate) result: Option<Span>,
    pub(crate) started: Duration,
    pub(crate) deadline: Duration,
    pub(crate) warn_at: Duration,
    pub(crate) tolerant: bool,
    /// The members' memory, for the steps of a fused plan.
    pub(crate) members: Option<Box<Members>>,
    /// Whether others may write to the caller's buffer from the start.
    pub(crate) touched: bool,
    pub(crate) completion: Arc<Completion>,
}

/// What changes from run to run of an operation that is started many times.
pub(crate) struct Run {
    pub(crate) serial: u64,
    pub(crate) id: OpId,
    pub(crate) started: Duration,
    pub(crate) deadline: Duration,
    pub(crate) warn_at: Duration,
}

impl OpState {
    pub(crate) fn new(s: OpStart) -> OpState {
        let n = s.program.steps.len();
        let receives_left = s.program.n_receives;
        let mut slots = vec![0; s.program.plan.n_slots as usize];
        if let Some(own) = slots.first_mut() {
            *own = s.weight.bits();
        }
        OpState {
            serial: s.serial,
            id: s.descriptor.id,
            descriptor: s.descriptor,
            hash: s.hash,
            peers: s.program.peers(),
            waits: s.program.waits.clone(),
            phase: vec![Phase::Waiting; n],
            xfers: vec![None; n],
            arrived_weight: vec![0; n],
            decoding: vec![kernels::Decoding::default(); n],
            left_there: vec![],
            held: vec![],
            told: vec![],
            copies: None,
            no_copies: false,
            slots,
            user: s.user,
            broken: None,
            tensor: s.tensor,
            residual: None,
            result: s.result,
            own_weight: s.weight.bits(),
            described: vec![false; s.group.world_ranks.len()],
            left: n as u32,
            group: s.group,
            program: s.program,
            memory: s.memory,
            mix: s.mix,
            pairs: s.pairs,
            then: s.then,
            counts: s.counts,
            status: Status::Running,
            suspect: None,
            inherited: false,
            started: s.started,
            deadline: s.deadline,
            warn_at: Some(s.warn_at),
            alarm: None,
            tolerant: s.tolerant,
            without: vec![],
            absent: vec![],
            denied: vec![],
            averages: vec![],
            receives_left,
            touched: s.touched,
            members: s.members,
            local: None,
            bytes_sent: 0,
            ticket: None,
            again: false,
            completion: s.completion,
        }
    }

    /// As when it was made, under another number. Allocates nothing.
    pub(crate) fn reset(&mut self, run: &Run) {
        self.serial = run.serial;
        self.id = run.id;
        self.descriptor.id = run.id;
        self.hash = stable_hash(&[&self.descriptor.to_bytes()]);
        self.waits.copy_from_slice(&self.program.waits);
        self.phase.fill(Phase::Waiting);
        self.xfers.fill(None);
        self.arrived_weight.fill(0);
        self.decoding.fill(kernels::Decoding::default());
        self.left_there.clear();
        self.held.clear();
        self.told.clear();
        self.broken = None;
        self.residual = None;
        self.slots.fill(0);
        if let Some(own) = self.slots.first_mut() {
            *own = self.own_weight;
        }
        self.described.fill(false);
        self.left = self.phase.len() as u32;
        self.status = Status::Running;
        self.inherited = false;
        self.suspect = None;
        self.started = run.started;
        self.deadline = run.deadline;
        self.warn_at = Some(run.warn_at);
        self.alarm = None;
        for list in [&mut self.without, &mut self.absent, &mut self.denied] {
            list.clear();
        }
        self.averages.clear();
        self.receives_left = self.program.n_receives;
        self.touched = false;
        self.bytes_sent = 0;
    }

    /// When it wants to be looked at next.
    pub(crate) fn due(&self) -> Duration {
        let due = match self.status {
            Status::Running => self.deadline,
            Status::Asking { until } => until,
        };
        self.warn_at.map_or(due, |w| w.min(due))
    }

    /// Whether a step is to wait until it is known who is missing; then it is kept for that time.
    ///
    /// So a tolerant average either takes all of a neighbour's elements or none.
    pub(crate) fn puts_off(&mut self, step: u32) -> bool {
        let average = matches!(self.program.steps[step as usize].action, Action::Mix { .. });
        let wait = self.tolerant && average && self.receives_left > 0;
        if wait {
            self.averages.push(step);
        }
        wait
    }

    /// Something that was put off and need not wait any longer.
    pub(crate) fn due_average(&mut self) -> Option<u32> {
        if self.receives_left > 0 {
            return None;
        }
        self.averages.pop()
    }

    /// About how many bytes a step computes.
    pub(crate) fn cost(&self, step: u32) -> u64 {
        let (span, times) = match &self.program.steps[step as usize].action {
            Action::Fold { dst, operands, .. } => (*dst, operands.len()),
            Action::Copy { dst, .. } => (*dst, 1),
            Action::Weigh { span, .. }
            | Action::Divide { span, .. }
            | Action::Recode { span, .. }
            | Action::Compensate { span, .. } => (*span, 1),
            Action::Mix { own, operands, .. } => (*own, operands.len() + 1),
            Action::GroupFold { at, len, .. } => {
                (Span::user(*at, *len), self.group.world_ranks.len())
            }
            Action::GroupCopy { dst, .. } => (*dst, 1),
            _ => return 0,
        };
        let size = self.memory.type_of(span.buf).size() as u64;
        span.len.saturating_mul(size).saturating_mul(times as u64)
    }

    /// Whether the elements of a span were to come from somebody who is missing.
    pub(crate) fn is_missing(&self, span: Span) -> bool {
        let mut steps = self.program.steps.iter();
        steps.any(|step| match step.action {
            Action::Recv { from, dst, .. } => dst == span && self.absent.contains(&from),
            _ => false,
        })
    }

    /// A neighbour's part of a gather that has not come whole is zeros, whatever of it has come.
    pub(crate) fn clear_missing(&mut self) {
        if self.absent.is_empty() || self.descriptor.kind != OpKind::NeighbourGather {
            return;
        }
        let program = Arc::clone(&self.program);
        for step in &program.steps {
            if let Action::Recv { from, dst, .. } = step.action
                && self.absent.contains(&from)
            {
                self.memory.bytes_mut(dst).fill(0);
            }
        }
    }

    fn weight(&self, slot: u32) -> Weight {
        Weight::from_bits(self.slots[slot as usize])
    }

    /// Σw at the end, for means.
    pub(crate) fn total_weight(&self) -> Weight {
        self.program
            .plan
            .total
            .map_or(Weight::ZERO, |slot| self.weight(slot))
    }

    /// The weight that travels with a send.
    pub(crate) fn sent_weight(&self, step: u32) -> u64 {
        match self.program.steps[step as usize].action {
            Action::Send {
                weight: Some(slot), ..
            } => self.slots[slot as usize],
            // Plans whose counts only pairs of ranks share have no weights.
            Action::Send { to, .. } => self.pairs.sent_to(to),
            _ => 0,
        }
    }

    /// Whether counts are told from pair to pair.
    pub(crate) fn is_pairwise(&self) -> bool {
        !self.pairs.is_same()
    }

    /// Whether a rank of the group sends this rank as many elements as are expected; if not, how many of each.
    pub(crate) fn pair_agrees(&self, from: Rank, sent: u64) -> Result<(), (u64, u64)> {
        match self.pairs.expected_from(from) {
            Some(expected) if expected != sent => Err((expected, sent)),
            _ => Ok(()),
        }
    }

    /// What of a send or receive is on the wire.
    pub(crate) fn wire(&self, step: u32) -> Wire {
        let (codec, wire, span) = match &self.program.steps[step as usize].action {
            Action::Send {
                codec, wire, src, ..
            } => (*codec, *wire, *src),
            Action::Recv {
                codec, wire, dst, ..
            } => (*codec, *wire, *dst),
            other => unreachable!("{other:?} has no wire"),
        };
        let dtype = self.memory.type_of(wire);
        let plain = || span.len * dtype.size() as u64;
        Wire {
            dtype,
            unit: codec.unit(dtype),
            // Codecs are planned for what they apply to.
            bytes: codec.wire_bytes(dtype, span.len).unwrap_or_else(plain),
        }
    }

    /// A send whose bytes leave as they are.
    pub(crate) fn lendable(&self, step: u32) -> Option<Span> {
        match self.program.steps[step as usize].action {
            Action::Send {
                src,
                codec: Codec::None,
                scale,
                wire,
                ..
            } if self.factor(scale) == 1.0
                && self.memory.type_of(wire) == self.memory.type_of(src.buf) =>
            {
                Some(src)
            }
            _ => None,
        }
    }

    fn factor(&self, scale: Option<u32>) -> f64 {
        scale.map_or(1.0, |i| self.mix.to[i as usize])
    }

    /// Fills a send's bytes from `at` on.
    pub(crate) fn fill(&self, step: u32, mut at: u64, out: &mut dyn Outlet) {
        let Action::Send {
            src, codec, scale, ..
        } = self.program.steps[step as usize].action
        else {
            unreachable!("only sends are filled");
        };
        if let Some(copies) = &self.copies
            && copies.fill(step, at, out)
        {
            return;
        }
        let wire = self.wire(step);
        let (unit, factor) = (u64::from(wire.unit), self.factor(scale));
        let from_type = self.memory.type_of(src.buf);
        while at < wire.bytes {
            let room = out.room();
            let n = (room.len() as u64).min(wire.bytes - at) / unit * unit;
            if n == 0 {
                return;
            }
            let room = &mut room[..n as usize];
            if codec == Codec::None && wire.dtype != from_type {
                // Partial results of 16-bit floats leave in the type that the plan says; they have no factors.
                let part = Span {
                    at: src.at + at / unit,
                    len: n / unit,
                    ..src
                };
                kernels::convert(room, wire.dtype, self.memory.bytes(part), from_type);
            } else {
                kernels::encode_at(codec, from_type, room, self.memory.bytes(src), at, factor);
            }
            out.commit(n as usize);
            at += n;
        }
    }

    /// A receive's head has come.
    pub(crate) fn open(&mut self, step: u32, weight: u64) {
        self.arrived_weight[step as usize] = weight;
    }

    /// Takes a receive's bytes from `at` on.
    pub(crate) fn take(&mut self, step: u32, at: u64, part: &mut dyn Inlet) {
        let Action::Recv {
            dst,
            codec,
            arrive,
            weight,
            ..
        } = self.program.steps[step as usize].action
        else {
            unreachable!("only receives take");
        };
        let wire = self.wire(step);
        // A contribution of weight 0 is not read, wherever it comes from.
        let empty = weight.is_some() && self.arrived_weight[step as usize] == 0;
        let stored = arrive == Arrive::Store && codec == Codec::None && !empty;
        if stored && self.broken.is_none() && self.memory.type_of(dst.buf) == wire.dtype {
            let done = at / u64::from(wire.unit);
            let rest = Span {
                at: dst.at + done,
                len: dst.len - done,
                ..dst
            };
            if part.copy_to(self.memory.bytes_mut(rest)) > 0 {
                self.touch(rest);
            }
            return;
        }
        let bytes = part.peek();
        let unit = u64::from(wire.unit);
        let n = (bytes.len() as u64).min(wire.bytes - at) / unit;
        let taken = (n * unit) as usize;
        if self.broken.is_some() {
            // Nothing of it counts any more.
        } else if n > 0 && codec != Codec::None {
            if !empty {
                self.touch(dst);
                let to_type = self.memory.type_of(dst.buf);
                let state = &mut self.decoding[step as usize];
                let message = self.memory.bytes_mut(dst);
                kernels::decode_at(codec, to_type, message, &bytes[..taken], at, state);
            }
        } else if n > 0 {
            let span = Span {
                at: dst.at + at / unit,
                len: n,
                ..dst
            };
            self.arrive(
                span,
                arrive,
                (!empty).then_some(&bytes[..taken]),
                wire.dtype,
            );
        }
        part.consume(taken);
    }

    /// Elements come to a span; `None`: of weight 0, so that they are not read.
    fn arrive(&mut self, span: Span, arrive: Arrive, bytes: Option<&[u8]>, dtype: DType) {
        let to_type = self.memory.type_of(span.buf);
        let (incoming_first, there) = match (arrive, bytes) {
            (Arrive::Store, None) | (Arrive::Fold { there: None, .. }, None) => return,
            (Arrive::Store, Some(bytes)) => {
                self.touch(span);
                kernels::convert(self.memory.bytes_mut(span), to_type, bytes, dtype);
                return;
            }
            (
                Arrive::Fold {
                    incoming_first,
                    there,
                },
                _,
            ) => (incoming_first, there),
        };
        self.touch(span);
        let there = there.map(|slot| self.weight(slot));
        let reduce = self.program.plan.reduce;
        let to = self.memory.bytes_mut(span);
        match (bytes, there) {
            // Nothing comes in, but what is there still has to become w·x, as its fold would have made it.
            (None, Some(w)) => kernels::weigh(to_type, to, w),
            (None, None) => {}
            (Some(bytes), Some(w)) => {
                kernels::combine_weighted(to_type, to, bytes, incoming_first, w);
            }
            (Some(bytes), None) if reduce == Reduce::User => {
                let x = user::Elements { bytes, dtype };
                let called = match &self.user {
                    Some(f) => user::combine(f, to, to_type, x, incoming_first),
                    None => Err("it is not there".into()),
                };
                self.called(called);
            }
            (Some(bytes), None) => kernels::combine(to_type, reduce, to, bytes, incoming_first),
        }
    }

    /// What became of a call of the user's reduction.
    fn called(&mut self, called: Result<(), String>) {
        if let Err(panic) = called
            && self.broken.is_none()
        {
            let name = self.user.as_ref().map_or("", |f| f.name());
            let cause = Cause::Panicked {
                op: self.descriptor.name(),
                what: format!("reduction '{name}'"),
                by: self.group.rank,
                panic,
            };
            self.broken = Some(cause.into());
        }
    }

    /// A receive is complete: its weight goes to its slot. `false` where the sum of weights leaves the range.
    pub(crate) fn settle(&mut self, step: u32) -> bool {
        let Action::Recv {
            arrive,
            weight: Some(slot),
            ..
        } = self.program.steps[step as usize].action
        else {
            return true;
        };
        let arrived = self.arrived_weight[step as usize];
        let there = match arrive {
            Arrive::Store => 0,
            Arrive::Fold { there, .. } => there.map_or(0, |s| self.slots[s as usize]),
        };
        let Some(sum) = arrived.checked_add(there) else {
            return false;
        };
        self.slots[slot as usize] = sum;
        true
    }

    /// What was written to its memory, as far as is known, where it fails because of what somebody called: then not everybody has met, and nobody has written to another's.
    pub(crate) fn touched_by_itself(&self) -> bool {
        self.touched && self.then.is_none() && !self.local.as_ref().is_some_and(|l| l.meets())
    }

    /// Whether somebody else has given the operation up, so that its steps count for nothing.
    pub(crate) fn is_void(&self) -> bool {
        self.members.as_ref().is_some_and(|m| m.void)
    }

    pub(crate) fn set_slot(&mut self, slot: u32, weight: u64) {
        self.slots[slot as usize] = weight;
    }

    pub(crate) fn touch(&mut self, span: Span) {
        self.touched |= span.buf == gaggle_collectives::Buf::User && span.len > 0;
    }

    /// Runs a step that needs no network. `false` where a sum of weights leaves the range.
    pub(crate) fn compute(&mut self, step: u32) -> bool {
        let program = Arc::clone(&self.program);
        match &program.steps[step as usize].action {
            Action::Fold { dst, operands, sum } => return self.fold(*dst, operands, *sum),
            Action::Weigh { span, slot } => {
                let w = self.weight(*slot);
                if w != Weight::ZERO && w != Weight::ONE {
                    self.touch(*span);
                    let dtype = self.memory.type_of(span.buf);
                    kernels::weigh(dtype, self.memory.bytes_mut(*span), w);
                }
            }
            Action::Divide { span, slot } => {
                let w = self.weight(*slot);
                if w != Weight::ZERO && w != Weight::ONE {
                    self.touch(*span);
                    let dtype = self.memory.type_of(span.buf);
                    kernels::divide(dtype, self.memory.bytes_mut(*span), w);
                }
            }
            Action::Copy {
                src,
                dst,
                unless_zero,
            } => {
                if unless_zero.is_none_or(|slot| self.weight(slot) != Weight::ZERO) {
                    self.touch(*dst);
                    let (to_type, from_type) =
                        (self.memory.type_of(dst.buf), self.memory.type_of(src.buf));
                    let stores = self.stores(self.members.as_ref().map_or(1, |m| m.count()));
                    let (to, others) = self.memory.split(*dst);
                    match others.get(*src) {
                        Some(from) if to_type == from_type => {
                            copy_window(WindowMut::from(to), Window::from(from), stores);
                        }
                        Some(from) => kernels::convert(to, to_type, from, from_type),
                        None => {}
                    }
                }
            }
            Action::Recode {
                span,
                codec,
                unless_zero,
            } => {
                if unless_zero.is_none_or(|slot| self.weight(slot) != Weight::ZERO) {
                    self.touch(*span);
                    let dtype = self.memory.type_of(span.buf);
                    kernels::recode(*codec, dtype, self.memory.bytes_mut(*span));
                }
            }
            Action::Mix {
                dst,
                own,
                operands,
                form,
                codec,
            } => self.average((*dst, *own), operands, *form, *codec),
            Action::Compensate {
                span,
                residual,
                codec,
                unless_zero,
            } => {
                if unless_zero.is_none_or(|slot| self.weight(slot) != Weight::ZERO) {
                    self.touch(*span);
                    let (lo, n) = (*residual as usize, span.len as usize);
                    let kept = self.residual.as_deref_mut();
                    let kept = kept.and_then(|kept| kept.get_mut(lo..lo.checked_add(n)?));
                    let kept = kept.expect(
                        "a plan with feedback is started with a residual as long as the buffer",
                    );
                    kernels::compensate(*codec, self.memory.bytes_mut(*span), kept);
                }
            }
            Action::GroupFold { at, len, sum, .. } => return self.group_fold(*at, *len, *sum),
            Action::GroupCopy { from, src, dst } => self.group_copy(*from, *src, *dst),
            Action::Arrive { .. } | Action::AwaitAll { .. } => {
                unreachable!("a program meets by messages")
            }
            Action::Send { .. } | Action::Recv { .. } => unreachable!("messages go to a transport"),
        }
        true
    }

    fn fold(&mut self, dst: Span, operands: &[Operand], sum: Option<u32>) -> bool {
        let mut total = 0u64;
        if let Some(sum) = sum {
            for o in operands {
                let w = o.slot.map_or(0, |s| self.slots[s as usize]);
                let Some(t) = total.checked_add(w) else {
                    return false;
                };
                total = t;
            }
            self.slots[sum as usize] = total;
            if total == 0 {
                return true;
            }
        }
        self.touch(dst);
        let weights: SmallVec<[Option<Weight>; 16]> = operands
            .iter()
            .map(|o| o.slot.map(|s| self.weight(s)))
            .collect();
        let (reduce, how) = (self.program.plan.reduce, self.how());
        let dtype = self.memory.type_of(dst.buf);
        let (to, others) = self.memory.split(dst);
        if reduce == Reduce::User {
            let elements = |o: &Operand| {
                let bytes = others.get(o.span)?;
                let dtype = others.type_of(o.span.buf);
                Some(user::Elements { bytes, dtype })
            };
            let operands: SmallVec<[Option<user::Elements<'_>>; 16]> =
                operands.iter().map(elements).collect();
            let called = match &self.user {
                Some(f) => user::fold(f, to, dtype, &operands),
                None => Err("it is not there".into()),
            };
            drop(operands);
            self.called(called);
            return true;
        }
        if self.left_there.is_empty() {
            let terms: SmallVec<[kernels::Term<'_>; 16]> = operands
                .iter()
                .zip(weights)
                .map(|(o, weight)| kernels::Term {
                    source: source(&others, o.span),
                    weight,
                })
                .collect();
            kernels::fold_with(dtype, reduce, to, &terms, how);
            return true;
        }
        let elements = to.len() / dtype.size();
        let mut terms = SmallVec::<[kernels::Term<'_>; 16]>::new();
        for (o, weight) in operands.iter().zip(weights) {
            let there = source_there(&self.left_there, o, |dtype| elements * dtype.size());
            let Ok(there) = there else {
                // It was there when the message came, and heaps do not shrink.
                self.broken = Some(Error::internal("a contribution is not mapped any more"));
                return true;
            };
            let source = there.unwrap_or_else(|| source(&others, o.span));
            terms.push(kernels::Term { source, weight });
        }
        let to = WindowMut::from(to);
        kernels::fold_windows(dtype, reduce, &[to], &terms, how, Stores::Cached);
        true
    }

    /// How contributions are folded.
    pub(crate) fn how(&self) -> kernels::How {
        let plan = &self.program.plan;
        let sum = matches!(plan.reduce, Reduce::Sum | Reduce::Mean);
        kernels::How {
            exact: self.descriptor.mode.mode == Mode::Exact
                && plan.kind.reduces()
                && sum
                && self.descriptor.dtype.is_float(),
            divisor: self.other_divisor().filter(|_| self.divides_in_folds()),
        }
    }

    /// What a mean is divided by where that is not Σw.
    fn other_divisor(&self) -> Option<Weight> {
        let plan = &self.program.plan;
        let other = plan.kind.reduces()
            && plan.reduce == Reduce::Mean
            && self.descriptor.divisor == Divisor::InitialWorld;
        other.then(|| Weight::samples(self.group.initial_size))
    }

    /// Whether every fold of the plan is of all contributions.
    fn divides_in_folds(&self) -> bool {
        let plan = &self.program.plan;
        plan.world > 1 && folding(plan.kind, plan.algorithm) == Folding::AtOnce
    }

    /// Every step is over: a mean by another divisor than Σw, which plans with partial results divide by, becomes what was asked for.
    pub(crate) fn finish(&mut self) {
        let Some(divisor) = self.other_divisor().filter(|_| !self.divides_in_folds()) else {
            return;
        };
        let total = self.total_weight();
        let (Some(span), true) = (self.result, total != divisor && total != Weight::ZERO) else {
            return;
        };
        let whole = kernels::Term {
            source: kernels::Source::Dst,
            weight: Some(total),
        };
        let how = kernels::How {
            exact: self.descriptor.mode.mode == Mode::Exact,
            divisor: Some(divisor),
        };
        let dtype = self.memory.type_of(span.buf);
        let to = self.memory.bytes_mut(span);
        kernels::fold_with(dtype, Reduce::Mean, to, &[whole], how);
    }

    /// Peers of the steps that are not over and that `peer` picks, as group ranks, ascending.
    fn pending_peers(&self, peer: impl Fn(&Action) -> Option<Rank>) -> Vec<Rank> {
        let steps = self.program.steps.iter().zip(&self.phase);
        let mut ranks: Vec<Rank> = steps
            .filter(|(_, phase)| **phase != Phase::Over)
            .filter_map(|(step, _)| peer(&step.action))
            .collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Group ranks to which something is still to be sent, ascending.
    fn unsent(&self) -> Vec<Rank> {
        if let Some(local) = &self.local {
            return local.unsent();
        }
        self.pending_peers(|action| match action {
            Action::Send { to, .. } => Some(*to),
            _ => None,
        })
    }

    /// Group ranks whose messages have not come, ascending; where all have, those whose messages lie with them and are not yet confirmed.
    fn not_come(&self) -> Vec<Rank> {
        let recv = |action: &Action| match action {
            Action::Recv { from, .. } => Some(*from),
            _ => None,
        };
        let all = self.pending_peers(recv);
        if self.left_there.is_empty() {
            return all;
        }
        let steps = self.program.steps.iter().zip(&self.phase).enumerate();
        let mut missing: Vec<Rank> = steps
            .filter(|(i, (_, phase))| **phase != Phase::Over && !self.lies_there(*i as u32))
            .filter_map(|(_, (step, _))| recv(&step.action))
            .collect();
        missing.sort_unstable();
        missing.dedup();
        if missing.is_empty() { all } else { missing }
    }

    /// Group ranks whose messages are still awaited, ascending; where none are, those that do not take theirs.
    pub(crate) fn awaited(&self) -> Vec<Rank> {
        let ranks = match &self.local {
            Some(local) => local.awaited(),
            None => self.not_come(),
        };
        if ranks.is_empty() {
            self.unsent()
        } else {
            ranks
        }
    }

    /// Group ranks from which something is to come, or to which something is to go.
    pub(crate) fn open_peers(&self) -> Vec<Rank> {
        if self.local.is_some() {
            return self.awaited();
        }
        self.pending_peers(|action| match action {
            Action::Recv { from, .. } => Some(*from),
            Action::Send { to, .. } => Some(*to),
            _ => None,
        })
    }

    /// Ranks of the job that have not been sent all that is theirs.
    pub(crate) fn unserved(&self) -> Vec<Rank> {
        self.unsent()
            .into_iter()
            .map(|r| self.world_rank(r))
            .collect()
    }

    /// Ranks of the job with which messages are exchanged.
    pub(crate) fn all_peers(&self) -> Vec<Rank> {
        self.peers.iter().map(|r| self.world_rank(*r)).collect()
    }

    pub(crate) fn world_rank(&self, rank: Rank) -> Rank {
        self.group.world_ranks[rank.idx()]
    }

    pub(crate) fn group_rank(&self, world: Rank) -> Option<Rank> {
        group_rank(&self.group, world)
    }
}

/// The number in the group of a rank of the job.
pub(crate) fn group_rank(group: &GroupInfo, world: Rank) -> Option<Rank> {
    group
        .world_ranks
        .iter()
        .position(|r| *r == world)
        .map(|i| Rank(i as u32))
}

fn source<'a>(others: &Others<'a>, span: Span) -> kernels::Source<'a> {
    match others.get(span) {
        None => kernels::Source::Dst,
        Some(bytes) => kernels::Source::Bytes {
            bytes,
            dtype: others.type_of(span.buf),
        },
    }
}
