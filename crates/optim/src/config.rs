//! Settings of all rules.

use crate::{
    Adagrad, AdagradConfig, AdamW, AdamWConfig, BmufConfig, ChocoConfig, ChocoOrder, Clip,
    Compressor, ConfigError, DiLoCoConfig, Ema, Fill, Lion, LionConfig, LocalKind, LocalRule,
    NoLoCoConfig, OuterSgd, RmsProp, RmsPropConfig, Sgd, SgdConfig, SlowMoConfig, StreamingConfig,
};
use gaggle_core::{Codec, Float};

/// Settings of all rules; each takes those that its name speaks of. `None` is the rule's own default. Checked by [`rule_by_name`](crate::rule_by_name).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RuleConfig {
    /// β of every rule with momentum, from 0 to below 1. The plain ones (`allreduce-sgd`, `dsgd-…`) have none.
    pub momentum: f64,
    /// τ of msgd and dmsgd, from 0 to below 1.
    pub dampening: f64,
    /// Nesterov's form of msgd, dmsgd, qg-dmsgd and bmuf.
    pub nesterov: bool,
    /// λ of all rules; decoupled in the Adams and lion.
    pub weight_decay: f64,
    /// μ of qg-dmsgd; `None`: the same as `momentum`.
    pub mu: Option<f64>,
    /// β₁ of the Adams and lion.
    pub beta1: f64,
    /// β₂: of the Adams (0.999; in diloco and streaming-diloco 0.95) and lion (0.99).
    pub beta2: Option<f64>,
    /// β₃ of dadam.
    pub beta3: f64,
    /// ε: of the Adams and rmsprop (1e-8), damsgrad (1e-6) and adagrad (1e-10).
    pub eps: Option<f64>,
    /// What is on the wire.
    pub codec: Codec,
    /// L, the largest curvature of the losses, where it is known: lets `Rule::check` refuse step sizes of the AWC order.
    pub smoothness: Option<f64>,
    /// The local step inside, in place of the rule's own; refused by rules that are not built around one.
    pub local: Option<LocalKind>,
    /// Steps per communication: of local-sgd (8), slowmo and bmuf (12), diloco (500), streaming-diloco (100), noloco (50); 1 for the diffusions.
    pub period: Option<u64>,
    /// Communications from one global average of gossip-pga to the next.
    pub global_period: u64,
    /// α: of slowmo (1), lookahead, streaming-diloco and noloco (0.5).
    pub alpha: Option<f64>,
    /// How hard noloco draws ranks together.
    pub gamma: f64,
    /// The outer step size: of diloco (0.7), streaming-diloco (0.4), bmuf's ζ (1), noloco's β (0.7).
    pub outer_lr: Option<f64>,
    /// The outer momentum: of diloco and streaming-diloco (0.9), slowmo and bmuf (0.5).
    pub outer_momentum: Option<f64>,
    /// Nesterov's form of the outer step of diloco and streaming-diloco; otherwise heavy ball.
    pub outer_nesterov: bool,
    /// Fragments of streaming-diloco.
    pub fragments: u64,
    /// Steps that a fragment of streaming-diloco is under way.
    pub delay: u64,
    /// τ of osgp: steps until a message counts, from 1 to 64.
    pub push_delay: u64,
    /// Whether fragments leave early, as [`StreamingConfig::leaves_early`] says.
    pub leaves_early: bool,
    /// What choco sends.
    pub compressor: Compressor,
    /// η of choco.
    pub consensus_step: f64,
    /// When choco gossips.
    pub choco_order: ChocoOrder,
    /// Steps of plain Adam before one-bit-adam sends signs.
    pub warm_up: u64,
    /// K of lookahead.
    pub lookahead_steps: u64,
    /// What stands for silent ranks in relaysgd's first steps.
    pub fill: Fill,
    /// Cuts every rank's gradient first.
    pub clip: Option<Clip>,
}

impl Default for RuleConfig {
    fn default() -> Self {
        RuleConfig {
            momentum: 0.9,
            dampening: 0.0,
            nesterov: false,
            weight_decay: 0.0,
            mu: None,
            beta1: 0.9,
            beta2: None,
            beta3: 0.9,
            eps: None,
            codec: Codec::None,
            smoothness: None,
            local: None,
            period: None,
            global_period: 6,
            alpha: None,
            gamma: 0.7,
            outer_lr: None,
            outer_momentum: None,
            outer_nesterov: true,
            fragments: 4,
            delay: 5,
            push_delay: 1,
            leaves_early: false,
            compressor: Compressor::TopK { ratio: 0.25 },
            consensus_step: 0.3,
            choco_order: ChocoOrder::Paper,
            warm_up: 100,
            lookahead_steps: 5,
            fill: Fill::Own,
            clip: None,
        }
    }
}

impl RuleConfig {
    /// The Adams' settings; none of them decays weights unless told to.
    pub(crate) fn adam(&self) -> AdamWConfig {
        let common = AdamWConfig::default();
        AdamWConfig {
            beta1: self.beta1,
            beta2: self.beta2.unwrap_or(common.beta2),
            eps: self.eps.unwrap_or(common.eps),
            weight_decay: self.weight_decay,
        }
    }

    /// With what the rule called `name` has for `None` where other rules have something else.
    pub(crate) fn of_rule(self, name: &str) -> RuleConfig {
        // DiLoCo's inner AdamW; the paper's weight decay of 0.1 and clipping at 1 are for who trains language models.
        let inner = matches!(name, "diloco" | "streaming-diloco")
            && matches!(self.local, None | Some(LocalKind::AdamW));
        RuleConfig {
            beta2: self.beta2.or(inner.then_some(0.95)),
            eps: self.eps.or((name == "damsgrad").then_some(1e-6)),
            ..self
        }
    }

    fn outer(&self, lr: f64) -> OuterSgd {
        OuterSgd {
            lr: self.outer_lr.unwrap_or(lr),
            momentum: self.outer_momentum.unwrap_or(0.9),
            nesterov: self.outer_nesterov,
        }
    }

    /// The local step that was asked for, or else the rule's own.
    ///
    /// # Errors
    /// A setting out of its range, by name.
    pub fn local_rule<T: Float>(
        &self,
        own: LocalKind,
    ) -> Result<Box<dyn LocalRule<T>>, ConfigError> {
        let sgd = SgdConfig {
            weight_decay: self.weight_decay,
            ..SgdConfig::default()
        };
        let momentum = SgdConfig {
            momentum: self.momentum,
            dampening: self.dampening,
            nesterov: self.nesterov,
            ..sgd
        };
        Ok(match self.local.unwrap_or(own) {
            LocalKind::Sgd => Box::new(Sgd::new(sgd)?),
            LocalKind::Momentum => Box::new(Sgd::new(momentum)?),
            LocalKind::Nesterov => Box::new(Sgd::new(SgdConfig {
                nesterov: true,
                ..momentum
            })?),
            LocalKind::Ema => Box::new(Ema::new(self.momentum, self.weight_decay)?),
            LocalKind::AdamW => Box::new(AdamW::new(self.adam())?),
            LocalKind::RmsProp => Box::new(RmsProp::new(RmsPropConfig {
                eps: self.eps.unwrap_or(RmsPropConfig::default().eps),
                weight_decay: self.weight_decay,
                ..RmsPropConfig::default()
            })?),
            LocalKind::Adagrad => Box::new(Adagrad::new(AdagradConfig {
                eps: self.eps.unwrap_or(AdagradConfig::default().eps),
                weight_decay: self.weight_decay,
                ..AdagradConfig::default()
            })?),
            LocalKind::Lion => Box::new(Lion::new(LionConfig {
                beta1: self.beta1,
                beta2: self.beta2.unwrap_or(LionConfig::default().beta2),
                weight_decay: self.weight_decay,
            })?),
        })
    }
}

/// Settings of single rules.
impl RuleConfig {
    pub(crate) fn slowmo(&self) -> SlowMoConfig {
        SlowMoConfig {
            period: self.period.unwrap_or(12),
            alpha: self.alpha.unwrap_or(1.0),
            beta: self.outer_momentum.unwrap_or(0.5),
            codec: self.codec,
        }
    }
    pub(crate) fn bmuf(&self) -> BmufConfig {
        BmufConfig {
            period: self.period.unwrap_or(12),
            eta: self.outer_momentum.unwrap_or(0.5),
            zeta: self.outer_lr.unwrap_or(1.0),
            nesterov: self.nesterov,
            codec: self.codec,
        }
    }
    pub(crate) fn diloco(&self) -> DiLoCoConfig {
        DiLoCoConfig {
            period: self.period.unwrap_or(500),
            outer: self.outer(0.7),
            codec: self.codec,
        }
    }
    pub(crate) fn streaming(&self) -> StreamingConfig {
        StreamingConfig {
            period: self.period.unwrap_or(100),
            fragments: self.fragments,
            delay: self.delay,
            alpha: self.alpha.unwrap_or(0.5),
            leaves_early: self.leaves_early,
            outer: self.outer(0.4),
            codec: self.codec,
        }
    }
    pub(crate) fn noloco(&self) -> NoLoCoConfig {
        NoLoCoConfig {
            period: self.period.unwrap_or(50),
            alpha: self.alpha.unwrap_or(0.5),
            beta: self.outer_lr.unwrap_or(0.7),
            gamma: self.gamma,
            codec: self.codec,
        }
    }
    pub(crate) fn choco(&self) -> ChocoConfig {
        ChocoConfig {
            compressor: self.compressor,
            consensus_step: self.consensus_step,
            order: self.choco_order,
        }
    }
}
