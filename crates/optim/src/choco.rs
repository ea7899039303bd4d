//! CHOCO-SGD: compressed differences to what everybody knows already.

use crate::{
    Compressor, LocalRule,
    arith::{fill, update, zeros},
    error::{ConfigError, in_range},
    stability::{check_gossip, unstable},
};
use gaggle_core::{
    At, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rank, Rule, Stability, Unstable,
    With,
};

/// When CHOCO gossips with the copies x̂.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChocoOrder {
    /// After this step's differences have come: the paper's.
    Paper,
    /// Before, with the step before's copies: the released code's, whose messages may take the whole step.
    Released,
}

/// Settings of [`Choco`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChocoConfig {
    /// What is sent of a difference.
    pub compressor: Compressor,
    /// η: how hard ranks are drawn together, above 0 and at most 1; the less a compressor keeps, the smaller.
    pub consensus_step: f64,
    /// When.
    pub order: ChocoOrder,
}

impl Default for ChocoConfig {
    fn default() -> Self {
        ChocoConfig {
            compressor: Compressor::TopK { ratio: 0.25 },
            consensus_step: 0.3,
            order: ChocoOrder::Paper,
        }
    }
}

/// y = x − d, d the local rule's step; q = C(y − x̂); x̂ ← x̂ + q on everybody who holds a copy; x⁺ = y + η(Wx̂ − x̂).
///
/// Every rank keeps its own x̂ and the average s = Wx̂ of its neighbours' in place of each of them: s ← s + Wq. So W must stay the same; when it changes ([`Rule::rewired`]) all copies start from 0 again.
/// One message per neighbour and step, of as many bytes as the compressor needs ([`Compressor::packed_len`]); state x̂ and s, 2n elements, and the local rule's. Any contractive compressor has the limit of DSGD-ATC with weights (1 − η)I + ηW (the paper's order), or of AWC with them (the released one); with [`Compressor::Identity`] and η = 1 it is DSGD-ATC. There is no floor from quantisation.
/// Source: Koloskova et al. 2019, "Decentralized stochastic optimization and gossip algorithms with compressed communication", Algorithm 2.
pub struct Choco<T> {
    config: ChocoConfig,
    local: Box<dyn LocalRule<T>>,
    place: Place,
    known: Vec<T>,
    mixed: Vec<T>,
    /// This step's own q.
    own: Vec<T>,
    /// A neighbour's, and the average of all.
    other: Vec<T>,
    sum: Vec<f64>,
    scratch: Vec<usize>,
}

impl<T: Float> Choco<T> {
    /// The rule around the step `local`.
    ///
    /// # Errors
    /// A setting out of its range, by name, or a compressor after which a difference may be larger than before.
    pub fn new(local: Box<dyn LocalRule<T>>, config: ChocoConfig) -> Result<Self, ConfigError> {
        config.compressor.check()?;
        if !config.compressor.contracts() {
            return Err(ConfigError::NotContracting { rule: "choco" });
        }
        let eta = config.consensus_step;
        let holds = eta > 0.0 && eta <= 1.0;
        in_range("consensus_step", eta, "above 0 and at most 1", holds)?;
        Ok(Choco {
            config,
            local,
            place: Place {
                rank: Rank(0),
                world: 1,
            },
            known: Vec::new(),
            mixed: Vec::new(),
            own: Vec::new(),
            other: Vec::new(),
            sum: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// x ← x + η(s − x̂).
    fn gossip(&self, at: std::ops::Range<usize>, x: &mut [T]) {
        let (known, mixed) = (&self.known[at.clone()], &self.mixed[at]);
        update(x, |k, x| {
            x + self.config.consensus_step * (mixed[k].to_f64() - known[k].to_f64())
        });
    }
}

impl<T: Float> Rule<T> for Choco<T> {
    fn name(&self) -> &str {
        "choco"
    }
    fn init(&mut self, n: usize, place: Place) {
        self.place = place;
        self.local.init(n);
        self.scratch = Vec::with_capacity(n);
        (self.known, self.mixed) = (zeros(n), zeros(n));
        (self.own, self.other) = (zeros(n), zeros(n));
        self.sum = Vec::with_capacity(n);
    }
    fn whole(&self) -> bool {
        self.config.compressor != Compressor::Identity
    }
    fn rewired(&mut self) {
        self.known.fill(T::from_f64(0.0));
        self.mixed.fill(T::from_f64(0.0));
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        let each = Exchange::new(With::EachNeighbour, cx);
        list.push(match self.whole() {
            true => {
                let len = self.config.compressor.packed_len::<T>(self.known.len());
                each.width(0).extra(len)
            }
            false => each,
        });
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        let (at, x) = (local.at, local.x);
        let own = Local {
            at: at.clone(),
            x: &mut *x,
            g: local.g,
        };
        self.local.step(cx, own);
        if self.config.order == ChocoOrder::Released {
            self.gossip(at.clone(), x);
        }
        let Choco {
            config: ChocoConfig { compressor, .. },
            known,
            own,
            scratch,
            place,
            ..
        } = self;
        let (known, own) = (&mut known[at.clone()], &mut own[at]);
        fill(own, |k| x[k].to_f64() - known[k].to_f64());
        let len = compressor.packed_len::<T>(own.len());
        // The same message for each neighbour; who has none compresses for itself.
        match out.get_mut(..len) {
            Some(first) if len > 0 => {
                compressor.pack(cx, *place, own, first, scratch);
                (len..out.len())
                    .step_by(len)
                    .for_each(|to| out.copy_within(..len, to));
            }
            _ => compressor.apply(cx, *place, own, scratch),
        }
        update(known, |k, v| v + own[k].to_f64());
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        let (At::AfterGradient, Some(mean)) = (at, means.first()) else {
            return;
        };
        let Choco {
            config: ChocoConfig { compressor, .. },
            own,
            other,
            sum,
            scratch,
            ..
        } = self;
        let (own, other) = (&own[local.at.clone()], &mut other[local.at.clone()]);
        // Wq = q + Σ w(q_j − q), in the order of the ranks.
        sum.clear();
        sum.extend(own.iter().map(|q| q.to_f64()));
        let len = compressor.packed_len::<T>(own.len());
        let messages = mean.values.chunks_exact(len.max(1));
        for (message, w) in messages.zip(mean.weights.iter().skip(1)) {
            compressor.unpack(cx, message, other, scratch);
            for ((sum, q), own) in sum.iter_mut().zip(&*other).zip(own) {
                *sum += w * (q.to_f64() - own.to_f64());
            }
        }
        update(&mut self.mixed[local.at.clone()], |k, s| {
            s + T::from_f64(self.sum[k]).to_f64()
        });
        if self.config.order == ChocoOrder::Paper {
            self.gossip(local.at, local.x);
        }
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        if facts.period != 1 || !facts.repeats {
            return unstable(
                "choco keeps the average of its neighbours' copies, which means nothing with other neighbours in the next round",
                "a topology that is the same in every round, such as ring or static-exp",
            );
        }
        check_gossip(facts, lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("known", &mut self.known);
        visit("mixed", &mut self.mixed);
        self.local.state(visit);
    }
}
