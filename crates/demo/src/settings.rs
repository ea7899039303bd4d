//! What a user can choose: the flags, and their values once checked.

use crate::{
    data::{COUNT, TEST},
    partition,
    rule_args::{Given, RuleArgs, number, refused},
    rules::Rules,
    uses::all_used,
};
use clap::{Parser, ValueEnum};
use gaggle::{
    Codec,
    core::Topology,
    optim,
    topology::{TopologyError, by_name_seeded},
};
use std::path::PathBuf;

/// The name of the run that averages gradients in buckets under backward.
pub const ALL_REDUCE: &str = "allreduce";

/// The runs of `--algorithm all`.
pub const DEFAULT_ALGORITHMS: [&str; 3] = [ALL_REDUCE, "dmsgd", "qg-dmsgd"];

/// The topology unless said.
pub const DEFAULT_TOPOLOGY: &str = "one-peer-exp";

const DEFAULT_MOMENTUM: f64 = 0.9;
const DEFAULT_ALPHA: f64 = 0.1;

/// More passes than this nobody waits for.
const MOST_EPOCHS: usize = 1_000_000;

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
    #[arg(short = 'n', long, value_name = "N", allow_hyphen_values = true)]
    pub ranks: Option<usize>,
    /// Run the ranks as threads of this process.
    #[arg(long)]
    pub threads: bool,
    /// What to compare, separated by commas, of the algorithms below; `all` is allreduce, dmsgd and qg-dmsgd.
    #[arg(long, value_name = "NAMES", default_value = "all")]
    pub algorithm: String,
    /// Who averages with whom: one of the topologies below, with its parameters; else one-peer-exp. Random ones whose name has no seed draw from --seed.
    #[arg(long, value_name = "NAME")]
    pub topology: Option<String>,
    /// Passes over the training images, all ranks together.
    #[arg(
        long,
        value_name = "N",
        allow_hyphen_values = true,
        default_value_t = 10
    )]
    pub epochs: usize,
    /// Images per rank and step.
    #[arg(
        long,
        value_name = "N",
        allow_hyphen_values = true,
        default_value_t = 32
    )]
    pub batch: usize,
    /// Step size.
    #[arg(
        long,
        value_name = "X",
        allow_hyphen_values = true,
        default_value_t = 0.02
    )]
    pub lr: f64,
    /// How much of the last direction goes on, from 0 to below 1, in algorithms with momentum: 0.9.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub momentum: Option<f64>,
    /// Of everything random: parameters at the start, who gets which images and in which order, what random compressors keep, random topologies and matchings. The same seed gives the same bits, another one other draws.
    #[arg(
        long,
        value_name = "N",
        allow_hyphen_values = true,
        default_value_t = 1
    )]
    pub seed: u64,
    /// How the images are dealt out.
    #[arg(long, value_enum, default_value_t = Split::Dirichlet)]
    pub partition: Split,
    /// How unfair `--partition dirichlet` is: the smaller, the fewer digits a rank sees; 0.1.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub alpha: Option<f64>,
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
#[error("--{flag}{}{value}: {what}", if value.is_empty() { "" } else { " " })]
pub struct SettingError {
    /// Which flag.
    pub flag: &'static str,
    /// What was given; empty for a flag without a value.
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
        let images = COUNT - TEST;
        within("epochs", self.epochs, MOST_EPOCHS, "")?;
        let there_are = ", as many as there are images to learn from";
        within("batch", self.batch, images, there_are)?;
        within("ranks", self.ranks.unwrap_or(1), images, there_are)?;
        let positive = |v: f64| v.is_finite() && v > 0.0;
        let above = "it must be finite and above 0";
        check("lr", number(self.lr), positive(self.lr), above)?;
        let alpha = self.alpha.unwrap_or(DEFAULT_ALPHA);
        check("alpha", number(alpha), positive(alpha), above)?;
        if self.alpha.is_some() {
            let holds = self.partition == Split::Dirichlet;
            let what = "--partition iid has no use for it; dirichlet has";
            check("alpha", number(alpha), holds, what)?;
        }
        let momentum = self.momentum.unwrap_or(DEFAULT_MOMENTUM);
        let holds = (0.0..1.0).contains(&momentum);
        check(
            "momentum",
            number(momentum),
            holds,
            "it must be at least 0 and below 1",
        )?;
        self.single.check()?;
        let settings = Settings {
            algorithms: algorithms(&self.algorithm, &rules)?,
            topology: match &self.topology {
                Some(name) => name.clone(),
                None => DEFAULT_TOPOLOGY.into(),
            },
            epochs: self.epochs,
            batch: self.batch,
            lr: self.lr,
            momentum,
            seed: self.seed,
            partition: match self.partition {
                Split::Iid => partition::Kind::Iid,
                Split::Dirichlet => partition::Kind::Dirichlet(alpha),
            },
            wire: self.wire,
            single: self.single.clone(),
            rules,
        };
        // Without a number of ranks the launcher has it: what is checked here is the name.
        let made = by_name_seeded(&settings.topology, self.ranks.unwrap_or(1), self.seed);
        if let Err(e) = made
            && (self.ranks.is_some() || matches!(e, TopologyError::UnknownName { .. }))
        {
            return Err(settings.no_topology(&e));
        }
        let mut given = self.single.flags();
        if self.momentum.is_some() {
            given.push(Given {
                flag: "momentum",
                value: number(momentum),
            });
        }
        let local = settings.single.local;
        all_used(&given, &settings.algorithms, local, &settings.rules)?;
        for name in &settings.algorithms {
            let config = settings.rule_config(name);
            let made = settings.rules.make(same_settings(name), &config);
            made.map_err(|e| refused(name, &config, &e, &given))?;
        }
        Ok(settings)
    }
}

/// The rule of the library that takes the settings that this algorithm takes.
fn same_settings(algorithm: &str) -> &str {
    match algorithm {
        ALL_REDUCE => "allreduce-msgd",
        name => name,
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

    /// Who talks to whom among so many ranks; what is random draws from the seed.
    ///
    /// # Errors
    /// There is no such topology, or none for so many ranks.
    pub fn topology(&self, world: usize) -> Result<Box<dyn Topology>, SettingError> {
        by_name_seeded(&self.topology, world, self.seed).map_err(|e| self.no_topology(&e))
    }

    fn no_topology(&self, e: &TopologyError) -> SettingError {
        SettingError {
            flag: "topology",
            value: self.topology.clone(),
            what: e.to_string(),
        }
    }

    /// The settings of gaggle-optim's rule `algorithm`.
    pub fn rule_config(&self, algorithm: &str) -> optim::RuleConfig {
        let common = optim::RuleConfig {
            momentum: self.momentum,
            codec: self.wire.codec(),
            ..optim::RuleConfig::default()
        };
        self.single.config(algorithm, common, self.seed)
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

fn within(flag: &'static str, value: usize, most: usize, reason: &str) -> Result<(), SettingError> {
    check(flag, value, value > 0, "it must be at least 1")?;
    let what = format!("it must be at most {most}{reason}");
    check(flag, value, value <= most, &what)
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
        for entry in gaggle::topology::CATALOGUE {
            let name = match entry.name {
                "inner-outer-exp" | "inner-outer-ring" => format!("{}:4", entry.name),
                "one-peer-over" => "one-peer-over:ring".into(),
                name => name.into(),
            };
            assert!(parse(&format!("-n 8 --topology {name}")).is_ok(), "{name}");
        }
    }

    /// Values that nobody means: every one is refused by the name of its flag, as it was typed.
    #[test]
    fn nonsense_is_refused_by_flag() {
        let huge = "99999999999999999999";
        let positive = "it must be finite and above 0";
        for (flags, want) in [
            ("--epochs 0", "--epochs 0: it must be at least 1"),
            (
                "--epochs 2000000",
                "--epochs 2000000: it must be at most 1000000",
            ),
            ("--epochs -1", "invalid value '-1' for '--epochs <N>'"),
            ("--batch 0", "--batch 0: it must be at least 1"),
            (
                "--batch 9001",
                "--batch 9001: it must be at most 9000, as many",
            ),
            ("--batch -2", "invalid value '-2' for '--batch <N>'"),
            ("-n 0", "--ranks 0: it must be at least 1"),
            ("-n 9001", "--ranks 9001: it must be at most 9000"),
            ("-n -3", "invalid value '-3' for '--ranks <N>'"),
            ("--lr 0", &format!("--lr 0: {positive}")),
            ("--lr -0.1", &format!("--lr -0.1: {positive}")),
            ("--lr nan", &format!("--lr NaN: {positive}")),
            ("--lr inf", &format!("--lr inf: {positive}")),
            ("--lr -inf", &format!("--lr -inf: {positive}")),
            ("--lr -1e-300", &format!("--lr -1e-300: {positive}")),
            ("--lr --json", "invalid value '--json' for '--lr <X>'"),
            ("--lr fast", "invalid value 'fast' for '--lr <X>'"),
            ("--alpha -1", &format!("--alpha -1: {positive}")),
            ("--alpha 0", &format!("--alpha 0: {positive}")),
            (
                "--alpha 1 --partition iid",
                "--alpha 1: --partition iid has no use for it",
            ),
            ("--momentum 1", "--momentum 1: it must be"),
            ("--momentum -0.5", "--momentum -0.5: it must be"),
            ("--momentum nan", "--momentum NaN: it must be"),
            ("--momentum 1e300", "--momentum 1e300: it must be"),
            ("--seed -1", "invalid value '-1' for '--seed <N>'"),
            ("--seed 1.5", "invalid value '1.5' for '--seed <N>'"),
            (
                &format!("--seed {huge}"),
                "invalid value '99999999999999999999' for '--seed",
            ),
            (
                "--algorithm sgd",
                "--algorithm sgd: there is no \"sgd\"; there are all, allreduce",
            ),
            ("--algorithm dmsgd,", "--algorithm dmsgd,: there is no \"\""),
            ("--topology moebius", "--topology moebius:"),
            ("-n 6 --topology torus:2x2", "--topology torus:2x2: "),
            ("-n 6 --topology hypercube", "--topology hypercube: "),
            ("--partition fair", "--partition"),
            ("--wire zip", "invalid value 'zip' for '--wire"),
        ] {
            let error = parse(flags).unwrap_err();
            assert!(error.contains(want), "{flags}: {error}");
        }
    }

    /// One seed decides all draws, of compressors and topologies too; a name with a seed in it keeps that.
    #[test]
    fn the_seed_reaches_compressors_and_topologies() {
        let drawn = |flags: &str| {
            let s = parse(flags).unwrap();
            let edges = gaggle::topology::edges(&*s.topology(16).unwrap(), 0);
            (s.rule_config("choco").compressor, edges)
        };
        for topology in [
            "random-matching",
            "erdos-renyi:0.3",
            "d-equi-static:4",
            "u-equi-static:4",
            "od-equi-dyn",
            "ou-equi-dyn",
            "one-peer-over:random-matching",
            "lazy-random-matching",
        ] {
            for compressor in ["random-k:0.5", "qsgd:4"] {
                let flags =
                    format!("--algorithm choco --compressor {compressor} --topology {topology}");
                let with = |seed: u64| drawn(&format!("{flags} --seed {seed}"));
                assert_eq!(with(3), with(3), "{flags}");
                let (a, b) = (with(3), with(4));
                assert!(a.0 != b.0 && a.1 != b.1, "{flags}");
            }
        }
        let named = |seed: u64| {
            let s = parse(&format!("--topology random-matching:7 --seed {seed}")).unwrap();
            gaggle::topology::edges(&*s.topology(16).unwrap(), 0)
        };
        assert_eq!(named(1), named(2));
    }
}
