//! What must not stay behind, and who must not be locked out: after aborted groups, neighbours that were done without, and calls from inside a user's reduction.

use crate::LINK;
use crate::common::config;
use gaggle_core::{
    Cause, Codec, Counts, Group, Kind, OnMissing, Op, Properties, Rank, Reduce, Round, Sum,
    UserReduction,
};
use gaggle_engine::EngineConfig;
use std::{
    sync::{Arc, Barrier, Mutex},
    time::Duration,
};

pub fn works_again(group: &Group) {
    let mut x = [1.0f32];
    group.all_reduce(&mut x, Sum).unwrap();
    assert_eq!(x, [group.size() as f32]);
}

#[test]
fn without_grace_the_verdict_falls_at_the_deadline() {
    let mut config = EngineConfig::default().with_timeout(Duration::from_millis(50));
    config.grace = Duration::ZERO;
    let over = Barrier::new(2);
    LINK.local(2, &config, |_, group| {
        if group.rank() == Rank(0) {
            let e = group.all_reduce(&mut [1.0f32], Sum).unwrap_err();
            assert!(matches!(e.cause(), Cause::Timeout { .. }), "{e}");
            let round = Round {
                from: vec![(Rank(1), 0.5)],
                keep: 0.5,
                ..Round::default()
            };
            let op = Op::new(Kind::Mix { round, t: 0 }).on_missing(OnMissing::Tolerate);
            let done = group.run(&op, &mut [1.0f32]).unwrap();
            assert_eq!(done.missing, [Rank(1)]);
        }
        over.wait();
    });
}

#[test]
fn messages_that_an_aborted_group_never_received_hold_no_credit() {
    const LEN: usize = 24 << 10;
    let sent = Barrier::new(2);
    let over = Barrier::new(2);
    LINK.local(2, &config(), |_, group| {
        let me = group.rank();
        let other = Rank(1 - me.0);
        for round in 0..3u32 {
            let members = [Rank(0), Rank(1)];
            let victim = group
                .subgroup(&members, &format!("victim {round}"))
                .unwrap();
            // Most of what may be sent without its receiver.
            for tag in 0..2 {
                let work = victim.start(Op::new(Kind::Send { to: other, tag }), vec![1f32; LEN]);
                work.wait().unwrap();
            }
            sent.wait();
            if me == Rank(round % 2) {
                victim.abort("over");
            }
            let e = victim.barrier().unwrap_err();
            assert!(matches!(e.cause(), Cause::Aborted { .. }), "{e}");
            over.wait();
            // Both send before they receive: nobody waits for a receiver if the credit is back.
            group.send(&[1f32; LEN], other, round).unwrap();
            let mut x = vec![0f32; LEN];
            group.recv(&mut x, other, round).unwrap();
            assert_eq!(x[LEN - 1], 1.0);
        }
        works_again(&group);
    });
}

#[test]
fn who_leaves_because_of_a_mismatch_is_not_what_went_wrong() {
    let known = Barrier::new(2);
    LINK.local(3, &config(), |_, group| {
        let me = group.rank().0;
        if me == 1 {
            // Until then nobody knows what this rank calls.
            known.wait();
            return;
        }
        let timeout = Duration::from_millis(if me == 2 { 1000 } else { 5000 });
        let op = Op::new(Kind::AllReduce(Reduce::Sum)).within(timeout);
        let mut x = vec![1.0f32; 3 + me as usize];
        let outcome = group.run(&op, &mut x);
        if me == 0 {
            known.wait();
        }
        let e = outcome.unwrap_err();
        assert!(matches!(e.cause(), Cause::Mismatch { .. }), "{e}");
    });
}

/// Messages of the eager kind, which a link takes before their receive is known, go through with the receiver not there.
pub fn link_has_credit(group: &Group, meet: &Barrier) {
    let len = 40_000;
    if group.rank() == Rank(0) {
        let x = vec![1.0f32; len];
        let op = Op::new(Kind::Send {
            to: Rank(1),
            tag: 77,
        });
        let sent = group.run_into(
            &op.within(Duration::from_secs(2)),
            &x,
            &mut [] as &mut [f32],
        );
        meet.wait();
        sent.unwrap();
    } else {
        meet.wait();
        let mut x = vec![0.0f32; len];
        group.recv(&mut x, Rank(0), 77).unwrap();
        assert!(x.iter().all(|x| *x == 1.0));
    }
}

#[test]
fn what_comes_of_an_aborted_group_is_dropped() {
    let meet = Barrier::new(2);
    LINK.local(2, &config(), |_, group| {
        for _ in 0..12 {
            let part = group.subgroup(&[Rank(0), Rank(1)], "part").unwrap();
            if group.rank() == Rank(1) {
                part.abort("enough");
                meet.wait();
            } else {
                // Its message may be on its way when the word comes.
                let op = Op::new(Kind::Broadcast { root: Rank(0) });
                let _ = part.run(&op, &mut vec![1.0f32; 10_000]);
                meet.wait();
            }
            group.barrier().unwrap();
        }
        link_has_credit(&group, &meet);
        works_again(&group);
    });
}

fn adding(f: impl Fn() + Send + Sync + 'static) -> UserReduction {
    UserReduction::new("adding", Properties::default(), move |a: u32, b: u32| {
        f();
        a + b
    })
}

fn by_user(f: UserReduction) -> Op {
    Op::new(Kind::AllReduce(Reduce::User)).with_user(f)
}

#[test]
fn persistent_operations_are_out_of_a_users_reductions_reach() {
    LINK.local(2, &config(), |_, group| {
        let sum = || Op::new(Kind::AllReduce(Reduce::Sum));
        // One in flight, which only ends later, and one that is not.
        let mut running = group.persistent(sum(), vec![1.0f32; 2]).unwrap();
        if group.rank() == Rank(0) {
            running.start().unwrap();
        }
        let idle = group.persistent(sum(), vec![1.0f32; 2]).unwrap();
        let held = Arc::new(Mutex::new(Some((running, idle))));
        let said = Arc::new(Mutex::new(vec![]));
        let (held_inside, said_inside, inside) =
            (Arc::clone(&held), Arc::clone(&said), group.clone());
        let nosy = adding(move || {
            let mut said = said_inside.lock().unwrap();
            let mut held = held_inside.lock().unwrap();
            if let Some((mut running, mut idle)) = held.take() {
                said.push(idle.start().unwrap_err());
                if running.is_running() {
                    said.push(running.wait().unwrap_err());
                }
                *held = Some((running, idle));
            }
            let limit = Duration::from_millis(10);
            said.push(inside.rebuild(limit).map(|_| ()).unwrap_err());
        });
        let mut x = [1u32];
        let lane = gaggle_core::Lane(1);
        group.run(&by_user(nosy).on(lane), &mut x).unwrap();
        assert_eq!(x, [2]);
        let (mut running, mut idle) = held.lock().unwrap().take().unwrap();
        if group.rank() == Rank(1) {
            running.start().unwrap();
        }
        running.wait().unwrap();
        assert_eq!(running.elements().unwrap(), [2.0; 2]);
        idle.start().unwrap();
        idle.wait().unwrap();
        for e in said.lock().unwrap().drain(..) {
            assert!(
                e.to_string().contains("from inside a user's reduction"),
                "{e}"
            );
        }
        works_again(&group);
    });
}

/// Calls the library when it is dropped.
struct Last(Group);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.communicator().set_feedback(1, vec![1.0]);
    }
}

#[test]
fn a_users_reduction_is_dropped_where_it_may_call_the_library() {
    LINK.local(2, &config(), |_, group| {
        let last = Last(group.clone());
        let f = adding(move || {
            let _ = &last;
        });
        // The handle's is the only one left when the operation ends.
        let work = group.start(by_user(f), vec![1u32; 3]);
        assert_eq!(work.wait().unwrap(), [2; 3]);
        works_again(&group);
    });
}

#[test]
fn discovered_counts_go_with_a_codec_and_feedback_or_are_refused() {
    LINK.local(2, &config(), |_, group| {
        for counts in [Counts::Discover, Counts::known(&[3, 3]), Counts::Equal] {
            let op = Op::new(Kind::AllGather(counts.clone()))
                .coded_always(Codec::Bf16)
                .with_feedback(4);
            let io = match counts {
                Counts::Discover => vec![],
                _ => vec![0f32; 6],
            };
            match group.start_into(op, vec![1.0f32; 3], io).wait() {
                Ok((_, y, _)) => assert_eq!(y, [1.0; 6]),
                Err(failed) => {
                    let e = failed.error;
                    assert!(
                        matches!(e.cause(), Cause::Unsupported { .. } | Cause::Invalid { .. }),
                        "{e}"
                    );
                }
            }
            works_again(&group);
        }
    });
}

#[test]
fn counts_beyond_all_memory_are_a_mistake() {
    LINK.local(2, &config(), |_, group| {
        let huge = [1u64 << 59, 1];
        let e = group.all_gather_v(&[1u8], &huge).unwrap_err();
        assert!(matches!(e.cause(), Cause::Invalid { .. }), "{e}");
        let e = group.gather_v(&[1u8], &[1, 1 << 59], Rank(0)).unwrap_err();
        assert!(matches!(e.cause(), Cause::Invalid { .. }), "{e}");
        let e = group.scatter_any(&[1u8], &huge, Rank(group.rank().0));
        let e = e.unwrap_err();
        assert!(matches!(e.cause(), Cause::Invalid { .. }), "{e}");
        works_again(&group);
    });
}

#[test]
fn settings_out_of_range_are_no_panic() {
    for (slice, radix) in [(0, 2), (1, 2), (3, 0), (3, 1), (u64::MAX, u32::MAX)] {
        let mut config = config();
        config.slice_bytes = slice;
        config.radix = radix;
        LINK.local(3, &config, |_, group| {
            let mut x = [1.0f32; 7];
            let outcome = group.all_reduce(&mut x, Sum);
            if radix < 2 {
                let e = outcome.unwrap_err();
                assert!(e.to_string().contains("at least 2"), "{e}");
            } else {
                outcome.unwrap();
                assert_eq!(x, [3.0; 7]);
                works_again(&group);
            }
        });
    }
}
