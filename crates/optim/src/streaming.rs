//! Streaming DiLoCo: one fragment of the parameters after the other, each under way while training goes on.

use crate::{
    LocalRule, OuterSgd,
    arith::{fill, zeros},
    error::{ConfigError, at_least_one, carries, in_range},
    stability::check_lr,
};
use gaggle_core::{
    At, Codec, Cx, Exchange, Float, Local, MixedMean, MixingFacts, Place, Rule, Stability, Unstable,
};
use std::ops::Range;

/// Settings of [`StreamingDiLoCo`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamingConfig {
    /// H: steps from one outer step of a fragment to its next.
    pub period: u64,
    /// F: fragments, at most H.
    pub fragments: u64,
    /// τ: steps that a fragment's message is under way, below ⌊H/F⌋ (0 where F is H).
    pub delay: u64,
    /// α: how much of its own value a rank keeps when the fragment's new one comes, from 0 to below 1.
    pub alpha: f64,
    /// Fragment p is *taken in* after steps ⌊H/F⌋(p + 1) modulo H, and leaves τ steps before that (torchft); otherwise it leaves then, and is taken in τ steps later (the paper).
    pub leaves_early: bool,
    /// The outer step.
    pub outer: OuterSgd,
    /// What is on the wire.
    pub codec: Codec,
}

impl Default for StreamingConfig {
    fn default() -> Self {
        StreamingConfig {
            period: 100,
            fragments: 4,
            delay: 5,
            alpha: 0.5,
            leaves_early: false,
            outer: OuterSgd {
                lr: 0.4,
                ..OuterSgd::default()
            },
            codec: Codec::None,
        }
    }
}

/// The parameters in F fragments; fragment p leaves as Δ_p = φ_p − θ_p, is averaged over everybody, and steps φ_p by the outer SGD when it comes, τ steps later: θ_p ← αθ_p + (1 − α)φ_p. Meanwhile all go on with inner steps.
///
/// A message of n/F elements for each fragment in H steps: the peak is F times lower than DiLoCo's, and τ steps hide it. State φ and the outer momentum, 2n elements, and the inner rule's.
/// With F = 1, τ = 0 and α = 0 it is DiLoCo. While a message is under way the state cannot be saved.
/// Fragments are equal parts of the vector in its order (the first n mod F are one longer).
/// Source: Douillard et al. 2025, "Streaming DiLoCo", Algorithm 2; as in torchft.
pub struct StreamingDiLoCo<T> {
    config: StreamingConfig,
    local: Box<dyn LocalRule<T>>,
    n: usize,
    phi: Vec<T>,
    b: Vec<T>,
}

impl<T: Float> StreamingDiLoCo<T> {
    /// The rule around the inner step `local`.
    ///
    /// # Errors
    /// A setting out of its range, by name, or a codec that does not carry `T`.
    pub fn new(local: Box<dyn LocalRule<T>>, config: StreamingConfig) -> Result<Self, ConfigError> {
        at_least_one("period", config.period)?;
        at_least_one("fragments", config.fragments)?;
        let apart = config.period / config.fragments;
        let holds = apart > 0;
        in_range(
            "fragments",
            config.fragments as f64,
            "at most the period",
            holds,
        )?;
        let holds = config.delay < apart;
        in_range(
            "delay",
            config.delay as f64,
            "below period/fragments",
            holds,
        )?;
        let holds = (0.0..1.0).contains(&config.alpha);
        in_range("alpha", config.alpha, "at least 0 and below 1", holds)?;
        config.outer.check()?;
        carries::<T>(config.codec)?;
        Ok(StreamingDiLoCo {
            config,
            local,
            n: 0,
            phi: Vec::new(),
            b: Vec::new(),
        })
    }

    /// The elements of fragment `p`.
    fn fragment(&self, p: u64) -> Range<usize> {
        let (p, f) = (p as usize, self.config.fragments as usize);
        let (each, longer) = (self.n / f, self.n % f);
        let start = p * each + p.min(longer);
        start..start + each + usize::from(p < longer)
    }

    /// The fragment that leaves in this step.
    fn leaving(&self, cx: &Cx) -> Option<u64> {
        let StreamingConfig {
            period,
            fragments,
            delay,
            leaves_early,
            ..
        } = self.config;
        let done = cx.step + 1;
        (0..fragments).find(|p| {
            let at = period / fragments * (p + 1) - if leaves_early { delay } else { 0 };
            done >= at && (done - at).is_multiple_of(period)
        })
    }

    /// Inner steps for the elements of `span` in `local`.
    fn step(&mut self, cx: &Cx, local: &mut Local<'_, T>, span: Range<usize>) {
        let own = span.start - local.at.start..span.end - local.at.start;
        let part = Local {
            at: span,
            x: &mut local.x[own.clone()],
            g: &local.g[own],
        };
        self.local.step(cx, part);
    }
}

impl<T: Float> Rule<T> for StreamingDiLoCo<T> {
    fn name(&self) -> &str {
        "streaming-diloco"
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.n = n;
        self.local.init(n);
        (self.phi, self.b) = (zeros(n), zeros(n));
    }
    fn own_period(&self) -> Option<u64> {
        Some(self.config.period)
    }
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        if let Some(p) = self.leaving(cx) {
            let one = Exchange::everyone(cx).slot(p as usize);
            list.push(
                one.part(self.fragment(p))
                    .late(self.config.delay)
                    .coded(self.config.codec),
            );
        }
    }
    fn emit(&mut self, cx: &Cx, _slot: usize, mut local: Local<'_, T>, out: &mut [T]) {
        let span = local.at.clone();
        self.step(cx, &mut local, span.clone());
        let phi = &self.phi[span];
        fill(out, |k| phi[k].to_f64() - local.x[k].to_f64());
    }
    fn absorb(&mut self, cx: &Cx, at: At, mut local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        if at == At::BeforeForward {
            if cx.step == 0 {
                self.phi[local.at].copy_from_slice(local.x);
            }
            return;
        }
        // What has left in this step has taken its inner step already.
        let (lo, hi) = (local.at.start, local.at.end);
        let gone = self.leaving(cx).map_or(hi..hi, |p| self.fragment(p));
        let gone = gone.start.clamp(lo, hi)..gone.end.clamp(lo, hi);
        self.step(cx, &mut local, lo..gone.start);
        self.step(cx, &mut local, gone.end..hi);
        let alpha = self.config.alpha;
        for mean in means {
            let own = mean.at.start - lo..mean.at.end - lo;
            let phi = &mut self.phi[mean.at.clone()];
            let b = &mut self.b[mean.at.clone()];
            let x = &mut local.x[own];
            for (((x, phi), b), delta) in x.iter_mut().zip(phi).zip(b).zip(mean.values) {
                self.config.outer.step(phi, b, delta.to_f64());
                *x = T::from_f64(alpha * x.to_f64() + (1.0 - alpha) * phi.to_f64());
            }
        }
    }
    fn check(&self, _facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        check_lr(lr)
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("phi", &mut self.phi);
        visit("outer momentum", &mut self.b);
        self.local.state(visit);
    }
}
