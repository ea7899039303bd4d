//! Weighted neighbour averaging: one exchange with the round's neighbours.
//!
//! Every slice of the own value goes to each out-neighbour; those of the in-neighbours are received beside it; the average replaces a slice when its receives and its sends are over.
//!
//! An all-gather among neighbours is the same exchange without the average, from the input into the parts of the output.
//!
//! Cost, with d in-neighbours, e out-neighbours and S bytes: 1 round, e·S bytes sent, d·S of scratch.

use crate::build::{Build, Value, sub};
use crate::parts::Parts;
use crate::plan::{Action, Arrive, Buf, Plan, PlanError, Request, Span};
use crate::program::{After, Outline, Program, n_slices, share, times};
use gaggle_core::{Algorithm, Codec, Counts, Form, OpKind, Rank, Reduce};
use smallvec::smallvec;

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
    if req.out_of_place {
        return plan_from_input(req, with);
    }
    let n_slices = n_slices(req.len, req.slice)?;
    let mix = Mix {
        from: with.from.to_vec(),
        to: with.to.to_vec(),
        scaled: with.scaled,
        form: with.form,
        codec: req.codec,
        len: req.len,
        n_slices,
    };
    let outline = Outline {
        kind: OpKind::Mix,
        algorithm: Algorithm::Neighbour,
        reduce: Reduce::Sum,
        input_len: 0,
        user_len: req.len,
        scratch_len: times(with.from.len() as u64, req.len)?,
        n_slots: 0,
        n_slices,
    };
    outline.with(req, mix)
}

/// Out of place: what leaves is the input, so that the average of a slice waits for no send.
fn plan_from_input(req: &Request, with: &Neighbours<'_>) -> Result<Plan, PlanError> {
    let mut b = Build::new(req);
    b.codec = req.codec;
    let own = b.contribution(0, req.len);
    let exchange_with = Exchange {
        from: with.from.to_vec(),
        to: with.to.to_vec(),
        scaled: with.scaled,
        form: with.form,
    };
    exchange(&mut b, &exchange_with, &own, Span::user(0, req.len));
    b.finish(Algorithm::Neighbour, None)
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

/// Sends, receives, average.
#[derive(Debug)]
struct Mix {
    from: Vec<Rank>,
    to: Vec<Rank>,
    scaled: bool,
    form: Form,
    codec: Codec,
    len: u64,
    n_slices: u32,
}

impl Program for Mix {
    fn n_ops(&self) -> u64 {
        self.to.len() as u64 + self.from.len() as u64 + 1
    }

    fn op(&self, op: u32, slice: u32) -> (Action, After) {
        let (n_to, n_from) = (self.to.len(), self.from.len());
        let (lo, hi) = share(self.len, self.n_slices, slice);
        let own = Span::user(lo, hi - lo);
        let incoming = |i: usize| Span::scratch(i as u64 * self.len + lo, hi - lo);
        let i = op as usize;
        if i < n_to {
            let action = Action::Send {
                to: self.to[i],
                tag: slice,
                src: own,
                wire: Buf::User,
                codec: self.codec,
                weight: None,
                scale: self.scaled.then_some(op),
            };
            (action, smallvec![])
        } else if i < n_to + n_from {
            let action = Action::Recv {
                from: self.from[i - n_to],
                tag: slice,
                dst: incoming(i - n_to),
                wire: Buf::User,
                codec: self.codec,
                arrive: Arrive::Store,
                weight: None,
            };
            (action, smallvec![])
        } else {
            let action = Action::Mix {
                own,
                operands: (0..n_from).map(incoming).collect(),
                form: self.form,
                codec: self.codec,
            };
            // The average replaces what is sent.
            (action, (0..op).collect())
        }
    }
}
