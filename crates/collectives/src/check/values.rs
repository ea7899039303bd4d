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
        ranks.fold(RankSet::default(), |mut all, r| {
            all.join(&RankSet::only(r));
            all
        })
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

    /// Adds the other one's ranks; `false`, and nothing is added, where one is there already.
    pub fn add(&mut self, other: &RankSet) -> bool {
        if self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0) {
            return false;
        }
        self.join(other);
        true
    }

    fn join(&mut self, other: &RankSet) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
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
    /// Encoded and decoded, together with what shares a scale with it: block 0 where each element is coded alone.
    Coded {
        codec: Codec,
        value: Value,
        block: u32,
    },
    /// What error feedback kept of the tensor before this operation.
    Residual { rank: u32, elem: u64 },
    /// A value and a residual, encoded and decoded together.
    Compensated {
        codec: Codec,
        value: Value,
        residual: Value,
        block: u32,
    },
    /// What the codec lost of a value.
    Lost(Value),
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
    /// How often it, or a part of it, has been through a lossy codec.
    pub codings: u8,
    /// Whether it is representable in the element type.
    narrow: bool,
}

/// All values of a world.
pub(super) struct Values {
    facts: Vec<Facts>,
    numbers: HashMap<Expr, Value>,
    exprs: Vec<Expr>,
    /// Values that are what a codec decodes.
    decoded: HashSet<(Codec, Value)>,
    /// Which values share a scale, by what was encoded; and what was decoded of them.
    block_numbers: HashMap<Vec<Value>, u32>,
    blocks: Vec<Vec<Value>>,
}

/// The value of memory that nothing was written to.
pub(super) const UNDEFINED: Value = 0;

impl Values {
    pub fn new() -> Values {
        let mut values = Values {
            facts: Vec::new(),
            exprs: Vec::new(),
            numbers: HashMap::new(),
            decoded: HashSet::new(),
            block_numbers: HashMap::new(),
            blocks: Vec::new(),
        };
        let facts = Facts {
            stage: Stage::Undefined,
            who: RankSet::default(),
            elem: 0,
            codings: 0,
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
        if let Some(&value) = self.numbers.get(&expr) {
            return value;
        }
        self.facts.push(facts());
        self.exprs.push(expr.clone());
        self.numbers.insert(expr, next);
        next
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
            codings: 0,
            narrow: true,
        })
    }

    /// What error feedback kept of element `elem` of the tensor of `rank`.
    pub fn residual(&mut self, rank: usize, elem: u64) -> Value {
        let expr = Expr::Residual {
            rank: rank as u32,
            elem,
        };
        self.intern(expr, || Facts {
            stage: Stage::Raw,
            who: RankSet::only(rank),
            elem,
            codings: 0,
            narrow: true,
        })
    }

    pub fn expr(&self, value: Value) -> &Expr {
        &self.exprs[value as usize]
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

    /// A message's elements, or those of a span that will be a message, as they are after encoding and decoding; a second time changes nothing.
    ///
    /// Elements that share a scale stay what they are only where all of them, and no others, are coded together again.
    pub fn code(&mut self, message: &mut [Value], codec: Codec) {
        self.code_with(message, codec, None);
    }

    /// The same of the sum of each element and its residual, which becomes what is lost.
    pub fn compensate(&mut self, message: &mut [Value], codec: Codec, residuals: &mut [Value]) {
        self.code_with(message, codec, Some(residuals));
    }

    /// Whether a message holds only what the codec decodes, so that nothing of it is lost.
    pub fn is_decoded(&self, message: &[Value], codec: Codec) -> bool {
        message
            .chunks(block_len(codec))
            .all(|block| self.is_block(block, codec))
    }

    fn is_block(&self, block: &[Value], codec: Codec) -> bool {
        if codec != Codec::Int8 {
            return block.iter().all(|&v| self.decoded.contains(&(codec, v)));
        }
        let of = |&v: &Value| match *self.expr(v) {
            Expr::Coded { codec, block, .. } | Expr::Compensated { codec, block, .. } => {
                (codec == Codec::Int8).then_some(block)
            }
            _ => None,
        };
        let number = block.first().and_then(of);
        number.is_some_and(|n| self.blocks[n as usize] == block)
    }

    fn code_with(
        &mut self,
        message: &mut [Value],
        codec: Codec,
        mut residuals: Option<&mut [Value]>,
    ) {
        if codec == Codec::None {
            return;
        }
        let n = block_len(codec);
        for (i, block) in message.chunks_mut(n).enumerate() {
            let mut kept = residuals
                .as_deref_mut()
                .map(|r| &mut r[i * n..][..block.len()]);
            if kept.is_none() && self.is_block(block, codec) {
                continue;
            }
            let number = match codec {
                Codec::Int8 => self.block_of(block, kept.as_deref()),
                _ => 0,
            };
            for (j, value) in block.iter_mut().enumerate() {
                let residual = kept.as_deref().map(|k| k[j]);
                *value = self.coded(*value, codec, residual, number);
                if let Some(kept) = &mut kept {
                    let facts = self.facts(*value).clone();
                    kept[j] = self.intern(Expr::Lost(*value), || facts);
                }
            }
            if codec == Codec::Int8 {
                self.blocks[number as usize] = block.to_vec();
            }
        }
    }

    /// The number of the block that these values make.
    fn block_of(&mut self, block: &[Value], residuals: Option<&[Value]>) -> u32 {
        let mut key = block.to_vec();
        key.extend(residuals.into_iter().flatten());
        let next = self.blocks.len() as u32;
        let number = *self.block_numbers.entry(key).or_insert(next);
        if number == next {
            self.blocks.push(Vec::new());
        }
        number
    }

    fn coded(&mut self, value: Value, codec: Codec, residual: Option<Value>, block: u32) -> Value {
        let mut facts = self.facts(value).clone();
        facts.codings = facts.codings.saturating_add(1);
        let expr = match residual {
            None => Expr::Coded {
                codec,
                value,
                block,
            },
            Some(residual) => Expr::Compensated {
                codec,
                value,
                residual,
                block,
            },
        };
        let coded = self.intern(expr, || facts);
        self.decoded.insert((codec, coded));
        coded
    }

    /// Whether a value is another one, or that one as a codec decodes it.
    pub fn is_sent_as(&self, value: Value, of: Value, codec: Codec) -> bool {
        match (codec, self.expr(value)) {
            (Codec::None, _) => value == of,
            (
                _,
                Expr::Coded {
                    codec: c, value, ..
                }
                | Expr::Compensated {
                    codec: c, value, ..
                },
            ) => *c == codec && *value == of,
            _ => false,
        }
    }

    /// The value without codings, roundings and conversions around it.
    pub fn bare(&self, mut value: Value) -> Value {
        while let Expr::Coded { value: inner, .. }
        | Expr::Compensated { value: inner, .. }
        | Expr::Rounded(inner) = *self.expr(value)
        {
            value = inner;
        }
        value
    }

    /// The ranks whose contributions a value combines, from left to right, and whether they were combined in one go and not in partial results.
    pub fn order_of(&self, value: Value) -> (Vec<u32>, bool) {
        let mut ranks = Vec::new();
        let mut n_folds = 0;
        self.collect_order(value, &mut ranks, &mut n_folds);
        (ranks, n_folds <= 1)
    }

    fn collect_order(&self, value: Value, ranks: &mut Vec<u32>, n_folds: &mut u32) {
        let value = self.bare(value);
        match self.expr(value) {
            Expr::Input { rank, .. } => ranks.push(*rank),
            Expr::Weighed { value, .. }
            | Expr::Divided { value, .. }
            | Expr::Scaled { value, .. } => {
                self.collect_order(*value, ranks, n_folds);
            }
            Expr::Combined { first, second, .. } => {
                // A partial result that was rounded, whichever pair it is of.
                *n_folds += 2;
                self.collect_order(*first, ranks, n_folds);
                self.collect_order(*second, ranks, n_folds);
            }
            Expr::Folded { operands, .. } | Expr::Averaged { operands, .. } => {
                *n_folds += 1;
                for &operand in operands {
                    self.collect_order(operand, ranks, n_folds);
                }
            }
            _ => {}
        }
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
        let mut who = RankSet::default();
        for &operand in operands {
            who.join(&self.facts(operand).who);
        }
        Facts {
            stage,
            who,
            elem: self.facts(operands[0]).elem,
            codings: operands
                .iter()
                .map(|&o| self.facts(o).codings)
                .max()
                .unwrap_or(0),
            narrow: into == Buf::User,
        }
    }
}

/// How many elements are coded together.
fn block_len(codec: Codec) -> usize {
    match codec {
        Codec::Int8 => Codec::BLOCK as usize,
        _ => 1,
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
