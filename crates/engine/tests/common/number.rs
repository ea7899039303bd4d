//! Elements as a serial reference sees them.

use gaggle_core::{Bool, Element, Float, Reduce};
use half::{bf16, f16};

/// An element type with its reductions, written down once more.
pub trait Number: Element {
    /// Distance between 1 and the next value; 0 where arithmetic is exact.
    const EPS: f64;
    /// Some value; small and exact for floats, of any size for integers.
    fn of(v: i64) -> Self;
    /// As a float.
    fn value(self) -> f64;
    /// From the exact result.
    fn nearest(v: f64) -> Self;
    /// What all ranks' values come to, in rank order.
    fn reduced(reduce: Reduce, all: &[Self]) -> Self;
    /// Equal, or as near as a few roundings leave it.
    fn is_close(self, want: Self, roundings: f64) -> bool {
        let (a, b) = (self.value(), want.value());
        // Integers are what they are: as floats, large ones would be near what they are not.
        self == want
            || (Self::EPS > 0.0 && (a - b).abs() <= roundings * Self::EPS * b.abs().max(1.0))
    }
}

macro_rules! floats {
    ($($t:ty: $eps:expr),*) => {$(
        impl Number for $t {
            const EPS: f64 = $eps;
            fn of(v: i64) -> Self { <$t as Float>::from_f64((v.rem_euclid(8) - 3) as f64) }
            fn value(self) -> f64 { Float::to_f64(self) }
            fn nearest(v: f64) -> Self { Float::from_f64(v) }
            fn reduced(reduce: Reduce, all: &[Self]) -> Self {
                let values = all.iter().map(|v| v.value());
                Self::nearest(match reduce {
                    Reduce::Sum => values.sum(),
                    Reduce::Mean => values.sum::<f64>() / all.len() as f64,
                    Reduce::Min => values.fold(f64::INFINITY, f64::min),
                    Reduce::Max => values.fold(f64::NEG_INFINITY, f64::max),
                    Reduce::Prod => values.product(),
                    other => panic!("{other} of floats"),
                })
            }
        }
    )*};
}
floats!(f32: f64::EPSILON * 536_870_912.0, f64: f64::EPSILON, f16: 1.0 / 1024.0, bf16: 1.0 / 128.0);

macro_rules! ints {
    ($($t:ty),*) => {$(
        impl Number for $t {
            const EPS: f64 = 0.0;
            fn of(v: i64) -> Self { (v as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) as $t }
            fn value(self) -> f64 { self as f64 }
            fn nearest(v: f64) -> Self { v as $t }
            fn reduced(reduce: Reduce, all: &[Self]) -> Self {
                let all = all.iter().copied();
                match reduce {
                    Reduce::Sum => all.fold(0, <$t>::wrapping_add),
                    Reduce::Prod => all.fold(1, <$t>::wrapping_mul),
                    Reduce::Min => all.min().unwrap(),
                    Reduce::Max => all.max().unwrap(),
                    Reduce::Band => all.fold(!0, |a, b| a & b),
                    Reduce::Bor => all.fold(0, |a, b| a | b),
                    Reduce::Bxor => all.fold(0, |a, b| a ^ b),
                    other => panic!("{other} of integers"),
                }
            }
        }
    )*};
}
ints!(i8, u8, i16, u16, i32, u32, i64, u64);

impl Number for Bool {
    const EPS: f64 = 0.0;
    fn of(v: i64) -> Self {
        // Everything but 0 is true.
        Bool([0, 1, 0, 255, 7][v.rem_euclid(5) as usize])
    }
    fn value(self) -> f64 {
        f64::from(u8::from(self.0 != 0))
    }
    fn nearest(v: f64) -> Self {
        Bool::from(v != 0.0)
    }
    fn reduced(reduce: Reduce, all: &[Self]) -> Self {
        let mut all = all.iter().map(|b| bool::from(*b));
        Bool::from(match reduce {
            Reduce::Sum | Reduce::Max | Reduce::Bor => all.any(|b| b),
            Reduce::Prod | Reduce::Min | Reduce::Band => all.all(|b| b),
            Reduce::Bxor => all.filter(|b| *b).count() % 2 == 1,
            other => panic!("{other} of truth values"),
        })
    }
}

/// Runs a generic function on the type with that name.
#[macro_export]
macro_rules! with_type {
    ($dtype:expr, $f:ident($($arg:expr),*)) => {
        match $dtype {
            gaggle_core::DType::F32 => $f::<f32>($($arg),*),
            gaggle_core::DType::F64 => $f::<f64>($($arg),*),
            gaggle_core::DType::F16 => $f::<half::f16>($($arg),*),
            gaggle_core::DType::Bf16 => $f::<half::bf16>($($arg),*),
            gaggle_core::DType::I8 => $f::<i8>($($arg),*),
            gaggle_core::DType::U8 => $f::<u8>($($arg),*),
            gaggle_core::DType::I16 => $f::<i16>($($arg),*),
            gaggle_core::DType::U16 => $f::<u16>($($arg),*),
            gaggle_core::DType::I32 => $f::<i32>($($arg),*),
            gaggle_core::DType::U32 => $f::<u32>($($arg),*),
            gaggle_core::DType::I64 => $f::<i64>($($arg),*),
            gaggle_core::DType::U64 => $f::<u64>($($arg),*),
            gaggle_core::DType::Bool => $f::<gaggle_core::Bool>($($arg),*),
        }
    };
}
