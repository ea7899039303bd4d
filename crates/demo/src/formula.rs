//! The bytes that should be on the wire, by arithmetic: what the counters at the link are held against.
//!
//! With P ranks and S bytes per rank on the wire, means over ranks are
//! 2S(P−1)/P for an all-reduce by ring or direct exchange;
//! S·(2ᵏk + 2r)/P by recursive doubling, where P = 2ᵏ + r with r < 2ᵏ;
//! S(P−1) by exchange in one round, where vectors are short, and where everybody's message goes to everybody;
//! and S per out-neighbour for a neighbour average.

use crate::{error::DemoError, settings::Wire};
use gaggle::{
    Algorithm, DType, Group, Kind, Op, Rank, Reduce,
    core::{Round, Rule, Topology, With},
    optim::Pace,
};
use std::ops::Range;

/// Payload bytes that a rank sends for a mean over everybody of `elems` f32, mean over ranks.
///
/// # Errors
/// The group has no plan for it.
pub fn all_reduce(group: &Group, elems: usize, wire: Wire) -> Result<f64, DemoError> {
    let mut op = Op::new(Kind::AllReduce(Reduce::Mean)).coded_always(wire.codec());
    if wire == Wire::Bf16 {
        op = op.by(Algorithm::Direct);
    }
    let chosen = group
        .communicator()
        .describe(&op, DType::F32, elems)?
        .algorithm;
    Ok(mean_per_rank(chosen, group.size(), bytes(elems, wire)))
}

fn mean_per_rank(algorithm: Algorithm, world: usize, bytes: f64) -> f64 {
    let p = world as f64;
    if algorithm == Algorithm::Exchange {
        return bytes * (p - 1.0);
    }
    if algorithm == Algorithm::RecursiveDoubling {
        let rounds = world.ilog2();
        let core = 1usize << rounds;
        let rest = world - core;
        return bytes * (core * rounds as usize + 2 * rest) as f64 / p;
    }
    2.0 * bytes * (p - 1.0) / p
}

/// Payload bytes that a rank sends per step for what `rule` exchanges of the spans that it is driven in, over `steps` steps, mean over ranks.
///
/// # Errors
/// The group has no plan for it.
pub fn exchanges(
    group: &Group,
    topology: &dyn Topology,
    rule: &dyn Rule<f32>,
    spans: &[Range<usize>],
    wire: Wire,
    steps: u64,
) -> Result<f64, DemoError> {
    let (mut sum, mut list) = (0.0, Vec::new());
    let mut pace = Pace::new(rule.period().unwrap_or(1));
    for _ in 0..steps {
        let cx = pace.cx(0.0);
        list.clear();
        if cx.mixes {
            rule.exchanges(&cx, &mut list);
        }
        let each = list.iter().flat_map(|e| spans.iter().map(move |s| (e, s)));
        for (exchange, span) in each {
            let elems = exchange.len(exchange.within(span.clone()).len());
            sum += match exchange.with {
                With::Everyone => all_reduce(group, elems, wire)?,
                With::EachMember => bytes(elems, Wire::Plain) * (group.size() as f64 - 1.0),
                With::EachNeighbour => {
                    mean_out_degree(topology, exchange.round) * bytes(elems, Wire::Plain)
                }
                _ => mean_out_degree(topology, exchange.round) * bytes(elems, wire),
            };
        }
        pace.advance();
    }
    Ok(sum / steps.max(1) as f64)
}

fn mean_out_degree(topology: &dyn Topology, t: u64) -> f64 {
    let mut round = Round::default();
    let world = topology.world();
    let links: usize = (0..world as u32)
        .map(|rank| {
            topology.round(Rank(rank), t, &mut round);
            round.to.len()
        })
        .sum();
    links as f64 / world as f64
}

fn bytes(elems: usize, wire: Wire) -> f64 {
    let size = match wire {
        Wire::Plain => 4,
        Wire::Bf16 => 2,
    };
    (elems * size) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ranks_send_their_vector_once_whatever_the_plan() {
        for algorithm in [
            Algorithm::Ring,
            Algorithm::Direct,
            Algorithm::RecursiveDoubling,
        ] {
            assert_eq!(mean_per_rank(algorithm, 2, 100.0), 100.0);
        }
    }

    #[test]
    fn other_worlds_follow_the_plans() {
        assert_eq!(mean_per_rank(Algorithm::Ring, 1, 100.0), 0.0);
        assert_eq!(mean_per_rank(Algorithm::RecursiveDoubling, 1, 100.0), 0.0);
        assert_eq!(mean_per_rank(Algorithm::Direct, 4, 100.0), 150.0);
        assert_eq!(mean_per_rank(Algorithm::Exchange, 4, 100.0), 300.0);
        assert_eq!(mean_per_rank(Algorithm::RecursiveDoubling, 8, 100.0), 300.0);
        // Three ranks: one joins a pair before, and hears the result after.
        let three = mean_per_rank(Algorithm::RecursiveDoubling, 3, 300.0);
        assert!((three - 400.0).abs() < 1e-9);
    }

    #[test]
    fn degrees_are_counted_per_round() {
        let one_peer = gaggle::topology::by_name("one-peer-exp", 5).unwrap();
        assert_eq!(mean_out_degree(&*one_peer, 3), 1.0);
        let star = gaggle::topology::by_name("star", 5).unwrap();
        assert_eq!(mean_out_degree(&*star, 0), 8.0 / 5.0);
        let alone = gaggle::topology::by_name("ring", 1).unwrap();
        assert_eq!(mean_out_degree(&*alone, 0), 0.0);
    }
}
