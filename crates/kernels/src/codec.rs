//! Conversions between element types, and the codecs of the wire.

use crate::{
    by_float,
    num::{Num, Real, bf16_of_f32, f32_of_bf16},
    same_elements, tiles,
};
use gaggle_core::{Codec, DType};
use half::bf16;

/// `dst` = `src` in another element type, nearest even in one step; equal types are copied.
///
/// # Panics
/// If the numbers of elements differ, or for integers of different types.
pub fn convert(dst: &mut [u8], dst_type: DType, src: &[u8], src_type: DType) {
    same_elements("convert", (dst_type, dst.len()), (src_type, src.len()));
    match (dst_type, src_type) {
        (a, b) if a == b => dst.copy_from_slice(src),
        (DType::F32, DType::Bf16) => tiles::zip::<f32, bf16>(dst, src, |_, x| f32_of_bf16(x)),
        (DType::Bf16, DType::F32) => tiles::zip::<bf16, f32>(dst, src, |_, x| bf16_of_f32(x)),
        (DType::F32, DType::F16) => tiles::zip::<f32, half::f16>(dst, src, |_, x| x.wide()),
        (DType::F16, DType::F32) => {
            tiles::zip::<half::f16, f32>(dst, src, |_, x| crate::num::f16_of_f32(x));
        }
        _ => by_float!("convert", dst_type, D => by_float!("convert", src_type, S => {
            tiles::zip::<D, S>(dst, src, |_, x| D::of_f64(x.to_f64()));
        })),
    }
}

/// `dst` = what goes on the wire for the elements `src` of type `dtype`.
///
/// bf16: nearest even, NaN stays NaN, denormals are kept.
///
/// # Panics
/// If the codec does not apply to `dtype`, or the lengths do not fit.
pub fn encode(codec: Codec, dtype: DType, dst: &mut [u8], src: &[u8]) {
    convert(dst, wire_type(codec, dtype), src, dtype);
}

/// `dst` = the elements of type `dtype` that the wire bytes `src` stand for. Exact.
///
/// # Panics
/// If the codec does not apply to `dtype`, or the lengths do not fit.
pub fn decode(codec: Codec, dtype: DType, dst: &mut [u8], src: &[u8]) {
    convert(dst, dtype, src, wire_type(codec, dtype));
}

/// Replaces elements by what a receiver decodes of them: `decode(encode(x))`.
///
/// # Panics
/// If the codec does not apply to `dtype`, or the length does not fit.
pub fn recode(codec: Codec, dtype: DType, buf: &mut [u8]) {
    crate::elements("recode", dtype, buf.len());
    if wire_type(codec, dtype) != dtype {
        tiles::each_mut::<f32>(buf, |xs| {
            for x in xs {
                *x = f32_of_bf16(bf16_of_f32(*x));
            }
        });
    }
}

/// The type on the wire.
#[track_caller]
fn wire_type(codec: Codec, dtype: DType) -> DType {
    match codec.wire_type(dtype) {
        Some(wire) => wire,
        None => panic!("codec {codec} does not apply to {dtype}"),
    }
}
