//! The real engine on a simulated network: operations in different orders, slices, reordering, credit 1, crashes, partitions, stopped ranks, wrong calls.
//!
//! Every run ends: with the right result, or with the right error. The seed of a failing run is in the message; `GAGGLE_SEEDS=17` runs that one alone, `GAGGLE_SEEDS=0..20000` many.

#![allow(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod common;

use common::{
    WORLDS,
    cases::{Case, Step, Want, What, cases, hosts},
    deviations,
    number::Number,
    sim::{Job, config},
};
use gaggle_core::{
    Algorithm, Cause, Counts, DType, Error, Finished, Form, Kind, Lane, Op, Owned, Pending, Rank,
    Reduce, Region, Round, Weight,
};
use gaggle_transport::sim::Fault;
use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use std::{ops::Range, time::Duration};

/// One operation of a run, as all ranks mean it.
#[derive(Clone, Debug)]
struct Call {
    case: Case,
    lane: u32,
}

#[derive(Clone, Debug, PartialEq)]
enum Trouble {
    None,
    Crash(u32, Duration),
    Partition(Vec<Rank>, Duration, Option<Duration>),
    Stop(u32, Duration),
    /// This rank calls this operation with another length.
    Mismatch(u32, usize),
    Abort(u32, Duration),
}

fn round_of(world: u32, rank: u32, stride: u32) -> Round {
    let (prev, next) = (
        (rank + world - stride % world) % world,
        (rank + stride) % world,
    );
    if prev == rank {
        return Round {
            keep: 1.0,
            ..Round::default()
        };
    }
    Round {
        from: vec![(Rank(prev), 0.5)],
        to: vec![(Rank(next), 1.0)],
        keep: 0.5,
        form: Form::Delta,
    }
}

impl Call {
    fn random(rng: &mut ChaCha8Rng, world: u32, lane: u32) -> Call {
        let reduce = *[Reduce::Sum, Reduce::Mean, Reduce::Min, Reduce::Max].choose_one(rng);
        let what = loop {
            let what = *What::ALL.choose_one(rng);
            if world > 1 || !matches!(what, What::Message | What::Gossip) {
                break what;
            }
        };
        let dtype = DType::F64;
        let reduce = if what.reduces() { reduce } else { Reduce::Sum };
        let algorithms: Vec<Algorithm> = Algorithm::ALL
            .into_iter()
            .filter(|a| what.is_eligible(dtype, reduce, world, *a))
            .collect();
        // One more than there are: the engine's choice.
        let algorithm = algorithms
            .get(rng.random_range(0..=algorithms.len()))
            .copied();
        let len = match rng.random_range(0..4) {
            0 => rng.random_range(0..3),
            1 => world as usize,
            _ => rng.random_range(0..120),
        };
        let case = Case {
            what,
            dtype,
            reduce,
            world,
            len,
            in_place: !what.out_of_place_only() && rng.random(),
            algorithm,
            asynchronous: true,
            sliced: false,
            // Tags of messages are made of it.
            salt: lane as usize,
        };
        Call { case, lane }
    }

    /// What a rank calls; longer by `extra` than it should.
    fn steps(&self, rank: u32, extra: usize) -> Vec<(Step<f64>, Want<f64>)> {
        let mut case = self.case.clone();
        case.len += extra;
        let mut steps = case.steps(rank, 0);
        for (step, _) in &mut steps {
            step.op.lane = Lane(self.lane);
        }
        steps
    }

    /// Whether a rank that gives another length than the others is told so in any case: it depends on them.
    fn depends_on_all(&self) -> bool {
        matches!(
            self.case.what,
            What::AllReduce | What::AllGather | What::ReduceScatter | What::AllToAll
        )
    }

    /// Whether another length is another call.
    fn can_deviate(&self) -> bool {
        self.case.what != What::Barrier && !self.case.what.discovers()
    }
}

trait ChooseOne<T> {
    fn choose_one(&self, rng: &mut ChaCha8Rng) -> &T;
}
impl<T, const N: usize> ChooseOne<T> for [T; N] {
    fn choose_one(&self, rng: &mut ChaCha8Rng) -> &T {
        &self[rng.random_range(0..N)]
    }
}

fn trouble(rng: &mut ChaCha8Rng, world: u32, calls: usize) -> Trouble {
    let at = Duration::from_micros(rng.random_range(0..20_000));
    let who = rng.random_range(0..world);
    match rng.random_range(0..10) {
        _ if world == 1 => Trouble::None,
        0..=3 => Trouble::None,
        4 => Trouble::Crash(who, at),
        5 => {
            let side = (0..rng.random_range(1..world)).map(Rank).collect();
            Trouble::Partition(
                side,
                at,
                Some(at + Duration::from_millis(rng.random_range(1..2000))),
            )
        }
        6 => Trouble::Partition(
            (0..rng.random_range(1..world)).map(Rank).collect(),
            at,
            None,
        ),
        7 => Trouble::Stop(who, at),
        8 => Trouble::Mismatch(who, rng.random_range(0..calls)),
        _ => Trouble::Abort(who, at),
    }
}

struct Run {
    world: u32,
    calls: Vec<Call>,
    trouble: Trouble,
    outcomes: Vec<(Rank, usize, usize, Finished)>,
}

fn run(seed: u64) -> Run {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let world = *[1u32, 2, 2, 3, 3, 4, 5, 7, 8].choose_one(&mut rng);
    let mut settings = config();
    settings.slice_bytes = *[8u64, 64, 200, 1 << 18].choose_one(&mut rng);
    settings.hosts = Some(hosts(world).into());
    let calls: Vec<Call> = (0..rng.random_range(2..8))
        .map(|n| Call::random(&mut rng, world, n + 1))
        .collect();
    let mut trouble = trouble(&mut rng, world, calls.len());
    if matches!(trouble, Trouble::Mismatch(_, call) if !calls[call].can_deviate()) {
        trouble = Trouble::None;
    }
    let mut job = Job::new(world, seed, &settings);
    // Every rank in an order and at times of its own.
    let mut agenda: Vec<(Duration, u32, usize)> = vec![];
    for rank in 0..world {
        let mut order: Vec<usize> = (0..calls.len()).collect();
        order.shuffle(&mut rng);
        let mut at = Duration::ZERO;
        for call in order {
            at += Duration::from_micros(rng.random_range(0..3000));
            agenda.push((at, rank, call));
        }
    }
    agenda.sort();
    let mut pending: Vec<(u32, usize, usize, Box<dyn Pending>)> = vec![];
    let mut waiting = agenda.into_iter().peekable();
    let mut aborted = false;
    match &trouble {
        Trouble::Crash(rank, at) => job.net.at(*at, Fault::Crash(Rank(*rank))),
        Trouble::Partition(side, at, heal) => {
            let rest: Vec<Rank> = (0..world).map(Rank).filter(|r| !side.contains(r)).collect();
            job.net.at(*at, Fault::Partition(side.clone(), rest));
            if let Some(heal) = heal {
                job.net.at(*heal, Fault::Heal);
            }
        }
        _ => {}
    }
    for events in 0.. {
        assert!(events < 1_000_000, "seed {seed}: a hang, no end of events");
        let now = job.now();
        match &trouble {
            Trouble::Crash(rank, at) | Trouble::Stop(rank, at) if *at <= now => {
                job.still.insert(*rank);
            }
            Trouble::Abort(rank, at) if *at <= now && !aborted => {
                aborted = true;
                job.engines[*rank as usize].group().abort("enough");
            }
            _ => {}
        }
        while let Some((_, rank, call)) = waiting.next_if(|(at, ..)| *at <= now) {
            if job.still.contains(&rank) {
                continue;
            }
            let extra = usize::from(trouble == Trouble::Mismatch(rank, call));
            let comm = std::sync::Arc::clone(job.engines[rank as usize].group().communicator());
            for (n, (step, _)) in calls[call].steps(rank, extra).into_iter().enumerate() {
                pending.push((rank, call, n, comm.start(step.op.clone(), owned(step))));
            }
        }
        job.pump();
        let all_over = pending
            .iter()
            .all(|(r, .., p)| job.still.contains(r) || p.is_done());
        if all_over && waiting.peek().is_none() {
            break;
        }
        let mut next = waiting.peek().map(|(at, ..)| *at);
        if let Trouble::Crash(_, at) | Trouble::Stop(_, at) | Trouble::Abort(_, at) = &trouble
            && *at > now
        {
            next = Some(next.map_or(*at, |n| n.min(*at)));
        }
        assert!(
            job.advance(next),
            "seed {seed}: a hang, nothing left to happen"
        );
        // Deadline, grace and the last start: nothing lasts longer.
        assert!(
            job.now() < Duration::from_secs(13),
            "seed {seed}: beyond every deadline"
        );
    }
    for (rank, engine) in job.engines.iter().enumerate() {
        let open = engine.in_flight();
        assert!(
            job.still.contains(&(rank as u32)) || open == 0,
            "seed {seed}: rank {rank} keeps {open} operations"
        );
    }
    let still = job.still.clone();
    let outcomes = pending
        .into_iter()
        .filter(|(r, ..)| !still.contains(r))
        .map(|(r, call, n, p)| (Rank(r), call, n, p.wait()))
        .collect();
    Run {
        world,
        calls,
        trouble,
        outcomes,
    }
}

/// Whether this is how this trouble shows, on this call.
fn explains(run: &Run, call: usize, error: &Error) -> bool {
    match (&run.trouble, error.cause()) {
        (Trouble::Crash(who, _), Cause::PeerLost { rank, .. }) => rank.0 == *who,
        (Trouble::Stop(who, _), Cause::Timeout { waiting_for, .. }) => waiting_for == &[Rank(*who)],
        (Trouble::Partition(_, _, heal), Cause::Timeout { .. }) => heal.is_none(),
        (Trouble::Mismatch(who, wrong), Cause::Mismatch { op, deviating, .. }) => {
            // What had gone well by then is told by another operation.
            let named = format!("of lane {}", wrong + 1);
            let tagged = run.calls[*wrong].case.what == What::Message && op.contains("of tag");
            (call == *wrong || op.ends_with(&named) || tagged) && deviating.contains(&Rank(*who))
        }
        (Trouble::Abort(who, _), Cause::Aborted { by, .. }) => by.0 == *who,
        _ => false,
    }
}

/// How a run's operations ended, by kind.
type Tally = std::collections::BTreeMap<&'static str, usize>;

fn check(seed: u64, tally: &mut Tally) {
    let run = run(seed);
    for (.., finished) in &run.outcomes {
        let kind = match finished.result.as_ref().map_err(Error::cause) {
            Ok(_) => "right",
            Err(Cause::PeerLost { .. }) => "lost",
            Err(Cause::Timeout { .. }) => "timeout",
            Err(Cause::Mismatch { .. }) => "mismatch",
            Err(Cause::Aborted { .. }) => "aborted",
            Err(_) => "other",
        };
        *tally.entry(kind).or_default() += 1;
    }
    for (rank, call, _, finished) in &run.outcomes {
        let about = || {
            format!(
                "seed {seed}, {rank} of {}, {:?}, {:?}",
                run.world, run.calls[*call], run.trouble
            )
        };
        match &finished.result {
            Err(e) => assert!(explains(&run, *call, e), "{}: wrong error {e}", about()),
            Ok(_) => {
                let who = run.trouble == Trouble::Mismatch(rank.0, *call);
                let told = !who || run.world == 1 || !run.calls[*call].depends_on_all();
                assert!(told, "{}: the deviating rank is told", about());
            }
        }
        assert!(finished.io.is_some(), "{}: memory not handed back", about());
    }
    for (rank, call, n, finished) in run.outcomes {
        let deviates = matches!(run.trouble, Trouble::Mismatch(who, wrong) if wrong == call
            // Its counts may fit by chance where its values do not.
            && (who == rank.0 || run.calls[call].case.what == What::AllToAllV));
        let Ok(done) = finished.result else {
            continue;
        };
        if !deviates {
            let (step, want) = run.calls[call].steps(rank.0, 0).swap_remove(n);
            let io = finished.io.unwrap().into_inner::<Vec<f64>>().unwrap();
            let input = finished.input.map(|r| r.into_inner::<Vec<f64>>().unwrap());
            println!("seed {seed}, {:?}", run.trouble);
            let case = &run.calls[call].case;
            case.check(rank.0, &step.input, &input, &io, &done.counts, &want);
        }
    }
}

/// The memory of a call.
fn owned(step: Step<f64>) -> Owned {
    Owned {
        input: step.input.map(Region::new),
        io: Region::new(step.io),
    }
}

fn seeds(usual: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var("GAGGLE_SEEDS") else {
        let scale = if std::env::var_os("GAGGLE_EXHAUSTIVE").is_some() {
            20
        } else {
            1
        };
        return usual.start * scale..usual.end * scale;
    };
    match text.split_once("..") {
        Some((lo, hi)) => lo.parse().unwrap()..hi.parse().unwrap(),
        None => {
            let one = text.parse().unwrap();
            one..one + 1
        }
    }
}

#[test]
fn hundreds_of_runs_with_random_orders_and_faults_end_right() {
    let mut tally = Tally::new();
    let all = seeds(0..400);
    for seed in all.clone() {
        check(seed, &mut tally);
    }
    println!("{tally:?}");
    if all.end - all.start >= 400 {
        for kind in ["right", "lost", "timeout", "mismatch", "aborted"] {
            assert!(
                tally.get(kind).is_some_and(|n| *n > 20),
                "{kind} hardly occurs: {tally:?}"
            );
        }
    }
}

/// All ranks' part of a case, and what came of it.
fn run_case<T: Number>(job: &Job, case: &Case, t: u64) {
    let mut wants = vec![];
    let mut pending = vec![];
    for rank in 0..case.world {
        let comm = std::sync::Arc::clone(job.engines[rank as usize].group().communicator());
        for (step, want) in case.steps::<T>(rank, t) {
            wants.push((step.input.clone(), want));
            let memory = Owned {
                input: step.input.map(Region::new),
                io: Region::new(step.io),
            };
            pending.push((rank, comm.start(step.op, memory)));
        }
    }
    for ((rank, f), (given, want)) in job.collect(pending).into_iter().zip(wants) {
        let done = f.result.unwrap_or_else(|e| panic!("{rank}, {case:?}: {e}"));
        let io = f.io.unwrap().into_inner::<Vec<T>>().unwrap();
        let input = f.input.map(|r| r.into_inner::<Vec<T>>().unwrap());
        case.check(rank.0, &given, &input, &io, &done.counts, &want);
    }
}

#[test]
fn every_pair_of_choices_meets_the_serial_reference() {
    let cases = cases();
    for world in WORLDS {
        for sliced in [true, false] {
            let mut settings = config();
            if sliced {
                settings.slice_bytes = 48;
            }
            settings.hosts = Some(hosts(world).into());
            let job = Job::new(world, u64::from(world), &settings);
            let ours = |c: &&Case| c.world == world && c.sliced == sliced;
            for (t, case) in cases.iter().filter(ours).enumerate() {
                with_type!(case.dtype, run_case(&job, case, t as u64));
            }
        }
    }
}

#[test]
fn trial_1_every_field_of_the_descriptor() {
    for (seed, d) in (0u64..).zip(deviations::all()) {
        let job = Job::with(3, seed, |rank| {
            let mut config = config();
            if rank == 2 {
                (d.settings)(&mut config);
            }
            config
        });
        let comm =
            |rank: u32| std::sync::Arc::clone(job.engines[rank as usize].group().communicator());
        let call = |rank: u32| if rank == 2 { &d.other } else { &d.usual };
        let start = |rank: u32| {
            (
                rank,
                comm(rank).start(call(rank).op.clone(), call(rank).memory()),
            )
        };
        let first = job.collect((0..3).map(start).collect());
        assert!(
            job.now() < Duration::from_secs(7),
            "{}: within the deadline",
            d.field
        );
        let sum = |rank: u32| {
            let op = Op::new(Kind::AllReduce(Reduce::Sum));
            (rank, comm(rank).start(op, Region::new(vec![1f32]).into()))
        };
        // Settings of one rank's own make every call of its a mismatch.
        let alike =
            d.usual.op == d.other.op && d.usual.io == d.other.io && d.usual.dtype == d.other.dtype;
        let next = match alike {
            true => None,
            false => Some(job.collect((0..3).map(sum).collect())),
        };
        for (i, (rank, f)) in first.into_iter().enumerate() {
            assert!(f.io.is_some(), "{}: memory handed back", d.field);
            // From the call, or, where the rank had nothing to wait for, from its next one.
            let next = next.as_ref().map(|n| n[i].1.result.clone());
            let e = match (f.result, next) {
                (Err(e), Some(next)) => {
                    next.unwrap();
                    e
                }
                (Err(e), None) => e,
                (Ok(_), next) => next.unwrap().unwrap_err(),
            };
            let told = matches!(e.cause(), Cause::Mismatch { deviating, .. } if deviating.contains(&Rank(2)));
            assert!(told, "{}, {rank}: {e}", d.field);
            for text in d.quotes {
                assert!(e.to_string().contains(text), "{}: {text} in {e}", d.field);
            }
        }
        if !alike {
            for (_, f) in job.collect((0..3).map(sum).collect()) {
                f.result.unwrap();
                assert_eq!(f.io.unwrap().into_inner::<Vec<f32>>().unwrap(), [3.0]);
            }
        }
    }
}

#[test]
fn a_seed_repeats_itself() {
    for seed in [1, 2, 3, 40, 41, 42] {
        let results = |r: Run| -> Vec<_> {
            let one = |(rank, call, _, f): (Rank, usize, usize, Finished)| {
                let text = f
                    .result
                    .map(|d| (d.started, d.finished))
                    .map_err(|e| e.to_string());
                (
                    rank,
                    call,
                    text,
                    f.io.unwrap().into_inner::<Vec<f64>>().unwrap(),
                )
            };
            r.outcomes.into_iter().map(one).collect()
        };
        assert_eq!(results(run(seed)), results(run(seed)), "seed {seed}");
    }
}

#[test]
fn weighted_means_with_drained_ranks_in_any_order_of_arrival() {
    for world in [1u32, 2, 3, 5, 7, 8] {
        for algorithm in [
            Algorithm::Ring,
            Algorithm::Direct,
            Algorithm::RecursiveDoubling,
        ] {
            for seed in 0..10u64 {
                let job = Job::new(world, seed, &config());
                let w = |r: u32| {
                    if (u64::from(r) + seed).is_multiple_of(3) {
                        0
                    } else {
                        r + 1
                    }
                };
                let x = |r: u32, i: u32| f64::from(r * 10 + i);
                let pending = (0..world)
                    .map(|r| {
                        let op = Op::new(Kind::AllReduce(Reduce::Mean))
                            .by(algorithm)
                            .weighing(Weight::samples(w(r)));
                        let input: Vec<f64> = (0..37)
                            .map(|i| if w(r) == 0 { f64::NAN } else { x(r, i) })
                            .collect();
                        (
                            r,
                            job.engines[r as usize]
                                .group()
                                .communicator()
                                .start(op, Region::new(input).into()),
                        )
                    })
                    .collect();
                let total: u32 = (0..world).map(w).sum();
                for (rank, f) in job.collect(pending) {
                    assert_eq!(f.result.unwrap().weight, Weight::samples(total));
                    let got = f.io.unwrap().into_inner::<Vec<f64>>().unwrap();
                    for (i, got) in got.iter().enumerate().filter(|_| total > 0) {
                        let sum: f64 = (0..world).map(|r| f64::from(w(r)) * x(r, i as u32)).sum();
                        let want = sum / f64::from(total);
                        assert!(
                            (got - want).abs() < 1e-9,
                            "{algorithm}, {rank} of {world}, seed {seed}: {got}, not {want}"
                        );
                    }
                }
            }
        }
    }
}

/// What can be recorded: the operation as it is called, and as it is planned.
fn recorded(world: u32, rank: u32, len: u64) -> Vec<(Op, gaggle_collectives::Call, usize)> {
    use gaggle_collectives::Call as Planned;
    let (n, parts) = (len as usize, len as usize * world as usize);
    let mut all = vec![];
    for algorithm in [
        Algorithm::Ring,
        Algorithm::Direct,
        Algorithm::RecursiveDoubling,
    ] {
        for reduce in [Reduce::Sum, Reduce::Mean] {
            let op = Op::new(Kind::AllReduce(reduce)).by(algorithm);
            all.push((op, Planned::AllReduce { reduce, algorithm }, n));
        }
    }
    for algorithm in [Algorithm::Ring, Algorithm::Direct] {
        all.push((
            Op::new(Kind::AllGather(Counts::Equal)).by(algorithm),
            Planned::AllGather {
                counts: Counts::Equal,
                algorithm,
            },
            parts,
        ));
    }
    let root = Rank(world / 2);
    all.push((
        Op::new(Kind::Broadcast { root }).by(Algorithm::Binomial),
        Planned::Broadcast {
            root,
            algorithm: Algorithm::Binomial,
        },
        n,
    ));
    if len == 0 {
        all.push((Op::new(Kind::Barrier), Planned::Barrier, 0));
    }
    let round = round_of(world, rank, 1);
    let planned = Planned::Mix {
        from: round.from.iter().map(|(r, _)| *r).collect(),
        to: round.to.iter().map(|(r, _)| *r).collect(),
        scaled: false,
        form: round.form,
    };
    all.push((Op::new(Kind::Mix { round, t: 0 }), planned, n));
    all
}

fn assert_is_the_plan(record: &[gaggle_engine::Record], plan: &gaggle_collectives::Plan) {
    use gaggle_collectives::Action;
    assert_eq!(record.len() as u32, plan.n_steps(), "every step ran once");
    let mut place = vec![usize::MAX; record.len()];
    for (i, r) in record.iter().enumerate() {
        assert_eq!(
            place[r.step as usize],
            usize::MAX,
            "step {} ran twice",
            r.step
        );
        place[r.step as usize] = i;
        let step = plan.step(r.step);
        let (peer, span) = match &step.action {
            Action::Send { to, src, .. } => (Some(*to), *src),
            Action::Recv { from, dst, .. } => (Some(*from), *dst),
            Action::Fold { dst, .. } | Action::Copy { dst, .. } => (None, *dst),
            Action::Weigh { span, .. }
            | Action::Divide { span, .. }
            | Action::Recode { span, .. } => (None, *span),
            Action::Mix { dst, .. } => (None, *dst),
            other => panic!("no plan here has {other}"),
        };
        assert_eq!((r.peer, r.span), (peer, span), "step {}", r.step);
        for before in &step.after {
            assert!(
                place[*before as usize] < i,
                "step {} ran before step {before}",
                r.step
            );
        }
    }
}

#[test]
fn the_record_of_a_run_is_the_plan() {
    use gaggle_collectives::{Request, plan};
    let mut settings = config();
    settings.record = true;
    settings.slice_bytes = 40;
    for world in [1u32, 2, 3, 5, 7, 8] {
        for len in [
            0u64,
            1,
            u64::from(world) - 1,
            u64::from(world),
            u64::from(world) + 1,
            101,
        ] {
            for which in 0..recorded(world, 0, len).len() {
                let job = Job::new(world, 7 + which as u64, &settings);
                let pending = (0..world)
                    .map(|r| {
                        let (op, _, n) = recorded(world, r, len).swap_remove(which);
                        let group = job.engines[r as usize].group();
                        (
                            r,
                            group
                                .communicator()
                                .start(op, Region::new(vec![1f64; n]).into()),
                        )
                    })
                    .collect();
                for (_, f) in job.collect(pending) {
                    assert!(f.result.is_ok(), "{:?}", f.result);
                }
                for rank in 0..world {
                    let (_, call, _) = recorded(world, rank, len).swap_remove(which);
                    let request = Request {
                        call,
                        rank: Rank(rank),
                        world,
                        len,
                        slice: 5,
                        codec: gaggle_core::Codec::None,
                        widen: false,
                        ..Request::default()
                    };
                    let record = job.engines[rank as usize].take_record();
                    assert_is_the_plan(&record, &plan(&request).unwrap());
                }
            }
        }
    }
}

#[test]
fn a_stopped_rank_is_named_even_by_those_who_only_wait_for_its_neighbours() {
    for seed in 0..40u64 {
        let world = 4 + (seed % 5) as u32;
        let mut job = Job::new(world, seed, &config());
        let stop_at = Duration::from_micros(500 + seed * 211);
        let mut round: Vec<u64> = vec![0; world as usize];
        let mut pending: Vec<Option<Box<dyn Pending>>> = (0..world).map(|_| None).collect();
        let mut errors: Vec<Option<Error>> = vec![None; world as usize];
        for events in 0.. {
            assert!(events < 1_000_000, "seed {seed}: no end");
            if job.now() >= stop_at {
                job.still.insert(1);
            }
            for rank in (0..world).filter(|r| !job.still.contains(r)) {
                let r = rank as usize;
                if pending[r].as_ref().is_some_and(|p| p.is_done()) {
                    errors[r] = pending[r].take().unwrap().wait().result.err();
                    round[r] += 1;
                }
                if pending[r].is_none() && errors[r].is_none() {
                    let what = Kind::Mix {
                        round: round_of(world, rank, 1),
                        t: round[r],
                    };
                    let group = job.engines[r].group();
                    pending[r] = Some(
                        group
                            .communicator()
                            .start(Op::new(what), Region::new(vec![1.0f64; 8]).into()),
                    );
                }
            }
            job.pump();
            if (0..world).all(|r| r == 1 || errors[r as usize].is_some()) {
                break;
            }
            let next = (job.now() < stop_at).then_some(stop_at);
            assert!(job.advance(next), "seed {seed}: nothing left to happen");
        }
        for (rank, e) in errors.iter().enumerate().filter(|(r, _)| *r != 1) {
            let e = e.as_ref().unwrap();
            assert_eq!(
                e.culprits(),
                [Rank(1)],
                "seed {seed}, rank {rank} of {world}: {e}"
            );
        }
    }
}

#[test]
fn what_is_urgent_is_computed_first() {
    use gaggle_collectives::Action;
    let mut settings = config();
    settings.record = true;
    settings.slice_bytes = 80;
    let mut late = 0;
    for seed in 0..10u64 {
        let job = Job::new(2, seed, &settings);
        let start = |rank: u32, lane, priority, n| {
            let op = Op::new(Kind::AllReduce(Reduce::Sum))
                .by(Algorithm::Direct)
                .on(Lane(lane))
                .urgent(priority);
            let group = job.engines[rank as usize].group();
            let io = Region::new(vec![1f64; n]);
            (rank, group.communicator().start(op, io.into()))
        };
        let mut pending: Vec<_> = (0..2).map(|r| start(r, 0, 0, 800)).collect();
        pending.extend((0..2).map(|r| start(r, 1, 5, 20)));
        // Rank 0 sleeps until everything has come.
        for _ in 0..2000 {
            job.engines[1].progress();
            if !job.net.step() {
                break;
            }
        }
        job.engines[0].take_record();
        for (_, f) in job.collect(pending) {
            assert!(f.result.is_ok(), "seed {seed}: {:?}", f.result);
        }
        // The folds that the arrivals have released at once.
        let plan = |n| {
            let call = gaggle_collectives::Call::AllReduce {
                reduce: Reduce::Sum,
                algorithm: Algorithm::Direct,
            };
            let mut request = gaggle_collectives::Request::new(call, Rank(0), 2, n);
            request.slice = 10;
            gaggle_collectives::plan(&request).unwrap()
        };
        let (large, small) = (plan(800), plan(20));
        let folds: Vec<u32> = job.engines[0]
            .take_record()
            .iter()
            .filter(|r| {
                let plan = if r.op.lane == 0 { &large } else { &small };
                matches!(plan.step(r.step).action, Action::Fold { .. })
            })
            .map(|r| r.op.lane)
            .collect();
        let urgent = folds.iter().position(|lane| *lane == 1).unwrap();
        // One step of the aged may go before it.
        assert!(
            urgent <= 1,
            "seed {seed}: {urgent} of {} folds",
            folds.len()
        );
        late += folds.len() - urgent;
    }
    assert!(late > 100, "the test has nothing to overtake: {late}");
}

/// Rounds on a ring in which ranks die: everybody else ends every round, with an average of those who were there.
#[test]
fn tolerant_rounds_survive_every_crash() {
    for seed in 0..200u64 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let world = rng.random_range(2..8u32);
        let mut job = Job::new(world, seed, &config());
        let n = *[1usize, 50, 300].choose_one(&mut rng);
        let mut crashes: Vec<(Duration, u32)> = (0..rng.random_range(0..world))
            .map(|_| {
                let at = Duration::from_micros(rng.random_range(0..20_000));
                (at, rng.random_range(0..world))
            })
            .collect();
        crashes.sort_unstable();
        const ROUNDS: u64 = 6;
        let input = |r: u32, t: u64| f64::from(r * 100) + t as f64;
        let mut round = vec![0u64; world as usize];
        let mut pending: Vec<Option<Box<dyn Pending>>> = (0..world).map(|_| None).collect();
        for events in 0.. {
            assert!(events < 1_000_000, "seed {seed}: no end");
            while let Some((_, rank)) = crashes.first().copied().filter(|c| c.0 <= job.now()) {
                crashes.remove(0);
                job.net.crash(Rank(rank));
                job.still.insert(rank);
            }
            for rank in (0..world).filter(|r| !job.still.contains(r)) {
                let r = rank as usize;
                let stride = |t: u64| 1 + (t as u32 % (world - 1).max(1));
                if pending[r].as_ref().is_some_and(|p| p.is_done()) {
                    let f = pending[r].take().unwrap().wait();
                    let t = round[r];
                    round[r] += 1;
                    let done = f
                        .result
                        .unwrap_or_else(|e| panic!("seed {seed}, {rank}: {e}"));
                    let of = round_of(world, rank, stride(t));
                    let mut want = input(rank, t);
                    for (from, w) in &of.from {
                        assert!(
                            !done.missing.contains(from) || job.still.contains(&from.0),
                            "seed {seed}: {from} lives and is missing"
                        );
                        if !done.missing.contains(from) {
                            want += w * (input(from.0, t) - input(rank, t));
                        }
                    }
                    // Who could not take this rank's value any more is named, too.
                    let near = |m: &Rank| of.from.iter().chain(&of.to).any(|(r, _)| r == m);
                    assert!(done.missing.iter().all(near), "seed {seed}");
                    let x: Vec<f64> = f.io.unwrap().into_inner().unwrap();
                    let given: Vec<_> = x.iter().filter(|x| **x != want).collect();
                    let alone = x.iter().all(|x| *x == input(rank, t));
                    // A neighbour to whom nothing could be sent any more may still have given its part.
                    assert!(
                        given.is_empty() || (alone && !done.missing.is_empty()),
                        "seed {seed}: {rank}, round {t}: {x:?}, not {want}"
                    );
                }
                if pending[r].is_none() && round[r] < ROUNDS {
                    let t = round[r];
                    let what = Kind::Mix {
                        round: round_of(world, rank, stride(t)),
                        t,
                    };
                    let op = Op::new(what).on_missing(gaggle_core::OnMissing::Tolerate);
                    let group = job.engines[r].group();
                    let io = Region::new(vec![input(rank, t); n]);
                    pending[r] = Some(group.communicator().start(op, io.into()));
                }
            }
            job.pump();
            let over = |r: u32| job.still.contains(&r) || round[r as usize] == ROUNDS;
            if (0..world).all(over) {
                break;
            }
            let idle = |p: &Option<Box<dyn Pending>>| p.as_ref().is_none_or(|p| !p.is_done());
            let next = crashes.first().map(|c| c.0);
            let live = (0..world as usize).filter(|r| !job.still.contains(&(*r as u32)));
            if !live.into_iter().all(|r| idle(&pending[r])) {
                continue;
            }
            assert!(job.advance(next), "seed {seed}: nothing left to happen");
        }
    }
}

/// What a rank of a job that survives crashes is doing.
enum Doing {
    Nothing,
    Sum(Box<dyn Pending>),
    Rebuild(gaggle_engine::Rebuilding),
    Failed(Error),
}

/// Sums until all who live have had three right ones in one group, rebuilding whenever something fails. Ranks that have failed for good are in the result.
fn sum_on(job: &mut Job, seed: u64, mut crashes: Vec<(Duration, u32)>) -> Vec<Option<Error>> {
    let world = job.engines.len() as u32;
    crashes.sort_unstable();
    let mut groups: Vec<_> = job.engines.iter().map(|e| e.group()).collect();
    let mut doing: Vec<Doing> = (0..world).map(|_| Doing::Nothing).collect();
    let mut right = vec![0; world as usize];
    // Who follows whom: one record per group that was rebuilt.
    let mut records: std::collections::BTreeMap<u64, gaggle_core::GroupInfo> = Default::default();
    for events in 0.. {
        assert!(events < 1_000_000, "seed {seed}: no end");
        while let Some((_, rank)) = crashes.first().copied().filter(|c| c.0 <= job.now()) {
            crashes.remove(0);
            job.net.crash(Rank(rank));
            job.still.insert(rank);
        }
        let mut changed = false;
        for r in (0..world as usize).filter(|r| !job.still.contains(&(*r as u32))) {
            let group = groups[r].clone();
            let next = match std::mem::replace(&mut doing[r], Doing::Nothing) {
                Doing::Nothing => {
                    let op = Op::new(Kind::AllReduce(Reduce::Sum));
                    let io = Region::new(vec![(r + 1) as f64; 4]);
                    Doing::Sum(group.communicator().start(op, io.into()))
                }
                Doing::Sum(p) if p.is_done() => {
                    changed = true;
                    let f = p.wait();
                    match f.result {
                        Ok(_) => {
                            let members = &group.communicator().info().world_ranks;
                            let want: f64 = members.iter().map(|r| f64::from(r.0 + 1)).sum();
                            let x: Vec<f64> = f.io.unwrap().into_inner().unwrap();
                            assert_eq!(x, [want; 4], "seed {seed}");
                            right[r] += 1;
                            Doing::Nothing
                        }
                        Err(_) => {
                            let limit = Duration::from_secs(20);
                            Doing::Rebuild(job.engines[r].begin_rebuild(&group, limit).unwrap())
                        }
                    }
                }
                Doing::Rebuild(rebuilding) if rebuilding.is_over() => {
                    changed = true;
                    match rebuilding.poll().unwrap() {
                        Ok(new) => {
                            let mut info = new.communicator().info().clone();
                            info.rank = Rank(0);
                            assert_eq!(info.initial_size, world);
                            let old = group.communicator().info().id;
                            let known = records.entry(old).or_insert_with(|| info.clone());
                            assert_eq!(*known, info, "seed {seed}: two records");
                            groups[r] = new;
                            right[r] = 0;
                            Doing::Nothing
                        }
                        Err(e) => Doing::Failed(e),
                    }
                }
                other => other,
            };
            changed |= matches!((&doing[r], &next), (Doing::Nothing, Doing::Nothing));
            doing[r] = next;
        }
        let done = |r: usize| {
            job.still.contains(&(r as u32)) || right[r] >= 3 || matches!(doing[r], Doing::Failed(_))
        };
        if crashes.is_empty() && (0..world as usize).all(done) {
            break;
        }
        job.pump();
        if changed {
            continue;
        }
        let over = |d: &Doing| match d {
            Doing::Sum(p) => p.is_done(),
            Doing::Rebuild(p) => p.is_over(),
            Doing::Nothing | Doing::Failed(_) => false,
        };
        let live = (0..world as usize).filter(|r| !job.still.contains(&(*r as u32)));
        if !live.into_iter().any(|r| over(&doing[r])) {
            let next = crashes.first().map(|c| c.0);
            assert!(job.advance(next), "seed {seed}: nothing left to happen");
        }
    }
    doing
        .into_iter()
        .map(|d| match d {
            Doing::Failed(e) => Some(e),
            _ => None,
        })
        .collect()
}

#[test]
fn a_majority_survives_crashes_at_any_time_and_agrees_on_who_it_is() {
    for seed in 0..300u64 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let world = rng.random_range(1..9u32);
        let mut job = Job::new(world, seed, &config());
        // Ranks and times at random; often the lowest, while it proposes.
        let dead = rng.random_range(0..=(world - 1) / 2);
        let mut ranks: Vec<u32> = (0..world).collect();
        if rng.random() {
            ranks.shuffle(&mut rng);
        }
        let spread = *[2_000u64, 8_000, 400_000].choose_one(&mut rng);
        let crashes: Vec<(Duration, u32)> = ranks[..dead as usize]
            .iter()
            .map(|r| (Duration::from_micros(rng.random_range(0..spread)), *r))
            .collect();
        let failed = sum_on(&mut job, seed, crashes.clone());
        for (rank, e) in failed.iter().enumerate() {
            assert!(
                e.is_none() || job.still.contains(&(rank as u32)),
                "seed {seed}: rank {rank} of {world}, {crashes:?}: {}",
                e.as_ref().unwrap()
            );
        }
    }
}

#[test]
fn the_proposers_death_at_any_moment_changes_nothing() {
    for seed in 0..200u64 {
        let mut job = Job::new(5, seed, &config());
        // The first death makes all rebuild; the second one strikes whoever proposes.
        let crashes = vec![
            (Duration::from_micros(100), 0),
            (Duration::from_micros(100 + seed * 60), 1),
        ];
        let failed = sum_on(&mut job, seed, crashes);
        for (rank, e) in failed.iter().enumerate().skip(2) {
            assert!(e.is_none(), "seed {seed}: {rank}: {}", e.as_ref().unwrap());
        }
    }
}

#[test]
fn a_minority_ends_with_an_error_and_never_with_a_group() {
    for seed in 0..60u64 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let world = rng.random_range(2..8u32);
        let mut job = Job::new(world, seed, &config());
        // So many at once that the rest is no majority of the whole: of exactly half, the lowest goes too.
        let dead = world.div_ceil(2);
        let crashes = (0..dead).map(|r| (Duration::from_micros(50), r)).collect();
        let failed = sum_on(&mut job, seed, crashes);
        for (rank, e) in failed.iter().enumerate().skip(dead as usize) {
            let e = e.as_ref().unwrap();
            assert!(
                matches!(e.cause(), Cause::Rebuild { .. }),
                "seed {seed}: {rank} of {world}: {e}"
            );
        }
        assert!(
            job.now() < Duration::from_secs(20),
            "seed {seed}: told at once"
        );
    }
}

#[test]
fn a_partition_names_the_other_side_and_heals() {
    for seed in 0..20u64 {
        let mut job = Job::new(5, seed, &config());
        let (few, many) = ([0, 1].map(Rank), [2, 3, 4].map(Rank));
        job.net.partition(&few, &many);
        let limit = Duration::from_secs(3);
        let begin = |job: &Job, r: usize| {
            let group = job.engines[r].group();
            job.engines[r].begin_rebuild(&group, limit).unwrap()
        };
        let parts: Vec<_> = (0..5).map(|r| begin(&job, r)).collect();
        job.run_until(|| parts.iter().all(|p| p.is_over()));
        for (r, part) in parts.iter().enumerate() {
            let e = part.poll().unwrap().unwrap_err();
            let other: &[Rank] = if r < 2 { &many } else { &few };
            assert_eq!(e.culprits(), other, "seed {seed}: {e}");
        }
        job.net.heal();
        let parts: Vec<_> = (0..5).map(|r| begin(&job, r)).collect();
        job.run_until(|| parts.iter().all(|p| p.is_over()));
        let ids: Vec<u64> = parts
            .iter()
            .map(|p| p.poll().unwrap().unwrap().communicator().info().id)
            .collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "seed {seed}");
        job.still.clear();
    }
}
