//! Blocking calls on the caller's thread: as long as all members are at it, an operation on boards is carried out here, and the engine hears nothing of it.
//!
//! It takes no lock but its lane's, reads no clock unless it waits or times a copy (`writing`), and allocates nothing where the contribution is small and of few ranks.
//! What is not over after a moment is handed to the engine in the state that it has reached.

use super::{
    Decision, Local, Made, Small, Step,
    board::{Lines, Seen},
    parting::{Parting, even_out},
};
use crate::{
    arguments::Shape,
    comm::EngineComm,
    completion::Completion,
    drive::{GREEDY, Shared, panic_text},
    op::OpState,
    raw_fork,
    raw_memory::OpMemory,
    select::alike,
    state::State,
    sync::{Arc, Ordering},
    user,
};
use crossbeam::atomic::AtomicCell;
use gaggle_core::{Done, Error, Op, Rank};
use smallvec::SmallVec;
use std::{
    hint::spin_loop,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

/// How long a call looks at the others' boards before the engine is told. Longer than it takes to wake a thread: else two ranks of which one has slept once sleep in turn for good, each while the other wakes. And about as long as a program beside them has a processor before it is the ranks' again: who sleeps meanwhile comes back to a processor that the other rank has just left.
const SPELL: Duration = Duration::from_millis(1);
/// Looks that most waits are over in, one right after the other.
const FIRST_SPINS: u32 = 64;
/// Looks before others are let go first, and between two at the clock.
const SPINS: u32 = 256;
/// The same where ranks outnumber the processors.
const CROWDED_FIRST_SPINS: u32 = 12;
const CROWDED_SPINS: u32 = 64;
/// How often others are let go first there, before the engine is told, and for how long.
const YIELDS: u32 = 200;
const CROWDED_SPELL: Duration = Duration::from_millis(5);
/// How long a rank is out of the way that shares a processor with one that it waits for.
const ASIDE: Duration = Duration::from_micros(1);
/// Calls that are remembered per group.
const MOST_KNOWN: usize = 32;

/// The calls that a group has seen last, the latest first, while no thread is at one of them.
#[derive(Default)]
pub(crate) struct Known(AtomicCell<Option<Box<Calls>>>);

/// Boxed, so that it changes hands as one word.
#[derive(Default)]
struct Calls {
    entries: Vec<Entry>,
}

/// A call, and what was decided about it.
struct Entry {
    op: Op,
    shape: Shape,
    decision: Arc<Decision>,
    /// What the engine had heard of when it was last asked whether something stands in the way.
    calm: u64,
    /// By which link each member is woken.
    links: SmallVec<[(Rank, u8); 8]>,
}

/// What has become of a call.
pub(crate) enum Here {
    /// Nothing: it is the engine's.
    Not,
    Done(Done),
    /// It has its number, and goes on with the engine.
    Begun(Box<Begun>),
}

/// An operation that has begun, for the engine.
pub(crate) struct Begun {
    decision: Arc<Decision>,
    seq: u64,
    at: At,
}

enum At {
    Small {
        memory: OpMemory,
        posted: bool,
    },
    Fused {
        op: Box<OpState>,
        local: Box<Local>,
        panic: Option<String>,
    },
}

impl Entry {
    /// Whether a call on memory of this shape is decided as this one was.
    #[inline]
    fn is_for(&self, op: &Op) -> bool {
        alike(&self.op, op)
    }

    /// Whether nothing stands in the way.
    #[inline]
    fn is_calm(&mut self, shared: &Shared) -> bool {
        // Acquire: with `State::alarm`.
        let heard = shared.changes.load(Ordering::Acquire);
        if heard == self.calm {
            return true;
        }
        let state = shared.state.lock();
        let calm = state.is_calm(&self.decision.group, self.op.lane.0);
        if calm {
            self.calm = heard;
        }
        calm
    }

    fn run_small(&self, shared: &Shared, small: &Small, op: &Op, slot: &mut Slot) -> Here {
        let d = &self.decision;
        let Some(memory) = slot else {
            return Here::Not;
        };
        let mut lines = d.stream.lines();
        if !lines.is_idle() {
            return Here::Not;
        }
        let Some(seq) = d.clock.take_here() else {
            return Here::Not;
        };
        lines.begin(seq);
        let weight = d.weight(op);
        let begun = |slot: &mut Slot, posted| match slot.take() {
            Some(memory) => Here::Begun(Box::new(Begun {
                decision: Arc::clone(d),
                seq,
                at: At::Small { memory, posted },
            })),
            None => Here::Not,
        };
        if !lines.may_post(seq) {
            return begun(slot, false);
        }
        small.post(&mut lines, (seq, d.hash), memory, weight);
        let (me, world) = (d.group.rank.idx(), d.group.world_ranks.len());
        let mut tries = Tries::of(shared);
        let missing =
            |lines: &mut Lines<'_>, member| lines.seen(member, seq, d.hash) == Seen::NotYet;
        for member in (0..world).filter(|m| *m != me) {
            loop {
                match lines.seen(member, seq, d.hash) {
                    Seen::There => break,
                    Seen::NotYet
                        if tries.again(|ask| match ask {
                            Ask::Beside(cpu) => lines.is_beside(cpu, missing),
                            Ask::Second(cpu) => lines.is_beside(cpu, |_, other| other < me),
                            Ask::EvenOut(cpu) => {
                                let others = lines.others_but_last(cpu);
                                lines.unlocked(|| others.is_some_and(|all| even_out(cpu, &all)))
                            }
                            ask => lines.unlocked(|| ask.pass()),
                        }) => {}
                    _ => return begun(slot, true),
                }
            }
        }
        let Some(total) = small.take(&lines, seq, memory, weight) else {
            return begun(slot, true);
        };
        lines.end(seq, false);
        let sleepers = lines.sleepers();
        drop(lines);
        d.clock.end_here();
        self.wake(shared, &sleepers);
        let mut done = Done::default();
        done.weight = total;
        Here::Done(done)
    }

    fn wake(&self, shared: &Shared, sleepers: &[Rank]) {
        for rank in sleepers {
            if let Some((_, link)) = self.links.iter().find(|(r, _)| r == rank) {
                shared.links[*link as usize].nudge(*rank);
            }
        }
    }

    fn wake_sleepers(&self, shared: &Shared) {
        let sleepers = self.decision.stream.lines().sleepers();
        self.wake(shared, &sleepers);
    }

    fn run_fused(&self, shared: &Shared, op: &Op, slot: &mut Slot) -> Here {
        let d = &self.decision;
        if d.scratch_len() > 0 {
            return Here::Not;
        }
        if slot.is_none() {
            return Here::Not;
        }
        let seq = {
            let mut lines = d.stream.lines();
            if !lines.is_idle() {
                return Here::Not;
            }
            let Some(seq) = d.clock.take_here() else {
                return Here::Not;
            };
            lines.begin(seq);
            seq
        };
        let Some(memory) = slot.take() else {
            return Here::Not;
        };
        let made = Made {
            serial: 0,
            memory,
            now: Duration::ZERO,
            timeout: Duration::ZERO,
            warn_after: Duration::ZERO,
            completion: Completion::new(),
        };
        let mut state = Box::new(OpState::new(d.start(op, seq, made)));
        let mut local = d.local(op, seq, false);
        let mut tries = Tries::of(shared);
        let me = d.group.rank.idx();
        let pass = |ask: Ask<'_>| match ask {
            Ask::Beside(cpu) => d.stream.lines().is_beside(cpu, |_, _| true),
            Ask::Second(cpu) => d.stream.lines().is_beside(cpu, |_, other| other < me),
            Ask::EvenOut(cpu) => {
                let others = d.stream.lines().others_but_last(cpu);
                others.is_some_and(|all| even_out(cpu, &all))
            }
            ask => ask.pass(),
        };
        // Others may be at its memory: it must not be let go of by unwinding.
        let driven = catch_unwind(AssertUnwindSafe(|| {
            loop {
                match local.advance(&mut state, u64::MAX) {
                    Step::Done => return true,
                    Step::Moved => {
                        self.wake_sleepers(shared);
                        tries = Tries::of(shared);
                    }
                    Step::Waits if tries.again(pass) => {}
                    _ => return false,
                }
            }
        }));
        let panic = match driven {
            Ok(true) => {
                d.stream.lines().end(seq, false);
                d.clock.end_here();
                self.wake_sleepers(shared);
                let mut done = Done::default();
                done.weight = state.total_weight();
                return Here::Done(done);
            }
            Ok(false) => None,
            Err(panic) => Some(panic_text(&*panic)),
        };
        Here::Begun(Box::new(Begun {
            decision: Arc::clone(d),
            seq,
            at: At::Fused {
                op: state,
                local,
                panic,
            },
        }))
    }
}

/// A call's memory, until it is handed on.
pub(crate) type Slot = Option<OpMemory>;

/// How long a call looks by itself.
///
/// A rank that is waited for and was on this processor when it last waited itself needs it now: it is let go first at once, whoever is elsewhere after some looks.
struct Tries<'a> {
    shared: &'a Shared,
    /// Looks until others are let go first, or the clock is looked at.
    left: u32,
    /// Whether it is known who is on this processor.
    placed: bool,
    /// How often others have been let go first.
    turns: u32,
    /// When the clock was looked at first, and whether others are let go first from then on.
    since: Option<(Instant, bool)>,
}

/// What a wait asks of whoever waits.
enum Ask<'a> {
    /// Whether somebody who is waited for is on the processor of this number.
    Beside(u64),
    /// Whether a member of a smaller number is there, whoever is waited for.
    Second(u64),
    /// To go to another processor than that of this number. Whether it has gone.
    Leave(&'a Parting, u64),
    /// To go to a processor with fewer ranks than that of this number. Whether it has gone.
    EvenOut(u64),
    /// To let others go first.
    Yield,
    /// To be out of the way for a moment.
    Aside,
}

impl Ask<'_> {
    /// Does what takes time: to be called with no lock held.
    fn pass(self) -> bool {
        match self {
            Ask::Beside(_) | Ask::Second(_) | Ask::EvenOut(_) => {}
            Ask::Leave(parting, cpu) => return parting.leave(cpu),
            Ask::Yield => std::thread::yield_now(),
            Ask::Aside => std::thread::sleep(ASIDE),
        }
        true
    }
}

impl<'a> Tries<'a> {
    #[inline]
    fn of(shared: &'a Shared) -> Tries<'a> {
        Tries {
            shared,
            left: match shared.crowded {
                true => CROWDED_FIRST_SPINS,
                false => FIRST_SPINS,
            },
            placed: false,
            turns: 0,
            since: None,
        }
    }

    /// Whether to look again, after a moment.
    #[inline]
    fn again(&mut self, ask: impl FnMut(Ask<'_>) -> bool) -> bool {
        if self.left == 0 {
            return self.goes_on(ask);
        }
        self.left -= 1;
        // Most waits are so short that a pause would be a good part of them.
        if self.placed {
            spin_loop();
        }
        true
    }

    /// Some looks have found nothing.
    #[cold]
    fn goes_on(&mut self, mut ask: impl FnMut(Ask<'_>) -> bool) -> bool {
        let spins = match self.shared.crowded {
            true => CROWDED_SPINS,
            false => SPINS,
        };
        let manners = &self.shared.manners;
        if !self.placed {
            (self.placed, self.left) = (true, spins);
            if !processor().is_some_and(|cpu| ask(Ask::Beside(cpu))) {
                manners.is_apart();
                return true;
            }
            if self.shared.crowded && self.shared.parts && manners.evens_out() {
                let moved = processor().is_some_and(|cpu| ask(Ask::EvenOut(cpu)));
                manners.has_evened_out(moved);
                if moved {
                    // The others are told where it is.
                    (self.placed, self.left) = (false, 0);
                    return true;
                }
            }
            if !self.shared.crowded && manners.steps_aside() {
                // Of several all but the first go, so that they do not meet again where they have gone.
                let parts = self.shared.parts;
                if processor().filter(|_| parts).is_some_and(|cpu| {
                    ask(Ask::Second(cpu)) && ask(Ask::Leave(&manners.parting, cpu))
                }) {
                    // The others are told where it is.
                    (self.placed, self.left) = (false, 0);
                    return true;
                }
                // Awake again, it is given another processor, if there is one to be had.
                ask(Ask::Aside);
                return true;
            }
        }
        if self.shared.crowded {
            self.turns += 1;
            ask(Ask::Yield);
            let near = processor().is_some_and(|cpu| ask(Ask::Beside(cpu)));
            self.left = if near { 0 } else { spins };
            let (since, _) = self.since.get_or_insert_with(|| (Instant::now(), true));
            return self.turns < YIELDS && since.elapsed() < CROWDED_SPELL;
        }
        let now = Instant::now();
        let (since, yields) = self.since.get_or_insert_with(|| (now, manners.may_yield()));
        let waited = since.elapsed();
        if waited >= SPELL {
            return false;
        }
        if *yields {
            ask(Ask::Yield);
            *yields = manners.took(now.elapsed());
            self.left = 0;
        } else if waited >= GREEDY / 2 {
            // Whoever is waited for does not run: perhaps it is in line here. Sooner than it would be called greedy for waiting likewise.
            manners.forgive();
            *yields = true;
        } else {
            self.left = spins;
        }
        true
    }
}

/// The processor that this thread is on.
fn processor() -> Option<u64> {
    #[cfg(target_os = "linux")]
    return Some(rustix::thread::sched_getcpu() as u64);
    #[cfg(not(target_os = "linux"))]
    return None;
}

impl Known {
    /// Carries a call out, if it is one that is known.
    #[inline]
    pub(crate) fn run(&self, comm: &EngineComm, op: &Op, slot: &mut Slot) -> Here {
        let shared = &*comm.shared;
        if user::inside() || raw_fork::is_fork(shared.pid) {
            return Here::Not;
        }
        let Some(mut calls) = self.0.take() else {
            return Here::Not;
        };
        let shape = slot.as_ref().map(OpMemory::shape);
        let known = &mut calls.entries;
        let found = known
            .iter()
            .position(|entry| Some(entry.shape) == shape && entry.is_for(op));
        let here = match found {
            Some(i) => {
                if i > 0 {
                    known.swap(0, i);
                }
                let entry = &mut known[0];
                let calm = entry.is_calm(shared);
                match &entry.decision.small {
                    _ if !calm => Here::Not,
                    Some(small) => entry.run_small(shared, small, op, slot),
                    None => entry.run_fused(shared, op, slot),
                }
            }
            None => Here::Not,
        };
        self.0.store(Some(calls));
        here
    }

    /// Remembers what was decided about a call.
    pub(crate) fn learn(&self, state: &State, op: &Op, decision: &Arc<Decision>) {
        if op.user.is_some() {
            return;
        }
        let mut calls = self.0.take().unwrap_or_default();
        let known = &mut calls.entries;
        let shape = decision.shape;
        if !known
            .iter()
            .any(|entry| entry.shape == shape && entry.is_for(op))
        {
            let ranks = decision.group.world_ranks.iter();
            let links = ranks.filter_map(|r| Some((*r, *state.route.get(r.idx())?.as_ref()?)));
            let entry = Entry {
                op: op.clone(),
                shape,
                decision: Arc::clone(decision),
                calm: u64::MAX,
                links: links.collect(),
            };
            known.truncate(MOST_KNOWN - 1);
            known.insert(0, entry);
        }
        self.0.store(Some(calls));
    }
}

impl Begun {
    /// Where its outcome will be.
    pub(crate) fn completion(&self) -> Arc<Completion> {
        match &self.at {
            At::Small { .. } => Completion::new(),
            At::Fused { op, .. } => Arc::clone(&op.completion),
        }
    }

    /// Hands the operation to the engine. What it ends with comes through the [completion](Begun::completion).
    pub(crate) fn register(self, comm: &EngineComm, op: &Op, completion: &Arc<Completion>) {
        let Begun { decision, seq, at } = self;
        let shared = &*comm.shared;
        let mut state = shared.state.lock();
        let now = shared.clock.now();
        state.set_now(now);
        let timeout = op.timeout.unwrap_or(state.config.timeout);
        let warn_after = state.config.warn_after;
        let serial = state.next_serial();
        let begun = match at {
            At::Small { memory, posted } => {
                let made = Made {
                    serial,
                    memory,
                    now,
                    timeout,
                    warn_after,
                    completion: Arc::clone(completion),
                };
                let mut begun = Box::new(OpState::new(decision.start(op, seq, made)));
                begun.local = Some(decision.local(op, seq, posted));
                begun
            }
            At::Fused {
                op: mut begun,
                local,
                panic,
            } => {
                begun.serial = serial;
                (begun.started, begun.deadline) = (now, now.saturating_add(timeout));
                begun.warn_at = Some(now.saturating_add(warn_after));
                begun.local = Some(local);
                if let Some(what) = panic {
                    let error =
                        Error::internal(format!("a step over mapped memory panicked: {what}"));
                    begun.broken.get_or_insert(error);
                }
                begun
            }
        };
        shared.guarded(&mut state, |state| {
            state.enqueue(begun);
            state.settle(&shared.links, &*shared.control)
        });
        decision.clock.end_here();
        shared.let_go(state);
    }
}
