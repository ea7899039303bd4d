//! The flags of single algorithms, and the settings of rules that they make.
//!
//! The main type is [`RuleArgs`]. What is not said is the algorithm's own default, but for those whose defaults are made for runs of many thousand steps: here they have to do their work within a hundred.

use crate::settings::SettingError;
use gaggle::optim::{Clip, Compressor, ConfigError, LocalKind, RuleConfig};

/// Settings that some algorithms have; the others take no notice.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Options of single algorithms")]
pub struct RuleArgs {
    /// Steps from one exchange to the next, local ones in between: diloco and noloco 10, streaming-diloco 20, local-sgd 8, slowmo and bmuf 12, others 1.
    #[arg(long, value_name = "N")]
    pub period: Option<u64>,
    /// The step that every rank makes by itself, where the algorithm is built around one: sgd, momentum, nesterov, ema, adamw, rmsprop, adagrad, lion.
    #[arg(long, value_name = "NAME", value_parser = LocalKind::by_name)]
    pub local: Option<LocalKind>,
    /// Exchanges from one with everybody to the next: gossip-pga 6.
    #[arg(long, value_name = "N")]
    pub global_period: Option<u64>,
    /// Size of the outer step: diloco 0.7, streaming-diloco 0.4, noloco 0.7, bmuf 1.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub outer_lr: Option<f64>,
    /// Momentum of the outer step: diloco and streaming-diloco 0.9, slowmo and bmuf 0.5.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub outer_momentum: Option<f64>,
    /// How much of slow values counts: slowmo's step 1; lookahead's, streaming-diloco's share of its own value, noloco's outer momentum 0.5.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub outer_alpha: Option<f64>,
    /// How hard noloco draws ranks together: 0.7.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub gamma: Option<f64>,
    /// Parts that streaming-diloco sends one after the other: 4.
    #[arg(long, value_name = "N")]
    pub fragments: Option<u64>,
    /// Steps that a part of streaming-diloco is under way: 2.
    #[arg(long, value_name = "N")]
    pub delay: Option<u64>,
    /// What choco leaves of its messages: identity, top-k:RATIO, random-k:RATIO, sign, qsgd:LEVELS; else top-k:0.25.
    #[arg(long, value_name = "NAME", value_parser = Compressor::by_name)]
    pub compressor: Option<Compressor>,
    /// How far choco goes towards its neighbours: 0.3.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub consensus_step: Option<f64>,
    /// Steps of plain Adam before one-bit-adam sends signs: 20.
    #[arg(long, value_name = "N")]
    pub warm_up: Option<u64>,
    /// Steps of lookahead from one slow step to the next: 5.
    #[arg(long, value_name = "N")]
    pub lookahead_steps: Option<u64>,
    /// μ of qg-dmsgd: as the momentum.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub mu: Option<f64>,
    /// β₁ of the Adams and lion: 0.9.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub beta1: Option<f64>,
    /// β₂ of the Adams and lion: 0.999.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub beta2: Option<f64>,
    /// ε of the Adams, rmsprop and adagrad: 1e-8; one-bit-adam 1e-3.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub eps: Option<f64>,
    /// λ of every algorithm but allreduce: 0.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub weight_decay: Option<f64>,
    /// Nesterov's form of the step, where the algorithm has one.
    #[arg(long)]
    pub nesterov: bool,
    /// The longest gradient; longer ones are cut to it before the algorithm sees them.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub clip_norm: Option<f64>,
}

/// Defaults for a run of a hundred steps.
struct Short {
    period: Option<u64>,
    delay: u64,
    warm_up: u64,
    eps: Option<f64>,
}

impl Short {
    fn of(algorithm: &str) -> Short {
        Short {
            period: match algorithm {
                "diloco" | "noloco" => Some(10),
                "streaming-diloco" => Some(20),
                _ => None,
            },
            delay: 2,
            warm_up: 20,
            // Its signs move every weight, also those of pixels that were dark throughout the warm-up, whose second moment stays at 0.
            eps: (algorithm == "one-bit-adam").then_some(1e-3),
        }
    }
}

impl RuleArgs {
    /// The settings of the rule called `algorithm`, over those that all rules have from other flags.
    pub fn config(&self, algorithm: &str, common: RuleConfig) -> RuleConfig {
        let short = Short::of(algorithm);
        RuleConfig {
            period: self.period.or(short.period),
            local: self.local,
            global_period: self.global_period.unwrap_or(common.global_period),
            outer_lr: self.outer_lr,
            outer_momentum: self.outer_momentum,
            alpha: self.outer_alpha,
            gamma: self.gamma.unwrap_or(common.gamma),
            fragments: self.fragments.unwrap_or(common.fragments),
            delay: self.delay.unwrap_or(short.delay),
            compressor: self.compressor.unwrap_or(common.compressor),
            consensus_step: self.consensus_step.unwrap_or(common.consensus_step),
            warm_up: self.warm_up.unwrap_or(short.warm_up),
            lookahead_steps: self.lookahead_steps.unwrap_or(common.lookahead_steps),
            mu: self.mu,
            beta1: self.beta1.unwrap_or(common.beta1),
            beta2: self.beta2.unwrap_or(common.beta2),
            eps: self.eps.or(short.eps).unwrap_or(common.eps),
            weight_decay: self.weight_decay.unwrap_or(common.weight_decay),
            nesterov: self.nesterov,
            clip: self.clip_norm.map(Clip::Norm),
            ..common
        }
    }
}

impl RuleArgs {
    /// The flags that were given, as they were given.
    pub fn given(&self) -> Vec<String> {
        fn text(value: Option<impl ToString>) -> Option<String> {
            value.map(|v| v.to_string())
        }
        let all = [
            ("period", text(self.period)),
            ("local", text(self.local.map(LocalKind::name))),
            ("global-period", text(self.global_period)),
            ("outer-lr", text(self.outer_lr)),
            ("outer-momentum", text(self.outer_momentum)),
            ("outer-alpha", text(self.outer_alpha)),
            ("gamma", text(self.gamma)),
            ("fragments", text(self.fragments)),
            ("delay", text(self.delay)),
            ("compressor", text(self.compressor)),
            ("consensus-step", text(self.consensus_step)),
            ("warm-up", text(self.warm_up)),
            ("lookahead-steps", text(self.lookahead_steps)),
            ("mu", text(self.mu)),
            ("beta1", text(self.beta1)),
            ("beta2", text(self.beta2)),
            ("eps", text(self.eps)),
            ("weight-decay", text(self.weight_decay)),
            ("clip-norm", text(self.clip_norm)),
        ];
        let nesterov = self.nesterov.then(|| "--nesterov".to_owned());
        let flags = all.into_iter();
        flags
            .filter_map(|(flag, value)| Some(format!("--{flag} {}", value?)))
            .chain(nesterov)
            .collect()
    }
}

/// What a rule refuses, by the flag that it comes from.
pub(crate) fn refused(algorithm: &str, config: &RuleConfig, error: &ConfigError) -> SettingError {
    let (flag, value) = match error {
        ConfigError::OutOfRange { field, value, .. } => (flag_of(field), value.to_string()),
        ConfigError::NoLocalSteps { period, .. } => ("period", period.to_string()),
        ConfigError::NoLocal { local, .. } => ("local", (*local).to_owned()),
        ConfigError::NotContracting { .. } => ("compressor", config.compressor.to_string()),
        ConfigError::NoCodec { codec, .. } | ConfigError::Codec { codec, .. } => {
            ("wire", codec.to_string())
        }
        _ => ("algorithm", algorithm.to_owned()),
    };
    SettingError {
        flag,
        value,
        what: format!("{algorithm}: {error}"),
    }
}

/// By the name of the setting in gaggle-optim.
fn flag_of(field: &str) -> &'static str {
    match field {
        "period" => "period",
        "global_period" => "global-period",
        // NoLoCo's β is its outer step.
        "outer_lr" | "beta" => "outer-lr",
        "outer_momentum" => "outer-momentum",
        "alpha" => "outer-alpha",
        "gamma" => "gamma",
        "fragments" => "fragments",
        "delay" => "delay",
        "ratio" | "levels" => "compressor",
        "consensus_step" => "consensus-step",
        "warm_up" => "warm-up",
        "lookahead_steps" => "lookahead-steps",
        "mu" => "mu",
        "beta1" => "beta1",
        "beta2" => "beta2",
        "eps" => "eps",
        "weight_decay" => "weight-decay",
        "clip" => "clip-norm",
        "momentum" => "momentum",
        _ => "algorithm",
    }
}

#[cfg(test)]
mod tests {
    use crate::settings::{Args, Settings};
    use clap::Parser;
    use gaggle::optim::{Compressor, LocalKind, NAMES};
    use std::collections::BTreeSet;

    fn parse(flags: &str) -> Result<Settings, String> {
        let flags = std::iter::once("gaggle-demo").chain(flags.split_whitespace());
        let args = Args::try_parse_from(flags).map_err(|e| e.to_string())?;
        args.settings().map_err(|e| e.to_string())
    }

    /// A setting that a flag does not reach would stay a secret.
    #[test]
    fn flags_reach_the_rules() {
        let flags = "--period 7 --local momentum --outer-lr 0.6 --outer-momentum 0.8 --outer-alpha 0.4 \
             --global-period 5 --gamma 0.3 --fragments 3 --delay 1 --compressor qsgd:16 --consensus-step 0.2 --warm-up 9 \
             --lookahead-steps 4 --mu 0.7 --beta1 0.8 --beta2 0.95 --eps 0.000001 --weight-decay 0.01 --clip-norm 2";
        let s = parse(&format!("--algorithm diloco --momentum 0.85 {flags}")).unwrap();
        let c = s.rule_config("diloco");
        assert_eq!((c.period, c.local), (Some(7), Some(LocalKind::Momentum)));
        assert_eq!((c.outer_lr, c.outer_momentum), (Some(0.6), Some(0.8)));
        assert_eq!((c.alpha, c.global_period, c.gamma), (Some(0.4), 5, 0.3));
        assert_eq!((c.fragments, c.delay, c.warm_up), (3, 1, 9));
        assert!(matches!(c.compressor, Compressor::Qsgd { levels: 16, .. }));
        assert_eq!((c.consensus_step, c.lookahead_steps), (0.2, 4));
        assert_eq!((c.mu, c.beta1, c.beta2), (Some(0.7), 0.8, 0.95));
        assert_eq!((c.eps, c.weight_decay, c.momentum), (1e-6, 0.01, 0.85));
        assert!(c.clip.is_some() && !c.nesterov);
        let nesterov = parse("--algorithm qg-dmsgd --nesterov").unwrap();
        assert!(nesterov.rule_config("qg-dmsgd").nesterov);
        assert_eq!(nesterov.single.given(), ["--nesterov"]);
        // And they can be told, each of them, for who wants to repeat a run.
        let given = s.single.given().join(" ");
        let pairs = |text: &str| -> BTreeSet<String> {
            let flags = text.split("--").map(|f| f.trim().to_owned());
            flags.filter(|f| !f.is_empty()).collect()
        };
        assert_eq!(pairs(&given), pairs(flags));
        assert_eq!(parse("").unwrap().single.given(), [""; 0]);
    }

    /// Everything that a rule is made of happens within a hundred steps.
    #[test]
    fn defaults_are_for_short_runs() {
        let s = parse("").unwrap();
        for name in NAMES {
            let config = s.rule_config(name);
            let rule = s.rules.make(name, &config).unwrap();
            assert!(rule.period().unwrap_or(1) <= 12, "{name}");
            assert!(config.period.unwrap_or(1) <= 20, "{name}");
            assert!(config.warm_up <= 20, "{name}");
        }
    }

    #[test]
    fn nonsense_is_refused_by_flag_and_algorithm() {
        for (flags, want) in [
            ("--algorithm diloco --period 0", "--period 0: diloco: "),
            (
                "--algorithm dmsgd,d2 --period 4",
                "--period 4: d2: period is 4; every step of d2 communicates",
            ),
            (
                "--algorithm qg-dmsgd --local adamw",
                "--local adamw: qg-dmsgd: ",
            ),
            (
                "--algorithm streaming-diloco --fragments 30",
                "--fragments 30: streaming-diloco: ",
            ),
            (
                "--algorithm streaming-diloco --delay 5",
                "--delay 5: streaming-diloco: ",
            ),
            ("--algorithm noloco --gamma 0", "--gamma 0: noloco: "),
            ("--algorithm noloco --outer-lr 0", "--outer-lr 0: noloco: "),
            (
                "--algorithm noloco --outer-alpha 1",
                "--outer-alpha 1: noloco: ",
            ),
            (
                "--algorithm gossip-pga --global-period 0",
                "--global-period 0: gossip-pga: ",
            ),
            (
                "--algorithm choco --compressor top-k:2",
                "--compressor 2: choco: ratio is 2; it must be above 0 and at most 1",
            ),
            (
                "--algorithm choco --compressor zip",
                "there is no compressor \"zip\"",
            ),
            ("--algorithm choco --wire bf16", "--wire bf16: choco: "),
            ("--local adam", "there is no local step \"adam\""),
            ("--clip-norm -1", "--clip-norm -1: dmsgd: "),
            ("--algorithm dadam --beta2 1", "--beta2 1: dadam: "),
        ] {
            let error = parse(flags).unwrap_err();
            assert!(error.contains(want), "{flags}: {error}");
        }
    }
}
