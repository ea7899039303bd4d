//! The graphs of the table, by their matrices.

use gaggle_core::{Form, Rank, Round, Topology};

/// Who averages with whom, round by round, as dense matrices: receiver's row, sender's column.
#[derive(Clone, Debug)]
pub struct Graph {
    name: String,
    world: usize,
    rounds: Vec<Vec<f64>>,
}

impl Graph {
    /// The graph called `name` in the table, on `n` ranks.
    ///
    /// `ring`, `static-exp` and `one-peer-exp` are as everywhere; `push` and `pull` are the directed graph i → i + 1, 0 → 4, 0 → 2, 3 → 7 with the senders' shares and the receivers' averages; `pairs` are i and i xor 2^(t mod 3); `base-2` is that of six ranks; `chain` and `tree` have both directions, with parents (i − 1)/2.
    ///
    /// # Errors
    /// There is no such graph.
    pub fn by_name(name: &str, n: usize) -> Result<Graph, String> {
        let tau = n.next_power_of_two().trailing_zeros().max(1) as usize;
        let rounds: Vec<Vec<f64>> = match name {
            "ring" => vec![pull(n, |i, j| (i + 1) % n == j || (j + 1) % n == i)],
            "static-exp" => vec![pull(n, |i, j| (0..tau).any(|m| (i + n - j) % n == 1 << m))],
            "one-peer-exp" => (0..tau)
                .map(|m| pull(n, |i, j| (i + n - j) % n == (1 << m) % n))
                .collect(),
            "full" => vec![vec![1.0 / n as f64; n * n]],
            "pull" => vec![pull(n, |i, j| directed(n, j, i))],
            "push" => vec![transposed(n, &pull(n, |i, j| directed(n, i, j)))],
            "pairs" => (0..3).map(|m| pull(n, |i, j| i ^ j == 1 << m)).collect(),
            "base-2" if n == 6 => {
                let round = |pairs: &[(usize, usize)], w: f64| {
                    let paired = |i, j| pairs.contains(&(i, j)) || pairs.contains(&(j, i));
                    weighted(n, |i, j| if paired(i, j) { w } else { 0.0 })
                };
                let first = round(&[(0, 1), (3, 4)], 0.5);
                vec![
                    first.clone(),
                    round(&[(1, 2), (4, 5)], 2.0 / 3.0),
                    first,
                    round(&[(0, 3), (1, 4), (2, 5)], 0.5),
                ]
            }
            "chain" => vec![weighted(
                n,
                |i, j| if i.abs_diff(j) == 1 { 0.3 } else { 0.0 },
            )],
            "tree" => {
                let parent = |i: usize, j: usize| i > 0 && (i - 1) / 2 == j;
                vec![weighted(n, |i, j| {
                    if parent(i, j) || parent(j, i) {
                        0.2
                    } else {
                        0.0
                    }
                })]
            }
            _ => return Err(format!("there is no graph {name:?} of {n} ranks")),
        };
        Ok(Graph {
            name: name.into(),
            world: n,
            rounds,
        })
    }

    /// What receiver `i` puts on sender `j` in round `t`.
    pub fn weight(&self, t: u64, i: usize, j: usize) -> f64 {
        let at = t as usize % self.rounds.len();
        self.rounds[at][i * self.world + j]
    }
}

impl Topology for Graph {
    fn name(&self) -> &str {
        &self.name
    }
    fn world(&self) -> usize {
        self.world
    }
    fn period(&self) -> Option<u64> {
        Some(self.rounds.len() as u64)
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        let (i, weight) = (rank.idx(), |i, j| self.weight(t, i, j));
        let others = || (0..self.world).filter(|j| *j != i);
        let list = |of: &dyn Fn(usize) -> f64| -> Vec<(Rank, f64)> {
            let all = others().map(|j| (Rank(j as u32), of(j)));
            all.filter(|(_, w)| *w != 0.0).collect()
        };
        *out = Round {
            from: list(&|j| weight(i, j)),
            to: list(&|j| if weight(j, i) == 0.0 { 0.0 } else { 1.0 }),
            keep: weight(i, i),
            form: Form::Delta,
        };
    }
}

/// Edges of the directed graph.
fn directed(n: usize, from: usize, to: usize) -> bool {
    (from + 1) % n == to || matches!((from, to), (0, 4) | (0, 2) | (3, 7))
}

/// Each row puts equal weights on itself and those for which `takes(row, other)`.
fn pull(n: usize, takes: impl Fn(usize, usize) -> bool) -> Vec<f64> {
    let mut w = vec![0.0; n * n];
    for (i, row) in w.chunks_exact_mut(n).enumerate() {
        let taken = |j: &usize| *j == i || takes(i, *j);
        let share = 1.0 / (0..n).filter(taken).count() as f64;
        (0..n).filter(taken).for_each(|j| row[j] = share);
    }
    w
}

/// These weights, and what is left of one on the diagonal.
fn weighted(n: usize, weight: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let mut w = vec![0.0; n * n];
    for (i, row) in w.chunks_exact_mut(n).enumerate() {
        (0..n)
            .filter(|j| *j != i)
            .for_each(|j| row[j] = weight(i, j));
        row[i] = 1.0 - row.iter().sum::<f64>();
    }
    w
}

fn transposed(n: usize, w: &[f64]) -> Vec<f64> {
    (0..n * n).map(|at| w[at % n * n + at / n]).collect()
}
