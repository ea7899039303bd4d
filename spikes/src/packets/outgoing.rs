//! Sends: opened, granted, filled from the sink, packet by packet.

use super::{
    MAX, Packets, SMALL, State,
    wire::{Open, Packet},
};
use gaggle_core::{Down, MsgKey, Rank, Room, Sink, Transfer, TransportError, XferId};
use std::{cmp::Reverse, collections::HashMap};

/// Payload of a data packet at most.
const PART: usize = MAX - 64;

/// A message on its way out.
pub(super) struct Send {
    peer: Rank,
    key: MsgKey,
    bytes: u64,
    unit: u32,
    priority: i32,
    head: Vec<u8>,
    /// The opening has been sent.
    opened: bool,
    /// Up to which byte the receiver wants it.
    granted: u64,
    /// Handed to the link.
    sent: u64,
    /// Filled by the sink, not yet taken by the link.
    staged: Vec<u8>,
}

impl Send {
    fn filled(&self) -> u64 {
        self.sent + self.staged.len() as u64
    }
}

impl<L: Packets> State<L> {
    pub(super) fn post_send(&mut self, t: &Transfer<'_>) -> Result<XferId, TransportError> {
        if let Some(error) = self.down_error(t.peer) {
            return Err(error);
        }
        if !self.send_keys.insert((t.peer, t.key)) {
            let what = "the key is in use";
            return Err(TransportError::Misuse { peer: t.peer, what });
        }
        let id = self.new_id();
        self.order.insert((Reverse(t.priority), id));
        self.sends.insert(
            id,
            Send {
                peer: t.peer,
                key: t.key,
                bytes: t.bytes,
                unit: t.unit,
                priority: t.priority,
                head: t.head.to_vec(),
                opened: false,
                granted: 0,
                sent: 0,
                staged: vec![],
            },
        );
        Ok(id)
    }

    fn remove_send(&mut self, id: XferId) -> Option<Send> {
        let send = self.sends.remove(&id)?;
        self.send_keys.remove(&(send.peer, send.key));
        self.order.remove(&(Reverse(send.priority), id));
        Some(send)
    }

    fn end_send(&mut self, id: XferId, result: Result<(), TransportError>) {
        if self.remove_send(id).is_some() {
            self.ended.push_back((id, result));
        }
    }

    pub(super) fn cancel_send(&mut self, id: XferId) {
        if let Some(send) = self.remove_send(id).filter(|s| s.opened) {
            self.tell(send.peer, Packet::Abort { msg: id.0 });
        }
    }

    pub(super) fn granted(&mut self, id: XferId, upto: u64) {
        if let Some(send) = self.sends.get_mut(&id) {
            send.granted = send.granted.max(upto.min(send.bytes));
        }
    }

    /// The receiver wants no more of it; why is no business of the sender's.
    pub(super) fn refused(&mut self, id: XferId) {
        self.end_send(id, Ok(()));
    }

    pub(super) fn fail_sends(&mut self, peer: Rank, how: &Down) {
        let mut ids: Vec<XferId> = self
            .sends
            .iter()
            .filter(|(_, s)| s.peer == peer)
            .map(|(id, _)| *id)
            .collect();
        ids.sort_unstable();
        for id in ids {
            let how = how.clone();
            self.end_send(id, Err(TransportError::Down { peer, how }));
        }
    }

    /// Whether the message can go with its opening.
    fn fits_credit(&self, send: &Send) -> bool {
        send.bytes == 0
            || send.bytes <= SMALL
                && self
                    .credit
                    .get(&send.peer)
                    .is_some_and(|c| *c >= send.bytes)
    }

    pub(super) fn can_send(&self, id: XferId) -> bool {
        self.sends
            .get(&id)
            .is_some_and(|s| !s.opened || s.sent < s.granted)
    }

    /// Sends what may go: first what has no payload, then messages by priority.
    pub(super) fn give_out(&mut self, sink: &mut dyn Sink, budget: usize) -> u64 {
        let (mut calls, mut moved) = (0, 0);
        if !self.send_control() {
            return 0;
        }
        // An opening costs little, and its grant takes time: all of them go first.
        let ids: Vec<XferId> = self
            .order
            .iter()
            .map(|(_, id)| *id)
            .filter(|id| self.can_send(*id))
            .collect();
        for id in ids {
            if self.sends.get(&id).is_some_and(|s| !s.opened)
                && !self.open(sink, id, &mut calls, &mut moved)
            {
                return calls;
            }
        }
        // The most urgent message to a peer that is wanted and not over: while it waits for its next grant, nothing less urgent takes its place.
        let mut first: HashMap<Rank, i32> = HashMap::new();
        let order: Vec<XferId> = self.order.iter().map(|(_, id)| *id).collect();
        for id in order {
            let Some(send) = self.sends.get(&id).filter(|s| s.opened && s.granted > 0) else {
                continue;
            };
            let (peer, priority) = (send.peer, send.priority);
            if *first.entry(peer).or_insert(priority) > priority {
                continue;
            }
            while moved < budget.max(1) && self.can_send(id) {
                let before = moved;
                if !self.send_part(sink, id, &mut calls, &mut moved) {
                    return calls;
                }
                if moved == before {
                    // The sink has nothing of it now.
                    break;
                }
            }
        }
        calls
    }

    /// Asks the sink for bytes up to `end`.
    fn fill(sink: &mut dyn Sink, id: XferId, send: &mut Send, end: u64, calls: &mut u64) {
        let at = send.filled();
        let more = usize::try_from(end - at).unwrap_or(0);
        if more < send.unit as usize {
            return;
        }
        let staged = send.staged.len();
        send.staged.resize(staged + more, 0);
        let mut room = Room::new(&mut send.staged[staged..], send.unit);
        sink.outgoing(id, at, &mut room);
        let filled = room.filled();
        send.staged.truncate(staged + filled);
        *calls += 1;
    }

    /// Sends an opening, with the bytes where they fit. False where the link has no room.
    fn open(
        &mut self,
        sink: &mut dyn Sink,
        id: XferId,
        calls: &mut u64,
        moved: &mut usize,
    ) -> bool {
        let Some(mut send) = self.sends.remove(&id) else {
            return true;
        };
        let whole = self.fits_credit(&send);
        if whole {
            let end = send.bytes;
            Self::fill(sink, id, &mut send, end, calls);
            if send.filled() < end {
                // The sink has not all of it now; then it is asked again.
                self.sends.insert(id, send);
                return true;
            }
        }
        // What was staged for a credit that has gone since waits for its grant.
        let open = Packet::Open(Open {
            msg: id.0,
            key: send.key,
            bytes: send.bytes,
            whole,
            head: send.head.clone(),
        });
        let mut packet = open.to_bytes();
        let header = packet.len();
        if whole {
            packet.extend(&send.staged);
        }
        let taken = self.link.send(send.peer, &packet);
        if taken {
            self.count(header, packet.len() - header);
            *moved += packet.len();
            send.opened = true;
            if whole {
                send.sent = send.bytes;
                if let Some(credit) = self.credit.get_mut(&send.peer) {
                    *credit -= send.bytes;
                }
            }
        }
        self.sends.insert(id, send);
        if taken && whole {
            self.end_send(id, Ok(()));
        }
        taken
    }

    /// Sends the next part of a message that is wanted. False where the link has no room.
    fn send_part(
        &mut self,
        sink: &mut dyn Sink,
        id: XferId,
        calls: &mut u64,
        moved: &mut usize,
    ) -> bool {
        let Some(mut send) = self.sends.remove(&id) else {
            return true;
        };
        if send.staged.is_empty() {
            // Whole units: a grant may end inside one.
            let unit = u64::from(send.unit);
            let end = send.granted.min(send.sent + PART as u64);
            let end = if end == send.bytes {
                end
            } else {
                send.sent + (end - send.sent) / unit * unit
            };
            Self::fill(sink, id, &mut send, end, calls);
        }
        let mut packet = Packet::Data { msg: id.0 }.to_bytes();
        let header = packet.len();
        packet.extend(&send.staged);
        let taken = send.staged.is_empty() || self.link.send(send.peer, &packet);
        if taken && !send.staged.is_empty() {
            self.count(header, send.staged.len());
            *moved += packet.len();
            send.sent += send.staged.len() as u64;
            send.staged.clear();
        }
        let over = send.sent == send.bytes;
        self.sends.insert(id, send);
        if over {
            self.end_send(id, Ok(()));
        }
        taken
    }

    fn count(&mut self, header: usize, payload: usize) {
        self.stats.header_sent += header as u64;
        self.stats.payload_sent += payload as u64;
        self.stats.frames_sent += 1;
    }
}
