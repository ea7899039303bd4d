//! The tabulated trajectories of every method, six or eight ranks as threads over the real engine.
//!
//! The tables, with their origin and tolerances, are those that `gaggle-optim` checks over a dense matrix.

use gaggle::{
    Group,
    core::Topology,
    ddp::NeighbourMixer,
    optim::{
        Decentralised,
        vectors::{Problem, Row, rows},
    },
    topology::by_name,
};

/// The tabulated steps that are looked at here: later ones say the same, and take long.
fn looked_at(row: &Row) -> Vec<u64> {
    row.steps().into_iter().filter(|k| *k <= 1000).collect()
}

/// This rank's vector at each of these steps.
fn train(row: &Row, problem: &Problem, group: &Group) -> Vec<Vec<f64>> {
    // Those that users can name are taken by name.
    let topology: Box<dyn Topology> = match &row.graph[..] {
        name @ ("ring" | "static-exp" | "one-peer-exp") => {
            by_name(name, group.size()).expect("a topology by that name")
        }
        _ => Box::new(row.topology()),
    };
    let mixer = NeighbourMixer::new(group.clone(), topology).expect("a mixer for it");
    let mut driver = Decentralised::unchecked(row.rule(), Box::new(mixer), problem.d());
    let rank = group.rank().idx();
    let (mut x, mut g) = (vec![0.0; problem.d()], vec![0.0; problem.d()]);
    let mut seen = vec![];
    let steps = looked_at(row);
    for k in 1..=steps.last().copied().unwrap_or(0) {
        driver.before_forward(row.lr(), &mut x).expect("begins");
        problem.gradient(rank, &x, &mut g);
        driver.step(row.lr(), &mut x, &g).expect("steps");
        if steps.contains(&k) {
            seen.push(row.look(&mut driver, &x));
        }
    }
    seen
}

#[test]
fn every_tabulated_method_runs_the_same_over_the_engine() {
    let mut wrong = vec![];
    for row in rows() {
        let problem = Problem::of(row.problem, row.ranks);
        let ranks =
            gaggle::local(problem.n(), |group| train(row, &problem, &group)).expect("all ranks");
        for (i, k) in looked_at(row).into_iter().enumerate() {
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
