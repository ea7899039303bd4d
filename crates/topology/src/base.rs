//! Base-(k + 1) graphs: at most k neighbours per round, and the exact mean after few rounds for every number of ranks (Takezawa et al. 2023, "Beyond exponential graph").

use crate::{
    error::{TopologyError, checked_world},
    table::Table,
};
use gaggle_core::{Form, Rank, Round, Topology};

/// The Base-(k + 1) graph of any number of ranks.
///
/// At most k messages per rank and round; the product of the rounds is exactly J. About 2·log_{k+1} n + 2 rounds, fewer where n has small factors.
#[derive(Clone, Debug)]
pub struct BaseGraph(Table);

impl BaseGraph {
    /// The shorter of the graph that first splits off small factors and the [simple](BaseGraph::simple) one (Algorithm 3).
    ///
    /// # Errors
    /// A world of no ranks; k = 0.
    pub fn new(world: usize, k: usize) -> Result<BaseGraph, TopologyError> {
        // More neighbours than there are change nothing.
        let k = k.min(world);
        BaseGraph::named("base", world, k, |ranks| {
            let n = ranks.len();
            let simple = simple_base(&ranks, k);
            // The greatest common divisor with Π q^⌊log_q n⌋ over q = 2..=k+1 is the part of n that has prime factors up to k + 1 only.
            let r = rough_part(n, k + 1);
            let p = n / r;
            let block = |i: usize| &ranks[i * r..(i + 1) * r];
            let inside: Vec<_> = (0..p).map(|i| simple_base(block(i), k)).collect();
            let across: Vec<_> = (0..r)
                .map(|j| {
                    let transversal: Vec<usize> = (0..p).map(|i| block(i)[j]).collect();
                    hyper_hypercube(&transversal, k)
                })
                .collect();
            let (first, second) = (merged(inside), merged(across));
            match simple.len() < first.len() + second.len() {
                true => simple,
                false => first.into_iter().chain(second).collect(),
            }
        })
    }

    /// The Simple Base-(k + 1) graph (Algorithm 2).
    ///
    /// # Errors
    /// As [`new`](BaseGraph::new).
    pub fn simple(world: usize, k: usize) -> Result<BaseGraph, TopologyError> {
        let k = k.min(world);
        BaseGraph::named("simple-base", world, k, |ranks| simple_base(&ranks, k))
    }

    fn named(
        name: &str,
        world: usize,
        k: usize,
        make: impl FnOnce(Vec<usize>) -> Vec<Step>,
    ) -> Result<BaseGraph, TopologyError> {
        checked_world(name, world)?;
        if k == 0 {
            return Err(TopologyError::Parameter {
                topology: name.into(),
                what: "a rank has at least 1 neighbour, not 0".into(),
            });
        }
        let steps = make((0..world).collect());
        let rounds = match steps.is_empty() {
            true => vec![Step::default().round(world)],
            false => steps.iter().map(|s| s.round(world)).collect(),
        };
        Table::new(name, rounds).map(BaseGraph)
    }
}

impl Topology for BaseGraph {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn world(&self) -> usize {
        self.0.world()
    }
    fn period(&self) -> Option<u64> {
        self.0.period()
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        self.0.round(rank, t, out);
    }
}

/// One round: symmetric weights of the edges. Own weights are what is left to one.
#[derive(Clone, Debug, Default)]
struct Step(Vec<(usize, usize, f64)>);

impl Step {
    fn clique(&mut self, members: &[usize]) {
        let weight = 1.0 / members.len() as f64;
        for (i, a) in members.iter().enumerate() {
            self.0.extend(members[..i].iter().map(|b| (*a, *b, weight)));
        }
    }

    fn round(&self, world: usize) -> Vec<Round> {
        let alone = Round {
            keep: 1.0,
            form: Form::Delta,
            ..Round::default()
        };
        let mut rounds = vec![alone; world];
        for &(a, b, weight) in &self.0 {
            for (i, j) in [(a, b), (b, a)] {
                rounds[i].from.push((Rank(j as u32), weight));
                rounds[i].to.push((Rank(j as u32), 1.0));
            }
        }
        for round in &mut rounds {
            round.from.sort_by_key(|e| e.0);
            round.to.sort_by_key(|e| e.0);
            round.keep = 1.0 - round.from.iter().map(|(_, w)| w).sum::<f64>();
        }
        rounds
    }
}

/// Several graphs beside each other, of the same number of rounds.
fn merged(parts: Vec<Vec<Step>>) -> Vec<Step> {
    let mut all: Vec<Step> = Vec::new();
    for part in parts {
        all.resize_with(all.len().max(part.len()), Step::default);
        for (step, part) in all.iter_mut().zip(part) {
            step.0.extend(part.0);
        }
    }
    all
}

/// What is left of n without its prime factors up to `largest`.
fn rough_part(mut n: usize, largest: usize) -> usize {
    for f in 2..=largest.min(n) {
        while n.is_multiple_of(f) {
            n /= f;
        }
    }
    n
}

/// Hyper-hypercube (Algorithm 1) of ranks whose number has prime factors up to k + 1 only: mixed-radix coordinates, one per round.
fn hyper_hypercube(ranks: &[usize], k: usize) -> Vec<Step> {
    let n = ranks.len();
    let (mut factors, mut rest) = (Vec::new(), n);
    for f in (2..=(k + 1).min(n)).rev() {
        while rest.is_multiple_of(f) {
            factors.push(f);
            rest /= f;
        }
    }
    let mut stride = 1;
    let mut steps = Vec::new();
    for f in factors.into_iter().rev() {
        let mut step = Step::default();
        for first in (0..n).filter(|u| (u / stride).is_multiple_of(f)) {
            let clique: Vec<usize> = (0..f).map(|q| ranks[first + q * stride]).collect();
            step.clique(&clique);
        }
        steps.push(step);
        stride *= f;
    }
    steps
}

/// The ranks of one digit of n in base b: `count` blocks of the same power of b.
struct Digit<'a> {
    all: &'a [usize],
    blocks: Vec<&'a [usize]>,
    together: Vec<Step>,
    apart: Vec<Vec<Step>>,
    done: usize,
}

fn digits<'a>(ranks: &'a [usize], k: usize) -> Vec<Digit<'a>> {
    let b = k + 1;
    let mut power = 1;
    while power <= ranks.len() / b {
        power *= b;
    }
    let (mut left, mut digits) = (ranks, Vec::new());
    while power > 0 && !left.is_empty() {
        let (all, rest) = left.split_at(left.len() / power * power);
        if !all.is_empty() {
            let blocks: Vec<_> = all.chunks(power).collect();
            digits.push(Digit {
                all,
                together: hyper_hypercube(all, k),
                apart: blocks.iter().map(|b| hyper_hypercube(b, k)).collect(),
                blocks,
                done: 0,
            });
        }
        (left, power) = (rest, power / b);
    }
    digits
}

/// Algorithm 2: the ranks of each digit agree among themselves; then each digit's mean flows into the larger digits, one after the other; last, the blocks agree again.
fn simple_base(ranks: &[usize], k: usize) -> Vec<Step> {
    if ranks.len() == 1 {
        return vec![];
    }
    if rough_part(ranks.len(), k + 1) == 1 {
        return hyper_hypercube(ranks, k);
    }
    let mut digits = digits(ranks, k);
    let count = digits.len();
    let first = digits[0].together.len();
    let last = digits[0].apart[0].len();
    let mut steps = Vec::new();
    for m in 0.. {
        let mut step = Step::default();
        // Of the digit whose turn it is: those who have not met anybody in this round yet.
        let mut isolated: Option<Vec<Vec<usize>>> = None;
        for l in (0..count).rev() {
            if m < first {
                let rounds = &digits[l].together;
                if let Some(part) = rounds.get(m % rounds.len().max(1)) {
                    step.0.extend_from_slice(&part.0);
                }
            } else if m < first + l {
                let t = m - first;
                let from: usize = digits[t..].iter().map(|d| d.all.len()).sum();
                let share = digits[t].all.len() as f64 / from as f64;
                let isolated = isolated
                    .get_or_insert_with(|| digits[t].blocks.iter().map(|b| b.to_vec()).collect());
                let weight = share / isolated.len() as f64;
                for i in digits[l].all {
                    let partners = isolated.iter_mut().filter_map(Vec::pop);
                    step.0.extend(partners.map(|j| (*i, j, weight)));
                }
            } else if m == first + l && l + 1 < count {
                let left = isolated.take().unwrap_or_default().concat();
                for clique in left.chunks(k + 1) {
                    step.clique(clique);
                }
            } else {
                let digit = &mut digits[l];
                let parts: &[Vec<Step>] = match digit.all.len() < k + 1 {
                    true => std::slice::from_ref(&digit.together),
                    false => &digit.apart,
                };
                for rounds in parts {
                    if let Some(part) = rounds.get(digit.done % rounds.len().max(1)) {
                        step.0.extend_from_slice(&part.0);
                    }
                }
                digit.done += 1;
            }
        }
        steps.push(step);
        if digits[0].done == last {
            break;
        }
    }
    steps
}
