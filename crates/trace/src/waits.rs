//! Who waited for whom.

use crate::{
    job::{Job, OpKey, RankTrace},
    recorder::FailureKind,
    recording::Operation,
};
use gaggle_core::{Class, OpKind, Rank};
use std::collections::{BTreeMap, BTreeSet};

/// Why one rank is taken to wait for another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Why {
    /// The waiting rank has noted so.
    Noted,
    /// The other has a recording, and has not called the operation.
    NotCalled,
    /// The other's message is due and has not come.
    NotHeard,
}

impl Why {
    /// In words, after the awaited rank's name.
    pub const fn text(self) -> &'static str {
        match self {
            Why::Noted => "was noted as missing",
            Why::NotCalled => "has not called it",
            Why::NotHeard => "has sent nothing",
        }
    }
}

/// Somebody who is awaited.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WaitsFor {
    /// Who, as a number in the job.
    pub rank: Rank,
    /// Why that is thought.
    pub why: Why,
}

/// An operation that had not ended.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct InFlight {
    /// Whose: a number in the job.
    pub rank: Rank,
    /// Where it stands: in [`Job::ranks`], and in the recording's operations.
    pub at: (usize, usize),
    /// How long it had been in flight when the last thing happened that any rank has noted, in nanoseconds.
    pub since: u64,
    /// Who is awaited; empty where nothing tells.
    pub waits_for: Vec<WaitsFor>,
}

/// A rank that names another in a failure.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Named {
    /// Who does.
    pub by: Rank,
    /// What kind of failure.
    pub kind: FailureKind,
    /// In which words.
    pub text: String,
}

/// A rank that others wait for, or name.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Blamed {
    /// Who.
    pub rank: Rank,
    /// Ranks whose operations failed for its sake; each one's first failure.
    pub named_by: Vec<Named>,
    /// Ranks whose operations in flight wait for it.
    pub awaited_by: Vec<Rank>,
    /// Ranks that it waits for itself: who waits is less to blame.
    pub waits_for: Vec<Rank>,
    /// Whether its process was ended before it could leave.
    pub ended_without_leaving: bool,
}

/// An operation that took long.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Slow {
    /// Whose.
    pub rank: Rank,
    /// Where it stands: in [`Job::ranks`], and in the recording's operations.
    pub at: (usize, usize),
    /// Nanoseconds.
    pub took: u64,
    /// Who called it last of those it needed, and how many nanoseconds of the time passed before that.
    pub late: Option<(Rank, u64)>,
}

/// A rank that others have waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Late {
    /// Who.
    pub rank: Rank,
    /// Nanoseconds that others waited until it called what they had called already, all together.
    pub waited: u64,
    /// In how many operations.
    pub operations: u64,
}

/// Whose contribution an operation of a rank's needs, as numbers in the job, without itself. `ended`: only those without whom it cannot have ended.
pub(crate) fn needs(rank: &RankTrace, op: &Operation, ended: bool) -> Vec<Rank> {
    let group = rank.group(op);
    let d = &op.descriptor;
    let world = |r: u32| group.and_then(|g| g.members.get(r as usize)).copied();
    let all = || -> Vec<Rank> {
        let members = group.map_or(&[][..], |g| &g.members);
        let others = members.iter().enumerate();
        others
            .filter(|(i, _)| *i != op.group_rank.idx())
            .map(|(_, r)| *r)
            .collect()
    };
    let root = || world(d.root.0).into_iter().collect();
    let i_am_root = d.root == op.group_rank;
    let plain = !d.mode.counted && d.count >= u64::from(op.group_size);
    match d.kind {
        OpKind::Barrier => all(),
        OpKind::AllReduce if !d.mode.counted && d.count > 0 => all(),
        OpKind::AllGather if !d.mode.counted && d.count > 0 => all(),
        OpKind::ReduceScatter | OpKind::AllToAll if plain => all(),
        OpKind::Broadcast if i_am_root => vec![],
        OpKind::Broadcast if d.count > 0 => root(),
        OpKind::Reduce | OpKind::Gather if i_am_root && !d.mode.counted && d.count > 0 => all(),
        _ => {
            // Who was tolerated as missing was not heard.
            let from = if ended {
                op.sources & op.heard
            } else {
                op.sources
            };
            (0..64)
                .filter(|r| from >> r & 1 == 1 && *r != op.group_rank.0)
                .filter_map(world)
                .collect()
        }
    }
}

impl Job {
    /// Operations that had not ended, by rank, the oldest first.
    pub fn in_flight(&self) -> Vec<InFlight> {
        let end = self.end();
        let mut all = vec![];
        for (r, rank) in self.ranks.iter().enumerate() {
            for (o, op) in rank.recording.operations.iter().enumerate() {
                if op.phase.in_flight() {
                    let since = end.saturating_sub(self.time(r, op.started));
                    all.push(InFlight {
                        rank: rank.rank(),
                        at: (r, o),
                        since: u64::try_from(since).unwrap_or(0),
                        waits_for: self.waits_for(r, op),
                    });
                }
            }
        }
        all
    }

    fn waits_for(&self, r: usize, op: &Operation) -> Vec<WaitsFor> {
        let noted = op.awaited.iter().map(|rank| WaitsFor {
            rank: *rank,
            why: Why::Noted,
        });
        let mut waits: Vec<WaitsFor> = noted.collect();
        let rank = &self.ranks[r];
        let needed = needs(rank, op, false);
        if waits.is_empty() {
            let not_called = needed.iter().filter(|q| self.has_not_called(**q, op));
            waits = not_called
                .map(|rank| WaitsFor {
                    rank: *rank,
                    why: Why::NotCalled,
                })
                .collect();
        }
        if waits.is_empty() {
            let silent = op.sources & !op.heard;
            let members = rank.group(op).map_or(&[][..], |g| &g.members);
            waits = (0..64)
                .filter(|i| silent >> i & 1 == 1)
                .filter_map(|i| members.get(i))
                .map(|rank| WaitsFor {
                    rank: *rank,
                    why: Why::NotHeard,
                })
                .collect();
        }
        waits.sort_unstable();
        waits.dedup_by_key(|w| w.rank);
        waits
    }

    /// Whether a rank has a recording, and nothing in it says that it ever called the operation.
    fn has_not_called(&self, rank: Rank, op: &Operation) -> bool {
        let Some(r) = self.find(rank) else {
            return false;
        };
        let key = OpKey::of(op);
        // A later one of the same stream: this one was called, and has been overwritten.
        let latest = self.latest[r].get(&key.stream());
        latest.is_none_or(|seq| *seq < key.id.seq)
    }

    /// Ranks that others name or wait for, the one most to blame first: named by most, waiting for nobody itself, awaited by most.
    pub fn blamed(&self) -> Vec<Blamed> {
        let mut blamed: BTreeMap<Rank, Blamed> = BTreeMap::new();
        let entry = |blamed: &mut BTreeMap<Rank, Blamed>, rank: Rank| {
            let ended = self.find(rank).is_some_and(|r| {
                let trace = &self.ranks[r];
                !trace.alive && trace.recording.header.state != crate::State::Left
            });
            blamed.entry(rank).or_insert_with(|| Blamed {
                rank,
                named_by: vec![],
                awaited_by: vec![],
                waits_for: vec![],
                ended_without_leaving: ended,
            });
        };
        for rank in &self.ranks {
            for op in &rank.recording.operations {
                let Some(failure) = &op.failure else { continue };
                // Whoever cancels or merely reports an earlier failure blames nobody.
                let Some(culprit) = failure
                    .culprit
                    .filter(|_| failure.kind != FailureKind::Cancelled)
                else {
                    continue;
                };
                entry(&mut blamed, culprit);
                if let Some(b) = blamed.get_mut(&culprit)
                    && b.named_by.iter().all(|n| n.by != rank.rank())
                {
                    b.named_by.push(Named {
                        by: rank.rank(),
                        kind: failure.kind,
                        text: failure.text.clone(),
                    });
                }
            }
        }
        let mut edges: BTreeSet<(Rank, Rank)> = BTreeSet::new();
        for flight in self.in_flight() {
            edges.extend(flight.waits_for.iter().map(|w| (flight.rank, w.rank)));
        }
        for (from, to) in &edges {
            entry(&mut blamed, *to);
            if let Some(b) = blamed.get_mut(to) {
                b.awaited_by.push(*from);
            }
        }
        for (from, to) in &edges {
            if let Some(b) = blamed.get_mut(from) {
                b.waits_for.push(*to);
            }
        }
        let mut blamed: Vec<Blamed> = blamed.into_values().collect();
        blamed.sort_by_key(|b| {
            (
                std::cmp::Reverse(b.named_by.len()),
                !b.waits_for.is_empty(),
                std::cmp::Reverse(b.awaited_by.len()),
                b.rank,
            )
        });
        blamed
    }

    /// The `n` operations that took longest, those in flight included.
    pub fn slowest(&self, n: usize) -> Vec<Slow> {
        let end = self.end();
        let mut all = vec![];
        for (r, rank) in self.ranks.iter().enumerate() {
            for (o, op) in rank.recording.operations.iter().enumerate() {
                let flying = end.saturating_sub(self.time(r, op.started));
                all.push(Slow {
                    rank: rank.rank(),
                    at: (r, o),
                    took: op.took().unwrap_or(u64::try_from(flying).unwrap_or(0)),
                    late: None,
                });
            }
        }
        all.sort_by_key(|s| (std::cmp::Reverse(s.took), s.at));
        all.truncate(n);
        for slow in &mut all {
            slow.late = self.waited(slow.at);
        }
        all
    }

    /// For how long an operation had waited when the last of those it needs called it, and who that was. An operation that has ended is not taken to have waited any longer.
    fn waited(&self, at: (usize, usize)) -> Option<(Rank, u64)> {
        let (r, op) = (at.0, self.op(at));
        let mine = self.time(r, op.started);
        let end = op.finished.map_or(self.end(), |t| self.time(r, t));
        let called = self.calls.get(&OpKey::of(op))?;
        let starts = needs(&self.ranks[r], op, false).into_iter().map(|rank| {
            let there = self.find(rank).map(|q| {
                let call = called.iter().find(|c| c.0 == q);
                call.map(|c| self.time(q, self.op(*c).started))
            });
            match there {
                Some(Some(start)) => (start.min(end), false, rank),
                // It has a recording and is not in it: it has never come, or that is long ago.
                Some(None) if self.has_not_called(rank, op) => (end, true, rank),
                _ => (i64::MIN, false, rank),
            }
        });
        let (start, _, last) =
            starts.max_by_key(|(start, never, rank)| (*start, *never, std::cmp::Reverse(*rank)))?;
        let waited = start.saturating_sub(mine);
        u64::try_from(waited)
            .ok()
            .filter(|w| *w > 0)
            .map(|w| (last, w))
    }

    /// Whom others have waited for: all their waits for ranks that called an operation after them, the largest sum first.
    pub fn late(&self) -> Vec<Late> {
        let mut sums: BTreeMap<Rank, (u64, BTreeSet<OpKey>)> = BTreeMap::new();
        for (key, called) in &self.calls {
            for at in called {
                if let Some((rank, waited)) = self.waited(*at) {
                    let (sum, ops) = sums.entry(rank).or_default();
                    *sum = sum.saturating_add(waited);
                    ops.insert(*key);
                }
            }
        }
        let late = sums.into_iter().map(|(rank, (waited, ops))| Late {
            rank,
            waited,
            operations: ops.len() as u64,
        });
        let mut late: Vec<Late> = late.collect();
        late.sort_by_key(|l| (std::cmp::Reverse(l.waited), l.rank));
        late
    }

    /// What to call an operation's stream: `lane 3`, `tag 7 from 0 to 2`.
    pub fn stream(&self, (r, o): (usize, usize)) -> String {
        let rank = &self.ranks[r];
        let op = &rank.recording.operations[o];
        let id = op.descriptor.id;
        let mut name = match id.class {
            Class::Tagged => format!("tag {}", id.lane),
            Class::Neighbour | Class::NeighbourData => format!("rounds of lane {}", id.lane),
            _ => format!("lane {}", id.lane),
        };
        if op.group_size < self.world {
            match rank.group(op) {
                Some(group) if group.members.len() <= 8 => {
                    name += &format!(" of {}", gaggle_core::name_ranks(&group.members));
                }
                Some(group) => name += &format!(" of group {:016x}", group.id),
                None => name += " of an unknown group",
            }
        }
        name
    }
}
