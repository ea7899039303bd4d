//! One call of `progress`: early data to new receives, then every link in turn, reading before writing.

use super::{
    Calling, Counts, Io, TcpTransport,
    link::{Current, Link},
    state::{Job, NONE, POSTED_MAX, State},
};
use crate::{
    frame::{COST, HEADER, Header, Kind, PAYLOAD_MAX, Violation},
    pieces::{ABORTED, Piece, Room, slot_of},
};
use gaggle_core::{Dir, Down, HEAD_MAX, Sink, TransportError, Verdict, XferId};
use parking_lot::MutexGuard;
use std::{sync::atomic::Ordering::Relaxed, time::Duration};

/// What a callback without bytes counts towards the budget.
const CALL: usize = 64;
/// Less than this of credit is not worth a frame, unless it ends a message.
const WORTH: u64 = 4096;

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
    fn call(&mut self, bytes: usize) {
        self.calls += 1;
        self.left = self.left.saturating_sub(bytes + CALL);
    }
}

/// Why parsing has stopped.
enum Stop {
    /// More has to come.
    Hungry,
    /// The sink has not taken what it was shown.
    Stalled,
    /// The link is closed.
    Gone,
}

/// What came of showing bytes to the sink.
struct Fed {
    used: usize,
    stalled: bool,
}

impl Run<'_> {
    pub(super) fn progress(&mut self) -> u64 {
        {
            let mut st = self.t.state.lock();
            st.dirty = false;
            let State {
                deliver,
                stalled_deliver,
                links,
                ..
            } = &mut *st;
            deliver.extend(stalled_deliver.drain(..));
            for tables in links {
                tables.ready.extend(tables.stalled.drain(..));
            }
        }
        for link in &mut self.io.links {
            link.stalled = false;
        }
        self.poll(Duration::ZERO);
        let n = self.io.links.len();
        let mut moved = true;
        while moved && self.tally.left > 0 {
            moved = self.deliver();
            self.io.turn = (self.io.turn + 1) % n.max(1);
            for k in 0..n {
                let i = (self.io.turn + k) % n;
                moved |= self.read_link(i);
                moved |= self.write_link(i);
                if self.tally.left == 0 {
                    break;
                }
            }
        }
        self.note_what_is_left();
        self.tally.calls
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
            return;
        }
        for event in events.iter() {
            let Some(link) = links.get_mut(event.token().0).filter(|l| !l.closed) else {
                continue;
            };
            let end = event.is_read_closed() || event.is_write_closed() || event.is_error();
            link.ending |= end;
            link.readable |= event.is_readable() || end;
            link.writable |= event.is_writable();
        }
    }

    fn note_what_is_left(&mut self) {
        let mut st = self.t.state.lock();
        let (mut more, mut waiting) = (!st.deliver.is_empty(), !st.stalled_deliver.is_empty());
        for (link, tables) in self.io.links.iter().zip(&st.links) {
            let to_say = !(tables.ready.is_empty() && tables.control.is_empty());
            more |= (link.readable || link.unparsed) && !link.stalled;
            more |= link.writable && (link.output.len() > 0 || to_say);
            waiting |= link.stalled || !tables.stalled.is_empty();
        }
        (st.more, st.waiting) = (more, waiting);
    }

    // ---- early data to receives that were posted later

    fn deliver(&mut self) -> bool {
        let mut moved = false;
        while self.tally.left > 0 {
            let Some((i, place, uid)) = self.t.state.lock().deliver.pop_front() else {
                break;
            };
            moved = true;
            if !self.open(i, place, uid) {
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
    fn open(&mut self, i: usize, place: u32, uid: u64) -> bool {
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
    fn finish(&mut self, i: usize, place: u32, uid: u64) {
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
        let recv = m.recv;
        tables.grant(place);
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

    // ---- reading

    fn read_link(&mut self, i: usize) -> bool {
        let mut moved = false;
        while self.tally.left > 0 {
            match self.parse(i) {
                Ok(Stop::Hungry) => self.io.links[i].unparsed = false,
                Ok(Stop::Stalled) => {
                    self.io.links[i].stalled = true;
                    break;
                }
                Ok(Stop::Gone) => break,
                Err(violation) => {
                    let why = format!("{} broke the protocol: {violation}", self.t.peers[i]);
                    self.fail(i, Down::Lost(why));
                    return true;
                }
            }
            let link = &mut self.io.links[i];
            if !link.readable {
                if let Some(why) = link.broken.take() {
                    let why = format!("connection to {} broke: {why}", self.t.peers[i]);
                    self.fail(i, Down::Lost(why));
                    return true;
                }
                break;
            }
            match link.read() {
                Ok(Some(0)) => {
                    let cut = link.frame.is_some() || link.input.len() > 0;
                    let peer = self.t.peers[i];
                    let middle = if cut { " in mid-frame" } else { "" };
                    self.fail(
                        i,
                        Down::Lost(format!("connection closed by {peer}{middle}")),
                    );
                    return true;
                }
                Ok(Some(n)) => {
                    moved = true;
                    self.tally.left = self.tally.left.saturating_sub(n);
                }
                Ok(None) => {}
                Err(e) => {
                    let why = format!("connection to {} broke: {e}", self.t.peers[i]);
                    self.fail(i, Down::Lost(why));
                    return true;
                }
            }
        }
        moved
    }

    /// Handles whatever is complete in the input.
    fn parse(&mut self, i: usize) -> Result<Stop, Violation> {
        loop {
            let link = &mut self.io.links[i];
            if link.closed {
                return Ok(Stop::Gone);
            }
            if let Some(current) = link.frame {
                if let Some(stop) = self.payload(i, current) {
                    return Ok(stop);
                }
                continue;
            }
            let Some((header, rest)) = link.input.full().split_first_chunk::<HEADER>() else {
                return Ok(Stop::Hungry);
            };
            let h = Header::parse(header)?;
            let mut head = [0; HEAD_MAX];
            let len = usize::from(h.head_len);
            let Some(bytes) = rest.get(..len) else {
                return Ok(Stop::Hungry);
            };
            head[..len].copy_from_slice(bytes);
            link.input.take(HEADER + len);
            let counts = &self.t.counts;
            if h.kind == Kind::Data {
                Counts::add(&counts.header_received, HEADER + len);
                Counts::add(&counts.frames_received, 1);
            } else {
                Counts::add(&counts.control_received, HEADER);
            }
            match h.kind {
                Kind::Data => self.on_data(i, &h, &head)?,
                Kind::Grant => self.t.state.lock().on_grant(i, h.key)?,
                Kind::Abort => self.on_abort(i, &h)?,
                Kind::Goodbye => self.fail(i, Down::Left),
            }
        }
    }

    fn on_data(&mut self, i: usize, h: &Header, head: &[u8; HEAD_MAX]) -> Result<(), Violation> {
        let mut st = self.t.state.lock();
        let uid = st.next();
        let tables = &mut st.links[i];
        let known = tables.keys.get(&h.key).copied();
        if known.is_none() && !h.first {
            return Err(Violation::NotBegun);
        }
        let place = known.unwrap_or_else(|| tables.add(uid, h.key));
        let dropping = tables.dropping;
        let Some(m) = tables.messages.get_mut(place) else {
            return Ok(());
        };
        let uid = m.uid;
        if h.first {
            if m.begun {
                return Err(Violation::BegunTwice);
            }
            if m.dropped && dropping >= POSTED_MAX {
                return Err(Violation::TooMany("unfinished messages"));
            }
            (m.begun, m.total, m.head) = (true, h.total, *head);
            m.head_len = usize::from(h.head_len);
        } else if !m.begun {
            return Err(Violation::NotBegun);
        } else if m.got != h.offset || m.total != h.total {
            return Err(Violation::Order {
                offset: h.offset,
                total: h.total,
                got: m.got,
                was: m.total,
            });
        }
        if h.granted && !m.grant_sent {
            return Err(Violation::NotGranted);
        }
        let (early, dropped) = (m.recv == NONE && !m.dropped, m.dropped);
        tables.dropping += usize::from(h.first && dropped);
        let cost = u64::from(h.len) + if h.first { COST } else { 0 };
        tables.charge(place, cost)?;
        drop(st);
        let current = Current {
            place,
            uid,
            left: h.len as usize,
        };
        if h.first && early {
            self.announce(i, place, uid);
        } else if h.first && !dropped {
            self.open(i, place, uid);
        }
        if current.left > 0 {
            self.io.links[i].frame = Some(current);
        } else {
            self.finish(i, place, uid);
        }
        Ok(())
    }

    /// A message that nobody has posted a receive for.
    fn announce(&mut self, i: usize, place: u32, uid: u64) {
        let (key, head, len) = {
            let mut st = self.t.state.lock();
            match st.links[i].message(place, uid) {
                Some(m) => (m.key, m.head, m.head_len),
                None => return,
            }
        };
        Counts::add(&self.t.counts.early, 1);
        let verdict = self.sink.unexpected(self.t.peers[i], key, &head[..len]);
        self.tally.call(0);
        if verdict == Verdict::Take {
            return;
        }
        let mut st = self.t.state.lock();
        let tables = &mut st.links[i];
        // A receive that was posted in the meantime has the last word.
        if tables.message(place, uid).is_some_and(|m| m.recv == NONE) {
            tables.discard(place);
            let open = tables.dropping;
            drop(st);
            if open > POSTED_MAX {
                let why = format!(
                    "{} broke the protocol: too many unfinished messages",
                    self.t.peers[i]
                );
                self.fail(i, Down::Lost(why));
            }
        }
    }

    /// Moves on in a data frame. `None`: go on parsing.
    fn payload(&mut self, i: usize, mut current: Current) -> Option<Stop> {
        let Current { place, uid, left } = current;
        let avail = left.min(self.io.links[i].input.len());
        if avail == 0 {
            return Some(Stop::Hungry);
        }
        let direct = {
            let bytes = &self.io.links[i].input.full()[..avail];
            let mut st = self.t.state.lock();
            let tables = &mut st.links[i];
            match tables.message(place, uid) {
                Some(m) if m.dropped => {
                    m.got += avail as u64;
                    false
                }
                Some(m) if m.recv == NONE || !m.opened || m.held.len > 0 => {
                    tables.hold(place, bytes);
                    false
                }
                Some(_) => true,
                None => false,
            }
        };
        let mut fed = Fed {
            used: avail,
            stalled: false,
        };
        if direct {
            let bytes = &self.io.links[i].input.full()[..avail];
            fed = feed(
                self.t,
                self.sink,
                &mut self.tally,
                (i, place, uid),
                bytes,
                avail == left,
            );
            let mut st = self.t.state.lock();
            if let Some(m) = st.links[i].message(place, uid) {
                m.got += fed.used as u64;
            }
            if fed.stalled && fed.used == left {
                // A cut unit that was put together waits by itself.
                st.stalled_deliver.push((i, place, uid));
                fed.stalled = false;
            }
        }
        Counts::add(&self.t.counts.payload_received, fed.used);
        let link = &mut self.io.links[i];
        link.input.take(fed.used);
        current.left -= fed.used;
        link.frame = (current.left > 0).then_some(current);
        if current.left == 0 {
            self.finish(i, place, uid);
            None
        } else if fed.stalled {
            Some(Stop::Stalled)
        } else {
            Some(Stop::Hungry)
        }
    }

    fn on_abort(&mut self, i: usize, h: &Header) -> Result<(), Violation> {
        let mut st = self.t.state.lock();
        let tables = &mut st.links[i];
        let place = tables.keys.get(&h.key).copied();
        let begun = |p: &u32| tables.messages.get(*p).is_some_and(|m| m.begun);
        let Some(place) = place.filter(begun) else {
            return Err(Violation::NotBegun);
        };
        let recv = tables.messages.get(place).map_or(NONE, |m| m.recv);
        tables.grant(place);
        tables.remove(place);
        let Some(slot) = st.slots.remove(recv).filter(|s| !s.cancelled) else {
            return Ok(());
        };
        let calling = Calling::begin(self.t, &mut st, slot.id);
        drop(st);
        let peer = self.t.peers[i];
        self.sink.done(
            slot.id,
            Err(TransportError::Misuse {
                peer,
                what: ABORTED,
            }),
        );
        self.tally.call(0);
        drop(calling);
        Ok(())
    }

    // ---- writing

    pub(super) fn write_link(&mut self, i: usize) -> bool {
        let mut moved = false;
        loop {
            while self.io.links[i].wants_frame() && self.frame(i) {}
            let link = &mut self.io.links[i];
            if link.output.len() == 0 || !link.writable {
                return moved;
            }
            let n = link.write();
            self.tally.left = self.tally.left.saturating_sub(n);
            moved |= n > 0 || link.broken.is_some();
            if n == 0 || self.tally.left == 0 {
                return moved;
            }
        }
    }

    /// Appends one frame to the output. False when there is none.
    fn frame(&mut self, i: usize) -> bool {
        let mut st = self.t.state.lock();
        if let Some(h) = st.links[i].control.pop_front() {
            drop(st);
            self.io.links[i].output.push(&h.to_bytes());
            Counts::add(&self.t.counts.control_sent, HEADER);
            return true;
        }
        while let Some(job) = st.links[i].ready.pop() {
            let Some(part) = next_part(&mut st, i, job) else {
                continue;
            };
            if self.data_frame(i, job, &part, st) {
                return true;
            }
            st = self.t.state.lock();
        }
        false
    }

    /// Lets the sink fill in a frame and appends it. False when the sink had nothing.
    fn data_frame(
        &mut self,
        i: usize,
        job: Job,
        part: &Part,
        mut st: MutexGuard<'_, State>,
    ) -> bool {
        let calling = Calling::begin(self.t, &mut st, job.id);
        drop(st);
        let output = &mut self.io.links[i].output;
        let start = output.hi;
        let head = if part.first { part.head_len } else { 0 };
        let body = start + HEADER + head;
        let mut filled = 0;
        if part.room > 0 {
            let mut room = Room::new(&mut output.bytes[body..body + part.room], part.unit);
            self.sink.outgoing(job.id, part.at, &mut room);
            filled = room.filled();
        }
        let mut st = self.t.state.lock();
        let Some(slot) = st.slot(job.id).filter(|s| !s.cancelled) else {
            calling.end(&mut st);
            return true;
        };
        if filled == 0 && part.total > 0 {
            calling.end(&mut st);
            st.links[i].stalled.push(job);
            return false;
        }
        let h = Header {
            kind: Kind::Data,
            first: part.first,
            granted: slot.granted,
            head_len: head as u8,
            key: slot.key,
            len: filled as u32,
            offset: part.at,
            total: part.total,
        };
        output.push(&h.to_bytes());
        output.push(&part.head[..head]);
        output.hi += filled;
        let counts = &self.t.counts;
        Counts::add(&counts.header_sent, HEADER + head);
        Counts::add(&counts.payload_sent, filled);
        Counts::add(&counts.frames_sent, 1);
        slot.begun = true;
        slot.at += filled as u64;
        let mut cost = 0;
        if !slot.granted {
            cost = filled as u64 + if part.first { COST } else { 0 };
            slot.charged += cost;
        }
        let over = slot.at == slot.bytes;
        let (key, charged, granted) = (slot.key, slot.charged, slot.granted);
        let tables = &mut st.links[i];
        tables.credit -= cost;
        if part.room > 0 {
            self.tally.call(filled);
        }
        if !over {
            tables.ready.push(job);
            calling.end(&mut st);
            return true;
        }
        tables.sends.remove(&key);
        if !granted {
            tables.unsettled.insert(key, charged);
        }
        st.slots.remove(slot_of(job.id));
        drop(st);
        self.sink.done(job.id, Ok(()));
        self.tally.call(0);
        drop(calling);
        true
    }

    // ---- the end of a link

    /// Closes a link: reports what was pending on it, then that the peer is gone.
    fn fail(&mut self, i: usize, how: Down) {
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
            let id = slot.id;
            st.slots.remove(place);
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

/// What the next frame of a send may hold.
struct Part {
    at: u64,
    total: u64,
    room: usize,
    unit: u32,
    first: bool,
    head: [u8; HEAD_MAX],
    head_len: usize,
}

/// `None` where the job is void or has to wait.
fn next_part(st: &mut State, i: usize, job: Job) -> Option<Part> {
    let slot = st
        .slots
        .get(slot_of(job.id))
        .filter(|s| s.id == job.id && s.job == job.order.0 && !s.cancelled)?;
    let left = slot.bytes - slot.at;
    let mut room = left.min(PAYLOAD_MAX as u64);
    if !slot.granted {
        let cost = if slot.begun { 0 } else { COST };
        let spare = st.links[i].credit.checked_sub(cost);
        let enough = spare.is_some_and(|s| s >= left.min(WORTH));
        if !enough {
            st.links[i].blocked.push(job);
            return None;
        }
        room = room.min(spare.unwrap_or(0));
    }
    let room = room - room % u64::from(slot.unit);
    Some(Part {
        at: slot.at,
        total: slot.bytes,
        room: room as usize,
        unit: slot.unit,
        first: !slot.begun,
        head: slot.head,
        head_len: slot.head_len,
    })
}

fn feed(
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
fn show(
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

impl Link {
    /// Whether everything has been handed to the kernel.
    pub(super) fn is_flushed(&self) -> bool {
        self.closed || self.broken.is_some() || self.output.len() == 0
    }
}

impl Counts {
    fn add(counter: &std::sync::atomic::AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Relaxed);
    }
}
