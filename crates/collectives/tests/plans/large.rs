//! Lengths that do not fit 32 bits, many ranks, and what the crate's table says of rounds and bytes.

use crate::{all_reduce, cases, plans, request};
use gaggle_collectives::{Action, Buf, Call, Cost, Plan, Promise, Request, Span, plan};
use gaggle_core::{Algorithm, Counts, DType, OpKind, Rank, Reduce};
use std::collections::BTreeMap;

/// The same step, each element standing for `by`.
fn scaled(action: Action, by: u64) -> Action {
    let span = |s: Span| Span {
        at: s.at * by,
        len: s.len * by,
        ..s
    };
    let mut action = action;
    match &mut action {
        Action::Send { src, .. } => *src = span(*src),
        Action::Recv { dst, .. } => *dst = span(*dst),
        Action::Fold { dst, operands, .. } => {
            *dst = span(*dst);
            operands.iter_mut().for_each(|o| o.span = span(o.span));
        }
        Action::Weigh { span: s, .. }
        | Action::Divide { span: s, .. }
        | Action::Recode { span: s, .. } => *s = span(*s),
        Action::Copy { src, dst, .. } | Action::GroupCopy { src, dst, .. } => {
            (*src, *dst) = (span(*src), span(*dst));
        }
        Action::Mix {
            dst, own, operands, ..
        } => {
            (*dst, *own) = (span(*dst), span(*own));
            operands.iter_mut().for_each(|o| *o = span(*o));
        }
        Action::Compensate {
            span: s, residual, ..
        } => (*s, *residual) = (span(*s), *residual * by),
        Action::GroupFold { at, len, .. } => (*at, *len) = (*at * by, *len * by),
        Action::Arrive { .. } | Action::AwaitAll { .. } => {}
    }
    action
}

/// Where lengths divide evenly, the plan of a long vector is the one that is proved for a short one, with as many elements in the place of one.
#[test]
fn plans_beyond_32_bits_are_those_of_short_vectors_scaled() {
    // Divisible by the numbers of ranks, of hosts, of ranks per host, and by the powers of two below.
    const SHORT: u64 = 120;
    const BY: u64 = (1 << 33) + 9;
    let mut n_plans = 0;
    for (kind, algorithm) in cases::all() {
        for world in [1, 2, 3, 4, 6, 8] {
            let Some(promise) = cases::case(kind, algorithm, world, SHORT, 0) else {
                continue;
            };
            for (n_messages, in_slices) in [(1, false), (24, true)] {
                for base in promise.requests() {
                    let of = |by: u64| Request {
                        len: base.len * by,
                        slice: SHORT / n_messages * by,
                        out_of_place: base.out_of_place || in_slices && kind != OpKind::Message,
                        ..base.clone()
                    };
                    let (short, long) = (plan(&of(1)).unwrap(), plan(&of(BY)).unwrap());
                    assert_eq!(long.input_len, short.input_len * BY);
                    assert_eq!(long.user_len, short.user_len * BY);
                    assert_eq!(long.scratch_len, short.scratch_len * BY);
                    assert_eq!((long.n_slots, long.total), (short.n_slots, short.total));
                    assert_eq!(long.n_steps(), short.n_steps());
                    for (l, s) in long.iter().zip(short.iter()) {
                        assert_eq!(l.action, scaled(s.action, BY), "{:?}", of(BY));
                        assert_eq!(l.after, s.after);
                    }
                    n_plans += 1;
                }
            }
        }
    }
    assert!(n_plans > 1000, "{n_plans}");
}

/// Elements of the caller's buffer that steps write, each piece from its first element to one past its last.
fn written(plan: &Plan) -> BTreeMap<u64, u64> {
    let spans = plan.iter().filter_map(|step| match step.action {
        Action::Recv { dst, .. } | Action::Fold { dst, .. } | Action::Copy { dst, .. } => Some(dst),
        Action::GroupFold { at, len, .. } => Some(Span::user(at, len)),
        _ => None,
    });
    spans
        .filter(|s| s.buf == Buf::User && s.len > 0)
        .map(|s| (s.at, s.end()))
        .collect()
}

/// Whether the pieces lie one after the other, without a gap, from `lo` to `hi`.
fn covers(pieces: &BTreeMap<u64, u64>, lo: u64, hi: u64) -> bool {
    let end = pieces.iter().try_fold(lo, |at, (&piece, &end)| {
        (piece <= at).then_some(end.max(at))
    });
    end == Some(hi)
}

/// Row 12 of the trials: f32 [50000, 2000, 6], which is 2,400,000,000 bytes.
#[test]
fn a_tensor_of_600_000_000_elements_is_reduced_whole() {
    let len = 50_000 * 2_000 * 6;
    for &algorithm in gaggle_collectives::algorithms(OpKind::AllReduce) {
        let hosts = algorithm
            .between_hosts()
            .map(|_| [0, 0, 0, 1, 1, 2, 2].into());
        let promise = Promise::of_all(&Request {
            slice: 1 << 20,
            hosts,
            ..all_reduce(Reduce::Mean, algorithm, 7, len)
        });
        let all = plans(&promise);
        let mut sent: BTreeMap<(u32, u32, u32), u64> = BTreeMap::new();
        for plan in &all {
            for step in plan.iter() {
                if let Action::Send { to, tag, src, .. } = step.action {
                    assert!(src.len <= 1 << 20);
                    sent.insert((plan.rank.0, to.0, tag), src.len);
                }
            }
        }
        for plan in &all {
            assert_eq!(plan.user_len, len);
            for step in plan.iter() {
                if let Action::Recv { from, tag, dst, .. } = step.action {
                    let key = (from.0, plan.rank.0, tag);
                    assert_eq!(sent.remove(&key), Some(dst.len), "{algorithm} {key:?}");
                }
            }
            if algorithm != Algorithm::Fused {
                let what = format!("{algorithm} on {}", plan.rank);
                assert!(covers(&written(plan), 0, len), "{what}");
            }
        }
        assert!(sent.is_empty(), "{algorithm}");
        if algorithm == Algorithm::Fused {
            let everybodys = all.iter().flat_map(written).collect();
            assert!(covers(&everybodys, 0, len));
        }
    }
}

/// Row 12 of the trials: 2048 ranks give 2 MiB each, 4 GiB in all.
#[test]
fn the_parts_of_2048_ranks_are_gathered_to_exact_places() {
    let (world, len) = (2048, (2 << 20) / 4);
    for algorithm in [Algorithm::Direct, Algorithm::Binomial] {
        for root in [0, 5] {
            let call = Call::Gather {
                root: Rank(root),
                counts: Counts::Equal,
                algorithm,
            };
            let of = |rank: u32| Request {
                rank: Rank(rank),
                slice: 1 << 16,
                ..request(call.clone(), world, len)
            };
            let at_root = plan(&of(root)).unwrap();
            assert_eq!(at_root.user_len, 1 << 30);
            let mut pieces = written(&at_root);
            let own = u64::from(root) * len;
            pieces.insert(own, own + len);
            assert!(covers(&pieces, 0, 1 << 30), "{algorithm}");
            if algorithm == Algorithm::Binomial {
                continue;
            }
            for step in at_root.iter() {
                let Action::Recv { from, tag, dst, .. } = step.action else {
                    panic!("{}", step.action);
                };
                // 8 slices each.
                let at = u64::from(from.0) * len + u64::from(tag) * (1 << 16);
                assert_eq!(dst, Span::user(at, 1 << 16));
            }
            let last = plan(&of(world - 1)).unwrap();
            assert_eq!((last.user_len, last.n_steps()), (len, 8));
        }
    }
}

/// No length, slice or number of ranks makes the arithmetic overflow: there is a plan, or an error that says what is too large.
#[test]
fn absurd_lengths_are_planned_or_refused() {
    let (mut planned, mut refused) = (0, 0);
    for (kind, algorithm) in cases::all() {
        for world in [1, 2, 3, 6] {
            let Some(promise) = cases::case(kind, algorithm, world, 1, 0) else {
                continue;
            };
            for base in promise.requests() {
                for len in [u64::MAX, u64::MAX / 3, (1 << 63) - 1, 1 << 62] {
                    for slice in [u64::MAX, 1 << 60, 1] {
                        for out_of_place in [false, true] {
                            let request = Request {
                                len,
                                slice,
                                out_of_place,
                                ..base.clone()
                            };
                            match plan(&request) {
                                Ok(plan) => {
                                    planned += 1;
                                    assert!(plan.iter().all(|s| is_inside(&plan, &s.action)));
                                }
                                Err(_) => refused += 1,
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(planned > 100 && refused > 100, "{planned} {refused}");
}

fn is_inside(plan: &Plan, action: &Action) -> bool {
    let limit = |buf| match buf {
        Buf::Input => plan.input_len,
        Buf::User => plan.user_len,
        Buf::Scratch => plan.scratch_len,
    };
    let inside = |s: Span| {
        s.at.checked_add(s.len)
            .is_some_and(|end| end <= limit(s.buf))
    };
    match action {
        Action::Send { src, .. } => inside(*src),
        Action::Recv { dst, .. } => inside(*dst),
        Action::Fold { dst, operands, .. } => {
            inside(*dst) && operands.iter().all(|o| inside(o.span))
        }
        Action::Copy { src, dst, .. } => inside(*src) && inside(*dst),
        _ => true,
    }
}

/// The table in the crate's documentation: the longest chain of messages, and the most bytes that one rank sends, of a vector (or all parts) of S bytes.
#[test]
fn rounds_and_bytes_are_those_of_the_table() {
    use Algorithm as A;
    use OpKind as K;
    // Worlds of 8 and 13 ranks: rounds; bytes in units of S/(8·13·6).
    const S: u64 = 8 * 13 * 6;
    let others = |p: u64| S / p * (p - 1);
    let table: &[(K, A, [u64; 2], [u64; 2])] = &[
        (
            K::AllReduce,
            A::Ring,
            [14, 24],
            [2 * others(8), 2 * others(13)],
        ),
        (K::AllReduce, A::RecursiveDoubling, [3, 5], [3 * S, 4 * S]),
        (
            K::AllReduce,
            A::Direct,
            [2, 2],
            [2 * others(8), 2 * others(13)],
        ),
        (
            K::AllReduce,
            A::HalvingDoubling,
            [6, 8],
            [2 * others(8), 2 * others(8) + S],
        ),
        (K::AllReduce, A::Binomial, [6, 8], [3 * S, 4 * S]),
        (K::AllReduce, A::DoubleTree, [12, 16], [2 * S, 2 * S]),
        (K::Reduce, A::Direct, [1, 1], [S, S]),
        (K::Reduce, A::Binomial, [3, 4], [S, S]),
        (K::Reduce, A::DoubleTree, [6, 8], [S, S]),
        (
            K::Reduce,
            A::HalvingDoubling,
            [6, 7],
            [others(8) + S / 2, others(8) + S / 2],
        ),
        (K::Broadcast, A::Direct, [1, 1], [7 * S, 12 * S]),
        (K::Broadcast, A::Binomial, [3, 4], [3 * S, 4 * S]),
        (K::Broadcast, A::DoubleTree, [6, 8], [S, S]),
        (K::Broadcast, A::Pipelined, [7, 12], [S, S]),
        (K::Gather, A::Direct, [1, 1], [S / 8, S / 13]),
        (K::Gather, A::Binomial, [3, 4], [S / 2, S / 2]),
        (K::Scatter, A::Binomial, [3, 4], [others(8), others(13)]),
        (
            K::AllGather,
            A::RecursiveDoubling,
            [3, 5],
            [others(8), 2 * S],
        ),
        (K::AllGather, A::Bruck, [3, 4], [others(8), others(13)]),
        (K::ReduceScatter, A::Direct, [1, 1], [others(8), others(13)]),
        (K::ReduceScatter, A::Ring, [7, 12], [others(8), others(13)]),
        (
            K::ReduceScatter,
            A::HalvingDoubling,
            [3, 5],
            [others(8), S + S / 13],
        ),
        (K::AllToAll, A::Direct, [1, 1], [others(8), others(13)]),
        (K::AllToAll, A::Bruck, [3, 4], [3 * S / 2, 2 * S]),
    ];
    for (kind, algorithm, rounds, bytes) in table {
        for ((world, rounds), bytes) in [8, 13].into_iter().zip(rounds).zip(bytes) {
            let is_whole = matches!(kind, K::AllReduce | K::Reduce | K::Broadcast);
            let len = if is_whole { S } else { S / u64::from(world) };
            let promise = cases::case(*kind, *algorithm, world, len, 0).unwrap();
            let all = plans(&promise);
            let what = format!("{kind:?} by {algorithm} on {world}");
            let depth = gaggle_collectives::check::depth(&all).unwrap();
            let most = all
                .iter()
                .map(|p| Cost::of(p, DType::U8).unwrap().bytes_sent);
            let most = most.max().unwrap();
            // "About", "up to", "at most".
            let loose = algorithm == &A::DoubleTree || !world.is_power_of_two();
            assert!(
                depth == *rounds || loose && depth < *rounds,
                "{what}: {depth} rounds"
            );
            assert!(
                most == *bytes || loose && most < *bytes,
                "{what}: {most} bytes"
            );
        }
    }
}
