//! `gaggle perf` as a user meets it: every operation on threads and processes gives right results, and what is printed can be read by programs.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use serde_json::Value;
use std::process::{Command, Output};

fn perf(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaggle"));
    command.arg("perf").args(line.split_whitespace());
    for name in ["RANK", "WORLD_SIZE", "GAGGLE_TRANSPORT", "PEER_TRANSPORT"] {
        command.env_remove(name);
    }
    // Nothing here takes seconds; a rank that waits for ever is a failure.
    command
        .env("GAGGLE_TIMEOUT", "60")
        .env("GAGGLE_TRACE", "off");
    command
}

/// Runs and checks the exit code; returns what was printed, stdout and stderr.
fn check(command: &mut Command, code: i32) -> (String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&stdout), text(&stderr));
    assert_eq!(status.code(), Some(code), "{command:?}\n{out}\n{err}");
    (out, err)
}

/// Runs with JSON to standard output, checks that no element was wrong, and returns the figures.
fn figures(line: &str) -> Vec<Value> {
    let (out, err) = check(&mut perf(&format!("{line} --json -")), 0);
    let record: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{line}: {e}: {out}"));
    assert_eq!(record["wrong"], 0, "{line}: {out}\n{err}");
    assert_eq!(record["bench"], "perf");
    record["results"].as_array().unwrap().clone()
}

/// With an operation's name, how many of its places run.
const OPERATIONS: [(&str, usize); 21] = [
    ("all-reduce", 2),
    ("reduce", 2),
    ("broadcast", 2),
    ("gather", 2),
    ("gather-v", 2),
    ("scatter", 2),
    ("scatter-v", 2),
    ("all-gather", 2),
    ("all-gather-v", 2),
    ("reduce-scatter", 2),
    ("reduce-scatter-v", 2),
    ("all-to-all", 2),
    ("all-to-all-v", 1),
    ("barrier", 1),
    ("send-recv", 1),
    ("neighbor_ring", 2),
    ("neighbor_exp2", 2),
    ("neighbor_onepeer", 2),
    ("neighbour-all-gather", 1),
    ("pair-gossip", 2),
    ("hierarchical", 2),
];

/// Lengths 0, 1, around several worlds, and a prime, in f32.
const SIZES: &str = "0,4,8,12,16,28,32,508";

fn every_operation(world: u32) {
    for (operation, places) in OPERATIONS {
        let line = format!("{operation} --threads {world} --sizes {SIZES} -n 2 -w 1");
        if operation == "send-recv" && world == 1 {
            let (_, err) = check(&mut perf(&line), 2);
            assert!(err.contains("at least 2 ranks"), "{err}");
            continue;
        }
        let figures = figures(&line);
        let sizes = if operation == "barrier" { 1 } else { 8 };
        assert_eq!(figures.len(), sizes * places, "{line}");
        for figure in &figures {
            assert_eq!(figure["wrong"], 0, "{line}: {figure}");
            assert_eq!(figure["samples"].as_array().unwrap().len(), 2, "{line}");
            assert!(figure["predicted_ns"].is_u64(), "{line}: {figure}");
        }
    }
}

#[test]
fn every_operation_is_right_in_a_world_of_one() {
    every_operation(1);
}

#[test]
fn every_operation_is_right_with_two_threads() {
    every_operation(2);
}

#[test]
fn every_operation_is_right_with_three_threads() {
    every_operation(3);
}

#[test]
fn larger_worlds_are_right_too() {
    for world in [5, 7, 8] {
        for operation in [
            "all-reduce",
            "all-to-all-v",
            "neighbor_exp2",
            "hierarchical",
        ] {
            figures(&format!(
                "{operation} --threads {world} --sizes 4,124,4096 -n 1 -w 0"
            ));
        }
    }
}

#[test]
fn element_types_reductions_and_codecs_are_right() {
    for dtype in [
        "f32", "f64", "f16", "bf16", "i8", "u8", "i32", "u32", "i64", "u64", "bool",
    ] {
        for reduce in ["sum", "prod", "min", "max"] {
            figures(&format!(
                "all-reduce --threads 3 -d {dtype} -o {reduce} --sizes 0,8,4072 -n 1 -w 0"
            ));
        }
    }
    for line in [
        "reduce-scatter -o avg -d bf16",
        "all-reduce -o avg",
        "reduce -o bxor -d i16 -r 2",
        "mix -d f16",
        "all-reduce --codec bf16 --force-codec",
        "all-reduce --codec f16 --force-codec",
        "all-reduce --codec int8 --force-codec",
        "all-reduce --algorithm ring",
        "all-reduce --algorithm recursive_doubling",
        "broadcast --algorithm pipelined -r 1",
    ] {
        figures(&format!("{line} --threads 3 --sizes 8,4072 -n 1 -w 0"));
    }
    let forced = figures("all-reduce --threads 3 --algorithm ring --sizes 4096 -n 1 -w 0");
    assert_eq!(forced[0]["parameters"]["algorithm"], "ring");
}

/// As nccl-tests has it: every element type, reduction and root in turn, one table.
#[test]
fn everything_in_turn_is_right() {
    let all = figures("reduce -o all -d all -r all --threads 2 --sizes 64 -n 1 -w 0 --place out");
    let mut names: Vec<&str> = all.iter().map(|f| f["name"].as_str().unwrap()).collect();
    let n = names.len();
    names.sort_unstable();
    names.dedup();
    assert!(n > 100 && n.is_multiple_of(2) && names.len() == n, "{n}");
    let line = "broadcast -r -1 -d all --threads 3 -b 8 -e 8 -n 1 -w 0";
    let (out, _) = check(&mut perf(line), 0);
    let rows: Vec<&str> = out.lines().filter(|l| !l.starts_with('#')).collect();
    assert_eq!(rows.len(), 3 * 13, "{out}");
    let row = |dtype: &str, root: &str| {
        let words = |row: &&&str| {
            row.split_whitespace()
                .skip(2)
                .take(3)
                .eq([dtype, "none", root])
        };
        rows.iter().filter(words).count()
    };
    assert_eq!((row("f64", "2"), row("bool", "0")), (1, 1), "{out}");
}

#[test]
fn processes_are_started_and_send_what_they_must() {
    for (operation, world) in [
        ("all-reduce", 1),
        ("all-reduce", 2),
        ("all-to-all-v", 3),
        ("broadcast -r 1", 2),
        ("send-recv", 3),
        ("neighbor_onepeer", 2),
        ("barrier", 3),
    ] {
        let line = format!("{operation} --ranks {world} --transport tcp --sizes 4,65536 -n 3 -w 1");
        let figures = figures(&line);
        for figure in &figures {
            let wire = figure["wire_bytes_per_rank"].as_f64().unwrap();
            let bytes = figure["bytes"].as_f64().unwrap();
            match world {
                1 => assert_eq!(wire, 0.0, "{line}: {figure}"),
                // Each rank of two, and somebody of three, sends at least half of the vector.
                _ => assert!(
                    wire >= bytes / 2.0 && wire < 4.0 * bytes + 4000.0,
                    "{line}: {figure}"
                ),
            }
            assert_eq!(figure["parameters"]["ranks"], world, "{line}");
        }
    }
}

#[test]
fn processes_of_one_host_can_be_told_to_share_memory() {
    for (operation, world) in [
        ("all-reduce", 2),
        ("all-gather-v", 3),
        ("all-reduce --registered", 3),
        ("broadcast --registered -d f64", 2),
    ] {
        let line = format!("{operation} --ranks {world} --transport shm --sizes 4,65536 -n 3 -w 1");
        for figure in figures(&line) {
            assert_eq!(figure["parameters"]["transport"], "shm", "{line}");
        }
    }
}

#[test]
fn a_rank_of_somebody_elses_job_measures_with_it() {
    let me = env!("CARGO_BIN_EXE_gaggle");
    let mut command = perf("");
    let rest = "perf all-gather --ranks 2 --transport tcp --sizes 4096 -n 2 -w 1";
    command = {
        let mut run = Command::new(command.get_program());
        run.args(["run", "-n", "2", "--", me]);
        run.args(rest.split(' '))
            .env("GAGGLE_TIMEOUT", "60")
            .env_remove("RANK")
            .env_remove("WORLD_SIZE");
        run
    };
    let (out, _) = check(&mut command, 0);
    assert!(out.contains("# gaggle") && out.contains("0 OK"), "{out}");
    assert!(out.lines().all(|line| line.starts_with("[0] ")), "{out}");
}

/// With a wish and without one: at which address a rank is reached, on which interface, and why.
#[test]
#[cfg(target_os = "linux")]
fn the_chosen_address_is_in_the_log() {
    for (wish, why) in [
        ("", "the store was reached from it"),
        ("lo", "GAGGLE_INTERFACE=lo chooses it"),
        (
            "^no-such-card",
            "GAGGLE_INTERFACE=^no-such-card does not exclude it",
        ),
    ] {
        let mut command = perf("barrier --ranks 2 -n 1 -w 0");
        command
            .env("GAGGLE_LOG", "gaggle=debug")
            .env("GAGGLE_INTERFACE", wish);
        let (_, err) = check(&mut command, 0);
        let said = "others reach this rank at 127.0.0.1 on lo: ";
        let lines: Vec<&str> = err.lines().filter(|l| l.contains(said)).collect();
        assert!(!lines.is_empty(), "{wish}: {err}");
        assert!(lines.iter().all(|l| l.contains(why)), "{wish}: {err}");
    }
}

#[test]
fn the_table_has_a_line_for_every_size_and_the_verdict_last() {
    let (out, _) = check(
        &mut perf("all_reduce --threads 2 -b 4K -e 64K -n 3 -w 1"),
        0,
    );
    let rows: Vec<&str> = out.lines().filter(|l| !l.starts_with('#')).collect();
    let sizes: Vec<&str> = rows
        .iter()
        .map(|row| row.split_whitespace().next().unwrap())
        .collect();
    assert_eq!(sizes, ["4096", "16384", "65536"]);
    for word in [
        "algbw",
        "busbw",
        "#wrong",
        "p99",
        "wire",
        "predicted",
        "in-place",
    ] {
        assert!(out.contains(word), "{word}:\n{out}");
    }
    let last: Vec<&str> = out.lines().rev().take(2).collect();
    assert!(last[0].starts_with("# Avg bus bandwidth"), "{out}");
    assert_eq!(last[1], "# Out of bounds values : 0 OK");
    let (out, _) = check(&mut perf("barrier --threads 2 -n 3 -c 0"), 0);
    assert!(
        out.contains("not looked at") && out.contains("N/A"),
        "{out}"
    );
}

#[test]
fn csv_is_what_programs_that_compare_read() {
    for op in [
        "allreduce",
        "broadcast",
        "allgather",
        "reduce_scatter",
        "alltoall",
        "neighbor_ring",
        "neighbor_exp2",
        "neighbor_onepeer",
    ] {
        let line = format!(
            "--csv --op {op} --dtype bf16 --sizes 4,4098 --budget 0.01 --max-iters 40 --transport threads --ranks 2"
        );
        let (out, _) = check(&mut perf(&line), 0);
        let mut lines = out.lines();
        assert_eq!(
            lines.next(),
            Some("size_bytes,median_us,p95_us,mean_us,iters")
        );
        let rows: Vec<Vec<f64>> = lines
            .map(|line| line.split(',').map(|x| x.parse().unwrap()).collect())
            .collect();
        assert_eq!(rows.len(), 2, "{out}");
        assert_eq!((rows[0][0], rows[1][0]), (4.0, 4098.0), "{out}");
        for row in &rows {
            assert!(row[1] > 0.0 && row[1] <= row[2], "{out}");
            assert!((5.0..=40.0).contains(&row[4]), "{out}");
        }
    }
}

#[test]
fn json_goes_into_a_file_beside_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.json");
    let line = format!(
        "all-reduce --ranks 2 --sizes 64 -n 2 -w 0 --json {}",
        path.display()
    );
    let (out, _) = check(&mut perf(&line), 0);
    assert!(out.contains("0 OK"), "{out}");
    let record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for key in ["schema", "command", "date", "machine", "results", "version"] {
        assert!(!record[key].is_null(), "{key}");
    }
    // Said before anything is measured.
    for ranks in ["--threads 2", "--ranks 2"] {
        let line = format!("all-reduce {ranks} --sizes 4 -n 1 -w 0 --json /no/such/dir/x.json");
        let (out, err) = check(&mut perf(&line), 1);
        assert!(err.contains("cannot write /no/such/dir/x.json"), "{err}");
        assert!(out.is_empty(), "{out}");
    }
}

#[test]
fn mistakes_are_told_before_anything_is_started() {
    let (_, err) = check(&mut perf("broadcast --ranks 2 -r 2"), 2);
    assert!(err.contains("--root is 2, but there are 2 ranks"), "{err}");
    assert!(err.contains("gaggle perf --help"), "{err}");
    // Said before the head of a table.
    for line in [
        "all-reduce --registered --ranks 2 --transport tcp --sizes 4 -n 1",
        "all-reduce --registered --threads 17 --sizes 4 -n 1",
    ] {
        let (out, err) = check(&mut perf(line), 2);
        assert!(out.is_empty() && err.contains("--registered"), "{out}{err}");
    }
    let (_, err) = check(&mut perf("all-reduce --transport pigeon"), 2);
    assert!(err.contains("auto, shm, tcp, threads"), "{err}");
    // What only the engine knows is told with its words, and before the head of a table.
    let (out, err) = check(
        &mut perf("broadcast --algorithm ring --threads 2 --sizes 4 -n 1"),
        2,
    );
    assert!(err.contains("ring") && err.contains("binomial"), "{err}");
    assert!(out.is_empty(), "{out}");
    let line = "all-reduce --algorithm boards --ranks 2 --transport shm -b 4K -e 8K -f 2 -n 1";
    let (out, err) = check(&mut perf(line), 2);
    assert!(
        out.is_empty() && err.contains("by boards is for"),
        "{out}{err}"
    );
    let (out, _) = check(&mut perf("--help"), 0);
    for word in [
        "Examples:",
        "busbw",
        "nccl-tests",
        "--per-machine",
        "Exit codes",
    ] {
        assert!(out.contains(word), "{word}:\n{out}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn ranks_are_bound_to_the_nodes_of_this_machine() {
    use gaggle_transport::processors::{Cpus, Nodes};
    let script = "sed -n 's/^Cpus_allowed_list:[[:space:]]*/allowed /p' /proc/self/status";
    let mut job = Command::new(env!("CARGO_BIN_EXE_gaggle"));
    job.args(["run", "-n", "3", "--bind-to-node", "--", "sh", "-c", script])
        .env_remove("RANK")
        .env_remove("WORLD_SIZE");
    let (out, _) = check(&mut job, 0);
    let want = Nodes::of_machine().spread(3, &Cpus::own());
    for (rank, want) in want.iter().enumerate() {
        let said = format!("[{rank}] allowed ");
        let line = out.lines().find_map(|line| line.strip_prefix(&said));
        assert_eq!(Cpus::parse(line.unwrap()).as_ref(), Some(want), "{out}");
    }
}

/// On a made-up machine: two ranks on each of two memory nodes.
#[test]
#[cfg(target_os = "linux")]
fn ranks_on_several_nodes_work_in_two_levels_and_are_tuned() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tables.txt");
    let run = |nodes: &str, command: &str| {
        let script = format!(
            "export GAGGLE_NODE={nodes}; exec {} {command}",
            env!("CARGO_BIN_EXE_gaggle")
        );
        let mut job = Command::new(env!("CARGO_BIN_EXE_gaggle"));
        job.args(["run", "-n", "4", "--", "sh", "-c", &script])
            .env("GAGGLE_TIMEOUT", "60")
            .env("GAGGLE_TRACE", "off")
            .env_remove("GAGGLE_TABLES")
            .env_remove("RANK")
            .env_remove("WORLD_SIZE");
        job
    };
    for (operation, algorithm) in [
        ("all-reduce", "two_level_direct"),
        ("reduce-scatter", "two_level_direct"),
        ("all-gather", "two_level_ring"),
        ("reduce", "two_level_binomial"),
        ("broadcast", "two_level_pipelined"),
    ] {
        for memory in ["", "--registered"] {
            let command = format!(
                "perf {operation} --algorithm {algorithm} -b 4 -e 1M -f 64 -n 2 -w 1 {memory}"
            );
            let (out, _) = check(&mut run("$((RANK / 2))", &command), 0);
            assert!(out.contains(algorithm), "{out}");
        }
    }
    // What one rank does not know counts for none.
    let by = "perf all-reduce --algorithm two_level_direct -n 1 -b 4 -e 4";
    let (_, err) = check(
        &mut run("$(test $RANK = 3 && echo off || echo $RANK)", by),
        2,
    );
    let words = "needs several hosts, or memory nodes of one, and ranks that share one";
    assert!(err.contains(words), "{err}");
    let (_, err) = check(&mut run("first", by), 1);
    assert!(
        err.contains("GAGGLE_NODE is \"first\", wanted auto, off or the number"),
        "{err}"
    );
    let tune = format!("tune --repeat 1 -o {}", path.display());
    check(&mut run("$((RANK % 2))", &tune), 0);
    let written = std::fs::read_to_string(&path).unwrap();
    for words in [
        "# inside: measured between rank 0 and rank 2",
        "# across: measured between 2 pairs of ranks at once",
        "across.mapped_bytes_per_us = ",
    ] {
        assert!(written.contains(words), "{words}:\n{written}");
    }
}

#[test]
fn tune_writes_a_table_that_ranks_and_explain_go_by() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tables.txt");
    let file = path.to_str().unwrap();
    let gaggle = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gaggle"));
        command
            .args(args)
            .env("GAGGLE_TIMEOUT", "60")
            .env("GAGGLE_TRACE", "off")
            .env_remove("RANK")
            .env_remove("WORLD_SIZE");
        command
    };
    let (out, _) = check(
        &mut gaggle(&["tune", "--ranks", "3", "--repeat", "1", "-o", file]),
        0,
    );
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(out.contains(&written), "{out}");
    for word in [
        "# inside: measured between rank 0 and rank 1",
        "# between: not there",
        "# across: not there, as it is assumed by inside",
        "inside.bytes_per_us = ",
    ] {
        assert!(written.contains(word), "{word}:\n{written}");
    }
    // What was measured of mapped memory counts: jobs and explanations choose alike by this table.
    let algorithm = |transport: &str| {
        let line = format!(
            "all-reduce --ranks 2 --transport {transport} --sizes 1048576 -n 1 -w 0 --json -"
        );
        let (out, _) = check(perf(&line).env("GAGGLE_TABLES", file), 0);
        let record: Value = serde_json::from_str(&out).unwrap();
        record["results"][0]["parameters"]["algorithm"].clone()
    };
    let line = format!("explain all-reduce -n 2 --hosts 1x2 --json --tables {file}");
    let words: Vec<&str> = line.split(' ').collect();
    let explained: Value = serde_json::from_str(&check(&mut gaggle(&words), 0).0).unwrap();
    if written.contains("mapped = true") {
        assert_eq!(algorithm("shm"), "fused");
        assert_eq!(explained["algorithm"], "fused", "{written}");
    }
    // Whether memory is mapped is for each job to find out.
    std::fs::write(&path, written.replace("mapped = false", "mapped = true")).unwrap();
    assert_ne!(algorithm("tcp"), "fused");
    // Ranks read it: what is predicted follows from it, here from a latency of a second.
    std::fs::write(&path, "inside.latency_ns = 1000000000").unwrap();
    let line = "all-reduce --ranks 2 --transport tcp --sizes 4 -n 1 -w 0 --json -";
    let (out, _) = check(perf(line).env("GAGGLE_TABLES", file), 0);
    let record: Value = serde_json::from_str(&out).unwrap();
    assert!(
        record["results"][0]["predicted_ns"].as_u64().unwrap() >= 1_000_000_000,
        "{out}"
    );
    let (out, _) = check(
        &mut gaggle(&[
            "explain",
            "all-reduce",
            "-n",
            "2",
            "--hosts",
            "1x2",
            "--tables",
            file,
        ]),
        0,
    );
    assert!(out.contains("1.00 s"), "{out}");
    // Ranks whose tables differ do not work together, and say so.
    let script = format!(
        "test $RANK = 0 || export GAGGLE_TABLES={file}; exec {} perf barrier -n 1",
        env!("CARGO_BIN_EXE_gaggle")
    );
    let mut job = gaggle(&["run", "-n", "2", "--", "sh", "-c", &script]);
    let (_, err) = check(&mut job, 1);
    assert!(err.contains("barrier"), "{err}");
    std::fs::write(&path, "inside.latency_ns = soon").unwrap();
    let (_, err) = check(perf(line).env("GAGGLE_TABLES", file), 1);
    assert!(
        err.contains("GAGGLE_TABLES") && err.contains("line 1"),
        "{err}"
    );
    let (_, err) = check(&mut gaggle(&["tune", "--ranks", "1"]), 2);
    assert!(err.contains("at least 2 ranks"), "{err}");
    // Said before anything is measured.
    let (out, err) = check(&mut gaggle(&["tune", "-o", "/no/such/dir/t.txt"]), 1);
    assert!(err.contains("cannot write /no/such/dir/t.txt"), "{err}");
    assert!(out.is_empty(), "{out}");
}
