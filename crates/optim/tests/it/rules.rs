//! The contract that every rule keeps.

use crate::worlds::{GLOBAL, PLAIN, built, config, graph, step, world};
use gaggle_core::{
    At, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Modes, Place, Rank, Stability, With,
};
use gaggle_optim::{
    ConfigError, Decentralised, LocalKind, LocalRule, NAMES, Pace, RuleConfig, Sgd, SgdConfig,
    State, StateError, rule_by_name, testing::DenseMixer,
};
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
    for name in PLAIN.into_iter().chain(["sgp", "diging", "gt-atc"]) {
        walk::<f64>(name);
        walk::<f32>(name);
    }
}

/// Equal ranks with equal gradients stay equal bit for bit (delta form), and those with a local step do what it does alone.
#[test]
fn equal_ranks_are_one_rank() {
    for ranks in [1, 2, 3, 5, 7, 8] {
        for n in [0, 1, ranks - 1, ranks, ranks + 1, 13] {
            // Ranks that hear of each other late are not as one.
            let late = ["relaysgd", "osgp"];
            for name in NAMES.into_iter().filter(|n| !late.contains(n)) {
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
                    // The mean of equal values over 3, 5 or 7 ranks may differ in the last place.
                    let exact = !GLOBAL.contains(&name);
                    for (got, want) in x.iter().zip(&alone[0]) {
                        let slack = if exact { 0.0 } else { 1e-5 };
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
            let cx = Cx::at(k, 0.2);
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
        lambda_min: Some(-0.2),
        repeats: true,
        tree: true,
        drawn: None,
        cycle: 1,
        keeps_nothing: None,
        modes: Modes::Between(-0.2, 0.8),
    }
}

#[test]
fn rules_refuse_what_diverges() {
    let rank = |name| world::<f64>(name, 1, 1).remove(0);
    let apart = MixingFacts {
        connected: false,
        tree: false,
        contraction: 1.0,
        ..facts()
    };
    let swap = MixingFacts {
        contraction: 0.9,
        lambda_min: Some(-1.0),
        modes: Modes::Between(-1.0, 0.8),
        ..facts()
    };
    for name in NAMES {
        let stable = rank(name).check(&facts(), 0.1).unwrap();
        // CHOCO's limit is far below what its compressors take.
        let unchecked = matches!(stable, Stability::Unchecked(_));
        assert_eq!(unchecked, name == "choco", "{name}: {stable:?}");
        assert!(
            unchecked || stable == Stability::Stable,
            "{name}: {stable:?}"
        );
        assert!(rank(name).check(&facts(), -0.1).is_err(), "{name}");
        // Those with everybody in them do not need the topology.
        let global = GLOBAL.contains(&name);
        let refused = rank(name).check(&apart, 0.1).is_err();
        assert_eq!(refused, !global, "{name}");
    }
    for name in ["dsgd-awc", "dmsgd-awc", "d2", "decentlam"] {
        let e = rank(name).check(&swap, 0.1).err().map(|e| e.to_string());
        let refused = e.as_ref().is_some_and(|e| e.contains("-1"));
        // z² − (0.9 − 1)z + 0.9 has its roots inside.
        assert_eq!(refused, name != "decentlam", "{name}: {e:?}");
    }
    for name in ["dsgd-atc", "dsgd-cta", "exact-diffusion", "gt-atc"] {
        rank(name).check(&swap, 0.1).unwrap();
    }
    let known = RuleConfig {
        smoothness: Some(1.0),
        ..RuleConfig::default()
    };
    let awc = rule_by_name::<f64>("dsgd-awc", &known).unwrap();
    awc.check(&facts(), 0.7).unwrap();
    let e = awc.check(&facts(), 0.9).unwrap_err().to_string();
    assert!(
        e.starts_with("unstable: averaging while computing") && e.contains("atc"),
        "{e}"
    );
    rule_by_name::<f64>("dsgd-atc", &known)
        .unwrap()
        .check(&facts(), 0.9)
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

/// Drives a rule by hand, span by span, in the order given, against two neighbours who answer with something near what was sent.
fn by_spans(name: &str, cuts: &[usize], backwards: bool, steps: u64) -> Vec<f64> {
    let n = cuts.last().copied().unwrap_or(0);
    let mut rule = built::<f64>(name);
    let place = Place {
        rank: Rank(1),
        world: 3,
    };
    rule.init(n, place);
    let mut x: Vec<f64> = (0..n).map(|k| (k as f64).sin()).collect();
    let mut spans: Vec<_> = cuts.windows(2).map(|w| w[0]..w[1]).collect();
    if backwards {
        spans.reverse();
    }
    let mut pace = Pace::new(rule.period().unwrap_or(1));
    // What is under way: its exchange, its step and span, its values.
    let mut flying: Vec<(Exchange, u64, std::ops::Range<usize>, Vec<f64>)> = Vec::new();
    for step in 0..steps {
        let cx = pace.cx(0.1);
        let g: Vec<f64> = x.iter().map(|x| x.cos()).collect();
        let mut list = Vec::new();
        if cx.mixes {
            rule.exchanges(&cx, &mut list);
        }
        for at in At::ALL {
            let g = |span: &std::ops::Range<usize>| match at {
                At::BeforeForward => &[][..],
                _ => &g[span.clone()],
            };
            for span in &spans {
                for e in list.iter().filter(|e| e.known == at) {
                    let part = e.within(span.clone());
                    let messages = if e.with == With::EachNeighbour { 2 } else { 1 };
                    let mut out = vec![0.0; messages * e.len(part.len())];
                    let local = Local {
                        at: part.clone(),
                        x: &mut x[part.clone()],
                        g: g(&part),
                    };
                    rule.emit(&cx, e.slot, local, &mut out);
                    out.iter_mut().for_each(|v| *v = 0.9 * *v + 0.01);
                    flying.push((*e, step + e.late, span.clone(), out));
                }
            }
            let second = |e: &Exchange| e.known == At::AfterMean || e.due == At::AfterMean;
            if at == At::AfterMean && !list.iter().any(second) {
                continue;
            }
            for span in &spans {
                let due = |(e, due, of, _): &&(Exchange, u64, std::ops::Range<usize>, Vec<f64>)| {
                    *due == step && e.due == at && of == span
                };
                let mean = |(e, _, of, values): &'_ (_, _, _, Vec<f64>)| -> (usize, _, Vec<f64>) {
                    let e: &Exchange = e;
                    (e.slot, e.within(Clone::clone(of)), values.clone())
                };
                let arrived: Vec<_> = flying.iter().filter(due).map(mean).collect();
                let means: Vec<_> = arrived
                    .iter()
                    .map(|(slot, at, values)| MixedMean {
                        slot: *slot,
                        at: at.clone(),
                        values,
                        weights: &[0.5, 0.25, 0.25],
                    })
                    .collect();
                let local = Local {
                    at: span.clone(),
                    x: &mut x[span.clone()],
                    g: g(span),
                };
                rule.absorb(&cx, at, local, &means);
            }
            flying.retain(|(e, due, ..)| *due != step || e.due != at);
        }
        pace.advance();
    }
    x
}

/// Rules that do not ask for the whole vector at once.
fn by_parts() -> Vec<&'static str> {
    let whole = |name: &&str| built::<f64>(name).whole();
    NAMES.into_iter().filter(|name| !whole(name)).collect()
}

#[test]
fn only_those_who_sort_or_take_norms_want_the_whole_vector() {
    let parts = by_parts();
    let whole: Vec<_> = NAMES.into_iter().filter(|n| !parts.contains(n)).collect();
    assert_eq!(whole, ["choco", "one-bit-adam"]);
}

/// Every kind of local step under every rule that is built around one, on three ranks: it runs, and goes on after saving; the others say that they have none.
#[test]
fn any_local_step_goes_under_any_mixing() {
    let (mut built, mut refused) = (0, 0);
    for name in NAMES {
        for kind in LocalKind::ALL {
            let config = RuleConfig {
                local: Some(kind),
                ..config(name)
            };
            let rule = || rule_by_name::<f64>(name, &config);
            if let Err(e) = rule() {
                assert!(matches!(e, ConfigError::NoLocal { .. }), "{name}: {e}");
                refused += 1;
                continue;
            }
            built += 1;
            let start = |mixer| Decentralised::unchecked(rule().unwrap(), Box::new(mixer), 2);
            let mixers = || DenseMixer::of(graph(name, 3)).into_iter();
            let mut ranks: Vec<_> = mixers().map(start).collect();
            let mut x = vec![vec![1.0, -1.0]; 3];
            let gradient = |r: usize, x: &[f64]| x.iter().map(|x| x - r as f64).collect();
            for _ in 0..6 {
                step(&mut ranks, 0.05, &mut x, gradient);
            }
            while ranks[0].save().is_err() {
                step(&mut ranks, 0.05, &mut x, gradient);
            }
            let mut again: Vec<_> = mixers().map(start).collect();
            for (from, to) in ranks.iter_mut().zip(&mut again) {
                to.load(&from.save().unwrap()).unwrap();
            }
            let mut y = x.clone();
            for _ in 0..6 {
                step(&mut ranks, 0.05, &mut x, gradient);
                step(&mut again, 0.05, &mut y, gradient);
            }
            assert_eq!(x, y, "{name} around {}", kind.name());
            assert!(
                x.iter().flatten().all(|x| x.abs() < 5.0),
                "{name} around {}",
                kind.name()
            );
        }
    }
    assert_eq!((built, refused), (31 * 8, 10 * 8));
}

/// f_r(x) = ½(x − 10 − r/10)², in every world, from 0: the ranks' mean comes near the mean of the minima.
#[test]
fn every_rule_learns_in_every_world() {
    for ranks in [1, 2, 3, 5, 7, 8] {
        let want = 10.0 + (ranks - 1) as f64 / 20.0;
        for name in NAMES {
            let mut all = world::<f64>(name, ranks, 1);
            let mut x = vec![vec![0.0]; ranks];
            for _ in 0..800 {
                step(&mut all, 0.05, &mut x, |r, x| {
                    vec![x[0] - 10.0 - r as f64 / 10.0]
                });
            }
            let mean = x.iter().map(|x| x[0]).sum::<f64>() / ranks as f64;
            assert!(
                (mean - want).abs() < 0.5,
                "{name}, {ranks} ranks: {mean} for {want}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Buckets of any size in any order give the bits of the whole vector.
    #[test]
    fn spans_do_not_matter(
        mut cuts in proptest::collection::vec(0_usize..=40, 0..6),
        backwards: bool,
    ) {
        cuts.extend([0, 40]);
        cuts.sort();
        for name in by_parts() {
            let whole = by_spans(name, &[0, 40], false, 9);
            prop_assert_eq!(by_spans(name, &cuts, backwards, 9), whole, "{}", name);
        }
    }

    /// State saved in mid-run goes through bytes into a new rule, which goes on with the same bits.
    #[test]
    fn saved_state_goes_on(ranks in 1_usize..=4, saved_at in 0_u64..9) {
        let gradient = |r: usize, x: &[f64]| -> Vec<f64> { x.iter().map(|x| x - r as f64).collect() };
        let start = || vec![vec![0.5, -0.25, 2.0]; ranks];
        for name in NAMES {
            let (mut whole, mut x) = (world::<f64>(name, ranks, 3), start());
            for _ in 0..14 {
                step(&mut whole, 0.1, &mut x, gradient);
            }
            let (mut first, mut y) = (world::<f64>(name, ranks, 3), start());
            let mut done = 0;
            // A message that crosses steps is waited for.
            while done < saved_at || matches!(first[0].save(), Err(StateError::InFlight { .. })) {
                step(&mut first, 0.1, &mut y, gradient);
                done += 1;
            }
            let mut second = world::<f64>(name, ranks, 3);
            for (from, to) in first.iter_mut().zip(&mut second) {
                let bytes = from.save().unwrap().to_bytes();
                to.load(&State::from_bytes(&bytes).unwrap()).unwrap();
                prop_assert_eq!(from.pace(), to.pace());
            }
            for _ in done..14 {
                step(&mut second, 0.1, &mut y, gradient);
            }
            prop_assert_eq!(x, y, "{}", name);
        }
    }

    /// Bytes that are no state, or a damaged one, are told.
    #[test]
    fn damaged_states_are_told(at in 0_usize..1000, flip in 1_u8.., cut in 0_usize..1000) {
        let mut rank = world::<f64>("edm", 1, 3).remove(0);
        let bytes = rank.save().unwrap().to_bytes();
        let mut damaged = bytes.clone();
        let at = at % bytes.len();
        damaged[at] ^= flip;
        prop_assert!(State::from_bytes(&damaged).is_err());
        prop_assert!(State::from_bytes(&bytes[..cut % bytes.len()]).is_err());
    }
}

#[test]
fn a_state_of_something_else_changes_nothing() {
    let mut edm = world::<f64>("edm", 1, 3).remove(0);
    let mut x = vec![1.0, 2.0, 3.0];
    edm.step(0.1, &mut x, &[1.0; 3]).unwrap();
    let saved = edm.save().unwrap();
    let refused = |name: &str, n: usize| {
        let mut other = world::<f64>(name, 1, n).remove(0);
        let before = other.save().unwrap();
        let e = other.load(&saved).unwrap_err();
        assert_eq!(other.save().unwrap(), before);
        e
    };
    assert_eq!(
        refused("d2", 3).to_string(),
        "the state is of rule edm, wanted d2"
    );
    assert_eq!(
        refused("edm", 2).to_string(),
        "number of parameters is 3, wanted 2"
    );
    let mut single = world::<f32>("edm", 1, 3).remove(0);
    let e = single.load(&saved).unwrap_err();
    assert!(matches!(e, StateError::Shape { .. }), "{e}");
    // In the middle of a step there is nothing to save.
    edm.begin(At::AfterGradient, 0.1, &mut x, &[1.0; 3])
        .unwrap();
    assert_eq!(edm.save().unwrap_err(), StateError::MidStep { step: 1 });
    assert_eq!(
        edm.load(&saved).unwrap_err(),
        StateError::MidStep { step: 1 }
    );
}

/// Also where the state was saved before anybody had met a neighbour, and is loaded after that, and the other way round.
#[test]
fn a_run_goes_back_to_its_start_and_forth_again() {
    let gradient = |r: usize, x: &[f64]| -> Vec<f64> { x.iter().map(|x| x - r as f64).collect() };
    for name in NAMES {
        let run = |ranks: &mut [Decentralised<f64>]| {
            let mut x = vec![vec![0.5, -0.25, 2.0]; ranks.len()];
            // Until nothing is under way.
            for _ in 0..6 {
                step(ranks, 0.1, &mut x, gradient);
            }
            while matches!(ranks[0].save(), Err(StateError::InFlight { .. })) {
                step(ranks, 0.1, &mut x, gradient);
            }
            x
        };
        let save = |ranks: &mut [Decentralised<f64>]| -> Vec<State> {
            ranks.iter_mut().map(|r| r.save().unwrap()).collect()
        };
        let load = |ranks: &mut [Decentralised<f64>], states: &[State]| {
            for (rank, state) in ranks.iter_mut().zip(states) {
                rank.load(state).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
        };
        let mut ranks = world::<f64>(name, 3, 3);
        let start = save(&mut ranks);
        let x = run(&mut ranks);
        let end = save(&mut ranks);
        load(&mut ranks, &start);
        assert_eq!(save(&mut ranks), start, "{name}");
        assert_eq!(run(&mut ranks), x, "{name}");
        assert_eq!(save(&mut ranks), end, "{name}");
        let mut others = world::<f64>(name, 3, 3);
        load(&mut others, &end);
        assert_eq!(save(&mut others), end, "{name}");
    }
}

/// A signalling NaN is a bit pattern like any other.
#[test]
fn states_keep_every_bit() {
    let patterns = [0x7f80_0001, 0xffa0_0000, 0x8000_0000, 1];
    let mut rank = world::<f32>("dmsgd", 1, 4).remove(0);
    rank.state(&mut |_, v| v.copy_from_slice(&patterns.map(f32::from_bits)));
    let bytes = rank.save().unwrap().to_bytes();
    let mut other = world::<f32>("dmsgd", 1, 4).remove(0);
    other.load(&State::from_bytes(&bytes).unwrap()).unwrap();
    let mut seen = vec![];
    other.state(&mut |_, v| seen.extend(v.iter().map(|x| x.to_bits())));
    assert_eq!(seen, patterns);
}

/// Where it is cannot be further than steps can be counted.
#[test]
fn a_state_from_beyond_all_steps_is_refused() {
    let mut rank = world::<f64>("gossip-pga", 1, 1).remove(0);
    let e = rank.resume_at(u64::MAX).unwrap_err().to_string();
    assert!(e.contains("resume_at(18446744073709551615)"), "{e}");
    assert_eq!(rank.steps(), 0);
    let pace = Pace {
        step: u64::MAX,
        ..Pace::new(1)
    };
    let mut rule = rule_by_name::<f64>("gossip-pga", &RuleConfig::default()).unwrap();
    let far = State::of(&mut *rule, 1, pace);
    let e = rank.load(&far).unwrap_err();
    let (what, got) = ("step", u64::MAX);
    assert_eq!(e, StateError::TooFar { what, got });
    rank.resume_at(Pace::MOST_STEPS).unwrap();
    let mut x = [1.0];
    rank.step(0.5, &mut x, &[1.0]).unwrap();
    assert_eq!((x, rank.steps()), ([0.5], Pace::MOST_STEPS + 1));
}
