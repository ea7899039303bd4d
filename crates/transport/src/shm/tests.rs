//! The contract over rings, and what only rings can get wrong: wrapping, hostile words, wakes, and memory that is not what it seems.

#![cfg(target_os = "linux")]

use super::{
    raw_ring::{Map, Reader, SMALLEST, Writer},
    ring::{FOR_DATA, FOR_ROOM, Side},
    *,
};
use crate::contract::{self, Tier};
use gaggle_core::{Class, Dir, Down, Inlet, MsgKey, Outlet, Verdict};
use std::os::fd::AsFd;

fn mesh(n: u32, ring_bytes: usize) -> Vec<ShmTransport> {
    let mut links: Vec<Vec<(Rank, ShmLink)>> = (0..n).map(|_| Vec::new()).collect();
    for a in 0..n {
        for b in 0..a {
            let (x, y) = pair(ring_bytes).unwrap();
            links[a as usize].push((Rank(b), x));
            links[b as usize].push((Rank(a), y));
        }
    }
    let make = |(me, links)| ShmTransport::new(Rank(me as u32), links).unwrap();
    links.into_iter().enumerate().map(make).collect()
}

fn boxed(world: Vec<ShmTransport>) -> Vec<Box<dyn Transport>> {
    let each = |t| Box::new(t) as Box<dyn Transport>;
    world.into_iter().map(each).collect()
}

#[test]
fn keeps_the_contract() {
    contract::run(&mut |n| boxed(mesh(n, 1 << 20)), Tier::SHM);
}

#[test]
fn keeps_the_contract_in_the_smallest_rings() {
    contract::run(&mut |n| boxed(mesh(n, SMALLEST)), Tier::SHM);
}

#[test]
fn keeps_the_contract_where_messages_stay_in_their_heaps() {
    contract::run(
        &mut |n| {
            let heaps = contract::raw_space::one_space(n);
            let world = mesh(n, SMALLEST).into_iter().zip(heaps);
            boxed(world.map(|(t, heap)| t.with_shared(heap)).collect())
        },
        Tier::SHM,
    );
}

#[test]
fn a_second_link_to_a_rank_is_refused() {
    let link = || pair(SMALLEST).unwrap().0;
    for twice in [
        vec![(Rank(1), link()), (Rank(1), link())],
        vec![(Rank(0), link())],
    ] {
        let e = ShmTransport::new(Rank(0), twice).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::InvalidInput);
    }
}

fn ends() -> (Arc<Map>, Writer, Reader) {
    let memory = memory(SMALLEST).unwrap();
    let map = Arc::new(Map::new(memory.as_fd(), SMALLEST).unwrap());
    let there = Arc::new(Map::new(memory.as_fd(), SMALLEST).unwrap());
    let writer = Writer::new(Arc::clone(&map), 0);
    (map, writer, Reader::new(there, 0))
}

#[test]
fn bytes_come_as_they_went_however_they_wrap() {
    let (_, mut writer, mut reader) = ends();
    // No divisor of the size, so that every kind of wrap comes up.
    let (mut sent, mut got) = (0u64, 0u64);
    for step in 0..2000usize {
        let n = (step * 7919) % (SMALLEST / 2) + 1;
        writer.look().unwrap();
        let room = writer.room(0, n);
        let n = room.len();
        for byte in room.iter_mut() {
            *byte = (sent % 251) as u8;
            sent += 1;
        }
        writer.filled(n);
        assert_eq!(writer.publish(), n);
        reader.look().unwrap();
        if reader.len() >= 8 {
            let front = reader.front();
            assert_eq!(front[..8], reader.full()[..8]);
        }
        let take = if step % 3 == 0 {
            reader.len()
        } else {
            reader.len() / 2
        };
        for byte in &reader.full()[..take] {
            assert_eq!(*byte, (got % 251) as u8, "byte {got}");
            got += 1;
        }
        reader.take(take);
        reader.publish();
    }
    assert!(got > 20 * SMALLEST as u64, "{got}");
}

#[test]
fn full_and_empty_are_told_apart() {
    let (_, mut writer, mut reader) = ends();
    assert_eq!((reader.look().unwrap(), reader.len()), (0, 0));
    assert_eq!(writer.free(), SMALLEST);
    let n = writer.room(0, 2 * SMALLEST).len();
    assert_eq!(n, SMALLEST);
    writer.filled(n);
    assert_eq!(writer.room(0, 1).len(), 0);
    writer.publish();
    assert_eq!((writer.free(), writer.publish()), (0, 0));
    assert_eq!(reader.look().unwrap(), SMALLEST);
    reader.take(1);
    assert!(reader.publish() && !reader.publish());
    writer.look().unwrap();
    assert_eq!(writer.free(), 1);
}

#[test]
fn words_out_of_range_are_refused() {
    for head in [SMALLEST as u64 + 1, u64::MAX, 1 << 63] {
        let (map, _writer, mut reader) = ends();
        map.set_head(0, head);
        assert!(reader.look().is_err(), "{head}");
        assert_eq!(reader.len(), 0);
    }
    // Backwards.
    let (map, mut writer, mut reader) = ends();
    writer.filled(100);
    writer.publish();
    reader.look().unwrap();
    map.set_head(0, 99);
    assert!(reader.look().is_err());
    for tail in [101, u64::MAX] {
        map.set_tail(0, tail);
        assert!(writer.look().is_err(), "{tail}");
    }
    map.set_tail(0, 50);
    writer.look().unwrap();
    map.set_tail(0, 49);
    assert!(writer.look().is_err());
}

/// A sink that takes everything, and remembers how it ended.
#[derive(Default)]
struct Plain {
    done: Vec<Result<(), TransportError>>,
    downs: Vec<(Rank, Down)>,
}

impl Sink for Plain {
    fn outgoing(&mut self, _id: XferId, _at: u64, out: &mut dyn Outlet) {
        let n = out.room().len();
        out.commit(n);
    }
    fn opened(&mut self, _id: XferId, _head: &[u8]) -> Verdict {
        Verdict::Take
    }
    fn incoming(&mut self, _id: XferId, _at: u64, part: &mut dyn Inlet) {
        let n = part.peek().len();
        part.consume(n);
    }
    fn unexpected(&mut self, _from: Rank, _key: MsgKey, _head: &[u8]) -> Verdict {
        Verdict::Take
    }
    fn done(&mut self, _id: XferId, result: Result<(), TransportError>) {
        self.done.push(result);
    }
    fn down(&mut self, peer: Rank, how: Down) {
        self.downs.push((peer, how));
    }
}

fn transfer(dir: Dir, peer: u32, bytes: u64) -> Transfer<'static> {
    let op = OpId {
        group: 1,
        lane: 0,
        class: Class::Collective,
        seq: 0,
    };
    Transfer {
        dir,
        peer: Rank(peer),
        key: MsgKey { op, tag: 7 },
        bytes,
        unit: 1,
        priority: 0,
        head: b"",
        loan: None,
    }
}

/// What rank 0 says of a link whose other side does `evil` with the memory.
fn victim(evil: impl FnOnce(&Side, &UnixStream)) -> Plain {
    let (mine, theirs) = pair(SMALLEST).unwrap();
    let t = ShmTransport::new(Rank(0), vec![(Rank(1), mine)]).unwrap();
    let mut sink = Plain::default();
    t.post(transfer(Dir::Recv, 1, 1000)).unwrap();
    t.post(transfer(Dir::Send, 1, 1 << 20)).unwrap();
    while t.progress(&mut sink, 1 << 20) > 0 {}
    assert!(sink.downs.is_empty());
    let (stream, side) = theirs.into_parts();
    evil(&side, &stream);
    for _ in 0..1000 {
        t.progress(&mut sink, 1 << 20);
    }
    sink
}

fn lost_because(sink: &Plain, why: &str) {
    let [(Rank(1), Down::Lost(what))] = &sink.downs[..] else {
        panic!("{:?}", sink.downs);
    };
    assert!(what.contains(why), "{what}");
    assert_eq!(sink.done.len(), 2);
    assert!(sink.done.iter().all(Result::is_err));
}

#[test]
fn hostile_memory_closes_the_link_and_is_named() {
    lost_because(
        &victim(|side, _| side.map().set_head(side.output(), u64::MAX)),
        "head is at",
    );
    lost_because(
        &victim(|side, _| side.map().set_tail(side.input(), u64::MAX)),
        "tail is at",
    );
    lost_because(
        &victim(|side, _| {
            let mut writer = Writer::new(Arc::clone(side.map()), side.output());
            writer.room(0, 100).fill(0xff);
            writer.filled(100);
            writer.publish();
        }),
        "broke the protocol: frame of unknown kind 255",
    );
}

#[test]
fn random_memory_ends_in_a_typed_reason() {
    use rand::{Rng, RngCore, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(11);
    for _ in 0..200 {
        let sink = victim(|side, _| {
            let map = side.map();
            let mut writer = Writer::new(Arc::clone(map), side.output());
            let n = rng.random_range(48..SMALLEST);
            rng.fill_bytes(writer.room(0, n));
            if rng.next_u32() & 1 == 0 {
                writer.room(0, 2).copy_from_slice(&[1, 1]);
            }
            writer.filled(n);
            writer.publish();
            if rng.next_u32() & 3 == 0 {
                map.set_tail(side.input(), rng.next_u64());
            }
            map.sleeps(rng.random_range(0..2))
                .store(rng.next_u64(), std::sync::atomic::Ordering::SeqCst);
        });
        assert!(
            matches!(&sink.downs[..], [(Rank(1), Down::Lost(_))]),
            "{:?}",
            sink.downs
        );
    }
}

#[test]
fn a_death_is_seen_by_a_sleeper_and_after_what_came_before_it() {
    let (mine, theirs) = pair(SMALLEST).unwrap();
    let t = ShmTransport::new(Rank(0), vec![(Rank(1), mine)]).unwrap();
    let peer = ShmTransport::new(Rank(1), vec![(Rank(0), theirs)]).unwrap();
    let mut sink = Plain::default();
    t.post(transfer(Dir::Recv, 1, 1000)).unwrap();
    while t.progress(&mut sink, 1 << 20) > 0 {}
    let Armed::Fd(fd) = t.arm() else {
        panic!("{:?}", t.arm());
    };
    let readable = |fd| {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(
            fd,
            rustix::event::PollFlags::IN,
        )];
        let now = rustix::event::Timespec::default();
        rustix::event::poll(&mut fds, Some(&now)).unwrap() == 1
    };
    assert!(!readable(fd));
    peer.post(transfer(Dir::Send, 0, 1000)).unwrap();
    while peer.progress(&mut Plain::default(), 1 << 20) > 0 {}
    drop(peer);
    assert!(readable(fd));
    while t.progress(&mut sink, 1 << 20) > 0 {}
    assert!(matches!(&sink.done[..], [Ok(())]), "{:?}", sink.done);
    assert!(matches!(&sink.downs[..], [(Rank(1), Down::Lost(why))] if why.contains("closed")));
}

#[test]
fn nobody_is_called_who_does_not_sleep() {
    let (mine, theirs) = pair(SMALLEST).unwrap();
    let (bell, here) = mine.into_parts();
    let (other, there) = theirs.into_parts();
    other.set_nonblocking(true).unwrap();
    let rung = || io::Read::read(&mut &other, &mut [0; 8]).unwrap_or(0);
    here.call(FOR_DATA, &bell);
    assert_eq!(rung(), 0);
    assert!(!there.arm());
    // Room is not what it waits for.
    here.call(FOR_ROOM, &bell);
    assert_eq!(rung(), 0);
    here.call(FOR_DATA, &bell);
    here.call(FOR_DATA, &bell);
    assert_eq!(rung(), 1, "once per sleep");
    // What was published before it lay down keeps it awake.
    here.map().set_head(here.output(), 5);
    assert!(there.arm());
    there.note(5, None);
    assert!(!there.arm());
}

#[test]
fn memory_that_can_shrink_is_refused() {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("bad", flags).unwrap();
    ftruncate(&fd, raw_ring::bytes_of(SMALLEST) as u64).unwrap();
    let map = |fd: &OwnedFd, bytes| {
        let stream = UnixStream::pair().unwrap().0;
        ShmLink::map(stream, fd.as_fd(), bytes, 0, None).map(drop)
    };
    assert!(map(&fd, SMALLEST).is_err());
    let good = memory(SMALLEST).unwrap();
    assert!(map(&good, SMALLEST).is_ok());
    // The size must be the memory's.
    for bytes in [0, 1, SMALLEST - 1, 2 * SMALLEST, usize::MAX] {
        assert!(map(&good, bytes).is_err(), "{bytes}");
    }
    assert!(pair(SMALLEST + 1).is_err());
}

/// What each rank of a world with these hosts gets; `None` declines. Rank r hands over a heap of r + 1 pages.
fn met(hosts: &[u32], declines: Option<u32>) -> Vec<Vec<(Rank, ShmLink)>> {
    use crate::{
        auth::{Credentials, Secret},
        rendezvous::Rendezvous,
        store::LocalStore,
    };
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    let creds = Credentials {
        job: "meeting".into(),
        epoch: 1,
        secret: Secret::from_bytes([3; 32]),
    };
    let store = LocalStore::new();
    let rank = |rank: u32| {
        let meeting = Rendezvous {
            rank: Rank(rank),
            world: hosts.len() as u32,
            creds: &creds,
            store: &store,
            local: ([127, 0, 0, 1], 1).into(),
            at: None,
            store_addr: ([127, 0, 0, 1], 2).into(),
            timeout: Duration::from_secs(60),
            beside: &[],
        };
        if declines == Some(rank) {
            meet::decline(&meeting).unwrap();
            return vec![];
        }
        let heap = memfd_create("heap", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&heap, heap_len(Rank(rank))).unwrap();
        meet::meet(&meeting, hosts, Some(heap.as_fd())).unwrap()
    };
    std::thread::scope(|s| {
        let all: Vec<_> = (0..hosts.len() as u32)
            .map(|r| s.spawn(move || rank(r)))
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn heap_len(rank: Rank) -> u64 {
    4096 * (u64::from(rank.0) + 1)
}

fn check(hosts: &[u32], declines: Option<u32>) {
    let all = met(hosts, declines);
    let mut world = Vec::new();
    for (me, mut links) in (0..).map(Rank).zip(all) {
        let expected: Vec<Rank> = meet::locals(me, hosts)
            .into_iter()
            .filter(|peer| ![Some(me.0), Some(peer.0)].contains(&declines))
            .collect();
        let ranks: Vec<Rank> = links.iter().map(|(rank, _)| *rank).collect();
        assert_eq!(ranks, expected, "{me} of {hosts:?}, {declines:?} declines");
        for (peer, link) in &mut links {
            let heap = link.take_heap().unwrap();
            let len = rustix::fs::fstat(&heap).unwrap().st_size;
            assert_eq!(u64::try_from(len), Ok(heap_len(*peer)));
            assert!(link.take_heap().is_none());
        }
        world.push(ShmTransport::new(me, links).unwrap());
    }
    // Each pair has the same memory.
    let mut sinks: Vec<Plain> = world.iter().map(|_| Plain::default()).collect();
    for t in &world {
        for peer in t.peers() {
            t.post(transfer(Dir::Send, peer.0, 300_000)).unwrap();
            t.post(transfer(Dir::Recv, peer.0, 300_000)).unwrap();
        }
    }
    let due: usize = world.iter().map(|t| 2 * t.peers().len()).sum();
    while sinks.iter().map(|s| s.done.len()).sum::<usize>() < due {
        for (t, sink) in world.iter().zip(&mut sinks) {
            t.progress(sink, 1 << 20);
            assert!(sink.downs.is_empty(), "{:?}", sink.downs);
        }
    }
    assert!(sinks.iter().flat_map(|s| &s.done).all(Result::is_ok));
}

#[test]
fn ranks_of_a_host_meet_and_hand_over_their_heaps() {
    for world in [1, 2, 3, 5, 8] {
        check(&vec![0; world], None);
    }
}

#[test]
fn other_hosts_and_ranks_that_decline_are_left_out() {
    check(&[0, 1, 0, 1, 1, 2, 0], None);
    for declines in 0..3 {
        check(&[0, 0, 0], Some(declines));
    }
}

/// Two ranks with heaps, and a buffer of rank 0's that is lent; with the whole length of a message.
fn lenders(bytes: usize) -> (Vec<ShmTransport>, gaggle_core::Buffer<u8>) {
    let heaps = crate::heap::heaps(2, 4 << 20).unwrap();
    let block = heaps[0].block(bytes).unwrap();
    let mut buffer = gaggle_core::Buffer::<u8>::on(block, bytes).unwrap();
    (0..bytes).for_each(|i| buffer[i] = (i % 251) as u8);
    let world = mesh(2, SMALLEST).into_iter().zip(heaps);
    let world = world.map(|(t, heap)| t.with_shared(Arc::new(heap)));
    (world.collect(), buffer)
}

/// What a receiver does with a message, piece by piece.
struct Taker<'a> {
    got: Vec<u8>,
    whole: bool,
    then: &'a mut dyn FnMut(usize),
    done: Vec<Result<(), TransportError>>,
}

impl Sink for Taker<'_> {
    fn outgoing(&mut self, _id: XferId, _at: u64, _out: &mut dyn Outlet) {
        panic!("what is lent is not asked for");
    }
    fn opened(&mut self, _id: XferId, _head: &[u8]) -> Verdict {
        Verdict::Take
    }
    fn incoming(&mut self, _id: XferId, at: u64, part: &mut dyn Inlet) {
        assert_eq!(at, self.got.len() as u64);
        let lo = self.got.len();
        if self.whole {
            self.got.resize(lo + 100_000, 0);
            let n = part.copy_to(&mut self.got[lo..]);
            self.got.truncate(lo + n);
        } else {
            let bytes = part.peek().to_vec();
            part.consume(bytes.len());
            self.got.extend(bytes);
        }
        (self.then)(self.got.len());
    }
    fn unexpected(&mut self, _from: Rank, _key: MsgKey, _head: &[u8]) -> Verdict {
        Verdict::Take
    }
    fn done(&mut self, _id: XferId, result: Result<(), TransportError>) {
        self.done.push(result);
    }
    fn down(&mut self, peer: Rank, how: Down) {
        panic!("{peer}: {how:?}");
    }
}

fn lent(world: &[ShmTransport], buffer: &gaggle_core::Buffer<u8>) -> XferId {
    let loan = contract::raw_space::lend_until_over(&buffer[..]);
    let mut t = transfer(Dir::Send, 1, buffer.len() as u64);
    t.loan = Some(loan);
    world[0].post(t).unwrap()
}

#[test]
fn what_is_lent_is_read_where_it_is_and_is_the_senders_again_when_it_was_read() {
    let n = 200_000;
    for (whole, early) in [(true, true), (true, false), (false, true), (false, false)] {
        let (world, buffer) = lenders(n);
        let mut nothing = |_| {};
        let mut sink = Taker {
            got: vec![],
            whole,
            then: &mut nothing,
            done: vec![],
        };
        let mut sender = Plain::default();
        let post = || world[1].post(transfer(Dir::Recv, 0, n as u64)).unwrap();
        if !early {
            post();
        }
        lent(&world, &buffer);
        let turn = |sink: &mut Taker<'_>, sender: &mut Plain| {
            for _ in 0..4 {
                world[0].progress(sender, 1 << 20);
                world[1].progress(sink, 1 << 20);
            }
        };
        turn(&mut sink, &mut sender);
        if early {
            assert!(sender.done.is_empty(), "before anybody has asked for it");
            post();
            turn(&mut sink, &mut sender);
        }
        assert!(matches!(&sink.done[..], [Ok(())]), "{:?}", sink.done);
        assert!(matches!(&sender.done[..], [Ok(())]), "{:?}", sender.done);
        assert_eq!(sink.got, buffer[..]);
        let (sent, got) = (world[0].stats(), world[1].stats());
        assert_eq!((sent.lent_sent, got.lent_received), (n as u64, n as u64));
    }
}

#[test]
fn what_its_sender_has_taken_back_is_not_reported_as_whole() {
    let n = 200_000;
    for whole in [true, false] {
        let (world, mut buffer) = lenders(n);
        let id = lent(&world, &buffer);
        let mut recalled = false;
        let (sender, bytes) = (&world[0], &mut buffer);
        let mut then = |got: usize| {
            if got >= 50_000 && !std::mem::replace(&mut recalled, true) {
                sender.cancel(id);
                bytes.fill(0xee);
            }
        };
        let mut sink = Taker {
            got: vec![],
            whole,
            then: &mut then,
            done: vec![],
        };
        world[1].post(transfer(Dir::Recv, 0, n as u64)).unwrap();
        for _ in 0..4 {
            world[0].progress(&mut Plain::default(), 1 << 20);
            world[1].progress(&mut sink, 1 << 20);
        }
        assert!(
            matches!(
                &sink.done[..],
                [Err(TransportError::Aborted { peer: Rank(0) })]
            ),
            "{:?} of {} bytes",
            sink.done,
            sink.got.len()
        );
        // What each of them says of it afterwards is no news to the other.
        let mut calm = Plain::default();
        for _ in 0..4 {
            world[0].progress(&mut calm, 1 << 20);
            world[1].progress(&mut calm, 1 << 20);
        }
        assert!(calm.done.is_empty() && calm.downs.is_empty());
    }
}

/// A receiver that leaves messages where they lie.
#[derive(Default)]
struct Leaver {
    left: Vec<(XferId, u64)>,
    done: Vec<Result<(), TransportError>>,
}

impl Sink for Leaver {
    fn outgoing(&mut self, _id: XferId, _at: u64, _out: &mut dyn Outlet) {
        panic!("it sends nothing");
    }
    fn opened(&mut self, _id: XferId, _head: &[u8]) -> Verdict {
        Verdict::Take
    }
    fn incoming(&mut self, id: XferId, at: u64, part: &mut dyn Inlet) {
        assert_eq!(at, 0, "what was left is not offered again");
        let place = part.leave().expect("it can be left");
        assert!(part.peek().is_empty(), "nothing of it is here");
        self.left.push((id, place));
    }
    fn unexpected(&mut self, _from: Rank, _key: MsgKey, _head: &[u8]) -> Verdict {
        Verdict::Take
    }
    fn done(&mut self, _id: XferId, result: Result<(), TransportError>) {
        self.done.push(result);
    }
    fn down(&mut self, peer: Rank, how: Down) {
        panic!("{peer}: {how:?}");
    }
}

#[test]
fn what_is_left_where_it_lies_is_read_there_until_the_receiver_has_taken_it() {
    let n = 200_000;
    for taken_back in [false, true] {
        let (world, mut buffer) = lenders(n);
        let (mut sink, mut sender) = (Leaver::default(), Plain::default());
        world[1].post(transfer(Dir::Recv, 0, n as u64)).unwrap();
        let sent = lent(&world, &buffer);
        let turn = |sink: &mut Leaver, sender: &mut Plain| {
            for _ in 0..4 {
                world[0].progress(sender, 1 << 20);
                world[1].progress(sink, 1 << 20);
            }
        };
        turn(&mut sink, &mut sender);
        let [(id, place)] = sink.left[..] else {
            panic!("{} messages were left", sink.left.len());
        };
        assert!(sender.done.is_empty() && sink.done.is_empty());
        let heaps = world[1].shared().unwrap();
        let window = heaps.window(Rank(0), place, n).unwrap();
        let mut got = vec![0; n];
        gaggle_core::Window::from(window).read(0, &mut got);
        assert_eq!(got, buffer[..]);
        if taken_back {
            world[0].cancel(sent);
            buffer.fill(0xee);
        }
        world[1].taken(id);
        world[1].taken(id);
        turn(&mut sink, &mut sender);
        match (&sink.done[..], &sender.done[..]) {
            ([Ok(())], [Ok(())]) => assert!(!taken_back),
            ([Err(TransportError::Aborted { peer: Rank(0) })], []) => assert!(taken_back),
            other => panic!("{other:?}"),
        }
        world[1].taken(id);
        turn(&mut sink, &mut sender);
        assert_eq!((sink.left.len(), sink.done.len()), (1, 1));
    }
}

#[test]
fn a_message_that_is_left_and_not_wanted_any_more_is_nobodys() {
    let n = 200_000;
    let (world, buffer) = lenders(n);
    let (mut sink, mut sender) = (Leaver::default(), Plain::default());
    let id = world[1].post(transfer(Dir::Recv, 0, n as u64)).unwrap();
    lent(&world, &buffer);
    for k in 0..8 {
        world[0].progress(&mut sender, 1 << 20);
        world[1].progress(&mut sink, 1 << 20);
        if k == 3 {
            assert_eq!(sink.left.len(), 1);
            world[1].cancel(id);
            world[1].taken(id);
        }
    }
    assert!(matches!(&sender.done[..], [Ok(())]), "{:?}", sender.done);
    assert!(sink.done.is_empty());
}

#[test]
fn a_place_outside_every_heap_closes_the_link() {
    use crate::frame::{HEADER, Header, Kind, LENT};
    let (mine, theirs) = pair(SMALLEST).unwrap();
    let heaps = crate::heap::heaps(2, 1 << 20).unwrap();
    let heap = heaps.into_iter().next().unwrap();
    let t = ShmTransport::new(Rank(0), vec![(Rank(1), mine)]).unwrap();
    let with_heap = t.with_shared(Arc::new(heap));
    assert!(with_heap.wants_loans());
    let (_stream, side) = theirs.into_parts();
    let mut writer = Writer::new(Arc::clone(side.map()), side.output());
    let t = transfer(Dir::Recv, 1, 50_000);
    with_heap.post(t).unwrap();
    let h = Header {
        first: true,
        lent: true,
        head_len: LENT as u8,
        total: 50_000,
        ..Header::control(Kind::Data, t.key)
    };
    let room = writer.room(0, HEADER + LENT);
    room[..HEADER].copy_from_slice(&h.to_bytes());
    room[HEADER..HEADER + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    room[HEADER + 8..].fill(0);
    writer.filled(HEADER + LENT);
    writer.publish();
    let mut sink = Plain::default();
    for _ in 0..10 {
        with_heap.progress(&mut sink, 1 << 20);
    }
    let [(Rank(1), Down::Lost(why))] = &sink.downs[..] else {
        panic!("{:?}", sink.downs);
    };
    assert!(why.contains("what is not in its heap"), "{why}");
    assert!(matches!(&sink.done[..], [Err(_)]));
}
