//! Collectives as values: plans, their checker, cost and explanation.
//!
//! Planning is a pure function of a [`Request`]; the crate knows no thread, no clock and no socket.

pub mod plan;

pub use plan::{
    Action, Arrive, Buf, Call, Operand, Plan, PlanError, Request, Slot, Span, Step, Steps,
};
