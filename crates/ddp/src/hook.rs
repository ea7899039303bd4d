//! What happens to a ready bucket: the seam, and the two hooks of this crate.

use crate::{Slot, report::BucketReport};
use gaggle_core::{
    Algorithm, Buffer, Codec, DType, Done, Failed, Float, Group, Kind, Lane, Op, Reduce, Weight,
};
use std::{future::Future, mem, pin::Pin, sync::Arc};

/// One bucket on its way through a hook: owned memory and what it is.
#[derive(Debug)]
pub struct Bucket<T: Float> {
    /// The gradients, flat, in memory that the ranks of a host have mapped of each other where there is such ([`Group::buffer`]). A hook may take it as long as it puts as many elements back.
    pub data: Buffer<T>,
    /// Number of the bucket.
    pub idx: usize,
    /// Which parameter lies where, by number in the model: state that a hook keeps is keyed by these, never by `idx`.
    pub slots: Arc<[Slot]>,
    /// This rank's weight in the mean.
    pub weight: Weight,
    lane: Lane,
    priority: i32,
    counted: u32,
    report: BucketReport,
}

impl<T: Float> Bucket<T> {
    pub(crate) fn new(
        data: Buffer<T>,
        idx: usize,
        slots: Arc<[Slot]>,
        weight: Weight,
        lane: Lane,
    ) -> Self {
        Bucket {
            data,
            idx,
            slots,
            weight,
            lane,
            // Later buckets hold earlier layers, which the next forward pass needs first.
            priority: i32::try_from(idx).unwrap_or(i32::MAX),
            counted: 0,
            report: BucketReport::default(),
        }
    }

    /// An operation on the bucket's own lane, with its weight and priority. All of a hook's operations are made by this, in the same order on every rank.
    pub fn op(&self, kind: Kind) -> Op {
        let mut op = Op::new(kind).on(self.lane).weighing(self.weight);
        op.priority = self.priority;
        op
    }

    /// Counts a finished operation in the step's report.
    pub fn record(&mut self, done: &Done) {
        self.report.add(done, self.counted == 0);
        self.counted += 1;
    }

    pub(crate) fn report(&self) -> BucketReport {
        self.report
    }
}

/// A hook at work on one bucket.
pub type HookFuture<T> =
    Pin<Box<dyn Future<Output = Result<Bucket<T>, Failed<Bucket<T>>>> + Send + 'static>>;

/// What happens to a ready bucket.
///
/// `reduce` returns at once; its future owns the bucket, may use several collectives in a row, and many buckets are in a hook at a time, so it never blocks.
/// It is polled by whichever thread hands over gradients or waits in `finish`, never with a lock held; a panic ends the step with an error.
/// After its end, with `Ok` or with an error, the bucket holds as many elements as before.
/// Every rank uses the same hook; its name is compared at start.
pub trait CommHook<T: Float>: Send + Sync {
    /// The name that users type, equal for equal settings only: `mean`, `bf16`.
    fn name(&self) -> &str;
    /// Whether it carries that element type; asked once, at start.
    fn carries(&self, _dtype: DType) -> bool {
        true
    }
    /// Turns this rank's gradients into everybody's.
    fn reduce(&self, group: Group, bucket: Bucket<T>) -> HookFuture<T>;
}

/// The weighted mean over all ranks, in the element type.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainMean;

impl<T: Float> CommHook<T> for PlainMean {
    fn name(&self) -> &str {
        "mean"
    }

    fn reduce(&self, group: Group, bucket: Bucket<T>) -> HookFuture<T> {
        let op = bucket.op(Kind::AllReduce(Reduce::Mean));
        Box::pin(run(group, op, bucket))
    }
}

/// The weighted mean over all ranks with bf16 on the wire: half the bytes. Contributions are folded in f32 and the result is rounded once more, so it is within 2⁻⁷ of the largest contribution. For f32 only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bf16Mean;

impl<T: Float> CommHook<T> for Bf16Mean {
    fn name(&self) -> &str {
        "bf16"
    }

    fn carries(&self, dtype: DType) -> bool {
        Codec::Bf16.wire_type(dtype).is_some()
    }

    fn reduce(&self, group: Group, bucket: Bucket<T>) -> HookFuture<T> {
        // Only owner-computes plans round once instead of at every hop.
        let op = bucket
            .op(Kind::AllReduce(Reduce::Mean))
            .coded_always(Codec::Bf16)
            .by(Algorithm::Direct);
        Box::pin(run(group, op, bucket))
    }
}

/// One operation over the bucket's memory.
async fn run<T: Float>(
    group: Group,
    op: Op,
    mut bucket: Bucket<T>,
) -> Result<Bucket<T>, Failed<Bucket<T>>> {
    let mut work = group.start(op, mem::take(&mut bucket.data));
    match (&mut work).await {
        Ok(data) => {
            bucket.data = data;
            if let Some(done) = work.outcome() {
                bucket.record(done);
            }
            Ok(bucket)
        }
        Err(failed) => {
            // Where the memory is lost the reducer makes new.
            bucket.data = failed.buf.unwrap_or_default();
            Err(Failed {
                error: failed.error,
                buf: Some(bucket),
            })
        }
    }
}
