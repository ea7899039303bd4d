//! Messages with tags, counts that are discovered or differ from pair to pair, and every way in which calls can fail to match.

use crate::{
    LINK,
    common::{
        cases::{Case, What},
        config, deviations, lengths,
    },
    suites::pairwise,
};
use gaggle_core::{
    Cause, Counts, DType, Element, Error, Group, Kind, Lane, Op, Rank, Reduce, Sum, SystemClock,
};
use gaggle_engine::{Engine, EngineConfig};
use std::{sync::Arc, time::Duration};

/// Short, for tests that wait for a deadline.
fn impatient() -> EngineConfig {
    let mut config = EngineConfig::default().with_timeout(Duration::from_millis(300));
    // A loaded machine may need its time to answer.
    config.grace = Duration::from_secs(3);
    config
}

fn deviating(e: &Error) -> Vec<Rank> {
    match e.cause() {
        Cause::Mismatch {
            deviating,
            versions,
            ..
        } => {
            assert!(versions.len() > 1, "both versions: {e}");
            deviating.clone()
        }
        other => panic!("no mismatch: {other}"),
    }
}

fn works_again(group: &Group) {
    let mut x = [1.0f32];
    group.all_reduce(&mut x, Sum).unwrap();
    assert_eq!(x, [group.size() as f32]);
}

/// Every rank gets one error: from the call, or, where it had nothing to wait for, from a later one.
fn told(group: &Group, first: Result<(), Error>) -> Error {
    let mut error = first.err();
    until_all_are_told(group, &mut error);
    error.unwrap()
}

/// Word travels beside the operations, so it may come later than the next one ends: all ranks go on until all have been told.
fn until_all_are_told(group: &Group, error: &mut Option<Error>) {
    for _ in 0..50 {
        // Whatever is reported at its end, the operation itself runs as it should.
        let mut x = [f32::from(u8::from(error.is_some()))];
        if let Err(late) = group.all_reduce(&mut x, Sum) {
            assert!(error.is_none(), "told twice: {late}");
            *error = Some(late);
        }
        if x == [group.size() as f32] {
            return;
        }
        // A rank remembers what a few dozen of them were.
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{error:?}, and somebody is never told");
}

/// A rank that nobody has anything to tell goes along while others are being told.
fn not_told(group: &Group) {
    for _ in 0..50 {
        let mut x = [1.0];
        group.all_reduce(&mut x, Sum).unwrap();
        if x == [group.size() as f32] {
            return;
        }
    }
    panic!("somebody is never told");
}

/// Ranks with settings of their own.
fn each(n: u32, config: impl Fn(u32) -> EngineConfig + Sync, f: impl Fn(Group) + Sync) {
    std::thread::scope(|s| {
        for (link, control) in LINK.seats(n) {
            let (config, f) = (&config, &f);
            s.spawn(move || {
                let config = config(control.me().0);
                let clock = Arc::new(SystemClock::new());
                let engine = Engine::new(vec![link], control, clock, config).unwrap();
                f(engine.group());
            });
        }
    });
}

#[test]
fn trial_1_every_field_of_the_descriptor() {
    for d in deviations::all() {
        let settings = |rank| {
            let mut config = config();
            if rank == 2 {
                (d.settings)(&mut config);
            }
            config
        };
        each(3, settings, |group| {
            let call = if group.rank() == Rank(2) {
                &d.other
            } else {
                &d.usual
            };
            let pending = group.communicator().start(call.op.clone(), call.memory());
            let finished = pending.wait();
            assert!(finished.io.is_some(), "{}: memory handed back", d.field);
            assert_eq!(
                finished.input.is_some(),
                call.input.is_some(),
                "{}",
                d.field
            );
            // Settings of one rank's own make every call of its a mismatch.
            let alike = d.usual.op == d.other.op
                && d.usual.io == d.other.io
                && d.usual.dtype == d.other.dtype;
            let e = if alike {
                finished.result.unwrap_err()
            } else {
                told(&group, finished.result.map(drop))
            };
            assert!(deviating(&e).contains(&Rank(2)), "{}: {e}", d.field);
            for text in d.quotes {
                assert!(e.to_string().contains(text), "{}: {text} in {e}", d.field);
            }
            if !alike {
                works_again(&group);
            }
        });
    }
}

#[test]
fn trial_10_every_operation_at_every_awkward_length() {
    for world in [1u32, 2, 3, 5, 7] {
        LINK.local(world, &config(), |_, group| {
            let mut t = 0;
            for what in What::ALL {
                let alone = matches!(what, What::Message | What::Gossip) && world == 1;
                for len in lengths(world) {
                    for salt in 0..3 {
                        let case = Case {
                            what,
                            dtype: DType::F32,
                            reduce: Reduce::Sum,
                            world,
                            len,
                            in_place: false,
                            algorithm: None,
                            asynchronous: what.discovers(),
                            sliced: false,
                            salt,
                        };
                        if !alone {
                            pairwise::run::<f32>(&group, &case, t);
                        }
                        t += 1;
                    }
                }
                works_again(&group);
            }
        });
    }
}

#[test]
fn a_short_message_does_not_wait_for_its_receiver() {
    LINK.local(3, &config(), |_, group| {
        let me = group.rank().0;
        let (next, last) = (Rank((me + 1) % 3), Rank((me + 2) % 3));
        // Everybody sends first: were anybody to wait for the receiver, all would.
        for i in 0..20u32 {
            group.send(&[me * 100 + i; 50], next, 3).unwrap();
        }
        for i in 0..20u32 {
            let mut x = [0u32; 50];
            group.recv(&mut x, last, 3).unwrap();
            assert_eq!(x, [last.0 * 100 + i; 50]);
        }
    });
}

fn differ<A: Element, B: Element>(sent: Vec<A>, expected: Vec<B>, quotes: [&str; 2]) {
    LINK.local(3, &config(), |_, group| {
        let (from, to, tag) = (Rank(0), Rank(2), 9);
        let first = match group.rank().0 {
            0 => group.send(&sent, to, tag).map(drop),
            2 => {
                let mut x = expected.clone();
                group.recv(&mut x, from, tag).map(drop)
            }
            _ => {
                not_told(&group);
                return works_again(&group);
            }
        };
        let e = told(&group, first);
        assert_eq!(deviating(&e), [from, to], "{e}");
        for text in quotes {
            assert!(e.to_string().contains(text), "{text} in {e}");
        }
        // The tag goes on with its next message.
        if group.rank() == from {
            group.send(&[1u8], to, tag).unwrap();
        } else {
            let mut x = [0u8];
            group.recv(&mut x, from, tag).unwrap();
            assert_eq!(x, [1]);
        }
        works_again(&group);
    });
}

#[test]
fn a_message_of_another_length_or_type_is_a_mismatch_on_both_sides() {
    differ(vec![1f32; 10], vec![0f32; 11], ["of 10 f32", "of 11 f32"]);
    differ(vec![1f32; 10], vec![0f32; 0], ["of 10 f32", "of 0 f32"]);
    differ(vec![1f32; 10], vec![0i32; 10], ["of 10 f32", "of 10 i32"]);
    // Longer than what may be sent without the receiver.
    differ(
        vec![1f64; 200_000],
        vec![0f64; 100_000],
        ["of 200000 f64", "of 100000 f64"],
    );
}

#[test]
fn a_partner_that_does_not_come_is_named() {
    LINK.local(3, &impatient(), |_, group| {
        let me = group.rank();
        let patient = || {
            let op = Op::new(Kind::Barrier).on(Lane(8));
            op.within(Duration::from_secs(10))
        };
        if me == Rank(0) {
            let e = group.recv(&mut [0f32; 4], Rank(2), 1).unwrap_err();
            assert!(matches!(e.cause(), Cause::Timeout { .. }), "{e}");
            assert_eq!(e.culprits(), [Rank(2)], "{e}");
            assert!(e.to_string().starts_with("message #0 of tag 1"), "{e}");
            // Longer than what goes without the receiver.
            let e = group.send(&vec![0f64; 100_000], Rank(1), 1).unwrap_err();
            assert_eq!(e.culprits(), [Rank(1)], "{e}");
        }
        group.run(&patient(), &mut [0u8; 0]).unwrap();
    });
}

#[test]
fn an_aborted_group_has_no_messages() {
    LINK.local(3, &config(), |_, group| {
        let e = match group.rank().0 {
            0 => group.recv(&mut [0f32; 4], Rank(1), 1).unwrap_err(),
            1 => {
                group.abort("enough");
                group.send(&[0f32; 4], Rank(0), 1).unwrap_err()
            }
            _ => group.recv(&mut [0f32; 4], Rank(0), 1).unwrap_err(),
        };
        let aborted = matches!(e.cause(), Cause::Aborted { by: Rank(1), .. });
        assert!(aborted, "{e}");
    });
}

/// Rank r's part of the n-th operation.
fn part(r: u32, n: usize) -> Vec<i32> {
    vec![(r * 100) as i32 + n as i32; (r as usize + n) % 4]
}

#[test]
fn many_discovered_counts_are_in_flight_on_one_lane() {
    for world in [1u32, 2, 3, 5, 8] {
        LINK.local(world, &config(), |_, group| {
            let me = group.rank().0;
            let start = |n: usize| {
                let op = Op::new(Kind::AllGather(Counts::Discover));
                group.start_into(op, part(me, n), Vec::<i32>::new())
            };
            let mut works = vec![];
            for n in 0..30 {
                let work = start(n);
                // Some are dropped at once: they go on, and nobody is out of step.
                if n % 7 == 3 {
                    drop(work);
                } else {
                    works.push((n, work));
                }
                if n % 5 == 0 {
                    works_again(&group);
                }
            }
            for (n, work) in works {
                let (input, all, done) = work.wait().unwrap();
                assert_eq!(input, part(me, n));
                let want: Vec<i32> = (0..world).flat_map(|r| part(r, n)).collect();
                assert_eq!(all, want);
                let counts: Vec<u64> = (0..world).map(|r| part(r, n).len() as u64).collect();
                assert_eq!(done.counts, counts);
            }
            works_again(&group);
        });
    }
}

#[test]
fn rounds_of_discovered_counts_overlap_and_may_be_skipped() {
    LINK.local(3, &config(), |_, group| {
        let me = group.rank().0;
        let (next, last) = (Rank((me + 1) % 3), Rank((me + 2) % 3));
        let start = |t: u64| {
            let op = Op::new(Kind::NeighbourGather {
                from: [last].into(),
                to: [next].into(),
                counts: Counts::Discover,
                t,
            });
            group.start_into(op, part(me, t as usize), Vec::<i32>::new())
        };
        let works: Vec<_> = (0..10).map(|t| (t, start(t))).collect();
        for (t, work) in works.into_iter().rev() {
            let (_, got, done) = work.wait().unwrap();
            assert_eq!(got, part(last.0, t as usize));
            assert_eq!(done.counts, [got.len() as u64]);
        }
        // Rank 0 skips rounds that nobody expects it in.
        if me != 0 {
            let op = Op::new(Kind::NeighbourGather {
                from: if me == 2 { [Rank(1)].into() } else { [].into() },
                to: if me == 1 { [Rank(2)].into() } else { [].into() },
                counts: Counts::Discover,
                t: 10,
            });
            let (_, got, _) = group.start_into(op, part(me, 3), vec![]).wait().unwrap();
            assert_eq!(got, if me == 2 { part(1, 3) } else { vec![] });
        }
        let (_, got, _) = start(11).wait().unwrap();
        assert_eq!(got, part(last.0, 11));
        works_again(&group);
    });
}

#[test]
fn the_input_comes_back_where_counts_are_not_found() {
    LINK.local(2, &impatient(), |_, group| {
        if group.rank() == Rank(0) {
            let op = Op::new(Kind::AllGather(Counts::Discover));
            let failed = group
                .start_into(op, vec![1i32, 2], Vec::<i32>::new())
                .wait();
            let failed = failed.unwrap_err();
            assert_eq!(failed.error.culprits(), [Rank(1)], "{}", failed.error);
            assert_eq!(failed.input, Some(vec![1, 2]));
            assert_eq!(failed.output, Some(vec![]));
        }
        let patient = Op::new(Kind::Barrier).on(Lane(8));
        let patient = patient.within(Duration::from_secs(10));
        group.run(&patient, &mut [0u8; 0]).unwrap();
        // A blocking call cannot make its output.
        let op = Op::new(Kind::AllGather(Counts::Discover));
        let e = group.run_into(&op, &[1i32], &mut []).unwrap_err();
        assert!(e.to_string().contains("asynchronous"), "{e}");
    });
}

#[test]
fn counts_that_differ_between_two_ranks_are_named_on_both() {
    // What rank 0 sends to rank 1, and what is expected there; slices of 4 elements or one.
    for (sent, expected) in [
        (5usize, 7usize),
        (7, 5),
        (5, 3),
        (0, 3),
        (3, 0),
        (90_000, 90_001),
    ] {
        for slice in [16, 1 << 18] {
            let mut settings = config();
            settings.slice_bytes = slice.max(if sent > 1000 { 1 << 16 } else { 0 });
            LINK.local(3, &settings, |_, group| {
                let me = group.rank().0;
                let mut send = [2u64; 3];
                let mut recv = [2u64; 3];
                if me == 0 {
                    send[1] = sent as u64;
                } else if me == 1 {
                    recv[0] = expected as u64;
                }
                let x = vec![1f32; send.iter().sum::<u64>() as usize];
                let first = group.all_to_all_v(&x, &send, &recv).map(drop);
                if me == 2 {
                    // It has nothing to do with it, but may hear of it.
                    if let Err(e) = first {
                        assert_eq!(deviating(&e), [Rank(0), Rank(1)], "{e}");
                    }
                    not_told(&group);
                    return works_again(&group);
                }
                let e = told(&group, first);
                assert_eq!(deviating(&e), [Rank(0), Rank(1)], "{e}");
                assert!(
                    e.to_string().contains(&format!("{sent} f32 to rank 1")),
                    "{e}"
                );
                assert!(
                    e.to_string()
                        .contains(&format!("{expected} f32 from rank 0")),
                    "{e}"
                );
                works_again(&group);
            });
        }
    }
}

#[test]
fn neighbours_whose_counts_differ_are_both_told() {
    LINK.local(2, &config(), |_, group| {
        let me = group.rank().0;
        let other = Rank(1 - me);
        let part = vec![1f32; if me == 0 { 5 } else { 6 }];
        // Rank 1 expects one element more than rank 0 has.
        let counts = [6];
        let first = group.neighbour_all_gather_v(&part, &[other], &[other], &counts, 0);
        let e = told(&group, first.map(drop));
        assert_eq!(deviating(&e), [Rank(0), Rank(1)], "{e}");
        works_again(&group);
    });
}

#[test]
fn nothing_is_divided_by_no_weight() {
    LINK.local(3, &config(), |_, group| {
        let me = group.rank().0;
        let drained = |kind: Kind| Op::new(kind).weighing(gaggle_core::Weight::ZERO);
        let reduce = Reduce::Mean;
        let mut y = [7f32; 2];
        let root = Rank(1);
        let op = drained(Kind::Reduce { reduce, root });
        group.run_into(&op, &[f32::NAN; 2], &mut y).unwrap();
        assert_eq!(y, [7.0; 2], "nobody contributes, nothing changes");
        let op = drained(Kind::ReduceScatter {
            reduce,
            counts: Counts::Equal,
        });
        let done = group.run_into(&op, &[f32::NAN; 6], &mut y).unwrap();
        assert_eq!((y, done.weight), ([7.0; 2], gaggle_core::Weight::ZERO));
        // One has something to say.
        let weight = gaggle_core::Weight::samples(if me == 2 { 5 } else { 0 });
        let op = Op::new(Kind::Reduce { reduce, root }).weighing(weight);
        let done = group.run_into(&op, &[me as f32; 2], &mut y).unwrap();
        if me == 1 {
            assert_eq!((y, done.weight.to_f64()), ([2.0; 2], 5.0));
        } else {
            assert_eq!(y, [7.0; 2]);
        }
    });
}

#[test]
fn a_choice_can_be_explained() {
    LINK.local(4, &config(), |_, group| {
        let op = Op::new(Kind::AllReduce(Reduce::Sum));
        let small = group.explain::<f32>(&op, 10).unwrap();
        let large = group.explain::<f32>(&op, 10 << 20).unwrap();
        assert!(small.starts_with("all_reduce by "), "{small}");
        assert!(small.contains("fastest"), "{small}");
        assert_ne!(small, large);
        let e = group
            .explain::<f32>(&op.by(gaggle_core::Algorithm::Bruck), 10)
            .unwrap_err();
        assert!(e.to_string().contains("bruck"), "{e}");
    });
}
