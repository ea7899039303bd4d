//! What somebody does who knows the facade alone: its names, and wrong input.

use gaggle::{
    Cause, Counts, Error, Form, Group, Kind, Op, Properties, Rank, Reduce, Round, Sum,
    UserReduction,
};
use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

/// Counts may be anything; what they add up to is not asked of the system as if it were there.
#[test]
fn counts_beyond_all_memory_are_errors() {
    let refused = |r: Result<Vec<f64>, Error>| {
        let e = r.unwrap_err();
        assert!(matches!(e.cause(), Cause::Invalid { .. }), "{e}");
        e.to_string()
    };
    gaggle::local(2, |group| {
        for huge in [1 << 58, 1 << 61, u64::MAX] {
            let counts = [huge, 0];
            let part = [1.0];
            for text in [
                refused(group.all_gather_v(&part, &counts)),
                refused(group.all_to_all_v(&part, &[1, 0], &counts)),
                refused(group.neighbour_all_gather_v(&part, &[], &[], &[huge], 0)),
            ] {
                let said = text.contains("there is no memory") || text.contains("too much");
                assert!(said, "{text}");
            }
            if group.rank() == Rank(0) {
                refused(group.gather_v(&part, &counts, Rank(0)));
                refused(group.scatter_v(&part, &counts, Rank(0)));
            }
        }
        // Nothing was sent, and no number was used up.
        group.barrier().unwrap();
    })
    .unwrap();
}

#[test]
fn a_root_whose_counts_and_elements_differ_is_told_before_anything_is_sent() {
    let e = gaggle::local(1, |group| {
        let e = group.scatter_any(&[1.0f32; 3], &[2], Rank(0)).unwrap_err();
        group.barrier().unwrap();
        e
    })
    .unwrap();
    assert_eq!(
        e[0].to_string(),
        "scatter: 2 elements by the counts, 3 given"
    );
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
            return out;
        }
        thread::yield_now();
    }
}

#[test]
fn operations_out_of_place_are_persistent_too() {
    gaggle::local(3, |group| {
        let (reduce, counts) = (Reduce::Sum, Counts::Equal);
        let op = Op::new(Kind::ReduceScatter { reduce, counts });
        let mut op = group
            .persistent_into(op, vec![0i64; 6], vec![0i64; 2])
            .unwrap();
        let me = i64::from(group.rank().0);
        for run in 0..4 {
            for (x, i) in op.input().unwrap().iter_mut().zip(0..) {
                *x = i + me + run;
            }
            op.start().unwrap();
            if run % 2 == 0 {
                op.wait().unwrap();
            } else {
                block_on(op.done()).unwrap();
            }
            let first = 3 * (2 * me + run) + 3;
            assert_eq!(op.output().unwrap(), [first, first + 3]);
        }
        let (input, output) = op.into_inner().unwrap();
        assert_eq!((input.len(), output.len()), (6, 2));
        // A mistake gives the memory back, and is an error like others.
        let wrong = Op::new(Kind::AllReduce(Reduce::Sum));
        let failed = group
            .persistent_into(wrong, vec![1.0f32; 3], vec![0.0f32; 2])
            .err()
            .unwrap();
        assert_eq!(failed.input.as_deref(), Some(&[1.0; 3][..]));
        let e: Box<dyn std::error::Error + Send + Sync> = failed.into();
        assert_eq!(
            e.to_string(),
            "all_reduce: an input of 3 elements where 2 are expected"
        );
    })
    .unwrap();
}

/// Every name comes from the facade.
#[test]
fn rounds_and_functions_of_the_users_own_need_no_other_crate() {
    fn step(group: &Group) -> Result<([f32; 1], [f32; 1]), Error> {
        let (me, world) = (group.rank().0, group.size() as u32);
        let round = Round {
            from: vec![(Rank((me + world - 1) % world), 0.5)],
            to: vec![(Rank((me + 1) % world), 1.0)],
            keep: 0.5,
            form: Form::Delta,
        };
        let mut x = [me as f32];
        group.mix(&mut x, &round, 0)?;
        let both = Properties {
            commutative: true,
            associative: true,
        };
        let widest = UserReduction::new("widest", both, f32::max);
        let mut y = [me as f32];
        group.all_reduce_with(&mut y, &widest)?;
        group.all_reduce(&mut y, Sum)?;
        Ok((x, y))
    }
    let got = gaggle::local(3, |group| step(&group)).unwrap();
    let got: Vec<_> = got.into_iter().map(Result::unwrap).collect();
    assert_eq!(got, [([1.0], [6.0]), ([0.5], [6.0]), ([1.5], [6.0])]);
}

/// As `docs/collectives.md` has it.
#[test]
fn after_an_abort_other_groups_work() {
    gaggle::local(3, |group| {
        let all = [Rank(0), Rank(1), Rank(2)];
        let before = group.subgroup(&all, "before").unwrap();
        if group.rank() == Rank(0) {
            group.abort("enough");
        }
        let e = group.barrier().unwrap_err();
        assert!(matches!(e.cause(), Cause::Aborted { .. }), "{e}");
        let again = group.subgroup(&all, "again").unwrap();
        let rebuilt = group.rebuild(Duration::from_secs(60)).unwrap();
        for works in [before, again, rebuilt] {
            assert_eq!(works.all_gather(&[group.rank().0]).unwrap(), [0, 1, 2]);
        }
    })
    .unwrap();
}

/// Ranks that make no sense are named with what is wrong with them.
#[test]
fn mistakes_say_what_is_wrong() {
    let said = gaggle::local(3, |group| {
        let one = |from| Round {
            from,
            to: vec![],
            keep: 0.5,
            form: Form::Sum,
        };
        let (me, next) = (group.rank(), Rank((group.rank().0 + 1) % 3));
        let uneven = [vec![Rank(0), Rank(2)], vec![Rank(1)]];
        let mut x = [1.0f32];
        let mut told = |round: Round| group.mix(&mut x, &round, 0).unwrap_err().to_string();
        let own = told(one(vec![(me, 0.5)]));
        let twice = told(one(vec![(next, 0.2), (next, 0.3)]));
        let nobody = group.broadcast(&mut x, Rank(3)).unwrap_err().to_string();
        let machines = group.hierarchical_mix(&mut x, &uneven, &Round::default(), 0);
        (me == Rank(0)).then(|| [own, twice, nobody, machines.unwrap_err().to_string()])
    })
    .unwrap();
    assert_eq!(
        said[0].as_ref().unwrap(),
        &[
            "mix: in-neighbour: rank 0 of 3, which is one's own or named twice",
            "mix: in-neighbour: rank 1 of 3, which is one's own or named twice",
            "broadcast: root: rank 3 of 3, which is not there: numbers begin at 0",
            "hierarchical_mix: needs machines of equal size: machine 0 has size 2, machine 1 has 1",
        ]
    );
}
