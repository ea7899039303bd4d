//! The checker: proves for all ranks' plans of one operation together that they do what the operation promises.
//!
//! It moves symbolic values instead of numbers: what an element holds is an expression over the ranks' inputs, and equal expressions are one value, so that "all ranks hold equal bits" is a comparison of numbers.
//! Expressions know no commutativity: (a + b) and (b + a) differ, as they do where one of them is a NaN or a rounding is involved.
//!
//! Proved, in this order:
//! - every span, slot, dependency and peer exists, and no step mixes lengths;
//! - no two steps of a rank that the rank's own dependencies leave unordered touch an element that one of them writes, or a weight slot;
//! - every send meets exactly one receive of the same length, codec and wire type, and tags are unique per link;
//! - nothing waits in a circle;
//! - fused steps touch other ranks' memory only while it is lent, and never two at once where one of them writes;
//! - every element ends with exactly the contributions promised, each once and rightly weighed, the same expression on all ranks where one value is promised; means hold for all weights positive, some of them 0, and all of them 0;
//! - no step is without effect.
//!
//! **Credit.** A send and its receive are taken as one event, which happens when both ranks have come to it: the strictest network there is.
//! With credit a send ends earlier, never later, so that plans which pass never deadlock whatever a link's credit, 1 included.
//!
//! **Several operations at once**: messages carry the operation's identity, a posted receive is never held up by a message that nobody has posted for, and operations share no memory; so an operation's events depend on its own alone.
//! [`check_in_flight`] tries just that: operations started in another order on every rank, with sends that end before their receives begin and one room per link for all operations' messages.
//!
//! The cost is proportional to steps and elements: check short vectors, the plan's arithmetic is the same for long ones.

mod fault;
mod in_flight;
mod interpret;
pub(crate) mod local;
pub(crate) mod matching;
mod meeting;
mod outcome;
mod remote;
mod values;

pub use fault::{Fault, Where};
pub use in_flight::{Schedule, check_in_flight};

use crate::plan::{Plan, Request, Step};
use gaggle_core::Rank;

/// What the ranks' plans promise together: one request per rank, in rank order.
#[derive(Clone, Debug, PartialEq)]
pub struct Promise {
    requests: Vec<Request>,
    folding: Folding,
}

/// What is promised about the order in which contributions are combined, beside that it is the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Folding {
    /// Nothing.
    #[default]
    Any,
    /// From left to right by rank, in partial results that may be put together in any way: for reductions that are associative and not commutative.
    InOrder,
    /// In rank order, all contributions in one fold that rounds once: for `ordered` and for reductions that are not associative.
    AtOnce,
}

impl Promise {
    /// That of the operation which these requests, one per rank and in rank order, ask for.
    pub fn of(requests: &[Request]) -> Promise {
        Promise {
            requests: requests.to_vec(),
            folding: Folding::Any,
        }
    }

    /// That of an operation of which every rank asks the same: all but the neighbour operations, messages, and all-to-all with counts.
    ///
    /// ```
    /// use gaggle_collectives::{Call, Promise, Request, check, plan};
    /// use gaggle_core::{Algorithm, Codec, Rank, Reduce};
    ///
    /// let promise = Promise::of_all(&Request {
    ///     call: Call::AllReduce { reduce: Reduce::Mean, algorithm: Algorithm::Ring },
    ///     rank: Rank(0),
    ///     world: 5,
    ///     len: 101,
    ///     slice: 7,
    ///     codec: Codec::None,
    ///     widen: false,
    ///     ..Request::default()
    /// });
    /// let plans: Vec<_> = promise.requests().iter().map(plan).collect::<Result<_, _>>()?;
    /// check(&plans, &promise)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_all(request: &Request) -> Promise {
        let requests = (0..request.world)
            .map(|rank| Request {
                rank: Rank(rank),
                ..request.clone()
            })
            .collect();
        Promise {
            requests,
            folding: Folding::Any,
        }
    }

    /// With a promise about the order of the folds.
    pub fn folding(mut self, folding: Folding) -> Promise {
        self.folding = folding;
        self
    }

    /// What is promised about the order of the folds.
    pub fn folds(&self) -> Folding {
        self.folding
    }

    /// One per rank, in rank order.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }
}

/// All ranks' plans with their steps written out.
pub(crate) struct World<'a> {
    pub(crate) plans: &'a [Plan],
    pub(crate) steps: Vec<Vec<Step>>,
}

impl<'a> World<'a> {
    pub(crate) fn of(plans: &'a [Plan]) -> World<'a> {
        World {
            plans,
            steps: plans.iter().map(|p| p.iter().collect()).collect(),
        }
    }

    fn at(&self, rank: usize, step: u32) -> Where {
        Where {
            rank: Rank(rank as u32),
            step,
            action: self.steps[rank][step as usize].action.to_string(),
        }
    }
}

/// Whether `plans`, one per rank and in rank order, keep `promise`.
///
/// # Errors
/// The first fault that was found, with its ranks and steps.
pub fn check(plans: &[Plan], promise: &Promise) -> Result<(), Fault> {
    check_fit(plans, promise)?;
    let world = World::of(plans);
    for rank in 0..plans.len() {
        local::check_rank(&world, rank)?;
    }
    let links = matching::match_messages(&world)?;
    let order = matching::order(&world, &links)?;
    remote::check_remote(&world, &links, &order)?;
    interpret::check_values(&world, &links, &order, promise)
}

/// The number of messages that follow each other in the longest chain of the plans. [`Cost::rounds`](crate::Cost::rounds) is never smaller.
///
/// # Errors
/// The plans do not fit each other.
pub fn depth(plans: &[Plan]) -> Result<u64, Fault> {
    let world = World::of(plans);
    let links = fit_together(&world)?;
    let order = matching::order(&world, &links)?;
    Ok(matching::longest_chain(&world, &links, &order))
}

/// How the plans' steps belong together, where each is sound in itself and nothing waits in a circle.
pub(crate) fn fit_together(world: &World<'_>) -> Result<matching::Links, Fault> {
    for rank in 0..world.plans.len() {
        local::check_rank(world, rank)?;
    }
    let links = matching::match_messages(world)?;
    matching::order(world, &links)?;
    Ok(links)
}

/// Each plan is the right rank's part of the right operation.
fn check_fit(plans: &[Plan], promise: &Promise) -> Result<(), Fault> {
    let misfit = |rank: usize, what: String| {
        Err(Fault::Misfit {
            rank: Rank(rank as u32),
            what,
        })
    };
    let n = promise.requests.len();
    if plans.len() != n {
        return misfit(
            plans.len().min(n),
            format!("{} plans for {n} ranks", plans.len()),
        );
    }
    for (rank, (plan, request)) in plans.iter().zip(&promise.requests).enumerate() {
        if plan.rank.idx() != rank || plan.world as usize != n {
            return misfit(
                rank,
                format!("its plan is for {} of {}", plan.rank, plan.world),
            );
        }
        let want = outcome::layout(request);
        let left_out = |len: u64| want.optional && len == 0;
        if plan.user_len != want.user && !left_out(plan.user_len) {
            return misfit(
                rank,
                format!(
                    "its plan is for {} elements, the operation for {}",
                    plan.user_len, want.user
                ),
            );
        }
        if plan.input_len != want.input && !left_out(plan.input_len) {
            return misfit(
                rank,
                format!(
                    "its plan reads {} elements of input, the operation gives {}",
                    plan.input_len, want.input
                ),
            );
        }
    }
    Ok(())
}
