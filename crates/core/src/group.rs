//! What users hold: a concrete group with typed methods over any communicator.

use crate::{
    Borrowed, Cancel, Communicator, Counts, Done, Element, Error, Failed, Finished, Float, Form,
    Kind, LinkStats, Op, OpKind, Owned, Pending, Persistent, Rank, Reduce, Reduction, Region,
    Round, Scope, StableBuf, UserReduction, ViewMut, raw_scope,
};
use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
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

    /// `n` zeros that the ranks of this host have mapped of each other, where they have such memory; ordinary memory otherwise. Made by each rank for itself, without a word to the others.
    ///
    /// Collectives whose members all give such memory take one pass over it, with no copies; see [`Buffer`](crate::Buffer).
    pub fn buffer<T: Element>(&self, n: usize) -> crate::Buffer<T> {
        let block = n
            .checked_mul(size_of::<T>())
            .and_then(|bytes| self.0.block(bytes));
        block
            .and_then(|block| crate::Buffer::on(block, n))
            .unwrap_or_else(|| crate::Buffer::ordinary(n))
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
        self.run(&Op::new(Kind::AllReduce(R::REDUCE)), x)
    }

    /// Out of place: `y`, as long as `x`, becomes the reduction of all ranks' `x`.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn all_reduce_into<T: Element, R: Reduction<T>>(
        &self,
        x: &[T],
        y: &mut [T],
        _reduce: R,
    ) -> Result<Done, Error> {
        self.run_into(&Op::new(Kind::AllReduce(R::REDUCE)), x, y)
    }

    /// In place, by a function of the caller's.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause); [`Cause::Panicked`](crate::Cause::Panicked) where the function does.
    pub fn all_reduce_with<T: Element>(
        &self,
        x: &mut [T],
        reduce: &UserReduction,
    ) -> Result<Done, Error> {
        self.run(
            &Op::new(Kind::AllReduce(Reduce::User)).with_user(reduce.clone()),
            x,
        )
    }

    /// In place: `x` becomes the reduction over all ranks on the root, and stays as it is elsewhere.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn reduce<T: Element, R: Reduction<T>>(
        &self,
        x: &mut [T],
        root: Rank,
        _reduce: R,
    ) -> Result<Done, Error> {
        let reduce = R::REDUCE;
        self.run(&Op::new(Kind::Reduce { reduce, root }), x)
    }

    /// In place: `x` becomes the root's on every rank. ⌈log₂P⌉ rounds.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn broadcast<T: Element>(&self, x: &mut [T], root: Rank) -> Result<Done, Error> {
        self.run(&Op::new(Kind::Broadcast { root }), x)
    }

    /// Every rank's `x`, which is equally long everywhere, in rank order; on the root, elsewhere nothing.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn gather<T: Element>(&self, x: &[T], root: Rank) -> Result<Vec<T>, Error> {
        let counts = Counts::Equal;
        let n = if self.rank() == root {
            x.len().saturating_mul(self.size())
        } else {
            0
        };
        let mut all = zeroed(OpKind::Gather, n)?;
        self.run_into(&Op::new(Kind::Gather { root, counts }), x, &mut all)?;
        Ok(all)
    }

    /// Every rank's `x` on the root, in rank order; elsewhere nothing. Rank r's has `counts[r]` elements; the list is the same on every rank.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn gather_v<T: Element>(
        &self,
        x: &[T],
        counts: &[u64],
        root: Rank,
    ) -> Result<Vec<T>, Error> {
        let n = if self.rank() == root {
            total(counts)?
        } else {
            0
        };
        let mut all = zeroed(OpKind::Gather, n)?;
        let counts = Counts::known(counts);
        self.run_into(&Op::new(Kind::Gather { root, counts }), x, &mut all)?;
        Ok(all)
    }

    /// As [`gather_v`](Group::gather_v), of whatever lengths: the values and, on the root, how many come from each rank. Two operations, and a copy of `x`.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn gather_any<T: Element>(&self, x: &[T], root: Rank) -> Result<(Vec<T>, Vec<u64>), Error> {
        let counts = Counts::Discover;
        self.discover(Kind::Gather { root, counts }, x)
    }

    /// Part r of the root's `x` for rank r: `y`, equally long everywhere. `x` is P times as long on the root, and empty elsewhere.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn scatter<T: Element>(&self, x: &[T], y: &mut [T], root: Rank) -> Result<Done, Error> {
        let counts = Counts::Equal;
        self.run_into(&Op::new(Kind::Scatter { root, counts }), x, y)
    }

    /// Part r of the root's `x`, of `counts[r]` elements, for rank r; the list is the same on every rank.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn scatter_v<T: Element>(
        &self,
        x: &[T],
        counts: &[u64],
        root: Rank,
    ) -> Result<Vec<T>, Error> {
        let mut y = zeroed(OpKind::Scatter, self.own(counts)?)?;
        let counts = Counts::known(counts);
        self.run_into(&Op::new(Kind::Scatter { root, counts }), x, &mut y)?;
        Ok(y)
    }

    /// As [`scatter_v`](Group::scatter_v), where the root alone knows the counts, and the others give none. Three operations: the root tells each rank its count, all ranks tell each other, and the data follows.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn scatter_any<T: Element>(
        &self,
        x: &[T],
        counts: &[u64],
        root: Rank,
    ) -> Result<Vec<T>, Error> {
        // What the root knows travels first, on the same lane.
        let mut own = [0u64];
        let c = Counts::Equal;
        let op = Op::new(Kind::Scatter { root, counts: c });
        if self.rank() == root {
            // The others go by what they are told.
            self.own(counts)?;
            let given = total(counts)?;
            if given != x.len() {
                let what = format!("{given} elements by the counts, {} given", x.len());
                return Err(Error::invalid(op.kind.op_kind().name(), what));
            }
            self.run_into(&op, counts, &mut own)?;
        } else {
            self.run_into(&op, &[] as &[u64], &mut own)?;
        }
        let mut all = zeroed::<u64>(OpKind::AllGather, self.size())?;
        all[self.rank().idx()] = own[0];
        self.run(&Op::new(Kind::AllGather(Counts::Equal)), &mut all)?;
        self.scatter_v(x, &all, root)
    }

    /// Every rank's `x`, which is equally long everywhere, in rank order.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn all_gather<T: Element>(&self, x: &[T]) -> Result<Vec<T>, Error> {
        let mut all = zeroed(OpKind::AllGather, x.len().saturating_mul(self.size()))?;
        self.run_into(&Op::new(Kind::AllGather(Counts::Equal)), x, &mut all)?;
        Ok(all)
    }

    /// Every rank's `x` in rank order. Rank r's has `counts[r]` elements; the list is the same on every rank.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn all_gather_v<T: Element>(&self, x: &[T], counts: &[u64]) -> Result<Vec<T>, Error> {
        let mut all = zeroed(OpKind::AllGather, total(counts)?)?;
        let op = Op::new(Kind::AllGather(Counts::known(counts)));
        self.run_into(&op, x, &mut all)?;
        Ok(all)
    }

    /// As [`all_gather_v`](Group::all_gather_v), of whatever lengths: the values and how many come from each rank. Two operations, and a copy of `x`.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn all_gather_any<T: Element>(&self, x: &[T]) -> Result<(Vec<T>, Vec<u64>), Error> {
        self.discover(Kind::AllGather(Counts::Discover), x)
    }

    /// Part r of the reduction for rank r: `y`, equally long everywhere; `x` is P times as long.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn reduce_scatter<T: Element, R: Reduction<T>>(
        &self,
        x: &[T],
        y: &mut [T],
        _reduce: R,
    ) -> Result<Done, Error> {
        let (reduce, counts) = (R::REDUCE, Counts::Equal);
        self.run_into(&Op::new(Kind::ReduceScatter { reduce, counts }), x, y)
    }

    /// Part r of the reduction, of `counts[r]` elements, for rank r; the list is the same on every rank.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn reduce_scatter_v<T: Element, R: Reduction<T>>(
        &self,
        x: &[T],
        counts: &[u64],
        _reduce: R,
    ) -> Result<Vec<T>, Error> {
        let mut y = zeroed(OpKind::ReduceScatter, self.own(counts)?)?;
        let (reduce, counts) = (R::REDUCE, Counts::known(counts));
        self.run_into(&Op::new(Kind::ReduceScatter { reduce, counts }), x, &mut y)?;
        Ok(y)
    }

    /// Part r of `x` for rank r: `y` holds one part from each, in rank order. Both are equally long, a multiple of P.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn all_to_all<T: Element>(&self, x: &[T], y: &mut [T]) -> Result<Done, Error> {
        let (send, recv) = (Counts::Equal, Counts::Equal);
        self.run_into(&Op::new(Kind::AllToAll { send, recv }), x, y)
    }

    /// Part r of `x`, of `send[r]` elements, for rank r; `recv[r]` elements come from rank r.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn all_to_all_v<T: Element>(
        &self,
        x: &[T],
        send: &[u64],
        recv: &[u64],
    ) -> Result<Vec<T>, Error> {
        let mut y = zeroed(OpKind::AllToAll, total(recv)?)?;
        let (send, recv) = (Counts::known(send), Counts::known(recv));
        self.run_into(&Op::new(Kind::AllToAll { send, recv }), x, &mut y)?;
        Ok(y)
    }

    /// As [`all_to_all_v`](Group::all_to_all_v), where each rank knows only what it sends: the values and how many come from each rank. Two operations, and a copy of `x`.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn all_to_all_any<T: Element>(
        &self,
        x: &[T],
        send: &[u64],
    ) -> Result<(Vec<T>, Vec<u64>), Error> {
        let (send, recv) = (Counts::known(send), Counts::Discover);
        self.discover(Kind::AllToAll { send, recv }, x)
    }

    /// Returns once every member has come. ⌈log₂P⌉ rounds of empty messages.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn barrier(&self) -> Result<(), Error> {
        self.run(&Op::new(Kind::Barrier), &mut [] as &mut [u8])
            .map(drop)
    }

    /// Sends `x` to `to`. Returns once the bytes are on their way: short messages do not wait for the receiver, longer ones wait until it has called.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause); [`Mismatch`](crate::Cause::Mismatch) where the receiver expects another length or type.
    pub fn send<T: Element>(&self, x: &[T], to: Rank, tag: u32) -> Result<Done, Error> {
        self.run_into(&Op::new(Kind::Send { to, tag }), x, &mut [] as &mut [T])
    }

    /// Receives what `from` sends with that tag; messages of one tag come in the order sent.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn recv<T: Element>(&self, x: &mut [T], from: Rank, tag: u32) -> Result<Done, Error> {
        self.run(&Op::new(Kind::Recv { from, tag }), x)
    }

    /// In place: `x` becomes the weighted average with this round's neighbours. One round, S bytes to each out-neighbour.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn mix<T: Float>(&self, x: &mut [T], round: &Round, t: u64) -> Result<Done, Error> {
        let round = round.clone();
        self.run(&Op::new(Kind::Mix { round, t }), x)
    }

    /// The neighbour all-reduce: the weighted average of `x` with this round's neighbours; `x` is not modified. Any ranks, also none.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn neighbour_all_reduce<T: Float>(
        &self,
        x: &[T],
        round: &Round,
        t: u64,
    ) -> Result<Vec<T>, Error> {
        let mut y = zeroed(OpKind::Mix, x.len())?;
        let round = round.clone();
        self.run_into(&Op::new(Kind::Mix { round, t }), x, &mut y)?;
        Ok(y)
    }

    /// The neighbours' `x`, side by side in the order of `from`; equally long everywhere.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn neighbour_all_gather<T: Element>(
        &self,
        x: &[T],
        from: &[Rank],
        to: &[Rank],
        t: u64,
    ) -> Result<Vec<T>, Error> {
        let mut y = zeroed(OpKind::NeighbourGather, x.len().saturating_mul(from.len()))?;
        let op = Op::new(Kind::NeighbourGather {
            from: from.into(),
            to: to.into(),
            counts: Counts::Equal,
            t,
        });
        self.run_into(&op, x, &mut y)?;
        Ok(y)
    }

    /// As [`neighbour_all_gather`](Group::neighbour_all_gather), where `counts[i]` elements come from `from[i]`.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn neighbour_all_gather_v<T: Element>(
        &self,
        x: &[T],
        from: &[Rank],
        to: &[Rank],
        counts: &[u64],
        t: u64,
    ) -> Result<Vec<T>, Error> {
        let mut y = zeroed(OpKind::NeighbourGather, total(counts)?)?;
        let op = Op::new(Kind::NeighbourGather {
            from: from.into(),
            to: to.into(),
            counts: Counts::known(counts),
            t,
        });
        self.run_into(&op, x, &mut y)?;
        Ok(y)
    }

    /// As [`neighbour_all_gather_v`](Group::neighbour_all_gather_v), of whatever lengths: the values and how many come from each of `from`. Two rounds, and a copy of `x`.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn neighbour_all_gather_any<T: Element>(
        &self,
        x: &[T],
        from: &[Rank],
        to: &[Rank],
        t: u64,
    ) -> Result<(Vec<T>, Vec<u64>), Error> {
        let kind = Kind::NeighbourGather {
            from: from.into(),
            to: to.into(),
            counts: Counts::Discover,
            t,
        };
        self.discover(kind, x)
    }

    /// In place: the average of the machines' means with this round's machines; `round` numbers machines, and every rank of a machine ends with the same bits.
    ///
    /// Cost: S bytes inside the machine and S/k per out-machine and rank, with k ranks per machine.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn hierarchical_mix<T: Float>(
        &self,
        x: &mut [T],
        machines: &[Vec<Rank>],
        round: &Round,
        t: u64,
    ) -> Result<Done, Error> {
        let op = Op::new(Kind::HierarchicalMix {
            machines: machines.into(),
            round: round.clone(),
            t,
        });
        self.run(&op, x)
    }

    /// Pair gossip: `x` becomes the average of both partners' values.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn pair_gossip<T: Float>(&self, x: &mut [T], partner: Rank, t: u64) -> Result<Done, Error> {
        self.mix(x, &pair(partner, 0.5), t)
    }

    /// Pair gossip with another weight for the partner's value: (1 − w)·x + w·theirs.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn pair_gossip_weighted<T: Float>(
        &self,
        x: &mut [T],
        partner: Rank,
        weight: f64,
        t: u64,
    ) -> Result<Done, Error> {
        self.mix(x, &pair(partner, weight), t)
    }

    /// Any operation, with options, on borrowed memory.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn run<T: Element>(&self, op: &Op, x: &mut [T]) -> Result<Done, Error> {
        self.0.run(op, x.into())
    }

    /// Any operation, with options, out of place: `x` is read, `y` written.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn run_into<T: Element>(&self, op: &Op, x: &[T], y: &mut [T]) -> Result<Done, Error> {
        self.0.run(
            op,
            Borrowed {
                input: Some(x.into()),
                io: y.into(),
            },
        )
    }

    /// Any operation, with options, in place on a buffer that may lie elsewhere: registered memory, a device's.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause); [`Cause::Unsupported`](crate::Cause::Unsupported) where the backend cannot reach it.
    pub fn run_buf<B: StableBuf>(&self, op: &Op, x: &mut B) -> Result<Done, Error> {
        if let Some(event) = x.ready().filter(|e| !e.is_done()) {
            // A borrow carries no event: nothing is enqueued behind it, it is waited for.
            let limit = op.timeout.unwrap_or(Duration::MAX);
            if !event.wait(limit) {
                // Nobody else is to blame.
                return Err(crate::Cause::Timeout {
                    op: op.kind.op_kind().name().into(),
                    waiting_for: vec![self.rank()],
                    waited: limit,
                    detail: format!("the work before it on {} is not done", x.space()),
                    partly_written: false,
                }
                .into());
            }
        }
        self.0.run(op, ViewMut::of(x).into())
    }

    fn discover<T: Element>(&self, kind: Kind, x: &[T]) -> Result<(Vec<T>, Vec<u64>), Error> {
        let work = self.start_into(Op::new(kind), x.to_vec(), Vec::<T>::new());
        let (_, y, done) = work.wait().map_err(|f| f.error)?;
        Ok((y, done.counts))
    }

    /// How many of `counts`, one per rank, are this rank's.
    fn own(&self, counts: &[u64]) -> Result<usize, Error> {
        if counts.len() != self.size() {
            let what = format!("{} counts for {} ranks", counts.len(), self.size());
            return Err(Error::invalid("counts", what));
        }
        total(&counts[self.rank().idx()..=self.rank().idx()])
    }

    /// Any operation, with options, on owned memory. Returns at once; the memory comes back from the handle.
    pub fn start<B: StableBuf>(&self, op: Op, x: B) -> Work<B> {
        Work {
            pending: Some(self.0.start(op, Region::new(x).into())),
            done: None,
            _buf: PhantomData,
        }
    }

    /// Any operation, with options, out of place on owned memory. Returns at once; both come back from the handle. With [`Counts::Discover`] `y` is an empty vector, and what comes back is as long as needed.
    pub fn start_into<I: StableBuf, O: StableBuf<Elem = I::Elem>>(
        &self,
        op: Op,
        x: I,
        y: O,
    ) -> WorkInto<I, O> {
        let memory = Owned {
            input: Some(Region::new(x)),
            io: Region::new(y),
        };
        WorkInto {
            pending: Some(self.0.start(op, memory)),
            _buf: PhantomData,
        }
    }

    /// Sets an operation up that is to run many times on the same memory, in place.
    ///
    /// # Errors
    /// The caller's mistakes; the memory comes back.
    pub fn persistent<B: StableBuf>(&self, op: Op, x: B) -> Result<Recurring<B>, Failed<B>> {
        match self.0.persistent(op, Region::new(x).into()) {
            Ok(inner) => Ok(Recurring {
                inner,
                _buf: PhantomData,
            }),
            Err(f) => Err(Failed {
                error: f
                    .result
                    .err()
                    .unwrap_or_else(|| Error::internal("no reason given")),
                buf: f.io.and_then(Region::into_inner::<B>),
            }),
        }
    }

    /// Sets an operation up that is to run many times on the same memory, out of place.
    ///
    /// # Errors
    /// The caller's mistakes; the memory comes back.
    pub fn persistent_into<I: StableBuf, O: StableBuf<Elem = I::Elem>>(
        &self,
        op: Op,
        x: I,
        y: O,
    ) -> Result<RecurringInto<I, O>, FailedInto<I, O>> {
        let memory = Owned {
            input: Some(Region::new(x)),
            io: Region::new(y),
        };
        match self.0.persistent(op, memory) {
            Ok(inner) => Ok(RecurringInto {
                inner,
                _buf: PhantomData,
            }),
            Err(f) => Err(FailedInto {
                error: f
                    .result
                    .err()
                    .unwrap_or_else(|| Error::internal("no reason given")),
                input: f.input.and_then(Region::into_inner::<I>),
                output: f.io.and_then(Region::into_inner::<O>),
            }),
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

    /// Sends owned memory. Returns at once.
    pub fn start_send<B: StableBuf>(&self, x: B, to: Rank, tag: u32) -> Work<B> {
        self.start(Op::new(Kind::Send { to, tag }), x)
    }

    /// Receives into owned memory. Returns at once.
    pub fn start_recv<B: StableBuf>(&self, x: B, from: Rank, tag: u32) -> Work<B> {
        self.start(Op::new(Kind::Recv { from, tag }), x)
    }

    /// One group per colour: members with equal colours, ordered by key, then by their numbers here; `None` where this rank gives no colour. Gathers over this group: every member calls it.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Group>, Error> {
        let mine = [colour.map_or(-1, i64::from), key];
        let all = self.all_gather(&mine)?;
        let Some(colour) = colour else {
            return Ok(None);
        };
        let mut members: Vec<(i64, Rank)> = all
            .chunks(2)
            .zip(0u32..)
            .filter(|(pair, _)| pair[0] == i64::from(colour))
            .map(|(pair, rank)| (pair[1], Rank(rank)))
            .collect();
        members.sort_unstable();
        let members: Vec<Rank> = members.into_iter().map(|(_, rank)| rank).collect();
        self.subgroup(&members, &format!("colour {colour}"))
            .map(Some)
    }

    /// The group's ranks as a grid of these extents, the last one fastest: for every axis the group of those that differ from this rank along that axis alone. Made locally.
    ///
    /// ```no_run
    /// # fn f(group: gaggle_core::Group) -> Result<(), gaggle_core::Error> {
    /// // Eight ranks as 4 replicas × 2 model parts.
    /// let axes = group.grid(&[4, 2])?;
    /// let (replicas, parts) = (&axes[0], &axes[1]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The extents' product is not the group's size.
    pub fn grid(&self, extents: &[usize]) -> Result<Vec<Group>, Error> {
        let cells = extents.iter().try_fold(1usize, |n, e| n.checked_mul(*e));
        if cells != Some(self.size()) {
            let what = format!(
                "extents {extents:?} do not multiply to {} ranks",
                self.size()
            );
            return Err(Error::invalid("grid", what));
        }
        let me = self.rank().idx();
        let axis = |axis: usize| {
            let stride: usize = extents[axis + 1..].iter().product();
            let first = me - (me / stride % extents[axis]) * stride;
            let members: Vec<Rank> = (0..extents[axis])
                .map(|i| Rank((first + i * stride) as u32))
                .collect();
            self.subgroup(&members, &format!("axis {axis} of {extents:?}"))
        };
        (0..extents.len()).map(axis).collect()
    }

    /// A group of the members that are still there: every survivor calls it after a failure. See [`Communicator::rebuild`].
    ///
    /// # Errors
    /// The survivors are a minority, or not all of them came in time.
    pub fn rebuild(&self, limit: Duration) -> Result<Group, Error> {
        self.0.rebuild(limit).map(Group)
    }

    /// Which plan would carry an operation out, and why.
    ///
    /// # Errors
    /// The caller's mistakes.
    pub fn explain<T: Element>(&self, op: &Op, len: usize) -> Result<String, Error> {
        self.0.explain(op, T::DTYPE, len)
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

    /// The smallest `t` that [`mix`](Group::mix) and its kind may still have on this lane: 1 more than the largest that this rank has started, or 0.
    pub fn next_round(&self, lane: crate::Lane) -> u64 {
        self.0.next_round(lane)
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

/// The round of a pair of ranks.
fn pair(partner: Rank, weight: f64) -> Round {
    Round {
        from: vec![(partner, weight)],
        to: vec![(partner, 1.0)],
        keep: 1.0 - weight,
        form: Form::Delta,
    }
}

/// The output of an operation, `n` elements; a typed error where there is no such memory, since counts may be anything.
fn zeroed<T: Element>(op: OpKind, n: usize) -> Result<Vec<T>, Error> {
    crate::raw::try_zeroed(n as u64).ok_or_else(|| {
        let what = format!("there is no memory for an output of {n} {}", T::DTYPE);
        Error::invalid(op.name(), what)
    })
}

fn total(counts: &[u64]) -> Result<usize, Error> {
    let sum = counts.iter().try_fold(0u64, |n, c| n.checked_add(*c));
    sum.and_then(|n| usize::try_from(n).ok())
        .ok_or_else(|| Error::invalid("counts", format!("{counts:?} add up to too much")))
}

/// An asynchronous operation out of place, on owned memory.
#[must_use = "the operation goes on if this is dropped, but its result is lost"]
pub struct WorkInto<I, O> {
    pending: Option<Box<dyn Pending>>,
    _buf: PhantomData<fn() -> (I, O)>,
}

/// How an operation out of place failed: the error, and the memory where it came back.
pub struct FailedInto<I, O> {
    /// What went wrong.
    pub error: Error,
    /// The input.
    pub input: Option<I>,
    /// The output.
    pub output: Option<O>,
}

impl<I, O> std::fmt::Debug for FailedInto<I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.error, f)
    }
}

impl<I, O> std::fmt::Display for FailedInto<I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl<I, O> std::error::Error for FailedInto<I, O> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<I, O> From<FailedInto<I, O>> for Error {
    fn from(f: FailedInto<I, O>) -> Error {
        f.error
    }
}

impl<I: StableBuf, O: StableBuf> WorkInto<I, O> {
    /// Waits; gives input and output back, with what the operation has to say.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn wait(mut self) -> Result<(I, O, Done), FailedInto<I, O>> {
        match self.pending.take() {
            Some(pending) => Self::finish(pending.wait()),
            None => Err(Self::over()),
        }
    }

    /// Whether it is over.
    pub fn is_done(&self) -> bool {
        self.pending.as_ref().is_none_or(|p| p.is_done())
    }

    /// A handle that ends it from any thread; `None` once it is over.
    pub fn canceller(&self) -> Option<Arc<dyn Cancel>> {
        self.pending.as_ref().map(|p| p.canceller())
    }

    fn over() -> FailedInto<I, O> {
        FailedInto {
            error: Error::invalid("wait", "the operation was already polled to its end"),
            input: None,
            output: None,
        }
    }

    fn finish(f: Finished) -> Result<(I, O, Done), FailedInto<I, O>> {
        let input = f.input.and_then(Region::into_inner::<I>);
        let output = f.io.and_then(Region::into_inner::<O>);
        match (f.result, input, output) {
            (Ok(done), Some(i), Some(o)) => Ok((i, o, done)),
            (result, input, output) => Err(FailedInto {
                error: result
                    .err()
                    .unwrap_or_else(|| Error::internal("a finished operation kept its memory")),
                input,
                output,
            }),
        }
    }
}

impl<I: StableBuf, O: StableBuf> Future for WorkInto<I, O> {
    type Output = Result<(I, O, Done), FailedInto<I, O>>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(pending) = self.pending.as_mut() else {
            return Poll::Ready(Err(Self::over()));
        };
        let finished = std::task::ready!(pending.poll(cx));
        self.pending = None;
        Poll::Ready(Self::finish(finished))
    }
}

/// An operation that was set up once and is started many times; see [`Group::persistent`].
pub struct Recurring<B> {
    inner: Box<dyn Persistent>,
    _buf: PhantomData<fn() -> B>,
}

impl<B: StableBuf> Recurring<B> {
    /// Starts it; the memory is out of reach until it is over.
    ///
    /// # Errors
    /// It is in flight already, or cannot be started.
    pub fn start(&mut self) -> Result<(), Error> {
        self.inner.start(0)
    }

    /// Starts round `t` of a neighbour operation.
    ///
    /// # Errors
    /// As `start`; rounds of a lane only grow.
    pub fn start_round(&mut self, t: u64) -> Result<(), Error> {
        self.inner.start(t)
    }

    /// Waits for the run that was started last.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn wait(&mut self) -> Result<Done, Error> {
        self.inner.wait()
    }

    /// As [`wait`](Recurring::wait), for a task: a future that blocks nobody. Dropped before its end, it leaves the run in flight.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub async fn done(&mut self) -> Result<Done, Error> {
        std::future::poll_fn(|cx| self.inner.poll(cx)).await
    }

    /// Whether a run is in flight.
    pub fn is_running(&self) -> bool {
        self.inner.is_running()
    }

    /// The elements; `None` while a run is in flight.
    pub fn elements(&mut self) -> Option<&mut [B::Elem]> {
        self.inner.io()?.typed()
    }

    /// Waits for a run in flight, and gives the memory back; `None` where the backend cannot.
    pub fn into_inner(self) -> Option<B> {
        self.inner
            .into_memory()
            .io
            .and_then(Region::into_inner::<B>)
    }
}

/// An operation out of place that was set up once and is started many times; see [`Group::persistent_into`].
pub struct RecurringInto<I, O> {
    inner: Box<dyn Persistent>,
    _buf: PhantomData<fn() -> (I, O)>,
}

impl<I: StableBuf, O: StableBuf> RecurringInto<I, O> {
    /// Starts it; the memory is out of reach until it is over.
    ///
    /// # Errors
    /// It is in flight already, or cannot be started.
    pub fn start(&mut self) -> Result<(), Error> {
        self.inner.start(0)
    }

    /// Starts round `t` of a neighbour operation.
    ///
    /// # Errors
    /// As `start`; rounds of a lane only grow.
    pub fn start_round(&mut self, t: u64) -> Result<(), Error> {
        self.inner.start(t)
    }

    /// Waits for the run that was started last.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn wait(&mut self) -> Result<Done, Error> {
        self.inner.wait()
    }

    /// As [`wait`](RecurringInto::wait), for a task: a future that blocks nobody. Dropped before its end, it leaves the run in flight.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub async fn done(&mut self) -> Result<Done, Error> {
        std::future::poll_fn(|cx| self.inner.poll(cx)).await
    }

    /// Whether a run is in flight.
    pub fn is_running(&self) -> bool {
        self.inner.is_running()
    }

    /// What is read; `None` while a run is in flight.
    pub fn input(&mut self) -> Option<&mut [I::Elem]> {
        self.inner.input()?.typed()
    }

    /// What is written; `None` while a run is in flight.
    pub fn output(&mut self) -> Option<&mut [O::Elem]> {
        self.inner.io()?.typed()
    }

    /// Waits for a run in flight, and gives input and output back; `None` where the backend cannot.
    pub fn into_inner(self) -> Option<(I, O)> {
        let f = self.inner.into_memory();
        let input = f.input.and_then(Region::into_inner::<I>)?;
        Some((input, f.io.and_then(Region::into_inner::<O>)?))
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

    /// The memory as soon as all that is left to do is a device's; it says itself when it is ready ([`StableBuf::ready`]). On host memory this waits. A later error is reported by the lane's next operation.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn enqueued(mut self) -> Result<B, Failed<B>> {
        let pending = self.pending.take().ok_or_else(|| Failed {
            error: Error::invalid("enqueued", "the operation was already polled to its end"),
            buf: None,
        })?;
        Self::finish(pending.enqueued()).map(|(buf, _)| buf)
    }

    /// Whether it is over.
    pub fn is_done(&self) -> bool {
        self.pending.as_ref().is_none_or(|p| p.is_done())
    }

    /// After the future has completed: what the operation had to say.
    pub fn outcome(&self) -> Option<&Done> {
        self.done.as_ref()
    }

    /// A handle that ends it from any thread; `None` once it is over.
    pub fn canceller(&self) -> Option<Arc<dyn Cancel>> {
        self.pending.as_ref().map(|p| p.canceller())
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
