//! One rank's links of a simulated net.

use super::{
    Shared, call_all,
    rank::{Inbound, Life, RecvState, SendState},
    state::Net,
};
use crate::pieces::{self, Piece, Room};
use gaggle_core::{
    Armed, Dir, Down, LinkStats, MsgKey, OpId, Rank, Sink, Transfer, Transport, TransportError,
    Verdict, Wake, XferId,
};
use parking_lot::Mutex;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// One rank's links.
#[derive(Debug)]
pub(super) struct SimTransport {
    shared: Arc<Shared>,
    me: u32,
    peers: Vec<Rank>,
    /// Whoever makes progress.
    turn: Mutex<()>,
}

impl SimTransport {
    pub(super) fn new(shared: Arc<Shared>, me: u32, world: u32) -> Self {
        SimTransport {
            shared,
            me,
            peers: (0..world).filter(|p| *p != me).map(Rank).collect(),
            turn: Mutex::new(()),
        }
    }
}

/// One callback, with everything that it needs while the lock is let go.
enum Call {
    Done(XferId, Result<(), TransportError>),
    Down(Rank, Down),
    /// Of the inbox' message `n`.
    Unexpected {
        n: u64,
        from: Rank,
        key: MsgKey,
        head: Vec<u8>,
    },
    Opened {
        n: u64,
        id: XferId,
        head: Vec<u8>,
    },
    Incoming {
        n: u64,
        id: XferId,
        unit: u32,
        at: u64,
        data: Vec<u8>,
    },
    Outgoing {
        id: XferId,
        unit: u32,
        at: u64,
        room: Vec<u8>,
    },
}

impl Call {
    fn about(&self) -> Option<XferId> {
        match self {
            Call::Done(id, _)
            | Call::Opened { id, .. }
            | Call::Incoming { id, .. }
            | Call::Outgoing { id, .. } => Some(*id),
            Call::Down(..) | Call::Unexpected { .. } => None,
        }
    }
}

/// Finds the next callback that is due; moves what needs none. `stalled` are transfers that the sink did not want to go on with.
fn next_call(net: &mut Net, me: u32, stalled: &BTreeSet<XferId>) -> Option<Call> {
    let rank = net.rank(me);
    if rank.life != Life::Here {
        return None;
    }
    if let Some((id, result)) = rank.ended.pop_front() {
        return Some(Call::Done(id, result));
    }
    next_arrival(net, me, stalled)
        .or_else(|| next_departure(net, me, stalled))
        .or_else(|| {
            let rank = net.rank(me);
            let peer = rank.downs.pop_front()?;
            let how = rank.links[peer as usize].down.clone()?;
            Some(Call::Down(Rank(peer), how))
        })
}

fn next_arrival(net: &mut Net, me: u32, stalled: &BTreeSet<XferId>) -> Option<Call> {
    let rank = net.rank(me);
    for (n, m) in &mut rank.inbox {
        let n = *n;
        let Some((id, recv)) = m.recv.and_then(|id| Some((id, rank.recvs.get(&id)?))) else {
            if m.announced {
                continue;
            }
            m.announced = true;
            let (from, key, head) = (Rank(m.src), m.key, m.head.clone());
            return Some(Call::Unexpected { n, from, key, head });
        };
        // The head tells why lengths differ, so it comes first, as on every link.
        if !m.opened {
            let head = m.head.clone();
            return Some(Call::Opened { n, id, head });
        }
        if recv.bytes != m.bytes {
            let error = TransportError::Length {
                peer: Rank(m.src),
                theirs: m.bytes,
                ours: recv.bytes,
            };
            net.discard(me, n);
            return Some(Call::Done(id, Err(error)));
        }
        if m.consumed == m.bytes {
            net.discard(me, n);
            return Some(Call::Done(id, Ok(())));
        }
        if m.data.len() >= recv.unit as usize && !stalled.contains(&id) {
            let (unit, at) = (recv.unit, m.consumed);
            let data = std::mem::take(&mut m.data);
            return Some(Call::Incoming {
                n,
                id,
                unit,
                at,
                data,
            });
        }
    }
    None
}

fn next_departure(net: &mut Net, me: u32, stalled: &BTreeSet<XferId>) -> Option<Call> {
    let max_part = net.config.max_part;
    let sends = &net.ranks[me as usize].sends;
    // Among equals the one that was posted first.
    let (id, send, allowed) = sends
        .iter()
        .filter(|(id, _)| !stalled.contains(id))
        .filter_map(|(id, s)| Some((id, s, net.allowance(me, s)?)))
        .max_by_key(|(id, s, _)| (s.priority, std::cmp::Reverse(**id)))?;
    let (id, unit, at) = (*id, send.unit, send.filled);
    if send.bytes == 0 {
        net.send_part(me, id, Vec::new());
        let (id, result) = net.rank(me).ended.pop_back()?;
        return Some(Call::Done(id, result));
    }
    let left = usize::try_from((send.bytes - at).min(allowed)).unwrap_or(usize::MAX);
    let unit_len = unit as usize;
    let room = max_part.max(unit_len).min(left);
    let room = room - room % unit_len;
    Some(Call::Outgoing {
        id,
        unit,
        at,
        room: vec![0; room],
    })
}

/// Marks a callback as running until it is dropped, also by a panic of the sink's.
struct Running<'a> {
    shared: &'a Shared,
    me: u32,
    open: bool,
}

impl Running<'_> {
    /// Ends it together with what follows from it.
    fn end(mut self, f: impl FnOnce(&mut Net)) {
        self.open = false;
        let (shared, me) = (self.shared, self.me);
        shared.with(|net| {
            net.rank(me).calling = None;
            f(net);
        });
        shared.returned.notify_all();
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.open {
            self.shared.net.lock().rank(self.me).calling = None;
            self.shared.returned.notify_all();
        }
    }
}

impl SimTransport {
    /// Makes one callback; returns how many bytes it moved, or `None` where the sink did nothing.
    fn make(&self, call: Call, sink: &mut dyn Sink) -> Option<usize> {
        let me = self.me;
        let running = Running {
            shared: &self.shared,
            me,
            open: true,
        };
        let mut moved = Some(0);
        match call {
            Call::Done(id, result) => {
                sink.done(id, result);
                running.end(|_| ());
            }
            Call::Down(peer, how) => {
                sink.down(peer, how);
                running.end(|_| ());
            }
            Call::Unexpected { n, from, key, head } => {
                let verdict = sink.unexpected(from, key, &head);
                running.end(|net| {
                    // A receive that was posted in the meantime has the last word.
                    let unwanted = |net: &mut Net| {
                        net.rank(me).inbox.get(&n).is_some_and(|m| m.recv.is_none())
                    };
                    if verdict == Verdict::Refuse && unwanted(net) {
                        net.discard(me, n);
                    }
                });
            }
            Call::Opened { n, id, head } => {
                let verdict = sink.opened(id, &head);
                running.end(|net| match net.rank(me).inbox.get_mut(&n) {
                    Some(m) if m.recv == Some(id) && verdict == Verdict::Take => m.opened = true,
                    Some(m) if m.recv == Some(id) => net.discard(me, n),
                    _ => {}
                });
            }
            Call::Incoming {
                n,
                id,
                unit,
                at,
                data,
            } => {
                let mut piece = Piece::new(&data, unit);
                sink.incoming(id, at, &mut piece);
                let used = piece.used();
                running.end(|net| {
                    if let Some(m) = net.rank(me).inbox.get_mut(&n) {
                        let later = std::mem::take(&mut m.data);
                        m.data.extend_from_slice(&data[used..]);
                        m.data.extend_from_slice(&later);
                        m.consumed += used as u64;
                    }
                });
                moved = (used > 0).then_some(used);
            }
            Call::Outgoing {
                id,
                unit,
                at,
                mut room,
            } => {
                let mut outlet = Room::new(&mut room, unit);
                sink.outgoing(id, at, &mut outlet);
                let filled = outlet.filled();
                room.truncate(filled);
                running.end(|net| {
                    if filled > 0 {
                        net.send_part(me, id, room);
                    }
                });
                moved = (filled > 0).then_some(filled);
            }
        }
        moved
    }

    /// Refuses what cannot be posted now; `arrived` says whether the message is there in whole or part.
    fn admit(&self, net: &Net, t: &Transfer<'_>, arrived: bool) -> Result<(), TransportError> {
        let rank = &net.ranks[self.me as usize];
        let misuse = |what| TransportError::Misuse { peer: t.peer, what };
        if rank.life != Life::Here {
            return Err(misuse("this rank has left"));
        }
        pieces::check(Rank(self.me), &self.peers, 0, t)?;
        let peer = t.peer.0;
        let in_use = match t.dir {
            Dir::Send => rank
                .sends
                .values()
                .any(|s| s.peer == peer && s.key == t.key),
            Dir::Recv => rank
                .recvs
                .values()
                .any(|r| r.peer == peer && r.key == t.key),
        };
        if in_use {
            return Err(misuse("the key is in use"));
        }
        match rank.links[t.peer.idx()].down.clone() {
            Some(how) if !arrived => Err(TransportError::Down { peer: t.peer, how }),
            _ => Ok(()),
        }
    }
}

impl Transport for SimTransport {
    fn me(&self) -> Rank {
        Rank(self.me)
    }

    fn peers(&self) -> &[Rank] {
        &self.peers
    }

    fn link(&self) -> &'static str {
        "simulated"
    }

    fn post(&self, t: Transfer<'_>) -> Result<XferId, TransportError> {
        self.shared.with(|net| {
            let me = self.me;
            let peer = t.peer.0;
            match t.dir {
                Dir::Send => {
                    self.admit(net, &t, false)?;
                    let rank = net.rank(me);
                    let id = rank.fresh_id();
                    rank.sends.insert(
                        id,
                        SendState {
                            peer,
                            key: t.key,
                            bytes: t.bytes,
                            unit: t.unit,
                            priority: t.priority,
                            head: t.head.to_vec(),
                            filled: 0,
                            message: None,
                            granted: false,
                            paused: false,
                        },
                    );
                    Ok(id)
                }
                Dir::Recv => {
                    let ours = |m: &Inbound| m.src == peer && m.key == t.key && m.recv.is_none();
                    let arrived = net.rank(me).inbox.values().any(ours);
                    self.admit(net, &t, arrived)?;
                    let rank = net.rank(me);
                    let id = rank.fresh_id();
                    rank.recvs.insert(
                        id,
                        RecvState {
                            peer,
                            key: t.key,
                            bytes: t.bytes,
                            unit: t.unit,
                        },
                    );
                    if let Some(m) = rank.inbox.values_mut().find(|m| ours(m)) {
                        m.recv = Some(id);
                    }
                    net.grant(me, peer, t.key);
                    Ok(id)
                }
            }
        })
    }

    fn cancel(&self, id: XferId) {
        let mut net = self.shared.net.lock();
        while net.rank(self.me).calling == Some(id) {
            self.shared.returned.wait(&mut net);
        }
        net.cancel(self.me, id);
    }

    fn forget(&self, op: OpId) {
        self.shared.with(|net| net.forget(self.me, op));
    }

    fn progress(&self, sink: &mut dyn Sink, budget: usize) -> u64 {
        let Some(_turn) = self.turn.try_lock() else {
            return 0;
        };
        let mut calls = 0;
        let mut moved = 0;
        let mut stalled = BTreeSet::new();
        while moved < budget.max(1) {
            let call = {
                let mut net = self.shared.net.lock();
                let mut call = next_call(&mut net, self.me, &stalled);
                while call.is_none() && calls == 0 && net.config.self_driven && net.step() {
                    call = next_call(&mut net, self.me, &stalled);
                }
                net.rank(self.me).calling = call.as_ref().and_then(Call::about);
                let wakes = net.take_wakes();
                drop(net);
                call_all(wakes);
                call
            };
            let Some(call) = call else {
                break;
            };
            let about = call.about();
            match self.make(call, sink) {
                Some(n) => {
                    moved += n;
                    calls += 1;
                }
                None => stalled.extend(about),
            }
        }
        calls
    }

    fn arm(&self) -> Armed<'_> {
        match self.shared.net.lock().has_work(self.me) {
            true => Armed::MoreToDo,
            false => Armed::Wakes,
        }
    }

    fn attach(&self, wake: Arc<dyn Wake>) {
        self.shared.with(|net| net.rank(self.me).wake = Some(wake));
    }

    fn leave(&self, _limit: Duration) {
        // What has left a sink is on its way already, and the goodbye comes after it.
        self.shared
            .with(|net| net.end_links(self.me, Life::Left, &Down::Left));
    }

    fn stats(&self) -> LinkStats {
        self.shared.net.lock().rank(self.me).stats
    }
}

impl Drop for SimTransport {
    fn drop(&mut self) {
        let why = format!("rank {} was dropped", self.me);
        self.shared
            .with(|net| net.end_links(self.me, Life::Dead, &Down::Lost(why)));
    }
}
