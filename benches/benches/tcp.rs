//! Two ranks over loopback TCP: all-reduce by the engine, with little and with much unsent data in the kernel.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gaggle::{
    Engine, EngineConfig, Group, Rank, Sum,
    core::SystemClock,
    transport::{
        control,
        tcp::{TcpConfig, TcpTransport},
    },
};
use std::{
    io,
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Elements, f32.
const LENGTHS: [usize; 3] = [64, 64 << 10, 4 << 20];

fn engines(unsent: u32) -> io::Result<Vec<Engine>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let there = TcpStream::connect(listener.local_addr()?)?;
    let here = listener.accept()?.0;
    let config = TcpConfig {
        unsent,
        ..TcpConfig::default()
    };
    let links = [(0, 1, here), (1, 0, there)].into_iter();
    links
        .zip(control::inproc(2))
        .map(|((me, peer, stream), control)| {
            let links = vec![(Rank(peer), stream)];
            let link = TcpTransport::new(Rank(me), links, config.clone())?;
            Engine::new(
                vec![Box::new(link)],
                Box::new(control),
                Arc::new(SystemClock::new()),
                EngineConfig::default(),
            )
            .map_err(io::Error::other)
        })
        .collect()
}

/// The time that rank 0 needs for all repetitions.
fn time(engines: &[Engine], len: usize, repetitions: u64) -> Duration {
    let rank = |group: Group| -> Result<Duration, gaggle::Error> {
        let mut x = vec![0.0f32; len];
        group.barrier()?;
        let start = Instant::now();
        for _ in 0..repetitions {
            group.all_reduce(&mut x, Sum)?;
        }
        Ok(start.elapsed())
    };
    let times: Result<Vec<Duration>, gaggle::Error> = thread::scope(|scope| {
        let run = |engine: &Engine| {
            let group = engine.group();
            scope.spawn(move || rank(group))
        };
        let ranks: Vec<_> = engines.iter().map(run).collect();
        let join = |rank: thread::ScopedJoinHandle<'_, Result<Duration, gaggle::Error>>| {
            rank.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        ranks.into_iter().map(join).collect()
    });
    match times {
        Ok(times) => times[0],
        // A figure of something that failed would be a lie.
        Err(error) => panic!("{error}"),
    }
}

fn all_reduce(criterion: &mut Criterion) {
    let mut suite = criterion.benchmark_group("tcp all_reduce");
    suite
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(2));
    for unsent in [16 << 10, 32 << 10, 256 << 10] {
        let engines = match engines(unsent) {
            Ok(engines) => engines,
            Err(error) => panic!("{error}"),
        };
        for len in LENGTHS {
            suite.throughput(Throughput::Bytes(4 * len as u64));
            let name = format!("{} KiB unsent x {len}", unsent >> 10);
            suite.bench_function(name, |bencher| {
                bencher.iter_custom(|repetitions| time(&engines, len, repetitions));
            });
        }
    }
    suite.finish();
}

criterion_group!(benches, all_reduce);
criterion_main!(benches);
