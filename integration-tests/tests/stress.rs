//! A few seconds of `cargo xtask stress` on each sort of memory and on TCP.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use gaggle_integration_tests::process::{Running, program};
use std::process::Command;

fn check(options: &[&str]) {
    let mut command = Command::new(program("stress"));
    command.args(options);
    let ended = Running::start(command).wait_for_all();
    assert_eq!(ended.code(), 0, "{options:?}: {}\n{}", ended.out, ended.err);
    assert!(ended.out.contains("; all held"), "{ended:#?}");
    assert!(!ended.out.contains(": 0 operations"), "{ended:#?}");
    // Somebody was harmed, where that was asked for and there was the time.
    let sum = ended.out.lines().last().unwrap_or_default();
    if options[1] == "5" {
        let unharmed = "0 short pauses, 0 long ones, 0 kills";
        assert!(!sum.contains(unharmed), "{ended:#?}");
    }
}

#[test]
fn what_must_hold_holds_while_ranks_are_stopped_and_killed() {
    for (ranks, buffers, seed) in [("4", "registered", "1"), ("3", "mixed", "2")] {
        check(&[
            "--seconds",
            "5",
            "--seed",
            seed,
            "--ranks",
            ranks,
            "--buffers",
            buffers,
        ]);
    }
}

#[test]
fn stress_goes_over_tcp_and_with_few_ranks() {
    check(&[
        "--seconds",
        "3",
        "--seed",
        "3",
        "--ranks",
        "3",
        "--transport",
        "tcp",
    ]);
    check(&[
        "--seconds",
        "1",
        "--seed",
        "4",
        "--ranks",
        "2",
        "--buffers",
        "plain",
    ]);
    check(&["--seconds", "1", "--seed", "5", "--ranks", "1"]);
}

#[test]
fn help_tells_the_options() {
    let mut command = Command::new(program("stress"));
    command.arg("--help");
    let ended = Running::start(command).wait_for_all();
    assert_eq!(ended.code(), 0);
    for option in ["--seconds", "--seed", "--ranks", "--transport", "--buffers"] {
        assert!(ended.out.contains(option), "{option}: {}", ended.out);
    }
}
