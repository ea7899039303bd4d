//! A communicator for tests: ranks are threads that meet in one table, and every result is computed in f64 by the last one to come.
//!
//! Independent of plans, engine and transports, so it says what the right answer is.

use gaggle_core::{
    Borrowed, Cancel, Cause, Clock, Codec, Communicator, Counts, DType, Descriptor, Done, Error,
    Finished, Float, Group, GroupInfo, Kind, Lane, LinkStats, Op, Owned, Pending, Persistent, Rank,
    Reduce, Region, SystemClock, Weight,
    raw::{bytes_of, elements_of},
};
use half::bf16;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

/// Lane, whether it is a neighbour operation, number.
type Id = (u32, bool, u64);

struct Entry {
    op: Op,
    dtype: DType,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Meeting {
    come: BTreeMap<u32, Entry>,
    wakers: Vec<Waker>,
    results: Option<Result<Vec<Vec<u8>>, Error>>,
    weight: Weight,
}

struct Hub {
    n: u32,
    clock: SystemClock,
    meetings: Mutex<BTreeMap<Id, Meeting>>,
    changed: Condvar,
    timeout: Duration,
    aborted: Mutex<Option<Error>>,
}

pub struct Fake {
    hub: Arc<Hub>,
    info: GroupInfo,
    next: Mutex<BTreeMap<u32, u64>>,
    bytes: AtomicU64,
}

/// One group per rank.
pub fn world(n: u32, timeout: Duration) -> Vec<Group> {
    let hub = Arc::new(Hub {
        n,
        clock: SystemClock::new(),
        meetings: Mutex::default(),
        changed: Condvar::new(),
        timeout,
        aborted: Mutex::default(),
    });
    (0..n)
        .map(|r| {
            Group::new(Arc::new(Fake {
                hub: Arc::clone(&hub),
                info: GroupInfo {
                    id: 1,
                    rank: Rank(r),
                    world_ranks: (0..n).map(Rank).collect(),
                    epoch: 0,
                    initial_size: n,
                    incarnation: 0,
                },
                next: Mutex::default(),
                bytes: AtomicU64::new(0),
            }))
        })
        .collect()
}

struct FakePending {
    hub: Arc<Hub>,
    id: Id,
    rank: u32,
    name: String,
    started: Duration,
    io: Option<Region>,
}

impl Fake {
    fn enter(&self, op: &Op, dtype: DType, bytes: &[u8]) -> Id {
        let id = match op.kind {
            Kind::Mix { t, .. } => (op.lane.0, true, t),
            _ => {
                let mut next = self.next.lock().unwrap();
                let seq = next.entry(op.lane.0).or_default();
                *seq += 1;
                (op.lane.0, false, *seq - 1)
            }
        };
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let mut meetings = self.hub.meetings.lock().unwrap();
        let m = meetings.entry(id).or_default();
        let twice = m.come.insert(
            self.info.rank.0,
            Entry {
                op: op.clone(),
                dtype,
                bytes: bytes.to_vec(),
            },
        );
        assert!(twice.is_none(), "{id:?} entered twice");
        if m.come.len() == self.hub.n as usize {
            m.results = Some(solve(&m.come));
            m.weight = Weight::from_bits(m.come.values().map(|e| e.op.weight.bits()).sum());
            m.wakers.drain(..).for_each(Waker::wake);
            self.hub.changed.notify_all();
        }
        id
    }
}

impl Hub {
    fn take(&self, id: Id, rank: u32) -> Option<(Result<Vec<u8>, Error>, Weight)> {
        if let Some(e) = &*self.aborted.lock().unwrap() {
            return Some((Err(e.clone()), Weight::ZERO));
        }
        let meetings = self.meetings.lock().unwrap();
        let m = &meetings[&id];
        let results = m.results.as_ref()?;
        Some((
            results
                .as_ref()
                .map(|all| all[rank as usize].clone())
                .map_err(Clone::clone),
            m.weight,
        ))
    }

    fn wait(&self, id: Id, rank: u32, name: &str) -> (Result<Vec<u8>, Error>, Weight) {
        let deadline = self.clock.now() + self.timeout;
        loop {
            if let Some(result) = self.take(id, rank) {
                return result;
            }
            let meetings = self.meetings.lock().unwrap();
            if meetings[&id].results.is_some() {
                continue;
            }
            let left = deadline.saturating_sub(self.clock.now());
            if left.is_zero() {
                return (
                    Err(late(name, &meetings[&id], self.n, self.timeout)),
                    Weight::ZERO,
                );
            }
            drop(self.changed.wait_timeout(meetings, left).unwrap());
        }
    }
}

fn late(name: &str, m: &Meeting, n: u32, waited: Duration) -> Error {
    Cause::Timeout {
        op: name.into(),
        waiting_for: (0..n)
            .filter(|r| !m.come.contains_key(r))
            .map(Rank)
            .collect(),
        waited,
        detail: String::new(),
        partly_written: false,
    }
    .into()
}

impl FakePending {
    fn end(&mut self, result: Result<Vec<u8>, Error>, weight: Weight) -> Finished {
        let mut io = self.io.take().expect("ends once");
        let result = result.map(|bytes| {
            let mut done = Done::default();
            done.weight = weight;
            done.bytes_sent = bytes.len() as u64;
            done.started = self.started;
            done.finished = self.hub.clock.now();
            io.view().unwrap().bytes().unwrap().copy_from_slice(&bytes);
            done
        });
        Finished {
            io: Some(io),
            input: None,
            result,
        }
    }
}

impl Pending for FakePending {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Finished> {
        if let Some((result, weight)) = self.hub.take(self.id, self.rank) {
            return Poll::Ready(self.end(result, weight));
        }
        let mut meetings = self.hub.meetings.lock().unwrap();
        let m = meetings.get_mut(&self.id).unwrap();
        if self.hub.clock.now() > self.started + self.hub.timeout && m.results.is_none() {
            let e = late(&self.name, m, self.hub.n, self.hub.timeout);
            drop(meetings);
            return Poll::Ready(self.end(Err(e), Weight::ZERO));
        }
        m.wakers.push(cx.waker().clone());
        if m.results.is_some() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn wait(mut self: Box<Self>) -> Finished {
        let (result, weight) = self.hub.wait(self.id, self.rank, &self.name);
        self.end(result, weight)
    }

    fn is_done(&self) -> bool {
        self.hub.take(self.id, self.rank).is_some()
    }

    fn canceller(&self) -> Arc<dyn Cancel> {
        unreachable!("nobody cancels the fake's operations")
    }
}

impl Communicator for Fake {
    fn info(&self) -> &GroupInfo {
        &self.info
    }

    fn run(&self, op: &Op, memory: Borrowed<'_>) -> Result<Done, Error> {
        let mut io = memory.io;
        let dtype = io.dtype();
        if let Some(input) = memory.input {
            let bytes = input.bytes().unwrap();
            let at = match op.kind {
                Kind::AllGather(_) => self.info.rank.idx() * bytes.len(),
                _ => 0,
            };
            io.bytes().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
        }
        let id = self.enter(op, dtype, io.bytes().unwrap());
        let (result, weight) = self
            .hub
            .wait(id, self.info.rank.0, op.kind.op_kind().name());
        io.bytes().unwrap().copy_from_slice(&result?);
        let mut done = Done::default();
        done.weight = weight;
        Ok(done)
    }

    fn start(&self, op: Op, memory: Owned) -> Box<dyn Pending> {
        assert!(
            memory.input.is_none(),
            "the fake starts operations in place"
        );
        let mut io = memory.io;
        let dtype = io.dtype();
        let started = self.hub.clock.now();
        let id = self.enter(&op, dtype, io.view().unwrap().bytes().unwrap());
        Box::new(FakePending {
            hub: Arc::clone(&self.hub),
            id,
            rank: self.info.rank.0,
            name: op.kind.op_kind().name().into(),
            started,
            io: Some(io),
        })
    }

    fn persistent(&self, _: Op, _: Owned) -> Result<Box<dyn Persistent>, Box<Finished>> {
        unreachable!("nobody repeats the fake's operations")
    }

    fn rebuild(&self, _: Duration) -> Result<Arc<dyn Communicator>, Error> {
        Err(Error::invalid("rebuild", "the fake does not"))
    }

    fn explain(&self, _: &Op, _: DType, _: usize) -> Result<String, Error> {
        Err(Error::invalid("explain", "the fake does not"))
    }

    fn feedback(&self, _: u64) -> Option<Vec<f32>> {
        None
    }

    fn set_feedback(&self, _: u64, _: Vec<f32>) {}

    fn subgroup(&self, _: &[Rank], _: &str) -> Result<Arc<dyn Communicator>, Error> {
        Err(Error::invalid("subgroup", "the fake has none"))
    }

    fn abort(&self, reason: &str) {
        *self.hub.aborted.lock().unwrap() = Some(
            Cause::Aborted {
                op: "all".into(),
                by: self.info.rank,
                reason: reason.into(),
            }
            .into(),
        );
        for m in self.hub.meetings.lock().unwrap().values_mut() {
            m.wakers.drain(..).for_each(Waker::wake);
        }
        self.hub.changed.notify_all();
    }

    fn stats(&self) -> LinkStats {
        let mut s = LinkStats::default();
        s.payload_sent = self.bytes.load(Ordering::Relaxed);
        s
    }

    fn next_round(&self, _: Lane) -> u64 {
        0
    }

    fn now(&self) -> Duration {
        self.hub.clock.now()
    }

    fn describe(&self, _: &Op, _: DType, _: usize) -> Result<Descriptor, Error> {
        Err(Error::invalid("describe", "the fake does not"))
    }
}

fn solve(come: &BTreeMap<u32, Entry>) -> Result<Vec<Vec<u8>>, Error> {
    let first = &come[&0];
    let name = |e: &Entry| format!("{:?} of {} bytes", e.op.kind.op_kind(), e.bytes.len());
    if come.values().any(|e| name(e) != name(first)) {
        return Err(Cause::Mismatch {
            op: "fake".into(),
            deviating: come.keys().map(|r| Rank(*r)).collect(),
            versions: come
                .iter()
                .map(|(r, e)| (vec![Rank(*r)], name(e)))
                .collect(),
            partly_written: false,
        }
        .into());
    }
    Ok(match &first.op.kind {
        Kind::Barrier => vec![vec![]; come.len()],
        Kind::Broadcast { root } => vec![come[&root.0].bytes.clone(); come.len()],
        Kind::AllGather(Counts::Equal) => {
            let part = first.bytes.len() / come.len();
            let all: Vec<u8> = come
                .iter()
                .flat_map(|(r, e)| e.bytes[*r as usize * part..][..part].to_vec())
                .collect();
            vec![all; come.len()]
        }
        _ => match first.dtype {
            DType::F32 => floats::<f32>(come),
            DType::F64 => floats::<f64>(come),
            other => panic!("the fake does not reduce {other}"),
        },
    })
}

fn floats<T: Float>(come: &BTreeMap<u32, Entry>) -> Vec<Vec<u8>> {
    let coded = |e: &Entry, v: T| match e.op.codec {
        Codec::None => v.to_f64(),
        Codec::Bf16 => bf16::from_f64(v.to_f64()).to_f64(),
        other => panic!("the fake does not write {other}"),
    };
    let xs: Vec<Vec<T>> = come
        .values()
        .map(|e| match e.bytes.len() {
            0 => vec![],
            _ => elements_of::<T>(&e.bytes).unwrap().to_vec(),
        })
        .collect();
    let n = xs[0].len();
    come.iter()
        .map(|(me, mine)| {
            let y: Vec<T> = (0..n)
                .map(|i| match &mine.op.kind {
                    Kind::AllReduce(reduce) => {
                        assert_eq!(*reduce, Reduce::Mean);
                        let (mut sum, mut total) = (0.0, 0.0);
                        for (r, e) in come {
                            let w = e.op.weight.to_f64();
                            if w > 0.0 {
                                sum += w * coded(e, xs[*r as usize][i]);
                                total += w;
                            }
                        }
                        if total == 0.0 {
                            return xs[*me as usize][i];
                        }
                        let mean = T::from_f64(sum / total);
                        T::from_f64(coded(mine, mean))
                    }
                    Kind::Mix { round, .. } => {
                        let own = xs[*me as usize][i].to_f64();
                        let mut sum = round.keep * own;
                        for (from, a) in &round.from {
                            let Kind::Mix { round: theirs, .. } = &come[&from.0].op.kind else {
                                panic!("checked above");
                            };
                            let b = theirs.to.iter().find(|(r, _)| r.0 == *me).unwrap().1;
                            sum += a * b * coded(&come[&from.0], xs[from.idx()][i]);
                        }
                        T::from_f64(sum)
                    }
                    other => panic!("the fake does not know {other:?}"),
                })
                .collect();
            bytes_of(&y).to_vec()
        })
        .collect()
}
