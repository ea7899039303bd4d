//! Operations on ordinary memory of ranks that share memory: through staging memory, with no message of theirs and the bits of `direct`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod common;

use common::{
    Link, WORLDS, config,
    mapped::{self, Gate, Gated},
    number::Number,
};
use gaggle_core::{
    Algorithm, Buffer, Cause, Counts, Element, Group, Kind, Lane, Op, Rank, Reduce, Sum, Weight,
    raw::bytes_of,
};
use gaggle_engine::EngineConfig;
use half::bf16;
use std::{
    sync::{Arc, Barrier},
    time::Duration,
};

/// Whose memory is registered.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Memory {
    Nobodys,
    /// That of even ranks.
    Mixed,
}

impl Memory {
    fn of<T: Element>(self, group: &Group, values: &[T]) -> Buffer<T> {
        let registered = self == Memory::Mixed && group.rank().0.is_multiple_of(2);
        let mut x = match registered {
            true => group.buffer(values.len()),
            false => Buffer::ordinary(values.len()),
        };
        x.copy_from_slice(values);
        x
    }
}

fn contribution<T: Number>(rank: Rank, n: usize) -> Vec<T> {
    let value = |i: usize| T::of(7 * i as i64 + 1_000_003 * i64::from(rank.0) + 5);
    (0..n).map(value).collect()
}

/// Every kind that can be staged, on `n` elements per rank or part: read, written and promised elements, out of place; in place it is the longest.
fn operations(group: &Group, reduce: Reduce, n: usize) -> Vec<(Op, usize, usize)> {
    let (me, world) = (group.rank().idx(), group.size());
    let counts: Vec<u64> = (0..world).map(|r| ((r % 3) * n) as u64).collect();
    let (own, all) = (counts[me] as usize, counts.iter().sum::<u64>() as usize);
    let root = Rank(world as u32 - 1);
    let known = || Counts::known(&counts);
    let is_root = group.rank() == root;
    let of_root = |n: usize| if is_root { n } else { 0 };
    let op = Op::new;
    let scatter = |counts| op(Kind::ReduceScatter { reduce, counts });
    vec![
        (op(Kind::AllReduce(reduce)), n, n),
        (scatter(Counts::Equal), n * world, n),
        (scatter(known()), all, own),
        (op(Kind::AllGather(Counts::Equal)), n, n * world),
        (op(Kind::AllGather(known())), own, all),
        (
            op(Kind::AllToAll {
                send: Counts::Equal,
                recv: Counts::Equal,
            }),
            n * world,
            n * world,
        ),
        (op(Kind::Broadcast { root }), of_root(n), n),
        (
            op(Kind::Gather {
                root,
                counts: Counts::Equal,
            }),
            n,
            of_root(n * world),
        ),
        (
            op(Kind::Gather {
                root,
                counts: known(),
            }),
            own,
            of_root(all),
        ),
        (
            op(Kind::Scatter {
                root,
                counts: Counts::Equal,
            }),
            of_root(n * world),
            n,
        ),
        (
            op(Kind::Scatter {
                root,
                counts: known(),
            }),
            of_root(all),
            own,
        ),
    ]
}

/// Runs an operation and returns what it has promised to leave.
fn outcome<T: Number>(
    group: &Group,
    (op, read, written): &(Op, usize, usize),
    memory: Memory,
    in_place: bool,
) -> Vec<u8> {
    let me = group.rank();
    if !in_place {
        let x = memory.of(group, &contribution::<T>(me, *read));
        let mut y = memory.of(group, &contribution::<T>(Rank(99), *written));
        group.run_into(op, &x, &mut y).unwrap();
        assert!(bytes_of(&x[..]) == bytes_of(&contribution::<T>(me, *read)));
        return bytes_of(&y[..]).to_vec();
    }
    let all = (*read).max(*written);
    let mut x = memory.of(group, &contribution::<T>(me, all));
    group.run_buf(op, &mut x).unwrap();
    // In place a reduce-scatter promises the own part alone.
    let own = match &op.kind {
        Kind::ReduceScatter {
            counts: Counts::Known(c),
            ..
        } => {
            let at = c[..me.idx()].iter().sum::<u64>() as usize;
            at..at + c[me.idx()] as usize
        }
        Kind::ReduceScatter { .. } => me.idx() * written..(me.idx() + 1) * written,
        _ => 0..all,
    };
    bytes_of(&x[own]).to_vec()
}

fn like_direct<T: Number>(group: &Group, reduce: Reduce, lens: &[usize]) {
    for &n in lens {
        for (mut op, read, written) in operations(group, reduce, n) {
            // One rank has nothing to give, the others different shares.
            let share = [2.0, 0.0, 1.5, 0.25][group.rank().idx() % 4];
            op.weight = Weight::from_f64(share).unwrap();
            for in_place in [true, false] {
                let direct = (op.clone().by(Algorithm::Direct), read, written);
                let want = outcome::<T>(group, &direct, Memory::Nobodys, in_place);
                let fused = (op.clone().by(Algorithm::Fused), read, written);
                for memory in [Memory::Nobodys, Memory::Mixed] {
                    let before = group.stats();
                    let got = outcome::<T>(group, &fused, memory, in_place);
                    let sent = group.stats().since(&before).payload_sent;
                    let kind = &op.kind;
                    assert!(
                        got == want,
                        "{kind:?} of {n}, {memory:?}, in place {in_place}"
                    );
                    assert!(sent < 500, "{sent} bytes for {kind:?} of {n}, {memory:?}");
                }
            }
        }
    }
}

#[test]
fn ordinary_and_mixed_memory_pass_through_staging_memory() {
    for world in WORLDS {
        Link::Mapped.local(world, &config(), |_, group| {
            let many = 1024 + world as usize;
            like_direct::<f32>(&group, Reduce::Mean, &[many - 1, many, many + 1, 2503]);
            like_direct::<bf16>(&group, Reduce::Mean, &[4099]);
            like_direct::<i64>(&group, Reduce::Bxor, &[1031]);
        });
    }
}

/// Ways of `fused` that are named are taken on any memory and of any length that they are for, with the same bits; who names another one than the others disagrees with them.
#[test]
fn boards_and_staging_memory_can_be_forced() {
    for world in WORLDS {
        Link::Mapped.local(world, &config(), |_, group| {
            let me = group.rank();
            let sum = |by| Op::new(Kind::AllReduce(Reduce::Sum)).by(by);
            let run = |by, n: usize, registered: bool| {
                let mut x = match registered {
                    true => group.buffer::<f32>(n),
                    false => Buffer::ordinary(n),
                };
                x.copy_from_slice(&contribution::<f32>(me, n));
                let before = group.stats();
                let done = group.run(&sum(by), &mut x);
                let sent = group.stats().since(&before).payload_sent;
                done.map(|_| (bytes_of(&x[..]).to_vec(), sent))
            };
            let p = world as usize;
            for n in [0, 1, p - 1, p, p + 1, 1009, 1024, 1025, 100_003] {
                let (want, _) = run(Algorithm::Direct, n, false).unwrap();
                for registered in [false, true] {
                    let (got, sent) = run(Algorithm::Staged, n, registered).unwrap();
                    assert!(got == want, "{n} staged");
                    assert!(sent < 500, "{sent} bytes for {n} staged");
                    let boards = run(Algorithm::Boards, n, registered);
                    if n <= 1024 {
                        assert!(boards.unwrap().0 == want, "{n} on boards");
                    } else {
                        let e = boards.unwrap_err();
                        assert!(e.to_string().contains("up to 4 KiB"), "{e}");
                    }
                }
            }
            let why = group.explain::<f32>(&sum(Algorithm::Staged), 5000).unwrap();
            assert!(why.contains("staged, about"), "{why}");
            if world > 1 {
                let by = match me == Rank(0) {
                    true => Algorithm::Fused,
                    false => Algorithm::Staged,
                };
                let mut x = [0.0f32; 5000];
                let e = group.run(&sum(by), &mut x).unwrap_err();
                assert!(matches!(e.cause(), Cause::Mismatch { .. }), "{e}");
            }
        });
    }
}

/// Many slices, so that slots are used again and again.
#[test]
fn long_vectors_pass_slice_by_slice() {
    for (world, n) in [(2, 600_011), (3, 300_007), (5, 200_003)] {
        Link::Mapped.local(world, &config(), |_, group| {
            like_direct::<f32>(&group, Reduce::Sum, &[n]);
        });
    }
}

/// More than a lane's boards hold, on two lanes and a group of some, waited for last to first.
#[test]
fn many_at_a_time_do_not_mix() {
    for world in [2, 3, 5] {
        Link::Mapped.local(world, &config(), |_, group| {
            let me = group.rank();
            let few: Vec<Rank> = (0..world - 1).map(Rank).collect();
            let some = few
                .contains(&me)
                .then(|| group.subgroup(&few, "some").unwrap());
            let sum = |ranks: u32, n: usize, i: usize| -> Vec<f32> {
                let all = (0..ranks).map(|r| contribution::<f32>(Rank(r), n + i));
                let zeros = vec![0.0; n + i];
                all.fold(zeros, |s, x| s.iter().zip(&x).map(|(a, b)| a + b).collect())
            };
            for n in [1500, 70_001] {
                let mut works = vec![];
                for i in 0..9 {
                    let mut op = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::Fused);
                    op.lane = Lane(i as u32 % 2);
                    op.priority = (i % 3) as i32;
                    let x = contribution::<f32>(me, n + i);
                    works.push((world, i, group.start(op.clone(), x)));
                    if let Some(some) = &some {
                        let x = contribution::<f32>(me, n + i);
                        works.push((world - 1, i, some.start(op, x)));
                    }
                }
                while let Some((ranks, i, work)) = works.pop() {
                    let x = work.wait().unwrap();
                    assert!(x == sum(ranks, n, i), "{i} of {ranks} ranks");
                }
            }
        });
    }
}

fn impatient() -> EngineConfig {
    let mut config = EngineConfig::default().with_timeout(Duration::from_millis(300));
    config.grace = Duration::from_millis(300);
    config
}

/// One of three stops in the middle; the others time out, and their staging memory serves other operations before it goes on.
#[test]
fn who_is_behind_a_failure_spoils_nothing_and_does_not_end_well() {
    const N: usize = 500_000;
    let gate = Arc::new(Gate::default());
    gate.shut();
    let seats = mapped::seats(3, |rank, heap| {
        Gated(heap, (rank == Rank(2)).then(|| Arc::clone(&gate)))
    });
    let mut config = impatient();
    mapped::agree(&mut config, 3);
    let refilled = Barrier::new(2);
    let over = Barrier::new(3);
    common::run(seats, &config, |_, group| {
        let me = group.rank();
        let op = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::Fused);
        let pair = (me != Rank(2)).then(|| group.subgroup(&[Rank(0), Rank(1)], "two").unwrap());
        let mut x = contribution::<f32>(me, N);
        let e = group.run(&op, &mut x).unwrap_err();
        match &pair {
            None => assert!(!matches!(e.cause(), Cause::Internal { .. }), "{e}"),
            Some(pair) => {
                let Cause::Timeout { waiting_for, .. } = e.cause() else {
                    panic!("{e}");
                };
                assert_eq!(waiting_for.as_slice(), &[Rank(2)], "{e}");
                x.fill(100.0 + me.0 as f32);
                gate.wait_held();
                for i in 0..3 {
                    let mut y = vec![i as f32; N];
                    pair.run(&op, &mut y).unwrap();
                    assert!(y.iter().all(|v| *v == 2.0 * i as f32));
                }
                refilled.wait();
                if me == Rank(0) {
                    gate.open();
                }
            }
        }
        // The straggler has had its end.
        over.wait();
        if me != Rank(2) {
            assert!(x.iter().all(|v| *v == 100.0 + me.0 as f32));
        }
        over.wait();
        x.fill(1.0);
        group.run(&op, &mut x).unwrap();
        assert!(x.iter().all(|v| *v == 3.0));
    });
}

#[test]
fn a_mismatch_leaves_ordinary_memory_as_it_was() {
    Link::Mapped.local(3, &config(), |_, group| {
        let n = 5000 + usize::from(group.rank() == Rank(1));
        let mut x = vec![3.0f32; n];
        let e = group.all_reduce(&mut x, Sum).unwrap_err();
        let Cause::Mismatch {
            deviating,
            partly_written,
            ..
        } = e.cause()
        else {
            panic!("{e}");
        };
        assert_eq!(
            (deviating.as_slice(), *partly_written),
            (&[Rank(1)][..], false),
            "{e}"
        );
        assert!(x.iter().all(|v| *v == 3.0));
        group.all_reduce(&mut x[..2000], Sum).unwrap();
        assert!(x[..2000].iter().all(|v| *v == 9.0));
    });
}
