//! Who is to blame: from what the ranks have said of an operation to the error that all of them report.

use crate::{
    op::OpState,
    protocol::{Blame, Progress},
    trouble::{Answers, FailedAt},
};
use gaggle_core::{Cause, Class, Descriptor, Error, Rank};
use std::time::Duration;

/// Whether an operation cannot succeed once it has failed elsewhere: a collective always; a neighbour round only where the rank where it failed has not sent this rank all that is its.
pub(crate) fn concerns(op: &OpState, word: &FailedAt) -> bool {
    let me = op.world_rank(op.group.rank);
    let awaited = || op.awaited().iter().any(|r| op.world_rank(*r) == word.from);
    op.id.class == Class::Collective || (word.unserved.contains(&me) && awaited())
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

/// What the others are told of a failure. A mismatch they find themselves; an abort they are told by its own word.
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
        } if op.id.class == Class::Neighbour => {
            let theirs = versions
                .iter()
                .find(|(ranks, _)| !ranks.contains(&op.group.rank));
            let what = theirs.map_or_else(String::new, |(_, what)| what.clone());
            Some(Blame::Deviates(
                deviating.iter().map(|r| op.world_rank(*r)).collect(),
                what,
            ))
        }
        Cause::Mismatch { .. } | Cause::Aborted { .. } => None,
        other => Some(Blame::Other(other.to_string())),
    }
}

/// The verdict over a questionable operation; `None` while answers may still come.
pub(crate) fn judge(
    op: &OpState,
    me: Rank,
    asked: &[Rank],
    answers: &Answers,
    time_is_up: bool,
    now: Duration,
) -> Option<Error> {
    let mut versions: Vec<(Descriptor, Vec<Rank>)> = vec![(op.descriptor, vec![me])];
    let (mut silent, mut not_started) = (vec![], vec![]);
    for rank in asked.iter().filter(|r| **r != me) {
        match answers.get(&op.world_rank(*rank)) {
            None => silent.push(*rank),
            Some(Progress::NotStarted) => not_started.push(*rank),
            Some(Progress::Running(d) | Progress::Over(Some(d))) => {
                match versions.iter_mut().find(|(v, _)| v == d) {
                    Some((_, ranks)) => ranks.push(*rank),
                    None => versions.push((*d, vec![*rank])),
                }
            }
            Some(Progress::Over(None)) => {}
        }
    }
    let disputed = versions.len() > 1;
    let all_known = silent.is_empty() && not_started.is_empty();
    if disputed && (all_known || time_is_up) {
        return Some(mismatch(op, versions));
    }
    // Past the deadline, and everybody has said how far they are: nothing more to wait for.
    let settled = op.deadline <= now && silent.is_empty() && !not_started.is_empty();
    if !time_is_up && !settled {
        return None;
    }
    let detail = describe_absence(&silent, &not_started);
    let mut waiting_for: Vec<Rank> = silent.into_iter().chain(not_started).collect();
    if op.id.class == Class::Neighbour {
        let awaited = op.awaited();
        waiting_for.retain(|r| awaited.contains(r));
    }
    if waiting_for.is_empty() {
        waiting_for = op.awaited();
    }
    waiting_for.sort_unstable();
    let cause = Cause::Timeout {
        op: op.descriptor.name(),
        waiting_for,
        waited: now.saturating_sub(op.started),
        detail,
        partly_written: op.touched,
    };
    Some(cause.into())
}

fn describe_absence(silent: &[Rank], not_started: &[Rank]) -> String {
    let mut parts = vec![];
    if !silent.is_empty() {
        let verb = if silent.len() == 1 { "does" } else { "do" };
        parts.push(format!(
            "{} {verb} not answer",
            gaggle_core::name_ranks(silent)
        ));
    }
    if !not_started.is_empty() {
        let verb = if not_started.len() == 1 {
            "has"
        } else {
            "have"
        };
        parts.push(format!(
            "{} {verb} not called it",
            gaggle_core::name_ranks(not_started)
        ));
    }
    if parts.is_empty() {
        parts.push("all have called it, but nothing moves".into());
    }
    parts.join(", ")
}

fn mismatch(op: &OpState, mut versions: Vec<(Descriptor, Vec<Rank>)>) -> Error {
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
        op: op.id.to_string(),
        deviating,
        versions,
        partly_written: op.touched,
    }
    .into()
}
