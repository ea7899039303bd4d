//! One rule, whatever drives it: as a whole over a matrix of weights, as a whole over the engine, and under data-parallel buckets.

use gaggle::{
    EngineConfig, Group, Rank,
    core::{Cx, Exchange, Form, Mixer, Round, Topology, With},
    ddp::NeighbourMixer,
    optim::{
        CATALOGUE, Clip, Compressor, Decentralised, RuleConfig, State, StateError, rule_by_name,
        testing,
    },
    topology::{Graph, OnePeer, Weights, by_name},
};
use gaggle_integration_tests::{
    drive::{self, Case, LR, alone, among, complaints, config, same_bits},
    work::Trouble,
};
use std::sync::Arc;

const WORLDS: [usize; 6] = [1, 2, 3, 5, 7, 8];

fn every_rule() -> impl Iterator<Item = Case> {
    CATALOGUE.iter().map(|entry| Case::of(entry.name))
}

fn nobody_complains(wrong: &[String]) {
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_rule_gives_equal_digits_under_matrix_engine_and_three_buckets() {
    nobody_complains(&complaints::<f64>(&WORLDS, every_rule()));
}

#[test]
fn every_rule_gives_equal_digits_of_f32() {
    nobody_complains(&complaints::<f32>(&WORLDS, every_rule()));
}

/// Over neighbours that change from round to round; where a rule is for others, it has the same digits all the same.
#[test]
fn every_rule_gives_equal_digits_over_one_peer_graphs() {
    let over_one_peer = |case: Case| Case {
        graph: drive::named("one-peer-exp"),
        ..case
    };
    // Sums along a tree want a tree.
    let all = || {
        every_rule()
            .filter(|case| case.rule != "relaysgd")
            .map(over_one_peer)
    };
    nobody_complains(&complaints::<f64>(&WORLDS, all()));
    let few = all().filter(|case| case.rule.starts_with("dmsgd"));
    nobody_complains(&complaints::<f32>(&WORLDS, few));
}

/// i → i + 1, and 0 → n/2, with the senders' shares: columns sum to one, rows do not.
fn pushed(n: usize) -> Box<dyn Topology> {
    let ring = (0..n as u32).map(|i| (Rank(i), Rank((i + 1) % n as u32)));
    let chord = (n > 3).then_some((Rank(0), Rank(n as u32 / 2)));
    let edges = ring.filter(|_| n > 1).chain(chord);
    let graph = Graph::new(n, edges).expect("a graph");
    Box::new(graph.table("pushed", Weights::Push).expect("push weights"))
}

#[test]
fn every_rule_gives_equal_digits_over_push_weights() {
    let over_push = |case: Case| Case {
        graph: Arc::new(pushed),
        ..case
    };
    let all = || {
        every_rule()
            .filter(|case| case.rule != "relaysgd")
            .map(over_push)
    };
    nobody_complains(&complaints::<f64>(&WORLDS, all()));
    let few = all().filter(|case| ["sgp", "push-diging"].contains(&case.rule));
    nobody_complains(&complaints::<f32>(&WORLDS, few));
}

/// Each rank of a star with another one of its neighbours, by the senders' shares: a leaf that the centre does not send to in a round has a way there and none back.
fn pushed_one_peer(n: usize) -> Box<dyn Topology> {
    let edges = (1..n as u32).map(|leaf| (Rank(0), Rank(leaf)));
    let star = Graph::undirected(n, edges).expect("a graph");
    Box::new(OnePeer::over("pushed-star", &star, Weights::Push).expect("push weights"))
}

#[test]
fn push_sums_have_equal_digits_where_a_way_leads_there_and_none_back() {
    for push_delay in [1, 2] {
        let over_star = |case: Case| Case {
            graph: Arc::new(pushed_one_peer),
            config: RuleConfig {
                push_delay,
                ..case.config
            },
            ..case
        };
        let some = every_rule().filter(|case| ["sgp", "osgp"].contains(&case.rule));
        nobody_complains(&complaints::<f64>(&WORLDS, some.map(over_star)));
    }
}

/// Norms are over all parameters: buckets do not change them.
#[test]
fn every_rule_gives_equal_digits_of_clipped_gradients() {
    for clip in [Clip::Norm(1.5), Clip::Value(0.4)] {
        let clipped = |case: Case| Case {
            config: RuleConfig {
                clip: Some(clip),
                ..case.config
            },
            ..case
        };
        nobody_complains(&complaints::<f64>(
            &[1, 2, 3, 5, 8],
            every_rule().map(clipped),
        ));
    }
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
        Case {
            config,
            ..Case::of("choco")
        }
    });
    nobody_complains(&complaints::<f64>(&WORLDS, all.into_iter()));
}

/// Payload bytes that this rank has sent in each of the first steps of a rule on 1000 f32, over a ring.
fn bytes_of_steps(group: &Group, rule: &str, config: &RuleConfig) -> Result<Vec<u64>, Trouble> {
    const N: usize = 1000;
    let mixer = NeighbourMixer::<f32>::new(group.clone(), by_name("ring", group.size())?)?;
    let meter = mixer.meter();
    let mut driver = Decentralised::unchecked(rule_by_name(rule, config)?, Box::new(mixer), N);
    let mut x: Vec<f32> = (0..N).map(|k| (k as f32 * 0.7).sin()).collect();
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
        alone(driver, rank, LR, x)?;
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
fn back_and_again(group: &Group, case: &Case) -> Result<(), Trouble> {
    let (rank, start) = (group.rank().idx(), drive::start());
    let (mut first, mut x) = (case.driver(group)?, start.clone());
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
    let (mut second, mut y) = (case.driver(group)?, start);
    on(&mut second, rank, &mut y)?;
    match same_bits(&there, &y) {
        true => Ok(()),
        false => Err(format!("one run {there:?}, another {y:?}").into()),
    }
}

#[test]
fn a_run_goes_back_over_the_engine_and_another_follows_it() {
    let mut wrong = Vec::new();
    for case in every_rule() {
        for n in [1, 3] {
            let told = among(n, |group| back_and_again(group, &case));
            wrong.extend(
                told.err()
                    .map(|e| format!("{} in {n} ranks: {e}", case.rule)),
            );
        }
    }
    nobody_complains(&wrong);
}

/// Saved as bytes in mid-run, and loaded into new rules over other links by ranks that begin: they go on bit for bit where the others would have gone.
fn goes_on_elsewhere(group: &Group, case: &Case) -> Result<(), Trouble> {
    let (rank, mut x) = (group.rank().idx(), drive::start());
    let mut first = case.driver(group)?;
    let saved = on(&mut first, rank, &mut x)?.to_bytes();
    let mut y = x.clone();
    on(&mut first, rank, &mut x)?;
    let all: Vec<Rank> = (0..group.size() as u32).map(Rank).collect();
    let mut second = case.driver(&group.subgroup(&all, "elsewhere")?)?;
    second.load(&State::from_bytes(&saved)?)?;
    on(&mut second, rank, &mut y)?;
    if second.pace() != first.pace() || second.save()? != first.save()? {
        return Err("the states differ in the end".into());
    }
    match same_bits(&x, &y) {
        true => Ok(()),
        false => Err(format!("without a stop {x:?}, with one {y:?}").into()),
    }
}

#[test]
fn every_rule_goes_on_from_its_saved_state_over_the_engine() {
    let mut wrong = Vec::new();
    for case in every_rule() {
        for n in [2, 3, 5] {
            let told = among(n, |group| goes_on_elsewhere(group, &case));
            wrong.extend(
                told.err()
                    .map(|e| format!("{} in {n} ranks: {e}", case.rule)),
            );
        }
    }
    nobody_complains(&wrong);
}
