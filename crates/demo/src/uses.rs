//! Which flags which algorithm has a use for: a flag that nothing in a run uses is a mistake, not a wish to be passed over.

use crate::{
    rule_args::Given,
    rules::Rules,
    settings::{ALL_REDUCE, SettingError},
};
use gaggle::optim::LocalKind;

/// One algorithm: the flags of its own, and the local step that it is built around, whose flags it has too.
struct Uses {
    algorithm: &'static str,
    own: &'static [&'static str],
    inner: Option<LocalKind>,
}

const fn uses(
    algorithm: &'static str,
    own: &'static [&'static str],
    inner: Option<LocalKind>,
) -> Uses {
    Uses {
        algorithm,
        own,
        inner,
    }
}

const SGD: Option<LocalKind> = Some(LocalKind::Sgd);
const MOMENTUM: Option<LocalKind> = Some(LocalKind::Momentum);
const EMA: Option<LocalKind> = Some(LocalKind::Ema);
const ADAMW: Option<LocalKind> = Some(LocalKind::AdamW);

/// What is not listed here nobody has a use for; what every algorithm uses (`--clip-norm`) is in [`Uses::takes`].
const TABLE: [Uses; 42] = [
    uses(ALL_REDUCE, &[], MOMENTUM),
    uses("allreduce-sgd", &[], SGD),
    uses("allreduce-msgd", &[], MOMENTUM),
    uses("allreduce-adamw", &[], ADAMW),
    uses("dsgd-atc", &["period"], SGD),
    uses("dsgd-awc", &["period"], SGD),
    uses("dsgd-cta", &["period"], SGD),
    uses("dmsgd", &["period"], MOMENTUM),
    uses("dmsgd-awc", &["period"], MOMENTUM),
    uses("dmsgd-cta", &["period"], MOMENTUM),
    uses("dadamw-atc", &["period"], ADAMW),
    uses("dadamw-awc", &["period"], ADAMW),
    uses(
        "dadam",
        &["beta1", "beta2", "beta3", "eps", "weight-decay"],
        None,
    ),
    uses("damsgrad", &["beta1", "beta2", "eps", "weight-decay"], None),
    uses("dmsgd-yu", &["period", "momentum", "weight-decay"], None),
    uses("dmsgd-ying", &["momentum", "weight-decay"], None),
    uses(
        "qg-dmsgd",
        &["period", "momentum", "mu", "nesterov", "weight-decay"],
        None,
    ),
    uses(
        "qg-dmsgd-n",
        &["period", "momentum", "mu", "nesterov", "weight-decay"],
        None,
    ),
    uses("decentlam", &["momentum", "weight-decay"], None),
    uses("d2", &[], SGD),
    uses("exact-diffusion", &[], SGD),
    uses("edm", &[], EMA),
    uses("extra", &[], SGD),
    uses("diging", &[], SGD),
    uses("gt-semi", &[], SGD),
    uses("gt-atc", &[], SGD),
    uses("dsgt-hb", &[], EMA),
    uses("momentum-tracking", &["momentum", "weight-decay"], None),
    uses("sgp", &["period"], SGD),
    uses("osgp", &["delay"], SGD),
    uses("push-diging", &["weight-decay"], None),
    uses("local-sgd", &["period"], SGD),
    uses("gossip-pga", &["period", "global-period"], SGD),
    uses("slowmo", &["period", "outer-momentum", "outer-alpha"], SGD),
    uses(
        "bmuf",
        &["period", "outer-lr", "outer-momentum", "nesterov"],
        SGD,
    ),
    uses(
        "lookahead",
        &["period", "lookahead-steps", "outer-alpha"],
        SGD,
    ),
    uses("diloco", &["period", "outer-lr", "outer-momentum"], ADAMW),
    uses(
        "streaming-diloco",
        &[
            "period",
            "outer-lr",
            "outer-momentum",
            "outer-alpha",
            "fragments",
            "delay",
        ],
        ADAMW,
    ),
    uses(
        "noloco",
        &["period", "outer-lr", "outer-alpha", "gamma"],
        ADAMW,
    ),
    uses("choco", &["compressor", "consensus-step"], SGD),
    uses(
        "one-bit-adam",
        &["beta1", "beta2", "eps", "weight-decay", "warm-up"],
        None,
    ),
    uses("relaysgd", &[], SGD),
];

impl Uses {
    /// Whether the flag makes a difference, where the local step is `local` in place of the algorithm's own.
    fn takes(&self, flag: &str, local: Option<LocalKind>) -> bool {
        if flag == "clip-norm" || self.own.contains(&flag) {
            return true;
        }
        let Some(own) = self.inner else {
            return false;
        };
        flag == "local" || of_step(local.unwrap_or(own)).contains(&flag)
    }
}

/// The flags of a local step. Nesterov's may say so twice.
fn of_step(kind: LocalKind) -> &'static [&'static str] {
    match kind {
        LocalKind::Momentum => &["weight-decay", "momentum", "dampening", "nesterov"],
        LocalKind::Nesterov => &["weight-decay", "momentum", "nesterov"],
        LocalKind::Ema => &["weight-decay", "momentum"],
        LocalKind::AdamW => &["weight-decay", "beta1", "beta2", "eps"],
        LocalKind::RmsProp | LocalKind::Adagrad => &["weight-decay", "eps"],
        LocalKind::Lion => &["weight-decay", "beta1", "beta2"],
        _ => &["weight-decay"],
    }
}

/// Every given flag has an effect in this run.
///
/// Nothing is known of rules that a program has brought along: they may use every flag ([`Rules::make`] gives them a period and clipping).
///
/// # Errors
/// The first flag that no algorithm of the run has a use for, with those that would have.
pub(crate) fn all_used(
    given: &[Given],
    algorithms: &[String],
    local: Option<LocalKind>,
    rules: &Rules,
) -> Result<(), SettingError> {
    let known = |name: &&String| TABLE.iter().find(|u| u.algorithm == name.as_str());
    let ours = |name: &&String| rules.added().any(|(added, _)| added == name.as_str());
    let Some(idle) = given.iter().find(|given| {
        let takes =
            |name: &String| ours(&name) || known(&name).is_none_or(|u| u.takes(given.flag, local));
        !algorithms.iter().any(takes)
    }) else {
        return Ok(());
    };
    let names = |uses: &dyn Fn(&Uses) -> bool| -> Vec<&str> {
        let all = TABLE.iter().filter(|u| uses(u));
        all.map(|u| u.algorithm).collect()
    };
    let mut others = names(&|u| u.takes(idle.flag, local));
    let mut with = "";
    if others.is_empty() {
        // Under another local step some would.
        (others, with) = (names(&|u| u.takes(idle.flag, None)), " by themselves");
    }
    Err(SettingError {
        flag: idle.flag,
        value: idle.value.clone(),
        what: format!(
            "{} {} no use for it{}; those that have one{with}: {}",
            algorithms.join(", "),
            if algorithms.len() == 1 { "has" } else { "have" },
            local.map_or(String::new(), |l| format!(" with --local {}", l.name())),
            others.join(", ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Args, Settings};
    use clap::Parser;
    use gaggle::optim::{
        CATALOGUE, Decentralised, rule_by_name,
        testing::{DenseMixer, lockstep},
    };
    use gaggle::topology::by_name;
    use std::sync::Arc;

    fn settings(flags: &str) -> Result<Settings, String> {
        let flags = std::iter::once("gaggle-demo").chain(flags.split_whitespace());
        let args = Args::try_parse_from(flags).map_err(|e| e.to_string())?;
        args.settings().map_err(|e| e.to_string())
    }

    /// All flags of single algorithms, with values that make a difference within [`STEPS`] steps.
    const FLAGS: [(&str, &str); 24] = [
        ("period", "3"),
        ("local", "lion"),
        ("global-period", "2"),
        ("outer-lr", "0.3"),
        ("outer-momentum", "0.2"),
        ("outer-alpha", "0.25"),
        ("gamma", "0.4"),
        ("fragments", "2"),
        ("delay", "3"),
        ("compressor", "sign"),
        ("consensus-step", "0.6"),
        ("warm-up", "3"),
        ("lookahead-steps", "3"),
        ("mu", "0.5"),
        ("momentum", "0.5"),
        ("beta1", "0.5"),
        ("beta2", "0.9"),
        ("beta3", "0.2"),
        ("dampening", "0.5"),
        ("eps", "0.01"),
        ("weight-decay", "0.1"),
        ("nesterov", ""),
        ("clip-norm", "0.05"),
        // Not a flag of single algorithms, and of use to all: the test can tell.
        ("lr", "0.03"),
    ];
    const STEPS: u64 = 45;

    /// Where four ranks are after some steps, over a dense matrix.
    fn trained(algorithm: &str, s: &Settings) -> Vec<Vec<f32>> {
        // What the demo's own run does is this rule by another name.
        let name = match algorithm {
            ALL_REDUCE => "allreduce-msgd",
            name => name,
        };
        let graph = match name {
            "noloco" => "random-matching:3",
            "relaysgd" => "chain",
            _ => "ring",
        };
        let topology = Arc::from(by_name(graph, 4).unwrap());
        let mut ranks: Vec<Decentralised<f32>> = DenseMixer::of(topology)
            .into_iter()
            .map(|mixer| {
                let rule = rule_by_name(name, &s.rule_config(algorithm)).unwrap();
                Decentralised::unchecked(rule, Box::new(mixer), 5)
            })
            .collect();
        let mut x = vec![vec![0.5_f32, -1.0, 0.0, 2.0, 0.25]; 4];
        for step in 0..STEPS {
            lockstep(&mut ranks, s.lr, &mut x, |r, x, g| {
                for (k, (g, x)) in g.iter_mut().zip(x).enumerate() {
                    // Signs change, so that those who only look at signs tell steps apart.
                    let noise = 4.0 * ((3 * step as usize + 5 * k + 7 * r) as f32).sin();
                    *g = (0.5 + 0.2 * k as f32) * (x - r as f32 + k as f32) + noise;
                }
            })
            .unwrap();
        }
        x
    }

    /// Whether the flag makes a difference, as `base` has the other flags; `None`: it is refused with them.
    fn matters(algorithm: &str, base: &str, flag: &str, value: &str) -> Option<bool> {
        let line = |more: String| format!("--algorithm {algorithm} {base} {more}");
        let without = settings(&line(String::new())).unwrap();
        let with = settings(&line(format!("--{flag} {value}"))).ok()?;
        Some(trained(algorithm, &without) != trained(algorithm, &with))
    }

    #[test]
    fn the_table_knows_every_algorithm_of_the_library() {
        let names = std::iter::once(ALL_REDUCE).chain(CATALOGUE.iter().map(|e| e.name));
        assert!(names.eq(TABLE.iter().map(|u| u.algorithm)));
    }

    /// What the table says is what happens: flags that it knows change the run, and the others are refused.
    #[test]
    fn a_flag_changes_the_run_or_is_refused() {
        let mut wrong = vec![];
        for uses in &TABLE {
            for (flag, value) in FLAGS {
                let name = uses.algorithm;
                let takes = flag == "lr" || uses.takes(flag, None);
                let twice = flag == "nesterov" && name == "qg-dmsgd-n";
                let (want, got) = (takes.then_some(!twice), matters(name, "", flag, value));
                if want != got {
                    wrong.push(format!("{name} --{flag}: {got:?}, wanted {want:?}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// The table leaves no flag out that would have changed something: rules are made without it here.
    #[test]
    fn what_is_refused_would_have_made_no_difference() {
        for uses in &TABLE {
            for (flag, value) in FLAGS.into_iter().filter(|f| f.0 != "lr") {
                if uses.takes(flag, None) {
                    continue;
                }
                // Beside an algorithm that uses the flag it is no mistake.
                let other = TABLE.iter().find(|u| u.takes(flag, None)).unwrap();
                let (name, other) = (uses.algorithm, other.algorithm);
                let plain = settings(&format!("--algorithm {name}")).unwrap();
                let flags = format!("--algorithm {name},{other} --{flag} {value}");
                match settings(&flags) {
                    Ok(given) => {
                        assert_eq!(trained(name, &plain), trained(name, &given), "{flags}")
                    }
                    // Rules that cannot do what is asked say so.
                    Err(e) => assert!(e.contains(&format!("--{flag} {value}: {name}: ")), "{e}"),
                }
            }
        }
    }

    #[test]
    fn another_local_step_brings_its_own_flags() {
        let mut wrong = vec![];
        for kind in LocalKind::ALL {
            let base = format!("--local {}", kind.name());
            for (flag, value) in FLAGS.into_iter().filter(|f| f.0 != "local") {
                for name in [ALL_REDUCE, "dsgd-atc", "diloco"] {
                    let uses = TABLE.iter().find(|u| u.algorithm == name).unwrap();
                    let takes = flag == "lr" || uses.takes(flag, Some(kind));
                    let twice = flag == "nesterov" && kind == LocalKind::Nesterov;
                    let (want, got) = (takes.then_some(!twice), matters(name, &base, flag, value));
                    if want != got {
                        wrong.push(format!("{name} {base} --{flag}: {got:?}, wanted {want:?}"));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn a_flag_without_use_names_those_that_have_one() {
        for (flags, want) in [
            (
                "--algorithm allreduce --period 4",
                "--period 4: allreduce has no use for it; those that have one: dsgd-atc, ",
            ),
            (
                "--delay 1",
                "--delay 1: allreduce, dmsgd, qg-dmsgd have no use for it; those that have one: osgp, streaming-diloco",
            ),
            (
                "--algorithm dsgd-atc --momentum 0.5",
                "--momentum 0.5: dsgd-atc has no use for it; those that have one: allreduce, allreduce-msgd, ",
            ),
            (
                "--algorithm dsgd-atc --nesterov",
                "--nesterov: dsgd-atc has no use for it",
            ),
            (
                "--algorithm dmsgd --local adamw --momentum 0.5",
                "--momentum 0.5: dmsgd has no use for it with --local adamw; those that have one: dmsgd-yu, ",
            ),
            (
                "--algorithm qg-dmsgd --local adamw",
                "--local adamw: qg-dmsgd has no use for it",
            ),
        ] {
            let e = settings(flags).unwrap_err();
            assert!(e.starts_with(want), "{flags}: {e}");
        }
        // Somebody else's rule may use anything.
        let rules = Rules::default().with("mine", "my own", |c| rule_by_name("dmsgd", c));
        let args = Args::parse_from(["gaggle-demo", "--algorithm", "mine", "--delay", "1"]);
        assert!(args.settings_with(rules).is_ok());
    }
}
