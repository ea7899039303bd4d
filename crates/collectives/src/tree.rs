//! Trees: reduction towards their root, broadcast away from it, and both for an all-reduce.
//!
//! An inner node folds its own contribution with all its children's results in one pass, in the order of their numbers, rounding once; non-roots do so where their first child's result came, never in the caller's buffer.
//! Slices follow each other up and down the tree without waiting; of each child's no more than eight lie in scratch.
//!
//! | shape | depth | most children | source |
//! |---|---|---|---|
//! | star (direct) | 1 | P−1 | |
//! | k-nomial | ⌈logₖP⌉ | (k−1)·⌈logₖP⌉ | |
//! | chain (pipelined) | P−1 | 1 | |
//! | two binary trees, each for one half | about log₂P | 2 | Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009 |
//!
//! Cost, with S bytes: a rank sends S once towards the root, and S to each child away from it; with two trees at most 2S in all both ways together, whatever P.

use crate::build::{Build, Team, Value, sub};
use crate::parts::Parts;
use crate::plan::{Buf, Plan, PlanError, Request, Span};
use gaggle_core::{Algorithm, Codec, Rank};

/// Who is whose parent, among numbers counted from the root, which is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Everybody is the root's child.
    Star,
    /// The children of v are v + d·kʲ, for d in 1..k and kʲ below v's lowest digit that is not 0; with k = 2 it is binomial.
    Knomial(u32),
    /// v's child is v + 1.
    Chain,
    /// An in-order binary tree whose odd numbers are leaves, below the root as the only child.
    Binary,
    /// The same with other numbers, so that the even ones are leaves.
    BinaryMirrored,
}

/// A node's relatives in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub parent: Option<u32>,
    /// Nearest first; served from the farthest, which has most descendants.
    pub children: Vec<u32>,
}

impl Shape {
    /// The relatives of `v` among `n`.
    pub fn node(self, v: u32, n: u32) -> Node {
        match self {
            Shape::Star => Node {
                parent: (v != 0).then_some(0),
                children: if v == 0 { (1..n).collect() } else { vec![] },
            },
            Shape::Chain => Node {
                parent: v.checked_sub(1),
                children: (v + 1 < n).then(|| v + 1).into_iter().collect(),
            },
            Shape::Knomial(radix) => knomial(v, n, radix),
            Shape::Binary => binary(v, n),
            Shape::BinaryMirrored => {
                let node = binary(mirrored(v, n), n);
                Node {
                    parent: node.parent.map(|p| unmirrored(p, n)),
                    children: node.children.iter().map(|&c| unmirrored(c, n)).collect(),
                }
            }
        }
    }
}

fn knomial(v: u32, n: u32, radix: u32) -> Node {
    let (v, n, k) = (u64::from(v), u64::from(n), u64::from(radix));
    let mut children = Vec::new();
    let mut unit = 1;
    while unit < n {
        let digit = v / unit % k;
        if digit != 0 {
            return Node {
                parent: Some((v - digit * unit) as u32),
                children,
            };
        }
        let below = (1..k).map(|d| v + d * unit).take_while(|&c| c < n);
        children.extend(below.map(|c| c as u32));
        unit *= k;
    }
    Node {
        parent: None,
        children,
    }
}

/// In-order numbers: below the root 0, an even number with lowest bit b has the children ∓b/2, the right one nearer where there is none so far right.
fn binary(v: u32, n: u32) -> Node {
    let (v, n) = (u64::from(v), u64::from(n));
    if v == 0 {
        let top = if n > 1 {
            Some(1 << (n - 1).ilog2())
        } else {
            None
        };
        return Node {
            parent: None,
            children: top.into_iter().collect(),
        };
    }
    let bit = 1u64 << v.trailing_zeros();
    let up = (v ^ bit) | (bit << 1);
    let parent = if up >= n { v ^ bit } else { up };
    let mut children = Vec::new();
    let mut half = bit / 2;
    if half > 0 {
        children.push((v - half) as u32);
        while half > 0 && v + half >= n {
            half /= 2;
        }
        if half > 0 {
            children.push((v + half) as u32);
        }
    }
    Node {
        parent: Some(parent as u32),
        children,
    }
}

/// The place of `v` in the second tree. With an even number of nodes below the root the order is turned round, with an odd one shifted by one: either way odd and even change places, except that 1 may be a leaf of both.
fn mirrored(v: u32, n: u32) -> u32 {
    match (v, n % 2 == 1) {
        (0, _) => 0,
        (_, true) => n - v,
        (1, false) => n - 1,
        (_, false) => v - 1,
    }
}

/// Who has that place in the second tree.
fn unmirrored(place: u32, n: u32) -> u32 {
    match (place, n % 2 == 1) {
        (0, _) => 0,
        (_, true) => n - place,
        (place, false) if place == n - 1 => 1,
        (_, false) => place + 1,
    }
}

/// The shapes that carry out an algorithm: one, or two that share the vector.
fn shapes(req: &Request, algorithm: Algorithm) -> Vec<Shape> {
    match algorithm {
        Algorithm::Binomial => vec![Shape::Knomial(2)],
        Algorithm::Knomial => vec![Shape::Knomial(req.radix)],
        Algorithm::Pipelined => vec![Shape::Chain],
        Algorithm::DoubleTree => vec![Shape::Binary, Shape::BinaryMirrored],
        _ => vec![Shape::Star],
    }
}

/// The plan of a reduction to `root`. Directly, the operands are folded in rank order; along trees in the order of the ranks counted from the root.
///
/// # Errors
/// More steps or elements than there are numbers for.
pub(crate) fn plan_reduce(
    req: &Request,
    root: Rank,
    algorithm: Algorithm,
) -> Result<Plan, PlanError> {
    let mut b = Build::new(req);
    let own = b.contribution(0, req.len);
    if algorithm == Algorithm::Direct {
        let dst = Some(Span::user(0, req.len));
        let result = reduce_directly(&mut b, &Team::all(req), root, &own, dst);
        return b.finish(algorithm, result.as_ref());
    }
    let team = Team::from_root(req, root);
    let result = reduce_along(
        &mut b,
        &team,
        &shapes(req, algorithm),
        &own,
        Span::user(0, req.len),
        Buf::User,
    );
    b.finish(algorithm, result.as_ref())
}

/// The plan of an all-reduce: to rank 0 and back.
///
/// # Errors
/// More steps or elements than there are numbers for.
pub(crate) fn plan_all_reduce(req: &Request, algorithm: Algorithm) -> Result<Plan, PlanError> {
    let mut b = Build::new(req);
    let own = b.contribution(0, req.len);
    let all = Span::user(0, req.len);
    let team = Team::all(req);
    let shapes = shapes(req, algorithm);
    let result = all_reduce(&mut b, &team, &shapes, &own, all, Buf::User);
    b.finish(algorithm, Some(&result))
}

/// Everybody's `own` to the team's first along each of `shapes`, and back to everybody's `dst`.
pub(crate) fn all_reduce(
    b: &mut Build<'_>,
    team: &Team,
    shapes: &[Shape],
    own: &Value,
    dst: Span,
    first: Buf,
) -> Value {
    let result = reduce_along(b, team, shapes, own, dst, first);
    broadcast_along(b, team, shapes, result.as_ref(), dst)
}

/// Everybody's whole value to the root, who folds all in the team's order, rounding once, into `dst` or new scratch.
pub(crate) fn reduce_directly(
    b: &mut Build<'_>,
    team: &Team,
    root: Rank,
    own: &Value,
    dst: Option<Span>,
) -> Option<Value> {
    if team.rank(team.me) != root {
        b.send(root, own, Buf::User);
        return None;
    }
    let sources: Vec<(u32, Buf)> = team.before_me().map(|from| (from, Buf::User)).collect();
    let dst = dst.unwrap_or_else(|| b.room(own.span.len));
    Some(fold_incoming(b, team, own, &sources, Then::Keep(dst)))
}

/// What becomes of a slice that is folded.
#[derive(Clone, Copy)]
enum Then {
    Keep(Span),
    /// Sent on, as a partial result.
    Send(Rank),
}

/// Folds what comes from `sources`, each with the type in which it travels, with the own value, in the order of their numbers.
///
/// What comes lies in scratch for a few slices: where those are not folded yet, the next is not received.
fn fold_incoming(
    b: &mut Build<'_>,
    team: &Team,
    own: &Value,
    sources: &[(u32, Buf)],
    then: Then,
) -> Value {
    let slices: Vec<Span> = b.cut(own.span).collect();
    let longest = slices.iter().map(|s| s.len).max().unwrap_or(0);
    let n_areas = slices.len().min(SLICES_AHEAD);
    let areas: Vec<Vec<Span>> = (0..n_areas)
        .map(|_| sources.iter().map(|_| b.room(longest)).collect())
        .collect();
    let mut folded = Vec::with_capacity(slices.len());
    for (i, slice) in slices.iter().enumerate() {
        let at = (slice.at - own.span.at, slice.len);
        let mut operands = vec![(team.me, own.part(at))];
        for (&(from, wire), area) in sources.iter().zip(&areas[i % n_areas]) {
            let came = b.recv(team.rank(from), sub(*area, (0, slice.len)), wire);
            operands.push((from, came));
        }
        let first = operands.get(1).map_or(*slice, |(_, came)| came.span);
        operands.sort_by_key(|(from, _)| *from);
        let operands: Vec<Value> = operands.into_iter().map(|(_, value)| value).collect();
        match then {
            Then::Keep(dst) => folded.push(b.fold(sub(dst, at), &operands)),
            Then::Send(to) => {
                let partial = b.fold(first, &operands);
                b.send(to, &partial, Buf::Scratch);
            }
        }
    }
    match then {
        Then::Keep(dst) => Value::join(dst, &folded),
        Then::Send(_) => b.plain(own.span),
    }
}

/// How many slices from one rank are received before the first of them is folded.
const SLICES_AHEAD: usize = 8;

/// Along each of `shapes` its share of the vector, into `dst` of the first.
pub(crate) fn reduce_along(
    b: &mut Build<'_>,
    team: &Team,
    shapes: &[Shape],
    own: &Value,
    dst: Span,
    first: Buf,
) -> Option<Value> {
    let parts = Parts::shares(own.span.len, shapes.len() as u32);
    let each = |(i, &shape): (usize, &Shape)| {
        let part = parts.at(i as u32);
        reduce(b, team, shape, &own.part(part), sub(dst, part), first)
    };
    // All of them, though only the first has results.
    let results: Vec<Option<Value>> = shapes.iter().enumerate().map(each).collect();
    let results: Option<Vec<Value>> = results.into_iter().collect();
    results.map(|r| Value::join(dst, &r))
}

/// The plan of a broadcast from `root`.
///
/// # Errors
/// More steps or elements than there are numbers for.
pub(crate) fn plan_broadcast(
    req: &Request,
    root: Rank,
    algorithm: Algorithm,
) -> Result<Plan, PlanError> {
    let mut b = Build::new(req);
    b.codec = req.codec;
    let all = Span::user(0, req.len);
    let mut own = b.contribution(0, req.len);
    if req.rank == root {
        let placed = b.place(all, &own);
        if req.codec != Codec::None && req.world > 1 {
            b.recode(&placed);
            own = placed;
        }
    }
    let team = Team::from_root(req, root);
    broadcast_along(&mut b, &team, &shapes(req, algorithm), Some(&own), all);
    b.finish(algorithm, None)
}

/// Along each of `shapes` its share of the first's value, to everybody's `dst`.
pub(crate) fn broadcast_along(
    b: &mut Build<'_>,
    team: &Team,
    shapes: &[Shape],
    value: Option<&Value>,
    dst: Span,
) -> Value {
    let parts = Parts::shares(dst.len, shapes.len() as u32);
    let each = |(i, &shape): (usize, &Shape)| {
        let part = parts.at(i as u32);
        let value = value.map(|v| v.part(part));
        broadcast(b, team, shape, value.as_ref(), sub(dst, part))
    };
    let all: Vec<Value> = shapes.iter().enumerate().map(each).collect();
    Value::join(dst, &all)
}

/// Everybody's `own` towards the team's first, who gets the reduction in `dst`; the others get nothing. `first`: the type in which contributions travel.
pub(crate) fn reduce(
    b: &mut Build<'_>,
    team: &Team,
    shape: Shape,
    own: &Value,
    dst: Span,
    first: Buf,
) -> Option<Value> {
    let n = team.len();
    let node = shape.node(team.me, n);
    let wire = |child: &u32| match shape.node(*child, n).children.is_empty() {
        true => (*child, first),
        false => (*child, Buf::Scratch),
    };
    let sources: Vec<(u32, Buf)> = node.children.iter().map(wire).collect();
    match (node.parent, &sources[..]) {
        (None, []) => Some(b.place(dst, own)),
        (None, _) => Some(fold_incoming(b, team, own, &sources, Then::Keep(dst))),
        (Some(parent), []) => {
            b.send(team.rank(parent), own, first);
            None
        }
        (Some(parent), _) => {
            let up = Then::Send(team.rank(parent));
            fold_incoming(b, team, own, &sources, up);
            None
        }
    }
}

/// The value of the team's first for everybody, in `dst`; the first may have it elsewhere, too.
pub(crate) fn broadcast(
    b: &mut Build<'_>,
    team: &Team,
    shape: Shape,
    value: Option<&Value>,
    dst: Span,
) -> Value {
    let node = shape.node(team.me, team.len());
    let value = match (node.parent, value) {
        (None, Some(value)) => value.clone(),
        (Some(parent), _) => b.recv(team.rank(parent), dst, Buf::User),
        (None, None) => b.plain(dst),
    };
    for &child in node.children.iter().rev() {
        b.send(team.rank(child), &value, Buf::User);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [Shape; 7] = [
        Shape::Star,
        Shape::Knomial(2),
        Shape::Knomial(3),
        Shape::Knomial(5),
        Shape::Chain,
        Shape::Binary,
        Shape::BinaryMirrored,
    ];

    #[test]
    fn every_node_is_its_parents_child_and_reached_from_the_root() {
        for shape in SHAPES {
            for n in 1..70 {
                let nodes: Vec<Node> = (0..n).map(|v| shape.node(v, n)).collect();
                let mut seen = vec![0];
                let mut next = 0;
                while let Some(&v) = seen.get(next) {
                    next += 1;
                    for &child in &nodes[v as usize].children {
                        assert_eq!(nodes[child as usize].parent, Some(v), "{shape:?} {n}");
                        seen.push(child);
                    }
                }
                assert_eq!(seen.len(), n as usize, "{shape:?} {n}");
            }
        }
    }

    #[test]
    fn nobody_is_inner_in_both_binary_trees() {
        for n in 2u32..200 {
            for v in 1..n {
                let inner = |s: Shape| !s.node(v, n).children.is_empty();
                assert!(
                    !(inner(Shape::Binary) && inner(Shape::BinaryMirrored)),
                    "{v} of {n}"
                );
            }
            let depth = |mut v: u32| {
                let mut depth = 0;
                while let Some(parent) = Shape::Binary.node(v, n).parent {
                    v = parent;
                    depth += 1;
                }
                depth
            };
            let deepest = (0..n).map(depth).max().unwrap_or(0);
            assert!(deepest <= n.ilog2() + 1, "{n}: {deepest}");
        }
    }
}
