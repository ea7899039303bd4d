//! Matrices and graphs: round trips and properties over random topologies.

use gaggle_core::{MixingFacts, Rank, Topology};
use gaggle_topology::{
    Table, TopologyError, by_name, check, components, edges, facts, graph, matrix, period_product,
    union,
};
use ndarray::{Array1, Array2};
use proptest::prelude::*;

#[test]
fn graphs_and_matrices_agree_with_the_edges() {
    for name in [
        "ring",
        "uni-ring-left",
        "star",
        "fully-connected",
        "static-exp",
        "one-peer-exp",
        "base:2",
        "torus",
        "null-cascade",
    ] {
        for n in [1, 2, 3, 5, 7, 8, 33] {
            let topology = by_name(name, n).unwrap();
            for t in 0..topology.period().unwrap() {
                let (g, w) = (graph(&*topology, t), matrix(&*topology, t));
                let all = edges(&*topology, t);
                assert_eq!((g.node_count(), g.edge_count()), (n, all.len()));
                for (s, r, weight) in all {
                    assert_eq!(g.edge_weight(s.0, r.0), Some(&weight));
                    assert_eq!(w[[r.idx(), s.idx()]], weight);
                }
                let ones = Array1::<f64>::ones(n);
                assert!((w.dot(&ones) - &ones).iter().all(|d| d.abs() < 1e-12));
                assert!((w.t().dot(&ones) - &ones).iter().all(|d| d.abs() < 1e-12));
            }
            assert_eq!(components(&*topology).len(), 1, "{name} {n}");
        }
    }
}

#[test]
fn one_peer_exp_gives_the_exact_mean_of_powers_of_two() {
    for n in [1, 2, 4, 8, 16, 32] {
        let product = period_product(&*by_name("one-peer-exp", n).unwrap());
        assert!(product.iter().all(|w| *w == 1.0 / n as f64), "n = {n}");
    }
}

#[test]
fn a_union_counts_the_rounds_of_an_edge() {
    let u = union(&*by_name("one-peer-exp", 5).unwrap());
    assert_eq!(u.edge_count(), 15);
    // Distances 1, 2 and 4 are distinct among 5 ranks.
    assert!(u.all_edges().all(|(_, _, times)| *times == 1));
    let u = union(&*by_name("one-peer-exp", 2).unwrap());
    assert_eq!(u.edge_weight(0, 1), Some(&1));
}

#[test]
fn a_split_graph_shows_its_components() {
    let block = |i: usize, j: usize| i / 2 == j / 2;
    let w = Array2::from_shape_fn((4, 4), |(i, j)| if block(i, j) { 0.5 } else { 0.0 });
    let table = Table::from_matrices("split", &[w]).unwrap();
    let ranks = |r: [u32; 2]| r.map(Rank).to_vec();
    assert_eq!(components(&table), [ranks([0, 1]), ranks([2, 3])]);
    assert!(matches!(
        check(&table),
        Err(TopologyError::Disconnected {
            from: Rank(0),
            to: Rank(2),
            ..
        })
    ));
}

#[test]
fn a_matrix_that_is_not_square_is_refused() {
    let e = Table::from_matrices("m", &[Array2::zeros((2, 3))]).unwrap_err();
    assert_eq!(e.to_string(), "m: round 0 has 3 ranks, wanted 2");
}

/// Random doubly stochastic matrices: mixtures of permutations (Birkhoff), with something of the identity.
fn doubly_stochastic(n: usize) -> impl Strategy<Value = Array2<f64>> {
    let permutation = Just((0..n).collect::<Vec<_>>()).prop_shuffle();
    proptest::collection::vec((permutation, 1_u32..100), 1..5).prop_map(move |parts| {
        let total: u32 = 20 + parts.iter().map(|(_, w)| w).sum::<u32>();
        let mut w = Array2::eye(n) * (20.0 / f64::from(total));
        for (permutation, weight) in &parts {
            for (i, &j) in permutation.iter().enumerate() {
                w[[i, j]] += f64::from(*weight) / f64::from(total);
            }
        }
        w
    })
}

fn periods() -> impl Strategy<Value = Vec<Array2<f64>>> {
    (1_usize..=9).prop_flat_map(|n| proptest::collection::vec(doubly_stochastic(n), 1..4))
}

/// ‖A‖₂ by power iteration on AᵀA: slow and independent.
fn norm2(a: &Array2<f64>) -> f64 {
    // Roots of different numbers are in no rational relation, so no eigenvector of a matrix of short decimals is orthogonal to the start, as one was to a start of whole numbers.
    let mut v = Array1::from_shape_fn(a.ncols(), |i| ((i * i + i + 2) as f64).cbrt());
    let mut norm = 0.0;
    for _ in 0..20_000 {
        let next = a.t().dot(&a.dot(&v));
        norm = next.dot(&next).sqrt();
        if norm < 1e-200 {
            return 0.0;
        }
        v = next / norm;
    }
    norm.sqrt()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn matrices_round_trip_and_facts_hold(matrices in periods()) {
        let table = Table::from_matrices("random", &matrices).unwrap();
        for (t, m) in matrices.iter().enumerate() {
            prop_assert_eq!(&matrix(&table, t as u64), m);
        }
        let MixingFacts { row_stochastic, column_stochastic, connected, contraction, .. } = facts(&table);
        prop_assert!(row_stochastic && column_stochastic);
        prop_assert_eq!(connected, components(&table).len() == 1);
        prop_assert_eq!(check(&table).is_ok(), connected);
        let n = table.world();
        let away = period_product(&table) - Array2::from_elem((n, n), 1.0 / n as f64);
        prop_assert!((contraction - norm2(&away)).abs() < 1e-6, "{contraction} {}", norm2(&away));
        // With something of the identity in every round, connected means that disagreements shrink.
        prop_assert_eq!(connected, contraction < 1.0 - 1e-9);
    }
}
