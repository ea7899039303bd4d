//! CHOCO: what is known of its stability, and copies that stay what they are copies of.

use crate::worlds::named;
use gaggle_core::{At, Cx, Local, MixedMean, MixingFacts, Place, Rank, Stability};
use gaggle_optim::{
    Choco, ChocoConfig, ChocoOrder, Compressor, Decentralised, Float, RuleConfig, Sgd, SgdConfig,
    rule_by_name,
    testing::{DenseMixer, lockstep},
};
use gaggle_topology::{by_name, facts};

fn settings(compressor: &str, consensus_step: f64) -> RuleConfig {
    RuleConfig {
        compressor: Compressor::by_name(compressor).expect("there is one"),
        consensus_step,
        ..RuleConfig::default()
    }
}

fn verdict(compressor: &str, eta: f64, n: usize, facts: &MixingFacts) -> Result<Stability, String> {
    let mut rule = rule_by_name::<f64>("choco", &settings(compressor, eta)).expect("in range");
    if n > 0 {
        rule.init(
            n,
            Place {
                rank: Rank(0),
                world: facts.world,
            },
        );
    }
    rule.check(facts, 0.1).map_err(|e| e.to_string())
}

/// The ring of 8: δ = 0.195262, β = 4/3. Limits δ(1 − s)/(sβ(δ + β)) by hand: top-k:0.25 has s = √0.75, sign of 4 elements has it, too; top-k:0.9 has √0.1.
#[test]
fn only_small_consensus_steps_are_known_to_be_stable() {
    let ring = facts(&*by_name("ring", 8).unwrap());
    let unchecked = |v: Result<Stability, String>, says: &str| match v {
        Ok(Stability::Unchecked(why)) => assert!(why.contains(says), "{why}"),
        other => panic!("{other:?}"),
    };
    for (compressor, n, limit) in [
        ("top-k:0.25", 0, 0.014_821),
        ("random-k:0.25", 0, 0.014_821),
        ("sign", 4, 0.014_821),
        ("top-k:0.9", 0, 0.207_156),
    ] {
        assert_eq!(
            verdict(compressor, limit - 1e-6, n, &ring),
            Ok(Stability::Stable),
            "{compressor}"
        );
        unchecked(
            verdict(compressor, limit + 1e-6, n, &ring),
            "stability is known below",
        );
    }
    for compressor in ["sign", "qsgd:4"] {
        unchecked(verdict(compressor, 1e-6, 0, &ring), "number of parameters");
        assert_eq!(
            verdict(compressor, 1e-6, 100, &ring),
            Ok(Stability::Stable),
            "{compressor}"
        );
    }
    // Nothing left out: the weights (1 − η)I + ηW themselves.
    for topology in ["ring", "static-exp", "star", "uni-ring"] {
        let facts = facts(&*by_name(topology, 8).unwrap());
        assert_eq!(
            verdict("identity", 1.0, 0, &facts),
            Ok(Stability::Stable),
            "{topology}"
        );
    }
    // What only turns is averaged where a part is kept.
    let turning = gaggle_topology::FromFn::new(
        "turning",
        5,
        Some(1),
        |r: Rank, _, out: &mut gaggle_core::Round| {
            out.from.push((Rank((r.0 + 4) % 5), 1.0));
            out.to.push((Rank((r.0 + 1) % 5), 1.0));
            out.keep = 0.0;
        },
    );
    let turning = facts(&turning.unwrap());
    // At the limit where no part is kept, and well within it where one is.
    assert!(matches!(
        verdict("identity", 1.0, 0, &turning),
        Ok(Stability::Marginal(_))
    ));
    assert_eq!(verdict("identity", 0.5, 0, &turning), Ok(Stability::Stable));
    let released = |consensus_step| {
        let rule = rule_by_name::<f64>(
            "choco",
            &RuleConfig {
                compressor: Compressor::Identity,
                choco_order: ChocoOrder::Released,
                consensus_step,
                ..RuleConfig::default()
            },
        );
        rule.expect("in range").check(&turning, 0.1)
    };
    let e = released(1.0).unwrap_err();
    assert!(e.instead.contains("smaller consensus_step"), "{e}");
    assert_eq!(released(0.5).unwrap(), Stability::Stable);
    // Weights with the eigenvalue −1, on a ring of four that keeps nothing: with a small enough step it is known to be stable, since the step keeps a part.
    let halves = gaggle_topology::FromFn::new(
        "halves",
        4,
        Some(1),
        |r: Rank, _, out: &mut gaggle_core::Round| {
            for d in [1, 3] {
                out.from.push((Rank((r.0 + d) % 4), 0.5));
                out.to.push((Rank((r.0 + d) % 4), 1.0));
            }
            out.keep = 0.0;
        },
    );
    let halves = facts(&halves.unwrap());
    assert!(halves.contraction > 1.0 - 1e-12);
    assert_eq!(verdict("identity", 0.3, 0, &halves), Ok(Stability::Stable));
    assert!(matches!(
        verdict("top-k:0.5", 0.3, 0, &halves),
        Ok(Stability::Unchecked(_))
    ));
}

/// Weights with a negative one, whose smallest eigenvalue is −2.2: |1 − η(1 − λ)| is 1.88 for η = 0.9, and 0.6 for 0.5.
#[test]
fn a_consensus_step_over_the_linear_limit_is_refused() {
    let ring = facts(&*by_name("ring", 6).unwrap());
    let far = MixingFacts {
        lambda_min: Some(-2.2),
        modes: gaggle_core::Modes::Between(-2.2, 0.2),
        contraction: 0.9,
        ..ring
    };
    let e = verdict("top-k:0.5", 0.9, 0, &far).unwrap_err();
    assert!(
        e.contains("grows by a factor of 1.88") && e.contains("consensus_step"),
        "{e}"
    );
    assert!(verdict("top-k:0.5", 0.5, 0, &far).is_ok());
}

/// f_i(x) = ½‖x − c_i‖² in f32: after 100,000 steps the ranks' mean is where the linear limit has it, not elsewhere by what rounding has added up.
#[test]
fn choco_does_not_drift_in_f32() {
    let (ranks, n) = (5, 3);
    let c = |r: usize, k: usize| ((7 * r + 3 * k) % 11) as f32 * 0.37 - 1.3;
    for order in [ChocoOrder::Paper, ChocoOrder::Released] {
        let mut all: Vec<_> = DenseMixer::<f32>::of(named("ring", ranks))
            .into_iter()
            .map(|mixer| {
                let sgd = Sgd::new(SgdConfig::default()).unwrap();
                let config = ChocoConfig {
                    compressor: Compressor::TopK { ratio: 0.3 },
                    order,
                    ..ChocoConfig::default()
                };
                let rule = Choco::new(Box::new(sgd), config).unwrap();
                Decentralised::unchecked(Box::new(rule), Box::new(mixer), n)
            })
            .collect();
        let mut x = vec![vec![0.0_f32; n]; ranks];
        let worst = |x: &[Vec<f32>]| {
            let apart = |k: usize| {
                let mean = |v: &dyn Fn(usize) -> f32| {
                    (0..ranks).map(|r| f64::from(v(r))).sum::<f64>() / ranks as f64
                };
                (mean(&|r| x[r][k]) - mean(&|r| c(r, k))).abs()
            };
            (0..n).map(apart).fold(0.0, f64::max)
        };
        for step in 0..100_000 {
            // Small, so that little pulls back what drifts.
            lockstep(&mut all, 1e-3, &mut x, |r, x, g| {
                for (k, g) in g.iter_mut().enumerate() {
                    *g = x[k] - c(r, k);
                }
            })
            .unwrap();
            if step % 20_000 == 19_999 {
                assert!(worst(&x) < 2e-4, "{order:?}, step {step}: {}", worst(&x));
            }
        }
    }
}

/// The receiver's copies are the sender's x̂, bit for bit.
#[test]
fn copies_are_what_they_are_copies_of() {
    fn kept<T: Float>(rank: &mut Decentralised<T>, wanted: &str) -> Vec<u64> {
        let mut bits = vec![];
        rank.state(&mut |name, v| {
            if name == wanted {
                bits = v.iter().map(|v| v.to_f64().to_bits()).collect();
            }
        });
        bits
    }
    fn check<T: Float>() {
        let n = 7;
        for compressor in ["top-k:0.3", "random-k:0.3", "sign", "qsgd:3", "identity"] {
            let mut all: Vec<_> = DenseMixer::<T>::of(named("ring", 5))
                .into_iter()
                .map(|mixer| {
                    let rule = rule_by_name("choco", &settings(compressor, 0.3)).unwrap();
                    Decentralised::<T>::unchecked(rule, Box::new(mixer), n)
                })
                .collect();
            let mut x = vec![vec![T::from_f64(0.0); n]; 5];
            for _ in 0..300 {
                lockstep(&mut all, 0.05, &mut x, |r, x, g| {
                    for (k, g) in g.iter_mut().enumerate() {
                        *g = T::from_f64(x[k].to_f64() - (1.7 * (r * n + k) as f64).sin());
                    }
                })
                .unwrap();
            }
            let known: Vec<_> = all.iter_mut().map(|r| kept(r, "known")).collect();
            for (r, rank) in all.iter_mut().enumerate() {
                let mut neighbours = [(r + 4) % 5, (r + 1) % 5];
                neighbours.sort_unstable();
                let want: Vec<u64> = neighbours.iter().flat_map(|j| known[*j].clone()).collect();
                assert_eq!(kept(rank, "copies"), want, "{compressor}, rank {r}");
            }
        }
    }
    check::<f64>();
    check::<f32>();
    check::<half::bf16>();
}

/// Own weight 0.5, a neighbour's 0.2: with nothing left out and η = 1, x⁺ = 0.5x + 0.2x_j.
#[test]
fn the_own_weight_counts() {
    let settings = settings("identity", 1.0);
    let mut rule = rule_by_name::<f64>("choco", &settings).unwrap();
    rule.init(
        1,
        Place {
            rank: Rank(0),
            world: 2,
        },
    );
    let (mut x, cx) = ([2.0], Cx::at(0, 0.0));
    let mut out = [0.0];
    rule.emit(
        &cx,
        0,
        Local {
            at: 0..1,
            x: &mut x,
            g: &[0.0],
        },
        &mut out,
    );
    assert_eq!(out, [2.0]);
    let mean = MixedMean {
        slot: 0,
        at: 0..1,
        values: &[10.0],
        weights: &[0.5, 0.2],
    };
    rule.absorb(
        &cx,
        At::AfterGradient,
        Local {
            at: 0..1,
            x: &mut x,
            g: &[0.0],
        },
        &[mean],
    );
    assert!((x[0] - 3.0).abs() < 1e-15, "{x:?}");
}
