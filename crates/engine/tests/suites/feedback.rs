//! Error feedback: what a codec loses comes later, and what is kept is defined in every case.

use crate::LINK;
use crate::common::config;
use gaggle_core::{Cause, Codec, Counts, Group, Kind, Lane, Op, Rank, Reduce, Sum};
use std::sync::Barrier;

const CODED: [Codec; 3] = [Codec::Bf16, Codec::F16, Codec::Int8];

fn value(rank: u32, step: u32, i: usize) -> f32 {
    ((i * 37 + rank as usize * 101 + step as usize * 53) % 509) as f32 / 254.0 - 1.0
}

fn input(group: &Group, step: u32, len: usize) -> Vec<f32> {
    (0..len).map(|i| value(group.rank().0, step, i)).collect()
}

fn op(codec: Codec, tensor: u64) -> Op {
    Op::new(Kind::AllReduce(Reduce::Sum))
        .coded_always(codec)
        .with_feedback(tensor)
}

/// Σ over the steps of the results + Σ over the ranks of what they hold back = Σ of all that was put in.
#[test]
fn nothing_is_lost_over_the_steps_and_when_the_world_changes() {
    const LEN: usize = 1021;
    for codec in CODED {
        for slice_bytes in [1040, 256 * 1024] {
            let mut settings = config();
            settings.slice_bytes = slice_bytes;
            let results = LINK.local(4, &settings, |_, group| {
                let mut sum = vec![0f64; LEN];
                let mut step = |group: &Group, t: u32| {
                    let mut x = input(group, t, LEN);
                    group.run(&op(codec, 7), &mut x).unwrap();
                    for (s, v) in sum.iter_mut().zip(x) {
                        *s += f64::from(v);
                    }
                };
                for t in 0..3 {
                    step(&group, t);
                }
                let kept = group.communicator().feedback(7).unwrap();
                let members = [0, 1, 2].map(Rank);
                let survivors =
                    (group.rank().0 < 3).then(|| group.subgroup(&members, "survivors").unwrap());
                let Some(rest) = survivors else {
                    return (None, kept);
                };
                // Chunks have other owners now; an element's residual goes out wherever the element goes.
                rest.communicator().set_feedback(7, kept);
                for t in 3..6 {
                    step(&rest, t);
                }
                let kept = rest.communicator().feedback(7).unwrap();
                (Some(sum), kept)
            });
            let sum = results[0].0.as_ref().unwrap();
            let mut most = 0f64;
            for i in 0..LEN {
                let put_in: f64 = (0..6u32)
                    .flat_map(|t| {
                        (0..if t < 3 { 4 } else { 3 }).map(move |r| f64::from(value(r, t, i)))
                    })
                    .sum();
                let kept: f64 = results.iter().map(|(_, kept)| f64::from(kept[i])).sum();
                most = most.max(kept.abs());
                assert!(
                    (sum[i] + kept - put_in).abs() < 1e-5,
                    "{codec}, element {i}: {} and {kept} of {put_in}",
                    sum[i]
                );
            }
            assert!(
                most > 1e-4,
                "{codec} has lost nothing, so nothing was tried"
            );
        }
    }
}

#[test]
fn saved_feedback_goes_on_where_it_was() {
    for codec in CODED {
        LINK.local(3, &config(), |_, group| {
            let comm = group.communicator();
            let run = |tensor, t| {
                let mut x = input(&group, t, 700);
                group.run(&op(codec, tensor), &mut x).unwrap();
                x
            };
            assert_eq!(comm.feedback(1), None);
            run(1, 0);
            let saved = comm.feedback(1).unwrap();
            assert_eq!(saved.len(), 700);
            let second = run(1, 1);
            // Restored under another number: the same second step.
            comm.set_feedback(2, saved);
            assert!(run(2, 1) == second, "{codec}");
            assert_eq!(comm.feedback(2), comm.feedback(1));
            // Without it, another one; and so again once it is dropped.
            let fresh = run(3, 1);
            assert!(fresh != second, "{codec}");
            comm.set_feedback(1, vec![]);
            assert_eq!(comm.feedback(1), None);
            assert!(run(1, 1) == fresh, "{codec}");
        });
    }
}

#[test]
fn another_length_begins_anew_and_other_groups_have_their_own() {
    LINK.local(3, &config(), |_, group| {
        let run = |group: &Group, len| {
            let mut x = input(group, 0, len);
            group.run(&op(Codec::Int8, 5), &mut x).unwrap();
            x
        };
        let first = run(&group, 300);
        run(&group, 301);
        assert_eq!(group.communicator().feedback(5).unwrap().len(), 301);
        assert!(run(&group, 300) == first);
        let other = group.subgroup(&[0, 1, 2].map(Rank), "other").unwrap();
        assert_eq!(other.communicator().feedback(5), None);
        assert!(run(&other, 300) == first);
    });
}

#[test]
fn an_operation_that_is_started_many_times_keeps_its_feedback() {
    LINK.local(3, &config(), |_, group| {
        let x = input(&group, 0, 700);
        let mut again = group.persistent(op(Codec::Int8, 1), x.clone()).unwrap();
        for t in 0..5 {
            again.elements().unwrap().copy_from_slice(&x);
            again.start().unwrap();
            again.wait().unwrap();
            let mut once = x.clone();
            group.run(&op(Codec::Int8, 2), &mut once).unwrap();
            assert!(again.elements().unwrap() == once, "step {t}");
        }
        let kept = |tensor| group.communicator().feedback(tensor);
        assert!(kept(1).unwrap() == kept(2).unwrap());
    });
}

#[test]
fn survivors_of_a_rebuilt_group_keep_what_they_have() {
    LINK.local(3, &config(), |_, group| {
        let mut x = input(&group, 0, 700);
        group.run(&op(Codec::Int8, 7), &mut x).unwrap();
        let kept = group.communicator().feedback(7).unwrap();
        assert!(kept.iter().any(|r| *r != 0.0));
        if group.rank() == Rank(2) {
            return;
        }
        group.all_reduce(&mut [1.0f32; 9], Sum).unwrap_err();
        let new = group.rebuild(std::time::Duration::from_secs(20)).unwrap();
        assert_eq!(new.size(), 2);
        assert!(new.communicator().feedback(7).unwrap() == kept);
        group_runs_on(&new);
        assert!(new.communicator().feedback(7).unwrap() != kept);
    });
}

fn group_runs_on(group: &Group) {
    let mut x = input(group, 1, 700);
    group.run(&op(Codec::Int8, 7), &mut x).unwrap();
}

#[test]
fn a_tensor_is_in_one_operation_at_a_time() {
    // The first cannot be over on rank 0 before rank 1 begins.
    let begun = Barrier::new(2);
    LINK.local(2, &config(), |_, group| {
        let n = 300_000;
        let start = |lane| group.start(op(Codec::Int8, 9).on(Lane(lane)), vec![1.0f32; n]);
        if group.rank() == Rank(1) {
            begun.wait();
        }
        let (first, second) = (start(1), start(2));
        if group.rank() == Rank(0) {
            begun.wait();
        }
        let (first, second) = (first.wait(), second.wait());
        assert!(first.is_ok(), "{first:?}");
        match second {
            // In flight together on this rank, or on the other.
            Err(failed) => match failed.error.cause() {
                Cause::Invalid { what, .. } | Cause::Internal { what } => {
                    assert!(what.contains("tensor 9 is in use"), "{what}");
                }
                other => assert!(other.to_string().contains("tensor 9 is in use"), "{other}"),
            },
            Ok(_) => panic!("two operations shared a residual"),
        }
        let mut x = [1.0f32];
        group.all_reduce(&mut x, Sum).unwrap();
        // It has come back from both.
        let mut x = vec![1.0f32; n];
        group.run(&op(Codec::Int8, 9), &mut x).unwrap();
    });
}

#[test]
fn out_of_place_and_scattered_results_are_compensated_too() {
    LINK.local(3, &config(), |_, group| {
        const PART: usize = 257;
        let (me, mut sum, mut whole) = (group.rank().idx(), vec![0f64; PART], vec![0f64; 3 * PART]);
        let steps = 40u32;
        for t in 0..steps {
            let x = input(&group, 0, 3 * PART);
            let before = x.clone();
            let mut y = vec![0f32; PART];
            let scatter = Kind::ReduceScatter {
                reduce: Reduce::Sum,
                counts: Counts::Equal,
            };
            let coded = |kind, tensor| {
                Op::new(kind)
                    .coded_always(Codec::Int8)
                    .with_feedback(tensor)
            };
            group.run_into(&coded(scatter, 1), &x, &mut y).unwrap();
            let mut z = vec![0f32; 3 * PART];
            group
                .run_into(&coded(Kind::AllReduce(Reduce::Sum), 2), &x, &mut z)
                .unwrap();
            assert_eq!(x, before, "step {t}");
            for (s, v) in sum.iter_mut().zip(y).chain(whole.iter_mut().zip(z)) {
                *s += f64::from(v);
            }
        }
        let want = |i: usize| (0..3).map(|r| f64::from(value(r, 0, i))).sum::<f64>();
        // What is still held back is at most half a scale of each of three; without feedback it would be that in each step.
        let bound = 3.0 * 3.0 / 126.0 / f64::from(steps);
        for (i, s) in sum.iter().enumerate() {
            let mean = s / f64::from(steps);
            assert!((mean - want(me * PART + i)).abs() <= bound, "{mean}");
        }
        for (i, s) in whole.iter().enumerate() {
            let mean = s / f64::from(steps);
            assert!((mean - want(i)).abs() <= bound, "{mean}");
        }
    });
}
