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
use crate::parts::Parts;
use crate::plan::{Buf, Plan, PlanError, Request, Span};
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
    let result = match algorithm {
        Algorithm::Ring => ring(&mut b, &team, &all, &parts, Some(dst)),
        _ if req.feedback => {
            let sent = compensated(&mut b, &team, &all, &parts);
            direct_from(&mut b, &team, &all, &parts, &sent, Some(dst))
        }
        _ => direct(&mut b, &team, &all, &parts, Some(dst)),
    };
    b.finish(algorithm, Some(&result))
}

/// Copies what is about to leave, so that the caller's elements stay as they are, and adds what was lost the last time.
fn compensated(b: &mut Build<'_>, team: &Team, all: &Value, parts: &Parts) -> Vec<Value> {
    let mut sent: Vec<Value> = (0..team.len()).map(|i| all.part(parts.at(i))).collect();
    if b.codec == Codec::None {
        return sent;
    }
    for to in team.after_me() {
        let (at, len) = parts.at(to);
        let room = b.room(len);
        let copy = b.place(room, &sent[to as usize]);
        b.compensate(&copy, at);
        sent[to as usize] = copy;
    }
    sent
}

/// Everybody sends every owner its part, who folds all in the team's order, rounding once, into `dst` or where the first part came.
pub(crate) fn direct(
    b: &mut Build<'_>,
    team: &Team,
    all: &Value,
    parts: &Parts,
    dst: Option<Span>,
) -> Value {
    let sent: Vec<Value> = (0..team.len()).map(|i| all.part(parts.at(i))).collect();
    direct_from(b, team, all, parts, &sent, dst)
}

fn direct_from(
    b: &mut Build<'_>,
    team: &Team,
    all: &Value,
    parts: &Parts,
    sent: &[Value],
    dst: Option<Span>,
) -> Value {
    let own = all.part(parts.at(team.me));
    let wire = wire_of(all);
    let mut operands: Vec<Value> = vec![own.clone(); team.len() as usize];
    for from in team.before_me() {
        let room = b.room(own.span.len);
        operands[from as usize] = b.recv(team.rank(from), room, wire);
    }
    for to in team.after_me() {
        b.send(team.rank(to), &sent[to as usize], wire);
    }
    let first = operands.iter().find(|o| o.span.buf == Buf::Scratch);
    let dst = dst.or(first.map(|o| o.span)).unwrap_or(own.span);
    b.fold(dst, &operands)
}

/// The type in which contributions travel: that of where they are.
pub(crate) fn wire_of(value: &Value) -> Buf {
    match value.span.buf {
        Buf::Input | Buf::User => Buf::User,
        Buf::Scratch => Buf::Scratch,
    }
}

/// Part c starts after its owner and is folded into by each rank on its way round to it.
pub(crate) fn ring(
    b: &mut Build<'_>,
    team: &Team,
    all: &Value,
    parts: &Parts,
    dst: Option<Span>,
) -> Value {
    use crate::program::{back, forward};
    let (me, n) = (team.me, team.len());
    if n == 1 {
        return match dst {
            Some(dst) => b.place(dst, all),
            None => all.clone(),
        };
    }
    let (next, previous) = (team.rank(forward(me, 1, n)), team.rank(back(me, 1, n)));
    let longest = (0..n).map(|c| parts.len(c)).max().unwrap_or(0);
    // Two areas take turns: one is filled while the other is sent from.
    let areas = [b.room(longest), b.room(longest)];
    let mut partial = all.part(parts.at(back(me, 1, n)));
    let mut wire = wire_of(all);
    for hop in 1..n {
        b.send(next, &partial, wire);
        let part = back(me, (hop + 1) % n, n);
        let own = all.part(parts.at(part));
        let area = sub(areas[hop as usize % 2], (0, own.span.len));
        let came = b.recv(previous, area, wire);
        let last = hop + 1 == n;
        let place = dst.filter(|_| last).unwrap_or(area);
        partial = b.fold(place, &[came, own]);
        wire = Buf::Scratch;
    }
    partial
}
