//! All-reduce by exchange of whole vectors at doubling distance, for any world.
//!
//! Let Q be the largest power of two that is at most P.
//! Ranks Q and up hand their vectors to rank−Q first and get the result last; among the lower ranks, round k exchanges with rank XOR 2^k.
//! What arrives is received beside the own vector and then folded, the lower rank's operand first, so that both partners compute the same bits.
//!
//! A mean is kept as a mean in every round, (w·x + v·y) / (w + v), so that nothing has to be weighed beforehand and a vector of weight 0 is never read; where all weights are 0 no element is written.
//!
//! With `widen` partial results lie in scratch, in the accumulator type, and travel in it; the last fold rounds into the caller's buffer.
//!
//! Cost, with P ranks and S bytes: ⌈log₂P⌉ rounds (one more where P is no power of two), at most S·(⌊log₂P⌋ + 1) bytes sent per rank.
//!
//! Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005, section 4.5.

use crate::build::Build;
use crate::plan::{Action, Arrive, Buf, Operand, Plan, PlanError, Request, Slot, Span};
use crate::program::{After, Outline, Program, n_slices, share, times};
use gaggle_core::{Algorithm, Codec, OpKind, Rank, Reduce};
use smallvec::smallvec;

/// The plan.
///
/// # Errors
/// More steps than there are numbers for.
pub(crate) fn plan_recursive_doubling(req: &Request, reduce: Reduce) -> Result<Plan, PlanError> {
    if req.out_of_place && req.world == 1 {
        let mut b = Build::new(req);
        let own = b.contribution(0, req.len);
        let result = b.place(Span::user(0, req.len), &own);
        return b.finish(Algorithm::RecursiveDoubling, Some(&result));
    }
    let n_slices = n_slices(req.len, req.slice)?;
    let mean = reduce == Reduce::Mean;
    let n_lower = 1 << req.world.ilog2();
    let vector = Vector {
        rank: req.rank.0,
        len: req.len,
        n_slices,
        mean,
        given: if req.out_of_place {
            Buf::Input
        } else {
            Buf::User
        },
    };
    let outline = |scratch_len, n_slots_per_slice: u64| Outline {
        kind: OpKind::AllReduce,
        algorithm: Algorithm::RecursiveDoubling,
        reduce,
        input_len: if req.out_of_place { req.len } else { 0 },
        user_len: req.len,
        scratch_len,
        n_slots: if mean {
            1 + n_slots_per_slice * u64::from(n_slices)
        } else {
            0
        },
        n_slices,
    };
    if req.rank.0 >= n_lower {
        let beyond = Beyond {
            partner: Rank(req.rank.0 - n_lower),
            vector,
        };
        return outline(0, 1).with(req, beyond);
    }
    let exchange = Exchange {
        vector,
        n_lower,
        world: req.world,
        widen: req.widen,
    };
    let n_folds = exchange.n_folds();
    let n_areas = n_folds.min(2) + u32::from(exchange.keeps_partials());
    let scratch_len = times(u64::from(n_areas), req.len)?;
    outline(scratch_len, 2 * u64::from(n_folds)).with(req, exchange)
}

/// A rank's vector in slices.
#[derive(Debug)]
struct Vector {
    rank: u32,
    len: u64,
    n_slices: u32,
    mean: bool,
    /// Where the contribution is.
    given: Buf,
}

impl Vector {
    fn given(&self, slice: u32) -> Span {
        Span {
            buf: self.given,
            ..self.user(slice)
        }
    }

    fn user(&self, slice: u32) -> Span {
        let (lo, hi) = share(self.len, self.n_slices, slice);
        Span::user(lo, hi - lo)
    }

    fn area(&self, area: u32, slice: u32) -> Span {
        let (lo, hi) = share(self.len, self.n_slices, slice);
        Span::scratch(u64::from(area) * self.len + lo, hi - lo)
    }

    fn send(&self, to: Rank, src: Span, weight: Slot, slice: u32) -> Action {
        Action::Send {
            to,
            tag: slice,
            src,
            wire: wire_of(src),
            codec: Codec::None,
            weight: self.mean.then_some(weight),
            scale: None,
        }
    }

    fn recv(&self, from: Rank, dst: Span, wire: Buf, weight: Slot, slice: u32) -> Action {
        Action::Recv {
            from,
            tag: slice,
            dst,
            wire,
            codec: Codec::None,
            arrive: Arrive::Store,
            weight: self.mean.then_some(weight),
        }
    }
}

/// The type of what lies there.
fn wire_of(span: Span) -> Buf {
    match span.buf {
        Buf::Scratch => Buf::Scratch,
        Buf::Input | Buf::User => Buf::User,
    }
}

/// A rank beyond the power of two: hands its vector over and gets the result.
#[derive(Debug)]
struct Beyond {
    partner: Rank,
    vector: Vector,
}

impl Program for Beyond {
    fn n_ops(&self) -> u64 {
        2
    }

    fn total(&self) -> Option<Slot> {
        self.vector.mean.then_some(1)
    }

    fn op(&self, op: u32, slice: u32) -> (Action, After) {
        let v = &self.vector;
        if op == 0 {
            let send = v.send(self.partner, v.given(slice), 0, slice);
            (send, smallvec![])
        } else {
            let recv = v.recv(self.partner, v.user(slice), Buf::User, 1 + slice, slice);
            // In place the result replaces what is sent.
            let after = (v.given == Buf::User).then_some(0);
            (recv, after.into_iter().collect())
        }
    }
}

/// A rank below the power of two.
///
/// Its vector's value number f is that after f folds: 0 the caller's, the last the result.
#[derive(Debug)]
struct Exchange {
    vector: Vector,
    n_lower: u32,
    world: u32,
    widen: bool,
}

impl Program for Exchange {
    fn n_ops(&self) -> u64 {
        // Before and after: receive, fold; send. In each round: send, receive, fold.
        u64::from(3 * self.n_rounds() + 3 * self.n_before(self.vector.rank))
    }

    fn total(&self) -> Option<Slot> {
        let result = self.n_folds();
        self.vector.mean.then(|| self.value_slot(result, 0))
    }

    fn op(&self, op: u32, slice: u32) -> (Action, After) {
        let before = self.n_before(self.vector.rank);
        if before == 1 && op < 2 {
            return if op == 0 {
                self.recv(0, slice)
            } else {
                self.fold(0, slice)
            };
        }
        let (round, part) = ((op - 2 * before) / 3, (op - 2 * before) % 3);
        let fold = round + before;
        match part {
            0 => self.send(fold, slice),
            1 => self.recv(fold, slice),
            _ => self.fold(fold, slice),
        }
    }
}

impl Exchange {
    fn n_rounds(&self) -> u32 {
        self.n_lower.ilog2()
    }

    /// How many vectors rank `rank` folds in before the rounds: 1 where it has a partner beyond the power of two.
    fn n_before(&self, rank: u32) -> u32 {
        u32::from(rank < self.world - self.n_lower)
    }

    fn n_folds(&self) -> u32 {
        self.n_rounds() + self.n_before(self.vector.rank)
    }

    /// Whether there are values that are neither the caller's nor the result and need room in a wider type.
    fn keeps_partials(&self) -> bool {
        self.widen && self.n_folds() > 1
    }

    /// Where value `f` lies.
    fn value(&self, f: u32, slice: u32) -> Span {
        if f == 0 {
            self.vector.given(slice)
        } else if self.keeps_partials() && f != self.n_folds() {
            self.vector.area(2, slice)
        } else {
            self.vector.user(slice)
        }
    }

    fn value_slot(&self, f: u32, slice: u32) -> Slot {
        if f == 0 {
            0
        } else {
            1 + (2 * f - 1) * self.vector.n_slices + slice
        }
    }

    /// Where what is folded in by fold `f` is received. Two areas take turns, so that one can be filled while the other is folded.
    fn incoming(&self, f: u32, slice: u32) -> Span {
        self.vector.area(f % 2, slice)
    }

    fn incoming_slot(&self, f: u32, slice: u32) -> Slot {
        1 + 2 * f * self.vector.n_slices + slice
    }

    /// With whom fold `f` is; the result goes to a rank beyond as if by one more.
    fn partner(&self, f: u32) -> u32 {
        let before = self.n_before(self.vector.rank);
        if f < before || f == self.n_folds() {
            self.vector.rank + self.n_lower
        } else {
            self.vector.rank ^ (1 << (f - before))
        }
    }

    /// In which type the partner sends what fold `f` takes.
    fn partner_wire(&self, f: u32) -> Buf {
        let before = self.n_before(self.vector.rank);
        if f < before || !self.widen {
            return Buf::User;
        }
        let partner_has_folded = f - before + self.n_before(self.partner(f)) > 0;
        if partner_has_folded {
            Buf::Scratch
        } else {
            Buf::User
        }
    }

    fn send_at(&self, f: u32) -> u32 {
        // With a vector folded in before, the first round's send is operation 2 and fold 1.
        if self.n_before(self.vector.rank) == 1 {
            3 * f - 1
        } else {
            3 * f
        }
    }

    fn recv_at(&self, f: u32) -> u32 {
        if f < self.n_before(self.vector.rank) {
            0
        } else {
            self.send_at(f) + 1
        }
    }

    fn fold_at(&self, f: u32) -> u32 {
        self.recv_at(f) + 1
    }

    fn send(&self, f: u32, slice: u32) -> (Action, After) {
        let src = self.value(f, slice);
        let to = Rank(self.partner(f));
        let action = self.vector.send(to, src, self.value_slot(f, slice), slice);
        let after = f.checked_sub(1).map(|prior| self.fold_at(prior));
        (action, after.into_iter().collect())
    }

    fn recv(&self, f: u32, slice: u32) -> (Action, After) {
        let action = self.vector.recv(
            Rank(self.partner(f)),
            self.incoming(f, slice),
            self.partner_wire(f),
            self.incoming_slot(f, slice),
            slice,
        );
        let after = f.checked_sub(2).map(|prior| self.fold_at(prior));
        (action, after.into_iter().collect())
    }

    fn fold(&self, f: u32, slice: u32) -> (Action, After) {
        let operand = |span, slot: Slot| Operand {
            span,
            slot: self.vector.mean.then_some(slot),
        };
        let own = operand(self.value(f, slice), self.value_slot(f, slice));
        let other = operand(self.incoming(f, slice), self.incoming_slot(f, slice));
        let dst = self.value(f + 1, slice);
        let action = Action::Fold {
            dst,
            operands: if self.vector.rank < self.partner(f) {
                smallvec![own, other]
            } else {
                smallvec![other, own]
            },
            sum: self.vector.mean.then(|| self.value_slot(f + 1, slice)),
        };
        (action, self.fold_after(f, own.span.buf == dst.buf))
    }

    fn fold_after(&self, f: u32, in_place: bool) -> After {
        let before = self.n_before(self.vector.rank);
        let mut after: After = smallvec![self.recv_at(f)];
        if f < before {
            return after;
        }
        if in_place {
            // What is being sent is about to be replaced; the send itself waits for the fold before.
            after.push(self.send_at(f));
        } else if f > 0 {
            after.push(self.fold_at(f - 1));
        }
        // The result replaces the caller's vector, which the first round may still be sending.
        let last = f + 1 == self.n_folds();
        if last && !in_place && before == 0 && self.vector.given == Buf::User {
            after.push(self.send_at(0));
        }
        after
    }
}
