//! Transports over libraries that may be absent: where they are there, they keep as much of the contract as they can; where not, that is said.

#![cfg(target_os = "linux")]

use gaggle_integration_tests::process::Running;
use std::process::Command;

/// Runs a program to its end; its words.
fn run(command: Command) -> String {
    let ended = Running::start(command).wait_for_all();
    assert!(ended.status.success(), "{ended:#?}");
    println!("{}", ended.out);
    ended.out
}

#[test]
fn ucx_keeps_the_contract() {
    let all = std::env::var_os("GAGGLE_EXHAUSTIVE").is_some();
    for tls in ["tcp", "posix"].into_iter().take(if all { 2 } else { 1 }) {
        let mut ucx = Command::new(env!("CARGO_BIN_EXE_spike-ucx"));
        ucx.arg(tls);
        let out = run(ucx);
        let is_there = !out.starts_with("SKIPPED: no UCX here: ");
        assert!(
            !is_there || out.contains("kept the contract") && out.contains("the engine over it"),
            "{out}"
        );
    }
}

/// A program under `mpirun`; `None` where there is none.
fn mpirun(n: u32, role: &str) -> Option<Command> {
    let found = Command::new("mpirun").arg("--version").output();
    if !found.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("Open MPI")) {
        println!("SKIPPED: no Open MPI here (no mpirun)");
        return None;
    }
    let mut mpi = Command::new("mpirun");
    mpi.args([
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        &n.to_string(),
    ])
    .arg(env!("CARGO_BIN_EXE_spike-mpi"))
    .arg(role);
    Some(mpi)
}

#[test]
fn mpi_keeps_the_contract_but_for_deaths() {
    if let Some(mpi) = mpirun(1, "contract") {
        let out = run(mpi);
        let is_there = !out.starts_with("SKIPPED: no MPI here: ");
        assert!(
            !is_there || out.contains("kept the contract") && out.contains("the engine over it"),
            "{out}"
        );
    }
}

#[test]
fn processes_exchange_over_mpi() {
    for n in [2, 3] {
        if let Some(mpi) = mpirun(n, "exchange") {
            let out = run(mpi);
            let is_there = !out.starts_with("SKIPPED: no MPI here: ");
            assert!(
                !is_there || out.matches("exchanged").count() == n as usize,
                "{out}"
            );
        }
    }
}
