//! RelaySGD: sums travel along a tree, so that every rank hears of every other.

use crate::{
    LocalRule,
    arith::{update, zeros},
    stability::{check_lr, unstable},
};
use gaggle_core::{
    At, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable, With,
};

/// What stands for ranks of which nothing has come yet, in the first steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// The own half step y: the paper's.
    Own,
    /// The start x⁰.
    Start,
}

/// y = x − d, d the local rule's step; to each neighbour j: m_{i→j} = y_i + Σ m_{l→i} over the other neighbours l, as of the step before, and counts c alike; x_i = (y_i(n − Σ c_{j→i}) + Σ m_{j→i})/n.
///
/// Exact whatever the ranks' data, on any tree; the step size that is stable shrinks with its diameter. A message of n + 4 values to each neighbour per step, each neighbour another one, four of them the count's digits, so that it is exact in every element type; state of the last messages, n + 4 values per neighbour, and the local rule's.
/// A topology that is no tree counts ranks twice: [`Rule::check`] refuses it.
/// Source: Vogels et al. 2021, "RelaySum for decentralized deep learning", Algorithm 1.
pub struct RelaySgd<T> {
    local: Box<dyn LocalRule<T>>,
    fill: Fill,
    n: usize,
    world: f64,
    /// The neighbours' last messages, one after the other, each of all elements.
    heard: Vec<T>,
    /// How many ranks' values are in each: [`DIGITS`] elements per neighbour.
    counts: Vec<T>,
    start: Vec<T>,
}

/// Elements that a count takes on the wire, in digits from 0 to 255: every element type keeps those exactly, and four of them hold any number of ranks.
const DIGITS: usize = 4;

/// The digits of `count`, the lowest first.
fn put_count<T: Float>(count: u64, digits: &mut [T]) {
    let bytes = count.to_le_bytes();
    for (digit, byte) in digits.iter_mut().zip(bytes) {
        *digit = T::from_f64(byte.into());
    }
}

/// The count whose digits these are; of numbers that are no digits it makes some count or other.
fn count_of<T: Float>(digits: &[T]) -> u64 {
    let digits = digits.iter().rev();
    digits.fold(0, |sum, digit| (sum << 8) + u64::from(digit.to_f64() as u8))
}

impl<T: Float> RelaySgd<T> {
    /// The rule around the step `local`.
    pub fn new(local: Box<dyn LocalRule<T>>, fill: Fill) -> RelaySgd<T> {
        RelaySgd {
            local,
            fill,
            n: 0,
            world: 1.0,
            heard: Vec::new(),
            counts: Vec::new(),
            start: Vec::new(),
        }
    }
}

impl<T: Float> Rule<T> for RelaySgd<T> {
    fn name(&self) -> &str {
        "relaysgd"
    }
    fn init(&mut self, n: usize, place: Place) {
        self.local.init(n);
        (self.n, self.world) = (n, place.world as f64);
        self.rewired();
        self.start = match self.fill {
            Fill::Own => Vec::new(),
            Fill::Start => zeros(n),
        };
    }
    fn rewired(&mut self) {
        self.heard.clear();
        self.counts.clear();
    }
    fn by_neighbours(&self, name: &mut dyn FnMut(&str)) {
        name("heard");
        name("counts");
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::new(With::EachNeighbour, cx).extra(DIGITS));
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        let (at, x, n) = (local.at.clone(), local.x, self.n);
        let own = Local {
            at: local.at,
            x: &mut *x,
            g: local.g,
        };
        self.local.step(cx, own);
        let neighbours = out.len() / (at.len() + DIGITS);
        self.heard.resize(neighbours * n, T::from_f64(0.0));
        self.counts.resize(neighbours * DIGITS, T::from_f64(0.0));
        let others = |to: usize| (0..neighbours).filter(move |l| *l != to);
        for (to, message) in out.chunks_exact_mut(at.len() + DIGITS).enumerate() {
            let (values, count) = message.split_at_mut(at.len());
            update(values, |k, _| {
                let relayed = others(to).map(|l| self.heard[l * n + at.start + k].to_f64());
                x[k].to_f64() + relayed.sum::<f64>()
            });
            let relayed = others(to).map(|l| count_of(&self.counts[l * DIGITS..][..DIGITS]));
            put_count(1 + relayed.sum::<u64>(), count);
        }
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        if at == At::BeforeForward && cx.step == 0 && self.fill == Fill::Start {
            self.start[local.at.clone()].copy_from_slice(local.x);
        }
        let (At::AfterGradient, Some(mean)) = (at, means.first()) else {
            return;
        };
        let (span, n) = (local.at, self.n);
        // Fewer than neighbours where edges go one way only, which no tree has.
        let neighbours = self.counts.len() / DIGITS;
        let messages = mean
            .values
            .chunks_exact(span.len() + DIGITS)
            .take(neighbours);
        for (l, message) in messages.enumerate() {
            let (values, count) = message.split_at(span.len());
            self.heard[l * n + span.start..][..span.len()].copy_from_slice(values);
            self.counts[l * DIGITS..][..DIGITS].copy_from_slice(count);
        }
        let heard: u64 = self.counts.chunks_exact(DIGITS).map(count_of).sum();
        let missing = self.world - 1.0 - heard as f64;
        update(local.x, |k, y| {
            let fill = match self.fill {
                Fill::Own => y,
                Fill::Start => self.start[span.start + k].to_f64(),
            };
            let heard = (0..neighbours).map(|l| self.heard[l * n + span.start + k].to_f64());
            (y + missing * fill + heard.sum::<f64>()) / self.world
        });
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        if !facts.tree {
            return unstable(
                "relaysgd counts a rank twice where there are two ways to it, and hears nothing of it where there is none",
                "a spanning tree with edges both ways, such as chain or binary-tree",
            );
        }
        check_lr(lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("heard", &mut self.heard);
        visit("counts", &mut self.counts);
        if self.fill == Fill::Start {
            visit("start", &mut self.start);
        }
        self.local.state(visit);
    }
}
