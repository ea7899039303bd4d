//! What a topology does and costs, for people who choose one.

use crate::{
    check::TOLERANCE,
    facts::{Rounds, rounds_in_period},
    rate::per_round,
};
use gaggle_core::{MixingFacts, Rank, Round, Topology};

/// Rounds that are measured one by one.
const SHOWN: usize = 8;

/// A topology's facts over one period, with its rates and costs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The name it has.
    pub name: String,
    /// What rules ask for.
    pub facts: MixingFacts,
    /// Whether the rounds come again after a period. Where not, the period is the number of rounds that were looked at.
    pub repeats: bool,
    /// ‖W − J‖₂ of the first eight rounds: how much of the worst disagreement each alone leaves.
    pub rounds: Vec<f64>,
    /// Rounds from the first on after which all have exactly the mean (within 1e-12), where that is within a period and comes again.
    pub exact_after: Option<u64>,
    /// Messages that a rank sends per round, on average over ranks and rounds. A message is the whole vector.
    pub messages: f64,
    /// ρ per round where rounds never repeat.
    rate: f64,
    /// The most that any rank sends or receives in any round.
    pub most_messages: usize,
}

impl Report {
    /// Rows and columns sum to one: averages are kept, and so is agreement.
    pub fn is_doubly_stochastic(&self) -> bool {
        self.facts.row_stochastic && self.facts.column_stochastic
    }

    /// ρ per round: the geometric mean over a period; 0 where a period leaves nothing. Of rounds that never repeat, where those looked at leave nothing by chance, √λ_max(E\[WᵀW\] − J).
    pub fn contraction_per_round(&self) -> f64 {
        match self.exact_after {
            _ if !self.repeats => self.rate,
            Some(_) => 0.0,
            None => self.facts.contraction.powf(1.0 / self.facts.period as f64),
        }
    }

    /// Bytes that a rank sends per round on average, for a vector of `bytes`.
    pub fn bytes_per_round(&self, bytes: u64) -> f64 {
        self.messages * bytes as f64
    }

    /// Vectors that a rank sends until at most `left` of the worst disagreement is there, in whole periods where there are any; 0 for a world of one, infinite for a topology that does not get there.
    pub fn messages_until(&self, left: f64) -> f64 {
        if self.facts.world <= 1 {
            return 0.0;
        }
        if let Some(rounds) = self.exact_after {
            return rounds as f64 * self.messages;
        }
        if self.facts.contraction >= 1.0 - TOLERANCE {
            return f64::INFINITY;
        }
        let rounds = match self.repeats {
            true => {
                let periods = left.ln() / self.facts.contraction.ln();
                periods.ceil().max(1.0) * self.facts.period as f64
            }
            false => (left.ln() / self.rate.ln()).ceil().max(1.0),
        };
        rounds * self.messages
    }

    /// What a user should know before training with it; empty for a topology without faults.
    pub fn warnings(&self) -> Vec<String> {
        let facts = &self.facts;
        let mut all = Vec::new();
        match (facts.row_stochastic, facts.column_stochastic) {
            (true, false) => all.push("columns do not sum to one: plain averaging drifts towards the ranks that are heard more; take Metropolis weights, or push-sum with push weights".into()),
            (false, true) => all.push("rows do not sum to one: these are push weights, for push-sum, which divides by the weight that comes along".into()),
            (false, false) => all.push("neither rows nor columns sum to one: no averaging keeps anything with these weights".into()),
            (true, true) => {}
        }
        if !facts.connected {
            all.push(format!(
                "in {} rounds not everybody reaches everybody: there is no consensus",
                facts.period
            ));
        }
        all
    }
}

/// Measures `topology` over one period (the first [`crate::NEVER_REPEATS`] rounds of one that never repeats).
///
/// Cost: as [`facts`](crate::facts), once more for each of eight rounds where there are several; topologies whose ranks all do the same at the same distances cost n² per round in simple operations, whatever their number.
pub fn report(topology: &dyn Topology) -> Report {
    let rounds = Rounds::of(topology);
    let n = topology.world();
    let (mut sent, mut most) = (0, 0);
    let mut round = Round::default();
    let period = rounds_in_period(topology);
    let repeats = topology.period().is_some();
    for t in 0..period {
        for rank in 0..n {
            topology.round(Rank(rank as u32), t, &mut round);
            sent += round.to.len();
            most = most.max(round.to.len()).max(round.from.len());
        }
    }
    let facts = rounds.facts();
    Report {
        name: topology.name().into(),
        rate: per_round(&rounds, facts.contraction),
        rounds: match rounds.len() {
            1 => vec![facts.contraction],
            _ => rounds.contractions(SHOWN),
        },
        facts,
        repeats,
        // What a random product comes to after many rounds is no promise.
        exact_after: repeats.then(|| rounds.exact_after()).flatten(),
        messages: sent as f64 / (period as f64 * n as f64),
        most_messages: most,
    }
}
