//! Plans with one wrong step that the checker accepts: they must run right on the simulated network, whatever the order in which things arrive.

#![allow(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod common;

use common::sim::{Job, config};
use gaggle_collectives::{Call, Plan, Promise, Request, accepted_mutants, plan};
use gaggle_core::{Algorithm, Codec, Counts, DType, Form, Kind, Op, Rank, Reduce, Region, Round};

/// As many orders of arrival as the issue asks for.
const SCHEDULES: u64 = 20;

struct Subject {
    name: String,
    /// One request per rank.
    requests: Vec<Request>,
    op: fn(&Request, u32) -> Op,
}

fn subjects(world: u32) -> Vec<Subject> {
    let len = 2 * u64::from(world) + 1;
    let base = |call: Call, len: u64, codec: Codec| -> Vec<Request> {
        let of = |rank| Request {
            call: call.clone(),
            rank: Rank(rank),
            world,
            len,
            slice: 1 << 20,
            codec,
            widen: false,
            ..Request::default()
        };
        (0..world).map(of).collect()
    };
    let mut all = vec![];
    for algorithm in [
        Algorithm::Ring,
        Algorithm::RecursiveDoubling,
        Algorithm::Direct,
    ] {
        for reduce in [Reduce::Sum, Reduce::Mean] {
            let codecs: &[Codec] = if algorithm == Algorithm::Direct {
                &[Codec::None, Codec::Bf16]
            } else {
                &[Codec::None]
            };
            for codec in codecs {
                all.push(Subject {
                    name: format!("{algorithm} {reduce} {codec}"),
                    requests: base(Call::AllReduce { reduce, algorithm }, len, *codec),
                    op: |r, _| match &r.call {
                        Call::AllReduce { reduce, algorithm } => Op::new(Kind::AllReduce(*reduce))
                            .by(*algorithm)
                            .coded_always(r.codec),
                        _ => unreachable!(),
                    },
                });
            }
        }
    }
    all.push(Subject {
        name: "broadcast".into(),
        requests: base(
            Call::Broadcast {
                root: Rank(world / 2),
                algorithm: Algorithm::Binomial,
            },
            3,
            Codec::None,
        ),
        op: |r, _| {
            Op::new(Kind::Broadcast {
                root: Rank(r.world / 2),
            })
        },
    });
    for algorithm in [Algorithm::Ring, Algorithm::Direct] {
        all.push(Subject {
            name: format!("all_gather {algorithm}"),
            requests: base(
                Call::AllGather {
                    counts: Counts::Equal,
                    algorithm,
                },
                3,
                Codec::None,
            ),
            op: |r, _| match &r.call {
                Call::AllGather {
                    counts: Counts::Equal,
                    algorithm,
                } => Op::new(Kind::AllGather(Counts::Equal)).by(*algorithm),
                _ => unreachable!(),
            },
        });
    }
    all.push(Subject {
        name: "barrier".into(),
        requests: base(Call::Barrier, 0, Codec::None),
        op: |_, _| Op::new(Kind::Barrier),
    });
    for codec in [Codec::None, Codec::Bf16] {
        let ring = |rank: u32| Request {
            call: Call::Mix {
                from: vec![Rank((rank + world - 1) % world)],
                to: vec![Rank((rank + 1) % world)],
                scaled: false,
                form: Form::Delta,
            },
            rank: Rank(rank),
            world,
            len: 3,
            slice: 1 << 20,
            codec,
            widen: false,
            ..Request::default()
        };
        all.push(Subject {
            name: format!("mix {codec}"),
            requests: (0..world).map(ring).collect(),
            op: |r, _| {
                let Call::Mix { from, to, .. } = &r.call else {
                    unreachable!()
                };
                let round = Round {
                    from: vec![(from[0], 0.5)],
                    to: vec![(to[0], 1.0)],
                    keep: 0.5,
                    form: Form::Delta,
                };
                Op::new(Kind::Mix { round, t: 0 }).coded_always(r.codec)
            },
        });
    }
    all
}

fn input(request: &Request) -> Vec<f32> {
    let len = match request.call {
        Call::AllGather { .. } => request.len * u64::from(request.world),
        _ => request.len,
    };
    (0..len)
        .map(|i| (request.rank.0 * 10) as f32 + i as f32 * 0.37)
        .collect()
}

/// All ranks' results of these plans under one schedule.
fn run(subject: &Subject, plans: &[Plan], seed: u64) -> Vec<Vec<f32>> {
    let world = plans.len() as u32;
    let job = Job::new(world, seed, &config());
    let pending = plans
        .iter()
        .zip(&subject.requests)
        .enumerate()
        .map(|(rank, (plan, request))| {
            let op = (subject.op)(request, world);
            let io = Region::new(input(request));
            (
                rank as u32,
                job.engines[rank].start_plan(plan.clone(), &op, io),
            )
        })
        .collect();
    let mut results = vec![];
    for (rank, finished) in job.collect(pending) {
        let about = || format!("{} on {rank} of {world}, schedule {seed}", subject.name);
        finished
            .result
            .unwrap_or_else(|e| panic!("{}: {e}", about()));
        results.push(finished.io.unwrap().into_inner::<Vec<f32>>().unwrap());
    }
    results
}

#[test]
fn accepted_mutants_run_right_under_twenty_schedules() {
    assert_eq!(DType::F32.accumulator(), DType::F32);
    let mut tried = 0;
    for world in 2..=8 {
        for subject in subjects(world) {
            let plans: Vec<Plan> = subject.requests.iter().map(|r| plan(r).unwrap()).collect();
            let right = run(&subject, &plans, 0);
            for mutant in accepted_mutants(&plans, &Promise::of(&subject.requests)) {
                tried += 1;
                for seed in 0..SCHEDULES {
                    let got = run(&subject, &mutant.plans, seed);
                    assert_eq!(
                        got, right,
                        "{} {world}: {}, schedule {seed}",
                        subject.name, mutant.description
                    );
                }
            }
        }
    }
    assert!(
        tried > 0,
        "the checker accepts some mutants, see its snapshot"
    );
    println!("{tried} accepted mutants under {SCHEDULES} schedules each");
}
