//! BlueFog's tests on this library: every row of the inventory, worlds of 1 to 8, ranks as threads and as processes over TCP.

#![cfg(target_os = "linux")]

use gaggle_integration_tests::{
    bluefog::{self, CASES},
    process::{Running, gaggle_run, program},
};
use std::collections::BTreeSet;

const WORLDS: std::ops::RangeInclusive<usize> = 1..=8;

/// What every rank of a world says where all is well.
fn all_of(world: usize) -> String {
    let count = CASES
        .into_iter()
        .flatten()
        .filter(|c| c.fits(world))
        .count();
    format!("{count} cases")
}

#[test]
fn no_row_is_left_out_and_none_is_there_twice() {
    let all: Vec<_> = CASES.into_iter().flatten().collect();
    let names: BTreeSet<String> = all.iter().map(|c| c.path()).collect();
    assert_eq!(names.len(), all.len());
    for case in all {
        assert!(
            WORLDS.filter(|n| case.fits(*n)).count() >= 2,
            "{}",
            case.path()
        );
    }
}

#[test]
fn the_inventory_holds_between_threads() {
    for world in WORLDS {
        let told = gaggle::local(world, |group| {
            bluefog::run(&group).unwrap_or_else(|e| e.to_string())
        });
        let told = told.expect("ranks as threads");
        assert_eq!(told, vec![all_of(world); world], "{world} ranks");
    }
}

#[test]
fn the_inventory_holds_between_processes_over_tcp() {
    for world in WORLDS {
        let rank = program("rank");
        let rank = rank.to_str().expect("a path in Unicode");
        let mut command = gaggle_run(world as u32, &[rank, "bluefog"]);
        command.env("GAGGLE_TRANSPORT", "tcp");
        let ended = Running::start(command).wait_for_all();
        assert_eq!(ended.code(), 0, "{world} ranks: {ended:#?}");
        let told: BTreeSet<&str> = ended.out.lines().collect();
        let want: BTreeSet<String> = (0..world)
            .map(|r| format!("[{r}] {}", all_of(world)))
            .collect();
        assert_eq!(
            told,
            want.iter().map(String::as_str).collect(),
            "{world} ranks"
        );
    }
}
