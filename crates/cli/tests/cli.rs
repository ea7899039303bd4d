//! The program as a newcomer meets it: help, slips of the finger, output and exit codes.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

fn gaggle(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaggle"));
    command
        .args(args)
        .env_remove("GAGGLE_DEMO")
        .env_remove("GAGGLE_TIMEOUT");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs and checks the exit code; returns what was printed, stdout and stderr.
fn check(command: &mut Command, code: i32) -> (String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let (out, err) = (text(&stdout), text(&stderr));
    assert_eq!(status.code(), Some(code), "{command:?}\n{out}\n{err}");
    (out, err)
}

/// A program that stands in for the demo's.
fn fake_demo(dir: &Path, script: &str) -> std::path::PathBuf {
    let path = dir.join("gaggle-demo");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn help_and_version_go_to_stdout() {
    let (out, err) = check(&mut gaggle(&["--help"]), 0);
    assert!(
        out.contains("gaggle run -n 4 ./my-program") && err.is_empty(),
        "{out}{err}"
    );
    let (out, _) = check(&mut gaggle(&["run", "--help"]), 0);
    for word in [
        "WORLD_SIZE",
        "SIGTERM",
        "Exit codes",
        "RAYON_NUM_THREADS",
        "GAGGLE_STORE",
    ] {
        assert!(out.contains(word), "{word} is not in:\n{out}");
    }
    let (out, _) = check(&mut gaggle(&["--version"]), 0);
    assert_eq!(out.trim(), format!("gaggle {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn slips_are_told_with_the_code_of_their_kind() {
    let (_, err) = check(&mut gaggle(&["run", "-n", "0", "true"]), 2);
    assert!(err.contains("a job needs at least 1 rank"), "{err}");
    let (_, err) = check(&mut gaggle(&["run", "true"]), 2);
    assert!(err.contains("-n"), "{err}");
    let (out, err) = check(&mut gaggle(&["run", "-n", "2", "no-such-program"]), 127);
    assert_eq!(
        (out.as_str(), err.as_str()),
        (
            "",
            "gaggle: cannot start `no-such-program` as rank 0: no program of that name in PATH; one in this directory is written ./no-such-program\n"
        )
    );
    let (_, err) = check(&mut gaggle(&["run", "-n", "2", "/dev/null"]), 126);
    assert!(err.contains("not an executable file"), "{err}");
    let (_, err) = check(&mut gaggle(&["demo", "--ranks", "none"]), 2);
    assert!(err.contains("--ranks none"), "{err}");
}

#[test]
fn ranks_are_told_where_they_meet_and_strangers_are_not() {
    let script = r#"echo "$GAGGLE_STORE|${#GAGGLE_SECRET}|$GAGGLE_JOB|$MASTER_ADDR:$MASTER_PORT""#;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (out, err) = check(
            &mut gaggle(&["run", "-n", "2", "--", "sh", "-c", script]),
            0,
        );
        assert!(err.is_empty(), "{err}");
        let mut lines: Vec<&str> = out.lines().map(|l| l.split_once(' ').unwrap().1).collect();
        lines.dedup();
        let [line] = lines[..] else {
            panic!("the ranks were told different things:\n{out}")
        };
        let parts: Vec<&str> = line.split('|').collect();
        let store: std::net::SocketAddr = parts[0].parse().unwrap();
        assert!(store.ip().is_loopback() && store.port() != 0);
        assert_eq!(parts[1], "64");
        let master: std::net::SocketAddr = parts[3].parse().unwrap();
        assert_ne!(master.port(), store.port());
        seen.push(parts[2].to_owned());
    }
    assert_ne!(seen[0], seen[1], "two jobs have one name");
}

#[test]
fn the_first_cause_is_the_last_line() {
    let script = "test $RANK = 1 || exec sleep 120; echo broken >&2; exit 5";
    let (_, err) = check(&mut gaggle(&["run", "-n", "3", "sh", "-c", script]), 5);
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines[lines.len() - 2], "[1] broken");
    assert!(
        lines[lines.len() - 1]
            .starts_with("gaggle: first cause: rank 1 ended with exit code 5 after "),
        "{err}"
    );
}

#[test]
fn the_demo_speaks_with_rank_0s_voice_alone_on_stdout() {
    let dir = tempfile::tempdir().unwrap();
    let script = r#"echo noise >&2; [ $RANK = 0 ] || { echo chatter; exit 0; }; echo "{\"ranks\":$WORLD_SIZE,\"args\":\"$*\",\"timeout\":$GAGGLE_TIMEOUT}""#;
    let demo = fake_demo(dir.path(), script);
    let mut command = gaggle(&["demo", "--epochs", "2", "--ranks", "3", "--json"]);
    let (out, err) = check(command.env("GAGGLE_DEMO", &demo), 0);
    assert_eq!(
        out,
        "{\"ranks\":3,\"args\":\"--epochs 2 --json\",\"timeout\":30}\n"
    );
    let mut lines: Vec<&str> = err.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "[1] chatter",
            "[1] noise",
            "[2] chatter",
            "[2] noise",
            "noise"
        ]
    );
}

#[test]
fn the_demos_help_is_shown_too() {
    let dir = tempfile::tempdir().unwrap();
    let demo = fake_demo(dir.path(), "echo \"the demo got $*\"");
    let (out, _) = check(gaggle(&["demo", "--help"]).env("GAGGLE_DEMO", &demo), 0);
    let (ours, theirs) = (
        out.find("gaggle demo --json").unwrap(),
        out.find("the demo got --help").unwrap(),
    );
    assert!(ours < theirs, "{out}");
}

#[test]
fn a_missing_demo_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let alone = dir.path().join("gaggle");
    fs::copy(env!("CARGO_BIN_EXE_gaggle"), &alone).unwrap();
    let mut command = Command::new(&alone);
    command
        .arg("demo")
        .env_remove("GAGGLE_DEMO")
        .env("PATH", dir.path());
    let (out, err) = check(&mut command, 127);
    assert!(out.is_empty() && err.contains("cargo xtask demo"), "{err}");
}

/// The launcher must stay small: it links no machine-learning framework.
#[test]
fn the_launcher_does_not_contain_the_framework() {
    let mut command = Command::new(env!("CARGO"));
    command
        .args([
            "tree",
            "--offline",
            "--locked",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--package",
            "gaggle-cli",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    let (out, _) = check(&mut command, 0);
    assert!(out.contains("gaggle-launch "), "{out}");
    for word in ["candle", "gaggle-demo", "burn", "gaggle-engine"] {
        assert!(!out.contains(word), "{word} is in:\n{out}");
    }
}
