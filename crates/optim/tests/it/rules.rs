//! The contract that every rule keeps.

use crate::worlds::{PLAIN, built, step, world};
use gaggle_core::{At, Cx, Float, Local, MixedMean, MixingFacts};
use gaggle_optim::{Decentralised, LocalRule, NAMES, RuleConfig, Sgd, SgdConfig, rule_by_name};
use proptest::prelude::*;

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
