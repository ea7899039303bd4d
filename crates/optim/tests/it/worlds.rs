//! Small worlds in one thread, stepped in turn.

use gaggle_core::{At, Float, Rule};
use gaggle_optim::{Decentralised, RuleConfig, rule_by_name, testing::DenseMixer};

pub fn built<T: Float>(name: &str) -> Box<dyn Rule<T>> {
    rule_by_name(name, &RuleConfig::default()).expect("the name exists")
}

pub fn ring(n: usize) -> impl Fn(u64, usize, usize) -> f64 + Send + Sync + 'static {
    move |_t, i, j| match (n, (i + n - j) % n) {
        (2, _) => 0.5,
        (_, 1) => 1.0 / 3.0,
        (n, back) if back == n - 1 => 1.0 / 3.0,
        _ => 0.0,
    }
}

pub fn world<T: Float>(name: &str, ranks: usize, n: usize) -> Vec<Decentralised<T>> {
    DenseMixer::world(ranks, ring(ranks))
        .into_iter()
        .map(|mixer| Decentralised::new(built(name), Box::new(mixer), n))
        .collect()
}

/// One step of all ranks; gradients are taken at the point where the rule wants them.
pub fn step<T: Float>(
    ranks: &mut [Decentralised<T>],
    lr: f64,
    x: &mut [Vec<T>],
    gradient: impl Fn(usize, &[T]) -> Vec<T>,
) {
    let mut g = vec![Vec::new(); x.len()];
    for at in [At::BeforeForward, At::AfterGradient] {
        if at == At::AfterGradient {
            g = x.iter().enumerate().map(|(r, x)| gradient(r, x)).collect();
        }
        for (r, rank) in ranks.iter_mut().enumerate() {
            rank.begin(at, lr, &mut x[r], &g[r]).expect("begins");
        }
        for (r, rank) in ranks.iter_mut().enumerate() {
            rank.end(at, &mut x[r], &g[r]).expect("ends");
        }
    }
}

pub const PLAIN: [&str; 4] = ["allreduce-sgd", "dsgd-atc", "dsgd-awc", "dsgd-cta"];
