//! Several threads at once.

use super::super::{
    Bench,
    net::{Msg, Net, Recorder},
};
use gaggle_core::{Down, Inlet, MsgKey, Outlet, Rank, Sink, TransportError, Verdict, XferId};
use parking_lot::Mutex;
use std::time::Duration;

/// One recorder under a lock that is held for a callback only.
struct Shared<'a>(&'a Mutex<Recorder>);

impl Sink for Shared<'_> {
    fn outgoing(&mut self, id: XferId, at: u64, out: &mut dyn Outlet) {
        self.0.lock().outgoing(id, at, out);
    }
    fn opened(&mut self, id: XferId, head: &[u8]) -> Verdict {
        self.0.lock().opened(id, head)
    }
    fn incoming(&mut self, id: XferId, at: u64, part: &mut dyn Inlet) {
        self.0.lock().incoming(id, at, part);
    }
    fn unexpected(&mut self, from: Rank, key: MsgKey, head: &[u8]) -> Verdict {
        self.0.lock().unexpected(from, key, head)
    }
    fn done(&mut self, id: XferId, result: Result<(), TransportError>) {
        self.0.lock().done(id, result);
    }
    fn down(&mut self, peer: Rank, how: Down) {
        self.0.lock().down(peer, how);
    }
}

pub(super) fn threads(b: &mut Bench<'_>) {
    let mut net = b.net(3);
    let mut ids: Vec<Vec<XferId>> = vec![Vec::new(); 3];
    let mut cancel = Vec::new();
    for tag in 0..60 {
        for (from, to) in [(0, 1), (1, 2), (2, 0), (1, 0)] {
            let mut m = Msg::new(from, to, tag, 11_000 * (tag as usize % 7));
            m.lend = tag % 3 > 0;
            ids[to as usize].push(net.recv(m));
            ids[from as usize].push(net.send(m));
        }
        let m = Msg::new(0, 2, tag, 50_000);
        net.recv(m);
        cancel.push(net.send(m));
    }
    let mut parts: Vec<_> = net
        .nodes
        .iter_mut()
        .map(|n| (n.transport.take(), Mutex::new(std::mem::take(&mut n.sink))))
        .collect();
    std::thread::scope(|scope| {
        for ((transport, sink), ids) in parts.iter().zip(&ids) {
            let Some(transport) = transport.as_deref() else {
                continue;
            };
            for _ in 0..2 {
                scope.spawn(move || {
                    // Bounded by the other ranks' progress; the guard turns a hang into a failure.
                    for _ in 0..50_000_000_u64 {
                        transport.progress(&mut Shared(sink), 100_000);
                        let sink = sink.lock();
                        if ids.iter().all(|id| sink.ended.contains_key(id)) {
                            return;
                        }
                        drop(sink);
                        std::thread::yield_now();
                    }
                    panic!("no end");
                });
            }
        }
        // Meanwhile a third thread takes back sends of rank 0, whatever has become of them.
        if let Some(t) = parts[0].0.as_deref() {
            for id in &cancel {
                t.cancel(*id);
            }
        }
    });
    for ((_, sink), ids) in parts.iter().zip(&ids) {
        let sink = sink.lock();
        assert!(
            ids.iter()
                .all(|id| matches!(sink.ended.get(id), Some(Ok(()))))
        );
    }
    // They drop together only after all threads have ended.
    parts.clear();
}

/// Lets a thread that has parked itself go on; a call before it parks is not lost.
struct Unpark(std::thread::Thread);

impl gaggle_core::Wake for Unpark {
    fn wake(&self) {
        self.0.unpark();
    }
}

/// Every rank on a thread of its own that sleeps whenever `arm` allows it, through many dependent rounds.
pub(super) fn sleepers(b: &mut Bench<'_>) {
    const ROUNDS: u32 = 200;
    let mut net = b.net(3);
    std::thread::scope(|scope| {
        for (me, node) in (0..).zip(net.nodes.drain(..)) {
            scope.spawn(move || {
                if let Some(t) = &node.transport {
                    t.attach(std::sync::Arc::new(Unpark(std::thread::current())));
                }
                let mut idle = || false;
                let mut one = Net::of_one(me, node, &mut idle);
                for round in 0..ROUNDS {
                    let mut ids = Vec::new();
                    for peer in (0..3).filter(|p| *p != me) {
                        let len = [0, 8, 5000, 150_000][round as usize % 4];
                        let mut there = Msg::new(me, peer, round, len);
                        there.lend = !round.is_multiple_of(3);
                        let back = Msg {
                            from: peer,
                            to: me,
                            ..there
                        };
                        ids.push((me, one.send(there)));
                        ids.push((me, one.recv(back)));
                    }
                    one.until_over("a round among sleepers", &ids);
                }
                one.transport(me).leave(Duration::from_secs(20));
            });
        }
    });
}
