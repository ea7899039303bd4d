//! Ranks on two hosts that two wires join: network and mount namespaces of two processes, which go with them. Needs root, `ip`, `unshare` and `nsenter`; says so where it has not got them.

use crate::join::{ROLE, answer, this_program};
use gaggle::{Group, Sum};
use std::{
    io::{Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
};

/// Elements of the all-reduce that is to take one wire and not the other.
const LEN: usize = 1 << 18;
/// The wires: the ranks meet over the first.
const WIRES: [&str; 2] = ["front0", "back0"];

/// What a rank does there: an all-reduce; the answer is what its host has sent on each wire meanwhile.
pub(crate) fn bytes(group: &Group) -> String {
    let before = sent();
    let mut x: Vec<f32> = (0..LEN)
        .map(|i| (i % 97 + group.rank().idx()) as f32)
        .collect();
    if let Err(e) = group.all_reduce(&mut x, Sum) {
        return e.to_string();
    }
    let ranks = group.size();
    let sum = |i: usize| (i % 97 * ranks + ranks * (ranks - 1) / 2) as f32;
    let wrong = x.iter().enumerate().filter(|(i, x)| **x != sum(*i)).count();
    let end = group.barrier();
    let [front, back] = [0, 1].map(|wire| sent()[wire] - before[wire]);
    format!("{wrong} wrong, {end:?}; front {front} back {back}")
}

/// Bytes that this namespace has sent, by wire.
fn sent() -> [u64; 2] {
    let all = std::fs::read_to_string("/proc/self/net/dev").unwrap();
    WIRES.map(|wire| {
        let line = all
            .lines()
            .find_map(|l| l.trim().strip_prefix(wire)?.strip_prefix(':'));
        // After the name: eight numbers of what was received, then bytes sent.
        let number = line.and_then(|l| l.split_whitespace().nth(8));
        number.unwrap().parse().unwrap()
    })
}

/// A namespace; it ends with this value, or with the test.
struct Host(Child);

impl Drop for Host {
    fn drop(&mut self) {
        // It may be over already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Host {
    fn new() -> Option<Host> {
        let mut child = Command::new("unshare")
            .args(["--net", "--mount", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        // Once it echoes, it has left this namespace.
        let asked = child.stdin.as_mut().unwrap().write_all(b"?");
        let mut echo = [0];
        let here = child.stdout.as_mut().unwrap().read_exact(&mut echo);
        let host = Host(child);
        (asked.is_ok() && here.is_ok()).then_some(host)
    }

    fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let target = format!("--target={}", self.0.id());
        command.args([&target, "--net", "--mount", "--", program]);
        command
    }

    /// `ip` with these words.
    fn ip(&self, words: &str) -> Option<()> {
        let status = self.inside("ip").args(words.split(' ')).status().ok()?;
        status.success().then_some(())
    }

    /// `/etc/hosts` is this file.
    fn names(&self, file: &Path) -> Option<()> {
        let mut mount = self.inside("mount");
        mount.args(["--bind".as_ref(), file.as_os_str(), "/etc/hosts".as_ref()]);
        mount.status().ok()?.success().then_some(())
    }

    /// A bridge as container engines make one, that runs, and whose address every host gives itself.
    fn docker(&self) -> Option<()> {
        self.ip("link add docker0 type bridge")?;
        self.ip("addr add 172.17.0.1/16 dev docker0")?;
        self.ip("link add port0 type veth peer name port1")?;
        self.ip("link set port0 master docker0")?;
        for link in ["port0", "port1", "docker0"] {
            self.ip(&format!("link set {link} up"))?;
        }
        Some(())
    }

    /// This test program as a rank.
    fn rank(&self, vars: &[(&str, &str)]) -> Child {
        let here = this_program();
        let mut command = self.inside(here.get_program().to_str().unwrap());
        command.args(here.get_args());
        for (name, value) in here.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
            .envs(vars.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command.spawn().unwrap()
    }
}

/// Two hosts: 10.78/16 and fd78::/16 in front, 10.79/16 and fd79::/16 at the back; the last number is the host's, from 1.
fn two_hosts() -> Option<[Host; 2]> {
    let hosts = [Host::new()?, Host::new()?];
    for (wire, net) in WIRES.iter().zip([78, 79]) {
        let far = hosts[1].0.id();
        hosts[0].ip(&format!(
            "link add {wire} type veth peer name {wire} netns {far}"
        ))?;
        for (host, n) in hosts.iter().zip(1..) {
            // Without waiting whether somebody else has the addresses.
            host.ip(&format!("link set {wire} addrgenmode none"))?;
            host.ip(&format!("-6 addr add fe80::{net}:{n}/64 dev {wire} nodad"))?;
            host.ip(&format!("addr add 10.{net}.0.{n}/16 dev {wire}"))?;
            host.ip(&format!("-6 addr add fd{net}::{n}/16 dev {wire} nodad"))?;
            host.ip(&format!("link set {wire} up"))?;
        }
    }
    for host in &hosts {
        host.ip("link set lo up")?;
    }
    Some(hosts)
}

/// Rank by rank, on host 0, 1, 0, ...: the answers.
fn job(hosts: &[Host; 2], world: usize, master: &str, interface: &[&str]) -> Vec<String> {
    let start = |rank: usize| {
        hosts[rank % 2].rank(&[
            (ROLE, "bytes"),
            ("RANK", &rank.to_string()),
            ("WORLD_SIZE", &world.to_string()),
            ("MASTER_ADDR", master),
            ("MASTER_PORT", "29500"),
            ("GAGGLE_SECRET", &"5a".repeat(32)),
            ("GAGGLE_TIMEOUT", "20"),
            ("GAGGLE_INTERFACE", interface[rank % interface.len()]),
        ])
    };
    let mut ranks: Vec<Child> = (0..world).map(start).collect();
    ranks.iter_mut().map(answer).collect()
}

/// All is right, and what was reduced has taken the wire that it should.
#[track_caller]
fn check(hosts: &[Host; 2], world: usize, master: &str, interface: &[&str], wire: &str) {
    let answers = job(hosts, world, master, interface);
    for answer in &answers {
        let sent = answer.strip_prefix("0 wrong, Ok(()); front ");
        let sent = sent
            .and_then(|s| s.split_once(" back "))
            .unwrap_or_else(|| panic!("{interface:?}: {answers:?}"));
        let [front, back] = [sent.0, sent.1].map(|s| s.parse::<u64>().unwrap());
        let (used, other) = if wire == WIRES[0] {
            (front, back)
        } else {
            (back, front)
        };
        // At least half of the data crosses from each host; the store's words are few.
        assert!(
            used > LEN as u64 * 2 && other < 100_000,
            "{interface:?}: {answers:?}"
        );
    }
}

fn not_tested(what: &str) {
    let need = "root, network and mount namespaces, `ip`, `unshare` and `nsenter`";
    // Not captured, as what is printed by a macro is.
    let mut seen = std::io::stderr();
    writeln!(seen, "\nNOT TESTED: {what} need {need}").unwrap();
}

/// Trial 13: each host's name is its own loopback to itself, and both have the address of the container engine's bridge.
#[test]
fn what_both_hosts_call_themselves_is_no_address_for_the_other() {
    let names = tempfile::tempdir().unwrap();
    let file =
        |alpha: &str, beta: &str| format!("127.0.0.1 localhost\n{alpha} alpha\n{beta} beta\n");
    let here = file("127.0.1.1", "10.78.0.2");
    let there = file("10.78.0.1", "127.0.1.1");
    let hosts = two_hosts().filter(|hosts| {
        let mut texts = hosts.iter().zip([("here", here), ("there", there)]);
        texts.all(|(host, (name, text))| {
            let file = names.path().join(name);
            std::fs::write(&file, text).unwrap();
            host.docker().is_some() && host.names(&file).is_some()
        })
    });
    let Some(hosts) = hosts else {
        return not_tested("hosts with names and bridges");
    };
    let [front, back] = WIRES;
    for master in ["alpha", "10.78.0.1"] {
        check(&hosts, 2, master, &[""], front);
        check(&hosts, 3, master, &["^lo,docker*"], front);
        check(&hosts, 3, master, &["!lo,!docker*"], front);
        check(&hosts, 2, master, &["front0"], front);
        check(&hosts, 5, master, &["10.79.0.0/16"], back);
        check(&hosts, 2, master, &["^lo,docker*,front0"], back);
        check(&hosts, 2, master, &["!lo,!172.17.0.0/16,!front0"], back);
    }
    // The bridge's address is asked for: nobody is reached there, and that is said.
    let answers = job(&hosts, 2, "alpha", &["docker0"]);
    assert!(
        answers.iter().all(|answer| answer.starts_with("refused: ")),
        "{answers:?}"
    );
}

#[test]
fn data_take_the_wire_that_the_interface_says() {
    let Some(hosts) = two_hosts() else {
        return not_tested("two hosts");
    };
    let [front, back] = WIRES;
    check(&hosts, 2, "10.78.0.1", &[""], front);
    check(&hosts, 3, "fd78::1", &[""], front);
    check(&hosts, 2, "10.78.0.1", &["back0"], back);
    check(&hosts, 3, "10.78.0.1", &["b*,^lo"], back);
    check(&hosts, 2, "10.78.0.1", &["10.79.0.0/16"], back);
    check(&hosts, 5, "10.78.0.1", &["fd79::/16"], back);
    check(&hosts, 2, "fd78::1", &["!fd78::/16,!10.0.0.0/8"], back);
    check(&hosts, 2, "10.78.0.1", &["fe80::/10,!front0"], back);
    check(&hosts, 2, "10.78.0.1", &["10.79.0.1", "10.79.0.2"], back);

    // Rank 1 may only see that the store has gone with rank 0.
    let answers = job(&hosts, 2, "10.78.0.1", &["lo"]);
    let want =
        "rank 0 is to be reached at the loopback address 127.0.0.1, and rank 1 is on another host";
    assert!(answers[0].contains(want), "{answers:?}");
    let answers = job(&hosts, 2, "10.78.0.1", &["eth9"]);
    let want = "no interface matches 'eth9': there are lo (127.0.0.1, ::1), front0 (";
    assert!(
        answers[0].contains(want) && answers[0].contains("back0 (10.79.0.1, fd79::1"),
        "{answers:?}"
    );
    // Whose name it is not, gives up, and the others say so instead of waiting.
    for answer in job(&hosts, 3, "10.78.0.1", &["", "eth9", ""]) {
        assert!(answer.contains("no interface matches 'eth9'"), "{answer}");
    }
}
