//! One of the two processes. Rank 0 says what was measured: a name, a tab, and the seconds of one pass of the rank that took longer.

use crate::raw_memory::{Memory, windows};
use anyhow::{Context, Result, ensure};
use gaggle::{DType, Group, Job, Max, Reduce, Sum, core::Stores};
use gaggle_kernels::{How, Source, Term};
use std::{
    io::Write,
    path::Path,
    process,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Instant,
};

pub(crate) const LOOP: &str = "a loop, unsynchronised";
pub(crate) const KERNEL: &str = "the kernel, unsynchronised";
pub(crate) const ALL_REDUCE: &str = "all-reduce, registered";
/// Everything is measured.
pub(crate) const END: &str = "end";
/// There is no registered memory.
pub(crate) const NONE: &str = "none";

/// What is measured, and how often.
pub(crate) struct Plan {
    /// Elements of each buffer.
    pub(crate) len: usize,
    pub(crate) rounds: usize,
    /// Passes, or calls, that are timed together.
    pub(crate) passes: usize,
}

static LEFT: AtomicBool = AtomicBool::new(false);

/// `false` where it cannot be measured.
pub(crate) fn main(memory: &Path, plan: &Plan) -> Result<bool> {
    // Whoever started this holds the other end of the input as long as it lives.
    thread::Builder::new().name("parent".into()).spawn(|| {
        let mut line = String::new();
        let _ = std::io::stdin().read_line(&mut line);
        process::exit(if LEFT.load(Relaxed) { 0 } else { 3 });
    })?;
    let job = gaggle::join()?;
    let speaks = job.group().rank().0 == 0;
    let done = measure(&job, memory, plan);
    job.leave();
    LEFT.store(true, Relaxed);
    let done = done?;
    say(if done { END } else { NONE }, speaks)?;
    Ok(done)
}

fn say(line: &str, speaks: bool) -> Result<()> {
    if speaks {
        writeln!(std::io::stdout(), "{line}").context("nobody listens")?;
    }
    Ok(())
}

fn measure(job: &Job, memory: &Path, plan: &Plan) -> Result<bool> {
    let group = job.group();
    let rank = group.rank().idx();
    let mut memory = Memory::open(memory).context("the memory cannot be mapped")?;
    let mut halves = memory.halves(rank);
    for half in &mut halves {
        half.fill(0.0);
    }
    let mut x = group.buffer::<f32>(plan.len);
    let mut registered = [u32::from(x.is_registered())];
    group.all_reduce(&mut registered, gaggle::Min)?;
    if registered == [0] {
        return Ok(false);
    }
    x.fill(rank as f32 + 1.0);
    group.all_reduce(&mut x, Sum)?;
    ensure!(x.iter().all(|v| *v == 3.0), "the sum is wrong");
    x.fill(0.0);
    for _ in 0..plan.rounds {
        timed(job, plan, LOOP, || {
            let [a, b] = &mut halves;
            for (a, b) in a.iter_mut().zip(b.iter_mut()) {
                let sum = *a + *b;
                (*a, *b) = (sum, sum);
            }
            Ok(())
        })?;
        timed(job, plan, KERNEL, || {
            fold(&mut halves);
            Ok(())
        })?;
        timed(job, plan, ALL_REDUCE, || {
            group.all_reduce(&mut x, Sum)?;
            Ok(())
        })?;
    }
    Ok(true)
}

fn fold(halves: &mut [&mut [f32]; 2]) {
    let places = windows(halves);
    let terms = places.map(|place| Term {
        source: Source::Window {
            window: place.into(),
            dtype: DType::F32,
        },
        weight: None,
    });
    let (sum, how) = (Reduce::Sum, How::default());
    gaggle_kernels::fold_windows(DType::F32, sum, &places, &terms, how, Stores::Cached);
}

/// Starts together, and does not meet until all passes are done.
fn timed(job: &Job, plan: &Plan, name: &str, mut pass: impl FnMut() -> Result<()>) -> Result<()> {
    let group: &Group = job.group();
    pass()?;
    group.barrier()?;
    let start = Instant::now();
    for _ in 0..plan.passes {
        pass()?;
    }
    let mut seconds = [start.elapsed().as_secs_f64() / plan.passes as f64];
    group.all_reduce(&mut seconds, Max)?;
    say(&format!("{name}\t{:e}", seconds[0]), group.rank().0 == 0)
}
