//! Registered memory: one heap per process, which all ranks of its host have mapped.
//!
//! A [`SharedHeap`] is a nameless file of memory, sealed against any change of its length and of no cost until it is written; it goes when the last process that has it mapped does, however that ends.
//! Its descriptor is handed to the peers ([`SharedHeap::fd`]), by whatever means; a [`MappedHeaps`] is one rank's view of all of them: the seam [`SharedMemory`].
//! `/dev/shm` is not used.

mod budget;
mod directory;
mod large;
#[cfg(test)]
mod lent_models;
mod marks;
mod promises;
mod raw_heap;
#[cfg_attr(
    test,
    allow(clippy::duplicate_mod, reason = "models have it over other locks")
)]
mod raw_lent;
#[cfg(test)]
mod raw_lent_models;
#[cfg(test)]
mod raw_lent_tests;
mod raw_reserve;
mod table;

pub use self::large::LargePages;
use self::{
    raw_heap::Map,
    raw_lent::Lent,
    raw_reserve::{Reserve, Spare},
    table::Table,
};
use gaggle_core::{Announced, Block, OBSERVE, PUBLISH, Rank, SharedMemory, SharedWords, WindowMut};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
};

/// Bytes before the first block: what a rank has given up. Larger than any page.
pub(crate) const HEADER: u64 = 64 << 10;
/// Word of the header that counts what was given up.
const COUNT: usize = 0;
/// First of the words that say what.
const FIRST: usize = 8;
/// How many of them there are.
const N_NAMES: u64 = 1024;
/// Word of the header that says that nothing more will be announced.
const FULL: usize = 1;
/// Word of the header that says how many bytes are promised, the header's own among them.
const PROMISED: usize = 2;
/// First word of what is announced: pairs of a number and a place, found by the number.
const ENTRIES: usize = 2048;
/// How many pairs there is room for.
const N_ENTRIES: usize = 3000;
/// How many are taken, so that one is found soon.
const MOST_ENTRIES: usize = 2000;
const _: () = assert!(8 * (ENTRIES + 2 * N_ENTRIES) <= HEADER as usize);
const _: () = assert!(FIRST + N_NAMES as usize <= ENTRIES);
/// The locks of what is lent, in one place so that a model checker can replace them.
mod locks {
    pub(super) use parking_lot::{Condvar, Mutex};
}

/// Smallest heap.
const LEAST: u64 = HEADER + table::HUGE;

/// This process's heap.
#[derive(Debug)]
pub struct SharedHeap {
    map: Arc<Map>,
    room: Mutex<Room>,
    /// How much has been announced.
    announced: Mutex<usize>,
    /// The process that has made it. A fork has it mapped as well, and must leave its blocks alone.
    owner: u32,
}

/// Who has what, and what taking it away from the others needs.
#[derive(Debug)]
struct Room {
    table: Table,
    /// By the place of the block.
    reserves: BTreeMap<u64, Reserve>,
    spare: Spare,
}

impl SharedHeap {
    /// As large as the memory that this machine, and the control group of this process, have: what is used of it is looked at when a block is asked for.
    ///
    /// # Errors
    /// The system has no such files, or no room for their addresses.
    pub fn create() -> io::Result<Arc<SharedHeap>> {
        SharedHeap::with_len(all_there_is())
    }

    /// With room for about `bytes`.
    ///
    /// # Errors
    /// As [`create`](SharedHeap::create).
    pub fn with_len(bytes: u64) -> io::Result<Arc<SharedHeap>> {
        let len = bytes
            .checked_next_multiple_of(table::HUGE)
            .and_then(|n| n.checked_add(table::HUGE))
            .ok_or(io::ErrorKind::InvalidInput)?;
        let map = Map::create(len.max(LEAST))?;
        tracing::debug!("registered memory is in {}", LargePages::here());
        promises::promise(&map, HEADER);
        let page = rustix::param::page_size() as u64;
        let room = Mutex::new(Room {
            table: Table::new(HEADER.max(page), map.len(), page),
            reserves: BTreeMap::new(),
            spare: Spare::new(),
        });
        Ok(Arc::new(SharedHeap {
            map: Arc::new(map),
            room,
            announced: Mutex::new(0),
            owner: std::process::id(),
        }))
    }

    /// What a peer needs to map it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.fd()
    }

    /// Room of `bytes` bytes, all 0; `None` where the heap, or the memory that may be taken, is used up.
    pub fn block(self: &Arc<Self>, bytes: usize) -> Option<Box<dyn Block>> {
        self.block_beside(&[], bytes)
    }

    /// As [`block`](SharedHeap::block), where the ranks of these heaps have promised memory, too.
    fn block_beside(
        self: &Arc<Self>,
        peers: &[Option<Arc<Map>>],
        bytes: usize,
    ) -> Option<Box<dyn Block>> {
        if self.is_foreign() {
            return None;
        }
        let promised = self.promise(peers, bytes)?;
        let reserve = Reserve::new(promised.pages)
            .inspect_err(|e| tracing::warn!(bytes, %e, "no memory in reserve for a buffer"))
            .ok()?;
        let at = promised.take(bytes)?;
        self.room.lock().reserves.insert(at, reserve);
        if bytes as u64 >= table::HUGE && LargePages::here() == LargePages::Asked {
            // It is only slower without them.
            let _ = (self.map.want_large(at, bytes))
                .inspect_err(|e| tracing::debug!(bytes, %e, "no large pages for a buffer"));
        }
        let block = Map::block(self, at, bytes);
        if block.is_none() {
            self.take_back(at);
        }
        block.map(|b| Box::new(b) as Box<dyn Block>)
    }

    /// Room that is never given back.
    fn reserve_beside(&self, peers: &[Option<Arc<Map>>], bytes: usize) -> Option<u64> {
        self.promise(peers, bytes)?.take(bytes)
    }

    /// Says that so many bytes are wanted, and looks whether they are there.
    fn promise(&self, peers: &[Option<Arc<Map>>], bytes: usize) -> Option<Promised<'_>> {
        let pages = bytes.max(1);
        let pages = pages.checked_next_multiple_of(rustix::param::page_size())?;
        let none = |left: u64| {
            tracing::warn!(
                bytes,
                left,
                total = budget::total(),
                "no registered memory of that size: so much is left of what machine and control groups have"
            );
        };
        // What cannot be had in any case must not stand in the others' way while it is looked at.
        if pages as u64 >= table::HUGE {
            budget::allow_alone(pages as u64).map_err(none).ok()?;
        }
        {
            // One at a time.
            let _room = self.room.lock();
            promises::promise(&*self.map, pages as u64);
        }
        let promised = Promised { heap: self, pages };
        let outstanding = || {
            let own = promises::outstanding(&*self.map).saturating_sub(pages as u64);
            let peers = peers.iter().flatten();
            // No heap has promised more than it has.
            let theirs = peers.map(|map| promises::outstanding(&**map).min(map.len()));
            theirs.fold(own, u64::saturating_add)
        };
        budget::allow(pages as u64, outstanding)
            .map_err(none)
            .ok()?;
        Some(promised)
    }

    fn announce(&self, name: u64, place: Option<u64>) {
        directory::announce(&*self.map, &mut self.announced.lock(), name, place);
    }

    /// Whether this process is a fork of the one whose heap it is.
    fn is_foreign(&self) -> bool {
        std::process::id() != self.owner
    }

    fn take_back(&self, at: u64) {
        if self.is_foreign() {
            return;
        }
        let mut room = self.room.lock();
        room.reserves.remove(&at);
        let shared = room.table.shared(at);
        self.tell_of_pages(at, shared);
        for (at, len) in room.table.severed(at) {
            self.map.empty(at, len as usize);
            // What stragglers have written meanwhile; it only costs memory where it stays.
            let _ = self.map.clear(at, len);
        }
        for (at, len) in room.table.give(at) {
            if let Err(e) = self.map.clear(at, len) {
                // It would not be 0 when it is handed out next.
                tracing::warn!(%e, len, "registered memory stays out of use");
                room.table.retire(at, len);
            }
        }
        // What stays in use is touched: the system knows of it.
        promises::withdraw(&*self.map, shared);
    }

    /// Whether a large block had large pages, for whoever asks why it was slow.
    fn tell_of_pages(&self, at: u64, bytes: u64) {
        if bytes < table::HUGE || !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let start = self.map.start_of(at, bytes as usize);
        let large = start.and_then(|start| large::in_use(start.addr().get(), bytes as usize));
        if let Some(large) = large {
            tracing::debug!(
                bytes,
                large,
                "a block of registered memory, and what of it was in large pages"
            );
        }
    }
}

/// Memory that was promised, for as long as nobody has [taken](Promised::take) it.
struct Promised<'a> {
    heap: &'a SharedHeap,
    /// Bytes, whole pages.
    pages: usize,
}

impl Promised<'_> {
    /// Room for it; `None` where the heap has none.
    fn take(self, bytes: usize) -> Option<u64> {
        let at = self.heap.room.lock().table.take(bytes as u64)?;
        // The block's from now on.
        std::mem::forget(self);
        Some(at)
    }
}

impl Drop for Promised<'_> {
    fn drop(&mut self) {
        let _room = self.heap.room.lock();
        promises::withdraw(&*self.heap.map, self.pages as u64);
    }
}

/// The heaps of one host's ranks, as one of them has them mapped.
#[derive(Debug)]
pub struct MappedHeaps {
    me: Rank,
    own: Arc<SharedHeap>,
    ranks: Vec<Rank>,
    /// In the order of `ranks`; `None` for this rank's own.
    peers: Vec<Option<Arc<Map>>>,
    /// What the ranks lend of ordinary memory, in the order of `ranks`, where all are threads of this process.
    lent: Option<Arc<[Lent]>>,
}

impl MappedHeaps {
    /// `own`, and what the peers have handed over: world ranks and descriptors, in any order.
    ///
    /// # Errors
    /// A descriptor that is no sealed file of memory, or cannot be mapped; a rank that is there twice.
    pub fn new(
        me: Rank,
        own: Arc<SharedHeap>,
        peers: Vec<(Rank, OwnedFd)>,
    ) -> io::Result<MappedHeaps> {
        let mut all = vec![(me, None)];
        for (rank, fd) in peers {
            let map = Map::open(fd, LEAST).map_err(|e| {
                let what = format!("the heap of {rank} cannot be mapped: {e}");
                io::Error::new(io::Error::from(e).kind(), what)
            })?;
            all.push((rank, Some(Arc::new(map))));
        }
        all.sort_by_key(|(rank, _)| *rank);
        if all.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (ranks, peers) = all.into_iter().unzip();
        Ok(MappedHeaps {
            me,
            own,
            ranks,
            peers,
            lent: None,
        })
    }

    /// This rank's own heap.
    pub fn own(&self) -> &Arc<SharedHeap> {
        &self.own
    }

    fn map(&self, rank: Rank) -> Option<&Arc<Map>> {
        if rank == self.me {
            return Some(&self.own.map);
        }
        let i = self.ranks.binary_search(&rank).ok()?;
        self.peers[i].as_ref()
    }

    /// What a rank lends of ordinary memory.
    fn lent(&self, rank: Rank) -> Option<&Lent> {
        let i = self.ranks.binary_search(&rank).ok()?;
        self.lent.as_ref()?.get(i)
    }
}

impl SharedMemory for MappedHeaps {
    fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    fn place(&self, at: NonNull<u8>, bytes: usize) -> Option<u64> {
        let place = self.own.map.place(at, bytes)?;
        let shared = self.own.room.lock().table.is_shared(place, bytes as u64);
        shared.then_some(place)
    }

    fn is_alone(&self, at: NonNull<u8>, bytes: usize) -> bool {
        let place = self.own.map.place(at, bytes);
        place.is_some_and(|at| self.own.room.lock().table.is_alone(at, bytes as u64))
    }

    fn read(&self, rank: Rank, place: u64, out: &mut [u8]) -> bool {
        self.map(rank).is_some_and(|map| map.read(place, out))
    }

    fn write(&self, rank: Rank, place: u64, bytes: &[u8]) -> bool {
        // What others know of this rank's state is nothing to write on.
        place >= HEADER && self.map(rank).is_some_and(|map| map.write(place, bytes))
    }

    fn window(&self, rank: Rank, place: u64, bytes: usize) -> Option<WindowMut<'_>> {
        // As in `write`.
        self.map(rank)
            .filter(|_| place >= HEADER)
            .and_then(|map| map.window(place, bytes))
    }

    fn sever(&self, at: NonNull<u8>, bytes: usize) -> Result<(), String> {
        if bytes == 0 {
            return Ok(());
        }
        let Room {
            table,
            reserves,
            spare,
        } = &mut *self.own.room.lock();
        let place = self.own.map.place(at, bytes);
        let place = place.filter(|at| table.is_alone(*at, bytes as u64));
        let place = place.ok_or("these bytes share their pages with others")?;
        let len = bytes.next_multiple_of(rustix::param::page_size());
        let block = table.block_of(place);
        let found = block.and_then(|block| Some((block, reserves.get_mut(&block)?)));
        let (block, reserve) = found.ok_or("these bytes are no block's")?;
        reserve
            .replace(&self.own.map, place, ((place - block) as usize, len), spare)
            .map_err(|e| format!("{bytes} bytes cannot be taken out of shared memory: {e}"))?;
        table.sever(place, len as u64);
        // Its pages are private, and touched.
        promises::withdraw(&*self.own.map, len as u64);
        Ok(())
    }

    fn given_up(&self, rank: Rank) -> u64 {
        self.map(rank).map_or(0, |map| marks::given_up(&**map))
    }

    fn give_up(&self, op: u64) {
        if self.own.is_foreign() {
            return;
        }
        // One writer at a time.
        let _room = self.own.room.lock();
        marks::give_up(&*self.own.map, op);
    }

    fn has_given_up(&self, rank: Rank, op: u64, since: u64) -> bool {
        self.map(rank)
            .is_some_and(|map| marks::has_given_up(&**map, op, since))
    }

    fn load(&self, rank: Rank, place: u64) -> Option<u64> {
        let word = self.map(rank)?.shared_word(place)?;
        Some(word.load(OBSERVE))
    }

    fn store(&self, place: u64, value: u64) -> bool {
        // What others know of this rank's state is nothing to store to.
        let word = self.own.map.shared_word(place).filter(|_| place >= HEADER);
        word.map(|word| word.store(value, PUBLISH)).is_some()
    }

    fn block(&self, bytes: usize) -> Option<Box<dyn Block>> {
        self.own.block_beside(&self.peers, bytes)
    }

    fn reserve(&self, bytes: usize) -> Option<u64> {
        self.own.reserve_beside(&self.peers, bytes)
    }

    fn words(&self, rank: Rank, place: u64, n: usize) -> Option<SharedWords> {
        self.map(rank)?.words(place, n)
    }

    fn is_one_process(&self) -> bool {
        self.lent.is_some()
    }

    unsafe fn lend(&self, at: NonNull<u8>, bytes: usize) -> Option<u64> {
        let lent = self.lent(self.me).filter(|_| !self.own.is_foreign())?;
        // SAFETY: the caller's promise.
        Some(unsafe { lent.lend(at, bytes) })
    }

    fn recall(&self, number: u64) {
        // A fork has a copy of the bytes, and none of the threads that were at them.
        if let Some(lent) = self.lent(self.me).filter(|_| !self.own.is_foreign()) {
            lent.recall(number);
        }
    }

    fn visit(&self, rank: Rank, number: u64, at: u64, bytes: usize) -> Option<WindowMut<'_>> {
        self.lent(rank)?.visit(number, at, bytes)
    }

    fn leave(&self, rank: Rank, number: u64) {
        if let Some(lent) = self.lent(rank) {
            lent.leave(number);
        }
    }

    fn announce(&self, name: u64, place: Option<u64>) {
        if self.own.is_foreign() {
            return;
        }
        self.own.announce(name, place);
    }

    fn announced(&self, rank: Rank, name: u64) -> Announced {
        self.map(rank)
            .map_or(Announced::Never, |map| directory::announced(&**map, name))
    }
}

/// Bytes of a heap of which nothing else is said. Far more than there is would only cost page tables.
fn all_there_is() -> u64 {
    budget::total().clamp(64 << 20, 1 << 40)
}

/// As [`heaps`], each as large as [`SharedHeap::create`] makes one.
///
/// # Errors
/// As [`heaps`].
pub fn heaps_of_threads(n: u32) -> io::Result<Vec<MappedHeaps>> {
    // Each is mapped once by every rank: all of them must fit the addresses of one process.
    let addresses = (1u64 << 45) / u64::from(n.max(1)).pow(2);
    heaps_of_one_process(n, all_there_is().min(addresses))
}

/// As [`heaps`], of ranks that reach each other's ordinary memory, too, where it is lent.
///
/// # Errors
/// As [`heaps`].
pub fn heaps_of_one_process(n: u32, bytes: u64) -> io::Result<Vec<MappedHeaps>> {
    let lent: Arc<[Lent]> = (0..n).map(|_| Lent::default()).collect();
    let mut all = heaps(n, bytes)?;
    for heap in &mut all {
        heap.lent = Some(Arc::clone(&lent));
    }
    Ok(all)
}

/// Heaps of `n` ranks that are threads of this process, each mapped by every other at an address of its own: as processes have them.
///
/// # Errors
/// As [`SharedHeap::create`].
pub fn heaps(n: u32, bytes: u64) -> io::Result<Vec<MappedHeaps>> {
    let own: Vec<_> = (0..n)
        .map(|_| SharedHeap::with_len(bytes))
        .collect::<io::Result<_>>()?;
    let view = |me: u32| {
        let others = (0..n).filter(|r| *r != me);
        let peers = others.map(|r| {
            let fd = own[r as usize].fd().try_clone_to_owned()?;
            Ok((Rank(r), fd))
        });
        let peers = peers.collect::<io::Result<_>>()?;
        MappedHeaps::new(Rank(me), Arc::clone(&own[me as usize]), peers)
    };
    (0..n).map(view).collect()
}

#[cfg(test)]
mod tests;
