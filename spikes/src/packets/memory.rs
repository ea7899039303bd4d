//! A packet link between threads, for tests of what is built on packets.

use super::{Event, Packets, Rest};
use gaggle_core::Rank;
use std::{
    sync::mpsc::{Receiver, Sender, channel},
    time::Duration,
};

/// One rank's end.
pub struct Mailbox {
    me: Rank,
    peers: Vec<Sender<Event>>,
    inbox: Receiver<Event>,
}

/// One link per rank.
pub fn world(n: u32) -> Vec<Mailbox> {
    let (peers, boxes): (Vec<_>, Vec<_>) = (0..n).map(|_| channel()).unzip();
    let mailbox = |(me, inbox): (u32, Receiver<Event>)| Mailbox {
        me: Rank(me),
        peers: peers.clone(),
        inbox,
    };
    (0..).zip(boxes).map(mailbox).collect()
}

impl Packets for Mailbox {
    fn name(&self) -> &'static str {
        "packets"
    }
    fn send(&mut self, to: Rank, packet: &[u8]) -> bool {
        let event = Event::Packet {
            from: self.me,
            bytes: packet.to_vec(),
        };
        // To one that is gone it goes nowhere.
        let _ = self.peers[to.idx()].send(event);
        true
    }
    fn poll(&mut self) -> Option<Event> {
        self.inbox.try_recv().ok()
    }
    fn rest(&mut self) -> Rest {
        Rest::Poll(Duration::from_micros(20))
    }
    fn is_flushed(&mut self) -> bool {
        true
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        for peer in &self.peers {
            // As above.
            let _ = peer.send(Event::Lost {
                peer: self.me,
                why: "its mailbox is gone".into(),
            });
        }
    }
}
