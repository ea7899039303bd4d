//! Collectives as values: plans, their checker, cost and explanation.
//!
//! Planning is a pure function of a [`Request`]; the crate knows no thread, no clock and no socket.

#![forbid(unsafe_code)]

mod binomial;
pub mod check;
mod direct;
mod dissemination;
mod explain;
mod gather;
pub mod mutate;
mod neighbour;
pub mod plan;
mod planner;
mod program;
mod recursive_doubling;
mod ring;

pub use check::{Fault, Promise, Where, check};
pub use mutate::{Mutant, accepted_mutants, mutants};
pub use plan::{
    Action, Arrive, Buf, Call, Operand, Plan, PlanError, Request, Slot, Span, Step, Steps,
};
pub use planner::plan;
