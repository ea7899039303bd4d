//! The seam of topologies: rank and round in, neighbours and weights out.

use crate::{Rank, SparseMatrix};

/// How a neighbour average is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Form {
    /// x + Σ w(xⱼ − x): exact on equal inputs, for rows that sum to one (theory: delta form avoids the drift of bias-corrected methods). A row with another sum is computed in [`Form::Sum`], see [`Round::arithmetic`].
    #[default]
    Delta,
    /// s·x + Σ a·(b·xⱼ): whatever the weights are.
    Sum,
}

/// One rank's part of one round: y = keep·x + Σ from.weight · (sender's to.weight · xⱼ).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// In-neighbours and the receiver's weight a for each; no rank twice, none is oneself.
    pub from: Vec<(Rank, f64)>,
    /// Out-neighbours and the sender's weight b for each; no rank twice, none is oneself.
    pub to: Vec<(Rank, f64)>,
    /// Own weight.
    pub keep: f64,
    /// The arithmetic.
    pub form: Form,
}

impl Round {
    /// In which form the round is computed: as asked, but never in delta form where own weight and receiver's weights do not sum to one (to 10⁻⁶), since that form would not be the average that the weights describe.
    ///
    /// ```
    /// use gaggle_core::{Form, Rank, Round};
    ///
    /// let mut round = Round { from: vec![(Rank(1), 0.75)], keep: 0.25, ..Round::default() };
    /// assert_eq!(round.arithmetic(), Form::Delta);
    /// round.keep = 0.5;
    /// assert_eq!(round.arithmetic(), Form::Sum);
    /// ```
    pub fn arithmetic(&self) -> Form {
        let sum = self.from.iter().fold(self.keep, |sum, (_, w)| sum + w);
        match self.form {
            Form::Delta if (sum - 1.0).abs() <= 1e-6 => Form::Delta,
            _ => Form::Sum,
        }
    }
}

/// Who talks to whom, with what weight, in each round.
///
/// Pure: the same arguments give the same answer on every rank.
pub trait Topology: Send + Sync {
    /// The name that users type: `ring`, `one-peer-exp`.
    fn name(&self) -> &str;
    /// Number of ranks.
    fn world(&self) -> usize;
    /// After how many rounds it repeats; `None`: never.
    fn period(&self) -> Option<u64>;
    /// Clears and fills `out`; allocates nothing once `out` has grown.
    fn round(&self, rank: Rank, t: u64, out: &mut Round);
    /// How the rounds of one that never repeats are drawn, where there is a closed form for it; `None` elsewhere.
    fn drawn(&self) -> Option<Draw> {
        None
    }
}

/// How rounds are drawn at random, each apart from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Draw {
    /// Uniformly among all ways to pair the ranks off; each takes the mean with its partner. Of an odd number one is left alone.
    Matching,
}

/// What rules need to know of a topology to tell whether they are stable on it.
#[derive(Clone, Debug, PartialEq)]
pub struct MixingFacts {
    /// Number of ranks.
    pub world: usize,
    /// Rounds in the product that the facts describe.
    pub period: u64,
    /// Rows sum to one.
    pub row_stochastic: bool,
    /// Columns sum to one: averages are kept.
    pub column_stochastic: bool,
    /// Every round's matrix equals its transpose.
    pub symmetric: bool,
    /// Whoever starts with something reaches everybody within the period, over and over.
    pub connected: bool,
    /// ‖Π − J‖₂ of one period's product Π: how much of a disagreement is left after `period` rounds.
    pub contraction: f64,
    /// Smallest eigenvalue of the round matrix, for symmetric static topologies.
    pub lambda_min: Option<f64>,
    /// Whether it repeats after `period` rounds; otherwise these stand for all.
    pub repeats: bool,
    /// Whether its edges, the same in every round and each in both directions, are a tree over all ranks.
    pub tree: bool,
    /// How rounds that never repeat are drawn, where that is known.
    pub drawn: Option<Draw>,
    /// 1 where, over and over, what each rank has reaches all ranks at once: the product of the period's rounds is primitive, that is, strongly connected and aperiodic. c above 1: between c groups of ranks it only goes round, for ever. 0: some rank is never reached, or there is a round in which it hears of nobody, or nobody of it.
    pub cycle: u64,
    /// The first round in which some rank keeps nothing of its own, its weight on itself being 0, and the first such rank; `None`: all keep something in every round.
    pub keeps_nothing: Option<(u64, Rank)>,
    /// How disagreements move: for rules whose recursion is not stable on every topology.
    pub modes: Modes,
}

/// The disagreements of a topology, apart from each other as far as they can be told apart.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Modes {
    /// Not known.
    #[default]
    Unknown,
    /// All rounds have the same eigenvectors: for each of them that is no agreement, its eigenvalue (re, im) in each round of the period.
    Apart(Vec<Vec<(f64, f64)>>),
    /// One symmetric round: its eigenvalues other than that of agreement and 0 lie between these two.
    Between(f64, f64),
    /// The matrix W of each round in the period.
    Sparse(Vec<SparseMatrix>),
}

impl<T: Topology + ?Sized> Topology for Box<T> {
    fn name(&self) -> &str {
        (**self).name()
    }
    fn world(&self) -> usize {
        (**self).world()
    }
    fn period(&self) -> Option<u64> {
        (**self).period()
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        (**self).round(rank, t, out);
    }
    fn drawn(&self) -> Option<Draw> {
        (**self).drawn()
    }
}
