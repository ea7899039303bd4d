//! What all planners share: how a buffer is divided, and plans whose slices all run one program.
//!
//! A planner describes what happens to one slice as a short list of operations; [`Sliced`] turns that into the plan's steps.
//! Operation `op` on slice `slice` is step `op * n_slices + slice`: the slices' steps alternate in the order of the indices, and no slice waits for another.

use crate::plan::{Action, Buf, Plan, PlanError, Request, Slot, Span, Step, Steps};
use gaggle_core::{Algorithm, OpKind, Reduce};
use smallvec::SmallVec;
use std::{fmt, sync::Arc};

/// Operations of the same slice that must be over before.
pub(crate) type After = SmallVec<[u32; 4]>;

/// What happens to one slice.
pub(crate) trait Program: fmt::Debug + Send + Sync + 'static {
    /// How many operations there are for each slice.
    fn n_ops(&self) -> u64;
    /// Operation `op` on slice `slice`, and the earlier operations of that slice that it waits for.
    fn op(&self, op: u32, slice: u32) -> (Action, After);
    /// The slot that holds Σw at the end, for means.
    fn total(&self) -> Option<Slot> {
        None
    }
}

/// A program as the generator of a plan's steps.
#[derive(Debug)]
struct Sliced<P> {
    program: P,
    n_ops: u32,
    n_slices: u32,
}

impl<P: Program> Steps for Sliced<P> {
    fn n_steps(&self) -> u32 {
        self.n_ops * self.n_slices
    }

    fn step(&self, idx: u32) -> Step {
        assert!(
            idx < self.n_steps(),
            "step {idx} of a plan of {} steps",
            self.n_steps()
        );
        let (op, slice) = (idx / self.n_slices, idx % self.n_slices);
        let (action, after) = self.program.op(op, slice);
        let after = after.iter().map(|o| o * self.n_slices + slice).collect();
        Step { action, after }
    }
}

/// Elements `lo..hi` that part `idx` of `parts` gets of `len`: the first `len % parts` parts are one longer.
pub(crate) fn share(len: u64, parts: u32, idx: u32) -> (u64, u64) {
    let (parts, idx) = (u64::from(parts), u64::from(idx));
    let (each, longer) = (len / parts, len % parts);
    let lo = idx * each + idx.min(longer);
    (lo, lo + each + u64::from(idx < longer))
}

/// Into how many slices of at most `slice` elements `len` is cut: at least one, so that every link carries a message.
pub(crate) fn n_slices(len: u64, slice: u64) -> Result<u32, PlanError> {
    u32::try_from(len.div_ceil(slice).max(1)).map_err(|_| too_many_steps(slice))
}

fn too_many_steps(slice: u64) -> PlanError {
    PlanError::BadNumber {
        field: "slice",
        got: slice,
        want: "large enough for fewer than 2^32 steps and slots",
    }
}

/// A buffer that is divided into one chunk per rank, and each chunk into slices.
///
/// All chunks have the same number of slices, whatever their length: slices of one chunk differ by at most one element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunks {
    /// Elements in all.
    pub len: u64,
    /// Number of chunks.
    pub n: u32,
    /// Slices per chunk.
    pub n_slices: u32,
}

impl Chunks {
    /// Uneven shares of `len` for `n` ranks, in slices of at most `slice` elements.
    pub fn new(len: u64, n: u32, slice: u64) -> Result<Chunks, PlanError> {
        let n_slices = n_slices(len.div_ceil(u64::from(n)), slice)?;
        Ok(Chunks { len, n, n_slices })
    }

    /// Number of elements in a chunk.
    pub fn chunk_len(&self, chunk: u32) -> u64 {
        let (lo, hi) = share(self.len, self.n, chunk);
        hi - lo
    }

    /// A slice of a chunk.
    pub fn slice(&self, buf: Buf, chunk: u32, slice: u32) -> Span {
        let (chunk_lo, chunk_hi) = share(self.len, self.n, chunk);
        let (lo, hi) = share(chunk_hi - chunk_lo, self.n_slices, slice);
        Span {
            buf,
            at: chunk_lo + lo,
            len: hi - lo,
        }
    }
}

/// `rank + by` around a ring.
pub(crate) fn forward(rank: u32, by: u32, world: u32) -> u32 {
    ((u64::from(rank) + u64::from(by)) % u64::from(world)) as u32
}

/// `rank - by` around a ring, for `by` at most `world`.
pub(crate) fn back(rank: u32, by: u32, world: u32) -> u32 {
    forward(rank, world - by, world)
}

/// What a planner knows besides its program.
pub(crate) struct Outline {
    pub kind: OpKind,
    pub algorithm: Algorithm,
    pub reduce: Reduce,
    pub input_len: u64,
    pub user_len: u64,
    pub scratch_len: u64,
    pub n_slots: u64,
    pub n_slices: u32,
}

impl Outline {
    /// The plan.
    ///
    /// # Errors
    /// More steps or slots than there are numbers for.
    pub fn with<P: Program>(self, req: &Request, program: P) -> Result<Plan, PlanError> {
        let too_many = |_| too_many_steps(req.slice);
        let n_steps = program.n_ops() * u64::from(self.n_slices);
        u32::try_from(n_steps).map_err(too_many)?;
        let n_slots = u32::try_from(self.n_slots).map_err(too_many)?;
        let total = program.total();
        let steps = Sliced {
            n_ops: u32::try_from(program.n_ops()).map_err(too_many)?,
            n_slices: self.n_slices,
            program,
        };
        Ok(Plan {
            kind: self.kind,
            algorithm: self.algorithm,
            reduce: self.reduce,
            rank: req.rank,
            world: req.world,
            input_len: self.input_len,
            user_len: self.user_len,
            scratch_len: self.scratch_len,
            n_slots,
            total,
            steps: Arc::new(steps),
        })
    }
}

/// `n * len` elements, where that is a number.
pub(crate) fn times(n: u64, len: u64) -> Result<u64, PlanError> {
    n.checked_mul(len).ok_or(PlanError::BadNumber {
        field: "len",
        got: len,
        want: "small enough for all ranks' elements to be counted in 64 bits",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_contiguous_and_differ_by_at_most_one() {
        for len in [0u64, 1, 6, 7, 8, 101, (1 << 40) + 13, u64::MAX] {
            for parts in [1u32, 2, 7, 33] {
                let mut at = 0;
                for idx in 0..parts {
                    let (lo, hi) = share(len, parts, idx);
                    assert_eq!(lo, at);
                    let each = len / u64::from(parts);
                    assert!(hi - lo == each || hi - lo == each + 1);
                    at = hi;
                }
                assert_eq!(at, len);
            }
        }
    }

    #[test]
    fn no_slice_is_longer_than_asked_for() {
        for len in [0u64, 1, 6, 7, 36, 101] {
            for n in [1u32, 2, 5, 7] {
                for slice in [1u64, 3, 7, 1000] {
                    let chunks = Chunks::new(len, n, slice).unwrap();
                    for c in 0..n {
                        for s in 0..chunks.n_slices {
                            assert!(chunks.slice(Buf::User, c, s).len <= slice);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn ring_arithmetic_does_not_overflow() {
        assert_eq!(forward(u32::MAX - 1, u32::MAX - 1, u32::MAX), u32::MAX - 2);
        assert_eq!(back(0, 1, 5), 4);
        assert_eq!(back(3, 3, 5), 0);
    }
}
