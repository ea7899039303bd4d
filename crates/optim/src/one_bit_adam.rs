//! 1-bit Adam: after a warm-up the signs of the momentum are sent, and what they leave out is sent later.

use crate::{
    AdamWConfig, Compressor,
    arith::{fill, update, zeros},
    error::{ConfigError, below_one, not_negative, positive},
    stability::check_lr,
};
use gaggle_core::{
    At, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rank, Rule, Stability, Unstable,
    With,
};

/// Settings of [`OneBitAdam`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneBitAdamConfig {
    /// β₁, β₂, ε; decay is decoupled.
    pub adam: AdamWConfig,
    /// T_w: steps of plain Adam on the mean gradient, after which v stays.
    pub warm_up: u64,
}

/// T_w steps of Adam on the mean gradient, without bias correction; then v is frozen, and each rank sends q = C(β₁m + (1 − β₁)g + e), C the signs with their mean size, and keeps what is left out as e. Everybody compresses the mean again, m = C(mean q + e_s) with e_s kept, as a server would: x ← x − γm/(√v + ε).
///
/// One message per step: of n values to the mean over everybody in the warm-up, and then of one bit for each and their size, to each of the others ([`With::EachMember`]: n/8 bytes and one value, P − 1 times). State m, v, e and e_s, 4n elements. All ranks hold the same m, v, e_s and x.
/// Signs move every element, by mean|m|/(√v + ε): where gradients were 0 or nearly so throughout the warm-up, ε alone bounds the step. Take a longer warm-up or a larger ε (10⁻³ where inputs may be constant) for such data.
/// Source: Tang et al. 2021, "1-bit Adam", Algorithm 1, re-read from summaries.
pub struct OneBitAdam<T> {
    config: OneBitAdamConfig,
    place: Place,
    m: Vec<T>,
    v: Vec<T>,
    left: Vec<T>,
    server_left: Vec<T>,
    /// A rank's q, and the mean of all.
    q: Vec<T>,
    sum: Vec<f64>,
    scratch: Vec<usize>,
}

impl<T: Float> OneBitAdam<T> {
    /// The rule with these settings.
    ///
    /// # Errors
    /// A setting out of its range, by name.
    pub fn new(config: OneBitAdamConfig) -> Result<Self, ConfigError> {
        let AdamWConfig {
            beta1,
            beta2,
            eps,
            weight_decay,
        } = config.adam;
        below_one("beta1", beta1)?;
        below_one("beta2", beta2)?;
        positive("eps", eps)?;
        not_negative("weight_decay", weight_decay)?;
        Ok(OneBitAdam {
            config,
            place: Place {
                rank: Rank(0),
                world: 1,
            },
            m: Vec::new(),
            v: Vec::new(),
            left: Vec::new(),
            server_left: Vec::new(),
            q: Vec::new(),
            sum: Vec::new(),
            scratch: Vec::new(),
        })
    }

    fn warms_up(&self, cx: &Cx) -> bool {
        cx.step < self.config.warm_up
    }
}

impl<T: Float> Rule<T> for OneBitAdam<T> {
    fn name(&self) -> &str {
        "one-bit-adam"
    }
    fn init(&mut self, n: usize, place: Place) {
        self.place = place;
        (self.m, self.v) = (zeros(n), zeros(n));
        (self.left, self.server_left) = (zeros(n), zeros(n));
        (self.q, self.sum) = (zeros(n), Vec::with_capacity(n));
    }
    fn whole(&self) -> bool {
        true
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(match self.warms_up(cx) {
            true => Exchange::everyone(cx),
            false => {
                let len = Compressor::Sign.packed_len::<T>(self.q.len());
                Exchange::new(With::EachMember, cx).width(0).extra(len)
            }
        });
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        if self.warms_up(cx) {
            out.copy_from_slice(local.g);
            return;
        }
        let beta1 = self.config.adam.beta1;
        let (m, left) = (&self.m[local.at.clone()], &mut self.left[local.at]);
        update(left, |k, e| {
            beta1 * m[k].to_f64() + (1.0 - beta1) * local.g[k].to_f64() + e
        });
        let q = &mut self.q;
        q.copy_from_slice(left);
        Compressor::Sign.pack(cx, self.place, q, out, &mut self.scratch);
        update(left, |k, c| c - q[k].to_f64());
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        let (At::AfterGradient, Some(mean)) = (at, means.first()) else {
            return;
        };
        let warms_up = self.warms_up(cx);
        let AdamWConfig {
            beta1,
            beta2,
            eps,
            weight_decay,
        } = self.config.adam;
        let at = local.at;
        let (m, v) = (&mut self.m[at.clone()], &mut self.v[at.clone()]);
        if warms_up {
            let g = |k: usize| mean.values[k].to_f64();
            update(m, |k, m| beta1 * m + (1.0 - beta1) * g(k));
            update(v, |k, v| beta2 * v + (1.0 - beta2) * g(k) * g(k));
        } else {
            let (q, sum, left) = (&mut self.q, &mut self.sum, &mut self.server_left[at]);
            sum.clear();
            sum.resize(q.len(), 0.0);
            let len = Compressor::Sign.packed_len::<T>(q.len());
            for message in mean.values.chunks_exact(len.max(1)) {
                Compressor::Sign.unpack(cx, message, q, &mut self.scratch);
                sum.iter_mut().zip(&*q).for_each(|(s, q)| *s += q.to_f64());
            }
            let world = self.place.world as f64;
            update(left, |k, e| T::from_f64(sum[k] / world).to_f64() + e);
            fill(m, |k| left[k].to_f64());
            Compressor::Sign.apply(cx, self.place, m, &mut self.scratch);
            update(left, |k, s| s - m[k].to_f64());
        }
        update(local.x, |k, x| {
            let step = m[k].to_f64() / (v[k].to_f64().sqrt() + eps);
            x - cx.lr * (step + weight_decay * x)
        });
    }
    fn check(&self, _facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_lr(lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("momentum", &mut self.m);
        visit("mean of squares", &mut self.v);
        visit("left out", &mut self.left);
        visit("left out by all", &mut self.server_left);
    }
}
