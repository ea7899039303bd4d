//! Every topology against its closed forms and against independently computed tables.

use gaggle_core::{Form, Rank, Round, Topology};
use gaggle_topology::{
    Direction, FullyConnected, OnePeerExp, Ring, Star, StaticExp, Table, TopologyError, UniRing,
    by_name, check, edges, facts,
};
use std::f64::consts::PI;

/// Those that every world has, with formulas of a line.
const NAMES: [&str; 7] = [
    "ring",
    "uni-ring",
    "uni-ring-left",
    "star",
    "fully-connected",
    "static-exp",
    "one-peer-exp",
];

/// Weight of receiver i on sender j in round t, by the text-book formula.
fn weight(name: &str, n: usize, t: u64, i: usize, j: usize) -> f64 {
    let back = (i + n - j) % n; // i receives from i − back
    let tau = (0..).find(|&m| 1_usize << m >= n).expect("ends");
    let uniform = |offsets: &[usize]| {
        let mut set: Vec<usize> = offsets.iter().map(|o| o % n).chain([0]).collect();
        set.sort();
        set.dedup();
        if set.contains(&back) {
            1.0 / set.len() as f64
        } else {
            0.0
        }
    };
    match name {
        "ring" => uniform(&[1, n - 1]),
        "uni-ring" => uniform(&[1]),
        "uni-ring-left" => uniform(&[n - 1]),
        "fully-connected" => 1.0 / n as f64,
        "star" if i == 0 && j == 0 => 1.0 / n as f64,
        "star" if i == j => 1.0 - 1.0 / n as f64,
        "star" if i == 0 || j == 0 => 1.0 / n as f64,
        "star" => 0.0,
        "static-exp" => uniform(&(0..tau).map(|m| 1 << m).collect::<Vec<_>>()),
        "one-peer-exp" if n == 1 => 1.0,
        "one-peer-exp" => uniform(&[1 << (t % tau as u64)]),
        other => panic!("no formula for {other}"),
    }
}

/// ‖Π − J‖₂ of one period, in closed form.
fn contraction(name: &str, n: usize) -> f64 {
    let x = PI / n as f64;
    // A circulant matrix has the eigenvalues Σ w·exp(−2πi·q·d/n).
    let circulant = |offsets: &[usize]| {
        let one = |q: usize| {
            let angle = |d: &usize| 2.0 * x * (q * d) as f64;
            let re: f64 = 1.0 + offsets.iter().map(|d| angle(d).cos()).sum::<f64>();
            let im: f64 = offsets.iter().map(|d| angle(d).sin()).sum();
            re.hypot(im) / (offsets.len() + 1) as f64
        };
        (1..n).map(one).fold(0.0, f64::max)
    };
    match name {
        _ if n == 1 => 0.0,
        "fully-connected" => 0.0,
        "ring" if n == 2 => 0.0,
        "ring" => circulant(&[1, n - 1]),
        "uni-ring" | "uni-ring-left" => x.cos(),
        "star" if n == 2 => 0.0,
        "star" => 1.0 - 1.0 / n as f64,
        "static-exp" => {
            let tau = (0..).find(|&m| 1_usize << m >= n).expect("ends");
            circulant(&(0..tau).map(|m| 1 << m).collect::<Vec<_>>())
        }
        "one-peer-exp" => {
            let p = n.next_power_of_two() as f64;
            let one = |q: usize| ((q as f64 * p * x).sin() / (p * (q as f64 * x).sin())).abs();
            (1..n).map(one).fold(0.0, f64::max)
        }
        other => panic!("no formula for {other}"),
    }
}

#[test]
fn every_topology_is_sound_in_worlds_1_to_33() {
    for name in NAMES {
        for n in 1..=33 {
            let topology = by_name(name, n).unwrap();
            assert_eq!((topology.name(), topology.world()), (name, n));
            check(&*topology).unwrap_or_else(|e| panic!("{name} of {n}: {e}"));
        }
    }
}

#[test]
fn rounds_are_the_formulas_and_repeat() {
    for name in NAMES {
        for n in 1..=33 {
            let topology = by_name(name, n).unwrap();
            let period = topology.period().unwrap();
            let mut round = Round::default();
            for (t, i) in (0..2 * period).flat_map(|t| (0..n).map(move |i| (t, i))) {
                topology.round(Rank(i as u32), t, &mut round);
                let mut row = vec![0.0; n];
                row[i] = round.keep;
                for &(j, w) in &round.from {
                    row[j.idx()] += w;
                }
                let want: Vec<f64> = (0..n).map(|j| weight(name, n, t, i, j)).collect();
                for j in 0..n {
                    assert!(
                        (row[j] - want[j]).abs() < 1e-15,
                        "{name} {n}, t {t}: {i} of {j}"
                    );
                }
                assert_eq!(round.form, Form::Delta);
                assert!(round.to.iter().all(|(_, b)| *b == 1.0));
            }
        }
    }
}

#[test]
fn contraction_is_the_closed_form_in_worlds_1_to_33() {
    for name in NAMES {
        for n in 1..=33 {
            let f = facts(&*by_name(name, n).unwrap());
            let want = contraction(name, n);
            assert!(
                (f.contraction - want).abs() < 1e-12,
                "{name} {n}: {f:?}, wanted {want}"
            );
            assert!(f.row_stochastic && f.column_stochastic && f.connected);
            assert_eq!(f.world, n);
        }
    }
}

/// Computed with numpy's SVD and eigenvalues, printed to six digits.
#[test]
fn contraction_and_lambda_min_are_the_tabulated_ones() {
    let worlds = [4, 5, 6, 7, 8, 12, 16, 25, 32, 64];
    let contractions = [
        (
            "ring",
            [
                0.333333, 0.539345, 0.666667, 0.748993, 0.804738, 0.910684, 0.949253, 0.979055,
                0.987190, 0.996790,
            ],
        ),
        (
            "uni-ring",
            [
                0.5_f64.sqrt(),
                0.809017,
                0.866025,
                0.900969,
                0.923880,
                0.965926,
                0.980785,
                0.992115,
                0.995185,
                0.998795,
            ],
        ),
        (
            "star",
            [
                0.75, 0.8, 0.833333, 0.857143, 0.875, 0.916667, 0.9375, 0.96, 0.96875, 0.984375,
            ],
        ),
        (
            "static-exp",
            [
                0.333333, 0.25, 0.5, 0.353553, 0.5, 0.6, 0.6, 0.510861, 0.666667, 0.714286,
            ],
        ),
        (
            "one-peer-exp",
            [
                0.0, 0.202254, 0.216506, 0.125, 0.0, 0.209129, 0.0, 0.192116, 0.0, 0.0,
            ],
        ),
    ];
    for (name, row) in contractions {
        for (n, want) in worlds.into_iter().zip(row) {
            let got = facts(&*by_name(name, n).unwrap()).contraction;
            assert!(
                (got - want).abs() < 5.1e-7,
                "{name} {n}: {got}, wanted {want}"
            );
        }
    }
    let lambda_min = [
        -0.333333, -0.206011, -0.333333, -0.267313, -0.333333, -0.333333, -0.333333, -0.328076,
        -0.333333, -0.333333,
    ];
    for (n, want) in worlds.into_iter().zip(lambda_min) {
        let got = facts(&Ring::new(n).unwrap()).lambda_min.unwrap();
        assert!(
            (got - want).abs() < 5.1e-7,
            "ring {n}: {got}, wanted {want}"
        );
    }
}

#[test]
fn symmetry_and_lambda_min_are_told_apart() {
    let f = |name| facts(&*by_name(name, 6).unwrap());
    assert!(f("ring").symmetric && f("star").symmetric && f("fully-connected").symmetric);
    assert!(!f("static-exp").symmetric && f("static-exp").lambda_min.is_none());
    assert!(!f("one-peer-exp").symmetric && f("one-peer-exp").period == 3);
    // A star's smallest eigenvalue is 0, from 11ᵀ's share in the middle; the complete graph's too.
    assert!(f("star").lambda_min.unwrap().abs() < 1e-12);
    assert!(f("fully-connected").lambda_min.unwrap().abs() < 1e-12);
    assert_eq!(
        facts(&Ring::new(1).unwrap()).lambda_min.map(f64::round),
        Some(1.0)
    );
}

/// Mean of (x_i − x̄)² after k rounds from x_i = i; computed with numpy.
#[test]
fn consensus_error_falls_as_tabulated() {
    type Row = (&'static str, usize, &'static [(u64, f64)]);
    let table: [Row; 7] = [
        (
            "ring",
            25,
            &[
                (1, 4.155556e1),
                (2, 3.728395e1),
                (3, 3.424691e1),
                (5, 2.973595e1),
                (6, 2.793235e1),
                (9, 2.356780e1),
                (20, 1.390975e1),
            ],
        ),
        (
            "star",
            25,
            &[
                (1, 4.239360e1),
                (2, 3.906994e1),
                (3, 3.600686e1),
                (5, 3.058230e1),
                (6, 2.818465e1),
                (9, 2.206175e1),
                (20, 8.986843),
            ],
        ),
        (
            "static-exp",
            25,
            &[
                (1, 1.061111e1),
                (2, 2.324074),
                (3, 5.195902e-1),
                (5, 2.652230e-2),
                (6, 6.025399e-3),
                (9, 7.168806e-5),
                (20, 7.283313e-12),
            ],
        ),
        (
            "one-peer-exp",
            25,
            &[
                (1, 4.6e1),
                (2, 3.7625e1),
                (3, 2.44375e1),
                (5, 1.3125),
                (6, 1.281738),
                (9, 2.438507e-1),
                (20, 5.950321e-5),
            ],
        ),
        (
            "ring",
            6,
            &[
                (1, 9.166667e-1),
                (2, 3.981481e-1),
                (3, 1.759259e-1),
                (4, 7.807499e-2),
                (5, 3.468729e-2),
                (6, 1.541516e-2),
            ],
        ),
        (
            "static-exp",
            6,
            &[
                (1, 2.291667e-1),
                (2, 2.604167e-2),
                (3, 4.557292e-3),
                (4, 1.017253e-3),
                (5, 2.466838e-4),
                (6, 6.119410e-5),
            ],
        ),
        (
            "one-peer-exp",
            6,
            &[
                (1, 1.666667),
                (2, 4.166667e-1),
                (3, 1.041667e-1),
                (4, 7.291667e-2),
                (5, 1.822917e-2),
                (6, 4.557292e-3),
            ],
        ),
    ];
    for (name, n, row) in table {
        let topology = by_name(name, n).unwrap();
        let mut x: Vec<f64> = (0..n).map(|i| i as f64).collect();
        let mut done = 0;
        for &(k, want) in row {
            while done < k {
                x = step(&*topology, done, &x);
                done += 1;
            }
            let mean = x.iter().sum::<f64>() / n as f64;
            let got = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
            assert!(
                (got - want).abs() <= 6e-7 * want,
                "{name} {n}, k {k}: {got}, wanted {want}"
            );
        }
    }
}

fn step(topology: &dyn Topology, t: u64, x: &[f64]) -> Vec<f64> {
    let mut y = x.to_vec();
    for (sender, receiver, w) in edges(topology, t) {
        y[receiver.idx()] += w * (x[sender.idx()] - x[receiver.idx()]);
    }
    y
}

#[test]
fn a_world_of_one_keeps_its_value_and_has_no_neighbours() {
    for name in NAMES {
        let topology = by_name(name, 1).unwrap();
        let mut round = Round {
            from: vec![(Rank(7), 0.1)],
            to: vec![(Rank(7), 0.1)],
            ..Round::default()
        };
        for t in [0, 1, u64::MAX] {
            topology.round(Rank(0), t, &mut round);
            assert_eq!(
                round,
                Round {
                    keep: 1.0,
                    ..Round::default()
                },
                "{name}"
            );
        }
        assert_eq!(facts(&*topology).contraction, 0.0);
        assert!(edges(&*topology, 0).is_empty());
    }
}

#[test]
fn a_round_reuses_its_lists() {
    let graph = StaticExp::new(33).unwrap();
    let mut round = Round::default();
    graph.round(Rank(0), 0, &mut round);
    let (from, to) = (round.from.as_ptr(), round.to.as_ptr());
    for t in 0..10 {
        graph.round(Rank(5), t, &mut round);
    }
    assert_eq!((round.from.as_ptr(), round.to.as_ptr()), (from, to));
}

#[test]
fn wrong_worlds_centres_and_names_are_told() {
    let world = |e: TopologyError| e.to_string();
    for name in NAMES {
        let e = by_name(name, 0).err().map(world).unwrap();
        assert!(
            e.contains("a world has 1 to 4294967295 ranks, not 0"),
            "{e}"
        );
    }
    assert!(Ring::new(usize::MAX).is_err());
    let e = Star::new(3, Rank(3)).unwrap_err();
    assert_eq!(
        e.to_string(),
        "star: the centre is rank 3, but the world has 3 ranks"
    );
    let e = by_name("moebius", 4).err().map(world).unwrap();
    assert!(
        e.starts_with("there is no topology \"moebius\"; there are ring, uni-ring, ")
            && e.contains(", base, "),
        "{e}"
    );
}

#[test]
fn short_names_mean_the_same() {
    assert_eq!(by_name("exp2", 5).unwrap().name(), "static-exp");
    assert_eq!(by_name("full", 5).unwrap().name(), "fully-connected");
}

/// On the exponential graphs rank i sends to i + 2^m: BlueFog's orientation.
#[test]
fn orientation_is_bluefogs() {
    let to = |topology: &dyn Topology, t| {
        let mut round = Round::default();
        topology.round(Rank(1), t, &mut round);
        round.to.iter().map(|(r, _)| r.0).collect::<Vec<_>>()
    };
    assert_eq!(to(&StaticExp::new(8).unwrap(), 0), [2, 3, 5]);
    let one = OnePeerExp::new(8).unwrap();
    assert_eq!(
        [to(&one, 0), to(&one, 1), to(&one, 2), to(&one, 3)],
        [[2], [3], [5], [2]]
    );
    assert_eq!(to(&UniRing::new(8, Direction::Right).unwrap(), 0), [2]);
    assert_eq!(to(&UniRing::new(8, Direction::Left).unwrap(), 0), [0]);
}

#[test]
fn a_star_may_have_any_centre() {
    for centre in 0..7 {
        let star = Star::new(7, Rank(centre)).unwrap();
        check(&star).unwrap();
        let degree = edges(&star, 0)
            .iter()
            .filter(|(s, _, _)| s.0 == centre)
            .count();
        assert_eq!(degree, 6);
    }
    assert_eq!(edges(&FullyConnected::new(3).unwrap(), 0).len(), 6);
}

fn part(from: &[(u32, f64)], to: &[u32], keep: f64) -> Round {
    Round {
        from: from.iter().map(|&(r, w)| (Rank(r), w)).collect(),
        to: to.iter().map(|&r| (Rank(r), 1.0)).collect(),
        keep,
        form: Form::Sum,
    }
}

/// The fault that `Table::new` or `check` finds in these rounds.
fn fault(rounds: Vec<Vec<Round>>) -> String {
    match Table::new("t", rounds) {
        Err(e) => e.to_string(),
        Ok(table) => check(&table).expect_err("a fault was planted").to_string(),
    }
}

#[test]
fn every_kind_of_fault_names_rank_and_round() {
    let good = || vec![part(&[(1, 0.5)], &[1], 0.5), part(&[(0, 0.5)], &[0], 0.5)];
    check(&Table::new("t", vec![good()]).unwrap()).unwrap();
    let second = |bad: Vec<Round>| fault(vec![good(), bad]);

    assert_eq!(fault(vec![]), "t: a world has 1 to 4294967295 ranks, not 0");
    assert_eq!(
        second(vec![part(&[], &[], 1.0)]),
        "t: round 1 has 1 ranks, wanted 2"
    );
    assert_eq!(
        second(vec![
            part(&[(1, 0.5)], &[1], 0.5),
            part(&[(0, 0.5)], &[], 0.5)
        ]),
        "t, round 1: rank 0 lists rank 1 in `from`, but rank 1 does not list rank 0 in `to`"
    );
    assert_eq!(
        second(vec![part(&[(1, 0.5)], &[1], 0.5), part(&[], &[0], 0.5)]),
        "t, round 1: rank 0 lists rank 1 in `to`, but rank 1 does not list rank 0 in `from`"
    );
    assert_eq!(
        second(vec![part(&[(0, 0.5)], &[], 0.5), part(&[], &[], 1.0)]),
        "t, round 1: rank 0 lists rank 0 in `from`, which is itself"
    );
    assert_eq!(
        second(vec![part(&[], &[2], 1.0), part(&[], &[], 1.0)]),
        "t, round 1: rank 0 lists rank 2 in `to`, which is not a member"
    );
    assert_eq!(
        second(vec![
            part(&[(1, 0.25), (1, 0.25)], &[1], 0.5),
            part(&[(0, 0.5)], &[0], 0.5)
        ]),
        "t, round 1: rank 0 lists rank 1 in `from`, which is there already"
    );
    assert_eq!(
        second(vec![
            part(&[(1, -0.5)], &[1], 1.5),
            part(&[(0, 0.5)], &[0], 0.5)
        ]),
        "t, round 1: rank 0 puts weight -0.5 on rank 1; weights are finite and not negative"
    );
    assert_eq!(
        second(vec![
            part(&[(1, 0.5)], &[1], f64::NAN),
            part(&[(0, 0.5)], &[0], 0.5)
        ]),
        "t, round 1: rank 0 puts weight NaN on rank 0; weights are finite and not negative"
    );
    assert_eq!(
        second(vec![
            part(&[(1, 0.5)], &[1], 0.5),
            part(&[(0, 0.25)], &[0], 0.5)
        ]),
        "t, round 1: the weights that rank 1 receives with sum to 0.75, not 1"
    );
    assert_eq!(
        second(vec![
            part(&[(1, 0.5)], &[1], 0.5),
            part(&[(0, 0.25)], &[0], 0.75)
        ]),
        "t, round 1: the weights put on rank 0 sum to 0.75, not 1; averages would not be kept: take Metropolis weights, or push-sum with push weights"
    );
    assert_eq!(
        fault(vec![vec![part(&[], &[], 1.0), part(&[], &[], 1.0)]]),
        "t: in 1 rounds nothing of rank 0 reaches rank 1"
    );
}

#[test]
fn facts_tell_what_is_wrong_instead_of_failing() {
    // A directed path with uniform pull weights: rows sum to one, columns do not, and nothing comes back.
    let path = vec![part(&[], &[1], 1.0), part(&[(0, 0.5)], &[], 0.5)];
    let f = facts(&Table::new("path", vec![path]).unwrap());
    assert!(f.row_stochastic && !f.column_stochastic && !f.symmetric && !f.connected);
    // Two ranks that swap everything: sound sums, connected, and a disagreement that never shrinks.
    let swap = vec![part(&[(1, 1.0)], &[1], 0.0), part(&[(0, 1.0)], &[0], 0.0)];
    let f = facts(&Table::new("swap", vec![swap]).unwrap());
    assert!(f.row_stochastic && f.column_stochastic && f.symmetric && f.connected);
    assert!((f.contraction - 1.0).abs() < 1e-14);
    assert!((f.lambda_min.unwrap() + 1.0).abs() < 1e-14);
}

/// A topology that never repeats: a matching that depends on the bits of t.
struct Restless;
impl Topology for Restless {
    fn name(&self) -> &str {
        "restless"
    }
    fn world(&self) -> usize {
        4
    }
    fn period(&self) -> Option<u64> {
        None
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        let peer = rank.0
            ^ if t.count_ones().is_multiple_of(2) {
                1
            } else {
                2
            };
        *out = part(&[(peer, 0.5)], &[peer], 0.5);
    }
}

#[test]
fn a_topology_that_never_repeats_is_looked_at_for_a_while() {
    check(&Restless).unwrap();
    let f = facts(&Restless);
    assert!(f.connected && f.symmetric && f.contraction < 1e-12 && f.lambda_min.is_none());
    assert_eq!(f.period, gaggle_topology::NEVER_REPEATS);
}

/// 1 − ρ ≈ 4π²/(3n²) leaves eigenvalues 2e-5 apart: the hard case, at the size up to which exactness is promised.
#[test]
fn a_thousand_ranks_are_measured_exactly() {
    let f = facts(&Ring::new(1024).unwrap());
    let want = (1.0 + 2.0 * (2.0 * PI / 1024.0).cos()) / 3.0;
    assert!(
        (f.contraction - want).abs() < 1e-12,
        "{} {want}",
        f.contraction
    );
    assert!((f.lambda_min.unwrap() + 1.0 / 3.0).abs() < 1e-12);
}
