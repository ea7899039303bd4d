//! `cargo xtask install`: what only some tests use, and only where it is there.

use crate::{tool, workspace::Workspace};
use anyhow::{Context, Result};
use clap::Subcommand;
use std::process::Command;

/// What can be installed.
#[derive(Subcommand, Clone, Copy)]
pub(crate) enum What {
    /// PyTorch's torchrun, about 5 GB, into target/torchrun; needs python3 with venv and pip
    Torchrun,
}

pub(crate) fn run(what: What) -> Result<()> {
    match what {
        What::Torchrun => torchrun(),
    }
}

fn torchrun() -> Result<()> {
    let venv = Workspace::load()?.target_dir.join("torchrun");
    println!(
        "installing PyTorch, about 5 GB, into {}; remove that folder to undo it",
        venv.display()
    );
    let mut python = Command::new("python3");
    python.args(["-m", "venv"]).arg(&venv);
    tool::run(&mut python)
        .context("this needs python3 with its venv module (Debian: python3-venv)")?;
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args([
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "torch",
        "numpy",
    ]);
    tool::run(&mut pip)?;
    let torchrun = venv.join("bin/torchrun");
    tool::run(
        Command::new(&torchrun)
            .arg("--help")
            .stdout(std::process::Stdio::null()),
    )?;
    println!("tests that need torchrun find it at {}", torchrun.display());
    Ok(())
}
