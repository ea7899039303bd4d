//! Operations that are set up once and started many times: everything a run needs is made at the start and kept, so that later runs allocate nothing.
//!
//! What runs over mapped memory meets anew each time, as one-shot operations do: see [`repeated`](crate::repeated).
//!
//! The operation goes to and fro: while a run is in flight it is in the engine's table, in between it is with its handle. A handle that is dropped during a run leaves the operation to the engine, which frees it at the end and reports an error on the lane's next operation; one that is forgotten leaks it, and nothing else.

use crate::{
    comm::{EngineComm, unsupported},
    completion::{Again, Completion},
    drive::Shared,
    fused::is_fused,
    op::{OpStart, OpState, Run},
    raw_memory::OpMemory,
    repeated::repeated,
    select::{Identity, is_user, result_of},
    sync::Arc,
    user,
};
use gaggle_core::{
    Done, Error, Finished, OnMissing, Op, OpId, Owned, Persistent, Region, descriptor::stable_hash,
};
use std::{
    task::{Context, Poll, ready},
    time::Duration,
};

struct Recurring {
    shared: Arc<Shared>,
    completion: Arc<Completion>,
    group: u64,
    lane: u32,
    identity: Identity,
    name: &'static str,
    timeout: Option<Duration>,
    /// The operation, while no run is in flight.
    idle: Option<Box<OpState>>,
    /// How the last run ended, where nobody has asked yet.
    outcome: Option<Result<Done, Error>>,
}

/// Sets an operation up.
pub(crate) fn persistent(
    comm: &EngineComm,
    op: &Op,
    io: Owned,
) -> Result<Box<dyn Persistent>, Box<Finished>> {
    let give_back = |error, io, input| {
        Box::new(Finished {
            io,
            input,
            result: Err(error),
        })
    };
    let mut memory = match OpMemory::owned(io) {
        Ok(memory) => memory,
        Err((error, io)) => return Err(give_back(error, Some(io.io), io.input)),
    };
    let name = op.kind.op_kind().name();
    let prepared = match comm.prepare(op, &memory.shape()) {
        Ok((choice, _)) if choice.extent.discover => Err(unsupported(
            name,
            "with counts that are discovered has another output each time; it is not persistent",
        )),
        prepared => prepared,
    };
    let (choice, program) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            let (_, io, input) = memory.into_parts();
            return Err(give_back(error, io, input));
        }
    };
    // Ranks of one host meet on boards where they call it.
    let meets = choice.algorithm == gaggle_core::Algorithm::Boards;
    if is_fused(&choice, &program) || meets {
        return Ok(repeated(comm, op, memory));
    }
    let shape = memory.shape();
    let (dtype, world) = (shape.dtype, comm.info.world_ranks.len() as u32);
    let scratch_type = program.plan.kind.scratch_type(dtype);
    memory.attach_scratch(vec![], program.plan.scratch_len, scratch_type);
    let (group, lane) = (comm.info.id, op.lane.0);
    let (stream, number) = choice.identity.stream(group, lane);
    let id = OpId {
        group: stream,
        lane: number,
        class: choice.identity.class(),
        seq: 0,
    };
    let completion = Completion::new();
    let descriptor = choice.descriptor(id, op, &comm.info, dtype);
    let mut idle = Box::new(OpState::new(OpStart {
        serial: 0,
        hash: stable_hash(&[&descriptor.to_bytes()]),
        descriptor,
        group: Arc::clone(&comm.info),
        program,
        memory,
        mix: choice.mix,
        pairs: choice.pairs,
        then: None,
        counts: vec![],
        weight: choice.weight,
        user: op.user.clone().filter(|_| is_user(&op.kind)),
        tensor: op.feedback.filter(|_| choice.request.feedback),
        result: result_of(&op.kind, &shape, comm.info.rank, world),
        started: Duration::ZERO,
        deadline: Duration::ZERO,
        warn_at: Duration::ZERO,
        tolerant: op.on_missing == OnMissing::Tolerate,
        members: None,
        touched: false,
        completion: Arc::clone(&completion),
    }));
    idle.again = true;
    Ok(Box::new(Recurring {
        shared: Arc::clone(&comm.shared),
        completion,
        group,
        lane,
        identity: choice.identity,
        name,
        timeout: op.timeout,
        idle: Some(idle),
        outcome: None,
    }))
}

impl Recurring {
    fn keep(&mut self, again: Option<Again>) {
        if let Some((op, result)) = again {
            self.idle = Some(op);
            self.outcome = Some(result);
        }
    }

    /// Takes the operation back if its run is over.
    fn collect(&mut self) {
        if self.idle.is_none() && self.completion.is_done() {
            let again = self.completion.take_again();
            self.keep(again);
        }
    }

    fn not_started(&self) -> Error {
        Error::invalid(
            self.name,
            "no run was started since the last one was waited for",
        )
    }
}

impl Persistent for Recurring {
    fn start(&mut self, t: u64) -> Result<(), Error> {
        self.shared.refuse_fork(self.name)?;
        self.collect();
        // An error that nobody has waited for is not passed over.
        if let Some(Err(error)) = self.outcome.take() {
            return Err(error);
        }
        user::refuse_inside(self.name)?;
        let Some(mut op) = self.idle.take() else {
            return Err(Error::invalid(self.name, "is in flight already"));
        };
        if let Err(error) = op.memory.rebind() {
            self.idle = Some(op);
            return Err(error);
        }
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        let identity = match self.identity {
            Identity::Round(_) => Identity::Round(t),
            other => other,
        };
        let id = match state.next_id(self.group, self.lane, identity, self.name) {
            Ok(id) => id,
            Err(error) => {
                self.idle = Some(op);
                return Err(error);
            }
        };
        let now = shared.clock.now();
        state.set_now(now);
        op.reset(&Run {
            serial: state.next_serial(),
            id,
            started: now,
            deadline: now.saturating_add(self.timeout.unwrap_or(state.config.timeout)),
            warn_at: now.saturating_add(state.config.warn_after),
        });
        shared.guarded(&mut state, |state| {
            state.enqueue(op);
            state.settle(&shared.links, &*shared.control)
        });
        shared.let_go(state);
        // Whoever makes progress must hear of what was posted.
        gaggle_core::Wake::wake(&*shared.bell);
        Ok(())
    }

    fn wait(&mut self) -> Result<Done, Error> {
        self.shared.refuse_fork(self.name)?;
        if !self.completion.is_done() {
            user::refuse_inside(self.name)?;
        }
        if self.idle.is_none() {
            let completion = &self.completion;
            self.shared.help_until(&|| completion.is_done());
            self.collect();
        }
        let outcome = self.outcome.take();
        outcome.unwrap_or_else(|| Err(self.not_started()))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Done, Error>> {
        self.shared.refuse_fork(self.name)?;
        if self.idle.is_none() {
            if !self.completion.is_done() {
                self.shared.drive();
            }
            let again = self.completion.take_again_or_register(cx.waker());
            ready!(again.map_or(Poll::Pending, |again| {
                self.keep(Some(again));
                Poll::Ready(())
            }));
        }
        let outcome = self.outcome.take();
        Poll::Ready(outcome.unwrap_or_else(|| Err(self.not_started())))
    }

    fn is_running(&self) -> bool {
        !self.shared.is_foreign() && self.idle.is_none() && !self.completion.is_done()
    }

    fn io(&mut self) -> Option<&mut Region> {
        self.shared.refuse_fork(self.name).ok()?;
        self.collect();
        self.idle.as_mut()?.memory.region()
    }

    fn input(&mut self) -> Option<&mut Region> {
        self.shared.refuse_fork(self.name).ok()?;
        self.collect();
        self.idle.as_mut()?.memory.input_region()
    }

    fn into_memory(mut self: Box<Self>) -> Finished {
        if let Err(error) = self.shared.refuse_fork(self.name) {
            return Finished {
                io: None,
                input: None,
                result: Err(error),
            };
        }
        if self.is_running()
            && let Err(error) = user::refuse_inside("into_memory")
        {
            // The run goes on without its handle.
            return Finished {
                io: None,
                input: None,
                result: Err(error),
            };
        }
        if self.idle.is_none() {
            let completion = &self.completion;
            self.shared.help_until(&|| completion.is_done());
            self.collect();
        }
        let result = self.outcome.take().unwrap_or_else(|| Ok(Done::default()));
        match self.idle.take() {
            Some(op) => {
                let (_, io, input) = op.memory.into_parts();
                Finished { io, input, result }
            }
            None => Finished {
                io: None,
                input: None,
                result: Err(Error::internal("an operation got lost")),
            },
        }
    }
}

impl Drop for Recurring {
    fn drop(&mut self) {
        if self.shared.is_foreign() {
            return;
        }
        let in_flight = self.idle.is_none();
        let late = in_flight.then(|| self.completion.detach_again()).flatten();
        let outcome = late.map(|(_, result)| result).or(self.outcome.take());
        if let Some(Err(error)) = outcome
            && !user::inside()
        {
            let (group, lane) = self.identity.stream(self.group, self.lane);
            self.shared.state.lock().set_sticky(group, lane, error);
        }
    }
}
