//! What the contract suite cannot see from outside: who waits for whom, and that nothing is left in the tables.

use super::*;
use crate::contract::{self, Tier};
use gaggle_core::{Class, Inlet, Loan, MsgKey, Outlet, Verdict};
use std::{
    ptr::NonNull,
    sync::{
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc::{Receiver, Sender, channel},
    },
};

#[test]
fn keeps_the_contract() {
    let mut make = |n| -> Vec<Box<dyn Transport>> {
        world(n)
            .into_iter()
            .map(|t| Box::new(t) as Box<dyn Transport>)
            .collect()
    };
    contract::run(&mut make, Tier::IN_PROCESS);
}

static MEMORY: [u8; 1 << 20] = [5; 1 << 20];

fn transfer(dir: Dir, peer: u32, bytes: usize) -> Transfer<'static> {
    let op = OpId {
        group: 1,
        lane: 0,
        class: Class::Collective,
        seq: 0,
    };
    // SAFETY: the memory is a static that nobody writes.
    let loan = unsafe { Loan::new(NonNull::from(&MEMORY[..bytes]).cast(), bytes) };
    Transfer {
        dir,
        peer: Rank(peer),
        key: MsgKey { op, tag: 1 },
        bytes: bytes as u64,
        unit: 1,
        priority: 0,
        head: &[],
        loan: (dir == Dir::Send).then_some(loan),
    }
}

/// Stays in its callback until it is told to go on.
struct Slow {
    inside: Sender<()>,
    go: Receiver<()>,
    outside: Arc<AtomicBool>,
    ended: Vec<Result<(), TransportError>>,
    downs: Vec<Down>,
}

impl Sink for Slow {
    fn outgoing(&mut self, _id: XferId, _at: u64, _out: &mut dyn Outlet) {}
    fn opened(&mut self, _id: XferId, _head: &[u8]) -> Verdict {
        Verdict::Take
    }
    fn incoming(&mut self, _id: XferId, _at: u64, part: &mut dyn Inlet) {
        self.inside.send(()).unwrap();
        self.go.recv().unwrap();
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        let n = part.peek().len();
        assert!(part.peek().iter().all(|b| *b == 5));
        self.outside.store(true, SeqCst);
        part.consume(n);
    }
    fn unexpected(&mut self, _from: Rank, _key: MsgKey, _head: &[u8]) -> Verdict {
        Verdict::Take
    }
    fn done(&mut self, _id: XferId, result: Result<(), TransportError>) {
        self.ended.push(result);
    }
    fn down(&mut self, _peer: Rank, how: Down) {
        self.downs.push(how);
    }
}

/// Rank 1 reads what rank 0 lends, and in the middle of that `end` happens on rank 0.
/// It must not return before the reader has left.
fn ends_while_read(end: impl Fn(&InprocTransport, &InprocTransport, [XferId; 2]) + Sync) -> Slow {
    let ranks = world(2);
    let (inside, is_inside) = channel();
    let (may_go, go) = channel();
    let outside = Arc::new(AtomicBool::new(false));
    let recv = ranks[1].post(transfer(Dir::Recv, 0, MEMORY.len())).unwrap();
    let send = ranks[0].post(transfer(Dir::Send, 1, MEMORY.len())).unwrap();
    let mut slow = Slow {
        inside,
        go,
        outside: Arc::clone(&outside),
        ended: Vec::new(),
        downs: Vec::new(),
    };
    std::thread::scope(|scope| {
        let reader = &ranks[1];
        let reading = scope.spawn(move || {
            reader.progress(&mut slow, 1);
            slow
        });
        is_inside.recv().unwrap();
        let ending = scope.spawn(|| {
            end(&ranks[0], &ranks[1], [send, recv]);
            assert!(
                outside.load(SeqCst),
                "it returned while the memory was being read"
            );
        });
        may_go.send(()).unwrap();
        let mut slow = reading.join().unwrap();
        ending.join().unwrap();
        drop(may_go);
        // Whatever is left to be said is said without reading anything more.
        while ranks[1].progress(&mut slow, 1 << 20) > 0 {}
        slow
    })
}

#[test]
fn cancelling_a_send_waits_for_its_reader() {
    let slow = ends_while_read(|sender, _, [send, _]| sender.cancel(send));
    assert!(
        matches!(&slow.ended[..], [Err(TransportError::Aborted { .. })]),
        "{:?}",
        slow.ended
    );
}

#[test]
fn cancelling_a_receive_waits_for_its_own_callback() {
    let slow = ends_while_read(|_, reader, [_, recv]| reader.cancel(recv));
    assert!(slow.ended.is_empty(), "{:?}", slow.ended);
}

#[test]
fn a_kill_waits_for_readers() {
    ends_while_read(|sender, _, _| sender.kill());
}

#[test]
fn a_killed_rank_is_lost_to_all() {
    let ranks = world(3);
    let (inside, _is_inside) = channel();
    let (_may_go, go) = channel();
    let mut slow = Slow {
        inside,
        go,
        outside: Arc::default(),
        ended: Vec::new(),
        downs: Vec::new(),
    };
    ranks[1].post(transfer(Dir::Recv, 0, 100)).unwrap();
    ranks[1].post(transfer(Dir::Send, 0, 100)).unwrap();
    ranks[0].kill();
    ranks[0].kill();
    while ranks[1].progress(&mut slow, 1) > 0 {}
    assert!(
        matches!(&slow.downs[..], [Down::Lost(why)] if why == "rank 0 was killed"),
        "{:?}",
        slow.downs
    );
    assert!(
        matches!(
            &slow.ended[..],
            [
                Err(TransportError::Down { .. }),
                Err(TransportError::Down { .. })
            ]
        ),
        "{:?}",
        slow.ended
    );
    assert!(matches!(
        ranks[2].post(transfer(Dir::Send, 0, 1)),
        Err(TransportError::Down { peer: Rank(0), .. })
    ));
    assert!(matches!(
        ranks[0].post(transfer(Dir::Send, 1, 1)),
        Err(TransportError::Misuse { .. })
    ));
}

/// Counts how often it is called.
#[derive(Default)]
struct Bell(AtomicU64);

impl Wake for Bell {
    fn wake(&self) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_sleeper_is_woken_by_offers_ends_and_departures() {
    let ranks = world(2);
    let bells: Vec<Arc<Bell>> = ranks
        .iter()
        .map(|t| {
            let bell = Arc::new(Bell::default());
            t.attach(Arc::clone(&bell) as Arc<dyn Wake>);
            bell
        })
        .collect();
    let (inside, _is_inside) = channel();
    let (may_go, go) = channel();
    may_go.send(()).unwrap();
    let mut slow = Slow {
        inside,
        go,
        outside: Arc::default(),
        ended: Vec::new(),
        downs: Vec::new(),
    };
    assert!(matches!(ranks[1].arm(), Armed::Wakes));
    ranks[1].post(transfer(Dir::Recv, 0, 100)).unwrap();
    ranks[0].post(transfer(Dir::Send, 1, 100)).unwrap();
    assert!(bells[1].0.load(SeqCst) > 0, "an offer");
    assert!(matches!(ranks[1].arm(), Armed::MoreToDo));
    assert!(matches!(ranks[0].arm(), Armed::Wakes));
    let before = bells[0].0.load(SeqCst);
    while ranks[1].progress(&mut slow, 1) > 0 {}
    assert!(bells[0].0.load(SeqCst) > before, "the end of a send");
    assert!(matches!(ranks[0].arm(), Armed::MoreToDo));
    let before = bells[1].0.load(SeqCst);
    ranks[0].leave(Duration::ZERO);
    assert!(bells[1].0.load(SeqCst) > before, "a departure");
    while ranks[1].progress(&mut slow, 1) > 0 {}
    assert_eq!(slow.downs, [Down::Left]);
}

#[test]
fn leaving_waits_for_nothing_that_was_cancelled() {
    let ranks = world(2);
    let send = ranks[0].post(transfer(Dir::Send, 1, 100)).unwrap();
    ranks[0].cancel(send);
    // A send that still counted as owed would make this wait for ever.
    ranks[0].leave(Duration::from_secs(100_000));
    let state = ranks[1].home().state.lock();
    assert_eq!(
        (state.offers.len(), state.slots.len(), state.keys.len()),
        (0, 0, 0)
    );
}

#[test]
fn nothing_is_left_behind() {
    let ranks = world(2);
    let (inside, _is_inside) = channel();
    let (may_go, go) = channel();
    for _ in 0..1000 {
        may_go.send(()).unwrap();
    }
    let mut slow = Slow {
        inside,
        go,
        outside: Arc::default(),
        ended: Vec::new(),
        downs: Vec::new(),
    };
    for (i, bytes) in [0, 100, 0, 300_000].into_iter().enumerate() {
        let (s, r) = (transfer(Dir::Send, 1, bytes), transfer(Dir::Recv, 0, bytes));
        let recv = ranks[1].post(r).unwrap();
        if i < 2 {
            ranks[1].cancel(recv);
        }
        ranks[0].post(s).unwrap();
        while ranks[0].progress(&mut slow, 1 << 20) + ranks[1].progress(&mut slow, 1 << 20) > 0 {}
        ranks[1].forget(s.key.op);
        while ranks[0].progress(&mut slow, 1 << 20) + ranks[1].progress(&mut slow, 1 << 20) > 0 {}
    }
    assert_eq!(slow.ended.len(), 6);
    for t in &ranks {
        let s = t.home().state.lock();
        assert_eq!(
            (s.offers.len(), s.slots.len(), s.keys.len(), s.owed),
            (0, 0, 0, 0)
        );
        assert!(!s.has_work());
    }
}
