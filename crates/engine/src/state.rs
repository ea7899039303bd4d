//! The engine's state: operations in flight, lanes, groups, peers. A state machine; the threads are in `drive`.
//!
//! Transports and the control plane report through [`LinkSink`] and [`ControlView`]; whatever follows from a report and needs the network is queued and done after the call ([`State::settle`]).

use crate::{
    config::EngineConfig,
    discover::data_id,
    op::{OpState, Phase, Status},
    program::Programs,
    protocol::{Blame, Head, Word},
    raw_memory::OpMemory,
    record::{Record, record},
    sync::Arc,
    trouble::Troubles,
    verdict::blame_of,
};
use gaggle_collectives::Action;
use gaggle_core::{
    Control, Descriptor, Dir, Done, Down, Error, Finished, MsgKey, OpId, Rank, Region, Transfer,
    Transport, TransportError, XferId,
};
use std::{
    collections::{HashMap, VecDeque},
    task::Waker,
    time::Duration,
};

/// What cannot be done from within a report.
pub(crate) enum Later {
    Fail(usize, u64, Error),
    Word(Word),
    DeclareLost(Rank, String),
    Forget(OpId),
}

/// Code that is not ours, which must not run under the engine's lock: it may come back to the engine.
pub(crate) enum After {
    /// A task's waker.
    Wake(Waker),
    /// Memory that nobody asked back; its owner may do anything when it is dropped.
    Drop(Region),
}

impl After {
    pub(crate) fn run(self) {
        match self {
            After::Wake(waker) => waker.wake(),
            After::Drop(region) => drop(region),
        }
    }
}

#[derive(Default)]
pub(crate) struct LaneState {
    pub(crate) next_seq: u64,
    /// Largest round started.
    pub(crate) last_round: Option<u64>,
    /// Error of a detached operation, for the next one.
    pub(crate) sticky: Option<Error>,
    /// What came to light of an operation that had gone well: the next one reports it.
    pub(crate) late: Option<(OpId, Late)>,
}

/// What is wrong with an operation that has gone well on this rank.
pub(crate) enum Late {
    /// Others called something else than this.
    Disputed(Descriptor),
    /// It failed elsewhere.
    Blamed(Blame),
}

pub(crate) struct State {
    pub(crate) me: Rank,
    pub(crate) config: EngineConfig,
    /// Which link reaches each world rank.
    pub(crate) route: Vec<Option<u8>>,
    pub(crate) programs: Programs,
    pub(crate) ops: Vec<Option<Box<OpState>>>,
    pub(crate) free: Vec<usize>,
    pub(crate) by_id: HashMap<OpId, usize>,
    pub(crate) xfers: HashMap<(u8, XferId), (usize, u32)>,
    pub(crate) lanes: HashMap<(u64, u32), LaneState>,
    /// Groups that were aborted: by which rank of the job, and why.
    pub(crate) poisoned: HashMap<u64, (Rank, String)>,
    pub(crate) down: Vec<Option<Down>>,
    /// Who has said goodbye on the control plane.
    pub(crate) goodbyes: Vec<bool>,
    /// Ranks of the job for whose sake this rank's latest operation failed.
    pub(crate) gave_up_on: Vec<Rank>,
    /// What each rank last said was the cause of a failure, and when it came.
    pub(crate) last_blame: Vec<Option<(Duration, Blame)>>,
    pub(crate) ready: VecDeque<(usize, u64, u32)>,
    pub(crate) later: VecDeque<Later>,
    /// Operations that peers have begun and this rank has not.
    pub(crate) early: HashMap<OpId, Vec<(Rank, Head)>>,
    /// How many heads that are.
    pub(crate) early_heads: usize,
    pub(crate) troubles: Troubles,
    pub(crate) serial: u64,
    pub(crate) scratch_pool: Vec<Vec<u64>>,
    pub(crate) record: Vec<Record>,
    /// Set for good when this engine is of no use any more.
    pub(crate) closed: Option<Error>,
    /// What is to be done once the lock is let go.
    pub(crate) after: Vec<After>,
    /// Whether an operation has ended since this was last looked at.
    pub(crate) completed: bool,
    pub(crate) now: Duration,
}

/// Early heads kept per operation and rank are few; this bounds what a babbling peer can make us keep.
pub(crate) const MAX_EARLY: usize = 4096;
/// Scratch buffers kept for reuse.
const MAX_POOL: usize = 16;

impl State {
    pub(crate) fn new(
        me: Rank,
        world: u32,
        config: EngineConfig,
        links: &[Box<dyn Transport>],
    ) -> State {
        let mut route = vec![None; world as usize];
        // The first transport that reaches a rank is the fastest: the caller gives them in that order.
        for (i, link) in links.iter().enumerate().rev() {
            for peer in link.peers() {
                if let Some(r) = route.get_mut(peer.idx()) {
                    *r = Some(i as u8);
                }
            }
        }
        State {
            me,
            config,
            route,
            programs: Programs::default(),
            ops: vec![],
            free: vec![],
            by_id: HashMap::new(),
            xfers: HashMap::new(),
            lanes: HashMap::new(),
            poisoned: HashMap::new(),
            down: vec![None; world as usize],
            goodbyes: vec![false; world as usize],
            last_blame: vec![None; world as usize],
            gave_up_on: vec![],
            ready: VecDeque::new(),
            later: VecDeque::new(),
            early: HashMap::new(),
            early_heads: 0,
            troubles: Troubles::default(),
            serial: 0,
            scratch_pool: vec![],
            record: vec![],
            closed: None,
            after: vec![],
            completed: false,
            now: Duration::ZERO,
        }
    }

    pub(crate) fn set_now(&mut self, now: Duration) {
        self.now = now;
    }

    pub(crate) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(crate) fn reaches(&self, world: Rank) -> bool {
        world == self.me || self.route.get(world.idx()).is_some_and(Option::is_some)
    }

    // ---- running --------------------------------------------------------------------------

    /// Runs what is ready and does what was put off. Returns how much that was.
    pub(crate) fn settle(&mut self, links: &[Box<dyn Transport>], control: &dyn Control) -> u64 {
        let mut n = 0;
        loop {
            if let Some((idx, serial, step)) = self.ready.pop_front() {
                n += 1;
                self.run_step(links, idx, serial, step);
            } else if let Some(later) = self.later.pop_front() {
                n += 1;
                match later {
                    Later::Fail(idx, serial, error) => self.fail(links, idx, serial, error),
                    Later::Word(word) => control.broadcast(&word.to_bytes()),
                    Later::DeclareLost(rank, why) => control.declare_lost(rank, &why),
                    Later::Forget(op) => {
                        for link in links {
                            link.forget(op);
                        }
                    }
                }
            } else {
                return n;
            }
        }
    }

    pub(crate) fn op(&mut self, idx: usize, serial: u64) -> Option<&mut OpState> {
        self.ops
            .get_mut(idx)?
            .as_deref_mut()
            .filter(|op| op.serial == serial)
    }

    fn run_step(&mut self, links: &[Box<dyn Transport>], idx: usize, serial: u64, step: u32) {
        let Some(op) = self.op(idx, serial) else {
            return;
        };
        let program = Arc::clone(&op.program);
        let (dir, peer, tag) = match &program.steps[step as usize].action {
            Action::Send { to, tag, .. } => (Dir::Send, *to, *tag),
            Action::Recv { from, tag, .. } => (Dir::Recv, *from, *tag),
            _ => {
                return if op.compute(step) {
                    self.step_over(idx, step);
                } else {
                    self.overflow(idx, serial);
                };
            }
        };
        let world = op.world_rank(peer);
        let (dtype, bytes) = op.wire(step);
        let mut head = Head::room();
        let mut head_len = 0;
        if dir == Dir::Send {
            let first = !std::mem::replace(&mut op.described[peer.idx()], true);
            let descriptor = first.then_some(op.descriptor);
            head_len = Head {
                hash: op.hash,
                weight: op.sent_weight(step),
                descriptor,
            }
            .write(&mut head);
        }
        let (key, priority, loan) = (
            MsgKey { op: op.id, tag },
            op.descriptor.priority,
            op.lendable(step),
        );
        let loan = loan
            .filter(|_| dir == Dir::Send)
            .map(|span| op.memory.lend(span));
        let Some(link) = self.route[world.idx()] else {
            let error = Error::internal(format!("no transport reaches world {world}"));
            return self.later.push_back(Later::Fail(idx, serial, error));
        };
        let transport = &links[link as usize];
        let posted = transport.post(Transfer {
            dir,
            peer: world,
            key,
            bytes,
            unit: dtype.size() as u32,
            priority,
            head: &head[..head_len],
            loan: loan.filter(|_| program.proven && transport.wants_loans()),
        });
        match posted {
            Ok(id) => {
                if let Some(op) = self.op(idx, serial) {
                    op.phase[step as usize] = Phase::Posted;
                    op.xfers[step as usize] = Some((link, id));
                    self.xfers.insert((link, id), (idx, step));
                }
            }
            Err(e) => self.transfer_failed(idx, serial, world, e),
        }
    }

    pub(crate) fn overflow(&mut self, idx: usize, serial: u64) {
        let error = Error::invalid("mean", "the sum of weights is 2³² or more");
        self.later.push_back(Later::Fail(idx, serial, error));
    }

    pub(crate) fn transfer_failed(
        &mut self,
        idx: usize,
        serial: u64,
        peer: Rank,
        e: TransportError,
    ) {
        let said_goodbye = self.goodbyes[peer.idx()];
        let Some(op) = self.op(idx, serial) else {
            return;
        };
        let name = op.descriptor.name();
        let error = match &e {
            TransportError::Down {
                how: Down::Left, ..
            } if !said_goodbye => {
                return self.suspect(idx, peer);
            }
            TransportError::Down { how, .. } => {
                let how = how.clone();
                let op = self.ops[idx].take();
                let error = op.as_ref().map(|op| match &how {
                    Down::Left => self.left_error(op, peer),
                    Down::Lost(_) => self.gone_error(op, peer, &how),
                });
                self.ops[idx] = op;
                error.unwrap_or_else(|| Error::internal(e.to_string()))
            }
            _ => Error::internal(format!("{name}: {e}")),
        };
        self.later.push_back(Later::Fail(idx, serial, error));
    }

    /// A peer has left although something of its is missing. Why, it has told the control plane before its goodbye there; so that comes first.
    fn suspect(&mut self, idx: usize, peer: Rank) {
        let (now, grace) = (self.now, self.config.grace);
        if let Some(op) = self.ops[idx].as_deref_mut()
            && op.suspect.is_none()
        {
            op.suspect = Some(peer);
            let until = op.deadline.min(now.saturating_add(grace));
            op.status = Status::Asking { until };
        }
    }

    /// The control plane has had a rank's last word.
    pub(crate) fn goodbye(&mut self, world: Rank) {
        let Some(said) = self.goodbyes.get_mut(world.idx()) else {
            return;
        };
        *said = true;
        for idx in 0..self.ops.len() {
            if let Some(op) = self.ops[idx].as_deref()
                && op.suspect == Some(world)
            {
                let error = self.left_error(op, world);
                self.later.push_back(Later::Fail(idx, op.serial, error));
            }
        }
    }

    /// A peer has ended the operation in the middle of a message. It knows why and says so over the control plane; only if nothing comes is there a verdict without it.
    pub(crate) fn peer_gave_up(&mut self, idx: usize) {
        let (now, grace) = (self.now, self.config.grace);
        if let Some(op) = self.ops[idx].as_deref_mut()
            && op.status == Status::Running
        {
            op.status = Status::Asking {
                until: op.deadline.min(now.saturating_add(grace)),
            };
            let (id, descriptor) = (op.id, op.descriptor);
            if self.troubles.ask(id, now, grace) {
                control_word(&mut self.later, Word::Query(id));
            }
            self.describe(id, descriptor);
        }
    }

    /// A step is over: what waited for it may run.
    pub(crate) fn step_over(&mut self, idx: usize, step: u32) {
        let Some(op) = self.ops[idx].as_deref_mut() else {
            return;
        };
        op.phase[step as usize] = Phase::Over;
        op.xfers[step as usize] = None;
        op.left -= 1;
        let program = Arc::clone(&op.program);
        if self.config.record {
            self.record.push(record(op, step));
        }
        for next in program.successors(step) {
            op.waits[*next as usize] -= 1;
            if op.waits[*next as usize] == 0 {
                self.ready.push_back((idx, op.serial, *next));
            }
        }
        if op.left == 0 {
            self.complete(idx);
        }
    }

    pub(crate) fn remove(&mut self, idx: usize) -> Option<Box<OpState>> {
        let op = self.ops.get_mut(idx)?.take()?;
        self.by_id.remove(&op.id);
        self.free.push(idx);
        self.completed = true;
        Some(op)
    }

    pub(crate) fn complete(&mut self, idx: usize) {
        let Some(op) = self.remove(idx) else {
            return;
        };
        self.troubles.over(op.descriptor, true);
        self.gave_up_on.clear();
        if op.then.is_some() {
            return self.second_phase(*op);
        }
        let mut done = Done::default();
        done.weight = op.total_weight();
        done.bytes_sent = op.bytes_sent;
        done.started = op.started;
        done.finished = self.now;
        done.codec = op.descriptor.codec;
        done.counts = op.counts.clone();
        let lane = self.lanes.get_mut(&(op.id.group, op.id.lane));
        let result = match lane.and_then(|lane| lane.late.take()) {
            Some((id, late)) => Err(self.late_error(&op, id, &late)),
            None => Ok(done),
        };
        self.hand_back(*op, result);
    }

    /// Keeps the scratch; gives back the regions that were written and read.
    pub(crate) fn recycle(&mut self, memory: OpMemory) -> (Option<Region>, Option<Region>) {
        let (scratch, io, input) = memory.into_parts();
        if !scratch.is_empty() && self.scratch_pool.len() < MAX_POOL {
            self.scratch_pool.push(scratch);
        }
        (io, input)
    }

    pub(crate) fn hand_back(&mut self, op: OpState, result: Result<Done, Error>) {
        let lane = (op.id.group, op.id.lane);
        let (mut io, mut input) = self.recycle(op.memory);
        if let Some(then) = op.then {
            // The memory was the engine's own, for counts; the caller's is that of what will not follow.
            (io, input) = self.recycle(then.memory);
        }
        let (waker, unwanted) = op.completion.set(Finished { io, input, result });
        self.after.extend(waker.map(After::Wake));
        if let Some(Finished { io, input, result }) = unwanted {
            self.after.extend(io.map(After::Drop));
            self.after.extend(input.map(After::Drop));
            if let Err(error) = result {
                self.lanes.entry(lane).or_default().sticky = Some(error);
            }
        }
    }

    /// A detached handle's error, which came before it was dropped.
    pub(crate) fn set_sticky(&mut self, group: u64, lane: u32, error: Error) {
        self.lanes.entry((group, lane)).or_default().sticky = Some(error);
    }

    /// Ends an operation with an error: quiesces its transfers, then hands the memory back.
    fn fail(&mut self, links: &[Box<dyn Transport>], idx: usize, serial: u64, error: Error) {
        if self.op(idx, serial).is_none() {
            return;
        }
        let Some(op) = self.remove(idx) else {
            return;
        };
        for (link, id) in op.xfers.iter().flatten() {
            links[*link as usize].cancel(*id);
            self.xfers.remove(&(*link, *id));
        }
        for link in links {
            link.forget(op.id);
        }
        self.take_early(&op.id);
        self.troubles.over(op.descriptor, false);
        let data = op.then.is_some().then(|| data_id(op.id));
        if let Some(id) = data {
            self.forget_data(id);
        }
        // The same cause everywhere; in a neighbour round, for those who wait for this rank.
        if let Some(blame) = blame_of(&op, &error) {
            self.gave_up_on = match &blame {
                Blame::Timeout(ranks) => ranks.clone(),
                Blame::Lost(rank, _) => vec![*rank],
                _ => vec![],
            };
            let unserved = match op.id.class {
                c if c.is_collective() => vec![],
                _ => op.unserved(),
            };
            if let Some(id) = data {
                // Who knows all counts already waits for this rank's data.
                let word = Word::Failed(id, op.all_peers(), blame.clone());
                control_word(&mut self.later, word);
            }
            control_word(&mut self.later, Word::Failed(op.id, unserved, blame));
        }
        self.hand_back(*op, Err(error));
    }

    /// Ends everything, for good.
    pub(crate) fn close(
        &mut self,
        links: &[Box<dyn Transport>],
        control: &dyn Control,
        error: Error,
    ) {
        self.closed.get_or_insert(error.clone());
        for idx in 0..self.ops.len() {
            if let Some(serial) = self.ops[idx].as_ref().map(|op| op.serial) {
                self.fail(links, idx, serial, error.clone());
            }
        }
        self.ready.clear();
        self.settle(links, control);
    }

    // ---- time -----------------------------------------------------------------------------

    /// Looks at the clock. Returns how many things were due.
    pub(crate) fn tick(&mut self) -> u64 {
        let now = self.now;
        let mut n = 0;
        for idx in 0..self.ops.len() {
            let Some(op) = self.ops[idx].as_deref_mut() else {
                continue;
            };
            if op.warn_at.is_some_and(|t| t <= now) {
                op.warn_at = None;
                n += 1;
                let awaited = op.awaited();
                let world: Vec<Rank> = awaited.iter().map(|r| op.world_rank(*r)).collect();
                let mut waiting_for = gaggle_core::name_ranks(&awaited);
                if world != awaited {
                    waiting_for += &format!(" (world {})", gaggle_core::name_ranks(&world));
                }
                let waited = now.saturating_sub(op.started);
                tracing::warn!(op = %op.descriptor.name(), %waiting_for, ?waited, "still waiting");
            }
            match op.status {
                Status::Running if op.deadline <= now => {
                    n += 1;
                    op.status = Status::Asking {
                        until: now.saturating_add(self.config.grace),
                    };
                    let (id, descriptor) = (op.id, op.descriptor);
                    // The answers go to everybody, so one question serves all.
                    if self.troubles.ask(id, now, self.config.grace) {
                        control_word(&mut self.later, Word::Query(id));
                    }
                    self.describe(id, descriptor);
                    self.try_verdict(idx, false);
                }
                Status::Asking { until } if until <= now => {
                    n += 1;
                    self.try_verdict(idx, true);
                }
                _ => {}
            }
        }
        n
    }

    /// When to look at the clock next.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        let ops = self.ops.iter().flatten();
        ops.map(|op| {
            let due = match op.status {
                Status::Running => op.deadline,
                Status::Asking { until } => until,
            };
            op.warn_at.map_or(due, |w| w.min(due))
        })
        .min()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.by_id.len()
    }
}

pub(crate) fn control_word(later: &mut VecDeque<Later>, word: Word) {
    later.push_back(Later::Word(word));
}
