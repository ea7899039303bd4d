//! Runs all ranks' plans together on symbolic values and compares the outcome with the promise.

use super::matching::{self, Event, Links};
use super::values::{RankSet, Stage, UNDEFINED, Value, Values};
use super::{Fault, Promise, Where, World};
use crate::plan::{Action, Arrive, Buf, Call, Operand, Request, Slot, Span};
use gaggle_core::{Rank, Reduce};
use smallvec::SmallVec;

/// Elements in the caller's buffer.
pub(super) fn user_len(request: &Request) -> u64 {
    match request.call {
        Call::AllGather { .. } => u64::from(request.world) * request.len,
        Call::Barrier => 0,
        _ => request.len,
    }
}

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
    if promise.requests.iter().any(is_mean) {
        patterns.push(RankSet::of((0..n).filter(|r| r % 2 == 0)));
        patterns.push(RankSet::of((0..n).filter(|r| r % 2 == 1)));
        patterns.push(RankSet::default());
    }
    for contributors in patterns {
        let mut run = Run::new(world, contributors);
        for &event in order {
            run.event(links, event)?;
        }
        run.check_end(promise)?;
    }
    if promise.requests.iter().any(|r| r.call == Call::Barrier) {
        check_barrier(world, links, order)?;
    }
    Ok(())
}

fn is_mean(request: &Request) -> bool {
    matches!(
        request.call,
        Call::AllReduce {
            reduce: Reduce::Mean,
            ..
        }
    )
}

fn check_barrier(world: &World<'_>, links: &Links, order: &[Event]) -> Result<(), Fault> {
    for (rank, heard) in matching::heard(world, links, order).iter().enumerate() {
        let unheard: Vec<Rank> = (0..heard.len())
            .filter(|&r| !heard[r])
            .map(|r| Rank(r as u32))
            .collect();
        if !unheard.is_empty() {
            return Err(Fault::Unheard {
                rank: Rank(rank as u32),
                n_steps: world.steps[rank].len() as u32,
                unheard,
            });
        }
    }
    Ok(())
}

/// An element: what it holds and which step wrote it.
#[derive(Clone, Copy)]
struct Cell {
    value: Value,
    writer: Option<u32>,
}

struct Memory {
    user: Vec<Cell>,
    scratch: Vec<Cell>,
    /// Whose weights a slot sums up.
    slots: Vec<RankSet>,
}

impl Memory {
    fn cells(&mut self, span: Span) -> &mut [Cell] {
        let range = span.at as usize..span.end() as usize;
        match span.buf {
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
struct Run<'a> {
    world: &'a World<'a>,
    /// Ranks whose weight is not 0; all of them where there are no weights.
    contributors: RankSet,
    memory: Vec<Memory>,
    values: Values,
}

impl<'a> Run<'a> {
    fn new(world: &'a World<'a>, contributors: RankSet) -> Self {
        let mut values = Values::new();
        let memory = |(rank, plan): (usize, &crate::plan::Plan)| {
            let cell = |value| Cell {
                value,
                writer: None,
            };
            let mut slots = vec![RankSet::default(); plan.n_slots as usize];
            if let Some(own) = slots.first_mut() {
                *own = RankSet::only(rank);
            }
            Memory {
                user: (0..plan.user_len)
                    .map(|elem| cell(values.input(rank, elem)))
                    .collect(),
                scratch: vec![cell(UNDEFINED); plan.scratch_len as usize],
                slots,
            }
        };
        Run {
            world,
            contributors,
            memory: world.plans.iter().enumerate().map(memory).collect(),
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
        let mut changed = false;
        for (cell, &value) in self.memory[rank].cells(span).iter_mut().zip(values) {
            changed |= cell.value != value;
            *cell = Cell {
                value,
                writer: Some(idx),
            };
        }
        changed
    }

    fn event(&mut self, links: &Links, (rank, idx): Event) -> Result<(), Fault> {
        match links[rank as usize][idx as usize] {
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
            *value = self.values.coded(*value, codec);
        }
        Ok(Message {
            values,
            weight: weight.map(|s| self.memory[rank].slots[s as usize].clone()),
        })
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
                for value in &mut values {
                    *value = self.values.coded(*value, *codec);
                }
                (*span, self.write(rank, idx, *span, &values))
            }
            Action::Mix {
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
                (*own, self.write(rank, idx, *own, &values))
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

/// What must hold where values meet.
impl Run<'_> {
    fn weight_fault(&self, rank: usize, idx: u32, what: &'static str) -> Fault {
        Fault::Weight {
            at: self.world.at(rank, idx),
            what,
        }
    }

    /// One element's contributions, each from another rank.
    fn check_joinable(&self, rank: usize, idx: u32, operands: &[Value]) -> Result<(), Fault> {
        let Some((&first, rest)) = operands.split_first() else {
            return Ok(());
        };
        let first = self.values.facts(first);
        let mut who = first.who.clone();
        for &operand in rest {
            let facts = self.values.facts(operand);
            if facts.elem != first.elem {
                return Err(Fault::Misaligned {
                    at: self.world.at(rank, idx),
                    one: first.elem,
                    other: facts.elem,
                });
            }
            who = self.disjoint_sum(rank, idx, facts.elem, &who, &facts.who)?;
        }
        Ok(())
    }

    fn disjoint_sum(
        &self,
        rank: usize,
        idx: u32,
        elem: u64,
        a: &RankSet,
        b: &RankSet,
    ) -> Result<RankSet, Fault> {
        let twice = a.common(b);
        if twice.is_empty() {
            return Ok(a.union(b));
        }
        Err(Fault::Twice {
            at: self.world.at(rank, idx),
            elem,
            contributors: twice.ranks(),
        })
    }

    fn expect_stage(
        &self,
        rank: usize,
        idx: u32,
        value: Value,
        allowed: &[Stage],
    ) -> Result<(), Fault> {
        let stage = self.values.facts(value).stage;
        if allowed.contains(&stage) {
            return Ok(());
        }
        let what = match stage {
            Stage::Undefined => "reads what nothing was written to",
            Stage::Raw => "meets a value that has not been weighed",
            Stage::Plain => "meets a value that has no weight",
            Stage::Weighted => "meets a value that has been weighed already",
            Stage::Mean => "meets a value that has been divided already",
            Stage::Mixed => "meets a neighbour's scaled value",
        };
        Err(self.weight_fault(rank, idx, what))
    }

    /// The contributions in a value are those whose weights are in the sum.
    fn expect_owners(
        &self,
        rank: usize,
        idx: u32,
        value: Value,
        weight: &RankSet,
    ) -> Result<(), Fault> {
        if self.values.facts(value).who == weight.common(&self.contributors) {
            Ok(())
        } else {
            Err(self.weight_fault(rank, idx, "meets a weight that is not the value's own"))
        }
    }

    fn expect_weighted(
        &self,
        rank: usize,
        idx: u32,
        value: Value,
        weight: &RankSet,
        stage: Stage,
    ) -> Result<(), Fault> {
        self.expect_stage(rank, idx, value, &[stage])?;
        self.expect_owners(rank, idx, value, weight)
    }
}

/// What must hold at the end.
impl Run<'_> {
    fn last(&self, rank: usize, elem: u64) -> Option<Where> {
        let writer = self.memory[rank].user[elem as usize].writer;
        writer.map(|idx| self.world.at(rank, idx))
    }

    fn wrong(&self, rank: usize, elem: u64, what: &'static str) -> Fault {
        Fault::Wrong {
            rank: Rank(rank as u32),
            elem,
            what,
            last: self.last(rank, elem),
        }
    }

    fn check_end(&mut self, promise: &Promise) -> Result<(), Fault> {
        for (rank, request) in promise.requests.iter().enumerate() {
            if is_mean(request) {
                self.check_total(rank)?;
            }
            for elem in 0..user_len(request) {
                self.check_element(promise, rank, elem)?;
            }
        }
        Ok(())
    }

    fn check_total(&self, rank: usize) -> Result<(), Fault> {
        let all = RankSet::of(0..self.world.plans.len());
        let total = self.world.plans[rank].total;
        let total = total.and_then(|t| self.memory[rank].slots.get(t as usize));
        let missing = all.without(&total.cloned().unwrap_or_default());
        if missing.is_empty() {
            return Ok(());
        }
        Err(Fault::Total {
            rank: Rank(rank as u32),
            missing: missing.ranks(),
        })
    }

    fn check_element(&mut self, promise: &Promise, rank: usize, elem: u64) -> Result<(), Fault> {
        let value = self.memory[rank].user[elem as usize].value;
        let request = &promise.requests[rank];
        let (want, what) = match &request.call {
            Call::AllReduce { reduce, .. } => {
                let alone = self.world.plans.len() == 1;
                if !alone && !self.contributors.is_empty() {
                    return self.check_reduced(rank, elem, *reduce);
                }
                let own = self.values.input(rank, elem);
                (own, "changed, though there is nothing to combine it with")
            }
            Call::Broadcast { root } => {
                let roots = self.values.input(root.idx(), elem);
                (roots, "that is not the root's")
            }
            Call::AllGather { .. } => {
                let owner = (elem / request.len) as usize;
                let owners = self.values.input(owner, elem);
                (owners, "that is not its owner's")
            }
            Call::Barrier => return Ok(()),
            Call::Mix { .. } => {
                let average = self.promised_mix(promise, rank, elem);
                (average, "that is not the average of its neighbours'")
            }
        };
        if value == want {
            Ok(())
        } else {
            Err(self.wrong(rank, elem, what))
        }
    }

    fn check_reduced(&self, rank: usize, elem: u64, reduce: Reduce) -> Result<(), Fault> {
        let value = self.memory[rank].user[elem as usize].value;
        let facts = self.values.facts(value);
        let missing = self.contributors.without(&facts.who);
        if !missing.is_empty() {
            return Err(Fault::Missing {
                rank: Rank(rank as u32),
                elem,
                missing: missing.ranks(),
                last: self.last(rank, elem),
            });
        }
        if facts.elem != elem {
            return Err(self.wrong(rank, elem, "holding another element's result"));
        }
        match (reduce, facts.stage) {
            (Reduce::Mean, Stage::Mean) => {}
            (Reduce::Mean, _) => {
                return Err(self.wrong(rank, elem, "not divided by the sum of the weights"));
            }
            (_, Stage::Plain) => {}
            _ => return Err(self.wrong(rank, elem, "that is not a plain reduction")),
        }
        if self.memory[0].user[elem as usize].value != value {
            return Err(Fault::Unequal {
                one: Rank(0),
                other: Rank(rank as u32),
                elem,
                last_one: self.last(0, elem),
                last_other: self.last(rank, elem),
            });
        }
        Ok(())
    }

    fn promised_mix(&mut self, promise: &Promise, rank: usize, elem: u64) -> Value {
        let request = &promise.requests[rank];
        let own = self.values.input(rank, elem);
        let Call::Mix { from, form, .. } = &request.call else {
            return own;
        };
        let mut operands: SmallVec<[Value; 4]> = SmallVec::new();
        for source in from {
            let mut value = self.values.input(source.idx(), elem);
            if let Some(Call::Mix {
                to, scaled: true, ..
            }) = promise.requests.get(source.idx()).map(|r| &r.call)
            {
                let place = to.iter().position(|r| r.idx() == rank);
                value = self
                    .values
                    .scaled(value, place.unwrap_or(usize::MAX) as u32);
            }
            operands.push(self.values.coded(value, request.codec));
        }
        self.values.mixed(own, &operands, *form, request.codec)
    }
}
