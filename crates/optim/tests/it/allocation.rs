//! A step allocates nothing once the first one has been taken.

use crate::worlds::built;
use gaggle_core::{Error, Exchange, Mixer, Rank, With};
use gaggle_optim::{Decentralised, NAMES};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting per thread.
struct Counting;

// SAFETY: both methods hand their arguments to the system's allocator unchanged; the counter is a constant-initialised thread-local without a destructor, which allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller keeps `alloc`'s contract, which is the system's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `System.alloc` above with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A world of one: what is sent is the mean.
struct Alone(Vec<f32>);

impl Mixer<f32> for Alone {
    fn rank(&self) -> Rank {
        Rank(0)
    }
    fn world(&self) -> usize {
        1
    }
    fn messages(&mut self, exchange: &Exchange) -> usize {
        usize::from(exchange.with != With::EachNeighbour)
    }
    fn outbox(&mut self, _slot: usize, n: usize) -> &mut [f32] {
        self.0.resize(n, 0.0);
        &mut self.0
    }
    fn start(&mut self, _exchange: &Exchange, _t: u64) -> Result<(), Error> {
        Ok(())
    }
    fn finish(&mut self, _slot: usize) -> Result<(), Error> {
        Ok(())
    }
    fn mean(&self, _slot: usize) -> &[f32] {
        &self.0
    }
    fn weights(&self, _slot: usize) -> &[f64] {
        &[1.0]
    }
}

#[test]
fn a_step_allocates_nothing_after_the_first() {
    for name in NAMES {
        let mut rank = Decentralised::unchecked(built(name), Box::new(Alone(Vec::new())), 100);
        let (mut x, g) = ([1.0_f32; 100], [0.1_f32; 100]);
        let mut step = || {
            rank.before_forward(0.1, &mut x).unwrap();
            rank.accumulate(&g).unwrap();
            rank.step(0.1, &mut x, &g).unwrap();
        };
        let count = || ALLOCATIONS.with(Cell::get);
        let before = count();
        // As many as there are from one communication of any rule to its next.
        (0..6).for_each(|_| step());
        assert!(count() > before, "the counter counts");
        let before = count();
        (0..10).for_each(|_| step());
        assert_eq!(count(), before, "{name}");
    }
}
