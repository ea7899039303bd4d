//! Ranks in one process that have each other's heaps mapped at addresses of their own, as processes have them.

use super::Seat;
use gaggle_core::{
    Announced, Armed, Block, LinkStats, OpId, Rank, SharedMemory, SharedWords, Sink, Transfer,
    Transport, TransportError, Wake, WindowMut, XferId,
};
use gaggle_engine::EngineConfig;
use gaggle_transport::{
    control,
    heap::{self, MappedHeaps},
    inproc, shm,
};
use std::{
    ptr::NonNull,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// Room of each heap, in bytes.
const ROOM: u64 = 64 << 20;

/// What the ranks agree on.
pub fn agree(config: &mut EngineConfig, n: u32) {
    config.mapped = true;
    let one_host = || vec![0; n as usize].into();
    config.hosts.get_or_insert_with(one_host);
}

/// Links in the process, beside heaps that `wrap` may put something around.
pub fn seats<M: SharedMemory + 'static>(
    n: u32,
    wrap: impl Fn(Rank, MappedHeaps) -> M,
) -> Vec<Seat> {
    beside(heap::heaps(n, ROOM).unwrap(), wrap)
}

/// As [`seats`], of ranks that reach each other's ordinary memory, too.
pub fn seats_of_one_process<M: SharedMemory + 'static>(
    n: u32,
    wrap: impl Fn(Rank, MappedHeaps) -> M,
) -> Vec<Seat> {
    beside(heap::heaps_of_one_process(n, ROOM).unwrap(), wrap)
}

fn beside<M: SharedMemory + 'static>(
    heaps: Vec<MappedHeaps>,
    wrap: impl Fn(Rank, MappedHeaps) -> M,
) -> Vec<Seat> {
    let n = heaps.len() as u32;
    let links = inproc::world(n).into_iter().zip(control::inproc(n));
    links
        .zip(heaps)
        .enumerate()
        .map(|(me, ((link, control), heap))| -> Seat {
            let heap = Arc::new(wrap(Rank(me as u32), heap));
            (Box::new(Beside { link, heap }), Box::new(control))
        })
        .collect()
}

/// Links through rings in memory, which lend what lies in heaps that `wrap` may put something around.
pub fn rings<M: SharedMemory + 'static>(
    n: u32,
    wrap: impl Fn(Rank, MappedHeaps) -> M,
) -> Vec<Seat> {
    let mut links: Vec<Vec<_>> = (0..n).map(|_| vec![]).collect();
    for a in 0..n {
        for b in 0..a {
            let (x, y) = shm::pair(1 << 18).unwrap();
            links[a as usize].push((Rank(b), x));
            links[b as usize].push((Rank(a), y));
        }
    }
    let heaps = heap::heaps(n, ROOM).unwrap();
    let control = control::inproc(n);
    (0..)
        .map(Rank)
        .zip(links)
        .zip(heaps)
        .zip(control)
        .map(|(((me, links), heap), control)| -> Seat {
            let link = shm::ShmTransport::new(me, links).unwrap();
            let link = link.with_shared(Arc::new(wrap(me, heap)));
            (Box::new(link), Box::new(control))
        })
        .collect()
}

/// A link, with memory beside it.
struct Beside<L, M> {
    link: L,
    heap: Arc<M>,
}

impl<L: Transport, M: SharedMemory + 'static> Transport for Beside<L, M> {
    fn me(&self) -> Rank {
        self.link.me()
    }
    fn peers(&self) -> &[Rank] {
        self.link.peers()
    }
    fn link(&self) -> &'static str {
        self.link.link()
    }
    fn wants_loans(&self) -> bool {
        self.link.wants_loans()
    }
    fn reads_ordinary(&self) -> bool {
        self.link.reads_ordinary()
    }
    fn post(&self, t: Transfer<'_>) -> Result<XferId, TransportError> {
        self.link.post(t)
    }
    fn cancel(&self, id: XferId) {
        self.link.cancel(id);
    }
    fn taken(&self, id: XferId) {
        self.link.taken(id);
    }
    fn forget(&self, op: OpId) {
        self.link.forget(op);
    }
    fn progress(&self, sink: &mut dyn Sink, budget: usize) -> u64 {
        self.link.progress(sink, budget)
    }
    fn arm(&self) -> Armed<'_> {
        self.link.arm()
    }
    fn woke(&self) {
        self.link.woke();
    }
    fn attach(&self, wake: Arc<dyn Wake>) {
        self.link.attach(wake);
    }
    fn nudge(&self, peer: Rank) {
        self.link.nudge(peer);
    }
    fn leave(&self, limit: Duration) {
        self.link.leave(limit);
    }
    fn stats(&self) -> LinkStats {
        self.link.stats()
    }
    fn shared(&self) -> Option<Arc<dyn SharedMemory>> {
        Some(Arc::clone(&self.heap) as Arc<dyn SharedMemory>)
    }
}

/// Holds a rank up in the middle of a step, until it is opened; counts what passes.
#[derive(Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    copied: AtomicU64,
    /// Whether it holds whoever is at memory that is lent already, instead of whoever goes there.
    inside: bool,
    /// Whether somebody has been about to leave such memory.
    leaving: AtomicBool,
    /// What is opened when this rank takes its memory back.
    opens: Option<Arc<Gate>>,
}

#[derive(Default)]
struct State {
    shut: bool,
    held: bool,
}

impl Gate {
    /// One that holds whoever is at memory that is lent.
    pub fn inside() -> Gate {
        Gate {
            inside: true,
            ..Gate::default()
        }
    }

    /// One that holds nobody, and opens another when its rank takes its memory back.
    pub fn opening(other: &Arc<Gate>) -> Gate {
        Gate {
            opens: Some(Arc::clone(other)),
            ..Gate::default()
        }
    }

    /// Whether somebody has been about to leave memory that is lent.
    pub fn has_left(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    pub fn shut(&self) {
        self.state.lock().unwrap().shut = true;
    }

    pub fn open(&self) {
        self.state.lock().unwrap().shut = false;
        self.changed.notify_all();
    }

    /// Until somebody is held up.
    pub fn wait_held(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |s| !s.held).unwrap());
    }

    /// Bytes that were copied from others' memory, as opposed to those that were read where they lie.
    pub fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        if state.shut {
            state.held = true;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |s| s.shut).unwrap());
        }
    }
}

/// A rank that stops at a gate before it reads others' memory.
pub struct Gated(pub MappedHeaps, pub Option<Arc<Gate>>);

impl SharedMemory for Gated {
    fn ranks(&self) -> &[Rank] {
        self.0.ranks()
    }
    fn place(&self, at: NonNull<u8>, bytes: usize) -> Option<u64> {
        self.0.place(at, bytes)
    }
    fn is_alone(&self, at: NonNull<u8>, bytes: usize) -> bool {
        self.0.is_alone(at, bytes)
    }
    fn read(&self, rank: Rank, place: u64, out: &mut [u8]) -> bool {
        if let Some(gate) = &self.1 {
            gate.pass();
            gate.copied.fetch_add(out.len() as u64, Ordering::Relaxed);
        }
        self.0.read(rank, place, out)
    }
    fn write(&self, rank: Rank, place: u64, bytes: &[u8]) -> bool {
        self.0.write(rank, place, bytes)
    }
    fn window(&self, rank: Rank, place: u64, bytes: usize) -> Option<WindowMut<'_>> {
        if let Some(gate) = &self.1 {
            gate.pass();
        }
        self.0.window(rank, place, bytes)
    }
    fn sever(&self, at: NonNull<u8>, bytes: usize) -> Result<(), String> {
        self.0.sever(at, bytes)
    }
    fn given_up(&self, rank: Rank) -> u64 {
        self.0.given_up(rank)
    }
    fn give_up(&self, op: u64) {
        self.0.give_up(op);
    }
    fn has_given_up(&self, rank: Rank, op: u64, since: u64) -> bool {
        self.0.has_given_up(rank, op, since)
    }
    fn load(&self, rank: Rank, place: u64) -> Option<u64> {
        self.0.load(rank, place)
    }
    fn store(&self, place: u64, value: u64) -> bool {
        self.0.store(place, value)
    }
    fn block(&self, bytes: usize) -> Option<Box<dyn Block>> {
        self.0.block(bytes)
    }
    fn reserve(&self, bytes: usize) -> Option<u64> {
        self.0.reserve(bytes)
    }
    fn words(&self, rank: Rank, place: u64, n: usize) -> Option<SharedWords> {
        self.0.words(rank, place, n)
    }
    fn is_one_process(&self) -> bool {
        self.0.is_one_process()
    }
    unsafe fn lend(&self, at: NonNull<u8>, bytes: usize) -> Option<u64> {
        // SAFETY: the caller's promise.
        unsafe { self.0.lend(at, bytes) }
    }
    fn recall(&self, number: u64) {
        if let Some(other) = self.1.as_ref().and_then(|gate| gate.opens.as_ref()) {
            other.open();
        }
        self.0.recall(number);
    }
    fn visit(&self, rank: Rank, number: u64, at: u64, bytes: usize) -> Option<WindowMut<'_>> {
        let gate = self.1.as_ref();
        if let Some(gate) = gate.filter(|gate| !gate.inside) {
            gate.pass();
        }
        let window = self.0.visit(rank, number, at, bytes);
        if let Some(gate) = gate.filter(|gate| gate.inside && window.is_some()) {
            gate.pass();
        }
        window
    }
    fn leave(&self, rank: Rank, number: u64) {
        if let Some(gate) = &self.1 {
            gate.leaving.store(true, Ordering::Release);
        }
        self.0.leave(rank, number);
    }
    fn announce(&self, name: u64, place: Option<u64>) {
        self.0.announce(name, place);
    }
    fn announced(&self, rank: Rank, name: u64) -> Announced {
        self.0.announced(rank, name)
    }
}
