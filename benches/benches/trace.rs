//! The flight recorder: what recording one operation costs, with its start, two messages and its end.

use criterion::{Criterion, criterion_group, criterion_main};
use gaggle::{
    Codec, DType, Rank, Reduce,
    core::{Algorithm, Class, Descriptor, Divisor, GroupInfo, OpId, OpKind, descriptor::ModeBits},
    trace::{About, Recorder, Start},
};
use gaggle_benches::quick;

fn recording(criterion: &mut Criterion) {
    let dir = std::env::temp_dir();
    let group = GroupInfo {
        id: 7,
        rank: Rank(0),
        world_ranks: (0..8).map(Rank).collect(),
        epoch: 0,
        initial_size: 8,
        incarnation: 0,
    };
    let mut descriptor = Descriptor {
        id: OpId {
            group: 7,
            lane: 0,
            class: Class::Collective,
            seq: 0,
        },
        incarnation: 0,
        epoch: 0,
        kind: OpKind::AllReduce,
        dtype: DType::F32,
        reduce: Reduce::Sum,
        count: 1000,
        root: Rank(0),
        codec: Codec::None,
        algorithm: Algorithm::Ring,
        divisor: Divisor::Contributors,
        mode: ModeBits::default(),
        priority: 0,
        slice: 65536,
        tables: 0,
    };
    let mut suite = criterion.benchmark_group("trace");
    quick(&mut suite);
    match Recorder::create(&dir, &About::new("bench", 8, Rank(0))) {
        Ok(mut recorder) => {
            suite.bench_function("one operation", |bencher| {
                bencher.iter(|| {
                    descriptor.id.seq += 1;
                    let ticket = recorder.start(&Start {
                        descriptor: &descriptor,
                        group: &group,
                        sources: 0b110,
                    });
                    recorder.arrived(ticket, Rank(1), Rank(1), 4000);
                    recorder.arrived(ticket, Rank(2), Rank(2), 4000);
                    recorder.done(ticket, 8000, &[]);
                });
            });
            recorder.close();
        }
        Err(error) => eprintln!("{error}"),
    }
    suite.finish();
}

criterion_group!(benches, recording);
criterion_main!(benches);
