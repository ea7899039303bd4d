//! `gaggle trace` on recordings that were made here: what is told, what is refused, and the form of the time line.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use gaggle_core::{
    Algorithm, Cause, Class, Codec, DType, Descriptor, Divisor, Error, GroupInfo, OpId, OpKind,
    Rank, Reduce, descriptor::ModeBits,
};
use gaggle_trace::{About, Failure, Recorder, Start, Ticket};
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path, process::Command};
use tempfile::TempDir;

/// Runs it; returns the exit code, stdout and stderr.
fn trace(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_gaggle"))
        .arg("trace")
        .args(args)
        .env_remove("GAGGLE_TRACE")
        .env("GAGGLE_TRACE_DIR", dir)
        .output()
        .unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (
        output.status.code().unwrap(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn told(dir: &Path, args: &[&str]) -> String {
    let (code, out, err) = trace(dir, args);
    assert_eq!(code, 0, "{out}{err}");
    out
}

fn refused(dir: &Path, args: &[&str], why: &str) {
    let (code, out, err) = trace(dir, args);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.starts_with("gaggle: ") && err.contains(why), "{err}");
}

fn descriptor(lane: u32, seq: u64) -> Descriptor {
    Descriptor {
        id: OpId {
            group: 7,
            lane,
            class: Class::Collective,
            seq,
        },
        incarnation: 0,
        epoch: 0,
        kind: OpKind::AllReduce,
        dtype: DType::F32,
        reduce: Reduce::Sum,
        count: 1000,
        root: Rank(0),
        codec: Codec::None,
        algorithm: Algorithm::Ring,
        divisor: Divisor::Contributors,
        mode: ModeBits::default(),
        priority: 0,
        slice: 65536,
        tables: 0,
    }
}

/// A rank of four, and its recorder.
struct Recorded {
    recorder: Recorder,
    group: GroupInfo,
}

impl Recorded {
    fn start(&mut self, lane: u32, seq: u64) -> Ticket {
        self.recorder.start(&Start {
            descriptor: &descriptor(lane, seq),
            group: &self.group,
            sources: 1 << ((self.group.rank.0 + 3) % 4),
        })
    }
}

/// Four ranks, of which rank 1 dies before it calls the seventh all-reduce; each has two operations of lane 1 in flight at once.
fn crash(dir: &Path, job: &str, run: u64) {
    let world: Vec<Rank> = (0..4).map(Rank).collect();
    let mut ranks: Vec<Recorded> = world
        .iter()
        .map(|rank| Recorded {
            recorder: Recorder::create(dir, &About::new(job, 4, *rank).in_run(run)).unwrap(),
            group: GroupInfo {
                id: 7,
                rank: *rank,
                world_ranks: world.clone(),
                epoch: 0,
                initial_size: 4,
                incarnation: 0,
            },
        })
        .collect();
    for seq in 0..6 {
        let started: Vec<[Ticket; 3]> = ranks
            .iter_mut()
            .map(|r| {
                [
                    r.start(0, seq),
                    r.start(1, 2 * seq),
                    r.start(1, 2 * seq + 1),
                ]
            })
            .collect();
        for (r, tickets) in ranks.iter_mut().zip(started) {
            let from = Rank((r.group.rank.0 + 3) % 4);
            for ticket in tickets {
                r.recorder.arrived(ticket, from, from, 4000);
                r.recorder.done(ticket, 4000, &[]);
            }
        }
    }
    let error = Error::from(Cause::PeerLost {
        op: "all_reduce #6".into(),
        rank: Rank(1),
        world_rank: Rank(1),
        why: "connection reset".into(),
        partly_written: true,
    });
    for r in [0, 2, 3] {
        let rank = &mut ranks[r];
        let ticket = rank.start(0, 6);
        if r != 3 {
            let failure = Failure::of(&error, &rank.group);
            rank.recorder.failed(ticket, 0, &[Rank(1)], &failure);
            rank.recorder.keep();
        }
    }
    for (r, rank) in ranks.into_iter().enumerate() {
        match r {
            0 | 2 => rank.recorder.close(),
            _ => drop(rank),
        }
    }
}

#[test]
fn the_culprit_the_waiting_and_the_operations_are_named() {
    let dir = TempDir::new().unwrap();
    crash(dir.path(), "job", 1);
    let out = told(dir.path(), &[]);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "job job: 4 of 4 ranks have left a recording");
    let after = |title: &str| {
        let at = lines.iter().position(|l| *l == title).unwrap();
        lines[at + 1]
    };
    assert_eq!(
        after("who waited for whom:"),
        "  rank 1  ended without leaving; named by ranks 0 and 2: lost (connection reset); awaited by rank 3"
    );
    let flying = after("in flight at the end:");
    assert!(
        flying.starts_with(
            "  rank 3  all_reduce #6 (all_reduce(sum) of 1000 f32 by ring, plain), for "
        ) && flying.ends_with(", waits for rank 1 (has not called it)"),
        "{flying}"
    );
    assert!(
        after("failed:")
            .starts_with("  rank 0  all_reduce #6: lost rank 1 (connection reset), after "),
        "{out}"
    );
    assert!(after("ranks:").contains("left after failures"), "{out}");
    assert!(out.contains("late ranks:\n  rank "), "{out}");
    assert!(!out.contains("clocks:"), "{out}");
}

#[test]
fn programs_get_the_same_as_json() {
    let dir = TempDir::new().unwrap();
    crash(dir.path(), "job", 1);
    let report: Value = serde_json::from_str(&told(dir.path(), &["--json"])).unwrap();
    assert_eq!(
        (&report["job"], &report["world"]),
        (&"job".into(), &4.into())
    );
    let first = &report["blamed"][0];
    assert_eq!(first["rank"], 1);
    assert_eq!(first["named_by"].as_array().unwrap().len(), 2);
    assert_eq!(report["in_flight"][0]["waits_for"][0]["rank"], 1);
    assert_eq!(report["ranks"].as_array().unwrap().len(), 4);
    assert_eq!(report["clocks"].as_array().unwrap().len(), 1);
    assert_eq!(report["ranks"][0]["kept"], 19);
    let failed = report["failed"].as_array().unwrap();
    assert_eq!(failed.len(), 2);
    assert_eq!(
        (&failed[1]["rank"], &failed[1]["culprit"]),
        (&2.into(), &1.into())
    );
    let last: Value = serde_json::from_str(&told(dir.path(), &["--json", "--last", "2"])).unwrap();
    assert_eq!(last["ranks"][0]["kept"], 2);
    // Operations in flight stay, however old.
    assert_eq!(last["in_flight"][0]["rank"], 3);
}

#[test]
fn the_time_line_is_what_perfetto_reads() {
    let dir = TempDir::new().unwrap();
    crash(dir.path(), "job", 1);
    let path = dir.path().join("timeline.json");
    told(dir.path(), &["-o", path.to_str().unwrap()]);
    let file: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let place = |e: &Value| (e["pid"].as_u64().unwrap(), e["tid"].as_u64().unwrap());
    let mut slices: BTreeMap<_, Vec<(f64, f64)>> = BTreeMap::new();
    let mut names = BTreeMap::new();
    let mut arrows: BTreeMap<u64, [Option<&Value>; 2]> = BTreeMap::new();
    for e in events {
        match e["ph"].as_str().unwrap() {
            "M" => {
                let name = e["args"]["name"].as_str().unwrap_or_default();
                names.insert((place(e), e["name"].as_str().unwrap()), name);
            }
            "X" => {
                let (ts, dur) = (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap());
                assert!(ts >= 0.0 && dur >= 0.0, "{e}");
                assert!(
                    e["name"].as_str().unwrap().starts_with("all_reduce #"),
                    "{e}"
                );
                assert!(e["args"]["operation"].is_string() && e["args"]["phase"].is_string());
                slices.entry(place(e)).or_default().push((ts, ts + dur));
            }
            "s" => arrows.entry(e["id"].as_u64().unwrap()).or_default()[0] = Some(e),
            "f" => arrows.entry(e["id"].as_u64().unwrap()).or_default()[1] = Some(e),
            other => panic!("{other}"),
        }
    }
    // 6 of lane 0 and 12 of lane 1 on each rank, and 3 that did not go well.
    assert_eq!(slices.values().map(Vec::len).sum::<usize>(), 4 * 18 + 3);
    assert_eq!(
        names
            .keys()
            .filter(|(_, what)| *what == "process_name")
            .count(),
        4
    );
    // Lane 1 needs two rows.
    assert_eq!(slices.len(), 4 * 3);
    for (row, slices) in &mut slices {
        assert!(
            names[&(*row, "thread_name")].starts_with("lane "),
            "{row:?}"
        );
        slices.sort_by(|a, b| a.partial_cmp(b).unwrap());
        for two in slices.windows(2) {
            assert!(two[0].1 <= two[1].0 + 1e-3, "{row:?} overlaps: {two:?}");
        }
    }
    assert_eq!(arrows.len(), 4 * 18);
    for ends in arrows.values() {
        for end in ends {
            let end = end.unwrap();
            let ts = end["ts"].as_f64().unwrap();
            let within = |(from, to): &(f64, f64)| (*from - 1e-3..=*to + 1e-3).contains(&ts);
            assert!(slices[&place(end)].iter().any(within), "{end}");
        }
        let (from, to) = (place(ends[0].unwrap()).0, place(ends[1].unwrap()).0);
        assert_eq!(from, (to + 3) % 4);
    }
}

#[test]
fn two_hosts_are_told_apart_and_their_clocks_compared() {
    let dir = TempDir::new().unwrap();
    crash(dir.path(), "job", 1);
    // Rank 2's and 3's host has a clock of its own, one hour ahead.
    for path in gaggle_trace::place::recordings(dir.path()).unwrap() {
        let mut bytes = fs::read(&path).unwrap();
        if bytes[32] < 2 {
            continue;
        }
        bytes[72] ^= 1;
        bytes[257..261].copy_from_slice(b"far ");
        bytes[256] = 3;
        let times = [12, 13, 14, 15].map(|w| w * 8);
        for slot in bytes[65536..].chunks_exact_mut(256) {
            for at in times {
                let t = u64::from_le_bytes(slot[at..at + 8].try_into().unwrap());
                if t != 0 {
                    slot[at..at + 8].copy_from_slice(&(t + 3_600_000_000_000).to_le_bytes());
                }
            }
        }
        fs::write(&path, bytes).unwrap();
    }
    let out = told(dir.path(), &[]);
    let line = out.lines().find(|l| l.starts_with("  far  ")).unwrap();
    assert!(
        line.starts_with("  far  3600.00 s ahead of ") && line.contains(", ± "),
        "{out}"
    );
}

#[test]
fn what_cannot_be_told_is_said_clearly() {
    let dir = TempDir::new().unwrap();
    refused(dir.path(), &[], "no recordings in ");
    let empty = dir.path().join("not there");
    refused(&empty, &[], "no recordings in ");
    let lost = dir.path().join("lost.trace");
    refused(
        dir.path(),
        &[lost.to_str().unwrap()],
        "lost.trace: it cannot be read: ",
    );
    fs::write(&lost, "not a recording").unwrap();
    refused(
        dir.path(),
        &[lost.to_str().unwrap()],
        "it is not a recording of gaggle's",
    );
    crash(dir.path(), "old", 1);
    crash(dir.path(), "new", 2);
    // Of a directory, the latest job; what else is there is mentioned.
    let (code, out, err) = trace(dir.path(), &[]);
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("job new: 4 of 4"), "{out}");
    assert!(
        err.contains("left out ") && err.contains("there are also old (run "),
        "{err}"
    );
    let all: Vec<String> = gaggle_trace::place::recordings(dir.path())
        .unwrap()
        .iter()
        .filter(|p| **p != lost)
        .map(|p| p.display().to_string())
        .collect();
    let args: Vec<&str> = all.iter().map(String::as_str).collect();
    refused(dir.path(), &args, "the recordings are of different jobs: ");
    refused(dir.path(), &[args[0], args[0]], "are both of rank 0");
    // Another version's.
    let mut bytes = fs::read(args[0]).unwrap();
    bytes[8] = 2;
    fs::write(&lost, &bytes).unwrap();
    refused(
        dir.path(),
        &[lost.to_str().unwrap()],
        "version 2 of the format",
    );
    bytes[8] = 1;
    bytes.truncate(100_000);
    fs::write(&lost, &bytes).unwrap();
    refused(
        dir.path(),
        &[lost.to_str().unwrap()],
        "it has 100000 bytes where ",
    );
    let (code, _, err) = trace(dir.path(), &[args[0], "-o", "/does/not/exist.json"]);
    assert!(
        code == 1 && err.contains("cannot write /does/not/exist.json"),
        "{err}"
    );
}

/// `gaggle trace | head`: a reader that has had enough is no mistake of ours, and a failure keeps its exit code.
#[test]
fn nobody_has_to_read_to_the_end() {
    let dir = TempDir::new().unwrap();
    crash(dir.path(), "job", 1);
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    for (args, code) in [
        (&[][..], 0),
        (&["--json"], 0),
        (&["-o", "/nowhere/at/all.json"], 1),
    ] {
        let status = Command::new(env!("CARGO_BIN_EXE_gaggle"))
            .arg("trace")
            .args(args)
            .env("GAGGLE_TRACE_DIR", dir.path())
            .stdout(closed())
            .stderr(closed())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(code), "{args:?}");
    }
}
