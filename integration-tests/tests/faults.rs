//! Real faults in real jobs: killed, stopped and panicking ranks, a killed launcher, a wrong secret. Everybody learns whose fault it was, and nothing is left.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use gaggle_integration_tests::process::{Ended, Running, gaggle_run, program, signal, until};
use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// `gaggle run -n 4` of the program `rank`, with four words of a shell before it.
fn ranks(before: &str, role: &str) -> Command {
    let script = format!("{before} exec {} {role}", program("rank").display());
    gaggle_run(4, &["sh", "-c", &script])
}

/// Ranks that do not stop when the launcher says so, so that each is heard out: it kills them only after its grace.
fn stubborn(role: &str) -> Command {
    let mut command = Command::new(program("gaggle"));
    let script = format!("trap '' TERM; exec {} {role}", program("rank").display());
    command.args(["run", "-n", "4", "--grace", "20", "--", "sh", "-c", &script]);
    command
}

/// A demo that runs far longer than any test.
fn demo_command(dir: &Path, algorithm: &str) -> Command {
    let mut command = Command::new(program("gaggle"));
    command
        .args(["demo", "--ranks", "4", "--epochs", "1000", "--batch", "128"])
        .args(["--algorithm", algorithm, "--output"])
        .arg(dir.join("page.html"));
    command
}

fn demo(dir: &Path, algorithm: &str) -> Running {
    Running::start(demo_command(dir, algorithm))
}

/// Training is under way.
fn trains(demo: &mut Running) {
    demo.hear(1, "a word about an epoch", |line| line.contains(": epoch "));
}

/// A promise about time. What it takes is printed; a machine that is busy with other things gets three tries.
fn within(limit: Duration, what: &str, attempt: impl Fn() -> Duration) {
    let mut all = Vec::new();
    for _ in 0..3 {
        let took = attempt();
        println!("{what}: {took:.2?}");
        if took < limit {
            return;
        }
        all.push(took);
    }
    panic!("{what}: {all:.2?}, promised are {limit:?}");
}

/// From now until the launcher has ended and nothing is left.
fn ends(running: Running, fault: impl FnOnce(&Running)) -> (Ended, Duration) {
    let start = Instant::now();
    fault(&running);
    let ended = running.wait_for_all();
    (ended, start.elapsed())
}

fn last_line(ended: &Ended) -> &str {
    ended.err.lines().last().unwrap()
}

#[test]
fn a_killed_rank_of_the_demo_ends_it_within_two_seconds() {
    for (algorithm, victim) in [("allreduce", 2), ("dmsgd", 0)] {
        let what = format!("kill -9 of rank {victim} during {algorithm}, until all is gone");
        within(Duration::from_secs(2), &what, || {
            let dir = TempDir::new().unwrap();
            let mut demo = demo(dir.path(), algorithm);
            trains(&mut demo);
            let pid = demo.rank(victim);
            let (ended, took) = ends(demo, |_| signal(pid, "KILL"));
            assert_eq!(ended.code(), 137, "{ended:#?}");
            let cause = format!(
                "gaggle: first cause: rank {victim} was killed by signal 9 (SIGKILL) after "
            );
            assert!(last_line(&ended).starts_with(&cause), "{ended:#?}");
            took
        });
    }
}

#[test]
fn a_stopped_rank_of_the_demo_is_named() {
    for algorithm in ["allreduce", "dmsgd"] {
        let dir = TempDir::new().unwrap();
        let mut command = demo_command(dir.path(), algorithm);
        command.env("GAGGLE_TIMEOUT", "2");
        let mut demo = Running::start(command);
        trains(&mut demo);
        let pid = demo.rank(1);
        let (ended, _) = ends(demo, |_| signal(pid, "STOP"));
        assert_eq!(ended.code(), 1, "{ended:#?}");
        // The launcher's last words are those of the first that gave up, and the cause.
        let lines: Vec<&str> = ended.err.lines().collect();
        let [.., last, cause] = lines[..] else {
            panic!("{ended:#?}")
        };
        assert!(
            cause.starts_with("gaggle: first cause: rank "),
            "{ended:#?}"
        );
        assert!(last.contains(": nothing from rank 1 for "), "{ended:#?}");
    }
}

/// Each survivor's own words; then they meet without the victim.
fn all_blame(ended: &Ended, victim: u32, blame: &str) {
    for rank in (0..4).filter(|rank| *rank != victim) {
        for text in [blame, "survivors met"] {
            let line = format!("[{rank}] {text}");
            assert!(
                ended.out.lines().any(|l| l == line),
                "no {line:?}: {ended:#?}"
            );
        }
    }
}

/// Lets the three others end, and then the one that cannot.
fn end_without(mut job: Running, victim: u32) -> Ended {
    job.hear(3, "survivors met", |line| line.ends_with(" survivors met"));
    signal(job.rank(victim), "KILL");
    let ended = job.wait_for_all();
    assert_ne!(ended.code(), 0, "{ended:#?}");
    ended
}

#[test]
fn the_survivors_of_a_killed_rank_0_rebuild_and_finish() {
    for (victim, through) in [(0, "shm"), (2, "tcp")] {
        let mut command = stubborn("rebuild");
        command.env("GAGGLE_TRANSPORT", through);
        let mut job = Running::start(command);
        job.hear(4, "ready", |line| line.ends_with(" ready"));
        signal(job.rank(victim), "KILL");
        let ended = job.wait_for_all();
        let sum = 10 - (victim + 1);
        for rank in (0..4).filter(|rank| *rank != victim) {
            let line = format!("[{rank}] rebuilt 3 of 4, epoch 1, sum {sum}");
            assert!(
                ended.out.lines().any(|l| l == line),
                "no {line:?}: {ended:#?}"
            );
        }
    }
}

#[test]
fn neighbours_of_a_killed_rank_average_on_without_it() {
    let mut job = Running::start(stubborn("tolerate"));
    job.hear(4, "ready", |line| line.ends_with(" ready"));
    signal(job.rank(1), "KILL");
    let ended = job.wait_for_all();
    for rank in [0, 2, 3] {
        let line = format!("[{rank}] went on without rank 1");
        assert!(
            ended.out.lines().any(|l| l == line),
            "no {line:?}: {ended:#?}"
        );
    }
}

/// Rank 1 stops itself when all others have called the next all-reduce, or will.
#[test]
fn a_rank_that_stands_still_is_the_timeout_of_all_others() {
    for how in [
        "ring",
        "recursive_doubling",
        "direct",
        "mix-fully-connected",
    ] {
        let mut command = stubborn(&format!("stop-short {how}"));
        command.env("GAGGLE_TIMEOUT", "2");
        let ended = end_without(Running::start(command), 1);
        all_blame(&ended, 1, "timeout [1]");
    }
}

/// In the middle of whatever it does: then others may be an operation apart.
#[test]
fn a_stopped_rank_is_named_by_all_others() {
    for (how, through) in [
        ("ring", "shm"),
        ("recursive_doubling", "tcp"),
        ("direct", "auto"),
    ] {
        let mut command = stubborn(&format!("endless {how}"));
        command.env("GAGGLE_TIMEOUT", "2");
        command.env("GAGGLE_TRANSPORT", through);
        let mut job = Running::start(command);
        job.hear(4, "ready", |line| line.ends_with(" ready"));
        signal(job.rank(1), "STOP");
        let ended = end_without(job, 1);
        all_blame(&ended, 1, "timeout [1]");
    }
}

#[test]
fn a_killed_rank_is_lost_to_all_others() {
    for how in [
        "ring",
        "recursive_doubling",
        "direct",
        "mix-fully-connected",
    ] {
        let mut job = Running::start(stubborn(&format!("endless {how}")));
        job.hear(4, "ready", |line| line.ends_with(" ready"));
        let pid = job.rank(1);
        let (ended, _) = ends(job, |_| signal(pid, "KILL"));
        assert_eq!(ended.code(), 137, "{ended:#?}");
        all_blame(&ended, 1, "lost [1]");
    }
}

/// Rank 1 has no connection for data to anybody: it stops before it can take one, with the others' calls at its port.
#[test]
fn a_killed_rank_that_was_never_connected_is_lost_to_all_others() {
    let mut command = stubborn("unlinked");
    command.env("GAGGLE_TRANSPORT", "tcp");
    let mut job = Running::start(command);
    job.hear(4, "ready", |line| line.ends_with(" ready"));
    let pid = job.rank(1);
    let (ended, _) = ends(job, |_| signal(pid, "KILL"));
    assert_eq!(ended.code(), 137, "{ended:#?}");
    all_blame(&ended, 1, "a receive: lost [1]");
    for what in ["a later send", "a later all-reduce"] {
        all_blame(&ended, 1, &format!("{what}: lost [1]"));
    }
}

#[test]
fn a_panic_is_a_loss_to_the_others_and_the_launchers_last_word() {
    let ended = Running::start(stubborn("panic")).wait_for_all();
    assert_eq!(ended.code(), 101, "{ended:#?}");
    all_blame(&ended, 2, "lost [2]");
    assert!(ended.err.contains("the dice said so"), "{ended:#?}");
    let cause = "gaggle: first cause: rank 2 ended with exit code 101 after ";
    assert!(last_line(&ended).starts_with(cause), "{ended:#?}");
}

#[test]
fn a_killed_launcher_leaves_no_process_whatever_they_do() {
    let limit = Duration::from_secs(5);
    // Computing, asleep, waiting in an all-reduce; and before the meeting is complete.
    for (role, ready) in [("busy", 4), ("unjoined", 1)] {
        let what = format!("kill -9 of the launcher of ranks that are {role}, until all is gone");
        within(limit, &what, || {
            let mut job = Running::start(ranks("", role));
            job.hear(ready, "ready", |line| line.ends_with(" ready"));
            until("launcher and ranks are there", || job.alive().len() >= 5);
            let (ended, took) = ends(job, |job| job.signal("KILL"));
            assert_eq!(ended.status.code(), None, "{ended:#?}");
            took
        });
    }
    within(
        limit,
        "kill -9 of the demo's launcher, until all is gone",
        || {
            let dir = TempDir::new().unwrap();
            let mut demo = demo(dir.path(), "all");
            trains(&mut demo);
            until("launcher and ranks are there", || demo.alive().len() >= 5);
            let (ended, took) = ends(demo, |demo| demo.signal("KILL"));
            assert_eq!(ended.status.code(), None, "{ended:#?}");
            took
        },
    );
}

#[test]
fn a_wrong_secret_keeps_one_rank_out_and_is_not_shown() {
    let wrong = "5e".repeat(32);
    let before = format!("if [ $RANK = 2 ]; then export GAGGLE_SECRET={wrong}; fi;");
    let ended = Running::start(ranks(&before, "collectives")).wait_for_all();
    assert_eq!(ended.code(), 1, "{ended:#?}");
    let cause = "gaggle: first cause: rank 2 ended with exit code 1 after ";
    assert!(last_line(&ended).starts_with(cause), "{ended:#?}");
    let why = ended
        .err
        .lines()
        .find(|l| l.starts_with("[2] rank: store at "));
    assert!(
        why.is_some_and(|line| line.contains("secret")),
        "{ended:#?}"
    );
    assert!(
        !ended.err.contains(&wrong) && ended.out.is_empty(),
        "{ended:#?}"
    );
}
