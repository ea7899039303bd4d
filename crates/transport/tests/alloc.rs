//! Once a link has warmed up, moving messages allocates nothing.

use gaggle_core::{
    Class, Dir, Down, Inlet, Loan, MsgKey, OpId, Outlet, Rank, Sink, Transfer, Transport,
    TransportError, Verdict, XferId,
};
use gaggle_transport::{
    inproc,
    tcp::{TcpConfig, TcpTransport},
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    net::{Ipv4Addr, TcpListener, TcpStream},
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this thread's count: the harness has one of its own, which is still at it when the test begins.
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    // A thread that ends has none any more.
    if COUNTED.try_with(Cell::get).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Relaxed);
    }
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise about `layout` is the system's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above, hence from the system, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as for `dealloc`, and the caller's promise about `size` is the system's.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

static MEMORY: [u8; 600_000] = [3; 600_000];

#[derive(Default)]
struct Count {
    over: u64,
    failed: u64,
    received: u64,
}

impl Sink for Count {
    fn outgoing(&mut self, _id: XferId, _at: u64, out: &mut dyn Outlet) {
        let room = out.room();
        room.fill(3);
        let n = room.len();
        out.commit(n);
    }
    fn opened(&mut self, _id: XferId, _head: &[u8]) -> Verdict {
        Verdict::Take
    }
    fn incoming(&mut self, _id: XferId, _at: u64, part: &mut dyn Inlet) {
        let n = part.peek().len();
        self.received += n as u64;
        part.consume(n);
    }
    fn unexpected(&mut self, _from: Rank, _key: MsgKey, _head: &[u8]) -> Verdict {
        Verdict::Take
    }
    fn done(&mut self, _id: XferId, result: Result<(), TransportError>) {
        self.over += 1;
        self.failed += u64::from(result.is_err());
    }
    fn down(&mut self, peer: Rank, how: Down) {
        panic!("{peer} is down: {how:?}");
    }
}

/// One step of a job: early messages, posted ones, lent ones and staged ones, both ways, and an operation that is forgotten.
fn step(world: &[Box<dyn Transport>], sinks: &mut [Count], step: u64) -> u64 {
    let key = |op: u64, tag: u32| MsgKey {
        op: OpId {
            group: 5,
            lane: 0,
            class: Class::Collective,
            seq: step * 2 + op,
        },
        tag,
    };
    let post = |me: usize, dir: Dir, op: u64, tag: u32, bytes: usize| {
        let lend = dir == Dir::Send && tag.is_multiple_of(2) && world[me].wants_loans();
        // SAFETY: the memory is a static that nobody writes.
        let loan =
            lend.then(|| unsafe { Loan::new(NonNull::from(&MEMORY[..bytes]).cast(), bytes) });
        let posted = world[me].post(Transfer {
            dir,
            peer: Rank(1 - me as u32),
            key: key(op, tag),
            bytes: bytes as u64,
            unit: 4,
            priority: (tag % 3) as i32,
            head: if dir == Dir::Send { &[1; 64] } else { &[] },
            loan,
        });
        assert!(posted.is_ok());
    };
    let lengths = [0, 4, 400, 40_000, 600_000, 4000];
    let before: u64 = sinks.iter().map(|s| s.over).sum();
    for me in 0..2 {
        for (tag, len) in lengths.into_iter().enumerate() {
            // The last two of each kind come early.
            if tag < 4 {
                post(1 - me, Dir::Recv, 0, tag as u32, len);
            }
            post(me, Dir::Send, 0, tag as u32, len);
        }
        post(me, Dir::Send, 1, 9, 8000);
    }
    let drive = |sinks: &mut [Count], until: u64| {
        for _ in 0..10_000_000_u64 {
            for (t, s) in world.iter().zip(sinks.iter_mut()) {
                t.progress(s, 1 << 18);
            }
            if sinks.iter().map(|s| s.over).sum::<u64>() >= before + until {
                return;
            }
        }
        panic!("no end");
    };
    drive(sinks, 2 * 7);
    for (me, t) in world.iter().enumerate() {
        for tag in [4, 5] {
            post(me, Dir::Recv, 0, tag, lengths[tag as usize]);
        }
        t.forget(key(1, 0).op);
    }
    drive(sinks, 2 * (7 + 6));
    for t in world {
        t.forget(key(1, 0).op);
    }
    2 * (7 + 6)
}

fn check(world: Vec<Box<dyn Transport>>) {
    let mut sinks = [Count::default(), Count::default()];
    for n in 0..50 {
        step(&world, &mut sinks, n);
    }
    let (before, over) = (ALLOCATIONS.load(Relaxed), sinks[0].over + sinks[1].over);
    assert!(before > 0, "they are counted");
    let mut want = 0;
    for n in 50..250 {
        want += step(&world, &mut sinks, n);
    }
    let allocations = ALLOCATIONS.load(Relaxed) - before;
    assert_eq!(sinks[0].over + sinks[1].over - over, want);
    assert_eq!(sinks[0].failed + sinks[1].failed, 0);
    assert_eq!(allocations, 0, "{} moved {want} messages", world[0].link());
}

/// One test, so that no other one allocates in between.
#[test]
fn nothing_is_allocated_once_warm() {
    COUNTED.set(true);
    let inproc = inproc::world(2).into_iter();
    check(inproc.map(|t| Box::new(t) as Box<dyn Transport>).collect());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let here = listener.accept().unwrap().0;
    let tcp = [(0, here), (1, there)].into_iter().map(|(me, stream)| {
        let links = vec![(Rank(1 - me), stream)];
        let t = TcpTransport::new(Rank(me), links, TcpConfig::default()).unwrap();
        Box::new(t) as Box<dyn Transport>
    });
    check(tcp.collect());
}
