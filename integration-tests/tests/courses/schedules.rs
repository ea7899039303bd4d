//! Step sizes that follow a schedule: every step uses its own.

use crate::{
    differences,
    plain::{Plain, RULES, Weights, distance, gradient},
};
use gaggle::{
    Rank,
    optim::{Decay, RuleConfig, Schedule},
    topology::{self, Graph},
};
use gaggle_integration_tests::drive::{Case, named};
use std::sync::Arc;

const STEPS: u64 = 24;

/// A schedule of the library, and the same step sizes by plain arithmetic.
type Curve = (Schedule, fn(u64) -> f64);

fn curves() -> [Curve; 3] {
    let schedule = |warm_up, decay| Schedule::new(0.05, warm_up, decay).expect("a schedule");
    let milestones = vec![6, 15];
    let waves = Decay::Cosine {
        end: 20,
        floor: 0.1,
    };
    [
        (
            schedule(
                0,
                Decay::Steps {
                    milestones,
                    factor: 0.25,
                },
            ),
            |k| match k {
                0..6 => 0.05,
                6..15 => 0.0125,
                _ => 0.003125,
            },
        ),
        (schedule(0, waves), |k| {
            let part = (k as f64 / 20.0).min(1.0);
            0.05 * (0.1 + 0.9 * (1.0 + (std::f64::consts::PI * part).cos()) / 2.0)
        }),
        (schedule(8, Decay::Constant), |k| {
            0.05 * ((k + 1) as f64).min(8.0) / 8.0
        }),
    ]
}

/// The rule over the graph that it is for, and that graph's matrix.
fn over_its_graph(rule: &'static str, n: usize) -> (Case, Weights) {
    let config = RuleConfig {
        period: ["local-sgd", "slowmo"].contains(&rule).then_some(4),
        ..RuleConfig::default()
    };
    let case = Case {
        config,
        graph: named("lazy-ring"),
        steps: STEPS,
        ..Case::of(rule)
    };
    match rule {
        "sgp" => (
            Case {
                graph: Arc::new(pushed),
                ..case
            },
            Weights::pushed(n),
        ),
        _ => (case, Weights::ring(n).lazy()),
    }
}

/// i → i + 1, and 0 → n/2, with the senders' shares.
fn pushed(n: usize) -> Box<dyn gaggle::core::Topology> {
    let ring = (0..n as u32).map(|i| (Rank(i), Rank((i + 1) % n as u32)));
    let chord = (n > 3).then_some((Rank(0), Rank(n as u32 / 2)));
    let graph = Graph::new(n, ring.filter(|_| n > 1).chain(chord)).expect("a graph");
    let weighted = graph.table("pushed", topology::Weights::Push);
    Box::new(weighted.expect("push weights"))
}

#[test]
fn rules_follow_their_formulas_under_every_schedule() {
    let mut wrong = vec![];
    for rule in RULES {
        for n in [1, 2, 3, 5, 8] {
            let (case, w) = over_its_graph(rule, n);
            let run = |gamma: &dyn Fn(u64) -> f64| {
                let (steps, w) = (STEPS, w.clone());
                Plain {
                    n,
                    steps,
                    w,
                    gamma,
                    gradient: &gradient,
                }
                .run(rule)
            };
            let constant = run(&|_| 0.05);
            for (schedule, plain) in curves() {
                let want = run(&plain);
                // The schedule makes a difference, far above what is tolerated.
                assert!(distance(&want, &constant) > 1e-3, "{rule} of {n}");
                let case = Case {
                    lr: Arc::new(move |k| schedule.lr(k)),
                    ..case.clone()
                };
                wrong.extend(differences(&case, &want));
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
