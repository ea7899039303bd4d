//! Which elements pass through which part of the staging memory, slice by slice: pure, and the same on every rank.
//!
//! A slot of a rank's staging memory is a row of cells. Of each slice a rank fills the cells with what others need of it; where the slice is folded, the cell that is its own holds the result.

use crate::raw_memory::OpMemory;
use gaggle_collectives::{Buf, Call, Request, Span};
use gaggle_core::{Counts, OpKind, Rank};
use std::{fmt, ops::Range};

/// Slots per rank: as many slices may be under way at a time.
pub(crate) const DEPTH: u64 = 4;
/// Bytes of a cache line: cells begin at one, and shares are whole lines, so that no two ranks write one.
const LINE: u64 = 64;
/// Bytes of a cell, per kind of operation that has one cell for each rank.
const CELL: u64 = 128 << 10;
/// Most bytes of a slot.
const SLOT: u64 = 256 << 10;

/// What is to be done; parts are first element and number of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// Every rank folds its share of each slice.
    AllReduce,
    /// Every rank folds its part.
    ReduceScatter(Vec<(u64, u64)>),
    AllGather(Vec<(u64, u64)>),
    /// Every rank has a part of so many elements for every rank.
    AllToAll(u64),
    Broadcast(Rank),
    /// The root gets every rank's part.
    Gather(Rank, Vec<(u64, u64)>),
    /// Every rank gets its part of the root's.
    Scatter(Rank, Vec<(u64, u64)>),
}

/// How an operation is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    what: What,
    me: u32,
    world: u32,
    /// Whether the contribution is memory of its own.
    out_of_place: bool,
    /// Elements of the vector.
    len: u64,
    /// Bytes of an element.
    size: u64,
    /// Elements of a cell.
    cell: u64,
    slices: u64,
    /// Whether what is written stays in the cache of the processor that writes it.
    stays: bool,
}

/// From so many bytes of staging memory on it matters where they are.
const MATTERS: u64 = 128 << 10;

impl Layout {
    /// Of a request for elements of `size` bytes; `None` for what does not go through staging memory.
    pub(crate) fn of(request: &Request, kind: OpKind, size: u64) -> Option<Layout> {
        let most = (SLOT / u64::from(request.world.max(1))).min(CELL);
        Layout::cut(request, kind, size, most)
    }

    /// As [`of`](Layout::of), with cells of at most about `most` bytes.
    pub(crate) fn cut(request: &Request, kind: OpKind, size: u64, most: u64) -> Option<Layout> {
        let (len, world) = (request.len, request.world);
        let (what, span, cells) = match (&request.call, kind) {
            (Call::AllReduce { .. }, OpKind::AllReduce) => {
                let shares = len.div_ceil(u64::from(world));
                (What::AllReduce, shares, world)
            }
            (Call::ReduceScatter { counts, .. }, OpKind::ReduceScatter) => {
                let parts = parts(counts, len, world)?;
                let longest = longest(&parts);
                (What::ReduceScatter(parts), longest, world)
            }
            (Call::AllGather { counts, .. }, OpKind::AllGather) => {
                let parts = parts(counts, len, world)?;
                let longest = longest(&parts);
                (What::AllGather(parts), longest, 1)
            }
            (Call::Gather { root, counts, .. }, OpKind::Gather) => {
                let parts = parts(counts, len, world)?;
                let longest = longest(&parts);
                (What::Gather(*root, parts), longest, 1)
            }
            (Call::Scatter { root, counts, .. }, OpKind::Scatter) => {
                let parts = parts(counts, len, world)?;
                let longest = longest(&parts);
                (What::Scatter(*root, parts), longest, world)
            }
            (Call::AllToAll { .. }, OpKind::AllToAll) => {
                len.checked_mul(world.into())?;
                (What::AllToAll(len), len, world)
            }
            (Call::Broadcast { root, .. }, OpKind::Broadcast) => (What::Broadcast(*root), len, 1),
            _ => return None,
        };
        let line = (LINE / size).max(1);
        // As many bytes in a slot, however many cells it has.
        let most = (most / size * u64::from(world / cells)).max(line);
        let slices = span.div_ceil(most);
        let cell = span
            .checked_div(slices)
            .map_or(0, |_| span.div_ceil(slices))
            .next_multiple_of(line);
        let slices = match cell {
            0 => 0,
            _ if what == What::AllReduce => len.div_ceil(cell * u64::from(world)),
            _ => span.div_ceil(cell),
        };
        let len = match &what {
            What::ReduceScatter(parts)
            | What::AllGather(parts)
            | What::Gather(_, parts)
            | What::Scatter(_, parts) => parts.last().map_or(0, |(at, n)| at + n),
            What::AllToAll(part) => part * u64::from(world),
            _ => len,
        };
        Some(Layout {
            what,
            me: request.rank.0,
            world,
            out_of_place: request.out_of_place,
            len,
            size,
            cell,
            slices,
            stays: false,
        })
    }

    /// Where a processor has a cache of so many bytes for itself: what is written there, other processors fetch more slowly than from memory, whatever they share beyond it.
    pub(crate) fn with_cache(self, bytes: u64) -> Layout {
        let used = self.len.saturating_mul(2 * self.size);
        let used = used.saturating_add(self.bytes());
        // The rest is for what else is at work.
        let stays = self.bytes() >= MATTERS && used <= bytes / 4 * 3;
        Layout { stays, ..self }
    }

    /// Whether that is so of this: then it is written past the caches.
    pub(crate) fn stays(&self) -> bool {
        self.stays
    }

    /// Bytes that all ranks' vectors have together.
    pub(crate) fn moved(&self) -> u64 {
        let bytes = self.len.saturating_mul(self.size);
        bytes.saturating_mul(u64::from(self.world))
    }

    /// How many slices there are.
    pub(crate) fn slices(&self) -> u64 {
        self.slices
    }

    /// Bytes of staging memory beside the flags.
    pub(crate) fn bytes(&self) -> u64 {
        self.slot_bytes() * DEPTH
    }

    fn cells(&self) -> u64 {
        match self.what {
            What::AllReduce | What::ReduceScatter(_) | What::AllToAll(_) | What::Scatter(..) => {
                u64::from(self.world)
            }
            What::AllGather(_) | What::Broadcast(_) | What::Gather(..) => 1,
        }
    }

    fn slot_bytes(&self) -> u64 {
        self.cells() * self.cell * self.size
    }

    /// Where a cell of a slot lies, after the flags; slots are numbered on and on.
    pub(crate) fn at(&self, slot: u64, cell: u64) -> u64 {
        slot % DEPTH * self.slot_bytes() + cell * self.cell * self.size
    }

    /// Bytes of an element.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Whether slices are folded.
    pub(crate) fn folds(&self) -> bool {
        matches!(self.what, What::AllReduce | What::ReduceScatter(_))
    }

    /// Whether this rank's result is written to.
    pub(crate) fn writes(&self) -> bool {
        let gets = match &self.what {
            What::Gather(root, _) => root.0 == self.me,
            What::Broadcast(root) | What::Scatter(root, _) => {
                self.out_of_place || root.0 != self.me
            }
            _ => true,
        };
        gets && self.len > 0
    }

    /// Whether the result of a fold is read by the others.
    pub(crate) fn spreads(&self) -> bool {
        self.what == What::AllReduce
    }

    /// The kept elements of a slice and rank: its share, or the piece of its part.
    fn piece(&self, slice: u64, rank: u32) -> Range<u64> {
        let rank_idx = u64::from(rank);
        let (lo, n) = match &self.what {
            What::AllReduce => {
                let world = u64::from(self.world);
                let lo = slice * world * self.cell;
                let n = (self.len - lo).min(world * self.cell);
                let share = n
                    .div_ceil(world)
                    .next_multiple_of((LINE / self.size).max(1));
                let (from, to) = ((rank_idx * share).min(n), ((rank_idx + 1) * share).min(n));
                (lo + from, to - from)
            }
            What::ReduceScatter(parts)
            | What::AllGather(parts)
            | What::Gather(_, parts)
            | What::Scatter(_, parts) => {
                let (at, n) = parts[rank as usize];
                let from = (slice * self.cell).min(n);
                (at + from, (n - from).min(self.cell))
            }
            What::AllToAll(part) => {
                let from = (slice * self.cell).min(*part);
                (rank_idx * part + from, (part - from).min(self.cell))
            }
            What::Broadcast(_) => {
                let from = slice * self.cell;
                (from, (self.len - from).min(self.cell))
            }
        };
        lo..lo + n
    }

    /// The given elements, where they are in this rank's memory.
    fn given(&self, piece: Range<u64>) -> Span {
        let buf = match self.out_of_place {
            true => Buf::Input,
            false => Buf::User,
        };
        let first = match &self.what {
            // What it gives is its part alone.
            What::AllGather(parts) if self.out_of_place => parts[self.me as usize].0,
            What::Gather(root, parts) if self.out_of_place || root.0 != self.me => {
                parts[self.me as usize].0
            }
            _ => 0,
        };
        Span {
            buf,
            at: piece.start - first,
            len: piece.end - piece.start,
        }
    }

    /// The elements of the result, where they are in this rank's memory.
    fn result(&self, piece: Range<u64>) -> Span {
        let first = match (&self.what, self.out_of_place) {
            (What::ReduceScatter(parts), true) | (What::Scatter(_, parts), _) => {
                parts[self.me as usize].0
            }
            _ => 0,
        };
        Span::user(piece.start - first, piece.end - piece.start)
    }

    /// What this rank copies into which cells of a slice.
    pub(crate) fn fill(&self, slice: u64) -> impl Iterator<Item = (u64, Span)> + '_ {
        let me = self.me;
        let cells = match &self.what {
            What::AllReduce | What::ReduceScatter(_) | What::AllToAll(_) => 0..self.world,
            What::Scatter(root, _) if root.0 == me => 0..self.world,
            What::AllGather(_) => me..me + 1,
            What::Broadcast(root) if root.0 == me => me..me + 1,
            What::Gather(root, _) if root.0 != me => me..me + 1,
            What::Broadcast(_) | What::Gather(..) | What::Scatter(..) => 0..0,
        };
        let each = self.cells() > 1;
        cells
            .filter(move |r| !each || *r != me)
            .map(move |r| {
                let cell = if each { u64::from(r) } else { 0 };
                (cell, self.given(self.piece(slice, r)))
            })
            .filter(|(_, span)| span.len > 0)
    }

    /// What of a slice a rank gives itself, and where it belongs in its result.
    pub(crate) fn kept(&self, slice: u64) -> Option<(Span, Span)> {
        let keeps = match &self.what {
            What::AllGather(_) | What::AllToAll(_) => true,
            What::Broadcast(root) | What::Gather(root, _) | What::Scatter(root, _) => {
                root.0 == self.me
            }
            _ => false,
        };
        let piece = self.piece(slice, self.me);
        (keeps && self.out_of_place && !piece.is_empty())
            .then(|| (self.given(piece.clone()), self.result(piece)))
    }

    /// What this rank folds of a slice: its own contribution, and where the result belongs. Its cell has its own number on every rank.
    pub(crate) fn fold(&self, slice: u64) -> (Span, Span) {
        let piece = self.piece(slice, self.me);
        (self.given(piece.clone()), self.result(piece))
    }

    /// What this rank copies of others' cells: whose, which cell, and where it belongs.
    pub(crate) fn drain(&self, slice: u64) -> impl Iterator<Item = (u32, u64, Span)> + '_ {
        let me = self.me;
        let from = match &self.what {
            What::AllReduce | What::AllGather(_) | What::AllToAll(_) => 0..self.world,
            What::ReduceScatter(_) => 0..0,
            What::Gather(root, _) if root.0 == me => 0..self.world,
            What::Gather(..) => 0..0,
            What::Broadcast(root) | What::Scatter(root, _) if root.0 == me => 0..0,
            What::Broadcast(root) | What::Scatter(root, _) => root.0..root.0 + 1,
        };
        let own = matches!(self.what, What::AllToAll(_) | What::Scatter(..));
        let folds = self.folds();
        from.filter(move |r| *r != me)
            .map(move |r| {
                let cell = match (own, folds) {
                    (true, _) => u64::from(me),
                    (_, true) => u64::from(r),
                    _ => 0,
                };
                let whose = match self.what {
                    What::Scatter(..) => me,
                    _ => r,
                };
                (r, cell, self.result(self.piece(slice, whose)))
            })
            .filter(|(_, _, span)| span.len > 0)
    }

    /// Whether the memory has all the elements that this speaks of.
    pub(crate) fn fits(&self, memory: &OpMemory) -> bool {
        let shape = memory.shape();
        let given = if self.out_of_place {
            shape.input.unwrap_or(0)
        } else {
            shape.io
        };
        let (read, written) = match &self.what {
            What::AllReduce | What::AllToAll(_) => (self.len, self.len),
            What::Broadcast(root) if root.0 == self.me => (self.len, self.len),
            What::Broadcast(_) => (0, self.len),
            What::ReduceScatter(parts) if self.out_of_place => {
                (self.len, parts[self.me as usize].1)
            }
            What::AllGather(parts) if self.out_of_place => (parts[self.me as usize].1, self.len),
            What::Gather(root, parts) => match root.0 == self.me {
                true if self.out_of_place => (parts[self.me as usize].1, self.len),
                true => (self.len, self.len),
                false => (parts[self.me as usize].1, 0),
            },
            What::Scatter(root, parts) => match root.0 == self.me {
                true => (self.len, parts[self.me as usize].1),
                false => (0, parts[self.me as usize].1),
            },
            What::ReduceScatter(_) | What::AllGather(_) => (self.len, self.len),
        };
        read <= given && written <= shape.io && shape.dtype.size() as u64 == self.size
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Ordinary memory of any rank passes through staging memory, in {} slices of at most {} bytes.",
            self.slices,
            self.slot_bytes()
        )
    }
}

/// First element and number of elements of each rank's part; `None` where they cannot be counted.
fn parts(counts: &Counts, len: u64, world: u32) -> Option<Vec<(u64, u64)>> {
    let mut at = 0u64;
    let mut part = |n: u64| {
        let lo = at;
        at = at.checked_add(n)?;
        Some((lo, n))
    };
    match counts {
        Counts::Equal => (0..world).map(|_| part(len)).collect(),
        Counts::Known(list) if list.len() == world as usize => {
            list.iter().map(|n| part(*n)).collect()
        }
        _ => None,
    }
}

fn longest(parts: &[(u64, u64)]) -> u64 {
    parts.iter().map(|(_, n)| *n).max().unwrap_or(0)
}
