//! Cancellation, death and goodbyes, at every moment.

use super::{
    super::{
        Bench,
        net::{Msg, Net, op},
    },
    Dice, settled,
};
use gaggle_core::{Down, Rank, TransportError};
use std::time::Duration;

pub(super) fn cancelled_sends(b: &mut Bench<'_>) {
    let large = b.tier.large;
    for lend in [true, false] {
        // Before anything happens.
        let mut net = b.net(2);
        let mut m = Msg::new(0, 1, 1, 5000);
        m.lend = lend;
        let s = net.send(m);
        net.cancel(0, s);
        net.fence(0, 1);
        // Before anything happens, but its receive is known; then the same message again.
        let mut m = Msg::new(0, 1, 6, large);
        m.lend = lend;
        let r = net.recv(m);
        net.fence(0, 1);
        let s = net.send(m);
        net.cancel(0, s);
        let s = net.send(m);
        net.until_over("the same message again", &[(0, s), (1, r)]);
        assert!(net.result(1, r).is_ok());
        // In mid-message, wanted.
        let mut m = Msg::new(0, 1, 2, large);
        m.lend = lend;
        let (r, s) = (net.recv(m), net.send(m));
        net.budget = 1;
        net.until("a first part", |n| n.nodes[1].sink.got(r) > 0);
        assert!(!net.is_over(1, r));
        net.cancel(0, s);
        net.until_over("the other end", &[(1, r)]);
        if !net.is_over(0, s) {
            let e = net.result(1, r).as_ref().expect_err("aborted");
            assert!(
                matches!(e, TransportError::Aborted { peer: Rank(0) }),
                "{e:?}"
            );
        }
        net.budget = 1 << 20;
        // In mid-message, unwanted: what has come is dropped.
        let mut m = Msg::new(0, 1, 3, large);
        m.lend = lend;
        let s = net.send(m);
        net.fence(0, 1);
        net.cancel(0, s);
        net.fence(0, 1);
        // After its end.
        let m = Msg::new(0, 1, 4, 300_001);
        let (r, s) = (net.recv(m), net.send(m));
        net.until_over("another message", &[(0, s), (1, r)]);
        net.cancel(0, s);
        net.cancel(1, r);
        net.fence(0, 1);
        settled(&net.totals());
    }
}

pub(super) fn cancelled_receives(b: &mut Bench<'_>) {
    let large = b.tier.large;
    for len in [0, 1000, large] {
        let mut net = b.net(2);
        // Before anything has come; then the message comes, and nobody wants it.
        let m = Msg::new(0, 1, 1, len);
        let r = net.recv(m);
        net.fence(0, 1);
        net.cancel(1, r);
        net.nodes[1].sink.refuse_unexpected = true;
        let s = net.send(m);
        net.until_over("a send that nobody wants any more", &[(0, s)]);
        assert!(net.result(0, s).is_ok());
        net.nodes[1].sink.refuse_unexpected = false;
        // After it has come early: the news of it is not told again.
        let m = Msg::new(0, 1, 700, len.min(1000));
        let s = net.send(m);
        net.fence(0, 1);
        let r = net.recv(m);
        net.cancel(1, r);
        net.fence(0, 1);
        net.transport(1).forget(op(700));
        net.until_over("a send that was withdrawn from", &[(0, s)]);
        // In mid-message.
        let m = Msg::new(0, 1, 2, large);
        let (r, s) = (net.recv(m), net.send(m));
        net.budget = 1;
        net.until("a first part", |n| n.nodes[1].sink.got(r) > 0);
        net.cancel(1, r);
        net.budget = 1 << 20;
        net.until_over("the sender's end", &[(0, s)]);
        assert!(net.result(0, s).is_ok(), "the sender does not notice");
        // Posted, cancelled and posted again before anything has come.
        let m = Msg::new(0, 1, 3, 300_001);
        let r = net.recv(m);
        net.fence(0, 1);
        net.cancel(1, r);
        let (r, s) = (net.recv(m), net.send(m));
        net.until_over("another message", &[(0, s), (1, r)]);
        net.fence(0, 1);
    }
}

/// Random transfers, some cancelled on either side, some never wanted; in the end everything else has arrived.
pub(super) fn mixture(b: &mut Bench<'_>) {
    for seed in 0..8 {
        let n = [2, 3, 5][seed % 3];
        let mut net = b.net(n);
        let mut dice = Dice(seed as u64 * 977 + 5);
        let mut must = Vec::new();
        let mut cancel = Vec::new();
        for node in &mut net.nodes {
            node.sink.sip = (dice.roll(3) == 0).then_some(4000);
        }
        for tag in 0..120 {
            let from = dice.roll(n as usize) as u32;
            let to = (from + 1 + dice.roll(n as usize - 1) as u32) % n;
            let len = [0, 3, 900, 40_000, 300_000][dice.roll(5)];
            let mut m = Msg::new(from, to, tag, len);
            m.lend = dice.roll(2) == 0;
            m.priority = dice.roll(3) as i32;
            match dice.roll(6) {
                0 => cancel.push((from, net.send(m))),
                1 => cancel.push((to, net.recv(m))),
                2 => {
                    must.push((to, net.recv(m)));
                    must.push((from, net.send(m)));
                }
                3 => {
                    cancel.push((to, net.recv(m)));
                    cancel.push((from, net.send(m)));
                }
                _ => {
                    must.push((from, net.send(m)));
                    must.push((to, net.recv(m)));
                }
            }
            if dice.roll(3) == 0 {
                net.budget = 1 << (10 + dice.roll(10));
                net.round();
            }
            if dice.roll(3) == 0 && !cancel.is_empty() {
                let (rank, id) = cancel.swap_remove(dice.roll(cancel.len()));
                if !net.is_over(rank, id) {
                    net.cancel(rank, id);
                }
            }
        }
        net.budget = 1 << 20;
        net.until_over("what was wanted on both sides", &must);
        for (rank, id) in must {
            assert!(net.result(rank, id).is_ok(), "seed {seed}");
        }
    }
}

fn lost(net: &Net<'_>, rank: u32, peer: u32) -> bool {
    net.nodes[rank as usize]
        .sink
        .downs
        .iter()
        .any(|(p, how)| *p == peer && matches!(how, Down::Lost(why) if !why.is_empty()))
}

fn is_down(r: &Result<(), TransportError>, peer: u32) -> bool {
    matches!(r, Err(TransportError::Down { peer: p, how: Down::Lost(_) }) if p.0 == peer)
}

pub(super) fn death_of_sender(b: &mut Bench<'_>) {
    let large = b.tier.large;
    for lend in [true, false] {
        let mut net = b.net(3);
        let mut m = Msg::new(0, 1, 1, large);
        m.lend = lend;
        let (r, _) = (net.recv(m), net.send(m));
        let never = net.recv(Msg::new(0, 1, 2, 10));
        let idle = net.recv(Msg::new(0, 2, 3, 10));
        net.budget = 1;
        net.until("a first part", |n| n.nodes[1].sink.got(r) > 0);
        net.nodes[0].transport = None;
        net.budget = 1 << 20;
        net.until_over("what was pending", &[(1, r), (1, never), (2, idle)]);
        net.until("both have been told", |n| lost(n, 1, 0) && lost(n, 2, 0));
        for (rank, id) in [(1, r), (1, never), (2, idle)] {
            assert!(
                is_down(net.result(rank, id), 0),
                "{:?}",
                net.result(rank, id)
            );
        }
        assert!(matches!(
            net.try_recv(Msg::new(0, 1, 9, 1)),
            Err(TransportError::Down { .. })
        ));
        assert!(matches!(
            net.try_send(Msg::new(1, 0, 9, 1)),
            Err(TransportError::Down { .. })
        ));
        // The others go on.
        let m = Msg::new(1, 2, 4, large);
        let ids = [(2, net.recv(m)), (1, net.send(m))];
        net.until_over("a message between the others", &ids);
    }
}

/// Has everybody know everybody, who does not from the beginning.
fn meet(net: &mut Net<'_>, meshed: bool) {
    let n = net.nodes.len() as u32;
    for a in (0..n).filter(|_| !meshed) {
        for b in 0..a {
            net.fence(a, b);
        }
    }
}

pub(super) fn death_of_receiver(b: &mut Bench<'_>) {
    let (large, meshed) = (b.tier.large, b.tier.meshed);
    for lend in [true, false] {
        let mut net = b.net(3);
        meet(&mut net, meshed);
        let mut m = Msg::new(0, 1, 1, large);
        m.lend = lend;
        let (r, s) = (net.recv(m), net.send(m));
        let mut waits = Msg::new(0, 1, 2, large);
        waits.lend = lend;
        let waiting = net.send(waits);
        net.budget = 1;
        net.until("a first part", |n| n.nodes[1].sink.got(r) > 0);
        net.nodes[1].transport = None;
        net.budget = 1 << 20;
        net.until_over("what was pending", &[(0, s), (0, waiting)]);
        net.until("both have been told", |n| lost(n, 0, 1) && lost(n, 2, 1));
        assert!(
            is_down(net.result(0, waiting), 1),
            "{:?}",
            net.result(0, waiting)
        );
        let m = Msg::new(0, 2, 4, large);
        let ids = [(2, net.recv(m)), (0, net.send(m))];
        net.until_over("a message between the others", &ids);
    }
}

pub(super) fn polite(b: &mut Bench<'_>) {
    let meshed = b.tier.meshed;
    let mut net = b.net(3);
    meet(&mut net, meshed);
    let m = Msg::new(0, 1, 1, 70_000);
    let ids = [(1, net.recv(m)), (0, net.send(m))];
    let never = net.recv(Msg::new(0, 1, 2, 10));
    net.until_over("the last message", &ids);
    net.transport(0).leave(Duration::from_secs(5));
    assert!(net.try_send(Msg::new(0, 1, 5, 1)).is_err(), "gone is gone");
    net.until("both have been told", |n| {
        [1, 2].iter().all(|r| n.nodes[*r].sink.downs.len() == 1)
    });
    net.until_over("what was pending", &[(1, never)]);
    net.nodes[0].transport = None;
    for rank in [1, 2] {
        assert_eq!(net.nodes[rank].sink.downs, [(0, Down::Left)]);
    }
    assert!(
        matches!(
            net.result(1, never),
            Err(TransportError::Down {
                peer: Rank(0),
                how: Down::Left
            })
        ),
        "{:?}",
        net.result(1, never)
    );
    // A token that was on its way is still good.
    let token = Msg::new(1, 2, 7, 0);
    let s = net.send(token);
    net.until_over("a token's sender", &[(1, s)]);
    net.transport(1).leave(Duration::from_secs(5));
    let r = net.recv(token);
    net.until_over("the token", &[(2, r)]);
    assert!(net.result(2, r).is_ok(), "{:?}", net.result(2, r));
    net.until("the end", |n| n.nodes[2].sink.downs.len() == 2);
    assert_eq!(net.nodes[2].sink.downs[1], (1, Down::Left));
}
