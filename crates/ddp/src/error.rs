//! What can go wrong in a data-parallel step: always with the names of the parameters or ranks concerned.

use gaggle_core::{DType, Error, Rank, name_ranks};

/// What went wrong.
///
/// Three sorts: the caller's mistake (all but the last four: nothing was sent on its account, the step is as it was), ranks that disagree ([`ModelMismatch`](DdpError::ModelMismatch)), and the network or a hook (the step is over).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DdpError {
    /// Two parameters have one name.
    #[error("two parameters are called {name:?}")]
    DuplicateParameter {
        /// The name.
        name: String,
    },
    /// A shape whose number of elements no machine can hold.
    #[error("parameter {name:?} of shape {shape:?} has more elements than can be counted")]
    TooLarge {
        /// Whose.
        name: String,
        /// The shape.
        shape: Vec<usize>,
    },
    /// No parameter has that number.
    #[error("there is no parameter {idx}: the model has {count}, counted from 0")]
    UnknownParameter {
        /// What was asked for.
        idx: usize,
        /// How many there are.
        count: usize,
    },
    /// A gradient or value is not as long as its parameter.
    #[error("parameter {name:?} has {want} elements, got {got}")]
    WrongLength {
        /// Whose.
        name: String,
        /// Elements of the parameter.
        want: usize,
        /// Elements that were given.
        got: usize,
    },
    /// Another number of tensors than the model has.
    #[error("the model has {want} parameters, got values for {got}")]
    WrongCount {
        /// How many there are.
        want: usize,
        /// How many were given.
        got: usize,
    },
    /// A gradient was handed over a second time in one step. The first one counts.
    #[error(
        "the gradient of parameter {name:?} was already handed over in this step; a parameter that is used twice is handed over once, when its gradient is complete"
    )]
    ReadyTwice {
        /// Whose.
        name: String,
    },
    /// `finish` was called before every gradient had been handed over. The step is still open: hand over the missing ones and call `finish` again, or `abort`.
    #[error("{} of {count} gradients were not handed over in this step: {}", names.len(), list(names))]
    MissingGradients {
        /// Whose, in the order of the model.
        names: Vec<String>,
        /// How many parameters there are.
        count: usize,
    },
    /// Called outside a step.
    #[error("{call}: no step has begun; call begin_step first")]
    NoStep {
        /// What was called.
        call: &'static str,
    },
    /// `begin_step` was called inside a step.
    #[error("begin_step: the previous step is not finished; call finish first")]
    StepOpen,
    /// The hook cannot carry this element type.
    #[error("hook {hook} does not carry {dtype}; use PlainMean, or train in another type")]
    HookType {
        /// The hook's name.
        hook: String,
        /// The model's element type.
        dtype: DType,
    },
    /// The ranks do not hold the same model, settings or values. All ranks that took part in the comparison say the same.
    #[error("{} differ{}: {at}: {}", name_ranks(ranks), if ranks.len() == 1 { "s" } else { "" }, versions_text(versions))]
    ModelMismatch {
        /// The minority; on a tie, all.
        ranks: Vec<Rank>,
        /// Where the first difference is.
        at: String,
        /// Every version, with the ranks that have it.
        versions: Vec<(Vec<Rank>, String)>,
    },
    /// A bucket's reduction failed. The step is over and its gradients are lost.
    #[error("bucket {bucket} ({params}): {source}")]
    Reduction {
        /// Which bucket.
        bucket: usize,
        /// Which parameters are in it.
        params: String,
        /// The cause, with the culprit.
        source: Error,
    },
    /// Something else that the ranks do together failed.
    #[error("{during}: {source}")]
    Communication {
        /// What.
        during: &'static str,
        /// The cause, with the culprit.
        source: Error,
    },
    /// A hook panicked. The step is over and its gradients are lost.
    #[error("hook {hook} panicked on bucket {bucket}: {what}")]
    HookPanicked {
        /// The hook's name.
        hook: String,
        /// Which bucket.
        bucket: usize,
        /// The panic's message.
        what: String,
    },
}

impl DdpError {
    /// Whom the error blames; empty where nobody is to blame.
    pub fn culprits(&self) -> &[Rank] {
        match self {
            DdpError::ModelMismatch { ranks, .. } => ranks,
            DdpError::Reduction { source, .. } | DdpError::Communication { source, .. } => {
                source.culprits()
            }
            _ => &[],
        }
    }

    /// The group's error underneath, where there is one.
    pub fn communication(&self) -> Option<&Error> {
        match self {
            DdpError::Reduction { source, .. } | DdpError::Communication { source, .. } => {
                Some(source)
            }
            _ => None,
        }
    }
}

/// The first few names, and how many more.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = names
        .iter()
        .take(SHOWN)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

fn versions_text(versions: &[(Vec<Rank>, String)]) -> String {
    let all: Vec<String> = versions
        .iter()
        .map(|(ranks, what)| {
            let verb = if ranks.len() == 1 { "has" } else { "have" };
            format!("{} {verb} {what}", name_ranks(ranks))
        })
        .collect();
    all.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_parameters_and_ranks() {
        let e = DdpError::MissingGradients {
            names: (0..10).map(|i| format!("w{i}")).collect(),
            count: 12,
        };
        assert_eq!(
            e.to_string(),
            "10 of 12 gradients were not handed over in this step: w0, w1, w2, w3, w4, w5, w6, w7 and 2 more"
        );
        let e = DdpError::ModelMismatch {
            ranks: vec![Rank(2)],
            at: "parameter 1".into(),
            versions: vec![
                (vec![Rank(0), Rank(1)], "\"b\" [3]".into()),
                (vec![Rank(2)], "\"b\" [4]".into()),
            ],
        };
        assert_eq!(
            e.to_string(),
            "rank 2 differs: parameter 1: ranks 0 and 1 have \"b\" [3]; rank 2 has \"b\" [4]"
        );
        assert_eq!(e.culprits(), [Rank(2)]);
    }
}
