//! What can be seen in one rank's plan alone: bounds, dependencies, slots and races.

use super::{Fault, World};
use crate::plan::{Action, Arrive, Buf, Slot, Span, Step};
use smallvec::SmallVec;

/// Checks the plan of `rank`.
pub(super) fn check_rank(world: &World<'_>, rank: usize) -> Result<(), Fault> {
    let steps = &world.steps[rank];
    for (idx, step) in steps.iter().enumerate() {
        let idx = idx as u32;
        if let Some(&after) = step.after.iter().find(|&&a| a >= idx) {
            return Err(Fault::BadDependency {
                at: world.at(rank, idx),
                after,
            });
        }
        check_bounds(world, rank, idx)?;
        check_remote_bounds(world, rank, idx)?;
        check_operands(&step.action).map_err(|what| Fault::BadOperand {
            at: world.at(rank, idx),
            what,
        })?;
    }
    let mut order = Order::of(steps);
    check_slots(world, rank, &mut order)?;
    check_races(world, rank, &mut order)
}

/// Whether one step waits for another, directly or through others.
struct Order<'a> {
    steps: &'a [Step],
    /// In which search a step was seen last.
    seen: Vec<u32>,
    n_searches: u32,
    stack: Vec<u32>,
}

impl<'a> Order<'a> {
    fn of(steps: &'a [Step]) -> Self {
        Order {
            steps,
            seen: vec![0; steps.len()],
            n_searches: 0,
            stack: Vec::new(),
        }
    }

    /// Whether `later` waits for `earlier`. Only steps between the two are looked at.
    fn holds(&mut self, earlier: u32, later: u32) -> bool {
        self.n_searches += 1;
        self.stack.clear();
        self.stack.push(later);
        while let Some(idx) = self.stack.pop() {
            for &a in &self.steps[idx as usize].after {
                if a == earlier {
                    return true;
                }
                let seen = &mut self.seen[a as usize];
                if a > earlier && *seen != self.n_searches {
                    *seen = self.n_searches;
                    self.stack.push(a);
                }
            }
        }
        false
    }
}

/// What a step touches, and whether it writes there.
pub(crate) fn touched(action: &Action) -> SmallVec<[(Span, bool); 8]> {
    let mut all = SmallVec::new();
    match action {
        Action::Send { src, .. } => all.push((*src, false)),
        Action::Recv { dst, .. } => all.push((*dst, true)),
        Action::Fold { dst, operands, .. } => {
            all.push((*dst, true));
            all.extend(operands.iter().map(|o| (o.span, false)));
        }
        Action::Weigh { span, .. } | Action::Divide { span, .. } | Action::Recode { span, .. } => {
            all.push((*span, true));
        }
        Action::Copy { src, dst, .. } => {
            all.push((*src, false));
            all.push((*dst, true));
        }
        Action::Compensate { span, .. } => all.push((*span, true)),
        Action::Arrive { .. } | Action::AwaitAll { .. } => {}
        Action::GroupFold { from, at, len, .. } => {
            let span = |buf| Span {
                buf,
                at: *at,
                len: *len,
            };
            all.push((span(*from), false));
            all.push((span(Buf::User), true));
        }
        Action::GroupCopy { dst, .. } => all.push((*dst, true)),
        Action::Mix {
            dst, own, operands, ..
        } => {
            if own != dst {
                all.push((*own, false));
            }
            all.push((*dst, true));
            all.extend(operands.iter().map(|&o| (o, false)));
        }
    }
    all
}

/// The slots that a step reads, and the one that it writes.
pub(crate) fn slots(action: &Action) -> (SmallVec<[Slot; 8]>, Option<Slot>) {
    let mut reads = SmallVec::new();
    let mut write = None;
    match action {
        Action::Send { weight, .. } => reads.extend(*weight),
        Action::Recv { arrive, weight, .. } => {
            if let Arrive::Fold { there, .. } = arrive {
                reads.extend(*there);
            }
            write = *weight;
        }
        Action::Fold { operands, sum, .. } => {
            reads.extend(operands.iter().filter_map(|o| o.slot));
            write = *sum;
        }
        Action::Weigh { slot, .. } | Action::Divide { slot, .. } => reads.push(*slot),
        Action::Copy { unless_zero, .. } | Action::Recode { unless_zero, .. } => {
            reads.extend(*unless_zero);
        }
        Action::Compensate { unless_zero, .. } => reads.extend(*unless_zero),
        Action::GroupFold { sum, .. } => write = *sum,
        Action::Mix { .. }
        | Action::Arrive { .. }
        | Action::AwaitAll { .. }
        | Action::GroupCopy { .. } => {}
    }
    (reads, write)
}

fn check_bounds(world: &World<'_>, rank: usize, idx: u32) -> Result<(), Fault> {
    let plan = &world.plans[rank];
    for (span, _) in touched(&world.steps[rank][idx as usize].action) {
        let len = match span.buf {
            Buf::Input => plan.input_len,
            Buf::User => plan.user_len,
            Buf::Scratch => plan.scratch_len,
        };
        if span.at.checked_add(span.len).is_none_or(|end| end > len) {
            return Err(Fault::OutOfBounds {
                at: world.at(rank, idx),
                span,
                len,
            });
        }
    }
    Ok(())
}

/// Spans of other ranks' memory lie in theirs.
fn check_remote_bounds(world: &World<'_>, rank: usize, idx: u32) -> Result<(), Fault> {
    for (owner, span, _) in super::remote::touched(world, rank, idx) {
        let plan = &world.plans[owner];
        let len = match span.buf {
            Buf::Input => plan.input_len,
            Buf::User => plan.user_len,
            Buf::Scratch => plan.scratch_len,
        };
        if span.at.checked_add(span.len).is_none_or(|end| end > len) {
            return Err(Fault::OutOfBounds {
                at: world.at(rank, idx),
                span,
                len,
            });
        }
    }
    match world.steps[rank][idx as usize].action {
        Action::GroupCopy { from, .. } if from.idx() >= world.plans.len() || from.idx() == rank => {
            Err(Fault::BadPeer {
                at: world.at(rank, idx),
                peer: from,
            })
        }
        _ => Ok(()),
    }
}

fn check_operands(action: &Action) -> Result<(), &'static str> {
    let fits = |dst: &Span, o: &Span| dst.len == o.len;
    if touched(action)
        .iter()
        .any(|(span, writes)| *writes && span.buf == Buf::Input)
    {
        return Err("writes what the caller gave to be read");
    }
    match action {
        Action::GroupFold { from, .. } if *from == Buf::Scratch => {
            return Err("folds scratch, which no other rank has mapped");
        }
        Action::GroupCopy { src, dst, .. } => {
            if src.buf == Buf::Scratch {
                return Err("copies scratch, which no other rank has mapped");
            }
            if !fits(dst, src) {
                return Err("copies between different lengths");
            }
        }
        Action::Fold { dst, operands, .. } => {
            if operands.len() < 2 {
                return Err("folds fewer than two operands");
            }
            if !operands.iter().all(|o| fits(dst, &o.span)) {
                return Err("folds operands of different lengths");
            }
            if operands
                .iter()
                .any(|o| o.span != *dst && o.span.overlaps(*dst))
            {
                return Err("an operand overlaps the result without being it");
            }
        }
        Action::Mix {
            dst, own, operands, ..
        } => {
            if !operands.iter().all(|o| fits(dst, o)) || !fits(dst, own) {
                return Err("averages operands of different lengths");
            }
            if operands.iter().any(|o| o.overlaps(*dst)) {
                return Err("an operand overlaps the result");
            }
            if own != dst && own.overlaps(*dst) {
                return Err("the own value overlaps the result without being it");
            }
        }
        Action::Copy { src, dst, .. } => {
            if !fits(dst, src) {
                return Err("copies between different lengths");
            }
            if src.overlaps(*dst) {
                return Err("copies onto its own source");
            }
        }
        Action::Recv {
            dst,
            wire,
            arrive: Arrive::Fold { .. },
            ..
        } if dst.buf != *wire => {
            return Err("folds what arrives in another type than it has there");
        }
        _ => {}
    }
    Ok(())
}

/// Slot 0 is there from the start; every other is written by one step, and read by steps that wait for it.
fn check_slots(world: &World<'_>, rank: usize, order: &mut Order<'_>) -> Result<(), Fault> {
    let n_slots = world.plans[rank].n_slots;
    let bad = |idx, slot, what| {
        Err(Fault::BadSlot {
            at: world.at(rank, idx),
            slot,
            what,
        })
    };
    let mut writers: Vec<Option<u32>> = vec![None; n_slots as usize];
    for (idx, step) in world.steps[rank].iter().enumerate() {
        let idx = idx as u32;
        let (reads, write) = slots(&step.action);
        if let Some(&slot) = reads.iter().chain(&write).find(|&&s| s >= n_slots) {
            return bad(idx, slot, "does not exist");
        }
        // A writer has a smaller index than its readers, or they could not wait for it.
        for &slot in reads.iter().filter(|&&s| s != 0) {
            match writers[slot as usize] {
                Some(w) if order.holds(w, idx) => {}
                _ => return bad(idx, slot, "is read without waiting for its writer"),
            }
        }
        if let Some(slot) = write {
            if slot == 0 || writers[slot as usize].is_some() {
                return bad(idx, slot, "is written twice");
            }
            writers[slot as usize] = Some(idx);
        }
    }
    Ok(())
}

/// Any two steps that touch a common element, one of them writing, are ordered.
fn check_races(world: &World<'_>, rank: usize, order: &mut Order<'_>) -> Result<(), Fault> {
    let mut touches: Vec<(Span, bool, u32)> = Vec::new();
    for (idx, step) in world.steps[rank].iter().enumerate() {
        let all = touched(&step.action).into_iter();
        touches.extend(all.map(|(span, writes)| (span, writes, idx as u32)));
    }
    touches.retain(|(span, ..)| span.len > 0);
    touches.sort_unstable();
    // Those that may still overlap what is to come.
    let mut open: Vec<(Span, bool, u32)> = Vec::new();
    for &(span, writes, idx) in &touches {
        open.retain(|(o, ..)| o.buf == span.buf && o.end() > span.at);
        for &(other, other_writes, other_idx) in &open {
            if idx == other_idx || !(writes || other_writes) {
                continue;
            }
            let (first, second) = (idx.min(other_idx), idx.max(other_idx));
            if !order.holds(first, second) {
                let at = span.at.max(other.at);
                return Err(Fault::Race {
                    first: world.at(rank, first),
                    second: world.at(rank, second),
                    span: Span {
                        buf: span.buf,
                        at,
                        len: span.end().min(other.end()) - at,
                    },
                });
            }
        }
        open.push((span, writes, idx));
    }
    Ok(())
}
