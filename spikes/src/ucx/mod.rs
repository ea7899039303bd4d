//! UCX active messages as a packet link.
//!
//! Every packet is one eager active message, with the sender's rank and a running number before it: UCX does not promise that active messages arrive in order (its lanes may overtake each other), so that they are put in order here.

mod raw_ucp;

pub use raw_ucp::Context;

use crate::packets::{Event, PacketTransport, Packets, Rest};
use gaggle_core::Rank;
use raw_ucp::{Came, Worker};
use std::{collections::BTreeMap, sync::Arc};

/// One rank's end.
pub struct UcxLink {
    me: Rank,
    worker: Worker,
    /// Of each peer.
    streams: Vec<Stream>,
}

/// What has gone to and come from one peer.
#[derive(Default)]
struct Stream {
    sent: u32,
    came: u32,
    /// Ahead of their turn.
    stash: BTreeMap<u32, Vec<u8>>,
    down: bool,
}

/// A world within this process: one transport per rank.
///
/// With `notice_failures` a rank that is dropped is lost to its peers; not all of UCX's transports can do that (those over shared memory cannot).
///
/// # Errors
/// What the library says.
pub fn world(
    context: &Arc<Context>,
    n: u32,
    notice_failures: bool,
) -> Result<Vec<PacketTransport<UcxLink>>, String> {
    let made: Result<Vec<_>, String> = (0..n).map(|_| Worker::new(context)).collect();
    let (workers, addresses): (Vec<_>, Vec<_>) = made?.into_iter().unzip();
    let mut all = Vec::new();
    for (me, mut worker) in (0..).map(Rank).zip(workers) {
        worker.connect(&addresses, me.idx(), notice_failures)?;
        let fd = worker.fd()?;
        let link = UcxLink {
            me,
            worker,
            streams: (0..n).map(|_| Stream::default()).collect(),
        };
        all.push(PacketTransport::new(me, n, link, Some(fd)));
    }
    Ok(all)
}

impl UcxLink {
    /// The next packet whose turn has come.
    fn in_turn(&mut self) -> Option<Event> {
        let streams = (0..).map(Rank).zip(&mut self.streams);
        for (from, stream) in streams {
            if let Some(bytes) = stream.stash.remove(&stream.came) {
                stream.came = stream.came.wrapping_add(1);
                return Some(Event::Packet { from, bytes });
            }
        }
        None
    }
}

impl Packets for UcxLink {
    fn name(&self) -> &'static str {
        "ucx"
    }

    fn send(&mut self, to: Rank, packet: &[u8]) -> bool {
        let stream = &mut self.streams[to.idx()];
        if stream.down {
            return true;
        }
        let mut bytes = Vec::with_capacity(packet.len() + 8);
        bytes.extend(self.me.0.to_le_bytes());
        bytes.extend(stream.sent.to_le_bytes());
        bytes.extend(packet);
        let taken = self.worker.send(to.idx(), bytes.into());
        if taken {
            stream.sent = stream.sent.wrapping_add(1);
        }
        taken
    }

    fn poll(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.in_turn() {
                return Some(event);
            }
            match self.worker.poll()? {
                Came::Message(bytes) => {
                    let Some((head, packet)) = bytes.split_first_chunk::<8>() else {
                        continue;
                    };
                    let [a, b, c, d, e, f, g, h] = *head;
                    let from = u32::from_le_bytes([a, b, c, d]);
                    let number = u32::from_le_bytes([e, f, g, h]);
                    if let Some(stream) = self.streams.get_mut(from as usize) {
                        stream.stash.insert(number, packet.to_vec());
                    }
                }
                Came::Failed(peer, status) => {
                    let stream = &mut self.streams[peer];
                    if !stream.down {
                        stream.down = true;
                        return Some(Event::Lost {
                            peer: Rank(peer as u32),
                            why: format!("UCX status {status}"),
                        });
                    }
                }
            }
        }
    }

    fn rest(&mut self) -> Rest {
        if self.worker.arm() {
            Rest::Fd
        } else {
            Rest::No
        }
    }

    fn is_flushed(&mut self) -> bool {
        self.worker.is_flushed()
    }
}
