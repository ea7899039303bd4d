//! Runs plans on transports: groups, lanes, deadlines; the [`Communicator`](gaggle_core::Communicator) that users' groups stand on.
//!
//! An [`Engine`] is one rank's. It holds the rank's transports (several at once, the fastest first), its control plane and a clock, and runs any number of operations of any number of groups over them.
//!
//! ```
//! use gaggle_core::{Mean, SystemClock};
//! use gaggle_engine::{Engine, EngineConfig};
//! use gaggle_transport::{control, inproc};
//! use std::sync::Arc;
//!
//! let ranks = inproc::world(2).into_iter().zip(control::inproc(2));
//! std::thread::scope(|s| {
//!     for (link, control) in ranks {
//!         s.spawn(|| {
//!             let clock = Arc::new(SystemClock::new());
//!             let engine =
//!                 Engine::new(vec![Box::new(link)], Box::new(control), clock, EngineConfig::default()).unwrap();
//!             let group = engine.group();
//!             let mut x = [group.rank().0 as f32, 1.0];
//!             group.all_reduce(&mut x, Mean).unwrap();
//!             assert_eq!(x, [0.5, 1.0]);
//!         });
//!     }
//! });
//! ```

mod arguments;
mod average;
mod comm;
mod completion;
mod config;
mod copies;
mod discover;
mod drive;
mod feedback;
mod flight;
mod folded_there;
mod fused;
mod kept;
mod local;
mod op;
mod pairs;
mod persistent;
mod places;
mod program;
mod promises;
mod protocol;
mod raw_fork;
mod raw_memory;
mod ready;
mod rebuild;
mod record;
mod repeated;
mod reports;
mod select;
mod starting;
mod state;
mod suspicion;
mod sync;
mod timers;
mod trouble;
mod user;
mod verdict;

pub use config::EngineConfig;
pub use rebuild::Rebuilding;
pub use record::Record;

use crate::{
    comm::EngineComm,
    drive::{Bell, Shared},
    state::State,
    sync::{Arc, Mutex},
};
use gaggle_collectives::Plan;
use gaggle_core::{
    Cause, Clock, Control, Error, Group, GroupInfo, Op, Pending, Rank, Region, Transport, Wake,
    descriptor::stable_hash,
};
use gaggle_trace::Recorder;
use std::{path::PathBuf, thread::JoinHandle, time::Duration};

/// Longest time that leaving takes, whatever the settings say.
const MAX_LEAVE: Duration = Duration::from_secs(24 * 3600);

/// One rank's engine. Dropping it leaves the job politely; groups that are still held report that.
pub struct Engine {
    shared: Arc<Shared>,
    world: Arc<EngineComm>,
    thread: Option<JoinHandle<()>>,
    left: bool,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("rank", &self.shared.control.me())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Makes an engine over this rank's links, the fastest first. Spawns one thread, `gaggle-progress-N`, unless told not to.
    ///
    /// # Errors
    /// A link or the control plane belongs to another rank; some rank is reached by no link; the system gives no pipe or thread, or does not let it be pinned.
    pub fn new(
        links: Vec<Box<dyn Transport>>,
        control: Box<dyn Control>,
        clock: Arc<dyn Clock>,
        config: EngineConfig,
    ) -> Result<Engine, Error> {
        let (me, world) = (control.me(), control.world());
        if let Some(link) = links.iter().find(|l| l.me() != me) {
            let what = format!(
                "the {} link is {}'s, the control plane {me}'s",
                link.link(),
                link.me()
            );
            return Err(Error::invalid("engine", what));
        }
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let (has_thread, pin, parts) = (config.progress_thread, config.pin, config.parts);
        // The ranks of this host, as far as it is known which they are.
        let hosts = config.hosts.as_deref().unwrap_or(&[]);
        let beside = match hosts.get(me.idx()) {
            Some(here) => hosts.iter().filter(|host| *host == here).count(),
            None => world as usize,
        };
        let yields = config.yields.unwrap_or(beside > cpus);
        let bell = Bell::new()?;
        let state = State::new(me, world, config, &links);
        if let Some(rank) = (0..world).map(Rank).find(|r| !state.reaches(*r)) {
            return Err(Error::invalid(
                "engine",
                format!("no link reaches {rank} of {world}"),
            ));
        }
        let changes = Arc::clone(&state.changes);
        let pid = std::process::id();
        // Marked before anybody can ask.
        let _ = raw_fork::is_fork(pid);
        let shared = Arc::new(Shared {
            changes,
            links,
            control,
            clock,
            state: Mutex::new(state),
            bell: Arc::clone(&bell),
            pid,
            has_thread,
            polling: Mutex::new(()),
            asleep: Mutex::new(0),
            manners: Default::default(),
            crowded: yields,
            parts,
        });
        for link in &shared.links {
            link.attach(Arc::clone(&bell) as Arc<dyn Wake>);
        }
        shared.control.attach(bell);
        let info = GroupInfo {
            id: stable_hash(&[b"world", &world.to_le_bytes()]),
            rank: me,
            world_ranks: (0..world).map(Rank).collect(),
            epoch: 0,
            initial_size: world,
            incarnation: 0,
        };
        let thread = if has_thread {
            let shared = Arc::clone(&shared);
            let (tell, told) = std::sync::mpsc::channel();
            let spawned = std::thread::Builder::new()
                .name(format!("gaggle-progress-{}", me.0))
                .spawn(move || {
                    let pinned = pin.map_or(Ok(()), pin_thread);
                    let good = pinned.is_ok();
                    // The maker waits for it.
                    let _ = tell.send(pinned);
                    if good {
                        shared.serve();
                    }
                });
            let spawned =
                spawned.map_err(|e| Error::internal(format!("no progress thread: {e}")))?;
            // A thread that ended without a word has panicked, which is reported there.
            told.recv().unwrap_or(Ok(()))?;
            Some(spawned)
        } else {
            None
        };
        let world = Arc::new(EngineComm::new(Arc::clone(&shared), info));
        Ok(Engine {
            shared,
            world,
            thread,
            left: false,
        })
    }

    /// The group of all ranks.
    pub fn group(&self) -> Group {
        Group::new(Arc::clone(&self.world) as Arc<dyn gaggle_core::Communicator>)
    }

    /// Makes what progress can be made without waiting. Returns how many things happened.
    pub fn progress(&self) -> u64 {
        self.shared.drive().unwrap_or(0)
    }

    /// When `progress` has something to do at the latest, on the engine's clock.
    ///
    /// From inside a user's reduction, this and the other questions to the engine are answered with nothing.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.unless_inside(|state| state.next_timeout())
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> usize {
        self.unless_inside(|state| state.in_flight())
    }

    /// The steps that were run since this was last called, in the order in which they ended; empty unless the configuration asks for a record.
    pub fn take_record(&self) -> Vec<Record> {
        self.unless_inside(|state| std::mem::take(&mut state.record))
    }

    /// Has all operations from now on recorded. The recording is kept once one of them fails for good, or a peer is lost; otherwise it goes when the engine leaves. An earlier recorder is closed.
    pub fn attach_recorder(&self, recorder: Recorder) {
        self.unless_inside(|state| state.flight.attach(recorder));
    }

    /// Where the operations are recorded, if they are.
    pub fn recording(&self) -> Option<PathBuf> {
        self.unless_inside(|state| state.flight.path())
    }

    /// Something has gone wrong that the engine does not know of: the recording is kept, and one log line says where it is.
    pub fn keep_recording(&self, why: &str) {
        self.unless_inside(|state| state.flight.keep(&why));
    }

    /// Nothing, from inside a user's reduction: the engine is locked around that.
    fn unless_inside<T: Default>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        if user::inside() {
            return T::default();
        }
        f(&mut self.shared.state.lock())
    }

    /// Runs a plan of the caller's own making instead of the planner's, under the name of `op`: for experiments with new plans. Every rank must do so with its part. Its numbers are checked, its meaning is not: see `gaggle_collectives::check`.
    pub fn start_plan(&self, plan: Plan, op: &Op, io: Region) -> Box<dyn Pending> {
        self.world.start_plan(plan, op, io.into())
    }

    /// Begins to rebuild a group over its survivors, without waiting: for callers that have other things to do meanwhile. Otherwise as [`Communicator::rebuild`](gaggle_core::Communicator::rebuild).
    ///
    /// # Errors
    /// This process is a fork, or the engine has left.
    pub fn begin_rebuild(&self, group: &Group, limit: Duration) -> Result<Rebuilding, Error> {
        let info = Arc::new(group.communicator().info().clone());
        Rebuilding::begin(&self.shared, &info, limit)
    }

    /// Leaves the job politely: operations in flight end with an error, peers see this rank as left. Repeated calls do nothing.
    pub fn leave(&mut self) {
        if user::inside() {
            // The engine is locked around this very call.
            return tracing::warn!("an engine is not left from inside a user's reduction");
        }
        if std::mem::replace(&mut self.left, true) {
            return;
        }
        if self.shared.is_foreign() {
            // A fork: the thread is not here, and the connections are the parent's.
            if let Some(thread) = self.thread.take() {
                std::mem::forget(thread);
            }
            return;
        }
        let limit = {
            let mut state = self.shared.state.lock();
            let me = self.shared.control.me();
            let error = Cause::PeerLeft {
                op: "operation".into(),
                rank: me,
                world_rank: me,
            }
            .into();
            state.close(&self.shared.links, &*self.shared.control, error);
            let limit = state.config.leave_limit;
            self.shared.let_go(state);
            limit.min(MAX_LEAVE)
        };
        self.shared.bell.close();
        if let Some(thread) = self.thread.take()
            // The last handle may go on that very thread, with memory that it drops.
            && thread.thread().id() != std::thread::current().id()
        {
            // It ends at the next look at the flag; a panic in it was already reported.
            let _ = thread.join();
        }
        for link in &self.shared.links {
            link.leave(limit);
        }
        self.shared.control.leave();
        self.shared.state.lock().flight.close();
    }
}

/// Keeps the calling thread on one processor.
fn pin_thread(cpu: usize) -> Result<(), Error> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_setaffinity};
        if cpu >= CpuSet::MAX_CPU {
            return Err(Error::invalid(
                "pin",
                format!("no processor has number {cpu}"),
            ));
        }
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set)
            .map_err(|e| Error::invalid("pin", format!("processor {cpu}: {e}")))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let what = format!("to processor {cpu}: this system is not asked to");
        Err(Error::invalid("pin", what))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.leave();
    }
}
