//! All-reduce where everybody sends every owner its share, and every owner the result to everybody.
//!
//! Rank c owns chunk c: it receives all other ranks' values of it beside its own, folds all P in rank order in one pass, and sends the result to all.
//! The fold is rounded once, whatever P is, so that 16-bit floats need no wider partial results and a lossy codec is applied once to each input and once to the result.
//! With a codec, the owner keeps what the others decode: all ranks hold equal bits.
//!
//! Cost, with P ranks and S bytes: 2 rounds, 2S(P−1)/P bytes sent per rank, S of scratch.

use crate::all_gather::{self, Places};
use crate::build::{Build, Team, Value, sub};
use crate::parts::Parts;
use crate::plan::{Action, Arrive, Buf, Operand, Plan, PlanError, Request, Slot, Span};
use crate::program::{After, Chunks, Outline, Program, back, forward, share, times};
use crate::reduce_scatter::{self, Given};
use gaggle_core::{Algorithm, Codec, OpKind, Rank, Reduce};
use smallvec::smallvec;

/// The plan.
///
/// # Errors
/// More steps than there are numbers for.
pub(crate) fn plan_direct_allreduce(req: &Request, reduce: Reduce) -> Result<Plan, PlanError> {
    if req.feedback && req.codec != Codec::None && req.world > 1 {
        return plan_with_feedback(req);
    }
    if req.out_of_place && req.world == 1 {
        let mut b = Build::new(req);
        let own = b.contribution(0, req.len);
        let result = b.place(Span::user(0, req.len), &own);
        return b.finish(Algorithm::Direct, Some(&result));
    }
    let chunks = Chunks::new(req.len, req.world, req.slice)?;
    let mean = reduce == Reduce::Mean;
    let n_peers = u64::from(req.world - 1);
    let direct = Direct {
        rank: req.rank.0,
        world: req.world,
        chunks,
        mean,
        codec: req.codec,
        given: if req.out_of_place {
            Buf::Input
        } else {
            Buf::User
        },
    };
    let outline = Outline {
        kind: OpKind::AllReduce,
        algorithm: Algorithm::Direct,
        reduce,
        input_len: if req.out_of_place { req.len } else { 0 },
        user_len: req.len,
        scratch_len: times(n_peers, chunks.chunk_len(req.rank.0))?,
        n_slots: match (mean, req.world) {
            (false, _) => 0,
            (true, 1) => 1,
            (true, _) => 1 + (2 * n_peers + 1) * u64::from(chunks.n_slices),
        },
        n_slices: chunks.n_slices,
    };
    outline.with(req, direct)
}

/// With error feedback: every chunk that leaves takes with it what the codec lost of it the last time, to its owner; and so does the result of the own chunk, to everybody. The own contribution to it goes through no codec and takes nothing.
///
/// Out of place the contribution is copied first: what leaves is changed.
fn plan_with_feedback(req: &Request) -> Result<Plan, PlanError> {
    let mut b = Build::new(req);
    let team = Team::all(req);
    let parts = Parts::shares(req.len, req.world);
    let at = |part| parts.at(part);
    let given = b.contribution(0, req.len);
    let dst = Span::user(0, req.len);
    let mut sent = Vec::with_capacity(req.world as usize);
    for part in 0..req.world {
        let (at, len) = parts.at(part);
        sent.push(b.place(sub(dst, (at, len)), &given.part((at, len))));
    }
    b.codec = req.codec;
    for to in team.after_me() {
        b.compensate(&sent[to as usize], parts.at(to).0);
    }
    let all = Value::join(dst, &sent);
    let given = Given {
        all: &all,
        at: &at,
        first: Buf::User,
    };
    let (own_at, own_len) = parts.at(team.me);
    let own = sub(dst, (own_at, own_len));
    let result = reduce_scatter::direct_from(&mut b, &team, &given, &sent, Some(own));
    b.compensate(&result, own_at);
    all_gather::direct(&mut b, &team, &result, &Places { dst, at: &at });
    b.finish(Algorithm::Direct, Some(&result))
}

/// What rank `rank` does to one slice of every chunk: receives and sends of the first half, fold, recoding, sends and receives of the second.
///
/// Peer i of 1..P is i ranks on for sends and i ranks back for receives, so that not everybody turns to rank 0 first.
#[derive(Debug)]
struct Direct {
    rank: u32,
    world: u32,
    chunks: Chunks,
    mean: bool,
    codec: Codec,
    /// Where the contribution is.
    given: Buf,
}

impl Program for Direct {
    fn n_ops(&self) -> u64 {
        if self.world == 1 {
            return 0;
        }
        4 * u64::from(self.world - 1) + 1 + u64::from(self.recodes())
    }

    fn total(&self) -> Option<Slot> {
        let alone = self.world == 1;
        self.mean.then(|| if alone { 0 } else { self.sum_slot(0) })
    }

    fn op(&self, op: u32, slice: u32) -> (Action, After) {
        let n = self.world - 1;
        let gather = 2 * n + 1 + self.recodes();
        if op < n {
            self.reduce_recv(op + 1, slice)
        } else if op < 2 * n {
            self.reduce_send(op - n + 1, slice)
        } else if op == 2 * n {
            self.fold(slice)
        } else if op < gather {
            self.recode(slice)
        } else if op < gather + n {
            self.gather_send(op - gather + 1, slice)
        } else {
            self.gather_recv(op - gather - n + 1, slice)
        }
    }
}

impl Direct {
    fn recodes(&self) -> u32 {
        u32::from(self.codec != Codec::None)
    }

    fn target(&self, i: u32) -> u32 {
        forward(self.rank, i, self.world)
    }

    fn source(&self, i: u32) -> u32 {
        back(self.rank, i, self.world)
    }

    /// A peer's place among all but this rank.
    fn place(&self, peer: u32) -> u32 {
        peer - u32::from(peer > self.rank)
    }

    fn own(&self, slice: u32) -> Span {
        self.chunks.slice(Buf::User, self.rank, slice)
    }

    /// Where `peer`'s value of the own chunk is received.
    fn incoming(&self, peer: u32, slice: u32) -> Span {
        let chunk_len = self.chunks.chunk_len(self.rank);
        let (lo, hi) = share(chunk_len, self.chunks.n_slices, slice);
        Span::scratch(u64::from(self.place(peer)) * chunk_len + lo, hi - lo)
    }

    fn incoming_slot(&self, peer: u32, slice: u32) -> Slot {
        1 + self.place(peer) * self.chunks.n_slices + slice
    }

    fn sum_slot(&self, slice: u32) -> Slot {
        1 + (self.world - 1) * self.chunks.n_slices + slice
    }

    fn result_slot(&self, peer: u32, slice: u32) -> Slot {
        1 + (self.world + self.place(peer)) * self.chunks.n_slices + slice
    }

    fn result_tag(&self, slice: u32) -> u32 {
        self.chunks.n_slices + slice
    }

    fn slot(&self, slot: Slot) -> Option<Slot> {
        self.mean.then_some(slot)
    }

    fn reduce_recv(&self, i: u32, slice: u32) -> (Action, After) {
        let from = self.source(i);
        let action = Action::Recv {
            from: Rank(from),
            tag: slice,
            dst: self.incoming(from, slice),
            wire: Buf::User,
            codec: self.codec,
            arrive: Arrive::Store,
            weight: self.slot(self.incoming_slot(from, slice)),
        };
        (action, smallvec![])
    }

    fn reduce_send(&self, i: u32, slice: u32) -> (Action, After) {
        let to = self.target(i);
        let action = Action::Send {
            to: Rank(to),
            tag: slice,
            src: self.chunks.slice(self.given, to, slice),
            wire: Buf::User,
            codec: self.codec,
            weight: self.slot(0),
            scale: None,
        };
        (action, smallvec![])
    }

    fn fold(&self, slice: u32) -> (Action, After) {
        let operand = |rank| {
            let (span, slot) = if rank == self.rank {
                (self.chunks.slice(self.given, rank, slice), 0)
            } else {
                (self.incoming(rank, slice), self.incoming_slot(rank, slice))
            };
            Operand {
                span,
                slot: self.slot(slot),
            }
        };
        let action = Action::Fold {
            dst: self.own(slice),
            operands: (0..self.world).map(operand).collect(),
            sum: self.slot(self.sum_slot(slice)),
        };
        (action, (0..self.world - 1).collect())
    }

    fn recode(&self, slice: u32) -> (Action, After) {
        let action = Action::Recode {
            span: self.own(slice),
            codec: self.codec,
            unless_zero: self.slot(self.sum_slot(slice)),
        };
        (action, smallvec![2 * (self.world - 1)])
    }

    fn gather_send(&self, i: u32, slice: u32) -> (Action, After) {
        let action = Action::Send {
            to: Rank(self.target(i)),
            tag: self.result_tag(slice),
            src: self.own(slice),
            wire: Buf::User,
            codec: self.codec,
            weight: self.slot(self.sum_slot(slice)),
            scale: None,
        };
        // The fold, or the recoding that follows it.
        (action, smallvec![2 * (self.world - 1) + self.recodes()])
    }

    fn gather_recv(&self, i: u32, slice: u32) -> (Action, After) {
        let from = self.source(i);
        let action = Action::Recv {
            from: Rank(from),
            tag: self.result_tag(slice),
            dst: self.chunks.slice(Buf::User, from, slice),
            wire: Buf::User,
            codec: self.codec,
            arrive: Arrive::Store,
            weight: self.slot(self.result_slot(from, slice)),
        };
        if self.given != Buf::User {
            return (action, smallvec![]);
        }
        // The result replaces what was sent to its owner, who was peer P−i then.
        let sent_at = (self.world - 1) + (self.world - i) - 1;
        (action, smallvec![sent_at])
    }
}
