//! `cargo xtask demo`: build and run the demo; and the short run of it that CI checks.

use crate::{tool, workspace::Workspace};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{ffi::OsString, fmt, process::Command};

/// The demo was run and ended with this exit code, and has said why.
#[derive(Debug)]
pub(crate) struct Ended(pub(crate) u8);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the demo ended with exit code {}", self.0)
    }
}

impl std::error::Error for Ended {}

pub(crate) fn run(options: &[OsString]) -> Result<()> {
    let mut demo = build()?;
    let status = demo.args(options).status().context("cannot run the demo")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => Err(Ended(u8::try_from(code).unwrap_or(1)).into()),
        None => bail!("the launcher did not end by itself ({status})"),
    }
}

/// Builds launcher and demo; returns `gaggle demo`.
fn build() -> Result<Command> {
    tool::run(&mut tool::cargo(&[
        "build",
        "--package=gaggle-cli",
        "--package=gaggle-demo",
        "--bins",
    ]))?;
    let mut demo = Command::new(Workspace::load()?.program("gaggle"));
    demo.arg("demo");
    // Its buffers are ordinary memory: asking first whether all are mapped would only add to the bytes that are held against the formula.
    if std::env::var_os("GAGGLE_FUSION").is_none() {
        demo.env("GAGGLE_FUSION", "off");
    }
    Ok(demo)
}

/// Two ranks, two epochs, evenly split data; fails unless the result is what it must be.
pub(crate) fn short_and_checked() -> Result<()> {
    let mut demo = build()?;
    let page = Workspace::load()?.target_dir.join("ci-demo.html");
    demo.args([
        "--ranks",
        "2",
        "--epochs",
        "2",
        "--partition",
        "iid",
        "--json",
        "--output",
    ])
    .arg(page);
    eprintln!("$ {}", tool::line(&demo));
    check(&tool::output(&mut demo)?)
}

/// What must hold of the short run, whatever the machine.
fn check(json: &str) -> Result<()> {
    let story: Value = serde_json::from_str(json).context("stdout is not one JSON object")?;
    let runs = story["runs"]
        .as_array()
        .context("the object has no `runs`")?;
    ensure!(
        runs.len() >= 3,
        "{} runs, expected all-reduce, DmSGD and QG-DmSGD",
        runs.len()
    );
    let params = story["setting"]["parameters"]
        .as_u64()
        .context("`setting.parameters` is missing")?;
    let model_bytes = 4.0 * params as f64;
    let mut agreed = 0;
    for run in runs {
        let algorithm = run["algorithm"]
            .as_str()
            .context("a run without `algorithm`")?;
        let topology = run["topology"]
            .as_str()
            .context("a run without `topology`")?;
        let number = |key: &str| {
            run[key]
                .as_f64()
                .with_context(|| format!("{algorithm}: no number `{key}`"))
        };
        let name = format!("{algorithm} on {topology}");
        ensure!(run["ranks"] == 2, "{name}: not 2 ranks");
        for key in ["accuracy_mean_model", "accuracy_local_mean"] {
            let accuracy = number(key)?;
            ensure!(
                (0.90..=1.0).contains(&accuracy),
                "{name}: {key} is {accuracy}, expected at least 0.90"
            );
        }
        let digests = run["digests"]
            .as_array()
            .context("a run without `digests`")?;
        ensure!(
            digests.len() == 2,
            "{name}: {} digests for 2 ranks",
            digests.len()
        );
        if is_all_reduce(algorithm) {
            ensure!(
                digests[0] == digests[1],
                "{name}: the ranks ended with different parameters: {digests:?}"
            );
            agreed += 1;
        }
        // 2S(P−1)/P of a ring or direct all-reduce, and S of one neighbour per step, are both S for two ranks.
        let bytes = number("bytes_per_rank_step")?;
        ensure!(
            (bytes - model_bytes).abs() < 1e-6 * model_bytes,
            "{name}: {bytes} payload bytes per rank and step, expected {model_bytes}"
        );
        println!(
            "{name}: accuracy {:.4}, {bytes} payload bytes per rank and step as the formula has it",
            number("accuracy_mean_model")?
        );
    }
    ensure!(agreed > 0, "no all-reduce run among {} runs", runs.len());
    Ok(())
}

fn is_all_reduce(algorithm: &str) -> bool {
    algorithm.replace(['-', '_'], "").contains("allreduce")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn story() -> Value {
        let run = |algorithm: &str, digests: [&str; 2]| {
            json!({
                "algorithm": algorithm, "topology": "one-peer-exp", "ranks": 2,
                "accuracy_mean_model": 0.95, "accuracy_local_mean": 0.94,
                "bytes_per_rank_step": 400.0, "digests": digests,
            })
        };
        let runs = [
            run("all-reduce", ["a", "a"]),
            run("dmsgd", ["b", "c"]),
            run("qg-dmsgd", ["d", "e"]),
        ];
        json!({"runs": runs, "setting": {"parameters": 100}})
    }

    fn refused(change: impl Fn(&mut Value), why: &str) {
        let mut story = story();
        change(&mut story);
        let error = format!("{:#}", check(&story.to_string()).unwrap_err());
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn a_good_run_passes_and_each_fault_is_named() {
        check(&story().to_string()).unwrap();
        refused(
            |s| s["runs"][1]["accuracy_mean_model"] = json!(0.89),
            "accuracy_mean_model is 0.89",
        );
        refused(
            |s| s["runs"][1]["accuracy_local_mean"] = json!(null),
            "accuracy_local_mean",
        );
        refused(
            |s| s["runs"][0]["digests"][1] = json!("z"),
            "different parameters",
        );
        refused(
            |s| s["runs"][0]["algorithm"] = json!("sgd"),
            "no all-reduce run",
        );
        refused(
            |s| s["runs"][2]["bytes_per_rank_step"] = json!(401.0),
            "expected 400",
        );
        refused(|s| s["runs"] = json!([]), "0 runs");
        refused(|s| s["runs"][0]["ranks"] = json!(3), "not 2 ranks");
    }
}
