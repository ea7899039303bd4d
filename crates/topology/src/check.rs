//! Proof that a topology's rounds are sound: nobody waits in vain, and averages are kept.

use crate::{
    error::{Side, TopologyError, named},
    facts::rounds_in_period,
    mixing::{Sparse, rounds, unreached},
};
use gaggle_core::{Rank, Round, Topology};

/// How far a sum of weights may be from one.
pub(crate) const TOLERANCE: f64 = 1e-12;

/// Checks every rank and every round of one period.
///
/// Peers are members, not oneself and listed once; rank r lists j in `from` exactly where j lists r in `to`; weights are finite and not negative; rows and columns sum to one within 1e-12; and over the period everybody reaches everybody.
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
        for (r, round) in all.iter().enumerate() {
            let at = Place {
                topology,
                t,
                rank: Rank(r as u32),
            };
            at.check_list(&all, &round.from, Side::From)?;
            at.check_list(&all, &round.to, Side::To)?;
            at.check_weight(at.rank, round.keep)?;
        }
    }
    Ok(())
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
    fn check_list(
        &self,
        all: &[Round],
        list: &[(Rank, f64)],
        side: Side,
    ) -> Result<(), TopologyError> {
        for (i, &(peer, weight)) in list.iter().enumerate() {
            let why = if peer == self.rank {
                Some("itself")
            } else if peer.idx() >= all.len() {
                Some("not a member")
            } else if list[..i].iter().any(|(p, _)| *p == peer) {
                Some("there already")
            } else {
                None
            };
            if let Some(why) = why {
                return Err(TopologyError::Peer {
                    topology: named(self.topology),
                    round: self.t,
                    rank: self.rank,
                    peer,
                    side,
                    why,
                });
            }
            let other = match side {
                Side::From => &all[peer.idx()].to,
                Side::To => &all[peer.idx()].from,
            };
            if !other.iter().any(|(p, _)| *p == self.rank) {
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
