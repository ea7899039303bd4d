//! What users hold: a concrete group with typed methods over any communicator.

use crate::{
    Communicator, Done, Element, Error, Failed, Finished, Float, Kind, LinkStats, Op, Pending,
    Rank, Reduction, Region, Round, StableBuf,
};
use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    ptr::NonNull,
    sync::{Arc, Condvar, Mutex, PoisonError},
    task::{Context, Poll},
};

/// A group of ranks. Cheap to clone, `Send + Sync`, inherent typed methods: no trait to import.
///
/// P is the number of members, S the bytes of the buffer.
#[derive(Clone)]
pub struct Group(Arc<dyn Communicator>);

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("rank", &self.rank().0)
            .field("size", &self.size())
            .finish()
    }
}

impl Group {
    /// Wraps a communicator.
    pub fn new(comm: Arc<dyn Communicator>) -> Self {
        Group(comm)
    }

    /// The seam underneath, for drivers and operations with options.
    pub fn communicator(&self) -> &Arc<dyn Communicator> {
        &self.0
    }

    /// This rank's number in the group.
    pub fn rank(&self) -> Rank {
        self.0.info().rank
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.0.info().world_ranks.len()
    }

    /// In place: `x` becomes the reduction over all ranks, the same bits everywhere.
    ///
    /// Cost: at most 2S(P−1)/P bytes sent per rank for large buffers.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn all_reduce<T: Element, R: Reduction<T>>(
        &self,
        x: &mut [T],
        _reduce: R,
    ) -> Result<Done, Error> {
        self.0.run(&Op::new(Kind::AllReduce(R::REDUCE)), x.into())
    }

    /// In place: `x` becomes the root's on every rank. ⌈log₂P⌉ rounds.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn broadcast<T: Element>(&self, x: &mut [T], root: Rank) -> Result<Done, Error> {
        self.0.run(&Op::new(Kind::Broadcast { root }), x.into())
    }

    /// Every rank's `x`, which is equally long everywhere, in rank order.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn all_gather<T: Element>(&self, x: &[T]) -> Result<Vec<T>, Error> {
        let (n, rank) = (x.len(), self.rank().idx());
        // Any element serves as filler: every place is overwritten by its rank's part.
        let Some(filler) = x.first() else {
            self.0
                .run(&Op::new(Kind::AllGather), (&mut [] as &mut [T]).into())?;
            return Ok(vec![]);
        };
        let mut all = vec![*filler; n * self.size()];
        all[rank * n..(rank + 1) * n].copy_from_slice(x);
        self.0
            .run(&Op::new(Kind::AllGather), all.as_mut_slice().into())?;
        Ok(all)
    }

    /// Returns once every member has come. ⌈log₂P⌉ rounds of empty messages.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn barrier(&self) -> Result<(), Error> {
        self.0
            .run(&Op::new(Kind::Barrier), (&mut [] as &mut [u8]).into())
            .map(drop)
    }

    /// In place: `x` becomes the weighted average with this round's neighbours. One round, S bytes to each out-neighbour.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn mix<T: Float>(&self, x: &mut [T], round: &Round, t: u64) -> Result<Done, Error> {
        self.0.run(
            &Op::new(Kind::Mix {
                round: round.clone(),
                t,
            }),
            x.into(),
        )
    }

    /// Any operation, with options, on borrowed memory.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn run<T: Element>(&self, op: &Op, x: &mut [T]) -> Result<Done, Error> {
        self.0.run(op, x.into())
    }

    /// Any operation, with options, on owned memory. Returns at once; the memory comes back from the handle.
    pub fn start<B: StableBuf>(&self, op: Op, x: B) -> Work<B> {
        Work {
            pending: Some(self.0.start(op, Region::new(x))),
            done: None,
            _buf: PhantomData,
        }
    }

    /// An all-reduce on owned memory. Returns at once.
    pub fn start_all_reduce<B: StableBuf, R: Reduction<B::Elem>>(
        &self,
        x: B,
        _reduce: R,
    ) -> Work<B> {
        self.start(Op::new(Kind::AllReduce(R::REDUCE)), x)
    }

    /// The members' own group.
    ///
    /// # Errors
    /// This rank is not a member, a number is out of range or twice.
    pub fn subgroup(&self, members: &[Rank], key: &str) -> Result<Group, Error> {
        self.0.subgroup(members, key).map(Group)
    }

    /// Ends every operation of the group on every member.
    pub fn abort(&self, reason: &str) {
        self.0.abort(reason);
    }

    /// What has gone over this rank's links so far.
    pub fn stats(&self) -> LinkStats {
        self.0.stats()
    }

    /// Asynchronous operations on borrowed slices: all of them are over when this returns, whatever became of their handles.
    pub fn scope<'env, F, R>(&'env self, f: F) -> R
    where
        F: for<'s> FnOnce(&'s Scope<'s, 'env>) -> R,
    {
        let scope = Scope {
            group: self,
            works: Mutex::default(),
            latch: Arc::default(),
            _scope: PhantomData,
            _env: PhantomData,
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&scope)));
        // From here on a panic would return while memory is in flight.
        let bomb = AbortOnUnwind;
        for work in lock(&scope.works).drain(..).flatten() {
            drop(work.wait());
        }
        scope.latch.wait_zero();
        std::mem::forget(bomb);
        outcome.unwrap_or_else(|p| std::panic::resume_unwind(p))
    }
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An asynchronous operation on owned memory. A future, and a handle to wait on.
#[must_use = "the operation goes on if this is dropped, but its result is lost"]
pub struct Work<B> {
    pending: Option<Box<dyn Pending>>,
    done: Option<Done>,
    _buf: PhantomData<fn() -> B>,
}

impl<B: StableBuf> Work<B> {
    /// Waits; gives the memory back with the result or with the error.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn wait(self) -> Result<B, Failed<B>> {
        self.wait_done().map(|(buf, _)| buf)
    }

    /// Waits; also says what the operation has to say.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn wait_done(mut self) -> Result<(B, Done), Failed<B>> {
        let pending = self.pending.take().ok_or_else(|| Failed {
            error: Error::invalid("wait", "the operation was already polled to its end"),
            buf: None,
        })?;
        Self::finish(pending.wait())
    }

    /// Whether it is over.
    pub fn is_done(&self) -> bool {
        self.pending.as_ref().is_none_or(|p| p.is_done())
    }

    /// After the future has completed: what the operation had to say.
    pub fn outcome(&self) -> Option<Done> {
        self.done
    }

    fn finish(f: Finished) -> Result<(B, Done), Failed<B>> {
        let buf = f.io.and_then(Region::into_inner::<B>);
        match (f.result, buf) {
            (Ok(done), Some(buf)) => Ok((buf, done)),
            (Ok(_), None) => Err(Failed {
                error: Error::internal("a finished operation kept its memory"),
                buf: None,
            }),
            (Err(error), buf) => Err(Failed { error, buf }),
        }
    }
}

impl<B: StableBuf> Future for Work<B> {
    type Output = Result<B, Failed<B>>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(pending) = self.pending.as_mut() else {
            return Poll::Ready(Err(Failed {
                error: Error::invalid("poll", "the operation was already polled to its end"),
                buf: None,
            }));
        };
        match pending.poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(f) => {
                self.pending = None;
                Poll::Ready(Self::finish(f).map(|(buf, done)| {
                    self.done = Some(done);
                    buf
                }))
            }
        }
    }
}

struct AbortOnUnwind;
impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort()
    }
}

#[derive(Default)]
struct Latch {
    out: Mutex<usize>,
    zero: Condvar,
}

impl Latch {
    fn wait_zero(&self) {
        let mut out = lock(&self.out);
        while *out > 0 {
            out = self.zero.wait(out).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A borrowed slice dressed as owned memory. Whoever holds it holds the scope open: leaking it blocks, it does not corrupt.
struct Lent<T> {
    ptr: NonNull<T>,
    len: usize,
    latch: Arc<Latch>,
}

// SAFETY: stands for a `&mut [T]` of `Send` elements that the scope keeps borrowed.
unsafe impl<T: Send> Send for Lent<T> {}

// SAFETY: the scope's signature keeps the slice mutably borrowed for `'scope`, and the scope does not end before this value is dropped.
unsafe impl<T: Element> StableBuf for Lent<T> {
    type Elem = T;
    fn parts(&mut self) -> (NonNull<T>, usize) {
        (self.ptr, self.len)
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        *lock(&self.latch.out) -= 1;
        self.latch.zero.notify_all();
    }
}

/// Where asynchronous operations on borrowed slices live; see [`Group::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    group: &'env Group,
    works: Mutex<Vec<Option<Box<dyn Pending>>>>,
    latch: Arc<Latch>,
    _scope: PhantomData<&'scope mut &'scope ()>,
    _env: PhantomData<&'env mut &'env ()>,
}

impl<'scope> Scope<'scope, '_> {
    /// Starts an all-reduce of a slice that lives as long as the scope.
    pub fn all_reduce<T: Element, R: Reduction<T>>(
        &'scope self,
        x: &'scope mut [T],
        _reduce: R,
    ) -> ScopedWork<'scope, T> {
        self.start(Op::new(Kind::AllReduce(R::REDUCE)), x)
    }

    /// Starts any operation on a slice that lives as long as the scope.
    pub fn start<T: Element>(&'scope self, op: Op, x: &'scope mut [T]) -> ScopedWork<'scope, T> {
        *lock(&self.latch.out) += 1;
        let (ptr, len) = (NonNull::from(&mut *x).cast(), x.len());
        let lent = Lent {
            ptr,
            len,
            latch: Arc::clone(&self.latch),
        };
        let pending = self.group.0.start(op, Region::new(lent));
        let mut works = lock(&self.works);
        works.push(Some(pending));
        ScopedWork {
            works: &self.works,
            idx: works.len() - 1,
            ptr,
            len,
            _x: PhantomData,
        }
    }
}

/// A name for work that the scope owns: dropping or forgetting it changes nothing.
pub struct ScopedWork<'scope, T> {
    works: &'scope Mutex<Vec<Option<Box<dyn Pending>>>>,
    idx: usize,
    ptr: NonNull<T>,
    len: usize,
    _x: PhantomData<&'scope mut [T]>,
}

impl<'scope, T: Element> ScopedWork<'scope, T> {
    /// The slice again, before the scope ends.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn wait(self) -> Result<&'scope mut [T], Error> {
        let pending = lock(self.works)[self.idx].take();
        let Some(pending) = pending else {
            return Err(Error::internal("scoped work taken twice"));
        };
        let f = pending.wait();
        let back = f.io.and_then(Region::into_inner::<Lent<T>>).is_some();
        f.result?;
        if !back {
            return Err(Error::internal("a finished operation kept its memory"));
        }
        // SAFETY: the operation has given the slice back (its `Lent` was just dropped), and the scope keeps it borrowed for `'scope` for us alone.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) })
    }
}
