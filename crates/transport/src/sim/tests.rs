//! The contract, and what only a simulation can show.

use super::*;
use crate::contract::{self, Tier};
use gaggle_core::{
    Class, ControlSink, Dir, Down, Inlet, MsgKey, OpId, Outlet, Sink, Transfer, TransportError,
    Verdict, XferId,
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

const MS: Duration = Duration::from_millis(1);

/// What the contract's fences ask for: nothing overtakes what was sent before it.
fn in_order(seed: u64) -> SimConfig {
    SimConfig {
        latency: MS..MS,
        gap: Duration::ZERO..Duration::ZERO,
        credit: 64,
        max_part: 16 << 10,
        ..SimConfig::seeded(seed)
    }
}

#[test]
fn the_contract_holds_in_virtual_time() {
    let world: RefCell<Option<SimNet>> = RefCell::new(None);
    contract::run_with(
        &mut |n| {
            let net = SimNet::new(n, in_order(0));
            let links = (0..n).map(|r| net.transport(r)).collect();
            *world.borrow_mut() = Some(net);
            links
        },
        Tier {
            priorities: true,
            ..Tier::SIMULATED
        },
        &mut || world.borrow().as_ref().is_some_and(SimNet::step),
    );
}

#[test]
fn the_contract_holds_when_progress_itself_drives_time_also_from_two_threads() {
    let config = SimConfig {
        self_driven: true,
        ..in_order(1)
    };
    contract::run(
        &mut |n| {
            let net = SimNet::new(n, config.clone());
            (0..n).map(|r| net.transport(r)).collect()
        },
        Tier {
            threads: true,
            ..Tier::SIMULATED
        },
    );
}

/// One rank's engine, as little of it as moves bytes: message `tag` from `a` to `b` consists of bytes that all three decide.
#[derive(Default)]
struct Node {
    me: u32,
    sends: BTreeMap<XferId, (u32, u32)>,
    recvs: BTreeMap<XferId, (u32, u32)>,
    got: BTreeMap<XferId, u64>,
    over: Vec<(XferId, Result<(), TransportError>)>,
    arrived: Vec<(u32, u32)>,
    unexpected: Vec<(u32, u32)>,
    downs: Vec<(u32, Down)>,
}

fn byte(from: u32, to: u32, tag: u32, at: u64) -> u8 {
    (u64::from(from) * 31 + u64::from(to) * 17 + u64::from(tag) * 7 + at * 13) as u8
}

impl Sink for Node {
    fn outgoing(&mut self, id: XferId, at: u64, out: &mut dyn Outlet) {
        let (to, tag) = self.sends[&id];
        let me = self.me;
        for (i, b) in out.room().iter_mut().enumerate() {
            *b = byte(me, to, tag, at + i as u64);
        }
        let n = out.room().len();
        out.commit(n);
    }
    fn opened(&mut self, id: XferId, head: &[u8]) -> Verdict {
        assert_eq!(head, self.recvs[&id].1.to_le_bytes());
        Verdict::Take
    }
    fn incoming(&mut self, id: XferId, at: u64, part: &mut dyn Inlet) {
        let (from, tag) = self.recvs[&id];
        for (i, b) in part.peek().iter().enumerate() {
            assert_eq!(*b, byte(from, self.me, tag, at + i as u64));
        }
        let n = part.peek().len();
        part.consume(n);
        *self.got.entry(id).or_default() += n as u64;
    }
    fn unexpected(&mut self, from: Rank, key: MsgKey, _: &[u8]) -> Verdict {
        self.unexpected.push((from.0, key.tag));
        Verdict::Take
    }
    fn done(&mut self, id: XferId, result: Result<(), TransportError>) {
        if let Some(recv) = self.recvs.get(&id).filter(|_| result.is_ok()) {
            self.arrived.push(*recv);
        }
        self.over.push((id, result));
    }
    fn down(&mut self, peer: Rank, how: Down) {
        self.downs.push((peer.0, how));
    }
}

/// What a rank's control plane has said.
#[derive(Default, PartialEq, Debug, Clone)]
struct Heard {
    messages: Vec<(u32, Vec<u8>)>,
    lost: Vec<u32>,
    left: Vec<u32>,
}

impl ControlSink for Heard {
    fn message(&mut self, from: Rank, payload: &[u8]) {
        self.messages.push((from.0, payload.to_vec()));
    }
    fn lost(&mut self, rank: Rank, _: &str) {
        self.lost.push(rank.0);
    }
    fn left(&mut self, rank: Rank) {
        self.left.push(rank.0);
    }
}

/// A job under one hand.
struct Job {
    net: SimNet,
    links: Vec<Box<dyn Transport>>,
    planes: Vec<Box<dyn Control>>,
    nodes: Vec<Node>,
    heard: Vec<Heard>,
    /// Ranks that are not pumped.
    stopped: BTreeSet<u32>,
}

impl Job {
    fn new(world: u32, config: SimConfig) -> Job {
        let net = SimNet::new(world, config);
        Job {
            links: (0..world).map(|r| net.transport(r)).collect(),
            planes: (0..world).map(|r| net.control(r)).collect(),
            nodes: (0..world)
                .map(|me| Node {
                    me,
                    ..Node::default()
                })
                .collect(),
            heard: vec![Heard::default(); world as usize],
            stopped: BTreeSet::new(),
            net,
        }
    }

    fn post(&mut self, dir: Dir, me: u32, peer: u32, tag: u32, bytes: u64) -> XferId {
        self.try_post(dir, me, peer, tag, bytes)
            .expect("it can be posted")
    }

    fn try_post(
        &mut self,
        dir: Dir,
        me: u32,
        peer: u32,
        tag: u32,
        bytes: u64,
    ) -> Result<XferId, TransportError> {
        let head = tag.to_le_bytes();
        let id = self.links[me as usize].post(Transfer {
            dir,
            peer: Rank(peer),
            key: MsgKey { op: op(tag), tag },
            bytes,
            unit: 1,
            priority: 0,
            head: if dir == Dir::Send { &head } else { &[] },
            loan: None,
        })?;
        let node = &mut self.nodes[me as usize];
        match dir {
            Dir::Send => node.sends.insert(id, (peer, tag)),
            Dir::Recv => node.recvs.insert(id, (peer, tag)),
        };
        Ok(id)
    }

    fn send(&mut self, from: u32, to: u32, tag: u32, bytes: u64) -> XferId {
        self.post(Dir::Send, from, to, tag, bytes)
    }

    fn recv(&mut self, from: u32, to: u32, tag: u32, bytes: u64) -> XferId {
        self.post(Dir::Recv, to, from, tag, bytes)
    }

    /// Everything that can be done at this moment.
    fn pump(&mut self) {
        for _ in 0..100_000 {
            let mut calls = 0;
            for rank in (0..self.nodes.len()).filter(|r| !self.stopped.contains(&(*r as u32))) {
                calls += self.links[rank].progress(&mut self.nodes[rank], 1 << 20);
                calls += self.planes[rank].poll(&mut self.heard[rank]);
            }
            if calls == 0 {
                return;
            }
        }
        panic!("no end at {:?}", self.net.next_event());
    }

    /// Until nothing is left to happen.
    fn drain(&mut self) {
        for _ in 0..1_000_000 {
            self.pump();
            if !self.net.step() {
                return;
            }
        }
        panic!("no end of events");
    }

    /// Until `over` holds.
    fn until(&mut self, over: impl Fn(&Job) -> bool) {
        for _ in 0..1_000_000 {
            self.pump();
            if over(self) {
                return;
            }
            assert!(self.net.step(), "nothing left to happen");
        }
        panic!("no end of events");
    }

    fn result(&self, rank: u32, id: XferId) -> Option<&Result<(), TransportError>> {
        let over = &self.nodes[rank as usize].over;
        over.iter().find(|(other, _)| *other == id).map(|(_, r)| r)
    }

    fn is_ok(&self, rank: u32, id: XferId) -> bool {
        matches!(self.result(rank, id), Some(Ok(())))
    }
}

fn op(tag: u32) -> OpId {
    OpId {
        group: 1,
        lane: 0,
        class: Class::Collective,
        seq: u64::from(tag / 1000),
    }
}

fn traced(seed: u64) -> SimConfig {
    SimConfig {
        trace: true,
        ..SimConfig::seeded(seed)
    }
}

/// Everybody sends to everybody; receives are posted in an order that is not that of the sends.
fn all_to_all(world: u32, config: SimConfig) -> Job {
    const LENGTHS: [u64; 6] = [0, 1, 255, 256, 257, 1009];
    let mut job = Job::new(world, config);
    let mut ids = Vec::new();
    for to in 0..world {
        for (i, bytes) in LENGTHS.iter().enumerate().rev() {
            for from in (0..world).filter(|from| *from != to) {
                ids.push((from, job.send(from, to, i as u32, *bytes)));
            }
        }
        job.pump();
    }
    for (i, bytes) in LENGTHS.iter().enumerate() {
        for (from, to) in (0..world).flat_map(|f| (0..world).map(move |t| (f, t))) {
            if from != to {
                ids.push((to, job.recv(from, to, i as u32, *bytes)));
            }
        }
    }
    job.drain();
    for (rank, id) in ids {
        assert!(job.is_ok(rank, id), "world {world}");
    }
    job
}

#[test]
fn everything_arrives_whatever_the_order() {
    for world in [1, 2, 3, 5, 7, 8] {
        for seed in 0..10 {
            all_to_all(world, SimConfig::seeded(seed));
        }
    }
}

#[test]
fn a_seed_is_a_run() {
    for seed in 0..5 {
        let one = all_to_all(5, traced(seed));
        let two = all_to_all(5, traced(seed));
        assert!(one.net.trace().len() > 200);
        assert_eq!(one.net.trace(), two.net.trace());
        for (a, b) in one.nodes.iter().zip(&two.nodes) {
            assert_eq!(a.arrived, b.arrived);
        }
        assert_ne!(one.net.trace(), all_to_all(5, traced(seed + 1)).net.trace());
    }
}

#[test]
fn messages_overtake_each_other_on_one_link_and_between_links() {
    let (mut on_one, mut between) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..40 {
        let mut job = Job::new(3, SimConfig::seeded(seed));
        for (from, tag) in [(0, 1), (0, 2), (1, 3)] {
            job.recv(from, 2, tag, 300);
            job.send(from, 2, tag, 300);
        }
        job.drain();
        let arrived = &job.nodes[2].arrived;
        on_one.insert(
            arrived
                .iter()
                .filter(|(from, _)| *from == 0)
                .copied()
                .collect::<Vec<_>>(),
        );
        between.insert(arrived.clone());
    }
    assert_eq!(on_one.len(), 2, "both orders on one link");
    assert_eq!(between.len(), 6, "all orders of three");
}

#[test]
fn parts_of_one_message_take_time_and_stay_in_order() {
    let mut job = Job::new(2, SimConfig::seeded(3));
    let (r, s) = (job.recv(0, 1, 1, 10_000), job.send(0, 1, 1, 10_000));
    let mut seen = BTreeSet::new();
    // Each sink call checks that its bytes are the next ones.
    while !job.is_ok(1, r) {
        job.pump();
        seen.insert(job.nodes[1].got.get(&r).copied().unwrap_or(0));
        job.net.step();
    }
    assert!(job.is_ok(0, s));
    assert!(seen.len() > 5, "{seen:?}");
}

#[test]
fn one_unposted_message_uses_up_a_credit_of_one_and_stops_nothing_that_is_posted() {
    for seed in 0..20 {
        let mut job = Job::new(2, SimConfig::seeded(seed));
        let unwanted: Vec<XferId> = (0..10).map(|tag| job.send(0, 1, tag, 600)).collect();
        job.drain();
        assert_eq!(job.nodes[1].unexpected, [(0, 0)]);
        assert_eq!(job.net.next_event(), None, "everything waits for a receive");
        for tag in 100..110 {
            let (r, s) = (job.recv(0, 1, tag, 600), job.send(0, 1, tag, 600));
            job.drain();
            assert!(job.is_ok(1, r) && job.is_ok(0, s));
        }
        let wanted: Vec<XferId> = (0..10).rev().map(|tag| job.recv(0, 1, tag, 600)).collect();
        job.drain();
        assert!(unwanted.iter().all(|id| job.is_ok(0, *id)));
        assert!(wanted.iter().all(|id| job.is_ok(1, *id)));
        assert_eq!(job.links[1].stats().early_messages, 1);
    }
}

#[test]
fn what_nobody_wants_gives_its_credit_back() {
    for seed in 0..20 {
        let mut job = Job::new(2, SimConfig::seeded(seed));
        let first = job.send(0, 1, 1, 5000);
        let second = job.send(0, 1, 1001, 10);
        job.drain();
        assert!(job.is_ok(0, first) && !job.is_ok(0, second));
        job.links[1].forget(op(1));
        job.drain();
        assert!(
            job.is_ok(0, second),
            "the second has the credit of the first"
        );
        assert_eq!(job.nodes[1].unexpected, [(0, 1), (0, 1001)]);
        // And one that the sender takes back in mid-message.
        let third = job.send(0, 1, 2001, 5000);
        job.links[1].forget(op(1001));
        job.until(|job| job.nodes[1].unexpected.len() == 3);
        job.links[0].cancel(third);
        let fourth = job.send(0, 1, 3001, 10);
        job.drain();
        assert!(job.is_ok(0, fourth));
    }
}

#[test]
fn more_bytes_than_the_credit_wait_until_they_are_wanted() {
    let config = SimConfig {
        eager: 1000,
        ..SimConfig::seeded(5)
    };
    let mut job = Job::new(2, config);
    let s = job.send(0, 1, 1, 5000);
    job.drain();
    assert!(!job.is_ok(0, s));
    assert_eq!(job.links[1].stats().payload_received, 1000);
    let r = job.recv(0, 1, 1, 5000);
    job.drain();
    assert!(job.is_ok(0, s) && job.is_ok(1, r));
}

#[test]
fn a_partition_holds_everything_until_it_heals() {
    for seed in 0..20 {
        let mut job = Job::new(3, SimConfig::seeded(seed));
        let (r, s) = (job.recv(0, 1, 1, 5000), job.send(0, 1, 1, 5000));
        job.until(|job| job.nodes[1].got.contains_key(&r));
        job.net.partition(&[Rank(0)], &[Rank(1), Rank(2)]);
        job.planes[0].broadcast(b"cut off");
        let (r2, s2) = (job.recv(1, 2, 2, 5000), job.send(1, 2, 2, 5000));
        job.drain();
        assert!(job.is_ok(2, r2) && job.is_ok(1, s2), "the others go on");
        assert!(
            !job.is_ok(1, r) && job.nodes[1].downs.is_empty(),
            "silence is not death"
        );
        assert_eq!(job.heard[2], Heard::default());
        job.net.heal();
        job.drain();
        assert!(job.is_ok(1, r) && job.is_ok(0, s));
        assert_eq!(job.heard[2].messages, [(0, b"cut off".to_vec())]);
    }
}

#[test]
fn control_messages_find_their_way_around_a_cut_link() {
    let mut job = Job::new(3, SimConfig::seeded(1));
    job.net.partition(&[Rank(0)], &[Rank(1)]);
    job.planes[0].broadcast(b"x");
    let r = job.recv(0, 1, 1, 1);
    job.send(0, 1, 1, 1);
    job.drain();
    assert_eq!(job.heard[1].messages, [(0, b"x".to_vec())]);
    assert!(!job.is_ok(1, r));
}

#[test]
fn a_crash_in_mid_message_is_seen_by_every_survivor_once() {
    for seed in 0..30 {
        let mut job = Job::new(4, SimConfig::seeded(seed));
        let r = job.recv(0, 1, 1, 50_000);
        job.send(0, 1, 1, 50_000);
        let back = job.send(1, 0, 2, 100_000);
        let never = job.recv(0, 2, 3, 10);
        job.until(|job| job.nodes[1].got.contains_key(&r));
        job.net.crash(Rank(0));
        job.drain();
        for (rank, id) in [(1, r), (1, back), (2, never)] {
            let result = job.result(rank, id);
            assert!(
                matches!(
                    result,
                    Some(Err(TransportError::Down {
                        peer: Rank(0),
                        how: Down::Lost(_)
                    }))
                ),
                "{result:?}"
            );
        }
        assert!(job.nodes[1].got[&r] < 50_000);
        for rank in 1..4 {
            assert_eq!(job.nodes[rank].downs.len(), 1);
            assert_eq!(job.heard[rank].lost, [0]);
        }
        assert_eq!(
            (&job.nodes[0].downs[..], &job.heard[0].lost[..]),
            (&[][..], &[][..])
        );
        let error = job.try_post(Dir::Recv, 1, 0, 9, 1);
        assert!(matches!(error, Err(TransportError::Down { .. })));
        // The others go on.
        let (r, s) = (job.recv(1, 2, 4, 5000), job.send(1, 2, 4, 5000));
        job.drain();
        assert!(job.is_ok(2, r) && job.is_ok(1, s));
    }
}

#[test]
fn faults_happen_at_their_time() {
    let mut job = Job::new(2, SimConfig::seeded(1));
    job.net.at(20 * MS, Fault::Crash(Rank(0)));
    job.net
        .at(10 * MS, Fault::Partition(vec![Rank(0)], vec![Rank(1)]));
    job.net.at(30 * MS, Fault::Heal);
    job.net.advance_to(29 * MS);
    job.pump();
    assert_eq!(job.net.clock().now(), 29 * MS);
    assert!(job.nodes[1].downs.is_empty(), "the news of it is held too");
    job.net.advance_to(5 * MS);
    assert_eq!(job.net.clock().now(), 29 * MS, "time does not go back");
    job.drain();
    assert!(job.net.clock().now() >= 30 * MS);
    assert_eq!(job.nodes[1].downs.len(), 1);
}

#[test]
fn a_broken_link_is_no_death() {
    let mut job = Job::new(3, SimConfig::seeded(1));
    job.net.inject(Fault::Break(Rank(0), Rank(1)));
    job.drain();
    assert!(matches!(&job.nodes[0].downs[..], [(1, Down::Lost(_))]));
    assert!(matches!(&job.nodes[1].downs[..], [(0, Down::Lost(_))]));
    assert!(job.nodes[2].downs.is_empty());
    assert!(job.heard.iter().all(|h| *h == Heard::default()));
    job.planes[0].declare_lost(Rank(1), "its link broke");
    job.planes[2].declare_lost(Rank(1), "me too");
    job.drain();
    assert!(
        job.heard.iter().all(|h| h.lost == [1]),
        "said once, and to rank 1 itself"
    );
    job.planes[1].broadcast(b"I live");
    job.drain();
    assert!(job.heard[0].messages.is_empty(), "and nobody listens to it");
}

#[test]
fn a_stopped_rank_is_one_that_is_not_pumped() {
    let mut job = Job::new(2, SimConfig::seeded(1));
    job.stopped.insert(0);
    let (r, s) = (job.recv(0, 1, 1, 5000), job.send(0, 1, 1, 5000));
    job.drain();
    assert!(job.nodes[1].downs.is_empty() && job.result(1, r).is_none());
    job.stopped.clear();
    job.drain();
    assert!(job.is_ok(1, r) && job.is_ok(0, s));
}

#[test]
fn what_was_given_whole_before_a_goodbye_is_still_good() {
    for seed in 0..20 {
        let mut job = Job::new(2, SimConfig::seeded(seed));
        let s = job.send(0, 1, 1, 2000);
        let half = job.send(0, 1, 2, 2000);
        job.until(|job| job.is_ok(0, s));
        job.links[0].leave(Duration::ZERO);
        job.planes[0].leave();
        job.drain();
        assert!(job.result(0, half).is_none(), "nobody is left to be told");
        assert_eq!(job.nodes[1].downs, [(0, Down::Left)]);
        assert_eq!(job.heard[1].left, [0]);
        let r = job.recv(0, 1, 1, 2000);
        job.drain();
        assert!(job.is_ok(1, r));
        let error = job.try_post(Dir::Recv, 1, 0, 2, 2000);
        assert!(matches!(
            error,
            Err(TransportError::Down {
                how: Down::Left,
                ..
            })
        ));
    }
}

#[test]
fn words_of_one_origin_come_once_and_in_order() {
    for seed in 0..20 {
        let mut job = Job::new(5, SimConfig::seeded(seed));
        for i in 0..10u8 {
            for plane in &job.planes {
                plane.broadcast(&[i]);
            }
        }
        job.drain();
        for (me, heard) in job.heard.iter().enumerate() {
            for from in (0..5).filter(|from| *from != me as u32) {
                let said = heard.messages.iter().filter(|(f, _)| *f == from);
                assert!(said.map(|(_, p)| p[0]).eq(0..10));
            }
            assert!(heard.messages.iter().all(|(from, _)| *from != me as u32));
        }
    }
}

#[test]
#[should_panic(expected = "credit is 0")]
fn a_credit_of_nothing_is_refused() {
    SimNet::new(
        2,
        SimConfig {
            credit: 0,
            ..SimConfig::seeded(0)
        },
    );
}
