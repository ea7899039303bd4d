//! What messages, credits and goodbyes do to the ranks at both ends.

use super::{
    rank::{Inbound, Life, SendState},
    state::{Event, Net, Opening},
};
use gaggle_core::{Down, MsgKey, OpId, Rank, TransportError, XferId};
use std::{collections::BTreeSet, time::Duration};

impl Net {
    pub(super) fn part_arrives(
        &mut self,
        src: u32,
        dst: u32,
        message: u64,
        open: Option<Opening>,
        data: &[u8],
    ) {
        let rank = self.rank(dst);
        if rank.life != Life::Here || rank.links[src as usize].down.is_some() {
            return;
        }
        rank.stats.frames_received += 1;
        rank.stats.payload_received += data.len() as u64;
        if let Some(open) = open {
            rank.stats.header_received += open.head.len() as u64;
            rank.begin(src, message, open);
        }
        // What was refused or forgotten is no longer there: its bytes are dropped.
        if let Some(m) = rank.inbox.values_mut().find(|m| m.message == message) {
            m.data.extend_from_slice(data);
            m.arrived += data.len() as u64;
        }
        self.wake(dst);
    }

    pub(super) fn abort_arrives(&mut self, src: u32, dst: u32, message: u64) {
        let rank = self.rank(dst);
        let Some(n) = rank
            .inbox
            .iter()
            .find(|(_, m)| m.message == message)
            .map(|(n, _)| *n)
        else {
            return;
        };
        let Some(m) = rank.inbox.remove(&n) else {
            return;
        };
        match m.recv.filter(|id| rank.recvs.remove(id).is_some()) {
            Some(id) => {
                let error = TransportError::Aborted { peer: Rank(src) };
                rank.ended.push_back((id, Err(error)));
            }
            None => self.release(dst, src, m.key),
        }
        self.wake(dst);
    }

    pub(super) fn credit_arrives(&mut self, src: u32, dst: u32, key: MsgKey, grant: bool) {
        let rank = self.rank(dst);
        let link = &mut rank.links[src as usize];
        if link.owed.remove(&key).is_some() {
            let begun = |s: &&mut SendState| s.peer == src && s.key == key;
            if let Some(send) = rank.sends.values_mut().find(begun) {
                send.granted = true;
            }
        } else if grant {
            link.grants.insert(key);
        }
        self.wake(dst);
    }

    /// Gives the sender its credit back for a message that nobody wants.
    fn release(&mut self, me: u32, sender: u32, key: MsgKey) {
        self.launch(Event::Credit {
            src: me,
            dst: sender,
            key,
            grant: false,
        });
    }

    pub(super) fn grant(&mut self, me: u32, sender: u32, key: MsgKey) {
        self.launch(Event::Credit {
            src: me,
            dst: sender,
            key,
            grant: true,
        });
    }

    /// Drops a message that has begun to arrive, and whatever of it is still to come.
    pub(super) fn discard(&mut self, me: u32, n: u64) {
        if let Some(m) = self.rank(me).inbox.remove(&n) {
            if let Some(id) = m.recv {
                self.rank(me).recvs.remove(&id);
            } else {
                self.release(me, m.src, m.key);
            }
        }
    }

    pub(super) fn forget(&mut self, me: u32, op: OpId) {
        let rank = self.rank(me);
        for link in &mut rank.links {
            link.grants.retain(|key| key.op != op);
        }
        let unwanted = |m: &Inbound| m.key.op == op && m.recv.is_none();
        let found: Vec<u64> = rank
            .inbox
            .iter()
            .filter(|(_, m)| unwanted(m))
            .map(|(n, _)| *n)
            .collect();
        for n in found {
            self.discard(me, n);
        }
    }

    /// How many bytes of this send may leave now; `None` where nothing may, not even its head.
    pub(super) fn allowance(&self, me: u32, send: &SendState) -> Option<u64> {
        let link = &self.ranks[me as usize].links[send.peer as usize];
        if send.paused {
            return None;
        }
        if send.granted || link.grants.contains(&send.key) {
            return Some(u64::MAX);
        }
        let left = self.config.eager.saturating_sub(link.owed.values().sum());
        let has_credit = send.message.is_some() || link.owed.len() < self.config.credit as usize;
        let has_room = send.bytes == 0 || left >= u64::from(send.unit);
        (has_credit && has_room).then_some(left)
    }

    /// Whether the rank's `progress` would find something, were its sink ready for it.
    pub(super) fn has_work(&self, me: u32) -> bool {
        let rank = &self.ranks[me as usize];
        if rank.life != Life::Here {
            return false;
        }
        let pending = |m: &Inbound| match m.recv.and_then(|id| rank.recvs.get(&id)) {
            None => !m.announced,
            Some(r) => !m.opened || m.consumed == m.bytes || m.data.len() >= r.unit as usize,
        };
        !rank.ended.is_empty()
            || !rank.downs.is_empty()
            || rank.inbox.values().any(pending)
            || rank.sends.values().any(|s| self.allowance(me, s).is_some())
    }

    /// Sends the next part of an own message; the last one ends the transfer.
    pub(super) fn send_part(&mut self, me: u32, id: XferId, data: Vec<u8>) {
        let gap = self.draw(self.config.gap.clone());
        let fresh = self.n_messages;
        let rank = &mut self.ranks[me as usize];
        let Some(send) = rank.sends.get_mut(&id) else {
            return;
        };
        let (dst, key) = (send.peer, send.key);
        let mut open = None;
        let message = *send.message.get_or_insert_with(|| {
            self.n_messages += 1;
            let link = &mut rank.links[dst as usize];
            send.granted = link.grants.remove(&key);
            if !send.granted {
                link.owed.insert(key, 0);
            }
            rank.stats.header_sent += send.head.len() as u64;
            open = Some(Opening {
                key,
                head: std::mem::take(&mut send.head),
                bytes: send.bytes,
            });
            fresh
        });
        send.filled += data.len() as u64;
        if let Some(owed) = rank.links[dst as usize].owed.get_mut(&key) {
            *owed += data.len() as u64;
        }
        rank.stats.frames_sent += 1;
        rank.stats.payload_sent += data.len() as u64;
        let last = send.filled == send.bytes;
        send.paused = !last && gap > Duration::ZERO;
        let paused = send.paused;
        if last {
            rank.sends.remove(&id);
            rank.ended.push_back((id, Ok(())));
        }
        self.launch(Event::Part {
            src: me,
            dst,
            message,
            open,
            data,
            last,
        });
        if paused {
            self.schedule(self.now + gap, Event::Resume { rank: me, id });
        }
    }

    /// Takes an own transfer back.
    pub(super) fn cancel(&mut self, me: u32, id: XferId) {
        let rank = self.rank(me);
        rank.ended.retain(|(other, _)| *other != id);
        if let Some(send) = rank.sends.remove(&id) {
            if let Some(message) = send.message {
                self.launch(Event::Abort {
                    src: me,
                    dst: send.peer,
                    message,
                });
            }
        } else if rank.recvs.remove(&id).is_some() {
            // A message that has not been opened is nobody's again; one that has is dropped.
            let opened = |m: &&mut Inbound| m.recv == Some(id);
            if let Some(m) = rank.inbox.values_mut().find(opened)
                && !m.opened
            {
                m.recv = None;
            }
            rank.inbox.retain(|_, m| m.recv != Some(id));
        }
    }

    /// `peer` is gone as `me` sees it.
    pub(super) fn goes_down(&mut self, me: u32, peer: u32, how: Down) {
        let rank = self.rank(me);
        if rank.life != Life::Here || rank.links[peer as usize].down.is_some() {
            return;
        }
        rank.links[peer as usize].down = Some(how.clone());
        // What a peer gave whole before it left is still good.
        let left = how == Down::Left;
        rank.inbox
            .retain(|_, m| m.src != peer || (left && m.is_whole()));
        let kept: BTreeSet<XferId> = rank.inbox.values().filter_map(|m| m.recv).collect();
        let sends = rank
            .sends
            .iter()
            .filter(|(_, s)| s.peer == peer)
            .map(|(id, _)| *id);
        let recvs = rank
            .recvs
            .iter()
            .filter(|(id, r)| r.peer == peer && !kept.contains(id))
            .map(|(id, _)| *id);
        let failed: BTreeSet<XferId> = sends.chain(recvs).collect();
        for id in failed {
            rank.sends.remove(&id);
            rank.recvs.remove(&id);
            let error = TransportError::Down {
                peer: Rank(peer),
                how: how.clone(),
            };
            rank.ended.push_back((id, Err(error)));
        }
        rank.downs.push_back(peer);
        self.wake(me);
    }

    /// The rank's links end, for it at once and for its peers when they hear of it.
    pub(super) fn end_links(&mut self, me: u32, life: Life, how: &Down) {
        let rank = self.rank(me);
        if rank.life != Life::Here {
            return;
        }
        rank.life = life;
        rank.sends.clear();
        rank.recvs.clear();
        rank.inbox.clear();
        rank.ended.clear();
        rank.downs.clear();
        for dst in (0..self.world()).filter(|p| *p != me) {
            self.launch(Event::Down {
                src: me,
                dst,
                how: how.clone(),
            });
        }
    }
}
