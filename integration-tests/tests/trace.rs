//! The flight recorder in real jobs: what a killed rank did last is there, and nothing is left of a job that went well.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use gaggle::{
    Rank,
    trace::{Phase, Recording, place::recordings},
};
use gaggle_integration_tests::process::{Ended, Running, gaggle_run, program, signal, until};
use serde_json::Value;
use std::{path::Path, process::Command};
use tempfile::TempDir;

fn job(dir: &Path, ranks: u32, command: &[&str]) -> Command {
    let mut gaggle = gaggle_run(ranks, command);
    gaggle
        .env_remove("GAGGLE_TRACE")
        .env("GAGGLE_TRACE_DIR", dir);
    gaggle
}

fn rank(role: &str) -> String {
    format!("exec {} {role}", program("rank").display())
}

fn trace(args: &[&str]) -> Ended {
    let mut command = Command::new(program("gaggle"));
    command.arg("trace").args(args);
    let ended = Running::start(command).wait_for_all();
    assert_eq!(ended.code(), 0, "{ended:#?}");
    ended
}

/// Whether a rank's recording has an operation in flight.
fn is_waiting(dir: &Path, rank: u32) -> bool {
    recordings(dir).unwrap().iter().any(|path| {
        let Ok(r) = Recording::read(path) else {
            return false;
        };
        let flying = |op: &gaggle::trace::Operation| op.phase == Phase::Started;
        r.header.rank == Rank(rank) && r.operations.iter().any(flying)
    })
}

#[test]
fn a_killed_rank_is_named_with_what_it_was_doing() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().to_str().unwrap();
    // Rank 0 computes, rank 1 sleeps, ranks 2 and 3 wait for them in an all-reduce.
    let mut running = Running::start(job(dir.path(), 4, &["sh", "-c", &rank("busy")]));
    running.hear(4, "ready", |line| line.ends_with("ready"));
    until("rank 2 waits", || is_waiting(dir.path(), 2));
    until("rank 3 waits", || is_waiting(dir.path(), 3));
    signal(running.rank(2), "KILL");
    let ended = running.wait_for_all();
    assert_eq!(ended.code(), 137, "{ended:#?}");
    let place = ended
        .err
        .lines()
        .find(|l| l.contains("is recorded in"))
        .unwrap();
    assert!(
        place.starts_with("gaggle: what 4 ranks did last is recorded in ") && place.contains(path),
        "{ended:#?}"
    );
    assert!(
        ended
            .err
            .lines()
            .last()
            .unwrap()
            .starts_with("gaggle: first cause: rank 2 "),
        "{ended:#?}"
    );
    let json = dir.path().join("timeline.json");
    let told = trace(&["--json", "-o", json.to_str().unwrap(), path]);
    let report: Value = serde_json::from_str(&told.out).unwrap();
    let flying: Vec<&Value> = report["in_flight"].as_array().unwrap().iter().collect();
    let mine = flying.iter().find(|f| f["rank"] == 2).unwrap();
    let name = mine["operation"]["operation"].as_str().unwrap();
    assert!(name.starts_with("all_reduce #"), "{mine}");
    let awaited: Vec<&Value> = mine["waits_for"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| &w["rank"])
        .collect();
    assert_eq!(awaited, [0, 1], "{mine}");
    assert_eq!(mine["waits_for"][0]["why"], "has not called it");
    let fate = |rank: usize| report["ranks"][rank]["fate"].as_str().unwrap().to_owned();
    assert_eq!(fate(2), "ended without leaving");
    let blamed = report["blamed"].as_array().unwrap();
    // Whoever saw it die names it; the launcher may have ended all before anybody did.
    let named = blamed
        .iter()
        .find(|b| !b["named_by"].as_array().unwrap().is_empty());
    assert!(named.is_none_or(|b| b["rank"] == 2), "{report:#}");
    let timeline: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let slices = timeline["traceEvents"].as_array().unwrap().iter();
    assert!(slices.filter(|e| e["ph"] == "X").count() >= 6);
}

#[test]
fn survivors_name_the_killed_rank() {
    let dir = TempDir::new().unwrap();
    let mut command = Command::new(program("gaggle"));
    // Deaf to the launcher's stop, so that each is heard out.
    let script = format!("trap '' TERM; {}", rank("endless ring"));
    command
        .args(["run", "-n", "4", "--grace", "20", "--", "sh", "-c", &script])
        .env_remove("GAGGLE_TRACE")
        .env("GAGGLE_TRACE_DIR", dir.path());
    let mut running = Running::start(command);
    running.hear(4, "ready", |line| line.ends_with("ready"));
    signal(running.rank(1), "KILL");
    let ended = running.wait_for_all();
    assert_eq!(ended.code(), 137, "{ended:#?}");
    // Each survivor says once where its recording is.
    let said = |line: &&str| line.contains("what this rank did last is kept");
    assert_eq!(ended.err.lines().filter(said).count(), 3, "{ended:#?}");
    let told = trace(&[dir.path().to_str().unwrap()]);
    assert!(
        told.out.contains(
            "who waited for whom:\n  rank 1  ended without leaving; named by ranks 0, 2 and 3: lost ("
        ),
        "{told:#?}"
    );
    for rank in [0, 2, 3] {
        let line = format!("  rank {rank}  left after failures, ");
        assert!(told.out.contains(&line), "{told:#?}");
    }
}

#[test]
fn nothing_is_left_of_a_job_that_went_well_nor_of_one_that_is_not_recorded() {
    let dir = TempDir::new().unwrap();
    let hello = program("hello");
    for ranks in [1, 3] {
        let command = job(dir.path(), ranks, &[hello.to_str().unwrap()]);
        let ended = Running::start(command).wait_for_all();
        assert_eq!((ended.code(), ended.err.as_str()), (0, ""), "{ended:#?}");
    }
    // Who ends without leaving leaves its recording, too; the launcher sees that all went well.
    let command = job(dir.path(), 1, &["sh", "-c", &rank("vanish")]);
    assert_eq!(Running::start(command).wait_for_all().code(), 0);
    assert_eq!(recordings(dir.path()).unwrap().len(), 0);
    let mut command = job(dir.path(), 4, &["sh", "-c", &rank("panic")]);
    command.env("GAGGLE_TRACE", "off");
    let ended = Running::start(command).wait_for_all();
    assert_ne!(ended.code(), 0);
    assert!(!ended.err.contains("recorded"), "{ended:#?}");
    assert_eq!(recordings(dir.path()).unwrap().len(), 0);
    // And the same recorded: the rank that panicked has left its own as well.
    let ended = Running::start(job(dir.path(), 4, &["sh", "-c", &rank("panic")])).wait_for_all();
    assert_ne!(ended.code(), 0);
    assert_eq!(recordings(dir.path()).unwrap().len(), 4, "{ended:#?}");
}

#[test]
fn a_place_that_cannot_be_written_is_a_warning() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let script = rank("payload");
    let ended = Running::start(job(&file, 2, &["sh", "-c", &script])).wait_for_all();
    assert_eq!(ended.code(), 0, "{ended:#?}");
    let said = |line: &&str| line.contains("operations are not recorded");
    assert_eq!(ended.err.lines().filter(said).count(), 2, "{ended:#?}");
}
