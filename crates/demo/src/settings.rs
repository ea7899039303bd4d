//! What a user can choose: the flags, and their values once checked.

use crate::{
    partition,
    rule_args::{RuleArgs, refused},
    rules::Rules,
};
use clap::{Parser, ValueEnum};
use gaggle::{Codec, optim, topology};
use std::path::PathBuf;

/// The name of the run that averages gradients in buckets under backward.
pub const ALL_REDUCE: &str = "allreduce";

/// The runs of `--algorithm all`.
pub const DEFAULT_ALGORITHMS: [&str; 3] = [ALL_REDUCE, "dmsgd", "qg-dmsgd"];

/// How the images are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Split {
    /// By label: each rank knows some digits well and others hardly.
    Dirichlet,
    /// Evenly and at random.
    Iid,
}

/// What parameters and gradients are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Wire {
    /// As they are: 32 bits.
    Plain,
    /// Rounded to bfloat16: 16 bits.
    Bf16,
}

impl Wire {
    /// The codec that stands for it.
    pub fn codec(self) -> Codec {
        match self {
            Wire::Plain => Codec::None,
            Wire::Bf16 => Codec::Bf16,
        }
    }
}

/// Trains a small network to read handwritten digits on several ranks at once, and compares ways to do it.
///
/// Each rank keeps its own images and its own copy of the network. With `allreduce` all ranks average their gradients in every step, so that the copies stay equal. With `dmsgd`, `qg-dmsgd` and most others nobody is in charge: in every step each rank averages its parameters with a neighbour or two, and the copies only stay close.
///
/// By default the images are dealt out unfairly, by label: most ranks hardly ever see some of the digits and have to learn them from their neighbours.
///
/// Started by itself this program is one rank alone. `gaggle demo` starts it on several processes that talk over TCP; `--threads` runs the ranks as threads of one process.
///
/// The default takes about half a minute on two cores and ends with a table and a page with plots (one HTML file). The columns of the table:
///
/// `averaged` is the test accuracy of the mean of all copies, `local mean` and `worst` are those of the ranks' own copies; `consensus` is how far the copies are apart; `bytes/step` is what a rank sent per step, counted at the link (but for what was under way while the copies were tested); `compute` is seconds of forward, backward and update; `communicate` is seconds with a message under way, `wait` those of them in which the rank could not compute, and `hidden` the share in which it went on computing.
#[derive(Clone, Debug, Parser)]
#[command(name = "gaggle-demo", version)]
pub struct Args {
    /// Number of ranks. With --threads 4 unless said; under a launcher it must be the launcher's.
    #[arg(short = 'n', long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Run the ranks as threads of this process.
    #[arg(long)]
    pub threads: bool,
    /// What to compare, separated by commas, of the algorithms below; `all` is allreduce, dmsgd and qg-dmsgd.
    #[arg(long, value_name = "NAMES", default_value = "all")]
    pub algorithm: String,
    /// Who averages with whom: one of the topologies below, with its parameters.
    #[arg(long, value_name = "NAME", default_value = "one-peer-exp")]
    pub topology: String,
    /// Passes over the training images, all ranks together.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub epochs: usize,
    /// Images per rank and step.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub batch: usize,
    /// Step size.
    #[arg(
        long,
        value_name = "X",
        allow_negative_numbers = true,
        default_value_t = 0.02
    )]
    pub lr: f64,
    /// How much of the last direction goes on, from 0 to below 1.
    #[arg(
        long,
        value_name = "X",
        allow_negative_numbers = true,
        default_value_t = 0.9
    )]
    pub momentum: f64,
    /// Of everything random: the same seed gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// How the images are dealt out.
    #[arg(long, value_enum, default_value_t = Split::Dirichlet)]
    pub partition: Split,
    /// How unfair `--partition dirichlet` is: the smaller, the fewer digits a rank sees.
    #[arg(
        long,
        value_name = "X",
        allow_negative_numbers = true,
        default_value_t = 0.1
    )]
    pub alpha: f64,
    /// What is on the wire.
    #[arg(long, value_enum, default_value_t = Wire::Plain)]
    pub wire: Wire,
    /// Settings of single algorithms.
    #[command(flatten)]
    pub single: RuleArgs,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Where the page goes.
    #[arg(long, value_name = "FILE", default_value = "gaggle-demo.html")]
    pub output: PathBuf,
}

/// A flag whose value has no meaning. Nothing has happened.
#[derive(Debug, thiserror::Error)]
#[error("--{flag} {value}: {what}")]
pub struct SettingError {
    /// Which flag.
    pub flag: &'static str,
    /// What was given.
    pub value: String,
    /// What is wrong with it.
    pub what: String,
}

/// What a run needs to know, checked; equal on every rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// In this order.
    pub algorithms: Vec<String>,
    /// A name of gaggle-topology.
    pub topology: String,
    /// At least 1.
    pub epochs: usize,
    /// At least 1.
    pub batch: usize,
    /// Above 0.
    pub lr: f64,
    /// From 0 to below 1.
    pub momentum: f64,
    /// Any.
    pub seed: u64,
    /// Who learns from what.
    pub partition: partition::Kind,
    /// What is on the wire.
    pub wire: Wire,
    /// Settings of single algorithms: each of `algorithms` has been made with them.
    pub single: RuleArgs,
    /// What the names of algorithms stand for.
    pub rules: Rules,
}

impl Args {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// The first flag that makes no sense, by name.
    pub fn settings(&self) -> Result<Settings, SettingError> {
        self.settings_with(Rules::default())
    }

    /// As [`settings`](Args::settings), where there are more rules than the library's.
    ///
    /// # Errors
    /// As there.
    pub fn settings_with(&self, rules: Rules) -> Result<Settings, SettingError> {
        at_least_one("epochs", self.epochs)?;
        at_least_one("batch", self.batch)?;
        if self.ranks == Some(0) {
            at_least_one("ranks", 0)?;
        }
        let positive = |v: f64| v.is_finite() && v > 0.0;
        check("lr", self.lr, positive(self.lr), "it must be above 0")?;
        check(
            "alpha",
            self.alpha,
            positive(self.alpha),
            "it must be above 0",
        )?;
        let holds = (0.0..1.0).contains(&self.momentum);
        check(
            "momentum",
            self.momentum,
            holds,
            "it must be at least 0 and below 1",
        )?;
        // Without a number of ranks the launcher has it: what is checked here is the name.
        let made = topology::by_name(&self.topology, self.ranks.unwrap_or(1));
        if let Err(e) = made
            && (self.ranks.is_some() || matches!(e, topology::TopologyError::UnknownName { .. }))
        {
            return Err(SettingError {
                flag: "topology",
                value: self.topology.clone(),
                what: e.to_string(),
            });
        }
        let settings = Settings {
            algorithms: algorithms(&self.algorithm, &rules)?,
            topology: self.topology.clone(),
            epochs: self.epochs,
            batch: self.batch,
            lr: self.lr,
            momentum: self.momentum,
            seed: self.seed,
            partition: match self.partition {
                Split::Iid => partition::Kind::Iid,
                Split::Dirichlet => partition::Kind::Dirichlet(self.alpha),
            },
            wire: self.wire,
            single: self.single.clone(),
            rules,
        };
        for name in settings.algorithms.iter().filter(|n| *n != ALL_REDUCE) {
            let config = settings.rule_config(name);
            let made = settings.rules.make(name, &config);
            made.map_err(|e| refused(name, &config, &e))?;
        }
        Ok(settings)
    }
}

impl Settings {
    /// As readers see the split: `iid`, `dirichlet(0.1)`.
    pub fn partition_name(&self) -> String {
        match self.partition {
            partition::Kind::Iid => "iid".into(),
            partition::Kind::Dirichlet(alpha) => format!("dirichlet({alpha})"),
        }
    }

    /// As readers see the wire.
    pub fn wire_name(&self) -> &'static str {
        match self.wire {
            Wire::Plain => "plain",
            Wire::Bf16 => "bf16",
        }
    }

    /// The settings of gaggle-optim's rule `algorithm`.
    pub fn rule_config(&self, algorithm: &str) -> optim::RuleConfig {
        let common = optim::RuleConfig {
            momentum: self.momentum,
            codec: self.wire.codec(),
            ..optim::RuleConfig::default()
        };
        self.single.config(algorithm, common)
    }
}

fn algorithms(text: &str, rules: &Rules) -> Result<Vec<String>, SettingError> {
    let mut names: Vec<String> = vec![];
    for name in text.split(',').map(str::trim) {
        let new: &[&str] = match name {
            "all" => &DEFAULT_ALGORITHMS,
            ALL_REDUCE => &[ALL_REDUCE],
            _ if rules.names().any(|known| known == name) => &[name],
            _ => {
                return Err(SettingError {
                    flag: "algorithm",
                    value: text.into(),
                    what: format!(
                        "there is no {name:?}; there are all, {ALL_REDUCE}, {}",
                        rules.names().collect::<Vec<_>>().join(", ")
                    ),
                });
            }
        };
        for name in new {
            if !names.iter().any(|n| n == name) {
                names.push((*name).to_string());
            }
        }
    }
    Ok(names)
}

fn at_least_one(flag: &'static str, value: usize) -> Result<(), SettingError> {
    check(flag, value, value > 0, "it must be at least 1")
}

fn check(
    flag: &'static str,
    value: impl ToString,
    holds: bool,
    what: &str,
) -> Result<(), SettingError> {
    if holds {
        return Ok(());
    }
    Err(SettingError {
        flag,
        value: value.to_string(),
        what: what.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(flags: &str) -> Result<Settings, String> {
        let args =
            Args::try_parse_from(std::iter::once("gaggle-demo").chain(flags.split_whitespace()))
                .map_err(|e| e.to_string())?;
        args.settings().map_err(|e| e.to_string())
    }

    #[test]
    fn the_flags_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn defaults_are_the_three_algorithms_on_skewed_data() {
        let s = parse("").unwrap();
        assert_eq!(s.algorithms, DEFAULT_ALGORITHMS);
        assert_eq!(s.topology, "one-peer-exp");
        assert_eq!(s.partition, partition::Kind::Dirichlet(0.1));
        assert_eq!(s.partition_name(), "dirichlet(0.1)");
    }

    #[test]
    fn algorithms_are_named_once_each_in_order() {
        let s = parse("--algorithm dsgd-atc,all,dsgd-atc").unwrap();
        assert_eq!(s.algorithms, ["dsgd-atc", "allreduce", "dmsgd", "qg-dmsgd"]);
        for name in optim::NAMES {
            assert!(parse(&format!("--algorithm {name}")).is_ok(), "{name}");
        }
        for entry in topology::CATALOGUE {
            let name = match entry.name {
                "inner-outer-exp" | "inner-outer-ring" => format!("{}:4", entry.name),
                "one-peer-over" => "one-peer-over:ring".into(),
                name => name.into(),
            };
            assert!(parse(&format!("-n 8 --topology {name}")).is_ok(), "{name}");
        }
    }

    #[test]
    fn nonsense_is_refused_by_flag() {
        for (flags, want) in [
            ("--epochs 0", "--epochs 0: it must be at least 1"),
            ("--batch 0", "--batch 0: it must be at least 1"),
            ("-n 0", "--ranks 0: it must be at least 1"),
            ("--lr 0", "--lr 0: it must be above 0"),
            ("--lr nan", "--lr NaN: it must be above 0"),
            ("--alpha -1", "--alpha -1: it must be above 0"),
            ("--momentum 1", "--momentum 1: it must be"),
            (
                "--algorithm sgd",
                "there is no \"sgd\"; there are all, allreduce",
            ),
            ("--topology moebius", "--topology moebius:"),
            ("--partition fair", "--partition"),
        ] {
            let error = parse(flags).unwrap_err();
            assert!(error.contains(want), "{flags}: {error}");
        }
    }
}
