//! Local steps by name.

use crate::ConfigError;

/// A step that one rank takes alone, by name: what a mixing rule is put around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocalKind {
    /// x − γg.
    Sgd,
    /// PyTorch's momentum, with [`RuleConfig::momentum`](crate::RuleConfig::momentum), `dampening` and `nesterov`.
    Momentum,
    /// The same in Nesterov's form.
    Nesterov,
    /// A moving average of gradients, with [`RuleConfig::momentum`](crate::RuleConfig::momentum).
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
