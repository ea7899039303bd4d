//! Operation × element type × reduction × world × length × place × algorithm × blocking × slices, against a serial reference: every pair of values, and with `GAGGLE_EXHAUSTIVE` every combination.

use crate::{
    LINK,
    common::{
        WORLDS,
        cases::{Case, Step, Want, cases, hosts},
        config,
        number::Number,
    },
    with_type,
};
use gaggle_core::{Group, Kind};

/// One rank's part of one case.
pub fn run<T: Number>(group: &Group, case: &Case, t: u64) {
    let me = group.rank().0;
    let steps: Vec<(Step<T>, Want<T>)> = case.steps(me, t);
    let mut flying = vec![];
    for (mut step, want) in steps {
        let given = step.input.clone();
        // Who sends and receives must not wait for the one before the other has begun.
        let sends = matches!(step.op.kind, Kind::Send { .. });
        if case.asynchronous || sends {
            match step.input {
                Some(input) => {
                    let work = group.start_into(step.op, input, step.io);
                    flying.push((given, Ok(work), want));
                }
                None => flying.push((None, Err(group.start(step.op, step.io)), want)),
            }
            continue;
        }
        let done = match &step.input {
            Some(input) => group.run_into(&step.op, input, &mut step.io),
            None => group.run(&step.op, &mut step.io),
        };
        let done = done.unwrap_or_else(|e| panic!("rank {me}, {case:?}: {e}"));
        case.check(me, &given, &step.input, &step.io, &done.counts, &want);
    }
    for (given, work, want) in flying {
        let (input, io, done) = match work {
            Ok(work) => {
                let (input, io, done) = work
                    .wait()
                    .unwrap_or_else(|f| panic!("rank {me}, {case:?}: {}", f.error));
                (Some(input), io, done)
            }
            Err(work) => {
                let (io, done) = work
                    .wait_done()
                    .unwrap_or_else(|f| panic!("rank {me}, {case:?}: {}", f.error));
                (None, io, done)
            }
        };
        case.check(me, &given, &input, &io, &done.counts, &want);
    }
}

#[test]
fn every_pair_of_choices_meets_the_serial_reference() {
    let cases = cases();
    assert!(cases.len() > 300, "{} cases", cases.len());
    for world in WORLDS {
        for sliced in [true, false] {
            let mut settings = config();
            if sliced {
                settings.slice_bytes = 48;
            }
            settings.hosts = Some(hosts(world).into());
            LINK.local(world, &settings, |_, group| {
                let ours = |c: &&Case| c.world == world && c.sliced == sliced;
                for (t, case) in cases.iter().filter(ours).enumerate() {
                    with_type!(case.dtype, run(&group, case, t as u64));
                }
            });
        }
    }
}
