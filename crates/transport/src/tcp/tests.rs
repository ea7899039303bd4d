//! What the contract suite cannot see from outside: counters against the socket, malformed streams, floods, and that nothing is left in the tables.

use super::*;
use crate::{
    contract::{self, Tier},
    frame::{COST, EAGER, HEADER, Kind, PAYLOAD_MAX},
};
use gaggle_core::Class;
use rand::{Rng, RngCore, SeedableRng};
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener},
};

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().unwrap().0, there)
}

fn mesh(n: u32) -> Vec<TcpTransport> {
    let mut links: Vec<Vec<(Rank, TcpStream)>> = (0..n).map(|_| Vec::new()).collect();
    for a in 0..n {
        for b in 0..a {
            let (x, y) = pair();
            links[a as usize].push((Rank(b), x));
            links[b as usize].push((Rank(a), y));
        }
    }
    let make =
        |(me, links)| TcpTransport::new(Rank(me as u32), links, TcpConfig::default()).unwrap();
    links.into_iter().enumerate().map(make).collect()
}

#[test]
fn keeps_the_contract() {
    let mut make = |n| -> Vec<Box<dyn Transport>> {
        mesh(n)
            .into_iter()
            .map(|t| Box::new(t) as Box<dyn Transport>)
            .collect()
    };
    contract::run(&mut make, Tier::TCP);
}

#[test]
fn a_second_connection_to_a_rank_is_refused() {
    let twice = vec![(Rank(1), pair().0), (Rank(1), pair().0)];
    let e = TcpTransport::new(Rank(0), twice, TcpConfig::default()).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::InvalidInput);
    let own = vec![(Rank(0), pair().0)];
    assert!(TcpTransport::new(Rank(0), own, TcpConfig::default()).is_err());
}

/// A sink that takes everything, gives zeroes, and remembers how it ended.
#[derive(Default)]
pub(super) struct Plain {
    pub(super) done: Vec<(XferId, Result<(), TransportError>)>,
    pub(super) downs: Vec<(Rank, Down)>,
    refuse: bool,
    /// Takes nothing for now.
    full: bool,
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
        part.consume(if self.full { 0 } else { n });
    }
    fn unexpected(&mut self, _from: Rank, _key: MsgKey, _head: &[u8]) -> Verdict {
        if self.refuse {
            Verdict::Refuse
        } else {
            Verdict::Take
        }
    }
    fn done(&mut self, id: XferId, result: Result<(), TransportError>) {
        self.done.push((id, result));
    }
    fn down(&mut self, peer: Rank, how: Down) {
        self.downs.push((peer, how));
    }
}

pub(super) fn key(tag: u32) -> MsgKey {
    let op = OpId {
        group: 1,
        lane: 0,
        class: Class::Collective,
        seq: 0,
    };
    MsgKey { op, tag }
}

pub(super) fn transfer(dir: Dir, peer: u32, tag: u32, bytes: u64) -> Transfer<'static> {
    Transfer {
        dir,
        peer: Rank(peer),
        key: key(tag),
        bytes,
        unit: 1,
        priority: 0,
        head: if dir == Dir::Send { b"head" } else { b"" },
        loan: None,
    }
}

/// Waits on the selector, as an engine would; the limit only turns a hang into a failure.
pub(super) fn wait(t: &TcpTransport) {
    if let Armed::Fd(fd) = t.arm() {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(
            fd,
            rustix::event::PollFlags::IN,
        )];
        let limit = rustix::event::Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        assert!(
            rustix::event::poll(&mut fds, Some(&limit)).unwrap() > 0,
            "nothing happens any more"
        );
    }
}

/// Waits on the selector for something that may not come.
pub(super) fn wait_briefly(t: &TcpTransport) {
    if let Armed::Fd(fd) = t.arm() {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(
            fd,
            rustix::event::PollFlags::IN,
        )];
        let limit = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        rustix::event::poll(&mut fds, Some(&limit)).unwrap();
    }
}

#[test]
fn the_counts_are_those_of_the_sockets() {
    let world = mesh(3);
    let mut sinks: Vec<Plain> = (0..3).map(|_| Plain::default()).collect();
    let mut want = 0;
    for (me, t) in world.iter().enumerate() {
        for peer in (0..3).filter(|p| *p != me as u32) {
            for (tag, bytes) in [(0, 0), (1, 1), (2, 70_001), (3, 3_000_001)] {
                t.post(transfer(Dir::Send, peer, tag, bytes)).unwrap();
                if tag != 2 {
                    t.post(transfer(Dir::Recv, peer, tag, bytes)).unwrap();
                    want += 1;
                }
                want += 1;
            }
        }
    }
    let mut late = false;
    while !late || sinks.iter().map(|s| s.done.len()).sum::<usize>() < want {
        let mut calls = 0;
        for (t, s) in world.iter().zip(&mut sinks) {
            calls += t.progress(s, 1 << 20);
        }
        if calls == 0 && !late {
            late = true;
            for (me, t) in world.iter().enumerate() {
                for peer in (0..3).filter(|p| *p != me as u32) {
                    t.post(transfer(Dir::Recv, peer, 2, 70_001)).unwrap();
                    want += 1;
                }
            }
        }
    }
    // Everything is at its place; the last grants are on their way or there.
    let sum = |f: fn(&LinkStats) -> u64| world.iter().map(|t| f(&t.stats())).sum::<u64>();
    let control = 6 * 4 * HEADER as u64;
    for _ in 0..10_000_000 {
        if sum(|s| s.control_received) >= control {
            break;
        }
        for (t, s) in world.iter().zip(&mut sinks) {
            t.progress(s, 1 << 20);
        }
    }
    assert_eq!(sum(|s| s.payload_sent), 6 * (1 + 70_001 + 3_000_001));
    assert_eq!(sum(|s| s.payload_received), 6 * (1 + 70_001 + 3_000_001));
    assert_eq!(sum(|s| s.frames_sent), sum(|s| s.frames_received));
    assert_eq!(
        sum(|s| s.header_sent),
        sum(|s| s.frames_sent) * HEADER as u64 + 6 * 4 * 4
    );
    // One grant per message, no more and no less.
    assert_eq!(
        (sum(|s| s.control_sent), sum(|s| s.control_received)),
        (control, control)
    );
    for t in &world {
        let s = t.stats();
        let ours = (
            s.payload_sent + s.header_sent + s.control_sent,
            s.payload_received + s.header_received + s.control_received,
        );
        // Only Linux says how much went through a socket; there it always does.
        let theirs = t.socket_counters();
        assert_eq!(theirs, cfg!(target_os = "linux").then_some(ours));
    }
}

/// Feeds bytes to a transport as rank 1, and returns the sink once the link is down.
fn attack(bytes: &[u8], refuse: bool, posted: &[(u32, u64)]) -> Plain {
    let (ours, mut theirs) = pair();
    let t = TcpTransport::new(Rank(0), vec![(Rank(1), ours)], TcpConfig::default()).unwrap();
    let mut sink = Plain {
        refuse,
        ..Plain::default()
    };
    for (tag, len) in posted {
        t.post(transfer(Dir::Recv, 1, *tag, *len)).unwrap();
    }
    theirs.set_nonblocking(true).unwrap();
    let mut at = 0;
    let mut closed = false;
    while sink.downs.is_empty() {
        let before = at;
        while at < bytes.len() {
            match theirs.write(&bytes[at..]) {
                Ok(n) => at += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => at = bytes.len(),
            }
        }
        if at == bytes.len() && !closed {
            closed = true;
            // The victim may have closed it already.
            let _ = theirs.shutdown(std::net::Shutdown::Write);
        }
        while matches!(theirs.read(&mut [0; 4096]), Ok(n) if n > 0) {}
        let held = t.state.lock().links[0].held;
        assert!(held <= EAGER, "{held} bytes are held");
        if t.progress(&mut sink, 1 << 20) == 0 && at == before {
            wait(&t);
        }
    }
    assert!(t.state.lock().links[0].messages.len() < 2 * POSTED_MAX);
    assert_eq!(t.state.lock().slots.len(), 0, "what was posted is over");
    sink
}

fn lost_because(sink: &Plain, why: &str) {
    match &sink.downs[..] {
        [(Rank(1), Down::Lost(text))] => {
            assert!(
                text.contains(why) && text.contains("rank 1"),
                "{text:?}, not {why:?}"
            );
        }
        other => panic!("{other:?}, not {why:?}"),
    }
}

fn data(tag: u32, offset: u64, len: u32, total: u64) -> Header {
    Header {
        first: offset == 0,
        len,
        offset,
        total,
        ..Header::control(Kind::Data, key(tag))
    }
}

fn frame(h: Header) -> Vec<u8> {
    let mut b = h.to_bytes().to_vec();
    b.resize(HEADER + usize::from(h.head_len) + h.len as usize, 7);
    b
}

#[test]
fn a_violation_closes_the_link_and_is_named() {
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![9; HEADER], "unknown kind 9"),
        (frame(data(1, 5, 5, 20)), "has not begun"),
        (
            [frame(data(1, 0, 5, 20)), frame(data(1, 0, 5, 20))].concat(),
            "begins twice",
        ),
        (
            [frame(data(1, 0, 5, 20)), frame(data(1, 6, 5, 20))].concat(),
            "a frame at 6",
        ),
        (
            [frame(data(1, 0, 5, 20)), frame(data(1, 5, 5, 21))].concat(),
            "a frame at 5 of 21",
        ),
        (
            frame(Header {
                granted: true,
                ..data(1, 0, 5, 20)
            }),
            "never given",
        ),
        (
            frame(Header {
                len: PAYLOAD_MAX as u32 + 1,
                ..data(1, 0, 0, u64::MAX)
            }),
            "more than a frame may have",
        ),
        (frame(data(1, 0, 30, 20)), "30 bytes at 0"),
        (
            [
                frame(data(1, 0, 200_000, 1 << 40)),
                frame(data(2, 0, 100_000, 1 << 40)),
            ]
            .concat(),
            "more than the credit",
        ),
        (frame(Header::control(Kind::Abort, key(1))), "has not begun"),
        (
            [
                frame(Header::control(Kind::Grant, key(1))),
                frame(Header::control(Kind::Grant, key(1))),
            ]
            .concat(),
            "too many grants",
        ),
        (
            frame(data(1, 0, 50, 100))[..70].to_vec(),
            "connection closed by rank 1 in mid-frame",
        ),
        (vec![1; 20], "connection closed by rank 1 in mid-frame"),
        (Vec::new(), "connection closed by rank 1"),
    ];
    for (bytes, why) in cases {
        let sink = attack(&bytes, false, &[(7, 10)]);
        lost_because(&sink, why);
        assert!(
            matches!(
                &sink.done[..],
                [(_, Err(TransportError::Down { peer: Rank(1), .. }))]
            ),
            "{:?}",
            sink.done
        );
    }
}

#[test]
fn floods_end_at_a_bound() {
    let many = |n: u32, f: &dyn Fn(u32) -> Header| -> Vec<u8> {
        (0..n).flat_map(|i| frame(f(i))).collect()
    };
    // Messages without payload cost credit too.
    let n = (EAGER / COST) as u32 + 1;
    lost_because(
        &attack(&many(n, &|i| data(i, 0, 0, 0)), false, &[]),
        "more than the credit",
    );
    // Grants for what will never be sent.
    let n = POSTED_MAX as u32 + 1;
    let grants = many(n, &|i| Header::control(Kind::Grant, key(i)));
    lost_because(&attack(&grants, false, &[]), "too many grants");
    // Messages that are refused, and never end.
    let endless = many(n + 1, &|i| data(i, 0, 1, 1 << 50));
    lost_because(&attack(&endless, true, &[]), "too many unfinished messages");
}

#[test]
fn random_bytes_end_in_a_typed_reason() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(11);
    for round in 0..150 {
        let mut bytes = Vec::new();
        for _ in 0..rng.random_range(1..40) {
            let mut h = data(rng.random_range(0..6), 0, rng.random_range(0..3000), 5000);
            h.granted = rng.random_bool(0.2);
            if rng.random_bool(0.3) {
                (h.first, h.offset) = (false, rng.random_range(0..5000));
            }
            if h.first {
                h.head_len = rng.random_range(0..100);
            }
            if rng.random_bool(0.2) {
                h = Header::control(
                    [Kind::Grant, Kind::Abort, Kind::Goodbye][rng.random_range(0..3)],
                    h.key,
                );
            }
            bytes.extend(frame(h));
        }
        for _ in 0..rng.random_range(0..4) {
            let at = rng.random_range(0..bytes.len());
            bytes[at] = rng.random();
        }
        if round % 5 == 0 {
            rng.fill_bytes(&mut bytes);
        }
        bytes.truncate(rng.random_range(0..=bytes.len()));
        let sink = attack(&bytes, round % 2 == 0, &[(0, 5000), (1, 3), (2, 0)]);
        match &sink.downs[..] {
            [(Rank(1), Down::Lost(why))] => assert!(why.contains("rank 1"), "{why}"),
            [(Rank(1), Down::Left)] => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Both ranks until nothing more can happen: every grant has arrived.
fn settle(world: &[TcpTransport], sinks: &mut [Plain]) {
    let counts = || {
        let sum = |f: fn(&LinkStats) -> u64| world.iter().map(|t| f(&t.stats())).sum::<u64>();
        sum(|s| s.control_sent + s.header_sent) == sum(|s| s.control_received + s.header_received)
            && sum(|s| s.payload_sent) == sum(|s| s.payload_received)
            && world
                .iter()
                .all(|t| t.state.lock().links.iter().all(|l| l.control.is_empty()))
    };
    for _ in 0..10_000_000 {
        let mut calls = 0;
        for (t, s) in world.iter().zip(sinks.iter_mut()) {
            calls += t.progress(s, 1 << 20);
        }
        if calls == 0 && counts() {
            return;
        }
    }
    panic!("no end");
}

#[test]
fn nothing_is_left_behind() {
    let world = mesh(2);
    let mut sinks = [Plain::default(), Plain::default()];
    let send = |tag, bytes| world[0].post(transfer(Dir::Send, 1, tag, bytes)).unwrap();
    let recv = |tag, bytes| world[1].post(transfer(Dir::Recv, 0, tag, bytes)).unwrap();
    let lengths = [0, 1, 5000, 600_000];
    for (i, bytes) in lengths.into_iter().enumerate() {
        let tag = 10 * i as u32;
        // Refused while nobody has posted it.
        sinks[1].refuse = true;
        send(tag, bytes);
        settle(&world, &mut sinks);
        sinks[1].refuse = false;
        // Kept, then forgotten.
        send(tag + 1, bytes);
        settle(&world, &mut sinks);
        world[1].forget(key(0).op);
        settle(&world, &mut sinks);
        // Kept, then posted and withdrawn.
        send(tag + 2, bytes);
        settle(&world, &mut sinks);
        world[1].cancel(recv(tag + 2, bytes));
        settle(&world, &mut sinks);
        // Withdrawn before it came.
        let r = recv(tag + 3, bytes);
        settle(&world, &mut sinks);
        world[1].cancel(r);
        send(tag + 3, bytes);
        settle(&world, &mut sinks);
        // Another length.
        recv(tag + 4, bytes + 1);
        send(tag + 4, bytes);
        settle(&world, &mut sinks);
        // Cancelled by the sender, early or in mid-message.
        let s = send(tag + 5, bytes + 1_000_000);
        settle(&world, &mut sinks);
        world[0].cancel(s);
        settle(&world, &mut sinks);
        // As it should be.
        recv(tag + 6, bytes);
        send(tag + 6, bytes);
        settle(&world, &mut sinks);
    }
    assert_eq!(sinks[0].done.len(), lengths.len() * 6);
    assert_eq!(sinks[1].done.len(), lengths.len() * 2);
    for t in &world {
        let st = t.state.lock();
        let l = &st.links[0];
        assert_eq!(st.slots.len(), 0, "transfers");
        assert_eq!((l.messages.len(), l.keys.len()), (0, 0), "messages");
        assert_eq!(
            (l.sends.len(), l.unsettled.len(), l.granted.len()),
            (0, 0, 0),
            "sends"
        );
        assert_eq!(
            (l.credit, l.held, l.dropping, l.posted),
            (EAGER, 0, 0, 0),
            "credit"
        );
        // One grant for each message that began.
        assert_eq!(l.control.len(), 0);
    }
}

#[test]
fn what_came_whole_before_the_goodbye_is_delivered_after_it() {
    let world = mesh(2);
    let mut sinks = [Plain::default(), Plain::default()];
    world[0].post(transfer(Dir::Send, 1, 1, 5000)).unwrap();
    settle(&world, &mut sinks);
    let posted = world[1].post(transfer(Dir::Recv, 0, 1, 5000)).unwrap();
    let never = world[1].post(transfer(Dir::Recv, 0, 2, 5000)).unwrap();
    sinks[1].full = true;
    world[0].leave(Duration::from_secs(20));
    for _ in 0..10_000_000 {
        world[1].progress(&mut sinks[1], 1 << 20);
        if !sinks[1].downs.is_empty() {
            break;
        }
    }
    assert_eq!(sinks[1].downs, [(Rank(0), Down::Left)]);
    assert!(
        matches!(&sinks[1].done[..], [(id, Err(TransportError::Down { how: Down::Left, .. }))] if *id == never)
    );
    assert!(
        matches!(world[1].arm(), Armed::PollAfter(_)),
        "it is to be offered again"
    );
    sinks[1].full = false;
    world[1].progress(&mut sinks[1], 1 << 20);
    assert!(matches!(&sinks[1].done[1..], [(id, Ok(()))] if *id == posted));
}

/// Whether the selector has something to tell, as whoever sleeps on it would find.
fn rings(fd: std::os::fd::BorrowedFd<'_>) -> bool {
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(
        fd,
        rustix::event::PollFlags::IN,
    )];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut fds, Some(&now)).unwrap() > 0
}

#[test]
fn who_sleeps_after_sockets_were_simply_read_is_woken_by_what_is_new_alone() {
    for world in [2, 3] {
        let world = mesh(world);
        let mut sinks: Vec<_> = world.iter().map(|_| Plain::default()).collect();
        for tag in 0..100 {
            world[1].post(transfer(Dir::Recv, 0, tag, 100)).unwrap();
            world[0].post(transfer(Dir::Send, 1, tag, 100)).unwrap();
            settle(&world, &mut sinks);
        }
        // Something is expected, and looked for without a question.
        world[1].post(transfer(Dir::Recv, 0, 150, 100)).unwrap();
        for _ in 0..2 {
            world[1].progress(&mut sinks[1], 1 << 20);
        }
        assert!(world[1].unasked.load(SeqCst));
        // One more look is what it costs.
        let mut looks = 0;
        while matches!(world[1].arm(), Armed::MoreToDo) {
            world[1].progress(&mut sinks[1], 1 << 20);
            looks += 1;
            assert!(looks < 10, "nobody could ever sleep");
        }
        let Armed::Fd(fd) = world[1].arm() else {
            panic!("it has nothing to do");
        };
        assert!(!rings(fd), "of what has been read long ago");
        world[0].post(transfer(Dir::Send, 1, 200, 1)).unwrap();
        world[0].progress(&mut sinks[0], 1 << 20);
        wait(&world[1]);
        for _ in 0..10_000_000 {
            if world[1].stats().early_messages > 0 {
                break;
            }
            world[1].progress(&mut sinks[1], 1 << 20);
        }
        assert_eq!(world[1].stats().early_messages, 1);
    }
}

#[test]
fn bytes_that_are_lent_leave_from_where_they_are_and_whole() {
    /// Takes what comes, and has nothing to give.
    #[derive(Default)]
    struct Into {
        bytes: Vec<u8>,
        done: usize,
    }
    impl Sink for Into {
        fn outgoing(&mut self, _id: XferId, _at: u64, _out: &mut dyn Outlet) {
            panic!("it was lent");
        }
        fn opened(&mut self, _id: XferId, _head: &[u8]) -> Verdict {
            Verdict::Take
        }
        fn incoming(&mut self, _id: XferId, at: u64, part: &mut dyn Inlet) {
            assert_eq!(at, self.bytes.len() as u64);
            let n = part.peek().len();
            self.bytes.extend_from_slice(part.peek());
            part.consume(n);
        }
        fn unexpected(&mut self, _from: Rank, _key: MsgKey, _head: &[u8]) -> Verdict {
            Verdict::Take
        }
        fn done(&mut self, _id: XferId, result: Result<(), TransportError>) {
            result.unwrap();
            self.done += 1;
        }
        fn down(&mut self, _peer: Rank, how: Down) {
            panic!("{how:?}");
        }
    }
    // Around where bytes are copied, where a frame ends, and more than a socket takes at once.
    for n in [0, 1, 8191, 8192, 8193, 65535, 65536, 65537, 9_999_991] {
        let bytes: &'static [u8] = (0..n).map(|i| (i % 251) as u8).collect::<Vec<u8>>().leak();
        let world = mesh(2);
        let mut sinks = [Into::default(), Into::default()];
        let lent = Transfer {
            loan: Some(contract::raw::lend(bytes)),
            ..transfer(Dir::Send, 1, 1, n)
        };
        world[0].post(lent).unwrap();
        world[1].post(transfer(Dir::Recv, 0, 1, n)).unwrap();
        for _ in 0..10_000_000 {
            for (t, s) in world.iter().zip(&mut sinks) {
                t.progress(s, 1 << 20);
            }
            if sinks[0].done + sinks[1].done == 2 {
                break;
            }
        }
        assert_eq!((sinks[0].done, sinks[1].done), (1, 1), "{n} bytes");
        assert!(sinks[1].bytes == bytes, "{n} bytes");
    }
}

/// The peer reads nothing until the kernel takes no more; then something urgent is posted.
#[test]
fn an_urgent_message_is_the_very_next_frame() {
    let (here, mut there) = pair();
    let config = TcpConfig::default();
    let t = TcpTransport::new(Rank(0), vec![(Rank(1), here)], config.clone()).unwrap();
    let mut sink = Plain::default();
    let send = |tag: u32, priority: i32, bytes: u64| {
        let mut transfer = transfer(Dir::Send, 1, tag, bytes);
        transfer.priority = priority;
        t.post(transfer).unwrap();
    };
    for tag in 0..4 {
        there
            .write_all(&frame(Header::control(Kind::Grant, key(tag))))
            .unwrap();
    }
    send(0, 0, 1 << 30);
    let mut rounds = 0;
    while t.stats().payload_sent == 0 || t.io.lock().links[0].writable {
        t.progress(&mut sink, usize::MAX);
        wait_briefly(&t);
        rounds += 1;
        assert!(rounds < 20_000, "the socket takes everything");
    }
    {
        let io = t.io.lock();
        let pending = io.links[0].output.len();
        assert!(
            pending <= link::FRAME_TIGHT + (16 << 10) + 1024,
            "{pending}"
        );
        #[cfg(target_os = "linux")]
        {
            // The kernel looks at its bound before it takes another packet.
            let link::Stream::Tcp(stream) = &io.links[0].stream else {
                panic!("a socket was given");
            };
            let unsent = sockopt::unsent(stream.as_fd());
            assert!(unsent <= config.unsent as usize + (64 << 10), "{unsent}");
        }
    }
    let framed = |t: &TcpTransport| {
        let s = t.stats();
        (s.payload_sent + s.header_sent + s.control_sent) as usize
    };
    let before = framed(&t);
    send(1, 0, 5000);
    send(2, 3, 5000);
    send(3, 7, 2 * link::FRAME_TIGHT as u64);
    let until = before + 3 * link::FRAME_TIGHT;
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; until];
        there.read_exact(&mut bytes).map(|()| bytes)
    });
    while !reader.is_finished() {
        t.progress(&mut sink, usize::MAX);
        wait_briefly(&t);
    }
    let bytes = reader.join().unwrap().unwrap();
    let mut at = before;
    let mut next = || {
        let (header, _) = bytes[at..].split_first_chunk().unwrap();
        let h = Header::parse(header).unwrap();
        at += HEADER + usize::from(h.head_len) + h.len as usize;
        (h.key.tag, h.len as usize)
    };
    let order: Vec<(u32, usize)> = (0..4).map(|_| next()).collect();
    // The large message that has begun is older than the short one of its priority.
    assert_eq!(
        order,
        [
            (3, link::FRAME_TIGHT),
            (3, link::FRAME_TIGHT),
            (2, 5000),
            (0, link::FRAME_TIGHT)
        ]
    );
}
