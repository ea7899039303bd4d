//! CHOCO-SGD: compressed differences to what everybody knows already.

use crate::{
    Compressor, LocalRule,
    arith::{fill, update, zeros},
    error::{ConfigError, in_range},
    recursion::Recursion,
    stability::{check_lr, check_means, check_smallest_eigenvalue, unstable},
};
use gaggle_core::{
    At, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Modes, Place, Rank, Rule, Stability,
    Unstable, With,
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
/// Every rank keeps its own x̂ and a copy of each neighbour's. Copies are rounded as their owner's x̂ is, so that all agree to the last bit for ever, in every element type; a running average of them would drift away, and x with it. When neighbours change ([`Rule::rewired`]) all start from 0 again.
/// One message per neighbour and step, of as many bytes as the compressor needs ([`Compressor::packed_len`]); state x̂ and its copies, n elements and n for each neighbour, and the local rule's. Any contractive compressor has the limit of DSGD-ATC with weights (1 − η)I + ηW (the paper's order), or of AWC with them (the released one); with [`Compressor::Identity`] and η = 1 it is DSGD-ATC. There is no floor from quantisation.
///
/// [`Rule::check`] knows it to be stable for η < δ(1 − s)/(sβ(δ + β)), where s² = 1 − ω is what the compressor leaves out at most, δ = 1 − ‖W − J‖₂ and β = ‖I − W‖₂, for any doubly stochastic W (where a static W is symmetric δ = 1 − λ₂ will do, with η up to 2/(δ + β)): in the norms a of x − x̄ and b of x − x̂ a step is a⁺ ≤ (1 − ηδ)a + ηβsb, b⁺ ≤ ηβa + (1 + ηβ)sb, whose eigenvalues are then below 1. The paper's γ = δω/(16δ + δ² + 4β² + 2δβ² − 8δω), for symmetric W, is always smaller. Both are far from what many compressors take: above, it is [`Stability::Unchecked`].
/// Source: Koloskova et al. 2019, "Decentralized stochastic optimization and gossip algorithms with compressed communication", Algorithm 2.
pub struct Choco<T> {
    config: ChocoConfig,
    local: Box<dyn LocalRule<T>>,
    place: Place,
    n: usize,
    /// x̂.
    known: Vec<T>,
    /// The neighbours' x̂, one after the other, each of all elements.
    copies: Vec<T>,
    /// Wx̂ − x̂.
    apart: Vec<T>,
    /// A q, the own or a neighbour's.
    q: Vec<T>,
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
            n: 0,
            known: Vec::new(),
            copies: Vec::new(),
            apart: Vec::new(),
            q: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// x ← x + η(Wx̂ − x̂).
    fn gossip(&self, at: std::ops::Range<usize>, x: &mut [T]) {
        let apart = &self.apart[at];
        update(x, |k, x| x + self.config.consensus_step * apart[k].to_f64());
    }

    /// The η up to which it is known to be stable on this topology; `None`: for no η, since nothing is known of the compressor.
    fn known_limit(&self, facts: &MixingFacts) -> Option<f64> {
        let n = (self.n > 0).then_some(self.n);
        let s = (1.0 - self.config.compressor.quality(n)?).sqrt();
        // ‖(1 − η)I + ηW − J‖ ≤ 1 − ηδ is all that is asked of W: where its eigenvalues are real, for η up to 2/(δ + β), the largest of them gives δ, however near the smallest is to −1.
        let (delta, beta, most) = match facts.modes {
            Modes::Between(low, high) => (1.0 - high, 1.0 - low, 2.0 / (2.0 - low - high)),
            _ => {
                let beta = facts
                    .lambda_min
                    .map_or(1.0 + facts.contraction, |min| 1.0 - min);
                (1.0 - facts.contraction, beta, 1.0)
            }
        };
        Some((delta * (1.0 - s) / (s * beta * (delta + beta))).min(most))
    }
}

impl<T: Float> Rule<T> for Choco<T> {
    fn name(&self) -> &str {
        "choco"
    }
    fn init(&mut self, n: usize, place: Place) {
        self.place = place;
        self.n = n;
        self.local.init(n);
        self.scratch = Vec::with_capacity(n);
        (self.known, self.q, self.apart) = (zeros(n), zeros(n), zeros(n));
        self.copies = Vec::new();
    }
    fn whole(&self) -> bool {
        self.config.compressor != Compressor::Identity
    }
    fn rewired(&mut self) {
        self.known.fill(T::from_f64(0.0));
        self.apart.fill(T::from_f64(0.0));
        self.copies.clear();
    }
    fn by_neighbours(&self, name: &mut dyn FnMut(&str)) {
        name("copies");
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
            q,
            scratch,
            place,
            ..
        } = self;
        let (known, q) = (&mut known[at.clone()], &mut q[at]);
        fill(q, |k| x[k].to_f64() - known[k].to_f64());
        let len = compressor.packed_len::<T>(q.len());
        // The same message for each neighbour; who has none compresses for itself.
        match out.get_mut(..len) {
            Some(first) if len > 0 => {
                compressor.pack(cx, *place, q, first, scratch);
                (len..out.len())
                    .step_by(len)
                    .for_each(|to| out.copy_within(..len, to));
            }
            _ => compressor.apply(cx, *place, q, scratch),
        }
        update(known, |k, v| v + q[k].to_f64());
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        let (At::AfterGradient, Some(mean)) = (at, means.first()) else {
            return;
        };
        let Choco {
            config: ChocoConfig { compressor, .. },
            n,
            known,
            copies,
            apart,
            q,
            scratch,
            ..
        } = self;
        let (own, weights) = mean.weights.split_first().unwrap_or((&1.0, &[]));
        copies.resize(*n * weights.len(), T::from_f64(0.0));
        let q = &mut q[local.at.clone()];
        let len = compressor.packed_len::<T>(q.len());
        let messages = mean.values.chunks_exact(len.max(1));
        for (message, copy) in messages.zip(copies.chunks_exact_mut((*n).max(1))) {
            compressor.unpack(cx, message, q, scratch);
            update(&mut copy[local.at.clone()], |k, v| v + q[k].to_f64());
        }
        // Σ w(x̂_j − x̂) + (Σw − 1)x̂, whose last part is 0 but where weights do not sum to 1.
        let off = own + weights.iter().sum::<f64>() - 1.0;
        let off = if off.abs() <= 1e-6 { 0.0 } else { off };
        fill(&mut apart[local.at.clone()], |k| {
            let k = local.at.start + k;
            let known = known[k].to_f64();
            let copies = copies.iter().skip(k).step_by((*n).max(1));
            let parts = weights.iter().zip(copies);
            parts.fold(off * known, |sum, (w, copy)| {
                sum + w * (copy.to_f64() - known)
            })
        });
        if self.config.order == ChocoOrder::Paper {
            self.gossip(local.at, local.x);
        }
    }
    fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        if facts.period != 1 || !facts.repeats {
            return unstable(
                "choco keeps copies of its neighbours, which mean nothing with other neighbours in the next round",
                "a topology that is the same in every round, such as ring or static-exp",
            );
        }
        check_lr(lr)?;
        check_means(facts)?;
        // With nothing left out: x⁺ = (1 − η)x + ηWx. With a part of the own value, W may have what it likes at −1.
        let eta = self.config.consensus_step;
        let whole = Recursion::new([[1.0 - eta, 0.0], [0.0, 0.0]], [[eta, 0.0], [0.0, 0.0]]);
        let whole = whole.check("choco", facts, "a smaller consensus_step")?;
        if self.config.order == ChocoOrder::Released && eta == 1.0 {
            // As AWC: gradients come in beside the average.
            check_smallest_eigenvalue(facts)?;
            if whole != Stability::Stable && facts.cycle != 1 {
                return unstable(
                    "with a consensus_step of 1 values only go round among the ranks, and gradients beside them push disagreements outwards",
                    "a smaller consensus_step",
                );
            }
        }
        if whole != Stability::Stable {
            return Ok(whole);
        }
        if self.config.compressor == Compressor::Identity {
            return Ok(Stability::Stable);
        }
        let known = match self.known_limit(facts) {
            Some(limit) if eta < limit => return Ok(Stability::Stable),
            Some(limit) => format!(
                "consensus_step is {eta}, and stability is known below {limit:.3e} only, δ(1 − s)/(sβ(δ + β))"
            ),
            None => "what the compressor leaves out depends on the number of parameters, which is not known yet".into(),
        };
        Ok(Stability::Unchecked(format!(
            "choco with {}: {known}; more may well work",
            self.config.compressor
        )))
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("known", &mut self.known);
        visit("copies", &mut self.copies);
        if self.config.order == ChocoOrder::Released {
            visit("apart", &mut self.apart);
        }
        self.local.state(visit);
    }
}
