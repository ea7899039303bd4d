//! Collectives between devices, by kernels that meet.

use super::{Device, Stream, StreamEvent};
use gaggle_core::{
    Borrowed, Cancel, Cause, Clock, Communicator, DType, Descriptor, Done, Error, Event, Finished,
    GroupInfo, Kind, Lane, LinkStats, Op, Owned, Pending, Persistent, Rank, Reduce, Region, Space,
    SystemClock, Weight,
};
use gaggle_kernels::{Source, Term, fold};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::HashMap,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

/// Lane and number.
type Id = (u32, u64);

/// Where the kernels of all ranks meet: what the devices' links are in truth.
struct Hub {
    n: u32,
    clock: SystemClock,
    state: Mutex<HubState>,
    changed: Condvar,
}

#[derive(Default)]
struct HubState {
    meetings: HashMap<Id, Meeting>,
    /// As with NCCL, one failure ends the communicator.
    ended: Option<Error>,
}

/// The kernels of one operation.
#[derive(Default)]
struct Meeting {
    come: Vec<Part>,
    result: Option<Result<Weight, Error>>,
    gone: u32,
}

/// What one rank brings.
struct Part {
    rank: Rank,
    device: Arc<Device>,
    input: usize,
    output: usize,
    what: String,
    weight: Weight,
}

/// One rank's communicator over a device. Operations on memory of any other space are refused.
pub struct DeviceComm {
    hub: Arc<Hub>,
    info: GroupInfo,
    stream: Stream,
    /// The next number of each lane.
    next: Mutex<HashMap<u32, u64>>,
    sticky: Sticky,
}

/// Errors of operations whose memory came back before their end, by lane.
type Sticky = Arc<Mutex<HashMap<u32, Error>>>;

/// One communicator per device; all of them in this process, each with a stream of its own.
///
/// # Errors
/// The system gives no thread.
pub fn world(devices: &[Arc<Device>]) -> std::io::Result<Vec<Arc<DeviceComm>>> {
    let n = devices.len() as u32;
    let hub = Arc::new(Hub {
        n,
        clock: SystemClock::new(),
        state: Mutex::default(),
        changed: Condvar::new(),
    });
    let comm = |(rank, device): (u32, &Arc<Device>)| {
        Ok(Arc::new(DeviceComm {
            hub: Arc::clone(&hub),
            info: GroupInfo {
                id: 1,
                rank: Rank(rank),
                world_ranks: (0..n).map(Rank).collect(),
                epoch: 0,
                initial_size: n,
                incarnation: 0,
            },
            stream: Stream::new(device)?,
            next: Mutex::default(),
            sticky: Arc::default(),
        }))
    };
    (0..).zip(devices).map(comm).collect()
}

/// The erased memory of an operation, as addresses.
struct Places {
    dtype: DType,
    len: usize,
    output: usize,
    /// Address and length.
    input: Option<(usize, usize)>,
    spaces: [Option<Space>; 2],
}

/// What the kernels do once they have met.
struct Work {
    reduce: Reduce,
    root: Option<Rank>,
    dtype: DType,
    limit: Duration,
}

impl DeviceComm {
    /// Enqueues an operation behind the events.
    fn enqueue(
        &self,
        op: &Op,
        places: &Places,
        after: Vec<Arc<dyn Event>>,
    ) -> Result<InFlight, Error> {
        let name = op.kind.op_kind().name();
        let own = self.stream.device.space();
        let spaces = places.spaces.into_iter().flatten();
        if let Some(other) = spaces.into_iter().find(|s| *s != own) {
            let what = format!("this communicator works on {own}, and the buffer is {other}");
            return Err(unsupported(name, what));
        }
        let (reduce, root) = match &op.kind {
            Kind::AllReduce(reduce) if *reduce != Reduce::User => (*reduce, None),
            Kind::Broadcast { root } if root.0 < self.hub.n => (Reduce::Sum, Some(*root)),
            _ => return Err(unsupported(name, "these devices have none".into())),
        };
        if !reduce.is_defined_on(places.dtype) {
            let what = format!("{reduce} is not defined on {}", places.dtype);
            return Err(unsupported(name, what));
        }
        if places.input.is_some_and(|(_, len)| len != places.len) {
            return Err(Error::invalid(name, "input and output differ in length"));
        }
        if let Some(error) = self.sticky.lock().remove(&op.lane.0) {
            return Err(error);
        }
        if let Some(error) = &self.hub.state.lock().ended {
            return Err(error.clone());
        }
        // Held until it is enqueued: numbers are in the order of the stream.
        let mut next = self.next.lock();
        let seq = next.entry(op.lane.0).or_default();
        let id = (op.lane.0, *seq);
        *seq += 1;
        for event in after {
            self.stream.wait_for(event);
        }
        let part = Part {
            rank: self.info.rank,
            device: Arc::clone(&self.stream.device),
            input: places.input.map_or(places.output, |i| i.0),
            output: places.output,
            what: format!("{reduce} from {root:?} of {} {}", places.len, places.dtype),
            weight: op.weight,
        };
        let work = Work {
            reduce,
            root,
            dtype: places.dtype,
            limit: op.timeout.unwrap_or(Duration::from_secs(300)),
        };
        let name = format!("{name} #{}", id.1);
        let outcome = Arc::<Mutex<Outcome>>::default();
        let (to, hub, sticky) = (outcome.clone(), self.hub.clone(), self.sticky.clone());
        let label = name.clone();
        let event = self.stream.launch(move |_| {
            let result = hub.meet(id, &label, part, &work);
            let mut to = to.lock();
            match result {
                Err(error) if to.is_detached => {
                    sticky.lock().insert(id.0, error);
                }
                result => to.result = Some(result),
            }
        });
        Ok(InFlight {
            name,
            rank: self.info.rank,
            hub: Arc::clone(&self.hub),
            started: self.hub.clock.now(),
            event,
            outcome,
        })
    }
}

/// How an operation has ended, once it has.
#[derive(Default)]
struct Outcome {
    result: Option<Result<Weight, Error>>,
    /// Nobody will ask.
    is_detached: bool,
}

/// An operation on its stream.
#[derive(Clone)]
struct InFlight {
    name: String,
    rank: Rank,
    hub: Arc<Hub>,
    started: Duration,
    event: Arc<StreamEvent>,
    outcome: Arc<Mutex<Outcome>>,
}

impl InFlight {
    /// Once the event is done.
    fn result(&self) -> Result<Done, Error> {
        let result = self.outcome.lock().result.take();
        let weight = result.unwrap_or_else(|| Err(Error::internal("a stream has died")))?;
        let mut done = Done::default();
        done.weight = weight;
        done.started = self.started;
        done.finished = self.hub.clock.now();
        Ok(done)
    }
}

impl Cancel for InFlight {
    fn cancel(&self, reason: &str) {
        if !self.event.is_done() {
            self.hub.end(
                Cause::Cancelled {
                    op: self.name.clone(),
                    by: self.rank,
                    reason: reason.into(),
                    partly_written: false,
                }
                .into(),
            );
        }
    }
}

impl Hub {
    /// Ends everything, once.
    fn end(&self, error: Error) {
        self.state.lock().ended.get_or_insert(error);
        self.changed.notify_all();
    }

    /// A kernel: waits for those of the other ranks, and the last one does the work. Nothing is written unless all have come.
    fn meet(&self, id: Id, name: &str, part: Part, work: &Work) -> Result<Weight, Error> {
        let deadline = self.clock.now().saturating_add(work.limit);
        let mut state = self.state.lock();
        if let Some(error) = &state.ended {
            return Err(error.clone());
        }
        let meeting = state.meetings.entry(id).or_default();
        meeting.come.push(part);
        if meeting.come.len() == self.n as usize {
            meeting.result = Some(meeting.work(name, work));
            self.changed.notify_all();
        }
        loop {
            if let Some(meeting) = state.meetings.get_mut(&id)
                && let Some(result) = meeting.result.clone()
            {
                meeting.gone += 1;
                if meeting.gone == self.n {
                    state.meetings.remove(&id);
                }
                return result;
            }
            if let Some(error) = &state.ended {
                return Err(error.clone());
            }
            let left = deadline.saturating_sub(self.clock.now());
            if left.is_zero() {
                let come = state.meetings.get(&id).map_or(&[][..], |m| &m.come);
                let is_here = |rank: &Rank| come.iter().any(|p| p.rank == *rank);
                let all = (0..self.n).map(Rank);
                let error = Error::from(Cause::Timeout {
                    op: name.into(),
                    waiting_for: all.filter(|rank| !is_here(rank)).collect(),
                    waited: work.limit,
                    detail: String::new(),
                    partly_written: false,
                });
                state.ended = Some(error);
                self.changed.notify_all();
            } else {
                self.changed.wait_for(&mut state, left);
            }
        }
    }
}

impl Meeting {
    fn work(&mut self, name: &str, work: &Work) -> Result<Weight, Error> {
        self.come.sort_by_key(|p| p.rank);
        let mut versions: Vec<(Vec<Rank>, String)> = Vec::new();
        for part in &self.come {
            match versions.iter_mut().find(|v| v.1 == part.what) {
                Some(v) => v.0.push(part.rank),
                None => versions.push((vec![part.rank], part.what.clone())),
            }
        }
        if versions.len() > 1 {
            let most = versions.iter().map(|v| v.0.len()).max().unwrap_or(0);
            let is_tie = versions.iter().filter(|v| v.0.len() == most).count() > 1;
            let deviating = versions.iter().filter(|v| is_tie || v.0.len() < most);
            return Err(Cause::Mismatch {
                op: name.into(),
                deviating: deviating.flat_map(|v| v.0.clone()).collect(),
                versions,
                partly_written: false,
            }
            .into());
        }
        let is_mean = work.reduce == Reduce::Mean;
        let sum: u64 = self.come.iter().map(|p| p.weight.bits()).sum();
        let inputs: Vec<Vec<u8>> = self.come.iter().map(|p| p.device.read(p.input)).collect();
        let mut result = match work.root {
            Some(root) => inputs[root.idx()].clone(),
            None => vec![0; inputs[0].len()],
        };
        if work.root.is_none() {
            let term = |(bytes, part): (&'_ Vec<u8>, &Part)| (bytes.clone(), part.weight);
            let all: Vec<(Vec<u8>, Weight)> = inputs.iter().zip(&self.come).map(term).collect();
            let terms: Vec<Term<'_>> = all
                .iter()
                .map(|(bytes, weight)| Term {
                    source: Source::Bytes {
                        bytes,
                        dtype: work.dtype,
                    },
                    weight: is_mean.then_some(*weight),
                })
                .collect();
            fold(work.dtype, work.reduce, &mut result, &terms);
        }
        if !is_mean || sum > 0 {
            for part in &self.come {
                part.device.write(part.output, &result);
            }
        }
        Ok(Weight::from_bits(if is_mean { sum } else { 0 }))
    }
}

/// An operation on owned device memory.
struct DevicePending {
    /// Output and input; `None` once they are given back.
    memory: Option<(Region, Option<Region>)>,
    /// Or why there is none.
    flight: Result<InFlight, Error>,
    stream: Stream,
}

impl DevicePending {
    fn finish(&mut self) -> Finished {
        let (io, input) = self
            .memory
            .take()
            .map_or((None, None), |(io, input)| (Some(io), input));
        let result = match &self.flight {
            Ok(flight) => flight.result(),
            Err(error) => Err(error.clone()),
        };
        Finished { io, input, result }
    }
}

impl Pending for DevicePending {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Finished> {
        match &self.flight {
            Ok(flight) if !flight.event.is_done_or(cx.waker()) => Poll::Pending,
            _ => Poll::Ready(self.finish()),
        }
    }

    fn wait(mut self: Box<Self>) -> Finished {
        if let Ok(flight) = &self.flight {
            // The kernel has a deadline of its own.
            while !flight.event.wait(Duration::from_secs(3600)) {}
        }
        self.finish()
    }

    fn enqueued(mut self: Box<Self>) -> Finished {
        let Ok(flight) = self.flight.clone() else {
            return self.finish();
        };
        let mut outcome = flight.outcome.lock();
        if outcome.result.is_some() {
            drop(outcome);
            return self.finish();
        }
        outcome.is_detached = true;
        drop(outcome);
        let (mut io, mut input) = self
            .memory
            .take()
            .map_or((None, None), |(io, input)| (Some(io), input));
        for region in io.iter_mut().chain(&mut input) {
            region.set_ready(flight.event.clone());
        }
        Finished {
            io,
            input,
            result: Ok(Done::default()),
        }
    }

    fn is_done(&self) -> bool {
        self.flight.as_ref().map_or(true, |f| f.event.is_done())
    }

    fn canceller(&self) -> Arc<dyn Cancel> {
        match &self.flight {
            Ok(flight) => Arc::new(flight.clone()),
            Err(_) => Arc::new(Over),
        }
    }
}

struct Over;

impl Cancel for Over {
    fn cancel(&self, _reason: &str) {}
}

impl Drop for DevicePending {
    fn drop(&mut self) {
        let (Some(memory), Ok(flight)) = (self.memory.take(), &self.flight) else {
            return;
        };
        flight.outcome.lock().is_detached = true;
        // Freed behind the kernel that still uses it.
        self.stream.launch(move |_| drop(memory));
    }
}

impl Communicator for DeviceComm {
    fn info(&self) -> &GroupInfo {
        &self.info
    }

    fn run(&self, op: &Op, mut io: Borrowed<'_>) -> Result<Done, Error> {
        let places = Places {
            dtype: io.io.dtype(),
            len: io.io.len(),
            output: io.io.as_ptr().addr().get(),
            input: io.input.map(|v| (v.as_ptr().addr().get(), v.len())),
            spaces: [Some(io.io.space()), io.input.map(|v| v.space())],
        };
        let flight = self.enqueue(op, &places, vec![])?;
        // Not before: until then a kernel may touch what was lent. It has a deadline of its own.
        while !flight.event.wait(Duration::from_secs(3600)) {}
        flight.result()
    }

    fn start(&self, op: Op, memory: Owned) -> Box<dyn Pending> {
        let (mut io, mut input) = (memory.io, memory.input);
        let after = [Some(&io), input.as_ref()];
        let after = after
            .into_iter()
            .flatten()
            .filter_map(|r| r.ready().cloned());
        let after = after.collect();
        let places = Places {
            dtype: io.dtype(),
            len: io.len(),
            output: io.erased().as_ptr().addr().get(),
            spaces: [Some(io.space()), input.as_ref().map(Region::space)],
            input: input
                .as_mut()
                .map(|r| (r.erased().as_ptr().addr().get(), r.len())),
        };
        Box::new(DevicePending {
            flight: self.enqueue(&op, &places, after),
            memory: Some((io, input)),
            stream: self.stream.clone(),
        })
    }

    fn persistent(&self, op: Op, memory: Owned) -> Result<Box<dyn Persistent>, Box<Finished>> {
        let name = op.kind.op_kind().name();
        Err(Box::new(Finished {
            io: Some(memory.io),
            input: memory.input,
            result: Err(unsupported(name, "is not persistent here".into())),
        }))
    }

    fn subgroup(&self, _: &[Rank], _: &str) -> Result<Arc<dyn Communicator>, Error> {
        Err(unsupported("subgroup", "these devices have none".into()))
    }

    fn rebuild(&self, _: Duration) -> Result<Arc<dyn Communicator>, Error> {
        Err(unsupported("rebuild", "these devices have none".into()))
    }

    fn abort(&self, reason: &str) {
        self.hub.end(
            Cause::Aborted {
                op: "abort".into(),
                by: self.info.rank,
                reason: reason.into(),
            }
            .into(),
        );
    }

    fn stats(&self) -> LinkStats {
        LinkStats::default()
    }

    fn next_round(&self, _: Lane) -> u64 {
        0
    }

    fn now(&self) -> Duration {
        self.hub.clock.now()
    }

    fn describe(&self, op: &Op, _: DType, _: usize) -> Result<Descriptor, Error> {
        let name = op.kind.op_kind().name();
        Err(unsupported(name, "has no descriptor here".into()))
    }

    fn explain(&self, op: &Op, dtype: DType, len: usize) -> Result<String, Error> {
        let name = op.kind.op_kind().name();
        Ok(format!(
            "{name} of {len} {dtype}: one kernel on every device"
        ))
    }

    fn feedback(&self, _: u64) -> Option<Vec<f32>> {
        None
    }

    fn set_feedback(&self, _: u64, _: Vec<f32>) {}
}

fn unsupported(op: &str, what: String) -> Error {
    Cause::Unsupported {
        op: op.into(),
        what,
    }
    .into()
}
