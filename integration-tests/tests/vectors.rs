//! The tabulated trajectories of every method, eight ranks as threads over the real engine.
//!
//! The tables, with their origin and tolerances, are those that `gaggle-optim` checks over a dense matrix.

use gaggle::{
    Group,
    ddp::NeighbourMixer,
    optim::{
        Decentralised,
        vectors::{Problem, Row, STEPS, rows},
    },
    topology::by_name,
};

/// This rank's vector at each of the tabulated steps.
fn train(row: &Row, problem: &Problem, group: &Group) -> Vec<Vec<f64>> {
    let topology = by_name(row.graph.name(), group.size()).expect("a topology by that name");
    let mixer = NeighbourMixer::new(group.clone(), topology).expect("a mixer for it");
    let mut driver = Decentralised::new(row.rule(), Box::new(mixer), problem.d());
    let rank = group.rank().idx();
    let (mut x, mut g) = (vec![0.0; problem.d()], vec![0.0; problem.d()]);
    let mut seen = vec![];
    for k in 1..=STEPS[3] {
        driver.before_forward(row.lr(), &mut x).expect("begins");
        problem.gradient(rank, &x, &mut g);
        driver.step(row.lr(), &mut x, &g).expect("steps");
        if STEPS.contains(&k) {
            seen.push(x.clone());
        }
    }
    seen
}

#[test]
fn every_tabulated_method_runs_the_same_over_the_engine() {
    let mut wrong = vec![];
    for row in rows() {
        let problem = Problem::new(row.problem);
        let ranks =
            gaggle::local(problem.n(), |group| train(row, &problem, &group)).expect("eight ranks");
        for (i, k) in STEPS.into_iter().enumerate() {
            let x: Vec<Vec<f64>> = ranks.iter().map(|seen| seen[i].clone()).collect();
            if let Err(e) = row.verify(&problem, k, &x) {
                wrong.push(format!("{} at step {k}: {e}", row.label()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} rows:\n{}",
        wrong.len(),
        rows().len(),
        wrong.join("\n")
    );
}
