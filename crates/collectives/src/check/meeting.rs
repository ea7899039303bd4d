//! What must hold where values meet: the same element, each contribution once, and weights where they belong.

use super::Fault;
use super::interpret::Run;
use super::values::{RankSet, Stage, Value};

impl Run<'_> {
    pub(super) fn weight_fault(&self, rank: usize, idx: u32, what: &'static str) -> Fault {
        Fault::Weight {
            at: self.world.at(rank, idx),
            what,
        }
    }

    /// One element's contributions, each from another rank.
    pub(super) fn check_joinable(
        &self,
        rank: usize,
        idx: u32,
        operands: &[Value],
    ) -> Result<(), Fault> {
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
            if !who.add(&facts.who) {
                self.disjoint_sum(rank, idx, facts.elem, &who, &facts.who)?;
            }
        }
        Ok(())
    }

    pub(super) fn disjoint_sum(
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

    pub(super) fn expect_stage(
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
    pub(super) fn expect_owners(
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

    pub(super) fn expect_weighted(
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
