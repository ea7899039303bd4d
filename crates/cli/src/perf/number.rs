//! Numbers of every element type: how whole numbers become elements, and how exact the type is.

use gaggle_core::{Bool, DType, Element};
use half::{bf16, f16};

/// How exact a float type is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Precision {
    /// Whole numbers up to two to this are exact.
    pub(super) bits: u32,
    /// Distance from 1 to the next number.
    pub(super) epsilon: f64,
}

impl Precision {
    const fn of(bits: u32) -> Precision {
        // 2^(1 - bits): bits are at most 53, so the exponent field is positive.
        Precision {
            bits,
            epsilon: f64::from_bits((1024 - bits as u64) << 52),
        }
    }

    /// Of bf16, the coarsest there is.
    pub(super) const BF16: Precision = Precision::of(8);
    /// Of f16.
    pub(super) const F16: Precision = Precision::of(11);
}

/// What the checker needs of an element.
pub(super) trait Number: Element {
    /// `None`: whole numbers that wrap, or truth values.
    const PRECISION: Option<Precision>;
    /// The nearest element; integers wrap, of truth values all but 0 are true.
    fn of(v: i64) -> Self;
    /// As a float; of truth values 0 and 1.
    fn real(self) -> f64;
    /// What stands where nothing may be read: not a number, where the type has one.
    fn poison() -> Self;
}

macro_rules! floats {
    ($($t:ty, $bits:literal, $of:expr, $real:expr);*) => {$(
        impl Number for $t {
            const PRECISION: Option<Precision> = Some(Precision::of($bits));
            fn of(v: i64) -> Self { ($of)(v) }
            fn real(self) -> f64 { ($real)(self) }
            fn poison() -> Self { <$t>::NAN }
        }
    )*};
}
floats!(
    f32, 24, |v| v as f32, f64::from;
    f64, 53, |v| v as f64, |x| x;
    f16, 11, |v| f16::from_f64(v as f64), f16::to_f64;
    bf16, 8, |v| bf16::from_f64(v as f64), bf16::to_f64
);

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Number for $t {
            const PRECISION: Option<Precision> = None;
            // Wrapping is what sums and products of integers do.
            fn of(v: i64) -> Self { v as $t }
            fn real(self) -> f64 { self as f64 }
            fn poison() -> Self { 85 }
        }
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

impl Number for Bool {
    const PRECISION: Option<Precision> = None;
    fn of(v: i64) -> Self {
        Bool::from(v != 0)
    }
    fn real(self) -> f64 {
        f64::from(u8::from(bool::from(self)))
    }
    fn poison() -> Self {
        Bool(1)
    }
}

/// Runs an expression with `$T` standing for the Rust type of an element type.
macro_rules! with_type {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            gaggle_core::DType::F32 => {
                type $T = f32;
                $body
            }
            gaggle_core::DType::F64 => {
                type $T = f64;
                $body
            }
            gaggle_core::DType::F16 => {
                type $T = half::f16;
                $body
            }
            gaggle_core::DType::Bf16 => {
                type $T = half::bf16;
                $body
            }
            gaggle_core::DType::I8 => {
                type $T = i8;
                $body
            }
            gaggle_core::DType::I16 => {
                type $T = i16;
                $body
            }
            gaggle_core::DType::I32 => {
                type $T = i32;
                $body
            }
            gaggle_core::DType::I64 => {
                type $T = i64;
                $body
            }
            gaggle_core::DType::U8 => {
                type $T = u8;
                $body
            }
            gaggle_core::DType::U16 => {
                type $T = u16;
                $body
            }
            gaggle_core::DType::U32 => {
                type $T = u32;
                $body
            }
            gaggle_core::DType::U64 => {
                type $T = u64;
                $body
            }
            gaggle_core::DType::Bool => {
                type $T = gaggle_core::Bool;
                $body
            }
        }
    };
}
pub(super) use with_type;

/// An element type by our name or by that of nccl-tests.
pub(super) fn dtype(text: &str) -> Result<DType, String> {
    match text {
        "float" => Ok(DType::F32),
        "double" => Ok(DType::F64),
        "half" => Ok(DType::F16),
        "bfloat16" => Ok(DType::Bf16),
        "int8" => Ok(DType::I8),
        "uint8" => Ok(DType::U8),
        "int32" | "int" => Ok(DType::I32),
        "uint32" => Ok(DType::U32),
        "int64" => Ok(DType::I64),
        "uint64" => Ok(DType::U64),
        other => other.parse(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precision_is_that_of_the_types() {
        let f32s = f32::PRECISION.unwrap();
        assert_eq!(f32s.epsilon, f64::from(f32::EPSILON));
        assert_eq!(f64::PRECISION.unwrap().epsilon, f64::EPSILON);
        assert_eq!(Precision::BF16.epsilon, bf16::EPSILON.to_f64());
        assert_eq!(Precision::F16.epsilon, f16::EPSILON.to_f64());
        assert_eq!(i8::PRECISION, None);
    }

    #[test]
    fn every_type_has_the_numbers_that_the_checker_uses() {
        for dtype in DType::ALL {
            with_type!(dtype, T => {
                assert_eq!(T::DTYPE, dtype);
                assert_eq!((T::of(0).real(), T::of(1).real()), (0.0, 1.0));
                assert!(T::poison() != T::of(0));
            });
        }
        assert_eq!(u8::of(-1), 255);
    }

    #[test]
    fn element_types_have_the_names_of_nccl_tests_too() {
        assert_eq!(dtype("float"), Ok(DType::F32));
        assert_eq!(dtype("bf16"), Ok(DType::Bf16));
        assert!(dtype("complex").unwrap_err().contains("f32"));
    }
}
