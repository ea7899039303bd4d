//! Every tabulated run, eight ranks in one thread over a dense matrix.

use gaggle_core::{At, Rule};
use gaggle_optim::{
    Decentralised,
    testing::DenseMixer,
    vectors::{Graph, Problem, Row, STEPS, rows},
};

/// Eight ranks with the same rule on `graph`, stepped in turn.
struct World<'a> {
    problem: &'a Problem,
    ranks: Vec<Decentralised<f64>>,
    x: Vec<Vec<f64>>,
    g: Vec<Vec<f64>>,
}

impl<'a> World<'a> {
    fn new(problem: &'a Problem, graph: Graph, rule: impl Fn() -> Box<dyn Rule<f64>>) -> Self {
        let (n, d) = (problem.n(), problem.d());
        let mixers = DenseMixer::world(n, move |t, i, j| graph.weight(t, i, j));
        let start = |mixer| Decentralised::new(rule(), Box::new(mixer), d);
        World {
            problem,
            ranks: mixers.into_iter().map(start).collect(),
            x: vec![vec![0.0; d]; n],
            g: vec![vec![0.0; d]; n],
        }
    }

    fn step(&mut self, lr: f64) {
        for at in [At::BeforeForward, At::AfterGradient] {
            if at == At::AfterGradient {
                for (rank, (x, g)) in self.x.iter().zip(&mut self.g).enumerate() {
                    self.problem.gradient(rank, x, g);
                }
            }
            for ((rank, x), g) in self.ranks.iter_mut().zip(&mut self.x).zip(&self.g) {
                rank.begin(at, lr, x, g).expect("begins");
            }
            for ((rank, x), g) in self.ranks.iter_mut().zip(&mut self.x).zip(&self.g) {
                rank.end(at, x, g).expect("ends");
            }
        }
    }
}

fn run(row: &Row) -> Result<(), String> {
    let problem = Problem::new(row.problem);
    let mut world = World::new(&problem, row.graph, || row.rule());
    for k in 1..=STEPS[3] {
        world.step(row.lr());
        if STEPS.contains(&k) {
            row.verify(&problem, k, &world.x)?;
        }
    }
    Ok(())
}

#[test]
fn all_rows_repeat_to_their_printed_digits() {
    let wrong: Vec<String> = rows().iter().filter_map(|row| run(row).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// W·CTA = ATC: averaging CTA's parameters once more gives ATC started from averaged ones, here both from zero.
#[test]
fn cta_is_atc_seen_half_a_step_earlier() {
    let row = |name: &str| {
        let found = rows().iter().find(|r| r.label() == name);
        *found.expect("is in the table")
    };
    let (cta, atc) = (
        row("Lin DsgdCta on static-exp"),
        row("Lin DsgdAtc on static-exp"),
    );
    let problem = Problem::new(cta.problem);
    let mut a = World::new(&problem, cta.graph, || cta.rule());
    let mut b = World::new(&problem, atc.graph, || atc.rule());
    for _ in 0..30 {
        a.step(0.1);
        b.step(0.1);
        for (i, atc) in b.x.iter().enumerate() {
            for (k, want) in atc.iter().enumerate() {
                let mixed: f64 = (0..8)
                    .map(|j| cta.graph.weight(0, i, j) * (a.x[j][k] - a.x[i][k]))
                    .sum();
                assert!((a.x[i][k] + mixed - want).abs() < 4e-15);
            }
        }
    }
}

/// The mean of the gradients, in rank order on every rank: all-reduce keeps all ranks equal bit for bit.
#[test]
fn all_reduce_keeps_ranks_equal_bit_for_bit() {
    let row = rows()[0];
    let problem = Problem::new(row.problem);
    let mut world = World::new(&problem, row.graph, || row.rule());
    for _ in 0..50 {
        world.step(0.1);
        for x in &world.x {
            assert_eq!(
                x.iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
                world.x[0].iter().map(|v| v.to_bits()).collect::<Vec<_>>()
            );
        }
    }
}
