//! The seam to the network: one rank's links to the others.
//!
//! A transport moves the bytes of messages and knows nothing of what they mean.
//! It keeps no memory of the engine's between calls, with one exception that is a promise of the engine's: a [`Loan`].

use crate::{Block, Loan, MsgKey, OpId, Rank, SharedWords, WindowMut};
use std::{ptr::NonNull, sync::Arc, time::Duration};

/// A transfer's number, unique within one transport for its lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct XferId(pub u64);

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dir {
    /// To the peer.
    Send,
    /// From the peer.
    Recv,
}

/// Longest head in bytes.
pub const HEAD_MAX: usize = 96;

/// One message, as the engine wants it moved.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// Which way.
    pub dir: Dir,
    /// World rank of the other side.
    pub peer: Rank,
    /// Identity on the directed link; not used again before this transfer is over.
    pub key: MsgKey,
    /// Length on the wire. May be 0: then only the head travels.
    pub bytes: u64,
    /// Parts that are offered are multiples of this many bytes; `bytes` is one too. At least 1, at most 16.
    pub unit: u32,
    /// Larger goes first.
    pub priority: i32,
    /// Delivered before the first byte; at most [`HEAD_MAX`] bytes. Empty for receives.
    pub head: &'a [u8],
    /// The bytes themselves, where a sender's engine can lend them (see [`Transport::wants_loans`]); sends only.
    pub loan: Option<Loan>,
}

impl Transfer<'_> {
    /// Refuses what cannot be moved, before anything is touched: what every [`Transport::post`] begins with.
    ///
    /// # Errors
    /// [`TransportError::NoLink`] where `peers`, ascending, does not have the peer; [`TransportError::Misuse`].
    pub fn check(&self, me: Rank, peers: &[Rank]) -> Result<(), TransportError> {
        if self.peer == me || peers.binary_search(&self.peer).is_err() {
            return Err(TransportError::NoLink(self.peer));
        }
        let what = if self.unit == 0 || self.unit > 16 {
            "a unit of 1 to 16 bytes is needed"
        } else if !self.bytes.is_multiple_of(u64::from(self.unit)) {
            "the length is not a whole number of units"
        } else if self.head.len() > HEAD_MAX {
            "the head is too long"
        } else if self.dir == Dir::Recv && (!self.head.is_empty() || self.loan.is_some()) {
            "a receive has neither head nor loan"
        } else if self.loan.is_some_and(|l| l.len() as u64 != self.bytes) {
            "the loan's length is not the message's"
        } else {
            return Ok(());
        };
        let peer = self.peer;
        Err(TransportError::Misuse { peer, what })
    }
}

/// Whether a message is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Go on.
    Take,
    /// Drop all its bytes. A posted receive is forgotten without a `done`; the sender does not notice.
    Refuse,
}

/// How a peer went away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Down {
    /// Dead, or its link broke: what was seen.
    Lost(String),
    /// Said goodbye.
    Left,
}

/// Why a transfer failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// No link to that rank. Nothing was sent.
    #[error("no link to {0}")]
    NoLink(Rank),
    /// The peer is gone; `how` says why.
    #[error("link to {peer} is down: {how:?}")]
    Down {
        /// Who.
        peer: Rank,
        /// How.
        how: Down,
    },
    /// Both sides gave different lengths for one message.
    #[error("{peer} sends {theirs} bytes where {ours} are expected")]
    Length {
        /// Who.
        peer: Rank,
        /// What its frame says.
        theirs: u64,
        /// What was posted.
        ours: u64,
    },
    /// The sender has ended the message before its end; it knows why.
    #[error("{peer} has given up a message")]
    Aborted {
        /// Who.
        peer: Rank,
    },
    /// A second transfer with a key that is in use, or a malformed transfer. Nothing was sent.
    #[error("transfer with {peer} refused: {what}")]
    Misuse {
        /// With whom.
        peer: Rank,
        /// What is wrong.
        what: &'static str,
    },
}

/// A piece that has arrived. It may be looked at in place, or moved to where it belongs.
pub trait Inlet {
    /// The piece, whole units; empty when all is consumed.
    fn peek(&mut self) -> &[u8];
    /// The first `n` bytes of `peek` are done with. What is not consumed when `incoming` returns is offered again later.
    fn consume(&mut self, n: usize);
    /// Leaves a message of which nothing has been consumed where it lies, if that is memory of the sender's that both sides have mapped: the place in its heap, from which [`SharedMemory::window`] has all its bytes until the receiver has [taken](Transport::taken) it. It is not offered again. `None`: it cannot be left.
    ///
    /// What is read there counts only once the message is reported done, because the sender may have given it up meanwhile.
    fn leave(&mut self) -> Option<u64> {
        None
    }
    /// Moves bytes to `out`, as many as there are and fit, and consumes them: as `peek` and `consume`, in one pass where the bytes are not at hand yet. Returns how many; fewer than `out` has where that is all of the piece, of which the rest is whole units.
    fn copy_to(&mut self, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() {
            let bytes = self.peek();
            let n = bytes.len().min(out.len() - done);
            if n == 0 {
                break;
            }
            out[done..done + n].copy_from_slice(&bytes[..n]);
            self.consume(n);
            done += n;
        }
        done
    }
}

/// Room that leaves for the peer; it may be filled in place, or handed a slice.
pub trait Outlet {
    /// Room, whole units, never beyond the message's end; empty when full.
    fn room(&mut self) -> &mut [u8];
    /// The first `n` bytes of `room` have been filled.
    fn commit(&mut self, n: usize);
}

/// Bytes that have arrived, in a slice: an [`Inlet`] for any transport.
#[derive(Debug)]
pub struct Piece<'a> {
    bytes: &'a [u8],
    used: usize,
}

impl<'a> Piece<'a> {
    /// Shows the whole units of `bytes`.
    pub fn new(bytes: &'a [u8], unit: u32) -> Self {
        let whole = bytes.len() - bytes.len() % unit as usize;
        Piece {
            bytes: &bytes[..whole],
            used: 0,
        }
    }

    /// How many of them have been consumed.
    pub fn used(&self) -> usize {
        self.used
    }
}

impl Inlet for Piece<'_> {
    fn peek(&mut self) -> &[u8] {
        &self.bytes[self.used..]
    }

    fn consume(&mut self, n: usize) {
        debug_assert!(
            n <= self.bytes.len() - self.used,
            "consumed what was not shown"
        );
        self.used = self.bytes.len().min(self.used + n);
    }
}

/// Room for bytes that leave, in a slice: an [`Outlet`] for any transport.
#[derive(Debug)]
pub struct Room<'a> {
    buf: &'a mut [u8],
    filled: usize,
}

impl<'a> Room<'a> {
    /// Offers the whole units of `buf`.
    pub fn new(buf: &'a mut [u8], unit: u32) -> Self {
        let whole = buf.len() - buf.len() % unit as usize;
        Room {
            buf: &mut buf[..whole],
            filled: 0,
        }
    }

    /// How many of them have been filled.
    pub fn filled(&self) -> usize {
        self.filled
    }
}

impl Outlet for Room<'_> {
    fn room(&mut self) -> &mut [u8] {
        &mut self.buf[self.filled..]
    }

    fn commit(&mut self, n: usize) {
        debug_assert!(
            n <= self.buf.len() - self.filled,
            "committed more than there was room for"
        );
        self.filled = self.buf.len().min(self.filled + n);
    }
}

/// What the engine is to a transport: it lends memory for the length of one call, never longer.
///
/// Called only from within [`Transport::progress`]; must not call back into the transport.
pub trait Sink {
    /// Fill the message `id` from byte `at` on. What is not filled is asked for again.
    fn outgoing(&mut self, id: XferId, at: u64, out: &mut dyn Outlet);
    /// The head of a posted receive has come; once, before its first byte (also for messages of 0 bytes).
    fn opened(&mut self, id: XferId, head: &[u8]) -> Verdict;
    /// Bytes of `id` from `at` on, in order.
    fn incoming(&mut self, id: XferId, at: u64, part: &mut dyn Inlet);
    /// A message has begun that nobody has posted a receive for; once per message. `Take` keeps it for a later post.
    fn unexpected(&mut self, from: Rank, key: MsgKey, head: &[u8]) -> Verdict;
    /// The transfer is over and its id will not be heard of again. After `Ok` of a send the memory may be changed: the bytes are on their way, not necessarily there.
    fn done(&mut self, id: XferId, result: Result<(), TransportError>);
    /// The peer is gone. Its pending transfers are reported `done` with an error; said once.
    fn down(&mut self, peer: Rank, how: Down);
}

/// Wakes whoever makes progress for a rank. Cheap, callable from any thread, repeated calls harmless.
pub trait Wake: Send + Sync {
    /// There is something to do.
    fn wake(&self);
}

/// How a thread that has nothing left to do may sleep without missing this transport's next event.
#[derive(Debug)]
pub enum Armed<'a> {
    /// Do not sleep: call `progress` again.
    MoreToDo,
    /// This descriptor becomes readable.
    #[cfg(unix)]
    Fd(std::os::fd::BorrowedFd<'a>),
    /// The attached [`Wake`] will be called.
    Wakes,
    /// Nothing will say so: look again after this long.
    PollAfter(Duration),
    /// Keeps the lifetime in use on platforms without descriptors.
    #[doc(hidden)]
    _Never(std::marker::PhantomData<&'a ()>, std::convert::Infallible),
}

/// What has gone over the links so far, counted where it happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LinkStats {
    /// Bytes of messages sent, without headers.
    pub payload_sent: u64,
    /// Bytes of messages received, without headers.
    pub payload_received: u64,
    /// Bytes of messages that went over no link: they stayed where they were, and their receivers have read them there.
    pub lent_sent: u64,
    /// Bytes of messages that were read where their senders have them.
    pub lent_received: u64,
    /// Bytes of frame headers and heads sent.
    pub header_sent: u64,
    /// Bytes of frame headers and heads received.
    pub header_received: u64,
    /// Bytes of handshakes, credits and goodbyes sent on data links.
    pub control_sent: u64,
    /// Bytes of handshakes, credits and goodbyes received on data links.
    pub control_received: u64,
    /// Data frames sent.
    pub frames_sent: u64,
    /// Data frames received.
    pub frames_received: u64,
    /// Messages whose first byte came before their receive was posted.
    pub early_messages: u64,
    /// Connections over a network that have been made for messages.
    pub connections: u64,
}

impl LinkStats {
    /// What has been added since `earlier`.
    pub fn since(&self, earlier: &LinkStats) -> LinkStats {
        LinkStats {
            payload_sent: self.payload_sent - earlier.payload_sent,
            payload_received: self.payload_received - earlier.payload_received,
            lent_sent: self.lent_sent - earlier.lent_sent,
            lent_received: self.lent_received - earlier.lent_received,
            header_sent: self.header_sent - earlier.header_sent,
            header_received: self.header_received - earlier.header_received,
            control_sent: self.control_sent - earlier.control_sent,
            control_received: self.control_received - earlier.control_received,
            frames_sent: self.frames_sent - earlier.frames_sent,
            frames_received: self.frames_received - earlier.frames_received,
            early_messages: self.early_messages - earlier.early_messages,
            connections: self.connections - earlier.connections,
        }
    }

    /// The sum, for several transports of one rank.
    pub fn plus(&self, other: &LinkStats) -> LinkStats {
        LinkStats {
            payload_sent: self.payload_sent + other.payload_sent,
            payload_received: self.payload_received + other.payload_received,
            lent_sent: self.lent_sent + other.lent_sent,
            lent_received: self.lent_received + other.lent_received,
            header_sent: self.header_sent + other.header_sent,
            header_received: self.header_received + other.header_received,
            control_sent: self.control_sent + other.control_sent,
            control_received: self.control_received + other.control_received,
            frames_sent: self.frames_sent + other.frames_sent,
            frames_received: self.frames_received + other.frames_received,
            early_messages: self.early_messages + other.early_messages,
            connections: self.connections + other.connections,
        }
    }
}

/// What a rank says of something that peers look for in its heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Announced {
    /// Nothing so far.
    NotYet,
    /// It will never be there.
    Never,
    /// It is there, for good.
    At(u64),
}

/// Memory that the ranks of one host have mapped of each other: each rank's heap, whole.
///
/// A place is a position in a rank's heap, the same for everybody who has it mapped.
/// Peers read and write a rank's heap as the steps of an operation let them and, when one of them has fallen behind a failure, at any moment: so an implementation makes no reference to a peer's bytes, and copies them in a way that a racing write cannot turn into undefined behaviour.
pub trait SharedMemory: Send + Sync {
    /// World ranks whose heaps are mapped here, ascending, `me` among them.
    fn ranks(&self) -> &[Rank];
    /// Where these bytes lie in this rank's own heap; `None` for memory that is not in it, or is shared no more.
    fn place(&self, at: NonNull<u8>, bytes: usize) -> Option<u64>;
    /// Whether no other bytes in use lie on the pages of these: only then can they be taken away from the others without harm to a neighbour.
    fn is_alone(&self, at: NonNull<u8>, bytes: usize) -> bool;
    /// Copies bytes out of a rank's heap. `false`, with nothing read, where that heap is not mapped or does not have them. Torn where somebody writes there meanwhile.
    fn read(&self, rank: Rank, place: u64, out: &mut [u8]) -> bool;
    /// Copies bytes into a rank's heap. `false`, with nothing written, where that heap is not mapped or does not have them.
    fn write(&self, rank: Rank, place: u64, bytes: &[u8]) -> bool;
    /// These bytes of a rank's heap, where they are: for kernels that read and write them there. `None` where that heap is not mapped or does not have them. What is written to them is seen by all who have them mapped.
    fn window(&self, rank: Rank, place: u64, bytes: usize) -> Option<WindowMut<'_>>;
    /// Takes the pages of these bytes of this rank's own heap out of what is shared: same address, same content, out of reach for all others, for good. Called before memory is handed back whose operation has failed, so that no straggler writes to it. The pages are [alone](SharedMemory::is_alone) with these bytes, and nobody writes to them meanwhile but stragglers.
    ///
    /// What that needs is had when the block is made, so that it does not fail when it is needed.
    ///
    /// # Errors
    /// They are not alone, or were severed before; nothing has changed, and the memory must not be handed back.
    fn sever(&self, at: NonNull<u8>, bytes: usize) -> Result<(), String>;
    /// How many operations a rank has given up so far; 0 for a rank whose heap is not mapped.
    fn given_up(&self, rank: Rank) -> u64;
    /// Tells whoever has this rank's heap mapped that an operation, named by a number that all ranks give it, is given up here: what they read of it from now on counts for nothing.
    fn give_up(&self, op: u64);
    /// Whether a rank has given up an operation, when it had given up `since` others as that began. All that was copied out of its heap before this call, for an operation of which this says no, was as it should be. Errs on the side of yes where too many were given up since then to tell.
    fn has_given_up(&self, rank: Rank, op: u64, since: u64) -> bool;
    /// The word of 8 bytes at a place of a rank's heap, which its owner [stores](SharedMemory::store); what that rank did before it stored what is read happens before whatever follows. `None` where that heap is not mapped, does not have these bytes, or the place is no multiple of 8.
    fn load(&self, rank: Rank, place: u64) -> Option<u64>;
    /// Publishes a word of this rank's own heap: whoever [loads](SharedMemory::load) it sees all that happened before. `false`, with nothing stored, where the heap does not have these bytes or the place is no multiple of 8. Such words are reached by these two alone.
    fn store(&self, place: u64, value: u64) -> bool;
    /// Room of this many bytes in this rank's own heap, all 0; `None` where there is none left.
    fn block(&self, bytes: usize) -> Option<Box<dyn Block>>;
    /// The place of room of this many bytes in this rank's own heap, all 0, that is never given back: what peers may still look at when this rank has left. `None` where there is none left.
    fn reserve(&self, bytes: usize) -> Option<u64> {
        let _ = bytes;
        None
    }
    /// Whether the ranks are all threads of this process, so that they [lend](SharedMemory::lend) each other ordinary memory.
    fn is_one_process(&self) -> bool {
        false
    }
    /// Lends bytes of this rank's that are in no heap, to be reached by the ranks that are threads of this process; the number by which they [visit](SharedMemory::visit) them, never 0. `None` where the ranks are not all of one process.
    ///
    /// # Safety
    /// The bytes stay valid for reads and writes until [`recall`](SharedMemory::recall) of the number has returned, and nobody reaches them meanwhile but in the order that the operation's steps give.
    unsafe fn lend(&self, at: NonNull<u8>, bytes: usize) -> Option<u64> {
        let _ = (at, bytes);
        None
    }
    /// Ends a loan of this rank's: on return nobody is at its bytes, and nobody will be. Waits for whoever is, which is one step over memory at most.
    fn recall(&self, number: u64) {
        let _ = number;
    }
    /// Bytes that a rank lends, from number `at` on; `None` where it does not lend them, or not any more. To be left by [`leave`](SharedMemory::leave), soon and without waiting for anything: [`Visit`] does that.
    fn visit(&self, rank: Rank, number: u64, at: u64, bytes: usize) -> Option<WindowMut<'_>> {
        let _ = (rank, number, at, bytes);
        None
    }
    /// Ends a visit.
    fn leave(&self, rank: Rank, number: u64) {
        let _ = (rank, number);
    }
    /// `n` words of a rank's heap, as long as they are kept: for what is looked at again and again. `None` where that heap is not mapped or does not have them.
    fn words(&self, rank: Rank, place: u64, n: usize) -> Option<SharedWords> {
        let _ = (rank, place, n);
        None
    }
    /// Tells whoever has this rank's heap mapped, once and for good, where in it the thing is that all call by this number; `None`: it will never be there. Room for this is bounded; where it is used up, all that has not been announced is never there.
    fn announce(&self, name: u64, place: Option<u64>) {
        let _ = (name, place);
    }
    /// What a rank has announced. A rank whose heap is not mapped announces nothing, ever.
    fn announced(&self, rank: Rank, name: u64) -> Announced {
        let _ = (rank, name);
        Announced::Never
    }
}

/// A stay at bytes that a rank lends; it ends when this is dropped.
pub struct Visit<'a> {
    memory: &'a dyn SharedMemory,
    rank: Rank,
    number: u64,
    window: WindowMut<'a>,
}

impl<'a> Visit<'a> {
    /// As [`SharedMemory::visit`].
    pub fn begin(
        memory: &'a dyn SharedMemory,
        rank: Rank,
        number: u64,
        at: u64,
        bytes: usize,
    ) -> Option<Visit<'a>> {
        let window = memory.visit(rank, number, at, bytes)?;
        Some(Visit {
            memory,
            rank,
            number,
            window,
        })
    }

    /// The bytes, for as long as it lasts.
    pub fn window(&self) -> WindowMut<'_> {
        self.window
    }
}

impl std::fmt::Debug for Visit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = (self.rank, self.number, self.window.len());
        f.debug_tuple("Visit").field(&part).finish()
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.memory.leave(self.rank, self.number);
    }
}

/// One rank's links to the others.
///
/// Messages are matched by key on each directed link; they may overtake each other.
/// Flow control is the transport's: a message whose receive is posted is never stopped by one whose receive is not; what comes early is held within a bounded credit per link, and a sender waits when that is used up.
/// Posting never blocks. All methods may be called from any thread; `progress` by several at once (the second returns at once).
/// After an error the transport stays usable for other peers.
/// Safe to implement: a [`Loan`] is read only through its unsafe method.
pub trait Transport: Send + Sync {
    /// This rank's number in the job.
    fn me(&self) -> Rank;
    /// World ranks that this transport reaches, ascending, without `me`.
    fn peers(&self) -> &[Rank];
    /// The link's name: `in-process`, `shm`, `tcp`.
    fn link(&self) -> &'static str;
    /// Whether sends should carry a [`Loan`] where they can. Such a send is `done` once its bytes are not read any more, not before.
    fn wants_loans(&self) -> bool {
        false
    }
    /// Whether it reads loans of any memory, because it reads them on this side, or both ends are of one address space, and a cancelled loan is read no more; else of memory that both sides have mapped alone, where a reader that is late reads when it comes.
    fn reads_ordinary(&self) -> bool {
        false
    }
    /// Accepts a transfer. Never blocks, moves nothing.
    ///
    /// # Errors
    /// [`TransportError::NoLink`], [`TransportError::Down`], [`TransportError::Misuse`]; nothing was posted.
    fn post(&self, t: Transfer<'_>) -> Result<XferId, TransportError>;
    /// Ends a transfer without a `done`. On return nobody reads its loan any more and no callback for it will come.
    ///
    /// A send that has begun is finished on the wire as an aborted message, so that the link stays in step; the peer's receive is reported done with an error, or dropped where it was not posted. Unknown ids are ignored. Not callable from within a callback.
    fn cancel(&self, id: XferId);
    /// All bytes of a message that was [left](Inlet::leave) where it lies have been read; `done` follows. Unknown ids are ignored.
    fn taken(&self, id: XferId) {
        let _ = id;
    }
    /// Drops what has come early for `op`, and whatever of it is still to come. Called once an operation is over.
    fn forget(&self, op: OpId);
    /// Moves what can be moved, up to about `budget` bytes, and reports to `sink`. Returns the number of callbacks made; 0 means that there is nothing to do now. Never blocks.
    fn progress(&self, sink: &mut dyn Sink, budget: usize) -> u64;
    /// How to sleep. Valid until the next call of `progress` or `post`.
    fn arm(&self) -> Armed<'_>;
    /// Nobody sleeps any more on what [`arm`](Transport::arm) said: whoever makes progress looks by itself, and peers need not wake anybody. Whoever wants to sleep arms again. Only a hint: without it nothing is missed.
    fn woke(&self) {}
    /// Whom to call when there is something to do (for [`Armed::Wakes`]). Replaces an earlier one.
    fn attach(&self, wake: Arc<dyn Wake>);
    /// The control plane says that a peer is gone. Links that exist end by themselves, after whatever is still in them; a link that was never made ends with this, as `how` says, once it is sure that nothing is on its way through it. Cheap; repeated calls harmless.
    fn departed(&self, _peer: Rank, _how: &Down) {}
    /// Says goodbye to all peers and flushes what was accepted, for at most `limit`.
    fn leave(&self, limit: Duration);
    /// What has gone over the links so far.
    fn stats(&self) -> LinkStats;
    /// Wakes a peer that sleeps until this link has something for it, as if something had come: it is to look at memory that both have mapped. Only for links with [`shared`](Transport::shared) memory; never blocks.
    fn nudge(&self, peer: Rank) {
        let _ = peer;
    }
    /// The memory that this rank and its peers have mapped of each other, where the link has any.
    fn shared(&self) -> Option<Arc<dyn SharedMemory>> {
        None
    }
}
