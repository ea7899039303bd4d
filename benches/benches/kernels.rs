//! Arithmetic of the kernels on every instruction set: folds of 2, 4 and 8 inputs, exact ones, combining two, conversions.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gaggle::{DType, Reduce};
use gaggle_benches::{LENGTHS, each_isa, elements, quick};
use gaggle_kernels::{How, Source, Term, combine, convert, fold, fold_with};

/// Throughput counts the bytes of all inputs.
fn folds(criterion: &mut Criterion) {
    let mut suite = criterion.benchmark_group("fold");
    quick(&mut suite);
    for dtype in [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::Bf16,
        DType::I32,
        DType::I8,
    ] {
        for inputs in [2, 4, 8] {
            for len in LENGTHS {
                // Large ones of two types only: they all wait for memory.
                if len > LENGTHS[0] && !(inputs == 2 && matches!(dtype, DType::F32 | DType::Bf16)) {
                    continue;
                }
                let data: Vec<Vec<u8>> = (0..inputs).map(|i| elements(dtype, len, i)).collect();
                let terms: Vec<Term<'_>> = data
                    .iter()
                    .map(|bytes| Term {
                        source: Source::Bytes { bytes, dtype },
                        weight: None,
                    })
                    .collect();
                let mut dst = vec![0; data[0].len()];
                suite.throughput(Throughput::Bytes(inputs * dst.len() as u64));
                each_isa(|isa| {
                    let name = format!("{dtype}, {inputs} inputs x {len}, {isa}");
                    suite.bench_function(name, |bencher| {
                        bencher.iter(|| fold(dtype, Reduce::Sum, &mut dst, &terms));
                    });
                });
            }
        }
    }
    suite.finish();
}

/// What `exact` costs. Throughput counts the bytes of all inputs.
fn exact_folds(criterion: &mut Criterion) {
    let mut suite = criterion.benchmark_group("exact fold");
    quick(&mut suite);
    let (inputs, len) = (4, LENGTHS[0]);
    let how = How {
        exact: true,
        ..How::default()
    };
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        let data: Vec<Vec<u8>> = (0..inputs).map(|i| elements(dtype, len, i)).collect();
        let terms: Vec<Term<'_>> = data
            .iter()
            .map(|bytes| Term {
                source: Source::Bytes { bytes, dtype },
                weight: None,
            })
            .collect();
        let mut dst = vec![0; data[0].len()];
        suite.throughput(Throughput::Bytes(inputs * dst.len() as u64));
        suite.bench_function(format!("{dtype}, {inputs} inputs x {len}"), |bencher| {
            bencher.iter(|| fold_with(dtype, Reduce::Sum, &mut dst, &terms, how));
        });
    }
    suite.finish();
}

/// Throughput counts the bytes of one operand.
fn combines(criterion: &mut Criterion) {
    let mut suite = criterion.benchmark_group("combine");
    quick(&mut suite);
    let len = LENGTHS[0];
    for (dtype, reduce) in [
        (DType::F32, Reduce::Sum),
        (DType::F32, Reduce::Max),
        (DType::F16, Reduce::Sum),
        (DType::Bf16, Reduce::Sum),
        (DType::I64, Reduce::Sum),
        (DType::U8, Reduce::Max),
    ] {
        // Each repetition works on what the one before has left: a maximum, or a sum of zeroes, stays what it is.
        let mut dst = elements(dtype, len, 0);
        let incoming = match reduce {
            Reduce::Sum => vec![0; dst.len()],
            _ => elements(dtype, len, 1),
        };
        suite.throughput(Throughput::Bytes(dst.len() as u64));
        each_isa(|isa| {
            suite.bench_function(format!("{dtype}, {reduce} x {len}, {isa}"), |bencher| {
                bencher.iter(|| combine(dtype, reduce, &mut dst, &incoming, false));
            });
        });
    }
    suite.finish();
}

/// Throughput counts the bytes of the wider side.
fn conversions(criterion: &mut Criterion) {
    let mut suite = criterion.benchmark_group("convert");
    quick(&mut suite);
    let len = LENGTHS[0];
    for (from, to) in [
        (DType::F32, DType::Bf16),
        (DType::Bf16, DType::F32),
        (DType::F32, DType::F16),
        (DType::F16, DType::F32),
        (DType::F64, DType::F32),
    ] {
        let src = elements(from, len, 0);
        let mut dst = vec![0; len * to.size()];
        suite.throughput(Throughput::Bytes(src.len().max(dst.len()) as u64));
        each_isa(|isa| {
            suite.bench_function(format!("{from} to {to} x {len}, {isa}"), |bencher| {
                bencher.iter(|| convert(&mut dst, to, &src, from));
            });
        });
    }
    suite.finish();
}

criterion_group!(benches, folds, exact_folds, combines, conversions);
criterion_main!(benches);
