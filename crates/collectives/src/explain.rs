//! Plans in words: one line per step, for people and for messages about faults.

use crate::plan::{Action, Arrive, Plan, Slot, Step};
use gaggle_core::{Codec, Form};
use std::fmt;

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

/// ` in bf16`, or nothing.
struct As(Codec);

impl fmt::Display for As {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Codec::None => Ok(()),
            codec => write!(f, " in {codec}"),
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
                codec,
                weight,
                scale,
                ..
            } => {
                write!(f, "send #{tag} to {to}: {src}{}", As(*codec))?;
                if let Some(factor) = scale {
                    write!(f, " times factor {factor}")?;
                }
                write!(f, "{}", Weight(", weight ", *weight))
            }
            Action::Recv {
                from,
                tag,
                dst,
                codec,
                arrive,
                weight,
                ..
            } => match arrive {
                Arrive::Store => write!(
                    f,
                    "recv #{tag} from {from}: {dst}{}{}",
                    As(*codec),
                    Weight(", weight to ", *weight)
                ),
                Arrive::Fold { there, .. } => write!(
                    f,
                    "recv #{tag} from {from}: fold into {dst}{}{}{}",
                    As(*codec),
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
                write!(f, "{}", As(*codec))
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
