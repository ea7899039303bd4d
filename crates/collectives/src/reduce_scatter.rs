//! Reduce-scatter: every rank ends with its own part of the reduction of all.
//!
//! The functions on a [`Build`] are also the first half of all-reduces, and work among any ranks; [`plan_reduce_scatter`] makes the operation of its own.
//! Partial results never lie in the caller's buffer: what comes is folded where it came, and the last fold rounds into its place.
//!
//! Cost, with P ranks and S bytes in all:
//!
//! | algorithm | rounds | bytes sent per rank | roundings |
//! |---|---|---|---|
//! | direct | 1 | S(P−1)/P | 1 |
//! | ring | P−1 | S(P−1)/P | P−1 |
//! | halving | ⌊log₂P⌋, two more where P is no power of two | S(P−1)/P, up to S and a part more where P is no power of two | ⌈log₂P⌉ |
//!
//! Partial results travel in the accumulator type where it is wider.
//!
//! Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005, section 4.3 (recursive halving).

use crate::build::{Build, Team, Value, sub};
use crate::halving_doubling;
use crate::parts::Parts;
use crate::plan::{Buf, Plan, PlanError, Request, Span};
use crate::program::{back, forward};
use gaggle_core::{Algorithm, Codec, Counts};

/// The plan.
///
/// # Errors
/// More steps or elements than there are numbers for, or counts that do not fit.
pub(crate) fn plan_reduce_scatter(
    req: &Request,
    counts: &Counts,
    algorithm: Algorithm,
) -> Result<Plan, PlanError> {
    let parts = Parts::of(counts, req.len, req.world as usize, "counts")?;
    let team = Team::all(req);
    let (own_at, own_len) = parts.at(team.me);
    let mut b = Build::new(req);
    let all = b.contribution(0, parts.total());
    let at = if req.out_of_place { 0 } else { own_at };
    let dst = Span::user(at, own_len);
    b.codec = req.codec;
    let at = |part| parts.at(part);
    let given = Given {
        all: &all,
        at: &at,
        first: Buf::User,
    };
    let result = match algorithm {
        Algorithm::Ring => Some(ring(&mut b, &team, &given, Some(dst))),
        Algorithm::HalvingDoubling => halving_doubling::reduce_scatter(&mut b, &team, &given, dst),
        _ if req.feedback => {
            let sent = compensated(&mut b, &team, &given);
            Some(direct_from(&mut b, &team, &given, &sent, Some(dst)))
        }
        _ => Some(direct(&mut b, &team, &given, Some(dst))),
    };
    b.finish(algorithm, result.as_ref())
}

/// What every member of a team brings to a reduction.
pub(crate) struct Given<'a> {
    /// This rank's contribution, or its partial result.
    pub all: &'a Value,
    /// First element and length of each member's part of it.
    pub at: &'a dyn Fn(u32) -> (u64, u64),
    /// The type in which contributions travel: `Scratch` where they may be partial results already.
    pub first: Buf,
}

/// Copies what is about to leave, so that the caller's elements stay as they are, and adds what was lost the last time.
fn compensated(b: &mut Build<'_>, team: &Team, given: &Given<'_>) -> Vec<Value> {
    let mut sent = parts_of(team, given);
    if b.codec == Codec::None {
        return sent;
    }
    for to in team.after_me() {
        let (at, len) = (given.at)(to);
        let room = b.room(len);
        let copy = b.place(room, &sent[to as usize]);
        b.compensate(&copy, at);
        sent[to as usize] = copy;
    }
    sent
}

fn parts_of(team: &Team, given: &Given<'_>) -> Vec<Value> {
    (0..team.len())
        .map(|i| given.all.part((given.at)(i)))
        .collect()
}

/// Everybody sends every owner its part, who folds all in the team's order, rounding once, into `dst` or where the first part came.
pub(crate) fn direct(
    b: &mut Build<'_>,
    team: &Team,
    given: &Given<'_>,
    dst: Option<Span>,
) -> Value {
    let sent = parts_of(team, given);
    direct_from(b, team, given, &sent, dst)
}

/// The same, of which `sent` leaves.
pub(crate) fn direct_from(
    b: &mut Build<'_>,
    team: &Team,
    given: &Given<'_>,
    sent: &[Value],
    dst: Option<Span>,
) -> Value {
    let own = given.all.part((given.at)(team.me));
    let mut operands: Vec<Value> = vec![own.clone(); team.len() as usize];
    let mut first = None;
    for from in team.before_me() {
        let room = b.room(own.span.len);
        operands[from as usize] = b.recv(team.rank(from), room, given.first);
        first.get_or_insert(room);
    }
    for to in team.after_me() {
        b.send(team.rank(to), &sent[to as usize], given.first);
    }
    b.fold(dst.or(first).unwrap_or(own.span), &operands)
}

/// Part c starts after its owner and is folded into by each rank on its way round to it.
pub(crate) fn ring(b: &mut Build<'_>, team: &Team, given: &Given<'_>, dst: Option<Span>) -> Value {
    let (me, n) = (team.me, team.len());
    let part = |idx: u32| given.all.part((given.at)(idx));
    if n == 1 {
        let own = part(0);
        return b.place(dst.unwrap_or(own.span), &own);
    }
    let (next, previous) = (team.rank(forward(me, 1, n)), team.rank(back(me, 1, n)));
    let longest = (0..n).map(|c| (given.at)(c).1).max().unwrap_or(0);
    // Two areas take turns: one is filled while the other is sent from.
    let areas = [b.room(longest), b.room(longest)];
    let mut partial = part(back(me, 1, n));
    let mut wire = given.first;
    for hop in 1..n {
        b.send(next, &partial, wire);
        let own = part(back(me, (hop + 1) % n, n));
        let area = sub(areas[hop as usize % 2], (0, own.span.len));
        wire = if hop == 1 { given.first } else { Buf::Scratch };
        let came = b.recv(previous, area, wire);
        let last = hop + 1 == n;
        let place = dst.filter(|_| last).unwrap_or(area);
        partial = b.fold(place, &[came, own]);
        wire = Buf::Scratch;
    }
    partial
}
