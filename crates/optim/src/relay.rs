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
/// Exact whatever the ranks' data, on any tree; the step size that is stable shrinks with its diameter. A message of n + 1 values to each neighbour per step, each neighbour another one; state of the last messages, n + 1 values per neighbour, and the local rule's.
/// A topology that is no tree counts ranks twice: [`Rule::check`] refuses it.
/// Source: Vogels et al. 2021, "RelaySum for decentralized deep learning", Algorithm 1.
pub struct RelaySgd<T> {
    local: Box<dyn LocalRule<T>>,
    fill: Fill,
    n: usize,
    world: f64,
    /// The neighbours' last messages, one after the other, each of all elements.
    heard: Vec<T>,
    /// How many ranks' values are in each.
    counts: Vec<T>,
    start: Vec<T>,
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
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::new(With::EachNeighbour, cx).extra(1));
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        let (at, x, n) = (local.at.clone(), local.x, self.n);
        let own = Local {
            at: local.at,
            x: &mut *x,
            g: local.g,
        };
        self.local.step(cx, own);
        let neighbours = out.len() / (at.len() + 1);
        self.heard.resize(neighbours * n, T::from_f64(0.0));
        self.counts.resize(neighbours, T::from_f64(0.0));
        let others = |to: usize| (0..neighbours).filter(move |l| *l != to);
        for (to, message) in out.chunks_exact_mut(at.len() + 1).enumerate() {
            let (values, count) = message.split_at_mut(at.len());
            update(values, |k, _| {
                let relayed = others(to).map(|l| self.heard[l * n + at.start + k].to_f64());
                x[k].to_f64() + relayed.sum::<f64>()
            });
            let relayed: f64 = others(to).map(|l| self.counts[l].to_f64()).sum();
            count[0] = T::from_f64(1.0 + relayed);
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
        let neighbours = self.counts.len();
        let messages = mean.values.chunks_exact(span.len() + 1).take(neighbours);
        for (l, message) in messages.enumerate() {
            let (values, count) = message.split_at(span.len());
            self.heard[l * n + span.start..][..span.len()].copy_from_slice(values);
            self.counts[l] = count[0];
        }
        let missing = self.world - 1.0 - self.counts.iter().map(|c| c.to_f64()).sum::<f64>();
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
