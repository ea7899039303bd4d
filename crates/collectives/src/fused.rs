//! Plans over memory that all members have mapped: everybody says that it has come, waits for all, and reads and writes where the others' elements are; then the same once more, so that nobody goes on while others are still at its memory.
//!
//! An all-reduce divides the vector into one share per rank: each reads its share of all inputs once, in rank order, and writes the result to all outputs; the shares are cut into tiles.
//!
//! Cost, with P ranks and S bytes: two arrivals; memory traffic 2S per rank for an all-reduce and a reduce-scatter, for every P, S(P−1)/P read in an all-gather and an all-to-all, S in a broadcast, a part by each rank of a scatter, all but one by the root of a gather.

use crate::build::{Build, Team, Value, sub};
use crate::parts::Parts;
use crate::plan::{Action, Buf, Plan, PlanError, Request, Span};
use gaggle_core::{Algorithm, Counts, Rank, Reduce};

/// One meeting of all: the step after which their memory may be touched.
fn meet(b: &mut Build<'_>, phase: u32, after: &[u32]) -> u32 {
    let arrived = b.push_after(Action::Arrive { phase }, after);
    b.push_after(Action::AwaitAll { phase }, &[arrived])
}

/// Where the others' contributions are.
fn given(req: &Request) -> Buf {
    if req.out_of_place {
        Buf::Input
    } else {
        Buf::User
    }
}

/// The plan of an all-reduce.
///
/// # Errors
/// More steps than there are numbers for.
pub(crate) fn plan_all_reduce(req: &Request) -> Result<Plan, PlanError> {
    let mut b = Build::new(req);
    if req.world == 1 {
        let own = b.contribution(0, req.len);
        let result = b.place(Span::user(0, req.len), &own);
        return b.finish(Algorithm::Fused, Some(&result));
    }
    let met = meet(&mut b, 0, &[]);
    let share = Parts::shares(req.len, req.world).at(req.rank.0);
    let mut tiles = Vec::new();
    let mut total = None;
    for tile in b.cut(sub(Span::user(0, req.len), share)) {
        let sum = b.slot();
        total = total.or(sum);
        let fold = Action::GroupFold {
            from: given(req),
            at: tile.at,
            len: tile.len,
            sum,
        };
        tiles.push(b.push_after(fold, &[met]));
    }
    meet(&mut b, 1, &tiles);
    let result = b.weight(total);
    b.finish(Algorithm::Fused, Some(&result))
}

/// Copies `src` of `from`'s memory to `dst` in tiles; adds their numbers to `read`.
fn read(b: &mut Build<'_>, met: u32, from: Rank, (src, dst): (Span, Span), read: &mut Vec<u32>) {
    for tile in b.cut(dst) {
        if tile.len > 0 {
            let copy = Action::GroupCopy {
                from,
                src: sub(src, (tile.at - dst.at, tile.len)),
                dst: tile,
            };
            read.push(b.push_after(copy, &[met]));
        }
    }
}

/// The plan of a broadcast from `root`.
///
/// # Errors
/// More steps than there are numbers for.
pub(crate) fn plan_broadcast(req: &Request, root: Rank) -> Result<Plan, PlanError> {
    let mut b = Build::new(req);
    let all = Span::user(0, req.len);
    if req.rank == root {
        let own = b.contribution(0, req.len);
        b.place(all, &own);
    }
    if req.world > 1 {
        let met = meet(&mut b, 0, &[]);
        let mut copies = vec![met];
        if req.rank != root {
            let src = Span {
                buf: given(req),
                ..all
            };
            read(&mut b, met, root, (src, all), &mut copies);
        }
        meet(&mut b, 1, &copies);
    }
    b.finish(Algorithm::Fused, None)
}

/// The plan of an all-gather.
///
/// # Errors
/// More steps or elements than there are numbers for; counts that do not fit.
pub(crate) fn plan_all_gather(req: &Request, counts: &Counts) -> Result<Plan, PlanError> {
    let parts = Parts::of(counts, req.len, req.world as usize, "counts")?;
    let all = Span::user(0, parts.total());
    let (at, len) = parts.at(req.rank.0);
    let mut b = Build::new(req);
    let own = b.contribution(at, len);
    b.place(sub(all, (at, len)), &own);
    if req.world > 1 {
        let met = meet(&mut b, 0, &[]);
        let mut copies = vec![met];
        for from in Team::all(req).before_me() {
            let dst = sub(all, parts.at(from));
            let src = if req.out_of_place {
                Span::input(0, dst.len)
            } else {
                dst
            };
            read(&mut b, met, Rank(from), (src, dst), &mut copies);
        }
        meet(&mut b, 1, &copies);
    }
    b.finish(Algorithm::Fused, None)
}

/// The plan of a gather: the root reads everybody's part.
///
/// # Errors
/// As [`plan_all_gather`].
pub(crate) fn plan_gather(req: &Request, root: Rank, counts: &Counts) -> Result<Plan, PlanError> {
    let parts = Parts::of(counts, req.len, req.world as usize, "counts")?;
    let all = Span::user(0, parts.total());
    let (at, len) = parts.at(req.rank.0);
    let mut b = Build::new(req);
    let own = b.contribution(if req.rank == root { at } else { 0 }, len);
    if req.rank == root {
        b.place(sub(all, (at, len)), &own);
    }
    if req.world > 1 {
        let met = meet(&mut b, 0, &[]);
        let mut copies = vec![met];
        let others = Team::all(req).before_me();
        for from in others.into_iter().filter(|_| req.rank == root) {
            let dst = sub(all, parts.at(from));
            let src = Span {
                buf: given(req),
                at: 0,
                len: dst.len,
            };
            read(&mut b, met, Rank(from), (src, dst), &mut copies);
        }
        meet(&mut b, 1, &copies);
    }
    b.finish(Algorithm::Fused, None)
}

/// The plan of a scatter: each rank reads its part of the root's memory.
///
/// # Errors
/// As [`plan_all_gather`].
pub(crate) fn plan_scatter(req: &Request, root: Rank, counts: &Counts) -> Result<Plan, PlanError> {
    let parts = Parts::of(counts, req.len, req.world as usize, "counts")?;
    let (mine, me) = (parts.at(req.rank.0), req.rank);
    let dst = Span::user(0, mine.1);
    let mut b = Build::new(req);
    if me == root && req.out_of_place {
        let all = b.contribution(0, parts.total());
        b.place(dst, &all.part(mine));
    }
    if req.world > 1 {
        let met = meet(&mut b, 0, &[]);
        let mut copies = vec![met];
        if me != root {
            let src = Span {
                buf: given(req),
                at: mine.0,
                len: mine.1,
            };
            read(&mut b, met, root, (src, dst), &mut copies);
        }
        meet(&mut b, 1, &copies);
    }
    b.finish(Algorithm::Fused, None)
}

/// The plan of an all-to-all of equal parts: each rank reads what is its of the others' memory; in place beside, because a part leaves from where its counterpart belongs.
///
/// # Errors
/// As [`plan_all_gather`]; counts.
pub(crate) fn plan_all_to_all(req: &Request, equal: bool) -> Result<Plan, PlanError> {
    if !equal {
        return Err(PlanError::Unsupported {
            kind: "all_to_all",
            what: "by fused needs equal counts; use direct".into(),
        });
    }
    let parts = Parts::of(&Counts::Equal, req.len, req.world as usize, "counts")?;
    let (mine, dst) = (parts.at(req.rank.0), Span::user(0, parts.total()));
    let mut b = Build::new(req);
    let own = b.contribution(0, parts.total());
    if req.out_of_place {
        b.place(sub(dst, mine), &own.part(mine));
    }
    if req.world > 1 {
        let met = meet(&mut b, 0, &[]);
        let mut copies = vec![met];
        let mut came = Vec::new();
        let given = Span {
            buf: given(req),
            ..dst
        };
        for from in Team::all(req).before_me() {
            let place = sub(dst, parts.at(from));
            let to = match req.out_of_place {
                true => place,
                false => b.room(place.len),
            };
            read(&mut b, met, Rank(from), (sub(given, mine), to), &mut copies);
            came.push((place, to));
        }
        let left = meet(&mut b, 1, &copies);
        for (place, room) in came.into_iter().filter(|_| !req.out_of_place) {
            for tile in b.cut(place) {
                let src = sub(room, (tile.at - place.at, tile.len));
                let copy = Action::Copy {
                    src,
                    dst: tile,
                    unless_zero: None,
                };
                b.push_after(copy, &[left]);
            }
        }
    }
    b.finish(Algorithm::Fused, None)
}

/// The plan of a reduce-scatter: each rank reads the others' values of its own part, and folds them in rank order. For a mean the ranks tell each other their weights in empty messages.
///
/// # Errors
/// As [`plan_all_gather`].
pub(crate) fn plan_reduce_scatter(req: &Request, counts: &Counts) -> Result<Plan, PlanError> {
    let parts = Parts::of(counts, req.len, req.world as usize, "counts")?;
    let (at, len) = parts.at(req.rank.0);
    let mut b = Build::new(req);
    let own = b.contribution(0, parts.total()).part((at, len));
    let dst = Span::user(if req.out_of_place { 0 } else { at }, len);
    if req.world == 1 {
        let result = b.place(dst, &own);
        return b.finish(Algorithm::Fused, Some(&result));
    }
    let team = Team::all(req);
    if req.call.reduce() == Reduce::Mean {
        for to in team.after_me() {
            b.send(Rank(to), &own.part((0, 0)), Buf::User);
        }
    }
    let met = meet(&mut b, 0, &[]);
    let mut copies = vec![met];
    let mut operands: Vec<Value> = vec![own.clone(); req.world as usize];
    for from in team.before_me() {
        let src = Span {
            buf: given(req),
            at,
            len,
        };
        let room = b.room(len);
        let weighed = match req.call.reduce() {
            Reduce::Mean => b.recv(Rank(from), sub(room, (0, 0)), Buf::User),
            _ => b.plain(room),
        };
        read(&mut b, met, Rank(from), (src, room), &mut copies);
        operands[from as usize] = Value::join(room, &[weighed]);
    }
    let result = b.fold(dst, &operands);
    meet(&mut b, 1, &copies);
    b.finish(Algorithm::Fused, Some(&result))
}
