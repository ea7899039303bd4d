//! Whether what ranks have reaches all at once, or only goes round: `MixingFacts::cycle`.

use gaggle_core::{Rank, Round};
use gaggle_topology::{FromFn, by_name, facts};
use proptest::prelude::*;

/// hears[t][i][j]: rank i hears of j in round t, of itself too.
type Hears = Vec<Vec<Vec<bool>>>;

fn cycle(hears: &Hears) -> u64 {
    let n = hears[0].len();
    let weight = |heard: bool| if heard { 0.25 } else { 0.0 };
    let topology = FromFn::new(
        "test",
        n,
        Some(hears.len() as u64),
        |rank: Rank, t, out: &mut Round| {
            let round = &hears[t as usize % hears.len()];
            let i = rank.idx();
            out.keep = weight(round[i][i]);
            for j in (0..n).filter(|j| *j != i) {
                if round[i][j] {
                    out.from.push((Rank(j as u32), 0.25));
                }
                if round[j][i] {
                    out.to.push((Rank(j as u32), 1.0));
                }
            }
        },
    );
    facts(&topology.expect("there are ranks")).cycle
}

fn times(a: &[Vec<bool>], b: &[Vec<bool>]) -> Vec<Vec<bool>> {
    let n = a.len();
    let entry = |i: usize, j: usize| (0..n).any(|k| a[i][k] && b[k][j]);
    (0..n)
        .map(|i| (0..n).map(|j| entry(i, j)).collect())
        .collect()
}

/// By the product of the rounds and its powers: primitive ones are full from n² − 2n + 2 on (Wielandt 1950). And in no round anybody hears of nobody, or is heard by nobody.
fn is_primitive(hears: &Hears) -> bool {
    let n = hears[0].len();
    let product = hears[1..]
        .iter()
        .fold(hears[0].clone(), |p, round| times(round, &p));
    let full = (1..n * n + 2).fold(product.clone(), |p, _| times(&product, &p));
    let heard = |round: &Vec<Vec<bool>>, j: usize| round.iter().any(|row| row[j]);
    let left_out =
        |round: &Vec<Vec<bool>>| (0..n).any(|i| !round[i].contains(&true) || !heard(round, i));
    full.iter().flatten().all(|v| *v) && !hears.iter().any(left_out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn one_where_the_product_is_primitive(
        (n, rounds, own) in (1_usize..7, 1_usize..4, any::<bool>()),
        dense in 0.1..0.6_f64,
        draws in prop::collection::vec(0.0..1.0_f64, 3 * 36),
    ) {
        let hears: Hears = (0..rounds)
            .map(|t| (0..n).map(|i| (0..n).map(|j| (own && i == j) || draws[t * 36 + i * 6 + j] < dense).collect()).collect())
            .collect();
        prop_assert_eq!(cycle(&hears) == 1, is_primitive(&hears), "{:?}", hears);
    }

    #[test]
    fn one_where_the_product_of_circles_is_primitive(
        (n, rounds) in (1_usize..13, 1_usize..4),
        dense in 0.1..0.5_f64,
        draws in prop::collection::vec(0.0..1.0_f64, 36),
    ) {
        let hears: Hears = (0..rounds)
            .map(|t| (0..n).map(|i| (0..n).map(|j| draws[t * 12 + (i + n - j) % n] < dense).collect()).collect())
            .collect();
        prop_assert_eq!(cycle(&hears) == 1, is_primitive(&hears), "{:?}", hears);
    }
}

#[test]
fn what_only_goes_round_is_told_by_its_groups() {
    let one = |n: usize, hears: &dyn Fn(usize, usize) -> bool| -> u64 {
        cycle(&vec![
            (0..n)
                .map(|i| (0..n).map(|j| hears(i, j)).collect())
                .collect(),
        ])
    };
    for n in [2, 3, 5, 7, 8] {
        // A ring that only turns; and a star in which nobody keeps anything.
        assert_eq!(one(n, &|i, j| (j + 1) % n == i), n as u64);
        assert_eq!(one(n, &|i, j| (i == 0) != (j == 0)), 2, "{n}");
        // One who keeps something is enough, and so is a way of another length.
        assert_eq!(one(n, &|i, j| (i == 0) != (j == 0) || i + j == 0), 1);
        assert_eq!(one(n, &|i, j| i != j), if n == 2 { 2 } else { 1 });
        // Rank 0 hears of nobody.
        assert_eq!(one(n, &|i, j| i > 0 && j == 0), 0);
    }
    // Two rounds after which everything is where it was.
    let swap: Vec<Vec<bool>> = (0..4)
        .map(|i| (0..4).map(|j| i ^ 1 == j).collect())
        .collect();
    assert_eq!(cycle(&vec![swap.clone(), swap]), 0);
    for name in [
        "ring",
        "star",
        "one-peer-exp",
        "uni-ring",
        "random-matching",
        "base:2",
    ] {
        for n in [1, 2, 3, 5, 7, 8] {
            let cycle = facts(&*by_name(name, n).expect("there is one")).cycle;
            assert_eq!(cycle, 1, "{name} of {n}");
        }
    }
}
