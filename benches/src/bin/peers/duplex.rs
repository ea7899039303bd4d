//! The limit that loopback sets: two processes exchange the same bytes both ways at once over one TCP connection, and do nothing else.
//!
//! This program starts itself as both of them. Each has one thread, which writes and reads in turn whatever the connection takes and has; small messages, which fit the socket's buffer, are written and then read. An exchange of S bytes each way is what a ring of two ranks cannot do without for an all-reduce of S bytes.

use crate::judge::{Sample, median};
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    env, fs,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// What fits a socket's buffer for certain, so that writing does not wait for the reader.
const AT_ONCE: usize = 64 << 10;
/// Most bytes written at a time, before what has come is read.
const PIECE: usize = 256 << 10;
/// Longest run of either end without a word from the other.
const PATIENCE: Duration = Duration::from_secs(60);

/// One end, as the process's whole work. `RANK` says which; rank 0 leaves its port in the folder `RDZV` and prints `size,median_us,p95_us`.
pub(crate) fn end(sizes: &[u64], budget: Duration) -> Result<()> {
    let leads = env::var("RANK").context("RANK is not set")? == "0";
    let folder = env::var_os("RDZV").context("RDZV is not set")?;
    let file = Path::new(&folder).join("port");
    let stream = match leads {
        true => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let unfinished = file.with_extension("new");
            fs::write(&unfinished, listener.local_addr()?.port().to_string())?;
            fs::rename(&unfinished, &file)?;
            listener.accept()?.0
        }
        false => {
            let deadline = Instant::now() + PATIENCE;
            let port = loop {
                match fs::read_to_string(&file) {
                    Ok(port) => break port.parse()?,
                    Err(_) if Instant::now() < deadline => {
                        thread::sleep(Duration::from_millis(2));
                    }
                    Err(error) => bail!("rank 0 has left no port: {error}"),
                }
            };
            TcpStream::connect::<(&str, u16)>(("127.0.0.1", port))?
        }
    };
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    for size in sizes {
        let samples = measure(&stream, *size as usize, budget, leads)?;
        if leads {
            let sample = summary(&samples).context("nothing was measured")?;
            println!("{size},{:.3},{:.3}", sample.median_us, sample.p95_us);
        }
    }
    Ok(())
}

/// Times of one size in microseconds. The leading end says how many there will be.
fn measure(stream: &TcpStream, size: usize, budget: Duration, leads: bool) -> Result<Vec<f64>> {
    let (out, mut back) = (vec![1_u8; size], vec![0_u8; size]);
    let mut once = || -> Result<f64> {
        let begin = Instant::now();
        exchange(stream, &out, &mut back)?;
        Ok(begin.elapsed().as_secs_f64() * 1e6)
    };
    let mut quickest = f64::MAX;
    for _ in 0..if size <= AT_ONCE { 40 } else { 3 } {
        quickest = quickest.min(once()?);
    }
    let fit = budget.as_secs_f64() * 1e6 / quickest.max(0.1);
    let mut calls = (fit.clamp(5.0, 5000.0) as u64).to_le_bytes();
    let mut stream_ref = stream;
    match leads {
        true => stream_ref.write_all(&calls)?,
        false => stream_ref.read_exact(&mut calls)?,
    }
    let calls = u64::from_le_bytes(calls);
    if calls > 5000 {
        bail!("the other end wants {calls} exchanges");
    }
    let samples = (0..calls).map(|_| once()).collect();
    if back.iter().any(|b| *b != 1) {
        bail!("what came back is not what was sent");
    }
    samples
}

fn exchange(mut stream: &TcpStream, out: &[u8], back: &mut [u8]) -> Result<()> {
    if out.len() <= AT_ONCE {
        stream.write_all(out)?;
        stream.read_exact(back)?;
        return Ok(());
    }
    stream.set_nonblocking(true)?;
    let (mut sent, mut come) = (0, 0);
    while sent < out.len() || come < back.len() {
        let piece = &out[sent..out.len().min(sent + PIECE)];
        let written = moved(|| match piece.is_empty() {
            true => Ok(0),
            false => stream.write(piece),
        })?;
        let room = &mut back[come..];
        let full = room.is_empty();
        let read = moved(|| match full {
            true => Ok(0),
            false => stream.read(room),
        })?;
        if read == Some(0) && !full {
            bail!("the other end has gone");
        }
        let (written, read) = (written.unwrap_or(0), read.unwrap_or(0));
        (sent, come) = (sent + written, come + read);
        if written + read == 0 {
            wait(stream, sent < out.len())?;
        }
    }
    stream.set_nonblocking(false)?;
    Ok(())
}

/// How many bytes have moved; `None` where none can now.
fn moved(f: impl FnOnce() -> io::Result<usize>) -> Result<Option<usize>> {
    match f() {
        Ok(n) => Ok(Some(n)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Until something has come, or there is room for what is left to send.
fn wait(stream: &TcpStream, sends: bool) -> Result<()> {
    let events = match sends {
        true => PollFlags::IN | PollFlags::OUT,
        false => PollFlags::IN,
    };
    let patience = Timespec::try_from(PATIENCE)?;
    match poll(&mut [PollFd::new(stream, events)], Some(&patience))? {
        0 => bail!("nothing has come for {} s", PATIENCE.as_secs()),
        _ => Ok(()),
    }
}

/// Median and 95th percentile.
fn summary(samples: &[f64]) -> Option<Sample> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (0.95 * sorted.len() as f64) as usize;
    Some(Sample {
        median_us: median(samples.iter().copied())?,
        p95_us: *sorted.get(at).or(sorted.last())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_agree_on_how_often_and_see_each_others_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("an address");
        let far = thread::spawn(move || {
            let stream = TcpStream::connect(at).expect("connected");
            [1, 7, 200_000]
                .map(|size| measure(&stream, size, Duration::ZERO, false).map(|s| s.len()))
        });
        let (stream, _) = listener.accept().expect("accepted");
        for size in [1, 7, 200_000] {
            let samples = measure(&stream, size, Duration::ZERO, true).expect("measured");
            assert_eq!(samples.len(), 5);
            assert!(summary(&samples).is_some_and(|s| s.p95_us >= s.median_us));
        }
        for calls in far.join().expect("ended") {
            assert_eq!(calls.expect("measured"), 5);
        }
    }

    #[test]
    fn nothing_has_no_summary() {
        assert_eq!(summary(&[]), None);
    }
}
