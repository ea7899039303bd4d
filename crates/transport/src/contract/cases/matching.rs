//! Messages find their receives, whatever the order, and carry what they should.

use super::{
    super::{
        Bench,
        net::{Msg, key, op},
    },
    Dice, settled, taken,
};
use gaggle_core::{Dir, Rank, Transfer, TransportError, XferId};

pub(super) fn all_to_all(b: &mut Bench<'_>) {
    const LENGTHS: [usize; 10] = [0, 1, 2, 3, 4, 5, 7, 127, 4099, 70_001];
    for n in [1, 2, 3, 5, 7, 8] {
        let mut net = b.net(n);
        // A budget says how much, never whether.
        net.budget = [1 << 20, 1, 5000][n as usize % 3];
        let mut dice = Dice(u64::from(n));
        let mut todo = Vec::new();
        let mut payload = 0;
        for (from, to) in (0..n).flat_map(|f| (0..n).map(move |t| (f, t))) {
            for (i, len) in LENGTHS.iter().enumerate().filter(|_| from != to) {
                let mut m = Msg::new(from, to, i as u32, *len);
                m.unit = [1, 2, 4, 8, 16, 3][dice.roll(6)];
                m.len *= m.unit as usize;
                m.lend = dice.roll(3) > 0;
                m.priority = dice.roll(5) as i32 - 2;
                payload += m.len as u64;
                todo.push((true, m));
                todo.push((false, m));
            }
        }
        dice.shuffle(&mut todo);
        let mut ids = Vec::new();
        for (send, m) in todo {
            if send {
                ids.push((m.from, net.send(m)));
            } else {
                ids.push((m.to, net.recv(m)));
            }
            if dice.roll(8) == 0 {
                net.round();
            }
        }
        net.until_over("all to all", &ids);
        for (rank, id) in ids {
            assert!(net.result(rank, id).is_ok());
        }
        for (x, y) in (1..n).map(|x| (x - 1, x)) {
            net.fence(x, y);
        }
        let s = net.totals();
        let sent = s.payload_sent + s.lent_sent;
        assert_eq!((sent, taken(&s)), (payload, payload));
        assert_eq!(
            (s.header_sent, s.frames_sent),
            (s.header_received, s.frames_received)
        );
    }
}

pub(super) fn large(b: &mut Bench<'_>) {
    let len = b.tier.large;
    let mut net = b.net(2);
    let mut ids = Vec::new();
    for (from, to) in [(0, 1), (1, 0)] {
        for (tag, lend, unit) in [(1, true, 1), (2, false, 1), (3, true, 16), (4, false, 12)] {
            let mut m = Msg::new(from, to, tag, len - len % unit);
            (m.unit, m.lend) = (unit as u32, lend);
            ids.push((to, net.recv(m)));
            ids.push((from, net.send(m)));
        }
    }
    net.until_over("large messages", &ids);
    assert!(ids.iter().all(|(r, id)| net.result(*r, *id).is_ok()));
    net.fence(0, 1);
    settled(&net.totals());
}

pub(super) fn sips(b: &mut Bench<'_>) {
    let mut net = b.net(2);
    for node in &mut net.nodes {
        node.sink.sip = Some(37);
    }
    let mut ids = Vec::new();
    for (tag, unit, lend) in [
        (1, 1, true),
        (2, 2, false),
        (3, 8, true),
        (4, 16, false),
        (5, 3, false),
    ] {
        let mut m = Msg::new(0, 1, tag, 6000 * unit as usize);
        (m.unit, m.lend) = (unit, lend);
        ids.push((0, net.send(m)));
        if tag == 4 {
            // The receiver's unit is its own.
            m.unit = 5;
        }
        ids.push((1, net.recv(m)));
    }
    // Frames that end inside the receiver's units, and messages that end with a unit which was cut.
    for tag in 10..50 {
        let mut m = Msg::new(0, 1, tag, 80 * (1 + tag as usize % 3));
        (m.unit, m.lend) = (5, false);
        ids.push((0, net.send(m)));
        m.unit = 16;
        ids.push((1, net.recv(m)));
    }
    net.until_over("sips", &ids);
}

pub(super) fn overtaking(b: &mut Bench<'_>) {
    let mut net = b.net(2);
    let first = Msg::new(0, 1, 1, 5000);
    let s1 = net.send(first);
    net.fence(0, 1);
    let second = Msg::new(0, 1, 2, 5000);
    let (s2, r2) = (net.send(second), net.recv(second));
    net.until_over(
        "the second, while nobody wants the first",
        &[(1, r2), (0, s2)],
    );
    assert_eq!(net.nodes[1].sink.unexpected, [(0, key(1))]);
    let r1 = net.recv(first);
    net.until_over("the first", &[(0, s1), (1, r1)]);
    assert_eq!(net.totals().early_messages, 1);
}

pub(super) fn misuse(b: &mut Bench<'_>) {
    let mut net = b.net(3);
    let good = Msg::new(0, 1, 1, 8);
    let too_long = [0; gaggle_core::HEAD_MAX + 1];
    let t = Transfer {
        dir: Dir::Send,
        peer: Rank(1),
        key: key(9),
        bytes: 8,
        unit: 4,
        priority: 0,
        head: &[],
        loan: None,
    };
    let me = net.transport(0);
    for peer in [Rank(0), Rank(3), Rank(u32::MAX)] {
        for dir in [Dir::Send, Dir::Recv] {
            let r = me.post(Transfer { peer, dir, ..t });
            assert!(
                matches!(r, Err(TransportError::NoLink(p)) if p == peer),
                "{r:?}"
            );
        }
    }
    for bad in [
        Transfer { unit: 0, ..t },
        Transfer { unit: 17, ..t },
        Transfer { unit: 3, ..t },
        Transfer {
            head: &too_long,
            ..t
        },
        Transfer {
            dir: Dir::Recv,
            head: b"x",
            ..t
        },
    ] {
        let r = me.post(bad);
        assert!(
            matches!(r, Err(TransportError::Misuse { peer: Rank(1), .. })),
            "{r:?}"
        );
    }
    me.cancel(XferId(12_345));
    me.forget(op(1));
    let (s, r) = (net.send(good), net.recv(good));
    assert!(matches!(
        net.try_send(good),
        Err(TransportError::Misuse { peer: Rank(1), .. })
    ));
    assert!(matches!(
        net.try_recv(good),
        Err(TransportError::Misuse { peer: Rank(0), .. })
    ));
    net.until_over("the good one", &[(0, s), (1, r)]);
    net.cancel(0, s);
}

pub(super) fn lengths(b: &mut Bench<'_>) {
    for early in [false, true] {
        for (ours, theirs) in [
            (100, 99),
            (99, 100),
            (0, 5),
            (5, 0),
            (400_000, 300_000),
            (300_000, 400_000),
        ] {
            let mut net = b.net(2);
            let (there, here) = (Msg::new(0, 1, 1, theirs), Msg::new(0, 1, 1, ours));
            let s = net.send(there);
            if early {
                net.fence(0, 1);
            }
            let r = net.recv(here);
            net.until_over("both ends", &[(0, s), (1, r)]);
            assert!(net.result(0, s).is_ok(), "the sender does not notice");
            let e = net.result(1, r).as_ref().expect_err("lengths differ");
            assert!(
                matches!(e, TransportError::Length { peer: Rank(0), theirs: t, ours: o } if (*t, *o) == (theirs as u64, ours as u64)),
                "{e:?}"
            );
            // The link is still good.
            let m = Msg::new(0, 1, 2, 50_000);
            let ids = [(0, net.send(m)), (1, net.recv(m))];
            net.until_over("another message", &ids);
        }
    }
}

pub(super) fn priorities(b: &mut Bench<'_>) {
    let large = b.tier.large;
    let mut net = b.net(2);
    let mut all: Vec<Msg> = (0..4).map(|i| Msg::new(0, 1, i, large)).collect();
    for (m, p) in all.iter_mut().zip([-5, 0, 7, 3]) {
        m.priority = p;
    }
    let recvs: Vec<_> = all.iter().map(|m| net.recv(*m)).collect();
    net.fence(0, 1);
    for m in &all {
        net.send(*m);
    }
    net.nodes[1].sink.order.clear();
    net.until("all", |n| recvs.iter().all(|r| n.is_over(1, *r)));
    assert_eq!(
        net.nodes[1].sink.order,
        [recvs[2], recvs[3], recvs[1], recvs[0]]
    );
}
