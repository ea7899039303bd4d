//! Wire codecs on every instruction set: encoding and decoding f32 as bf16, f16 and blocks of int8, and error feedback.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gaggle::{Codec, DType};
use gaggle_benches::{LENGTHS, each_isa, elements, quick};
use gaggle_kernels::{Decoding, compensate, decode_at, encode_at};

const CODECS: [Codec; 3] = [Codec::Bf16, Codec::F16, Codec::Int8];

/// Bytes of a message of `len` f32.
fn wire_bytes(codec: Codec, len: usize) -> usize {
    let bytes = codec.wire_bytes(DType::F32, len as u64);
    bytes.map_or(0, |n| n as usize)
}

/// Throughput counts the bytes of the f32 side.
fn encoding(criterion: &mut Criterion) {
    let mut suite = criterion.benchmark_group("encode");
    quick(&mut suite);
    for codec in CODECS {
        for len in LENGTHS {
            let message = elements(DType::F32, len, 0);
            let mut room = vec![0; wire_bytes(codec, len)];
            suite.throughput(Throughput::Bytes(message.len() as u64));
            each_isa(|isa| {
                suite.bench_function(format!("{codec} x {len}, {isa}"), |bencher| {
                    bencher.iter(|| encode_at(codec, DType::F32, &mut room, &message, 0, 1.0));
                });
            });
        }
    }
    suite.finish();
}

/// Throughput counts the bytes of the f32 side.
fn decoding(criterion: &mut Criterion) {
    let mut suite = criterion.benchmark_group("decode");
    quick(&mut suite);
    for codec in CODECS {
        for len in LENGTHS {
            let source = elements(DType::F32, len, 0);
            let mut wire = vec![0; wire_bytes(codec, len)];
            encode_at(codec, DType::F32, &mut wire, &source, 0, 1.0);
            let mut message = vec![0; source.len()];
            suite.throughput(Throughput::Bytes(message.len() as u64));
            each_isa(|isa| {
                suite.bench_function(format!("{codec} x {len}, {isa}"), |bencher| {
                    bencher.iter(|| {
                        let mut state = Decoding::default();
                        decode_at(codec, DType::F32, &mut message, &wire, 0, &mut state);
                    });
                });
            });
        }
    }
    suite.finish();
}

/// Throughput counts the bytes of the buffer.
fn feedback(criterion: &mut Criterion) {
    let mut suite = criterion.benchmark_group("compensate");
    quick(&mut suite);
    let len = LENGTHS[0];
    for codec in CODECS {
        let mut buf = elements(DType::F32, len, 0);
        let mut residual = vec![0.0; len];
        suite.throughput(Throughput::Bytes(buf.len() as u64));
        each_isa(|isa| {
            suite.bench_function(format!("{codec} x {len}, {isa}"), |bencher| {
                bencher.iter(|| compensate(codec, &mut buf, &mut residual));
            });
        });
    }
    suite.finish();
}

criterion_group!(benches, encoding, decoding, feedback);
criterion_main!(benches);
