//! Weighted neighbour averaging: one exchange with the round's neighbours.
//!
//! Every slice of the own value goes to each out-neighbour; those of the in-neighbours are received beside it; the average replaces a slice when its receives and, in place, its sends are over.
//! What comes waits in room for a few slices, which the next ones use again: it is averaged while it is in the cache.
//! Out of place an average waits for its receives alone, so that an engine may leave what comes where its sender has it, and read it there.
//!
//! An all-gather among neighbours is the same exchange without the average, from the input into the parts of the output.
//!
//! Cost, with d in-neighbours, e out-neighbours and S bytes: 1 round, e·S bytes sent, scratch for [`WINDOW`] slices of each in-neighbour, or d·S for a round that may go on without somebody ([`Request::patient`]).

use crate::build::{Build, Value, sub};
use crate::parts::Parts;
use crate::plan::{Action, Arrive, Buf, Plan, PlanError, Request, Span, Step, Steps};
use crate::program::{n_slices, share, times};
use gaggle_core::{Algorithm, Codec, Counts, Form, OpKind, Rank, Reduce};
use smallvec::smallvec;
use std::sync::Arc;

/// Who takes part, as the caller said it.
pub(crate) struct Neighbours<'a> {
    pub from: &'a [Rank],
    pub to: &'a [Rank],
    pub scaled: bool,
    pub form: Form,
}

/// The plan.
///
/// # Errors
/// More steps or elements than there are numbers for, or a neighbour that is none.
pub(crate) fn plan_mix(req: &Request, with: &Neighbours<'_>) -> Result<Plan, PlanError> {
    check_neighbours(req, with.from, "in-neighbour")?;
    check_neighbours(req, with.to, "out-neighbour")?;
    let n_slices = n_slices(req.len, req.slice)?;
    let room = if req.patient {
        n_slices
    } else {
        n_slices.min(WINDOW)
    };
    let longest = req.len.div_ceil(u64::from(n_slices));
    let n_ops = with.to.len() as u64 + with.from.len() as u64 + 1;
    let too_many = || PlanError::BadNumber {
        field: "slice",
        got: req.slice,
        want: "large enough for fewer than 2^32 steps and slots",
    };
    let n_steps = n_ops.checked_mul(u64::from(n_slices));
    n_steps
        .and_then(|n| u32::try_from(n).ok())
        .ok_or_else(too_many)?;
    let scratch_len = times(with.from.len() as u64 * u64::from(room), longest)?;
    let mix = Mix {
        from: with.from.to_vec(),
        to: with.to.to_vec(),
        scaled: with.scaled,
        form: with.form,
        codec: req.codec,
        out_of_place: req.out_of_place,
        len: req.len,
        n_slices,
        room,
        longest,
        n_ops: u32::try_from(n_ops).map_err(|_| too_many())?,
    };
    Ok(Plan {
        kind: OpKind::Mix,
        algorithm: Algorithm::Neighbour,
        reduce: Reduce::Sum,
        rank: req.rank,
        world: req.world,
        input_len: if req.out_of_place { req.len } else { 0 },
        user_len: req.len,
        scratch_len,
        n_slots: 0,
        total: None,
        steps: Arc::new(mix),
    })
}

/// Whom this rank exchanges with, as ranks of the group.
pub(crate) struct Exchange {
    pub from: Vec<Rank>,
    pub to: Vec<Rank>,
    pub scaled: bool,
    pub form: Form,
}

/// Sends `own` to all, and averages it with what comes, in `dst`.
pub(crate) fn exchange(b: &mut Build<'_>, with: &Exchange, own: &Value, dst: Span) {
    for (i, &peer) in (0..).zip(&with.to) {
        b.send_scaled(peer, own, Buf::User, with.scaled.then_some(i));
    }
    let mut incoming = Vec::with_capacity(with.from.len());
    for &peer in &with.from {
        let room = b.room(own.span.len);
        incoming.push(b.recv(peer, room, Buf::User).span);
    }
    b.place(dst, own);
    for part in b.cut(dst) {
        let at = (part.at - dst.at, part.len);
        b.push(Action::Mix {
            dst: part,
            own: part,
            operands: incoming.iter().map(|&i| sub(i, at)).collect(),
            form: with.form,
            codec: b.codec,
        });
    }
}

/// The plan of an all-gather among neighbours: `len` elements to each of `to`, side by side what comes from each of `from`.
///
/// # Errors
/// As [`plan_mix`]; counts that do not fit; in place.
pub(crate) fn plan_gather(
    req: &Request,
    from: &[Rank],
    to: &[Rank],
    counts: &Counts,
) -> Result<Plan, PlanError> {
    check_neighbours(req, from, "in-neighbour")?;
    check_neighbours(req, to, "out-neighbour")?;
    if !req.out_of_place {
        return Err(PlanError::Unsupported {
            kind: "neighbour_all_gather",
            what: "has no meaning in place; give an input and an output".into(),
        });
    }
    let parts = Parts::of(counts, req.len, from.len(), "counts")?;
    let mut b = Build::new(req);
    let own = b.contribution(0, req.len);
    for &peer in to {
        b.send(peer, &own, Buf::User);
    }
    for (i, &peer) in from.iter().enumerate() {
        b.recv(
            peer,
            sub(Span::user(0, parts.total()), parts.at(i as u32)),
            Buf::User,
        );
    }
    b.finish(Algorithm::Neighbour, None)
}

pub(crate) fn check_neighbours(
    req: &Request,
    ranks: &[Rank],
    what: &'static str,
) -> Result<(), PlanError> {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    let twice = sorted.windows(2).find(|w| w[0] == w[1]).map(|w| w[0]);
    let outside = ranks
        .iter()
        .copied()
        .find(|&r| r == req.rank || r.0 >= req.world);
    match outside.or(twice) {
        None => Ok(()),
        Some(rank) => Err(PlanError::BadRank {
            what,
            rank,
            world: req.world,
        }),
    }
}

/// Slices that are under way at once: so many that links are busy, so few that what comes is averaged while it is in the cache.
const WINDOW: u32 = 4;

/// Of each slice in turn: its sends, its receives, its average.
#[derive(Debug)]
struct Mix {
    from: Vec<Rank>,
    to: Vec<Rank>,
    scaled: bool,
    form: Form,
    codec: Codec,
    out_of_place: bool,
    len: u64,
    n_slices: u32,
    /// Slices that there is room for.
    room: u32,
    /// Elements of the longest slice.
    longest: u64,
    /// Steps of a slice.
    n_ops: u32,
}

impl Mix {
    /// Where what comes from in-neighbour `i` waits to be averaged.
    fn incoming(&self, i: usize, slice: u32) -> Span {
        let (lo, hi) = share(self.len, self.n_slices, slice);
        let place = u64::from(slice % self.room) * self.from.len() as u64 + i as u64;
        Span::scratch(place * self.longest, hi - lo)
    }
}

impl Steps for Mix {
    fn n_steps(&self) -> u32 {
        self.n_ops * self.n_slices
    }

    fn step(&self, idx: u32) -> Step {
        assert!(
            idx < self.n_steps(),
            "step {idx} of a plan of {} steps",
            self.n_steps()
        );
        let (slice, op) = (idx / self.n_ops, idx % self.n_ops);
        let (n_to, n_from) = (self.to.len() as u32, self.from.len() as u32);
        let first = slice * self.n_ops;
        let (lo, hi) = share(self.len, self.n_slices, slice);
        let dst = Span::user(lo, hi - lo);
        let given = match self.out_of_place {
            true => Span::input(lo, hi - lo),
            false => dst,
        };
        let (action, after) = if op < n_to {
            let action = Action::Send {
                to: self.to[op as usize],
                tag: slice,
                src: given,
                wire: Buf::User,
                codec: self.codec,
                weight: None,
                scale: self.scaled.then_some(op),
            };
            (action, smallvec![])
        } else if op < n_to + n_from {
            let i = (op - n_to) as usize;
            let action = Action::Recv {
                from: self.from[i],
                tag: slice,
                dst: self.incoming(i, slice),
                wire: Buf::User,
                codec: self.codec,
                arrive: Arrive::Store,
                weight: None,
            };
            // The room is that of an earlier slice.
            let averaged = slice.checked_sub(self.room);
            let after = averaged.map(|s| (s + 1) * self.n_ops - 1);
            (action, after.into_iter().collect())
        } else {
            let action = Action::Mix {
                dst,
                own: given,
                operands: (0..self.from.len())
                    .map(|i| self.incoming(i, slice))
                    .collect(),
                form: self.form,
                codec: self.codec,
            };
            // In place the average replaces what is sent.
            let before = if self.out_of_place { n_to } else { 0 };
            (action, (first + before..idx).collect())
        };
        Step { action, after }
    }
}
