//! What may be promised together: reproducibility modes, codecs, error feedback and users' functions.

use gaggle_core::{Cause, Codec, DType, Error, Kind, Mode, Op, Reduce};

/// Checks what does not depend on lengths or ranks.
///
/// # Errors
/// Which two do not go together, and what to do instead.
pub(crate) fn check(op: &Op, name: &str, dtype: DType) -> Result<(), Error> {
    let refused = |what: String| {
        Err(Cause::Unsupported {
            op: name.into(),
            what,
        }
        .into())
    };
    let reduce = match &op.kind {
        Kind::AllReduce(reduce)
        | Kind::Reduce { reduce, .. }
        | Kind::ReduceScatter { reduce, .. } => Some(*reduce),
        _ => None,
    };
    if op.mode == Mode::Exact {
        let average = matches!(op.kind, Kind::Mix { .. } | Kind::HierarchicalMix { .. });
        match reduce {
            Some(Reduce::User) => {
                return refused(
                    "a user's reduction rounds as it likes; ordered calls it in rank order".into(),
                );
            }
            Some(Reduce::Prod) if dtype.is_float() => {
                return refused(
                    "products of floats are not accumulated exactly; sums and means are".into(),
                );
            }
            None if average => {
                return refused("averages with neighbours are not accumulated exactly; they are folded in the order of the round and rounded once".into());
            }
            _ => {}
        }
        if op.codec != Codec::None && (reduce.is_some() || average) {
            return refused(format!(
                "an exact result is not rounded to {} on its way",
                op.codec
            ));
        }
    }
    if reduce == Some(Reduce::User) && op.codec != Codec::None {
        return refused(format!(
            "a user's reduction is called on what the ranks give, not on what {} makes of it",
            op.codec
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_contradicts_itself_is_refused() {
        let says = |op: Op, dtype| check(&op, "all_reduce", dtype).map_err(|e| e.to_string());
        let exact = |reduce| Op::new(Kind::AllReduce(reduce)).in_mode(Mode::Exact);
        assert_eq!(says(exact(Reduce::Sum), DType::F32), Ok(()));
        assert_eq!(says(exact(Reduce::Max), DType::F32), Ok(()));
        assert_eq!(says(exact(Reduce::Prod), DType::I64), Ok(()));
        assert_eq!(
            says(exact(Reduce::Prod), DType::F64),
            Err(
                "all_reduce: products of floats are not accumulated exactly; sums and means are"
                    .into()
            )
        );
        assert_eq!(
            says(exact(Reduce::Sum).coded(Codec::Int8), DType::F32),
            Err("all_reduce: an exact result is not rounded to int8 on its way".into())
        );
        assert!(says(exact(Reduce::User), DType::F32).is_err());
        let user = Op::new(Kind::AllReduce(Reduce::User));
        assert_eq!(
            says(user.clone().in_mode(Mode::Ordered), DType::F32),
            Ok(())
        );
        assert!(says(user.coded(Codec::Bf16), DType::F32).is_err());
    }
}
