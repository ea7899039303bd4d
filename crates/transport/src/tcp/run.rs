//! One call of `progress`: early data to new receives, then every link in turn, reading before writing.

use super::{
    Calling, Counts, Io, TcpTransport,
    dial::{Failure, Made, Want},
    link::Link,
    state::{NONE, State},
};
use crate::{
    frame::{Header, Kind},
    pieces::Piece,
};
use gaggle_core::{Dir, Down, Sink, TransportError, Verdict, XferId};
use mio::{Interest, Token};
use std::{
    sync::atomic::{Ordering::SeqCst, fence},
    time::Duration,
};

/// What a callback without bytes counts towards the budget.
const CALL: usize = 64;
/// Of so many calls one asks the system about the bells, which tell of a death, and about sockets that were just read.
const ASK_EVERY: u32 = 64;
/// Up to so many sockets are read without a question whether they have anything: one call of the system instead of two.
const FEW: usize = 4;

pub(super) struct Run<'a> {
    pub(super) t: &'a TcpTransport,
    pub(super) io: &'a mut Io,
    pub(super) sink: &'a mut dyn Sink,
    pub(super) tally: Tally,
}

/// Callbacks made, and what is left of the budget.
pub(super) struct Tally {
    pub(super) calls: u64,
    pub(super) left: usize,
}

impl Tally {
    pub(super) fn call(&mut self, bytes: usize) {
        self.calls += 1;
        self.left = self.left.saturating_sub(bytes + CALL);
    }
}

/// What came of showing bytes to the sink.
pub(super) struct Fed {
    pub(super) used: usize,
    pub(super) stalled: bool,
}

impl Run<'_> {
    /// How many callbacks that were, and whether something is left to do.
    pub(super) fn progress(&mut self) -> (u64, bool) {
        // Whether there is nothing to do but to look whether something has come.
        let mut idle = self.t.sides.is_empty() && self.io.links.iter().all(Link::is_idle);
        let posted = {
            let mut st = self.t.state.lock();
            if st.left {
                return (0, false);
            }
            let posted = std::mem::take(&mut st.dirty);
            idle &= !posted && !st.more && !st.waiting;
            let State {
                deliver,
                stalled_deliver,
                links,
                ..
            } = &mut *st;
            deliver.extend(stalled_deliver.drain(..));
            for (tables, link) in links.iter_mut().zip(&mut self.io.links) {
                tables.ready.extend(tables.stalled.drain(..));
                link.stalled = false;
                link.awaited = tables.posted > 0 || !tables.blocked.is_empty();
            }
            posted
        };
        self.learn();
        // What waited for a connection may go now.
        idle &= !self.take_news();
        let n = self.io.links.len();
        if idle && !self.has_come() {
            return (self.tally.calls, false);
        }
        // What has just been posted is what somebody waits for; a look for what has come takes its time.
        let mut wrote = idle;
        if posted {
            for i in 0..n {
                wrote |= self.write_once(i) > 0;
            }
        }
        let left = loop {
            let mut moved = self.deliver() | std::mem::take(&mut wrote);
            self.io.turn = (self.io.turn + 1) % n.max(1);
            for k in 0..n {
                let i = (self.io.turn + k) % n;
                moved |= self.read_link(i);
                moved |= self.write_link(i);
                if self.tally.left == 0 {
                    break;
                }
            }
            let left = self.look_what_is_left();
            if !(left && moved && self.tally.left > 0) {
                break left;
            }
        };
        if !self.t.sides.is_empty() && self.note_how_far() {
            self.t.state.lock().more = true;
            return (self.tally.calls, true);
        }
        (self.tally.calls, left)
    }

    /// Reads once what may have something. Whether one link had, or has ended.
    fn has_come(&mut self) -> bool {
        let mut any = false;
        for i in 0..self.io.links.len() {
            any |= self.io.links[i].readable && self.read_once(i);
        }
        any
    }

    /// Learns what is ready. Rings are looked at; a few sockets from which something is expected are simply read. The system is asked where that are many, where one is full, where nothing is expected, where a bell may have rung, where somebody wants to sleep, and every now and then.
    fn learn(&mut self) {
        self.io.asked = (self.io.asked + 1) % ASK_EVERY;
        let t = self.t;
        let (mut awaited, mut full) = (0, false);
        for link in self.io.links.iter().filter(|link| link.is_socket()) {
            awaited += usize::from(link.awaited);
            full |= !link.writable;
        }
        // Right after something has come it is what follows from it that counts.
        let nothing = self.io.sockets > 0 && awaited == 0 && !std::mem::take(&mut self.io.moved);
        let due = self.io.asked == 0 || t.ask.load(SeqCst) || t.armed.load(SeqCst);
        if due || full || nothing || awaited > FEW {
            // Whoever has said so in between says so again: `unasked` comes last.
            t.ask.store(false, SeqCst);
            self.poll(Duration::ZERO);
            t.unasked.store(false, SeqCst);
            return;
        }
        if self.io.sockets > 0 {
            t.unasked.store(true, SeqCst);
        }
        for link in &mut self.io.links {
            link.readable |= link.awaited && link.is_socket();
            link.look();
        }
    }

    /// Learns which sockets are ready.
    pub(super) fn poll(&mut self, limit: Duration) {
        let Io {
            poll,
            events,
            links,
            ..
        } = &mut *self.io;
        // An interrupted poll has learnt nothing; the next one will.
        if poll.poll(events, Some(limit)).is_err() {
            events.clear();
        }
        for event in events.iter() {
            let Some(link) = links.get_mut(event.token().0).filter(|l| !l.closed) else {
                continue;
            };
            let end = event.is_read_closed() || event.is_write_closed() || event.is_error();
            link.ending |= end;
            link.readable |= event.is_readable() || end;
            if link.side().is_some() {
                link.drain_bell();
            } else {
                link.writable |= event.is_writable();
            }
        }
        for link in links {
            link.look();
        }
    }

    /// Takes over connections that have been made, and learns which cannot be. Whether there were any.
    pub(super) fn take_news(&mut self) -> bool {
        let Some(dialling) = self.t.dialling.as_ref().filter(|d| d.has_news()) else {
            return false;
        };
        let (come, failed) = dialling.take();
        // Nobody else empties what has woken this rank.
        self.poll(Duration::ZERO);
        for made in come {
            self.install(made);
        }
        for (i, failure) in failed {
            let mut st = self.t.state.lock();
            if st.links[i].down.is_some() || self.io.links[i].is_made() {
                continue;
            }
            let wanted = (0..st.slots.end()).any(|place| {
                let slot = st.slots.get(place);
                slot.is_some_and(|s| s.link == i && !s.cancelled)
            });
            let how = match failure {
                Failure::Gone(how) => how,
                Failure::Silent if wanted => {
                    dialling.ask(i, Want::Now);
                    continue;
                }
                Failure::Unreachable(why) if wanted => {
                    let how = Down::Lost(why);
                    dialling.depart(i, how.clone());
                    how
                }
                // Whoever wanted it has given up: the next one tries again.
                _ => {
                    st.wants[i] = Want::Never;
                    continue;
                }
            };
            drop(st);
            self.fail(i, how);
        }
        true
    }

    /// A connection is there.
    fn install(&mut self, made: Made) {
        let Made {
            idx: i,
            mut stream,
            baseline,
        } = made;
        {
            let mut st = self.t.state.lock();
            if st.links[i].down.is_some() {
                return;
            }
            st.wants[i] = Want::Made;
        }
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self
            .io
            .poll
            .registry()
            .register(&mut stream, Token(i), interest);
        self.io.sockets += 1;
        Counts::add(&self.t.counts.connections, 1);
        self.io.links[i] = Link::made(stream, baseline);
        if let Err(e) = registered {
            let why = format!(
                "connection to {} cannot be waited for: {e}",
                self.t.peers[i]
            );
            self.fail(i, Down::Lost(why));
        }
    }

    /// Tells rings how far they have been read and written. Whether some ring has something by now, where somebody is about to sleep.
    fn note_how_far(&mut self) -> bool {
        for link in &mut self.io.links {
            link.note();
        }
        // With the fence in `arm`: whoever goes to sleep sees how far this got, or is seen here and armed for it.
        fence(SeqCst);
        self.t.armed.load(SeqCst) && self.t.arm_rings()
    }

    /// Whether something is left to do.
    fn look_what_is_left(&mut self) -> bool {
        let mut st = self.t.state.lock();
        let (mut more, mut waiting) = (!st.deliver.is_empty(), !st.stalled_deliver.is_empty());
        for (link, tables) in self.io.links.iter().zip(&st.links) {
            let to_say = !(tables.ready.is_empty() && tables.control.is_empty());
            more |= (link.readable || link.unparsed) && !link.stalled;
            more |= link.writable && (link.output.len() > 0 || to_say);
            waiting |= link.stalled || !tables.stalled.is_empty();
        }
        (st.more, st.waiting) = (more, waiting);
        more
    }

    fn deliver(&mut self) -> bool {
        let mut moved = false;
        while self.tally.left > 0 {
            let Some((i, place, uid)) = self.t.state.lock().deliver.pop_front() else {
                break;
            };
            moved = true;
            if !self.open(i, place, uid) || self.read_lent(i, place, uid) {
                continue;
            }
            if self.drain(i, place, uid) {
                self.finish(i, place, uid);
            } else {
                self.t.state.lock().stalled_deliver.push((i, place, uid));
            }
        }
        moved
    }

    /// Shows what is held. False when the sink has left something.
    fn drain(&mut self, i: usize, place: u32, uid: u64) -> bool {
        if self.feed(i, place, uid, &[], false).stalled {
            return false;
        }
        loop {
            let block = {
                let mut st = self.t.state.lock();
                let tables = &mut st.links[i];
                match tables.message(place, uid) {
                    Some(m) if m.held.len > 0 => tables.take_block(place),
                    _ => None,
                }
            };
            let Some((block, lo, hi)) = block else {
                break;
            };
            let fed = self.feed(i, place, uid, &block[lo..hi], true);
            let mut st = self.t.state.lock();
            st.links[i].put_block(place, uid, block, fed.used);
            drop(st);
            if fed.stalled {
                return false;
            }
        }
        // Only now, with nothing held, may more come without credit.
        let mut st = self.t.state.lock();
        let tables = &mut st.links[i];
        if tables.message(place, uid).is_some() {
            tables.grant(place);
        }
        true
    }

    /// Shows the head to a posted receive, once. False when the message is not, or no longer, to be delivered.
    pub(super) fn open(&mut self, i: usize, place: u32, uid: u64) -> bool {
        let mut st = self.t.state.lock();
        let Some(m) = st.links[i].message(place, uid) else {
            return false;
        };
        if m.recv == NONE || m.dropped {
            return false;
        }
        if m.opened {
            return true;
        }
        m.opened = true;
        let (head, head_len, total, recv) = (m.head, m.head_len, m.total, m.recv);
        let Some((id, ours)) = st
            .slots
            .get(recv)
            .filter(|s| !s.cancelled)
            .map(|s| (s.id, s.bytes))
        else {
            return false;
        };
        let calling = Calling::begin(self.t, &mut st, id);
        drop(st);
        let verdict = self.sink.opened(id, &head[..head_len]);
        self.tally.call(0);
        let mut st = self.t.state.lock();
        if verdict == Verdict::Take && ours == total {
            calling.end(&mut st);
            return true;
        }
        let cancelled = st.slot(id).is_none_or(|s| s.cancelled);
        st.take_back(id);
        drop(st);
        if verdict == Verdict::Take && !cancelled {
            let peer = self.t.peers[i];
            self.sink.done(
                id,
                Err(TransportError::Length {
                    peer,
                    theirs: total,
                    ours,
                }),
            );
            self.tally.call(0);
        }
        false
    }

    /// Shows bytes of a message to its receive; a unit that is cut in two is put together.
    fn feed(&mut self, i: usize, place: u32, uid: u64, bytes: &[u8], end: bool) -> Fed {
        feed(
            self.t,
            self.sink,
            &mut self.tally,
            (i, place, uid),
            bytes,
            end,
        )
    }

    /// Ends a message of which everything has come and been consumed.
    pub(super) fn finish(&mut self, i: usize, place: u32, uid: u64) {
        let mut st = self.t.state.lock();
        let tables = &mut st.links[i];
        let Some(m) = tables.message(place, uid) else {
            return;
        };
        if !m.begun || m.got < m.total {
            return;
        }
        if m.dropped {
            tables.remove(place);
            return;
        }
        if m.recv == NONE || !m.opened || m.fed < m.total {
            return;
        }
        let (recv, key, lent) = (m.recv, m.key, m.lent.is_some());
        tables.grant(place);
        if lent {
            tables.control.push_back(Header::control(Kind::Taken, key));
        }
        let Some(id) = st.slots.get(recv).filter(|s| !s.cancelled).map(|s| s.id) else {
            return;
        };
        st.links[i].remove(place);
        st.slots.remove(recv);
        let calling = Calling::begin(self.t, &mut st, id);
        drop(st);
        self.sink.done(id, Ok(()));
        self.tally.call(0);
        drop(calling);
    }

    /// Closes a link: reports what was pending on it, then that the peer is gone.
    pub(super) fn fail(&mut self, i: usize, how: Down) {
        let registry = self.io.poll.registry();
        self.io.links[i].close(registry);
        let peer = self.t.peers[i];
        let error = TransportError::Down {
            peer,
            how: how.clone(),
        };
        let end = {
            let mut st = self.t.state.lock();
            let tables = &mut st.links[i];
            tables.down = Some(how.clone());
            tables.close(how == Down::Left);
            st.slots.end()
        };
        for place in 0..end {
            let mut st = self.t.state.lock();
            let Some(slot) = st.slots.get(place).filter(|s| s.link == i && !s.cancelled) else {
                continue;
            };
            // A whole message that came before the goodbye will be delivered.
            if slot.dir == Dir::Recv && st.links[i].is_whole(slot.message) {
                continue;
            }
            let (id, out) = (slot.id, slot.out());
            st.slots.remove(place);
            if let Some(out) = out {
                // Whoever is at the other end may be reading still.
                self.t.recall(&mut st, out);
            }
            let calling = Calling::begin(self.t, &mut st, id);
            drop(st);
            self.sink.done(id, Err(error.clone()));
            self.tally.call(0);
            drop(calling);
        }
        self.sink.down(peer, how);
        self.tally.call(0);
    }
}

/// Shows bytes of a message to its receive; a unit that is cut in two is put together.
pub(super) fn feed(
    t: &TcpTransport,
    sink: &mut dyn Sink,
    tally: &mut Tally,
    (i, place, uid): (usize, u32, u64),
    bytes: &[u8],
    end: bool,
) -> Fed {
    let all = Fed {
        used: bytes.len(),
        stalled: false,
    };
    let mut st = t.state.lock();
    let Some(m) = st.links[i].message(place, uid) else {
        return all;
    };
    let (recv, mut at, mut carry) = (m.recv, m.fed, m.carry);
    let Some(slot) = st.slots.get(recv) else {
        return all;
    };
    let (id, unit) = (slot.id, slot.unit);
    if slot.cancelled {
        st.take_back(id);
        return all;
    }
    let whole = unit as usize;
    let calling = Calling::begin(t, &mut st, id);
    drop(st);
    let mut pos = 0;
    if carry.len > 0 {
        pos = bytes.len().min(whole - carry.len);
        carry.bytes[carry.len..carry.len + pos].copy_from_slice(&bytes[..pos]);
        carry.len += pos;
        if carry.len == whole && show(sink, tally, id, &carry.bytes[..whole], unit, &mut at) > 0 {
            carry.len = 0;
        }
    }
    if carry.len == 0 {
        pos += show(sink, tally, id, &bytes[pos..], unit, &mut at);
        if end && bytes.len() - pos < whole {
            let rest = &bytes[pos..];
            carry.bytes[..rest.len()].copy_from_slice(rest);
            carry.len = rest.len();
            pos = bytes.len();
        }
    }
    let stalled = carry.len == whole || (carry.len == 0 && bytes.len() - pos >= whole);
    let mut st = t.state.lock();
    if let Some(m) = st.links[i].message(place, uid) {
        (m.fed, m.carry) = (at, carry);
    }
    calling.end(&mut st);
    Fed { used: pos, stalled }
}

/// Offers bytes again and again until all are consumed or the sink takes no more of them.
pub(super) fn show(
    sink: &mut dyn Sink,
    tally: &mut Tally,
    id: XferId,
    bytes: &[u8],
    unit: u32,
    at: &mut u64,
) -> usize {
    let mut pos = 0;
    while bytes.len() - pos >= unit as usize {
        let mut piece = Piece::new(&bytes[pos..], unit);
        sink.incoming(id, *at, &mut piece);
        let used = piece.used();
        if used == 0 {
            break;
        }
        tally.call(used);
        pos += used;
        *at += used as u64;
    }
    pos
}
