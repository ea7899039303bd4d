//! The store: one body of tests for the server over TCP and the store in memory, then what only the server has.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use gaggle_core::{Cause, Error, Rank, Store};
use gaggle_transport::{
    auth::{self, Claim, Credentials, NOBODY, Purpose, Secret},
    store::{KEY_MAX, LocalStore, StoreClient, StoreConfig, StoreServer, VALUE_MAX},
};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);
/// For waits that are meant to end without result.
const SHORT: Duration = Duration::from_millis(30);

fn creds(secret: u8) -> Credentials {
    Credentials {
        job: "store test".into(),
        epoch: 0,
        secret: Secret::from_bytes([secret; 32]),
    }
}

fn server(world: u32) -> StoreServer {
    let addr = "127.0.0.1:0".parse().unwrap();
    StoreServer::bind(addr, &creds(1), StoreConfig::new(world)).unwrap()
}

fn client(server: &StoreServer, rank: u32) -> StoreClient {
    StoreClient::connect(server.addr(), &creds(1), Rank(rank), LONG).unwrap()
}

/// Runs `body` with `n` views of one store: of threads that share it, of ranks with a connection each, of threads that share a connection.
fn everywhere(n: u32, body: impl Fn(&[Arc<dyn Store>])) {
    let local: Arc<dyn Store> = Arc::new(LocalStore::new());
    body(&vec![local; n as usize]);
    let s = server(n);
    let clients: Vec<Arc<dyn Store>> = (0..n).map(|r| Arc::new(client(&s, r)) as _).collect();
    body(&clients);
    let s = server(n);
    let shared: Arc<dyn Store> = Arc::new(client(&s, 0));
    body(&vec![shared; n as usize]);
}

fn what(e: &Error) -> &str {
    match e.cause() {
        Cause::Store { what, .. } => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_value_is_what_was_set_last() {
    everywhere(1, |s| {
        let s = &s[0];
        s.set("a", b"one").unwrap();
        assert_eq!(s.get("a", Duration::ZERO).unwrap(), b"one");
        s.set("a", b"").unwrap();
        assert_eq!(s.get("a", SHORT).unwrap(), b"");
        let longest = vec![9; VALUE_MAX];
        let key = "k".repeat(KEY_MAX);
        s.set(&key, &longest).unwrap();
        assert_eq!(s.get(&key, SHORT).unwrap(), longest);
    });
}

#[test]
fn a_get_waits_for_the_set_and_holds_nobody_up() {
    everywhere(3, |s| {
        thread::scope(|scope| {
            let waiters: Vec<_> = s[..2]
                .iter()
                .map(|s| scope.spawn(|| s.get("late", LONG).unwrap()))
                .collect();
            for i in 0..20_i64 {
                assert_eq!(s[2].add("count", 1).unwrap(), i + 1);
            }
            s[2].set("late", b"now").unwrap();
            for w in waiters {
                assert_eq!(w.join().unwrap(), b"now");
            }
        });
    });
}

#[test]
fn a_get_that_ends_without_a_value_names_the_key() {
    everywhere(1, |s| {
        for wait in [Duration::ZERO, SHORT] {
            let e = s[0].get("never", wait).unwrap_err();
            assert!(what(&e).contains("\"never\""), "{e}");
        }
        // The store works on.
        s[0].set("never", b"after all").unwrap();
        assert_eq!(s[0].get("never", SHORT).unwrap(), b"after all");
    });
}

#[test]
fn additions_from_all_sides_are_all_counted() {
    for n in [1, 2, 3, 5, 7, 8] {
        everywhere(n, |s| {
            thread::scope(|scope| {
                for s in s {
                    scope.spawn(|| (0..50).for_each(|_| assert!(s.add("sum", 3).unwrap() > 0)));
                }
            });
            let total = 150 * i64::from(n);
            assert_eq!(s[0].add("sum", 0).unwrap(), total);
            assert_eq!(
                s[0].get("sum", SHORT).unwrap(),
                total.to_string().as_bytes()
            );
        });
    }
}

#[test]
fn sums_wrap_and_other_values_are_not_added_to() {
    everywhere(1, |s| {
        assert_eq!(s[0].add("x", i64::MAX).unwrap(), i64::MAX);
        assert_eq!(s[0].add("x", 1).unwrap(), i64::MIN);
        s[0].set("x", b"12").unwrap();
        let e = s[0].add("x", 1).unwrap_err();
        assert!(what(&e).contains("\"x\""), "{e}");
    });
}

#[test]
fn one_compare_and_set_of_many_wins() {
    for n in [2, 8] {
        everywhere(n, |s| {
            let held: Vec<Vec<u8>> = thread::scope(|scope| {
                let all: Vec<_> = (0..)
                    .zip(s)
                    .map(|(i, s)| {
                        scope.spawn(move || s.compare_and_set("lead", None, &[i]).unwrap())
                    })
                    .collect();
                all.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert!(held.iter().all(|h| *h == held[0]), "{held:?}");
            let winner = held[0].clone();
            assert_eq!(
                s[0].compare_and_set("lead", Some(b"?"), b"no").unwrap(),
                winner
            );
            assert_eq!(
                s[0].compare_and_set("lead", Some(&winner), b"yes").unwrap(),
                b"yes"
            );
            assert_eq!(s[1].get("lead", SHORT).unwrap(), b"yes");
            assert!(s[0].compare_and_set("none", Some(b"?"), b"x").is_err());
        });
    }
}

#[test]
fn a_barrier_lets_all_go_together_and_can_be_used_again() {
    for n in [1, 2, 3, 5, 7, 8] {
        everywhere(n, |s| {
            for round in 1..=3_i64 {
                thread::scope(|scope| {
                    for s in s {
                        scope.spawn(move || {
                            s.add("come", 1).unwrap();
                            s.barrier("all", n, LONG).unwrap();
                            let come = s.add("come", 0).unwrap();
                            assert!(come >= round * i64::from(n), "{come} in round {round}");
                            s.barrier("go on", n, LONG).unwrap();
                        });
                    }
                });
            }
        });
    }
}

#[test]
fn a_barrier_says_how_many_came_and_forgets_those_who_gave_up() {
    everywhere(2, |s| {
        let e = s[0].barrier("b", 2, SHORT).unwrap_err();
        assert!(what(&e).contains("1 of 2"), "{e}");
        // One more is not enough: the first has gone.
        assert!(s[0].barrier("b", 2, SHORT).is_err());
        thread::scope(|scope| {
            let other = scope.spawn(|| s[0].barrier("b", 2, LONG));
            s[1].barrier("b", 2, LONG).unwrap();
            other.join().unwrap().unwrap();
        });
    });
}

#[test]
fn a_barrier_for_another_number_is_a_mistake() {
    everywhere(2, |s| {
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                s[0].set("there", b"").unwrap();
                // The other may have been here before: then this one is wrong, until the other gives up.
                loop {
                    match s[0].barrier("b", 2, LONG) {
                        Err(e) if what(&e).contains("by others for 3") => {}
                        result => break result,
                    }
                }
            });
            s[1].get("there", LONG).unwrap();
            // The first may not have arrived yet: then this one gives up and tries again.
            let e = loop {
                let e = s[1].barrier("b", 3, SHORT).unwrap_err();
                if !what(&e).contains("1 of 3") {
                    break e;
                }
            };
            assert!(what(&e).contains("called for 3, by others for 2"), "{e}");
            s[1].barrier("b", 2, LONG).unwrap();
            first.join().unwrap().unwrap();
        });
    });
}

#[test]
fn what_is_too_long_is_refused_before_anything_is_sent() {
    everywhere(1, |s| {
        let s = &s[0];
        let key = "k".repeat(KEY_MAX + 1);
        let value = vec![0; VALUE_MAX + 1];
        for e in [
            s.set(&key, b"").unwrap_err(),
            s.set("k", &value).unwrap_err(),
            s.get(&key, SHORT).unwrap_err(),
            s.add(&key, 1).unwrap_err(),
            s.compare_and_set("k", Some(&value), b"").unwrap_err(),
            s.compare_and_set("k", None, &value).unwrap_err(),
            s.barrier(&key, 1, SHORT).unwrap_err(),
        ] {
            assert!(matches!(e.cause(), Cause::Invalid { .. }), "{e}");
        }
        s.set("k", b"fine").unwrap();
    });
}

#[test]
fn a_client_waits_for_a_server_that_comes_up_later() {
    let probe = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = probe.local_addr().unwrap();
    drop(probe);
    thread::scope(|scope| {
        let early = scope.spawn(|| StoreClient::connect(addr, &creds(1), Rank(0), LONG));
        thread::yield_now();
        let late = StoreServer::bind(addr, &creds(1), StoreConfig::new(1)).unwrap();
        let client = early.join().unwrap().unwrap();
        client.set("a", b"b").unwrap();
        assert_eq!(client.peer_addr(), late.addr());
        assert!(client.local_addr().ip().is_loopback());
    });
}

#[test]
fn an_ipv6_literal_in_brackets_works() {
    let addr: SocketAddr = "[::1]:0".parse().unwrap();
    let Ok(listener) = TcpListener::bind(addr) else {
        eprintln!("skipped: this machine has no IPv6");
        return;
    };
    let s = StoreServer::from_listener(listener, &creds(1), StoreConfig::new(1)).unwrap();
    let text = format!("[::1]:{}", s.addr().port());
    let c = StoreClient::connect(text, &creds(1), Rank(0), LONG).unwrap();
    c.set("a", b"b").unwrap();
    assert_eq!(c.local_addr().ip(), addr.ip());
}

#[test]
fn what_cannot_get_better_fails_at_once_and_names_the_address() {
    // "At once": these would otherwise take longer than any test may.
    let hour = Duration::from_secs(3600);
    let s = server(2);
    let addr = s.addr().to_string();
    let connect = |creds: &Credentials, rank| StoreClient::connect(s.addr(), creds, rank, hour);
    let fail = |creds: &Credentials, rank| connect(creds, rank).err().unwrap().to_string();
    let secret = fail(&creds(2), Rank(0));
    assert!(
        secret.contains(&addr) && secret.contains("secret"),
        "{secret}"
    );
    let mut other = creds(1);
    other.job = "another".into();
    let job = fail(&other, Rank(0));
    assert!(job.contains("another job"), "{job}");
    other = creds(1);
    other.epoch = 7;
    let epoch = fail(&other, Rank(0));
    assert!(epoch.contains("epoch"), "{epoch}");
    let rank = fail(&creds(1), Rank(2));
    assert!(rank.contains("rank 2"), "{rank}");
    let text = StoreClient::connect("no port here", &creds(1), Rank(0), hour)
        .err()
        .unwrap();
    assert!(text.to_string().contains("no port here"), "{text}");
    assert!(s.joined().is_empty());
    connect(&creds(1), Rank(1)).unwrap();
}

#[test]
fn nobody_there_ends_with_the_deadline_and_names_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    // Bound and silent; then not bound at all.
    let e = StoreClient::connect(addr, &creds(1), Rank(3), SHORT)
        .err()
        .unwrap();
    assert!(e.to_string().contains(&addr.to_string()), "{e}");
    assert!(e.to_string().contains("rank 3"), "{e}");
    drop(listener);
    let e = StoreClient::connect(addr, &creds(1), Rank(3), SHORT)
        .err()
        .unwrap();
    assert!(e.to_string().contains(&addr.to_string()), "{e}");
}

#[test]
fn a_server_that_does_not_answer_ends_with_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let host = scope.spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let deadline = Instant::now() + LONG;
            auth::accept(&stream, &creds(1), NOBODY, &mut |_| Ok(()), deadline).unwrap();
            // Reads until the client gives up, answers nothing.
            (&stream).read_to_end(&mut Vec::new()).unwrap();
        });
        let c = StoreClient::connect(addr, &creds(1), Rank(0), Duration::from_millis(500)).unwrap();
        let e = c.set("a", b"b").unwrap_err();
        assert!(what(&e).contains("no answer in time"), "{e}");
        drop(c);
        host.join().unwrap();
    });
}

#[test]
fn a_lost_server_ends_all_waits() {
    let s = server(1);
    let c = client(&s, 0);
    thread::scope(|scope| {
        let waits: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| c.get("never", LONG).unwrap_err()))
            .collect();
        c.set("a", b"b").unwrap();
        drop(s);
        for w in waits {
            let e = w.join().unwrap();
            assert!(what(&e).contains("lost it"), "{e}");
        }
    });
    let e = c.set("a", b"b").unwrap_err();
    assert!(what(&e).contains("lost it"), "{e}");
}

#[test]
fn the_server_knows_who_came_left_and_vanished() {
    let s = server(4);
    assert_eq!(s.linger(2, SHORT), [Rank(0), Rank(1)]);
    let launcher = StoreClient::connect(s.addr(), &creds(1), NOBODY, LONG).unwrap();
    let (a, b, c) = (client(&s, 0), client(&s, 1), client(&s, 2));
    a.set("here", b"").unwrap();
    assert_eq!(s.joined(), [Rank(0), Rank(1), Rank(2)]);
    a.goodbye().unwrap();
    assert!(a.set("here", b"").is_err());
    drop(b);
    assert_eq!(s.linger(2, LONG), []);
    assert_eq!(s.linger(4, SHORT), [Rank(2), Rank(3)]);
    let roster = s.roster();
    assert_eq!(roster.left, [Rank(0)]);
    assert_eq!(roster.vanished, [Rank(1)]);
    thread::scope(|scope| {
        scope.spawn(|| c.goodbye().unwrap());
        assert_eq!(s.linger(3, LONG), []);
    });
    launcher.get("here", LONG).unwrap();
}

#[test]
fn more_clients_than_there_is_room_for_wait_their_turn() {
    let mut config = StoreConfig::new(1);
    config.slack = 0;
    let s = StoreServer::bind("127.0.0.1:0".parse().unwrap(), &creds(1), config).unwrap();
    let first = client(&s, 0);
    let e = StoreClient::connect(s.addr(), &creds(1), Rank(0), SHORT)
        .err()
        .unwrap();
    assert!(e.to_string().contains("no room"), "{e}");
    thread::scope(|scope| {
        let second = scope.spawn(|| client(&s, 0));
        drop(first);
        second.join().unwrap().set("a", b"b").unwrap();
    });
}

#[test]
fn an_authenticated_client_that_talks_nonsense_is_closed_alone() {
    let s = server(2);
    let good = client(&s, 0);
    let nonsense: [&[u8]; 4] = [
        &[255; 64],
        &[0; 64],
        b"GET / HTTP/1.1\r\n\r\n",
        &[9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 77],
    ];
    for bytes in nonsense {
        let mut bad = TcpStream::connect(s.addr()).unwrap();
        let claim = Claim {
            purpose: Purpose::Store,
            rank: Rank(1),
        };
        auth::initiate(&bad, &creds(1), claim, Instant::now() + LONG).unwrap();
        bad.write_all(bytes).unwrap();
        bad.set_read_timeout(Some(LONG)).unwrap();
        // Closed or reset, but not silent and not answered.
        let end = bad.read(&mut [0; 64]);
        assert!(
            !matches!(&end, Ok(n) if *n > 0)
                && !matches!(&end, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock),
            "{end:?}"
        );
        good.set("still", b"here").unwrap();
    }
}
