//! Conversions between element types, and the codecs of the wire.

use crate::{
    by_float, elements,
    int8::{self, BLOCK, BLOCK_BYTES},
    num::{Num, Real, bf16_of_f32, f16_of_f32, f32_of_bf16, f32_of_f16},
    raw_isa::{Kernel, run},
    same_elements,
    tiles::{self, TILE},
};
use gaggle_core::{
    Codec, DType,
    raw::{bytes_of, bytes_of_mut},
};
use half::{bf16, f16};
use std::marker::PhantomData;

/// `dst` = `src` in another element type, nearest even in one step; equal types are copied.
///
/// # Panics
/// If the numbers of elements differ, or for integers of different types.
pub fn convert(dst: &mut [u8], dst_type: DType, src: &[u8], src_type: DType) {
    same_elements("convert", (dst_type, dst.len()), (src_type, src.len()));
    if dst_type == src_type {
        dst.copy_from_slice(src);
        return;
    }
    by_float!("convert", dst_type, D => by_float!("convert", src_type, S => {
        run(Convert { dst, src, types: PhantomData::<(D, S)> });
    }));
}

struct Convert<'a, D, S> {
    dst: &'a mut [u8],
    src: &'a [u8],
    types: PhantomData<(D, S)>,
}

impl<D: Real, S: Real> Kernel for Convert<'_, D, S> {
    #[inline(always)]
    fn run(self) {
        let (dst, src) = (self.dst, self.src);
        // The types are constants here: one arm is left of each copy. Through f64 a NaN keeps its payload as well, but more slowly.
        match (D::DTYPE, S::DTYPE) {
            (DType::F32, DType::Bf16) => tiles::zip::<f32, bf16>(dst, src, |_, x| f32_of_bf16(x)),
            (DType::Bf16, DType::F32) => tiles::zip::<bf16, f32>(dst, src, |_, x| bf16_of_f32(x)),
            (DType::F32, DType::F16) => tiles::zip::<f32, f16>(dst, src, |_, x| f32_of_f16(x)),
            (DType::F16, DType::F32) => tiles::zip::<f16, f32>(dst, src, |_, x| f16_of_f32(x)),
            _ => tiles::zip::<D, S>(dst, src, |_, x| D::of_f64(x.to_f64())),
        }
    }
}

/// `dst` = what goes on the wire for the elements `src` of type `dtype`; [`Codec`] says what that is.
///
/// A NaN stays one and an infinity itself; denormals are kept, up to the rounding.
///
/// # Panics
/// If the codec does not apply to `dtype`, or the lengths do not fit.
pub fn encode(codec: Codec, dtype: DType, dst: &mut [u8], src: &[u8]) {
    whole("encode", codec, dtype, dst.len(), src.len());
    encode_at(codec, dtype, dst, src, 0, 1.0);
}

/// `dst` = the elements of type `dtype` that the wire bytes `src` stand for. Exact.
///
/// # Panics
/// If the codec does not apply to `dtype`, or the lengths do not fit.
pub fn decode(codec: Codec, dtype: DType, dst: &mut [u8], src: &[u8]) {
    whole("decode", codec, dtype, src.len(), dst.len());
    decode_at(codec, dtype, dst, src, 0, &mut Decoding::default());
}

/// Panics unless so many bytes are a whole message's.
#[track_caller]
fn whole(what: &str, codec: Codec, dtype: DType, wire: usize, plain: usize) {
    let n = elements(what, dtype, plain);
    let want = codec.wire_bytes(dtype, n as u64);
    let Some(want) = want else {
        panic!("codec {codec} does not apply to {dtype}");
    };
    assert!(
        wire as u64 == want,
        "{what}: {wire} bytes on the wire for {n} elements, which are {want}"
    );
}

/// What is remembered between two parts of a message that is decoded as it comes: the scale of the block in which the last part ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decoding {
    scale: f32,
}

/// Fills `room` with a message's wire bytes from byte `at` on: what `encode` of `factor` times all its elements `message` would have there. `at` and the room are multiples of the codec's unit.
///
/// The product is rounded to the element type, and then coded. A factor of 1 multiplies nothing.
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
    let part = Part::new("encode_at", codec, dtype, message.len(), at, room.len());
    match part {
        Part::Elements { lo, hi, .. } if factor == 1.0 => {
            convert(room, wire_type(codec, dtype), &message[lo..hi], dtype);
        }
        Part::Elements { lo, hi, wire } => {
            // Scaled and converted in a cached tile: both at once are rare enough for two passes.
            let size = dtype.size();
            let mut tile = [0u64; TILE];
            let tile = bytes_of_mut(&mut tile);
            let parts = message[lo..hi].chunks(TILE * size);
            for (from, room) in parts.zip(room.chunks_mut(TILE * wire)) {
                let scaled = &mut tile[..from.len()];
                crate::scale(dtype, scaled, from, factor);
                convert(room, wire_type(codec, dtype), scaled, dtype);
            }
        }
        Part::Blocks { at } => run(Quantise {
            room,
            message,
            at,
            factor,
        }),
    }
}

/// Decodes a message's wire bytes from byte `at` on into its elements `message`. Parts come in order; `at` and `bytes` are multiples of the codec's unit.
///
/// Whatever the bytes are, the elements are some numbers.
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
    let part = Part::new("decode_at", codec, dtype, message.len(), at, bytes.len());
    match part {
        Part::Elements { lo, hi, .. } => {
            convert(&mut message[lo..hi], dtype, bytes, wire_type(codec, dtype));
        }
        Part::Blocks { at } => run(Dequantise {
            message,
            bytes,
            at,
            state,
        }),
    }
}

/// A part of a message's wire bytes.
enum Part {
    /// Bytes `lo..hi` of the message's elements, one by one.
    Elements { lo: usize, hi: usize, wire: usize },
    /// Blocks of int8.
    Blocks { at: usize },
}

impl Part {
    #[track_caller]
    fn new(what: &str, codec: Codec, dtype: DType, plain: usize, at: u64, len: usize) -> Part {
        let n = elements(what, dtype, plain);
        let Some(total) = codec.wire_bytes(dtype, n as u64) else {
            panic!("codec {codec} does not apply to {dtype}");
        };
        let unit = codec.unit(dtype) as usize;
        let fits = at <= total && len as u64 <= total - at;
        assert!(fits, "{what}: bytes {at}.. of {total}, {len} of them");
        let at = at as usize;
        assert!(
            at.is_multiple_of(unit) && len.is_multiple_of(unit),
            "{what}: {len} bytes at {at} tear units of {unit}"
        );
        if codec == Codec::Int8 {
            return Part::Blocks { at };
        }
        Part::Elements {
            lo: at / unit * dtype.size(),
            hi: (at + len) / unit * dtype.size(),
            wire: unit,
        }
    }
}

/// The type on the wire of a codec that writes element by element.
#[track_caller]
fn wire_type(codec: Codec, dtype: DType) -> DType {
    match codec.wire_type(dtype) {
        Some(wire) => wire,
        None => panic!("codec {codec} does not write {dtype} one by one"),
    }
}

struct Quantise<'a> {
    room: &'a mut [u8],
    message: &'a [u8],
    at: usize,
    factor: f64,
}

impl Kernel for Quantise<'_> {
    #[inline(always)]
    fn run(self) {
        let mut block = [0f32; BLOCK];
        let mut codes = [0u8; BLOCK];
        let (mut room, mut at) = (self.room, self.at);
        while !room.is_empty() {
            let (idx, from) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
            let (out, rest) = room.split_at_mut((BLOCK_BYTES - from).min(room.len()));
            let xs = int8::load(&mut block, self.message, idx, self.factor);
            let scale = int8::scale_of(xs);
            // Codes beyond the last element stay 0: that is the padding.
            codes.fill(0);
            int8::quantise(&mut codes, xs, scale);
            let mut whole = [0u8; BLOCK_BYTES];
            whole[..4].copy_from_slice(&scale.to_le_bytes());
            whole[4..].copy_from_slice(&codes);
            out.copy_from_slice(&whole[from..from + out.len()]);
            at += out.len();
            room = rest;
        }
    }
}

struct Dequantise<'a> {
    message: &'a mut [u8],
    bytes: &'a [u8],
    at: usize,
    state: &'a mut Decoding,
}

impl Kernel for Dequantise<'_> {
    #[inline(always)]
    fn run(self) {
        let mut block = [0f32; BLOCK];
        let (mut bytes, mut at) = (self.bytes, self.at);
        while !bytes.is_empty() {
            let (idx, from) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
            let (part, rest) = bytes.split_at((BLOCK_BYTES - from).min(bytes.len()));
            let mut codes = part;
            if from == 0 {
                let (scale, after) = part.split_at(4);
                self.state.scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
                codes = after;
            }
            let lo = idx * BLOCK + from.saturating_sub(4);
            // The last block's padding is no element's.
            let n = codes.len().min(self.message.len() / 4 - lo);
            int8::dequantise(&mut block[..n], &codes[..n], self.state.scale);
            self.message[lo * 4..(lo + n) * 4].copy_from_slice(bytes_of(&block[..n]));
            at += part.len();
            bytes = rest;
        }
    }
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
    run(Compensate {
        codec,
        buf,
        residual,
    });
}

struct Compensate<'a> {
    codec: Codec,
    buf: &'a mut [u8],
    residual: &'a mut [f32],
}

impl Kernel for Compensate<'_> {
    #[inline(always)]
    fn run(self) {
        let mut coded = [0f32; TILE];
        let parts = self.buf.chunks_mut(TILE * 4);
        for (part, residual) in parts.zip(self.residual.chunks_mut(TILE)) {
            let coded = &mut coded[..residual.len()];
            bytes_of_mut(coded).copy_from_slice(part);
            for (x, kept) in coded.iter_mut().zip(residual.iter_mut()) {
                *kept = Num::add(*x, *kept);
                *x = *kept;
            }
            recode_tile(self.codec, coded);
            for (x, kept) in coded.iter().zip(residual) {
                let lost = *kept - x;
                *kept = if lost.is_finite() { lost } else { 0.0 };
            }
            part.copy_from_slice(bytes_of(coded));
        }
    }
}

/// Replaces elements by what a receiver decodes of them: `decode(encode(x))`. Doing it again changes nothing.
///
/// # Panics
/// If the codec does not apply to `dtype`, or the length does not fit.
pub fn recode(codec: Codec, dtype: DType, buf: &mut [u8]) {
    elements("recode", dtype, buf.len());
    assert!(
        codec.applies_to(dtype),
        "codec {codec} does not apply to {dtype}"
    );
    if codec != Codec::None {
        run(Recode { codec, buf });
    }
}

struct Recode<'a> {
    codec: Codec,
    buf: &'a mut [u8],
}

impl Kernel for Recode<'_> {
    #[inline(always)]
    fn run(self) {
        let mut coded = [0f32; TILE];
        for tile in self.buf.chunks_mut(TILE * 4) {
            let coded = &mut coded[..tile.len() / 4];
            bytes_of_mut(coded).copy_from_slice(tile);
            recode_tile(self.codec, coded);
            tile.copy_from_slice(bytes_of(coded));
        }
    }
}

/// As [`recode`], of elements that start with a block.
#[inline(always)]
pub(crate) fn recode_tile(codec: Codec, xs: &mut [f32]) {
    match codec {
        Codec::None => {}
        Codec::Bf16 => {
            for x in xs {
                *x = f32_of_bf16(bf16_of_f32(*x));
            }
        }
        Codec::F16 => {
            for x in xs {
                *x = f32_of_f16(f16_of_f32(*x));
            }
        }
        Codec::Int8 => {
            let mut codes = [0u8; BLOCK];
            for block in xs.chunks_mut(BLOCK) {
                let scale = int8::scale_of(block);
                int8::quantise(&mut codes, block, scale);
                int8::dequantise(block, &codes, scale);
            }
        }
    }
}
