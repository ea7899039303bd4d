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

/// The tests of BlueFog's own suite, by file, in its order; those of one-sided windows come with these.
const INVENTORY: [(&str, &[&str]); 4] = [
    (
        "torch_basics",
        &[
            "rank",
            "size",
            "set_and_load_topology",
            "in_out_neighbors_expo2",
            "in_out_neighbors_biring",
            "infer_destination_from_source",
            "infer_source_from_destination",
        ],
    ),
    (
        "torch_ops",
        &[
            "broadcast",
            "broadcast_inplace",
            "allreduce_avg",
            "allreduce_sum",
            "allreduce_avg_inplace",
            "allreduce_fusion",
            "allreduce_fusion_inplace",
            "allgather",
            "allgather_variable_size",
            "neighbor_allreduce_sum_precision",
            "neighbor_allreduce_avg_precision",
            "neighbor_allreduce_dynamic_topo_check",
            "neighbor_allreduce_outside_static_topo_move",
            "neighbor_allreduce_dynamic_topo_move",
            "neighbor_allreduce_empty_send_neighbors",
            "neighbor_allreduce_dynamic_topo_avg",
            "neighbor_allreduce_avg",
            "neighbor_allreduce_avg_meshgrid",
            "neighbor_allreduce_avg_biring",
            "neighbor_allreduce_avg_ring_1",
            "neighbor_allreduce_avg_ring_2",
            "neighbor_allreduce_avg_star",
            "neighbor_allreduce_sum",
            "neighbor_allreduce_dst_weight",
            "neighbor_allreduce_weighted_avg",
            "neighbor_allreduce_fusion",
            "neighbor_allreduce_fusion_alot",
            "neighbor_allreduce_dynamic_topo_fusion",
            "neighbor_allreduce_dst_weight_fusion",
            "neighbor_allgather",
            "neighbor_allgather_dynamic",
            "neighbor_allgather_dynamic_variable_size",
            "neighbor_allgather_order",
            "neighbor_allgather_order_dynamic",
            "pair_gossip",
            "pair_gossip_weighted",
        ],
    ),
    (
        "torch_hierarchical",
        &[
            "local_size",
            "local_rank",
            "hier_allreduce",
            "hier_allreduce_inplace",
            "hier_neighbor_allreduce",
            "hier_neighbor_allreduce_dynamic_move",
            "hier_neighbor_allreduce_dst_weight",
            "hier_neighbor_allreduce_fusion",
            "hier_neighbor_allreduce_dynamic_move_fusion",
            "hier_neighbor_allreduce_dst_weight_fusion",
        ],
    ),
    (
        // Each of its ways to average has a name of its own here.
        "torch_optimizer",
        &[
            "standard_empty_awc",
            "standard_empty_atc",
            "standard_allreduce_awc",
            "standard_allreduce_atc",
            "standard_neighbor_awc",
            "standard_neighbor_atc",
            "standard_gradient_allreduce",
            "dynamic_neighbor_awc",
            "dynamic_neighbor_atc",
            "local_aggregation_empty_awc",
            "local_aggregation_empty_atc",
            "local_aggregation_allreduce_awc",
            "local_aggregation_allreduce_atc",
            "local_aggregation_neighbor_awc",
            "local_aggregation_neighbor_atc",
            "local_aggregation_gradient_allreduce",
            "local_aggregation_awc_4",
            "local_aggregation_awc_8",
            "local_aggregation_awc_32",
            "local_aggregation_duplicated_awc",
            "local_aggregation_duplicated_atc",
            "local_aggregation_duplicated_gradient_allreduce",
        ],
    ),
];

#[test]
fn no_row_is_left_out_and_none_is_there_twice() {
    let all: Vec<&Case> = Part::ALL.into_iter().flat_map(Part::cases).collect();
    for (group, names) in INVENTORY {
        let there: Vec<&str> = all
            .iter()
            .filter(|c| c.group == group)
            .map(|c| c.name)
            .collect();
        assert_eq!(there, names, "{group}");
    }
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
