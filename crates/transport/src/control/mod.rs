//! The control plane: who is alive, and the few words that must reach everybody whatever the data links do.
//!
//! Every rank has connections to the ranks at a distance of a power of two ([`neighbours`]), about 2 log n of them, and passes on what it hears for the first time.
//! [`TcpControl`] does this over sockets; [`inproc`] gives ranks that are threads the same behaviour.
//!
//! What is promised:
//! - A broadcast reaches every rank that is alive and connected through living ranks, once, and those of one origin in order: links are first in, first out, and every rank passes on what it takes, in the order in which it takes it.
//!   Messages of an origin that dies may reach some ranks and not others.
//! - `lost` and `left` are facts about a rank that are true for ever: each rank reports one of them once per rank, whichever comes first.
//!   A rank that others have declared lost hears of it as well (`lost` with its own number) if its connections still work, and is deaf and dumb afterwards.
//! - Memory is bounded: a neighbour that leaves [`BACKLOG_MAX`] bytes of control messages unread is declared lost; so is one whose host is unreachable, or whose full socket buffer stays full, for about ten seconds.
//!   A rank that is merely stopped or slow is not lost: too little is said here to fill its buffers.
//!
//! The graph stays connected through any single failure from 4 ranks on, and through more the larger it is; up to 5 ranks, and for 7, everybody is everybody's neighbour.
//! When so many ranks have gone that the living are not connected any more, control messages do not cross the gap; the data links still tell each side who is down.

mod inproc;
mod tcp;
#[cfg(test)]
mod tests;
mod wire;

pub use inproc::{InprocControl, inproc};
pub use tcp::TcpControl;

use gaggle_core::{ControlSink, Rank};

/// Bytes of control messages that may wait for one rank.
pub const BACKLOG_MAX: usize = 1 << 20;

/// The ranks with which `me` has a control connection: those at a distance of a power of two, in both directions; ascending.
pub fn neighbours(me: Rank, world: u32) -> Vec<Rank> {
    let (me, n) = (u64::from(me.0), u64::from(world));
    let mut all: Vec<u64> = (0..32)
        .map(|k| 1_u64 << k)
        .take_while(|d| *d < n)
        .flat_map(|d| [(me + d) % n, (me + n - d) % n])
        .filter(|r| *r != me)
        .collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter()
        .filter_map(|r| u32::try_from(r).ok().map(Rank))
        .collect()
}

/// What is to be reported.
#[derive(Clone, Debug)]
enum Event {
    Message { from: Rank, payload: Vec<u8> },
    Lost { rank: Rank, why: String },
    Left { rank: Rank },
}

impl Event {
    fn report(&self, sink: &mut dyn ControlSink) {
        match self {
            Event::Message { from, payload } => sink.message(*from, payload),
            Event::Lost { rank, why } => sink.lost(*rank, why),
            Event::Left { rank } => sink.left(*rank),
        }
    }
}

/// What a rank knows of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Alive,
    Left,
    Lost,
}

/// The part of `payload` that is sent.
fn fitting(payload: &[u8]) -> &[u8] {
    if payload.len() > gaggle_core::control::CONTROL_MAX {
        debug_assert!(false, "a control message of {} bytes", payload.len());
        tracing::error!(
            "a control message of {} bytes was cut to {}",
            payload.len(),
            gaggle_core::control::CONTROL_MAX
        );
    }
    &payload[..payload.len().min(gaggle_core::control::CONTROL_MAX)]
}
