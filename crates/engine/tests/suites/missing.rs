//! Neighbour rounds that do without who is dead, gone or late.

use crate::LINK;
use crate::common::config;
use gaggle_core::{
    Cause, Form, Group, Kind, Mean, OnMissing, Op, Rank, Reduce, Round, Sum, SystemClock,
};
use gaggle_engine::Engine;
use std::{
    sync::{Arc, Barrier},
    time::Duration,
};

fn tolerant(round: Round, t: u64) -> Op {
    Op::new(Kind::Mix { round, t }).on_missing(OnMissing::Tolerate)
}

/// Everybody from everybody.
fn full(me: u32, world: u32, form: Form) -> Round {
    let others = || (0..world).filter(|r| *r != me).map(Rank);
    Round {
        from: others().map(|r| (r, 1.0 / f64::from(world))).collect(),
        to: others().map(|r| (r, 1.0)).collect(),
        keep: 1.0 / f64::from(world),
        form,
    }
}

/// What an average without `missing` comes to: their weight is the own value's.
fn without(me: u32, world: u32, missing: &[u32]) -> f64 {
    let w = 1.0 / f64::from(world);
    let value = |r| if missing.contains(&r) { me } else { r };
    (0..world).map(|r| w * f64::from(value(r))).sum()
}

fn rounds_without(group: &Group, gone: u32, rounds: std::ops::Range<u64>) {
    let (me, world) = (group.rank().0, group.size() as u32);
    for t in rounds {
        let form = if t % 2 == 0 { Form::Delta } else { Form::Sum };
        let mut x = vec![f64::from(me); 3000];
        let done = group
            .run(&tolerant(full(me, world, form), t), &mut x)
            .unwrap();
        assert_eq!(done.missing, [Rank(gone)], "round {t}");
        let want = without(me, world, &[gone]);
        assert!(
            x.iter().all(|x| (x - want).abs() < 1e-12),
            "{} {want}",
            x[0]
        );
    }
}

/// Runs the ranks of a world, of which `gone` is handed its seat alone.
fn with_one_gone(world: u32, gone: u32, end: impl Fn(Engine) + Sync, f: impl Fn(Group) + Sync) {
    let seats = LINK.seats(world);
    std::thread::scope(|s| {
        for (link, control) in seats {
            let (f, end) = (&f, &end);
            s.spawn(move || {
                let me = control.me();
                let clock = Arc::new(SystemClock::new());
                let engine = Engine::new(vec![link], control, clock, config()).unwrap();
                if me == Rank(gone) {
                    return end(engine);
                }
                f(engine.group());
            });
        }
    });
}

#[test]
fn a_departed_neighbour_is_done_without() {
    for world in [2, 3, 5] {
        with_one_gone(world, 1, drop, |group| {
            rounds_without(&group, 1, 0..4);
            // Those who are there go on as if nothing had happened.
            let me = group.rank().0;
            if world > 2 {
                let (prev, next) = if me == 0 {
                    (world - 1, 2)
                } else if me == 2 {
                    (0, 3 % world)
                } else {
                    (me - 1, (me + 1) % world)
                };
                let round = Round {
                    from: vec![(Rank(prev), 0.5)],
                    to: vec![(Rank(next), 1.0)],
                    keep: 0.5,
                    form: Form::Delta,
                };
                let mut x = [f64::from(me)];
                let done = group.run(&tolerant(round.clone(), 10), &mut x).unwrap();
                assert_eq!(done.missing, []);
                assert_eq!(x, [f64::from(me + prev) / 2.0]);
                group.mix(&mut x, &round, 11).unwrap();
            }
            // Who does not tolerate it is told.
            let e = group
                .mix(&mut [1.0f32; 3000], &full(me, world, Form::Delta), 12)
                .unwrap_err();
            assert!(
                matches!(e.cause(), Cause::PeerLeft { rank: Rank(1), .. }),
                "{e}"
            );
        });
    }
}

#[test]
fn a_dead_neighbour_is_done_without() {
    for world in [2u32, 4] {
        let seats = LINK.seats(world);
        std::thread::scope(|s| {
            for (link, control) in seats {
                s.spawn(move || {
                    if control.me() == Rank(1) {
                        // Dies without a word.
                        drop((link, control));
                        return;
                    }
                    let clock = Arc::new(SystemClock::new());
                    let engine = Engine::new(vec![link], control, clock, config()).unwrap();
                    let group = engine.group();
                    rounds_without(&group, 1, 0..4);
                    let me = group.rank().0;
                    let e = group
                        .mix(&mut [1.0f32; 3000], &full(me, world, Form::Delta), 12)
                        .unwrap_err();
                    assert!(
                        matches!(e.cause(), Cause::PeerLost { rank: Rank(1), .. }),
                        "{e}"
                    );
                    // Tolerance is the round's, not the group's.
                    let rest: Vec<Rank> = (0..world).filter(|r| *r != 1).map(Rank).collect();
                    let rest = group.subgroup(&rest, "rest").unwrap();
                    let mut x = [2.0f32];
                    rest.all_reduce(&mut x, Mean).unwrap();
                    assert_eq!(x, [2.0]);
                });
            }
        });
    }
}

#[test]
fn a_late_neighbour_is_done_without_and_gets_what_its_own_policy_says() {
    // Beyond a link's credit: what goes to the late rank is not under way when the others give it up.
    const LEN: usize = 600_000;
    for policy in [OnMissing::Fail, OnMissing::Tolerate] {
        let over = Barrier::new(3);
        LINK.local(3, &config(), |_, group| {
            let me = group.rank().0;
            let round = full(me, 3, Form::Delta);
            let late = group.rank() == Rank(1);
            if late {
                over.wait();
            }
            let op = Op::new(Kind::Mix { round, t: 0 })
                .on_missing(if late { policy } else { OnMissing::Tolerate })
                .within(Duration::from_millis(if late { 5000 } else { 300 }));
            let mut x = vec![f64::from(me); LEN];
            let outcome = group.run(&op, &mut x);
            if !late {
                assert_eq!(outcome.unwrap().missing, [Rank(1)]);
                let want = without(me, 3, &[1]);
                assert!(x.iter().all(|x| (x - want).abs() < 1e-12));
                over.wait();
            } else if policy == OnMissing::Tolerate {
                assert_eq!(outcome.unwrap().missing, [Rank(0), Rank(2)]);
                assert!(x.iter().all(|x| *x == 1.0));
            } else {
                let e = outcome.unwrap_err();
                assert!(matches!(e.cause(), Cause::Timeout { .. }), "{e}");
                assert_eq!(e.culprits(), [Rank(1)], "{e}");
            }
            // Nothing is left over: the next round has everybody in it.
            let mut x = [f64::from(me)];
            let done = group
                .run(&tolerant(full(me, 3, Form::Sum), 1), &mut x)
                .unwrap();
            assert_eq!(done.missing, []);
            assert!((x[0] - 1.0).abs() < 1e-12);
            let mut x = [1.0f32];
            group.all_reduce(&mut x, Sum).unwrap();
            assert_eq!(x, [3.0]);
        });
    }
}

#[test]
fn collectives_cannot_do_without_a_member() {
    LINK.local(2, &config(), |_, group| {
        let op = Op::new(Kind::AllReduce(Reduce::Sum)).on_missing(OnMissing::Tolerate);
        let e = group.run(&op, &mut [1.0f32]).unwrap_err();
        assert!(matches!(e.cause(), Cause::Unsupported { .. }), "{e}");
        group.barrier().unwrap();
    });
}

#[test]
fn a_missing_part_of_a_gather_is_zeros() {
    use gaggle_core::Counts;
    with_one_gone(4, 2, drop, |group| {
        let me = group.rank().0;
        let others: Vec<Rank> = (0..4).filter(|r| *r != me).map(Rank).collect();
        for t in 0..3u64 {
            let len = |r: Rank| 1000 + u64::from(r.0);
            let counts: Vec<u64> = others.iter().map(|r| len(*r)).collect();
            let op = Op::new(Kind::NeighbourGather {
                from: others.clone().into(),
                to: others.clone().into(),
                counts: Counts::known(&counts),
                t,
            });
            let op = op.on_missing(OnMissing::Tolerate);
            let x = vec![1.0 + me as f32; len(group.rank()) as usize];
            let mut y = vec![9.0f32; counts.iter().sum::<u64>() as usize];
            let done = group.run_into(&op, &x, &mut y).unwrap();
            assert_eq!(done.missing, [Rank(2)]);
            let want: Vec<f32> = others
                .iter()
                .flat_map(|r| {
                    let value = if r.0 == 2 { 0.0 } else { 1.0 + r.0 as f32 };
                    vec![value; len(*r) as usize]
                })
                .collect();
            assert_eq!(y, want, "round {t}");
        }
    });
}
