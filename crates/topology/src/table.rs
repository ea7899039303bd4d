//! A topology that is written down: rounds, one after the other, over and over.

use crate::{
    check::check_rounds,
    error::{TopologyError, checked_world},
};
use gaggle_core::{Rank, Round, Topology};

/// Rounds that you state yourself, for every rank; after the last one the first comes again.
///
/// ```
/// use gaggle_core::{Form, Rank, Round};
/// use gaggle_topology::Table;
///
/// // Two ranks that swap a quarter of their values.
/// let pair = |peer: u32| Round {
///     from: vec![(Rank(peer), 0.25)],
///     to: vec![(Rank(peer), 1.0)],
///     keep: 0.75,
///     form: Form::Delta,
/// };
/// let table = Table::new("quarter", vec![vec![pair(1), pair(0)]])?;
/// gaggle_topology::check(&table)?;
/// # Ok::<(), gaggle_topology::TopologyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Table {
    name: String,
    world: usize,
    rounds: Vec<Vec<Round>>,
}

impl Table {
    /// `rounds[t][r]` is rank r's part of round t. The two ends of every edge must agree; whether sums and connectivity are right is for [`crate::check`] to say.
    ///
    /// # Errors
    /// No rounds, no ranks, rounds of different sizes, or edges that only one end knows.
    pub fn new(name: impl Into<String>, rounds: Vec<Vec<Round>>) -> Result<Table, TopologyError> {
        let name = name.into();
        let world = rounds.first().map_or(0, Vec::len);
        checked_world(&name, world)?;
        for (t, round) in rounds.iter().enumerate() {
            if round.len() != world {
                return Err(TopologyError::Shape {
                    topology: name,
                    round: t as u64,
                    got: round.len(),
                    want: world,
                });
            }
        }
        let table = Table {
            name,
            world,
            rounds,
        };
        check_rounds(&table)?;
        Ok(table)
    }
}

impl Topology for Table {
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
        let round = &self.rounds[(t % self.rounds.len() as u64) as usize][rank.idx()];
        out.from.clone_from(&round.from);
        out.to.clone_from(&round.to);
        out.keep = round.keep;
        out.form = round.form;
    }
}
