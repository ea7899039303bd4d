//! All-reduce with ranks as threads: the mean, by the algorithm that the engine chooses.

use criterion::{Criterion, criterion_group, criterion_main};
use gaggle::Mean;
use gaggle_benches::measure;

fn all_reduce(criterion: &mut Criterion) {
    measure(criterion, "all_reduce mean, threads", |group, x, _| {
        group.all_reduce(x, Mean).map(|_| ())
    });
}

criterion_group!(benches, all_reduce);
criterion_main!(benches);
