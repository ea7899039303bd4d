//! Every collective on real ranks: results against a serial reference, the same bits everywhere, mistakes refused.

use crate::LINK;
use crate::common::{WORLDS, config, lengths};
use gaggle_core::{
    Algorithm, Cause, Codec, Counts, Element, Float, Form, Kind, Lane, Max, Mean, Min, Op, Prod,
    Rank, Reduce, Round, Sum, Weight,
};
use half::{bf16, f16};

const ALL_REDUCE: [Algorithm; 8] = [
    Algorithm::Ring,
    Algorithm::RecursiveDoubling,
    Algorithm::Direct,
    Algorithm::HalvingDoubling,
    Algorithm::Binomial,
    Algorithm::Knomial,
    Algorithm::DoubleTree,
    Algorithm::Exchange,
];

/// Small integers, so that every order of adding them is exact in every type.
fn value(rank: u32, i: usize) -> i64 {
    i64::from(rank) + 1 + (i % 5) as i64
}

fn reference(reduce: Reduce, world: u32, i: usize) -> f64 {
    let values = (0..world).map(|r| value(r, i));
    match reduce {
        Reduce::Sum => values.sum::<i64>() as f64,
        Reduce::Mean => values.sum::<i64>() as f64 / f64::from(world),
        Reduce::Min => values.min().unwrap() as f64,
        Reduce::Max => values.max().unwrap() as f64,
        Reduce::Prod => values.product::<i64>() as f64,
        other => panic!("{other} of floats"),
    }
}

trait Number: Element {
    fn of(v: i64) -> Self;
    fn back(self) -> f64;
    /// What this type makes of the exact result.
    fn nearest(v: f64) -> f64;
}

macro_rules! floats {
    ($($t:ty),*) => {$(
        impl Number for $t {
            fn of(v: i64) -> Self { <$t as Float>::from_f64(v as f64) }
            fn back(self) -> f64 { Float::to_f64(self) }
            fn nearest(v: f64) -> f64 { Float::to_f64(<$t as Float>::from_f64(v)) }
        }
    )*};
}
macro_rules! ints {
    ($($t:ty),*) => {$(
        impl Number for $t {
            fn of(v: i64) -> Self { v as $t }
            fn back(self) -> f64 { self as f64 }
            fn nearest(v: f64) -> f64 { (v as i64 as $t) as f64 }
        }
    )*};
}
floats!(f32, f64, f16, bf16);
ints!(i32, i64, u8);

fn check_all_reduce<T: Number>(reduces: &[Reduce]) {
    for world in WORLDS {
        let results = LINK.local(world, &config(), |_, group| {
            let mut all = vec![];
            for algorithm in ALL_REDUCE {
                for reduce in reduces {
                    for len in lengths(world) {
                        let mut x: Vec<T> =
                            (0..len).map(|i| T::of(value(group.rank().0, i))).collect();
                        let op = Op::new(Kind::AllReduce(*reduce)).by(algorithm);
                        group.run(&op, &mut x).unwrap();
                        all.push((algorithm, *reduce, x));
                    }
                }
            }
            all
        });
        for (rank, result) in results.iter().enumerate() {
            for ((algorithm, reduce, x), (_, _, first)) in result.iter().zip(&results[0]) {
                assert_eq!(
                    x, first,
                    "rank {rank} differs from rank 0: {algorithm} {reduce}"
                );
                for (i, v) in x.iter().enumerate() {
                    let (got, want) = (v.back(), T::nearest(reference(*reduce, world, i)));
                    let close = (got - want).abs() <= want.abs() * 1e-6;
                    assert!(
                        close,
                        "{algorithm} {reduce} of {} {}, element {i}: {got}, not {want}",
                        x.len(),
                        T::DTYPE
                    );
                }
            }
        }
    }
}

#[test]
fn all_reduce_of_f32_and_f64() {
    check_all_reduce::<f32>(&Reduce::ALL[..5]);
    check_all_reduce::<f64>(&Reduce::ALL[..5]);
}

#[test]
fn all_reduce_of_16_bit_floats_rounds_once() {
    // Products of eight small numbers overflow f16, which is not the question here.
    check_all_reduce::<f16>(&[Reduce::Sum, Reduce::Mean, Reduce::Min, Reduce::Max]);
    check_all_reduce::<bf16>(&[Reduce::Sum, Reduce::Mean, Reduce::Min, Reduce::Max]);
}

#[test]
fn all_reduce_of_integers_wraps() {
    check_all_reduce::<i32>(&[Reduce::Sum, Reduce::Min, Reduce::Max, Reduce::Prod]);
    check_all_reduce::<i64>(&[Reduce::Sum, Reduce::Min, Reduce::Max, Reduce::Prod]);
    check_all_reduce::<u8>(&[Reduce::Sum, Reduce::Min, Reduce::Max, Reduce::Prod]);
}

/// Operations that only move elements keep every bit, of signalling NaNs too, wherever the elements lie on the way.
#[test]
fn every_bit_pattern_of_16_bits_comes_through() {
    const WORLD: u32 = 7;
    const LEN: usize = 1 << 16;
    let pattern = |rank: usize, i: usize| (i as u16).wrapping_mul(40_503) ^ (rank as u16) << 3;
    let part = |rank: usize| (0..LEN).map(move |i| pattern(rank, i));
    let root = Rank(2);
    let counts = Counts::Equal;
    LINK.local(WORLD, &config(), |_, group| {
        let me = group.rank().idx();
        let all = || (0..WORLD as usize).flat_map(part);
        let f16s = |bits: &[u16]| -> Vec<f16> { bits.iter().map(|b| f16::from_bits(*b)).collect() };
        let bits = |x: &[f16]| -> Vec<u16> { x.iter().map(|v| v.to_bits()).collect() };
        let own: Vec<f16> = f16s(&part(me).collect::<Vec<_>>());
        let mut whole = f16s(&vec![
            0;
            if me == root.idx() {
                WORLD as usize * LEN
            } else {
                0
            }
        ]);
        let gather = Kind::Gather {
            root,
            counts: counts.clone(),
        };
        let op = Op::new(gather).by(Algorithm::Binomial);
        group.run_into(&op, &own, &mut whole).unwrap();
        if me == root.idx() {
            assert!(bits(&whole).into_iter().eq(all()), "gather");
        }
        let mut back = f16s(&vec![0; LEN]);
        let scatter = Kind::Scatter {
            root,
            counts: counts.clone(),
        };
        let op = Op::new(scatter).by(Algorithm::Binomial);
        group.run_into(&op, &whole, &mut back).unwrap();
        assert_eq!(bits(&back), bits(&own), "scatter");
        for algorithm in [Algorithm::Direct, Algorithm::Bruck] {
            // In place: block j of rank r is pattern(r, ..) moved by j.
            let block = |from: usize, to: usize| part(from).map(move |b| b ^ (to as u16) << 9);
            let sent: Vec<u16> = (0..WORLD as usize).flat_map(|to| block(me, to)).collect();
            let mut x = f16s(&sent);
            let op = Op::new(Kind::AllToAll {
                send: Counts::Equal,
                recv: Counts::Equal,
            });
            group.run(&op.by(algorithm), &mut x).unwrap();
            let want = (0..WORLD as usize).flat_map(|from| block(from, me));
            assert!(bits(&x).into_iter().eq(want), "all_to_all by {algorithm}");
        }
    });
}

#[test]
fn typed_methods_name_the_reduction() {
    LINK.local(3, &config(), |_, group| {
        let r = group.rank().0 as f32;
        let mut x = [r, 1.0];
        group.all_reduce(&mut x, Sum).unwrap();
        assert_eq!(x, [3.0, 3.0]);
        group.all_reduce(&mut x, Mean).unwrap();
        assert_eq!(x, [3.0, 3.0]);
        let mut y = [r];
        group.all_reduce(&mut y, Max).unwrap();
        group.all_reduce(&mut y, Min).unwrap();
        group.all_reduce(&mut y, Prod).unwrap();
        assert_eq!(y, [8.0]);
    });
}

#[test]
fn slices_change_nothing() {
    for world in WORLDS {
        let mut small = config();
        small.slice_bytes = 28;
        let run = |c: &_| {
            LINK.local(world, c, |_, group| {
                ALL_REDUCE.map(|a| {
                    let mut x: Vec<f32> = (0..101)
                        .map(|i| (i * (group.rank().0 + 1)) as f32 * 0.1)
                        .collect();
                    group
                        .run(&Op::new(Kind::AllReduce(Reduce::Mean)).by(a), &mut x)
                        .unwrap();
                    x
                })
            })
        };
        assert_eq!(run(&small), run(&config()), "world {world}");
    }
}

#[test]
fn weighted_means_and_drained_ranks() {
    for world in WORLDS {
        for algorithm in ALL_REDUCE {
            let results = LINK.local(world, &config(), |_, group| {
                let r = group.rank().0;
                // Rank 0 has nothing to say, and says it in NaN.
                let weight = Weight::samples(3 * r);
                let mut x = vec![if r == 0 { f32::NAN } else { r as f32 }; 11];
                let op = Op::new(Kind::AllReduce(Reduce::Mean))
                    .by(algorithm)
                    .weighing(weight);
                let done = group.run(&op, &mut x).unwrap();
                (done.weight.to_f64(), x)
            });
            // Σ r·r / Σ r over the other ranks; nobody contributes in a world of one.
            let (num, den) = (1..world).fold((0.0, 0.0), |(n, d), r| {
                (n + 3.0 * f64::from(r * r), d + 3.0 * f64::from(r))
            });
            for (total, x) in results {
                assert_eq!(total, den, "{algorithm}");
                if world == 1 {
                    assert!(
                        x.iter().all(|v| v.is_nan()),
                        "nobody contributed, so nothing changes"
                    );
                } else {
                    let want = (num / den) as f32;
                    assert!(
                        x.iter().all(|v| (v - want).abs() < 1e-6),
                        "{algorithm} {world}: {x:?}, not {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn nobody_contributes_and_nothing_changes() {
    for algorithm in ALL_REDUCE {
        let results = LINK.local(3, &config(), |_, group| {
            let mut x = vec![f32::from(group.rank().0 as u8) + 0.5; 7];
            let op = Op::new(Kind::AllReduce(Reduce::Mean))
                .by(algorithm)
                .weighing(Weight::ZERO);
            let done = group.run(&op, &mut x).unwrap();
            (done.weight, x)
        });
        for (r, (weight, x)) in results.into_iter().enumerate() {
            assert_eq!(weight, Weight::ZERO);
            assert_eq!(x, vec![r as f32 + 0.5; 7], "{algorithm}");
        }
    }
}

#[test]
fn uneven_batches_weigh_by_samples() {
    // Trial 4c: 3 samples with mean gradient 1, one sample with 5.
    let results = LINK.local(2, &config(), |_, group| {
        let (samples, gradient) = if group.rank() == Rank(0) {
            (3, 1.0f32)
        } else {
            (1, 5.0)
        };
        let mut weighted = [gradient];
        let op = Op::new(Kind::AllReduce(Reduce::Mean)).weighing(Weight::samples(samples));
        group.run(&op, &mut weighted).unwrap();
        let mut plain = [gradient];
        group.all_reduce(&mut plain, Mean).unwrap();
        (weighted[0], plain[0])
    });
    assert_eq!(results, [(2.0, 3.0), (2.0, 3.0)]);
}

#[test]
fn bf16_on_the_wire_rounds_once() {
    for world in WORLDS {
        let results = LINK.local(world, &config(), |_, group| {
            let mut x: Vec<f32> = (0..101)
                .map(|i| 1.0 + (i as f32) / 97.0 + group.rank().0 as f32)
                .collect();
            let op = Op::new(Kind::AllReduce(Reduce::Mean)).coded_always(Codec::Bf16);
            let done = group.run(&op, &mut x).unwrap();
            (done.bytes_sent, x)
        });
        for (_, x) in &results {
            assert_eq!(x, &results[0].1, "all ranks hold the same bits");
            for (i, v) in x.iter().enumerate() {
                let exact: f64 = (0..world)
                    .map(|r| f64::from(1.0 + (i as f32) / 97.0 + r as f32))
                    .sum::<f64>()
                    / f64::from(world);
                // Once on each contribution, once on the result: 2⁻⁹ each, relative.
                let bound = exact * 2.0 * 2f64.powi(-8);
                assert!((f64::from(*v) - exact).abs() <= bound, "{v} for {exact}");
            }
        }
    }
}

#[test]
fn broadcast_from_every_root() {
    for world in WORLDS {
        let results = LINK.local(world, &config(), |_, group| {
            let mut all = vec![];
            for root in 0..world {
                for len in lengths(world) {
                    let mut x: Vec<i64> = (0..len).map(|i| value(group.rank().0, i)).collect();
                    group.broadcast(&mut x, Rank(root)).unwrap();
                    all.push((root, x));
                }
            }
            all
        });
        for (root, x) in results.into_iter().flatten() {
            let want: Vec<i64> = (0..x.len()).map(|i| value(root, i)).collect();
            assert_eq!(x, want);
        }
    }
}

#[test]
fn all_gather_in_rank_order() {
    for world in WORLDS {
        LINK.local(world, &config(), |_, group| {
            for len in lengths(world) {
                let x: Vec<i32> = (0..len).map(|i| value(group.rank().0, i) as i32).collect();
                let all = group.all_gather(&x).unwrap();
                let want: Vec<i32> = (0..world)
                    .flat_map(|r| (0..len).map(move |i| value(r, i) as i32))
                    .collect();
                assert_eq!(all, want);
                let mut ring = vec![0; len * world as usize];
                let at = group.rank().idx() * len;
                ring[at..at + len].copy_from_slice(&x);
                group
                    .run(
                        &Op::new(Kind::AllGather(Counts::Equal)).by(Algorithm::Ring),
                        &mut ring,
                    )
                    .unwrap();
                assert_eq!(ring, want);
            }
        });
    }
}

#[test]
fn a_barrier_holds_until_all_have_come() {
    use std::sync::atomic::{AtomicU32, Ordering};
    for world in WORLDS {
        let come = AtomicU32::new(0);
        LINK.local(world, &config(), |_, group| {
            for round in 1..=5 {
                come.fetch_add(1, Ordering::SeqCst);
                group.barrier().unwrap();
                assert!(come.load(Ordering::SeqCst) >= round * world);
                group.barrier().unwrap();
            }
        });
    }
}

fn uni_ring(world: u32, rank: u32, form: Form) -> Round {
    let mut round = Round {
        keep: 1.0,
        form,
        ..Round::default()
    };
    if world > 1 {
        round.keep = 0.5;
        round.from.push((Rank((rank + world - 1) % world), 0.5));
        round.to.push((Rank((rank + 1) % world), 1.0));
    }
    round
}

#[test]
fn neighbour_averages_in_both_forms() {
    for world in WORLDS {
        for form in [Form::Delta, Form::Sum] {
            LINK.local(world, &config(), |_, group| {
                for (t, len) in lengths(world).into_iter().enumerate() {
                    let me = group.rank().0;
                    let round = uni_ring(world, me, form);
                    let mut x: Vec<f64> = (0..len).map(|i| value(me, i) as f64).collect();
                    group.mix(&mut x, &round, t as u64).unwrap();
                    let from = (me + world - 1) % world;
                    for (i, v) in x.iter().enumerate() {
                        assert_eq!(*v, 0.5 * (value(me, i) + value(from, i)) as f64);
                    }
                }
            });
        }
    }
}

#[test]
fn a_rank_without_neighbours_keeps_its_values() {
    LINK.local(3, &config(), |_, group| {
        let me = group.rank().0;
        // Ranks 0 and 1 exchange, rank 2 is alone.
        let mut round = Round {
            keep: 1.0,
            ..Round::default()
        };
        if me < 2 {
            round = Round {
                from: vec![(Rank(1 - me), 0.5)],
                to: vec![(Rank(1 - me), 1.0)],
                keep: 0.5,
                form: Form::Delta,
            };
        }
        let mut x = [me as f32; 3];
        group.mix(&mut x, &round, 0).unwrap();
        assert_eq!(x, if me < 2 { [0.5; 3] } else { [2.0; 3] });
        group.barrier().unwrap();
    });
}

#[test]
fn sender_weights_scale_on_the_way_out() {
    let results = LINK.local(2, &config(), |_, group| {
        let me = group.rank().0;
        let other = Rank(1 - me);
        let mut all = vec![];
        for (t, codec) in [Codec::None, Codec::Bf16].into_iter().enumerate() {
            let round = Round {
                from: vec![(other, 2.0)],
                to: vec![(other, 0.25)],
                keep: 1.0,
                form: Form::Sum,
            };
            let mut x = vec![8.0f32 * (me + 1) as f32; 3000];
            let op = Op::new(Kind::Mix { round, t: t as u64 }).coded_always(codec);
            group.run(&op, &mut x).unwrap();
            all.push(x);
        }
        all
    });
    // 8 + 2·¼·16 and 16 + 2·¼·8, exact in bf16 too.
    assert_eq!(results[0], vec![vec![16.0; 3000]; 2]);
    assert_eq!(results[1], vec![vec![20.0; 3000]; 2]);
}

#[test]
fn skipped_rounds_desynchronise_nobody() {
    for codec in [Codec::None, Codec::Bf16] {
        let results = LINK.local(2, &config(), |_, group| {
            let me = group.rank().0;
            let mut x = vec![me as f32; 100];
            for t in 0..200u64 {
                // Rank 0 sends in every round, rank 1 listens to every tenth only.
                let mut round = Round {
                    keep: 1.0,
                    ..Round::default()
                };
                if me == 0 {
                    round.to.push((Rank(1), 1.0));
                } else if t % 10 == 0 {
                    round = Round {
                        from: vec![(Rank(0), 0.5)],
                        to: vec![],
                        keep: 0.5,
                        form: Form::Delta,
                    };
                } else {
                    continue;
                }
                let op = Op::new(Kind::Mix { round, t }).coded_always(codec);
                group.run(&op, &mut x).unwrap();
            }
            group.barrier().unwrap();
            x
        });
        assert_eq!(results[0], [0.0; 100]);
        assert_eq!(results[1], [0.5f32.powi(20); 100], "{codec}");
    }
}

#[test]
fn lanes_may_be_used_in_different_orders() {
    for world in WORLDS {
        LINK.local(world, &config(), |_, group| {
            let me = group.rank().0;
            let mut order: Vec<u32> = (1..=6).collect();
            order.rotate_left(me as usize % 6);
            let works: Vec<_> = order
                .iter()
                .map(|lane| {
                    let op = Op::new(Kind::AllReduce(Reduce::Sum)).on(Lane(*lane));
                    (*lane, group.start(op, vec![f64::from(lane * (me + 1)); 50]))
                })
                .collect();
            let sum = f64::from(world * (world + 1) / 2);
            for (lane, work) in works {
                assert_eq!(work.wait().unwrap(), vec![f64::from(lane) * sum; 50]);
            }
        });
    }
}

#[test]
fn scoped_operations_borrow() {
    LINK.local(3, &config(), |_, group| {
        let (mut a, mut b) = (vec![1.0f32; 1000], vec![2.0f32; 10]);
        group.scope(|s| {
            let first = s.all_reduce(&mut a, Sum);
            let _ignored = s.all_reduce(&mut b, Sum);
            assert_eq!(first.wait().unwrap()[0], 3.0);
        });
        assert_eq!(b, [6.0; 10]);
    });
}

#[test]
fn subgroups_are_made_in_any_order_by_their_members() {
    LINK.local(5, &config(), |_, group| {
        let me = group.rank().0;
        let even: Vec<Rank> = [4, 0, 2].map(Rank).to_vec();
        let odd: Vec<Rank> = [1, 3].map(Rank).to_vec();
        let mine = if me.is_multiple_of(2) { even } else { odd };
        let sub = group.subgroup(&mine, "parity").unwrap();
        assert_eq!(sub.size(), mine.len());
        assert_eq!(mine[sub.rank().idx()], group.rank());
        let mut x = [f64::from(me)];
        sub.all_reduce(&mut x, Sum).unwrap();
        assert_eq!(x[0], if me.is_multiple_of(2) { 6.0 } else { 4.0 });
        let other = if me == 0 { Rank(1) } else { Rank(0) };
        assert!(
            group
                .subgroup(&[other], "x")
                .unwrap_err()
                .to_string()
                .contains("is not a member")
        );
        assert!(
            group
                .subgroup(&[group.rank(), group.rank()], "x")
                .unwrap_err()
                .to_string()
                .contains("twice")
        );
        assert!(
            group
                .subgroup(&[Rank(9)], "x")
                .unwrap_err()
                .to_string()
                .contains("rank 9 of a group of 5")
        );
        group.barrier().unwrap();
    });
}

#[test]
fn mistakes_are_refused_before_anything_is_sent() {
    LINK.local(2, &config(), |_, group| {
        let me = group.rank();
        let check = |op: Op, x: &mut [f32], text: &str| {
            let e = group.run(&op, x).unwrap_err();
            assert!(
                matches!(e.cause(), Cause::Invalid { .. } | Cause::Unsupported { .. }),
                "{e}"
            );
            assert!(e.to_string().contains(text), "{e}");
        };
        let sum = Op::new(Kind::AllReduce(Reduce::Sum));
        check(
            sum.clone().by(Algorithm::Dissemination),
            &mut [0.0],
            "dissemination",
        );
        check(
            sum.clone().by(Algorithm::Ring).coded_always(Codec::Bf16),
            &mut [0.0],
            "bf16",
        );
        check(
            Op::new(Kind::Broadcast { root: Rank(2) }),
            &mut [0.0],
            "rank 2",
        );
        check(
            Op::new(Kind::AllGather(Counts::Equal)),
            &mut [0.0; 3],
            "no multiple",
        );
        check(Op::new(Kind::Barrier), &mut [0.0], "no elements");
        let round = Round {
            from: vec![(me, 1.0)],
            ..Round::default()
        };
        check(Op::new(Kind::Mix { round, t: 0 }), &mut [0.0], "rank");
        let round = Round {
            keep: f64::NAN,
            ..Round::default()
        };
        check(Op::new(Kind::Mix { round, t: 0 }), &mut [0.0], "not finite");
        let e = group
            .run(&Op::new(Kind::AllReduce(Reduce::Mean)), &mut [1i32])
            .unwrap_err();
        assert!(e.to_string().contains("mean is not defined on i32"), "{e}");
        let e = group
            .run(&sum.coded_always(Codec::Bf16), &mut [1f64])
            .unwrap_err();
        assert!(e.to_string().contains("bf16 codec applies to f32"), "{e}");
        group
            .mix(
                &mut [0f32],
                &Round {
                    keep: 1.0,
                    ..Round::default()
                },
                5,
            )
            .unwrap();
        let e = group
            .mix(
                &mut [0f32],
                &Round {
                    keep: 1.0,
                    ..Round::default()
                },
                5,
            )
            .unwrap_err();
        assert!(
            e.to_string().contains("round 5 on lane 0 after round 5"),
            "{e}"
        );
        // After all that the group works.
        let mut x = [1.0f32];
        group.all_reduce(&mut x, Sum).unwrap();
        assert_eq!(x, [2.0]);
    });
}

#[test]
fn futures_complete_and_detached_work_goes_on() {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Poll, Wake, Waker},
    };
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    LINK.local(3, &config(), |_, group| {
        drop(group.start_all_reduce(vec![1.0f32; 100], Sum));
        let mut work = pin!(group.start_all_reduce(vec![2.0f32; 100], Sum));
        let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        let x = loop {
            match work.as_mut().poll(&mut cx) {
                Poll::Ready(x) => break x.unwrap(),
                Poll::Pending => std::thread::park(),
            }
        };
        assert_eq!(x, [6.0; 100]);
        group.barrier().unwrap();
    });
}

#[test]
fn a_waker_that_panics_is_nobodys_business() {
    use std::{
        future::Future,
        pin::pin,
        sync::mpsc::{Sender, channel},
        task::{Context, Poll, Wake, Waker},
    };
    struct Panics(std::sync::Mutex<Sender<()>>);
    impl Wake for Panics {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.lock().unwrap().send(()).unwrap();
            panic!("a waker of the user's");
        }
    }
    LINK.local(2, &config(), |_, group| {
        let (tell, told) = channel();
        let waker = Waker::from(std::sync::Arc::new(Panics(std::sync::Mutex::new(tell))));
        let mut cx = Context::from_waker(&waker);
        let mut work = pin!(group.start_all_reduce(vec![2.0f32; 100], Sum));
        let first = work.as_mut().poll(&mut cx);
        // Whoever comes second finds it done at once; of the first it is the engine's thread that wakes.
        if first.is_pending() {
            told.recv().unwrap();
        }
        let x = match first {
            Poll::Ready(x) => x.unwrap(),
            Poll::Pending => loop {
                if let Poll::Ready(x) = work.as_mut().poll(&mut Context::from_waker(Waker::noop()))
                {
                    break x.unwrap();
                }
            },
        };
        assert_eq!(x, [4.0; 100]);
        // The thread is there, and so is the engine.
        let mut work = pin!(group.start_all_reduce(vec![1.0f32; 10], Sum));
        while work
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
        {
            std::thread::yield_now();
        }
        group.barrier().unwrap();
    });
}

#[test]
fn several_waiters_share_the_work_where_the_engine_has_no_thread() {
    let mut threadless = config();
    threadless.progress_thread = false;
    LINK.local(3, &threadless, |_, group| {
        std::thread::scope(|s| {
            for lane in 1..=3u32 {
                let group = &group;
                s.spawn(move || {
                    for i in 0..200 {
                        let mut x = [f64::from(lane * i); 3];
                        let op = Op::new(Kind::AllReduce(Reduce::Sum)).on(Lane(lane));
                        group.run(&op, &mut x).unwrap();
                        assert_eq!(x, [3.0 * f64::from(lane * i); 3]);
                    }
                });
            }
        });
        group.barrier().unwrap();
    });
}
