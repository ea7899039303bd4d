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
    /// Signed 8 bits.
    I8 = 7,
    /// Signed 16 bits.
    I16 = 8,
    /// Unsigned 16 bits.
    U16 = 9,
    /// Unsigned 32 bits.
    U32 = 10,
    /// Unsigned 64 bits.
    U64 = 11,
    /// One byte, true unless 0; see [`Bool`].
    Bool = 12,
}

impl DType {
    /// All element types, in the order of their numbers.
    pub const ALL: [DType; 13] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::Bf16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::Bool,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 | DType::U64 => 8,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F16 | DType::Bf16 | DType::I16 | DType::U16 => 2,
            DType::U8 | DType::I8 | DType::Bool => 1,
        }
    }

    /// Whether means and weights make sense on it.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::Bf16)
    }

    /// Whether bitwise reductions make sense on it: integers and bool.
    pub const fn is_bits(self) -> bool {
        !self.is_float()
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
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::Bool => "bool",
        })
    }
}

/// The type with that name: `f32`, `bool`.
impl std::str::FromStr for DType {
    type Err = String;
    fn from_str(s: &str) -> Result<DType, String> {
        let found = Self::ALL.iter().find(|d| d.to_string() == s);
        found.copied().ok_or_else(|| {
            let known: Vec<String> = Self::ALL.iter().map(DType::to_string).collect();
            format!(
                "no element type is called '{s}'; there are {}",
                known.join(", ")
            )
        })
    }
}

/// How elements are written on the wire. All but `None` apply to f32 alone, and round once to nearest even.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[repr(u8)]
pub enum Codec {
    /// As they are.
    #[default]
    None = 0,
    /// As bf16: half the bytes, relative error at most 2⁻⁸.
    Bf16 = 1,
    /// As f16: half the bytes, relative error at most 2⁻¹¹ between 2⁻¹⁴ and 65504; larger values become infinite, smaller ones lose bits.
    F16 = 2,
    /// In blocks of [`Codec::BLOCK`] elements: one f32 scale, then one byte per element (a little over a quarter of the bytes), error at most half a scale.
    ///
    /// The scale is symmetric: the block's largest finite magnitude / 126, rounded up to 17 significant bits (below 2⁻¹³³, where f32 has fewer, to a power of two), so that coding what was decoded changes nothing; values that this would carry beyond the largest f32 become that.
    /// Codes −126..=126 are multiples of the scale; −128 is NaN, −127 and 127 are the infinities.
    /// A block's bytes are 4 for the scale (little-endian), then the codes, padded with zeros to a multiple of 4 in the message's last block.
    Int8 = 3,
}

impl Codec {
    /// All of them, in the order of their numbers.
    pub const ALL: [Codec; 4] = [Codec::None, Codec::Bf16, Codec::F16, Codec::Int8];
    /// Elements that share a scale in [`Codec::Int8`], counted from a message's start.
    pub const BLOCK: u64 = 256;

    /// The codec with number `n`, as sent in a descriptor.
    pub fn from_number(n: u8) -> Option<Codec> {
        Self::ALL.get(n as usize).copied()
    }

    /// Whether elements of `dtype` can be written so.
    pub fn applies_to(self, dtype: DType) -> bool {
        self == Codec::None || dtype == DType::F32
    }

    /// The type that is on the wire when elements of `dtype` are sent, or `None` where the codec does not apply or does not write element by element.
    pub fn wire_type(self, dtype: DType) -> Option<DType> {
        match (self, dtype) {
            (Codec::None, d) => Some(d),
            (Codec::Bf16, DType::F32) => Some(DType::Bf16),
            (Codec::F16, DType::F32) => Some(DType::F16),
            _ => None,
        }
    }

    /// Bytes of a message of `n` elements of `dtype`; `None` where the codec does not apply.
    pub fn wire_bytes(self, dtype: DType, n: u64) -> Option<u64> {
        match (self, dtype) {
            (Codec::Int8, DType::F32) => {
                let scales = n.div_ceil(Self::BLOCK) * 4;
                Some(scales + n.next_multiple_of(4))
            }
            _ => Some(self.wire_type(dtype)?.size() as u64 * n),
        }
    }

    /// Bytes that may not be torn apart on the way; every message is a multiple of it.
    pub fn unit(self, dtype: DType) -> u32 {
        self.wire_type(dtype).map_or(4, |d| d.size() as u32)
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Codec::None => "plain",
            Codec::Bf16 => "bf16",
            Codec::F16 => "f16",
            Codec::Int8 => "int8",
        })
    }
}

/// The codec with that name: `plain`, `bf16`, `f16`, `int8`.
impl std::str::FromStr for Codec {
    type Err = String;
    fn from_str(s: &str) -> Result<Codec, String> {
        let found = Self::ALL.iter().find(|c| c.to_string() == s);
        found
            .copied()
            .ok_or_else(|| format!("no codec is called '{s}'; there are plain, bf16, f16, int8"))
    }
}

/// A Rust type that may stand in a buffer.
///
/// # Safety
/// The type has no padding, every bit pattern is a value, and `DTYPE` names its size and layout.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be communicated",
    note = "elements are f32, f64, half::f16, half::bf16, the integers of 8 to 64 bits, and gaggle's Bool"
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
pub trait Int: Bits {}
/// Elements that have bitwise reductions: the integer types and [`Bool`].
pub trait Bits: Element {}

/// A truth value as one byte: false is 0, everything else is true. Rust's own `bool` has bit patterns that are no value, so that a peer's bytes could not be taken as such.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Bool(pub u8);

impl From<bool> for Bool {
    fn from(b: bool) -> Bool {
        Bool(u8::from(b))
    }
}

impl From<Bool> for bool {
    fn from(b: Bool) -> bool {
        b.0 != 0
    }
}

/// As truth values.
impl PartialEq for Bool {
    fn eq(&self, other: &Bool) -> bool {
        bool::from(*self) == bool::from(*other)
    }
}
impl Eq for Bool {}

impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bool::from(*self).fmt(f)
    }
}

macro_rules! elements {
    ($($t:ty => $d:ident),*) => {$(
        // SAFETY: a primitive (or `#[repr(transparent)]` over one): no padding, every bit pattern a value, size as in `DType::size`.
        unsafe impl Element for $t { const DTYPE: DType = DType::$d; }
    )*};
}
elements!(
    f32 => F32, f64 => F64, f16 => F16, bf16 => Bf16,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64, Bool => Bool
);

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
macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Bits for $t {}
        impl Int for $t {}
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);
impl Bits for Bool {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for d in DType::ALL {
            assert_eq!(DType::from_number(d as u8), Some(d));
            assert_eq!(d.to_string().parse(), Ok(d));
        }
        assert_eq!(DType::from_number(13), None);
        for c in Codec::ALL {
            assert_eq!(Codec::from_number(c as u8), Some(c));
            assert_eq!(c.to_string().parse(), Ok(c));
        }
        assert_eq!(Codec::from_number(4), None);
    }

    #[test]
    fn blocks_of_bytes_have_a_scale_each() {
        let bytes = |n| Codec::Int8.wire_bytes(DType::F32, n);
        assert_eq!(bytes(0), Some(0));
        assert_eq!(bytes(1), Some(8));
        assert_eq!(bytes(256), Some(260));
        assert_eq!(bytes(257), Some(268));
        assert_eq!(Codec::Int8.wire_bytes(DType::F64, 1), None);
    }

    #[test]
    fn bf16_is_a_codec_of_f32_alone() {
        assert_eq!(Codec::Bf16.wire_type(DType::F32), Some(DType::Bf16));
        assert_eq!(Codec::Bf16.wire_type(DType::F64), None);
        assert_eq!(Codec::None.wire_type(DType::I64), Some(DType::I64));
    }
}
