//! The survivors of a group agree on who they are, and go on as a new group.
//!
//! Every survivor calls; the lowest proposes once all who are alive have come; the record that a quorum has accepted is the one that everybody gets, whoever dies meanwhile. It is the single-decree consensus of Lamport (The Part-Time Parliament, 1998; Paxos Made Simple, 2001) over the control plane: a proposer asks a quorum for its promise to take no earlier ballot, takes over what any of them has accepted, and commits what a quorum accepts.
//! A quorum is more than half of the group's members, or exactly half where the lowest is among them: any two have a member in common, so that no two records are ever agreed on.
//!
//! Cost: 5 control messages per member, 5 flooding times.

use crate::{
    comm::EngineComm,
    drive::Shared,
    op::group_rank,
    protocol::{Ballot, Word},
    state::{State, control_word},
    sync::Arc,
    user,
};
use gaggle_core::{
    Cause, Communicator, Down, Error, Group, GroupInfo, Rank, descriptor::stable_hash, name_ranks,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

/// What is known of groups that are, or were, rebuilt.
#[derive(Default)]
pub(crate) struct Rebuilds {
    attempts: BTreeMap<u64, Attempt>,
    order: VecDeque<u64>,
}

/// Strangers' words must not grow the table for ever.
const MAX_ATTEMPTS: usize = 256;
/// How long a proposer waits for its quorum before it tries again with another ballot, and a member before it calls again.
const RETRY: Duration = Duration::from_millis(200);

type Members = Vec<Rank>;

/// One group's record, and the way to it.
#[derive(Default)]
struct Attempt {
    /// Ranks of the job that have called.
    joined: BTreeSet<Rank>,
    /// Ranks of the job that had called and have given up.
    withdrawn: BTreeSet<Rank>,
    /// This rank's own call, while it waits.
    called: Option<Called>,
    /// How this rank's last call ended, where not with the record.
    failed: Option<Error>,
    /// As an acceptor.
    promised: u64,
    accepted: Option<(u64, Members)>,
    /// As a proposer.
    proposal: Option<Proposal>,
    /// Largest ballot seen.
    latest: u64,
    decided: Option<Members>,
}

struct Called {
    info: Arc<GroupInfo>,
    started: Duration,
    until: Duration,
    retry_at: Duration,
}

struct Proposal {
    ballot: u64,
    /// Who has promised, and what they had accepted.
    promises: BTreeMap<Rank, Option<(u64, Members)>>,
    /// The record, once a quorum has promised.
    value: Option<Members>,
    accepted_by: BTreeSet<Rank>,
}

/// Whether these members decide for a group of `n`.
fn is_quorum(members: impl Iterator<Item = Rank>, n: usize) -> bool {
    let (mut count, mut lowest) = (0, false);
    for rank in members {
        count += 1;
        lowest |= rank == Rank(0);
    }
    2 * count > n || (2 * count == n && lowest)
}

impl Rebuilds {
    fn attempt(&mut self, group: u64) -> &mut Attempt {
        if !self.attempts.contains_key(&group) {
            self.order.push_back(group);
            while self.order.len() > MAX_ATTEMPTS {
                let idle = |g: &u64| self.attempts.get(g).is_none_or(|a| a.called.is_none());
                let Some(at) = self.order.iter().position(idle) else {
                    break;
                };
                if let Some(old) = self.order.remove(at) {
                    self.attempts.remove(&old);
                }
            }
        }
        self.attempts.entry(group).or_default()
    }

    /// When to look at them next.
    pub(crate) fn due(&self) -> Option<Duration> {
        let open = self.attempts.values().filter_map(Attempt::open);
        open.map(|c| c.until.min(c.retry_at)).min()
    }
}

impl Attempt {
    /// This rank's call, where it still waits.
    fn open(&self) -> Option<&Called> {
        self.called.as_ref().filter(|_| self.decided.is_none())
    }
}

impl State {
    /// This rank calls for a group to be rebuilt.
    fn call_for(&mut self, info: &Arc<GroupInfo>, limit: Duration) {
        // Whoever still waits in it comes out, and can call too.
        self.abort_everywhere(info.id, "the group is being rebuilt");
        let (now, me) = (self.now, self.me);
        let attempt = self.rebuilds.attempt(info.id);
        attempt.failed = None;
        attempt.joined.insert(me);
        let until = now.saturating_add(limit);
        match &mut attempt.called {
            // Two threads: the more patient one decides.
            Some(called) => called.until = called.until.max(until),
            called => {
                *called = Some(Called {
                    info: Arc::clone(info),
                    started: now,
                    until,
                    retry_at: now.saturating_add(RETRY),
                });
            }
        }
        control_word(&mut self.later, Word::Rebuild(info.id, Ballot::Join));
    }

    /// Another rank's word.
    pub(crate) fn rebuild_word(&mut self, group: u64, from: Rank, ballot: Ballot) {
        let attempt = self.rebuilds.attempt(group);
        let mut answer = None;
        match ballot {
            Ballot::Withdraw => {
                if attempt.joined.remove(&from) {
                    attempt.withdrawn.insert(from);
                }
            }
            Ballot::Join | Ballot::Prepare(_) if attempt.decided.is_some() => {
                if let Ballot::Join = ballot {
                    attempt.joined.insert(from);
                }
                answer = attempt.decided.clone().map(Ballot::Decided);
            }
            Ballot::Join => {
                attempt.joined.insert(from);
                attempt.withdrawn.remove(&from);
            }
            Ballot::Decided(members) => {
                if attempt.decided.is_none() {
                    attempt.decided = Some(members);
                    self.completed = true;
                }
            }
            // Whoever has not called leaves nothing for another group yet.
            _ if attempt.called.is_none() => {}
            Ballot::Prepare(n) => {
                attempt.latest = attempt.latest.max(n);
                if n > attempt.promised {
                    attempt.promised = n;
                    answer = Some(Ballot::Promise(n, attempt.accepted.clone()));
                }
            }
            Ballot::Accept(n, members) => {
                attempt.latest = attempt.latest.max(n);
                if n >= attempt.promised {
                    attempt.promised = n;
                    attempt.accepted = Some((n, members));
                    answer = Some(Ballot::Accepted(n));
                }
            }
            Ballot::Promise(n, accepted) => {
                if let Some(p) = attempt.proposal.as_mut().filter(|p| p.ballot == n) {
                    p.promises.insert(from, accepted);
                }
            }
            Ballot::Accepted(n) => {
                if let Some(p) = attempt.proposal.as_mut().filter(|p| p.ballot == n) {
                    p.accepted_by.insert(from);
                }
            }
        }
        if let Some(answer) = answer {
            control_word(&mut self.later, Word::Rebuild(group, answer));
        }
    }

    /// Does what is to be done for groups that are being rebuilt. Returns how much that was.
    pub(crate) fn tend_rebuilds(&mut self) -> u64 {
        let mut n = 0;
        let State {
            rebuilds,
            later,
            down,
            completed,
            ..
        } = self;
        for (group, attempt) in &mut rebuilds.attempts {
            if attempt.open().is_none() {
                continue;
            }
            let mut say = |ballot| control_word(later, Word::Rebuild(*group, ballot));
            let said = attempt.step(self.now, down, &mut say);
            *completed |= attempt.open().is_none();
            n += said;
        }
        n
    }
}

impl Attempt {
    /// One look at what has come. Returns how much there was to do.
    fn step(&mut self, now: Duration, down: &[Option<Down>], say: &mut dyn FnMut(Ballot)) -> u64 {
        let Some(called) = &mut self.called else {
            return 0;
        };
        let info = Arc::clone(&called.info);
        let world = |rank: Rank| info.world_ranks[rank.idx()];
        let all = || (0..info.world_ranks.len() as u32).map(Rank);
        let gone = |rank: Rank| down.get(world(rank).idx()).is_some_and(Option::is_some);
        let alive: Members = all().filter(|r| !gone(*r)).collect();
        if !is_quorum(alive.iter().copied(), info.world_ranks.len()) || gone(info.rank) {
            let lost: Members = all().filter(|r| gone(*r)).collect();
            let what = format!(
                "{} of {} members are left, which is no majority; lost {}",
                alive.len(),
                info.world_ranks.len(),
                name_ranks(&lost)
            );
            return self.give_up(what, lost, say);
        }
        let late: Members = alive
            .iter()
            .copied()
            .filter(|r| !self.joined.contains(&world(*r)))
            .collect();
        if called.until <= now {
            // Who came and waited in vain as well is not to blame.
            let never = |r: &Rank| !self.withdrawn.contains(&world(*r));
            let never: Members = late.iter().copied().filter(never).collect();
            let late = if never.is_empty() { late } else { never };
            let (waited, named) = (now.saturating_sub(called.started), name_ranks(&late));
            let what = if late.is_empty() {
                format!("no agreement within {waited:.1?}")
            } else {
                format!("nothing from {named} for {waited:.1?}")
            };
            return self.give_up(what, late, say);
        }
        let retry = called.retry_at <= now;
        if retry {
            called.retry_at = now.saturating_add(RETRY);
            // Whoever has the record by now answers with it.
            say(Ballot::Join);
        }
        let mut n = u64::from(retry);
        let mine = late.is_empty() && alive.first() == Some(&info.rank);
        if mine && (retry || self.proposal.is_none()) {
            // Unique: no other rank makes ballots that end in this rank's number.
            let ballot = ((self.latest >> 32) + 1) << 32 | u64::from(info.rank.0);
            self.latest = ballot;
            self.promised = ballot;
            let own = (world(info.rank), self.accepted.clone());
            self.proposal = Some(Proposal {
                ballot,
                promises: BTreeMap::from([own]),
                value: None,
                accepted_by: BTreeSet::new(),
            });
            say(Ballot::Prepare(ballot));
            n += 1;
        }
        if mine {
            n += self.advance(&info, &alive, say);
        }
        n
    }

    /// Goes on with this rank's proposal.
    fn advance(&mut self, info: &GroupInfo, alive: &Members, say: &mut dyn FnMut(Ballot)) -> u64 {
        let Some(p) = &mut self.proposal else {
            return 0;
        };
        let size = info.world_ranks.len();
        let member = |world: &Rank| group_rank(info, *world);
        let mut n = 0;
        // Somebody with a later ballot has this rank's promise: the next retry overtakes it.
        if p.value.is_none()
            && p.ballot == self.promised
            && is_quorum(p.promises.keys().filter_map(member), size)
        {
            let earlier = p
                .promises
                .values()
                .flatten()
                .max_by_key(|(ballot, _)| *ballot);
            let value = earlier.map_or_else(|| alive.clone(), |(_, members)| members.clone());
            self.accepted = Some((p.ballot, value.clone()));
            p.accepted_by.insert(info.world_ranks[info.rank.idx()]);
            p.value = Some(value.clone());
            say(Ballot::Accept(p.ballot, value));
            n += 1;
        }
        if let Some(value) = &p.value
            && is_quorum(p.accepted_by.iter().filter_map(member), size)
        {
            say(Ballot::Decided(value.clone()));
            self.decided = Some(value.clone());
            n += 1;
        }
        n
    }

    fn give_up(&mut self, what: String, ranks: Members, say: &mut dyn FnMut(Ballot)) -> u64 {
        self.called = None;
        self.proposal = None;
        self.failed = Some(Cause::Rebuild { what, ranks }.into());
        say(Ballot::Withdraw);
        1
    }
}

/// A group that is being rebuilt over its survivors; see [`Engine::begin_rebuild`](crate::Engine::begin_rebuild).
///
/// Dropping it changes nothing: this rank has called.
#[must_use = "the new group comes out of it"]
pub struct Rebuilding {
    shared: Arc<Shared>,
    info: Arc<GroupInfo>,
}

impl std::fmt::Debug for Rebuilding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rebuilding")
            .field("over", &self.is_over())
            .finish_non_exhaustive()
    }
}

impl Rebuilding {
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        info: &Arc<GroupInfo>,
        limit: Duration,
    ) -> Result<Rebuilding, Error> {
        user::refuse_inside("rebuild")?;
        shared.refuse_fork("rebuild")?;
        let mut state = shared.state.lock();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        state.set_now(shared.clock.now());
        shared.guarded(&mut state, |state| {
            state.call_for(info, limit);
            state.tend_rebuilds();
            state.settle(&shared.links, &*shared.control)
        });
        shared.let_go(state);
        gaggle_core::Wake::wake(&*shared.bell);
        Ok(Rebuilding {
            shared: Arc::clone(shared),
            info: Arc::clone(info),
        })
    }

    /// Whether there is an outcome. Moves nothing.
    pub fn is_over(&self) -> bool {
        if user::inside() {
            return false;
        }
        let state = self.shared.state.lock();
        let attempt = state.rebuilds.attempts.get(&self.info.id);
        state.closed.is_some() || attempt.is_none_or(|a| a.open().is_none())
    }

    /// The new group, or why there is none; `None` before the end. Moves nothing; asked again, it says the same.
    ///
    /// # Errors
    /// [`Cause::Rebuild`]: the survivors are a minority, not all of them have come in time, or they have gone on without this rank.
    pub fn poll(&self) -> Option<Result<Group, Error>> {
        if user::inside() {
            return None;
        }
        let outcome = self.outcome()?;
        Some(outcome.map(|comm| Group::new(comm as Arc<dyn Communicator>)))
    }

    pub(crate) fn outcome(&self) -> Option<Result<Arc<EngineComm>, Error>> {
        let members = {
            let state = self.shared.state.lock();
            if let Some(error) = &state.closed {
                return Some(Err(error.clone()));
            }
            let attempt = state.rebuilds.attempts.get(&self.info.id)?;
            match (&attempt.decided, &attempt.failed) {
                (Some(members), _) => members.clone(),
                (None, Some(error)) => return Some(Err(error.clone())),
                (None, None) => return None,
            }
        };
        Some(self.made_of(&members))
    }

    fn made_of(&self, members: &Members) -> Result<Arc<EngineComm>, Error> {
        let old = &self.info;
        let world = |r: &Rank| old.world_ranks.get(r.idx()).copied();
        let world_ranks: Vec<Rank> = members.iter().filter_map(world).collect();
        let Some(rank) = members.iter().position(|r| *r == old.rank) else {
            return Err(Cause::Rebuild {
                what: format!("{} have gone on without this rank", name_ranks(members)),
                ranks: vec![old.rank],
            }
            .into());
        };
        let epoch = old.epoch.wrapping_add(1);
        let ranks: Vec<u8> = world_ranks.iter().flat_map(|r| r.0.to_le_bytes()).collect();
        let id = stable_hash(&[
            b"rebuilt",
            &old.id.to_le_bytes(),
            &epoch.to_le_bytes(),
            &ranks,
        ]);
        self.shared.state.lock().residuals.inherit(old.id, id);
        let info = GroupInfo {
            id,
            rank: Rank(rank as u32),
            world_ranks,
            epoch,
            initial_size: old.initial_size,
            incarnation: 0,
        };
        Ok(Arc::new(EngineComm::new(Arc::clone(&self.shared), info)))
    }
}
