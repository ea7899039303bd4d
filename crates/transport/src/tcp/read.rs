//! Reading: frames out of the input, and what they mean.

use super::{
    Calling, Counts,
    link::Current,
    run::{Fed, Run, feed, show},
    state::{Message, NONE, POSTED_MAX, Slot, State},
};
use crate::frame::{COST, HEADER, Header, Kind, LENT, Violation};
use gaggle_core::{Down, HEAD_MAX, TransportError, Verdict};
use parking_lot::MutexGuard;

/// Why parsing has stopped.
enum Stop {
    /// More has to come.
    Hungry,
    /// The sink has not taken what it was shown.
    Stalled,
    /// The link is closed.
    Gone,
}

impl Run<'_> {
    pub(super) fn read_link(&mut self, i: usize) -> bool {
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
            moved |= self.read_once(i);
        }
        moved
    }

    /// Reads once from a link that is open. Whether something has come, or it has ended.
    pub(super) fn read_once(&mut self, i: usize) -> bool {
        let link = &mut self.io.links[i];
        let why = match link.read() {
            Ok(None) => return false,
            Ok(Some(0)) => {
                let cut = link.frame.is_some() || link.input.len() > 0;
                let middle = if cut { " in mid-frame" } else { "" };
                format!("connection closed by {}{middle}", self.t.peers[i])
            }
            Ok(Some(n)) => {
                self.tally.left = self.tally.left.saturating_sub(n);
                return true;
            }
            Err(e) => format!("connection to {} broke: {e}", self.t.peers[i]),
        };
        self.fail(i, Down::Lost(why));
        true
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
            if link.input.len() < HEADER {
                return Ok(Stop::Hungry);
            }
            let front = link.input.front();
            let (header, rest) = front.split_at(HEADER);
            let Some(h) = header.first_chunk().map(Header::parse).transpose()? else {
                return Ok(Stop::Hungry);
            };
            let mut head = [0; HEAD_MAX];
            let len = usize::from(h.head_len);
            if link.input.len() < HEADER + len {
                return Ok(Stop::Hungry);
            }
            head[..len].copy_from_slice(&rest[..len]);
            link.input.take(HEADER + len);
            let counts = &self.t.counts;
            if h.kind == Kind::Data {
                Counts::add(&counts.header_received, HEADER + len);
                Counts::add(&counts.frames_received, 1);
            } else {
                Counts::add(&counts.control_received, HEADER);
            }
            match h.kind {
                Kind::Data if self.is_short(i, &h) && self.short(i, &h, &head[..len]) => {}
                Kind::Data => self.on_data(i, &h, &head)?,
                Kind::Grant => self.t.state.lock().on_grant(i, h.key)?,
                Kind::Abort => self.on_abort(i, &h)?,
                Kind::Taken => self.on_taken(i, h.key),
                Kind::Recall => self.on_recall(i, h.key),
                Kind::Goodbye => self.fail(i, Down::Left),
            }
        }
    }

    /// Whether a frame is a whole message that is here with all its bytes.
    fn is_short(&self, i: usize, h: &Header) -> bool {
        let here = self.io.links[i].input.len();
        h.first && u64::from(h.len) == h.total && h.len as usize <= here
    }

    /// Delivers a short message whose receive is posted, in one go. False: it is not as simple as that, and nothing has been done.
    fn short(&mut self, i: usize, h: &Header, head: &[u8]) -> bool {
        let t = self.t;
        let n = h.len as usize;
        let mut st = t.state.lock();
        let tables = &mut st.links[i];
        let Some(place) = tables.keys.get(&h.key).copied() else {
            return false;
        };
        let expected = |m: &&mut Message| m.recv != NONE && m.grant_sent && !m.begun && !m.dropped;
        let Some(m) = tables.messages.get_mut(place).filter(expected) else {
            return false;
        };
        let (recv, uid) = (m.recv, m.uid);
        let fits = |s: &&mut Slot| s.bytes == h.total && !s.cancelled;
        let Some((id, unit)) = st.slots.get_mut(recv).filter(fits).map(|s| (s.id, s.unit)) else {
            return false;
        };
        let calling = Calling::begin(t, &mut st, id);
        drop(st);
        let wanted = self.sink.opened(id, head) == Verdict::Take;
        self.tally.call(0);
        let mut fed = 0;
        if wanted && n > 0 {
            let bytes = &self.io.links[i].input.full()[..n];
            let mut at = 0;
            fed = show(self.sink, &mut self.tally, id, bytes, unit, &mut at);
        }
        let mut st = t.state.lock();
        let whole = wanted && fed == n && st.slot(id).is_some_and(|s| !s.cancelled);
        if whole {
            st.links[i].remove(place);
            st.slots.remove(recv);
            drop(st);
            self.sink.done(id, Ok(()));
            self.tally.call(0);
            drop(calling);
        } else {
            // As if it had come like a longer one.
            if let Some(m) = st.links[i].message(place, uid) {
                (m.begun, m.opened, m.total) = (true, true, h.total);
                (m.fed, m.got) = (fed as u64, if wanted { fed as u64 } else { h.total });
            }
            if !wanted {
                st.take_back(id);
            }
            calling.end(&mut st);
        }
        let taken = if wanted { fed } else { n };
        Counts::add(&t.counts.payload_received, taken);
        let link = &mut self.io.links[i];
        link.input.take(taken);
        link.consumed();
        link.frame = (taken < n).then_some(Current {
            place,
            uid,
            left: n - taken,
        });
        true
    }

    fn on_data(&mut self, i: usize, h: &Header, head: &[u8; HEAD_MAX]) -> Result<(), Violation> {
        let lent = match h.lent {
            true => Some(self.t.borrowed(i, h, head).ok_or(Violation::Lent)?),
            false => None,
        };
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
            if lent.is_some() {
                m.head_len -= LENT;
                (m.lent, m.got) = (lent, h.total);
            }
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
        if lent.is_some() {
            // As its sender counts it: whole, whether it is read or not.
            Counts::add(&self.t.counts.lent_received, h.total as usize);
        }
        if lent.is_some() && dropped {
            tables
                .control
                .push_back(Header::control(Kind::Taken, h.key));
        }
        drop(st);
        let current = Current {
            place,
            uid,
            left: h.len as usize,
        };
        if h.first && early {
            self.announce(i, place, uid);
        } else if h.first && !dropped && self.open(i, place, uid) && lent.is_some() {
            // Behind those that came before it and are not read yet.
            let mut st = self.t.state.lock();
            if st.deliver.is_empty() {
                drop(st);
                self.read_lent(i, place, uid);
            } else {
                st.deliver.push_back((i, place, uid));
            }
            return Ok(());
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
        link.consumed();
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
        let st = self.t.state.lock();
        let tables = &st.links[i];
        let place = tables.keys.get(&h.key).copied();
        let begun = |p: &u32| tables.messages.get(*p).is_some_and(|m| m.begun);
        let Some(place) = place.filter(begun) else {
            return Err(Violation::NotBegun);
        };
        self.aborted(i, place, st);
        Ok(())
    }

    /// The sender has ended a message that had begun.
    pub(super) fn aborted(&mut self, i: usize, place: u32, mut st: MutexGuard<'_, State>) {
        let tables = &mut st.links[i];
        let recv = tables.messages.get(place).map_or(NONE, |m| m.recv);
        tables.grant(place);
        tables.remove(place);
        let Some(slot) = st.slots.remove(recv).filter(|s| !s.cancelled) else {
            return;
        };
        let calling = Calling::begin(self.t, &mut st, slot.id);
        drop(st);
        let peer = self.t.peers[i];
        self.sink
            .done(slot.id, Err(TransportError::Aborted { peer }));
        self.tally.call(0);
        drop(calling);
    }
}
