//! Ends before the end: cancelled, aborted, dropped and forgotten; from any thread, under traffic, and nobody else suffers.

use crate::LINK;
use crate::common::config;
use gaggle_core::{Cause, Error, Form, Group, Kind, Lane, Op, Rank, Reduce, Round, Sum};
use std::sync::{
    Barrier,
    atomic::{AtomicU32, Ordering},
};

fn cancelled_by(e: &Error, by: u32) {
    match e.cause() {
        Cause::Cancelled { by: who, .. } => assert_eq!(*who, Rank(by), "{e}"),
        other => panic!("not cancelled: {other}"),
    }
}

fn works_again(group: &Group) {
    let mut x = [1.0f32];
    group.all_reduce(&mut x, Sum).unwrap();
    assert_eq!(x, [group.size() as f32]);
}

fn all_reduce() -> Op {
    Op::new(Kind::AllReduce(Reduce::Sum))
}

#[test]
fn a_cancelled_collective_ends_on_every_member() {
    for len in [1usize, 300_000] {
        let cancelled = Barrier::new(4);
        LINK.local(4, &config(), |_, group| {
            let e = if group.rank() == Rank(2) {
                // Has not called it when it is cancelled.
                cancelled.wait();
                let mut x = vec![1.0f32; len];
                group.run(&all_reduce(), &mut x).unwrap_err()
            } else {
                let work = group.start(all_reduce(), vec![1.0f32; len]);
                let canceller = work.canceller().unwrap();
                std::thread::scope(|s| {
                    // A caller that blocks on another thread wakes up.
                    let waiter = s.spawn(|| work.wait());
                    if group.rank() == Rank(1) {
                        canceller.cancel("enough");
                        canceller.cancel("twice");
                    }
                    let failed = waiter.join().unwrap().unwrap_err();
                    assert_eq!(failed.buf.as_ref().unwrap().len(), len);
                    cancelled.wait();
                    canceller.cancel("after the end");
                    failed.error
                })
            };
            cancelled_by(&e, 1);
            assert!(e.to_string().contains("cancelled by rank 1: enough"), "{e}");
            works_again(&group);
        });
    }
}

#[test]
fn what_is_over_cannot_be_cancelled() {
    LINK.local(3, &config(), |_, group| {
        let work = group.start(all_reduce(), vec![2.0f32; 5]);
        let canceller = work.canceller().unwrap();
        assert_eq!(work.wait().unwrap(), [6.0; 5]);
        let next = group.start(all_reduce(), vec![3.0f32; 5]);
        canceller.cancel("too late");
        assert_eq!(next.wait().unwrap(), [9.0; 5]);
    });
}

/// Rank 0 gives to rank 1; ranks 2 and 3 have each other.
fn pairs(rank: u32) -> Round {
    let (from, to): (&[u32], &[u32]) = match rank {
        0 => (&[], &[1]),
        1 => (&[0], &[]),
        2 => (&[3], &[3]),
        _ => (&[2], &[2]),
    };
    Round {
        from: from.iter().map(|r| (Rank(*r), 0.5)).collect(),
        to: to.iter().map(|r| (Rank(*r), 1.0)).collect(),
        keep: 1.0 - 0.5 * from.len() as f64,
        form: Form::Delta,
    }
}

#[test]
fn a_cancelled_neighbour_round_ends_for_those_who_wait_for_this_rank() {
    // More than a link's credit, so that rank 0's part is not under way before rank 1 has come.
    const LEN: usize = 600_000;
    let cancelled = Barrier::new(4);
    LINK.local(4, &config(), |_, group| {
        let me = group.rank().0;
        let round = pairs(me);
        if me == 1 {
            cancelled.wait();
        }
        let work = group.start(Op::new(Kind::Mix { round, t: 0 }), vec![me as f32; LEN]);
        if me == 0 {
            work.canceller().unwrap().cancel("changed my mind");
        }
        if me != 1 {
            cancelled.wait();
        }
        match (me, work.wait()) {
            (0 | 1, Err(failed)) => {
                cancelled_by(&failed.error, 0);
                assert_eq!(failed.buf.unwrap().len(), LEN);
            }
            // They wait for others.
            (2 | 3, Ok(x)) => assert_eq!(x[LEN - 1], 2.5),
            (_, outcome) => panic!("rank {me}: {:?}", outcome.map(|x| x[0])),
        }
        works_again(&group);
        let mut x = [me as f32];
        group.mix(&mut x, &pairs(me), 1).unwrap();
    });
}

#[test]
fn cancelling_and_aborting_leave_the_traffic_of_other_groups_alone() {
    const WORLD: u32 = 4;
    const LEN: usize = 200_000;
    let ended = LINK.local(WORLD, &config(), |_, group| {
        let me = group.rank().0;
        let all: Vec<Rank> = (0..WORLD).map(Rank).collect();
        let other = group.subgroup(&all, "other").unwrap();
        let ended = AtomicU32::new(0);
        for k in 0..12u32 {
            let victim = group.subgroup(&all, &format!("victim {k}")).unwrap();
            let bystanders: Vec<_> = (0..4u32)
                .map(|lane| {
                    let x = vec![(me + lane) as f32; LEN];
                    other.start(all_reduce().on(Lane(lane)), x)
                })
                .collect();
            let works: Vec<_> = (0..4u32)
                .map(|lane| victim.start(all_reduce().on(Lane(lane)), vec![1.0f32; LEN]))
                .collect();
            let cancellers: Vec<_> = works.iter().filter_map(|w| w.canceller()).collect();
            std::thread::scope(|s| {
                // Each time another rank, at some moment of the traffic.
                if k % WORLD == me {
                    s.spawn(|| {
                        if k % 3 == 2 {
                            victim.abort("under traffic");
                        } else {
                            for canceller in &cancellers {
                                canceller.cancel("under traffic");
                            }
                        }
                    });
                }
                for work in works {
                    match work.wait() {
                        // It was faster.
                        Ok(x) => assert!(x.iter().all(|x| *x == WORLD as f32)),
                        Err(failed) => {
                            let e = &failed.error;
                            let by = match e.cause() {
                                Cause::Cancelled { by, .. } | Cause::Aborted { by, .. } => *by,
                                other => panic!("{other}"),
                            };
                            assert_eq!(by, Rank(k % WORLD), "{e}");
                            assert_eq!(failed.buf.unwrap().len(), LEN);
                            ended.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                for (lane, work) in (0u32..).zip(bystanders) {
                    let want = (0..WORLD).map(|r| (r + lane) as f32).sum::<f32>();
                    assert!(work.wait().unwrap().iter().all(|x| *x == want));
                }
            });
        }
        works_again(&other);
        works_again(&group);
        ended.into_inner()
    });
    assert!(
        ended.iter().sum::<u32>() > 0,
        "all of it was over before it was cancelled"
    );
}

#[test]
fn dropped_and_forgotten_handles_change_nothing_for_the_others() {
    LINK.local(3, &config(), |engine, group| {
        for k in 0..20 {
            let work = group.start(all_reduce(), vec![1.0f32; 1000]);
            match (group.rank().0 + k) % 3 {
                0 => drop(work),
                1 => std::mem::forget(work),
                _ => assert_eq!(work.wait().unwrap(), [3.0; 1000]),
            }
        }
        // A scope waits for work whose name was forgotten.
        let (mut x, mut y) = ([1.0f32; 10], [2.0f32; 10]);
        group.scope(|scope| {
            std::mem::forget(Box::new(scope.start(all_reduce().on(Lane(1)), &mut x)));
            let _unused = scope.start(all_reduce().on(Lane(2)), &mut y);
        });
        assert_eq!((x, y), ([3.0; 10], [6.0; 10]));
        works_again(&group);
        while engine.in_flight() > 0 {
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_forgotten_handle_of_a_cancelled_operation_is_sound() {
    let cancelled = Barrier::new(2);
    LINK.local(2, &config(), |engine, group| {
        if group.rank() == Rank(0) {
            let work = group.start(all_reduce(), vec![1.0f32; 400_000]);
            let canceller = work.canceller().unwrap();
            std::mem::forget(work);
            canceller.cancel("nobody looks");
            cancelled.wait();
            while engine.in_flight() > 0 {
                std::thread::yield_now();
            }
        } else {
            cancelled.wait();
            let e = group.run(&all_reduce(), &mut vec![1.0f32; 400_000]);
            cancelled_by(&e.unwrap_err(), 0);
        }
        works_again(&group);
    });
}
