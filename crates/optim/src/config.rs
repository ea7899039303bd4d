//! Rules by name, and their settings, checked once.

use crate::{
    Adagrad, AdagradConfig, AdamW, AdamWConfig, AllReduce, Bar, Bmuf, BmufConfig, Choco,
    ChocoConfig, ChocoOrder, Clip, Clipped, Compressor, D2, Dadam, DamsGrad, DecentLam, DiLoCo,
    DiLoCoConfig, Diffusion, DmSgdYing, DmSgdYu, Ema, Extra, Fill, GossipPga, GradientTracking,
    Lion, LionConfig, LocalRule, LocalSgd, Lookahead, MomentumTracking, NoLoCo, NoLoCoConfig,
    OneBitAdam, OneBitAdamConfig, Order, OuterSgd, PushDiging, PushSum, QuasiGlobal,
    QuasiGlobalConfig, RelaySgd, RmsProp, RmsPropConfig, Sgd, SgdConfig, SlowMo, SlowMoConfig,
    StreamingConfig, StreamingDiLoCo, Tracking,
};
use gaggle_core::{Codec, DType, Error, Float, Rule};

/// A rule that [`rule_by_name`] knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What users type.
    pub name: &'static str,
    /// What it is for, in one line.
    pub about: &'static str,
}

const fn entry(name: &'static str, about: &'static str) -> Entry {
    Entry { name, about }
}

/// All rules by name.
pub const CATALOGUE: [Entry; 40] = [
    entry(
        "allreduce-sgd",
        "gradients averaged over everybody, then SGD: the yardstick",
    ),
    entry("allreduce-msgd", "the same with momentum: what DDP does"),
    entry("allreduce-adamw", "the same with AdamW"),
    entry(
        "dsgd-atc",
        "step, then average with neighbours: the plain decentralised method",
    ),
    entry(
        "dsgd-awc",
        "average while the gradient is computed: hides all communication, smaller step sizes",
    ),
    entry("dsgd-cta", "average, then step: ATC seen half a step later"),
    entry(
        "dmsgd",
        "local momentum, then average: for data that is alike on all ranks",
    ),
    entry(
        "dmsgd-awc",
        "local momentum, averaged while the gradient is computed",
    ),
    entry("dmsgd-cta", "average, then step with local momentum"),
    entry(
        "dadamw-atc",
        "local AdamW, then average: for transformers on data that is alike",
    ),
    entry(
        "dadamw-awc",
        "local AdamW, averaged while the gradient is computed",
    ),
    entry(
        "dadam",
        "decentralised Adam with a second moment that is slow to fall; data that is alike",
    ),
    entry(
        "damsgrad",
        "decentralised AMSGrad: the second moment is averaged too, for skewed data",
    ),
    entry(
        "dmsgd-yu",
        "momentum averaged along: less bias than dmsgd for twice the bytes",
    ),
    entry(
        "dmsgd-ying",
        "our uncertain reading of the exponential-graph paper, to compare with",
    ),
    entry(
        "qg-dmsgd",
        "quasi-global momentum: for skewed data at one vector per step",
    ),
    entry("qg-dmsgd-n", "the same with Nesterov's step"),
    entry(
        "decentlam",
        "large batches and momentum on symmetric weights",
    ),
    entry(
        "d2",
        "no bias on skewed data; static symmetric weights with λ_min > −1/3",
    ),
    entry(
        "exact-diffusion",
        "no bias on skewed data, on lazy weights: wider than d2",
    ),
    entry(
        "edm",
        "exact diffusion with momentum: the most for one vector per step",
    ),
    entry(
        "extra",
        "no bias on symmetric weights, averaged while the gradient is computed",
    ),
    entry(
        "diging",
        "gradient tracking: no bias, also on directed and changing graphs; small step sizes",
    ),
    entry(
        "gt-semi",
        "gradient tracking with averaged steps: larger step sizes",
    ),
    entry(
        "gt-atc",
        "gradient tracking, everything averaged: the largest step sizes, two rounds",
    ),
    entry("dsgt-hb", "gradient tracking with momentum"),
    entry(
        "momentum-tracking",
        "tracked momentum: skewed data, momentum, any doubly stochastic graph",
    ),
    entry(
        "sgp",
        "push-sum: directed graphs where only the senders' shares sum to one",
    ),
    entry(
        "push-diging",
        "gradient tracking over push-sum: no bias on any connected directed graph",
    ),
    entry("local-sgd", "H local steps, then the mean over everybody"),
    entry(
        "gossip-pga",
        "neighbours in most steps, everybody in each H-th",
    ),
    entry("slowmo", "local SGD with momentum across the meetings"),
    entry(
        "bmuf",
        "blockwise model-update filtering: the same in another scaling",
    ),
    entry("lookahead", "slow weights behind dsgd-atc"),
    entry(
        "diloco",
        "hundreds of inner AdamW steps, an outer Nesterov step: slow links",
    ),
    entry(
        "streaming-diloco",
        "DiLoCo a fragment at a time, under way while training goes on",
    ),
    entry(
        "noloco",
        "outer steps between pairs, without a collective (topology random-matching)",
    ),
    entry(
        "choco",
        "compressed differences to neighbours: thin links, static topology",
    ),
    entry("one-bit-adam", "signs of the momentum after a warm-up"),
    entry("relaysgd", "sums along a tree: no bias on chains and trees"),
];

/// The names that [`rule_by_name`] knows.
pub const NAMES: [&str; CATALOGUE.len()] = {
    let mut names = [""; CATALOGUE.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = CATALOGUE[i].name;
        i += 1;
    }
    names
};

/// Rules with a step of their own: they are not built around a local one.
const OWN_STEP: [&str; 10] = [
    "dadam",
    "damsgrad",
    "dmsgd-yu",
    "dmsgd-ying",
    "qg-dmsgd",
    "qg-dmsgd-n",
    "decentlam",
    "momentum-tracking",
    "push-diging",
    "one-bit-adam",
];

/// A setting or a name that makes no rule. Nothing has happened.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No rule has this name.
    #[error("there is no rule {name:?}; there are {}", NAMES.join(", "))]
    UnknownRule {
        /// What was asked for.
        name: String,
    },
    /// No local step has this name.
    #[error(
        "there is no local step {name:?}; there are {}",
        LocalKind::ALL.map(LocalKind::name).join(", ")
    )]
    UnknownLocal {
        /// What was asked for.
        name: String,
    },
    /// The rule is not built around a local step, and one was asked for.
    #[error("{rule} has a step of its own, and none of another kind such as {local}")]
    NoLocal {
        /// Which rule.
        rule: String,
        /// What was asked for.
        local: &'static str,
    },
    /// A setting is out of its range.
    #[error("{field} is {value}; it must be {wanted}")]
    OutOfRange {
        /// Which setting.
        field: &'static str,
        /// Its value.
        value: f64,
        /// Its range, in words.
        wanted: &'static str,
    },
    /// Nesterov without momentum, or with dampening.
    #[error("nesterov needs a momentum above 0 and a dampening of 0")]
    Nesterov,
    /// The codec does not carry the element type.
    #[error("codec: {codec} does not carry {dtype}")]
    Codec {
        /// What was to be on the wire.
        codec: Codec,
        /// The element type.
        dtype: DType,
    },
}

impl From<ConfigError> for Error {
    fn from(e: ConfigError) -> Error {
        Error::invalid("rule", e.to_string())
    }
}

/// A step that one rank takes alone, by name: what a mixing rule is put around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocalKind {
    /// x − γg.
    Sgd,
    /// PyTorch's momentum, with [`RuleConfig::momentum`], `dampening` and `nesterov`.
    Momentum,
    /// The same in Nesterov's form.
    Nesterov,
    /// A moving average of gradients, with [`RuleConfig::momentum`].
    Ema,
    /// Adam with decoupled decay.
    AdamW,
    /// RMSprop.
    RmsProp,
    /// Adagrad.
    Adagrad,
    /// Lion.
    Lion,
}

impl LocalKind {
    /// All of them.
    pub const ALL: [LocalKind; 8] = [
        LocalKind::Sgd,
        LocalKind::Momentum,
        LocalKind::Nesterov,
        LocalKind::Ema,
        LocalKind::AdamW,
        LocalKind::RmsProp,
        LocalKind::Adagrad,
        LocalKind::Lion,
    ];

    /// What users type.
    pub fn name(self) -> &'static str {
        match self {
            LocalKind::Sgd => "sgd",
            LocalKind::Momentum => "momentum",
            LocalKind::Nesterov => "nesterov",
            LocalKind::Ema => "ema",
            LocalKind::AdamW => "adamw",
            LocalKind::RmsProp => "rmsprop",
            LocalKind::Adagrad => "adagrad",
            LocalKind::Lion => "lion",
        }
    }

    /// The one of this name.
    ///
    /// # Errors
    /// There is none, with the names that there are.
    pub fn by_name(name: &str) -> Result<LocalKind, ConfigError> {
        let found = LocalKind::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| ConfigError::UnknownLocal { name: name.into() })
    }
}

/// Settings of all rules; each takes those that its name speaks of. `None` is the rule's own default. Checked by [`rule_by_name`].
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
    /// β₂ of the Adams and lion.
    pub beta2: f64,
    /// β₃ of dadam.
    pub beta3: f64,
    /// ε of the Adams, rmsprop and adagrad.
    pub eps: f64,
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
            beta2: 0.999,
            beta3: 0.9,
            eps: 1e-8,
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
    fn adam(&self) -> AdamWConfig {
        AdamWConfig {
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.eps,
            weight_decay: self.weight_decay,
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
                eps: self.eps,
                weight_decay: self.weight_decay,
                ..RmsPropConfig::default()
            })?),
            LocalKind::Adagrad => Box::new(Adagrad::new(AdagradConfig {
                eps: self.eps,
                weight_decay: self.weight_decay,
                ..AdagradConfig::default()
            })?),
            LocalKind::Lion => Box::new(Lion::new(LionConfig {
                beta1: self.beta1,
                beta2: self.beta2,
                weight_decay: self.weight_decay,
            })?),
        })
    }
}

/// The rule that users call `name`, for parameters of type `T`.
///
/// [`CATALOGUE`] says what each is for; with [`RuleConfig::clip`] it works on clipped gradients. With another [`RuleConfig::local`] than its own a rule may call itself by another name: `sgp-adamw`.
///
/// # Errors
/// An unknown name, with the names that exist; or a setting out of its range, by name.
///
/// ```
/// use gaggle_optim::{RuleConfig, rule_by_name};
/// let rule = rule_by_name::<f32>("dmsgd", &RuleConfig { nesterov: true, ..Default::default() })?;
/// assert_eq!(rule.name(), "dmsgd");
/// # Ok::<(), gaggle_optim::ConfigError>(())
/// ```
pub fn rule_by_name<T: Float>(
    name: &str,
    config: &RuleConfig,
) -> Result<Box<dyn Rule<T>>, ConfigError> {
    if let Some(l) = config.smoothness {
        positive("smoothness", l)?;
    }
    if let Some(local) = config.local.filter(|_| OWN_STEP.contains(&name)) {
        return Err(ConfigError::NoLocal {
            rule: name.into(),
            local: local.name(),
        });
    }
    let rule = build(name, config)?;
    Ok(match config.clip {
        Some(clip) => Box::new(Clipped::new(rule, clip)?),
        None => rule,
    })
}

fn build<T: Float>(name: &str, config: &RuleConfig) -> Result<Box<dyn Rule<T>>, ConfigError> {
    let &RuleConfig {
        momentum: beta,
        weight_decay,
        codec,
        ..
    } = config;
    let local = |own| config.local_rule::<T>(own);
    let diffusion = |order, own| -> Result<Box<dyn Rule<T>>, ConfigError> {
        let rule = Diffusion::new(order, local(own)?, codec)?.every(config.period.unwrap_or(1))?;
        Ok(Box::new(match config.smoothness {
            Some(l) => rule.with_smoothness(l),
            None => rule,
        }))
    };
    let tracking = |form, own| -> Result<Box<dyn Rule<T>>, ConfigError> {
        Ok(Box::new(GradientTracking::new(form, local(own)?, codec)?))
    };
    let quasi_global = |nesterov| -> Result<Box<dyn Rule<T>>, ConfigError> {
        Ok(Box::new(QuasiGlobal::new(QuasiGlobalConfig {
            beta,
            mu: config.mu.unwrap_or(beta),
            nesterov,
            weight_decay,
            codec,
        })?))
    };
    use LocalKind::{AdamW as AdamWKind, Ema as EmaKind, Momentum, Sgd as SgdKind};
    Ok(match name {
        "allreduce-sgd" => Box::new(AllReduce::new(local(SgdKind)?, codec)?),
        "allreduce-msgd" => Box::new(AllReduce::new(local(Momentum)?, codec)?),
        "allreduce-adamw" => Box::new(AllReduce::new(local(AdamWKind)?, codec)?),
        "dsgd-atc" => diffusion(Order::Atc, SgdKind)?,
        "dsgd-awc" => diffusion(Order::Awc, SgdKind)?,
        "dsgd-cta" => diffusion(Order::Cta, SgdKind)?,
        "dmsgd" => diffusion(Order::Atc, Momentum)?,
        "dmsgd-awc" => diffusion(Order::Awc, Momentum)?,
        "dmsgd-cta" => diffusion(Order::Cta, Momentum)?,
        "dadamw-atc" => diffusion(Order::Atc, AdamWKind)?,
        "dadamw-awc" => diffusion(Order::Awc, AdamWKind)?,
        "dadam" => Box::new(Dadam::new(config.adam(), config.beta3, codec)?),
        "damsgrad" => Box::new(DamsGrad::new(config.adam(), codec)?),
        "dmsgd-yu" => Box::new(DmSgdYu::new(beta, weight_decay, codec)?),
        "dmsgd-ying" => Box::new(DmSgdYing::new(beta, weight_decay, codec)?),
        "qg-dmsgd" => quasi_global(config.nesterov)?,
        "qg-dmsgd-n" => quasi_global(true)?,
        "decentlam" => Box::new(DecentLam::new(beta, weight_decay, codec)?),
        "d2" => Box::new(D2::new(Bar::Full, local(SgdKind)?, codec)?),
        "exact-diffusion" => Box::new(D2::new(Bar::Half, local(SgdKind)?, codec)?),
        "edm" => Box::new(D2::new(Bar::Half, local(EmaKind)?, codec)?),
        "extra" => Box::new(Extra::new(local(SgdKind)?, codec)?),
        "diging" => tracking(Tracking::Diging, SgdKind)?,
        "gt-semi" => tracking(Tracking::SemiAtc, SgdKind)?,
        "gt-atc" => tracking(Tracking::Atc, SgdKind)?,
        "dsgt-hb" => tracking(Tracking::SemiAtc, EmaKind)?,
        "momentum-tracking" => Box::new(MomentumTracking::new(beta, weight_decay, codec)?),
        "sgp" => Box::new(PushSum::new(local(SgdKind)?, codec)?),
        "push-diging" => Box::new(PushDiging::new(weight_decay, codec)?),
        "local-sgd" => Box::new(LocalSgd::new(
            local(SgdKind)?,
            config.period.unwrap_or(8),
            codec,
        )?),
        "gossip-pga" => Box::new(GossipPga::new(
            local(SgdKind)?,
            config.global_period,
            codec,
        )?),
        "slowmo" => Box::new(SlowMo::new(local(SgdKind)?, config.slowmo())?),
        "bmuf" => Box::new(Bmuf::new(local(SgdKind)?, config.bmuf())?),
        "lookahead" => Box::new(Lookahead::new(
            diffusion(Order::Atc, SgdKind)?,
            config.lookahead_steps,
            config.alpha.unwrap_or(0.5),
        )?),
        "diloco" => Box::new(DiLoCo::new(local(AdamWKind)?, config.diloco())?),
        "streaming-diloco" => {
            Box::new(StreamingDiLoCo::new(local(AdamWKind)?, config.streaming())?)
        }
        "noloco" => Box::new(NoLoCo::new(local(AdamWKind)?, config.noloco())?),
        "choco" => Box::new(Choco::new(local(SgdKind)?, config.choco())?),
        "one-bit-adam" => Box::new(OneBitAdam::new(OneBitAdamConfig {
            adam: config.adam(),
            warm_up: config.warm_up,
            codec,
        })?),
        "relaysgd" => Box::new(RelaySgd::new(local(SgdKind)?, config.fill, codec)?),
        _ => return Err(ConfigError::UnknownRule { name: name.into() }),
    })
}

/// Settings of single rules.
impl RuleConfig {
    fn slowmo(&self) -> SlowMoConfig {
        SlowMoConfig {
            period: self.period.unwrap_or(12),
            alpha: self.alpha.unwrap_or(1.0),
            beta: self.outer_momentum.unwrap_or(0.5),
            codec: self.codec,
        }
    }
    fn bmuf(&self) -> BmufConfig {
        BmufConfig {
            period: self.period.unwrap_or(12),
            eta: self.outer_momentum.unwrap_or(0.5),
            zeta: self.outer_lr.unwrap_or(1.0),
            nesterov: self.nesterov,
            codec: self.codec,
        }
    }
    fn diloco(&self) -> DiLoCoConfig {
        DiLoCoConfig {
            period: self.period.unwrap_or(500),
            outer: self.outer(0.7),
            codec: self.codec,
        }
    }
    fn streaming(&self) -> StreamingConfig {
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
    fn noloco(&self) -> NoLoCoConfig {
        NoLoCoConfig {
            period: self.period.unwrap_or(50),
            alpha: self.alpha.unwrap_or(0.5),
            beta: self.outer_lr.unwrap_or(0.7),
            gamma: self.gamma,
            codec: self.codec,
        }
    }
    fn choco(&self) -> ChocoConfig {
        ChocoConfig {
            compressor: self.compressor,
            consensus_step: self.consensus_step,
            order: self.choco_order,
            codec: self.codec,
        }
    }
}

/// Whether `codec` carries `T`.
pub(crate) fn carries<T: Float>(codec: Codec) -> Result<(), ConfigError> {
    if codec.wire_type(T::DTYPE).is_some() {
        return Ok(());
    }
    Err(ConfigError::Codec {
        codec,
        dtype: T::DTYPE,
    })
}

pub(crate) fn in_range(
    field: &'static str,
    value: f64,
    wanted: &'static str,
    holds: bool,
) -> Result<(), ConfigError> {
    if holds && value.is_finite() {
        Ok(())
    } else {
        Err(ConfigError::OutOfRange {
            field,
            value,
            wanted,
        })
    }
}

pub(crate) fn below_one(field: &'static str, value: f64) -> Result<(), ConfigError> {
    let holds = (0.0..1.0).contains(&value);
    in_range(field, value, "at least 0 and below 1", holds)
}

pub(crate) fn not_negative(field: &'static str, value: f64) -> Result<(), ConfigError> {
    in_range(field, value, "finite and not negative", value >= 0.0)
}

pub(crate) fn at_least_one(field: &'static str, value: u64) -> Result<(), ConfigError> {
    in_range(field, value as f64, "at least 1", value >= 1)
}

pub(crate) fn positive(field: &'static str, value: f64) -> Result<(), ConfigError> {
    in_range(field, value, "finite and above 0", value > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str, config: RuleConfig) -> String {
        match rule_by_name::<f64>(name, &config) {
            Ok(rule) => panic!("{} was built", rule.name()),
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn names_are_what_users_type() {
        for name in NAMES {
            let rule = rule_by_name::<f32>(name, &RuleConfig::default()).unwrap();
            assert_eq!(rule.name(), name);
        }
        let e = refused("sgd", RuleConfig::default());
        let begins = "there is no rule \"sgd\"; there are allreduce-sgd, allreduce-msgd, ";
        assert!(e.starts_with(begins) && e.ends_with(", relaysgd"), "{e}");
        for kind in LocalKind::ALL {
            assert_eq!(LocalKind::by_name(kind.name()), Ok(kind));
        }
        let e = LocalKind::by_name("adam").unwrap_err().to_string();
        assert!(e.ends_with("adamw, rmsprop, adagrad, lion"), "{e}");
    }

    #[test]
    fn a_wrong_setting_is_named() {
        let d = RuleConfig::default();
        assert_eq!(
            refused("dmsgd", RuleConfig { momentum: 1.0, ..d }),
            "momentum is 1; it must be at least 0 and below 1"
        );
        assert!(
            refused(
                "qg-dmsgd",
                RuleConfig {
                    mu: Some(-0.1),
                    ..d
                }
            )
            .starts_with("mu is -0.1")
        );
        assert!(
            refused(
                "qg-dmsgd",
                RuleConfig {
                    momentum: f64::NAN,
                    ..d
                }
            )
            .starts_with("momentum is NaN")
        );
        assert!(
            refused(
                "dmsgd",
                RuleConfig {
                    dampening: 2.0,
                    ..d
                }
            )
            .starts_with("dampening")
        );
        assert!(
            refused(
                "dsgd-awc",
                RuleConfig {
                    weight_decay: -1.0,
                    ..d
                }
            )
            .starts_with("weight_decay")
        );
        assert!(
            refused(
                "dsgd-awc",
                RuleConfig {
                    smoothness: Some(0.0),
                    ..d
                }
            )
            .starts_with("smoothness")
        );
        assert!(refused("allreduce-adamw", RuleConfig { eps: 0.0, ..d }).starts_with("eps"));
        assert!(refused("allreduce-adamw", RuleConfig { beta1: 1.0, ..d }).starts_with("beta1"));
        assert!(refused("allreduce-adamw", RuleConfig { beta2: -1.0, ..d }).starts_with("beta2"));
        let e = refused(
            "dmsgd",
            RuleConfig {
                nesterov: true,
                dampening: 0.5,
                ..d
            },
        );
        assert_eq!(e, "nesterov needs a momentum above 0 and a dampening of 0");
        assert_eq!(
            refused(
                "dmsgd",
                RuleConfig {
                    codec: Codec::Bf16,
                    ..d
                }
            ),
            "codec: bf16 does not carry f64"
        );
        rule_by_name::<f32>(
            "dmsgd",
            &RuleConfig {
                codec: Codec::Bf16,
                ..d
            },
        )
        .unwrap();
        let e: Error = ConfigError::Nesterov.into();
        assert!(e.to_string().starts_with("rule: nesterov needs"));
    }
}
