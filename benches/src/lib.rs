//! What the suites in `benches/` share: one table of scenarios, and how ranks as threads are timed.
//!
//! One file per primitive. A figure is the time of one operation as rank 0 sees it, with all ranks started together; bytes are those of one rank's buffer. `cargo xtask bench` measures, `cargo xtask bench --smoke` only sees that everything runs.

use criterion::{Criterion, Throughput};
use gaggle::{Error, Group};
use std::time::{Duration, Instant};

/// One row: a world, a length, and what to call it.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Ranks.
    pub ranks: usize,
    /// Elements, f32, per rank.
    pub len: usize,
}

impl Scenario {
    /// Bytes of one rank's buffer.
    pub fn bytes(self) -> u64 {
        4 * self.len as u64
    }
}

/// Small, medium and large buffers in worlds that fit a small machine, one of them no power of two.
pub const SCENARIOS: [Scenario; 7] = [
    Scenario { ranks: 2, len: 256 },
    Scenario {
        ranks: 2,
        len: 16 << 10,
    },
    Scenario {
        ranks: 2,
        len: 1 << 20,
    },
    Scenario {
        ranks: 3,
        len: 16 << 10,
    },
    Scenario { ranks: 4, len: 256 },
    Scenario {
        ranks: 4,
        len: 16 << 10,
    },
    Scenario {
        ranks: 4,
        len: 1 << 20,
    },
];

/// Measures `op` in every scenario, with ranks as threads.
///
/// `op` gets the group, the buffer and the number of the repetition. An error of any rank ends the benchmark with a panic: a figure of something that failed would be a lie.
pub fn measure(
    criterion: &mut Criterion,
    name: &str,
    op: impl Fn(&Group, &mut [f32], u64) -> Result<(), Error> + Sync,
) {
    let mut suite = criterion.benchmark_group(name);
    suite
        .sample_size(10)
        .measurement_time(Duration::from_secs(2));
    for scenario in SCENARIOS {
        suite.throughput(Throughput::Bytes(scenario.bytes()));
        suite.bench_function(
            format!("{} ranks x {} f32", scenario.ranks, scenario.len),
            |bencher| {
                bencher.iter_custom(|repetitions| time(scenario, repetitions, &op));
            },
        );
    }
    suite.finish();
}

/// The time that rank 0 needs for all repetitions.
fn time(
    scenario: Scenario,
    repetitions: u64,
    op: &(impl Fn(&Group, &mut [f32], u64) -> Result<(), Error> + Sync),
) -> Duration {
    let rank = |group: Group| -> Result<Duration, Error> {
        let mut x = vec![group.rank().0 as f32; scenario.len];
        // Once before the clock runs: plans and scratch are made on first use.
        op(&group, &mut x, 0)?;
        group.barrier()?;
        let start = Instant::now();
        for t in 1..=repetitions {
            op(&group, &mut x, t)?;
        }
        Ok(start.elapsed())
    };
    let times: Result<Vec<Duration>, Error> =
        gaggle::local(scenario.ranks, rank).and_then(|times| times.into_iter().collect());
    match times {
        Ok(times) => times[0],
        Err(error) => panic!("{scenario:?}: {error}"),
    }
}
