//! The driver: order of calls, mistakes, errors of the network, micro-batches.

use crate::worlds::{PLAIN, built, named, step, world};
use gaggle_core::{At, Cause, Cx, Error, Exchange, Local, MixedMean, Mixer, Place, Rank, Rule};
use gaggle_optim::{
    Clip, Decentralised, NAMES, RuleConfig, StateError, rule_by_name, testing::DenseMixer,
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

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

fn vectors(rank: &mut Decentralised<f64>) -> Vec<(String, Vec<f64>)> {
    let mut all = Vec::new();
    rank.state(&mut |name, v| all.push((name.to_owned(), v.clone())));
    all
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
        let before = vectors(rank);
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
        assert_eq!(vectors(rank), before, "{name}");
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
    fn messages(&mut self, exchange: &Exchange) -> usize {
        self.inner.messages(exchange)
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
    fn mean(&self, slot: usize) -> &[f64] {
        self.inner.mean(slot)
    }
    fn weights(&self, slot: usize) -> &[f64] {
        self.inner.weights(slot)
    }
}

#[test]
fn an_error_of_the_network_is_returned_ever_after() {
    let every_step = |name: &&str| built::<f64>(name).period() == Some(1) || PLAIN.contains(name);
    let names = NAMES.into_iter().filter(every_step);
    for (name, fails_at) in names.flat_map(|n| [(n, 0), (n, 1), (n, 2)]) {
        let inner = DenseMixer::world(1, |_, _, _| 1.0).remove(0);
        let mixer = Broken {
            inner,
            calls: 0,
            fails_at,
        };
        let mut rank = Decentralised::unchecked(built(name), Box::new(mixer), 1);
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
    absorbed: Arc<AtomicUsize>,
}

impl Rule<f64> for Sometimes {
    fn name(&self) -> &str {
        "sometimes"
    }
    fn init(&mut self, _n: usize, _place: Place) {}
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        if cx.step % 3 == 2 {
            list.extend((0..6).map(|slot| Exchange::neighbours(cx).slot(slot)));
        }
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
    let rule = Sometimes {
        absorbed: absorbed.clone(),
    };
    let mixer = DenseMixer::world(1, |_, _, _| 1.0).remove(0);
    let mut rank = Decentralised::unchecked(Box::new(rule), Box::new(mixer), 1);
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
    seen: Arc<AtomicUsize>,
}

impl Rule<f64> for Watch {
    fn name(&self) -> &str {
        "watch"
    }
    fn init(&mut self, _n: usize, _place: Place) {}
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::neighbours(cx));
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
    let rule = Watch { seen: seen.clone() };
    let mixer = DenseMixer::world(1, |_, _, _| 1.0).remove(0);
    let mut rank = Decentralised::unchecked(Box::new(rule), Box::new(mixer), 3);
    rank.step(0.1, &mut [1.0; 3], &[1.0; 3]).unwrap();
    let kept = rank.mixer().mean(0).as_ptr() as usize;
    assert_eq!(seen.load(Ordering::Relaxed), kept);
}

/// Three steps to a communication: FsFsFS, counted from the last one; another period holds from the next step on.
#[test]
fn local_steps_lie_between_communications() {
    let mut ranks = world::<f64>("dsgd-atc", 2, 1);
    let mut x = vec![vec![0.0], vec![1.0]];
    let mut apart = |ranks: &mut Vec<Decentralised<f64>>| {
        // Each on its own: only averages bring them together.
        step(ranks, 1.0, &mut x, |r, _| vec![-(r as f64)]);
        x[1][0] - x[0][0]
    };
    for rank in &mut ranks {
        rank.set_period(3).unwrap();
    }
    let seen: Vec<f64> = (0..6).map(|_| apart(&mut ranks)).collect();
    assert_eq!(seen, [2.0, 3.0, 0.0, 1.0, 2.0, 0.0]);
    assert_eq!(ranks[0].pace().round, 2);
    assert!(apart(&mut ranks) > 0.0);
    for rank in &mut ranks {
        rank.set_period(1).unwrap();
    }
    assert_eq!(apart(&mut ranks), 0.0);
    let e = ranks[0].set_period(0).unwrap_err();
    assert!(e.to_string().contains("a period of 0"));
}

#[test]
fn rules_without_local_steps_refuse_a_period() {
    for name in ["d2", "gt-atc", "allreduce-sgd", "extra", "choco"] {
        let mut rank = world::<f64>(name, 1, 1).remove(0);
        rank.set_period(1).unwrap();
        let e = rank.set_period(2).unwrap_err().to_string();
        let says = "a period of 2: this rule has no steps without communication";
        assert_eq!(e, format!("{name} step 0: {says}"));
    }
}

/// Quasi-global momentum follows the average progress over the local steps.
#[test]
fn quasi_global_momentum_counts_local_steps() {
    let mut rank = world::<f64>("qg-dmsgd", 1, 1).remove(0);
    rank.set_period(2).unwrap();
    let mut x = [0.0];
    for _ in 0..2 {
        rank.step(0.5, &mut x, &[1.0]).unwrap();
    }
    // Two steps of 0.5: on average 1 per unit of step size, of which a tenth is taken.
    let m = vectors(&mut rank).remove(0).1[0];
    assert!((m - 0.1).abs() < 1e-15 && x == [-1.0], "{m}");
}

/// BlueFog warned of FFFFS where FFFS was asked for, and went on.
#[test]
fn another_number_of_micro_batches_is_refused() {
    let mut rank = world::<f64>("dmsgd", 1, 1).remove(0);
    rank.expect_micro_batches(3).unwrap();
    let mut x = [0.0];
    let e = rank.step(1.0, &mut x, &[1.0]).unwrap_err().to_string();
    assert_eq!(
        e,
        "dmsgd step 0: step takes micro-batch 1 of 3, 2 come before it"
    );
    rank.accumulate(&[1.0]).unwrap();
    rank.accumulate(&[1.0]).unwrap();
    let e = rank.accumulate(&[1.0]).unwrap_err().to_string();
    assert_eq!(
        e,
        "dmsgd step 0: accumulate for micro-batch 3 of 3: the last one is for step"
    );
    let e = rank.expect_micro_batches(2).unwrap_err().to_string();
    assert!(e.contains("in the middle of a step"));
    rank.step(1.0, &mut x, &[1.0]).unwrap();
    assert_eq!((x, rank.steps()), ([-3.0], 1));
    rank.expect_micro_batches(0).unwrap();
    rank.step(1.0, &mut x, &[0.0]).unwrap();
}

/// Other neighbours from one step to the next; CHOCO's copies of the old ones are void.
#[test]
fn the_topology_may_change_between_steps() {
    for name in ["dsgd-atc", "gt-atc", "choco", "relaysgd"] {
        let mut ranks = world::<f64>(name, 5, 1);
        let mut x: Vec<Vec<f64>> = (0..5).map(|i| vec![f64::from(i)]).collect();
        let gradient = |r: usize, x: &[f64]| vec![x[0] - r as f64];
        for round in 0..400 {
            if round % 50 == 25 {
                let others = match name {
                    "relaysgd" => ["tree", "chain"],
                    _ => ["full", "ring"],
                };
                let other = DenseMixer::of(named(others[round / 50 % 2], 5));
                for (rank, mixer) in ranks.iter_mut().zip(other) {
                    let old = rank.replace_mixer(Box::new(mixer)).unwrap();
                    assert_eq!(old.world(), 5);
                }
            }
            step(&mut ranks, 0.05, &mut x, gradient);
        }
        let mean = x.iter().map(|x| x[0]).sum::<f64>() / 5.0;
        assert!((mean - 2.0).abs() < 0.05, "{name}: {x:?}");
    }
    let mut rank = world::<f64>("dsgd-atc", 2, 1).remove(0);
    let wrong = DenseMixer::<f64>::world(3, |_, _, _| 0.0).remove(0);
    assert!(rank.replace_mixer(Box::new(wrong)).is_err());
    let mut x = [0.0];
    rank.begin(At::AfterGradient, 0.1, &mut x, &[0.0]).unwrap();
    let same = DenseMixer::<f64>::world(2, |_, _, _| 0.5).remove(0);
    let e = rank.replace_mixer(Box::new(same)).map(drop).unwrap_err();
    assert!(
        e.to_string()
            .ends_with("replace_mixer in the middle of a step")
    );
}

/// A message that crosses steps is neither saved nor left behind.
#[test]
fn what_is_under_way_is_waited_for() {
    let mut rank = world::<f64>("streaming-diloco", 1, 4).remove(0);
    let mut x = [1.0; 4];
    for _ in 0..2 {
        rank.step(0.1, &mut x, &[1.0; 4]).unwrap();
    }
    let e = rank.save().unwrap_err();
    assert_eq!(e, StateError::InFlight { step: 2, due: 2 });
    let same = DenseMixer::<f64>::world(1, |_, _, _| 1.0).remove(0);
    let e = rank.replace_mixer(Box::new(same)).map(drop).unwrap_err();
    assert!(
        e.to_string()
            .contains("the message of slot 0 is under way until step 2")
    );
    rank.step(0.1, &mut x, &[1.0; 4]).unwrap();
    rank.save().unwrap();
}

#[test]
fn gradients_are_clipped_for_every_rule() {
    for name in NAMES {
        let clipped = RuleConfig {
            clip: Some(Clip::Norm(1.0)),
            ..crate::worlds::config(name)
        };
        let run = |config: &RuleConfig, g: [f64; 2]| {
            let rule = rule_by_name(name, config).unwrap();
            assert!(config.clip.is_none() || rule.whole());
            let mixer = DenseMixer::world(1, |_, _, _| 1.0).remove(0);
            let mut rank = Decentralised::unchecked(rule, Box::new(mixer), 2);
            let mut x = [0.0; 2];
            for _ in 0..5 {
                rank.before_forward(0.1, &mut x).unwrap();
                rank.step(0.1, &mut x, &g).unwrap();
            }
            x
        };
        // A power of two, so that the cut gradient has no rounding of its own.
        let cut = run(&clipped, [0.0, 8.0]);
        assert_eq!(cut, run(&crate::worlds::config(name), [0.0, 1.0]), "{name}");
    }
}
