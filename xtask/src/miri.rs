//! `cargo xtask miri`: the unsafe code that makes no system call, under the interpreter that finds undefined behaviour.

use crate::{tool, workspace::Workspace};
use anyhow::{Result, bail};
use std::process::{Command, Stdio};

/// What is said where it is missing.
pub(crate) const WHY_NOT: &str =
    "miri is not installed (`rustup toolchain install nightly --component miri,rust-src`)";

/// Packages, and which of their tests: those whose unsafe code needs nothing of the system that miri does not have.
const TESTS: [(&str, &[&str]); 1] = [("gaggle-core", &["--lib"])];

/// Whether it could be run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ran {
    Yes,
    NotThere,
}

/// Runs it where it is installed: for the toolchain in use, or else for nightly.
pub(crate) fn run() -> Result<Ran> {
    let Some(miri) = found() else {
        return Ok(Ran::NotThere);
    };
    let target = Workspace::load()?.target_dir.join("miri");
    for (package, which) in TESTS {
        let mut command = miri();
        command
            .args(["test", "--package", package])
            .args(which)
            .env("CARGO_TARGET_DIR", &target);
        tool::run(&mut command)?;
    }
    Ok(Ran::Yes)
}

/// As [`run`], for a person who has asked for it.
pub(crate) fn asked() -> Result<()> {
    match run()? {
        Ran::Yes => Ok(()),
        Ran::NotThere => bail!("{WHY_NOT}"),
    }
}

fn found() -> Option<fn() -> Command> {
    if tool::has_subcommand("miri") {
        return Some(|| tool::cargo(&["miri"]));
    }
    let nightly = || {
        let mut command = Command::new("rustup");
        command
            .args(["run", "nightly", "cargo", "miri"])
            .current_dir(crate::workspace::root());
        command
    };
    let mut probe = nightly();
    probe
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    probe.status().is_ok_and(|s| s.success()).then_some(nightly)
}
