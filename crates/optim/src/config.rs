//! Rules by name, and their settings, checked once.

use crate::{
    AdamW, AdamWConfig, AllReduce, Diffusion, LocalRule, Order, QuasiGlobal, QuasiGlobalConfig,
    Sgd, SgdConfig,
};
use gaggle_core::{At, Codec, DType, Error, Exchange, Float, Rule, With};

/// The names that [`rule_by_name`] knows.
pub const NAMES: [&str; 10] = [
    "allreduce-sgd",
    "allreduce-msgd",
    "allreduce-adamw",
    "dsgd-atc",
    "dsgd-awc",
    "dsgd-cta",
    "dmsgd",
    "dmsgd-awc",
    "dmsgd-cta",
    "qg-dmsgd",
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

/// Settings of all rules; each takes those that its name speaks of. Checked by [`rule_by_name`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RuleConfig {
    /// β of msgd, dmsgd and qg-dmsgd, from 0 to below 1. The plain ones (`allreduce-sgd`, `dsgd-…`) have none.
    pub momentum: f64,
    /// τ of msgd and dmsgd, from 0 to below 1.
    pub dampening: f64,
    /// Nesterov's form of msgd, dmsgd and qg-dmsgd.
    pub nesterov: bool,
    /// λ of all rules; decoupled in adamw.
    pub weight_decay: f64,
    /// μ of qg-dmsgd; `None`: the same as `momentum`.
    pub mu: Option<f64>,
    /// β₁ of adamw.
    pub beta1: f64,
    /// β₂ of adamw.
    pub beta2: f64,
    /// ε of adamw.
    pub eps: f64,
    /// What is on the wire.
    pub codec: Codec,
    /// L, the largest curvature of the losses, where it is known: lets `Rule::check` refuse step sizes of the AWC order.
    pub smoothness: Option<f64>,
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
            eps: 1e-8,
            codec: Codec::None,
            smoothness: None,
        }
    }
}

impl RuleConfig {
    fn sgd<T: Float>(&self) -> Result<Box<dyn LocalRule<T>>, ConfigError> {
        Ok(Box::new(Sgd::new(SgdConfig {
            weight_decay: self.weight_decay,
            ..SgdConfig::default()
        })?))
    }
    fn msgd<T: Float>(&self) -> Result<Box<dyn LocalRule<T>>, ConfigError> {
        Ok(Box::new(Sgd::new(SgdConfig {
            momentum: self.momentum,
            dampening: self.dampening,
            nesterov: self.nesterov,
            weight_decay: self.weight_decay,
        })?))
    }
    fn adamw<T: Float>(&self) -> Result<Box<dyn LocalRule<T>>, ConfigError> {
        Ok(Box::new(AdamW::new(AdamWConfig {
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.eps,
            weight_decay: self.weight_decay,
        })?))
    }
}

/// The rule that users call `name`, for parameters of type `T`.
///
/// `allreduce-sgd`, `allreduce-msgd` (with momentum) and `allreduce-adamw` average gradients over everybody; `dsgd-atc`, `dsgd-awc` and `dsgd-cta` average parameters over neighbours, without momentum; `dmsgd` (ATC), `dmsgd-awc` and `dmsgd-cta` have local momentum; `qg-dmsgd` has quasi-global momentum.
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
    let all = |local| -> Result<Box<dyn Rule<T>>, ConfigError> {
        Ok(Box::new(AllReduce::new(local, config.codec)?))
    };
    let neighbours = |order, local| -> Result<Box<dyn Rule<T>>, ConfigError> {
        let rule = Diffusion::new(order, local, config.codec)?;
        Ok(Box::new(match config.smoothness {
            Some(l) => rule.with_smoothness(l),
            None => rule,
        }))
    };
    match name {
        "allreduce-sgd" => all(config.sgd()?),
        "allreduce-msgd" => all(config.msgd()?),
        "allreduce-adamw" => all(config.adamw()?),
        "dsgd-atc" => neighbours(Order::Atc, config.sgd()?),
        "dsgd-awc" => neighbours(Order::Awc, config.sgd()?),
        "dsgd-cta" => neighbours(Order::Cta, config.sgd()?),
        "dmsgd" => neighbours(Order::Atc, config.msgd()?),
        "dmsgd-awc" => neighbours(Order::Awc, config.msgd()?),
        "dmsgd-cta" => neighbours(Order::Cta, config.msgd()?),
        "qg-dmsgd" => Ok(Box::new(QuasiGlobal::new(QuasiGlobalConfig {
            beta: config.momentum,
            mu: config.mu.unwrap_or(config.momentum),
            nesterov: config.nesterov,
            weight_decay: config.weight_decay,
            codec: config.codec,
        })?)),
        _ => Err(ConfigError::UnknownRule { name: name.into() }),
    }
}

/// The one message of a rule, in slot 0.
pub(crate) fn exchange<T: Float>(
    with: With,
    known: At,
    due: At,
    codec: Codec,
) -> Result<Exchange, ConfigError> {
    if codec.wire_type(T::DTYPE).is_none() {
        return Err(ConfigError::Codec {
            codec,
            dtype: T::DTYPE,
        });
    }
    Ok(Exchange {
        slot: 0,
        with,
        known,
        due,
        codec,
    })
}

fn in_range(
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
        assert_eq!(
            refused("sgd", RuleConfig::default()),
            "there is no rule \"sgd\"; there are allreduce-sgd, allreduce-msgd, allreduce-adamw, dsgd-atc, dsgd-awc, dsgd-cta, dmsgd, dmsgd-awc, dmsgd-cta, qg-dmsgd"
        );
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
