//! Rules by name.

use crate::{
    AllReduce, Bar, Bmuf, Choco, Clip, Clipped, ConfigError, D2, Dadam, DamsGrad, DecentLam,
    DiLoCo, Diffusion, DmSgdYing, DmSgdYu, Every, Extra, GossipPga, GradientTracking, LocalKind,
    LocalSgd, Lookahead, MomentumTracking, NoLoCo, OneBitAdam, OneBitAdamConfig, Order,
    OverlapPushSum, PushDiging, PushSum, QuasiGlobal, QuasiGlobalConfig, RelaySgd, RuleConfig,
    SlowMo, StreamingDiLoCo, Tracking,
    error::{at_least_one, positive},
};
use gaggle_core::{Codec, Float, Rule};

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
pub const CATALOGUE: [Entry; 41] = [
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
        "osgp",
        "push-sum whose messages count a step later: all communication hidden",
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
    if config.codec != Codec::None && TO_THE_LAST_BIT.contains(&name) {
        return Err(ConfigError::NoCodec {
            rule: name.into(),
            codec: config.codec,
        });
    }
    let rule = build(name, config)?;
    if let Some(period) = config.period {
        at_least_one("period", period)?;
        // Where it is not among a rule's own settings.
        if rule.period().or(rule.own_period()).unwrap_or(1) != period {
            return clipped(Box::new(Every::new(rule, period)?), config.clip);
        }
    }
    clipped(rule, config.clip)
}

/// Rules that keep account of what they have sent: rounding on the wire would never be made up for. Or whose messages take no codec.
const TO_THE_LAST_BIT: [&str; 4] = ["osgp", "choco", "one-bit-adam", "relaysgd"];

fn clipped<T: Float>(
    rule: Box<dyn Rule<T>>,
    clip: Option<Clip>,
) -> Result<Box<dyn Rule<T>>, ConfigError> {
    Ok(match clip {
        Some(clip) => Box::new(Clipped::new(rule, clip)?),
        None => rule,
    })
}

fn build<T: Float>(name: &str, config: &RuleConfig) -> Result<Box<dyn Rule<T>>, ConfigError> {
    let config = config.of_rule(name);
    let RuleConfig {
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
        "osgp" => Box::new(OverlapPushSum::new(local(SgdKind)?, config.push_delay)?),
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
        })?),
        "relaysgd" => Box::new(RelaySgd::new(local(SgdKind)?, config.fill)),
        _ => return Err(ConfigError::UnknownRule { name: name.into() }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle_core::Error;

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
        assert!(
            refused(
                "allreduce-adamw",
                RuleConfig {
                    eps: Some(0.0),
                    ..d
                }
            )
            .starts_with("eps")
        );
        assert!(refused("allreduce-adamw", RuleConfig { beta1: 1.0, ..d }).starts_with("beta1"));
        assert!(
            refused(
                "allreduce-adamw",
                RuleConfig {
                    beta2: Some(-1.0),
                    ..d
                }
            )
            .starts_with("beta2")
        );
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
        let four = RuleConfig {
            period: Some(4),
            ..d
        };
        for name in [
            "sgp",
            "dmsgd-yu",
            "qg-dmsgd",
            "gossip-pga",
            "local-sgd",
            "dmsgd",
        ] {
            let rule = rule_by_name::<f64>(name, &four).unwrap();
            assert_eq!(rule.period(), Some(4), "{name}");
        }
        assert_eq!(
            refused("d2", four),
            "period is 4; every step of d2 communicates"
        );
        for name in ["osgp", "choco", "one-bit-adam", "relaysgd"] {
            let coded = RuleConfig {
                codec: Codec::Bf16,
                ..d
            };
            assert_eq!(
                refused(name, coded),
                format!("codec: {name} sends its values as they are, not as bf16")
            );
        }
        let compressor = crate::Compressor::Qsgd {
            levels: 2,
            contracting: false,
            seed: 1,
        };
        assert!(refused("choco", RuleConfig { compressor, ..d }).contains("contracts"));
        let e: Error = ConfigError::Nesterov.into();
        assert!(e.to_string().starts_with("rule: nesterov needs"));
    }
}
