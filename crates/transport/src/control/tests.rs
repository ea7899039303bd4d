//! One body of tests for both control planes.

use super::{wire::Frame, *};
use gaggle_core::{Armed, Control, Wake, control::CONTROL_MAX};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

const WORLDS: [u32; 6] = [1, 2, 3, 5, 7, 8];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    Message(u32, Vec<u8>),
    Lost(u32),
    Left(u32),
}

#[derive(Default)]
struct Log {
    seen: Vec<Seen>,
    why: Vec<String>,
}

impl ControlSink for Log {
    fn message(&mut self, from: Rank, payload: &[u8]) {
        self.seen.push(Seen::Message(from.0, payload.to_vec()));
    }
    fn lost(&mut self, rank: Rank, why: &str) {
        self.seen.push(Seen::Lost(rank.0));
        self.why.push(why.into());
    }
    fn left(&mut self, rank: Rank) {
        self.seen.push(Seen::Left(rank.0));
    }
}

#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// All ranks of a world, pumped by one thread.
struct World {
    ranks: Vec<Option<Box<dyn Control>>>,
    logs: Vec<Log>,
    bells: Vec<Arc<Bell>>,
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (a, listener.accept().unwrap().0)
}

fn tcp_links(n: u32) -> Vec<Vec<(Rank, TcpStream)>> {
    let mut links: Vec<Vec<(Rank, TcpStream)>> = (0..n).map(|_| Vec::new()).collect();
    for a in 0..n {
        for b in neighbours(Rank(a), n).into_iter().filter(|b| b.0 > a) {
            let (x, y) = pair();
            links[a as usize].push((b, x));
            links[b.idx()].push((Rank(a), y));
        }
    }
    links
}

fn tcp_world(n: u32) -> Vec<Box<dyn Control>> {
    (0..n)
        .zip(tcp_links(n))
        .map(|(me, links)| Box::new(TcpControl::new(Rank(me), n, links).unwrap()) as _)
        .collect()
}

fn inproc_world(n: u32) -> Vec<Box<dyn Control>> {
    inproc(n).into_iter().map(|c| Box::new(c) as _).collect()
}

/// Runs `body` on every kind of control plane and every world of at least `from`.
fn everywhere(from: u32, body: impl Fn(&mut World)) {
    for n in WORLDS.into_iter().filter(|n| *n >= from) {
        body(&mut World::new(tcp_world(n)));
        body(&mut World::new(inproc_world(n)));
    }
}

impl World {
    fn new(ranks: Vec<Box<dyn Control>>) -> World {
        let bells: Vec<Arc<Bell>> = ranks.iter().map(|_| Arc::default()).collect();
        for (rank, bell) in ranks.iter().zip(&bells) {
            rank.attach(bell.clone());
        }
        World {
            logs: ranks.iter().map(|_| Log::default()).collect(),
            ranks: ranks.into_iter().map(Some).collect(),
            bells,
        }
    }

    fn n(&self) -> u32 {
        u32::try_from(self.ranks.len()).unwrap()
    }

    fn rank(&self, r: u32) -> &dyn Control {
        &**self.ranks[r as usize].as_ref().unwrap()
    }

    fn alive(&self) -> Vec<u32> {
        (0..self.n())
            .filter(|r| self.ranks[*r as usize].is_some())
            .collect()
    }

    fn poll_all(&mut self) -> u64 {
        let mut n = 0;
        for (rank, log) in self.ranks.iter().zip(&mut self.logs) {
            if let Some(rank) = rank {
                n += rank.poll(log);
            }
        }
        n
    }

    /// Sleeps as the ranks say until one has something to do; `false` if nothing happens within `patience_ms`.
    fn sleep(&self, patience_ms: i64) -> bool {
        let mut fds = Vec::new();
        for rank in self.ranks.iter().flatten() {
            match rank.arm() {
                Armed::MoreToDo => return true,
                Armed::Fd(fd) => fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN)),
                Armed::Wakes => {}
                other => panic!("{other:?}"),
            }
        }
        let patience = Timespec {
            tv_sec: patience_ms / 1000,
            tv_nsec: patience_ms % 1000 * 1_000_000,
        };
        !fds.is_empty() && rustix::event::poll(&mut fds, Some(&patience)).unwrap() > 0
    }

    /// Pumps until `done`, or fails when nothing more happens.
    fn until(&mut self, done: impl Fn(&World) -> bool) {
        loop {
            self.poll_all();
            if done(self) {
                return;
            }
            if !self.sleep(10_000) {
                let seen: Vec<_> = self.logs.iter().map(|l| &l.seen).collect();
                panic!("world of {}: nothing happens any more: {seen:?}", self.n());
            }
        }
    }

    /// Pumps until nothing has happened for a moment, to catch what should not come.
    fn rest(&mut self) {
        while self.poll_all() > 0 || self.sleep(20) {}
    }

    fn saw(&self, rank: u32, what: &Seen) -> usize {
        self.logs[rank as usize]
            .seen
            .iter()
            .filter(|s| *s == what)
            .count()
    }

    /// Pumps until all of `who` have seen all of `what`, and checks that each came once.
    fn expect_once(&mut self, who: &[u32], what: &[Seen]) {
        self.until(|w| {
            who.iter()
                .all(|r| what.iter().all(|seen| w.saw(*r, seen) > 0))
        });
        self.rest();
        for r in who {
            for seen in what {
                assert_eq!(self.saw(*r, seen), 1, "rank {r} of {}: {seen:?}", self.n());
            }
        }
    }

    fn others(&self, r: u32) -> Vec<u32> {
        self.alive().into_iter().filter(|o| *o != r).collect()
    }
}

#[test]
fn neighbours_are_at_powers_of_two_and_mutual() {
    let of = |r, n| -> Vec<u32> { neighbours(Rank(r), n).iter().map(|r| r.0).collect() };
    assert_eq!(of(0, 1), []);
    assert_eq!(of(0, 2), [1]);
    assert_eq!(of(0, 8), [1, 2, 4, 6, 7]);
    assert_eq!(of(3, 7), [0, 1, 2, 4, 5, 6]);
    for n in 1..70 {
        for r in 0..n {
            for o in of(r, n) {
                assert!(of(o, n).contains(&r), "{r} and {o} of {n}");
            }
        }
    }
}

#[test]
fn a_broadcast_reaches_everybody_else_once_and_in_order() {
    everywhere(1, |w| {
        let payload =
            |r: u32, i: u8| vec![i; [0, 1, 700, CONTROL_MAX][(r as usize + i as usize) % 4]];
        for i in 0..4 {
            for r in 0..w.n() {
                w.rank(r).broadcast(&payload(r, i));
            }
        }
        let want = (w.ranks.len() - 1) * 4;
        w.until(|w| w.logs.iter().all(|l| l.seen.len() >= want));
        w.rest();
        for me in 0..w.n() {
            let log = &w.logs[me as usize];
            assert_eq!(log.seen.len(), want);
            for from in w.others(me) {
                let got: Vec<&Seen> = log
                    .seen
                    .iter()
                    .filter(|s| matches!(s, Seen::Message(f, _) if *f == from))
                    .collect();
                let sent: Vec<Seen> = (0..4)
                    .map(|i| Seen::Message(from, payload(from, i)))
                    .collect();
                assert!(got.into_iter().eq(&sent));
            }
        }
    });
}

#[test]
fn a_dead_rank_is_reported_once_by_every_survivor() {
    everywhere(2, |w| {
        let victim = w.n() / 2;
        w.ranks[victim as usize] = None;
        let survivors = w.alive();
        w.expect_once(&survivors, &[Seen::Lost(victim)]);
        for r in survivors {
            assert_eq!(w.logs[r as usize].seen.len(), 1);
            assert!(!w.logs[r as usize].why[0].is_empty());
        }
    });
}

#[test]
fn a_polite_rank_is_reported_left_and_not_lost() {
    everywhere(2, |w| {
        let leaver = w.n() - 1;
        w.rank(leaver).leave();
        w.ranks[leaver as usize] = None;
        let stay = w.alive();
        w.expect_once(&stay, &[Seen::Left(leaver)]);
        // All go, one after the other; whoever is still connected hears of it.
        for r in stay {
            w.rank(r).leave();
            w.ranks[r as usize] = None;
            w.rest();
        }
        assert!(
            w.logs
                .iter()
                .all(|l| l.seen.iter().all(|s| !matches!(s, Seen::Lost(_))))
        );
    });
}

#[test]
fn goodbye_is_heard_though_a_broadcast_was_under_way_to_the_leaver() {
    everywhere(2, |w| {
        w.rank(0).broadcast(b"before");
        w.rank(1).leave();
        w.ranks[1] = None;
        // Two of them: the first is answered by a reset, the second fails.
        w.rank(0).broadcast(b"after");
        w.rest();
        w.rank(0).broadcast(b"after all");
        let stay = w.alive();
        w.expect_once(&stay, &[Seen::Left(1)]);
        for r in stay {
            assert_eq!(w.saw(r, &Seen::Lost(1)), 0);
        }
    });
}

#[test]
fn a_declared_rank_is_lost_for_everybody_and_hears_of_it() {
    everywhere(2, |w| {
        let victim = w.n() - 1;
        w.rank(0).declare_lost(Rank(victim), "its thread panicked");
        assert!(w.sleep(0) || w.bells[0].0.load(Ordering::SeqCst) > 0);
        let all = w.alive();
        w.expect_once(&all, &[Seen::Lost(victim)]);
        assert!(w.logs.iter().all(|l| l.why == ["its thread panicked"]));
        // From now on nobody hears it, and it hears nobody.
        w.rank(victim).broadcast(b"hello?");
        w.rank(victim).declare_lost(Rank(0), "revenge");
        w.rank(0).broadcast(b"news");
        w.rest();
        assert_eq!(w.logs[victim as usize].seen, [Seen::Lost(victim)]);
        for r in w.others(victim) {
            assert_eq!(w.saw(r, &Seen::Lost(0)), 0);
            assert_eq!(w.saw(r, &Seen::Message(victim, b"hello?".to_vec())), 0);
            assert_eq!(
                w.saw(r, &Seen::Message(0, b"news".to_vec())),
                usize::from(r != 0)
            );
        }
    });
}

#[test]
fn a_rank_declared_lost_by_several_or_outside_the_world_changes_nothing_more() {
    everywhere(3, |w| {
        w.rank(0).declare_lost(Rank(2), "a");
        w.rank(1).declare_lost(Rank(2), "b");
        w.rank(1).declare_lost(Rank(99), "who?");
        let all = w.alive();
        w.expect_once(&all, &[Seen::Lost(2)]);
        assert!(w.logs.iter().all(|l| l.seen.len() == 1));
    });
}

#[test]
fn survivors_hear_each_other_when_a_rank_dies_during_a_flood() {
    everywhere(5, |w| {
        for r in 0..w.n() {
            for i in 0..50_u8 {
                w.rank(r).broadcast(&[i; 100]);
            }
        }
        w.ranks[2] = None;
        for r in w.alive() {
            w.rank(r).broadcast(b"last");
        }
        let alive = w.alive();
        let lost = Seen::Lost(2);
        w.expect_once(&alive, &[lost]);
        for r in &alive {
            for from in w.others(*r) {
                assert_eq!(w.saw(*r, &Seen::Message(from, b"last".to_vec())), 1);
                for i in 0..50 {
                    assert_eq!(w.saw(*r, &Seen::Message(from, vec![i; 100])), 1);
                }
            }
        }
    });
}

#[test]
fn two_deaths_at_once_are_both_reported() {
    everywhere(5, |w| {
        w.ranks[1] = None;
        w.ranks[3] = None;
        let alive = w.alive();
        w.expect_once(&alive, &[Seen::Lost(1), Seen::Lost(3)]);
    });
}

#[test]
fn whoever_does_not_read_is_lost_and_memory_stays_bounded() {
    everywhere(3, |w| {
        // Rank 1 never polls; all others do.
        let sleeper = w.ranks[1].take().unwrap();
        let payload = [7; CONTROL_MAX];
        for _ in 0..20_000 {
            w.rank(0).broadcast(&payload);
            w.poll_all();
            if w.saw(0, &Seen::Lost(1)) > 0 {
                break;
            }
        }
        let others = w.alive();
        w.expect_once(&others, &[Seen::Lost(1)]);
        assert!(w.logs[0].why[0].contains("unread"), "{:?}", w.logs[0].why);
        drop(sleeper);
    });
}

#[test]
fn polling_from_two_threads_reports_everything_once() {
    everywhere(2, |w| {
        let n: u32 = 200;
        for i in 0..n {
            w.rank(1).broadcast(&i.to_le_bytes());
        }
        let target = w.rank(0);
        let total: usize = std::thread::scope(|s| {
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    s.spawn(|| {
                        let mut log = Log::default();
                        for _ in 0..2000 {
                            target.poll(&mut log);
                            std::thread::yield_now();
                        }
                        log.seen.len()
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        let mut rest = Log::default();
        while target.poll(&mut rest) > 0 {}
        assert_eq!(total + rest.seen.len(), n as usize);
    });
}

#[test]
fn a_neighbour_that_talks_nonsense_is_lost_for_everybody() {
    let message = |origin, seq| {
        Frame::Message {
            origin: Rank(origin),
            seq,
            payload: b"x",
        }
        .encode()
    };
    let nonsense: Vec<Vec<u8>> = vec![
        vec![255; 64],
        vec![0; 64],
        (1_u32 << 30).to_le_bytes().to_vec(),
        vec![1, 0, 0, 0, 9],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        message(7, 1),
        message(2, 2),
        message(0, 1),
        Frame::Left { rank: Rank(0) }.encode(),
    ];
    for bytes in nonsense {
        // Rank 2 of 3 is in the hands of the test.
        let mut links = tcp_links(3);
        let mut bad = links.pop().unwrap();
        let ranks = (0..2)
            .zip(links)
            .map(|(me, links)| Box::new(TcpControl::new(Rank(me), 3, links).unwrap()) as _)
            .collect();
        let mut w = World::new(ranks);
        let to_zero = bad.iter_mut().find(|(r, _)| *r == Rank(0)).unwrap();
        to_zero.1.write_all(&bytes).unwrap();
        w.expect_once(&[0, 1], &[Seen::Lost(2)]);
        assert!(w.logs[1].why[0].contains("it sent"), "{:?}", w.logs[1].why);
    }
}

#[test]
fn frames_that_come_byte_by_byte_are_understood() {
    let (mut raw, link) = pair();
    let control = TcpControl::new(Rank(0), 2, vec![(Rank(1), link)]).unwrap();
    let mut w = World::new(vec![Box::new(control)]);
    let frame = Frame::Message {
        origin: Rank(1),
        seq: 1,
        payload: b"slow",
    };
    for byte in frame.encode() {
        raw.write_all(&[byte]).unwrap();
        w.poll_all();
    }
    w.expect_once(&[0], &[Seen::Message(1, b"slow".to_vec())]);
}

#[test]
fn a_thread_that_ends_without_leaving_is_named() {
    let mut w = World::new(inproc_world(2));
    w.ranks[1] = None;
    w.expect_once(&[0], &[Seen::Lost(1)]);
    assert_eq!(w.logs[0].why, ["rank 1's thread ended without leaving"]);
}

#[test]
fn links_that_make_no_sense_are_refused() {
    let (a, b) = pair();
    let twice = TcpControl::new(Rank(0), 3, vec![(Rank(1), a), (Rank(1), b)]);
    assert!(twice.is_err());
    let (a, _b) = pair();
    assert!(TcpControl::new(Rank(0), 2, vec![(Rank(2), a)]).is_err());
}
