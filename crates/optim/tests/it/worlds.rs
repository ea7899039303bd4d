//! Small worlds in one thread, stepped in turn.

use gaggle_core::{Float, Rule, Topology};
use gaggle_optim::{
    Compressor, Decentralised, RuleConfig, rule_by_name,
    testing::{DenseMixer, lockstep},
    vectors::Graph,
};
use std::sync::Arc;

pub const PLAIN: [&str; 4] = ["allreduce-sgd", "dsgd-atc", "dsgd-awc", "dsgd-cta"];

/// Rules that average over everybody only, or now and then: the graph is not asked for.
pub const GLOBAL: [&str; 10] = [
    "allreduce-sgd",
    "allreduce-msgd",
    "allreduce-adamw",
    "local-sgd",
    "gossip-pga",
    "slowmo",
    "bmuf",
    "diloco",
    "streaming-diloco",
    "one-bit-adam",
];

/// Settings with which everything that a rule does happens within a few steps.
pub fn config(name: &str) -> RuleConfig {
    let rare = matches!(
        name,
        "local-sgd" | "slowmo" | "bmuf" | "diloco" | "streaming-diloco" | "noloco"
    );
    RuleConfig {
        period: rare.then_some(4),
        fragments: 2,
        delay: 1,
        global_period: 3,
        warm_up: 2,
        lookahead_steps: 3,
        // With a shorter memory AdamW's steps do not grow smaller where it is near.
        beta2: rare.then_some(0.999),
        // DAMSGrad's first step is γm/√ε.
        eps: (name == "damsgrad").then_some(1.0),
        compressor: Compressor::TopK { ratio: 0.5 },
        ..RuleConfig::default()
    }
}

pub fn built<T: Float>(name: &str) -> Box<dyn Rule<T>> {
    rule_by_name(name, &config(name)).expect("the name exists")
}

/// A graph on which the rule is right.
pub fn graph(name: &str, ranks: usize) -> Arc<dyn Topology> {
    let kind = if name == "relaysgd" { "chain" } else { "ring" };
    named(kind, ranks)
}

pub fn named(kind: &str, ranks: usize) -> Arc<dyn Topology> {
    Arc::new(Graph::by_name(kind, ranks).expect("there is one"))
}

pub fn ring(n: usize) -> impl Fn(u64, usize, usize) -> f64 + Send + Sync + 'static {
    let ring = Graph::by_name("ring", n).expect("there is one");
    move |t, i, j| ring.weight(t, i, j)
}

pub fn world<T: Float>(name: &str, ranks: usize, n: usize) -> Vec<Decentralised<T>> {
    DenseMixer::of(graph(name, ranks))
        .into_iter()
        .map(|mixer| Decentralised::unchecked(built(name), Box::new(mixer), n))
        .collect()
}

/// One step of all ranks; gradients are taken at the point where the rule wants them.
pub fn step<T: Float>(
    ranks: &mut [Decentralised<T>],
    lr: f64,
    x: &mut [Vec<T>],
    gradient: impl Fn(usize, &[T]) -> Vec<T>,
) {
    lockstep(ranks, lr, x, |r, x, g| g.copy_from_slice(&gradient(r, x))).expect("steps");
}
