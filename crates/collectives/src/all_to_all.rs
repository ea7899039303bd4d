//! All-to-all: every rank has a part for every rank.
//!
//! Directly, each part is one message (in slices). In place what comes is received beside, because a rank's part leaves from where its counterpart arrives.
//!
//! By Bruck's algorithm, block i is on its way to rank+i: in round k all blocks whose number has bit k travel 2ᵏ ranks on, packed into one message.
//!
//! Cost, with P ranks and S bytes per rank: directly 1 round and S(P−1)/P bytes sent per rank, in place as much scratch; by Bruck ⌈log₂P⌉ rounds, at most S/2 bytes in each, and as much scratch for each and one more.
//!
//! Source: Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997.

use crate::build::{Build, Team, Value, sub};
use crate::fused;
use crate::parts::Parts;
use crate::plan::{Buf, Plan, PlanError, Request, Span};
use crate::program::{back, forward};
use gaggle_core::{Algorithm, Counts};

/// The plan.
///
/// # Errors
/// More steps or elements than there are numbers for; counts that do not fit; counts in place.
pub(crate) fn plan_all_to_all(
    req: &Request,
    send: &Counts,
    recv: &Counts,
    algorithm: Algorithm,
) -> Result<Plan, PlanError> {
    let world = req.world as usize;
    let to_parts = Parts::of(send, req.len, world, "send counts")?;
    let from_parts = Parts::of(recv, req.len, world, "receive counts")?;
    let me = req.rank.0;
    if to_parts.len(me) != from_parts.len(me) {
        return Err(PlanError::BadCounts {
            field: "send counts",
            what: format!(
                "{} elements to oneself, {} from oneself",
                to_parts.len(me),
                from_parts.len(me)
            ),
        });
    }
    let equal = (send, recv) == (&Counts::Equal, &Counts::Equal);
    if !req.out_of_place && !equal {
        return Err(PlanError::Unsupported {
            kind: "all_to_all",
            what: "works in place with equal counts only; give an input and an output".into(),
        });
    }
    match algorithm {
        Algorithm::Bruck => return plan_bruck(req, equal),
        Algorithm::Fused => return fused::plan_all_to_all(req, equal),
        _ => {}
    }
    let team = Team::all(req);
    let mut b = Build::new(req);
    let all = b.contribution(0, to_parts.total());
    let dst = Span::user(0, from_parts.total());
    for to in team.after_me() {
        b.send(team.rank(to), &all.part(to_parts.at(to)), Buf::User);
    }
    if req.out_of_place {
        b.place(sub(dst, from_parts.at(me)), &all.part(to_parts.at(me)));
    }
    for from in team.before_me() {
        let place = sub(dst, from_parts.at(from));
        if req.out_of_place {
            b.recv(team.rank(from), place, Buf::User);
        } else {
            let room = b.room(place.len);
            let came = b.recv(team.rank(from), room, Buf::User);
            b.place(place, &came);
        }
    }
    b.finish(Algorithm::Direct, None)
}

fn plan_bruck(req: &Request, equal: bool) -> Result<Plan, PlanError> {
    if !equal {
        return Err(PlanError::Unsupported {
            kind: "all_to_all",
            what: "by bruck needs equal counts; use direct".into(),
        });
    }
    let team = Team::all(req);
    let (me, n, len) = (team.me, team.len(), req.len);
    let mut b = Build::new(req);
    let total = u64::from(n) * len;
    let all = b.contribution(0, total);
    let dst = Span::user(0, total);
    let block = |rank: u32| (u64::from(rank) * len, len);
    // Block i is for rank+i at the start, and is from rank−i at the end.
    let mut blocks: Vec<Value> = (0..n).map(|i| all.part(block(forward(me, i, n)))).collect();
    let half = u64::from(n.div_ceil(2)) * len;
    let packs = match n {
        1 => [Span::scratch(0, 0); 2],
        _ => [b.room(half), b.room(half)],
    };
    for round in 0..n.next_power_of_two().ilog2() {
        let moving: Vec<u32> = (0..n).filter(|i| i >> round & 1 == 1).collect();
        let pack = packs[round as usize % 2];
        for (place, &i) in (0..).zip(&moving) {
            b.place(sub(pack, (place * len, len)), &blocks[i as usize]);
        }
        let size = moving.len() as u64 * len;
        let packed = b.plain(sub(pack, (0, size)));
        b.send(team.rank(forward(me, 1 << round, n)), &packed, Buf::User);
        let room = b.room(size);
        let came = b.recv(team.rank(back(me, 1 << round, n)), room, Buf::User);
        for (place, &i) in (0..).zip(&moving) {
            blocks[i as usize] = came.part((place * len, len));
        }
    }
    for i in (0..n).filter(|&i| i > 0 || req.out_of_place) {
        let from = back(me, i, n);
        b.place(sub(dst, block(from)), &blocks[i as usize]);
    }
    b.finish(Algorithm::Bruck, None)
}
