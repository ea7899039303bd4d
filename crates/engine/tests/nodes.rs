//! Ranks of one host on several memory nodes, which are made up: two levels where they are chosen or named, with right results and the same bits with and without fusion.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod common;

use common::{
    Link, WORLDS, config, lengths,
    mapped::{self, Gate, Gated},
    number::Number,
};
use gaggle_collectives::select::{LinkClass, Tables};
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

/// Ranks one after the other, one by one around, and so that nodes differ in size.
fn layouts(world: u32) -> [Arc<[u32]>; 3] {
    [
        (0..world).map(|r| r / 2).collect(),
        (0..world).map(|r| r % 2).collect(),
        (0..world).map(|r| u32::from(r > 2)).collect(),
    ]
}

/// Over what the ranks talk.
#[derive(Clone, Copy, Debug)]
enum Over {
    /// Within the process.
    Threads,
    /// Rings in memory.
    Rings,
}

fn run<R: Send>(
    over: Over,
    settings: &EngineConfig,
    nodes: &Arc<[u32]>,
    f: impl Fn(Group) -> R + Sync,
) -> Vec<R> {
    let world = nodes.len() as u32;
    let mut settings = settings.clone();
    mapped::agree(&mut settings, world);
    settings.nodes = Some(Arc::clone(nodes));
    let seats = match over {
        Over::Threads => mapped::seats(world, |_, heap| heap),
        Over::Rings => mapped::rings(world, |_, heap| heap),
    };
    common::run(seats, &settings, |_, group| f(group))
}

/// A table by which what may go in two levels does, unless it is short.
fn far_apart() -> Tables {
    let mut tables = Tables::shared();
    tables.across = LinkClass {
        look_ns: 1 << 40,
        mapped_bytes_per_us: 1,
        bytes_per_us: 10,
        ..LinkClass::SHARED
    };
    tables
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Memory {
    Registered,
    Plain,
    /// Registered on even ranks.
    Mixed,
}

const MEMORIES: [Memory; 3] = [Memory::Registered, Memory::Plain, Memory::Mixed];

impl Memory {
    fn of<T: Element>(self, group: &Group, values: &[T]) -> Buffer<T> {
        let plain = match self {
            Memory::Registered => false,
            Memory::Plain => true,
            Memory::Mixed => group.rank().0 % 2 == 1,
        };
        let mut x = match plain {
            true => Buffer::ordinary(values.len()),
            false => group.buffer(values.len()),
        };
        x.copy_from_slice(values);
        x
    }
}

fn contribution<T: Number>(rank: Rank, n: usize) -> Vec<T> {
    let value = |i: usize| T::of(7 * i as i64 + 1_000_003 * i64::from(rank.0) + 5);
    (0..n).map(value).collect()
}

/// Every kind that has plans in two levels, and those.
fn two_levels(world: u32, reduce: Reduce) -> Vec<(Kind, Vec<Algorithm>)> {
    use Algorithm as A;
    let root = Rank(world - 1);
    vec![
        (
            Kind::AllReduce(reduce),
            vec![
                A::TwoLevelRing,
                A::TwoLevelRecursiveDoubling,
                A::TwoLevelDirect,
                A::TwoLevelHalvingDoubling,
                A::TwoLevelDoubleTree,
                A::TwoLevelBinomial,
            ],
        ),
        (Kind::Reduce { reduce, root }, vec![A::TwoLevelBinomial]),
        (
            Kind::Broadcast { root },
            vec![A::TwoLevelBinomial, A::TwoLevelPipelined],
        ),
        (Kind::AllGather(Counts::Equal), vec![A::TwoLevelRing]),
        (
            Kind::ReduceScatter {
                reduce,
                counts: Counts::Equal,
            },
            vec![A::TwoLevelDirect],
        ),
    ]
}

/// What rank `me` has to find after an operation in place on `n` elements of a part or vector; `None`: nothing is promised.
fn expected<T: Number>(kind: &Kind, me: Rank, world: u32, n: usize) -> Option<Vec<T>> {
    let all = |len: usize| -> Vec<Vec<T>> {
        let of = |r| contribution::<T>(Rank(r), len);
        (0..world).map(of).collect()
    };
    let reduced = |reduce: Reduce, len: usize| -> Vec<T> {
        let all = all(len);
        let at = |i: usize| all.iter().map(|x| x[i]).collect::<Vec<T>>();
        (0..len).map(|i| T::reduced(reduce, &at(i))).collect()
    };
    match kind {
        Kind::AllReduce(reduce) => Some(reduced(*reduce, n)),
        Kind::Reduce { reduce, root } => (*root == me).then(|| reduced(*reduce, n)),
        Kind::Broadcast { root } => Some(contribution(*root, n)),
        Kind::AllGather(_) => {
            let whole = all(n * world as usize);
            let part = |r: usize| whole[r][r * n..(r + 1) * n].to_vec();
            Some((0..world as usize).flat_map(part).collect())
        }
        Kind::ReduceScatter { reduce, .. } => {
            let whole = reduced(*reduce, n * world as usize);
            Some(whole[me.idx() * n..][..n].to_vec())
        }
        other => panic!("{other:?}"),
    }
}

/// What an operation in place leaves of what it promises.
fn outcome<T: Number>(group: &Group, op: &Op, memory: Memory, n: usize) -> Vec<T> {
    let (me, world) = (group.rank(), group.size());
    let parts = matches!(op.kind, Kind::AllGather(_) | Kind::ReduceScatter { .. });
    let len = if parts { n * world } else { n };
    let mut x = memory.of::<T>(group, &contribution::<T>(me, len));
    group.run_buf(op, &mut x).unwrap();
    match op.kind {
        Kind::ReduceScatter { .. } => x[me.idx() * n..][..n].to_vec(),
        _ => x.to_vec(),
    }
}

fn check<T: Number>(group: &Group, reduce: Reduce, n: usize) {
    let (me, world) = (group.rank(), group.size() as u32);
    for (kind, algorithms) in two_levels(world, reduce) {
        let want = expected::<T>(&kind, me, world, n);
        for by in algorithms {
            let op = Op::new(kind.clone()).by(by);
            if group.explain::<T>(&op, n).is_err() {
                continue;
            }
            for memory in MEMORIES {
                let got = outcome::<T>(group, &op, memory, n);
                let close = |(a, b): (&T, &T)| a.is_close(*b, f64::from(world));
                let right = want
                    .as_ref()
                    .is_none_or(|want| want.len() == got.len() && got.iter().zip(want).all(close));
                assert!(right, "{kind:?} by {by} of {n} {}, {memory:?}", T::DTYPE);
            }
        }
    }
}

/// Elements of which every message is long enough to be read where it lies, up to 8 ranks.
const LONG: usize = 16 * 8192 + 13;

#[test]
fn results_are_right_in_two_levels_on_nodes_of_any_shape() {
    for over in [Over::Threads, Over::Rings] {
        for world in WORLDS {
            for nodes in layouts(world) {
                run(over, &config(), &nodes, |group| {
                    for n in lengths(world) {
                        check::<f32>(&group, Reduce::Sum, n);
                    }
                    check::<i32>(&group, Reduce::Max, world as usize + 1);
                    check::<bf16>(&group, Reduce::Mean, 101);
                });
            }
        }
    }
}

#[test]
fn long_messages_are_right_where_they_are_read_where_they_lie() {
    for (over, world) in [(Over::Rings, 4), (Over::Threads, 4), (Over::Rings, 5)] {
        for nodes in layouts(world) {
            run(over, &config(), &nodes, |group| {
                check::<f32>(&group, Reduce::Sum, LONG);
            });
        }
    }
    let eight: Arc<[u32]> = (0..8).map(|r| r / 4).collect();
    run(Over::Rings, &config(), &eight, |group| {
        check::<f32>(&group, Reduce::Sum, LONG);
        check::<bf16>(&group, Reduce::Max, LONG);
    });
}

/// Of means every rank has a weight of its own, one of them 0.
#[test]
fn weights_count_wherever_contributions_lie() {
    for nodes in layouts(4) {
        for n in [5, LONG] {
            let results = run(Over::Rings, &config(), &nodes, |group| {
                let me = group.rank().0;
                let mut op = Op::new(Kind::AllReduce(Reduce::Mean)).by(Algorithm::TwoLevelDirect);
                op.weight = Weight::from_f64([2.0, 0.0, 1.0, 5.0][me as usize]).unwrap();
                let mut x = group.buffer::<f32>(n);
                x.fill([4.0, f32::NAN, 8.0, 16.0][me as usize]);
                group.run(&op, &mut x).unwrap();
                x.to_vec()
            });
            for x in results {
                assert!(x.iter().all(|v| *v == 12.0), "{nodes:?} {n}: {}", x[0]);
            }
        }
    }
}

/// The same plan is chosen, and its result has the same bits, with fusion and without, in registered and in ordinary memory.
#[test]
fn fusion_changes_neither_plan_nor_bits() {
    let nodes: Arc<[u32]> = [0, 0, 1, 1].into();
    let wave = |rank: u32, i: usize| ((i * 7 + rank as usize * 13) % 101) as f32 / 3.0;
    for n in [1, 3, 4, 5, 101, LONG] {
        let mut all = Vec::new();
        for fusion in [true, false] {
            let mut settings = config();
            (settings.fusion, settings.tables) = (fusion, Some(far_apart()));
            all.push(run(Over::Rings, &settings, &nodes, |group| {
                let me = group.rank().0;
                let ops = two_levels(4, Reduce::Sum)
                    .into_iter()
                    .map(|(kind, _)| Op::new(kind));
                let outcomes = ops.map(|op| {
                    let why = group.explain::<f32>(&op, n).unwrap();
                    let parts = matches!(op.kind, Kind::AllGather(_) | Kind::ReduceScatter { .. });
                    let len = if parts { 4 * n } else { n };
                    let values: Vec<f32> = (0..len).map(|i| wave(me, i)).collect();
                    let bits = MEMORIES.map(|memory| {
                        let mut x = memory.of(&group, &values);
                        group.run_buf(&op, &mut x).unwrap();
                        let own = match op.kind {
                            Kind::ReduceScatter { .. } => &x[me as usize * n..][..n],
                            // A reduction leaves the others' as it likes.
                            Kind::Reduce { root, .. } if root.0 != me => &x[..0],
                            _ => &x[..],
                        };
                        bytes_of(own).to_vec()
                    });
                    assert_eq!(bits[0], bits[1], "{why}");
                    assert_eq!(bits[0], bits[2], "{why}");
                    let [bits, ..] = bits;
                    (why, bits)
                });
                outcomes.collect::<Vec<_>>()
            }));
        }
        let [fused, plain] = &all[..] else {
            panic!("two runs");
        };
        let two = fused[0][0].0.contains("all_reduce by two_level_");
        assert_eq!(two, n >= 101, "{}", fused[0][0].0);
        for (a, b) in fused.iter().flatten().zip(plain.iter().flatten()) {
            assert_eq!(a.1, b.1, "{}", a.0);
            // Up to what is said of staging memory.
            let plan = |why: &str| why.split(": ").next().map(str::to_owned);
            assert_eq!(plan(&a.0), plan(&b.0));
        }
    }
}

/// Who shares a node in a group follows from who does in the job, after a death too.
#[test]
fn groups_know_the_nodes_of_their_members() {
    let nodes: Arc<[u32]> = [0, 0, 1, 1, 1].into();
    let by = |group: &Group| {
        let op = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::TwoLevelDirect);
        group.explain::<f32>(&op, 100).is_ok()
    };
    let gone = Barrier::new(5);
    run(Over::Threads, &config(), &nodes, |group| {
        assert!(by(&group));
        let me = group.rank();
        for (members, two) in [
            (&[0, 1, 2, 3][..], true),
            (&[4, 0, 3], true),
            (&[0, 2], false),
            (&[2, 3, 4], false),
        ] {
            let members: Vec<Rank> = members.iter().map(|r| Rank(*r)).collect();
            if members.contains(&me) {
                let part = group.subgroup(&members, "part").unwrap();
                assert_eq!(by(&part), two, "{members:?}");
                let mut x = [1.0_f32; 7];
                part.all_reduce(&mut x, Sum).unwrap();
                assert_eq!(x, [members.len() as f32; 7]);
            }
        }
        gone.wait();
        if me == Rank(0) {
            return;
        }
        group.all_reduce(&mut [1.0_f32; 9000], Sum).unwrap_err();
        let left = group.rebuild(Duration::from_secs(20)).unwrap();
        assert!(by(&left));
        let op = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::TwoLevelDirect);
        for n in [1, 4, 1000] {
            let mut x = vec![1.0_f32; n];
            left.run(&op, &mut x).unwrap();
            assert_eq!(x, vec![4.0; n]);
        }
    });
}

/// One of four stops as it folds its neighbour's contribution where that lies; the others time out, fill their buffers with something else, and let it go on. Nothing of it counts.
#[test]
fn who_folds_too_late_does_not_end_well_and_changes_nothing() {
    let gate = Arc::new(Gate::default());
    gate.shut();
    let seats = mapped::rings(4, |rank, heap| {
        Gated(heap, (rank == Rank(2)).then(|| Arc::clone(&gate)))
    });
    let mut settings = EngineConfig::default().with_timeout(Duration::from_secs(2));
    settings.grace = Duration::from_secs(2);
    mapped::agree(&mut settings, 4);
    settings.nodes = Some([0, 0, 1, 1].into());
    let (refilled, over) = (Barrier::new(3), Barrier::new(4));
    let ended = common::run(seats, &settings, |_, group| {
        let me = group.rank();
        let mut x = group.buffer::<f32>(LONG);
        let registered = x.is_registered();
        x.fill(1.0);
        let op = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::TwoLevelDirect);
        let ended = group.run(&op, &mut x);
        // Nothing is asserted while others wait.
        if me != Rank(2) {
            x.fill(100.0 + me.0 as f32);
            gate.wait_held();
            refilled.wait();
            if me == Rank(0) {
                gate.open();
            }
        }
        over.wait();
        let kept = x.iter().all(|v| *v == 100.0 + me.0 as f32);
        (registered, ended.unwrap_err(), kept)
    });
    for (rank, (registered, e, kept)) in ended.into_iter().enumerate() {
        assert!(registered);
        assert!(!matches!(e.cause(), Cause::Internal { .. }), "{e}");
        if rank != 2 {
            assert!(e.culprits().contains(&Rank(2)), "{e}");
            assert!(kept, "{rank}");
        }
    }
}

/// Of what others have a rank copies results alone: contributions it folds where they lie, each once.
#[test]
fn contributions_in_registered_memory_are_folded_where_they_lie() {
    const EVEN: usize = 1 << 17;
    for (algorithm, results) in [
        // The neighbour's half, and of the own one the counterpart's.
        (Algorithm::TwoLevelDirect, EVEN / 2 + EVEN / 4),
        (Algorithm::Direct, EVEN / 4 * 3),
    ] {
        let gates = [(); 4].map(|()| Arc::new(Gate::default()));
        let seats = mapped::rings(4, |rank, heap| {
            Gated(heap, Some(Arc::clone(&gates[rank.idx()])))
        });
        let mut settings = config();
        mapped::agree(&mut settings, 4);
        settings.nodes = Some([0, 0, 1, 1].into());
        common::run(seats, &settings, |_, group| {
            let op = Op::new(Kind::AllReduce(Reduce::Sum)).by(algorithm);
            let mut x = group.buffer::<f32>(EVEN);
            x.fill(1.0);
            let gate = &gates[group.rank().idx()];
            let before = gate.copied();
            group.run_buf(&op, &mut x).unwrap();
            assert!(x.iter().all(|v| *v == 4.0));
            assert_eq!(gate.copied() - before, 4 * results as u64, "{algorithm}");
        });
    }
}

/// What is started many times, and several at once, on lanes of their own.
#[test]
fn repeated_operations_fold_where_contributions_lie_each_time() {
    let nodes: Arc<[u32]> = [0, 1, 0, 1].into();
    for over in [Over::Rings, Over::Threads] {
        run(over, &config(), &nodes, |group| {
            let me = group.rank().0 as f32;
            let op = |lane| {
                let op = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::TwoLevelDirect);
                op.on(Lane(lane))
            };
            let make = |lane| {
                group
                    .persistent(op(lane), group.buffer::<f32>(LONG))
                    .unwrap()
            };
            let mut all = [make(1), make(2), make(3)];
            for t in 1..5 {
                for (lane, x) in (1..).zip(&mut all) {
                    x.elements().unwrap().fill(me + (t * lane) as f32);
                    x.start().unwrap();
                }
                for (lane, x) in (1..).zip(&mut all) {
                    x.wait().unwrap();
                    let want = 6.0 + (4 * t * lane) as f32;
                    assert!(
                        x.elements().unwrap().iter().all(|v| *v == want),
                        "{t} {lane}"
                    );
                }
            }
        });
    }
}

#[test]
fn threads_without_mapped_memory_have_nodes_too() {
    for world in [4, 5] {
        for nodes in layouts(world) {
            let mut settings = config();
            settings.hosts = Some(vec![0; world as usize].into());
            settings.nodes = Some(Arc::clone(&nodes));
            Link::Threads.local(world, &settings, |_, group| {
                for n in [0, 1, 101, LONG] {
                    check::<f32>(&group, Reduce::Sum, n);
                }
            });
        }
    }
}
