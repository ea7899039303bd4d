//! The promises, one function each.

use super::{
    Bench, Tier,
    net::{Msg, Net, Recorder, key, op},
};
use gaggle_core::{
    Dir, Down, Inlet, LinkStats, MsgKey, Outlet, Rank, Sink, Transfer, TransportError, Verdict,
    XferId,
};
use parking_lot::Mutex;
use std::time::Duration;

type Case = (&'static str, fn(&Tier) -> bool, fn(&mut Bench<'_>));

pub(super) const ALL: &[Case] = &[
    ("all to all in any order", |_| true, all_to_all),
    ("large messages with odd sizes", |_| true, large),
    ("small sips", |_| true, sips),
    ("later messages overtake", |_| true, overtaking),
    ("misuse is refused", |_| true, misuse),
    ("lengths are compared", |_| true, lengths),
    ("early data is kept", |_| true, early),
    (
        "exhausted credit stops nothing that is posted",
        |_| true,
        exhausted,
    ),
    ("refusals", |_| true, refusals),
    ("forgotten operations", |_| true, forgotten),
    ("cancelled sends", |_| true, cancelled_sends),
    ("cancelled receives", |_| true, cancelled_receives),
    ("many seeds of everything", |_| true, mixture),
    ("death of a sender", |t| t.deaths, death_of_sender),
    ("death of a receiver", |t| t.deaths, death_of_receiver),
    ("a polite end", |t| t.deaths, polite),
    ("priorities", |t| t.priorities, priorities),
    ("two threads make progress", |t| t.threads, threads),
    ("sleepers miss nothing", |t| t.threads, sleepers),
];

/// Small numbers that look like chance.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((self.0 >> 33) as usize) % n
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.roll(i + 1));
        }
    }
}

fn settled(s: &LinkStats) {
    assert_eq!(
        s.payload_sent, s.payload_received,
        "payload is counted alike on both sides"
    );
    assert_eq!(
        s.header_sent, s.header_received,
        "headers are counted alike on both sides"
    );
    assert_eq!(
        s.control_sent, s.control_received,
        "control is counted alike on both sides"
    );
    assert_eq!(
        s.frames_sent, s.frames_received,
        "frames are counted alike on both sides"
    );
}

fn all_to_all(b: &mut Bench<'_>) {
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
        assert_eq!((s.payload_sent, s.payload_received), (payload, payload));
        assert_eq!(
            (s.header_sent, s.frames_sent),
            (s.header_received, s.frames_received)
        );
    }
}

fn large(b: &mut Bench<'_>) {
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

fn sips(b: &mut Bench<'_>) {
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

fn overtaking(b: &mut Bench<'_>) {
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

fn misuse(b: &mut Bench<'_>) {
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

fn lengths(b: &mut Bench<'_>) {
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

fn early(b: &mut Bench<'_>) {
    let mut net = b.net(2);
    let all: Vec<Msg> = (0..40)
        .map(|i| Msg::new(0, 1, i, 1000 + i as usize))
        .collect();
    let mut ids: Vec<_> = all.iter().map(|m| (0, net.send(*m))).collect();
    net.fence(0, 1);
    assert_eq!(net.nodes[1].sink.unexpected.len(), 40, "said once for each");
    ids.extend(all.iter().rev().map(|m| (1, net.recv(*m))));
    net.until_over("early data", &ids);
    assert_eq!(net.totals().early_messages, 40);
    net.fence(0, 1);
    settled(&net.totals());
}

fn exhausted(b: &mut Bench<'_>) {
    let eager = b.tier.eager;
    let mut net = b.net(2);
    // Far more than any credit, in messages smaller and larger than it, and nobody wants them.
    let unwanted: Vec<Msg> = (0..60)
        .map(|i| Msg::new(0, 1, i, if i % 10 == 9 { 600_001 } else { 30_001 }))
        .collect();
    let mut ids: Vec<_> = unwanted.iter().map(|m| (0, net.send(*m))).collect();
    net.fence(0, 1);
    let crossed = net.totals().payload_received;
    assert!(
        crossed <= eager,
        "{crossed} bytes have crossed uncalled, {eager} may"
    );
    // What is wanted still flows, again and again, both ways.
    for i in 0..20 {
        let there = Msg::new(0, 1, 1000 + i, 200_003);
        let back = Msg::new(1, 0, 1000 + i, 200_003);
        let now = [
            (1, net.recv(there)),
            (0, net.send(there)),
            (0, net.recv(back)),
            (1, net.send(back)),
        ];
        net.until_over("a message whose receive is posted", &now);
    }
    net.fence(0, 1);
    let held = net.totals().payload_received - 20 * 2 * 200_003;
    assert!(held <= eager, "{held} bytes are held, {eager} may");
    // In the end all of them are wanted, the last first.
    ids.extend(unwanted.iter().rev().map(|m| (1, net.recv(*m))));
    net.until_over("what was unwanted", &ids);
    net.fence(0, 1);
    settled(&net.totals());
}

fn refusals(b: &mut Bench<'_>) {
    for len in [0, 10, 100_000, 700_001] {
        let mut net = b.net(2);
        // Of a posted receive.
        let m = Msg::new(0, 1, 1, len);
        let r = net.recv(m);
        net.refuse_open(1, r);
        let s = net.send(m);
        net.until_over("a refused send", &[(0, s)]);
        assert!(net.result(0, s).is_ok(), "the sender does not notice");
        net.fence(0, 1);
        assert!(!net.is_over(1, r), "forgotten without a word");
        // Of one that nobody has posted.
        net.nodes[1].sink.refuse_unexpected = true;
        let s = net.send(Msg::new(0, 1, 2, len));
        net.until_over("an unexpected send", &[(0, s)]);
        assert!(net.result(0, s).is_ok());
        net.fence(0, 1);
        assert_eq!(net.nodes[1].sink.unexpected, [(0, key(2))]);
        net.nodes[1].sink.refuse_unexpected = false;
        let m = Msg::new(0, 1, 3, 300_000);
        let ids = [(0, net.send(m)), (1, net.recv(m))];
        net.until_over("another message", &ids);
    }
}

fn forgotten(b: &mut Bench<'_>) {
    let mut net = b.net(2);
    // The first 40 belong to operation 1, which is over before anybody has wanted them; some are larger than the credit.
    let mut ids: Vec<_> = (0..40)
        .map(|i| {
            (
                0,
                net.send(Msg::new(
                    0,
                    1,
                    100 + i,
                    if i == 7 { 500_000 } else { 20_000 },
                )),
            )
        })
        .collect();
    let kept = Msg::new(0, 1, 500, 1000);
    net.fence(0, 1);
    // From now on the engine knows that it is over.
    net.nodes[1].sink.refuse_unexpected = true;
    net.transport(1).forget(op(100));
    net.until_over("forgotten sends", &ids);
    net.nodes[1].sink.refuse_unexpected = false;
    ids.clear();
    ids.push((0, net.send(kept)));
    net.fence(0, 1);
    net.transport(1).forget(op(100));
    ids.push((1, net.recv(kept)));
    net.until_over("one of another operation", &ids);
}

fn cancelled_sends(b: &mut Bench<'_>) {
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
                matches!(e, TransportError::Misuse { peer: Rank(0), .. }),
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

fn cancelled_receives(b: &mut Bench<'_>) {
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
fn mixture(b: &mut Bench<'_>) {
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

fn death_of_sender(b: &mut Bench<'_>) {
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

fn death_of_receiver(b: &mut Bench<'_>) {
    let large = b.tier.large;
    for lend in [true, false] {
        let mut net = b.net(3);
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

fn polite(b: &mut Bench<'_>) {
    let mut net = b.net(3);
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

fn priorities(b: &mut Bench<'_>) {
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

fn threads(b: &mut Bench<'_>) {
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
fn sleepers(b: &mut Bench<'_>) {
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
