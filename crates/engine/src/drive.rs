//! Who makes progress, and how a thread sleeps meanwhile.
//!
//! Progress is made by whoever is there: the engine's own thread, a thread that waits for an operation, a caller of [`Engine::progress`](crate::Engine::progress).
//! One at a time holds the state; a second one leaves a note and goes on.

use crate::{
    local::parting::Parting,
    raw_fork,
    reports::{ControlView, LinkSink},
    state::State,
    sync::{
        Arc, AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering,
    },
};
use gaggle_core::{Armed, Cause, Clock, Control, Error, Rank, Transport, Wake};
use smallvec::SmallVec;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::fence,
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
/// Looks in a row that find nothing before a waiting caller lets others go first.
const LOOKS: u32 = 8;
/// How often it does that, before it sleeps: about as long as a neighbour works on a slice, which is sooner than a thread is woken that sleeps.
const YIELDS: u32 = 100;
/// A yield that takes longer has given the processor to somebody who does not give it back: whoever sleeps instead is let in again as soon as something comes.
pub(crate) const GREEDY: Duration = Duration::from_micros(200);
/// Waits for a rank on the same processor before this one steps aside, twice as many each time, so often.
const BESIDE: u32 = 16;
const MOST_ASIDES: u32 = 8;
/// Waits for a rank on the same processor between two looks whether others have fewer, where ranks outnumber them: twice as many after each move, so often.
const EVEN: u32 = 64;
const MOST_MOVES: u32 = 10;
/// Most waits without a yield before it is tried again.
const MOST_WAITS: u32 = 4096;
/// A caller that spins looks at the control plane every so many times: nothing there is as urgent as what it waits for, and a look is a system call.
const WORDS_EVERY: u32 = 16;
/// How often a caller lets others go first, where ranks outnumber the processors, before it sleeps: a turn of theirs costs a fraction of being woken.
const TURNS: u32 = 100;
/// Longest sleep of a waiting caller.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
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
    /// Whose caller sleeps in `poll`; others sleep until the bell rings.
    pub(crate) polling: Mutex<()>,
    /// How many sleep in `poll`: the links are armed for all of them.
    pub(crate) asleep: Mutex<usize>,
    /// Whether waiting callers yield.
    pub(crate) manners: Manners,
    /// Whether ranks outnumber the processors, so that spinning steals from those waited for.
    pub(crate) crowded: bool,
    /// Whether waiting callers may go to other processors.
    pub(crate) parts: bool,
}

/// Whether yielding the processor gives it to whoever is waited for, or to somebody who computes: then callers that wait do without for so many waits, twice as many each time.
#[derive(Default)]
pub(crate) struct Manners {
    /// Waits to come without a yield.
    left: AtomicU32,
    /// How many there were last time.
    last: AtomicU32,
    /// Waits in a row for a rank on the same processor, since this one has last stepped aside.
    beside: AtomicU32,
    /// How often it has, in that row.
    asides: AtomicU32,
    /// Waits until this rank looks again whether ranks are spread evenly.
    even: AtomicU32,
    /// How often it has gone elsewhere for that.
    moves: AtomicU32,
    /// How a rank goes to another processor.
    pub(crate) parting: Parting,
}

// Relaxed: hints; what several callers make of them is as good.
impl Manners {
    /// Whether this wait may yield.
    pub(crate) fn may_yield(&self) -> bool {
        match self.left.load(Ordering::Relaxed) {
            0 => true,
            n => {
                self.left.store(n - 1, Ordering::Relaxed);
                false
            }
        }
    }

    /// A wait for ranks elsewhere.
    pub(crate) fn is_apart(&self) {
        if self.beside.load(Ordering::Relaxed) > 0 {
            self.beside.store(0, Ordering::Relaxed);
            self.asides.store(0, Ordering::Relaxed);
        }
    }

    /// A wait for a rank on the same processor: whether it is time to step aside, that the system may part them. Less and less often, if it does not.
    pub(crate) fn steps_aside(&self) -> bool {
        let asides = self.asides.load(Ordering::Relaxed);
        let beside = self.beside.load(Ordering::Relaxed) + 1;
        let now = beside >= BESIDE << asides.min(MOST_ASIDES);
        self.beside
            .store(if now { 1 } else { beside }, Ordering::Relaxed);
        if now {
            self.asides
                .store(asides.saturating_add(1), Ordering::Relaxed);
        }
        now
    }

    /// A wait for a rank on the same processor, where ranks outnumber the processors: whether it is time to look where they all are.
    pub(crate) fn evens_out(&self) -> bool {
        match self.even.load(Ordering::Relaxed) {
            0 => true,
            n => {
                self.even.store(n - 1, Ordering::Relaxed);
                false
            }
        }
    }

    /// It has looked, and perhaps gone elsewhere: less and less often, if the system takes it back.
    pub(crate) fn has_evened_out(&self, moved: bool) {
        let moves = self.moves.load(Ordering::Relaxed) + u32::from(moved);
        self.moves.store(moves, Ordering::Relaxed);
        self.even
            .store(EVEN << moves.min(MOST_MOVES), Ordering::Relaxed);
    }

    /// Yields are worth a try again.
    pub(crate) fn forgive(&self) {
        self.left.store(0, Ordering::Relaxed);
    }

    /// How long a yield took. Whether the same wait may yield again.
    pub(crate) fn took(&self, long: Duration) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        let greedy = long >= GREEDY;
        if greedy {
            let next = (2 * last).clamp(16, MOST_WAITS);
            self.last.store(next, Ordering::Relaxed);
            self.left.store(next, Ordering::Relaxed);
        } else if last > 0 {
            self.last.store(0, Ordering::Relaxed);
        }
        !greedy
    }
}

/// Where waiting threads sleep.
pub(crate) struct Bell {
    /// Counts rings; a sleeper gives the count it has seen.
    rings: Mutex<u64>,
    rung: Condvar,
    sleepers: AtomicUsize,
    /// Until when the engine's thread means to sleep, in nanoseconds of the engine's clock; 0 while it is awake.
    thread_until: AtomicU64,
    /// A waiting caller sleeps in `poll`, where only its pipe reaches it.
    caller_polls: AtomicBool,
    /// Waiting callers that make progress: awake, or in `poll`.
    helpers: AtomicUsize,
    /// How many there have been.
    calls: AtomicU64,
    /// What the engine's thread does: [`AWAKE`], [`POLLING`], [`NAPPING`] or [`SLEEPING`].
    nap: AtomicU32,
    /// Whether operations were under way when the state was last let go.
    busy: AtomicBool,
    /// Something came while another thread held the state.
    note: AtomicBool,
    closing: AtomicBool,
    /// Wakes the engine's thread.
    #[cfg(unix)]
    thread: WakePipe,
    /// Wakes the caller that sleeps in `poll`.
    #[cfg(unix)]
    caller: WakePipe,
}

/// The engine's thread makes progress.
const AWAKE: u32 = 0;
/// It sleeps in `poll`, where everything wakes it.
const POLLING: u32 = 1;
/// It leaves all to callers, and sleeps on its pipe alone, for [`NAP`] at most.
const NAPPING: u32 = 2;
/// The same until somebody pokes it, because a caller is in `poll` in its place.
const SLEEPING: u32 = 3;

#[cfg(unix)]
struct WakePipe {
    read: std::os::fd::OwnedFd,
    write: std::os::fd::OwnedFd,
    /// Whether a byte is in it, so that it never fills.
    set: AtomicBool,
}

#[cfg(unix)]
impl WakePipe {
    fn new() -> Result<WakePipe, Error> {
        use rustix::pipe::{PipeFlags, pipe_with};
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|e| Error::internal(format!("no pipe for who makes progress: {e}")))?;
        Ok(WakePipe {
            read,
            write,
            set: AtomicBool::new(false),
        })
    }

    fn poke(&self) {
        if !self.set.swap(true, Ordering::SeqCst) {
            // A full pipe wakes just as well.
            let _ = rustix::io::write(&self.write, &[1]);
        }
    }

    fn drain(&self) {
        // Emptied before the flag is cleared: a poke in between finds the flag set and writes nothing, and the look that follows sees what it was about. The other way round its byte could be taken while the flag stays set over an empty pipe, and no poke would ever wake anybody again.
        // Read whatever the flag says: a poke may have set it and not yet written.
        let _ = rustix::io::read(&self.read, &mut [0u8; 8]);
        self.set.store(false, Ordering::SeqCst);
    }
}

/// Who sleeps in `poll`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleeper {
    Thread,
    Caller,
}

impl Bell {
    pub(crate) fn new() -> Result<Arc<Bell>, Error> {
        Ok(Arc::new(Bell {
            rings: Mutex::new(0),
            rung: Condvar::new(),
            sleepers: AtomicUsize::new(0),
            thread_until: AtomicU64::new(0),
            caller_polls: AtomicBool::new(false),
            helpers: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
            nap: AtomicU32::new(AWAKE),
            busy: AtomicBool::new(false),
            note: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            #[cfg(unix)]
            thread: WakePipe::new()?,
            #[cfg(unix)]
            caller: WakePipe::new()?,
        }))
    }

    /// An operation has ended, or something came: whoever sleeps looks again.
    pub(crate) fn ring(&self) {
        let mut rings = self.rings.lock();
        *rings += 1;
        self.rung.notify_all();
        drop(rings);
        // With the fence in `sleep_of_caller`: either the poller's flag is seen here, or it sees its operation done.
        fence(Ordering::SeqCst);
        if self.caller_polls.load(Ordering::SeqCst) {
            self.poke_caller();
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

    /// A waiting caller makes progress from now on.
    fn help(&self) -> Helping<'_> {
        self.helpers.fetch_add(1, Ordering::SeqCst);
        // Relaxed: a hint.
        self.calls.fetch_add(1, Ordering::Relaxed);
        Helping(self)
    }

    fn is_helped(&self) -> bool {
        self.helpers.load(Ordering::SeqCst) > 0
    }

    /// A caller goes, or goes to sleep: opens the thread's eyes again where it sleeps for good, or, if there is something to do, where it naps.
    fn end_nap(&self, busy: bool) {
        // SeqCst with `nap`: either the napping thread is seen here, or it sees that nobody helps any more.
        if self.is_helped() {
            return;
        }
        match self.nap.load(Ordering::SeqCst) {
            SLEEPING => self.poke_thread(),
            NAPPING if busy => self.poke_thread(),
            _ => {}
        }
    }

    /// A caller takes the thread's place in `poll`: whatever comes need not wake both.
    fn relieve_thread(&self) {
        if self.nap.load(Ordering::SeqCst) == POLLING {
            self.poke_thread();
        }
    }

    fn poke_thread(&self) {
        #[cfg(unix)]
        self.thread.poke();
    }

    fn poke_caller(&self) {
        #[cfg(unix)]
        self.caller.poke();
    }

    /// Sleeps until somebody pokes the thread, at most `limit`.
    fn wait_for_poke(&self, limit: Duration) {
        #[cfg(unix)]
        {
            use rustix::event::{PollFd, PollFlags, poll};
            let timeout = timespec(limit);
            // An interrupted or failed poll is an early wake-up.
            let _ = poll(
                &mut [PollFd::new(&self.thread.read, PollFlags::IN)],
                Some(&timeout),
            );
            self.thread.drain();
        }
        #[cfg(not(unix))]
        {
            let seen = self.rings();
            self.sleep(seen, limit.min(NAP));
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
        } else if self.caller_polls.load(Ordering::SeqCst) {
            self.poke_caller();
        } else if !self.is_helped() {
            self.poke_thread();
        }
        // A caller that helps comes upon it, or sees the note when it goes.
    }
}

#[cfg(unix)]
fn timespec(limit: Duration) -> rustix::event::Timespec {
    rustix::event::Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    }
}

/// A waiting caller that makes progress.
struct Helping<'a>(&'a Bell);

impl Drop for Helping<'_> {
    fn drop(&mut self) {
        self.0.helpers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    /// Whether this process is a fork of the one that joined: its locks may be held by threads that are not here, so nothing is to be touched.
    pub(crate) fn is_foreign(&self) -> bool {
        raw_fork::is_fork(self.pid)
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
        self.bell.nap.store(POLLING, Ordering::SeqCst);
        self.sleep(limit, Sleeper::Thread);
        self.bell.nap.store(AWAKE, Ordering::SeqCst);
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

    #[cfg(unix)]
    fn arm_links(&self) -> SmallVec<[Armed<'_>; 8]> {
        let mut asleep = self.asleep.lock();
        *asleep += 1;
        let links = self.links.iter().map(|l| l.arm());
        links.chain([self.control.arm()]).collect()
    }

    /// Nobody sleeps on them any more, if this was the last: as long as somebody does, peers must ring.
    #[cfg(unix)]
    fn disarm_links(&self) {
        let mut asleep = self.asleep.lock();
        *asleep -= 1;
        if *asleep == 0 {
            for link in &self.links {
                link.woke();
            }
        }
    }

    /// Sleeps until a transport, the control plane or a `wake` has something to do, at most `limit`.
    fn sleep(&self, limit: Duration, who: Sleeper) {
        if self.arm_boards() {
            self.sleep_armed(limit, who);
        }
        self.disarm_boards();
    }

    fn sleep_armed(&self, limit: Duration, who: Sleeper) {
        let mut limit = limit;
        #[cfg(unix)]
        {
            let pipe = match who {
                Sleeper::Thread => &self.bell.thread,
                Sleeper::Caller => &self.bell.caller,
            };
            use rustix::event::{PollFd, PollFlags, poll};
            let armed = self.arm_links();
            let mut fds = SmallVec::<[PollFd<'_>; 8]>::new();
            let mut more = false;
            for a in &armed {
                match a {
                    Armed::MoreToDo => more = true,
                    Armed::Fd(fd) => fds.push(PollFd::from_borrowed_fd(*fd, PollFlags::IN)),
                    Armed::Wakes => {}
                    Armed::PollAfter(d) => limit = limit.min(*d),
                    Armed::_Never(..) => {}
                }
            }
            fds.push(PollFd::new(&pipe.read, PollFlags::IN));
            if !more && !self.bell.note.load(Ordering::SeqCst) {
                // An interrupted or failed poll is an early wake-up.
                let _ = poll(&mut fds, Some(&timespec(limit)));
                pipe.drain();
            }
            self.disarm_links();
        }
        #[cfg(not(unix))]
        {
            let _ = who;
            let seen = self.bell.rings();
            self.bell.sleep(seen, limit.min(Duration::from_millis(1)));
        }
    }

    /// The engine's thread sleeps while callers do its work: for a moment, or, while one of them is in `poll` in its place, until that one goes.
    fn nap(&self) {
        let bell = &*self.bell;
        bell.nap.store(SLEEPING, Ordering::SeqCst);
        // SeqCst with `end_nap`, behind which no caller is in `poll`.
        let limit = if bell.is_helped() && bell.caller_polls.load(Ordering::SeqCst) {
            LONGEST
        } else {
            bell.nap.store(NAPPING, Ordering::SeqCst);
            NAP
        };
        bell.wait_for_poke(limit);
        bell.nap.store(AWAKE, Ordering::SeqCst);
    }

    /// The body of the engine's thread.
    pub(crate) fn serve(&self) {
        let bell = &*self.bell;
        // What the lock keeps for a thread that waits is made at its first wait: now, not in the middle of the work.
        bell.sleep(bell.rings(), Duration::ZERO);
        let mut calls = 0;
        while !bell.closing.load(Ordering::SeqCst) {
            // Relaxed: a hint. Who calls again and again leaves nothing behind that cannot wait for the end of a nap.
            let seen = bell.calls.load(Ordering::Relaxed);
            let calling = seen != std::mem::replace(&mut calls, seen);
            if bell.is_helped() || (calling && !bell.busy.load(Ordering::Relaxed)) {
                self.nap();
                continue;
            }
            if self.drive().is_none() {
                // Somebody else is at it; they come back to the note.
                std::thread::yield_now();
            }
            if !bell.closing.load(Ordering::SeqCst) {
                self.sleep_of_thread();
            }
        }
    }

    /// Helps until `done`, and sleeps where there is nothing to help with.
    pub(crate) fn help_until(&self, done: &dyn Fn() -> bool) {
        let helping = self.bell.help();
        let mut ladder = Ladder::of(self);
        let (mut looks, mut slept) = (0u32, false);
        while !done() {
            let seen = self.bell.rings();
            looks = looks.wrapping_add(1);
            let words = looks.is_multiple_of(WORDS_EVERY);
            let moved = self.drive_with(words).is_some_and(|n| n > 0);
            if done() {
                break;
            }
            if moved {
                ladder.step = 0;
            } else if !ladder.up() {
                slept = true;
                self.sleep_of_caller(done, seen);
                // What woke it may be a word.
                looks = u32::MAX;
            }
        }
        drop(helping);
        self.bell.pass_on();
        // A word that came while this caller did not look, and that woke nobody because it was there.
        if matches!(self.control.arm(), Armed::MoreToDo) {
            self.bell.wake();
        }
        if slept {
            // The place at the poll is free: another waiter may take it.
            self.bell.ring();
        }
        self.bell.end_nap(self.bell.busy.load(Ordering::Relaxed));
    }

    /// A caller sleeps: in `poll`, in the thread's place, or where another caller is there until the bell rings.
    fn sleep_of_caller(&self, done: &dyn Fn() -> bool, seen: u64) {
        if let Some(_place) = self.polling.try_lock() {
            self.bell.caller_polls.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            self.bell.relieve_thread();
            if !done() {
                self.sleep(self.sleep_limit(LONGEST_WAIT), Sleeper::Caller);
            }
            self.bell.caller_polls.store(false, Ordering::SeqCst);
            return;
        }
        if self.arm_boards() {
            // A timer of this one may be sooner than whoever is in `poll` knows of.
            self.bell.sleep(seen, self.sleep_limit(LONGEST_WAIT));
        }
        self.disarm_boards();
    }
}

/// What a caller does after a look that has found nothing: spins, lets others go first, sleeps.
struct Ladder<'a> {
    shared: &'a Shared,
    step: u32,
    /// Whether this wait yields; found out when it comes to that.
    yields: Option<bool>,
}

impl<'a> Ladder<'a> {
    fn of(shared: &'a Shared) -> Ladder<'a> {
        Ladder {
            shared,
            step: 0,
            yields: shared.crowded.then_some(true),
        }
    }

    /// One step up; `false` at the end, where it is time to sleep.
    fn up(&mut self) -> bool {
        let Ladder { shared, step, .. } = *self;
        let (looks, most) = match shared.crowded {
            true => (0, TURNS),
            false => (LOOKS, LOOKS + YIELDS),
        };
        if step >= most {
            return false;
        }
        self.step += 1;
        if step < looks {
            std::hint::spin_loop();
            return true;
        }
        let manners = &shared.manners;
        if !*self.yields.get_or_insert_with(|| manners.may_yield()) {
            return false;
        }
        if shared.crowded {
            std::thread::yield_now();
            return true;
        }
        let before = shared.clock.now();
        std::thread::yield_now();
        let took = shared.clock.now().saturating_sub(before);
        if !manners.took(took) {
            self.yields = Some(false);
        }
        true
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until it is time to look where all are.
    fn waits(manners: &Manners) -> u32 {
        let mut n = 0;
        while !manners.evens_out() {
            n += 1;
        }
        n
    }

    #[test]
    fn who_is_taken_back_goes_elsewhere_less_and_less_often() {
        let manners = Manners::default();
        assert_eq!(waits(&manners), 0);
        manners.has_evened_out(false);
        assert_eq!(waits(&manners), EVEN);
        manners.has_evened_out(false);
        assert_eq!(waits(&manners), EVEN);
        for moves in 1..=MOST_MOVES + 3 {
            manners.has_evened_out(true);
            assert_eq!(waits(&manners), EVEN << moves.min(MOST_MOVES));
        }
        manners.has_evened_out(false);
        assert_eq!(waits(&manners), EVEN << MOST_MOVES);
    }

    #[test]
    fn who_waits_beside_others_steps_aside_less_and_less_often() {
        let manners = Manners::default();
        let waits = || {
            let mut n = 1;
            while !manners.steps_aside() {
                n += 1;
            }
            n
        };
        assert_eq!(waits(), BESIDE);
        assert_eq!(waits(), 2 * BESIDE - 1);
        assert_eq!(waits(), 4 * BESIDE - 1);
        manners.is_apart();
        assert_eq!(waits(), BESIDE);
    }
}
