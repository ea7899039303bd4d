//! `cargo xtask stress`: builds the program that harms ranks at random, and runs it.

use crate::{demo::Ended, tool, workspace::Workspace};
use anyhow::{Context, Result, bail};
use std::{ffi::OsString, process::Command};

/// What the program says to `--help`; a test of its own keeps it so.
const HELP: &str = include_str!("../../integration-tests/src/stress/help.txt");

/// Options go to the program; `--help` tells them, and builds nothing.
pub(crate) fn run(options: &[OsString]) -> Result<()> {
    if options.iter().any(|word| word == "--help" || word == "-h") {
        print!("{HELP}");
        return Ok(());
    }
    tool::run(&mut tool::cargo(&[
        "build",
        "--package=gaggle-integration-tests",
        "--bin=stress",
    ]))?;
    let mut stress = Command::new(Workspace::load()?.program("stress"));
    let status = stress.args(options).status().context("cannot run it")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => Err(Ended(u8::try_from(code).unwrap_or(1)).into()),
        None => bail!("it did not end by itself ({status})"),
    }
}
