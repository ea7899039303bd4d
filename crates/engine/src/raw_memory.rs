//! The memory of one operation: the caller's buffer and the plan's scratch, reached by span.
//!
//! # Safety
//! An [`OpMemory`] holds a raw pointer to the caller's buffer.
//! For owned memory it keeps the regions; for borrowed memory its maker promises that the borrow outlives it.
//! All access goes through spans that are checked against the lengths, by one thread at a time (under the engine's lock, or on the calling thread before the engine has heard of the operation), one mutable span at a time; the only readers elsewhere are peers in the same process to whom a span was lent, and the plan's checker has proved that no step writes a span that is being sent.

use crate::{arguments::Shape, sync::Arc};
use gaggle_collectives::{Buf, Span};
use gaggle_core::{
    Borrowed, Cause, DType, Error, Loan, Owned, Region, SharedMemory, Space, WindowMut,
};
use std::ptr::NonNull;

/// What an operation works on.
pub(crate) struct OpMemory {
    /// What others are at, or may be: first, so that it is dropped before the memory is.
    lent: Lent,
    user: NonNull<u8>,
    user_bytes: usize,
    user_type: DType,
    scratch_type: DType,
    /// Words, so that every element type is aligned.
    scratch: Vec<u64>,
    /// Of the vector's heap block, taken once: a new borrow of the vector would end the loans of parts of it.
    scratch_ptr: NonNull<u8>,
    scratch_bytes: usize,
    region: Option<Region>,
    /// What is only read; dangling where there is none.
    input: NonNull<u8>,
    input_bytes: usize,
    input_region: Option<Region>,
    has_input: bool,
}

// SAFETY: the pointer stands for memory that this value owns, or has been lent for its whole life; elements are `Send`.
unsafe impl Send for OpMemory {}

impl OpMemory {
    /// Over memory that the operation owns.
    pub(crate) fn owned(mut memory: Owned) -> Result<OpMemory, (Error, Owned)> {
        let (user, len, user_type) = match memory.io.view() {
            Some(mut view) => (view.as_ptr(), view.len(), view.dtype()),
            None => return Err((no_device(memory.io.space()), memory)),
        };
        let (mut input, mut input_bytes) = (NonNull::dangling(), 0);
        if let Some(region) = &mut memory.input {
            match region.view() {
                Some(view) if view.dtype() != user_type => {
                    return Err((two_types(view.dtype(), user_type), memory));
                }
                Some(mut view) => {
                    (input, input_bytes) = (view.as_ptr(), view.len() * user_type.size());
                }
                None => return Err((no_device(region.space()), memory)),
            }
        }
        Ok(OpMemory {
            lent: Lent::default(),
            user,
            user_bytes: len * user_type.size(),
            user_type,
            scratch_type: user_type,
            scratch: vec![],
            scratch_ptr: NonNull::dangling(),
            scratch_bytes: 0,
            region: Some(memory.io),
            input,
            input_bytes,
            has_input: memory.input.is_some(),
            input_region: memory.input,
        })
    }

    /// Over memory that the caller lends.
    ///
    /// # Safety
    /// What `memory` borrows stays borrowed until this value is dropped.
    #[inline]
    pub(crate) unsafe fn borrowed(memory: Borrowed<'_>) -> Result<OpMemory, Error> {
        let mut view = memory.io;
        let input = memory.input;
        let spaces = [Some(view.space()), input.map(|v| v.space())];
        if let Some(space) = spaces.into_iter().flatten().find(|s| !s.is_host()) {
            return Err(no_device(space));
        }
        if let Some(other) = input.map(|v| v.dtype()).filter(|d| *d != view.dtype()) {
            return Err(two_types(other, view.dtype()));
        }
        Ok(OpMemory {
            lent: Lent::default(),
            user: view.as_ptr(),
            user_bytes: view.len() * view.dtype().size(),
            user_type: view.dtype(),
            scratch_type: view.dtype(),
            scratch: vec![],
            scratch_ptr: NonNull::dangling(),
            scratch_bytes: 0,
            region: None,
            input: input.map_or(NonNull::dangling(), |v| v.as_ptr()),
            input_bytes: input.map_or(0, |v| v.len() * v.dtype().size()),
            input_region: None,
            has_input: input.is_some(),
        })
    }

    /// Looks again at where the regions are, which were in their owner's hands.
    ///
    /// # Errors
    /// They are not as long, or not of the type, that they were; nothing has changed.
    pub(crate) fn rebind(&mut self) -> Result<(), Error> {
        let (want, mut got) = (self.shape(), self.shape());
        let (mut user, mut input) = (self.user, self.input);
        if let Some(region) = &mut self.region {
            let space = region.space();
            let mut view = region.view().ok_or_else(|| no_device(space))?;
            (got.io, got.dtype) = (view.len() as u64, view.dtype());
            user = view.as_ptr();
        }
        if let Some(region) = &mut self.input_region {
            let space = region.space();
            let mut view = region.view().ok_or_else(|| no_device(space))?;
            if view.dtype() != got.dtype {
                return Err(two_types(view.dtype(), got.dtype));
            }
            got.input = Some(view.len() as u64);
            input = view.as_ptr();
        }
        if (got.dtype, got.io, got.input) != (want.dtype, want.io, want.input) {
            let what = format!("the memory was {want:?} when it was set up, and is {got:?}");
            return Err(Error::invalid("start", what));
        }
        (self.user, self.input) = (user, input);
        Ok(())
    }

    /// Address and bytes of what this rank gives.
    pub(crate) fn contribution(&self) -> (NonNull<u8>, usize) {
        match self.has_input {
            true => (self.input, self.input_bytes),
            false => self.result(),
        }
    }

    /// Address and bytes of what is written.
    pub(crate) fn result(&self) -> (NonNull<u8>, usize) {
        (self.user, self.user_bytes)
    }

    /// Lends what this rank gives to the other threads of its process; its number.
    pub(crate) fn lend_contribution(&mut self, shared: &Arc<dyn SharedMemory>) -> Option<u64> {
        if !self.has_input {
            return self.lend_result(shared);
        }
        if self.lent.contribution == 0 {
            // SAFETY: as in `lend_result`; what is only read here is read by the others, too.
            self.lent.contribution = unsafe { shared.lend(self.input, self.input_bytes) }?;
            self.lent.shared = Some(Arc::clone(shared));
        }
        Some(self.lent.contribution)
    }

    /// Lends what is written to the other threads of its process; its number.
    pub(crate) fn lend_result(&mut self, shared: &Arc<dyn SharedMemory>) -> Option<u64> {
        if self.lent.result == 0 {
            // SAFETY: this value has the memory until it is dropped or taken apart, which recall the loan before; the plan's checker has proved that ranks reach it in turns.
            self.lent.result = unsafe { shared.lend(self.user, self.user_bytes) }?;
            self.lent.shared = Some(Arc::clone(shared));
        }
        Some(self.lent.result)
    }

    /// On return no other thread is at this memory, or will be.
    pub(crate) fn recall(&mut self) {
        self.lent.recall();
    }

    /// Takes what is written out of reach of all others, so that it can be handed back although they may still write to it.
    ///
    /// What that needs was there when the memory was made (`SharedMemory::sever`). An implementation that fails all the same has broken its promise: memory that the operation owns is leaked then; borrowed memory would change under its owner's hands, and there is no way on.
    pub(crate) fn sever(&mut self, shared: &dyn SharedMemory) {
        if self.lent.result != 0 {
            self.recall();
            return;
        }
        let Err(why) = shared.sever(self.user, self.user_bytes) else {
            return;
        };
        tracing::error!(%why, "the memory of a failed operation is in reach of others");
        match self.region.take() {
            Some(region) => {
                std::mem::forget(region);
                (self.user, self.user_bytes) = (NonNull::dangling(), 0);
            }
            None => std::process::abort(),
        }
    }

    /// The region that is written, while no run is in flight.
    pub(crate) fn region(&mut self) -> Option<&mut Region> {
        self.region.as_mut()
    }

    /// The region that is read, while no run is in flight.
    pub(crate) fn input_region(&mut self) -> Option<&mut Region> {
        self.input_region.as_mut()
    }

    /// Element type and lengths.
    pub(crate) fn shape(&self) -> Shape {
        let elems = |bytes: usize| (bytes / self.user_type.size()) as u64;
        Shape {
            dtype: self.user_type,
            io: elems(self.user_bytes),
            input: self.has_input.then(|| elems(self.input_bytes)),
        }
    }

    /// Whether it keeps its memory itself.
    pub(crate) fn is_owned(&self) -> bool {
        self.region.is_some()
    }

    /// Room for the plan, in `dtype`; `pooled` is reused.
    pub(crate) fn attach_scratch(&mut self, mut pooled: Vec<u64>, elems: u64, dtype: DType) {
        self.scratch_type = dtype;
        self.scratch_bytes = elems as usize * dtype.size();
        let words = self.scratch_bytes.div_ceil(8);
        if pooled.len() < words {
            pooled.resize(words, 0);
        }
        self.scratch = pooled;
        self.scratch_ptr = NonNull::from(self.scratch.as_mut_slice()).cast();
    }

    /// Takes the memory apart: the scratch for the pool, the regions that are written and read for their owner.
    pub(crate) fn into_parts(mut self) -> (Vec<u64>, Option<Region>, Option<Region>) {
        self.recall();
        (self.scratch, self.region, self.input_region)
    }

    /// Element type of a buffer.
    pub(crate) fn type_of(&self, buf: Buf) -> DType {
        match buf {
            Buf::Input | Buf::User => self.user_type,
            Buf::Scratch => self.scratch_type,
        }
    }

    fn locate(&self, span: Span) -> (NonNull<u8>, usize) {
        let size = self.type_of(span.buf).size() as u64;
        let (base, limit) = match span.buf {
            Buf::Input => (self.input, self.input_bytes),
            Buf::User => (self.user, self.user_bytes),
            Buf::Scratch => (self.scratch_ptr, self.scratch_bytes),
        };
        let end = span
            .at
            .checked_add(span.len)
            .and_then(|e| e.checked_mul(size));
        assert!(
            end.is_some_and(|e| e <= limit as u64),
            "{span} lies outside its buffer of {limit} bytes"
        );
        // SAFETY: `at` is at most the buffer's length, as just checked, so the pointer stays within (or one past) the allocation.
        let at = unsafe { base.add((span.at * size) as usize) };
        (at, (span.len * size) as usize)
    }

    /// The bytes of a span.
    pub(crate) fn bytes(&self, span: Span) -> &[u8] {
        let (at, len) = self.locate(span);
        // SAFETY: `locate` checked the bounds; the memory is initialised; nobody writes it while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), len) }
    }

    /// The bytes of a span, for writing.
    pub(crate) fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        self.split(span).0
    }

    /// One span for writing, and the rest of the memory for reading beside it.
    pub(crate) fn split(&mut self, dst: Span) -> (&mut [u8], Others<'_>) {
        assert!(
            dst.buf != Buf::Input,
            "{dst} is written, but was lent for reading"
        );
        let (at, len) = self.locate(dst);
        // SAFETY: `locate` checked the bounds; `self` is mutably borrowed; `Others` hands out nothing that overlaps `dst`; a span that is lent to a peer is written by no step (the checker's proof).
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), len) };
        (bytes, Others { memory: self, dst })
    }

    /// Lends a span to a transport.
    pub(crate) fn lend(&self, span: Span) -> Loan {
        let (at, len) = self.locate(span);
        // SAFETY: the engine ends every transfer (done, or cancelled) before it lets go of an operation's memory, and lends only for plans of the planner's, which are proved to write no span while it is being sent.
        unsafe { Loan::new(at, len) }
    }
}

/// What is lent of an operation's memory; recalled when this is dropped.
#[derive(Default)]
struct Lent {
    /// Numbers of the contribution and of the result; 0: not lent.
    contribution: u64,
    result: u64,
    shared: Option<Arc<dyn SharedMemory>>,
}

impl Lent {
    fn recall(&mut self) {
        if let Some(shared) = self.shared.take() {
            for number in [&mut self.contribution, &mut self.result] {
                match std::mem::take(number) {
                    0 => {}
                    number => shared.recall(number),
                }
            }
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.recall();
    }
}

/// Lends a copy in this rank's heap to a transport.
pub(crate) fn lend_window(window: WindowMut<'_>) -> Loan {
    // SAFETY: the operation keeps the room that the window is of until every transfer has ended (done, or cancelled), and writes to it again only when all to whom it was lent have taken it.
    unsafe { Loan::new(window.start(), window.len()) }
}

fn two_types(input: DType, output: DType) -> Error {
    Error::invalid("memory", format!("input of {input}, output of {output}"))
}

fn no_device(space: Space) -> Error {
    Cause::Unsupported {
        op: "start".into(),
        what: format!("the engine works on host memory, and this is {space}"),
    }
    .into()
}

/// The memory beside a span that is being written.
pub(crate) struct Others<'a> {
    memory: &'a OpMemory,
    dst: Span,
}

impl<'a> Others<'a> {
    /// The bytes of a span that does not overlap the one being written; `None` for exactly that one.
    ///
    /// # Panics
    /// On a partial overlap, which the plan's checker excludes.
    pub(crate) fn get(&self, span: Span) -> Option<&'a [u8]> {
        if span == self.dst {
            return None;
        }
        assert!(
            !span.overlaps(self.dst),
            "{span} overlaps {}, which is being written",
            self.dst
        );
        Some(self.memory.bytes(span))
    }

    /// Element type of a buffer.
    pub(crate) fn type_of(&self, buf: Buf) -> DType {
        self.memory.type_of(buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(n: usize) -> OpMemory {
        OpMemory::owned(Region::new((0..n).map(|i| i as f32).collect::<Vec<_>>()).into())
            .ok()
            .unwrap()
    }

    #[test]
    fn spans_are_elements_of_their_buffer() {
        let mut m = memory(4);
        m.attach_scratch(vec![], 3, DType::F32);
        m.bytes_mut(Span::scratch(1, 2)).fill(7);
        assert_eq!(
            m.bytes(Span::user(2, 2)),
            gaggle_core::raw::bytes_of(&[2.0f32, 3.0])
        );
        let (dst, others) = m.split(Span::user(0, 2));
        assert!(others.get(Span::user(0, 2)).is_none());
        dst.copy_from_slice(others.get(Span::scratch(1, 2)).unwrap());
        assert_eq!(m.bytes(Span::user(0, 2)), [7; 8]);
    }

    #[test]
    #[should_panic(expected = "user[2..5] lies outside its buffer of 16 bytes")]
    fn a_span_beyond_the_buffer_is_a_bug() {
        memory(4).bytes(Span::user(2, 3));
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn a_partial_overlap_is_a_bug() {
        let mut m = memory(4);
        let (_dst, others) = m.split(Span::user(0, 2));
        others.get(Span::user(1, 2));
    }
}
