//! The engine's promises where ranks meet on boards in memory that all have mapped, and what is particular to those.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod common;
mod suites;

use common::{WORLDS, config};
use gaggle_core::{
    Algorithm, Cause, Counts, Group, Kind, Lane, Mean, Mode, Op, Rank, Reduce, Sum, Weight,
    raw::bytes_of,
};
use std::time::Duration;

const LINK: common::Link = common::Link::Mapped;

fn values(rank: Rank, n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| (i % 977) as f32 * 0.37 + rank.0 as f32 * 1.3)
        .collect()
}

/// Payload bytes that a group's rank sends meanwhile.
fn sent(group: &Group, f: impl FnOnce()) -> u64 {
    let before = group.communicator().stats();
    f();
    group.communicator().stats().since(&before).payload_sent
}

fn bits(group: &Group, op: &Op, x: &[f32]) -> Vec<u8> {
    let mut y = x.to_vec();
    group.run(op, &mut y).unwrap();
    bytes_of(&y[..]).to_vec()
}

/// Elements around what fits beside the number, with and without a weight, and into a slot.
const EDGES: [usize; 12] = [1, 2, 9, 10, 11, 12, 13, 101, 1021, 1023, 1024, 1025];

#[test]
fn small_operations_send_nothing_and_have_the_bits_of_direct() {
    for world in WORLDS {
        LINK.local(world, &config(), |_, group| {
            let me = group.rank();
            for n in EDGES {
                let x = values(me, n);
                let share = [1.5, 0.0, 2.0][me.idx() % 3];
                let weighed = |op: Op| op.weighing(Weight::from_f64(share).unwrap());
                for reduce in [Reduce::Sum, Reduce::Mean, Reduce::Max] {
                    let mut op = weighed(Op::new(Kind::AllReduce(reduce)));
                    if n > 1024 {
                        // Not on boards any more: whatever is chosen, in the order of ranks.
                        op = op.in_mode(Mode::Ordered);
                    }
                    let want = bits(&group, &op.clone().by(Algorithm::Direct), &x);
                    // The second call finds what the first has decided.
                    for _ in 0..2 {
                        let bytes = sent(&group, || {
                            assert_eq!(bits(&group, &op, &x), want, "{reduce} of {n}")
                        });
                        assert!(n > 1024 || bytes == 0, "{bytes} bytes for {n}");
                    }
                }
                let root = Rank(world - 1);
                assert_eq!(
                    bits(&group, &Op::new(Kind::Broadcast { root }), &x),
                    bytes_of(&values(root, n)[..])
                );
                let all = group.all_gather(&x).unwrap();
                let want: Vec<f32> = (0..world).flat_map(|r| values(Rank(r), n)).collect();
                assert_eq!(all, want, "{n}");
            }
            let bytes = sent(&group, || group.barrier().unwrap());
            assert_eq!(bytes, 0, "a barrier");
        });
    }
}

/// Parts of odd lengths begin within a word of a board.
#[test]
fn what_has_a_root_and_what_all_send_to_all_sends_nothing_either() {
    let run = |group: &Group, op: &Op, x: &[f32], n: usize| {
        let mut y = vec![-7.0f32; n];
        // Once to decide, once as decided.
        for _ in 0..2 {
            group.run_into(op, x, &mut y).unwrap();
        }
        bytes_of(&y[..]).to_vec()
    };
    for world in WORLDS {
        LINK.local(world, &config(), |_, group| {
            let (me, size) = (group.rank(), world as usize);
            for n in [0, 1, 3, 10, 63, 127] {
                let root = Rank(n as u32 % world);
                let of_root = |n: usize| if me == root { n } else { 0 };
                let counts: Vec<u64> = (0..size).map(|r| (r * n % 7) as u64).collect();
                let own = counts[me.idx()] as usize;
                let all = counts.iter().sum::<u64>() as usize;
                let mut mean = Op::new(Kind::Reduce {
                    reduce: Reduce::Mean,
                    root,
                });
                mean.weight = Weight::from_f64([1.5, 0.0, 2.0][me.idx() % 3]).unwrap();
                let equal = || Counts::Equal;
                let known = || Counts::known(&counts);
                let calls = [
                    (mean, n, of_root(n)),
                    (
                        Op::new(Kind::Gather {
                            root,
                            counts: equal(),
                        }),
                        n,
                        of_root(n * size),
                    ),
                    (
                        Op::new(Kind::Gather {
                            root,
                            counts: known(),
                        }),
                        own,
                        of_root(all),
                    ),
                    (
                        Op::new(Kind::Scatter {
                            root,
                            counts: equal(),
                        }),
                        of_root(n * size),
                        n,
                    ),
                    (
                        Op::new(Kind::Scatter {
                            root,
                            counts: known(),
                        }),
                        of_root(all),
                        own,
                    ),
                    (
                        Op::new(Kind::AllToAll {
                            send: equal(),
                            recv: equal(),
                        }),
                        n * size,
                        n * size,
                    ),
                ];
                for (op, read, written) in calls {
                    let x = values(me, read);
                    let direct = op.clone().by(Algorithm::Direct);
                    let want = run(&group, &direct, &x, written);
                    let mut got = vec![];
                    let bytes = sent(&group, || got = run(&group, &op, &x, written));
                    assert_eq!(got, want, "{:?} of {n}", op.kind);
                    assert_eq!(bytes, 0, "{:?} of {n}", op.kind);
                }
            }
        });
    }
}

#[test]
fn more_operations_than_slots_are_in_flight_on_two_lanes_and_in_two_groups() {
    for world in [2, 3, 5] {
        LINK.local(world, &config(), |_, group| {
            let me = group.rank();
            let half = group.subgroup(&[Rank(1), Rank(0)], "pair").ok();
            let groups = [Some(&group), half.as_ref()].into_iter().flatten();
            let groups: Vec<&Group> = groups.collect();
            let mut pending = vec![];
            for i in 0..23u32 {
                for (g, group) in groups.iter().enumerate() {
                    for lane in [0, 7] {
                        let op = Op::new(Kind::AllReduce(Reduce::Sum))
                            .on(Lane(lane))
                            .urgent(i as i32 % 3);
                        let op = match i % 5 {
                            // Some go by messages, and take a number like any other.
                            0 => op.by(Algorithm::Direct),
                            _ => op,
                        };
                        let n = [1, 100, 3000][i as usize % 3];
                        let x = vec![(me.0 + i + lane) as f32; n];
                        let size = group.size() as u32;
                        let want = size * (size - 1) / 2 + size * (i + lane);
                        pending.push((g, group.start(op, x), want as f32));
                    }
                }
            }
            // Some are waited for in another order than they were called in.
            while let Some((g, work, want)) = pending.pop() {
                let x = work.wait().unwrap();
                assert!(x.iter().all(|v| *v == want), "group {g}: {} {want}", x[0]);
            }
            let mut x = [1.0f32];
            group.all_reduce(&mut x, Sum).unwrap();
            assert_eq!(x, [world as f32]);
        });
    }
}

#[test]
fn whoever_calls_other_things_is_told_and_the_group_works_on() {
    type Call = fn(&Group) -> Result<(), gaggle_core::Error>;
    let ops: [Call; 5] = [
        |g| g.all_reduce(&mut [1.0f32; 2], Sum).map(drop),
        |g| g.all_reduce(&mut [1.0f32; 3], Mean).map(drop),
        |g| g.all_reduce(&mut [1.0f32; 5000], Sum).map(drop),
        |g| g.barrier().map(drop),
        |g| {
            let op = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::Direct);
            g.run(&op, &mut [1.0f32; 2]).map(drop)
        },
    ];
    for (i, mine) in ops.iter().enumerate() {
        for (j, theirs) in ops.iter().enumerate().filter(|(j, _)| *j != i) {
            LINK.local(2, &config(), |_, group| {
                let call = if group.rank() == Rank(0) {
                    mine
                } else {
                    theirs
                };
                let e = call(&group).unwrap_err();
                assert!(
                    matches!(e.cause(), Cause::Mismatch { deviating, .. } if deviating.len() == 2),
                    "{i} and {j}: {e}"
                );
                for _ in 0..6 {
                    let mut x = [1.0f32];
                    group.all_reduce(&mut x, Sum).unwrap();
                    assert_eq!(x, [2.0]);
                }
            });
        }
    }
}

#[test]
fn who_is_late_by_more_than_the_others_look_for_ends_well_all_the_same() {
    for world in [2, 5, 8] {
        LINK.local(world, &config(), |_, group| {
            for round in 0..4 {
                if group.rank() == Rank(round % world) {
                    // Longer than anybody looks by itself: the others sleep by then.
                    std::thread::sleep(Duration::from_millis(30));
                }
                let mut x = [1.0f32, 2.0];
                group.all_reduce(&mut x, Sum).unwrap();
                assert_eq!(x[0], world as f32);
                let mut y = group.buffer::<f32>(20_000);
                y.fill(1.0);
                if group.rank() == Rank((round + 1) % world) {
                    std::thread::sleep(Duration::from_millis(30));
                }
                group.all_reduce(&mut y, Sum).unwrap();
                assert!(y.iter().all(|v| *v == world as f32));
            }
        });
    }
}

#[test]
fn who_has_gone_after_its_word_is_not_missed_and_who_has_gone_before_is_named() {
    LINK.local(3, &config(), |_, group| {
        let mut x = [1.0f32];
        if group.rank() == Rank(2) {
            // It leaves with its word on the board.
            drop(group.start(Op::new(Kind::AllReduce(Reduce::Sum)), vec![1.0f32]));
            group.all_reduce(&mut x, Sum).unwrap();
            return;
        }
        for _ in 0..2 {
            group.all_reduce(&mut x, Sum).unwrap();
        }
        let e = group.all_reduce(&mut x, Sum).unwrap_err();
        assert!(
            matches!(e.cause(), Cause::PeerLeft { rank, .. } if *rank == Rank(2)),
            "{e}"
        );
    });
}

#[test]
fn parts_of_different_lengths_are_gathered_and_scattered() {
    for world in WORLDS {
        LINK.local(world, &config(), |_, group| {
            let me = group.rank().idx();
            let counts: Vec<u64> = (0..u64::from(world)).map(|r| (r * 5 + 3) % 7).collect();
            let own = values(group.rank(), counts[me] as usize);
            let all: usize = counts.iter().sum::<u64>() as usize;
            let want: Vec<f32> = (0..world)
                .flat_map(|r| values(Rank(r), counts[r as usize] as usize))
                .collect();
            let mut got = vec![0.0f32; all];
            let op = Op::new(Kind::AllGather(Counts::known(&counts)));
            let bytes = sent(&group, || {
                group.run_into(&op, &own, &mut got).unwrap();
            });
            assert_eq!((got, bytes), (want, 0));
            let op = Op::new(Kind::ReduceScatter {
                reduce: Reduce::Mean,
                counts: Counts::known(&counts),
            });
            let x = values(group.rank(), all);
            let mut want = vec![0.0f32; counts[me] as usize];
            let direct = op.clone().by(Algorithm::Direct);
            group.run_into(&direct, &x, &mut want).unwrap();
            let mut got = vec![0.0f32; counts[me] as usize];
            group.run_into(&op, &x, &mut got).unwrap();
            assert_eq!(bytes_of(&got[..]), bytes_of(&want[..]));
        });
    }
}
