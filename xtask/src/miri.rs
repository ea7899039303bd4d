//! `cargo xtask miri`: the unsafe code that makes no system call, under the interpreter that finds undefined behaviour.

use crate::{tool, workspace::Workspace};
use anyhow::{Result, bail};
use std::process::{Command, Stdio};

/// What is said where it is missing.
pub(crate) const WHY_NOT: &str =
    "miri is not installed (`rustup toolchain install nightly --component miri,rust-src`)";

/// Packages, which of their test programs, and the beginnings of the names of the tests: those whose unsafe code needs nothing of the system that miri does not have, and that are over in a minute there.
const TESTS: [(&str, &str, &[&str]); 3] = [
    // Erased memory, buffers, scopes, windows, words.
    ("gaggle-core", "--lib", &[]),
    // Averages in one pass, without the assembly that miri cannot run.
    ("gaggle-kernels", "--lib", &[]),
    // Memory that is lent between threads.
    (
        "gaggle-transport",
        "--lib",
        &[
            "inproc::tests::a_",
            "inproc::tests::cancelling",
            "inproc::tests::leaving",
        ],
    ),
];
/// Clocks run, and seeds and settings are read; a lock of a dependency makes pointers of numbers.
const FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-permissive-provenance";

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
    for (package, which, tests) in TESTS {
        let mut command = miri();
        command
            .args(["test", "--package", package, which, "--"])
            .args(tests)
            .env("MIRIFLAGS", FLAGS)
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
