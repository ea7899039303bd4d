//! Which algorithms keep what is promised.

use super::model::Hosts;
use super::{Question, Tables};
use crate::check::Folding;
use crate::planner::algorithms;
use gaggle_core::{Algorithm, Codec, Mode, OpKind, Properties, Reduce};

/// An algorithm that cannot carry an operation out as it was asked for. The caller's mistake; nothing has happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} by {algorithm} {why}{}", kind.name(), instead(eligible))]
pub struct Ineligible {
    /// The operation.
    pub kind: OpKind,
    /// What was asked for.
    pub algorithm: Algorithm,
    /// What is against it.
    pub why: &'static str,
    /// What could do it.
    pub eligible: Vec<Algorithm>,
}

fn instead(eligible: &[Algorithm]) -> String {
    let names: Vec<&str> = eligible.iter().map(|a| a.name()).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; what can: {}", names.join(", ")),
    }
}

/// Most bytes of a contribution that a rank shows on its board.
pub(super) const BOARD_BYTES: u64 = 4096;

/// What eligibility depends on besides the question.
#[derive(Clone, Copy)]
pub(super) struct Facts {
    /// There are several hosts, or several memory nodes of one, and some rank is not alone on its own.
    pub(super) two_levels: bool,
    /// All ranks have each other's buffers mapped.
    pub(super) mapped: bool,
}

/// Whether it goes over boards or by messages, and has no fused plan.
pub(super) const fn is_for_boards_alone(kind: OpKind) -> bool {
    matches!(kind, OpKind::Barrier | OpKind::Reduce)
}

const UNMAPPED: &str = "needs all ranks on one host with each other's buffers mapped";

/// The algorithm that an error speaks of where nobody named one.
pub(super) fn usual(kind: OpKind) -> Algorithm {
    let all = algorithms(kind);
    match all.contains(&Algorithm::Direct) {
        true => Algorithm::Direct,
        false => all[0],
    }
}

/// What a plan keeps of the order of the contributions, whatever the number of ranks; proved by the checker.
pub fn folding(kind: OpKind, algorithm: Algorithm) -> Folding {
    match (kind, algorithm.planned()) {
        (
            OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter,
            Algorithm::Direct | Algorithm::Fused | Algorithm::Exchange,
        ) => Folding::AtOnce,
        (OpKind::AllReduce, Algorithm::Binomial | Algorithm::Knomial) => Folding::InOrder,
        _ => Folding::Any,
    }
}

/// What the operation needs to be kept, and why in words.
fn needed(question: &Question<'_>) -> (Folding, &'static str) {
    if !question.kind.reduces() {
        return (Folding::Any, "");
    }
    let free = question.reduce.is_order_free(question.dtype);
    match (question.user, question.mode) {
        (
            Some(Properties {
                associative: false, ..
            }),
            _,
        ) if question.reduce == Reduce::User => (
            Folding::AtOnce,
            "a reduction that is not associative is folded from the left in rank order",
        ),
        (None, _) if question.reduce == Reduce::User => (
            Folding::AtOnce,
            "a reduction of which nothing is known is folded from the left in rank order",
        ),
        (_, Mode::Ordered) if !free => (
            Folding::AtOnce,
            "ordered: folded in rank order in a wider type and rounded once",
        ),
        (_, Mode::Exact) if !free => (Folding::AtOnce, "exact: one fold that rounds once"),
        (
            Some(Properties {
                commutative: false, ..
            }),
            _,
        ) if question.reduce == Reduce::User => (
            Folding::InOrder,
            "a reduction that is not commutative keeps the ranks' order",
        ),
        _ => (Folding::Any, ""),
    }
}

/// Whether what every rank gives has room on its board.
fn fits_a_board(question: &Question<'_>) -> bool {
    let bytes = question.bytes();
    let own = match question.kind {
        OpKind::AllGather | OpKind::Gather => bytes / u64::from(question.world.max(1)),
        _ => bytes,
    };
    own <= BOARD_BYTES && !question.counted
}

/// What is promised beyond a right result, in words.
pub(super) fn promised(question: &Question<'_>) -> &'static str {
    needed(question).1
}

/// Whether `algorithm` can carry out what is asked for.
///
/// # Errors
/// What is against it, in words that continue "all_reduce by ring …".
pub fn eligible(
    tables: &Tables,
    question: &Question<'_>,
    algorithm: Algorithm,
) -> Result<(), &'static str> {
    is_eligible(question, &Hosts::of(question).facts(tables), algorithm)
}

pub(super) fn is_eligible(
    question: &Question<'_>,
    facts: &Facts,
    algorithm: Algorithm,
) -> Result<(), &'static str> {
    let kind = question.kind;
    if kind == OpKind::Barrier && algorithm == Algorithm::Boards {
        // It has no elements: a look at every board is all there is to it.
        let plain = question.codec == Codec::None;
        return match (plain, facts.mapped) {
            (true, true) => Ok(()),
            (true, false) => Err(UNMAPPED),
            (false, _) => takes_codec(kind, algorithm),
        };
    }
    let on_boards = is_for_boards_alone(kind) && algorithm == Algorithm::Boards;
    if !on_boards && !algorithms(kind).contains(&algorithm.planned()) {
        return Err("has no plan");
    }
    if (algorithm.between_hosts().is_some()) && !facts.two_levels {
        return Err("needs several hosts, or memory nodes of one, and ranks that share one");
    }
    if algorithm.planned() == Algorithm::Fused {
        if algorithm == Algorithm::Boards && !fits_a_board(question) {
            return Err("is for contributions of up to 4 KiB, of parts of equal counts");
        }
        if !facts.mapped {
            return Err(UNMAPPED);
        }
        if question.reduce == Reduce::User && kind.reduces() {
            return Err("calls no function of the caller's over mapped memory");
        }
    }
    if kind == OpKind::AllToAll && algorithm != Algorithm::Direct && question.counted {
        return Err("needs equal counts");
    }
    if question.codec != Codec::None {
        if !question.codec.applies_to(question.dtype) {
            return Err("has no such codec: codecs are for f32");
        }
        takes_codec(kind, algorithm)?;
        let reduces = kind.reduces();
        if question.feedback && !(reduces && algorithm == Algorithm::Direct) {
            return Err("has no error feedback: all_reduce and reduce_scatter by direct have");
        }
    }
    let (needed, _) = needed(question);
    let exact = question.mode == Mode::Exact
        && kind.reduces()
        && !question.reduce.is_order_free(question.dtype);
    if exact && algorithm != Algorithm::Direct {
        return Err("does not accumulate exactly");
    }
    match (needed, folding(kind, algorithm)) {
        (Folding::Any, _) | (Folding::InOrder | Folding::AtOnce, Folding::AtOnce) => Ok(()),
        (Folding::InOrder, Folding::InOrder) => Ok(()),
        (Folding::InOrder, Folding::Any) => Err("does not keep the ranks' order"),
        (Folding::AtOnce, _) => Err("rounds partial results, in an order of its own"),
    }
}

/// A codec may be applied once to what each rank gives and once to the result, never at every hop.
fn takes_codec(kind: OpKind, algorithm: Algorithm) -> Result<(), &'static str> {
    match (kind, algorithm) {
        (
            OpKind::AllReduce | OpKind::ReduceScatter | OpKind::AllGather | OpKind::Broadcast,
            Algorithm::Direct,
        )
        | (OpKind::AllReduce, Algorithm::TwoLevelDirect)
        | (OpKind::Mix | OpKind::HierarchicalMix, _) => Ok(()),
        (OpKind::AllReduce, Algorithm::Exchange) => Err("has no codec: direct has"),
        (OpKind::AllReduce | OpKind::ReduceScatter, _) => {
            Err("would round to the codec at every hop")
        }
        (OpKind::AllGather | OpKind::Broadcast, _) => Err("has no codec: direct has"),
        _ => Err(
            "has no codec: all_reduce, reduce_scatter, all_gather, broadcast and neighbour averages have",
        ),
    }
}
