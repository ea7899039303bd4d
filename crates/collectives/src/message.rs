//! One message from one rank to another, in slices.

use crate::build::Build;
use crate::plan::{Buf, Plan, PlanError, Request, Span};
use gaggle_core::{Algorithm, Rank};

/// The sender's side. In place the caller's buffer is read and not changed.
///
/// # Errors
/// More steps than there are numbers for.
pub(crate) fn plan_send(req: &Request, to: Rank) -> Result<Plan, PlanError> {
    let mut b = Build::new(req);
    let all = b.contribution(0, req.len);
    b.send(to, &all, Buf::User);
    b.finish(Algorithm::Direct, None)
}

/// The receiver's side.
///
/// # Errors
/// More steps than there are numbers for.
pub(crate) fn plan_recv(req: &Request, from: Rank) -> Result<Plan, PlanError> {
    let mut b = Build::new(req);
    b.recv(from, Span::user(0, req.len), Buf::User);
    b.finish(Algorithm::Direct, None)
}
