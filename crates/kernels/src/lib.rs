//! Arithmetic on raw bytes: reductions, folds, weights, conversions, wire codecs and neighbour averages.
//!
//! Everything works on plain `&[u8]` that may be unaligned, or on [`Window`](gaggle_core::Window)s of memory that others may write meanwhile, with the element type given as a [`DType`]; nothing allocates, and nothing here knows of ranks, time or the network.
//! What the results are, whatever the alignment and the length:
//! - integers wrap;
//! - f32 is folded and weighted in f64, 16-bit floats in f32, f64 in f64, and the result is rounded once to nearest even;
//! - MIN and MAX order −0 below +0;
//! - a NaN that comes out of arithmetic is the one canonical quiet NaN of its type, so that equal inputs give equal bits whatever instructions did the work;
//! - data of weight 0 is never read, so its NaN cannot poison; weight 1 multiplies nothing;
//! - the bits are the same on every instruction set ([`Isa`]: the widest one is chosen when the first kernel runs), and whatever floating-point mode the calling thread is in.
//!
//! A length that does not fit, or an operation that does not exist on the type, is a mistake of the engine's and panics with a message; the engine has checked both against the descriptor before any byte comes here.
//!
//! ```
//! use gaggle_core::{DType, Reduce, raw::{bytes_of, bytes_of_mut}};
//!
//! let mut there = [1.0f32, 5.0];
//! let incoming = [3.0f32, 4.0];
//! gaggle_kernels::combine(DType::F32, Reduce::Max, bytes_of_mut(&mut there), bytes_of(&incoming), true);
//! assert_eq!(there, [3.0, 5.0]);
//! ```
#![deny(unsafe_code)]

mod codec;
mod combine;
mod exact;
mod few;
mod fold;
mod int8;
mod mix;
mod mix_quick;
mod num;
#[allow(
    unsafe_code,
    reason = "calls code compiled for what the processor was found to have"
)]
mod raw_isa;
#[allow(
    unsafe_code,
    reason = "reads and writes memory that others write meanwhile, by assembly"
)]
mod raw_lines;
#[allow(
    unsafe_code,
    reason = "reads and writes the floating-point control register"
)]
mod raw_mode;
mod tiles;
mod windows;

pub use codec::{Decoding, compensate, convert, decode, decode_at, encode, encode_at, recode};
pub use combine::{combine, combine_weighted, divide, scale, weigh};
pub use few::Line;
pub use fold::{How, Source, Term, fold, fold_windows, fold_with, sum_lines};
pub use mix::{MixTerm, MixWindow, mix, mix_windows};
pub use raw_isa::Isa;

use gaggle_core::DType;

/// Runs `$e` with `$T` as the Rust type of `$dtype`.
macro_rules! by_dtype {
    ($dtype:expr, $T:ident => $e:expr) => {
        match $dtype {
            gaggle_core::DType::F32 => {
                type $T = f32;
                $e
            }
            gaggle_core::DType::F64 => {
                type $T = f64;
                $e
            }
            gaggle_core::DType::F16 => {
                type $T = half::f16;
                $e
            }
            gaggle_core::DType::Bf16 => {
                type $T = half::bf16;
                $e
            }
            gaggle_core::DType::I32 => {
                type $T = i32;
                $e
            }
            gaggle_core::DType::I64 => {
                type $T = i64;
                $e
            }
            gaggle_core::DType::U8 => {
                type $T = u8;
                $e
            }
            gaggle_core::DType::I8 => {
                type $T = i8;
                $e
            }
            gaggle_core::DType::I16 => {
                type $T = i16;
                $e
            }
            gaggle_core::DType::U16 => {
                type $T = u16;
                $e
            }
            gaggle_core::DType::U32 => {
                type $T = u32;
                $e
            }
            gaggle_core::DType::U64 => {
                type $T = u64;
                $e
            }
            gaggle_core::DType::Bool => {
                type $T = gaggle_core::Bool;
                $e
            }
        }
    };
}

/// As `by_dtype`, for floats; panics on integers, naming `$what`.
macro_rules! by_float {
    ($what:literal, $dtype:expr, $T:ident => $e:expr) => {
        match $dtype {
            gaggle_core::DType::F32 => {
                type $T = f32;
                $e
            }
            gaggle_core::DType::F64 => {
                type $T = f64;
                $e
            }
            gaggle_core::DType::F16 => {
                type $T = half::f16;
                $e
            }
            gaggle_core::DType::Bf16 => {
                type $T = half::bf16;
                $e
            }
            other => panic!(concat!($what, " is not defined on {}"), other),
        }
    };
}

use by_dtype;
use by_float;

/// Number of elements in `bytes`.
#[track_caller]
fn elements(what: &str, dtype: DType, bytes: usize) -> usize {
    let size = dtype.size();
    assert!(
        bytes.is_multiple_of(size),
        "{what}: {bytes} bytes are no whole number of {dtype} elements"
    );
    bytes / size
}

/// Panics unless both buffers hold the same number of elements; returns that number.
#[track_caller]
fn same_elements(what: &str, dst: (DType, usize), src: (DType, usize)) -> usize {
    let n = elements(what, dst.0, dst.1);
    let m = elements(what, src.0, src.1);
    assert!(n == m, "{what}: {m} elements for a room of {n}");
    n
}
