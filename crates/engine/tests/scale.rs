//! Ten thousand small operations in flight, from four threads, on three groups and forty lanes, issued in another order on every rank: all right, and in bounded memory.

#![allow(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod common;

use common::{Link, config};
use gaggle_core::{Group, Kind, Lane, Op, Rank, Reduce, Work};
use gaggle_engine::Engine;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

/// Counts the bytes that are out, and the most that ever were.
struct Measuring;

static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

fn grown(by: usize) {
    let live = LIVE.fetch_add(by as u64, SeqCst) + by as u64;
    PEAK.fetch_max(live, SeqCst);
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Measuring {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promise about `layout` is the system's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, SeqCst);
        // SAFETY: `ptr` came from `alloc` above, hence from the system, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        grown(size);
        LIVE.fetch_sub(layout.size() as u64, SeqCst);
        // SAFETY: as for `dealloc`, and the caller's promise about `size` is the system's.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static MEASURING: Measuring = Measuring;

const WORLD: u32 = 3;
const LAST: u32 = WORLD - 1;
const GROUPS: u32 = 3;
const LANES: u32 = 40;
const THREADS: u32 = 4;
/// Operations per lane: 10,080 per rank.
const PER_LANE: u64 = 84;
/// What an operation in flight may take on a rank, with its part of all tables of engine and transport, and with its caller's memory.
const BYTES_PER_OPERATION: u64 = 8 << 10;

fn value(rank: u32, group: u32, lane: u32, n: u64) -> i64 {
    i64::from(rank + 1) * (i64::from(group * LANES + lane) * 1000 + n as i64)
}

/// One thread's part: its lanes' operations, in an order of its own, all of them before it waits for any.
fn issue(groups: &[Group], thread: u32, seed: u64) -> Vec<(u32, u32, u64, Work<Vec<i64>>)> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut lanes: Vec<(u32, u32, u64)> = (0..GROUPS)
        .flat_map(|g| (0..LANES).map(move |l| (g, l, 0)))
        .filter(|(g, l, _)| (g + l) % THREADS == thread)
        .collect();
    let mut works = vec![];
    while !lanes.is_empty() {
        let at = rng.random_range(0..lanes.len());
        let (g, lane, n) = lanes[at];
        let group = &groups[g as usize];
        let me = group.communicator().info().world_ranks[group.rank().idx()].0;
        let op = Op::new(Kind::AllReduce(Reduce::Sum))
            .on(Lane(lane))
            .urgent((lane % 3) as i32);
        let x = vec![value(me, g, lane, n); 1 + (lane % 8) as usize];
        works.push((g, lane, n, group.start(op, x)));
        lanes[at].2 += 1;
        if lanes[at].2 == PER_LANE {
            lanes.swap_remove(at);
        }
    }
    works
}

/// All operations once. Returns how many bytes more are out afterwards.
fn wave(engine: &Engine, groups: &[Group], meet: &Barrier, link: Link) -> (u64, u64) {
    let me = groups[0].rank().0;
    let started = Instant::now();
    meet.wait();
    let before = LIVE.load(SeqCst);
    PEAK.store(before, SeqCst);
    meet.wait();
    if me == LAST {
        // Comes when the others have called everything.
        meet.wait();
    }
    let in_flight = std::thread::scope(|s| {
        let threads: Vec<_> = (0..THREADS)
            .map(|t| s.spawn(move || issue(groups, t, u64::from(me * THREADS + t))))
            .collect();
        let works: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        let in_flight = engine.in_flight();
        if me != LAST {
            // Nothing can be over before the last rank has called.
            assert_eq!(in_flight as u64, u64::from(GROUPS * LANES) * PER_LANE);
            meet.wait();
        }
        for (g, lane, n, work) in works.into_iter().flatten() {
            let want: i64 = (0..WORLD).map(|r| value(r, g, lane, n)).sum();
            let x = work.wait().unwrap();
            assert!(x.iter().all(|x| *x == want), "group {g}, lane {lane}, #{n}");
        }
        in_flight
    });
    assert_eq!(engine.in_flight(), 0);
    meet.wait();
    let all = u64::from(WORLD * GROUPS * LANES) * PER_LANE;
    let peak = PEAK.load(SeqCst) - before;
    let left = LIVE.load(SeqCst).saturating_sub(before);
    meet.wait();
    if me == 0 {
        println!(
            "{link:?}: {all} operations in {:.2?}, {in_flight} in flight on rank 0 when it had called all, peak {} bytes per operation, {left} bytes more than before",
            started.elapsed(),
            peak / all
        );
    }
    assert!(peak < all * BYTES_PER_OPERATION, "{peak} bytes for {all}");
    (peak, left)
}

fn check(link: Link) {
    let meet = Barrier::new(WORLD as usize);
    let config = config().with_timeout(Duration::from_secs(120));
    link.local(WORLD, &config, |engine, group| {
        let orders = [[0, 1, 2], [2, 0, 1], [1, 2, 0]];
        let groups: Vec<Group> = orders[..GROUPS as usize]
            .iter()
            .map(|order| group.subgroup(&order.map(Rank), "scale").unwrap())
            .collect();
        group.barrier().unwrap();
        let mut left = vec![];
        let mut peaks = vec![];
        for _wave in 0..5 {
            let (peak, rest) = wave(engine, &groups, &meet, link);
            peaks.push(peak);
            left.push(rest);
        }
        // What is left is room in tables, and is used again: four more waves leave less than one of them has at once.
        let more: u64 = left[1..].iter().sum();
        assert!(more < peaks[0], "{left:?} left, {peaks:?} at once");
    });
}

#[test]
fn ten_thousand_operations_in_flight() {
    check(Link::Threads);
    check(Link::Tcp);
}
