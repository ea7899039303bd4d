//! What fused steps do to other ranks' memory: who may touch what, and in which order.
//!
//! A step of one rank happens before a step of another where a message or an arrival that is awaited leads from the one to the other.
//! Two accesses to one element, of whichever ranks, one of them writing, must be so ordered; and a rank's memory is others' to touch only between its first step and its end: something of the owner must come before, and something after.

use super::matching::{Event, Links};
use super::{Fault, World};
use crate::plan::{Action, Buf, Span};
use gaggle_core::Rank;
use smallvec::SmallVec;

/// Which elements of other ranks' memory a step touches, and whether it writes there.
pub(super) fn touched(
    world: &World<'_>,
    rank: usize,
    idx: u32,
) -> SmallVec<[(usize, Span, bool); 8]> {
    let n = world.plans.len();
    let mut all = SmallVec::new();
    match world.steps[rank][idx as usize].action {
        Action::GroupFold { from, at, len, .. } => {
            let of = |buf| Span { buf, at, len };
            for owner in (0..n).filter(|&r| r != rank) {
                all.push((owner, of(from), false));
                all.push((owner, of(Buf::User), true));
            }
        }
        Action::GroupCopy { from, src, .. } if from.idx() < n && from.idx() != rank => {
            all.push((from.idx(), src, false));
        }
        _ => {}
    }
    all
}

/// A set of steps of all ranks.
#[derive(Clone, Default)]
struct StepSet(Vec<u64>);

impl StepSet {
    fn add(&mut self, step: usize) {
        let word = step / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (step % 64);
    }

    fn join(&mut self, other: &StepSet) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
    }

    fn holds(&self, step: usize) -> bool {
        self.0
            .get(step / 64)
            .is_some_and(|word| word >> (step % 64) & 1 == 1)
    }
}

/// What happens before what, through all ranks.
struct Before {
    /// The number of each rank's first step.
    first: Vec<usize>,
    /// For each step, those before it.
    sets: Vec<StepSet>,
}

impl Before {
    fn of(world: &World<'_>, links: &Links, order: &[Event]) -> Before {
        let mut first = Vec::with_capacity(world.steps.len());
        let mut n_all = 0;
        for steps in &world.steps {
            first.push(n_all);
            n_all += steps.len();
        }
        let number = |(rank, idx): Event| first[rank as usize] + idx as usize;
        let mut sets = vec![StepSet::default(); n_all];
        let mut visit = |event: Event, also: Option<Event>| {
            let step = &world.steps[event.0 as usize][event.1 as usize];
            let own = step.after.iter().map(|&a| (event.0, a));
            let mut set = StepSet::default();
            for earlier in own.chain(links.awaited(&step.action)).chain(also) {
                set.add(number(earlier));
                set.join(&sets[number(earlier)]);
            }
            sets[number(event)] = set;
        };
        for &event in order {
            visit(event, None);
            if let Some(recv) = links.other(event) {
                visit(recv, Some(event));
            }
        }
        Before { first, sets }
    }

    fn holds(&self, earlier: Event, later: Event) -> bool {
        let number = |(rank, idx): Event| self.first[rank as usize] + idx as usize;
        self.sets[number(later)].holds(number(earlier))
    }
}

/// One access to a rank's memory.
#[derive(Clone, Copy)]
struct Access {
    span: Span,
    writes: bool,
    by: Event,
}

/// Whether everything that ranks do to each other's memory is ordered.
pub(super) fn check_remote(world: &World<'_>, links: &Links, order: &[Event]) -> Result<(), Fault> {
    let n = world.plans.len();
    let mut remote: Vec<Vec<Access>> = vec![Vec::new(); n];
    for (rank, steps) in world.steps.iter().enumerate() {
        for idx in 0..steps.len() as u32 {
            for (owner, span, writes) in touched(world, rank, idx) {
                if span.len > 0 {
                    let by = (rank as u32, idx);
                    remote[owner].push(Access { span, writes, by });
                }
            }
        }
    }
    if remote.iter().all(Vec::is_empty) {
        return Ok(());
    }
    let before = Before::of(world, links, order);
    for (owner, remote) in remote.iter().enumerate() {
        let mut own = Vec::new();
        for (idx, step) in (0..).zip(&world.steps[owner]) {
            let by = (owner as u32, idx);
            let touched = super::local::touched(&step.action).into_iter();
            let touched = touched.filter(|(span, _)| span.len > 0);
            own.extend(touched.map(|(span, writes)| Access { span, writes, by }));
        }
        for (i, access) in remote.iter().enumerate() {
            check_lent(world, &before, owner, access)?;
            for other in own.iter().chain(&remote[..i]) {
                check_pair(world, &before, owner, access, other)?;
            }
        }
    }
    Ok(())
}

fn check_pair(
    world: &World<'_>,
    before: &Before,
    owner: usize,
    one: &Access,
    other: &Access,
) -> Result<(), Fault> {
    let conflict = (one.writes || other.writes) && one.span.overlaps(other.span);
    if one.by == other.by
        || !conflict
        || before.holds(one.by, other.by)
        || before.holds(other.by, one.by)
    {
        return Ok(());
    }
    let (first, second) = (one.by.min(other.by), one.by.max(other.by));
    let at = one.span.at.max(other.span.at);
    Err(Fault::RemoteRace {
        first: world.at(first.0 as usize, first.1),
        second: world.at(second.0 as usize, second.1),
        owner: Rank(owner as u32),
        span: Span {
            buf: one.span.buf,
            at,
            len: one.span.end().min(other.span.end()) - at,
        },
    })
}

/// The owner has begun, and has not ended.
fn check_lent(
    world: &World<'_>,
    before: &Before,
    owner: usize,
    access: &Access,
) -> Result<(), Fault> {
    let mut of_owner = (0..world.steps[owner].len() as u32).map(|idx| (owner as u32, idx));
    let when = if !of_owner.clone().any(|o| before.holds(o, access.by)) {
        "before the owner has begun"
    } else if !of_owner.any(|o| before.holds(access.by, o)) {
        "when the owner may have ended"
    } else {
        return Ok(());
    };
    Err(Fault::NotLent {
        at: world.at(access.by.0 as usize, access.by.1),
        owner: Rank(owner as u32),
        span: access.span,
        when,
    })
}
