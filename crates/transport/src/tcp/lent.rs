//! Messages that stay where they are, in the sender's heap, which the receiver has mapped: only the place is sent.
//!
//! The receiver copies the bytes out where the sink wants them, shows them tile by tile, or leaves them to a sink that reads them there in its own time.
//! A sender that takes its memory back marks what it had lent as given up, for all it is reading still to see: before a message is reported as whole, its receiver looks for such a mark, so that nothing counts that was read too late.

use super::{
    TcpTransport, Transfer,
    run::Run,
    state::{NONE, Slot, State},
};
use crate::frame::{EAGER, Header, LENT};
use gaggle_core::{
    Class, Down, HEAD_MAX, Inlet, MsgKey, OpId, Rank, SharedMemory, XferId, descriptor::stable_hash,
};
use std::sync::Arc;

/// Shorter messages are cheaper to copy than to ask back.
const LEAST: u64 = 32 << 10;
/// Bytes that are shown at a time.
const TILE: usize = 16 << 10;

/// What is mapped of the peers' memory.
pub(super) struct Heaps(pub(super) Option<Arc<dyn SharedMemory>>);

impl std::fmt::Debug for Heaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranks = self.0.as_ref().map(|heaps| heaps.ranks());
        f.debug_tuple("Heaps").field(&ranks).finish()
    }
}

/// Where the bytes of a message are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lent {
    /// In the sender's heap.
    place: u64,
    /// How many operations the sender had given up before.
    since: u64,
}

impl Lent {
    pub(super) fn to_bytes(self) -> [u8; LENT] {
        let mut b = [0; LENT];
        b[..8].copy_from_slice(&self.place.to_le_bytes());
        b[8..].copy_from_slice(&self.since.to_le_bytes());
        b
    }

    fn of_bytes(b: &[u8]) -> Option<Lent> {
        let (words, rest) = b.as_chunks::<8>();
        let [place, since] = *words else {
            return None;
        };
        rest.is_empty().then_some(Lent {
            place: u64::from_le_bytes(place),
            since: u64::from_le_bytes(since),
        })
    }
}

/// So many messages of one operation on one link are given up by their own names; then all of them by one, so that the sender's list of names, which is not long, serves many operations.
const BY_NAME: u32 = 8;

/// A message that its receiver may be reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct Out {
    link: usize,
    key: MsgKey,
    lent: Lent,
}

impl Slot {
    /// What of it is out of this rank's hands.
    pub(super) fn out(&self) -> Option<Out> {
        let (link, key) = (self.link, self.key);
        let lent = self.lent.filter(|_| self.is_out())?;
        Some(Out { link, key, lent })
    }
}

/// What sender and receiver call a message where the sender gives it up; without a tag, all the messages of the operation on the link.
fn name(op: OpId, tag: Option<u32>, to: Rank) -> u64 {
    let all = [u8::from(tag.is_none())];
    stable_hash(&[
        b"lent",
        &op.group.to_le_bytes(),
        &op.lane.to_le_bytes(),
        &[op.class as u8],
        &op.seq.to_le_bytes(),
        &to.0.to_le_bytes(),
        &all,
        &tag.unwrap_or(0).to_le_bytes(),
    ])
}

/// What was given up last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recalled {
    op: OpId,
    link: usize,
    /// How many messages.
    n: u32,
    /// How many names this rank had given up when the operation itself was.
    all: Option<u64>,
}

impl TcpTransport {
    /// Messages may stay in heaps that are mapped on both sides.
    pub(crate) fn lend_through(&mut self, heaps: Arc<dyn SharedMemory>) {
        self.heaps = Heaps(Some(heaps));
    }

    /// Where a send's bytes are, if they may stay there.
    pub(super) fn lend(&self, t: &Transfer<'_>) -> Option<Lent> {
        let (loan, heaps) = (t.loan?, self.heaps.0.as_deref()?);
        // Of a tagged message that fits the credit the sender is rid at once.
        let least = match t.key.op.class {
            Class::Tagged => LEAST.max(EAGER),
            _ => LEAST,
        };
        if t.bytes < least || t.head.len() + LENT > HEAD_MAX {
            return None;
        }
        heaps.ranks().binary_search(&t.peer).ok()?;
        Some(Lent {
            place: heaps.place(loan.start(), loan.len())?,
            since: heaps.given_up(self.me),
        })
    }

    /// A message that its sink has left where it lies has been read.
    pub(super) fn was_read(&self, id: XferId) {
        let mut st = self.state.lock();
        let Some(&mut Slot { link, message, .. }) = st.slot(id) else {
            return;
        };
        if let Some(m) = st.links[link].messages.get_mut(message)
            && std::mem::take(&mut m.left)
        {
            m.fed = m.total;
            let uid = m.uid;
            st.deliver.push_back((link, message, uid));
            st.dirty = true;
        }
    }

    /// Where the bytes of a lent message that has come are.
    pub(super) fn borrowed(&self, i: usize, h: &Header, head: &[u8; HEAD_MAX]) -> Option<Lent> {
        let heaps = self.heaps.0.as_deref()?;
        heaps.ranks().binary_search(&self.peers[i]).ok()?;
        let end = usize::from(h.head_len);
        Lent::of_bytes(head.get(end.checked_sub(LENT)?..end)?)
    }

    /// Tells a peer that what was lent to it counts for nothing any more.
    pub(super) fn recall(&self, st: &mut State, out: Out) {
        let Some(heaps) = &self.heaps.0 else {
            return;
        };
        let Out { link, key, lent } = out;
        let peer = self.peers[link];
        let last = st.recalled.filter(|r| (r.op, r.link) == (key.op, link));
        let mut now = last.unwrap_or(Recalled {
            op: key.op,
            link,
            n: 0,
            all: None,
        });
        now.n = now.n.saturating_add(1);
        if now.n <= BY_NAME {
            heaps.give_up(name(key.op, Some(key.tag), peer));
        } else if now.all.is_none_or(|all| lent.since > all) {
            now.all = Some(heaps.given_up(self.me));
            heaps.give_up(name(key.op, None, peer));
        }
        st.recalled = Some(now);
    }
}

/// Dropped without a goodbye: what was lent may be filled with something else from now on.
impl Drop for TcpTransport {
    fn drop(&mut self) {
        let mut st = self.state.lock();
        for place in 0..st.slots.end() {
            if let Some(out) = st.slots.get(place).and_then(Slot::out) {
                self.recall(&mut st, out);
            }
        }
    }
}

/// What has become of a lent message.
enum Read {
    Whole,
    /// The sink has left something.
    Stalled,
    /// There is no more time for it now.
    Later,
    /// The sender has taken it back.
    Recalled,
    /// Nobody wants it any more.
    Gone,
    /// The sink reads it where it lies, and will say when it has.
    Left,
    /// It lies nowhere.
    Nowhere,
}

impl Run<'_> {
    /// Reads a lent message that is open, and ends it if it is whole. False where it is none.
    pub(super) fn read_lent(&mut self, i: usize, place: u32, uid: u64) -> bool {
        let mut st = self.t.state.lock();
        let found = st.links[i].message(place, uid).and_then(|m| m.lent);
        let (Some(lent), Some(heaps)) = (found, self.t.heaps.0.clone()) else {
            return false;
        };
        drop(st);
        match self.show_lent(&*heaps, i, (place, uid), lent) {
            Read::Whole => self.finish(i, place, uid),
            Read::Stalled => self.t.state.lock().stalled_deliver.push((i, place, uid)),
            Read::Later => self.t.state.lock().deliver.push_front((i, place, uid)),
            // Its recall, or the end of the link, is on the way.
            Read::Recalled | Read::Gone | Read::Left => {}
            Read::Nowhere => {
                let peer = self.t.peers[i];
                let why = format!("{peer} has lent what is not in its heap");
                self.fail(i, Down::Lost(why));
            }
        }
        true
    }

    fn show_lent(
        &mut self,
        heaps: &dyn SharedMemory,
        i: usize,
        (place, uid): (u32, u64),
        lent: Lent,
    ) -> Read {
        let peer = self.t.peers[i];
        loop {
            let mut st = self.t.state.lock();
            let Some(m) = st.links[i].message(place, uid) else {
                return Read::Gone;
            };
            let (recv, at, left, key) = (m.recv, m.fed, m.total - m.fed, m.key);
            if recv == NONE || m.dropped {
                return Read::Gone;
            }
            if m.left {
                return Read::Left;
            }
            let Some((id, unit)) = st
                .slots
                .get(recv)
                .filter(|s| !s.cancelled)
                .map(|s| (s.id, s.unit))
            else {
                return Read::Gone;
            };
            if left == 0 {
                drop(st);
                // Whatever was read is ordered before this look.
                let gone = [Some(key.tag), None]
                    .iter()
                    .any(|tag| heaps.has_given_up(peer, name(key.op, *tag, self.t.me), lent.since));
                return if gone { Read::Recalled } else { Read::Whole };
            }
            if self.tally.left == 0 {
                return Read::Later;
            }
            let calling = super::Calling::begin(self.t, &mut st, id);
            drop(st);
            let most = (self.tally.left.max(TILE) as u64).min(left);
            let Some(from) = lent.place.checked_add(at) else {
                return Read::Nowhere;
            };
            let mut piece = LentPiece {
                heaps,
                peer,
                from,
                // Whole units: all of it is.
                left: if most < left {
                    most - most % u64::from(unit)
                } else {
                    left
                },
                tile: [0; TILE],
                most: TILE - TILE % unit as usize,
                begun: false,
                shown: 0..0,
                nowhere: false,
                whole: (at == 0).then_some(left),
                stays: false,
            };
            self.sink.incoming(id, at, &mut piece);
            let used = piece.from - from;
            let (nowhere, stays) = (piece.nowhere, piece.stays);
            let mut st = self.t.state.lock();
            if let Some(m) = st.links[i].message(place, uid) {
                m.fed = at + used;
                m.left = stays;
            }
            calling.end(&mut st);
            drop(st);
            self.tally.call(used as usize);
            if nowhere {
                return Read::Nowhere;
            }
            if stays {
                return Read::Left;
            }
            if used == 0 {
                return Read::Stalled;
            }
        }
    }

    /// The peer has done with a lent message.
    pub(super) fn on_taken(&mut self, i: usize, key: MsgKey) {
        let mut st = self.t.state.lock();
        let place = st.links[i].sends.get(&key).copied();
        let found = place.and_then(|place| st.slots.get(place));
        // It may have been taken back.
        let Some(slot) = found.filter(|s| s.is_out() && !s.cancelled) else {
            return;
        };
        let (id, granted, charged) = (slot.id, slot.granted, slot.charged);
        let tables = &mut st.links[i];
        tables.sends.remove(&key);
        if !granted {
            tables.unsettled.insert(key, charged);
        }
        st.slots.remove(crate::pieces::slot_of(id));
        let calling = super::Calling::begin(self.t, &mut st, id);
        drop(st);
        self.sink.done(id, Ok(()));
        self.tally.call(0);
        drop(calling);
    }

    /// The sender has taken a lent message back, which may have been read before.
    pub(super) fn on_recall(&mut self, i: usize, key: MsgKey) {
        let st = self.t.state.lock();
        let tables = &st.links[i];
        let place = tables.keys.get(&key).copied();
        let lent = |p: &u32| tables.messages.get(*p).is_some_and(|m| m.lent.is_some());
        if let Some(place) = place.filter(lent) {
            self.aborted(i, place, st);
        }
    }
}

/// What is left of a lent message: copied straight to where it is wanted, or shown, one tile at a time.
struct LentPiece<'a> {
    heaps: &'a dyn SharedMemory,
    peer: Rank,
    /// The place of the next byte.
    from: u64,
    left: u64,
    tile: [u8; TILE],
    /// Whole units of a tile.
    most: usize,
    /// A tile has been shown, or bytes were copied.
    begun: bool,
    /// What of the tile has been read and not consumed.
    shown: std::ops::Range<usize>,
    nowhere: bool,
    /// Bytes of the message, while none of them has been read.
    whole: Option<u64>,
    /// The sink reads it where it lies.
    stays: bool,
}

impl Inlet for LentPiece<'_> {
    fn leave(&mut self) -> Option<u64> {
        let bytes = self.whole.filter(|_| !self.begun)?;
        let bytes = usize::try_from(bytes).ok()?;
        self.heaps.window(self.peer, self.from, bytes)?;
        (self.stays, self.left) = (true, 0);
        Some(self.from)
    }

    fn peek(&mut self) -> &[u8] {
        if !self.stays && !std::mem::replace(&mut self.begun, true) {
            let n = self.left.min(self.most as u64) as usize;
            self.nowhere |= !self.heaps.read(self.peer, self.from, &mut self.tile[..n]);
            self.shown = 0..if self.nowhere { 0 } else { n };
        }
        &self.tile[self.shown.clone()]
    }

    fn consume(&mut self, n: usize) {
        debug_assert!(n <= self.shown.len(), "consumed what was not shown");
        let n = n.min(self.shown.len());
        self.shown.start += n;
        self.from += n as u64;
        self.left -= n as u64;
    }

    fn copy_to(&mut self, out: &mut [u8]) -> usize {
        let n = (out.len() as u64).min(self.left) as usize;
        if n == 0 || self.nowhere {
            return 0;
        }
        self.nowhere |= !self.heaps.read(self.peer, self.from, &mut out[..n]);
        if self.nowhere {
            return 0;
        }
        // What was shown of it is behind.
        (self.begun, self.shown) = (true, 0..0);
        self.from += n as u64;
        self.left -= n as u64;
        n
    }
}
