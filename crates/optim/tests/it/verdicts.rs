//! What `Rule::check` says against what happens, on random graphs that no table has.

use gaggle_core::{Rank, Round, Stability, Topology};
use gaggle_optim::{
    Decentralised, LocalKind, RuleConfig, rule_by_name,
    testing::{DenseMixer, lockstep},
};
use gaggle_topology::{FromFn, facts};
use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// In each round of a period everybody hears of so many others, by permutations: doubly stochastic and directed; pairs of ranks may meet twice in a round, and ranks themselves.
fn mixture(rng: &mut ChaCha8Rng, n: usize) -> impl Topology + use<> {
    let (period, heard) = (rng.random_range(1..4), rng.random_range(1..4));
    let keep: f64 = rng.random_range(0.1..0.8);
    let mut permutation = || {
        let mut to: Vec<usize> = (0..n).collect();
        to.shuffle(rng);
        to
    };
    let rounds: Vec<Vec<Vec<usize>>> = (0..period)
        .map(|_| (0..heard).map(|_| permutation()).collect())
        .collect();
    let weight = (1.0 - keep) / heard as f64;
    let fill = move |rank: Rank, t: u64, out: &mut Round| {
        out.keep = keep;
        for to in &rounds[t as usize % rounds.len()] {
            let sender = to[rank.idx()];
            if sender == rank.idx() {
                out.keep += weight;
                continue;
            }
            match out.from.iter_mut().find(|e| e.0.idx() == sender) {
                Some(e) => e.1 += weight,
                None => out.from.push((Rank(sender as u32), weight)),
            }
        }
        let mut receivers: Vec<usize> = rounds[t as usize % rounds.len()]
            .iter()
            .filter_map(|to| to.iter().position(|j| *j == rank.idx()))
            .filter(|r| *r != rank.idx())
            .collect();
        receivers.sort_unstable();
        receivers.dedup();
        out.to
            .extend(receivers.into_iter().map(|r| (Rank(r as u32), 1.0)));
    };
    FromFn::new("mixture", n, Some(period as u64), fill).expect("there are ranks")
}

/// How far the ranks are apart after so many steps of f_i(x) = (x − i)²/20.
fn apart(rule: &str, settings: &RuleConfig, on: Arc<dyn Topology>, looks: [u64; 2]) -> [f64; 2] {
    let n = on.world();
    let mut ranks: Vec<_> = DenseMixer::of(on)
        .into_iter()
        .map(|mixer| {
            let rule = rule_by_name(rule, settings).expect("in range");
            Decentralised::<f64>::unchecked(rule, Box::new(mixer), 1)
        })
        .collect();
    let mut x: Vec<Vec<f64>> = (0..n).map(|i| vec![(1.3 * i as f64).sin()]).collect();
    looks.map(|steps| {
        let mut widest = 0.0;
        while ranks[0].steps() < steps && widest < 1e100 {
            lockstep(&mut ranks, 1e-3, &mut x, |r, x, g| {
                g[0] = 0.1 * (x[0] - r as f64)
            })
            .expect("steps");
            let mean = x.iter().map(|x| x[0]).sum::<f64>() / n as f64;
            widest = x.iter().map(|x| (x[0] - mean).abs()).fold(0.0, f64::max);
        }
        if widest >= 1e100 {
            f64::INFINITY
        } else {
            widest
        }
    })
}

#[test]
fn what_is_said_is_what_happens_on_random_graphs() {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let (mut n_stable, mut n_refused) = (0, 0);
    for round in 0..8 {
        for rule in [
            "d2",
            "exact-diffusion",
            "extra",
            "decentlam",
            "qg-dmsgd",
            "dmsgd-yu",
            "gt-atc",
            "noloco",
        ] {
            let n = rng.random_range(4..24);
            let graph: Arc<dyn Topology> = Arc::new(mixture(&mut rng, n));
            let settings = RuleConfig {
                momentum: rng.random_range(0.0..0.95),
                alpha: (rule == "noloco").then(|| rng.random_range(0.0..0.95)),
                gamma: rng.random_range(0.1..2.5),
                period: (rule == "noloco").then_some(1),
                // AdamW's steps are as large for small gradients as for large ones.
                local: (rule == "noloco").then_some(LocalKind::Sgd),
                ..RuleConfig::default()
            };
            let facts = facts(&*graph);
            if !facts.connected || facts.cycle != 1 {
                continue;
            }
            let checked = rule_by_name::<f64>(rule, &settings)
                .expect("in range")
                .check(&facts, 1e-3);
            let [early, late] = apart(rule, &settings, graph, [1000, 3000]);
            let name = format!("round {round}, {rule} of {n}: {early:e}, {late:e}, {checked:?}");
            match checked {
                Ok(Stability::Stable) => {
                    assert!(late < 100.0 && late < 1.5 * early + 1e-9, "{name}");
                    n_stable += 1;
                }
                Ok(_) => {}
                Err(_) => {
                    assert!(late == f64::INFINITY || late > 2.0 * early, "{name}");
                    n_refused += 1;
                }
            }
        }
    }
    assert!(n_stable >= 20 && n_refused >= 12, "{n_stable}, {n_refused}");
}
