//! Ranks as threads over any link, for the engine's own tests.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may stop where it stands")]

pub mod cases;
pub mod covering;
pub mod deviations;
#[cfg(target_os = "linux")]
pub mod mapped;
pub mod number;
pub mod sim;

use gaggle_core::{Control, Group, Rank, SystemClock, Transport};
use gaggle_engine::{Engine, EngineConfig};
#[cfg(target_os = "linux")]
use gaggle_transport::shm;
use gaggle_transport::{auth, control, inproc, tcp};
use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

/// Settings of tests: 5 s, as in the trials.
pub fn config() -> EngineConfig {
    EngineConfig::default().with_timeout(Duration::from_secs(5))
}

/// Over what the ranks of a test talk.
#[derive(Clone, Copy, Debug)]
pub enum Link {
    Threads,
    Tcp,
    #[cfg(target_os = "linux")]
    Shm,
    #[cfg(target_os = "linux")]
    /// Threads whose heaps are mapped by each other, as processes have them.
    Mapped,
    #[cfg(target_os = "linux")]
    /// The same, of ranks that reach each other's ordinary memory, too.
    Lent,
}

pub type Seat = (Box<dyn Transport>, Box<dyn Control>);

impl Link {
    /// What each of `n` ranks needs to talk to the others.
    pub fn seats(self, n: u32) -> Vec<Seat> {
        match self {
            Link::Threads => inproc::world(n)
                .into_iter()
                .zip(control::inproc(n))
                .map(|(t, c)| -> Seat { (Box::new(t), Box::new(c)) })
                .collect(),
            #[cfg(target_os = "linux")]
            Link::Shm => {
                let mut links: Vec<Vec<_>> = (0..n).map(|_| vec![]).collect();
                for a in 0..n {
                    for b in 0..a {
                        let (x, y) = shm::pair(1 << 18).unwrap();
                        links[a as usize].push((Rank(b), x));
                        links[b as usize].push((Rank(a), y));
                    }
                }
                let seat = |(me, links)| -> Box<dyn Transport> {
                    Box::new(shm::ShmTransport::new(Rank(me), links).unwrap())
                };
                let control = control::inproc(n).into_iter();
                (0..)
                    .zip(links)
                    .map(seat)
                    .zip(control.map(|c| Box::new(c) as Box<dyn Control>))
                    .collect()
            }
            #[cfg(target_os = "linux")]
            Link::Mapped => mapped::seats(n, |_, heap| heap),
            #[cfg(target_os = "linux")]
            Link::Lent => mapped::seats_of_one_process(n, |_, heap| heap),
            Link::Tcp => {
                let data = dialling(n, |_, _| true);
                let control = mesh(n, |a, b| control::neighbours(a, n).contains(&b));
                let seat = |(me, (data, control)): (_, (tcp::TcpTransport, _))| -> Seat {
                    let control = control::TcpControl::new(Rank(me), n, control).unwrap();
                    (Box::new(data), Box::new(control))
                };
                (0..).zip(data.into_iter().zip(control)).map(seat).collect()
            }
        }
    }

    /// Runs `f` on `n` ranks, each a thread; results in rank order.
    pub fn local<R: Send>(
        self,
        n: u32,
        config: &EngineConfig,
        f: impl Fn(&Engine, Group) -> R + Sync,
    ) -> Vec<R> {
        let mut config = config.clone();
        #[cfg(target_os = "linux")]
        if matches!(self, Link::Mapped | Link::Lent) {
            mapped::agree(&mut config, n);
        }
        run(self.seats(n), &config, f)
    }
}

/// Runs `f` on ranks with these links, each a thread; results in rank order.
pub fn run<R: Send>(
    seats: Vec<Seat>,
    config: &EngineConfig,
    f: impl Fn(&Engine, Group) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|s| {
        let threads: Vec<_> = seats
            .into_iter()
            .map(|(link, control)| {
                let (f, config) = (&f, config.clone());
                s.spawn(move || {
                    let clock = Arc::new(SystemClock::new());
                    let engine = Engine::new(vec![link], control, clock, config).unwrap();
                    let group = engine.group();
                    f(&engine, group)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Ranks that connect over loopback when they first need to; only to those that `wanted` says.
pub fn dialling(n: u32, wanted: impl Fn(u32, u32) -> bool) -> Vec<tcp::TcpTransport> {
    let creds = auth::Credentials {
        job: "engine tests".into(),
        epoch: 0,
        secret: auth::Secret::from_bytes([5; 32]),
    };
    let ports = (0..n).map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports: Vec<TcpListener> = ports.collect();
    let addrs = ports.iter().map(|port| port.local_addr().unwrap());
    let addrs: Vec<SocketAddr> = addrs.collect();
    (0..n)
        .zip(ports)
        .map(|(me, port)| {
            let peers = (0..n).filter(|peer| *peer != me && wanted(me, *peer));
            let peers = peers.map(|peer| tcp::Address {
                rank: Rank(peer),
                addr: addrs[peer as usize],
                from: None,
            });
            let reach = tcp::Reach::new(Rank(me), port, peers.collect(), &creds).unwrap();
            let config = tcp::TcpConfig {
                patience: Duration::from_secs(5),
                ..tcp::TcpConfig::default()
            };
            tcp::TcpTransport::reaching(Rank(me), reach, config).unwrap()
        })
        .collect()
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

pub const WORLDS: [u32; 6] = [1, 2, 3, 5, 7, 8];

/// 0, 1, n−1, n, n+1 and a prime.
pub fn lengths(n: u32) -> [usize; 6] {
    let n = n as usize;
    [0, 1, n - 1, n, n + 1, 101]
}
