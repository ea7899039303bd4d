//! The control plane over TCP: no thread of its own, driven by `poll`.

use super::{
    BACKLOG_MAX, Event, Life,
    wire::{self, Frame, short},
};
use gaggle_core::{Armed, Control, ControlSink, Rank, Wake, name_ranks};
use mio::{Events, Interest, Poll, Token, Waker, net::TcpStream};
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::Shutdown,
    sync::Arc,
    time::{Duration, Instant},
};

/// Read from one neighbour before the next has its turn.
const TURN: usize = 256 * 1024;
const WAKER: Token = Token(usize::MAX - 1);
/// A host that has vanished is noticed after about this long.
const VANISHED: Duration = Duration::from_secs(10);
/// For how long `leave` tries to get rid of what waits.
const LEAVE_FLUSH: Duration = Duration::from_millis(700);
/// For how long `leave` then waits until the others have read it.
const LEAVE_DRAIN: Duration = Duration::from_millis(200);

struct Link {
    peer: Rank,
    stream: TcpStream,
    input: Vec<u8>,
    output: VecDeque<u8>,
    /// Writing failed: what it sent before is still read, then it is lost.
    broken: Option<String>,
    /// Said goodbye or declared lost: nothing more is read or written.
    closed: bool,
}

struct State {
    me: Rank,
    world: u32,
    links: Vec<Link>,
    life: Vec<Life>,
    /// By origin: the number of the last broadcast taken, or sent.
    last: Vec<u64>,
    events: VecDeque<Event>,
    /// Links with more to read than their turn allowed.
    again: Vec<usize>,
}

/// A rank's place in the control plane, on connections that have proven themselves.
///
/// Sleep on the descriptor of [`Control::arm`]. Dropped without [`Control::leave`], the rank counts as lost.
pub struct TcpControl {
    me: Rank,
    world: u32,
    poll: Mutex<(Poll, Events)>,
    waker: Waker,
    state: Mutex<State>,
    wake: Mutex<Option<Arc<dyn Wake>>>,
    #[cfg(unix)]
    fd: std::os::fd::OwnedFd,
}

impl TcpControl {
    /// Over `links` to the [`neighbours`](super::neighbours) of `me` in a world of `world`.
    ///
    /// # Errors
    /// A link names a rank twice or outside the world, or the sockets cannot be set up or waited for.
    pub fn new(
        me: Rank,
        world: u32,
        links: Vec<(Rank, std::net::TcpStream)>,
    ) -> io::Result<TcpControl> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let mut ranks: Vec<Rank> = links.iter().map(|(rank, _)| *rank).collect();
        ranks.sort_unstable();
        let twice = ranks.windows(2).any(|w| w[0] == w[1]);
        let outside = ranks.iter().any(|r| r.0 >= world || *r == me);
        if twice || outside || me.0 >= world {
            return Err(invalid(format!(
                "{me} of {world} cannot have control links to {}",
                name_ranks(&ranks)
            )));
        }
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let mut all = Vec::new();
        for (idx, (peer, stream)) in links.into_iter().enumerate() {
            set_options(&stream)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry()
                .register(&mut stream, Token(idx), interest)?;
            all.push(Link {
                peer,
                stream,
                input: Vec::new(),
                output: VecDeque::new(),
                broken: None,
                closed: false,
            });
        }
        #[cfg(unix)]
        let fd = {
            use std::os::fd::AsFd;
            poll.registry().as_fd().try_clone_to_owned()?
        };
        Ok(TcpControl {
            me,
            world,
            poll: Mutex::new((poll, Events::with_capacity(128))),
            waker,
            state: Mutex::new(State {
                me,
                world,
                links: all,
                life: vec![Life::Alive; world as usize],
                last: vec![0; world as usize],
                events: VecDeque::new(),
                again: Vec::new(),
            }),
            wake: Mutex::new(None),
            #[cfg(unix)]
            fd,
        })
    }

    /// Wakes whoever sleeps if there is something to report.
    fn nudge(&self, pending: bool) {
        if !pending {
            return;
        }
        if let Err(e) = self.waker.wake() {
            tracing::error!("control plane of {}: cannot wake: {e}", self.me);
        }
        let wake = self.wake.lock().clone();
        if let Some(wake) = wake {
            wake.wake();
        }
    }
}

fn set_options(stream: &std::net::TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(4))
        .with_interval(Duration::from_secs(2));
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    let keepalive = keepalive.with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(VANISHED))?;
    Ok(())
}

impl State {
    fn muted(&self) -> bool {
        self.life[self.me.idx()] != Life::Alive
    }

    /// Queues `bytes` on all open links but the one to `except`, and writes what can be written.
    fn flood(&mut self, bytes: &[u8], except: Option<Rank>) {
        for link in &mut self.links {
            if !link.closed && link.broken.is_none() && Some(link.peer) != except {
                link.broken = link.send(bytes).err();
            }
        }
    }

    /// Ends broken links. What their peers sent before the break, a goodbye above all, is heard first.
    fn settle(&mut self) {
        while let Some(idx) = self
            .links
            .iter()
            .position(|l| !l.closed && l.broken.is_some())
        {
            self.read(idx, usize::MAX);
            let link = &self.links[idx];
            if let (false, Some(why)) = (link.closed, link.broken.clone()) {
                let peer = link.peer;
                self.bury(peer, &why, None);
            }
        }
    }

    /// `rank` is dead. Passed on to everybody, to itself too.
    fn bury(&mut self, rank: Rank, why: &str, heard_from: Option<Rank>) {
        if self.life[rank.idx()] != Life::Alive {
            return;
        }
        self.life[rank.idx()] = Life::Lost;
        let why = short(why).to_owned();
        let frame = Frame::Lost {
            rank,
            why: why.clone(),
        };
        self.events.push_back(Event::Lost { rank, why });
        self.flood(&frame.encode(), heard_from);
        self.close(rank);
    }

    fn depart(&mut self, rank: Rank, heard_from: Option<Rank>) {
        if self.life[rank.idx()] != Life::Alive {
            return;
        }
        self.life[rank.idx()] = Life::Left;
        self.events.push_back(Event::Left { rank });
        self.flood(&Frame::Left { rank }.encode(), heard_from);
        self.close(rank);
    }

    /// Ends the link to `peer`, or all links where `peer` is this rank.
    fn close(&mut self, peer: Rank) {
        let all = peer == self.me;
        for link in &mut self.links {
            if (all || link.peer == peer) && !link.closed {
                link.closed = true;
                link.input = Vec::new();
                link.output = VecDeque::new();
                // Only this direction: a reset would take what the peer has not read yet. A failure means that it is gone.
                let _ = link.stream.shutdown(Shutdown::Write);
            }
        }
    }

    /// Reads and writes the link at `idx`, within its turn.
    fn serve(&mut self, idx: usize) {
        let Some(link) = self.links.get_mut(idx) else {
            return;
        };
        if link.closed {
            return;
        }
        if link.broken.is_none() {
            link.broken = link.flush().err();
        }
        if self.read(idx, TURN) {
            self.again.push(idx);
        }
        self.settle();
    }

    /// Reads up to about `limit` bytes; returns whether there may be more.
    fn read(&mut self, idx: usize, limit: usize) -> bool {
        let peer = self.links[idx].peer;
        let mut chunk = [0; 16 * 1024];
        let mut have = 0;
        while have < limit {
            let link = &mut self.links[idx];
            if link.closed {
                return false;
            }
            let why = match link.stream.read(&mut chunk) {
                Ok(0) => "its control connection was closed".into(),
                Ok(n) => {
                    have += n;
                    link.input.extend_from_slice(&chunk[..n]);
                    match self.take_frames(idx) {
                        Ok(()) => continue,
                        Err(what) => what,
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(e) => format!("its control connection broke: {e}"),
            };
            self.bury(peer, &why, None);
            return false;
        }
        true
    }

    fn take_frames(&mut self, idx: usize) -> Result<(), String> {
        let peer = self.links[idx].peer;
        let input = std::mem::take(&mut self.links[idx].input);
        let mut used = 0;
        let result = loop {
            if self.links[idx].closed {
                break Ok(());
            }
            let sent = |what| format!("it sent {what} on its control connection");
            match wire::split(&input[used..]) {
                Ok(None) => break Ok(()),
                Err(what) => break Err(sent(what)),
                Ok(Some((body, n))) => {
                    used += n;
                    let taken = Frame::decode(body, self.world)
                        .and_then(|frame| self.take_frame(frame, peer));
                    if let Err(what) = taken {
                        break Err(sent(what));
                    }
                }
            }
        };
        if let Some(link) = self.links.get_mut(idx)
            && !link.closed
        {
            link.input = input;
            link.input.drain(..used);
        }
        result
    }

    fn take_frame(&mut self, frame: Frame<'_>, from: Rank) -> Result<(), &'static str> {
        if self.muted() {
            return Ok(());
        }
        match frame {
            Frame::Message {
                origin,
                seq,
                payload,
            } => {
                let last = self.last[origin.idx()];
                if seq <= last || self.life[origin.idx()] != Life::Alive {
                    return Ok(());
                }
                // Every rank passes on all it takes in order, so that a gap on a link is a fault.
                if origin == self.me || seq != last + 1 {
                    return Err("a message out of order");
                }
                self.last[origin.idx()] = seq;
                self.events.push_back(Event::Message {
                    from: origin,
                    payload: payload.to_vec(),
                });
                self.flood(&frame.encode(), Some(from));
            }
            Frame::Lost { rank, why } => self.bury(rank, &why, Some(from)),
            Frame::Left { rank } if rank == self.me => return Err("a goodbye in another's name"),
            Frame::Left { rank } => self.depart(rank, Some(from)),
        }
        Ok(())
    }
}

impl Link {
    fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.output.len() + bytes.len() > BACKLOG_MAX {
            return Err(format!(
                "it has left {} bytes of control messages unread",
                self.output.len()
            ));
        }
        self.output.extend(bytes);
        self.flush()
    }

    fn flush(&mut self) -> Result<(), String> {
        while !self.output.is_empty() {
            match self.stream.write(self.output.as_slices().0) {
                Ok(n) => drop(self.output.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(format!("its control connection broke: {e}")),
            }
        }
        Ok(())
    }
}

impl Control for TcpControl {
    fn me(&self) -> Rank {
        self.me
    }

    fn world(&self) -> u32 {
        self.world
    }

    fn broadcast(&self, payload: &[u8]) {
        let payload = super::fitting(payload);
        let mut state = self.state.lock();
        if state.muted() {
            return;
        }
        let me = self.me;
        state.last[me.idx()] += 1;
        let frame = Frame::Message {
            origin: me,
            seq: state.last[me.idx()],
            payload,
        };
        state.flood(&frame.encode(), None);
        state.settle();
        let pending = !state.events.is_empty();
        drop(state);
        self.nudge(pending);
    }

    fn declare_lost(&self, rank: Rank, why: &str) {
        let mut state = self.state.lock();
        if rank.0 >= self.world || state.muted() {
            return;
        }
        state.bury(rank, why, None);
        state.settle();
        let pending = !state.events.is_empty();
        drop(state);
        self.nudge(pending);
    }

    fn poll(&self, sink: &mut dyn ControlSink) -> u64 {
        let Some(mut poll) = self.poll.try_lock() else {
            return 0;
        };
        let (poll, ready) = &mut *poll;
        match poll.poll(ready, Some(Duration::ZERO)) {
            Ok(()) => {}
            // Interrupted: the next call sees the same events.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => tracing::error!("control plane of {}: poll failed: {e}", self.me),
        }
        let events = {
            let mut state = self.state.lock();
            let again = std::mem::take(&mut state.again);
            let ready = ready.iter().map(|e| e.token()).filter(|t| *t != WAKER);
            for idx in again.into_iter().chain(ready.map(|t| t.0)) {
                state.serve(idx);
            }
            std::mem::take(&mut state.events)
        };
        for event in &events {
            event.report(sink);
        }
        events.len() as u64
    }

    fn arm(&self) -> Armed<'_> {
        {
            let state = self.state.lock();
            if !state.events.is_empty() || !state.again.is_empty() {
                return Armed::MoreToDo;
            }
        }
        #[cfg(unix)]
        {
            use std::os::fd::AsFd;
            Armed::Fd(self.fd.as_fd())
        }
        #[cfg(not(unix))]
        Armed::PollAfter(Duration::from_millis(5))
    }

    fn attach(&self, wake: Arc<dyn Wake>) {
        *self.wake.lock() = Some(wake);
    }

    fn leave(&self) {
        let mut state = self.state.lock();
        if state.muted() {
            return;
        }
        let me = self.me;
        state.life[me.idx()] = Life::Left;
        state.flood(&Frame::Left { rank: me }.encode(), None);
        let flush_until = Instant::now() + LEAVE_FLUSH;
        state.until(flush_until, |link| {
            link.flush().is_err() || link.output.is_empty()
        });
        for link in &state.links {
            // A failure means that the peer is gone.
            let _ = link.stream.shutdown(Shutdown::Write);
        }
        let drain_until = Instant::now() + LEAVE_DRAIN;
        let mut rest = [0; 4096];
        state.until(drain_until, |link| {
            loop {
                match link.stream.read(&mut rest) {
                    Ok(n) if n > 0 => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                    _ => return true,
                }
            }
        });
        for link in &mut state.links {
            link.closed = true;
        }
    }
}

impl State {
    /// Repeats `step` on each open link until it says that the link is finished, or time is over.
    fn until(&mut self, deadline: Instant, mut step: impl FnMut(&mut Link) -> bool) {
        let mut open: Vec<&mut Link> = self.links.iter_mut().filter(|l| !l.closed).collect();
        loop {
            open.retain_mut(|link| !step(link));
            if open.is_empty() || Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
