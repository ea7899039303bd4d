//! Other neighbours, other weights and another period from one step to the next, over the engine as over a matrix.

use crate::plain::{Rows, Weights, distance, gradient};
use gaggle::{
    Group,
    ddp::NeighbourMixer,
    optim::{CATALOGUE, Decentralised, StateError, testing::DenseMixer},
};
use gaggle_integration_tests::{
    drive::{Case, LR, Make, alone, among, named, same_bits, start, together},
    work::Trouble,
};
use std::sync::Arc;

/// Steps of each phase, at least: on until nothing is under way.
const PHASE: u64 = 5;

/// The graph and the period of each phase.
fn phases(rule: &str) -> Vec<(Make, u64)> {
    let graphs = match rule {
        "noloco" => ["random-matching:3", "random-matching:9", "one-peer-exp"],
        "relaysgd" => ["star", "chain", "binary-tree"],
        _ => ["ring", "one-peer-exp", "lazy-static-exp"],
    };
    let graphs = graphs.into_iter().map(named);
    graphs.zip([1, 3, 2]).collect()
}

/// Whether a phase may end: a message that crosses steps would be left behind.
fn at_rest(driver: &mut Decentralised<f64>) -> bool {
    !matches!(driver.save(), Err(StateError::InFlight { .. }))
}

fn over_the_engine(group: &Group, case: &Case) -> Result<Vec<f64>, Trouble> {
    let (mut driver, mut x) = (case.driver(group)?, start());
    for (i, (graph, period)) in phases(case.rule).into_iter().enumerate() {
        if i > 0 {
            let mixer = NeighbourMixer::new(group.clone(), graph(group.size()))?;
            driver.replace_mixer(Box::new(mixer))?;
        }
        if driver.rule().period().is_some() {
            driver.set_period(period)?;
        }
        let mut steps = 0;
        while steps < PHASE || !at_rest(&mut driver) {
            alone(&mut driver, group.rank().idx(), LR, &mut x)?;
            steps += 1;
        }
    }
    Ok(x)
}

fn over_a_matrix(case: &Case, n: usize) -> Vec<Vec<f64>> {
    let (mut ranks, mut x) = (case.world(n), vec![start(); n]);
    for (i, (graph, period)) in phases(case.rule).into_iter().enumerate() {
        let mixers = DenseMixer::of(Arc::from(graph(n)));
        for (rank, mixer) in ranks.iter_mut().zip(mixers) {
            if i > 0 {
                rank.replace_mixer(Box::new(mixer)).expect("another mixer");
            }
            if rank.rule().period().is_some() {
                rank.set_period(period).expect("another period");
            }
        }
        let mut steps = 0;
        while steps < PHASE || !at_rest(&mut ranks[0]) {
            together(&mut ranks, LR, &mut x);
            steps += 1;
        }
    }
    x
}

#[test]
fn every_rule_changes_its_course_over_the_engine_as_over_a_matrix() {
    let mut wrong = vec![];
    for entry in &CATALOGUE {
        let case = Case {
            graph: phases(entry.name)[0].0.clone(),
            ..Case::of(entry.name)
        };
        for n in [1, 2, 3, 5, 8] {
            let dense = over_a_matrix(&case, n);
            let told = among(n, |group| {
                let x = over_the_engine(group, &case)?;
                match same_bits(&x, &dense[group.rank().idx()]) {
                    true => Ok(()),
                    false => {
                        Err(format!("{x:?}, by matrix {:?}", dense[group.rank().idx()]).into())
                    }
                }
            });
            wrong.extend(told.err().map(|e| format!("{} of {n}: {e}", entry.name)));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// m ← βm + g; x ← x − γm, and in every step that communicates the weights of that phase's graph and of that round.
#[test]
fn momentum_follows_its_formula_through_the_changes() {
    for n in [1, 2, 3, 5, 8] {
        let weights = |phase: usize, round: u64| match phase {
            0 => Weights::ring(n),
            1 => Weights::one_peer(n, round),
            _ => exponential(n).lazy(),
        };
        let (mut x, mut round, mut since) = (Rows(vec![start(); n]), 0, 0);
        let mut m = 0.0 * &x;
        for (phase, period) in [1, 3, 2].into_iter().enumerate() {
            for _ in 0..PHASE {
                m = &(0.9 * &m) + &gradient(&x);
                x = &x - &(LR * &m);
                since += 1;
                if since >= period {
                    x = &weights(phase, round) * &x;
                    (round, since) = (round + 1, 0);
                }
            }
        }
        let case = Case::of("dmsgd");
        let engine = among(n, |group| over_the_engine(group, &case)).expect("all ranks");
        for (how, got) in [("matrix", over_a_matrix(&case, n)), ("engine", engine)] {
            let off = distance(&got, &x.0);
            assert!(off < 1e-12, "{n} over the {how}: off by {off:e}");
        }
    }
}

/// What comes from every i − 2^m, and one's own, in equal parts.
fn exponential(n: usize) -> Weights {
    let rounds = n.next_power_of_two().trailing_zeros();
    let from = |i: usize, j: usize| i == j || (0..rounds).any(|m| (j + (1 << m)) % n == i);
    Weights::of(n, |i, j| {
        let count = (0..n).filter(|j| from(i, *j)).count();
        if from(i, j) { 1.0 / count as f64 } else { 0.0 }
    })
}
