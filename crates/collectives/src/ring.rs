//! All-reduce around a ring: reduce-scatter, then all-gather, in the caller's buffer.
//!
//! Chunk c starts at rank c and is folded into by each rank on its way to rank c−1, which owns the result and sends it round once more.
//! A slice is sent on the moment it is folded; there are no rounds to wait for.
//!
//! Cost, with P ranks and S bytes: 2(P−1) rounds, 2S(P−1)/P bytes sent per rank.
//! With `widen` the partial results are kept and sent in the accumulator type, so that the first half's bytes are counted in that type.
//!
//! Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009, section 3.

use crate::build::Build;
use crate::plan::{Action, Arrive, Buf, Plan, PlanError, Request, Slot, Span};
use crate::program::{After, Chunks, Outline, Program, back, forward};
use gaggle_core::{Algorithm, Codec, OpKind, Rank, Reduce};
use smallvec::smallvec;

/// The plan.
///
/// # Errors
/// More steps than there are numbers for.
pub(crate) fn plan_ring_allreduce(req: &Request, reduce: Reduce) -> Result<Plan, PlanError> {
    if req.out_of_place && req.world == 1 {
        let mut b = Build::new(req);
        let own = b.contribution(0, req.len);
        let result = b.place(Span::user(0, req.len), &own);
        return b.finish(Algorithm::Ring, Some(&result));
    }
    let chunks = Chunks::new(req.len, req.world, req.slice)?;
    let mean = reduce == Reduce::Mean;
    let ring = Ring {
        rank: req.rank.0,
        world: req.world,
        chunks,
        mean,
        widen: req.widen && req.world > 1,
        given: if req.out_of_place {
            Buf::Input
        } else {
            Buf::User
        },
    };
    let hops = u64::from(req.world - 1);
    let outline = Outline {
        kind: OpKind::AllReduce,
        algorithm: Algorithm::Ring,
        reduce,
        input_len: if req.out_of_place { req.len } else { 0 },
        user_len: req.len,
        scratch_len: if ring.widen { req.len } else { 0 },
        n_slots: if mean {
            1 + 2 * hops * u64::from(chunks.n_slices)
        } else {
            0
        },
        n_slices: chunks.n_slices,
    };
    outline.with(req, ring)
}

/// What rank `rank` does to one slice of every chunk.
#[derive(Debug)]
struct Ring {
    rank: u32,
    world: u32,
    chunks: Chunks,
    mean: bool,
    widen: bool,
    /// Where the contribution is.
    given: Buf,
}

/// The operations on one slice number. Hop t of the first half is about chunk rank−t, hop t of the second about chunk rank+1−t.
enum Hop {
    CopyIn(u32),
    Weigh,
    ReduceSend(u32),
    ReduceRecv(u32),
    Divide,
    CopyOut,
    GatherSend(u32),
    GatherRecv(u32),
}

impl Program for Ring {
    fn n_ops(&self) -> u64 {
        if self.world == 1 {
            return 0;
        }
        let hops = u64::from(self.world - 1);
        let (i, w, m) = (
            u64::from(self.copies_in()),
            u64::from(self.widen),
            u64::from(self.mean),
        );
        // The last hop of either half sends nothing on.
        (i + m + 1) + (hops * (2 + i) - 1) + (m + w) + 1 + (2 * hops - 1)
    }

    fn total(&self) -> Option<Slot> {
        self.mean.then(|| self.partial_slot(self.world - 1, 0))
    }

    fn op(&self, op: u32, slice: u32) -> (Action, After) {
        match self.decode(op) {
            Hop::CopyIn(t) => self.copy_in(t, slice),
            Hop::Weigh => self.weigh(slice),
            Hop::ReduceSend(t) => self.reduce_send(t, slice),
            Hop::ReduceRecv(t) => self.reduce_recv(t, slice),
            Hop::Divide => self.divide(slice),
            Hop::CopyOut => self.copy_out(slice),
            Hop::GatherSend(t) => self.gather_send(t, slice),
            Hop::GatherRecv(t) => self.gather_recv(t, slice),
        }
    }
}

/// Where each operation stands: `[copy][weigh] send, then per hop [copy] recv send, [divide][copy], send, then per hop recv send`.
impl Ring {
    /// Whether each chunk is copied to where partial results are kept.
    fn copies_in(&self) -> bool {
        self.widen || self.given == Buf::Input
    }

    fn i(&self) -> u32 {
        u32::from(self.copies_in())
    }

    fn w(&self) -> u32 {
        u32::from(self.widen)
    }

    fn m(&self) -> u32 {
        u32::from(self.mean)
    }

    /// Operations of the first hop.
    fn head(&self) -> u32 {
        self.i() + self.m() + 1
    }

    /// Operations of each later hop of the first half.
    fn stride(&self) -> u32 {
        2 + self.i()
    }

    /// Where the first half ends.
    fn reduced(&self) -> u32 {
        self.head() + (self.world - 1) * self.stride() - 1
    }

    /// Where the second half begins.
    fn gather(&self) -> u32 {
        self.reduced() + self.m() + self.w()
    }

    fn copy_in_at(&self, t: u32) -> u32 {
        if t == 0 {
            0
        } else {
            self.head() + (t - 1) * self.stride()
        }
    }

    fn reduce_recv_at(&self, t: u32) -> u32 {
        self.head() + (t - 1) * self.stride() + self.i()
    }

    fn reduce_send_at(&self, t: u32) -> u32 {
        if t == 0 {
            self.head() - 1
        } else {
            self.reduce_recv_at(t) + 1
        }
    }

    fn gather_recv_at(&self, t: u32) -> u32 {
        self.gather() + 2 * t - 1
    }

    fn decode(&self, op: u32) -> Hop {
        let (i, m) = (self.i(), self.m());
        if op < self.head() {
            return match op {
                0 if self.copies_in() => Hop::CopyIn(0),
                _ if op < i + m => Hop::Weigh,
                _ => Hop::ReduceSend(0),
            };
        }
        if op < self.reduced() {
            let (t, part) = (
                (op - self.head()) / self.stride() + 1,
                (op - self.head()) % self.stride(),
            );
            return match part {
                0 if self.copies_in() => Hop::CopyIn(t),
                _ if part == i => Hop::ReduceRecv(t),
                _ => Hop::ReduceSend(t),
            };
        }
        if op < self.gather() {
            return if op == self.reduced() && self.mean {
                Hop::Divide
            } else {
                Hop::CopyOut
            };
        }
        match op - self.gather() {
            0 => Hop::GatherSend(0),
            k if k % 2 == 1 => Hop::GatherRecv(k / 2 + 1),
            k => Hop::GatherSend(k / 2),
        }
    }
}

/// What each operation is.
impl Ring {
    /// The memory that partial results are kept in.
    fn work(&self) -> Buf {
        if self.widen { Buf::Scratch } else { Buf::User }
    }

    fn reduce_span(&self, buf: Buf, t: u32, slice: u32) -> Span {
        self.chunks
            .slice(buf, back(self.rank, t, self.world), slice)
    }

    fn gather_span(&self, t: u32, slice: u32) -> Span {
        let owned = forward(self.rank, 1, self.world);
        self.chunks
            .slice(Buf::User, back(owned, t, self.world), slice)
    }

    /// Σw of the partial result after `t` hops; 0: the own weight.
    fn partial_slot(&self, t: u32, slice: u32) -> Slot {
        if t == 0 {
            0
        } else {
            1 + (t - 1) * self.chunks.n_slices + slice
        }
    }

    /// Σw of the result that came `t` hops.
    fn result_slot(&self, t: u32, slice: u32) -> Slot {
        self.partial_slot(self.world - 1 + t, slice)
    }

    fn tag(&self, hop: u32, slice: u32) -> u32 {
        hop * self.chunks.n_slices + slice
    }

    fn next(&self) -> Rank {
        Rank(forward(self.rank, 1, self.world))
    }

    fn previous(&self) -> Rank {
        Rank(back(self.rank, 1, self.world))
    }

    fn copy_in(&self, t: u32, slice: u32) -> (Action, After) {
        let action = Action::Copy {
            src: self.reduce_span(self.given, t, slice),
            dst: self.reduce_span(self.work(), t, slice),
            unless_zero: self.mean.then_some(0),
        };
        (action, smallvec![])
    }

    fn weigh(&self, slice: u32) -> (Action, After) {
        let action = Action::Weigh {
            span: self.reduce_span(self.work(), 0, slice),
            slot: 0,
        };
        (action, (0..self.i()).collect())
    }

    fn reduce_send(&self, t: u32, slice: u32) -> (Action, After) {
        let action = Action::Send {
            to: self.next(),
            tag: self.tag(t, slice),
            src: self.reduce_span(self.work(), t, slice),
            wire: self.work(),
            codec: Codec::None,
            weight: self.mean.then(|| self.partial_slot(t, slice)),
            scale: None,
        };
        let after = match t {
            // The weighing, or else the copy, stands just before; without either there is nothing to wait for.
            0 => (0..self.reduce_send_at(0)).last().into_iter().collect(),
            _ => smallvec![self.reduce_recv_at(t)],
        };
        (action, after)
    }

    fn reduce_recv(&self, t: u32, slice: u32) -> (Action, After) {
        let action = Action::Recv {
            from: self.previous(),
            tag: self.tag(t - 1, slice),
            dst: self.reduce_span(self.work(), t, slice),
            wire: self.work(),
            codec: Codec::None,
            // The partial result began at the chunk's own rank and comes round in that order.
            arrive: Arrive::Fold {
                incoming_first: true,
                there: self.mean.then_some(0),
            },
            weight: self.mean.then(|| self.partial_slot(t, slice)),
        };
        let copied = self.copies_in().then(|| self.copy_in_at(t));
        let after = copied.into_iter().collect();
        (action, after)
    }

    fn divide(&self, slice: u32) -> (Action, After) {
        let last = self.world - 1;
        let action = Action::Divide {
            span: self.reduce_span(self.work(), last, slice),
            slot: self.partial_slot(last, slice),
        };
        (action, smallvec![self.reduce_recv_at(last)])
    }

    fn copy_out(&self, slice: u32) -> (Action, After) {
        let last = self.world - 1;
        let action = Action::Copy {
            src: self.reduce_span(Buf::Scratch, last, slice),
            dst: self.reduce_span(Buf::User, last, slice),
            unless_zero: self.mean.then(|| self.partial_slot(last, slice)),
        };
        (action, smallvec![self.reduced_at()])
    }

    /// The operation after which the owned chunk is reduced (and divided).
    fn reduced_at(&self) -> u32 {
        if self.mean {
            self.reduced()
        } else {
            self.reduce_recv_at(self.world - 1)
        }
    }

    fn gather_send(&self, t: u32, slice: u32) -> (Action, After) {
        let action = Action::Send {
            to: self.next(),
            tag: self.tag(self.world - 1 + t, slice),
            src: self.gather_span(t, slice),
            wire: Buf::User,
            codec: Codec::None,
            weight: self.mean.then(|| self.result_slot(t, slice)),
            scale: None,
        };
        let after = match t {
            0 if self.widen => self.gather() - 1,
            0 => self.reduced_at(),
            _ => self.gather_recv_at(t),
        };
        (action, smallvec![after])
    }

    fn gather_recv(&self, t: u32, slice: u32) -> (Action, After) {
        let action = Action::Recv {
            from: self.previous(),
            tag: self.tag(self.world - 2 + t, slice),
            dst: self.gather_span(t, slice),
            wire: Buf::User,
            codec: Codec::None,
            arrive: Arrive::Store,
            weight: self.mean.then(|| self.result_slot(t, slice)),
        };
        // The result replaces what hop t−1 of the first half has read: the chunk is the same.
        let read = match (self.widen, self.given) {
            (true, Buf::User) => Some(self.copy_in_at(t - 1)),
            (true, _) => None,
            (false, _) => Some(self.reduce_send_at(t - 1)),
        };
        (action, read.into_iter().collect())
    }
}
