//! An operation that is set up once runs without allocation, on any thread.

#![allow(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod common;

use common::{Link, config};
use gaggle_core::{
    Algorithm, Codec, Form, Group, Kind, Lane, Mode, Op, Rank, Recurring, Reduce, Round,
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: the caller's promise about `layout` is the system's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above, hence from the system, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: as for `dealloc`, and the caller's promise about `size` is the system's.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const WORLD: u32 = 3;

fn ring(me: u32) -> Round {
    Round {
        from: vec![(Rank((me + WORLD - 1) % WORLD), 0.5)],
        to: vec![(Rank((me + 1) % WORLD), 1.0)],
        keep: 0.5,
        form: Form::Delta,
    }
}

/// Operations of every kind that a training step repeats, small and sliced ones.
fn operations(group: &Group) -> Vec<Recurring<Vec<f32>>> {
    let sum = |reduce, algorithm| Op::new(Kind::AllReduce(reduce)).by(algorithm);
    let mix = Op::new(Kind::Mix {
        round: ring(group.rank().0),
        t: 0,
    });
    let ops = [
        (sum(Reduce::Sum, Algorithm::RecursiveDoubling), 100),
        (sum(Reduce::Mean, Algorithm::Direct), 20_000),
        (sum(Reduce::Sum, Algorithm::Ring), 20_000),
        (sum(Reduce::Sum, Algorithm::Direct).urgent(3), 0),
        (mix.clone(), 10),
        (mix, 20_000),
        (
            sum(Reduce::Mean, Algorithm::Direct)
                .coded_always(Codec::Int8)
                .with_feedback(1),
            20_000,
        ),
        (
            sum(Reduce::Sum, Algorithm::Direct).in_mode(Mode::Exact),
            5_000,
        ),
        (sum(Reduce::Max, Algorithm::HalvingDoubling), 20_000),
        (Op::new(Kind::Broadcast { root: Rank(1) }), 20_000),
    ];
    (0u32..)
        .zip(ops)
        .map(|(lane, (op, n))| group.persistent(op.on(Lane(lane)), vec![1f32; n]).unwrap())
        .collect()
}

fn run(ops: &mut [Recurring<Vec<f32>>], starts: std::ops::Range<u64>) {
    for t in starts {
        for op in ops.iter_mut() {
            op.elements().unwrap().fill(1.0);
            op.start_round(t).unwrap();
        }
        for op in ops.iter_mut() {
            op.wait().unwrap();
        }
    }
}

/// What is warm is not known beforehand: a first wait on a lock, or more early messages at once than ever before, may come late. So a thousand starts get a few tries; one of them has to be without any allocation.
const TRIES: u64 = 5;

fn check(link: Link) {
    let mut config = config();
    config.slice_bytes = 32 << 10;
    let meet = Barrier::new(WORLD as usize);
    // The flight recorder is always on.
    let dir = tempfile::tempdir().unwrap();
    link.local(WORLD, &config, |engine, group| {
        let about = gaggle_trace::About::new("alloc", WORLD, group.rank());
        let recorder = gaggle_trace::Recorder::create(dir.path(), &about).unwrap();
        engine.attach_recorder(recorder);
        let mut ops = operations(&group);
        run(&mut ops, 0..300);
        let mut seen = vec![];
        for k in 0..TRIES {
            meet.wait();
            let before = ALLOCATIONS.load(SeqCst);
            meet.wait();
            run(&mut ops, 300 + k * 1000..1300 + k * 1000);
            meet.wait();
            let allocations = ALLOCATIONS.load(SeqCst) - before;
            meet.wait();
            seen.push(allocations);
            if allocations == 0 {
                break;
            }
        }
        if group.rank() == Rank(0) {
            println!(
                "{link:?}: allocations in 1,000 starts of {}: {seen:?}",
                ops.len()
            );
        }
        assert_eq!(seen.last(), Some(&0), "{link:?}: {seen:?}");
        let want = [3.0, 1.0, 3.0, 0.0, 1.0, 1.0, 1.0, 3.0, 1.0, 1.0];
        for (op, want) in ops.iter_mut().zip(want) {
            // int8 steps are a little over 1/126.
            let near = |x: &f32| (*x - want).abs() < 1e-3;
            assert!(op.elements().unwrap().iter().all(near));
        }
    });
}

/// One test, so that no other thread of the harness allocates in between; the engines' own threads are counted.
#[test]
fn a_persistent_operation_allocates_nothing_on_any_thread() {
    check(Link::Threads);
    check(Link::Tcp);
}
