//! How processes of one host come to map each other's segments: descriptors passed over a nameless Unix socket.
//!
//! Rank 0 listens in the abstract namespace, which leaves no file behind; the others connect, hand it their segment, and get everybody's in return.
//! Only processes of the same user are let in. (A real job would also answer a challenge under the job's secret first.)

use super::{Members, Segment};
use anyhow::{Context, Result, ensure};
use gaggle_core::Rank;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt::socket_peercred,
};
use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::Arc,
    time::{Duration, Instant},
};

/// Most ranks that share memory: as many descriptors as go into one message, and fewer.
const MOST: usize = 64;

/// Meets the other ranks of `world` under an abstract `name`, with `heap` bytes of registered memory each.
///
/// # Errors
/// The system gives no memory or socket; not all come within `limit`; a stranger comes, or a segment that is not sealed.
pub fn meet(name: &str, me: Rank, world: u32, heap: usize, limit: Duration) -> Result<Members> {
    ensure!((1..=MOST as u32).contains(&world), "{world} ranks");
    let own = Segment::create(heap).context("no shared memory")?;
    let addr = SocketAddr::from_abstract_name(name)?;
    let fds = if me == Rank(0) {
        lead(&addr, world, &own, limit)?
    } else {
        follow(&addr, me, &own, limit)?
    };
    ensure!(
        fds.len() == world as usize,
        "{} segments for {world} ranks",
        fds.len()
    );
    let mut own = Some(own);
    let mut segments = Vec::new();
    for (rank, fd) in (0..).map(Rank).zip(fds) {
        let segment = match own.take_if(|_| rank == me) {
            Some(own) => own,
            None => Segment::open(fd).with_context(|| format!("the segment of {rank}"))?,
        };
        segments.push(Arc::new(segment));
    }
    Ok(Members::new(me, segments))
}

fn lead(addr: &SocketAddr, world: u32, own: &Segment, limit: Duration) -> Result<Vec<OwnedFd>> {
    let listener = UnixListener::bind_addr(addr)?;
    listener.set_nonblocking(true)?;
    let deadline = deadline(limit);
    let mut peers: Vec<Option<(UnixStream, OwnedFd)>> = (0..world).map(|_| None).collect();
    while peers.iter().skip(1).any(Option::is_none) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                ensure!(deadline > now(), "not all ranks came");
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(limit))?;
        let cred = socket_peercred(&stream)?;
        ensure!(
            cred.uid == rustix::process::geteuid(),
            "a stranger has connected"
        );
        let (rank, mut fds) = receive(&stream, 1)?;
        let place = peers
            .get_mut(rank as usize)
            .filter(|p| rank > 0 && p.is_none());
        let fd = fds.pop().context("no segment")?;
        *place.with_context(|| format!("rank {rank} twice, or of another world"))? =
            Some((stream, fd));
    }
    let fd = own.fd();
    let mut all = vec![fd];
    all.extend(
        peers
            .iter()
            .flatten()
            .map(|(_, fd)| std::os::fd::AsFd::as_fd(fd)),
    );
    for (stream, _) in peers.iter().flatten() {
        send(stream, world, &all)?;
    }
    let mut fds = vec![fd.try_clone_to_owned()?];
    fds.extend(peers.into_iter().flatten().map(|(_, fd)| fd));
    Ok(fds)
}

fn follow(addr: &SocketAddr, me: Rank, own: &Segment, limit: Duration) -> Result<Vec<OwnedFd>> {
    let deadline = deadline(limit);
    let stream = loop {
        match UnixStream::connect_addr(addr) {
            Ok(stream) => break stream,
            Err(e) => {
                ensure!(deadline > now(), "rank 0 does not listen: {e}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    };
    stream.set_read_timeout(Some(limit))?;
    let cred = socket_peercred(&stream)?;
    ensure!(cred.uid == rustix::process::geteuid(), "a stranger listens");
    send(&stream, me.0, &[own.fd()])?;
    Ok(receive(&stream, MOST)?.1)
}

#[allow(
    clippy::disallowed_methods,
    reason = "real processes meet in real time"
)]
fn now() -> Instant {
    Instant::now()
}

fn deadline(limit: Duration) -> Instant {
    now() + limit
}

/// One number and these descriptors, in one message.
fn send(stream: &UnixStream, number: u32, fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    ensure!(
        control.push(SendAncillaryMessage::ScmRights(fds)),
        "too many descriptors"
    );
    let number = number.to_le_bytes();
    sendmsg(
        stream,
        &[IoSlice::new(&number)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

fn receive(stream: &UnixStream, most: usize) -> Result<(u32, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut number = [0; 4];
    let got = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut number)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    ensure!(got.bytes == 4, "{} bytes of 4", got.bytes);
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(these) = message {
            fds.extend(these);
        }
    }
    ensure!(fds.len() <= most, "{} descriptors", fds.len());
    Ok((u32::from_le_bytes(number), fds))
}
