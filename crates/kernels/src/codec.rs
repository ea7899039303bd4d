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

/// What is remembered between two parts of a message that is decoded as it comes: the scale of the block in which the last part ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decoding {
    scale: f32,
}

/// Fills `room` with a message's wire bytes from byte `at` on: what `encode` of `factor` times all its elements `message` would have there. `at` and the room are multiples of the codec's unit.
///
/// # Panics
/// If the codec does not apply to `dtype`, or the room reaches beyond the message.
pub fn encode_at(
    codec: Codec,
    dtype: DType,
    room: &mut [u8],
    message: &[u8],
    at: u64,
    factor: f64,
) {
    let _ = factor;
    let wire = wire_type(codec, dtype).size();
    let lo = at as usize / wire * dtype.size();
    let hi = lo + room.len() / wire * dtype.size();
    encode(codec, dtype, room, &message[lo..hi]);
}

/// Decodes a message's wire bytes from byte `at` on into its elements `message`. Parts come in order; `at` and `bytes` are multiples of the codec's unit.
///
/// # Panics
/// If the codec does not apply to `dtype`, or the bytes reach beyond the message.
pub fn decode_at(
    codec: Codec,
    dtype: DType,
    message: &mut [u8],
    bytes: &[u8],
    at: u64,
    state: &mut Decoding,
) {
    let _ = state;
    let wire = wire_type(codec, dtype).size();
    let lo = at as usize / wire * dtype.size();
    let hi = lo + bytes.len() / wire * dtype.size();
    decode(codec, dtype, &mut message[lo..hi], bytes);
}

/// Error feedback for one message of f32: x ← `buf` + `residual`; `buf` ← what the codec makes of x; `residual` ← x − `buf`, 0 where that is not finite.
///
/// # Panics
/// If the lengths do not fit.
pub fn compensate(codec: Codec, buf: &mut [u8], residual: &mut [f32]) {
    same_elements(
        "compensate",
        (DType::F32, buf.len()),
        (DType::F32, residual.len() * 4),
    );
    let mut at = 0;
    tiles::each_mut::<f32>(buf, |xs| {
        for x in xs.iter_mut() {
            *x += residual[at];
            residual[at] = *x;
            at += 1;
        }
    });
    recode(codec, DType::F32, buf);
    let mut at = 0;
    tiles::each::<f32>(buf, |xs| {
        for x in xs {
            let lost = residual[at] - x;
            residual[at] = if lost.is_finite() { lost } else { 0.0 };
            at += 1;
        }
    });
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
