//! BlueFog's tests on this library: every row of the inventory, worlds of 1 to 8, ranks as threads and as processes over TCP.

#![cfg(target_os = "linux")]

use gaggle_integration_tests::{
    bluefog::{self, Case, Part},
    process::{Running, gaggle_run, program},
};
use std::collections::BTreeSet;

const WORLDS: std::ops::RangeInclusive<usize> = 1..=8;

/// What every rank of a world says where all is well.
fn all_of(part: Part, world: usize) -> String {
    format!("{} cases", part.cases().filter(|c| c.fits(world)).count())
}

fn between_threads(part: Part) {
    for world in WORLDS {
        let told = gaggle::local(world, |group| {
            bluefog::run(&group, part).unwrap_or_else(|e| e.to_string())
        });
        let told = told.expect("ranks as threads");
        assert_eq!(told, vec![all_of(part, world); world], "{world} ranks");
    }
}

fn between_processes(part: Part) {
    let rank = program("rank");
    let rank = rank.to_str().expect("a path in Unicode");
    for world in WORLDS {
        let mut command = gaggle_run(world as u32, &[rank, "bluefog", part.name()]);
        command.env("GAGGLE_TRANSPORT", "tcp");
        let ended = Running::start(command).wait_for_all();
        assert_eq!(ended.code(), 0, "{world} ranks: {ended:#?}");
        let told: BTreeSet<&str> = ended.out.lines().collect();
        let want: BTreeSet<String> = (0..world)
            .map(|r| format!("[{r}] {}", all_of(part, world)))
            .collect();
        assert_eq!(
            told,
            want.iter().map(String::as_str).collect(),
            "{world} ranks"
        );
    }
}

#[test]
fn no_row_is_left_out_and_none_is_there_twice() {
    let all: Vec<&Case> = Part::ALL.into_iter().flat_map(Part::cases).collect();
    let names: BTreeSet<String> = all.iter().map(|c| c.path()).collect();
    assert_eq!(names.len(), all.len());
    for case in all {
        let worlds = WORLDS.filter(|n| case.fits(*n)).count();
        assert!(worlds >= 2, "{}", case.path());
    }
}

#[test]
fn operations_hold_between_threads() {
    between_threads(Part::Operations);
}

#[test]
fn operations_hold_between_processes_over_tcp() {
    between_processes(Part::Operations);
}

#[test]
fn optimizers_hold_between_threads() {
    between_threads(Part::Optimizers);
}

#[test]
fn optimizers_hold_between_processes_over_tcp() {
    between_processes(Part::Optimizers);
}
