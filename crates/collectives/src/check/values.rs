//! Symbolic values: expressions over the ranks' inputs, each stored once, so that equal expressions have equal numbers.

use crate::plan::Buf;
use gaggle_core::{Codec, Form, Rank};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};

/// A set of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct RankSet(SmallVec<[u64; 2]>);

impl RankSet {
    pub fn only(rank: usize) -> RankSet {
        let mut words: SmallVec<[u64; 2]> = SmallVec::from_elem(0, rank / 64 + 1);
        words[rank / 64] = 1 << (rank % 64);
        RankSet(words)
    }

    pub fn of(ranks: impl Iterator<Item = usize>) -> RankSet {
        ranks.fold(RankSet::default(), |all, r| all.union(&RankSet::only(r)))
    }

    fn word(&self, i: usize) -> u64 {
        self.0.get(i).copied().unwrap_or(0)
    }

    /// Word by word; trailing zeros are dropped, so that equal sets are equal values.
    fn zip(&self, other: &RankSet, f: impl Fn(u64, u64) -> u64) -> RankSet {
        let n = self.0.len().max(other.0.len());
        let mut words: SmallVec<[u64; 2]> =
            (0..n).map(|i| f(self.word(i), other.word(i))).collect();
        while words.last() == Some(&0) {
            words.pop();
        }
        RankSet(words)
    }

    pub fn union(&self, other: &RankSet) -> RankSet {
        self.zip(other, |a, b| a | b)
    }

    pub fn common(&self, other: &RankSet) -> RankSet {
        self.zip(other, |a, b| a & b)
    }

    pub fn without(&self, other: &RankSet) -> RankSet {
        self.zip(other, |a, b| a & !b)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn ranks(&self) -> Vec<Rank> {
        let in_word = |(i, word): (usize, &u64)| {
            let word = *word;
            (0..64)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| Rank((i * 64 + bit) as u32))
        };
        self.0.iter().enumerate().flat_map(in_word).collect()
    }
}

/// A value's number.
pub(super) type Value = u32;

/// An expression. `into` says in which buffer's type the result was rounded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Expr {
    /// Whatever was in the memory before.
    Undefined,
    /// What the caller of `rank` gave.
    Input { rank: u32, elem: u64 },
    /// Rounded from the accumulator to the element type.
    Rounded(Value),
    /// Encoded and decoded.
    Coded(Codec, Value),
    /// Multiplied by the sender's factor for out-neighbour `factor`.
    Scaled { value: Value, factor: u32 },
    /// Multiplied by its own weight.
    Weighed { value: Value, into: Buf },
    /// Two partial results.
    Combined {
        first: Value,
        second: Value,
        into: Buf,
    },
    /// All operands, in order.
    Folded {
        operands: SmallVec<[Value; 4]>,
        into: Buf,
    },
    /// The weighted mean of all operands, in order.
    Averaged {
        operands: SmallVec<[Value; 4]>,
        into: Buf,
    },
    /// Divided by the sum of its weights.
    Divided { value: Value, into: Buf },
    /// A neighbour average.
    Mixed {
        own: Value,
        operands: SmallVec<[Value; 4]>,
        form: Form,
        codec: Codec,
    },
}

/// How far a value is from the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Undefined,
    /// One rank's contribution, unweighed.
    Raw,
    /// Several, without weights.
    Plain,
    /// Σ wx.
    Weighted,
    /// Σ wx / Σ w.
    Mean,
    /// A neighbour average, or a part of one.
    Mixed,
}

/// What is known of a value.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub stage: Stage,
    /// Whose contributions it holds.
    pub who: RankSet,
    /// Which element of the caller's buffer they are.
    pub elem: u64,
    /// Whether it is representable in the element type.
    narrow: bool,
}

/// All values of a world.
pub(super) struct Values {
    facts: Vec<Facts>,
    numbers: HashMap<Expr, Value>,
    /// Values that are what a codec decodes.
    decoded: HashSet<(Codec, Value)>,
}

/// The value of memory that nothing was written to.
pub(super) const UNDEFINED: Value = 0;

impl Values {
    pub fn new() -> Values {
        let mut values = Values {
            facts: Vec::new(),
            numbers: HashMap::new(),
            decoded: HashSet::new(),
        };
        let facts = Facts {
            stage: Stage::Undefined,
            who: RankSet::default(),
            elem: 0,
            narrow: true,
        };
        values.intern(Expr::Undefined, || facts);
        values
    }

    pub fn facts(&self, value: Value) -> &Facts {
        &self.facts[value as usize]
    }

    fn intern(&mut self, expr: Expr, facts: impl FnOnce() -> Facts) -> Value {
        let next = self.facts.len() as Value;
        let value = *self.numbers.entry(expr).or_insert(next);
        if value == next {
            self.facts.push(facts());
        }
        value
    }

    pub fn input(&mut self, rank: usize, elem: u64) -> Value {
        let expr = Expr::Input {
            rank: rank as u32,
            elem,
        };
        self.intern(expr, || Facts {
            stage: Stage::Raw,
            who: RankSet::only(rank),
            elem,
            narrow: true,
        })
    }

    /// As it is after a conversion to the type of `buf`.
    pub fn converted(&mut self, value: Value, buf: Buf) -> Value {
        if buf == Buf::Scratch || self.facts(value).narrow {
            return value;
        }
        let facts = Facts {
            narrow: true,
            ..self.facts(value).clone()
        };
        self.intern(Expr::Rounded(value), || facts)
    }

    /// As it is after encoding and decoding; a second time changes nothing.
    pub fn coded(&mut self, value: Value, codec: Codec) -> Value {
        if codec == Codec::None || self.decoded.contains(&(codec, value)) {
            return value;
        }
        let facts = self.facts(value).clone();
        let coded = self.intern(Expr::Coded(codec, value), || facts);
        self.decoded.insert((codec, coded));
        coded
    }

    pub fn scaled(&mut self, value: Value, factor: u32) -> Value {
        let facts = Facts {
            stage: Stage::Mixed,
            ..self.facts(value).clone()
        };
        self.intern(Expr::Scaled { value, factor }, || facts)
    }

    pub fn weighed(&mut self, value: Value, into: Buf) -> Value {
        let facts = self.moved(value, Stage::Weighted, into);
        self.intern(Expr::Weighed { value, into }, || facts)
    }

    pub fn divided(&mut self, value: Value, into: Buf) -> Value {
        let facts = self.moved(value, Stage::Mean, into);
        self.intern(Expr::Divided { value, into }, || facts)
    }

    fn moved(&self, value: Value, stage: Stage, into: Buf) -> Facts {
        Facts {
            stage,
            narrow: into == Buf::User,
            ..self.facts(value).clone()
        }
    }

    pub fn combined(&mut self, first: Value, second: Value, stage: Stage, into: Buf) -> Value {
        let facts = self.joined(&[first, second], stage, into);
        let expr = Expr::Combined {
            first,
            second,
            into,
        };
        self.intern(expr, || facts)
    }

    pub fn folded(&mut self, operands: &[Value], into: Buf) -> Value {
        let facts = self.joined(operands, Stage::Plain, into);
        let expr = Expr::Folded {
            operands: operands.into(),
            into,
        };
        self.intern(expr, || facts)
    }

    pub fn averaged(&mut self, operands: &[Value], into: Buf) -> Value {
        let facts = self.joined(operands, Stage::Mean, into);
        let expr = Expr::Averaged {
            operands: operands.into(),
            into,
        };
        self.intern(expr, || facts)
    }

    pub fn mixed(&mut self, own: Value, operands: &[Value], form: Form, codec: Codec) -> Value {
        let facts = self.joined(&[own], Stage::Mixed, Buf::User);
        let expr = Expr::Mixed {
            own,
            operands: operands.into(),
            form,
            codec,
        };
        self.intern(expr, || facts)
    }

    fn joined(&self, operands: &[Value], stage: Stage, into: Buf) -> Facts {
        let who = operands
            .iter()
            .fold(RankSet::default(), |all, &o| all.union(&self.facts(o).who));
        Facts {
            stage,
            who,
            elem: self.facts(operands[0]).elem,
            narrow: into == Buf::User,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_expressions_are_one_value_and_order_matters() {
        let mut v = Values::new();
        let (a, b) = (v.input(0, 7), v.input(1, 7));
        let ab = v.folded(&[a, b], Buf::User);
        assert_eq!(v.folded(&[a, b], Buf::User), ab);
        assert_ne!(v.folded(&[b, a], Buf::User), ab);
        assert_ne!(v.folded(&[a, b], Buf::Scratch), ab);
        assert_eq!(v.facts(ab).who.ranks(), [Rank(0), Rank(1)]);
    }

    #[test]
    fn rank_sets_reach_beyond_a_word() {
        let set = RankSet::of([1, 64, 130].into_iter());
        assert_eq!(set.ranks(), [Rank(1), Rank(64), Rank(130)]);
        assert_eq!(
            set.without(&RankSet::only(130)),
            RankSet::of([1, 64].into_iter())
        );
        assert!(set.common(&RankSet::only(2)).is_empty());
    }
}
