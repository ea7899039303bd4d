//! Overlap stochastic gradient push: push-sum whose messages may take whole steps.

use crate::{
    LocalRule,
    arith::zeros,
    error::{ConfigError, in_range},
    stability::{check_push, unstable},
};
use gaggle_core::{
    At, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable, With,
};

/// H = X − γG(Z), and v is w before the step; X⁺ = diag(C)·H + (C^{k−τ} − diag)·H^{k−τ}, w⁺ likewise of v; Z⁺ = X⁺/w⁺, with w = 1 at the start. What is sent in step k counts τ steps later, vectors and weights alike, so that sums over the ranks, with what is under way, are kept.
///
/// The parameters that training sees are Z.
/// H of step k leaves at the beginning of step k + τ, and is under way while that step's gradient is computed: τ = 1 hides the messages; longer delays are there to be studied, for nothing travels longer.
/// So state can be saved after every step: the τ last H, (τ + 1)n elements with what comes back when the topology changes, their weights, and the local rule's.
/// One message of n + 1 values to each out-neighbour and step, and an exchange of no values, by which this round's own weight becomes known.
/// Every step communicates. After [`Rule::rewired`] senders take back what had not left.
/// With 16-bit elements weights are rounded to them, and the sums drift.
/// Source: Assran et al. 2019, "Stochastic Gradient Push", Algorithm 2 (τ-overlap SGP), where every message is τ steps late.
pub struct OverlapPushSum<T> {
    name: String,
    local: Box<dyn LocalRule<T>>,
    /// τ.
    delay: usize,
    n: usize,
    /// w, one value.
    w: Vec<T>,
    /// The step at hand, w before it, and the weight that is taken back in it.
    begun: Option<u64>,
    before: f64,
    returning: f64,
    /// H of the last τ steps; that of step k at k mod τ, like what follows.
    halves: Vec<T>,
    /// Their v.
    weights: Vec<T>,
    /// What of them is for others.
    shares: Vec<T>,
    /// What has been taken back, and its weight.
    back: Vec<T>,
    back_weight: Vec<T>,
}

/// Each step of delay costs a vector.
const LONGEST: u64 = 64;

/// The exchange of no values.
const OWN: usize = 0;
/// What leaves.
const LATE: usize = 1;

impl<T: Float> OverlapPushSum<T> {
    /// The rule around the step `local`, τ = `delay`. Named `osgp`, with the local rule's name behind it where that is not plain SGD.
    ///
    /// # Errors
    /// `delay` is not from 1 to 64: without delay it is [`PushSum`](crate::PushSum).
    pub fn new(local: Box<dyn LocalRule<T>>, delay: u64) -> Result<Self, ConfigError> {
        let holds = (1..=LONGEST).contains(&delay);
        in_range("push_delay", delay as f64, "from 1 to 64", holds)?;
        let name = match local.name() {
            "sgd" => "osgp".to_owned(),
            other => format!("osgp-{other}"),
        };
        Ok(OverlapPushSum {
            name,
            local,
            delay: delay as usize,
            n: 0,
            w: Vec::new(),
            begun: None,
            before: 1.0,
            returning: 0.0,
            halves: Vec::new(),
            weights: Vec::new(),
            shares: Vec::new(),
            back: Vec::new(),
            back_weight: Vec::new(),
        })
    }

    fn place(&self, cx: &Cx) -> usize {
        (cx.step % self.delay as u64) as usize
    }
}

impl<T: Float> Rule<T> for OverlapPushSum<T> {
    fn name(&self) -> &str {
        &self.name
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.local.init(n);
        self.n = n;
        self.w = vec![T::from_f64(1.0)];
        self.halves = zeros(self.delay * n);
        (self.weights, self.shares) = (zeros(self.delay), zeros(self.delay));
        (self.back, self.back_weight) = (zeros(n), zeros(1));
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        let each = Exchange::new(With::EachNeighbour, cx);
        list.push(each.slot(OWN).width(0));
        if let Some(round) = cx.round.checked_sub(self.delay as u64) {
            let late = each.slot(LATE).round(round).extra(1);
            list.push(late.between(At::BeforeForward, At::AfterGradient));
        }
    }
    fn emit(&mut self, cx: &Cx, slot: usize, local: Local<'_, T>, out: &mut [T]) {
        if slot == OWN {
            // Once for all spans: none is absorbed before all have been here.
            if self.begun != Some(cx.step) {
                self.begun = Some(cx.step);
                self.before = self.w[0].to_f64();
                self.returning = self.back_weight[0].to_f64();
                self.back_weight[0] = T::from_f64(0.0);
            }
            return;
        }
        let place = self.place(cx);
        let half = &self.halves[place * self.n..][local.at.clone()];
        for message in out.chunks_exact_mut(half.len() + 1) {
            let (values, weight) = message.split_at_mut(half.len());
            values.copy_from_slice(half);
            weight[0] = self.weights[place];
        }
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        let own = means.iter().find(|mean| mean.slot == OWN);
        let (At::AfterGradient, Some(own)) = (at, own) else {
            return;
        };
        let keep = own.weights.first().copied().unwrap_or(1.0);
        let len = local.at.len();
        let come = means.iter().find(|mean| mean.slot == LATE);
        let messages = || {
            let shares = come.map_or(&[][..], |c| c.weights.get(1..).unwrap_or(&[]));
            let values = come.map_or(&[][..], |c| c.values);
            shares.iter().zip(values.chunks_exact(len + 1))
        };
        let place = self.place(cx);
        // The same for every span: each starts from the weight before the step.
        let late: f64 = messages().map(|(a, m)| a * m[len].to_f64()).sum();
        let w = T::from_f64(keep * self.before + self.returning + late);
        self.w[0] = w;
        self.weights[place] = T::from_f64(self.before);
        self.shares[place] = T::from_f64(1.0 - keep);
        let halves = &mut self.halves[place * self.n..][local.at.clone()];
        let back = &mut self.back[local.at.clone()];
        self.local.prepare(cx);
        for (k, z) in local.x.iter_mut().enumerate() {
            let old = z.to_f64();
            let delta = self
                .local
                .delta(cx, local.at.start + k, old, local.g[k].to_f64());
            halves[k] = T::from_f64(self.before * old - delta);
            let late: f64 = messages().map(|(a, m)| a * m[k].to_f64()).sum();
            let x = keep * halves[k].to_f64() + back[k].to_f64() + late;
            back[k] = T::from_f64(0.0);
            // Who keeps nothing shows what it had until something comes.
            if w.to_f64() != 0.0 {
                *z = T::from_f64(x / w.to_f64());
            }
        }
    }
    fn rewired(&mut self) {
        self.begun = None;
        for place in 0..self.delay {
            let share = self.shares[place].to_f64();
            let half = &mut self.halves[place * self.n..][..self.n];
            for (back, half) in self.back.iter_mut().zip(half) {
                *back = T::from_f64(back.to_f64() + share * half.to_f64());
                *half = T::from_f64(0.0);
            }
            let weight = share * self.weights[place].to_f64();
            self.back_weight[0] = T::from_f64(self.back_weight[0].to_f64() + weight);
            (self.weights[place], self.shares[place]) = (T::from_f64(0.0), T::from_f64(0.0));
        }
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        let known = check_push(facts, lr)?;
        // Whose weight is 0 has nothing to divide what comes by, and a message without weight brings such values.
        if let Some((round, rank)) = facts.keeps_nothing {
            return unstable(
                format!(
                    "in round {round} rank {rank} keeps no share of its own: while its messages are under way its weight is 0, what comes meanwhile cannot be divided by it, and sums over the ranks are lost",
                    rank = rank.0
                ),
                "let every rank keep a share of its own in every round, as the push weights do, or use sgp, whose messages are not late",
            );
        }
        if self.delay == 1 {
            return Ok(known);
        }
        Ok(Stability::Unchecked(format!(
            "until the first messages come a rank's weight is keep^k, and it moves by lr/weight: with a delay of {} by as much as lr/keep^{} ({lr} is lr, keep its own share)",
            self.delay,
            self.delay - 1
        )))
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("weight", &mut self.w);
        visit("halves", &mut self.halves);
        visit("their weights", &mut self.weights);
        visit("others' shares", &mut self.shares);
        visit("taken back", &mut self.back);
        visit("its weight", &mut self.back_weight);
        self.local.state(visit);
    }
}
