//! The reducer: gradients in, means out, with the communication under backward.
//!
//! A step is `begin_step`, one `ready` per parameter from within backward (in any order, from any thread, in different orders on the ranks), `finish`.
//! The gradient is copied into its bucket; the last one of a bucket sends the bucket on its own lane.
//! Buckets are owned memory that goes to the hook and comes back, step after step; ranks of one host have it mapped of each other where they have such memory ([`Group::buffer`]), so that it is reduced where it lies.

use crate::{
    Bucket, BucketConfig, CommHook, DdpError, HookFuture, Layout, ParamSpec, Params, StepReport,
    digest::Comparison, digest::digest, report::BucketReport,
};
use gaggle_core::{
    Buffer, Error, Float, Group, Kind, Lane, Op, Rank, Weight, descriptor::stable_hash,
};
use std::{
    any::Any,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

/// How a [`Ddp`] is set up; the same on every rank, and compared at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DdpConfig {
    /// How gradients are packed.
    pub buckets: BucketConfig,
    /// The first of its lanes: comparisons use it, bucket `b` uses lane `lane + 1 + b`. The caller's own operations, and other reducers in the group, stay off these.
    pub lane: Lane,
}

impl Default for DdpConfig {
    fn default() -> Self {
        DdpConfig {
            buckets: BucketConfig::default(),
            lane: Lane(1000),
        }
    }
}

/// Averages the gradients of one model over a group.
///
/// # Failures
/// A mistake in `ready` or a `finish` with gradients missing is reported at once and changes nothing: the step stays open.
/// Meanwhile the peers wait in their `finish` for the buckets that this rank has not sent, at most until the group's deadline, whose error names this rank; [`abort`](Self::abort) ends their wait with a reason.
/// A failed reduction ends the step on this rank, after every bucket has come back; where the group's error leaves the group usable (a mismatch, a timeout), so is the next step.
pub struct Ddp<T: Float> {
    shared: Arc<Shared<T>>,
    /// Reduced buckets between `finish` and the next `begin_step`.
    reduced: Vec<Buffer<T>>,
}

/// Hands gradients over from within backward; made by [`Ddp::feed`], cheap to clone, `Send + Sync`.
pub struct GradFeed<T: Float>(Arc<Shared<T>>);

impl<T: Float> Clone for GradFeed<T> {
    fn clone(&self) -> Self {
        GradFeed(Arc::clone(&self.0))
    }
}

impl<T: Float> GradFeed<T> {
    /// As [`Ddp::ready`].
    ///
    /// # Errors
    /// As [`Ddp::ready`].
    pub fn ready(&self, idx: usize, grad: &[T]) -> Result<(), DdpError> {
        self.0.ready(idx, grad)
    }
}

struct Shared<T: Float> {
    group: Group,
    params: Params,
    layout: Layout,
    slots: Vec<Arc<[crate::Slot]>>,
    hook: Arc<dyn CommHook<T>>,
    lane: Lane,
    step: Mutex<Step<T>>,
    /// A bucket was put back into `step` by a thread that had it out.
    put_back: Condvar,
}

struct Step<T: Float> {
    open: bool,
    begun: Duration,
    weight: Weight,
    seen: Vec<bool>,
    buckets: Vec<State<T>>,
}

enum State<T: Float> {
    /// Gradients are coming in.
    Filling { data: Buffer<T>, missing: usize },
    /// In the hook.
    Flying(HookFuture<T>),
    /// A thread has it out to poll it.
    Out,
    /// Back from the hook.
    Landed(Result<(Buffer<T>, BucketReport), DdpError>),
}

impl<T: Float> Ddp<T> {
    /// Sets up the buckets and compares the model with the other ranks': element type, settings, names, shapes, their order. Collective.
    ///
    /// Cost: three all-gathers of 8 to 16 bytes where all agree.
    ///
    /// # Errors
    /// [`DdpError::DuplicateParameter`], [`DdpError::TooLarge`], [`DdpError::HookType`]: nothing was sent.
    /// [`DdpError::ModelMismatch`], on every rank, names the ranks that differ and the first difference.
    /// [`DdpError::Communication`] where a rank does not answer.
    pub fn new(
        group: Group,
        params: &[ParamSpec],
        hook: Arc<dyn CommHook<T>>,
        config: DdpConfig,
    ) -> Result<Self, DdpError> {
        let params = Params::new(params)?;
        if !hook.carries(T::DTYPE) {
            return Err(DdpError::HookType {
                hook: hook.name().into(),
                dtype: T::DTYPE,
            });
        }
        let layout = Layout::new(&params, T::DTYPE.size(), &config.buckets);
        compare_models(&group, &params, &*hook, &config, T::DTYPE)?;
        let slots = layout
            .buckets()
            .iter()
            .map(|b| b.slots.as_slice().into())
            .collect();
        let reduced = layout
            .buckets()
            .iter()
            .map(|b| group.buffer(b.len_elems))
            .collect();
        let step = Step {
            open: false,
            begun: Duration::ZERO,
            weight: Weight::ONE,
            seen: vec![false; params.count()],
            buckets: Vec::with_capacity(layout.buckets().len()),
        };
        Ok(Ddp {
            shared: Arc::new(Shared {
                group,
                params,
                layout,
                slots,
                hook,
                lane: config.lane,
                step: Mutex::new(step),
                put_back: Condvar::new(),
            }),
            reduced,
        })
    }

    /// Begins a step in which this rank's gradients weigh `weight`: the number of samples they are the mean of. 0: this rank has none, its gradients are never read.
    ///
    /// # Errors
    /// [`DdpError::StepOpen`].
    pub fn begin_step(&mut self, weight: Weight) -> Result<(), DdpError> {
        let now = self.shared.now();
        let mut step = self.shared.lock();
        if step.open {
            return Err(DdpError::StepOpen);
        }
        step.open = true;
        step.begun = now;
        step.weight = weight;
        step.seen.fill(false);
        step.buckets.clear();
        let layouts = self.shared.layout.buckets();
        for (data, layout) in self.reduced.iter_mut().zip(layouts) {
            let mut data = mem::take(data);
            // Only memory that a failed step has lost is made anew.
            if data.len() != layout.len_elems {
                data = self.shared.group.buffer(layout.len_elems);
            }
            step.buckets.push(State::Filling {
                data,
                missing: layout.slots.len(),
            });
        }
        Ok(())
    }

    /// Hands over the complete gradient of parameter `idx`. Copies it into its bucket; the last one of a bucket starts the bucket's reduction. Does not wait.
    ///
    /// # Errors
    /// [`DdpError::NoStep`], [`DdpError::UnknownParameter`], [`DdpError::WrongLength`], [`DdpError::ReadyTwice`]: nothing has changed. What goes wrong in a reduction is reported by `finish`.
    pub fn ready(&self, idx: usize, grad: &[T]) -> Result<(), DdpError> {
        self.shared.ready(idx, grad)
    }

    /// A handle for backward hooks, which outlive no borrow of this value.
    pub fn feed(&self) -> GradFeed<T> {
        GradFeed(Arc::clone(&self.shared))
    }

    /// Waits for every bucket and shows the means, which are the same bits on every rank.
    ///
    /// # Errors
    /// [`DdpError::NoStep`]; [`DdpError::MissingGradients`]: at once, and the step stays open.
    /// [`DdpError::Reduction`], [`DdpError::HookPanicked`]: the first bucket's that failed; all have come back and the step is over.
    pub fn finish(&mut self) -> Result<Reduced<'_, T>, DdpError> {
        let called = self.shared.now();
        let begun = self.shared.check_complete()?;
        self.shared.land_all();
        let returned = self.shared.now();
        let landed: Vec<State<T>> = {
            let mut step = self.shared.lock();
            step.open = false;
            step.buckets.drain(..).collect()
        };
        let mut reports = Vec::with_capacity(landed.len());
        let mut failure = None;
        for (place, state) in self.reduced.iter_mut().zip(landed) {
            match state {
                State::Landed(Ok((data, report))) => {
                    *place = data;
                    reports.push(report);
                }
                State::Landed(Err(e)) => {
                    failure.get_or_insert(e);
                }
                State::Filling { .. } | State::Flying(_) | State::Out => {
                    failure.get_or_insert(DdpError::Communication {
                        during: "finish",
                        source: Error::internal("a bucket was left behind"),
                    });
                }
            }
        }
        if let Some(e) = failure {
            return Err(e);
        }
        Ok(Reduced {
            report: StepReport::new(reports, begun, called, returned),
            shared: &self.shared,
            buckets: &self.reduced,
        })
    }

    /// Ends every operation of the group on every rank: for a rank that cannot finish its step.
    pub fn abort(&self, reason: &str) {
        self.shared.group.abort(reason);
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.shared.group
    }

    /// The model.
    pub fn params(&self) -> &Params {
        &self.shared.params
    }

    /// The buckets.
    pub fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// Makes the root's values everybody's, tensor by tensor. Collective; for initial values.
    ///
    /// # Errors
    /// [`DdpError::WrongCount`], [`DdpError::WrongLength`]: nothing was sent. [`DdpError::Communication`].
    pub fn broadcast_from(&self, root: Rank, values: &mut [&mut [T]]) -> Result<(), DdpError> {
        self.shared.check_values(values.iter().map(|v| v.len()))?;
        let op = Op::new(Kind::Broadcast { root }).on(self.shared.lane);
        for value in values.iter_mut() {
            self.shared
                .group
                .run(&op, value)
                .map_err(|source| DdpError::Communication {
                    during: "broadcast of initial values",
                    source,
                })?;
        }
        Ok(())
    }

    /// Ok where all ranks hold the same values, bit for bit. Collective; one all-gather of 16 bytes where they do.
    ///
    /// # Errors
    /// [`DdpError::WrongCount`], [`DdpError::WrongLength`]: nothing was sent. [`DdpError::ModelMismatch`] names the ranks that differ and the first parameter in which they do. [`DdpError::Communication`].
    pub fn verify_values(&self, values: &[&[T]]) -> Result<(), DdpError> {
        self.shared.check_values(values.iter().map(|v| v.len()))?;
        let hashes: Vec<u64> = values.iter().map(|v| digest(v).0).collect();
        let comparison = Comparison {
            group: &self.shared.group,
            lane: self.shared.lane,
            during: "comparing values",
        };
        comparison.same_list(&hashes, |i| {
            let name = &self.shared.params.specs()[i].name;
            format!("{name:?} with digest {:016x}", hashes[i])
        })
    }
}

/// The settings first, so that what follows is done alike on every rank.
fn compare_models<T: Float>(
    group: &Group,
    params: &Params,
    hook: &dyn CommHook<T>,
    config: &DdpConfig,
    dtype: gaggle_core::DType,
) -> Result<(), DdpError> {
    let comparison = Comparison {
        group,
        lane: config.lane,
        during: "comparing models",
    };
    comparison.same("element type", &dtype.to_string())?;
    let BucketConfig {
        cap_bytes,
        first_bytes,
    } = config.buckets;
    comparison.same(
        "settings",
        &format!(
            "hook {}, buckets of {cap_bytes} bytes, the first of {first_bytes}",
            hook.name()
        ),
    )?;
    let hashes: Vec<u64> = params
        .specs()
        .iter()
        .map(|spec| {
            let mut axes = Vec::with_capacity(spec.shape.len() * 8);
            for axis in &spec.shape {
                axes.extend_from_slice(&(*axis as u64).to_le_bytes());
            }
            stable_hash(&[spec.name.as_bytes(), &axes])
        })
        .collect();
    comparison.same_list(&hashes, |i| params.specs()[i].describe())
}

impl<T: Float> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Step<T>> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.group.communicator().now()
    }

    fn check_values(&self, lens: impl ExactSizeIterator<Item = usize>) -> Result<(), DdpError> {
        if lens.len() != self.params.count() {
            return Err(DdpError::WrongCount {
                want: self.params.count(),
                got: lens.len(),
            });
        }
        for (idx, len) in lens.enumerate() {
            self.params.check_len(idx, len)?;
        }
        Ok(())
    }

    fn ready(&self, idx: usize, grad: &[T]) -> Result<(), DdpError> {
        let full = self.fill(idx, grad)?;
        if let Some(bucket) = full {
            let idx = bucket.idx;
            let hook = AssertUnwindSafe(|| self.hook.reduce(self.group.clone(), bucket));
            let state = match catch_unwind(hook) {
                Ok(future) => State::Flying(future),
                Err(panic) => State::Landed(Err(self.panicked(idx, panic.as_ref()))),
            };
            self.put(idx, state);
            // The first poll starts the bucket; the others may have a next collective to start.
            self.drive(Waker::noop());
        }
        Ok(())
    }

    /// Copies the gradient; gives the bucket out when it was the last one.
    fn fill(&self, idx: usize, grad: &[T]) -> Result<Option<Bucket<T>>, DdpError> {
        let mut step = self.lock();
        if !step.open {
            return Err(DdpError::NoStep { call: "ready" });
        }
        self.params.check_len(idx, grad.len())?;
        if step.seen[idx] {
            return Err(DdpError::ReadyTwice {
                name: self.params.specs()[idx].name.clone(),
            });
        }
        let Some((b, at)) = self.layout.place(idx) else {
            return Err(DdpError::UnknownParameter {
                idx,
                count: self.params.count(),
            });
        };
        let weight = step.weight;
        let State::Filling { data, missing } = &mut step.buckets[b] else {
            return Err(DdpError::Communication {
                during: "ready",
                source: Error::internal("a bucket was sent before it was full"),
            });
        };
        data[at].copy_from_slice(grad);
        *missing -= 1;
        let full = (*missing == 0).then(|| mem::take(data));
        step.seen[idx] = true;
        Ok(full.map(|data| {
            step.buckets[b] = State::Out;
            let lane = Lane(
                self.lane
                    .0
                    .wrapping_add(1)
                    .wrapping_add(u32::try_from(b).unwrap_or(u32::MAX)),
            );
            Bucket::new(data, b, Arc::clone(&self.slots[b]), weight, lane)
        }))
    }

    /// The time of `begin_step`, where every gradient is there.
    fn check_complete(&self) -> Result<Duration, DdpError> {
        let step = self.lock();
        if !step.open {
            return Err(DdpError::NoStep { call: "finish" });
        }
        let names: Vec<String> = self
            .params
            .specs()
            .iter()
            .zip(&step.seen)
            .filter(|(_, seen)| !**seen)
            .map(|(spec, _)| spec.name.clone())
            .collect();
        if names.is_empty() {
            return Ok(step.begun);
        }
        Err(DdpError::MissingGradients {
            names,
            count: self.params.count(),
        })
    }

    fn put(&self, idx: usize, state: State<T>) {
        self.lock().buckets[idx] = state;
        self.put_back.notify_all();
    }

    /// Polls every bucket that is in the hook, without holding the lock.
    fn drive(&self, waker: &Waker) {
        let n = self.layout.buckets().len();
        for idx in 0..n {
            let future = {
                let mut step = self.lock();
                let Some(place) = step.buckets.get_mut(idx) else {
                    return;
                };
                match mem::replace(place, State::Out) {
                    State::Flying(future) => future,
                    other => {
                        *place = other;
                        continue;
                    }
                }
            };
            let state = self.poll(idx, future, waker);
            self.put(idx, state);
        }
    }

    fn poll(&self, idx: usize, mut future: HookFuture<T>, waker: &Waker) -> State<T> {
        let polled = catch_unwind(AssertUnwindSafe(|| {
            future.as_mut().poll(&mut Context::from_waker(waker))
        }));
        let want = self.layout.buckets()[idx].len_elems;
        match polled {
            Ok(Poll::Pending) => State::Flying(future),
            Ok(Poll::Ready(Ok(bucket))) if bucket.data.len() == want => {
                let report = bucket.report();
                State::Landed(Ok((bucket.data, report)))
            }
            Ok(Poll::Ready(Ok(bucket))) => State::Landed(Err(self.failed(
                idx,
                Error::invalid(
                    format!("hook {}", self.hook.name()),
                    format!("gave back {} elements of {want}", bucket.data.len()),
                ),
            ))),
            Ok(Poll::Ready(Err(failed))) => State::Landed(Err(self.failed(idx, failed.error))),
            Err(panic) => State::Landed(Err(self.panicked(idx, panic.as_ref()))),
        }
    }

    /// Returns once every bucket has landed. A waiting thread helps: it polls, and sleeps only between polls.
    fn land_all(&self) {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut idle_polls = 0u32;
        loop {
            self.drive(&waker);
            let step = self.lock();
            let flying = step.buckets.iter().any(|b| matches!(b, State::Flying(_)));
            let out = step.buckets.iter().any(|b| matches!(b, State::Out));
            match (flying, out) {
                (false, false) => return,
                // Another thread is about to put a bucket back.
                (false, true) => drop(
                    self.put_back
                        .wait_timeout(step, HELP_EVERY)
                        .unwrap_or_else(PoisonError::into_inner),
                ),
                (true, _) => {
                    drop(step);
                    idle_polls += 1;
                    if idle_polls < YIELDS {
                        thread::yield_now();
                    } else {
                        // The waker ends this early. Without a progress thread nobody else moves things, hence the bound.
                        thread::park_timeout(HELP_EVERY);
                    }
                }
            }
        }
    }

    fn failed(&self, bucket: usize, source: Error) -> DdpError {
        let slots = &self.layout.buckets()[bucket].slots;
        let name = |s: &crate::Slot| self.params.specs()[s.param].name.as_str();
        let params = match slots.as_slice() {
            [] => String::new(),
            [one] => name(one).to_string(),
            [first, .., last] => format!("{} to {}", name(first), name(last)),
        };
        DdpError::Reduction {
            bucket,
            params,
            source,
        }
    }

    fn panicked(&self, bucket: usize, panic: &(dyn Any + Send)) -> DdpError {
        let what = panic
            .downcast_ref::<&str>()
            .map(|s| (*s).to_string())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".into());
        DdpError::HookPanicked {
            hook: self.hook.name().into(),
            bucket,
            what,
        }
    }
}

/// How often a waiting thread looks by itself.
const HELP_EVERY: Duration = Duration::from_micros(500);
/// How often it yields before it sleeps.
const YIELDS: u32 = 32;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The means of a finished step, until the next one begins.
pub struct Reduced<'a, T: Float> {
    report: StepReport,
    shared: &'a Shared<T>,
    buckets: &'a [Buffer<T>],
}

impl<T: Float> std::fmt::Debug for Reduced<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reduced")
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

impl<T: Float> std::fmt::Debug for Ddp<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ddp")
            .field("group", &self.shared.group)
            .field("hook", &self.shared.hook.name())
            .field("params", &self.shared.params.count())
            .field("buckets", &self.shared.layout.buckets().len())
            .finish_non_exhaustive()
    }
}

impl<T: Float> Reduced<'_, T> {
    /// The mean gradient of parameter `idx`, in its bucket.
    ///
    /// # Panics
    /// Where there is no such parameter, like an index into a slice.
    pub fn grad(&self, idx: usize) -> &[T] {
        match self.shared.layout.place(idx) {
            Some((bucket, at)) => &self.buckets[bucket][at],
            None => panic!(
                "there is no parameter {idx}: the model has {}",
                self.shared.params.count()
            ),
        }
    }

    /// Name and mean gradient of every parameter, in the order of the model.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[T])> {
        self.shared
            .params
            .specs()
            .iter()
            .enumerate()
            .map(|(idx, spec)| (spec.name.as_str(), self.grad(idx)))
    }

    /// Copies all gradients into one flat vector, in the order of the model.
    ///
    /// # Errors
    /// [`DdpError::WrongLength`]: `out` is not as long as all parameters together.
    pub fn copy_to(&self, out: &mut [T]) -> Result<(), DdpError> {
        let want = self.shared.params.total_elems();
        if out.len() != want {
            return Err(DdpError::WrongLength {
                name: "all parameters".into(),
                want,
                got: out.len(),
            });
        }
        let mut at = 0;
        for (_, grad) in self.iter() {
            out[at..at + grad.len()].copy_from_slice(grad);
            at += grad.len();
        }
        Ok(())
    }

    /// What the step cost.
    pub fn report(&self) -> &StepReport {
        &self.report
    }
}
