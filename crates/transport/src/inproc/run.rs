//! One call of `progress`: completions, news, staging, reading, and last who has gone.

use super::{
    InprocTransport, Life, NONE, RankBox, Relaxed,
    raw::Section,
    ring,
    state::{CREDIT, Chunk, Job, Offer, State},
};
use crate::pieces::{Piece, Room, slot_of};
use gaggle_core::{Dir, HEAD_MAX, Rank, Sink, TransportError, Verdict, XferId};

/// Most bytes that are shown at once: how long a sender that cancels may have to wait.
const SLICE: usize = 256 << 10;
/// What a callback without bytes counts towards the budget.
const CALL: usize = 64;

pub(super) fn progress(t: &InprocTransport, sink: &mut dyn Sink, budget: usize) -> u64 {
    t.home().state.lock().restore();
    let mut run = Run {
        t,
        sink,
        calls: 0,
        left: budget.max(1),
    };
    while run.left > 0 && run.step() {}
    run.calls
}

struct Run<'a> {
    t: &'a InprocTransport,
    sink: &'a mut dyn Sink,
    calls: u64,
    left: usize,
}

/// What is read of an offer before the lock is let go.
struct Taken {
    from: XferId,
    src: usize,
    recv: XferId,
    unit: u32,
    ours: u64,
    theirs: u64,
    at: u64,
    opened: bool,
    lent: bool,
    head: [u8; HEAD_MAX],
    head_len: usize,
    chunk: Option<Chunk>,
}

/// What became of a message that was shown.
enum Shown {
    Refused,
    Mismatch,
    Used(usize),
}

impl<'a> Run<'a> {
    fn home(&self) -> &'a RankBox {
        self.t.home()
    }

    fn count(&mut self, bytes: usize) {
        self.calls += 1;
        self.left = self.left.saturating_sub(bytes + CALL);
    }

    /// One piece of work; false when there is none.
    fn step(&mut self) -> bool {
        let mut mine = self.home().state.lock();
        if mine.life == Life::Dead {
            return false;
        }
        if let Some((id, result)) = mine.ended.pop_front() {
            if mine.slot(id).is_some_and(|s| !s.cancelled) {
                mine.remove_slot(slot_of(id));
                let section = Section::call(self.home(), &mut mine, Some(id));
                drop(mine);
                self.sink.done(id, result);
                drop(section);
                self.count(0);
            }
            return true;
        }
        if let Some((place, id)) = mine.news.pop_front() {
            drop(mine);
            self.announce(place, id);
            return true;
        }
        if let Some(job) = mine.fill.pop() {
            drop(mine);
            self.fill(job);
            return true;
        }
        if let Some(job) = mine.ready.pop() {
            self.read(job, mine);
            return true;
        }
        if let Some(peer) = mine.notices.pop_front() {
            self.part(peer, mine);
            return true;
        }
        false
    }

    /// A message that nobody has posted a receive for.
    fn announce(&mut self, place: u32, id: XferId) {
        let (short, (src, key, head, len)) = {
            let mut mine = self.home().state.lock();
            let short = mine.take_short(place, id);
            let first = match mine.offer(place, id) {
                Some(o) if o.recv == NONE && !o.cancelled && !o.announced => {
                    o.announced = true;
                    Some((o.src, o.key, o.head, o.head_len))
                }
                _ => None,
            };
            drop(mine);
            let Some(first) = first else {
                if short {
                    self.try_again(place, id);
                }
                return;
            };
            (short, first)
        };
        self.home().counts.early.fetch_add(1, Relaxed);
        let verdict = self.sink.unexpected(Rank(src as u32), key, &head[..len]);
        self.count(0);
        if verdict == Verdict::Take {
            if short {
                self.try_again(place, id);
            } else if !key.op.class.is_collective() {
                self.hold(place, id, src);
            }
            return;
        }
        let (mut mine, mut theirs) = self.t.pair(src);
        // A receive that was posted in the meantime has the last word.
        let unwanted = mine.offer(place, id).is_some_and(|o| o.recv == NONE);
        if unwanted && let Some(offer) = mine.remove_offer(place) {
            theirs.end_send(offer);
        }
        self.t.world.boxes[src].changed.notify_all();
        let wake = theirs.wake.clone();
        drop((mine, theirs));
        ring(wake);
    }

    /// Credit has come back for a message that was short of it.
    fn try_again(&mut self, place: u32, id: XferId) {
        let mut mine = self.home().state.lock();
        let Some((src, lent)) = mine.offer(place, id).map(|o| (o.src, o.loan.is_some())) else {
            return;
        };
        drop(mine);
        if lent {
            return self.hold(place, id, src);
        }
        let mut theirs = self.t.world.boxes[src].state.lock();
        theirs.push_fill(id);
        let wake = theirs.wake.clone();
        drop(theirs);
        ring(wake);
    }

    /// Copies an early lent message whole, so that its sender need not wait for a round that this rank may skip.
    fn hold(&mut self, place: u32, id: XferId, src: usize) {
        let mut mine = self.home().state.lock();
        let free = CREDIT.saturating_sub(mine.held[src]);
        let open = |o: &&mut Offer| o.recv == NONE && !o.cancelled && o.loan.is_some();
        let Some(bytes) = mine.offer(place, id).filter(open).map(|o| o.bytes) else {
            return;
        };
        let Some(bytes) = usize::try_from(bytes).ok().filter(|n| *n <= free) else {
            return mine.mark_short(place);
        };
        let mut chunk = mine.take_whole(bytes);
        let Some(section) = Section::read(self.home(), &mut mine, None, place) else {
            return mine.give_chunk(chunk);
        };
        drop(mine);
        chunk.buf[..bytes].copy_from_slice(section.bytes(0..bytes));
        chunk.hi = bytes;
        let (mut mine, mut theirs) = self.t.pair(src);
        section.leave(&mut mine);
        let Some(offer) = mine.offer(place, id).filter(|o| !o.cancelled) else {
            return mine.give_chunk(chunk);
        };
        offer.loan = None;
        offer.chunk = Some(chunk);
        offer.copied = true;
        offer.held = bytes;
        offer.paid = true;
        mine.held[src] += bytes;
        theirs.owed -= 1;
        settle(&mut theirs, id);
        self.t.world.boxes[src].changed.notify_all();
        let wake = theirs.wake.clone();
        drop((mine, theirs));
        ring(wake);
    }

    /// Stages the next part of a send that is not lent.
    fn fill(&mut self, job: Job) {
        let Some((peer, place)) = self
            .home()
            .state
            .lock()
            .slot(job.id)
            .filter(|s| !s.cancelled)
            .map(|s| (s.peer, s.offer))
        else {
            return;
        };
        let (mut mine, mut theirs) = self.t.pair(peer);
        let free = CREDIT.saturating_sub(theirs.held[self.t.me]);
        let there = theirs
            .offer(place, job.id)
            .filter(|o| o.chunk.is_none() && !o.cancelled);
        let Some((early, bytes)) = there.map(|o| (o.recv == NONE, o.bytes)) else {
            return;
        };
        // Without a receive only a whole message is worth staging.
        let whole = usize::try_from(bytes).ok().filter(|n| early && *n <= free);
        let wanted = !early || whole.is_some();
        if !wanted {
            theirs.mark_short(place);
        }
        let Some(slot) = mine.slot(job.id).filter(|s| wanted && !s.cancelled) else {
            return;
        };
        let (at, unit, left) = (slot.filled, slot.unit, slot.bytes - slot.filled);
        let held = slot.chunk.take();
        let fresh = held.or_else(|| match whole {
            Some(n) => Some(mine.take_whole(n)),
            None => mine.take_chunk(),
        });
        let Some(mut chunk) = fresh else {
            mine.stalled_fill.push(job);
            return;
        };
        let section = Section::call(self.home(), &mut mine, Some(job.id));
        drop((mine, theirs));
        let end = chunk
            .buf
            .len()
            .min(chunk.hi + usize::try_from(left).unwrap_or(usize::MAX));
        let mut room = Room::new(&mut chunk.buf[chunk.hi..end], unit);
        self.sink.outgoing(job.id, at, &mut room);
        let filled = room.filled();
        chunk.hi += filled;
        let (mut mine, mut theirs) = self.t.pair(peer);
        section.leave(&mut mine);
        let wake = self.hand_over(&mut mine, &mut theirs, job, place, chunk, filled);
        drop((mine, theirs));
        if wake {
            self.count(filled);
            self.wake(peer);
        }
    }

    fn hand_over(
        &self,
        mine: &mut State,
        theirs: &mut State,
        job: Job,
        place: u32,
        chunk: Chunk,
        filled: usize,
    ) -> bool {
        let there = theirs.offer(place, job.id);
        let (Some(slot), Some(offer)) = (mine.slot(job.id), there) else {
            mine.give_chunk(chunk);
            return false;
        };
        slot.filled += filled as u64;
        if filled == 0 {
            slot.chunk = Some(chunk);
            mine.stalled_fill.push(job);
            return false;
        }
        let whole = chunk.whole && (chunk.hi as u64) == offer.bytes;
        let bytes = chunk.hi;
        if chunk.whole && !whole && offer.recv == NONE {
            // The sink had not all of it yet; the rest is asked for before anybody is told.
            slot.chunk = Some(chunk);
            mine.stalled_fill.push(job);
            return false;
        }
        offer.chunk = Some(chunk);
        if whole {
            offer.held = bytes;
            offer.paid = true;
        }
        if offer.recv != NONE {
            theirs.push_ready(place);
        }
        if whole {
            theirs.held[self.t.me] += bytes;
            settle(mine, job.id);
        }
        true
    }

    /// Shows the next part of a message to the sink.
    fn read(&mut self, job: Job, mut mine: super::Guard<'_>) {
        let Some((section, taken)) = self.take(&mut mine, job) else {
            return;
        };
        drop(mine);
        let mut taken = taken;
        let shown = self.show(&section, &mut taken);
        let (mut mine, mut theirs) = self.t.pair(taken.src);
        section.leave(&mut mine);
        let (src, recv) = (taken.src, taken.recv);
        let (theirs_counts, ours_counts) = (&self.t.world.boxes[src].counts, &self.home().counts);
        if !taken.opened {
            let n = taken.head_len as u64;
            theirs_counts.header_sent.fetch_add(n, Relaxed);
            ours_counts.header_received.fetch_add(n, Relaxed);
            theirs_counts.frames_sent.fetch_add(1, Relaxed);
            ours_counts.frames_received.fetch_add(1, Relaxed);
        }
        let result = match shown {
            Shown::Refused => None,
            Shown::Mismatch => Some(Err(TransportError::Length {
                peer: Rank(src as u32),
                theirs: taken.theirs,
                ours: taken.ours,
            })),
            Shown::Used(n) => {
                theirs_counts.payload_sent.fetch_add(n as u64, Relaxed);
                ours_counts.payload_received.fetch_add(n as u64, Relaxed);
                if taken.at + (n as u64) < taken.theirs {
                    let refill = put_back(&mut mine, &mut theirs, job, taken, n);
                    drop((mine, theirs));
                    if refill {
                        self.wake(src);
                    }
                    return;
                }
                Some(Ok(()))
            }
        };
        if let Some(offer) = mine.offer(job.place, taken.from) {
            offer.chunk = taken.chunk;
        }
        if let Some(offer) = mine.remove_offer(job.place) {
            theirs.end_send(offer);
        }
        self.t.world.boxes[src].changed.notify_all();
        let alive = mine.slot(recv).is_some_and(|s| !s.cancelled);
        let mut section = None;
        if alive {
            mine.remove_slot(slot_of(recv));
            section = Some(Section::call(self.home(), &mut mine, Some(recv)));
        }
        drop((mine, theirs));
        self.wake(src);
        if let Some(result) = result.filter(|_| alive) {
            self.sink.done(recv, result);
            self.count(0);
        }
        drop(section);
    }

    /// What `show` needs, and the section it happens in; `None` where the offer is no longer there.
    fn take(&self, mine: &mut State, job: Job) -> Option<(Section<'a>, Taken)> {
        let offer = mine
            .offer(job.place, job.id)
            .filter(|o| o.recv != NONE && !o.cancelled)?;
        let (recv_place, chunk) = (offer.recv, offer.chunk.take());
        let mut taken = Taken {
            from: offer.id,
            src: offer.src,
            recv: XferId(0),
            unit: 1,
            ours: 0,
            theirs: offer.bytes,
            at: offer.at,
            opened: offer.opened,
            lent: offer.loan.is_some(),
            head: offer.head,
            head_len: offer.head_len,
            chunk,
        };
        let slot = mine.slots.get(recv_place)?;
        taken.recv = slot.id;
        taken.unit = slot.unit;
        taken.ours = slot.bytes;
        let section = Section::read(self.home(), mine, Some(taken.recv), job.place)?;
        Some((section, taken))
    }

    fn show(&mut self, section: &Section<'_>, taken: &mut Taken) -> Shown {
        if !taken.opened {
            let head = &taken.head[..taken.head_len];
            let verdict = self.sink.opened(taken.recv, head);
            self.count(0);
            if verdict == Verdict::Refuse {
                return Shown::Refused;
            }
            if taken.ours != taken.theirs {
                return Shown::Mismatch;
            }
        }
        if taken.theirs == 0 {
            return Shown::Used(0);
        }
        let bytes = if taken.lent {
            let at = usize::try_from(taken.at).unwrap_or(usize::MAX);
            let end = usize::try_from(taken.theirs).unwrap_or(usize::MAX);
            section.bytes(at..end.min(at.saturating_add(SLICE)))
        } else {
            match &taken.chunk {
                Some(c) => &c.buf[c.lo..c.hi],
                None => &[],
            }
        };
        let mut piece = Piece::new(bytes, taken.unit);
        self.sink.incoming(taken.recv, taken.at, &mut piece);
        let used = piece.used();
        if used > 0 {
            self.count(used);
        }
        Shown::Used(used)
    }

    /// Reports what is pending with a peer that has gone, and when nothing is, that it has.
    fn part(&mut self, peer: usize, mut mine: super::Guard<'_>) {
        let Some(error) = mine.down_error(peer) else {
            return;
        };
        let mut pending = false;
        for place in 0..mine.slots.end() {
            let Some(slot) = mine.slots.get_mut(place) else {
                continue;
            };
            // A whole message that is still on the table will be read.
            let good = slot.dir == Dir::Recv && slot.offer != NONE;
            if slot.peer != peer || slot.cancelled || good {
                continue;
            }
            let (id, chunk) = (slot.id, slot.chunk.take());
            pending = true;
            if let Some(chunk) = chunk {
                mine.give_chunk(chunk);
            }
            mine.ended.push_back((id, Err(error.clone())));
        }
        if pending {
            mine.notices.push_front(peer);
            return;
        }
        let how = mine.gone[peer].clone();
        drop(mine);
        if let Some(how) = how {
            self.sink.down(Rank(peer as u32), how);
            self.count(0);
        }
    }

    fn wake(&self, peer: usize) {
        let wake = self.t.world.boxes[peer].state.lock().wake.clone();
        ring(wake);
    }
}

/// The sender of a message that is held is done with it.
fn settle(sender: &mut State, id: XferId) {
    if let Some(slot) = sender.slot(id) {
        slot.offer = NONE;
        sender.ended.push_back((id, Ok(())));
    }
}

/// After a part of a message was shown and `n` bytes of it used. True when the sender has to fill in more.
fn put_back(mine: &mut State, theirs: &mut State, job: Job, taken: Taken, n: usize) -> bool {
    let unit = taken.unit as usize;
    let Some(offer) = mine.offer(job.place, taken.from) else {
        if let Some(chunk) = taken.chunk {
            theirs.give_chunk(chunk);
        }
        return false;
    };
    offer.opened = true;
    offer.at += n as u64;
    if let Some(mut chunk) = taken.chunk {
        chunk.lo += n;
        if chunk.hi - chunk.lo < unit {
            chunk.buf.copy_within(chunk.lo..chunk.hi, 0);
            chunk.hi -= chunk.lo;
            chunk.lo = 0;
            if let Some(slot) = theirs.slot(taken.from) {
                slot.chunk = Some(chunk);
                theirs.push_fill(taken.from);
            } else {
                theirs.give_chunk(chunk);
            }
            return true;
        }
        offer.chunk = Some(chunk);
    }
    if n == 0 {
        mine.stalled_ready.push(job);
    } else {
        mine.push_ready(job.place);
    }
    false
}
