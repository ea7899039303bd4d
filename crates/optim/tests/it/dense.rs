//! The mixer that works by a matrix.

use crate::worlds::{built, ring, step, world};
use gaggle_core::{At, Cause, Codec, Cx, Exchange, Form, Mixer, Rank, Round, Topology};
use gaggle_optim::{Decentralised, NAMES, RuleConfig, rule_by_name, testing::DenseMixer};
use std::sync::Arc;

#[test]
fn codecs_are_passed_on_and_the_dense_mixer_says_it_has_none() {
    // Some send their values as they are, and say so before.
    let plain = ["osgp", "choco", "one-bit-adam", "relaysgd"];
    for name in NAMES.into_iter().filter(|name| !plain.contains(name)) {
        let config = RuleConfig {
            codec: Codec::Bf16,
            ..crate::worlds::config(name)
        };
        let rule = rule_by_name::<f32>(name, &config).unwrap();
        let mut list = Vec::new();
        (0..100).for_each(|t| rule.exchanges(&Cx::at(t, 0.1), &mut list));
        assert!(!list.is_empty(), "{name}");
        assert!(list.iter().all(|e| e.codec == Codec::Bf16), "{name}");
        let mixer = DenseMixer::world(1, |_, _, _| 1.0).remove(0);
        let mut rank = Decentralised::unchecked(rule, Box::new(mixer), 1);
        let mut x = [1.0];
        let mut step = || {
            rank.before_forward(0.1, &mut x)?;
            rank.step(0.1, &mut x, &[1.0])
        };
        let e = (0..100)
            .find_map(|_| step().err())
            .expect("it sends something");
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
    let exchange = Exchange::neighbours(&Cx::at(0, 0.1));
    assert!(mixers[0].start(&exchange, 0).is_err());
    mixers[0].outbox(0, 2).fill(1.0);
    mixers[0].start(&exchange, 0).unwrap();
    assert!(mixers[0].start(&exchange, 0).is_err());
    mixers[1].outbox(0, 3).fill(1.0);
    let other = Exchange::everyone(&Cx::at(0, 0.1));
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
        .map(|mixer| Decentralised::unchecked(built("dsgd-atc"), Box::new(mixer), 1))
        .collect();
    let mut x = vec![vec![1.0], vec![2.0], vec![4.0]];
    step(&mut ranks, 0.0, &mut x, |_, _| vec![0.0]);
    let want = [1.0 + 0.4 * 3.0, 2.0 - 0.4, 4.0 - 0.4 * 2.0];
    for (x, want) in x.iter().zip(want) {
        assert!((x[0] - want).abs() < 1e-15);
    }
}
