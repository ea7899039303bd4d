//! Making a plan: what the first operation of a new shape costs before any byte moves.

use criterion::{Criterion, criterion_group, criterion_main};
use gaggle::{
    Algorithm, Codec, Rank, Reduce,
    collectives::{Call, Request, plan},
};
use std::hint::black_box;

const ALGORITHMS: [Algorithm; 3] = [
    Algorithm::Ring,
    Algorithm::RecursiveDoubling,
    Algorithm::Direct,
];

fn all_reduce(criterion: &mut Criterion) {
    let mut suite = criterion.benchmark_group("plan all_reduce");
    suite.sample_size(10);
    for world in [2, 8, 33] {
        for algorithm in ALGORITHMS {
            let request = Request {
                call: Call::AllReduce {
                    reduce: Reduce::Mean,
                    algorithm,
                },
                rank: Rank(1),
                world,
                len: 1 << 20,
                slice: 1 << 16,
                codec: Codec::None,
                widen: false,
                ..Request::default()
            };
            suite.bench_function(format!("{algorithm:?}, {world} ranks"), |bencher| {
                bencher.iter(|| plan(black_box(&request)).is_ok());
            });
        }
    }
    suite.finish();
}

criterion_group!(benches, all_reduce);
criterion_main!(benches);
