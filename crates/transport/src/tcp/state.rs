//! The tables behind a TCP transport: transfers, what has begun on each link, and credit.
//!
//! Everything here is under one lock that is never held in a callback; sockets and their buffers are elsewhere, with whoever makes progress.

use super::{
    dial::Want,
    lent::{Lent, Recalled},
    queue::{Job, Queue, SMALL},
};
use crate::{
    frame::{EAGER, Header, Kind, Violation},
    pieces::slot_of,
    slab::Slab,
};
use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};
use gaggle_core::{Dir, Down, HEAD_MAX, Loan, MsgKey, OpId, Rank, TransportError, XferId};
use std::{cmp::Reverse, collections::VecDeque};

/// Stands for no place in a table.
pub(super) const NONE: u32 = u32::MAX;
/// Receives that may be posted, and grants that may be early, per link.
pub(super) const POSTED_MAX: usize = 1 << 16;
/// Bytes of one block of held data.
const BLOCK: usize = 4096;

/// One transfer.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) id: XferId,
    pub(super) dir: Dir,
    pub(super) link: usize,
    pub(super) key: MsgKey,
    pub(super) bytes: u64,
    pub(super) unit: u32,
    pub(super) priority: i32,
    pub(super) head: [u8; HEAD_MAX],
    pub(super) head_len: usize,
    /// Sends: the bytes themselves, where they leave as they are.
    pub(super) loan: Option<Loan>,
    /// Sends: bytes that have been framed.
    pub(super) at: u64,
    /// Sends: the first frame exists.
    pub(super) begun: bool,
    pub(super) granted: bool,
    /// Sends: what it has cost of the credit.
    pub(super) charged: u64,
    /// Sends: the newest job; older ones are void.
    pub(super) job: u64,
    /// Receives: the message's place in the link's table.
    pub(super) message: u32,
    pub(super) cancelled: bool,
    /// Sends: where the bytes are, which stay there.
    pub(super) lent: Option<Lent>,
}

impl Slot {
    /// A send whose bytes the peer may be reading where they are.
    pub(super) fn is_out(&self) -> bool {
        self.dir == Dir::Send && self.begun && self.lent.is_some()
    }
}

/// A message from the peer: expected, under way or complete.
#[derive(Debug)]
pub(super) struct Message {
    /// Distinguishes it from later ones in the same place.
    pub(super) uid: u64,
    pub(super) key: MsgKey,
    /// The posted receive's slot.
    pub(super) recv: u32,
    pub(super) total: u64,
    /// Bytes that have come.
    pub(super) got: u64,
    /// Bytes that the sink has consumed.
    pub(super) fed: u64,
    pub(super) begun: bool,
    pub(super) opened: bool,
    /// Nobody wants the bytes any more.
    pub(super) dropped: bool,
    pub(super) grant_sent: bool,
    pub(super) charged: u64,
    pub(super) head: [u8; HEAD_MAX],
    pub(super) head_len: usize,
    pub(super) carry: Carry,
    pub(super) held: Held,
    /// Where the bytes are, which stay there.
    pub(super) lent: Option<Lent>,
    /// The sink has left them there, and reads them when it wants to.
    pub(super) left: bool,
}

/// The beginning of a unit whose rest has not come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carry {
    pub(super) bytes: [u8; 16],
    pub(super) len: usize,
}

/// Early bytes, in blocks.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) blocks: VecDeque<Box<[u8]>>,
    /// Where the first block begins to matter.
    pub(super) lo: usize,
    pub(super) len: usize,
}

/// One peer's tables.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) peer: Rank,
    pub(super) down: Option<Down>,
    pub(super) sends: HashMap<MsgKey, u32>,
    pub(super) ready: Queue,
    /// Sends that wait for credit or a grant.
    pub(super) blocked: Vec<Job>,
    /// Sends that the sink had nothing for; tried again by the next call.
    pub(super) stalled: Vec<Job>,
    /// Grants that came before their send was posted.
    pub(super) granted: HashSet<MsgKey>,
    /// Sends that are over but whose grant is still to come, and what they cost.
    pub(super) unsettled: HashMap<MsgKey, u64>,
    pub(super) credit: u64,
    /// Frames without payload that are to be sent.
    pub(super) control: VecDeque<Header>,
    pub(super) messages: Slab<Message>,
    pub(super) keys: HashMap<MsgKey, u32>,
    /// What unposted messages have cost of the peer's credit.
    pub(super) held: u64,
    /// Messages under way that nobody wants.
    pub(super) dropping: usize,
    pub(super) posted: usize,
    blocks: Vec<Box<[u8]>>,
    queues: Vec<VecDeque<Box<[u8]>>>,
}

/// Everything under the lock.
pub(super) struct State {
    pub(super) left: bool,
    pub(super) slots: Slab<Slot>,
    pub(super) links: Vec<Tables>,
    /// Messages that had begun when their receive was posted.
    pub(super) deliver: VecDeque<(usize, u32, u64)>,
    pub(super) stalled_deliver: Vec<(usize, u32, u64)>,
    /// The transfer that a callback is about.
    pub(super) calling: Option<XferId>,
    /// Something was posted or cancelled since the last call of `progress` began.
    pub(super) dirty: bool,
    /// The last call of `progress` has left something undone.
    pub(super) more: bool,
    /// The sink has left something that is to be offered again.
    pub(super) waiting: bool,
    /// By link: how soon it is wanted. Empty where all are made from the beginning.
    pub(super) wants: Vec<Want>,
    /// What lent messages were taken back last.
    pub(super) recalled: Option<Recalled>,
    count: u64,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("transfers", &self.slots.len())
            .field("links", &self.links.len())
            .finish_non_exhaustive()
    }
}

impl State {
    pub(super) fn new(peers: &[Rank]) -> State {
        State {
            left: false,
            slots: Slab::with_capacity(64),
            links: peers.iter().map(|p| Tables::new(*p)).collect(),
            deliver: VecDeque::with_capacity(64),
            stalled_deliver: Vec::with_capacity(16),
            calling: None,
            dirty: true,
            more: false,
            waiting: false,
            wants: Vec::new(),
            recalled: None,
            count: 0,
        }
    }

    /// A number that has not been used.
    pub(super) fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// The transfer, if the number is still its own.
    pub(super) fn slot(&mut self, id: XferId) -> Option<&mut Slot> {
        self.slots.get_mut(slot_of(id)).filter(|s| s.id == id)
    }

    /// Puts a send where it can be taken next; an older job of it is void.
    pub(super) fn push(&mut self, id: XferId) {
        let order = self.next();
        if let Some(s) = self.slots.get_mut(slot_of(id)).filter(|s| s.id == id) {
            s.job = order;
            self.links[s.link].ready.push(Job {
                priority: s.priority,
                small: s.bytes <= SMALL,
                order: Reverse(order),
                id,
            });
        }
    }

    /// Takes a transfer out; a message that its receive would have taken is dropped.
    pub(super) fn take_back(&mut self, id: XferId) {
        let Some(slot) = self.slot(id).map(|s| (s.link, s.dir, s.message, s.key)) else {
            return;
        };
        let (link, dir, message, key) = slot;
        let Some(slot) = self.slots.remove(slot_of(id)) else {
            return;
        };
        let tables = &mut self.links[link];
        if dir == Dir::Recv {
            tables.discard(message);
            return;
        }
        tables.sends.remove(&key);
        if slot.begun {
            let kind = match slot.lent {
                Some(_) => Kind::Recall,
                None => Kind::Abort,
            };
            tables.control.push_back(Header::control(kind, key));
            if !slot.granted {
                tables.unsettled.insert(key, slot.charged);
            }
        } else if slot.granted {
            // The grant stands for whoever posts this key next.
            tables.granted.insert(key);
        }
    }

    /// A grant has come.
    pub(super) fn on_grant(&mut self, link: usize, key: MsgKey) -> Result<(), Violation> {
        let tables = &mut self.links[link];
        let mut freed = 0;
        if let Some(cost) = tables.unsettled.remove(&key) {
            freed = cost;
        } else if let Some(place) = tables.sends.get(&key) {
            if let Some(slot) = self.slots.get_mut(*place) {
                if slot.granted {
                    return Err(Violation::TooMany("grants of one message"));
                }
                slot.granted = true;
                freed = std::mem::take(&mut slot.charged);
                let id = slot.id;
                self.push(id);
            }
        } else if tables.granted.len() >= POSTED_MAX || !tables.granted.insert(key) {
            return Err(Violation::TooMany("grants"));
        }
        let tables = &mut self.links[link];
        tables.credit += freed;
        // Many that wait are not looked at for every little that comes back.
        if tables.credit >= EAGER / 4 {
            tables.ready.extend(tables.blocked.drain(..));
        }
        Ok(())
    }
}

impl Tables {
    fn new(peer: Rank) -> Tables {
        Tables {
            peer,
            down: None,
            sends: HashMap::with_capacity(64),
            ready: Queue::with_capacity(64),
            blocked: Vec::with_capacity(64),
            stalled: Vec::with_capacity(16),
            granted: HashSet::with_capacity(64),
            unsettled: HashMap::with_capacity(64),
            credit: EAGER,
            control: VecDeque::with_capacity(64),
            messages: Slab::with_capacity(64),
            keys: HashMap::with_capacity(64),
            held: 0,
            dropping: 0,
            posted: 0,
            blocks: Vec::with_capacity(64),
            queues: Vec::with_capacity(64),
        }
    }

    pub(super) fn down_error(&self) -> Option<TransportError> {
        self.down.clone().map(|how| TransportError::Down {
            peer: self.peer,
            how,
        })
    }

    pub(super) fn message(&mut self, place: u32, uid: u64) -> Option<&mut Message> {
        self.messages.get_mut(place).filter(|m| m.uid == uid)
    }

    /// A place for a message that is expected or has just begun.
    pub(super) fn add(&mut self, uid: u64, key: MsgKey) -> u32 {
        let place = self.messages.insert(Message {
            uid,
            key,
            recv: NONE,
            total: 0,
            got: 0,
            fed: 0,
            begun: false,
            opened: false,
            dropped: false,
            grant_sent: false,
            charged: 0,
            head: [0; HEAD_MAX],
            head_len: 0,
            carry: Carry::default(),
            held: Held::default(),
            lent: None,
            left: false,
        });
        self.keys.insert(key, place);
        place
    }

    /// Sends the one grant of a message, if that has not been done.
    pub(super) fn grant(&mut self, place: u32) {
        let Some(m) = self.messages.get_mut(place).filter(|m| !m.grant_sent) else {
            return;
        };
        m.grant_sent = true;
        self.held -= std::mem::take(&mut m.charged);
        self.control.push_back(Header::control(Kind::Grant, m.key));
    }

    /// Counts what an ungranted frame costs.
    pub(super) fn charge(&mut self, place: u32, cost: u64) -> Result<(), Violation> {
        if let Some(m) = self.messages.get_mut(place).filter(|m| !m.grant_sent) {
            m.charged += cost;
            self.held += cost;
            if self.held > EAGER {
                return Err(Violation::Credit(self.held));
            }
        }
        Ok(())
    }

    /// Keeps early bytes.
    pub(super) fn hold(&mut self, place: u32, mut bytes: &[u8]) {
        let Some(m) = self.messages.get_mut(place) else {
            return;
        };
        m.got += bytes.len() as u64;
        let held = &mut m.held;
        if held.blocks.capacity() == 0
            && let Some(queue) = self.queues.pop()
        {
            held.blocks = queue;
        }
        while !bytes.is_empty() {
            let end = held.lo + held.len;
            let at = end % BLOCK;
            if end == held.blocks.len() * BLOCK {
                let block = self.blocks.pop().unwrap_or_else(|| vec![0; BLOCK].into());
                held.blocks.push_back(block);
            }
            let n = bytes.len().min(BLOCK - at);
            if let Some(block) = held.blocks.back_mut() {
                block[at..at + n].copy_from_slice(&bytes[..n]);
            }
            held.len += n;
            bytes = &bytes[n..];
        }
    }

    /// The first held block and what of it matters, taken out.
    pub(super) fn take_block(&mut self, place: u32) -> Option<(Box<[u8]>, usize, usize)> {
        let held = &mut self.messages.get_mut(place)?.held;
        let block = held.blocks.pop_front()?;
        let hi = BLOCK.min(held.lo + held.len);
        Some((block, held.lo, hi))
    }

    /// Gives it back after `used` bytes of it have been consumed.
    pub(super) fn put_block(&mut self, place: u32, uid: u64, block: Box<[u8]>, used: usize) {
        if let Some(m) = self.message(place, uid).filter(|m| !m.dropped) {
            let held = &mut m.held;
            held.len -= used;
            held.lo += used;
            if held.len > 0 && held.lo < BLOCK {
                held.blocks.push_front(block);
                return;
            }
            held.lo = 0;
            if held.len == 0 {
                self.recycle(place);
            }
        }
        self.blocks.push(block);
    }

    fn recycle(&mut self, place: u32) {
        if let Some(m) = self.messages.get_mut(place) {
            let mut held = std::mem::take(&mut m.held);
            self.blocks.extend(held.blocks.drain(..));
            if held.blocks.capacity() > 0 {
                self.queues.push(held.blocks);
            }
        }
    }

    /// Takes a message out of the tables. It has had its grant, or will never need one.
    pub(super) fn remove(&mut self, place: u32) -> Option<Message> {
        self.recycle(place);
        let m = self.messages.remove(place)?;
        self.keys.remove(&m.key);
        self.held -= m.charged;
        self.dropping -= usize::from(m.dropped && m.begun);
        self.posted -= usize::from(m.recv != NONE);
        Some(m)
    }

    /// Nobody wants this message any more: what is held goes, what still comes is skipped.
    pub(super) fn discard(&mut self, place: u32) {
        self.recycle(place);
        let Some(m) = self.messages.get_mut(place).filter(|m| !m.dropped) else {
            return;
        };
        if m.recv != NONE {
            m.recv = NONE;
            self.posted -= 1;
        }
        m.dropped = true;
        m.carry.len = 0;
        self.dropping += usize::from(m.begun);
        if m.lent.is_some() {
            self.control.push_back(Header::control(Kind::Taken, m.key));
        }
        let over = m.begun && m.got == m.total;
        let silent = !m.begun && !m.grant_sent;
        if m.begun {
            self.grant(place);
        }
        if over || silent {
            self.remove(place);
        }
    }

    /// An unposted message of `op` at or after `from`.
    pub(super) fn unposted(&self, op: OpId, from: u32) -> Option<u32> {
        (from..self.messages.end()).find(|i| {
            self.messages
                .get(*i)
                .is_some_and(|m| m.begun && m.recv == NONE && !m.dropped && m.key.op == op)
        })
    }

    /// The link is down. Of a peer that has left, whole messages stay.
    pub(super) fn close(&mut self, keep_whole: bool) {
        self.sends.clear();
        self.ready.clear();
        self.blocked.clear();
        self.stalled.clear();
        self.granted.clear();
        self.unsettled.clear();
        self.control.clear();
        for place in 0..self.messages.end() {
            if !(keep_whole && self.is_whole(place)) {
                self.remove(place);
            }
        }
    }

    /// Whether what was early can be delivered although the peer has left.
    pub(super) fn is_whole(&self, place: u32) -> bool {
        self.messages
            .get(place)
            .is_some_and(|m| m.begun && m.got == m.total && !m.dropped)
    }
}
