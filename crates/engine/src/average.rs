//! Neighbour averages, of values that have come and of values that have been left in their senders' memory: those are read there, in the average's one pass, and never stored here.
//!
//! A message may be left where its only use is an average that waits for nothing but receives: one that also waits until this rank's own value is taken (in place, of memory that is itself lent) would wait for a neighbour that waits for it.

use crate::{op::OpState, sync::Arc};
use gaggle_collectives::{Action, Arrive, Buf, Span};
use gaggle_core::{
    Codec, DType, Error, Form, Inlet, Rank, SharedMemory, Stores, Window, WindowMut, XferId,
};
use gaggle_kernels as kernels;
use smallvec::SmallVec;

/// A message that lies in its sender's memory until it has been averaged, or folded.
pub(crate) struct Left {
    /// The step that receives it.
    step: u32,
    /// Where it would have been stored.
    dst: Span,
    heaps: Arc<dyn SharedMemory>,
    /// A rank of the job.
    peer: Rank,
    place: u64,
    /// Of its elements there.
    dtype: DType,
    /// The average or the fold has been made; what is still to come is the transport's word.
    read: bool,
}

impl Left {
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether it is what is to be read as `span`.
    pub(crate) fn is_at(&self, span: Span) -> bool {
        !self.read && self.dst == span
    }

    pub(crate) fn window(&self, bytes: usize) -> Option<Window<'_>> {
        let window = self.heaps.window(self.peer, self.place, bytes)?;
        Some(window.into())
    }
}

impl OpState {
    /// Leaves a message where it lies, if its bytes are of use to an average or a fold alone and can stay there. True: what waits for it may run.
    pub(crate) fn leave(
        &mut self,
        step: u32,
        part: &mut dyn Inlet,
        heaps: Option<&Arc<dyn SharedMemory>>,
    ) -> bool {
        let Some(heaps) = heaps else {
            return false;
        };
        let alone = self.averaged_alone(step);
        let Some((from, dst)) = alone.or_else(|| self.folded_alone(step)) else {
            return false;
        };
        let dtype = self.wire(step).dtype;
        let Some(place) = part.leave() else {
            return false;
        };
        // Its weight, which has come with the head, is in its slot when the fold runs; a stored message's cannot leave the range.
        self.settle(step);
        let peer = self.world_rank(from);
        self.left_there.push(Left {
            step,
            dst,
            heaps: Arc::clone(heaps),
            peer,
            place,
            dtype,
            read: false,
        });
        true
    }

    /// Source and destination of a receive whose bytes come as they are, for one average that waits for receives alone.
    fn averaged_alone(&self, step: u32) -> Option<(Rank, Span)> {
        let Action::Recv {
            from,
            dst,
            codec: Codec::None,
            arrive: Arrive::Store,
            weight: None,
            wire,
            ..
        } = self.program.steps[step as usize].action
        else {
            return None;
        };
        let plain = self.memory.type_of(wire) == self.memory.type_of(dst.buf);
        if self.tolerant || self.broken.is_some() || dst.buf != Buf::Scratch || !plain {
            return None;
        }
        let &[next] = self.program.successors(step) else {
            return None;
        };
        let next = &self.program.steps[next as usize];
        let free = |before: &u32| match self.program.steps[*before as usize].action {
            Action::Recv { .. } => true,
            // What is sent has been copied.
            _ => self.told.contains(before),
        };
        match &next.action {
            Action::Mix { operands, .. } if operands.contains(&dst) => {
                next.after.iter().all(free).then_some((from, dst))
            }
            _ => None,
        }
    }

    /// Whether this receive's message has come and lies with its sender, who has not taken it back.
    pub(crate) fn lies_there(&self, step: u32) -> bool {
        self.xfers[step as usize].is_some() && self.left_there.iter().any(|left| left.step == step)
    }

    /// A step is over. True where what waits for it has been told before.
    pub(crate) fn was_told(&mut self, step: u32) -> bool {
        let left = self.left_there.iter().position(|left| left.step == step);
        let told = self.told.iter().position(|told| *told == step);
        left.map(|i| self.left_there.swap_remove(i)).is_some()
            | told.map(|i| self.told.swap_remove(i)).is_some()
    }

    /// A step has run: how many messages it has read where they were left, and their transfers, by link. A message that its sender has taken back has none any more, and will never be confirmed.
    pub(crate) fn read_there(&mut self, step: u32) -> (usize, SmallVec<[(u8, XferId); 4]>) {
        let (mut n, mut all) = (0, SmallVec::new());
        if self.left_there.is_empty() {
            return (n, all);
        }
        let reads = |left: &Left| match &self.program.steps[step as usize].action {
            Action::Mix { operands, .. } => operands.contains(&left.dst),
            Action::Fold { operands, .. } => operands.iter().any(|o| o.span == left.dst),
            _ => false,
        };
        for left in &mut self.left_there {
            if !left.read && reads(left) {
                left.read = true;
                n += 1;
                all.extend(self.xfers[left.step as usize]);
            }
        }
        (n, all)
    }

    /// Who is missing is left out: in delta form its term, in sum form its value, whose (receiver's) weight goes to the own value.
    pub(crate) fn average(
        &mut self,
        (dst, own): (Span, Span),
        operands: &[Span],
        form: Form,
        codec: Codec,
    ) {
        self.touch(dst);
        let mut keep = self.mix.keep;
        let mut gone = SmallVec::<[bool; 16]>::new();
        if !self.absent.is_empty() {
            for (span, weight) in operands.iter().zip(&self.mix.from) {
                let missing = self.is_missing(*span);
                gone.push(missing);
                if missing && form == Form::Sum {
                    keep += weight;
                }
            }
        }
        let there = |i: usize| !gone.get(i).copied().unwrap_or(false);
        let dtype = self.memory.type_of(dst.buf);
        let (to, others) = self.memory.split(dst);
        let given = others.get(own);
        if given.is_none() && self.left_there.is_empty() {
            let terms: SmallVec<[kernels::MixTerm<'_>; 16]> = operands
                .iter()
                .zip(&self.mix.from)
                .enumerate()
                .filter(|(i, _)| there(*i))
                .map(|(_, (span, weight))| kernels::MixTerm {
                    bytes: others.get(*span).unwrap_or(&[]),
                    dtype: others.type_of(span.buf),
                    weight: *weight,
                })
                .collect();
            return kernels::mix(dtype, to, keep, &terms, form, codec);
        }
        let n_bytes = to.len();
        let mut terms = SmallVec::<[kernels::MixWindow<'_>; 16]>::new();
        for (i, (span, weight)) in operands.iter().zip(&self.mix.from).enumerate() {
            if !there(i) {
                continue;
            }
            let left = self.left_there.iter().find(|l| l.is_at(*span));
            let window = match left {
                Some(left) => left.window(n_bytes),
                None => others.get(*span).map(Window::from),
            };
            let Some(window) = window else {
                // It was there when the message came, and heaps do not shrink.
                self.broken = Some(Error::internal(
                    "a neighbour's value is not mapped any more",
                ));
                return;
            };
            terms.push(kernels::MixWindow {
                window,
                dtype: others.type_of(span.buf),
                weight: *weight,
            });
        }
        let all = self.program.plan.user_len * dtype.size() as u64;
        let stores = match given {
            Some(_) => Stores::of(all.saturating_mul(operands.len() as u64 + 2)),
            // It has just been read.
            None => Stores::Cached,
        };
        let to = WindowMut::from(to);
        kernels::mix_windows(
            dtype,
            to,
            (given.map_or(to.into(), Window::from), keep),
            &terms,
            (form, codec),
            stores,
        );
    }
}
