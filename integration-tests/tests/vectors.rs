//! The tabulated trajectories of every method, to their last step, six or eight ranks as threads over the real engine.
//!
//! The tables, with their origin and tolerances, are those that `gaggle-optim` checks over a dense matrix.
//! A world goes through many rows at once, side by side on lanes of their own: its threads wait for each other once per step, not once per step and row.

use gaggle::{
    Group, Lane,
    core::{At, Topology},
    ddp::NeighbourMixer,
    optim::{
        Decentralised,
        vectors::{Kind, Problem, Row, rows},
    },
    topology::by_name,
};

/// Rows that a world goes through at once.
const ABREAST: usize = 64;
/// Lanes for each: more than any rule has messages at a time.
const LANES: u32 = 16;

/// One row on one rank.
struct Run<'a> {
    row: &'a Row,
    problem: &'a Problem,
    /// The steps of which the row says something.
    steps: Vec<u64>,
    driver: Decentralised<f64>,
    x: Vec<f64>,
    g: Vec<f64>,
    /// This rank's vector at each of those steps.
    seen: Vec<Vec<f64>>,
}

impl<'a> Run<'a> {
    /// The `i`th of those that run side by side.
    fn new(i: usize, row: &'a Row, problem: &'a Problem, group: &Group) -> Run<'a> {
        // Those that users can name are taken by name.
        let topology: Box<dyn Topology> = match &row.graph[..] {
            name @ ("ring" | "static-exp" | "one-peer-exp") => {
                by_name(name, group.size()).expect("a topology by that name")
            }
            _ => Box::new(row.topology()),
        };
        let first = NeighbourMixer::<f64>::FIRST_LANE.0 + LANES * i as u32;
        let mixer = NeighbourMixer::on_lanes(group.clone(), topology, Lane(first));
        let mixer = mixer.expect("a mixer for it");
        let d = problem.d();
        Run {
            row,
            problem,
            steps: row.steps(),
            driver: Decentralised::unchecked(row.rule(), Box::new(mixer), d),
            x: vec![0.0; d],
            g: vec![0.0; d],
            seen: vec![],
        }
    }

    fn last(&self) -> u64 {
        self.steps.last().copied().unwrap_or(0)
    }

    /// Whether there is something to do at this point of the step.
    fn comes_to(&self, at: At) -> bool {
        at != At::AfterMean || self.driver.is_open()
    }

    fn begin(&mut self, rank: usize, at: At) {
        if at == At::AfterGradient {
            self.problem.gradient(rank, &self.x, &mut self.g);
        }
        let g = if at == At::BeforeForward {
            &[]
        } else {
            &self.g[..]
        };
        let begun = self.driver.begin(at, self.row.lr(), &mut self.x, g);
        begun.unwrap_or_else(|e| panic!("{}: {e}", self.row.label()));
    }

    fn end(&mut self, at: At) {
        let g = if at == At::BeforeForward {
            &[]
        } else {
            &self.g[..]
        };
        let ended = self.driver.end(at, &mut self.x, g);
        ended.unwrap_or_else(|e| panic!("{}: {e}", self.row.label()));
    }

    fn look(&mut self) {
        if self.steps.contains(&self.driver.steps()) {
            self.seen.push(self.row.look(&mut self.driver, &self.x));
        }
    }
}

/// This rank's vectors at each step that each row speaks of.
fn train(rows: &[&Row], problems: &[Problem], group: &Group) -> Vec<Vec<Vec<f64>>> {
    let rank = group.rank().idx();
    let each = rows.iter().zip(problems).enumerate();
    let mut runs: Vec<Run<'_>> = each
        .map(|(i, (row, problem))| Run::new(i, row, problem, group))
        .collect();
    for k in 1..=runs.iter().map(Run::last).max().unwrap_or(0) {
        for at in At::ALL {
            let mut now: Vec<&mut Run<'_>> = runs
                .iter_mut()
                .filter(|run| k <= run.last() && run.comes_to(at))
                .collect();
            now.iter_mut().for_each(|run| run.begin(rank, at));
            now.iter_mut().for_each(|run| run.end(at));
        }
        runs.iter_mut()
            .filter(|run| k <= run.last())
            .for_each(Run::look);
    }
    runs.into_iter().map(|run| run.seen).collect()
}

/// What differs from the table, over all rows that are wanted.
fn all(wanted: impl Fn(&Row) -> bool) {
    let mine: Vec<&Row> = rows().iter().filter(|r| wanted(r)).collect();
    assert!(!mine.is_empty());
    let mut wrong = vec![];
    // Those of one length side by side.
    let mut sorted = mine.clone();
    sorted.sort_by_key(|row| (row.ranks, row.steps().last().copied()));
    for world in sorted.chunk_by(|a, b| a.ranks == b.ranks) {
        for rows in world.chunks(ABREAST) {
            let problem = |row: &&Row| Problem::of(row.problem, row.ranks);
            let problems: Vec<Problem> = rows.iter().map(problem).collect();
            let ranks = gaggle::local(rows[0].ranks, |group| train(rows, &problems, &group));
            let ranks = ranks.expect("all ranks");
            for (r, (row, problem)) in rows.iter().zip(&problems).enumerate() {
                for (i, k) in row.steps().into_iter().enumerate() {
                    let x: Vec<Vec<f64>> = ranks.iter().map(|seen| seen[r][i].clone()).collect();
                    wrong.extend(row.verify(problem, k, &x).err());
                }
            }
        }
    }
    let n = wrong.len();
    assert!(
        n == 0,
        "{n} steps of {} rows:\n{}",
        mine.len(),
        wrong.join("\n")
    );
}

// In parts, so that none takes long.
fn is_long(row: &Row) -> bool {
    row.steps().last().is_some_and(|k| *k >= 5000)
}

#[test]
fn rows_on_the_ring_repeat_over_the_engine() {
    all(|r| is_long(r) && r.problem == Kind::Lin && r.graph == "ring");
}

#[test]
fn rows_on_directed_graphs_repeat_over_the_engine() {
    all(|r| is_long(r) && r.problem == Kind::Lin && r.graph != "ring");
}

#[test]
fn rows_of_logistic_losses_repeat_over_the_engine() {
    all(|r| is_long(r) && r.problem == Kind::Log);
}

#[test]
fn all_other_rows_repeat_over_the_engine() {
    all(|r| !is_long(r));
}
