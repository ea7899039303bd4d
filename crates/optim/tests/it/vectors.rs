//! Every tabulated run, all ranks in one thread over a dense matrix.

use gaggle_optim::{
    Decentralised,
    testing::{DenseMixer, lockstep},
    vectors::{Kind, Problem, Row, rows},
};
use std::sync::Arc;

/// All ranks with the row's rule on its graph, stepped in turn.
struct World<'a> {
    problem: &'a Problem,
    ranks: Vec<Decentralised<f64>>,
    x: Vec<Vec<f64>>,
}

impl<'a> World<'a> {
    fn new(problem: &'a Problem, row: &Row) -> Self {
        let d = problem.d();
        let mixers = DenseMixer::of(Arc::new(row.topology()));
        let start = |mixer| Decentralised::unchecked(row.rule(), Box::new(mixer), d);
        World {
            problem,
            ranks: mixers.into_iter().map(start).collect(),
            x: vec![vec![0.0; d]; row.ranks],
        }
    }

    fn step(&mut self, lr: f64) {
        let gradient = |r: usize, x: &[f64], g: &mut [f64]| self.problem.gradient(r, x, g);
        lockstep(&mut self.ranks, lr, &mut self.x, gradient).expect("steps");
    }
}

fn run(row: &Row) -> Result<(), String> {
    let problem = Problem::of(row.problem, row.ranks);
    let mut world = World::new(&problem, row);
    let mut done = 0;
    for k in row.steps() {
        (done..k).for_each(|_| world.step(row.lr()));
        done = k;
        let look = |(rank, x): (&mut Decentralised<f64>, &Vec<f64>)| row.look(rank, x);
        let seen: Vec<_> = world.ranks.iter_mut().zip(&world.x).map(look).collect();
        row.verify(&problem, k, &seen)?;
    }
    Ok(())
}

fn all(wanted: impl Fn(&Row) -> bool) {
    let mine: Vec<&Row> = rows().iter().filter(|r| wanted(r)).collect();
    assert!(!mine.is_empty());
    let wrong: Vec<String> = mine.iter().filter_map(|row| run(row).err()).collect();
    let n = wrong.len();
    assert!(n == 0, "{n} of {}:\n{}", mine.len(), wrong.join("\n"));
}

// In parts, so that they run side by side.
fn steps(row: &Row) -> u64 {
    row.steps().into_iter().max().unwrap_or(0)
}

#[test]
fn all_rows_repeat_on_the_ring() {
    all(|r| r.graph == "ring" && r.problem == Kind::Lin && steps(r) == 5000);
}

#[test]
fn all_rows_repeat_on_directed_graphs() {
    all(|r| r.graph != "ring" && r.problem == Kind::Lin && steps(r) == 5000);
}

#[test]
fn all_rows_repeat_for_logistic_losses() {
    all(|r| r.problem == Kind::Log);
}

#[test]
fn all_other_rows_repeat() {
    all(|r| r.problem == Kind::Lin && steps(r) != 5000);
}
