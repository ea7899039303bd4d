//! All-to-all: every rank has a part for every rank.
//!
//! Directly, each part is one message (in slices). In place what comes is received beside, because a rank's part leaves from where its counterpart arrives.
//!
//! Cost, with P ranks and S bytes per rank: 1 round, S(P−1)/P bytes sent per rank; in place as much scratch.

use crate::build::{Build, Team, sub};
use crate::parts::Parts;
use crate::plan::{Buf, Plan, PlanError, Request, Span};
use gaggle_core::{Algorithm, Counts};

/// The plan.
///
/// # Errors
/// More steps or elements than there are numbers for; counts that do not fit; counts in place.
pub(crate) fn plan_all_to_all(
    req: &Request,
    send: &Counts,
    recv: &Counts,
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
