//! Operations whose contribution fits on a board: one exchange, after which each rank has all it needs.
//!
//! Contributions are folded in rank order as by the fused plans, and so with the bits of `direct`.

use super::board::{Lines, MOST};
use crate::{arguments::Shape, raw_memory::OpMemory, select::Choice};
use gaggle_collectives::Span;
use gaggle_core::{
    Counts, DType, Divisor, GroupInfo, Kind, Mode, Op, OpKind, Rank, Reduce, Stores, Weight,
    WindowMut, raw::bytes_of_mut,
};
use gaggle_kernels as kernels;
use smallvec::SmallVec;
use std::{cell::RefCell, ops::Range};

/// Most bytes of a contribution.
const MOST_DATA: u64 = 4096;
/// From as many bytes on contributions are folded where they are shown.
const MANY: usize = 512;
/// Others of whom each gives no more than fits the line that it is shown by: their sum is computed with no preparation.
const FEW: usize = 7;
const _: () = assert!(MOST_DATA as usize + 8 <= MOST);

/// What is exchanged, and what becomes of it.
#[derive(Debug)]
pub(crate) struct Small {
    kind: OpKind,
    reduce: Reduce,
    dtype: DType,
    how: kernels::How,
    root: usize,
    me: usize,
    world: usize,
    /// Elements of the contributions: as many from all, or each rank's part.
    lens: Lens,
    out_of_place: bool,
}

#[derive(Debug)]
enum Lens {
    Equal(u64),
    /// Where each rank's part begins, and the end of the last.
    Parts(Vec<u64>),
}

impl Small {
    /// `None` where it is too large, or of another kind. Depends on nothing but what all ranks give alike.
    pub(crate) fn of(op: &Op, choice: &Choice, group: &GroupInfo, shape: &Shape) -> Option<Small> {
        let (me, world) = (group.rank.idx(), group.world_ranks.len());
        let size = shape.dtype.size() as u64;
        let len = choice.extent.len;
        let parts = |counts: &Counts| match counts {
            Counts::Equal => {
                let ends = (0..=world as u64).map(|i| i.checked_mul(len));
                ends.collect::<Option<Vec<u64>>>()
            }
            Counts::Known(list) => {
                let mut end = 0u64;
                let mut ends = vec![0];
                for n in list.iter() {
                    end = end.checked_add(*n)?;
                    ends.push(end);
                }
                (ends.len() == world + 1).then_some(ends)
            }
            Counts::Discover => None,
        };
        let (reduce, root) = match &op.kind {
            Kind::AllReduce(reduce) | Kind::ReduceScatter { reduce, .. } => (*reduce, Rank(0)),
            Kind::Reduce { reduce, root } => (*reduce, *root),
            Kind::Broadcast { root } | Kind::Gather { root, .. } | Kind::Scatter { root, .. } => {
                (Reduce::Sum, *root)
            }
            _ => (Reduce::Sum, Rank(0)),
        };
        let (lens, most) = match &op.kind {
            Kind::AllReduce(_) | Kind::Reduce { .. } | Kind::Broadcast { .. } => {
                (Lens::Equal(len), len)
            }
            Kind::Barrier => (Lens::Equal(0), 0),
            Kind::AllGather(counts) | Kind::Gather { counts, .. } => {
                let parts = parts(counts)?;
                let most = parts.windows(2).map(|p| p[1] - p[0]).max();
                (Lens::Parts(parts), most.unwrap_or(0))
            }
            Kind::AllToAll {
                send: Counts::Equal,
                recv: Counts::Equal,
            } => {
                let parts = parts(&Counts::Equal)?;
                let all = parts.last().copied().unwrap_or(0);
                (Lens::Parts(parts), all)
            }
            Kind::ReduceScatter { counts, .. } | Kind::Scatter { counts, .. } => {
                let parts = parts(counts)?;
                let all = parts.last().copied().unwrap_or(0);
                (Lens::Parts(parts), all)
            }
            _ => return None,
        };
        if reduce == Reduce::User || most.checked_mul(size)? > MOST_DATA {
            return None;
        }
        let sum = matches!(reduce, Reduce::Sum | Reduce::Mean);
        let reduces = choice.kind.reduces();
        let other = reduces && reduce == Reduce::Mean && op.divisor == Divisor::InitialWorld;
        Some(Small {
            kind: choice.kind,
            reduce,
            dtype: shape.dtype,
            how: kernels::How {
                exact: op.mode == Mode::Exact && reduces && sum && shape.dtype.is_float(),
                divisor: other.then(|| Weight::samples(group.initial_size)),
            },
            root: root.idx(),
            me,
            world,
            lens,
            out_of_place: shape.input.is_some(),
        })
    }

    /// Elements `at..at + len` of what this rank gives lie there.
    fn given(&self, at: u64, len: u64) -> Span {
        match self.out_of_place {
            true => Span::input(at, len),
            false => Span::user(at, len),
        }
    }

    fn is_weighed(&self) -> bool {
        self.kind.reduces() && self.reduce == Reduce::Mean
    }

    /// A member's part of the whole.
    fn part(&self, member: usize) -> (u64, u64) {
        match &self.lens {
            Lens::Equal(len) => (0, *len),
            Lens::Parts(ends) => (ends[member], ends[member + 1] - ends[member]),
        }
    }

    /// Elements that a member gives.
    fn gives(&self, member: usize) -> u64 {
        match (self.kind, &self.lens) {
            (OpKind::Broadcast, Lens::Equal(len)) if member == self.root => *len,
            (OpKind::Broadcast, _) => 0,
            (OpKind::Scatter, Lens::Parts(ends)) if member == self.root => ends[self.world],
            (OpKind::Scatter, _) => 0,
            (OpKind::Gather, _) if member == self.root => 0,
            (OpKind::ReduceScatter | OpKind::AllToAll, Lens::Parts(ends)) => ends[self.world],
            _ => self.part(member).1,
        }
    }

    /// Shows what this rank gives.
    #[inline]
    pub(crate) fn post(
        &self,
        lines: &mut Lines<'_>,
        (seq, hash): (u64, u64),
        memory: &OpMemory,
        weight: Weight,
    ) {
        let at = match self.kind {
            OpKind::AllGather if !self.out_of_place => self.part(self.me).0,
            _ => 0,
        };
        let data: &[u8] = match self.gives(self.me) {
            0 => &[],
            len => memory.bytes(self.given(at, len)),
        };
        let weight = weight.bits().to_ne_bytes();
        let first: &[u8] = if self.is_weighed() { &weight } else { &[] };
        lines.post(seq, hash, [first, data]);
    }

    /// All members have shown theirs: writes the result. The sum of weights of a mean; `None` where that leaves the range, and nothing is written.
    #[inline]
    pub(crate) fn take(
        &self,
        lines: &Lines<'_>,
        seq: u64,
        memory: &mut OpMemory,
        weight: Weight,
    ) -> Option<Weight> {
        match self.kind {
            // Whoever is not the root has nothing to do with the result.
            OpKind::Reduce if self.me != self.root => Some(Weight::ZERO),
            OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter => {
                self.fold(lines, seq, memory, weight)
            }
            OpKind::Gather if self.me != self.root => Some(Weight::ZERO),
            OpKind::AllGather | OpKind::Gather => {
                let (at, len) = self.part(self.me);
                if self.out_of_place && len > 0 {
                    copy_within(memory, Span::input(0, len), Span::user(at, len));
                }
                for member in (0..self.world).filter(|m| *m != self.me) {
                    let (at, len) = self.part(member);
                    if len > 0 {
                        lines.read(member, seq, 0, memory.bytes_mut(Span::user(at, len)));
                    }
                }
                Some(Weight::ZERO)
            }
            OpKind::AllToAll => {
                let (at, len) = self.part(self.me);
                if len == 0 {
                    return Some(Weight::ZERO);
                }
                if self.out_of_place {
                    copy_within(memory, Span::input(at, len), Span::user(at, len));
                }
                for member in (0..self.world).filter(|m| *m != self.me) {
                    let (place, len) = self.part(member);
                    let to = memory.bytes_mut(Span::user(place, len));
                    self.read_from(lines, (member, seq), at, to);
                }
                Some(Weight::ZERO)
            }
            OpKind::Scatter => {
                let (at, len) = self.part(self.me);
                if len == 0 {
                } else if self.me != self.root {
                    let to = memory.bytes_mut(Span::user(0, len));
                    self.read_from(lines, (self.root, seq), at, to);
                } else if self.out_of_place {
                    copy_within(memory, Span::input(at, len), Span::user(0, len));
                }
                Some(Weight::ZERO)
            }
            OpKind::Broadcast => {
                let (_, len) = self.part(self.root);
                if len > 0 && self.me != self.root {
                    lines.read(self.root, seq, 0, memory.bytes_mut(Span::user(0, len)));
                } else if len > 0 && self.out_of_place {
                    copy_within(memory, Span::input(0, len), Span::user(0, len));
                }
                Some(Weight::ZERO)
            }
            _ => Some(Weight::ZERO),
        }
    }

    /// Reads what a member shows from an element on.
    fn read_from(&self, lines: &Lines<'_>, (member, seq): (usize, u64), at: u64, to: &mut [u8]) {
        // It may begin within a word.
        let before = at as usize * self.dtype.size();
        let (word, skip) = (before / 8, before % 8);
        if skip == 0 {
            return lines.read(member, seq, word, to);
        }
        with_room(skip + to.len(), |room| {
            let room = &mut room[..skip + to.len()];
            lines.read(member, seq, word, room);
            to.copy_from_slice(&room[skip..]);
        });
    }

    fn fold(
        &self,
        lines: &Lines<'_>,
        seq: u64,
        memory: &mut OpMemory,
        weight: Weight,
    ) -> Option<Weight> {
        let weighed = self.is_weighed();
        let head = usize::from(weighed);
        let weight_of = |member: usize| match member == self.me {
            true => weight,
            false => {
                let mut bits = [0; 8];
                lines.read(member, seq, 0, &mut bits);
                Weight::from_bits(u64::from_ne_bytes(bits))
            }
        };
        // Read once: what is added up is what is folded with.
        let mut weights = SmallVec::<[Weight; 8]>::new();
        let mut total = 0u64;
        if weighed {
            weights.extend((0..self.world).map(weight_of));
            for weight in &weights {
                total = total.checked_add(weight.bits())?;
            }
        }
        let total = Weight::from_bits(total);
        let (at, len) = self.part(self.me);
        if len == 0 || (weighed && total == Weight::ZERO) {
            return Some(total);
        }
        if self.sum_lines(lines, seq, memory) {
            return Some(total);
        }
        let (bytes, size) = (self.gives(self.me) as usize, self.dtype.size());
        let dst = match (self.kind, self.out_of_place) {
            (OpKind::ReduceScatter, true) => Span::user(0, len),
            _ => Span::user(at, len),
        };
        let there = Part {
            seq,
            head,
            own: Span::input(at, len),
            bytes: at as usize * size..(at + len) as usize * size,
        };
        if there.bytes.len() >= MANY && self.fold_there(lines, &there, memory, dst, &weights) {
            return Some(total);
        }
        let stride = (bytes * size).next_multiple_of(8);
        let (lo, hi) = (there.bytes.start, there.bytes.end);
        with_room(stride * self.world, |room| {
            let others = (0..self.world).filter(|m| *m != self.me);
            for member in others {
                let to = &mut room[stride * member..][..bytes * size];
                lines.read(member, seq, head, to);
            }
            let (to, beside) = memory.split(dst);
            let mut terms = SmallVec::<[kernels::Term<'_>; 8]>::new();
            for member in 0..self.world {
                let source = match (member == self.me, self.out_of_place) {
                    (true, false) => kernels::Source::Dst,
                    (true, true) => kernels::Source::Bytes {
                        bytes: beside.get(Span::input(at, len)).unwrap_or(&[]),
                        dtype: self.dtype,
                    },
                    (false, _) => kernels::Source::Bytes {
                        bytes: &room[stride * member..][lo..hi],
                        dtype: self.dtype,
                    },
                };
                let weight = weights.get(member).copied();
                terms.push(kernels::Term { source, weight });
            }
            kernels::fold_with(self.dtype, self.reduce, to, &terms, self.how);
        });
        Some(total)
    }

    /// Sums a few elements of a few ranks. `false`: it is something else, and nothing has happened that another fold does not do again.
    #[inline]
    fn sum_lines(&self, lines: &Lines<'_>, seq: u64, memory: &mut OpMemory) -> bool {
        let (Lens::Equal(len), Reduce::Sum, false) = (&self.lens, self.reduce, self.how.exact)
        else {
            return false;
        };
        let bytes = *len as usize * self.dtype.size();
        if bytes > size_of::<kernels::Line>() || self.world > FEW + 1 {
            return false;
        }
        let mut room = [kernels::Line::default(); FEW];
        let others = (0..self.world).filter(|m| *m != self.me);
        for (line, member) in room.iter_mut().zip(others) {
            lines.read(member, seq, 0, &mut bytes_of_mut(&mut line[..])[..bytes]);
        }
        if self.out_of_place {
            copy_within(memory, Span::input(0, *len), Span::user(0, *len));
        }
        let dst = memory.bytes_mut(Span::user(0, *len));
        kernels::sum_lines(self.dtype, dst, self.me, &room[..self.world - 1])
    }

    /// Folds the others' contributions where they are shown. `false`: they cannot be reached there, and nothing has happened.
    fn fold_there(
        &self,
        lines: &Lines<'_>,
        part: &Part,
        memory: &mut OpMemory,
        dst: Span,
        weights: &[Weight],
    ) -> bool {
        let dtype = self.dtype;
        let (to, beside) = memory.split(dst);
        let mut terms = SmallVec::<[kernels::Term<'_>; 8]>::new();
        for member in 0..self.world {
            let source = match (member == self.me, self.out_of_place) {
                (true, false) => kernels::Source::Dst,
                (true, true) => kernels::Source::Window {
                    window: beside.get(part.own).unwrap_or(&[]).into(),
                    dtype,
                },
                (false, _) => {
                    let shown = lines.window(member, part.seq, part.head, part.bytes.end);
                    let Some(window) = shown.and_then(|all| all.part(part.bytes.clone())) else {
                        return false;
                    };
                    kernels::Source::Window { window, dtype }
                }
            };
            let weight = weights.get(member).copied();
            terms.push(kernels::Term { source, weight });
        }
        let to = [WindowMut::from(to)];
        kernels::fold_windows(dtype, self.reduce, &to, &terms, self.how, Stores::Cached);
        true
    }
}

/// What is folded of every contribution.
struct Part {
    seq: u64,
    /// Words before the contribution on a board.
    head: usize,
    /// In what this rank gives, where that is apart from the result.
    own: Span,
    /// In each contribution.
    bytes: Range<usize>,
}

fn copy_within(memory: &mut OpMemory, src: Span, dst: Span) {
    let (to, beside) = memory.split(dst);
    if let Some(from) = beside.get(src) {
        to.copy_from_slice(from);
    }
}

/// Room for the others' contributions.
fn with_room<R>(bytes: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    /// Words that are made and zeroed on the spot: some ranks' one or two, or a few ranks' more.
    const LITTLE: usize = 16;
    const MORE: usize = 128;
    if bytes <= 8 * LITTLE {
        let mut room = [0u64; LITTLE];
        return f(&mut bytes_of_mut(&mut room[..])[..bytes]);
    }
    if bytes <= 8 * MORE {
        let mut room = [0u64; MORE];
        return f(&mut bytes_of_mut(&mut room[..])[..bytes]);
    }
    thread_local! {
        static ROOM: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }
    ROOM.with(|kept| {
        let mut room = kept.take();
        let words = bytes.div_ceil(8);
        if room.len() < words {
            room.resize(words, 0);
        }
        let result = f(&mut bytes_of_mut(&mut room[..])[..bytes]);
        kept.replace(room);
        result
    })
}
