//! What is promised about bits: ordered and exact folds, other divisors, codecs on the wire, users' reductions.

use crate::LINK;
use crate::common::{WORLDS, config, lengths};
use gaggle_core::{
    Algorithm, Cause, Codec, Counts, DType, Divisor, Done, Error, Form, Group, Kind, Mode, Op,
    Properties, Rank, Reduce, Round, Sum, UserReduction, Weight,
};
use num_bigint::{BigInt, Sign};
use std::sync::Arc;

const CODED: [Codec; 3] = [Codec::Bf16, Codec::F16, Codec::Int8];

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// What came of each algorithm; `None`: it was refused.
type ByAlgorithm = Vec<(Algorithm, Option<Vec<f32>>)>;

/// Runs by every algorithm there is; `None` where it was refused, which must be for a reason and before anything was sent.
fn by_every_algorithm(group: &Group, op: &Op, x: &[f32]) -> ByAlgorithm {
    let run = |algorithm| {
        let mut y = x.to_vec();
        match group.run(&op.clone().by(algorithm), &mut y) {
            Ok(_) => (algorithm, Some(y)),
            Err(e) => {
                assert!(matches!(e.cause(), Cause::Unsupported { .. }), "{e}");
                assert_eq!(bits(&y), bits(x), "a refusal touches nothing");
                (algorithm, None)
            }
        }
    };
    Algorithm::ALL.into_iter().map(run).collect()
}

/// trials.md row 2: large and small numbers that cancel, in all their orders over the ranks.
#[test]
fn trial_2_ordered_and_exact_sums() {
    let orders: Vec<[f32; 4]> = {
        let xs = [1e8f32, 1.0, -1e8, 1.0];
        let mut all = std::collections::BTreeSet::new();
        for i in 0..256usize {
            let at = [i & 3, i >> 2 & 3, i >> 4 & 3, i >> 6];
            if (0..4).all(|k| at.contains(&k)) {
                all.insert(at.map(|k| xs[k].to_bits()));
            }
        }
        all.into_iter().map(|o| o.map(f32::from_bits)).collect()
    };
    assert_eq!(orders.len(), 12);
    for world in 2..=9u32 {
        for slice_bytes in [4, 256 * 1024] {
            let mut settings = config();
            settings.slice_bytes = slice_bytes;
            // Two to a host: two-level algorithms take part.
            settings.hosts = Some((0..world).map(|r| r / 2).collect());
            let results = LINK.local(world, &settings, |_, group| {
                // The ranks beyond the fourth, and of a smaller world the last one, hold what is left.
                let me = group.rank().idx();
                let mut x: Vec<f32> = orders
                    .iter()
                    .map(|o| o.get(me).map_or(0.0, |v| *v))
                    .collect();
                if me as u32 == world - 1 {
                    for (x, o) in x.iter_mut().zip(&orders) {
                        *x += o.iter().skip(world as usize).sum::<f32>();
                    }
                }
                [Mode::Default, Mode::Ordered, Mode::Exact].map(|mode| {
                    let op = Op::new(Kind::AllReduce(Reduce::Sum)).in_mode(mode);
                    let whole = by_every_algorithm(&group, &op, &x);
                    // In buckets of one, two and five.
                    let mut split = vec![];
                    for bucket in [1, 2, 5] {
                        let mut y = x.clone();
                        for part in y.chunks_mut(bucket) {
                            group.run(&op, part).unwrap();
                        }
                        split.push(y);
                    }
                    (whole, split)
                })
            });
            for modes in &results {
                for ((whole, split), (first, first_split)) in modes.iter().zip(&results[0]) {
                    for ((a, y), (_, z)) in whole.iter().zip(first) {
                        assert_eq!(y, z, "{a} of {world}: the ranks differ");
                    }
                    assert_eq!(split, first_split, "the ranks differ");
                }
                let [default, ordered, exact] = modes;
                let ran = |all: &ByAlgorithm| all.iter().filter(|(_, y)| y.is_some()).count();
                assert!(ran(&default.0) >= if world > 2 { 12 } else { 6 });
                let in_two_levels = |(a, y): &(Algorithm, Option<Vec<f32>>)| {
                    a.between_hosts().is_some() && y.is_some()
                };
                assert!(world == 2 || default.0.iter().any(in_two_levels));
                let direct = |all: &ByAlgorithm| {
                    let found = all.iter().find(|(a, _)| *a == Algorithm::Direct);
                    found.and_then(|(_, y)| y.clone()).unwrap()
                };
                for (mode, want) in [(ordered, direct(&ordered.0)), (exact, direct(&exact.0))] {
                    for (a, y) in &mode.0 {
                        if let Some(y) = y {
                            assert_eq!(bits(y), bits(&want), "{a} of {world}");
                        }
                    }
                    for y in &mode.1 {
                        assert_eq!(bits(y), bits(&want), "in buckets");
                    }
                }
                if world >= 4 {
                    assert_eq!(direct(&exact.0), vec![2.0; 12], "{world} ranks");
                }
            }
        }
    }
}

/// Numbers whose sum depends on the order even in the wider type: f64 is folded in f64.
#[test]
fn ordered_sums_are_folded_from_rank_0_on() {
    let of = |r: u32, i: usize| [1e16f64, 1.0, -1e16, 1.0, 3.0][(r as usize + i) % 5];
    for world in [2u32, 3, 4, 5, 7, 8, 9] {
        let want: Vec<f64> = (0..20)
            .map(|i| (1..world).fold(of(0, i), |sum, r| sum + of(r, i)))
            .collect();
        for slice_bytes in [8, 256 * 1024] {
            let mut settings = config();
            settings.slice_bytes = slice_bytes;
            LINK.local(world, &settings, |_, group| {
                for bucket in [1, 2, 7, 20] {
                    let mut x: Vec<f64> = (0..20).map(|i| of(group.rank().0, i)).collect();
                    let op = Op::new(Kind::AllReduce(Reduce::Sum)).in_mode(Mode::Ordered);
                    for part in x.chunks_mut(bucket) {
                        group.run(&op, part).unwrap();
                    }
                    assert_eq!(x, want, "{world} ranks, buckets of {bucket}");
                }
            });
        }
    }
}

/// A number of any size, from a rank's own sequence.
fn any_number(rank: u32, i: u64) -> f32 {
    let mut s = (u64::from(rank) << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    loop {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        let x = f32::from_bits((s.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32);
        // Near the top every sum would be an infinity.
        if x.is_finite() && x.abs() < 1e37 {
            return x;
        }
    }
}

/// x · 2¹⁴⁹: every f32 is a whole number of that.
fn units(x: f32) -> BigInt {
    let bits = x.to_bits();
    let (e, f) = (bits >> 23 & 0xff, bits & 0x7f_ffff);
    let m = match e {
        0 => BigInt::from(f),
        e => BigInt::from(f | 1 << 23) << (e - 1),
    };
    if x.is_sign_negative() { -m } else { m }
}

/// Whether `x` is the f32 nearest to the sum, ties to even.
fn is_nearest(x: f32, sum: &BigInt) -> bool {
    let off = |y: f32| {
        let d = sum - units(y);
        if d.sign() == Sign::Minus { -d } else { d }
    };
    let (here, neighbours) = (off(x), [x.next_up(), x.next_down()]);
    neighbours.into_iter().filter(|y| y.is_finite()).all(|y| {
        let there = off(y);
        here < there || (here == there && x.to_bits() & 1 == 0)
    })
}

#[test]
fn exact_sums_are_the_nearest_number_in_any_order_of_up_to_33_ranks() {
    const N: usize = 67;
    for world in [2u32, 3, 8, 33] {
        let results = LINK.local(world, &config(), |_, group| {
            let me = group.rank().0;
            let mut all = vec![];
            // Each rank's numbers go around, so that every one comes to every place.
            for turn in [0, 1, world / 2] {
                let rank = (me + turn) % world;
                let mut x: Vec<f32> = (0..N as u64).map(|i| any_number(rank, i)).collect();
                let op = Op::new(Kind::AllReduce(Reduce::Sum)).in_mode(Mode::Exact);
                let done = group.run(&op, &mut x).unwrap();
                all.push((done.bytes_sent, x));
            }
            let mut x = vec![0f32; N];
            let plain = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::Direct);
            let plain = group.run(&plain, &mut x).unwrap().bytes_sent;
            (all, plain)
        });
        for (all, plain) in &results {
            for (sent, x) in all {
                assert_eq!(sent, plain, "exact costs no byte more than direct");
                assert_eq!(bits(x), bits(&results[0].0[0].1), "of {world}");
            }
        }
        for (i, x) in results[0].0[0].1.iter().enumerate() {
            let sum: BigInt = (0..world).map(|r| units(any_number(r, i as u64))).sum();
            assert!(is_nearest(*x, &sum), "{x:e} of {world}, element {i}");
        }
    }
}

#[test]
fn exact_holds_for_every_reducing_operation_and_float() {
    fn run<T: gaggle_core::Float>(group: &Group) {
        // Cancels to 2⁻¹⁰ of what it is made of; the rest is the ranks' numbers.
        let (me, world) = (group.rank().0, group.size() as u32);
        let of = |v: f64| T::from_f64(v);
        let big = if me == 0 {
            2048.0
        } else if me == world - 1 {
            -2048.0
        } else {
            1.0
        };
        let n = world as usize * 5;
        let input: Vec<T> = (0..n).map(|i| of(big * (i % 3) as f64)).collect();
        let want: Vec<T> = (0..n)
            .map(|i| of(f64::from(world - 2) * (i % 3) as f64))
            .collect();
        let exact = |kind| Op::new(kind).in_mode(Mode::Exact);
        let mut x = input.clone();
        group
            .run(&exact(Kind::AllReduce(Reduce::Sum)), &mut x)
            .unwrap();
        assert_eq!(x, want, "{}", T::DTYPE);
        let root = Rank(world - 1);
        let mut x = input.clone();
        group
            .run(
                &exact(Kind::Reduce {
                    reduce: Reduce::Sum,
                    root,
                }),
                &mut x,
            )
            .unwrap();
        if group.rank() == root {
            assert_eq!(x, want);
        }
        let mut part = vec![of(0.0); 5];
        let scatter = Kind::ReduceScatter {
            reduce: Reduce::Sum,
            counts: Counts::Equal,
        };
        group.run_into(&exact(scatter), &input, &mut part).unwrap();
        assert_eq!(part, want[me as usize * 5..][..5]);
    }
    for world in [3, 5, 8] {
        LINK.local(world, &config(), |_, group| {
            run::<f32>(&group);
            run::<f64>(&group);
            run::<half::f16>(&group);
            run::<half::bf16>(&group);
        });
    }
}

#[test]
fn what_cannot_be_promised_is_refused_with_the_reason() {
    LINK.local(3, &config(), |_, group| {
        let says = |op: Op| {
            let mut x = [1.0f32; 7];
            let e = group.run(&op, &mut x).unwrap_err();
            assert!(matches!(e.cause(), Cause::Unsupported { .. }), "{e}");
            assert_eq!(x, [1.0; 7]);
            e.to_string()
        };
        let sum = || Op::new(Kind::AllReduce(Reduce::Sum));
        for algorithm in [Algorithm::Ring, Algorithm::RecursiveDoubling] {
            for mode in [Mode::Ordered, Mode::Exact] {
                let e = says(sum().in_mode(mode).by(algorithm));
                assert!(e.contains(algorithm.name()) && e.contains("direct"), "{e}");
            }
            for codec in CODED {
                let e = says(sum().coded_always(codec).by(algorithm));
                assert!(e.contains("at every hop") && e.contains("direct"), "{e}");
            }
        }
        assert!(
            says(Op::new(Kind::AllReduce(Reduce::Prod)).in_mode(Mode::Exact))
                .contains("not accumulated exactly")
        );
        assert!(
            says(sum().in_mode(Mode::Exact).coded_always(Codec::Bf16))
                .contains("not rounded to bf16")
        );
        let e = group
            .run(&sum().coded_always(Codec::Int8), &mut [1.0f64])
            .unwrap_err();
        assert!(e.to_string().contains("int8"), "{e}");
        // What needs no order is exact by any algorithm.
        let mut x = [group.rank().0 as f32];
        let max = Op::new(Kind::AllReduce(Reduce::Max)).in_mode(Mode::Exact);
        group.run(&max.by(Algorithm::Ring), &mut x).unwrap();
        assert_eq!(x, [2.0]);
    });
}

#[test]
fn a_mean_over_the_initial_world_counts_who_does_not_contribute() {
    for world in WORLDS {
        LINK.local(world, &config(), |_, group| {
            let me = group.rank().0;
            // trials.md row 4 (b): everybody but the last contributes 1.
            let drained = world > 1 && me == world - 1;
            let weight = if drained {
                Weight::ZERO
            } else {
                Weight::samples(2)
            };
            let x = vec![if drained { f32::NAN } else { 1.0 }; 11];
            let want = 2.0 * (f64::from(world) - f64::from(u8::from(world > 1))) / f64::from(world);
            for mode in [Mode::Default, Mode::Exact] {
                let op = Op::new(Kind::AllReduce(Reduce::Mean))
                    .weighing(weight)
                    .in_mode(mode)
                    .divided_by(Divisor::InitialWorld);
                let mut n = 0;
                for (algorithm, y) in by_every_algorithm(&group, &op, &x) {
                    if let Some(y) = y {
                        n += 1;
                        let close = y.iter().all(|v| (f64::from(*v) - want).abs() < 1e-6);
                        assert!(close, "{algorithm} of {world}: {y:?}, not {want}");
                    }
                }
                assert!(n > 0);
            }
            // The other reducing operations, in place: nothing but the result changes.
            let mean = |kind| {
                Op::new(kind)
                    .weighing(weight)
                    .divided_by(Divisor::InitialWorld)
            };
            let mut y = vec![1.0f32; world as usize * 2];
            let scatter = Kind::ReduceScatter {
                reduce: Reduce::Mean,
                counts: Counts::Equal,
            };
            group.run(&mean(scatter), &mut y).unwrap();
            for (i, v) in y.iter().enumerate() {
                let own = i / 2 == me as usize;
                let want = if own { want } else { 1.0 };
                assert!((f64::from(*v) - want).abs() < 1e-6, "{v} at {i}");
            }
            let mut y = [1.0f32; 3];
            group
                .run(
                    &mean(Kind::Reduce {
                        reduce: Reduce::Mean,
                        root: Rank(0),
                    }),
                    &mut y,
                )
                .unwrap();
            if me == 0 {
                assert!(y.iter().all(|v| (f64::from(*v) - want).abs() < 1e-6));
            } else {
                assert_eq!(y, [1.0; 3]);
            }
        });
    }
}

/// Largest magnitude that `x` of a rank has below, so that a bound can be given.
fn wave(rank: u32, i: usize) -> f32 {
    ((i * 37 + rank as usize * 101) % 256) as f32 / 128.0 - 1.0
}

#[test]
fn every_codec_rounds_once_and_leaves_equal_bits() {
    for world in WORLDS {
        for slice_bytes in [1040, 256 * 1024] {
            let mut settings = config();
            settings.slice_bytes = slice_bytes;
            let results = LINK.local(world, &settings, |_, group| {
                let me = group.rank().0;
                let mut all: Vec<(Codec, Done, Vec<f32>)> = vec![];
                for codec in CODED {
                    for len in lengths(world).into_iter().chain([256, 257, 1021, 5003]) {
                        let mut x: Vec<f32> = (0..len).map(|i| wave(me, i)).collect();
                        let op = Op::new(Kind::AllReduce(Reduce::Mean)).coded_always(codec);
                        let done = group.run(&op, &mut x).unwrap();
                        all.push((codec, done, x));
                    }
                }
                all
            });
            for all in &results {
                for ((codec, done, x), (_, _, first)) in all.iter().zip(&results[0]) {
                    assert_eq!(bits(x), bits(first), "{codec} of {world}: the ranks differ");
                    assert_eq!(done.codec, *codec);
                    // Contributions and the result are rounded once each: half a scale, or half a unit in the last place of 1.
                    let step = match codec {
                        Codec::Int8 => 1.0 / 126.0 * 1.001,
                        Codec::Bf16 => 2f64.powi(-8),
                        _ => 2f64.powi(-11),
                    };
                    for (i, v) in x.iter().enumerate() {
                        let exact = (0..world).map(|r| f64::from(wave(r, i))).sum::<f64>()
                            / f64::from(world);
                        let bound = if world == 1 { 0.0 } else { step };
                        assert!(
                            (f64::from(*v) - exact).abs() <= bound,
                            "{codec} of {world}: {v} for {exact}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn codecs_keep_what_is_no_number() {
    LINK.local(3, &config(), |_, group| {
        for codec in CODED {
            let mut x = [0.5f32; 300];
            if group.rank() == Rank(1) {
                x[3] = f32::NAN;
                x[150] = f32::INFINITY;
                x[299] = f32::NEG_INFINITY;
            }
            let op = Op::new(Kind::AllReduce(Reduce::Sum)).coded_always(codec);
            group.run(&op, &mut x).unwrap();
            for (i, v) in x.iter().enumerate() {
                match i {
                    3 => assert!(v.is_nan()),
                    150 => assert_eq!(*v, f32::INFINITY),
                    299 => assert_eq!(*v, f32::NEG_INFINITY),
                    _ => assert!((v - 1.5).abs() < 0.02, "{codec}: {v} at {i}"),
                }
            }
        }
    });
}

#[test]
fn a_codec_that_does_not_pay_is_declined_and_said() {
    LINK.local(2, &config(), |_, group| {
        // One number: its message costs its latency, coded or not.
        let run = |op: Op| group.run(&op, &mut [1.25f32]).unwrap().codec;
        let sum = || Op::new(Kind::AllReduce(Reduce::Sum));
        for codec in CODED {
            assert_eq!(run(sum().coded(codec)), Codec::None);
            assert_eq!(run(sum().coded_always(codec)), codec);
            let why = group.explain::<f32>(&sum().coded(codec), 1).unwrap();
            assert!(why.contains(&format!("{codec} is declined")), "{why}");
        }
    });
}

#[test]
fn the_wire_carries_what_the_codec_says() {
    for world in [2u32, 5] {
        LINK.local(world, &config(), |_, group| {
            let n = 4000 * world as usize;
            let mut sent = vec![];
            for codec in Codec::ALL {
                let mut x = vec![1.0f32; n];
                let op = Op::new(Kind::AllReduce(Reduce::Sum))
                    .coded_always(codec)
                    .by(Algorithm::Direct);
                let done = group.run(&op, &mut x).unwrap();
                let message = codec.wire_bytes(DType::F32, 4000).unwrap();
                assert_eq!(
                    done.bytes_sent,
                    2 * u64::from(world - 1) * message,
                    "{codec}"
                );
                let off = |v: &f32| (v / world as f32 - 1.0).abs();
                assert!(x.iter().all(|v| off(v) < 1e-3), "{codec}");
                sent.push(done.bytes_sent);
            }
            assert!(
                sent[3] * 39 < sent[0] * 10,
                "int8 is less than 10/39 of plain"
            );
        });
    }
}

#[test]
fn neighbours_average_coded_values_and_keep_the_mean() {
    for codec in CODED {
        let results = LINK.local(2, &config(), |_, group| {
            let me = group.rank().0;
            let round = Round {
                from: vec![(Rank(1 - me), 0.5)],
                to: vec![(Rank(1 - me), 1.0)],
                keep: 0.5,
                form: Form::Delta,
            };
            let x: Vec<f32> = (0..1500).map(|i| wave(me, i)).collect();
            let mut y = x.clone();
            let op = |t| {
                Op::new(Kind::Mix {
                    round: round.clone(),
                    t,
                })
                .coded_always(codec)
            };
            group.run(&op(0), &mut y).unwrap();
            // Equal values come back bit for bit.
            let mut same: Vec<f32> = (0..1500).map(|i| wave(7, i) / 3.0).collect();
            let before = same.clone();
            group.run(&op(1), &mut same).unwrap();
            assert_eq!(bits(&same), bits(&before), "{codec}");
            (x, y)
        });
        let (a, b) = (&results[0], &results[1]);
        for i in 0..a.0.len() {
            let (before, after) = (a.0[i] + b.0[i], a.1[i] + b.1[i]);
            assert!(
                (before - after).abs() <= 3e-7,
                "{codec}: {before} became {after}"
            );
            assert!((a.1[i] - b.1[i]).abs() < 0.05);
        }
    }
}

/// trials.md row 3, dense: Sum equals n × Mean on every path, whole or in pieces, also in a smaller group.
#[test]
fn trial_3_sum_is_n_times_mean_on_every_path() {
    let mut settings = config();
    // Also two levels, on hosts of unequal size in the smaller group.
    settings.hosts = Some([0, 0, 1, 1].into());
    LINK.local(4, &settings, |_, group| {
        let three = (group.rank().0 < 3).then(|| {
            let members = [0, 1, 2].map(Rank);
            group.subgroup(&members, "three").unwrap()
        });
        for group in [Some(group), three].into_iter().flatten() {
            let (me, n) = (group.rank().0, group.size() as f32);
            let x: Vec<f32> = (0..103)
                .map(|i| (i * (me as usize + 1) % 16) as f32 * n)
                .collect();
            let run = |op: Op| by_every_algorithm(&group, &op, &x);
            let reduce = |r| Op::new(Kind::AllReduce(r));
            let mut want = x.clone();
            group.all_reduce(&mut want, Sum).unwrap();
            let (sums, means) = (run(reduce(Reduce::Sum)), run(reduce(Reduce::Mean)));
            for all in [&sums, &means] {
                let ran = || all.iter().filter(|(_, y)| y.is_some()).map(|(a, _)| a);
                assert!(ran().count() >= 12, "{:?}", ran().collect::<Vec<_>>());
                assert!(ran().any(|a| a.between_hosts().is_some()));
            }
            for (a, y) in sums {
                assert!(y.is_none_or(|y| y == want), "sum by {a}");
            }
            for (a, y) in means {
                let times = y.map(|y| y.iter().map(|v| v * n).collect::<Vec<f32>>());
                assert!(times.is_none_or(|y| y == want), "mean by {a}");
            }
            for piece in [1, 7, 64] {
                let mut y = x.clone();
                for part in y.chunks_mut(piece) {
                    group.run(&reduce(Reduce::Mean), part).unwrap();
                }
                assert_eq!(y.iter().map(|v| v * n).collect::<Vec<f32>>(), want);
            }
        }
    });
}

fn user(
    name: &str,
    commutative: bool,
    associative: bool,
    f: impl Fn(u32, u32) -> u32 + Send + Sync + 'static,
) -> UserReduction {
    let properties = Properties {
        commutative,
        associative,
    };
    UserReduction::new(name, properties, f)
}

#[test]
fn users_reductions_are_called_in_rank_order() {
    // Neither commutative nor associative; associative alone (2 × 2 matrices packed in bytes would do, the left one's upper half and the right one's lower half is simpler); both.
    let horner = user("horner", false, false, |a, b| {
        a.wrapping_mul(31).wrapping_add(b)
    });
    let ends = user("ends", false, true, |a, b| (a & 0xffff_0000) | (b & 0xffff));
    let or = user("or", true, true, |a, b| a | b);
    let by_hand: [fn(u32, u32) -> u32; 3] = [
        |a, b| a.wrapping_mul(31).wrapping_add(b),
        |a, b| (a & 0xffff_0000) | (b & 0xffff),
        |a, b| a | b,
    ];
    for world in WORLDS {
        for slice_bytes in [64, 256 * 1024] {
            let mut settings = config();
            settings.slice_bytes = slice_bytes;
            LINK.local(world, &settings, |_, group| {
                for (f, combine) in [&horner, &ends, &or].into_iter().zip(by_hand) {
                    for len in lengths(world).into_iter().chain([1031]) {
                        let value = |r: u32, i: usize| (r + 1) * 0x0001_0203 + i as u32 * 7;
                        let x: Vec<u32> = (0..len).map(|i| value(group.rank().0, i)).collect();
                        let want: Vec<u32> = (0..len)
                            .map(|i| (1..world).fold(value(0, i), |a, r| combine(a, value(r, i))))
                            .collect();
                        let op = Op::new(Kind::AllReduce(Reduce::User)).with_user(f.clone());
                        let mut y = x.clone();
                        group.run(&op, &mut y).unwrap();
                        assert_eq!(y, want, "'{}' of {world}", f.name());
                        let mut ran = 0;
                        for algorithm in Algorithm::ALL {
                            let mut y = x.clone();
                            match group.run(&op.clone().by(algorithm), &mut y) {
                                Ok(_) => {
                                    ran += 1;
                                    assert_eq!(y, want, "'{}' of {world} by {algorithm}", f.name());
                                }
                                Err(e) => {
                                    assert!(matches!(e.cause(), Cause::Unsupported { .. }), "{e}")
                                }
                            }
                        }
                        assert!(ran >= 1);
                        let mut y = vec![0; len];
                        let root = Rank(world - 1);
                        let reduce = Kind::Reduce {
                            reduce: Reduce::User,
                            root,
                        };
                        group
                            .run_into(&Op::new(reduce).with_user(f.clone()), &x, &mut y)
                            .unwrap();
                        if group.rank() == root {
                            assert_eq!(y, want);
                        }
                    }
                }
            });
        }
    }
}

#[test]
fn users_reductions_of_halves_see_halves() {
    use half::bf16;
    let hypot = UserReduction::new(
        "hypot",
        Properties {
            commutative: true,
            associative: false,
        },
        |a: bf16, b: bf16| bf16::from_f32(a.to_f32().hypot(b.to_f32())),
    );
    LINK.local(3, &config(), |_, group| {
        let mut x = [3.0, 4.0, 12.0].map(|v| bf16::from_f32(v * (group.rank().0 + 1) as f32));
        let at = |k: f32| [3.0, 4.0, 12.0].map(|v: f32| bf16::from_f32(v * k));
        let [a, b, c] = [at(1.0), at(2.0), at(3.0)];
        let f = |a: bf16, b: bf16| bf16::from_f32(a.to_f32().hypot(b.to_f32()));
        let want: Vec<bf16> = (0..3).map(|i| f(f(a[i], b[i]), c[i])).collect();
        let op = Op::new(Kind::AllReduce(Reduce::User)).with_user(hypot.clone());
        group.run(&op, &mut x).unwrap();
        assert_eq!(x.to_vec(), want);
    });
}

#[test]
fn a_users_panic_is_an_error_everywhere_and_the_group_works_on() {
    for world in [2u32, 3, 5] {
        for (commutative, associative) in [(false, false), (true, true)] {
            let fussy = user("fussy", commutative, associative, |a, b| {
                assert!(a != 13 && b != 13, "13 is no number");
                a.max(b)
            });
            LINK.local(world, &config(), |_, group| {
                let mut x = vec![group.rank().0; 50];
                if group.rank() == Rank(1) {
                    x[37] = 13;
                }
                let op = Op::new(Kind::AllReduce(Reduce::User)).with_user(fussy.clone());
                let e = group.run(&op, &mut x).unwrap_err();
                match e.cause() {
                    Cause::Panicked { what, panic, .. } => {
                        assert_eq!(what, "reduction 'fussy'");
                        assert_eq!(panic, "13 is no number");
                    }
                    other => panic!("{other}"),
                }
                let mut x = [group.rank().0; 5];
                group.run(&op, &mut x).unwrap();
                assert_eq!(x, [world - 1; 5]);
            });
        }
    }
}

#[test]
fn a_users_reduction_cannot_call_the_library() {
    use std::sync::Mutex;
    let inner: [Mutex<Vec<String>>; 2] = Default::default();
    LINK.local(2, &config(), |_, group| {
        let said = Arc::new(Mutex::new(vec![]));
        let (group_inside, said_inside) = (group.clone(), Arc::clone(&said));
        let nosy = user("nosy", false, false, move |a, b| {
            let e: Error = group_inside.barrier().unwrap_err();
            said_inside.lock().unwrap().push(e.to_string());
            let e = group_inside
                .subgroup(&[Rank(0), Rank(1)], "x")
                .map(|_| ())
                .unwrap_err();
            said_inside.lock().unwrap().push(e.to_string());
            let mut y = [0.0f32];
            let e = group_inside.all_reduce(&mut y, Sum).unwrap_err();
            said_inside.lock().unwrap().push(e.to_string());
            group_inside.abort("not from here");
            a + b
        });
        let mut x = [1u32];
        group
            .run(
                &Op::new(Kind::AllReduce(Reduce::User)).with_user(nosy),
                &mut x,
            )
            .unwrap();
        assert_eq!(x, [2]);
        // Nothing was aborted, and no lane has lost count.
        group.barrier().unwrap();
        inner[group.rank().idx()]
            .lock()
            .unwrap()
            .extend(said.lock().unwrap().drain(..));
    });
    let said: Vec<String> = inner
        .iter()
        .flat_map(|s| s.lock().unwrap().clone())
        .collect();
    assert!(said.len() >= 3);
    for e in said {
        assert!(e.contains("from inside a user's reduction"), "{e}");
    }
}

#[test]
fn other_reductions_under_one_call_are_a_mismatch() {
    let sum = |name: &str, commutative| user(name, commutative, true, |a, b| a.wrapping_add(b));
    for (mine, other) in [
        (sum("a", true), sum("b", true)),
        (sum("a", true), sum("a", false)),
    ] {
        LINK.local(3, &config(), |_, group| {
            let f = if group.rank() == Rank(2) {
                &other
            } else {
                &mine
            };
            let op = Op::new(Kind::AllReduce(Reduce::User)).with_user(f.clone());
            let e = group.run(&op, &mut [1u32; 9]).unwrap_err();
            match e.cause() {
                Cause::Mismatch { deviating, .. } => assert_eq!(deviating, &[Rank(2)], "{e}"),
                other => panic!("{other}"),
            }
            group.barrier().unwrap();
        });
    }
}
