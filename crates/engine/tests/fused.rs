//! Operations over memory that all ranks have mapped: the bits of `direct`, one pass, and nobody writes late.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod common;

use common::{
    Link, WORLDS, config, lengths,
    mapped::{self, Gate, Gated},
    number::Number,
};
use gaggle_core::{
    Algorithm, Bool, Buffer, Cause, Counts, Divisor, Element, Form, Group, Kind, Lane, LinkStats,
    Mean, Op, Rank, Reduce, Round, Sum, Weight, raw::bytes_of,
};
use gaggle_engine::EngineConfig;
use half::{bf16, f16};
use std::{sync::Arc, time::Duration};

/// Whose memory is what.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Memory {
    Registered,
    Plain,
    /// Registered on even ranks.
    Mixed,
    /// Registered, but what is out of place is written to ordinary memory.
    PlainOutput,
}

impl Memory {
    fn buffer<T: Element>(self, group: &Group, output: bool, n: usize) -> Buffer<T> {
        let plain = match self {
            Memory::Registered => false,
            Memory::Plain => true,
            Memory::Mixed => group.rank().0 % 2 == 1,
            Memory::PlainOutput => output,
        };
        match plain {
            true => Buffer::ordinary(n),
            false => group.buffer(n),
        }
    }
}

fn contribution<T: Number>(rank: Rank, n: usize) -> Vec<T> {
    let value = |i: usize| T::of(7 * i as i64 + 1_000_003 * i64::from(rank.0) + 5);
    (0..n).map(value).collect()
}

/// Every kind that has a fused plan, on `n` elements per rank or part; weights and divisors of all sorts.
fn operations(reduces: &[Reduce], world: u32, n: usize) -> Vec<Op> {
    let counts: Vec<u64> = (0..u64::from(world))
        .map(|r| (r * 3 + n as u64) % 5)
        .collect();
    let mut ops = vec![
        Op::new(Kind::Broadcast {
            root: Rank(world - 1),
        }),
        Op::new(Kind::AllGather(Counts::Equal)),
        Op::new(Kind::AllGather(Counts::known(&counts))),
        Op::new(Kind::AllToAll {
            send: Counts::Equal,
            recv: Counts::Equal,
        }),
        Op::new(Kind::Gather {
            root: Rank(world / 2),
            counts: Counts::known(&counts),
        }),
        Op::new(Kind::Scatter {
            root: Rank(world / 2),
            counts: Counts::known(&counts),
        }),
    ];
    for &reduce in reduces {
        ops.push(Op::new(Kind::AllReduce(reduce)));
        for counts in [Counts::Equal, Counts::known(&counts)] {
            ops.push(Op::new(Kind::ReduceScatter { reduce, counts }));
        }
    }
    if reduces.contains(&Reduce::Mean) {
        let mut op = Op::new(Kind::AllReduce(Reduce::Mean));
        op.divisor = Divisor::InitialWorld;
        ops.push(op);
    }
    ops
}

/// Elements that are read and written, out of place; in place it is the longer.
fn shape(op: &Op, group: &Group, n: usize) -> (usize, usize) {
    let (me, world) = (group.rank().idx(), group.size());
    let parts = |counts: &Counts| match counts {
        Counts::Known(c) => (c[me] as usize, c.iter().sum::<u64>() as usize),
        _ => (n, n * world),
    };
    match &op.kind {
        Kind::AllGather(counts) => parts(counts),
        Kind::ReduceScatter { counts, .. } => {
            let (own, all) = parts(counts);
            (all, own)
        }
        Kind::AllToAll { .. } => (n * world, n * world),
        Kind::Gather { root, counts } => match (parts(counts), root.idx() == me) {
            (parts, true) => parts,
            ((own, _), false) => (own, 0),
        },
        Kind::Scatter { root, counts } => match (parts(counts), root.idx() == me) {
            ((own, all), true) => (all, own),
            ((own, _), false) => (0, own),
        },
        Kind::Broadcast { root } if root.idx() != me => (0, n),
        _ => (n, n),
    }
}

/// Runs an operation and returns what it has promised to leave, as bytes.
fn outcome<T: Number>(group: &Group, op: &Op, memory: Memory, n: usize, in_place: bool) -> Vec<u8> {
    let (read, written) = shape(op, group, n);
    let me = group.rank();
    let result = |y: &[T]| bytes_of(y).to_vec();
    if !in_place {
        let mut x = memory.buffer::<T>(group, false, read);
        x.copy_from_slice(&contribution::<T>(me, read));
        let mut y = memory.buffer::<T>(group, true, written);
        group.run_into(op, &x, &mut y).unwrap();
        assert_eq!(bytes_of(&x[..]), bytes_of(&contribution::<T>(me, read)));
        return result(&y);
    }
    let all = read.max(written);
    let mut x = memory.buffer::<T>(group, true, all);
    x.copy_from_slice(&contribution::<T>(me, all));
    group.run_buf(op, &mut x).unwrap();
    // In place a reduce-scatter promises the own part alone.
    let own = match &op.kind {
        Kind::ReduceScatter { counts, .. } => match counts {
            Counts::Known(c) => {
                let at = c[..me.idx()].iter().sum::<u64>() as usize;
                at..at + c[me.idx()] as usize
            }
            _ => me.idx() * n..(me.idx() + 1) * n,
        },
        _ => 0..all,
    };
    result(&x[own])
}

fn like_direct<T: Number>(group: &Group, reduces: &[Reduce], lens: &[usize], fusion: bool) {
    let memories: &[Memory] = match fusion {
        true => &[
            Memory::Registered,
            Memory::Plain,
            Memory::Mixed,
            Memory::PlainOutput,
        ],
        false => &[Memory::Registered],
    };
    for &n in lens {
        for mut op in operations(reduces, group.size() as u32, n) {
            // One rank has nothing to give, the others different shares.
            let share = [2.0, 0.0, 1.5, 0.25][group.rank().idx() % 4];
            op.weight = Weight::from_f64(share).unwrap();
            for in_place in [true, false] {
                let direct = op.clone().by(Algorithm::Direct);
                let want = outcome::<T>(group, &direct, Memory::Plain, n, in_place);
                let fused = op.clone().by(Algorithm::Fused);
                for &memory in memories {
                    let got = outcome::<T>(group, &fused, memory, n, in_place);
                    let kind = &op.kind;
                    assert_eq!(
                        got,
                        want,
                        "{kind:?} of {n} {}, {memory:?}, in place {in_place}",
                        T::DTYPE
                    );
                }
            }
        }
    }
}

const FLOATS: [Reduce; 4] = [Reduce::Sum, Reduce::Mean, Reduce::Max, Reduce::Prod];
const INTS: [Reduce; 3] = [Reduce::Sum, Reduce::Min, Reduce::Bxor];

fn all_types(link: Link, config: &EngineConfig, world: u32, fusion: bool) {
    link.local(world, config, |_, group| {
        like_direct::<f32>(&group, &FLOATS, &lengths(world), fusion);
        if ![1, 2, 3, 8].contains(&world) {
            return;
        }
        let lens = [world as usize + 1];
        like_direct::<f64>(&group, &FLOATS, &lens, fusion);
        like_direct::<f16>(&group, &FLOATS, &lens, fusion);
        like_direct::<bf16>(&group, &FLOATS, &lens, fusion);
        like_direct::<i32>(&group, &INTS, &lens, fusion);
        like_direct::<i64>(&group, &INTS, &lens, fusion);
        like_direct::<u8>(&group, &INTS, &lens, fusion);
        like_direct::<i8>(&group, &INTS, &lens, fusion);
        like_direct::<i16>(&group, &INTS, &lens, fusion);
        like_direct::<u16>(&group, &INTS, &lens, fusion);
        like_direct::<u32>(&group, &INTS, &lens, fusion);
        like_direct::<u64>(&group, &INTS, &lens, fusion);
        like_direct::<Bool>(&group, &[Reduce::Sum, Reduce::Prod], &lens, fusion);
    });
}

#[test]
fn registered_plain_and_mixed_buffers_give_the_bits_of_direct() {
    for world in WORLDS {
        all_types(Link::Mapped, &config(), world, true);
    }
}

#[test]
fn in_one_process_they_do_too() {
    for world in WORLDS {
        all_types(Link::Lent, &config(), world, true);
    }
}

#[test]
fn without_fusion_the_results_are_the_same() {
    let mut config = config();
    config.fusion = false;
    for world in [1, 2, 3, 8] {
        all_types(Link::Mapped, &config, world, false);
        all_types(Link::Lent, &config, world, false);
        Link::Mapped.local(world, &config, |_, group| {
            let mut x = group.buffer::<f32>(1 << 18);
            let before = group.communicator().stats();
            group.all_reduce(&mut x, Sum).unwrap();
            let sent = group.communicator().stats().since(&before).payload_sent;
            let least = if world == 1 { 0 } else { 1 << 18 };
            assert!(sent >= least, "{sent} bytes");
        });
    }
}

/// Several tiles and slices, which end in the middle.
#[test]
fn long_vectors_take_one_pass_and_no_message_of_theirs() {
    for (world, n) in [(2, 300_007), (3, 200_003), (5, 100_003)] {
        Link::Mapped.local(world, &config(), |_, group| {
            let op = Op::new(Kind::AllReduce(Reduce::Mean));
            assert!(group.explain::<f32>(&op, n).unwrap().contains("by fused"));
            let x = contribution::<f32>(group.rank(), n);
            let mut want = x.clone();
            group
                .run(&op.clone().by(Algorithm::Direct), &mut want)
                .unwrap();
            let mut y = group.buffer::<f32>(n);
            assert!(y.is_registered());
            y.copy_from_slice(&x);
            let before = group.communicator().stats();
            group.all_reduce(&mut y, Mean).unwrap();
            let sent = group.communicator().stats().since(&before).payload_sent;
            assert!(sent < 1000, "{sent} bytes");
            assert_eq!(bytes_of(&y[..]), bytes_of(&want));
            // What an operation owns is as good as what it is lent, and comes back.
            y.copy_from_slice(&x);
            let y = group.start(op, y).wait().unwrap();
            assert_eq!(bytes_of(&y[..]), bytes_of(&want));
        });
    }
}

/// Buckets in one arena: each on pages of its own, and one that is not.
#[test]
fn parts_of_a_buffer_are_as_good_as_the_whole() {
    Link::Mapped.local(2, &config(), |_, group| {
        let mut arena = group.buffer::<f32>(10 * 1024 + 100);
        let me = group.rank();
        for (lo, hi, fused) in [
            (0, 4096, true),
            (4096, 10 * 1024 + 100, true),
            // Not alone on its pages: through staging memory.
            (100, 5000, true),
        ] {
            arena[..].fill(-1.0);
            let op = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::Fused);
            let part = &mut arena[lo..hi];
            part.copy_from_slice(&contribution::<f32>(me, hi - lo));
            let before = group.communicator().stats();
            group.run(&op, part).unwrap();
            let sent = group.communicator().stats().since(&before).payload_sent;
            assert_eq!(sent < 1000, fused, "{lo}..{hi}: {sent} bytes");
            let (a, b) = (
                contribution::<f32>(Rank(0), hi - lo),
                contribution::<f32>(Rank(1), hi - lo),
            );
            let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
            assert_eq!(arena[lo..hi], want);
            assert!(arena[..lo].iter().chain(&arena[hi..]).all(|x| *x == -1.0));
        }
    });
}

#[test]
fn an_operation_that_is_set_up_chooses_as_a_call_does() {
    for persistent in [&[0, 1, 2][..], &[0], &[1, 2]] {
        Link::Mapped.local(3, &config(), |_, group| {
            let mut x = group.buffer::<f32>(5000);
            x.fill(1.0);
            let op = Op::new(Kind::AllReduce(Reduce::Sum));
            let x = if persistent.contains(&group.rank().0) {
                let mut again = group.persistent(op, x).unwrap();
                for _ in 0..3 {
                    again.start().unwrap();
                    again.wait().unwrap();
                }
                again.into_inner().unwrap()
            } else {
                for _ in 0..3 {
                    group.all_reduce(&mut x, Sum).unwrap();
                }
                x
            };
            assert!(x.iter().all(|x| *x == 27.0));
        });
    }
}

/// Operations whose messages are longer than what is always copied, on `n` elements per message.
fn by_messages(group: &Group, n: usize) -> Vec<Op> {
    let (me, world) = (group.rank().0, group.size() as u32);
    let ring = |form, keep, scale| {
        let (before, after) = ((me + world - 1) % world, (me + 1) % world);
        let mut from = vec![(Rank(before), 0.3)];
        let mut to = vec![(Rank(after), scale)];
        if before != after {
            from.push((Rank(after), 0.25));
            to.push((Rank(before), 1.0));
        }
        if world == 1 {
            (from, to) = (vec![], vec![]);
        }
        Round {
            from,
            to,
            keep,
            form,
        }
    };
    let at = |round, t| Op::new(Kind::Mix { round, t });
    let keep = if world == 2 { 0.7 } else { 0.45 };
    let counts = |r: u32| -> Vec<u64> {
        (0..world)
            .map(|s| u64::from((r + s) % 3) * n as u64 / 2)
            .collect()
    };
    let known: Vec<u64> = (0..u64::from(world)).map(|r| r * n as u64).collect();
    let root = Rank(world / 2);
    // Pairs of ranks in a ring, or all in one machine.
    let size = if world.is_multiple_of(2) { 2 } else { world };
    let machines: Vec<Vec<Rank>> = (0..world / size)
        .map(|m| (m * size..(m + 1) * size).map(Rank).collect())
        .collect();
    let (home, count) = (me / size, world / size);
    let beside = |by: u32| (count > 1).then(|| Rank((home + by) % count));
    let between = Round {
        from: beside(count - 1).map(|m| (m, 0.375)).into_iter().collect(),
        to: beside(1).map(|m| (m, 1.0)).into_iter().collect(),
        keep: if count > 1 { 0.625 } else { 1.0 },
        form: Form::Delta,
    };
    vec![
        Op::new(Kind::HierarchicalMix {
            machines: machines.into(),
            round: between,
            t: 20,
        }),
        at(ring(Form::Delta, keep, 1.0), 0),
        at(ring(Form::Sum, 0.5, 1.0), 1),
        at(ring(Form::Sum, 0.5, -2.0), 2),
        Op::new(Kind::AllToAll {
            send: Counts::Equal,
            recv: Counts::Equal,
        })
        .by(Algorithm::Direct),
        Op::new(Kind::AllToAll {
            send: Counts::known(&counts(me)),
            recv: Counts::known(&counts(me)),
        }),
        Op::new(Kind::Gather {
            root,
            counts: Counts::known(&known),
        })
        .by(Algorithm::Direct),
        Op::new(Kind::Scatter {
            root,
            counts: Counts::Equal,
        })
        .by(Algorithm::Direct),
        Op::new(Kind::Reduce {
            root,
            reduce: Reduce::Sum,
        }),
        Op::new(Kind::AllReduce(Reduce::Mean)).by(Algorithm::Ring),
    ]
}

/// Elements read and written out of place.
fn lens(op: &Op, group: &Group, n: usize) -> (usize, usize) {
    let (me, world) = (group.rank(), group.size());
    let sum = |c: &Counts| match c {
        Counts::Known(c) => c.iter().sum::<u64>() as usize,
        _ => n * world,
    };
    let own = |c: &Counts| match c {
        Counts::Known(c) => c[me.idx()] as usize,
        _ => n,
    };
    match &op.kind {
        Kind::AllToAll { send, recv } => (sum(send), sum(recv)),
        Kind::Gather { root, counts } if *root == me => (own(counts), sum(counts)),
        Kind::Gather { counts, .. } => (own(counts), 0),
        Kind::Scatter { root, counts } if *root == me => (sum(counts), own(counts)),
        Kind::Scatter { counts, .. } => (0, own(counts)),
        Kind::Reduce { root, .. } if *root != me => (n, 0),
        _ => (n, n),
    }
}

/// What an operation leaves, out of place and in place where it has that form, on memory of some kind; and what went over the links.
fn left<T: Number>(group: &Group, op: &Op, memory: Memory, n: usize) -> (Vec<Vec<u8>>, LinkStats) {
    let (read, written) = lens(op, group, n);
    let before = group.communicator().stats();
    let mut x = memory.buffer::<T>(group, false, read);
    x.copy_from_slice(&contribution::<T>(group.rank(), read));
    let mut y = memory.buffer::<T>(group, true, written);
    let mut results = vec![];
    group.run_into(op, &x, &mut y).unwrap();
    results.push(bytes_of(&y[..]).to_vec());
    let mut op = op.clone();
    let in_place = match &mut op.kind {
        Kind::Mix { t, .. } | Kind::HierarchicalMix { t, .. } => {
            *t += 10;
            true
        }
        Kind::AllReduce(_) => true,
        _ => false,
    };
    if in_place {
        group.run_buf(&op, &mut x).unwrap();
        results.push(bytes_of(&x[..]).to_vec());
    }
    (results, group.communicator().stats().since(&before))
}

fn stay_where_they_are<T: Number>(world: u32, n: usize, fusion: bool) {
    let mut config = config();
    mapped::agree(&mut config, world);
    config.fusion = fusion;
    common::run(mapped::rings(world, |_, heap| heap), &config, |_, group| {
        let memories = [
            Memory::Plain,
            Memory::Registered,
            Memory::Mixed,
            Memory::PlainOutput,
        ];
        let (mut frames, mut payload, mut lent) = ([0; 4], [0; 4], [0; 4]);
        for (k, op) in by_messages(&group, n).into_iter().enumerate() {
            let mut want = None;
            for (i, memory) in memories.into_iter().enumerate() {
                let op = op.clone().on(Lane((4 * k + i) as u32));
                let (got, sent) = left::<T>(&group, &op, memory, n);
                frames[i] += sent.frames_sent;
                payload[i] += sent.payload_sent;
                lent[i] += sent.lent_sent;
                let want = want.get_or_insert_with(|| got.clone());
                assert!(got == *want, "{memory:?}, {n} {}", T::DTYPE);
            }
        }
        // In their heaps they are one frame each, through the rings several; averages are lent as copies.
        let long = n * size_of::<T>() > 200_000 && world > 1;
        match (long, fusion) {
            (true, true) => {
                assert!(3 * frames[1] < 2 * frames[0], "{frames:?}");
                // What stays where it is has gone over no link.
                assert!(2 * payload[1] < payload[0], "{payload:?} {lent:?}");
                assert!(2 * lent[1] > payload[0], "{payload:?} {lent:?}");
            }
            (_, false) => assert!(3 * frames[1] >= 2 * frames[0], "{frames:?}"),
            _ => {}
        }
    });
}

#[test]
fn messages_out_of_registered_memory_stay_where_they_are_and_bring_the_same() {
    for world in WORLDS {
        stay_where_they_are::<f32>(world, 10_007, true);
    }
    stay_where_they_are::<f32>(2, 150_001, true);
    stay_where_they_are::<f32>(3, 150_001, true);
    stay_where_they_are::<f32>(3, 150_001, false);
    // More slices than are copied at a time.
    stay_where_they_are::<f32>(3, 700_001, true);
    stay_where_they_are::<f64>(2, 20_011, true);
    stay_where_they_are::<bf16>(3, 40_009, true);
    stay_where_they_are::<f16>(5, 20_001, true);
}

#[test]
fn who_reads_too_late_does_not_end_well_and_changes_nothing() {
    read_too_late(true);
    read_too_late(false);
}

/// One of three stops as it reads a neighbour's memory; the others time out, fill their buffers with something else, and let it go on.
fn read_too_late(in_place: bool) {
    const N: usize = 50_000;
    let gate = Arc::new(Gate::default());
    gate.shut();
    let seats = mapped::rings(3, |rank, heap| {
        Gated(heap, (rank == Rank(2)).then(|| Arc::clone(&gate)))
    });
    let mut config = impatient();
    mapped::agree(&mut config, 3);
    let refilled = std::sync::Barrier::new(2);
    let over = std::sync::Barrier::new(3);
    common::run(seats, &config, |_, group| {
        let me = group.rank();
        let others = || (0..3).map(Rank).filter(|r| *r != me);
        let round = Round {
            from: others().map(|r| (r, 0.25)).collect(),
            to: others().map(|r| (r, 1.0)).collect(),
            keep: 0.5,
            form: Form::Delta,
        };
        let mut x = group.buffer::<f32>(N);
        assert!(x.is_registered());
        x.copy_from_slice(&contribution::<f32>(me, N));
        let op = Op::new(Kind::Mix { round, t: 0 });
        let e = match in_place {
            true => group.run(&op, &mut x).unwrap_err(),
            false => {
                let mut y = group.buffer::<f32>(N);
                group.run_into(&op, &x, &mut y).unwrap_err()
            }
        };
        if me == Rank(2) {
            assert!(!matches!(e.cause(), Cause::Internal { .. }), "{e}");
        } else {
            assert_eq!(e.culprits(), [Rank(2)], "{e}");
            // Whatever is there now is this rank's alone.
            x.fill(100.0 + me.0 as f32);
            gate.wait_held();
            refilled.wait();
            if me == Rank(0) {
                gate.open();
            }
        }
        over.wait();
        if me != Rank(2) {
            assert!(x.iter().all(|x| *x == 100.0 + me.0 as f32));
        }
    });
}

fn impatient() -> EngineConfig {
    let mut config = EngineConfig::default().with_timeout(Duration::from_millis(300));
    config.grace = Duration::from_millis(300);
    config
}

/// One of three stops in the middle of a step; the others time out, fill their buffers with something else, and let it go on.
fn straggler(op: &Op, sum: f32) {
    stragglers(op, sum, Memory::Registered);
    stragglers(op, sum, Memory::Plain);
    stragglers(op, sum, Memory::Mixed);
}

fn stragglers(op: &Op, sum: f32, memory: Memory) {
    const N: usize = 50_000;
    let gate = Arc::new(Gate::default());
    gate.shut();
    let seats = mapped::seats_of_one_process(3, |rank, heap| {
        Gated(heap, (rank == Rank(2)).then(|| Arc::clone(&gate)))
    });
    let mut config = impatient();
    mapped::agree(&mut config, 3);
    let refilled = std::sync::Barrier::new(2);
    let over = std::sync::Barrier::new(3);
    common::run(seats, &config, |_, group| {
        let me = group.rank();
        let mut x = memory.buffer::<f32>(&group, false, N);
        x.copy_from_slice(&contribution::<f32>(me, N));
        let e = group.run(op, &mut x).unwrap_err();
        if me == Rank(2) {
            assert!(!matches!(e.cause(), Cause::Internal { .. }), "{e}");
        } else {
            let Cause::Timeout {
                waiting_for,
                partly_written,
                ..
            } = e.cause()
            else {
                panic!("{e}");
            };
            assert_eq!(
                (waiting_for.as_slice(), *partly_written),
                (&[Rank(2)][..], true),
                "{e}"
            );
            // Whatever is there now is this rank's alone.
            x.fill(100.0 + me.0 as f32);
            gate.wait_held();
            refilled.wait();
            if me == Rank(0) {
                gate.open();
            }
        }
        // The straggler has had its end.
        over.wait();
        if me != Rank(2) {
            assert!(x.iter().all(|v| *v == 100.0 + me.0 as f32));
        }
        over.wait();
        // A severed buffer goes by messages from now on.
        x.fill(1.0);
        group.run(op, &mut x).unwrap();
        assert!(x[..N / 3].iter().all(|v| *v == sum));
    });
}

#[test]
fn nobody_writes_to_memory_that_was_handed_back() {
    straggler(
        &Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::Fused),
        3.0,
    );
}

#[test]
fn nobody_ends_well_with_what_it_has_read_of_memory_that_was_handed_back() {
    let op = Op::new(Kind::AllGather(Counts::known(&[17_000, 17_000, 16_000])));
    straggler(&op.by(Algorithm::Fused), 1.0);
}

/// One of three stops where it is at the others' ordinary memory: they time out, and have it back no sooner than it has left.
#[test]
fn nobody_has_memory_back_while_another_is_at_it() {
    const N: usize = 50_000;
    let gate = Arc::new(Gate::inside());
    gate.shut();
    let seats = mapped::seats_of_one_process(3, |rank, heap| {
        let gate = match rank {
            Rank(2) => Arc::clone(&gate),
            // The first one is at whose memory it stops.
            _ => Arc::new(Gate::opening(&gate)),
        };
        Gated(heap, Some(gate))
    });
    let mut config = impatient();
    mapped::agree(&mut config, 3);
    let over = std::sync::Barrier::new(3);
    common::run(seats, &config, |_, group| {
        let me = group.rank();
        let mut x = vec![1.0f32; N];
        let op = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::Fused);
        let e = group.run(&op, &mut x).unwrap_err();
        let left = gate.has_left();
        x.fill(100.0 + me.0 as f32);
        over.wait();
        assert!(!matches!(e.cause(), Cause::Internal { .. }), "{e}");
        assert!(me != Rank(0) || left, "it was still there");
        assert!(x.iter().all(|v| *v == 100.0 + me.0 as f32));
    });
}

/// Where it lies, without a block of staging memory.
#[test]
fn ordinary_memory_of_one_process_is_where_it_is_folded() {
    let gates = [(); 2].map(|()| Arc::new(Gate::default()));
    let seats = mapped::seats_of_one_process(2, |rank, heap| {
        Gated(heap, Some(Arc::clone(&gates[rank.idx()])))
    });
    let mut config = config();
    mapped::agree(&mut config, 2);
    common::run(seats, &config, |_, group| {
        let op = Op::new(Kind::AllReduce(Reduce::Sum));
        let why = group.explain::<f32>(&op, 5000).unwrap();
        assert!(why.contains("ordinary memory where it lies"), "{why}");
        let gate = &gates[group.rank().idx()];
        for memory in [Memory::Registered, Memory::Plain] {
            let mut x = memory.buffer::<f32>(&group, false, 5000);
            x.fill(1.0);
            assert!(!gate.has_left());
            group.run_buf(&op, &mut x).unwrap();
            assert!(x.iter().all(|v| *v == 2.0));
        }
        assert!(gate.has_left());
        assert_eq!(gate.copied(), 0);
    });
}

#[test]
fn whoever_comes_late_changes_nothing() {
    for memory in [Memory::Registered, Memory::Plain, Memory::Mixed] {
        come_late(memory);
    }
}

fn come_late(memory: Memory) {
    let mut config = impatient();
    mapped::agree(&mut config, 3);
    let timed_out = std::sync::Barrier::new(3);
    Link::Lent.local(3, &config, |_, group| {
        let mut x = memory.buffer::<f32>(&group, false, 10_000);
        x.fill(1.0);
        let op = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::Fused);
        if group.rank() != Rank(2) {
            let e = group.run(&op, &mut x).unwrap_err();
            assert!(matches!(e.cause(), Cause::Timeout { .. }), "{e}");
            x.fill(5.0);
        }
        timed_out.wait();
        if group.rank() == Rank(2) {
            group.run(&op, &mut x).unwrap_err();
        }
        timed_out.wait();
        assert!(group.rank() == Rank(2) || x.iter().all(|v| *v == 5.0));
        x.fill(2.0);
        group.run(&op, &mut x).unwrap();
        assert!(x.iter().all(|v| *v == 6.0));
    });
}

#[test]
fn a_mismatch_leaves_mapped_memory_as_it_was() {
    Link::Mapped.local(3, &config(), |_, group| {
        let n = 5000 + usize::from(group.rank() == Rank(1));
        let mut x = group.buffer::<f32>(n);
        x.fill(3.0);
        let op = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::Fused);
        let e = group.run(&op, &mut x).unwrap_err();
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
        // Nobody leaves before the others have heard of it, and the group works on.
        group.run(&op, &mut x[..1024]).unwrap();
        assert!(x[..1024].iter().all(|v| *v == 9.0));
    });
}
