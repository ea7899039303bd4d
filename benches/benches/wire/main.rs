//! Ways to put bytes on a loopback socket: plain calls, zero-copy sends, io_uring. What the TCP transport does was chosen by it.

#[cfg(target_os = "linux")]
mod raw_ring;
#[cfg(target_os = "linux")]
mod raw_zero_copy;

#[cfg(target_os = "linux")]
mod wire {
    use crate::{raw_ring::Ring, raw_zero_copy::ZeroCopy};
    use criterion::{Criterion, Throughput};
    use rustix::{
        io::Errno,
        net::{RecvFlags, SendFlags, recv, send},
    };
    use std::{
        io::{self, Read, Write},
        net::{Ipv4Addr, TcpListener, TcpStream},
        thread,
        time::{Duration, Instant},
    };

    /// Bytes of a stream.
    const LENGTHS: [usize; 3] = [64 << 10, 1 << 20, 16 << 20];
    /// What is handed to the system at a time: a frame of the transport.
    const FRAME: usize = 64 << 10;
    /// Header, head and payload of a small message.
    const SMALL: usize = 192;

    /// How bytes leave.
    enum Way {
        Plain,
        ZeroCopy(ZeroCopy),
        Ring(Box<Ring>),
    }

    impl Way {
        fn all(stream: &TcpStream) -> Vec<(&'static str, Way)> {
            let mut ways = vec![("plain", Way::Plain)];
            match ZeroCopy::new(stream) {
                Ok(way) => ways.push(("zero-copy", Way::ZeroCopy(way))),
                Err(e) => println!("SKIPPED zero-copy: {e}"),
            }
            match Ring::new() {
                Ok(way) => ways.push(("io_uring", Way::Ring(Box::new(way)))),
                Err(e) => println!("SKIPPED io_uring: {e}"),
            }
            ways
        }

        fn send_all(&mut self, stream: &TcpStream, bytes: &'static [u8]) -> io::Result<()> {
            for frame in bytes.chunks(FRAME) {
                let mut rest = frame;
                while !rest.is_empty() {
                    let n = match self {
                        Way::Plain => plain(stream, rest),
                        Way::ZeroCopy(way) => way.send(stream, rest),
                        Way::Ring(way) => way.send(stream, rest),
                    }?;
                    rest = &rest[n..];
                }
            }
            match self {
                Way::ZeroCopy(way) => way.settle(stream),
                _ => Ok(()),
            }
        }
    }

    /// 0: the socket is full.
    fn plain(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        match send(stream, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(n) => Ok(n),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(0),
            Err(e) => Err(e.into()),
        }
    }

    /// Reads without sleeping until `bytes` is full.
    fn take(stream: &TcpStream, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match recv(stream, &mut *bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((n, _)) => bytes = &mut bytes[n..],
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::hint::spin_loop(),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn pair() -> io::Result<[TcpStream; 2]> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let there = TcpStream::connect(listener.local_addr()?)?;
        let here = listener.accept()?.0;
        for stream in [&here, &there] {
            stream.set_nodelay(true)?;
        }
        Ok([here, there])
    }

    /// The time in which `times` streams of `bytes` are sent and have been read.
    fn streams(
        way: &mut Way,
        [here, there]: &[TcpStream; 2],
        bytes: &'static [u8],
        times: u64,
    ) -> io::Result<Duration> {
        thread::scope(|scope| {
            let total = bytes.len() as u64 * times;
            let reader = scope.spawn(move || -> io::Result<()> {
                let (mut there, mut room) = (there, vec![0; 256 << 10]);
                let mut left = total;
                while left > 0 {
                    let most = room.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    match there.read(&mut room[..most])? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        n => left -= n as u64,
                    }
                }
                there.write_all(&[1])
            });
            let begin = Instant::now();
            for _ in 0..times {
                way.send_all(here, bytes)?;
            }
            take(here, &mut [0])?;
            let took = begin.elapsed();
            reader
                .join()
                .map_or(Err(io::ErrorKind::Other.into()), |r| r)?;
            Ok(took)
        })
    }

    /// The time of `times` exchanges of a small message, both ways at once.
    fn exchanges(
        way: &mut Way,
        [here, there]: &[TcpStream; 2],
        bytes: &'static [u8],
        times: u64,
    ) -> io::Result<Duration> {
        thread::scope(|scope| {
            let peer = scope.spawn(move || -> io::Result<()> {
                let mut room = vec![0; bytes.len()];
                for _ in 0..times {
                    Way::Plain.send_all(there, bytes)?;
                    take(there, &mut room)?;
                }
                Ok(())
            });
            let mut room = vec![0; bytes.len()];
            let begin = Instant::now();
            for _ in 0..times {
                way.send_all(here, bytes)?;
                take(here, &mut room)?;
            }
            let took = begin.elapsed();
            peer.join()
                .map_or(Err(io::ErrorKind::Other.into()), |r| r)?;
            Ok(took)
        })
    }

    /// A figure of something that failed would be a lie.
    fn sure<T>(what: io::Result<T>) -> T {
        match what {
            Ok(what) => what,
            Err(e) => panic!("{e}"),
        }
    }

    pub(crate) fn wire(criterion: &mut Criterion) {
        let mut suite = criterion.benchmark_group("wire");
        suite
            .sample_size(20)
            .warm_up_time(Duration::from_millis(200))
            .measurement_time(Duration::from_secs(1));
        let most = LENGTHS.into_iter().max().unwrap_or(0);
        // Never freed: what the system still reads when a send has failed stays there.
        let bytes: &'static [u8] = vec![1; most].leak();
        let sockets = sure(pair());
        for (name, mut way) in Way::all(&sockets[0]) {
            suite.throughput(Throughput::Bytes(SMALL as u64));
            suite.bench_function(format!("exchange {SMALL} B, {name}"), |bencher| {
                bencher.iter_custom(|n| sure(exchanges(&mut way, &sockets, &bytes[..SMALL], n)));
            });
            for len in LENGTHS {
                suite.throughput(Throughput::Bytes(len as u64));
                suite.bench_function(format!("stream {} KiB, {name}", len >> 10), |bencher| {
                    bencher.iter_custom(|n| sure(streams(&mut way, &sockets, &bytes[..len], n)));
                });
            }
        }
        suite.finish();
    }
}

#[cfg(not(target_os = "linux"))]
mod wire {
    /// Zero-copy sends and io_uring are Linux's.
    pub(crate) fn wire(_: &mut criterion::Criterion) {}
}

criterion::criterion_group!(benches, wire::wire);
criterion::criterion_main!(benches);
