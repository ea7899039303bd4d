//! Ranks as threads of one process: the receiver reads from the sender's own memory.
//!
//! [`world`] makes one [`InprocTransport`] per rank.
//! A send with a [`Loan`](gaggle_core::Loan) is put on the receiver's table, and the receiver's `progress` shows the lent bytes to its sink where they lie; each byte is copied at most once, by that sink.
//! A send without one is filled into a pooled staging buffer once its receive is posted, so that what nobody waits for occupies nothing.
//! A message of a neighbour round is the exception: its receiver may skip the round, so what comes before its receive is copied and held, within a credit per link, and its sender goes on.
//! A receiver's table, its completions and its parking place are under one lock per rank; two locks are taken in the order of ranks; no lock is held in a callback.

mod raw;
mod run;
mod state;

use crate::pieces;
use gaggle_core::{
    Armed, Dir, Down, HEAD_MAX, LinkStats, OpId, Rank, SharedMemory, Sink, Transfer, Transport,
    TransportError, Wake, XferId,
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use state::{Life, NONE, Offer, Pair, Slot, State};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// One transport per rank of a world within this process.
pub fn world(n: u32) -> Vec<InprocTransport> {
    let boxes = (0..n)
        .map(|_| RankBox {
            state: Mutex::new(State::new(n as usize)),
            changed: Condvar::new(),
            counts: Counts::default(),
        })
        .collect();
    let world = Arc::new(World { boxes });
    (0..n)
        .map(|me| InprocTransport {
            me: me as usize,
            world: Arc::clone(&world),
            peers: (0..n).filter(|p| *p != me).map(Rank).collect(),
            turn: Mutex::new(()),
            heaps: Heaps(None),
        })
        .collect()
}

/// One rank's links to the other threads of its world.
///
/// Dropped without [`leave`](Transport::leave), it is lost to its peers.
#[derive(Debug)]
pub struct InprocTransport {
    me: usize,
    world: Arc<World>,
    peers: Vec<Rank>,
    /// Whoever makes progress.
    turn: Mutex<()>,
    heaps: Heaps,
}

/// What is mapped of the other ranks' heaps.
struct Heaps(Option<Arc<dyn SharedMemory>>);

impl std::fmt::Debug for Heaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranks = self.0.as_ref().map(|heaps| heaps.ranks());
        f.debug_tuple("Heaps").field(&ranks).finish()
    }
}

#[derive(Debug)]
struct World {
    boxes: Vec<RankBox>,
}

/// What others may touch of one rank.
#[derive(Debug)]
struct RankBox {
    state: Mutex<State>,
    /// A section was left, or a send has come to its end.
    changed: Condvar,
    counts: Counts,
}

/// Only ever added to, and read as a snapshot of independent numbers: relaxed is enough.
#[derive(Debug, Default)]
struct Counts {
    payload_sent: AtomicU64,
    payload_received: AtomicU64,
    header_sent: AtomicU64,
    header_received: AtomicU64,
    frames_sent: AtomicU64,
    frames_received: AtomicU64,
    early: AtomicU64,
}

type Guard<'a> = MutexGuard<'a, State>;

impl InprocTransport {
    /// Ends this rank as a crash would, for tests of what the others then do: they see it lost, in the middle of whatever they were doing with it.
    pub fn kill(&self) {
        self.depart(
            Life::Dead,
            Down::Lost(format!("rank {} was killed", self.me)),
        );
    }

    fn home(&self) -> &RankBox {
        &self.world.boxes[self.me]
    }

    /// Own state and a peer's, locked in the order of ranks.
    fn pair(&self, peer: usize) -> (Guard<'_>, Guard<'_>) {
        let (mine, theirs) = (&self.home().state, &self.world.boxes[peer].state);
        if self.me < peer {
            let mine = mine.lock();
            (mine, theirs.lock())
        } else {
            let theirs = theirs.lock();
            (mine.lock(), theirs)
        }
    }

    /// Brings the halves of a message together. `ours` is the receiver's state.
    fn join(ours: &mut State, theirs: &mut State, place: u32, recv: u32) {
        let Some(slot) = ours.slots.get_mut(recv) else {
            return;
        };
        slot.offer = place;
        let wanted = slot.bytes;
        let Some(offer) = ours.offers.get_mut(place) else {
            return;
        };
        offer.recv = recv;
        let here = offer.bytes == 0
            || offer.bytes != wanted
            || offer.loan.is_some()
            || offer.chunk.is_some();
        let id = offer.id;
        if here {
            ours.push_ready(place);
        } else {
            theirs.push_fill(id);
        }
    }

    fn post_send(&self, t: &Transfer<'_>) -> Result<XferId, TransportError> {
        let peer = t.peer.idx();
        let (mut mine, mut theirs) = self.pair(peer);
        self.admit(&mine, t)?;
        if let Some(error) = mine.down_error(peer) {
            return Err(error);
        }
        if theirs.life != Life::Here {
            let how = if theirs.life == Life::Left {
                Down::Left
            } else {
                Down::Lost(format!("rank {peer} has ended"))
            };
            return Err(TransportError::Down { peer: t.peer, how });
        }
        let pair = theirs.keys.get(&(self.me, t.key)).copied();
        if pair.is_some_and(|p| p.offer != NONE) {
            return Err(in_use(t.peer));
        }
        let id = pieces::xfer_id(mine.next_count(), mine.slots.next());
        let mut head = [0; HEAD_MAX];
        head[..t.head.len()].copy_from_slice(t.head);
        let paid = t.bytes == 0;
        let loan = t.loan.filter(|_| !paid);
        let place = theirs.offers.insert(Offer {
            id,
            src: self.me,
            key: t.key,
            bytes: t.bytes,
            priority: t.priority,
            head,
            head_len: t.head.len(),
            loan,
            chunk: None,
            at: 0,
            announced: false,
            opened: false,
            cancelled: false,
            held: 0,
            short: false,
            recalled: false,
            copied: false,
            paid,
            recv: NONE,
        });
        let recv = pair.map_or(NONE, |p| p.recv);
        theirs
            .keys
            .insert((self.me, t.key), Pair { offer: place, recv });
        mine.slots.insert(slot_for(t, id, place));
        if paid {
            mine.ended.push_back((id, Ok(())));
        }
        if loan.is_some() {
            mine.owed += 1;
        }
        if recv == NONE {
            theirs.news.push_back((place, id));
            if !t.key.op.class.is_collective() && !paid && loan.is_none() {
                mine.push_fill(id);
            }
        } else {
            Self::join(&mut theirs, &mut mine, place, recv);
        }
        let wake = theirs.wake.clone();
        drop((mine, theirs));
        ring(wake);
        Ok(id)
    }

    fn post_recv(&self, t: &Transfer<'_>) -> Result<XferId, TransportError> {
        let peer = t.peer.idx();
        let (mut mine, mut theirs) = self.pair(peer);
        self.admit(&mine, t)?;
        let pair = mine.keys.get(&(peer, t.key)).copied();
        if pair.is_some_and(|p| p.recv != NONE) {
            return Err(in_use(t.peer));
        }
        let offer = pair.map_or(NONE, |p| p.offer);
        // What a peer that has left gave whole before it went is still good.
        if let Some(error) = mine.down_error(peer).filter(|_| offer == NONE) {
            return Err(error);
        }
        let id = pieces::xfer_id(mine.next_count(), mine.slots.next());
        let recv = mine.slots.insert(slot_for(t, id, NONE));
        mine.keys.insert((peer, t.key), Pair { offer, recv });
        let mut wake = None;
        if offer != NONE {
            Self::join(&mut mine, &mut theirs, offer, recv);
            wake = theirs.wake_for_work();
        }
        drop((mine, theirs));
        ring(wake);
        Ok(id)
    }

    fn admit(&self, mine: &State, t: &Transfer<'_>) -> Result<(), TransportError> {
        if mine.life != Life::Here {
            return Err(TransportError::Misuse {
                peer: t.peer,
                what: "this rank has left",
            });
        }
        pieces::check(Rank(self.me as u32), &self.peers, mine.slots.next(), t)
    }

    /// Takes back an own send; false while the receiver is reading it.
    fn revoke(&self, mine: &mut State, theirs: &mut State, id: XferId) -> bool {
        let Some(place) = mine.slot(id).map(|s| s.offer) else {
            return true;
        };
        let reading = theirs.reading == Some((self.me, id));
        if let Some(offer) = theirs.offer(place, id) {
            if reading {
                offer.cancelled = true;
                return false;
            }
            let (opened, recv) = (offer.opened, offer.recv);
            if let Some(offer) = theirs.remove_offer(place) {
                if offer.loan.is_some() {
                    mine.owed -= 1;
                }
                if let Some(chunk) = offer.chunk {
                    mine.give_chunk(chunk);
                }
            }
            if let Some(recv) = theirs.slots.get(recv).map(|s| s.id).filter(|_| opened) {
                theirs.ended.push_back((
                    recv,
                    Err(TransportError::Aborted {
                        peer: Rank(self.me as u32),
                    }),
                ));
            }
        }
        if let Some(chunk) = mine
            .remove_slot(pieces::slot_of(id))
            .and_then(|slot| slot.chunk)
        {
            mine.give_chunk(chunk);
        }
        true
    }

    /// Takes back an own receive; a message that has begun is dropped, one that has not is nobody's again.
    fn withdraw(&self, mine: &mut State, theirs: &mut State, id: XferId) {
        let Some(place) = mine.slot(id).map(|s| s.offer) else {
            return;
        };
        mine.remove_slot(pieces::slot_of(id));
        let Some((opened, from)) = mine.offers.get(place).map(|o| (o.opened, o.id)) else {
            return;
        };
        if opened {
            if let Some(offer) = mine.remove_offer(place) {
                theirs.end_send(offer);
            }
        } else {
            mine.news.push_back((place, from));
        }
    }

    /// Goes, and takes back everything that lies on others' tables.
    fn depart(&self, life: Life, how: Down) {
        {
            let mut mine = self.home().state.lock();
            if mine.life != Life::Here {
                return;
            }
            mine.life = life;
        }
        for peer in &self.peers {
            self.depart_from(peer.idx(), &how);
        }
    }

    fn depart_from(&self, peer: usize, how: &Down) {
        let their_box = &self.world.boxes[peer];
        loop {
            let (mut mine, mut theirs) = self.pair(peer);
            if theirs.reading.is_some_and(|(src, _)| src == self.me) {
                drop(mine);
                their_box.changed.wait(&mut theirs);
                continue;
            }
            if mine.reading.is_some_and(|(src, _)| src == peer) {
                drop(theirs);
                self.home().changed.wait(&mut mine);
                continue;
            }
            for place in 0..theirs.offers.end() {
                let keep = |o: &Offer| o.src != self.me || (o.paid && *how == Down::Left);
                if theirs.offers.get(place).is_some_and(|o| !keep(o)) {
                    theirs.remove_offer(place);
                }
            }
            for place in 0..mine.offers.end() {
                if mine.offers.get(place).is_some_and(|o| o.src == peer)
                    && let Some(offer) = mine.remove_offer(place)
                {
                    if let Some(slot) = theirs.slot(offer.id).filter(|_| !offer.paid) {
                        slot.offer = NONE;
                        if offer.loan.is_some() {
                            theirs.owed -= 1;
                        }
                    }
                    if let Some(chunk) = offer.chunk {
                        theirs.give_chunk(chunk);
                    }
                }
            }
            theirs.gone[self.me] = Some(how.clone());
            theirs.notices.push_back(self.me);
            let wake = theirs.wake.clone();
            their_box.changed.notify_all();
            drop((mine, theirs));
            ring(wake);
            return;
        }
    }
}

fn slot_for(t: &Transfer<'_>, id: XferId, offer: u32) -> Slot {
    Slot {
        id,
        dir: t.dir,
        peer: t.peer.idx(),
        key: t.key,
        bytes: t.bytes,
        unit: t.unit,
        priority: t.priority,
        offer,
        filled: 0,
        chunk: None,
        cancelled: false,
    }
}

fn in_use(peer: Rank) -> TransportError {
    TransportError::Misuse {
        peer,
        what: "the key is in use",
    }
}

fn ring(wake: Option<Arc<dyn Wake>>) {
    if let Some(wake) = wake {
        wake.wake();
    }
}

impl InprocTransport {
    /// With heaps that all ranks of the world have mapped, at addresses of their own ([`heap::heaps`](crate::heap::heaps)): operations go over them as between processes.
    pub fn with_shared(mut self, heaps: Arc<dyn SharedMemory>) -> InprocTransport {
        self.heaps = Heaps(Some(heaps));
        self
    }
}

impl Transport for InprocTransport {
    fn me(&self) -> Rank {
        Rank(self.me as u32)
    }

    fn peers(&self) -> &[Rank] {
        &self.peers
    }

    fn link(&self) -> &'static str {
        "in-process"
    }

    fn wants_loans(&self) -> bool {
        true
    }

    fn post(&self, t: Transfer<'_>) -> Result<XferId, TransportError> {
        if t.peer.idx() >= self.world.boxes.len() || t.peer.idx() == self.me {
            return Err(TransportError::NoLink(t.peer));
        }
        match t.dir {
            Dir::Send => self.post_send(&t),
            Dir::Recv => self.post_recv(&t),
        }
    }

    fn cancel(&self, id: XferId) {
        loop {
            let (peer, dir) = {
                let mut mine = self.home().state.lock();
                let calling = mine.calling == Some(id);
                let slot = mine.slot(id).map(|s| {
                    s.cancelled = true;
                    (s.peer, s.dir)
                });
                if calling {
                    self.home().changed.wait(&mut mine);
                    continue;
                }
                let Some(found) = slot else {
                    return;
                };
                found
            };
            let (mut mine, mut theirs) = self.pair(peer);
            if mine.calling == Some(id) {
                continue;
            }
            let gone = match dir {
                Dir::Send => self.revoke(&mut mine, &mut theirs, id),
                Dir::Recv => {
                    self.withdraw(&mut mine, &mut theirs, id);
                    true
                }
            };
            if gone {
                let wakes = [theirs.wake.clone(), mine.wake_for_work()];
                drop((mine, theirs));
                wakes.into_iter().for_each(ring);
                return;
            }
            drop(mine);
            self.world.boxes[peer].changed.wait(&mut theirs);
        }
    }

    fn forget(&self, op: OpId) {
        let mut from = 0;
        loop {
            let mut mine = self.home().state.lock();
            let Some(place) = mine.unposted(op, from) else {
                return;
            };
            from = place + 1;
            let Some(src) = mine.offers.get_mut(place).map(|o| o.src) else {
                continue;
            };
            drop(mine);
            let (mut mine, mut theirs) = self.pair(src);
            let unposted = mine
                .offers
                .get(place)
                .filter(|o| o.recv == NONE && o.key.op == op && o.src == src)
                .map(|o| o.id);
            if unposted.is_some_and(|id| mine.reading == Some((src, id))) {
                // Another thread copies what is lent: only then may its sender have it back.
                drop(theirs);
                self.home().changed.wait(&mut mine);
                from = place;
                continue;
            }
            if unposted.is_some()
                && let Some(offer) = mine.remove_offer(place)
            {
                theirs.end_send(offer);
            }
            let wakes = [theirs.wake.clone(), mine.wake_for_work()];
            self.world.boxes[src].changed.notify_all();
            drop((mine, theirs));
            wakes.into_iter().for_each(ring);
        }
    }

    fn progress(&self, sink: &mut dyn Sink, budget: usize) -> u64 {
        let Some(_turn) = self.turn.try_lock() else {
            return 0;
        };
        run::progress(self, sink, budget)
    }

    fn arm(&self) -> Armed<'_> {
        let mine = self.home().state.lock();
        if mine.has_work() && mine.life != Life::Dead {
            Armed::MoreToDo
        } else if !(mine.stalled_ready.is_empty() && mine.stalled_fill.is_empty()) {
            // Only the sink knows when it will want what it has just left.
            Armed::PollAfter(Duration::from_micros(200))
        } else {
            Armed::Wakes
        }
    }

    fn attach(&self, wake: Arc<dyn Wake>) {
        self.home().state.lock().wake = Some(wake);
    }

    fn nudge(&self, peer: Rank) {
        if let Some(theirs) = self.world.boxes.get(peer.idx()) {
            let wake = theirs.state.lock().wake.clone();
            ring(wake);
        }
    }

    fn shared(&self) -> Option<Arc<dyn SharedMemory>> {
        self.heaps.0.clone()
    }

    fn reads_ordinary(&self) -> bool {
        true
    }

    fn leave(&self, limit: Duration) {
        let deadline = crate::auth::deadline_in(limit);
        {
            let mut mine = self.home().state.lock();
            while mine.owed > 0 && mine.life == Life::Here {
                if self
                    .home()
                    .changed
                    .wait_until(&mut mine, deadline)
                    .timed_out()
                {
                    break;
                }
            }
        }
        self.depart(Life::Left, Down::Left);
    }

    fn stats(&self) -> LinkStats {
        let c = &self.home().counts;
        let mut s = LinkStats::default();
        s.payload_sent = c.payload_sent.load(Relaxed);
        s.payload_received = c.payload_received.load(Relaxed);
        s.header_sent = c.header_sent.load(Relaxed);
        s.header_received = c.header_received.load(Relaxed);
        s.frames_sent = c.frames_sent.load(Relaxed);
        s.frames_received = c.frames_received.load(Relaxed);
        s.early_messages = c.early.load(Relaxed);
        s
    }
}

impl Drop for InprocTransport {
    fn drop(&mut self) {
        self.depart(
            Life::Dead,
            Down::Lost(format!("rank {} was dropped without leaving", self.me)),
        );
    }
}

#[cfg(test)]
mod tests;
