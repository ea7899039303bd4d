//! Ranks as processes, without a launcher of ours: this test program starts itself once per rank, with a launcher's variables.

use gaggle::{
    Algorithm, Cause, DType, Error, Job, Kind, Mean, Op, Rank, Reduce,
    ddp::{NeighbourMixer, digest},
    optim::{Decentralised, RuleConfig, rule_by_name},
    topology::by_name,
    transport::{
        auth::{Credentials, Secret},
        store::{StoreConfig, StoreServer},
    },
};
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Ipv6Addr, TcpListener},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// What a rank of [`child`] does.
pub(crate) const ROLE: &str = "GAGGLE_TEST_ROLE";
/// Begins the line that a rank answers with; the rest of its output is the test harness's.
const ANSWER: &str = "ANSWER ";
/// No wait is longer, so that a failure ends too.
const TIMEOUT: &str = "30";

/// Not a test of its own: the body of a rank, where the parent asks for one.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let answer = match gaggle::join() {
        Ok(job) => act(&role, job),
        Err(e) => format!("refused: {e}"),
    };
    println!("\n{ANSWER}{answer}");
}

fn act(role: &str, job: Job) -> String {
    let blame = |e: &Error| format!("{} {:?}: {e}", kind(e), e.culprits());
    match role {
        "train" => train(&job).unwrap_or_else(|e| e.to_string()),
        #[cfg(target_os = "linux")]
        "bytes" => crate::hosts::bytes(&job),
        "size" => format!("{} of {}", job.rank().0, job.size()),
        "crash" => {
            job.barrier().unwrap();
            if job.rank() == Rank(1) {
                std::process::abort();
            }
            let e = job.all_reduce(&mut [1.0f32], Mean).unwrap_err();
            blame(&e)
        }
        // Rank 1 is killed, or stands still; how it is told, and whether in time.
        #[cfg(target_os = "linux")]
        "killed" | "stopped" => {
            use rustix::process::{Signal, getpid, kill_process};
            job.barrier().unwrap();
            if job.rank() == Rank(1) {
                let killed = role == "killed";
                kill_process(getpid(), if killed { Signal::KILL } else { Signal::STOP }).unwrap();
            }
            let begun = std::time::Instant::now();
            let e = job
                .all_reduce(&mut vec![1.0f32; 1 << 20], Mean)
                .unwrap_err();
            let soon = begun.elapsed() < std::time::Duration::from_secs(1);
            format!("{} {:?}, within a second: {soon}", kind(&e), e.culprits())
        }
        // Whether a buffer is registered, whether its content went by no message, and the bits of the result.
        "buffer" => {
            let mut x = job.buffer::<f32>(100_003);
            for (i, v) in x.iter_mut().enumerate() {
                *v = (i as f32 + 0.1) / (job.rank().0 as f32 + 3.0);
            }
            let before = job.communicator().stats();
            job.all_reduce(&mut x, Mean).unwrap();
            let sent = job.communicator().stats().since(&before).payload_sent;
            let bits = x.iter().fold(0u64, |h, v| {
                h.wrapping_mul(31).wrapping_add(u64::from(v.to_bits()))
            });
            format!("{} {} {bits:x}", x.is_registered(), sent < 1000)
        }
        // Whether plans in two levels are there, and whether what they sum is right.
        #[cfg(target_os = "linux")]
        "nodes" => {
            let op = Op::new(Kind::AllReduce(Reduce::Sum));
            let two = op.clone().by(Algorithm::TwoLevelDirect);
            let (levels, op) = match job.explain::<f32>(&two, 1000) {
                Ok(_) => ("two levels", two),
                Err(_) => ("one level", op),
            };
            let n = job.size() as f32;
            let right = [1, 1003, 100_003].into_iter().all(|len| {
                let mut x = job.buffer::<f32>(len);
                x.fill(job.rank().0 as f32 + 1.0);
                job.run(&op, &mut x).unwrap();
                x.iter().all(|v| *v == n * (n + 1.0) / 2.0)
            });
            format!("{levels}, {}", if right { "right" } else { "wrong" })
        }
        // How long a step over mapped memory is predicted to take, in nanoseconds.
        #[cfg(target_os = "linux")]
        "crowded" => {
            let op = Op::new(Kind::AllReduce(Reduce::Sum));
            let time = job.communicator().predict(&op, DType::F32, 1 << 20);
            time.unwrap().unwrap().as_nanos().to_string()
        }
        // Rank 0 serves the store and is done first.
        "early" => {
            if job.rank() != Rank(0) {
                let e = job.barrier().unwrap_err();
                return blame(&e);
            }
            job.leave();
            "gone".into()
        }
        other => panic!("no role {other}"),
    }
}

fn kind(e: &Error) -> &'static str {
    match e.cause() {
        Cause::PeerLost { .. } => "lost",
        Cause::PeerLeft { .. } => "left",
        Cause::Timeout { .. } => "timeout",
        _ => "other",
    }
}

/// 50 steps of DmSGD on 1000 numbers; the answer is the digest of the outcome.
fn train(group: &gaggle::Group) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    const DIM: usize = 1000;
    let graph = by_name("one-peer-exp", group.size())?;
    let mixer = NeighbourMixer::<f32>::new(group.clone(), graph)?;
    let rule = rule_by_name("dmsgd", &RuleConfig::default())?;
    let mut driver = Decentralised::unchecked(rule, Box::new(mixer), DIM);
    let mut x = vec![0.0f32; DIM];
    for _ in 0..50 {
        let target = |i: usize| (i * (group.rank().idx() + 1)) as f32 / DIM as f32;
        let g: Vec<f32> = x.iter().enumerate().map(|(i, x)| x - target(i)).collect();
        driver.step(0.05, &mut x, &g)?;
    }
    Ok(digest(&x).to_string())
}

/// Ranks that are killed with the test.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may be over already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Ranks {
    /// Ranks `which`, with `vars` on top of an environment that says nothing.
    fn start(role: &str, which: impl IntoIterator<Item = u32>, vars: &[(&str, String)]) -> Ranks {
        let start = |rank: u32| {
            let mut c = this_program();
            c.env(ROLE, role)
                .env("RANK", rank.to_string())
                .env("GAGGLE_TIMEOUT", TIMEOUT)
                .envs(vars.iter().map(|(k, v)| (*k, v)));
            c.spawn().unwrap()
        };
        Ranks(which.into_iter().map(start).collect())
    }

    /// Their answers; a rank that gave none answers with an empty string.
    fn answers(mut self) -> Vec<String> {
        self.0.iter_mut().map(answer).collect()
    }
}

pub(crate) fn this_program() -> Command {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(["join::child", "--exact", "--nocapture"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    for var in [
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "GAGGLE_STORE",
        "GAGGLE_SECRET",
        "GAGGLE_JOB",
        "GAGGLE_PORT",
        "GAGGLE_INTERFACE",
        "GAGGLE_TRANSPORT",
        "GAGGLE_FUSION",
        "GAGGLE_PARTING",
        "GAGGLE_NODE",
    ] {
        c.env_remove(var);
    }
    c
}

pub(crate) fn answer(child: &mut Child) -> String {
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    child.wait().unwrap();
    answers_in(&out).pop().unwrap_or_default()
}

fn answers_in(out: &str) -> Vec<String> {
    out.lines()
        .filter_map(|l| Some(l.split_once(ANSWER)?.1.to_owned()))
        .collect()
}

/// A port that nobody has at this moment, and that the system gives to nobody who does not ask for it: other tests' connections take theirs from 32768 on.
fn free_port() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + (std::process::id().wrapping_mul(61).wrapping_add(n)) % 12_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port as u16)).is_ok() {
            return port.to_string();
        }
    }
}

/// What torchrun says on one host.
fn torch(n: u32) -> Vec<(&'static str, String)> {
    vec![
        ("WORLD_SIZE", n.to_string()),
        ("LOCAL_WORLD_SIZE", n.to_string()),
        ("MASTER_ADDR", "localhost".into()),
        ("MASTER_PORT", "29500".into()),
        ("GAGGLE_PORT", free_port()),
    ]
}

/// A store of ours and what `gaggle run` says.
fn launched(n: u32) -> (StoreServer, Vec<(&'static str, String)>) {
    let creds = Credentials {
        job: "test".into(),
        epoch: 0,
        secret: Secret::random().unwrap(),
    };
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let store = StoreServer::bind(any, &creds, StoreConfig::new(n)).unwrap();
    let vars = vec![
        ("WORLD_SIZE", n.to_string()),
        ("GAGGLE_STORE", store.addr().to_string()),
        ("GAGGLE_SECRET", creds.secret.to_hex()),
        ("GAGGLE_JOB", creds.job.clone()),
    ];
    (store, vars)
}

fn as_threads(n: u32) -> Vec<String> {
    gaggle::local(n as usize, |group| train(&group).unwrap()).unwrap()
}

#[test]
fn processes_meet_as_under_torchrun_and_compute_the_same_bits_as_threads() {
    for n in [1, 2, 3, 5] {
        let got = Ranks::start("train", 0..n, &torch(n)).answers();
        assert_eq!(got, as_threads(n), "world {n}");
    }
}

#[test]
fn processes_meet_in_a_launchers_store_and_compute_the_same_bits_as_threads() {
    for n in [1, 7, 8] {
        let (store, vars) = launched(n);
        let got = Ranks::start("train", 0..n, &vars).answers();
        assert_eq!(got, as_threads(n), "world {n}");
        let roster = store.roster();
        assert_eq!(roster.left.len(), n as usize, "{roster:?}");
    }
}

#[test]
fn processes_meet_on_ipv6_alone_and_where_their_interface_says() {
    // Each with the store in another family than the data links, or in the same.
    for (n, master, interface) in [
        (3, "::1", ""),
        (5, "[::1]", "127.0.0.1"),
        (2, "127.0.0.1", "::1"),
        (7, "127.0.0.1", "^no-such-*"),
    ] {
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err()
            && format!("{master}{interface}").contains(':')
        {
            writeln!(std::io::stderr(), "\nNOT TESTED: this machine has no IPv6").unwrap();
            continue;
        }
        for private in [true, false] {
            let mut vars = torch(n);
            vars[2].1 = master.into();
            vars.push(("GAGGLE_INTERFACE", interface.into()));
            if !private {
                vars.push(("GAGGLE_SECRET", Secret::random().unwrap().to_hex()));
            }
            let got = Ranks::start("train", 0..n, &vars).answers();
            assert_eq!(got, as_threads(n), "{n} at {master} over {interface:?}");
        }
    }
}

#[test]
fn an_interface_that_is_not_there_is_told_with_those_that_are() {
    let mut vars = torch(1);
    vars[0].1 = "2".into();
    vars.push(("GAGGLE_INTERFACE", "no-such-0".into()));
    let got = Ranks::start("size", [0], &vars).answers();
    let want = "no interface matches 'no-such-0': there are ";
    assert!(
        got[0].contains("GAGGLE_INTERFACE: ") && got[0].contains(want),
        "{got:?}"
    );
    assert!(got[0].contains("127.0.0.1"), "{got:?}");
}

#[test]
fn a_process_alone_is_a_world_of_one() {
    let mut c = this_program();
    c.env(ROLE, "size")
        .env_remove("RANK")
        .stderr(Stdio::piped());
    let mut child = c.spawn().unwrap();
    let mut err = String::new();
    assert_eq!(answer(&mut child), "0 of 1");
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    let said: Vec<&str> = err.lines().filter(|l| l.contains("gaggle: ")).collect();
    assert_eq!(said.len(), 1, "{err}");
    assert!(said[0].contains("RANK and WORLD_SIZE"), "{err}");
}

#[test]
fn a_missing_rank_is_named_within_the_deadline() {
    let (_store, mut vars) = launched(3);
    vars.push(("GAGGLE_TIMEOUT", "1".into()));
    for got in Ranks::start("size", [0, 2], &vars).answers() {
        assert!(got.starts_with("refused: rendezvous of rank"), "{got}");
        assert!(got.contains("rank 1"), "{got}");
    }
}

#[test]
fn a_wrong_secret_is_refused_at_once() {
    let (store, mut vars) = launched(2);
    vars[2].1 = Secret::random().unwrap().to_hex();
    let got = Ranks::start("size", [0], &vars).answers();
    assert!(got[0].starts_with("refused: store at "), "{}", got[0]);
    assert!(!got[0].contains(&vars[2].1), "{}", got[0]);
    assert_eq!(store.joined(), []);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut vars = torch(2);
    vars[4].1 = taken.local_addr().unwrap().port().to_string();
    let got = Ranks::start("size", [0], &vars).answers();
    assert!(got[0].contains("GAGGLE_PORT"), "{}", got[0]);
}

#[test]
fn a_guessed_port_that_is_taken_is_replaced_by_another() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut vars = torch(3);
    vars.truncate(4);
    // The usual place of the store is the port after this one.
    vars[3].1 = (taken.local_addr().unwrap().port() - 1).to_string();
    let got = Ranks::start("train", 0..3, &vars).answers();
    assert_eq!(got, as_threads(3));
}

#[test]
fn a_crashed_process_is_lost_to_the_others() {
    let got = Ranks::start("crash", 0..3, &torch(3)).answers();
    assert_eq!(got[1], "");
    for a in [&got[0], &got[2]] {
        assert!(a.starts_with("lost [Rank(1)]"), "{got:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn whatever_they_talk_through_ranks_compute_the_same_bits() {
    for (n, through) in [(2, "tcp"), (2, "shm"), (3, "shm"), (5, "auto"), (7, "shm")] {
        let mut vars = torch(n);
        vars.push(("GAGGLE_TRANSPORT", through.into()));
        let got = Ranks::start("train", 0..n, &vars).answers();
        assert_eq!(got, as_threads(n), "world {n} through {through}");
    }
    // One of them does not want to share memory.
    let vars = torch(3);
    let others = Ranks::start("train", [0, 2], &vars);
    let mut alone = vars.clone();
    alone.push(("GAGGLE_TRANSPORT", "tcp".into()));
    let one = Ranks::start("train", [1], &alone);
    let (mut got, one) = (others.answers(), one.answers());
    got.splice(1..1, one);
    assert_eq!(got, as_threads(3));
    let mut vars = torch(1);
    vars.push(("GAGGLE_TRANSPORT", "sm".into()));
    let got = Ranks::start("size", 0..1, &vars).answers().remove(0);
    assert!(got.contains("GAGGLE_TRANSPORT is \"sm\""), "{got}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_killed_process_is_seen_at_once_and_a_stopped_one_is_named() {
    for through in ["shm", "tcp"] {
        let mut vars = torch(2);
        vars.push(("GAGGLE_TRANSPORT", through.into()));
        let mut ranks = Ranks::start("killed", 0..2, &vars);
        let got = answer(&mut ranks.0[0]);
        assert_eq!(got, "lost [Rank(1)], within a second: true", "{through}");
        let mut vars = torch(2);
        vars.push(("GAGGLE_TRANSPORT", through.into()));
        vars.push(("GAGGLE_TIMEOUT", "2".into()));
        let mut ranks = Ranks::start("stopped", 0..2, &vars);
        let got = answer(&mut ranks.0[0]);
        assert_eq!(
            got, "timeout [Rank(1)], within a second: false",
            "{through}"
        );
    }
    // Nothing of ours has a name there.
    let left = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    let ours = |name: &std::ffi::OsString| name.to_string_lossy().contains("gaggle");
    assert!(!left.iter().any(ours), "{left:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn registered_buffers_take_one_pass_and_have_the_bits_of_messages() {
    for n in [2, 3, 5] {
        let mut bits = Vec::new();
        for (name, value, how) in [
            ("GAGGLE_FUSION", "on", "true true"),
            ("GAGGLE_FUSION", "off", "true false"),
        ] {
            let mut vars = torch(n);
            vars.push((name, value.into()));
            for got in Ranks::start("buffer", 0..n, &vars).answers() {
                let (said, digest) = got.rsplit_once(' ').unwrap();
                assert_eq!(said, how, "world {n}, {name}={value}");
                bits.push(digest.to_string());
            }
        }
        bits.dedup();
        assert_eq!(bits.len(), 1, "world {n}");
    }
    let mut vars = torch(2);
    vars.push(("GAGGLE_TRANSPORT", "tcp".into()));
    for got in Ranks::start("buffer", 0..2, &vars).answers() {
        assert!(got.starts_with("false false "), "{got}");
    }
}

/// On made-up machines: nodes by rank, of which nobody measures anything.
#[test]
#[cfg(target_os = "linux")]
fn ranks_that_say_on_which_nodes_they_are_agree_about_them() {
    let start = |nodes: &[&str], through: &str| {
        let mut vars = torch(nodes.len() as u32);
        vars.push(("GAGGLE_TRANSPORT", through.into()));
        let ranks: Vec<Ranks> = (0..)
            .zip(nodes)
            .map(|(rank, node)| {
                let mut vars = vars.clone();
                vars.push(("GAGGLE_NODE", (*node).into()));
                Ranks::start("nodes", [rank], &vars)
            })
            .collect();
        let answers: Vec<String> = ranks.into_iter().flat_map(Ranks::answers).collect();
        assert!(answers.iter().all(|a| *a == answers[0]), "{answers:?}");
        answers[0].clone()
    };
    for through in ["shm", "tcp"] {
        assert_eq!(start(&["0", "0", "1", "1"], through), "two levels, right");
        assert_eq!(
            start(&["7", "3", "7", "3", "3"], through),
            "two levels, right"
        );
    }
    assert_eq!(start(&["0", "0", "0"], "shm"), "one level, right");
    assert_eq!(start(&["0", "1", "2"], "shm"), "one level, right");
    assert_eq!(start(&["0", "0", "1", "off"], "shm"), "one level, right");
    // A container's processors are mostly on one node, or on all.
    assert_eq!(start(&["auto", "auto"], "shm"), "one level, right");
}

/// Two ranks that are bound to one processor share it, however many the host has.
#[test]
#[cfg(target_os = "linux")]
fn ranks_that_are_bound_to_one_processor_are_crowded_and_others_not() {
    let able = Command::new("taskset").args(["-c", "0", "true"]).status();
    if !able.is_ok_and(|status| status.success())
        || std::thread::available_parallelism().unwrap().get() < 2
    {
        eprintln!("SKIPPED: no two processors to be bound to, or no taskset");
        return;
    }
    let start = |cpus: [&str; 2]| {
        let vars = torch(2);
        let ranks = (0..2).map(|rank| {
            let plain = this_program();
            let mut c = Command::new("taskset");
            c.args(["-c", cpus[rank]])
                .arg(plain.get_program())
                .args(plain.get_args());
            for (name, value) in plain.get_envs() {
                match value {
                    Some(value) => c.env(name, value),
                    None => c.env_remove(name),
                };
            }
            c.stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .env(ROLE, "crowded")
                .env("RANK", rank.to_string())
                .env("GAGGLE_TIMEOUT", TIMEOUT)
                .envs(vars.iter().map(|(k, v)| (*k, v)));
            c.spawn().unwrap()
        });
        Ranks(ranks.collect()).answers()
    };
    let (alone, crowded) = (start(["0", "1"]), start(["0", "0"]));
    assert_eq!(alone, start(["0-1", "0-1"]));
    assert_eq!(crowded[0], crowded[1]);
    // What shares a processor is predicted to take longer.
    let time = |answers: &[String]| -> u64 { answers[0].parse().unwrap() };
    assert!(time(&crowded) > time(&alone), "{crowded:?} {alone:?}");
}

/// Containers often give it 64 MiB, read-only or not at all: it is not needed.
#[test]
#[cfg(target_os = "linux")]
fn memory_is_shared_whatever_dev_shm_is_like() {
    for mount in [
        "mount -t tmpfs -o ro,size=16m none /dev/shm",
        "mount -t tmpfs -o size=4k none /dev/shm",
        "mount -t tmpfs none /dev",
    ] {
        let inside = |command: &str| {
            let mut c = Command::new("unshare");
            c.args([
                "--mount",
                "sh",
                "-c",
                &format!("{mount} && {command}"),
                "sh",
            ]);
            c
        };
        let able = inside("true").stderr(Stdio::null()).status();
        if !able.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: no private mounts here: {mount}");
            return;
        }
        let vars = torch(2);
        let start = |rank: u32| {
            let mut c = inside("exec \"$@\"");
            let plain = this_program();
            c.arg(plain.get_program()).args(plain.get_args());
            for (name, value) in plain.get_envs() {
                match value {
                    Some(value) => c.env(name, value),
                    None => c.env_remove(name),
                };
            }
            c.stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .env(ROLE, "train")
                .env("RANK", rank.to_string())
                .env("GAGGLE_TIMEOUT", TIMEOUT)
                .env("GAGGLE_TRANSPORT", "shm")
                .envs(vars.iter().map(|(k, v)| (*k, v)));
            c.spawn().unwrap()
        };
        let got = Ranks((0..2).map(start).collect()).answers();
        assert_eq!(got, as_threads(2), "{mount}");
    }
}

#[test]
fn the_rank_that_serves_the_store_may_be_done_first() {
    let got = Ranks::start("early", 0..3, &torch(3)).answers();
    assert_eq!(got[0], "gone");
    for a in &got[1..] {
        assert!(a.starts_with("left ["), "{a}");
    }
}

/// The real one, where it is installed: `cargo xtask install torchrun`.
#[test]
fn the_real_torchrun_starts_ranks() {
    let Some(torchrun) = find_torchrun() else {
        // Not by `eprintln`, which the harness keeps to itself where a test passes.
        writeln!(
            std::io::stderr(),
            "\nNOT TESTED: torchrun was not found in target/torchrun or PATH; `cargo xtask install torchrun` installs it"
        )
        .unwrap();
        return;
    };
    let out = Command::new(torchrun)
        .args(["--nnodes", "1", "--nproc-per-node", "3", "--no-python"])
        .args(["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"])
        .arg(std::env::current_exe().unwrap())
        .args(["join::child", "--exact", "--nocapture"])
        .env(ROLE, "train")
        .env("GAGGLE_TIMEOUT", TIMEOUT)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let mut got = answers_in(&text);
    let mut want = as_threads(3);
    got.sort();
    want.sort();
    assert_eq!(got, want, "{text}{}", String::from_utf8_lossy(&out.stderr));
}

fn find_torchrun() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    // target/PROFILE/deps/this
    let installed = exe.ancestors().nth(3)?.join("torchrun/bin/torchrun");
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::iter::once(installed)
        .chain(std::env::split_paths(&path).map(|d| d.join("torchrun")))
        .find(|p| p.is_file())
}
