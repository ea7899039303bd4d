//! Element types, and the codecs that change them on the wire.

use half::{bf16, f16};
use std::fmt;

/// Element type of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum DType {
    /// IEEE binary32.
    F32 = 0,
    /// IEEE binary64.
    F64 = 1,
    /// IEEE binary16.
    F16 = 2,
    /// The upper half of a binary32.
    Bf16 = 3,
    /// Signed 32 bits.
    I32 = 4,
    /// Signed 64 bits.
    I64 = 5,
    /// Unsigned 8 bits.
    U8 = 6,
}

impl DType {
    /// All element types, in the order of their numbers.
    pub const ALL: [DType; 7] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::Bf16,
        DType::I32,
        DType::I64,
        DType::U8,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::Bf16 => 2,
            DType::U8 => 1,
        }
    }

    /// Whether means and weights make sense on it.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::Bf16)
    }

    /// The type in which partial results travel and are kept: f32 for the 16-bit floats, itself otherwise.
    pub const fn accumulator(self) -> DType {
        match self {
            DType::F16 | DType::Bf16 => DType::F32,
            other => other,
        }
    }

    /// The type with number `n`, as sent in a descriptor.
    pub fn from_number(n: u8) -> Option<DType> {
        Self::ALL.get(n as usize).copied()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
        })
    }
}

/// How elements are written on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[repr(u8)]
pub enum Codec {
    /// As they are.
    #[default]
    None = 0,
    /// f32 rounded once to nearest-even bf16: half the bytes, relative error at most 2⁻⁸.
    Bf16 = 1,
}

impl Codec {
    /// The codec with number `n`, as sent in a descriptor.
    pub fn from_number(n: u8) -> Option<Codec> {
        [Codec::None, Codec::Bf16].get(n as usize).copied()
    }

    /// The type that is on the wire when elements of `dtype` are sent, or `None` where the codec does not apply.
    pub fn wire_type(self, dtype: DType) -> Option<DType> {
        match (self, dtype) {
            (Codec::None, d) => Some(d),
            (Codec::Bf16, DType::F32) => Some(DType::Bf16),
            (Codec::Bf16, _) => None,
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Codec::None => "plain",
            Codec::Bf16 => "bf16",
        })
    }
}

/// A Rust type that may stand in a buffer.
///
/// # Safety
/// The type has no padding, every bit pattern is a value, and `DTYPE` names its size and layout.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be communicated",
    note = "elements are f32, f64, half::f16, half::bf16, i32, i64 and u8"
)]
pub unsafe trait Element: Copy + Send + Sync + fmt::Debug + PartialEq + 'static {
    /// The type's name on the wire.
    const DTYPE: DType;
}

/// Elements that have means: the float types.
pub trait Float: Element {
    /// Nearest value of this type.
    fn from_f64(v: f64) -> Self;
    /// Exact.
    fn to_f64(self) -> f64;
}
/// Elements that wrap: the integer types.
pub trait Int: Element {}

macro_rules! elements {
    ($($t:ty => $d:ident),*) => {$(
        // SAFETY: a primitive (or `#[repr(transparent)]` over one): no padding, every bit pattern a value, size as in `DType::size`.
        unsafe impl Element for $t { const DTYPE: DType = DType::$d; }
    )*};
}
elements!(f32 => F32, f64 => F64, f16 => F16, bf16 => Bf16, i32 => I32, i64 => I64, u8 => U8);

impl Float for f32 {
    fn from_f64(v: f64) -> Self {
        v as f32
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}
impl Float for f64 {
    fn from_f64(v: f64) -> Self {
        v
    }
    fn to_f64(self) -> f64 {
        self
    }
}
impl Float for f16 {
    fn from_f64(v: f64) -> Self {
        f16::from_f64(v)
    }
    fn to_f64(self) -> f64 {
        f16::to_f64(self)
    }
}
impl Float for bf16 {
    fn from_f64(v: f64) -> Self {
        bf16::from_f64(v)
    }
    fn to_f64(self) -> f64 {
        bf16::to_f64(self)
    }
}
impl Int for i32 {}
impl Int for i64 {}
impl Int for u8 {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for d in DType::ALL {
            assert_eq!(DType::from_number(d as u8), Some(d));
        }
        assert_eq!(DType::from_number(7), None);
        assert_eq!(Codec::from_number(1), Some(Codec::Bf16));
        assert_eq!(Codec::from_number(2), None);
    }

    #[test]
    fn bf16_is_a_codec_of_f32_alone() {
        assert_eq!(Codec::Bf16.wire_type(DType::F32), Some(DType::Bf16));
        assert_eq!(Codec::Bf16.wire_type(DType::F64), None);
        assert_eq!(Codec::None.wire_type(DType::I64), Some(DType::I64));
    }
}
