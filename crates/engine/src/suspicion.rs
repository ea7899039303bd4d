//! What the state does when something is wrong with an operation: ask, tell, judge.

use crate::{
    discover::counts_id,
    op::{OpState, Status},
    protocol::{Blame, Head, Progress, Word},
    state::{Late, Later, MAX_LATE, State, control_word},
    sync::{Arc, Weak},
    trouble::FailedAt,
    verdict::{aborted, concerns, judge, mismatch, names, pair_mismatch},
};
use gaggle_core::{Cause, Class, Descriptor, Down, Error, GroupInfo, OpId, OpKind, Rank};

impl State {
    /// Compares an operation with what a rank of the job sends for it. Where they differ, whatever follows from that has been set going.
    pub(crate) fn agrees(&mut self, idx: usize, from: Rank, head: &Head) -> bool {
        let Some(op) = self.ops[idx].as_deref() else {
            return true;
        };
        if op.hash != head.hash {
            let id = op.id;
            if let Some(descriptor) = head.descriptor {
                let progress = Progress::Running(descriptor);
                self.troubles.answer(id, from, progress, self.now);
            }
            self.dispute(idx);
            return false;
        }
        let Some(peer) = op.group_rank(from).filter(|_| op.is_pairwise()) else {
            return true;
        };
        match op.pair_agrees(peer, head.weight) {
            Ok(()) => true,
            Err((expected, sent)) => {
                let error = pair_mismatch(op, peer, expected, sent);
                self.later.push_back(Later::Fail(idx, op.serial, error));
                false
            }
        }
    }

    /// Somebody calls something else under the same number: everybody is asked, and told.
    pub(crate) fn dispute(&mut self, idx: usize) {
        let Some(op) = self.ops[idx].as_deref_mut() else {
            return;
        };
        let (id, descriptor, deadline) = (op.id, op.descriptor, op.deadline);
        if op.status == Status::Running {
            // Even a dispute at the last moment leaves the others the time to answer.
            let until = deadline.max(self.now.saturating_add(self.config.grace));
            op.status = Status::Asking { until };
            self.rearm(idx);
        }
        self.describe(id, descriptor);
        self.try_verdict(idx, false);
    }

    /// Ends a questionable operation if everybody has answered, or if time is up.
    pub(crate) fn try_verdict(&mut self, idx: usize, time_is_up: bool) {
        let Some(op) = self.ops[idx].as_deref() else {
            return;
        };
        let Status::Asking { .. } = op.status else {
            return;
        };
        if time_is_up && let Some(peer) = op.suspect {
            let error = self.left_error(op, peer);
            return self.later.push_back(Later::Fail(idx, op.serial, error));
        }
        let verdict = self.verdict(op, time_is_up);
        if let Some(error) = verdict {
            self.later.push_back(Later::Fail(idx, op.serial, error));
        }
    }

    fn verdict(&self, op: &OpState, time_is_up: bool) -> Option<Error> {
        let answers = self.troubles.answers(&op.id);
        let fresh = self.troubles.fresh(&op.id, self.config.grace);
        let asked: Vec<Rank> = match op.id.class {
            c if c.is_collective() => (0..op.group.world_ranks.len() as u32).map(Rank).collect(),
            _ => op.peers.clone(),
        };
        judge(
            op,
            op.group.rank,
            &asked,
            (answers, &fresh),
            time_is_up,
            self.now,
        )
    }

    pub(crate) fn blame_error(&self, op: &OpState, blame: &Blame) -> Error {
        let name = op.descriptor.name();
        match blame {
            Blame::Timeout(ranks) => Cause::Timeout {
                op: name,
                waiting_for: ranks.iter().filter_map(|r| op.group_rank(*r)).collect(),
                waited: self.now.saturating_sub(op.started),
                detail: "found by another rank".into(),
                partly_written: op.touched,
            }
            .into(),
            Blame::Lost(rank, why) => self.gone_error(op, *rank, &Down::Lost(why.clone())),
            Blame::Left(rank) => self.gone_error(op, *rank, &Down::Left),
            Blame::Deviates(ranks, versions) => {
                let members = |ranks: &[Rank]| -> Vec<Rank> {
                    ranks.iter().filter_map(|r| op.group_rank(*r)).collect()
                };
                Cause::Mismatch {
                    op: op.descriptor.name(),
                    versions: versions
                        .iter()
                        .map(|(ranks, what)| (members(ranks), what.clone()))
                        .collect(),
                    deviating: members(ranks),
                    partly_written: op.touched_by_itself(),
                }
                .into()
            }
            Blame::Cancelled(by, reason) => Cause::Cancelled {
                op: name,
                by: op.group_rank(*by).unwrap_or(*by),
                reason: reason.clone(),
                partly_written: op.touched,
            }
            .into(),
            Blame::Panicked(by, what, panic) => Cause::Panicked {
                op: name,
                what: what.clone(),
                by: op.group_rank(*by).unwrap_or(*by),
                panic: panic.clone(),
            }
            .into(),
            Blame::Other(what) => Cause::Invalid {
                op: name,
                what: format!("failed on another rank: {what}"),
            }
            .into(),
        }
    }

    /// Somebody has left while something of its was missing: for the cause that it has named since, if it has.
    pub(crate) fn left_error(&self, op: &OpState, world_rank: Rank) -> Error {
        if self.troubles.disputed(&op.id, &op.descriptor)
            && let Some(error) = self.verdict(op, true)
            && matches!(error.cause(), Cause::Mismatch { .. })
        {
            // It has left because of that.
            return error;
        }
        match &self.last_blame[world_rank.idx()] {
            Some((when, _, blame @ (Blame::Timeout(_) | Blame::Lost(..))))
                if *when >= op.started =>
            {
                self.blame_error(op, blame)
            }
            // Its word came sooner than those of the ranks that it has compared.
            Some((_, id, blame @ Blame::Deviates(..))) if *id == op.id => {
                self.blame_error(op, blame)
            }
            _ => self.gone_error(op, world_rank, &Down::Left),
        }
    }

    pub(crate) fn gone_error(&self, op: &OpState, world_rank: Rank, how: &Down) -> Error {
        let rank = op.group_rank(world_rank).unwrap_or(world_rank);
        let name = op.descriptor.name();
        match how {
            Down::Lost(why) => Cause::PeerLost {
                op: name,
                rank,
                world_rank,
                why: why.clone(),
                partly_written: op.touched,
            }
            .into(),
            Down::Left => Cause::PeerLeft {
                op: name,
                rank,
                world_rank,
            }
            .into(),
        }
    }

    /// A rank is gone: operations that need it end, groups with it work no more.
    pub(crate) fn peer_gone(&mut self, world: Rank, how: &Down) {
        let Some(slot) = self.down.get_mut(world.idx()) else {
            return;
        };
        if matches!(slot, Some(Down::Lost(_))) || slot.as_ref() == Some(how) {
            return;
        }
        *slot = Some(how.clone());
        self.alarm();
        if let Down::Lost(why) = how {
            self.flight
                .keep(&format_args!("lost world {world} ({why})"));
        }
        for idx in 0..self.ops.len() {
            // What it has shown before it went is there, and may be all that is needed of it.
            self.poll_local(idx);
            let Some(op) = self.ops[idx].as_deref() else {
                continue;
            };
            let needs = match (op.id.class, how) {
                (c, Down::Lost(_)) if c.is_collective() => op.group_rank(world).is_some(),
                (_, Down::Lost(_)) => op.peers.iter().any(|r| op.world_rank(*r) == world),
                // The transport ends what can no longer come.
                (_, Down::Left) => false,
            };
            if needs && op.tolerant {
                self.later.push_back(Later::Without(idx, op.serial, world));
            } else if needs {
                let error = self.gone_error(op, world, how);
                self.later.push_back(Later::Fail(idx, op.serial, error));
            }
        }
    }

    pub(crate) fn failed_elsewhere(&mut self, id: OpId, word: FailedAt) {
        if let Some(last) = self.last_blame.get_mut(word.from.idx()) {
            *last = Some((self.now, id, word.blame.clone()));
        }
        if let Some(&idx) = self.by_id.get(&id) {
            let Some(op) = self.ops[idx].as_deref().filter(|op| concerns(op, &word)) else {
                return;
            };
            let later = if op.tolerant {
                Later::Without(idx, op.serial, word.from)
            } else {
                Later::Fail(idx, op.serial, self.blame_error(op, &word.blame))
            };
            self.later.push_back(later);
        } else if !self.is_over(&id) {
            self.troubles.fail(id, word);
            self.alarm();
        } else if names(&word.blame, self.me)
            && self.troubles.went_well(&id).is_some_and(|d| d.mode.counted)
        {
            // What this rank sent is not what its partner expected, and here it has long been over.
            self.report_late(id, Late::Blamed(word.blame));
        }
    }

    /// An operation that has gone well here has not elsewhere: the group's next one, which is carried out all the same, says so at its end.
    pub(crate) fn report_late(&mut self, id: OpId, late: Late) {
        let lane = self.lanes.get(&(id.group, id.lane));
        let group = lane.and_then(|lane| lane.group).unwrap_or(id.group);
        let known = self.late.entry(group).or_default();
        // Others may say so one after the other, and later than it has been fetched.
        if known.len() < MAX_LATE && self.troubles.report(&id) {
            known.push_back((id, late));
            self.alarm();
        }
    }

    /// Who only sends, or has all from those who call the same, may be done before anybody could object to an operation that has gone well here.
    pub(crate) fn late_dispute(&mut self, mine: Descriptor) {
        let early = mine.kind.is_rooted() || mine.kind == OpKind::Message;
        if early && self.troubles.disputed(&mine.id, &mine) {
            self.report_late(mine.id, Late::Disputed(mine));
        }
    }

    /// What the operation at hand has to report of an earlier one of its group.
    pub(crate) fn late_error(&self, op: &OpState, id: OpId, late: &Late) -> Error {
        match late {
            Late::Blamed(Blame::Deviates(ranks, versions)) => {
                let members = |ranks: &[Rank]| -> Vec<Rank> {
                    ranks.iter().filter_map(|r| op.group_rank(*r)).collect()
                };
                Cause::Mismatch {
                    op: id.to_string(),
                    versions: versions
                        .iter()
                        .map(|(ranks, what)| (members(ranks), what.clone()))
                        .collect(),
                    deviating: members(ranks),
                    partly_written: false,
                }
                .into()
            }
            Late::Blamed(blame) => self.blame_error(op, blame),
            Late::Disputed(mine) => {
                let mut versions = vec![(*mine, vec![op.group.rank])];
                for (rank, progress) in self.troubles.answers(&id) {
                    let (Some(rank), Progress::Running(d) | Progress::Over(Some(d))) =
                        (op.group_rank(*rank), progress)
                    else {
                        continue;
                    };
                    match versions.iter_mut().find(|(v, _)| v == d) {
                        Some((_, ranks)) => ranks.push(rank),
                        None => versions.push((*d, vec![rank])),
                    }
                }
                mismatch(id, false, versions)
            }
        }
    }

    /// Whether this rank has had the operation.
    pub(crate) fn is_over(&self, id: &OpId) -> bool {
        let Some(lane) = self.lanes.get(&(id.group, id.lane)) else {
            return false;
        };
        let begun = match id.class {
            Class::Collective | Class::CollectiveData | Class::Tagged => lane.clock.has_had(id.seq),
            Class::Neighbour | Class::NeighbourData => {
                lane.last_round.is_some_and(|last| id.seq <= last)
            }
        };
        // Data begins when the counts of its number are known.
        let counting = counts_id(*id).is_some_and(|counts| self.by_id.contains_key(&counts));
        begun && !counting && !self.by_id.contains_key(id)
    }

    /// Ranks of the job that this rank's operations wait for, or that it has just given up on: a hint for others, so a few are enough.
    fn held_up_by(&self) -> Vec<Rank> {
        const ENOUGH: usize = 16;
        // Among thousands of operations the first few hundred tell as much.
        let running = self.ops.iter().flatten().take(ENOUGH * ENOUGH);
        let mut ranks: Vec<Rank> = running
            .flat_map(|op| op.awaited().into_iter().map(|r| op.world_rank(r)))
            .chain(self.gave_up_on.iter().copied())
            .collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks.truncate(ENOUGH);
        ranks
    }

    /// How far this rank is with an operation.
    pub(crate) fn progress_of(&self, id: &OpId) -> Progress {
        match self.by_id.get(id).and_then(|idx| self.ops[*idx].as_deref()) {
            Some(op) => Progress::Running(op.descriptor),
            None if self.is_over(id) => Progress::Over(self.troubles.recent(id)),
            None => Progress::NotStarted(self.held_up_by()),
        }
    }

    /// A group is there, from now until its last handle and operation are gone.
    pub(crate) fn register(&mut self, info: &Arc<GroupInfo>) {
        // Those that are gone are swept out when as many again may have come.
        if self.groups.len() == self.groups.capacity() {
            self.groups.retain(|_, info| info.strong_count() > 0);
        }
        self.groups.insert(info.id, Arc::downgrade(info));
        // It was aborted elsewhere before it was made here.
        if let Some((by, reason)) = self.poisoned.get(&info.id).cloned() {
            self.abort(info.id, by, &reason);
        }
    }

    /// The identities of the tagged messages from and to this rank in a group that it knows.
    fn streams_of(&self, group: u64) -> Vec<u64> {
        let Some(info) = self.groups.get(&group).and_then(Weak::upgrade) else {
            return vec![];
        };
        let peers = (0..info.world_ranks.len() as u32).map(Rank);
        let both = |peer| {
            [
                OpId::link_group(group, peer, info.rank),
                OpId::link_group(group, info.rank, peer),
            ]
        };
        peers.flat_map(both).collect()
    }

    /// `by` is a number in the job.
    pub(crate) fn abort(&mut self, group: u64, by: Rank, reason: &str) {
        self.alarm();
        let streams = self.streams_of(group);
        for id in streams.iter().chain([&group]) {
            self.poisoned
                .entry(*id)
                .or_insert_with(|| (by, reason.to_owned()));
        }
        for (idx, op) in self.ops.iter().enumerate() {
            if let Some(op) = op.as_deref().filter(|op| op.group.id == group) {
                self.later
                    .push_back(Later::Fail(idx, op.serial, aborted(op, by, reason)));
            }
        }
        // What has come early would hold the links' credit for ever.
        let early = self.early.keys();
        let early = early.filter(|id| id.group == group || streams.contains(&id.group));
        let stale: Vec<OpId> = early.copied().collect();
        for id in stale {
            let early = self.take_early(&id);
            self.give_early(early);
            self.later.push_back(Later::Forget(id));
        }
    }

    pub(crate) fn abort_everywhere(&mut self, group: u64, reason: &str) {
        let first = !self.poisoned.contains_key(&group);
        self.abort(group, self.me, reason);
        if first {
            control_word(&mut self.later, Word::Abort(group, reason.to_owned()));
        }
    }
}
