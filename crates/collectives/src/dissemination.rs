//! Barrier: empty messages at doubling distance.
//!
//! In round k every rank tells rank+2^k all that it knows: that it has come, and who else has, as told in the rounds before.
//!
//! Cost: ⌈log₂P⌉ rounds and messages, no payload.
//!
//! Source: Hensgen, Finkel and Manber, Two algorithms for barrier synchronization, 1988.

use crate::plan::{Action, Arrive, Buf, Plan, PlanError, Request, Span};
use crate::program::{After, Outline, Program, back, forward};
use gaggle_core::{Algorithm, Codec, OpKind, Rank, Reduce};

/// The plan.
///
/// # Errors
/// None in practice: it has at most 64 steps.
pub(crate) fn plan_barrier(req: &Request) -> Result<Plan, PlanError> {
    let barrier = Dissemination {
        rank: req.rank.0,
        world: req.world,
    };
    let outline = Outline {
        kind: OpKind::Barrier,
        algorithm: Algorithm::Dissemination,
        reduce: Reduce::Sum,
        input_len: 0,
        user_len: 0,
        scratch_len: 0,
        n_slots: 0,
        n_slices: 1,
    };
    outline.with(req, barrier)
}

/// `recv send` in each round.
#[derive(Debug)]
struct Dissemination {
    rank: u32,
    world: u32,
}

impl Program for Dissemination {
    fn n_ops(&self) -> u64 {
        let rounds = u32::BITS - (self.world - 1).leading_zeros();
        2 * u64::from(rounds)
    }

    fn op(&self, op: u32, _slice: u32) -> (Action, After) {
        let round = op / 2;
        if op.is_multiple_of(2) {
            let action = Action::Recv {
                from: Rank(back(self.rank, 1 << round, self.world)),
                tag: round,
                dst: Span::user(0, 0),
                wire: Buf::User,
                codec: Codec::None,
                arrive: Arrive::Store,
                weight: None,
            };
            return (action, After::new());
        }
        let action = Action::Send {
            to: Rank(forward(self.rank, 1 << round, self.world)),
            tag: round,
            src: Span::user(0, 0),
            wire: Buf::User,
            codec: Codec::None,
            weight: None,
            scale: None,
        };
        // It speaks for all who were heard in the rounds before.
        (action, (0..round).map(|earlier| 2 * earlier).collect())
    }
}
