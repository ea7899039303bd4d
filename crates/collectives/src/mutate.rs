//! Plans with one thing wrong: what the checker, and an engine, are tried on.
//!
//! A mutation changes one step of one rank: it is deleted, done twice, sent to, received or copied from another peer, touches shifted or shortened elements, arrives at or awaits another phase, adds another part of the residual, waits for one step less, or changes places with a later one.
//! Two steps that wait for the same and that the same steps wait for are not made to change places, nor are two that do the same: their numbers would differ, not the plan.
//! Where a step is deleted, what waited for it waits for what it waited for; where it is done twice, the second time follows the first, and what waited for the step waits for both.

use crate::check::{Promise, check};
use crate::plan::{Action, Buf, Plan, Span, Step};
use gaggle_core::Rank;
use smallvec::SmallVec;
use std::sync::Arc;

/// All ranks' plans, one step of one of them changed.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// What was changed: `rank 1 step 3 deleted (send …)`.
    pub description: String,
    /// One per rank, in rank order.
    pub plans: Vec<Plan>,
}

/// Every mutation of every step.
pub fn mutants(plans: &[Plan]) -> impl Iterator<Item = Mutant> + '_ {
    plans.iter().enumerate().flat_map(move |(rank, plan)| {
        let steps: Vec<Step> = plan.iter().collect();
        let changed = (0..steps.len()).flat_map({
            let steps = steps.clone();
            let world = plan.world;
            move |idx| mutations(&steps, idx, rank, world)
        });
        changed.map(move |(what, mutated, idx)| {
            let mut all = plans.to_vec();
            all[rank].steps = Arc::new(mutated);
            Mutant {
                description: format!("rank {rank} step {idx} {what} ({})", steps[idx].action),
                plans: all,
            }
        })
    })
}

/// The mutants that keep the promise all the same: what was changed did not matter.
pub fn accepted_mutants(plans: &[Plan], promise: &Promise) -> Vec<Mutant> {
    mutants(plans)
        .filter(|m| check(&m.plans, promise).is_ok())
        .collect()
}

type Mutation = (String, Vec<Step>, usize);

fn mutations(steps: &[Step], idx: usize, rank: usize, world: u32) -> Vec<Mutation> {
    let mut all = vec![
        ("deleted".to_string(), deleted(steps, idx), idx),
        ("done twice".to_string(), doubled(steps, idx), idx),
    ];
    let mut replace = |what: String, step: Step| {
        let mut mutated = steps.to_vec();
        mutated[idx] = step;
        all.push((what, mutated, idx));
    };
    for peer in (0..world).filter(|&p| p as usize != rank) {
        if let Some(action) = with_peer(&steps[idx].action, Rank(peer)) {
            replace(
                format!("with {}", Rank(peer)),
                Step {
                    action,
                    after: steps[idx].after.clone(),
                },
            );
        }
    }
    let numbers = with_other_numbers(&steps[idx].action);
    for (what, action) in with_other_spans(&steps[idx].action)
        .into_iter()
        .chain(numbers)
    {
        replace(
            what,
            Step {
                action,
                after: steps[idx].after.clone(),
            },
        );
    }
    for (i, dropped) in steps[idx].after.iter().enumerate() {
        let mut step = steps[idx].clone();
        step.after.remove(i);
        replace(format!("not waiting for step {dropped}"), step);
    }
    for other in idx + 1..steps.len() {
        if differ_in_order(steps, idx, other) {
            let mut mutated = steps.to_vec();
            mutated[idx].action = steps[other].action.clone();
            mutated[other].action = steps[idx].action.clone();
            all.push((format!("in the place of step {other}"), mutated, idx));
        }
    }
    all
}

fn deleted(steps: &[Step], idx: usize) -> Vec<Step> {
    let mut mutated = steps.to_vec();
    let gone = mutated.remove(idx);
    let idx = idx as u32;
    for step in &mut mutated[idx as usize..] {
        let mut after: SmallVec<[u32; 4]> = SmallVec::new();
        for &a in &step.after {
            match a.cmp(&idx) {
                std::cmp::Ordering::Less => after.push(a),
                std::cmp::Ordering::Equal => after.extend(gone.after.iter().copied()),
                std::cmp::Ordering::Greater => after.push(a - 1),
            }
        }
        after.sort_unstable();
        after.dedup();
        step.after = after;
    }
    mutated
}

fn doubled(steps: &[Step], idx: usize) -> Vec<Step> {
    let mut mutated = steps.to_vec();
    let again = Step {
        action: steps[idx].action.clone(),
        after: SmallVec::from_slice(&[idx as u32]),
    };
    mutated.insert(idx + 1, again);
    for step in &mut mutated[idx + 2..] {
        for a in &mut step.after {
            if *a >= idx as u32 {
                *a += 1;
            }
        }
    }
    mutated
}

fn with_peer(action: &Action, peer: Rank) -> Option<Action> {
    let mut changed = action.clone();
    match &mut changed {
        Action::Send { to: other, .. }
        | Action::Recv { from: other, .. }
        | Action::GroupCopy { from: other, .. } => *other = peer,
        _ => return None,
    }
    (changed != *action).then_some(changed)
}

/// Each span moved by one element either way and shortened by one, as far as numbers go.
fn with_other_spans(action: &Action) -> Vec<(String, Action)> {
    let mut all = Vec::new();
    let n = spans(&mut action.clone()).len();
    for i in 0..n {
        type Change = fn(Span) -> Option<Span>;
        let changes: [(&str, Change); 3] = [
            ("one up", |s| Some(Span { at: s.at + 1, ..s })),
            ("one down", |s| {
                let at = s.at.checked_sub(1)?;
                Some(Span { at, ..s })
            }),
            ("one shorter", |s| {
                let len = s.len.checked_sub(1)?;
                Some(Span { len, ..s })
            }),
        ];
        for (what, change) in changes {
            let mut changed = action.clone();
            let span = &mut *spans(&mut changed)[i];
            if let Some(other) = change(*span) {
                let what = format!("{span} {what}");
                *span = other;
                all.push((what, changed));
            }
        }
    }
    all
}

/// Each number of a fused step or a residual one up and one down, and the other buffer.
fn with_other_numbers(action: &Action) -> Vec<(String, Action)> {
    let mut all = Vec::new();
    let mut add = |what: &str, changed: Action| all.push((what.to_string(), changed));
    for (what, by) in [("one up", 1i64), ("one down", -1)] {
        let mut changed = action.clone();
        let moved = match &mut changed {
            Action::Arrive { phase } | Action::AwaitAll { phase } => {
                let other = i64::from(*phase) + by;
                u32::try_from(other).map(|other| *phase = other).is_ok()
            }
            Action::GroupFold { at: number, .. }
            | Action::Compensate {
                residual: number, ..
            } => {
                let other = number.checked_add_signed(by);
                other.map(|other| *number = other).is_some()
            }
            _ => false,
        };
        if moved {
            add(what, changed);
        }
    }
    if let Action::GroupFold { from, at, len, sum } = action {
        let other = match from {
            Buf::Input => Buf::User,
            _ => Buf::Input,
        };
        let fold = |from, len| Action::GroupFold {
            from,
            at: *at,
            len,
            sum: *sum,
        };
        add("of the other buffer", fold(other, *len));
        if let Some(shorter) = len.checked_sub(1) {
            add("one shorter", fold(*from, shorter));
        }
    }
    all
}

/// Every span that an action names.
pub(crate) fn spans(action: &mut Action) -> Vec<&mut Span> {
    match action {
        Action::Send { src: span, .. }
        | Action::Recv { dst: span, .. }
        | Action::Weigh { span, .. }
        | Action::Divide { span, .. }
        | Action::Recode { span, .. }
        | Action::Compensate { span, .. } => vec![span],
        Action::Arrive { .. } | Action::AwaitAll { .. } | Action::GroupFold { .. } => vec![],
        Action::Copy { src, dst, .. } | Action::GroupCopy { src, dst, .. } => vec![src, dst],
        Action::Fold { dst, operands, .. } => {
            let operands = operands.iter_mut().map(|o| &mut o.span);
            std::iter::once(dst).chain(operands).collect()
        }
        Action::Mix {
            dst, own, operands, ..
        } => [dst, own].into_iter().chain(operands).collect(),
    }
}

/// Whether exchanging what two steps do gives another plan and not another numbering.
fn differ_in_order(steps: &[Step], one: usize, other: usize) -> bool {
    let waits = |idx: usize| {
        let mut after = steps[idx].after.clone();
        after.sort_unstable();
        after
    };
    let waited_for = |idx: usize| -> Vec<usize> {
        let waiting = steps.iter().enumerate();
        waiting
            .filter(|(_, s)| s.after.contains(&(idx as u32)))
            .map(|(i, _)| i)
            .collect()
    };
    steps[one].action != steps[other].action
        && (waits(one) != waits(other) || waited_for(one) != waited_for(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    fn divide(at: u64, after: &[u32]) -> Step {
        Step {
            action: Action::Divide {
                span: Span::user(at, 1),
                slot: 0,
            },
            after: after.into(),
        }
    }

    #[test]
    fn what_waited_for_a_deleted_step_waits_for_what_it_waited_for() {
        let steps = [
            divide(0, &[]),
            divide(1, &[0]),
            divide(2, &[1]),
            divide(3, &[2, 1]),
        ];
        let after: Vec<_> = deleted(&steps, 1).into_iter().map(|s| s.after).collect();
        let want: [SmallVec<[u32; 4]>; 3] = [smallvec![], smallvec![0], smallvec![0, 1]];
        assert_eq!(after, want);
    }

    #[test]
    fn what_waited_for_a_doubled_step_waits_for_the_second() {
        let steps = [divide(0, &[]), divide(1, &[0]), divide(2, &[0, 1])];
        let after: Vec<_> = doubled(&steps, 0).into_iter().map(|s| s.after).collect();
        let want: [SmallVec<[u32; 4]>; 4] =
            [smallvec![], smallvec![0], smallvec![1], smallvec![1, 2]];
        assert_eq!(after, want);
    }

    #[test]
    fn renumbering_is_no_mutation() {
        let steps = [divide(0, &[]), divide(1, &[]), divide(2, &[0, 1])];
        assert!(!differ_in_order(&steps, 0, 1));
        assert!(differ_in_order(&steps, 1, 2));
    }
}
