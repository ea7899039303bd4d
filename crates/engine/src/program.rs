//! A plan, unrolled for running: its steps with their successors, so that a finished step finds what it releases without a search.

use gaggle_collectives::{Action, Plan, PlanError, Request, Step, plan};
use std::collections::HashMap;

use crate::sync::Arc;

/// A plan ready to run. Shared by all runs with the same request.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) plan: Plan,
    pub(crate) steps: Vec<Step>,
    /// How many steps each one waits for.
    pub(crate) waits: Vec<u32>,
    /// `successors[starts[i]..starts[i + 1]]` wait for step `i`.
    starts: Vec<u32>,
    successors: Vec<u32>,
}

impl Program {
    pub(crate) fn new(plan: Plan) -> Program {
        let steps: Vec<Step> = plan.iter().collect();
        let mut starts = vec![0u32; steps.len() + 1];
        for step in &steps {
            for before in &step.after {
                starts[*before as usize + 1] += 1;
            }
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut next = starts.clone();
        let mut successors = vec![0u32; starts[steps.len()] as usize];
        for (i, step) in steps.iter().enumerate() {
            for before in &step.after {
                successors[next[*before as usize] as usize] = i as u32;
                next[*before as usize] += 1;
            }
        }
        let waits = steps.iter().map(|s| s.after.len() as u32).collect();
        Program {
            plan,
            steps,
            waits,
            starts,
            successors,
        }
    }

    pub(crate) fn successors(&self, step: u32) -> &[u32] {
        let (lo, hi) = (self.starts[step as usize], self.starts[step as usize + 1]);
        &self.successors[lo as usize..hi as usize]
    }

    /// World-independent: the group ranks this plan receives from or sends to, ascending.
    pub(crate) fn peers(&self) -> Vec<gaggle_core::Rank> {
        let mut peers: Vec<_> = self
            .steps
            .iter()
            .filter_map(|s| match s.action {
                Action::Send { to, .. } => Some(to),
                Action::Recv { from, .. } => Some(from),
                _ => None,
            })
            .collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}

/// Programs by request, so that a training loop plans once.
#[derive(Default)]
pub(crate) struct Programs {
    known: HashMap<Key, Arc<Program>>,
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    call: gaggle_collectives::Call,
    rank: gaggle_core::Rank,
    world: u32,
    len: u64,
    slice: u64,
    codec: gaggle_core::Codec,
    widen: bool,
}

/// More than any training job uses; a caller with ever new lengths must not grow the table for ever.
const MAX_KNOWN: usize = 512;

impl Programs {
    pub(crate) fn find(&mut self, request: &Request) -> Result<Arc<Program>, PlanError> {
        let key = Key {
            call: request.call.clone(),
            rank: request.rank,
            world: request.world,
            len: request.len,
            slice: request.slice,
            codec: request.codec,
            widen: request.widen,
        };
        if let Some(p) = self.known.get(&key) {
            return Ok(Arc::clone(p));
        }
        let program = Arc::new(Program::new(plan(request)?));
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(key, Arc::clone(&program));
        Ok(program)
    }
}
