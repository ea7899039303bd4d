//! Ranks as threads find each other over real sockets.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use gaggle_core::{
    Cause, Class, Dir, Down, Error, Inlet, MsgKey, OpId, Outlet, Rank, Sink, Store, Transfer,
    Transport, TransportError, Verdict, XferId,
};
use gaggle_transport::{
    auth::{Credentials, Secret},
    control::neighbours,
    interfaces::interfaces,
    rendezvous::{Mesh, Rendezvous},
    store::{LocalStore, StoreClient, StoreConfig, StoreServer},
    tcp::{TcpConfig, TcpTransport},
};
use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

fn creds() -> Credentials {
    Credentials {
        job: "rendezvous test".into(),
        epoch: 3,
        secret: Secret::from_bytes([1; 32]),
    }
}

fn join(addr: SocketAddr, rank: u32, world: u32, timeout: Duration) -> Result<Mesh, Error> {
    let client = StoreClient::connect(addr, &creds(), Rank(rank), LONG).unwrap();
    Rendezvous::over(&client, Rank(rank), world, &creds(), timeout).connect()
}

/// `ranks` of a world of `world` join; the results by position in `ranks`.
fn joined(
    addr: SocketAddr,
    ranks: &[u32],
    world: u32,
    timeout: Duration,
) -> Vec<Result<Mesh, Error>> {
    thread::scope(|s| {
        let all: Vec<_> = ranks
            .iter()
            .map(|r| s.spawn(move || join(addr, *r, world, timeout)))
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn server(ip: &str, world: u32) -> Option<StoreServer> {
    let listener = TcpListener::bind((ip, 0)).ok()?;
    Some(StoreServer::from_listener(listener, &creds(), StoreConfig::new(world)).unwrap())
}

/// Each link has the right rank and the same kind at its other end.
fn check(meshes: Vec<Mesh>) {
    let world = u32::try_from(meshes.len()).unwrap();
    for (mesh, me) in meshes.iter().zip(0_u8..) {
        for (links, kind) in [(&mesh.data, 0), (&mesh.control, 1)] {
            for (_, stream) in links {
                assert_eq!(stream.read_timeout().unwrap(), None);
                (&*stream).write_all(&[me, kind]).unwrap();
            }
        }
    }
    for (mesh, me) in meshes.iter().zip(0..) {
        let peers: Vec<Rank> = mesh.data.iter().map(|(r, _)| *r).collect();
        let all: Vec<Rank> = (0..world).filter(|r| *r != me).map(Rank).collect();
        assert_eq!(peers, all);
        let peers: Vec<Rank> = mesh.control.iter().map(|(r, _)| *r).collect();
        assert_eq!(peers, neighbours(Rank(me), world));
        for (links, kind) in [(&mesh.data, 0), (&mesh.control, 1)] {
            for (peer, stream) in links {
                let mut said = [0; 2];
                stream.set_read_timeout(Some(LONG)).unwrap();
                (&*stream).read_exact(&mut said).unwrap();
                assert_eq!((u32::from(said[0]), said[1]), (peer.0, kind));
            }
        }
    }
}

#[test]
fn all_meet_in_worlds_of_every_size() {
    for world in [1, 2, 3, 5, 7, 8] {
        let s = server("127.0.0.1", world).unwrap();
        let ranks: Vec<u32> = (0..world).collect();
        let meshes = joined(s.addr(), &ranks, world, LONG);
        check(meshes.into_iter().map(Result::unwrap).collect());
        // Their clients have ended, and the server has seen all of them.
        assert_eq!(s.linger(world, LONG), []);
        assert_eq!(s.roster().vanished.len(), world as usize);
    }
}

/// Gives zeroes, and takes everything.
struct Zeroes(usize);

impl Sink for Zeroes {
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
        result.unwrap();
        self.0 += 1;
    }
    fn down(&mut self, peer: Rank, how: Down) {
        panic!("{peer} is down: {how:?}");
    }
}

/// Sends a message to the next rank and takes the previous one's; `over` counts the ranks that have both.
fn round(link: &TcpTransport, me: u32, world: u32, over: &AtomicU32) {
    let op = OpId {
        group: 1,
        lane: 0,
        class: Class::Collective,
        seq: 0,
    };
    let to = |dir, peer| Transfer {
        dir,
        peer: Rank(peer),
        key: MsgKey { op, tag: 0 },
        bytes: 100_000,
        unit: 1,
        priority: 0,
        head: &[],
        loan: None,
    };
    link.post(to(Dir::Send, (me + 1) % world)).unwrap();
    link.post(to(Dir::Recv, (me + world - 1) % world)).unwrap();
    let mut sink = Zeroes(0);
    let start = Instant::now();
    let mut counted = false;
    // What is sent may still have to be written: everybody goes on until nobody needs it.
    while over.load(SeqCst) < world {
        if sink.0 == 2 && !std::mem::replace(&mut counted, true) {
            over.fetch_add(1, SeqCst);
        }
        if link.progress(&mut sink, 1 << 20) == 0 {
            thread::yield_now();
        }
        assert!(start.elapsed() < LONG, "{me} of {world}");
    }
}

/// Meets the others, talks to its neighbours, and says how many connections that took.
fn introduced(meeting: &Rendezvous<'_>, over: &AtomicU32) -> u64 {
    let (me, world) = (meeting.rank, meeting.world);
    let met = meeting.introduce().unwrap();
    let peers: Vec<Rank> = met.control.iter().map(|(rank, _)| *rank).collect();
    assert_eq!(peers, neighbours(me, world));
    let Some(reach) = met.reach else {
        assert_eq!(world, 1);
        return 0;
    };
    let link = TcpTransport::reaching(me, reach, TcpConfig::default()).unwrap();
    let others: Vec<Rank> = (0..world).map(Rank).filter(|r| *r != me).collect();
    assert_eq!(link.peers(), others);
    round(&link, me.0, world, over);
    link.stats().connections
}

#[test]
fn introduced_ranks_connect_when_they_need_to() {
    let ips = ["127.0.0.1", "::1"];
    for (ip, world) in ips
        .into_iter()
        .flat_map(|ip| [1, 2, 3, 5, 7, 8].map(|n| (ip, n)))
    {
        let Some(s) = server(ip, world) else {
            eprintln!("NOT TESTED: this machine has no {ip}");
            continue;
        };
        let over = AtomicU32::new(0);
        let made: Vec<u64> = thread::scope(|scope| {
            let ranks: Vec<_> = (0..world)
                .map(|rank| {
                    let (addr, over) = (s.addr(), &over);
                    scope.spawn(move || {
                        let client =
                            StoreClient::connect(addr, &creds(), Rank(rank), LONG).unwrap();
                        let creds = creds();
                        let meeting = Rendezvous::over(&client, Rank(rank), world, &creds, LONG);
                        introduced(&meeting, over)
                    })
                })
                .collect();
            ranks.into_iter().map(|r| r.join().unwrap()).collect()
        });
        let want = [0, 1, 2][(world as usize - 1).min(2)];
        assert_eq!(made, vec![want; world as usize]);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn introduced_ranks_call_where_the_others_chose_to_be() {
    let lo: IpAddr = Ipv4Addr::LOCALHOST.into();
    let store = LocalStore::new();
    let over = AtomicU32::new(0);
    thread::scope(|scope| {
        for rank in 0..3 {
            let (store, over) = (&store, &over);
            scope.spawn(move || {
                let meeting = Rendezvous {
                    rank: Rank(rank),
                    world: 3,
                    creds: &creds(),
                    store,
                    local: (lo, 1).into(),
                    at: Some(([127, 0, 8, 1 + rank as u8], 0).into()),
                    store_addr: (lo, 2).into(),
                    timeout: LONG,
                    beside: &[],
                };
                assert_eq!(introduced(&meeting, over), 2);
            });
        }
    });
}

#[test]
fn who_is_beside_is_not_called() {
    let lo: IpAddr = Ipv4Addr::LOCALHOST.into();
    let store = LocalStore::new();
    thread::scope(|scope| {
        for rank in 0..3 {
            let store = &store;
            scope.spawn(move || {
                // Ranks 0 and 1 share something else; rank 2 has nobody.
                let beside = [&[Rank(1)][..], &[Rank(0)], &[]][rank as usize];
                let meeting = Rendezvous {
                    rank: Rank(rank),
                    world: 3,
                    creds: &creds(),
                    store,
                    local: (lo, 1).into(),
                    at: None,
                    store_addr: (lo, 2).into(),
                    timeout: LONG,
                    beside,
                };
                let reach = meeting.introduce().unwrap().reach.unwrap();
                let link = TcpTransport::reaching(Rank(rank), reach, TcpConfig::default()).unwrap();
                let want = [&[Rank(2)][..], &[Rank(2)], &[Rank(0), Rank(1)]][rank as usize];
                assert_eq!(link.peers(), want);
            });
        }
    });
}

#[test]
fn ranks_of_one_host_find_that_out() {
    let s = server("127.0.0.1", 3).unwrap();
    let ask = |rank: u32, timeout| {
        let client = StoreClient::connect(s.addr(), &creds(), Rank(rank), LONG).unwrap();
        Rendezvous::over(&client, Rank(rank), 3, &creds(), timeout).hosts()
    };
    // Alone, rank 1 learns who is missing.
    let e = ask(1, SHORT).unwrap_err();
    assert!(e.to_string().contains("ranks 0 and 2"), "{e}");
    let all: Vec<Vec<u32>> = thread::scope(|scope| {
        let ranks: Vec<_> = (0..3)
            .map(|r| scope.spawn(move || ask(r, LONG).unwrap()))
            .collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    });
    let want = if cfg!(target_os = "linux") {
        [0, 0, 0]
    } else {
        [0, 1, 2]
    };
    assert_eq!(all, [want; 3]);
}

#[test]
fn all_meet_over_ipv6() {
    let Some(s) = server("::1", 3) else {
        eprintln!("skipped: this machine has no IPv6");
        return;
    };
    let meshes = joined(s.addr(), &[0, 1, 2], 3, LONG);
    check(meshes.into_iter().map(Result::unwrap).collect());
}

#[test]
fn those_who_are_missing_are_named() {
    let s = server("127.0.0.1", 5).unwrap();
    for result in joined(s.addr(), &[0, 2, 4], 5, SHORT) {
        let e = result.unwrap_err();
        assert!(matches!(e.cause(), Cause::Rendezvous { .. }), "{e}");
        assert!(
            e.to_string()
                .contains("ranks 1 and 3 have not published their address"),
            "{e}"
        );
    }
}

#[test]
fn a_second_process_with_the_same_rank_is_refused() {
    let s = server("127.0.0.1", 2).unwrap();
    let results = joined(s.addr(), &[1, 1], 2, SHORT);
    let texts: Vec<String> = results
        .into_iter()
        .map(|r| r.unwrap_err().to_string())
        .collect();
    let twice = |t: &&String| t.contains("another process has joined as rank 1 already");
    assert_eq!(texts.iter().filter(twice).count(), 1, "{texts:?}");
}

#[test]
fn a_rank_outside_the_world_is_a_mistake() {
    let store = LocalStore::new();
    let e = at(
        &store,
        2,
        2,
        [127, 0, 0, 1].into(),
        [127, 0, 0, 1].into(),
        SHORT,
    )
    .unwrap_err();
    assert!(matches!(e.cause(), Cause::Invalid { .. }), "{e}");
}

fn at(
    store: &dyn Store,
    rank: u32,
    world: u32,
    local: IpAddr,
    store_ip: IpAddr,
    timeout: Duration,
) -> Result<Mesh, Error> {
    Rendezvous {
        rank: Rank(rank),
        world,
        creds: &creds(),
        store,
        local: (local, 1).into(),
        at: None,
        store_addr: (store_ip, 2).into(),
        timeout,
        beside: &[],
    }
    .connect()
}

/// An address of this machine that is not loopback.
fn routed() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Sends nothing; only chooses the address.
    socket.connect(("192.0.2.77", 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

#[test]
fn a_rank_beside_the_store_is_reached_by_the_stores_routed_address() {
    let Some(routed) = routed() else {
        eprintln!("skipped: this machine has no address but loopback");
        return;
    };
    let lo: IpAddr = Ipv4Addr::LOCALHOST.into();
    let store = LocalStore::new();
    let meshes: Vec<Mesh> = thread::scope(|s| {
        let store = &store;
        let zero = s.spawn(move || at(store, 0, 2, lo, lo, LONG).unwrap());
        let one = s.spawn(move || at(store, 1, 2, routed, routed, LONG).unwrap());
        vec![zero.join().unwrap(), one.join().unwrap()]
    });
    assert_eq!(meshes[1].data[0].1.peer_addr().unwrap().ip(), routed);
    check(meshes);
}

#[test]
fn a_loopback_address_is_never_used_by_a_remote_peer() {
    let Some(routed) = routed() else {
        eprintln!("skipped: this machine has no address but loopback");
        return;
    };
    let lo: IpAddr = Ipv4Addr::LOCALHOST.into();
    let store = LocalStore::new();
    thread::scope(|s| {
        let zero = s.spawn(|| at(&store, 0, 2, lo, lo, SHORT));
        let e = at(&store, 1, 2, routed, lo, LONG).unwrap_err();
        assert!(
            e.to_string().contains("rank 0 is at the loopback address"),
            "{e}"
        );
        let e = zero.join().unwrap().unwrap_err();
        assert!(e.to_string().contains("rank 1 did not connect"), "{e}");
    });
}

/// Rank by rank: the address by which it reached the store, and the one that it has chosen.
fn meet_at(places: &[(IpAddr, Option<SocketAddr>)], timeout: Duration) -> Vec<Result<Mesh, Error>> {
    let store = LocalStore::new();
    let world = u32::try_from(places.len()).unwrap();
    let join = |rank: u32, (local, at): (IpAddr, Option<SocketAddr>)| {
        Rendezvous {
            rank: Rank(rank),
            world,
            creds: &creds(),
            store: &store,
            local: (local, 1).into(),
            at,
            store_addr: (local, 2).into(),
            timeout,
            beside: &[],
        }
        .connect()
    };
    let join = &join;
    thread::scope(|s| {
        let all: Vec<_> = (0..world)
            .zip(places)
            .map(|(rank, place)| s.spawn(move || join(rank, *place)))
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
#[cfg(target_os = "linux")]
fn ranks_listen_where_they_chose_and_call_from_there() {
    let lo: IpAddr = Ipv4Addr::LOCALHOST.into();
    for world in [2, 3, 5, 7, 8] {
        // Every address of 127/8 is this host's; its port does not matter.
        let own = |rank: u8| SocketAddr::from(([127, 0, 7, 1 + rank], 9));
        let places: Vec<_> = (0..world).map(|rank| (lo, Some(own(rank)))).collect();
        let meshes: Vec<Mesh> = meet_at(&places, LONG)
            .into_iter()
            .map(Result::unwrap)
            .collect();
        for (mesh, me) in meshes.iter().zip(0..) {
            for (peer, stream) in mesh.data.iter().chain(&mesh.control) {
                let ends = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
                let peer = own(u8::try_from(peer.0).unwrap());
                assert_eq!((ends.0.ip(), ends.1.ip()), (own(me).ip(), peer.ip()));
            }
        }
        check(meshes);
    }
}

#[test]
fn chosen_and_usual_addresses_of_both_families_mix() {
    let lo: IpAddr = Ipv4Addr::LOCALHOST.into();
    let mut places = vec![(lo, None), (lo, Some((lo, 0).into()))];
    if let Some(ip) = routed() {
        places.push((lo, Some((ip, 0).into())));
    }
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        places.push((lo, Some((Ipv6Addr::LOCALHOST, 0).into())));
    } else {
        eprintln!("NOT TESTED: this machine has no IPv6");
    }
    for _ in 0..2 {
        places.reverse();
        let meshes = meet_at(&places, LONG);
        check(meshes.into_iter().map(Result::unwrap).collect());
    }
}

#[test]
fn link_local_addresses_are_used_with_their_scope() {
    let all = interfaces().unwrap();
    let link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let Some(card) = all.iter().find(|i| i.up && link_local(i.ip)) else {
        eprintln!("NOT TESTED: no interface of this machine has a link-local address");
        return;
    };
    let place = (card.ip, Some(card.addr()));
    let meshes = meet_at(&[place; 3], LONG);
    check(meshes.into_iter().map(Result::unwrap).collect());
    // Without the number of the interface the address means nothing.
    let lo: IpAddr = Ipv4Addr::LOCALHOST.into();
    let all = meet_at(&[place, (lo, None)], SHORT);
    let e = all[1].as_ref().unwrap_err().to_string();
    assert!(e.contains("rank 0 is at the link-local address"), "{e}");
}

#[test]
fn a_chosen_loopback_address_is_refused_where_there_are_several_hosts() {
    let store = LocalStore::new();
    let lo: IpAddr = Ipv4Addr::LOCALHOST.into();
    // What rank 1 says of itself, on a host of its own.
    let says = |what: &str, value: &[u8]| {
        let key = format!("gaggle/rendezvous/3/{what}/1");
        store.set(&key, value).unwrap();
    };
    says("ip", &[&[7; 16][..], &[1], b"127.0.0.1"].concat());
    says("place", b"elsewhere");
    let e = at(&store, 0, 2, lo, lo, LONG).unwrap_err().to_string();
    let want =
        "rank 1 is to be reached at the loopback address 127.0.0.1, and rank 0 is on another host";
    assert!(e.contains(want), "{e}");
    // Nor is anything else taken for an address.
    let store = LocalStore::new();
    store
        .set(
            "gaggle/rendezvous/3/ip/1",
            &[&[7; 16][..], &[0], b"x"].concat(),
        )
        .unwrap();
    let e = at(&store, 0, 2, lo, lo, LONG).unwrap_err().to_string();
    assert!(e.contains("rank 1 has published a malformed ip"), "{e}");
}

#[test]
fn nobody_waits_for_a_rank_that_gives_up_and_all_learn_why() {
    for world in [2, 3, 5, 7, 8] {
        let s = server("127.0.0.1", world).unwrap();
        let creds = creds();
        let quitter = Rank(world / 2);
        // A reason of any length is cut, here within a character.
        let why = format!("no interface matches 'ä': {}", "ö".repeat(2000));
        let client = StoreClient::connect(s.addr(), &creds, quitter, LONG).unwrap();
        let meeting = Rendezvous::over(&client, quitter, world, &creds, LONG);
        meeting.give_up(&why).unwrap();
        let others: Vec<u32> = (0..world).filter(|r| *r != quitter.0).collect();
        for result in joined(s.addr(), &others, world, LONG) {
            let e = result.unwrap_err().to_string();
            let want = format!("{quitter} has given up: no interface matches 'ä': ööö");
            assert!(e.contains(&want) && e.len() < 1300, "{e}");
        }
    }
}

#[test]
fn an_address_that_is_not_this_hosts_is_named() {
    let lo: IpAddr = Ipv4Addr::LOCALHOST.into();
    let places = [(lo, Some(([192, 0, 2, 250], 0).into())), (lo, None)];
    let e = meet_at(&places, SHORT).remove(0).unwrap_err().to_string();
    assert!(e.contains("cannot listen at 192.0.2.250"), "{e}");
}
