//! The engine's state: operations in flight, lanes, groups, peers. A state machine; the threads are in `drive`.
//!
//! Transports and the control plane report through [`LinkSink`] and [`ControlView`]; whatever follows from a report and needs the network is queued and done after the call ([`State::settle`]).

use crate::{
    config::EngineConfig,
    copies::{self, Copied, Copies},
    discover::data_id,
    feedback::Residuals,
    flight::Flight,
    local::{LaneClock, Locals},
    op::{OpState, Phase, Status},
    program::Programs,
    protocol::{Blame, Head, Word},
    raw_memory::OpMemory,
    ready::{Item, Ready},
    rebuild::Rebuilds,
    record::{Record, record},
    sync::{Arc, AtomicU64, Weak},
    timers::{Alarm, Timers},
    trouble::Troubles,
    verdict::blame_of,
};
use foldhash::{HashMap, HashMapExt};
use gaggle_collectives::{Action, Span};
use gaggle_core::{
    Cause, Codec, Control, Descriptor, Dir, Done, Down, Error, Finished, GroupInfo, Loan, MsgKey,
    OpId, OpKind, Rank, Region, SharedMemory, Transfer, Transport, TransportError, UserReduction,
    XferId,
};
use smallvec::SmallVec;
use std::{collections::VecDeque, task::Waker, time::Duration};

/// What cannot be done from within a report.
pub(crate) enum Later {
    Fail(usize, u64, Error),
    /// An operation that tolerates it goes on without a rank of the job.
    Without(usize, u64, Rank),
    Word(Word),
    DeclareLost(Rank, String),
    /// The control plane has said how a rank went.
    Departed(Rank, Down),
    Forget(OpId),
}

/// Code that is not ours, which must not run under the engine's lock: it may come back to the engine.
pub(crate) enum After {
    /// A task's waker.
    Wake(Waker),
    /// Memory that nobody asked back; its owner may do anything when it is dropped.
    Drop(Region),
    /// A user's function, with whatever it has captured.
    Release(UserReduction),
}

impl After {
    pub(crate) fn run(self) {
        match self {
            After::Wake(waker) => waker.wake(),
            After::Drop(region) => drop(region),
            After::Release(function) => drop(function),
        }
    }
}

#[derive(Default)]
pub(crate) struct LaneState {
    /// Its numbers.
    pub(crate) clock: Arc<LaneClock>,
    /// Largest round started.
    pub(crate) last_round: Option<u64>,
    /// Error of a detached operation, for the next one.
    pub(crate) sticky: Option<Error>,
    /// Whose stream it is: of tagged messages the identity does not tell.
    pub(crate) group: Option<u64>,
}

/// Reports kept per group that nobody has fetched.
pub(crate) const MAX_LATE: usize = 16;

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
    /// What this rank and its peers have mapped of each other.
    pub(crate) shared: Option<Arc<dyn SharedMemory>>,
    /// Which link reaches each world rank.
    pub(crate) route: Vec<Option<u8>>,
    /// What this rank shows on boards, and sees there.
    pub(crate) locals: Locals,
    /// Counts what may stand in the way of operations: see [`State::alarm`].
    pub(crate) changes: Arc<AtomicU64>,
    /// What may be lent to each link.
    lends: Vec<Lends>,
    pub(crate) programs: Programs,
    pub(crate) ops: Vec<Option<Box<OpState>>>,
    pub(crate) free: Vec<usize>,
    pub(crate) by_id: HashMap<OpId, usize>,
    pub(crate) xfers: HashMap<(u8, XferId), (usize, u32)>,
    pub(crate) lanes: HashMap<(u64, u32), LaneState>,
    /// What came to light, by group, of operations that had gone well: the group's next one reports it.
    pub(crate) late: HashMap<u64, VecDeque<(OpId, Late)>>,
    /// Groups that were aborted: by which rank of the job, and why.
    ///
    /// The streams of tagged messages between two members have identities of their own, which are here as well.
    pub(crate) poisoned: HashMap<u64, (Rank, String)>,
    /// Groups that this rank has handles to, or operations of.
    pub(crate) groups: HashMap<u64, Weak<GroupInfo>>,
    pub(crate) down: Vec<Option<Down>>,
    /// Who has said goodbye on the control plane.
    pub(crate) goodbyes: Vec<bool>,
    /// Ranks of the job for whose sake this rank's latest operation failed.
    pub(crate) gave_up_on: Vec<Rank>,
    /// What each rank last said was the cause of a failure, and when it came.
    pub(crate) last_blame: Vec<Option<(Duration, OpId, Blame)>>,
    pub(crate) ready: Ready,
    pub(crate) timers: Timers,
    pub(crate) later: VecDeque<Later>,
    /// Operations that peers have begun and this rank has not.
    pub(crate) early: HashMap<OpId, Vec<(Rank, Head)>>,
    /// Lists for them that are used again.
    pub(crate) early_pool: Vec<Vec<(Rank, Head)>>,
    /// How many heads that are.
    pub(crate) early_heads: usize,
    pub(crate) troubles: Troubles,
    /// What codecs have lost.
    pub(crate) residuals: Residuals,
    /// Codecs that the cost model has declined, by operation: each is logged once.
    pub(crate) declined: Vec<(OpKind, Codec)>,
    pub(crate) serial: u64,
    pub(crate) scratch_pool: Vec<Vec<u64>>,
    /// How many groups of one name this rank has made.
    pub(crate) made: HashMap<u64, u32>,
    pub(crate) rebuilds: Rebuilds,
    pub(crate) record: Vec<Record>,
    pub(crate) flight: Flight,
    /// Set for good when this engine is of no use any more.
    pub(crate) closed: Option<Error>,
    /// What is to be done once the lock is let go.
    pub(crate) after: SmallVec<[After; 4]>,
    /// Whether an operation has ended since this was last looked at.
    pub(crate) completed: bool,
    pub(crate) now: Duration,
}

/// What may be lent to a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lends {
    Nothing,
    /// Where both ends are of one address space, and read in turn.
    All,
    /// Through mapped memory, where a rank that is late reads when it comes: not what is to go on without it.
    Strict,
}

impl Lends {
    fn of(link: &dyn Transport, config: &EngineConfig) -> Lends {
        match (link.wants_loans(), link.reads_ordinary()) {
            (false, _) => Lends::Nothing,
            (true, true) => Lends::All,
            (true, false) if config.fusion && config.model().mapped => Lends::Strict,
            (true, false) => Lends::Nothing,
        }
    }

    fn to(self, tolerant: bool) -> bool {
        self == Lends::All || (self == Lends::Strict && !tolerant)
    }
}

/// Early heads kept per operation and rank are few; this bounds what a babbling peer can make us keep.
pub(crate) const MAX_EARLY: usize = 4096;
/// Entries that tables which change with every operation have room for from the start.
const ROOM: usize = 1024;
/// Lists for early heads that are there from the start.
const EARLY_LISTS: usize = 32;
/// Shortest time in which others may answer.
const MIN_GRACE: Duration = Duration::from_millis(1);
/// Scratch buffers kept for reuse.
const MAX_POOL: usize = 16;

impl State {
    pub(crate) fn new(
        me: Rank,
        world: u32,
        mut config: EngineConfig,
        links: &[Box<dyn Transport>],
    ) -> State {
        // A verdict that is due again at once would be due for ever.
        config.grace = config.grace.max(MIN_GRACE);
        let mut route = vec![None; world as usize];
        // The first transport that reaches a rank is the fastest: the caller gives them in that order.
        for (i, link) in links.iter().enumerate().rev() {
            for peer in link.peers() {
                if let Some(r) = route.get_mut(peer.idx()) {
                    *r = Some(i as u8);
                }
            }
        }
        let lends = links
            .iter()
            .map(|link| Lends::of(&**link, &config))
            .collect();
        State {
            me,
            config,
            shared: links.iter().find_map(|link| link.shared()),
            route,
            locals: Locals::default(),
            changes: Arc::default(),
            lends,
            programs: Programs::default(),
            ops: vec![],
            free: vec![],
            // With room to spare, what is put in and taken out all the time allocates nothing.
            by_id: HashMap::with_capacity(ROOM),
            xfers: HashMap::with_capacity(ROOM),
            lanes: HashMap::new(),
            late: HashMap::new(),
            poisoned: HashMap::new(),
            groups: HashMap::new(),
            down: vec![None; world as usize],
            goodbyes: vec![false; world as usize],
            last_blame: vec![None; world as usize],
            gave_up_on: vec![],
            ready: Ready::default(),
            timers: Timers::default(),
            later: VecDeque::new(),
            early: HashMap::with_capacity(ROOM),
            early_pool: (0..EARLY_LISTS).map(|_| Vec::with_capacity(4)).collect(),
            early_heads: 0,
            troubles: Troubles::default(),
            residuals: Residuals::default(),
            declined: vec![],
            serial: 0,
            scratch_pool: vec![],
            made: HashMap::new(),
            rebuilds: Rebuilds::default(),
            record: vec![],
            flight: Flight::default(),
            closed: None,
            after: SmallVec::new(),
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

    /// Does what was put off and runs what is ready, by priority, up to about one slice of computing: then the transports get a turn, so that what is urgent may come in between. Returns how much that was.
    pub(crate) fn settle(&mut self, links: &[Box<dyn Transport>], control: &dyn Control) -> u64 {
        let mut n = 0;
        let mut budget = self.config.slice_bytes.max(1);
        loop {
            if let Some(later) = self.later.pop_front() {
                n += 1;
                match later {
                    Later::Fail(idx, serial, error) => self.fail(links, idx, serial, error),
                    Later::Without(idx, serial, world) => {
                        self.do_without(links, idx, serial, world);
                    }
                    Later::Word(word) => control.broadcast(&word.to_bytes()),
                    Later::DeclareLost(rank, why) => control.declare_lost(rank, &why),
                    Later::Departed(rank, how) => {
                        for link in links {
                            link.departed(rank, &how);
                        }
                    }
                    Later::Forget(op) => {
                        for link in links {
                            link.forget(op);
                        }
                    }
                }
                continue;
            }
            if budget == 0 && !self.ready.has_receive() {
                return n;
            }
            let Some(Item { idx, serial, step }) = self.ready.pick() else {
                return n;
            };
            n += 1;
            budget = budget.saturating_sub(self.run_step(links, idx, serial, step));
        }
    }

    /// A step waits for nothing but its turn.
    pub(crate) fn release(&mut self, idx: usize, step: u32) {
        let Some(op) = self.ops[idx].as_deref() else {
            return;
        };
        let serial = op.serial;
        let item = Item { idx, serial, step };
        match op.program.steps[step as usize].action {
            Action::Recv { .. } => self.ready.push_receive(item),
            _ => self.ready.push(op.descriptor.priority, item),
        }
    }

    pub(crate) fn op(&mut self, idx: usize, serial: u64) -> Option<&mut OpState> {
        self.ops
            .get_mut(idx)?
            .as_deref_mut()
            .filter(|op| op.serial == serial)
    }

    /// Runs a step. Returns about how many bytes it has computed.
    fn run_step(
        &mut self,
        links: &[Box<dyn Transport>],
        idx: usize,
        serial: u64,
        step: u32,
    ) -> u64 {
        let Some(op) = self.op(idx, serial).filter(|op| op.broken.is_none()) else {
            return 0;
        };
        let program = Arc::clone(&op.program);
        let (dir, peer, tag) = match &program.steps[step as usize].action {
            Action::Send { to, tag, .. } => (Dir::Send, *to, *tag),
            Action::Recv { from, tag, .. } => (Dir::Recv, *from, *tag),
            _ if op.puts_off(step) => return 0,
            _ => {
                let cost = op.cost(step);
                let computed = op.compute(step);
                let (n_read, transfers) = op.read_there(step);
                let held = op.holds(step, n_read);
                for (link, id) in transfers {
                    links[link as usize].taken(id);
                }
                let Some(op) = self.op(idx, serial) else {
                    return cost;
                };
                if let Some(error) = op.broken.clone() {
                    self.later.push_back(Later::Fail(idx, serial, error));
                } else if op.is_void() {
                    self.peer_gave_up(idx);
                } else if computed {
                    if !held {
                        self.step_over(idx, step);
                    }
                } else {
                    self.overflow(idx, serial);
                }
                return cost;
            }
        };
        if op.without.contains(&peer) {
            self.step_over(idx, step);
            return 0;
        }
        let world = op.world_rank(peer);
        let wire = op.wire(step);
        let tolerant = op.tolerant;
        let mut head = Head::room();
        let mut head_len = 0;
        let mut first = false;
        if dir == Dir::Send {
            first = !std::mem::replace(&mut op.described[peer.idx()], true);
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
        let sent = loan.filter(|_| dir == Dir::Send);
        let loan = sent.map(|span| op.memory.lend(span));
        let Some(link) = self.route[world.idx()] else {
            let error = Error::internal(format!("no transport reaches world {world}"));
            self.later.push_back(Later::Fail(idx, serial, error));
            return 0;
        };
        let transport = &links[link as usize];
        let lends = self.lends[link as usize];
        let mut loan = loan.filter(|_| program.proven && lends.to(tolerant));
        let mut cost = 0;
        if let (Some(span), Some(own), Lends::Strict) = (sent, loan, lends) {
            match self.copied(idx, step, (span, own)) {
                Copied::Lent(copy) => (loan, cost) = (Some(copy), wire.bytes),
                Copied::Wait => {
                    // Its head is written again.
                    if let Some(op) = self.op(idx, serial).filter(|_| first) {
                        op.described[peer.idx()] = false;
                    }
                    return 0;
                }
                Copied::Not => {}
            }
        }
        let copied = cost > 0;
        let posted = transport.post(Transfer {
            dir,
            peer: world,
            key,
            bytes: wire.bytes,
            unit: wire.unit,
            priority,
            head: &head[..head_len],
            loan,
        });
        match posted {
            Ok(id) => {
                if let Some(op) = self.op(idx, serial) {
                    op.phase[step as usize] = Phase::Posted;
                    op.xfers[step as usize] = Some((link, id));
                    if copied {
                        op.told.push(step);
                    }
                    self.xfers.insert((link, id), (idx, step));
                }
                if copied {
                    // What was copied may be replaced.
                    self.go_on_after(idx, step);
                }
            }
            Err(e) => {
                self.transfer_failed(idx, serial, world, e);
                // Whoever goes on without the peer passes over the step.
                if self.op(idx, serial).is_some_and(|op| op.tolerant) {
                    self.release(idx, step);
                }
            }
        }
        cost
    }

    /// What a neighbour is lent in place of ordinary memory.
    fn copied(&mut self, idx: usize, step: u32, (span, loan): (Span, Loan)) -> Copied {
        let (me, rooms) = (self.me, &self.locals.rooms);
        let (Some(shared), Some(op)) = (&self.shared, self.ops[idx].as_deref_mut()) else {
            return Copied::Not;
        };
        let averages = op.program.plan.kind == OpKind::Mix;
        let bytes = loan.len() as u64;
        let size = op.memory.shape().dtype.size() as u64;
        let all = op.program.plan.user_len.saturating_mul(size);
        let little = bytes < copies::LEAST || all <= copies::EARLY;
        if !averages || op.no_copies || little || shared.place(loan.start(), loan.len()).is_some() {
            return Copied::Not;
        }
        if op.copies.is_none() {
            // Slices differ by one element at most.
            op.copies = Copies::new(rooms, shared, me, bytes + 64);
            op.no_copies = op.copies.is_none();
        }
        match &mut op.copies {
            Some(copies) => copies.lend(step, span, &op.memory),
            None => Copied::Not,
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
        if op.tolerant && matches!(e, TransportError::Down { .. }) {
            return self.later.push_back(Later::Without(idx, serial, peer));
        }
        if matches!(e, TransportError::Misuse { .. }) && matches!(op.status, Status::Asking { .. })
        {
            // What came for this receive was of another call, and has been refused; the verdict is on its way.
            return self.dispute(idx);
        }
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
            self.rearm(idx);
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
            // Also past the deadline: its word comes a moment later than the mark that was seen.
            let until = now.saturating_add(grace);
            op.status = Status::Asking { until };
            let (id, descriptor) = (op.id, op.descriptor);
            self.rearm(idx);
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
        if matches!(program.steps[step as usize].action, Action::Recv { .. }) {
            op.receives_left -= 1;
        }
        let over = op.left == 0;
        let again = op.copies.as_mut().map(|copies| copies.over(step));
        let fold = op.confirmed(step);
        if !op.was_told(step) {
            self.go_on_after(idx, step);
        }
        if let Some(fold) = fold {
            // The last of what it has read: it is over now, and so may be the operation.
            return self.step_over(idx, fold);
        }
        for step in again.into_iter().flatten() {
            self.release(idx, step);
        }
        while let Some(step) = self.ops[idx].as_deref_mut().and_then(OpState::due_average) {
            self.release(idx, step);
        }
        if over {
            self.complete(idx);
        }
    }

    /// What waits for a step may run, as far as that one is concerned.
    pub(crate) fn go_on_after(&mut self, idx: usize, step: u32) {
        let Some(program) = self.ops[idx].as_ref().map(|op| Arc::clone(&op.program)) else {
            return;
        };
        for next in program.successors(step) {
            if let Some(op) = self.ops[idx].as_deref_mut() {
                op.waits[*next as usize] -= 1;
                if op.waits[*next as usize] == 0 {
                    self.release(idx, *next);
                }
            }
        }
    }

    /// A tolerant operation goes on without a rank of the job: what is still to come from it or to go to it is ended.
    fn do_without(&mut self, links: &[Box<dyn Transport>], idx: usize, serial: u64, world: Rank) {
        let Some(op) = self.op(idx, serial).filter(|op| op.tolerant) else {
            return;
        };
        let Some(rank) = op.group_rank(world).filter(|r| !op.without.contains(r)) else {
            return;
        };
        let program = Arc::clone(&op.program);
        let (mut open, mut posted) = (false, vec![]);
        for (step, what) in program.steps.iter().enumerate() {
            let (with, sent) = match what.action {
                Action::Send { to, .. } => (to, true),
                Action::Recv { from, .. } => (from, false),
                _ => continue,
            };
            if with != rank || op.phase[step] == Phase::Over {
                continue;
            }
            open = true;
            let open_on = if sent { &mut op.denied } else { &mut op.absent };
            let who = if sent { world } else { rank };
            if !open_on.contains(&who) {
                open_on.push(who);
            }
            if op.phase[step] == Phase::Posted {
                posted.push((step as u32, op.xfers[step].take()));
            }
        }
        if !open {
            // It has given and taken all that it was to: nothing is missing.
            return;
        }
        op.without.push(rank);
        op.without.sort_unstable();
        for (step, transfer) in posted {
            if let Some((link, id)) = transfer {
                links[link as usize].cancel(id);
                self.xfers.remove(&(link, id));
            }
            self.step_over(idx, step);
        }
    }

    pub(crate) fn remove(&mut self, idx: usize) -> Option<Box<OpState>> {
        let mut op = self.ops.get_mut(idx)?.take()?;
        self.return_residual(&mut op);
        if let Some(local) = &op.local {
            local.end();
            // Somebody may sleep until its slot may be written again.
            self.nudge_sleepers(local.stream());
        }
        self.by_id.remove(&op.id);
        self.free.push(idx);
        self.completed = true;
        Some(op)
    }

    pub(crate) fn complete(&mut self, idx: usize) {
        let Some(op) = self.remove(idx) else {
            return;
        };
        self.flight.done(&op);
        self.troubles.over(op.descriptor, true);
        // It needed nothing of those who call something else, and they have said so while it ran.
        self.late_dispute(op.descriptor);
        self.gave_up_on.clear();
        if op.then.is_some() {
            return self.second_phase(*op);
        }
        if !op.denied.is_empty() {
            // Who comes late learns that nobody waits for it any more.
            let down = &self.down;
            let late = op.denied.iter().filter(|r| down[r.idx()].is_none());
            let late: Vec<Rank> = late.copied().collect();
            if !late.is_empty() {
                let word = Word::Failed(op.id, late.clone(), Blame::Timeout(late));
                control_word(&mut self.later, word);
            }
        }
        if !op.without.is_empty() {
            // What has come of theirs all the same must not hold the link's credit.
            self.later.push_back(Later::Forget(op.id));
        }
        let mut op = op;
        op.copies = None;
        op.clear_missing();
        op.finish();
        let mut done = Done::default();
        done.missing = op.without.clone();
        done.weight = op.total_weight();
        done.bytes_sent = op.bytes_sent;
        done.started = op.started;
        done.finished = self.now;
        done.codec = op.descriptor.codec;
        done.counts = op.counts.clone();
        let late = self.late.get_mut(&op.group.id);
        let result = match late.and_then(VecDeque::pop_front) {
            Some((id, late)) => Err(self.late_error(&op, id, &late)),
            None => Ok(done),
        };
        self.hand_back(op, result);
    }

    /// Keeps the scratch; gives back the regions that were written and read.
    pub(crate) fn recycle(&mut self, memory: OpMemory) -> (Option<Region>, Option<Region>) {
        let (scratch, io, input) = memory.into_parts();
        if !scratch.is_empty() && self.scratch_pool.len() < MAX_POOL {
            self.scratch_pool.push(scratch);
        }
        (io, input)
    }

    pub(crate) fn hand_back(&mut self, op: Box<OpState>, result: Result<Done, Error>) {
        if let Err(error) = &result {
            self.flight.failed(&op, error);
            // It may become the lane's.
            self.alarm();
        }
        let lane = (op.id.group, op.id.lane);
        if op.again {
            let completion = Arc::clone(&op.completion);
            let (waker, unwanted) = completion.set_again(op, result);
            self.after.extend(waker.map(After::Wake));
            if let Some((op, result)) = unwanted {
                self.after.extend(op.user.map(After::Release));
                let (io, input) = self.recycle(op.memory);
                self.after.extend(io.map(After::Drop));
                self.after.extend(input.map(After::Drop));
                if let Err(error) = result {
                    self.lanes.entry(lane).or_default().sticky = Some(error);
                }
            }
            return;
        }
        let op = *op;
        self.after.extend(op.user.map(After::Release));
        let (mut io, mut input) = self.recycle(op.memory);
        if let Some(then) = op.then {
            self.after.extend(then.op.user.map(After::Release));
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
        self.alarm();
    }

    /// Ends an operation with an error: quiesces its transfers, then hands the memory back.
    fn fail(&mut self, links: &[Box<dyn Transport>], idx: usize, serial: u64, error: Error) {
        if self.op(idx, serial).is_none() {
            return;
        }
        let Some(mut op) = self.remove(idx) else {
            return;
        };
        self.retreat(&mut op);
        for (link, id) in op.xfers.iter().flatten() {
            links[*link as usize].cancel(*id);
            self.xfers.remove(&(*link, *id));
        }
        op.copies = None;
        for link in links {
            link.forget(op.id);
        }
        let early = self.take_early(&op.id);
        self.give_early(early);
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
        self.hand_back(op, Err(error));
    }

    /// Ends everything, for good.
    pub(crate) fn close(
        &mut self,
        links: &[Box<dyn Transport>],
        control: &dyn Control,
        error: Error,
    ) {
        self.closed.get_or_insert(error.clone());
        self.alarm();
        for idx in 0..self.ops.len() {
            if let Some(serial) = self.ops[idx].as_ref().map(|op| op.serial) {
                self.fail(links, idx, serial, error.clone());
            }
        }
        self.ready.clear();
        self.settle(links, control);
    }

    /// Ends an operation at the caller's wish; a void number is one that is over.
    pub(crate) fn cancel(&mut self, idx: usize, serial: u64, reason: &str) {
        if let Some(op) = self.op(idx, serial) {
            let cause = Cause::Cancelled {
                op: op.descriptor.name(),
                by: op.group.rank,
                reason: reason.to_owned(),
                partly_written: op.touched,
            };
            self.later.push_back(Later::Fail(idx, serial, cause.into()));
        }
    }

    // ---- time -----------------------------------------------------------------------------

    /// Sees to it that an operation is looked at when it next wants to be.
    pub(crate) fn rearm(&mut self, idx: usize) {
        let State {
            ops, timers, by_id, ..
        } = self;
        let Some(op) = ops[idx].as_deref_mut() else {
            return;
        };
        let at = op.due();
        if op.alarm != Some(at) {
            op.alarm = Some(at);
            let serial = op.serial;
            timers.set(Alarm { at, idx, serial }, by_id.len(), |a| rings(ops, a));
        }
    }

    /// Looks at the clock. Returns how many things were due.
    pub(crate) fn tick(&mut self) -> u64 {
        let now = self.now;
        let mut n = 0;
        while let Some(alarm) = self.timers.due(now) {
            if !rings(&self.ops, &alarm) {
                continue;
            }
            n += 1;
            let Some(op) = self.ops[alarm.idx].as_deref_mut() else {
                continue;
            };
            op.alarm = None;
            if op.warn_at.is_some_and(|t| t <= now) {
                op.warn_at = None;
                self.flight.waiting(op);
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
                Status::Running if op.deadline <= now => self.out_of_time(alarm.idx),
                Status::Asking { until } if until <= now => {
                    let until = now.saturating_add(self.config.grace);
                    op.status = Status::Asking { until };
                    // A round that goes on without whoever was late has only its own arithmetic left, which takes as long as it takes.
                    let computes = op.tolerant && op.open_peers().is_empty();
                    if !computes {
                        self.try_verdict(alarm.idx, true);
                    }
                }
                _ => {}
            }
            self.rearm(alarm.idx);
        }
        n + self.tend_rebuilds()
    }

    /// The deadline has passed: a tolerant operation does without whoever is late; of any other, everybody is asked how far they are.
    fn out_of_time(&mut self, idx: usize) {
        let (now, grace) = (self.now, self.config.grace);
        let Some(op) = self.ops[idx].as_deref_mut() else {
            return;
        };
        self.flight.waiting(op);
        let until = now.saturating_add(grace);
        op.status = Status::Asking { until };
        if op.tolerant {
            for rank in op.open_peers() {
                let late = Later::Without(idx, op.serial, op.world_rank(rank));
                self.later.push_back(late);
            }
            return;
        }
        let (id, descriptor) = (op.id, op.descriptor);
        // The answers go to everybody, so one question serves all.
        if self.troubles.ask(id, now, grace) {
            control_word(&mut self.later, Word::Query(id));
        }
        self.describe(id, descriptor);
        self.try_verdict(idx, false);
    }

    /// When to look at the clock next.
    pub(crate) fn next_timeout(&mut self) -> Option<Duration> {
        let State { ops, timers, .. } = self;
        let operations = timers.next(|a| rings(ops, a));
        operations.into_iter().chain(self.rebuilds.due()).min()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.by_id.len()
    }
}

pub(crate) fn control_word(later: &mut VecDeque<Later>, word: Word) {
    later.push_back(Later::Word(word));
}

/// Whether an alarm is still wanted.
fn rings(ops: &[Option<Box<OpState>>], alarm: &Alarm) -> bool {
    let op = ops.get(alarm.idx).and_then(Option::as_deref);
    op.is_some_and(|op| op.serial == alarm.serial && op.alarm == Some(alarm.at))
}
