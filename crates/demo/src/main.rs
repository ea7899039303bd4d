//! The demo's program: [`gaggle_demo::run_with`] the library's own update rules.
//!
//! `gaggle demo` starts several of it, one per rank; with `--threads` it has its ranks in itself.

use gaggle_demo::{rules::Rules, run_with};
use std::process::ExitCode;

fn main() -> ExitCode {
    run_with(Rules::default())
}
