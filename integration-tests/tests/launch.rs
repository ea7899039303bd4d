//! The real `gaggle run`: what it leaves behind, whatever happens to ranks and launcher.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use gaggle_integration_tests::process::{Running, gaggle_run, program, until};
use std::{fs, path::Path, process::Command};
use tempfile::TempDir;

/// `gaggle run` of a shell script, with a folder `$DIR` for its notes.
fn shell(ranks: u32, script: &str, dir: &Path) -> Command {
    let mut command = gaggle_run(ranks, &["sh", "-c", script]);
    command.env("DIR", dir);
    command
}

/// Every rank and its child have begun.
fn begun(dir: &Path, ranks: u32) {
    until("all ranks have begun", || {
        (0..ranks).all(|rank| dir.join(rank.to_string()).exists())
    });
}

/// Note that this rank has begun.
const NOTE: &str = "echo $$ > $DIR/tmp$RANK; mv $DIR/tmp$RANK $DIR/$RANK";

/// Trial 9 (a); Horovod 642.
#[test]
fn one_failure_ends_four_ranks_and_is_told_last() {
    let dir = TempDir::new().unwrap();
    let script = format!(
        r#"{NOTE}
        if [ $RANK = 2 ]; then
            while [ $(ls $DIR | grep -c '^[0-3]$') -lt 4 ]; do sleep 0.05; done
            echo "before"; echo "out of luck" >&2; exit 6
        fi
        sleep 120; echo never"#
    );
    let ended = Running::start(shell(4, &script, dir.path())).wait_for_all();
    assert_eq!(ended.code(), 6, "{ended:#?}");
    assert_eq!(ended.out, "[2] before\n");
    let lines: Vec<&str> = ended.err.lines().collect();
    let [.., heading, line, cause] = lines[..] else {
        panic!("{ended:#?}")
    };
    assert_eq!(heading, "gaggle: last lines of rank 2 on stderr:");
    assert_eq!(line, "[2] out of luck");
    assert!(
        cause.starts_with("gaggle: first cause: rank 2 ended with exit code 6 after "),
        "{cause}"
    );
}

/// Trial 9 (b); DeepSpeed 1995.
#[test]
fn the_failure_of_rank_0_ends_rank_1() {
    let dir = TempDir::new().unwrap();
    let script = format!(
        "{NOTE}; if [ $RANK = 0 ]; then while [ ! -e $DIR/1 ]; do sleep 0.05; done; exit 1; fi; (sleep 120); true"
    );
    let ended = Running::start(shell(2, &script, dir.path())).wait_for_all();
    assert_eq!(ended.code(), 1, "{ended:#?}");
    assert!(
        ended
            .err
            .contains("first cause: rank 0 ended with exit code 1"),
        "{ended:#?}"
    );
}

/// Trial 9 (c); PyTorch 63802: Ctrl-C while one rank waits for another.
#[test]
fn an_interrupt_ends_ranks_that_wait_for_each_other() {
    let dir = TempDir::new().unwrap();
    let hello = program("hello");
    let script = format!(
        "{NOTE}; if [ $RANK = 0 ]; then exec {}; fi; sleep 120; true",
        hello.display()
    );
    let running = Running::start(shell(2, &script, dir.path()));
    begun(dir.path(), 2);
    running.signal("INT");
    let ended = running.wait_for_all();
    assert_eq!(ended.code(), 130, "{ended:#?}");
    assert_eq!(
        ended.err.lines().last(),
        Some("gaggle: stopped by signal 2 (SIGINT); all 2 ranks are gone")
    );
}

#[test]
fn a_killed_launcher_leaves_nothing() {
    for ranks in [1, 3] {
        let dir = TempDir::new().unwrap();
        // Each rank has a child that survives the rank unless somebody ends it.
        let script = format!("sleep 120 & {NOTE}; wait; true");
        let running = Running::start(shell(ranks, &script, dir.path()));
        begun(dir.path(), ranks);
        // Launcher, ranks, their children; the guard is the launcher's fork and has no environment of its own to tell.
        assert!(
            running.alive().len() as u32 > 2 * ranks,
            "{:?}",
            running.alive()
        );
        running.signal("KILL");
        let ended = running.wait_for_all();
        assert_eq!(ended.status.code(), None);
    }
}

#[test]
fn a_killed_rank_ends_the_job_with_its_signal() {
    let dir = TempDir::new().unwrap();
    let running = Running::start(shell(3, &format!("{NOTE}; sleep 120; true"), dir.path()));
    begun(dir.path(), 3);
    let pid = fs::read_to_string(dir.path().join("1")).unwrap();
    gaggle_integration_tests::process::signal(pid.trim().parse().unwrap(), "KILL");
    let ended = running.wait_for_all();
    assert_eq!(ended.code(), 137, "{ended:#?}");
    let last = ended.err.lines().last().unwrap();
    assert!(
        last.starts_with("gaggle: first cause: rank 1 was killed by signal 9 (SIGKILL) after "),
        "{last}"
    );
}

#[test]
fn ranks_meet_in_the_launchers_store() {
    for ranks in [1_u32, 2, 3, 5, 7, 8] {
        let hello = program("hello");
        let ended = Running::start(gaggle_run(ranks, &[hello.to_str().unwrap()])).wait_for_all();
        assert_eq!(ended.code(), 0, "{ended:#?}");
        let mut lines: Vec<&str> = ended.out.lines().collect();
        lines.sort_unstable();
        let mean = f64::from(ranks - 1) / 2.0;
        let expected: Vec<String> = (0..ranks)
            .map(|r| format!("[{r}] rank {r} of {ranks}: {mean}"))
            .collect();
        assert_eq!(lines, expected);
        assert_eq!(ended.err, "");
    }
}

#[test]
fn a_rank_that_ends_without_joining_is_named() {
    let hello = program("hello");
    let script = format!("test $RANK = 1 || exec {}", hello.display());
    let mut command = gaggle_run(3, &["sh", "-c", &script]);
    command.env("GAGGLE_TIMEOUT", "2");
    let ended = Running::start(command).wait_for_all();
    assert_ne!(ended.code(), 0, "{ended:#?}");
    let told = "gaggle: rank 1 ended with exit code 0 without joining (never called gaggle::join); the others wait in vain";
    assert!(ended.err.lines().any(|line| line == told), "{ended:#?}");
    // Those that waited name the culprit, too, and so does the last word.
    let named = |line: &&str| line.starts_with("[0] ") || line.starts_with("[2] ");
    let named: Vec<&str> = ended.err.lines().filter(named).collect();
    // One of them may be stopped in the middle of its line.
    let whole: Vec<&&str> = named.iter().filter(|l| l.contains("rendezvous")).collect();
    assert!(
        !whole.is_empty() && whole.iter().all(|line| line.contains("rank 1")),
        "{ended:#?}"
    );
    let last = ended.err.lines().last().unwrap();
    assert!(
        last.ends_with(
            "; before that rank 1 had ended without joining (never called gaggle::join)"
        ),
        "{last}"
    );
}
