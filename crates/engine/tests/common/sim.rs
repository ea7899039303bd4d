//! Real engines over the simulated network, driven by one thread in virtual time.

use gaggle_core::{Finished, Pending, Rank};
use gaggle_engine::{Engine, EngineConfig};
use gaggle_transport::sim::{SimConfig, SimNet};
use std::{collections::BTreeSet, time::Duration};

/// A job in virtual time.
pub struct Job {
    pub net: SimNet,
    pub engines: Vec<Engine>,
    /// Ranks that are not pumped any more: stopped or crashed.
    pub still: BTreeSet<u32>,
}

/// 5 s of virtual time, without threads.
pub fn config() -> EngineConfig {
    let mut config = EngineConfig::default().with_timeout(Duration::from_secs(5));
    config.progress_thread = false;
    config
}

impl Job {
    pub fn new(world: u32, seed: u64, config: &EngineConfig) -> Job {
        Job::with(world, seed, |_| config.clone())
    }

    /// Ranks with settings of their own.
    pub fn with(world: u32, seed: u64, config: impl Fn(u32) -> EngineConfig) -> Job {
        let net = SimNet::new(world, SimConfig::seeded(seed));
        let engine = |r| {
            Engine::new(
                vec![net.transport(r)],
                net.control(r),
                net.clock(),
                config(r),
            )
            .unwrap()
        };
        let engines = (0..world).map(engine).collect();
        Job {
            net,
            engines,
            still: BTreeSet::new(),
        }
    }

    pub fn now(&self) -> Duration {
        self.net.clock().now()
    }

    fn live(&self) -> impl Iterator<Item = &Engine> {
        let live = |(r, _): &(usize, &Engine)| !self.still.contains(&(*r as u32));
        self.engines.iter().enumerate().filter(live).map(|(_, e)| e)
    }

    /// Everything that can happen at this moment.
    pub fn pump(&self) {
        for _ in 0..100_000 {
            if self.live().map(Engine::progress).sum::<u64>() == 0 {
                return;
            }
        }
        panic!("livelock: the engines never come to rest");
    }

    /// Lets time jump to the next thing that happens, or to `until`. `false`: nothing will ever happen.
    pub fn advance(&self, until: Option<Duration>) -> bool {
        let timeouts = self.live().filter_map(Engine::next_timeout);
        match timeouts.chain(self.net.next_event()).chain(until).min() {
            Some(t) => self.net.advance_to(t.max(self.now())),
            None => return false,
        }
        true
    }

    /// Runs until `over`; panics where that never comes.
    pub fn run_until(&self, mut over: impl FnMut() -> bool) {
        for _ in 0..1_000_000 {
            self.pump();
            if over() {
                return;
            }
            assert!(self.advance(None), "a hang: nothing left to happen");
        }
        panic!("a hang: no end after a million events");
    }

    /// Waits for every live rank's operation; `None` for the others.
    pub fn collect(&self, pending: Vec<(u32, Box<dyn Pending>)>) -> Vec<(Rank, Finished)> {
        let live = |r: &u32| !self.still.contains(r);
        self.run_until(|| {
            pending
                .iter()
                .filter(|(r, _)| live(r))
                .all(|(_, p)| p.is_done())
        });
        let pending = pending.into_iter().filter(|(r, _)| live(r));
        pending.map(|(r, p)| (Rank(r), p.wait())).collect()
    }
}
