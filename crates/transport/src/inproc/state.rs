//! What one rank's box holds: its own transfers, and what others offer it.

use crate::slab::Slab;
use gaggle_core::{Dir, Down, HEAD_MAX, Loan, MsgKey, OpId, Rank, TransportError, Wake, XferId};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    sync::Arc,
};

/// Stands for no place in a table.
pub(super) const NONE: u32 = u32::MAX;
/// Bytes of one staging buffer; a multiple of every unit that is a power of two, and rounded down for the others.
pub(super) const CHUNK: usize = 64 << 10;
/// Staging buffers that one rank may have in use.
const CHUNKS: usize = 64;
/// Bytes of early messages that a link holds, so that their senders need not wait.
pub(super) const CREDIT: usize = 256 << 10;
/// Buffers of early messages kept for the next ones; what they hold together is bounded by the links' credit.
const SPARE_WHOLE: usize = 64;

/// One of this rank's own transfers.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) id: XferId,
    pub(super) dir: Dir,
    pub(super) peer: usize,
    pub(super) key: MsgKey,
    pub(super) bytes: u64,
    pub(super) unit: u32,
    pub(super) priority: i32,
    /// The message's place in the receiver's table of offers.
    pub(super) offer: u32,
    /// How much of a staged send the sink has filled in.
    pub(super) filled: u64,
    /// The staging buffer, while it is this side's turn.
    pub(super) chunk: Option<Chunk>,
    pub(super) cancelled: bool,
}

/// A staging buffer and what of it is full.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) buf: Box<[u8]>,
    pub(super) lo: usize,
    pub(super) hi: usize,
    /// Not of the usual size: it holds a whole message that came early.
    pub(super) whole: bool,
}

/// A message that a peer offers to this rank.
#[derive(Debug)]
pub(super) struct Offer {
    /// The sender's number for it.
    pub(super) id: XferId,
    pub(super) src: usize,
    pub(super) key: MsgKey,
    pub(super) bytes: u64,
    pub(super) priority: i32,
    pub(super) head: [u8; HEAD_MAX],
    pub(super) head_len: usize,
    pub(super) loan: Option<Loan>,
    pub(super) chunk: Option<Chunk>,
    /// Bytes that have been consumed.
    pub(super) at: u64,
    /// The sink has been told that nobody waits for it.
    pub(super) announced: bool,
    pub(super) opened: bool,
    pub(super) cancelled: bool,
    /// Bytes that it takes of the link's credit for what comes early.
    pub(super) held: usize,
    /// It would be held, but for credit: tried again when some comes back.
    pub(super) short: bool,
    /// Its turn to be tried again is among the news.
    pub(super) recalled: bool,
    /// The chunk is the receiver's: it has copied what was lent.
    pub(super) copied: bool,
    /// Nothing of the sender's is needed any more: it has been told that it is done.
    pub(super) paid: bool,
    /// The posted receive.
    pub(super) recv: u32,
}

/// Both halves of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) offer: u32,
    pub(super) recv: u32,
}

/// Work in order: larger priority first, then first come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Job {
    pub(super) priority: i32,
    pub(super) order: Reverse<u64>,
    pub(super) place: u32,
    pub(super) id: XferId,
}

/// Whether a rank is still with us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    Here,
    Left,
    Dead,
}

/// Everything about one rank that others may touch, under one lock.
pub(super) struct State {
    pub(super) life: Life,
    pub(super) slots: Slab<Slot>,
    pub(super) offers: Slab<Offer>,
    pub(super) keys: HashMap<(usize, MsgKey), Pair>,
    /// Offers that can be read now.
    pub(super) ready: BinaryHeap<Job>,
    /// Offers that came before their receive, and those whose turn for credit it is again.
    pub(super) news: VecDeque<(u32, XferId)>,
    /// Own sends whose bytes are wanted.
    pub(super) fill: BinaryHeap<Job>,
    /// Jobs that the sink did nothing for; they are tried again by the next call.
    pub(super) stalled_ready: Vec<Job>,
    pub(super) stalled_fill: Vec<Job>,
    /// What is to be reported of own transfers.
    pub(super) ended: VecDeque<(XferId, Result<(), TransportError>)>,
    /// Who has gone, to be reported.
    pub(super) notices: VecDeque<usize>,
    pub(super) gone: Vec<Option<Down>>,
    /// Own sends that wait for their reader and need no more of the sink.
    pub(super) owed: usize,
    /// The transfer that a callback of this rank is about.
    pub(super) calling: Option<XferId>,
    /// The peer's send whose memory this rank is reading.
    pub(super) reading: Option<(usize, XferId)>,
    pub(super) wake: Option<Arc<dyn Wake>>,
    spare: Vec<Box<[u8]>>,
    spare_whole: Vec<Box<[u8]>>,
    /// Bytes held of what each peer sent early.
    pub(super) held: Vec<usize>,
    /// How many offers of each peer are short of credit.
    short: Vec<usize>,
    chunks: usize,
    count: u64,
    order: u64,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("life", &self.life)
            .field("slots", &self.slots.len())
            .field("offers", &self.offers.len())
            .finish_non_exhaustive()
    }
}

impl State {
    pub(super) fn new(n: usize) -> State {
        State {
            life: Life::Here,
            slots: Slab::with_capacity(64),
            offers: Slab::with_capacity(64),
            keys: HashMap::with_capacity(128),
            ready: BinaryHeap::with_capacity(64),
            news: VecDeque::with_capacity(64),
            fill: BinaryHeap::with_capacity(64),
            stalled_ready: Vec::with_capacity(16),
            stalled_fill: Vec::with_capacity(16),
            ended: VecDeque::with_capacity(64),
            notices: VecDeque::with_capacity(n),
            gone: vec![None; n],
            owed: 0,
            calling: None,
            reading: None,
            wake: None,
            spare: Vec::with_capacity(CHUNKS),
            spare_whole: Vec::with_capacity(SPARE_WHOLE),
            held: vec![0; n],
            short: vec![0; n],
            chunks: 0,
            count: 0,
            order: 0,
        }
    }

    pub(super) fn next_count(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// The transfer, if the number is still its own.
    pub(super) fn slot(&mut self, id: XferId) -> Option<&mut Slot> {
        self.slots
            .get_mut(crate::pieces::slot_of(id))
            .filter(|s| s.id == id)
    }

    pub(super) fn offer(&mut self, place: u32, id: XferId) -> Option<&mut Offer> {
        self.offers.get_mut(place).filter(|o| o.id == id)
    }

    fn job(&mut self, priority: i32, place: u32, id: XferId) -> Job {
        self.order += 1;
        Job {
            priority,
            order: Reverse(self.order),
            place,
            id,
        }
    }

    pub(super) fn push_ready(&mut self, place: u32) {
        if let Some((priority, id)) = self.offers.get(place).map(|o| (o.priority, o.id)) {
            let job = self.job(priority, place, id);
            self.ready.push(job);
        }
    }

    pub(super) fn push_fill(&mut self, id: XferId) {
        if let Some(priority) = self.slot(id).map(|s| s.priority) {
            let job = self.job(priority, crate::pieces::slot_of(id), id);
            self.fill.push(job);
        }
    }

    /// What the last call left over is tried again.
    pub(super) fn restore(&mut self) {
        self.ready.extend(self.stalled_ready.drain(..));
        self.fill.extend(self.stalled_fill.drain(..));
    }

    /// A staging buffer, if the bound allows one more.
    pub(super) fn take_chunk(&mut self) -> Option<Chunk> {
        let buf = match self.spare.pop() {
            Some(buf) => buf,
            None if self.chunks < CHUNKS => {
                self.chunks += 1;
                vec![0; CHUNK].into()
            }
            None => return None,
        };
        Some(Chunk {
            buf,
            lo: 0,
            hi: 0,
            whole: false,
        })
    }

    /// Room for a whole early message.
    pub(super) fn take_whole(&mut self, bytes: usize) -> Chunk {
        let spare = self.spare_whole.iter().enumerate();
        let fits = spare.filter(|(_, b)| b.len() >= bytes);
        // The smallest that fits: a large one is not to be missed by a large message.
        let buf = match fits.min_by_key(|(_, b)| b.len()) {
            Some((i, _)) => self.spare_whole.swap_remove(i),
            None => vec![0; bytes.next_power_of_two()].into(),
        };
        Chunk {
            buf,
            lo: 0,
            hi: 0,
            whole: true,
        }
    }

    pub(super) fn give_chunk(&mut self, chunk: Chunk) {
        if !chunk.whole {
            self.spare.push(chunk.buf);
        } else if self.spare_whole.len() < SPARE_WHOLE {
            self.spare_whole.push(chunk.buf);
        }
    }

    /// Takes an offer out, and its key if no receive is left.
    pub(super) fn remove_offer(&mut self, place: u32) -> Option<Offer> {
        let mut offer = self.offers.remove(place)?;
        if offer.copied
            && let Some(chunk) = offer.chunk.take()
        {
            self.give_chunk(chunk);
        }
        if offer.short {
            self.short[offer.src] -= 1;
        }
        if offer.held > 0 {
            self.held[offer.src] -= offer.held;
            self.recall_short(offer.src);
        }
        let at = (offer.src, offer.key);
        if let Some(pair) = self.keys.get_mut(&at) {
            pair.offer = NONE;
            if pair.recv == NONE {
                self.keys.remove(&at);
            }
        }
        if let Some(s) = self.slots.get_mut(offer.recv) {
            s.offer = NONE;
        }
        Some(offer)
    }

    /// Notes that an offer which nobody waits for does not fit the credit that is left; one that never will stays as it is.
    pub(super) fn mark_short(&mut self, place: u32) {
        if let Some(o) = self.offers.get_mut(place).filter(|o| !o.short)
            && o.bytes <= CREDIT as u64
        {
            o.short = true;
            self.short[o.src] += 1;
        }
    }

    /// True once per mark, while the offer is still nobody's.
    pub(super) fn take_short(&mut self, place: u32, id: XferId) -> bool {
        let Some(o) = self.offer(place, id).filter(|o| o.short) else {
            return false;
        };
        (o.short, o.recalled) = (false, false);
        let (src, open) = (o.src, o.recv == NONE && !o.cancelled);
        self.short[src] -= 1;
        open
    }

    fn recall_short(&mut self, src: usize) {
        if self.short[src] == 0 {
            return;
        }
        for place in 0..self.offers.end() {
            let offer = self.offers.get_mut(place);
            if let Some(o) = offer.filter(|o| o.src == src && o.short && !o.recalled) {
                o.recalled = true;
                self.news.push_back((place, o.id));
            }
        }
    }

    /// Takes an own transfer out; a receive's key goes with it if nothing is offered.
    pub(super) fn remove_slot(&mut self, place: u32) -> Option<Slot> {
        let slot = self.slots.remove(place)?;
        if slot.dir == Dir::Recv {
            let at = (slot.peer, slot.key);
            if let Some(pair) = self.keys.get_mut(&at) {
                pair.recv = NONE;
                if pair.offer == NONE {
                    self.keys.remove(&at);
                }
            }
            if let Some(o) = self.offers.get_mut(slot.offer) {
                o.recv = NONE;
            }
        }
        Some(slot)
    }

    /// The next unposted offer for `op` at or after `from`.
    pub(super) fn unposted(&self, op: OpId, from: u32) -> Option<u32> {
        (from..self.offers.end()).find(|i| {
            self.offers
                .get(*i)
                .is_some_and(|o| o.recv == NONE && o.key.op == op && !o.cancelled)
        })
    }

    /// Ends a send of this rank from the receiver's side.
    pub(super) fn end_send(&mut self, offer: Offer) {
        if let Some(chunk) = offer.chunk {
            self.give_chunk(chunk);
        }
        if offer.paid {
            return;
        }
        if let Some(slot) = self.slot(offer.id) {
            slot.offer = NONE;
            let chunk = slot.chunk.take();
            if offer.loan.is_some() {
                self.owed -= 1;
            }
            if let Some(chunk) = chunk {
                self.give_chunk(chunk);
            }
            self.ended.push_back((offer.id, Ok(())));
        }
    }

    pub(super) fn down_error(&self, peer: usize) -> Option<TransportError> {
        self.gone[peer].clone().map(|how| TransportError::Down {
            peer: Rank(peer as u32),
            how,
        })
    }

    /// Whom to wake, if there is something to do.
    pub(super) fn wake_for_work(&self) -> Option<Arc<dyn Wake>> {
        self.wake.clone().filter(|_| self.has_work())
    }

    pub(super) fn has_work(&self) -> bool {
        !(self.ready.is_empty()
            && self.news.is_empty()
            && self.fill.is_empty()
            && self.ended.is_empty()
            && self.notices.is_empty())
    }
}
