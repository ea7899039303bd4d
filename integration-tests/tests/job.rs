//! Jobs as users run them: the same bits as processes under `gaggle run`, under torchrun, and as threads.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use gaggle_integration_tests::{
    memory::Memory,
    process::{Ended, Running, gaggle_run, program},
    work::{self, Trouble},
};
use std::{io::Write, path::PathBuf, process::Command};

const WORLDS: [u32; 6] = [1, 2, 3, 5, 7, 8];

/// `gaggle run` of a program of the workspace.
fn run(ranks: u32, name: &str, args: &[&str]) -> Ended {
    run_over("auto", ranks, name, args)
}

fn run_over(transport: &str, ranks: u32, name: &str, args: &[&str]) -> Ended {
    let path = program(name);
    let command: Vec<&str> = std::iter::once(path.to_str().unwrap())
        .chain(args.iter().copied())
        .collect();
    let mut command = gaggle_run(ranks, &command);
    command.env("GAGGLE_TRANSPORT", transport);
    Running::start(command).wait_for_all()
}

/// Without the algorithms, which differ with the links.
fn calls(line: &str) -> String {
    let mut parts = line.split(" by ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.trim_start_matches(|c: char| c != ',')
    })
}

/// The lines of a job that went well, without their prefixes, by rank.
fn answers(ended: &Ended, ranks: u32) -> Vec<String> {
    assert_eq!(ended.code(), 0, "{ended:#?}");
    let mut answers = vec![None; ranks as usize];
    for line in ended.out.lines() {
        let (rank, text) = line
            .strip_prefix('[')
            .and_then(|l| l.split_once("] "))
            .unwrap();
        let place = &mut answers[rank.parse::<usize>().unwrap()];
        assert_eq!(place.replace(text.to_owned()), None, "{ended:#?}");
    }
    answers.into_iter().map(Option::unwrap).collect()
}

fn threads(
    ranks: u32,
    body: impl Fn(&gaggle::Group) -> Result<String, Trouble> + Sync,
) -> Vec<String> {
    gaggle::local(ranks as usize, |group| body(&group).unwrap()).unwrap()
}

#[test]
fn the_readmes_dmsgd_gives_the_same_bits_as_processes_and_as_threads() {
    for ranks in WORLDS {
        let got = answers(&run(ranks, "example-dmsgd", &[]), ranks);
        let mut local = Command::new(program("example-dmsgd"));
        local.args(["--local", &ranks.to_string()]);
        let local = Running::start(local).wait_for_all();
        assert_eq!(local.code(), 0, "{local:#?}");
        let want: Vec<&str> = local.out.lines().collect();
        assert_eq!(got, want);
        assert!(got.iter().all(|line| line.contains(", digest ")), "{got:?}");
    }
}

#[test]
fn the_other_examples_run_as_jobs() {
    for ranks in [1, 2, 5] {
        let got = answers(&run(ranks, "example-all-reduce", &[]), ranks);
        let mean = f64::from(ranks - 1) / 2.0;
        for (rank, line) in got.iter().enumerate() {
            assert_eq!(
                *line,
                format!("rank {rank}: the mean of all ranks is {mean}")
            );
        }
        let got = answers(&run(ranks, "example-ddp", &[]), ranks);
        for (rank, line) in got.iter().enumerate() {
            assert_eq!(
                *line,
                format!("rank {rank} of {ranks}: y = 2.000 x + 1.000")
            );
        }
    }
}

fn plain(group: &gaggle::Group) -> Result<String, Trouble> {
    work::collectives(group, Memory::Plain)
}

/// Trial 10 as well: lengths 0, 1, n−1, n, n+1, worlds of one, ranks without neighbours.
#[test]
fn every_operation_gives_the_same_bits_as_processes_and_as_threads() {
    for ranks in WORLDS {
        let got = answers(&run(ranks, "rank", &["collectives"]), ranks);
        assert_eq!(got, threads(ranks, plain), "world {ranks}");
        let alike = |line: &String| line.split(" all ").next().map(str::to_owned);
        assert!(got.iter().all(|l| alike(l) == alike(&got[0])), "{got:?}");
    }
}

/// Trial 14.
#[test]
fn equal_ranks_walk_as_one() {
    for ranks in [1, 2, 3] {
        let got = answers(&run(ranks, "rank", &["equal-ranks"]), ranks);
        assert!(
            got.iter().all(|line| line == "-1 -2 -3 -4 then -11"),
            "{got:?}"
        );
        assert_eq!(got, threads(ranks, work::equal_ranks));
    }
}

/// Trial 1: a rank that calls something else, across processes; and the group works on.
#[test]
fn different_calls_are_one_typed_error_on_every_rank() {
    let all = |algorithm: &str, rows: u32| {
        format!(
            "all_reduce(sum) of {} f32 by {algorithm}, plain",
            rows * 2560
        )
    };
    let want = [
        (
            "a",
            format!(
                "[0]: [0] {}, [1, 2, 3] {}",
                all("direct", 100),
                all("direct", 200)
            ),
        ),
        (
            "b",
            format!(
                "[0, 1, 2, 3]: [0, 1] {}, [2, 3] {}",
                all("recursive_doubling", 1),
                all("recursive_doubling", 2)
            ),
        ),
        (
            "c",
            format!(
                "[1]: [0, 2, 3] {}, [1] barrier",
                all("recursive_doubling", 1)
            ),
        ),
    ];
    for (trial, want) in want {
        let want = format!("#0 deviating {want}; then 4");
        let got = answers(&run(4, "rank", &["mismatch", trial]), 4);
        assert!(
            got.iter().all(|line| calls(line) == calls(&want)),
            "trial 1 {trial}: {got:#?}, not {want}"
        );
        let got = answers(&run_over("tcp", 4, "rank", &["mismatch", trial]), 4);
        assert!(
            got.iter().all(|line| calls(line) == calls(&want)),
            "trial 1 {trial}: {got:#?}, not {want}"
        );
        let here = threads(4, |group| work::mismatch(group, trial));
        assert!(
            here.iter().all(|line| calls(line) == calls(&want)),
            "trial 1 {trial}: {here:#?}, not {want}"
        );
    }
}

/// The real one, where it is installed.
#[test]
fn the_real_torchrun_starts_ranks() {
    let Some(torchrun) = torchrun() else {
        // Not by `eprintln`, which the harness keeps to itself where a test passes.
        writeln!(
            std::io::stderr(),
            "\nNOT TESTED: torchrun not found; cargo xtask install torchrun"
        )
        .unwrap();
        return;
    };
    let mut command = Command::new(torchrun);
    command
        .args(["--nnodes", "1", "--nproc-per-node", "2", "--no-python"])
        .args(["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"])
        .arg(program("rank"))
        .arg("collectives");
    let ended = Running::start(command).wait_for_all();
    assert_eq!(ended.code(), 0, "{ended:#?}");
    let mut got: Vec<&str> = ended
        .out
        .lines()
        .filter(|l| l.starts_with("alike "))
        .collect();
    let mut want = threads(2, plain);
    got.sort_unstable();
    want.sort();
    assert_eq!(got, want, "{ended:#?}");
}

/// In target/torchrun*, else in PATH.
fn torchrun() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    // target/PROFILE/deps/this
    let target = exe.ancestors().nth(3)?;
    let installed = std::fs::read_dir(target)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with("torchrun"))
        })
        .map(|path| path.join("bin/torchrun"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all: Vec<PathBuf> = installed
        .chain(std::env::split_paths(&path).map(|dir| dir.join("torchrun")))
        .collect();
    all.into_iter().find(|path| path.is_file())
}
