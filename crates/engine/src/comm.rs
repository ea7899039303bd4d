//! The communicator that users' groups stand on.

use crate::{
    arguments::Shape,
    completion::Completion,
    discover::{Then, counts_memory},
    drive::Shared,
    fused,
    kept::Kept,
    local::{Decision, Layout, Made, here},
    op::{OpStart, group_rank},
    persistent::persistent,
    places::Places,
    program::Program,
    raw_memory::OpMemory,
    rebuild::Rebuilding,
    select::{Choice, Identity, choose, explain, predict, result_of},
    sync::Arc,
    user,
};
use gaggle_collectives::{Plan, PlanError};
use gaggle_core::{
    Algorithm, Block, Borrowed, Cancel, Cause, Communicator, Counts, DType, Descriptor, Done,
    Error, Finished, GroupInfo, Kind, Lane, LinkStats, OnMissing, Op, OpId, OpKind, Owned, Pending,
    Persistent, Rank, Region, descriptor::stable_hash,
};
use std::{
    task::{Context, Poll},
    time::Duration,
};

pub(crate) struct EngineComm {
    pub(crate) shared: Arc<Shared>,
    pub(crate) info: Arc<GroupInfo>,
    places: Places,
    /// Calls that need not be decided anew: on boards.
    known: here::Known,
    /// The same of those that go by messages.
    kept: Kept,
}

impl EngineComm {
    pub(crate) fn new(shared: Arc<Shared>, info: GroupInfo) -> EngineComm {
        let info = Arc::new(info);
        let places = {
            let mut state = shared.state.lock();
            state.register(&info);
            Places::of(&state.config, &info)
        };
        EngineComm {
            shared,
            info,
            places,
            known: here::Known::default(),
            kept: Kept::default(),
        }
    }

    /// Another handle of the same group.
    pub(crate) fn another(&self) -> EngineComm {
        EngineComm {
            shared: Arc::clone(&self.shared),
            info: Arc::clone(&self.info),
            places: self.places.clone(),
            known: here::Known::default(),
            kept: Kept::default(),
        }
    }

    /// Puts an operation into flight; its outcome comes through the completion, mistakes included.
    pub(crate) fn launch(&self, op: &Op, memory: OpMemory, completion: &Arc<Completion>) {
        let shape = memory.shape();
        if let Some((choice, program)) = self.kept.find(op, &shape) {
            return match self.admit(op) {
                Ok(()) => self.submit(op, choice, program, memory, completion),
                Err(error) => refuse(memory, error, completion),
            };
        }
        match self.prepare(op, &shape) {
            Ok((choice, program)) => {
                let decision = {
                    let mut state = self.shared.state.lock();
                    let (group, places) = (&self.info, &self.places);
                    state.decide(op, group, places, (&choice, &program), &shape)
                };
                match decision {
                    Some(decision) => self.submit_local(op, &decision, memory, completion),
                    None => {
                        self.kept.keep(op, &shape, &choice, &program);
                        self.submit(op, choice, program, memory, completion);
                    }
                }
            }
            Err(error) => refuse(memory, error, completion),
        }
    }

    /// Puts an operation into flight that goes by boards.
    fn submit_local(
        &self,
        op: &Op,
        decision: &Arc<Decision>,
        memory: OpMemory,
        completion: &Arc<Completion>,
    ) {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        let now = shared.clock.now();
        state.set_now(now);
        let made = Made {
            serial: state.next_serial(),
            memory,
            now,
            timeout: op.timeout.unwrap_or(state.config.timeout),
            warn_after: state.config.warn_after,
            completion: Arc::clone(completion),
        };
        let (seq, start) = decision.begin(op, made);
        shared.guarded(&mut state, |state| {
            state.start_local(start, decision.local(op, seq, false));
            self.known.learn(state, op, decision);
            state.settle(&shared.links, &*shared.control)
        });
        shared.let_go(state);
    }

    /// Whether this thread of this process may call anything.
    fn admit(&self, op: &Op) -> Result<(), Error> {
        let name = op.kind.op_kind().name();
        user::refuse_inside(name)?;
        self.shared.refuse_fork(name)
    }

    pub(crate) fn prepare(&self, op: &Op, shape: &Shape) -> Result<(Choice, Arc<Program>), Error> {
        let name = op.kind.op_kind().name();
        self.admit(op)?;
        let mut state = self.shared.state.lock();
        check_tolerance(op)?;
        let places = &self.places;
        let choice = choose(op, &self.info, places, shape, &state.config)?;
        let declined = (choice.kind, op.codec);
        if op.codec != choice.codec && !state.declined.contains(&declined) {
            state.declined.push(declined);
            let why = explain(op, &self.info, places, shape, &state.config)?;
            tracing::info!(op = name, codec = %op.codec, %why, "a codec is declined");
        }
        if tracing::enabled!(tracing::Level::DEBUG) && !state.programs.knows(&choice.request) {
            let why = explain(op, &self.info, places, shape, &state.config)?;
            let bytes = choice.request.len * shape.dtype.size() as u64;
            tracing::debug!(op = name, bytes, by = %why, "planned");
        }
        let program = state
            .programs
            .find(&choice.request)
            .map_err(|e| plan_error(name, &e))?;
        // What the arguments were checked against must be what the plan works on.
        let plan = &program.plan;
        let fits = choice.extent.discover
            || (plan.user_len <= shape.io && plan.input_len <= shape.input.unwrap_or(0));
        if !fits {
            let what = format!(
                "{name} by {}: a plan on {} and {} elements for {shape:?}",
                plan.algorithm, plan.input_len, plan.user_len
            );
            return Err(Error::internal(what));
        }
        Ok((choice, program))
    }

    fn submit(
        &self,
        op: &Op,
        mut choice: Choice,
        program: Arc<Program>,
        mut memory: OpMemory,
        completion: &Arc<Completion>,
    ) {
        let name = choice.kind.name();
        let shape = memory.shape();
        let dtype = shape.dtype;
        let world = self.info.world_ranks.len() as u32;
        let result = result_of(&op.kind, &shape, self.info.rank, world);
        let mut counting = None;
        if choice.extent.discover {
            let made = match memory.is_owned() {
                true => counts_memory(op, &choice),
                false => Err(Error::invalid(
                    name,
                    "counts are discovered by asynchronous operations only, which make the output",
                )),
            };
            match made {
                Ok(made) => counting = Some(made),
                Err(error) => return refuse(memory, error, completion),
            }
        }
        let mut state = self.shared.state.lock();
        let id = match state.next_id(self.info.id, op.lane.0, choice.identity, name) {
            Ok(id) => id,
            Err(error) => {
                drop(state);
                return refuse(memory, error, completion);
            }
        };
        let now = self.shared.clock.now();
        state.set_now(now);
        let descriptor = choice.descriptor(id, op, &self.info, dtype);
        let mut then = counting.map(|counting| {
            Box::new(Then {
                op: op.clone(),
                memory: std::mem::replace(&mut memory, counting),
                places: self.places.clone(),
                fused: None,
            })
        });
        let parts = choice.parts(op);
        let (mut program, mut result, mut touched) = (program, result, false);
        if fused::is_fused(&choice, &program) {
            let planned = state.programs.find(&fused::meeting(&choice));
            let meeting = planned
                .map_err(|e| plan_error(name, &e))
                .and_then(|meeting| {
                    let data = std::mem::replace(&mut program, meeting);
                    let shared = state.shared.as_ref();
                    fused::prepare(choice, data, result.take(), &mut memory, &self.info, shared)
                });
            match meeting {
                Ok((records, fused)) => {
                    touched = fused.is_mapped() && descriptor.kind == OpKind::AllReduce;
                    then = Some(Box::new(Then {
                        op: op.clone(),
                        memory: std::mem::replace(&mut memory, records),
                        places: self.places.clone(),
                        fused: Some(fused),
                    }));
                }
                Err(error) => {
                    drop(state);
                    return refuse(memory, error, completion);
                }
            }
        }
        let timeout = op.timeout.unwrap_or(state.config.timeout);
        let serial = state.next_serial();
        let warn_at = now.saturating_add(state.config.warn_after);
        let start = OpStart {
            serial,
            hash: stable_hash(&[&descriptor.to_bytes()]),
            descriptor,
            group: Arc::clone(&self.info),
            program,
            memory,
            mix: parts.mix,
            pairs: parts.pairs,
            then,
            counts: vec![],
            weight: parts.weight,
            user: parts.user,
            tensor: parts.tensor,
            result,
            started: now,
            deadline: now.saturating_add(timeout),
            warn_at,
            tolerant: op.on_missing == OnMissing::Tolerate,
            members: None,
            touched,
            completion: Arc::clone(completion),
        };
        let shared = &*self.shared;
        shared.guarded(&mut state, |state| {
            state.start(start);
            state.settle(&shared.links, &*shared.control)
        });
        self.shared.let_go(state);
    }

    /// Runs a plan that did not come from the planner: for experiments, and for tests of wrong plans. `descriptor` is what it is called by.
    pub(crate) fn start_plan(&self, plan: Plan, op: &Op, io: Owned) -> Box<dyn Pending> {
        let completion = Completion::new();
        let len = io.io.len();
        let pending = self.pending(&completion, op);
        match OpMemory::owned(io) {
            Err((error, io)) => {
                deliver(&completion, Some(io.io), io.input, error);
            }
            Ok(memory) => match self.prepare(op, &memory.shape()) {
                Ok((choice, _)) => match Program::unproven(plan, &self.info, len) {
                    Ok(program) => {
                        let program = Arc::new(program);
                        self.submit(op, choice, program, memory, &completion);
                    }
                    Err(what) => refuse(memory, Error::invalid("plan", what), &completion),
                },
                Err(error) => refuse(memory, error, &completion),
            },
        }
        pending
    }

    /// The memory of a call on `len` elements per rank.
    fn shape(&self, op: &Op, dtype: DType, len: usize) -> Result<Shape, Error> {
        let (me, world) = (self.info.rank, self.info.world_ranks.len() as u32);
        Shape::of_len(&op.kind, dtype, len as u64, me, world).ok_or_else(|| {
            let what = format!("{len} elements of {world} ranks cannot be counted in 64 bits");
            Error::invalid(op.kind.op_kind().name(), what)
        })
    }

    fn pending(&self, completion: &Arc<Completion>, op: &Op) -> Box<dyn Pending> {
        Box::new(EnginePending {
            shared: Arc::clone(&self.shared),
            completion: Some(Arc::clone(completion)),
            lane: Identity::of(&op.kind, self.info.rank).stream(self.info.id, op.lane.0),
        })
    }
}

/// Which operations can go on without a member.
fn check_tolerance(op: &Op) -> Result<(), Error> {
    match &op.kind {
        _ if op.on_missing == OnMissing::Fail => Ok(()),
        Kind::Mix { .. } => Ok(()),
        Kind::NeighbourGather { counts, .. } if *counts != Counts::Discover => Ok(()),
        kind => Err(unsupported(
            kind.op_kind().name(),
            "cannot do without a member; mix and neighbour_all_gather with known counts can",
        )),
    }
}

fn refuse(memory: OpMemory, error: Error, completion: &Completion) {
    let (_, io, input) = memory.into_parts();
    deliver(completion, io, input, error);
}

/// A mistake comes out of the handle; no engine has had the memory, and no lock is held.
fn deliver(completion: &Completion, io: Option<Region>, input: Option<Region>, error: Error) {
    let (waker, _) = completion.set(Finished {
        io,
        input,
        result: Err(error),
    });
    if let Some(waker) = waker {
        waker.wake();
    }
}

pub(crate) fn unsupported(op: &str, what: &str) -> Error {
    Cause::Unsupported {
        op: op.into(),
        what: what.into(),
    }
    .into()
}

pub(crate) fn plan_error(name: &str, e: &PlanError) -> Error {
    let text = e.to_string();
    // The operation's name stands before the text.
    let what = text.strip_prefix(name).map_or(&*text, str::trim_start);
    match e {
        PlanError::BadRank { .. } | PlanError::BadNumber { .. } | PlanError::BadCounts { .. } => {
            Error::invalid(name, what)
        }
        _ => unsupported(name, what),
    }
}

impl Communicator for EngineComm {
    fn info(&self) -> &GroupInfo {
        &self.info
    }

    fn run(&self, op: &Op, io: Borrowed<'_>) -> Result<Done, Error> {
        // SAFETY: where the engine gets the memory, this call returns only when the completion is set, and the engine sets it after it has let go of the memory; a panic on the way cannot skip that, see `Stay`. What is carried out here has no memory that others can reach when it returns or unwinds, see `here`.
        let mut memory = Some(unsafe { OpMemory::borrowed(io) }?);
        let begun = match self.known.run(self, op, &mut memory) {
            here::Here::Done(done) => return Ok(done),
            here::Here::Begun(begun) => Some(begun),
            here::Here::Not => None,
        };
        let completion = match &begun {
            Some(begun) => begun.completion(),
            None => Completion::new(),
        };
        let stay = Stay(&completion, &self.shared);
        match (begun, memory) {
            (Some(begun), _) => begun.register(self, op, &completion),
            (None, Some(memory)) => self.launch(op, memory, &completion),
            (None, None) => return Err(Error::internal("a call's memory got lost")),
        }
        self.shared.help_until(&|| completion.is_done());
        drop(stay);
        completion
            .take()
            .map_or_else(|| Err(Error::internal("an outcome got lost")), |f| f.result)
    }

    fn start(&self, op: Op, io: Owned) -> Box<dyn Pending> {
        let completion = Completion::new();
        let pending = self.pending(&completion, &op);
        match OpMemory::owned(io) {
            Ok(memory) => self.launch(&op, memory, &completion),
            Err((error, io)) => {
                deliver(&completion, Some(io.io), io.input, error);
            }
        }
        // Whoever makes progress must hear of what was posted.
        gaggle_core::Wake::wake(&*self.shared.bell);
        pending
    }

    fn subgroup(&self, members: &[Rank], key: &str) -> Result<Arc<dyn Communicator>, Error> {
        let name = "subgroup";
        user::refuse_inside(name)?;
        self.shared.refuse_fork(name)?;
        let mut world_ranks = Vec::with_capacity(members.len());
        for rank in members {
            let Some(world) = self.info.world_ranks.get(rank.idx()) else {
                let what = format!("{rank} of a group of {}", self.info.world_ranks.len());
                return Err(Error::invalid(name, what));
            };
            if world_ranks.contains(world) {
                return Err(Error::invalid(name, format!("{rank} is named twice")));
            }
            world_ranks.push(*world);
        }
        let mut info = GroupInfo {
            id: 0,
            rank: Rank(0),
            world_ranks,
            epoch: self.info.epoch,
            initial_size: members.len() as u32,
            incarnation: 0,
        };
        let me = self.info.world_ranks[self.info.rank.idx()];
        info.rank = group_rank(&info, me)
            .ok_or_else(|| Error::invalid(name, format!("{} is not a member", self.info.rank)))?;
        let ranks: Vec<u8> = info
            .world_ranks
            .iter()
            .flat_map(|r| r.0.to_le_bytes())
            .collect();
        let named = stable_hash(&[&self.info.id.to_le_bytes(), &ranks, key.as_bytes()]);
        {
            let mut state = self.shared.state.lock();
            let made = state.made.entry(named).or_default();
            info.incarnation = *made;
            *made = made.wrapping_add(1);
        }
        // Each incarnation is a group of its own: what an earlier one has left behind does not reach it.
        info.id = stable_hash(&[&named.to_le_bytes(), &info.incarnation.to_le_bytes()]);
        Ok(Arc::new(EngineComm::new(Arc::clone(&self.shared), info)))
    }

    fn persistent(&self, op: Op, io: Owned) -> Result<Box<dyn Persistent>, Box<Finished>> {
        persistent(self, &op, io)
    }

    fn rebuild(&self, limit: Duration) -> Result<Arc<dyn Communicator>, Error> {
        let rebuilding = Rebuilding::begin(&self.shared, &self.info, limit)?;
        self.shared.help_until(&|| rebuilding.is_over());
        match rebuilding.outcome() {
            Some(outcome) => Ok(outcome? as Arc<dyn Communicator>),
            None => Err(Error::internal("a rebuilding has no outcome")),
        }
    }

    fn explain(&self, op: &Op, dtype: DType, len: usize) -> Result<String, Error> {
        let shape = self.shape(op, dtype, len)?;
        let (choice, _) = self.prepare(op, &shape)?;
        let (config, one_process) = {
            let state = self.shared.state.lock();
            let lends = state.shared.as_ref().is_some_and(|s| s.is_one_process());
            (state.config.clone(), lends)
        };
        let why = explain(op, &self.info, &self.places, &shape, &config)?;
        let staged = Layout::of(&choice.request, choice.kind, dtype.size() as u64)
            .filter(|_| choice.request.call.algorithm() == Algorithm::Fused)
            .map_or_else(String::new, |layout| match one_process {
                true if fused::takes_lent(&choice) => {
                    " It takes ordinary memory where it lies: all ranks are of one process.".into()
                }
                _ => format!(" {layout}"),
            });
        Ok(format!("{} by {why}{staged}", choice.kind.name()))
    }

    fn predict(&self, op: &Op, dtype: DType, len: usize) -> Result<Option<Duration>, Error> {
        let shape = self.shape(op, dtype, len)?;
        let config = self.shared.state.lock().config.clone();
        predict(op, &self.info, &self.places, &shape, &config).map(Some)
    }

    fn block(&self, bytes: usize) -> Option<Box<dyn Block>> {
        let shared = self.shared.state.lock().shared.clone();
        shared?.block(bytes)
    }

    fn feedback(&self, tensor: u64) -> Option<Vec<f32>> {
        if user::inside() {
            return None;
        }
        let state = self.shared.state.lock();
        state.residuals.get(self.info.id, tensor)
    }

    fn set_feedback(&self, tensor: u64, residual: Vec<f32>) {
        if user::inside() {
            return tracing::warn!(
                tensor,
                "error feedback is not set from inside a user's reduction"
            );
        }
        let mut state = self.shared.state.lock();
        state.residuals.set(self.info.id, tensor, residual);
    }

    fn abort(&self, reason: &str) {
        if user::inside() {
            return tracing::warn!("no abort from inside a user's reduction: let it panic");
        }
        if self.shared.is_foreign() {
            return tracing::warn!("a fork of the process that joined aborts nothing");
        }
        let mut state = self.shared.state.lock();
        let shared = &*self.shared;
        shared.guarded(&mut state, |state| {
            state.abort_everywhere(self.info.id, reason);
            state.settle(&shared.links, &*shared.control)
        });
        shared.let_go(state);
        gaggle_core::Wake::wake(&*self.shared.bell);
    }

    fn stats(&self) -> LinkStats {
        self.shared
            .links
            .iter()
            .fold(LinkStats::default(), |sum, l| sum.plus(&l.stats()))
    }

    fn next_round(&self, lane: Lane) -> u64 {
        let state = self.shared.state.lock();
        let lane = state.lanes.get(&(self.info.id, lane.0));
        let last = lane.and_then(|lane| lane.last_round);
        last.map_or(0, |last| last.saturating_add(1))
    }

    fn now(&self) -> Duration {
        self.shared.clock.now()
    }

    fn describe(&self, op: &Op, dtype: DType, len: usize) -> Result<Descriptor, Error> {
        let shape = self.shape(op, dtype, len)?;
        let (choice, _) = self.prepare(op, &shape)?;
        let (group, lane) = choice.identity.stream(self.info.id, op.lane.0);
        let id = OpId {
            group,
            lane,
            class: choice.identity.class(),
            seq: match choice.identity {
                Identity::Round(t) => t,
                _ => 0,
            },
        };
        Ok(choice.descriptor(id, op, &self.info, dtype))
    }
}

/// Keeps a blocking call from unwinding while the engine has its memory.
struct Stay<'a>(&'a Completion, &'a Shared);

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.0.is_done() {
            // Closing hands every operation's memory back; without that there is no sound way out.
            let error = Error::internal("a blocking operation panicked");
            let mut state = self.1.state.lock();
            state.close(&self.1.links, &*self.1.control, error);
            self.1.let_go(state);
        }
    }
}

/// Ends one operation, whichever it is by now: a second phase, or none any more.
struct Canceller {
    shared: Arc<Shared>,
    completion: Arc<Completion>,
}

impl Cancel for Canceller {
    fn cancel(&self, reason: &str) {
        if user::inside() {
            return tracing::warn!(
                "nothing is cancelled from inside a user's reduction: let it panic"
            );
        }
        if self.shared.is_foreign() {
            return tracing::warn!("a fork of the process that joined cancels nothing");
        }
        let mut state = self.shared.state.lock();
        // Looked up under the engine's lock, under which operations begin and end.
        let Some((idx, serial)) = self.completion.running() else {
            return;
        };
        let shared = &*self.shared;
        shared.guarded(&mut state, |state| {
            state.cancel(idx, serial, reason);
            state.settle(&shared.links, &*shared.control)
        });
        shared.let_go(state);
        gaggle_core::Wake::wake(&*self.shared.bell);
    }
}

/// Of an operation that is over.
struct Over;

impl Cancel for Over {
    fn cancel(&self, _reason: &str) {}
}

struct EnginePending {
    shared: Arc<Shared>,
    completion: Option<Arc<Completion>>,
    lane: (u64, u32),
}

impl EnginePending {
    fn lost() -> Finished {
        Finished {
            io: None,
            input: None,
            result: Err(Error::internal("an outcome was taken twice")),
        }
    }

    /// In a fork: the operation is the parent's, and so is its memory.
    fn foreign(&mut self, error: Error) -> Finished {
        std::mem::forget(self.completion.take());
        Finished {
            result: Err(error),
            ..Self::lost()
        }
    }
}

impl Pending for EnginePending {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Finished> {
        if let Err(error) = self.shared.refuse_fork("poll") {
            return Poll::Ready(self.foreign(error));
        }
        let Some(completion) = self.completion.clone() else {
            return Poll::Ready(Self::lost());
        };
        if !completion.is_done() {
            self.shared.drive();
        }
        match completion.take_or_register(cx.waker()) {
            Some(f) => {
                self.completion = None;
                Poll::Ready(f)
            }
            None => Poll::Pending,
        }
    }

    fn wait(mut self: Box<Self>) -> Finished {
        if let Err(error) = self.shared.refuse_fork("wait") {
            return self.foreign(error);
        }
        let Some(completion) = self.completion.take() else {
            return Self::lost();
        };
        if user::inside() && !completion.is_done() {
            // The operation goes on without its handle.
            self.completion = Some(completion);
            return Finished {
                result: Err(user::refused("wait")),
                ..Self::lost()
            };
        }
        self.shared.help_until(&|| completion.is_done());
        completion.take().unwrap_or_else(Self::lost)
    }

    fn is_done(&self) -> bool {
        self.shared.is_foreign() || self.completion.as_ref().is_none_or(|c| c.is_done())
    }

    fn canceller(&self) -> Arc<dyn Cancel> {
        match &self.completion {
            Some(completion) => Arc::new(Canceller {
                shared: Arc::clone(&self.shared),
                completion: Arc::clone(completion),
            }),
            None => Arc::new(Over),
        }
    }
}

impl Drop for EnginePending {
    fn drop(&mut self) {
        if self.shared.is_foreign() {
            std::mem::forget(self.completion.take());
            return;
        }
        if let Some(completion) = self.completion.take()
            && let Some(Finished {
                result: Err(error), ..
            }) = completion.detach()
            && !user::inside()
        {
            self.shared
                .state
                .lock()
                .set_sticky(self.lane.0, self.lane.1, error);
        }
    }
}
