//! Operations on ordinary memory of ranks that share a host: each copies what the others need of its contribution into staging memory of its own heap, slice by slice, reads what it needs of theirs, folds its share in rank order, and leaves the result for them in its staging memory.
//!
//! Nobody else touches ordinary memory, and nobody but its owner writes to staging memory or its flags. So nothing has to be severed when it fails; who has read a slice looks whether its owner has given the operation up meanwhile, and then what was read does not count.
//!
//! A machine that never waits: [`Staged::advance`] does what can be done, up to about a budget, and says whether that was anything.
//!
//! Cost, with P ranks and S bytes per rank, for an all-reduce: S(P−1)/P copied in and as much copied out, S read for folding; one meeting before, which the first slices are filled ahead of, and none after.

use super::{
    staged_layout::{DEPTH, Layout},
    staged_room::{FLAGS, Flag, Reader, Room, Rooms},
};
use crate::{raw_memory::OpMemory, sync::Arc};
use gaggle_collectives::Span;
use gaggle_core::{
    Error, GroupInfo, Rank, Reduce, SharedMemory, Stores, Weight, Window, WindowMut, copy_window,
};
use gaggle_kernels as kernels;
use smallvec::SmallVec;

/// Slices that are filled ahead of the one that is read: what a rank waits for was then done a while ago.
const AHEAD: u64 = 3;

/// Where a rank's staging memory is, for the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct StagingRecord {
    /// The place of the block in its heap.
    place: u64,
    /// What its flags stand at before the first slice.
    base: u64,
    /// Bytes beside the flags; 0 where it has none.
    bytes: u64,
}

impl StagingRecord {
    pub(crate) const WORDS: usize = 3;

    pub(crate) fn to_words(self) -> [u64; StagingRecord::WORDS] {
        [self.place, self.base, self.bytes]
    }

    pub(crate) fn of_words(w: &[u64]) -> Option<StagingRecord> {
        let [place, base, bytes] = *w else {
            return None;
        };
        Some(StagingRecord { place, base, bytes })
    }
}

/// What a member has said when all met.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) staging: StagingRecord,
    pub(crate) weight: Weight,
    /// How many operations it had given up before.
    pub(crate) given_up: u64,
}

/// How contributions are folded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folds {
    pub(crate) reduce: Reduce,
    pub(crate) how: kernels::How,
}

/// What one call has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Something was published that others may wait for.
    Moved,
    /// Nothing can be done until others have done something.
    Waits,
    /// This rank has done and got all that is its.
    Done,
    /// A member has given the operation up: nothing of it counts.
    Void,
}

/// A member as the others see it.
struct Peer {
    world: Rank,
    staging: StagingRecord,
    weight: Weight,
    given_up: u64,
    /// Slices that it was last seen to have filled, folded and read.
    seen: [u64; 3],
}

/// One rank's side of an operation.
pub(crate) struct Staged {
    shared: Arc<dyn SharedMemory>,
    group: Arc<GroupInfo>,
    layout: Arc<Layout>,
    room: Room,
    base: u64,
    /// What all ranks call the operation where they give it up.
    name: u64,
    folds: Folds,
    /// How what comes is stored.
    stores: Stores,
    /// Everybody, once all have met.
    peers: Vec<Peer>,
    filled: u64,
    folded: u64,
    read: u64,
    void: bool,
}

impl Staged {
    /// `None` where this rank has no room for it.
    pub(crate) fn new(
        layout: &Arc<Layout>,
        rooms: &Arc<Rooms>,
        shared: &Arc<dyn SharedMemory>,
        group: &Arc<GroupInfo>,
        name: u64,
        folds: Folds,
    ) -> Option<Staged> {
        let mut room = rooms.take(shared, layout.bytes())?;
        let base = room.base();
        room.begin(layout.slices());
        Some(Staged {
            shared: Arc::clone(shared),
            group: Arc::clone(group),
            layout: Arc::clone(layout),
            room,
            base,
            name,
            folds,
            stores: Stores::of(layout.moved()),
            peers: vec![],
            filled: 0,
            folded: 0,
            read: 0,
            void: false,
        })
    }

    /// For the others.
    pub(crate) fn record(&self) -> StagingRecord {
        StagingRecord {
            place: self.room.place(),
            base: self.base,
            bytes: self.room.bytes(),
        }
    }

    /// Whether all members, in the order of their ranks, have the room that this needs: the same answer on every rank.
    pub(crate) fn can_run(&self, members: &[Member]) -> bool {
        let enough = |m: &Member| m.staging.bytes >= self.layout.bytes().max(1);
        members.len() == self.group.world_ranks.len() && members.iter().all(enough)
    }

    /// All have met: from now on the others' staging memory is read. Where the weights of a mean add up to nothing there is nothing to do.
    pub(crate) fn met(&mut self, members: &[Member]) {
        let world = self.group.world_ranks.iter();
        let peer = |(m, world): (&Member, &Rank)| Peer {
            world: *world,
            staging: m.staging,
            weight: m.weight,
            given_up: m.given_up,
            seen: [0; 3],
        };
        self.peers = members.iter().zip(world).map(peer).collect();
        let weighs = self.layout.folds() && self.folds.reduce == Reduce::Mean;
        if weighs && members.iter().all(|m| m.weight == Weight::ZERO) {
            (self.filled, self.folded, self.read) = (u64::MAX, u64::MAX, u64::MAX);
        }
    }

    /// Copies the first slice into place before all have met, so that they need not wait for it then.
    ///
    /// # Errors
    /// What was taken for this rank's own memory is not.
    pub(crate) fn prefill(&mut self, memory: &OpMemory) -> Result<(), Error> {
        if self.filled == 0 && self.layout.slices() > 0 {
            self.fill(memory)?;
        }
        Ok(())
    }

    /// Whether this rank's result is written to.
    pub(crate) fn writes(&self) -> bool {
        self.layout.writes()
    }

    /// Whether it is all over for this rank.
    fn is_over(&self) -> bool {
        self.read >= self.layout.slices()
    }

    /// Does what can be done, up to about `budget` bytes or the piece of one slice, whichever is more.
    ///
    /// # Errors
    /// A member has said that its memory is where none of its heap is.
    pub(crate) fn advance(
        &mut self,
        memory: &mut OpMemory,
        budget: u64,
    ) -> Result<Progress, Error> {
        if self.peers.is_empty() {
            return Ok(Progress::Waits);
        }
        let mut work = 0;
        while work < budget.max(1) && !self.void && !self.is_over() {
            match self.step(memory)? {
                Some(bytes) => work += bytes.max(1),
                None => break,
            }
        }
        Ok(match (self.void, self.is_over()) {
            (true, _) => Progress::Void,
            (_, true) => Progress::Done,
            _ if work > 0 => Progress::Moved,
            _ => Progress::Waits,
        })
    }

    /// One piece of work, and how many bytes it was; `None` where there is none now.
    fn step(&mut self, memory: &mut OpMemory) -> Result<Option<u64>, Error> {
        let (slices, folds) = (self.layout.slices(), self.layout.folds());
        let may_fill = self.filled < slices && self.filled < self.read.saturating_add(AHEAD);
        // The slot's last slice has been read by all.
        if may_fill && self.all_have(Flag::Read, (self.filled + 1).saturating_sub(DEPTH)) {
            return self.fill(memory).map(Some);
        }
        if folds && self.folded < self.filled && self.all_have(Flag::Filled, self.folded + 1) {
            return self.fold(memory).map(Some);
        }
        let ready = if folds { self.folded } else { self.filled };
        if self.read < ready && self.sources_have(self.read) {
            return self.drain(memory).map(Some);
        }
        Ok(None)
    }

    /// Whether all others have come so far.
    fn all_have(&mut self, flag: Flag, slices: u64) -> bool {
        let me = self.group.rank.idx();
        (0..self.peers.len()).all(|i| i == me || self.has(i, flag, slices))
    }

    /// Whether those whose cells of a slice this rank reads have them ready.
    fn sources_have(&mut self, slice: u64) -> bool {
        let flag = match self.layout.folds() {
            true => Flag::Folded,
            false => Flag::Filled,
        };
        let from: SmallVec<[u32; 16]> = self.layout.drain(slice).map(|(r, ..)| r).collect();
        from.iter().all(|r| self.has(*r as usize, flag, slice + 1))
    }

    fn has(&mut self, member: usize, flag: Flag, slices: u64) -> bool {
        let Some(peer) = self.peers.get(member) else {
            return false;
        };
        if peer.seen[flag as usize] >= slices {
            return true;
        }
        let n = self.look_at(peer, flag);
        self.peers[member].seen[flag as usize] = n;
        n >= slices
    }

    /// How far a member says that it is.
    fn look_at(&self, peer: &Peer, flag: Flag) -> u64 {
        let place = peer.staging.place.wrapping_add(flag.at());
        let word = self.shared.load(peer.world, place).unwrap_or(0);
        word.saturating_sub(peer.staging.base)
    }

    fn raise(&self, flag: Flag, slices: u64) -> Result<(), Error> {
        let place = self.room.place() + flag.at();
        match self.shared.store(place, self.base + slices) {
            true => Ok(()),
            false => Err(self.outside(self.me())),
        }
    }

    fn me(&self) -> Rank {
        self.group.world_ranks[self.group.rank.idx()]
    }

    /// Where a cell of a slice is in a member's heap. One operation goes on with the slot after the last one's: lines that others have just read are slow to write.
    fn place(&self, staging: &StagingRecord, slice: u64, cell: u64) -> u64 {
        let slot = staging.base.wrapping_add(slice);
        staging
            .place
            .wrapping_add(FLAGS + self.layout.at(slot, cell))
    }

    fn fill(&mut self, memory: &OpMemory) -> Result<u64, Error> {
        let (slice, own, me) = (self.filled, self.record(), self.me());
        let mut bytes = 0;
        for (cell, span) in self.layout.fill(slice) {
            let from = memory.bytes(span);
            bytes += from.len() as u64;
            let to = self.window(me, self.place(&own, slice, cell), from.len())?;
            match self.layout.stays() {
                true => copy_window(to, Window::from(from), Stores::Streamed),
                false => self.room.writing().copy(to, Window::from(from)),
            }
        }
        self.filled += 1;
        self.raise(Flag::Filled, self.filled)?;
        Ok(bytes)
    }

    fn fold(&mut self, memory: &mut OpMemory) -> Result<u64, Error> {
        let (from, to) = self.layout.fold(self.folded);
        self.fold_share(memory, from, to)?;
        if self.look() {
            self.folded += 1;
            self.raise(Flag::Folded, self.folded)?;
        }
        Ok(to.len * self.layout.size() * self.peers.len() as u64)
    }

    /// Folds this rank's share of a slice in rank order, from where the others' values are.
    fn fold_share(&self, memory: &mut OpMemory, from: Span, to: Span) -> Result<(), Error> {
        if to.len == 0 {
            return Ok(());
        }
        let dtype = memory.shape().dtype;
        let me = self.group.rank.idx();
        let (slice, cell) = (self.folded, me as u64);
        let Folds { reduce, how } = self.folds;
        let (dst, beside) = memory.split(to);
        let dst = WindowMut::from(dst);
        let mut outputs = SmallVec::<[WindowMut<'_>; 2]>::from_slice(&[dst]);
        let mut stores = Stores::Cached;
        if self.layout.spreads() {
            // The others read it soon.
            stores = match self.layout.stays() {
                true => Stores::Streamed,
                false => self.room.writing().stores(),
            };
            let own = self.place(&self.record(), slice, cell);
            outputs.push(self.window(self.me(), own, dst.len())?);
        }
        let mut terms = SmallVec::<[kernels::Term<'_>; 16]>::new();
        for (m, peer) in self.peers.iter().enumerate() {
            let weight = (reduce == Reduce::Mean).then_some(peer.weight);
            let window = match m == me {
                true => beside.get(from).map_or(dst.into(), Window::from),
                // It is not read.
                false if weight == Some(Weight::ZERO) => dst.into(),
                false => {
                    let place = self.place(&peer.staging, slice, cell);
                    self.window(peer.world, place, dst.len())?.into()
                }
            };
            let source = kernels::Source::Window { window, dtype };
            terms.push(kernels::Term { source, weight });
        }
        kernels::fold_windows(dtype, reduce, &outputs, &terms, how, stores);
        Ok(())
    }

    fn window(&self, world: Rank, place: u64, bytes: usize) -> Result<WindowMut<'_>, Error> {
        let window = self.shared.window(world, place, bytes);
        window.ok_or_else(|| self.outside(world))
    }

    fn drain(&mut self, memory: &mut OpMemory) -> Result<u64, Error> {
        let slice = self.read;
        let mut bytes = 0;
        if let Some((from, to)) = self.layout.kept(slice) {
            let (to, others) = memory.split(to);
            if let Some(from) = others.get(from) {
                copy_window(WindowMut::from(to), Window::from(from), self.stores);
            }
        }
        for (from, cell, span) in self.layout.drain(slice) {
            let peer = &self.peers[from as usize];
            let place = self.place(&peer.staging, slice, cell);
            let to = memory.bytes_mut(span);
            bytes += to.len() as u64;
            let from = self.window(peer.world, place, to.len())?;
            copy_window(WindowMut::from(to), from.into(), self.stores);
        }
        if self.look() {
            self.read += 1;
            self.raise(Flag::Read, self.read)?;
        }
        Ok(bytes)
    }

    /// Looks whether somebody has given up; then nothing that was read counts.
    fn look(&mut self) -> bool {
        let gone = |p: &Peer| self.shared.has_given_up(p.world, self.name, p.given_up);
        self.void |= self.peers.iter().any(gone);
        !self.void
    }

    /// Members that this rank waits for, as group ranks, ascending.
    pub(crate) fn awaited(&self) -> Vec<Rank> {
        let me = self.group.rank.idx();
        let (folds, slices) = (self.layout.folds(), self.layout.slices());
        if self.is_over() {
            return vec![];
        }
        let ready = if folds { self.folded } else { self.filled };
        let drains: Vec<u32> = self.layout.drain(self.read).map(|(r, ..)| r).collect();
        let source = if folds { Flag::Folded } else { Flag::Filled };
        let behind = |m: usize, peer: &Peer| {
            let until = |flag, n| self.look_at(peer, flag) < n;
            let slot = (self.filled + 1).saturating_sub(DEPTH);
            (self.filled < slices && until(Flag::Read, slot))
                || (folds && self.folded < self.filled && until(Flag::Filled, self.folded + 1))
                || (self.read < ready
                    && drains.contains(&(m as u32))
                    && until(source, self.read + 1))
        };
        let peers = self.peers.iter().enumerate();
        peers
            .filter(|(m, peer)| *m != me && behind(*m, peer))
            .map(|(m, _)| Rank(m as u32))
            .collect()
    }

    /// It has ended well: the staging memory goes to another operation once all have read what is theirs.
    pub(crate) fn finish(self) {
        let (me, slices) = (self.group.rank.idx(), self.layout.slices());
        let others = self.peers.iter().enumerate().filter(|(m, _)| *m != me);
        let readers = others.map(|(_, p)| Reader {
            rank: p.world,
            place: p.staging.place.wrapping_add(Flag::Read.at()),
            until: p.staging.base.saturating_add(slices),
        });
        // Where nothing was to be done nobody reads, and nobody says so.
        let readers = if self.read == u64::MAX {
            vec![]
        } else {
            readers.collect()
        };
        self.room.give(readers);
    }

    fn outside(&self, world: Rank) -> Error {
        Error::internal(format!(
            "world {world} has said that its staging memory is where none of its heap is"
        ))
    }
}

#[cfg(test)]
#[path = "staged_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "staged_models.rs"]
mod models;
