//! Plans in words: one line per step, for people and for messages about faults.

use crate::cost::Cost;
use crate::plan::{Action, Arrive, Buf, Plan, Slot, Span, Step};
use gaggle_core::{Codec, DType, Form};
use std::fmt::{self, Write};

/// Each rank's plan with its cost on elements of type `dtype`.
///
/// ```
/// use gaggle_collectives::{Call, Request, explain, plan};
/// use gaggle_core::{Algorithm, Codec, DType, Rank};
///
/// let request = Request {
///     call: Call::Broadcast { root: Rank(0) , algorithm: Algorithm::Binomial },
///     rank: Rank(1),
///     world: 2,
///     len: 3,
///     slice: 2,
///     codec: Codec::None,
///     widen: false,
///     ..Request::default()
/// };
/// let text = "\
/// broadcast by binomial, rank 1 of 2: 3 elements
///     0  recv #0 from rank 0: user[0..2]
///     1  recv #1 from rank 0: user[2..3]
///        1 rounds; sends 0 messages, 0 bytes; receives 2 messages, 12 bytes
/// ";
/// assert_eq!(explain(&[plan(&request)?], DType::F32), text);
/// # Ok::<(), gaggle_collectives::PlanError>(())
/// ```
pub fn explain(plans: &[Plan], dtype: DType) -> String {
    let mut text = String::new();
    for plan in plans {
        let cost = match Cost::of(plan, dtype) {
            Some(cost) => cost.to_string(),
            None => format!("its codec does not apply to {dtype}"),
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{plan}       {cost}");
    }
    text
}

/// ` weight w3`, or nothing.
struct Weight(&'static str, Option<Slot>);

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(slot) => write!(f, "{}w{slot}", self.0),
            None => Ok(()),
        }
    }
}

/// ` in bf16`, ` in the accumulator type`, or nothing.
struct As(Codec, Buf);

impl fmt::Display for As {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (Codec::None, Buf::User | Buf::Input) => Ok(()),
            (Codec::None, Buf::Scratch) => f.write_str(" in the accumulator type"),
            (codec, _) => write!(f, " in {codec}"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Send {
                to,
                tag,
                src,
                wire,
                codec,
                weight,
                scale,
            } => {
                write!(f, "send #{tag} to {to}: {src}{}", As(*codec, *wire))?;
                if let Some(factor) = scale {
                    write!(f, " times factor {factor}")?;
                }
                write!(f, "{}", Weight(", weight ", *weight))
            }
            Action::Recv {
                from,
                tag,
                dst,
                wire,
                codec,
                arrive,
                weight,
            } => match arrive {
                Arrive::Store => write!(
                    f,
                    "recv #{tag} from {from}: {dst}{}{}",
                    As(*codec, *wire),
                    Weight(", weight to ", *weight)
                ),
                Arrive::Fold { there, .. } => write!(
                    f,
                    "recv #{tag} from {from}: fold into {dst}{}{}{}",
                    As(*codec, *wire),
                    Weight(" of weight ", *there),
                    Weight(", sum to ", *weight)
                ),
            },
            Action::Fold { dst, operands, sum } => {
                write!(f, "fold {dst} =")?;
                for (i, operand) in operands.iter().enumerate() {
                    let joint = if i == 0 { " " } else { " + " };
                    write!(f, "{joint}{}", operand.span)?;
                    write!(f, "{}", Weight("·", operand.slot))?;
                }
                write!(f, "{}", Weight(", sum to ", *sum))
            }
            Action::Compensate {
                span,
                residual,
                codec,
                unless_zero,
            } => write!(
                f,
                "compensate {span} by residual[{residual}..{}] for {codec}{}",
                residual + span.len,
                Weight(" unless zero is ", *unless_zero)
            ),
            Action::Arrive { phase } => write!(f, "arrive at phase {phase}"),
            Action::AwaitAll { phase } => write!(f, "await all at phase {phase}"),
            Action::GroupFold { from, at, len, sum } => write!(
                f,
                "group fold {} of all into user of all{}",
                Span {
                    buf: *from,
                    at: *at,
                    len: *len
                },
                Weight(", sum to ", *sum)
            ),
            Action::GroupCopy { from, src, dst } => {
                write!(f, "group copy {from}'s {src} to {dst}")
            }
            Action::Weigh { span, slot } => write!(f, "weigh {span} by w{slot}"),
            Action::Divide { span, slot } => write!(f, "divide {span} by w{slot}"),
            Action::Copy {
                src,
                dst,
                unless_zero,
            } => write!(
                f,
                "copy {src} to {dst}{}",
                Weight(" unless zero is ", *unless_zero)
            ),
            Action::Recode {
                span,
                codec,
                unless_zero,
            } => write!(
                f,
                "recode {span} by {codec}{}",
                Weight(" unless zero is ", *unless_zero)
            ),
            Action::Mix {
                own,
                operands,
                form,
                codec,
            } => {
                let form = match form {
                    Form::Delta => "delta",
                    Form::Sum => "sum",
                };
                write!(f, "mix {own} in {form} form with")?;
                if operands.is_empty() {
                    f.write_str(" nothing")?;
                }
                for (i, operand) in operands.iter().enumerate() {
                    let joint = if i == 0 { " " } else { ", " };
                    write!(f, "{joint}{operand}")?;
                }
                write!(f, "{}", As(*codec, Buf::User))
            }
        }
    }
}

/// `send #0 to rank 1: user[0..3] after 2, 4`.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.action.fmt(f)?;
        for (i, after) in self.after.iter().enumerate() {
            let joint = if i == 0 { " after " } else { ", " };
            write!(f, "{joint}{after}")?;
        }
        Ok(())
    }
}

/// A heading and one line per step.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} by {}, {} of {}: {} elements",
            self.kind.name(),
            self.algorithm,
            self.rank,
            self.world,
            self.user_len
        )?;
        if self.scratch_len > 0 {
            write!(f, ", {} of scratch", self.scratch_len)?;
        }
        match (self.n_slots, self.total) {
            (0, _) => writeln!(f)?,
            (n, total) => writeln!(f, ", {n} weights{}", Weight(", their sum in ", total))?,
        }
        for (idx, step) in self.iter().enumerate() {
            writeln!(f, "{idx:5}  {step}")?;
        }
        Ok(())
    }
}
