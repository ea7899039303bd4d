//! The rest of the family against its papers' tables, edge by edge where there are vectors.

use gaggle_core::{Rank, Round, Topology};
use gaggle_topology::{
    BaseGraph, CATALOGUE, EquiDyn, EquiStatic, FromFn, Graph, Hypercube, InnerOuter, KPeerExp,
    Lazy, NullCascade, OnePeer, OnePeerExp, OnePeerHypercube, OverMachines, RandomMatching, Ring,
    StaticExp, SymmetricExp, Table, TopologyError, Weights, by_name, check, edges, erdos_renyi,
    even_shape, facts, matrix, mesh, period_product, report, torus,
};
use ndarray::Array2;

const WORLDS: [usize; 8] = [1, 2, 3, 5, 6, 7, 8, 25];

/// ‖Π − 11ᵀ/n‖, largest entry.
fn distance_from_mean(topology: &dyn Topology) -> f64 {
    let n = topology.world() as f64;
    period_product(topology)
        .iter()
        .map(|w| (w - 1.0 / n).abs())
        .fold(0.0, f64::max)
}

/// (low, high, weight) of the edges of a symmetric round.
fn pairs(topology: &dyn Topology, t: u64) -> Vec<(u32, u32, f64)> {
    let w = matrix(topology, t);
    assert!((&w - &w.t()).iter().all(|d| d.abs() < 1e-15));
    let all = edges(topology, t).into_iter();
    let mut pairs: Vec<_> = all
        .map(|(a, b, w)| (a.0, b.0, w))
        .filter(|e| e.0 < e.1)
        .collect();
    pairs.sort_by_key(|e| (e.0, e.1));
    pairs
}

fn assert_pairs(topology: &dyn Topology, t: u64, want: &[(u32, u32, f64)]) {
    let found = pairs(topology, t);
    let same = found.len() == want.len()
        && found
            .iter()
            .zip(want)
            .all(|(f, w)| (f.0, f.1) == (w.0, w.1) && (f.2 - w.2).abs() < 1e-15);
    assert!(
        same,
        "{} round {t}: {found:?}, not {want:?}",
        topology.name()
    );
}

fn targets(topology: &dyn Topology, t: u64) -> Vec<u32> {
    let mut round = Round::default();
    let target = |r: usize| {
        topology.round(Rank(r as u32), t, &mut round);
        assert_eq!(round.to.len(), 1, "rank {r} sends once");
        round.to[0].0.0
    };
    (0..topology.world()).map(target).collect()
}

fn assert_rho(topology: &dyn Topology, want: f64) {
    let found = facts(topology).contraction;
    assert!(
        (found - want).abs() < 5e-7,
        "{} of {}: {found}, not {want}",
        topology.name(),
        topology.world()
    );
}

#[test]
fn every_doubly_stochastic_member_is_sound() {
    for n in WORLDS {
        let (rows, columns) = even_shape(n);
        let mut all: Vec<Box<dyn Topology>> = vec![
            Box::new(mesh(rows, columns).unwrap()),
            Box::new(torus(rows, columns).unwrap()),
            Box::new(StaticExp::with_base(n, 3).unwrap()),
            Box::new(SymmetricExp::new(n, 4).unwrap()),
            Box::new(RandomMatching::new(n, 1).unwrap()),
            Box::new(NullCascade::new(n, 2).unwrap()),
            Box::new(NullCascade::new(n, 4).unwrap()),
            Box::new(BaseGraph::new(n, 1).unwrap()),
            Box::new(BaseGraph::new(n, 3).unwrap()),
            Box::new(BaseGraph::simple(n, 2).unwrap()),
            Box::new(EquiDyn::new(n, false, 0.5, 3).unwrap()),
            Box::new(EquiDyn::new(n, true, 0.5, 3).unwrap()),
            Box::new(EquiStatic::random(n, 4, false, 2).unwrap()),
            Box::new(EquiStatic::random(n, 4, true, 2).unwrap()),
            Box::new(erdos_renyi(n, 0.7, 5).unwrap()),
            Box::new(Lazy::new(Ring::new(n).unwrap())),
            Box::new(OverMachines::new(Ring::new(n).unwrap(), 3).unwrap()),
        ];
        if n > 2 {
            all.push(Box::new(KPeerExp::new(n, 2).unwrap()));
        }
        if n.is_power_of_two() {
            all.push(Box::new(Hypercube::new(n).unwrap()));
            all.push(Box::new(OnePeerHypercube::new(n).unwrap()));
        }
        for topology in all {
            let name = topology.name();
            match check(&*topology) {
                // Shifts that have a divisor in common with n leave parts alone.
                Err(TopologyError::Disconnected { .. }) if name.contains("equi-static") => {}
                found => found.unwrap_or_else(|e| panic!("{name} of {n}: {e}")),
            }
        }
    }
}

#[test]
fn contraction_is_the_tabulated_one() {
    let worlds = [4, 5, 6, 7, 8, 12, 16, 25, 32, 64];
    let mesh_rho = [
        0.333333, 0.872678, 0.75, 0.933979, 0.853553, 0.863583, 0.868641, 0.916213, 0.965778,
        0.967705,
    ];
    let torus_rho = [
        0.333333, 0.539345, 0.5, 0.748993, 0.5, 0.6, 0.6, 0.723607, 0.882843, 0.882843,
    ];
    let symmetric_rho = [
        0.333333, 0.539345, 0.666667, 0.748993, 0.5, 0.6, 0.6, 0.801764, 0.666667, 0.714286,
    ];
    let lazy_rho = [
        0.666667, 0.769672, 0.833333, 0.874497, 0.902369, 0.955342, 0.974627, 0.989528, 0.993595,
        0.998395,
    ];
    for (i, n) in worlds.into_iter().enumerate() {
        let (rows, columns) = even_shape(n);
        assert_rho(&mesh(rows, columns).unwrap(), mesh_rho[i]);
        assert_rho(&torus(rows, columns).unwrap(), torus_rho[i]);
        assert_rho(&SymmetricExp::new(n, 4).unwrap(), symmetric_rho[i]);
        assert_rho(&Lazy::new(Ring::new(n).unwrap()), lazy_rho[i]);
    }
    for (n, q) in [(4usize, 2.0), (8, 3.0), (16, 4.0), (32, 5.0), (64, 6.0)] {
        let hypercube = Hypercube::new(n).unwrap();
        assert_rho(&hypercube, (q - 1.0) / (q + 1.0));
        let low = facts(&hypercube).lambda_min.unwrap();
        assert!((low + (q - 1.0) / (q + 1.0)).abs() < 1e-12);
    }
    let shapes: Vec<_> = worlds.into_iter().map(even_shape).collect();
    let want = [
        (2, 2),
        (1, 5),
        (2, 3),
        (1, 7),
        (2, 4),
        (3, 4),
        (4, 4),
        (5, 5),
        (4, 8),
        (8, 8),
    ];
    assert_eq!(shapes, want);
    let low = |t: &dyn Topology| facts(t).lambda_min.unwrap();
    assert!((low(&mesh(4, 4).unwrap()) + 0.430843).abs() < 5e-7);
    assert!((low(&torus(5, 5).unwrap()) + 0.447214).abs() < 5e-7);
}

#[test]
fn k_peer_exponential_graphs_contract_by_their_formula() {
    let table = [
        (15, 2, 0.508259),
        (17, 2, 0.602108),
        (30, 2, 0.109492),
        (9, 2, 0.0),
        (25, 4, 0.0),
        (12, 1, 0.418258),
    ];
    for (n, k, want) in table {
        assert_rho(&KPeerExp::new(n, k).unwrap(), want);
    }
    for n in 2..=40 {
        for k in 1..=4.min(n as u32 - 1) {
            let graph = KPeerExp::new(n, k).unwrap();
            check(&graph).unwrap_or_else(|e| panic!("{n} {k}: {e}"));
            let b = f64::from(k + 1).powi(graph.period().unwrap() as i32);
            let x = std::f64::consts::PI / n as f64;
            let one = |q: usize| ((q as f64 * b * x).sin() / (b * (q as f64 * x).sin())).abs();
            let want = (1..n).map(one).fold(0.0, f64::max);
            assert!((facts(&graph).contraction - want).abs() < 1e-12, "{n} {k}");
        }
    }
}

#[test]
fn bases_that_are_exact_powers_lose_no_edge() {
    // Floating logarithms give log₃ 243 = 4.999….
    let mut round = Round::default();
    StaticExp::with_base(244, 3)
        .unwrap()
        .round(Rank(0), 0, &mut round);
    let offsets: Vec<u32> = round.to.iter().map(|(r, _)| r.0).collect();
    assert_eq!(offsets, [1, 3, 9, 27, 81, 243]);
    assert_eq!(KPeerExp::new(243, 2).unwrap().period(), Some(5));
    assert_eq!(KPeerExp::new(1000, 9).unwrap().period(), Some(3));
}

#[test]
fn a_one_peer_hypercube_is_exact_after_its_bits() {
    for n in [1, 2, 4, 8, 16, 64] {
        let graph = OnePeerHypercube::new(n).unwrap();
        assert!(distance_from_mean(&graph) < 1e-15);
        assert_eq!(graph.period(), Some(u64::from(n.ilog2().max(1))));
    }
    let wrong = Hypercube::new(12).unwrap_err().to_string();
    assert_eq!(wrong, "hypercube: 12 ranks are no power of 2");
}

#[test]
fn base_graphs_are_exact_for_every_world_and_degree() {
    for n in 1..=64 {
        for k in 1..=4 {
            for graph in [BaseGraph::new(n, k), BaseGraph::simple(n, k)] {
                let graph = graph.unwrap();
                check(&graph).unwrap_or_else(|e| panic!("{} {n} {k}: {e}", graph.name()));
                let off = distance_from_mean(&graph);
                assert!(off < 1e-10, "{} {n} {k}: {off}", graph.name());
                let mut round = Round::default();
                for t in 0..graph.period().unwrap() {
                    for r in 0..n {
                        graph.round(Rank(r as u32), t, &mut round);
                        assert!(round.from.len() <= k, "{} {n} {k}", graph.name());
                    }
                }
            }
        }
    }
}

#[test]
fn base_graphs_have_the_known_lengths() {
    let length = |n, k| BaseGraph::new(n, k).unwrap().period().unwrap();
    let table: [[u64; 32]; 4] = [
        [
            1, 1, 3, 2, 5, 4, 5, 3, 7, 6, 7, 5, 7, 6, 7, 4, 9, 8, 9, 7, 9, 8, 9, 6, 9, 8, 9, 7, 9,
            8, 9, 5,
        ],
        [
            1, 1, 1, 2, 3, 2, 4, 3, 2, 4, 5, 3, 5, 5, 4, 4, 5, 3, 6, 5, 5, 6, 6, 4, 6, 6, 3, 6, 7,
            5, 7, 5,
        ],
        [
            1, 1, 1, 1, 3, 2, 3, 2, 2, 4, 4, 2, 4, 4, 4, 2, 5, 3, 5, 4, 4, 5, 5, 3, 5, 5, 3, 4, 5,
            5, 5, 3,
        ],
        [
            1, 1, 1, 1, 1, 2, 3, 2, 2, 2, 4, 2, 4, 4, 2, 2, 4, 3, 4, 2, 4, 4, 4, 3, 2, 5, 3, 4, 5,
            3, 5, 3,
        ],
    ];
    for (k, row) in table.iter().enumerate() {
        let found: Vec<u64> = (1..=32).map(|n| length(n, k + 1)).collect();
        assert_eq!(found, row, "k = {}", k + 1);
    }
    let simple: Vec<u64> = (1..=32)
        .map(|n| BaseGraph::simple(n, 1).unwrap().period().unwrap())
        .collect();
    let mut want = vec![1, 1, 3, 2, 5, 5, 5, 3];
    want.extend([7; 7]);
    want.push(4);
    want.extend([9; 15]);
    want.push(5);
    assert_eq!(simple, want);
}

#[test]
fn base_graphs_have_the_known_edges() {
    let h = 0.5;
    let five = BaseGraph::new(5, 1).unwrap();
    assert_pairs(&five, 0, &[(0, 1, h), (2, 3, h)]);
    assert_pairs(&five, 1, &[(0, 2, h), (1, 3, h)]);
    assert_pairs(&five, 2, &[(0, 1, h), (3, 4, 0.8)]);
    assert_pairs(&five, 3, &[(0, 1, h), (2, 3, h)]);
    assert_pairs(&five, 4, &[(0, 2, h), (1, 3, h)]);
    let six = BaseGraph::new(6, 1).unwrap();
    assert_pairs(&six, 0, &[(0, 1, h), (3, 4, h)]);
    assert_pairs(&six, 1, &[(1, 2, 2.0 / 3.0), (4, 5, 2.0 / 3.0)]);
    assert_pairs(&six, 2, &[(0, 1, h), (3, 4, h)]);
    assert_pairs(&six, 3, &[(0, 3, h), (1, 4, h), (2, 5, h)]);
    let simple = BaseGraph::simple(6, 1).unwrap();
    assert_pairs(&simple, 0, &[(0, 1, h), (2, 3, h), (4, 5, h)]);
    assert_pairs(&simple, 1, &[(0, 2, h), (1, 3, h), (4, 5, h)]);
    assert_pairs(
        &simple,
        2,
        &[(0, 1, h), (2, 5, 2.0 / 3.0), (3, 4, 2.0 / 3.0)],
    );
    assert_pairs(&simple, 3, &[(0, 1, h), (2, 3, h), (4, 5, h)]);
    assert_pairs(&simple, 4, &[(0, 2, h), (1, 3, h), (4, 5, h)]);
    let seven = BaseGraph::new(7, 1).unwrap();
    let w = 4.0 / 7.0;
    assert_pairs(&seven, 0, &[(0, 1, h), (2, 3, h), (4, 5, h)]);
    assert_pairs(&seven, 1, &[(0, 2, h), (1, 3, h), (4, 5, h)]);
    assert_pairs(&seven, 2, &[(1, 5, w), (2, 4, w), (3, 6, w)]);
    assert_pairs(&seven, 3, &[(0, 1, h), (2, 3, h), (5, 6, 2.0 / 3.0)]);
    assert_pairs(&seven, 4, &[(0, 2, h), (1, 3, h), (4, 5, h)]);
    let t = 1.0 / 3.0;
    let five = BaseGraph::new(5, 2).unwrap();
    assert_pairs(&five, 0, &[(0, 1, t), (0, 2, t), (1, 2, t), (3, 4, h)]);
    assert_pairs(&five, 1, &[(1, 4, 0.6), (2, 3, 0.6)]);
    assert_pairs(&five, 2, &[(0, 1, t), (0, 2, t), (1, 2, t), (3, 4, h)]);
    let seven = BaseGraph::new(7, 2).unwrap();
    let w = 3.0 / 7.0;
    assert_pairs(&seven, 0, &[(0, 1, h), (2, 3, h), (4, 5, h)]);
    let both = [
        (0, 2, t),
        (0, 4, t),
        (1, 3, t),
        (1, 5, t),
        (2, 4, t),
        (3, 5, t),
    ];
    assert_pairs(&seven, 1, &both);
    let flow = [(0, 1, t), (0, 3, t), (1, 3, t), (2, 6, w), (5, 6, w)];
    assert_pairs(&seven, 2, &flow);
    let blocks = [
        (0, 1, t),
        (0, 2, t),
        (1, 2, t),
        (3, 4, t),
        (3, 5, t),
        (4, 5, t),
    ];
    assert_pairs(&seven, 3, &blocks);
}

#[test]
fn null_cascades_are_exact_in_any_order() {
    for n in 1..=64 {
        for k in 2..=5 {
            let graph = NullCascade::new(n, k).unwrap();
            let off = distance_from_mean(&graph);
            assert!(off < 1e-12, "{n} {k}: {off}");
            check(&graph).unwrap_or_else(|e| panic!("{n} {k}: {e}"));
        }
    }
    let lengths = [(5, 2), (7, 3), (10, 3), (15, 3), (17, 8), (30, 4), (35, 5)];
    for (n, want) in lengths {
        assert_eq!(NullCascade::new(n, 2).unwrap().period(), Some(want), "{n}");
    }
    // Small factors are merged where a round may have enough neighbours.
    assert_eq!(NullCascade::new(60, 4).unwrap().period(), Some(3));
    let graph = NullCascade::new(15, 2).unwrap();
    let row = |t| matrix(&graph, t).row(0).to_vec();
    let taps = |t| -> Vec<(usize, f64)> {
        let row = row(t).into_iter().enumerate();
        row.filter(|(_, w)| *w > 0.0).collect()
    };
    let close = |found: Vec<(usize, f64)>, want: &[(usize, f64)]| {
        assert_eq!(found.len(), want.len(), "{found:?}");
        for (f, w) in found.iter().zip(want) {
            assert!(f.0 == w.0 && (f.1 - w.1).abs() < 5e-7, "{found:?}");
        }
    };
    close(taps(0), &[(0, 1.0 / 3.0), (5, 1.0 / 3.0), (10, 1.0 / 3.0)]);
    close(taps(1), &[(0, 0.447214), (1, 0.276393), (14, 0.276393)]);
    close(taps(2), &[(0, 0.447214), (2, 0.276393), (13, 0.276393)]);
}

#[test]
fn equi_topologies_mix_as_their_paper_says() {
    let table: [(&[u32], f64, f64); 3] = [
        (&[1, 3, 4], 0.444878, 0.416667),
        (&[2, 5, 7], 0.715155, 0.166667),
        (&[1, 2, 4, 6], 0.5625, 0.5625),
    ];
    for (shifts, directed, undirected) in table {
        assert_rho(&EquiStatic::of_shifts(8, shifts, false).unwrap(), directed);
        assert_rho(&EquiStatic::of_shifts(8, shifts, true).unwrap(), undirected);
    }
    // All shifts together are the mean.
    let all: Vec<u32> = (1..11).collect();
    assert_rho(&EquiStatic::of_shifts(11, &all, false).unwrap(), 0.0);
    assert_eq!(EquiStatic::shifts_for(8, 0.5, 0.1), 54);

    // λ_max(E[WᵀW] − J).
    let mean_square = |rounds: Vec<Array2<f64>>| {
        let n = rounds[0].nrows();
        let count = rounds.len() as f64;
        let sum = rounds
            .iter()
            .fold(Array2::zeros((n, n)), |sum, w| sum + w.t().dot(w));
        let mean = Table::from_matrices("mean", &[sum / count]).unwrap();
        facts(&mean).contraction
    };
    for (n, directed, undirected) in [
        (8usize, 0.4375, 0.507813),
        (16, 0.46875, 0.541139),
        (32, 0.484375, 0.559518),
    ] {
        let every = (1..n as u32).map(|u| {
            let one = EquiDyn::new(n, false, 0.5, 0).unwrap().among(&[u]).unwrap();
            matrix(&one, 0)
        });
        let found = mean_square(every.collect());
        assert!((found - directed).abs() < 1e-12, "{n}: {found}");
        let drawn = EquiDyn::new(n, true, 0.5, 9).unwrap();
        let found = mean_square((0..3000).map(|t| matrix(&drawn, t)).collect());
        assert!((found - undirected).abs() < 0.02, "{n}: {found}");
    }
}

#[test]
fn random_matchings_are_uniform_enough() {
    for n in [4usize, 8, 13] {
        let matching = RandomMatching::new(n, 11).unwrap();
        let mut met = Array2::<f64>::zeros((n, n));
        let rounds = 6000;
        for t in 0..rounds {
            for (a, b, _) in edges(&matching, t) {
                met[[a.idx(), b.idx()]] += 1.0;
            }
        }
        let partners = if n % 2 == 0 { n - 1 } else { n };
        let want = rounds as f64 / partners as f64;
        for ((i, j), times) in met.indexed_iter().filter(|((i, j), _)| i != j) {
            let off = (times - want).abs() / want.sqrt();
            assert!(off < 6.0, "{n}: {i} met {j} {times} times, not {want}");
        }
    }
    let other = RandomMatching::new(8, 12).unwrap();
    let first = RandomMatching::new(8, 11).unwrap();
    assert!((0..8).any(|t| edges(&other, t) != edges(&first, t)));
}

#[test]
fn inner_outer_schedules_are_the_known_ones() {
    let exp = InnerOuter::exp(12, 4).unwrap();
    let want = [
        [4, 2, 3, 1, 8, 6, 7, 5, 0, 10, 11, 9],
        [3, 9, 0, 2, 7, 1, 4, 6, 11, 5, 8, 10],
        [1, 3, 6, 0, 5, 7, 10, 4, 9, 11, 2, 8],
        [2, 0, 1, 11, 6, 4, 5, 3, 10, 8, 9, 7],
    ];
    for (t, want) in want.iter().enumerate() {
        assert_eq!(targets(&exp, t as u64), want, "round {t}");
    }
    assert_eq!(exp.period(), Some(4));
    assert_rho(&exp, 0.499016);
    assert_rho(&InnerOuter::exp(16, 4).unwrap(), 0.636574);
    let ring = InnerOuter::ring(12, 4).unwrap();
    let want = [
        [4, 2, 3, 1, 8, 6, 7, 5, 0, 10, 11, 9],
        [2, 5, 3, 0, 6, 9, 7, 4, 10, 1, 11, 8],
        [1, 3, 6, 0, 5, 7, 10, 4, 9, 11, 2, 8],
    ];
    for (t, want) in want.iter().enumerate() {
        assert_eq!(targets(&ring, t as u64), want, "round {t}");
    }
    for (machines, local) in (1..=7).flat_map(|m| (3..=6).map(move |l| (m, l))) {
        for graph in [
            InnerOuter::exp(machines * local, local).unwrap(),
            InnerOuter::ring(machines * local, local).unwrap(),
        ] {
            check(&graph).unwrap_or_else(|e| panic!("{machines} × {local}: {e}"));
        }
    }
    for (world, local) in [(12, 2), (12, 5), (12, 0)] {
        assert!(InnerOuter::exp(world, local).is_err());
    }
}

#[test]
fn machines_mix_as_their_graph_does() {
    for local in [1, 2, 4] {
        let graph = OverMachines::new(Ring::new(6).unwrap(), local).unwrap();
        assert_rho(&graph, 2.0 / 3.0);
        let flat = OverMachines::new(OnePeerExp::new(8).unwrap(), local).unwrap();
        assert!(distance_from_mean(&flat) < 1e-15);
    }
}

/// n = 8, edges i → i + 1 besides 0 → 4, 0 → 2 and 3 → 7.
fn dir8() -> Graph {
    let ring = (0..8).map(|i| (Rank(i), Rank((i + 1) % 8)));
    let more = [(0, 4), (0, 2), (3, 7)].map(|(a, b)| (Rank(a), Rank(b)));
    Graph::new(8, ring.chain(more)).expect("edges of eight ranks")
}

#[test]
fn push_sum_finds_the_mean_on_a_directed_graph() {
    let push = dir8().table("dir8", Weights::Push).unwrap();
    let found = facts(&push);
    assert!(found.column_stochastic && !found.row_stochastic && found.connected);
    let w = matrix(&push, 0);
    let mut x = Array2::from_shape_fn((8, 1), |(i, _)| i as f64);
    let mut p = Array2::ones((8, 1));
    let mut estimates = Vec::new();
    for _ in 0..60 {
        (x, p) = (w.dot(&x), w.dot(&p));
        estimates.push(&x / &p);
    }
    let z = |k: usize, i: usize| estimates[k - 1][[i, 0]];
    assert!((z(1, 0) - 4.6666666667).abs() < 1e-9);
    assert!((z(1, 5) - 4.5).abs() < 1e-9);
    assert!((z(5, 0) - 3.9490456257).abs() < 1e-9);
    assert!((z(20, 0) - 3.5055822750).abs() < 1e-9);
    let worst = |k: usize| (0..8).map(|i| (z(k, i) - 3.5).abs()).fold(0.0, f64::max);
    assert!((worst(20) - 9.365e-3).abs() < 1e-6);
    assert!((worst(60) - 1.507e-7).abs() < 1e-10);
    // n times the Perron vector: what is left of the weights.
    let perron = [
        1.03225806, 0.51612903, 1.03225806, 0.77419355, 1.03225806, 1.03225806, 1.03225806,
        1.5483871,
    ];
    for (i, want) in perron.iter().enumerate() {
        assert!((p[[i, 0]] - want).abs() < 1e-7, "{i}: {}", p[[i, 0]]);
    }
}

#[test]
fn biased_weights_are_told_with_their_remedy() {
    let uniform = dir8().table("dir8", Weights::Uniform).unwrap();
    let text = check(&uniform).unwrap_err().to_string();
    assert!(
        text.contains("averages would not be kept") && text.contains("push-sum"),
        "{text}"
    );
    // One peer per round of a star: in most rounds the centre hears several, or one, and leaves nothing.
    let star = Graph::undirected(5, (1..5).map(|i| (Rank(0), Rank(i)))).unwrap();
    let biased = OnePeer::over("star", &star, Weights::Uniform).unwrap();
    assert!(matches!(
        check(&biased),
        Err(TopologyError::ColumnSum { .. })
    ));
    let push = OnePeer::over("star", &star, Weights::Push).unwrap();
    assert_eq!(push.period(), Some(4));
    let found = facts(&push);
    assert!(found.column_stochastic && found.connected);
    let metropolis = dir8().table("dir8", Weights::Metropolis).unwrap_err();
    assert!(
        metropolis.to_string().contains("undirected"),
        "{metropolis}"
    );
}

#[test]
fn one_peer_over_a_regular_graph_is_sound() {
    // Over the static exponential graph it is the one-peer exponential graph.
    for n in WORLDS {
        let static_exp = StaticExp::new(n).unwrap();
        let all = edges(&static_exp, 0);
        let graph = Graph::new(n, all.iter().map(|(a, b, _)| (*a, *b))).unwrap();
        let one = OnePeer::over("one-peer", &graph, Weights::Uniform).unwrap();
        let known = OnePeerExp::new(n).unwrap();
        for t in 0..12 {
            assert_eq!(matrix(&one, t), matrix(&known, t), "{n}, round {t}");
        }
    }
}

#[test]
fn graphs_come_from_edges_matrices_petgraph_and_functions() {
    let wrong = Graph::new(3, [(Rank(0), Rank(3))]).unwrap_err().to_string();
    assert!(
        wrong.contains("from 0 to 3") || wrong.contains("rank"),
        "{wrong}"
    );
    assert!(Graph::new(3, [(Rank(1), Rank(1))]).is_err());
    assert!(Graph::new(0, []).is_err());
    let path = Graph::undirected(3, [(Rank(0), Rank(1)), (Rank(1), Rank(2))]).unwrap();
    assert!(path.is_undirected() && path.is_connected());
    let same = petgraph::graph::UnGraph::<(), ()>::from_edges([(0, 1), (1, 2)]);
    assert_eq!(Graph::from_petgraph(&same).unwrap(), path);
    let one_way = petgraph::graph::DiGraph::<(), ()>::from_edges([(0, 1), (1, 2), (2, 2)]);
    let one_way = Graph::from_petgraph(&one_way).unwrap();
    assert!(!one_way.is_undirected() && !one_way.is_connected());
    for weights in [
        Weights::Metropolis,
        Weights::LazyMetropolis,
        Weights::MaxDegree,
    ] {
        check(&path.table("path", weights).unwrap()).unwrap();
    }
    let lazy = matrix(&path.table("path", Weights::LazyMetropolis).unwrap(), 0);
    assert_eq!(lazy.row(0).to_vec(), [0.75, 0.25, 0.0]);
    let f = FromFn::new("stay", 4, Some(1), |_, _, _: &mut Round| {}).unwrap();
    assert!(matches!(check(&f), Err(TopologyError::Disconnected { .. })));
}

#[test]
fn consensus_error_falls_as_tabulated() {
    type Row = (Box<dyn Topology>, [f64; 7]);
    let table: Vec<Row> = vec![
        (
            Box::new(mesh(5, 5).unwrap()),
            [
                4.335760e1, 3.633963e1, 3.049328e1, 2.148483e1, 1.803519e1, 1.066835e1, 1.556031,
            ],
        ),
        (
            Box::new(torus(5, 5).unwrap()),
            [
                2.08e1,
                1.04e1,
                5.408,
                1.480960,
                7.754240e-1,
                1.113149e-1,
                9.028415e-5,
            ],
        ),
        (
            Box::new(BaseGraph::new(25, 1).unwrap()),
            [5.176e1, 5.08e1, 4.696e1, 1.046822e1, 9.101952, 0.0, 0.0],
        ),
        (
            Box::new(BaseGraph::new(25, 2).unwrap()),
            [5.176e1, 4.92e1, 3.192e1, 1.558272, 0.0, 0.0, 0.0],
        ),
        (
            Box::new(BaseGraph::new(25, 3).unwrap()),
            [5.112e1, 3.672e1, 1.046822e1, 0.0, 0.0, 0.0, 0.0],
        ),
        (
            Box::new(BaseGraph::new(25, 4).unwrap()),
            [5e1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        ),
    ];
    for (topology, want) in table {
        let found = consensus(&*topology, 20);
        for (k, want) in [1, 2, 3, 5, 6, 9, 20].into_iter().zip(want) {
            let off = (found[k] - want).abs();
            assert!(
                off <= 1e-6 * want.max(1e-6),
                "{} k {k}: {}",
                topology.name(),
                found[k]
            );
        }
    }
    let six: [(BaseGraph, [f64; 6]); 2] = [
        (
            BaseGraph::simple(6, 1).unwrap(),
            [2.666667, 2.0, 0.666667, 0.666667, 0.0, 0.0],
        ),
        (
            BaseGraph::new(6, 1).unwrap(),
            [2.75, 2.416667, 2.25, 0.0, 0.0, 0.0],
        ),
    ];
    for (graph, want) in six {
        let found = consensus(&graph, 6);
        for (k, want) in want.into_iter().enumerate() {
            assert!(
                (found[k + 1] - want).abs() < 5e-7,
                "{}: {found:?}",
                graph.name()
            );
        }
    }
}

/// (1/n)·Σ(xᵢ − x̄)² after each round, from xᵢ = i.
fn consensus(topology: &dyn Topology, rounds: u64) -> Vec<f64> {
    let n = topology.world();
    let mut x = Array2::from_shape_fn((n, 1), |(i, _)| i as f64);
    let error = |x: &Array2<f64>| {
        let mean = x.sum() / n as f64;
        x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64
    };
    let mut all = vec![error(&x)];
    for t in 0..rounds {
        x = matrix(topology, t).dot(&x);
        all.push(error(&x));
    }
    all
}

#[test]
fn the_catalogue_makes_what_it_lists() {
    for entry in CATALOGUE {
        let name = match entry.name {
            "inner-outer-exp" | "inner-outer-ring" => format!("{}:4", entry.name),
            "one-peer-over" => "one-peer-over:exp:3".into(),
            name => name.into(),
        };
        for n in [8, 16] {
            let topology = by_name(&name, n).unwrap_or_else(|e| panic!("{name} of {n}: {e}"));
            assert_eq!(topology.world(), n);
            assert!(
                name.starts_with(topology.name()),
                "{name}: {}",
                topology.name()
            );
            check(&*topology).unwrap_or_else(|e| panic!("{name} of {n}: {e}"));
        }
    }
    let wrong = [
        (
            "torus:3x3",
            8,
            "torus: \"3x3\" is no shape of 8 ranks, as ROWSxCOLUMNS",
        ),
        ("base:x", 8, "base: K is a number, not \"x\""),
        ("ring:4", 8, "ring: \"4\" is one parameter too many"),
        (
            "inner-outer-exp",
            8,
            "inner-outer-exp: inner-outer-exp:LOCAL is wanted, as inner-outer-exp:4",
        ),
        (
            "erdos-renyi:1.5",
            8,
            "erdos-renyi: an edge's probability is from 0 to 1, not 1.5",
        ),
        (
            "k-peer-exp:8",
            8,
            "k-peer-exp: 8 peers per round in a world of 8",
        ),
        (
            "null-cascade:1",
            8,
            "null-cascade: a round needs at least 2 neighbours, not 1",
        ),
        ("base:0", 8, "base: a rank has at least 1 neighbour, not 0"),
        ("exp:1", 8, "exp: the base is at least 2, not 1"),
        (
            "d-equi-static:99999999999",
            8,
            "d-equi-static: 99999999999 shifts are more than 1048576",
        ),
    ];
    for (name, n, want) in wrong {
        let error = by_name(name, n).err().map(|e| e.to_string());
        assert_eq!(error.as_deref(), Some(want), "{name}");
    }
    let error = by_name(&"lazy-".repeat(10_000), 4).err();
    assert!(error.is_some_and(|e| e.to_string().contains("up to 200 characters")));
    // As large as numbers are.
    for name in [
        "base:18446744073709551615",
        "null-cascade:18446744073709551615",
    ] {
        for n in [1, 8, 15] {
            check(&*by_name(name, n).unwrap()).unwrap();
        }
    }
    check(&*by_name("k-peer-exp:4294967295", 1).unwrap()).unwrap();
    // A torus' rows are not at the same distances everywhere: one edge a round is biased there, and it is told.
    let biased = by_name("one-peer-over:torus:2x4", 8).unwrap();
    assert!(matches!(
        check(&*biased),
        Err(TopologyError::ColumnSum { .. })
    ));
    let lazy = by_name("lazy-torus:2x4", 8).unwrap();
    assert_eq!(lazy.name(), "lazy-torus");
}

#[test]
fn a_report_tells_rates_and_costs() {
    let of = |name: &str, n| report(&*by_name(name, n).unwrap());
    let exp = of("static-exp", 16);
    assert!(exp.is_doubly_stochastic() && exp.warnings().is_empty());
    assert_eq!(
        (exp.messages, exp.most_messages, exp.exact_after),
        (4.0, 4, None)
    );
    assert!((exp.contraction_per_round() - 0.6).abs() < 1e-12);
    // 0.6¹⁴ < 10⁻³ < 0.6¹³.
    assert_eq!(exp.messages_until(1e-3), 4.0 * 14.0);
    let one = of("one-peer-exp", 16);
    assert_eq!((one.messages, one.exact_after), (1.0, Some(4)));
    assert!(
        one.rounds
            .iter()
            .all(|r| (r - 0.980785).abs() < 5e-7 || *r <= 1.0 + 1e-12)
    );
    assert_eq!(one.messages_until(1e-3), 4.0);
    assert_eq!(of("base:2", 7).exact_after, Some(4));
    assert_eq!(of("star", 2).exact_after, Some(1));
    assert_eq!(of("ring", 1).messages_until(1e-3), 0.0);
    let push = report(&dir8().table("dir8", Weights::Push).unwrap());
    assert!(push.warnings()[0].contains("push-sum"));
    let stay = FromFn::new("stay", 4, Some(1), |_, _, _: &mut Round| {}).unwrap();
    assert!(report(&stay).warnings()[0].contains("no consensus"));
    assert_eq!(report(&stay).messages_until(0.5), f64::INFINITY);
}

/// Within a round machines keep to themselves, or ranks of them do: what one of them has and another has not stays whole.
#[test]
fn rounds_that_fall_apart_leave_a_disagreement_whole() {
    for n in [8, 12, 1200] {
        let found = report(&*by_name("inner-outer-ring:4", n).unwrap());
        assert_eq!(found.rounds, [1.0; 4], "{n}");
        let sound = found.facts.connected && found.is_doubly_stochastic();
        assert!(sound && found.facts.contraction < 1.0, "{n}");
    }
    // λ_min above 0, where agreement is moved to.
    let lazy = facts(&*by_name("lazy-chain", 4).unwrap());
    assert!(lazy.lambda_min.is_some_and(|l| l > 0.05), "{lazy:?}");
}

#[test]
fn ten_thousand_ranks_are_measured() {
    // Closed forms of circulant graphs, at a size where a dense matrix would have 10⁸ entries.
    let n = 10_000;
    let of = |name: &str| facts(&*by_name(name, n).unwrap());
    let near = |found: f64, want: f64| assert!((found - want).abs() < 1e-12, "{found} {want}");
    let x = std::f64::consts::PI / n as f64;
    near(
        of("ring").contraction,
        1.0 / 3.0 + 2.0 / 3.0 * (2.0 * x).cos(),
    );
    near(of("uni-ring").contraction, x.cos());
    near(of("static-exp").contraction, 13.0 / 15.0);
    let p = 16_384.0;
    let one = |q: usize| ((q as f64 * p * x).sin() / (p * (q as f64 * x).sin())).abs();
    let want = (1..n).map(one).fold(0.0, f64::max);
    near(of("one-peer-exp").contraction, want);
    assert!(of("null-cascade").contraction < 1e-12);
    // And one that is not circulant: exact all the same.
    let torus = of("torus");
    assert!(torus.symmetric && torus.connected && torus.row_stochastic);
    let want = (3.0 + 2.0 * (2.0 * std::f64::consts::PI / 100.0).cos()) / 5.0;
    assert!(
        (torus.contraction - want).abs() < 1e-4,
        "{}",
        torus.contraction
    );
}
