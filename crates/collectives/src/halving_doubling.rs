//! Vector halving, and doubling on the way back.
//!
//! Let Q be the largest power of two that is at most P.
//! Ranks Q and up hand their vectors to rank−Q first and get what is theirs last; among the lower ranks, each round exchanges the halves of what is left with one partner and folds, the lower rank's operand first.
//! What comes is folded where it came, and the last fold rounds into the result's place, so that a non-root's buffer is never touched and nothing is copied out of place.
//!
//! All-reduces and reductions begin with the nearest partner, to which the largest half goes; a reduce-scatter begins with the farthest, so that rank c ends with part c.
//!
//! Cost, with P ranks and S bytes:
//!
//! | operation | rounds | bytes sent per rank |
//! |---|---|---|
//! | reduce-scatter | log₂Q, two more where P > Q | S(Q−1)/Q, S and one part more where P > Q |
//! | all-reduce | 2·log₂Q, two more where P > Q | 2S(Q−1)/Q, up to S more where P > Q |
//! | reduce | 2·log₂Q, one more where P > Q | at most S(Q−1)/Q + S/2 |
//!
//! Partial results travel in the accumulator type where it is wider.
//!
//! Source: Rabenseifner, Optimization of collective reduction operations, 2004; Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005, section 4.5.

use crate::build::{Build, Team, Value, sub};
use crate::parts::Parts;
use crate::plan::{Buf, Plan, PlanError, Request, Span};
use crate::reduce_scatter::Given;
use gaggle_core::{Algorithm, Rank};

/// The plan of an all-reduce.
///
/// # Errors
/// More steps or elements than there are numbers for.
pub(crate) fn plan_all_reduce(req: &Request) -> Result<Plan, PlanError> {
    let mut b = Build::new(req);
    let own = b.contribution(0, req.len);
    let dst = Span::user(0, req.len);
    let result = all_reduce(&mut b, &Team::all(req), &own, dst, Buf::User);
    b.finish(Algorithm::HalvingDoubling, Some(&result))
}

/// The plan of a reduction to `root`.
///
/// # Errors
/// More steps or elements than there are numbers for.
pub(crate) fn plan_reduce(req: &Request, root: Rank) -> Result<Plan, PlanError> {
    let mut b = Build::new(req);
    let own = b.contribution(0, req.len);
    let team = Team::from_root(req, root);
    let result = reduce(&mut b, &team, &own, Span::user(0, req.len));
    b.finish(Algorithm::HalvingDoubling, result.as_ref())
}

/// Everybody's place among the largest power of two.
struct Halving<'t> {
    team: &'t Team,
    /// That many.
    lower: u32,
    n_rounds: u32,
    /// In which type contributions travel.
    first: Buf,
    /// Whether the farthest partner is the first.
    farthest_first: bool,
}

/// The parts that a rank is left with after each round: `lo..hi` of the lower ranks' parts.
#[derive(Clone, Copy)]
struct Block {
    lo: u32,
    hi: u32,
}

impl Block {
    /// The half that is kept and the half that is sent.
    fn halves(self, keeps_upper: bool) -> (Block, Block) {
        let mid = self.lo + (self.hi - self.lo) / 2;
        let lower = Block {
            lo: self.lo,
            hi: mid,
        };
        let upper = Block {
            lo: mid,
            hi: self.hi,
        };
        if keeps_upper {
            (upper, lower)
        } else {
            (lower, upper)
        }
    }
}

impl<'t> Halving<'t> {
    fn new(team: &'t Team, first: Buf, farthest_first: bool) -> Self {
        let n_rounds = team.len().ilog2();
        Halving {
            team,
            lower: 1 << n_rounds,
            n_rounds,
            first,
            farthest_first,
        }
    }

    fn me(&self) -> u32 {
        self.team.me
    }

    /// The rank beyond that hands its vector to `idx`.
    fn beyond(&self, idx: u32) -> Option<Rank> {
        (idx + self.lower < self.team.len()).then(|| self.team.rank(idx + self.lower))
    }

    fn bit(&self, round: u32) -> u32 {
        if self.farthest_first {
            self.lower >> (round + 1)
        } else {
            1 << round
        }
    }

    fn all(&self) -> Block {
        Block {
            lo: 0,
            hi: self.lower,
        }
    }

    /// What `idx` is left with after `rounds`.
    fn block(&self, idx: u32, rounds: u32) -> Block {
        (0..rounds).fold(self.all(), |block, round| {
            block.halves(idx & self.bit(round) != 0).0
        })
    }

    /// The own contribution and that of the rank beyond, for one of the lower ranks.
    fn with_beyond(&self, b: &mut Build<'_>, own: &Value) -> Value {
        match self.beyond(self.me()) {
            None => own.clone(),
            Some(rank) => {
                let room = b.room(own.span.len);
                let came = b.recv(rank, room, self.first);
                b.fold(room, &[own.clone(), came])
            }
        }
    }

    /// Halves `value` in every round; what is left goes to `dst`. `range`: the elements of a block's parts, `None` where it has none.
    fn halve(
        &self,
        b: &mut Build<'_>,
        value: &Value,
        range: &dyn Fn(Block) -> Option<(u64, u64)>,
        dst: Option<Span>,
    ) -> Option<Value> {
        let has_folded = |idx: u32, round: u32| round > 0 || self.beyond(idx).is_some();
        let wire = |idx, round| match has_folded(idx, round) {
            true => Buf::Scratch,
            false => self.first,
        };
        let (mut value, mut at) = (value.clone(), 0);
        for round in 0..self.n_rounds {
            let partner = self.me() ^ self.bit(round);
            let keeps_upper = self.me() & self.bit(round) != 0;
            let (kept, sent) = self.block(self.me(), round).halves(keeps_upper);
            if let Some((lo, len)) = range(sent) {
                let half = value.part((lo - at, len));
                b.send(self.team.rank(partner), &half, wire(self.me(), round));
            }
            let (lo, len) = range(kept)?;
            let room = b.room(len);
            let came = b.recv(self.team.rank(partner), room, wire(partner, round));
            let own = value.part((lo - at, len));
            let last = round + 1 == self.n_rounds;
            let place = dst.filter(|_| last).unwrap_or(room);
            let pair = if self.me() < partner {
                [own, came]
            } else {
                [came, own]
            };
            (value, at) = (b.fold(place, &pair), lo);
        }
        Some(value)
    }
}

/// All of the team's contributions combined, in everybody's `dst`.
pub(crate) fn all_reduce(
    b: &mut Build<'_>,
    team: &Team,
    own: &Value,
    dst: Span,
    first: Buf,
) -> Value {
    let h = Halving::new(team, first, false);
    let me = h.me();
    if me >= h.lower {
        let partner = team.rank(me - h.lower);
        b.send(partner, own, first);
        return b.recv(partner, dst, Buf::User);
    }
    if h.n_rounds == 0 {
        return b.place(dst, own);
    }
    let parts = Parts::shares(own.span.len, h.lower);
    let range = |block: Block| Some(parts.range(block.lo, block.hi));
    let all = h.with_beyond(b, own);
    let mine = h.block(me, h.n_rounds);
    let place = |block: Block| sub(dst, parts.range(block.lo, block.hi));
    let part = h.halve(b, &all, &range, Some(place(mine)));
    let mut held = part.unwrap_or_else(|| b.plain(place(mine)));
    for round in (0..h.n_rounds).rev() {
        let partner = team.rank(me ^ h.bit(round));
        b.send(partner, &held, Buf::User);
        let theirs = h.block(me ^ h.bit(round), round + 1);
        let came = b.recv(partner, place(theirs), Buf::User);
        held = Value::join(place(h.block(me, round)), &[held, came]);
    }
    if let Some(rank) = h.beyond(me) {
        b.send(rank, &held, Buf::User);
    }
    held
}

/// All of the team's contributions combined, in the first's `dst`; the others get nothing.
fn reduce(b: &mut Build<'_>, team: &Team, own: &Value, dst: Span) -> Option<Value> {
    let h = Halving::new(team, Buf::User, false);
    let me = h.me();
    if me >= h.lower {
        b.send(team.rank(me - h.lower), own, Buf::User);
        return None;
    }
    if h.n_rounds == 0 {
        return Some(b.place(dst, own));
    }
    let parts = Parts::shares(own.span.len, h.lower);
    let range = |block: Block| Some(parts.range(block.lo, block.hi));
    let all = h.with_beyond(b, own);
    // The way back: in each round the higher of two hands over what it holds, and is done. What it holds then has a place beforehand.
    let last = (0..h.n_rounds).rev().find(|&round| me & h.bit(round) != 0);
    let held_last = h.block(me, last.map_or(0, |round| round + 1));
    let (area_at, area_len) = parts.range(held_last.lo, held_last.hi);
    let area = match last {
        None => dst,
        Some(_) => b.room(area_len),
    };
    let place = |block: Block| {
        let (at, len) = parts.range(block.lo, block.hi);
        sub(area, (at - area_at, len))
    };
    let mine = h.block(me, h.n_rounds);
    let mut held = h.halve(b, &all, &range, Some(place(mine)))?;
    for round in (0..h.n_rounds).rev() {
        let partner = me ^ h.bit(round);
        if partner < me {
            b.send(team.rank(partner), &held, Buf::User);
            return None;
        }
        let theirs = h.block(partner, round + 1);
        let came = b.recv(team.rank(partner), place(theirs), Buf::User);
        held = Value::join(place(h.block(me, round)), &[held, came]);
    }
    Some(held)
}

/// Everybody's part of the reduction, in its `dst`.
pub(crate) fn reduce_scatter(
    b: &mut Build<'_>,
    team: &Team,
    given: &Given<'_>,
    dst: Span,
) -> Option<Value> {
    let h = Halving::new(team, given.first, true);
    let (me, n) = (h.me(), team.len());
    if me >= h.lower {
        let partner = team.rank(me - h.lower);
        b.send(partner, given.all, given.first);
        return Some(b.recv(partner, dst, Buf::User));
    }
    if h.n_rounds == 0 {
        return Some(b.place(dst, given.all));
    }
    let all = h.with_beyond(b, given.all);
    let range = |lo: u32, hi: u32| {
        let (first, last) = ((given.at)(lo), (given.at)(hi - 1));
        (first.0, last.0 + last.1 - first.0)
    };
    let own = h.halve(b, &all, &|block| Some(range(block.lo, block.hi)), Some(dst));
    // The parts of the ranks beyond, of which each of the lower ranks ends with its partner's.
    let beyond = |block: Block| {
        let (lo, hi) = (block.lo + h.lower, (block.hi + h.lower).min(n));
        (lo < hi).then(|| range(lo, hi))
    };
    if n > h.lower {
        let theirs = h.halve(b, &all, &beyond, None);
        if let (Some(rank), Some(value)) = (h.beyond(me), theirs) {
            b.send(rank, &value, Buf::User);
        }
    }
    own
}
