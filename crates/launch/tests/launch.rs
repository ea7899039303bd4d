//! Jobs of `/bin/sh` programs: what they print, how they end, and that nothing of them stays.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use gaggle_core::Rank;
use gaggle_launch::{Console, How, Job, LaunchError, Outcome, Voice};
use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// No wait in these tests is longer; reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Page {
    fn sorted(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap();
        let mut lines: Vec<String> = String::from_utf8_lossy(&bytes)
            .lines()
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    }
}

/// A page that makes a file when something is written on it.
struct Bell(Page, PathBuf);

impl Write for Bell {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        fs::write(&self.1, "")?;
        self.0.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A job of `sh -c script`, its output, and a folder `$DIR` for its notes.
struct Trial {
    dir: TempDir,
    out: Page,
    err: Page,
    job: Job,
}

impl Trial {
    fn new(ranks: u32, script: &str) -> Trial {
        let (dir, out, err) = (TempDir::new().unwrap(), Page::default(), Page::default());
        let job = Job::new(ranks, "/bin/sh")
            .args(["-c", script])
            .env("DIR", dir.path())
            .console(Console::new(out.clone(), err.clone()))
            .signals(false);
        Trial { dir, out, err, job }
    }

    fn run(&self) -> Outcome {
        self.job.run().unwrap()
    }
}

/// Every process number that the scripts wrote down.
fn noted(dir: &Path) -> Vec<u32> {
    let files = fs::read_dir(dir).unwrap().map(|f| f.unwrap().path());
    files
        .filter_map(|f| fs::read_to_string(f).ok()?.trim().parse().ok())
        .collect()
}

/// Whether the process exists, as a zombie too.
fn stands(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Whether the process exists and is not merely waiting for its parent to take note.
fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state.flatten(), None | Some('Z' | 'X'))
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "gave up waiting until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn check_code(ranks: u32, script: &str, expected: i32) {
    let trial = Trial::new(ranks, script);
    assert_eq!(trial.run().code(), expected, "{script}");
}

#[test]
fn the_exit_code_is_that_of_the_first_failure() {
    check_code(1, "exit 0", 0);
    check_code(3, "exit 0", 0);
    check_code(1, "exit 7", 7);
    check_code(5, "test $RANK != 3 || exit 9; exec sleep 120", 9);
    check_code(2, "test $RANK != 1 || kill -KILL $$; exec sleep 120", 137);
    check_code(2, "test $RANK != 1 || kill -SEGV $$; exec sleep 120", 139);
}

/// On which processors a process may run, as the system says.
fn allowed(status: &str) -> String {
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}

#[test]
fn ranks_are_bound_to_the_processors_that_they_are_given() {
    let own = allowed(&fs::read_to_string("/proc/self/status").unwrap());
    let first = own.split([',', '-']).next().unwrap();
    let script = "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status";
    let trial = Trial::new(3, script);
    let job = trial.job.clone();
    // The second has an empty list, the third none.
    let bound = vec![vec![first.parse().unwrap()], vec![]];
    assert_eq!(job.bind(bound).run().unwrap().code(), 0);
    let said = [
        format!("[0] {first}"),
        format!("[1] {own}"),
        format!("[2] {own}"),
    ];
    assert_eq!(trial.out.sorted(), said);
    // One that no machine has, and one for which there is no room.
    for processor in [1023, 1 << 20] {
        let job = Trial::new(2, "exit 0")
            .job
            .bind(vec![vec![], vec![processor]]);
        match job.run() {
            Err(LaunchError::Start {
                rank: Rank(1),
                source,
                ..
            }) => {
                assert_eq!(source.kind(), io::ErrorKind::InvalidInput, "{source}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn ranks_know_who_they_are() {
    for ranks in [1, 2, 3, 5, 7, 8] {
        let trial = Trial::new(
            ranks,
            "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $EXTRA",
        );
        let job = trial
            .job
            .clone()
            .env("EXTRA", "more")
            .master("10.1.2.3", 77);
        assert_eq!(job.run().unwrap().code(), 0);
        let expected: Vec<String> = (0..ranks)
            .map(|r| format!("[{r}] {r} {ranks} {r} {ranks} 10.1.2.3 77 more"))
            .collect();
        assert_eq!(trial.out.sorted(), expected);
        assert!(trial.err.sorted().is_empty());
    }
}

#[test]
fn threads_are_shared_out_unless_somebody_chose() {
    let trial = Trial::new(64, "echo $RAYON_NUM_THREADS $OMP_NUM_THREADS");
    let job = trial.job.clone().env("OMP_NUM_THREADS", "5");
    assert_eq!(job.run().unwrap().code(), 0);
    let cpus = thread::available_parallelism().unwrap().get();
    let share = if cpus < 128 { 1 } else { cpus / 64 };
    assert_eq!(trial.out.sorted().len(), 64);
    assert!(
        trial
            .out
            .sorted()
            .iter()
            .all(|l| l.ends_with(&format!(" {share} 5")))
    );
}

#[test]
fn both_streams_are_forwarded_whole() {
    let script = r#"i=0; while [ $i -lt 500 ]; do echo "o$i"; echo "e$i" >&2; i=$((i+1)); done; printf half"#;
    let trial = Trial::new(2, script);
    assert_eq!(trial.run().code(), 0);
    let mut expected: Vec<String> = (0..2)
        .flat_map(|r| {
            (0..500)
                .map(move |i| format!("[{r}] o{i}"))
                .chain([format!("[{r}] half")])
        })
        .collect();
    expected.sort();
    assert_eq!(trial.out.sorted(), expected);
    assert_eq!(trial.err.sorted().len(), 1000);
}

#[test]
fn the_lead_speaks_without_prefix_and_the_others_on_stderr() {
    let trial = Trial::new(3, "echo out; echo err >&2");
    let outcome = trial.job.clone().voice(Voice::Lead).run().unwrap();
    assert_eq!(outcome.code(), 0);
    assert_eq!(trial.out.sorted(), ["out"]);
    assert_eq!(
        trial.err.sorted(),
        ["[1] err", "[1] out", "[2] err", "[2] out", "err"]
    );
}

/// Horovod 642: one rank failed and the others slept on.
#[test]
fn a_failure_ends_the_others_and_is_told_with_its_last_lines() {
    let script = r#"
        echo $$ > $DIR/$RANK
        if [ $RANK = 2 ]; then
            while [ $(ls $DIR | wc -l) -lt 4 ]; do sleep 0.02; done
            echo fine; echo "cannot go on" >&2; exit 3
        fi
        sleep 120; echo never"#;
    let trial = Trial::new(4, script);
    let outcome = trial.run();
    assert_eq!(outcome.code(), 3);
    let cause = outcome.cause.clone().unwrap();
    assert_eq!((cause.rank, cause.how), (Rank(2), How::Code(3)));
    assert_eq!(cause.last_lines, ["cannot go on"]);
    let text = outcome.to_string();
    assert!(
        text.lines()
            .last()
            .unwrap()
            .starts_with("gaggle: first cause: rank 2 ended with exit code 3 after "),
        "{text}"
    );
    assert_eq!(outcome.ended.len(), 4);
    assert!(outcome.killed.is_empty(), "{outcome:?}");
    let pids = noted(trial.dir.path());
    assert_eq!(pids.len(), 4);
    // Reaped, too: not even a zombie stands.
    assert!(pids.iter().all(|&pid| !stands(pid)));
}

#[test]
fn who_ignores_the_request_is_killed_after_the_grace() {
    let script = r#"
        if [ $RANK = 0 ]; then while [ $(ls $DIR | wc -l) -lt 4 ]; do sleep 0.02; done; exit 1; fi
        trap '' TERM
        (trap '' TERM; sleep 120) & echo $! > $DIR/child$RANK
        echo $$ > $DIR/$RANK
        sleep 120; sleep 120"#;
    let trial = Trial::new(3, script);
    let outcome = trial
        .job
        .clone()
        .grace(Duration::from_millis(100))
        .run()
        .unwrap();
    assert_eq!(outcome.code(), 1);
    assert_eq!(outcome.killed, [Rank(1), Rank(2)]);
    let pids = noted(trial.dir.path());
    assert_eq!(pids.len(), 4);
    until("the ranks' children are gone", || {
        pids.iter().all(|&pid| !lives(pid))
    });
}

#[test]
fn a_process_left_in_a_ranks_group_goes_with_the_job() {
    let script = "sleep 120 & echo $! > $DIR/$RANK";
    let trial = Trial::new(2, script);
    let outcome = trial
        .job
        .clone()
        .grace(Duration::from_millis(50))
        .run()
        .unwrap();
    assert_eq!(outcome.code(), 0);
    assert!(outcome.killed.is_empty());
    let pids = noted(trial.dir.path());
    assert_eq!(pids.len(), 2);
    until("the sleepers are gone", || {
        pids.iter().all(|&pid| !lives(pid))
    });
}

#[test]
fn a_rank_that_is_done_does_not_end_the_others() {
    // Rank 1 goes on until rank 0 is a zombie or gone, and then well.
    let script = r#"
        if [ $RANK = 0 ]; then echo $$ > $DIR/0.tmp; mv $DIR/0.tmp $DIR/0; exit 0; fi
        while [ ! -e $DIR/0 ]; do sleep 0.02; done
        while [ -r /proc/$(cat $DIR/0)/environ ] && [ -s /proc/$(cat $DIR/0)/cmdline ]; do sleep 0.02; done
        echo done"#;
    let trial = Trial::new(2, script);
    assert_eq!(trial.run().code(), 0);
    assert_eq!(trial.out.sorted(), ["[1] done"]);
}

#[test]
fn a_killed_rank_is_the_first_cause() {
    let trial = Trial::new(
        3,
        "echo $$ > $DIR/tmp$RANK; mv $DIR/tmp$RANK $DIR/$RANK; sleep 120; true",
    );
    let dir = trial.dir.path().to_owned();
    let killer = thread::spawn(move || {
        until("all ranks have begun", || {
            (0..3).all(|r| dir.join(r.to_string()).exists())
        });
        let pid = fs::read_to_string(dir.join("1")).unwrap();
        assert!(
            Command::new("kill")
                .args(["-KILL", pid.trim()])
                .status()
                .unwrap()
                .success()
        );
    });
    let outcome = trial.run();
    killer.join().unwrap();
    assert_eq!(outcome.code(), 137);
    let cause = outcome.cause.unwrap();
    assert_eq!((cause.rank, cause.how), (Rank(1), How::Signal(9)));
    until("all are gone", || {
        noted(trial.dir.path()).iter().all(|&pid| !lives(pid))
    });
}

#[test]
fn absence_is_told_only_while_somebody_waits() {
    // The other ranks go on until the launcher has spoken.
    let script = "test $RANK = 1 || { while [ ! -e $DIR/told ]; do sleep 0.02; done; }";
    let trial = Trial::new(3, script);
    let bell = Bell(trial.err.clone(), trial.dir.path().join("told"));
    let job = trial.job.clone().console(Console::new(io::sink(), bell));
    let outcome = job.joined(Arc::new(|rank| rank != Rank(1))).run();
    assert_eq!(outcome.unwrap().code(), 0);
    assert_eq!(
        trial.err.sorted(),
        [
            "gaggle: rank 1 ended with exit code 0 without joining (never called gaggle::join); the others wait in vain"
        ]
    );

    let trial = Trial::new(2, "true");
    let outcome = trial.job.clone().joined(Arc::new(|_| false)).run().unwrap();
    assert_eq!(outcome.code(), 0);
    assert!(trial.err.sorted().is_empty());
}

#[test]
fn a_failure_before_joining_is_said_to_be_one() {
    let check = |joined: fn(Rank) -> bool, expected: Option<bool>| {
        let trial = Trial::new(2, "test $RANK = 1 || exit 4; exec sleep 120");
        let outcome = trial.job.clone().joined(Arc::new(joined)).run().unwrap();
        assert_eq!(outcome.cause.as_ref().unwrap().joined, expected);
        let said = outcome
            .to_string()
            .contains("before it joined (it never called gaggle::join)");
        assert_eq!(said, expected == Some(false));
    };
    check(|rank| rank == Rank(1), Some(false));
    check(|_| true, Some(true));
    // A program that does not meet in the store is not blamed for it.
    check(|_| false, None);
}

#[test]
fn what_cannot_be_started_is_explained() {
    let check = |program: &str, expected: &str| {
        let error = Job::new(2, program).signals(false).run().unwrap_err();
        assert!(matches!(error, LaunchError::Start { rank: Rank(0), .. }));
        assert_eq!(error.to_string(), expected);
    };
    check(
        "no-such-program",
        "cannot start `no-such-program` as rank 0: no program of that name in PATH; one in this directory is written ./no-such-program",
    );
    check(
        "./no-such-program",
        "cannot start `./no-such-program` as rank 0: there is no such file (or its interpreter is missing)",
    );
    check(
        "/dev/null",
        "cannot start `/dev/null` as rank 0: it is not an executable file, or may not be executed by this user",
    );
    assert!(matches!(
        Job::new(0, "true").run(),
        Err(LaunchError::NoRanks)
    ));
}

/// The example `launch`, which cargo builds with the tests.
fn launcher() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let path = exe
        .parent()
        .and_then(Path::parent)
        .unwrap()
        .join("examples/launch");
    assert!(
        path.exists(),
        "{} is missing: `cargo build -p gaggle-launch --examples`",
        path.display()
    );
    path
}

/// A launcher in a process of its own; killed on drop.
struct Launcher(Child);

impl Launcher {
    fn start(ranks: u32, script: &str, dir: &Path) -> Launcher {
        let child = Command::new(launcher())
            .args([&ranks.to_string(), "/bin/sh", "-c", script])
            .env("DIR", dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Launcher(child.unwrap())
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([name, &self.0.id().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    fn wait(&mut self) -> (Option<i32>, String) {
        let status = self.0.wait().unwrap();
        let mut text = String::new();
        self.0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        (status.code(), text)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ranks that are shells with a child each, and note both.
const FAMILY: &str = "sleep 120 & echo $! > $DIR/child$RANK; echo $$ > $DIR/tmp$RANK; mv $DIR/tmp$RANK $DIR/$RANK; wait; true";

fn begun(dir: &Path, ranks: u32) {
    until("all ranks have begun", || {
        (0..ranks).all(|r| dir.join(r.to_string()).exists())
    });
}

#[test]
fn a_killed_launcher_leaves_nobody_behind() {
    let dir = TempDir::new().unwrap();
    let mut launcher = Launcher::start(3, FAMILY, dir.path());
    begun(dir.path(), 3);
    let pids = noted(dir.path());
    assert_eq!(pids.len(), 6);
    assert!(pids.iter().all(|&pid| lives(pid)));
    launcher.signal("-KILL");
    launcher.wait();
    until("ranks and their children are gone", || {
        pids.iter().all(|&pid| !lives(pid))
    });
}

#[test]
fn signals_to_the_launcher_end_the_job() {
    for (signal, code, name) in [
        ("-INT", 130, "SIGINT"),
        ("-TERM", 143, "SIGTERM"),
        ("-HUP", 129, "SIGHUP"),
        ("-QUIT", 131, "SIGQUIT"),
    ] {
        let dir = TempDir::new().unwrap();
        let mut launcher = Launcher::start(2, FAMILY, dir.path());
        begun(dir.path(), 2);
        let pids = noted(dir.path());
        launcher.signal(signal);
        let (status, text) = launcher.wait();
        assert_eq!(status, Some(code), "{text}");
        let last = text.lines().last().unwrap();
        assert_eq!(
            last,
            format!(
                "gaggle: stopped by signal {} ({name}); all 2 ranks are gone",
                code - 128
            )
        );
        until("ranks and their children are gone", || {
            pids.iter().all(|&pid| !lives(pid))
        });
    }
}

#[test]
fn patience_after_an_interrupt_is_short() {
    let dir = TempDir::new().unwrap();
    let script = format!("trap '' TERM; {FAMILY}");
    let mut launcher = Launcher::start(2, &script, dir.path());
    begun(dir.path(), 2);
    launcher.signal("-INT");
    let (status, text) = launcher.wait();
    assert_eq!(status, Some(130));
    assert!(
        text.contains("ranks 0 and 1 did not stop within the grace"),
        "{text}"
    );
}
