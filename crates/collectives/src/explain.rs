//! Plans in words: one line per step, for people and for messages about faults.

use crate::cost::Cost;
use crate::mutate::spans;
use crate::plan::{Action, Arrive, Buf, Plan, Slot, Span, Step};
use gaggle_core::{Codec, DType, Form};
use std::{
    collections::BTreeSet,
    fmt::{self, Write},
};

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

/// Steps of a plan that do the same to slices next to each other, as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The first of the steps.
    pub first: u32,
    /// The last one.
    pub last: u32,
    /// What they do, in words, and what they wait for.
    pub text: String,
}

/// `   0-7  send #0 to rank 1: user[0..800] in 8 slices`.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = match self.first == self.last {
            true => self.first.to_string(),
            false => format!("{}-{}", self.first, self.last),
        };
        write!(f, "{steps:>9}  {}", self.text)
    }
}

/// A plan's steps in words, slices of one span in one line.
///
/// Takes time proportional to the number of steps.
pub fn lines(plan: &Plan) -> Vec<Line> {
    let mut all: Vec<Slices> = Vec::new();
    for (idx, step) in (0..).zip(plan.iter()) {
        match all.last_mut() {
            Some(slices) if slices.goes_on_with(&step.action) => slices.add(idx, step),
            _ => all.push(Slices {
                first: idx,
                last: idx,
                whole: step.action.clone(),
                like: without_places(&step.action),
                after: step.after.iter().copied().collect(),
            }),
        }
    }
    all.into_iter().map(Slices::into_line).collect()
}

/// Steps that do the same to spans that follow each other.
struct Slices {
    first: u32,
    last: u32,
    /// What they do together.
    whole: Action,
    like: Action,
    after: BTreeSet<u32>,
}

impl Slices {
    fn goes_on_with(&self, action: &Action) -> bool {
        let (mut whole, mut next) = (self.whole.clone(), action.clone());
        self.like == without_places(action)
            && !spans(&mut whole).is_empty()
            && spans(&mut whole)
                .iter()
                .zip(spans(&mut next))
                .all(|(a, b)| a.buf == b.buf && a.end() == b.at)
    }

    fn add(&mut self, idx: u32, mut step: Step) {
        self.last = idx;
        for (whole, next) in spans(&mut self.whole)
            .into_iter()
            .zip(spans(&mut step.action))
        {
            whole.len += next.len;
        }
        self.after.extend(step.after);
    }

    fn into_line(self) -> Line {
        let mut text = self.whole.to_string();
        if self.last > self.first {
            text += &format!(" in {} slices", self.last - self.first + 1);
        }
        let mut joint = " after ";
        let after: Vec<u32> = self.after.into_iter().collect();
        for run in after.chunk_by(|a, b| a + 1 == *b) {
            text += joint;
            text += &match run {
                [one] => one.to_string(),
                _ => format!("{}-{}", run[0], run[run.len() - 1]),
            };
            joint = ", ";
        }
        Line {
            first: self.first,
            last: self.last,
            text,
        }
    }
}

/// The same but for where and under which numbers.
fn without_places(action: &Action) -> Action {
    let mut like = action.clone();
    for span in spans(&mut like) {
        (span.at, span.len) = (0, 0);
    }
    let same = |slot: &mut Option<Slot>| *slot = slot.map(|_| 0);
    match &mut like {
        Action::Send { tag, weight, .. } => {
            *tag = 0;
            same(weight);
        }
        Action::Recv {
            tag,
            weight,
            arrive,
            ..
        } => {
            *tag = 0;
            same(weight);
            if let Arrive::Fold { there, .. } = arrive {
                same(there);
            }
        }
        Action::Fold { operands, sum, .. } => {
            operands.iter_mut().for_each(|o| same(&mut o.slot));
            same(sum);
        }
        Action::Weigh { slot, .. } | Action::Divide { slot, .. } => *slot = 0,
        Action::Copy { unless_zero, .. } | Action::Recode { unless_zero, .. } => same(unless_zero),
        Action::Compensate {
            unless_zero,
            residual,
            ..
        } => {
            *residual = 0;
            same(unless_zero);
        }
        Action::GroupFold { sum, .. } => same(sum),
        Action::Mix { .. }
        | Action::Arrive { .. }
        | Action::AwaitAll { .. }
        | Action::GroupCopy { .. } => {}
    }
    like
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
                dst,
                own,
                operands,
                form,
                codec,
            } => {
                let form = match form {
                    Form::Delta => "delta",
                    Form::Sum => "sum",
                };
                write!(f, "mix {dst}")?;
                if own != dst {
                    write!(f, " of {own}")?;
                }
                write!(f, " in {form} form with")?;
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
