//! What users hold: a concrete group with typed methods over any communicator.

use crate::{
    Communicator, Done, Element, Error, Failed, Finished, Float, Kind, LinkStats, Op, Pending,
    Rank, Reduction, Region, Round, Scope, StableBuf, raw_scope,
};
use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
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
        raw_scope::run(self, f)
    }
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
