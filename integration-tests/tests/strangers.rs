//! Trial 8: strangers on every port of a job of four processes, while it starts and while it trains. It is unaffected, and what they cost is bounded.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use gaggle::{
    Rank,
    transport::auth::{self, AuthError, Claim, Credentials, MAGIC, Purpose, Secret},
};
use gaggle_integration_tests::{
    memory::Memory,
    process::{
        PATIENCE, Possessions, Running, gaggle_run, listening, possessions, program, until,
        variable,
    },
    work,
};
use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpStream},
    thread,
    time::Instant,
};
use tempfile::TempDir;

const WORLD: u32 = 4;

fn dial(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
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

fn saying(port: u16, bytes: &[u8]) -> TcpStream {
    let mut stream = dial(port);
    // Fails where the other side has closed already, as it should.
    let _ = stream.write_all(bytes);
    stream
}

/// One of each kind; returns when all have been closed.
fn pester(port: u16, job: &str) {
    drop(dial(port));
    let noise: Vec<u8> = (0..65_536_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let all = [
        dial(port),
        saying(port, &MAGIC[..4]),
        saying(port, &noise),
        saying(port, b"GET / HTTP/1.1\r\nHost: gaggle\r\n\r\n"),
    ];
    let wrong = Credentials {
        job: job.into(),
        epoch: 0,
        secret: Secret::random().unwrap(),
    };
    for purpose in [Purpose::Store, Purpose::Data, Purpose::Control] {
        let claim = Claim {
            purpose,
            rank: Rank(3),
        };
        let e = auth::initiate(&dial(port), &wrong, claim, Instant::now() + PATIENCE).unwrap_err();
        assert!(matches!(e, AuthError::Secret { .. }), "{e}");
    }
    all.into_iter().for_each(is_closed);
}

/// Several of each kind on every port at once, and then more than a port bears, for as long as `look` takes.
fn besiege(ports: &[u16], job: &str, look: impl FnOnce()) {
    thread::scope(|s| {
        for port in ports.iter().cycle().take(3 * ports.len()) {
            s.spawn(|| pester(*port, job));
        }
    });
    let crowd: Vec<TcpStream> = ports
        .iter()
        .flat_map(|port| (0..100).map(|_| dial(*port)))
        .collect();
    look();
    crowd.into_iter().for_each(is_closed);
}

#[test]
fn strangers_on_every_port_change_nothing() {
    let dir = TempDir::new().unwrap();
    let rank = program("rank");
    let args = [
        rank.to_str().unwrap(),
        "strangers",
        dir.path().to_str().unwrap(),
    ];
    let mut command = gaggle_run(WORLD, &args);
    // Only ranks that reach each other over the network have ports.
    command.env("GAGGLE_TRANSPORT", "tcp");
    let mut job = Running::start(command);
    let bounded = |job: &Running| {
        for pid in job.alive() {
            let Possessions {
                descriptors,
                threads,
                kib,
            } = possessions(pid);
            // Of its own: three links and control, store, signals, output. A port bears at most 64 half-open ones.
            assert!(descriptors <= 128, "{descriptors} descriptors of {pid}");
            assert!(threads <= 20, "{threads} threads of {pid}");
            // What 64 half-open ones may hold of each stranger's 64 KiB is nothing of that size.
            assert!(kib <= 64 << 10, "{kib} KiB of {pid}");
        }
    };

    // Rank 3 holds up the meeting, so all listen and wait until it is told to go on.
    let mut ports = Vec::new();
    until("launcher and ranks listen", || {
        ports = job.alive().into_iter().flat_map(listening).collect();
        ports.sort_unstable();
        ports.dedup();
        ports.len() == 1 + WORLD as usize
    });
    let name = variable(job.rank(0), "GAGGLE_JOB").unwrap();
    besiege(&ports, &name, || bounded(&job));
    fs::write(dir.path().join("go"), "").unwrap();

    // In the middle of training the launcher still listens, and those ranks that somebody may yet call.
    job.hear(1, "halfway", |line| line == "[0] halfway");
    let mut ports: Vec<u16> = job.alive().into_iter().flat_map(listening).collect();
    ports.sort_unstable();
    ports.dedup();
    let launcher = listening(job.pid());
    assert!(
        launcher.iter().all(|port| ports.contains(port)),
        "{ports:?}"
    );
    assert!(ports.len() <= 1 + WORLD as usize, "{ports:?}");
    besiege(&ports, &name, || bounded(&job));
    fs::write(dir.path().join("half"), "").unwrap();

    let ended = job.wait_for_all();
    assert_eq!(ended.code(), 0, "{ended:#?}");
    let digests = gaggle::local(WORLD as usize, |group| work::train(&group, || ()).unwrap());
    for (rank, digest) in digests.unwrap().into_iter().enumerate() {
        let line = format!("[{rank}] {digest}");
        assert!(
            ended.out.lines().any(|l| l == line),
            "no {line:?}: {ended:#?}"
        );
    }
    assert!(!ended.err.contains("panicked"), "{ended:#?}");
    // One line per port and source in a minute, however many there were.
    for rank in 0..WORLD {
        let prefix = format!("[{rank}] ");
        let lines = ended
            .err
            .lines()
            .filter(|l| l.starts_with(&prefix) && l.contains("closed "));
        assert!(lines.count() <= 2, "{ended:#?}");
    }
}

/// The same for ranks that share memory: only the launcher can be reached.
#[test]
fn strangers_change_nothing_where_ranks_share_memory() {
    for memory in Memory::ALL {
        let dir = TempDir::new().unwrap();
        let rank = program("rank");
        let args = [
            rank.to_str().unwrap(),
            "steps",
            memory.name(),
            dir.path().to_str().unwrap(),
        ];
        let mut command = gaggle_run(WORLD, &args);
        command.env("GAGGLE_TRANSPORT", "shm");
        let mut job = Running::start(command);
        job.hear(1, "halfway", |line| line == "[0] halfway");
        let ports: Vec<u16> = job.alive().into_iter().flat_map(listening).collect();
        assert_eq!(ports, listening(job.pid()), "ranks still listen");
        let name = variable(job.rank(0), "GAGGLE_JOB").unwrap();
        besiege(&ports, &name, || {
            for pid in job.alive() {
                let Possessions {
                    descriptors,
                    threads,
                    ..
                } = possessions(pid);
                assert!(descriptors <= 128, "{descriptors} descriptors of {pid}");
                assert!(threads <= 20, "{threads} threads of {pid}");
            }
        });
        fs::write(dir.path().join("half"), "").unwrap();
        let ended = job.wait_for_all();
        assert_eq!(ended.code(), 0, "{memory}: {ended:#?}");
        for rank in 0..WORLD {
            let line = format!("[{rank}] 24 steps");
            assert!(ended.out.lines().any(|l| l == line), "{memory}: {ended:#?}");
        }
        assert!(!ended.err.contains("panicked"), "{ended:#?}");
    }
}
