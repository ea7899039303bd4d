//! `cargo xtask bench`: the criterion suites.

use crate::tool;
use anyhow::Result;

pub(crate) fn run(smoke: bool, filter: Option<&str>) -> Result<()> {
    // Under `cargo test` criterion runs each benchmark once, in the profile that the tests have built already.
    let mut command = match smoke {
        true => tool::cargo(&["test", "--package=gaggle-benches", "--benches"]),
        false => tool::cargo(&["bench", "--package=gaggle-benches", "--benches"]),
    };
    if let Some(filter) = filter {
        command.args(["--", filter]);
    }
    tool::run(&mut command)
}
