//! Strangers on every port while four ranks meet: the job is unaffected, and what strangers cost is bounded.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use gaggle_core::{Error, Rank, Store};
use gaggle_transport::{
    auth::{self, AuthError, Claim, Credentials, MAGIC, Purpose, Secret},
    rendezvous::{Mesh, Rendezvous},
    store::{StoreClient, StoreConfig, StoreServer},
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::{Barrier, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};
use tracing::{Event, Level, Metadata, Subscriber, field::Visit, span};

const LONG: Duration = Duration::from_secs(60);
const WORLD: u32 = 4;

fn creds(secret: u8) -> Credentials {
    Credentials {
        job: "strangers test".into(),
        epoch: 0,
        secret: Secret::from_bytes([secret; 32]),
    }
}

/// Keeps the warnings that the process logs.
struct Log(&'static Mutex<Vec<String>>);
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Text(String);
impl Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, m: &Metadata<'_>) -> bool {
        *m.level() <= Level::WARN
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// A store that tells the test the ports that ranks publish, and lets rank 3 read ports only when the test says so.
struct Watched<'a> {
    inner: &'a StoreClient,
    ports: mpsc::Sender<(String, u16)>,
    hold: Option<&'a Barrier>,
}

impl Store for Watched<'_> {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        if key.contains("/port/") {
            let port = u16::from_le_bytes(value.try_into().unwrap());
            self.ports.send((key.to_owned(), port)).unwrap();
        }
        self.inner.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, Error> {
        if let (Some(hold), true) = (self.hold, key.ends_with("/port/0")) {
            hold.wait();
        }
        self.inner.get(key, timeout)
    }
    fn add(&self, key: &str, delta: i64) -> Result<i64, Error> {
        self.inner.add(key, delta)
    }
    fn compare_and_set(&self, key: &str, old: Option<&[u8]>, new: &[u8]) -> Result<Vec<u8>, Error> {
        self.inner.compare_and_set(key, old, new)
    }
    fn barrier(&self, name: &str, n: u32, timeout: Duration) -> Result<(), Error> {
        self.inner.barrier(name, n, timeout)
    }
}

fn dial(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// The other side ends the connection, without a word.
fn is_closed(mut stream: TcpStream) {
    match stream.read(&mut [0; 64]) {
        Ok(0) => {}
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
        other => panic!("a stranger was not closed: {other:?}"),
    }
}

fn say(stream: &mut TcpStream, bytes: &[u8]) {
    // Fails where the other side has closed already, as it should.
    let _ = stream.write_all(bytes);
}

/// One of each kind; returns when all have been closed.
fn pester(addr: SocketAddr, purpose: Purpose) {
    drop(dial(addr));
    let silent = dial(addr);
    let mut half_magic = dial(addr);
    say(&mut half_magic, &MAGIC[..4]);
    let mut noise = dial(addr);
    let bytes: Vec<u8> = (0..65_536_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    say(&mut noise, &bytes);
    let mut http = dial(addr);
    say(&mut http, b"GET / HTTP/1.1\r\nHost: gaggle\r\n\r\n");
    let wrong = dial(addr);
    let claim = Claim {
        purpose,
        rank: Rank(3),
    };
    let e = auth::initiate(&wrong, &creds(2), claim, Instant::now() + LONG).unwrap_err();
    assert!(matches!(e, AuthError::Secret { .. }), "{e}");
    let mut half_hello = dial(addr);
    say(&mut half_hello, &MAGIC);
    say(&mut half_hello, &[1, 0, 1]);
    for stream in [silent, half_magic, noise, http, half_hello] {
        is_closed(stream);
    }
}

#[cfg(target_os = "linux")]
fn count(dir: &str, keep: impl Fn(&std::path::Path) -> bool) -> usize {
    std::fs::read_dir(dir)
        .unwrap()
        .filter(|e| e.as_ref().is_ok_and(|e| keep(&e.path())))
        .count()
}

#[cfg(target_os = "linux")]
fn check_bounds(strangers: usize, ports: usize) {
    let fds = count("/proc/self/fd", |_| true);
    // Both ends of the strangers are in this process; theirs are the test's, ours are bounded.
    let bound = 100 + strangers + 64 * ports;
    assert!(fds <= bound, "{fds} descriptors, expected at most {bound}");
    let ours = count("/proc/self/task", |task| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("gaggle-"))
    });
    assert!(ours <= 1 + WORLD as usize * (1 + 7), "{ours} threads");
}

#[test]
fn strangers_on_every_port_change_nothing_and_cost_little() {
    tracing::subscriber::set_global_default(Log(&LINES)).unwrap();
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let mut config = StoreConfig::new(WORLD);
    config.handshake = Duration::from_secs(2);
    let server = StoreServer::bind(any, &creds(1), config).unwrap();
    let addr = server.addr();
    let (tell, ports) = mpsc::channel();
    let hold = Barrier::new(2);
    let meshes: Vec<Mesh> = thread::scope(|s| {
        let ranks: Vec<_> = (0..WORLD)
            .map(|rank| {
                let (tell, hold) = (tell.clone(), &hold);
                s.spawn(move || {
                    let rank = Rank(rank);
                    let inner = StoreClient::connect(addr, &creds(1), rank, LONG).unwrap();
                    let store = Watched {
                        inner: &inner,
                        ports: tell,
                        hold: (rank == Rank(3)).then_some(hold),
                    };
                    let creds = creds(1);
                    let mut meeting = Rendezvous::over(&inner, rank, WORLD, &creds, LONG);
                    meeting.store = &store;
                    meeting.connect().unwrap()
                })
            })
            .collect();
        let all: Vec<(String, u16)> = ports.iter().take(WORLD as usize).collect();
        let waiting: Vec<SocketAddr> = all
            .iter()
            .filter(|(key, _)| !key.ends_with("/3"))
            .map(|(_, port)| (Ipv4Addr::LOCALHOST, *port).into())
            .collect();
        assert_eq!(waiting.len(), 3);
        // Each kind on each port, several at a time.
        thread::scope(|s| {
            for _ in 0..3 {
                for port in &waiting {
                    s.spawn(|| pester(*port, Purpose::Data));
                }
                s.spawn(|| pester(addr, Purpose::Store));
            }
        });
        // More than a port bears, just before the last rank connects.
        let crowd: Vec<TcpStream> = waiting
            .iter()
            .chain([&addr])
            .flat_map(|port| (0..100).map(|_| dial(*port)))
            .collect();
        #[cfg(target_os = "linux")]
        check_bounds(crowd.len(), 4);
        hold.wait();
        let meshes = ranks.into_iter().map(|r| r.join().unwrap()).collect();
        crowd.into_iter().for_each(is_closed);
        meshes
    });
    for (mesh, me) in meshes.iter().zip(0..) {
        assert_eq!(mesh.data.len(), 3);
        for (peer, stream) in &mesh.data {
            assert_ne!(*peer, Rank(me));
            (&*stream).write_all(&[u8::try_from(me).unwrap()]).unwrap();
        }
    }
    for mesh in &meshes {
        for (peer, stream) in &mesh.data {
            let mut said = [0];
            (&*stream).read_exact(&mut said).unwrap();
            assert_eq!(u32::from(said[0]), peer.0);
        }
    }
    let lines = LINES.lock().unwrap();
    for line in lines.iter() {
        assert!(line.contains("127.0.0.1"), "{line}");
    }
    // One line per port and source in the first minute, and this took less.
    assert_eq!(lines.len(), 4, "{lines:#?}");
}
