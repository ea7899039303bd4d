//! What is found out before anything is trained: whether every algorithm goes with the topology, and what a run would otherwise hide.

use crate::{
    error::{DemoError, Refusal},
    settings::{ALL_REDUCE, DEFAULT_TOPOLOGY, Settings},
};
use gaggle::{
    Rank,
    core::{Place, Rule, Stability, Topology, With},
    optim::Pace,
    topology::facts,
};

/// Whom an algorithm exchanges something with, within a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meets {
    /// Its neighbours in the topology, at least once.
    pub(crate) neighbours: bool,
    /// Whomever.
    pub(crate) anybody: bool,
}

/// What is known before the first step.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// For the user, one by one.
    pub(crate) warnings: Vec<String>,
    /// For each algorithm, in order.
    pub(crate) meets: Vec<Meets>,
}

/// Checks every algorithm with this topology for a run of `steps` steps. Pure: every rank finds the same.
///
/// # Errors
/// Settings that make no rule; or all pairs that would diverge, together.
pub(crate) fn check(
    settings: &Settings,
    topology: &dyn Topology,
    parameters: usize,
    steps: u64,
) -> Result<Checked, DemoError> {
    let (facts, name) = (facts(topology), &settings.topology);
    let place = Place {
        rank: Rank(0),
        world: topology.world(),
    };
    let (mut checked, mut reasons) = (Checked::default(), vec![]);
    for algorithm in &settings.algorithms {
        if algorithm == ALL_REDUCE {
            checked.meets.push(Meets {
                neighbours: false,
                anybody: true,
            });
            continue;
        }
        let config = settings.rule_config(algorithm);
        let mut rule = settings.rules.make(algorithm, &config)?;
        rule.init(parameters, place);
        match rule.check(&facts, settings.lr) {
            Err(why) => reasons.push(Refusal {
                algorithm: algorithm.clone(),
                topology: name.clone(),
                why,
            }),
            Ok(Stability::Marginal(what) | Stability::Unchecked(what)) => {
                let warning = format!("{algorithm} over {name}: {what}");
                checked.warnings.push(warning);
            }
            Ok(_) => {}
        }
        let meets = met(&*rule, steps);
        if !meets.anybody && place.world > 1 {
            checked.warnings.push(format!(
                "{algorithm} exchanges nothing within the {steps} steps of this run; try a smaller --period, or more --epochs"
            ));
        }
        checked.meets.push(meets);
    }
    if !reasons.is_empty() {
        return Err(DemoError::Refused { reasons });
    }
    if name != DEFAULT_TOPOLOGY && !checked.meets.iter().any(|m| m.neighbours) {
        checked.warnings.push(format!(
            "--topology {name}: {} among everybody, and not among neighbours",
            match &settings.algorithms[..] {
                [one] => format!("{one} averages"),
                all => format!("{} average", all.join(", ")),
            }
        ));
    }
    Ok(checked)
}

/// Rules show what they are within as many steps.
const SHOWN: u64 = 10_000;

fn met(rule: &dyn Rule<f32>, steps: u64) -> Meets {
    let (mut meets, mut list) = (Meets::default(), vec![]);
    let mut pace = Pace::new(rule.period().unwrap_or(1));
    for step in 0..steps {
        let cx = pace.cx(0.0);
        if cx.mixes {
            list.clear();
            rule.exchanges(&cx, &mut list);
            let near = |with| matches!(with, With::Neighbours | With::EachNeighbour);
            meets.anybody |= !list.is_empty();
            meets.neighbours |= list.iter().any(|e| near(e.with));
        }
        if meets.neighbours || (meets.anybody && step >= SHOWN) {
            break;
        }
        pace.advance();
    }
    meets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Args;
    use clap::Parser;

    fn checked(flags: &str, world: usize) -> Result<Checked, DemoError> {
        let flags = std::iter::once("gaggle-demo").chain(flags.split_whitespace());
        let settings = Args::parse_from(flags).settings().unwrap();
        let topology = settings.topology(world).unwrap();
        check(&settings, &*topology, 10, 100)
    }

    #[test]
    fn all_pairs_that_would_diverge_are_told_at_once() {
        let e = checked(
            "--algorithm all,relaysgd,d2,dsgd-atc --topology static-exp",
            8,
        );
        let text = e.unwrap_err().to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            (lines[0], lines.len()),
            ("nothing was trained:", 3),
            "{text}"
        );
        assert!(
            lines[1].starts_with("  relaysgd over static-exp: unstable: "),
            "{text}"
        );
        assert!(
            lines[2].starts_with("  d2 over static-exp: unstable: "),
            "{text}"
        );
        let one = checked("--algorithm d2 --topology static-exp", 8).unwrap_err();
        assert!(
            one.to_string()
                .starts_with("d2 over static-exp: unstable: ")
        );
    }

    #[test]
    fn who_meets_whom_is_known_before() {
        let meets = |flags: &str| checked(flags, 3).unwrap().meets;
        let (neighbours, everybody) = (
            Meets {
                neighbours: true,
                anybody: true,
            },
            Meets {
                neighbours: false,
                anybody: true,
            },
        );
        let all = meets("--algorithm allreduce,local-sgd,dmsgd,gossip-pga,one-bit-adam");
        assert_eq!(
            all,
            [everybody, everybody, neighbours, neighbours, everybody]
        );
        let warned = |flags: &str, world| checked(flags, world).unwrap().warnings;
        let alone = warned("--algorithm diloco --period 101", 3);
        assert!(
            alone[0].starts_with("diloco exchanges nothing within the 100 steps"),
            "{alone:?}"
        );
        assert_eq!(warned("--algorithm diloco --period 100", 3), [""; 0]);
        assert_eq!(warned("--algorithm diloco --period 101", 1), [""; 0]);
        let idle = warned("--algorithm local-sgd,allreduce --topology ring", 3);
        let want = "--topology ring: local-sgd, allreduce average among everybody, and not among neighbours";
        assert_eq!(idle, [want]);
    }
}
