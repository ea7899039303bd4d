//! `gaggle perf` as what is measured: built, started as ranks, and read.

use crate::net::{self, Net};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::{
    env,
    hash::{BuildHasher, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

/// `gaggle`, optimised, beside this program, of the same workspace: built now.
///
/// # Errors
/// It cannot be built.
pub fn build() -> Result<PathBuf> {
    let beside = beside()?;
    let target = beside.parent().context("it lies in no target directory")?;
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--release", "--package=gaggle-cli"])
        .args(["--bin=gaggle", "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    eprintln!("$ cargo build --release --package=gaggle-cli --bin=gaggle");
    let status = cargo.status().context("cannot run cargo")?;
    if !status.success() {
        bail!("gaggle cannot be built ({status})");
    }
    Ok(target.join("release/gaggle"))
}

/// The folder in which this program lies, and `gaggle` where it was built with it.
///
/// # Errors
/// The system does not say.
pub fn beside() -> Result<PathBuf> {
    let own = env::current_exe().context("cannot tell which program this is")?;
    Ok(own.parent().context("this program lies nowhere")?.into())
}

/// What is measured: an operation, at which sizes, how often, by what.
#[derive(Clone, Debug)]
pub struct Call {
    /// As `gaggle perf` names it; an all-reduce and a broadcast in place, others with two buffers.
    pub operation: &'static str,
    /// Bytes, one or several.
    pub sizes: Vec<u64>,
    /// Timed calls of each; one more comes before, with a budget as many as `gaggle perf` takes by itself, and one that is checked where `check` says so.
    pub calls: u32,
    /// As many calls of each as take so many seconds, but at least `calls`.
    pub budget: Option<f64>,
    /// Whether results are compared with what they must be.
    pub check: bool,
    /// The algorithm, where it is not to be chosen.
    pub algorithm: Option<String>,
    /// What is on the wire, where it is not plain.
    pub codec: Option<&'static str>,
}

impl Call {
    /// An all-reduce of these sizes, plain and by choice.
    pub fn of(sizes: &[u64], calls: u32) -> Call {
        Call {
            operation: "all-reduce",
            sizes: sizes.to_vec(),
            calls,
            budget: None,
            check: true,
            algorithm: None,
            codec: None,
        }
    }

    /// How often each size is called in all, where there is no budget.
    pub fn rounds(&self) -> u64 {
        u64::from(self.calls) + 1 + u64::from(self.check)
    }

    /// The command's arguments behind the program's name.
    pub fn arguments(&self) -> Vec<String> {
        let sizes: Vec<String> = self.sizes.iter().map(u64::to_string).collect();
        let place = match self.operation {
            "all-reduce" | "broadcast" => "in",
            _ => "out",
        };
        let mut words = vec!["perf".to_owned(), self.operation.to_owned()];
        words.extend(match self.budget {
            Some(seconds) => vec![
                format!("--budget={seconds}"),
                format!("--min-iters={}", self.calls),
            ],
            None => vec![format!("--iters={}", self.calls), "--warmup_iters=1".into()],
        });
        words.extend([
            format!("--place={place}"),
            "--json=-".into(),
            format!("--sizes={}", sizes.join(",")),
            format!("--check={}", u8::from(self.check)),
        ]);
        words.extend(self.algorithm.as_ref().map(|a| format!("--algorithm={a}")));
        if let Some(codec) = self.codec {
            words.extend([format!("--codec={codec}"), "--force-codec".into()]);
        }
        words
    }
}

/// What was measured at one size.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// Bytes of the vector.
    pub bytes: u64,
    /// Seconds of each call, the mean over the ranks.
    pub seconds: Vec<f64>,
    /// By which it was done.
    pub algorithm: String,
    /// What the rank that sends most has given to its links per call, headers and all.
    pub wire_bytes: f64,
    /// What the cost model says, in seconds.
    pub predicted: f64,
}

/// Reads what rank 0 has printed.
///
/// # Errors
/// It is no such thing, or a result was wrong.
pub fn read(text: &str) -> Result<Vec<Measured>> {
    let value: Value = serde_json::from_str(text).context("gaggle perf printed no JSON")?;
    let results = value["results"].as_array().context("it has no results")?;
    results.iter().map(one).collect()
}

fn one(figure: &Value) -> Result<Measured> {
    let number = |name: &str| {
        let n = figure[name].as_f64();
        n.with_context(|| format!("a figure without {name}"))
    };
    if figure["wrong"].as_u64().is_some_and(|wrong| wrong > 0) {
        bail!(
            "{} elements of {} are wrong",
            figure["wrong"],
            figure["name"]
        );
    }
    let samples = figure["samples"].as_array().context("no samples")?;
    let seconds = samples.iter().filter_map(Value::as_f64).map(|ns| ns / 1e9);
    Ok(Measured {
        bytes: number("bytes")? as u64,
        seconds: seconds.collect(),
        algorithm: figure["parameters"]["algorithm"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        wire_bytes: number("wire_bytes_per_rank").unwrap_or(0.0),
        predicted: number("predicted_ns").unwrap_or(f64::NAN) / 1e9,
    })
}

/// A command without what this process's environment says to gaggle and its like.
pub fn clean(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let said = name.to_string_lossy();
        let ours = said.starts_with("GAGGLE_") || said.starts_with("OMPI_");
        if ours
            || [
                "RANK",
                "WORLD_SIZE",
                "LOCAL_RANK",
                "MASTER_ADDR",
                "MASTER_PORT",
            ]
            .contains(&&*said)
        {
            command.env_remove(&name);
        }
    }
}

/// `gaggle` with ranks that it starts itself on this host, as processes or threads.
pub fn here(gaggle: &Path, what: &Call, ranks: &[&str]) -> Command {
    let mut command = Command::new(gaggle);
    clean(&mut command);
    command.args(what.arguments()).args(ranks);
    command
}

/// `gaggle` as so many ranks on every host, with these arguments.
pub fn on_hosts(net: &Net, gaggle: &Path, per_host: usize, arguments: &[String]) -> Vec<Command> {
    let world = net.wire().hosts * per_host;
    // It keeps nobody out of a network that only we have; several hosts want one.
    let word = || std::hash::RandomState::new().build_hasher().finish();
    let secret: String = (0..4).map(|_| format!("{:016x}", word())).collect();
    let rank = |rank: usize| {
        let mut command = net.on(rank / per_host, gaggle);
        clean(&mut command);
        command
            .args(arguments)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", world.to_string())
            .env("LOCAL_RANK", (rank % per_host).to_string())
            .env("LOCAL_WORLD_SIZE", per_host.to_string())
            .env("MASTER_ADDR", net::address(0))
            .env("MASTER_PORT", "29500")
            .env("GAGGLE_SECRET", &secret)
            .env("GAGGLE_JOB", "hosts")
            .env("GAGGLE_INTERFACE", net::INTERFACE)
            .env("GAGGLE_TIMEOUT", "60");
        command
    };
    (0..world).map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_and_wrong_ones_refused() {
        let text = |wrong: u32| {
            format!(
                r#"{{"results":[{{"name":"x","bytes":1024,"samples":[1000.0,2000],"wrong":{wrong},"wire_bytes_per_rank":1200.0,"predicted_ns":21682,"parameters":{{"algorithm":"ring"}}}}]}}"#
            )
        };
        let read_ = read(&text(0)).expect("fine");
        assert_eq!(read_[0].seconds, [1e-6, 2e-6]);
        assert_eq!((read_[0].bytes, &*read_[0].algorithm), (1024, "ring"));
        let error = read(&text(3)).expect_err("wrong").to_string();
        assert!(error.contains("3 elements"), "{error}");
        assert!(read("hello").is_err());
    }

    #[test]
    fn a_call_says_what_is_to_be_measured() {
        let what = Call {
            algorithm: Some("ring".into()),
            codec: Some("bf16"),
            check: false,
            ..Call::of(&[4, 1024], 3)
        };
        let words = what.arguments().join(" ");
        assert!(
            words.starts_with(
                "perf all-reduce --iters=3 --warmup_iters=1 --place=in --json=- --sizes=4,1024 "
            ),
            "{words}"
        );
        assert!(words.ends_with("--check=0 --algorithm=ring --codec=bf16 --force-codec"));
        assert_eq!(what.rounds(), 4);
        let what = Call {
            operation: "all-to-all",
            budget: Some(0.5),
            ..Call::of(&[4], 3)
        };
        let words = what.arguments().join(" ");
        assert!(
            words.starts_with("perf all-to-all --budget=0.5 --min-iters=3 --place=out "),
            "{words}"
        );
    }
}
