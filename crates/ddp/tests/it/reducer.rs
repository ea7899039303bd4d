//! The reducer against a serial reference, and its refusals.

use crate::ranks::{BACKENDS, Backend, Numbers, WORLDS, run, run_within};
use gaggle_core::{Cause, Float, Group, Kind, Rank, Reduce, Weight};
use gaggle_ddp::{
    Bf16Mean, Bucket, BucketConfig, CommHook, Ddp, DdpConfig, DdpError, HookFuture, ParamSpec,
    PlainMean,
};
use std::{sync::Arc, time::Duration};

/// Awkward lengths: empty, one, prime, large.
const LENS: [usize; 8] = [7, 0, 1, 64, 13, 3, 101, 5];

fn specs(lens: &[usize]) -> Vec<ParamSpec> {
    lens.iter()
        .enumerate()
        .map(|(i, n)| ParamSpec::new(format!("layer{i}.weight"), [*n]))
        .collect()
}

/// Several buckets for `LENS` in either float type.
fn config() -> DdpConfig {
    DdpConfig {
        buckets: BucketConfig {
            cap_bytes: 400,
            first_bytes: 100,
        },
        ..DdpConfig::default()
    }
}

fn grad<T: Float>(rank: u32, step: u64, idx: usize, len: usize) -> Vec<T> {
    let mut numbers = Numbers::new(1 + idx as u64 + 100 * step + 10_000 * u64::from(rank));
    (0..len).map(|_| T::from_f64(numbers.unit())).collect()
}

/// Weighted mean of all ranks' gradients, in f64.
fn reference<T: Float>(weights: &[u32], step: u64, idx: usize, len: usize) -> Vec<f64> {
    let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
    let mut mean = vec![0.0; len];
    for (rank, w) in (0..).zip(weights) {
        for (m, g) in mean.iter_mut().zip(grad::<T>(rank, step, idx, len)) {
            *m += f64::from(*w) * g.to_f64() / total;
        }
    }
    mean
}

fn steps<T: Float>(group: Group, hook: Arc<dyn CommHook<T>>, weight: u32) -> Vec<Vec<Vec<T>>> {
    let rank = group.rank().0;
    let mut ddp = Ddp::<T>::new(group, &specs(&LENS), hook, config()).unwrap();
    let buckets = ddp.layout().buckets().len();
    assert!(buckets > 2);
    let mut all: Vec<Vec<Vec<T>>> = vec![];
    for step in 0..4u64 {
        ddp.begin_step(Weight::samples(weight)).unwrap();
        // Every rank has its gradients in an order of its own.
        let mut order: Vec<usize> = (0..LENS.len()).collect();
        Numbers::new(77 * step + u64::from(rank)).shuffle(&mut order);
        for idx in order {
            ddp.ready(idx, &grad::<T>(rank, step, idx, LENS[idx]))
                .unwrap();
        }
        let reduced = ddp.finish().unwrap();
        all.push((0..LENS.len()).map(|i| reduced.grad(i).to_vec()).collect());
        let report = reduced.report();
        assert_eq!(report.buckets.len(), buckets);
        assert!(report.hidden <= report.communicate);
        for (idx, (name, g)) in reduced.iter().enumerate() {
            assert_eq!((name, g.len()), (&*format!("layer{idx}.weight"), LENS[idx]));
        }
        let mut flat = vec![T::from_f64(0.0); LENS.iter().sum()];
        reduced.copy_to(&mut flat).unwrap();
        assert_eq!(flat, all[all.len() - 1].concat());
    }
    all
}

fn check<T: Float>(backend: Backend, n: u32, hook: Arc<dyn CommHook<T>>, tolerance: f64) {
    let weights: Vec<u32> = (0..n).map(|r| r % 3 + 1).collect();
    let ranks = run(backend, n, |group| {
        let weight = weights[group.rank().idx()];
        steps::<T>(group, Arc::clone(&hook), weight)
    });
    for (rank, got) in ranks.iter().enumerate() {
        assert_eq!(
            got, &ranks[0],
            "{backend:?} world {n}: rank {rank} has other bits"
        );
    }
    for (step, grads) in ranks[0].iter().enumerate() {
        for (idx, got) in grads.iter().enumerate() {
            let want = reference::<T>(&weights, step as u64, idx, LENS[idx]);
            for (g, w) in got.iter().zip(want) {
                assert!(
                    (g.to_f64() - w).abs() <= tolerance,
                    "{backend:?} world {n} step {step} parameter {idx}: {g:?} for {w}"
                );
            }
        }
    }
}

#[test]
fn means_equal_the_serial_reference_whatever_the_order() {
    for &backend in BACKENDS {
        for n in WORLDS {
            // |x| ≤ 1: a sum of n products is within n roundings of half an ulp.
            check::<f64>(backend, n, Arc::new(PlainMean), 1e-14);
            check::<f32>(backend, n, Arc::new(PlainMean), 1e-6);
        }
    }
}

#[test]
fn bf16_is_within_its_bound_and_leaves_equal_bits() {
    for &backend in BACKENDS {
        for n in WORLDS {
            // |x| ≤ 1: each contribution is rounded once (2⁻⁹ of at most 1), and so is the mean.
            check::<f32>(backend, n, Arc::new(Bf16Mean), 2.0 / 512.0 + 1e-6);
        }
    }
}

#[test]
fn bf16_of_a_value_that_all_ranks_share_is_within_two_to_the_minus_eight() {
    for &backend in BACKENDS {
        run(backend, 3, |group| {
            let mut ddp = Ddp::<f32>::new(
                group,
                &[ParamSpec::new("w", [101])],
                Arc::new(Bf16Mean),
                config(),
            )
            .unwrap();
            let g: Vec<f32> = (1..=101).map(|i| (i as f32).sqrt() * 1e3).collect();
            ddp.begin_step(Weight::ONE).unwrap();
            ddp.ready(0, &g).unwrap();
            let reduced = ddp.finish().unwrap();
            for (got, want) in reduced.grad(0).iter().zip(&g) {
                assert!((got - want).abs() <= want / 256.0, "{got} for {want}");
            }
        });
    }
}

/// Horovod 708: three samples of mean gradient 1.0 on one rank, one sample of 5.0 on the other.
#[test]
fn uneven_batches_weigh_by_their_samples() {
    for &backend in BACKENDS {
        let means = run(backend, 2, |group| {
            let (samples, g) = [(3, 1.0), (1, 5.0)][group.rank().idx()];
            let mut ddp = scalar(group);
            let mut means = vec![];
            for weight in [Weight::samples(samples), Weight::ONE] {
                ddp.begin_step(weight).unwrap();
                ddp.ready(0, &[g]).unwrap();
                means.push(ddp.finish().unwrap().grad(0)[0]);
            }
            means
        });
        assert_eq!(means, [[2.0, 3.0], [2.0, 3.0]]);
    }
}

/// A rank without data weighs nothing and its gradients, NaN here, are never read; where nobody has data the report says so.
#[test]
fn a_rank_without_samples_relays() {
    for &backend in BACKENDS {
        let got = run(backend, 3, |group| {
            let drained = group.rank() == Rank(1);
            let mut ddp = scalar(group);
            ddp.begin_step(Weight::samples(u32::from(!drained)))
                .unwrap();
            ddp.ready(0, &[if drained { f64::NAN } else { 1.0 }])
                .unwrap();
            let first = ddp.finish().unwrap().grad(0)[0];
            ddp.begin_step(Weight::ZERO).unwrap();
            ddp.ready(0, &[4.0]).unwrap();
            let reduced = ddp.finish().unwrap();
            (first, reduced.report().weight, reduced.grad(0)[0])
        });
        assert_eq!(got, [(1.0, Weight::ZERO, 4.0); 3]);
    }
}

fn scalar(group: Group) -> Ddp<f64> {
    Ddp::new(
        group,
        &[ParamSpec::new("w", [])],
        Arc::new(PlainMean),
        DdpConfig::default(),
    )
    .unwrap()
}

fn alone() -> Ddp<f64> {
    let group = crate::fake::world(1, Duration::from_secs(60)).remove(0);
    Ddp::new(group, &specs(&[2, 1]), Arc::new(PlainMean), config()).unwrap()
}

#[test]
fn mistakes_name_the_parameter_and_leave_the_step_as_it_was() {
    let mut ddp = alone();
    assert!(matches!(
        ddp.ready(0, &[1.0, 2.0]),
        Err(DdpError::NoStep { call: "ready" })
    ));
    assert!(matches!(
        ddp.finish().map(drop),
        Err(DdpError::NoStep { call: "finish" })
    ));
    ddp.begin_step(Weight::ONE).unwrap();
    assert!(matches!(
        ddp.begin_step(Weight::ONE),
        Err(DdpError::StepOpen)
    ));
    let e = ddp.ready(0, &[1.0]).unwrap_err();
    assert_eq!(
        e.to_string(),
        "parameter \"layer0.weight\" has 2 elements, got 1"
    );
    let e = ddp.ready(2, &[1.0]).unwrap_err();
    assert_eq!(
        e.to_string(),
        "there is no parameter 2: the model has 2, counted from 0"
    );
    ddp.ready(1, &[3.0]).unwrap();
    let e = ddp.ready(1, &[4.0]).unwrap_err();
    assert!(e.to_string().contains("\"layer1.weight\""), "{e}");
    let e = ddp.finish().map(drop).unwrap_err();
    assert_eq!(
        e.to_string(),
        "1 of 2 gradients were not handed over in this step: layer0.weight"
    );
    // The step is still open: the missing one may come now.
    ddp.ready(0, &[1.0, 2.0]).unwrap();
    let reduced = ddp.finish().unwrap();
    assert_eq!(
        (reduced.grad(0), reduced.grad(1)),
        (&[1.0, 2.0][..], &[3.0][..])
    );
}

#[test]
fn a_rank_that_cannot_finish_is_named_or_says_why() {
    for &backend in BACKENDS {
        // Rank 1 hands nothing over: the peers wait no longer than the deadline, and name it.
        let told = std::sync::Barrier::new(3);
        let got = run_within(backend, 3, Duration::from_secs(2), |group| {
            let rank = group.rank();
            let mut ddp = scalar(group);
            ddp.begin_step(Weight::ONE).unwrap();
            if rank != Rank(1) {
                ddp.ready(0, &[1.0]).unwrap();
            }
            let e = ddp.finish().map(drop).unwrap_err();
            // Whoever leaves is gone for the others, not late.
            told.wait();
            e
        });
        assert!(
            matches!(got[1], DdpError::MissingGradients { .. }),
            "{}",
            got[1]
        );
        for e in [&got[0], &got[2]] {
            assert!(e.to_string().starts_with("bucket 0 (w): "), "{e}");
            let cause = e.communication().unwrap().cause();
            assert!(matches!(cause, Cause::Timeout { .. }), "{e}");
            assert_eq!(e.culprits(), [Rank(1)], "{e}");
        }

        // Nobody aborts before everybody has begun, nor leaves before everybody has heard of it.
        let (begun, heard) = (std::sync::Barrier::new(3), std::sync::Barrier::new(3));
        let got = run(backend, 3, |group| {
            let rank = group.rank();
            let mut ddp = scalar(group);
            ddp.begin_step(Weight::ONE).unwrap();
            begun.wait();
            if rank == Rank(1) {
                ddp.abort("out of data");
                heard.wait();
                return String::new();
            }
            ddp.ready(0, &[1.0]).unwrap();
            let e = ddp.finish().map(drop).unwrap_err().to_string();
            heard.wait();
            e
        });
        assert!(got[0].contains("out of data"), "{}", got[0]);
        assert!(got[2].contains("rank 1"), "{}", got[2]);
    }
}

#[test]
fn gradients_may_come_from_several_threads() {
    for &backend in BACKENDS {
        run(backend, 2, |group| {
            let mut ddp =
                Ddp::<f32>::new(group, &specs(&LENS), Arc::new(PlainMean), config()).unwrap();
            for _ in 0..8 {
                ddp.begin_step(Weight::ONE).unwrap();
                let feed = ddp.feed();
                std::thread::scope(|s| {
                    for part in [0..4, 4..8] {
                        let feed = feed.clone();
                        s.spawn(move || {
                            for idx in part {
                                feed.ready(idx, &grad::<f32>(0, 0, idx, LENS[idx])).unwrap();
                            }
                        });
                    }
                });
                let reduced = ddp.finish().unwrap();
                for (idx, len) in LENS.into_iter().enumerate() {
                    assert_eq!(reduced.grad(idx), grad::<f32>(0, 0, idx, len));
                }
            }
        });
    }
}

/// Buckets come back to the same memory, step after step.
#[test]
fn bucket_memory_is_used_again() {
    let mut ddp = alone();
    let mut seen = vec![];
    for _ in 0..3 {
        ddp.begin_step(Weight::ONE).unwrap();
        ddp.ready(1, &[3.0]).unwrap();
        ddp.ready(0, &[1.0, 2.0]).unwrap();
        seen.push(ddp.finish().unwrap().grad(0).as_ptr());
    }
    assert!(seen.iter().all(|p| *p == seen[0]));
}

#[test]
fn a_model_without_parameters_or_elements_trains_trivially() {
    for &backend in BACKENDS {
        run(backend, 2, |group| {
            let mut none =
                Ddp::<f32>::new(group.clone(), &[], Arc::new(PlainMean), config()).unwrap();
            none.begin_step(Weight::ONE).unwrap();
            assert_eq!(none.finish().unwrap().report().bytes_sent, 0);
            let mut empty =
                Ddp::<f32>::new(group, &specs(&[0, 0]), Arc::new(PlainMean), config()).unwrap();
            empty.begin_step(Weight::ONE).unwrap();
            empty.ready(0, &[]).unwrap();
            empty.ready(1, &[]).unwrap();
            assert!(empty.finish().unwrap().grad(1).is_empty());
        });
    }
}

#[test]
fn bf16_refuses_other_types() {
    let group = crate::fake::world(1, Duration::from_secs(60)).remove(0);
    let e = Ddp::<f64>::new(group, &specs(&[1]), Arc::new(Bf16Mean), config()).unwrap_err();
    assert_eq!(
        e.to_string(),
        "hook bf16 does not carry f64; use PlainMean, or train in another type"
    );
}

/// Two collectives in a row: the mean twice, which changes nothing the second time.
struct Twice;

impl CommHook<f64> for Twice {
    fn name(&self) -> &str {
        "twice"
    }

    fn reduce(&self, group: Group, mut bucket: Bucket<f64>) -> HookFuture<f64> {
        Box::pin(async move {
            for _ in 0..2 {
                let op = bucket.op(Kind::AllReduce(Reduce::Mean));
                let mut work = group.start(op, std::mem::take(&mut bucket.data));
                bucket.data = (&mut work).await.map_err(|f| gaggle_core::Failed {
                    error: f.error,
                    buf: None,
                })?;
                if let Some(done) = work.outcome() {
                    bucket.record(done);
                }
            }
            Ok(bucket)
        })
    }
}

#[test]
fn a_hook_may_chain_collectives() {
    for &backend in BACKENDS {
        check::<f64>(backend, 3, Arc::new(Twice), 1e-14);
    }
}

/// Panics on the second bucket of the second step.
struct Broken(std::sync::atomic::AtomicU32);

impl CommHook<f64> for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn reduce(&self, group: Group, bucket: Bucket<f64>) -> HookFuture<f64> {
        let calls = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        assert!(calls != 3, "third time unlucky");
        PlainMean.reduce(group, bucket)
    }
}

#[test]
fn a_panicking_hook_ends_its_step_and_no_other() {
    let group = crate::fake::world(1, Duration::from_secs(60)).remove(0);
    let mut ddp = Ddp::new(
        group,
        &specs(&[2, 200]),
        Arc::new(Broken(0.into())),
        config(),
    )
    .unwrap();
    for step in 0..3 {
        ddp.begin_step(Weight::ONE).unwrap();
        ddp.ready(1, &[1.0; 200]).unwrap();
        ddp.ready(0, &[1.0; 2]).unwrap();
        let outcome = ddp.finish().map(|r| r.grad(0)[0]);
        if step == 1 {
            assert_eq!(
                outcome.unwrap_err().to_string(),
                "hook broken panicked on bucket 1: third time unlucky"
            );
        } else {
            assert_eq!(outcome.unwrap(), 1.0);
        }
    }
}

/// Beyond the size up to which whole vectors are exchanged, so that the direct plan runs; every P divides it.
const LEN: usize = 32 * 840;

/// Two buckets of such a length.
fn overlapping(group: Group, hook: Arc<dyn CommHook<f32>>) -> (gaggle_ddp::StepReport, u64) {
    let specs = specs(&[LEN, LEN]);
    let mut ddp = Ddp::<f32>::new(group.clone(), &specs, hook, config()).unwrap();
    group.barrier().unwrap();
    let before = group.stats();
    ddp.begin_step(Weight::ONE).unwrap();
    ddp.ready(1, &[1.0; LEN]).unwrap();
    // The rest of backward.
    group.barrier().unwrap();
    ddp.ready(0, &[2.0; LEN]).unwrap();
    let report = ddp.finish().unwrap().report().clone();
    // What others still owe does not count as ours; what we owed has gone when we are done.
    let sent = group.stats().since(&before).payload_sent;
    (report, sent)
}

#[test]
fn what_backward_hides_and_what_is_sent_is_reported() {
    for n in WORLDS {
        let plain = run(Backend::Engine, n, |g| overlapping(g, Arc::new(PlainMean)));
        let coded = run(Backend::Engine, n, |g| overlapping(g, Arc::new(Bf16Mean)));
        let p = u64::from(n);
        let bytes = 2 * 2 * (LEN as u64 * 4) * (p - 1) / p;
        for ((plain, plain_sent), (coded, coded_sent)) in plain.iter().zip(&coded) {
            assert_eq!((plain.bytes_sent, *plain_sent), (bytes, bytes), "world {n}");
            assert_eq!((coded.bytes_sent, *coded_sent), (bytes / 2, bytes / 2));
            for report in [plain, coded] {
                let [first, second] = &report.buckets[..] else {
                    panic!("two buckets");
                };
                assert!(first.started < second.started);
                assert!(report.hidden <= report.communicate);
                // On one rank there is nothing to hide.
                assert!(n == 1 || report.hidden > Duration::ZERO);
            }
        }
    }
}

/// The mean of a bucket that the ranks of this host have mapped of each other.
#[cfg(target_os = "linux")]
struct Mapped;

#[cfg(target_os = "linux")]
impl CommHook<f32> for Mapped {
    fn name(&self) -> &str {
        "mapped"
    }

    fn reduce(&self, group: Group, bucket: Bucket<f32>) -> HookFuture<f32> {
        assert!(bucket.data.is_registered());
        PlainMean.reduce(group, bucket)
    }
}

#[cfg(target_os = "linux")]
#[test]
fn buckets_lie_where_the_ranks_of_a_host_reach_them_step_after_step() {
    check::<f32>(Backend::Mapped, 3, Arc::new(Mapped), 1e-6);
}
