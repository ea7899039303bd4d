//! The numbers: for each element type its four operations and the wider type it is folded in.

use crate::tiles::fold_in;
use gaggle_core::{Bool, DType, Element};
use half::{bf16, f16};

/// An element type with its arithmetic. Operations on floats give the canonical NaN and round once.
pub(crate) trait Num: Element {
    /// What it is folded in.
    type Wide: Wide;
    /// The number 0.
    const ZERO: Self;
    fn wide(self) -> Self::Wide;
    /// Nearest even; a NaN becomes the canonical one.
    fn narrow(w: Self::Wide) -> Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    /// Bitwise; floats have none and panic.
    #[inline(always)]
    fn band(self, _other: Self) -> Self {
        panic!("bitwise reductions are not defined on {}", Self::DTYPE)
    }
    /// As `band`.
    #[inline(always)]
    fn bor(self, _other: Self) -> Self {
        panic!("bitwise reductions are not defined on {}", Self::DTYPE)
    }
    /// As `band`.
    #[inline(always)]
    fn bxor(self, _other: Self) -> Self {
        panic!("bitwise reductions are not defined on {}", Self::DTYPE)
    }
}

/// A type that others are folded in.
pub(crate) trait Wide: Num {
    /// Nearest value of a weight or a factor; integers have none and panic.
    fn factor(w: f64) -> Self;
    fn sub(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// Replaces each of `acc` by `f` of it and its counterpart in `bytes`, widened from `dtype`.
    fn fold_in(acc: &mut [Self], bytes: &[u8], dtype: DType, f: impl Fn(Self, Self) -> Self);
}

/// Float types: what casts and averages need besides.
pub(crate) trait Real: Num {
    /// Exact.
    fn to_f64(self) -> f64;
    /// Nearest even in one step.
    fn of_f64(v: f64) -> Self;
}

/// `$t::NAN` is the canonical quiet NaN: positive, only the quiet bit set.
macro_rules! canonical {
    ($t:ident, $e:expr) => {{
        let x = $e;
        if x.is_nan() { $t::NAN } else { x }
    }};
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Num for $t {
            type Wide = $t;
            const ZERO: $t = 0;
            #[inline(always)]
            fn wide(self) -> $t { self }
            #[inline(always)]
            fn narrow(w: $t) -> $t { w }
            #[inline(always)]
            fn add(self, other: $t) -> $t { self.wrapping_add(other) }
            #[inline(always)]
            fn mul(self, other: $t) -> $t { self.wrapping_mul(other) }
            #[inline(always)]
            fn min(self, other: $t) -> $t { Ord::min(self, other) }
            #[inline(always)]
            fn max(self, other: $t) -> $t { Ord::max(self, other) }
            #[inline(always)]
            fn band(self, other: $t) -> $t { self & other }
            #[inline(always)]
            fn bor(self, other: $t) -> $t { self | other }
            #[inline(always)]
            fn bxor(self, other: $t) -> $t { self ^ other }
        }
        impl Wide for $t {
            #[inline(always)]
            fn factor(_: f64) -> $t {
                panic!("weights and factors are not defined on {}", <$t>::DTYPE)
            }
            #[inline(always)]
            fn sub(self, other: $t) -> $t { self.wrapping_sub(other) }
            #[inline(always)]
            fn div(self, _: $t) -> $t {
                panic!("division is not defined on {}", <$t>::DTYPE)
            }
            #[inline(always)]
            fn fold_in(acc: &mut [$t], bytes: &[u8], dtype: DType, f: impl Fn($t, $t) -> $t) {
                assert!(dtype == <$t>::DTYPE, "{dtype} folded into {}", <$t>::DTYPE);
                fold_in(acc, bytes, |a, x: $t| f(a, x));
            }
        }
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

/// Truth values: SUM and MAX are or, PROD and MIN and; results are 0 or 1.
impl Num for Bool {
    type Wide = Bool;
    const ZERO: Bool = Bool(0);
    #[inline(always)]
    fn wide(self) -> Bool {
        self
    }
    #[inline(always)]
    fn narrow(w: Bool) -> Bool {
        Bool(u8::from(w.0 != 0))
    }
    #[inline(always)]
    fn add(self, other: Bool) -> Bool {
        Bool(u8::from(self.0 != 0) | u8::from(other.0 != 0))
    }
    #[inline(always)]
    fn mul(self, other: Bool) -> Bool {
        Bool(u8::from(self.0 != 0) & u8::from(other.0 != 0))
    }
    #[inline(always)]
    fn min(self, other: Bool) -> Bool {
        self.mul(other)
    }
    #[inline(always)]
    fn max(self, other: Bool) -> Bool {
        self.add(other)
    }
    #[inline(always)]
    fn band(self, other: Bool) -> Bool {
        self.mul(other)
    }
    #[inline(always)]
    fn bor(self, other: Bool) -> Bool {
        self.add(other)
    }
    #[inline(always)]
    fn bxor(self, other: Bool) -> Bool {
        Bool(u8::from(self.0 != 0) ^ u8::from(other.0 != 0))
    }
}
impl Wide for Bool {
    #[inline(always)]
    fn factor(_: f64) -> Bool {
        panic!("weights and factors are not defined on bool")
    }
    #[inline(always)]
    fn sub(self, _: Bool) -> Bool {
        panic!("subtraction is not defined on bool")
    }
    #[inline(always)]
    fn div(self, _: Bool) -> Bool {
        panic!("division is not defined on bool")
    }
    #[inline(always)]
    fn fold_in(acc: &mut [Bool], bytes: &[u8], dtype: DType, f: impl Fn(Bool, Bool) -> Bool) {
        assert!(dtype == DType::Bool, "{dtype} folded into bool");
        fold_in(acc, bytes, |a, x: Bool| f(a, x));
    }
}

macro_rules! floats {
    ($($t:ident wide $w:ident),*) => {$(
        impl Num for $t {
            type Wide = $w;
            const ZERO: $t = 0.0;
            #[inline(always)]
            fn wide(self) -> $w { self as $w }
            #[inline(always)]
            fn narrow(w: $w) -> $t { canonical!($t, w as $t) }
            // Rounding a sum or a product of two f32 from f64 gives what f32 arithmetic gives at once (53 ≥ 2·24 + 2), so these stay narrow.
            #[inline(always)]
            fn add(self, other: $t) -> $t { canonical!($t, self + other) }
            #[inline(always)]
            fn mul(self, other: $t) -> $t { canonical!($t, self * other) }
            #[inline(always)]
            fn min(self, other: $t) -> $t {
                let r = if self < other { self } else { other };
                // Equal values differ at most in the sign of a zero: either sign makes the smaller one.
                let tie = $t::from_bits(self.to_bits() | other.to_bits());
                let r = if self == other { tie } else { r };
                if self.is_nan() | other.is_nan() { $t::NAN } else { r }
            }
            #[inline(always)]
            fn max(self, other: $t) -> $t {
                let r = if self > other { self } else { other };
                let tie = $t::from_bits(self.to_bits() & other.to_bits());
                let r = if self == other { tie } else { r };
                if self.is_nan() | other.is_nan() { $t::NAN } else { r }
            }
        }
    )*};
}

floats!(f32 wide f64, f64 wide f64);

macro_rules! halves {
    ($($t:ident, $to:ident, $of:ident);*) => {$(
        impl Num for $t {
            // In f32: rounding its sums and products once more is rounding once (24 ≥ 2·11 + 2).
            type Wide = f32;
            const ZERO: $t = $t::from_bits(0);
            #[inline(always)]
            fn wide(self) -> f32 { $to(self) }
            #[inline(always)]
            fn narrow(w: f32) -> $t { $of(canonical!(f32, w)) }
            #[inline(always)]
            fn add(self, other: $t) -> $t { Self::narrow(self.wide() + other.wide()) }
            #[inline(always)]
            fn mul(self, other: $t) -> $t { Self::narrow(self.wide() * other.wide()) }
            #[inline(always)]
            fn min(self, other: $t) -> $t { Self::narrow(Num::min(self.wide(), other.wide())) }
            #[inline(always)]
            fn max(self, other: $t) -> $t { Self::narrow(Num::max(self.wide(), other.wide())) }
        }
        impl Real for $t {
            #[inline(always)]
            fn to_f64(self) -> f64 { f64::from($to(self)) }
            #[inline(always)]
            fn of_f64(v: f64) -> $t { $of(round_to_odd(v)) }
        }
    )*};
}
halves!(f16, f32_of_f16, f16_of_f32; bf16, f32_of_bf16, bf16_of_f32);

impl Wide for f32 {
    #[inline(always)]
    fn factor(w: f64) -> f32 {
        w as f32
    }
    #[inline(always)]
    fn sub(self, other: f32) -> f32 {
        self - other
    }
    #[inline(always)]
    fn div(self, other: f32) -> f32 {
        self / other
    }
    #[inline(always)]
    fn fold_in(acc: &mut [f32], bytes: &[u8], dtype: DType, f: impl Fn(f32, f32) -> f32) {
        match dtype {
            DType::F32 => fold_in(acc, bytes, |a, x: f32| f(a, x)),
            DType::F16 => fold_in(acc, bytes, |a, x: f16| f(a, f32_of_f16(x))),
            DType::Bf16 => fold_in(acc, bytes, |a, x: bf16| f(a, f32_of_bf16(x))),
            other => panic!("{other} folded into a 16-bit float"),
        }
    }
}

impl Wide for f64 {
    #[inline(always)]
    fn factor(w: f64) -> f64 {
        w
    }
    #[inline(always)]
    fn sub(self, other: f64) -> f64 {
        self - other
    }
    #[inline(always)]
    fn div(self, other: f64) -> f64 {
        self / other
    }
    #[inline(always)]
    fn fold_in(acc: &mut [f64], bytes: &[u8], dtype: DType, f: impl Fn(f64, f64) -> f64) {
        match dtype {
            DType::F64 => fold_in(acc, bytes, |a, x: f64| f(a, x)),
            DType::F32 => fold_in(acc, bytes, |a, x: f32| f(a, f64::from(x))),
            DType::F16 => fold_in(acc, bytes, |a, x: f16| f(a, x.to_f64())),
            DType::Bf16 => fold_in(acc, bytes, |a, x: bf16| f(a, x.to_f64())),
            other => panic!("{other} folded into a float"),
        }
    }
}

impl Real for f32 {
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn of_f64(v: f64) -> f32 {
        v as f32
    }
}
impl Real for f64 {
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
    #[inline(always)]
    fn of_f64(v: f64) -> f64 {
        v
    }
}

/// Exact.
#[inline(always)]
pub(crate) fn f32_of_bf16(h: bf16) -> f32 {
    f32::from_bits(u32::from(h.to_bits()) << 16)
}

/// Nearest even in integers, denormals kept; a NaN stays one (quiet, upper payload bits kept), as `half` does.
#[inline(always)]
pub(crate) fn bf16_of_f32(v: f32) -> bf16 {
    let x = v.to_bits();
    let nan = (x >> 16) | 0x0040;
    // Adding just under half a unit, plus one where the kept part is odd, carries exactly where nearest-even rounds up.
    let rounded = x.wrapping_add(0x7fff + ((x >> 16) & 1)) >> 16;
    let r = if x & 0x7fff_ffff > 0x7f80_0000 {
        nan
    } else {
        rounded
    };
    bf16::from_bits(r as u16)
}

/// Exact; a NaN becomes quiet.
#[inline(always)]
pub(crate) fn f32_of_f16(h: f16) -> f32 {
    let h = u32::from(h.to_bits());
    let sign = (h & 0x8000) << 16;
    let em = h & 0x7fff;
    let normal = (em << 13) + (112 << 23);
    let special = (em << 13) | 0x7f80_0000 | if em > 0x7c00 { 0x0040_0000 } else { 0 };
    // em · 2⁻²⁴, exact and far from f32's denormals.
    let denormal = (em as i32 as f32 * f32::from_bits(103 << 23)).to_bits();
    let r = if em < 0x0400 { denormal } else { normal };
    let r = if em >= 0x7c00 { special } else { r };
    f32::from_bits(r | sign)
}

/// Nearest even; a NaN stays one (quiet, upper payload bits kept).
#[inline(always)]
pub(crate) fn f16_of_f32(v: f32) -> f16 {
    let x = v.to_bits();
    let sign = (x >> 16) & 0x8000;
    let abs = x & 0x7fff_ffff;
    let nan = 0x7e00 | ((abs >> 13) & 0x03ff);
    // Below 2⁻¹⁴: adding 0.5 lines the mantissa up with f16's denormals, and the addition rounds.
    let denormal = (f32::from_bits(abs) + 0.5)
        .to_bits()
        .wrapping_sub(126 << 23);
    let normal = abs
        .wrapping_sub(112 << 23)
        .wrapping_add(0x0fff + ((abs >> 13) & 1))
        >> 13;
    let r = if abs < 0x3880_0000 { denormal } else { normal };
    let r = if abs >= 0x4780_0000 { 0x7c00 } else { r };
    let r = if abs > 0x7f80_0000 { nan } else { r };
    f16::from_bits((r | sign) as u16)
}

/// The f32 next to `v` whose last bit is 1 where `v` is no f32: rounding that to 16 bits is rounding `v` once.
#[inline(always)]
fn round_to_odd(v: f64) -> f32 {
    let near = v as f32;
    let back = f64::from(near);
    let bits = near.to_bits();
    let odd = if back.abs() > v.abs() {
        bits.wrapping_sub(1)
    } else {
        bits.wrapping_add(1)
    };
    if back == v || v.is_nan() || bits & 1 == 1 {
        near
    } else {
        f32::from_bits(odd)
    }
}
