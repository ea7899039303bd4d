//! Staging memory and its flags in every order in which two ranks can run: the very code, over loom's words; its cells are [`Tracked`].

use super::{
    super::{
        models::{Shared, Sparse, both, explore, info, mapped, model_of},
        raw_tracked::Tracked,
        staged_room::{FLAGS, Flag},
    },
    tests::Case,
    *,
};
use gaggle_core::{Block, OBSERVE, OpKind, PUBLISH};
use gaggle_kernels::How;
use gaggle_transport::heap::MappedHeaps;
use loom::{sync::atomic::AtomicU64, thread};
use std::{array, sync::OnceLock};

/// Bytes of a cell that holds one line.
const LINE: u64 = 64;
/// Bytes of a small block, with its flags.
const BYTES: usize = (256 << 10) + FLAGS as usize;
/// Most blocks of staging memory that a rank has at once in these tests: one in use, one that is still read.
const BLOCKS: usize = 2;

/// Two ranks with staging memory, and the operations that they carry out one after the other.
struct Ranks {
    cases: Vec<Case>,
    shared: [Arc<dyn SharedMemory>; 2],
    rooms: [Arc<Rooms>; 2],
    /// In place of the boards: what each rank says of each operation, and the word that says so.
    said: Vec<[(AtomicU64, OnceLock<Member>); 2]>,
}

/// By rank: blocks, and where they lie.
type Blocks = [[(Arc<dyn Block>, u64); BLOCKS]; 2];

/// A rank's blocks, and where they lie.
fn blocks(heap: &MappedHeaps) -> [(Arc<dyn Block>, u64); BLOCKS] {
    array::from_fn(|_| {
        let block = heap.block(BYTES).unwrap();
        let place = heap.place(block.start(), BYTES).unwrap();
        (Arc::from(block), place)
    })
}

impl Ranks {
    fn new(cases: &[Case], heaps: &[Arc<MappedHeaps>; 2], blocks: &Blocks) -> Ranks {
        let places = blocks.each_ref().map(|all| all.each_ref().map(|b| b.1));
        let flags = |at: &u64| [Flag::Filled, Flag::Folded, Flag::Read].map(|f| at + f.at());
        let words = |me: usize| Sparse::at(places[me].iter().flat_map(flags));
        let cells = |me: usize| {
            let lines = |at: &u64| {
                (0..16)
                    .map(move |i| at + FLAGS + i * LINE)
                    .collect::<Vec<_>>()
            };
            let lines = places[me].iter().flat_map(lines);
            lines.map(|at| (at, Tracked::new())).collect()
        };
        let shared = Shared::with([words(0), words(1)], [cells(0), cells(1)]);
        let said = || [0, 1].map(|_| (AtomicU64::new(0), OnceLock::new()));
        Ranks {
            cases: cases.to_vec(),
            shared: [0, 1].map(|me| {
                let model = model_of(me, &shared, heaps);
                let own = blocks[me].iter().rev().map(|b| Arc::clone(&b.0));
                model.blocks.lock().unwrap().extend(own);
                Arc::new(model) as _
            }),
            rooms: [0, 1].map(|_| Arc::default()),
            said: cases.iter().map(|_| said()).collect(),
        }
    }

    fn run(&self, me: usize) {
        let group = Arc::new(info(me));
        for (op, case) in self.cases.iter().enumerate() {
            let request = case.request(me as u32, 2);
            let layout = Arc::new(Layout::cut(&request, case.kind, 4, LINE).unwrap());
            let folds = Folds {
                reduce: case.reduce,
                how: How::default(),
            };
            let mut memory = case.memory(me as u32, 2);
            let (rooms, shared) = (&self.rooms[me], &self.shared[me]);
            let staged = Staged::new(&layout, rooms, shared, &group, op as u64, folds);
            let mut staged = staged.expect("there is room for two blocks");
            staged.prefill(&memory).unwrap();
            let members = self.meet(op, me, staged.record());
            assert!(staged.can_run(&members));
            staged.met(&members);
            loop {
                match staged.advance(&mut memory, u64::MAX).unwrap() {
                    Progress::Done => break,
                    Progress::Moved => {}
                    Progress::Waits => thread::yield_now(),
                    Progress::Void => panic!("nobody has given up"),
                }
            }
            staged.finish();
            let (got, want) = case.outcome(me as u32, 2, &memory);
            assert_eq!(got, want, "operation {op} on rank {me}");
        }
    }

    fn meet(&self, op: usize, me: usize, staging: StagingRecord) -> [Member; 2] {
        let said = &self.said[op];
        let member = Member {
            staging,
            weight: Weight::ONE,
            given_up: 0,
        };
        said[me].1.set(member).unwrap();
        said[me].0.store(1, PUBLISH);
        while said[1 - me].0.load(OBSERVE) == 0 {
            thread::yield_now();
        }
        [0, 1].map(|r| *said[r].1.get().unwrap())
    }
}

/// These operations, in every order.
fn all_orders(cases: &[Case]) {
    let (cases, heaps) = (cases.to_vec(), mapped());
    let blocks = [0, 1].map(|me| blocks(&heaps[me]));
    explore(1, move || {
        both(Ranks::new(&cases, &heaps, &blocks), Ranks::run)
    });
}

/// More slices than slots: each slot is filled again once the other has read what it held.
#[test]
fn loom_a_slot_is_filled_again_when_all_have_read_it() {
    let slices = DEPTH + 1;
    all_orders(&[Case::new(OpKind::Broadcast, slices * 2 * LINE / 4)]);
}

/// What the other owns of mine goes in, what I own of both is folded, what the other has folded comes out.
#[test]
fn loom_a_share_is_folded_when_it_is_there_and_read_when_it_is_folded() {
    all_orders(&[Case::new(OpKind::AllReduce, 2 * 2 * LINE / 4)]);
}

/// One operation after the other through the same staging memory, or through another block where the other is still at the first: all slots are in use.
#[test]
fn loom_staging_memory_goes_to_the_next_operation_when_all_have_read_the_last_ones() {
    let slices = |n: u64| Case::new(OpKind::Broadcast, n * 2 * LINE / 4);
    all_orders(&[slices(DEPTH), slices(1)]);
}
