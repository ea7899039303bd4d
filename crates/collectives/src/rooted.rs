//! Gather and scatter: parts to one rank, or from one.
//!
//! Directly, every part is one message (in slices) between its rank and the root.
//!
//! Cost, with P ranks and S bytes in all: 1 round; a rank sends its part, the root of a scatter all but its own.

use crate::build::{Build, Team, sub};
use crate::parts::Parts;
use crate::plan::{Buf, Plan, PlanError, Request, Span};
use gaggle_core::{Algorithm, Counts, Rank};

/// The plan of a gather.
///
/// # Errors
/// More steps or elements than there are numbers for, or counts that do not fit.
pub(crate) fn plan_gather(req: &Request, root: Rank, counts: &Counts) -> Result<Plan, PlanError> {
    let parts = Parts::of(counts, req.len, req.world as usize, "counts")?;
    let mut b = Build::new(req);
    let (at, len) = parts.at(req.rank.0);
    if req.rank == root {
        let own = b.contribution(at, len);
        let all = Span::user(0, parts.total());
        b.place(sub(all, (at, len)), &own);
        for from in Team::all(req).before_me() {
            b.recv(Rank(from), sub(all, parts.at(from)), Buf::User);
        }
    } else {
        let own = b.contribution(0, len);
        b.send(root, &own, Buf::User);
    }
    b.finish(Algorithm::Direct, None)
}

/// The plan of a scatter.
///
/// # Errors
/// More steps or elements than there are numbers for, or counts that do not fit.
pub(crate) fn plan_scatter(req: &Request, root: Rank, counts: &Counts) -> Result<Plan, PlanError> {
    let parts = Parts::of(counts, req.len, req.world as usize, "counts")?;
    let mut b = Build::new(req);
    let own = parts.at(req.rank.0);
    if req.rank == root {
        let all = b.contribution(0, parts.total());
        for to in Team::all(req).after_me() {
            b.send(Rank(to), &all.part(parts.at(to)), Buf::User);
        }
        if req.out_of_place {
            b.place(Span::user(0, own.1), &all.part(own));
        }
    } else {
        b.recv(root, Span::user(0, own.1), Buf::User);
    }
    b.finish(Algorithm::Direct, None)
}
