//! One round of all ranks together, as a sparse matrix.

use gaggle_core::{Rank, Round, SparseMatrix, Topology};

/// W of one round: y\[i\] = keep\[i\]·x\[i\] + Σ w·x\[j\] over `rows[i]`, which are sorted by j.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sparse {
    pub keep: Vec<f64>,
    pub rows: Vec<Vec<(usize, f64)>>,
}

impl Sparse {
    /// Round `t` of `topology`. An edge counts where both ends list it; its weight is the receiver's times the sender's.
    pub fn of(topology: &dyn Topology, t: u64) -> Sparse {
        let rounds = rounds(topology, t);
        // What comes to each rank, by sender, so that an edge of the receiver finds its other end quickly.
        let mut arriving = vec![Vec::new(); rounds.len()];
        for (j, round) in rounds.iter().enumerate() {
            for &(receiver, b) in &round.to {
                if let Some(list) = arriving.get_mut(receiver.idx()) {
                    list.push((j, b));
                }
            }
        }
        let row = |(i, round): (usize, &Round)| {
            let weighed = round.from.iter().filter_map(|&(sender, a)| {
                let at = arriving[i].binary_search_by_key(&sender.idx(), |e| e.0);
                Some((sender.idx(), a * arriving[i][at.ok()?].1))
            });
            let mut row: Vec<_> = weighed.collect();
            row.sort_by_key(|e| e.0);
            row
        };
        Sparse {
            keep: rounds.iter().map(|r| r.keep).collect(),
            rows: rounds.iter().enumerate().map(row).collect(),
        }
    }

    pub fn world(&self) -> usize {
        self.keep.len()
    }

    /// y = W·x.
    pub fn apply(&self, x: &[f64], y: &mut [f64]) {
        for (i, row) in self.rows.iter().enumerate() {
            y[i] = self.keep[i] * x[i] + row.iter().map(|&(j, w)| w * x[j]).sum::<f64>();
        }
    }

    /// y = Wᵀ·x.
    pub fn apply_transposed(&self, x: &[f64], y: &mut [f64]) {
        for (i, keep) in self.keep.iter().enumerate() {
            y[i] = keep * x[i];
        }
        for (i, row) in self.rows.iter().enumerate() {
            for &(j, w) in row {
                y[j] += w * x[i];
            }
        }
    }

    /// W, for those that only multiply by it.
    pub fn matrix(&self) -> SparseMatrix {
        SparseMatrix::new(self.world(), |i| {
            std::iter::once((i, self.keep[i])).chain(self.rows[i].iter().copied())
        })
    }

    /// Directed ones with a weight that is not 0.
    pub fn n_edges(&self) -> usize {
        let edges = self.rows.iter().flatten();
        edges.filter(|(_, w)| *w != 0.0).count()
    }

    pub fn row_sum(&self, i: usize) -> f64 {
        self.keep[i] + self.rows[i].iter().map(|(_, w)| w).sum::<f64>()
    }

    pub fn column_sums(&self) -> Vec<f64> {
        let mut sums = vec![0.0; self.world()];
        self.apply_transposed(&vec![1.0; self.world()], &mut sums);
        sums
    }

    pub fn is_symmetric(&self, tolerance: f64) -> bool {
        let back = |i: usize, j: usize| {
            let at = self.rows[j].binary_search_by_key(&i, |e| e.0);
            at.map_or(0.0, |at| self.rows[j][at].1)
        };
        let mut edges = self.rows.iter().enumerate();
        edges.all(|(i, row)| {
            row.iter()
                .all(|&(j, w)| (w - back(i, j)).abs() <= tolerance)
        })
    }
}

/// Every rank's part of round `t`.
pub(crate) fn rounds(topology: &dyn Topology, t: u64) -> Vec<Round> {
    let part = |r: usize| {
        let mut round = Round::default();
        topology.round(Rank(r as u32), t, &mut round);
        round
    };
    (0..topology.world()).map(part).collect()
}

/// The edges of round `t` as (sender, receiver, weight), by receiver and then by sender: what there is to draw. Own weights are not edges.
pub fn edges(topology: &dyn Topology, t: u64) -> Vec<(Rank, Rank, f64)> {
    let mixing = Sparse::of(topology, t);
    let mut all = Vec::new();
    for (i, row) in mixing.rows.iter().enumerate() {
        let receiver = Rank(i as u32);
        all.extend(row.iter().map(|&(j, w)| (Rank(j as u32), receiver, w)));
    }
    all
}

/// How far apart in time what one rank has reaches all ranks: [`gaggle_core::MixingFacts::cycle`].
///
/// In the graph of (round, rank) with an edge for each weight above 0, from round t to round t + 1 and from the last to the first: 0 unless it is strongly connected, otherwise the greatest common divisor of the lengths of its closed walks, in periods. Levels of a search give it (Denardo 1977, "Periods of connected networks").
pub(crate) fn cycle(mixings: &[Sparse]) -> u64 {
    let (period, n) = (mixings.len(), mixings.first().map_or(0, Sparse::world));
    if n == 0 {
        return 1;
    }
    if mixings.iter().all(|m| m.keep.iter().all(|w| *w > 0.0)) {
        // Everybody may wait for any edge, and closed walks of one period are among the others.
        return u64::from(unreached(mixings).is_none());
    }
    let nodes = period * n;
    let (mut ahead, mut back) = (vec![Vec::new(); nodes], vec![Vec::new(); nodes]);
    for (t, mixing) in mixings.iter().enumerate() {
        let after = (t + 1) % period * n;
        for (i, row) in mixing.rows.iter().enumerate() {
            let own = std::iter::once((i, mixing.keep[i]));
            for (j, _) in own.chain(row.iter().copied()).filter(|(_, w)| *w > 0.0) {
                ahead[t * n + j].push((after + i) as u32);
                back[after + i].push((t * n + j) as u32);
            }
        }
    }
    let levels = levels_from_first(&ahead);
    if levels.contains(&u64::MAX) || levels_from_first(&back).contains(&u64::MAX) {
        return 0;
    }
    let mut length = 0;
    for (from, list) in ahead.iter().enumerate() {
        for to in list {
            length = gcd(length, (levels[from] + 1).abs_diff(levels[*to as usize]));
        }
    }
    length / period as u64
}

/// The greatest common divisor; of 0 and another number the other.
pub(crate) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Steps to each node from node 0; `u64::MAX` where no way leads.
fn levels_from_first(next: &[Vec<u32>]) -> Vec<u64> {
    let mut levels = vec![u64::MAX; next.len()];
    let mut front = vec![0_u32];
    for level in 0.. {
        front.retain(|node| {
            levels
                .get_mut(*node as usize)
                .is_some_and(|l| std::mem::replace(l, level.min(*l)) == u64::MAX)
        });
        if front.is_empty() {
            break;
        }
        front = front
            .iter()
            .flat_map(|node| &next[*node as usize])
            .copied()
            .collect();
    }
    levels
}

/// Who is never reached when the edges of `mixings` are used over and over: (source, unreached), or `None` where everybody reaches everybody.
///
/// Strongly connected means: rank 0 reaches all, and all reach rank 0.
pub(crate) fn unreached(mixings: &[Sparse]) -> Option<(usize, usize)> {
    let world = mixings.first().map_or(0, Sparse::world);
    let (mut ahead, mut back) = (vec![Vec::new(); world], vec![Vec::new(); world]);
    for mixing in mixings {
        for (i, row) in mixing.rows.iter().enumerate() {
            for &(j, _) in row.iter().filter(|(_, w)| *w > 0.0) {
                ahead[j].push(i as u32);
                back[i].push(j as u32);
            }
        }
    }
    if let Some(to) = missing_from_search(&ahead) {
        return Some((0, to));
    }
    missing_from_search(&back).map(|from| (from, 0))
}

/// Whether node 0 reaches all nodes.
pub(crate) fn reaches_all(next: &[Vec<u32>]) -> bool {
    missing_from_search(next).is_none()
}

/// The first node that a search from node 0 does not find.
fn missing_from_search(next: &[Vec<u32>]) -> Option<usize> {
    let mut seen = vec![false; next.len()];
    let mut stack = vec![0];
    while let Some(node) = stack.pop() {
        if let Some(s) = seen.get_mut(node as usize)
            && !std::mem::replace(s, true)
        {
            stack.extend(&next[node as usize]);
        }
    }
    seen.iter().position(|s| !s)
}
