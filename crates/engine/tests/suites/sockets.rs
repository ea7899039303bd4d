//! What only sockets can leave behind: between threads, a message waits where it lies for its reader, and a round is read in one go.

use crate::LINK;
use crate::common::config;
use crate::suites::leftovers::{link_has_credit, works_again};
use gaggle_core::{Cause, Form, Kind, OnMissing, Op, Rank, Round};
use std::sync::Barrier;

#[test]
fn aborted_groups_leave_nothing_on_the_links() {
    let meet = Barrier::new(2);
    LINK.local(2, &config(), |_, group| {
        for _ in 0..12 {
            // Rank 1 never calls what rank 0 has sent its part of.
            let part = group.subgroup(&[Rank(0), Rank(1)], "part").unwrap();
            if group.rank() == Rank(0) {
                let op = Op::new(Kind::Broadcast { root: Rank(0) });
                part.run(&op, &mut vec![1.0f32; 10_000]).unwrap();
                group.barrier().unwrap();
                part.abort("enough");
            } else {
                group.barrier().unwrap();
                // Until the word is there.
                let e = part.recv(&mut [0.0f32], Rank(0), 5).unwrap_err();
                assert!(matches!(e.cause(), Cause::Aborted { .. }), "{e}");
            }
            group.barrier().unwrap();
        }
        link_has_credit(&group, &meet);
        works_again(&group);
    });
}

#[test]
fn a_neighbour_that_was_done_without_leaves_nothing_on_the_links() {
    const LEN: usize = 600_000;
    let meet = Barrier::new(2);
    let cancelled = LINK.local(3, &config(), |_, group| {
        let mut cancelled = 0;
        for t in 0..12 {
            // Rank 0 cancels its round in the middle; rank 1 goes on without it and waits for rank 2.
            let me = group.rank().0;
            if me == 0 {
                let round = Round {
                    to: vec![(Rank(1), 1.0)],
                    keep: 1.0,
                    ..Round::default()
                };
                let work = group.start(Op::new(Kind::Mix { round, t }), vec![1.0f64; LEN]);
                work.canceller().unwrap().cancel("enough");
                // On a quick link it is through before.
                if let Err(failed) = work.wait() {
                    let cause = failed.error.cause();
                    assert!(matches!(cause, Cause::Cancelled { .. }), "{failed}");
                    cancelled += 1;
                }
                let mut x = [1.0f32];
                group.send(&x, Rank(2), 1).unwrap();
                group.recv(&mut x, Rank(1), 3).unwrap();
            } else if me == 1 {
                let round = Round {
                    from: vec![(Rank(0), 0.25), (Rank(2), 0.25)],
                    keep: 0.5,
                    form: Form::Sum,
                    ..Round::default()
                };
                let op = Op::new(Kind::Mix { round, t }).on_missing(OnMissing::Tolerate);
                let mut x = vec![1.0f64; LEN];
                let done = group.run(&op, &mut x).unwrap();
                assert!(done.missing.is_empty() || done.missing == [Rank(0)]);
                assert!(x.iter().all(|x| *x == 1.5));
                group.send(&[1.0f32], Rank(0), 3).unwrap();
            } else {
                group.recv(&mut [1.0f32], Rank(0), 1).unwrap();
                let round = Round {
                    to: vec![(Rank(1), 1.0)],
                    keep: 1.0,
                    ..Round::default()
                };
                let mut x = vec![3.0f64; LEN];
                group.mix(&mut x, &round, t).unwrap();
            }
        }
        group.barrier().unwrap();
        let pair = [Rank(0), Rank(1)];
        if group.rank() != Rank(2) {
            link_has_credit(&group.subgroup(&pair, "pair").unwrap(), &meet);
        }
        works_again(&group);
        cancelled
    });
    assert!(
        cancelled[0] > 0,
        "every round was through before it was cancelled"
    );
}
