//! Operations of ranks of one host that meet on [boards](board) in memory that all have mapped, with no message.
//!
//! A [`Local`] is what such an operation is beside its [`OpState`]: a machine that never waits ([`Local::advance`]).
//! A blocking call drives it itself for a moment ([`here`]); what is not over by then, and whatever is asynchronous, is driven by the engine's turns ([`State::poll_locals`]), where deadlines, culprits, aborts and mismatches are those of any operation.
//!
//! Which way an operation goes depends on nothing but what all ranks give alike: on its choice, its lengths and the settings.
//! Where some member can have no board, all see that, and meet by messages.
//!
//! # Whom a failure reaches
//! What is shown on a board is a copy, and nobody else's memory is touched by a [`Small`] operation.
//! Of fused ones the memory is severed as ever (see [`fused`](crate::fused)); and the slot is marked, so that who comes later does not end well.

pub(crate) mod board;
pub(crate) mod here;
#[cfg(test)]
mod models;
pub(crate) mod parting;
#[cfg(test)]
mod raw_tracked;
mod small;
mod staged;
mod staged_layout;
pub(crate) mod staged_room;
mod writing;

use crate::{
    arguments::Shape,
    comm::plan_error,
    completion::Completion,
    discover::{Then, data_id},
    fused::{self, Members, Record},
    op::{OpStart, OpState},
    places::Places,
    program::Program,
    protocol::{Blame, Word},
    raw_memory::OpMemory,
    select::{Choice, Identity, choose, choose_plain, result_of},
    state::{Later, State, control_word},
    sync::{Arc, AtomicU64, Ordering},
};
use board::{Lines, Seen, Stream};
use gaggle_collectives::Action;
use gaggle_core::{
    Algorithm, Descriptor, Down, Error, GroupInfo, Op, OpId, OpKind, Rank, Reduce, TransportError,
    Weight,
    descriptor::stable_hash,
    raw::{bytes_of, bytes_of_mut},
};
use small::Small;
use smallvec::SmallVec;
use staged::{Folds, Progress, Staged};
pub(crate) use staged::{Member, StagingRecord};
pub(crate) use staged_layout::Layout;
use staged_room::Rooms;
use std::{collections::HashMap, time::Duration};

/// How operations of a lane are numbered; shared with whoever takes a number without the engine's lock.
#[derive(Debug, Default)]
pub(crate) struct LaneClock {
    next: AtomicU64,
    /// One more than the number of an operation that a blocking call is at, of which the engine knows nothing; 0: none.
    here: AtomicU64,
}

impl LaneClock {
    /// The next number.
    pub(crate) fn take(&self) -> u64 {
        // Release: with `has_had`, which must see what `take_here` has written before.
        self.next.fetch_add(1, Ordering::AcqRel)
    }

    /// As [`take`](LaneClock::take), for an operation that the engine does not hear of. `None`: another thread has taken a number of the lane meanwhile.
    #[inline]
    fn take_here(&self) -> Option<u64> {
        let seq = self.next.load(Ordering::Acquire);
        self.here.store(seq + 1, Ordering::Release);
        // Release: as in `take`.
        let taken = self
            .next
            .compare_exchange(seq, seq + 1, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_err() {
            self.end_here();
            return None;
        }
        Some(seq)
    }

    /// It is over, or the engine knows of it.
    #[inline]
    fn end_here(&self) {
        self.here.store(0, Ordering::Release);
    }

    /// Whether a number has been taken, and is not that of an operation that a call is at.
    pub(crate) fn has_had(&self, seq: u64) -> bool {
        // Acquire: who sees the number taken sees by whom.
        seq < self.next.load(Ordering::Acquire) && self.here.load(Ordering::Acquire) != seq + 1
    }
}

/// What all calls of one kind on a lane have in common.
pub(crate) struct Decision {
    /// With number 0.
    descriptor: Descriptor,
    /// What it is called by on the boards: the hash of that.
    hash: u64,
    program: Arc<Program>,
    choice: Choice,
    places: Places,
    shape: Shape,
    small: Option<Arc<Small>>,
    /// How it passes through staging memory, where somebody's own is not mapped.
    layout: Option<Arc<Layout>>,
    rooms: Arc<Rooms>,
    stream: Arc<Stream>,
    clock: Arc<LaneClock>,
    group: Arc<GroupInfo>,
}

/// Bytes that a staged operation moves before it looks who sleeps.
const STAGED: u64 = 256 << 10;

/// How far an operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It waits for everybody's word.
    Meets,
    /// It is at this step over the members' memory.
    Runs(u32),
    /// It passes through staging memory.
    Staged,
    /// It waits until everybody's steps are over.
    Leaves,
}

/// The machine of one operation.
pub(crate) struct Local {
    decision: Arc<Decision>,
    /// As the caller gave it, for what may follow by messages.
    op: Op,
    weight: Weight,
    seq: u64,
    stage: Stage,
    posted: bool,
    /// What this rank has shown of its memory, of a fused operation.
    record: Option<Record>,
    /// How far it is with its staging memory, where this rank has some for it.
    staged: Option<Box<Staged>>,
    /// Members whose word has been noted, as bits; of groups of up to 64.
    noted: u64,
    disputed: bool,
}

/// What has come of a look.
pub(crate) enum Step {
    /// Nothing has.
    Waits,
    /// Something was written that others may wait for; more is to do.
    Moved,
    /// All is over.
    Done,
    /// Somebody calls something else.
    Other,
    /// Somebody has given it up.
    GaveUp,
    /// Somebody can have no board.
    Never,
    /// Not everybody's memory is mapped.
    NotMapped,
    /// The sum of weights is out of range.
    Overflow,
    /// Its steps have failed.
    Broken(Error),
}

impl Decision {
    /// What an operation of this kind is started with. It has its number.
    pub(crate) fn start(&self, op: &Op, seq: u64, made: Made) -> OpStart {
        let mut descriptor = self.descriptor;
        descriptor.id.seq = seq;
        let (me, world) = (self.group.rank, self.group.world_ranks.len() as u32);
        OpStart {
            serial: made.serial,
            hash: stable_hash(&[&descriptor.to_bytes()]),
            descriptor,
            group: Arc::clone(&self.group),
            program: Arc::clone(&self.program),
            memory: made.memory,
            mix: Default::default(),
            pairs: Default::default(),
            then: None,
            counts: vec![],
            weight: self.weight(op),
            user: None,
            tensor: None,
            result: result_of(&op.kind, &self.shape, me, world),
            started: made.now,
            deadline: made.now.saturating_add(made.timeout),
            warn_at: made.now.saturating_add(made.warn_after),
            tolerant: false,
            members: None,
            touched: false,
            completion: made.completion,
        }
    }

    /// Elements of scratch that its steps need; none where they are not carried out here.
    fn scratch_len(&self) -> u64 {
        match fused::reads_where_it_lies(&self.choice) {
            true => self.program.plan.scratch_len,
            false => 0,
        }
    }

    /// Takes the lane's next number, under the engine's lock.
    pub(crate) fn begin(&self, op: &Op, made: Made) -> (u64, OpStart) {
        // With the boards in hand: nobody says on them that all before a later number is over while this one has not begun.
        let mut lines = self.stream.lines();
        let seq = self.clock.take();
        lines.begin(seq);
        drop(lines);
        (seq, self.start(op, seq, made))
    }

    /// Staging memory for an operation, where it goes that way and there is some.
    fn staged(&self, op: &OpState) -> Option<Box<Staged>> {
        let layout = self.layout.as_ref().filter(|l| l.fits(&op.memory))?;
        let folds = Folds {
            reduce: self.choice.reduce,
            how: op.how(),
        };
        let (shared, name) = (self.stream.shared(), fused::name_of(op.id));
        let staged = Staged::new(layout, &self.rooms, shared, &self.group, name, folds);
        staged.map(Box::new)
    }

    /// What counts of an operation's weight.
    fn weight(&self, op: &Op) -> Weight {
        match self.choice.reduce {
            Reduce::Mean => op.weight,
            _ => Weight::ONE,
        }
    }

    /// The machine of an operation that has a number; `posted`: its part has been shown already.
    pub(crate) fn local(self: &Arc<Self>, op: &Op, seq: u64, posted: bool) -> Box<Local> {
        Box::new(Local {
            decision: Arc::clone(self),
            op: op.clone(),
            weight: self.weight(op),
            seq,
            stage: Stage::Meets,
            posted,
            record: None,
            staged: None,
            noted: 0,
            disputed: false,
        })
    }
}

/// What is new with each operation.
pub(crate) struct Made {
    pub(crate) serial: u64,
    pub(crate) memory: OpMemory,
    pub(crate) now: Duration,
    pub(crate) timeout: Duration,
    pub(crate) warn_after: Duration,
    pub(crate) completion: Arc<Completion>,
}

impl Local {
    /// Whether nobody can have touched another's memory, since not all have met.
    pub(crate) fn meets(&self) -> bool {
        self.stage == Stage::Meets
    }

    /// Members that are awaited, as group ranks, ascending.
    pub(crate) fn awaited(&self) -> Vec<Rank> {
        if self.stage == Stage::Staged {
            return self.staged.as_ref().map_or_else(Vec::new, |s| s.awaited());
        }
        let mut lines = self.decision.stream.lines();
        let (me, world) = (self.me(), self.decision.group.world_ranks.len());
        let members = (0..world).filter(|m| *m != me);
        let open = members.filter(|m| match self.stage {
            Stage::Meets => lines.seen(*m, self.seq, self.decision.hash) == Seen::NotYet,
            Stage::Runs(_) | Stage::Staged => false,
            Stage::Leaves => !lines.is_through(*m, self.seq),
        });
        open.map(|m| Rank(m as u32)).collect()
    }

    /// Members that have not been shown what they wait for.
    pub(crate) fn unsent(&self) -> Vec<Rank> {
        let (me, world) = (self.me(), self.decision.group.world_ranks.len());
        let open = !self.posted || matches!(self.stage, Stage::Runs(_) | Stage::Staged);
        let members = (0..world).filter(|m| open && *m != me);
        members.map(|m| Rank(m as u32)).collect()
    }

    fn me(&self) -> usize {
        self.decision.group.rank.idx()
    }

    /// Does what can be done without waiting, of computing up to about `budget` bytes.
    pub(crate) fn advance(&mut self, op: &mut OpState, budget: u64) -> Step {
        let decision = Arc::clone(&self.decision);
        let mut lines = decision.stream.lines();
        let mut moved = false;
        if !self.posted {
            if lines.is_never() {
                return Step::Never;
            }
            if !lines.may_post(self.seq) {
                return Step::Waits;
            }
            if let Err(error) = self.post(&mut lines, op) {
                return Step::Broken(error);
            }
            moved = true;
        }
        let step = match self.stage {
            Stage::Meets => self.meet(&mut lines, op),
            Stage::Runs(next) => {
                // Others may look at the boards meanwhile.
                drop(lines);
                let step = self.run(op, next, budget);
                lines = decision.stream.lines();
                step
            }
            Stage::Staged => {
                drop(lines);
                let step = self.run_staged(op, budget);
                lines = decision.stream.lines();
                match step {
                    Step::Waits if self.has_been_given_up(&mut lines) => Step::GaveUp,
                    step => step,
                }
            }
            Stage::Leaves => Step::Waits,
        };
        match step {
            Step::Waits if self.stage == Stage::Leaves => match self.leave(&mut lines) {
                Step::Waits if moved => Step::Moved,
                step => step,
            },
            Step::Waits if moved => Step::Moved,
            step => step,
        }
    }

    fn post(&mut self, lines: &mut Lines<'_>, op: &mut OpState) -> Result<(), Error> {
        let key = (self.seq, self.decision.hash);
        match &self.decision.small {
            Some(small) => small.post(lines, key, &op.memory, self.weight),
            None => {
                let d = &self.decision;
                let shared = d.stream.shared();
                let mut record = fused::record(&d.choice, &mut op.memory, &d.group, Some(shared));
                record.set_weight(self.weight);
                self.staged = d.staged(op);
                if let Some(staged) = &mut self.staged {
                    if !record.mapped {
                        staged.prefill(&op.memory)?;
                    }
                    record.set_staging(staged.record());
                }
                let words = record.to_words();
                lines.post(key.0, key.1, [bytes_of(&words[..]), &[]]);
                // The others may be at it from now on.
                op.touched |= record.mapped && op.descriptor.kind == OpKind::AllReduce;
                self.record = Some(record);
            }
        }
        self.posted = true;
        Ok(())
    }

    fn meet(&mut self, lines: &mut Lines<'_>, op: &mut OpState) -> Step {
        let world = self.decision.group.world_ranks.len();
        for member in (0..world).filter(|m| *m != self.me()) {
            match lines.seen(member, self.seq, self.decision.hash) {
                Seen::There => {}
                Seen::NotYet => return Step::Waits,
                Seen::Other => return Step::Other,
                Seen::GaveUp => return Step::GaveUp,
                Seen::Never => return Step::Never,
            }
        }
        if let Some(small) = &self.decision.small {
            return match small.take(lines, self.seq, &mut op.memory, self.weight) {
                Some(total) => {
                    if let Some(slot) = self.decision.program.plan.total {
                        op.set_slot(slot, total.bits());
                    }
                    Step::Done
                }
                None => Step::Overflow,
            };
        }
        let records: Option<Vec<Record>> = (0..world)
            .map(|member| match member == self.me() {
                true => self.record,
                false => {
                    let mut words = [0u64; Record::WORDS];
                    let out = bytes_of_mut(&mut words[..]);
                    lines.read(member, self.seq, 0, out);
                    Record::of_words(&words)
                }
            })
            .collect();
        match records {
            Some(records) if records.iter().all(|r| r.mapped) => {
                let shared = Arc::clone(self.decision.stream.shared());
                op.members = Some(Box::new(Members::new(shared, op.id, records)));
                self.stage = Stage::Runs(0);
                Step::Moved
            }
            Some(records) => self.meet_staged(op, &records),
            None => Step::NotMapped,
        }
    }

    /// Somebody's memory is ordinary: through staging memory, where all have some.
    fn meet_staged(&mut self, op: &mut OpState, records: &[Record]) -> Step {
        let members: SmallVec<[Member; 16]> = records.iter().map(|r| r.member()).collect();
        let runs = self.staged.as_deref_mut().filter(|s| s.can_run(&members));
        let Some(staged) = runs else {
            return Step::NotMapped;
        };
        if let Some(slot) = self.decision.program.plan.total {
            let mut weights = members.iter().map(|m| m.weight.bits());
            match weights.try_fold(0u64, |n, w| n.checked_add(w)) {
                Some(total) => op.set_slot(slot, total),
                None => return Step::Overflow,
            }
        }
        staged.met(&members);
        self.stage = Stage::Staged;
        Step::Moved
    }

    fn run_staged(&mut self, op: &mut OpState, budget: u64) -> Step {
        let Some(staged) = &mut self.staged else {
            return Step::Broken(Error::internal("a staged operation without staging memory"));
        };
        op.touched |= staged.writes();
        match staged.advance(&mut op.memory, budget.min(STAGED)) {
            Ok(Progress::Moved) => Step::Moved,
            Ok(Progress::Waits) => Step::Waits,
            Ok(Progress::Void) => Step::GaveUp,
            Ok(Progress::Done) => {
                if let Some(staged) = self.staged.take() {
                    staged.finish();
                }
                Step::Done
            }
            Err(error) => Step::Broken(error),
        }
    }

    fn has_been_given_up(&self, lines: &mut Lines<'_>) -> bool {
        let (me, world) = (self.me(), self.decision.group.world_ranks.len());
        (0..world)
            .filter(|m| *m != me)
            .any(|member| lines.seen(member, self.seq, self.decision.hash) == Seen::GaveUp)
    }

    fn run(&mut self, op: &mut OpState, next: u32, budget: u64) -> Step {
        if op.is_void() {
            // Nothing that is read counts any more.
            return Step::GaveUp;
        }
        let program = Arc::clone(&self.decision.program);
        let mut cost = 0;
        for step in next..program.steps.len() as u32 {
            match program.steps[step as usize].action {
                Action::Recv { from, .. } => {
                    // It brings a weight alone, which has come with the record.
                    let weight = op.members.as_ref().map_or(0, |m| m.weight(from));
                    op.open(step, weight);
                    if !op.settle(step) {
                        return Step::Overflow;
                    }
                }
                Action::Send { .. } => {}
                _ if cost >= budget => {
                    self.stage = Stage::Runs(step);
                    return Step::Moved;
                }
                _ => {
                    cost += op.cost(step).max(1);
                    if !op.compute(step) {
                        return Step::Overflow;
                    }
                    if let Some(error) = op.broken.clone() {
                        return Step::Broken(error);
                    }
                    if op.is_void() {
                        return Step::GaveUp;
                    }
                }
            }
        }
        self.stage = Stage::Leaves;
        self.decision.stream.lines().go_through(self.seq);
        Step::Moved
    }

    fn leave(&mut self, lines: &mut Lines<'_>) -> Step {
        let world = self.decision.group.world_ranks.len();
        for member in (0..world).filter(|m| *m != self.me()) {
            if !lines.is_through(member, self.seq) {
                return match lines.seen(member, self.seq, self.decision.hash) {
                    Seen::GaveUp => Step::GaveUp,
                    _ => Step::Waits,
                };
            }
        }
        Step::Done
    }

    /// Whether others may be at this rank's memory, and whether they may write to it.
    pub(crate) fn is_exposed(&self) -> bool {
        self.posted && (self.staged.is_some() || self.record.is_some_and(|r| r.mapped))
    }

    /// Whether others may be writing to what this rank gets.
    pub(crate) fn is_written(&self) -> bool {
        self.stage != Stage::Staged && self.record.is_some_and(|r| r.mapped)
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.decision.stream
    }

    /// Whoever comes from now on learns that it has failed here.
    pub(crate) fn give_up(&self) {
        self.decision.stream.lines().give_up(self.seq);
    }

    /// It is over, however.
    pub(crate) fn end(&self) {
        self.decision.stream.lines().end(self.seq, true);
    }
}

/// Operations of the engine's that are on boards.
#[derive(Default)]
pub(crate) struct Locals {
    /// Staging memory.
    pub(crate) rooms: Arc<Rooms>,
    /// Place and serial number, the most urgent first.
    flying: Vec<(usize, u64)>,
    streams: HashMap<(u64, u32), Option<Arc<Stream>>>,
    /// Threads that sleep, or are about to.
    sleepers: usize,
    /// Boards that say so.
    armed: Vec<Arc<Stream>>,
    /// Ranks of the job that are to be woken.
    pub(crate) nudges: SmallVec<[Rank; 4]>,
}

impl State {
    /// Whether an operation goes by boards, and how; the same on every rank.
    pub(crate) fn decide(
        &mut self,
        op: &Op,
        group: &Arc<GroupInfo>,
        places: &Places,
        (choice, program): (&Choice, &Arc<Program>),
        shape: &Shape,
    ) -> Option<Arc<Decision>> {
        let world = group.world_ranks.len();
        let fits = self.config.fusion && world > 1 && choice.identity == Identity::Next;
        if !fits || choice.extent.discover {
            return None;
        }
        let boards = choice.algorithm == Algorithm::Boards;
        if !(boards || fused::is_fused(choice, program) && program.is_memory_only()) {
            return None;
        }
        let stream = self.stream(group, op.lane.0)?;
        let (id, lane) = (group.id, op.lane.0);
        let clock = Arc::clone(&self.lanes.entry((id, lane)).or_default().clock);
        let id = OpId {
            group: id,
            lane,
            class: choice.identity.class(),
            seq: 0,
        };
        let descriptor = choice.descriptor(id, op, group, shape.dtype);
        let small = match choice.algorithm {
            Algorithm::Staged => None,
            _ => Small::of(op, choice, group, shape).map(Arc::new),
        };
        if small.is_none() && !fused::is_fused(choice, program) {
            return None;
        }
        let layout = Layout::of(&choice.request, choice.kind, shape.dtype.size() as u64);
        // Ranks that take turns on a processor have its cache in common.
        let cache = match self.config.model().crowded {
            true => 0,
            false => writing::own_cache(),
        };
        Some(Arc::new(Decision {
            hash: stable_hash(&[&descriptor.to_bytes()]),
            descriptor,
            program: Arc::clone(program),
            choice: choice.alike(),
            places: places.clone(),
            shape: *shape,
            layout: layout.map(|layout| Arc::new(layout.with_cache(cache))),
            rooms: Arc::clone(&self.locals.rooms),
            small,
            stream,
            clock,
            group: Arc::clone(group),
        }))
    }

    fn stream(&mut self, group: &Arc<GroupInfo>, lane: u32) -> Option<Arc<Stream>> {
        let shared = self.shared.as_ref()?;
        let streams = &mut self.locals.streams;
        let stream = streams.entry((group.id, lane)).or_insert_with(|| {
            let name = stable_hash(&[b"board", &group.id.to_le_bytes(), &lane.to_le_bytes()]);
            Stream::open(shared, group, name).map(Arc::new)
        });
        let stream = stream.clone()?;
        if stream.lines().is_never() {
            streams.insert((group.id, lane), None);
            return None;
        }
        Some(stream)
    }

    /// Whether nothing that the engine knows stands in the way of a lane's next operation.
    pub(crate) fn is_calm(&self, group: &GroupInfo, lane: u32) -> bool {
        let sticky = self.lanes.get(&(group.id, lane));
        let here = |rank: &Rank| self.down.get(rank.idx()).is_some_and(Option::is_none);
        self.closed.is_none()
            && sticky.is_none_or(|lane| lane.sticky.is_none())
            && !self.poisoned.contains_key(&group.id)
            && self.late.get(&group.id).is_none_or(|late| late.is_empty())
            && group.world_ranks.iter().all(here)
            && !self.troubles.has_failed(group.id, lane)
    }

    /// What this rank hears of may stand in the way of operations that the engine is not asked about.
    pub(crate) fn alarm(&self) {
        // Release: who sees the number looks at the state that it is about.
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Puts an operation into flight that has a board.
    pub(crate) fn start_local(&mut self, mut s: OpStart, local: Box<Local>) {
        let plan = &s.program.plan;
        let dtype = plan.kind.scratch_type(s.memory.shape().dtype);
        let len = local.decision.scratch_len();
        let scratch = self.take_scratch(len, dtype.size());
        s.memory.attach_scratch(scratch, len, dtype);
        let mut op = Box::new(OpState::new(s));
        op.local = Some(local);
        self.enqueue(op);
    }

    /// An operation with a board is in flight.
    pub(crate) fn fly(&mut self, idx: usize, serial: u64) {
        let priority = |idx: usize| {
            let op = self.ops[idx].as_deref();
            op.map_or(0, |op| op.descriptor.priority)
        };
        let mine = priority(idx);
        let flying = &self.locals.flying;
        let at = flying.partition_point(|(other, _)| priority(*other) >= mine);
        self.locals.flying.insert(at, (idx, serial));
        if self.locals.sleepers > 0 {
            self.arm_board(idx);
        }
        self.poll_local(idx);
        // Who has shown its part before may not have looked who sleeps.
        self.look_who_sleeps(idx);
    }

    fn look_who_sleeps(&mut self, idx: usize) {
        let local = self.ops[idx].as_deref().and_then(|op| op.local.as_deref());
        if let Some(local) = local {
            let stream = Arc::clone(&local.decision.stream);
            self.nudge_sleepers(&stream);
        }
    }

    pub(crate) fn nudge_sleepers(&mut self, stream: &Stream) {
        for rank in stream.lines().sleepers() {
            if !self.locals.nudges.contains(&rank) {
                self.locals.nudges.push(rank);
            }
        }
    }

    /// Gives all operations that have a board a turn. Returns how many of them got on.
    pub(crate) fn poll_locals(&mut self) -> u64 {
        let mut n = 0;
        let mut at = 0;
        while let Some(&(idx, serial)) = self.locals.flying.get(at) {
            let there = self.op(idx, serial).is_some_and(|op| op.local.is_some());
            if !there {
                self.locals.flying.remove(at);
                continue;
            }
            n += self.poll_local(idx);
            at += 1;
        }
        n
    }

    /// Gives an operation a turn. Returns whether it got on.
    pub(crate) fn poll_local(&mut self, idx: usize) -> u64 {
        let budget = self.config.slice_bytes.max(1);
        let Some(op) = self.ops.get_mut(idx).and_then(Option::as_deref_mut) else {
            return 0;
        };
        let Some(mut local) = op.local.take() else {
            return 0;
        };
        let step = match op.broken.clone() {
            Some(error) => Step::Broken(error),
            None => local.advance(op, budget),
        };
        let (serial, stream) = (op.serial, Arc::clone(&local.decision.stream));
        let disputes = matches!(step, Step::Other) && !std::mem::replace(&mut local.disputed, true);
        op.local = Some(local);
        self.note_arrivals(idx);
        match step {
            Step::Waits => {
                self.look_who_left(idx);
                return 0;
            }
            Step::Moved => self.nudge_sleepers(&stream),
            Step::Done => self.complete(idx),
            Step::Other if disputes => self.dispute(idx),
            Step::Other => return 0,
            Step::GaveUp => {
                self.peer_gave_up(idx);
                return 0;
            }
            Step::Never => self.meet_by_messages(idx),
            Step::NotMapped => self.not_mapped(idx),
            Step::Overflow => {
                self.hold(idx);
                self.overflow(idx, serial);
            }
            Step::Broken(error) => self.later.push_back(Later::Fail(idx, serial, error)),
        }
        1
    }

    /// It fails for sure: nothing more is done for it.
    fn hold(&mut self, idx: usize) {
        if let Some(op) = self.ops[idx].as_deref_mut() {
            let error = || Error::internal("the sum of weights is out of range");
            op.broken.get_or_insert_with(error);
        }
    }

    /// Tells the flight recorder whose word has come.
    fn note_arrivals(&mut self, idx: usize) {
        let Some(op) = self.ops[idx].as_deref_mut() else {
            return;
        };
        let Some(mut local) = op.local.take() else {
            return;
        };
        if op.ticket.is_some() && op.group.world_ranks.len() <= 64 {
            let mut lines = local.decision.stream.lines();
            for member in 0..op.group.world_ranks.len() {
                let bit = 1 << member;
                if local.noted & bit == 0
                    && member != op.group.rank.idx()
                    && lines.seen(member, local.seq, local.decision.hash) == Seen::There
                {
                    local.noted |= bit;
                    self.flight.arrived(op, Rank(member as u32), 0);
                }
            }
        }
        op.local = Some(local);
    }

    /// Who has left and has not shown its part will not come.
    fn look_who_left(&mut self, idx: usize) {
        if self.down.iter().all(Option::is_none) {
            return;
        }
        let Some(op) = self.ops[idx].as_deref() else {
            return;
        };
        let (serial, local) = (op.serial, op.local.as_deref());
        let awaited = local.map_or_else(Vec::new, Local::awaited);
        let world: SmallVec<[Rank; 4]> = awaited.iter().map(|r| op.world_rank(*r)).collect();
        for peer in world {
            if let Some(Down::Left) = self.down[peer.idx()] {
                let how = Down::Left;
                return self.transfer_failed(idx, serial, peer, TransportError::Down { peer, how });
            }
        }
    }

    /// Before a thread sleeps: peers are told to wake it. `true`: there is something to do already.
    pub(crate) fn arm_boards(&mut self) -> bool {
        self.locals.sleepers += 1;
        for i in 0..self.locals.flying.len() {
            self.arm_board(self.locals.flying[i].0);
        }
        if self.locals.armed.is_empty() {
            return false;
        }
        self.poll_locals() > 0
    }

    /// An operation's peers are told to wake whoever sleeps here.
    fn arm_board(&mut self, idx: usize) {
        let local = self.ops[idx].as_deref().and_then(|op| op.local.as_deref());
        let Some(stream) = local.map(|local| &local.decision.stream) else {
            return;
        };
        if !self.locals.armed.iter().any(|s| Arc::ptr_eq(s, stream)) {
            stream.arm();
            self.locals.armed.push(Arc::clone(stream));
        }
    }

    /// After it.
    pub(crate) fn disarm_boards(&mut self) {
        self.locals.sleepers = self.locals.sleepers.saturating_sub(1);
        if self.locals.sleepers == 0 {
            for stream in self.locals.armed.drain(..) {
                stream.disarm();
            }
        }
    }

    /// Not everybody's memory is mapped: the operation itself goes by messages, under the same number, with the same bits.
    fn not_mapped(&mut self, idx: usize) {
        self.follow(idx, |state, op, decision, first| {
            let (places, shape) = (&decision.places, &decision.shape);
            let choice = choose_plain(op, &first.group, places, shape, &state.config)?;
            let program = state
                .programs
                .find(&choice.request)
                .map_err(|e| plan_error(choice.kind.name(), &e))?;
            let id = data_id(first.id);
            Ok(Followed {
                descriptor: choice.descriptor(id, op, &first.group, shape.dtype),
                program,
                meeting: None,
            })
        });
    }

    /// Somebody can have no board: all meet by messages, under the same number.
    fn meet_by_messages(&mut self, idx: usize) {
        self.follow(idx, |state, op, decision, first| {
            let (places, shape) = (&decision.places, &decision.shape);
            let choice = choose(op, &first.group, places, shape, &state.config)?;
            let name = choice.kind.name();
            let descriptor = first.descriptor;
            let data = Arc::clone(&decision.program);
            if !fused::is_fused(&choice, &data) {
                return Ok(Followed {
                    descriptor,
                    program: data,
                    meeting: None,
                });
            }
            let program = state
                .programs
                .find(&fused::meeting(&choice))
                .map_err(|e| plan_error(name, &e))?;
            let shared = state.shared.as_ref();
            let (result, group) = (first.result, &first.group);
            let meeting = fused::prepare(choice, data, result, &mut first.memory, group, shared)?;
            Ok(Followed {
                descriptor,
                program,
                meeting: Some(meeting),
            })
        });
    }

    /// An operation leaves its board, and another one takes its place.
    fn follow(
        &mut self,
        idx: usize,
        plan: impl FnOnce(&mut State, &Op, &Decision, &mut OpState) -> Result<Followed, Error>,
    ) {
        let Some(mut first) = self.remove(idx) else {
            return;
        };
        let Some(local) = first.local.take() else {
            return;
        };
        self.flight.done(&first);
        let Followed {
            descriptor,
            program,
            meeting,
        } = match plan(self, &local.op, &local.decision, &mut first) {
            Ok(followed) => followed,
            Err(error) => {
                // The others are on their way to it.
                let blame = Blame::Other(error.to_string());
                let word = Word::Failed(first.id, first.all_peers(), blame);
                control_word(&mut self.later, word);
                return self.hand_back(first, Err(error));
            }
        };
        if descriptor.id != first.id {
            self.troubles.over(first.descriptor, true);
        }
        let first = *first;
        let (mut memory, mut result, mut touched) = (first.memory, first.result, false);
        let then = meeting.map(|(records, fused)| {
            result = None;
            touched = fused.is_mapped() && descriptor.kind == OpKind::AllReduce;
            Box::new(Then {
                op: local.op.clone(),
                memory: std::mem::replace(&mut memory, records),
                places: local.decision.places.clone(),
                fused: Some(fused),
            })
        });
        let serial = self.next_serial();
        self.start(OpStart {
            serial,
            hash: stable_hash(&[&descriptor.to_bytes()]),
            descriptor,
            group: first.group,
            program,
            memory,
            mix: Default::default(),
            pairs: Default::default(),
            then,
            counts: vec![],
            weight: local.weight,
            user: None,
            tensor: None,
            result,
            started: first.started,
            deadline: first.deadline,
            warn_at: first.warn_at.unwrap_or(first.deadline),
            tolerant: false,
            members: None,
            touched,
            completion: first.completion,
        });
    }
}

/// What an operation goes on as.
struct Followed {
    descriptor: Descriptor,
    program: Arc<Program>,
    /// The memory of the meeting, and what follows it.
    meeting: Option<(OpMemory, Box<fused::Fused>)>,
}
