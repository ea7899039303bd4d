//! The int8 block codec: one scale per block of [`Codec::BLOCK`] elements, one byte per element.
//!
//! scale = m / 126, where m is the block's largest finite magnitude, rounded up to 17 significant bits; code = x / scale, to nearest even; value = code · scale.
//! A code has 7 bits and a scale 17, so that every value is an f32 and coding a value again gives the same code: a relay changes nothing.
//! Where the scale is below 2⁻¹³³, f32 has fewer than 17 bits for it, and it is rounded up to a power of two: values stay multiples of it however often they are coded, also with half of it.
//! Values whose magnitude the rounding up of the scale would carry beyond the largest f32 are that largest f32.

use gaggle_core::{Codec, raw::bytes_of_mut};

pub(crate) const BLOCK: usize = Codec::BLOCK as usize;
/// Bytes of a whole block on the wire: the scale and the codes.
pub(crate) const BLOCK_BYTES: usize = BLOCK + 4;

/// The largest code of a finite number.
const TOP: f64 = 126.0;
const INFINITE: i8 = 127;
const NAN: i8 = -128;

/// Elements of one block, in aligned memory.
pub(crate) type Block = [f32; BLOCK];

/// Copies block `idx` of a message into `room`, times `factor`; its elements.
#[inline(always)]
pub(crate) fn load<'a>(
    room: &'a mut Block,
    message: &[u8],
    idx: usize,
    factor: f64,
) -> &'a mut [f32] {
    let lo = (idx * BLOCK * 4).min(message.len());
    let hi = (lo + BLOCK * 4).min(message.len());
    let xs = &mut room[..(hi - lo) / 4];
    bytes_of_mut(xs).copy_from_slice(&message[lo..hi]);
    if factor != 1.0 {
        for x in xs.iter_mut() {
            *x = (f64::from(*x) * factor) as f32;
        }
    }
    xs
}

/// The scale of a block.
#[inline(always)]
pub(crate) fn scale_of(xs: &[f32]) -> f32 {
    // As bits, so that the loop is integers and maxima have one answer in any order.
    let mut top = 0u32;
    for x in xs {
        let abs = x.to_bits() & 0x7fff_ffff;
        top = top.max(if abs < 0x7f80_0000 { abs } else { 0 });
    }
    // The quotient of a 24-bit number by 126 is never so close to a 17-bit number, unless it is one, that its rounding to 53 bits would matter.
    let q = f64::from(f32::from_bits(top)) / TOP;
    // Below 2⁻¹³³ all bits of the mantissa are rounded away, above it all but 16.
    let dropped = if q < f64::from_bits((1023 - 133) << 52) {
        (1u64 << 52) - 1
    } else {
        (1u64 << 36) - 1
    };
    let up = f64::from_bits((q.to_bits() + dropped) & !dropped);
    // No f32 is smaller than 2⁻¹⁴⁹: a block of nothing else has that scale.
    let least = f64::from(f32::from_bits(1));
    if top == 0 { 0.0 } else { up.max(least) as f32 }
}

/// The codes of a block's elements.
#[inline(always)]
pub(crate) fn quantise(codes: &mut [u8], xs: &[f32], scale: f32) {
    // Adding it leaves the nearest integer, ties to even, in the lowest bits of the sum.
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    let scale = if scale == 0.0 { 1.0 } else { f64::from(scale) };
    for (code, x) in codes.iter_mut().zip(xs) {
        let near = (f64::from(*x) / scale + MAGIC).to_bits() as i8;
        let abs = x.to_bits() & 0x7fff_ffff;
        let infinite = if x.to_bits() == abs {
            INFINITE
        } else {
            -INFINITE
        };
        let special = if abs > 0x7f80_0000 { NAN } else { infinite };
        *code = if abs < 0x7f80_0000 { near } else { special } as u8;
    }
}

/// The elements that codes stand for.
#[inline(always)]
pub(crate) fn dequantise(xs: &mut [f32], codes: &[u8], scale: f32) {
    for (x, code) in xs.iter_mut().zip(codes) {
        let code = *code as i8;
        let value = (f32::from(code) * scale).clamp(-f32::MAX, f32::MAX);
        let value = if code == INFINITE {
            f32::INFINITY
        } else {
            value
        };
        let value = if code == -INFINITE {
            f32::NEG_INFINITY
        } else {
            value
        };
        *x = if code == NAN { f32::NAN } else { value };
    }
}
