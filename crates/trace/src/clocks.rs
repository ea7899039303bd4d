//! How the clocks of different hosts differ, as far as the operations themselves tell.
//!
//! An operation that needs a rank's contribution cannot end anywhere before that rank has called it: finish on A + o_A ≥ start on B + o_B, so o_B − o_A is at most finish − start.
//! All such bounds together are a system of difference constraints; the shortest paths between clocks are its tightest bounds (Cormen et al., Introduction to Algorithms, section 24.4).
//! The estimate is the middle between the bounds of both directions, its uncertainty half their distance.
//! Clocks are taken to run equally fast.

use crate::job::{Calls, RankTrace};
use crate::waits::needs;
use std::collections::BTreeMap;

/// What an offset rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Basis {
    /// It is the clock that the others are compared with.
    Reference,
    /// Bounds in both directions.
    Bounds,
    /// Bounds in both directions that contradict each other: the clocks run at different speeds, or one was set.
    Contradiction,
    /// No operation bounds it in both directions, so the hosts' wall clocks are believed.
    WallClock,
}

/// One host's clock.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ClockFit {
    /// Which clock: [`Header::clock`](crate::Header::clock).
    pub id: u64,
    /// The host's name.
    pub host: String,
    /// Nanoseconds to be added to its times for those of the reference.
    pub offset: i64,
    /// By how many nanoseconds the offset may be wrong; `None` where nothing says.
    pub uncertainty: Option<u64>,
    /// What it rests on.
    pub basis: Basis,
}

/// More than any honest difference; sums of a few stay far from the range's end.
const FAR: i128 = 1 << 90;

/// Fits the clocks of these ranks, the first rank's being the reference. Returns them, and each rank's.
pub(crate) fn fit(ranks: &[RankTrace], calls: &Calls) -> (Vec<ClockFit>, Vec<usize>) {
    let mut clocks: Vec<ClockFit> = vec![];
    let mut walls: Vec<i128> = vec![];
    let mut of_rank = vec![];
    for rank in ranks {
        let header = &rank.recording.header;
        let known = clocks.iter().position(|c| c.id == header.clock);
        of_rank.push(known.unwrap_or(clocks.len()));
        if known.is_none() {
            walls.push(i128::from(header.wall_start) - i128::from(header.start));
            clocks.push(ClockFit {
                id: header.clock,
                host: header.host.clone(),
                offset: 0,
                uncertainty: Some(0),
                basis: Basis::Reference,
            });
        }
    }
    if clocks.len() > 1 {
        let bounds = bounds(ranks, calls, &of_rank, clocks.len());
        for (c, clock) in clocks.iter_mut().enumerate().skip(1) {
            // o_c − o_0 is at most the first and at least minus the second.
            settle(clock, bounds[0][c], bounds[c][0], walls[c] - walls[0]);
        }
    }
    (clocks, of_rank)
}

fn settle(clock: &mut ClockFit, most: i128, minus_least: i128, by_wall: i128) {
    if most >= FAR || minus_least >= FAR {
        // One bound may still correct the wall clock.
        let offset = if most < FAR {
            by_wall.min(most)
        } else if minus_least < FAR {
            by_wall.max(-minus_least)
        } else {
            by_wall
        };
        clock.offset = narrow(offset);
        clock.uncertainty = None;
        clock.basis = Basis::WallClock;
        return;
    }
    let width = most + minus_least;
    clock.offset = narrow((most - minus_least).div_euclid(2));
    clock.uncertainty = Some(u64::try_from((width.abs() + 1) / 2).unwrap_or(u64::MAX));
    clock.basis = if width < 0 {
        Basis::Contradiction
    } else {
        Basis::Bounds
    };
}

fn narrow(x: i128) -> i64 {
    x.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

/// `bounds[a][b]`: o_b − o_a is at most that.
fn bounds(ranks: &[RankTrace], calls: &Calls, of_rank: &[usize], n: usize) -> Vec<Vec<i128>> {
    let mut bounds = vec![vec![FAR; n]; n];
    for (i, row) in bounds.iter_mut().enumerate() {
        row[i] = 0;
    }
    for called in calls.values() {
        let op = |(r, o): (usize, usize)| &ranks[r].recording.operations[o];
        let starts: BTreeMap<u32, (usize, u64)> = called
            .iter()
            .map(|c| {
                (
                    ranks[c.0].recording.header.rank.0,
                    (of_rank[c.0], op(*c).started),
                )
            })
            .collect();
        for end in called {
            let a = of_rank[end.0];
            let ended = op(*end);
            let (Some(finished), None, false) = (ended.finished, &ended.failure, ended.torn) else {
                continue;
            };
            for needed in needs(&ranks[end.0], ended, true) {
                let Some((b, started)) = starts.get(&needed.0).copied().filter(|(b, _)| *b != a)
                else {
                    continue;
                };
                let most = i128::from(finished) - i128::from(started);
                bounds[a][b] = bounds[a][b].min(most);
            }
        }
    }
    for k in 0..n {
        for i in 0..n {
            for j in 0..n {
                let through = bounds[i][k] + bounds[k][j];
                if bounds[i][k] < FAR && bounds[k][j] < FAR && through < bounds[i][j] {
                    bounds[i][j] = through;
                }
            }
        }
    }
    bounds
}
