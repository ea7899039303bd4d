//! `cargo xtask bench`: the criterion suites.

use crate::tool;
use anyhow::Result;

pub(crate) fn run(smoke: bool, filter: Option<&str>) -> Result<()> {
    // Under `cargo test` criterion runs each benchmark once, in the profile that the tests have built already; with the whole workspace, so that the dependencies have the features they were built with.
    let mut command = match smoke {
        true => tool::cargo(&["test", "--workspace", "--bench=*"]),
        false => tool::cargo(&["bench", "--package=gaggle-benches", "--benches"]),
    };
    if let Some(filter) = filter {
        command.args(["--", filter]);
    }
    tool::run(&mut command)
}
