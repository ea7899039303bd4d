//! What construction refuses, against known limits and against what happens.

use crate::worlds::config;
use gaggle_core::{Draw, MixingFacts, Rank, Round, Stability, Topology};
use gaggle_optim::{
    Decentralised, NAMES, RuleConfig, rule_by_name,
    testing::{DenseMixer, lockstep},
};
use gaggle_topology::{CATALOGUE, FromFn, by_name, facts};
use std::sync::Arc;

fn measured(topology: &str, n: usize) -> MixingFacts {
    facts(&*by_name(topology, n).expect("there is one"))
}

/// `None`: marginal.
fn is_stable(rule: &str, settings: RuleConfig, facts: &MixingFacts) -> Option<bool> {
    let rule = rule_by_name::<f64>(rule, &settings).expect("the settings are in range");
    match rule.check(facts, 0.01) {
        Ok(Stability::Stable) => Some(true),
        Ok(Stability::Marginal(_)) => None,
        Ok(other) => panic!("{other:?}"),
        Err(e) => {
            let e = e.to_string();
            assert!(e.starts_with("unstable: "), "{e}");
            Some(false)
        }
    }
}

/// Spectral radii of z² − 2λz + λ over the consensus modes, from the numpy implementation: below 1, at 1, above.
#[test]
fn d2_and_exact_diffusion_are_refused_where_their_roots_leave_the_circle() {
    let plain = RuleConfig::default();
    let d2 = |topology: &str, n: usize| is_stable("d2", plain, &measured(topology, n));
    for (topology, n, want) in [
        ("ring", 4, None),
        ("ring", 5, Some(true)),
        ("ring", 6, None),
        ("ring", 7, Some(true)),
        ("ring", 8, None),
        ("ring", 12, None),
        ("mesh", 4, None),
        ("mesh", 8, Some(false)),
        ("mesh", 16, Some(false)),
        ("torus", 16, Some(false)),
        ("hypercube", 8, Some(false)),
        ("static-exp", 8, Some(false)),
        ("static-exp", 16, Some(false)),
        ("static-exp", 32, Some(false)),
        ("one-peer-exp", 8, Some(false)),
        ("star", 8, Some(true)),
        ("star", 25, Some(true)),
        ("uni-ring", 8, Some(false)),
    ] {
        assert_eq!(d2(topology, n), want, "d2 on {topology} of {n}");
    }
    for rule in ["exact-diffusion", "edm"] {
        let exact = |topology: &str, n: usize| is_stable(rule, plain, &measured(topology, n));
        for (topology, n, want) in [
            ("ring", 8, true),
            ("mesh", 16, true),
            ("torus", 16, true),
            ("static-exp", 4, true),
            ("static-exp", 8, true),
            ("static-exp", 12, true),
            ("static-exp", 16, false),
            ("static-exp", 25, false),
            ("static-exp", 32, false),
            ("static-exp", 64, false),
            ("one-peer-exp", 8, true),
            ("uni-ring", 8, false),
            ("uni-ring", 32, false),
        ] {
            assert_eq!(
                exact(topology, n),
                Some(want),
                "{rule} on {topology} of {n}"
            );
        }
    }
}

#[test]
fn a_refusal_says_which_limit_and_what_instead() {
    let rule = rule_by_name::<f64>("d2", &RuleConfig::default()).unwrap();
    let e = rule.check(&measured("torus", 16), 0.1).unwrap_err();
    assert!(e.limit.contains("grows by a factor of 1.57979"), "{e}");
    assert!(
        e.limit
            .contains("smallest eigenvalue of the weights is -0.6"),
        "{e}"
    );
    assert!(
        e.instead.contains("gt-atc") && e.instead.contains("−1/3"),
        "{e}"
    );
    // By the driver: refused, and built by those who insist.
    let mixer = |n| DenseMixer::<f64>::of(Arc::from(by_name("torus", n).unwrap())).remove(0);
    let refused = Decentralised::stable(rule, Box::new(mixer(16)), 1, &measured("torus", 16), 0.1);
    assert!(refused.is_err());
    let again = rule_by_name("d2", &RuleConfig::default()).unwrap();
    assert_eq!(
        Decentralised::unchecked(again, Box::new(mixer(16)), 1).steps(),
        0
    );
    let sound = rule_by_name("edm", &RuleConfig::default()).unwrap();
    let built = Decentralised::stable(sound, Box::new(mixer(16)), 1, &measured("torus", 16), 0.1);
    assert_eq!(built.map(|(_, s)| s).ok(), Some(Stability::Stable));
    // At the limit it is said, not refused.
    let d2 = rule_by_name::<f64>("d2", &RuleConfig::default()).unwrap();
    let marginal = d2.check(&measured("ring", 8), 0.1).unwrap();
    let Stability::Marginal(why) = marginal else {
        panic!("{marginal:?}");
    };
    assert!(
        why.contains("does not shrink") && why.contains("-0.333333"),
        "{why}"
    );
    // Where nobody can tell, that is said.
    let unknown = MixingFacts {
        modes: gaggle_core::Modes::Unknown,
        ..measured("star", 8)
    };
    let unchecked = d2.check(&unknown, 0.1).unwrap();
    assert!(matches!(unchecked, Stability::Unchecked(_)));
}

/// The largest β in hundredths, from the numpy implementation.
#[test]
fn decentlam_is_held_to_its_momentum_on_directed_graphs() {
    for (n, largest) in [(4, 63), (8, 51), (16, 49), (32, 51), (64, 52)] {
        let facts = measured("static-exp", n);
        let stable = |hundredths: u32| {
            let settings = RuleConfig {
                momentum: f64::from(hundredths) / 100.0,
                ..RuleConfig::default()
            };
            is_stable("decentlam", settings, &facts) == Some(true)
        };
        assert!(stable(largest) && !stable(largest + 1), "{n} ranks");
    }
    for topology in ["ring", "mesh", "torus", "star"] {
        let near_one = RuleConfig {
            momentum: 0.99,
            ..RuleConfig::default()
        };
        let facts = measured(topology, 16);
        assert_eq!(
            is_stable("decentlam", near_one, &facts),
            Some(true),
            "{topology}"
        );
    }
}

/// The largest γ in hundredths over random pairs of 4, 8 and 64 ranks, from the numpy implementation.
#[test]
fn noloco_is_held_to_its_gamma_over_random_pairs() {
    for (alpha, limits) in [
        (0.5, [179, 161, 151]),
        (0.3, [202, 190, 182]),
        (0.9, [54, 43, 38]),
    ] {
        for (n, limit) in [4, 8, 64].into_iter().zip(limits) {
            let facts = measured("random-matching", n);
            let stable = |hundredths: u32| {
                let settings = RuleConfig {
                    alpha: Some(alpha),
                    gamma: f64::from(hundredths) / 100.0,
                    ..RuleConfig::default()
                };
                is_stable("noloco", settings, &facts) == Some(true)
            };
            let (below, above) = (stable(limit - 1), stable(limit + 1));
            assert!(below && !above, "alpha {alpha}, {n} ranks");
        }
    }
    let default = |alpha| RuleConfig {
        alpha: Some(alpha),
        ..RuleConfig::default()
    };
    let facts = measured("random-matching", 8);
    assert_eq!(is_stable("noloco", default(0.9), &facts), Some(false));
    assert_eq!(is_stable("noloco", default(0.5), &facts), Some(true));
}

/// log of how much larger everybody's disagreement is after `steps` steps without gradients.
fn growth(rule: &str, settings: &RuleConfig, topology: Arc<dyn Topology>, steps: u64) -> f64 {
    let n = topology.world();
    let mut ranks: Vec<_> = DenseMixer::of(topology)
        .into_iter()
        .map(|mixer| {
            let rule = rule_by_name(rule, settings).expect("the settings are in range");
            Decentralised::<f64>::unchecked(rule, Box::new(mixer), 1)
        })
        .collect();
    let mut x: Vec<Vec<f64>> = (0..n).map(|i| vec![(1.3 * i as f64).sin()]).collect();
    let size = |x: &[Vec<f64>]| {
        let mean = x.iter().map(|x| x[0]).sum::<f64>() / n as f64;
        x.iter().map(|x| (x[0] - mean).abs()).fold(0.0, f64::max)
    };
    let before = size(&x);
    for _ in 0..steps {
        lockstep(&mut ranks, 0.01, &mut x, |_, _, g| g.fill(0.0)).expect("steps");
        if size(&x) > 1e100 {
            break;
        }
    }
    (size(&x) / before).ln()
}

/// On graphs that no table has: what is refused grows, what is not dies out.
#[test]
fn checks_say_what_happens_on_any_graph() {
    let (mut n_refused, mut n_passed) = (0, 0);
    for (rule, n) in [
        ("d2", 6),
        ("d2", 11),
        ("exact-diffusion", 9),
        ("exact-diffusion", 14),
        ("extra", 7),
        ("extra", 20),
        ("decentlam", 5),
        ("decentlam", 10),
        ("qg-dmsgd", 6),
        ("qg-dmsgd-n", 13),
        ("dmsgd-yu", 9),
    ] {
        for entry in CATALOGUE {
            let Ok(topology) = by_name(entry.name, n) else {
                continue;
            };
            let facts = facts(&*topology);
            // Of those that never repeat the first rounds are no proof.
            if !facts.connected || !facts.repeats {
                continue;
            }
            let settings = config(rule);
            let checked = rule_by_name::<f64>(rule, &settings)
                .expect("in range")
                .check(&facts, 0.01);
            let name = format!("{rule} on {} of {n}", entry.name);
            // Momentum dies out by a tenth in a step, and the slowest graphs by little.
            let grown = growth(rule, &settings, Arc::from(topology), 3000);
            match checked {
                Ok(Stability::Stable) => {
                    assert!(grown < -1.0, "{name}: e^{grown}");
                    n_passed += 1;
                }
                Ok(Stability::Marginal(_)) => assert!(grown < 30.0, "{name}: e^{grown}"),
                Ok(other) => panic!("{name}: {other:?}"),
                Err(e) => {
                    assert!(grown > 1.0, "{name}: e^{grown}, refused: {e}");
                    n_refused += 1;
                }
            }
        }
    }
    assert!(n_refused > 20 && n_passed > 60, "{n_refused}, {n_passed}");
}

/// Ranks that only pass their values on: orders whose average takes the gradient's step in stay bounded and are warned of, those with gradients beside the average grow and are refused.
#[test]
fn values_that_only_go_round_are_refused_where_gradients_push_them_outwards() {
    for n in [2_usize, 3, 5, 8] {
        let turning = || {
            FromFn::new("turning", n, Some(1), move |r: Rank, _, out: &mut Round| {
                let n = n as u32;
                out.from.push((Rank((r.0 + n - 1) % n), 1.0));
                out.to.push((Rank((r.0 + 1) % n), 1.0));
                out.keep = 0.0;
            })
            .expect("there are ranks")
        };
        let facts = facts(&turning());
        for name in NAMES {
            let settings = config(name);
            let checked = rule_by_name::<f64>(name, &settings)
                .expect("in range")
                .check(&facts, 0.05);
            let what = format!("{name} of {n}");
            let grown = {
                let mut ranks: Vec<_> = DenseMixer::of(Arc::new(turning()))
                    .into_iter()
                    .map(|mixer| {
                        let rule = rule_by_name(name, &settings).expect("in range");
                        Decentralised::<f64>::unchecked(rule, Box::new(mixer), 1)
                    })
                    .collect();
                let mut x: Vec<Vec<f64>> = (0..n).map(|i| vec![(1.3 * i as f64).sin()]).collect();
                for _ in 0..2000 {
                    let done = lockstep(&mut ranks, 0.05, &mut x, |_, x, g| g[0] = x[0]);
                    done.expect("steps");
                    if x.iter().any(|x| x[0].abs() > 1e100) {
                        break;
                    }
                }
                x.iter().map(|x| x[0].abs()).fold(0.0, f64::max)
            };
            match name {
                "dsgd-atc" | "dsgd-cta" | "dmsgd" | "dmsgd-cta" => {
                    assert!(matches!(checked, Ok(Stability::Marginal(_))), "{what}");
                    assert!(grown < 1.0, "{what}: {grown}");
                }
                "dsgd-awc" | "dmsgd-awc" | "diging" | "gt-semi" | "gt-atc" => {
                    assert!(checked.is_err(), "{what}: {checked:?}");
                    assert!(grown > 1e3, "{what}: {grown}");
                }
                // Signs of doubts: whatever passes stays where numbers are.
                _ if checked.is_ok() => assert!(grown < 10.0, "{what}: {grown}, {checked:?}"),
                _ => {}
            }
        }
    }
}

/// A message whose sender's weight is 0 brings values that nothing divides: OSGP says so, with who and when.
#[test]
fn overlap_push_sum_wants_every_rank_to_keep_a_share() {
    for n in [3_u32, 5, 8] {
        // Rank 1 gives everything away in round 2 of 3.
        let one = move |keeps: bool| {
            FromFn::new(
                "one",
                n as usize,
                Some(3),
                move |r: Rank, t, out: &mut Round| {
                    let share = |r: u32| match r == 1 && t % 3 == 2 && !keeps {
                        true => 1.0,
                        false => 0.5,
                    };
                    out.from.push((Rank((r.0 + n - 1) % n), 1.0));
                    out.to.push((Rank((r.0 + 1) % n), share(r.0)));
                    out.keep = 1.0 - share(r.0);
                },
            )
            .expect("there are ranks")
        };
        let check = |rule: &str, topology: &dyn Topology| {
            let rule = rule_by_name::<f64>(rule, &RuleConfig::default()).unwrap();
            rule.check(&facts(topology), 0.1)
        };
        let e = check("osgp", &one(false)).unwrap_err();
        assert!(
            e.limit.contains("in round 2 rank 1 keeps no share") && e.instead.contains("sgp"),
            "{e}"
        );
        assert_eq!(check("sgp", &one(false)).unwrap(), Stability::Stable);
        assert_eq!(check("osgp", &one(true)).unwrap(), Stability::Stable);
    }
}

/// Push-sum is what remains on weights that are not doubly stochastic.
#[test]
fn rows_that_do_not_sum_to_one_are_for_push_sum() {
    let push = facts(&gaggle_optim::vectors::Graph::by_name("push", 8).unwrap());
    let pull = facts(&gaggle_optim::vectors::Graph::by_name("pull", 8).unwrap());
    let check = |rule: &str, facts: &MixingFacts| {
        let rule = rule_by_name::<f64>(rule, &RuleConfig::default()).unwrap();
        rule.check(facts, 0.1)
    };
    for rule in ["sgp", "push-diging"] {
        assert_eq!(check(rule, &push).unwrap(), Stability::Stable);
        let e = check(rule, &pull).unwrap_err();
        assert!(e.instead.contains("out-degree"), "{e}");
    }
    assert!(check("dsgd-atc", &push).is_err());
    let e = check("dsgd-atc", &pull).unwrap_err();
    assert!(
        e.limit.contains("drifts") && e.instead.contains("sgp"),
        "{e}"
    );
}

/// Everybody gives all away: the shares' columns sum to 1 and everybody reaches everybody, and what the ranks have never settles.
#[test]
fn push_sum_wants_shares_that_do_not_only_go_round() {
    let star = |keeps: bool| {
        FromFn::new("star", 3, Some(1), move |rank: Rank, _, out: &mut Round| {
            let leaf = rank.0 > 0;
            let share = if keeps { 1.0 / 3.0 } else { 0.5 };
            if leaf {
                out.from.push((Rank(0), share));
                out.to.push((Rank(0), 1.0));
            } else {
                out.from.extend([(Rank(1), 1.0), (Rank(2), 1.0)]);
                out.to.extend([(Rank(1), 1.0), (Rank(2), 1.0)]);
            }
            out.keep = if keeps && !leaf { share } else { 0.0 };
        })
        .expect("there are ranks")
    };
    for rule in ["sgp", "push-diging"] {
        let check = |topology: &dyn Topology| {
            let rule = rule_by_name::<f64>(rule, &RuleConfig::default()).unwrap();
            rule.check(&facts(topology), 0.1)
        };
        let measured = facts(&star(false));
        assert!(measured.column_stochastic && !measured.row_stochastic && measured.connected);
        let e = check(&star(false)).unwrap_err();
        assert!(
            e.limit.contains("periodic") && e.limit.contains("2 groups"),
            "{e}"
        );
        assert_eq!(check(&star(true)).unwrap(), Stability::Stable);
    }
    // What it says is what happens: the weights of the first swing for ever, those of the second settle.
    for keeps in [false, true] {
        let mut ranks: Vec<_> = DenseMixer::<f64>::of(Arc::new(star(keeps)))
            .into_iter()
            .map(|mixer| {
                let rule = rule_by_name("sgp", &RuleConfig::default()).unwrap();
                Decentralised::unchecked(rule, Box::new(mixer), 1)
            })
            .collect();
        let mut x: Vec<Vec<f64>> = (0..3).map(|r| vec![f64::from(r)]).collect();
        let mut apart = 0.0;
        for _ in 0..200 {
            lockstep(&mut ranks, 0.0, &mut x, |_, _, g| g.fill(0.0)).unwrap();
            apart = x.iter().map(|x| (x[0] - 1.0).abs()).fold(0.0, f64::max);
        }
        assert_eq!(apart < 1e-9, keeps, "{apart}");
    }
}

/// Every rank hears of two others and keeps nothing: no round shrinks all disagreements, but after log₂ n they are gone.
#[test]
fn de_bruijn_graphs_of_any_size_are_averages() {
    for n in [4, 8, 64, 256] {
        let bruijn = FromFn::new(
            "de-bruijn",
            n,
            Some(1),
            move |rank: Rank, _, out: &mut Round| {
                let (r, n) = (rank.0, n as u32);
                let half = [r / 2, r / 2 + n / 2];
                out.keep = 0.0;
                for j in [2 * r % n, (2 * r + 1) % n] {
                    if j == r {
                        out.keep = 0.5
                    } else {
                        out.from.push((Rank(j), 0.5))
                    }
                }
                out.to
                    .extend(half.into_iter().filter(|j| *j != r).map(|j| (Rank(j), 1.0)));
            },
        );
        let measured = facts(&bruijn.unwrap());
        assert!(
            measured.contraction > 1.0 - 1e-9 && measured.cycle == 1,
            "{n}"
        );
        let check = |rule: &str| {
            let rule = rule_by_name::<f64>(rule, &RuleConfig::default()).unwrap();
            rule.check(&measured, 0.1)
        };
        for rule in ["dsgd-atc", "gt-atc", "d2", "exact-diffusion", "sgp"] {
            assert_eq!(check(rule).unwrap(), Stability::Stable, "{rule} on {n}");
        }
    }
}

#[test]
fn relaysgd_wants_a_tree() {
    let stable = |topology: &str, n: usize| {
        let rule = rule_by_name::<f64>("relaysgd", &RuleConfig::default()).unwrap();
        rule.check(&measured(topology, n), 0.1).is_ok()
    };
    for n in [1, 2, 3, 5, 7, 8] {
        assert!(stable("chain", n) && stable("binary-tree", n), "{n}");
        assert!(stable("star", n), "{n}");
        assert_eq!(stable("ring", n), n <= 2, "{n}");
    }
    assert!(!stable("one-peer-exp", 4));
}

#[test]
fn choco_wants_the_same_neighbours_in_every_round() {
    let rule = rule_by_name::<f64>("choco", &RuleConfig::default()).unwrap();
    rule.check(&measured("static-exp", 8), 0.1).unwrap();
    for topology in ["one-peer-exp", "random-matching"] {
        let e = rule.check(&measured(topology, 8), 0.1).unwrap_err();
        assert!(e.to_string().contains("other neighbours"), "{e}");
    }
}

/// The limit over random pairs holds for pairs that are drawn uniformly: of other graphs that never repeat, other pairs too, it is not known.
#[test]
fn noloco_takes_the_limit_of_random_pairs_for_these_alone() {
    let check = |facts: &MixingFacts, gamma| {
        let settings = RuleConfig {
            gamma,
            ..RuleConfig::default()
        };
        let rule = rule_by_name::<f64>("noloco", &settings).unwrap();
        rule.check(facts, 0.1)
    };
    for n in [2, 3, 5, 8] {
        let pairs = measured("random-matching", n);
        assert!(pairs.drawn == Some(Draw::Matching) && !pairs.repeats, "{n}");
        assert_eq!(check(&pairs, 1.4).unwrap(), Stability::Stable, "{n}");
    }
    check(&measured("random-matching", 8), 1.9).unwrap_err();
    // Pairs that never repeat, and are always among the same few.
    let skewed = FromFn::new("skewed", 8, None, |rank: Rank, t, out: &mut Round| {
        let bit = if t.count_ones() % 5 == 4 { t % 3 } else { 0 };
        out.from.push((Rank(rank.0 ^ (1 << bit)), 0.5));
        out.to.push((Rank(rank.0 ^ (1 << bit)), 1.0));
        out.keep = 0.5;
    });
    for other in [facts(&skewed.unwrap()), measured("od-equi-dyn", 8)] {
        assert!(other.drawn.is_none() && !other.repeats);
        let told = check(&other, 1.9).unwrap();
        assert!(matches!(told, Stability::Unchecked(_)), "{told:?}");
    }
    // Pairs in turn: the product over the period decides, and has another limit, which is what happens.
    let turns = measured("one-peer-hypercube", 8);
    let largest = (100..300)
        .map(|h| f64::from(h) / 100.0)
        .take_while(|gamma| check(&turns, *gamma).is_ok());
    let largest = largest.last().unwrap();
    assert!((largest - 1.61).abs() > 0.1, "{largest}");
    for (gamma, grows) in [(largest - 0.02, false), (largest + 0.03, true)] {
        let settings = RuleConfig {
            gamma,
            period: Some(1),
            ..RuleConfig::default()
        };
        let hypercube = Arc::from(by_name("one-peer-hypercube", 8).unwrap());
        let grown = growth("noloco", &settings, hypercube, 3000);
        assert_eq!(grown > 1.0, grows, "{gamma}: e^{grown}");
        assert!(grown.abs() > 1.0, "{gamma}: e^{grown}");
    }
}

/// Everybody meets everybody again and again, but the average has drifted meanwhile.
#[test]
fn gossip_pga_wants_weights_that_keep_the_average() {
    let graph = |name| facts(&gaggle_optim::vectors::Graph::by_name(name, 8).unwrap());
    let check = |facts: &MixingFacts, global_period| {
        let settings = RuleConfig {
            global_period,
            ..RuleConfig::default()
        };
        let rule = rule_by_name::<f64>("gossip-pga", &settings).unwrap();
        rule.check(facts, 0.1)
    };
    let e = check(&graph("pull"), 6).unwrap_err();
    assert!(e.limit.contains("drifts"), "{e}");
    let e = check(&graph("push"), 6).unwrap_err();
    assert!(e.limit.contains("equal parameters"), "{e}");
    assert_eq!(check(&graph("ring"), 6).unwrap(), Stability::Stable);
    // Who meets everybody in each step never asks neighbours.
    assert_eq!(check(&graph("pull"), 1).unwrap(), Stability::Stable);
}

/// Before the first message has come a rank's weight is what it has kept of 1 in as many steps.
#[test]
fn osgp_is_known_to_be_stable_for_a_delay_of_one_step() {
    let said = |push_delay| {
        let config = RuleConfig {
            push_delay,
            ..RuleConfig::default()
        };
        let rule = rule_by_name::<f64>("osgp", &config).expect("the settings are in range");
        rule.check(&measured("ring", 8), 0.1).expect("not refused")
    };
    assert_eq!(said(1), Stability::Stable);
    match said(5) {
        Stability::Unchecked(why) => assert!(why.contains("lr/keep^4"), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// Which matchings come first is chance: over pairs of 3 ranks disagreements grow by 1.3 % a step in the long run, over pairs of 6 they shrink by 1 %.
#[test]
fn what_the_first_random_pairs_do_decides_nothing_alone() {
    let said = |n, seed| {
        let pairs = gaggle_topology::RandomMatching::new(n, seed).expect("there is one");
        let rule = rule_by_name::<f64>("d2", &RuleConfig::default()).expect("d2");
        rule.check(&facts(&pairs), 0.01)
    };
    for seed in 0..60 {
        let (three, six) = (said(3, seed), said(6, seed));
        let sure = matches!(three, Ok(Stability::Stable | Stability::Marginal(_)));
        assert!(!sure, "seed {seed}: {three:?}");
        assert!(six.is_ok(), "seed {seed}: {six:?}");
    }
}
