//! Ranks as threads, for the engine's own tests.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may stop where it stands")]

pub mod sim;

use gaggle_core::{Group, SystemClock, Transport};
use gaggle_engine::{Engine, EngineConfig};
use gaggle_transport::{control, inproc};
use std::{sync::Arc, time::Duration};

/// Settings of tests: 5 s, as in the trials.
pub fn config() -> EngineConfig {
    EngineConfig::default().with_timeout(Duration::from_secs(5))
}

/// Runs `f` on `n` ranks over the in-process transport; results in rank order.
pub fn local<R: Send>(
    n: u32,
    config: &EngineConfig,
    f: impl Fn(&Engine, Group) -> R + Sync,
) -> Vec<R> {
    let links = inproc::world(n)
        .into_iter()
        .map(|t| Box::new(t) as Box<dyn Transport>);
    let ranks: Vec<_> = links.zip(control::inproc(n)).collect();
    std::thread::scope(|s| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|(link, control)| {
                let (f, config) = (&f, config.clone());
                s.spawn(move || {
                    let clock = Arc::new(SystemClock::new());
                    let engine = Engine::new(vec![link], Box::new(control), clock, config).unwrap();
                    let group = engine.group();
                    f(&engine, group)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

pub const WORLDS: [u32; 6] = [1, 2, 3, 5, 7, 8];

/// 0, 1, n−1, n, n+1 and a prime.
pub fn lengths(n: u32) -> [usize; 6] {
    let n = n as usize;
    [0, 1, n - 1, n, n + 1, 101]
}
