//! Messages that arrive: matched with their receives, kept where there is none, shown to the sink.

use super::{
    Packets, State, WINDOW,
    wire::{Open, Packet},
};
use gaggle_core::{
    Down, MsgKey, OpId, Piece, Rank, Sink, Transfer, TransportError, Verdict, XferId,
};

/// A receive that is posted.
pub(super) struct Receive {
    peer: Rank,
    key: MsgKey,
    bytes: u64,
    unit: u32,
}

/// A message that has begun.
pub(super) struct Arrival {
    key: MsgKey,
    bytes: u64,
    /// All of it came with its opening, and counts against the credit while it is here.
    whole: bool,
    head: Vec<u8>,
    receive: Option<XferId>,
    /// The sink has seen the head.
    opened: bool,
    /// Consumed by the sink.
    at: u64,
    /// Come, and not yet consumed, from `lo` on.
    data: Vec<u8>,
    lo: usize,
    granted: u64,
    aborted: bool,
}

impl Arrival {
    fn is_complete(&self) -> bool {
        self.at + (self.data.len() - self.lo) as u64 == self.bytes
    }
}

impl<L: Packets> State<L> {
    pub(super) fn post_receive(&mut self, t: &Transfer<'_>) -> Result<XferId, TransportError> {
        let link = (t.peer, t.key);
        if self.receive_keys.contains_key(&link) {
            let what = "the key is in use";
            return Err(TransportError::Misuse { peer: t.peer, what });
        }
        let early = self.arrival_keys.get(&link).copied();
        if let Some(error) = self.down_error(t.peer).filter(|_| early.is_none()) {
            return Err(error);
        }
        let id = self.new_id();
        self.receive_keys.insert(link, id);
        self.receives.insert(
            id,
            Receive {
                peer: t.peer,
                key: t.key,
                bytes: t.bytes,
                unit: t.unit,
            },
        );
        if let Some(arrival) = early.and_then(|msg| self.arrivals.get_mut(&(t.peer, msg))) {
            arrival.receive = Some(id);
        }
        Ok(id)
    }

    fn remove_receive(&mut self, id: XferId) -> Option<Receive> {
        let receive = self.receives.remove(&id)?;
        self.receive_keys.remove(&(receive.peer, receive.key));
        Some(receive)
    }

    fn end_receive(&mut self, id: XferId, result: Result<(), TransportError>) {
        if self.remove_receive(id).is_some() {
            self.ended.push_back((id, result));
        }
    }

    /// Lets go of a message; its sender hears of it where it still waits.
    fn drop_arrival(&mut self, from: Rank, msg: u64) {
        let Some(arrival) = self.arrivals.remove(&(from, msg)) else {
            return;
        };
        self.arrival_keys.remove(&(from, arrival.key));
        if self.down.contains_key(&from) {
            return;
        }
        if arrival.whole {
            if arrival.bytes > 0 {
                self.tell(
                    from,
                    Packet::Credit {
                        bytes: arrival.bytes,
                    },
                );
            }
        } else if !arrival.is_complete() && !arrival.aborted {
            self.tell(from, Packet::Refuse { msg });
        }
    }

    fn arrival_of(&self, peer: Rank, key: MsgKey) -> Option<u64> {
        self.arrival_keys.get(&(peer, key)).copied()
    }

    pub(super) fn cancel_receive(&mut self, id: XferId) {
        if let Some(receive) = self.remove_receive(id)
            && let Some(msg) = self.arrival_of(receive.peer, receive.key)
        {
            self.drop_arrival(receive.peer, msg);
        }
    }

    pub(super) fn forget(&mut self, op: OpId) {
        let all = self.arrivals.iter();
        let unwanted = all.filter(|(_, a)| a.key.op == op && a.receive.is_none());
        for (from, msg) in unwanted.map(|(at, _)| *at).collect::<Vec<_>>() {
            self.drop_arrival(from, msg);
        }
    }

    pub(super) fn fail_receives(&mut self, peer: Rank, how: &Down) {
        let cut: Vec<u64> = self
            .arrivals
            .iter()
            .filter(|((from, _), a)| *from == peer && !a.is_complete())
            .map(|((_, msg), _)| *msg)
            .collect();
        for msg in cut {
            self.drop_arrival(peer, msg);
        }
        let whole: Vec<XferId> = self
            .arrivals
            .iter()
            .filter(|((from, _), _)| *from == peer)
            .filter_map(|(_, a)| a.receive)
            .collect();
        let mut ids: Vec<XferId> = self
            .receives
            .iter()
            .filter(|(id, r)| r.peer == peer && !whole.contains(id))
            .map(|(id, _)| *id)
            .collect();
        ids.sort_unstable();
        for id in ids {
            let how = how.clone();
            self.end_receive(id, Err(TransportError::Down { peer, how }));
        }
    }

    /// A message has begun.
    pub(super) fn opened(
        &mut self,
        sink: &mut dyn Sink,
        from: Rank,
        open: Open,
        payload: &[u8],
    ) -> u64 {
        if self.arrival_keys.contains_key(&(from, open.key)) {
            self.depart(from, Down::Lost("two messages of one key".into()));
            return 0;
        }
        let receive = self.receive_keys.get(&(from, open.key)).copied();
        self.arrival_keys.insert((from, open.key), open.msg);
        let (key, msg) = (open.key, open.msg);
        let arrival = Arrival {
            key,
            bytes: open.bytes,
            whole: open.whole,
            head: open.head,
            receive,
            opened: false,
            at: 0,
            data: payload.to_vec(),
            lo: 0,
            granted: 0,
            aborted: false,
        };
        let head = arrival.head.clone();
        self.arrivals.insert((from, msg), arrival);
        if receive.is_some() {
            return 0;
        }
        self.stats.early_messages += 1;
        if sink.unexpected(from, key, &head) == Verdict::Refuse {
            self.drop_arrival(from, msg);
        }
        1
    }

    pub(super) fn data(&mut self, from: Rank, msg: u64, payload: &[u8]) {
        // One that has been dropped: what was on its way is dropped, too.
        let Some(arrival) = self.arrivals.get_mut(&(from, msg)) else {
            return;
        };
        let come = arrival.at + (arrival.data.len() - arrival.lo) as u64;
        if come + payload.len() as u64 > arrival.granted {
            self.depart(from, Down::Lost("more bytes than were granted".into()));
            return;
        }
        if arrival.lo > 0 {
            arrival.data.drain(..arrival.lo);
            arrival.lo = 0;
        }
        arrival.data.extend(payload);
    }

    pub(super) fn aborted(&mut self, from: Rank, msg: u64) {
        let Some(arrival) = self.arrivals.get_mut(&(from, msg)) else {
            return;
        };
        arrival.aborted = true;
        let receive = arrival.receive;
        self.drop_arrival(from, msg);
        if let Some(id) = receive {
            self.end_receive(id, Err(TransportError::Aborted { peer: from }));
        }
    }

    /// Whether the sink can be shown something of it.
    pub(super) fn can_show(&self, arrival: &Arrival) -> bool {
        let Some(receive) = arrival.receive.and_then(|id| self.receives.get(&id)) else {
            return false;
        };
        !arrival.opened || arrival.data.len() - arrival.lo >= receive.unit as usize
    }

    /// Shows the sink what has come for receives.
    pub(super) fn show(&mut self, sink: &mut dyn Sink, budget: usize) -> u64 {
        let ready: Vec<(Rank, u64)> = self
            .arrivals
            .iter()
            .filter(|(_, a)| self.can_show(a))
            .map(|(at, _)| *at)
            .collect();
        let (mut calls, mut moved) = (0, 0);
        for (from, msg) in ready {
            calls += self.show_one(sink, from, msg, &mut moved);
            if moved >= budget.max(1) {
                break;
            }
        }
        calls
    }

    fn show_one(&mut self, sink: &mut dyn Sink, from: Rank, msg: u64, moved: &mut usize) -> u64 {
        let Some(arrival) = self.arrivals.get_mut(&(from, msg)) else {
            return 0;
        };
        let Some(id) = arrival.receive else {
            return 0;
        };
        let Some((ours, unit)) = self.receives.get(&id).map(|r| (r.bytes, r.unit)) else {
            return 0;
        };
        let mut calls = 0;
        if !arrival.opened {
            arrival.opened = true;
            calls += 1;
            let verdict = sink.opened(id, &arrival.head);
            let theirs = arrival.bytes;
            if verdict == Verdict::Refuse {
                self.drop_arrival(from, msg);
                self.remove_receive(id);
                return calls;
            }
            if ours != theirs {
                self.drop_arrival(from, msg);
                let peer = from;
                self.end_receive(id, Err(TransportError::Length { peer, theirs, ours }));
                return calls;
            }
        }
        let Some(arrival) = self.arrivals.get_mut(&(from, msg)) else {
            return calls;
        };
        let mut piece = Piece::new(&arrival.data[arrival.lo..], unit);
        if !gaggle_core::Inlet::peek(&mut piece).is_empty() {
            sink.incoming(id, arrival.at, &mut piece);
            calls += 1;
            let used = piece.used();
            *moved += used;
            arrival.at += used as u64;
            arrival.lo += used;
        }
        if arrival.at == arrival.bytes {
            self.drop_arrival(from, msg);
            self.end_receive(id, Ok(()));
        } else if !arrival.whole
            && arrival.granted < arrival.bytes
            && arrival.granted - arrival.at <= WINDOW / 2
        {
            let upto = arrival.bytes.min(arrival.at + WINDOW);
            arrival.granted = upto;
            self.tell(from, Packet::Grant { msg, upto });
        }
        calls
    }
}
