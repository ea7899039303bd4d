//! What is known of operations in trouble: how far each rank is, what failed elsewhere, what was recently over here.

use crate::protocol::{Blame, Progress};
use foldhash::HashMap;
use gaggle_core::{Descriptor, OpId, Rank};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// How far each rank of the job is with one operation, as far as it has said.
pub(crate) type Answers = BTreeMap<Rank, Progress>;

/// An operation has failed at another rank.
#[derive(Clone, Debug)]
pub(crate) struct FailedAt {
    pub(crate) from: Rank,
    /// Ranks of the job to which that one had not sent all; for neighbour rounds.
    pub(crate) unserved: Vec<Rank>,
    pub(crate) blame: Blame,
}

#[derive(Default)]
struct Entry {
    answers: Answers,
    /// When each of them came last.
    heard: BTreeMap<Rank, Duration>,
    /// Whether this rank has described its own.
    said: bool,
    /// When everybody was last asked.
    asked: Option<Duration>,
}

/// Bounded tables: what peers say about operations must not grow them for ever.
#[derive(Default)]
pub(crate) struct Troubles {
    entries: HashMap<OpId, Entry>,
    order: VecDeque<OpId>,
    failed: HashMap<OpId, Vec<FailedAt>>,
    failed_order: VecDeque<OpId>,
    /// What is over here, whether it went well, and whether it has been reported that it has not elsewhere.
    recent: VecDeque<(Descriptor, bool, bool)>,
    nobody: Answers,
}

const MAX_ENTRIES: usize = 1024;
const MAX_RECENT: usize = 256;

impl Troubles {
    fn entry(&mut self, id: OpId) -> &mut Entry {
        if !self.entries.contains_key(&id) {
            self.order.push_back(id);
            if self.order.len() > MAX_ENTRIES
                && let Some(oldest) = self.order.pop_front()
            {
                self.entries.remove(&oldest);
            }
        }
        self.entries.entry(id).or_default()
    }

    /// Whether this rank has yet to describe its own; it is taken to do so now.
    pub(crate) fn say(&mut self, id: OpId) -> bool {
        !std::mem::replace(&mut self.entry(id).said, true)
    }

    /// Everybody is being asked. Whether that has not just been done.
    pub(crate) fn ask(&mut self, id: OpId, now: Duration, fresh: Duration) -> bool {
        let asked = &mut self.entry(id).asked;
        let stale = asked.is_none_or(|t| now.saturating_sub(t) > fresh);
        if stale {
            *asked = Some(now);
        }
        stale
    }

    /// A rank has said how far it is.
    pub(crate) fn answer(&mut self, id: OpId, from: Rank, progress: Progress, now: Duration) {
        let Entry { answers, heard, .. } = self.entry(id);
        heard.insert(from, now);
        let progress = match (progress, answers.get(&from)) {
            // What it was has been seen, on a message of its.
            (Progress::Over(None), Some(Progress::Running(d) | Progress::Over(Some(d)))) => {
                Progress::Over(Some(*d))
            }
            (progress, _) => progress,
        };
        answers.insert(from, progress);
    }

    pub(crate) fn answers(&self, id: &OpId) -> &Answers {
        self.entries.get(id).map_or(&self.nobody, |e| &e.answers)
    }

    /// The answers of those who have said something since everybody was last asked, or within `grace` before: somebody's answer may come before another's question. Who answered long ago and not again is silent.
    pub(crate) fn fresh(&self, id: &OpId, grace: Duration) -> Answers {
        let Some(entry) = self.entries.get(id) else {
            return Answers::new();
        };
        let since = entry.asked.unwrap_or_default().saturating_sub(grace);
        let fresh = |rank: &Rank| entry.heard.get(rank).is_some_and(|t| *t >= since);
        let answers = entry.answers.iter().filter(|(rank, _)| fresh(rank));
        answers.map(|(rank, p)| (*rank, p.clone())).collect()
    }

    /// Whether somebody is known to call something else.
    pub(crate) fn disputed(&self, id: &OpId, mine: &Descriptor) -> bool {
        self.answers(id).values().any(|p| match p {
            Progress::Running(d) | Progress::Over(Some(d)) => d != mine,
            _ => false,
        })
    }

    /// Whether anybody has said anything.
    pub(crate) fn known(&self, id: &OpId) -> bool {
        self.entries.contains_key(id)
    }

    /// An operation that this rank has not called yet has failed elsewhere.
    pub(crate) fn fail(&mut self, id: OpId, word: FailedAt) {
        let known = self.failed.entry(id).or_default();
        if known.is_empty() {
            self.failed_order.push_back(id);
        }
        if !known.iter().any(|w| w.from == word.from) {
            known.push(word);
        }
        if self.failed_order.len() > MAX_ENTRIES
            && let Some(oldest) = self.failed_order.pop_front()
        {
            self.failed.remove(&oldest);
        }
    }

    /// Where and why an operation has failed before it was called here.
    pub(crate) fn failed(&mut self, id: &OpId) -> Vec<FailedAt> {
        self.failed.remove(id).unwrap_or_default()
    }

    /// Whether some operation of a lane that this rank has not called yet has failed elsewhere.
    pub(crate) fn has_failed(&self, group: u64, lane: u32) -> bool {
        let mut failed = self.failed.keys();
        failed.any(|id| (id.group, id.lane) == (group, lane))
    }

    /// An operation is over here. What others have said of it is kept only where it has gone well and somebody calls something else.
    pub(crate) fn over(&mut self, descriptor: Descriptor, well: bool) {
        let keep = well && self.disputed(&descriptor.id, &descriptor);
        if !keep && self.entries.remove(&descriptor.id).is_some() {
            self.order.retain(|id| *id != descriptor.id);
        }
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((descriptor, well, false));
    }

    /// What an operation was that is over here.
    pub(crate) fn recent(&self, id: &OpId) -> Option<Descriptor> {
        let mut recent = self.recent.iter().rev();
        recent.find(|(d, ..)| d.id == *id).map(|(d, ..)| *d)
    }

    /// What an operation was that has gone well here.
    pub(crate) fn went_well(&self, id: &OpId) -> Option<Descriptor> {
        let mut recent = self.recent.iter().rev();
        let (descriptor, well, _) = recent.find(|(d, ..)| d.id == *id)?;
        well.then_some(*descriptor)
    }

    /// Whether it has yet to be reported that an operation has not gone well elsewhere; it is taken to be now. What others say later of the same operation is no news.
    pub(crate) fn report(&mut self, id: &OpId) -> bool {
        let mut recent = self.recent.iter_mut().rev();
        let found = recent.find(|(d, ..)| d.id == *id);
        found.is_some_and(|(_, _, reported)| !std::mem::replace(reported, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle_core::{Algorithm, Class, Codec, DType, Divisor, ModeBits, OpKind, Reduce};

    #[test]
    fn what_others_say_of_one_operation_is_reported_once() {
        let id = |seq| OpId {
            group: 1,
            lane: 0,
            class: Class::Collective,
            seq,
        };
        let descriptor = |seq| Descriptor {
            id: id(seq),
            incarnation: 0,
            epoch: 0,
            kind: OpKind::Reduce,
            dtype: DType::F32,
            reduce: Reduce::Sum,
            count: 1,
            root: Rank(0),
            codec: Codec::None,
            algorithm: Algorithm::Direct,
            divisor: Divisor::Contributors,
            mode: ModeBits::default(),
            priority: 0,
            slice: 1,
            tables: 0,
        };
        let mut troubles = Troubles::default();
        assert!(!troubles.report(&id(0)));
        troubles.over(descriptor(0), true);
        troubles.over(descriptor(1), true);
        assert!(troubles.report(&id(0)));
        assert!(!troubles.report(&id(0)));
        assert!(troubles.report(&id(1)));
        // It has gone well here all the same.
        assert!(troubles.went_well(&id(0)).is_some());
    }
}
