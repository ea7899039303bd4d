//! What rules do when nothing is set, where their sources differ from each other.

use gaggle_core::{At, Cx, Local, MixedMean, Place, Rank, Rule};
use gaggle_optim::{LocalKind, RuleConfig, rule_by_name};

/// x after `steps` steps alone, from 0 with gradients of 1e-4, 2e-4, …
fn alone(mut rule: Box<dyn Rule<f64>>, steps: u64) -> f64 {
    rule.init(
        1,
        Place {
            rank: Rank(0),
            world: 1,
        },
    );
    let mut x = [0.0];
    for step in 0..steps {
        let (g, cx) = ([1e-4 * (step + 1) as f64], Cx::at(step, 0.1));
        for at in At::ALL {
            let mut list = Vec::new();
            rule.exchanges(&cx, &mut list);
            let due = list.iter().filter(|e| e.due == at);
            let mut sent = Vec::new();
            for e in due {
                let mut out = vec![0.0; e.len(1)];
                let g: &[f64] = if e.known == At::BeforeForward {
                    &[]
                } else {
                    &g
                };
                rule.emit(
                    &cx,
                    e.slot,
                    Local {
                        at: 0..1,
                        x: &mut x,
                        g,
                    },
                    &mut out,
                );
                sent.push((e.slot, out));
            }
            let means: Vec<_> = sent
                .iter()
                .map(|(slot, values)| MixedMean {
                    slot: *slot,
                    at: 0..1,
                    values,
                    weights: &[],
                })
                .collect();
            let g: &[f64] = if at == At::BeforeForward { &[] } else { &g };
            rule.absorb(
                &cx,
                at,
                Local {
                    at: 0..1,
                    x: &mut x,
                    g,
                },
                &means,
            );
        }
    }
    x[0]
}

fn with(name: &str, config: RuleConfig) -> f64 {
    alone(rule_by_name(name, &config).expect("in range"), 5)
}

/// Each with `None`, with what its source has, and with another rule's value, which it must differ from.
#[test]
fn defaults_are_those_of_each_rules_source() {
    let d = RuleConfig::default();
    let eps = |eps| RuleConfig {
        eps: Some(eps),
        ..d
    };
    let beta2 = |beta2| RuleConfig {
        beta2: Some(beta2),
        ..d
    };
    for (name, own, other) in [
        ("damsgrad", eps(1e-6), eps(1e-8)),
        ("dadam", eps(1e-8), eps(1e-6)),
        ("dadamw-atc", eps(1e-8), eps(1e-6)),
        ("dadamw-atc", beta2(0.999), beta2(0.95)),
    ] {
        assert_eq!(with(name, d), with(name, own), "{name}");
        assert_ne!(with(name, d), with(name, other), "{name}");
    }
    let local = |local, config: RuleConfig| RuleConfig {
        local: Some(local),
        ..config
    };
    for (kind, own, other) in [
        (LocalKind::Adagrad, eps(1e-10), eps(1e-8)),
        (LocalKind::RmsProp, eps(1e-8), eps(1e-10)),
    ] {
        let x = with("dsgd-atc", local(kind, d));
        assert_eq!(x, with("dsgd-atc", local(kind, own)), "{kind:?}");
        assert_ne!(x, with("dsgd-atc", local(kind, other)), "{kind:?}");
    }
}

/// The inner steps of DiLoCo remember squares for 20 steps, Lion its momentum for 100; after gradients that change sign they show.
#[test]
fn inner_adamw_and_lion_have_their_own_memory() {
    let d = RuleConfig::default();
    let beta2 = |beta2, config: RuleConfig| RuleConfig {
        beta2: Some(beta2),
        ..config
    };
    let lion = RuleConfig {
        local: Some(LocalKind::Lion),
        ..d
    };
    for (name, config, own) in [
        ("diloco", d, 0.95),
        (
            "streaming-diloco",
            RuleConfig {
                delay: 0,
                fragments: 1,
                ..d
            },
            0.95,
        ),
        ("noloco", d, 0.999),
        (
            "diloco",
            RuleConfig {
                local: Some(LocalKind::Lion),
                ..d
            },
            0.99,
        ),
        ("dsgd-atc", lion, 0.99),
    ] {
        let run = |config: &RuleConfig| {
            let mut state = Vec::new();
            let mut rule = rule_by_name::<f64>(name, config).unwrap();
            rule.init(
                1,
                Place {
                    rank: Rank(0),
                    world: 1,
                },
            );
            let mut x = [0.0];
            for step in 0..9 {
                let cx = Cx {
                    mixes: false,
                    ..Cx::at(step, 0.1)
                };
                rule.absorb(
                    &cx,
                    At::BeforeForward,
                    Local {
                        at: 0..1,
                        x: &mut x,
                        g: &[],
                    },
                    &[],
                );
                let g = [(2.3 * step as f64).cos()];
                rule.absorb(
                    &cx,
                    At::AfterGradient,
                    Local {
                        at: 0..1,
                        x: &mut x,
                        g: &g,
                    },
                    &[],
                );
            }
            rule.state(&mut |_, v| state.extend(v.iter().copied()));
            (x, state)
        };
        assert_eq!(run(&config), run(&beta2(own, config)), "{name}");
        assert_ne!(run(&config), run(&beta2(0.5, config)), "{name}");
    }
}
