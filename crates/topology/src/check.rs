//! Proof that a topology's rounds are sound: nobody waits in vain, and averages are kept.

use crate::{
    error::{Side, TopologyError, named},
    facts::rounds_in_period,
    mixing::{Sparse, rounds, unreached},
};
use gaggle_core::{Rank, Topology};

/// How far a sum of weights may be from one.
pub(crate) const TOLERANCE: f64 = 1e-12;

/// Checks every rank and every round of one period.
///
/// Peers are members, not oneself and listed once; rank r lists j in `from` exactly where j lists r in `to`; weights are finite and not negative; rows and columns sum to one within 1e-12; and over the period everybody reaches everybody by its edges, taken together (a round in which a rank keeps nothing of its own can pass on less than that).
/// A topology that never repeats is looked at for its first [`crate::NEVER_REPEATS`] rounds.
///
/// # Errors
/// The first fault found, with rank and round.
pub fn check(topology: &dyn Topology) -> Result<(), TopologyError> {
    check_rounds(topology)?;
    let period = rounds_in_period(topology);
    let mut mixings = Vec::new();
    for t in 0..period {
        let mixing = Sparse::of(topology, t);
        check_sums(topology, t, &mixing)?;
        mixings.push(mixing);
    }
    match unreached(&mixings) {
        Some((from, to)) => Err(TopologyError::Disconnected {
            topology: named(topology),
            from: Rank(from as u32),
            to: Rank(to as u32),
            rounds: period,
        }),
        None => Ok(()),
    }
}

/// The part that does not look at weights' sums: edges have two ends, weights are weights.
pub(crate) fn check_rounds(topology: &dyn Topology) -> Result<(), TopologyError> {
    for t in 0..rounds_in_period(topology) {
        let all = rounds(topology, t);
        let from: Vec<Vec<Rank>> = all.iter().map(|r| sorted(&r.from)).collect();
        let to: Vec<Vec<Rank>> = all.iter().map(|r| sorted(&r.to)).collect();
        for (r, round) in all.iter().enumerate() {
            let at = Place {
                topology,
                t,
                rank: Rank(r as u32),
            };
            at.check_list(&round.from, &from[r], &to, Side::From)?;
            at.check_list(&round.to, &to[r], &from, Side::To)?;
            at.check_weight(at.rank, round.keep)?;
        }
    }
    Ok(())
}

fn sorted(list: &[(Rank, f64)]) -> Vec<Rank> {
    let mut ranks: Vec<Rank> = list.iter().map(|(r, _)| *r).collect();
    ranks.sort();
    ranks
}

fn check_sums(topology: &dyn Topology, t: u64, mixing: &Sparse) -> Result<(), TopologyError> {
    for i in 0..mixing.world() {
        let sum = mixing.row_sum(i);
        if (sum - 1.0).abs() > TOLERANCE {
            return Err(TopologyError::RowSum {
                topology: named(topology),
                round: t,
                rank: Rank(i as u32),
                sum,
            });
        }
    }
    for (j, sum) in mixing.column_sums().into_iter().enumerate() {
        if (sum - 1.0).abs() > TOLERANCE {
            return Err(TopologyError::ColumnSum {
                topology: named(topology),
                round: t,
                rank: Rank(j as u32),
                sum,
            });
        }
    }
    Ok(())
}

/// Where in the topology a check stands.
struct Place<'a> {
    topology: &'a dyn Topology,
    t: u64,
    rank: Rank,
}

impl Place<'_> {
    /// `own` is the list sorted; `others` are the lists of the other side, by rank, sorted.
    fn check_list(
        &self,
        list: &[(Rank, f64)],
        own: &[Rank],
        others: &[Vec<Rank>],
        side: Side,
    ) -> Result<(), TopologyError> {
        let twice = own.windows(2).find(|w| w[0] == w[1]).map(|w| w[0]);
        if let Some(peer) = twice {
            return Err(self.bad_peer(peer, side, "there already"));
        }
        for &(peer, weight) in list {
            if peer == self.rank {
                return Err(self.bad_peer(peer, side, "itself"));
            }
            let Some(other) = others.get(peer.idx()) else {
                return Err(self.bad_peer(peer, side, "not a member"));
            };
            if other.binary_search(&self.rank).is_err() {
                return Err(TopologyError::OneSided {
                    topology: named(self.topology),
                    round: self.t,
                    rank: self.rank,
                    peer,
                    side,
                });
            }
            self.check_weight(peer, weight)?;
        }
        Ok(())
    }

    fn bad_peer(&self, peer: Rank, side: Side, why: &'static str) -> TopologyError {
        TopologyError::Peer {
            topology: named(self.topology),
            round: self.t,
            rank: self.rank,
            peer,
            side,
            why,
        }
    }

    fn check_weight(&self, peer: Rank, weight: f64) -> Result<(), TopologyError> {
        if weight.is_finite() && weight >= 0.0 {
            return Ok(());
        }
        Err(TopologyError::Weight {
            topology: named(self.topology),
            round: self.t,
            rank: self.rank,
            peer,
            weight,
        })
    }
}
