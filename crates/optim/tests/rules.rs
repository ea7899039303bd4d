//! The contract of every rule, and of the driver that runs it.

use gaggle_core::{
    At, Cause, Codec, Cx, Error, Exchange, Float, Form, Local, MixedMean, Mixer, MixingFacts, Rank,
    Round, Rule, Topology, With,
};
use gaggle_optim::{
    Decentralised, LocalRule, NAMES, RuleConfig, Sgd, SgdConfig, rule_by_name, testing::DenseMixer,
};
use proptest::prelude::*;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

fn built<T: Float>(name: &str) -> Box<dyn Rule<T>> {
    rule_by_name(name, &RuleConfig::default()).expect("the name exists")
}

fn ring(n: usize) -> impl Fn(u64, usize, usize) -> f64 + Send + Sync + 'static {
    move |_t, i, j| match (n, (i + n - j) % n) {
        (2, _) => 0.5,
        (_, 1) => 1.0 / 3.0,
        (n, back) if back == n - 1 => 1.0 / 3.0,
        _ => 0.0,
    }
}

fn world<T: Float>(name: &str, ranks: usize, n: usize) -> Vec<Decentralised<T>> {
    DenseMixer::world(ranks, ring(ranks))
        .into_iter()
        .map(|mixer| Decentralised::new(built(name), Box::new(mixer), n))
        .collect()
}

/// One step of all ranks; gradients are taken at the point where the rule wants them.
fn step<T: Float>(
    ranks: &mut [Decentralised<T>],
    lr: f64,
    x: &mut [Vec<T>],
    gradient: impl Fn(usize, &[T]) -> Vec<T>,
) {
    let mut g = vec![Vec::new(); x.len()];
    for at in [At::BeforeForward, At::AfterGradient] {
        if at == At::AfterGradient {
            g = x.iter().enumerate().map(|(r, x)| gradient(r, x)).collect();
        }
        for (r, rank) in ranks.iter_mut().enumerate() {
            rank.begin(at, lr, &mut x[r], &g[r]).expect("begins");
        }
        for (r, rank) in ranks.iter_mut().enumerate() {
            rank.end(at, &mut x[r], &g[r]).expect("ends");
        }
    }
}

const PLAIN: [&str; 4] = ["allreduce-sgd", "dsgd-atc", "dsgd-awc", "dsgd-cta"];

/// BlueFog's push-sum optimizer gave −1, −1.5, −2, −2.5 here.
#[test]
fn two_equal_ranks_walk_down_by_one() {
    fn walk<T: Float>(name: &str) {
        let mut ranks = world::<T>(name, 2, 1);
        let mut x = vec![vec![T::from_f64(0.0)]; 2];
        for want in [-1.0, -2.0, -3.0, -4.0] {
            step(&mut ranks, 1.0, &mut x, |_, _| vec![T::from_f64(1.0)]);
            assert!(x.iter().all(|x| x[0].to_f64() == want), "{name}: {x:?}");
        }
    }
    for name in PLAIN {
        walk::<f64>(name);
        walk::<f32>(name);
    }
}

/// BlueFog kept the last micro-batch only: −10.
#[test]
fn micro_batches_are_summed() {
    for name in PLAIN {
        let mut ranks = world::<f64>(name, 1, 1);
        let rank = &mut ranks[0];
        let mut x = vec![0.0];
        rank.before_forward(1.0, &mut x).unwrap();
        rank.accumulate(&[1.0]).unwrap();
        rank.before_forward(1.0, &mut x).unwrap();
        rank.step(1.0, &mut x, &[10.0]).unwrap();
        assert_eq!(x, [-11.0], "{name}");
        // The next step starts from nothing.
        rank.before_forward(1.0, &mut x).unwrap();
        rank.step(1.0, &mut x, &[1.0]).unwrap();
        assert_eq!((x[0], rank.steps()), (-12.0, 2), "{name}");
    }
    // Two ranks: each sums its own, then they average.
    for name in PLAIN {
        let mut ranks = world::<f64>(name, 2, 1);
        let mut x = vec![vec![0.0]; 2];
        for rank in &mut ranks {
            rank.accumulate(&[1.0]).unwrap();
        }
        step(&mut ranks, 1.0, &mut x, |_, _| vec![10.0]);
        assert_eq!(x, [[-11.0], [-11.0]], "{name}");
    }
}

/// Equal ranks with equal gradients stay equal bit for bit (delta form), and those with a local step do what it does alone.
#[test]
fn equal_ranks_are_one_rank() {
    for ranks in [1, 2, 3, 5, 7, 8] {
        for n in [0, 1, ranks - 1, ranks, ranks + 1, 13] {
            for name in NAMES {
                let mut all = world::<f32>(name, ranks, n);
                let start: Vec<f32> = (0..n).map(|k| k as f32 * 0.3 - 1.0).collect();
                let mut x = vec![start.clone(); ranks];
                let gradient = |x: &[f32]| -> Vec<f32> { x.iter().map(|x| x * x - 0.7).collect() };
                let mut alone = vec![start];
                let mut single = world::<f32>(name, 1, n);
                for _ in 0..4 {
                    step(&mut all, 0.1, &mut x, |_, x| gradient(x));
                    step(&mut single, 0.1, &mut alone, |_, x| gradient(x));
                }
                for (r, x) in x.iter().enumerate() {
                    // The mean of equal gradients over 3, 5 or 7 ranks may differ in the last place.
                    let exact = !name.starts_with("allreduce");
                    for (got, want) in x.iter().zip(&alone[0]) {
                        let slack = if exact { 0.0 } else { 1e-6 };
                        assert!(
                            (got - want).abs() <= slack,
                            "{name}, {ranks} ranks, {n}: rank {r}"
                        );
                    }
                }
            }
        }
    }
}

/// One rank alone with a local step is that local step.
#[test]
fn a_world_of_one_is_the_local_step() {
    let momentum = SgdConfig {
        momentum: 0.9,
        ..SgdConfig::default()
    };
    for name in NAMES {
        let mut local: Box<dyn LocalRule<f64>> = match name {
            "allreduce-sgd" | "dsgd-atc" | "dsgd-awc" | "dsgd-cta" => Box::new(Sgd::plain()),
            "allreduce-msgd" | "dmsgd" | "dmsgd-awc" | "dmsgd-cta" => {
                Box::new(Sgd::new(momentum).unwrap())
            }
            _ => continue,
        };
        local.init(3);
        let mut rank = world::<f64>(name, 1, 3);
        let (mut x, mut y) = (vec![vec![1.0, -2.0, 0.5]], vec![1.0, -2.0, 0.5]);
        for k in 0..10 {
            let g: Vec<f64> = y.iter().map(|y| 0.3 * y + 0.1).collect();
            let cx = Cx { step: k, lr: 0.2 };
            local.step(
                &cx,
                Local {
                    at: 0..3,
                    x: &mut y,
                    g: &g,
                },
            );
            step(&mut rank, 0.2, &mut x, |_, x| {
                x.iter().map(|x| 0.3 * x + 0.1).collect()
            });
            assert_eq!(x[0], y, "{name}");
        }
    }
}

#[test]
fn a_wrong_length_or_step_size_changes_nothing() {
    for name in NAMES {
        let mut ranks = world::<f64>(name, 1, 2);
        let rank = &mut ranks[0];
        let mut x = vec![1.0, 1.0];
        let says = |e: Error, what: &str| {
            assert!(matches!(e.cause(), Cause::Invalid { .. }));
            assert_eq!(e.to_string(), format!("{name} step 0: {what}"));
        };
        says(
            rank.before_forward(0.1, &mut [0.0; 3]).unwrap_err(),
            "x has 3 elements, wanted 2",
        );
        says(
            rank.accumulate(&[0.0]).unwrap_err(),
            "gradient has 1 elements, wanted 2",
        );
        let bad = "step size is NaN; it must be finite and not negative";
        says(rank.before_forward(f64::NAN, &mut x).unwrap_err(), bad);
        rank.before_forward(0.1, &mut x).unwrap();
        says(
            rank.step(0.1, &mut x, &[0.0; 3]).unwrap_err(),
            "gradient has 3 elements, wanted 2",
        );
        says(
            rank.step(0.1, &mut [0.0], &[0.0; 2]).unwrap_err(),
            "x has 1 elements, wanted 2",
        );
        assert!(rank.step(-1.0, &mut x, &[0.0; 2]).is_err());
        assert_eq!(x, [1.0, 1.0]);
        rank.state(&mut |_, v| assert!(v.iter().all(|v| *v == 0.0), "{name}"));
        // And the step goes on as if nothing had been said.
        rank.step(0.0, &mut x, &[1.0, 1.0]).unwrap();
        assert_eq!((&x[..], rank.steps()), (&[1.0, 1.0][..], 1));
    }
}

#[test]
fn a_wrong_order_is_told_and_changes_nothing() {
    let mut x = [0.0];
    for name in ["dsgd-awc", "dsgd-cta", "dmsgd-awc", "dmsgd-cta"] {
        let mut ranks = world::<f64>(name, 1, 1);
        let e = ranks[0].step(0.1, &mut x, &[1.0]).unwrap_err().to_string();
        assert_eq!(
            e,
            format!(
                "{name} step 0: before_forward was not called, and this rule averages parameters there"
            )
        );
        ranks[0].before_forward(0.1, &mut x).unwrap();
        ranks[0].step(0.0, &mut x, &[1.0]).unwrap();
    }
    let mut ranks = world::<f64>("dsgd-atc", 1, 1);
    let rank = &mut ranks[0];
    let says = |e: Result<(), Error>, what: &str| {
        let e = e.unwrap_err().to_string();
        assert_eq!(e, format!("dsgd-atc step 0: {what}"));
    };
    says(
        rank.end(At::AfterGradient, &mut x, &[1.0]),
        "end of AfterGradient without its begin",
    );
    rank.begin(At::AfterGradient, 1.0, &mut x, &[1.0]).unwrap();
    says(
        rank.begin(At::AfterGradient, 1.0, &mut x, &[1.0]),
        "begin of AfterGradient, but AfterGradient has not ended",
    );
    says(
        rank.end(At::BeforeForward, &mut x, &[]),
        "end of BeforeForward without its begin",
    );
    says(
        rank.accumulate(&[1.0]),
        "accumulate between begin and end of AfterGradient",
    );
    says(rank.resume_at(7), "resume_at in the middle of a step");
    rank.end(At::AfterGradient, &mut x, &[1.0]).unwrap();
    assert_eq!((x, rank.steps()), ([-1.0], 1));
    rank.resume_at(7).unwrap();
    assert_eq!(rank.steps(), 7);
    rank.begin(At::BeforeForward, 1.0, &mut x, &[]).unwrap();
    rank.end(At::BeforeForward, &mut x, &[]).unwrap();
    let e = rank.begin(At::BeforeForward, 1.0, &mut x, &[]).unwrap_err();
    assert!(
        e.to_string()
            .ends_with("begin of BeforeForward twice in one step")
    );
}

/// Fails once, at the given call.
struct Broken {
    inner: DenseMixer<f64>,
    calls: usize,
    fails_at: usize,
}

impl Broken {
    fn call(&mut self) -> Result<(), Error> {
        self.calls += 1;
        if self.calls - 1 == self.fails_at {
            return Err(Cause::PeerLost {
                op: "neighbour_mean".into(),
                rank: Rank(1),
                world_rank: Rank(1),
                why: "connection reset".into(),
                partly_written: false,
            }
            .into());
        }
        Ok(())
    }
}

impl Mixer<f64> for Broken {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }
    fn world(&self) -> usize {
        self.inner.world()
    }
    fn outbox(&mut self, slot: usize, n: usize) -> &mut [f64] {
        self.inner.outbox(slot, n)
    }
    fn start(&mut self, exchange: &Exchange, t: u64) -> Result<(), Error> {
        self.call()?;
        self.inner.start(exchange, t)
    }
    fn finish(&mut self, slot: usize) -> Result<(), Error> {
        self.call()?;
        self.inner.finish(slot)
    }
    fn mean(&self, slot: usize) -> MixedMean<'_, f64> {
        self.inner.mean(slot)
    }
}

#[test]
fn an_error_of_the_network_is_returned_ever_after() {
    for (name, fails_at) in NAMES.into_iter().flat_map(|n| [(n, 0), (n, 1), (n, 2)]) {
        let inner = DenseMixer::world(1, |_, _, _| 1.0).remove(0);
        let mixer = Broken {
            inner,
            calls: 0,
            fails_at,
        };
        let mut rank = Decentralised::new(built(name), Box::new(mixer), 1);
        let mut x = [1.0];
        let mut errors = 0;
        for _ in 0..3 {
            let gone = rank
                .before_forward(0.1, &mut x)
                .and_then(|()| rank.step(0.1, &mut x, &[1.0]));
            if let Err(e) = gone {
                assert_eq!(e.culprits(), [Rank(1)]);
                errors += 1;
            }
        }
        assert_eq!(
            errors,
            if fails_at < 2 { 3 } else { 2 },
            "{name}, call {fails_at}"
        );
        assert_eq!(rank.accumulate(&[1.0]).unwrap_err().culprits(), [Rank(1)]);
        let (rule, mixer) = rank.into_parts();
        assert_eq!((rule.name(), mixer.world()), (name, 1));
    }
}

/// Exchanges in every third step, with six messages then; counts what it is asked.
struct Sometimes {
    six: Vec<Exchange>,
    absorbed: Arc<AtomicUsize>,
}

impl Rule<f64> for Sometimes {
    fn name(&self) -> &str {
        "sometimes"
    }
    fn init(&mut self, _n: usize) {}
    fn exchanges(&self, cx: &Cx) -> &[Exchange] {
        if cx.step % 3 == 2 { &self.six } else { &[] }
    }
    fn emit(&mut self, _cx: &Cx, slot: usize, local: Local<'_, f64>, out: &mut [f64]) {
        for (out, x) in out.iter_mut().zip(local.x) {
            *out = *x + slot as f64;
        }
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, f64>, means: &[MixedMean<'_, f64>]) {
        self.absorbed.fetch_add(1, Ordering::Relaxed);
        assert_eq!(local.g.is_empty(), at == At::BeforeForward);
        let due = at == At::AfterGradient && cx.step % 3 == 2;
        assert_eq!(means.len(), if due { 6 } else { 0 });
        for (slot, mean) in means.iter().enumerate() {
            assert_eq!(mean.values, [local.x[0] + slot as f64]);
        }
        local.x[0] += 1.0;
    }
    fn state(&mut self, _visit: &mut dyn FnMut(&str, &mut Vec<f64>)) {}
}

#[test]
fn absorb_is_called_at_both_points_of_every_step() {
    let absorbed = Arc::new(AtomicUsize::new(0));
    let six = (0..6).map(|slot| Exchange {
        slot,
        with: With::Neighbours,
        known: At::AfterGradient,
        due: At::AfterGradient,
        codec: Codec::None,
    });
    let rule = Sometimes {
        six: six.collect(),
        absorbed: absorbed.clone(),
    };
    let mixer = DenseMixer::world(1, |_, _, _| 1.0).remove(0);
    let mut rank = Decentralised::new(Box::new(rule), Box::new(mixer), 1);
    let mut x = [0.0];
    for step in 0..9 {
        if step % 2 == 0 {
            rank.before_forward(1.0, &mut x).unwrap();
        }
        rank.step(1.0, &mut x, &[1.0]).unwrap();
    }
    assert_eq!((absorbed.load(Ordering::Relaxed), x[0]), (18, 18.0));
}

/// Notes where the mean that it is shown lies.
struct Watch {
    one: [Exchange; 1],
    seen: Arc<AtomicUsize>,
}

impl Rule<f64> for Watch {
    fn name(&self) -> &str {
        "watch"
    }
    fn init(&mut self, _n: usize) {}
    fn exchanges(&self, _cx: &Cx) -> &[Exchange] {
        &self.one
    }
    fn emit(&mut self, _cx: &Cx, _slot: usize, local: Local<'_, f64>, out: &mut [f64]) {
        out.copy_from_slice(local.x);
    }
    fn absorb(&mut self, _cx: &Cx, _at: At, _local: Local<'_, f64>, means: &[MixedMean<'_, f64>]) {
        if let [mean] = means {
            self.seen
                .store(mean.values.as_ptr() as usize, Ordering::Relaxed);
        }
    }
    fn state(&mut self, _visit: &mut dyn FnMut(&str, &mut Vec<f64>)) {}
}

#[test]
fn means_are_read_where_the_mixer_keeps_them() {
    let seen = Arc::new(AtomicUsize::new(0));
    let one = *built::<f64>("dmsgd")
        .exchanges(&Cx { step: 0, lr: 0.1 })
        .first()
        .unwrap();
    let rule = Watch {
        one: [one],
        seen: seen.clone(),
    };
    let mixer = DenseMixer::world(1, |_, _, _| 1.0).remove(0);
    let mut rank = Decentralised::new(Box::new(rule), Box::new(mixer), 3);
    rank.step(0.1, &mut [1.0; 3], &[1.0; 3]).unwrap();
    let kept = rank.mixer().mean(0).values.as_ptr() as usize;
    assert_eq!(seen.load(Ordering::Relaxed), kept);
}

fn facts() -> MixingFacts {
    MixingFacts {
        world: 8,
        period: 1,
        row_stochastic: true,
        column_stochastic: true,
        symmetric: true,
        connected: true,
        contraction: 0.8,
        lambda_min: Some(-1.0 / 3.0),
    }
}

#[test]
fn rules_refuse_what_diverges() {
    let rank = |name| world::<f64>(name, 1, 1).remove(0);
    let apart = MixingFacts {
        connected: false,
        contraction: 1.0,
        ..facts()
    };
    let swap = MixingFacts {
        contraction: 0.9,
        lambda_min: Some(-1.0),
        ..facts()
    };
    for name in NAMES {
        rank(name).check(&facts(), 0.1).unwrap();
        assert!(rank(name).check(&facts(), -0.1).is_err(), "{name}");
        // All-reduce does not use the topology.
        assert_eq!(
            rank(name).check(&apart, 0.1).is_ok(),
            name.starts_with("allreduce"),
            "{name}"
        );
        assert_eq!(
            rank(name).check(&swap, 0.1).is_ok(),
            !name.ends_with("awc"),
            "{name}"
        );
    }
    let known = RuleConfig {
        smoothness: Some(1.0),
        ..RuleConfig::default()
    };
    let awc = rule_by_name::<f64>("dsgd-awc", &known).unwrap();
    awc.check(&facts(), 0.6).unwrap();
    let e = awc.check(&facts(), 0.7).unwrap_err().to_string();
    assert!(
        e.starts_with("unstable: averaging while computing") && e.contains("atc"),
        "{e}"
    );
    rule_by_name::<f64>("dsgd-atc", &known)
        .unwrap()
        .check(&facts(), 0.7)
        .unwrap();
}

/// With γ = 0 a step only averages; (x − x⁺)/γ has no meaning and the momentum rests.
#[test]
fn quasi_global_momentum_rests_at_a_step_size_of_zero() {
    let mut ranks = world::<f64>("qg-dmsgd", 3, 1);
    let mut x = vec![vec![0.0], vec![3.0], vec![6.0]];
    step(&mut ranks, 0.1, &mut x, |_, _| vec![1.0]);
    let state = |rank: &mut Decentralised<f64>| {
        let mut all = Vec::new();
        rank.state(&mut |name, v| all.push((name.to_owned(), v.clone())));
        all
    };
    let before: Vec<_> = ranks.iter_mut().map(state).collect();
    step(&mut ranks, 0.0, &mut x, |_, _| vec![1.0]);
    let after: Vec<_> = ranks.iter_mut().map(state).collect();
    assert_eq!(before, after);
    assert!(after[0][0].0 == "quasi-global momentum" && after[0][0].1[0].is_finite());
}

#[test]
fn codecs_are_passed_on_and_the_dense_mixer_says_it_has_none() {
    for name in NAMES {
        let config = RuleConfig {
            codec: Codec::Bf16,
            ..RuleConfig::default()
        };
        let rule = rule_by_name::<f32>(name, &config).unwrap();
        assert_eq!(
            rule.exchanges(&Cx { step: 0, lr: 0.1 })[0].codec,
            Codec::Bf16
        );
        let mixer = DenseMixer::world(1, |_, _, _| 1.0).remove(0);
        let mut rank = Decentralised::new(rule, Box::new(mixer), 1);
        let mut x = [1.0];
        let e = rank
            .before_forward(0.1, &mut x)
            .and_then(|()| rank.step(0.1, &mut x, &[1.0]));
        let e = e.unwrap_err();
        assert!(matches!(e.cause(), Cause::Unsupported { .. }), "{e}");
    }
}

#[test]
fn the_dense_mixer_names_who_is_missing() {
    let mut ranks = world::<f64>("dsgd-atc", 5, 1);
    let mut x = vec![vec![0.0]; 5];
    for r in [0, 4] {
        ranks[r]
            .begin(At::AfterGradient, 0.1, &mut x[r], &[1.0])
            .unwrap();
    }
    let e = ranks[0]
        .end(At::AfterGradient, &mut x[0], &[1.0])
        .unwrap_err();
    assert_eq!(
        e.to_string(),
        "finish of slot 0, round 0: rank 1 not started; begin on all ranks first"
    );
    let mut mixers = DenseMixer::<f64>::world(2, ring(2));
    assert!(mixers[0].finish(0).is_err());
    let exchange = built::<f64>("dmsgd").exchanges(&Cx { step: 0, lr: 0.1 })[0];
    assert!(mixers[0].start(&exchange, 0).is_err());
    mixers[0].outbox(0, 2).fill(1.0);
    mixers[0].start(&exchange, 0).unwrap();
    assert!(mixers[0].start(&exchange, 0).is_err());
    mixers[1].outbox(0, 3).fill(1.0);
    let other = Exchange {
        with: With::Everyone,
        ..exchange
    };
    assert!(
        mixers[1]
            .start(&other, 0)
            .unwrap_err()
            .to_string()
            .contains("Neighbours")
    );
    mixers[1].start(&exchange, 0).unwrap();
    let e = mixers[0].finish(0).unwrap_err().to_string();
    assert_eq!(
        e,
        "finish of slot 0, round 0: rank 1 sent 3 elements, wanted 2"
    );
}

/// A directed ring whose sender halves what it sends: W\[i, i−1\] = 0.8·½.
struct Halving;
impl Topology for Halving {
    fn name(&self) -> &str {
        "halving"
    }
    fn world(&self) -> usize {
        3
    }
    fn period(&self) -> Option<u64> {
        Some(1)
    }
    fn round(&self, rank: Rank, _t: u64, out: &mut Round) {
        *out = Round {
            from: vec![(Rank((rank.0 + 2) % 3), 0.8)],
            to: vec![(Rank((rank.0 + 1) % 3), 0.5)],
            keep: 0.6,
            form: Form::Delta,
        };
    }
}

#[test]
fn the_dense_mixer_takes_both_ends_weights_of_a_topology() {
    let mut ranks: Vec<_> = DenseMixer::<f64>::of(Arc::new(Halving))
        .into_iter()
        .map(|mixer| Decentralised::new(built("dsgd-atc"), Box::new(mixer), 1))
        .collect();
    let mut x = vec![vec![1.0], vec![2.0], vec![4.0]];
    step(&mut ranks, 0.0, &mut x, |_, _| vec![0.0]);
    let want = [1.0 + 0.4 * 3.0, 2.0 - 0.4, 4.0 - 0.4 * 2.0];
    for (x, want) in x.iter().zip(want) {
        assert!((x[0] - want).abs() < 1e-15);
    }
}

/// Drives a rule by hand, span by span, in the order given.
fn by_spans(name: &str, cuts: &[usize], backwards: bool, steps: u64) -> Vec<f64> {
    let n = cuts.last().copied().unwrap_or(0);
    let mut rule = built::<f64>(name);
    rule.init(n);
    let mut x: Vec<f64> = (0..n).map(|k| (k as f64).sin()).collect();
    let mut spans: Vec<_> = cuts.windows(2).map(|w| w[0]..w[1]).collect();
    if backwards {
        spans.reverse();
    }
    let mut out = vec![0.0; n];
    for step in 0..steps {
        let cx = Cx { step, lr: 0.1 };
        let g: Vec<f64> = x.iter().map(|x| x.cos()).collect();
        for at in [At::BeforeForward, At::AfterGradient] {
            for span in &spans {
                let g = if at == At::AfterGradient {
                    &g[span.clone()]
                } else {
                    &[][..]
                };
                for e in rule
                    .exchanges(&cx)
                    .to_vec()
                    .iter()
                    .filter(|e| e.known == at)
                {
                    let local = Local {
                        at: span.clone(),
                        x: &mut x[span.clone()],
                        g,
                    };
                    rule.emit(&cx, e.slot, local, &mut out[span.clone()]);
                    // Some mean that differs from what was sent.
                    out[span.clone()]
                        .iter_mut()
                        .for_each(|v| *v = 0.9 * *v + 0.01);
                }
                let due = rule.exchanges(&cx).iter().any(|e| e.due == at);
                let mean = [MixedMean {
                    values: &out[span.clone()],
                    weight: 1.0,
                }];
                let means = if due { &mean[..] } else { &[] };
                let local = Local {
                    at: span.clone(),
                    x: &mut x[span.clone()],
                    g,
                };
                rule.absorb(&cx, at, local, means);
            }
        }
    }
    x
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Buckets of any size in any order give the bits of the whole vector.
    #[test]
    fn spans_do_not_matter(
        mut cuts in proptest::collection::vec(0_usize..=40, 0..6),
        backwards: bool,
        name in proptest::sample::select(&NAMES[..]),
    ) {
        cuts.extend([0, 40]);
        cuts.sort();
        prop_assert_eq!(by_spans(name, &cuts, backwards, 4), by_spans(name, &[0, 40], false, 4));
    }

    /// State saved in mid-run and loaded into a new rule goes on with the same bits.
    #[test]
    fn saved_state_goes_on(
        name in proptest::sample::select(&NAMES[..]),
        ranks in 1_usize..=4,
        saved_at in 0_u64..5,
    ) {
        let gradient = |r: usize, x: &[f64]| -> Vec<f64> { x.iter().map(|x| x - r as f64).collect() };
        let start = || vec![vec![0.5, -0.25, 2.0]; ranks];
        let (mut whole, mut x) = (world::<f64>(name, ranks, 3), start());
        for _ in 0..6 {
            step(&mut whole, 0.1, &mut x, gradient);
        }
        let (mut first, mut y) = (world::<f64>(name, ranks, 3), start());
        for _ in 0..saved_at {
            step(&mut first, 0.1, &mut y, gradient);
        }
        let mut second = world::<f64>(name, ranks, 3);
        for (from, to) in first.iter_mut().zip(&mut second) {
            let mut saved = std::collections::BTreeMap::new();
            from.state(&mut |name, v| { saved.insert(name.to_owned(), v.clone()); });
            to.state(&mut |name, v| v.clone_from(&saved[name]));
            to.resume_at(from.steps()).unwrap();
        }
        for _ in saved_at..6 {
            step(&mut second, 0.1, &mut y, gradient);
        }
        prop_assert_eq!(x, y);
    }
}
