//! Bytes counted where they happen: payload against the plans' cost, everything together against the sockets' own counters.

#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use gaggle::{
    Engine, EngineConfig, LinkStats, Rank,
    core::{Armed, OpId, Sink, SystemClock, Transfer, Transport, TransportError, Wake, XferId},
};
use gaggle_integration_tests::{
    process::{Running, gaggle_run, program, until},
    work,
};
use gaggle_transport::{
    control::{TcpControl, neighbours},
    tcp::{TcpConfig, TcpTransport},
};
use std::{
    net::{TcpListener, TcpStream},
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

const WORLDS: [u32; 6] = [1, 2, 3, 5, 7, 8];

/// A transport that the test looks into while an engine uses it.
struct Shared(Arc<TcpTransport>);

impl Transport for Shared {
    fn me(&self) -> Rank {
        self.0.me()
    }
    fn peers(&self) -> &[Rank] {
        self.0.peers()
    }
    fn link(&self) -> &'static str {
        self.0.link()
    }
    fn wants_loans(&self) -> bool {
        self.0.wants_loans()
    }
    fn post(&self, t: Transfer<'_>) -> Result<XferId, TransportError> {
        self.0.post(t)
    }
    fn cancel(&self, id: XferId) {
        self.0.cancel(id);
    }
    fn forget(&self, op: OpId) {
        self.0.forget(op);
    }
    fn progress(&self, sink: &mut dyn Sink, budget: usize) -> u64 {
        self.0.progress(sink, budget)
    }
    fn arm(&self) -> Armed<'_> {
        self.0.arm()
    }
    fn attach(&self, wake: Arc<dyn Wake>) {
        self.0.attach(wake);
    }
    fn leave(&self, limit: Duration) {
        self.0.leave(limit);
    }
    fn stats(&self) -> LinkStats {
        self.0.stats()
    }
}

/// Connections over loopback between all pairs that `wanted` says.
fn mesh(n: u32, wanted: impl Fn(Rank, Rank) -> bool) -> Vec<Vec<(Rank, TcpStream)>> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut all: Vec<Vec<_>> = (0..n).map(|_| vec![]).collect();
    for a in 0..n {
        for b in a + 1..n {
            if wanted(Rank(a), Rank(b)) {
                let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let (back, _) = listener.accept().unwrap();
                all[a as usize].push((Rank(b), out));
                all[b as usize].push((Rank(a), back));
            }
        }
    }
    all
}

/// Sent and received: everything that the link has counted.
fn counted(link: &TcpTransport) -> (u64, u64) {
    let s = link.stats();
    (
        s.payload_sent + s.header_sent + s.control_sent,
        s.payload_received + s.header_received + s.control_received,
    )
}

/// One rank: the payload is compared in [`work::payload`], the sockets here, once nothing is under way any more.
fn rank(link: &Arc<TcpTransport>, control: TcpControl, together: &Barrier) -> LinkStats {
    let link_of_engine = Box::new(Shared(Arc::clone(link)));
    let clock = Arc::new(SystemClock::new());
    let config = EngineConfig::default().with_timeout(Duration::from_secs(30));
    let engine = Engine::new(vec![link_of_engine], Box::new(control), clock, config).unwrap();
    work::payload(&engine.group()).unwrap_or_else(|e| panic!("{}: {e}", link.me()));
    together.wait();
    if cfg!(target_os = "linux") {
        // The last credits may still be on their way; what is missing or too much never goes away.
        until("the link's counters equal the sockets'", || {
            link.socket_counters() == Some(counted(link))
        });
    }
    together.wait();
    let stats = link.stats();
    // All look before anybody says goodbye.
    together.wait();
    drop(engine);
    stats
}

#[test]
fn payload_is_the_plans_cost_and_all_together_is_what_the_sockets_count() {
    for world in WORLDS {
        let data = mesh(world, |_, _| true);
        let control = mesh(world, |a, b| neighbours(a, world).contains(&b));
        let together = Barrier::new(world as usize);
        let links: Vec<Arc<TcpTransport>> = data
            .into_iter()
            .zip(0..)
            .map(|(links, me)| {
                let link = TcpTransport::new(Rank(me), links, TcpConfig::default());
                Arc::new(link.unwrap())
            })
            .collect();
        let stats: Vec<LinkStats> = thread::scope(|s| {
            let ranks: Vec<_> = links
                .iter()
                .zip(control)
                .zip(0..)
                .map(|((link, control), me)| {
                    let control = TcpControl::new(Rank(me), world, control).unwrap();
                    let together = &together;
                    s.spawn(move || rank(link, control, together))
                })
                .collect();
            ranks.into_iter().map(|r| r.join().unwrap()).collect()
        });
        let sum = |f: fn(&LinkStats) -> u64| stats.iter().map(f).sum::<u64>();
        assert_eq!(sum(|s| s.payload_sent), sum(|s| s.payload_received));
        assert_eq!(sum(|s| s.header_sent), sum(|s| s.header_received));
        assert_eq!(sum(|s| s.control_sent), sum(|s| s.control_received));
        assert_eq!(sum(|s| s.frames_sent), sum(|s| s.frames_received));
        assert_eq!(sum(|s| s.payload_sent) == 0, world == 1);
    }
}

/// Each rank compares its own counts with the formulas before it answers; here the sums must meet as well.
#[test]
fn payload_is_the_plans_cost_under_gaggle_run() {
    for world in WORLDS {
        let rank = program("rank");
        let command = gaggle_run(world, &[rank.to_str().unwrap(), "payload"]);
        let ended = Running::start(command).wait_for_all();
        assert_eq!(ended.code(), 0, "{ended:#?}");
        let mut sums = (0, 0);
        for line in ended.out.lines() {
            let [_, "sent", sent, "received", received] = line.split(' ').collect::<Vec<_>>()[..]
            else {
                panic!("{line}")
            };
            sums.0 += sent.parse::<u64>().unwrap();
            sums.1 += received.parse::<u64>().unwrap();
        }
        assert_eq!(ended.out.lines().count(), world as usize, "{ended:#?}");
        assert_eq!(sums.0, sums.1);
        assert_eq!(sums.0 == 0, world == 1);
    }
}
