//! Gather and scatter: parts to one rank, or from one.
//!
//! Directly, every part is one message (in slices) between its rank and the root.
//!
//! Along a binomial tree an inner node holds the parts of its subtree in scratch, which is in the element type here; numbers are counted from the root, so that a subtree's parts are at most two pieces in rank order.
//!
//! Cost, with P ranks and S bytes in all: 1 round directly, ⌈log₂P⌉ along the tree; all parts but the root's pass the root; along the tree a part is sent at most ⌈log₂P⌉ times.

use crate::build::{Build, Team, Value, sub};
use crate::fused;
use crate::parts::Parts;
use crate::plan::{Buf, Plan, PlanError, Request, Span};
use crate::tree::{Node, Shape};
use gaggle_core::{Algorithm, Counts, Rank};

/// The plan of a gather.
///
/// # Errors
/// More steps or elements than there are numbers for, or counts that do not fit.
pub(crate) fn plan_gather(
    req: &Request,
    root: Rank,
    counts: &Counts,
    algorithm: Algorithm,
) -> Result<Plan, PlanError> {
    if algorithm == Algorithm::Fused {
        return fused::plan_gather(req, root, counts);
    }
    let parts = Parts::of(counts, req.len, req.world as usize, "counts")?;
    let mut b = Build::new(req);
    if algorithm == Algorithm::Binomial {
        gather_along(&mut b, &Subtrees::new(req, root, &parts));
        return b.finish(algorithm, None);
    }
    let (at, len) = parts.at(req.rank.0);
    if req.rank == root {
        let own = b.contribution(at, len);
        let all = Span::user(0, parts.total());
        b.place(sub(all, (at, len)), &own);
        for from in Team::all(req).before_me() {
            b.recv(Rank(from), sub(all, parts.at(from)), Buf::User);
        }
    } else {
        let own = b.contribution(0, len);
        b.send(root, &own, Buf::User);
    }
    b.finish(Algorithm::Direct, None)
}

/// The plan of a scatter.
///
/// # Errors
/// More steps or elements than there are numbers for, or counts that do not fit.
pub(crate) fn plan_scatter(
    req: &Request,
    root: Rank,
    counts: &Counts,
    algorithm: Algorithm,
) -> Result<Plan, PlanError> {
    if algorithm == Algorithm::Fused {
        return fused::plan_scatter(req, root, counts);
    }
    let parts = Parts::of(counts, req.len, req.world as usize, "counts")?;
    let mut b = Build::new(req);
    if algorithm == Algorithm::Binomial {
        scatter_along(&mut b, &Subtrees::new(req, root, &parts));
        return b.finish(algorithm, None);
    }
    let own = parts.at(req.rank.0);
    if req.rank == root {
        let all = b.contribution(0, parts.total());
        for to in Team::all(req).after_me() {
            b.send(Rank(to), &all.part(parts.at(to)), Buf::User);
        }
        if req.out_of_place {
            b.place(Span::user(0, own.1), &all.part(own));
        }
    } else {
        b.recv(root, Span::user(0, own.1), Buf::User);
    }
    b.finish(Algorithm::Direct, None)
}

/// The binomial tree of the ranks counted from the root, and which parts belong to a subtree.
struct Subtrees<'a> {
    team: Team,
    node: Node,
    parts: &'a Parts,
}

impl<'a> Subtrees<'a> {
    fn new(req: &Request, root: Rank, parts: &'a Parts) -> Self {
        let team = Team::from_root(req, root);
        Subtrees {
            node: Shape::Knomial(2).node(team.me, team.len()),
            team,
            parts,
        }
    }

    /// How many numbers from `v` on are its subtree.
    fn size(&self, v: u32) -> u32 {
        let rest = self.team.len() - v;
        match v {
            0 => rest,
            _ => rest.min(1 << v.trailing_zeros()),
        }
    }

    /// The parts of `v`'s subtree as pieces of the vector in rank order, in the order of the numbers.
    fn pieces(&self, v: u32) -> impl Iterator<Item = (u64, u64)> + use<'_, 'a> {
        let n = self.team.len();
        let first = self.team.rank(v).0;
        let head = self.size(v).min(n - first);
        let rest = self.size(v) - head;
        let around = (rest > 0).then(|| self.parts.range(0, rest));
        [Some(self.parts.range(first, first + head)), around]
            .into_iter()
            .flatten()
    }

    /// Where the pieces of `v`'s subtree lie: with the root in rank order, elsewhere in scratch, in which `from`'s subtree lies piece after piece.
    fn places(&self, v: u32, from: u32, area: Span) -> Vec<Span> {
        if from == 0 {
            return self.pieces(v).map(|piece| sub(area, piece)).collect();
        }
        let before: u64 = (from..v).map(|u| self.parts.len(self.team.rank(u).0)).sum();
        let mut at = before;
        let mut places = Vec::new();
        for (_, len) in self.pieces(v) {
            places.push(sub(area, (at, len)));
            at += len;
        }
        places
    }

    fn me(&self) -> u32 {
        self.team.me
    }

    /// Elements of the parts of this rank's subtree.
    fn held(&self) -> u64 {
        self.pieces(self.me()).map(|(_, len)| len).sum()
    }

    fn own(&self) -> (u64, u64) {
        self.parts.at(self.team.rank(self.me()).0)
    }
}

fn gather_along(b: &mut Build<'_>, t: &Subtrees<'_>) {
    let (at, len) = t.own();
    let is_root = t.me() == 0;
    let own = b.contribution(if is_root { at } else { 0 }, len);
    let mut held = own.clone();
    if is_root || !t.node.children.is_empty() {
        let area = if is_root {
            Span::user(0, t.parts.total())
        } else {
            b.room(t.held())
        };
        let place = if is_root { (at, len) } else { (0, len) };
        b.place(sub(area, place), &own);
        for &child in &t.node.children {
            for place in t.places(child, t.me(), area) {
                b.recv(t.team.rank(child), place, Buf::User);
            }
        }
        held = b.plain(area);
    }
    let Some(parent) = t.node.parent else {
        return;
    };
    send_pieces(b, t, t.me(), parent, &held);
}

/// Sends the parts of `v`'s subtree to `to`, from where they lie one after the other.
fn send_pieces(b: &mut Build<'_>, t: &Subtrees<'_>, v: u32, to: u32, held: &Value) {
    let mut at = 0;
    for (_, len) in t.pieces(v) {
        b.send(t.team.rank(to), &held.part((at, len)), Buf::User);
        at += len;
    }
}

fn scatter_along(b: &mut Build<'_>, t: &Subtrees<'_>) {
    let own = t.own();
    let dst = Span::user(0, own.1);
    let Some(parent) = t.node.parent else {
        let all = b.contribution(0, t.parts.total());
        for &child in t.node.children.iter().rev() {
            for piece in t.pieces(child) {
                b.send(t.team.rank(child), &all.part(piece), Buf::User);
            }
        }
        if b.request().out_of_place {
            b.place(dst, &all.part(own));
        }
        return;
    };
    if t.node.children.is_empty() {
        b.recv(t.team.rank(parent), dst, Buf::User);
        return;
    }
    let area = b.room(t.held());
    let mut at = 0;
    for (_, len) in t.pieces(t.me()) {
        b.recv(t.team.rank(parent), sub(area, (at, len)), Buf::User);
        at += len;
    }
    for &child in t.node.children.iter().rev() {
        for place in t.places(child, t.me(), area) {
            let piece = b.plain(place);
            b.send(t.team.rank(child), &piece, Buf::User);
        }
    }
    let own = b.plain(sub(area, (0, own.1)));
    b.place(dst, &own);
}
