//! What other systems' optimizers got wrong, or were found to be right about: update rules over the engine.

use super::{Case, Scene, Worlds, case, expect};
use crate::work::Trouble;
use gaggle::{
    ddp::{BucketConfig, NeighbourMixer, ParamSpec, RuleDdp},
    optim::{Decentralised, LocalKind, RuleConfig, rule_by_name},
    topology::by_name,
};

pub(super) const CASES: &[Case] = &[
    case!(
        "trial_07",
        streaming_fragments_at_once,
        Worlds::All,
        "torchft's golden numbers, delay 0, α 0: globals −11, −35 and −23, −47",
        |s| golden(s, 0, 0.0, [&[-11.0, -35.0], &[-23.0, -47.0]], Shown::Global)
    ),
    case!(
        "trial_07",
        streaming_fragments_half,
        Worlds::All,
        "α ½: −8, −24.5, −40.25 and −17, −32",
        |s| golden(
            s,
            0,
            0.5,
            [&[-8.0, -24.5, -40.25], &[-17.0, -32.0]],
            Shown::Own
        )
    ),
    case!(
        "trial_07",
        streaming_globals_half,
        Worlds::All,
        "α ½: globals −11, −29 and −23, −35",
        |s| golden(s, 0, 0.5, [&[-11.0, -29.0], &[-23.0, -35.0]], Shown::Global)
    ),
    case!(
        "trial_07",
        streaming_fragments_late,
        Worlds::All,
        "delay 1: −7, −27, −47",
        |s| golden(s, 1, 0.0, [&[-7.0, -27.0, -47.0], &[]], Shown::Own)
    ),
    case!(
        "trial_14",
        equal_ranks_walk_as_one,
        Worlds::All,
        "push-sum and every plain rule, gradient 1: −1, −2, −3, −4",
        equal_ranks
    ),
    case!(
        "trial_14",
        micro_batches_all_count,
        Worlds::All,
        "gradients 1 and 10 accumulated: −11, with buckets and without",
        micro_batches
    ),
];

#[derive(Clone, Copy)]
enum Shown {
    /// A fragment's parameter on this rank.
    Own,
    /// What all agree on.
    Global,
}

fn mixer(s: &Scene) -> Result<Box<NeighbourMixer<f64>>, Trouble> {
    let topology = by_name("one-peer-exp", s.group.size())?;
    let mixer = NeighbourMixer::on_lanes(s.group.clone(), topology, s.next_lanes())?;
    Ok(Box::new(mixer))
}

/// Two fragments of one weight each, start 1, gradient 2, inner SGD with step 1, outer SGD with step 2, every 6 steps; after each outer step of a fragment its value is compared, as far as the numbers go.
fn golden(
    s: &Scene,
    delay: u64,
    alpha: f64,
    wanted: [&[f64]; 2],
    shown: Shown,
) -> Result<(), Trouble> {
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
        ..RuleConfig::default()
    };
    let rule = rule_by_name("streaming-diloco", &config)?;
    let mut driver = Decentralised::unchecked(rule, mixer(s)?, 2);
    let mut x = [1.0; 2];
    let mut seen = [vec![], vec![]];
    for step in 1..=15 {
        driver.before_forward(1.0, &mut x)?;
        driver.step(1.0, &mut x, &[2.0; 2])?;
        if step % 3 == 0 {
            let fragment = usize::from(step % 6 == 0);
            let mut value = x[fragment];
            if let Shown::Global = shown {
                driver.state(&mut |name, vector| {
                    if name == "phi" {
                        value = vector[fragment];
                    }
                });
            }
            seen[fragment].push(value);
        }
    }
    for (seen, wanted) in seen.iter().zip(wanted) {
        expect::exactly(&seen[..wanted.len()], wanted)?;
    }
    Ok(())
}

/// Rules that are plain descent where all ranks hold the same.
const PLAIN: [&str; 10] = [
    "allreduce-sgd",
    "dsgd-atc",
    "dsgd-awc",
    "dsgd-cta",
    "sgp",
    "d2",
    "exact-diffusion",
    "diging",
    "gt-semi",
    "gt-atc",
];

/// BlueFog's push-sum optimizer gave −1, −1.5, −2, −2.5.
fn equal_ranks(s: &Scene) -> Result<(), Trouble> {
    for name in PLAIN {
        let rule = rule_by_name(name, &RuleConfig::default())?;
        let mut driver = Decentralised::unchecked(rule, mixer(s)?, 1);
        let mut x = [0.0];
        let mut seen = vec![];
        for _ in 0..4 {
            driver.before_forward(1.0, &mut x)?;
            driver.step(1.0, &mut x, &[1.0])?;
            seen.push(x[0]);
        }
        expect::exactly(&seen, &[-1.0, -2.0, -3.0, -4.0]).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(())
}

/// BlueFog's averaging with accumulation kept only the last gradient: −10.
fn micro_batches(s: &Scene) -> Result<(), Trouble> {
    for name in PLAIN {
        let rule = || rule_by_name(name, &RuleConfig::default());
        let mut whole = Decentralised::unchecked(rule()?, mixer(s)?, 2);
        let mut x = [0.0; 2];
        whole.before_forward(1.0, &mut x)?;
        whole.accumulate(&[1.0; 2])?;
        whole.step(1.0, &mut x, &[10.0; 2])?;
        let specs = [ParamSpec::new("a", []), ParamSpec::new("b", [])];
        let each = BucketConfig {
            cap_bytes: 0,
            first_bytes: 0,
        };
        let mut buckets = RuleDdp::unchecked(&specs, &each, rule()?, mixer(s)?, vec![0.0; 2])?;
        buckets.set_micro_batches(2)?;
        buckets.begin_step(1.0)?;
        for g in [1.0, 10.0] {
            buckets.ready(1, &[g])?;
            buckets.ready(0, &[g])?;
        }
        for x in [&x, buckets.finish()?] {
            expect::exactly(x, &[-11.0; 2]).map_err(|e| format!("{name}: {e}"))?;
        }
    }
    Ok(())
}
