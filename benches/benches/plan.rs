//! Plans as values: what the first operation of a new shape costs before any byte moves, and what it costs to prove it.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use gaggle::{
    Algorithm, DType, Rank, Reduce,
    collectives::{
        Call, Plan, Promise, Request, algorithms, check, plan,
        select::{Overrides, Places, Question, Tables, choose},
        timeline,
    },
    core::OpKind,
};
use std::hint::black_box;

fn request(algorithm: Algorithm, world: u32, len: u64, slice: u64) -> Request {
    let call = Call::AllReduce {
        reduce: Reduce::Mean,
        algorithm,
    };
    Request {
        slice,
        hosts: Some((0..world).map(|rank| rank / 2).collect()),
        ..Request::new(call, Rank(1 % world), world, len)
    }
}

/// All of a mean among `world` ranks.
fn promise(algorithm: Algorithm, world: u32, len: u64, slice: u64) -> (Vec<Plan>, Promise) {
    let promise = Promise::of_all(&request(algorithm, world, len, slice));
    let plans: Result<Vec<Plan>, _> = promise.requests().iter().map(plan).collect();
    (plans.expect("every algorithm has a plan"), promise)
}

/// One rank's plan of 1 Mi elements in slices of 64 Ki.
fn planning(criterion: &mut Criterion) {
    let mut suite = criterion.benchmark_group("plan all_reduce");
    suite.sample_size(10);
    for world in [2, 8, 33] {
        for &algorithm in algorithms(OpKind::AllReduce) {
            let request = request(algorithm, world, 1 << 20, 1 << 16);
            suite.bench_function(BenchmarkId::new(algorithm.name(), world), |bencher| {
                bencher.iter(|| plan(black_box(&request)).is_ok());
            });
        }
    }
    suite.finish();
}

/// All ranks' plans of 37 elements in one slice, proved.
fn checking(criterion: &mut Criterion) {
    let mut suite = criterion.benchmark_group("check all_reduce");
    suite.sample_size(10);
    for world in [2, 8, 33] {
        for &algorithm in algorithms(OpKind::AllReduce) {
            let (plans, promise) = promise(algorithm, world, 37, 37);
            suite.bench_function(BenchmarkId::new(algorithm.name(), world), |bencher| {
                bencher.iter(|| check(black_box(&plans), &promise).is_ok());
            });
        }
    }
    suite.finish();
}

/// The choice, which is made for every operation.
fn choosing(criterion: &mut Criterion) {
    let mut suite = criterion.benchmark_group("choose all_reduce");
    suite.sample_size(10);
    let (tables, overrides) = (Tables::default(), Overrides::default());
    for world in [2u32, 8, 33] {
        let hosts: Vec<u32> = (0..world).map(|rank| rank / 2).collect();
        let question = Question {
            hosts: Some(&hosts),
            ..Question::new(OpKind::AllReduce, DType::F32, world, 1 << 20)
        };
        suite.bench_function(BenchmarkId::from_parameter(world), |bencher| {
            bencher.iter(|| choose(&tables, &overrides, black_box(&question)).is_ok());
        });
    }
    suite.finish();
}

/// When every step of all ranks' plans of 1 Mi elements would happen.
fn predicting(criterion: &mut Criterion) {
    let mut suite = criterion.benchmark_group("timeline all_reduce");
    suite.sample_size(10);
    for algorithm in [Algorithm::Ring, Algorithm::Direct] {
        let (plans, _) = promise(algorithm, 8, 1 << 20, 1 << 16);
        suite.bench_function(BenchmarkId::new(algorithm.name(), 8), |bencher| {
            bencher.iter(|| {
                timeline(
                    black_box(&plans),
                    DType::F32,
                    &Tables::default(),
                    Places::default(),
                )
                .is_ok()
            });
        });
    }
    suite.finish();
}

criterion_group!(benches, planning, checking, choosing, predicting);
criterion_main!(benches);
