//! Who makes progress, and how a thread sleeps meanwhile.
//!
//! Progress is made by whoever is there: the engine's own thread, a thread that waits for an operation, a caller of [`Engine::progress`](crate::Engine::progress).
//! One at a time holds the state; a second one leaves a note and goes on.

use crate::{
    reports::{ControlView, LinkSink},
    state::State,
    sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering},
};
use crossbeam::utils::Backoff;
use gaggle_core::{Armed, Cause, Clock, Control, Error, Rank, Transport, Wake};
use smallvec::SmallVec;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

/// Bytes that one call of a transport's `progress` moves before the others get a turn.
const BUDGET: usize = 1 << 20;
/// Turns of one `drive` before the lock is given to others.
const MAX_TURNS: usize = 64;
/// Times that one `drive` takes the lock again for what came meanwhile.
const MAX_DRIVES: usize = 16;
/// How long the engine's thread keeps its eyes closed while a waiting caller does its work: the caller sees what comes sooner, and a thread that wakes for the same message only takes the processor away from it.
const NAP: Duration = Duration::from_micros(500);
/// A caller that spins looks at the control plane every so many times: nothing there is as urgent as what it waits for, and a look is a system call.
const WORDS_EVERY: u32 = 8;
/// How often a caller lets others go first, where ranks outnumber the processors, before it sleeps: a turn of theirs costs a fraction of being woken.
const TURNS: u32 = 100;
/// The same where each rank has a processor, after a few moments of spinning: about as long as a neighbour works on a slice, which is sooner than a thread is woken that sleeps.
const LINGER: u32 = 100;
/// Longest sleep where no timer is set.
const LONGEST: Duration = Duration::from_secs(3600);

pub(crate) struct Shared {
    pub(crate) links: Vec<Box<dyn Transport>>,
    pub(crate) control: Box<dyn Control>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) state: Mutex<State>,
    /// As the state counts them.
    pub(crate) changes: Arc<AtomicU64>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) pid: u32,
    pub(crate) has_thread: bool,
    /// Who sleeps in `poll` where there is no thread to do so.
    pub(crate) polling: Mutex<()>,
    /// Whether ranks outnumber the processors, so that spinning steals from those waited for.
    pub(crate) crowded: bool,
}

/// Where waiting threads sleep.
pub(crate) struct Bell {
    /// Counts rings; a sleeper gives the count it has seen.
    rings: Mutex<u64>,
    rung: Condvar,
    sleepers: AtomicUsize,
    /// Until when the engine's thread means to sleep, in nanoseconds of the engine's clock; 0 while it is awake.
    thread_until: AtomicU64,
    /// A waiting caller sleeps in `poll`, where only the pipe reaches it.
    helper_polls: AtomicBool,
    /// Waiting callers that are awake and make progress.
    helpers: AtomicUsize,
    /// The engine's thread leaves all to them, and sleeps where only the pipe reaches it.
    napping: AtomicBool,
    /// Whether operations were under way when the state was last let go.
    busy: AtomicBool,
    /// Something came while another thread held the state.
    note: AtomicBool,
    closing: AtomicBool,
    #[cfg(unix)]
    pipe: Option<WakePipe>,
}

#[cfg(unix)]
struct WakePipe {
    read: std::os::fd::OwnedFd,
    write: std::os::fd::OwnedFd,
    /// Whether a byte is in it, so that it never fills.
    set: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> Result<Arc<Bell>, Error> {
        #[cfg(unix)]
        let pipe = {
            use rustix::pipe::{PipeFlags, pipe_with};
            let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
                .map_err(|e| Error::internal(format!("no pipe for the progress thread: {e}")))?;
            Some(WakePipe {
                read,
                write,
                set: AtomicBool::new(false),
            })
        };
        Ok(Arc::new(Bell {
            rings: Mutex::new(0),
            rung: Condvar::new(),
            sleepers: AtomicUsize::new(0),
            thread_until: AtomicU64::new(0),
            helper_polls: AtomicBool::new(false),
            helpers: AtomicUsize::new(0),
            napping: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            note: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            #[cfg(unix)]
            pipe,
        }))
    }

    /// An operation has ended, or something came: whoever sleeps looks again.
    pub(crate) fn ring(&self) {
        let mut rings = self.rings.lock();
        *rings += 1;
        self.rung.notify_all();
        drop(rings);
        // SeqCst with `help_until`: either the poller's flag is seen here, or it sees its operation done.
        if self.helper_polls.load(Ordering::SeqCst) {
            self.poke_thread();
        }
    }

    /// A waiting thread goes. What came for it in the meantime is somebody else's now.
    fn pass_on(&self) {
        // SeqCst with `wake`, which leaves the note before it counts the sleepers.
        if self.note.load(Ordering::SeqCst) {
            self.ring();
            self.poke_thread();
        }
    }

    pub(crate) fn rings(&self) -> u64 {
        *self.rings.lock()
    }

    /// Sleeps until it rings again, at most `limit`.
    pub(crate) fn sleep(&self, seen: u64, limit: Duration) {
        let mut rings = self.rings.lock();
        // SeqCst with `wake`: either the waker sees this sleeper and rings under the lock, or this thread sees the note.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if *rings == seen && !self.note.load(Ordering::SeqCst) {
            self.rung.wait_for(&mut rings, limit);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// A waiting caller is awake from now on.
    fn help(&self) -> Helping<'_> {
        self.helpers.fetch_add(1, Ordering::SeqCst);
        Helping(self)
    }

    fn is_helped(&self) -> bool {
        self.helpers.load(Ordering::SeqCst) > 0
    }

    /// Opens the thread's eyes again, where a caller goes and leaves it something to do.
    fn end_nap(&self) {
        // SeqCst with `nap`: either the napping thread is seen here, or it sees that nobody helps any more.
        if !self.is_helped() && self.napping.load(Ordering::SeqCst) {
            self.poke_thread();
        }
    }

    fn poke_thread(&self) {
        #[cfg(unix)]
        if let Some(pipe) = &self.pipe
            && !pipe.set.swap(true, Ordering::SeqCst)
        {
            // A full pipe wakes just as well.
            let _ = rustix::io::write(&pipe.write, &[1]);
        }
    }

    /// Sleeps until somebody pokes, at most `limit`.
    fn wait_for_poke(&self, limit: Duration) {
        #[cfg(unix)]
        if let Some(pipe) = &self.pipe {
            use rustix::event::{PollFd, PollFlags, poll};
            let timeout = rustix::event::Timespec {
                tv_sec: limit.as_secs() as i64,
                tv_nsec: i64::from(limit.subsec_nanos()),
            };
            // An interrupted or failed poll is an early wake-up.
            let _ = poll(
                &mut [PollFd::new(&pipe.read, PollFlags::IN)],
                Some(&timeout),
            );
            return self.drain();
        }
        let seen = self.rings();
        self.sleep(seen, limit);
    }

    #[cfg(unix)]
    fn drain(&self) {
        if let Some(pipe) = &self.pipe {
            // Emptied before the flag is cleared: a poke in between finds the flag set and writes nothing, and the look that follows sees what it was about. The other way round its byte could be taken while the flag stays set over an empty pipe, and no poke would ever wake the thread again.
            // Read whatever the flag says: a poke may have set it and not yet written.
            let _ = rustix::io::read(&pipe.read, &mut [0u8; 8]);
            pipe.set.store(false, Ordering::SeqCst);
        }
    }

    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.ring();
        self.poke_thread();
    }
}

impl Wake for Bell {
    fn wake(&self) {
        // SeqCst: the note must be visible before the sleepers are counted, see `sleep`.
        self.note.store(true, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.ring();
        } else if !self.is_helped() {
            self.poke_thread();
        }
        // A caller that helps comes upon it, or sees the note when it goes.
    }
}

/// A waiting caller that is awake.
struct Helping<'a>(&'a Bell);

impl Drop for Helping<'_> {
    fn drop(&mut self) {
        self.0.helpers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    /// Whether this process is a fork of the one that joined: its locks may be held by threads that are not here, so nothing is to be touched.
    pub(crate) fn is_foreign(&self) -> bool {
        std::process::id() != self.pid
    }

    /// # Errors
    /// [`Cause::Forked`].
    pub(crate) fn refuse_fork(&self, op: &str) -> Result<(), Error> {
        match self.is_foreign() {
            true => Err(Cause::Forked { op: op.into() }.into()),
            false => Ok(()),
        }
    }

    /// Makes what progress can be made. Returns how many things happened; `None`: another thread is at it and will take care.
    pub(crate) fn drive(&self) -> Option<u64> {
        self.drive_with(true)
    }

    /// As [`Shared::drive`]; `words`: whether the control plane is looked at.
    fn drive_with(&self, words: bool) -> Option<u64> {
        let mut total = 0;
        for _ in 0..MAX_DRIVES {
            let Some(mut state) = self.state.try_lock() else {
                // Whoever holds the state looks at the note after letting go.
                self.bell.note.store(true, Ordering::SeqCst);
                return None;
            };
            self.bell.note.store(false, Ordering::SeqCst);
            total += self.guarded(&mut state, |state| self.turns(state, words));
            self.let_go(state);
            if !self.bell.note.load(Ordering::SeqCst) {
                return Some(total);
            }
        }
        // A caller is not kept for ever by others' traffic.
        self.bell.pass_on();
        Some(total)
    }

    /// Lets go of the state, and does what must not be done under its lock: wakes who waits, and drops what nobody wants.
    pub(crate) fn let_go(&self, mut state: MutexGuard<'_, State>) {
        let completed = std::mem::take(&mut state.completed);
        let after = std::mem::take(&mut state.after);
        let sooner = self.has_thread
            && state
                .next_timeout()
                .is_some_and(|t| nanos(t) < self.bell.thread_until.load(Ordering::SeqCst));
        let more = !state.ready.is_empty();
        let nudges: SmallVec<[(u8, Rank); 4]> = std::mem::take(&mut state.locals.nudges)
            .into_iter()
            .filter_map(|rank| Some(((*state.route.get(rank.idx())?)?, rank)))
            .collect();
        // Relaxed: whoever has just let go reads it, and others' operations are others' to look after.
        self.bell
            .busy
            .store(!state.by_id.is_empty(), Ordering::Relaxed);
        drop(state);
        for (link, rank) in nudges {
            self.links[link as usize].nudge(rank);
        }
        if more {
            // Its turn is over, its work is not: somebody comes back to it.
            self.bell.wake();
        } else if sooner {
            self.bell.poke_thread();
        }
        if completed {
            self.bell.ring();
        }
        for after in after {
            // Wakers and the destructors of users' memory: a panic of theirs is neither the engine's nor that of whoever happens to drive it.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| after.run())) {
                let what = panic_text(&*panic);
                tracing::error!(%what, "a waker, or memory that was dropped, panicked");
            }
        }
    }

    /// Runs a piece of the engine; a panic of ours ends its operations and hands their memory back.
    pub(crate) fn guarded(&self, state: &mut State, f: impl FnOnce(&mut State) -> u64) -> u64 {
        match catch_unwind(AssertUnwindSafe(|| f(state))) {
            Ok(n) => n,
            Err(panic) => {
                let what = panic_text(&*panic);
                tracing::error!(%what, "the engine panicked; its operations end");
                let error = Error::internal(format!("engine panicked: {what}"));
                state.close(&self.links, &*self.control, error);
                1
            }
        }
    }

    fn turns(&self, state: &mut State, words: bool) -> u64 {
        let mut total = 0;
        for _ in 0..MAX_TURNS {
            state.set_now(self.clock.now());
            let mut n = self.settle(state);
            n += state.poll_locals();
            n += self.settle(state);
            for (i, link) in self.links.iter().enumerate() {
                n += link.progress(
                    &mut LinkSink {
                        state,
                        link: i as u8,
                    },
                    BUDGET,
                );
                n += self.settle(state);
            }
            if words {
                n += self.control.poll(&mut ControlView(state));
            }
            n += state.tick();
            n += self.settle(state);
            total += n;
            if n == 0 {
                return total;
            }
        }
        // More to do: the note brings somebody back.
        self.bell.note.store(true, Ordering::SeqCst);
        total
    }

    fn settle(&self, state: &mut State) -> u64 {
        state.settle(&self.links, &*self.control)
    }

    /// Until when a sleep may last.
    fn sleep_limit(&self, longest: Duration) -> Duration {
        self.limit(&mut self.state.lock(), longest)
    }

    fn limit(&self, state: &mut State, longest: Duration) -> Duration {
        let next = state.next_timeout();
        next.map_or(longest, |t| t.saturating_sub(self.clock.now()).min(longest))
    }

    /// The engine's thread sleeps; whoever sets a sooner timer pokes it.
    fn sleep_of_thread(&self) {
        let limit = {
            let mut state = self.state.lock();
            let limit = self.limit(&mut state, LONGEST);
            // Under the lock that timers are set under: none is set between the look and this.
            let until = nanos(self.clock.now().saturating_add(limit));
            self.bell.thread_until.store(until, Ordering::SeqCst);
            limit
        };
        self.sleep(limit);
        self.bell.thread_until.store(0, Ordering::SeqCst);
    }

    /// This thread is about to sleep: peers that write to boards are to wake this rank. Whether there is nothing to do yet.
    fn arm_boards(&self) -> bool {
        let mut state = self.state.lock();
        let moved = self.guarded(&mut state, |state| {
            let moved = u64::from(state.arm_boards());
            moved + self.settle(state)
        });
        if moved > 0 {
            self.let_go(state);
        }
        // Else nobody is to be told of anything, least of all the thread that is about to sleep of its own timers.
        moved == 0
    }

    fn disarm_boards(&self) {
        self.state.lock().disarm_boards();
    }

    /// Sleeps until a transport, the control plane or a `wake` has something to do, at most `limit`.
    fn sleep(&self, limit: Duration) {
        if self.arm_boards() {
            self.sleep_armed(limit);
        }
        self.disarm_boards();
    }

    fn sleep_armed(&self, limit: Duration) {
        let mut limit = limit;
        #[cfg(unix)]
        {
            use rustix::event::{PollFd, PollFlags, poll};
            let armed: SmallVec<[Armed<'_>; 8]> = self
                .links
                .iter()
                .map(|l| l.arm())
                .chain([self.control.arm()])
                .collect();
            let mut fds = SmallVec::<[PollFd<'_>; 8]>::new();
            for a in &armed {
                match a {
                    Armed::MoreToDo => return,
                    Armed::Fd(fd) => fds.push(PollFd::from_borrowed_fd(*fd, PollFlags::IN)),
                    Armed::Wakes => {}
                    Armed::PollAfter(d) => limit = limit.min(*d),
                    Armed::_Never(..) => {}
                }
            }
            if let Some(pipe) = &self.bell.pipe {
                fds.push(PollFd::new(&pipe.read, PollFlags::IN));
            }
            if self.bell.note.load(Ordering::SeqCst) {
                return;
            }
            let timeout = rustix::event::Timespec {
                tv_sec: limit.as_secs() as i64,
                tv_nsec: i64::from(limit.subsec_nanos()),
            };
            // An interrupted or failed poll is an early wake-up.
            let _ = poll(&mut fds, Some(&timeout));
            self.bell.drain();
            for link in &self.links {
                link.woke();
            }
        }
        #[cfg(not(unix))]
        {
            let seen = self.bell.rings();
            self.bell.sleep(seen, limit.min(Duration::from_millis(1)));
        }
    }

    /// The engine's thread sleeps while callers do its work: for a moment, or until one of them goes and leaves it something to do.
    fn nap(&self) {
        self.bell.napping.store(true, Ordering::SeqCst);
        // SeqCst with `end_nap`.
        if self.bell.is_helped() {
            self.bell.wait_for_poke(NAP);
        }
        self.bell.napping.store(false, Ordering::SeqCst);
    }

    /// The body of the engine's thread.
    pub(crate) fn serve(&self) {
        // What the lock keeps for a thread that waits is made at its first wait: now, not in the middle of the work.
        self.bell.sleep(self.bell.rings(), Duration::ZERO);
        while !self.bell.closing.load(Ordering::SeqCst) {
            if self.bell.is_helped() {
                self.nap();
                continue;
            }
            if self.drive().is_none() {
                // Somebody else is at it; they come back to the note.
                std::thread::yield_now();
            }
            if !self.bell.closing.load(Ordering::SeqCst) {
                self.sleep_of_thread();
            }
        }
    }

    /// Helps until `done`, and sleeps where there is nothing to help with.
    pub(crate) fn help_until(&self, done: &dyn Fn() -> bool) {
        let backoff = Backoff::new();
        let mut helping = self.bell.help();
        let mut looks = 0u32;
        let mut turns = 0u32;
        while !done() {
            let seen = self.bell.rings();
            looks = looks.wrapping_add(1);
            let words = looks.is_multiple_of(WORDS_EVERY);
            let moved = self.drive_with(words).is_some_and(|n| n > 0);
            if done() {
                break;
            }
            if moved {
                backoff.reset();
                turns = 0;
            } else if !backoff.is_completed() && !self.crowded {
                backoff.snooze();
            } else if turns < if self.crowded { TURNS } else { LINGER } {
                turns += 1;
                std::thread::yield_now();
            } else {
                drop(helping);
                if !self.has_thread
                    && let Some(_turn) = self.polling.try_lock()
                {
                    self.bell.helper_polls.store(true, Ordering::SeqCst);
                    if !done() {
                        self.sleep(self.sleep_limit(LONGEST));
                    }
                    self.bell.helper_polls.store(false, Ordering::SeqCst);
                } else {
                    self.bell.end_nap();
                    // The thread sleeps until the next timer that it knew of; this one may be sooner.
                    if self.arm_boards() {
                        self.bell
                            .sleep(seen, self.sleep_limit(Duration::from_secs(1)));
                    }
                    self.disarm_boards();
                }
                helping = self.bell.help();
                // What woke it may be a word.
                looks = u32::MAX;
            }
        }
        drop(helping);
        self.bell.pass_on();
        if !self.has_thread {
            // The place at the poll is free: another waiter may take it.
            self.bell.ring();
        } else if self.bell.busy.load(Ordering::Relaxed) {
            self.bell.end_nap();
        }
    }
}

fn nanos(t: Duration) -> u64 {
    u64::try_from(t.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}
