//! The program, run as a user runs it: the rule from outside learns digits beside one of the library's.

use serde_json::Value;
use std::process::{Command, Output};

fn run(flags: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_custom-optimizer"));
    for name in ["RANK", "WORLD_SIZE"] {
        program.env_remove(name);
    }
    program.args(flags).output().expect("the program starts")
}

#[test]
fn an_outside_rule_trains_beside_the_librarys() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    let page = page.to_str().expect("a path in Unicode");
    let ended = run(&[
        "--threads",
        "--ranks",
        "3",
        "--epochs",
        "1",
        "--batch",
        "64",
        "--partition",
        "iid",
        "--lr",
        "0.002",
        "--algorithm",
        "signum,dsgd-atc",
        "--json",
        "--output",
        page,
    ]);
    assert!(ended.status.success(), "{ended:?}");
    let story: Value = serde_json::from_slice(&ended.stdout).expect("one JSON object");
    let runs = story["runs"].as_array().expect("a list of runs");
    let names: Vec<&str> = runs
        .iter()
        .filter_map(|r| r["algorithm"].as_str())
        .collect();
    assert_eq!(names, ["signum", "dsgd-atc"]);
    let accuracy = runs[0]["accuracy_mean_model"].as_f64().expect("a number");
    // One in ten by guessing.
    assert!(accuracy > 0.8, "{accuracy}");
}

#[test]
fn its_help_lists_the_rule_with_what_it_is_for() {
    let ended = run(&["--help"]);
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{text}");
    for words in [
        "signum",
        "sign descent with momentum",
        "qg-dmsgd",
        "one-peer-exp",
    ] {
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }
}
