//! `cargo xtask ci`: the one list of what CI checks.
//!
//! Every step runs even when an earlier one has failed, so that one run tells everything; what is not installed is skipped and said to be.

use crate::{
    bench::{self, BenchArgs},
    consumers, demo, miri,
    test::{self, Count, TestArgs},
    tidy, tool,
    workspace::Workspace,
};
use anyhow::{Result, bail};
use std::{
    process::{Command, Stdio},
    time::Instant,
};

/// How a step ended.
enum Step {
    Done,
    Skipped(String),
}

pub(crate) fn run() -> Result<()> {
    let mut count = Count::default();
    let mut log: Vec<(String, Result<Step>, u64)> = Vec::new();
    let mut step = |name: &str, body: &mut dyn FnMut() -> Result<Step>| {
        eprintln!("\n== {name}");
        let start = Instant::now();
        let result = body();
        match &result {
            Ok(Step::Done) => {}
            Ok(Step::Skipped(why)) => eprintln!("== {name}: SKIPPED, {why}"),
            Err(error) => eprintln!("== {name}: FAILED, {error:#}"),
        }
        log.push((name.to_owned(), result, start.elapsed().as_secs()));
    };
    step("fmt", &mut || {
        done(tool::run(&mut tool::cargo(&["fmt", "--all", "--check"])))
    });
    step("tidy", &mut || done(tidy::run()));
    step("clippy", &mut || {
        let args = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        done(tool::run(&mut tool::cargo(&args)))
    });
    step("test", &mut || {
        let (tests, result) = test::count(&TestArgs::default());
        count = tests;
        done(result)
    });
    step("doc", &mut || {
        let mut doc = tool::cargo(&["doc", "--workspace", "--no-deps"]);
        done(tool::run(doc.env("RUSTDOCFLAGS", "-D warnings")))
    });
    step("features", &mut || done(features()));
    step("consumers", &mut || done(consumers::run()));
    step("bench --smoke", &mut || {
        done(bench::run(&BenchArgs {
            smoke: true,
            ..BenchArgs::default()
        }))
    });
    step("demo, short", &mut || done(demo::short_and_checked()));
    step("loom", &mut loom);
    step("minimum Rust", &mut minimum_rust);
    step("miri", &mut || match miri::run() {
        Ok(miri::Ran::Yes) => Ok(Step::Done),
        Ok(miri::Ran::NotThere) => Ok(Step::Skipped(miri::WHY_NOT.into())),
        Err(error) => Err(error),
    });
    step("deny", &mut || {
        if !tool::has_subcommand("deny") {
            return Ok(Step::Skipped(
                "cargo-deny is not installed (`cargo install cargo-deny`)".into(),
            ));
        }
        done(tool::run(&mut tool::cargo(&[
            "deny", "check", "licenses", "bans", "sources",
        ])))
    });
    println!("\nci:");
    let mut failed = Vec::new();
    for (name, result, seconds) in &log {
        let how = match result {
            Ok(Step::Done) => "ok".into(),
            Ok(Step::Skipped(why)) => format!("SKIPPED: {why}"),
            Err(error) => {
                failed.push(name.as_str());
                format!("FAILED: {error:#}")
            }
        };
        println!("  {name:14} {seconds:4} s  {how}");
    }
    count.print();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn done(result: Result<()>) -> Result<Step> {
    result.map(|()| Step::Done)
}

/// Each crate with features: without any, and with each alone.
fn features() -> Result<()> {
    for package in Workspace::load()?.packages.values() {
        let features: Vec<&String> = package
            .features
            .iter()
            .filter(|f| *f != "default")
            .collect();
        if features.is_empty() {
            continue;
        }
        let name = format!("--package={}", package.name);
        let bare = ["check", &name, "--no-default-features"];
        tool::run(&mut tool::cargo(&bare))?;
        for feature in features {
            tool::run(tool::cargo(&bare).arg(format!("--features={feature}")))?;
        }
    }
    Ok(())
}

/// The models of hand-written synchronisation, in the crates that have some: ordinary tests with `loom` in their names, here by themselves so that CI says that they ran. A crate that depends on loom and has no such test fails the step.
fn loom() -> Result<Step> {
    let workspace = Workspace::load()?;
    let mut any = false;
    for package in workspace.packages.values() {
        let manifest = std::fs::read_to_string(package.dir.join("Cargo.toml"))?;
        if !depends_on_loom(&manifest) {
            continue;
        }
        any = true;
        let name = format!("--package={}", package.name);
        let mut models = tool::cargo(&["test", &name, "--lib", "--tests", "loom"]);
        models.stdout(Stdio::piped());
        let out = models.stderr(Stdio::inherit()).output()?;
        let text = String::from_utf8_lossy(&out.stdout);
        print!("{text}");
        if !out.status.success() {
            bail!("the models of {} fail", package.name);
        }
        if passed(&text) == 0 {
            bail!(
                "{} depends on loom, and no test has it in its name",
                package.name
            );
        }
    }
    match any {
        true => Ok(Step::Done),
        false => Ok(Step::Skipped("no crate has a loom model".into())),
    }
}

fn depends_on_loom(manifest: &str) -> bool {
    manifest.lines().any(|line| line.starts_with("loom"))
}

/// How many tests have run, by what the test programs print.
fn passed(out: &str) -> u64 {
    let counts = out.lines().filter_map(|line| {
        let (_, rest) = line.split_once("test result: ok. ")?;
        rest.split_once(" passed")?.0.parse::<u64>().ok()
    });
    counts.sum()
}

/// The oldest Rust that the manifest promises, where rustup has it.
fn minimum_rust() -> Result<Step> {
    let workspace = Workspace::load()?;
    let Some(oldest) = workspace
        .packages
        .values()
        .find_map(|p| p.rust_version.clone())
    else {
        bail!("no package states a rust-version");
    };
    let mut probe = Command::new("rustup");
    probe
        .args(["run", &oldest, "rustc", "--version"])
        .stdin(Stdio::null());
    let there = probe.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        return Ok(Step::Skipped(format!(
            "Rust {oldest} is not installed (`rustup toolchain install {oldest}`)"
        )));
    }
    let mut check = Command::new("rustup");
    check.args([
        "run",
        &oldest,
        "cargo",
        "check",
        "--workspace",
        "--target-dir",
    ]);
    check
        .arg(workspace.target_dir.join("minimum-rust"))
        .current_dir(crate::workspace::root());
    done(tool::run(&mut check))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_have_run_are_counted_over_all_programs() {
        let out = "running 2 tests\n..\ntest result: ok. 2 passed; 0 failed; 7 filtered out\n\n\
            test result: ok. 0 passed; 0 failed\ntest result: ok. 5 passed; 0 failed\n";
        assert_eq!(passed(out), 7);
        let none = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 9 filtered out\n";
        assert_eq!(passed(none), 0);
    }

    #[test]
    fn crates_with_models_are_known_by_their_manifests() {
        assert!(depends_on_loom(
            "[dev-dependencies]\nloom.workspace = true\n"
        ));
        assert!(!depends_on_loom(
            "[dependencies]\nlibc = \"1\"\n# bloom, loom\n"
        ));
    }
}
