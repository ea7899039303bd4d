//! The driver: order of calls, mistakes, errors of the network, micro-batches.

use crate::worlds::{PLAIN, built, step, world};
use gaggle_core::{
    At, Cause, Codec, Cx, Error, Exchange, Local, MixedMean, Mixer, Rank, Rule, With,
};
use gaggle_optim::{Decentralised, NAMES, testing::DenseMixer};
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
