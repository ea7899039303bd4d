//! Connections that are made when they are first needed: what makes one, that there is never a second, and everything that can be wrong at the other end.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use super::*;
use crate::{
    auth::{self, Acceptor, Progress, Secret},
    contract::{self, Tier},
    frame::HEADER,
    tcp::{
        TcpConfig, TcpTransport,
        link::Stream,
        tests::{Plain, transfer, wait, wait_briefly},
    },
};
use gaggle_core::{Dir, Transport, TransportError, XferId};
use rand::{Rng, SeedableRng};
use std::{net::Ipv4Addr, thread};

const LONG: Duration = Duration::from_secs(60);

fn creds() -> Credentials {
    Credentials {
        job: "dial test".into(),
        epoch: 0,
        secret: Secret::from_bytes([9; 32]),
    }
}

fn patience(patience: Duration) -> TcpConfig {
    TcpConfig {
        patience,
        ..TcpConfig::default()
    }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

fn world_with(n: u32, config: &TcpConfig) -> Vec<TcpTransport> {
    let all: Vec<_> = (0..n).map(|_| listener()).collect();
    let addrs: Vec<SocketAddr> = all.iter().map(|(_, addr)| *addr).collect();
    let others = |me: u32| {
        (0..n).filter(move |peer| *peer != me).map(|peer| Address {
            rank: Rank(peer),
            addr: addrs[peer as usize],
            from: None,
        })
    };
    (0..n)
        .zip(all)
        .map(|(me, (listener, _))| {
            let reach = Reach::new(Rank(me), listener, others(me).collect(), &creds()).unwrap();
            TcpTransport::reaching(Rank(me), reach, config.clone()).unwrap()
        })
        .collect()
}

fn world(n: u32) -> Vec<TcpTransport> {
    world_with(n, &patience(LONG))
}

/// Rank `me`, whose only peer listens at `addr`; and where it is called itself.
fn alone(me: u32, peer: u32, addr: SocketAddr, config: TcpConfig) -> (TcpTransport, SocketAddr) {
    let (listener, own) = listener();
    let peers = vec![Address {
        rank: Rank(peer),
        addr,
        from: None,
    }];
    let reach = Reach::new(Rank(me), listener, peers, &creds()).unwrap();
    let t = TcpTransport::reaching(Rank(me), reach, config).unwrap();
    (t, own)
}

/// Drives them in turn until `over`.
fn drive(
    world: &[&TcpTransport],
    sinks: &mut [Plain],
    what: &str,
    over: impl Fn(&[Plain]) -> bool,
) {
    let start = Instant::now();
    while !over(sinks) {
        let mut calls = 0;
        for (t, sink) in world.iter().zip(sinks.iter_mut()) {
            calls += t.progress(sink, 1 << 20);
        }
        if calls == 0 && !over(sinks) {
            match world {
                [one] => wait(one),
                more => more.iter().for_each(|t| wait_briefly(t)),
            }
        }
        assert!(start.elapsed() < LONG, "no end: {what}");
    }
}

fn result(sink: &Plain, id: XferId) -> &Result<(), TransportError> {
    let found = sink.done.iter().find(|(done, _)| *done == id);
    &found.expect("it is over").1
}

fn lost(sink: &Plain, id: XferId) -> String {
    match result(sink, id) {
        Err(TransportError::Down {
            how: Down::Lost(why),
            ..
        }) => why.clone(),
        other => panic!("{other:?}"),
    }
}

/// Both ends of the one connection between two ranks.
fn ends(t: &TcpTransport) -> Option<(SocketAddr, SocketAddr)> {
    match &t.io.lock().links[0].stream {
        Stream::Tcp(stream) => Some((stream.local_addr().unwrap(), stream.peer_addr().unwrap())),
        _ => None,
    }
}

#[test]
fn keeps_the_contract() {
    let config = patience(Duration::from_millis(500));
    let mut make = |n| -> Vec<Box<dyn Transport>> {
        let world = world_with(n, &config).into_iter();
        world.map(|t| Box::new(t) as Box<dyn Transport>).collect()
    };
    contract::run(&mut make, Tier::UNMESHED);
}

#[test]
fn a_send_or_a_receive_alone_makes_one_connection() {
    for (dir, from) in [
        (Dir::Send, 0),
        (Dir::Send, 1),
        (Dir::Recv, 0),
        (Dir::Recv, 1),
    ] {
        let world = world(3);
        let all: Vec<&TcpTransport> = world.iter().collect();
        let mut sinks = [Plain::default(), Plain::default(), Plain::default()];
        assert!(world.iter().all(|t| t.connected().is_empty()));
        let (a, b) = (from, 1 - from);
        all[a].post(transfer(dir, b as u32, 1, 5000)).unwrap();
        let start = Instant::now();
        while all[a].connected().is_empty() || all[b].connected().is_empty() {
            for (t, sink) in all.iter().zip(&mut sinks) {
                t.progress(sink, 1 << 20);
                wait_briefly(t);
            }
            assert!(start.elapsed() < LONG, "never connected");
        }
        assert_eq!(all[a].connected(), [Rank(b as u32)]);
        assert_eq!(all[b].connected(), [Rank(a as u32)]);
        assert!(world[2].connected().is_empty());
        let other = match dir {
            Dir::Send => Dir::Recv,
            Dir::Recv => Dir::Send,
        };
        all[b].post(transfer(other, a as u32, 1, 5000)).unwrap();
        drive(&all, &mut sinks, "a message", |s| {
            s[a].done.len() + s[b].done.len() == 2
        });
        assert!(sinks.iter().all(|s| s.done.iter().all(|d| d.1.is_ok())));
    }
}

#[test]
fn of_two_calls_at_the_same_time_one_remains() {
    for seed in 0..200 {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let world = world(2);
        let delays: Vec<u32> = (0..2).map(|_| rng.random_range(0..3000)).collect();
        let together = std::sync::Barrier::new(2);
        let sinks: Vec<Plain> = thread::scope(|s| {
            let both: Vec<_> = world
                .iter()
                .zip(&delays)
                .zip(0..)
                .map(|((t, delay), me)| {
                    let together = &together;
                    s.spawn(move || {
                        let mut sink = Plain::default();
                        together.wait();
                        for _ in 0..*delay {
                            std::hint::spin_loop();
                        }
                        let len = 1000 + seed * 100;
                        t.post(transfer(Dir::Send, 1 - me, 1, len)).unwrap();
                        t.post(transfer(Dir::Recv, 1 - me, 1, len)).unwrap();
                        let mut sinks = [std::mem::take(&mut sink)];
                        drive(&[t], &mut sinks, "an exchange", |s| s[0].done.len() == 2);
                        let [sink] = sinks;
                        sink
                    })
                })
                .collect();
            both.into_iter().map(|t| t.join().unwrap()).collect()
        });
        for sink in &sinks {
            assert!(sink.done.iter().all(|d| d.1.is_ok()), "seed {seed}");
            assert!(sink.downs.is_empty(), "seed {seed}: {:?}", sink.downs);
        }
        let (a, b) = (ends(&world[0]).unwrap(), ends(&world[1]).unwrap());
        assert_eq!((a.0, a.1), (b.1, b.0), "seed {seed}: two connections");
        let asked: Vec<Want> = world.iter().map(|t| t.state.lock().wants[0]).collect();
        assert_eq!(asked, [Want::Made; 2]);
        // The bytes of the handshake are not the link's.
        let mut sinks: [Plain; 2] = sinks.try_into().ok().unwrap();
        let all: Vec<&TcpTransport> = world.iter().collect();
        let start = Instant::now();
        while all
            .iter()
            .any(|t| t.stats().control_received < HEADER as u64)
        {
            for (t, sink) in all.iter().zip(&mut sinks) {
                t.progress(sink, 1 << 20);
            }
            assert!(start.elapsed() < LONG, "no grants");
        }
        for t in all {
            let s = t.stats();
            let ours = (
                s.payload_sent + s.header_sent + s.control_sent,
                s.payload_received + s.header_received + s.control_received,
            );
            let theirs = t.socket_counters();
            assert_eq!(theirs, cfg!(target_os = "linux").then_some(ours));
        }
    }
}

/// Answers calls by hand, as rank `me`.
struct ByHand {
    listener: TcpListener,
    me: Rank,
}

/// A call that has been answered up to its proof, and what is to be said next.
struct Proven {
    stream: std::net::TcpStream,
    verdict: Vec<u8>,
}

impl ByHand {
    fn take_proof(&self) -> Proven {
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut acceptor = Acceptor::new(&creds(), self.me, "a test");
        loop {
            let n = (&stream).read(acceptor.room()).unwrap();
            assert!(n > 0, "the caller has gone");
            match acceptor.filled(n, &mut |_| Ok(())).unwrap() {
                Progress::More => {}
                Progress::Reply(reply) => (&stream).write_all(&reply).unwrap(),
                Progress::Done { reply, .. } => {
                    return Proven {
                        stream,
                        verdict: reply,
                    };
                }
                Progress::Refused { error, .. } => panic!("{error}"),
            }
        }
    }
}

fn call(addr: SocketAddr, rank: u32) -> Result<std::net::TcpStream, AuthError> {
    let stream = std::net::TcpStream::connect(addr).unwrap();
    prove(&stream, rank)?;
    Ok(stream)
}

fn prove(stream: &std::net::TcpStream, rank: u32) -> Result<(), AuthError> {
    let claim = Claim {
        purpose: Purpose::Data,
        rank: Rank(rank),
    };
    let host = auth::initiate(stream, &creds(), claim, Instant::now() + LONG)?;
    assert_eq!(host, Rank(1 - rank));
    Ok(())
}

#[test]
fn a_lower_ranks_call_counts_from_its_proof_on() {
    let (port, addr) = listener();
    let by_hand = ByHand {
        listener: port,
        me: Rank(1),
    };
    let (t, own) = alone(0, 1, addr, patience(LONG));
    let send = t.post(transfer(Dir::Send, 1, 1, 100)).unwrap();
    let proven = by_hand.take_proof();
    // Rank 1 calls as well, and is sent away for that moment only.
    let e = call(own, 1).unwrap_err();
    assert!(matches!(e, AuthError::Crossed { .. }), "{e}");
    assert!(!e.is_final());
    (&proven.stream).write_all(&proven.verdict).unwrap();
    let mut sinks = [Plain::default()];
    drive(&[&t], &mut sinks, "a send", |s| s[0].done.len() == 1);
    assert!(result(&sinks[0], send).is_ok());
    assert_eq!(ends(&t).unwrap().1, addr);
}

#[test]
fn a_lower_rank_whose_call_is_cut_takes_the_others() {
    let (port, addr) = listener();
    let by_hand = ByHand {
        listener: port,
        me: Rank(1),
    };
    let (t, own) = alone(0, 1, addr, patience(LONG));
    let send = t.post(transfer(Dir::Send, 1, 1, 100)).unwrap();
    drop(by_hand.take_proof());
    drop(by_hand);
    let stream = loop {
        match call(own, 1) {
            Ok(stream) => break stream,
            Err(e) => assert!(!e.is_final(), "{e}"),
        }
    };
    let mut sinks = [Plain::default()];
    drive(&[&t], &mut sinks, "a send", |s| s[0].done.len() == 1);
    assert!(result(&sinks[0], send).is_ok());
    assert_eq!(ends(&t).unwrap().1, stream.local_addr().unwrap());
}

#[test]
fn a_higher_rank_takes_the_others_call_whatever_its_own_has_come_to() {
    let (port, addr) = listener();
    let by_hand = ByHand {
        listener: port,
        me: Rank(0),
    };
    let (t, own) = alone(1, 0, addr, patience(LONG));
    let send = t.post(transfer(Dir::Send, 0, 1, 100)).unwrap();
    let proven = by_hand.take_proof();
    let stream = call(own, 0).unwrap();
    // Its own call is ended.
    assert_eq!((&proven.stream).read(&mut [0]).unwrap(), 0);
    let mut sinks = [Plain::default()];
    drive(&[&t], &mut sinks, "a send", |s| s[0].done.len() == 1);
    assert!(result(&sinks[0], send).is_ok());
    assert_eq!(ends(&t).unwrap().1, stream.local_addr().unwrap());
    // A second one is refused while the first is there: the port is closed, since nobody else is to come.
    let second = std::net::TcpStream::connect(own);
    assert!(second.map_or(true, |stream| prove(&stream, 0).is_err()));
}

/// Where nobody listens.
fn deserted() -> SocketAddr {
    listener().1
}

#[test]
fn a_dead_address_is_named_with_the_systems_reason() {
    let addr = deserted();
    for dir in [Dir::Send, Dir::Recv] {
        let (t, _) = alone(0, 1, addr, patience(Duration::from_millis(150)));
        let start = Instant::now();
        let id = t.post(transfer(dir, 1, 1, 100)).unwrap();
        let mut sinks = [Plain::default()];
        drive(&[&t], &mut sinks, "its end", |s| !s[0].downs.is_empty());
        assert!(start.elapsed() >= Duration::from_millis(150));
        let why = lost(&sinks[0], id);
        let want = format!("rank 1 at {addr} could not be connected within 150.0ms: ");
        assert!(why.starts_with(&want) && why.len() > want.len(), "{why}");
        if cfg!(target_os = "linux") {
            assert!(why.contains("refused"), "{why}");
        }
        assert_eq!(sinks[0].downs, [(Rank(1), Down::Lost(why))]);
        assert!(matches!(
            t.post(transfer(dir, 1, 2, 1)),
            Err(TransportError::Down { .. })
        ));
    }
}

#[test]
fn what_nobody_waits_for_any_more_makes_nobody_lost() {
    let (t, _) = alone(0, 1, deserted(), patience(Duration::from_millis(50)));
    let mut sinks = [Plain::default()];
    for tag in 0..3 {
        let id = t.post(transfer(Dir::Send, 1, tag, 100)).unwrap();
        t.cancel(id);
        while t.state.lock().wants[0] != Want::Never {
            t.progress(&mut sinks[0], 1 << 20);
            wait_briefly(&t);
        }
    }
    assert!(sinks[0].downs.is_empty() && sinks[0].done.is_empty());
    // Whoever wants it again has it tried again.
    let id = t.post(transfer(Dir::Send, 1, 9, 100)).unwrap();
    drive(&[&t], &mut sinks, "its end", |s| !s[0].downs.is_empty());
    lost(&sinks[0], id);
}

#[test]
fn a_peer_may_depart_before_anybody_has_called_it_and_while_it_is_called() {
    for how in [Down::Left, Down::Lost("a signal".into())] {
        for called in [false, true] {
            let (t, _) = alone(0, 1, deserted(), patience(LONG));
            let id = called.then(|| t.post(transfer(Dir::Send, 1, 1, 100)).unwrap());
            let recv = called.then(|| t.post(transfer(Dir::Recv, 1, 2, 100)).unwrap());
            t.departed(Rank(1), &how);
            t.departed(Rank(1), &how);
            let mut sinks = [Plain::default()];
            drive(&[&t], &mut sinks, "its end", |s| !s[0].downs.is_empty());
            assert_eq!(sinks[0].downs, [(Rank(1), how.clone())]);
            assert_eq!(sinks[0].done.len(), 2 * usize::from(called));
            for id in [id, recv].into_iter().flatten() {
                let ended = matches!(result(&sinks[0], id), Err(TransportError::Down { how: h, .. }) if *h == how);
                assert!(ended, "{:?}", sinks[0].done);
            }
            let e = t.post(transfer(Dir::Send, 1, 3, 1)).unwrap_err();
            assert!(matches!(e, TransportError::Down { how: h, .. } if h == how));
        }
    }
}

#[test]
fn what_a_peer_has_sent_before_it_left_comes_before_its_departure() {
    for seed in 0..50 {
        let world = world(2);
        let (a, b) = (seed % 2, 1 - seed % 2);
        let (there, here) = (&world[a], &world[b]);
        let mut sinks = [Plain::default()];
        there.post(transfer(Dir::Send, b as u32, 1, 1000)).unwrap();
        drive(&[there], &mut sinks, "the send", |s| s[0].done.len() == 1);
        there.leave(LONG);
        // Its goodbye by way of the control plane overtakes all of that.
        here.departed(Rank(a as u32), &Down::Left);
        let recv = here.post(transfer(Dir::Recv, a as u32, 1, 1000)).unwrap();
        let mut sinks = [Plain::default()];
        drive(&[here], &mut sinks, "the end", |s| {
            s[0].done.len() == 1 && s[0].downs.len() == 1
        });
        assert!(result(&sinks[0], recv).is_ok(), "seed {seed}");
        assert_eq!(sinks[0].downs, [(Rank(a as u32), Down::Left)]);
    }
}

#[test]
fn who_is_reached_and_does_not_answer_is_late_and_not_lost() {
    // As a process that is stopped: the system takes the call, and nobody answers.
    let (_port, addr) = listener();
    let (t, _) = alone(0, 1, addr, patience(Duration::from_millis(30)));
    let send = t.post(transfer(Dir::Send, 1, 1, 100)).unwrap();
    let mut sinks = [Plain::default()];
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(200) {
        t.progress(&mut sinks[0], 1 << 20);
        wait_briefly(&t);
    }
    assert!(sinks[0].done.is_empty() && sinks[0].downs.is_empty());
    // Only the control plane knows.
    t.departed(Rank(1), &Down::Lost("killed".into()));
    drive(&[&t], &mut sinks, "its end", |s| s[0].done.len() == 1);
    assert_eq!(lost(&sinks[0], send), "killed");
}

#[test]
fn who_goes_on_after_it_was_stopped_is_connected() {
    let (port, addr) = listener();
    let (t, own) = alone(0, 1, addr, patience(Duration::from_millis(30)));
    let send = t.post(transfer(Dir::Send, 1, 1, 100)).unwrap();
    let mut sinks = [Plain::default()];
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        t.progress(&mut sinks[0], 1 << 20);
        wait_briefly(&t);
    }
    let peers = vec![Address {
        rank: Rank(0),
        addr: own,
        from: None,
    }];
    let reach = Reach::new(Rank(1), port, peers, &creds()).unwrap();
    let u = TcpTransport::reaching(Rank(1), reach, patience(LONG)).unwrap();
    let mut sinks = [std::mem::take(&mut sinks[0]), Plain::default()];
    drive(&[&t, &u], &mut sinks, "the send", |s| s[0].done.len() == 1);
    assert!(result(&sinks[0], send).is_ok());
}

#[test]
fn a_stranger_or_another_rank_at_the_address_is_named() {
    let (port, addr) = listener();
    let (t, _) = alone(0, 1, addr, patience(LONG));
    let send = t.post(transfer(Dir::Send, 1, 1, 100)).unwrap();
    let (mut stream, _) = port.accept().unwrap();
    stream
        .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        .unwrap();
    let mut sinks = [Plain::default()];
    drive(&[&t], &mut sinks, "its end", |s| s[0].done.len() == 1);
    let why = lost(&sinks[0], send);
    let want = format!("rank 1 at {addr} could not be connected: {addr} does not speak");
    assert!(why.starts_with(&want), "{why}");

    let (port, addr) = listener();
    let (t, _) = alone(0, 1, addr, patience(LONG));
    let send = t.post(transfer(Dir::Send, 1, 1, 100)).unwrap();
    let by_hand = ByHand {
        listener: port,
        me: Rank(3),
    };
    let proven = by_hand.take_proof();
    (&proven.stream).write_all(&proven.verdict).unwrap();
    let mut sinks = [Plain::default()];
    drive(&[&t], &mut sinks, "its end", |s| s[0].done.len() == 1);
    let why = lost(&sinks[0], send);
    assert!(why.ends_with("rank 3 answers there"), "{why}");
}

#[test]
fn strangers_at_the_port_change_nothing() {
    let (t, at) = alone(0, 1, deserted(), patience(LONG));
    let silent = std::net::TcpStream::connect(at).unwrap();
    let mut noise = std::net::TcpStream::connect(at).unwrap();
    // It may be closed before all of it is written.
    let _ = noise.write_all(&[7; 10_000]);
    let wrong = Credentials {
        secret: Secret::from_bytes([1; 32]),
        ..creds()
    };
    let stream = std::net::TcpStream::connect(at).unwrap();
    let claim = Claim {
        purpose: Purpose::Data,
        rank: Rank(1),
    };
    let e = auth::initiate(&stream, &wrong, claim, Instant::now() + LONG).unwrap_err();
    assert!(matches!(e, AuthError::Secret { .. }), "{e}");
    for (purpose, rank) in [
        (Purpose::Data, 0),
        (Purpose::Data, 7),
        (Purpose::Control, 1),
    ] {
        let stream = std::net::TcpStream::connect(at).unwrap();
        let claim = Claim {
            purpose,
            rank: Rank(rank),
        };
        let e = auth::initiate(&stream, &creds(), claim, Instant::now() + LONG).unwrap_err();
        assert!(matches!(e, AuthError::Unwanted { .. }), "{e}");
    }
    let mut sinks = [Plain::default()];
    let recv = t.post(transfer(Dir::Recv, 1, 1, 0)).unwrap();
    let stream = call(at, 1).unwrap();
    drop(stream);
    drive(&[&t], &mut sinks, "its end", |s| s[0].done.len() == 1);
    assert_eq!(lost(&sinks[0], recv), "connection closed by rank 1");
    drop(silent);
}

#[test]
fn leaving_ends_in_time_whatever_is_being_called() {
    // Nobody there, nobody answers, and one who keeps the verdict back.
    let (_silent, silent) = listener();
    let (port, addr) = listener();
    let by_hand = ByHand {
        listener: port,
        me: Rank(1),
    };
    for (addr, proven) in [(deserted(), false), (silent, false), (addr, true)] {
        let (t, _) = alone(0, 1, addr, patience(LONG));
        t.post(transfer(Dir::Send, 1, 1, 100)).unwrap();
        let held = proven.then(|| by_hand.take_proof());
        let limit = Duration::from_millis(200);
        let start = Instant::now();
        t.leave(limit);
        let took = start.elapsed();
        assert!(took < limit + Duration::from_secs(2), "{took:?}");
        assert!(
            !proven || took >= limit / 2,
            "whoever may count on it is waited for, for half of the limit"
        );
        t.leave(limit);
        assert!(t.post(transfer(Dir::Send, 1, 2, 1)).is_err());
        drop(held);
    }
}

#[test]
fn who_is_let_in_while_this_rank_leaves_hears_the_goodbye() {
    for seed in 0..30 {
        let world = world(2);
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let spins = rng.random_range(0..200_000);
        let (a, b) = (&world[0], &world[1]);
        let recv = b.post(transfer(Dir::Recv, 0, 1, 10)).unwrap();
        b.post(transfer(Dir::Send, 0, 2, 10)).unwrap();
        thread::scope(|s| {
            s.spawn(move || {
                for _ in 0..spins {
                    std::hint::spin_loop();
                }
                a.leave(LONG);
                b.departed(Rank(0), &Down::Left);
            });
            let mut sinks = [Plain::default()];
            drive(&[b], &mut sinks, "the end", |s| !s[0].downs.is_empty());
            assert_eq!(sinks[0].downs, [(Rank(0), Down::Left)], "seed {seed}");
            let ended = result(&sinks[0], recv);
            assert!(
                matches!(
                    ended,
                    Err(TransportError::Down {
                        how: Down::Left,
                        ..
                    })
                ),
                "{ended:?}"
            );
        });
    }
}

#[test]
fn more_calls_than_may_be_under_way_are_all_made() {
    let n = PARALLEL as u32 * 2 + 7;
    let peers: Vec<_> = (1..n).map(|_| listener()).collect();
    let addresses = peers.iter().zip(1..).map(|((_, addr), rank)| Address {
        rank: Rank(rank),
        addr: *addr,
        from: None,
    });
    let (own, at) = listener();
    let reach = Reach::new(Rank(0), own, addresses.collect(), &creds()).unwrap();
    let t = TcpTransport::reaching(Rank(0), reach, patience(LONG)).unwrap();
    let them: Vec<TcpTransport> = peers
        .into_iter()
        .zip(1..)
        .map(|((listener, _), rank)| {
            let peers = vec![Address {
                rank: Rank(0),
                addr: at,
                from: None,
            }];
            let reach = Reach::new(Rank(rank), listener, peers, &creds()).unwrap();
            TcpTransport::reaching(Rank(rank), reach, patience(LONG)).unwrap()
        })
        .collect();
    for rank in 1..n {
        t.post(transfer(Dir::Send, rank, 1, 64)).unwrap();
    }
    let mut sinks = [Plain::default()];
    drive(&[&t], &mut sinks, "all sends", |s| {
        s[0].done.len() == n as usize - 1
    });
    assert!(sinks[0].done.iter().all(|d| d.1.is_ok()));
    assert_eq!(t.connected().len(), n as usize - 1);
    drop(them);
}
