//! Who is to blame: from what the ranks have said of an operation to the error that all of them report.

use crate::{
    op::OpState,
    protocol::{Blame, Progress},
    trouble::{Answers, FailedAt},
};
use gaggle_core::{Cause, Descriptor, Error, OpId, OpKind, Rank};
use std::{collections::BTreeSet, time::Duration};

/// Whether an operation cannot succeed once it has failed elsewhere: a collective always, save that each rank finds a mismatch itself; a neighbour round only where the rank where it failed has not sent this rank all that is its.
pub(crate) fn concerns(op: &OpState, word: &FailedAt) -> bool {
    let me = op.world_rank(op.group.rank);
    let awaited = || op.awaited().iter().any(|r| op.world_rank(*r) == word.from);
    let found_here = matches!(word.blame, Blame::Deviates(..)) && !op.is_pairwise();
    op.id.class.is_collective() && !found_here
        || (op.descriptor.mode.counted && names(&word.blame, me))
        || (word.unserved.contains(&me) && awaited())
}

/// Whether a rank of the job is said to have called something else.
pub(crate) fn names(blame: &Blame, rank: Rank) -> bool {
    matches!(blame, Blame::Deviates(ranks, _) if ranks.contains(&rank))
}

/// Two ranks give different counts for what goes from one to the other.
pub(crate) fn pair_mismatch(op: &OpState, from: Rank, expected: u64, sent: u64) -> Error {
    let (me, dtype) = (op.group.rank, op.descriptor.dtype);
    let mut deviating = vec![me, from];
    deviating.sort_unstable();
    Cause::Mismatch {
        op: op.descriptor.name(),
        deviating,
        versions: vec![
            (vec![from], format!("{sent} {dtype} to {me}")),
            (vec![me], format!("{expected} {dtype} from {from}")),
        ],
        partly_written: op.touched,
    }
    .into()
}

/// `by` is a number in the job.
pub(crate) fn aborted(op: &OpState, by: Rank, reason: &str) -> Error {
    Cause::Aborted {
        op: op.descriptor.name(),
        by: op.group_rank(by).unwrap_or(by),
        reason: reason.to_owned(),
    }
    .into()
}

/// What the others are told of a failure. An abort they are told by its own word.
pub(crate) fn blame_of(op: &OpState, error: &Error) -> Option<Blame> {
    if op.inherited {
        // Whom an earlier operation blames is not to blame for this one.
        return Some(Blame::Other(format!(
            "an earlier operation of the lane failed there: {error}"
        )));
    }
    match error.cause() {
        Cause::Timeout { waiting_for, .. } => Some(Blame::Timeout(
            waiting_for.iter().map(|r| op.world_rank(*r)).collect(),
        )),
        Cause::PeerLost {
            world_rank, why, ..
        } => Some(Blame::Lost(*world_rank, why.clone())),
        Cause::PeerLeft { world_rank, .. } => Some(Blame::Left(*world_rank)),
        Cause::Mismatch {
            deviating,
            versions,
            ..
        } => {
            let world = |ranks: &[Rank]| ranks.iter().map(|r| op.world_rank(*r)).collect();
            let versions = versions
                .iter()
                .map(|(ranks, what)| (world(ranks), what.clone()));
            Some(Blame::Deviates(world(deviating), versions.collect()))
        }
        Cause::Cancelled { by, reason, .. } => {
            Some(Blame::Cancelled(op.world_rank(*by), reason.clone()))
        }
        Cause::Panicked {
            by, what, panic, ..
        } => Some(Blame::Panicked(
            op.world_rank(*by),
            what.clone(),
            panic.clone(),
        )),
        Cause::Aborted { .. } => None,
        other => Some(Blame::Other(other.to_string())),
    }
}

/// The verdict over a questionable operation; `None` while answers may still come. What ranks call is told by all answers that ever came, how far they are by the fresh ones.
pub(crate) fn judge(
    op: &OpState,
    me: Rank,
    asked: &[Rank],
    (answers, fresh): (&Answers, &Answers),
    time_is_up: bool,
    now: Duration,
) -> Option<Error> {
    let mut versions: Vec<(Descriptor, Vec<Rank>)> = vec![(op.descriptor, vec![me])];
    let mut all_known = true;
    for rank in asked.iter().filter(|r| **r != me) {
        match answers.get(&op.world_rank(*rank)) {
            None | Some(Progress::NotStarted(_)) => all_known = false,
            Some(Progress::Running(d) | Progress::Over(Some(d))) => {
                match versions.iter_mut().find(|(v, _)| v == d) {
                    Some((_, ranks)) => ranks.push(*rank),
                    None => versions.push((*d, vec![*rank])),
                }
            }
            Some(Progress::Over(None)) => {}
        }
    }
    if versions.len() > 1 && (all_known || time_is_up) {
        return Some(mismatch(op.id, op.touched_by_itself(), versions));
    }
    let awaited = op.awaited();
    let from = match op.id.class {
        c if c.is_collective() => asked,
        _ => &awaited,
    };
    let mut absent = Absent::trace(op, from, fresh);
    if absent.is_empty() && op.descriptor.kind == OpKind::HierarchicalMix {
        // Those that it awaits are as far as it is, and wait for others of their machines.
        let all: Vec<Rank> = (0..op.group.world_ranks.len() as u32).map(Rank).collect();
        absent = Absent::trace(op, &all, fresh);
    }
    // Past the deadline, and everybody on the way has said how far they are: nothing more to wait for.
    let settled = op.deadline <= now && absent.silent.is_empty() && !absent.idle.is_empty();
    if !time_is_up && !settled {
        return None;
    }
    let (mut waiting_for, detail) = absent.blame(op);
    if waiting_for.is_empty() {
        waiting_for = awaited;
    }
    let cause = Cause::Timeout {
        op: op.descriptor.name(),
        waiting_for,
        waited: now.saturating_sub(op.started),
        detail,
        partly_written: op.touched,
    };
    Some(cause.into())
}

/// Whose absence an operation suffers from, as ranks of the job.
///
/// Who answers and has not called is not to blame while an earlier operation holds it up: then whoever that one waits for is looked at instead, and so on.
#[derive(Default)]
struct Absent {
    /// They do not answer.
    silent: BTreeSet<Rank>,
    /// They answer, have not called, and wait for nobody.
    idle: BTreeSet<Rank>,
    /// They answer and have not called; something earlier, or on another lane, holds them up.
    held_up: BTreeSet<Rank>,
}

impl Absent {
    /// Follows the answers from the group's ranks `from` on.
    fn trace(op: &OpState, from: &[Rank], answers: &Answers) -> Absent {
        let me = op.world_rank(op.group.rank);
        let mut absent = Absent::default();
        let mut seen = BTreeSet::from([me]);
        let mut next: Vec<Rank> = from.iter().map(|r| op.world_rank(*r)).collect();
        while let Some(rank) = next.pop() {
            if !seen.insert(rank) {
                continue;
            }
            match answers.get(&rank) {
                None => drop(absent.silent.insert(rank)),
                Some(Progress::NotStarted(held_up_by)) => {
                    let others = held_up_by.iter().filter(|r| **r != me && **r != rank);
                    let before = next.len();
                    next.extend(others);
                    if next.len() == before {
                        absent.idle.insert(rank);
                    } else {
                        absent.held_up.insert(rank);
                    }
                }
                // It is as far as this rank is.
                Some(Progress::Running(_) | Progress::Over(_)) => {}
            }
        }
        absent
    }

    fn is_empty(&self) -> bool {
        self.silent.is_empty() && self.idle.is_empty() && self.held_up.is_empty()
    }

    /// The culprits as ranks of the operation's group, and what is known of them. Who is silent comes before who has merely not called, and that before who is held up: the former may be what keeps the latter.
    fn blame(&self, op: &OpState) -> (Vec<Rank>, String) {
        let (ranks, how) = if !self.silent.is_empty() {
            (&self.silent, ["does not answer", "do not answer"])
        } else if !self.idle.is_empty() {
            (&self.idle, ["has not called it", "have not called it"])
        } else {
            // They wait for each other, or for this rank: a knot that the caller has tied.
            let how = [
                "has not called it and waits in another operation",
                "have not called it and wait in other operations",
            ];
            (&self.held_up, how)
        };
        if ranks.is_empty() {
            return (vec![], "all have called it, but nothing moves".into());
        }
        let members: Vec<Rank> = ranks.iter().filter_map(|r| op.group_rank(*r)).collect();
        let strangers = ranks.len() - members.len();
        let mut detail = match members.as_slice() {
            [] => String::new(),
            [one] => format!("{one} {}", how[0]),
            more => format!("{} {}", gaggle_core::name_ranks(more), how[1]),
        };
        if strangers > 0 {
            let all: Vec<Rank> = ranks
                .iter()
                .copied()
                .filter(|r| op.group_rank(*r).is_none())
                .collect();
            let text = format!(
                "outside the group, world {} {}",
                gaggle_core::name_ranks(&all),
                how[usize::from(all.len() > 1)]
            );
            detail = if detail.is_empty() {
                text
            } else {
                format!("{detail}; {text}")
            };
        }
        (members, detail)
    }
}

/// The error of ranks that call different things; the minority deviates.
pub(crate) fn mismatch(
    id: OpId,
    partly_written: bool,
    mut versions: Vec<(Descriptor, Vec<Rank>)>,
) -> Error {
    for (_, ranks) in &mut versions {
        ranks.sort_unstable();
    }
    versions.sort_by_key(|(_, ranks)| ranks[0]);
    let most = versions
        .iter()
        .map(|(_, ranks)| ranks.len())
        .max()
        .unwrap_or(0);
    let majorities = versions
        .iter()
        .filter(|(_, ranks)| ranks.len() == most)
        .count();
    let mut deviating: Vec<Rank> = versions
        .iter()
        .filter(|(_, ranks)| majorities > 1 || ranks.len() < most)
        .flat_map(|(_, ranks)| ranks.clone())
        .collect();
    deviating.sort_unstable();
    let texts: Vec<String> = versions.iter().map(|(d, _)| d.to_string()).collect();
    let alike = texts
        .iter()
        .any(|t| texts.iter().filter(|u| *u == t).count() > 1);
    let versions = versions
        .into_iter()
        .zip(texts)
        .map(|((d, ranks), text)| {
            // Versions that read the same differ in their settings.
            let text = if alike {
                format!(
                    "{text}, slices of {}, epoch {}, settings {:x}",
                    d.slice, d.epoch, d.tables
                )
            } else {
                text
            };
            (ranks, text)
        })
        .collect();
    Cause::Mismatch {
        op: id.to_string(),
        deviating,
        versions,
        partly_written,
    }
    .into()
}
