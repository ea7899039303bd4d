//! Runs one closure per rank, on either communicator.

use crate::fake;
use gaggle_core::{Clock, Group, SystemClock};
use gaggle_engine::{Engine, EngineConfig};
use gaggle_transport::{control, inproc};
use std::{sync::Arc, thread, time::Duration};

/// The worlds that everything is tested in.
pub const WORLDS: [u32; 6] = [1, 2, 3, 5, 7, 8];

/// Long enough for a loaded machine; only tests of absent ranks reach theirs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Who carries the operations.
#[derive(Clone, Copy, Debug)]
pub enum Backend {
    /// A table and f64 arithmetic.
    Fake,
    /// The engine over the in-process transport.
    Engine,
    /// The engine over rings in memory, with heaps that all have mapped.
    #[cfg(target_os = "linux")]
    Mapped,
}

pub const BACKENDS: &[Backend] = &[
    Backend::Fake,
    Backend::Engine,
    #[cfg(target_os = "linux")]
    Backend::Mapped,
];

/// Every rank's answer, in rank order.
pub fn run<R: Send>(backend: Backend, n: u32, f: impl Fn(Group) -> R + Sync) -> Vec<R> {
    run_within(backend, n, TIMEOUT, f)
}

pub fn run_within<R: Send>(
    backend: Backend,
    n: u32,
    timeout: Duration,
    f: impl Fn(Group) -> R + Sync,
) -> Vec<R> {
    match backend {
        Backend::Fake => threads(fake::world(n, timeout), |group| f(group.clone())),
        Backend::Engine => threads(engines(n, timeout), |engine| f(engine.group())),
        #[cfg(target_os = "linux")]
        Backend::Mapped => threads(mapped(n, timeout), |engine| f(engine.group())),
    }
}

#[cfg(target_os = "linux")]
fn mapped(n: u32, timeout: Duration) -> Vec<Engine> {
    use gaggle_core::Rank;
    use gaggle_transport::{heap, shm};
    let mut links: Vec<Vec<_>> = (0..n).map(|_| vec![]).collect();
    for a in 0..n {
        for b in 0..a {
            let (x, y) = shm::pair(1 << 17).unwrap();
            links[a as usize].push((Rank(b), x));
            links[b as usize].push((Rank(a), y));
        }
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut config = EngineConfig::default().with_timeout(timeout);
    config.mapped = true;
    config.hosts = Some(vec![0; n as usize].into());
    let heaps = heap::heaps(n, 16 << 20).unwrap();
    let seats = (0..).zip(links).zip(heaps).zip(control::inproc(n));
    seats
        .map(|(((me, links), heap), control)| {
            let link = shm::ShmTransport::new(Rank(me), links).unwrap();
            let link = link.with_shared(Arc::new(heap));
            let control = Box::new(control);
            Engine::new(
                vec![Box::new(link)],
                control,
                Arc::clone(&clock),
                config.clone(),
            )
            .unwrap()
        })
        .collect()
}

fn engines(n: u32, timeout: Duration) -> Vec<Engine> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    inproc::world(n)
        .into_iter()
        .zip(control::inproc(n))
        .map(|(link, control)| {
            Engine::new(
                vec![Box::new(link)],
                Box::new(control),
                Arc::clone(&clock),
                EngineConfig::default().with_timeout(timeout),
            )
            .unwrap()
        })
        .collect()
}

/// A rank's member lives until its closure has ended.
fn threads<M: Send, R: Send>(members: Vec<M>, f: impl Fn(&M) -> R + Sync) -> Vec<R> {
    thread::scope(|s| {
        let f = &f;
        let all: Vec<_> = members
            .into_iter()
            .map(|m| s.spawn(move || f(&m)))
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// A small generator for test data: the same numbers on every machine.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Between −1 and 1, with 20 random bits, so that sums of a few are exact in f64.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 44) as f64 / f64::from(1 << 19) - 1.0
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, (self.bits() % (i as u64 + 1)) as usize);
        }
    }
}
