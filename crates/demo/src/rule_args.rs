//! The flags of single algorithms, and the settings of rules that they make.
//!
//! The main type is [`RuleArgs`]. What is not said is the algorithm's own default, but for those whose defaults are made for runs of many thousand steps: here they have to do their work within a hundred.

use crate::settings::{ALL_REDUCE, SettingError};
use gaggle::optim::{Clip, Compressor, ConfigError, LocalKind, RuleConfig};
use std::fmt;

/// Settings that some algorithms have: at least one of those that are compared must have a use for each that is given.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Options of single algorithms")]
pub struct RuleArgs {
    /// Steps from one exchange to the next, local ones in between: diloco and noloco 10, streaming-diloco 20, local-sgd 8, slowmo and bmuf 12, others 1. allreduce averages in every step whatever is said here.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub period: Option<u64>,
    /// The step that every rank makes by itself, where the algorithm is built around one: sgd, momentum, nesterov, ema, adamw, rmsprop, adagrad, lion.
    #[arg(long, value_name = "NAME", value_parser = LocalKind::by_name)]
    pub local: Option<LocalKind>,
    /// Exchanges from one with everybody to the next: gossip-pga 6.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub global_period: Option<u64>,
    /// Size of the outer step: diloco 0.7, streaming-diloco 0.4, noloco 0.7, bmuf 1.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub outer_lr: Option<f64>,
    /// Momentum of the outer step: diloco and streaming-diloco 0.9, slowmo and bmuf 0.5.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub outer_momentum: Option<f64>,
    /// How much of slow values counts: slowmo's step 1; lookahead's, streaming-diloco's share of its own value, noloco's outer momentum 0.5.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub outer_alpha: Option<f64>,
    /// How hard noloco draws ranks together: 0.7.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub gamma: Option<f64>,
    /// Parts that streaming-diloco sends one after the other, at most as many as its period has steps: 4, or as many as can be.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub fragments: Option<u64>,
    /// Steps that a part of streaming-diloco is under way, less than from one part to the next: 2, or as many as can be. Steps until a message of osgp counts: 1.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub delay: Option<u64>,
    /// What choco leaves of its messages: identity, top-k:RATIO, random-k:RATIO, sign, qsgd:LEVELS; else top-k:0.25.
    #[arg(long, value_name = "NAME", value_parser = Compressor::by_name)]
    pub compressor: Option<Compressor>,
    /// How far choco goes towards its neighbours: 0.3.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub consensus_step: Option<f64>,
    /// Steps of plain Adam before one-bit-adam sends signs: 20.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub warm_up: Option<u64>,
    /// Steps of lookahead from one slow step to the next: 5.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub lookahead_steps: Option<u64>,
    /// μ of qg-dmsgd: as the momentum.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub mu: Option<f64>,
    /// β₁ of the Adams and lion: 0.9.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub beta1: Option<f64>,
    /// β₂: of the Adams 0.999, inside diloco and streaming-diloco 0.95, of lion 0.99.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub beta2: Option<f64>,
    /// β₃ of dadam, how slowly its second moment falls: 0.9.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub beta3: Option<f64>,
    /// How much less than whole a gradient goes into the momentum, from 0 to below 1: 0.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub dampening: Option<f64>,
    /// ε: of the Adams and rmsprop 1e-8, damsgrad 1e-6, adagrad 1e-10, one-bit-adam 1e-3.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub eps: Option<f64>,
    /// λ of every algorithm: 0.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub weight_decay: Option<f64>,
    /// Nesterov's form of the step, where the algorithm has one.
    #[arg(long)]
    pub nesterov: bool,
    /// The longest gradient; every rank cuts longer ones to it before the algorithm sees them, allreduce the mean of all.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub clip_norm: Option<f64>,
}

/// Defaults for a run of a hundred steps.
struct Short {
    period: Option<u64>,
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
            warm_up: 20,
            // Its signs move every weight, also those of pixels that were dark throughout the warm-up, whose second moment stays at 0.
            eps: (algorithm == "one-bit-adam").then_some(1e-3),
        }
    }
}

/// More parts than this nobody sends one by one: each has a lane of its own.
const MOST_FRAGMENTS: u64 = 1000;

impl RuleArgs {
    /// The settings of the rule called `algorithm`, over those that all rules have from other flags. What is random draws from `seed`.
    pub fn config(&self, algorithm: &str, common: RuleConfig, seed: u64) -> RuleConfig {
        let short = Short::of(algorithm);
        let period = self.period.or(short.period);
        // Of what is not said as much as fits what is.
        let (fragments, delay) = match period {
            Some(steps) => {
                let fragments = self.fragments.unwrap_or(4.min(steps));
                let apart = steps.checked_div(fragments).unwrap_or(0);
                (fragments, 2.min(apart.saturating_sub(1)))
            }
            // Somebody else's rule knows its own period, and so what fits it.
            None => (self.fragments.unwrap_or(common.fragments), common.delay),
        };
        RuleConfig {
            // It averages in every step.
            period: period.filter(|_| algorithm != ALL_REDUCE),
            local: self.local,
            global_period: self.global_period.unwrap_or(common.global_period),
            outer_lr: self.outer_lr,
            outer_momentum: self.outer_momentum,
            alpha: self.outer_alpha,
            gamma: self.gamma.unwrap_or(common.gamma),
            fragments,
            delay: self.delay.unwrap_or(delay),
            push_delay: self.delay.unwrap_or(common.push_delay),
            compressor: self.compressor.unwrap_or(common.compressor).seeded(seed),
            consensus_step: self.consensus_step.unwrap_or(common.consensus_step),
            warm_up: self.warm_up.unwrap_or(short.warm_up),
            lookahead_steps: self.lookahead_steps.unwrap_or(common.lookahead_steps),
            mu: self.mu,
            beta1: self.beta1.unwrap_or(common.beta1),
            beta2: self.beta2.or(common.beta2),
            beta3: self.beta3.unwrap_or(common.beta3),
            dampening: self.dampening.unwrap_or(common.dampening),
            eps: self.eps.or(short.eps).or(common.eps),
            weight_decay: self.weight_decay.unwrap_or(common.weight_decay),
            nesterov: self.nesterov,
            clip: self.clip_norm.map(Clip::Norm),
            ..common
        }
    }

    /// What no rule can know: how many lanes the demo has.
    pub(crate) fn check(&self) -> Result<(), SettingError> {
        match self.fragments {
            Some(f) if f > MOST_FRAGMENTS => Err(SettingError {
                flag: "fragments",
                value: f.to_string(),
                what: format!("it must be at most {MOST_FRAGMENTS}"),
            }),
            _ => Ok(()),
        }
    }
}

/// A flag as it was given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Given {
    pub(crate) flag: &'static str,
    /// Empty for a flag without one.
    pub(crate) value: String,
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value[..] {
            "" => write!(f, "--{}", self.flag),
            value => write!(f, "--{} {value}", self.flag),
        }
    }
}

/// A number as people write it: with an exponent where there would be many zeros.
pub(crate) fn number(value: f64) -> String {
    let usual = (1e-6..1e15).contains(&value.abs());
    match usual || value == 0.0 || !value.is_finite() {
        true => value.to_string(),
        false => format!("{value:e}"),
    }
}

impl RuleArgs {
    /// The flags that were given, as they were given: `--period 4`.
    pub fn given(&self) -> Vec<String> {
        self.flags().iter().map(Given::to_string).collect()
    }

    /// The flags that were given.
    pub(crate) fn flags(&self) -> Vec<Given> {
        let whole = |value: Option<u64>| value.map(|v| v.to_string());
        let real = |value: Option<f64>| value.map(number);
        let all = [
            ("period", whole(self.period)),
            ("local", self.local.map(|l| l.name().to_owned())),
            ("global-period", whole(self.global_period)),
            ("outer-lr", real(self.outer_lr)),
            ("outer-momentum", real(self.outer_momentum)),
            ("outer-alpha", real(self.outer_alpha)),
            ("gamma", real(self.gamma)),
            ("fragments", whole(self.fragments)),
            ("delay", whole(self.delay)),
            ("compressor", self.compressor.map(|c| c.to_string())),
            ("consensus-step", real(self.consensus_step)),
            ("warm-up", whole(self.warm_up)),
            ("lookahead-steps", whole(self.lookahead_steps)),
            ("mu", real(self.mu)),
            ("beta1", real(self.beta1)),
            ("beta2", real(self.beta2)),
            ("beta3", real(self.beta3)),
            ("dampening", real(self.dampening)),
            ("eps", real(self.eps)),
            ("weight-decay", real(self.weight_decay)),
            ("clip-norm", real(self.clip_norm)),
            ("nesterov", self.nesterov.then(String::new)),
        ];
        let flags = all.into_iter();
        flags
            .filter_map(|(flag, value)| value.map(|value| Given { flag, value }))
            .collect()
    }
}

/// What a rule refuses, by the flag that it comes from, as it was `given`.
pub(crate) fn refused(
    algorithm: &str,
    config: &RuleConfig,
    error: &ConfigError,
    given: &[Given],
) -> SettingError {
    let is_given = |flag: &str| given.iter().any(|g| g.flag == flag);
    let (flag, value, what) = match error {
        ConfigError::OutOfRange {
            field,
            value,
            wanted,
        } => {
            let what = match *field {
                "ratio" | "levels" => error.to_string(),
                "fragments" => format!(
                    "it must be from 1 to the period, {}",
                    config.period.unwrap_or(1)
                ),
                "delay" => format!(
                    "it must be below the steps from one of {} parts to the next, {}",
                    config.fragments,
                    config.period.unwrap_or(1) / config.fragments.max(1)
                ),
                _ => format!("it must be {wanted}"),
            };
            (flag_of(field), number(*value), what)
        }
        ConfigError::NoLocalSteps { period, .. } | ConfigError::OwnPeriod { period, .. } => {
            ("period", period.to_string(), error.to_string())
        }
        ConfigError::NoLocal { local, .. } => ("local", (*local).to_owned(), error.to_string()),
        ConfigError::NotContracting { .. } => (
            "compressor",
            config.compressor.to_string(),
            error.to_string(),
        ),
        ConfigError::NoCodec { codec, .. } | ConfigError::Codec { codec, .. } => {
            ("wire", codec.to_string(), error.to_string())
        }
        ConfigError::Nesterov => {
            let flag = if config.nesterov { "nesterov" } else { "local" };
            let what = format!(
                "Nesterov's step needs a --momentum above 0, not {}",
                number(config.momentum)
            );
            (flag, String::new(), what)
        }
        _ => ("algorithm", algorithm.to_owned(), error.to_string()),
    };
    // As it was typed, where it was.
    let typed = given.iter().find(|g| g.flag == flag);
    let value = typed.map_or(value, |g| g.value.clone());
    // A default that does not go with what was typed: that is to blame.
    let (flag, value) = match flag {
        "fragments" | "delay" if !is_given(flag) && is_given("period") => {
            ("period", config.period.unwrap_or(1).to_string())
        }
        _ => (flag, value),
    };
    SettingError {
        flag,
        value,
        what: format!("{algorithm}: {what}"),
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
        "delay" | "push_delay" => "delay",
        "ratio" | "levels" => "compressor",
        "consensus_step" => "consensus-step",
        "warm_up" => "warm-up",
        "lookahead_steps" => "lookahead-steps",
        "mu" => "mu",
        "beta1" => "beta1",
        "beta2" => "beta2",
        "beta3" => "beta3",
        "dampening" => "dampening",
        "eps" => "eps",
        "weight_decay" => "weight-decay",
        "clip" => "clip-norm",
        "momentum" => "momentum",
        _ => "algorithm",
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        rules::Rules,
        settings::{Args, Settings},
    };
    use clap::Parser;
    use gaggle::optim::{Compressor, LocalKind, NAMES, rule_by_name};
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
             --lookahead-steps 4 --mu 0.7 --beta1 0.8 --beta2 0.95 --beta3 0.7 --dampening 0.1 --eps 0.000001 --weight-decay 0.01 --clip-norm 2";
        // Somebody else's rule may have a use for all of them.
        let rules = Rules::default().with("mine", "my own", |c| rule_by_name("dsgd-atc", c));
        let line = format!("gaggle-demo --algorithm mine --momentum 0.85 {flags}");
        let args = Args::parse_from(line.split_whitespace());
        let s = args.settings_with(rules).unwrap();
        let c = s.rule_config("mine");
        assert_eq!((c.period, c.local), (Some(7), Some(LocalKind::Momentum)));
        assert_eq!((c.outer_lr, c.outer_momentum), (Some(0.6), Some(0.8)));
        assert_eq!((c.alpha, c.global_period, c.gamma), (Some(0.4), 5, 0.3));
        assert_eq!((c.fragments, c.delay, c.warm_up), (3, 1, 9));
        assert!(matches!(c.compressor, Compressor::Qsgd { levels: 16, .. }));
        assert_eq!((c.consensus_step, c.lookahead_steps), (0.2, 4));
        assert_eq!((c.mu, c.beta1, c.beta2), (Some(0.7), 0.8, Some(0.95)));
        assert_eq!(
            (c.eps, c.weight_decay, c.momentum),
            (Some(1e-6), 0.01, 0.85)
        );
        assert_eq!((c.beta3, c.dampening), (0.7, 0.1));
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
        let below_one = "it must be at least 0 and below 1";
        for (flags, want) in [
            (
                "diloco --period 0",
                "--period 0: diloco: it must be at least 1",
            ),
            (
                "diloco --period -4",
                "invalid value '-4' for '--period <N>'",
            ),
            (
                "dmsgd,d2 --period 4",
                "--period 4: d2: period is 4; every step of d2 communicates",
            ),
            (
                "dmsgd,qg-dmsgd --local adamw",
                "--local adamw: qg-dmsgd: qg-dmsgd has a step of its own",
            ),
            (
                "streaming-diloco --fragments 30",
                "--fragments 30: streaming-diloco: it must be from 1 to the period, 20",
            ),
            (
                "streaming-diloco --fragments 0",
                "--fragments 0: streaming-diloco: it must be from 1 to the period, 20",
            ),
            (
                "streaming-diloco --fragments 18446744073709551615",
                "--fragments 18446744073709551615: it must be at most 1000",
            ),
            (
                "streaming-diloco --fragments 1001 --period 100000",
                "--fragments 1001: it must be at most 1000",
            ),
            (
                "streaming-diloco --delay 5",
                "--delay 5: streaming-diloco: it must be below the steps from one of 4 parts to the next, 5",
            ),
            ("osgp --delay 0", "--delay 0: osgp: it must be from 1 to 64"),
            (
                "osgp --delay 65",
                "--delay 65: osgp: it must be from 1 to 64",
            ),
            (
                "streaming-diloco --period 0",
                "--period 0: streaming-diloco: ",
            ),
            (
                "noloco --gamma 0",
                "--gamma 0: noloco: it must be finite and above 0",
            ),
            ("noloco --gamma nan", "--gamma NaN: noloco: "),
            ("noloco --outer-lr 0", "--outer-lr 0: noloco: "),
            (
                "noloco --outer-alpha 1",
                &format!("--outer-alpha 1: noloco: {below_one}"),
            ),
            ("diloco --outer-lr -1", "--outer-lr -1: diloco: "),
            ("diloco --outer-lr inf", "--outer-lr inf: diloco: "),
            (
                "diloco --outer-momentum 1",
                &format!("--outer-momentum 1: diloco: {below_one}"),
            ),
            (
                "slowmo --outer-momentum -0.1",
                "--outer-momentum -0.1: slowmo: ",
            ),
            ("bmuf --outer-momentum 2", "--outer-momentum 2: bmuf: "),
            (
                "lookahead --outer-alpha -1",
                "--outer-alpha -1: lookahead: ",
            ),
            (
                "lookahead --lookahead-steps 0",
                "--lookahead-steps 0: lookahead: ",
            ),
            (
                "gossip-pga --global-period 0",
                "--global-period 0: gossip-pga: ",
            ),
            (
                "choco --compressor top-k:2",
                "--compressor top-k:2: choco: ratio is 2; it must be above 0 and at most 1",
            ),
            (
                "choco --compressor top-k:nan",
                "--compressor top-k:NaN: choco: ratio is NaN",
            ),
            (
                "choco --compressor random-k:-1",
                "--compressor random-k:-1: choco: ratio is -1",
            ),
            (
                "choco --compressor qsgd:0",
                "--compressor qsgd:0: choco: levels is 0",
            ),
            (
                "choco --compressor qsgd:99999999999",
                "there is no compressor \"qsgd:99999999999\"",
            ),
            ("choco --compressor zip", "there is no compressor \"zip\""),
            (
                "choco --compressor top-k",
                "there is no compressor \"top-k\"; there are identity, top-k:RATIO",
            ),
            ("choco --consensus-step 0", "--consensus-step 0: choco: "),
            (
                "choco --consensus-step 1.5",
                "--consensus-step 1.5: choco: ",
            ),
            ("choco --wire bf16", "--wire bf16: choco: "),
            ("dmsgd --local adam", "there is no local step \"adam\""),
            (
                "dmsgd --clip-norm -1",
                "--clip-norm -1: dmsgd: it must be finite and above 0",
            ),
            ("allreduce --clip-norm nan", "--clip-norm NaN: allreduce: "),
            ("dadam --beta2 1", &format!("--beta2 1: dadam: {below_one}")),
            ("dadam --beta1 -1", "--beta1 -1: dadam: "),
            ("dadam --beta3 1", &format!("--beta3 1: dadam: {below_one}")),
            ("dmsgd --dampening -1", "--dampening -1: dmsgd: "),
            (
                "dadam --eps 0",
                "--eps 0: dadam: it must be finite and above 0",
            ),
            ("dadam --eps -1e-300", "--eps -1e-300: dadam: "),
            ("qg-dmsgd --mu 1", &format!("--mu 1: qg-dmsgd: {below_one}")),
            (
                "dmsgd --weight-decay -1",
                "--weight-decay -1: dmsgd: it must be finite and not negative",
            ),
            (
                "allreduce --weight-decay -1",
                "--weight-decay -1: allreduce: ",
            ),
            (
                "dmsgd --nesterov --momentum 0",
                "--nesterov: dmsgd: Nesterov's step needs a --momentum above 0, not 0",
            ),
            (
                "allreduce --nesterov --momentum 0",
                "--nesterov: allreduce: ",
            ),
            (
                "dmsgd --local nesterov --momentum 0",
                "--local nesterov: dmsgd: Nesterov's step needs a --momentum above 0",
            ),
        ] {
            let error = parse(&format!("--algorithm {flags}")).unwrap_err();
            assert!(error.contains(want), "{flags}: {error}");
        }
    }

    /// What is not said fits what is.
    #[test]
    fn parts_and_delays_follow_a_short_period() {
        for period in [1, 2, 3, 5, 7, 8, 20, 100] {
            let s = parse(&format!("--algorithm streaming-diloco --period {period}")).unwrap();
            let c = s.rule_config("streaming-diloco");
            assert_eq!(c.fragments, period.min(4));
            assert!(c.delay <= 2 && c.delay < period / c.fragments, "{period}");
        }
        let c = |flags: &str| {
            let s = parse(&format!("--algorithm streaming-diloco {flags}")).unwrap();
            s.rule_config("streaming-diloco")
        };
        assert_eq!((c("").fragments, c("").delay), (4, 2));
        assert_eq!(c("--fragments 20").delay, 0);
    }
}
