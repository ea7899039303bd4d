//! Runs all ranks' plans on numbers: a second opinion beside the checker, which moves symbols.

use crate::check::depth;
use crate::plan;
use crate::plan::{Action, Arrive, Buf, Call, Plan, Request, Slot, Span};
use gaggle_core::Rank;
use std::collections::HashMap;

/// One rank's memory. What was never written is NaN.
#[derive(Debug)]
pub(crate) struct Memory {
    pub input: Vec<f64>,
    pub user: Vec<f64>,
    scratch: Vec<f64>,
    slots: Vec<f64>,
}

impl Memory {
    fn buf(&mut self, buf: Buf) -> &mut Vec<f64> {
        match buf {
            Buf::Input => &mut self.input,
            Buf::User => &mut self.user,
            Buf::Scratch => &mut self.scratch,
        }
    }

    fn read(&mut self, span: Span) -> Vec<f64> {
        self.buf(span.buf)[span.at as usize..span.end() as usize].to_vec()
    }

    fn write(&mut self, span: Span, values: &[f64]) {
        assert_ne!(span.buf, Buf::Input, "the input is never written");
        self.buf(span.buf)[span.at as usize..span.end() as usize].copy_from_slice(values);
    }

    /// Returns the weight of what is there.
    fn arrive(&mut self, dst: Span, values: &[f64], w: Option<f64>, arrive: Arrive) -> f64 {
        let Arrive::Fold { there, .. } = arrive else {
            if w != Some(0.0) {
                self.write(dst, values);
            }
            return 0.0;
        };
        let there = self.weight(there);
        let mut all = self.read(dst);
        for (a, x) in all.iter_mut().zip(values) {
            *a = match (w, there) {
                (Some(0.0), Some(0.0)) => continue,
                (Some(0.0), Some(t)) => t * *a,
                (_, Some(0.0)) => *x,
                (_, t) => x + t.unwrap_or(1.0) * *a,
            };
        }
        self.write(dst, &all);
        there.unwrap_or(0.0)
    }

    fn weight(&self, slot: Option<Slot>) -> Option<f64> {
        slot.map(|s| self.slots[s as usize])
    }
}

/// What each rank starts with.
pub(crate) struct Start {
    pub input: Vec<f64>,
    pub user: Vec<f64>,
    pub weight: f64,
}

/// Plans everybody's request, proves that messages meet and nothing races or waits in a circle, and carries all out.
pub(crate) fn run(
    requests: &[Request],
    start: impl Fn(&Request, usize, usize) -> Start,
) -> Vec<Memory> {
    let plans: Vec<Plan> = requests
        .iter()
        .map(|r| plan(r).unwrap_or_else(|e| panic!("{r:?}: {e}")))
        .collect();
    if let Err(fault) = depth(&plans) {
        panic!("{:?}: {fault}", requests[0]);
    }
    let mut memory: Vec<Memory> = plans
        .iter()
        .zip(requests)
        .map(|(p, r)| {
            let (input, user) = (p.input_len as usize, p.user_len as usize);
            let s = start(r, input, user);
            assert_eq!((s.input.len(), s.user.len()), (input, user));
            let mut slots = vec![f64::NAN; p.n_slots as usize];
            if let Some(own) = slots.first_mut() {
                *own = s.weight;
            }
            Memory {
                input: s.input,
                user: s.user,
                scratch: vec![f64::NAN; p.scratch_len as usize],
                slots,
            }
        })
        .collect();
    let mut over: Vec<Vec<bool>> = plans
        .iter()
        .map(|p| vec![false; p.n_steps() as usize])
        .collect();
    type Message = (Vec<f64>, Option<f64>);
    let mut flying: HashMap<(u32, u32, u32), Message> = HashMap::new();
    let mut left: usize = over.iter().map(Vec::len).sum();
    while left > 0 {
        let before = left;
        for (rank, plan) in plans.iter().enumerate() {
            for idx in 0..plan.n_steps() {
                let step = plan.step(idx);
                if over[rank][idx as usize] || !step.after.iter().all(|&a| over[rank][a as usize]) {
                    continue;
                }
                let m = &mut memory[rank];
                match step.action {
                    Action::Send {
                        to,
                        tag,
                        src,
                        weight,
                        scale,
                        ..
                    } => {
                        assert_eq!(scale, None);
                        flying.insert((rank as u32, to.0, tag), (m.read(src), m.weight(weight)));
                    }
                    Action::Recv {
                        from,
                        tag,
                        dst,
                        arrive,
                        weight,
                        ..
                    } => {
                        let Some((values, w)) = flying.remove(&(from.0, rank as u32, tag)) else {
                            continue;
                        };
                        let there = m.arrive(dst, &values, w, arrive);
                        if let (Some(slot), Some(w)) = (weight, w) {
                            m.slots[slot as usize] = w + there;
                        }
                    }
                    other => local(m, plan, other),
                }
                over[rank][idx as usize] = true;
                left -= 1;
            }
        }
        assert!(left < before, "nothing moves");
    }
    assert!(flying.is_empty());
    memory
}

fn local(m: &mut Memory, plan: &Plan, action: Action) {
    match action {
        Action::Fold {
            dst,
            operands,
            sum: None,
        } => {
            let mut all = vec![0.0; dst.len as usize];
            for o in operands {
                for (a, x) in all.iter_mut().zip(m.read(o.span)) {
                    *a += x;
                }
            }
            m.write(dst, &all);
        }
        Action::Fold {
            dst,
            operands,
            sum: Some(sum),
        } => {
            let mut all = vec![0.0; dst.len as usize];
            let mut total = 0.0;
            for o in operands {
                let w = m.weight(o.slot).unwrap_or(f64::NAN);
                total += w;
                if w != 0.0 {
                    for (a, x) in all.iter_mut().zip(m.read(o.span)) {
                        *a += w * x;
                    }
                }
            }
            m.slots[sum as usize] = total;
            if total != 0.0 {
                all.iter_mut().for_each(|a| *a /= total);
                m.write(dst, &all);
            }
        }
        Action::Copy {
            src,
            dst,
            unless_zero,
        } => {
            if m.weight(unless_zero) != Some(0.0) {
                let values = m.read(src);
                m.write(dst, &values);
            }
        }
        Action::Weigh { span, slot } => {
            let w = m.slots[slot as usize];
            if w != 0.0 {
                let all: Vec<f64> = m.read(span).iter().map(|x| x * w).collect();
                m.write(span, &all);
            }
        }
        Action::Divide { span, slot } => {
            let w = m.slots[slot as usize];
            if w != 0.0 {
                let all: Vec<f64> = m.read(span).iter().map(|x| x / w).collect();
                m.write(span, &all);
            }
        }
        Action::Recode { .. } | Action::Compensate { .. } => {}
        other => panic!("{} of {}: {other}", plan.rank, plan.kind.name()),
    }
}

mod tests {
    use super::*;
    use crate::parts::Parts;
    use crate::planner::algorithms;
    use gaggle_core::{Algorithm, Counts, OpKind, Reduce};

    /// Rank r's element e.
    fn x(rank: u32, e: u64) -> f64 {
        f64::from(rank) * 1000.0 + e as f64 + 1.0
    }

    fn row(rank: u32, at: u64, len: u64) -> Vec<f64> {
        (at..at + len).map(|e| x(rank, e)).collect()
    }

    fn lengths(world: u32) -> Vec<u64> {
        let p = u64::from(world);
        let mut all = vec![0, 1, p - 1, p, p + 1, 23];
        all.sort_unstable();
        all.dedup();
        all
    }

    fn requests(call: Call, world: u32, len: u64) -> Vec<Request> {
        (0..world)
            .map(|r| Request::new(call.clone(), Rank(r), world, len))
            .collect()
    }

    /// With slices, out of place, in wide partials.
    fn variants(base: Vec<Request>) -> Vec<Vec<Request>> {
        let mut all = Vec::new();
        for slice in [u64::MAX, 3] {
            for (out_of_place, widen) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                let change = |r: &Request| Request {
                    slice,
                    out_of_place,
                    widen,
                    ..r.clone()
                };
                all.push(base.iter().map(change).collect());
            }
        }
        all
    }

    const WORLDS: [u32; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17];

    /// `own`: what a rank gives, first element and length; in place from there on in the caller's buffer.
    fn start(weights: &[f64]) -> impl Fn(&Request, usize, usize) -> Start + '_ {
        move |r, input, user| {
            let rank = r.rank.0;
            let fill = |n: usize| row(rank, 0, n as u64);
            Start {
                input: fill(input),
                user: if r.out_of_place {
                    vec![f64::NAN; user]
                } else {
                    fill(user)
                },
                weight: weights[rank as usize],
            }
        }
    }

    fn same(got: &[f64], want: &[f64], what: &str) {
        assert_eq!(got.len(), want.len(), "{what}");
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            let close = (g - w).abs() <= 1e-9 * w.abs();
            assert!(
                close || (g.is_nan() && w.is_nan()),
                "{what}: element {i} is {g}, not {w}: {got:?}"
            );
        }
    }

    fn patterns(world: u32) -> Vec<Vec<f64>> {
        let of = |f: fn(u32) -> f64| (0..world).map(f).collect();
        vec![
            of(|r| f64::from(r) + 1.0),
            of(|r| f64::from(r % 2)),
            of(|r| f64::from((r + 1) % 2)),
            of(|_| 0.0),
        ]
    }

    /// Σ or mean of element `e`; `None` where nothing contributes.
    fn reduced(reduce: Reduce, weights: &[f64], e: u64) -> Option<f64> {
        let all = || (0..weights.len() as u32).map(|r| (weights[r as usize], x(r, e)));
        if reduce == Reduce::Sum {
            return Some(all().map(|(_, x)| x).sum());
        }
        let total: f64 = all().map(|(w, _)| w).sum();
        (total != 0.0).then(|| {
            all()
                .filter(|(w, _)| *w != 0.0)
                .map(|(w, x)| w * x)
                .sum::<f64>()
                / total
        })
    }

    fn each_reduction(
        kind: OpKind,
        mut call: impl FnMut(Reduce, Algorithm) -> Vec<Call>,
        want: impl Fn(&Request, &dyn Fn(u64) -> Option<f64>) -> Vec<Option<f64>>,
    ) {
        for &algorithm in algorithms(kind) {
            for reduce in [Reduce::Sum, Reduce::Mean] {
                for call in call(reduce, algorithm) {
                    for world in WORLDS {
                        if root_of(&call).is_some_and(|r| r.0 >= world) {
                            continue;
                        }
                        for len in lengths(world) {
                            for reqs in variants(requests(call.clone(), world, len)) {
                                for weights in patterns(world)
                                    .iter()
                                    .take(if reduce == Reduce::Mean { 4 } else { 1 })
                                {
                                    let after = run(&reqs, start(weights));
                                    for (m, r) in after.iter().zip(&reqs) {
                                        let before = start(weights)(r, m.input.len(), m.user.len());
                                        let wanted = want(r, &|e| reduced(reduce, weights, e));
                                        let wanted: Vec<f64> = wanted
                                            .iter()
                                            .zip(&before.user)
                                            .map(|(w, b)| w.unwrap_or(*b))
                                            .collect();
                                        let what = format!("{r:?} with {weights:?}");
                                        same(&m.input, &before.input, &what);
                                        if reduce == Reduce::Mean
                                            && weights.iter().all(|w| *w == 0.0)
                                            && r.out_of_place
                                        {
                                            continue;
                                        }
                                        same(&m.user, &wanted, &what);
                                        let plan = plan(r).unwrap();
                                        if let Some(total) = plan.total {
                                            assert_eq!(
                                                m.slots[total as usize],
                                                weights.iter().sum::<f64>()
                                            );
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn all_reduce_reduces() {
        each_reduction(
            OpKind::AllReduce,
            |reduce, algorithm| vec![Call::AllReduce { reduce, algorithm }],
            |r, all| (0..r.len).map(all).collect(),
        );
    }

    #[test]
    fn reduce_reaches_the_root_alone() {
        each_reduction(
            OpKind::Reduce,
            |reduce, algorithm| {
                [0, 2, 5]
                    .map(|root| Call::Reduce {
                        reduce,
                        root: Rank(root),
                        algorithm,
                    })
                    .into()
            },
            |r, all| {
                let root = root_of(&r.call) == Some(r.rank);
                let n = r.lens().unwrap().1;
                (0..n).map(|e| if root { all(e) } else { None }).collect()
            },
        );
    }

    /// Lengths that differ a lot.
    fn some_counts(world: u32) -> Counts {
        let counts: Vec<u64> = (0..u64::from(world))
            .map(|r| [3, 0, 7, 1][r as usize % 4])
            .collect();
        Counts::known(&counts)
    }

    #[test]
    fn reduce_scatter_leaves_the_own_part() {
        for &algorithm in algorithms(OpKind::ReduceScatter) {
            for world in WORLDS {
                for (counts, len) in [
                    (Counts::Equal, 0),
                    (Counts::Equal, 1),
                    (Counts::Equal, 5),
                    (some_counts(world), 0),
                ] {
                    for reduce in [Reduce::Sum, Reduce::Mean] {
                        let call = Call::ReduceScatter {
                            reduce,
                            counts: counts.clone(),
                            algorithm,
                        };
                        let parts = Parts::of(&counts, len, world as usize, "counts").unwrap();
                        for reqs in variants(requests(call, world, len)) {
                            for weights in patterns(world).iter().take(if reduce == Reduce::Mean {
                                4
                            } else {
                                1
                            }) {
                                let after = run(&reqs, start(weights));
                                for (m, r) in after.iter().zip(&reqs) {
                                    let (at, n) = parts.at(r.rank.0);
                                    let mut wanted =
                                        start(weights)(r, m.input.len(), m.user.len()).user;
                                    let to = if r.out_of_place { 0 } else { at };
                                    for i in 0..n {
                                        if let Some(v) = reduced(reduce, weights, at + i) {
                                            wanted[(to + i) as usize] = v;
                                        }
                                    }
                                    same(&m.user, &wanted, &format!("{r:?} with {weights:?}"));
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// Everybody moves parts: `want` says what the rank of a request ends with.
    #[allow(clippy::type_complexity, reason = "two closures of one test helper")]
    fn moves(
        calls: &dyn Fn(Counts, u32) -> Vec<Call>,
        want: &dyn Fn(&Request, &Parts, &[f64]) -> Vec<f64>,
    ) {
        for world in WORLDS {
            for (counts, len) in [
                (Counts::Equal, 0),
                (Counts::Equal, 1),
                (Counts::Equal, 5),
                (some_counts(world), 0),
            ] {
                let parts = Parts::of(&counts, len, world as usize, "counts").unwrap();
                for call in calls(counts, world) {
                    for reqs in variants(requests(call, world, len)) {
                        let weights = vec![1.0; world as usize];
                        let after = run(&reqs, start(&weights));
                        for (m, r) in after.iter().zip(&reqs) {
                            let before = start(&weights)(r, m.input.len(), m.user.len());
                            same(&m.user, &want(r, &parts, &before.user), &format!("{r:?}"));
                            same(&m.input, &before.input, "the input");
                        }
                    }
                }
            }
        }
    }

    /// The part of rank `from` as it gave it: out of place its input, in place of the whole buffer.
    fn part(r: &Request, parts: &Parts, from: u32, whole: bool) -> Vec<f64> {
        let (at, len) = parts.at(from);
        row(from, if r.out_of_place || !whole { 0 } else { at }, len)
    }

    #[test]
    fn all_gather_brings_every_part() {
        moves(
            &|counts, _| {
                algorithms(OpKind::AllGather)
                    .iter()
                    .map(|&algorithm| Call::AllGather {
                        counts: counts.clone(),
                        algorithm,
                    })
                    .collect()
            },
            &|r, parts, _| {
                (0..r.world)
                    .flat_map(|from| part(r, parts, from, true))
                    .collect()
            },
        );
    }

    #[test]
    fn gather_brings_every_part_to_the_root() {
        moves(
            &|counts, world| {
                let all = algorithms(OpKind::Gather).iter();
                all.flat_map(|&algorithm| {
                    let counts = counts.clone();
                    [0, 2 % world, world - 1].map(move |root| Call::Gather {
                        root: Rank(root),
                        counts: counts.clone(),
                        algorithm,
                    })
                })
                .collect()
            },
            &|r, parts, before| {
                let root = root_of(&r.call);
                if root != Some(r.rank) {
                    return before.to_vec();
                }
                (0..r.world)
                    .flat_map(|from| part(r, parts, from, root == Some(Rank(from))))
                    .collect()
            },
        );
    }

    #[test]
    fn scatter_brings_everybody_its_part() {
        moves(
            &|counts, world| {
                let all = algorithms(OpKind::Scatter).iter();
                all.flat_map(|&algorithm| {
                    let counts = counts.clone();
                    [0, 2 % world, world - 1].map(move |root| Call::Scatter {
                        root: Rank(root),
                        counts: counts.clone(),
                        algorithm,
                    })
                })
                .collect()
            },
            &|r, parts, before| {
                let root = root_of(&r.call).unwrap();
                let (at, len) = parts.at(r.rank.0);
                if root == r.rank && !r.out_of_place {
                    before.to_vec()
                } else {
                    row(root.0, at, len)
                }
            },
        );
    }

    #[test]
    fn all_to_all_turns_rows_into_columns() {
        for &algorithm in algorithms(OpKind::AllToAll) {
            for world in WORLDS {
                for len in [0, 1, 5] {
                    let call = Call::AllToAll {
                        send: Counts::Equal,
                        recv: Counts::Equal,
                        algorithm,
                    };
                    for reqs in variants(requests(call, world, len)) {
                        let weights = vec![1.0; world as usize];
                        let after = run(&reqs, start(&weights));
                        for (m, r) in after.iter().zip(&reqs) {
                            let wanted: Vec<f64> = (0..world)
                                .flat_map(|from| row(from, u64::from(r.rank.0) * len, len))
                                .collect();
                            same(&m.user, &wanted, &format!("{r:?}"));
                        }
                    }
                }
                if algorithm != Algorithm::Direct {
                    continue;
                }
                // From i to j go (i + 2j) mod 4 elements.
                let n = |i: u32, j: u32| u64::from((i + 2 * j) % 4);
                let reqs: Vec<Request> = (0..world)
                    .map(|r| {
                        let send: Vec<u64> = (0..world).map(|j| n(r, j)).collect();
                        let recv: Vec<u64> = (0..world).map(|i| n(i, r)).collect();
                        let call = Call::AllToAll {
                            send: Counts::known(&send),
                            recv: Counts::known(&recv),
                            algorithm,
                        };
                        Request {
                            out_of_place: true,
                            slice: 2,
                            ..Request::new(call, Rank(r), world, 0)
                        }
                    })
                    .collect();
                let after = run(&reqs, start(&vec![1.0; world as usize]));
                for (r, m) in after.iter().enumerate() {
                    let r = r as u32;
                    let wanted: Vec<f64> = (0..world)
                        .flat_map(|i| row(i, (0..r).map(|j| n(i, j)).sum(), n(i, r)))
                        .collect();
                    same(&m.user, &wanted, "all_to_all with counts");
                }
            }
        }
    }

    #[test]
    fn broadcast_reaches_everybody() {
        for &algorithm in algorithms(OpKind::Broadcast) {
            for world in WORLDS {
                for root in [0, 2 % world, world - 1] {
                    for len in lengths(world) {
                        let call = Call::Broadcast {
                            root: Rank(root),
                            algorithm,
                        };
                        for reqs in variants(requests(call, world, len)) {
                            let after = run(&reqs, start(&vec![1.0; world as usize]));
                            for m in &after {
                                same(&m.user, &row(root, 0, len), &format!("{:?}", reqs[0]));
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn messages_and_neighbours_parts_arrive() {
        for out_of_place in [false, true] {
            for len in [0, 1, 7] {
                let of = |call, rank| Request {
                    out_of_place,
                    slice: 3,
                    ..Request::new(call, Rank(rank), 2, len)
                };
                let reqs = [
                    of(Call::Send { to: Rank(1) }, 0),
                    of(Call::Recv { from: Rank(0) }, 1),
                ];
                let after = run(&reqs, start(&[1.0; 2]));
                same(&after[1].user, &row(0, 0, len), "message");
            }
        }
        // A star with every rank's length its number; the centre names its sources backwards.
        for world in WORLDS {
            let reqs: Vec<Request> = (0..world)
                .map(|r| {
                    let others: Vec<Rank> = (1..world).rev().map(Rank).collect();
                    let (from, to) = if r == 0 {
                        (others, vec![])
                    } else {
                        (vec![], vec![Rank(0)])
                    };
                    let counts: Vec<u64> = from.iter().map(|f| u64::from(f.0)).collect();
                    let call = Call::NeighbourGather {
                        from,
                        to,
                        counts: Counts::known(&counts),
                    };
                    Request {
                        out_of_place: true,
                        ..Request::new(call, Rank(r), world, u64::from(r))
                    }
                })
                .collect();
            let after = run(&reqs, start(&vec![1.0; world as usize]));
            let wanted: Vec<f64> = (1..world)
                .rev()
                .flat_map(|r| row(r, 0, u64::from(r)))
                .collect();
            same(&after[0].user, &wanted, "neighbours");
        }
    }
}

/// The root of a rooted call.
fn root_of(call: &Call) -> Option<Rank> {
    match call {
        Call::Reduce { root, .. }
        | Call::Broadcast { root, .. }
        | Call::Gather { root, .. }
        | Call::Scatter { root, .. } => Some(*root),
        _ => None,
    }
}
