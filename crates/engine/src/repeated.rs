//! Operations that are set up once and are one-shot operations each time: those over mapped memory, which tell each other anew where it is.
//!
//! So all ranks choose alike, whether they call an operation once or have set it up.

use crate::{
    comm::EngineComm, completion::Completion, raw_memory::OpMemory, select::Identity, sync::Arc,
    user,
};
use gaggle_core::{Done, Error, Finished, Op, Owned, Persistent, Region};
use std::task::{Context, Poll, ready};

struct Repeated {
    comm: EngineComm,
    op: Op,
    name: &'static str,
    /// While no run is in flight; gone for good where the engine could not give it back.
    idle: Option<OpMemory>,
    flight: Option<Arc<Completion>>,
    /// How the last run ended, where nobody has asked yet.
    outcome: Option<Result<Done, Error>>,
}

/// Sets an operation up whose choice is made.
pub(crate) fn repeated(comm: &EngineComm, op: &Op, memory: OpMemory) -> Box<dyn Persistent> {
    Box::new(Repeated {
        comm: comm.another(),
        op: op.clone(),
        name: op.kind.op_kind().name(),
        idle: Some(memory),
        flight: None,
        outcome: None,
    })
}

impl Repeated {
    fn keep(&mut self, finished: Finished) {
        let Finished { io, input, result } = finished;
        let memory = io.map(|io| OpMemory::owned(Owned { input, io }));
        // It was taken before.
        self.idle = memory.and_then(Result::ok);
        self.flight = None;
        self.outcome = Some(result);
    }

    /// Takes the memory back if its run is over.
    fn collect(&mut self) {
        let over = self.flight.as_ref().filter(|c| c.is_done());
        if let Some(finished) = over.and_then(|c| c.take()) {
            self.keep(finished);
        }
    }

    /// Waits until no run is in flight.
    fn land(&mut self) {
        if let Some(completion) = self.flight.clone() {
            self.comm.shared.help_until(&|| completion.is_done());
            self.collect();
        }
    }

    fn not_started(&self) -> Error {
        Error::invalid(
            self.name,
            "no run was started since the last one was waited for",
        )
    }
}

impl Persistent for Repeated {
    fn start(&mut self, _t: u64) -> Result<(), Error> {
        self.comm.shared.refuse_fork(self.name)?;
        self.collect();
        // An error that nobody has waited for is not passed over.
        if let Some(Err(error)) = self.outcome.take() {
            return Err(error);
        }
        user::refuse_inside(self.name)?;
        let Some(mut memory) = self.idle.take() else {
            let what = match self.flight {
                Some(_) => "is in flight already",
                None => "has lost its memory to a failed run",
            };
            return Err(Error::invalid(self.name, what));
        };
        if let Err(error) = memory.rebind() {
            self.idle = Some(memory);
            return Err(error);
        }
        let completion = Completion::new();
        self.flight = Some(Arc::clone(&completion));
        self.comm.launch(&self.op, memory, &completion);
        // Whoever makes progress must hear of what was posted.
        gaggle_core::Wake::wake(&*self.comm.shared.bell);
        // What is wrong with it, if only on this rank, is for whoever waits.
        Ok(())
    }

    fn wait(&mut self) -> Result<Done, Error> {
        self.comm.shared.refuse_fork(self.name)?;
        if self.is_running() {
            user::refuse_inside(self.name)?;
        }
        self.land();
        let outcome = self.outcome.take();
        outcome.unwrap_or_else(|| Err(self.not_started()))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Done, Error>> {
        self.comm.shared.refuse_fork(self.name)?;
        if let Some(completion) = self.flight.clone() {
            if !completion.is_done() {
                self.comm.shared.drive();
            }
            let finished = completion.take_or_register(cx.waker());
            ready!(finished.map_or(Poll::Pending, |finished| {
                self.keep(finished);
                Poll::Ready(())
            }));
        }
        let outcome = self.outcome.take();
        Poll::Ready(outcome.unwrap_or_else(|| Err(self.not_started())))
    }

    fn is_running(&self) -> bool {
        !self.comm.shared.is_foreign() && self.flight.as_ref().is_some_and(|c| !c.is_done())
    }

    fn io(&mut self) -> Option<&mut Region> {
        self.comm.shared.refuse_fork(self.name).ok()?;
        self.collect();
        self.idle.as_mut()?.region()
    }

    fn input(&mut self) -> Option<&mut Region> {
        self.comm.shared.refuse_fork(self.name).ok()?;
        self.collect();
        self.idle.as_mut()?.input_region()
    }

    fn into_memory(mut self: Box<Self>) -> Finished {
        if let Err(error) = self.comm.shared.refuse_fork(self.name) {
            // The memory of what was in flight is the parent's.
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
        self.land();
        let result = self.outcome.take().unwrap_or_else(|| Ok(Done::default()));
        let (mut io, mut input) = (None, None);
        if let Some(memory) = self.idle.take() {
            (_, io, input) = memory.into_parts();
        }
        Finished { io, input, result }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        if self.comm.shared.is_foreign() {
            return;
        }
        let late = self.flight.take().and_then(|c| c.detach());
        let outcome = late.map(|f| f.result).or(self.outcome.take());
        if let Some(Err(error)) = outcome
            && !user::inside()
        {
            let info = &self.comm.info;
            let identity = Identity::of(&self.op.kind, info.rank);
            let (group, lane) = identity.stream(info.id, self.op.lane.0);
            self.comm.shared.state.lock().set_sticky(group, lane, error);
        }
    }
}
