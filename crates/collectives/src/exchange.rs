//! All-reduce in one round: everybody sends everybody the whole vector and folds all of them in rank order.
//!
//! For short vectors on links whose latency is what counts: no other plan has one round only.
//! The fold is rounded once, whatever P is, and is the same on every rank, so that all hold equal bits and 16-bit floats need no wider partial results.
//!
//! Cost, with P ranks and S bytes: 1 round, S(P−1) bytes sent per rank, S(P−1) of scratch.

use crate::build::Build;
use crate::plan::{Action, Arrive, Buf, Operand, Plan, PlanError, Request, Slot, Span};
use crate::program::{After, Outline, Program, back, forward, n_slices, share, times};
use gaggle_core::{Algorithm, Codec, OpKind, Rank, Reduce};
use smallvec::smallvec;

/// The plan.
///
/// # Errors
/// More steps than there are numbers for.
pub(crate) fn plan_all_reduce(req: &Request, reduce: Reduce) -> Result<Plan, PlanError> {
    if req.out_of_place && req.world == 1 {
        let mut b = Build::new(req);
        let own = b.contribution(0, req.len);
        let result = b.place(Span::user(0, req.len), &own);
        return b.finish(Algorithm::Exchange, Some(&result));
    }
    let n_slices = n_slices(req.len, req.slice)?;
    let mean = reduce == Reduce::Mean;
    let exchange = Exchange {
        rank: req.rank.0,
        world: req.world,
        len: req.len,
        n_slices,
        mean,
        given: if req.out_of_place {
            Buf::Input
        } else {
            Buf::User
        },
    };
    let outline = Outline {
        kind: OpKind::AllReduce,
        algorithm: Algorithm::Exchange,
        reduce,
        input_len: if req.out_of_place { req.len } else { 0 },
        user_len: req.len,
        scratch_len: times(u64::from(req.world - 1), req.len)?,
        n_slots: match (mean, req.world) {
            (false, _) => 0,
            (true, 1) => 1,
            (true, world) => 1 + u64::from(world) * u64::from(n_slices),
        },
        n_slices,
    };
    outline.with(req, exchange)
}

/// What a rank does to one slice: receives, sends, fold.
///
/// Peer i of 1..P is i ranks on for sends and i ranks back for receives, so that not everybody turns to rank 0 first.
#[derive(Debug)]
struct Exchange {
    rank: u32,
    world: u32,
    len: u64,
    n_slices: u32,
    mean: bool,
    /// Where the contribution is.
    given: Buf,
}

impl Program for Exchange {
    fn n_ops(&self) -> u64 {
        match self.world {
            1 => 0,
            _ => 2 * u64::from(self.world - 1) + 1,
        }
    }

    fn total(&self) -> Option<Slot> {
        let alone = self.world == 1;
        self.mean.then(|| if alone { 0 } else { self.sum_slot(0) })
    }

    fn op(&self, op: u32, slice: u32) -> (Action, After) {
        let n = self.world - 1;
        if op < n {
            self.recv(op + 1, slice)
        } else if op < 2 * n {
            self.send(op - n + 1, slice)
        } else {
            self.fold(slice)
        }
    }
}

impl Exchange {
    /// A peer's place among all but this rank.
    fn place(&self, peer: u32) -> u32 {
        peer - u32::from(peer > self.rank)
    }

    fn span(&self, buf: Buf, slice: u32) -> Span {
        let (lo, hi) = share(self.len, self.n_slices, slice);
        Span {
            buf,
            at: lo,
            len: hi - lo,
        }
    }

    /// Where `peer`'s vector is received.
    fn incoming(&self, peer: u32, slice: u32) -> Span {
        let span = self.span(Buf::Scratch, slice);
        Span {
            at: u64::from(self.place(peer)) * self.len + span.at,
            ..span
        }
    }

    fn incoming_slot(&self, peer: u32, slice: u32) -> Slot {
        1 + self.place(peer) * self.n_slices + slice
    }

    fn sum_slot(&self, slice: u32) -> Slot {
        1 + (self.world - 1) * self.n_slices + slice
    }

    fn slot(&self, slot: Slot) -> Option<Slot> {
        self.mean.then_some(slot)
    }

    fn recv(&self, i: u32, slice: u32) -> (Action, After) {
        let from = back(self.rank, i, self.world);
        let action = Action::Recv {
            from: Rank(from),
            tag: slice,
            dst: self.incoming(from, slice),
            wire: Buf::User,
            codec: Codec::None,
            arrive: Arrive::Store,
            weight: self.slot(self.incoming_slot(from, slice)),
        };
        (action, smallvec![])
    }

    fn send(&self, i: u32, slice: u32) -> (Action, After) {
        let action = Action::Send {
            to: Rank(forward(self.rank, i, self.world)),
            tag: slice,
            src: self.span(self.given, slice),
            wire: Buf::User,
            codec: Codec::None,
            weight: self.slot(0),
            scale: None,
        };
        (action, smallvec![])
    }

    fn fold(&self, slice: u32) -> (Action, After) {
        let operand = |rank| {
            let (span, slot) = if rank == self.rank {
                (self.span(self.given, slice), 0)
            } else {
                (self.incoming(rank, slice), self.incoming_slot(rank, slice))
            };
            Operand {
                span,
                slot: self.slot(slot),
            }
        };
        let action = Action::Fold {
            dst: self.span(Buf::User, slice),
            operands: (0..self.world).map(operand).collect(),
            sum: self.slot(self.sum_slot(slice)),
        };
        // In place the result replaces what is sent.
        let n_before = match self.given {
            Buf::User => 2 * (self.world - 1),
            _ => self.world - 1,
        };
        (action, (0..n_before).collect())
    }
}
