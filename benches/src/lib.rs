//! What the suites in `benches/` share: one table of scenarios, and how ranks as threads are timed.
//!
//! One file per primitive. A figure is the time of one operation as rank 0 sees it, with all ranks started together; bytes are those of one rank's buffer. `cargo xtask bench` measures, `cargo xtask bench --smoke` only sees that everything runs.

pub mod digits;
pub mod jobs;
pub mod net;
pub mod options;
pub mod perf;
pub mod verdict;

use criterion::{BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use gaggle::{DType, Error, Group};
use gaggle_kernels::Isa;
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

/// Elements that a benchmark of pure arithmetic works on: what fits the second-level cache, and what fits none.
pub const LENGTHS: [usize; 2] = [16 << 10, 4 << 20];

/// Settings for benchmarks of pure arithmetic, which vary little: some seconds for a suite of dozens.
pub fn quick(suite: &mut BenchmarkGroup<'_, WallTime>) {
    suite
        .sample_size(20)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300));
}

/// Calls `f` for every instruction set that this machine has, with the kernels set to it.
pub fn each_isa(mut f: impl FnMut(Isa)) {
    for isa in Isa::ALL {
        if Isa::force(Some(isa)) {
            f(isa);
        }
    }
    Isa::force(None);
}

/// The bytes of `len` elements of `dtype`: floats between -2 and 2 without zeroes and denormals, integers of all sizes, `true` and `false`; another row of them for another `seed`.
pub fn elements(dtype: DType, len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut word = || {
        // Knuth's MMIX generator; the upper bits are the good ones.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    if dtype.is_float() {
        let floats: Vec<f32> = (0..len)
            .map(|_| {
                let word = word();
                let magnitude = f32::from_bits(0x3f80_0000 | word >> 9);
                if word & 1 == 0 { magnitude } else { -magnitude }
            })
            .collect();
        let mut bytes = vec![0; len * dtype.size()];
        let source = gaggle::core::raw::bytes_of(&floats);
        gaggle_kernels::convert(&mut bytes, dtype, source, DType::F32);
        return bytes;
    }
    let mask = if dtype == DType::Bool { 1 } else { 0xff };
    (0..len * dtype.size())
        .map(|_| word() as u8 & mask)
        .collect()
}

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
