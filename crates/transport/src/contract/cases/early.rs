//! What comes before anybody wants it.

use super::{
    super::{
        Bench,
        net::{Msg, TAGGED, key, op},
    },
    settled, taken,
};

pub(super) fn early(b: &mut Bench<'_>) {
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

pub(super) fn exhausted(b: &mut Bench<'_>) {
    let eager = b.tier.eager;
    let mut net = b.net(2);
    // Far more than any credit, in messages smaller and larger than it, and nobody wants them.
    let unwanted: Vec<Msg> = (0..60)
        .map(|i| Msg::new(0, 1, i, if i % 10 == 9 { 600_001 } else { 30_001 }))
        .collect();
    let mut ids: Vec<_> = unwanted.iter().map(|m| (0, net.send(*m))).collect();
    net.fence(0, 1);
    let crossed = taken(&net.totals());
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
    let held = taken(&net.totals()) - 20 * 2 * 200_003;
    assert!(held <= eager, "{held} bytes are held, {eager} may");
    // In the end all of them are wanted, the last first.
    ids.extend(unwanted.iter().rev().map(|m| (1, net.recv(*m))));
    net.until_over("what was unwanted", &ids);
    net.fence(0, 1);
    settled(&net.totals());
}

pub(super) fn returning(b: &mut Bench<'_>) {
    // Two fit the credit, not three.
    let len = usize::try_from(b.tier.tagged).expect("a length") * 2 / 5;
    for lend in [true, false] {
        let mut net = b.net(2);
        let all: Vec<Msg> = (0..6)
            .map(|i| Msg {
                lend,
                ..Msg::new(0, 1, TAGGED + i, len)
            })
            .collect();
        let sends: Vec<_> = all.iter().map(|m| (0, net.send(*m))).collect();
        net.until_over("tagged sends within the credit", &sends[..2]);
        net.fence(0, 1);
        assert!(!net.is_over(0, sends[2].1), "more than the credit");
        // By receives, and by an end of what nobody has received.
        let taken = [(1, net.recv(all[0])), (1, net.recv(all[1]))];
        net.until_over("what was held", &taken);
        net.until_over("sends that waited for credit", &sends[2..4]);
        net.nodes[1].sink.refuse_unexpected = true;
        net.transport(1).forget(op(TAGGED));
        net.until_over("forgotten sends", &sends);
        net.fence(0, 1);
        // Those that waited for credit were announced like the others, before their receive or their end.
        let told = &net.nodes[1].sink.unexpected;
        assert!(
            (2..6).all(|i| told.contains(&(0, key(TAGGED + i)))),
            "{told:?}"
        );
    }
}

pub(super) fn refusals(b: &mut Bench<'_>) {
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

pub(super) fn forgotten(b: &mut Bench<'_>) {
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
