//! The trials of the path through shared memory, between real processes: registered, ordinary and mixed buffers, small and large; ranks that are stopped in the middle or killed; little room.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use gaggle_integration_tests::{
    memory::Memory,
    process::{Ended, Running, gaggle_run, program, signal, until},
    shared::{DEADLINE, INSIDE, VICTIM},
    work,
};
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// `gaggle run` of the program `rank` over shared memory or not at all.
fn job(ranks: u32, role: &[&str]) -> Command {
    let rank = program("rank");
    let command: Vec<&str> = std::iter::once(rank.to_str().unwrap())
        .chain(role.iter().copied())
        .collect();
    let mut command = gaggle_run(ranks, &command);
    command
        .env("GAGGLE_TRANSPORT", "shm")
        .env("GAGGLE_TIMEOUT", DEADLINE.to_string());
    command
}

/// The one line of each rank of a job that went well, by rank.
fn answers(ended: &Ended, ranks: u32) -> Vec<String> {
    assert_eq!(ended.code(), 0, "{ended:#?}");
    assert!(!ended.err.contains("panicked"), "{ended:#?}");
    let line = |rank: u32| {
        let prefix = format!("[{rank}] ");
        let mut lines = ended.out.lines().filter_map(|l| l.strip_prefix(&prefix));
        match (lines.next(), lines.next()) {
            (Some(line), None) => line.to_owned(),
            _ => panic!("not one line of rank {rank}: {ended:#?}"),
        }
    };
    (0..ranks).map(line).collect()
}

fn run(ranks: u32, role: &[&str]) -> Vec<String> {
    answers(&Running::start(job(ranks, role)).wait_for_all(), ranks)
}

fn run_unfused(ranks: u32, role: &[&str]) -> Vec<String> {
    let mut job = job(ranks, role);
    job.env("GAGGLE_FUSION", "off");
    answers(&Running::start(job).wait_for_all(), ranks)
}

/// Trial 1.
#[test]
fn who_calls_something_else_is_named_whatever_the_memory_and_the_size() {
    for memory in Memory::ALL {
        let got = run(4, &["mismatches", memory.name()]);
        assert_eq!(got, ["16 told"; 4], "{memory}");
    }
}

/// Trial 2.
#[test]
fn all_ranks_agree_bit_for_bit_whatever_the_memory() {
    let one = run(4, &["orders", "registered"]);
    assert_eq!(one, run(4, &["orders", "plain"]));
    assert_eq!(one, run(4, &["orders", "mixed"]));
    for ranks in [2, 3, 5, 6, 7, 8, 9] {
        for memory in Memory::ALL {
            let got = run(ranks, &["orders", memory.name()]);
            assert!(got.iter().all(|line| *line == got[0]), "{memory}: {got:?}");
        }
    }
}

/// Trial 10.
#[test]
fn every_operation_gives_the_same_bits_on_registered_memory_and_with_fusion_off() {
    for ranks in [1, 2, 3, 5, 7, 8] {
        let want = gaggle::local(ranks as usize, |group| {
            work::collectives(&group, Memory::Plain).unwrap()
        });
        let want = want.unwrap();
        for memory in Memory::ALL {
            let role = ["collectives", memory.name()];
            for (fused, got) in [
                (true, run(ranks, &role)),
                (false, run_unfused(ranks, &role)),
            ] {
                assert_eq!(got, want, "world {ranks}, {memory}, fused {fused}");
            }
        }
    }
}

/// Every kind by the algorithm that is chosen, from 8 bytes to 16 MiB.
#[test]
fn fusion_on_and_off_give_the_same_bits_whatever_the_memory() {
    for ranks in [2, 3] {
        let mut want: Option<(String, Vec<String>)> = None;
        for memory in Memory::ALL {
            for fused in [true, false] {
                let role = ["results", memory.name()];
                let got = match fused {
                    true => run(ranks, &role),
                    false => run_unfused(ranks, &role),
                };
                let what = format!("{memory}, fusion {fused}");
                let Some((first, want)) = &want else {
                    want = Some((what, got));
                    continue;
                };
                for (rank, (got, want)) in got.iter().zip(want).enumerate() {
                    let pairs = got.split(' ').zip(want.split(' '));
                    let differ: Vec<_> = pairs.filter(|(got, want)| got != want).collect();
                    assert!(
                        differ.is_empty(),
                        "rank {rank} of {ranks}: {what} and {first} differ: {differ:?}"
                    );
                }
            }
        }
    }
}

/// A small generator; seeds in, the same delays out.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Stops the victim at random moments until it stands in the middle of an operation.
fn stop_inside(victim: u32, dir: &Path, dice: &mut Dice) {
    let inside = dir.join(format!("{INSIDE}-{}", VICTIM.0));
    for _ in 0..200 {
        thread::sleep(Duration::from_micros(dice.below(60_000)));
        signal(victim, "STOP");
        until("it stands still", || {
            let stat = fs::read_to_string(format!("/proc/{victim}/stat")).unwrap_or_default();
            stat.rsplit_once(')')
                .is_some_and(|(_, rest)| rest.starts_with(" T"))
        });
        if fs::read(&inside).unwrap() == b"1" {
            return;
        }
        signal(victim, "CONT");
    }
    panic!("it was never found inside an operation");
}

/// One is stopped in the middle; the others run out of time and fill their buffers with something else; it goes on. No byte changes, and it ends with an error.
fn nobody_writes_late(how: &str) {
    const ROUNDS: u32 = 2;
    for (memory, seed) in Memory::ALL.into_iter().zip(1..) {
        let dir = TempDir::new().unwrap();
        let rounds = ROUNDS.to_string();
        let at = dir.path().to_str().unwrap();
        let mut command = job(3, &["stragglers", memory.name(), how, "8", &rounds, at]);
        command.env("GAGGLE_TIMEOUT", "2");
        let mut running = Running::start(command);
        let victim = VICTIM.0;
        let mut dice = Dice(seed);
        for round in 0..ROUNDS {
            let said = |what: &str| format!("round {round} {what}");
            let begun = said("is under way");
            running.hear(3, &begun, |line| line.ends_with(&begun));
            let pid = running.rank(victim);
            stop_inside(pid, dir.path(), &mut dice);
            let refilled = said("refilled after timeout [1]");
            running.hear(2, &refilled, |line| line.ends_with(&refilled));
            signal(pid, "CONT");
            let ended = said("ended with ");
            running.hear(1, &ended, |line| line.contains(&ended));
            fs::write(dir.path().join(format!("over-{round}")), "").unwrap();
            let kept = said("kept");
            running.hear(2, &kept, |line| line.ends_with(&kept));
        }
        let ended = running.wait_for_all();
        assert_eq!(
            ended.code(),
            0,
            "{how} on {memory}, seed {seed}: {ended:#?}"
        );
        assert!(!ended.err.contains("panicked"), "{ended:#?}");
    }
}

#[test]
fn a_rank_that_was_stopped_in_an_all_reduce_changes_no_byte_afterwards() {
    nobody_writes_late("reduce");
}

#[test]
fn a_rank_that_was_stopped_in_an_average_does_not_end_well_with_what_came_later() {
    nobody_writes_late("average");
}

#[test]
fn a_rank_that_was_stopped_in_a_broadcast_changes_no_byte_afterwards() {
    nobody_writes_late("broadcast");
}

#[test]
fn a_rank_that_was_stopped_in_an_all_gather_changes_no_byte_afterwards() {
    nobody_writes_late("all-gather");
}

#[test]
fn a_rank_that_was_stopped_in_a_reduce_scatter_changes_no_byte_afterwards() {
    nobody_writes_late("reduce-scatter");
}

#[test]
fn a_rank_that_was_stopped_in_an_all_to_all_changes_no_byte_afterwards() {
    nobody_writes_late("all-to-all");
}

/// Trial 9, and the culprit's name, on each memory.
#[test]
fn a_killed_rank_is_lost_to_all_others_whatever_the_memory_and_the_size() {
    // Averages of three: each is a neighbour of the one that dies. Whoever is not learns of it from what its neighbours do not call.
    for (ranks, memory, how, bytes) in [
        (4, Memory::Registered, "reduce", 8),
        (4, Memory::Registered, "reduce", 16 << 20),
        (3, Memory::Registered, "average", 1 << 20),
        (4, Memory::Plain, "reduce", 4 << 10),
        (4, Memory::Plain, "reduce", 1 << 20),
        (4, Memory::Mixed, "reduce", 16 << 20),
        (3, Memory::Mixed, "average", 8),
    ] {
        let rank = program("rank");
        let bytes = bytes.to_string();
        let role = format!("endless-on {memory} {how} {bytes}");
        // Each survivor is heard out: the launcher kills only after its grace.
        let script = format!("trap '' TERM; exec {} {role}", rank.display());
        let mut command = Command::new(program("gaggle"));
        command
            .args(["run", "-n", &ranks.to_string(), "--grace", "20", "--"])
            .args(["sh", "-c", &script])
            .env("GAGGLE_TRANSPORT", "shm")
            .env("GAGGLE_TIMEOUT", DEADLINE.to_string());
        let mut running = Running::start(command);
        running.hear(ranks, "ready", |line| line.ends_with(" ready"));
        signal(running.rank(1), "KILL");
        let ended = running.wait_for_all();
        assert_eq!(ended.code(), 137, "{role}: {ended:#?}");
        for rank in (0..ranks).filter(|rank| *rank != 1) {
            for text in ["lost [1]", "survivors met"] {
                let line = format!("[{rank}] {text}");
                let said = ended.out.lines().any(|l| l == line);
                assert!(said, "{role}: no {line:?}: {ended:#?}");
            }
        }
    }
}

#[test]
fn a_fork_of_a_rank_does_nothing_and_harms_nothing() {
    assert_eq!(run(2, &["forked"]), ["registered true, as before"; 2]);
}

/// Says on the harness's own stderr that something was not tested.
fn skipped(what: &str, why: &str) {
    // Not by `eprintln`, which the harness keeps to itself where a test passes.
    let mut err = std::io::stderr();
    writeln!(err, "\nNOT TESTED: {what}: {why}").unwrap();
}

/// `before`, then the job, in mounts of its own. `None`: the system does not let this user have any.
fn with_mounts(before: &str, job: &Command) -> Option<Command> {
    let program = job.get_program().to_owned();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--", "sh", "-ec"]);
    command
        .arg(format!("{before}; exec \"$0\" \"$@\""))
        .arg(program);
    command.args(job.get_args());
    for (name, value) in job.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let mut probe = Command::new("unshare");
    probe.args(["--mount", "--propagation", "private", "--", "sh", "-ec"]);
    let there = probe.arg(before).output();
    match there {
        Ok(output) if output.status.success() => Some(command),
        other => {
            skipped(before, &format!("{other:?}"));
            None
        }
    }
}

/// What Docker gives, less, none that can be written, and none at all: nothing of ours lies there.
#[test]
fn the_size_of_dev_shm_does_not_matter() {
    let shm = |options: &str| format!("mount -t tmpfs -o {options} tmpfs /dev/shm");
    let absent = "mount -t tmpfs tmpfs /dev && mknod -m 666 /dev/null c 1 3 \
        && mknod -m 666 /dev/zero c 1 5 && mknod -m 666 /dev/random c 1 8 \
        && mknod -m 666 /dev/urandom c 1 9 && ln -s /proc/self/fd /dev/fd && test ! -e /dev/shm";
    for before in [
        shm("size=64m"),
        shm("size=16m"),
        shm("ro"),
        absent.to_owned(),
    ] {
        for memory in [Memory::Registered, Memory::Plain] {
            let Some(command) = with_mounts(&before, &job(2, &["room", memory.name(), "64"]))
            else {
                return;
            };
            let want = format!("registered {}", memory == Memory::Registered);
            let got = answers(&Running::start(command).wait_for_all(), 2);
            assert_eq!(got, [want.clone(), want], "{before}");
        }
    }
}

/// A control group with a limit, removed at the end.
struct Limited(PathBuf);

impl Limited {
    /// Of either version; `None` where none can be made.
    fn to(bytes: u64) -> Option<Limited> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let name = format!("gaggle-test-{}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let path_of = |start: &str| {
            let line = own.lines().find_map(|l| l.split_once(start))?;
            Some(line.1.trim_start_matches('/').to_owned())
        };
        let ways = [
            (
                path_of(":memory:").map(|p| root.join("memory").join(p)),
                "memory.limit_in_bytes",
            ),
            (Some(root.join("memory")), "memory.limit_in_bytes"),
            (path_of("0::").map(|p| root.join(p)), "memory.max"),
        ];
        ways.into_iter().find_map(|(dir, limit)| {
            let dir = dir
                .filter(|d| d.join(limit).is_file() || limit == "memory.max")?
                .join(&name);
            fs::create_dir(&dir).ok()?;
            let made = Limited(dir);
            fs::write(made.0.join(limit), bytes.to_string()).ok()?;
            Some(made)
        })
    }
}

impl Limited {
    /// This command, to its end, in the group.
    fn run(&self, inside: &Command) -> Ended {
        let mut command = Command::new("sh");
        let script = format!(
            "echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"",
            self.0.display()
        );
        command
            .args(["-ec", &script])
            .arg(inside.get_program())
            .args(inside.get_args());
        for (name, value) in inside.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        Running::start(command).wait_for_all()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// More than the control group has is not promised, and what is there still works: nobody is killed.
#[test]
fn a_control_groups_limit_is_no_reason_to_be_killed() {
    let Some(group) = Limited::to(192 << 20) else {
        skipped("a control group's limit", "none can be made here");
        return;
    };
    let got = answers(&group.run(&job(2, &["too-much", "200"])), 2);
    assert_eq!(got, ["much registered false, little true"; 2]);
}

/// What one rank was promised, and has not touched yet, no other is promised: two ranks that want six tenths of the limit each are not killed when they use what they got; what fits, both get.
#[test]
fn a_control_groups_limit_is_promised_once() {
    let Some(group) = Limited::to(192 << 20) else {
        skipped("a control group's limit", "none can be made here");
        return;
    };
    let (some, few) = (115 << 18, 1000);
    let got = answers(&group.run(&job(2, &["promised", "115"])), 2);
    let want = [(true, some), (false, few)];
    assert_eq!(
        got,
        want.map(|(r, n)| format!("registered {r}, {n} elements"))
    );
    let got = answers(&group.run(&job(2, &["promised", "64"])), 2);
    let want = format!("registered true, {} elements", 64 << 18);
    assert_eq!(got, [want.clone(), want]);
}
