//! `cargo xtask test`: every test, by whichever runner is there, and one line that sums up.

use crate::tool;
use anyhow::{Result, bail};
use clap::Args;
use std::{process::Command, sync::Mutex};

/// What to test.
#[derive(Args, Default)]
pub(crate) struct TestArgs {
    /// Also the combinations that take too long for every day
    #[arg(long)]
    pub(crate) exhaustive: bool,
    /// Only this package, with or without `gaggle-`; may be given several times
    #[arg(long, short, value_name = "NAME")]
    pub(crate) package: Vec<String>,
    /// Only tests whose name contains this
    pub(crate) filter: Option<String>,
}

/// How many tests did what.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Count {
    /// The sum in the form that CI looks for.
    pub(crate) fn print(self) {
        println!(
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        );
    }

    fn add(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Reads a closing line of cargo test or nextest; of anything else, nothing.
    fn of_line(line: &str) -> Count {
        let line = plain(line);
        // nextest repeats the words of a failed test, indented: its own summary has counted them.
        let summary = || {
            line.trim()
                .strip_prefix("Summary")
                .filter(|l| l.contains(" run:"))
        };
        let Some(text) = line.strip_prefix("test result:").or_else(summary) else {
            return Count::default();
        };
        let before = |words: &[&str]| -> u64 {
            let tokens: Vec<&str> = text
                .split([' ', ',', ';', '(', ')'])
                .filter(|t| !t.is_empty())
                .collect();
            let pairs = tokens.windows(2).filter(|pair| words.contains(&pair[1]));
            pairs.filter_map(|pair| pair[0].parse::<u64>().ok()).sum()
        };
        Count {
            passed: before(&["passed"]),
            failed: before(&["failed", "exec", "timed"]),
            skipped: before(&["skipped", "ignored"]),
        }
    }
}

/// Without the colours of a terminal.
fn plain(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut parts = line.split('\x1b');
    plain.push_str(parts.next().unwrap_or_default());
    for part in parts {
        plain.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
    }
    plain
}

pub(crate) fn run(args: &TestArgs) -> Result<()> {
    let (count, done) = count(args);
    count.print();
    done
}

/// Runs the tests; the count is told even when some fail.
pub(crate) fn count(args: &TestArgs) -> (Count, Result<()>) {
    let mut count = Count::default();
    let done = all(args, &mut count);
    (count, done)
}

fn all(args: &TestArgs, count: &mut Count) -> Result<()> {
    // Tests of whole processes start these; the runners build only what they run.
    tool::run(&mut tool::cargo(&["build", "--workspace", "--bins"]))?;
    let mut failures = Vec::new();
    let mut step = |command: &mut Command| -> Result<()> {
        if args.exhaustive {
            command.env("GAGGLE_EXHAUSTIVE", "1");
        }
        let seen = Mutex::new(Count::default());
        let see = |line: &str| {
            seen.lock()
                .unwrap_or_else(|e| e.into_inner())
                .add(Count::of_line(line))
        };
        if !tool::run_seen(command, see)? {
            failures.push(tool::line(command));
        }
        count.add(seen.into_inner().unwrap_or_else(|e| e.into_inner()));
        Ok(())
    };
    let filter = args.filter.as_deref();
    if tool::has_subcommand("nextest") {
        let profile = if args.exhaustive {
            "exhaustive"
        } else {
            "default"
        };
        let mut command = tool::cargo(&["nextest", "run", "--no-tests=pass", "--profile", profile]);
        step(scope(&mut command, args).args(filter))?;
    } else {
        eprintln!("xtask: cargo-nextest is not installed, `cargo test` runs the tests");
        let mut command = tool::cargo(&[
            "test",
            "--no-fail-fast",
            "--lib",
            "--bins",
            "--tests",
            "--examples",
        ]);
        step(scope(&mut command, args).args(filter))?;
    }
    let mut command = tool::cargo(&["test", "--no-fail-fast", "--doc"]);
    step(scope(&mut command, args).args(filter))?;
    if !failures.is_empty() {
        bail!("tests failed in: {}", failures.join("; "));
    }
    if *count == Count::default() {
        bail!("no test was run");
    }
    Ok(())
}

fn scope<'a>(command: &'a mut Command, args: &TestArgs) -> &'a mut Command {
    if args.package.is_empty() {
        return command.arg("--workspace");
    }
    for name in &args.package {
        let whole = name == "gaggle" || name == "xtask" || name.starts_with("gaggle-");
        let name = if whole {
            name.clone()
        } else {
            format!("gaggle-{name}")
        };
        command.arg(format!("--package={name}"));
    }
    command
}

/// Rewrites the snapshots and shows which have changed.
pub(crate) fn snapshots() -> Result<()> {
    let mut command = tool::cargo(&["test", "--package=gaggle-collectives"]);
    tool::run(command.env("GAGGLE_SNAPSHOTS", "write"))?;
    let mut git = Command::new("git");
    git.args(["status", "--short", "--", "*snapshots*"])
        .current_dir(crate::workspace::root());
    match tool::output(&mut git)?.trim_end() {
        "" => println!("no snapshot has changed"),
        changed => println!("changed, to be read before they are committed:\n{changed}"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, passed: u64, failed: u64, skipped: u64) {
        assert_eq!(
            Count::of_line(line),
            Count {
                passed,
                failed,
                skipped
            },
            "{line}"
        );
    }

    #[test]
    fn closing_lines_are_understood() {
        check(
            "test result: ok. 13 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.36s\n",
            13,
            0,
            1,
        );
        check(
            "test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.23s",
            4,
            1,
            0,
        );
        check(
            "     Summary [   3.108s] 34 tests run: 34 passed, 2 skipped\n",
            34,
            0,
            2,
        );
        check(
            "     Summary [   3.108s] 34 tests run: 31 passed (1 slow), 2 failed, 1 timed out, 0 skipped",
            31,
            3,
            0,
        );
        check(
            "\x1b[32;1m     Summary\x1b[0m [   0.1s] \x1b[1m1\x1b[0m test run: \x1b[1m1\x1b[0m \x1b[32;1mpassed\x1b[0m, \x1b[1m0\x1b[0m \x1b[33;1mskipped\x1b[0m",
            1,
            0,
            0,
        );
        check("test output::tests::every_line ... ok", 0, 0, 0);
        check(
            "    test result: FAILED. 0 passed; 1 failed; 0 ignored",
            0,
            0,
            0,
        );
        check("[1] 5 passed, 3 failed", 0, 0, 0);
    }
}
