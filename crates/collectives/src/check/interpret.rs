//! Runs all ranks' plans together on symbolic values.

use super::matching::{Event, Links};
use super::outcome::Layout;
use super::values::{RankSet, Stage, UNDEFINED, Value, Values};
use super::{Fault, Promise, World, outcome};
use crate::plan::{Action, Arrive, Buf, Call, Operand, Slot, Span};
use gaggle_core::Codec;
use smallvec::SmallVec;
use std::collections::HashMap;

/// Whether the outcome is what the operation promises.
pub(super) fn check_values(
    world: &World<'_>,
    links: &Links,
    order: &[Event],
    promise: &Promise,
) -> Result<(), Fault> {
    let n = world.plans.len();
    let all = RankSet::of(0..n);
    // Means: all weights positive; every other one 0, both ways; all 0.
    let mut patterns = vec![all];
    if promise.requests.iter().any(outcome::is_mean) {
        patterns.push(RankSet::of((0..n).filter(|r| r % 2 == 0)));
        patterns.push(RankSet::of((0..n).filter(|r| r % 2 == 1)));
        patterns.push(RankSet::default());
    }
    for contributors in patterns {
        let mut run = Run::new(world, promise, contributors);
        for &event in order {
            run.event(links, event)?;
        }
        run.check_end()?;
    }
    if promise.requests.iter().any(|r| r.call == Call::Barrier) {
        outcome::check_barrier(world, links, order)?;
    }
    Ok(())
}

/// What happened, where sends and receives happen apart.
#[derive(Clone, Copy, Debug)]
pub(super) enum Happening {
    /// A step that is no message.
    Local(Event),
    /// A message left.
    Sent(Event),
    /// It was taken.
    Received(Event),
}

/// Whether what happened, in that order, led to what is promised.
pub(super) fn check_happenings(
    world: &World<'_>,
    links: &Links,
    happened: &[Happening],
    promise: &Promise,
) -> Result<(), Fault> {
    let all = RankSet::of(0..world.plans.len());
    let mut run = Run::new(world, promise, all);
    let mut on_the_way = HashMap::new();
    for &how in happened {
        match how {
            Happening::Local((rank, idx)) => run.local(rank as usize, idx)?,
            Happening::Sent((rank, idx)) => {
                let message = run.send(rank as usize, idx)?;
                on_the_way.insert((rank, idx), message);
            }
            Happening::Received((rank, idx)) => {
                let send = links.other((rank, idx));
                let message = send.and_then(|send| on_the_way.remove(&send));
                if let Some(message) = message {
                    run.recv(rank as usize, idx, message)?;
                }
            }
        }
    }
    run.check_end()
}

/// An element: what it holds and which step wrote it.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    pub(super) value: Value,
    pub(super) writer: Option<Event>,
}

pub(super) struct Memory {
    input: Vec<Cell>,
    pub(super) user: Vec<Cell>,
    scratch: Vec<Cell>,
    /// What error feedback keeps: the values, and whether each was added to something.
    residual: Vec<Value>,
    pub(super) residual_used: Vec<bool>,
    /// Whose weights a slot sums up.
    pub(super) slots: Vec<RankSet>,
}

impl Memory {
    fn cells(&mut self, span: Span) -> &mut [Cell] {
        let range = span.at as usize..span.end() as usize;
        match span.buf {
            Buf::Input => &mut self.input[range],
            Buf::User => &mut self.user[range],
            Buf::Scratch => &mut self.scratch[range],
        }
    }
}

/// What travels.
struct Message {
    values: Vec<Value>,
    weight: Option<RankSet>,
}

/// One execution, for one choice of weights that are not 0.
pub(super) struct Run<'a> {
    pub(super) world: &'a World<'a>,
    pub(super) promise: &'a Promise,
    pub(super) layouts: Vec<Layout>,
    /// Ranks whose weight is not 0; all of them where there are no weights.
    pub(super) contributors: RankSet,
    pub(super) memory: Vec<Memory>,
    pub(super) values: Values,
}

impl<'a> Run<'a> {
    fn new(world: &'a World<'a>, promise: &'a Promise, contributors: RankSet) -> Self {
        let mut values = Values::new();
        let layouts: Vec<Layout> = promise.requests.iter().map(outcome::layout).collect();
        let memory = |(rank, plan): (usize, &crate::plan::Plan)| {
            let cell = |value| Cell {
                value,
                writer: None,
            };
            let request = &promise.requests[rank];
            let mut holding = |buf, len| -> Vec<Cell> {
                (0..len)
                    .map(|i| match layouts[rank].contribution(request, buf, i) {
                        Some(elem) => cell(values.input(rank, elem)),
                        None => cell(UNDEFINED),
                    })
                    .collect()
            };
            let input = holding(Buf::Input, plan.input_len);
            let user = holding(Buf::User, plan.user_len);
            let n_residual = match request.feedback {
                true => plan.input_len.max(plan.user_len),
                false => 0,
            };
            let mut slots = vec![RankSet::default(); plan.n_slots as usize];
            if let Some(own) = slots.first_mut() {
                *own = RankSet::only(rank);
            }
            Memory {
                input,
                user,
                residual: (0..n_residual)
                    .map(|elem| values.residual(rank, elem))
                    .collect(),
                residual_used: vec![false; n_residual as usize],
                scratch: vec![cell(UNDEFINED); plan.scratch_len as usize],
                slots,
            }
        };
        Run {
            world,
            promise,
            contributors,
            memory: world.plans.iter().enumerate().map(memory).collect(),
            layouts,
            values,
        }
    }

    fn action(&self, rank: usize, idx: u32) -> &'a Action {
        &self.world.steps[rank][idx as usize].action
    }

    /// Whether a sum of weights is not 0.
    fn counts(&self, weights: &RankSet) -> bool {
        !weights.common(&self.contributors).is_empty()
    }

    /// Whether a slot's weight is not 0; `true` where there is no slot.
    fn slot_counts(&self, rank: usize, slot: Option<Slot>) -> bool {
        slot.is_none_or(|s| self.counts(&self.memory[rank].slots[s as usize]))
    }

    fn read(&mut self, rank: usize, span: Span) -> Vec<Value> {
        let cells = self.memory[rank].cells(span);
        cells.iter().map(|c| c.value).collect()
    }

    /// What is there, where all of it has been written.
    fn read_defined(&mut self, rank: usize, idx: u32, span: Span) -> Result<Vec<Value>, Fault> {
        let values = self.read(rank, span);
        match values.iter().position(|&v| v == UNDEFINED) {
            None => Ok(values),
            Some(i) => Err(Fault::Undefined {
                at: self.world.at(rank, idx),
                elem: span.at + i as u64,
            }),
        }
    }

    /// Returns whether anything changed.
    fn write(&mut self, rank: usize, idx: u32, span: Span, values: &[Value]) -> bool {
        self.write_from(rank, (rank as u32, idx), span, values)
    }

    fn write_from(&mut self, rank: usize, by: Event, span: Span, values: &[Value]) -> bool {
        let mut changed = false;
        for (cell, &value) in self.memory[rank].cells(span).iter_mut().zip(values) {
            changed |= cell.value != value;
            *cell = Cell {
                value,
                writer: Some(by),
            };
        }
        changed
    }

    fn event(&mut self, links: &Links, (rank, idx): Event) -> Result<(), Fault> {
        match links.other((rank, idx)) {
            Some((to, recv)) => {
                let message = self.send(rank as usize, idx)?;
                self.recv(to as usize, recv, message)
            }
            None => self.local(rank as usize, idx),
        }
    }

    fn send(&mut self, rank: usize, idx: u32) -> Result<Message, Fault> {
        let Action::Send {
            src,
            wire,
            codec,
            weight,
            scale,
            ..
        } = *self.action(rank, idx)
        else {
            return Ok(Message {
                values: Vec::new(),
                weight: None,
            });
        };
        let mut values = if self.slot_counts(rank, weight) {
            self.read_defined(rank, idx, src)?
        } else {
            self.read(rank, src)
        };
        for value in &mut values {
            if let Some(factor) = scale {
                *value = self.values.scaled(*value, factor);
            }
            *value = self.values.converted(*value, wire);
        }
        if self.slot_counts(rank, weight) {
            self.encode(rank, idx, &mut values, codec)?;
        }
        Ok(Message {
            values,
            weight: weight.map(|s| self.memory[rank].slots[s as usize].clone()),
        })
    }

    /// As a message, or a copy that must equal one, comes out of the codec.
    fn encode(
        &mut self,
        rank: usize,
        idx: u32,
        values: &mut [Value],
        codec: Codec,
    ) -> Result<(), Fault> {
        if codec == Codec::None {
            return Ok(());
        }
        let feedback = self.promise.requests[rank].feedback;
        if feedback && !self.values.is_decoded(values, codec) {
            return Err(Fault::Feedback {
                at: self.world.at(rank, idx),
                what: "loses what no residual keeps",
            });
        }
        self.values.code(values, codec);
        // A contribution on its way to whoever folds it, and the result: more is a rounding per hop.
        if values.iter().any(|&v| self.values.facts(v).codings > 2) {
            return Err(Fault::BadOperand {
                at: self.world.at(rank, idx),
                what: "rounds to the codec what was rounded to it twice already",
            });
        }
        Ok(())
    }

    fn compensate(
        &mut self,
        rank: usize,
        idx: u32,
        span: Span,
        residual: u64,
        codec: Codec,
    ) -> Result<bool, Fault> {
        let fault = |what| Fault::Feedback {
            at: self.world.at(rank, idx),
            what,
        };
        if !self.promise.requests[rank].feedback {
            return Err(fault("adds a residual that nobody asked for"));
        }
        let n = self.memory[rank].residual.len() as u64;
        if residual.checked_add(span.len).is_none_or(|end| end > n) {
            return Err(fault("adds a residual beyond the tensor's end"));
        }
        let range = residual as usize..(residual + span.len) as usize;
        if self.memory[rank].residual_used[range.clone()].contains(&true) {
            return Err(fault("adds a residual a second time"));
        }
        let mut values = self.read_defined(rank, idx, span)?;
        for (&value, at) in values.iter().zip(residual..) {
            let elem = self.values.facts(value).elem;
            if elem != at {
                return Err(Fault::Misaligned {
                    at: self.world.at(rank, idx),
                    one: elem,
                    other: at,
                });
            }
        }
        let memory = &mut self.memory[rank];
        self.values
            .compensate(&mut values, codec, &mut memory.residual[range.clone()]);
        memory.residual_used[range].fill(true);
        Ok(self.write(rank, idx, span, &values))
    }

    /// Every member's elements, folded into every member's buffer.
    fn group_fold(
        &mut self,
        rank: usize,
        idx: u32,
        from: Buf,
        dst: Span,
        sum: Option<Slot>,
    ) -> Result<bool, Fault> {
        let n = self.world.plans.len();
        let all = RankSet::of(0..n);
        let mut columns = Vec::with_capacity(n);
        let src = Span { buf: from, ..dst };
        let counts = |r: usize| sum.is_none() || self.counts(&RankSet::only(r));
        for r in (0..n).filter(|&r| counts(r)).collect::<Vec<_>>() {
            let values = self.read(r, src);
            if let Some(i) = values.iter().position(|&v| v == UNDEFINED) {
                return Err(Fault::Undefined {
                    at: self.world.at(rank, idx),
                    elem: src.at + i as u64,
                });
            }
            columns.push(values);
        }
        if let Some(sum) = sum {
            self.memory[rank].slots[sum as usize] = all;
        }
        if columns.is_empty() {
            return Ok(false);
        }
        let stages: &[Stage] = match sum {
            Some(_) => &[Stage::Raw],
            None => &[Stage::Raw, Stage::Plain],
        };
        let mut values = Vec::with_capacity(dst.len as usize);
        for i in 0..dst.len as usize {
            let row: SmallVec<[Value; 8]> = columns.iter().map(|c| c[i]).collect();
            self.check_joinable(rank, idx, &row)?;
            for &operand in &row {
                self.expect_stage(rank, idx, operand, stages)?;
            }
            values.push(match sum {
                Some(_) => self.values.averaged(&row, Buf::User),
                None => self.values.folded(&row, Buf::User),
            });
        }
        let mut changed = false;
        for r in 0..n {
            changed |= self.write_from(r, (rank as u32, idx), dst, &values);
        }
        Ok(changed)
    }

    fn recv(&mut self, rank: usize, idx: u32, message: Message) -> Result<(), Fault> {
        let Action::Recv {
            dst,
            arrive,
            weight,
            ..
        } = *self.action(rank, idx)
        else {
            return Ok(());
        };
        let there = match arrive {
            Arrive::Store => {
                self.store(rank, idx, dst, &message);
                None
            }
            Arrive::Fold {
                incoming_first,
                there: None,
            } => {
                self.combine(rank, idx, dst, &message.values, incoming_first)?;
                None
            }
            Arrive::Fold {
                incoming_first,
                there: Some(there),
            } => {
                let there = self.memory[rank].slots[there as usize].clone();
                self.combine_weighted(rank, idx, dst, &message, &there, incoming_first)?;
                Some(there)
            }
        };
        if let (Some(slot), Some(carried)) = (weight, message.weight) {
            let sum = match there {
                None => carried,
                Some(there) => self.disjoint_sum(rank, idx, dst.at, &carried, &there)?,
            };
            self.memory[rank].slots[slot as usize] = sum;
        }
        Ok(())
    }

    fn store(&mut self, rank: usize, idx: u32, dst: Span, message: &Message) {
        if message.weight.as_ref().is_none_or(|w| self.counts(w)) {
            let values: Vec<Value> = message
                .values
                .iter()
                .map(|&v| self.values.converted(v, dst.buf))
                .collect();
            self.write(rank, idx, dst, &values);
        }
    }

    fn combine(
        &mut self,
        rank: usize,
        idx: u32,
        dst: Span,
        incoming: &[Value],
        incoming_first: bool,
    ) -> Result<(), Fault> {
        let there = self.read_defined(rank, idx, dst)?;
        let mut values = Vec::with_capacity(there.len());
        for (&v, &t) in incoming.iter().zip(&there) {
            let pair = if incoming_first { [v, t] } else { [t, v] };
            self.check_joinable(rank, idx, &pair)?;
            for &operand in &pair {
                self.expect_stage(rank, idx, operand, &[Stage::Raw, Stage::Plain])?;
            }
            values.push(
                self.values
                    .combined(pair[0], pair[1], Stage::Plain, dst.buf),
            );
        }
        self.write(rank, idx, dst, &values);
        Ok(())
    }

    /// `incoming` is Σ wx already, what is there has still to be weighed; a side of weight 0 is not read.
    fn combine_weighted(
        &mut self,
        rank: usize,
        idx: u32,
        dst: Span,
        message: &Message,
        there: &RankSet,
        incoming_first: bool,
    ) -> Result<(), Fault> {
        let Some(carried) = &message.weight else {
            return Err(self.weight_fault(rank, idx, "folds a message without a weight"));
        };
        let mut values = Vec::with_capacity(message.values.len());
        let own = if self.counts(there) {
            self.read_defined(rank, idx, dst)?
        } else if self.counts(carried) {
            Vec::new()
        } else {
            return Ok(());
        };
        for (i, &incoming) in message.values.iter().enumerate() {
            let mut sides: SmallVec<[Value; 2]> = SmallVec::new();
            if self.counts(carried) {
                self.expect_weighted(rank, idx, incoming, carried, Stage::Weighted)?;
                sides.push(incoming);
            }
            if let Some(&own) = own.get(i) {
                self.expect_weighted(rank, idx, own, there, Stage::Raw)?;
                sides.push(self.values.weighed(own, dst.buf));
            }
            self.check_joinable(rank, idx, &sides)?;
            if !incoming_first {
                sides.reverse();
            }
            values.push(match sides[..] {
                [first, second] => self
                    .values
                    .combined(first, second, Stage::Weighted, dst.buf),
                _ => sides[0],
            });
        }
        self.write(rank, idx, dst, &values);
        Ok(())
    }

    fn local(&mut self, rank: usize, idx: u32) -> Result<(), Fault> {
        let (dst, changed) = match self.action(rank, idx) {
            Action::Send { .. } | Action::Recv { .. } => return Ok(()),
            Action::Fold {
                dst,
                operands,
                sum: None,
            } => (*dst, self.fold(rank, idx, *dst, operands)?),
            Action::Fold {
                dst,
                operands,
                sum: Some(sum),
            } => (*dst, self.average(rank, idx, *dst, operands, *sum)?),
            Action::Weigh { span, slot } => (*span, self.weigh(rank, idx, *span, *slot)?),
            Action::Divide { span, slot } => (*span, self.divide(rank, idx, *span, *slot)?),
            Action::Copy {
                src,
                dst,
                unless_zero,
            } => (*dst, self.copy(rank, idx, *src, *dst, *unless_zero)?),
            Action::Recode {
                span,
                codec,
                unless_zero,
            } => {
                if !self.slot_counts(rank, *unless_zero) {
                    return Ok(());
                }
                let mut values = self.read_defined(rank, idx, *span)?;
                self.encode(rank, idx, &mut values, *codec)?;
                (*span, self.write(rank, idx, *span, &values))
            }
            Action::Mix {
                dst,
                own,
                operands,
                form,
                codec,
            } => {
                let mut columns = Vec::with_capacity(operands.len());
                for &operand in operands {
                    columns.push(self.read_defined(rank, idx, operand)?);
                }
                let mut values = self.read_defined(rank, idx, *own)?;
                for (i, value) in values.iter_mut().enumerate() {
                    let others: SmallVec<[Value; 4]> = columns.iter().map(|c| c[i]).collect();
                    *value = self.values.mixed(*value, &others, *form, *codec);
                }
                (*dst, self.write(rank, idx, *dst, &values))
            }
            Action::Compensate {
                span,
                residual,
                codec,
                unless_zero,
            } => {
                if !self.slot_counts(rank, *unless_zero) {
                    return Ok(());
                }
                (*span, self.compensate(rank, idx, *span, *residual, *codec)?)
            }
            Action::Arrive { .. } | Action::AwaitAll { .. } => return Ok(()),
            Action::GroupFold { from, at, len, sum } => {
                let dst = Span::user(*at, *len);
                (dst, self.group_fold(rank, idx, *from, dst, *sum)?)
            }
            Action::GroupCopy { from, src, dst } => {
                let mut values = self.read(from.idx(), *src);
                if let Some(i) = values.iter().position(|&v| v == UNDEFINED) {
                    return Err(Fault::Undefined {
                        at: self.world.at(rank, idx),
                        elem: src.at + i as u64,
                    });
                }
                for value in &mut values {
                    *value = self.values.converted(*value, dst.buf);
                }
                (*dst, self.write(rank, idx, *dst, &values))
            }
        };
        // With weights of 0 a step may rightly have no effect.
        let all_count = self.contributors == RankSet::of(0..self.world.plans.len());
        if all_count && !changed && dst.len > 0 {
            return Err(Fault::Idle {
                at: self.world.at(rank, idx),
            });
        }
        Ok(())
    }

    fn fold(
        &mut self,
        rank: usize,
        idx: u32,
        dst: Span,
        operands: &[Operand],
    ) -> Result<bool, Fault> {
        if operands.iter().any(|o| o.slot.is_some()) {
            return Err(self.weight_fault(rank, idx, "folds weights and does not keep their sum"));
        }
        let mut columns = Vec::with_capacity(operands.len());
        for operand in operands {
            columns.push(self.read_defined(rank, idx, operand.span)?);
        }
        let mut values = Vec::with_capacity(dst.len as usize);
        for i in 0..dst.len as usize {
            let row: SmallVec<[Value; 8]> = columns.iter().map(|c| c[i]).collect();
            self.check_joinable(rank, idx, &row)?;
            for &operand in &row {
                self.expect_stage(rank, idx, operand, &[Stage::Raw, Stage::Plain])?;
            }
            values.push(self.values.folded(&row, dst.buf));
        }
        Ok(self.write(rank, idx, dst, &values))
    }

    fn average(
        &mut self,
        rank: usize,
        idx: u32,
        dst: Span,
        operands: &[Operand],
        sum: Slot,
    ) -> Result<bool, Fault> {
        let mut total = RankSet::default();
        let mut columns = Vec::new();
        let mut weights = Vec::new();
        for operand in operands {
            let Some(slot) = operand.slot else {
                return Err(self.weight_fault(rank, idx, "averages an operand without a weight"));
            };
            let weight = self.memory[rank].slots[slot as usize].clone();
            total = self.disjoint_sum(rank, idx, dst.at, &total, &weight)?;
            if self.counts(&weight) {
                columns.push(self.read_defined(rank, idx, operand.span)?);
                weights.push(weight);
            }
        }
        self.memory[rank].slots[sum as usize] = total;
        if columns.is_empty() {
            return Ok(false);
        }
        let mut values = Vec::with_capacity(dst.len as usize);
        for i in 0..dst.len as usize {
            let row: SmallVec<[Value; 8]> = columns.iter().map(|c| c[i]).collect();
            self.check_joinable(rank, idx, &row)?;
            for (&operand, weight) in row.iter().zip(&weights) {
                self.expect_stage(rank, idx, operand, &[Stage::Raw, Stage::Mean])?;
                self.expect_owners(rank, idx, operand, weight)?;
            }
            values.push(self.values.averaged(&row, dst.buf));
        }
        Ok(self.write(rank, idx, dst, &values))
    }

    fn weigh(&mut self, rank: usize, idx: u32, span: Span, slot: Slot) -> Result<bool, Fault> {
        let weight = self.memory[rank].slots[slot as usize].clone();
        if !self.counts(&weight) {
            return Ok(false);
        }
        let mut values = self.read_defined(rank, idx, span)?;
        for value in &mut values {
            self.expect_weighted(rank, idx, *value, &weight, Stage::Raw)?;
            *value = self.values.weighed(*value, span.buf);
        }
        Ok(self.write(rank, idx, span, &values))
    }

    fn divide(&mut self, rank: usize, idx: u32, span: Span, slot: Slot) -> Result<bool, Fault> {
        let weight = self.memory[rank].slots[slot as usize].clone();
        if !self.counts(&weight) {
            return Ok(false);
        }
        let mut values = self.read_defined(rank, idx, span)?;
        for value in &mut values {
            self.expect_weighted(rank, idx, *value, &weight, Stage::Weighted)?;
            *value = self.values.divided(*value, span.buf);
        }
        Ok(self.write(rank, idx, span, &values))
    }

    fn copy(
        &mut self,
        rank: usize,
        idx: u32,
        src: Span,
        dst: Span,
        unless_zero: Option<Slot>,
    ) -> Result<bool, Fault> {
        if !self.slot_counts(rank, unless_zero) {
            return Ok(false);
        }
        let mut values = self.read_defined(rank, idx, src)?;
        for value in &mut values {
            *value = self.values.converted(*value, dst.buf);
        }
        Ok(self.write(rank, idx, dst, &values))
    }
}
