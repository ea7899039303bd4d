//! All-gather: everybody's part for all, in rank order, around a ring or directly.
//!
//! Part c of the caller's buffer is rank c's; the own part is in place at the start.
//!
//! Cost, with P ranks and S bytes per rank: (P−1)·S bytes sent per rank; P−1 rounds around the ring, 1 directly.

use crate::plan::{Action, Arrive, Buf, Plan, PlanError, Request, Span};
use crate::program::{After, Outline, Program, back, forward, n_slices, share, times};
use gaggle_core::{Algorithm, Codec, OpKind, Rank, Reduce};
use smallvec::smallvec;

/// The plan, by `Algorithm::Ring` or otherwise directly.
///
/// # Errors
/// More steps or elements than there are numbers for.
pub(crate) fn plan_all_gather(req: &Request, algorithm: Algorithm) -> Result<Plan, PlanError> {
    let n_slices = n_slices(req.len, req.slice)?;
    let parts = Parts {
        rank: req.rank.0,
        world: req.world,
        len: req.len,
        n_slices,
    };
    let outline = Outline {
        kind: OpKind::AllGather,
        algorithm,
        reduce: Reduce::Sum,
        input_len: 0,
        user_len: times(u64::from(req.world), req.len)?,
        scratch_len: 0,
        n_slots: 0,
        n_slices,
    };
    if algorithm == Algorithm::Ring {
        outline.with(req, RingGather(parts))
    } else {
        outline.with(req, DirectGather(parts))
    }
}

/// Equal parts, one per rank, in slices.
#[derive(Debug)]
struct Parts {
    rank: u32,
    world: u32,
    len: u64,
    n_slices: u32,
}

impl Parts {
    fn part(&self, of: u32, slice: u32) -> Span {
        let (lo, hi) = share(self.len, self.n_slices, slice);
        Span::user(u64::from(of) * self.len + lo, hi - lo)
    }

    fn send(&self, to: u32, tag: u32, src: Span) -> Action {
        Action::Send {
            to: Rank(to),
            tag,
            src,
            wire: Buf::User,
            codec: Codec::None,
            weight: None,
            scale: None,
        }
    }

    fn recv(&self, from: u32, tag: u32, dst: Span) -> Action {
        Action::Recv {
            from: Rank(from),
            tag,
            dst,
            wire: Buf::User,
            codec: Codec::None,
            arrive: Arrive::Store,
            weight: None,
        }
    }
}

/// `send`, then per hop `recv send`; the last hop sends nothing on. Hop t is about part rank−t.
#[derive(Debug)]
struct RingGather(Parts);

impl Program for RingGather {
    fn n_ops(&self) -> u64 {
        2 * u64::from(self.0.world - 1)
    }

    fn op(&self, op: u32, slice: u32) -> (Action, After) {
        let p = &self.0;
        let hop = op.div_ceil(2);
        let part = p.part(back(p.rank, hop, p.world), slice);
        let tag = |hop| hop * p.n_slices + slice;
        if op % 2 == 1 {
            let from = back(p.rank, 1, p.world);
            (p.recv(from, tag(hop - 1), part), smallvec![])
        } else {
            let to = forward(p.rank, 1, p.world);
            // What is sent on has just come.
            let after = op.checked_sub(1).into_iter().collect();
            (p.send(to, tag(hop), part), after)
        }
    }
}

/// All sends, then all receives.
#[derive(Debug)]
struct DirectGather(Parts);

impl Program for DirectGather {
    fn n_ops(&self) -> u64 {
        2 * u64::from(self.0.world - 1)
    }

    fn op(&self, op: u32, slice: u32) -> (Action, After) {
        let p = &self.0;
        let n = p.world - 1;
        let action = if op < n {
            let to = forward(p.rank, op + 1, p.world);
            p.send(to, slice, p.part(p.rank, slice))
        } else {
            let from = back(p.rank, op - n + 1, p.world);
            p.recv(from, slice, p.part(from, slice))
        };
        (action, smallvec![])
    }
}
