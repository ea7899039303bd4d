//! `cargo xtask consumers`: is each library crate of use alone?
//!
//! For each there is a program in `xtask/consumers/` that knows only this crate (and `gaggle-core`, where the seam's types are needed); it is checked in a package of its own outside the workspace, so that no other crate's features help.

use crate::{
    tool,
    workspace::{Workspace, root},
};
use anyhow::{Context, Result, ensure};
use std::{collections::BTreeSet, fs, path::Path};

/// A crate and the program that uses it.
struct Consumer {
    krate: &'static str,
    program: &'static str,
}

macro_rules! consumers {
    ($($krate:literal: $file:literal,)*) => {
        &[$(Consumer { krate: $krate, program: include_str!(concat!("../consumers/", $file)) },)*]
    };
}

const CONSUMERS: &[Consumer] = consumers! {
    "gaggle-core": "core.rs",
    "gaggle-kernels": "kernels.rs",
    "gaggle-topology": "topology.rs",
    "gaggle-collectives": "collectives.rs",
    "gaggle-transport": "transport.rs",
    "gaggle-optim": "optim.rs",
    "gaggle-launch": "launch.rs",
    "gaggle-trace": "trace.rs",
    "gaggle-engine": "engine.rs",
    "gaggle-ddp": "ddp.rs",
    "gaggle": "gaggle.rs",
};

/// Programs, not libraries; and the example of a library that is a consumer itself.
const NOT_CONSUMED: [&str; 8] = [
    "gaggle-cli",
    "gaggle-demo",
    "gaggle-benches",
    "gaggle-integration-tests",
    "gaggle-spikes",
    "custom-optimizer",
    "custom-optimizer-method",
    "xtask",
];

pub(crate) fn run() -> Result<()> {
    let workspace = Workspace::load()?;
    complete(&workspace)?;
    let scratch = workspace.target_dir.join("consumers");
    for consumer in CONSUMERS {
        let package = workspace.packages.get(consumer.krate);
        let package = package.with_context(|| format!("{} is no package", consumer.krate))?;
        let dir = scratch.join(consumer.krate);
        write(consumer, &package.dir, &dir)?;
        let mut check = tool::cargo(&["check", "--quiet", "--manifest-path"]);
        check.arg(dir.join("Cargo.toml"));
        // One folder for what all of them share.
        tool::run(check.env("CARGO_TARGET_DIR", scratch.join("target")))?;
    }
    // An optimizer from outside: by itself, so that no other package's features help.
    tool::run(&mut tool::cargo(&[
        "check",
        "--quiet",
        "--package=custom-optimizer-method",
    ]))?;
    println!("consumers: {} crates are of use alone", CONSUMERS.len());
    Ok(())
}

/// No library crate without a consumer.
fn complete(workspace: &Workspace) -> Result<()> {
    let known: BTreeSet<&str> = CONSUMERS
        .iter()
        .map(|c| c.krate)
        .chain(NOT_CONSUMED)
        .collect();
    let missing: Vec<&String> = workspace
        .packages
        .keys()
        .filter(|name| !known.contains(name.as_str()))
        .collect();
    ensure!(
        missing.is_empty(),
        "without a program in xtask/consumers: {missing:?}"
    );
    Ok(())
}

fn write(consumer: &Consumer, krate: &Path, dir: &Path) -> Result<()> {
    let src = dir.join("src");
    fs::create_dir_all(&src).with_context(|| format!("cannot make {}", src.display()))?;
    let mut deps = format!("{} = {{ path = {krate:?} }}\n", consumer.krate);
    if consumer.krate != "gaggle-core" && consumer.program.contains("gaggle_core::") {
        deps.push_str(&format!(
            "gaggle-core = {{ path = {:?} }}\n",
            root().join("crates/core")
        ));
    }
    let manifest = format!(
        "[package]\nname = \"consumer\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n[workspace]\n\n[dependencies]\n{deps}"
    );
    fs::write(dir.join("Cargo.toml"), manifest)?;
    fs::write(src.join("main.rs"), consumer.program)?;
    // The versions that the workspace is tested with; cargo drops those that are not needed.
    fs::copy(root().join("Cargo.lock"), dir.join("Cargo.lock"))?;
    Ok(())
}
