//! What goes wrong, said as it should be: typed, bounded, naming who; and the group works on where it can.

use crate::LINK;
use crate::common::config;
use gaggle_core::{
    Algorithm, Cause, Error, Form, Group, Kind, Lane, Mean, Op, Rank, Reduce, Round, Sum,
};
use std::{sync::mpsc, time::Duration};

/// Short, for tests that wait for a deadline.
fn impatient() -> gaggle_engine::EngineConfig {
    let mut config =
        gaggle_engine::EngineConfig::default().with_timeout(Duration::from_millis(400));
    // A loaded machine may need its time to answer.
    config.grace = Duration::from_secs(3);
    config
}

fn mismatch(e: &Error) -> (&[Rank], &[(Vec<Rank>, String)]) {
    match e.cause() {
        Cause::Mismatch {
            deviating,
            versions,
            ..
        } => (deviating, versions),
        other => panic!("no mismatch: {other}"),
    }
}

fn works_again(group: &Group) {
    let mut x = [1.0f32];
    group.all_reduce(&mut x, Sum).unwrap();
    assert_eq!(x, [group.size() as f32]);
}

#[test]
fn trial_1a_other_shape_on_one_rank() {
    for algorithm in [
        Algorithm::Ring,
        Algorithm::RecursiveDoubling,
        Algorithm::Direct,
    ] {
        LINK.local(4, &config(), |_, group| {
            let rows = if group.rank() == Rank(0) { 100 } else { 200 };
            let mut x = vec![1.0f32; rows * 2560];
            let op = Op::new(Kind::AllReduce(Reduce::Sum)).by(algorithm);
            let e = group.run(&op, &mut x).unwrap_err();
            let (deviating, versions) = mismatch(&e);
            assert_eq!(deviating, [Rank(0)], "{e}");
            assert_eq!(versions.len(), 2);
            assert!(versions[0].1.contains("of 256000 f32"), "{e}");
            assert!(versions[1].1.contains("of 512000 f32"), "{e}");
            assert!(e.to_string().starts_with("#0: rank 0 deviates"), "{e}");
            works_again(&group);
        });
    }
}

#[test]
fn trial_1b_two_against_two_names_all() {
    LINK.local(4, &config(), |_, group| {
        let rows = if group.rank().0 < 2 { 1 } else { 2 };
        let mut x = vec![1.0f32; rows * 2560];
        let e = group.all_reduce(&mut x, Sum).unwrap_err();
        assert_eq!(mismatch(&e).0, [0, 1, 2, 3].map(Rank), "{e}");
        works_again(&group);
    });
    LINK.local(2, &config(), |_, group| {
        let rows = if group.rank().0 == 0 { 1 } else { 2 };
        let mut x = vec![1.0f32; rows * 2560];
        let e = group.all_reduce(&mut x, Sum).unwrap_err();
        assert_eq!(mismatch(&e).0, [0, 1].map(Rank), "{e}");
        works_again(&group);
    });
}

#[test]
fn trial_1c_all_reduce_meets_a_barrier() {
    for world in [2, 4, 8] {
        LINK.local(world, &config(), |_, group| {
            let e = if group.rank() == Rank(1) {
                group.barrier().unwrap_err()
            } else {
                let mut x = vec![1.0f32; 1000];
                group.all_reduce(&mut x, Sum).unwrap_err()
            };
            let (deviating, versions) = mismatch(&e);
            let want: &[Rank] = if world == 2 {
                &[Rank(0), Rank(1)]
            } else {
                &[Rank(1)]
            };
            assert_eq!(deviating, want, "{e}");
            assert!(versions.iter().any(|(_, v)| v == "barrier"), "{e}");
            works_again(&group);
        });
    }
}

#[test]
fn every_difference_is_a_mismatch() {
    let sum = || Op::new(Kind::AllReduce(Reduce::Sum));
    type Make = fn(Op) -> Op;
    let differences: [(&str, Make); 4] = [
        ("max", |op| Op {
            kind: Kind::AllReduce(Reduce::Max),
            ..op
        }),
        ("ring", |op| op.by(Algorithm::Ring)),
        ("priority 3", |op| Op { priority: 3, ..op }),
        ("bf16", |op| op.coded_always(gaggle_core::Codec::Bf16)),
    ];
    for (text, change) in differences {
        LINK.local(3, &config(), |_, group| {
            let op = if group.rank() == Rank(2) {
                change(sum())
            } else {
                sum()
            };
            let e = group.run(&op, &mut [1.0f32; 5]).unwrap_err();
            assert_eq!(mismatch(&e).0, [Rank(2)], "{e}");
            assert!(e.to_string().contains(text), "{e}");
            works_again(&group);
        });
    }
    // Another element type.
    LINK.local(3, &config(), |_, group| {
        let e = if group.rank() == Rank(1) {
            group.run(&sum(), &mut [1.0f64; 5]).unwrap_err()
        } else {
            group.run(&sum(), &mut [1.0f32; 5]).unwrap_err()
        };
        assert_eq!(mismatch(&e).0, [Rank(1)], "{e}");
        works_again(&group);
    });
}

#[test]
fn lengths_of_zero_meet_too() {
    LINK.local(4, &config(), |_, group| {
        let mut x = vec![1.0f32; usize::from(group.rank() == Rank(3))];
        let e = group.all_reduce(&mut x, Sum).unwrap_err();
        assert_eq!(mismatch(&e).0, [Rank(3)], "{e}");
        works_again(&group);
    });
}

#[test]
fn neighbours_with_other_lengths_are_told() {
    LINK.local(3, &config(), |_, group| {
        let me = group.rank().0;
        let (prev, next) = (Rank((me + 2) % 3), Rank((me + 1) % 3));
        let round = Round {
            from: vec![(prev, 0.5)],
            to: vec![(next, 1.0)],
            keep: 0.5,
            form: Form::Delta,
        };
        let mut x = vec![1.0f32; if me == 1 { 7 } else { 8 }];
        let outcome = group.mix(&mut x, &round, 0);
        // Rank 0 hears from rank 2 alone, which called the same: it may well be done.
        if me != 0 || outcome.is_err() {
            let e = outcome.unwrap_err();
            assert!(mismatch(&e).0.contains(&Rank(1)), "{e}");
        }
        works_again(&group);
    });
}

#[test]
fn an_absent_rank_is_named_by_all() {
    for world in [2, 3, 5, 8] {
        let absent = Rank(world - 1);
        let (tell, told) = mpsc::channel::<()>();
        let told = std::sync::Mutex::new(told);
        LINK.local(world, &impatient(), |_, group| {
            if group.rank() == absent {
                // Alive, but it does not call: it waits until all others have given up.
                for _ in 1..world {
                    told.lock().unwrap().recv().unwrap();
                }
                return;
            }
            let e = group.all_reduce(&mut [1.0f32; 100], Mean).unwrap_err();
            match e.cause() {
                Cause::Timeout { waiting_for, .. } => assert_eq!(waiting_for, &[absent], "{e}"),
                other => panic!("no timeout: {other}"),
            }
            tell.clone().send(()).unwrap();
        });
    }
}

#[test]
fn who_blocks_on_another_lane_is_named_alone() {
    LINK.local(3, &impatient(), |_, group| {
        let me = group.rank();
        let lane = Lane(if me == Rank(1) { 5 } else { 0 });
        let op = Op::new(Kind::AllReduce(Reduce::Sum)).on(lane);
        let e = group.run(&op, &mut vec![1.0f32; 30_000]).unwrap_err();
        if me == Rank(1) {
            assert_eq!(e.culprits(), [Rank(0), Rank(2)], "{e}");
        } else {
            assert_eq!(e.culprits(), [Rank(1)], "{e}");
        }
        let patient = Op::new(Kind::Barrier)
            .on(Lane(8))
            .within(Duration::from_secs(5));
        group.run(&patient, &mut [0u8; 0]).unwrap();
    });
}

#[test]
fn a_late_rank_harms_nobody_and_the_group_goes_on() {
    let (tell, told) = mpsc::channel::<()>();
    let told = std::sync::Mutex::new(told);
    LINK.local(3, &impatient(), |_, group| {
        let late = group.rank() == Rank(1);
        if late {
            for _ in 0..2 {
                told.lock().unwrap().recv().unwrap();
            }
        }
        let outcome = group.all_reduce(&mut [1.0f32; 100], Mean);
        // The late one hears that it is too late, unless all it needs lies there already and the word is still on its way.
        if !late || outcome.is_err() {
            let e = outcome.unwrap_err();
            assert_eq!(e.culprits(), [Rank(1)], "{e}");
        }
        if !late {
            tell.clone().send(()).unwrap();
        }
        let patient = Op::new(Kind::AllReduce(Reduce::Sum)).within(Duration::from_secs(5));
        let mut x = [1.0f32];
        group.run(&patient, &mut x).unwrap();
        assert_eq!(x, [3.0]);
    });
}

#[test]
fn start_returns_before_the_peer_has_come_and_needs_no_wait_to_finish() {
    let (tell, told) = mpsc::channel::<()>();
    let told = std::sync::Mutex::new(told);
    LINK.local(2, &config(), |_, group| {
        if group.rank() == Rank(0) {
            let work = group.start_all_reduce(vec![1.0f64; 1000], Sum);
            assert!(!work.is_done(), "the peer has not come");
            tell.clone().send(()).unwrap();
            // Nobody waits: the progress thread alone finishes it.
            while !work.is_done() {
                std::thread::yield_now();
            }
            assert_eq!(work.wait().unwrap(), [2.0; 1000]);
        } else {
            told.lock().unwrap().recv().unwrap();
            let mut x = vec![1.0f64; 1000];
            group.all_reduce(&mut x, Sum).unwrap();
        }
    });
}

#[test]
fn a_lost_peer_ends_everything_that_needs_it_and_nothing_else() {
    use gaggle_core::SystemClock;
    use gaggle_engine::Engine;
    use std::sync::Arc;
    std::thread::scope(|s| {
        for (link, control) in LINK.seats(4) {
            s.spawn(move || {
                if control.me() == Rank(3) {
                    // Dies without a word.
                    drop((link, control));
                    return;
                }
                let clock = Arc::new(SystemClock::new());
                let engine = Engine::new(vec![link], control, clock, config()).unwrap();
                let group = engine.group();
                let e = group.all_reduce(&mut [1.0f32; 100], Sum).unwrap_err();
                assert!(
                    matches!(e.cause(), Cause::PeerLost { rank: Rank(3), .. }),
                    "{e}"
                );
                let e = group.barrier().unwrap_err();
                assert!(
                    matches!(e.cause(), Cause::PeerLost { rank: Rank(3), .. }),
                    "{e}"
                );
                // Survivors go on among themselves; neighbours of the living too.
                let rest = group.subgroup(&[0, 1, 2].map(Rank), "survivors").unwrap();
                works_again(&rest);
                let me = group.rank().0;
                let round = Round {
                    from: vec![(Rank((me + 2) % 3), 0.5)],
                    to: vec![(Rank((me + 1) % 3), 1.0)],
                    keep: 0.5,
                    form: Form::Delta,
                };
                group.mix(&mut [f64::from(me)], &round, 0).unwrap();
                let round = Round {
                    from: vec![(Rank(3), 0.5)],
                    to: vec![],
                    keep: 0.5,
                    form: Form::Delta,
                };
                let e = group.mix(&mut [1.0f32], &round, 1).unwrap_err();
                assert!(
                    matches!(e.cause(), Cause::PeerLost { rank: Rank(3), .. }),
                    "{e}"
                );
                rest.barrier().unwrap();
            });
        }
    });
}

#[test]
fn who_has_left_is_not_lost() {
    LINK.local(3, &config(), |_, group| {
        works_again(&group);
        if group.rank() == Rank(2) {
            return;
        }
        let e = group.barrier().unwrap_err();
        assert!(
            matches!(e.cause(), Cause::PeerLeft { rank: Rank(2), .. }),
            "{e}"
        );
    });
}

#[test]
fn abort_ends_operations_everywhere() {
    LINK.local(4, &config(), |_, group| {
        let e = if group.rank() == Rank(2) {
            let work = group.start_all_reduce(vec![1.0f32; 10], Sum);
            group.abort("loss is not a number");
            group.abort("twice");
            work.wait().unwrap_err().error
        } else {
            // Rank 0 leaves the lane's turn to the others, so that nothing can finish.
            let lane = if group.rank() == Rank(0) {
                Lane(1)
            } else {
                Lane(0)
            };
            let op = Op::new(Kind::AllReduce(Reduce::Sum)).on(lane);
            group.run(&op, &mut [1.0f32; 10]).unwrap_err()
        };
        assert!(
            matches!(e.cause(), Cause::Aborted { by: Rank(2), .. }),
            "{e}"
        );
        assert!(e.to_string().contains("loss is not a number"), "{e}");
        let e = group.barrier().unwrap_err();
        assert!(matches!(e.cause(), Cause::Aborted { .. }), "{e}");
        // Other groups on the same links do not care.
        let sub = group.subgroup(&[0, 1, 2, 3].map(Rank), "other").unwrap();
        works_again(&sub);
    });
}

#[test]
fn a_detached_operation_reports_on_the_lanes_next() {
    LINK.local(2, &impatient(), |engine, group| {
        if group.rank() == Rank(0) {
            drop(group.start_all_reduce(vec![1.0f32; 10], Sum));
            // It ends at its deadline, with nobody left to tell.
            while engine.in_flight() > 0 {
                std::thread::yield_now();
            }
            let e = group.barrier().unwrap_err();
            assert!(e.to_string().starts_with("all_reduce #0"), "{e}");
            assert_eq!(e.culprits(), [Rank(1)], "{e}");
        } else {
            let patient = Op::new(Kind::Barrier)
                .on(Lane(9))
                .within(Duration::from_secs(1));
            let e = group.run(&patient, &mut [0u8; 0]).unwrap_err();
            assert_eq!(e.culprits(), [Rank(0)], "{e}");
        }
    });
}

#[test]
fn an_inherited_error_reaches_the_others_as_what_it_is() {
    LINK.local(3, &config(), |engine, group| {
        let len = if group.rank() == Rank(0) { 1 } else { 2 };
        let work = group.start_all_reduce(vec![1.0f32; len], Sum);
        if group.rank() == Rank(0) {
            drop(work);
            while engine.in_flight() > 0 {
                std::thread::yield_now();
            }
        } else {
            assert_eq!(mismatch(&work.wait().unwrap_err().error).0, [Rank(0)]);
        }
        let e = group.barrier().unwrap_err();
        if group.rank() == Rank(0) {
            assert_eq!(mismatch(&e).0, [Rank(0)], "{e}");
        } else {
            assert!(
                e.to_string()
                    .contains("an earlier operation of the lane failed"),
                "{e}"
            );
        }
        works_again(&group);
    });
}

#[test]
fn a_deadline_that_is_set_while_others_sleep_is_kept() {
    for _ in 0..10 {
        let (tell, told) = mpsc::channel::<()>();
        let told = std::sync::Mutex::new(told);
        LINK.local(2, &config(), |_, group| {
            if group.rank() == Rank(1) {
                // Comes to the barrier only when the other has seen its deadline pass.
                told.lock().unwrap().recv().unwrap();
                return group.barrier().unwrap();
            }
            std::thread::scope(|s| {
                let waiter = s.spawn(|| group.barrier().unwrap());
                let op = Op::new(Kind::AllReduce(Reduce::Sum))
                    .on(Lane(7))
                    .within(Duration::from_millis(20));
                let work = group.start(op, vec![1.0f32; 10]);
                while !work.is_done() {
                    std::thread::yield_now();
                }
                assert_eq!(work.wait().unwrap_err().error.culprits(), [Rank(1)]);
                tell.clone().send(()).unwrap();
                waiter.join().unwrap();
            });
        });
    }
}

#[test]
fn plans_of_the_callers_own_are_checked_before_they_run() {
    use gaggle_collectives::{Call, Request, Steps, plan};
    use std::sync::Arc;
    LINK.local(2, &config(), |engine, group| {
        let request = Request {
            call: Call::AllReduce {
                reduce: Reduce::Sum,
                algorithm: Algorithm::Direct,
            },
            rank: group.rank(),
            world: 2,
            len: 6,
            slice: 100,
            codec: gaggle_core::Codec::None,
            widen: false,
            ..Request::default()
        };
        let good = plan(&request).unwrap();
        let op = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::Direct);
        let run = |plan, n: usize| {
            engine
                .start_plan(plan, &op, gaggle_core::Region::new(vec![1f32; n]))
                .wait()
        };
        let refused = |plan, n: usize, text: &str| {
            let finished = run(plan, n);
            let e = finished.result.unwrap_err();
            assert!(e.to_string().contains(text), "{e}");
            assert!(finished.io.is_some());
        };
        refused(good.clone(), 7, "the buffer has 7");
        let mut other = good.clone();
        other.rank = Rank(1 - group.rank().0);
        refused(other, 6, "is for rank");
        let mut outside = good.clone();
        outside.scratch_len = 0;
        refused(outside, 6, "outside its buffer");
        let mut reads = good.clone();
        reads.input_len = 6;
        refused(reads, 6, "reads 6 elements of an input");
        let mut greedy = good.clone();
        greedy.scratch_len = 1 << 61;
        refused(greedy, 6, "wants scratch of 2305843009213693952");
        let mut waits = good.clone();
        let mut steps: Vec<_> = good.iter().collect();
        steps[0].after.push(0);
        waits.steps = Arc::new(steps) as Arc<dyn Steps>;
        refused(waits, 6, "does not come before it");
        let finished = run(good, 6);
        assert!(finished.result.is_ok());
        assert_eq!(
            finished.io.unwrap().into_inner::<Vec<f32>>().unwrap(),
            [2.0; 6]
        );
        works_again(&group);
    });
}

#[test]
fn a_group_outlives_its_engine_without_harm() {
    let groups = LINK.local(2, &config(), |_, group| {
        group.barrier().unwrap();
        group
    });
    for group in groups {
        let e = group.barrier().unwrap_err();
        assert!(matches!(e.cause(), Cause::PeerLeft { .. }), "{e}");
    }
}
