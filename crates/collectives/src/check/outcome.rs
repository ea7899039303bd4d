//! What an operation promises, compared with what all ranks hold at the end.

use super::interpret::Run;
use super::matching::{self, Event, Links};
use super::values::{RankSet, Stage, Value};
use super::{Fault, Promise, Where, World};
use crate::plan::{Call, Request};
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

/// Whether weights matter.
pub(super) fn is_mean(request: &Request) -> bool {
    matches!(
        request.call,
        Call::AllReduce {
            reduce: Reduce::Mean,
            ..
        }
    )
}

/// Whether each rank's end implies every rank's start.
pub(super) fn check_barrier(
    world: &World<'_>,
    links: &Links,
    order: &[Event],
) -> Result<(), Fault> {
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

    /// Whether the execution has ended as promised.
    pub(super) fn check_end(&mut self, promise: &Promise) -> Result<(), Fault> {
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
            Call::Broadcast { root, .. } => {
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
            _ => {
                return Err(self.wrong(
                    rank,
                    elem,
                    "of an operation that the checker does not know",
                ));
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
