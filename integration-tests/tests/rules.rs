//! One rule, whatever drives it: as a whole over a matrix of weights, as a whole over the engine, and under data-parallel buckets.

use gaggle::{
    EngineConfig, Group, Rank,
    core::{Cx, Exchange, Form, Mixer, Round, Topology, With},
    ddp::{BucketConfig, NeighbourMixer, ParamSpec, RuleDdp},
    optim::{
        CATALOGUE, Compressor, Decentralised, Entry, RuleConfig, State, StateError, rule_by_name,
        testing,
    },
    topology::by_name,
};
use gaggle_integration_tests::work::Trouble;
use std::sync::Arc;

/// Elements of the model's three parameters; one bucket each.
const LENS: [usize; 3] = [5, 1, 7];
const STEPS: u64 = 25;
const LR: f64 = 0.02;

fn total() -> usize {
    LENS.iter().sum()
}

/// A graph that each rule is for.
fn graph(rule: &str) -> &'static str {
    match rule {
        // Pairs.
        "noloco" => "random-matching:3",
        // Trees.
        "relaysgd" => "star",
        _ => "ring",
    }
}

/// So that in so few steps everything that the rule is made of happens: outer steps, late fragments, signs after the warm-up.
fn config(rule: &str) -> RuleConfig {
    let meets_rarely = [
        "local-sgd",
        "slowmo",
        "bmuf",
        "diloco",
        "streaming-diloco",
        "noloco",
    ];
    RuleConfig {
        period: meets_rarely.contains(&rule).then_some(6),
        fragments: 2,
        delay: 1,
        global_period: 3,
        warm_up: 4,
        lookahead_steps: 3,
        ..RuleConfig::default()
    }
}

fn start(k: usize) -> f64 {
    (k as f64 * 0.7).sin()
}

/// Rank r's loss is Σₖ cₖ(xₖ − r/2 − sin k)²/2.
fn gradient(rank: usize, k: usize, x: f64) -> f64 {
    let c = 0.5 + 0.1 * (k % 4) as f64;
    c * (x - rank as f64 / 2.0 - (k as f64).sin())
}

fn gradients(rank: usize, x: &[f64]) -> Vec<f64> {
    x.iter()
        .enumerate()
        .map(|(k, x)| gradient(rank, k, *x))
        .collect()
}

/// Every rank's parameters, over a dense matrix, in one thread.
fn over_a_matrix(rule: &str, config: &RuleConfig, n: usize) -> Vec<Vec<f64>> {
    let topology = Arc::from(by_name(graph(rule), n).expect("a graph"));
    let mut ranks: Vec<Decentralised<f64>> = testing::DenseMixer::of(topology)
        .into_iter()
        .map(|mixer| {
            let rule = rule_by_name(rule, config).expect("a rule");
            Decentralised::unchecked(rule, Box::new(mixer), total())
        })
        .collect();
    let mut x = vec![(0..total()).map(start).collect::<Vec<f64>>(); n];
    for _ in 0..STEPS {
        testing::lockstep(&mut ranks, LR, &mut x, |r, x, g| {
            g.copy_from_slice(&gradients(r, x));
        })
        .expect("a step of all ranks");
    }
    x
}

fn mixer(group: &Group, rule: &str) -> Box<NeighbourMixer<f64>> {
    let topology = by_name(graph(rule), group.size()).expect("a graph");
    Box::new(NeighbourMixer::new(group.clone(), topology).expect("a mixer"))
}

/// This rank's parameters, over the engine.
fn over_the_engine(group: &Group, rule: &str, config: &RuleConfig) -> Result<Vec<f64>, Trouble> {
    let mixer = mixer(group, rule);
    let rule = rule_by_name(rule, config)?;
    let mut driver = Decentralised::unchecked(rule, mixer, total());
    let mut x: Vec<f64> = (0..total()).map(start).collect();
    for _ in 0..STEPS {
        driver.before_forward(LR, &mut x)?;
        let g = gradients(group.rank().idx(), &x);
        driver.step(LR, &mut x, &g)?;
    }
    Ok(x)
}

/// This rank's parameters, over the engine, a bucket per parameter.
fn under_buckets(group: &Group, rule: &str, config: &RuleConfig) -> Result<Vec<f64>, Trouble> {
    let mixer = mixer(group, rule);
    let rule = rule_by_name(rule, config)?;
    let specs: Vec<ParamSpec> = LENS
        .iter()
        .enumerate()
        .map(|(i, len)| ParamSpec::new(format!("p{i}"), [*len]))
        .collect();
    let each = BucketConfig {
        cap_bytes: 0,
        first_bytes: 0,
    };
    let x: Vec<f64> = (0..total()).map(start).collect();
    let mut ddp = RuleDdp::unchecked(&specs, &each, rule, mixer, x)?;
    assert_eq!(ddp.buckets(), [0..5, 5..6, 6..13]);
    let feed = ddp.feed();
    let mut last = vec![];
    for _ in 0..STEPS {
        ddp.begin_step(LR)?;
        // Forward: parameter by parameter.
        let mut x = vec![0.0; total()];
        let mut rest = &mut x[..];
        for (idx, len) in LENS.iter().enumerate() {
            let (own, others) = rest.split_at_mut(*len);
            ddp.parameter(idx, own)?;
            rest = others;
        }
        let g = gradients(group.rank().idx(), &x);
        // Backward: the last one first.
        let mut end = total();
        for (idx, len) in LENS.iter().enumerate().rev() {
            feed.ready(idx, &g[end - len..end])?;
            end -= len;
        }
        last = ddp.finish()?.to_vec();
    }
    Ok(last)
}

fn same_bits(a: &[f64], b: &[f64]) -> bool {
    a.iter()
        .map(|x| x.to_bits())
        .eq(b.iter().map(|x| x.to_bits()))
}

/// What a rank has to say against a rule: nothing where all is well.
fn complaint(
    group: &Group,
    rule: &str,
    config: &RuleConfig,
    dense: &[Vec<f64>],
) -> Result<(), Trouble> {
    let whole = over_the_engine(group, rule, config)?;
    // The lanes are the same ones, and their rounds begin again: a group of its own.
    let all: Vec<Rank> = (0..group.size() as u32).map(Rank).collect();
    let buckets = under_buckets(&group.subgroup(&all, "again")?, rule, config)?;
    let matrix = &dense[group.rank().idx()];
    if !whole.iter().all(|x| x.is_finite()) {
        return Err(format!("{whole:?}").into());
    }
    if !same_bits(&whole, &buckets) {
        return Err(format!("as a whole {whole:?}, in buckets {buckets:?}").into());
    }
    match same_bits(&whole, matrix) {
        true => Ok(()),
        false => Err(format!("over the engine {whole:?}, by matrix {matrix:?}").into()),
    }
}

/// What any rank of any world has to say against these rules.
fn complaints<'a>(rules: impl Iterator<Item = (&'a str, RuleConfig)>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, config) in rules {
        for n in [1, 2, 3, 5, 7, 8] {
            let dense = over_a_matrix(name, &config, n);
            let told = gaggle::local(n, |group| complaint(&group, name, &config, &dense));
            for (r, told) in told.expect("ranks as threads").into_iter().enumerate() {
                if let Err(e) = told {
                    wrong.push(format!("{name}, rank {r} of {n}: {e}"));
                }
            }
        }
    }
    wrong
}

#[test]
fn every_rule_gives_equal_digits_under_matrix_engine_and_three_buckets() {
    let all = CATALOGUE
        .into_iter()
        .map(|Entry { name, .. }| (name, config(name)));
    let wrong = complaints(all);
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// The default one is among those above.
#[test]
fn every_compressor_gives_equal_digits_under_matrix_engine_and_three_buckets() {
    let all = ["identity", "random-k:0.2", "sign", "qsgd:3"].map(|name| {
        let compressor = Compressor::by_name(name).expect("there is one");
        let config = RuleConfig {
            compressor,
            ..config("choco")
        };
        ("choco", config)
    });
    let wrong = complaints(all.into_iter());
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// Payload bytes that this rank has sent in each of the first steps of a rule on 1000 f32, over a ring.
fn bytes_of_steps(group: &Group, rule: &str, config: &RuleConfig) -> Result<Vec<u64>, Trouble> {
    const N: usize = 1000;
    let mixer = NeighbourMixer::<f32>::new(group.clone(), by_name("ring", group.size())?)?;
    let meter = mixer.meter();
    let mut driver = Decentralised::unchecked(rule_by_name(rule, config)?, Box::new(mixer), N);
    let mut x: Vec<f32> = (0..N).map(|k| start(k) as f32).collect();
    let mut sent = vec![];
    for _ in 0..6 {
        let before = meter.report();
        driver.before_forward(LR, &mut x)?;
        let g: Vec<f32> = x.iter().map(|x| x - group.rank().0 as f32).collect();
        driver.step(LR, &mut x, &g)?;
        sent.push(meter.report().since(&before).bytes_sent);
    }
    Ok(sent)
}

/// What each rank sends in each step, where everything goes by messages.
fn bytes_per_step(world: usize, rule: &str, config: &RuleConfig) -> Vec<Vec<u64>> {
    let mut by_messages = EngineConfig::default();
    by_messages.fusion = false;
    let told = gaggle::local_with(world, by_messages, |group| {
        bytes_of_steps(&group, rule, config)
    });
    let told = told.expect("ranks as threads").into_iter();
    told.map(|sent| sent.unwrap_or_else(|e| panic!("{rule}: {e}")))
        .collect()
}

#[test]
fn compressed_messages_take_as_many_bytes_as_they_need() {
    for world in [1, 2, 3, 5, 7, 8] {
        let degree = (world as u64 - 1).min(2);
        let plain = bytes_per_step(world, "dsgd-atc", &RuleConfig::default());
        assert_eq!(plain, vec![[degree * 4000; 6]; world], "{world}");
        for (compressor, bytes) in [
            ("identity", 4000),
            // 100 places and values.
            ("top-k:0.1", 100 * 8),
            // 10 values, and whose they are.
            ("random-k:0.01", 4 + 10 * 4),
            // A bit each, and a size.
            ("sign", 125 + 3 + 4),
            // Numbers from −7 to 7 in half a byte, and a norm.
            ("qsgd:7", 500 + 8),
        ] {
            let config = RuleConfig {
                compressor: Compressor::by_name(compressor).expect("there is one"),
                ..RuleConfig::default()
            };
            let sent = bytes_per_step(world, "choco", &config);
            let want = vec![[degree * bytes; 6]; world];
            assert_eq!(sent, want, "{compressor} of {world}");
        }
        let config = RuleConfig {
            warm_up: 2,
            ..RuleConfig::default()
        };
        let sent = bytes_per_step(world, "one-bit-adam", &config);
        // Whatever the plan of a mean, all together send many times more for it than for the signs.
        let signs = (world as u64 - 1) * (125 + 3 + 4);
        assert!(sent.iter().all(|s| s[2..] == [signs; 4]), "{sent:?}");
        let warm: u64 = sent.iter().map(|s| s[0]).sum();
        assert!(warm >= 4 * signs * world as u64, "{sent:?}");
    }
}

/// A ring in one direction whose senders and receivers both have weights of their own.
#[derive(Clone, Copy)]
struct Shares(usize);

impl Topology for Shares {
    fn name(&self) -> &str {
        "shares"
    }
    fn world(&self) -> usize {
        self.0
    }
    fn period(&self) -> Option<u64> {
        Some(1)
    }
    fn round(&self, rank: Rank, _t: u64, out: &mut Round) {
        let (n, r) = (self.0 as u32, rank.0);
        let others = |ahead: u32, weight: f64| match n {
            1 => vec![],
            _ => vec![(Rank((r + ahead) % n), weight)],
        };
        *out = Round {
            from: others(n - 1, 0.25 + f64::from(r) / 16.0),
            to: others(1, 0.5 - f64::from(r) / 32.0),
            keep: 0.5 + f64::from(r) / 8.0,
            form: Form::Sum,
        };
    }
}

/// What comes of messages one by one, from neighbours and from everybody, and the weights beside them.
type OneByOne = [(Vec<f64>, Vec<f64>); 2];

const EACH: [With; 2] = [With::EachNeighbour, With::EachMember];

fn begin_one_by_one(mixer: &mut dyn Mixer<f64>) -> Result<(), Trouble> {
    for (slot, with) in EACH.into_iter().enumerate() {
        let exchange = Exchange::new(with, &Cx::at(0, 0.1)).slot(slot);
        let (n, rank) = (3 * mixer.messages(&exchange), f64::from(mixer.rank().0));
        // Any bits: a signalling NaN among them.
        let values = [rank + 0.1, f64::from_bits(0x7ff0_0000_0000_0001), -rank];
        for (to, value) in mixer.outbox(slot, n).iter_mut().zip(values.iter().cycle()) {
            *to = *value;
        }
        mixer.start(&exchange, 0)?;
    }
    Ok(())
}

fn end_one_by_one(mixer: &mut dyn Mixer<f64>) -> Result<OneByOne, Trouble> {
    for slot in 0..EACH.len() {
        mixer.finish(slot)?;
    }
    Ok([0, 1].map(|slot| (mixer.mean(slot).to_vec(), mixer.weights(slot).to_vec())))
}

#[test]
fn messages_one_by_one_keep_their_bits_and_bring_their_weights() {
    for n in [1, 2, 3, 5, 7, 8] {
        let mut dense = testing::DenseMixer::<f64>::of(Arc::new(Shares(n)));
        for mixer in &mut dense {
            begin_one_by_one(mixer).expect("begins");
        }
        let told = gaggle::local(n, |group| {
            let mut mixer = NeighbourMixer::new(group, Box::new(Shares(n)))?;
            begin_one_by_one(&mut mixer)?;
            end_one_by_one(&mut mixer)
        });
        let told = told.expect("ranks as threads").into_iter();
        for (r, (told, dense)) in told.zip(&mut dense).enumerate() {
            let told: OneByOne = told.unwrap_or_else(|e: Trouble| panic!("rank {r} of {n}: {e}"));
            let by_matrix = end_one_by_one(dense).expect("ends");
            for ((values, weights), (want, want_weights)) in told.iter().zip(&by_matrix) {
                assert!(same_bits(values, want), "rank {r} of {n}");
                assert_eq!(weights, want_weights, "rank {r} of {n}");
            }
            let [(from_neighbours, weights), (from_all, none)] = told;
            let (own, senders) = (0.5 + r as f64 / 8.0, usize::from(n > 1));
            assert_eq!((weights[0], weights.len()), (own, 1 + senders));
            assert_eq!(from_neighbours.len(), 3 * senders);
            if let [_, weight] = weights[..] {
                let sender = ((r + n - 1) % n) as f64;
                let (a, b) = (0.25 + r as f64 / 16.0, 0.5 - sender / 32.0);
                assert_eq!((weight, from_neighbours[0]), (a * b, sender + 0.1));
            }
            let firsts: Vec<f64> = from_all.iter().step_by(3).copied().collect();
            let ranks: Vec<f64> = (0..n).map(|r| r as f64 + 0.1).collect();
            assert_eq!((firsts, none), (ranks, vec![]));
        }
    }
}

/// Some steps, and on until nothing is under way.
fn on(driver: &mut Decentralised<f64>, rank: usize, x: &mut [f64]) -> Result<State, Trouble> {
    for n in 0.. {
        driver.before_forward(LR, x)?;
        let g = gradients(rank, x);
        driver.step(LR, x, &g)?;
        if n >= 5 {
            match driver.save() {
                Err(StateError::InFlight { .. }) => {}
                saved => return Ok(saved?),
            }
        }
    }
    Err("steps without end".into())
}

/// Back to a saved state, twice the same way; then another run of the same rule among the same ranks.
fn back_and_again(group: &Group, rule: &str) -> Result<(), Trouble> {
    let rank = group.rank().idx();
    let start: Vec<f64> = (0..total()).map(start).collect();
    let driver = || -> Result<Decentralised<f64>, Trouble> {
        let made = rule_by_name(rule, &config(rule))?;
        Ok(Decentralised::unchecked(made, mixer(group, rule), total()))
    };
    let (mut first, mut x) = (driver()?, start.clone());
    let saved = on(&mut first, rank, &mut x)?;
    let there = x.clone();
    on(&mut first, rank, &mut x)?;
    let once = std::mem::replace(&mut x, there.clone());
    first.load(&saved)?;
    on(&mut first, rank, &mut x)?;
    if !same_bits(&once, &x) {
        return Err(format!("at first {once:?}, then {x:?}").into());
    }
    drop(first);
    let (mut second, mut y) = (driver()?, start);
    on(&mut second, rank, &mut y)?;
    match same_bits(&there, &y) {
        true => Ok(()),
        false => Err(format!("one run {there:?}, another {y:?}").into()),
    }
}

#[test]
fn a_run_goes_back_over_the_engine_and_another_follows_it() {
    let mut wrong = Vec::new();
    for Entry { name, .. } in CATALOGUE {
        for n in [1, 3] {
            let told = gaggle::local(n, |group| back_and_again(&group, name));
            for (r, told) in told.expect("ranks as threads").into_iter().enumerate() {
                if let Err(e) = told {
                    wrong.push(format!("{name}, rank {r} of {n}: {e}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
