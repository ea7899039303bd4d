//! Rules that are each other in disguise, what averaging keeps, and limits in closed form.

use gaggle_core::{Float, Rule, Topology};
use gaggle_optim::{
    Bar, Compressor, D2, Decentralised, LocalKind, NAMES, RuleConfig, Sgd, rule_by_name,
    testing::{DenseMixer, lockstep},
    vectors::{Graph, Kind, Problem, consensus},
};
use std::sync::Arc;

type Run = Vec<Vec<Vec<f64>>>;

fn graph(name: &str) -> Graph {
    Graph::by_name(name, 8).expect("there is one")
}

fn rule(name: &str, config: RuleConfig) -> impl Fn() -> Box<dyn Rule<f64>> {
    let name = name.to_owned();
    move || rule_by_name(&name, &config).expect("the name exists")
}

fn ranks(
    on: impl Topology + 'static,
    rule: impl Fn() -> Box<dyn Rule<f64>>,
) -> Vec<Decentralised<f64>> {
    DenseMixer::of(Arc::new(on))
        .into_iter()
        .map(|mixer| Decentralised::unchecked(rule(), Box::new(mixer), 4))
        .collect()
}

/// Everybody's parameters after each of `steps` steps of LIN from 0.
fn run(on: Graph, rule: impl Fn() -> Box<dyn Rule<f64>>, lr: f64, steps: usize) -> Run {
    let problem = Problem::new(Kind::Lin);
    let mut ranks = ranks(on, rule);
    let mut x = vec![vec![0.0; 4]; 8];
    (0..steps)
        .map(|_| {
            lockstep(&mut ranks, lr, &mut x, |r, x, g| problem.gradient(r, x, g)).expect("steps");
            x.clone()
        })
        .collect()
}

fn far_apart(a: &Run, b: &Run) -> f64 {
    let all = |run: &Run| -> Vec<f64> { run.concat().concat() };
    let pairs = all(a).into_iter().zip(all(b));
    assert_eq!(a.len(), b.len());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

const NONE: fn() -> RuleConfig = RuleConfig::default;

/// Each of these was checked to 4e-15 over 20 to 30 steps by the implementation that gave the table.
#[test]
fn rules_in_disguise_are_the_same() {
    let plain = RuleConfig {
        momentum: 0.0,
        ..NONE()
    };
    let far = 4e-15;
    for on in ["ring", "static-exp", "one-peer-exp"] {
        let same = |a: (&str, RuleConfig), b: (&str, RuleConfig)| {
            let one = |(name, config)| run(graph(on), rule(name, config), 0.1, 30);
            let apart = far_apart(&one(a), &one(b));
            assert!(apart <= far, "{} and {} on {on}: {apart:e}", a.0, b.0);
        };
        same(("momentum-tracking", plain), ("diging", NONE()));
        same(("edm", plain), ("exact-diffusion", NONE()));
        same(("dsgt-hb", plain), ("gt-semi", NONE()));
        same(("sgp", NONE()), ("dsgd-atc", NONE()));
        let choco = RuleConfig {
            compressor: Compressor::Identity,
            consensus_step: 1.0,
            ..NONE()
        };
        if on != "one-peer-exp" {
            same(("choco", choco), ("dsgd-atc", NONE()));
        }
        let always = RuleConfig {
            global_period: 1,
            ..NONE()
        };
        same(("gossip-pga", always), ("allreduce-sgd", NONE()));
        let fast = RuleConfig {
            alpha: Some(1.0),
            ..NONE()
        };
        same(("lookahead", fast), ("dsgd-atc", NONE()));
        let sgd = RuleConfig {
            local: Some(LocalKind::Sgd),
            period: Some(4),
            ..NONE()
        };
        same(("slowmo", sgd), ("bmuf", sgd));
        let one = RuleConfig {
            outer_lr: Some(1.0),
            outer_momentum: Some(0.0),
            ..sgd
        };
        same(("diloco", one), ("local-sgd", sgd));
        let streaming = RuleConfig {
            fragments: 1,
            delay: 0,
            alpha: Some(0.0),
            outer_lr: Some(0.7),
            ..sgd
        };
        same(("streaming-diloco", streaming), ("diloco", sgd));
    }
    let gossip = RuleConfig {
        local: Some(LocalKind::Sgd),
        period: Some(4),
        alpha: Some(0.9),
        ..NONE()
    };
    let heavy = RuleConfig {
        alpha: None,
        outer_nesterov: false,
        ..gossip
    };
    let noloco = run(graph("full"), rule("noloco", gossip), 0.1, 80);
    let diloco = run(graph("full"), rule("diloco", heavy), 0.1, 80);
    assert!(far_apart(&noloco, &diloco) <= far);
}

/// W·CTA = ATC: averaging CTA's parameters once more gives ATC started from averaged ones, here both from zero.
#[test]
fn cta_is_atc_seen_half_a_step_earlier() {
    let on = graph("static-exp");
    let cta = run(on.clone(), rule("dsgd-cta", NONE()), 0.1, 30);
    let atc = run(on.clone(), rule("dsgd-atc", NONE()), 0.1, 30);
    for (cta, atc) in cta.iter().zip(&atc) {
        for (i, want) in atc.iter().enumerate() {
            for (k, want) in want.iter().enumerate() {
                let mixed: f64 = (0..8).map(|j| on.weight(0, i, j) * cta[j][k]).sum();
                assert!((mixed - want).abs() < 4e-15);
            }
        }
    }
}

/// The half-way weights of a graph.
struct Half(Graph);
impl Topology for Half {
    fn name(&self) -> &str {
        "half"
    }
    fn world(&self) -> usize {
        self.0.world()
    }
    fn period(&self) -> Option<u64> {
        self.0.period()
    }
    fn round(&self, rank: gaggle_core::Rank, t: u64, out: &mut gaggle_core::Round) {
        self.0.round(rank, t, out);
        out.keep = 0.5 + out.keep / 2.0;
        out.from.iter_mut().for_each(|(_, w)| *w /= 2.0);
    }
}

/// D² on (I + W)/2 is exact diffusion on W; and its ψ-form is x^{k+1} = W(2x^k − x^{k−1} − γ(g^k − g^{k−1})).
#[test]
fn d2_has_its_two_other_forms() {
    let problem = Problem::new(Kind::Lin);
    for on in ["ring", "static-exp", "one-peer-exp"] {
        let lazy = run(graph(on), rule("exact-diffusion", NONE()), 0.1, 30);
        let mut half = ranks(Half(graph(on)), || {
            let d2 = D2::new(Bar::Full, Box::new(Sgd::plain()), gaggle_core::Codec::None);
            Box::new(d2.expect("f64 goes plainly"))
        });
        let mut x = vec![vec![0.0; 4]; 8];
        for want in &lazy {
            lockstep(&mut half, 0.1, &mut x, |r, x, g| problem.gradient(r, x, g)).expect("steps");
            assert!(far_apart(&vec![x.clone()], &vec![want.clone()]) <= 2e-14);
        }
    }
    let w = graph("static-exp");
    let psi = run(w.clone(), rule("d2", NONE()), 0.1, 20);
    let gradients = |x: &[Vec<f64>]| -> Vec<Vec<f64>> {
        let one = |(r, x): (usize, &Vec<f64>)| {
            let mut g = vec![0.0; 4];
            problem.gradient(r, x, &mut g);
            g
        };
        x.iter().enumerate().map(one).collect()
    };
    let mix = |f: &dyn Fn(usize, usize) -> f64| -> Vec<Vec<f64>> {
        let row = |i: usize, k: usize| (0..8).map(|j| w.weight(0, i, j) * f(j, k)).sum();
        (0..8)
            .map(|i| (0..4).map(|k| row(i, k)).collect())
            .collect()
    };
    let mut old = vec![vec![0.0; 4]; 8];
    let g = gradients(&old);
    let mut x = mix(&|j, k| old[j][k] - 0.1 * g[j][k]);
    for want in &psi {
        assert!(far_apart(&vec![x.clone()], &vec![want.clone()]) <= 1e-14);
        let (g, before) = (gradients(&x), gradients(&old));
        let next = mix(&|j, k| 2.0 * x[j][k] - old[j][k] - 0.1 * (g[j][k] - before[j][k]));
        old = std::mem::replace(&mut x, next);
    }
}

fn vector(rank: &mut Decentralised<f64>, wanted: &str) -> Vec<f64> {
    let mut found = None;
    rank.state(&mut |name, v| {
        if name == wanted {
            found = Some(v.clone());
        }
    });
    found.expect("a vector by this name")
}

/// Σ over the ranks of each element.
fn sums(all: &[Vec<f64>]) -> Vec<f64> {
    let n = all.first().map_or(0, Vec::len);
    (0..n).map(|k| all.iter().map(|v| v[k]).sum()).collect()
}

fn close(a: &[f64], b: &[f64], far: f64) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= far)
}

/// mean(Y) = mean(G) in every step, on any doubly stochastic graph, and Σy = Σg where shares alone sum to one.
#[test]
fn tracked_gradients_have_the_mean_of_the_gradients() {
    let problem = Problem::new(Kind::Log);
    for (name, on) in [
        ("diging", "ring"),
        ("diging", "one-peer-exp"),
        ("gt-semi", "static-exp"),
        ("gt-atc", "one-peer-exp"),
        ("dsgt-hb", "pairs"),
        ("push-diging", "push"),
    ] {
        let mut ranks = ranks(graph(on), rule(name, NONE()));
        let mut x = vec![vec![0.1; 4]; 8];
        for step in 0..50 {
            lockstep(&mut ranks, 0.1, &mut x, |r, x, g| problem.gradient(r, x, g)).expect("steps");
            let of = |ranks: &mut Vec<Decentralised<f64>>, what: &str| -> Vec<f64> {
                let all: Vec<_> = ranks.iter_mut().map(|r| vector(r, what)).collect();
                sums(&all)
            };
            let (y, g) = (
                of(&mut ranks, "tracked gradient"),
                of(&mut ranks, "gradient"),
            );
            assert!(close(&y, &g, 1e-13), "{name} on {on}, step {step}");
        }
    }
}

/// Σw = n always, Σx (x = wz) where nothing is learnt; z tends to the mean.
#[test]
fn push_sum_keeps_its_sums() {
    let mut ranks = ranks(graph("push"), rule("sgp", NONE()));
    let mut x: Vec<Vec<f64>> = (0..8).map(|i| vec![f64::from(i); 4]).collect();
    let mut weights = vec![vec![1.0]; 8];
    // After k rounds: z_0, from the numpy implementation.
    for (k, z) in [(1, 4.6666666667), (5, 3.9490456257), (20, 3.5055822750)] {
        while ranks[0].steps() < k {
            lockstep(&mut ranks, 0.0, &mut x, |_, _, g| g.fill(1.0)).expect("steps");
            weights = ranks.iter_mut().map(|r| vector(r, "weight")).collect();
            let biased: Vec<Vec<f64>> = x
                .iter()
                .zip(&weights)
                .map(|(x, w)| x.iter().map(|x| x * w[0]).collect())
                .collect();
            assert!(close(&sums(&weights), &[8.0], 1e-13));
            assert!(close(&sums(&biased), &[28.0; 4], 1e-12));
        }
        assert!((x[0][0] - z).abs() < 1e-10, "{k}: {}", x[0][0]);
    }
    assert!(weights.iter().any(|w| (w[0] - 1.0).abs() > 0.1));
}

/// Σw = n and Σx, with what has left and not come; also after the graph has changed, when senders take back what had not left.
#[test]
fn late_push_sum_keeps_its_sums_with_what_is_under_way() {
    for delay in [1, 2, 5] {
        let config = RuleConfig {
            push_delay: delay,
            ..RuleConfig::default()
        };
        let mut ranks = ranks(graph("push"), rule("osgp", config));
        let mut x: Vec<Vec<f64>> = (0..8).map(|i| vec![f64::from(i); 4]).collect();
        for step in 0..200 {
            if step == 7 || step == 20 {
                let other = if step == 7 { "one-peer-exp" } else { "push" };
                for (rank, mixer) in ranks.iter_mut().zip(DenseMixer::of(Arc::new(graph(other)))) {
                    rank.replace_mixer(Box::new(mixer)).expect("another graph");
                }
            }
            lockstep(&mut ranks, 0.0, &mut x, |_, _, g| g.fill(1.0)).expect("steps");
            let (mut all, mut all_weights) = (vec![0.0; 4], 0.0);
            for (rank, x) in ranks.iter_mut().zip(&x) {
                let w = vector(rank, "weight")[0];
                let (halves, weights) = (vector(rank, "halves"), vector(rank, "their weights"));
                let shares = vector(rank, "others' shares");
                all_weights += w;
                for (k, all) in all.iter_mut().enumerate() {
                    *all += w * x[k];
                    *all += (0..shares.len())
                        .map(|p| shares[p] * halves[p * 4 + k])
                        .sum::<f64>();
                }
                let late = shares.iter().zip(&weights).map(|(s, w)| s * w);
                all_weights += late.sum::<f64>();
            }
            assert!(
                (all_weights - 8.0).abs() < 1e-12,
                "{delay}, {step}: {all_weights}"
            );
            assert!(close(&all, &[28.0; 4], 1e-11), "{delay}, {step}: {all:?}");
        }
        let off = x.iter().flatten().map(|x| (x - 3.5).abs());
        assert!(off.fold(0.0, f64::max) < 0.1, "{delay}: {x:?}");
    }
}

/// CHOCO-Gossip without learning: consensus after 10, 100 and 400 rounds from the numpy implementation; the mean stays.
#[test]
fn compressed_gossip_reaches_consensus_and_keeps_the_mean() {
    let mut ranks = ranks(graph("ring"), rule("choco", NONE()));
    let start = |i: usize| (1..=4).map(|j| ((i * j) % 5) as f64 - i as f64).collect();
    let mut x: Vec<Vec<f64>> = (0..8).map(start).collect();
    let mean = sums(&x);
    for (k, want) in [
        (10, 2.397229964),
        (100, 6.559109973e-3),
        (400, 2.118851910e-11),
    ] {
        while ranks[0].steps() < k {
            lockstep(&mut ranks, 0.0, &mut x, |_, _, g| g.fill(0.0)).expect("steps");
        }
        let got = consensus(&x);
        // The last has few digits left beside values of the size of 1.
        assert!((got - want).abs() < 1e-9 * want + 1e-14, "{k}: {got:e}");
        assert!(close(&sums(&x), &mean, 1e-12));
    }
}

/// The limit is that of ATC with (1 − η)I + ηW for every compressor that contracts: .3000753374 on the ring.
#[test]
fn compressors_share_their_limit() {
    let problem = Problem::new(Kind::Lin);
    for (compressor, eta) in [
        (Compressor::TopK { ratio: 0.5 }, 0.3),
        (Compressor::Sign, 0.3),
        (
            Compressor::RandomK {
                ratio: 0.5,
                unbiased: false,
                seed: 3,
            },
            0.3,
        ),
        (
            Compressor::Qsgd {
                levels: 4,
                contracting: true,
                seed: 3,
            },
            0.3,
        ),
    ] {
        let config = RuleConfig {
            compressor,
            consensus_step: eta,
            ..NONE()
        };
        let last = run(graph("ring"), rule("choco", config), 0.1, 3000).pop();
        let got = problem.error(&last.expect("it has run"));
        assert!((got - 0.3000753374).abs() < 1e-9, "{compressor:?}: {got}");
    }
}

/// x after steps 6 and 7 of 1-bit Adam, from the numpy implementation; and what was left out is not lost.
#[test]
fn one_bit_adam_feeds_its_errors_back() {
    let config = RuleConfig {
        warm_up: 5,
        ..NONE()
    };
    let problem = Problem::new(Kind::Lin);
    let mut ranks = ranks(graph("ring"), rule("one-bit-adam", config));
    let mut x = vec![vec![0.0; 4]; 8];
    // Σ of what went in, and of what came out, after the warm-up; per element, mean over the ranks.
    let (mut wanted, mut applied) = (vec![0.0; 4], vec![0.0; 4]);
    for step in 1..=40 {
        let m = vector(&mut ranks[0], "momentum");
        let mut g = vec![vec![0.0; 4]; 8];
        lockstep(&mut ranks, 0.01, &mut x, |r, x, into| {
            problem.gradient(r, x, into);
            g[r].copy_from_slice(into);
        })
        .expect("steps");
        if step > 5 {
            let (sent, now) = (sums(&g), vector(&mut ranks[0], "momentum"));
            for k in 0..4 {
                wanted[k] += 0.9 * m[k] + 0.1 * sent[k] / 8.0;
                applied[k] += now[k];
            }
            let left: Vec<_> = ranks.iter_mut().map(|r| vector(r, "left out")).collect();
            let by_all = vector(&mut ranks[0], "left out by all");
            let total: Vec<f64> = (0..4)
                .map(|k| applied[k] + sums(&left)[k] / 8.0 + by_all[k])
                .collect();
            assert!(close(&total, &wanted, 1e-13), "step {step}");
        }
        let known = match step {
            6 => [0.3375879, -0.27353866, 1.31888343, 0.26226039],
            7 => [0.47391186, -0.32386807, -0.43021473, 0.29717645],
            _ => continue,
        };
        assert!(close(&x[0], &known, 6e-9), "step {step}: {:?}", x[0]);
    }
}

/// Limits off the optimum against β, γ = 0.01 on the ring, LIN: from the numpy implementation after 6000 steps.
#[test]
fn the_bias_depends_on_momentum_as_known() {
    let known = [
        ("dmsgd", [0.01334860, 0.02613453, 0.1120744, 0.1909730]),
        ("dmsgd-yu", [0.01334860, 0.02194009, 0.04557356, 0.05269749]),
        (
            "dmsgd-ying",
            [0.01072713, 0.01773015, 0.03718197, 0.04309887],
        ),
        ("decentlam", [0.01334860; 4]),
        ("qg-dmsgd", [0.01334860; 4]),
    ];
    let problem = Problem::new(Kind::Lin);
    for (name, limits) in known {
        for (beta, want) in [0.0, 0.5, 0.9, 0.95].into_iter().zip(limits) {
            let config = RuleConfig {
                momentum: beta,
                ..NONE()
            };
            let last = run(graph("ring"), rule(name, config), 0.01, 6000).pop();
            let got = problem.error(&last.expect("it has run"));
            assert!(
                (got - want).abs() < 6e-7 * want.max(0.1),
                "{name} {beta}: {got}"
            );
        }
    }
}

/// Limits of DSGD on LIN in closed form, (I − W + γH)x = γc for AWC and (I − W(I − γH))x = γWc for ATC: errors for γ = 0.1, 0.05, 0.025 and 0.0125, and rank 0 at 0.1.
#[test]
fn limits_are_those_in_closed_form() {
    let problem = Problem::new(Kind::Lin);
    for (name, on, errors, first) in [
        (
            "dsgd-awc",
            "ring",
            [0.1392882885, 0.07788736209, 0.04144531258, 0.02141833340],
            [0.45585286, -1.41456247, 0.10967278, 1.9299725],
        ),
        (
            "dsgd-atc",
            "ring",
            [0.1120743924, 0.06147885326, 0.03232850209, 0.01659628236],
            [0.43721864, -1.41571962, 0.10154638, 1.93808944],
        ),
        (
            "dsgd-awc",
            "static-exp",
            [0.05704550454, 0.02954331437, 0.01504313871, 0.007591651826],
            [0.46558992, -1.39020529, 0.16294288, 2.03170752],
        ),
        (
            "dsgd-atc",
            "static-exp",
            [0.02396207589, 0.01205779967, 0.006048575185, 0.003029272459],
            [0.44851338, -1.38614996, 0.16214949, 2.04876958],
        ),
    ] {
        for (k, want) in errors.into_iter().enumerate() {
            let lr = 0.1 * 0.5_f64.powi(k as i32);
            let last = run(graph(on), rule(name, NONE()), lr, 1000 << k).pop();
            let x = last.expect("it has run");
            let got = problem.error(&x);
            assert!(
                (got - want).abs() < 1e-8 * want,
                "{name} on {on}, {lr}: {got}"
            );
            assert!(
                k > 0 || close(&x[0], &first, 6e-9),
                "{name} on {on}: {:?}",
                x[0]
            );
        }
    }
    // Local SGD, H = 4: (I − mean(I − γH)⁴)x = mean Σ(I − γH)ᵗγc.
    let local = RuleConfig {
        period: Some(4),
        ..NONE()
    };
    let want = [0.4375784, -1.37991179, 0.15688798, 2.02442072];
    let last = run(graph("ring"), rule("local-sgd", local), 0.1, 2000).pop();
    assert!(close(&last.expect("it has run")[0], &want, 6e-9));
}

/// Everybody's mean in rank order: all ranks stay equal bit for bit.
#[test]
fn means_over_everybody_keep_ranks_equal_bit_for_bit() {
    for name in NAMES
        .into_iter()
        .filter(|n| n.starts_with("allreduce") || *n == "one-bit-adam")
    {
        for x in run(graph("ring"), rule(name, NONE()), 0.05, 30) {
            let bits = |x: &Vec<f64>| -> Vec<u64> { x.iter().map(|v| v.to_bits()).collect() };
            assert!(x.iter().all(|one| bits(one) == bits(&x[0])), "{name}");
        }
    }
}

/// Exact diffusion in f32 on the ring: without the delta form its error grows with the steps, to 3e-3 after 2000.
#[test]
fn the_delta_form_keeps_exact_diffusion_from_drifting() {
    let problem = Problem::new(Kind::Lin);
    let mut ranks: Vec<Decentralised<f32>> = DenseMixer::of(Arc::new(graph("ring")))
        .into_iter()
        .map(|mixer| {
            let rule = rule_by_name("exact-diffusion", &NONE()).expect("exists");
            Decentralised::unchecked(rule, Box::new(mixer), 4)
        })
        .collect();
    let mut x = vec![vec![0.0_f32; 4]; 8];
    for _ in 0..5000 {
        lockstep(&mut ranks, 0.1, &mut x, |r, x, g| {
            let x: Vec<f64> = x.iter().map(|v| v.to_f64()).collect();
            let mut exact = [0.0; 4];
            problem.gradient(r, &x, &mut exact);
            g.iter_mut().zip(exact).for_each(|(g, v)| *g = v as f32);
        })
        .expect("steps");
    }
    let x: Vec<Vec<f64>> = x
        .iter()
        .map(|x| x.iter().map(|v| f64::from(*v)).collect())
        .collect();
    assert!(problem.error(&x) < 3e-4, "{:e}", problem.error(&x));
}

/// Two replicas, two fragments of one weight each, gradient 2, inner step 1, outer SGD 2, every 6 steps: torchft's golden numbers.
#[test]
fn streaming_fragments_follow_torchfts_golden_numbers() {
    let run = |delay: u64, alpha: f64| -> Vec<(f64, f64)> {
        let config = RuleConfig {
            local: Some(LocalKind::Sgd),
            period: Some(6),
            fragments: 2,
            delay,
            leaves_early: true,
            alpha: Some(alpha),
            outer_lr: Some(2.0),
            outer_momentum: Some(0.0),
            outer_nesterov: false,
            ..NONE()
        };
        let mixers = DenseMixer::<f64>::world(2, |_, _, _| 0.5);
        let mut ranks: Vec<_> = mixers
            .into_iter()
            .map(|m| {
                let rule = rule_by_name("streaming-diloco", &config).expect("exists");
                Decentralised::unchecked(rule, Box::new(m), 2)
            })
            .collect();
        let mut x = vec![vec![1.0; 2]; 2];
        // After each outer step of a fragment: its parameter, and its global one.
        let mut seen = Vec::new();
        for step in 1..=15 {
            lockstep(&mut ranks, 1.0, &mut x, |_, _, g| g.fill(2.0)).expect("steps");
            if step % 3 == 0 {
                let p = usize::from(step % 6 == 0);
                assert_eq!(x[0], x[1]);
                seen.push((x[0][p], vector(&mut ranks[0], "phi")[p]));
            }
        }
        seen
    };
    let fragment = |seen: &[(f64, f64)], p: usize| -> Vec<(f64, f64)> {
        seen.iter().skip(p).step_by(2).copied().collect()
    };
    let now = run(0, 0.0);
    let global: Vec<f64> = fragment(&now, 0).iter().map(|s| s.1).collect();
    assert_eq!(global[..2], [-11.0, -35.0]);
    let global: Vec<f64> = fragment(&now, 1).iter().map(|s| s.1).collect();
    assert_eq!(global, [-23.0, -47.0]);
    let half = run(0, 0.5);
    let (own, global): (Vec<f64>, Vec<f64>) = fragment(&half, 0).into_iter().unzip();
    assert_eq!(own, [-8.0, -24.5, -40.25]);
    assert_eq!(global[..2], [-11.0, -29.0]);
    let (own, global): (Vec<f64>, Vec<f64>) = fragment(&half, 1).into_iter().unzip();
    assert_eq!(own, [-17.0, -32.0]);
    assert_eq!(global, [-23.0, -35.0]);
    let late = run(1, 0.0);
    let own: Vec<f64> = fragment(&late, 0).iter().map(|s| s.0).collect();
    assert_eq!(own, [-7.0, -27.0, -47.0]);
}
