//! What an engine is told when it is made.

use gaggle_collectives::{
    Request,
    select::{Overrides, Tables},
};
use std::{sync::Arc, time::Duration};

/// Settings of an [`Engine`](crate::Engine); equal on every rank where the text says so.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Deadline of operations that name none.
    pub timeout: Duration,
    /// After how long a waiting operation writes one log line that names whom it waits for.
    pub warn_after: Duration,
    /// How long after its deadline an operation waits for the peers to say how far they are, before it names the culprits.
    pub grace: Duration,
    /// Whether a thread of the engine's makes progress while no caller waits. Without one, only [`Engine::progress`](crate::Engine::progress) and waiting callers do.
    pub progress_thread: bool,
    /// On which processor that thread stays; `None`: wherever the system puts it. Linux only.
    pub pin: Option<usize>,
    /// Longest message in bytes; equal on every rank.
    pub slice_bytes: u64,
    /// What the cost model goes by when it chooses a plan; equal on every rank. `None`: usual links, of one host where [`hosts`](EngineConfig::hosts) says that there is only one, otherwise of a network. Their `slice_bytes` is replaced by the one above.
    pub tables: Option<Tables>,
    /// Which algorithms are taken whatever the model says; equal on every rank.
    pub overrides: Overrides,
    /// Children per inner node of a k-nomial tree, plus 1; at least 2; equal on every rank.
    pub radix: u32,
    /// The host of each rank of the job, as any number: what two-level plans go by; equal on every rank. `None`: each on a host of its own.
    pub hosts: Option<Arc<[u32]>>,
    /// The memory node (NUMA) of each rank of the job, as any number that is the same only for ranks of one host and node; equal on every rank. Where all members of a group are on one host, two-level plans go by it. `None`: not known, or one for each host.
    pub nodes: Option<Arc<[u32]>>,
    /// Whether the ranks of each host have each other's memory mapped, all of it, so that operations on it may be fused: see [`Transport::shared`](gaggle_core::Transport::shared); equal on every rank. So may [`tables`](EngineConfig::tables) say.
    pub mapped: bool,
    /// Whether some host has more ranks than processors that they may use, so that what one does costs the others time; equal on every rank. So may [`tables`](EngineConfig::tables) say.
    pub crowded: bool,
    /// Whether this rank gives the processor away while it waits, because ranks outnumber the processors that they may use; each rank's own. `None`: where its host has more ranks than this process may use processors, which is too careful where each is bound to its own.
    pub yields: Option<bool>,
    /// Whether a calling thread that waits for a rank on its own processor may go to another one that it may use: for an instant it is bound there, and then again to what it might use before; each rank's own.
    pub parts: bool,
    /// Whether operations that may be fused are; equal on every rank. Switched off they go by messages and have the same results, bit for bit.
    pub fusion: bool,
    /// Whether the engine keeps a record of every step it runs, for tests that compare it with the plan.
    pub record: bool,
    /// How long leaving may take.
    pub leave_limit: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            timeout: Duration::from_secs(300),
            warn_after: Duration::from_secs(10),
            grace: Duration::from_millis(500),
            progress_thread: true,
            pin: None,
            slice_bytes: Tables::SLICE_BYTES,
            tables: None,
            overrides: Overrides::default(),
            radix: Request::RADIX,
            hosts: None,
            nodes: None,
            mapped: false,
            crowded: false,
            yields: None,
            parts: true,
            fusion: true,
            record: false,
            leave_limit: Duration::from_secs(2),
        }
    }
}

impl EngineConfig {
    /// What the cost model goes by.
    pub(crate) fn model(&self) -> Tables {
        let one_host = |hosts: &Arc<[u32]>| hosts.windows(2).all(|pair| pair[0] == pair[1]);
        let usual = match self.hosts.as_ref().is_some_and(one_host) {
            true if self.mapped => Tables::shared(),
            true => Tables::one_host(),
            false => Tables::network(),
        };
        let tables = self.tables.unwrap_or(usual);
        Tables {
            slice_bytes: self.slice_bytes,
            mapped: tables.mapped || self.mapped,
            crowded: tables.crowded || self.crowded,
            ..tables
        }
    }

    /// The same with another deadline; the log line comes after a third of it, if that is sooner.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self.warn_after = self.warn_after.min(timeout / 3);
        self
    }
}
