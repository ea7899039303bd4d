//! A world of transports under one hand: transfers with known contents, a sink that checks every rule, and a pump.

use super::{Idle, raw};
use gaggle_core::{
    Armed, Class, Dir, Down, Inlet, LinkStats, MsgKey, OpId, Outlet, Rank, Sink, Transfer,
    Transport, TransportError, Verdict, XferId,
};
use std::{
    collections::{HashMap, HashSet},
    sync::OnceLock,
    time::{Duration, Instant},
};

/// Rounds without an end that count as a livelock.
const ROUNDS: u64 = 2_000_000;
/// For the outermost guard only: nothing is measured with it.
const GUARD: Duration = Duration::from_secs(60);
const PATTERN: usize = 12 << 20;

/// The contents of the message with this tag on this link.
pub(super) fn contents(from: u32, to: u32, tag: u32, len: usize) -> &'static [u8] {
    static ALL: OnceLock<&'static [u8]> = OnceLock::new();
    let all = *ALL.get_or_init(|| {
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        let bytes: Vec<u8> = (0..PATTERN)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                (x >> 32) as u8
            })
            .collect();
        Box::leak(bytes.into_boxed_slice())
    });
    let at = (from as usize * 7919 + to as usize * 104_729 + tag as usize * 15_485_863 + len)
        % (PATTERN - len);
    &all[at..at + len]
}

/// The key that `tag` stands for; the operation is `tag / 100`.
pub(super) fn key(tag: u32) -> MsgKey {
    MsgKey { op: op(tag), tag }
}

/// From this tag on messages are point to point, below they are of collectives.
pub(super) const TAGGED: u32 = 1 << 20;

/// The operation that `tag` belongs to.
pub(super) fn op(tag: u32) -> OpId {
    OpId {
        group: 77,
        lane: 0,
        class: match tag < TAGGED {
            true => Class::Collective,
            false => Class::Tagged,
        },
        seq: u64::from(tag / 100),
    }
}

/// One message to be moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Msg {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) tag: u32,
    pub(super) len: usize,
    pub(super) unit: u32,
    pub(super) priority: i32,
    pub(super) lend: bool,
}

impl Msg {
    pub(super) fn new(from: u32, to: u32, tag: u32, len: usize) -> Msg {
        Msg {
            from,
            to,
            tag,
            len,
            unit: 1,
            priority: 0,
            lend: true,
        }
    }

    pub(super) fn head(&self) -> Vec<u8> {
        let n = (self.tag as usize * 5) % (gaggle_core::HEAD_MAX + 1);
        contents(self.to, self.from, self.tag, n).to_vec()
    }
}

#[derive(Debug)]
struct Incoming {
    msg: Msg,
    want: &'static [u8],
    got: usize,
    opened: bool,
}

/// A sink that knows what must come, and fails the test at the first call that breaks a rule.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    me: u32,
    sends: HashMap<XferId, (Msg, &'static [u8], usize)>,
    recvs: HashMap<XferId, Incoming>,
    pub(super) ended: HashMap<XferId, Result<(), TransportError>>,
    pub(super) order: Vec<XferId>,
    pub(super) downs: Vec<(u32, Down)>,
    pub(super) unexpected: Vec<(u32, MsgKey)>,
    quiet: HashSet<XferId>,
    refuse_open: HashSet<XferId>,
    pub(super) refuse_unexpected: bool,
    /// Bytes taken or given per callback at most.
    pub(super) sip: Option<usize>,
    sips: usize,
    /// Whether bytes must be shown in the sender's own memory.
    pub(super) in_place: bool,
    pub(super) bytes_in: u64,
}

impl Recorder {
    /// How much of a receive has come.
    pub(super) fn got(&self, id: XferId) -> usize {
        self.recvs.get(&id).map_or(0, |r| r.got)
    }

    /// Every third time nothing at all, where sips are asked for.
    fn limit(&mut self, len: usize, unit: u32) -> usize {
        let Some(sip) = self.sip else {
            return len;
        };
        self.sips += 1;
        if self.sips.is_multiple_of(3) {
            return 0;
        }
        let n = len.min(sip.max(unit as usize));
        n - n % unit as usize
    }

    fn told(&self, id: XferId) {
        assert!(
            !self.quiet.contains(&id),
            "a callback for {id:?}, which was cancelled"
        );
        assert!(
            !self.ended.contains_key(&id),
            "a callback for {id:?}, which is over"
        );
    }
}

impl Sink for Recorder {
    fn outgoing(&mut self, id: XferId, at: u64, out: &mut dyn Outlet) {
        self.told(id);
        let (msg, bytes, given) = *self.sends.get(&id).expect("a send that was posted");
        assert_eq!(at, given as u64, "parts are asked for in order");
        let room = out.room().len();
        assert!(
            room.is_multiple_of(msg.unit as usize),
            "room is whole units"
        );
        assert!(room <= bytes.len() - given, "room ends with the message");
        let n = self.limit(room, msg.unit);
        out.room()[..n].copy_from_slice(&bytes[given..given + n]);
        out.commit(n);
        self.sends.insert(id, (msg, bytes, given + n));
    }

    fn opened(&mut self, id: XferId, head: &[u8]) -> Verdict {
        self.told(id);
        let r = self.recvs.get_mut(&id).expect("a receive that was posted");
        assert!(!r.opened, "opened once");
        r.opened = true;
        assert_eq!(head, r.msg.head(), "the head of {:?}", r.msg);
        if self.refuse_open.contains(&id) {
            self.quiet.insert(id);
            Verdict::Refuse
        } else {
            Verdict::Take
        }
    }

    fn incoming(&mut self, id: XferId, at: u64, part: &mut dyn Inlet) {
        self.told(id);
        let r = self.recvs.get(&id).expect("a receive that was posted");
        assert!(r.opened, "opened before the first byte");
        assert_eq!(at, r.got as u64, "parts come in order");
        let (want, got, unit) = (r.want, r.got, r.msg.unit);
        let (len, ptr) = (part.peek().len(), part.peek().as_ptr());
        assert!(
            len > 0 && len.is_multiple_of(unit as usize),
            "whole units: {len} of {unit}"
        );
        assert!(got + len <= want.len(), "no more than was posted");
        assert_eq!(
            part.peek(),
            &want[got..got + len],
            "the bytes of {:?}",
            r.msg
        );
        // Tagged messages that came early may have been copied.
        if self.in_place && r.msg.lend && r.msg.tag < TAGGED {
            assert_eq!(ptr, want[got..].as_ptr(), "shown where the sender has them");
        }
        let n = self.limit(len, unit);
        part.consume(n);
        assert_eq!(part.peek().len(), len - n, "what is left is shown");
        self.bytes_in += n as u64;
        if let Some(r) = self.recvs.get_mut(&id) {
            r.got += n;
        }
    }

    fn unexpected(&mut self, from: Rank, key: MsgKey, _head: &[u8]) -> Verdict {
        let told = (from.0, key);
        assert!(!self.unexpected.contains(&told), "said once per message");
        self.unexpected.push(told);
        if self.refuse_unexpected {
            Verdict::Refuse
        } else {
            Verdict::Take
        }
    }

    fn done(&mut self, id: XferId, result: Result<(), TransportError>) {
        self.told(id);
        if let Some(r) = self.recvs.get(&id).filter(|_| result.is_ok()) {
            assert!(r.opened, "opened before done, {:?}", r.msg);
            assert_eq!(r.got, r.want.len(), "all of {:?}", r.msg);
        }
        self.order.push(id);
        self.ended.insert(id, result);
    }

    fn down(&mut self, peer: Rank, how: Down) {
        assert!(
            self.downs.iter().all(|d| d.0 != peer.0),
            "{peer} went down twice"
        );
        self.downs.push((peer.0, how));
    }
}

/// One rank.
pub(super) struct Node {
    pub(super) transport: Option<Box<dyn Transport>>,
    pub(super) sink: Recorder,
}

/// All of them.
pub(super) struct Net<'a> {
    pub(super) nodes: Vec<Node>,
    pub(super) budget: usize,
    idle: Idle<'a>,
    fences: u32,
    /// The rank of the first node, where the others are driven by other threads.
    alone: Option<u32>,
}

impl<'a> Net<'a> {
    pub(super) fn new(transports: Vec<Box<dyn Transport>>, in_place: bool, idle: Idle<'a>) -> Self {
        let n = transports.len() as u32;
        let nodes: Vec<Node> = transports
            .into_iter()
            .enumerate()
            .map(|(me, t)| {
                let me = me as u32;
                let others: Vec<Rank> = (0..n).filter(|p| *p != me).map(Rank).collect();
                assert_eq!((t.me(), t.peers()), (Rank(me), &others[..]));
                Node {
                    transport: Some(t),
                    sink: Recorder {
                        me,
                        in_place,
                        ..Recorder::default()
                    },
                }
            })
            .collect();
        Net {
            nodes,
            budget: 1 << 20,
            idle,
            fences: 4_000_000,
            alone: None,
        }
    }

    /// One rank, while others drive the rest.
    pub(super) fn of_one(me: u32, node: Node, idle: Idle<'a>) -> Self {
        Net {
            nodes: vec![node],
            budget: 1 << 20,
            idle,
            fences: 0,
            alone: Some(me),
        }
    }

    fn node(&self, rank: u32) -> &Node {
        &self.nodes[self.alone.map_or(rank, |me| rank - me) as usize]
    }

    fn sink(&mut self, rank: u32) -> &mut Recorder {
        let at = self.alone.map_or(rank, |me| rank - me);
        &mut self.nodes[at as usize].sink
    }

    pub(super) fn transport(&self, rank: u32) -> &dyn Transport {
        self.node(rank)
            .transport
            .as_deref()
            .expect("a rank that is still there")
    }

    pub(super) fn try_send(&mut self, m: Msg) -> Result<XferId, TransportError> {
        let bytes = contents(m.from, m.to, m.tag, m.len);
        let head = m.head();
        let t = self.transport(m.from);
        let id = t.post(Transfer {
            dir: Dir::Send,
            peer: Rank(m.to),
            key: key(m.tag),
            bytes: m.len as u64,
            unit: m.unit,
            priority: m.priority,
            head: &head,
            loan: (m.lend && t.wants_loans()).then(|| raw::lend(bytes)),
        })?;
        let sink = self.sink(m.from);
        assert!(
            sink.sends.insert(id, (m, bytes, 0)).is_none() && !sink.recvs.contains_key(&id),
            "a new number"
        );
        Ok(id)
    }

    pub(super) fn send(&mut self, m: Msg) -> XferId {
        self.try_send(m).expect("a send that can be posted")
    }

    pub(super) fn try_recv(&mut self, m: Msg) -> Result<XferId, TransportError> {
        let id = self.transport(m.to).post(Transfer {
            dir: Dir::Recv,
            peer: Rank(m.from),
            key: key(m.tag),
            bytes: m.len as u64,
            unit: m.unit,
            priority: m.priority,
            head: &[],
            loan: None,
        })?;
        let sink = self.sink(m.to);
        let incoming = Incoming {
            msg: m,
            want: contents(m.from, m.to, m.tag, m.len),
            got: 0,
            opened: false,
        };
        assert!(
            sink.recvs.insert(id, incoming).is_none() && !sink.sends.contains_key(&id),
            "a new number"
        );
        Ok(id)
    }

    pub(super) fn recv(&mut self, m: Msg) -> XferId {
        self.try_recv(m).expect("a receive that can be posted")
    }

    pub(super) fn cancel(&mut self, rank: u32, id: XferId) {
        self.transport(rank).cancel(id);
        self.sink(rank).quiet.insert(id);
    }

    pub(super) fn refuse_open(&mut self, rank: u32, id: XferId) {
        self.sink(rank).refuse_open.insert(id);
    }

    pub(super) fn is_over(&self, rank: u32, id: XferId) -> bool {
        self.node(rank).sink.ended.contains_key(&id)
    }

    pub(super) fn result(&self, rank: u32, id: XferId) -> &Result<(), TransportError> {
        self.node(rank)
            .sink
            .ended
            .get(&id)
            .expect("a transfer that is over")
    }

    /// One round: every rank once. The number of callbacks.
    pub(super) fn round(&mut self) -> u64 {
        let mut calls = 0;
        for node in &mut self.nodes {
            if let Some(t) = &node.transport {
                calls += t.progress(&mut node.sink, self.budget);
            }
        }
        calls
    }

    /// Rounds until `over` holds, sleeping on what the transports say. Fails where nothing can happen any more.
    pub(super) fn until(&mut self, what: &str, mut over: impl FnMut(&Net<'a>) -> bool) {
        #[allow(clippy::disallowed_methods, reason = "the outermost guard")]
        let start = Instant::now();
        for _ in 0..ROUNDS {
            if over(self) {
                return;
            }
            if self.round() == 0 && !over(self) {
                assert!(self.rest(), "stuck: {what}; {:?}", self.pending());
            }
            assert!(
                start.elapsed() < GUARD,
                "too long: {what}; {:?}",
                self.pending()
            );
        }
        panic!("no end: {what}; {:?}", self.pending());
    }

    /// Until all of these are over.
    pub(super) fn until_over(&mut self, what: &str, ids: &[(u32, XferId)]) {
        self.until(what, |net| {
            ids.iter().all(|(rank, id)| net.is_over(*rank, *id))
        });
    }

    /// A zero-length message of the lowest priority both ways between two ranks: what could be moved before has been.
    pub(super) fn fence(&mut self, a: u32, b: u32) {
        let mut ids = Vec::new();
        for (from, to) in [(a, b), (b, a)] {
            self.fences += 100;
            let mut m = Msg::new(from, to, self.fences, 0);
            m.priority = i32::MIN;
            ids.push((to, self.recv(m)));
            ids.push((from, self.send(m)));
        }
        self.until_over("a fence", &ids);
    }

    pub(super) fn totals(&self) -> LinkStats {
        self.nodes
            .iter()
            .filter_map(|n| n.transport.as_ref())
            .fold(LinkStats::default(), |sum, t| sum.plus(&t.stats()))
    }

    fn pending(&self) -> Vec<String> {
        let mut all = Vec::new();
        for n in &self.nodes {
            let over = |id: &XferId| n.sink.ended.contains_key(id) || n.sink.quiet.contains(id);
            for (_, s) in n.sink.sends.iter().filter(|(id, _)| !over(id)) {
                all.push(format!("rank {} sends {:?}: {} given", n.sink.me, s.0, s.2));
            }
            for (_, r) in n.sink.recvs.iter().filter(|(id, _)| !over(id)) {
                all.push(format!(
                    "rank {} receives {:?}: {} got",
                    n.sink.me, r.msg, r.got
                ));
            }
        }
        all
    }

    /// Sleeps until a transport has something to do. False when none ever will.
    fn rest(&mut self) -> bool {
        let mut hope = false;
        #[cfg(unix)]
        let mut fds = Vec::new();
        for node in &self.nodes {
            match node.transport.as_ref().map(|t| t.arm()) {
                Some(Armed::MoreToDo | Armed::PollAfter(_)) => hope = true,
                #[cfg(unix)]
                Some(Armed::Fd(fd)) => {
                    fds.push(rustix::event::PollFd::from_borrowed_fd(
                        fd,
                        rustix::event::PollFlags::IN,
                    ));
                }
                _ => {}
            }
        }
        // Virtual time goes on only when everybody is idle.
        if (self.idle)() || hope {
            // Where others drive the rest, they may need this core for it.
            if self.alone.is_some() {
                std::thread::yield_now();
            }
            return true;
        }
        #[cfg(unix)]
        if !fds.is_empty() {
            let limit = rustix::event::Timespec {
                tv_sec: 10,
                tv_nsec: 0,
            };
            return matches!(rustix::event::poll(&mut fds, Some(&limit)), Ok(n) if n > 0);
        }
        if self.alone.is_some() {
            // The attached wake unparks this thread. Only a lost wake-up lasts as long as the guard.
            let start = Instant::now();
            std::thread::park_timeout(GUARD / 2);
            return start.elapsed() < GUARD / 2;
        }
        false
    }
}
