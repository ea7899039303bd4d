//! How an operation gets into flight: its number, its memory, and what may stand in its way.

use crate::{
    discover::counts_id,
    op::{OpStart, OpState},
    protocol::{Head, Progress, Word},
    select::Identity,
    state::{Later, State, control_word},
    sync::Arc,
    verdict::{aborted, concerns},
};
use gaggle_core::{Class, Descriptor, Down, Error, OpId, Rank};

impl State {
    /// Takes the next number of a lane or a tag, or the caller's round. `Err`: the operation cannot be started.
    pub(crate) fn next_id(
        &mut self,
        group: u64,
        lane: u32,
        identity: Identity,
        name: &str,
    ) -> Result<OpId, Error> {
        let of_group = group;
        let (group, lane) = identity.stream(group, lane);
        let state = self.lanes.entry((group, lane)).or_default();
        state.group = Some(of_group);
        let class = identity.class();
        match identity {
            Identity::Next | Identity::Tagged { .. } => {
                let seq = state.clock.take();
                Ok(OpId {
                    group,
                    lane,
                    class,
                    seq,
                })
            }
            Identity::Round(t) => {
                if let Some(last) = state.last_round.filter(|last| t <= *last) {
                    return Err(Error::invalid(
                        name,
                        format!(
                            "round {t} on lane {lane} after round {last}: rounds of a lane only grow"
                        ),
                    ));
                }
                state.last_round = Some(t);
                Ok(OpId {
                    group,
                    lane,
                    class,
                    seq: t,
                })
            }
        }
    }

    /// Puts a planned operation into flight.
    pub(crate) fn start(&mut self, mut s: OpStart) {
        let plan = &s.program.plan;
        let dtype = plan.kind.scratch_type(s.memory.shape().dtype);
        let scratch = self.take_scratch(plan.scratch_len, dtype.size());
        s.memory.attach_scratch(scratch, plan.scratch_len, dtype);
        self.enqueue(Box::new(OpState::new(s)));
    }

    /// Puts an operation that has its number and its memory into flight.
    pub(crate) fn enqueue(&mut self, mut op: Box<OpState>) {
        let (id, descriptor, serial) = (op.id, op.descriptor, op.serial);
        op.ticket = self.flight.start(&op);
        let idx = self.free.pop().unwrap_or_else(|| {
            self.ops.push(None);
            self.ops.len() - 1
        });
        // Refused, it runs no step: nothing is sent, nothing written.
        let obstacle = self
            .obstacle(idx, &mut op)
            .or_else(|| self.lend_residual(&mut op).err());
        op.completion.begin(idx, serial);
        let (empty, program) = (op.left == 0, Arc::clone(&op.program));
        let local = op.local.is_some();
        self.ops[idx] = Some(op);
        self.by_id.insert(id, idx);
        self.rearm(idx);
        if id.class == Class::Neighbour {
            self.forget_earlier_rounds(id);
        }
        if let Some(error) = obstacle {
            return self.later.push_back(Later::Fail(idx, serial, error));
        }
        for (step, waits) in program.waits.iter().enumerate() {
            if *waits == 0 && !local {
                self.release(idx, step as u32);
            }
        }
        if empty && !local {
            return self.complete(idx);
        }
        let mut agreed = true;
        let early = self.take_early(&id);
        for (from, head) in &early {
            agreed &= self.agrees(idx, *from, head);
        }
        self.give_early(early);
        if self.troubles.disputed(&id, &descriptor) {
            self.dispute(idx);
        } else if agreed && self.troubles.known(&id) {
            self.describe(id, descriptor);
        }
        if local {
            self.fly(idx, serial);
        }
    }

    /// Tells everybody what this rank calls, once.
    pub(crate) fn describe(&mut self, id: OpId, descriptor: Descriptor) {
        if self.troubles.say(id) {
            control_word(
                &mut self.later,
                Word::Describe(id, Progress::Running(descriptor)),
            );
        }
    }

    pub(crate) fn take_scratch(&mut self, elems: u64, size: usize) -> Vec<u64> {
        let words = (elems as usize * size).div_ceil(8);
        let fits = self.scratch_pool.iter().position(|s| s.len() >= words);
        match fits.or_else(|| self.scratch_pool.len().checked_sub(1)) {
            Some(i) if words > 0 => self.scratch_pool.swap_remove(i),
            _ => vec![],
        }
    }

    /// Why an operation cannot succeed from the start.
    ///
    /// A tolerant operation does without whoever stands in its way.
    fn obstacle(&mut self, idx: usize, op: &mut OpState) -> Option<Error> {
        let id = op.id;
        if let Some(error) = &self.closed {
            return Some(error.clone());
        }
        let lane = self.lanes.get_mut(&(id.group, id.lane));
        if let Some(error) = lane.and_then(|l| l.sticky.take()) {
            op.inherited = true;
            return Some(error);
        }
        let failed = self.troubles.failed(&id);
        if op.tolerant {
            for word in failed.iter().filter(|word| concerns(op, word)) {
                let without = Later::Without(idx, op.serial, word.from);
                self.later.push_back(without);
            }
        } else if let Some(word) = failed.iter().find(|word| concerns(op, word)) {
            return Some(self.blame_error(op, &word.blame));
        }
        if let Some((by, reason)) = self.poisoned.get(&op.group.id) {
            return Some(aborted(op, *by, reason));
        }
        // Who has merely left may still have sent its part; if not, its link says so when the message is posted.
        let (everybody, tolerant) = (id.class.is_collective(), op.tolerant);
        let down = &self.down;
        let lost = |world: Rank| match &down[world.idx()] {
            Some(how @ Down::Lost(_)) => Some((world, how.clone())),
            _ => None,
        };
        if everybody {
            let lost = op.group.world_ranks.iter().find_map(|r| lost(*r));
            return lost.map(|(rank, how)| self.gone_error(op, rank, &how));
        }
        let mut lost = op.peers.iter().filter_map(|r| lost(op.world_rank(*r)));
        if tolerant {
            let without = lost.map(|(world, _)| Later::Without(idx, op.serial, world));
            self.later.extend(without);
            return None;
        }
        let lost = lost.next();
        lost.map(|(rank, how)| self.gone_error(op, rank, &how))
    }

    pub(crate) fn take_early(&mut self, id: &OpId) -> Vec<(Rank, Head)> {
        let early = self.early.remove(id).unwrap_or_default();
        self.early_heads -= early.len();
        early
    }

    /// The list's room is used again.
    pub(crate) fn give_early(&mut self, mut list: Vec<(Rank, Head)>) {
        const KEPT: usize = 64;
        if list.capacity() > 0 && self.early_pool.len() < KEPT {
            list.clear();
            self.early_pool.push(list);
        }
    }

    /// A skipped round's messages would hold the link's credit for ever.
    pub(crate) fn forget_earlier_rounds(&mut self, id: OpId) {
        let stale: Vec<OpId> = self
            .early
            .keys()
            .filter(|e| {
                let rounds = matches!(e.class, Class::Neighbour | Class::NeighbourData);
                // Who is still counting will want the data.
                let counting = counts_id(**e).is_some_and(|c| self.by_id.contains_key(&c));
                (e.group, e.lane) == (id.group, id.lane) && rounds && e.seq < id.seq && !counting
            })
            .copied()
            .collect();
        for op in stale {
            let early = self.take_early(&op);
            self.give_early(early);
            self.later.push_back(Later::Forget(op));
        }
    }
}
