//! Codecs against a reference in whole numbers, torn apart at every place, and what error feedback keeps.

use super::{LENGTHS, check, data};
use gaggle_core::{
    Codec, DType,
    raw::{bytes_of, bytes_of_mut},
};
use gaggle_kernels::{Decoding, compensate, decode, decode_at, encode, encode_at, recode};
use proptest::prelude::*;

const CODED: [Codec; 3] = [Codec::Bf16, Codec::F16, Codec::Int8];

/// A finite f32 as significand · 2^exponent.
fn parts(x: f32) -> (u128, i32) {
    let bits = x.to_bits() & 0x7fff_ffff;
    match (bits >> 23, bits & 0x7f_ffff) {
        (0, fraction) => (u128::from(fraction), -149),
        (e, fraction) => (u128::from(fraction | 1 << 23), e as i32 - 150),
    }
}

/// The scale by the documented rule, searched for in whole numbers: the smallest of 17 bits (a power of two below 2⁻¹³³) that is at least m/126.
fn reference_scale(xs: &[f32]) -> f32 {
    let finite = xs.iter().filter(|x| x.is_finite());
    let top = finite.fold(0f32, |m, x| m.max(x.abs()));
    if top == 0.0 {
        return 0.0;
    }
    let (m, e) = parts(top);
    // scale = t · 2^k with 2¹⁶ ≤ t < 2¹⁷: 126·t·2^k ≥ m·2^e.
    for k in -149 - 16..120 {
        let enough = |t: u128| match k - e {
            d if d >= 100 => true,
            d if d >= 0 => (126 * t) << d >= m,
            d => d > -100 && 126 * t >= m << -d,
        };
        let most = if k + 16 < -133 {
            1 << 16
        } else {
            (1 << 17) - 1
        };
        if enough(most) {
            let t = (1 << 16..=most).find(|t| enough(*t)).unwrap();
            return (t as f64 * 2f64.powi(k)) as f32;
        }
    }
    panic!("no scale for {top}");
}

fn reference_code(x: f32, scale: f32) -> i8 {
    if x.is_nan() {
        return -128;
    }
    if x.is_infinite() {
        return if x > 0.0 { 127 } else { -127 };
    }
    if scale == 0.0 {
        return 0;
    }
    let ((a, ea), (s, es)) = (parts(x), parts(scale));
    // |x| / scale = num / den.
    let (num, den) = match ea - es {
        d if d >= 0 => (a << d, s),
        d if d > -90 => (a, s << -d),
        _ => (0, 1),
    };
    let (q, r) = (num / den, num % den);
    let up = 2 * r > den || (2 * r == den && q % 2 == 1);
    let code = (q + u128::from(up)) as i8;
    if x < 0.0 { -code } else { code }
}

fn reference_value(code: i8, scale: f32) -> f32 {
    match code {
        -128 => f32::NAN,
        127 => f32::INFINITY,
        -127 => f32::NEG_INFINITY,
        // In f64 the product is exact.
        c => (f64::from(c) * f64::from(scale)).clamp(-f64::from(f32::MAX), f64::from(f32::MAX))
            as f32,
    }
}

/// Wire bytes and decoded values.
fn reference(xs: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let (mut wire, mut values) = (vec![], vec![]);
    for block in xs.chunks(256) {
        let scale = reference_scale(block);
        wire.extend(scale.to_le_bytes());
        for x in block {
            let code = reference_code(*x, scale);
            wire.push(code as u8);
            values.push(reference_value(code, scale));
        }
        while !wire.len().is_multiple_of(4) {
            wire.push(0);
        }
    }
    (wire, values)
}

fn floats(b: &[u8]) -> Vec<f32> {
    b.as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_ne_bytes(*b))
        .collect()
}

fn bits(xs: &[f32]) -> Vec<u32> {
    xs.iter().map(|x| x.to_bits()).collect()
}

/// Each block of another size of numbers, from the smallest to the largest.
fn all_sizes(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| {
            let size = 2f64.powi((i / 256) as i32 * 9 % 278 - 149);
            let x = size * (((i * 7919) % 2003) as f64 / 1001.0 - 1.0);
            x.clamp(-f64::from(f32::MAX), f64::from(f32::MAX)) as f32
        })
        .collect()
}

#[test]
fn blocks_are_what_the_rule_says() {
    let edges = vec![f32::MAX, f32::MAX / 2.0, 1.0, -f32::MAX];
    let tiny: Vec<f32> = (0..300).map(f32::from_bits).collect();
    let mut inputs = vec![edges, tiny, all_sizes(256 * 40 + 3)];
    inputs.extend([0, 1, 3, 4, 5, 255, 256, 257, 1021].map(|n| floats(&data(DType::F32, n, 7))));
    for xs in inputs {
        let (wire, values) = reference(&xs);
        let n = xs.len();
        assert_eq!(
            Codec::Int8.wire_bytes(DType::F32, n as u64),
            Some(wire.len() as u64)
        );
        let (x, values) = (bytes_of(&xs), bytes_of(&values));
        check("encode", &vec![9; wire.len()], &[x], &wire, |d, s| {
            encode(Codec::Int8, DType::F32, d, s[0]);
        });
        check("decode", &vec![9; 4 * n], &[&wire], values, |d, s| {
            decode(Codec::Int8, DType::F32, d, s[0]);
        });
        check("recode", x, &[], values, |d, _| {
            recode(Codec::Int8, DType::F32, d)
        });
    }
}

#[test]
fn a_nan_and_infinities_survive_and_spoil_no_neighbour() {
    for codec in CODED {
        let mut x = [
            1.0f32,
            f32::NAN,
            f32::INFINITY,
            -0.5,
            f32::NEG_INFINITY,
            0.0,
        ];
        recode(codec, DType::F32, bytes_of_mut(&mut x));
        assert!(x[1].is_nan(), "{codec}");
        assert_eq!(
            [x[2], x[4], x[5]],
            [f32::INFINITY, f32::NEG_INFINITY, 0.0],
            "{codec}"
        );
        assert!(
            (x[0] - 1.0).abs() < 0.01 && (x[3] + 0.5).abs() < 0.01,
            "{codec}: {x:?}"
        );
    }
}

#[test]
fn a_message_may_be_torn_at_every_unit() {
    for codec in CODED {
        let unit = codec.unit(DType::F32) as usize;
        for n in [1usize, 5, 256, 258, 517] {
            let x = data(DType::F32, n, 70);
            let mut scaled = vec![0; x.len()];
            gaggle_kernels::scale(DType::F32, &mut scaled, &x, 0.7);
            for (factor, x, plain) in [(1.0, &x, &x), (0.7, &x, &scaled)] {
                let total = codec.wire_bytes(DType::F32, n as u64).unwrap() as usize;
                let mut wire = vec![0; total];
                encode(codec, DType::F32, &mut wire, plain);
                let mut values = vec![0; x.len()];
                decode(codec, DType::F32, &mut values, &wire);
                // One cut at every place, and pieces of every small size.
                let cuts = (0..=total / unit).map(|c| vec![c * unit]);
                let pieces =
                    [1, 2, 3, 16, 65, 66].map(|p| (0..total).step_by(p * unit).skip(1).collect());
                for cuts in cuts.chain(pieces) {
                    let mut ends: Vec<usize> = cuts.clone();
                    ends.push(total);
                    let mut coded = vec![0; total];
                    let mut decoded = vec![0; x.len()];
                    let mut state = Decoding::default();
                    let mut at = 0;
                    for end in ends {
                        encode_at(codec, DType::F32, &mut coded[at..end], x, at as u64, factor);
                        decode_at(
                            codec,
                            DType::F32,
                            &mut decoded,
                            &wire[at..end],
                            at as u64,
                            &mut state,
                        );
                        at = end;
                    }
                    assert!(coded == wire, "{codec} of {n} by {factor} cut at {cuts:?}");
                    assert!(decoded == values, "{codec} of {n} cut at {cuts:?}");
                }
            }
        }
    }
}

#[test]
fn a_plain_message_is_scaled_in_its_own_type() {
    for dtype in [DType::F64, DType::F16, DType::Bf16] {
        let x = data(dtype, 1025, 71);
        let mut want = vec![0; x.len()];
        gaggle_kernels::scale(dtype, &mut want, &x, -0.3);
        let mut got = vec![0; x.len()];
        let half = 512 * dtype.size();
        encode_at(Codec::None, dtype, &mut got[..half], &x, 0, -0.3);
        encode_at(Codec::None, dtype, &mut got[half..], &x, half as u64, -0.3);
        assert!(got == want, "{dtype}");
    }
}

#[test]
fn whatever_comes_from_the_wire_is_decoded() {
    // A peer's scale may be anything.
    for scale in [f32::NAN, f32::INFINITY, -1.0, f32::MAX, 1e-45] {
        let mut wire = scale.to_le_bytes().to_vec();
        wire.extend((0..=255).map(|b: u8| b));
        let mut out = [0f32; 256];
        decode(Codec::Int8, DType::F32, bytes_of_mut(&mut out), &wire);
        assert!(out[128].is_nan() && out[127] == f32::INFINITY && out[129] == f32::NEG_INFINITY);
    }
}

#[test]
#[should_panic(expected = "tear units of 4")]
fn half_a_unit_is_a_mistake() {
    encode_at(Codec::Int8, DType::F32, &mut [0; 4], &[0; 16], 2, 1.0);
}

#[test]
#[should_panic(expected = "encode: 4 bytes on the wire for 1 elements, which are 8")]
fn a_room_of_another_size_is_a_mistake() {
    encode(Codec::Int8, DType::F32, &mut [0; 4], &[0; 4]);
}

#[test]
fn what_a_codec_loses_is_kept_to_the_last_bit() {
    for codec in CODED {
        for n in LENGTHS {
            let x: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin() / 3.0).collect();
            let mut kept: Vec<f32> = (0..n).map(|i| (i as f32).cos() / 500.0).collect();
            let whole: Vec<f32> = x.iter().zip(&kept).map(|(x, r)| x + r).collect();
            let mut coded = whole.clone();
            recode(codec, DType::F32, bytes_of_mut(&mut coded));
            let mut sent = x.clone();
            compensate(codec, bytes_of_mut(&mut sent), &mut kept);
            assert_eq!(bits(&sent), bits(&coded), "{codec}");
            for i in 0..n {
                assert_eq!(sent[i] + kept[i], whole[i], "{codec}: element {i} of {n}");
            }
        }
    }
}

#[test]
fn a_residual_that_is_no_number_is_dropped() {
    let mut x = [f32::NAN, f32::INFINITY, 1e30, 1.0];
    let mut kept = [1.0, 1.0, f32::INFINITY, 0.0];
    compensate(Codec::F16, bytes_of_mut(&mut x), &mut kept);
    assert_eq!(kept, [0.0; 4]);
    assert!(x[0].is_nan());
    assert_eq!(x[1..], [f32::INFINITY, f32::INFINITY, 1.0]);
}

#[test]
fn the_mean_of_what_was_sent_comes_to_the_value() {
    // A constant gradient over 100 steps: with feedback the error of the mean falls as 1/steps.
    let x: Vec<f32> = (0..1024)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) * 1e-3)
        .collect();
    let mut kept = vec![0f32; x.len()];
    let mut sum = vec![0f64; x.len()];
    for _ in 0..100 {
        let mut sent = x.clone();
        compensate(Codec::Int8, bytes_of_mut(&mut sent), &mut kept);
        for (s, v) in sum.iter_mut().zip(sent) {
            *s += f64::from(v);
        }
    }
    for (s, x) in sum.iter().zip(&x) {
        // Half a scale at most is still held back: 0.05 / 126 / 2.
        assert!((s / 100.0 - f64::from(*x)).abs() <= 0.05 / 126.0 / 2.0 / 100.0 * 1.01);
    }
}

proptest! {
    #[test]
    fn coding_again_changes_nothing(
        raw in prop::collection::vec(any::<u32>(), 1..600),
        shift in 0u32..32,
        narrow in any::<bool>(),
    ) {
        // Where numbers of one size are wanted, they share the upper bits.
        let keep = if narrow { 0x807f_ffff } else { 0xffff_ffffu32 };
        let common = if narrow { (raw[0] & 0x7f80_0000).min(0x7f00_0000) } else { 0 };
        let x: Vec<f32> = raw.iter().map(|b| f32::from_bits((b >> shift & keep) | common)).collect();
        for codec in CODED {
            let mut once = x.clone();
            recode(codec, DType::F32, bytes_of_mut(&mut once));
            let mut twice = once.clone();
            recode(codec, DType::F32, bytes_of_mut(&mut twice));
            prop_assert_eq!(bits(&once), bits(&twice), "{}", codec);
        }
        let mut once = x.clone();
        recode(Codec::Int8, DType::F32, bytes_of_mut(&mut once));
        for (xs, values) in x.chunks(256).zip(once.chunks(256)) {
            let half = f64::from(reference_scale(xs)) / 2.0;
            for (x, v) in xs.iter().zip(values) {
                if x.is_finite() {
                    prop_assert!((f64::from(*x) - f64::from(*v)).abs() <= half, "{} became {}", x, v);
                } else if x.is_nan() {
                    prop_assert_eq!(v.to_bits(), f32::NAN.to_bits());
                } else {
                    prop_assert_eq!(x, v);
                }
            }
        }
    }
}
