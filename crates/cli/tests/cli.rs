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
        .env_remove("GAGGLE_INTERFACE")
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
fn an_interface_is_passed_on_or_told_before_anything_starts() {
    let script = "echo at $GAGGLE_INTERFACE";
    let run = |wish: &str| gaggle(&["run", "-n", "1", "--interface", wish, "sh", "-c", script]);
    let (out, _) = check(&mut run("lo,127.0.0.0/8,^eth*"), 0);
    assert!(out.contains("at lo,127.0.0.0/8,^eth*"), "{out}");
    let (out, err) = check(&mut run("no-such-0"), 2);
    assert_eq!(out, "");
    let want = "gaggle: --interface: no interface matches 'no-such-0': there are ";
    assert!(err.starts_with(want) && err.contains("127.0.0.1"), "{err}");
    let (_, err) = check(&mut run("10.0.0.0/99"), 2);
    assert!(err.contains("'10.0.0.0/99' is not a network"), "{err}");
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

/// The launcher must stay small: it links no machine-learning framework. (The engine is in it for `gaggle perf` and `gaggle tune`.)
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
    for word in ["candle", "gaggle-demo", "burn"] {
        assert!(!out.contains(word), "{word} is in:\n{out}");
    }
}

fn explain(line: &str) -> String {
    let args: Vec<&str> = std::iter::once("explain").chain(line.split(' ')).collect();
    let (out, err) = check(&mut gaggle(&args), 0);
    assert!(err.is_empty(), "{line}: {err}");
    out
}

#[test]
fn explain_says_what_why_and_how_long() {
    let out = explain("all-reduce --ranks 6 --bytes 1M");
    for words in [
        "all_reduce of 262144 f32 (1 MiB) among 6 ranks",
        "choice     direct, about ",
        "the cost model finds it fastest; others: ring ",
        "2 rounds",
        "rank 5: 21 steps; sends 10 messages, 1.67 MiB",
        "link with ranks 1, 2 and 3: 341.34 KiB",
        "recv #0 from rank 5: scratch[174764..218455]",
        "after 10",
    ] {
        assert!(out.contains(words), "no '{words}' in\n{out}");
    }
    let ordered = explain("all-reduce --ranks 4 --bytes 1k --mode ordered");
    assert!(
        ordered.contains("ordered: folded in rank order in a wider type and rounded once"),
        "{ordered}"
    );
    let declined = explain("all-reduce -n 4 --codec bf16 --links threads");
    assert!(declined.contains("bf16 is declined, because"), "{declined}");
    let ruled = explain("all-reduce -n 4 --overrides all_reduce:1m-=ring");
    assert!(
        ruled.contains("choice     ring") && ruled.contains("the override 'all_reduce:1m-=ring'"),
        "{ruled}"
    );
}

#[test]
fn explain_knows_what_crosses_between_memory_nodes() {
    let two = explain("all-reduce -n 16 --nodes 2x8 --mapped --bytes 64m");
    for words in [
        "choice     two_level_",
        "others: ",
        "fused 16.8 ms",
        "links      inside a node 6µs and 4000 MB/s; between nodes 12µs and 2500 MB/s",
        "in mapped memory 20000 and 5000 MB/s, looks 300 and 1200 ns",
        // 2 nodes: each of 16 ranks sends an 8th of the vector across.
        "crossing   128 MiB\n",
    ] {
        assert!(two.contains(words), "no '{words}' in\n{two}");
    }
    // One pass over all memory: each rank reads a 16th of 8 others' vectors, and writes it there.
    let fused = explain("all-reduce -n 16 --nodes 2x8 --mapped --bytes 64m --algorithm fused");
    assert!(fused.contains("crossing   1 GiB\n"), "{fused}");
    let small = explain("all-reduce -n 16 --nodes 2x8 --mapped --bytes 4k");
    assert!(small.contains("choice     fused"), "{small}");
    let names = "all-reduce -n 4 --hosts 1x4 --nodes 0,1,0,1 --algorithm two_level_direct";
    assert!(explain(names).contains("choice     two_level_direct"));
    let apart = explain("all-reduce -n 4 --hosts 2x2 --nodes 0,1,2,3");
    assert!(
        apart.contains("between hosts") && !apart.contains("crossing"),
        "{apart}"
    );
}

/// Slices of one span are one line, and of many ranks and lines some are left out, unless all are asked for.
#[test]
fn explain_is_short_unless_all_is_asked_for() {
    let ring = "all-reduce --ranks 33 --bytes 16m --slice 64k --algorithm ring";
    let short = explain(ring);
    assert!(short.contains("in 8 slices"), "{short}");
    assert!(
        short.contains("more lines: --all prints every step"),
        "{short}"
    );
    assert!(
        short.contains("and 25 more ranks: --rank R prints one"),
        "{short}"
    );
    let one = explain(&format!("{ring} --rank 32 --all"));
    assert!(
        one.contains("\nrank 32: ") && !one.contains("\nrank 0: "),
        "{one}"
    );
    assert!(!one.contains("more lines") && one.lines().count() > 500);
}

#[test]
fn explain_knows_every_operation_by_its_usual_name() {
    for (line, algorithm) in [
        ("all-reduce --ranks 1", "ring"),
        (
            "allreduce --ranks 5 --hosts 0,0,1,1,1 --algorithm two_level_direct",
            "two_level_direct",
        ),
        (
            "all-reduce -n 4 --hosts 1x4 --mapped --algorithm fused --out-of-place",
            "fused",
        ),
        (
            "all-reduce -n 4 --hosts 1x4 --mapped --algorithm staged",
            "staged",
        ),
        (
            "all-reduce -n 4 --hosts 1x4 --mapped --bytes 4k --algorithm boards",
            "boards",
        ),
        ("all-reduce -n 4 --hosts 1x4 --crowded --bytes 1m", "ring"),
        (
            "reduce --ranks 7 --root 3 --algorithm binomial --dtype bf16",
            "binomial",
        ),
        (
            "broadcast --ranks 5 --root 4 --algorithm pipelined",
            "pipelined",
        ),
        (
            "gather --ranks 3 --root 1 --bytes 100 --algorithm direct",
            "direct",
        ),
        (
            "scatter --ranks 3 --root 1 --bytes 1k --algorithm direct",
            "direct",
        ),
        ("all-gather --ranks 5 --algorithm bruck", "bruck"),
        (
            "reduce-scatter --ranks 6 --algorithm direct --reduce max --dtype i16",
            "direct",
        ),
        (
            "all-to-all --ranks 3 --out-of-place --algorithm direct",
            "direct",
        ),
        ("barrier --ranks 9", "dissemination"),
        (
            "neighbour-all-reduce --ranks 8 --topology one-peer-exp --round 2",
            "neighbour",
        ),
        (
            "neighbour-all-gather --ranks 4 --topology star",
            "neighbour",
        ),
        (
            "hierarchical-neighbour-all-reduce --ranks 6 --hosts 3x2",
            "hierarchical",
        ),
        ("message --ranks 2 --out-of-place", "direct"),
    ] {
        let out = explain(&format!("{line} --json"));
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        if !line.contains("-n 1") && !line.ends_with("--ranks 1") {
            assert_eq!(json["algorithm"], algorithm, "{line}");
        }
        let plans = json["plans"].as_array().unwrap();
        assert_eq!(json["ranks"], plans.len(), "{line}");
        let sum = |field: &str| -> u64 { plans.iter().map(|p| p[field].as_u64().unwrap()).sum() };
        assert_eq!(sum("bytes_sent"), sum("bytes_received"), "{line}");
        explain(line);
    }
}

/// None of them is started, and no plans but those that are shown are built.
#[test]
fn explain_does_ten_thousand_ranks() {
    for line in [
        "all-reduce -n 1000 --bytes 64m --rank 0",
        "all-to-all -n 1000 --rank 999",
        "all-reduce -n 10000 --bytes 64m",
        "all-reduce -n 10000 --hosts 1250x8 --bytes 64m --json",
        "all-to-all -n 10000 --bytes 1g --rank 5000",
        "barrier -n 10000 --all --rank 1",
        "mix -n 10000 --topology exp2",
        "hierarchical -n 10000 --hosts 1250x8 --json",
        "all-reduce -n 10000 --mapped --bytes 64m",
    ] {
        let out = explain(line);
        let world = if line.contains("10000") {
            10_000
        } else {
            1_000
        };
        let shown = if line.contains("--rank") { 1 } else { 8 };
        if line.ends_with("--json") {
            let json: serde_json::Value = serde_json::from_str(&out).unwrap();
            assert_eq!(json["ranks"], world, "{line}");
            assert_eq!(
                json["plans"].as_array().map(Vec::len),
                Some(shown),
                "{line}"
            );
            assert!(json["predicted_ns"].as_u64() > Some(0), "{line}");
            continue;
        }
        assert!(
            out.contains(&format!("among {world} ranks")),
            "{line}: {out}"
        );
        assert!(
            out.contains("choice     ") && out.contains("predicted  "),
            "{line}"
        );
        assert_eq!(out.matches("\nrank ").count(), shown, "{line}: {out}");
    }
}

/// What is taken because nothing was said of it is said.
#[test]
fn explain_says_what_it_assumes() {
    let said = |line: &str, words: &[&str], not: &[&str]| {
        let out = explain(line);
        for words in words {
            assert!(out.contains(words), "{line}: no '{words}' in\n{out}");
        }
        for words in not {
            assert!(!out.contains(words), "{line}: '{words}' in\n{out}");
        }
    };
    let (apart, ten) = ("each rank on a host of its own", "10 Gbit/s between hosts");
    let together = "all ranks on one host";
    said("all-reduce -n 4", &[apart, ten], &[together]);
    said("all-reduce -n 4 --links 1gbit", &[apart], &[ten]);
    said("all-reduce -n 4 --hosts 2x2", &[ten], &[apart]);
    said("all-reduce -n 4 --hosts 1x4", &[], &["assumed"]);
    // It was ignored without a word.
    said(
        "all-reduce -n 4 --mapped",
        &[together, "choice     fused"],
        &[apart],
    );
    said("all-reduce -n 4 --nodes 2x2", &[together], &[ten]);
    let vain = "--mapped has no say where ranks are on several hosts";
    said(
        "all-reduce -n 4 --mapped --hosts 2x2",
        &[vain],
        &["choice     fused"],
    );
}

#[test]
fn explain_draws_a_lane_for_each_rank_and_an_arrow_for_each_message() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plan.svg");
    let file = path.to_str().unwrap();
    explain(&format!(
        "all-reduce --ranks 4 --algorithm direct --svg {file}"
    ));
    let svg = fs::read_to_string(&path).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"),
        "{svg}"
    );
    // Each rank sends three shares and three results.
    assert_eq!(svg.matches("marker-end").count(), 4 * 6);
    assert_eq!(svg.matches("fold user").count(), 4);
    for rank in 0..4 {
        assert!(svg.contains(&format!("\nrank {rank}\n")), "{svg}");
    }
    let (_, err) = check(
        &mut gaggle(&[
            "explain",
            "barrier",
            "-n",
            "2",
            "--svg",
            "/no/such/place.svg",
        ]),
        2,
    );
    assert!(err.contains("cannot write /no/such/place.svg"), "{err}");
}

#[test]
fn explain_refuses_nonsense_with_a_reason() {
    for (line, why) in [
        ("all-reduc -n 2", "there are all-reduce, reduce, broadcast"),
        ("all-reduce", "--ranks"),
        ("all-reduce -n 0", "at least 1 rank"),
        (
            "all-reduce -n 2 --bytes much",
            "a number of bytes, as 4096, 64k, 1m or 2g",
        ),
        (
            "all-reduce -n 2 --dtype f31",
            "no element type is called 'f31'",
        ),
        (
            "all-reduce -n 2 --reduce avg",
            "no reduction is called 'avg'",
        ),
        (
            "all-reduce -n 2 --reduce mean --dtype i32",
            "mean is not defined on i32",
        ),
        (
            "all-reduce -n 2 --algorithm rong",
            "no algorithm is called 'rong'",
        ),
        (
            "all-reduce -n 2 --algorithm bruck",
            "all_reduce by bruck has no plan; what can: ring",
        ),
        (
            "all-reduce -n 2 --algorithm two_level_ring",
            "needs several hosts",
        ),
        (
            "all-reduce -n 2 --algorithm fused",
            "needs all ranks on one host",
        ),
        (
            "all-reduce -n 4 --algorithm ring --codec bf16",
            "round to the codec at every hop",
        ),
        (
            "all-reduce -n 4 --codec bf16 --dtype f64",
            "codecs are for f32",
        ),
        (
            "all-reduce -n 4 --algorithm ring --mode exact",
            "does not accumulate exactly",
        ),
        (
            "all-reduce -n 4 --hosts 2x3",
            "--hosts speaks of 6 ranks, but there are 4",
        ),
        (
            "all-reduce -n 4 --hosts two",
            "give 2x3 for 2 hosts of 3 ranks",
        ),
        ("all-reduce -n 4 --hosts 2x0", "at least 1 rank"),
        (
            "all-reduce -n 4 --links wet",
            "threads, shared, loopback, 10gbit and 1gbit",
        ),
        ("all-reduce -n 4 --mode fast", "default, ordered and exact"),
        (
            "all-reduce -n 4 --slice 0",
            "--slice is at least one element",
        ),
        ("all-reduce -n 4 --radix 1", "--radix is at least 2"),
        (
            "all-reduce -n 4 --overrides all_reduce:=rung",
            "at character 13, 'rung': expected an algorithm",
        ),
        (
            "broadcast -n 4 --root 4",
            "--root is 4, but there are 4 ranks, 0 to 3",
        ),
        ("broadcast -n 4 --rank 9", "--rank is 9"),
        ("mix -n 4 --topology blob", "blob"),
        ("mix -n 4 --dtype i8", "averages need floats"),
        ("hierarchical -n 4", "as --hosts 2x3"),
        ("hierarchical -n 3 --hosts 0,0,1", "machine"),
        ("message -n 3", "between 2 ranks"),
        (
            "all-reduce -n 4096 --bytes 1g --algorithm ring --all",
            "more than 2000000 steps",
        ),
        (
            "all-reduce -n 2 --bytes 1g --slice 1 --rank 0",
            "more than 2000000 steps",
        ),
        ("all-reduce -n 1000000", "at most 131072 ranks"),
        (
            "all-reduce -n 300 --svg /dev/null --bytes 64m",
            "too many to draw",
        ),
        (
            "all-reduce -n 4 --bytes 18446744073709551615",
            "longer than can be counted",
        ),
    ] {
        let args: Vec<&str> = std::iter::once("explain").chain(line.split(' ')).collect();
        let (out, err) = check(&mut gaggle(&args), 2);
        assert!(out.is_empty() && err.contains(why), "{line}: {out}{err}");
    }
}

fn topo(line: &str) -> String {
    let args: Vec<&str> = ["topo"].into_iter().chain(line.split(' ')).collect();
    check(&mut gaggle(&args), 0).0
}

#[test]
fn topo_tells_rates_costs_and_faults() {
    let out = topo("exp2 --ranks 16 --bytes 1m");
    for want in [
        "static-exp of 16 ranks",
        "stochastic   doubly",
        "0.600000 per period",
        "4 messages per rank and round, at most 4: 4.00 MiB",
    ] {
        assert!(out.contains(want), "{want}: {out}");
    }
    let out = topo("one-peer-exp -n 8 --round 1");
    assert!(out.contains("exact after  3 rounds"), "{out}");
    assert!(out.contains("\n0: 0.500000; 6·0.500000; 2\n"), "{out}");
    // Irregular, one edge a round: averages drift.
    let out = topo("one-peer-over:mesh:2x4 -n 8");
    assert!(
        out.contains("stochastic   row") && out.contains("push-sum"),
        "{out}"
    );
    let value: serde_json::Value = serde_json::from_str(&topo("base:2 -n 7 --json")).unwrap();
    assert_eq!(value["exact_after_rounds"], 4);
    assert_eq!(value["symmetric"], true);
}

#[test]
fn topo_compares_and_lists() {
    let out = topo("compare -n 8");
    let at = |name: &str| {
        out.find(&format!("\n{name} "))
            .unwrap_or_else(|| panic!("{name}: {out}"))
    };
    assert!(at("one-peer-exp") < at("static-exp"), "{out}");
    assert!(at("static-exp") < at("ring"), "{out}");
    assert!(!out.contains("inner-outer"), "{out}");
    let out = topo("compare -n 12 --local 4 --json");
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    let names: Vec<&str> = value["topologies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["topology"].as_str().unwrap())
        .collect();
    assert!(
        names.contains(&"inner-outer-exp:4") && !names.contains(&"hypercube"),
        "{names:?}"
    );
    let out = topo("list");
    assert!(
        out.contains("torus:ROWSxCOLUMNS") && out.contains("lazy-NAME"),
        "{out}"
    );
}

/// No rank is started, so that there may be more than a machine can have.
#[test]
fn topo_compares_worlds_of_any_size() {
    for ranks in ["1", "2", "7", "16", "5000"] {
        let out = topo(&format!("compare --ranks {ranks} --json"));
        let value: serde_json::Value = serde_json::from_str(&out).unwrap();
        let all = value["topologies"].as_array().unwrap();
        let find = |name: &str| all.iter().find(|t| t["topology"] == name);
        for name in ["one-peer-exp", "static-exp", "base:1", "torus"] {
            assert!(find(name).is_some(), "{ranks}: {name}");
        }
    }
}

/// Random pairs of eight ranks meet as a hypercube would sooner or later, and were told to need one message.
#[test]
fn topo_does_not_take_chance_for_speed() {
    let out = topo("compare -n 8");
    let rank = |name: &str| {
        let at = out.lines().position(|l| l.starts_with(&format!("{name} ")));
        at.unwrap_or_else(|| panic!("no {name}: {out}"))
    };
    assert!(rank("one-peer-exp") < rank("random-matching"), "{out}");
}

#[test]
fn topo_draws_and_refuses_nonsense() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("graph.svg");
    let line = format!("one-peer-exp -n 8 --svg {}", path.display());
    topo(&line);
    let drawn = fs::read_to_string(&path).unwrap();
    // Three rounds of eight arrows, and eight ranks in each.
    assert_eq!(drawn.matches("<line").count(), 24, "{drawn}");
    assert_eq!(drawn.matches("<circle").count(), 24, "{drawn}");
    for (line, want) in [
        (
            "topo moebius -n 4",
            "there is no topology \"moebius\"; there are ring",
        ),
        (
            "topo hypercube -n 6",
            "hypercube: 6 ranks are no power of 2",
        ),
        (
            "topo ring -n 300 --svg x.svg",
            "300 ranks are too many to draw",
        ),
        ("topo compare", "--ranks"),
        ("topo compare -n -1", "invalid value '-1' for '--ranks <N>'"),
        ("topo compare -n 0", "at least 1 rank"),
        ("topo exp2 -n 4000000000", "at most 131072 ranks"),
        (
            "topo exp2 -n 4 --bytes -1",
            "invalid value '-1' for '--bytes",
        ),
        (
            "topo one-peer-over:star -n 10000",
            "one-peer-over:star of 10000 ranks repeats after 9999 rounds only",
        ),
        ("topo one-peer-over -n 8", "one-peer-over:NAME is wanted"),
        ("topo one-peer-over: -n 8", "one-peer-over:NAME is wanted"),
        ("topo compare -n 4 --left 2", "it is above 0 and below 1"),
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let (_, err) = check(&mut gaggle(&args), 2);
        assert!(err.contains(want), "{line}: {err}");
    }
    let (_, err) = check(
        &mut gaggle(&["topo", "ring", "-n", "4", "--svg", "/nowhere/x.svg"]),
        1,
    );
    assert!(err.contains("cannot write"), "{err}");
}
