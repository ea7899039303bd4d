//! All ranks of a world in one thread, each a step at a time in random order: the bits of a fold at once, whatever the order.

use super::*;
use gaggle_collectives::{Call, Request};
use gaggle_core::{Algorithm, Counts, DType, OpKind, Owned, Region};
use gaggle_kernels::How;
use gaggle_transport::heap::{MappedHeaps, heaps};
use rand::{Rng, SeedableRng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;

const WORLDS: [u32; 6] = [1, 2, 3, 5, 7, 8];
const HEAP: u64 = 64 << 20;

/// Everybody's heap and staging memory.
struct Host {
    shared: Vec<Arc<dyn SharedMemory>>,
    rooms: Vec<Arc<Rooms>>,
    groups: Vec<Arc<GroupInfo>>,
    ops: u64,
    /// Bytes of the cache that each processor has for itself.
    cache: u64,
}

impl Host {
    fn new(world: u32) -> Host {
        let shared = heaps(world, HEAP).unwrap().into_iter();
        let group = |me| GroupInfo {
            id: 7,
            rank: Rank(me),
            world_ranks: (0..world).map(Rank).collect(),
            epoch: 0,
            initial_size: world,
            incarnation: 0,
        };
        Host {
            shared: shared.map(|h: MappedHeaps| Arc::new(h) as _).collect(),
            rooms: (0..world).map(|_| Arc::new(Rooms::default())).collect(),
            groups: (0..world).map(|me| Arc::new(group(me))).collect(),
            ops: 0,
            cache: 0,
        }
    }

    fn world(&self) -> u32 {
        self.groups.len() as u32
    }

    /// A rank's side of an operation, its first slice in place.
    fn side(&self, me: usize, case: &Case, most: u64) -> Side {
        let request = case.request(me as u32, self.world());
        let size = case.dtype.size() as u64;
        let layout = Layout::cut(&request, case.kind, size, most).unwrap();
        let layout = Arc::new(layout.with_cache(self.cache));
        let memory = case.memory(me as u32, self.world());
        assert!(layout.fits(&memory), "{layout:?}");
        let folds = Folds {
            reduce: case.reduce,
            how: How::default(),
        };
        let (rooms, shared) = (&self.rooms[me], &self.shared[me]);
        let staged = Staged::new(&layout, rooms, shared, &self.groups[me], self.ops, folds);
        let mut staged = staged.unwrap();
        if case.prefills {
            staged.prefill(&memory).unwrap();
        }
        Side {
            member: Member {
                staging: staged.record(),
                weight: case.weight(me as u32),
                given_up: self.shared[me].given_up(Rank(me as u32)),
            },
            staged: Some(staged),
            memory,
        }
    }

    fn sides(&mut self, case: &Case, most: u64) -> Vec<Side> {
        self.ops += 1;
        let world = self.world() as usize;
        let mut sides: Vec<Side> = (0..world).map(|me| self.side(me, case, most)).collect();
        let members: Vec<Member> = sides.iter().map(|s| s.member).collect();
        for side in &mut sides {
            let staged = side.staged.as_mut().unwrap();
            assert!(staged.can_run(&members));
            staged.met(&members);
        }
        sides
    }

    /// Runs it to its end and checks every rank's result.
    fn check(&mut self, case: &Case, most: u64, rng: &mut ChaCha8Rng) {
        let mut sides = self.sides(case, most);
        let mut open: Vec<usize> = (0..sides.len()).collect();
        let mut idle = 0;
        while let Some(&me) = open.choose(rng) {
            let budget = *[0, 1, 1 << 12, u64::MAX].choose(rng).unwrap();
            idle += 1;
            match sides[me].advance(budget) {
                Progress::Done => {
                    sides[me].staged.take().unwrap().finish();
                    open.retain(|r| *r != me);
                    idle = 0;
                }
                Progress::Moved => idle = 0,
                Progress::Waits => assert!(idle < 10_000, "nobody moves: {case:?}"),
                Progress::Void => panic!("nobody has given up: {case:?}"),
            }
        }
        for (me, side) in sides.iter().enumerate() {
            let (got, want) = case.outcome(me as u32, self.world(), &side.memory);
            assert_eq!(
                got,
                want,
                "rank {me} of {}, {most} bytes: {case:?}",
                self.world()
            );
        }
    }
}

struct Side {
    staged: Option<Staged>,
    memory: OpMemory,
    member: Member,
}

impl Side {
    fn advance(&mut self, budget: u64) -> Progress {
        let staged = self.staged.as_mut().unwrap();
        staged.advance(&mut self.memory, budget).unwrap()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) kind: OpKind,
    pub(super) reduce: Reduce,
    dtype: DType,
    /// Elements of the vector, or of each part.
    len: u64,
    counts: Counts,
    out_of_place: bool,
    weights: Vec<f64>,
    prefills: bool,
}

impl Case {
    pub(super) fn new(kind: OpKind, len: u64) -> Case {
        Case {
            kind,
            reduce: Reduce::Sum,
            dtype: DType::F32,
            len,
            counts: Counts::Equal,
            out_of_place: false,
            weights: vec![1.0],
            prefills: true,
        }
    }

    fn weight(&self, rank: u32) -> Weight {
        Weight::from_f64(self.weights[rank as usize % self.weights.len()]).unwrap()
    }

    pub(super) fn request(&self, me: u32, world: u32) -> Request {
        let (algorithm, counts) = (Algorithm::Fused, self.counts.clone());
        let call = match self.kind {
            OpKind::AllReduce => Call::AllReduce {
                reduce: self.reduce,
                algorithm,
            },
            OpKind::ReduceScatter => Call::ReduceScatter {
                reduce: self.reduce,
                counts,
                algorithm,
            },
            OpKind::AllGather => Call::AllGather { counts, algorithm },
            OpKind::Gather => Call::Gather {
                root: Rank(world - 1),
                counts,
                algorithm,
            },
            OpKind::Scatter => Call::Scatter {
                root: Rank(world - 1),
                counts,
                algorithm,
            },
            OpKind::AllToAll => Call::AllToAll {
                send: Counts::Equal,
                recv: Counts::Equal,
                algorithm,
            },
            _ => Call::Broadcast {
                root: Rank(world - 1),
                algorithm,
            },
        };
        let mut request = Request::new(call, Rank(me), world, self.len);
        request.out_of_place = self.out_of_place;
        request
    }

    /// Where each rank's part begins, and the end.
    fn ends(&self, world: u32) -> Vec<u64> {
        let count = |r: usize| match &self.counts {
            Counts::Known(c) => c[r],
            _ => self.len,
        };
        let mut ends = vec![0];
        for r in 0..world as usize {
            ends.push(ends[r] + count(r));
        }
        ends
    }

    /// Elements of the whole vector.
    fn total(&self, world: u32) -> u64 {
        match self.kind {
            OpKind::AllReduce | OpKind::Broadcast => self.len,
            _ => self.ends(world)[world as usize],
        }
    }

    /// What a rank would give of the whole vector.
    fn values(&self, rank: u32, n: u64) -> Vec<u8> {
        let mut rng = ChaCha8Rng::seed_from_u64(u64::from(rank) + 1);
        let size = self.dtype.size();
        if self.dtype == DType::Bool {
            return (0..n).map(|_| rng.random_range(0..2)).collect();
        }
        if !self.dtype.is_float() {
            return (0..n as usize * size).map(|_| rng.random()).collect();
        }
        let values: Vec<f32> = (0..n).map(|_| rng.random_range(-9.0..9.0)).collect();
        let mut bytes = vec![0; n as usize * size];
        let from = gaggle_core::raw::bytes_of(&values);
        kernels::convert(&mut bytes, self.dtype, from, DType::F32);
        bytes
    }

    fn own(&self, me: u32, world: u32) -> Span {
        let ends = self.ends(world);
        let (lo, hi) = (ends[me as usize], ends[me as usize + 1]);
        Span::user(lo, hi - lo)
    }

    fn part(&self, all: &[u8], span: Span) -> Vec<u8> {
        let size = self.dtype.size();
        all[span.at as usize * size..(span.at + span.len) as usize * size].to_vec()
    }

    pub(super) fn memory(&self, me: u32, world: u32) -> OpMemory {
        let all = self.values(me, self.total(world));
        let own = self.own(me, world);
        let region = |bytes: &[u8]| {
            let n = bytes.len() / self.dtype.size();
            let mut region = Region::zeroed(self.dtype, n as u64).unwrap();
            let mut view = region.view().unwrap();
            view.bytes().unwrap().copy_from_slice(bytes);
            region
        };
        let none = || region(&[]);
        let part = || self.part(&all, own);
        let empty_part = || region(&vec![0; self.part(&all, own).len()]);
        let memory = match (self.out_of_place, self.kind) {
            (false, OpKind::Gather | OpKind::Scatter) if me + 1 != world => Owned {
                input: None,
                io: region(&part()),
            },
            (true, OpKind::Gather) => Owned {
                input: Some(region(&part())),
                io: match me + 1 == world {
                    true => region(&vec![0; all.len()]),
                    false => none(),
                },
            },
            (true, OpKind::Scatter) => Owned {
                input: Some(match me + 1 == world {
                    true => region(&all),
                    false => none(),
                }),
                io: empty_part(),
            },
            (false, _) => Owned {
                input: None,
                io: region(&all),
            },
            (true, OpKind::ReduceScatter) => Owned {
                input: Some(region(&all)),
                io: region(&vec![0; self.part(&all, own).len()]),
            },
            (true, OpKind::AllGather) => Owned {
                input: Some(region(&self.part(&all, own))),
                io: region(&vec![0; all.len()]),
            },
            (true, _) => Owned {
                input: Some(region(&all)),
                io: region(&vec![0; all.len()]),
            },
        };
        OpMemory::owned(memory).map_err(|(e, _)| e).unwrap()
    }

    /// What the operation has promised to leave: what there is, and what there should be.
    pub(super) fn outcome(&self, me: u32, world: u32, memory: &OpMemory) -> (Vec<u8>, Vec<u8>) {
        let n = self.total(world);
        let given: Vec<Vec<u8>> = (0..world).map(|r| self.values(r, n)).collect();
        let all = Span::user(0, memory.shape().io);
        let own = self.own(me, world);
        let fold = || {
            let before = match self.out_of_place {
                true => vec![0; given[0].len()],
                false => given[me as usize].clone(),
            };
            let mut to = before;
            let terms: Vec<kernels::Term<'_>> = (0..world)
                .map(|r| kernels::Term {
                    source: kernels::Source::Bytes {
                        bytes: &given[r as usize],
                        dtype: self.dtype,
                    },
                    weight: (self.reduce == Reduce::Mean).then(|| self.weight(r)),
                })
                .collect();
            kernels::fold_with(self.dtype, self.reduce, &mut to, &terms, How::default());
            to
        };
        match self.kind {
            OpKind::AllReduce => (memory.bytes(all).to_vec(), fold()),
            OpKind::ReduceScatter => {
                let got = if self.out_of_place { all } else { own };
                (memory.bytes(got).to_vec(), self.part(&fold(), own))
            }
            OpKind::AllGather => {
                let parts = (0..world).map(|r| self.part(&given[r as usize], self.own(r, world)));
                (
                    memory.bytes(all).to_vec(),
                    parts.collect::<Vec<_>>().concat(),
                )
            }
            OpKind::Gather => {
                let parts = (0..world).map(|r| self.part(&given[r as usize], self.own(r, world)));
                let want = match (me + 1 == world, self.out_of_place) {
                    (true, _) => parts.collect::<Vec<_>>().concat(),
                    (false, true) => vec![],
                    (false, false) => self.part(&given[me as usize], own),
                };
                (memory.bytes(all).to_vec(), want)
            }
            OpKind::Scatter => {
                let root = &given[world as usize - 1];
                let want = match me + 1 == world && !self.out_of_place {
                    true => root.clone(),
                    false => self.part(root, own),
                };
                (memory.bytes(all).to_vec(), want)
            }
            OpKind::AllToAll => {
                let parts = given.iter().map(|all| self.part(all, own));
                (
                    memory.bytes(all).to_vec(),
                    parts.collect::<Vec<_>>().concat(),
                )
            }
            _ => (
                memory.bytes(all).to_vec(),
                given[world as usize - 1].clone(),
            ),
        }
    }
}

fn lengths(world: u32) -> Vec<u64> {
    let world = u64::from(world);
    let mut lens = vec![0, 1, world - 1, world, world + 1, 4099];
    lens.dedup();
    lens
}

const KINDS: [OpKind; 7] = [
    OpKind::AllReduce,
    OpKind::ReduceScatter,
    OpKind::AllGather,
    OpKind::AllToAll,
    OpKind::Broadcast,
    OpKind::Gather,
    OpKind::Scatter,
];

#[test]
fn every_kind_gives_what_it_promises_in_whatever_order_the_ranks_go_on() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for world in WORLDS {
        let mut host = Host::new(world);
        for len in lengths(world) {
            for kind in KINDS {
                for counted in [false, true] {
                    let mut case = Case::new(kind, len);
                    if counted && kind != OpKind::AllToAll {
                        let count = |r: u64| (r * 3 + len) % 5 * (1 + len / 8);
                        let counts: Vec<u64> = (0..u64::from(world)).map(count).collect();
                        case.counts = Counts::known(&counts);
                    }
                    case.out_of_place = rng.random();
                    case.prefills = rng.random();
                    // One slice, a few, and as many as there can be.
                    for most in [1 << 20, 2048, 64] {
                        host.check(&case, most, &mut rng);
                        case.out_of_place = !case.out_of_place;
                    }
                }
            }
        }
    }
}

#[test]
fn all_types_and_weights_have_the_bits_of_a_fold_at_once() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let reduces = [
        Reduce::Sum,
        Reduce::Prod,
        Reduce::Min,
        Reduce::Max,
        Reduce::Mean,
        Reduce::Band,
        Reduce::Bor,
        Reduce::Bxor,
    ];
    for world in [2, 3, 8] {
        let mut host = Host::new(world);
        for dtype in DType::ALL {
            for reduce in reduces.into_iter().filter(|r| r.is_defined_on(dtype)) {
                for kind in [OpKind::AllReduce, OpKind::ReduceScatter] {
                    let mut case = Case::new(kind, 1009);
                    (case.dtype, case.reduce) = (dtype, reduce);
                    case.out_of_place = rng.random();
                    case.weights = vec![2.0, 0.0, 1.5, 0.25];
                    host.check(&case, 256, &mut rng);
                }
            }
        }
    }
}

/// What others read from a processor's own cache is written past it, where that is known; the results are the same.
#[test]
fn what_would_stay_in_a_cache_is_written_past_it() {
    let layout = |kind, len, cache| {
        let request = Case::new(kind, len).request(0, 2);
        let layout = Layout::of(&request, kind, 4).unwrap();
        layout.with_cache(cache).stays()
    };
    // Staging memory has four slots, of a vector each; and there are the vector and its result.
    for (kilobytes, stays) in [
        (0, false),
        (16, false),
        (32, true),
        (128, true),
        (256, false),
    ] {
        let len = kilobytes << 8;
        assert_eq!(
            layout(OpKind::AllReduce, len, 1 << 20),
            stays,
            "{kilobytes}"
        );
        assert!(!layout(OpKind::AllReduce, len, 0));
    }
    // A part of 64 KiB in one cell, and half of one.
    assert!(layout(OpKind::AllGather, 16 << 10, 1 << 20));
    assert!(!layout(OpKind::AllGather, 32 << 10, 1 << 20));
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    for world in WORLDS {
        let mut host = Host::new(world);
        host.cache = u64::MAX;
        for kind in KINDS {
            for len in [32 << 10, (32 << 10) + 1, 32_771] {
                host.check(&Case::new(kind, len), 128 << 10, &mut rng);
            }
        }
    }
}

#[test]
fn where_no_rank_has_a_weight_nothing_is_read_or_written() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut host = Host::new(3);
    let mut case = Case::new(OpKind::AllReduce, 1000);
    (case.reduce, case.weights) = (Reduce::Mean, vec![0.0]);
    for _ in 0..3 {
        host.check(&case, 256, &mut rng);
    }
    case.weights = vec![1.0];
    host.check(&case, 256, &mut rng);
}

#[test]
fn a_block_is_used_again_only_when_all_have_read_it() {
    let mut host = Host::new(2);
    let case = Case::new(OpKind::AllReduce, 1000);
    let mut sides = host.sides(&case, 1 << 20);
    let first = sides[0].member.staging.place;
    while sides[0].advance(1) != Progress::Done {
        if sides[1].staged.as_ref().is_some_and(|s| s.folded == 0) {
            sides[1].advance(1);
        }
    }
    sides[0].staged.take().unwrap().finish();
    // The other has not read the result yet.
    let late = host.side(0, &case, 1 << 20);
    assert_ne!(late.member.staging.place, first);
    while sides[1].advance(1) != Progress::Done {}
    let (got, want) = case.outcome(1, 2, &sides[1].memory);
    assert_eq!(got, want);
    let after = host.side(0, &case, 1 << 20);
    assert_eq!(after.member.staging.place, first);
    assert!(after.member.staging.base > 0);
}

#[test]
fn who_is_behind_a_failure_does_not_end_well() {
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    for steps in 0..12 {
        let mut host = Host::new(3);
        let case = Case::new(OpKind::AllReduce, 5000);
        let mut sides = host.sides(&case, 1024);
        let name = host.ops;
        for _ in 0..steps {
            for side in &mut sides {
                assert_ne!(side.advance(1), Progress::Done);
            }
        }
        let mut straggler = sides.remove(2);
        for me in 0..2 {
            host.shared[me].give_up(name);
        }
        // The others' staging memory serves other operations, of two ranks and with other content.
        drop(sides);
        let mut others = Host::new(2);
        others.shared = host.shared[..2].to_vec();
        others.rooms = host.rooms[..2].to_vec();
        others.ops = 1000;
        for _ in 0..3 {
            others.check(&Case::new(OpKind::AllReduce, 9000), 1024, &mut rng);
        }
        let mut ends = (0..1000).map(|_| straggler.advance(1));
        assert_eq!(ends.find(|p| *p != Progress::Moved), Some(Progress::Void));
    }
}

#[test]
fn who_is_waited_for_is_who_has_not_done_its_part() {
    let mut host = Host::new(3);
    let mut case = Case::new(OpKind::AllReduce, 5000);
    case.prefills = false;
    let mut sides = host.sides(&case, 1024);
    for _ in 0..100 {
        sides[0].advance(1);
        sides[2].advance(1);
    }
    assert_eq!(sides[0].advance(1), Progress::Waits);
    let awaited = sides[0].staged.as_ref().unwrap().awaited();
    assert_eq!(awaited, [Rank(1)]);
}

#[test]
fn a_rank_without_room_says_so() {
    let host = Host::new(1);
    let case = Case::new(OpKind::AllReduce, 1000);
    let mut all: Vec<Side> = vec![];
    let (rooms, shared) = (&host.rooms[0], &host.shared[0]);
    let layout = Arc::new(Layout::of(&case.request(0, 1), case.kind, 4).unwrap());
    let take = || {
        let folds = Folds {
            reduce: Reduce::Sum,
            how: How::default(),
        };
        Staged::new(&layout, rooms, shared, &host.groups[0], 0, folds)
    };
    let mut n = 0;
    while let Some(staged) = take() {
        let staging = staged.record();
        all.push(Side {
            staged: Some(staged),
            memory: case.memory(0, 1),
            member: Member {
                staging,
                weight: Weight::ONE,
                given_up: 0,
            },
        });
        n += 1;
        assert!(n < 1000, "without bound");
    }
    let mut side = all.pop().unwrap();
    let staged = side.staged.take().unwrap();
    let none = Member {
        staging: StagingRecord::default(),
        ..side.member
    };
    assert!(staged.can_run(&[side.member]) && !staged.can_run(&[none]));
    drop(staged);
    assert!(take().is_some(), "what was given back is to be had again");
}
