//! Ranks have the connections that they need, and no more.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod common;

use common::{Seat, WORLDS, config, dialling};
use gaggle_core::{
    Algorithm, Cause, Control, Error, Group, Kind, Op, Rank, Reduce, Round, SystemClock, Transport,
};
use gaggle_engine::Engine;
use gaggle_transport::{control, shm};
use std::{
    sync::{Arc, Barrier},
    thread,
};

/// Ranks that only reach each other by calling.
fn seats(n: u32) -> Vec<Seat> {
    let links = dialling(n, |_, _| true).into_iter();
    let links = links.map(|link| Box::new(link) as Box<dyn Transport>);
    let control = control::inproc(n).into_iter();
    links
        .zip(control.map(|control| Box::new(control) as Box<dyn Control>))
        .collect()
}

fn sum(group: &Group, algorithm: Algorithm, len: usize) {
    let me = group.rank().0;
    let mut x: Vec<u64> = (0..len as u64).map(|i| i * 100 + u64::from(me)).collect();
    let op = Op::new(Kind::AllReduce(Reduce::Sum)).by(algorithm);
    group.run(&op, &mut x).unwrap();
    let n = group.size() as u64;
    for (i, x) in (0..).zip(x) {
        assert_eq!(x, n * i * 100 + n * (n - 1) / 2, "element {i}");
    }
}

#[test]
fn a_ring_takes_two_connections_of_each_rank() {
    for n in WORLDS.into_iter().chain([64]) {
        let made = common::run(seats(n), &config(), |_, group| {
            for len in [0, 1, n as usize - 1, n as usize, n as usize + 1, 1009] {
                sum(&group, Algorithm::Ring, len);
            }
            group.stats().connections
        });
        let want = [0, 1, 2][(n as usize - 1).min(2)];
        assert_eq!(made, vec![want; n as usize], "{n} ranks");
    }
}

#[test]
fn a_direct_exchange_takes_all_of_them_and_no_second_ones() {
    for n in WORLDS {
        let made = common::run(seats(n), &config(), |_, group| {
            for _ in 0..3 {
                sum(&group, Algorithm::Direct, 1009);
            }
            group.stats().connections
        });
        assert_eq!(made, vec![u64::from(n) - 1; n as usize], "{n} ranks");
    }
}

#[test]
fn a_neighbour_average_connects_neighbours() {
    let n = 7;
    let made = common::run(seats(n), &config(), |_, group| {
        let me = group.rank().0;
        let neighbours = [Rank((me + 1) % n), Rank((me + n - 1) % n)];
        let round = Round {
            from: neighbours.map(|r| (r, 0.25)).to_vec(),
            to: neighbours.map(|r| (r, 1.0)).to_vec(),
            keep: 0.5,
            ..Round::default()
        };
        for t in 0..5 {
            group.mix(&mut [1.0_f32; 100], &round, t).unwrap();
        }
        group.stats().connections
    });
    assert_eq!(made, [2; 7]);
}

/// Two ranks of each host share memory.
#[test]
fn with_two_levels_ranks_connect_to_their_counterparts_or_only_leaders_do() {
    for n in [4, 5, 7, 8] {
        let hosts: Arc<[u32]> = (0..n).map(|rank| rank / 2).collect();
        let mut memory: Vec<Vec<_>> = (0..n).map(|_| vec![]).collect();
        for a in (0..n - 1).step_by(2) {
            let (x, y) = shm::pair(1 << 18).unwrap();
            memory[a as usize].push((Rank(a + 1), x));
            memory[a as usize + 1].push((Rank(a), y));
        }
        let far = dialling(n, |a, b| a / 2 != b / 2);
        let mut settings = config();
        settings.hosts = Some(hosts);
        let together = Barrier::new(n as usize);
        let made: Vec<u64> = thread::scope(|s| {
            let ranks: Vec<_> = (0..n)
                .zip(memory.into_iter().zip(far))
                .zip(control::inproc(n))
                .map(|((me, (memory, far)), control)| {
                    let (settings, together) = (settings.clone(), &together);
                    s.spawn(move || {
                        let memory = shm::ShmTransport::new(Rank(me), memory).unwrap();
                        let clock = Arc::new(SystemClock::new());
                        let links: Vec<Box<dyn Transport>> = vec![Box::new(memory), Box::new(far)];
                        let engine =
                            Engine::new(links, Box::new(control), clock, settings).unwrap();
                        let group = engine.group();
                        for len in [0, 1, 101, 100_003] {
                            sum(&group, Algorithm::TwoLevelRing, len);
                        }
                        let made = group.stats().connections;
                        // Nobody goes while others still talk.
                        together.wait();
                        made
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        // Hosts of equally many ranks share the work; otherwise the lowest of each does it.
        let around = u64::from(n.div_ceil(2) - 1).min(2);
        let works = |rank: u32| n.is_multiple_of(2) || rank.is_multiple_of(2);
        let want: Vec<u64> = (0..n).map(|r| if works(r) { around } else { 0 }).collect();
        assert_eq!(made, want, "{n} ranks");
    }
}

/// Of ranks that have never talked one leaves; what the others want of it, wanted before or after, ends with that.
#[test]
fn a_rank_that_left_without_ever_having_been_connected_is_named() {
    for late in [false, true] {
        let posted = Barrier::new(3);
        common::run(seats(3), &config(), |_, group| {
            if group.rank() == Rank(1) {
                posted.wait();
                return;
            }
            let left = |e: &Error| {
                let left = matches!(
                    e.cause(),
                    Cause::PeerLeft {
                        world_rank: Rank(1),
                        ..
                    }
                );
                assert!(left, "{e}");
            };
            if late {
                posted.wait();
            } else {
                thread::scope(|s| {
                    let waiting = s.spawn(|| group.recv(&mut [0_u8; 4], Rank(1), 7));
                    posted.wait();
                    left(&waiting.join().unwrap().unwrap_err());
                });
            }
            // As long as its end is not known here, a message may be taken.
            let error = loop {
                if let Err(e) = group.send(&[0_u8; 4], Rank(1), 8) {
                    break e;
                }
            };
            left(&error);
        });
    }
}
