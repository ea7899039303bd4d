//! Which algorithm carries an operation out: the fastest by a cost model, among those that keep what was promised.
//!
//! Everything the choice depends on is a plain value that is equal on every rank ([`Tables`], [`Overrides`], the [`Question`]), and the arithmetic is in whole numbers, so that all ranks choose alike; [`Tables::hash`] and [`Overrides::hash`] go into the operation's descriptor.
//! Nothing is measured here.
//!
//! The model is Hockney's, with the work at both ends (Thakur, Rabenseifner and Gropp 2005, section 3): rounds × latency + messages × their cost + bytes ÷ bandwidth + folded bytes ÷ fold rate + coded bytes ÷ codec rate.

mod eligible;
mod model;
mod overrides;
mod places;
mod tables;

pub use eligible::{Ineligible, eligible, folding};
pub use overrides::{Overrides, ParseOverridesError, Rule};
pub use places::Places;
pub use tables::{LinkClass, ParseTablesError, Tables};

use gaggle_core::{Algorithm, Codec, DType, Mode, OpKind, Properties, Reduce};
use smallvec::SmallVec;
use std::{fmt, time::Duration};

/// What is to be chosen for. Equal on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question<'a> {
    /// Which operation.
    pub kind: OpKind,
    /// Combination; `Sum` where there is none.
    pub reduce: Reduce,
    /// Element type.
    pub dtype: DType,
    /// Number of members.
    pub world: u32,
    /// Elements of the longer of a rank's buffers: the vector of an all-reduce, reduce, broadcast or neighbour average; all parts together for gather, scatter, all-gather, reduce-scatter and all-to-all. Where the ranks do not know it alike: 0.
    pub len: u64,
    /// Whether the parts are of lengths of their own.
    pub counted: bool,
    /// Each member's host; `None`: all on hosts of their own.
    pub hosts: Option<&'a [u32]>,
    /// Each member's memory node (NUMA), equal only for members of one host and node; `None`: not known.
    pub nodes: Option<&'a [u32]>,
    /// What is promised about the bits.
    pub mode: Mode,
    /// What may be on the wire.
    pub codec: Codec,
    /// Whether the codec is used even where it costs more time than it saves.
    pub codec_forced: bool,
    /// Whether error feedback is asked for.
    pub feedback: bool,
    /// What the user says of a reduction of their own.
    pub user: Option<Properties>,
    /// The caller's choice, which goes before everything but what is promised.
    pub algorithm: Option<Algorithm>,
    /// Children per inner node of a k-nomial tree, plus 1.
    pub radix: u32,
    /// Neighbours of the rank with the most, for neighbour operations.
    pub degree: u32,
}

impl<'a> Question<'a> {
    /// Where the members are.
    pub fn places(&self) -> Places<'a> {
        Places {
            hosts: self.hosts,
            nodes: self.nodes,
        }
    }

    /// A plain operation in the default mode, every rank on a host of its own.
    pub fn new(kind: OpKind, dtype: DType, world: u32, len: u64) -> Question<'static> {
        Question {
            kind,
            reduce: Reduce::Sum,
            dtype,
            world,
            len,
            counted: false,
            hosts: None,
            nodes: None,
            mode: Mode::Default,
            codec: Codec::None,
            codec_forced: false,
            feedback: false,
            user: None,
            algorithm: None,
            radix: crate::Request::RADIX,
            degree: 1,
        }
    }

    /// Bytes of the longer of a rank's buffers: what [`Overrides`] are looked up by.
    pub fn bytes(&self) -> u64 {
        self.len.saturating_mul(self.dtype.size() as u64)
    }
}

/// One way to carry the operation out, and how long the model says that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// How.
    pub algorithm: Algorithm,
    /// What is on the wire.
    pub codec: Codec,
    /// From the last rank's start to the last rank's end, in nanoseconds.
    pub nanoseconds: u64,
}

impl Candidate {
    /// The predicted time.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds)
    }
}

/// Why a choice was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// There is one way only.
    Only,
    /// The caller named the algorithm.
    Asked,
    /// An override names it.
    Override(Rule),
    /// The model says that it takes the least time.
    Fastest,
    /// The model says that it takes the least time of those by which no rank is connected with more than [`MOST_PEERS`] ranks of other hosts.
    FastestOfFewPeers,
}

/// What is chosen by the model connects no rank with more ranks of other hosts than so many, where there is another way: sockets are kept, and a thousand of them cost more than any algorithm saves.
pub const MOST_PEERS: u32 = 64;

/// What was chosen. Its `Display` is the reason, one paragraph for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// How.
    pub algorithm: Algorithm,
    /// What is on the wire: plain where the model declined the codec.
    pub codec: Codec,
    /// Longest message in elements.
    pub slice: u64,
    /// The predicted time of what was chosen, in nanoseconds.
    pub nanoseconds: u64,
    /// Everything that was eligible, fastest first; of the same time in the order of the algorithms' numbers. The one that was chosen is among them.
    pub candidates: SmallVec<[Candidate; 8]>,
    /// Why.
    pub why: Why,
    /// An override that names an algorithm which cannot keep what is promised, and why.
    pub passed_over: Option<Ineligible>,
    /// What the operation would take with the codec that was declined, in nanoseconds.
    pub declined: Option<(Codec, u64)>,
    /// What is promised beyond a right result, in words; empty where nothing is.
    pub promised: &'static str,
}

impl Selection {
    /// The predicted time.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds)
    }
}

/// `direct: the fastest of 4 by the cost model, about 58 µs (ring 77 µs, …).`
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.algorithm)?;
        if self.codec != Codec::None {
            write!(f, " in {}", self.codec)?;
        }
        write!(f, ", about {}: ", Time(self.nanoseconds))?;
        match &self.why {
            Why::Only => f.write_str("there is no other way")?,
            Why::Asked => f.write_str("the caller asked for it")?,
            Why::Override(rule) => write!(f, "the override '{rule}' names it")?,
            Why::Fastest => f.write_str("the cost model finds it fastest")?,
            Why::FastestOfFewPeers => write!(
                f,
                "the cost model finds it fastest of those by which no rank is connected with more than {MOST_PEERS} ranks of other hosts"
            )?,
        }
        if !self.promised.is_empty() {
            write!(
                f,
                " of those that keep what is promised ({})",
                self.promised
            )?;
        }
        let others: Vec<&Candidate> = self
            .candidates
            .iter()
            .filter(|c| c.algorithm != self.algorithm)
            .collect();
        for (i, other) in others.iter().enumerate() {
            let joint = if i == 0 { "; others: " } else { ", " };
            write!(f, "{joint}{} {}", other.algorithm, Time(other.nanoseconds))?;
        }
        if let Some((codec, nanoseconds)) = self.declined {
            write!(
                f,
                "; {codec} is declined, because it would take {} where plain messages take {}",
                Time(nanoseconds),
                Time(self.nanoseconds)
            )?;
        }
        if let Some(not) = &self.passed_over {
            write!(
                f,
                "; the override by {} is passed over: {}",
                not.algorithm, not.why
            )?;
        }
        f.write_str(".")
    }
}

/// Three digits and a unit.
pub(crate) struct Time(pub(crate) u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        let (value, unit) = match self.0 {
            0..1_000 => return write!(f, "{} ns", self.0),
            1_000..1_000_000 => (ns / 1e3, "µs"),
            1_000_000..1_000_000_000 => (ns / 1e6, "ms"),
            _ => (ns / 1e9, "s"),
        };
        let digits = match value {
            v if v < 9.995 => 2,
            v if v < 99.95 => 1,
            _ => 0,
        };
        write!(f, "{value:.digits$} {unit}")
    }
}

/// Chooses for `question`.
///
/// The caller's own choice goes first, then an override, then the least predicted time of what connects no rank with more than [`MOST_PEERS`] ranks of other hosts, or, where nothing does, of all; of the same time the algorithm with the smaller number.
/// A codec that would cost more time than it saves, or a connection with everybody, is declined, unless it is forced.
/// Takes time proportional to the number of members where hosts are given, and allocates nothing for the usual number of candidates.
///
/// # Errors
/// The caller's algorithm, or every algorithm there is, cannot keep what is promised; the error says why.
///
/// ```
/// use gaggle_collectives::select::{Overrides, Question, Tables, choose};
/// use gaggle_core::{Algorithm, DType, OpKind};
///
/// let small = Question::new(OpKind::AllReduce, DType::F32, 8, 100);
/// let large = Question { len: 1 << 22, ..small };
/// let chosen = |q| choose(&Tables::default(), &Overrides::default(), q).map(|s| s.algorithm);
/// assert_eq!(chosen(&small)?, Algorithm::Exchange);
/// assert_eq!(chosen(&large)?, Algorithm::Ring);
///
/// let overrides: Overrides = "all_reduce:1m-=direct".parse()?;
/// assert_eq!(choose(&Tables::default(), &overrides, &large)?.algorithm, Algorithm::Direct);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn choose(
    tables: &Tables,
    overrides: &Overrides,
    question: &Question<'_>,
) -> Result<Selection, Ineligible> {
    let hosts = model::Hosts::of(question);
    let named = |algorithm| match eligible::is_eligible(question, &hosts.facts(tables), algorithm) {
        Ok(()) => Ok(algorithm),
        Err(why) => Err(Ineligible {
            kind: question.kind,
            algorithm,
            why,
            eligible: all_eligible(question, &hosts.facts(tables), question.codec, None).to_vec(),
        }),
    };
    let mut passed_over = None;
    let (forced, why) = match (
        question.algorithm,
        overrides.find(question.kind, question.bytes()),
    ) {
        (Some(asked), _) => (Some(named(asked)?), Why::Asked),
        (None, Some(rule)) => match named(rule.algorithm) {
            Ok(algorithm) => (Some(algorithm), Why::Override(*rule)),
            Err(not) => {
                passed_over = Some(not);
                (None, Why::Fastest)
            }
        },
        (None, None) => (None, Why::Fastest),
    };
    let facts = hosts.facts(tables);
    let ranked = |codec| {
        let mut all: SmallVec<[Candidate; 8]> = all_eligible(question, &facts, codec, forced)
            .into_iter()
            .map(|algorithm| Candidate {
                algorithm,
                codec,
                nanoseconds: model::predict(question, tables, &hosts, algorithm, codec),
            })
            .collect();
        all.sort_by_key(|c| (c.nanoseconds, c.algorithm));
        all
    };
    let frugal = |c: &&Candidate| {
        hosts.far_peers(c.algorithm, question.world, question.radix.max(2)) <= MOST_PEERS
    };
    let best = |all: &[Candidate]| match forced {
        Some(algorithm) => all.iter().find(|c| c.algorithm == algorithm).copied(),
        None => all.iter().find(frugal).or(all.first()).copied(),
    };
    let mut candidates = ranked(question.codec);
    let Some(mut chosen) = best(&candidates) else {
        // Whatever is named, it cannot be: say why of the usual one.
        let usual = eligible::usual(question.kind);
        return Err(Ineligible {
            kind: question.kind,
            algorithm: usual,
            why: eligible::is_eligible(question, &facts, usual)
                .err()
                .unwrap_or("is no plan of this operation"),
            eligible: Vec::new(),
        });
    };
    let mut declined = None;
    if question.codec != Codec::None && !question.codec_forced {
        let plain = ranked(Codec::None);
        if let Some(without) = best(&plain)
            && (without.nanoseconds <= chosen.nanoseconds
                || forced.is_none() && frugal(&&without) && !frugal(&&chosen))
        {
            declined = Some((question.codec, chosen.nanoseconds));
            (candidates, chosen) = (plain, without);
        }
    }
    let why = match why {
        Why::Fastest if candidates.len() == 1 => Why::Only,
        Why::Fastest if candidates.first() != Some(&chosen) => Why::FastestOfFewPeers,
        why => why,
    };
    Ok(Selection {
        algorithm: chosen.algorithm,
        codec: chosen.codec,
        slice: model::slice(question, tables, chosen.algorithm),
        nanoseconds: chosen.nanoseconds,
        candidates,
        why,
        passed_over,
        declined,
        promised: eligible::promised(question),
    })
}

/// Ways of another algorithm, which takes them by itself, are there only where they are named; barriers and reductions to a root have no other on mapped memory.
fn all_eligible(
    question: &Question<'_>,
    facts: &eligible::Facts,
    codec: Codec,
    named: Option<Algorithm>,
) -> SmallVec<[Algorithm; 8]> {
    let question = Question { codec, ..*question };
    Algorithm::ALL
        .into_iter()
        .filter(|&a| {
            let by_itself = a.planned() == a || eligible::is_for_boards_alone(question.kind);
            by_itself || named == Some(a)
        })
        .filter(|&a| eligible::is_eligible(&question, facts, a).is_ok())
        .collect()
}
