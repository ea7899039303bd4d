//! The program `gaggle-demo` as a user starts it.

use std::process::{Command, Output};

fn gaggle_demo(flags: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaggle-demo"));
    for name in ["RANK", "WORLD_SIZE", "GAGGLE_STORE"] {
        command.env_remove(name);
    }
    command.args(flags.split_whitespace()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn json_is_one_object_and_the_page_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page.html");
    let out = gaggle_demo(&format!(
        "--threads --ranks 2 --epochs 1 --batch 256 --json --output {}",
        path.display()
    ));
    assert!(out.status.success(), "{}", text(&out.stderr));
    let stdout = text(&out.stdout);
    assert_eq!(stdout.lines().count(), 1);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let runs = json["runs"].as_array().unwrap();
    let names: Vec<&str> = runs
        .iter()
        .map(|r| r["algorithm"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["allreduce", "dmsgd", "qg-dmsgd"]);
    for run in runs {
        assert_eq!(run["ranks"], 2);
        assert_eq!(run["digests"].as_array().unwrap().len(), 2);
        assert!(run["seconds"]["compute"].as_f64().unwrap() > 0.0);
        // What passes through memory that the threads have mapped is no message.
        let (bytes, formula) = (&run["bytes_per_rank_step"], &run["payload_formula_bytes"]);
        assert!(*bytes == 0.0 || bytes == formula, "{run}");
    }
    let html = std::fs::read_to_string(&path).unwrap();
    for name in names {
        assert!(html.contains(&format!("{name} averaged")));
    }
    assert!(html.contains("Who talks to whom: one-peer-exp"));
    assert!(text(&out.stderr).contains("page: "));
}

#[test]
fn alone_it_is_a_world_of_one_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page.html");
    let out = gaggle_demo(&format!(
        "--epochs 1 --batch 256 --algorithm dmsgd --output {}",
        path.display()
    ));
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("a world of one"));
    assert!(text(&out.stdout).contains("page: "));
}

#[test]
fn mistakes_end_with_a_reason_and_a_failure() {
    for (flags, want) in [
        ("--ranks 4", "use `gaggle demo --ranks 4`, or add --threads"),
        ("--epochs 0", "--epochs 0: it must be at least 1"),
        ("--topology moebius", "--topology moebius"),
        (
            "--threads --ranks 8 --epochs 100000 --algorithm dmsgd,d2 --topology static-exp",
            "d2 over static-exp: unstable: ",
        ),
        (
            "--threads --algorithm allreduce --period 3",
            "--period 3: allreduce has no use for it; those that have one: ",
        ),
        (
            "--threads --algorithm dmsgd --nesterov --momentum 0",
            "gaggle-demo: --nesterov: dmsgd: ",
        ),
        // Before anything is trained.
        (
            "--threads --ranks 2 --epochs 100000 --batch 512 --algorithm allreduce --output /no/such/folder/page.html",
            "the page cannot be written to /no/such/folder/page.html: ",
        ),
    ] {
        let out = gaggle_demo(flags);
        assert!(!out.status.success(), "{flags}");
        let stderr = text(&out.stderr);
        assert!(stderr.contains(want), "{flags}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn threads_under_a_launcher_are_refused() {
    let out = Command::new(env!("CARGO_BIN_EXE_gaggle-demo"))
        .arg("--threads")
        .envs([("RANK", "0"), ("WORLD_SIZE", "2")])
        .output()
        .unwrap();
    assert!(!out.status.success());
    assert!(text(&out.stderr).contains("without a launcher"));
}

#[test]
fn help_says_what_happens_and_what_the_columns_mean() {
    let out = gaggle_demo("--help");
    let help = text(&out.stdout);
    for word in [
        "gaggle demo",
        "--threads",
        "consensus",
        "two cores",
        "averaged",
        "random topologies and matchings",
    ] {
        assert!(help.contains(word), "{word}");
    }
}
