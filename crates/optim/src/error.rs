//! What is wrong with a setting, and the checks that find it.

use crate::{LocalKind, NAMES};
use gaggle_core::{Codec, DType, Error, Float};

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
    /// No compressor is called like this.
    #[error(
        "there is no compressor {name:?}; there are identity, top-k:RATIO, random-k:RATIO, sign, qsgd:LEVELS"
    )]
    UnknownCompressor {
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
    /// The rule keeps account of what it has sent, to the last bit, or its messages take no codec.
    #[error("codec: {rule} sends its values as they are, not as {codec}")]
    NoCodec {
        /// Which rule.
        rule: String,
        /// What was to be on the wire.
        codec: Codec,
    },
    /// The rule counts its steps itself, and has been made for another period.
    #[error("period is {period}; {rule} counts its steps itself, and was made for {own}")]
    OwnPeriod {
        /// Which rule.
        rule: String,
        /// Its own.
        own: u64,
        /// What was asked for.
        period: u64,
    },
    /// Every step of the rule communicates as it must.
    #[error("period is {period}; every step of {rule} communicates")]
    NoLocalSteps {
        /// Which rule.
        rule: String,
        /// What was asked for.
        period: u64,
    },
    /// What the compressor leaves out may be more than the vector.
    #[error(
        "compressor: {rule} needs one that contracts: top-k, sign, biased random-k, or contracting qsgd"
    )]
    NotContracting {
        /// Which rule.
        rule: &'static str,
    },
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
