//! Operations that are set up once and started many times.

use crate::LINK;
use crate::common::{config, lengths};
use gaggle_core::{
    Algorithm, Cause, Counts, Form, Kind, Lane, OnMissing, Op, Rank, Recurring, Reduce, Round, Sum,
};
use std::{
    sync::{Barrier, mpsc},
    time::Duration,
};

fn sum() -> Op {
    Op::new(Kind::AllReduce(Reduce::Sum))
}

fn ring(me: u32, world: u32) -> Round {
    if world == 1 {
        return Round {
            keep: 1.0,
            ..Round::default()
        };
    }
    Round {
        from: vec![(Rank((me + world - 1) % world), 0.5)],
        to: vec![(Rank((me + 1) % world), 1.0)],
        keep: 0.5,
        form: Form::Delta,
    }
}

fn fill(op: &mut Recurring<Vec<f64>>, value: f64) {
    op.elements().unwrap().fill(value);
}

#[test]
fn runs_give_what_single_calls_give() {
    for world in [1u32, 2, 3, 5, 8] {
        LINK.local(world, &config(), |_, group| {
            let me = group.rank().0;
            for (lane, n) in (0u32..).zip(lengths(world)) {
                let mut all = group
                    .persistent(sum().on(Lane(lane)), vec![0f64; n])
                    .unwrap();
                let kind = Kind::Mix {
                    round: ring(me, world),
                    t: 0,
                };
                let mut mix = group
                    .persistent(Op::new(kind).on(Lane(lane)), vec![0f64; n])
                    .unwrap();
                for t in 1..6u64 {
                    fill(&mut all, f64::from(me) + t as f64);
                    fill(&mut mix, f64::from(me) * t as f64);
                    all.start().unwrap();
                    mix.start_round(t * 3).unwrap();
                    // Single calls on the same lane keep the order.
                    if t == 3 {
                        let next = group.start(sum().on(Lane(lane)), vec![1f64; 2]);
                        assert_eq!(next.wait().unwrap(), [f64::from(world); 2]);
                    }
                    let done = all.wait().unwrap();
                    assert!(done.finished >= done.started);
                    mix.wait().unwrap();
                    let ranks = 0..world;
                    let want: f64 = ranks.map(|r| f64::from(r) + t as f64).sum();
                    assert!(all.elements().unwrap().iter().all(|x| *x == want));
                    let prev = (me + world - 1) % world;
                    let want = f64::from(me + prev) * t as f64 / 2.0;
                    assert!(mix.elements().unwrap().iter().all(|x| *x == want));
                }
                assert_eq!(all.into_inner().unwrap().len(), n);
            }
        });
    }
}

#[test]
fn a_run_is_waited_for_before_the_next() {
    let started = Barrier::new(2);
    LINK.local(2, &config(), |_, group| {
        let mut op = group.persistent(sum(), vec![1f64; 3]).unwrap();
        let e = op.wait().unwrap_err();
        assert!(matches!(e.cause(), Cause::Invalid { .. }), "{e}");
        assert!(!op.is_running());
        if group.rank() == Rank(0) {
            op.start().unwrap();
            assert!(op.is_running());
            assert!(op.elements().is_none());
            let e = op.start().unwrap_err();
            assert!(e.to_string().contains("in flight already"), "{e}");
            started.wait();
        } else {
            started.wait();
            op.start().unwrap();
        }
        op.wait().unwrap();
        assert_eq!(op.elements().unwrap(), [2.0; 3]);
        assert!(op.wait().is_err());
    });
}

#[test]
fn rounds_only_grow_and_nothing_happens_where_they_do_not() {
    LINK.local(2, &config(), |_, group| {
        let kind = Kind::Mix {
            round: ring(group.rank().0, 2),
            t: 0,
        };
        let mut op = group.persistent(Op::new(kind), vec![1f64; 3]).unwrap();
        op.start_round(5).unwrap();
        op.wait().unwrap();
        let e = op.start_round(5).unwrap_err();
        assert!(e.to_string().contains("rounds of a lane only grow"), "{e}");
        assert_eq!(op.elements().unwrap(), [1.0; 3]);
        op.start_round(6).unwrap();
        op.wait().unwrap();
    });
}

#[test]
fn what_failed_can_be_started_again_where_the_group_works() {
    LINK.local(3, &config(), |_, group| {
        let mut op = group.persistent(sum(), vec![1f64; 4]).unwrap();
        for k in 0..6 {
            fill(&mut op, 1.0);
            if k % 2 == 0 {
                op.start().unwrap();
                op.wait().unwrap();
                assert_eq!(op.elements().unwrap(), [3.0; 4]);
            } else if group.rank() == Rank(k % 3) {
                // Calls something else under the same number.
                let e = group.run(&sum(), &mut [1f64; 5]).unwrap_err();
                assert!(matches!(e.cause(), Cause::Mismatch { .. }), "{e}");
            } else {
                op.start().unwrap();
                let e = op.wait().unwrap_err();
                assert_eq!(e.culprits(), [Rank(k % 3)], "{e}");
            }
        }
        // An error that nobody waited for is not passed over.
        if group.rank() == Rank(0) {
            group.run(&sum(), &mut [1f64; 5]).unwrap_err();
        } else {
            op.start().unwrap();
            while op.is_running() {
                std::thread::yield_now();
            }
            let e = op.start().unwrap_err();
            assert!(matches!(e.cause(), Cause::Mismatch { .. }), "{e}");
        }
        group.barrier().unwrap();
    });
}

#[test]
fn a_handle_that_goes_during_a_run_leaves_it_to_the_engine() {
    let (tell, told) = mpsc::channel::<()>();
    let told = std::sync::Mutex::new(told);
    LINK.local(2, &config(), |engine, group| {
        let mut dropped = group.persistent(sum(), vec![1f64; 200_000]).unwrap();
        let mut forgotten = group
            .persistent(sum().on(Lane(1)), vec![2f64; 200_000])
            .unwrap();
        if group.rank() == Rank(0) {
            dropped.start().unwrap();
            forgotten.start().unwrap();
            drop(dropped);
            std::mem::forget(forgotten);
            tell.clone().send(()).unwrap();
        } else {
            told.lock().unwrap().recv().unwrap();
            dropped.start().unwrap();
            forgotten.start().unwrap();
            dropped.wait().unwrap();
            forgotten.wait().unwrap();
            assert_eq!(dropped.elements().unwrap()[199_999], 2.0);
            assert_eq!(forgotten.elements().unwrap()[0], 4.0);
        }
        group.barrier().unwrap();
        while engine.in_flight() > 0 {
            std::thread::yield_now();
        }
    });
}

#[test]
fn an_error_of_a_dropped_run_is_the_lanes_next() {
    LINK.local(2, &config(), |engine, group| {
        let mut op = group.persistent(sum(), vec![1f64; 4]).unwrap();
        if group.rank() == Rank(0) {
            op.start().unwrap();
            drop(op);
            while engine.in_flight() > 0 {
                std::thread::yield_now();
            }
            let e = group.run(&sum(), &mut [1f64; 4]).unwrap_err();
            assert!(matches!(e.cause(), Cause::Mismatch { .. }), "{e}");
        } else {
            group.run(&sum(), &mut [1f64; 7]).unwrap_err();
            group.run(&sum(), &mut [1f64; 4]).unwrap_err();
        }
        let mut x = [1.0f32];
        group.all_reduce(&mut x, Sum).unwrap();
        assert_eq!(x, [2.0]);
    });
}

#[test]
fn mistakes_come_out_of_the_set_up_with_the_memory() {
    LINK.local(2, &config(), |_, group| {
        let wrong = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::Bruck);
        let failed = group
            .persistent(wrong, vec![1f64; 4])
            .map(drop)
            .unwrap_err();
        assert_eq!(failed.buf.unwrap(), [1.0; 4]);
        let wrong = Op::new(Kind::AllGather(Counts::Discover));
        let failed = group
            .persistent(wrong, Vec::<f64>::new())
            .map(drop)
            .unwrap_err();
        assert!(failed.buf.is_some());
        let wrong = sum().on_missing(OnMissing::Tolerate);
        let failed = group
            .persistent(wrong, vec![1f64; 4])
            .map(drop)
            .unwrap_err();
        assert!(matches!(failed.error.cause(), Cause::Unsupported { .. }));
        group.barrier().unwrap();
    });
}

#[test]
fn memory_that_was_exchanged_for_another_is_used_or_refused() {
    use gaggle_core::Region;
    LINK.local(2, &config(), |_, group| {
        let io = Region::new(vec![1f32; 6]).into();
        let mut op = group.communicator().persistent(sum(), io).unwrap();
        *op.io().unwrap() = Region::new(vec![5f32; 6]);
        op.start(0).unwrap();
        op.wait().unwrap();
        assert_eq!(op.io().unwrap().typed::<f32>().unwrap(), [10.0; 6]);
        for wrong in [Region::new(vec![5f32; 5]), Region::new(vec![5i32; 6])] {
            *op.io().unwrap() = wrong;
            let e = op.start(0).unwrap_err();
            assert!(matches!(e.cause(), Cause::Invalid { .. }), "{e}");
        }
        *op.io().unwrap() = Region::new(vec![1f32; 6]);
        op.start(0).unwrap();
        let finished = op.into_memory();
        assert!(finished.result.is_ok());
        let x: Vec<f32> = finished.io.unwrap().into_inner().unwrap();
        assert_eq!(x, [2.0; 6]);
    });
}

#[test]
fn a_tolerant_average_recurs_without_the_missing() {
    let over = Barrier::new(2);
    LINK.local(2, &config(), |_, group| {
        let me = group.rank().0;
        let kind = Kind::Mix {
            round: ring(me, 2),
            t: 0,
        };
        let op = Op::new(kind)
            .on_missing(OnMissing::Tolerate)
            .within(Duration::from_millis(if me == 0 { 200 } else { 5000 }));
        let mut op = group.persistent(op, vec![0f64; 400_000]).unwrap();
        for t in 0..3 {
            fill(&mut op, f64::from(me));
            if t == 1 && me == 1 {
                // Not this time.
                over.wait();
                continue;
            }
            op.start_round(t).unwrap();
            let done = op.wait().unwrap();
            let want = if t == 1 { 0.0 } else { 0.5 };
            assert_eq!(op.elements().unwrap()[399_999], want, "round {t}");
            assert_eq!(done.missing.len(), usize::from(t == 1));
            if t == 1 {
                over.wait();
            }
        }
    });
}
