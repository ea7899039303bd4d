//! Plans in two levels on the memory nodes of one host: when they are chosen, and what of them crosses from node to node.

use crate::{cases, plans};
use gaggle_collectives::select::{
    LinkClass, Overrides, Places, Question, Selection, Tables, choose,
};
use gaggle_collectives::{Action, Cost, Plan, Promise, Request, check};
use gaggle_core::{Algorithm, DType, OpKind};

/// Ranks that have mapped each other's memory.
fn mapped() -> Tables {
    Tables {
        mapped: true,
        ..Tables::shared()
    }
}

fn chosen_by(
    tables: &Tables,
    kind: OpKind,
    nodes: Option<&[u32]>,
    world: u32,
    len: u64,
) -> Selection {
    let hosts = vec![0; world as usize];
    let question = Question {
        hosts: Some(&hosts),
        nodes,
        ..Question::new(kind, DType::F32, world, len)
    };
    choose(tables, &Overrides::default(), &question).expect("some plan is eligible")
}

fn chosen(nodes: &[u32], bytes: u64) -> Selection {
    let world = nodes.len() as u32;
    chosen_by(&mapped(), OpKind::AllReduce, Some(nodes), world, bytes / 4)
}

fn is_two_level(s: &Selection) -> bool {
    s.algorithm.between_hosts().is_some()
}

/// So many nodes of so many ranks each.
fn even(nodes: u32, each: u32) -> Vec<u32> {
    (0..nodes * each).map(|r| r / each).collect()
}

/// Two levels move a share of a share across; where nodes are small, or there is little, one pass over all memory and boards have less to do.
#[test]
fn nodes_of_many_ranks_go_in_two_levels_when_there_is_much() {
    const LARGE: u64 = 64 << 20;
    for (nodes, each, bytes, two_levels) in [
        (2, 8, LARGE, true),
        (2, 8, 16 << 20, true),
        (2, 16, LARGE, true),
        (4, 4, LARGE, true),
        (4, 4, 16 << 20, true),
        (2, 8, 64 << 10, false),
        (2, 8, 4 << 10, false),
        (4, 4, 8, false),
        (2, 8, 0, false),
        (2, 2, LARGE, false),
        (2, 1, LARGE, false),
        (8, 1, LARGE, false),
        (1, 8, LARGE, false),
    ] {
        let s = chosen(&even(nodes, each), bytes);
        assert_eq!(is_two_level(&s), two_levels, "{nodes}x{each}, {bytes}: {s}");
        let eligible = s
            .candidates
            .iter()
            .any(|c| c.algorithm.between_hosts().is_some());
        assert_eq!(eligible, nodes > 1 && each > 1, "{nodes}x{each}: {s}");
        assert!(two_levels || s.algorithm == Algorithm::Fused, "{s}");
    }
    // Numbers in any order mean the same.
    let mixed: Vec<u32> = (0..16).map(|r| 9 - r % 2).collect();
    assert!(is_two_level(&chosen(&mixed, LARGE)));
    // One rank for each node would have to carry all: possible, and no good.
    let uneven = chosen(&[0, 0, 0, 1, 1, 1, 1, 1], LARGE);
    assert_eq!(uneven.algorithm, Algorithm::Fused, "{uneven}");
    assert!(
        uneven
            .candidates
            .iter()
            .any(|c| c.algorithm.between_hosts().is_some())
    );
}

/// What nobody knows changes nothing, and neither does what is on one node.
#[test]
fn unknown_and_single_nodes_choose_as_before() {
    for kind in OpKind::ALL {
        for len in [0, 100, 1 << 14, 1 << 22] {
            let unknown = chosen_by(&mapped(), kind, None, 8, len);
            let one = chosen_by(&mapped(), kind, Some(&[5; 8]), 8, len);
            assert_eq!(unknown, one, "{kind:?} {len}");
            // A list for other ranks.
            assert_eq!(chosen_by(&mapped(), kind, Some(&[0, 1]), 8, len), unknown);
            assert!(
                unknown
                    .candidates
                    .iter()
                    .all(|c| c.algorithm.between_hosts().is_none())
            );
        }
    }
    // On several hosts the hosts count.
    let (hosts, nodes) = ([0, 0, 1, 1], [0, 1, 2, 3]);
    let apart = |nodes| {
        let question = Question {
            hosts: Some(&hosts[..]),
            nodes,
            ..Question::new(OpKind::AllReduce, DType::F32, 4, 1 << 20)
        };
        choose(&Tables::network(), &Overrides::default(), &question).unwrap()
    };
    assert_eq!(apart(Some(&nodes[..])), apart(None));
}

/// Every kind that has plans in two levels has them on nodes, and none takes less time for crossing.
#[test]
fn crossing_costs_time() {
    let nodes = even(2, 8);
    for kind in [
        OpKind::AllReduce,
        OpKind::Reduce,
        OpKind::Broadcast,
        OpKind::AllGather,
        OpKind::ReduceScatter,
    ] {
        for len in [16, 1 << 22, 1 << 24] {
            let one = chosen_by(&mapped(), kind, None, 16, len);
            let two = chosen_by(&mapped(), kind, Some(&nodes), 16, len);
            for c in &one.candidates {
                let there = two
                    .candidates
                    .iter()
                    .find(|d| d.algorithm == c.algorithm)
                    .unwrap();
                assert!(
                    there.nanoseconds > c.nanoseconds,
                    "{kind:?} {len} {}",
                    c.algorithm
                );
            }
            assert!(
                two.candidates
                    .iter()
                    .any(|c| c.algorithm.between_hosts().is_some())
            );
        }
    }
    for kind in [OpKind::AllGather, OpKind::ReduceScatter] {
        let s = chosen_by(&mapped(), kind, Some(&nodes), 16, 1 << 22);
        assert!(is_two_level(&s), "{kind:?}: {s}");
    }
    // Where crossing costs nothing, nothing is gained by crossing less.
    let even_ground = Tables {
        across: LinkClass::SHARED,
        ..mapped()
    };
    let s = chosen_by(&even_ground, OpKind::AllReduce, Some(&nodes), 16, 1 << 24);
    assert_eq!(s.algorithm, Algorithm::Fused, "{s}");
}

/// Bytes that leave each rank for another node, by messages or by reading and writing there.
fn crossing(plan: &Plan, nodes: &[u32]) -> u64 {
    let elsewhere = |r: usize| nodes[r] != nodes[plan.rank.idx()];
    let cost = Cost::of(plan, DType::F32).expect("no codec is used");
    let links = cost.links.iter().filter(|(peer, _)| elsewhere(peer.idx()));
    let messages: u64 = links.map(|(_, link)| link.bytes_sent).sum();
    let others = (0..nodes.len()).filter(|r| elsewhere(*r)).count() as u64;
    let touched = plan.iter().map(|step| match step.action {
        // Everybody's elements are read, and everybody's written.
        Action::GroupFold { len, .. } => 2 * 4 * len * others,
        Action::GroupCopy { from, dst, .. } if elsewhere(from.idx()) => 4 * dst.len,
        _ => 0,
    });
    messages + touched.sum::<u64>()
}

fn plans_of(algorithm: Algorithm, nodes: &[u32], len: u64) -> Vec<Plan> {
    let plain = cases::plain(
        OpKind::AllReduce,
        algorithm,
        nodes.len() as u32,
        len,
        1 << 16,
    );
    let requests = plain.requests().iter().map(|r| Request {
        hosts: Some(nodes.to_vec().into()),
        ..r.clone()
    });
    let promise = Promise::of(&requests.collect::<Vec<_>>());
    let plans = plans(&promise);
    check(&plans, &promise).expect("the plans are right");
    plans
}

/// The chosen plan of an all-reduce of S bytes sends 2(H−1)/H·S/L bytes of each rank across, of H nodes of L ranks; one pass over all memory reads and writes 2(H−1)/H·S there.
#[test]
fn a_share_of_a_share_crosses() {
    for (n, each) in [(2u32, 8u32), (4, 4)] {
        let nodes = even(n, each);
        let len = 1u64 << 12;
        let algorithm = chosen(&nodes, 64 << 20).algorithm;
        let once = 2 * 4 * len * u64::from(n - 1) / u64::from(n);
        for (algorithm, want) in [
            (algorithm, once / u64::from(each)),
            (Algorithm::Fused, once),
        ] {
            for plan in plans_of(algorithm, &nodes, len) {
                assert_eq!(crossing(&plan, &nodes), want, "{algorithm} of {n}x{each}");
            }
        }
    }
}

/// Step by step a message between nodes takes what the table says of them.
#[test]
fn messages_between_nodes_take_their_own_time() {
    let nodes = [0, 0, 1, 1];
    let plans = plans_of(Algorithm::TwoLevelDirect, &nodes, 1 << 12);
    let time = |nodes| {
        let places = Places {
            hosts: Some(&[0; 4]),
            nodes,
        };
        gaggle_collectives::timeline(&plans, DType::F32, &Tables::shared(), places)
            .unwrap()
            .nanoseconds
    };
    let near = time(None);
    assert_eq!(near, time(Some(&[3; 4])));
    let later = time(Some(&nodes)) - near;
    assert!(later >= 2 * LinkClass::SHARED.latency_ns, "{later}");
}
