//! Calls of a user's reduction: on aligned tiles of its own element type, with its panics caught and the library out of its reach.
//!
//! The engine is locked meanwhile. A call of the library from inside would wait for that lock for ever; [`inside`] says that this thread is there, and every entrance refuses then.

use crate::drive::panic_text;
use gaggle_core::{Cause, DType, Error, UserReduction, raw::bytes_of_mut};
use gaggle_kernels as kernels;
use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Elements per call.
const TILE: usize = 512;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in a user's reduction.
pub(crate) fn inside() -> bool {
    INSIDE.get()
}

/// # Errors
/// This thread is in a user's reduction: the engine is locked.
pub(crate) fn refuse_inside(op: &str) -> Result<(), Error> {
    if inside() {
        return Err(refused(op));
    }
    Ok(())
}

pub(crate) fn refused(op: &str) -> Error {
    Cause::Invalid {
        op: op.into(),
        what: "called from inside a user's reduction, which runs while the engine is locked".into(),
    }
    .into()
}

/// Elements, and their type.
#[derive(Clone, Copy)]
pub(crate) struct Elements<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) dtype: DType,
}

/// `acc` = `acc ∘ x`, or `x ∘ acc` where `x_first`. Where a type is wider than the function's, elements are converted for the call; that loses nothing, because all of them have come from the narrower one.
///
/// # Errors
/// What a panic of the function said; `acc` is partly written then.
pub(crate) fn combine(
    user: &UserReduction,
    acc: &mut [u8],
    acc_type: DType,
    x: Elements<'_>,
    x_first: bool,
) -> Result<(), String> {
    let (mut left, mut right) = ([0u64; TILE], [0u64; TILE]);
    let (left, right) = (bytes_of_mut(&mut left), bytes_of_mut(&mut right));
    let parts = acc.chunks_mut(TILE * acc_type.size());
    for (acc, part) in parts.zip(x.bytes.chunks(TILE * x.dtype.size())) {
        let n = acc.len() / acc_type.size() * user.dtype().size();
        let (left, right) = (&mut left[..n], &mut right[..n]);
        kernels::convert(left, user.dtype(), acc, acc_type);
        kernels::convert(right, user.dtype(), part, x.dtype);
        call(user, left, right, x_first)?;
        kernels::convert(acc, acc_type, left, user.dtype());
    }
    Ok(())
}

/// `dst` = the operands, combined from the left. `None` is `dst` itself.
///
/// # Errors
/// What a panic of the function said; `dst` is partly written then.
pub(crate) fn fold(
    user: &UserReduction,
    dst: &mut [u8],
    dst_type: DType,
    operands: &[Option<Elements<'_>>],
) -> Result<(), String> {
    let (mut left, mut right) = ([0u64; TILE], [0u64; TILE]);
    let (left, right) = (bytes_of_mut(&mut left), bytes_of_mut(&mut right));
    let size = user.dtype().size();
    for (i, dst) in dst.chunks_mut(TILE * dst_type.size()).enumerate() {
        let n = dst.len() / dst_type.size();
        let (left, right) = (&mut left[..n * size], &mut right[..n * size]);
        for (k, operand) in operands.iter().enumerate() {
            let to = if k == 0 { &mut *left } else { &mut *right };
            match operand {
                None => kernels::convert(to, user.dtype(), dst, dst_type),
                Some(x) => {
                    let (lo, size) = (i * TILE, x.dtype.size());
                    let part = &x.bytes[lo * size..(lo + n) * size];
                    kernels::convert(to, user.dtype(), part, x.dtype);
                }
            }
            if k > 0 {
                call(user, left, right, false)?;
            }
        }
        if !operands.is_empty() {
            kernels::convert(dst, dst_type, left, user.dtype());
        }
    }
    Ok(())
}

fn call(user: &UserReduction, acc: &mut [u8], x: &[u8], x_first: bool) -> Result<(), String> {
    let outer = INSIDE.replace(true);
    let called = catch_unwind(AssertUnwindSafe(|| user.combine().combine(acc, x, x_first)));
    INSIDE.set(outer);
    match called {
        Ok(true) => Ok(()),
        Ok(false) => Err("its elements are not what it was made for".into()),
        Err(panic) => Err(panic_text(&*panic)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle_core::{Properties, raw::bytes_of};

    fn minus() -> UserReduction {
        UserReduction::new("minus", Properties::default(), |a: f32, b: f32| a - b)
    }

    #[test]
    fn operands_are_combined_from_the_left_wherever_they_lie() {
        for n in [0, 1, 511, 512, 513, 1030] {
            let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let y = vec![2.0f32; n];
            let mut odd = vec![0u8; 4 * n + 1];
            odd[1..].copy_from_slice(bytes_of(&y));
            let mut dst = vec![100.0f32; n];
            let [x, y] = [bytes_of(&x), &odd[1..]].map(|bytes| Elements {
                bytes,
                dtype: DType::F32,
            });
            fold(
                &minus(),
                bytes_of_mut(&mut dst),
                DType::F32,
                &[Some(x), None, Some(y)],
            )
            .unwrap();
            let want: Vec<f32> = (0..n).map(|i| i as f32 - 102.0).collect();
            assert_eq!(dst, want);
            combine(&minus(), bytes_of_mut(&mut dst), DType::F32, y, true).unwrap();
            let want: Vec<f32> = (0..n).map(|i| 104.0 - i as f32).collect();
            assert_eq!(dst, want);
        }
    }

    #[test]
    fn a_panic_is_caught_and_the_thread_is_outside_again() {
        let wrong = UserReduction::new("wrong", Properties::default(), |_: i32, _: i32| -> i32 {
            assert!(inside());
            assert!(refuse_inside("all_reduce").is_err());
            panic!("no such number")
        });
        let mut acc = [1i32];
        let x = Elements {
            bytes: bytes_of(&[2i32]),
            dtype: DType::I32,
        };
        let said = combine(&wrong, bytes_of_mut(&mut acc), DType::I32, x, false);
        assert_eq!(said, Err("no such number".into()));
        assert!(!inside());
        assert!(refuse_inside("all_reduce").is_ok());
    }

    #[test]
    fn halves_are_narrow_for_the_function_and_wide_in_between() {
        use half::f16;
        let twice = UserReduction::new("twice", Properties::default(), |a: f16, b: f16| {
            f16::from_f32(2.0 * a.to_f32() + b.to_f32())
        });
        let mut acc = [1.0f32, 65504.0];
        let x = [f16::from_f32(0.5), f16::from_f32(1.0)];
        let x = Elements {
            bytes: bytes_of(&x),
            dtype: DType::F16,
        };
        combine(&twice, bytes_of_mut(&mut acc), DType::F32, x, false).unwrap();
        assert_eq!(acc, [2.5, f32::INFINITY]);
    }
}
