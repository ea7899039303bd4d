//! The fused step over memory that several processes have mapped: `Arrive`, `AwaitAll`, `GroupFold` and `GroupCopy` of a plan, executed between real processes.
//!
//! Every rank has one sealed memfd (a [`Segment`]) that all others have mapped: an arrival line, and a heap whose buffers ([`HeapVec`]) are whole pages.
//! [`Members::run`] carries a plan out on buffers of the heap.
//!
//! **Ordering.** A rank writes the fields of its line, then stores its word with `Release`; whoever loads the word with `Acquire` and finds it far enough sees the fields, and whatever the rank wrote to any memory before (its own input, other ranks' outputs). The word only grows, so an old value can only make somebody wait. Tiles themselves are copied with relaxed atomics: between two arrivals no two ranks touch the same bytes, unless one of them has failed.
//! The word is a futex: a sleeper gives the value that it has seen, and the kernel compares it again after it has queued the sleeper, so a store that is followed by a wake-up cannot be missed. Every arrival wakes, sleepers or not.
//!
//! **No late writers.** An operation that fails first marks its word, so that nobody waits for it, then takes its output's pages out of the shared memory ([`Segment::sever`]), and only then hands the memory back: a straggler that still holds a folded tile writes it to pages that nobody looks at.
//! Nobody writes to anybody before all have arrived at the first phase, so a rank whose output was severed while somebody had not yet arrived knows that it is untouched; in every other case it says `partly written`.

pub mod meet;
pub mod plans;
mod raw_map;
pub mod work;

pub use raw_map::{Heap, HeapVec, Line, Segment};

use gaggle_collectives::{Action, Buf, Plan, Span};
use gaggle_core::{Cause, DType, Error, Rank, Region, Weight, descriptor::stable_hash};
use gaggle_kernels::{Source, Term, fold};
use rustix::{
    fs::Timespec,
    io::Errno,
    process::{Signal, getpid, kill_process},
    thread::futex,
};
use std::{
    sync::{
        Arc,
        atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
        atomic::fence,
    },
    time::{Duration, Instant},
};

/// Bytes of a tile: what is read from everybody, folded, and written to everybody at once.
pub const TILE: u64 = 16 << 10;
/// In a word: the rank has given up.
const GAVE_UP: u32 = 1 << 31;
/// Fields of a line.
const HASH: usize = 0;
const WEIGHT: usize = 1;
const INPUT: usize = 2;
const OUTPUT: usize = 3;
/// In a field: the buffer is not in the heap.
const PLAIN: u64 = u64::MAX;
/// Checks of a word before the thread yields, and yields before it sleeps.
const SPINS: u32 = 200;
const YIELDS: u32 = 20;

/// Where a rank stops itself, for tests: with SIGSTOP, in the middle of a tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// After this many tiles have been written, with the next one folded and not yet written.
    BeforeWrite(u32),
    /// After half of this tile has been written to the first member, and none to the others.
    MidWrite(u32),
    /// Before it arrives at all.
    BeforeArrival,
}

/// What a finished operation says.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fused {
    /// Σw of a mean; 0 means that nobody contributed and the output is unchanged.
    pub weight: Weight,
}

/// The members of a group whose memory this rank has mapped.
#[derive(Debug)]
pub struct Members {
    me: Rank,
    /// In rank order, this rank's own among them.
    segments: Vec<Arc<Segment>>,
    heap: Heap,
    /// Phases that all operations so far have gone through; equal on every rank.
    phases: u32,
    broken: Option<Error>,
    /// For tests.
    pub stop: Option<Stop>,
    /// For tests that show what would happen without: whether failing outputs are severed.
    pub sever: bool,
}

/// Where everybody's buffers are, once all have arrived.
struct Places {
    inputs: Vec<u64>,
    outputs: Vec<u64>,
    weights: Vec<Weight>,
}

impl Places {
    fn of(&self, buf: Buf) -> &[u64] {
        if buf == Buf::Input {
            &self.inputs
        } else {
            &self.outputs
        }
    }
}

/// Why an operation cannot go on.
enum Trouble {
    /// Nobody has touched anybody's output.
    Refused(Error),
    /// These have not come by the deadline.
    Late(Vec<Rank>),
    /// This rank has said that it gave up.
    GaveUp(Rank),
}

/// What one run needs to know.
struct Run<'a> {
    plan: &'a Plan,
    name: String,
    dtype: DType,
    input: u64,
    output: u64,
    weight: Weight,
    start: Instant,
    limit: Duration,
}

impl Members {
    /// Over segments in rank order; the one of `me` is the one whose heap is handed out, from its beginning.
    pub fn new(me: Rank, segments: Vec<Arc<Segment>>) -> Members {
        let heap = Heap::new(Arc::clone(&segments[me.idx()]));
        Members {
            me,
            segments,
            heap,
            phases: 0,
            broken: None,
            stop: None,
            sever: true,
        }
    }

    /// Where registered buffers come from.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Carries out a plan on registered memory, with `weight` for a mean; returns when the memory is the caller's again, at the latest soon after `limit`.
    ///
    /// Cost of an all-reduce of S bytes on P ranks: two arrivals, and 2S bytes read or written per rank.
    ///
    /// # Errors
    /// `Timeout` and `Aborted`: the members share no memory any more, whether the output was touched is said, and nobody touches it afterwards; `Mismatch`: the ranks called different things, nothing was touched; `Invalid` and `Unsupported`: nothing has happened.
    pub fn run(
        &mut self,
        plan: &Plan,
        weight: Weight,
        input: Option<&mut Region>,
        io: &mut Region,
        limit: Duration,
    ) -> Result<Fused, Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let name = format!("fused {}", plan.kind.name());
        let dtype = io.dtype();
        let input = match input {
            Some(region) => self.place(&name, region, (dtype, plan.input_len))?,
            None => PLAIN,
        };
        let output = self.place(&name, io, (dtype, plan.user_len))?;
        // A clock of its own: the spike has no engine that would give it one.
        #[allow(clippy::disallowed_methods, reason = "the spike has no engine's clock")]
        let start = Instant::now();
        let run = Run {
            plan,
            name,
            dtype,
            input,
            output,
            weight,
            start,
            limit,
        };
        let n_arrivals = plan.iter().filter(is_arrival).count() as u32;
        match self.execute(&run) {
            Ok(fused) => {
                self.phases = (self.phases + n_arrivals) & !GAVE_UP;
                Ok(fused)
            }
            Err(trouble) => Err(self.fail(&run, trouble)),
        }
    }

    fn place(&self, op: &str, region: &mut Region, want: (DType, u64)) -> Result<u64, Error> {
        let got = (region.dtype(), region.len() as u64);
        if got != want {
            let what = format!(
                "a buffer of {} {}, the plan needs {} {}",
                got.1, got.0, want.1, want.0
            );
            return Err(Error::invalid(op, what));
        }
        let bytes = region.len() * got.0.size();
        region
            .view()
            .and_then(|mut v| self.segments[self.me.idx()].offset_of(v.as_ptr(), bytes))
            .ok_or_else(|| unsupported(op, "needs memory of the registered heap"))
    }

    fn execute(&self, run: &Run<'_>) -> Result<Fused, Trouble> {
        let mut places = None;
        let alone = run.plan.world == 1 && run.plan.n_slots > 0;
        let mut total = if alone { run.weight } else { Weight::ZERO };
        for step in run.plan.iter() {
            match (&step.action, &places) {
                (Action::Arrive { phase }, _) => self.arrive(run, *phase),
                (Action::AwaitAll { phase }, _) => {
                    self.await_all(run, *phase)?;
                    if places.is_none() {
                        places = Some(self.look(run)?);
                    }
                    if let Some(rank) = self.gave_up() {
                        return Err(Trouble::GaveUp(rank));
                    }
                }
                (
                    Action::GroupFold {
                        from,
                        at,
                        len,
                        sum: _,
                    },
                    Some(places),
                ) => {
                    total = self.group_fold(run, places, (*from, *at, *len));
                }
                (Action::GroupCopy { from, src, dst }, Some(places)) => {
                    self.group_copy(run, places, *from, (*src, *dst));
                }
                (
                    Action::Copy {
                        src,
                        dst,
                        unless_zero,
                    },
                    _,
                ) if src.buf == Buf::Input => {
                    // The only slot that is filled before anybody has come is this rank's own weight.
                    if unless_zero.is_some() && run.weight == Weight::ZERO {
                        continue;
                    }
                    let own = &self.segments[self.me.idx()];
                    self.copy(run, (own, run.input, *src), (run.output, *dst));
                }
                (other, _) => {
                    let what = format!("has no such step here: {other:?}");
                    return Err(Trouble::Refused(unsupported(&run.name, &what)));
                }
            }
        }
        Ok(Fused { weight: total })
    }

    /// Says that this rank has come to a phase. The first time it says with what.
    fn arrive(&self, run: &Run<'_>, phase: u32) {
        let line = self.segments[self.me.idx()].line();
        if phase == 0 {
            if self.stop == Some(Stop::BeforeArrival) {
                stand_still();
            }
            line.field(HASH).store(run.hash(), Relaxed);
            line.field(WEIGHT).store(run.weight.bits(), Relaxed);
            line.field(INPUT).store(run.input, Relaxed);
            line.field(OUTPUT).store(run.output, Relaxed);
        }
        // Release: what was written so far, the fields and others' outputs, is seen by whoever sees the word.
        line.word().store(self.goal(phase), Release);
        wake(line);
    }

    fn goal(&self, phase: u32) -> u32 {
        (self.phases + phase + 1) & !GAVE_UP
    }

    /// Waits until everybody has come to a phase: spins, yields, sleeps, at most until the deadline.
    fn await_all(&self, run: &Run<'_>, phase: u32) -> Result<(), Trouble> {
        let goal = self.goal(phase);
        for (rank, segment) in (0..).map(Rank).zip(&self.segments) {
            let mut checks = 0;
            loop {
                // Acquire: pairs with the store of an arrival.
                let word = segment.line().word().load(Acquire);
                if reached(word, goal) {
                    break;
                }
                if word & GAVE_UP != 0 {
                    return Err(Trouble::GaveUp(rank));
                }
                checks += 1;
                if checks <= SPINS {
                    std::hint::spin_loop();
                } else if checks <= SPINS + YIELDS {
                    std::thread::yield_now();
                } else if !sleep(segment.line(), word, run.left()) {
                    return Err(Trouble::Late(self.missing(goal)));
                }
            }
        }
        Ok(())
    }

    /// Who has not come so far.
    fn missing(&self, goal: u32) -> Vec<Rank> {
        let all = (0..).map(Rank).zip(&self.segments);
        all.filter(|(_, s)| !reached(s.line().word().load(Acquire), goal))
            .map(|(rank, _)| rank)
            .collect()
    }

    /// Who has come, and has given up since: for all who see it, the operation has failed.
    fn gave_up(&self) -> Option<Rank> {
        let mut all = (0..).map(Rank).zip(&self.segments);
        // Acquire: as any load of a word.
        let found = all.find(|(_, s)| s.line().word().load(Acquire) & GAVE_UP != 0)?;
        Some(found.0)
    }

    /// What all have come with, once all have.
    fn look(&self, run: &Run<'_>) -> Result<Places, Trouble> {
        let field = |n: usize| -> Vec<u64> {
            // Relaxed: ordered by the word that was acquired.
            let all = self.segments.iter();
            all.map(|s| s.line().field(n).load(Relaxed)).collect()
        };
        let hashes = field(HASH);
        let places = Places {
            inputs: field(INPUT),
            outputs: field(OUTPUT),
            weights: field(WEIGHT).into_iter().map(Weight::from_bits).collect(),
        };
        let mut versions: Vec<(Vec<Rank>, u64)> = Vec::new();
        for (rank, hash) in (0..).map(Rank).zip(hashes) {
            match versions.iter_mut().find(|v| v.1 == hash) {
                Some(v) => v.0.push(rank),
                None => versions.push((vec![rank], hash)),
            }
        }
        if versions.len() > 1 {
            let most = versions.iter().map(|v| v.0.len()).max().unwrap_or(0);
            let is_tie = versions.iter().filter(|v| v.0.len() == most).count() > 1;
            let deviating = versions.iter().filter(|v| is_tie || v.0.len() < most);
            let cause = Cause::Mismatch {
                op: run.name.clone(),
                deviating: deviating.flat_map(|v| v.0.clone()).collect(),
                versions: versions
                    .iter()
                    .map(|v| (v.0.clone(), format!("operation {:016x}", v.1)))
                    .collect(),
                partly_written: false,
            };
            return Err(Trouble::Refused(cause.into()));
        }
        // A peer's numbers are looked at before anything is read there.
        for (buf, len) in [
            (Buf::Input, run.plan.input_len),
            (Buf::User, run.plan.user_len),
        ] {
            let bytes = len * run.dtype.size() as u64;
            for ((rank, segment), at) in (0..).map(Rank).zip(&self.segments).zip(places.of(buf)) {
                let fits = at
                    .checked_add(bytes)
                    .is_some_and(|end| end <= segment.heap_len() as u64);
                if !fits && (buf == Buf::User || run.input != PLAIN) {
                    let cause = Cause::Protocol {
                        peer: rank.to_string(),
                        what: format!("its {bytes} bytes at {at} are not in its heap"),
                    };
                    return Err(Trouble::Refused(cause.into()));
                }
            }
        }
        Ok(places)
    }

    /// Folds elements of all members in rank order and writes the result to all, tile by tile. Σw.
    fn group_fold(
        &self,
        run: &Run<'_>,
        places: &Places,
        (from, at, len): (Buf, u64, u64),
    ) -> Weight {
        let size = run.dtype.size() as u64;
        let tile = TILE / size;
        let is_mean = run.plan.n_slots > 0;
        let sum: u64 = places.weights.iter().map(|w| w.bits()).sum();
        if is_mean && sum == 0 {
            return Weight::ZERO;
        }
        let mut rooms = vec![vec![0u8; TILE as usize]; self.segments.len()];
        let mut result = vec![0u8; TILE as usize];
        for (n, lo) in (at..at + len).step_by(tile as usize).enumerate() {
            let bytes = (tile.min(at + len - lo) * size) as usize;
            for ((room, segment), base) in rooms.iter_mut().zip(&self.segments).zip(places.of(from))
            {
                segment.read(base + lo * size, &mut room[..bytes]);
            }
            let terms: Vec<Term<'_>> = rooms
                .iter()
                .zip(&places.weights)
                .map(|(room, weight)| Term {
                    source: Source::Bytes {
                        bytes: &room[..bytes],
                        dtype: run.dtype,
                    },
                    weight: is_mean.then_some(*weight),
                })
                .collect();
            fold(run.dtype, run.plan.reduce, &mut result[..bytes], &terms);
            if self.stop == Some(Stop::BeforeWrite(n as u32)) {
                stand_still();
            }
            for (i, (segment, base)) in self.segments.iter().zip(&places.outputs).enumerate() {
                let to = base + lo * size;
                if i == 0 && self.stop == Some(Stop::MidWrite(n as u32)) {
                    segment.write(to, &result[..bytes / 2]);
                    stand_still();
                }
                segment.write(to, &result[..bytes]);
            }
        }
        Weight::from_bits(sum)
    }

    fn group_copy(&self, run: &Run<'_>, places: &Places, from: Rank, (src, dst): (Span, Span)) {
        let theirs = &self.segments[from.idx()];
        let base = places.of(src.buf)[from.idx()];
        self.copy(run, (theirs, base, src), (run.output, dst));
    }

    fn copy(&self, run: &Run<'_>, from: (&Segment, u64, Span), to: (u64, Span)) {
        let size = run.dtype.size() as u64;
        let (segment, base, src) = from;
        let mut room = vec![0u8; TILE as usize];
        for lo in (0..src.len * size).step_by(TILE as usize) {
            let part = &mut room[..TILE.min(src.len * size - lo) as usize];
            segment.read(base + src.at * size + lo, part);
            self.segments[self.me.idx()].write(to.0 + to.1.at * size + lo, part);
        }
    }

    /// Ends an operation so that nobody can touch its memory any more, and says what is true of it.
    fn fail(&mut self, run: &Run<'_>, trouble: Trouble) -> Error {
        let own = Arc::clone(&self.segments[self.me.idx()]);
        // Nobody waits for this rank any more. AcqRel: a read-modify-write keeps what the word said.
        own.line().word().fetch_or(GAVE_UP, AcqRel);
        wake(own.line());
        let bytes = run.plan.user_len as usize * run.dtype.size();
        let severed = if self.sever {
            own.sever(run.output, bytes)
        } else {
            Ok(())
        };
        // After the copy that became the output: whoever has not come to the first phase now had not when it was made, and before all have come nobody writes. SeqCst, so that the loads stay behind the copy.
        fence(SeqCst);
        let partly_written = self.missing(self.goal(0)).is_empty();
        let waited = run.start.elapsed();
        let op = run.name.clone();
        let error: Error = match trouble {
            Trouble::Refused(error) => error,
            Trouble::Late(waiting_for) => Cause::Timeout {
                op,
                waiting_for,
                waited,
                detail: String::new(),
                partly_written,
            }
            .into(),
            Trouble::GaveUp(by) => Cause::Aborted {
                op,
                by,
                reason: format!(
                    "gave up{}",
                    if partly_written {
                        "; the buffer is partly written"
                    } else {
                        ""
                    }
                ),
            }
            .into(),
        };
        if let Err(e) = severed {
            // Handing the memory back would break the promise; there is no other way to keep it.
            eprintln!("{error}; and its memory cannot be severed: {e}");
            std::process::abort();
        }
        self.broken = Some(error.clone());
        error
    }
}

impl Run<'_> {
    /// What everybody must have called alike.
    fn hash(&self) -> u64 {
        let plan = self.plan;
        stable_hash(&[
            &[
                plan.kind as u8,
                plan.algorithm as u8,
                plan.reduce as u8,
                self.dtype as u8,
            ],
            &[u8::from(self.input != PLAIN)],
            &plan.user_len.to_le_bytes(),
            &plan.input_len.to_le_bytes(),
        ])
    }

    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.start.elapsed())
    }
}

fn is_arrival(step: &gaggle_collectives::Step) -> bool {
    matches!(step.action, Action::Arrive { .. })
}

/// Whether a word says that its rank has come as far as `goal`; half of all words are ahead, half behind.
fn reached(word: u32, goal: u32) -> bool {
    (word & !GAVE_UP).wrapping_sub(goal) & !GAVE_UP < 1 << 30
}

/// Sleeps until the word is no longer as it was seen. False where no time is left.
fn sleep(line: Line<'_>, seen: u32, left: Duration) -> bool {
    if left.is_zero() {
        return false;
    }
    let left = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: left.subsec_nanos().into(),
    };
    // Not private: the sleepers are other processes'. A changed word, a signal and the end of the time are all looked into by the caller.
    let _: Result<(), Errno> = futex::wait(line.word(), futex::Flags::empty(), seen, Some(&left));
    true
}

fn wake(line: Line<'_>) {
    // It fails only for a word that is not mapped.
    let _ = futex::wake(line.word(), futex::Flags::empty(), i32::MAX as u32);
}

/// As by Ctrl-Z, in the middle of whatever this is.
fn stand_still() {
    // Whoever waits for this rank to be silent notices that it is not.
    let _ = kill_process(getpid(), Signal::STOP);
}

fn unsupported(op: &str, what: &str) -> Error {
    Cause::Unsupported {
        op: op.into(),
        what: what.into(),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_wrap_around() {
        assert!(reached(5, 5) && reached(6, 5) && !reached(4, 5));
        assert!(reached(0, GAVE_UP - 1) && !reached(GAVE_UP - 1, 0));
        assert!(!reached(GAVE_UP | 4, 5) && reached(GAVE_UP | 5, 5));
    }

    /// Rank 0 of two, and the segment of rank 1, which a test plays.
    fn pair() -> (Members, Arc<Segment>) {
        let [own, other] = [0, 1].map(|_| Arc::new(Segment::create(1 << 20).unwrap()));
        (Members::new(Rank(0), vec![own, Arc::clone(&other)]), other)
    }

    const SOON: Duration = Duration::from_millis(50);

    #[test]
    fn memory_elsewhere_and_other_lengths_are_refused_before_anything_happens() {
        let (mut members, other) = pair();
        let plan = plans::all_reduce(gaggle_core::Reduce::Sum, (Rank(0), 2), 8, false).unwrap();
        let mut plain = Region::new(vec![1.0f32; 8]);
        let e = members.run(&plan, Weight::ONE, None, &mut plain, SOON);
        assert!(matches!(e.unwrap_err().cause(), Cause::Unsupported { .. }));
        let mut short = Region::new(members.heap().vec::<f32>(7).unwrap());
        let e = members.run(&plan, Weight::ONE, None, &mut short, SOON);
        assert!(matches!(e.unwrap_err().cause(), Cause::Invalid { .. }));
        assert_eq!(members.segments[0].line().word().load(Acquire), 0);
        assert_eq!(other.line().word().load(Acquire), 0);
    }

    /// The peer has called the same, and says that its buffer is where its memory ends.
    #[test]
    fn a_place_that_is_not_in_the_peers_heap_is_its_fault_and_nothing_is_read() {
        for place in [1 << 20, u64::MAX - 8, (1 << 20) - 31] {
            let (mut members, other) = pair();
            let plan = plans::all_reduce(gaggle_core::Reduce::Sum, (Rank(0), 2), 8, false).unwrap();
            let mut x = members.heap().vec::<f32>(8).unwrap();
            x.fill(3.0);
            let mut x = Region::new(x);
            let run = Run {
                plan: &plan,
                name: String::new(),
                dtype: DType::F32,
                input: PLAIN,
                output: place,
                weight: Weight::ONE,
                start: Instant::now(),
                limit: SOON,
            };
            other.line().field(HASH).store(run.hash(), Relaxed);
            other.line().field(OUTPUT).store(place, Relaxed);
            other.line().word().store(1, Release);
            let e = members
                .run(&plan, Weight::ONE, None, &mut x, SOON)
                .unwrap_err();
            assert!(
                matches!(e.cause(), Cause::Protocol { peer, .. } if peer == "rank 1"),
                "{e}"
            );
            assert_eq!(x.typed::<f32>().unwrap(), [3.0; 8]);
        }
    }
}
