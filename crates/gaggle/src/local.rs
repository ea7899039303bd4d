//! Ranks as threads of this process, in one call.

use crate::{
    EngineConfig,
    recording::{self, Recording},
};
use gaggle_core::{
    Armed, Control, ControlSink, Error, Group, Rank, SharedMemory, SystemClock, Wake,
};
use gaggle_engine::Engine;
use gaggle_transport::{control, inproc};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

/// Runs `f` on `n` ranks that are threads of this process, and returns what they return, in rank order.
///
/// The ranks are joined by the in-process transport and the real engine, on Linux with heaps that they have mapped of each other (up to 16 ranks), so a program does here what it does as `n` processes, bit for bit.
/// When a rank's `f` returns, the rank leaves politely.
///
/// Each rank's operations are recorded as by [`join`](crate::join), in a file of its own; many ranks keep fewer operations each, 64 MiB together.
///
/// Threads: one `gaggle-rank-N` and one `gaggle-progress-N` per rank; all are gone on return.
///
/// ```
/// use gaggle::Sum;
///
/// let sums = gaggle::local(4, |group| {
///     let mut x = [group.rank().0];
///     let mut x = [x[0] as i32];
///     group.all_reduce(&mut x, Sum).map(|_| x[0])
/// })?;
/// for sum in sums {
///     assert_eq!(sum?, 0 + 1 + 2 + 3);
/// }
/// # Ok::<(), gaggle::Error>(())
/// ```
///
/// # Errors
/// `n` is 0, or the system gives no thread or pipe; no rank has run then.
///
/// # Panics
/// Where a rank panics: its peers' operations end with [`Cause::PeerLost`](crate::Cause::PeerLost), which names the rank and quotes the panic, and once all have ended the first panic goes on in the caller.
pub fn local<R: Send>(n: usize, f: impl Fn(Group) -> R + Sync) -> Result<Vec<R>, Error> {
    local_with(n, EngineConfig::default(), f)
}

/// As [`local`], with settings of the engine: another deadline, another algorithm's threshold.
///
/// # Errors
/// As [`local`].
///
/// # Panics
/// As [`local`].
pub fn local_with<R: Send>(
    n: usize,
    config: EngineConfig,
    f: impl Fn(Group) -> R + Sync,
) -> Result<Vec<R>, Error> {
    let members = world(n, &config)?;
    if let Some(recording) = Recording::begin(n) {
        let (name, run) = (recording::own_name(), recording::draw());
        for member in &members {
            let about = recording::about(&name, n as u32, member.rank, run);
            recording.attach(&member.engine, about);
        }
    }
    let panics = Mutex::new(Vec::new());
    let run = |member: Member| member.run(&f, &panics);
    let ended = thread::scope(|scope| -> Result<Vec<Ended<R>>, Error> {
        let mut threads = Vec::with_capacity(n);
        let mut failed = None;
        for member in members {
            let name = format!("gaggle-rank-{}", member.rank.0);
            match thread::Builder::new()
                .name(name)
                .spawn_scoped(scope, || run(member))
            {
                Ok(t) => threads.push(t),
                // The engine was dropped with the closure: the others see that it has left.
                Err(e) => failed = Some(Error::internal(format!("no thread for a rank: {e}"))),
            }
        }
        let ended = threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect();
        failed.map_or(Ok(ended), Err)
    })?;
    let first = {
        let mut panics = panics.into_inner().unwrap_or_else(PoisonError::into_inner);
        (!panics.is_empty()).then(|| panics.swap_remove(0))
    };
    if let Some(panic) = first {
        drop(ended);
        resume_unwind(panic);
    }
    Ok(ended.into_iter().filter_map(|e| e.result).collect())
}

/// One rank before its thread starts.
struct Member {
    rank: Rank,
    engine: Engine,
    control: Arc<dyn Control>,
}

/// One rank after its closure has ended. Once a rank has panicked, all keep their engines until the last has ended: a departure must not hide the loss that it follows from.
struct Ended<R> {
    result: Option<R>,
    _engine: Option<Engine>,
}

impl Member {
    fn run<R>(self, f: impl Fn(Group) -> R, panics: &Mutex<Vec<Box<dyn Any + Send>>>) -> Ended<R> {
        let group = self.engine.group();
        match catch_unwind(AssertUnwindSafe(|| f(group))) {
            Ok(result) => {
                let calm = panics
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .is_empty();
                Ended {
                    result: Some(result),
                    // Dropping it leaves.
                    _engine: (!calm).then_some(self.engine),
                }
            }
            Err(panic) => {
                let why = format!("its thread panicked: {}", message(panic.as_ref()));
                panics
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(panic);
                self.engine.keep_recording(&why);
                self.control.declare_lost(self.rank, &why);
                Ended {
                    result: None,
                    _engine: Some(self.engine),
                }
            }
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// The engines of a world in this process.
fn world(n: usize, config: &EngineConfig) -> Result<Vec<Member>, Error> {
    let size = u32::try_from(n)
        .ok()
        .filter(|size| *size > 0)
        .ok_or_else(|| Error::invalid("local", format!("a world of {n} ranks")))?;
    let mut config = config.clone();
    if config.hosts.is_none() {
        config.hosts = Some(vec![0; n].into());
    }
    config.crowded |= is_crowded(n);
    let mut links = inproc::world(size);
    if let Some(heaps) = heaps(size, &config) {
        config.mapped = true;
        let with = links.into_iter().zip(heaps);
        links = with.map(|(link, heap)| link.with_shared(heap)).collect();
    }
    links
        .into_iter()
        .zip(control::inproc(size))
        .zip(0..)
        .map(|((link, control), rank)| {
            let control: Arc<dyn Control> = Arc::new(control);
            let engine = Engine::new(
                vec![Box::new(link)],
                Box::new(Shared(Arc::clone(&control))),
                Arc::new(SystemClock::new()),
                config.clone(),
            )?;
            Ok(Member {
                rank: Rank(rank),
                engine,
                control,
            })
        })
        .collect()
}

/// Whether so many ranks of this host outnumber the processors that this process may use.
fn is_crowded(ranks: usize) -> bool {
    thread::available_parallelism().is_ok_and(|n| ranks > n.get())
}

/// Ranks that have heaps: each maps every other's.
#[cfg(target_os = "linux")]
const MOST_HEAPS: u32 = 16;

/// Heaps that the ranks have mapped of each other, as processes of a host have them; `None` where there is no use for them, or the system has none: then operations go by messages, which are read where they lie.
#[cfg(target_os = "linux")]
fn heaps(n: u32, config: &EngineConfig) -> Option<Vec<Arc<dyn SharedMemory>>> {
    let one_host = |hosts: &Arc<[u32]>| hosts.windows(2).all(|pair| pair[0] == pair[1]);
    let wanted = config.hosts.as_ref().is_none_or(one_host);
    if !wanted || !(2..=MOST_HEAPS).contains(&n) {
        return None;
    }
    let heaps = gaggle_transport::heap::heaps_of_threads(n)
        .inspect_err(|e| tracing::debug!("no registered memory: {e}"))
        .ok()?;
    let erased = heaps.into_iter().map(|heap| Arc::new(heap) as _);
    Some(erased.collect())
}

/// This system has no such memory.
#[cfg(not(target_os = "linux"))]
fn heaps(_n: u32, _config: &EngineConfig) -> Option<Vec<Arc<dyn SharedMemory>>> {
    None
}

/// A world of one.
pub(crate) fn alone(config: EngineConfig) -> Result<Engine, Error> {
    let mut members = world(1, &config)?;
    members
        .pop()
        .map(|m| m.engine)
        .ok_or_else(|| Error::internal("a world of one without a rank"))
}

/// A control plane that the engine and the thread's guard both hold.
struct Shared(Arc<dyn Control>);

impl Control for Shared {
    fn me(&self) -> Rank {
        self.0.me()
    }
    fn world(&self) -> u32 {
        self.0.world()
    }
    fn broadcast(&self, payload: &[u8]) {
        self.0.broadcast(payload);
    }
    fn declare_lost(&self, rank: Rank, why: &str) {
        self.0.declare_lost(rank, why);
    }
    fn poll(&self, sink: &mut dyn ControlSink) -> u64 {
        self.0.poll(sink)
    }
    fn arm(&self) -> Armed<'_> {
        self.0.arm()
    }
    fn attach(&self, wake: Arc<dyn Wake>) {
        self.0.attach(wake);
    }
    fn leave(&self) {
        self.0.leave();
    }
}
